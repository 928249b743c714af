//! Reminders as people use them: set in a chat, kept over a crash, done once, where they were set.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, echo, text},
    telegram::{ADA, Telegram, group},
    wait::{SOON, until},
};

const GROUP: i64 = -1_001_234_567_890;
const BOB: i64 = 77;

/// Sets what the message says after "remind me", speaks when it is due.
fn secretary(ask: &Ask) -> Say {
    let said = ask.said();
    if said.contains("[schedule sc_") || said.contains("［定时任务 sc_") {
        return text("REMINDER: drink water");
    }
    match (said.split_once("remind me "), ask.round()) {
        (Some((_, when)), 0) => {
            let when = when.lines().next().unwrap_or_default().trim();
            let arguments = json!({ "action": "add", "at": when, "text": "drink water" });
            Say::Calls(vec![call("c1", "schedule", &arguments.to_string())])
        }
        (Some(_), _) => text(format!("fine: {}", ask.results().join(" "))),
        (None, _) => echo(ask),
    }
}

async fn office(more: &str) -> (Telegram, ModelServer, Gateway) {
    let (telegram, model) = (Telegram::start().await, ModelServer::start(secretary).await);
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(more))).await;
    telegram.polled().await;
    (telegram, model, gateway)
}

async fn is_empty(gateway: &Gateway) {
    until("the reminder to be gone", SOON, async || {
        (gateway.cli(&["schedule", "list", "--json"]).await.json() == json!([])).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_reminder_comes_once_though_the_process_dies_at_the_due_second() {
    let (telegram, model, mut gateway) = office("").await;
    telegram.private(ADA, "remind me in 5s");
    let told = telegram.said(ADA, "fine: Set sc_").await;
    assert!(told.text.contains("(in "), "the local time is told: {}", told.text);
    assert!(gateway.cli(&["schedule", "list"]).await.good().contains("drink water"));
    gateway.kill9().await;
    for point in ["schedule.due", "schedule.fired", "finish.done"] {
        let ended = gateway.restart_doomed(&format!("{point}=return"), Duration::from_secs(30)).await;
        assert!(ended.is_some(), "{point} was never reached:\n{}", gateway.log());
    }
    gateway.restart().await;
    telegram.said(ADA, "REMINDER: drink water").await;
    is_empty(&gateway).await;
    telegram.private(ADA, "done?");
    telegram.said(ADA, "you said: done?").await;
    let reminders = telegram.sent_to(ADA).into_iter().filter(|sent| sent.text.contains("REMINDER")).count();
    assert_eq!(reminders, 1, "{:?}", telegram.sent_to(ADA));
    model.assert_strict_order();
    assert_eq!(gateway.terminate().await.0, Some(0));
}

#[tokio::test]
async fn row_48_a_reminder_arrives_in_the_group_where_it_was_set_and_members_set_none() {
    let (telegram, model, gateway) = office(&format!("group_policy = \"open\"\nallow_from = [\"{BOB}\"]")).await;
    let room = group(GROUP);
    telegram.private(ADA, "hello");
    telegram.said(ADA, "you said: hello").await;
    telegram.group(&room, ADA, &format!("@{} remind me in 1s", crate::support::telegram::BOT_NAME));
    telegram.said(GROUP, "REMINDER: drink water").await;
    is_empty(&gateway).await;
    assert_eq!(telegram.sent_to(ADA).len(), 1, "hello alone");
    telegram.private(BOB, "which tools?");
    telegram.said(BOB, "you said: which tools?").await;
    let asks = model.asks_about("which tools?");
    assert!(!asks[0].tools().contains(&"schedule"), "{:?}", asks[0].tools());
}

#[tokio::test]
async fn what_is_set_where_nobody_would_get_it_goes_to_the_owners_other_chat_or_is_refused() {
    let (telegram, model) = (Telegram::start().await, ModelServer::start(secretary).await);
    let bridge = Bridge::section("owners = [\"boss\"]");
    let gateway = Gateway::start(&format!("{}\n{}\n{bridge}", model.section(), telegram.section(""))).await;
    telegram.polled().await;
    let bridge = Bridge::to(&gateway);
    let asked = async |id: &str, sender: &str| {
        let mut body = message(id, &format!("room-{sender}"), "remind me in 1s");
        body["sender"] = json!({ "id": sender });
        bridge.wait(&body).await.text().to_owned()
    };
    for (id, sender) in [("m1", "u1"), ("m2", "boss")] {
        let told = asked(id, sender).await;
        assert!(told.contains("callback_url") && !told.contains("sc_"), "{sender}: {told}");
    }
    is_empty(&gateway).await;
    // Once the owner has written where they are told things, it comes there.
    telegram.private(ADA, "hello");
    telegram.said(ADA, "you said: hello").await;
    let told = asked("m3", "boss").await;
    assert!(told.contains("Set sc_") && told.contains("telegram"), "{told}");
    telegram.said(ADA, "REMINDER: drink water").await;
    assert!(!asked("m4", "u1").await.contains("sc_"), "somebody else's does not");
}

#[tokio::test]
async fn row_48_what_a_blocked_person_set_does_not_run_and_says_why() {
    let (telegram, model, gateway) = office(&format!("trusted = [\"{BOB}\"]")).await;
    telegram.private(BOB, "remind me in 4s");
    telegram.said(BOB, "fine: Set sc_").await;
    gateway.cli(&["access", "block", &format!("telegram:{BOB}")]).await.good();
    let row = until("the end of the schedule", SOON, async || {
        let rows = gateway.cli(&["schedule", "list", "--json"]).await.json();
        Some(rows[0].clone()).filter(|row| row["state"] == "stopped")
    })
    .await;
    assert_eq!(row["error"], "whoever set it is blocked");
    assert!(model.asks_about("[schedule").is_empty());
    let id = row["id"].as_str().expect("an id");
    gateway.cli(&["schedule", "cancel", id]).await.good();
    is_empty(&gateway).await;
}

#[tokio::test]
async fn the_command_line_sets_runs_and_refuses() {
    let (telegram, _model, gateway) = office("").await;
    telegram.private(ADA, "hello");
    telegram.said(ADA, "you said: hello").await;
    let set = gateway
        .cli(&["schedule", "add", "stretch", "--cron", "0 8 * * 1-5", "--tz", "Asia/Shanghai", "--json"])
        .await
        .json();
    let id = set["schedule"]["id"].as_str().expect("an id").to_owned();
    assert!(set["coming"][0].as_str().is_some_and(|at| at.ends_with("08:00 +08:00 Asia/Shanghai")), "{set}");
    gateway.cli(&["schedule", "run", &id]).await.good();
    telegram.said(ADA, "REMINDER: drink water").await;
    let shown = gateway.cli(&["schedule", "show", &id]).await;
    assert!(shown.good().contains("stretch"), "{shown:?}");
    for (args, why) in [
        (&["schedule", "add", "x", "--cron", "* * * * *"][..], "it comes every 1m"),
        (&["schedule", "add", "x", "--at", "2001-01-01T00:00"], "in the past"),
        (&["schedule", "add", "x", "--at", "08:00", "--tz", "Mars/Base"], "there is no time zone"),
        (&["schedule", "cancel", "sc_nobody"], ""),
    ] {
        let refused = gateway.cli(args).await;
        assert!(refused.code != Some(0) && refused.err.contains(why), "{args:?}: {refused:?}");
        // What was asked is at fault, and not the gateway.
        assert!(args[1] != "add" || refused.code == Some(65), "{args:?}: {refused:?}");
    }
}
