//! A model's server in trouble: what passes is waited for, what does not is told in plain words, and nobody sees a page.

use std::{collections::BTreeMap, sync::Mutex, time::Duration};

use channel_api::Clock as _;
use crawfish::clock::SystemClock;
use serde_json::json;

use crate::support::{
    bridge::{Bridge, Receiver, message},
    gateway::Gateway,
    model_server::{ModelServer, Say, text},
    wait::until,
};

async fn set_up() -> (Gateway, Bridge, ModelServer, Receiver) {
    let (model, receiver) = (ModelServer::echo().await, Receiver::start().await);
    let section = Bridge::section(&receiver.lines());
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model, receiver)
}

#[tokio::test]
async fn trouble_that_passes_is_waited_for() {
    let (_gateway, bridge, model, receiver) = set_up().await;
    let faults = [
        ("busy", Say::Status(429, Some(1))),
        ("broken", Say::Status(500, None)),
        ("page", Say::Html),
        ("inside", Say::ErrorInside),
        ("away", Say::Status(503, Some(1))),
    ];
    let names = faults.clone().map(|(name, _)| name);
    let tries: Mutex<BTreeMap<String, u32>> = Mutex::default();
    model.follow(move |ask| {
        let (name, fault) = faults.iter().find(|(name, _)| ask.said().contains(name)).expect("one of them");
        let mut tries = tries.lock().expect("not poisoned");
        let count = tries.entry((*name).to_owned()).or_insert(0);
        *count += 1;
        if *count == 1 { fault.clone() } else { text(format!("good again: {name}")) }
    });
    for name in names {
        bridge.accepted(&message(name, &format!("room-{name}"), name)).await;
    }
    for name in names {
        let answer = receiver
            .until(name, Duration::from_secs(90), |all| all.iter().any(|callback| callback.in_reply_to() == name))
            .await;
        let answer = answer.iter().find(|callback| callback.in_reply_to() == name).expect("it was there");
        assert_eq!((answer.text(), &answer.body["final"]), (format!("good again: {name}").as_str(), &json!(true)));
    }
}

#[tokio::test]
async fn a_stream_that_breaks_is_never_shown_as_a_whole_answer() {
    let (_gateway, bridge, model, receiver) = set_up().await;
    let tries = Mutex::new(0);
    model.follow(move |_| {
        let mut tries = tries.lock().expect("not poisoned");
        *tries += 1;
        if *tries == 1 { Say::Cut("half an ans".to_owned()) } else { text("a whole answer") }
    });
    bridge.accepted(&message("m1", "room", "hello")).await;
    let answer = receiver.answer_to("m1").await;
    assert_ne!(answer.text(), "half an ans", "cut, and not marked as cut");
}

#[tokio::test]
async fn a_wrong_key_is_told_in_plain_words_and_not_tried_for_ever() {
    let (gateway, bridge, model, _receiver) = set_up().await;
    model.follow(|_| Say::Status(401, None));
    let answer = bridge.wait(&message("m1", "room", "hello")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.body["messages"][0]["type"], "error", "{answer:?}");
    assert!(!answer.raw.contains("<luck>") && !answer.raw.contains("sk-kit"), "{answer:?}");
    assert_eq!(model.asks().len(), 1, "401 is not tried again");
    assert!(!gateway.log().contains("sk-kit-0123456789abcdef"));
    model.follow(crate::support::model_server::echo);
    assert!(bridge.wait(&message("m2", "room", "and now")).await.text().contains("and now"));
}

#[tokio::test]
async fn a_model_that_asks_to_be_left_alone_is_left_alone() {
    let receiver = Receiver::start().await;
    let model = "[models.main]\nprovider = \"scripted\"\nrules = \"rules.yaml\"\n";
    let mut gateway = Gateway::folder(&format!("{model}\n{}", Bridge::section(&receiver.lines())));
    let rules = "rules:\n  - match: .\n    answers:\n      - error: { retry_after_ms: 4000 }\n      - text: rested\n";
    std::fs::write(gateway.dir().join("rules.yaml"), rules).expect("written");
    gateway.restart().await;
    let clock = SystemClock::new();
    let began = clock.monotonic();
    Bridge::to(&gateway).accepted(&message("m1", "room", "hello")).await;
    assert_eq!(receiver.answer_to("m1").await.text(), "rested");
    let rested = clock.monotonic().saturating_sub(began);
    assert!(rested >= Duration::from_secs(4), "asked again after {rested:?}");
}

#[tokio::test]
async fn a_message_whose_model_always_fails_becomes_a_dead_letter_and_can_be_retried() {
    let (gateway, bridge, model, receiver) = set_up().await;
    model.follow(|_| Say::Status(500, None));
    bridge.accepted(&message("doomed", "room", "doomed message")).await;
    // Five failures with their pauses, and the breaker's rest between.
    let apology = receiver
        .until("the apology", Duration::from_secs(300), |all| all.iter().any(|c| c.in_reply_to() == "doomed"))
        .await;
    assert_eq!((&apology[0].body["type"], &apology[0].body["final"]), (&json!("error"), &json!(true)), "{apology:?}");
    assert!(!apology[0].text().contains("500") && !apology[0].text().contains("<luck>"), "{apology:?}");
    let list = gateway.cli(&["dlq", "list", "--json"]).await;
    assert!(list.good().contains("doomed"), "{list:?}");
    let letters = list.json();
    let letters = letters.as_array().cloned().unwrap_or_else(|| panic!("a list: {letters}"));
    assert_eq!(letters.len(), 1, "{letters:?}");
    let id = letters[0]["id"].as_str().expect("an id").to_owned();
    assert!(gateway.cli(&["dlq", "list"]).await.good().contains(&id));
    assert!(gateway.cli(&["dlq", "show", &id]).await.good().contains("doomed"));
    model.follow(|_| text("saved"));
    gateway.cli(&["dlq", "retry", &id]).await.good();
    let saved = until("the answer", Duration::from_secs(90), async || {
        receiver.callbacks().into_iter().find(|callback| callback.text() == "saved")
    })
    .await;
    assert_eq!(saved.in_reply_to(), "doomed");
    assert_eq!(gateway.cli(&["dlq", "list", "--json"]).await.json(), json!([]));
    assert_ne!(gateway.cli(&["dlq", "retry", "in_nothing"]).await.code, Some(0));
}
