//! What happens to messages that come while a turn runs, in each of the four modes; stop words and commands.

use serde_json::json;

use crate::support::{
    bridge::{Bridge, Receiver, marked, message},
    gateway::Gateway,
    mark::Mark,
    model_server::{Gate, ModelServer, Say, call, echo, text},
};

struct Chat {
    _gateway: Gateway,
    bridge: Bridge,
    model: ModelServer,
    receiver: Receiver,
    /// Holds every turn about message 1 of a session.
    gate: Gate,
}

/// A gateway whose model holds each session's first message until the gate opens.
async fn chat(more: &str) -> Chat {
    let gate = Gate::default();
    let held = gate.clone();
    let model = ModelServer::start(move |ask| match ask.marks().first() {
        Some(mark) if mark.n == 1 => Say::After(held.clone(), Box::new(echo(ask))),
        _ => echo(ask),
    })
    .await;
    let receiver = Receiver::start().await;
    let section = Bridge::section(&format!("{}\n{more}", receiver.lines()));
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    Chat { _gateway: gateway, bridge, model, receiver, gate }
}

fn m(n: u32) -> Mark {
    Mark { session: 1, n }
}

impl Chat {
    async fn post(&self, n: u32) {
        self.bridge.accepted(&marked(m(n))).await;
    }

    /// Posts message 1 and waits until the model has it.
    async fn first_is_running(&self) {
        self.post(1).await;
        self.model.asked_about(&m(1).to_string()).await;
    }

    /// A command, answered at once.
    async fn command(&self, id: &str, text: &str) -> String {
        let answer = self.bridge.wait(&message(id, "s1", text)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.text().to_owned()
    }
}

#[tokio::test]
async fn collect_makes_one_next_turn_of_what_came_meanwhile() {
    let chat = chat("").await;
    chat.first_is_running().await;
    for n in 2..=4 {
        chat.post(n).await;
    }
    chat.gate.open();
    chat.receiver.answer_to("s1.1").await;
    let answer = chat.receiver.answer_to("s1.4").await;
    assert_eq!(Mark::all_in(answer.text()), [m(2), m(3), m(4)], "one turn saw them all: {answer:?}");
    let asks: Vec<Vec<Mark>> = chat.model.asks().iter().map(crate::support::model_server::Ask::marks).collect();
    assert_eq!(asks, [vec![m(1)], vec![m(2), m(3), m(4)]]);
    for id in ["s1.2", "s1.3"] {
        let merged = chat.bridge.ended(id).await;
        assert!(merged.body["merged_into"].is_string(), "{merged:?}");
        assert!(chat.receiver.answers_to(id).is_empty(), "no callback of its own");
    }
    let other = json!({ "id": "u2" });
    let mut theirs = marked(m(6));
    theirs["sender"] = other;
    chat.model.assert_strict_order();
}

#[tokio::test]
async fn collect_never_merges_the_messages_of_two_people() {
    let chat = chat("").await;
    chat.first_is_running().await;
    for n in 2..=5 {
        let mut body = marked(m(n));
        let sender = if n < 4 { "u1" } else { "u2" };
        body["sender"] = json!({ "id": sender });
        chat.bridge.accepted(&body).await;
    }
    chat.gate.open();
    assert_eq!(Mark::all_in(chat.receiver.answer_to("s1.3").await.text()), [m(2), m(3)]);
    assert_eq!(Mark::all_in(chat.receiver.answer_to("s1.5").await.text()), [m(4), m(5)]);
}

#[tokio::test]
async fn followup_gives_each_message_its_own_turn_in_order() {
    let chat = chat("queue = \"followup\"").await;
    chat.first_is_running().await;
    for n in 2..=5 {
        chat.post(n).await;
    }
    chat.gate.open();
    chat.receiver.answer_to("s1.5").await;
    let answered: Vec<String> = chat.receiver.callbacks().iter().map(|c| c.in_reply_to().to_owned()).collect();
    assert_eq!(answered, ["s1.1", "s1.2", "s1.3", "s1.4", "s1.5"]);
    let asks: Vec<Vec<Mark>> = chat.model.asks().iter().map(crate::support::model_server::Ask::marks).collect();
    assert_eq!(asks, (1..=5).map(|n| vec![m(n)]).collect::<Vec<_>>());
}

#[tokio::test]
async fn steer_hands_a_message_to_the_running_turn() {
    let chat = chat("").await;
    let said = chat.command("q1", "/queue steer").await;
    assert!(said.contains("steer"), "{said}");
    let gate = chat.gate.clone();
    chat.model.follow(move |ask| match ask.messages().iter().any(|message| message["role"] == "tool") {
        false => Say::After(gate.clone(), Box::new(Say::Calls(vec![call("c1", "ls", "{}")]))),
        true => echo(ask),
    });
    chat.first_is_running().await;
    chat.post(2).await;
    chat.gate.open();
    let answer = chat.receiver.answer_to("s1.2").await;
    assert!(answer.text().contains(&m(2).to_string()), "{answer:?}");
    let asks = chat.model.asks();
    assert_eq!(asks.len(), 2, "one turn, two rounds");
    let wire = serde_json::to_string(asks[1].messages()).expect("JSON");
    assert!(wire.contains(&m(1).to_string()) && wire.contains(&m(2).to_string()), "{wire}");
    assert!(chat.bridge.ended("s1.1").await.body["merged_into"].is_string());
    chat.model.assert_strict_order();
}

#[tokio::test]
async fn steering_does_not_carry_a_message_over_new() {
    let chat = chat("queue = \"steer\"").await;
    let gate = chat.gate.clone();
    chat.model.follow(move |ask| match ask.round() {
        0 if ask.marks() == [m(1)] => Say::After(gate.clone(), Box::new(Say::Calls(vec![call("c1", "ls", "{}")]))),
        _ => echo(ask),
    });
    chat.first_is_running().await;
    chat.post(2).await;
    chat.bridge.accepted(&message("new", "s1", "/new")).await;
    chat.post(3).await;
    chat.gate.open();
    let answer = chat.receiver.answer_to("s1.3").await;
    assert_eq!(Mark::all_in(answer.text()), [m(3)], "a turn of its own, in the new conversation: {answer:?}");
    let answered: Vec<String> = chat.receiver.callbacks().iter().map(|c| c.in_reply_to().to_owned()).collect();
    assert_eq!(answered, ["s1.2", "new", "s1.3"]);
    assert!(chat.bridge.ended("s1.1").await.body["merged_into"].is_string());
}

#[tokio::test]
async fn interrupt_stops_the_running_turn_for_the_newest_message() {
    let chat = chat("").await;
    let said = chat.command("q1", "/队列 打断").await;
    assert!(said.contains("interrupt") || said.contains("打断"), "{said}");
    chat.first_is_running().await;
    chat.post(2).await;
    // The gate stays closed: the first turn cannot end by itself.
    chat.receiver.answer_to("s1.2").await;
    let first = chat.bridge.ended("s1.1").await;
    assert_eq!((&first.body["silent"], &first.body["messages"]), (&json!("stopped"), &json!([])), "{first:?}");
}

#[tokio::test]
async fn a_stop_word_ends_what_runs_and_forgets_what_waits() {
    for (word, said) in [("stop", "Stopped."), ("停", "已停止。"), ("/stop", "Stopped.")] {
        let chat = chat("queue = \"followup\"").await;
        chat.first_is_running().await;
        chat.post(2).await;
        assert_eq!(chat.command("stop-1", word).await, said);
        for id in ["s1.1", "s1.2"] {
            let end = chat.bridge.ended(id).await;
            assert_eq!(end.body["silent"], "stopped", "{end:?}");
        }
        chat.gate.open();
        chat.post(3).await;
        chat.receiver.answer_to("s1.3").await;
        assert!(chat.receiver.answers_to("s1.1").is_empty() && chat.receiver.answers_to("s1.2").is_empty());
    }
}

#[tokio::test]
async fn a_full_gateway_still_hears_a_stop_word() {
    let chat = chat("queue = \"followup\"\n[limits]\nmax_queued = 2").await;
    chat.first_is_running().await;
    chat.post(2).await;
    assert_eq!(chat.bridge.post(&marked(m(3))).await.status, 503);
    assert_eq!(chat.bridge.post(&message("new", "s1", "/new")).await.status, 503, "a row of the queue");
    assert_eq!(chat.command("stop-1", "stop").await, "Stopped.");
    for id in ["s1.1", "s1.2"] {
        assert_eq!(chat.bridge.ended(id).await.body["silent"], "stopped");
    }
    chat.post(4).await;
    chat.receiver.answer_to("s1.4").await;
}

#[tokio::test]
async fn a_stop_word_ends_a_turn_whose_model_hangs() {
    let chat = chat("").await;
    chat.model.follow(|_| Say::Hang);
    chat.first_is_running().await;
    assert_eq!(chat.command("stop-1", "停止").await, "已停止。");
    assert_eq!(chat.bridge.ended("s1.1").await.body["silent"], "stopped");
    chat.model.follow(echo);
    chat.post(2).await;
    chat.receiver.answer_to("s1.2").await;
}

#[tokio::test]
async fn commands_are_answered_while_a_turn_runs_and_ask_no_model() {
    let chat = chat("queue = \"followup\"").await;
    chat.first_is_running().await;
    chat.post(2).await;
    let status = chat.command("c1", "/status").await;
    assert!(status.contains("agent:main:webhook:bridge:direct:s1"), "{status}");
    assert!(status.contains("Running now: yes") && status.contains("Waiting messages: 1"), "{status}");
    let status = chat.command("c2", "/状态").await;
    assert!(status.contains("正在处理：是"), "{status}");
    let who = chat.command("c3", "/whoami").await;
    assert!(who.contains("u1") && who.contains("trusted"), "{who}");
    assert!(chat.command("c4", "/help").await.contains("/stop"));
    assert!(chat.command("c5", "/帮助").await.contains("/停止"));
    assert_eq!(chat.model.asks().len(), 1);
    chat.gate.open();
    chat.receiver.answer_to("s1.2").await;
}

#[tokio::test]
async fn new_forgets_the_conversation_and_nothing_else_does() {
    let chat = chat("").await;
    chat.model.follow(|ask| text(format!("answer {}", ask.n)));
    let say = async |id: &str, text: &str| {
        let answer = chat.bridge.wait(&message(id, "s1", text)).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.text().to_owned()
    };
    say("a", "my cat is called Miro").await;
    say("b", "what is it called?").await;
    let wire = serde_json::to_string(&chat.model.asks()[1].body).expect("JSON");
    assert!(wire.contains("Miro") && wire.contains("answer 1"), "{wire}");
    assert_eq!(say("c", "/new").await, "answer 3", "the agent greets");
    say("d", "and now?").await;
    for ask in &chat.model.asks()[2..] {
        let wire = serde_json::to_string(&ask.body).expect("JSON");
        assert!(!wire.contains("Miro") && !wire.contains("answer 1"), "{wire}");
    }
    assert_eq!(chat.model.asks().len(), 4);
}

#[tokio::test]
async fn a_restart_changes_nothing_in_the_queue() {
    let mut chat = chat("").await;
    chat.command("q1", "/queue followup").await;
    chat.first_is_running().await;
    for n in 2..=4 {
        chat.post(n).await;
    }
    chat._gateway.kill9().await;
    chat._gateway.restart().await;
    let status = chat.command("c1", "/queue").await;
    assert!(status.contains("followup"), "{status}");
    chat.gate.open();
    chat.receiver.answer_to("s1.4").await;
    let answered: Vec<String> = chat.receiver.callbacks().iter().map(|c| c.in_reply_to().to_owned()).collect();
    assert_eq!(answered, ["s1.1", "s1.2", "s1.3", "s1.4"]);
}
