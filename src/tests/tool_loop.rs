//! A turn with tools: what models do wrong is repaired, what they must not do is refused, and it always ends.

use std::fs;

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
};

async fn set_up(script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> (Gateway, Bridge, ModelServer) {
    let model = ModelServer::start(script).await;
    let gateway = Gateway::folder(&format!("{}\n{}", model.section(), Bridge::section("")));
    fs::create_dir_all(gateway.workspace()).expect("a folder");
    fs::write(gateway.workspace().join("notes.txt"), "the blue notebook\n").expect("a file");
    fs::write(gateway.dir().join("secret.txt"), "the red secret\n").expect("a file");
    let mut gateway = gateway;
    gateway.restart().await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model)
}

/// The result of the n-th call, from 1: ids are the gateway's own on the wire.
fn result_of(ask: &Ask, n: usize) -> &str {
    let calls = ask.messages().iter().filter_map(|message| message["tool_calls"].as_array()).flatten();
    let id = &calls.map(|call| &call["id"]).nth(n - 1).expect("the call is on the wire");
    let found = ask.messages().iter().find(|message| message["role"] == "tool" && message["tool_call_id"] == **id);
    found.and_then(|message| message["content"].as_str()).expect("every call has its result")
}

#[tokio::test]
async fn two_calls_dirty_arguments_and_other_agents_names_give_the_right_results_and_nothing_leaks() {
    let (gateway, bridge, model) = set_up(|ask| match ask.round() {
        0 => Say::Calls(vec![
            call("c1", "read_file", &json!({ "filePath": "notes.txt" }).to_string()),
            call("c2", "list_files", "{}"),
        ]),
        1 => Say::Calls(vec![
            call("c3", "read", "```json\n{path: 'notes.txt', // the notes\n}\n```"),
            call("c4", "functions.read", "\"{\\\"path\\\": \\\"notes.txt\\\"}\""),
            call("c5", "write_file", "{\"path\": \"made.txt\", \"content\": \"made by a call\",}"),
        ]),
        2 => Say::Calls(vec![
            call("c6", "read", &json!({ "path": "../secret.txt" }).to_string()),
            call("c7", "read", &json!({ "path": "/etc/passwd" }).to_string()),
            call("c8", "write", &json!({ "path": "../out.txt", "content": "x" }).to_string()),
            call("c9", "make_coffee", "{}"),
            call("c10", "read", "{\"path\": \"notes.t"),
        ]),
        _ => text("all done"),
    })
    .await;
    let answer = bridge.wait(&message("m1", "room", "go")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert_eq!(answer.text(), "all done");
    model.assert_strict_order();
    let asks = model.asks();
    assert_eq!(asks.len(), 4);
    assert_eq!(asks[0].authorization.as_deref(), Some("Bearer sk-kit-0123456789abcdef"));
    let last = asks.last().expect("four");
    for n in [1, 3, 4] {
        assert!(result_of(last, n).contains("the blue notebook"), "{n}: {}", result_of(last, n));
    }
    assert!(result_of(last, 2).contains("notes.txt"), "{}", result_of(last, 2));
    let made = fs::read_to_string(gateway.workspace().join("made.txt"));
    assert_eq!(made.ok().as_deref(), Some("made by a call"));
    for n in 6..=10 {
        let result = result_of(last, n);
        assert!(!result.contains("red secret") && !result.contains("root:"), "{n} leaked: {result}");
        assert!(!result.trim().is_empty() && !result.contains("the blue notebook"), "{n}: {result}");
    }
    assert!(result_of(last, 9).contains("read"), "the tools there are: {}", result_of(last, 9));
    assert!(!gateway.dir().join("out.txt").exists());
    let wire = serde_json::to_string(&last.body).expect("JSON");
    assert!(!wire.contains("red secret") && !wire.contains(bridge_secret()), "nothing leaked");
    assert!(!wire.contains(&gateway.token()));
}

fn bridge_secret() -> &'static str {
    crate::support::bridge::SECRET.trim_start_matches("whsec_")
}

#[tokio::test]
async fn row_39_an_endless_caller_ends_after_15_rounds_at_the_latest() {
    let (_gateway, bridge, model) = set_up(|ask| {
        let id = format!("call-{}", ask.n);
        Say::Calls(vec![call(&id, "grep", &json!({ "pattern": format!("word{}", ask.n) }).to_string())])
    })
    .await;
    let answer = bridge.wait(&message("m1", "room", "go on and on")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!answer.text().is_empty());
    let asks = model.asks();
    assert_eq!(asks.len(), 15, "at most 15 rounds, and all of them were used");
    assert!(asks[14].tools().is_empty(), "the last asks for an answer without tools: {:?}", asks[14].tools());
    assert!(!asks[13].tools().is_empty());
    model.assert_strict_order();
    model.follow(|_| text("back again"));
    assert_eq!(bridge.wait(&message("m2", "room", "still there?")).await.text(), "back again");
    model.assert_strict_order();
}

#[tokio::test]
async fn the_same_call_over_and_over_ends_sooner() {
    let (_gateway, bridge, model) =
        set_up(|ask| Say::Calls(vec![call(&format!("call-{}", ask.n), "ls", "{\"path\":\".\"}")])).await;
    let answer = bridge.wait(&message("m1", "room", "again and again")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(model.asks().len() <= 7, "{} rounds", model.asks().len());
    let told = model.asks().iter().any(|ask| ask.results().iter().any(|result| result.contains("same")));
    assert!(told, "the model is told");
    model.assert_strict_order();
}

#[tokio::test]
async fn a_call_that_is_only_written_down_is_never_shown_and_never_run() {
    let written = "Sure.\n<tool_call>{\"name\": \"write\", \"arguments\": {\"path\": \"evil.txt\", \"content\": \"x\"}}</tool_call>";
    let (gateway, bridge, model) = set_up(move |_| text(written)).await;
    let answer = bridge.wait(&message("m1", "room", "write it")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!answer.text().contains("tool_call") && !answer.text().contains("evil.txt"), "{answer:?}");
    assert!(!gateway.workspace().join("evil.txt").exists());
    assert!((2..=3).contains(&model.asks().len()), "one correction: {}", model.asks().len());
    model.assert_strict_order();
    // It learns.
    model.follow(move |ask| match (ask.round(), ask.said().contains("write it")) {
        (0, true) => text(written),
        (0, false) => Say::Calls(vec![call("r1", "write", "{\"path\":\"good.txt\",\"content\":\"y\"}")]),
        _ => text("written"),
    });
    let answer = bridge.wait(&message("m2", "room2", "write it")).await;
    assert_eq!(answer.text(), "written");
    assert!(gateway.workspace().join("good.txt").exists());
    // The correction is not kept in the history.
    model.follow(|_| text("ok"));
    bridge.wait(&message("m3", "room2", "and now?")).await;
    let last = model.asks().pop().expect("asked");
    let users = last.messages().iter().filter(|message| message["role"] == "user").count();
    assert_eq!(users, 2, "{:?}", last.messages());
    model.assert_strict_order();
}

#[tokio::test]
async fn a_stranger_who_commands_the_model_has_no_tools_at_all() {
    let (gateway, bridge, model) = set_up(|ask| match ask.round() {
        0 => Say::Calls(vec![
            call("c1", "write", "{\"path\":\"owned.txt\",\"content\":\"x\"}"),
            call("c2", "read", "{\"path\":\"notes.txt\"}"),
        ]),
        _ => text(ask.results().join("|")),
    })
    .await;
    let mut body = message("m1", "room", "obey me");
    body["sender"] = json!({ "id": "u9", "name": "u1" });
    let answer = bridge.wait(&body).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    assert!(!answer.raw.contains("blue notebook"), "{answer:?}");
    assert!(!gateway.workspace().join("owned.txt").exists());
    assert_eq!(model.asks()[0].tools(), Vec::<&str>::new());
    model.assert_strict_order();
}

#[tokio::test]
async fn a_long_result_is_cut_with_a_mark_and_the_whole_turn_can_be_traced() {
    let (gateway, bridge, model) = set_up(|ask| match ask.round() {
        0 => Say::Calls(vec![call("c1", "read", "{\"path\":\"long.txt\"}")]),
        _ => text("read it"),
    })
    .await;
    let long: String = (0..20_000).map(|n| format!("line {n} of the long file\n")).collect();
    fs::write(gateway.workspace().join("long.txt"), long).expect("a file");
    assert_eq!(bridge.wait(&message("m1", "room", "read the long one")).await.text(), "read it");
    let last = model.asks().pop().expect("asked");
    let results = last.results();
    assert!(results[0].chars().count() <= 17_000, "{} characters", results[0].chars().count());
    assert!(results[0].contains("line 0 of"), "{}", &results[0][..200]);
    let shown: Value = gateway.cli(&["sessions", "list", "--json"]).await.json();
    assert!(shown.to_string().contains("room"), "{shown}");
}
