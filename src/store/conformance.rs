//! What every store must do: one suite, run on each implementation through a factory.

use std::{any::Any, sync::Arc};

use channel_api::{
    Address, Attachment, AttachmentKind, ChannelId, Conversation, ConversationKind, Cursor, Inbound, InboundKind,
    InboxId, Level, MediaRef, MediaSource, Part, PartId, Preview, QueueMode, Receipt, Reply, Sender, StepId, Trust,
    TurnId,
};
use serde_json::{Value, json};

use super::{
    AccessRows, Action, Amended, Amendment, Approve, Approved, Asked, BootId, Change, Claim, ClaimAsk, ClaimKind,
    DaySpent, DeadResolution, EventFilter, Finish, Finished, Footer, LaneKey, Lease, Load, MovedGroup, NewBatch,
    NewEntry, NewHeard, NewPairing, NewPart, NewSpend, NextPart, NextSuspect, OutboxPart, OverCap, PartFilter,
    PartOutcome, Recovered, Release, Released, Retention, SessionChange, SessionChoice, Shown, Spent, SpentAsk,
    SpentBy, SpentOf, SpentRow, StepKind, StepRecord, StepState, Store, StoreError, Stored, TurnOutcome, TurnsOf,
    Welcome, Who, Word,
};
use crate::{
    errand::{Errand, ErrandKind},
    lang::Lang,
    ledger::money::{Cost, Costs},
    model::{Message, ToolCall, Usage},
    plan::Plan,
    policy::Role,
    session::SessionKey,
    subagents::{How, Spawned, Subagent, handback},
    tools::Effect,
};

/// A fresh store and what must live as long as it.
pub struct Fixture {
    pub store: Arc<dyn Store>,
    pub keep: Box<dyn Any + Send>,
}

/// The suite for one implementation: `suite!(module, factory)` with `async fn factory() -> Fixture`.
macro_rules! suite {
    ($module:ident, $factory:path, [$($test:ident),* $(,)?]) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $test() {
                    let fixture = $factory().await;
                    super::$test(&*fixture.store).await;
                    fixture.store.close().await;
                    drop(fixture.keep);
                }
            )*
        }
    };
}

pub async fn sqlite() -> Fixture {
    let dir = tempfile::tempdir().expect("a folder");
    let store = super::sqlite::SqliteStore::open(&dir.path().join("crawfish.db")).await.expect("opens");
    Fixture { store: Arc::new(store), keep: Box::new(dir) }
}

suite!(
    on_sqlite,
    super::sqlite,
    [
        a_message_is_stored_once,
        a_batch_and_its_cursor_are_one_commit,
        turns_of_a_session_keep_their_order,
        sessions_take_turns,
        collect_gathers_one_sender,
        followup_steer_and_interrupt_take_one_by_one,
        a_session_mode_overrides_unless_fixed,
        pieces_wait_and_the_rest_shortens,
        a_collect_session_rests_after_a_turn,
        over_the_cap_is_refused,
        over_the_cap_is_collapsed,
        commands_are_settled_at_once,
        stop_settles_what_waits_and_tells_the_turn,
        stop_survives_a_crash,
        interrupt_tells_the_turn_and_the_newest_answers,
        steer_is_absorbed_by_its_sender,
        parking_holds_the_lane,
        a_stale_claim_writes_nothing,
        retryable_errors_bury_after_five,
        drains_count_as_nothing,
        suspects_run_alone_and_are_buried_after_three_crashes,
        a_crash_counts_against_the_newest_suspect_alone,
        a_suspect_that_fails_is_suspect_no_more,
        a_finished_step_clears_suspicion,
        a_group_of_suspects_is_split,
        a_group_with_an_effect_stays_together,
        outcomes_are_settled,
        first_parts_are_sending_at_once,
        held_parts_wait_for_their_caller,
        a_hold_of_another_boot_is_none,
        a_lane_sends_in_order,
        a_cut_send_is_looked_into,
        late_parts_expire,
        refused_parts_are_replaced_in_place,
        a_preview_is_kept_until_an_answer_takes_its_place,
        a_preview_without_an_answer_is_left_until_it_is_taken_away,
        history_is_whole_exchanges,
        the_window_of_the_history_moves_in_steps,
        events_resume,
        traces_show_everything,
        sessions_are_listed_and_searched,
        what_was_spent_is_counted_once_and_summed_by_what_is_asked,
        a_session_keeps_what_it_chose,
        dead_letters_are_retried_or_dropped,
        old_rows_are_pruned_in_small_bites,
        files_are_in_use_until_nothing_waits_for_them,
        channels_keep_their_map,
        what_a_group_said_is_told_to_exactly_one_turn,
        what_a_group_said_outlives_crashes_and_failures,
        what_a_group_said_is_bounded,
        a_session_that_begins_anew_has_heard_nothing,
        a_change_reaches_what_waits_and_nothing_else,
        a_change_that_comes_too_late_is_a_note_if_asked_for,
        what_was_deleted_while_it_waited_is_never_run,
        what_a_group_heard_follows_its_changes,
        a_group_that_moves_takes_everything_along,
        a_running_turn_moves_with_its_group,
        a_group_that_moves_onto_a_session_loses_nothing,
        the_gauge_follows,
        upkeep_answers,
        what_waits_for_a_time_moves_with_the_clock,
        the_sender_of_what_a_crash_buried_is_told,
        strangers_ask_once_and_three_of_a_channel_wait,
        a_request_its_words_and_the_cursor_are_one_commit,
        an_approval_is_good_once_and_says_so_again,
        the_first_approved_owns_when_nobody_does,
        a_rejected_request_is_silent_until_its_hour_is_over,
        revoking_ends_direct_chats_alone,
        blocking_ends_everything_of_one_sender,
        a_block_of_a_kind_holds_on_every_account,
        what_a_blocked_sender_left_to_go_on_is_settled,
        a_plan_is_kept_until_its_session_begins_anew,
        a_word_to_another_chat_is_stored_once_and_heard_there,
        a_result_is_given_back_with_the_end_of_its_turn_and_once,
        what_was_stopped_or_buried_reports_as_it_should,
        blocking_ends_the_errands_of_one_sender,
        who_asked_a_session_that_was_stopped_is_told,
        what_a_session_asked_ends_with_it,
        what_is_tried_again_reports_again,
    ]
);

// ---------------------------------------------------------------------------------------------------------------------
// The words the tests are written in.

pub fn boot(name: &str) -> BootId {
    BootId::from(name.to_owned())
}

pub fn key(name: &str) -> SessionKey {
    SessionKey::from(name.to_owned())
}

fn channel() -> ChannelId {
    ChannelId::new("test", "main")
}

pub fn lane_of(name: &str) -> LaneKey {
    LaneKey { channel: channel(), lane: name.to_owned() }
}

/// A message `id` of `sender` in `session`: mode followup, due at once, room for all.
pub fn new_entry(id: &str, session: &str, sender: &str) -> NewEntry {
    NewEntry {
        id: InboxId::from(format!("in_{id}")),
        session: key(session),
        agent: "main".to_owned(),
        role: Role::Member,
        inbound: Inbound {
            channel: channel(),
            platform_id: id.to_owned(),
            fingerprint: None,
            kind: InboundKind::Message,
            about: None,
            conversation: Conversation {
                kind: ConversationKind::Group,
                id: session.to_owned(),
                thread: None,
                title: None,
            },
            sender: Sender { id: sender.to_owned(), name: None, is_bot: false },
            text: format!("text of {id}"),
            attachments: Vec::new(),
            mentions_us: true,
            reply_to: None,
            at: None,
            address: Address { channel: channel(), lane: session.to_owned(), data: json!({ "chat": session }) },
            trust: Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        },
        errand: None,
        mode: QueueMode::Followup,
        mode_fixed: false,
        alone: false,
        not_before: 0,
        hold: None,
        received_at: 1_000,
        cap: 1_000,
        over_cap: OverCap::Refuse,
        action: Action::Turn,
    }
}

pub fn in_mode(mode: QueueMode, id: &str, session: &str, sender: &str) -> NewEntry {
    NewEntry { mode, ..new_entry(id, session, sender) }
}

fn command(id: &str, session: &str, change: SessionChange) -> NewEntry {
    let parts = vec![new_part(&format!("{id}-answer"), Some(id), session)];
    NewEntry { action: Action::Command { parts, change }, ..new_entry(id, session, "a") }
}

pub fn new_part(id: &str, entry: Option<&str>, lane: &str) -> NewPart {
    NewPart {
        id: PartId::from(format!("pt_{id}")),
        entry: entry.map(|entry| InboxId::from(format!("in_{entry}"))),
        in_reply_to: entry.map(str::to_owned),
        replaces: None,
        to: Address { channel: channel(), lane: lane.to_owned(), data: json!({ "chat": lane }) },
        seq: 1,
        last: true,
        part: Part { text: format!("part {id}"), body: json!({ "text": format!("part {id}") }) },
        reply: Some(Reply::message(format!("part {id}"))),
        level: Level::Rich,
        created_at: 1_000,
        expires_at: 1_000_000,
    }
}

async fn accept(store: &dyn Store, entries: Vec<NewEntry>) -> Vec<Stored> {
    store.accept(NewBatch { entries, ..NewBatch::default() }).await.expect("accepts")
}

async fn accept_all(store: &dyn Store, entries: Vec<NewEntry>) {
    for stored in accept(store, entries).await {
        assert!(matches!(stored, Stored::New { .. }), "{stored:?}");
    }
}

async fn claim_as(store: &dyn Store, who: &str, kind: ClaimKind, now: i64, max: u32) -> Vec<Claim> {
    store.claim(&ClaimAsk { boot: boot(who), now, max, max_entries: 20, kind }).await.expect("claims")
}

async fn claim_at(store: &dyn Store, now: i64) -> Option<Claim> {
    claim_as(store, "bt_1", ClaimKind::Ordinary, now, 1).await.pop()
}

async fn claim(store: &dyn Store) -> Claim {
    claim_at(store, 2_000).await.expect("a session is due")
}

async fn nothing_due(store: &dyn Store, now: i64) {
    assert!(claim_at(store, now).await.is_none(), "nothing is due");
}

async fn suspect(store: &dyn Store, who: &str) -> Option<Claim> {
    match claim_as(store, who, ClaimKind::Suspect, 2_000, 1).await.pop() {
        Some(claim) => Some(claim),
        None => claim_as(store, who, ClaimKind::Feared, 2_000, 1).await.pop(),
    }
}

pub fn ids(claim: &Claim) -> Vec<&str> {
    claim.entries.iter().map(|entry| entry.id.as_str().trim_start_matches("in_")).collect()
}

pub fn finish_of(claim: &Claim, parts: Vec<NewPart>) -> Finish {
    Finish {
        entries: claim.entries.iter().map(|entry| entry.id.clone()).collect(),
        parts,
        ..finish_of_lease(&claim.lease, "")
    }
}

/// The end of a turn of one message.
pub fn finish_of_lease(lease: &Lease, id: &str) -> Finish {
    Finish {
        lease: lease.clone(),
        entries: vec![InboxId::from(format!("in_{id}"))],
        outcome: TurnOutcome::Replied,
        transcript: Vec::new(),
        steps: Vec::new(),
        parts: Vec::new(),
        new_generation: false,
        summary: None,
        then: None,
        usage: Usage::default(),
        costs: Costs::default(),
        model: None,
        notes: Vec::new(),
        now: 2_500,
        debounce_ms: 0,
        claim_parts: false,
        handback: None,
        preview_left: false,
        traceless: false,
    }
}

async fn finish(store: &dyn Store, claim: &Claim) -> Finished {
    store.finish(finish_of(claim, Vec::new())).await.expect("finishes")
}

pub fn release_of(claim: &Claim, failure: Option<&str>) -> Release {
    Release {
        lease: claim.lease.clone(),
        entries: claim.entries.iter().map(|entry| entry.id.clone()).collect(),
        failure: failure.map(str::to_owned),
        not_before: 0,
        apology: Vec::new(),
        now: 2_500,
    }
}

pub fn step(id: &str, n: u32, kind: StepKind, state: StepState) -> StepRecord {
    StepRecord {
        id: StepId::from(format!("st_{id}")),
        n,
        round: 1,
        attempt: 1,
        kind,
        call_id: (kind == StepKind::Tool).then(|| format!("call_{id}")),
        name: "exec".to_owned(),
        effect: (kind == StepKind::Tool).then_some(Effect::Effect),
        state,
        args: json!({ "command": "date" }),
        result: if state == StepState::Started { Value::Null } else { json!("Monday") },
        started_at: 2_100,
        ms: 7,
        usage: Usage { input: 10, output: 2, cached: 5, ..Usage::default() },
        spent: None,
    }
}

async fn settled(store: &dyn Store, id: &str) -> Option<channel_api::Settled> {
    store.settled(&InboxId::from(format!("in_{id}"))).await.expect("reads")
}

async fn next(store: &dyn Store, lane: &str, now: i64) -> NextPart {
    store.next_part(&lane_of(lane), &boot("bt_1"), now).await.expect("answers")
}

async fn to_send(store: &dyn Store, lane: &str, now: i64) -> OutboxPart {
    match next(store, lane, now).await {
        NextPart::Send(part) => *part,
        other => panic!("a part to send, not {other:?}"),
    }
}

async fn sent(store: &dyn Store, part: &OutboxPart) {
    let receipt = Receipt { platform_id: Some("m1".to_owned()) };
    store.settle_part(&part.id, part.epoch, PartOutcome::Sent(receipt), 3_000).await.expect("settles");
}

/// Answers a message of its own session with these parts.
async fn answered(store: &dyn Store, id: &str, session: &str, parts: Vec<NewPart>) {
    accept_all(store, vec![new_entry(id, session, "a")]).await;
    let claim = claim(store).await;
    assert_eq!(ids(&claim), [id]);
    store.finish(finish_of(&claim, parts)).await.expect("finishes");
}

async fn recover(store: &dyn Store, who: &str) -> super::Recovered {
    store.recover(&boot(who), 3_000, crate::store::no_apology()).await.expect("recovers")
}

// ---------------------------------------------------------------------------------------------------------------------
// Stations 4 and 5.

async fn a_message_is_stored_once(store: &dyn Store) {
    let with = |id: &str, print: Option<&str>| {
        let mut entry = new_entry(id, "s", "a");
        entry.inbound.platform_id = "p1".to_owned();
        entry.inbound.fingerprint = print.map(str::to_owned);
        entry
    };
    let stored = accept(store, vec![with("1", Some("x")), with("2", Some("x")), with("3", Some("y"))]).await;
    let first = InboxId::from("in_1");
    assert!(
        matches!(&stored[0], Stored::New { collapsed: false, stops: false, steers: false, lanes, .. } if lanes.is_empty())
    );
    assert_eq!(stored[1..], [Stored::Duplicate(first.clone()), Stored::Conflict]);
    // Known for good, settled or not; a known message is not over any cap.
    let claim = claim(store).await;
    finish(store, &claim).await;
    let over = NewEntry { cap: 0, ..with("4", None) };
    assert_eq!(accept(store, vec![over]).await, [Stored::Duplicate(first.clone())]);
    assert_eq!(store.find(&channel(), "p1").await, Ok(Some(first)));
    assert_eq!(store.find(&channel(), "p2").await, Ok(None));
    nothing_due(store, 9_000).await;
    // The same id on another channel is another message.
    let mut other = with("5", None);
    other.inbound.channel = ChannelId::new("test", "other");
    accept_all(store, vec![other]).await;
}

async fn a_batch_and_its_cursor_are_one_commit(store: &dyn Store) {
    let cursor = |value: &str| Some((channel(), Cursor { key: "offset".to_owned(), value: value.to_owned() }));
    let batch = NewBatch {
        entries: vec![new_entry("1", "s", "a"), new_entry("2", "s", "a")],
        cursor: cursor("7"),
        ..NewBatch::default()
    };
    let stored = store.accept(batch).await.expect("accepts");
    let seqs: Vec<i64> = stored
        .iter()
        .map(|stored| match stored {
            Stored::New { seq, .. } => *seq,
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(seqs[0] < seqs[1]);
    assert_eq!(store.kv_get(&channel(), "offset").await, Ok(Some("7".to_owned())));
    store.accept(NewBatch { cursor: cursor("8"), ..NewBatch::default() }).await.expect("accepts");
    assert_eq!(store.kv_get(&channel(), "offset").await, Ok(Some("8".to_owned())));
}

async fn turns_of_a_session_keep_their_order(store: &dyn Store) {
    accept_all(store, ["1", "2", "3"].map(|id| new_entry(id, "s", "a")).into()).await;
    for id in ["1", "2", "3"] {
        let claim = claim(store).await;
        assert_eq!(ids(&claim), [id]);
        assert_eq!(claim.agent, "main");
        assert!(claim.resume.is_none() && !claim.suspect);
        assert_eq!(claim.entries[0].inbound, new_entry(id, "s", "a").inbound);
        assert_eq!(claim.entries[0].role, Role::Member);
        assert_eq!(claim.events.len(), 1);
        assert_eq!((claim.events[0].kind.as_str(), &claim.events[0].task), ("turn_started", &claim.entries[0].id));
        // One turn a session.
        nothing_due(store, 2_000).await;
        assert_eq!(finish(store, &claim).await.more, id != "3");
    }
    nothing_due(store, 2_000).await;
}

async fn sessions_take_turns(store: &dyn Store) {
    let noisy: Vec<_> = (0..5).map(|n| new_entry(&format!("n{n}"), "noisy", "a")).collect();
    accept_all(store, noisy).await;
    accept_all(store, vec![new_entry("q0", "quiet", "b"), new_entry("q1", "quiet", "b"), new_entry("l0", "late", "c")])
        .await;
    let mut order = Vec::new();
    while let Some(claim) = claim_at(store, 2_000).await {
        order.push(ids(&claim)[0].to_owned());
        finish(store, &claim).await;
    }
    assert_eq!(order, ["n0", "q0", "l0", "n1", "q1", "n2", "n3", "n4"]);
    // Several at once, each in its place.
    accept_all(store, vec![new_entry("a1", "noisy", "a"), new_entry("b1", "quiet", "b"), new_entry("c1", "late", "c")])
        .await;
    let claims = claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 2).await;
    assert_eq!(claims.iter().map(|claim| ids(claim)[0]).collect::<Vec<_>>(), ["a1", "b1"]);
}

async fn collect_gathers_one_sender(store: &dyn Store) {
    use QueueMode::{Collect, Followup};
    let entry = |mode, id, sender| in_mode(mode, id, "s", sender);
    accept_all(
        store,
        vec![
            entry(Collect, "1", "a"),
            entry(Collect, "2", "a"),
            entry(Collect, "3", "b"),
            entry(Collect, "4", "b"),
            entry(Followup, "5", "b"),
            entry(Collect, "6", "b"),
        ],
    )
    .await;
    for expected in [vec!["1", "2"], vec!["3", "4"], vec!["5"], vec!["6"]] {
        let claim = claim(store).await;
        assert_eq!(ids(&claim), expected);
        let finished = store
            .finish(finish_of(&claim, vec![new_part(expected[0], Some(expected[expected.len() - 1]), "s")]))
            .await
            .expect("finishes");
        assert_eq!(finished.events.len(), expected.len());
    }
    // The newest is answered, the others are merged into it.
    let merged = settled(store, "1").await.expect("settled");
    assert_eq!((merged.merged_into, merged.parts.len()), (Some(InboxId::from("in_2")), 0));
    let answered = settled(store, "2").await.expect("settled");
    assert_eq!((answered.merged_into, answered.parts.len()), (None, 1));
    // No more than asked for.
    accept_all(store, ["7", "8", "9"].map(|id| entry(Collect, id, "a")).into()).await;
    let ask = ClaimAsk { boot: boot("bt_1"), now: 2_000, max: 1, max_entries: 2, kind: ClaimKind::Ordinary };
    assert_eq!(ids(&store.claim(&ask).await.expect("claims")[0]), ["7", "8"]);
}

async fn followup_steer_and_interrupt_take_one_by_one(store: &dyn Store) {
    for mode in [QueueMode::Followup, QueueMode::Steer] {
        let name = mode.as_str();
        let (first, second) = (format!("{name}1"), format!("{name}2"));
        accept_all(store, vec![in_mode(mode, &first, name, "a"), in_mode(mode, &second, name, "a")]).await;
        for id in [&first, &second] {
            let claim = claim(store).await;
            assert_eq!(ids(&claim), [id.as_str()]);
            assert_eq!(claim.entries[0].mode, mode);
            finish(store, &claim).await;
        }
    }
}

async fn a_session_mode_overrides_unless_fixed(store: &dyn Store) {
    accept_all(store, vec![command("c", "s", SessionChange::Mode(Some(QueueMode::Collect)))]).await;
    assert_eq!(store.session(&key("s")).await.expect("reads").expect("is there").mode, Some(QueueMode::Collect));
    let fixed = NewEntry { mode_fixed: true, ..new_entry("3", "s", "a") };
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a"), fixed]).await;
    let claim = claim(store).await;
    assert_eq!(ids(&claim), ["1", "2"]);
    finish(store, &claim).await;
    let claim = claim_at(store, 2_000).await.expect("due");
    assert_eq!((ids(&claim), claim.entries[0].mode), (vec!["3"], QueueMode::Followup));
    finish(store, &claim).await;
    accept_all(store, vec![command("d", "s", SessionChange::Mode(None))]).await;
    assert_eq!(store.session(&key("s")).await.expect("reads").expect("is there").mode, None);
}

async fn pieces_wait_and_the_rest_shortens(store: &dyn Store) {
    let piece = |id: &str, received_at, not_before| NewEntry {
        received_at,
        not_before,
        ..in_mode(QueueMode::Collect, id, "s", "a")
    };
    accept_all(store, vec![piece("1", 1_000, 2_500)]).await;
    nothing_due(store, 2_499).await;
    assert_eq!(store.next_due(2_499).await, Ok(Some(2_500)));
    // Another sender does not end the wait of the first.
    accept_all(store, vec![NewEntry { received_at: 1_050, ..in_mode(QueueMode::Collect, "x", "s", "b") }]).await;
    nothing_due(store, 2_499).await;
    // More of it: all wait for the end together.
    accept_all(store, vec![piece("y", 1_060, 0)]).await;
    let claim = claim_at(store, 1_100).await.expect("the rest has come");
    assert_eq!(ids(&claim), ["1"]);
    finish(store, &claim).await;
    // An album: one turn sees it all.
    accept_all(store, vec![NewEntry { session: key("t"), ..piece("4", 1_000, 1_500) }]).await;
    accept_all(store, vec![NewEntry { session: key("t"), ..piece("5", 1_300, 1_800) }]).await;
    let mut others = claim_as(store, "bt_1", ClaimKind::Ordinary, 1_700, 9).await;
    assert_eq!(others.len(), 1, "only what waits of the first session");
    finish(store, &others.remove(0)).await;
    let album = claim_as(store, "bt_1", ClaimKind::Ordinary, 1_800, 9).await;
    assert!(album.iter().any(|claim| ids(claim) == ["4", "5"]), "{album:?}");
}

async fn a_collect_session_rests_after_a_turn(store: &dyn Store) {
    let entry = |id: &str, received_at| NewEntry { received_at, ..in_mode(QueueMode::Collect, id, "s", "a") };
    accept_all(store, vec![entry("1", 1_000)]).await;
    // To an idle session: at once.
    let first = claim_at(store, 1_000).await.expect("due");
    accept_all(store, vec![entry("2", 2_000), entry("3", 2_400)]).await;
    let finished =
        store.finish(Finish { debounce_ms: 1_000, ..finish_of(&first, Vec::new()) }).await.expect("finishes");
    assert!(finished.more);
    nothing_due(store, 3_399).await;
    assert_eq!(store.next_due(2_500).await, Ok(Some(3_400)));
    let both = claim_at(store, 3_400).await.expect("due");
    assert_eq!(ids(&both), ["2", "3"]);
    // Other modes do not rest.
    accept_all(store, vec![NewEntry { received_at: 3_400, ..new_entry("4", "s", "a") }]).await;
    store.finish(Finish { debounce_ms: 1_000, ..finish_of(&both, Vec::new()) }).await.expect("finishes");
    assert!(claim_at(store, 3_400).await.is_some());
    assert_eq!(store.next_due(3_400).await, Ok(None));
}

async fn over_the_cap_is_refused(store: &dyn Store) {
    let capped = |id: &str| NewEntry { cap: 2, ..new_entry(id, "s", "a") };
    accept_all(store, vec![capped("1"), capped("2")]).await;
    assert_eq!(accept(store, vec![capped("3")]).await, [Stored::Full]);
    assert_eq!(store.find(&channel(), "3").await, Ok(None), "nothing is stored, so it may come again");
    // What runs does not count as waiting.
    let _running = claim(store).await;
    accept_all(store, vec![capped("3")]).await;
}

async fn over_the_cap_is_collapsed(store: &dyn Store) {
    let capped = |id: &str, sender: &str| NewEntry {
        cap: 2,
        over_cap: OverCap::Collapse(vec![new_part(&format!("busy-{id}"), Some(id), "s")]),
        ..new_entry(id, "s", sender)
    };
    accept_all(store, vec![capped("1", "a"), capped("2", "a")]).await;
    let stored = accept(store, vec![capped("3", "b"), capped("4", "a")]).await;
    assert!(
        matches!(&stored[0], Stored::New { collapsed: true, lanes, .. } if *lanes == [lane_of("s")]),
        "the first one brings the notice: {stored:?}"
    );
    assert!(matches!(&stored[1], Stored::New { collapsed: true, lanes, .. } if lanes.is_empty()), "{stored:?}");
    let claim_1 = claim(store).await;
    assert_eq!(ids(&claim_1), ["1"]);
    finish(store, &claim_1).await;
    let claim_2 = claim(store).await;
    assert_eq!(ids(&claim_2), ["2", "3", "4"], "they join the turn of the entry before them");
    assert!(claim_2.entries[1].collapsed);
    finish(store, &claim_2).await;
    // At ten times the cap it ends.
    let many: Vec<_> = (0..25).map(|n| capped(&format!("m{n}"), "a")).collect();
    let stored = accept(store, many).await;
    assert_eq!(stored.iter().filter(|stored| **stored == Stored::Full).count(), 5);
}

async fn commands_are_settled_at_once(store: &dyn Store) {
    accept_all(store, vec![NewEntry { cap: 1, ..new_entry("1", "s", "a") }]).await;
    let status = NewEntry { cap: 1, ..command("c", "s", SessionChange::None) };
    let stored = accept(store, vec![status.clone()]).await;
    assert!(matches!(&stored[0], Stored::New { lanes, .. } if *lanes == [lane_of("s")]), "{stored:?}");
    assert_eq!(accept(store, vec![status]).await, [Stored::Duplicate(InboxId::from("in_c"))]);
    let answer = settled(store, "c").await.expect("settled");
    assert_eq!(answer.parts.len(), 1);
    assert_eq!(answer.parts[0].id, PartId::from("pt_c-answer"));
    assert_eq!(ids(&claim(store).await), ["1"], "the queue knows nothing of it");
    assert_eq!(to_send(store, "s", 2_000).await.part, new_part("c-answer", Some("c"), "s").part);
}

async fn stop_settles_what_waits_and_tells_the_turn(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a"), new_entry("x", "other", "a")]).await;
    let running = claim(store).await;
    assert_eq!(store.stop_asked(&running.lease).await, Ok(false));
    let stored = accept(store, vec![command("stop", "s", SessionChange::Stop)]).await;
    assert!(matches!(stored[0], Stored::New { stops: true, .. }), "{stored:?}");
    assert_eq!(store.stop_asked(&running.lease).await, Ok(true));
    assert_eq!(settled(store, "2").await.expect("settled").silent.as_deref(), Some("stopped"));
    assert_eq!(settled(store, "1").await, None);
    let end = Finish { outcome: TurnOutcome::Stopped, ..finish_of(&running, Vec::new()) };
    assert!(!store.finish(end).await.expect("finishes").more);
    assert_eq!(settled(store, "1").await.expect("settled").silent.as_deref(), Some("stopped"));
    assert_eq!(store.stop_asked(&running.lease).await, Err(StoreError::Fenced));
    // What comes later is not touched, nor are other sessions; without a turn there is nothing to stop.
    accept_all(store, vec![new_entry("3", "s", "a")]).await;
    let others = claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 9).await;
    assert_eq!(others.iter().map(|claim| ids(claim)[0]).collect::<Vec<_>>(), ["x", "3"]);
    assert_eq!(store.stop_asked(&others[1].lease).await, Ok(false));
    let stored = accept(store, vec![command("stop2", "idle", SessionChange::Stop)]).await;
    assert!(matches!(stored[0], Stored::New { stops: false, .. }), "{stored:?}");
}

async fn stop_survives_a_crash(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let running = claim(store).await;
    accept_all(store, vec![command("stop", "s", SessionChange::Stop), new_entry("2", "s", "a")]).await;
    recover(store, "bt_2").await;
    // The stopped turn is settled, not run again.
    let claim = suspect(store, "bt_2").await.expect("due");
    assert_eq!(ids(&claim), ["2"]);
    assert_eq!(settled(store, "1").await.expect("settled").silent.as_deref(), Some("stopped"));
    assert_eq!(store.finish(finish_of(&running, Vec::new())).await.err(), Some(StoreError::Fenced));
    let turns = store.turns(TurnsOf::Entry(InboxId::from("in_1")), 9).await.expect("reads");
    assert_eq!(turns.iter().map(|turn| turn.state.as_str()).collect::<Vec<_>>(), ["stopped"]);
    // A drain between the two as well, here with nothing behind it.
    accept_all(store, vec![new_entry("3", "t", "a")]).await;
    let running = claim_as(store, "bt_2", ClaimKind::Ordinary, 2_000, 1).await.remove(0);
    accept_all(store, vec![command("stop3", "t", SessionChange::Stop)]).await;
    store.release(release_of(&running, None)).await.expect("releases");
    nothing_due(store, 9_000).await;
    assert_eq!(settled(store, "3").await.expect("settled").silent.as_deref(), Some("stopped"));
    assert_eq!(store.load().await.expect("counts").queued, 1, "only the second message is open");
}

async fn interrupt_tells_the_turn_and_the_newest_answers(store: &dyn Store) {
    let entry = |id: &str, sender: &str| in_mode(QueueMode::Interrupt, id, "s", sender);
    accept_all(store, vec![entry("1", "a")]).await;
    let running = claim(store).await;
    let stored = accept(store, vec![entry("2", "a"), entry("3", "a")]).await;
    assert!(matches!(stored[0], Stored::New { stops: true, .. }), "{stored:?}");
    assert_eq!(store.stop_asked(&running.lease).await, Ok(true));
    store.finish(Finish { outcome: TurnOutcome::Stopped, ..finish_of(&running, Vec::new()) }).await.expect("finishes");
    let newest = claim(store).await;
    assert_eq!(ids(&newest), ["2", "3"]);
    assert_eq!(store.stop_asked(&newest.lease).await, Ok(false), "it is not stopped by itself");
    finish(store, &newest).await;
    assert_eq!(settled(store, "2").await.expect("settled").merged_into, Some(InboxId::from("in_3")));
    // A turn that waits for an approval is over too.
    accept_all(store, vec![entry("4", "a")]).await;
    let parked = claim(store).await;
    store.park(&parked.lease, 90_000).await.expect("parks");
    accept_all(store, vec![entry("5", "a")]).await;
    assert_eq!(ids(&claim(store).await), ["5"]);
    assert_eq!(settled(store, "4").await.expect("settled").silent.as_deref(), Some("stopped"));
}

async fn steer_is_absorbed_by_its_sender(store: &dyn Store) {
    let entry = |id: &str, sender: &str| in_mode(QueueMode::Steer, id, "s", sender);
    accept_all(store, vec![entry("1", "a")]).await;
    let running = claim(store).await;
    assert_eq!(store.absorb(&running.lease, 2_000).await, Ok(Vec::new()));
    let stored = accept(
        store,
        vec![entry("2", "b"), entry("3", "a"), entry("5", "a"), new_entry("4", "s", "a"), entry("6", "a")],
    )
    .await;
    let steers: Vec<bool> = stored.iter().map(|stored| matches!(stored, Stored::New { steers: true, .. })).collect();
    assert_eq!(steers, [false, true, true, false, true]);
    let absorbed = store.absorb(&running.lease, 2_000).await.expect("absorbs");
    assert_eq!(absorbed.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["in_3", "in_5"]);
    assert_eq!(store.absorb(&running.lease, 2_000).await, Ok(Vec::new()), "once, and 6 does not overtake 4");
    // A crash now keeps them with their turn.
    recover(store, "bt_2").await;
    assert_eq!(store.absorb(&running.lease, 2_000).await, Err(StoreError::Fenced));
    let again = suspect(store, "bt_2").await.expect("due");
    assert_eq!(ids(&again), ["1", "3", "5"]);
    assert_eq!(again.lease.turn, running.lease.turn);
    finish(store, &again).await;
    assert_eq!(settled(store, "3").await.expect("settled").merged_into, Some(InboxId::from("in_5")));
    for next in ["2", "4", "6"] {
        let claimed = claim(store).await;
        assert_eq!(ids(&claimed), [next]);
        finish(store, &claimed).await;
    }
}

async fn parking_holds_the_lane(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a")]).await;
    let first = claim(store).await;
    store.record(&first.lease, vec![step("1", 0, StepKind::Llm, StepState::Finished)], true).await.expect("records");
    store.park(&first.lease, 60_000).await.expect("parks");
    assert_eq!(store.park(&first.lease, 60_000).await, Err(StoreError::Fenced));
    let row = store.session(&key("s")).await.expect("reads").expect("is there");
    assert_eq!((row.parked_until, row.running, row.pending), (Some(60_000), false, 2));
    nothing_due(store, 59_999).await;
    assert_eq!(store.next_due(2_000).await, Ok(Some(60_000)));
    accept_all(store, vec![new_entry("3", "s", "a")]).await;
    nothing_due(store, 59_999).await;
    store.unpark(&key("s")).await.expect("unparks");
    let again = claim(store).await;
    assert_eq!((ids(&again), &again.lease.turn), (vec!["1"], &first.lease.turn));
    assert_eq!(again.resume, Some(vec![step("1", 0, StepKind::Llm, StepState::Finished)]));
    store.unpark(&key("s")).await.expect("does nothing");
    nothing_due(store, 90_000).await;
    // By itself, when its time has come.
    store.park(&again.lease, 60_000).await.expect("parks");
    assert_eq!(ids(&claim_at(store, 60_000).await.expect("due")), ["1"]);
}

async fn a_stale_claim_writes_nothing(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let ghost = claim(store).await;
    let found = recover(store, "bt_2").await;
    assert_eq!((found.entries, found.dead), (1, 0));
    let owner = suspect(store, "bt_2").await.expect("due");
    assert!(owner.lease.epoch > ghost.lease.epoch);
    let before = store.last_event().await.expect("reads");
    let parts = vec![new_part("p", Some("1"), "s")];
    assert_eq!(store.finish(finish_of(&ghost, parts)).await.err(), Some(StoreError::Fenced));
    let steps = vec![step("1", 0, StepKind::Tool, StepState::Started)];
    assert_eq!(store.record(&ghost.lease, steps.clone(), true).await, Err(StoreError::Fenced));
    assert_eq!(store.release(release_of(&ghost, Some("x"))).await.err(), Some(StoreError::Fenced));
    assert_eq!(store.park(&ghost.lease, 9).await, Err(StoreError::Fenced));
    assert_eq!(store.absorb(&ghost.lease, 9).await, Err(StoreError::Fenced));
    assert_eq!(store.stop_asked(&ghost.lease).await, Err(StoreError::Fenced));
    // Nor does one that is made up.
    let forged = Lease { boot: boot("bt_3"), ..owner.lease.clone() };
    assert_eq!(store.record(&forged, steps, true).await, Err(StoreError::Fenced));
    assert_eq!(store.last_event().await, Ok(before));
    assert_eq!(settled(store, "1").await, None);
    assert!(matches!(next(store, "s", 2_000).await, NextPart::Empty));
    assert!(store.trace(&owner.lease.turn).await.expect("reads").expect("is there").steps.is_empty());
    store.finish(finish_of(&owner, Vec::new())).await.expect("the owner finishes");
    assert_eq!(store.finish(finish_of(&owner, Vec::new())).await.err(), Some(StoreError::Fenced), "once");
}

async fn retryable_errors_bury_after_five(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a")]).await;
    for n in 0..5 {
        let claim = claim_at(store, 10_000 * (n + 1)).await.expect("due");
        assert_eq!(ids(&claim), ["1"]);
        assert_eq!(i64::from(claim.entries[0].attempts), n);
        let release = Release {
            not_before: 10_000 * (n + 2),
            apology: vec![new_part("sorry", Some("1"), "s")],
            ..release_of(&claim, Some("the model is away"))
        };
        match store.release(release).await.expect("releases") {
            Released::Queued => {
                assert!(n < 4);
                nothing_due(store, 10_000 * (n + 2) - 1).await;
            }
            Released::Dead { lanes, events } => {
                assert_eq!(n, 4);
                assert_eq!(lanes, [lane_of("s")]);
                assert_eq!(events.len(), 1);
                assert_eq!(events[0].kind, "task_failed");
                assert_eq!(events[0].data["error"], "the model is away");
            }
        }
    }
    let dead = settled(store, "1").await.expect("settled");
    assert_eq!((dead.failed.as_deref(), dead.parts.len()), (Some("the model is away"), 1));
    let letters = store.dead_letters(None, 9).await.expect("reads");
    assert_eq!(letters.len(), 1);
    assert_eq!((letters[0].attempts, letters[0].error.as_str()), (5, "the model is away"));
    assert_eq!(letters[0].inbound, new_entry("1", "s", "a").inbound);
    assert_eq!(ids(&claim(store).await), ["2"], "the lane moves on at once");
}

async fn drains_count_as_nothing(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let mut turn = None;
    for _ in 0..8 {
        let claim = claim(store).await;
        assert_eq!((ids(&claim), claim.entries[0].attempts, claim.suspect), (vec!["1"], 0, false));
        assert_eq!(claim.resume.is_some(), turn.is_some(), "it goes on where it was");
        assert!(turn.is_none_or(|turn| turn == claim.lease.turn));
        turn = Some(claim.lease.turn.clone());
        assert!(matches!(store.release(release_of(&claim, None)).await, Ok(Released::Queued)));
    }
}

async fn suspects_run_alone_and_are_buried_after_three_crashes(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a"), new_entry("x", "t", "a")]).await;
    let both = claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 9).await;
    assert_eq!(both.len(), 2);
    let found = recover(store, "bt_2").await;
    assert_eq!((found.entries, found.dead, found.uncertain), (2, 0, 0));
    nothing_due(store, 9_000).await;
    // The innocent runs alone and is answered; the other one kills three times.
    for n in 0..3 {
        let who = format!("bt_{}", n + 2);
        let mut claim = suspect(store, &who).await.expect("due");
        if ids(&claim) == ["x"] {
            assert!(claim.suspect);
            finish(store, &claim).await;
            claim = suspect(store, &who).await.expect("due");
        }
        assert_eq!(ids(&claim), ["1"]);
        assert!(claim.suspect && claim.resume.is_some());
        let found = recover(store, &format!("bt_{}", n + 3)).await;
        assert_eq!((found.entries, found.dead), (1, u64::from(n == 2)));
    }
    let dead = settled(store, "1").await.expect("settled");
    assert!(dead.failed.is_some());
    assert_eq!(store.dead_letters(None, 9).await.expect("reads")[0].crashes, 3);
    let filter = EventFilter { task: Some(InboxId::from("in_1")), session: None };
    let events = store.events(0, filter, 99).await.expect("reads");
    assert_eq!(events.last().map(|event| event.kind.as_str()), Some("task_failed"));
    let rest = claim_as(store, "bt_5", ClaimKind::Ordinary, 2_000, 9).await;
    assert_eq!(rest.iter().map(ids).collect::<Vec<_>>(), [["2"]]);
}

async fn a_crash_counts_against_the_newest_suspect_alone(store: &dyn Store) {
    let entries = ["1", "2", "3"].map(|id| new_entry(id, id, "a"));
    accept_all(store, entries.into()).await;
    assert_eq!(claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 9).await.len(), 3);
    assert_eq!(store.next_suspect().await.expect("answers"), NextSuspect::None);
    recover(store, "bt_2").await;
    assert_eq!(store.next_suspect().await.expect("answers"), NextSuspect::Due(0));
    let next = async |who: &str, kind| {
        let claim = claim_as(store, who, kind, 2_000, 9).await.pop();
        claim.map(|claim| ids(&claim)[0].to_owned())
    };
    // Two were begun; the crash counts against the second, which is feared from now on.
    assert_eq!(next("bt_2", ClaimKind::Suspect).await.as_deref(), Some("1"));
    assert_eq!(next("bt_2", ClaimKind::Suspect).await.as_deref(), Some("2"));
    recover(store, "bt_3").await;
    assert_eq!(next("bt_3", ClaimKind::Suspect).await.as_deref(), Some("3"));
    assert_eq!(next("bt_3", ClaimKind::Suspect).await.as_deref(), Some("1"));
    // None is left, so none runs alone any more: a crash counts against nobody.
    assert_eq!(next("bt_3", ClaimKind::Suspect).await, None);
    recover(store, "bt_4").await;
    assert!(next("bt_4", ClaimKind::Suspect).await.is_some() && next("bt_4", ClaimKind::Suspect).await.is_some());
    assert_eq!(next("bt_4", ClaimKind::Suspect).await, None);
    assert_eq!(next("bt_4", ClaimKind::Feared).await.as_deref(), Some("2"));
    assert_eq!(next("bt_4", ClaimKind::Feared).await, None);
    assert_eq!(store.dead_letters(None, 9).await.expect("reads").len(), 0);
}

async fn a_suspect_that_fails_is_suspect_no_more(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    claim(store).await;
    recover(store, "bt_2").await;
    let alone = suspect(store, "bt_2").await.expect("due");
    // A drain changes nothing, a failure shows that the process lives with it.
    store.release(release_of(&alone, None)).await.expect("releases");
    assert!(claim_as(store, "bt_2", ClaimKind::Ordinary, 9_000, 9).await.is_empty());
    let alone = suspect(store, "bt_2").await.expect("due");
    store.release(release_of(&alone, Some("away"))).await.expect("releases");
    assert_eq!(store.next_suspect().await.expect("answers"), NextSuspect::None);
    assert_eq!(claim_as(store, "bt_2", ClaimKind::Ordinary, 99_000, 9).await.len(), 1);
}

async fn a_finished_step_clears_suspicion(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let mut turn = claim(store).await.lease.turn;
    for n in 0..5 {
        recover(store, &format!("bt_{}", n + 2)).await;
        let claim = suspect(store, &format!("bt_{}", n + 2)).await.expect("due");
        assert_eq!(claim.lease.turn, turn);
        assert_eq!(claim.resume.as_ref().map(Vec::len), Some(n));
        turn = claim.lease.turn.clone();
        let done = step(&n.to_string(), n as u32, StepKind::Llm, StepState::Finished);
        store.record(&claim.lease, vec![done], true).await.expect("records");
    }
    assert_eq!(store.dead_letters(None, 9).await.expect("reads").len(), 0);
}

async fn a_group_of_suspects_is_split(store: &dyn Store) {
    let entry = |id: &str| in_mode(QueueMode::Collect, id, "s", "a");
    accept_all(store, vec![entry("1"), entry("2"), entry("3")]).await;
    assert_eq!(ids(&claim(store).await), ["1", "2", "3"]);
    recover(store, "bt_2").await;
    let together = suspect(store, "bt_2").await.expect("due");
    assert_eq!(ids(&together), ["1", "2", "3"]);
    recover(store, "bt_3").await;
    // Each in a turn of its own from now on, and still one at a time.
    let first = suspect(store, "bt_3").await.expect("due");
    assert_eq!(ids(&first), ["1"]);
    assert!(first.resume.is_none() && first.lease.turn != together.lease.turn);
    // The others wait behind it, which is not the same as that there are none.
    assert_eq!(store.next_suspect().await.expect("answers"), NextSuspect::Behind);
    finish(store, &first).await;
    assert_eq!(store.next_suspect().await.expect("answers"), NextSuspect::Due(0));
    let second = suspect(store, "bt_3").await.expect("due");
    assert_eq!(ids(&second), ["2"]);
    recover(store, "bt_4").await;
    assert_eq!(ids(&suspect(store, "bt_4").await.expect("due")), ["2"]);
    assert_eq!(recover(store, "bt_5").await.dead, 1);
    let last = suspect(store, "bt_5").await.expect("due");
    assert_eq!(ids(&last), ["3"]);
    finish(store, &last).await;
    let dead = store.dead_letters(None, 9).await.expect("reads");
    assert_eq!(dead.iter().map(|letter| letter.id.as_str()).collect::<Vec<_>>(), ["in_2"]);
}

async fn a_group_with_an_effect_stays_together(store: &dyn Store) {
    let entry = |id: &str| in_mode(QueueMode::Collect, id, "s", "a");
    accept_all(store, vec![entry("1"), entry("2")]).await;
    let running = claim(store).await;
    let started = step("1", 0, StepKind::Tool, StepState::Started);
    store.record(&running.lease, vec![started.clone()], true).await.expect("records");
    for who in ["bt_2", "bt_3"] {
        recover(store, who).await;
        let claim = suspect(store, who).await.expect("due");
        assert_eq!((ids(&claim), &claim.lease.turn), (vec!["1", "2"], &running.lease.turn));
        assert_eq!(claim.resume, Some(vec![started.clone()]));
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Stations 9 and 12.

/// The usage of `outcomes_are_settled` as watchers see it.
fn took() -> Value {
    json!({ "input": 100, "output": 10, "cached": 50, "estimated": true })
}

fn spent(sender: &str, day: &str, cost: &str) -> Spent {
    Spent {
        agent: "main".to_owned(),
        sender: sender.to_owned(),
        model: "main".to_owned(),
        purpose: "turn".to_owned(),
        day: day.to_owned(),
        cost: Cost::parse(cost),
    }
}

async fn what_was_spent_is_counted_once_and_summed_by_what_is_asked(store: &dyn Store) {
    let sums = async |by: SpentBy, of: SpentOf, since: Option<&str>, limit: u32| {
        let ask = SpentAsk { by, of, since: since.map(str::to_owned), until: None, limit };
        let rows = store.spent(&ask).await.expect("reads");
        let short = |row: SpentRow| (row.key, row.calls, row.usage.total(), row.costs.to_string());
        rows.into_iter().map(short).collect::<Vec<_>>()
    };
    assert_eq!(sums(SpentBy::Total, SpentOf::All, None, 9).await, []);
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let first = claim(store).await;
    let asked = StepRecord {
        spent: Some(spent("test:main a", "2026-11-29", "0.1 CNY")),
        usage: Usage { input: 10, output: 2, cached: 5, cache_write: 3, estimated: false },
        ..step("1", 0, StepKind::Llm, StepState::Finished)
    };
    store.record(&first.lease, vec![asked.clone()], false).await.expect("records");
    // Written again with the end of the turn: counted once.
    let again = StepRecord {
        spent: Some(spent("test:main a", "2026-11-30", "0.2 USD")),
        ..step("2", 1, StepKind::Llm, StepState::Finished)
    };
    let end = Finish { steps: vec![asked.clone(), again], ..finish_of(&first, Vec::new()) };
    store.finish(end).await.expect("finishes");
    let other = NewSpend {
        id: "sp_1".to_owned(),
        turn: None,
        session: Some(key("s")),
        spent: Spent { purpose: "transcribe".to_owned(), ..spent("test:main b", "2026-11-30", "") },
        usage: Usage { input: 100, ..Usage::default() },
        at: 2_200,
    };
    store.spend(other).await.expect("writes");
    let row = |key: &str, calls: u64, tokens: u64, costs: &str| (key.to_owned(), calls, tokens, costs.to_owned());
    let all = "0.10 CNY + 0.20 USD";
    assert_eq!(sums(SpentBy::Total, SpentOf::All, None, 9).await, [row("", 3, 124, all)]);
    let days = [row("2026-11-30", 2, 112, "0.20 USD"), row("2026-11-29", 1, 12, "0.10 CNY")];
    assert_eq!(sums(SpentBy::Day, SpentOf::All, None, 9).await, days);
    assert_eq!(sums(SpentBy::Day, SpentOf::All, Some("2026-11-30"), 9).await, days[..1]);
    let senders = [row("test:main b", 1, 100, ""), row("test:main a", 2, 24, all)];
    assert_eq!(sums(SpentBy::Sender, SpentOf::All, None, 9).await, senders);
    assert_eq!(sums(SpentBy::Sender, SpentOf::All, None, 1).await, senders[..1]);
    assert_eq!(sums(SpentBy::Session, SpentOf::Session(key("s")), None, 9).await, [row("s", 3, 124, all)]);
    assert_eq!(sums(SpentBy::Total, SpentOf::LastTurn(key("s")), None, 9).await, [row("", 2, 24, all)]);
    assert_eq!(
        sums(SpentBy::Purpose, SpentOf::Sender("test:main b".to_owned()), None, 9).await,
        [row("transcribe", 1, 100, "")]
    );
    assert_eq!(sums(SpentBy::Total, SpentOf::Session(key("nobody")), None, 9).await, []);
    let mut day = store.spent_on("2026-11-30").await.expect("reads");
    day.sort_by_key(|spent| spent.tokens);
    let of = |sender: &str, tokens, cost| DaySpent {
        session: Some(key("s")),
        sender: sender.to_owned(),
        tokens,
        cost: Cost::parse(cost),
    };
    assert_eq!(day, [of("test:main a", 12, "0.2 USD"), of("test:main b", 100, "")]);
    // What a step cost comes back with it, and outlives its body.
    while store.prune(100 * 86_400_000, &Retention::default()).await.expect("prunes") {}
    let trace = store.trace(&first.lease.turn).await.expect("reads").expect("is there");
    assert_eq!((&trace.steps[0].spent, trace.steps[0].usage), (&asked.spent, asked.usage));
    assert_eq!(trace.steps[0].result, Value::Null);
    assert_eq!(sums(SpentBy::Total, SpentOf::All, None, 9).await, [row("", 3, 124, all)]);
}

async fn a_session_keeps_what_it_chose(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let first = claim(store).await;
    assert_eq!(first.choice, SessionChoice::default());
    let end = Finish { model: Some(Some("spare".to_owned())), ..finish_of(&first, Vec::new()) };
    store.finish(end).await.expect("finishes");
    let change = SessionChange::Footer(Footer::Full);
    let command = NewEntry { action: Action::Command { parts: Vec::new(), change }, ..new_entry("2", "s", "a") };
    accept_all(store, vec![command, new_entry("3", "s", "a")]).await;
    let second = claim(store).await;
    assert_eq!(second.choice, SessionChoice { model: Some("spare".to_owned()), footer: Footer::Full });
    finish(store, &second).await;
    let row = store.session(&key("s")).await.expect("reads").expect("is there");
    assert_eq!(row.choice, second.choice, "an ordinary end changes nothing");
    accept_all(store, vec![new_entry("4", "s", "a")]).await;
    let third = claim(store).await;
    store.finish(Finish { model: Some(None), ..finish_of(&third, Vec::new()) }).await.expect("finishes");
    let row = store.session(&key("s")).await.expect("reads").expect("is there");
    assert_eq!(row.choice, SessionChoice { model: None, footer: Footer::Full });
}

async fn outcomes_are_settled(store: &dyn Store) {
    let outcomes = [
        ("1", TurnOutcome::Replied, "replied"),
        ("2", TurnOutcome::Silent("no_reply".to_owned()), "silent"),
        ("3", TurnOutcome::Failed("the model is away".to_owned()), "failed"),
        ("4", TurnOutcome::Stopped, "stopped"),
    ];
    for (id, outcome, state) in outcomes {
        accept_all(store, vec![new_entry(id, "s", "a")]).await;
        let claim = claim(store).await;
        let parts = match &outcome {
            TurnOutcome::Replied | TurnOutcome::Failed(_) => {
                let second = NewPart { seq: 2, reply: None, ..new_part(&format!("{id}b"), Some(id), "s") };
                vec![NewPart { last: false, ..new_part(&format!("{id}a"), Some(id), "s") }, second]
            }
            _ => Vec::new(),
        };
        let mut end = Finish { outcome: outcome.clone(), ..finish_of(&claim, parts) };
        end.costs.add(Cost::parse("0.5 CNY").expect("money"));
        end.usage = Usage { input: 100, output: 10, cached: 50, cache_write: 0, estimated: true };
        end.notes = vec!["a finding".to_owned()];
        let finished = store.finish(end).await.expect("finishes");
        assert_eq!(finished.lanes.len(), usize::from(matches!(state, "replied" | "failed")));
        assert!(!finished.held && finished.sending.is_empty());
        let event = &finished.events[0];
        let stored = store.events(event.seq - 1, EventFilter::default(), 9).await.expect("reads");
        assert_eq!(stored, finished.events);
        let settled = settled(store, id).await.expect("settled");
        match outcome {
            TurnOutcome::Replied => {
                assert_eq!(
                    (event.kind.as_str(), &event.data),
                    (
                        "task_complete",
                        &json!({"result": "part 1a\npart 1b", "usage": took(), "cost": { "CNY": "0.5" }})
                    )
                );
                assert_eq!(
                    settled.parts.iter().map(|part| (part.seq, part.last)).collect::<Vec<_>>(),
                    [(1, false), (2, true)]
                );
                assert_eq!((settled.silent, settled.failed), (None, None));
            }
            TurnOutcome::Silent(_) => {
                let end = json!({ "result": "", "silent": "no_reply", "usage": took(), "cost": { "CNY": "0.5" } });
                assert_eq!(event.data, end);
                assert_eq!((settled.silent.as_deref(), settled.failed), (Some("no_reply"), None));
            }
            TurnOutcome::Failed(_) => {
                assert_eq!(
                    (event.kind.as_str(), &event.data),
                    (
                        "task_failed",
                        &json!({ "error": "the model is away", "usage": took(), "cost": { "CNY": "0.5" } })
                    )
                );
                assert_eq!(settled.failed.as_deref(), Some("the model is away"));
                assert_eq!(settled.parts.len(), 2);
            }
            TurnOutcome::Stopped => {
                let end = json!({ "result": "", "silent": "stopped", "usage": took(), "cost": { "CNY": "0.5" } });
                assert_eq!(event.data, end);
            }
        }
        let turn = &store.turns(TurnsOf::Session(key("s")), 1).await.expect("reads")[0];
        assert_eq!((turn.state.as_str(), turn.id.clone()), (state, claim.lease.turn.clone()));
        assert_eq!((turn.usage.input, turn.notes.len(), turn.ended_at), (100, 1, Some(2_500)));
    }
    let row = store.session(&key("s")).await.expect("reads").expect("is there");
    assert_eq!(row.usage, Usage { input: 400, output: 40, cached: 200, cache_write: 0, estimated: true });
    assert_eq!(settled(store, "nobody").await, None);
}

async fn first_parts_are_sending_at_once(store: &dyn Store) {
    let parts = |id: &str, lane: &str| {
        vec![new_part(&format!("{id}a"), Some(id), lane), new_part(&format!("{id}b"), Some(id), lane)]
    };
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a")]).await;
    let first = claim(store).await;
    let mut end = finish_of(&first, parts("1", "s"));
    end.parts.push(new_part("elsewhere", None, "other"));
    end.claim_parts = true;
    let finished = store.finish(end).await.expect("finishes");
    let sending: Vec<_> = finished.sending.iter().map(|part| part.id.as_str()).collect();
    assert_eq!(sending, ["pt_1a", "pt_elsewhere"]);
    assert_eq!(finished.lanes, [lane_of("s")], "the rest is pending");
    assert_eq!(finished.sending[0].key.in_reply_to.as_deref(), Some("1"));
    assert!(matches!(next(store, "s", 2_000).await, NextPart::Blocked));
    // The lane is busy now: nothing jumps the queue.
    let second = claim(store).await;
    let finished =
        store.finish(Finish { claim_parts: true, ..finish_of(&second, parts("2", "s")) }).await.expect("finishes");
    assert!(finished.sending.is_empty());
    sent(store, &OutboxPart { ..take_sending(store, "pt_1a").await }).await;
    assert_eq!(to_send(store, "s", 2_000).await.id, PartId::from("pt_1b"));
}

/// A part that `finish` handed out as sending, as its sender holds it.
fn shown(id: &str) -> Shown {
    let to = Address { channel: channel(), lane: "s".to_owned(), data: json!({ "chat": "s" }) };
    Shown { to, preview: Preview { id: id.to_owned(), replaced: true } }
}

async fn left(store: &dyn Store) -> Vec<(TurnId, Shown)> {
    store.left_previews(9).await.expect("reads")
}

async fn a_preview_is_kept_until_an_answer_takes_its_place(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let first = claim(store).await;
    assert_eq!(first.shown, None);
    store.keep_preview(&first.lease, &shown("m7")).await.expect("keeps");
    // A failure that may pass, and a crash: the same turn goes on with the same preview.
    store.release(release_of(&first, Some("away"))).await.expect("releases");
    let second = claim_as(store, "bt_1", ClaimKind::Ordinary, 99_000, 1).await.pop().expect("due again");
    assert_eq!((&second.lease.turn, &second.shown), (&first.lease.turn, &Some(shown("m7"))));
    assert_eq!(store.keep_preview(&first.lease, &shown("m8")).await, Err(StoreError::Fenced));
    recover(store, "bt_2").await;
    let third = suspect(store, "bt_2").await.expect("it goes on");
    assert_eq!(third.shown, Some(shown("m7")));
    assert_eq!(left(store).await, [], "a turn that goes on needs it");
    let part = NewPart { replaces: Some("m7".to_owned()), ..new_part("1", Some("1"), "s") };
    let second = NewPart { seq: 2, reply: None, ..new_part("2", Some("1"), "s") };
    let finish = Finish { claim_parts: true, ..finish_of(&third, vec![part, second]) };
    let finished = store.finish(finish).await.expect("finishes");
    assert_eq!(finished.sending[0].key.replaces.as_deref(), Some("m7"));
    assert_eq!(left(store).await, []);
    // After another crash it is still known what the part replaces, and nothing else does.
    recover(store, "bt_3").await;
    let NextPart::Uncertain(part) = next(store, "s", 3_000).await else { panic!("it was cut off") };
    assert_eq!(part.key.replaces.as_deref(), Some("m7"));
    sent(store, &part).await;
    assert_eq!(to_send(store, "s", 3_000).await.key.replaces, None);
    // The turn shows nothing any more.
    store.forget_preview(&third.lease.turn).await.expect("harmless");
}

async fn a_preview_without_an_answer_is_left_until_it_is_taken_away(store: &dyn Store) {
    // Silence.
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let silent = claim(store).await;
    store.keep_preview(&silent.lease, &shown("m1")).await.expect("keeps");
    let outcome = TurnOutcome::Silent("no_reply".to_owned());
    let finish = Finish { outcome, preview_left: true, ..finish_of(&silent, Vec::new()) };
    store.finish(finish).await.expect("finishes");
    assert_eq!(left(store).await, [(silent.lease.turn.clone(), shown("m1"))]);
    // A stop while the turn waits to go on.
    accept_all(store, vec![new_entry("2", "s", "a")]).await;
    let stopped = claim(store).await;
    store.keep_preview(&stopped.lease, &shown("m2")).await.expect("keeps");
    store.release(release_of(&stopped, None)).await.expect("releases");
    assert_eq!(left(store).await.len(), 1);
    accept_all(store, vec![command("3", "s", SessionChange::Stop)]).await;
    let both = left(store).await;
    assert_eq!(both.iter().map(|(_, shown)| shown.preview.id.as_str()).collect::<Vec<_>>(), ["m1", "m2"]);
    // A dead letter whose apology takes its place leaves nothing.
    accept_all(store, vec![new_entry("4", "s", "a")]).await;
    for n in 0..5 {
        let claim = claim_at(store, 1_000_000 + n).await.expect("due");
        if n == 0 {
            store.keep_preview(&claim.lease, &shown("m4")).await.expect("keeps");
        }
        let apology = vec![NewPart { replaces: Some("m4".to_owned()), ..new_part("sorry", Some("4"), "s") }];
        let release = Release { apology, ..release_of(&claim, Some("away")) };
        store.release(release).await.expect("releases");
    }
    assert_eq!(left(store).await.len(), 2);
    for (turn, _) in both {
        store.forget_preview(&turn).await.expect("forgets");
    }
    assert_eq!(left(store).await, []);
}

async fn take_sending(store: &dyn Store, id: &str) -> OutboxPart {
    let rows = store.parts(PartFilter { state: Some("sending".to_owned()), entry: None }, 9).await.expect("reads");
    assert!(rows.iter().any(|row| row.id.as_str() == id), "{rows:?}");
    OutboxPart {
        id: PartId::from(id),
        epoch: 1,
        to: Address { channel: channel(), lane: "s".to_owned(), data: Value::Null },
        key: channel_api::SendKey {
            part: PartId::from(id),
            seq: 1,
            last: true,
            in_reply_to: None,
            created_at: 0,
            resend: false,
            replaces: None,
        },
        part: Part { text: String::new(), body: Value::Null },
        level: Level::Rich,
        attempts: 0,
        first_try_at: None,
        expires_at: 0,
    }
}

async fn held_parts_wait_for_their_caller(store: &dyn Store) {
    for (id, handed_over) in [("1", true), ("2", false)] {
        accept_all(store, vec![NewEntry { hold: Some(boot("bt_1")), ..new_entry(id, id, "a") }]).await;
        let claim = claim(store).await;
        let parts = vec![
            NewPart { last: false, ..new_part(&format!("{id}a"), Some(id), id) },
            NewPart { seq: 2, ..new_part(&format!("{id}b"), Some(id), id) },
        ];
        let finished = store.finish(Finish { claim_parts: true, ..finish_of(&claim, parts) }).await.expect("finishes");
        assert!(finished.held && finished.lanes.is_empty() && finished.sending.is_empty());
        assert!(matches!(next(store, id, 2_000).await, NextPart::Blocked));
        let entry = InboxId::from(format!("in_{id}"));
        if handed_over {
            let both = [PartId::from("pt_1a"), PartId::from("pt_1b")];
            assert_eq!(store.handed_over(&entry, &both, 3_000).await, Ok(vec![lane_of(id)]));
            assert!(matches!(next(store, id, 2_000).await, NextPart::Empty));
            assert_eq!(store.release_hold(&entry, 3_000).await, Ok(Vec::new()));
        } else {
            assert_eq!(store.release_hold(&entry, 3_000).await, Ok(vec![lane_of(id)]));
            let part = to_send(store, id, 3_000).await;
            // Too late: it is on its way already.
            assert_eq!(store.handed_over(&entry, std::slice::from_ref(&part.id), 3_000).await, Ok(Vec::new()));
            sent(store, &part).await;
            assert_eq!(to_send(store, id, 3_000).await.id, PartId::from("pt_2b"));
        }
    }
    // Nobody waits any more before the answer is there: it is not held.
    accept_all(store, vec![NewEntry { hold: Some(boot("bt_1")), ..new_entry("3", "3", "a") }]).await;
    let claim = claim(store).await;
    store.release_hold(&InboxId::from("in_3"), 3_000).await.expect("releases");
    let finished = store.finish(finish_of(&claim, vec![new_part("3", Some("3"), "3")])).await.expect("finishes");
    assert!(!finished.held);
    assert_eq!(finished.lanes, [lane_of("3")]);
}

async fn a_hold_of_another_boot_is_none(store: &dyn Store) {
    let held = |id: &str| NewEntry { hold: Some(boot("bt_1")), ..new_entry(id, id, "a") };
    accept_all(store, vec![held("1"), held("2")]).await;
    let first = claim(store).await;
    store.finish(finish_of(&first, vec![new_part("1", Some("1"), "1")])).await.expect("finishes");
    recover(store, "bt_2").await;
    assert_eq!(to_send(store, "1", 2_000).await.id, PartId::from("pt_1"), "its caller went with the process");
    let second = claim_as(store, "bt_2", ClaimKind::Ordinary, 2_000, 1).await.remove(0);
    let finished = store.finish(finish_of(&second, vec![new_part("2", Some("2"), "2")])).await.expect("finishes");
    assert!(!finished.held && finished.lanes == [lane_of("2")]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Station 13.

async fn a_lane_sends_in_order(store: &dyn Store) {
    let parts = |prefix: &str, lane: &str| {
        (1..=2).map(|n| new_part(&format!("{prefix}{n}"), Some("1"), lane)).collect::<Vec<_>>()
    };
    let mut all = parts("a", "s");
    all.extend(parts("b", "t"));
    answered(store, "1", "s", all).await;
    let mut lanes = store.open_lanes().await.expect("reads");
    lanes.sort();
    assert_eq!(lanes, [(lane_of("s"), 0), (lane_of("t"), 0)]);
    let a1 = to_send(store, "s", 2_000).await;
    assert_eq!((a1.id.as_str(), a1.attempts, a1.first_try_at), ("pt_a1", 0, Some(2_000)));
    assert_eq!((a1.key.part.as_str(), a1.key.in_reply_to.as_deref(), a1.key.resend), ("pt_a1", Some("1"), false));
    assert_eq!(a1.to, new_part("a1", Some("1"), "s").to);
    assert!(matches!(next(store, "s", 2_000).await, NextPart::Blocked), "part 2 waits for part 1");
    let b1 = to_send(store, "t", 2_000).await;
    // A retry keeps the head of its lane.
    let retry = PartOutcome::Retry { not_before: 5_000, error: "reset".to_owned(), resend: true };
    store.settle_part(&a1.id, a1.epoch, retry, 2_100).await.expect("settles");
    assert!(matches!(next(store, "s", 4_999).await, NextPart::Wait(5_000)));
    assert!(store.open_lanes().await.expect("reads").contains(&(lane_of("s"), 5_000)));
    // A start leaves pauses alone, but for those that only a clock that was set back explains.
    recover(store, "bt_1").await;
    assert!(matches!(next(store, "s", 4_999).await, NextPart::Wait(5_000)));
    let again = to_send(store, "s", 5_000).await;
    assert_eq!((again.id.clone(), again.attempts, again.first_try_at), (a1.id.clone(), 1, Some(2_000)));
    let ahead = PartOutcome::Retry { not_before: 90_000_000_000, error: "reset".to_owned(), resend: true };
    store.settle_part(&again.id, again.epoch, ahead, 5_000).await.expect("settles");
    recover(store, "bt_1").await;
    let again = to_send(store, "s", 5_000).await;
    assert!(again.key.resend);
    // Fenced by the epoch of the claim.
    let late = PartOutcome::Failed("late".to_owned());
    assert_eq!(store.settle_part(&a1.id, a1.epoch, late, 5_000).await, Err(StoreError::Fenced));
    sent(store, &again).await;
    let twice = PartOutcome::Failed("late".to_owned());
    assert_eq!(store.settle_part(&again.id, again.epoch, twice, 5_000).await, Err(StoreError::Fenced));
    let a2 = to_send(store, "s", 5_000).await;
    assert_eq!(a2.id, PartId::from("pt_a2"));
    store.settle_part(&a2.id, a2.epoch, PartOutcome::Failed("refused".to_owned()), 5_000).await.expect("settles");
    assert!(matches!(next(store, "s", 5_000).await, NextPart::Empty));
    sent(store, &b1).await;
    let rows = store.parts(PartFilter { entry: Some(InboxId::from("in_1")), state: None }, 9).await.expect("reads");
    let states: Vec<_> = rows.iter().map(|row| (row.id.as_str(), row.state.as_str())).collect();
    assert_eq!(states, [("pt_b2", "pending"), ("pt_b1", "sent"), ("pt_a2", "failed"), ("pt_a1", "sent")]);
    assert_eq!(rows[3].receipt.as_deref(), Some("m1"));
    let trouble = store.parts(PartFilter::default(), 9).await.expect("reads");
    assert_eq!(trouble.len(), 2, "what went well is left out");
    let failed = PartFilter { state: Some("failed".to_owned()), entry: None };
    assert_eq!(store.parts(failed, 9).await.expect("reads")[0].error.as_deref(), Some("refused"));
    let nonsense = PartFilter { state: Some("nonsense".to_owned()), entry: None };
    assert!(store.parts(nonsense, 9).await.expect("reads").is_empty());
}

async fn a_cut_send_is_looked_into(store: &dyn Store) {
    answered(store, "1", "s", vec![new_part("a", Some("1"), "s"), new_part("b", Some("1"), "s")]).await;
    let ghost = to_send(store, "s", 2_000).await;
    assert_eq!(recover(store, "bt_2").await.uncertain, 1);
    let late = PartOutcome::Sent(Receipt::default());
    assert_eq!(store.settle_part(&ghost.id, ghost.epoch, late, 3_000).await, Err(StoreError::Fenced));
    assert_eq!(store.open_lanes().await, Ok(vec![(lane_of("s"), 0)]));
    let NextPart::Uncertain(part) = next(store, "s", 3_000).await else { panic!("never sent blindly") };
    assert_eq!((part.id.clone(), part.first_try_at), (ghost.id.clone(), Some(2_000)));
    assert!(matches!(next(store, "s", 3_000).await, NextPart::Blocked), "one looks into it");
    // It certainly did not arrive: sent again.
    let absent = PartOutcome::Retry { not_before: 0, error: "cut off".to_owned(), resend: false };
    store.settle_part(&part.id, part.epoch, absent, 3_000).await.expect("settles");
    let part = to_send(store, "s", 3_000).await;
    assert_eq!(part.attempts, 1);
    // Cut off while the process lives.
    store
        .settle_part(&part.id, part.epoch, PartOutcome::Uncertain("timeout".to_owned()), 3_000)
        .await
        .expect("settles");
    let NextPart::Uncertain(part) = next(store, "s", 3_000).await else { panic!("never sent blindly") };
    store.settle_part(&part.id, part.epoch, PartOutcome::Unknown("timeout".to_owned()), 3_000).await.expect("settles");
    assert_eq!(to_send(store, "s", 3_000).await.id, PartId::from("pt_b"), "the lane moves on");
}

async fn late_parts_expire(store: &dyn Store) {
    let part = |id: &str, expires_at| NewPart { expires_at, ..new_part(id, Some("1"), "s") };
    answered(store, "1", "s", vec![part("a", 2_000), part("b", 1_999), part("c", 9_000)]).await;
    let c = to_send(store, "s", 2_000).await;
    assert_eq!(c.id, PartId::from("pt_c"));
    let expired = PartFilter { state: Some("expired".to_owned()), entry: None };
    assert_eq!(store.parts(expired, 9).await.expect("reads").len(), 2);
    store.settle_part(&c.id, c.epoch, PartOutcome::Expired, 9_000).await.expect("settles");
    assert!(matches!(next(store, "s", 9_000).await, NextPart::Empty));
}

async fn refused_parts_are_replaced_in_place(store: &dyn Store) {
    let reply = |prefix: &str| {
        (1..=3)
            .map(|n| NewPart {
                seq: n,
                last: n == 3,
                reply: (n == 1).then(|| Reply::message(prefix)),
                ..new_part(&format!("{prefix}{n}"), Some("1"), "s")
            })
            .collect::<Vec<_>>()
    };
    let mut both = reply("x");
    both.extend(reply("y"));
    answered(store, "1", "s", both).await;
    sent(store, &to_send(store, "s", 2_000).await).await;
    let refused = to_send(store, "s", 2_000).await;
    assert_eq!(refused.id, PartId::from("pt_x2"));
    assert_eq!(store.reply_of(&refused.id).await, Ok(Some(Reply::message("x"))));
    let plain =
        |id: &str, n, last| NewPart { seq: n, last, reply: None, level: Level::Plain, ..new_part(id, Some("1"), "s") };
    let parts = vec![plain("p2", 2, false), plain("p3", 3, false), plain("p4", 4, true)];
    let stale = store.replace_parts(&refused.id, refused.epoch - 1, parts.clone(), 2_000).await;
    assert_eq!(stale, Err(StoreError::Fenced));
    store.replace_parts(&refused.id, refused.epoch, parts, 2_000).await.expect("replaces");
    for id in ["pt_p2", "pt_p3", "pt_p4"] {
        let part = to_send(store, "s", 2_000).await;
        assert_eq!((part.id.as_str(), part.level), (id, Level::Plain));
        assert_eq!(store.reply_of(&part.id).await, Ok(Some(Reply::message("x"))));
        sent(store, &part).await;
    }
    // The first of a reply.
    let first = to_send(store, "s", 2_000).await;
    assert_eq!(first.id, PartId::from("pt_y1"));
    let mut parts = vec![plain("q1", 1, false), plain("q2", 2, true)];
    parts[0].replaces = Some("m1".to_owned());
    store.replace_parts(&first.id, first.epoch, parts, 2_000).await.expect("replaces");
    for id in ["pt_q1", "pt_q2"] {
        let part = to_send(store, "s", 2_000).await;
        assert_eq!(part.id.as_str(), id);
        assert_eq!(part.key.replaces.is_some(), id == "pt_q1");
        assert_eq!(store.reply_of(&part.id).await, Ok(Some(Reply::message("y"))));
        sent(store, &part).await;
    }
    assert!(matches!(next(store, "s", 2_000).await, NextPart::Empty));
    assert_eq!(store.reply_of(&PartId::from("pt_none")).await, Ok(None));
    let seqs: Vec<_> = settled(store, "1").await.expect("settled").parts.iter().map(|part| part.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 1, 2]);
}

// ---------------------------------------------------------------------------------------------------------------------
// What was said, and what people see.

fn user(text: &str) -> Message {
    Message::user(text)
}

fn said(text: &str) -> Message {
    Message::Assistant { text: text.to_owned(), calls: Vec::new(), opaque: Some(json!({ "sig": "\u{0}x" })) }
}

fn tool_exchange(n: u32) -> Vec<Message> {
    let id = format!("call_{n}");
    vec![
        user(&format!("question {n}")),
        Message::Assistant {
            text: String::new(),
            calls: vec![ToolCall { id: id.clone(), name: "exec".to_owned(), arguments: "{}".to_owned() }],
            opaque: None,
        },
        Message::Tool { call_id: id, name: "exec".to_owned(), text: "out".to_owned() },
        said(&format!("answer {n}")),
    ]
}

async fn what_waits_for_a_time_moves_with_the_clock(store: &dyn Store) {
    const HOUR: i64 = 3_600_000;
    accept_all(store, vec![NewEntry { not_before: HOUR, ..new_entry("1", "s", "a") }]).await;
    assert_eq!(store.next_due(2_000).await, Ok(Some(HOUR)));
    store.clock_was_set(1 - HOUR).await.expect("moves");
    let claimed = claim(store).await;
    assert_eq!(claimed.entries.len(), 1, "due since the clock went back an hour");
    store.clock_was_set(HOUR).await.expect("moves");
    assert_eq!(store.next_due(2_000).await, Ok(None), "what waits for no time is left alone");
}

async fn the_sender_of_what_a_crash_buried_is_told(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let told = std::sync::Arc::new(|id: &InboxId, inbound: &Inbound| {
        vec![NewPart { entry: Some(id.clone()), to: inbound.address.clone(), ..new_part("sorry", None, "s") }]
    });
    let mut found = Recovered::default();
    for n in 0..4 {
        let who = format!("bt_crash_{n}");
        for kind in [ClaimKind::Suspect, ClaimKind::Feared, ClaimKind::Ordinary] {
            if !claim_as(store, &who, kind, 2_000, 1).await.is_empty() {
                break;
            }
        }
        found = store.recover(&boot(&format!("bt_next_{n}")), 3_000, told.clone()).await.expect("recovers");
        if found.dead > 0 {
            break;
        }
    }
    assert_eq!(found.dead, 1);
    let next = store.next_part(&lane_of("s"), &boot("bt_last"), 3_000).await.expect("reads");
    assert!(matches!(next, NextPart::Send(part) if part.key.part.as_str() == "pt_sorry"));
}

async fn the_window_of_the_history_moves_in_steps(store: &dyn Store) {
    let mut begins = Vec::new();
    for n in 0..20 {
        accept_all(store, vec![new_entry(&n.to_string(), "s", "a")]).await;
        let claim = claim(store).await;
        let end = Finish {
            transcript: vec![user(&format!("q{n}")), user(&format!("a{n}"))],
            ..finish_of(&claim, Vec::new())
        };
        store.finish(end).await.expect("finishes");
        let window = store.history(&key("s"), 0, 16, 1 << 20).await.expect("reads");
        assert!((9..=16).contains(&window.len()) || n < 8, "{n}: {}", window.len());
        begins.push(window[0].clone());
    }
    begins.dedup();
    let expected: Vec<Message> = ["q0", "q4", "q8", "q12"].into_iter().map(user).collect();
    assert_eq!(begins, expected);
}

async fn history_is_whole_exchanges(store: &dyn Store) {
    let mut all = Vec::new();
    for n in 0..3 {
        accept_all(store, vec![new_entry(&n.to_string(), "s", "a")]).await;
        let claim = claim(store).await;
        assert_eq!(claim.generation, 0);
        let end = Finish { transcript: tool_exchange(n), ..finish_of(&claim, Vec::new()) };
        all.extend(tool_exchange(n));
        store.finish(end).await.expect("finishes");
    }
    let history =
        async |generation, messages, bytes| store.history(&key("s"), generation, messages, bytes).await.expect("reads");
    assert_eq!(history(0, 100, 1 << 20).await, all);
    // Places 4, 4, 5 and 5 are the first multiples of half a window within it; then forward to a user message.
    for (window, first) in [(8, 4), (9, 4), (10, 8), (11, 8), (12, 0)] {
        assert_eq!(history(0, window, 1 << 20).await, all[first..], "a window of {window}");
    }
    assert_eq!(history(0, 3, 1 << 20).await, []);
    let last: u64 = all[8..].iter().map(|message| serde_json::to_string(message).expect("JSON").len() as u64).sum();
    assert_eq!(history(0, 100, last).await, all[8..]);
    assert_eq!(history(0, 100, last - 1).await, []);
    // A new generation starts empty; what was said stays readable.
    accept_all(store, vec![new_entry("new", "s", "a")]).await;
    let fresh = claim(store).await;
    let end = Finish { new_generation: true, transcript: vec![user("/new")], ..finish_of(&fresh, Vec::new()) };
    store.finish(end).await.expect("finishes");
    assert_eq!(history(0, 1, 1 << 20).await, [user("/new")]);
    store.reset(&key("s"), 3_000).await.expect("resets");
    assert_eq!(store.reset(&key("nobody"), 3_000).await, Err(StoreError::NotFound));
    accept_all(store, vec![new_entry("after", "s", "a")]).await;
    let after = claim(store).await;
    assert_eq!(after.generation, 2);
    assert_eq!(history(2, 100, 1 << 20).await, []);
    assert_eq!(store.history(&key("nobody"), 0, 9, 9).await, Ok(Vec::new()));
    let rows = store.messages(&key("s"), 0, 5).await.expect("reads");
    assert_eq!(rows.iter().map(|row| row.message.clone()).collect::<Vec<_>>(), all[..5]);
    let rest = store.messages(&key("s"), rows[4].seq, 99).await.expect("reads");
    assert_eq!((rest.len(), rest[0].message.clone(), rest[7].generation), (8, all[5].clone(), 0));
}

async fn events_resume(store: &dyn Store) {
    assert_eq!(store.last_event().await, Ok(0));
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "t", "a")]).await;
    let claims = claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 9).await;
    let started = step("1", 0, StepKind::Tool, StepState::Started);
    let mut written = claims.iter().flat_map(|claim| claim.events.clone()).collect::<Vec<_>>();
    written.extend(store.record(&claims[0].lease, vec![started], true).await.expect("records"));
    let long = StepRecord { result: json!("x".repeat(5_000)), ..step("1", 0, StepKind::Tool, StepState::Finished) };
    written.extend(store.record(&claims[0].lease, vec![long], true).await.expect("records"));
    let llm = step("2", 1, StepKind::Llm, StepState::Finished);
    assert_eq!(store.record(&claims[0].lease, vec![llm], false).await, Ok(Vec::new()));
    written.extend(finish(store, &claims[1]).await.events);
    let kinds: Vec<_> = written.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["turn_started", "turn_started", "tool_start", "tool_end", "task_complete"]);
    assert_eq!(written[2].data, json!({ "tool": "exec", "call_id": "call_1", "args": { "command": "date" } }));
    assert_eq!(written[3].data["result"].as_str().map(str::len), Some(2_000));
    assert_eq!((&written[3].data["ok"], &written[3].data["ms"]), (&json!(true), &json!(7)));
    assert_eq!(written[3].task, InboxId::from("in_1"));
    let events = async |after, filter, limit| store.events(after, filter, limit).await.expect("reads");
    assert_eq!(events(0, EventFilter::default(), 99).await, written);
    assert_eq!(events(written[1].seq, EventFilter::default(), 2).await, written[2..4]);
    let of_task = EventFilter { task: Some(InboxId::from("in_1")), session: None };
    assert_eq!(events(written[0].seq, of_task, 99).await, written[2..4]);
    let of_session = EventFilter { task: None, session: Some(key("t")) };
    assert_eq!(events(0, of_session, 99).await, [written[1].clone(), written[4].clone()]);
    let of_both = EventFilter { task: Some(InboxId::from("in_1")), session: Some(key("t")) };
    assert_eq!(events(0, of_both, 99).await, []);
    assert_eq!(store.last_event().await, Ok(written[4].seq));
}

async fn traces_show_everything(store: &dyn Store) {
    let entry = |id: &str| in_mode(QueueMode::Collect, id, "s", "a");
    accept_all(store, vec![entry("1"), entry("2")]).await;
    let claim = claim(store).await;
    let steps =
        vec![step("1", 0, StepKind::Llm, StepState::Finished), step("2", 1, StepKind::Tool, StepState::Started)];
    store.record(&claim.lease, steps.clone(), true).await.expect("records");
    let mut end = finish_of(&claim, vec![new_part("p", Some("2"), "s")]);
    let done = step("2", 1, StepKind::Tool, StepState::Failed);
    let last = step("3", 2, StepKind::Llm, StepState::Finished);
    end.steps = vec![done.clone(), last.clone()];
    store.finish(end).await.expect("finishes");
    let trace = store.trace(&claim.lease.turn).await.expect("reads").expect("is there");
    let texts: Vec<_> = trace.entries.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    assert_eq!(texts, [("in_1", "text of 1"), ("in_2", "text of 2")]);
    assert_eq!(trace.steps, [steps[0].clone(), done, last]);
    assert_eq!(trace.parts.iter().map(|part| part.id.as_str()).collect::<Vec<_>>(), ["pt_p"]);
    assert_eq!((trace.turn.state.as_str(), trace.turn.entry), ("replied", Some(InboxId::from("in_2"))));
    for id in ["in_1", "in_2"] {
        let turns = store.turns(TurnsOf::Entry(InboxId::from(id)), 9).await.expect("reads");
        assert_eq!(turns.iter().map(|turn| &turn.id).collect::<Vec<_>>(), [&claim.lease.turn]);
    }
    assert_eq!(store.turns(TurnsOf::All, 9).await.expect("reads").len(), 1);
    assert!(store.turns(TurnsOf::Session(key("nobody")), 9).await.expect("reads").is_empty());
    assert!(store.trace(&channel_api::TurnId::from("tn_none")).await.expect("reads").is_none());
}

async fn sessions_are_listed_and_searched(store: &dyn Store) {
    for (n, session) in ["a", "b", "c"].into_iter().enumerate() {
        accept_all(store, vec![NewEntry { received_at: 1_000 + n as i64, ..new_entry(session, session, "x") }]).await;
    }
    let page = store.sessions(None, 2).await.expect("reads");
    assert_eq!(page.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["c", "b"]);
    let rest = store.sessions(Some((page[1].updated_at, page[1].key.clone())), 9).await.expect("reads");
    assert_eq!(rest.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(), ["a"]);
    assert_eq!((rest[0].pending, rest[0].running, rest[0].agent.as_str()), (1, false, "main"));
    assert_eq!(store.session(&key("nobody")).await, Ok(None));
    let claim = claim(store).await;
    let transcript = vec![user("今天天气 100% \"GOOD\""), said("assistant text")];
    store.finish(Finish { transcript, ..finish_of(&claim, Vec::new()) }).await.expect("finishes");
    assert_eq!(store.session(&key("a")).await.expect("reads").expect("is there").messages, 2);
    let found = async |text: &str| store.search(text, 9).await.expect("reads").len();
    assert_eq!(found("天气").await, 1);
    assert_eq!(found("100% \"good\"").await, 1);
    assert_eq!(found("%").await, 1, "a percent sign is a percent sign");
    assert_eq!(found("user").await, 0, "roles are not text");
    assert_eq!(found("t").await, 1);
}

async fn dead_letters_are_retried_or_dropped(store: &dyn Store) {
    for id in ["1", "2"] {
        accept_all(store, vec![new_entry(id, id, "a")]).await;
        for _ in 0..5 {
            let claim = claim(store).await;
            store.release(release_of(&claim, Some("away"))).await.expect("releases");
        }
    }
    let letters = store.dead_letters(None, 1).await.expect("reads");
    assert_eq!(letters[0].id, InboxId::from("in_2"), "newest first");
    let older = store.dead_letters(Some(letters[0].seq), 9).await.expect("reads");
    assert_eq!(older.iter().map(|letter| letter.id.as_str()).collect::<Vec<_>>(), ["in_1"]);
    assert_eq!(store.load().await.expect("counts"), Load::default());
    store.resolve_dead(&InboxId::from("in_1"), DeadResolution::Drop, 4_000).await.expect("drops");
    store.resolve_dead(&InboxId::from("in_2"), DeadResolution::Retry, 4_000).await.expect("retries");
    assert_eq!(
        store.resolve_dead(&InboxId::from("in_2"), DeadResolution::Retry, 4_000).await,
        Err(StoreError::NotFound)
    );
    assert!(store.dead_letters(None, 9).await.expect("reads").is_empty());
    assert!(settled(store, "1").await.is_some() && settled(store, "2").await.is_none());
    let again = claim(store).await;
    assert_eq!((ids(&again), again.entries[0].attempts, again.resume.is_none()), (vec!["2"], 0, true));
    assert_eq!(finish(store, &again).await.events[0].kind, "task_complete");
    nothing_due(store, 9_000).await;
}

async fn files_are_in_use_until_nothing_waits_for_them(store: &dyn Store) {
    let file = |byte: &str| {
        let source = MediaSource::Stored(byte.repeat(64));
        let media = Some(MediaRef { source, mime: None, size: Some(1) });
        Attachment { kind: AttachmentKind::Image, media, name: None, unavailable: None }
    };
    let in_use = async || {
        let mut names: Vec<_> = store.files_in_use().await.expect("reads").into_iter().collect();
        names.sort();
        names.iter().map(|name| name[..1].to_owned()).collect::<String>()
    };
    assert_eq!(in_use().await, "");
    let mut entry = new_entry("1", "s", "a");
    entry.inbound.attachments = vec![file("a")];
    accept_all(store, vec![entry]).await;
    assert_eq!(in_use().await, "a", "it waits");
    let claim = claim(store).await;
    assert_eq!(in_use().await, "a", "its turn runs");
    let mut part = new_part("p", Some("1"), "s");
    part.part.body = json!({ "file": file("b") });
    part.reply = Some(Reply { attachments: vec![file("b"), file("c")], ..Reply::message("here") });
    store.finish(finish_of(&claim, vec![part])).await.expect("finishes");
    assert_eq!(in_use().await, "bc", "the answer is to be sent");
    let sending = to_send(store, "s", 2_600).await;
    assert_eq!(in_use().await, "bc", "it is being sent");
    sent(store, &sending).await;
    assert_eq!(in_use().await, "");
}

async fn old_rows_are_pruned_in_small_bites(store: &dyn Store) {
    const DAY: i64 = 24 * 60 * 60 * 1000;
    let many: Vec<_> = (0..600).map(|n| command(&format!("c{n}"), "s", SessionChange::None)).collect();
    accept_all(store, many).await;
    answered(store, "1", "t", vec![new_part("p", Some("1"), "t")]).await;
    sent(store, &to_send(store, "t", 2_000).await).await;
    accept_all(store, vec![new_entry("waits", "u", "a")]).await;
    let turn = store.turns(TurnsOf::Session(key("t")), 1).await.expect("reads").remove(0);
    assert_eq!(store.prune(2_500 + 2 * DAY, &Retention::default()).await, Ok(false), "nothing is old yet");
    assert_eq!(store.find(&channel(), "c0").await, Ok(Some(InboxId::from("in_c0"))));
    // Keys are kept for three days, whatever the configuration says.
    let greedy = Retention { keys_ms: 0, ..Retention::default() };
    assert_eq!(store.prune(2_500 + 3 * DAY - 3_000, &greedy).await, Ok(false));
    assert_eq!(store.find(&channel(), "c0").await, Ok(Some(InboxId::from("in_c0"))));
    let later = 2_500 + 30 * DAY;
    let mut bites = 0;
    while store.prune(later, &Retention::default()).await.expect("prunes") {
        bites += 1;
    }
    // 601 messages, as many events and one more, one part (600 answers are still to be sent).
    assert_eq!(bites, 2);
    assert_eq!(store.find(&channel(), "c0").await, Ok(None));
    assert_eq!(store.find(&channel(), "waits").await, Ok(Some(InboxId::from("in_waits"))), "what waits is never old");
    assert!(store.events(0, EventFilter::default(), 9).await.expect("reads").is_empty());
    assert_eq!(store.parts(PartFilter::default(), 1_000).await.expect("reads").len(), 600);
    assert!(store.trace(&turn.id).await.expect("reads").is_some(), "the journal's rows stay");
    // A sequence is never used twice.
    let last = claim(store).await;
    assert!(last.events[0].seq > 600);
}

async fn channels_keep_their_map(store: &dyn Store) {
    assert_eq!(store.kv_get(&channel(), "token").await, Ok(None));
    store.kv_set(&channel(), "token", "a").await.expect("sets");
    store.kv_set(&channel(), "token", "b").await.expect("sets");
    assert_eq!(store.kv_get(&channel(), "token").await, Ok(Some("b".to_owned())));
    assert_eq!(store.kv_get(&ChannelId::new("test", "other"), "token").await, Ok(None));
}

// ---------------------------------------------------------------------------------------------------------------------
// Groups.

/// A message `id` of a group that is not for the bot; `keep` of them wait.
pub fn new_heard(id: &str, session: &str, keep: u32) -> NewHeard {
    NewHeard {
        session: key(session),
        channel: channel(),
        platform_id: id.to_owned(),
        sender: "b".to_owned(),
        name: Some("Bob".to_owned()),
        text: format!("words of {id}"),
        at: 1_000,
        keep,
    }
}

async fn hear(store: &dyn Store, ids: &[&str], session: &str, keep: u32) {
    let heard = ids.iter().map(|id| new_heard(id, session, keep)).collect();
    assert_eq!(store.accept(NewBatch { heard, ..NewBatch::default() }).await, Ok(Vec::new()));
}

/// The ids of what a turn is told.
pub fn backlog(claim: &Claim) -> Vec<&str> {
    claim.backlog.iter().map(|heard| heard.text.trim_start_matches("words of ")).collect()
}

async fn what_a_group_said_is_told_to_exactly_one_turn(store: &dyn Store) {
    hear(store, &["h1", "h2"], "s", 50).await;
    hear(store, &["t1"], "t", 50).await;
    // A second delivery is no news, in the same batch or later.
    hear(store, &["h2", "h3", "h3"], "s", 50).await;
    let batch = NewBatch {
        entries: vec![new_entry("1", "s", "a")],
        heard: vec![new_heard("h4", "s", 50)],
        ..NewBatch::default()
    };
    assert!(matches!(store.accept(batch).await.expect("accepts")[..], [Stored::New { .. }]));
    let first = claim(store).await;
    assert_eq!(backlog(&first), ["h1", "h2", "h3", "h4"], "oldest first, and nothing of another session");
    let told = &first.backlog[0];
    assert_eq!((told.sender.as_str(), told.name.as_deref(), told.at), ("b", Some("Bob"), 1_000));
    // Heard while the turn runs: for the next one.
    hear(store, &["h5"], "s", 50).await;
    accept_all(store, vec![new_entry("2", "s", "a")]).await;
    store
        .finish(Finish { outcome: TurnOutcome::Silent("no_reply".into()), ..finish_of(&first, Vec::new()) })
        .await
        .expect("finishes");
    // Known even when told.
    hear(store, &["h1", "h4"], "s", 50).await;
    let second = claim(store).await;
    assert_eq!(backlog(&second), ["h5"]);
    finish(store, &second).await;
    accept_all(store, vec![new_entry("3", "s", "a")]).await;
    assert!(claim(store).await.backlog.is_empty());
}

async fn what_a_group_said_outlives_crashes_and_failures(store: &dyn Store) {
    hear(store, &["h1"], "s", 50).await;
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    assert_eq!(backlog(&claim(store).await), ["h1"]);
    // A crash, and a retryable failure: the same turn is told the same, and nothing that was said since.
    recover(store, "bt_2").await;
    hear(store, &["h2"], "s", 50).await;
    let again = claim_as(store, "bt_2", ClaimKind::Suspect, 2_000, 1).await.pop().expect("it goes on");
    assert_eq!((backlog(&again), again.resume.is_some()), (vec!["h1"], true));
    store.release(release_of(&again, Some("away"))).await.expect("releases");
    let again = claim_as(store, "bt_2", ClaimKind::Ordinary, 2_000, 1).await.pop().expect("it goes on");
    assert_eq!(backlog(&again), ["h1"]);
    // A stopped turn that never ends by itself was told in vain: the next one is told of it all.
    store.release(release_of(&again, None)).await.expect("releases");
    accept_all(store, vec![command("stop", "s", SessionChange::Stop), new_entry("2", "s", "a")]).await;
    let next = claim_as(store, "bt_2", ClaimKind::Ordinary, 2_000, 1).await.pop().expect("it is due");
    assert_eq!((ids(&next), backlog(&next)), (vec!["2"], vec!["h1", "h2"]));
    // What was told to a message that kills three times is told to nobody again.
    for n in 3..6 {
        recover(store, &format!("bt_{n}")).await;
        if n < 5 {
            let alone = suspect(store, &format!("bt_{n}")).await.expect("it is tried again");
            assert_eq!(backlog(&alone), ["h1", "h2"]);
        }
    }
    let buried = claim_as(store, "bt_5", ClaimKind::Feared, 2_000, 1).await.pop().expect("one try is left");
    assert_eq!(backlog(&buried), ["h1", "h2"]);
    assert_eq!(recover(store, "bt_6").await.dead, 1);
    accept_all(store, vec![new_entry("3", "s", "a")]).await;
    let after = claim_as(store, "bt_6", ClaimKind::Ordinary, 2_000, 1).await.pop().expect("it is due");
    assert!(after.backlog.is_empty());
}

async fn what_a_group_said_is_bounded(store: &dyn Store) {
    hear(store, &["h1", "h2", "h3"], "s", 50).await;
    hear(store, &["h4"], "s", 2).await;
    hear(store, &["other"], "t", 2).await;
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let first = claim(store).await;
    assert_eq!(backlog(&first), ["h3", "h4"]);
    // What a turn was given is not pushed out of it.
    hear(store, &["h5", "h6", "h7"], "s", 2).await;
    store.release(release_of(&first, None)).await.expect("releases");
    let again = claim(store).await;
    assert_eq!(backlog(&again), ["h3", "h4"]);
    finish(store, &again).await;
    // A key is known as long as it is among the session's newest, then what it names is news.
    let many: Vec<String> = (0..500).map(|n| format!("m{n}")).collect();
    hear(store, &many.iter().map(String::as_str).collect::<Vec<_>>(), "s", 2).await;
    hear(store, &["m400", "h1"], "s", 2).await;
    accept_all(store, vec![new_entry("2", "s", "a")]).await;
    let told = claim(store).await;
    assert_eq!(backlog(&told), ["m499", "h1"]);
    finish(store, &told).await;
    // What nobody was told of is forgotten after a week.
    const DAY: i64 = 24 * 60 * 60 * 1000;
    hear(store, &["old"], "u", 2).await;
    store.prune(1_000 + 6 * DAY, &Retention::default()).await.expect("prunes");
    while store.prune(1_000 + 8 * DAY, &Retention::default()).await.expect("prunes") {}
    accept_all(store, vec![new_entry("3", "u", "a"), new_entry("4", "t", "a")]).await;
    for told in claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 9).await {
        assert!(told.backlog.is_empty(), "{told:?}");
    }
}

fn amendment(event: &str, session: &str, sender: Option<&str>, about: &str, change: Change) -> Amendment {
    let said = if let Change::Edit { text, .. } = &change { text.as_str() } else { "" };
    let heard = NewHeard { text: said.to_owned(), sender: "a".to_owned(), ..new_heard(event, session, 20) };
    Amendment { event: heard, about: about.to_owned(), sender: sender.map(str::to_owned), change }
}

fn edit(text: &str, note: Option<&str>) -> Change {
    Change::Edit { text: text.to_owned(), attachments: Vec::new(), note: note.map(str::to_owned) }
}

async fn amend(store: &dyn Store, amendment: Amendment) -> Amended {
    let batch = NewBatch { amendments: vec![amendment], ..NewBatch::default() };
    match store.accept(batch).await.expect("accepts").pop() {
        Some(Stored::Amended(amended)) => amended,
        other => panic!("{other:?}"),
    }
}

fn texts(claim: &Claim) -> Vec<&str> {
    claim.entries.iter().map(|entry| entry.inbound.text.as_str()).collect()
}

async fn a_change_reaches_what_waits_and_nothing_else(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let running = claim(store).await;
    // A message and its change in one batch, in whatever order the platform's two deliveries came.
    let batch = NewBatch {
        entries: vec![new_entry("2", "s", "a")],
        amendments: vec![
            amendment("e1", "s", Some("a"), "2", edit("first change", None)),
            amendment("e2", "s", Some("a"), "2", edit("second change", None)),
        ],
        ..NewBatch::default()
    };
    let stored = store.accept(batch).await.expect("accepts");
    let replaced = Stored::Amended(Amended::Replaced(InboxId::from("in_2".to_owned())));
    assert_eq!(stored[1..], [replaced.clone(), replaced]);
    let longer = "longer ".repeat(100);
    let before = store.load().await.expect("reads");
    for (event, sender, about, text, why) in [
        ("e1", Some("a"), "2", "again", "delivered twice"),
        ("e3", Some("b"), "2", "not mine", "somebody else's"),
        ("e4", Some("a"), "1", "too late", "it runs"),
        ("e5", Some("a"), "none", "nothing", "not known"),
        ("e6", Some("a"), "2", "second change", "says what it said"),
    ] {
        let amended = amend(store, amendment(event, "s", sender, about, edit(text, None))).await;
        assert_eq!(amended, Amended::Nothing, "{why}");
    }
    assert_eq!(store.load().await, Ok(before));
    let amended = amend(store, amendment("e7", "s", Some("a"), "2", edit(&longer, None))).await;
    assert_eq!(amended, Amended::Replaced(InboxId::from("in_2".to_owned())));
    let after = store.load().await.expect("reads");
    assert_eq!(
        (after.queued, after.bytes - before.bytes),
        (before.queued, (longer.len() - "second change".len()) as u64)
    );
    finish(store, &running).await;
    let next = claim(store).await;
    assert_eq!((texts(&next), next.backlog.len()), (vec![longer.as_str()], 0));
    finish(store, &next).await;
    nothing_due(store, 9_000).await;
    assert_eq!(amend(store, amendment("e8", "s", Some("a"), "2", edit("answered", None))).await, Amended::Nothing);
    nothing_due(store, 9_000).await;
    assert_eq!(store.load().await, Ok(Load::default()));
}

async fn a_change_that_comes_too_late_is_a_note_if_asked_for(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), command("c", "s", SessionChange::None)]).await;
    let running = claim(store).await;
    for (event, about) in [("e1", "1"), ("e1", "1"), ("e2", "c"), ("e3", "none")] {
        let change = edit("new words", Some("changed to: new words"));
        assert_eq!(amend(store, amendment(event, "s", Some("a"), about, change)).await, Amended::Nothing);
    }
    finish(store, &running).await;
    nothing_due(store, 9_000).await;
    accept_all(store, vec![new_entry("2", "s", "a")]).await;
    let next = claim(store).await;
    assert_eq!(backlog(&next), ["changed to: new words"], "once, and nothing of a command or of what is not known");
    finish(store, &next).await;
}

async fn what_was_deleted_while_it_waited_is_never_run(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a"), new_entry("3", "s", "a")]).await;
    let running = claim(store).await;
    assert_eq!(amend(store, amendment("d1", "s", Some("b"), "2", Change::Delete)).await, Amended::Nothing);
    assert_eq!(amend(store, amendment("d2", "other", None, "2", Change::Delete)).await, Amended::Nothing);
    for (event, sender, id) in [("d3", Some("a"), "2"), ("d4", None, "3")] {
        let Amended::Removed(row) = amend(store, amendment(event, "s", sender, id, Change::Delete)).await else {
            panic!("it waited")
        };
        assert_eq!((row.task.as_str(), row.ended_unanswered()), (format!("in_{id}").as_str(), Some("deleted")));
        assert_eq!(settled(store, id).await.expect("settled").silent.as_deref(), Some("deleted"));
    }
    assert_eq!(amend(store, amendment("d3", "s", Some("a"), "2", Change::Delete)).await, Amended::Nothing);
    assert_eq!(amend(store, amendment("d5", "s", Some("a"), "1", Change::Delete)).await, Amended::Nothing, "it runs");
    let row = store.session(&key("s")).await.expect("reads").expect("a session");
    assert_eq!((row.pending, row.running), (0, true));
    assert!(!finish(store, &running).await.more);
    nothing_due(store, 9_000).await;
    assert_eq!(store.load().await, Ok(Load::default()));
    // The head of an idle session.
    accept_all(store, vec![NewEntry { not_before: 5_000, ..new_entry("4", "s", "a") }, new_entry("5", "s", "a")]).await;
    assert!(matches!(amend(store, amendment("d6", "s", Some("a"), "4", Change::Delete)).await, Amended::Removed(_)));
    assert_eq!(ids(&claim(store).await), ["5"]);
}

async fn what_a_group_heard_follows_its_changes(store: &dyn Store) {
    let heard = ["h1", "h2", "h3"].map(|id| NewHeard { sender: "a".to_owned(), ..new_heard(id, "s", 20) }).to_vec();
    store.accept(NewBatch { heard, ..NewBatch::default() }).await.expect("accepts");
    amend(store, amendment("e1", "s", Some("a"), "h1", edit("new words", None))).await;
    amend(store, amendment("e2", "s", Some("b"), "h2", edit("not mine", None))).await;
    amend(store, amendment("e3", "s", None, "h3", Change::Delete)).await;
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let told = claim(store).await;
    let said = backlog(&told).iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
    assert_eq!(said.len(), 2, "{said:?}");
    assert_eq!(said[0], "new words");
    amend(store, amendment("e4", "s", Some("a"), "h2", edit("too late", None))).await;
    finish(store, &told).await;
}

async fn a_session_that_begins_anew_has_heard_nothing(store: &dyn Store) {
    hear(store, &["h1"], "s", 50).await;
    accept_all(store, vec![new_entry("new", "s", "a")]).await;
    let fresh = claim(store).await;
    hear(store, &["h2"], "s", 50).await;
    store.finish(Finish { new_generation: true, ..finish_of(&fresh, Vec::new()) }).await.expect("finishes");
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    let next = claim(store).await;
    assert_eq!(backlog(&next), ["h2"]);
    finish(store, &next).await;
    hear(store, &["h3"], "s", 50).await;
    store.reset(&key("s"), 3_000).await.expect("resets");
    accept_all(store, vec![new_entry("2", "s", "a")]).await;
    assert!(claim(store).await.backlog.is_empty());
}

fn group_key(group: &str, rest: &str) -> String {
    format!("agent:main:test:group:{group}{rest}")
}

async fn move_group(store: &dyn Store, from: &str, to: &str) {
    let moved = vec![MovedGroup {
        channel: channel(),
        account_in_key: false,
        from: from.to_owned(),
        to: to.to_owned(),
        at: 2_000,
    }];
    assert_eq!(store.accept(NewBatch { moved, ..NewBatch::default() }).await, Ok(Vec::new()));
}

async fn a_group_that_moves_takes_everything_along(store: &dyn Store) {
    let (old, topic, other) = (group_key("-1", ""), group_key("-1", ":thread:7"), group_key("-12", ""));
    answered(store, "1", &old, Vec::new()).await;
    hear(store, &["h1"], &old, 50).await;
    hear(store, &["h2"], &topic, 50).await;
    hear(store, &["h3"], &other, 50).await;
    let all = vec![new_entry("2", &old, "a"), new_entry("3", &topic, "a"), new_entry("4", &other, "a")];
    accept_all(store, all).await;
    for _ in 0..2 {
        // Told twice, by the old group and by the new one.
        move_group(store, "-1", "-100").await;
    }
    assert_eq!(store.session(&key(&old)).await, Ok(None));
    let moved = store.session(&key(&group_key("-100", ""))).await.expect("reads").expect("it is there");
    assert_eq!((moved.pending, moved.running), (1, false));
    let found: Vec<_> = claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 9).await;
    let found: Vec<(String, Vec<&str>, Vec<&str>)> =
        found.iter().map(|claim| (claim.lease.session.to_string(), ids(claim), backlog(claim))).collect();
    let expected = [
        (group_key("-100", ""), vec!["2"], vec!["h1"]),
        (group_key("-100", ":thread:7"), vec!["3"], vec!["h2"]),
        (other, vec!["4"], vec!["h3"]),
    ];
    assert_eq!(found, expected);
    assert_eq!(store.turns(TurnsOf::Session(key(&group_key("-100", ""))), 9).await.expect("reads").len(), 2);
    move_group(store, "-100", "-101").await;
    let moves = store.moves().await.expect("reads");
    let told = |from: &str, to: &str| (channel(), channel_api::Moved { from: from.to_owned(), to: to.to_owned() });
    assert_eq!(moves, [told("-1", "-100"), told("-100", "-101")]);
}

async fn a_running_turn_moves_with_its_group(store: &dyn Store) {
    let (old, new) = (group_key("-1", ""), group_key("-100", ""));
    hear(store, &["h1"], &old, 50).await;
    accept_all(store, vec![new_entry("1", &old, "a")]).await;
    let running = claim(store).await;
    let effect = step("1", 0, StepKind::Tool, StepState::Started);
    store.record(&running.lease, vec![effect.clone()], true).await.expect("records");
    move_group(store, "-1", "-100").await;
    // Whoever works on it is fenced off, and the same turn goes on: no suspect, with what it did and heard.
    assert_eq!(store.finish(finish_of(&running, Vec::new())).await.err(), Some(StoreError::Fenced));
    assert_eq!(store.load().await.expect("counts").queued, 1);
    let again = claim(store).await;
    assert_eq!((again.lease.session.as_str(), &again.lease.turn), (new.as_str(), &running.lease.turn));
    assert_eq!((ids(&again), backlog(&again), again.suspect), (vec!["1"], vec!["h1"], false));
    assert_eq!(again.resume.as_deref(), Some(&[effect][..]));
    finish(store, &again).await;
    nothing_due(store, 9_000).await;
}

async fn a_group_that_moves_onto_a_session_loses_nothing(store: &dyn Store) {
    let (old, new) = (group_key("-1", ""), group_key("-100", ""));
    hear(store, &["h1"], &old, 50).await;
    accept_all(store, vec![new_entry("1", &old, "a"), new_entry("2", &new, "a")]).await;
    move_group(store, "-1", "-100").await;
    let found = claim_as(store, "bt_1", ClaimKind::Ordinary, 2_000, 9).await;
    let found: Vec<(&str, Vec<&str>, Vec<&str>)> =
        found.iter().map(|claim| (claim.lease.session.as_str(), ids(claim), backlog(claim))).collect();
    assert_eq!(found, [(old.as_str(), vec!["1"], vec![]), (new.as_str(), vec!["2"], vec!["h1"])]);
}

async fn the_gauge_follows(store: &dyn Store) {
    let load = async || store.load().await.expect("counts");
    let bytes = |id: &str| serde_json::to_string(&new_entry(id, "s", "a").inbound).expect("JSON").len() as u64;
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "a")]).await;
    accept(store, vec![new_entry("1", "s", "a")]).await;
    assert_eq!(load().await, Load { queued: 2, bytes: bytes("1") + bytes("2") });
    let running = claim(store).await;
    assert_eq!(load().await.queued, 2, "what runs counts");
    finish(store, &running).await;
    assert_eq!(load().await, Load { queued: 1, bytes: bytes("2") });
    accept_all(store, vec![command("stop", "s", SessionChange::Stop)]).await;
    assert_eq!(load().await, Load::default());
}

async fn upkeep_answers(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a")]).await;
    store.check().await.expect("is healthy");
    store.probe(5_000).await.expect("commits");
    store.probe(5_001).await.expect("commits again");
    store.checkpoint().await.expect("checkpoints");
    assert_eq!(recover(store, "bt_2").await, super::Recovered::default());
    store.close().await;
    assert!(matches!(
        store.accept(NewBatch { entries: vec![new_entry("2", "s", "a")], ..NewBatch::default() }).await,
        Err(StoreError::Unavailable(_))
    ));
}

// ---------------------------------------------------------------------------------------------------------------------
// Who was let in and who was shut out.

pub const HOUR: i64 = 3_600_000;

/// `sender` asks on `test:<account>` at `at`; their code is `code`.
pub fn asks(account: &str, sender: &str, code: &str, at: i64) -> NewPairing {
    let channel = ChannelId::new("test", account);
    NewPairing {
        channel: channel.clone(),
        sender: sender.to_owned(),
        name: Some(format!("name of {sender}")),
        code: code.to_owned(),
        lang: Lang::En,
        address: Address { channel, lane: sender.to_owned(), data: json!({ "chat": sender }) },
        parts: vec![new_part(code, None, sender)],
        at,
        expires_at: at + HOUR,
    }
}

pub async fn ask(store: &dyn Store, new: NewPairing) -> Asked {
    let batch = NewBatch { pairings: vec![new], ..NewBatch::default() };
    match store.accept(batch).await.expect("accepts").pop() {
        Some(Stored::Asked(asked)) => asked,
        other => panic!("an answer to a request, not {other:?}"),
    }
}

/// Says "in" to whoever is let in.
pub fn welcome() -> Welcome {
    Arc::new(|asked, address, _, _| vec![new_part(&format!("in-{}", asked.code), None, &address.lane)])
}

pub fn approve_of(code: &str, now: i64) -> Approve {
    Approve { scope: None, code: code.to_owned(), role: None, may_own: false, welcome: welcome(), now }
}

async fn approve(store: &dyn Store, code: &str, now: i64) -> Result<Approved, StoreError> {
    store.approve(approve_of(code, now)).await
}

pub fn who(scope: &str, sender: &str) -> Who {
    Who { scope: scope.to_owned(), sender: sender.to_owned() }
}

async fn rows(store: &dyn Store, now: i64) -> AccessRows {
    store.access(now).await.expect("reads")
}

async fn codes(store: &dyn Store, now: i64) -> Vec<String> {
    rows(store, now).await.pairings.into_iter().map(|row| row.code).collect()
}

/// What each part of a lane says.
async fn words(store: &dyn Store, lane: &str) -> Vec<String> {
    let parts = store.parts(PartFilter::default(), 99).await.expect("reads");
    let mut words: Vec<String> = parts.into_iter().filter(|part| part.lane == lane).map(|part| part.text).collect();
    words.reverse();
    words
}

async fn strangers_ask_once_and_three_of_a_channel_wait(store: &dyn Store) {
    let new = |lane: &str| Asked::New { lanes: vec![lane_of(lane)] };
    assert_eq!(ask(store, asks("main", "a", "A", 1_000)).await, new("a"));
    assert_eq!(ask(store, asks("main", "a", "A2", 2_000)).await, Asked::Again, "one code while it is good");
    assert_eq!(ask(store, asks("main", "b", "B", 1_000)).await, new("b"));
    assert_eq!(ask(store, asks("main", "c", "C", 1_000)).await, new("c"));
    assert_eq!(ask(store, asks("main", "d", "D", 1_000)).await, Asked::Silence, "three of a channel wait");
    assert_eq!(ask(store, asks("other", "a", "E", 1_000)).await, new("a"), "each account has its own three");
    assert_eq!(ask(store, asks("other", "d", "A", 1_000)).await, Asked::Silence, "nobody gets another's code");
    assert_eq!(codes(store, 1_000).await, ["A", "B", "C", "E"]);
    assert_eq!(words(store, "a").await, ["part A", "part E"]);
    assert!(words(store, "d").await.is_empty());
    // Their hour is over: the fourth has a place, and so has who asked before, with a new code.
    assert!(codes(store, 1_000 + HOUR).await.is_empty());
    assert_eq!(ask(store, asks("main", "d", "D", 1_000 + HOUR)).await, new("d"));
    assert_eq!(ask(store, asks("main", "a", "A3", 1_000 + HOUR)).await, new("a"));
    assert_eq!(codes(store, 1_000 + HOUR).await, ["D", "A3"]);
    // A thousand at once are three.
    let many = (0..1_000).map(|n| asks("flood", &format!("s{n}"), &format!("F{n}"), 1_000)).collect();
    let answers = store.accept(NewBatch { pairings: many, ..NewBatch::default() }).await.expect("accepts");
    let new = answers.iter().filter(|answer| matches!(answer, Stored::Asked(Asked::New { .. }))).count();
    assert_eq!((answers.len(), new), (1_000, 3));
    assert_eq!(store.load().await, Ok(Load::default()), "the queue knows nothing of it");
    // What is past its hour goes with upkeep.
    while store.prune(1_000 + 9 * HOUR, &Retention::default()).await.expect("prunes") {}
    assert_eq!(codes(store, 0).await, Vec::<String>::new());
}

async fn a_request_its_words_and_the_cursor_are_one_commit(store: &dyn Store) {
    let cursor = Some((channel(), Cursor { key: "offset".to_owned(), value: "7".to_owned() }));
    let batch = NewBatch {
        entries: vec![new_entry("1", "s", "z")],
        pairings: vec![asks("main", "a", "A", 1_000)],
        cursor,
        ..NewBatch::default()
    };
    let stored = store.accept(batch).await.expect("accepts");
    assert!(matches!(stored[..], [Stored::New { .. }, Stored::Asked(Asked::New { .. })]), "{stored:?}");
    assert_eq!(store.kv_get(&channel(), "offset").await, Ok(Some("7".to_owned())));
    // A part whose id is taken cannot be stored: then nothing of its batch is.
    let taken = NewPairing { parts: vec![new_part("A", None, "b")], ..asks("main", "b", "B", 1_000) };
    let cursor = Some((channel(), Cursor { key: "offset".to_owned(), value: "8".to_owned() }));
    let batch =
        NewBatch { entries: vec![new_entry("2", "s", "z")], pairings: vec![taken], cursor, ..NewBatch::default() };
    assert!(matches!(store.accept(batch).await, Err(StoreError::Unavailable(_))));
    assert_eq!(codes(store, 1_000).await, ["A"]);
    assert_eq!(store.kv_get(&channel(), "offset").await, Ok(Some("7".to_owned())));
    assert_eq!(store.load().await.expect("counts").queued, 1);
}

async fn an_approval_is_good_once_and_says_so_again(store: &dyn Store) {
    ask(store, asks("main", "a", "A", 1_000)).await;
    ask(store, asks("main", "b", "B", 1_000)).await;
    for wrong in ["X", "a", ""] {
        assert_eq!(approve(store, wrong, 2_000).await, Err(StoreError::NotFound), "{wrong}");
    }
    let elsewhere = Approve { scope: Some("test:other".to_owned()), ..approve_of("A", 2_000) };
    assert_eq!(store.approve(elsewhere).await, Err(StoreError::NotFound));
    let late = approve(store, "A", 1_000 + HOUR).await;
    assert_eq!(late, Err(StoreError::NotFound), "a code that is too old looks like a wrong one");
    let kind = Approve { scope: Some("test".to_owned()), role: Some(Role::Trusted), ..approve_of("A", 2_000) };
    let first = store.approve(kind).await.expect("approves");
    assert_eq!((first.row.role, first.first_owner, first.again), (Role::Trusted, false, false));
    assert_eq!((first.row.sender.as_str(), first.row.name.as_deref()), ("a", Some("name of a")));
    assert_eq!(first.lanes, [lane_of("a")]);
    let again = approve(store, "A", 3_000).await.expect("approves");
    assert_eq!((&again.row, again.again, again.lanes.len()), (&first.row, true, 0));
    assert_eq!(words(store, "a").await, ["part A", "part in-A"], "told once");
    let rows = rows(store, 2_000).await;
    assert_eq!(rows.approved, [first.row]);
    assert_eq!(rows.pairings.len(), 1);
    assert_eq!(ask(store, asks("main", "a", "A2", 4_000)).await, Asked::Again, "whoever was let in needs no code");
}

async fn the_first_approved_owns_when_nobody_does(store: &dyn Store) {
    for (sender, code) in [("a", "A"), ("b", "B"), ("c", "C")] {
        ask(store, asks("main", sender, code, 1_000)).await;
    }
    let may = |code: &str, role| Approve { may_own: true, role, ..approve_of(code, 2_000) };
    let plain = store.approve(may("A", Some(Role::Member))).await.expect("approves");
    assert_eq!((plain.row.role, plain.first_owner), (Role::Member, false), "a role that was named is the role");
    let first = store.approve(may("B", None)).await.expect("approves");
    assert_eq!((first.row.role, first.first_owner), (Role::Owner, true));
    let second = store.approve(may("C", None)).await.expect("approves");
    assert_eq!((second.row.role, second.first_owner), (Role::Member, false));
}

async fn a_rejected_request_is_silent_until_its_hour_is_over(store: &dyn Store) {
    ask(store, asks("main", "a", "A", 1_000)).await;
    assert_eq!(store.reject(Some("test:other"), "A", 2_000).await, Err(StoreError::NotFound));
    assert_eq!(store.reject(None, "A", 2_000).await.expect("rejects").sender, "a");
    assert_eq!(store.reject(None, "A", 2_000).await, Err(StoreError::NotFound));
    assert_eq!(approve(store, "A", 2_000).await, Err(StoreError::NotFound));
    assert_eq!(ask(store, asks("main", "a", "A2", 3_000)).await, Asked::Silence);
    for (sender, code) in [("b", "B"), ("c", "C"), ("d", "D")] {
        let asked = ask(store, asks("main", sender, code, 3_000)).await;
        assert!(matches!(asked, Asked::New { .. }), "a rejected one takes no place");
    }
    let asked = ask(store, asks("main", "a", "A3", 1_000 + HOUR)).await;
    assert_eq!(asked, Asked::Silence, "its hour is over, and three wait");
    assert_eq!(codes(store, 3_000).await, ["B", "C", "D"]);
}

/// A message in a direct chat.
fn direct(id: &str, session: &str, sender: &str) -> NewEntry {
    let mut entry = new_entry(id, session, sender);
    entry.inbound.conversation.kind = ConversationKind::Direct;
    entry
}

async fn silent(store: &dyn Store, id: &str) -> Option<String> {
    settled(store, id).await.and_then(|settled| settled.silent)
}

async fn revoking_ends_direct_chats_alone(store: &dyn Store) {
    ask(store, asks("main", "a", "A", 1_000)).await;
    approve(store, "A", 1_000).await.expect("approves");
    accept_all(store, vec![direct("1", "d", "a"), direct("2", "d", "a"), new_entry("3", "g", "a")]).await;
    let claim = claim(store).await;
    assert_eq!(ids(&claim), ["1"]);
    assert_eq!(store.revoke(&who("test:other", "a"), 2_000).await, Err(StoreError::NotFound));
    let ended = store.revoke(&who("test:main", "a"), 2_000).await.expect("revokes");
    assert_eq!((ended.running, ended.settled, ended.events.len()), (vec![key("d")], 1, 1));
    assert_eq!(store.stop_asked(&claim.lease).await, Ok(true));
    assert_eq!(silent(store, "2").await.as_deref(), Some("stopped"));
    assert_eq!(store.load().await.expect("counts").queued, 2);
    let stopped = Finish { outcome: TurnOutcome::Stopped, ..finish_of(&claim, Vec::new()) };
    assert!(!store.finish(stopped).await.expect("finishes").more);
    assert_eq!(ids(&self::claim(store).await), ["3"], "what a group admits is not a pairing's");
    assert!(rows(store, 2_000).await.approved.is_empty());
    assert_eq!(store.revoke(&who("test:main", "a"), 2_000).await, Err(StoreError::NotFound));
    let asked = ask(store, asks("main", "a", "A2", 2_000)).await;
    assert!(matches!(asked, Asked::New { .. }), "a stranger again");
}

async fn blocking_ends_everything_of_one_sender(store: &dyn Store) {
    ask(store, asks("main", "a", "A", 1_000)).await;
    approve(store, "A", 1_000).await.expect("approves");
    ask(store, asks("main", "x", "X", 1_000)).await;
    accept_all(
        store,
        vec![new_entry("1", "g", "a"), new_entry("2", "g", "b"), new_entry("3", "g", "a"), direct("4", "d", "a")],
    )
    .await;
    let running = claim(store).await;
    assert_eq!(ids(&running), ["1"]);
    let ended = store.block(&who("test:main", "a"), 2_000).await.expect("blocks");
    assert_eq!((ended.running, ended.settled), (vec![key("g")], 2));
    nothing_due(store, 2_000).await;
    assert_eq!(silent(store, "4").await.as_deref(), Some("stopped"));
    assert_eq!(settled(store, "2").await, None, "the others' messages wait");
    let stopped = Finish { outcome: TurnOutcome::Stopped, ..finish_of(&running, Vec::new()) };
    assert!(store.finish(stopped).await.expect("finishes").more);
    let next = claim(store).await;
    assert_eq!(ids(&next), ["2"]);
    finish(store, &next).await;
    assert_eq!(store.load().await, Ok(Load::default()));
    // The approval is gone, and nobody who is blocked can ask. Blocking twice is once.
    store.block(&who("test:main", "a"), 2_500).await.expect("blocks");
    store.block(&who("test:main", "x"), 2_500).await.expect("blocks");
    let found = rows(store, 2_500).await;
    assert_eq!((found.approved.len(), found.pairings.len()), (0, 0));
    let blocked: Vec<_> = found.blocked.iter().map(|row| (row.sender.as_str(), row.created_at)).collect();
    assert_eq!(blocked, [("a", 2_000), ("x", 2_500)]);
    assert_eq!(ask(store, asks("main", "a", "A2", 2_500)).await, Asked::Silence);
    store.unblock(&who("test:main", "a"), 9).await.expect("unblocks");
    assert_eq!(store.unblock(&who("test:main", "a"), 9).await, Err(StoreError::NotFound));
    assert!(matches!(ask(store, asks("main", "a", "A2", 2_500)).await, Asked::New { .. }));
}

async fn a_block_of_a_kind_holds_on_every_account(store: &dyn Store) {
    ask(store, asks("main", "a", "A", 1_000)).await;
    ask(store, asks("other", "a", "B", 1_000)).await;
    approve(store, "B", 1_000).await.expect("approves");
    store.block(&who("tes", "a"), 2_000).await.expect("blocks");
    assert_eq!(rows(store, 2_000).await.approved.len(), 1, "a kind is the whole word");
    store.block(&who("test", "a"), 2_000).await.expect("blocks");
    let found = rows(store, 2_000).await;
    assert_eq!((found.approved.len(), found.pairings.len()), (0, 0));
    assert_eq!(ask(store, asks("main", "a", "C", 2_000)).await, Asked::Silence);
    assert_eq!(store.unblock(&who("test:main", "a"), 9).await, Err(StoreError::NotFound), "only as it was blocked");
}

async fn what_a_blocked_sender_left_to_go_on_is_settled(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("2", "s", "b")]).await;
    let claim = claim(store).await;
    store.park(&claim.lease, 900_000).await.expect("parks");
    nothing_due(store, 2_000).await;
    let ended = store.block(&who("test:main", "a"), 2_000).await.expect("blocks");
    assert_eq!((ended.running.len(), ended.settled), (0, 0), "the next claim settles what was to go on");
    let next = self::claim(store).await;
    assert_eq!(ids(&next), ["2"]);
    assert_eq!(silent(store, "1").await.as_deref(), Some("stopped"));
}

// ---------------------------------------------------------------------------------------------------------------------
// Plans, words to other chats, sub-agents.

fn plan_of(states: &[&str]) -> Plan {
    let list: Vec<Value> = states.iter().map(|state| json!({ "text": "step", "state": state })).collect();
    Plan::of(&list).expect("a plan")
}

/// Leases that are not this one, though the same turn may hold its session: after a restart it goes on under another.
fn others_than(lease: &Lease) -> Vec<Lease> {
    vec![
        Lease { session: key("other"), ..lease.clone() },
        Lease { epoch: lease.epoch - 1, ..lease.clone() },
        Lease { boot: boot("bt_0"), ..lease.clone() },
    ]
}

async fn a_plan_is_kept_until_its_session_begins_anew(store: &dyn Store) {
    accept_all(store, vec![new_entry("1", "s", "a"), new_entry("x", "other", "a")]).await;
    let running = claim(store).await;
    let turn = &running.lease.turn;
    assert_eq!(store.plan(&key("s")).await, Ok(None));
    let half = plan_of(&["done", "pending"]);
    let events = store.put_plan(&running.lease, &half, 1_500).await.expect("it runs");
    assert_eq!(events.len(), 1);
    assert_eq!(
        (events[0].task.as_str(), events[0].kind.as_str(), &events[0].data),
        ("in_1", "plan", &half.for_event())
    );
    assert_eq!(store.put_plan(&running.lease, &half, 1_600).await, Ok(Vec::new()), "a second time is nothing new");
    for lease in others_than(&running.lease) {
        let refused = store.put_plan(&lease, &half, 1_500).await;
        assert_eq!(refused, Err(StoreError::Fenced), "{lease:?}");
    }
    recover(store, "bt_2").await;
    let kept = store.plan(&key("s")).await.expect("reads").expect("it outlives the process");
    assert_eq!((&kept.plan, &kept.turn, kept.updated_at), (&half, turn, 1_500));
    assert_eq!(store.open_plans().await, Ok(vec![key("s")]));
    store.reset(&key("s"), 3_000).await.expect("resets");
    assert_eq!(store.plan(&key("s")).await, Ok(None));
    assert_eq!(store.open_plans().await, Ok(Vec::new()));
    let again = suspect(store, "bt_2").await.expect("it goes on");
    store.put_plan(&again.lease, &plan_of(&["done", "dropped"]), 4_000).await.expect("it runs");
    assert_eq!(store.open_plans().await, Ok(Vec::new()), "nothing of it is open");
}

async fn a_word_to_another_chat_is_stored_once_and_heard_there(store: &dyn Store) {
    let owner = NewEntry { role: Role::Owner, ..new_entry("2", "t", "o") };
    accept_all(store, vec![new_entry("1", "s", "a"), owner]).await;
    let told = store.chat_of(&key("s")).await.expect("reads").expect("somebody wrote there");
    assert_eq!((told.place.address.lane.as_str(), told.place.sender.id.as_str(), told.role), ("s", "a", Role::Member));
    assert_eq!(store.chat_of(&key("t")).await.expect("reads").expect("known").role, Role::Owner);
    assert_eq!(store.chat_of(&key("nobody")).await, Ok(None));
    assert_eq!(store.chats(9).await.expect("reads").len(), 2);
    assert_eq!(store.chats(1).await.expect("reads").len(), 1);

    let running = claim(store).await;
    let said = Word {
        lease: running.lease.clone(),
        parts: vec![new_part("w", None, "t")],
        heard: Some((key("t"), "late".to_owned())),
        now: 2_000,
    };
    assert_eq!(store.say(said.clone()).await, Ok(vec![lane_of("t")]));
    assert_eq!(store.say(said.clone()).await, Ok(Vec::new()), "once");
    for lease in others_than(&running.lease) {
        let ghost = Word { lease, parts: vec![new_part("v", None, "t")], ..said.clone() };
        assert_eq!(store.say(ghost).await, Err(StoreError::Fenced));
    }
    assert_eq!(to_send(store, "t", 2_000).await.part, new_part("w", None, "t").part);
    let heard = store.messages(&key("t"), 0, 9).await.expect("reads");
    let words = Message::Assistant { text: "late".to_owned(), calls: Vec::new(), opaque: None };
    assert_eq!(heard.iter().map(|row| &row.message).collect::<Vec<_>>(), [&words]);
}

fn child(name: &str, parent: &str) -> (Subagent, NewEntry) {
    let errand = Errand {
        kind: ErrandKind::Spawn,
        id: name.to_owned(),
        model: None,
        parent: Some(key(parent)),
        depth: 1,
        tick: None,
    };
    let subagent = Subagent {
        session: key(name),
        parent: key(parent),
        label: name.to_owned(),
        tools: Some(vec!["read".to_owned()]),
        rounds: 3,
        created_at: 1_000,
        ended_at: None,
    };
    (subagent, NewEntry { errand: Some(errand), ..new_entry(name, name, "a") })
}

async fn spawn(store: &dyn Store, name: &str, parent: &str, most: u32) -> Spawned {
    let (subagent, task) = child(name, parent);
    store.spawn(subagent, task, most).await.expect("stores")
}

fn given(claim: &Claim, how: How<'_>) -> Finish {
    let back = handback(&claim.entries[0], &claim.lease.session, how, 2_500);
    Finish { handback: Some(back.expect("it reports")), ..finish_of(claim, Vec::new()) }
}

async fn a_result_is_given_back_with_the_end_of_its_turn_and_once(store: &dyn Store) {
    assert_eq!(spawn(store, "c", "p", 1).await, Spawned::New);
    assert_eq!(spawn(store, "c", "p", 1).await, Spawned::Known);
    assert_eq!(spawn(store, "d", "p", 1).await, Spawned::TooMany(1));
    assert_eq!(store.chat_of(&key("c")).await, Ok(None), "an errand is nobody's chat");
    let (expected, _) = child("c", "p");
    assert_eq!(store.subagents(&key("p")).await, Ok(vec![expected.clone()]));
    let running = claim(store).await;
    store.finish(given(&running, How::Said("found"))).await.expect("finishes");
    assert_eq!(store.finish(given(&running, How::Said("found"))).await.err(), Some(StoreError::Fenced));
    assert_eq!(store.subagents(&key("p")).await, Ok(Vec::new()));
    let ended = Subagent { ended_at: Some(2_500), ..expected };
    assert_eq!(store.subagent(&key("c")).await, Ok(Some(ended)));
    let report = claim_at(store, 3_000).await.expect("the parent hears of it");
    let errand = report.entries[0].errand.clone().expect("an errand");
    assert_eq!((&report.lease.session, errand.kind, errand.depth), (&key("p"), ErrandKind::Report, 1));
    assert_eq!((report.entries[0].inbound.text.as_str(), report.entries[0].role), ("found", Role::Member));
    nothing_due(store, 9_000).await;
}

async fn what_was_stopped_or_buried_reports_as_it_should(store: &dyn Store) {
    for name in ["c", "d"] {
        assert_eq!(spawn(store, name, "p", 9).await, Spawned::New);
    }
    let running = claim(store).await;
    assert_eq!(spawn(store, "grandchild", "c", 9).await, Spawned::New);
    let stored = accept(store, vec![command("stop", "p", SessionChange::Stop)]).await;
    assert!(matches!(&stored[0], Stored::New { children, .. } if *children == [key("c")]), "{stored:?}");
    assert_eq!(store.stop_asked(&running.lease).await, Ok(true));
    for waited in ["d", "grandchild"] {
        assert_eq!(settled(store, waited).await.expect("settled").silent.as_deref(), Some("stopped"), "{waited}");
    }
    // It had its answer when it was told to stop: nobody hears of it.
    store.finish(given(&running, How::Said("too late"))).await.expect("finishes");
    nothing_due(store, 9_000).await;

    assert_eq!(spawn(store, "e", "p", 9).await, Spawned::New);
    for _ in 0..5 {
        let failed = claim_at(store, 9_000).await.expect("it is tried again");
        store.release(release_of(&failed, Some("the model is gone"))).await.expect("releases");
    }
    let report = claim_at(store, 9_000).await.expect("the parent hears of the failure");
    assert_eq!(report.lease.session, key("p"));
    assert!(report.entries[0].inbound.text.contains("the model is gone"), "{:?}", report.entries[0].inbound.text);
}

/// What `a` asked from the session `parent` of the session `of`.
fn question(id: &str, of: &str, parent: &str) -> NewEntry {
    let errand = Errand {
        kind: ErrandKind::Message,
        id: format!("session {of}"),
        model: None,
        parent: Some(key(parent)),
        depth: 1,
        tick: None,
    };
    NewEntry { errand: Some(errand), alone: true, ..new_entry(id, of, "a") }
}

async fn blocking_ends_the_errands_of_one_sender(store: &dyn Store) {
    for name in ["c", "d"] {
        assert_eq!(spawn(store, name, "p", 2).await, Spawned::New);
    }
    let running = claim(store).await;
    let report = report_of("c");
    accept_all(store, vec![report, question("q", "other", "p"), new_entry("theirs", "other", "b")]).await;
    let ended = store.block(&who("test:main", "a"), 2_000).await.expect("blocks");
    assert_eq!((ended.running, ended.settled), (vec![running.lease.session.clone()], 3));
    for id in ["d", "r", "q"] {
        assert_eq!(silent(store, id).await.as_deref(), Some("stopped"), "{id}");
    }
    assert_eq!(store.stop_asked(&running.lease).await, Ok(true));
    store.finish(given(&running, How::Said("too late"))).await.expect("finishes");
    assert_eq!(ids(&claim(store).await), ["theirs"]);
    nothing_due(store, 9_000).await;
    assert_eq!(store.subagents(&key("p")).await, Ok(Vec::new()), "none of them takes a place");
}

/// What a sub-agent came back with, waiting in the session `p`.
fn report_of(name: &str) -> NewEntry {
    let (_, task) = child(name, "p");
    let errand = Errand { kind: ErrandKind::Report, parent: None, ..task.errand.clone().expect("an errand") };
    NewEntry { errand: Some(errand), alone: true, ..new_entry("r", "p", "a") }
}

async fn who_asked_a_session_that_was_stopped_is_told(store: &dyn Store) {
    accept_all(store, vec![question("q1", "b", "p"), question("q2", "b", "p")]).await;
    let running = claim(store).await;
    accept_all(store, vec![command("stop", "b", SessionChange::Stop)]).await;
    assert_eq!(silent(store, "q2").await.as_deref(), Some("stopped"));
    store.finish(given(&running, How::Stopped)).await.expect("finishes");
    for _ in 0..2 {
        let report = claim_at(store, 3_000).await.expect("who asked hears of it");
        assert_eq!(report.lease.session, key("p"));
        assert!(report.entries[0].inbound.text.contains("stopped"), "{:?}", report.entries[0].inbound.text);
        store.finish(finish_of(&report, Vec::new())).await.expect("finishes");
    }
    nothing_due(store, 9_000).await;
}

async fn what_a_session_asked_ends_with_it(store: &dyn Store) {
    accept_all(store, vec![question("q1", "b", "p"), question("q2", "b", "p"), new_entry("x", "b", "b")]).await;
    let running = claim(store).await;
    let stored = accept(store, vec![command("stop", "p", SessionChange::Stop)]).await;
    assert!(matches!(&stored[0], Stored::New { children, .. } if *children == [key("b")]), "{stored:?}");
    assert_eq!(store.stop_asked(&running.lease).await, Ok(true));
    assert_eq!(silent(store, "q2").await.as_deref(), Some("stopped"));
    store.finish(given(&running, How::Said("too late"))).await.expect("finishes");
    assert_eq!(ids(&claim(store).await), ["x"], "what others said there goes on");
    nothing_due(store, 9_000).await;
}

async fn what_is_tried_again_reports_again(store: &dyn Store) {
    assert_eq!(spawn(store, "c", "p", 1).await, Spawned::New);
    for _ in 0..5 {
        let failed = claim_at(store, 9_000).await.expect("it is tried again");
        store.release(release_of(&failed, Some("the model is gone"))).await.expect("releases");
    }
    let failure = claim_at(store, 9_000).await.expect("the parent hears of the failure");
    store.finish(finish_of(&failure, Vec::new())).await.expect("finishes");
    store.resolve_dead(&InboxId::from("in_c"), DeadResolution::Retry, 9_000).await.expect("it is put back");
    let again = claim_at(store, 9_000).await.expect("it runs again");
    store.finish(given(&again, How::Said("found"))).await.expect("finishes");
    let report = claim_at(store, 9_000).await.expect("the parent hears of the result");
    assert_eq!((&report.lease.session, report.entries[0].inbound.text.as_str()), (&key("p"), "found"));
}
