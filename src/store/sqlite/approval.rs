//! Approvals: what the owner is asked, and what they decided.

use async_trait::async_trait;
use channel_api::InboxId;
use serde_json::json as value;
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, audit, event, get, json, outbox,
    session::fence,
    to_json,
    turn::Record,
    writer::{Tx, Write},
};
use crate::{
    approvals::{Always, Approval, ApprovalStore, Asked, By, Decided, Decision, NewApproval, State},
    audit::{Event, GATEWAY, Kind, short_form},
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

macro_rules! always_columns {
    () => {
        "id, agent, asker, tool, digest, row, created_at"
    };
}

fn always(row: &SqliteRow) -> Result<Always, StoreError> {
    let request: Option<String> = get(row, 5)?;
    Ok(Always {
        id: get(row, 0)?,
        agent: get(row, 1)?,
        asker: get(row, 2)?,
        tool: get(row, 3)?,
        digest: get(row, 4)?,
        request: request.and_then(|text| serde_json::from_str(&text).ok()),
        created_at: get(row, 6)?,
    })
}

/// Writes a line about a request into the audit log, within the transaction of what it tells of.
async fn tell(tx: &mut Tx<'_>, what: String, row: &Approval, by: &By, at: i64) -> Result<(), StoreError> {
    let detail =
        value!({ "id": row.id, "tool": row.tool, "session": row.session, "digest": row.digest, "how": by.how });
    append(tx, by.who.clone(), what, detail, at).await
}

async fn append(
    tx: &mut Tx<'_>,
    who: String,
    what: String,
    detail: serde_json::Value,
    at: i64,
) -> Result<(), StoreError> {
    audit::append(tx, &Event { at, kind: Kind::Approval, who, what, detail }).await
}

/// Ends what nobody answered in time.
async fn expire(tx: &mut Tx<'_>, now: i64) -> Result<u64, StoreError> {
    let over = sqlx::query(concat!(
        "UPDATE approval SET state = 'expired' WHERE state = 'pending' AND expires_at <= $1 RETURNING ",
        columns!()
    ))
    .bind(now)
    .fetch_all(&mut *tx.conn)
    .await?;
    for row in &over {
        let row = approval(row)?;
        let detail = value!({ "id": row.id, "tool": row.tool, "session": row.session, "digest": row.digest });
        append(tx, GATEWAY.to_owned(), "expired".to_owned(), detail, now).await?;
    }
    Ok(over.len() as u64)
}

struct Expire(i64);

#[async_trait]
impl Write for Expire {
    type Answer = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        expire(tx, self.0).await
    }
}

struct Revoke {
    id: String,
    by: By,
    now: i64,
}

#[async_trait]
impl Write for Revoke {
    type Answer = Always;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Always, StoreError> {
        let gone = sqlx::query(concat!("DELETE FROM approval_always WHERE id = $1 RETURNING ", always_columns!()))
            .bind(&self.id)
            .fetch_optional(&mut *tx.conn)
            .await?
            .ok_or(StoreError::NotFound)?;
        let gone = always(&gone)?;
        let detail = value!({
            "id": gone.id, "tool": gone.tool, "asker": gone.asker, "digest": gone.digest, "how": self.by.how,
        });
        append(tx, self.by.who.clone(), "always revoked".to_owned(), detail, self.now).await?;
        Ok(gone)
    }
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

    async fn decide_approval(&self, id: &str, decision: Decision, by: &By, now: i64) -> Result<Decided, StoreError> {
        self.write(Decide { id: id.to_lowercase(), decision, by: by.clone(), now }).await
    }

    async fn start_approved(
        &self,
        lease: &Lease,
        id: &str,
        digest: &str,
        steps: Vec<StepRecord>,
        now: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        let record = Record { lease: lease.clone(), steps, durable: true };
        self.write(Start { record, id: id.to_owned(), digest: digest.to_owned(), now }).await
    }

    async fn expire_approvals(&self, now: i64) -> Result<u64, StoreError> {
        self.write(Expire(now)).await
    }

    async fn always(&self, limit: u32) -> Result<Vec<Always>, StoreError> {
        let rows = sqlx::query(concat!(
            "SELECT ",
            always_columns!(),
            " FROM approval_always ORDER BY created_at DESC, id LIMIT $1 + 0"
        ))
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(always).collect()
    }

    async fn revoke_always(&self, id: &str, by: &By, now: i64) -> Result<Always, StoreError> {
        self.write(Revoke { id: id.to_lowercase(), by: by.clone(), now }).await
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
        expire(tx, new.now).await?;
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
                    // A yes that nobody used in time.
                    sqlx::query("UPDATE approval SET state = 'expired' WHERE id = $1")
                        .bind(&id)
                        .execute(&mut *tx.conn)
                        .await?;
                    let detail = value!({ "id": id, "tool": row.tool, "session": row.session, "digest": row.digest });
                    append(tx, GATEWAY.to_owned(), "expired unused".to_owned(), detail, new.now).await?;
                    return Ok(Asked::Expired);
                }
                // What was used for another call is used up.
                _ => {}
            }
        }
        let asker = who_is(&row.asker);
        let always: Option<String> = sqlx::query_scalar(
            "SELECT id FROM approval_always WHERE agent = $1 AND asker = $2 AND tool = $3 AND digest = $4",
        )
        .bind(&row.agent)
        .bind(&row.asker)
        .bind(&row.tool)
        .bind(&row.digest)
        .fetch_optional(&mut *tx.conn)
        .await?;
        let mut detail = value!({
            "id": row.id,
            "tool": row.tool,
            "session": row.session,
            "turn": row.turn.as_str(),
            "call": row.call_id,
            "why": row.why,
            "digest": row.digest,
            "args_sha256": crate::audit::hash_of(&row.args),
        });
        if let Some(grant) = always.filter(|_| row.may_always) {
            detail["id"] = grant.into();
            append(tx, asker, "let through: always".to_owned(), detail, new.now).await?;
            return Ok(Asked::Always);
        }
        if !new.reachable {
            append(tx, asker, "refused: nobody to ask".to_owned(), detail, new.now).await?;
            return Ok(Asked::Nobody);
        }
        detail["args"] = short_form(&row.args);
        detail["folder"] = value!(row.folder);
        detail["program"] = value!(row.program);
        detail["shown_in"] = value!(row.shown_in);
        detail["until"] = row.expires_at.into();
        append(tx, asker, "asked".to_owned(), detail, new.now).await?;
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

/// `telegram:main:42` of a request as the audit log writes people: `telegram:main 42`.
fn who_is(asker: &str) -> String {
    let mut colons = asker.match_indices(':').map(|(at, _)| at);
    match colons.nth(1) {
        Some(at) => format!("{} {}", &asker[..at], &asker[at + 1..]),
        None => asker.to_owned(),
    }
}

struct Decide {
    id: String,
    decision: Decision,
    by: By,
    now: i64,
}

#[async_trait]
impl Write for Decide {
    type Answer = Decided;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Decided, StoreError> {
        expire(tx, self.now).await?;
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
        .bind(&self.by.who)
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
        let for_good = self.decision == Decision::Always && done.may_always;
        let what = match (state, for_good) {
            (State::Denied, _) => "denied",
            (_, true) => "approved always",
            (_, false) => "approved once",
        };
        tell(tx, what.to_owned(), &done, &self.by, self.now).await?;
        if for_good {
            sqlx::query(
                "INSERT INTO approval_always (agent, asker, tool, digest, created_at, id, row)
                 VALUES ($1, $2, $3, $4, $5, $6, $7) ON CONFLICT DO NOTHING",
            )
            .bind(&done.agent)
            .bind(&done.asker)
            .bind(&done.tool)
            .bind(&done.digest)
            .bind(self.now)
            .bind(&done.id)
            .bind(to_json(&done)?)
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
    now: i64,
}

#[async_trait]
impl Write for Start {
    type Answer = Vec<EventRow>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EventRow>, StoreError> {
        let used = sqlx::query(
            "UPDATE approval SET state = 'used' WHERE id = $1 AND digest = $2 AND turn = $3 AND state = 'approved'
             RETURNING decided_by, tool, session, call_id",
        )
        .bind(&self.id)
        .bind(&self.digest)
        .bind(self.record.lease.turn.as_str())
        .fetch_optional(&mut *tx.conn)
        .await?;
        let Some(used) = used else { return Err(StoreError::NotFound) };
        let (by, tool): (Option<String>, String) = (get(&used, 0)?, get(&used, 1)?);
        let (session, call): (String, String) = (get(&used, 2)?, get(&used, 3)?);
        let detail = value!({
            "id": self.id, "tool": tool, "session": session, "call": call, "turn": self.record.lease.turn.as_str(),
            "digest": self.digest,
        });
        append(tx, by.unwrap_or_else(|| GATEWAY.to_owned()), "used".to_owned(), detail, self.now).await?;
        self.record.run(tx).await
    }
}
