//! Station 9: the journal of turns, and the history they are made from.

use async_trait::async_trait;
use channel_api::{InboxId, StepId, TurnId};
use futures_util::TryStreamExt as _;
use serde_json::{Value, json as value};
use sqlx::{SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore, audit, event, get, json, ledger, outbox,
    session::{fence, usage},
    small, to_json, tokens,
    writer::{Durability, Tx, Write},
};
use crate::{
    model::Usage,
    session::SessionKey,
    store::{
        EventRow, Lease, Placed, Shown, StepKind, StepRecord, StepState, StoreError, Summary, TurnRow, TurnStore,
        TurnTrace, TurnsOf, Window,
    },
    tools::Effect,
};

/// The most characters of a result or of arguments in an event.
const EVENT_CHARS: usize = 2000;

#[async_trait]
impl TurnStore for SqliteStore {
    async fn record(&self, lease: &Lease, steps: Vec<StepRecord>, durable: bool) -> Result<Vec<EventRow>, StoreError> {
        self.write(Record { lease: lease.clone(), steps, durable }).await
    }

    async fn window(
        &self,
        session: &SessionKey,
        generation: i64,
        max_messages: u32,
        max_bytes: u64,
    ) -> Result<Window, StoreError> {
        // `+ 1`: one more tells whether older ones exist; and a bare parameter would have the statement prepared again
        // each time (see `claim::ORDINARY`).
        let mut rows = sqlx::query(
            "SELECT text, messages, upto, 1 FROM summary
             WHERE session = (SELECT id FROM session WHERE key = $1) AND generation = $2
             UNION ALL
             SELECT body, place, seq, 0 FROM (
                 SELECT body, place, seq FROM message
                 WHERE session = (SELECT id FROM session WHERE key = $1) AND generation = $2
                   AND seq > coalesce((SELECT upto FROM summary
                                       WHERE session = (SELECT id FROM session WHERE key = $1) AND generation = $2), 0)
                 ORDER BY seq DESC LIMIT $3 + 1)",
        )
        .bind(session.as_str())
        .bind(generation)
        .bind(i64::from(max_messages))
        .fetch(&self.readers);
        let mut summary = None;
        let mut newest_first: Vec<Placed> = Vec::new();
        let mut bytes = 0;
        // The window moves in steps, so that the turns of one step share their beginning: half the window, or, where the
        // bytes are what limits it, a power of two that fits twice.
        let mut step = None;
        while let Some(row) = rows.try_next().await? {
            if get(&row, 3)? {
                summary = Some(Summary { upto: get(&row, 2)?, messages: small(&row, 1)?, text: get(&row, 0)? });
                continue;
            }
            if newest_first.len() >= max_messages as usize {
                step = Some(max_messages as usize / 2);
                break;
            }
            bytes += get::<&str>(&row, 0)?.len() as u64;
            if bytes > max_bytes {
                step = Some((newest_first.len() / 2).checked_ilog2().map_or(1, |power| 1 << power));
                break;
            }
            match json(&row, 0) {
                Ok(message) => newest_first.push(Placed { seq: get(&row, 2)?, place: get(&row, 1)?, message }),
                // Of a later version, or damaged: the conversation goes on without it; the strict order is mended later.
                Err(error) => {
                    tracing::warn!(%error, session = %session.as_str(), "a message of the history cannot be read and is left out");
                }
            }
        }
        let more = step.is_some();
        if let Some(step) = step.and_then(|step| i64::try_from(step.max(1)).ok())
            && let Some(first) = newest_first.iter().rposition(|row| row.place % step == 0)
        {
            newest_first.truncate(first + 1);
        }
        // Whole exchanges only: what stands before the first user message is cut.
        let oldest_user =
            newest_first.iter().rposition(|row| matches!(row.message, crate::model::Message::User { .. }));
        newest_first.truncate(oldest_user.map_or(0, |i| i + 1));
        newest_first.reverse();
        Ok(Window { summary, rows: newest_first, more })
    }

    async fn last_request(&self, session: &SessionKey) -> Result<Option<Value>, StoreError> {
        let row = sqlx::query(
            "SELECT args FROM step
             WHERE turn = (SELECT id FROM turn t INDEXED BY turn_session
                           WHERE session = (SELECT id FROM session WHERE key = $1)
                             AND EXISTS (SELECT 1 FROM step WHERE turn = t.id AND kind = 'llm' AND args IS NOT NULL)
                           ORDER BY seq DESC LIMIT 1)
               AND kind = 'llm' AND args IS NOT NULL
             ORDER BY n DESC LIMIT 1",
        )
        .bind(session.as_str())
        .fetch_optional(&self.readers)
        .await?;
        row.map(|row| json(&row, 0)).transpose()
    }

    async fn keep_preview(&self, lease: &Lease, shown: &Shown) -> Result<(), StoreError> {
        self.write(KeepPreview { lease: lease.clone(), shown: to_json(shown)? }).await
    }

    async fn left_previews(&self, limit: u32) -> Result<Vec<(TurnId, Shown)>, StoreError> {
        let rows = sqlx::query(
            "SELECT id, preview FROM turn INDEXED BY turn_preview
             WHERE preview IS NOT NULL AND state <> 'running' ORDER BY seq LIMIT $1 + 0",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(|row| Ok((TurnId::from(get::<String>(row, 0)?), json(row, 1)?))).collect()
    }

    async fn forget_preview(&self, turn: &TurnId) -> Result<(), StoreError> {
        self.write(ForgetPreview(turn.clone())).await
    }

    async fn trace(&self, id: &TurnId) -> Result<Option<TurnTrace>, StoreError> {
        let row = sqlx::query(concat!("SELECT ", turn_columns!(), " WHERE t.id = $1"))
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        let Some(row) = row else { return Ok(None) };
        let turn = read_turn(&row)?;
        let entries: String = get(&row, 14)?;
        let rows = sqlx::query(
            "SELECT i.id, i.payload ->> '$.text' FROM json_each($1) e JOIN inbox i ON i.id = e.value ORDER BY i.seq",
        )
        .bind(&entries)
        .fetch_all(&self.readers)
        .await?;
        let texts = rows
            .iter()
            .map(|row| Ok((InboxId::from(get::<String>(row, 0)?), get::<Option<String>>(row, 1)?.unwrap_or_default())))
            .collect::<Result<Vec<_>, StoreError>>()?;
        let steps = {
            let mut conn = self.readers.acquire().await?;
            steps(&mut conn, id).await?
        };
        let parts = outbox::parts_of(self, &entries).await?;
        Ok(Some(TurnTrace { turn, entries: texts, steps, parts }))
    }

    async fn turns(&self, of: TurnsOf, limit: u32) -> Result<Vec<TurnRow>, StoreError> {
        let query = match &of {
            TurnsOf::Entry(id) => sqlx::query(concat!(
                "SELECT ",
                turn_columns!(),
                " WHERE t.session = (SELECT session FROM inbox WHERE id = $1)
                    AND EXISTS (SELECT 1 FROM json_each(t.entries) e WHERE e.value = $1)
                  ORDER BY t.seq DESC LIMIT $2"
            ))
            .bind(id.as_str().to_owned())
            .bind(i64::from(limit)),
            TurnsOf::Session(key) => sqlx::query(concat!(
                "SELECT ",
                turn_columns!(),
                " WHERE t.session = (SELECT id FROM session WHERE key = $1) ORDER BY t.seq DESC LIMIT $2"
            ))
            .bind(key.as_str().to_owned())
            .bind(i64::from(limit)),
            TurnsOf::All => {
                sqlx::query(concat!("SELECT ", turn_columns!(), " ORDER BY t.seq DESC LIMIT $1")).bind(i64::from(limit))
            }
        };
        query.fetch_all(&self.readers).await?.iter().map(read_turn).collect()
    }
}

macro_rules! turn_columns {
    () => {
        "t.id, s.key, t.state, t.reason, t.entry, t.received_at, t.started_at, t.ended_at,
         t.tokens_in, t.tokens_out, t.tokens_cached, t.estimated, t.notes, t.seq, t.entries
         FROM turn t JOIN session s ON s.id = t.session"
    };
}
use turn_columns;

fn read_turn(row: &SqliteRow) -> Result<TurnRow, StoreError> {
    Ok(TurnRow {
        id: TurnId::from(get::<String>(row, 0)?),
        session: SessionKey::from(get::<String>(row, 1)?),
        state: get(row, 2)?,
        reason: get(row, 3)?,
        entry: get::<Option<String>>(row, 4)?.map(InboxId::from),
        received_at: get(row, 5)?,
        started_at: get(row, 6)?,
        ended_at: get(row, 7)?,
        usage: usage(row, 8)?,
        notes: json(row, 12)?,
    })
}

/// Ends a turn that will not finish by itself.
pub(super) async fn end(
    tx: &mut Tx<'_>,
    id: &str,
    state: &str,
    reason: Option<&str>,
    now: i64,
) -> Result<(), StoreError> {
    sqlx::query("UPDATE turn SET state = $2, reason = $3, ended_at = $4 WHERE id = $1")
        .bind(id)
        .bind(state)
        .bind(reason)
        .bind(now)
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}

fn kind_name(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Llm => "llm",
        StepKind::Tool => "tool",
    }
}

fn state_name(state: StepState) -> &'static str {
    match state {
        StepState::Started => "started",
        StepState::Finished => "finished",
        StepState::Failed => "failed",
        StepState::Interrupted => "interrupted",
    }
}

/// Keeps what the older messages of a session come to, in place of what was kept before.
pub(super) async fn put_summary(
    tx: &mut Tx<'_>,
    session: i64,
    generation: i64,
    summary: &Summary,
    now: i64,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO summary (session, generation, upto, messages, text, created_at) VALUES ($1, $2, $3, $4, $5, $6)
         ON CONFLICT (session, generation) DO UPDATE SET upto = excluded.upto, messages = excluded.messages,
             text = excluded.text, created_at = excluded.created_at
         WHERE excluded.upto > upto",
    )
    .bind(session)
    .bind(generation)
    .bind(summary.upto)
    .bind(i64::from(summary.messages))
    .bind(&summary.text)
    .bind(now)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

/// Inserts a step, or replaces it by id.
pub(super) async fn put_step(tx: &mut Tx<'_>, turn: &TurnId, step: &StepRecord) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO step (turn, id, n, round, attempt, kind, call_id, name, effect, state, args, result, started_at, ms,
                           tokens_in, tokens_out, tokens_cached, estimated)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18)
         ON CONFLICT (turn, id) DO UPDATE SET
             n = excluded.n, round = excluded.round, attempt = excluded.attempt, name = excluded.name,
             effect = excluded.effect, state = excluded.state, args = excluded.args, result = excluded.result,
             started_at = excluded.started_at, ms = excluded.ms, tokens_in = excluded.tokens_in,
             tokens_out = excluded.tokens_out, tokens_cached = excluded.tokens_cached, estimated = excluded.estimated",
    )
    .bind(turn.as_str())
    .bind(step.id.as_str())
    .bind(i64::from(step.n))
    .bind(i64::from(step.round))
    .bind(i64::from(step.attempt))
    .bind(kind_name(step.kind))
    .bind(&step.call_id)
    .bind(&step.name)
    .bind(step.effect.map(Effect::as_str))
    .bind(state_name(step.state))
    .bind(to_json(&step.args)?)
    .bind(to_json(&step.result)?)
    .bind(step.started_at)
    .bind(step.ms)
    .bind(tokens(step.usage.input))
    .bind(tokens(step.usage.output))
    .bind(tokens(step.usage.cached))
    .bind(step.usage.estimated)
    .execute(&mut *tx.conn)
    .await?;
    if let Some(spent) = &step.spent {
        let at = step.started_at.saturating_add(step.ms);
        ledger::insert(tx, step.id.as_str(), Some(turn), None, spent, &step.usage, at).await?;
    }
    audit::append_step(tx, turn, step).await
}

/// The steps of a turn, in order.
pub(super) async fn steps(conn: &mut SqliteConnection, turn: &TurnId) -> Result<Vec<StepRecord>, StoreError> {
    let rows = sqlx::query(concat!(
        "SELECT t.id, n, round, attempt, kind, call_id, name, effect, state, coalesce(args, 'null'),
                coalesce(result, 'null'), started_at, ms, t.tokens_in, t.tokens_out, t.tokens_cached, t.estimated, ",
        ledger::spent_columns!(),
        " FROM step t LEFT JOIN spend p ON p.turn = t.turn AND p.id = t.id WHERE t.turn = $1 ORDER BY n, t.id",
    ))
    .bind(turn.as_str())
    .fetch_all(conn)
    .await?;
    rows.iter()
        .map(|row| {
            let (spent, cache_write) = ledger::spent(row, 17)?.unzip();
            Ok(StepRecord {
                id: StepId::from(get::<String>(row, 0)?),
                n: small(row, 1)?,
                round: small(row, 2)?,
                attempt: small(row, 3)?,
                kind: if get::<&str>(row, 4)? == "llm" { StepKind::Llm } else { StepKind::Tool },
                call_id: get(row, 5)?,
                name: get(row, 6)?,
                effect: get::<Option<&str>>(row, 7)?.map(Effect::parse),
                state: match get::<&str>(row, 8)? {
                    "started" => StepState::Started,
                    "finished" => StepState::Finished,
                    "failed" => StepState::Failed,
                    _ => StepState::Interrupted,
                },
                args: json(row, 9)?,
                result: json(row, 10)?,
                started_at: get(row, 11)?,
                ms: get(row, 12)?,
                usage: Usage { cache_write: cache_write.unwrap_or(0), ..usage(row, 13)? },
                spent,
            })
        })
        .collect()
}

/// What a turn shows of its answer.
pub(super) async fn shown(conn: &mut SqliteConnection, turn: &TurnId) -> Result<Option<Shown>, StoreError> {
    let row = sqlx::query("SELECT preview FROM turn WHERE id = $1 AND preview IS NOT NULL")
        .bind(turn.as_str())
        .fetch_optional(conn)
        .await?;
    row.as_ref().map(|row| json(row, 0)).transpose()
}

/// The turn shows nothing any more.
pub(super) async fn forget_preview(tx: &mut Tx<'_>, turn: &TurnId) -> Result<(), StoreError> {
    sqlx::query("UPDATE turn SET preview = NULL WHERE id = $1 AND preview IS NOT NULL")
        .bind(turn.as_str())
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}

/// What a running turn shows.
struct KeepPreview {
    lease: Lease,
    shown: String,
}

#[async_trait]
impl Write for KeepPreview {
    type Answer = ();

    fn durability(&self) -> Durability {
        Durability::Soft
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        fence(tx, &self.lease).await?;
        sqlx::query("UPDATE turn SET preview = $2 WHERE id = $1")
            .bind(self.lease.turn.as_str())
            .bind(&self.shown)
            .execute(&mut *tx.conn)
            .await?;
        Ok(())
    }
}

/// It was taken away.
struct ForgetPreview(TurnId);

#[async_trait]
impl Write for ForgetPreview {
    type Answer = ();

    fn durability(&self) -> Durability {
        // Taken away twice is taken away.
        Durability::Soft
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        forget_preview(tx, &self.0).await
    }
}

/// Steps of a running turn.
pub(super) struct Record {
    pub lease: Lease,
    pub steps: Vec<StepRecord>,
    pub durable: bool,
}

#[async_trait]
impl Write for Record {
    type Answer = Vec<EventRow>;

    fn durability(&self) -> Durability {
        if self.durable { Durability::Hard } else { Durability::Soft }
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EventRow>, StoreError> {
        let row = sqlx::query(
            "SELECT s.id, s.lease_alone, t.entry FROM session s JOIN turn t ON t.id = $4
             WHERE s.key = $1 AND s.epoch = $2 AND s.lease_boot = $3",
        )
        .bind(self.lease.session.as_str())
        .bind(self.lease.epoch)
        .bind(self.lease.boot.as_str())
        .bind(self.lease.turn.as_str())
        .fetch_optional(&mut *tx.conn)
        .await?
        .ok_or(StoreError::Fenced)?;
        let (session, alone): (i64, bool) = (get(&row, 0)?, get(&row, 1)?);
        let task = InboxId::from(get::<String>(&row, 2)?);
        let mut events = Vec::new();
        for step in &self.steps {
            put_step(tx, &self.lease.turn, step).await?;
            if let Some((kind, data)) = tool_event(step) {
                let at = step.started_at.saturating_add(step.ms);
                events.push(event::insert(tx, &task, &self.lease.session, kind, data, at).await?);
            }
        }
        if alone && self.steps.iter().any(|step| step.state == StepState::Finished) {
            sqlx::query(
                "UPDATE inbox INDEXED BY inbox_open SET suspect = 0, crashes = 0
                 WHERE session = $1 AND state < 2 AND state = 1",
            )
            .bind(session)
            .execute(&mut *tx.conn)
            .await?;
        }
        Ok(events)
    }
}

/// What watchers see of a tool step; nothing of a model step or of one that was not run.
fn tool_event(step: &StepRecord) -> Option<(&'static str, Value)> {
    if step.kind != StepKind::Tool {
        return None;
    }
    let mut data = value!({ "tool": step.name, "call_id": step.call_id, "args": short_args(&step.args) });
    let kind = match step.state {
        StepState::Started => "tool_start",
        StepState::Finished | StepState::Failed => {
            data["result"] = match &step.result {
                Value::String(text) => short(text).into(),
                other => short(&other.to_string()).into(),
            };
            data["ms"] = step.ms.into();
            data["ok"] = (step.state == StepState::Finished).into();
            "tool_end"
        }
        StepState::Interrupted => return None,
    };
    Some((kind, data))
}

fn short(text: &str) -> &str {
    text.char_indices().nth(EVENT_CHARS).map_or(text, |(end, _)| &text[..end])
}

/// Arguments as they are, or the beginning of their JSON when they are long.
fn short_args(args: &Value) -> Value {
    let text = args.to_string();
    if text.len() <= EVENT_CHARS { args.clone() } else { short(&text).into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        let long = "汉".repeat(EVENT_CHARS + 1);
        assert_eq!(short(&long).chars().count(), EVENT_CHARS);
        assert_eq!(short("short"), "short");
        assert_eq!(short_args(&value!({ "a": 1 })), value!({ "a": 1 }));
        assert!(short_args(&value!({ "a": long })).is_string());
    }
}
