//! Which tools there are where: what a policy takes away, the model is neither offered nor given.

use serde_json::json;

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{ModelServer, Say, call, text},
};

#[tokio::test]
async fn policies_of_everywhere_the_channel_and_the_sender_all_hold() {
    let model = ModelServer::start(|ask| match ask.round() {
        // Asked for whether or not it is offered.
        0 => Say::Calls(vec![call("c1", "write", &json!({ "path": "made.txt", "content": "x" }).to_string())]),
        _ => text(ask.results().join("|")),
    })
    .await;
    let bridge = Bridge::section("owners = [\"boss\", \"second\"]\ntools = { deny = [\"grep\"] }");
    let policies = "[tools]\ndeny = [\"web_*\"]\n[access.senders.\"webhook:second\"]\ntools = { allow = [\"read\", \"grep\", \"web_fetch\"] }";
    let gateway = Gateway::start(&format!("{}\n{bridge}\n{policies}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    let ask = async |id: &str, sender: &str| {
        let mut body = message(id, sender, "go");
        body["sender"] = json!({ "id": sender, "name": sender });
        let answer = bridge.wait(&body).await.text().to_owned();
        let asks = model.asks();
        let first = asks.iter().rev().find(|ask| ask.round() == 0).expect("it was asked");
        let tools: Vec<String> = first.tools().iter().map(|tool| (*tool).to_owned()).collect();
        (answer, tools)
    };
    let (answer, tools) = ask("m1", "second").await;
    assert_eq!(tools, ["read"], "what the sender's list names, less what the channel and all deny");
    assert!(answer.contains("There is no tool `write`"), "{answer}");
    assert!(!gateway.workspace().join("made.txt").exists());
    let (answer, tools) = ask("m2", "boss").await;
    assert!(tools.contains(&"write".to_owned()) && tools.contains(&"find".to_owned()), "{tools:?}");
    assert!(!tools.contains(&"grep".to_owned()) && !tools.contains(&"web_fetch".to_owned()), "{tools:?}");
    assert!(answer.contains("Created `made.txt`"), "{answer}");
    // The terminal is another channel: grep is there.
    let _ = gateway.answer("go", None).await;
    let asks = model.asks();
    let first = asks.iter().rev().find(|ask| ask.round() == 0).expect("it was asked");
    assert!(first.tools().contains(&"grep") && !first.tools().contains(&"web_fetch"), "{:?}", first.tools());
}

#[tokio::test]
async fn a_profile_leaves_its_tools_and_a_slip_is_named() {
    let model = ModelServer::start(|_| text("hello")).await;
    let policy = "[tools]\nprofile = \"minimal\"\nallow = [\"group:web\", \"spreadsheat\"]";
    let gateway = Gateway::start(&format!("{}\n{policy}", model.section())).await;
    gateway.answer("hi", None).await;
    let offered = model.asks()[0].tools().iter().map(|tool| (*tool).to_owned()).collect::<Vec<_>>();
    assert_eq!(offered.into_iter().filter(|tool| tool != "todo").collect::<Vec<_>>(), ["web_fetch"]);
    let check = gateway.cli(&["config", "check"]).await;
    let told = format!("{}{}", check.out, check.err);
    assert!(told.contains("`spreadsheat` names no tool") && told.contains("`spreadsheet`"), "{told}");
}
