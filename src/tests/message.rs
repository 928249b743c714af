//! Words to other chats: to those that wrote here before, for the owner alone, once whatever dies.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
    telegram::{ADA, Telegram},
};

const BOB: i64 = 7;
const EVE: i64 = 8;

fn message(arguments: &Value) -> Say {
    Say::Calls(vec![call("m1", "message", &arguments.to_string())])
}

fn script(ask: &Ask) -> Say {
    let words = ask.said().lines().next().unwrap_or_default().to_owned();
    match (words.as_str(), ask.round()) {
        ("tell Bob", 0) => message(&json!({ "to": format!("telegram:{BOB}"), "text": "Ada is late." })),
        ("tell Ada", 0) => message(&json!({ "to": format!("telegram:{ADA}"), "text": "Send money." })),
        ("tell a stranger", 0) => message(&json!({ "to": "telegram:4711", "text": "Hello." })),
        ("tell by name", 0) => message(&json!({ "to": format!("Person {BOB}"), "text": "Come home." })),
        ("say it here", 0) => message(&json!({ "text": "Here it is." })),
        ("say it here", _) => text("Here  it\nis."),
        ("tell Bob", _) => text("Told."),
        (_, 0) => text("hello"),
        _ => text(ask.results().join(" / ")),
    }
}

#[tokio::test]
async fn the_owner_writes_to_a_chat_it_knows_and_a_crash_does_not_say_it_twice() {
    let telegram = Telegram::start().await;
    let model = ModelServer::start(script).await;
    let more = format!("limits = \"off\"\nallow_from = [\"{BOB}\"]\ntrusted = [\"{EVE}\"]");
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(&more))).await;
    for person in [BOB, EVE, ADA] {
        telegram.private(person, "good morning");
        telegram.said(person, "hello").await;
    }
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    telegram.private(ADA, "tell Bob");
    let ended = gateway.restart_doomed("tool.ran=return", Duration::from_secs(60)).await;
    assert!(ended.is_some_and(|ended| !ended.success()), "it never got there:\n{}", gateway.log());
    gateway.restart().await;
    telegram.said(ADA, "Told.").await;
    telegram.said(BOB, "Ada is late.").await;
    let resumed = model.asks_about("tell Bob").pop().expect("asked");
    assert!(resumed.results()[0].starts_with("Sent to ") && resumed.results()[0].contains("direct:7"), "{resumed:?}");

    // Whoever answers there is understood.
    telegram.private(BOB, "that is fine");
    telegram.until("Bob's answer", |telegram| (telegram.sent_to(BOB).len() == 3).then_some(())).await;
    let asked = model.asks_about("that is fine").pop().expect("asked");
    assert!(
        asked
            .messages()
            .iter()
            .any(|message| message["content"] == "hello\n\nAda is late." || message["content"] == "Ada is late."),
        "{:?}",
        asked.messages()
    );

    telegram.private(ADA, "tell a stranger");
    telegram.said(ADA, "is no chat that has written here before").await;
    // A name is chosen by whoever bears it: it is asked back, with the key.
    telegram.private(ADA, "tell by name");
    let asked_back = telegram.said(ADA, "it may be one of these").await;
    assert!(asked_back.text.contains(&format!("direct:{BOB}")), "{asked_back:?}");
    telegram.private(BOB, "tell Ada");
    telegram.said(BOB, "There is no tool").await;
    telegram.private(EVE, "tell Ada");
    telegram.said(EVE, "only the owner").await;
    telegram.private(ADA, "say it here");
    telegram.said(ADA, "Here it is.").await;
    telegram.private(ADA, "and on");
    telegram.until("the last answer", |telegram| (telegram.sent_to(ADA).len() == 6).then_some(())).await;
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    let to = |person| telegram.sent_to(person).into_iter().map(|sent| sent.text).collect::<Vec<_>>();
    assert_eq!(to(BOB).iter().filter(|text| text.contains("late")).count(), 1, "{:?}", to(BOB));
    assert_eq!(to(ADA).iter().filter(|text| text.contains("it is.")).count(), 1, "{:?}", to(ADA));
    assert!(!to(ADA).iter().any(|text| text.contains("money")), "{:?}", to(ADA));
    assert!(!to(BOB).iter().any(|text| text.contains("Come home")), "{:?}", to(BOB));
    assert!(telegram.sent_to(4711).is_empty());
    model.assert_strict_order();
}
