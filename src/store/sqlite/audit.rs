//! The audit log's rows, each written in the transaction of what it tells of; and whether the gateway is halted.

use async_trait::async_trait;
use channel_api::TurnId;
use serde_json::{Value, json as value};
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, get, json, outbox,
    writer::{Tx, Write},
};
use crate::{
    audit::{self, AuditRow, AuditStore, Event, Head, Kind},
    store::{LaneKey, NewPart, StepKind, StepRecord, StepState, StoreError},
    tools::Effect,
};

#[async_trait]
impl AuditStore for SqliteStore {
    async fn audit(&self, events: Vec<Event>) -> Result<(), StoreError> {
        self.write(Append(events)).await
    }

    async fn tell(&self, event: Event, parts: Vec<NewPart>) -> Result<Vec<LaneKey>, StoreError> {
        self.write(Tell { event, parts }).await
    }

    async fn audit_rows(
        &self,
        after: i64,
        since: i64,
        kind: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT seq, at, kind, who, what, detail, prev, hash FROM audit
             WHERE seq > $1 AND at >= $2 AND ($3 IS NULL OR kind = $3) ORDER BY seq LIMIT $4",
        )
        .bind(after)
        .bind(since)
        .bind(kind)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(audit_row).collect()
    }

    async fn audit_head(&self) -> Result<Head, StoreError> {
        let row = sqlx::query("SELECT seq, hash FROM audit_head").fetch_one(&self.readers).await?;
        Ok(Head { seq: get(&row, 0)?, hash: get(&row, 1)? })
    }

    async fn halted(&self) -> Result<Option<(i64, String)>, StoreError> {
        let row = sqlx::query("SELECT at, who FROM halt").fetch_optional(&self.readers).await?;
        row.map(|row| Ok((get(&row, 0)?, get(&row, 1)?))).transpose()
    }

    async fn set_halted(&self, halted: bool, who: &str, now: i64) -> Result<bool, StoreError> {
        self.write(SetHalted { halted, who: who.to_owned(), now }).await
    }
}

fn audit_row(row: &SqliteRow) -> Result<AuditRow, StoreError> {
    Ok(AuditRow {
        seq: get(row, 0)?,
        at: get(row, 1)?,
        kind: get(row, 2)?,
        who: get(row, 3)?,
        what: get(row, 4)?,
        // A detail that is no JSON any more was changed: its row is shown, and found broken.
        detail: json(row, 5).or_else(|_| get::<String>(row, 5).map(Value::from))?,
        prev: get(row, 6)?,
        hash: get(row, 7)?,
    })
}

struct Append(Vec<Event>);

#[async_trait]
impl Write for Append {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        for event in &self.0 {
            append(tx, event).await?;
        }
        Ok(())
    }
}

struct Tell {
    event: Event,
    parts: Vec<NewPart>,
}

#[async_trait]
impl Write for Tell {
    type Answer = Vec<LaneKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneKey>, StoreError> {
        append(tx, &self.event).await?;
        Ok(outbox::insert_pending(tx, &self.parts, None).await?.lanes)
    }
}

/// Writes an event down within the transaction of what it tells of.
pub(super) async fn append(tx: &mut Tx<'_>, event: &Event) -> Result<(), StoreError> {
    let head = sqlx::query("SELECT seq, hash FROM audit_head").fetch_one(&mut *tx.conn).await?;
    let head = Head { seq: get(&head, 0)?, hash: get(&head, 1)? };
    let row = AuditRow::after(&head, event);
    sqlx::query(
        "INSERT INTO audit (seq, at, kind, who, what, detail, prev, hash) VALUES ($1, $2, $3, $4, $5, $6, $7, $8);
         UPDATE audit_head SET seq = $1, hash = $8",
    )
    .bind(row.seq)
    .bind(row.at)
    .bind(&row.kind)
    .bind(&row.who)
    .bind(&row.what)
    .bind(audit::canonical(&row.detail))
    .bind(&row.prev)
    .bind(&row.hash)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

/// Writes down an effect's start or end; other steps are the journal's alone.
pub(super) async fn append_step(tx: &mut Tx<'_>, turn: &TurnId, step: &StepRecord) -> Result<(), StoreError> {
    if step.kind != StepKind::Tool || matches!(step.effect, None | Some(Effect::Read)) {
        return Ok(());
    }
    let of = sqlx::query(
        "SELECT s.key, (SELECT sender FROM inbox WHERE id = t.entry)
         FROM turn t JOIN session s ON s.id = t.session WHERE t.id = $1",
    )
    .bind(turn.as_str())
    .fetch_optional(&mut *tx.conn)
    .await?;
    let (session, sender): (String, Option<String>) = match &of {
        Some(row) => (get(row, 0)?, get(row, 1)?),
        None => (String::new(), None),
    };
    let (state, at) = match step.state {
        StepState::Started => ("started", step.started_at),
        StepState::Finished => ("finished", step.started_at.saturating_add(step.ms)),
        StepState::Failed => ("failed", step.started_at.saturating_add(step.ms)),
        StepState::Interrupted => ("interrupted", step.started_at.saturating_add(step.ms)),
    };
    let mut detail = value!({
        "session": session,
        "turn": turn.as_str(),
        "call": step.call_id,
        "args_sha256": audit::hash_of(&step.args),
    });
    match step.state {
        StepState::Started => detail["args"] = audit::short_form(&step.args),
        StepState::Finished => {}
        _ => detail["result"] = audit::short_form(&step.result),
    }
    let who = sender.unwrap_or_else(|| audit::GATEWAY.to_owned());
    append(tx, &Event { at, kind: Kind::Effect, who, what: format!("{} {state}", step.name), detail }).await
}

/// Writes down a decision about who may write.
pub(super) async fn append_access(
    tx: &mut Tx<'_>,
    by: &str,
    what: &str,
    detail: Value,
    at: i64,
) -> Result<(), StoreError> {
    append(tx, &Event { at, kind: Kind::Access, who: by.to_owned(), what: what.to_owned(), detail }).await
}

struct SetHalted {
    halted: bool,
    who: String,
    now: i64,
}

#[async_trait]
impl Write for SetHalted {
    type Answer = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let query = match self.halted {
            true => sqlx::query("INSERT INTO halt (id, at, who) VALUES (1, $1, $2) ON CONFLICT DO NOTHING"),
            false => sqlx::query("DELETE FROM halt WHERE $1 IS NOT NULL AND $2 IS NOT NULL"),
        };
        let done = query.bind(self.now).bind(&self.who).execute(&mut *tx.conn).await?;
        let changed = done.rows_affected() > 0;
        if changed {
            let what = if self.halted { "halted" } else { "resumed" };
            let (who, what) = (self.who.clone(), what.to_owned());
            append(tx, &Event { at: self.now, kind: Kind::Halt, who, what, detail: value!({}) }).await?;
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at: i64, kind: Kind) -> Event {
        Event { at, kind, who: "telegram:main 1".into(), what: "done".into(), detail: value!({ "b": 1, "a": "é" }) }
    }

    #[tokio::test]
    async fn rows_are_chained_kept_and_never_changed_and_a_cut_or_changed_log_is_found() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = SqliteStore::open(&dir.path().join("t.db")).await.expect("opens");
        assert_eq!(audit::verify(&store, &[]).await.expect("reads").expect("holds").seq, 0);
        store.audit((0..600).map(|at| event(at, Kind::Access)).collect()).await.expect("writes");
        store.audit(vec![event(600, Kind::Login)]).await.expect("writes");
        let head = audit::verify(&store, &[]).await.expect("reads").expect("holds");
        assert_eq!((head.seq, &head), (601, &store.audit_head().await.expect("reads")));
        let logins = store.audit_rows(0, 500, Some("login"), 10).await.expect("reads");
        assert_eq!(logins.iter().map(|row| row.seq).collect::<Vec<_>>(), [601]);

        // A writer of ours cannot change, delete or shorten it.
        let conn = || async { sqlx::SqlitePool::connect_with(store.options.clone()).await.expect("opens") };
        let pool = conn().await;
        for sql in [
            "UPDATE audit SET who = 'x' WHERE seq = 3",
            "DELETE FROM audit WHERE seq = 601",
            "UPDATE audit_head SET seq = 600",
            "DELETE FROM audit_head",
        ] {
            let error = sqlx::query(sql).execute(&pool).await.expect_err(sql).to_string();
            assert!(error.contains("append-only"), "{sql}: {error}");
        }
        // Whoever owns the file can take the triggers off; then the chain tells.
        for sql in ["DROP TRIGGER audit_no_delete", "DELETE FROM audit WHERE seq > 599"] {
            sqlx::query(sql).execute(&pool).await.expect(sql);
        }
        let broken = audit::verify(&store, &[]).await.expect("reads").expect_err("two are missing");
        assert_eq!((broken.seq, broken.why.as_str()), (600, "missing"));
        // Even when the head is set back, the log file's tells.
        let last = store.audit_rows(598, 0, None, 9).await.expect("reads").pop().expect("one");
        sqlx::query("DROP TRIGGER audit_head_forward").execute(&pool).await.expect("drops");
        sqlx::query("UPDATE audit_head SET seq = $1, hash = $2")
            .bind(last.seq)
            .bind(&last.hash)
            .execute(&pool)
            .await
            .expect("sets");
        assert!(audit::verify(&store, &[]).await.expect("reads").is_ok(), "nothing here tells");
        let broken = audit::verify(&store, &[head]).await.expect("reads").expect_err("the log file does");
        assert_eq!((broken.seq, broken.why.as_str()), (600, "missing"));
        // And a changed row is named.
        for sql in ["DROP TRIGGER audit_no_update", "UPDATE audit SET who = 'x' WHERE seq = 3"] {
            sqlx::query(sql).execute(&pool).await.expect(sql);
        }
        let broken = audit::verify(&store, &[]).await.expect("reads").expect_err("one is changed");
        assert_eq!((broken.seq, broken.why.as_str()), (3, "changed"));
        pool.close().await;
    }

    #[tokio::test]
    async fn a_halt_lasts_until_it_is_ended_and_stands_in_the_log() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("t.db");
        let store = SqliteStore::open(&path).await.expect("opens");
        assert_eq!(store.halted().await, Ok(None));
        assert_eq!(store.set_halted(true, "console", 5).await, Ok(true));
        assert_eq!(store.set_halted(true, "console", 6).await, Ok(false));
        crate::store::Upkeep::close(&store).await;
        let store = SqliteStore::open(&path).await.expect("opens again");
        assert_eq!(store.halted().await, Ok(Some((5, "console".to_owned()))));
        assert_eq!(store.set_halted(false, "console", 7).await, Ok(true));
        assert_eq!(store.set_halted(false, "console", 8).await, Ok(false));
        let rows = store.audit_rows(0, 0, Some("halt"), 9).await.expect("reads");
        let said: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
        assert_eq!(said, ["halted", "resumed"]);
    }
}
