//! Manners in a group: silence where nobody asked, an ear for what was said, and answers to those who speak to the bot.
//! Through the webhook bridge, whose events carry groups and mentions, and through Telegram, which shows typing and moves
//! groups.

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, Receiver},
    gateway::Gateway,
    model_server::{Ask, Gate, ModelServer, Say, text},
    telegram::{ADA, BOT_NAME, Telegram, group},
};

struct Room {
    gateway: Gateway,
    bridge: Bridge,
    model: ModelServer,
    receiver: Receiver,
}

/// A gateway in the group `room`, with these lines in its section; the model answers only what is said to it.
async fn room(lines: &str) -> Room {
    let (model, receiver) = (ModelServer::start(minded).await, Receiver::start().await);
    let group = format!("{}\n[channels.webhook.bridge.groups.room]\n{lines}", receiver.lines());
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(&group))).await;
    let bridge = Bridge::to(&gateway);
    Room { gateway, bridge, model, receiver }
}

/// A model that minds what it is told about who is spoken to.
fn minded(ask: &Ask) -> Say {
    match ask.said().contains("\naddressed to you: no.") {
        true => text("NO_REPLY"),
        false => text(format!("you said: {}", ask.said().lines().next().unwrap_or_default())),
    }
}

/// A message in the group that is said to nobody in particular.
fn said(id: &str, sender: &str, text: &str) -> Value {
    json!({
        "v": 1, "id": id, "conversation": { "id": "room", "type": "group", "title": "Kitchen" },
        "sender": { "id": sender, "name": format!("Name of {sender}") }, "text": text,
    })
}

/// The same, said to the bot.
fn asked(id: &str, sender: &str, text: &str) -> Value {
    let mut message = said(id, sender, text);
    message["mentioned"] = json!(true);
    message
}

/// How often a text stands in a request.
fn count(ask: &Ask, text: &str) -> usize {
    ask.messages().iter().map(|message| message["content"].as_str().unwrap_or_default().matches(text).count()).sum()
}

impl Room {
    /// Posts a message that must be acknowledged and start nothing.
    async fn heard(&self, message: &Value) {
        let answer = self.bridge.post(message).await;
        let told = (answer.status, &answer.body["status"], &answer.body["reason"]);
        assert_eq!(told, (202, &json!("ignored"), &json!("not_addressed")), "{answer:?}");
    }

    /// Asks the bot and returns the request that its model got.
    async fn ask(&self, id: &str, text: &str) -> Ask {
        self.bridge.accepted(&asked(id, "u1", text)).await;
        assert_eq!(self.receiver.answer_to(id).await.text(), format!("you said: {text}"));
        self.model.asks_about(text).pop().expect("the model was asked")
    }
}

#[tokio::test]
async fn small_talk_is_met_with_silence_and_remembered() {
    let room = room("require_mention = false").await;
    let talk = [("t1", "u2", "pizza or noodles?"), ("t2", "u3", "noodles, at noon"), ("t3", "u2", "stop")];
    for (id, sender, words) in talk {
        room.bridge.accepted(&said(id, sender, words)).await;
        let end = room.bridge.ended(id).await;
        assert_eq!((&end.body["silent"], &end.body["messages"]), (&json!("no_reply"), &json!([])), "{end:?}");
    }
    let ask = room.ask("q1", "what do we eat?").await;
    for (_, sender, words) in talk {
        assert_eq!(count(&ask, &format!("{words}\n\n<message_context>")), 1, "{words}: {:?}", ask.messages());
        assert!(count(&ask, &format!("\"Name of {sender}\"")) > 0, "{:?}", ask.messages());
    }
    assert!(ask.said().contains("\ngroup: \"Kitchen\"\naddressed to you: yes\n"), "{}", ask.said());
    assert_eq!(
        room.receiver.callbacks().len(),
        1,
        "one answer, and nothing else was sent: {:?}",
        room.receiver.callbacks()
    );
    room.model.assert_strict_order();
}

#[tokio::test]
async fn what_was_said_before_is_told_once_whatever_is_killed() {
    let mut room = room("").await;
    room.heard(&said("t1", "u2", "the code is tulip")).await;
    let mut picture = said("t2", "u3", "");
    picture["attachments"] = json!([{ "kind": "image", "url": "https://e.test/cat.png", "name": "cat.png" }]);
    room.heard(&picture).await;
    let mut thread = said("t3", "u2", "said in a thread");
    thread["conversation"]["thread_id"] = json!("7");
    room.heard(&thread).await;
    // Between the words and the turn.
    room.gateway.kill9().await;
    room.gateway.restart().await;
    room.heard(&said("t1", "u2", "the code is tulip")).await;
    assert!(room.model.asks().is_empty(), "nobody asked");

    // Within the turn.
    let gate = Gate::default();
    let held = gate.clone();
    room.model.follow(move |ask| Say::After(held.clone(), Box::new(minded(ask))));
    room.bridge.accepted(&asked("q1", "u1", "what is the code?")).await;
    room.model.asked_about("what is the code?").await;
    room.heard(&said("t4", "u2", "said during the turn")).await;
    room.gateway.kill9().await;
    gate.open();
    room.gateway.restart().await;
    assert_eq!(room.receiver.answer_to("q1").await.text(), "you said: what is the code?");
    let asks = room.model.asks_about("what is the code?");
    assert_eq!(asks.len(), 2, "once before and once after");
    let backlog =
        "<untrusted kind=\"backlog\">\nName of u2: the code is tulip\nName of u3: [image cat.png]\n</untrusted>";
    for ask in &asks {
        assert!(ask.said().contains(backlog), "{}", ask.said());
    }

    // The next turn has what came since, and the last one's words as they were sent.
    let next = room.ask("q2", "and now?").await;
    assert!(next.said().contains("<untrusted kind=\"backlog\">\nName of u2: said during the turn\n</untrusted>"));
    assert_eq!(count(&next, "the code is tulip"), 1);
    assert!(next.messages().iter().any(|message| message["content"] == asks[1].said()), "replayed byte for byte");
    assert_eq!(count(&room.ask("q3", "anything new?").await, "said during the turn"), 1);
    // A thread has its own.
    let mut question = asked("q4", "u1", "and in the thread?");
    question["conversation"]["thread_id"] = json!("7");
    room.bridge.accepted(&question).await;
    room.receiver.answer_to("q4").await;
    let asked = room.model.asks_about("and in the thread?").pop().expect("the model was asked");
    assert_eq!((count(&asked, "said in a thread"), count(&asked, "tulip")), (1, 0));
    room.model.assert_strict_order();
}

#[tokio::test]
async fn a_new_conversation_has_heard_nothing_and_a_short_memory_keeps_the_newest() {
    let room = room("history = 2").await;
    for (id, words) in [("t1", "one apple"), ("t2", "two apples"), ("t3", "three apples")] {
        room.heard(&said(id, "u2", words)).await;
    }
    let ask = room.ask("q1", "how many?").await;
    let backlog = "<untrusted kind=\"backlog\">\nName of u2: two apples\nName of u2: three apples\n</untrusted>";
    assert!(ask.said().contains(backlog), "{}", ask.said());
    room.heard(&said("t4", "u2", "four apples")).await;
    room.bridge.wait(&asked("n1", "u1", "/new")).await;
    assert_eq!(count(&room.ask("q2", "how many now?").await, "apples"), 0);
}

#[tokio::test]
async fn wake_words_and_commands_need_no_mention() {
    let room = room("wake = [\"crab\", \"小龙虾\"]").await;
    room.heard(&said("t1", "u2", "crabs live in the sea")).await;
    for (id, words) in [("w1", "Hey Crab, are you there?"), ("w2", "请问小龙虾在吗")] {
        room.bridge.accepted(&said(id, "u2", words)).await;
        assert_eq!(room.receiver.answer_to(id).await.text(), format!("you said: {words}"));
    }
    // A command of somebody who is trusted; not of anybody, not to another bot, and no bare stop word.
    let status = room.bridge.wait(&said("c1", "u1", "/status")).await;
    assert!(status.text().contains("room"), "{status:?}");
    room.heard(&said("c2", "u2", "/status")).await;
    room.heard(&said("c3", "u1", "/status@another_bot")).await;
    room.heard(&said("c4", "u1", "停")).await;
    let stop = room.bridge.wait(&asked("c5", "u1", "停")).await;
    assert_eq!(stop.status, 200, "{stop:?}");
    assert!(!stop.text().is_empty());
}

#[tokio::test]
async fn who_is_listed_in_the_group_is_told_so() {
    let room = room("allow_from = [\"u2\"]").await;
    let who = room.bridge.wait(&asked("g1", "u2", "/whoami")).await;
    assert!(who.text().contains("member (listed in this group)"), "{who:?}");
    let zh = room.bridge.wait(&asked("g2", "u2", "/我是谁")).await;
    assert!(zh.text().contains("member（在本群的名单里）"), "{zh:?}");
}

#[tokio::test]
async fn trouble_is_told_to_those_who_asked() {
    let room = room("require_mention = false").await;
    room.model.follow(|_| Say::Status(401, None));
    room.bridge.accepted(&said("t1", "u2", "nice weather")).await;
    let end = room.bridge.ended("t1").await;
    assert_eq!(end.body["messages"], json!([]), "{end:?}");
    room.model.follow(|_| text(""));
    room.bridge.accepted(&said("t2", "u2", "and warm")).await;
    let end = room.bridge.ended("t2").await;
    assert_eq!(end.body["messages"], json!([]), "{end:?}");
    room.model.follow(|_| Say::Status(401, None));
    room.bridge.accepted(&asked("q1", "u2", "will it rain?")).await;
    assert_eq!(room.receiver.answer_to("q1").await.body["type"], "error");
    assert_eq!(room.receiver.callbacks().len(), 1, "{:?}", room.receiver.callbacks());
}

const GROUP: i64 = -1_001_234_567_890;

/// A gateway with one bot of Telegram, these lines in its section and a model that follows a script.
async fn telegram(
    lines: &str,
    script: impl Fn(&Ask) -> Say + Send + Sync + 'static,
) -> (Telegram, ModelServer, Gateway) {
    let (telegram, model) = (Telegram::start().await, ModelServer::start(script).await);
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(lines))).await;
    telegram.polled().await;
    (telegram, model, gateway)
}

/// The chats in which the bot was seen typing.
fn typed_in(telegram: &Telegram) -> Vec<i64> {
    telegram.calls_of("sendChatAction").iter().filter_map(|call| call.body["chat_id"].as_i64()).collect()
}

#[tokio::test]
async fn in_telegram_small_talk_shows_nothing_and_a_question_shows_typing() {
    let gate = Gate::default();
    let held = gate.clone();
    let lines = format!("groups.\"{GROUP}\" = {{ require_mention = false, allow_from = [\"*\"] }}");
    let (telegram, model, _gateway) =
        telegram(&lines, move |ask| Say::After(held.clone(), Box::new(minded(ask)))).await;
    let friends = group(GROUP);
    telegram.group(&friends, 100, "pizza or noodles?");
    model.asked_about("pizza or noodles?").await;
    // A turn that began later, and is seen to type.
    telegram.private(ADA, "are you busy?");
    telegram.until("typing in the private chat", |telegram| typed_in(telegram).contains(&ADA).then_some(())).await;
    assert!(!typed_in(&telegram).contains(&GROUP), "{:?}", typed_in(&telegram));
    telegram.group(&friends, 101, "noodles, at noon");
    gate.open();
    telegram.said(ADA, "are you busy?").await;
    model.asked_about("noodles, at noon").await;

    let asked = telegram.group(&friends, 100, &format!("@{BOT_NAME} what do we eat?"));
    let answer = telegram.said(GROUP, "what do we eat?").await;
    assert_eq!(answer.reply_to, Some(asked));
    assert_eq!(telegram.sent_to(GROUP).len(), 1, "{:?}", telegram.sent());
    let ask = model.asks_about("what do we eat?").pop().expect("the model was asked");
    for words in ["pizza or noodles?", "noodles, at noon"] {
        assert_eq!(count(&ask, words), 1, "{:?}", ask.messages());
    }
    telegram.until("typing in the group", |telegram| typed_in(telegram).contains(&GROUP).then_some(())).await;
    model.assert_strict_order();
}

#[tokio::test]
async fn bad_input_49_a_group_of_telegram_that_moves_goes_on_under_its_new_id() {
    let old = -500;
    let lines = format!("groups.\"{old}\" = {{ allow_from = [\"*\"] }}");
    let (telegram, model, mut gateway) = telegram(&lines, minded).await;
    telegram.group(&group(old), 100, &format!("@{BOT_NAME} first question"));
    telegram.said(old, "first question").await;
    telegram.group(&group(old), 100, "the code is tulip");
    telegram.message(&group(old), 100, &json!({ "migrate_to_chat_id": GROUP }));
    telegram.message(&group(GROUP), 100, &json!({ "migrate_from_chat_id": old }));
    telegram.group(&group(GROUP), 101, &format!("@{BOT_NAME} what is the code?"));
    telegram.said(GROUP, "what is the code?").await;
    let ask = model.asks_about("what is the code?").pop().expect("the model was asked");
    assert!(ask.said().contains("tulip"), "heard under the old id: {}", ask.said());
    assert_eq!(count(&ask, "first question\n"), 1, "said under the old id: {:?}", ask.messages());
    let line = format!("`[channels.telegram.main.groups.\"{old}\"]` becomes `groups.\"{GROUP}\"`");
    gateway.logged(&line).await;
    // The configuration still names the old one.
    gateway.kill9().await;
    gateway.restart().await;
    telegram.group(&group(GROUP), 101, &format!("@{BOT_NAME} are you still there?"));
    telegram.said(GROUP, "are you still there?").await;
    let ask = model.asks_about("are you still there?").pop().expect("the model was asked");
    assert_eq!(count(&ask, "tulip"), 1, "{:?}", ask.messages());
}
