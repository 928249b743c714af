//! Who asked to be let in, who was, and who is shut out.

use async_trait::async_trait;
use channel_api::{Address, ChannelId, InboxId};
use serde_json::{Value, json as value};
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, audit, get, inbox, json, outbox, session, subagent, to_json,
    writer::{Tx, Write},
};
use crate::{
    audit::{Event, Kind, actor},
    lang::Lang,
    policy::Role,
    session::SessionKey,
    store::{
        AccessRows, AccessStore, Approve, Approved, ApprovedRow, Asked, BlockedRow, Ended, MAX_PAIRINGS, NewPairing,
        PairingRow, StoreError, Who,
    },
};

/// Whether a row's `channel` lies in the scope bound to `$1`: the channel itself, or its kind.
macro_rules! in_scope {
    () => {
        "(channel = $1 OR substr(channel, 1, length($1) + 1) = $1 || ':')"
    };
}

macro_rules! pairing_columns {
    () => {
        "channel, sender, name, code, lang, created_at, expires_at"
    };
}

fn pairing(row: &SqliteRow) -> Result<PairingRow, StoreError> {
    Ok(PairingRow {
        channel: ChannelId::from(get::<String>(row, 0)?),
        sender: get(row, 1)?,
        name: get(row, 2)?,
        code: get(row, 3)?,
        lang: if get::<&str>(row, 4)? == "zh" { Lang::Zh } else { Lang::En },
        created_at: get(row, 5)?,
        expires_at: get(row, 6)?,
    })
}

macro_rules! approved_columns {
    () => {
        "channel, sender, name, role, created_at"
    };
}

fn approved(row: &SqliteRow) -> Result<ApprovedRow, StoreError> {
    Ok(ApprovedRow {
        channel: ChannelId::from(get::<String>(row, 0)?),
        sender: get(row, 1)?,
        name: get(row, 2)?,
        role: Role::parse(get(row, 3)?),
        created_at: get(row, 4)?,
    })
}

#[async_trait]
impl AccessStore for SqliteStore {
    async fn access(&self, now: i64) -> Result<AccessRows, StoreError> {
        // One transaction: the three belong together.
        let mut tx = self.readers.begin().await?;
        let pairings = sqlx::query(concat!(
            "SELECT ",
            pairing_columns!(),
            " FROM pairing WHERE NOT rejected AND expires_at > $1 ORDER BY seq"
        ))
        .bind(now)
        .fetch_all(&mut *tx)
        .await?;
        let letin = sqlx::query(concat!("SELECT ", approved_columns!(), " FROM approved ORDER BY channel, sender"))
            .fetch_all(&mut *tx)
            .await?;
        let blocked = sqlx::query("SELECT scope, sender, created_at FROM blocked ORDER BY scope, sender")
            .fetch_all(&mut *tx)
            .await?;
        tx.commit().await?;
        let block =
            |row: &SqliteRow| Ok(BlockedRow { scope: get(row, 0)?, sender: get(row, 1)?, created_at: get(row, 2)? });
        Ok(AccessRows {
            pairings: pairings.iter().map(pairing).collect::<Result<_, _>>()?,
            approved: letin.iter().map(approved).collect::<Result<_, _>>()?,
            blocked: blocked.iter().map(block).collect::<Result<_, StoreError>>()?,
        })
    }

    async fn approve(&self, approve: Approve) -> Result<Approved, StoreError> {
        self.write(Decided { by: actor(), write: approve }).await
    }

    async fn reject(&self, scope: Option<&str>, code: &str, now: i64) -> Result<PairingRow, StoreError> {
        let write = Reject { scope: scope.map(str::to_owned), code: code.to_owned(), now };
        self.write(Decided { by: actor(), write }).await
    }

    async fn revoke(&self, who: &Who, now: i64) -> Result<Ended, StoreError> {
        self.write(Decided { by: actor(), write: Revoke { who: who.clone(), now } }).await
    }

    async fn block(&self, who: &Who, now: i64) -> Result<Ended, StoreError> {
        self.write(Decided { by: actor(), write: Block { who: who.clone(), now } }).await
    }

    async fn unblock(&self, who: &Who, now: i64) -> Result<(), StoreError> {
        self.write(Decided { by: actor(), write: Unblock { who: who.clone(), now } }).await
    }

    async fn end(&self, who: &Who, directs: bool, now: i64) -> Result<Ended, StoreError> {
        self.write(End { who: who.clone(), directs, now }).await
    }

    async fn end_all(&self, by: &str, now: i64) -> Result<Ended, StoreError> {
        self.write(EndAll { by: by.to_owned(), now }).await
    }
}

/// A decision, and in whose name it is made: its line in the audit log is written with it.
struct Decided<W> {
    by: String,
    write: W,
}

/// What the audit log says of a decision.
trait Decision: Write {
    /// What it is, what it is about and when; `None` when nothing changed.
    fn line(&self, answer: &Self::Answer) -> Option<(&'static str, Value, i64)>;
}

#[async_trait]
impl<W: Decision> Write for Decided<W> {
    type Answer = W::Answer;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<W::Answer, StoreError> {
        let answer = self.write.run(tx).await?;
        if let Some((what, about, at)) = self.write.line(&answer) {
            audit::append_access(tx, &self.by, what, about, at).await?;
        }
        Ok(answer)
    }
}

impl Decision for Approve {
    fn line(&self, Approved { row, first_owner, again, .. }: &Approved) -> Option<(&'static str, Value, i64)> {
        let what = if *first_owner { "owner made" } else { "pairing approved" };
        let about = value!({ "channel": row.channel.as_str(), "sender": row.sender, "role": row.role.as_str() });
        (!again).then_some((what, about, self.now))
    }
}

impl Decision for Reject {
    fn line(&self, row: &PairingRow) -> Option<(&'static str, Value, i64)> {
        let about = value!({ "channel": row.channel.as_str(), "sender": row.sender });
        Some(("pairing rejected", about, self.now))
    }
}

impl Decision for Revoke {
    fn line(&self, _: &Ended) -> Option<(&'static str, Value, i64)> {
        Some(("approval revoked", value!(self.who), self.now))
    }
}

impl Decision for Block {
    fn line(&self, _: &Ended) -> Option<(&'static str, Value, i64)> {
        Some(("sender blocked", value!(self.who), self.now))
    }
}

impl Decision for Unblock {
    fn line(&self, (): &()) -> Option<(&'static str, Value, i64)> {
        Some(("sender unblocked", value!(self.who), self.now))
    }
}

/// Stores a request and what its sender is told, if there is to be one.
pub(super) async fn ask(tx: &mut Tx<'_>, new: &NewPairing) -> Result<Asked, StoreError> {
    let row = sqlx::query(
        "DELETE FROM pairing WHERE channel = $1 AND expires_at <= $2;
         SELECT (SELECT rejected FROM pairing WHERE channel = $1 AND sender = $3),
                EXISTS (SELECT 1 FROM approved WHERE channel = $1 AND sender = $3),
                EXISTS (SELECT 1 FROM blocked WHERE scope IN ($1, $4) AND sender = $3),
                (SELECT count(*) FROM pairing WHERE channel = $1 AND NOT rejected)",
    )
    .bind(new.channel.as_str())
    .bind(new.at)
    .bind(&new.sender)
    .bind(new.channel.kind())
    .fetch_one(&mut *tx.conn)
    .await?;
    let rejected: Option<bool> = get(&row, 0)?;
    let (was_let_in, shut_out, waiting): (bool, bool, i64) = (get(&row, 1)?, get(&row, 2)?, get(&row, 3)?);
    if shut_out || rejected == Some(true) {
        return Ok(Asked::Silence);
    }
    if was_let_in || rejected == Some(false) {
        return Ok(Asked::Again);
    }
    if waiting >= i64::from(MAX_PAIRINGS) {
        return Ok(Asked::Silence);
    }
    // A code that another request already has is one in 2^40: then this one comes to nothing, and the next message asks.
    let stored = sqlx::query(
        "INSERT INTO pairing (channel, sender, name, code, lang, address, created_at, expires_at)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING",
    )
    .bind(new.channel.as_str())
    .bind(&new.sender)
    .bind(&new.name)
    .bind(&new.code)
    .bind(if new.lang == Lang::Zh { "zh" } else { "en" })
    .bind(to_json(&new.address)?)
    .bind(new.at)
    .bind(new.expires_at)
    .execute(&mut *tx.conn)
    .await?;
    if stored.rows_affected() == 0 {
        return Ok(Asked::Silence);
    }
    Ok(Asked::New { lanes: outbox::insert_pending(tx, &new.parts, None).await?.lanes })
}

#[async_trait]
impl Write for Approve {
    type Answer = Approved;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Approved, StoreError> {
        let scope = self.scope.as_deref().unwrap_or_default();
        let found = sqlx::query(concat!(
            "SELECT ",
            pairing_columns!(),
            ", address FROM pairing WHERE code = $2 AND NOT rejected AND expires_at > $3 AND ($1 = '' OR ",
            in_scope!(),
            ")",
        ))
        .bind(scope)
        .bind(&self.code)
        .bind(self.now)
        .fetch_optional(&mut *tx.conn)
        .await?;
        let Some(found) = found else { return self.again(tx, scope).await };
        let (asked, address): (PairingRow, Address) = (pairing(&found)?, json(&found, 7)?);
        let owned: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM approved WHERE role = 'owner')")
            .fetch_one(&mut *tx.conn)
            .await?;
        let first_owner = self.may_own && !owned && self.role.is_none_or(|role| role == Role::Owner);
        let role = self.role.unwrap_or(if first_owner { Role::Owner } else { Role::Member });
        sqlx::query(
            "DELETE FROM pairing WHERE channel = $1 AND sender = $2;
             INSERT INTO approved (channel, sender, name, role, code, created_at) VALUES ($1, $2, $3, $4, $5, $6)
             ON CONFLICT (channel, sender) DO UPDATE SET
                 name = excluded.name, role = excluded.role, code = excluded.code, created_at = excluded.created_at",
        )
        .bind(asked.channel.as_str())
        .bind(&asked.sender)
        .bind(&asked.name)
        .bind(role.as_str())
        .bind(&asked.code)
        .bind(self.now)
        .execute(&mut *tx.conn)
        .await?;
        let parts = (self.welcome)(&asked, &address, role, first_owner);
        let lanes = outbox::insert_pending(tx, &parts, None).await?.lanes;
        let PairingRow { channel, sender, name, .. } = asked;
        let row = ApprovedRow { channel, sender, name, role, created_at: self.now };
        Ok(Approved { row, first_owner, again: false, lanes })
    }
}

impl Approve {
    /// The answer for a code that was approved before.
    async fn again(&self, tx: &mut Tx<'_>, scope: &str) -> Result<Approved, StoreError> {
        let row = sqlx::query(concat!(
            "SELECT ",
            approved_columns!(),
            " FROM approved WHERE code = $2 AND ($1 = '' OR ",
            in_scope!(),
            ")",
        ))
        .bind(scope)
        .bind(&self.code)
        .fetch_optional(&mut *tx.conn)
        .await?;
        let row = approved(&row.ok_or(StoreError::NotFound)?)?;
        Ok(Approved { row, first_owner: false, again: true, lanes: Vec::new() })
    }
}

struct Reject {
    scope: Option<String>,
    code: String,
    now: i64,
}

#[async_trait]
impl Write for Reject {
    type Answer = PairingRow;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<PairingRow, StoreError> {
        let row = sqlx::query(concat!(
            "UPDATE pairing SET rejected = 1 WHERE code = $2 AND NOT rejected AND expires_at > $3 AND ($1 = '' OR ",
            in_scope!(),
            ") RETURNING ",
            pairing_columns!(),
        ))
        .bind(self.scope.as_deref().unwrap_or_default())
        .bind(&self.code)
        .bind(self.now)
        .fetch_optional(&mut *tx.conn)
        .await?;
        pairing(&row.ok_or(StoreError::NotFound)?)
    }
}

struct Revoke {
    who: Who,
    now: i64,
}

#[async_trait]
impl Write for Revoke {
    type Answer = Ended;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Ended, StoreError> {
        let gone = sqlx::query(concat!("DELETE FROM approved WHERE sender = $2 AND ", in_scope!()))
            .bind(&self.who.scope)
            .bind(&self.who.sender)
            .execute(&mut *tx.conn)
            .await?;
        if gone.rows_affected() == 0 {
            return Err(StoreError::NotFound);
        }
        end(tx, &self.who, true, self.now).await
    }
}

struct Block {
    who: Who,
    now: i64,
}

#[async_trait]
impl Write for Block {
    type Answer = Ended;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Ended, StoreError> {
        sqlx::query(concat!(
            "DELETE FROM approved WHERE sender = $2 AND ",
            in_scope!(),
            ";
             DELETE FROM pairing WHERE sender = $2 AND ",
            in_scope!(),
            ";
             INSERT INTO blocked (scope, sender, created_at) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING",
        ))
        .bind(&self.who.scope)
        .bind(&self.who.sender)
        .bind(self.now)
        .execute(&mut *tx.conn)
        .await?;
        end(tx, &self.who, false, self.now).await
    }
}

struct Unblock {
    who: Who,
    now: i64,
}

#[async_trait]
impl Write for Unblock {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let gone = sqlx::query("DELETE FROM blocked WHERE scope = $1 AND sender = $2")
            .bind(&self.who.scope)
            .bind(&self.who.sender)
            .execute(&mut *tx.conn)
            .await?;
        if gone.rows_affected() == 0 { Err(StoreError::NotFound) } else { Ok(()) }
    }
}

struct End {
    who: Who,
    directs: bool,
    now: i64,
}

#[async_trait]
impl Write for End {
    type Answer = Ended;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Ended, StoreError> {
        end(tx, &self.who, self.directs, self.now).await
    }
}

/// See [`AccessStore::end`]. Errands count as of whoever they are done for.
async fn end(tx: &mut Tx<'_>, who: &Who, directs: bool, now: i64) -> Result<Ended, StoreError> {
    let rows = sqlx::query(concat!(
        "SELECT i.seq, i.id, i.session, s.key, i.state, i.turn, i.bytes
         FROM inbox i INDEXED BY inbox_open JOIN session s ON s.id = i.session
         WHERE i.state < 2 AND ",
        in_scope!(),
        " AND (i.sender = i.channel || ' ' || $2 OR json_extract(i.payload, '$.sender.id') = $2)
          AND (NOT $3 OR json_extract(i.payload, '$.conversation.kind') = 'direct')
         ORDER BY i.seq",
    ))
    .bind(&who.scope)
    .bind(&who.sender)
    .bind(directs)
    .fetch_all(&mut *tx.conn)
    .await?;
    end_rows(tx, &rows, now).await
}

struct EndAll {
    by: String,
    now: i64,
}

#[async_trait]
impl Write for EndAll {
    type Answer = Ended;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Ended, StoreError> {
        let rows = sqlx::query(
            "SELECT i.seq, i.id, i.session, s.key, i.state, i.turn, i.bytes
             FROM inbox i INDEXED BY inbox_open JOIN session s ON s.id = i.session
             WHERE i.state < 2 ORDER BY i.seq",
        )
        .fetch_all(&mut *tx.conn)
        .await?;
        let mut theirs = Vec::new();
        for row in rows {
            let subagents = SessionKey::from(get::<String>(&row, 3)?).is_subagent();
            if subagents || get::<Option<&str>>(&row, 5)?.is_some() {
                theirs.push(row);
            }
        }
        let ended = end_rows(tx, &theirs, self.now).await?;
        let (who, what) = (self.by.clone(), "everything stopped".to_owned());
        let detail = value!({ "turns": ended.running.len(), "waiting": ended.settled });
        audit::append(tx, &Event { at: self.now, kind: Kind::Halt, who, what, detail }).await?;
        Ok(ended)
    }
}

/// Stops the turns of these rows and settles those without one.
async fn end_rows(tx: &mut Tx<'_>, rows: &[SqliteRow], now: i64) -> Result<Ended, StoreError> {
    let mut ended = Ended::default();
    let mut sessions: Vec<i64> = Vec::new();
    for row in rows {
        let open = inbox::Open {
            seq: get(row, 0)?,
            id: InboxId::from(get::<String>(row, 1)?),
            session: get(row, 2)?,
            key: SessionKey::from(get::<String>(row, 3)?),
            running: get::<i64>(row, 4)? == 1,
            turn: get(row, 5)?,
            bytes: get(row, 6)?,
        };
        if !sessions.contains(&open.session) {
            sessions.push(open.session);
        }
        // A sub-agent ends, and whoever asked another session hears nothing of it.
        subagent::silenced(tx, open.seq, now).await?;
        match open.stop(tx, now).await? {
            Some(event) => {
                ended.events.push(event);
                ended.settled += 1;
            }
            None if open.running && !ended.running.contains(&open.key) => ended.running.push(open.key),
            None => {}
        }
    }
    for id in sessions {
        session::recount(tx, id).await?;
    }
    Ok(ended)
}
