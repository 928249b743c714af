//! Approvals: what the owner is asked, and what they decided.

use async_trait::async_trait;
use channel_api::InboxId;
use serde_json::json as value;
use sqlx::{Row as _, sqlite::SqliteRow};

use super::{
    SqliteStore, event, get, json, outbox,
    session::fence,
    to_json,
    turn::Record,
    writer::{Tx, Write},
};
use crate::{
    approvals::{Approval, ApprovalStore, Asked, Decided, Decision, NewApproval, State},
    session::SessionKey,
    store::{EventRow, Lease, StepRecord, StoreError},
};

/// How long requests are kept, in milliseconds.
const KEPT_MS: i64 = 30 * 24 * 60 * 60 * 1000;

macro_rules! columns {
    () => {
        "row, state, decided_by, decided_at"
    };
}

/// What waits for an answer, as of `$1`, of a turn that still waits for it.
macro_rules! is_open {
    () => {
        "state = 'pending' AND expires_at > $1
         AND EXISTS (SELECT 1 FROM inbox WHERE session = (SELECT id FROM session WHERE key = approval.session)
                     AND state < 2 AND turn = approval.turn)"
    };
}

fn approval(row: &SqliteRow) -> Result<Approval, StoreError> {
    let shown: Approval = json(row, 0)?;
    Ok(Approval { state: State::parse(get(row, 1)?), decided_by: get(row, 2)?, decided_at: get(row, 3)?, ..shown })
}

#[async_trait]
impl ApprovalStore for SqliteStore {
    async fn ask(&self, lease: &Lease, new: NewApproval) -> Result<Asked, StoreError> {
        self.write(Ask { lease: lease.clone(), new }).await
    }

    async fn decide_approval(&self, id: &str, decision: Decision, by: &str, now: i64) -> Result<Decided, StoreError> {
        self.write(Decide { id: id.to_lowercase(), decision, by: by.to_owned(), now }).await
    }

    async fn start_approved(
        &self,
        lease: &Lease,
        id: &str,
        digest: &str,
        steps: Vec<StepRecord>,
    ) -> Result<Vec<EventRow>, StoreError> {
        let record = Record { lease: lease.clone(), steps, durable: true };
        self.write(Start { record, id: id.to_owned(), digest: digest.to_owned() }).await
    }

    async fn approvals(&self, all: bool, limit: u32, now: i64) -> Result<Vec<Approval>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            columns!(),
            " FROM approval WHERE $2 OR (",
            is_open!(),
            ") ORDER BY created_at DESC LIMIT $3 + 0"
        ))
        .bind(now)
        .bind(all)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(approval).collect()
    }

    async fn approval(&self, id: &str) -> Result<Option<Approval>, StoreError> {
        let row = sqlx::query(concat!("SELECT ", columns!(), " FROM approval WHERE id = $1"))
            .bind(id.to_lowercase())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(approval).transpose()
    }

    async fn confirmed(&self, session: &SessionKey) -> Result<i64, StoreError> {
        let upto: Option<i64> =
            sqlx::query_scalar("SELECT max(upto) FROM approval WHERE session = $1 AND state IN ('approved', 'used')")
                .bind(session.as_str())
                .fetch_one(&self.readers)
                .await?;
        Ok(upto.unwrap_or(0))
    }
}

struct Ask {
    lease: Lease,
    new: NewApproval,
}

#[async_trait]
impl Write for Ask {
    type Answer = Asked;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Asked, StoreError> {
        fence(tx, &self.lease).await?;
        let (new, row) = (&self.new, &self.new.row);
        let known = sqlx::query(
            "SELECT id, state, expires_at, decided_at, call_id = $3 FROM approval WHERE turn = $1 AND digest = $2
             ORDER BY created_at DESC",
        )
        .bind(row.turn.as_str())
        .bind(&row.digest)
        .bind(&row.call_id)
        .fetch_all(&mut *tx.conn)
        .await?;
        for known in &known {
            let (id, until, decided): (String, i64, Option<i64>) = (get(known, 0)?, get(known, 2)?, get(known, 3)?);
            let same: bool = get(known, 4)?;
            match (State::parse(get(known, 1)?), same) {
                // The same again is not asked again: once is enough.
                (State::Denied, _) => return Ok(Asked::Denied),
                (State::Expired, _) => return Ok(Asked::Expired),
                (State::Pending, true) if until > new.now => {
                    return Ok(Asked::Waits { id, until, lanes: Vec::new(), events: Vec::new() });
                }
                (State::Approved, true) if decided.is_some_and(|at| at + new.holds_ms > new.now) => {
                    return Ok(Asked::Approved(id));
                }
                (State::Pending | State::Approved, true) => {
                    sqlx::query("UPDATE approval SET state = 'expired' WHERE id = $1")
                        .bind(&id)
                        .execute(&mut *tx.conn)
                        .await?;
                    return Ok(Asked::Expired);
                }
                // What was used for another call is used up.
                _ => {}
            }
        }
        let always: bool = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM approval_always WHERE agent = $1 AND asker = $2 AND tool = $3 AND digest = $4)",
        )
        .bind(&row.agent)
        .bind(&row.asker)
        .bind(&row.tool)
        .bind(&row.digest)
        .fetch_one(&mut *tx.conn)
        .await?;
        if always && row.may_always {
            return Ok(Asked::Always);
        }
        if !new.reachable {
            return Ok(Asked::Nobody);
        }
        sqlx::query(
            "DELETE FROM approval WHERE created_at < $14;
             INSERT INTO approval (id, session, turn, call_id, agent, tool, digest, asker, shown_in, state, row, upto,
                                   created_at, expires_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'pending', $10, $11, $12, $13)",
        )
        .bind(&row.id)
        .bind(row.session.as_str())
        .bind(row.turn.as_str())
        .bind(&row.call_id)
        .bind(&row.agent)
        .bind(&row.tool)
        .bind(&row.digest)
        .bind(&row.asker)
        .bind(row.shown_in.as_ref().map(|key| key.as_str()))
        .bind(to_json(row)?)
        .bind(new.upto)
        .bind(row.created_at)
        .bind(row.expires_at)
        .bind(new.now - KEPT_MS)
        .execute(&mut *tx.conn)
        .await?;
        let lanes = outbox::insert(tx, &new.parts, &outbox::Insert::default()).await?.lanes;
        let task: String = sqlx::query_scalar("SELECT entry FROM turn WHERE id = $1")
            .bind(row.turn.as_str())
            .fetch_one(&mut *tx.conn)
            .await?;
        let task = InboxId::from(task);
        let data = value!({ "approval": row, "text": new.text });
        let event = event::insert(tx, &task, &row.session, "approval_needed", data, new.now).await?;
        Ok(Asked::Waits { id: row.id.clone(), until: row.expires_at, lanes, events: vec![event] })
    }
}

struct Decide {
    id: String,
    decision: Decision,
    by: String,
    now: i64,
}

#[async_trait]
impl Write for Decide {
    type Answer = Decided;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Decided, StoreError> {
        let state = if self.decision == Decision::Deny { State::Denied } else { State::Approved };
        let done = sqlx::query(concat!(
            "UPDATE approval SET state = $3, decided_by = $4, decided_at = $1 WHERE id = $2 AND ",
            is_open!(),
            " RETURNING ",
            columns!()
        ))
        .bind(self.now)
        .bind(&self.id)
        .bind(state.as_str())
        .bind(&self.by)
        .fetch_optional(&mut *tx.conn)
        .await?;
        let Some(done) = done else {
            let row = sqlx::query(concat!("SELECT ", columns!(), ", expires_at <= $2 FROM approval WHERE id = $1"))
                .bind(&self.id)
                .bind(self.now)
                .fetch_optional(&mut *tx.conn)
                .await?
                .ok_or(StoreError::NotFound)?;
            let mut over = approval(&row)?;
            if over.state == State::Pending {
                over.state = State::Expired;
            }
            return Ok(Decided::Over(over));
        };
        let done = approval(&done)?;
        if self.decision == Decision::Always && done.may_always {
            sqlx::query(
                "INSERT INTO approval_always (agent, asker, tool, digest, created_at) VALUES ($1, $2, $3, $4, $5)
                 ON CONFLICT DO NOTHING",
            )
            .bind(&done.agent)
            .bind(&done.asker)
            .bind(&done.tool)
            .bind(&done.digest)
            .bind(self.now)
            .execute(&mut *tx.conn)
            .await?;
        }
        // The turn that waits goes on at once.
        sqlx::query(
            "UPDATE session SET hold_until = 0, not_before = 0, parked_until = NULL
             WHERE key = $1 AND parked_until IS NOT NULL",
        )
        .bind(done.session.as_str())
        .execute(&mut *tx.conn)
        .await?;
        Ok(Decided::Done(done))
    }
}

struct Start {
    record: Record,
    id: String,
    digest: String,
}

#[async_trait]
impl Write for Start {
    type Answer = Vec<EventRow>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EventRow>, StoreError> {
        let used = sqlx::query(
            "UPDATE approval SET state = 'used' WHERE id = $1 AND digest = $2 AND turn = $3 AND state = 'approved'
             RETURNING id",
        )
        .bind(&self.id)
        .bind(&self.digest)
        .bind(self.record.lease.turn.as_str())
        .fetch_optional(&mut *tx.conn)
        .await?;
        if used.is_none_or(|row| row.is_empty()) {
            return Err(StoreError::NotFound);
        }
        self.record.run(tx).await
    }
}
