//! The contract of reception and the loop's decisions, against a server that keeps updates until they are confirmed.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    response::{IntoResponse, Response},
};
use channel_api::{
    Accepted, Channel, ChannelKv, Clock,
    contract::{self, FakeGateway, Platform},
};
use reqwest::StatusCode;
use serde_json::json;
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

use super::*;
use crate::{Config, Telegram};

const TOKEN: &str = "4242:AAF0_ak-8s7dHqXyZ1234567890abcdefgh";

/// What is answered instead of updates.
type Refusal = (u16, &'static str);

#[derive(Default)]
struct Told {
    updates: Vec<Value>,
    /// The `offset` of each question.
    offsets: Vec<Option<i64>>,
    refusals: VecDeque<Refusal>,
    /// What was sent.
    said: Vec<Value>,
}

struct Server {
    url: String,
    told: Arc<(Mutex<Told>, watch::Sender<u64>)>,
    _serving: JoinSet<()>,
}

impl Server {
    async fn start() -> Self {
        let told: Arc<(Mutex<Told>, watch::Sender<u64>)> = Arc::new((Mutex::default(), watch::channel(0).0));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let router = Router::new().route("/{bot}/{method}", axum::routing::post(answer)).with_state(told.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
        Self { url, told, _serving: serving }
    }

    fn change<T>(&self, change: impl FnOnce(&mut Told) -> T) -> T {
        let result = change(&mut self.told.0.lock().unwrap_or_else(PoisonError::into_inner));
        self.told.1.send_modify(|n| *n += 1);
        result
    }

    fn says(&self, updates: impl IntoIterator<Item = Value>) {
        self.change(|told| told.updates.extend(updates));
    }

    fn refuses(&self, refusals: impl IntoIterator<Item = Refusal>) {
        self.change(|told| told.refusals.extend(refusals));
    }

    /// Waits until what was asked satisfies a condition.
    async fn until(&self, what: &str, condition: impl Fn(&Told) -> bool) {
        let mut changed = self.told.1.subscribe();
        let waiting = async {
            while !condition(&self.told.0.lock().unwrap_or_else(PoisonError::into_inner)) {
                changed.changed().await.expect("the server lives");
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap_or_else(|_| panic!("waited for {what}"));
    }

    fn channel(&self) -> Telegram {
        let config: Config = toml::from_str(&format!("token = '{TOKEN}'\napi_url = '{}'", self.url)).expect("a config");
        Telegram::new("main", &config, &channel_socket::Network::new(None, None).expect("a network"))
            .expect("a good config")
    }
}

async fn answer(
    State(told): State<Arc<(Mutex<Told>, watch::Sender<u64>)>>,
    Path((_, method)): Path<(String, String)>,
    body: Bytes,
) -> Response {
    let body: Value = serde_json::from_slice(&body).expect("a call is JSON");
    let lock = || told.0.lock().unwrap_or_else(PoisonError::into_inner);
    let result = match method.as_str() {
        "getMe" => json!({ "id": 4242, "is_bot": true, "first_name": "C", "username": "crawfish_bot" }),
        "getUpdates" => {
            let offset = body["offset"].as_i64();
            {
                let mut told = lock();
                told.offsets.push(offset);
                told.updates.retain(|update| offset.is_none_or(|offset| update["update_id"].as_i64() >= Some(offset)));
            }
            told.1.send_modify(|n| *n += 1);
            let mut changed = told.1.subscribe();
            loop {
                {
                    let mut told = lock();
                    if let Some((status, body)) = told.refusals.pop_front() {
                        return (StatusCode::from_u16(status).expect("a status"), body).into_response();
                    }
                    if !told.updates.is_empty() {
                        break Value::Array(told.updates.clone());
                    }
                }
                if changed.changed().await.is_err() {
                    break json!([]);
                }
            }
        }
        "sendMessage" => {
            lock().said.push(body);
            json!({ "message_id": 900 })
        }
        _ => json!(true),
    };
    told.1.send_modify(|n| *n += 1);
    axum::Json(json!({ "ok": true, "result": result })).into_response()
}

fn update(id: i64, text: &str) -> Value {
    json!({ "update_id": id, "message": {
        "message_id": id, "date": 1_795_000_000, "text": text, "chat": { "id": 99, "type": "private" },
        "from": { "id": 99, "is_bot": false, "first_name": "Ada" },
    }})
}

struct Bot(Server);

#[async_trait]
impl Platform for Bot {
    fn channel(&self) -> Arc<dyn Channel> {
        Arc::new(self.0.channel())
    }

    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        let n = i64::from(n);
        // Delivered again though it was confirmed: as after an answer that was lost on the way.
        self.0.change(|told| {
            told.updates = vec![update(n, &format!("message {n}"))];
            told.offsets.clear();
        });
        gateway.kv.set("offset:4242", "").await.expect("a map in memory");
        let confirmed = self.0.until("the question that confirms", |told| told.offsets.last() == Some(&Some(n + 1)));
        tokio::select! {
            ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
            () = confirmed => true,
            // It was refused, and waits before it tries again.
            () = gateway.clock.until_sleeping(1) => false,
        }
    }
}

#[tokio::test]
async fn nothing_is_confirmed_before_it_is_stored() {
    contract::check_reception(&Bot(Server::start().await)).await;
}

#[tokio::test]
async fn a_shutdown_ends_the_poll_at_once() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    contract::check_shutdown(&server.channel(), &gateway).await;
}

/// Runs the channel until a condition holds.
async fn run_until(server: &Server, gateway: &FakeGateway, what: &str, condition: impl Fn(&Told) -> bool) {
    let channel = server.channel();
    channel.open(&gateway.context());
    tokio::select! {
        ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
        () = server.until(what, condition) => {}
    }
}

fn asked_from(offset: i64) -> impl Fn(&Told) -> bool {
    move |told| told.offsets.last() == Some(&Some(offset))
}

#[tokio::test]
async fn a_batch_is_one_commit_with_its_position_and_bad_updates_cost_only_themselves() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    server.says([
        update(10, "first"),
        json!({ "update_id": 11, "brand_new": {} }),
        json!({ "update_id": 12, "message": { "chat": "?" } }),
        json!({ "no": "id" }),
        json!("nonsense"),
        update(13, "second"),
    ]);
    run_until(&server, &gateway, "the confirmation", asked_from(14)).await;
    let [batch] = &gateway.intake.batches()[..] else { panic!("one batch") };
    let texts: Vec<&str> = batch.events.iter().map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["first", "second"]);
    let value = format!("14@{}", gateway.clock.now_ms());
    assert_eq!(batch.cursor, Some(Cursor { key: "offset:4242".to_owned(), value }));
}

#[tokio::test]
async fn a_restart_goes_on_where_it_stood() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    let now = gateway.clock.now_ms();
    gateway.kv.set("offset:4242", &format!("50@{now}")).await.expect("a map in memory");
    run_until(&server, &gateway, "the first question", asked_from(50)).await;
    // Lower ids than ever: after a week without messages Telegram begins anew.
    server.change(|told| told.offsets.clear());
    gateway.kv.set("offset:4242", &format!("50@{}", now - STALE_MS)).await.expect("a map in memory");
    server.says([update(7, "after a week")]);
    run_until(&server, &gateway, "the confirmation", asked_from(8)).await;
    assert_eq!(gateway.intake.events().len(), 1);
    // Nonsense in the map is no position.
    gateway.kv.set("offset:4242", "x@y").await.expect("a map in memory");
    server.change(|told| told.offsets.clear());
    run_until(&server, &gateway, "a question", |told| told.offsets == [None]).await;
}

#[tokio::test]
async fn bad_input_42_updates_that_start_nothing_are_confirmed_too() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    server.says([json!({ "update_id": 20, "poll": {} })]);
    run_until(&server, &gateway, "the confirmation", asked_from(21)).await;
    assert!(gateway.intake.batches().is_empty());
    let stored = gateway.kv.get("offset:4242").await.expect("a map in memory");
    assert_eq!(stored, Some(format!("21@{}", gateway.clock.now_ms())));
}

#[tokio::test]
async fn where_a_group_moved_is_remembered() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    let chat = json!({ "id": -500, "type": "group", "title": "Friends" });
    server.says([json!({ "update_id": 10, "message": {
        "message_id": 60, "date": 1_795_000_000, "chat": chat, "migrate_to_chat_id": -1_001_234_567_890_i64,
        "from": { "id": 99, "is_bot": false, "first_name": "Ada" },
    }})]);
    run_until(&server, &gateway, "the confirmation", asked_from(11)).await;
    let stored = gateway.kv.get("moved:-500").await.expect("a map in memory");
    assert_eq!(stored.as_deref(), Some("-1001234567890"));
}

#[tokio::test]
async fn a_refused_message_is_told_to_its_sender_once() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    gateway.intake.answer_next(Ok(vec![Accepted::Full(Duration::from_secs(7)); 2]));
    server.says([update(10, "多"), update(11, "too much")]);
    run_until(&server, &gateway, "the confirmation", asked_from(12)).await;
    let told = server.change(|told| told.said.clone());
    assert_eq!(told, [json!({ "chat_id": 99, "text": "消息太密了，这一条没有收下。请 7 秒后再发一次。" })]);
}

#[tokio::test]
async fn bad_input_48_each_failure_has_its_consequence() {
    let run = async |refusals: &[Refusal]| {
        let server = Server::start().await;
        let gateway = FakeGateway::new();
        server.refuses(refusals.iter().copied());
        server.channel().run(gateway.context()).await
    };
    let ended = run(&[(401, r#"{"ok":false,"error_code":401,"description":"Unauthorized"}"#)]).await;
    assert!(matches!(ended, Err(ChannelError::Stop(_))), "{ended:?}");
    let ended = run(&[(409, r#"{"ok":false,"error_code":409,"description":"Conflict: terminated by other"}"#)]).await;
    assert!(matches!(ended, Err(ChannelError::RestartAfter(pause, _)) if pause >= CONFLICT_PAUSE), "{ended:?}");
    let ended = run(&[(200, r#"{"ok":true,"result":{}}"#)]).await;
    assert!(matches!(ended, Err(ChannelError::Restart(_))), "{ended:?}");
    let ended = run(&[(200, r#"{"ok":true,"result":[{"message":{}}]}"#)]).await;
    assert!(matches!(ended, Err(ChannelError::Restart(_))), "{ended:?}");
}

#[tokio::test]
async fn pages_are_waited_out_with_growing_pauses_and_then_told_to_the_supervisor() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    let page = (502, "<html>Bad Gateway</html>");
    server.refuses([page; 3]);
    let channel = server.channel();
    let clock = gateway.clock.clone();
    tokio::select! {
        ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
        () = async {
            for _ in 0..3 {
                clock.until_sleeping(1).await;
                clock.advance(Duration::from_secs(60));
            }
            server.until("the fourth question", |told| told.offsets.len() == 4).await;
        } => {}
    }
    // Another server: the question that was just cut off may still stand at this one.
    let server = Server::start().await;
    server.refuses([page; 4]);
    let channel = server.channel();
    let ended = async {
        let driven = async {
            loop {
                clock.until_sleeping(1).await;
                clock.advance(Duration::from_secs(60));
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            ended = channel.run(gateway.context()) => ended,
            () = driven => unreachable!("it goes on until the run ends"),
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(30), ended).await.expect("it ends");
    assert!(matches!(ended, Err(ChannelError::Restart(_))), "{ended:?}");
}

#[tokio::test]
async fn a_pause_that_telegram_names_is_kept() {
    let server = Server::start().await;
    let gateway = FakeGateway::new();
    server.refuses([(429, r#"{"ok":false,"error_code":429,"description":"x","parameters":{"retry_after":9}}"#)]);
    let channel = server.channel();
    let clock = gateway.clock.clone();
    tokio::select! {
        ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
        () = async {
            clock.until_sleeping(1).await;
            clock.advance(Duration::from_secs(8));
            assert_eq!(server.change(|told| told.offsets.len()), 1, "too early");
            clock.advance(Duration::from_secs(1));
            server.until("the next question", |told| told.offsets.len() == 2).await;
        } => {}
    }
}

#[test]
fn pauses_grow_by_chance_and_never_shrink() {
    for _ in 0..100 {
        let pause = jittered(Duration::from_secs(10));
        assert!(pause >= Duration::from_secs(10) && pause <= Duration::from_secs(15), "{pause:?}");
    }
}
