//! The judge: reads what the other ends of the wire recorded and reports every break of the invariants I1–I7
//! (guarantees.md §1.5). Performs no IO.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{mark::Mark, model_server::Visit};

/// What was seen from outside.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// Messages that the gateway acknowledged.
    pub acked: BTreeSet<Mark>,
    /// Messages that the gateway knows when asked afterwards.
    pub stored: BTreeSet<Mark>,
    /// Turns at the model.
    pub visits: Vec<Visit>,
    /// Callbacks that were taken, in the order they came.
    pub callbacks: Vec<Taken>,
    /// How often each effect ran.
    pub effects: BTreeMap<Mark, u32>,
    /// How often the gateway was killed.
    pub kills: u32,
    /// How long after the last fault the last message had its answer; `None` when it never had.
    pub quiet_after: Option<Duration>,
    /// Messages that became dead letters.
    pub dead: BTreeSet<Mark>,
    /// Messages that were made to.
    pub poison: BTreeSet<Mark>,
}

/// A callback that was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// `webhook-id`.
    pub id: String,
    /// The messages that it answers.
    pub marks: Vec<Mark>,
    /// Its place in its answer.
    pub seq: u64,
    /// It is the last of its answer.
    pub last: bool,
}

/// What was broken, e.g. `I2`, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// `I1` to `I7`.
    pub invariant: &'static str,
    /// How.
    pub how: String,
}

/// The most time until everything is answered. I6.
const QUIET: Duration = Duration::from_secs(60);

/// Every break of an invariant.
pub fn check(record: &Record) -> Vec<Broken> {
    let mut all = Vec::new();
    let mut broken = |invariant, how| all.push(Broken { invariant, how });
    accepted_is_kept(record, &mut broken);
    starts_in_order(record, &mut broken);
    one_turn_a_session(record, &mut broken);
    effects_once(record, &mut broken);
    sends_once(record, &mut broken);
    match record.quiet_after {
        Some(time) if time <= QUIET => {}
        Some(time) => broken("I6", format!("quiet only {time:?} after the last fault")),
        None => broken("I6", "never quiet".to_owned()),
    }
    for mark in record.dead.symmetric_difference(&record.poison) {
        let how = if record.dead.contains(mark) { "became a dead letter" } else { "did not become a dead letter" };
        broken("I7", format!("{mark} {how}"));
    }
    all
}

/// # Panics
/// With every break, if there is one.
pub fn assert_unbroken(record: &Record) {
    let broken = check(record);
    let shown: Vec<String> = broken.iter().take(30).map(|one| format!("{}: {}", one.invariant, one.how)).collect();
    assert!(broken.is_empty(), "{} breaks:\n{}", broken.len(), shown.join("\n"));
}

/// I1: what was acknowledged is stored, and is answered or a dead letter.
fn accepted_is_kept(record: &Record, broken: &mut impl FnMut(&'static str, String)) {
    let answered: BTreeSet<Mark> = record.callbacks.iter().flat_map(|taken| taken.marks.iter().copied()).collect();
    for mark in &record.acked {
        if !record.stored.contains(mark) {
            broken("I1", format!("{mark} was acknowledged and is not stored"));
        }
        if !answered.contains(mark) && !record.dead.contains(mark) {
            broken("I1", format!("{mark} was acknowledged and never answered"));
        }
    }
}

/// I2: turns of a session start in the order of its messages, and answers come in that order.
fn starts_in_order(record: &Record, broken: &mut impl FnMut(&'static str, String)) {
    let mut newest: BTreeMap<u32, Mark> = BTreeMap::new();
    let mut started: BTreeSet<Mark> = BTreeSet::new();
    for mark in record.visits.iter().flat_map(|visit| &visit.marks) {
        if !started.insert(*mark) {
            continue;
        }
        if let Some(before) = newest.insert(mark.session, *mark)
            && before.n > mark.n
        {
            broken("I2", format!("the turn of {mark} began after that of {before}"));
        }
    }
    let mut newest: BTreeMap<u32, Mark> = BTreeMap::new();
    let mut ids: BTreeSet<&str> = BTreeSet::new();
    for taken in &record.callbacks {
        if !ids.insert(&taken.id) {
            continue;
        }
        for mark in &taken.marks {
            if let Some(before) = newest.insert(mark.session, *mark)
                && before.n > mark.n
            {
                broken("I2", format!("the answer to {mark} came after that to {before}"));
            }
        }
    }
}

/// I3: within one start of the gateway, a session is never at the model twice at a time.
fn one_turn_a_session(record: &Record, broken: &mut impl FnMut(&'static str, String)) {
    let mut lanes: BTreeMap<(u64, u32), Vec<&Visit>> = BTreeMap::new();
    for visit in &record.visits {
        lanes.entry((visit.boot, visit.session)).or_default().push(visit);
    }
    for visits in lanes.values_mut() {
        visits.sort_by_key(|visit| visit.began);
        for pair in visits.windows(2) {
            // One that was never answered lost its sender: stopped, or dead.
            if pair[0].answered.is_some_and(|answered| answered > pair[1].began) {
                broken("I3", format!("{:?} and {:?} ran at the same time", pair[0].marks, pair[1].marks));
            }
        }
    }
}

/// I4: an effect runs at most once.
fn effects_once(record: &Record, broken: &mut impl FnMut(&'static str, String)) {
    for (mark, count) in record.effects.iter().filter(|(_, count)| **count > 1) {
        broken("I4", format!("the effect of {mark} ran {count} times"));
    }
}

/// I5: a part is sent once, and again only for a kill in its window, and always under the same id.
fn sends_once(record: &Record, broken: &mut impl FnMut(&'static str, String)) {
    let mut sends: BTreeMap<&str, u32> = BTreeMap::new();
    let mut ids: BTreeMap<(Mark, u64), BTreeSet<&str>> = BTreeMap::new();
    let mut finals: BTreeMap<Mark, BTreeSet<&str>> = BTreeMap::new();
    for taken in &record.callbacks {
        *sends.entry(&taken.id).or_insert(0) += 1;
        for mark in &taken.marks {
            ids.entry((*mark, taken.seq)).or_default().insert(&taken.id);
            if taken.last {
                finals.entry(*mark).or_default().insert(&taken.id);
            }
        }
    }
    let extra: u32 = sends.values().map(|count| count - 1).sum();
    for (id, count) in sends.iter().filter(|(_, count)| **count > 1 + record.kills) {
        broken("I5", format!("the part {id} was sent {count} times at {} kills", record.kills));
    }
    // One kill has one moment: it cuts off at most one send of each lane.
    let lanes =
        record.callbacks.iter().flat_map(|taken| &taken.marks).map(|mark| mark.session).collect::<BTreeSet<_>>();
    let most = record.kills * u32::try_from(lanes.len()).unwrap_or(u32::MAX);
    if extra > most {
        broken("I5", format!("{extra} parts were sent again at {} kills", record.kills));
    }
    for ((mark, seq), ids) in ids.iter().filter(|(_, ids)| ids.len() > 1) {
        broken("I5", format!("part {seq} of the answer to {mark} came under {} ids", ids.len()));
    }
    for (mark, ids) in finals.iter().filter(|(_, ids)| ids.len() > 1) {
        broken("I5", format!("{mark} was answered {} times", ids.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(session: u32, n: u32) -> Mark {
        Mark { session, n }
    }

    fn visit(boot: u64, marks: &[Mark], began: u64, answered: Option<u64>) -> Visit {
        Visit { boot, session: marks[0].session, marks: marks.to_vec(), began, answered }
    }

    fn taken(id: &str, marks: &[Mark], seq: u64, last: bool) -> Taken {
        Taken { id: id.to_owned(), marks: marks.to_vec(), seq, last }
    }

    /// Two sessions; one message had to be run again after a kill, and its answer came twice under its id; two were
    /// answered together; one was poison.
    fn good() -> Record {
        let all = [mark(1, 1), mark(1, 2), mark(1, 3), mark(2, 1), mark(2, 2)];
        Record {
            acked: all.into(),
            stored: all.into(),
            visits: vec![
                visit(1, &[mark(1, 1)], 0, Some(2)),
                visit(1, &[mark(2, 1)], 1, None),
                visit(2, &[mark(2, 1)], 3, Some(4)),
                visit(2, &[mark(1, 2), mark(1, 3)], 5, Some(6)),
                visit(2, &[mark(2, 2)], 7, None),
            ],
            callbacks: vec![
                taken("a", &[mark(1, 1)], 1, false),
                taken("b", &[mark(1, 1)], 2, true),
                taken("c", &[mark(2, 1)], 1, true),
                taken("c", &[mark(2, 1)], 1, true),
                taken("d", &[mark(1, 2), mark(1, 3)], 1, true),
            ],
            effects: BTreeMap::from([(mark(1, 1), 1), (mark(2, 1), 0)]),
            kills: 1,
            quiet_after: Some(Duration::from_secs(3)),
            dead: BTreeSet::from([mark(2, 2)]),
            poison: BTreeSet::from([mark(2, 2)]),
        }
    }

    fn breaks(change: impl FnOnce(&mut Record)) -> BTreeSet<&'static str> {
        let mut record = good();
        change(&mut record);
        check(&record).into_iter().map(|broken| broken.invariant).collect()
    }

    #[test]
    fn a_good_run_breaks_nothing() {
        assert_eq!(check(&good()), []);
    }

    #[test]
    fn i1_bites_on_a_message_that_is_lost_or_never_answered() {
        assert_eq!(breaks(|record| assert!(record.stored.remove(&mark(1, 2)))), BTreeSet::from(["I1"]));
        assert_eq!(breaks(|record| drop(record.callbacks.pop())), BTreeSet::from(["I1"]));
    }

    #[test]
    fn i2_bites_on_turns_and_answers_out_of_order() {
        assert_eq!(breaks(|record| record.visits.swap(0, 3)), BTreeSet::from(["I2"]));
        let swapped = |record: &mut Record| {
            record.visits.clear();
            record.callbacks.rotate_right(1);
        };
        assert_eq!(breaks(swapped), BTreeSet::from(["I2"]));
    }

    #[test]
    fn i3_bites_on_two_turns_of_a_session_at_a_time() {
        assert_eq!(breaks(|record| record.visits[2].answered = Some(8)), BTreeSet::from(["I3"]));
    }

    #[test]
    fn i4_bites_on_an_effect_that_ran_twice() {
        assert_eq!(breaks(|record| assert!(record.effects.insert(mark(1, 1), 2).is_some())), BTreeSet::from(["I4"]));
    }

    #[test]
    fn i5_bites_on_repeats_without_a_kill_and_on_second_ids() {
        assert_eq!(breaks(|record| record.kills = 0), BTreeSet::from(["I5"]));
        let thrice = |record: &mut Record| record.callbacks.push(taken("d", &[mark(1, 2), mark(1, 3)], 1, true));
        assert_eq!(breaks(|record| (thrice(record), thrice(record)).0), BTreeSet::from(["I5"]));
        assert_eq!(breaks(|record| record.callbacks[3].id = "e".to_owned()), BTreeSet::from(["I5"]));
        let two_ends = |record: &mut Record| record.callbacks[0].last = true;
        assert_eq!(breaks(two_ends), BTreeSet::from(["I5"]));
    }

    #[test]
    fn i6_bites_on_a_gateway_that_does_not_come_to_rest() {
        assert_eq!(breaks(|record| record.quiet_after = None), BTreeSet::from(["I6"]));
        assert_eq!(breaks(|record| record.quiet_after = Some(Duration::from_secs(61))), BTreeSet::from(["I6"]));
    }

    #[test]
    fn i7_bites_on_a_dead_letter_too_many_or_too_few() {
        assert_eq!(breaks(|record| assert!(record.dead.insert(mark(1, 1)))), BTreeSet::from(["I7"]));
        let missing = |record: &mut Record| {
            record.dead.clear();
            record.callbacks.push(taken("f", &[mark(2, 2)], 1, true));
        };
        assert_eq!(breaks(missing), BTreeSet::from(["I7"]));
    }
}
