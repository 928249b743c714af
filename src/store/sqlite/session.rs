//! Sessions for people, and what every station does to a session's row.

use async_trait::async_trait;
use channel_api::{QueueMode, TurnId};
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, count, get, json, most_tokens, small,
    writer::{Tx, Write},
};
use crate::{
    model::Usage,
    session::SessionKey,
    store::{Footer, Lease, MessageRow, SessionChoice, SessionRow, SessionStore, StoreError},
};

/// The place behind all sessions that are ready: a subquery.
macro_rules! next_ready {
    () => {
        "(SELECT coalesce(max(ready_seq), 0) + 1 FROM session INDEXED BY session_ready WHERE ready_seq IS NOT NULL)"
    };
}
pub(super) use next_ready;

/// When the head of the updated session may be claimed by itself; a turn that goes on is always first and due: a subquery.
macro_rules! head_not_before {
    () => {
        "coalesce((SELECT CASE WHEN turn IS NULL THEN not_before ELSE 0 END FROM inbox INDEXED BY inbox_open
          WHERE session = session.id AND state < 2 AND state = 0 ORDER BY turn IS NULL, seq LIMIT 1), 0)"
    };
}
pub(super) use head_not_before;

/// The id of the leased session, or `Fenced`.
pub(super) async fn fence(tx: &mut Tx<'_>, lease: &Lease) -> Result<i64, StoreError> {
    let id: Option<i64> =
        sqlx::query_scalar("SELECT id FROM session WHERE key = $1 AND epoch = $2 AND lease_boot = $3")
            .bind(lease.session.as_str())
            .bind(lease.epoch)
            .bind(lease.boot.as_str())
            .fetch_optional(&mut *tx.conn)
            .await?;
    id.ok_or(StoreError::Fenced)
}

/// Frees a session whose rows are as they shall be: counts what waits and puts it behind the others.
pub(super) async fn free(tx: &mut Tx<'_>, session: i64, hold_until: i64, parked: bool) -> Result<(), StoreError> {
    sqlx::query(concat!(
        "UPDATE session SET
             lease_boot = NULL, lease_turn = NULL, lease_sender = NULL, lease_alone = 0,
             (pending, suspects) = (SELECT count(*), coalesce(sum(suspect), 0) FROM inbox INDEXED BY inbox_open
                                    WHERE session = session.id AND state < 2 AND state = 0),
             ready_seq = CASE WHEN EXISTS (SELECT 1 FROM inbox INDEXED BY inbox_open
                                           WHERE session = session.id AND state < 2 AND state = 0) THEN ",
        next_ready!(),
        " END, hold_until = $2, parked_until = CASE WHEN $3 THEN $2 END, not_before = max($2, ",
        head_not_before!(),
        ") WHERE id = $1",
    ))
    .bind(session)
    .bind(hold_until)
    .bind(parked)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

/// Counts again what waits in a session from which messages were taken, leased or not.
pub(super) async fn recount(tx: &mut Tx<'_>, session: i64) -> Result<(), StoreError> {
    sqlx::query(concat!(
        "UPDATE session SET
             (pending, suspects) = (SELECT count(*), coalesce(sum(suspect), 0) FROM inbox INDEXED BY inbox_open
                                    WHERE session = session.id AND state < 2 AND state = 0),
             ready_seq = CASE WHEN lease_boot IS NULL AND EXISTS (SELECT 1 FROM inbox INDEXED BY inbox_open
                                           WHERE session = session.id AND state < 2 AND state = 0)
                              THEN coalesce(ready_seq, ",
        next_ready!(),
        ") END, not_before = max(hold_until, ",
        head_not_before!(),
        ") WHERE id = $1",
    ))
    .bind(session)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

macro_rules! session_columns {
    () => {
        concat!(
            "key, agent, mode, pending, lease_boot IS NOT NULL, parked_until, generation, messages, min(tokens_in, ",
            most_tokens!(),
            "), min(tokens_out, ",
            most_tokens!(),
            "), min(tokens_cached, ",
            most_tokens!(),
            "), estimated, created_at, updated_at, model, footer"
        )
    };
}

fn session(row: &SqliteRow) -> Result<SessionRow, StoreError> {
    Ok(SessionRow {
        key: SessionKey::from(get::<String>(row, 0)?),
        agent: get(row, 1)?,
        mode: get::<Option<&str>>(row, 2)?.and_then(QueueMode::parse),
        pending: small(row, 3)?,
        running: get(row, 4)?,
        parked_until: get(row, 5)?,
        generation: get(row, 6)?,
        messages: count(row, 7)?,
        usage: usage(row, 8)?,
        created_at: get(row, 12)?,
        updated_at: get(row, 13)?,
        choice: choice(row, 14)?,
    })
}

/// Reads `model, footer` from column `i` on.
pub(super) fn choice(row: &SqliteRow, i: usize) -> Result<SessionChoice, StoreError> {
    let footer = get::<Option<&str>>(row, i + 1)?.and_then(Footer::parse).unwrap_or_default();
    Ok(SessionChoice { model: get(row, i)?, footer })
}

/// Reads `tokens_in, tokens_out, tokens_cached, estimated` from column `i` on.
pub(super) fn usage(row: &SqliteRow, i: usize) -> Result<Usage, StoreError> {
    Ok(Usage {
        input: count(row, i)?,
        output: count(row, i + 1)?,
        cached: count(row, i + 2)?,
        cache_write: 0,
        estimated: get(row, i + 3)?,
    })
}

fn message(row: &SqliteRow) -> Result<MessageRow, StoreError> {
    Ok(MessageRow {
        seq: get(row, 0)?,
        session: SessionKey::from(get::<String>(row, 1)?),
        generation: get(row, 2)?,
        turn: TurnId::from(get::<String>(row, 3)?),
        message: json(row, 4)?,
        created_at: get(row, 5)?,
    })
}

#[async_trait]
impl SessionStore for SqliteStore {
    async fn session(&self, key: &SessionKey) -> Result<Option<SessionRow>, StoreError> {
        sqlx::query(concat!("SELECT ", session_columns!(), " FROM session WHERE key = $1"))
            .bind(key.as_str())
            .fetch_optional(&self.readers)
            .await?
            .as_ref()
            .map(session)
            .transpose()
    }

    async fn sessions(&self, after: Option<(i64, SessionKey)>, limit: u32) -> Result<Vec<SessionRow>, StoreError> {
        let (at, key) = after.map_or((i64::MAX, String::new()), |(at, key)| (at, key.to_string()));
        let rows = sqlx::query(concat!(
            "SELECT ",
            session_columns!(),
            " FROM session WHERE updated_at < $1 OR (updated_at = $1 AND key > $2)
             ORDER BY updated_at DESC, key LIMIT $3"
        ))
        .bind(at)
        .bind(key)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(session).collect()
    }

    async fn messages(&self, key: &SessionKey, after: i64, limit: u32) -> Result<Vec<MessageRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT m.seq, s.key, m.generation, m.turn, m.body, m.created_at
             FROM session s JOIN message m ON m.session = s.id
             WHERE s.key = $1 AND m.seq > $2 ORDER BY m.seq LIMIT $3",
        )
        .bind(key.as_str())
        .bind(after)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(message).collect()
    }

    async fn search(&self, text: &str, limit: u32) -> Result<Vec<MessageRow>, StoreError> {
        let mut pattern = String::with_capacity(text.len() + 2);
        pattern.push('%');
        for c in text.chars() {
            if matches!(c, '%' | '_' | '\\') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push('%');
        let rows = sqlx::query(
            "SELECT m.seq, s.key, m.generation, m.turn, m.body, m.created_at
             FROM message m JOIN session s ON s.id = m.session
             WHERE m.body ->> '$.text' LIKE $1 ESCAPE '\\' ORDER BY m.seq DESC LIMIT $2",
        )
        .bind(pattern)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(message).collect()
    }

    async fn reset(&self, key: &SessionKey, now: i64) -> Result<Vec<SessionKey>, StoreError> {
        self.write(Reset { key: key.clone(), now }).await
    }
}

struct Reset {
    key: SessionKey,
    now: i64,
}

#[async_trait]
impl Write for Reset {
    type Answer = Vec<SessionKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SessionKey>, StoreError> {
        sqlx::query("UPDATE heard SET text = NULL, name = NULL, sender = '' WHERE session = $1 AND text IS NOT NULL")
            .bind(self.key.as_str())
            .execute(&mut *tx.conn)
            .await?;
        let done = sqlx::query("UPDATE session SET generation = generation + 1, updated_at = $2 WHERE key = $1")
            .bind(self.key.as_str())
            .bind(self.now)
            .execute(&mut *tx.conn)
            .await?;
        if done.rows_affected() == 0 {
            return Err(StoreError::NotFound);
        }
        // One that runs on reports nothing: it has ended.
        let (running, _) = super::subagent::stop_all(tx, &self.key, self.now).await?;
        Ok(running)
    }
}
