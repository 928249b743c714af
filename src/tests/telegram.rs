//! Telegram as its users meet it: the real gateway against a Bot API server with real offset semantics.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, message},
    gateway::{Gateway, client},
    model_server::{ModelServer, text},
    telegram::{ADA, BOT_ID, BOT_NAME, Fault, TOKEN, Telegram, forum, group},
};

const GROUP: i64 = -1_001_234_567_890;

struct Chat {
    telegram: Telegram,
    model: ModelServer,
    gateway: Gateway,
}

/// A gateway with one bot, which is asking for updates.
async fn chat(more: &str) -> Chat {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(more))).await;
    telegram.polled().await;
    Chat { telegram, model, gateway }
}

#[tokio::test]
async fn an_owner_in_a_private_chat_is_answered_once() {
    let mut chat = chat("").await;
    chat.telegram.private(ADA, "hello there");
    let answer = chat.telegram.said(ADA, "you said: hello there").await;
    assert_eq!((answer.thread, answer.reply_to), (None, None), "no quote where nobody writes in between");
    assert!(answer.raw.contains("hello there") && answer.parse_mode.is_none_or(|mode| mode == "HTML"));
    // The same update once more: as after an answer that was lost on the way.
    let again = json!({
        "message_id": 1, "date": 1_795_000_000, "text": "hello there",
        "chat": { "id": ADA, "type": "private" }, "from": { "id": ADA, "is_bot": false, "first_name": "Ada" },
    });
    chat.telegram.update("message", &again);
    chat.telegram.private(ADA, "and again");
    chat.telegram.said(ADA, "you said: and again").await;
    chat.telegram.all_confirmed().await;
    assert_eq!(chat.telegram.sent().len(), 2, "{:?}", chat.telegram.sent());
    let commands = chat
        .telegram
        .until("the menu", |telegram| Some(telegram.calls_of("setMyCommands")).filter(|calls| calls.len() == 2));
    let commands = commands.await;
    assert!(commands.iter().all(|call| call.status == 200), "{commands:?}");
    assert_eq!(commands[1].body["language_code"], "zh");
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
    assert!(!chat.gateway.log().contains(TOKEN), "the token is in the log");
}

#[tokio::test]
async fn a_stranger_gets_one_code_and_is_answered_once_approved() {
    const EVE: i64 = 100;
    let chat = chat("group_policy = \"open\"").await;
    chat.telegram.private(EVE, "let me in");
    let word = chat.telegram.said(EVE, "crawfish pairing approve").await;
    let is_code = |word: &&str| word.len() == 8 && word.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit());
    let code =
        word.text.split_whitespace().find(is_code).unwrap_or_else(|| panic!("no code: {}", word.text)).to_owned();
    chat.telegram.private(EVE, "hello?");
    chat.telegram.private(ADA, "somebody there?");
    chat.telegram.said(ADA, "you said: somebody there?").await;
    assert_eq!(chat.telegram.sent_to(EVE).len(), 1, "one word while it is pending");
    chat.gateway.cli(&["pairing", "approve", &code]).await.good();
    chat.telegram.private(EVE, "and now?");
    chat.telegram.said(EVE, "you said: and now?").await;
    chat.gateway.cli(&["pairing", "revoke", "telegram:main", "100"]).await.good();
    let before = chat.telegram.sent_to(EVE).len();
    chat.telegram.private(EVE, "still?");
    chat.telegram.until("another code", |telegram| (telegram.sent_to(EVE).len() > before).then_some(())).await;
    assert!(chat.model.asks_about("still?").is_empty());
    assert!(chat.model.asks_about("let me in").is_empty() && chat.model.asks_about("hello?").is_empty());
}

#[tokio::test]
async fn commands_are_obeyed_without_the_model() {
    let chat = chat("").await;
    chat.telegram.private(ADA, "/whoami");
    chat.telegram.said(ADA, "owner").await;
    chat.telegram.private(ADA, "/状态");
    chat.telegram.until("two answers", |telegram| (telegram.sent().len() == 2).then_some(())).await;
    assert!(chat.model.asks().is_empty());
}

#[tokio::test]
async fn in_a_group_only_what_is_said_to_the_bot_is_answered() {
    let chat = chat(&format!("groups.\"{GROUP}\" = {{ allow_from = [\"*\"] }}")).await;
    let friends = group(GROUP);
    chat.telegram.group(&friends, ADA, "nice weather");
    let asked = chat.telegram.group(&friends, ADA, &format!("@{BOT_NAME} what do you think?"));
    let answer = chat.telegram.said(GROUP, "what do you think?").await;
    assert_eq!(answer.reply_to, Some(asked));
    let ours = json!({
        "message_id": answer.id, "date": 1_795_000_000, "text": answer.text, "chat": friends,
        "from": { "id": BOT_ID, "is_bot": true, "first_name": "Crawfish", "username": BOT_NAME },
    });
    chat.telegram.group(&friends, 100, "so so");
    chat.telegram.message(&friends, 100, &json!({ "text": "are you sure?", "reply_to_message": ours }));
    chat.telegram.said(GROUP, "are you sure?").await;
    chat.telegram.message(
        &friends,
        100,
        &json!({ "text": "/status@another_bot", "entities": [{ "type": "bot_command", "offset": 0, "length": 19 }] }),
    );
    let last = chat.telegram.group(&friends, 100, &format!("thanks @{BOT_NAME}"));
    chat.telegram
        .until("the last answer", |telegram| {
            telegram.sent_to(GROUP).into_iter().find(|sent| sent.reply_to == Some(last))
        })
        .await;
    assert_eq!(chat.telegram.sent().len(), 3, "{:?}", chat.telegram.sent());
    // A group that nobody listed.
    chat.telegram.group(&group(-5), ADA, &format!("@{BOT_NAME} hello?"));
    chat.telegram.all_confirmed().await;
    assert!(chat.telegram.sent_to(-5).is_empty());
}

#[tokio::test]
async fn a_topic_is_answered_in_its_topic() {
    let chat = chat(&format!("groups.\"{GROUP}\" = {{}}")).await;
    let forum = forum(GROUP);
    chat.telegram.open_topic(GROUP, 77);
    let said = format!("@{BOT_NAME} in the topic");
    let more = json!({
        "text": said, "entities": crate::support::telegram::mentions(&said),
        "message_thread_id": 77, "is_topic_message": true,
    });
    chat.telegram.message(&forum, ADA, &more);
    let answer = chat.telegram.said(GROUP, "in the topic").await;
    assert_eq!(answer.thread, Some(77));
    chat.telegram.group(&forum, ADA, &format!("@{BOT_NAME} in general"));
    let answer = chat.telegram.said(GROUP, "in general").await;
    assert_eq!(answer.thread, None, "Telegram refuses the id of \"General\"");
    // Two topics, two conversations.
    let asked = chat.model.asks_about("in general");
    assert!(!asked[0].body.to_string().contains("in the topic"), "{:?}", asked[0].body);
}

#[tokio::test]
async fn a_429_is_waited_out() {
    let chat = chat("").await;
    chat.telegram.then("sendMessage", [Fault::RetryAfter(3)]);
    chat.telegram.private(ADA, "hello");
    let answer = chat.telegram.said(ADA, "you said: hello").await;
    let calls = chat.telegram.calls_of("sendMessage");
    assert_eq!(calls.iter().map(|call| call.status).collect::<Vec<_>>(), [429, 200]);
    let waited = answer.at - calls[0].at;
    assert!(waited >= Duration::from_secs(3), "only {waited:?}");
    chat.telegram.then("getUpdates", [Fault::RetryAfter(2)]);
    chat.telegram.private(ADA, "once more");
    chat.telegram.said(ADA, "once more").await;
    chat.telegram
        .until("the refusal", |telegram| {
            telegram.calls_of("getUpdates").iter().find(|call| call.status == 429).map(drop)
        })
        .await;
    chat.telegram.private(ADA, "and again");
    chat.telegram.said(ADA, "and again").await;
    chat.telegram.all_confirmed().await;
    let calls = chat.telegram.calls_of("getUpdates");
    let refused = calls.iter().position(|call| call.status == 429).expect("it was refused");
    let waited = calls[refused + 1].at - calls[refused].at;
    assert!(waited >= Duration::from_secs(2), "only {waited:?}");
}

#[tokio::test]
async fn a_long_answer_with_markup_arrives_whole_and_in_order() {
    let chat = chat("limits = \"off\"").await;
    let line = |n: u32| format!("**number {n} of _many_** 👩‍👩‍👧 `x < {n}`\n");
    let code = |n: u32| format!("let value_{n} = \"<b>&amp;</b>\";\n");
    let mut long: String = (0..95).map(line).collect();
    long.push_str("\n```rust\n");
    long.extend((0..60).map(code));
    long.push_str("```\n\nThe end.");
    chat.model.follow(move |_| text(long.clone()));
    chat.telegram.private(ADA, "tell me everything");
    chat.telegram.said(ADA, "The end.").await;
    let sent = chat.telegram.sent_to(ADA);
    assert!(sent.len() > 1, "it does not fit one message");
    assert!(sent.iter().all(|sent| sent.parse_mode.as_deref() == Some("HTML")));
    let all: String = sent.iter().map(|sent| sent.text.as_str()).collect::<Vec<_>>().join("\n");
    let mut rest = all.as_str();
    for n in 0..95 {
        let at = rest.find(&format!("number {n} of many")).unwrap_or_else(|| panic!("line {n} is missing or late"));
        rest = &rest[at..];
    }
    for n in 0..60 {
        let wanted = format!("let value_{n} = \"<b>&amp;</b>\";");
        let at = rest.find(&wanted).unwrap_or_else(|| panic!("code line {n} is missing or late"));
        rest = &rest[at..];
    }
    let refused: Vec<_> = chat.telegram.calls_of("sendMessage").into_iter().filter(|call| call.status != 200).collect();
    assert!(refused.is_empty(), "{refused:?}");
}

#[tokio::test]
async fn bad_input_48_pages_nonsense_and_broken_connections_are_outlived() {
    let chat = chat("").await;
    chat.telegram.then("getUpdates", [Fault::Html(502), Fault::Reset, Fault::Body(r#"{"ok":false}"#)]);
    chat.telegram.private(ADA, "hello");
    chat.telegram.said(ADA, "you said: hello").await;
    chat.telegram.all_confirmed().await;
    // What is no list ends the run; the supervisor starts it again.
    chat.telegram.then("getUpdates", [Fault::Body(r#"{"ok":true,"result":{"update_id":5}}"#)]);
    chat.telegram.private(ADA, "still there?");
    chat.telegram.said(ADA, "still there?").await;
    chat.telegram.all_confirmed().await;
    // One update that nobody knows between two that are.
    chat.telegram.update("message", &json!("nonsense"));
    chat.telegram.update("message", &json!({ "message_id": "x", "chat": [] }));
    chat.telegram.private(ADA, "the last one");
    chat.telegram.said(ADA, "the last one").await;
    assert_eq!(chat.telegram.sent().len(), 3);
}

#[tokio::test]
async fn bad_input_47_ids_that_begin_anew_lose_nothing() {
    let chat = chat("").await;
    chat.telegram.private(ADA, "before");
    chat.telegram.said(ADA, "you said: before").await;
    chat.telegram.all_confirmed().await;
    chat.telegram.go_on_at(5_000);
    chat.telegram.private(ADA, "after a week");
    chat.telegram.said(ADA, "you said: after a week").await;
    chat.telegram.private(ADA, "and one more");
    chat.telegram.said(ADA, "you said: and one more").await;
    chat.telegram.all_confirmed().await;
    assert_eq!(chat.telegram.sent().len(), 3);
}

#[tokio::test]
async fn bad_input_48_a_wrong_token_and_another_poller_leave_other_channels_alone() {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let config = format!("{}\n{}\n{}", model.section(), telegram.section(""), Bridge::section(""));
    let gateway = Gateway::start(&config).await;
    let bridge = Bridge::to(&gateway);
    telegram.polled().await;
    // Someone else sets a webhook: 409, a pause, and it is deleted again.
    telegram.set_webhook("https://example.com");
    gateway.logged("another program asks for this bot's messages").await;
    let answer = bridge.wait(&message("w1", "room", "still there?")).await;
    assert_eq!(answer.text(), "you said: still there?");
    let channels = client().get(format!("{}/api/channels", gateway.url())).bearer_auth(gateway.token());
    let channels: Value = channels.send().await.expect("it answers").json().await.expect("JSON");
    let health = |id: &str| {
        let rows = channels["channels"].as_array().expect("rows").iter();
        rows.filter(|row| row["id"] == id).map(|row| row["health"]["state"].clone()).next()
    };
    assert_eq!(health("telegram:main"), Some(json!("restarting")), "{channels}");
    assert_eq!(health("webhook:bridge"), Some(json!("running")), "{channels}");
    // After the pause it goes on; then the token is revoked.
    telegram.polled().await;
    telegram.private(ADA, "hello");
    telegram.said(ADA, "you said: hello").await;
    telegram.revoke();
    gateway.logged("does not accept the token").await;
    let answer = bridge.wait(&message("w2", "room", "and now?")).await;
    assert_eq!(answer.text(), "you said: and now?");
    let before = telegram.calls().len();
    let answer = bridge.wait(&message("w3", "room", "quiet?")).await;
    assert_eq!(answer.text(), "you said: quiet?");
    assert_eq!(telegram.calls().len(), before, "a refused token is not tried again and again");
    assert!(!gateway.log().contains(TOKEN));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_kills_right_after_updates_were_taken_lose_nothing_and_double_nothing() {
    let mut chat = chat("queue = \"followup\"").await;
    chat.model.follow(|ask| text(format!("done {}", ask.said().lines().next().unwrap_or_default())));
    let mut all = Vec::new();
    for kill in 1..=5 {
        for n in 1..=3 {
            let words = format!("errand {kill}.{n};");
            // Several people, so that several sessions are hit.
            chat.telegram.private(ADA, &words);
            all.push(words);
        }
        chat.telegram.handed_out(chat.telegram.newest_update()).await;
        chat.gateway.kill9().await;
        chat.gateway.restart().await;
    }
    chat.telegram
        .until("every answer", |telegram| {
            let sent = telegram.sent();
            all.iter().all(|words| sent.iter().any(|sent| sent.text.contains(words.as_str()))).then_some(())
        })
        .await;
    chat.telegram.all_confirmed().await;
    let mut answers: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let sent = chat.telegram.sent();
    for words in &all {
        let texts = sent.iter().filter(|sent| sent.text.contains(words.as_str())).map(|sent| sent.text.clone());
        answers.insert(words, texts.collect());
    }
    for (words, texts) in &answers {
        // A kill in the middle of a send leaves its outcome unknown: the one resend says so.
        let unmarked = texts.iter().filter(|text| !text.contains('↻')).count();
        assert!(unmarked <= 1 && texts.len() <= 2, "{words}: {texts:?}");
    }
    let order: Vec<&str> = sent.iter().filter(|sent| !sent.text.contains('↻')).map(|sent| sent.text.as_str()).collect();
    let mut sorted = order.clone();
    sorted.sort_unstable();
    assert_eq!(order, sorted, "answers in the order of the questions");
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
}
