//! Station 12 and the other ends of a claim: commit 2, giving back, parking.

use async_trait::async_trait;
use channel_api::{InboxId, QueueMode};
use serde_json::json as value;

use super::{
    event, get, inbox, most_tokens, outbox, session, small, subagent, to_json, tokens, turn,
    writer::{Tx, Write},
};
use crate::{
    model::Usage,
    session::SessionKey,
    store::{BootId, EventRow, Finish, Finished, Lease, Release, Released, StoreError, TurnOutcome},
};

/// The retryable errors after which an entry is a dead letter. guarantees.md G4.
const MAX_ATTEMPTS: u32 = 5;

/// What `finish` must know first: the fence, what waits, and whether somebody holds a connection open.
struct Fence {
    session: i64,
    generation: i64,
    more: bool,
    hold: Option<BootId>,
    hold_until: i64,
    not_before: i64,
}

impl Fence {
    async fn pass(tx: &mut Tx<'_>, finish: &Finish, newest: &InboxId) -> Result<Self, StoreError> {
        let row = sqlx::query(
            "SELECT s.id, s.generation, s.pending > 0, n.hold, h.mode, h.not_before,
                    CASE WHEN s.pending > 0 THEN (
                        SELECT received_at FROM inbox INDEXED BY inbox_open
                        WHERE session = s.id AND state < 2 AND state = 0 ORDER BY seq DESC LIMIT 1) END
             FROM session s
             LEFT JOIN inbox n ON n.id = $4
             LEFT JOIN inbox h ON h.seq = CASE WHEN s.pending > 0 THEN (
                 SELECT seq FROM inbox INDEXED BY inbox_open
                 WHERE session = s.id AND state < 2 AND state = 0 ORDER BY seq LIMIT 1) END
             WHERE s.key = $1 AND s.epoch = $2 AND s.lease_boot = $3",
        )
        .bind(finish.lease.session.as_str())
        .bind(finish.lease.epoch)
        .bind(finish.lease.boot.as_str())
        .bind(newest.as_str())
        .fetch_optional(&mut *tx.conn)
        .await?
        .ok_or(StoreError::Fenced)?;
        let head_mode = get::<Option<&str>>(&row, 4)?.map(inbox::mode);
        let newest_received: Option<i64> = get(&row, 6)?;
        let hold_until = match (head_mode, newest_received) {
            (Some(QueueMode::Collect), Some(at)) => at.saturating_add(finish.debounce_ms),
            _ => 0,
        };
        Ok(Self {
            session: get(&row, 0)?,
            generation: get(&row, 1)?,
            more: get(&row, 2)?,
            hold: get::<Option<String>>(&row, 3)?.map(BootId::from),
            hold_until,
            not_before: hold_until.max(get::<Option<i64>>(&row, 5)?.unwrap_or(0)),
        })
    }
}

/// The outcome in columns: the turn's state, its reason, and the entry's silence and error.
fn columns(outcome: &TurnOutcome) -> (&'static str, Option<&str>, Option<&str>, Option<&str>) {
    match outcome {
        TurnOutcome::Replied => ("replied", None, None, None),
        TurnOutcome::Silent(reason) => ("silent", Some(reason), Some(reason), None),
        TurnOutcome::Failed(line) => ("failed", Some(line), None, Some(line)),
        TurnOutcome::Stopped => ("stopped", None, Some("stopped"), None),
    }
}

#[async_trait]
impl Write for Finish {
    type Answer = Finished;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Finished, StoreError> {
        let Some(newest) = self.entries.last() else { return Err(StoreError::NotFound) };
        let fence = Fence::pass(tx, self, newest).await?;
        let (state, reason, silent, error) = columns(&self.outcome);
        let messages: Vec<String> = self.transcript.iter().map(to_json).collect::<Result<_, _>>()?;
        let (kind, mut data) = match error {
            Some(line) => ("task_failed", value!({ "error": line })),
            None => ("task_complete", event::completion(newest, &self.parts, silent)),
        };
        if self.usage.total() > 0 {
            let Usage { input, output, cached, estimated, .. } = self.usage;
            data["usage"] = value!({ "input": input, "output": output, "cached": cached, "estimated": estimated });
            data["cost"] = value!(self.costs);
        }
        // Every running entry of the session is this turn's: one turn a session.
        let mut rows = sqlx::query(concat!(
            "UPDATE inbox INDEXED BY inbox_open SET state = 2, settled_at = $1, suspect = 0, crashes = 0,
                 silent = CASE WHEN id = $2 THEN $3 END, error = CASE WHEN id = $2 THEN $4 END,
                 merged_into = CASE WHEN id <> $2 THEN $2 END
             WHERE session = $5 AND state < 2 AND state = 1 RETURNING bytes;
             UPDATE session SET lease_boot = NULL, lease_turn = NULL, lease_sender = NULL,
                 lease_alone = 0, hold_until = $6, not_before = $7, generation = generation + $8,
                 ready_seq = CASE WHEN pending > 0 THEN ",
            session::next_ready!(),
            " END, messages = messages + $9, tokens_in = min(tokens_in, ",
            most_tokens!(),
            ") + $10, tokens_out = min(tokens_out, ",
            most_tokens!(),
            ") + $11, tokens_cached = min(tokens_cached, ",
            most_tokens!(),
            ") + $12, estimated = estimated OR $13,
                 updated_at = CASE WHEN $26 THEN updated_at ELSE $1 END, model = CASE WHEN $24 THEN $25 ELSE model END
             WHERE id = $5;
             UPDATE turn SET state = $14, reason = $15, entry = $2, ended_at = $1, tokens_in = $10, tokens_out = $11,
                 tokens_cached = $12, estimated = $13, notes = $16, preview = CASE WHEN $23 THEN preview END
             WHERE id = $17;
             INSERT INTO message (session, generation, turn, created_at, place, body)
             SELECT $5, $18, $17, $1, (SELECT messages - $9 FROM session WHERE id = $5) + key, value
             FROM json_each($19);
             UPDATE heard SET text = NULL, name = NULL, sender = ''
             WHERE session = $20 AND text IS NOT NULL AND turn = $17;
             INSERT INTO event (task, session, kind, data, at) VALUES ($2, $20, $21, $22, $1) RETURNING seq",
        ))
        .bind(self.now)
        .bind(newest.as_str())
        .bind(silent)
        .bind(error)
        .bind(fence.session)
        .bind(fence.hold_until)
        .bind(fence.not_before)
        .bind(self.new_generation)
        .bind(messages.len() as i64)
        .bind(tokens(self.usage.input))
        .bind(tokens(self.usage.output))
        .bind(tokens(self.usage.cached))
        .bind(self.usage.estimated)
        .bind(state)
        .bind(reason)
        .bind(to_json(&self.notes)?)
        .bind(self.lease.turn.as_str())
        .bind(fence.generation)
        .bind(to_json(&messages)?)
        .bind(self.lease.session.as_str())
        .bind(kind)
        .bind(to_json(&data)?)
        .bind(self.preview_left)
        .bind(self.model.is_some())
        .bind(self.model.as_ref().and_then(Option::as_deref))
        .bind(self.traceless)
        .fetch_all(&mut *tx.conn)
        .await?;
        let event = rows.pop().ok_or_else(|| StoreError::Unavailable("no event row".into()))?;
        for row in &rows {
            tx.load.remove(get(row, 0)?);
        }
        let mut events = vec![EventRow {
            seq: get(&event, 0)?,
            task: newest.clone(),
            session: self.lease.session.clone(),
            kind: kind.to_owned(),
            data,
            at: self.now,
        }];
        for merged in self.entries.iter().filter(|id| *id != newest) {
            let data = value!({ "merged_into": newest.as_str() });
            events.push(event::insert(tx, merged, &self.lease.session, "task_complete", data, self.now).await?);
        }
        if let Some(summary) = &self.summary {
            turn::put_summary(tx, fence.session, fence.generation, summary, self.now).await?;
        }
        let mut more = fence.more;
        if let Some(then) = &self.then {
            inbox::Prepared::of(then.as_ref().clone())?.accept(tx).await?;
            more = true;
        }
        for step in &self.steps {
            turn::put_step(tx, &self.lease.turn, step).await?;
        }
        if let Some(back) = &self.handback {
            subagent::hand_back(tx, fence.session, back, self.now).await?;
        }
        let mut children = Vec::new();
        if self.new_generation {
            let (running, stopped) = subagent::stop_all(tx, &self.lease.session, self.now).await?;
            children = running;
            events.extend(stopped);
        }
        let held_for = fence.hold.filter(|boot| *boot == self.lease.boot);
        let inserted = outbox::insert(
            tx,
            &self.parts,
            &outbox::Insert {
                held: held_for.as_ref().map(|boot| (newest, boot)),
                sender: self.claim_parts.then_some((&self.lease.boot, self.now)),
            },
        )
        .await?;
        Ok(Finished { lanes: inserted.lanes, sending: inserted.sending, held: inserted.held, more, children, events })
    }
}

/// A running entry that is given back.
struct Running {
    seq: i64,
    id: InboxId,
    attempts: u32,
    bytes: i64,
    hold: Option<BootId>,
}

#[async_trait]
impl Write for Release {
    type Answer = Released;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Released, StoreError> {
        let session = session::fence(tx, &self.lease).await?;
        let rows = sqlx::query(
            "UPDATE inbox INDEXED BY inbox_open SET state = 0, attempts = attempts + $2,
                 suspect = suspect AND $2 = 0, crashes = CASE WHEN $2 = 0 THEN crashes ELSE 0 END
             WHERE session = $1 AND state < 2 AND state = 1
             RETURNING seq, id, attempts, bytes, hold",
        )
        .bind(session)
        .bind(i64::from(self.failure.is_some()))
        .fetch_all(&mut *tx.conn)
        .await?;
        let mut dead = Vec::new();
        let mut waits = false;
        for row in &rows {
            let entry = Running {
                seq: get(row, 0)?,
                id: InboxId::from(get::<String>(row, 1)?),
                attempts: small(row, 2)?,
                bytes: get(row, 3)?,
                hold: get::<Option<String>>(row, 4)?.map(BootId::from),
            };
            if self.failure.is_some() && entry.attempts >= MAX_ATTEMPTS {
                dead.push(entry);
            } else {
                waits = true;
            }
        }
        let mut released = Released::Queued;
        if let (Some(error), false) = (&self.failure, dead.is_empty()) {
            dead.sort_by_key(|entry| entry.seq);
            let mut events: Vec<EventRow> = Vec::new();
            for entry in &dead {
                tx.load.remove(entry.bytes);
                bury(tx, entry.seq, error, self.now).await?;
                events.push(event::failed(tx, &self.lease.session, &entry.id, error, self.now).await?);
            }
            turn::end(tx, self.lease.turn.as_str(), "failed", Some(error), self.now).await?;
            if self.apology.iter().any(|part| part.replaces.is_some()) {
                turn::forget_preview(tx, &self.lease.turn).await?;
            }
            if waits {
                // Later ones that were absorbed have tries left: each in a turn of its own.
                leave_turn(tx, session, self.lease.turn.as_str()).await?;
            }
            let held = dead.last().and_then(|newest| Some((&newest.id, newest.hold.as_ref()?)));
            let held = held.filter(|(_, boot)| **boot == self.lease.boot);
            let inserted = outbox::insert(tx, &self.apology, &outbox::Insert { held, sender: None }).await?;
            released = Released::Dead { lanes: inserted.lanes, events };
        }
        let hold_until = if matches!(released, Released::Queued) { self.not_before } else { 0 };
        session::free(tx, session, hold_until, false).await?;
        Ok(released)
    }
}

/// Makes an entry a dead letter.
pub(super) async fn bury(tx: &mut Tx<'_>, seq: i64, error: &str, now: i64) -> Result<(), StoreError> {
    sqlx::query("UPDATE inbox SET state = 3, error = $2, settled_at = $3, suspect = 0 WHERE seq = $1")
        .bind(seq)
        .bind(error)
        .bind(now)
        .execute(&mut *tx.conn)
        .await?;
    subagent::buried(tx, seq, error, now).await
}

/// Takes the waiting entries of a turn out of it: each will have one of its own.
pub(super) async fn leave_turn(tx: &mut Tx<'_>, session: i64, turn: &str) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE inbox INDEXED BY inbox_open SET turn = NULL, mode = 'followup', collapsed = 0
         WHERE session = $1 AND state < 2 AND state = 0 AND turn = $2",
    )
    .bind(session)
    .bind(turn)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

/// Frees the worker and holds the lane.
pub(super) struct Park {
    pub lease: Lease,
    pub until: i64,
}

#[async_trait]
impl Write for Park {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let session = session::fence(tx, &self.lease).await?;
        // What got as far as a question is no suspect any more: it goes on when it is answered, beside all others, and not
        // when suspects are looked for again.
        sqlx::query(
            "UPDATE inbox INDEXED BY inbox_open SET state = 0, suspect = 0, crashes = 0
             WHERE session = $1 AND state < 2 AND state = 1",
        )
        .bind(session)
        .execute(&mut *tx.conn)
        .await?;
        session::free(tx, session, self.until, true).await
    }
}

/// Ends a parking early.
pub(super) struct Unpark(pub SessionKey);

#[async_trait]
impl Write for Unpark {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE session SET hold_until = 0, not_before = 0, parked_until = NULL
             WHERE key = $1 AND parked_until IS NOT NULL",
        )
        .bind(self.0.as_str())
        .execute(&mut *tx.conn)
        .await?;
        Ok(())
    }
}
