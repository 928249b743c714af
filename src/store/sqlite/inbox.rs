//! Station 4 and the reads of the queue: storing messages, finding them again, dead letters.

use async_trait::async_trait;
use channel_api::{ChannelId, InboxId, QueueMode, Settled};
use sqlx::{Row, SqliteConnection, sqlite::SqliteRow};

use super::{
    SqliteStore, access, amend, channel, chat, event, get, group, json, outbox, push_lane, session, small, subagent,
    to_json,
    writer::{Delta, Tx, Write},
};
use crate::{
    policy::Role,
    session::SessionKey,
    store::{
        Action, Amendment, Claim, ClaimAsk, DeadLetter, DeadResolution, EventRow, Finish, Finished, Footer, InboxEntry,
        InboxStore, Lease, Load, MovedGroup, NewBatch, NewEntry, NewHeard, NewPairing, NextSuspect, OverCap, Release,
        Released, SessionChange, StoreError, Stored,
    },
};

/// What waits or runs, counted from the rows.
pub(super) async fn count_open(conn: &mut SqliteConnection) -> Result<Delta, sqlx::Error> {
    let row = sqlx::query("SELECT count(*), coalesce(sum(bytes), 0) FROM inbox INDEXED BY inbox_open WHERE state < 2")
        .fetch_one(conn)
        .await?;
    Ok(Delta { rows: row.try_get(0)?, bytes: row.try_get(1)? })
}

/// The columns of an [`InboxEntry`], in the order [`entry`] reads them.
macro_rules! entry_columns {
    () => {
        "seq, id, role, payload, mode, received_at, attempts, collapsed, errand"
    };
}
pub(super) use entry_columns;

/// Reads `entry_columns!`.
pub(super) fn entry(row: &SqliteRow) -> Result<InboxEntry, StoreError> {
    Ok(InboxEntry {
        seq: get(row, 0)?,
        id: InboxId::from(get::<String>(row, 1)?),
        role: Role::parse(get(row, 2)?),
        inbound: json(row, 3)?,
        mode: mode(get(row, 4)?),
        received_at: get(row, 5)?,
        attempts: small(row, 6)?,
        collapsed: get(row, 7)?,
        errand: get::<Option<&str>>(row, 8)?.is_some().then(|| json(row, 8)).transpose()?,
    })
}

/// A stored queue mode.
pub(super) fn mode(name: &str) -> QueueMode {
    QueueMode::parse(name).unwrap_or(QueueMode::Followup)
}

/// Who must be the same for two entries to share a turn: the sender, on their channel; one that is alone has its own.
fn sender_of(new: &NewEntry) -> String {
    match (&new.errand, new.alone) {
        (Some(_), _) => format!("{ERRAND} {}", new.id),
        (None, true) => format!("{COMMAND} {}", new.id),
        (None, false) => sender_key(&new.inbound.channel, &new.inbound.sender.id),
    }
}

const ERRAND: &str = "errand";
const COMMAND: &str = "command";

/// Whether what is stored under this sender shares its turn with nothing. No channel has such a name: theirs have a colon.
pub(super) fn is_alone(sender: &str) -> bool {
    sender.split_once(' ').is_some_and(|(kind, _)| kind == ERRAND || kind == COMMAND)
}

pub(super) fn sender_key(channel: &ChannelId, sender: &str) -> String {
    format!("{channel} {sender}")
}

#[async_trait]
impl InboxStore for SqliteStore {
    async fn accept(&self, batch: NewBatch) -> Result<Vec<Stored>, StoreError> {
        let mut entries = Vec::with_capacity(batch.entries.len());
        for new in batch.entries {
            entries.push(Prepared::of(new)?);
        }
        let NewBatch { pairings, cursor, heard, moved, amendments, .. } = batch;
        self.write(Accept { entries, pairings, cursor, heard, moved, amendments }).await
    }

    async fn claim(&self, ask: &ClaimAsk) -> Result<Vec<Claim>, StoreError> {
        self.write(ask.clone()).await
    }

    async fn next_suspect(&self) -> Result<NextSuspect, StoreError> {
        let row = sqlx::query(
            "SELECT count(*), min(CASE WHEN ready_seq IS NOT NULL THEN not_before END)
             FROM session INDEXED BY session_suspect WHERE suspects > 0",
        )
        .fetch_one(&self.readers)
        .await?;
        let (left, due): (i64, Option<i64>) = (get(&row, 0)?, get(&row, 1)?);
        Ok(match due {
            Some(due) => NextSuspect::Due(due),
            None if left > 0 => NextSuspect::Behind,
            None => NextSuspect::None,
        })
    }

    async fn next_due(&self, now: i64) -> Result<Option<i64>, StoreError> {
        let row = sqlx::query(
            "SELECT min(not_before) FROM session INDEXED BY session_due
             WHERE ready_seq IS NOT NULL AND not_before > $1",
        )
        .bind(now)
        .fetch_one(&self.readers)
        .await?;
        get(&row, 0)
    }

    async fn absorb(&self, lease: &Lease, now: i64) -> Result<Vec<InboxEntry>, StoreError> {
        // Nothing to absorb is the rule: found out without the writer.
        let row = sqlx::query(
            "SELECT pending > 0 AND EXISTS (
                 SELECT 1 FROM inbox INDEXED BY inbox_open
                 WHERE session = session.id AND state < 2 AND state = 0 AND mode = 'steer'
                   AND sender = session.lease_sender AND turn IS NULL AND inbox.not_before <= $4
                   AND NOT EXISTS (SELECT 1 FROM inbox w INDEXED BY inbox_open
                                   WHERE w.session = session.id AND w.state < 2 AND w.state = 0
                                     AND w.mode <> 'steer' AND w.seq < inbox.seq))
             FROM session WHERE key = $1 AND epoch = $2 AND lease_boot = $3",
        )
        .bind(lease.session.as_str())
        .bind(lease.epoch)
        .bind(lease.boot.as_str())
        .bind(now)
        .fetch_optional(&self.readers)
        .await?;
        match row {
            None => Err(StoreError::Fenced),
            Some(row) if get(&row, 0)? => self.write(super::claim::Absorb { lease: lease.clone(), now }).await,
            Some(_) => Ok(Vec::new()),
        }
    }

    async fn stop_asked(&self, lease: &Lease) -> Result<bool, StoreError> {
        let row = sqlx::query(
            "SELECT stop_turn IS lease_turn FROM session WHERE key = $1 AND epoch = $2 AND lease_boot = $3",
        )
        .bind(lease.session.as_str())
        .bind(lease.epoch)
        .bind(lease.boot.as_str())
        .fetch_optional(&self.readers)
        .await?;
        get(&row.ok_or(StoreError::Fenced)?, 0)
    }

    async fn finish(&self, finish: Finish) -> Result<Finished, StoreError> {
        self.write(finish).await
    }

    async fn release(&self, release: Release) -> Result<Released, StoreError> {
        self.write(release).await
    }

    async fn park(&self, lease: &Lease, until: i64) -> Result<(), StoreError> {
        self.write(super::finish::Park { lease: lease.clone(), until }).await
    }

    async fn unpark(&self, session: &SessionKey) -> Result<(), StoreError> {
        self.write(super::finish::Unpark(session.clone())).await
    }

    async fn settled(&self, id: &InboxId) -> Result<Option<Settled>, StoreError> {
        let row = sqlx::query("SELECT state, silent, error, merged_into FROM inbox WHERE id = $1")
            .bind(id.as_str())
            .fetch_optional(&self.readers)
            .await?;
        let Some(row) = row else { return Ok(None) };
        if get::<i64>(&row, 0)? < 2 {
            return Ok(None);
        }
        Ok(Some(Settled {
            parts: outbox::settled_parts(self, id).await?,
            silent: get(&row, 1)?,
            failed: get(&row, 2)?,
            merged_into: get::<Option<String>>(&row, 3)?.map(InboxId::from),
        }))
    }

    async fn find(&self, channel: &ChannelId, platform_id: &str) -> Result<Option<InboxId>, StoreError> {
        let id: Option<String> = sqlx::query_scalar("SELECT id FROM inbox WHERE channel = $1 AND platform_id = $2")
            .bind(channel.as_str())
            .bind(platform_id)
            .fetch_optional(&self.readers)
            .await?;
        Ok(id.map(InboxId::from))
    }

    async fn load(&self) -> Result<Load, StoreError> {
        Ok(self.writer.load())
    }

    async fn dead_letters(&self, after: Option<i64>, limit: u32) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = sqlx::query(
            "SELECT i.seq, i.id, s.key, i.payload, i.error, i.attempts, i.crashes, i.received_at
             FROM inbox i INDEXED BY inbox_dead JOIN session s ON s.id = i.session
             WHERE i.state = 3 AND i.seq < $1 ORDER BY i.seq DESC LIMIT $2",
        )
        .bind(after.unwrap_or(i64::MAX))
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter()
            .map(|row| {
                Ok(DeadLetter {
                    seq: get(row, 0)?,
                    id: InboxId::from(get::<String>(row, 1)?),
                    session: SessionKey::from(get::<String>(row, 2)?),
                    inbound: json(row, 3)?,
                    error: get::<Option<String>>(row, 4)?.unwrap_or_default(),
                    attempts: small(row, 5)?,
                    crashes: small(row, 6)?,
                    received_at: get(row, 7)?,
                })
            })
            .collect()
    }

    async fn resolve_dead(&self, id: &InboxId, how: DeadResolution, now: i64) -> Result<(), StoreError> {
        self.write(ResolveDead { id: id.clone(), how, now }).await
    }
}

/// Commit 1.
struct Accept {
    entries: Vec<Prepared>,
    pairings: Vec<NewPairing>,
    cursor: Option<(ChannelId, channel_api::Cursor)>,
    heard: Vec<NewHeard>,
    moved: Vec<MovedGroup>,
    amendments: Vec<Amendment>,
}

/// An entry with what is made of it once, however often the write runs.
pub(super) struct Prepared {
    new: NewEntry,
    payload: String,
    errand: Option<String>,
    chat: Option<chat::Seen>,
    sender: String,
}

/// What the store knows before an entry is stored.
struct Known {
    session_mode: Option<QueueMode>,
    pending: i64,
    running: bool,
    lease_sender: Option<String>,
    not_before: i64,
}

#[async_trait]
impl Write for Accept {
    type Answer = Vec<Stored>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Stored>, StoreError> {
        // First: what the entries say is said under the new id.
        for moved in &self.moved {
            group::move_to(tx, moved).await?;
        }
        for heard in &self.heard {
            group::hear(tx, heard).await?;
        }
        let mut stored = Vec::with_capacity(self.entries.len());
        for entry in &self.entries {
            stored.push(entry.accept(tx).await?);
        }
        for pairing in &self.pairings {
            stored.push(Stored::Asked(access::ask(tx, pairing).await?));
        }
        for amendment in &self.amendments {
            stored.push(Stored::Amended(amend::amend(tx, amendment).await?));
        }
        if let Some((channel, cursor)) = &self.cursor {
            channel::set(tx, channel, &cursor.key, &cursor.value).await?;
        }
        Ok(stored)
    }
}

impl Prepared {
    /// Of this entry.
    pub(super) fn of(new: NewEntry) -> Result<Self, StoreError> {
        let payload = to_json(&new.inbound)?;
        let errand = new.errand.as_ref().map(to_json).transpose()?;
        Ok(Self { sender: sender_of(&new), payload, errand, chat: chat::Seen::of(&new)?, new })
    }

    /// The id of the entry.
    pub(super) fn id(&self) -> &InboxId {
        &self.new.id
    }

    /// Stores it as a part of a transaction, as [`InboxStore::accept`] says.
    pub(super) async fn accept(&self, tx: &mut Tx<'_>) -> Result<Stored, StoreError> {
        let new = &self.new;
        let row = sqlx::query(
            "SELECT d.id, d.fingerprint, s.mode, coalesce(s.pending, 0), s.lease_boot IS NOT NULL, s.lease_sender,
                    coalesce(s.not_before, 0)
             FROM (SELECT 1)
             LEFT JOIN inbox d ON d.channel = $1 AND d.platform_id = $2
             LEFT JOIN session s ON s.key = $3",
        )
        .bind(new.inbound.channel.as_str())
        .bind(&new.inbound.platform_id)
        .bind(new.session.as_str())
        .fetch_one(&mut *tx.conn)
        .await?;
        if let Some(id) = get::<Option<String>>(&row, 0)? {
            let fingerprint: Option<String> = get(&row, 1)?;
            return Ok(match (&fingerprint, &new.inbound.fingerprint) {
                (Some(known), Some(now)) if known != now => Stored::Conflict,
                _ => Stored::Duplicate(InboxId::from(id)),
            });
        }
        let known = Known {
            session_mode: get::<Option<&str>>(&row, 2)?.and_then(QueueMode::parse),
            pending: get(&row, 3)?,
            running: get(&row, 4)?,
            lease_sender: get(&row, 5)?,
            not_before: get(&row, 6)?,
        };
        match &new.action {
            Action::Turn => self.queue(tx, &known).await,
            Action::Command { parts, change } => self.command(tx, &known, parts, *change).await,
        }
    }

    /// Stores an entry that waits for a turn.
    async fn queue(&self, tx: &mut Tx<'_>, known: &Known) -> Result<Stored, StoreError> {
        let new = &self.new;
        let cap = i64::from(new.cap);
        let over = known.pending >= cap;
        let collapsed = over && !new.alone;
        let mut notice: &[_] = &[];
        if over {
            let OverCap::Collapse(parts) = &new.over_cap else { return Ok(Stored::Full) };
            if known.pending >= cap.saturating_mul(10) {
                return Ok(Stored::Full);
            }
            let first: bool = sqlx::query_scalar(
                "SELECT NOT EXISTS (
                     SELECT 1 FROM inbox INDEXED BY inbox_open
                     WHERE session = (SELECT id FROM session WHERE key = $1) AND state < 2 AND state = 0 AND collapsed)",
            )
            .bind(new.session.as_str())
            .fetch_one(&mut *tx.conn)
            .await?;
            if first {
                notice = parts;
            }
        }
        let mode = if new.mode_fixed { new.mode } else { known.session_mode.unwrap_or(new.mode) };
        let bytes = i64::try_from(self.payload.len()).unwrap_or(i64::MAX);
        let row = sqlx::query(concat!(
            "INSERT INTO session (key, agent, pending, ready_seq, not_before, created_at, updated_at)
             VALUES ($1, $2, 1, ",
            session::next_ready!(),
            ", $3, $4, $4)
             ON CONFLICT (key) DO UPDATE SET
                 agent = excluded.agent, pending = pending + 1,
                 updated_at = CASE WHEN $17 THEN updated_at ELSE excluded.updated_at END,
                 ready_seq = CASE WHEN lease_boot IS NULL THEN coalesce(ready_seq, excluded.ready_seq) END,
                 not_before = CASE WHEN pending = 0 THEN max(hold_until, excluded.not_before) ELSE not_before END;
             INSERT INTO inbox (id, channel, platform_id, fingerprint, session, sender, role, mode, state, collapsed,
                                not_before, hold, received_at, bytes, payload, errand)
             VALUES ($5, $6, $7, $8, (SELECT id FROM session WHERE key = $1), $9, $10, $11, 0, $12, $3, $13, $4, $14, $15,
                     $16)
             RETURNING seq",
        ))
        .bind(new.session.as_str())
        .bind(&new.agent)
        .bind(new.not_before)
        .bind(new.received_at)
        .bind(new.id.as_str())
        .bind(new.inbound.channel.as_str())
        .bind(&new.inbound.platform_id)
        .bind(&new.inbound.fingerprint)
        .bind(&self.sender)
        .bind(new.role.as_str())
        .bind(mode.as_str())
        .bind(collapsed)
        .bind(new.hold.as_ref().map(|boot| boot.as_str()))
        .bind(bytes)
        .bind(&self.payload)
        .bind(&self.errand)
        .bind(new.errand.as_ref().is_some_and(|errand| errand.tick.is_some()))
        .fetch_one(&mut *tx.conn)
        .await?;
        let seq: i64 = get(&row, 0)?;
        tx.load.add(bytes);
        if let Some(chat) = &self.chat {
            chat.keep(tx, new).await?;
        }

        if known.pending > 0 && known.not_before > new.received_at {
            self.hurry(tx, seq).await?;
        }
        if mode == QueueMode::Interrupt && (known.running || known.pending > 0) {
            // Turns that began before it are over: the running one is told, one that waits to go on is settled by the
            // next claim, which must not wait for its parking or back-off.
            sqlx::query(
                "UPDATE session SET hold_until = 0, parked_until = NULL, not_before = 0,
                     stop_turn = coalesce(lease_turn, (
                         SELECT turn FROM inbox INDEXED BY inbox_open
                         WHERE session = session.id AND state < 2 AND turn IS NOT NULL LIMIT 1), stop_turn)
                 WHERE key = $1",
            )
            .bind(new.session.as_str())
            .execute(&mut *tx.conn)
            .await?;
        }
        let mut lanes = Vec::new();
        for lane in outbox::insert_pending(tx, notice, None).await?.lanes {
            push_lane(&mut lanes, lane);
        }
        Ok(Stored::New {
            seq,
            collapsed,
            stops: known.running && mode == QueueMode::Interrupt,
            steers: known.running && mode == QueueMode::Steer && known.lease_sender.as_deref() == Some(&self.sender),
            children: Vec::new(),
            lanes,
            events: Vec::new(),
        })
    }

    /// The rest of what a platform cut in pieces is here, or more of it: the pieces before it wait exactly as long.
    async fn hurry(&self, tx: &mut Tx<'_>, seq: i64) -> Result<(), StoreError> {
        sqlx::query(concat!(
            "UPDATE inbox INDEXED BY inbox_open SET not_before = $2
             WHERE session = (SELECT id FROM session WHERE key = $1) AND state < 2 AND state = 0 AND seq < $3
               AND sender = $4 AND turn IS NULL AND not_before > $5;
             UPDATE session SET not_before = max(hold_until, ",
            session::head_not_before!(),
            ") WHERE key = $1",
        ))
        .bind(self.new.session.as_str())
        .bind(self.new.not_before)
        .bind(seq)
        .bind(&self.sender)
        .bind(self.new.received_at)
        .execute(&mut *tx.conn)
        .await?;
        Ok(())
    }

    /// Stores a command, settled, and does what it does.
    async fn command(
        &self,
        tx: &mut Tx<'_>,
        known: &Known,
        parts: &[crate::store::NewPart],
        change: SessionChange,
    ) -> Result<Stored, StoreError> {
        let new = &self.new;
        let row = sqlx::query(
            "INSERT INTO session (key, agent, created_at, updated_at) VALUES ($1, $2, $3, $3)
             ON CONFLICT (key) DO UPDATE SET updated_at = excluded.updated_at;
             INSERT INTO inbox (id, channel, platform_id, fingerprint, session, sender, role, mode, state, hold,
                                received_at, settled_at, bytes, payload)
             VALUES ($4, $5, $6, $7, (SELECT id FROM session WHERE key = $1), $8, $9, $10, 2, $11, $3, $3, $12, $13)
             RETURNING seq, session",
        )
        .bind(new.session.as_str())
        .bind(&new.agent)
        .bind(new.received_at)
        .bind(new.id.as_str())
        .bind(new.inbound.channel.as_str())
        .bind(&new.inbound.platform_id)
        .bind(&new.inbound.fingerprint)
        .bind(&self.sender)
        .bind(new.role.as_str())
        .bind(new.mode.as_str())
        .bind(new.hold.as_ref().map(|boot| boot.as_str()))
        .bind(i64::try_from(self.payload.len()).unwrap_or(i64::MAX))
        .bind(&self.payload)
        .fetch_one(&mut *tx.conn)
        .await?;
        let (seq, session): (i64, i64) = (get(&row, 0)?, get(&row, 1)?);
        let (mut events, mut children) = (Vec::new(), Vec::new());
        match change {
            SessionChange::None => {}
            SessionChange::Mode(mode) => {
                sqlx::query("UPDATE session SET mode = $2 WHERE id = $1")
                    .bind(session)
                    .bind(mode.map(QueueMode::as_str))
                    .execute(&mut *tx.conn)
                    .await?;
            }
            SessionChange::Footer(footer) => {
                sqlx::query("UPDATE session SET footer = $2 WHERE id = $1")
                    .bind(session)
                    .bind((footer != Footer::Off).then(|| footer.as_str()))
                    .execute(&mut *tx.conn)
                    .await?;
            }
            SessionChange::Stop => {
                events = stop(tx, session, &new.session, new.received_at).await?;
                let (running, more) = subagent::stop_all(tx, &new.session, new.received_at).await?;
                children = running;
                events.extend(more);
            }
        }
        let lanes = outbox::insert_pending(tx, parts, new.hold.as_ref()).await?.lanes;
        events.push(event::completed(tx, &new.session, &new.id, parts, None, new.received_at).await?);
        Ok(Stored::New {
            seq,
            collapsed: false,
            stops: known.running && change == SessionChange::Stop,
            steers: false,
            children,
            lanes,
            events,
        })
    }
}

/// An entry that waits or runs, to be stopped by itself.
pub(super) struct Open {
    pub seq: i64,
    pub id: InboxId,
    pub session: i64,
    pub key: SessionKey,
    pub running: bool,
    pub turn: Option<String>,
    pub bytes: i64,
}

impl Open {
    /// Settles it; `None` where its turn has begun and is told to stop. The session is to be counted again.
    pub(super) async fn stop(&self, tx: &mut Tx<'_>, now: i64) -> Result<Option<EventRow>, StoreError> {
        if let Some(turn) = &self.turn {
            // A turn that waits to go on is settled by the next claim, which must not wait for parking or back-off.
            sqlx::query(
                "UPDATE session SET stop_turn = $2,
                     hold_until = CASE WHEN $3 THEN hold_until ELSE 0 END,
                     parked_until = CASE WHEN $3 THEN parked_until END
                 WHERE id = $1",
            )
            .bind(self.session)
            .bind(turn)
            .bind(self.running)
            .execute(&mut *tx.conn)
            .await?;
            return Ok(None);
        }
        sqlx::query("UPDATE inbox SET state = 2, silent = 'stopped', settled_at = $2, suspect = 0 WHERE seq = $1")
            .bind(self.seq)
            .bind(now)
            .execute(&mut *tx.conn)
            .await?;
        tx.load.remove(self.bytes);
        Ok(Some(event::completed(tx, &self.key, &self.id, &[], Some("stopped"), now).await?))
    }
}

/// Tells the running turn of a session to stop and settles what waits in it.
pub(super) async fn stop(
    tx: &mut Tx<'_>,
    session: i64,
    key: &SessionKey,
    now: i64,
) -> Result<Vec<EventRow>, StoreError> {
    let waiting = sqlx::query(
        "UPDATE session SET stop_turn = coalesce(lease_turn, stop_turn), ready_seq = NULL, pending = 0, suspects = 0, hold_until = 0, not_before = 0,
                            parked_until = NULL
         WHERE id = $1;
         UPDATE inbox INDEXED BY inbox_open SET state = 2, silent = 'stopped', settled_at = $2, suspect = 0
         WHERE session = $1 AND state < 2 AND state = 0
         RETURNING id, bytes, turn, CASE WHEN errand IS NOT NULL THEN seq END",
    )
    .bind(session)
    .bind(now)
    .fetch_all(&mut *tx.conn)
    .await?;
    let mut events = Vec::with_capacity(waiting.len() + 1);
    for row in &waiting {
        tx.load.remove(get(row, 1)?);
        if let Some(turn) = get::<Option<&str>>(row, 2)? {
            super::turn::end(tx, turn, "stopped", None, now).await?;
        }
        let id = InboxId::from(get::<String>(row, 0)?);
        events.push(event::completed(tx, key, &id, &[], Some("stopped"), now).await?);
        if let Some(errand) = get(row, 3)? {
            subagent::stopped(tx, errand, now).await?;
        }
    }
    Ok(events)
}

/// A person's decision about a dead letter.
struct ResolveDead {
    id: InboxId,
    how: DeadResolution,
    now: i64,
}

#[async_trait]
impl Write for ResolveDead {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let row = match self.how {
            DeadResolution::Drop => {
                sqlx::query(
                    "UPDATE inbox SET state = 2, settled_at = $2, suspect = 0 WHERE id = $1 AND state = 3
                     RETURNING session, bytes",
                )
                .bind(self.id.as_str())
                .bind(self.now)
                .fetch_optional(&mut *tx.conn)
                .await?
            }
            DeadResolution::Retry => {
                sqlx::query(
                    "UPDATE inbox SET state = 0, attempts = 0, crashes = 0, suspect = 0, turn = NULL, hold = NULL,
                                      error = NULL, settled_at = NULL, not_before = 0, collapsed = 0
                     WHERE id = $1 AND state = 3 RETURNING session, bytes",
                )
                .bind(self.id.as_str())
                .fetch_optional(&mut *tx.conn)
                .await?
            }
        };
        let row = row.ok_or(StoreError::NotFound)?;
        if self.how == DeadResolution::Retry {
            tx.load.add(get(&row, 1)?);
            // What it reported when it was buried is told; what it comes back with now is told as well.
            sqlx::query(
                "UPDATE subagent SET ended_at = NULL WHERE session = $1
                     AND EXISTS (SELECT 1 FROM inbox WHERE id = $2 AND errand ->> '$.kind' = 'spawn');
                 UPDATE inbox SET platform_id = platform_id || ':' || seq
                 WHERE channel = (SELECT channel FROM inbox WHERE id = $2) AND platform_id = 'report:' || $2",
            )
            .bind(get::<i64>(&row, 0)?)
            .bind(self.id.as_str())
            .execute(&mut *tx.conn)
            .await?;
            sqlx::query(concat!(
                "UPDATE session SET pending = pending + 1, updated_at = $2, not_before = hold_until,
                     ready_seq = CASE WHEN lease_boot IS NULL THEN coalesce(ready_seq, ",
                session::next_ready!(),
                ") END
                 WHERE id = $1",
            ))
            .bind(get::<i64>(&row, 0)?)
            .bind(self.now)
            .execute(&mut *tx.conn)
            .await?;
        }
        Ok(())
    }
}
