//! The heartbeat as its owner meets it: it costs nothing while there is nothing to do, says what needs attention once, and
//! leaves no trace when nothing does.

use std::fs;

use serde_json::Value;

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, echo, text},
    telegram::{ADA, Telegram},
    wait::{SOON, until},
};

const TICKS: &str = "[heartbeat]\nevery = \"1s\"\n";

struct House {
    telegram: Telegram,
    model: ModelServer,
    gateway: Gateway,
}

/// A gateway whose owner has written once; HEARTBEAT.md is as shipped.
async fn house(config: &str, script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> House {
    let (telegram, model) = (Telegram::start().await, ModelServer::start(script).await);
    let gateway = Gateway::start(&format!("{}\n{}\n{config}", model.section(), telegram.section(""))).await;
    telegram.polled().await;
    telegram.private(ADA, "hello");
    telegram.said(ADA, "you said: hello").await;
    House { telegram, model, gateway }
}

impl House {
    fn gives_work(&self) {
        fs::write(self.gateway.workspace().join("HEARTBEAT.md"), "- look at the disk\n").expect("a file");
    }

    /// Waits until the last tick looks like this.
    async fn tick(&self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        until(what, SOON, async || {
            let ticks = self.gateway.cli(&["heartbeat", "last", "--json"]).await.json();
            Some(ticks[0].clone()).filter(|tick| is(tick))
        })
        .await
    }

    fn ticks(&self) -> Vec<Ask> {
        self.model.asks_about("[heartbeat]")
    }
}

#[tokio::test]
async fn an_empty_file_costs_no_model_call_and_says_why() {
    let house = house(TICKS, echo).await;
    let tick = house.tick("a reason", |tick| tick["result"] == "empty-heartbeat-file").await;
    let later = house.tick("another slot", |later| later["slot"].as_i64() > tick["slot"].as_i64()).await;
    assert_eq!(later["result"], "empty-heartbeat-file");
    assert_eq!(house.model.asks().len(), 1, "the owner's message alone");
    let said = house.gateway.cli(&["heartbeat", "last"]).await;
    assert!(said.good().contains("empty-heartbeat-file"), "{said:?}");
}

#[tokio::test]
async fn an_alert_beside_the_token_arrives_with_its_lines_and_once_a_day() {
    let house = house(TICKS, |ask| match ask.said().contains("[heartbeat]") {
        true => text("ALERT disk full\nline two HEARTBEAT_OK"),
        false => echo(ask),
    })
    .await;
    house.gives_work();
    let alert = house.telegram.said(ADA, "ALERT disk full").await;
    assert_eq!(alert.text, "ALERT disk full\nline two");
    assert_eq!(alert.reply_to, None);
    let tick = house.tick("a duplicate", |tick| tick["run"]["silent"] == "duplicate").await;
    assert_eq!(tick["result"], "ran");
    assert_eq!(house.telegram.sent_to(ADA).len(), 2, "hello and the alert");
    // It can be talked about.
    house.telegram.private(ADA, "what was that?");
    house.telegram.said(ADA, "you said: what was that?").await;
    let asks = house.model.asks_about("what was that?");
    let seen: Vec<&str> = asks[0].messages().iter().filter_map(|message| message["content"].as_str()).collect();
    assert_eq!(seen.iter().filter(|text| text.contains("ALERT disk full\nline two")).count(), 1, "{seen:?}");
}

#[tokio::test]
async fn a_bare_acknowledgement_leaves_no_trace() {
    let house = house(TICKS, |ask| match (ask.said().contains("[heartbeat]"), ask.round()) {
        (true, 0) => Say::Calls(vec![call("c1", "read", "{\"path\": \"HEARTBEAT.md\"}")]),
        (true, _) => text("HEARTBEAT_OK"),
        (false, _) => echo(ask),
    })
    .await;
    let sessions = async || house.gateway.cli(&["sessions", "list", "--json"]).await.json();
    let before = sessions().await;
    house.gives_work();
    house.tick("an acknowledgement", |tick| tick["run"]["silent"] == "heartbeat_ok").await;
    let after = sessions().await;
    for field in ["updated_at", "messages", "pending", "key"] {
        assert_eq!(before[0][field], after[0][field], "{field}: {after}");
    }
    // No history was sent along, and none is left behind.
    let tick = house.ticks().into_iter().next().expect("a tick");
    assert_eq!(tick.messages().len(), 2, "system and the tick: {:?}", tick.messages());
    house.telegram.private(ADA, "and now?");
    house.telegram.said(ADA, "you said: and now?").await;
    let asks = house.model.asks_about("and now?");
    let roles: Vec<&str> = asks[0].messages().iter().filter_map(|message| message["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "user"]);
    assert_eq!(asks[0].messages()[0], tick.messages()[0], "the same prefix");
    assert_eq!(house.telegram.sent_to(ADA).len(), 2);
    house.model.assert_strict_order();
}

#[tokio::test]
async fn a_webhook_without_a_callback_is_no_target_and_the_line_that_opens_it_is_named() {
    let model = ModelServer::start(|ask| match (ask.said().contains("tell me later"), ask.round()) {
        (true, 0) => Say::Calls(vec![call("c1", "message", "{\"text\": \"later\"}")]),
        (true, _) => text(ask.results()[0]),
        (false, _) => echo(ask),
    })
    .await;
    let owners = "[access]\nowners = [\"webhook:u1\"]\n";
    let sections = format!("{}\n{}\n{owners}{TICKS}", model.section(), Bridge::section(""));
    let gateway = Gateway::start(&sections).await;
    let bridge = Bridge::to(&gateway);
    assert_eq!(bridge.wait(&message("m1", "room", "hello")).await.text(), "you said: hello");
    fs::write(gateway.workspace().join("HEARTBEAT.md"), "- look at the disk\n").expect("a file");
    until("a reason", SOON, async || {
        let ticks = gateway.cli(&["heartbeat", "last", "--json"]).await.json();
        (ticks[0]["result"] == "no-callback").then_some(())
    })
    .await;
    let told = bridge.wait(&message("m2", "room", "tell me later")).await;
    assert!(told.text().contains("Not sent") && told.text().contains("callback_url"), "{told:?}");
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(doctor.out.contains("[channels.webhook.bridge] callback_url"), "{doctor:?}");
    assert!(!doctor.out.contains("senders are strangers"), "there is an owner: {doctor:?}");
    assert!(model.asks_about("[heartbeat]").is_empty());
}

#[tokio::test]
async fn without_an_owner_who_wrote_nobody_is_told_and_nothing_is_asked() {
    let model = ModelServer::echo().await;
    let gateway = Gateway::folder(&format!("{}\n{TICKS}", model.section()));
    fs::create_dir_all(gateway.workspace()).expect("a folder");
    fs::write(gateway.workspace().join("HEARTBEAT.md"), "- look at the disk\n").expect("a file");
    let mut gateway = gateway;
    gateway.restart().await;
    until("a reason", SOON, async || {
        let ticks = gateway.cli(&["heartbeat", "last", "--json"]).await.json();
        (ticks[0]["result"] == "no-target").then_some(())
    })
    .await;
    assert!(model.asks().is_empty());
    // Once the owner has used the web chat, that is where it speaks.
    gateway.answer("hi", None).await;
    model.asked_about("[heartbeat]").await;
}
