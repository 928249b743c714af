//! `crawfish doctor` on troubles that people have: each is named in one line, with what to do. docs/troubleshooting.md is
//! written around these lines.

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{
    bridge::{Bridge, message},
    gateway::{Gateway, Output},
    model_server::{ModelServer, Say, text},
    telegram::{ADA, BOT_NAME, Telegram, group},
};

const GROUP: i64 = -1_001_234_567_890;

/// The line of `doctor` that holds this.
fn line<'a>(doctor: &'a Output, part: &str) -> &'a str {
    doctor.out.lines().find(|line| line.contains(part)).unwrap_or_else(|| panic!("no line with {part:?}: {doctor:?}"))
}

/// A door's line, of `doctor --json`.
fn door(doctor: &Value, name: &str) -> String {
    let doors = doctor["doors"].as_array().expect("doors");
    let found = doors.iter().find(|door| door["name"].as_str().is_some_and(|found| found.starts_with(name)));
    found.unwrap_or_else(|| panic!("no door {name}: {doctor}"))["line"].as_str().expect("a line").to_owned()
}

#[tokio::test]
async fn a_taken_port_is_named_with_who_took_it_and_is_71() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = taken.local_addr().expect("it is bound").to_string();
    let gateway = Gateway::folder(&format!("[server]\nlisten = \"{addr}\"\n"));
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert_eq!(doctor.code, Some(71), "{doctor:?}");
    let told = line(&doctor, &addr);
    assert!(told.starts_with("✗") && told.contains("is taken") && told.contains("--listen"), "{told}");
    if cfg!(target_os = "linux") {
        assert!(told.contains(&format!("(process {})", std::process::id())), "{told}");
    }
    drop(taken);
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&doctor, &addr).starts_with("✓") && doctor.code == Some(0), "{doctor:?}");
}

#[tokio::test]
async fn skills_that_are_off_or_broken_say_why_and_what_to_install() {
    let gateway = Gateway::folder("[server]\nlisten = \"127.0.0.1:0\"\n");
    let skill = |name: &str, text: &str| {
        let dir = gateway.workspace().join("skills").join(name);
        std::fs::create_dir_all(&dir).expect("a folder");
        std::fs::write(dir.join("SKILL.md"), text).expect("written");
    };
    let metadata =
        r#"{"openclaw":{"requires":{"bins":["no-such-program"]},"install":[{"kind":"brew","formula":"jq"}]}}"#;
    skill("needy", &format!("---\nname: needy\ndescription: Needs a program.\nmetadata: {metadata}\n---\nbody\n"));
    skill("fine", "---\nname: fine\ndescription: Needs nothing.\n---\nbody\n");
    skill("torn", "no front matter\n");
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&doctor, "skills: 1 of 3").contains("fine"), "{doctor:?}");
    let needy = line(&doctor, "`needy`");
    assert!(
        needy.starts_with("✗") && needy.contains("no-such-program") && needy.contains("brew install jq"),
        "{needy}"
    );
    assert!(line(&doctor, "`torn`").contains("does not begin with a `---` line"), "{doctor:?}");
    let chinese = gateway.cli(&["--lang", "zh", "doctor", "--offline"]).await;
    assert!(line(&chinese, "`needy`").contains("未安装程序"), "{chinese:?}");
    assert_eq!(doctor.code, Some(0), "{doctor:?}");
}

#[tokio::test]
async fn who_gets_which_tools_stands_in_one_line_and_a_workspace_that_is_none_is_74() {
    let gateway = Gateway::folder("[server]\nlisten = \"127.0.0.1:0\"\n");
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    let tools = line(&doctor, "tools: owner:");
    let member = tools.split("member: ").nth(1).expect("what members get");
    assert!(tools.contains("write") && member.contains("read") && !member.contains("write"), "{tools}");
    assert!(tools.contains("stranger: none"), "{tools}");
    assert!(line(&doctor, "exec is off").starts_with("✓"), "{doctor:?}");
    std::fs::write(gateway.workspace(), "a file").expect("written");
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert_eq!(doctor.code, Some(74), "{doctor:?}");
    assert!(line(&doctor, "cannot write in its workspace").contains("[agent] workspace"), "{doctor:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn what_others_could_read_is_named_with_the_line_that_closes_it() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut gateway = Gateway::start("").await;
    let mode = |path: &std::path::Path, mode: u32| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode can be set");
    };
    let env = gateway.dir().join(".env");
    std::fs::write(&env, "KEY=secret-0123456789\n").expect("written");
    mode(&env, 0o600);
    let fine = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&fine, "closed to other users").starts_with("✓"), "{fine:?}");
    mode(&env, 0o644);
    mode(&gateway.dir().join("data"), 0o755);
    mode(&gateway.dir().join("data/token"), 0o640);
    for running in [true, false] {
        if !running {
            assert_eq!(gateway.terminate().await.0, Some(0));
        }
        let doctor = gateway.cli(&["doctor", "--offline"]).await;
        for command in ["chmod 600 ", "chmod 700 "] {
            assert!(line(&doctor, command).starts_with("✗"), "{doctor:?}");
        }
        assert!(line(&doctor, ".env").contains("0644"), "{doctor:?}");
        assert!(line(&doctor, "data/token").contains("(mode 0640): chmod 600"), "{doctor:?}");
        assert!(!doctor.out.contains("secret-0123456789"), "{doctor:?}");
    }
}

#[tokio::test]
async fn a_group_that_is_not_let_in_is_told_with_the_line_that_lets_it_in_and_a_refused_token_with_what_to_do() {
    let (telegram, model) = (Telegram::start().await, ModelServer::echo().await);
    let config = format!("{}\n{}", model.section(), telegram.section(""));
    let mut gateway = Gateway::start(&config).await;
    telegram.polled().await;
    let hello = format!("@{BOT_NAME} hello");
    telegram.group(&group(GROUP), ADA, &hello);
    telegram.all_confirmed().await;
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&doctor, "is not let in").contains(&format!("Friends ({GROUP})")), "{doctor:?}");
    assert!(line(&doctor, "/setprivacy").contains("privacy mode"), "{doctor:?}");
    assert!(line(&doctor, "telegram:main runs").starts_with("✓"), "{doctor:?}");
    let opens = door(&gateway.cli(&["doctor", "--offline", "--json"]).await.json(), "turned_away:group_not_allowed");
    assert_eq!(opens, format!("[channels.telegram.main.groups.\"{GROUP}\"]"));

    // Copied as it is, it opens the group; a gateway that has not read it says so.
    gateway.configure(&format!("{config}\n{opens}\n"));
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&doctor, "has not read it yet").contains(&opens), "{doctor:?}");
    assert_eq!(gateway.terminate().await.0, Some(0));
    gateway.restart().await;
    telegram.group(&group(GROUP), ADA, &hello);
    telegram.said(GROUP, "hello").await;
    telegram.group(&group(GROUP), ADA, "lunch?");
    telegram.all_confirmed().await;
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&doctor, "without speaking to the bot").contains("(kept as context)"), "{doctor:?}");
    assert!(line(&doctor, "require_mention = false").contains(&opens), "{doctor:?}");
    assert!(!doctor.out.contains("is not let in"), "{doctor:?}");

    telegram.revoke();
    gateway.logged("does not accept the token").await;
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    let told = line(&doctor, "telegram:main does not run");
    assert!(told.starts_with("✗") && told.contains("401") && told.contains("@BotFather"), "{told}");
    let listed = gateway.cli(&["channels", "list"]).await;
    assert!(line(&listed, "telegram:main").starts_with("stopped"), "{listed:?}");
}

#[tokio::test]
async fn another_program_with_the_same_bot_is_told_as_409() {
    let telegram = Telegram::start().await;
    let gateway = Gateway::start(&telegram.section("")).await;
    telegram.polled().await;
    telegram.set_webhook("https://example.com");
    gateway.logged("another program asks for this bot's messages").await;
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    let told = line(&doctor, "telegram:main does not run and is tried again");
    assert!(told.contains("409") && told.contains("/revoke"), "{told}");
}

#[tokio::test]
async fn senders_who_are_not_listed_or_blocked_are_told_with_their_id() {
    let lists = "dm_policy = \"allowlist\"\nallow_from = [\"u9\"]\n";
    let gateway = Gateway::start(&Bridge::section(lists)).await;
    let bridge = Bridge::to(&gateway);
    let mut stranger = message("m1", "hall", "hello");
    stranger["sender"] = json!({ "id": "u2", "name": "Bob\u{1b}[2J" });
    assert_eq!(bridge.post(&stranger).await.status, 403);
    gateway.cli(&["access", "block", "webhook:u1"]).await.good();
    assert_eq!(bridge.post(&message("m2", "room", "hello")).await.status, 403);
    let json = gateway.cli(&["doctor", "--offline", "--json"]).await.json();
    let adds = "[channels.webhook.bridge] allow_from = [\"u9\", \"u2\"]";
    assert_eq!(door(&json, "turned_away:sender_not_allowed"), adds);
    assert_eq!(door(&json, "turned_away:blocked"), "crawfish access unblock webhook:u1");
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&doctor, "no list names").contains("Bob\\x1b[2J (u2)"), "{doctor:?}");
    assert!(!doctor.out.contains('\u{1b}'), "{doctor:?}");
    gateway.cli(&["access", "unblock", "webhook:u1"]).await.good();
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(!doctor.out.contains("is blocked"), "{doctor:?}");
}

#[tokio::test]
async fn failed_turns_refused_orders_and_written_calls_are_told_by_cause_running_or_not() {
    let model = ModelServer::start(|ask| match ask.said().lines().next().unwrap_or_default() {
        "order" => Say::WrongOrder,
        _ => text("<tool_call>{\"name\": \"read\", \"arguments\": {\"path\": \"x\"}}</tool_call>"),
    })
    .await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(line(&doctor, "no turn failed").starts_with("✓"), "{doctor:?}");
    for (id, words) in [("m1", "order"), ("m2", "written")] {
        bridge.wait(&message(id, id, words)).await;
    }
    for running in [true, false] {
        if !running {
            assert_eq!(gateway.terminate().await.0, Some(0));
        }
        let doctor = gateway.cli(&["doctor", "--offline"]).await;
        let order = line(&doctor, "refused the order of messages");
        assert!(order.starts_with("✗") && order.contains("hours: 1.") && order.contains("/new"), "{order}");
        assert!(line(&doctor, "wrote a tool call as text").contains("crawfish trace tn_"), "{doctor:?}");
        assert!(line(&doctor, "only wrote down a tool call").contains("failed in the last 24 hours: 1"), "{doctor:?}");
        assert!(line(&doctor, "no message was given up").starts_with("✓"), "{doctor:?}");
    }
}
