//! A model behind Anthropic's Messages API: tools, thinking that goes back as it came, and the trouble such a server makes.

use std::sync::Mutex;

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, Receiver, message},
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, echo, text},
};

async fn set_up(more: &str, script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> (Gateway, Bridge, ModelServer) {
    let model = ModelServer::start(script).await;
    let gateway = Gateway::start(&format!("{}\n{}", model.messages_section(more), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model)
}

fn blocks(message: &Value) -> Vec<&str> {
    message["content"].as_array().into_iter().flatten().filter_map(|block| block["type"].as_str()).collect()
}

#[tokio::test]
async fn calls_side_by_side_are_answered_together_and_thinking_goes_back_as_it_came() {
    let (gateway, bridge, model) = set_up("", |ask| match (ask.said().starts_with("look"), ask.round()) {
        (true, 0) => {
            let calls =
                vec![call("toolu_1", "ls", "{\"path\": \".\"}"), call("toolu_1", "ls", "{\"path\":\"memory\"}")];
            Say::Thinks("我先看看目录 <b>\"两个\"</b>".to_owned(), Box::new(Say::Calls(calls)))
        }
        (true, _) => {
            Say::Thinks("now I know".to_owned(), Box::new(text(format!("saw {} results", ask.results().len()))))
        }
        _ => echo(ask),
    })
    .await;
    let answer = bridge.wait(&message("m1", "room", "look around")).await;
    assert_eq!(answer.text(), "saw 2 results");
    assert!(bridge.wait(&message("m2", "room", "and now")).await.text().contains("and now"));
    model.assert_strict_order();
    let asks = model.asks();
    assert_eq!(asks.len(), 3);
    assert_eq!(asks[0].authorization.as_deref(), Some("sk-kit-0123456789abcdef"));
    let said = asks[1].raw["messages"].as_array().expect("messages");
    assert_eq!(blocks(&said[1]), ["thinking", "tool_use", "tool_use"]);
    assert_eq!(said[1]["content"][0]["thinking"], "我先看看目录 <b>\"两个\"</b>");
    assert_eq!(blocks(&said[2]), ["tool_result", "tool_result"], "one message holds both");
    // The next turn's request begins with the same messages, thinking included.
    let next = asks[2].raw["messages"].as_array().expect("messages");
    let plain = |message: &Value| {
        let mut message = message.clone();
        for block in message["content"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut) {
            block.remove("cache_control");
        }
        message
    };
    for (n, message) in said.iter().enumerate() {
        assert_eq!(plain(&next[n]), plain(message), "message {n}");
    }
    assert_eq!(blocks(&next[3]), ["thinking", "text"]);
    assert_eq!((&asks[2].raw["system"], &asks[2].raw["tools"]), (&asks[0].raw["system"], &asks[0].raw["tools"]));
    assert_eq!(asks[2].raw["system"][0]["cache_control"], json!({ "type": "ephemeral" }));
    let trace = gateway.cli(&["sessions", "list", "--json"]).await;
    let usage = trace.json()[0]["usage"].clone();
    assert_eq!((&usage["input"], &usage["cached"], &usage["output"]), (&json!(30), &json!(9), &json!(15)), "{usage}");
}

#[tokio::test]
async fn the_last_round_offers_no_tools_and_is_answered() {
    let model = ModelServer::start(|ask| match ask.tools().is_empty() {
        false => Say::Calls(vec![call("t", "ls", &json!({ "path": format!("p{}", ask.round()) }).to_string())]),
        true => text("enough"),
    })
    .await;
    let config = format!("[agent]\nmax_rounds = 3\n{}\n{}", model.messages_section(""), Bridge::section(""));
    let gateway = Gateway::start(&config).await;
    let answer = Bridge::to(&gateway).wait(&message("m1", "room", "go on and on")).await;
    assert_eq!(answer.text(), "enough");
    model.assert_strict_order();
    assert_eq!(model.asks().last().expect("asked").raw["tool_choice"], json!({ "type": "none" }));
}

#[tokio::test]
async fn trouble_that_passes_is_waited_for_and_half_an_answer_is_never_whole() {
    let (model, receiver) = (ModelServer::echo().await, Receiver::start().await);
    let section = Bridge::section(&receiver.lines());
    let gateway = Gateway::start(&format!("{}\n{section}", model.messages_section(""))).await;
    let bridge = Bridge::to(&gateway);
    let garbage = "data: {\"type\":\"content_block_delta\",\"index\":-1,\"delta\":7}\n\ndata: \u{0}nonsense\n\nevent: error\ndata: oops\n\n";
    let faults = [
        ("overloaded", Say::Status(529, None)),
        ("broken", Say::Status(500, None)),
        ("page", Say::Html),
        ("inside", Say::ErrorInside),
        ("garbage", Say::Raw(200, None, garbage.to_owned())),
        ("other", Say::Raw(200, None, "{\"choices\":[]}".to_owned())),
        ("cut", Say::Cut("half an ans".to_owned())),
    ];
    let names = faults.clone().map(|(name, _)| name);
    let tries: Mutex<Vec<String>> = Mutex::default();
    model.follow(move |ask| {
        let said = ask.messages().iter().filter(|message| message["role"] == "user");
        let said: String = said.filter_map(|message| message["content"].as_str()).collect();
        let (name, fault) = faults.iter().find(|(name, _)| said.contains(name)).expect("one of them");
        let mut tries = tries.lock().expect("not poisoned");
        if tries.iter().any(|known| known == name) {
            return text(format!("good again: {name}"));
        }
        tries.push((*name).to_owned());
        fault.clone()
    });
    // One after another: a model that fails several times in a row is left alone for a while.
    for name in names {
        bridge.accepted(&message(name, &format!("room-{name}"), name)).await;
        let answer = receiver.answer_to(name).await;
        assert!(answer.text().ends_with(&format!("good again: {name}")), "{name}: {answer:?}");
        assert!(!answer.text().contains("nonsense") && !answer.text().contains("Sign in"), "{answer:?}");
    }
    model.assert_strict_order();
}

#[tokio::test]
async fn a_wrong_key_is_told_in_plain_words_and_stays_out_of_sight() {
    let (gateway, bridge, model) = set_up("", |_| {
        let error = json!({ "type": "error", "error": { "type": "authentication_error", "message": "invalid x-api-key sk-kit-0123456789abcdef" } });
        Say::Raw(401, None, error.to_string())
    })
    .await;
    let answer = bridge.wait(&message("m1", "room", "hello")).await;
    assert_eq!(answer.body["messages"][0]["type"], "error", "{answer:?}");
    assert!(!answer.raw.contains("sk-kit"), "{answer:?}");
    assert_eq!(model.asks().len(), 1, "401 is not tried again");
    assert!(!gateway.log().contains("sk-kit-0123456789abcdef"));
}
