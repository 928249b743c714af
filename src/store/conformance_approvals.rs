//! What every store must do with approvals, and with the audit rows that tell of them.

use serde_json::{Value, json};

use super::{
    ClaimAsk, ClaimKind, Lease, StepKind, StepState, Store, StoreError,
    conformance::{boot, key, new_entry, sqlite, step},
};
use crate::{
    approvals::{Approval, Asked, By, Decided, Decision, How, NewApproval, State},
    audit,
    policy::AskWhy,
    store::NewBatch,
};

const MINUTE: i64 = 60_000;

fn owner(how: How) -> By {
    By { who: "test:main 1".to_owned(), how }
}

fn row(lease: &Lease, id: &str, digest: &str, at: i64) -> Approval {
    Approval {
        id: id.to_owned(),
        state: State::Pending,
        session: lease.session.clone(),
        turn: lease.turn.clone(),
        call_id: format!("call_{id}"),
        agent: "main".to_owned(),
        tool: "exec".to_owned(),
        args: json!({ "command": "date", "token": "not for the log" }),
        folder: Some("/w".to_owned()),
        program: Some("/bin/sh".to_owned()),
        digest: digest.to_owned(),
        asker: "test:main:2".to_owned(),
        asker_name: None,
        shown_in: Some(key("owner")),
        why: AskWhy::Outside,
        may_always: true,
        created_at: at,
        expires_at: at + 5 * MINUTE,
        decided_by: None,
        decided_at: None,
    }
}

fn new(row: Approval) -> NewApproval {
    let now = row.created_at;
    NewApproval { row, upto: 7, parts: Vec::new(), reachable: true, text: "May I?".into(), holds_ms: 5 * MINUTE, now }
}

async fn turn(store: &dyn Store, id: &str, session: &str) -> Lease {
    let entries = vec![new_entry(id, session, "2")];
    store.accept(NewBatch { entries, ..NewBatch::default() }).await.expect("accepts");
    let ask = ClaimAsk { boot: boot("bt_1"), now: 2_000, max: 1, max_entries: 20, kind: ClaimKind::Ordinary };
    store.claim(&ask).await.expect("claims").pop().expect("it waits").lease
}

async fn asked(store: &dyn Store, lease: &Lease, row: Approval) -> Asked {
    store.ask(lease, new(row)).await.expect("asks")
}

/// What the log says of approvals: who, what, and one key of the rest.
async fn said(store: &dyn Store, of: &str) -> Vec<(String, String, Value)> {
    let rows = store.audit_rows(0, 0, Some("approval"), 100).await.expect("reads");
    rows.into_iter().map(|row| (row.who, row.what, row.detail[of].clone())).collect()
}

#[tokio::test]
async fn row_24_a_request_is_decided_once_used_once_and_each_step_of_it_stands_in_the_log() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let lease = turn(store, "1", "s").await;
    assert!(
        matches!(asked(store, &lease, row(&lease, "aaa", "d1", 3_000)).await, Asked::Waits { id, .. } if id == "aaa")
    );
    // A second question of the same call finds the first, under whatever id it comes.
    let again = Approval { call_id: "call_aaa".into(), ..row(&lease, "aab", "d1", 3_100) };
    assert!(matches!(asked(store, &lease, again).await, Asked::Waits { id, .. } if id == "aaa"));
    store.park(&lease, 400_000).await.expect("parks");
    assert_eq!(store.decide_approval("zzz", Decision::Once, &owner(How::Api), 3_200).await, Err(StoreError::NotFound));
    // Two owners at once: one of them decides.
    let (by_one, by_two) = (owner(How::Button), By { who: "test:main 3".to_owned(), how: How::Answer });
    let (one, two) = tokio::join!(
        store.decide_approval("AAA", Decision::Once, &by_one, 3_300),
        store.decide_approval("aaa", Decision::Deny, &by_two, 3_300)
    );
    let done = [one.expect("decides"), two.expect("decides")];
    assert_eq!(done.iter().filter(|one| matches!(one, Decided::Done(_))).count(), 1, "{done:?}");
    let approved = matches!(&done[0], Decided::Done(_));
    let ask = ClaimAsk { boot: boot("bt_1"), now: 3_400, max: 1, max_entries: 20, kind: ClaimKind::Ordinary };
    let lease = store.claim(&ask).await.expect("claims").pop().expect("it goes on").lease;
    let start = async |digest: &str| {
        let steps = vec![step("1", 0, StepKind::Tool, StepState::Started)];
        store.start_approved(&lease, "aaa", digest, steps, 3_500).await.map(|_| ())
    };
    assert_eq!(start("d2").await, Err(StoreError::NotFound), "other arguments");
    match approved {
        true => {
            assert_eq!(start("d1").await, Ok(()));
            assert_eq!(start("d1").await, Err(StoreError::NotFound), "a word is used once");
        }
        false => assert_eq!(start("d1").await, Err(StoreError::NotFound)),
    }
    let log = said(store, "id").await;
    let what: Vec<&str> = log.iter().map(|(_, what, _)| what.as_str()).collect();
    match approved {
        true => assert_eq!(what, ["asked", "approved once", "used"]),
        false => assert_eq!(what, ["asked", "denied"]),
    }
    assert_eq!(log[0].0, "test:main 2", "who asks");
    assert!(log.iter().all(|(_, _, id)| id == "aaa"), "{log:?}");
    let how = said(store, "how").await.swap_remove(1);
    let expected = if approved { ("test:main 1", "button") } else { ("test:main 3", "answer") };
    assert_eq!((how.0.as_str(), how.2.as_str()), (expected.0, Some(expected.1)));
    assert!(!format!("{:?}", said(store, "args").await).contains("not for the log"));
    audit::verify(store, &[]).await.expect("reads").expect("it holds");
}

#[tokio::test]
async fn row_24_an_answer_after_its_time_is_none_and_the_log_says_that_it_ended() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let lease = turn(store, "1", "s").await;
    asked(store, &lease, row(&lease, "aaa", "d1", 3_000)).await;
    let late = store.decide_approval("aaa", Decision::Once, &owner(How::Command), 3_000 + 5 * MINUTE).await;
    assert!(matches!(late, Ok(Decided::Over(row)) if row.state == State::Expired));
    assert_eq!(store.expire_approvals(9 * MINUTE).await, Ok(0), "it was ended already");
    assert_eq!(asked(store, &lease, row(&lease, "aab", "d1", 10 * MINUTE)).await, Asked::Expired, "not asked again");
    // A yes that nobody used in time is none either.
    asked(store, &lease, row(&lease, "bbb", "d2", 20 * MINUTE)).await;
    store.decide_approval("bbb", Decision::Once, &owner(How::Button), 20 * MINUTE).await.expect("decides");
    let late = Approval { created_at: 26 * MINUTE, ..row(&lease, "bbb", "d2", 20 * MINUTE) };
    assert_eq!(asked(store, &lease, late).await, Asked::Expired);
    let what: Vec<String> = said(store, "id").await.into_iter().map(|(_, what, _)| what).collect();
    assert_eq!(what, ["asked", "expired", "asked", "approved once", "expired unused"]);
    // Nobody there to be asked.
    let nobody = NewApproval { reachable: false, ..new(row(&lease, "ccc", "d3", 30 * MINUTE)) };
    assert_eq!(store.ask(&lease, nobody).await, Ok(Asked::Nobody));
    assert_eq!(said(store, "id").await.last().map(|(_, what, _)| what.as_str()), Some("refused: nobody to ask"));
}

#[tokio::test]
async fn what_was_approved_for_good_is_listed_and_can_be_taken_back() {
    let fixture = sqlite().await;
    let store = &*fixture.store;
    let lease = turn(store, "1", "s").await;
    asked(store, &lease, row(&lease, "aaa", "d1", 3_000)).await;
    store.decide_approval("aaa", Decision::Always, &owner(How::Chat), 3_100).await.expect("decides");
    let grants = store.always(9).await.expect("reads");
    let [grant] = &grants[..] else { panic!("{grants:?}") };
    assert_eq!((grant.id.as_str(), grant.tool.as_str(), grant.asker.as_str()), ("aaa", "exec", "test:main:2"));
    assert!(grant.what().starts_with("date"), "{}", grant.what());
    // The same of the same asker in another turn; not of somebody else, not with other arguments.
    let other = turn(store, "2", "t").await;
    assert_eq!(asked(store, &other, row(&other, "bbb", "d1", 4_000)).await, Asked::Always);
    let eve = Approval { asker: "test:main:66".to_owned(), ..row(&other, "ccc", "d1", 4_000) };
    assert!(matches!(asked(store, &other, eve).await, Asked::Waits { .. }));
    assert!(matches!(asked(store, &other, row(&other, "ddd", "d9", 4_000)).await, Asked::Waits { .. }));
    // What is never approved for good is not, whatever the decision says.
    let once = Approval { may_always: false, ..row(&other, "eee", "d5", 4_000) };
    asked(store, &other, once).await;
    store.decide_approval("eee", Decision::Always, &owner(How::Api), 4_100).await.expect("decides");
    assert_eq!(store.always(9).await.expect("reads").len(), 1);

    let gone = store.revoke_always("AAA", &owner(How::CommandLine), 5_000).await.expect("revokes");
    assert_eq!(&gone, grant);
    assert_eq!(store.revoke_always("aaa", &owner(How::Api), 5_000).await, Err(StoreError::NotFound));
    let third = turn(store, "3", "u").await;
    assert!(matches!(asked(store, &third, row(&third, "fff", "d1", 6_000)).await, Asked::Waits { .. }));
    let what: Vec<String> = said(store, "id").await.into_iter().map(|(_, what, _)| what).collect();
    assert_eq!(
        what,
        [
            "asked",
            "approved always",
            "let through: always",
            "asked",
            "asked",
            "asked",
            "approved once",
            "always revoked",
            "asked"
        ]
    );
    audit::verify(store, &[]).await.expect("reads").expect("it holds");
}
