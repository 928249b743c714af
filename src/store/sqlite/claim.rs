//! Station 5: who is next. Taking a session with the entries of its next turn, and handing more to a running turn.

use async_trait::async_trait;
use channel_api::{InboxId, QueueMode, TurnId};
use serde_json::json as value;
use sqlx::{Row, sqlite::SqliteRow};

use super::{
    event, get,
    group::{self, heard_columns},
    inbox::{self, entry_columns},
    session, subagent, to_json, turn,
    writer::{Durability, Tx, Write},
};
use crate::{
    session::SessionKey,
    store::{Claim, ClaimAsk, ClaimKind, EventRow, InboxEntry, Lease, SessionChoice, StoreError},
};

/// The sessions that are due, first of the round first, each with what waits in it: one row an entry. Never looks at an
/// entry of a session that is not claimed. `LIMIT $2 + 0`: under a bare `LIMIT $2` SQLite prepares a statement again for
/// every new value bound.
pub(super) const ORDINARY: &str = "
    WITH ready AS MATERIALIZED (
        SELECT id, ready_seq FROM session INDEXED BY session_ready
        WHERE ready_seq IS NOT NULL AND suspects = 0 AND not_before <= $1
        ORDER BY ready_seq LIMIT $2 + 0)
    SELECT s.id, s.key, s.agent, s.generation, s.epoch, s.stop_turn,
           i.seq, i.id, i.sender, i.mode, i.not_before, i.collapsed, i.suspect, i.turn, i.received_at, i.bytes,
           s.model, s.footer
    FROM ready CROSS JOIN session s ON s.id = ready.id
         CROSS JOIN inbox i INDEXED BY inbox_open ON i.session = s.id AND i.state < 2 AND i.state = 0
    ORDER BY ready.ready_seq, s.id, i.seq";

/// Whether a crash was counted against an entry that waits in the session.
macro_rules! feared_session {
    () => {
        "EXISTS (SELECT 1 FROM inbox INDEXED BY inbox_open
                 WHERE session = session.id AND state < 2 AND state = 0 AND suspect AND crashes > 0)"
    };
}

/// The same for one session with suspects, of which none (`SUSPECT`) or some (`FEARED`) had a crash counted against it.
macro_rules! one_suspect {
    ($which:literal) => {
        concat!(
            "
    WITH ready AS MATERIALIZED (
        SELECT id, ready_seq FROM session INDEXED BY session_suspect
        WHERE ready_seq IS NOT NULL AND suspects > 0 AND not_before <= $1 AND ",
            $which,
            feared_session!(),
            "
        ORDER BY ready_seq LIMIT min($2, 1))
    SELECT s.id, s.key, s.agent, s.generation, s.epoch, s.stop_turn,
           i.seq, i.id, i.sender, i.mode, i.not_before, i.collapsed, i.suspect, i.turn, i.received_at, i.bytes,
           s.model, s.footer
    FROM ready CROSS JOIN session s ON s.id = ready.id
         CROSS JOIN inbox i INDEXED BY inbox_open ON i.session = s.id AND i.state < 2 AND i.state = 0
    ORDER BY ready.ready_seq, s.id, i.seq"
        )
    };
}
pub(super) const SUSPECT: &str = one_suspect!("NOT ");
pub(super) const FEARED: &str = one_suspect!("");

/// A waiting entry, as far as choosing needs it.
#[derive(Clone, Debug)]
struct Waiting {
    seq: i64,
    id: InboxId,
    sender: String,
    mode: QueueMode,
    not_before: i64,
    collapsed: bool,
    suspect: bool,
    turn: Option<TurnId>,
    received_at: i64,
    bytes: i64,
}

/// A session that is due.
struct Due {
    id: i64,
    key: SessionKey,
    agent: String,
    generation: i64,
    epoch: i64,
    stop_turn: Option<TurnId>,
    choice: SessionChoice,
    waiting: Vec<Waiting>,
}

/// What to do with what waits.
#[derive(Debug, Default)]
struct Choice {
    /// An interrupted turn that was told to stop: settled, not run.
    stopped: Vec<Waiting>,
    /// The entries of the turn to run; none when the head is not due.
    taken: Vec<Waiting>,
    /// They are those of an interrupted turn that goes on.
    resume: bool,
}

/// Chooses the entries of the next turn. Pure.
fn choose(waiting: Vec<Waiting>, stop_turn: Option<&TurnId>, now: i64, max_entries: usize) -> Choice {
    let mut choice = Choice::default();
    let interrupted = waiting.iter().find_map(|entry| entry.turn.clone());
    if interrupted.is_some() {
        let (of_turn, others): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|entry| entry.turn == interrupted);
        if interrupted.as_ref() == stop_turn {
            choice.stopped = of_turn;
            choice.taken = next_turn(others, now, max_entries);
        } else {
            choice.taken = of_turn;
            choice.resume = true;
        }
    } else {
        choice.taken = next_turn(waiting, now, max_entries);
    }
    choice
}

/// The head and what joins it: a run, so that nobody is overtaken.
fn next_turn(waiting: Vec<Waiting>, now: i64, max_entries: usize) -> Vec<Waiting> {
    let mut taken: Vec<Waiting> = Vec::new();
    let mut collapsing = false;
    for entry in waiting {
        let joins = match taken.first() {
            None => entry.not_before <= now,
            // What was stored over the cap belongs to the turn before it, unless that turn is nobody else's.
            Some(head) if entry.collapsed && !inbox::is_alone(&head.sender) => {
                collapsing = true;
                true
            }
            Some(head) => {
                !collapsing
                    && taken.len() < max_entries
                    && !entry.collapsed
                    && entry.sender == head.sender
                    && entry.not_before <= now
                    && entry.mode == head.mode
                    // A newer interrupt makes the older ones part of its turn: the newest is answered.
                    && matches!(head.mode, QueueMode::Collect | QueueMode::Interrupt)
            }
        };
        if !joins {
            break;
        }
        taken.push(entry);
    }
    taken
}

#[async_trait]
impl Write for ClaimAsk {
    type Answer = Vec<Claim>;

    /// A claim that a power cut forgets was never worked on: its work is gone with it.
    fn durability(&self) -> Durability {
        Durability::Soft
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Claim>, StoreError> {
        let sql = match self.kind {
            ClaimKind::Ordinary => ORDINARY,
            ClaimKind::Suspect => SUSPECT,
            ClaimKind::Feared => FEARED,
        };
        if self.kind != ClaimKind::Ordinary {
            // Those before it have shown that they do no harm at once: a crash counts against the newest alone, and
            // against none once there is no newer one.
            sqlx::query(
                "UPDATE session INDEXED BY session_leased SET lease_alone = 0 WHERE lease_boot = $1 AND lease_alone",
            )
            .bind(self.boot.as_str())
            .execute(&mut *tx.conn)
            .await?;
        }
        let rows = sqlx::query(sql).bind(self.now).bind(i64::from(self.max)).fetch_all(&mut *tx.conn).await?;
        let mut claims = Vec::new();
        for mut due in sessions(&rows)? {
            let max_entries = usize::try_from(self.max_entries.max(1)).unwrap_or(usize::MAX);
            let choice = choose(std::mem::take(&mut due.waiting), due.stop_turn.as_ref(), self.now, max_entries);
            let mut events = Vec::new();
            if !choice.stopped.is_empty() {
                events = settle_stopped(tx, &due, &choice.stopped, self.now).await?;
            }
            if choice.taken.is_empty() {
                // Only what was stopped was due.
                session::free(tx, due.id, 0, false).await?;
            } else {
                claims.push(self.take(tx, due, choice, events).await?);
            }
        }
        Ok(claims)
    }
}

/// Groups the rows of a claim by session.
fn sessions(rows: &[SqliteRow]) -> Result<Vec<Due>, StoreError> {
    let mut list: Vec<Due> = Vec::new();
    for row in rows {
        let id: i64 = get(row, 0)?;
        let waiting = Waiting {
            seq: get(row, 6)?,
            id: InboxId::from(get::<String>(row, 7)?),
            sender: get(row, 8)?,
            mode: inbox::mode(get(row, 9)?),
            not_before: get(row, 10)?,
            collapsed: get(row, 11)?,
            suspect: get(row, 12)?,
            turn: get::<Option<String>>(row, 13)?.map(TurnId::from),
            received_at: get(row, 14)?,
            bytes: get(row, 15)?,
        };
        match list.last_mut() {
            Some(due) if due.id == id => due.waiting.push(waiting),
            _ => list.push(Due {
                id,
                key: SessionKey::from(get::<String>(row, 1)?),
                agent: get(row, 2)?,
                generation: get(row, 3)?,
                epoch: get(row, 4)?,
                stop_turn: get::<Option<String>>(row, 5)?.map(TurnId::from),
                choice: session::choice(row, 16)?,
                waiting: vec![waiting],
            }),
        }
    }
    Ok(list)
}

/// Settles the entries of an interrupted turn that was told to stop before it could end by itself.
async fn settle_stopped(
    tx: &mut Tx<'_>,
    due: &Due,
    stopped: &[Waiting],
    now: i64,
) -> Result<Vec<EventRow>, StoreError> {
    let seqs: Vec<i64> = stopped.iter().map(|entry| entry.seq).collect();
    sqlx::query(
        "UPDATE inbox SET state = 2, silent = 'stopped', settled_at = $2, suspect = 0
         WHERE seq IN (SELECT value FROM json_each($1));
         UPDATE session SET pending = pending - $3, suspects = suspects - $4 WHERE id = $5",
    )
    .bind(to_json(&seqs)?)
    .bind(now)
    .bind(stopped.len() as i64)
    .bind(stopped.iter().filter(|entry| entry.suspect).count() as i64)
    .bind(due.id)
    .execute(&mut *tx.conn)
    .await?;
    let mut events = Vec::new();
    for entry in stopped {
        tx.load.remove(entry.bytes);
        events.push(event::completed(tx, &due.key, &entry.id, &[], Some("stopped"), now).await?);
        subagent::stopped(tx, entry.seq, now).await?;
    }
    if let Some(id) = stopped.first().and_then(|entry| entry.turn.as_ref()) {
        turn::end(tx, id.as_str(), "stopped", None, now).await?;
    }
    Ok(events)
}

impl ClaimAsk {
    /// Leases a session for the chosen entries.
    async fn take(
        &self,
        tx: &mut Tx<'_>,
        due: Due,
        choice: Choice,
        mut events: Vec<EventRow>,
    ) -> Result<Claim, StoreError> {
        let (Some(head), Some(newest)) = (choice.taken.first(), choice.taken.last()) else {
            return Err(StoreError::Unavailable("a claim without entries".into()));
        };
        let turn = head.turn.clone().filter(|_| choice.resume).unwrap_or_else(TurnId::generate);
        let suspects = choice.taken.iter().filter(|entry| entry.suspect).count();
        let ids: Vec<&str> = choice.taken.iter().map(|entry| entry.id.as_str()).collect();
        let seqs: Vec<i64> = choice.taken.iter().map(|entry| entry.seq).collect();
        let received_at = choice.taken.iter().map(|entry| entry.received_at).min().unwrap_or(self.now);
        let data = value!({ "turn": turn.as_str() });
        let mut rows = sqlx::query(concat!(
            "UPDATE session SET lease_boot = $1, lease_turn = $2, lease_sender = $3, lease_alone = $4,
                 epoch = $5, ready_seq = NULL, pending = pending - $6, suspects = suspects - $7, hold_until = 0, not_before = 0,
                 parked_until = NULL
             WHERE id = $8;
             INSERT INTO turn (id, session, state, entry, entries, received_at, started_at)
             VALUES ($2, $8, 'running', $9, $10, $11, $12)
             ON CONFLICT (id) DO UPDATE SET state = 'running', reason = NULL, ended_at = NULL;
             UPDATE heard SET turn = $2 WHERE session = $14 AND text IS NOT NULL AND (NOT $16 OR turn = $2) RETURNING ",
            heard_columns!(),
            ";
             UPDATE inbox SET state = 1, turn = $2, starts = starts + 1
             WHERE seq IN (SELECT value FROM json_each($13)) RETURNING ",
            entry_columns!(),
            ";
             INSERT INTO event (task, session, kind, data, at) VALUES ($9, $14, 'turn_started', $15, $12)
             RETURNING seq",
        ))
        .bind(self.boot.as_str())
        .bind(turn.as_str())
        .bind(&head.sender)
        .bind(self.kind != ClaimKind::Ordinary)
        .bind(due.epoch + 1)
        .bind(choice.taken.len() as i64)
        .bind(suspects as i64)
        .bind(due.id)
        .bind(newest.id.as_str())
        .bind(to_json(&ids)?)
        .bind(received_at)
        .bind(self.now)
        .bind(to_json(&seqs)?)
        .bind(due.key.as_str())
        .bind(to_json(&data)?)
        // A turn that goes on is told what it was told before, and nothing that was heard since.
        .bind(choice.resume)
        .fetch_all(&mut *tx.conn)
        .await?;
        let event = rows.pop().ok_or_else(|| StoreError::Unavailable("no event row".into()))?;
        let (heard, rows): (Vec<_>, Vec<_>) = rows.into_iter().partition(|row| row.len() == group::HEARD_COLUMNS);
        let mut backlog = heard.iter().map(group::heard).collect::<Result<Vec<_>, _>>()?;
        backlog.sort_by_key(|one| one.seq);
        let mut entries = rows.iter().map(inbox::entry).collect::<Result<Vec<InboxEntry>, _>>()?;
        entries.sort_by_key(|entry| entry.seq);
        events.push(EventRow {
            seq: get(&event, 0)?,
            task: newest.id.clone(),
            session: due.key.clone(),
            kind: "turn_started".to_owned(),
            data,
            at: self.now,
        });
        let (mut resume, mut shown) = (None, None);
        if choice.resume {
            resume = Some(turn::steps(&mut *tx.conn, &turn).await?);
            shown = turn::shown(&mut *tx.conn, &turn).await?;
        }
        Ok(Claim {
            lease: Lease { session: due.key, epoch: due.epoch + 1, boot: self.boot.clone(), turn },
            agent: due.agent,
            generation: due.generation,
            choice: due.choice,
            entries,
            backlog,
            resume,
            shown,
            suspect: suspects > 0,
            events,
        })
    }
}

/// Hands waiting `steer` entries to the running turn: those before the first that waits for a turn of its own (`/new`,
/// a caller that waits), for what was said after it belongs after it.
pub(super) struct Absorb {
    pub lease: Lease,
    pub now: i64,
}

#[async_trait]
impl Write for Absorb {
    type Answer = Vec<InboxEntry>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<InboxEntry>, StoreError> {
        let session = session::fence(tx, &self.lease).await?;
        let rows = sqlx::query(concat!(
            "UPDATE inbox SET state = 1, turn = $2, starts = starts + 1
             WHERE seq IN (SELECT i.seq FROM session s CROSS JOIN inbox i INDEXED BY inbox_open
                           ON i.session = s.id AND i.state < 2 AND i.state = 0
                           WHERE s.id = $1 AND i.mode = 'steer' AND i.sender = s.lease_sender AND i.turn IS NULL
                             AND i.not_before <= $3
                             AND NOT EXISTS (SELECT 1 FROM inbox w INDEXED BY inbox_open
                                             WHERE w.session = s.id AND w.state < 2 AND w.state = 0
                                               AND w.mode <> 'steer' AND w.seq < i.seq))
             RETURNING ",
            entry_columns!(),
        ))
        .bind(session)
        .bind(self.lease.turn.as_str())
        .bind(self.now)
        .fetch_all(&mut *tx.conn)
        .await?;
        let mut entries = rows.iter().map(inbox::entry).collect::<Result<Vec<InboxEntry>, _>>()?;
        entries.sort_by_key(|entry| entry.seq);
        if let Some(newest) = entries.last() {
            let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
            sqlx::query(
                "UPDATE session SET pending = pending - $2 WHERE id = $1;
                 UPDATE turn SET entry = $4,
                     entries = (SELECT json_group_array(value)
                                FROM (SELECT value FROM json_each(turn.entries)
                                      UNION ALL SELECT value FROM json_each($5)))
                 WHERE id = $3",
            )
            .bind(session)
            .bind(entries.len() as i64)
            .bind(self.lease.turn.as_str())
            .bind(newest.id.as_str())
            .bind(to_json(&ids)?)
            .execute(&mut *tx.conn)
            .await?;
        }
        Ok(entries)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(seq: i64, sender: &str, mode: QueueMode) -> Waiting {
        Waiting {
            seq,
            id: InboxId::from(format!("in_{seq}")),
            sender: sender.to_owned(),
            mode,
            not_before: 0,
            collapsed: false,
            suspect: false,
            turn: None,
            received_at: 0,
            bytes: 1,
        }
    }

    fn taken(waiting: Vec<Waiting>) -> Vec<i64> {
        choose(waiting, None, 100, 3).taken.iter().map(|entry| entry.seq).collect()
    }

    #[test]
    fn a_turn_takes_a_run_of_one_sender_and_nobody_is_overtaken() {
        use QueueMode::{Collect, Followup, Interrupt, Steer};
        let run = |list: &[(&str, QueueMode)]| {
            taken(list.iter().zip(1..).map(|((sender, mode), seq)| waiting(seq, sender, *mode)).collect())
        };
        assert_eq!(run(&[("a", Collect), ("a", Collect), ("b", Collect), ("a", Collect)]), [1, 2]);
        assert_eq!(run(&[("a", Collect), ("a", Collect), ("a", Collect), ("a", Collect)]), [1, 2, 3]);
        assert_eq!(run(&[("a", Collect), ("a", Followup), ("a", Collect)]), [1]);
        assert_eq!(run(&[("a", Followup), ("a", Followup)]), [1]);
        assert_eq!(run(&[("a", Steer), ("a", Steer)]), [1]);
        assert_eq!(run(&[("a", Interrupt), ("a", Interrupt), ("b", Interrupt)]), [1, 2]);
    }

    #[test]
    fn what_was_over_the_cap_joins_the_turn_before_it() {
        let mut list: Vec<_> = (1..=6).map(|seq| waiting(seq, "a", QueueMode::Collect)).collect();
        for over in &mut list[3..5] {
            over.collapsed = true;
            over.sender = "b".to_owned();
        }
        assert_eq!(taken(list), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn what_was_over_the_cap_joins_no_errand_and_no_command() {
        for alone in ["errand in_1", "command in_1"] {
            let mut list: Vec<_> = (1..=4).map(|seq| waiting(seq, "telegram:main 7", QueueMode::Followup)).collect();
            alone.clone_into(&mut list[0].sender);
            list[1..3].iter_mut().for_each(|over| over.collapsed = true);
            assert_eq!(taken(list.clone()), [1], "{alone}");
            assert_eq!(taken(list.split_off(1)), [2, 3], "they are a turn of their own");
        }
    }

    #[test]
    fn a_head_or_a_piece_that_is_not_due_waits() {
        let mut list = vec![waiting(1, "a", QueueMode::Collect), waiting(2, "a", QueueMode::Collect)];
        list[1].not_before = 101;
        assert_eq!(taken(list.clone()), [1]);
        list[0].not_before = 101;
        assert_eq!(taken(list), [0_i64; 0]);
    }

    #[test]
    fn an_interrupted_turn_goes_on_with_exactly_its_entries_unless_it_was_stopped() {
        let mut list: Vec<_> = (1..=3).map(|seq| waiting(seq, "a", QueueMode::Collect)).collect();
        list[1].turn = Some(TurnId::from("tn_1"));
        let resumed = choose(list.clone(), Some(&TurnId::from("tn_0")), 100, 3);
        assert!(resumed.resume && resumed.stopped.is_empty());
        assert_eq!(resumed.taken.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [2]);
        let stopped = choose(list, Some(&TurnId::from("tn_1")), 100, 3);
        assert!(!stopped.resume);
        assert_eq!(stopped.stopped.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [2]);
        assert_eq!(stopped.taken.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [1, 3]);
    }
}
