//! Sub-agents: one row each, beside their sessions.

use async_trait::async_trait;
use channel_api::{Inbound, InboxId};
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, get,
    inbox::{self, Open},
    json, session, small, to_json,
    writer::{Tx, Write},
};
use crate::{
    errand::{Errand, ErrandKind},
    policy::Role,
    session::SessionKey,
    store::{EventRow, NewEntry, StoreError, Stored},
    subagents::{self, Handback, Spawned, Subagent, SubagentStore},
};

/// How deep their nesting is looked into: deeper than any can be.
const LEVELS: usize = 8;

macro_rules! subagents {
    () => {
        "SELECT s.key, a.parent, a.label, a.tools, a.rounds, a.created_at, a.ended_at
         FROM subagent a JOIN session s ON s.id = a.session"
    };
}

fn subagent(row: &SqliteRow) -> Result<Subagent, StoreError> {
    Ok(Subagent {
        session: SessionKey::from(get::<String>(row, 0)?),
        parent: SessionKey::from(get::<String>(row, 1)?),
        label: get(row, 2)?,
        tools: get::<Option<&str>>(row, 3)?.is_some().then(|| json(row, 3)).transpose()?,
        rounds: small(row, 4)?,
        created_at: get(row, 5)?,
        ended_at: get(row, 6)?,
    })
}

#[async_trait]
impl SubagentStore for SqliteStore {
    async fn spawn(&self, subagent: Subagent, task: NewEntry, most: u32) -> Result<Spawned, StoreError> {
        self.write(Spawn { subagent, task: inbox::Prepared::of(task)?, most }).await
    }

    async fn subagent(&self, session: &SessionKey) -> Result<Option<Subagent>, StoreError> {
        let row = sqlx::query(concat!(subagents!(), " WHERE s.key = $1"))
            .bind(session.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(subagent).transpose()
    }

    async fn subagents(&self, parent: &SessionKey) -> Result<Vec<Subagent>, StoreError> {
        let rows = sqlx::query(concat!(
            subagents!(),
            " WHERE a.parent = $1 AND a.ended_at IS NULL ORDER BY a.created_at, a.session"
        ))
        .bind(parent.as_str())
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(subagent).collect()
    }
}

/// A new sub-agent.
struct Spawn {
    subagent: Subagent,
    task: inbox::Prepared,
    most: u32,
}

#[async_trait]
impl Write for Spawn {
    type Answer = Spawned;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Spawned, StoreError> {
        let Subagent { session, parent, label, tools, rounds, created_at, .. } = &self.subagent;
        let known: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM session WHERE key = $1)")
            .bind(session.as_str())
            .fetch_one(&mut *tx.conn)
            .await?;
        if known {
            return Ok(Spawned::Known);
        }
        let open: i64 = sqlx::query_scalar("SELECT count(*) FROM subagent WHERE parent = $1 AND ended_at IS NULL")
            .bind(parent.as_str())
            .fetch_one(&mut *tx.conn)
            .await?;
        if open >= i64::from(self.most) {
            return Ok(Spawned::TooMany(self.most));
        }
        if !matches!(self.task.accept(tx).await?, Stored::New { .. }) {
            return Ok(Spawned::Known);
        }
        sqlx::query(
            "INSERT INTO subagent (session, parent, label, tools, rounds, created_at)
             SELECT id, $2, $3, $4, $5, $6 FROM session WHERE key = $1",
        )
        .bind(session.as_str())
        .bind(parent.as_str())
        .bind(label)
        .bind(tools.as_ref().map(to_json).transpose()?)
        .bind(i64::from(*rounds))
        .bind(created_at)
        .execute(&mut *tx.conn)
        .await?;
        Ok(Spawned::New)
    }
}

/// A sub-agent's session has done its work. False when it had ended before, or is none.
async fn end(tx: &mut Tx<'_>, session: i64, now: i64) -> Result<bool, StoreError> {
    let ended = sqlx::query("UPDATE subagent SET ended_at = $2 WHERE session = $1 AND ended_at IS NULL")
        .bind(session)
        .bind(now)
        .execute(&mut *tx.conn)
        .await?;
    Ok(ended.rows_affected() > 0)
}

/// Gives the result of a turn to whoever hears of it.
pub(super) async fn hand_back(tx: &mut Tx<'_>, session: i64, back: &Handback, now: i64) -> Result<(), StoreError> {
    let wanted = match back.spawned {
        true => end(tx, session, now).await?,
        false => is_awaited(tx, &back.task).await?,
    };
    if let Some(report) = back.report.as_ref().filter(|_| wanted) {
        // Boxed: what it stores may be told by what it stops.
        Box::pin(inbox::Prepared::of(report.clone())?.accept(tx)).await?;
    }
    Ok(())
}

/// Whether a session still waits for what it asked another one: [`give_up`].
async fn is_awaited(tx: &mut Tx<'_>, task: &InboxId) -> Result<bool, StoreError> {
    let awaited =
        sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM inbox WHERE id = $1 AND errand ->> '$.parent' IS NOT NULL)")
            .bind(task.as_str())
            .fetch_one(&mut *tx.conn)
            .await?;
    Ok(awaited)
}

/// Tells whoever hears of a dead letter, when it was an errand that reports.
pub(super) async fn buried(tx: &mut Tx<'_>, seq: i64, error: &str, now: i64) -> Result<(), StoreError> {
    tell(tx, seq, |lang| Some(crate::lang::subagent_failed(lang, error)), now).await
}

/// Settles what an errand that was stopped before it ran owes: a sub-agent ends, and who asked another session is told.
pub(super) async fn stopped(tx: &mut Tx<'_>, seq: i64, now: i64) -> Result<(), StoreError> {
    tell(tx, seq, |lang| Some(crate::lang::subagent_stopped(lang)), now).await
}

/// The same, of an errand whose asker hears nothing any more.
pub(super) async fn silenced(tx: &mut Tx<'_>, seq: i64, now: i64) -> Result<(), StoreError> {
    tell(tx, seq, |_| None, now).await
}

/// Ends the errand in this row without a result. A sub-agent that was stopped reports nothing.
async fn tell(
    tx: &mut Tx<'_>,
    seq: i64,
    words: impl FnOnce(crate::lang::Lang) -> Option<String> + Send,
    now: i64,
) -> Result<(), StoreError> {
    let row = sqlx::query(
        "SELECT i.errand, i.id, s.key, i.role, i.payload, i.session, i.state FROM inbox i JOIN session s ON s.id = i.session
         WHERE i.seq = $1 AND i.errand IS NOT NULL",
    )
    .bind(seq)
    .fetch_optional(&mut *tx.conn)
    .await?;
    let Some(row) = row else { return Ok(()) };
    let errand: Errand = json(&row, 0)?;
    if !subagents::reports(Some(&errand)) {
        return Ok(());
    }
    let (task, key) = (InboxId::from(get::<String>(&row, 1)?), SessionKey::from(get::<String>(&row, 2)?));
    let (role, inbound): (Role, Inbound) = (Role::parse(get(&row, 3)?), json(&row, 4)?);
    let lang = crate::lang::Lang::of_text(&inbound.text).unwrap_or_else(crate::lang::Lang::current);
    let spawned = errand.kind == ErrandKind::Spawn;
    let is_dead = get::<i64>(&row, 6)? == 3;
    let words = words(lang).filter(|_| is_dead || !spawned);
    let report = words.map(|text| subagents::report(&errand, &task, &key, role, &inbound, text).entry(now, u32::MAX));
    let back = Handback { report, spawned, task };
    hand_back(tx, get(&row, 5)?, &back, now).await
}

/// What a session asked of others is asked no more: what waits is settled, what runs is told to stop, nothing of it is
/// reported. The sessions of what runs, and the rows for watchers.
async fn give_up(
    tx: &mut Tx<'_>,
    parent: &SessionKey,
    now: i64,
) -> Result<(Vec<SessionKey>, Vec<EventRow>), StoreError> {
    let rows = sqlx::query(
        "UPDATE inbox SET errand = json_remove(errand, '$.parent')
         WHERE seq IN (SELECT seq FROM inbox INDEXED BY inbox_open
                       WHERE state < 2 AND errand IS NOT NULL AND errand ->> '$.kind' = 'message'
                         AND errand ->> '$.parent' = $1)
         RETURNING seq, id, session, (SELECT key FROM session WHERE id = inbox.session), state, turn, bytes",
    )
    .bind(parent.as_str())
    .fetch_all(&mut *tx.conn)
    .await?;
    let (mut running, mut events) = (Vec::new(), Vec::new());
    for row in &rows {
        let asked = Open {
            seq: get(row, 0)?,
            id: InboxId::from(get::<String>(row, 1)?),
            session: get(row, 2)?,
            key: SessionKey::from(get::<String>(row, 3)?),
            running: get::<i64>(row, 4)? == 1,
            turn: get(row, 5)?,
            bytes: get(row, 6)?,
        };
        match asked.stop(tx, now).await? {
            Some(event) => {
                events.push(event);
                session::recount(tx, asked.session).await?;
            }
            None if asked.running => running.push(asked.key),
            None => session::recount(tx, asked.session).await?,
        }
    }
    Ok((running, events))
}

/// Ends the sub-agents of a session and theirs, and what these sessions asked of others: what waits is settled, what runs is told to stop. The sessions of those that
/// run, and the rows for watchers.
pub(super) async fn stop_all(
    tx: &mut Tx<'_>,
    parent: &SessionKey,
    now: i64,
) -> Result<(Vec<SessionKey>, Vec<EventRow>), StoreError> {
    let (mut running, mut events) = (Vec::new(), Vec::new());
    let mut parents = vec![parent.clone()];
    for _ in 0..LEVELS {
        let mut children = Vec::new();
        for parent in &parents {
            let (asked, settled) = give_up(tx, parent, now).await?;
            running.extend(asked);
            events.extend(settled);
            let rows = sqlx::query(
                "UPDATE subagent SET ended_at = $2 WHERE parent = $1 AND ended_at IS NULL
                 RETURNING session, (SELECT key FROM session WHERE id = subagent.session),
                           (SELECT lease_boot IS NOT NULL FROM session WHERE id = subagent.session)",
            )
            .bind(parent.as_str())
            .bind(now)
            .fetch_all(&mut *tx.conn)
            .await?;
            for row in &rows {
                let key = SessionKey::from(get::<Option<String>>(row, 1)?.unwrap_or_default());
                events.extend(inbox::stop(tx, get(row, 0)?, &key, now).await?);
                if get::<Option<bool>>(row, 2)? == Some(true) {
                    running.push(key.clone());
                }
                children.push(key);
            }
        }
        if children.is_empty() {
            break;
        }
        parents = children;
    }
    Ok((running, events))
}
