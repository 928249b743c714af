//! Stations 12 and 13: parts, strictly in order within their lane.

use async_trait::async_trait;
use channel_api::{Address, ChannelId, InboxId, Level, Part, PartId, Reply, SendKey, SettledPart};
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, get, json, lane, push_lane, small, to_json,
    writer::{Durability, Tx, Write},
};
use crate::store::{
    BootId, LaneKey, NewPart, NextPart, OutboxPart, OutboxStore, PartFilter, PartOutcome, PartRow, StoreError, Word,
};

// The states, as rows have them. Those below SENT are open.
const PENDING: i64 = 0;
const HELD: i64 = 1;
const SENDING: i64 = 2;
const UNCERTAIN: i64 = 3;
const SENT: i64 = 4;
const UNKNOWN: i64 = 5;
const FAILED: i64 = 6;
const EXPIRED: i64 = 7;

const STATES: [&str; 8] = ["pending", "held", "sending", "uncertain", "sent", "unknown", "failed", "expired"];

fn level_name(level: Level) -> &'static str {
    match level {
        Level::Rich => "rich",
        Level::Plain => "plain",
    }
}

/// How parts are stored.
#[derive(Clone, Copy, Default)]
pub(super) struct Insert<'a> {
    /// Parts of this message are held for that boot's waiting caller.
    pub held: Option<(&'a InboxId, &'a BootId)>,
    /// The first part of a lane with no other open part is this boot's to send from this time on.
    pub sender: Option<(&'a BootId, i64)>,
}

/// What storing parts did.
#[derive(Default)]
pub(super) struct Inserted {
    /// Lanes with pending parts.
    pub lanes: Vec<LaneKey>,
    /// Parts that are `sending`.
    pub sending: Vec<OutboxPart>,
    /// Some are held.
    pub held: bool,
}

/// Stores parts of notices and commands: held for the boot that waits for their message, if there is one.
pub(super) async fn insert_pending(
    tx: &mut Tx<'_>,
    parts: &[NewPart],
    hold: Option<&BootId>,
) -> Result<Inserted, StoreError> {
    let entry = parts.first().and_then(|part| part.entry.as_ref());
    insert(tx, parts, &Insert { held: entry.zip(hold), sender: None }).await
}

/// Stores parts behind all others of their lanes.
pub(super) async fn insert(tx: &mut Tx<'_>, parts: &[NewPart], how: &Insert<'_>) -> Result<Inserted, StoreError> {
    let mut inserted = Inserted::default();
    let mut reply_id = None;
    let mut seen: Vec<LaneKey> = Vec::new();
    for part in parts {
        if part.seq <= 1 || reply_id.is_none() {
            reply_id = Some(&part.id);
        }
        let key = lane(part.to.channel.to_string(), part.to.lane.clone());
        let held = how.held.filter(|(entry, _)| part.entry.as_ref() == Some(*entry));
        let sender = how.sender.filter(|_| held.is_none() && !seen.contains(&key));
        let boot = held.map(|(_, boot)| boot).or(sender.map(|(boot, _)| boot));
        let state: i64 = sqlx::query_scalar(
            "INSERT INTO outbox (id, reply_id, channel, lane, place, entry, in_reply_to, address, part_seq, last, text,
                                 body, reply, level, state, epoch, boot, created_at, expires_at, replaces)
             VALUES ($1, $2, $3, $4, (SELECT coalesce(max(seq), 0) + 1 FROM outbox), $5, $6, $7, $8, $9, $10, $11, $12,
                     $13,
                     CASE WHEN $14 = 2 AND EXISTS (SELECT 1 FROM outbox INDEXED BY outbox_open
                                                   WHERE channel = $3 AND lane = $4 AND state < 4)
                          THEN 0 ELSE $14 END,
                     1, $15, $16, $17, $18)
             RETURNING state",
        )
        .bind(part.id.as_str())
        .bind(reply_id.map(PartId::as_str))
        .bind(part.to.channel.as_str())
        .bind(&part.to.lane)
        .bind(part.entry.as_ref().map(InboxId::as_str))
        .bind(&part.in_reply_to)
        .bind(to_json(&part.to.data)?)
        .bind(i64::from(part.seq))
        .bind(part.last)
        .bind(&part.part.text)
        .bind(to_json(&part.part.body)?)
        .bind(part.reply.as_ref().map(to_json).transpose()?)
        .bind(level_name(part.level))
        .bind(match (held, sender) {
            (Some(_), _) => HELD,
            (None, Some(_)) => SENDING,
            (None, None) => PENDING,
        })
        .bind(boot.map(BootId::as_str))
        .bind(part.created_at)
        .bind(part.expires_at)
        .bind(&part.replaces)
        .fetch_one(&mut *tx.conn)
        .await?;
        match state {
            HELD => inserted.held = true,
            SENDING => {
                inserted.sending.push(OutboxPart {
                    id: part.id.clone(),
                    epoch: 1,
                    to: part.to.clone(),
                    key: SendKey {
                        part: part.id.clone(),
                        seq: part.seq,
                        last: part.last,
                        in_reply_to: part.in_reply_to.clone(),
                        created_at: part.created_at,
                        resend: false,
                        replaces: part.replaces.clone(),
                    },
                    part: part.part.clone(),
                    level: part.level,
                    attempts: 0,
                    first_try_at: sender.map(|(_, now)| now),
                    expires_at: part.expires_at,
                });
            }
            _ => push_lane(&mut inserted.lanes, key.clone()),
        }
        seen.push(key);
    }
    Ok(inserted)
}

/// The parts of a settled message.
pub(super) async fn settled_parts(store: &SqliteStore, entry: &InboxId) -> Result<Vec<SettledPart>, StoreError> {
    let rows = sqlx::query(
        "SELECT id, part_seq, last, text, body, created_at FROM outbox INDEXED BY outbox_entry
         WHERE entry = $1 ORDER BY place, sub",
    )
    .bind(entry.as_str())
    .fetch_all(&store.readers)
    .await?;
    rows.iter()
        .map(|row| {
            Ok(SettledPart {
                id: PartId::from(get::<String>(row, 0)?),
                seq: small(row, 1)?,
                last: get(row, 2)?,
                part: Part { text: get(row, 3)?, body: json(row, 4)? },
                created_at: get(row, 5)?,
            })
        })
        .collect()
}

/// The columns of a [`PartRow`], in the order [`part_row`] reads them.
macro_rules! part_columns {
    () => {
        "id, channel, lane, state, text, attempts, error, receipt, created_at, settled_at"
    };
}

fn part_row(row: &SqliteRow) -> Result<PartRow, StoreError> {
    let state = usize::try_from(get::<i64>(row, 3)?).ok().and_then(|state| STATES.get(state));
    Ok(PartRow {
        id: PartId::from(get::<String>(row, 0)?),
        channel: ChannelId::from(get::<String>(row, 1)?),
        lane: get(row, 2)?,
        state: (*state.unwrap_or(&"unknown")).to_owned(),
        text: get(row, 4)?,
        attempts: small(row, 5)?,
        error: get(row, 6)?,
        receipt: get(row, 7)?,
        created_at: get(row, 8)?,
        settled_at: get(row, 9)?,
    })
}

/// The parts of several messages (ids as a JSON array), in order.
pub(super) async fn parts_of(store: &SqliteStore, entries: &str) -> Result<Vec<PartRow>, StoreError> {
    let rows = sqlx::query(concat!(
        "SELECT ",
        part_columns!(),
        " FROM outbox INDEXED BY outbox_entry
          WHERE entry IN (SELECT value FROM json_each($1)) AND entry IS NOT NULL ORDER BY place, sub"
    ))
    .bind(entries)
    .fetch_all(&store.readers)
    .await?;
    rows.iter().map(part_row).collect()
}

#[async_trait]
impl OutboxStore for SqliteStore {
    async fn say(&self, word: Word) -> Result<Vec<LaneKey>, StoreError> {
        self.write(word).await
    }

    async fn open_lanes(&self) -> Result<Vec<(LaneKey, i64)>, StoreError> {
        // Ordered as the index is, so the first row of a lane is its first open part.
        let rows = sqlx::query(
            "SELECT channel, lane, state, not_before FROM outbox INDEXED BY outbox_open
             WHERE state < 4 ORDER BY channel, lane, place, sub",
        )
        .fetch_all(&self.readers)
        .await?;
        let mut lanes: Vec<(LaneKey, i64)> = Vec::new();
        let mut head: Option<(LaneKey, i64)> = None;
        for row in &rows {
            let key = lane(get(row, 0)?, get(row, 1)?);
            if head.as_ref().is_none_or(|(known, _)| *known != key) {
                head = Some((key, get(row, 3)?));
            }
            let Some(first) = &head else { continue };
            if matches!(get::<i64>(row, 2)?, PENDING | UNCERTAIN) && lanes.last() != Some(first) {
                lanes.push(first.clone());
            }
        }
        Ok(lanes)
    }

    async fn next_part(&self, lane: &LaneKey, boot: &BootId, now: i64) -> Result<NextPart, StoreError> {
        // Nothing to do is the rule after a send: found out without the writer.
        let first =
            sqlx::query(FIRST).bind(lane.channel.as_str()).bind(&lane.lane).fetch_optional(&self.readers).await?;
        let Some(first) = first else { return Ok(NextPart::Empty) };
        let (state, not_before, expires_at): (i64, i64, i64) = (get(&first, 1)?, get(&first, 2)?, get(&first, 3)?);
        match state {
            HELD | SENDING => return Ok(NextPart::Blocked),
            _ if not_before > now && !(state == PENDING && expires_at <= now) => return Ok(NextPart::Wait(not_before)),
            _ => {}
        }
        self.write(Next { lane: lane.clone(), boot: boot.clone(), now }).await
    }

    async fn settle_part(&self, id: &PartId, epoch: i64, what: PartOutcome, now: i64) -> Result<(), StoreError> {
        self.write(Settle { id: id.clone(), epoch, what, now }).await
    }

    async fn replace_parts(&self, id: &PartId, epoch: i64, parts: Vec<NewPart>, now: i64) -> Result<(), StoreError> {
        self.write(Replace { id: id.clone(), epoch, parts, now }).await
    }

    async fn reply_of(&self, id: &PartId) -> Result<Option<Reply>, StoreError> {
        let row = sqlx::query(
            "SELECT reply FROM outbox WHERE id = (SELECT reply_id FROM outbox WHERE id = $1) AND reply IS NOT NULL",
        )
        .bind(id.as_str())
        .fetch_optional(&self.readers)
        .await?;
        row.as_ref().map(|row| json(row, 0)).transpose()
    }

    async fn handed_over(&self, entry: &InboxId, parts: &[PartId], now: i64) -> Result<Vec<LaneKey>, StoreError> {
        self.write(HandedOver { entry: entry.clone(), parts: parts.to_vec(), now }).await
    }

    async fn release_hold(&self, entry: &InboxId, now: i64) -> Result<Vec<LaneKey>, StoreError> {
        self.write(ReleaseHold { entry: entry.clone(), now }).await
    }

    async fn parts(&self, filter: PartFilter, limit: u32) -> Result<Vec<PartRow>, StoreError> {
        let state = match &filter.state {
            None => None,
            Some(name) => match STATES.iter().position(|state| state == name) {
                Some(state) => Some(state as i64),
                None => return Ok(Vec::new()),
            },
        };
        let query = match &filter.entry {
            Some(entry) => sqlx::query(concat!(
                "SELECT ",
                part_columns!(),
                " FROM outbox WHERE entry = $1 AND ($2 IS NULL OR state = $2) ORDER BY place DESC, sub DESC LIMIT $3"
            ))
            .bind(entry.as_str()),
            // Without a question, what went well is left out.
            None => sqlx::query(concat!(
                "SELECT ",
                part_columns!(),
                " FROM outbox WHERE $1 IS NULL AND CASE WHEN $2 IS NULL THEN state <> 4 ELSE state = $2 END
                  ORDER BY seq DESC LIMIT $3"
            ))
            .bind(None::<&str>),
        };
        let rows = query.bind(state).bind(i64::from(limit)).fetch_all(&self.readers).await?;
        rows.iter().map(part_row).collect()
    }
}

/// The columns of an [`OutboxPart`], in the order [`part`] reads them.
macro_rules! outbox_columns {
    () => {
        "id, epoch, channel, lane, address, part_seq, last, in_reply_to, created_at, resend, text, body, level, attempts,
         first_try_at, expires_at, doubt, replaces"
    };
}

fn part(row: &SqliteRow) -> Result<OutboxPart, StoreError> {
    let id = PartId::from(get::<String>(row, 0)?);
    Ok(OutboxPart {
        epoch: get(row, 1)?,
        to: Address { channel: ChannelId::from(get::<String>(row, 2)?), lane: get(row, 3)?, data: json(row, 4)? },
        key: SendKey {
            part: id.clone(),
            seq: small(row, 5)?,
            last: get(row, 6)?,
            in_reply_to: get(row, 7)?,
            created_at: get(row, 8)?,
            resend: get(row, 9)?,
            replaces: get(row, 17)?,
        },
        part: Part { text: get(row, 10)?, body: json(row, 11)? },
        level: if get::<&str>(row, 12)? == "plain" { Level::Plain } else { Level::Rich },
        attempts: small(row, 13)?,
        first_try_at: get(row, 14)?,
        expires_at: get(row, 15)?,
        id,
    })
}

/// Takes the first open part of a lane.
struct Next {
    lane: LaneKey,
    boot: BootId,
    now: i64,
}

/// The first open part of a lane: looks at one row.
pub(super) const FIRST: &str = "
    SELECT seq, state, not_before, expires_at FROM outbox INDEXED BY outbox_open
    WHERE channel = $1 AND lane = $2 AND state < 4 ORDER BY place, sub LIMIT 1";

#[async_trait]
impl Write for Next {
    type Answer = NextPart;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<NextPart, StoreError> {
        loop {
            let first = sqlx::query(FIRST)
                .bind(self.lane.channel.as_str())
                .bind(&self.lane.lane)
                .fetch_optional(&mut *tx.conn)
                .await?;
            let Some(first) = first else { return Ok(NextPart::Empty) };
            let (seq, state): (i64, i64) = (get(&first, 0)?, get(&first, 1)?);
            let (not_before, expires_at): (i64, i64) = (get(&first, 2)?, get(&first, 3)?);
            match state {
                HELD | SENDING => return Ok(NextPart::Blocked),
                PENDING if expires_at <= self.now => {
                    sqlx::query("UPDATE outbox SET state = 7, settled_at = $2 WHERE seq = $1")
                        .bind(seq)
                        .bind(self.now)
                        .execute(&mut *tx.conn)
                        .await?;
                    continue;
                }
                _ if not_before > self.now => return Ok(NextPart::Wait(not_before)),
                _ => {}
            }
            // One that is looked into is `sending` too: nobody else touches it, and a crash makes it uncertain again.
            let row = sqlx::query(concat!(
                "UPDATE outbox SET doubt = (state = 3), state = 2, epoch = epoch + 1, boot = $2,
                     first_try_at = coalesce(first_try_at, $3)
                 WHERE seq = $1 RETURNING ",
                outbox_columns!(),
            ))
            .bind(seq)
            .bind(self.boot.as_str())
            .bind(self.now)
            .fetch_one(&mut *tx.conn)
            .await?;
            let taken = Box::new(part(&row)?);
            return Ok(if get(&row, 16)? { NextPart::Uncertain(taken) } else { NextPart::Send(taken) });
        }
    }
}

/// What became of a part.
struct Settle {
    id: PartId,
    epoch: i64,
    what: PartOutcome,
    now: i64,
}

#[async_trait]
impl Write for Settle {
    type Answer = ();

    fn durability(&self) -> Durability {
        // A power cut that forgets it leaves the part uncertain, and it is looked into.
        if matches!(self.what, PartOutcome::Sent(_)) { Durability::Soft } else { Durability::Hard }
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let (state, error, receipt) = match &self.what {
            PartOutcome::Sent(receipt) => (SENT, None, receipt.platform_id.as_deref()),
            PartOutcome::Retry { error, .. } => (PENDING, Some(error.as_str()), None),
            PartOutcome::Uncertain(why) => (UNCERTAIN, Some(why.as_str()), None),
            PartOutcome::Unknown(why) => (UNKNOWN, Some(why.as_str()), None),
            PartOutcome::Failed(why) => (FAILED, Some(why.as_str()), None),
            PartOutcome::Expired => (EXPIRED, None, None),
        };
        let retry = match &self.what {
            PartOutcome::Retry { not_before, resend, .. } => Some((*not_before, *resend)),
            _ => None,
        };
        let done = sqlx::query(
            "UPDATE outbox SET state = $3, doubt = 0, error = coalesce($4, error), receipt = $5,
                 attempts = attempts + $6, not_before = coalesce($7, not_before), resend = max(resend, $8),
                 settled_at = $9
             WHERE id = $1 AND epoch = $2 AND state = 2",
        )
        .bind(self.id.as_str())
        .bind(self.epoch)
        .bind(state)
        .bind(error)
        .bind(receipt)
        .bind(i64::from(retry.is_some()))
        .bind(retry.map(|(not_before, _)| not_before))
        .bind(retry.is_some_and(|(_, resend)| resend))
        .bind((state >= SENT).then_some(self.now))
        .execute(&mut *tx.conn)
        .await?;
        if done.rows_affected() == 0 { Err(StoreError::Fenced) } else { Ok(()) }
    }
}

/// Plainer parts for a refused one.
struct Replace {
    id: PartId,
    epoch: i64,
    parts: Vec<NewPart>,
    now: i64,
}

#[async_trait]
impl Write for Replace {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let old = sqlx::query(
            "SELECT reply_id, channel, lane, place, sub, reply FROM outbox WHERE id = $1 AND epoch = $2 AND state = 2",
        )
        .bind(self.id.as_str())
        .bind(self.epoch)
        .fetch_optional(&mut *tx.conn)
        .await?
        .ok_or(StoreError::Fenced)?;
        let reply_id: String = get(&old, 0)?;
        let (place, sub): (i64, i64) = (get(&old, 3)?, get(&old, 4)?);
        let kept_reply: Option<String> = get(&old, 5)?;
        sqlx::query(
            "DELETE FROM outbox WHERE seq IN (
                 SELECT seq FROM outbox INDEXED BY outbox_open
                 WHERE channel = $1 AND lane = $2 AND state < 4 AND reply_id = $3 AND (place, sub) >= ($4, $5))",
        )
        .bind(get::<&str>(&old, 1)?)
        .bind(get::<&str>(&old, 2)?)
        .bind(&reply_id)
        .bind(place)
        .bind(sub)
        .execute(&mut *tx.conn)
        .await?;
        insert(tx, &self.parts, &Insert::default()).await?;
        // They belong to the reply as before; a reply that lost its first part is named after the new one.
        let first_id = self.parts.first().map(|part| part.id.as_str());
        let reply_id = if reply_id == self.id.as_str() { first_id.unwrap_or(&reply_id) } else { &reply_id };
        for (part, n) in self.parts.iter().zip(0..) {
            let reply = if n == 0 { kept_reply.as_deref() } else { None };
            sqlx::query(
                "UPDATE outbox SET reply_id = $2, place = $3, sub = $4, reply = coalesce(reply, $5),
                                   not_before = $6 WHERE id = $1",
            )
            .bind(part.id.as_str())
            .bind(reply_id)
            .bind(place)
            .bind(sub + n)
            .bind(reply)
            .bind(self.now)
            .execute(&mut *tx.conn)
            .await?;
        }
        Ok(())
    }
}

/// Their caller has them.
struct HandedOver {
    entry: InboxId,
    parts: Vec<PartId>,
    now: i64,
}

#[async_trait]
impl Write for HandedOver {
    type Answer = Vec<LaneKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneKey>, StoreError> {
        let rows = sqlx::query(
            "UPDATE outbox SET state = 4, settled_at = $3
             WHERE id IN (SELECT value FROM json_each($2)) AND entry = $1 AND state = 1 RETURNING channel, lane",
        )
        .bind(self.entry.as_str())
        .bind(to_json(&self.parts)?)
        .bind(self.now)
        .fetch_all(&mut *tx.conn)
        .await?;
        lanes_of(&rows)
    }
}

/// The lanes in `channel, lane` rows, each once.
fn lanes_of(rows: &[SqliteRow]) -> Result<Vec<LaneKey>, StoreError> {
    let mut lanes = Vec::new();
    for row in rows {
        push_lane(&mut lanes, lane(get(row, 0)?, get(row, 1)?));
    }
    Ok(lanes)
}

/// Nobody waits any more.
struct ReleaseHold {
    entry: InboxId,
    now: i64,
}

#[async_trait]
impl Write for ReleaseHold {
    type Answer = Vec<LaneKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneKey>, StoreError> {
        let rows = sqlx::query(
            "UPDATE inbox SET hold = NULL WHERE id = $1;
             UPDATE outbox SET state = 0, not_before = $2 WHERE entry = $1 AND state = 1 RETURNING channel, lane",
        )
        .bind(self.entry.as_str())
        .bind(self.now)
        .fetch_all(&mut *tx.conn)
        .await?;
        lanes_of(&rows)
    }
}
