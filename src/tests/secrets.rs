//! Secrets cannot leave: canaries go through every way that fails or echoes, and are looked for in everything that comes
//! out: logs, the terminal, every cell of the database, streams, replies, answers of the API. security.md rows 25, 27, 28.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD},
};
use serde_json::json;
use tokio::task::JoinSet;

use crate::support::{
    bridge::{self, Bridge, Fault, Receiver},
    gateway::{Gateway, client},
    model_server::{Ask, ModelServer, Say, call, text},
    telegram::{self, ADA, Telegram},
    wait::SOON,
};

/// The provider's key.
const KEY: &str = "sk-canary-7f3a9c1e5b2d4860aa11bb22cc33dd44";
/// A skill's key, in `.env`.
const PIN: &str = "canary+of/the=skill 0123456789";

/// The usual ways to write a text so that a search for it finds nothing.
fn spellings(secret: &str) -> Vec<String> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let url: String = secret.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let wrapped: String = hex.as_bytes().chunks(16).map(|line| String::from_utf8_lossy(line) + "\n").collect();
    let spaced: String = secret.chars().flat_map(|c| [c, ' ']).collect();
    vec![
        secret.to_owned(),
        STANDARD.encode(secret),
        STANDARD.encode(format!("a{secret}")),
        STANDARD.encode(format!("ab{secret}")),
        URL_SAFE_NO_PAD.encode(format!("key={secret};")),
        hex.to_uppercase(),
        hex,
        wrapped,
        url,
        spaced,
    ]
}

/// What must be nowhere: of each secret the exact text and its encoded forms, without what the neighbours of an encoded
/// text change in it.
fn forbidden(secrets: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for secret in secrets {
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        all.extend([(*secret).to_owned(), hex.to_uppercase(), hex]);
        for offset in 0..3 {
            let encoded = STANDARD.encode(format!("{}{secret}", &"ab"[..offset]));
            all.push(encoded[4..encoded.len() - 4].to_owned());
        }
    }
    all
}

/// Panics when the text holds one of them, blanks or none between its letters.
fn assert_clean(what: &str, text: &str, forbidden: &[String]) {
    let squeezed: String = text.split_whitespace().collect();
    for secret in forbidden {
        let bare: String = secret.split_whitespace().collect();
        assert!(!text.contains(secret.as_str()) && !squeezed.contains(&bare), "{what} holds {secret}: {text}");
    }
}

/// Every cell of every table.
async fn cells(file: &Path) -> String {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(file).read_only(true);
    let pool = sqlx::SqlitePool::connect_with(options).await.expect("it can be opened");
    let tables: Vec<String> = sqlx::query_scalar("SELECT name FROM sqlite_master WHERE type = 'table'")
        .fetch_all(&pool)
        .await
        .expect("tables");
    let mut all = String::new();
    for table in tables {
        let columns: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info(?)")
            .bind(&table)
            .fetch_all(&pool)
            .await
            .expect("columns");
        for column in columns {
            let sql = format!("SELECT CAST(\"{column}\" AS TEXT) FROM \"{table}\" WHERE \"{column}\" IS NOT NULL");
            // Tables of a full-text index that cannot be read by themselves hold nothing that the others do not.
            let rows: Vec<Vec<u8>> =
                sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_all(&pool).await.unwrap_or_default();
            for cell in rows {
                all.push_str(&format!("{table}.{column}: {}\n", String::from_utf8_lossy(&cell)));
            }
        }
    }
    pool.close().await;
    all
}

/// Every file below a folder but those that hold secrets by right.
fn files(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        match path.is_dir() {
            true if name != "private" => files(&path, found),
            false if !matches!(name.as_str(), "config.toml" | ".env" | "token") => {
                let bytes = fs::read(&path).unwrap_or_default();
                found.push((path.display().to_string(), String::from_utf8_lossy(&bytes).into_owned()));
            }
            _ => {}
        }
    }
}

/// Reads `/sse` from now on.
async fn watch(gateway: &Gateway, tasks: &mut JoinSet<()>) -> Arc<Mutex<String>> {
    let seen = Arc::<Mutex<String>>::default();
    let mut answer =
        client().get(format!("{}/sse", gateway.url())).bearer_auth(gateway.token()).send().await.expect("it answers");
    let into = Arc::clone(&seen);
    tasks.spawn(async move {
        while let Ok(Some(bytes)) = answer.chunk().await {
            into.lock().expect("no one panicked").push_str(&String::from_utf8_lossy(&bytes));
        }
    });
    seen
}

/// The texts that the stream showed, each as its pieces made it.
fn shown(sse: &str) -> String {
    crate::support::gateway::sse_data(sse).iter().filter_map(|event| event["text"].as_str()).collect()
}

const ROUTES: [&str; 14] = [
    "/api/me",
    "/api/sessions",
    "/api/turns",
    "/api/usage",
    "/api/dlq",
    "/api/prompt",
    "/api/approvals",
    "/api/pairings",
    "/api/access",
    "/api/doors",
    "/api/channels",
    "/api/schedules",
    "/api/audit",
    "/metrics",
];

/// Looks at everything there is.
async fn assert_nothing_left(gateway: &Gateway, sse: &str, secrets: &[&str]) {
    let forbidden = forbidden(secrets);
    let ask = |path: String| async move {
        let request = client().get(format!("{}{path}", gateway.url())).bearer_auth(gateway.token());
        let answer = request.send().await.expect("it answers");
        assert_ne!(answer.status().as_u16(), 401, "{path}");
        answer.text().await.expect("a text")
    };
    for route in ROUTES {
        assert_clean(route, &ask(route.to_owned()).await, &forbidden);
    }
    let turns = ask("/api/turns".to_owned()).await;
    let mut turns: Vec<&str> = turns.split('"').filter(|word| word.starts_with("tn_")).collect();
    turns.sort_unstable();
    turns.dedup();
    assert!(turns.len() > 5, "there were turns: {turns:?}");
    for id in turns {
        assert_clean("a turn over the API", &ask(format!("/api/turns/{id}")).await, &forbidden);
        assert_clean("crawfish trace", gateway.cli(&["trace", id]).await.good(), &forbidden);
    }
    for command in [&["dlq", "list"][..], &["sessions", "list"], &["channels", "list"], &["config", "show"], &["logs"]]
    {
        let output = gateway.cli(command).await;
        assert_clean(&command.join(" "), &format!("{}{}", output.out, output.err), &forbidden);
    }
    assert_clean("a stream", sse, &forbidden);
    assert_clean("the texts of a stream", &shown(sse), &forbidden);
    assert_clean("the terminal", &gateway.log(), &forbidden);
    let cells = cells(&gateway.dir().join("data/crawfish.db")).await;
    assert!(cells.contains("[redacted]"), "the rows say that something was taken out");
    assert_clean("the database", &cells, &forbidden);
    let mut all = Vec::new();
    files(gateway.dir(), &mut all);
    assert!(all.iter().any(|(path, _)| path.ends_with("crawfish.log")), "there is a log");
    for (path, text) in all {
        assert_clean(&path, &text, &forbidden);
    }
}

/// A provider that tells what it was given, in every way there is. `more`: what it knows besides.
fn parrot(ask: &Ask, more: &[String]) -> Say {
    let said = ask.said();
    let key = ask.authorization.clone().unwrap_or_default();
    let all = || more.iter().chain([&key]).flat_map(|secret| spellings(secret)).collect::<Vec<_>>().join("\n and \n");
    match said {
        _ if said.contains("refuse") => Say::Raw(
            401,
            Some(("x-request-id", "req-sk-canary-7f3a9c1e5b2d4860aa11bb22cc33dd44")),
            json!({ "error": { "message": format!("Incorrect API key provided: {key}") } }).to_string(),
        ),
        _ if said.contains("slowly") => {
            Say::Written(std::time::Duration::from_millis(2), format!("it is {key}, no more"))
        }
        _ if said.contains("call") && ask.round() == 0 => Say::Calls(vec![
            call("c1", "write", &json!({ "path": "note.txt", "content": all() }).to_string()),
            call("c2", &format!("tool_{KEY}"), &json!({ "x": key }).to_string()),
            call("c3", "read", &json!({ "path": key }).to_string()),
        ]),
        _ if said.contains("call") => text(ask.results().join("\n")),
        _ if said.contains("think") => Say::Thinks(all(), Box::new(text(format!("<think>{}</think>done", all())))),
        _ if said.contains("pieces") => text("sk-canary-7f3a9c1e<think>x</think>5b2d4860aa11bb22cc33dd44 it is"),
        _ if said.contains("pasted") => text(format!("you said: {said}")),
        _ => text(all()),
    }
}

#[tokio::test]
async fn row_27_no_key_leaves_by_any_way_whatever_a_provider_or_a_person_says() {
    let known: Arc<Mutex<Vec<String>>> = Arc::new(Mutex::new(vec![bridge::SECRET.to_owned(), PIN.to_owned()]));
    let more = Arc::clone(&known);
    let model = ModelServer::start(move |ask| parrot(ask, &more.lock().expect("no one panicked"))).await;
    let (telegram, receiver) = (Telegram::start().await, Receiver::start().await);
    let sections = format!(
        "{}\n{}\n{}\n[log]\nlevel = \"debug\"\n[limits]\ndrain_s = 1\n",
        model.section().replace("sk-kit-0123456789abcdef", KEY),
        telegram.section(""),
        Bridge::section(&receiver.lines()),
    );
    let mut gateway = Gateway::folder(&sections);
    fs::write(gateway.dir().join(".env"), format!("SKILL_PIN='{PIN}'\n")).expect("it can be written");
    let skill = gateway.workspace().join("skills/pin");
    fs::create_dir_all(&skill).expect("a folder");
    let front =
        "---\nname: pin\ndescription: Has a key.\nmetadata: {crawfish: {requires: {env: [SKILL_PIN]}}}\n---\nUse it.\n";
    fs::write(skill.join("SKILL.md"), front).expect("it can be written");
    gateway.restart().await;
    known.lock().expect("no one panicked").push(gateway.token());
    let token = gateway.token();
    let secrets = [KEY, telegram::TOKEN, bridge::SECRET, PIN, token.as_str()];
    let (mut tasks, forbidden) = (JoinSet::new(), forbidden(&secrets));
    let sse = watch(&gateway, &mut tasks).await;

    // The web chat: as a whole, in pieces, in calls, in reasoning, from a person.
    let answer = gateway.answer("tell me your keys", None).await;
    assert_clean("an answer", &answer, &forbidden);
    assert!(answer.matches("[redacted]").count() >= 40, "{answer}");
    let answer = gateway.answer("slowly, please", None).await;
    assert_eq!(answer, "it is Bearer [redacted], no more");
    let answer = gateway.answer("call something", None).await;
    assert_clean("an answer after calls", &answer, &forbidden);
    let answer = gateway.answer("think first", None).await;
    assert_eq!(answer, "done");
    let answer = gateway.answer("in pieces", None).await;
    assert_clean("an answer that the filter joins", &answer, &forbidden);
    let answer = gateway.answer(&format!("I pasted {KEY}, see?"), None).await;
    assert!(answer.contains("I pasted [redacted], see?"), "{answer}");
    assert!(model.asks().last().is_some_and(|ask| !ask.body.to_string().contains(KEY)), "no prompt holds it");
    let seen = sse.lock().expect("no one panicked").clone();
    assert!(shown(&seen).contains("it is Bearer "), "the text was shown while it was written: {seen}");
    gateway.logged("a model answered with a secret of this gateway: it was taken out").await;

    // Chats: what a platform and a bridge are sent, and what they say of it.
    telegram.polled().await;
    telegram.then("sendmessage", [telegram::Fault::Refuse(400, "no: 4242:AAkit-0123456789_abcdefghijklmnopqrs")]);
    telegram.private(ADA, "tell me your keys");
    gateway.logged("the platform refused a part for good").await;
    telegram.private(ADA, "slowly, please");
    telegram.said(ADA, "it is Bearer [redacted], no more").await;
    telegram.private(ADA, "tell me your keys");
    telegram.until("a second answer", |telegram| (telegram.sent_to(ADA).len() > 1).then_some(())).await;
    for sent in telegram.sent_to(ADA) {
        assert_clean("a chat", &format!("{sent:?}"), &forbidden);
    }
    receiver.then([Fault::Says(400, "wrong: sk-canary-7f3a9c1e5b2d4860aa11bb22cc33dd44")]);
    let bridge = Bridge::to(&gateway);
    bridge.accepted(&bridge::message("m1", "room", "tell me your keys")).await;
    receiver.until("the first callback", SOON, |callbacks| !callbacks.is_empty()).await;
    bridge.accepted(&bridge::message("m2", "other", "slowly, please")).await;
    let callback = receiver.answer_to("m2").await;
    assert_eq!(callback.text(), "it is Bearer [redacted], no more");

    // What a refusing provider says ends as an error and, tried often enough, as a dead letter.
    let failed = gateway.chat(&json!({ "message": "refuse me", "session": "refused" })).await;
    let events = gateway.events(failed["taskId"].as_str().expect("a task")).await;
    assert_clean("an error", &json!(events).to_string(), &forbidden);
    telegram.revoke();
    gateway.logged("Telegram does not accept the token").await;
    let seen = sse.lock().expect("no one panicked").clone();
    assert_nothing_left(&gateway, &seen, &secrets).await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn row_25_no_key_is_left_in_the_environment_of_the_gateway_or_its_commands() {
    let model = ModelServer::start(|ask| match ask.round() {
        0 => Say::Calls(vec![call("c", "exec", &json!({ "command": "env; cat /proc/$PPID/environ" }).to_string())]),
        _ => text(ask.results().join("\n")),
    })
    .await;
    let section = model.section().replace("\"sk-kit-0123456789abcdef\"", "\"${MY_PROVIDER}\"");
    let mut gateway = Gateway::folder(&format!("{section}\n[tools.exec]\nenabled = true\n"));
    gateway.set_variable("MY_PROVIDER", KEY);
    gateway.set_variable("UNUSED_PASSWORD", "canary-that-nothing-names");
    gateway.set_variable("https_proxy", "http://user:canary-of-the-proxy@127.0.0.1:9");
    gateway.restart().await;
    let environ = fs::read(format!("/proc/{}/environ", gateway.pid().expect("it runs")));
    match environ {
        Ok(environ) => {
            let environ = String::from_utf8_lossy(&environ).into_owned();
            assert!(environ.contains("PATH="), "{environ}");
            assert!(!environ.contains("canary") && !environ.contains("MY_PROVIDER"), "{environ}");
        }
        // Nobody but root may look at a process that is not dumpable.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::PermissionDenied),
    }
    let answer = gateway.answer("look around", None).await;
    assert!(answer.contains("PATH=") && !answer.contains("canary"), "{answer}");
    let sent = model.asks()[0].authorization.clone();
    assert_eq!(sent.as_deref(), Some(format!("Bearer {KEY}").as_str()), "the key is used all the same");
}

#[cfg(unix)]
#[tokio::test]
async fn row_27_keys_come_from_files_and_from_systemds_credentials_and_are_shown_nowhere() {
    use std::os::unix::fs::PermissionsExt as _;
    let model =
        ModelServer::start(|ask| text(format!("it is {}", ask.authorization.clone().unwrap_or_default()))).await;
    let section = model.section().replace("api_key = \"sk-kit-0123456789abcdef\"", "api_key_file = \"private/model\"");
    let sections = format!(
        "{section}\n[channels.webhook.bridge]\nsecret_file = \"${{CREDENTIALS_DIRECTORY}}/bridge-secret\"\n\
         [hooks]\nenabled = true\ntoken = \"${{HOOKS_TOKEN}}\"\n[tools.exec]\nenabled = true\n"
    );
    let mut gateway = Gateway::folder(&sections);
    let (keys, credentials) = (gateway.dir().join("private"), gateway.dir().join("private/credentials"));
    fs::create_dir_all(&credentials).expect("a folder");
    let write = |path: &Path, text: &str, mode: u32| {
        fs::write(path, text).expect("it can be written");
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode can be set");
    };
    let hooks = "canary-of-the-hooks-0123456789";
    write(&keys.join("model"), &format!("{KEY}\n"), 0o644);
    write(&credentials.join("bridge-secret"), bridge::SECRET, 0o440);
    write(&credentials.join("HOOKS_TOKEN"), &format!("{hooks}\n"), 0o440);
    gateway.set_variable("CREDENTIALS_DIRECTORY", &credentials.display().to_string());
    gateway.set_variable("HOOKS_TOKEN", "the environment's, which loses");

    let refused = gateway.cli(&["config", "check"]).await;
    assert_eq!(refused.code, Some(78), "{refused:?}");
    assert!(refused.err.contains("models.main.api_key_file") && refused.err.contains("chmod 600"), "{}", refused.err);
    write(&keys.join("model"), "\n", 0o600);
    let empty = gateway.cli(&["config", "check"]).await;
    assert!(empty.code == Some(78) && empty.err.contains("the file is empty"), "{empty:?}");
    write(&keys.join("model"), &format!("{KEY}\n"), 0o600);
    gateway.configure(&sections.replace("api_key_file", "api_key = \"x\"\napi_key_file"));
    let both = gateway.cli(&["config", "check"]).await;
    assert!(both.code == Some(78) && both.err.contains("keep one of the two"), "{both:?}");
    gateway.configure(&sections);
    gateway.cli(&["config", "check"]).await.good();
    let shown = gateway.cli(&["config", "show"]).await;
    assert!(shown.good().contains("api_key_file = \"private/model\""), "{}", shown.out);
    let forbidden = forbidden(&[KEY, bridge::SECRET, hooks]);
    assert_clean("config show", &shown.out, &forbidden);

    gateway.restart().await;
    assert_eq!(gateway.answer("which key?", None).await, "it is Bearer [redacted]");
    let posted =
        client().post(format!("{}/hooks/wake", gateway.url())).bearer_auth(hooks).json(&json!({ "text": "x" }));
    let status = posted.send().await.expect("it answers").status().as_u16();
    assert_ne!(status, 401, "the credential is the token");
    let signed = Bridge::to(&gateway).post(&bridge::message("m1", "room", "hello")).await;
    assert_eq!(signed.status / 100, 2, "{signed:?}");
    // Commands do not get at the files.
    model.follow(|ask| match ask.round() {
        0 => Say::Calls(vec![call("c", "exec", &json!({ "command": "cat ../private/model | rev" }).to_string())]),
        _ => text(ask.results().join("\n")),
    });
    let answer = gateway.answer("read it", None).await;
    let reversed: String = KEY.chars().rev().collect();
    assert!(!answer.contains(&reversed), "{answer}");
}
