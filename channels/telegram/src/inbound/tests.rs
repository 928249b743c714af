//! Payloads as the Bot API sends them, and payloads as nobody should.

use proptest::prelude::*;
use serde_json::json;

use super::*;

fn me() -> Me {
    Me { id: UserId(4242), username: "Crawfish_Bot".to_owned() }
}

fn channel() -> ChannelId {
    ChannelId::new("telegram", "main")
}

fn read(update: &Value) -> Option<Inbound> {
    inbound(&channel(), &me(), update).map(|taken| taken.event)
}

fn taken(update: &Value) -> Inbound {
    read(update).unwrap_or_else(|| panic!("not taken: {update}"))
}

/// The updates of `fixtures/updates.json` by their names.
fn recorded(name: &str) -> Value {
    let all: Value = serde_json::from_str(include_str!("../fixtures/updates.json")).expect("the fixtures are JSON");
    all.get(name).cloned().unwrap_or_else(|| panic!("no fixture {name}"))
}

/// A group message with these words and entities.
fn in_group(text: &str, entities: Value) -> Value {
    json!({ "update_id": 7, "message": {
        "message_id": 31, "date": 1_795_000_000, "text": text, "entities": entities,
        "from": { "id": 99, "is_bot": false, "first_name": "Ada", "username": "ada" },
        "chat": { "id": -1_001_234_567_890_i64, "type": "supergroup", "title": "Friends" },
    }})
}

fn entity(kind: &str, offset: i64, length: i64) -> Value {
    json!({ "type": kind, "offset": offset, "length": length })
}

#[test]
fn a_private_message_is_whole_and_addressed_to_us() {
    let event = taken(&recorded("private text"));
    let expected = Inbound {
        channel: channel(),
        platform_id: "99:11".to_owned(),
        fingerprint: None,
        kind: InboundKind::Message,
        about: None,
        conversation: Conversation { kind: ConversationKind::Direct, id: "99".to_owned(), thread: None, title: None },
        sender: Sender { id: "99".to_owned(), name: Some("Ada Lovelace".to_owned()), is_bot: false },
        text: "你好 👋".to_owned(),
        attachments: Vec::new(),
        mentions_us: true,
        reply_to: None,
        at: Some(1_795_000_000_000),
        address: Target { chat: 99, thread: None, reply: None }.address(&channel()),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    };
    assert_eq!(event, expected);
    assert_eq!(event.address.lane, "99");
    assert_eq!(Target::of(&event.address), Some(Target { chat: 99, thread: None, reply: None }));
}

#[test]
fn a_group_message_is_for_us_when_it_names_us_or_answers_us() {
    let named = |text: &str, offset, length| taken(&in_group(text, json!([entity("mention", offset, length)])));
    let event = named("hey @crawfish_BOT what is up", 4, 13);
    assert!(event.mentions_us);
    assert_eq!(event.text, "hey @crawfish_BOT what is up");
    assert_eq!(event.address.lane, "-1001234567890");
    assert_eq!(Target::of(&event.address).and_then(|target| target.reply), Some(31));
    assert!(!named("hey @crawfish_bot2 what is up", 4, 14).mentions_us);
    assert!(!taken(&in_group("hey @crawfish_bot, quoted as code", json!([entity("code", 4, 13)]))).mentions_us);
    assert!(!taken(&in_group("what is up", json!([]))).mentions_us);
    let by_id = |id: u64| {
        let user = json!({ "id": id, "is_bot": true, "first_name": "Craw" });
        taken(&in_group("hey Craw", json!([{ "type": "text_mention", "offset": 4, "length": 4, "user": user }])))
    };
    assert!(by_id(4242).mentions_us && !by_id(4243).mentions_us);

    let reply = taken(&recorded("group reply to the bot"));
    assert!(reply.mentions_us);
    let answered = ReplyTo {
        id: Some("-1001234567890:40".to_owned()),
        text: Some("It rains.".to_owned()),
        sender_id: Some("4242".to_owned()),
        ours: true,
    };
    assert_eq!(reply.reply_to, Some(answered));
    assert!(!taken(&recorded("group reply to somebody")).mentions_us);
}

#[test]
fn our_name_is_cut_where_it_is_only_the_address() {
    let cut = |text: &str, offset, length| taken(&in_group(text, json!([entity("mention", offset, length)]))).text;
    assert_eq!(cut("@crawfish_bot 停止", 0, 13), "停止");
    assert_eq!(cut("@Crawfish_Bot, stop", 0, 13), "stop");
    assert_eq!(cut("👩‍👩‍👧 weather @crawfish_bot ", 17, 13), "👩‍👩‍👧 weather");
    assert_eq!(cut("ask @crawfish_bot about it", 4, 13), "ask @crawfish_bot about it");
    assert_eq!(cut("@crawfish_bot", 0, 13), "@crawfish_bot", "nothing but the name is still something");
    let both = json!([entity("mention", 0, 13), entity("mention", 17, 13)]);
    assert_eq!(taken(&in_group("@crawfish_bot hi @crawfish_bot", both)).text, "hi");
}

#[test]
fn commands_are_for_the_bot_they_name() {
    let command = |text: &str, length| read(&in_group(text, json!([entity("bot_command", 0, length)])));
    let ours = command("/status@CRAWFISH_bot now", 20).expect("ours");
    assert_eq!((ours.text.as_str(), ours.mentions_us), ("/status now", true));
    assert_eq!(command("/status@other_bot", 17), None);
    assert!(command("/status", 7).expect("one of the menu").mentions_us);
    assert!(!command("/roll 2d6", 5).expect("somebody's").mentions_us);
    let inside = taken(&in_group("see /status@other_bot", json!([entity("bot_command", 4, 17)])));
    assert!(!inside.mentions_us);
}

#[test]
fn bad_input_44_entities_that_lie_are_drawn_in() {
    for (offset, length) in
        [(0, 1), (1, 1), (1, 13), (3, i64::MAX), (i64::MAX, i64::MAX), (500, 2), (-1, 5), (0, -3), (0, 0), (2, 0)]
    {
        let entities = json!([entity("mention", offset, length), entity("bot_command", offset, length)]);
        let event = read(&in_group("👋@crawfish_bot 😀", entities));
        assert!(event.is_some(), "{offset} {length}");
    }
    // The first half of an emoji is no boundary: the mention behind it is found all the same.
    assert!(taken(&in_group("👋@crawfish_bot", json!([entity("mention", 1, 14)]))).mentions_us);
}

#[test]
fn a_new_kind_of_entity_costs_itself_only() {
    let entities = json!([
        { "type": "date_time", "offset": 0, "length": 3, "unix_time": 5, "date_time_format": "r" },
        "nonsense",
        null,
        entity("mention", 4, 13),
    ]);
    assert!(taken(&in_group("now @crawfish_bot what", entities)).mentions_us);
}

#[test]
fn topics_are_conversations_and_chains_of_replies_are_not() {
    let topic = taken(&recorded("forum topic"));
    assert_eq!(topic.conversation.thread.as_deref(), Some("77"));
    assert_eq!(topic.reply_to, None, "a message in a topic does not answer the one that opened it");
    assert!(!topic.mentions_us, "though we opened the topic");
    let target = Target::of(&topic.address).expect("ours");
    assert_eq!(
        (target.thread, target.thread_to_send().is_some(), target.thread_to_show().is_some()),
        (Some(77), true, true)
    );

    let general = taken(&recorded("forum general"));
    assert_eq!(general.conversation.thread.as_deref(), Some("1"));
    let target = Target::of(&general.address).expect("ours");
    assert_eq!((target.thread_to_send(), target.thread_to_show().is_some()), (None, true));

    assert_eq!(taken(&recorded("group reply to somebody")).conversation.thread, None);
}

#[test]
fn bad_input_45_words_that_are_not_the_senders_own_are_relayed() {
    for (name, sender, is_bot) in [
        ("anonymous admin", "-1001234567890", false),
        ("channel in a group", "-1009876543210", false),
        ("channel post", "-1009876543210", false),
        ("forward of a user", "99", false),
        ("forward of a hidden user", "99", false),
        ("by way of a bot", "99", false),
    ] {
        let event = taken(&recorded(name));
        assert_eq!(event.trust, Trust::Relayed, "{name}");
        assert_eq!((event.sender.id.as_str(), event.sender.is_bot), (sender, is_bot), "{name}");
    }
    let mut nobody = recorded("private text");
    nobody["message"].as_object_mut().expect("a message").remove("from");
    let event = taken(&nobody);
    assert_eq!((event.sender.id.as_str(), event.trust), ("99", Trust::Relayed));
    let mut odd = recorded("private text");
    odd["message"]["from"] = json!({ "id": 99 });
    let event = taken(&odd);
    assert_eq!((event.sender.id.as_str(), event.trust), ("99", Trust::Own));
    assert!(taken(&recorded("another bot")).sender.is_bot);
}

#[test]
fn files_are_named_and_their_ids_told() {
    use AttachmentKind as Kind;
    for (name, kind, file, text, waits, id, mime) in [
        ("photo with caption", Kind::Image, None, "what is this?", false, "AgACAgIAAxkBAAN", "image/jpeg"),
        ("photo of an album", Kind::Image, None, "", true, "AgACAgIAAxkBAAN", "image/jpeg"),
        ("voice", Kind::Audio, None, "", true, "AwAC", "audio/ogg"),
        ("document", Kind::File, Some("report.pdf"), "", true, "BQAC", "application/pdf"),
        ("picture as a document", Kind::Image, Some("scan.png"), "", true, "BQAD", "image/png"),
        ("sticker", Kind::Image, Some("sticker 😀"), "", true, "CAAC", "image/webp"),
        ("animation", Kind::Video, Some("cat.mp4"), "", true, "CgAC", "video/mp4"),
    ] {
        let event = taken(&recorded(name));
        let [attachment] = event.attachments.as_slice() else { panic!("{name}: {:?}", event.attachments) };
        assert_eq!((attachment.kind, attachment.name.as_deref()), (kind, file), "{name}");
        assert!(attachment.media.is_none() && attachment.unavailable.is_none(), "{name}");
        assert_eq!((event.text.as_str(), event.more_expected.is_some()), (text, waits), "{name}");
        let file = inbound(&channel(), &me(), &recorded(name)).and_then(|taken| taken.file);
        assert_eq!(file, Some(File { id: id.to_owned(), mime: Some(mime.to_owned()) }), "{name}");
    }
}

#[test]
fn of_what_moves_the_still_picture_is_taken_and_what_has_no_id_is_told_to_be_missing() {
    let mut sticker = recorded("sticker");
    sticker["message"]["sticker"]["is_animated"] = json!(true);
    let without = inbound(&channel(), &me(), &sticker).expect("a message");
    assert_eq!(without.file, None);
    assert!(without.event.attachments[0].unavailable.is_some());
    sticker["message"]["sticker"]["thumbnail"] = json!({ "file_id": "AAMC", "width": 128, "height": 128 });
    let with = inbound(&channel(), &me(), &sticker).expect("a message");
    assert_eq!(with.file, Some(File { id: "AAMC".to_owned(), mime: None }));
    for photo in
        [json!([]), json!(null), json!("x"), json!([{ "file_id": 5 }]), json!([{ "file_id": "x".repeat(600) }])]
    {
        let mut update = recorded("photo with caption");
        update["message"]["photo"] = photo;
        let taken = inbound(&channel(), &me(), &update).expect("the caption is there all the same");
        assert_eq!((taken.file, taken.event.text.as_str()), (None, "what is this?"));
    }
}

#[test]
fn who_answers_a_picture_with_a_question_asks_about_the_picture() {
    let photo = recorded("photo with caption")["message"].clone();
    let mut asked = in_group("@crawfish_bot what is this?", json!([entity("mention", 0, 13)]));
    asked["message"]["reply_to_message"] = photo.clone();
    let event = inbound(&channel(), &me(), &asked).expect("a message");
    assert_eq!(event.file.map(|file| file.id).as_deref(), Some("AgACAgIAAxkBAAN"));
    assert_eq!((event.event.attachments.len(), event.event.more_expected), (1, None));
    // Their own file goes first, and what is not said to us fetches nothing.
    asked["message"]["voice"] = recorded("voice")["message"]["voice"].clone();
    let event = inbound(&channel(), &me(), &asked).expect("a message");
    assert_eq!(event.file.map(|file| file.id).as_deref(), Some("AwAC"));
    let mut small_talk = in_group("nice", json!([]));
    small_talk["message"]["reply_to_message"] = photo;
    assert_eq!(inbound(&channel(), &me(), &small_talk).expect("a message").file, None);
}

#[test]
fn a_pressed_button_is_what_it_stands_for_in_the_name_of_who_pressed_it() {
    let event = taken(&recorded("callback"));
    assert_eq!(
        (event.kind, event.text.as_str(), event.platform_id.as_str()),
        (InboundKind::Button, "yes", "button:4382")
    );
    assert_eq!((event.sender.id.as_str(), event.mentions_us, event.trust), ("99", true, Trust::Own));
    assert_eq!(event.about.as_deref(), Some("99:10"));
    assert_eq!(event.reply_to.as_ref().map(|reply| reply.ours), Some(true));
    assert_eq!(pressed(&recorded("callback")), Some("4382"));
    let mut group = recorded("callback");
    let pressed_in = |group: &Value| taken(group);
    group["callback_query"]["message"]["chat"] = json!({ "id": -100, "type": "supergroup", "title": "Friends" });
    group["callback_query"]["from"]["id"] = json!(7);
    let event = pressed_in(&group);
    assert_eq!((event.sender.id.as_str(), event.conversation.id.as_str()), ("7", "-100"), "not the asker: the presser");
    assert_eq!(Target::of(&event.address).and_then(|target| target.reply), Some(10));
    for (key, value) in [("data", json!(null)), ("data", json!("  ")), ("from", json!(null)), ("message", json!(null))]
    {
        let mut odd = recorded("callback");
        odd["callback_query"][key] = value.clone();
        assert_eq!(read(&odd), None, "{key} {value}");
        assert!(pressed(&odd).is_some(), "its waiting sign ends all the same");
    }
}

#[test]
fn what_is_neither_words_nor_a_file_is_said_in_a_line() {
    assert_eq!(taken(&recorded("location")).text, "[location: 48.137154, 11.576124]");
    assert_eq!(taken(&recorded("contact")).text, "[contact: Ada Lovelace, +4912345]");
    assert_eq!(taken(&recorded("poll")).text, "[poll: Lunch? (yes / no)]");
}

#[test]
fn pieces_of_something_longer_wait_for_the_rest() {
    let with = |text: String| taken(&in_group(&text, json!([]))).more_expected;
    assert_eq!(with("x".repeat(3_999)), None);
    assert_eq!(with("x".repeat(4_096)), Some(NEXT_PIECE));
    assert_eq!(with("👋".repeat(2_048)), Some(NEXT_PIECE), "UTF-16 units count");
    assert_eq!(taken(&recorded("forward of a user")).more_expected, Some(NEXT_FORWARD));
}

#[test]
fn an_edit_is_an_event_of_its_own() {
    let edit = taken(&recorded("edit"));
    assert_eq!((edit.kind, edit.platform_id.as_str()), (InboundKind::Edit, "99:11:1795000100:811000023"));
    assert_eq!(edit.at, Some(1_795_000_100_000));
    let about = edit.about.as_deref();
    assert_eq!(about, Some(taken(&recorded("private text")).platform_id.as_str()), "the id that the message had");
}

#[test]
fn bad_input_42_what_says_nothing_starts_nothing() {
    for name in [
        "new members",
        "pinned",
        "topic created",
        "migrated to",
        "migrated from",
        "poll update",
        "my chat member",
        "unknown kind",
    ] {
        assert_eq!(read(&recorded(name)), None, "{name}");
    }
    for update in
        [json!(null), json!([]), json!(5), json!({}), json!({ "message": 5 }), json!({ "message": { "text": "x" } })]
    {
        assert_eq!(read(&update), None, "{update}");
    }
}

#[test]
fn a_group_that_moves_tells_both_ids() {
    assert_eq!(moved(&recorded("migrated to")), Some((-500, -1_001_234_567_890)));
    assert_eq!(moved(&recorded("migrated from")), Some((-500, -1_001_234_567_890)));
    assert_eq!(moved(&recorded("private text")), None);
}

#[test]
fn a_quote_is_what_was_meant() {
    let event = taken(&recorded("reply with a quote"));
    assert_eq!(event.reply_to.and_then(|reply| reply.text).as_deref(), Some("only this"));
    let event = taken(&recorded("reply to another chat"));
    let expected = ReplyTo { id: None, text: Some("said elsewhere".to_owned()), sender_id: None, ours: false };
    assert_eq!(event.reply_to, Some(expected));
}

#[test]
fn long_things_are_cut() {
    let mut update = in_group(&"长".repeat(200_000), json!([entity("mention", 199_990, 13)]));
    update["message"]["chat"]["title"] = json!("t".repeat(5_000));
    update["message"]["from"]["first_name"] = json!("n".repeat(5_000));
    let event = taken(&update);
    assert_eq!(event.text.chars().count(), TEXT_CHARS);
    assert_eq!(event.conversation.title.map(|title| title.len()), Some(NAME_CHARS));
    assert_eq!(event.sender.name.map(|name| name.len()), Some(NAME_CHARS));
}

/// Any JSON.
fn json_value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 8, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-z_]{1,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Replaces the `at`th value of the tree, counted depth first.
fn replace(tree: &mut Value, at: &mut usize, with: &Value) {
    if *at == 0 {
        *tree = with.clone();
        *at = usize::MAX;
        return;
    }
    if *at == usize::MAX {
        return;
    }
    *at -= 1;
    match tree {
        Value::Array(items) => items.iter_mut().for_each(|item| replace(item, at, with)),
        Value::Object(map) => map.values_mut().for_each(|item| replace(item, at, with)),
        _ => {}
    }
}

proptest! {
    #[test]
    fn no_update_makes_it_panic(name in 0_usize..100, at in 0_usize..60, with in json_value()) {
        let all: Value = serde_json::from_str(include_str!("../fixtures/updates.json")).expect("JSON");
        let all: Vec<Value> = all.as_object().expect("an object").values().cloned().collect();
        let mut update = all[name % all.len()].clone();
        replace(&mut update, &mut { at }, &with);
        let _ = moved(&update);
        if let Some(event) = read(&update) {
            prop_assert!(!event.text.trim().is_empty() || !event.attachments.is_empty());
            prop_assert!(Target::of(&event.address).is_some());
        }
    }

    #[test]
    fn no_entities_make_it_panic(text in "\\PC{0,40}", marks in prop::collection::vec((0_usize..8, -2_i64..60, -2_i64..60), 0..6)) {
        let kinds = ["mention", "bot_command", "text_mention", "bold", "url", "code", "pre", "text_link"];
        let entities: Vec<Value> = marks.iter().map(|(kind, offset, length)| entity(kinds[*kind], *offset, *length)).collect();
        let text = format!("/help@crawfish_bot {text} @crawfish_bot");
        let _ = read(&in_group(&text, json!(entities)));
    }
}
