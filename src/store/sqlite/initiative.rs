//! Ticks, and calls of programs.

use async_trait::async_trait;
use channel_api::{InboxId, Reply};
use serde_json::json as value;
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, get,
    inbox::Prepared,
    json, to_json,
    writer::{Tx, Write},
};
use crate::{
    heartbeat::rows::{Called, Given, HookRow, InitiativeStore, RunState, Tick, TickRow},
    session::SessionKey,
    store::{NewEntry, StoreError, Stored},
};

fn hook(row: &SqliteRow) -> Result<HookRow, StoreError> {
    Ok(HookRow {
        id: get(row, 0)?,
        key: get(row, 1)?,
        fingerprint: get(row, 2)?,
        kind: get(row, 3)?,
        agent: get(row, 4)?,
        text: get(row, 5)?,
        due_at: get(row, 6)?,
        entry: get::<Option<String>>(row, 7)?.map(InboxId::from),
        created_at: get(row, 8)?,
    })
}

fn last_tick(row: &SqliteRow) -> Result<TickRow, StoreError> {
    Ok(TickRow {
        agent: get(row, 0)?,
        slot: get(row, 1)?,
        at: get(row, 2)?,
        result: get(row, 3)?,
        entry: get::<Option<String>>(row, 4)?.map(InboxId::from),
    })
}

macro_rules! hook_columns {
    () => {
        "id, key, fingerprint, kind, agent, text, due_at, entry, created_at"
    };
}

#[async_trait]
impl InitiativeStore for SqliteStore {
    async fn last_tick(&self, agent: &str) -> Result<Option<TickRow>, StoreError> {
        let row = sqlx::query("SELECT agent, slot, at, result, entry FROM heartbeat WHERE agent = $1")
            .bind(agent)
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(last_tick).transpose()
    }

    async fn last_ticks(&self) -> Result<Vec<TickRow>, StoreError> {
        let rows = sqlx::query("SELECT agent, slot, at, result, entry FROM heartbeat ORDER BY agent")
            .fetch_all(&self.readers)
            .await?;
        rows.iter().map(last_tick).collect()
    }

    async fn tick(&self, tick: Tick) -> Result<Given, StoreError> {
        let Tick { agent, slot, result, entry, now } = tick;
        self.write(Decide { agent, slot, result, entry: entry.map(Prepared::of).transpose()?, now }).await
    }

    async fn last_alert(&self, session: &SessionKey, after: i64) -> Result<Option<String>, StoreError> {
        let row = sqlx::query(
            "SELECT o.reply FROM inbox i INDEXED BY inbox_errand
             JOIN outbox o INDEXED BY outbox_entry ON o.entry = i.id AND o.part_seq = 1
             WHERE i.session = (SELECT id FROM session WHERE key = $1) AND i.errand IS NOT NULL AND i.received_at > $2
               AND i.state = 2 AND i.silent IS NULL AND i.error IS NULL
               AND i.errand ->> 'kind' IN ('heartbeat', 'wake') AND o.reply IS NOT NULL AND o.state NOT IN (6, 7)
             ORDER BY i.seq DESC LIMIT 1",
        )
        .bind(session.as_str())
        .bind(after)
        .fetch_optional(&self.readers)
        .await?;
        row.map(|row| Ok(json::<Reply>(&row, 0)?.text)).transpose()
    }

    async fn call(&self, row: &HookRow, entry: Option<NewEntry>) -> Result<Called, StoreError> {
        self.write(Call { row: row.clone(), entry: entry.map(Prepared::of).transpose()? }).await
    }

    async fn hook(&self, id: &str) -> Result<Option<HookRow>, StoreError> {
        let row = sqlx::query(concat!("SELECT ", hook_columns!(), " FROM hook WHERE id = $1"))
            .bind(id)
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(hook).transpose()
    }

    async fn waiting_wakes(&self, agent: &str, now: i64, limit: u32) -> Result<Vec<HookRow>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            hook_columns!(),
            " FROM hook INDEXED BY hook_waiting WHERE agent = $1 AND entry IS NULL AND due_at <= $2 ORDER BY seq LIMIT $3"
        ))
        .bind(agent)
        .bind(now)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(hook).collect()
    }

    async fn wake(&self, ids: &[String], entry: NewEntry) -> Result<Given, StoreError> {
        self.write(Wake { ids: to_json(ids)?, entry: Prepared::of(entry)? }).await
    }

    async fn run_state(&self, entry: &InboxId) -> Result<Option<RunState>, StoreError> {
        let row = sqlx::query(
            "SELECT i.state, s.key, i.turn, i.silent, i.error
             FROM inbox i JOIN session s ON s.id = i.session WHERE i.id = $1",
        )
        .bind(entry.as_str())
        .fetch_optional(&self.readers)
        .await?;
        let Some(row) = row else { return Ok(None) };
        let error: Option<String> = get(&row, 4)?;
        let state = match get::<i64>(&row, 0)? {
            0 => "queued",
            1 => "running",
            2 if error.is_none() => "done",
            _ => "failed",
        };
        let parts = sqlx::query(
            "SELECT reply, CASE state WHEN 0 THEN 'pending' WHEN 1 THEN 'held' WHEN 2 THEN 'sending' WHEN 3 THEN 'uncertain'
                        WHEN 4 THEN 'sent' WHEN 5 THEN 'unknown' WHEN 6 THEN 'failed' ELSE 'expired' END, error
             FROM outbox INDEXED BY outbox_entry WHERE entry = $1 ORDER BY place, sub",
        )
        .bind(entry.as_str())
        .fetch_all(&self.readers)
        .await?;
        let mut reply = None;
        let mut sent = Vec::new();
        for part in &parts {
            if get::<Option<&str>>(part, 0)?.is_some() {
                reply = Some(json::<Reply>(part, 0)?.text);
            }
            sent.push(value!({ "state": get::<&str>(part, 1)?, "error": get::<Option<&str>>(part, 2)? }));
        }
        Ok(Some(RunState {
            state: state.to_owned(),
            session: get(&row, 1)?,
            turn: get(&row, 2)?,
            silent: get(&row, 3)?,
            error,
            reply,
            parts: sent,
        }))
    }
}

/// Queues an entry as a part of a transaction.
async fn give(tx: &mut Tx<'_>, entry: &Prepared) -> Result<Given, StoreError> {
    Ok(match entry.accept(tx).await? {
        Stored::New { .. } => Given::Queued(entry.id().clone()),
        Stored::Duplicate(id) => Given::Queued(id),
        Stored::Full => Given::Full,
        _ => Given::Nothing,
    })
}

struct Decide {
    agent: String,
    slot: i64,
    result: String,
    entry: Option<Prepared>,
    now: i64,
}

#[async_trait]
impl Write for Decide {
    type Answer = Given;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Given, StoreError> {
        let known: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM heartbeat WHERE agent = $1 AND slot = $2)")
            .bind(&self.agent)
            .bind(self.slot)
            .fetch_one(&mut *tx.conn)
            .await?;
        if known {
            return Ok(Given::Nothing);
        }
        let given = match &self.entry {
            Some(entry) => give(tx, entry).await?,
            None => Given::Nothing,
        };
        let entry = match &given {
            Given::Full => return Ok(Given::Full),
            Given::Queued(id) => Some(id.as_str()),
            Given::Nothing => None,
        };
        sqlx::query(
            "INSERT INTO heartbeat (agent, slot, at, result, entry) VALUES ($1, $2, $3, $4, $5)
             ON CONFLICT (agent) DO UPDATE SET slot = excluded.slot, at = excluded.at, result = excluded.result,
                 entry = coalesce(excluded.entry, entry)",
        )
        .bind(&self.agent)
        .bind(self.slot)
        .bind(self.now)
        .bind(&self.result)
        .bind(entry)
        .execute(&mut *tx.conn)
        .await?;
        Ok(given)
    }
}

/// The most wakes of an agent that wait: its session may be busy for long, and a wake is up to 16,000 characters.
const MOST_WAKES: i64 = 100;

struct Call {
    row: HookRow,
    entry: Option<Prepared>,
}

#[async_trait]
impl Write for Call {
    type Answer = Called;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Called, StoreError> {
        let new = &self.row;
        if let Some(key) = &new.key {
            let known = sqlx::query("SELECT id, fingerprint FROM hook WHERE key = $1")
                .bind(key)
                .fetch_optional(&mut *tx.conn)
                .await?;
            if let Some(known) = known {
                let same = get::<&str>(&known, 1)? == new.fingerprint;
                return Ok(if same { Called::Again(get(&known, 0)?) } else { Called::Conflict });
            }
        }
        if self.entry.is_none() {
            let waiting: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM hook INDEXED BY hook_waiting WHERE agent = $1 AND entry IS NULL",
            )
            .bind(&new.agent)
            .fetch_one(&mut *tx.conn)
            .await?;
            if waiting >= MOST_WAKES {
                return Ok(Called::Full);
            }
        }
        let entry = match &self.entry {
            Some(entry) => match give(tx, entry).await? {
                Given::Queued(id) => Some(id),
                _ => return Ok(Called::Full),
            },
            None => None,
        };
        sqlx::query(
            "INSERT INTO hook (id, key, fingerprint, kind, agent, text, due_at, entry, created_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(&new.id)
        .bind(&new.key)
        .bind(&new.fingerprint)
        .bind(&new.kind)
        .bind(&new.agent)
        .bind(&new.text)
        .bind(new.due_at)
        .bind(entry.as_ref().map(|id| id.as_str()))
        .bind(new.created_at)
        .execute(&mut *tx.conn)
        .await?;
        Ok(Called::New)
    }
}

struct Wake {
    /// As a JSON array.
    ids: String,
    entry: Prepared,
}

#[async_trait]
impl Write for Wake {
    type Answer = Given;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Given, StoreError> {
        let given = give(tx, &self.entry).await?;
        if let Given::Queued(entry) = &given {
            sqlx::query("UPDATE hook SET entry = $2 WHERE entry IS NULL AND id IN (SELECT value FROM json_each($1))")
                .bind(&self.ids)
                .bind(entry.as_str())
                .execute(&mut *tx.conn)
                .await?;
        }
        Ok(given)
    }
}
