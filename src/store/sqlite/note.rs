//! The index of the notes: words in FTS5, vectors in plain rows that sqlite-vec measures.
//!
//! A search by words is bound to its scope by a word of its own in each row, and once more by the note's own columns. A
//! search by vectors walks the sketches of the scope (a bit a dimension, a few dozen bytes a passage) and measures the
//! nearest of them exactly.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, sqlite::SqliteRow};

use super::{
    SqliteStore, count, get, small,
    writer::{Durability, Tx, Write},
};
use crate::store::{
    StoreError,
    note::{Bare, NewNote, NoteCount, NoteRow, NoteStore, PassageHit, Scope},
};

/// What the title's words weigh beside the text's.
const TITLE_WEIGHT: f64 = 1.5;
/// The sketches that are nearest are measured exactly: so many for each result asked for, and at least 200.
const OVERSAMPLE: u32 = 8;
const LEAST_MEASURED: u32 = 200;

#[async_trait]
impl NoteStore for SqliteStore {
    async fn known_notes(&self, agent: &str) -> Result<Vec<NoteRow>, StoreError> {
        // The parts of the index are written together: other counts mean that one of them was damaged or lost.
        let parts =
            sqlx::query("SELECT (SELECT count(*) FROM note_passage), (SELECT count(*) FROM note_words_docsize)")
                .fetch_one(&self.readers)
                .await
                .map_err(damaged)?;
        if count(&parts, 0)? != count(&parts, 1)? {
            return Err(StoreError::Corrupt("the index of the notes is not whole".into()));
        }
        let rows = sqlx::query("SELECT path, stamp, hash FROM note WHERE agent = $1")
            .bind(agent)
            .fetch_all(&self.readers)
            .await
            .map_err(damaged)?;
        rows.iter().map(|row| Ok(NoteRow { path: get(row, 0)?, stamp: get(row, 1)?, hash: get(row, 2)? })).collect()
    }

    async fn put_notes(&self, agent: &str, notes: Vec<NewNote>, gone: Vec<String>) -> Result<(), StoreError> {
        self.write(Put { agent: agent.to_owned(), notes, gone }).await
    }

    async fn find_words(&self, scope: &Scope, words: &[String], most: u32) -> Result<Vec<PassageHit>, StoreError> {
        if words.is_empty() || most == 0 {
            return Ok(Vec::new());
        }
        let [own, shared] = scope.areas();
        let (agent, any) = (scope.agent(), words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" OR "));
        let places = format!("\"{}\" OR \"{}\"", own.place(agent), shared.place(agent));
        let rows = sqlx::query(
            "SELECT p.id, n.path, p.first, p.last, p.text, -hit.rank
             FROM (SELECT rowid, bm25(note_words, 0.0, $6, 1.0) AS rank
                   FROM note_words WHERE note_words MATCH $1 ORDER BY 2 LIMIT $2) AS hit
             JOIN note_passage AS p ON p.id = hit.rowid
             JOIN note AS n ON n.id = p.note
             WHERE n.agent = $3 AND n.area IN ($4, $5)
             ORDER BY hit.rank, p.id",
        )
        .bind(format!("{{title body}} : ({any}) AND place : ({places})"))
        .bind(most)
        .bind(agent)
        .bind(own.name())
        .bind(shared.name())
        .bind(TITLE_WEIGHT)
        .fetch_all(&self.readers)
        .await
        .map_err(damaged)?;
        rows.iter().map(hit).collect()
    }

    async fn find_near(
        &self,
        scope: &Scope,
        model: &str,
        vector: &[f32],
        most: u32,
    ) -> Result<Vec<PassageHit>, StoreError> {
        let [own, shared] = scope.areas();
        let (agent, bytes) = (scope.agent(), bytes_of(vector));
        // A sketch of another length is of a model that had the same name.
        let rows = sqlx::query(
            "SELECT p.id, n.path, p.first, p.last, p.text, 1.0 - vec_distance_cosine(v.vector, $1)
             FROM (SELECT id FROM note_passage INDEXED BY note_passage_sketch
                   WHERE place IN ($2, $3) AND sketch IS NOT NULL AND length(sketch) = length($4)
                   ORDER BY vec_distance_hamming(vec_bit(sketch), vec_bit($4)) LIMIT $5) AS near
             JOIN note_passage AS p ON p.id = near.id
             JOIN note AS n ON n.id = p.note
             JOIN note_vector AS v ON v.model = $6 AND v.hash = p.hash AND length(v.vector) = length($1)
             WHERE n.agent = $7 AND n.area IN ($8, $9)
             ORDER BY 6 DESC, p.id LIMIT $10",
        )
        .bind(&bytes)
        .bind(own.place(agent))
        .bind(shared.place(agent))
        .bind(sketch_of(vector))
        .bind(most.saturating_mul(OVERSAMPLE).max(LEAST_MEASURED))
        .bind(model)
        .bind(agent)
        .bind(own.name())
        .bind(shared.name())
        .bind(most)
        .fetch_all(&self.readers)
        .await
        .map_err(damaged)?;
        rows.iter().map(hit).collect()
    }

    async fn sketch_notes(&self, model: &str, after: i64, most: u32) -> Result<Vec<Bare>, StoreError> {
        self.write(SketchNotes { model: model.to_owned() }).await?;
        let rows = sqlx::query(
            "SELECT id, hash, heading, text FROM note_passage WHERE sketch IS NULL AND id > $1 ORDER BY id LIMIT $2",
        )
        .bind(after)
        .bind(most)
        .fetch_all(&self.readers)
        .await
        .map_err(damaged)?;
        rows.iter()
            .map(|row| Ok(Bare { id: get(row, 0)?, hash: get(row, 1)?, heading: get(row, 2)?, text: get(row, 3)? }))
            .collect()
    }

    async fn put_vectors(&self, model: &str, vectors: Vec<(Vec<u8>, Vec<f32>)>) -> Result<(), StoreError> {
        self.write(PutVectors { model: model.to_owned(), vectors }).await
    }

    async fn forget_vectors(&self, model: &str) -> Result<u64, StoreError> {
        self.write(ForgetVectors { model: model.to_owned() }).await
    }

    async fn count_notes(&self, agent: &str) -> Result<NoteCount, StoreError> {
        let row = sqlx::query(
            "SELECT count(DISTINCT n.id), count(p.id), count(p.sketch)
             FROM note AS n LEFT JOIN note_passage AS p ON p.note = n.id WHERE n.agent = $1",
        )
        .bind(agent)
        .fetch_one(&self.readers)
        .await
        .map_err(damaged)?;
        Ok(NoteCount { notes: count(&row, 0)?, passages: count(&row, 1)?, vectors: count(&row, 2)? })
    }

    async fn forget_notes(&self) -> Result<(), StoreError> {
        self.write(ForgetNotes).await
    }
}

/// A word for FTS5: quoted, so that nothing in it is an operator.
fn quoted(word: &str) -> String {
    let (word, all) = word.strip_suffix('*').map_or((word, ""), |begin| (begin, "*"));
    format!("\"{}\"{all}", word.replace('"', "\"\""))
}

fn hit(row: &SqliteRow) -> Result<PassageHit, StoreError> {
    Ok(PassageHit {
        id: get(row, 0)?,
        path: get(row, 1)?,
        lines: (small(row, 2)?, small(row, 3)?),
        text: get(row, 4)?,
        score: get(row, 5)?,
    })
}

/// What is wrong with the index alone. Its tables missing or not fitting together is damage too, and one that is mended.
fn damaged(error: sqlx::Error) -> StoreError {
    let text = error.to_string();
    let broken =
        ["no such table", "vtable constructor failed", "malformed", "fts5"].iter().any(|sign| text.contains(sign));
    if broken { StoreError::Corrupt(text) } else { error.into() }
}

/// A vector as it is stored.
fn bytes_of(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// A bit a dimension: whether it is positive; filled up with zeros to whole bytes.
fn sketch_of(vector: &[f32]) -> Vec<u8> {
    vector
        .chunks(8)
        .map(|eight| eight.iter().enumerate().fold(0u8, |byte, (n, number)| byte | (u8::from(*number > 0.0) << n)))
        .collect()
}

struct Put {
    agent: String,
    notes: Vec<NewNote>,
    gone: Vec<String>,
}

#[async_trait]
impl Write for Put {
    type Answer = ();

    /// It can be made again from the files.
    fn durability(&self) -> Durability {
        Durability::Soft
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        for path in &self.gone {
            forget(tx, &self.agent, path).await?;
            sqlx::query("DELETE FROM note WHERE agent = $1 AND path = $2")
                .bind(&self.agent)
                .bind(path)
                .execute(&mut *tx.conn)
                .await
                .map_err(damaged)?;
        }
        for note in &self.notes {
            self.put(tx, note).await?;
        }
        Ok(())
    }
}

impl Put {
    async fn put(&self, tx: &mut Tx<'_>, note: &NewNote) -> Result<(), StoreError> {
        if note.passages.is_some() {
            forget(tx, &self.agent, &note.row.path).await?;
        }
        let id: i64 = sqlx::query_scalar(
            "INSERT INTO note (agent, path, area, stamp, hash) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (agent, path) DO UPDATE SET area = excluded.area, stamp = excluded.stamp, hash = excluded.hash
             RETURNING id",
        )
        .bind(&self.agent)
        .bind(&note.row.path)
        .bind(note.area.name())
        .bind(note.row.stamp)
        .bind(&note.row.hash)
        .fetch_one(&mut *tx.conn)
        .await
        .map_err(damaged)?;
        let place = note.area.place(&self.agent);
        for passage in note.passages.iter().flatten() {
            let row: i64 = sqlx::query_scalar(
                "INSERT INTO note_passage (note, place, first, last, heading, text, hash)
                 VALUES ($1, $2, $3, $4, $5, $6, $7) RETURNING id",
            )
            .bind(id)
            .bind(&place)
            .bind(passage.lines.0)
            .bind(passage.lines.1)
            .bind(&passage.heading)
            .bind(&passage.text)
            .bind(&passage.hash)
            .fetch_one(&mut *tx.conn)
            .await
            .map_err(damaged)?;
            sqlx::query("INSERT INTO note_words (rowid, place, title, body) VALUES ($1, $2, $3, $4)")
                .bind(row)
                .bind(&place)
                .bind(&passage.title_words)
                .bind(&passage.words)
                .execute(&mut *tx.conn)
                .await
                .map_err(damaged)?;
        }
        Ok(())
    }
}

/// Takes the passages of a note out of the index.
async fn forget(tx: &mut Tx<'_>, agent: &str, path: &str) -> Result<(), StoreError> {
    let sql = "SELECT p.id FROM note AS n JOIN note_passage AS p ON p.note = n.id WHERE n.agent = $1 AND n.path = $2";
    let rows: Vec<i64> =
        sqlx::query_scalar(sql).bind(agent).bind(path).fetch_all(&mut *tx.conn).await.map_err(damaged)?;
    for row in rows {
        for sql in ["DELETE FROM note_words WHERE rowid = $1", "DELETE FROM note_passage WHERE id = $1"] {
            sqlx::query(sql).bind(row).execute(&mut *tx.conn).await.map_err(damaged)?;
        }
    }
    Ok(())
}

struct SketchNotes {
    model: String,
}

#[async_trait]
impl Write for SketchNotes {
    type Answer = ();

    fn durability(&self) -> Durability {
        Durability::Soft
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        // A text that came back, or that two notes have, has its vector already.
        let known: Vec<(i64, Vec<u8>)> = sqlx::query_as(
            "SELECT p.id, v.vector FROM note_passage AS p JOIN note_vector AS v ON v.model = $1 AND v.hash = p.hash
             WHERE p.sketch IS NULL LIMIT 5000",
        )
        .bind(&self.model)
        .fetch_all(&mut *tx.conn)
        .await
        .map_err(damaged)?;
        for (id, bytes) in known {
            sqlx::query("UPDATE note_passage SET sketch = $2 WHERE id = $1")
                .bind(id)
                .bind(sketch_of(&floats_of(&bytes)))
                .execute(&mut *tx.conn)
                .await
                .map_err(damaged)?;
        }
        Ok(())
    }
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect()
}

struct PutVectors {
    model: String,
    vectors: Vec<(Vec<u8>, Vec<f32>)>,
}

#[async_trait]
impl Write for PutVectors {
    type Answer = ();

    fn durability(&self) -> Durability {
        Durability::Soft
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        for (hash, vector) in &self.vectors {
            sqlx::query(
                "INSERT INTO note_vector (model, hash, vector) VALUES ($1, $2, $3)
                 ON CONFLICT (model, hash) DO UPDATE SET vector = excluded.vector",
            )
            .bind(&self.model)
            .bind(hash)
            .bind(bytes_of(vector))
            .execute(&mut *tx.conn)
            .await
            .map_err(damaged)?;
            sqlx::query("UPDATE note_passage SET sketch = $2 WHERE hash = $1")
                .bind(hash)
                .bind(sketch_of(vector))
                .execute(&mut *tx.conn)
                .await
                .map_err(damaged)?;
        }
        Ok(())
    }
}

struct ForgetVectors {
    model: String,
}

#[async_trait]
impl Write for ForgetVectors {
    type Answer = u64;

    fn durability(&self) -> Durability {
        Durability::Soft
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        // Sketches of another model's vectors say nothing about this one's.
        let others: i64 = sqlx::query_scalar("SELECT count(*) FROM note_vector WHERE model <> $1")
            .bind(&self.model)
            .fetch_one(&mut *tx.conn)
            .await?;
        if others > 0 {
            sqlx::query("UPDATE note_passage SET sketch = NULL WHERE sketch IS NOT NULL")
                .execute(&mut *tx.conn)
                .await?;
        }
        let done = sqlx::query(
            "DELETE FROM note_vector
             WHERE model <> $1 OR NOT EXISTS (SELECT 1 FROM note_passage AS p WHERE p.hash = note_vector.hash)",
        )
        .bind(&self.model)
        .execute(&mut *tx.conn)
        .await?;
        Ok(done.rows_affected())
    }
}

struct ForgetNotes;

/// The statements of the migration that make the table of words.
const SCHEMA: &str = include_str!("../../../migrations/sqlite/0007_memory.sql");

#[async_trait]
impl Write for ForgetNotes {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        // Dropping does not look at what is in it, so it works on a damaged one as well.
        for table in ["note_words", "note_passage", "note"] {
            sqlx::query(AssertSqlSafe(format!("DROP TABLE IF EXISTS {table}"))).execute(&mut *tx.conn).await?;
        }
        // Made anew as the migration makes them, but for the vectors, which stay.
        for statement in SCHEMA.split_inclusive(");\n").filter(|part| !part.contains("CREATE TABLE note_vector")) {
            sqlx::query(statement).persistent(false).execute(&mut *tx.conn).await?;
        }
        Ok(())
    }
}
