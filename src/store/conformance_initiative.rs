//! What every store must do with schedules, ticks, calls of programs and the chats they speak in.

use channel_api::{Address, Conversation, ConversationKind, InboxId, Sender};
use serde_json::Value;

use super::{
    ClaimAsk, ClaimKind, Finish, NewEntry, Store, StoreError, TurnOutcome,
    conformance::{boot, finish_of, new_entry, sqlite},
};
use crate::{
    chats::Place,
    errand::{Errand, ErrandKind, TickTerms},
    heartbeat::rows::{Called, Given, HookRow, Tick},
    policy::Role,
    schedule::{
        rows::{Added, Change, Fire, Fired, Next, ScheduleRow, State, Terms},
        when::When,
    },
};

fn place() -> Place {
    let channel = channel_api::ChannelId::new("test", "a");
    Place {
        conversation: Conversation { kind: ConversationKind::Direct, id: "1".into(), thread: None, title: None },
        address: Address { channel, lane: "1".into(), data: Value::Null },
        sender: Sender { id: "1".into(), name: None, is_bot: false },
    }
}

fn row(id: &str, when: When, slot: i64) -> ScheduleRow {
    ScheduleRow {
        id: id.to_owned(),
        creator: "test:a 1".to_owned(),
        agent: "main".to_owned(),
        title: "t".to_owned(),
        text: "do it".to_owned(),
        when,
        tz: "UTC".to_owned(),
        terms: Terms { place: place(), role: Role::Owner, isolated: false, model: None },
        slot: Some(slot),
        due_at: Some(slot),
        state: State::Active,
        failures: 0,
        runs: 0,
        entry: None,
        last_entry: None,
        last_at: None,
        error: None,
        created_at: 1,
    }
}

fn run(id: &str, slot: i64) -> NewEntry {
    let errand =
        Errand { kind: ErrandKind::Schedule, id: id.to_owned(), model: None, parent: None, depth: 1, tick: None };
    let entry = new_entry(&format!("schedule:{id}:{slot}"), "s", "1");
    NewEntry { id: InboxId::generate(), errand: Some(errand), ..entry }
}

fn fire(id: &str, slot: i64, next: Option<i64>) -> Fire {
    let next = next.map(|slot| Next { slot, due_at: slot });
    Fire { id: id.to_owned(), slot, next, entry: run(id, slot), now: slot }
}

async fn end(store: &dyn Store, outcome: TurnOutcome) {
    let ask = ClaimAsk { boot: boot("bt_1"), now: 2_000, max: 1, max_entries: 20, kind: ClaimKind::Ordinary };
    let claim = store.claim(&ask).await.expect("claims").pop().expect("a run waits");
    store.finish(Finish { outcome, ..finish_of(&claim, Vec::new()) }).await.expect("finishes");
}

#[tokio::test]
async fn a_slot_and_its_run_are_one() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let every = When::Every { every_ms: 100, anchor: 1_000 };
    assert_eq!(store.add_schedule(&row("a", every, 1_000), 2).await, Ok(Added::Added));
    assert_eq!(store.due_schedules(999, 5).await.map(|due| due.len()), Ok(0));
    assert_eq!(store.due_schedules(1_000, 5).await.map(|due| due.len()), Ok(1));
    let Ok(Fired::Queued(entry)) = store.fire_schedule(fire("a", 1_000, Some(1_100))).await else { panic!("fires") };
    // Somebody else looked at the same row, or the answer was lost: nothing happens.
    assert_eq!(store.fire_schedule(fire("a", 1_000, Some(1_100))).await, Ok(Fired::Gone));
    // The clock was set back and the slot comes again: the run is the one that was.
    let change = Change {
        most: 20,
        when: Some((When::At { at: 1_000 }, "UTC".into(), Next { slot: 1_000, due_at: 1_000 })),
        ..Change::default()
    };
    assert_eq!(store.edit_schedule("a", &change).await, Ok(Added::Added));
    assert_eq!(store.fire_schedule(fire("a", 1_000, Some(1_100))).await, Ok(Fired::Queued(entry.clone())));
    assert_eq!(store.load().await.map(|load| load.queued), Ok(1));
    let kept = store.schedule("a").await.expect("reads").expect("it is there");
    assert_eq!((kept.slot, kept.due_at, kept.entry, kept.runs), (Some(1_100), Some(1_100), Some(entry), 1));
    assert_eq!(store.fire_schedule(fire("nobody", 1, None)).await, Ok(Fired::Gone));
    assert_eq!(store.edit_schedule("nobody", &change).await, Err(StoreError::NotFound));
}

#[tokio::test]
async fn limits_are_counted_by_person_and_a_second_try_is_the_first() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let once = || When::At { at: 5 };
    assert_eq!(store.add_schedule(&row("a", once(), 5), 2).await, Ok(Added::Added));
    assert_eq!(store.add_schedule(&row("a", once(), 5), 2).await, Ok(Added::Added));
    assert_eq!(store.add_schedule(&row("b", once(), 5), 2).await, Ok(Added::Added));
    assert_eq!(store.add_schedule(&row("c", once(), 5), 2).await, Ok(Added::TooMany));
    let other = ScheduleRow { creator: "test:a 2".into(), ..row("d", once(), 5) };
    assert_eq!(store.add_schedule(&other, 2).await, Ok(Added::Added));
    assert_eq!(store.schedules(Some("test:a 1")).await.map(|rows| rows.len()), Ok(2));
    assert_eq!(store.schedules(None).await.map(|rows| rows.len()), Ok(3));
    assert_eq!(store.next_schedule().await, Ok(Some(5)));
    store.stop_schedule("a", "why").await.expect("stops");
    let stopped = store.schedule("a").await.expect("reads").expect("it stays");
    assert_eq!((stopped.state, stopped.due_at, stopped.error.as_deref()), (State::Stopped, None, Some("why")));
    // One that ended counts again when it is given a new time.
    let when = Some((When::At { at: 9 }, "UTC".into(), Next { slot: 9, due_at: 9 }));
    let change = |most| Change { most, when: when.clone(), ..Change::default() };
    assert_eq!(store.edit_schedule("a", &change(1)).await, Ok(Added::TooMany));
    assert_eq!(store.edit_schedule("b", &change(1)).await, Ok(Added::Added), "an active one is counted already");
    store.run_schedule("a", 7).await.expect("runs");
    assert_eq!(
        store.schedule("a").await.expect("reads").map(|row| (row.state, row.slot)),
        Some((State::Active, Some(7)))
    );
    assert_eq!(store.cancel_schedule("a").await, Ok(()));
    assert_eq!(store.cancel_schedule("a").await, Err(StoreError::NotFound));
}

#[tokio::test]
async fn what_was_done_once_goes_and_failures_put_the_next_run_off() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    store.add_schedule(&row("once", When::At { at: 1_000 }, 1_000), 9).await.expect("adds");
    store.fire_schedule(fire("once", 1_000, None)).await.expect("fires");
    let reaped = store.reap_schedules(1_500).await.expect("looks");
    assert!(reaped.running && reaped.failed.is_empty());
    assert_eq!(store.schedule("once").await.map(|row| row.map(|row| row.state)), Ok(Some(State::Done)));
    end(store, TurnOutcome::Replied).await;
    assert!(!store.reap_schedules(3_000).await.expect("looks").running);
    assert_eq!(store.schedule("once").await, Ok(None));

    store.add_schedule(&row("once", When::At { at: 1_001 }, 1_001), 9).await.expect("adds");
    store.fire_schedule(fire("once", 1_001, None)).await.expect("fires");
    end(store, TurnOutcome::Failed("no model".into())).await;
    let failed = store.reap_schedules(3_000).await.expect("looks").failed;
    assert_eq!(failed, [("once".to_owned(), "no model".to_owned())]);
    let kept = store.schedule("once").await.expect("reads").expect("it stays");
    assert_eq!((kept.state, kept.error.as_deref(), kept.due_at), (State::Failed, Some("no model"), None));

    let every = When::Every { every_ms: 100, anchor: 1_000 };
    store.add_schedule(&row("every", every, 1_000), 9).await.expect("adds");
    for (slot, failures, due_at) in [(1_000, 1, 33_000), (1_100, 2, 63_000), (1_200, 3, 303_000)] {
        store.fire_schedule(fire("every", slot, Some(slot + 100))).await.expect("fires");
        end(store, TurnOutcome::Failed("no model".into())).await;
        store.reap_schedules(3_000).await.expect("looks");
        let kept = store.schedule("every").await.expect("reads").expect("it stays");
        assert_eq!((kept.failures, kept.due_at, kept.state), (failures, Some(due_at), State::Active));
    }
    store.fire_schedule(fire("every", 1_300, Some(1_400))).await.expect("fires");
    end(store, TurnOutcome::Silent("no_reply".into())).await;
    store.reap_schedules(3_000).await.expect("looks");
    assert_eq!(store.schedule("every").await.expect("reads").map(|row| row.failures), Some(0));
}

#[tokio::test]
async fn a_slot_has_one_tick_and_a_tick_leaves_the_session_as_it_was() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let terms = TickTerms { light: true, ack_max_chars: 300, show_ok: false, show_alerts: true };
    let errand = Errand {
        kind: ErrandKind::Heartbeat,
        id: "main:1".into(),
        model: None,
        parent: None,
        depth: 1,
        tick: Some(terms),
    };
    let entry = |id: &str| NewEntry { errand: Some(errand.clone()), received_at: 1_900, ..new_entry(id, "s", "1") };
    store
        .accept(super::NewBatch { entries: vec![new_entry("m", "s", "1")], ..Default::default() })
        .await
        .expect("accepts");
    end(store, TurnOutcome::Replied).await;
    let before = store.session(&super::conformance::key("s")).await.expect("reads").expect("it is there");
    let tick = |slot, id: Option<&str>| Tick {
        agent: "main".into(),
        slot,
        result: "ran".into(),
        entry: id.map(entry),
        now: 1_900,
    };
    assert!(matches!(store.tick(tick(1, Some("t1"))).await, Ok(Given::Queued(_))));
    assert_eq!(store.tick(tick(1, Some("t1b"))).await, Ok(Given::Nothing));
    let ask = ClaimAsk { boot: boot("bt_1"), now: 2_000, max: 1, max_entries: 20, kind: ClaimKind::Ordinary };
    let claim = store.claim(&ask).await.expect("claims").pop().expect("the tick waits");
    let silent = TurnOutcome::Silent("heartbeat_ok".into());
    let finish = Finish { outcome: silent, traceless: true, now: 9_000, ..finish_of(&claim, Vec::new()) };
    store.finish(finish).await.expect("finishes");
    let after = store.session(&super::conformance::key("s")).await.expect("reads").expect("it is there");
    assert_eq!((before.updated_at, before.messages), (after.updated_at, after.messages));
    assert_eq!(store.tick(tick(2, None)).await, Ok(Given::Nothing));
    let last = store.last_tick("main").await.expect("reads").expect("it is there");
    assert_eq!((last.slot, last.entry.map(|id| id.to_string())), (2, Some("in_t1".to_owned())));
    let state = store.run_state(&InboxId::from("in_t1".to_owned())).await.expect("reads").expect("it is there");
    assert_eq!((state.state.as_str(), state.silent.as_deref()), ("done", Some("heartbeat_ok")));
}

#[tokio::test]
async fn a_call_is_kept_once_and_wakes_become_one_turn() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let call = |id: &str, key: Option<&str>, fingerprint: &str| HookRow {
        id: id.to_owned(),
        key: key.map(str::to_owned),
        fingerprint: fingerprint.to_owned(),
        kind: "wake".to_owned(),
        agent: "main".to_owned(),
        text: "x".to_owned(),
        due_at: 0,
        entry: None,
        created_at: 1_000,
    };
    assert_eq!(store.call(&call("a", Some("k"), "1"), None).await, Ok(Called::New));
    assert_eq!(store.call(&call("b", Some("k"), "1"), None).await, Ok(Called::Again("a".into())));
    assert_eq!(store.call(&call("c", Some("k"), "2"), None).await, Ok(Called::Conflict));
    assert_eq!(store.call(&call("d", None, "1"), None).await, Ok(Called::New));
    let later = HookRow { due_at: 5_000, ..call("e", None, "1") };
    assert_eq!(store.call(&later, None).await, Ok(Called::New));
    let waiting = store.waiting_wakes("main", 1_000, 20).await.expect("reads");
    let ids: Vec<String> = waiting.iter().map(|wake| wake.id.clone()).collect();
    assert_eq!(ids, ["a", "d"]);
    let Ok(Given::Queued(entry)) = store.wake(&ids, run("w", 1)).await else { panic!("queued") };
    assert_eq!(store.wake(&ids, run("w", 1)).await, Ok(Given::Queued(entry.clone())), "a second try is the first");
    assert_eq!(store.waiting_wakes("main", 1_000, 20).await.map(|wakes| wakes.len()), Ok(0));
    assert_eq!(store.hook("d").await.expect("reads").and_then(|row| row.entry), Some(entry));
    assert_eq!(store.waiting_wakes("main", 5_000, 20).await.map(|wakes| wakes.len()), Ok(1));
    for n in 1..100 {
        assert_eq!(store.call(&call(&format!("w{n}"), None, "1"), None).await, Ok(Called::New));
    }
    assert_eq!(store.call(&call("w100", None, "1"), None).await, Ok(Called::Full), "a busy session gathers no more");
    let other = HookRow { agent: "work".to_owned(), ..call("o", None, "1") };
    assert_eq!(store.call(&other, None).await, Ok(Called::New));
    assert_eq!(store.load().await.map(|load| load.queued), Ok(1));
}

#[tokio::test]
async fn the_owners_chats_are_known_newest_first_and_errands_are_nobodys() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let said = |id: &str, session: &str, role: Role, kind: ConversationKind, at: i64| {
        let mut entry = NewEntry { role, received_at: at, ..new_entry(id, session, "1") };
        entry.inbound.conversation.kind = kind;
        entry
    };
    let entries = vec![
        said("1", "old", Role::Owner, ConversationKind::Direct, 100_000),
        said("2", "new", Role::Owner, ConversationKind::Direct, 200_000),
        said("3", "group", Role::Owner, ConversationKind::Group, 300_000),
        said("4", "guest", Role::Member, ConversationKind::Direct, 300_000),
        NewEntry { received_at: 900_000, ..run("x", 1) },
    ];
    store.accept(super::NewBatch { entries, ..Default::default() }).await.expect("accepts");
    let chats = store.owner_chats("main", 9).await.expect("reads");
    let seen: Vec<(&str, i64)> = chats.iter().map(|chat| (chat.place.conversation.id.as_str(), chat.seen_at)).collect();
    assert_eq!(seen, [("new", 200_000), ("old", 100_000)]);
    // Whoever is no owner any more owns no chat.
    let entries = vec![said("5", "new", Role::Member, ConversationKind::Direct, 200_001)];
    store.accept(super::NewBatch { entries, ..Default::default() }).await.expect("accepts");
    assert_eq!(store.owner_chats("main", 9).await.map(|chats| chats.len()), Ok(1));
    let channel = chats[0].channel.clone();
    assert_eq!(
        store.chats_at(&channel, "guest", 1).await.expect("reads").pop().map(|chat| chat.role),
        Some(Role::Member)
    );
    assert_eq!(store.chats_at(&channel, "nobody", 1).await, Ok(Vec::new()));
}
