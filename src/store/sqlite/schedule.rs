//! Schedules: each slot and its run in one transaction.

use async_trait::async_trait;
use channel_api::InboxId;
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, get,
    inbox::Prepared,
    json, small, to_json,
    writer::{Tx, Write},
};
use crate::{
    schedule::{
        rows::{Added, Change, Fire, Fired, Reaped, ScheduleRow, ScheduleStore, State},
        when::{When, backoff_ms},
    },
    store::{StoreError, Stored},
};

macro_rules! schedule_columns {
    () => {
        "id, creator, agent, title, text, spec, tz, terms, slot, due_at, state, failures, runs, entry, last_entry, last_at,
         error, created_at"
    };
}

fn schedule(row: &SqliteRow) -> Result<ScheduleRow, StoreError> {
    Ok(ScheduleRow {
        id: get(row, 0)?,
        creator: get(row, 1)?,
        agent: get(row, 2)?,
        title: get(row, 3)?,
        text: get(row, 4)?,
        when: json(row, 5)?,
        tz: get(row, 6)?,
        terms: json(row, 7)?,
        slot: get(row, 8)?,
        due_at: get(row, 9)?,
        state: State::parse(get(row, 10)?),
        failures: small(row, 11)?,
        runs: small(row, 12)?,
        entry: get::<Option<String>>(row, 13)?.map(InboxId::from),
        last_entry: get::<Option<String>>(row, 14)?.map(InboxId::from),
        last_at: get(row, 15)?,
        error: get(row, 16)?,
        created_at: get(row, 17)?,
    })
}

#[async_trait]
impl ScheduleStore for SqliteStore {
    async fn add_schedule(&self, row: &ScheduleRow, most: u32) -> Result<Added, StoreError> {
        self.write(Add { row: row.clone(), spec: to_json(&row.when)?, terms: to_json(&row.terms)?, most }).await
    }

    async fn schedules(&self, creator: Option<&str>) -> Result<Vec<ScheduleRow>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            schedule_columns!(),
            " FROM schedule WHERE $1 IS NULL OR creator = $1 ORDER BY due_at IS NULL, due_at, id"
        ))
        .bind(creator)
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(schedule).collect()
    }

    async fn schedule(&self, id: &str) -> Result<Option<ScheduleRow>, StoreError> {
        let row = sqlx::query(concat!("SELECT ", schedule_columns!(), " FROM schedule WHERE id = $1"))
            .bind(id)
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(schedule).transpose()
    }

    async fn edit_schedule(&self, id: &str, change: &Change) -> Result<Added, StoreError> {
        let spec = change.when.as_ref().map(|(when, ..)| to_json(when)).transpose()?;
        self.write(Edit { id: id.to_owned(), change: change.clone(), spec }).await
    }

    async fn cancel_schedule(&self, id: &str) -> Result<(), StoreError> {
        self.write(Cancel(id.to_owned())).await
    }

    async fn due_schedules(&self, now: i64, limit: u32) -> Result<Vec<ScheduleRow>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            schedule_columns!(),
            " FROM schedule INDEXED BY schedule_due WHERE due_at IS NOT NULL AND due_at <= $1 ORDER BY due_at LIMIT $2"
        ))
        .bind(now)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        let mut due = Vec::new();
        for row in &rows {
            match schedule(row) {
                Ok(row) => due.push(row),
                // One row that cannot be read stops alone, where its owner sees why, and holds up none of the others.
                Err(error) => {
                    let id: String = get(row, 0)?;
                    tracing::warn!(schedule = %id, %error, "a schedule cannot be read and is stopped");
                    self.stop_schedule(&id, &format!("its row cannot be read: {error}")).await?;
                }
            }
        }
        Ok(due)
    }

    async fn next_schedule(&self) -> Result<Option<i64>, StoreError> {
        let at: Option<i64> =
            sqlx::query_scalar("SELECT min(due_at) FROM schedule INDEXED BY schedule_due WHERE due_at IS NOT NULL")
                .fetch_one(&self.readers)
                .await?;
        Ok(at)
    }

    async fn fire_schedule(&self, fire: Fire) -> Result<Fired, StoreError> {
        let Fire { id, slot, next, entry, now } = fire;
        let entry = Prepared::of(entry)?;
        self.write(Run { id, slot, next: next.map(|next| (next.slot, next.due_at)), entry, now }).await
    }

    async fn run_schedule(&self, id: &str, now: i64) -> Result<(), StoreError> {
        self.write(RunNow { id: id.to_owned(), now }).await
    }

    async fn stop_schedule(&self, id: &str, why: &str) -> Result<(), StoreError> {
        self.write(Stop { id: id.to_owned(), why: why.to_owned() }).await
    }

    async fn reap_schedules(&self, now: i64) -> Result<Reaped, StoreError> {
        // Nothing has ended is the rule: found out without the writer.
        let row = sqlx::query(
            "SELECT count(*), coalesce(sum(coalesce(inbox.state, 2) >= 2), 0)
             FROM schedule INDEXED BY schedule_running LEFT JOIN inbox ON inbox.id = entry WHERE entry IS NOT NULL",
        )
        .fetch_one(&self.readers)
        .await?;
        let (all, ended): (i64, i64) = (get(&row, 0)?, get(&row, 1)?);
        let failed = if ended > 0 { self.write(Reap(now)).await? } else { Vec::new() };
        Ok(Reaped { failed, running: all > ended })
    }

    async fn put_off_schedule(&self, id: &str, due_at: i64) -> Result<(), StoreError> {
        self.write(PutOff { id: id.to_owned(), due_at }).await
    }
}

struct PutOff {
    id: String,
    due_at: i64,
}

#[async_trait]
impl Write for PutOff {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        sqlx::query("UPDATE schedule SET due_at = max(due_at, $2) WHERE id = $1 AND due_at IS NOT NULL")
            .bind(&self.id)
            .bind(self.due_at)
            .execute(&mut *tx.conn)
            .await?;
        Ok(())
    }
}

struct Add {
    row: ScheduleRow,
    spec: String,
    terms: String,
    most: u32,
}

#[async_trait]
impl Write for Add {
    type Answer = Added;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Added, StoreError> {
        let row = &self.row;
        let known = sqlx::query(
            "SELECT EXISTS (SELECT 1 FROM schedule WHERE id = $1),
                    (SELECT count(*) FROM schedule WHERE creator = $2 AND state = 'active')",
        )
        .bind(&row.id)
        .bind(&row.creator)
        .fetch_one(&mut *tx.conn)
        .await?;
        if get::<bool>(&known, 0)? {
            return Ok(Added::Added);
        }
        if get::<i64>(&known, 1)? >= i64::from(self.most) {
            return Ok(Added::TooMany);
        }
        // What ended is kept for a while to be read, not for ever.
        sqlx::query(
            "DELETE FROM schedule WHERE creator = $1 AND state <> 'active' AND entry IS NULL AND id NOT IN (
                 SELECT id FROM schedule WHERE creator = $1 AND state <> 'active' ORDER BY created_at DESC LIMIT $2)",
        )
        .bind(&row.creator)
        .bind(ENDED_KEPT)
        .execute(&mut *tx.conn)
        .await?;
        sqlx::query(
            "INSERT INTO schedule (id, creator, agent, title, text, spec, tz, terms, slot, due_at, state, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)",
        )
        .bind(&row.id)
        .bind(&row.creator)
        .bind(&row.agent)
        .bind(&row.title)
        .bind(&row.text)
        .bind(&self.spec)
        .bind(&row.tz)
        .bind(&self.terms)
        .bind(row.slot)
        .bind(row.due_at)
        .bind(row.state.as_str())
        .bind(row.created_at)
        .execute(&mut *tx.conn)
        .await?;
        Ok(Added::Added)
    }
}

/// How many ended schedules of a creator are kept.
const ENDED_KEPT: i64 = 50;

struct Edit {
    id: String,
    change: Change,
    spec: Option<String>,
}

#[async_trait]
impl Write for Edit {
    type Answer = Added;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Added, StoreError> {
        let when = self.change.when.as_ref();
        let others: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM schedule AS other JOIN schedule AS it ON it.id = $1 AND other.creator = it.creator
             WHERE other.state = 'active' AND other.id <> it.id AND it.state <> 'active'",
        )
        .bind(&self.id)
        .fetch_one(&mut *tx.conn)
        .await?;
        if when.is_some() && others >= i64::from(self.change.most) {
            return Ok(Added::TooMany);
        }
        let done = sqlx::query(
            "UPDATE schedule SET title = coalesce($2, title), text = coalesce($3, text), spec = coalesce($4, spec),
                 tz = coalesce($5, tz), slot = coalesce($6, slot), due_at = coalesce($7, due_at),
                 state = CASE WHEN $6 IS NULL THEN state ELSE 'active' END,
                 failures = CASE WHEN $6 IS NULL THEN failures ELSE 0 END,
                 error = CASE WHEN $6 IS NULL THEN error END
             WHERE id = $1",
        )
        .bind(&self.id)
        .bind(&self.change.title)
        .bind(&self.change.text)
        .bind(&self.spec)
        .bind(when.map(|(_, tz, _)| tz))
        .bind(when.map(|(_, _, next)| next.slot))
        .bind(when.map(|(_, _, next)| next.due_at))
        .execute(&mut *tx.conn)
        .await?;
        if done.rows_affected() == 0 { Err(StoreError::NotFound) } else { Ok(Added::Added) }
    }
}

struct Cancel(String);

#[async_trait]
impl Write for Cancel {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let done = sqlx::query("DELETE FROM schedule WHERE id = $1").bind(&self.0).execute(&mut *tx.conn).await?;
        if done.rows_affected() == 0 { Err(StoreError::NotFound) } else { Ok(()) }
    }
}

struct RunNow {
    id: String,
    now: i64,
}

#[async_trait]
impl Write for RunNow {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let done =
            sqlx::query("UPDATE schedule SET slot = $2, due_at = $2, state = 'active', error = NULL WHERE id = $1")
                .bind(&self.id)
                .bind(self.now)
                .execute(&mut *tx.conn)
                .await?;
        if done.rows_affected() == 0 { Err(StoreError::NotFound) } else { Ok(()) }
    }
}

struct Stop {
    id: String,
    why: String,
}

#[async_trait]
impl Write for Stop {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        sqlx::query("UPDATE schedule SET slot = NULL, due_at = NULL, state = 'stopped', error = $2 WHERE id = $1")
            .bind(&self.id)
            .bind(&self.why)
            .execute(&mut *tx.conn)
            .await?;
        Ok(())
    }
}

struct Run {
    id: String,
    slot: i64,
    next: Option<(i64, i64)>,
    entry: Prepared,
    now: i64,
}

#[async_trait]
impl Write for Run {
    type Answer = Fired;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Fired, StoreError> {
        let there: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM schedule WHERE id = $1 AND slot = $2)")
            .bind(&self.id)
            .bind(self.slot)
            .fetch_one(&mut *tx.conn)
            .await?;
        if !there {
            return Ok(Fired::Gone);
        }
        let (entry, runs) = match self.entry.accept(tx).await? {
            Stored::New { .. } => (self.entry.id().clone(), 1),
            // It was begun before: nothing runs again.
            Stored::Duplicate(id) => (id, 0),
            Stored::Full => return Ok(Fired::Full),
            _ => return Ok(Fired::Gone),
        };
        sqlx::query(
            "UPDATE schedule SET slot = $2, due_at = $3, entry = $4, last_entry = $4, last_at = $5, runs = runs + $6,
                 state = CASE WHEN $2 IS NULL THEN 'done' ELSE 'active' END
             WHERE id = $1",
        )
        .bind(&self.id)
        .bind(self.next.map(|(slot, _)| slot))
        .bind(self.next.map(|(_, due_at)| due_at))
        .bind(entry.as_str())
        .bind(self.now)
        .bind(runs)
        .execute(&mut *tx.conn)
        .await?;
        Ok(Fired::Queued(entry))
    }
}

struct Reap(i64);

#[async_trait]
impl Write for Reap {
    type Answer = Vec<(String, String)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<(String, String)>, StoreError> {
        let rows = sqlx::query(
            "SELECT s.id, s.spec, s.failures, s.due_at, i.error, coalesce(i.state, 2)
             FROM schedule s INDEXED BY schedule_running LEFT JOIN inbox i ON i.id = s.entry
             WHERE s.entry IS NOT NULL AND coalesce(i.state, 2) >= 2 LIMIT 100",
        )
        .fetch_all(&mut *tx.conn)
        .await?;
        let mut failed = Vec::new();
        for row in &rows {
            let id: String = get(row, 0)?;
            let when: When = match json(row, 1) {
                Ok(when) => when,
                Err(error) => {
                    // It holds up none of the others.
                    sqlx::query(
                        "UPDATE schedule SET entry = NULL, state = 'stopped', slot = NULL, due_at = NULL, error = $2
                         WHERE id = $1",
                    )
                    .bind(&id)
                    .bind(format!("its row cannot be read: {error}"))
                    .execute(&mut *tx.conn)
                    .await?;
                    continue;
                }
            };
            let error: Option<String> = get(row, 4)?;
            match error {
                None if when.is_once() => {
                    // Unless it was set anew meanwhile.
                    sqlx::query(
                        "DELETE FROM schedule WHERE id = $1 AND slot IS NULL;
                         UPDATE schedule SET entry = NULL, failures = 0, error = NULL WHERE id = $1",
                    )
                    .bind(&id)
                    .execute(&mut *tx.conn)
                    .await?;
                }
                None => {
                    sqlx::query("UPDATE schedule SET entry = NULL, failures = 0, error = NULL WHERE id = $1")
                        .bind(&id)
                        .execute(&mut *tx.conn)
                        .await?;
                }
                Some(why) => {
                    let failures = small(row, 2)?.saturating_add(1);
                    let not_before = self.0.saturating_add(backoff_ms(failures));
                    sqlx::query(
                        "UPDATE schedule SET entry = NULL, failures = $2, error = $3, due_at = max(due_at, $4),
                             state = CASE WHEN slot IS NULL THEN 'failed' ELSE state END
                         WHERE id = $1",
                    )
                    .bind(&id)
                    .bind(i64::from(failures))
                    .bind(&why)
                    .bind(not_before)
                    .execute(&mut *tx.conn)
                    .await?;
                    failed.push((id, why));
                }
            }
        }
        Ok(failed)
    }
}
