//! The HTTP side on the real store and the real intake.

use std::sync::Arc;

use channel_api::{Clock, InboxId, TurnId};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{Events, GOOD, Gateway, MAIN, access_on, bearer, code, sent, start_on, status};
use crate::{
    clock::SystemClock,
    config::LimitsConfig,
    http::{Limits, config::ServerConfig},
    inbox::{QueueConfig, Running, WakeUp},
    intake::{Intake, SenderRates},
    journal::Journal,
    model::{Message, Usage},
    outbox::LaneWakeUp,
    store::{
        BootId, Claim, ClaimAsk, ClaimKind, Finish, InboxStore, Release, Released, Store, TurnOutcome, Upkeep,
        sqlite::SqliteStore,
    },
};

struct Real {
    gateway: Gateway,
    store: Arc<SqliteStore>,
    boot: BootId,
    clock: Arc<dyn Clock>,
    _dir: tempfile::TempDir,
}

async fn real() -> Real {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(SqliteStore::open(&dir.path().join("crawfish.db")).await.expect("a new database"));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let boot = BootId::generate();
    store.recover(&boot, clock.now_ms(), crate::store::no_apology()).await.expect("nothing to recover");
    let journal = Journal::new();
    let plans = crate::plan::Plans::open(store.clone(), journal.clone()).await.expect("it is read");
    let gateway =
        start_on(ServerConfig::default(), Limits::default(), journal.clone(), Default::default(), |channels| {
            let access = access_on(store.clone(), channels);
            let intake = Intake {
                access: access.clone(),
                inbox: store.clone(),
                sessions: store.clone(),
                turns: store.clone(),
                channels: channels.clone(),
                queue: QueueConfig::default(),
                ready: crate::upkeep::Ready::default(),
                limits: LimitsConfig::default(),
                boot: boot.clone(),
                clock: clock.clone(),
                work: WakeUp::default(),
                lanes: LaneWakeUp::default(),
                running: Running::default(),
                approvals: crate::approvals::Approvals {
                    rows: store.clone(),
                    chats: crate::chats::Chats {
                        rows: store.clone(),
                        channels: channels.clone(),
                        access: access.clone(),
                    },
                    channels: channels.clone(),
                    lanes: LaneWakeUp::default(),
                    config: Default::default(),
                },
                refused: Default::default(),
                halt: Default::default(),
                teller: None,
                health: Default::default(),
                plans,
                subagents: store.clone(),
                journal,
                marks: crate::marks::Marks::new(channels.clone(), Default::default(), clock.clone()).0,
                stopping: CancellationToken::new(),
                senders: SenderRates::default(),
                turned_away: Default::default(),
                ledger: Arc::new(crate::ledger::Ledger::new(
                    store.clone(),
                    clock.clone(),
                    jiff::tz::TimeZone::UTC,
                    Default::default(),
                    Default::default(),
                )),
                shelf: Arc::default(),
            };
            (store.clone() as Arc<dyn Store>, Arc::new(intake) as Arc<dyn channel_api::Intake>, access)
        })
        .await;
    Real { gateway, store, boot, clock, _dir: dir }
}

impl Real {
    async fn get(&self, path: &str) -> Value {
        let answer = sent(bearer(self.gateway.get(path), GOOD)).await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.expect("JSON")
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        let answer = sent(bearer(self.gateway.post(path, &body), GOOD)).await;
        assert_eq!(answer.status(), 200, "{path}");
        answer.json().await.expect("JSON")
    }

    async fn claim(&self) -> Claim {
        // Back-off is not waited for: the future claims.
        let now = self.clock.now_ms() + 3_600_000;
        let ask = ClaimAsk { boot: self.boot.clone(), now, max: 1, max_entries: 20, kind: ClaimKind::Ordinary };
        let claim = self.store.claim(&ask).await.expect("it can be read").pop().expect("a turn is due");
        self.gateway.journal.committed(claim.events.clone());
        claim
    }

    /// Answers the next message.
    async fn answer(&self, text: &str) -> TurnId {
        let claim = self.claim().await;
        let said = claim.entries[0].inbound.text.clone();
        let finish = Finish {
            lease: claim.lease.clone(),
            entries: vec![claim.entries[0].id.clone()],
            outcome: TurnOutcome::Replied,
            transcript: vec![
                Message::user(said),
                Message::Assistant { text: text.to_owned(), calls: Vec::new(), opaque: None },
            ],
            steps: Vec::new(),
            parts: Vec::new(),
            new_generation: false,
            summary: None,
            then: None,
            usage: Usage::default(),
            costs: Default::default(),
            model: None,
            notes: Vec::new(),
            now: self.clock.now_ms(),
            debounce_ms: 0,
            claim_parts: false,
            handback: None,
            preview_left: false,
            traceless: false,
        };
        let finished = self.store.finish(finish).await.expect("it is ours");
        self.gateway.journal.committed(finished.events);
        claim.lease.turn
    }
}

#[tokio::test]
async fn what_happened_can_be_listed_searched_and_traced() {
    let real = real().await;
    let asked = real.post("/api/chat", json!({ "message": "what is 小龙虾?" })).await;
    let task = asked["taskId"].as_str().expect("a task").to_owned();
    let turn = real.answer("A crawfish.").await;
    let mut events = Events::open(bearer(real.gateway.get(&format!("/sse?taskId={task}")), GOOD)).await;
    let kinds: Vec<String> =
        events.lines(2).await.iter().map(|line| line.split(' ').nth(1).unwrap_or("").into()).collect();
    assert_eq!(kinds, ["turn_started", "task_complete"]);

    let sessions = real.get("/api/sessions?limit=1").await;
    assert_eq!(sessions["sessions"][0]["key"], MAIN);
    let next = sessions["next"].as_str().expect("the page is full").to_owned();
    let rest = real.get(&format!("/api/sessions?limit=1&after={next}")).await;
    assert_eq!((rest["sessions"].as_array().map(Vec::len), &rest["next"]), (Some(0), &Value::Null));
    assert_eq!(real.get(&format!("/api/sessions/{MAIN}")).await["session"]["messages"], 2);
    let said = real.get(&format!("/api/sessions/{MAIN}/messages?limit=1")).await;
    assert_eq!(said["messages"][0]["message"], json!({ "role": "user", "text": "what is 小龙虾?" }));
    let said = real.get(&format!("/api/sessions/{MAIN}/messages?after={}", said["next"])).await;
    assert_eq!(said["messages"][0]["message"]["text"], "A crawfish.");
    assert_eq!(
        real.get(&format!("/api/sessions/{MAIN}/messages?last=10")).await["messages"].as_array().map(Vec::len),
        Some(2)
    );
    assert_eq!(real.get("/api/search?q=%E9%BE%99%E8%99%BE").await["messages"].as_array().map(Vec::len), Some(1));
    for of in [format!("task={task}"), format!("session={MAIN}"), String::new()] {
        assert_eq!(real.get(&format!("/api/turns?{of}")).await["turns"][0]["id"], turn.as_str(), "{of}");
    }
    assert_eq!(real.get(&format!("/api/turns/{turn}")).await["trace"]["entries"][0][0], task.as_str());
    let channels = real.get("/api/channels").await;
    let ids: Vec<&str> =
        channels["channels"].as_array().into_iter().flatten().filter_map(|row| row["id"].as_str()).collect();
    assert_eq!(ids, ["echo:one", "web:main"]);

    let doors = real.get("/api/doors").await;
    assert_eq!((&doors["doors"][0]["name"], &doors["doors"][0]["state"]), (&json!("model"), &json!("closed")));

    real.post(&format!("/api/sessions/{MAIN}/reset"), json!({})).await;
    assert_eq!(real.get(&format!("/api/sessions/{MAIN}/messages?last=10")).await["messages"], json!([]));
    for path in ["/api/sessions/agent:x", "/api/sessions/agent:x/messages", "/api/turns/tn_x", "/api/sessions/%FF"] {
        assert_eq!(code(bearer(real.gateway.get(path), GOOD)).await, (404, "not_found".into()), "{path}");
    }
    for path in ["/api/sessions?after=x", "/api/sessions?limit=x", "/api/dlq?after=x"] {
        assert_eq!(code(bearer(real.gateway.get(path), GOOD)).await, (400, "bad_query".into()), "{path}");
    }
    assert_eq!(code(bearer(real.gateway.get("/api/search?q="), GOOD)).await, (422, "invalid".into()));
}

#[tokio::test]
async fn commands_are_answered_at_once_to_whoever_watches() {
    let real = real().await;
    let mut events = Events::open(bearer(real.gateway.get("/sse?session=main"), GOOD)).await;
    let asked = real.post("/api/chat", json!({ "message": "/status" })).await;
    let (id, event) = events.next().await.expect("an event");
    assert_eq!((id.is_some(), &event["type"], &event["taskId"]), (true, &json!("task_complete"), &asked["taskId"]));
    assert!(event["result"].as_str().is_some_and(|text| text.contains(env!("CARGO_PKG_VERSION"))), "{event}");
}

#[tokio::test]
async fn the_same_key_is_the_same_message() {
    let real = real().await;
    let chat = |text: &str| {
        bearer(real.gateway.post("/api/chat", &json!({ "message": text })), GOOD).header("idempotency-key", "k")
    };
    let first: Value = sent(chat("hello")).await.json().await.expect("JSON");
    let again: Value = sent(chat("hello")).await.json().await.expect("JSON");
    assert_eq!((&again["taskId"], &again["duplicate"]), (&first["taskId"], &json!(true)));
    assert_eq!(code(chat("another")).await, (409, "id_conflict".into()));
    // The session takes twenty, and then says so.
    for n in 1..20 {
        real.post("/api/chat", json!({ "message": n.to_string() })).await;
    }
    let full = bearer(real.gateway.post("/api/chat", &json!({ "message": "one more" })), GOOD);
    assert_eq!(code(full).await, (429, "session_full".into()));
}

#[tokio::test]
async fn a_dead_letter_is_queued_again_or_let_go() {
    let real = real().await;
    for how in ["retry", "drop"] {
        let asked = real.post("/api/chat", json!({ "message": how, "session": how })).await;
        let task = InboxId::from(asked["taskId"].as_str().expect("a task").to_owned());
        loop {
            let claim = real.claim().await;
            let release = Release {
                lease: claim.lease,
                entries: vec![task.clone()],
                failure: Some("the model does not answer".into()),
                not_before: 0,
                apology: Vec::new(),
                now: real.clock.now_ms(),
            };
            if let Released::Dead { .. } = real.store.release(release).await.expect("it is ours") {
                break;
            }
        }
        assert_eq!(real.get("/api/dlq").await["dead_letters"][0]["id"], task.as_str());
        real.post(&format!("/api/dlq/{task}/{how}"), json!({})).await;
        assert_eq!(real.get("/api/dlq").await["dead_letters"], json!([]));
        assert_eq!(status(bearer(real.gateway.post(&format!("/api/dlq/{task}/{how}"), &json!({})), GOOD)).await, 404);
        if how == "retry" {
            assert_eq!(real.claim().await.entries[0].id, task);
        }
    }
}

#[tokio::test]
async fn the_figures_are_for_whoever_holds_the_token() {
    let real = real().await;
    assert_eq!(status(real.gateway.get("/metrics")).await, 401);
    let answer = sent(bearer(real.gateway.get("/metrics"), GOOD)).await;
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text().await.expect("text");
    for line in ["# TYPE crawfish_channel_up gauge", "crawfish_queued_messages 0", "crawfish_dead_letters 0"] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    let health = &real.gateway.health;
    health.came_in(&channel_api::ChannelId::new("echo", "one"), 2, real.clock.now_ms() - 61_000);
    let text = sent(bearer(real.gateway.get("/metrics"), GOOD)).await.text().await.expect("text");
    assert!(text.contains("crawfish_channel_in_total{channel=\"echo:one\"} 2\n"), "{text}");
    let age =
        text.lines().find_map(|line| line.strip_prefix("crawfish_channel_last_in_seconds{channel=\"echo:one\"} "));
    assert!(age.and_then(|age| age.parse::<f64>().ok()).is_some_and(|age| (61.0..120.0).contains(&age)), "{text}");
    assert!(!text.contains("last_out_seconds{"), "{text}");
    let listed = real.get("/api/channels").await;
    assert_eq!(listed["channels"][0]["health"]["in_total"], 2, "{listed}");
}
