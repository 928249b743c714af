//! Skills as people use them: dropped in while it runs, given their secrets and nobody else, called by name, granted.

use std::{
    fs,
    path::Path,
    sync::{Arc, Mutex},
};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::get,
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

use crate::support::{
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
    wait::{SOON, until},
};

const ON: &str = "[tools.exec]\nenabled = true\n[limits]\ndrain_s = 1\n";
/// Long enough that base64 and hexadecimal are broken over lines.
const TOKEN: &str = "eyJhbGciOiJIUzI1NiJ9/canary+5f1e9a7c-4b21-4c0e-9d57-0a3b6e8f2d11=.c2VjcmV0LWNhbmFyeQ~~end";

async fn set_up(sections: &str, script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> (Gateway, ModelServer) {
    let model = ModelServer::start(script).await;
    let gateway = Gateway::folder(&format!("{}\n{sections}", model.section()));
    fs::create_dir_all(gateway.workspace().join("skills")).expect("a folder");
    (gateway, model)
}

fn put(folder: &Path, text: &str) {
    fs::create_dir_all(folder).expect("a folder");
    fs::write(folder.join("SKILL.md"), text).expect("a file");
}

fn exec(id: &str, command: &str) -> Say {
    Say::Calls(vec![call(id, "exec", &json!({ "command": command, "timeout": 60 }).to_string())])
}

fn read(id: &str, path: &str) -> Say {
    Say::Calls(vec![call(id, "read", &json!({ "path": path }).to_string())])
}

/// The system prompt of a request.
fn system(ask: &Ask) -> &str {
    ask.messages()[0]["content"].as_str().unwrap_or_default()
}

/// Where a skill is, as the prompt lists it.
fn listed(system: &str, name: &str) -> Option<String> {
    let (_, rest) = system.split_once(&format!("<name>{name}</name>"))?;
    let (_, rest) = rest.split_once("<location>")?;
    Some(rest.split_once("</location>")?.0.to_owned())
}

fn last(model: &ModelServer) -> Ask {
    model.asks().pop().expect("it was asked")
}

/// Every file below a folder that holds one of these texts.
fn holds(folder: &Path, texts: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holds(&path, texts));
            continue;
        }
        let bytes = fs::read(&path).unwrap_or_default();
        let has = |text: &String| bytes.windows(text.len()).any(|window| window == text.as_bytes());
        found.extend(texts.iter().filter(|text| has(text)).map(|text| format!("{}: {text}", path.display())));
    }
    found
}

/// The spellings in which a secret could be seen.
fn spellings(secret: &str) -> Vec<String> {
    let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
    let url = secret.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'-' | b'.' | b'_' | b'~' => out.push(byte as char),
            _ if byte.is_ascii_alphanumeric() => out.push(byte as char),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    });
    let base64 = STANDARD.encode(secret);
    // The first line of what `base64` and `xxd -p` write, too.
    let head = |text: &str, most: usize| text[..text.len().min(most)].to_owned();
    vec![secret.to_owned(), head(&base64, 70), base64, head(&hex, 60), hex, url]
}

/// No request, no log, no file of the gateway and no event shows the secret.
fn assert_nowhere(gateway: &Gateway, model: &ModelServer, events: &[Value], secret: &str) {
    let forms = spellings(secret);
    for form in &forms {
        for ask in model.asks() {
            assert!(!ask.body.to_string().contains(form.as_str()), "request {}: {form}", ask.n);
        }
        assert!(!gateway.log().contains(form.as_str()), "the log: {form}");
        assert!(!json!(events).to_string().contains(form.as_str()), "an event: {form}");
    }
    assert_eq!(holds(&gateway.dir().join("data"), &forms), [""; 0]);
    assert_eq!(holds(&gateway.dir().join("logs"), &forms), [""; 0]);
}

const TIDES: &str = "---\nname: tide-table\ndescription: High and low water for a harbour. Use when asked about tides.\n\
                     ---\nAsk for the harbour: `Cuxhaven`.\n";

#[tokio::test]
async fn a_folder_dropped_in_while_it_runs_changes_the_next_turn_and_a_broken_one_is_named() {
    let (mut gateway, model) = set_up("", |_| text("ok")).await;
    gateway.restart().await;
    let skills = gateway.workspace().join("skills");
    gateway.answer("hi", None).await;
    let before = system(&last(&model)).to_owned();
    assert_eq!(listed(&before, "tide-table"), None);
    put(&skills.join("tides"), TIDES);
    put(&skills.join("half"), "---\nname: half\ndescription: Its end is missing.\n");
    put(&skills.join("bomb"), "---\nname: bomb\ndescription: d\nx: !!python/object y\n---\n");
    // The watcher tells of it without a turn.
    gateway.logged("skill=tide-table").await;
    gateway.answer("hi again", None).await;
    let after = system(&last(&model)).to_owned();
    assert_eq!(listed(&after, "tide-table").as_deref(), Some("~/workspace/skills/tides/SKILL.md"), "{after}");
    assert!(!after.contains("<name>half</name>") && !after.contains("<name>bomb</name>"), "{after}");
    let check = gateway.cli(&["skills", "check"]).await;
    assert_eq!(check.code, Some(1), "{check:?}");
    for line in
        ["~/workspace/skills/half/SKILL.md:1: broken: ", "~/workspace/skills/bomb/SKILL.md:4: broken: ", "2 of "]
    {
        assert!(check.out.contains(line), "{line}: {}", check.out);
    }
    assert!(!check.out.contains("tides"), "{}", check.out);
    let rows = gateway.cli(&["skills", "list", "--json"]).await.json();
    let state = |name: &str| rows.as_array().into_iter().flatten().find(|row| row["name"] == name).expect(name).clone();
    assert_eq!((&state("tide-table")["state"], &state("half")["state"]), (&json!("loaded"), &json!("broken")));
    assert!(state("half")["why"][0].as_str().is_some_and(|why| why.contains("---")), "{}", state("half"));
    fs::remove_dir_all(skills.join("tides")).expect("it is there");
    fs::remove_dir_all(skills.join("half")).expect("it is there");
    fs::remove_dir_all(skills.join("bomb")).expect("it is there");
    gateway.logged("skill gone").await;
    gateway.answer("and now", None).await;
    assert_eq!(listed(system(&last(&model)), "tide-table"), None);
    gateway.cli(&["skills", "check"]).await.good();
}

const VAULT: &str = "---\nname: vault\ndescription: Opens the vault: use when asked for it\n\
                     metadata: {\"openclaw\":{\"requires\":{\"env\":[\"VAULT_TOKEN\"]},\"primaryEnv\":\"VAULT_TOKEN\"}}\n---\n\
                     Run `vault`.\n";
const SHOW: &str = "echo \"plain $VAULT_TOKEN\"; printf %s \"$VAULT_TOKEN\" | base64; printf %s \"$VAULT_TOKEN\" | base64 -w0; \
                    echo; printf %s \"$VAULT_TOKEN\" | jq -sRr @uri; printf %s \"$VAULT_TOKEN\" | od -An -v -tx1; \
                    printf '{\"t\":\"%s\"}\\n' \"$VAULT_TOKEN\" | jq -c .; printf %s \"$VAULT_TOKEN\" | sha256sum > proof.txt; \
                    printf %s \"$VAULT_TOKEN\" > leak.txt; echo done; test -n \"$VAULT_TOKEN\"";

fn sha256(text: &str) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(text.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[tokio::test]
async fn a_secret_reaches_the_commands_of_its_skill_and_nothing_else() {
    let (mut gateway, model) = set_up(ON, |ask| {
        let vault = || listed(system(ask), "vault").expect("it is listed");
        match (ask.said().contains("first"), ask.round()) {
            // Without reading: nothing is set, and why is said.
            (true, 0) => exec("c1", SHOW),
            (true, _) | (false, 4) => text(ask.results().join("|")),
            (false, 0) => read("c1", &vault()),
            (false, 1) => exec("c2", SHOW),
            (false, 2) => read("c3", "leak.txt"),
            (false, _) => exec("c4", "echo \"$VAULT_TOKEN\" >&2; exit 7"),
        }
    })
    .await;
    put(&gateway.workspace().join("skills/vault"), VAULT);
    fs::write(gateway.dir().join(".env"), format!("VAULT_TOKEN='{TOKEN}'\n")).expect("a file");
    gateway.restart().await;
    let refused = gateway.answer("first", None).await;
    assert!(refused.contains("plain \n") && refused.contains("VAULT_TOKEN is set only after `read`"), "{refused}");
    assert_ne!(fs::read_to_string(gateway.workspace().join("proof.txt")).expect("it ran").trim(), "");
    let task = gateway.chat(&json!({ "message": "open it" })).await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let proof = fs::read_to_string(gateway.workspace().join("proof.txt")).expect("it ran");
    assert_eq!(proof.split_whitespace().next(), Some(sha256(TOKEN).as_str()), "the command had the value");
    let answer = events.last().expect("an end")["result"].as_str().unwrap_or_default().to_owned();
    assert!(answer.contains("plain [redacted]") && answer.contains("done"), "{answer}");
    assert!(answer.matches("[redacted]").count() >= 7, "{answer}");
    assert_nowhere(&gateway, &model, &events, TOKEN);
    let task = task["taskId"].as_str().expect("a task");
    let trace = gateway.cli(&["trace", task, "--full"]).await;
    assert!(spellings(TOKEN).iter().all(|form| !trace.good().contains(form.as_str())), "{}", trace.out);
    model.assert_strict_order();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn after_a_crash_the_turn_still_knows_which_skills_it_read() {
    let (mut gateway, model) = set_up(ON, |ask| match ask.round() {
        0 => read("c1", &listed(system(ask), "vault").expect("it is listed")),
        1 => exec("c2", "printf %s \"$VAULT_TOKEN\" | sha256sum > before.txt; sleep 300"),
        // What may have happened is looked at before anything else is done.
        2 => read("c3", "before.txt"),
        3 => exec("c4", "printf %s \"$VAULT_TOKEN\" | sha256sum > after.txt"),
        _ => text("done"),
    })
    .await;
    put(&gateway.workspace().join("skills/vault"), VAULT);
    let aside = format!("[skills.entries.vault]\napi_key = '{TOKEN}'\n");
    gateway.configure(&format!("{}\n{ON}{aside}", model.section()));
    gateway.restart().await;
    let task = gateway.chat(&json!({ "message": "open it" })).await;
    let sum = |name: &str| {
        let text = fs::read_to_string(gateway.workspace().join(name)).unwrap_or_default();
        text.split_whitespace().next().map(str::to_owned)
    };
    until("the first command runs", SOON, async || sum("before.txt")).await;
    assert_eq!(sum("before.txt"), Some(sha256(TOKEN)));
    gateway.kill9().await;
    gateway.restart().await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let after = fs::read_to_string(gateway.workspace().join("after.txt")).expect("it ran");
    assert_eq!(after.split_whitespace().next(), Some(sha256(TOKEN).as_str()));
    assert_nowhere(&gateway, &model, &events, TOKEN);
    let shown = gateway.cli(&["config", "show"]).await;
    assert!(!shown.good().contains(TOKEN) && shown.out.contains("skills.entries.vault"), "{}", shown.out);
    model.assert_strict_order();
}

#[tokio::test]
async fn an_installed_skill_gets_its_variables_by_a_grant_that_ends_when_it_changes() {
    let (mut gateway, model) = set_up(ON, |ask| match (ask.round(), listed(system(ask), "vault")) {
        (0, Some(location)) => read("c1", &location),
        // A compaction: it lists no skills.
        (0, None) => text("the vault was opened a few times"),
        (1, _) => exec("c2", "test -n \"$VAULT_TOKEN\" && echo it is set || echo it is not set"),
        _ => text(ask.results().join("|")),
    })
    .await;
    let folder = gateway.dir().join("data/skills/vault");
    put(&folder, VAULT);
    fs::write(folder.join("run.sh"), "echo https://vault.example.org:8200/v1\n").expect("a file");
    fs::write(gateway.dir().join(".env"), format!("VAULT_TOKEN='{TOKEN}'\n")).expect("a file");
    gateway.restart().await;
    // Nobody granted it anything: what it wants run, the owner is asked about.
    let answer = with_a_yes(&gateway, "open it").await;
    assert!(answer.contains("it is not set") && answer.contains("`crawfish skills grant vault`"), "{answer}");
    // A yes from a pipe is nobody's.
    let shown = gateway.cli_with(&["skills", "grant", "vault"], "yes\n").await;
    assert!(shown.code == Some(64) && shown.err.contains("--yes"), "nobody said yes: {shown:?}");
    assert!(shown.out.contains("VAULT_TOKEN") && shown.out.contains("data/skills/vault/SKILL.md"), "{}", shown.out);
    assert!(with_a_yes(&gateway, "open it").await.contains("it is not set"));
    gateway.cli(&["skills", "grant", "vault", "--yes"]).await.good();
    let granted = async || with_a_yes(&gateway, "open it").await.contains("it is set").then_some(());
    until("the grant counts without a restart", SOON, granted).await;
    fs::write(folder.join("run.sh"), "curl https://elsewhere.example/\n").expect("a file");
    let changed = async || {
        let answer = with_a_yes(&gateway, "open it").await;
        (answer.contains("it is not set") && answer.contains("changed since the owner's grant")).then_some(())
    };
    until("a changed file ends it", SOON, changed).await;
    let check = gateway.cli(&["skills", "check", "vault"]).await;
    assert!(check.good().contains("run.sh"), "{}", check.out);
    assert_nowhere(&gateway, &model, &[], TOKEN);
}

/// The answer to a message whose turn may wait for the owner's word, which is yes.
async fn with_a_yes(gateway: &Gateway, message: &str) -> String {
    let says_yes = async {
        loop {
            let waiting = gateway.cli(&["approvals", "list", "--json"]).await.json();
            for row in waiting.as_array().into_iter().flatten() {
                let id = row["id"].as_str().expect("an id");
                gateway.cli(&["approvals", "approve", id]).await;
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::select! {
        answer = gateway.answer(message, None) => answer,
        () = says_yes => unreachable!("it goes on"),
    }
}

/// A Home Assistant with a few devices, and what it was asked with.
#[derive(Clone, Default)]
struct HomeAssistant {
    seen: Arc<Mutex<Vec<String>>>,
}

impl HomeAssistant {
    async fn start() -> (Self, String, JoinSet<()>) {
        async fn states(State(home): State<HomeAssistant>, headers: HeaderMap) -> Response {
            let key = headers.get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
            let good = key == format!("Bearer {TOKEN}");
            home.seen.lock().expect("no panic").push(key);
            if !good {
                return (StatusCode::UNAUTHORIZED, "401: Unauthorized").into_response();
            }
            let device = |id: &str, name: &str, state: &str| json!({"entity_id": id, "state": state, "attributes": {"friendly_name": name}});
            axum::Json(json!([
                device("light.study_desk", "书房台灯", "on"),
                device("climate.study", "书房空调", "cool"),
                device("light.kitchen", "厨房灯", "off"),
                device("sensor.study_temp", "书房温度", "24.5"),
                {"entity_id": "sun.sun", "state": "below_horizon", "attributes": {}},
            ]))
            .into_response()
        }
        let home = Self::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let router = Router::new().route("/api/states", get(states)).with_state(home.clone());
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        (home, url, serving)
    }
}

/// As people write them: a colon in the description, the old key, a pipe.
const HOME: &str = r#"---
name: homeassistant
description: Query and control smart home devices through Home Assistant: lights, climate, sensors. 查询和控制家里的智能设备（灯、空调、传感器）。
homepage: https://www.home-assistant.io/docs/
metadata: {"clawdis":{"emoji":"🏠","requires":{"bins":["curl","jq"],"env":["HA_TOKEN","HA_URL"]},"primaryEnv":"HA_TOKEN"}}
---

# Home Assistant

Needs `HA_URL` (no slash at the end) and a long-lived `HA_TOKEN`.

## Devices of a room

Replace ROOM by the room's name:

```bash
curl -s -H "Authorization: Bearer $HA_TOKEN" "$HA_URL/api/states" \
  | jq -r '.[] | select(.attributes.friendly_name // "" | contains("ROOM")) | "\(.entity_id)\t\(.attributes.friendly_name)\t\(.state)"'
```

## Turn something on

```bash
curl -s -X POST -H "Authorization: Bearer $HA_TOKEN" -d '{"entity_id":"light.x"}' "$HA_URL/api/services/light/turn_on"
```
"#;

#[tokio::test]
async fn the_devices_of_the_study_are_found_with_a_home_assistant_skill_as_people_have_it() {
    for program in ["curl", "jq"] {
        let there = std::process::Command::new(program).arg("--version").output().is_ok_and(|run| run.status.success());
        assert!(there, "this journey needs the program `{program}`: `apt-get install {program}`");
    }
    for level in ["l3", "l2"] {
        one_grant_opens_the_house(level).await;
    }
}

/// The first line of what was said, without what the gateway adds below.
fn first_line(said: &str) -> String {
    said.lines().next().unwrap_or_default().trim().to_owned()
}

/// Whether commands can be confined as this level here; says so where they cannot.
async fn has_level(gateway: &Gateway, level: &str) -> bool {
    let said = gateway.cli(&["doctor", "--offline"]).await;
    let has = said.out.contains(&format!("confined as level {}", level.to_uppercase()));
    if !has {
        eprintln!("SKIPPED: level {level} cannot be had here: {}", said.out);
    }
    has
}

async fn one_grant_opens_the_house(level: &str) {
    let (home, url, _serving) = HomeAssistant::start().await;
    let exact = ON.replace("enabled = true", &format!("enabled = true\nsandbox = \"{level}\""));
    let (mut gateway, model) = set_up(&exact, |ask| {
        // Without the skill, its address is none that is open: said outright, and as another skill's.
        if let Some(url) = ask.said().split_once("straight to ").map(|(_, url)| first_line(url)) {
            return match ask.round() {
                0 => exec("c1", &format!("curl -sS -m 5 {url}/api/states")),
                _ => text(ask.results().join("|")),
            };
        }
        if let Some(url) = ask.said().split_once("as another to ").map(|(_, url)| first_line(url)) {
            return match ask.round() {
                0 => read("c1", &listed(system(ask), "other").expect("it is listed")),
                1 => exec("c2", &format!("curl -sS -m 5 {url}/api/states; echo \"token: $HA_TOKEN.\"")),
                _ => text(ask.results().join("|")),
            };
        }
        match ask.round() {
            // Finds it in the prompt, reads it, runs the first block that it finds there.
            0 => {
                let system = system(ask);
                assert!(system.contains("查询和控制家里的智能设备"), "{system}");
                read("c1", &listed(system, "homeassistant").expect("it is listed"))
            }
            1 => {
                let skill = ask.results()[0];
                let (_, block) = skill.split_once("```bash\n").expect("a block");
                let (block, _) = block.split_once("```").expect("its end");
                exec("c2", &block.replace("ROOM", "书房"))
            }
            _ => {
                let lines = ask.results()[1].lines().take_while(|line| !line.starts_with('['));
                let names: Vec<&str> = lines.filter_map(|line| line.split('\t').nth(1)).collect();
                text(format!("书房有 {} 个智能设备：{}", names.len(), names.join("、")))
            }
        }
    })
    .await;
    if !has_level(&gateway, level).await {
        return;
    }
    put(&gateway.dir().join("data/skills/homeassistant"), HOME);
    let other = "---\nname: other\ndescription: Something else that fetches from example.org, and that was granted so.\n---\ncurl https://example.org/\n";
    put(&gateway.dir().join("data/skills/other"), other);
    fs::write(gateway.dir().join(".env"), format!("HA_TOKEN='{TOKEN}'\nHA_URL={url}\n")).expect("a file");
    gateway.cli(&["skills", "grant", "homeassistant", "--yes"]).await.good();
    gateway.cli(&["skills", "grant", "other", "--yes"]).await.good();
    gateway.restart().await;
    let straight = with_a_yes(&gateway, &format!("straight to {url}")).await;
    assert!(straight.contains("commands reach no network here"), "{straight}");
    let as_another = with_a_yes(&gateway, &format!("as another to {url}")).await;
    assert!(as_another.contains("is not open to this command") && as_another.contains("token: ."), "{as_another}");
    assert_eq!(home.seen.lock().expect("no panic").len(), 0, "nobody else reached it");
    let task = gateway.chat(&json!({ "message": "查一下家里书房有哪些智能设备" })).await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let end = events.last().expect("an end");
    assert_eq!(end["result"], "书房有 3 个智能设备：书房台灯、书房空调、书房温度", "{events:?}");
    assert_eq!(*home.seen.lock().expect("no panic"), [format!("Bearer {TOKEN}")]);
    assert_nowhere(&gateway, &model, &events, TOKEN);
    model.assert_strict_order();
}

const WORDS: &str = r#"---
name: Word Count
description: Counts the words of a text. Use when asked how long a text is. 统计字数。
metadata:
  crawfish:
    requires: {env: [WORDS_KEY]}
    tool:
      description: Counts words.
      parameters: {type: object, properties: {text: {type: string, description: The text}, times: {type: integer, description: How often}}, required: [text], additionalProperties: false}
      command: [sh, count.sh, "{text}", "--times={times}"]
      effect: read
---
Call `word_count`.
"#;

#[tokio::test]
async fn a_skills_tool_comes_with_it_runs_without_a_shell_and_goes_with_it() {
    let nasty = "one; touch owned.txt $(touch owned.txt) `touch owned.txt` \"two\" 'three' $WORDS_KEY";
    let (mut gateway, model) = set_up(ON, move |ask| match (ask.round(), ask.said().contains("count")) {
        (0, true) => Say::Calls(vec![
            call("c1", "word-count", &json!({ "text": nasty }).to_string()),
            call("c2", "word_count", &json!({ "text": 5, "more": 1 }).to_string()),
            call("c3", "word_count", &json!({ "text": "--help" }).to_string()),
        ]),
        (_, false) => text("hello"),
        _ => text(ask.results().join("|")),
    })
    .await;
    let folder = gateway.workspace().join("skills/words");
    fs::write(gateway.dir().join(".env"), format!("WORDS_KEY='{TOKEN}'\n")).expect("a file");
    gateway.restart().await;
    gateway.answer("hi", None).await;
    assert!(!last(&model).tools().contains(&"word_count"));
    put(&folder, WORDS);
    fs::write(
        folder.join("count.sh"),
        "echo \"arguments: $#\"; printf '%s\\n' \"$1\"; echo \"key: $WORDS_KEY\"; basename \"$PWD\"\n",
    )
    .expect("a file");
    let there = async || {
        gateway.answer("hi", None).await;
        last(&model).tools().contains(&"word_count").then_some(())
    };
    until("the tool is there", SOON, there).await;
    let answer = gateway.answer("count", None).await;
    let parts: Vec<&str> = answer.split('|').collect();
    assert!(parts[0].starts_with(&format!("arguments: 1\n{nasty}\nkey: [redacted]\nworkspace\n")), "{answer}");
    assert!(parts[0].contains("exit code 0"), "{answer}");
    assert!(parts[1].contains("/more") || parts[1].contains("text"), "{answer}");
    assert!(parts[2].contains("taken for an option"), "{answer}");
    assert!(!gateway.workspace().join("owned.txt").exists() && !folder.join("owned.txt").exists());
    assert_nowhere(&gateway, &model, &[], TOKEN);
    fs::remove_dir_all(&folder).expect("it is there");
    let gone = async || {
        gateway.answer("hi", None).await;
        (!last(&model).tools().contains(&"word_count")).then_some(())
    };
    until("the tool is gone", SOON, gone).await;
}

#[tokio::test]
async fn a_skill_has_a_command_of_its_own() {
    let (mut gateway, model) = set_up("", |ask| text(format!("heard: {}", ask.said()))).await;
    put(&gateway.workspace().join("skills/tides"), TIDES);
    put(
        &gateway.workspace().join("skills/minutes"),
        "---\nname: 会议 纪要\ndescription: 整理会议纪要，列出结论和待办事项。\n---\n例如：……\n",
    );
    put(&gateway.workspace().join("skills/quiet"), "---\nname: quiet\ndescription: d\nuser-invocable: no\n---\n");
    gateway.restart().await;
    for (said, place) in [
        ("/tide-table Cuxhaven", "tides"),
        ("/tide_table@crawfish_bot Cuxhaven", "tides"),
        ("/skill tide-table Cuxhaven", "tides"),
        ("／技能 会议 纪要 昨天的录音", "minutes"),
        ("/minutes 昨天的录音", "minutes"),
    ] {
        let answer = gateway.answer(said, None).await;
        let note = format!("read ~/workspace/skills/{place}/SKILL.md first");
        assert!(
            answer.contains(&note) && answer.contains(said.rsplit(' ').next().unwrap_or_default()),
            "{said}: {answer}"
        );
    }
    let asked = model.asks().len();
    for said in ["/unknown thing", "/quiet", "/home/me/file.txt", "tide-table please"] {
        let answer = gateway.answer(said, None).await;
        assert!(answer.contains(said) && !answer.contains("SKILL.md first"), "{said}: {answer}");
    }
    assert_eq!(model.asks().len(), asked + 4);
    let list = gateway.answer("/skill", None).await;
    assert!(list.contains("/tide_table – High and low water") && list.contains("/minutes") && !list.contains("/quiet"));
    let unknown = gateway.answer("/技能 没有的", None).await;
    assert!(unknown.contains("没有名为“没有的”的技能"), "{unknown}");
    let help = gateway.answer("/help", None).await;
    assert!(help.contains("/tide_table") && help.contains("/study_notes"), "{help}");
    assert_eq!(model.asks().len(), asked + 4, "the gateway answers these");
}
