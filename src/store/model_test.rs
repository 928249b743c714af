//! Random sequences of what stations do, on a store and on a plain model of it in memory: both must say the same.
//!
//! The model knows nothing of rows: sessions are lists, the round is a queue of names, a crash moves what runs back.

use std::collections::VecDeque;

use channel_api::{InboxId, PartId, QueueMode, Receipt};
use proptest::prelude::*;

use super::{
    Action, Approve, Asked, Claim, ClaimAsk, ClaimKind, NewBatch, NextPart, OutboxPart, PartOutcome, Released,
    SessionChange, Store, StoreError, Stored,
    conformance::{
        HOUR, approve_of, ask, asks, backlog, boot, finish_of, ids, in_mode, key, lane_of, new_heard, new_part,
        release_of, sqlite, who,
    },
};
use crate::policy::Role;

/// What of a group is kept.
const KEEP: u32 = 3;

/// One thing that happens. Numbers choose among what is there at that moment.
#[derive(Clone, Debug)]
enum Op {
    Accept { session: usize, sender: usize, collect: bool },
    Hear { session: usize },
    Repeat { nth: usize },
    Stop { session: usize },
    Claim { kind: ClaimKind },
    Finish { nth: usize, parts: usize },
    Release { nth: usize, failed: bool },
    Crash,
    Next { session: usize },
    Settle { nth: usize, how: usize },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..3_usize, 0..2_usize, any::<bool>())
            .prop_map(|(session, sender, collect)| Op::Accept { session, sender, collect }),
        3 => (0..3_usize).prop_map(|session| Op::Hear { session }),
        1 => any::<usize>().prop_map(|nth| Op::Repeat { nth }),
        1 => (0..3_usize).prop_map(|session| Op::Stop { session }),
        5 => prop_oneof![
            Just(ClaimKind::Ordinary),
            Just(ClaimKind::Suspect),
            Just(ClaimKind::Feared)
        ]
        .prop_map(|kind| Op::Claim { kind }),
        4 => (any::<usize>(), 0..3_usize).prop_map(|(nth, parts)| Op::Finish { nth, parts }),
        2 => (any::<usize>(), any::<bool>()).prop_map(|(nth, failed)| Op::Release { nth, failed }),
        2 => Just(Op::Crash),
        3 => (0..3_usize).prop_map(|session| Op::Next { session }),
        3 => (any::<usize>(), 0..4_usize).prop_map(|(nth, how)| Op::Settle { nth, how }),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Waiting,
    Running,
    Done,
    Dead,
}

#[derive(Clone, Debug)]
struct Entry {
    id: String,
    sender: usize,
    collect: bool,
    state: State,
    turn: Option<usize>,
    suspect: bool,
    attempts: u32,
    crashes: u32,
}

#[derive(Clone, Debug, Default)]
struct Session {
    entries: Vec<Entry>,
    /// The running turn and whether it runs alone.
    lease: Option<(usize, bool)>,
    stopped: Option<usize>,
    /// What was heard, and the turn it was given to.
    heard: Vec<(String, Option<usize>)>,
    lane: Vec<(PartId, Place)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Pending,
    Sending,
    Uncertain,
    Settled,
}

impl Session {
    fn waiting(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.state == State::Waiting)
    }

    fn running(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut().filter(|entry| entry.state == State::Running)
    }

    fn first_open(&mut self) -> Option<&mut (PartId, Place)> {
        self.lane.iter_mut().find(|(_, place)| *place != Place::Settled)
    }
}

#[derive(Debug, Default)]
struct Model {
    sessions: [Session; 3],
    /// Sessions in which something waits and nobody works, in the order of their turn.
    round: VecDeque<usize>,
    /// Sessions in the order in which they were first heard of.
    known: Vec<usize>,
    turns: usize,
}

/// What a claim gives: the entries, whether they are suspect, whether an old turn goes on.
type Taken = (usize, Vec<String>, bool, bool, Vec<String>);

impl Model {
    fn know(&mut self, session: usize) {
        if !self.known.contains(&session) {
            self.known.push(session);
        }
    }

    fn accept(&mut self, session: usize, entry: Entry) {
        self.know(session);
        self.sessions[session].entries.push(entry);
        if self.sessions[session].lease.is_none() && !self.round.contains(&session) {
            self.round.push_back(session);
        }
    }

    fn stop(&mut self, session: usize) {
        self.know(session);
        let of = &mut self.sessions[session];
        for entry in &mut of.entries {
            if entry.state == State::Waiting {
                entry.state = State::Done;
            }
        }
        if let Some((turn, _)) = of.lease {
            of.stopped = Some(turn);
        }
        self.round.retain(|other| *other != session);
    }

    /// Puts a session without a lease where it belongs.
    fn free(&mut self, session: usize) {
        self.sessions[session].lease = None;
        self.round.retain(|other| *other != session);
        if self.sessions[session].waiting().next().is_some() {
            self.round.push_back(session);
        }
    }

    fn claim(&mut self, kind: ClaimKind) -> Option<Taken> {
        let alone = kind != ClaimKind::Ordinary;
        if alone {
            // A crash counts against the newest alone.
            self.sessions.iter_mut().filter_map(|of| of.lease.as_mut()).for_each(|lease| lease.1 = false);
        }
        let session = *self.round.iter().find(|session| {
            let mut suspects = self.sessions[**session].waiting().filter(|entry| entry.suspect).peekable();
            match kind {
                ClaimKind::Ordinary => suspects.peek().is_none(),
                ClaimKind::Suspect => suspects.peek().is_some() && suspects.all(|entry| entry.crashes == 0),
                ClaimKind::Feared => suspects.any(|entry| entry.crashes > 0),
            }
        })?;
        let of = &mut self.sessions[session];
        let interrupted = of.waiting().find_map(|entry| entry.turn);
        let mut resume = interrupted.is_some();
        if interrupted.is_some() && interrupted == of.stopped {
            for entry in &mut of.entries {
                if entry.state == State::Waiting && entry.turn == interrupted {
                    entry.state = State::Done;
                }
            }
            resume = false;
        }
        let chosen: Vec<String> = if resume {
            of.waiting().filter(|entry| entry.turn == interrupted).map(|entry| entry.id.clone()).collect()
        } else {
            let mut run = Vec::new();
            let mut head: Option<&Entry> = None;
            for entry in of.waiting() {
                let joins = head
                    .is_none_or(|head| head.collect && entry.collect && entry.sender == head.sender && run.len() < 3);
                if !joins {
                    break;
                }
                head = head.or(Some(entry));
                run.push(entry.id.clone());
            }
            run
        };
        if chosen.is_empty() {
            self.free(session);
            return None;
        }
        let turn = if let (true, Some(turn)) = (resume, interrupted) {
            turn
        } else {
            self.turns += 1;
            self.turns
        };
        let mut suspect = false;
        for entry in of.entries.iter_mut().filter(|entry| chosen.contains(&entry.id)) {
            suspect |= entry.suspect;
            entry.state = State::Running;
            entry.turn = Some(turn);
        }
        of.lease = Some((turn, alone));
        let told = of.heard.iter_mut().filter(|(_, given)| !resume || *given == Some(turn));
        let told = told.map(|one| {
            one.1 = Some(turn);
            one.0.clone()
        });
        let told = told.collect();
        self.round.retain(|other| *other != session);
        Some((session, chosen, suspect, resume, told))
    }

    /// True when it makes a dead letter.
    fn release(&mut self, session: usize, failed: bool) -> bool {
        let mut dead = false;
        let of = &mut self.sessions[session];
        for entry in of.running() {
            entry.attempts += u32::from(failed);
            if failed {
                (entry.suspect, entry.crashes) = (false, 0);
            }
            entry.state = if failed && entry.attempts >= 5 { State::Dead } else { State::Waiting };
            dead |= entry.state == State::Dead;
        }
        self.free(session);
        dead
    }

    /// How many were running, how many are dead now, how many sends were cut.
    fn crash(&mut self) -> (u64, u64, u64) {
        let (mut entries, mut dead, mut cut) = (0, 0, 0);
        for session in self.known.clone() {
            let of = &mut self.sessions[session];
            for (_, place) in &mut of.lane {
                if *place == Place::Sending {
                    *place = Place::Uncertain;
                    cut += 1;
                }
            }
            let Some((turn, alone)) = of.lease else { continue };
            let mut buried = 0;
            let mut left = 0;
            for entry in of.running() {
                entries += 1;
                entry.suspect = true;
                entry.crashes += u32::from(alone);
                entry.state = if entry.crashes >= 3 { State::Dead } else { State::Waiting };
                if entry.state == State::Dead { buried += 1 } else { left += 1 }
            }
            dead += buried;
            if buried > 0 {
                of.heard.retain(|(_, given)| *given != Some(turn));
            }
            if buried > 0 || (alone && left > 1 && of.stopped != Some(turn)) {
                for entry in &mut of.entries {
                    if entry.state == State::Waiting && entry.turn == Some(turn) {
                        entry.turn = None;
                        entry.collect = false;
                    }
                }
            }
            self.free(session);
        }
        (entries, dead, cut)
    }

    fn open(&self) -> u64 {
        let entries = self.sessions.iter().flat_map(|session| &session.entries);
        entries.filter(|entry| matches!(entry.state, State::Waiting | State::Running)).count() as u64
    }
}

/// A claim the run still holds, and whether it is good.
struct Held {
    claim: Claim,
    session: usize,
    good: bool,
}

/// Runs the operations on both.
async fn run(store: &dyn Store, ops: Vec<Op>) {
    let mut model = Model::default();
    let mut held: Vec<Held> = Vec::new();
    let mut sending: Vec<(OutboxPart, usize, bool)> = Vec::new();
    let mut stored: Vec<super::NewEntry> = Vec::new();
    let mut boots = 1;
    let mut parts_made = 0;
    for (n, op) in ops.into_iter().enumerate() {
        let id = n.to_string();
        match op {
            Op::Accept { session, sender, collect } => {
                let mode = if collect { QueueMode::Collect } else { QueueMode::Followup };
                let new = in_mode(mode, &id, &format!("s{session}"), &format!("u{sender}"));
                let batch = NewBatch { entries: vec![new.clone()], ..NewBatch::default() };
                let answer = store.accept(batch).await.expect("accepts");
                assert!(matches!(answer[0], Stored::New { .. }));
                stored.push(new);
                model.accept(
                    session,
                    Entry {
                        id,
                        sender,
                        collect,
                        state: State::Waiting,
                        turn: None,
                        suspect: false,
                        attempts: 0,
                        crashes: 0,
                    },
                );
            }
            Op::Hear { session } => {
                let heard = vec![new_heard(&id, &format!("s{session}"), KEEP)];
                let batch = NewBatch { heard, ..NewBatch::default() };
                assert_eq!(store.accept(batch).await, Ok(Vec::new()));
                let of = &mut model.sessions[session].heard;
                of.push((id, None));
                if of.iter().filter(|(_, given)| given.is_none()).count() > KEEP as usize {
                    let oldest = of.iter().position(|(_, given)| given.is_none()).expect("there are some");
                    of.remove(oldest);
                }
            }
            Op::Repeat { nth } if !stored.is_empty() => {
                let again = stored[nth % stored.len()].clone();
                let expected = vec![Stored::Duplicate(again.id.clone())];
                let batch = NewBatch { entries: vec![again], ..NewBatch::default() };
                assert_eq!(store.accept(batch).await, Ok(expected));
            }
            Op::Stop { session } => {
                let mut stop = in_mode(QueueMode::Followup, &id, &format!("s{session}"), "u0");
                stop.action = Action::Command { parts: Vec::new(), change: SessionChange::Stop };
                let answer =
                    store.accept(NewBatch { entries: vec![stop], ..NewBatch::default() }).await.expect("accepts");
                let running = model.sessions[session].lease.is_some();
                assert!(matches!(answer[0], Stored::New { stops, .. } if stops == running));
                model.stop(session);
            }
            Op::Claim { kind } => {
                let ask = ClaimAsk { boot: boot(&format!("bt_{boots}")), now: 2_000, max: 1, max_entries: 3, kind };
                let claims = store.claim(&ask).await.expect("claims");
                let expected = model.claim(kind);
                let found = claims.first().map(|claim| {
                    let session = claim.lease.session.as_str().trim_start_matches('s').parse().expect("a number");
                    let ids = ids(claim).into_iter().map(str::to_owned).collect();
                    let told = backlog(claim).into_iter().map(str::to_owned).collect();
                    (session, ids, claim.suspect, claim.resume.is_some(), told)
                });
                assert_eq!(found, expected);
                if let (Some(claim), Some((session, ..))) = (claims.into_iter().next(), expected) {
                    held.push(Held { claim, session, good: true });
                }
            }
            Op::Finish { nth, parts } if !held.is_empty() => {
                let one = held.swap_remove(nth % held.len());
                let answered = ids(&one.claim).pop().map(str::to_owned);
                let lane = format!("s{}", one.session);
                let parts: Vec<_> = (0..parts)
                    .map(|_| {
                        parts_made += 1;
                        new_part(&parts_made.to_string(), answered.as_deref(), &lane)
                    })
                    .collect();
                let made: Vec<PartId> = parts.iter().map(|part| part.id.clone()).collect();
                let finished = store.finish(finish_of(&one.claim, parts)).await;
                if !one.good {
                    assert_eq!(finished.err(), Some(StoreError::Fenced));
                    continue;
                }
                let of = &mut model.sessions[one.session];
                let turn = of.lease.map(|(turn, _)| turn);
                of.heard.retain(|(_, given)| given.is_none() || *given != turn);
                of.running().for_each(|entry| entry.state = State::Done);
                of.lane.extend(made.into_iter().map(|id| (id, Place::Pending)));
                model.free(one.session);
                let more = model.round.contains(&one.session);
                assert_eq!(finished.expect("finishes").more, more);
            }
            Op::Release { nth, failed } if !held.is_empty() => {
                let one = held.swap_remove(nth % held.len());
                let released = store.release(release_of(&one.claim, failed.then_some("away"))).await;
                if !one.good {
                    assert_eq!(released.err(), Some(StoreError::Fenced));
                    continue;
                }
                let dead = model.release(one.session, failed);
                assert_eq!(matches!(released.expect("releases"), Released::Dead { .. }), dead);
            }
            Op::Crash => {
                boots += 1;
                let found = store
                    .recover(&boot(&format!("bt_{boots}")), 3_000, crate::store::no_apology())
                    .await
                    .expect("recovers");
                assert_eq!((found.entries, found.dead, found.uncertain), model.crash());
                held.iter_mut().for_each(|one| one.good = false);
                sending.iter_mut().for_each(|one| one.2 = false);
            }
            Op::Next { session } => {
                let lane = lane_of(&format!("s{session}"));
                let next = store.next_part(&lane, &boot(&format!("bt_{boots}")), 2_000).await.expect("answers");
                match (model.sessions[session].first_open(), next) {
                    (None, NextPart::Empty) | (Some((_, Place::Sending)), NextPart::Blocked) => {}
                    (Some((id, place @ Place::Pending)), NextPart::Send(part))
                    | (Some((id, place @ Place::Uncertain)), NextPart::Uncertain(part)) => {
                        assert_eq!(*id, part.id);
                        *place = Place::Sending;
                        sending.push((*part, session, true));
                    }
                    (expected, found) => panic!("{expected:?}, not {found:?}"),
                }
            }
            Op::Settle { nth, how } if !sending.is_empty() => {
                let (part, session, good) = sending.swap_remove(nth % sending.len());
                let (what, place) = match how {
                    0 => (PartOutcome::Sent(Receipt::default()), Place::Settled),
                    1 => (PartOutcome::Failed("refused".to_owned()), Place::Settled),
                    2 => (PartOutcome::Uncertain("cut".to_owned()), Place::Uncertain),
                    _ => {
                        let retry = PartOutcome::Retry { not_before: 0, error: "reset".to_owned(), resend: false };
                        (retry, Place::Pending)
                    }
                };
                let settled = store.settle_part(&part.id, part.epoch, what, 3_000).await;
                if !good {
                    assert_eq!(settled, Err(StoreError::Fenced));
                    continue;
                }
                settled.expect("settles");
                let of = &mut model.sessions[session];
                of.lane.iter_mut().filter(|(id, _)| *id == part.id).for_each(|(_, at)| *at = place);
            }
            _ => {}
        }
        assert_eq!(store.load().await.expect("counts").queued, model.open());
    }
    for (n, of) in model.sessions.iter().enumerate() {
        let row = store.session(&key(&format!("s{n}"))).await.expect("reads");
        let pending = row.as_ref().map_or(0, |row| u64::from(row.pending));
        assert_eq!(pending, of.waiting().count() as u64);
        assert_eq!(row.is_some_and(|row| row.running), of.lease.is_some());
        for entry in &of.entries {
            let settled = store.settled(&InboxId::from(format!("in_{}", entry.id))).await.expect("reads");
            assert_eq!(settled.is_some(), matches!(entry.state, State::Done | State::Dead), "{entry:?}");
        }
    }
    let dead = model.sessions.iter().flat_map(|of| &of.entries).filter(|entry| entry.state == State::Dead).count();
    assert_eq!(store.dead_letters(None, 999).await.expect("reads").len(), dead);
}

/// One thing that happens to who may write: `sender` of four, on account `account` of two.
#[derive(Clone, Debug)]
enum AccessOp {
    Ask { account: usize, sender: usize },
    Approve { nth: usize, owner: bool },
    Reject { nth: usize },
    Revoke { account: usize, sender: usize },
    Block { account: Option<usize>, sender: usize },
    Unblock { account: Option<usize>, sender: usize },
    Later { minutes: i64 },
    Prune,
}

fn access_op() -> impl Strategy<Value = AccessOp> {
    let one = || (0..2_usize, 0..5_usize);
    let some = || (prop::option::of(0..2_usize), 0..5_usize);
    prop_oneof![
        8 => one().prop_map(|(account, sender)| AccessOp::Ask { account, sender }),
        4 => (any::<usize>(), any::<bool>()).prop_map(|(nth, owner)| AccessOp::Approve { nth, owner }),
        2 => any::<usize>().prop_map(|nth| AccessOp::Reject { nth }),
        2 => one().prop_map(|(account, sender)| AccessOp::Revoke { account, sender }),
        2 => some().prop_map(|(account, sender)| AccessOp::Block { account, sender }),
        2 => some().prop_map(|(account, sender)| AccessOp::Unblock { account, sender }),
        2 => (1..50_i64).prop_map(|minutes| AccessOp::Later { minutes }),
        1 => Just(AccessOp::Prune),
    ]
}

/// A request: account, sender, code, end, rejected.
type Request = (usize, usize, String, i64, bool);

#[derive(Debug, Default)]
struct AccessModel {
    requests: Vec<Request>,
    /// Account, sender, code, role.
    approved: Vec<(usize, usize, String, Role)>,
    /// `None` = every account.
    blocked: Vec<(Option<usize>, usize)>,
}

const ACCOUNTS: [&str; 2] = ["one", "two"];

fn scope(account: Option<usize>) -> String {
    account.map_or("test".to_owned(), |account| format!("test:{}", ACCOUNTS[account]))
}

async fn run_access(store: &dyn Store, ops: Vec<AccessOp>) {
    let mut model = AccessModel::default();
    let mut codes: Vec<String> = vec!["never".to_owned()];
    let mut now = 1_000;
    for (n, op) in ops.into_iter().enumerate() {
        match op {
            AccessOp::Ask { account, sender } => {
                let code = format!("C{n}");
                model.requests.retain(|one| one.0 != account || one.3 > now);
                let known = model.requests.iter().find(|one| (one.0, one.1) == (account, sender));
                let shut = model.blocked.iter().any(|one| one.1 == sender && one.0.is_none_or(|at| at == account));
                let waiting = model.requests.iter().filter(|one| one.0 == account && !one.4).count();
                let let_in = model.approved.iter().any(|one| (one.0, one.1) == (account, sender));
                let expected = match known {
                    _ if shut => Some(Asked::Silence),
                    Some(one) if one.4 => Some(Asked::Silence),
                    Some(_) => Some(Asked::Again),
                    None if let_in => Some(Asked::Again),
                    None if waiting >= 3 => Some(Asked::Silence),
                    None => None,
                };
                let found = ask(store, asks(ACCOUNTS[account], &format!("u{sender}"), &code, now)).await;
                match expected {
                    Some(expected) => assert_eq!(found, expected),
                    None => {
                        assert!(matches!(found, Asked::New { .. }), "{found:?}");
                        model.requests.push((account, sender, code.clone(), now + HOUR, false));
                        codes.push(code);
                    }
                }
            }
            AccessOp::Approve { nth, owner } => {
                let code = codes[nth % codes.len()].clone();
                let role = owner.then_some(Role::Owner);
                let found = store.approve(Approve { role, may_own: true, ..approve_of(&code, now) }).await;
                let good = model.requests.iter().position(|one| one.2 == code && one.3 > now && !one.4);
                let owned = model.approved.iter().any(|one| one.3 == Role::Owner);
                if let Some(at) = good {
                    let (account, sender, code, ..) = model.requests.remove(at);
                    let role = if owner || !owned { Role::Owner } else { Role::Member };
                    let found = found.expect("approves");
                    assert_eq!((found.row.role, found.first_owner, found.again), (role, !owned, false));
                    model.approved.retain(|one| (one.0, one.1) != (account, sender));
                    model.approved.push((account, sender, code, role));
                } else if let Some(one) = model.approved.iter().find(|one| one.2 == code) {
                    let found = found.expect("was approved");
                    assert_eq!((found.again, found.row.role), (true, one.3));
                } else {
                    assert_eq!(found, Err(StoreError::NotFound));
                }
            }
            AccessOp::Reject { nth } => {
                let code = codes[nth % codes.len()].clone();
                let found = store.reject(None, &code, now).await;
                match model.requests.iter_mut().find(|one| one.2 == code && one.3 > now && !one.4) {
                    Some(one) => {
                        one.4 = true;
                        assert_eq!(found.expect("rejects").code, code);
                    }
                    None => assert_eq!(found, Err(StoreError::NotFound)),
                }
            }
            AccessOp::Revoke { account, sender } => {
                let found = store.revoke(&who(&scope(Some(account)), &format!("u{sender}")), now).await;
                let before = model.approved.len();
                model.approved.retain(|one| (one.0, one.1) != (account, sender));
                assert_eq!(found.is_ok(), model.approved.len() < before);
            }
            AccessOp::Block { account, sender } => {
                store.block(&who(&scope(account), &format!("u{sender}")), now).await.expect("blocks");
                let hit = |at: usize, of: usize| of == sender && account.is_none_or(|account| account == at);
                model.approved.retain(|one| !hit(one.0, one.1));
                model.requests.retain(|one| !hit(one.0, one.1));
                if !model.blocked.contains(&(account, sender)) {
                    model.blocked.push((account, sender));
                }
            }
            AccessOp::Unblock { account, sender } => {
                let found = store.unblock(&who(&scope(account), &format!("u{sender}")), now).await;
                let before = model.blocked.len();
                model.blocked.retain(|one| *one != (account, sender));
                assert_eq!(found.is_ok(), model.blocked.len() < before);
            }
            AccessOp::Later { minutes } => now += minutes * 60_000,
            AccessOp::Prune => {
                store.prune(now, &Default::default()).await.expect("prunes");
                model.requests.retain(|one| one.3 > now);
            }
        }
        let rows = store.access(now).await.expect("reads");
        let waiting: Vec<&str> = rows.pairings.iter().map(|row| row.code.as_str()).collect();
        let expected: Vec<&str> =
            model.requests.iter().filter(|one| one.3 > now && !one.4).map(|one| one.2.as_str()).collect();
        assert_eq!(waiting, expected);
        let mut roles: Vec<_> = rows.approved.iter().map(|row| row.role).collect();
        let mut expected: Vec<_> = model.approved.iter().map(|one| one.3).collect();
        roles.sort();
        expected.sort();
        assert_eq!(roles, expected);
        assert_eq!(rows.blocked.len(), model.blocked.len());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_store_does_what_the_model_does(ops in prop::collection::vec(op(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let fixture = sqlite().await;
            run(&*fixture.store, ops).await;
            fixture.store.close().await;
            drop(fixture.keep);
        });
    }

    #[test]
    fn a_store_lets_in_and_shuts_out_whom_the_model_does(ops in prop::collection::vec(access_op(), 1..80)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let fixture = sqlite().await;
            run_access(&*fixture.store, ops).await;
            fixture.store.close().await;
            drop(fixture.keep);
        });
    }
}
