//! Two agents behind one bot: a group is answered by one, everything else by the other, each with its own persona, skills,
//! memory and sessions; and one person's chats on two platforms are one session where the owner says so.

use std::fs;

use serde_json::json;

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
    telegram::{ADA, BOT_NAME, Telegram, forum, group},
};

const OFFICE: i64 = -1_001_000_000_001;
const FAMILY: i64 = -1_001_000_000_002;

/// Which agent it is, by the persona it was told, and whether the skill of the other one is there.
fn who(ask: &Ask) -> String {
    let system = ask.messages()[0]["content"].as_str().unwrap_or_default();
    let has = |words: &'static str| if system.contains(words) { words } else { "no" };
    [has("WORK-SOUL"), has("HOME-SOUL"), has("work-only"), has("home-only"), has("MEMORY-OF-WORK")].join(" ")
}

fn skill(gateway: &Gateway, workspace: &str, name: &str) {
    let dir = gateway.dir().join(workspace).join("skills").join(name);
    fs::create_dir_all(&dir).expect("a folder");
    let front = format!("---\nname: {name}\ndescription: What {name} is for, and nothing else.\n---\nDo it.\n");
    fs::write(dir.join("SKILL.md"), front).expect("written");
}

#[tokio::test]
async fn two_agents_of_one_bot_know_nothing_of_each_other() {
    let telegram = Telegram::start().await;
    let model = ModelServer::start(|ask| match (ask.said().contains("look around"), ask.round()) {
        (true, 0) => Say::Calls(vec![
            call("c1", "read", &json!({ "path": "../workspace/SOUL.md" }).to_string()),
            call("c2", "read", &json!({ "path": "../workspace/diary.txt" }).to_string()),
            call("c3", "ls", "{\"path\":\".\"}"),
        ]),
        (true, _) => text(ask.results().join("|")),
        _ => text(who(ask)),
    })
    .await;
    let agents = format!(
        "[agents.work]\nmax_rounds = 7\nbindings = [{{ channel = \"telegram\", group = \"{OFFICE}\" }}]\n\
         [agents.night]\nskills = [\"home-only\"]\nworkspace = \"workspace\"\n\
         bindings = [{{ channel = \"telegram:main\", group = \"{FAMILY}\", thread = \"7\" }}]\n"
    );
    let lines = format!(
        "group_policy = \"allowlist\"\ngroups.\"{OFFICE}\" = {{ allow_from = [\"*\"] }}\n\
         groups.\"{FAMILY}\" = {{ allow_from = [\"*\"] }}"
    );
    let mut gateway = Gateway::folder(&format!("{}\n{}\n{agents}", model.section(), telegram.section(&lines)));
    for (workspace, soul) in [("workspace", "HOME-SOUL"), ("workspace-work", "WORK-SOUL")] {
        fs::create_dir_all(gateway.dir().join(workspace)).expect("a folder");
        fs::write(gateway.dir().join(workspace).join("SOUL.md"), soul).expect("written");
    }
    fs::write(gateway.dir().join("workspace/diary.txt"), "the diary of home").expect("written");
    fs::write(gateway.dir().join("workspace-work/MEMORY.md"), "MEMORY-OF-WORK").expect("written");
    skill(&gateway, "workspace", "home-only");
    skill(&gateway, "workspace-work", "work-only");
    gateway.restart().await;
    telegram.polled().await;
    let at = |text: &str| format!("@{BOT_NAME} {text}");
    telegram.group(&group(OFFICE), ADA, &at("who are you?"));
    let answer = telegram.said(OFFICE, "SOUL").await;
    assert_eq!(answer.text, "WORK-SOUL no work-only no no", "a group never sees MEMORY.md");
    telegram.group(&group(FAMILY), ADA, &at("who are you?"));
    assert_eq!(telegram.said(FAMILY, "SOUL").await.text, "no HOME-SOUL no home-only no");
    telegram.private(ADA, "who are you?");
    assert_eq!(telegram.said(ADA, "SOUL").await.text, "no HOME-SOUL no home-only no");
    // What one agent may read ends at its own workspace.
    telegram.group(&group(OFFICE), ADA, &at("look around"));
    let found = telegram.said(OFFICE, "SOUL.md").await.text;
    assert!(!found.contains("HOME-SOUL") && !found.contains("diary of home"), "{found}");
    // Its sessions carry its name, and it says so.
    telegram.group(&group(OFFICE), ADA, &at("/status"));
    telegram.said(OFFICE, "Agent: work").await;
    let sessions = gateway.cli(&["sessions", "list", "--json"]).await;
    for key in [format!("agent:work:telegram:group:{OFFICE}"), format!("agent:main:telegram:group:{FAMILY}")] {
        assert!(sessions.good().contains(&key), "{key}: {sessions:?}");
    }
    // A topic of the family's group belongs to a third one, with a list of skills of its own.
    telegram.open_topic(FAMILY, 7);
    let topic = json!({ "text": at("who are you?"), "message_thread_id": 7, "is_topic_message": true });
    let mut asked = topic.clone();
    asked["entities"] = json!([{ "type": "mention", "offset": 0, "length": BOT_NAME.len() + 1 }]);
    telegram.message(&forum(FAMILY), ADA, &asked);
    telegram
        .until("the topic's answer", |telegram| {
            telegram.sent_to(FAMILY).into_iter().find(|sent| sent.thread == Some(7)).map(drop)
        })
        .await;
    let sessions = gateway.cli(&["sessions", "list", "--json"]).await;
    assert!(sessions.good().contains(&format!("agent:night:telegram:group:{FAMILY}:topic:7")), "{sessions:?}");
    let usage = gateway.cli(&["usage", "--by", "agent", "--json"]).await.json();
    let keys: Vec<&str> = usage.as_array().expect("a list").iter().filter_map(|row| row["key"].as_str()).collect();
    for agent in ["main", "work", "night"] {
        assert!(keys.contains(&agent), "{agent}: {usage}");
    }
}

#[tokio::test]
async fn an_agent_that_is_not_there_and_a_workspace_inside_another_are_refused() {
    let refused = async |config: &str, words: &[&str]| {
        let gateway = Gateway::folder(config);
        let check = gateway.cli(&["config", "check"]).await;
        assert_eq!(check.code, Some(78), "{config}: {check:?}");
        for word in words {
            assert!(check.err.contains(word), "{word}: {check:?}");
        }
    };
    let bridge = Bridge::section("agent = \"wrok\"");
    refused(&format!("[agents.work]\n{bridge}"), &["wrok", "work"]).await;
    refused("[agents.work]\nworkspace = \"workspace/work\"", &["agents.work.workspace", "`main`"]).await;
    refused("[agents.work]\nbindings = [{ channel = \"telegrm\" }]", &["telegrm", "telegram"]).await;
    refused("[agents.work]\nbindings = [{ channel = \"telegram:main\" }]", &["telegram:main"]).await;
    refused("[agents.work]\nbindings = [{ channel = \"telegram\", sender = \"@ada\" }]", &["agents.work.bindings"])
        .await;
    refused("[agents.work]\nbinding = []", &["binding", "bindings"]).await;
    refused("[agents.main]\nmax_rounds = 3", &["[agent]"]).await;
    let twice = "[access.identity_links]\nada = [\"telegram:1\"]\neve = [\"telegram:1\"]";
    refused(twice, &["telegram:1", "ada"]).await;
}

#[tokio::test]
async fn one_persons_chats_on_two_platforms_are_one_session() {
    let telegram = Telegram::start().await;
    let model = ModelServer::start(|ask| {
        let said = ask.messages().iter().filter(|message| message["role"] == "user");
        text(format!("{} messages so far", said.count()))
    })
    .await;
    let links = format!("[access.identity_links]\nada = [\"telegram:{ADA}\", \"webhook:bridge:u1\"]\n");
    let sections = format!("{}\n{}\n{}", model.section(), telegram.section(""), Bridge::section(""));
    let gateway = Gateway::start(&format!("{sections}\n{links}")).await;
    telegram.polled().await;
    let bridge = Bridge::to(&gateway);
    telegram.private(ADA, "hello from Telegram");
    telegram.said(ADA, "1 messages so far").await;
    assert_eq!(bridge.wait(&message("m1", "room", "hello from the bridge")).await.text(), "2 messages so far");
    telegram.private(ADA, "and back");
    telegram.said(ADA, "3 messages so far").await;
    // Somebody else on the bridge is somebody else, whatever they call themselves.
    let mut other = message("m2", "room", "hello");
    other["sender"] = json!({ "id": "u2", "name": "u1" });
    assert_eq!(bridge.wait(&other).await.text(), "1 messages so far");
    let sessions = gateway.cli(&["sessions", "list", "--json"]).await;
    assert!(sessions.good().contains("\"agent:main:direct:ada\""), "{sessions:?}");
}
