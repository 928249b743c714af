//! Events as the platform delivers them, and what is read of them.

use serde_json::json;

use super::*;

fn channel() -> ChannelId {
    ChannelId::new("feishu", "main")
}

fn read_as(bot: Option<&str>, at_all: bool, event: &Value) -> Event {
    read(Us { channel: &channel(), bot, at_all }, event)
}

/// An event whose message has these fields beside the usual ones.
fn event(fields: &Value) -> Value {
    let mut message = json!({
        "message_id": "om_1", "chat_id": "oc_1", "chat_type": "group", "message_type": "text",
        "create_time": "1795996800000", "content": "{\"text\":\"hi\"}",
    });
    for (key, value) in fields.as_object().expect("fields") {
        message[key] = value.clone();
    }
    json!({
        "schema": "2.0",
        "header": { "event_id": "ev1", "event_type": "im.message.receive_v1" },
        "event": {
            "sender": { "sender_id": { "open_id": "ou_ada", "user_id": "ada" }, "sender_type": "user" },
            "message": message,
        },
    })
}

fn message_of(fields: &Value) -> Message {
    match read_as(Some("ou_bot"), false, &event(fields)) {
        Event::Message(message) => *message,
        other => panic!("{other:?}"),
    }
}

fn mention(key: &str, id: &str, name: &str) -> Value {
    json!({ "key": key, "id": { "open_id": id }, "name": name })
}

#[test]
fn the_official_event_is_read_whole() {
    let all: Value = serde_json::from_str(include_str!("../fixtures/feishu_webhook.json")).expect("vectors");
    let case = all["cases"].as_array().expect("cases").iter().find(|case| case["name"] == "event_plain_no_key");
    let event: Value = serde_json::from_str(case.expect("a case")["body"].as_str().expect("a body")).expect("JSON");
    let Event::Message(message) = read_as(Some("ou_bot"), false, &event) else { panic!("no message") };
    let inbound = message.inbound;
    assert_eq!(inbound.platform_id, "om_5ce6d572455d361153b7cb51da133945");
    assert_eq!(inbound.text, "你好 @all <b>&");
    assert_eq!(inbound.sender.id, "ou_84aad35d084aa403a838cf73ee18467");
    assert_eq!(inbound.conversation.id, "oc_5ce6d572455d361153b7xx51da133945");
    assert_eq!(inbound.conversation.thread.as_deref(), Some("omt_d4be107c616"));
    assert!(inbound.mentions_us);
    assert_eq!(inbound.at, Some(1_609_073_151_345));
    assert_eq!(message.parent, None, "in a thread the root is no answered message");
}

#[test]
fn the_bot_is_named_by_its_id_and_by_nothing_else() {
    for (text, mentions, named, read) in [
        ("@_user_1 hi", json!([mention("@_user_1", "ou_bot", "Bot")]), true, "hi"),
        ("hi @_user_1 there", json!([mention("@_user_1", "ou_bot", "Bot")]), true, "hi @Bot there"),
        ("@_user_1  /status", json!([mention("@_user_1", "ou_bot", "Bot")]), true, "/status"),
        ("@_user_1 hi", json!([mention("@_user_1", "ou_eve", "Bot")]), false, "@Bot hi"),
        ("@Bot hi", json!([]), false, "@Bot hi"),
        ("ou_bot", json!([]), false, "ou_bot"),
        ("@_user_10 hi", json!([mention("@_user_10", "ou_eve", "Eve")]), false, "@Eve hi"),
        (
            "@_user_1 @_user_10 hi",
            json!([mention("@_user_1", "ou_eve", "Eve"), mention("@_user_10", "ou_bot", "Bot")]),
            true,
            "@Eve @Bot hi",
        ),
        ("hi", json!("no list"), false, "hi"),
        ("hi", json!([null, 7, {"key": 1}, {"id": "ou_bot"}]), false, "hi"),
    ] {
        let message = message_of(&json!({ "content": json!({ "text": text }).to_string(), "mentions": mentions }));
        assert_eq!((message.inbound.mentions_us, message.inbound.text.as_str()), (named, read), "{text}");
    }
    let event = event(&json!({ "mentions": [mention("@_user_1", "ou_bot", "Bot")] }));
    let Event::Message(message) = read_as(None, true, &event) else { panic!("no message") };
    assert!(!message.inbound.mentions_us, "while the bot's id is not known nobody names it");
}

#[test]
fn rule_16_at_all_addresses_the_bot_only_where_it_is_wanted() {
    for (text, all) in [
        ("@_all hi", true),
        ("hi @_all", true),
        ("hi @_all, all", true),
        ("@_all大家好", true),
        ("@_allx hi", false),
        ("@_all_of_it", false),
        ("@_all2", false),
    ] {
        // `mentions` is often empty for it.
        let event = event(&json!({ "content": json!({ "text": text }).to_string(), "mentions": [] }));
        for wanted in [false, true] {
            let Event::Message(message) = read_as(Some("ou_bot"), wanted, &event) else { panic!("{text}") };
            assert_eq!(message.inbound.mentions_us, wanted && all, "{text}");
        }
    }
    let listed = event(&json!({ "mentions": [{ "key": "@_all", "id": "", "name": "all" }] }));
    let Event::Message(message) = read_as(Some("ou_bot"), true, &listed) else { panic!("no message") };
    assert!(message.inbound.mentions_us);
}

#[test]
fn a_post_names_the_bot_by_key_or_id() {
    for id in ["@_user_1", "ou_bot"] {
        let post = json!({ "content": [[{ "tag": "at", "user_id": id }, { "tag": "text", "text": " look" }]] });
        let message = message_of(&json!({
            "message_type": "post", "content": post.to_string(),
            "mentions": if id == "ou_bot" { json!([]) } else { json!([mention(id, "ou_bot", "Bot")]) },
        }));
        assert!(message.inbound.mentions_us, "{id}");
        assert_eq!(message.inbound.text, "look");
    }
}

#[test]
fn private_chats_threads_and_topics_are_told_apart() {
    let direct = message_of(&json!({ "chat_type": "p2p" })).inbound;
    assert_eq!(direct.conversation.kind, ConversationKind::Direct);
    assert_eq!((direct.conversation.id.as_str(), direct.mentions_us), ("ou_ada", true));
    assert_eq!(direct.address.lane, "oc_1");
    let thread = message_of(&json!({ "thread_id": "omt_1", "root_id": "om_0", "parent_id": "om_0" }));
    assert_eq!((thread.inbound.conversation.thread.as_deref(), thread.parent), (Some("omt_1"), None));
    let in_thread = message_of(&json!({ "thread_id": "omt_1", "root_id": "om_0", "parent_id": "om_5" }));
    assert_eq!(in_thread.parent.as_deref(), Some("om_5"));
    let reply = message_of(&json!({ "root_id": "om_0", "parent_id": "om_0" }));
    assert_eq!(reply.parent.as_deref(), Some("om_0"));
    let topic = message_of(&json!({ "chat_type": "topic_group" })).inbound;
    assert_eq!(topic.conversation.kind, ConversationKind::Group);
    assert!(Target::of(&topic.address).expect("a target").in_thread());
}

#[test]
fn other_bots_and_the_bot_itself_are_not_heard() {
    for (kind, id) in [("app", "ou_x"), ("bot", "ou_x"), ("anonymous", "ou_x"), ("user", "ou_bot")] {
        let mut event = event(&json!({}));
        event["event"]["sender"] = json!({ "sender_id": { "open_id": id }, "sender_type": kind });
        assert_eq!(read_as(Some("ou_bot"), true, &event), Event::Nothing, "{kind} {id}");
    }
}

#[test]
fn files_are_named_and_the_words_to_them_are_waited_for() {
    let image = message_of(&json!({ "message_type": "image", "content": "{\"image_key\":\"img_1\"}" }));
    assert_eq!(image.files.len(), 1);
    assert!(image.inbound.more_expected.is_some());
    let forwarded = message_of(&json!({ "message_type": "merge_forward", "content": "Merged and Forwarded Message" }));
    assert!(forwarded.forwarded);
    assert_eq!(forwarded.inbound.trust, Trust::Relayed, "who forwards words does not lend them rights");
}

#[test]
fn a_press_says_what_its_button_stands_for() {
    let press = |value: Value| {
        json!({
            "schema": "2.0",
            "header": { "event_id": "ev9", "event_type": "card.action.trigger", "create_time": "1795996800000000" },
            "event": {
                "operator": { "open_id": "ou_eve" },
                "action": { "tag": "button", "value": value },
                "context": { "open_message_id": "om_card", "open_chat_id": "oc_1" },
            },
        })
    };
    let value = json!({ "say": "/approve 7", "direct": false, "chat": "oc_forged", "thread": "omt_1" });
    let Event::Pressed(inbound) = read_as(Some("ou_bot"), false, &press(value)) else { panic!("no press") };
    assert_eq!((inbound.kind, inbound.text.as_str()), (InboundKind::Button, "/approve 7"));
    assert_eq!((inbound.sender.id.as_str(), inbound.platform_id.as_str()), ("ou_eve", "card:ev9"));
    assert_eq!(inbound.conversation.id, "oc_1", "the platform's word counts, not the button's");
    assert_eq!(inbound.about.as_deref(), Some("om_card"));
    for other in
        [json!({}), json!("text"), json!({ "say": "" }), json!({ "say": "x" }), json!({ "say": 7, "direct": true })]
    {
        assert_eq!(read_as(Some("ou_bot"), false, &press(other.clone())), Event::Nothing, "{other}");
    }
}

#[test]
fn unknown_events_and_broken_ones_say_nothing() {
    for event in [
        json!({}),
        json!([]),
        json!(null),
        json!({ "schema": "2.0", "header": { "event_type": "im.message.reaction.created_v1" }, "event": {} }),
        json!({ "schema": "2.0", "header": { "event_type": "im.message.receive_v1" }, "event": {} }),
        json!({ "schema": "2.0", "header": { "event_type": "im.message.receive_v1" }, "event": { "sender": 1, "message": [] } }),
        json!({ "uuid": "1", "type": "event_callback", "event": { "type": "message", "text": "old" } }),
        event(&json!({ "message_id": "" })),
        event(&json!({ "chat_id": "oc with spaces" })),
        event(&json!({ "content": "{\"text\":\"  \"}" })),
    ] {
        assert_eq!(read_as(Some("ou_bot"), false, &event), Event::Nothing, "{event}");
    }
    let recall = json!({
        "header": { "event_type": "im.message.recalled_v1" },
        "event": { "message_id": "om_1", "chat_id": "oc_1", "recall_time": "1795996800001" },
    });
    assert_eq!(read_as(None, false, &recall), Event::Recalled("om_1".to_owned(), Some(1_795_996_800_001)));
}
