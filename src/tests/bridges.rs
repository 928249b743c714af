//! The example bridges, run as their users run them: Python, standard library only.

use std::{
    process::Stdio,
    sync::{Arc, Mutex},
};

use axum::{Json, Router, extract::State, http::HeaderMap, http::Uri, routing::post};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpListener,
    process::{Child, Command},
    task::JoinSet,
    time::timeout,
};

use crate::support::{
    bridge::{Bridge, SECRET},
    gateway::{Gateway, client},
    model_server::ModelServer,
    wait::{SOON, until},
};

fn python(script: &str) -> Command {
    let mut command = Command::new("python3");
    command.arg(format!("{}/examples/bridges/{script}/bridge.py", env!("CARGO_MANIFEST_DIR")));
    command.env("BRIDGE_SECRET", SECRET).kill_on_drop(true);
    command
}

fn started(command: &mut Command) -> Child {
    match command.spawn() {
        Ok(child) => child,
        Err(error) => panic!("python3 cannot be started ({error}): install it, these tests run the example bridges"),
    }
}

/// A port that was free a moment ago: the callback's address must be written before anyone listens there.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it listens").port()
}

/// What a platform was called with: the path with its query, the bearer token, the body.
type Call = (String, String, Value);

/// A platform that takes every call.
struct Platform {
    url: String,
    calls: Arc<Mutex<Vec<Call>>>,
    _task: JoinSet<()>,
}

impl Platform {
    async fn start() -> Self {
        async fn take(
            State(calls): State<Arc<Mutex<Vec<Call>>>>,
            uri: Uri,
            headers: HeaderMap,
            Json(body): Json<Value>,
        ) -> Json<Value> {
            let token = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
            calls.lock().expect("no panic").push((uri.to_string(), token.to_owned(), body));
            Json(json!({ "code": 0, "retcode": 0, "tenant_access_token": "t-1", "expire": 7200, "data": {} }))
        }
        let calls = Arc::new(Mutex::new(Vec::new()));
        let app = Router::new().fallback(post(take)).with_state(Arc::clone(&calls));
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("it listens"));
        let mut task = JoinSet::new();
        task.spawn(async move { axum::serve(listener, app).await.expect("it serves") });
        Self { url, calls, _task: task }
    }

    /// The calls of a path so far, once there is one.
    async fn calls_of(&self, path: &str) -> Vec<Call> {
        until(&format!("{path} is called"), SOON, || async {
            let calls = self.calls.lock().expect("no panic");
            let found: Vec<Call> = calls.iter().filter(|call| call.0.starts_with(path)).cloned().collect();
            (!found.is_empty()).then_some(found)
        })
        .await
    }
}

/// A gateway whose webhook answers to the bridge that is started by `command`.
async fn bridged(name: &str, variables: &[(&str, &str)]) -> (Gateway, ModelServer, Child, String) {
    let (model, port) = (ModelServer::echo().await, free_port());
    let back = format!("callback_url = \"http://127.0.0.1:{port}/answers\"\nallow_private_callback = true");
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(&back))).await;
    let mut command = python(name);
    command
        .env("BRIDGE_URL", format!("{}/channels/webhook/bridge", gateway.url()))
        .env("BRIDGE_LISTEN", format!("127.0.0.1:{port}"))
        .envs(variables.iter().copied())
        .stdout(Stdio::piped());
    let mut bridge = started(&mut command);
    let mut lines = BufReader::new(bridge.stdout.take().expect("a pipe")).lines();
    let first = timeout(SOON, lines.next_line()).await.expect("soon").expect("it is read").expect("it starts");
    assert_eq!(first, format!("listening on 127.0.0.1:{port}"));
    (gateway, model, bridge, format!("http://127.0.0.1:{port}"))
}

#[tokio::test]
async fn the_echo_bridge_asks_and_prints_the_answers() {
    let model = ModelServer::echo().await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let url = format!("{}/channels/webhook/bridge", gateway.url());
    let mut command = python("echo");
    command.env("BRIDGE_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut bridge = started(&mut command);
    let mut input = bridge.stdin.take().expect("a pipe");
    input.write_all("hello there\n你好\n".as_bytes()).await.expect("it is written");
    drop(input);
    let output = timeout(SOON, bridge.wait_with_output()).await.expect("soon").expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines[0].contains("hello there") && lines[1].contains("你好"), "{said}");
}

#[tokio::test]
async fn the_napcat_bridge_carries_a_group_of_qq() {
    let qq = Platform::start().await;
    let (_gateway, _model, _bridge, url) =
        bridged("napcat", &[("ONEBOT_API", &qq.url), ("ONEBOT_TOKEN", "napcat-token")]).await;
    let event = |id: u64, parts: Value| {
        json!({ "post_type": "message", "message_type": "group", "self_id": 10_001, "user_id": 20_002, "group_id": 30_003,
            "message_id": id, "sender": { "nickname": "Ada" }, "message": parts })
        .to_string()
    };
    let push = async |body: String, key: &str| {
        let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
        let tag = ring::hmac::sign(&key, body.as_bytes());
        let hex: String = tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        let request = client().post(format!("{url}/onebot")).header("x-signature", format!("sha1={hex}")).body(body);
        request.send().await.expect("an answer").status().as_u16()
    };
    let said = |text: &str| json!({ "type": "text", "data": { "text": text } });
    let at = json!({ "type": "at", "data": { "qq": "10001" } });
    assert_eq!(push(event(1, json!([at, said(" forged")])), "another-token").await, 401);
    assert_eq!(push("[]".to_owned(), "napcat-token").await, 400);
    assert_eq!(push(event(2, json!([said("between us")])), "napcat-token").await, 204);
    assert_eq!(push(event(3, json!([at, said(" how are you")])), "napcat-token").await, 204);
    let calls = qq.calls_of("/send_msg").await;
    let [(_, token, call)] = &calls[..] else { panic!("one answer: {calls:?}") };
    assert_eq!(token, "Bearer napcat-token");
    assert_eq!((&call["message_type"], &call["group_id"]), (&json!("group"), &json!(30_003)));
    let text = call["message"][0]["data"]["text"].as_str().unwrap_or_default();
    assert!(text.contains("how are you") && !text.contains("forged"), "{text}");
}

#[tokio::test]
async fn the_feishu_bridge_carries_a_direct_chat() {
    let feishu = Platform::start().await;
    let variables = [
        ("FEISHU_API", feishu.url.as_str()),
        ("FEISHU_APP_ID", "cli_1"),
        ("FEISHU_APP_SECRET", "s"),
        ("FEISHU_VERIFICATION_TOKEN", "v-token"),
        ("FEISHU_BOT_OPEN_ID", "ou_bot"),
    ];
    let (_gateway, _model, _bridge, url) = bridged("feishu", &variables).await;
    let push = async |body: Value| {
        let answer = client().post(format!("{url}/feishu")).json(&body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap_or_default())
    };
    let hello = json!({ "type": "url_verification", "token": "v-token", "challenge": "c-1" });
    assert_eq!(push(hello).await, (200, json!({ "challenge": "c-1" })));
    let event = |token: &str| {
        json!({ "schema": "2.0", "header": { "event_type": "im.message.receive_v1", "token": token, "event_id": "e1" },
            "event": {
                "sender": { "sender_id": { "open_id": "ou_ada" }, "sender_type": "user" },
                "message": { "message_id": "om_1", "chat_id": "oc_1", "chat_type": "p2p", "message_type": "text",
                    "content": "{\"text\":\"how are you\"}" } } })
    };
    assert_eq!(push(event("forged")).await.0, 401);
    assert_eq!(push(event("v-token")).await.0, 200);
    // Feishu tells it again when an answer came late.
    assert_eq!(push(event("v-token")).await.0, 200);
    let calls = feishu.calls_of("/open-apis/im/v1/messages?receive_id_type=chat_id").await;
    let [(_, token, call)] = &calls[..] else { panic!("one answer: {calls:?}") };
    assert_eq!((token.as_str(), &call["receive_id"]), ("Bearer t-1", &json!("oc_1")));
    assert!(call["content"].as_str().is_some_and(|content| content.contains("how are you")), "{call}");
    assert!(call["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("pt_")), "{call}");
}
