//! Sub-agents: started by a call, heard of once whatever dies in between, with no more rights than whoever started them.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    gateway::Gateway,
    model_server::{Ask, Gate, ModelServer, Say, call, text},
    telegram::{ADA, BOT_NAME, Telegram, group},
};

const TASK: &str = "count the blue things";

/// Starts a helper that answers once the gate is open, and tells what it found.
fn script(ask: &Ask, gate: &Gate) -> Say {
    let said = ask.said();
    if said.contains("There are 7.") {
        return text("The helper found 7.");
    }
    match (said.contains(TASK), ask.round()) {
        (true, 0) => Say::After(
            gate.clone(),
            Box::new(Say::Calls(vec![
                call("c1", "message", &json!({ "to": format!("telegram:{ADA}"), "text": "psst" }).to_string()),
                call("c2", "sessions", r#"{"action":"list"}"#),
                call("c3", "write", r#"{"path":"x.txt","content":"x"}"#),
            ])),
        ),
        (true, _) => text("There are 7."),
        (false, 0) if said.contains("research") => Say::Calls(vec![call(
            "s1",
            "spawn",
            &json!({ "task": TASK, "label": "counter", "tools": ["read", "ls", "message"] }).to_string(),
        )]),
        (false, _) => text("I have asked a helper."),
    }
}

fn config(model: &ModelServer, telegram: &Telegram) -> String {
    format!("{}\n{}", model.section(), telegram.section("limits = \"off\""))
}

#[tokio::test]
async fn a_result_is_told_once_though_the_process_dies_between_the_childs_end_and_the_parents_turn() {
    let telegram = Telegram::start().await;
    let gate = Gate::default();
    let held = gate.clone();
    let model = ModelServer::start(move |ask| script(ask, &held)).await;
    let mut gateway = Gateway::folder(&config(&model, &telegram));
    telegram.private(ADA, "do some research");
    // The parent's turn ends, then the child's: there it dies.
    let (ended, ()) =
        tokio::join!(gateway.restart_doomed("finish.done=1*off->return", Duration::from_secs(60)), async {
            telegram.said(ADA, "I have asked a helper.").await;
            gate.open();
        });
    assert!(ended.is_some_and(|ended| !ended.success()), "it never got there:\n{}", gateway.log());
    gateway.restart().await;
    telegram.said(ADA, "The helper found 7.").await;
    telegram.all_confirmed().await;
    let listed = gateway.cli(&["sessions", "list"]).await;
    assert!(listed.good().contains("agent:main:subagent:"), "{listed:?}");
    assert_eq!(gateway.terminate().await.0, Some(0));
    let sent = telegram.sent_to(ADA);
    assert_eq!(sent.len(), 2, "told once, and nothing else: {sent:?}");
    let told = model.asks_about("There are 7.");
    assert!(told.iter().all(|ask| ask.said().contains("sub-agent “counter”")), "{:?}", told[0].said());
    assert!(told[0].said().contains("<untrusted"), "a result is information: {}", told[0].said());

    // What the child was offered is what it was given of what its parent has.
    let asks = model.asks();
    let parent = asks.iter().find(|ask| ask.said().contains("research")).expect("asked");
    let child = asks.iter().find(|ask| ask.said().contains(TASK)).expect("asked");
    assert_eq!(child.tools(), ["ls", "read"]);
    assert!(child.tools().iter().all(|tool| parent.tools().contains(tool)) && parent.tools().contains(&"message"));
    let results = asks.iter().rev().find(|ask| ask.said().contains(TASK) && ask.round() == 1).expect("it went on");
    assert_eq!(results.results().len(), 3);
    assert!(results.results().iter().all(|result| result.contains("There is no tool")), "{:?}", results.results());
    assert!(!gateway.workspace().join("x.txt").exists());
    model.assert_strict_order();
}

#[tokio::test]
async fn a_stop_of_the_parent_stops_the_child_and_status_shows_it_before() {
    let telegram = Telegram::start().await;
    let gate = Gate::default();
    let held = gate.clone();
    let model = ModelServer::start(move |ask| script(ask, &held)).await;
    let mut gateway = Gateway::start(&config(&model, &telegram)).await;
    telegram.private(ADA, "do some research");
    telegram.said(ADA, "I have asked a helper.").await;
    model.asked_about(TASK).await;
    telegram.private(ADA, "/status");
    telegram.said(ADA, "Sub-agents at work: 1 (counter)").await;
    telegram.private(ADA, "/stop");
    telegram.said(ADA, "topped").await;
    gate.open();
    telegram.private(ADA, "/status");
    telegram
        .until("a status without sub-agents", |telegram| {
            telegram
                .sent_to(ADA)
                .last()
                .is_some_and(|sent| sent.text.contains("Queue mode") && !sent.text.contains("counter"))
                .then_some(())
        })
        .await;
    telegram.private(ADA, "still there?");
    telegram.until("an answer", |telegram| (telegram.sent_to(ADA).len() == 5).then_some(())).await;
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    assert_eq!(telegram.sent_to(ADA).len(), 5, "{:?}", telegram.sent_to(ADA));
    assert!(model.asks_about("There are 7.").is_empty(), "who was stopped reports nothing");
}

/// Looks at another session and asks it, tells what came of it.
fn asks_others(ask: &Ask) -> Say {
    let said = ask.said();
    let words = said.lines().next().unwrap_or_default().to_owned();
    match ask.round() {
        0 if words.starts_with("ask ") => {
            let key = words.trim_start_matches("ask ");
            Say::Calls(vec![
                call("h1", "sessions", &json!({ "action": "history", "session": key }).to_string()),
                call(
                    "q1",
                    "sessions",
                    &json!({ "action": "send", "session": key, "text": "what is the colour?" }).to_string(),
                ),
            ])
        }
        _ if said.contains("what is the colour?") => text("It is blue."),
        _ if said.contains("It is blue.") => text("Heard: blue."),
        0 => text("noted"),
        _ => text(ask.results().join(" / ")),
    }
}

#[tokio::test]
async fn a_session_of_mine_is_asked_and_answers_and_other_peoples_are_not_read() {
    let telegram = Telegram::start().await;
    let model = ModelServer::start(asks_others).await;
    let config = format!("{}\n{}", model.section(), telegram.section("limits = \"off\"\nallow_from = [\"7\"]"));
    let mut gateway = Gateway::start(&config).await;
    assert_eq!(gateway.answer("the colour is blue", Some("notes")).await, "noted");
    telegram.private(7, "my secret is red");
    telegram.said(7, "noted").await;
    telegram.private(ADA, "ask agent:main:web:notes");
    let result = telegram.said(ADA, "Asked agent:main:web:notes").await;
    assert!(result.text.contains("the colour is blue"), "{result:?}");
    telegram.said(ADA, "Heard: blue.").await;
    telegram.private(ADA, "ask agent:main:telegram:direct:7");
    let result = telegram.said(ADA, "no such session").await;
    assert!(!result.text.contains("red"), "{result:?}");
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    assert_eq!((telegram.sent_to(ADA).len(), telegram.sent_to(7).len()), (3, 1), "{:?}", telegram.sent());
}

#[tokio::test]
async fn owners_read_no_chats_of_each_other_and_ask_no_group() {
    let telegram = Telegram::start().await;
    let model = ModelServer::start(asks_others).await;
    let section = telegram.section("limits = \"off\"\ngroup_policy = \"open\"");
    let owners = format!("owners = [\"{ADA}\"]");
    assert!(section.contains(&owners));
    let section = section.replace(&owners, &format!("owners = [\"{ADA}\", \"9\"]"));
    let mut gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    assert_eq!(gateway.answer("the colour is blue", Some("notes")).await, "noted");
    telegram.private(9, "my secret is red");
    telegram.said(9, "noted").await;
    telegram.group(&group(-5), ADA, &format!("@{BOT_NAME} we like green"));
    telegram.said(-5, "noted").await;
    for (n, (key, seen)) in [
        ("agent:main:telegram:direct:9", "no such session"),
        ("agent:main:web:notes", "no such session"),
        ("agent:main:telegram:group:-5", "we like green"),
    ]
    .into_iter()
    .enumerate()
    {
        telegram.private(ADA, &format!("ask {key}"));
        let result = telegram.until("its own answer", |telegram| telegram.sent_to(ADA).get(n).cloned()).await;
        assert!(result.text.contains(seen), "{key}: {result:?}");
        assert!(!result.text.contains("red") && !result.text.contains("blue"), "{key}: {result:?}");
        assert!(!result.text.contains("Asked "), "{key}: {result:?}");
    }
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    assert!(model.asks_about("what is the colour?").is_empty(), "nobody was asked");
}

#[tokio::test]
async fn who_may_not_write_any_more_has_no_helper_working_for_them() {
    let telegram = Telegram::start().await;
    let gate = Gate::default();
    let held = gate.clone();
    let model = ModelServer::start(move |ask| script(ask, &held)).await;
    let with = |more: &str| format!("{}\n{}", model.section(), telegram.section(more));
    let mut gateway = Gateway::start(&with("limits = \"off\"\ntrusted = [\"7\"]")).await;
    telegram.private(7, "do some research");
    telegram.said(7, "I have asked a helper.").await;
    model.asked_about(TASK).await;
    gateway.kill9().await;
    gateway.configure(&with("limits = \"off\""));
    gate.open();
    gateway.restart().await;
    gateway.logged("an errand is not done").await;
    telegram.private(ADA, "hello");
    telegram.said(ADA, "I have asked a helper.").await;
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    assert_eq!(model.asks_about(TASK).len(), 1, "its helper did nothing more");
    // The kill may come before the receipt of the first answer: then it comes again with its mark, and nothing else does.
    let told = telegram.sent_to(7);
    assert!(told.iter().all(|sent| sent.text.ends_with("I have asked a helper.")), "{told:?}");
    assert_eq!(told.iter().filter(|sent| !sent.text.starts_with('↻')).count(), 1, "{told:?}");
}
