//! A provider that refuses every wrong order of messages (DashScope's 400) never sees one, whatever happens to a
//! conversation; and when it refuses all the same, one rebuilt history or one honest failure is all that comes of it.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use serde_json::json;

use crate::support::{
    bridge::{Bridge, Receiver, message},
    gateway::Gateway,
    model_server::{Ask, Call, Gate, ModelServer, Say, call, text},
    wait::{SOON, until},
};

struct Chat {
    gateway: Gateway,
    bridge: Bridge,
    model: ModelServer,
    receiver: Receiver,
}

/// A gateway whose model is a strict DashScope; `agent` are lines of `[agent]`.
async fn chat(agent: &str, script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> Chat {
    let (model, receiver) = (ModelServer::start(script).await, Receiver::start().await);
    model.be_strict();
    let quirks = "[models.main.quirks]\nnull_content = false\n";
    let section = Bridge::section(&receiver.lines());
    let mut gateway = Gateway::folder(&format!("{}\n{quirks}\n[agent]\n{agent}\n{section}", model.section()));
    fs::create_dir_all(gateway.workspace()).expect("a folder");
    fs::write(gateway.workspace().join("notes.txt"), "the blue notebook\n").expect("a file");
    gateway.restart().await;
    let bridge = Bridge::to(&gateway);
    Chat { gateway, bridge, model, receiver }
}

impl Chat {
    async fn say(&self, id: &str, said: &str) -> String {
        let answer = self.bridge.wait(&message(id, "room", said)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.text().to_owned()
    }
}

/// Calls of every kind that models make, by a number.
fn calls(n: u64) -> Vec<Call> {
    let read = |id: &str| call(id, "read", "{\"path\":\"notes.txt\"}");
    match n % 7 {
        // Side by side, with the ids that every turn uses again.
        0 => vec![read("call_0"), call("call_1", "ls", "{}"), read("call_2")],
        // No ids, and one id twice.
        1 => vec![read(""), call("", "ls", "{}"), read("call_0"), read("call_0")],
        // Arguments that must be repaired, and some that cannot be.
        2 => vec![
            call("a", "read", "```json\n{path: 'notes.txt',}\n```"),
            call("b", "read", "{\"path\": \"not"),
            call("c", "ls", ""),
            call("d", "write", "null"),
        ],
        // Names that no provider takes in a history.
        3 => vec![call("a", "functions.make coffee!", "{}"), call("b", "读文件", "{}"), read("c")],
        // Far too many.
        4 => (0..40)
            .map(|at| call(&format!("many-{at}"), "read", &json!({ "path": format!("{at}.txt") }).to_string()))
            .collect(),
        5 => vec![read("call_0"), call("call_0", "final_answer", "{\"answer\": 5}")],
        _ => vec![call("w", "write", &json!({ "path": format!("made-{n}.txt"), "content": "x" }).to_string())],
    }
}

/// One or two rounds of calls, then an answer.
fn worker(ask: &Ask) -> Say {
    let written = ask.said().contains("written") && !ask.said().starts_with("[gateway]");
    match ask.round() as u64 {
        _ if ask.said().contains("quiet") => text("NO_REPLY"),
        _ if written => text("<tool_call>{\"name\":\"read\",\"arguments\":{\"path\":\"notes.txt\"}}</tool_call>"),
        round if round <= ask.n % 2 => Say::Calls(calls(ask.n + round)),
        _ => text(format!("answer {}", ask.n)),
    }
}

#[tokio::test]
async fn a_long_conversation_with_every_kind_of_call_and_a_small_window_stays_in_order() {
    for (window, prefix) in [(3, "a"), (4, "b"), (7, "c")] {
        let chat = chat(&format!("history_messages = {window}"), worker).await;
        for n in 0..24 {
            let said = match n % 6 {
                4 => "a written one",
                5 => "be quiet",
                _ => "go on",
            };
            let answer = chat.bridge.wait(&message(&format!("{prefix}{n}"), "room", said)).await;
            assert_eq!(answer.status, 200, "{answer:?}");
        }
        chat.model.assert_strict_order();
        let windows: Vec<usize> = chat.model.asks().iter().map(|ask| ask.messages().len()).collect();
        assert!(windows.len() > 40, "{windows:?}");
    }
}

#[tokio::test]
async fn a_stop_in_the_middle_of_the_tools_leaves_an_order_that_is_taken() {
    let gate = Gate::default();
    let held = gate.clone();
    let chat = chat("", move |ask| match (ask.said().contains("first"), ask.round()) {
        (true, 0) => Say::Calls(calls(0)),
        (true, _) => Say::After(held.clone(), Box::new(text("late"))),
        _ => text("here"),
    })
    .await;
    chat.bridge.accepted(&message("m1", "room", "the first")).await;
    until("the second round", SOON, async || (chat.model.asks().len() == 2).then_some(())).await;
    assert_eq!(chat.say("stop", "stop").await, "Stopped.");
    assert_eq!(chat.bridge.ended("m1").await.body["silent"], "stopped");
    assert_eq!(chat.say("m2", "and now?").await, "here");
    assert_eq!(chat.say("m3", "and then?").await, "here");
    let last = chat.model.asks().pop().expect("asked");
    assert!(last.messages().iter().any(|message| message["role"] == "tool"), "the calls are in the history");
    chat.model.assert_strict_order();
}

#[tokio::test]
async fn a_message_that_steers_a_turn_with_tools_keeps_the_order() {
    let gate = Gate::default();
    let held = gate.clone();
    let chat = chat("", move |ask| match (ask.said().contains("steer"), ask.round()) {
        (false, 0) => Say::After(held.clone(), Box::new(Say::Calls(calls(0)))),
        (true, 0) => Say::Calls(calls(1)),
        _ => text("both"),
    })
    .await;
    chat.say("q", "/queue steer").await;
    chat.bridge.accepted(&message("m1", "room", "first")).await;
    chat.model.asked_about("first").await;
    chat.bridge.accepted(&message("m2", "room", "steer it")).await;
    gate.open();
    chat.receiver.answer_to("m2").await;
    chat.say("m3", "steer again").await;
    chat.model.assert_strict_order();
    assert!(chat.model.asks_about("steer it").len() >= 2, "the message reached the running turn");
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_tool_round_is_resumed_in_order() {
    let gate = Gate::default();
    let held = gate.clone();
    let mut chat = chat("", move |ask| match ask.round() {
        0 => Say::Calls(calls(1)),
        1 => Say::Calls(calls(2)),
        2 => Say::After(held.clone(), Box::new(Say::Calls(calls(3)))),
        _ => text("done"),
    })
    .await;
    chat.bridge.accepted(&message("m1", "room", "first")).await;
    for boot in 1..=3 {
        until("the third round", SOON, async || {
            chat.model.asks().iter().any(|ask| ask.boot == boot && ask.round() == 2).then_some(())
        })
        .await;
        chat.gateway.kill9().await;
        chat.gateway.restart().await;
    }
    gate.open();
    assert_eq!(chat.receiver.answer_to("m1").await.text(), "done");
    assert_eq!(chat.say("m2", "again").await, "done");
    let resumed = chat.model.asks().iter().filter(|ask| ask.boot > 1 && ask.round() < 2).count();
    assert!(resumed <= 2, "what was answered is not asked again: only the second message began anew ({resumed})");
    chat.model.assert_strict_order();
}

#[tokio::test]
async fn one_refused_order_costs_one_rebuilt_history_and_nothing_more() {
    let refused = Arc::new(Mutex::new(0));
    let count = Arc::clone(&refused);
    let chat = chat("", move |ask| {
        let mut count = count.lock().expect("not poisoned");
        match ask.said().contains("trouble") && *count == 0 {
            true => {
                *count += 1;
                Say::WrongOrder
            }
            false if ask.round() == 0 && !ask.said().contains("trouble") => Say::Calls(calls(0)),
            false => text("fine"),
        }
    })
    .await;
    assert_eq!(chat.say("m1", "first").await, "fine");
    let before = chat.model.asks().len();
    assert_eq!(chat.say("m2", "trouble").await, "fine");
    let asks = chat.model.asks()[before..].to_vec();
    assert_eq!(asks.len(), 2, "once more, rebuilt");
    let tools = |ask: &Ask| ask.messages().iter().filter(|message| message["role"] == "tool").count();
    assert!(tools(&asks[0]) > 0 && tools(&asks[1]) == 0, "the old calls are told in words");
    assert!(asks[1].body["messages"].to_string().contains("the blue notebook"), "nothing learnt is lost");
    assert_eq!(chat.say("m3", "and on").await, "fine");
    chat.model.assert_strict_order();
}

#[tokio::test]
async fn an_order_that_is_always_refused_is_one_honest_failure_and_no_dead_session() {
    let chat = chat("", |ask| if ask.round() == 0 { Say::Calls(calls(0)) } else { text("fine") }).await;
    assert_eq!(chat.say("m1", "first").await, "fine");
    chat.model.follow(|_| Say::WrongOrder);
    for (id, said, line) in
        [("m2", "trouble", "refuses this conversation's history"), ("m3", "又来了", "不接受这段对话的历史记录")]
    {
        let before = chat.model.asks().len();
        let answer = chat.bridge.wait(&message(id, "room", said)).await;
        assert!(answer.raw.contains(line), "{answer:?}");
        assert_eq!(chat.model.asks().len() - before, 2, "asked twice and no more");
    }
    chat.model.follow(|_| text("back again"));
    assert_eq!(chat.say("m4", "still there?").await, "back again");
    assert_eq!(chat.say("m5", "and now?").await, "back again");
    chat.model.assert_strict_order();
}
