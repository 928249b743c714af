//! What comes in, from recorded shapes of events to what the gateway is given.

use super::*;

async fn ready() -> Bench {
    let mut bench = Bench::new(Flavour::NapCat);
    bench.connect();
    bench.up().await;
    bench
}

#[tokio::test]
async fn a_group_message_is_whole() {
    let bench = ready().await;
    let mut event = bench.bot.group_message(
        GROUP,
        ADA,
        json!([
            { "type": "at", "data": { "qq": "10001", "name": "小龙虾" } },
            { "type": "text", "data": { "text": " 问 " } },
            { "type": "at", "data": { "qq": 555, "name": "Bob" } },
            { "type": "face", "data": { "id": 14 } },
            { "type": "at", "data": { "qq": "all" } },
        ]),
    );
    event["sender"]["card"] = json!("Ada");
    event["group_name"] = json!("crabs");
    let heard = bench.hear(&event).await;
    assert_eq!(heard.text, "问 @Bob(555)[face: 微笑]@全体成员");
    assert!(heard.mentions_us);
    assert_eq!((heard.sender.id.as_str(), heard.sender.name.as_deref()), ("99", Some("Ada")));
    assert_eq!((heard.conversation.id.as_str(), heard.conversation.title.as_deref()), ("700", Some("crabs")));
    assert_eq!(heard.platform_id, format!("group:700:{}:1795996800", event["message_id"]));
    assert_eq!((heard.at, heard.trust, heard.kind), (Some(1_795_996_800_000), Trust::Own, InboundKind::Message));
}

#[tokio::test]
async fn a_mention_is_the_bots_number_and_nothing_else() {
    let bench = ready().await;
    for (message, mentioned) in [
        (json!([{ "type": "at", "data": { "qq": 10001 } }, { "type": "text", "data": { "text": " x" } }]), true),
        (json!("x [CQ:at,qq=10001]"), true),
        (json!("[CQ:at,qq=all] x"), false),
        (json!("[CQ:at,qq=100011] x"), false),
        (json!("[CQ:at,qq=1000] x"), false),
        (json!("@10001 @小龙虾 x"), false),
        (text("[CQ:at,qq=10001] x"), false),
        (json!("&#91;CQ:at,qq=10001&#93; x"), false),
    ] {
        let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, message.clone())).await;
        assert_eq!(heard.mentions_us, mentioned, "{message}");
    }
    let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, json!("[CQ:at,qq=10001]"))).await;
    assert!(heard.mentions_us && heard.text.is_empty(), "the name alone is said to the bot");
}

#[tokio::test]
async fn rule_23_the_bots_own_messages_start_nothing() {
    let bench = ready().await;
    let mut own = bench.bot.group_message(GROUP, BOT, text("I said this"));
    bench.bot.bring(&own);
    own["post_type"] = json!("message_sent");
    own["user_id"] = json!(ADA);
    bench.bot.bring(&own);
    let mut private = bench.bot.private_message(BOT, text("and this"));
    private["target_id"] = json!(ADA);
    bench.bot.bring(&private);
    bench.counted("own_message", 3).await;
    assert!(bench.gateway.intake.offered().is_empty());
}

#[tokio::test]
async fn rule_24_long_ids_come_back_whole_and_missing_sender_and_sub_type_are_borne() {
    let bench = ready().await;
    let long = "1234567890123456789";
    let heard = bench
        .hear(&json!({
            "time": 1_795_996_800, "self_id": "10001", "post_type": "message", "message_type": "group",
            "message_id": long, "group_id": 700.0, "user_id": "9007199254740993", "message": "[CQ:at,qq=10001] hi",
        }))
        .await;
    assert_eq!(heard.text, "hi");
    assert_eq!((heard.sender.id.as_str(), heard.conversation.id.as_str()), ("9007199254740993", "700"));
    assert_eq!(heard.platform_id, format!("group:700:{long}:1795996800"));
    bench.send(&heard.address, &one(&bench.channel, "ok")).await.expect("sent");
    let sent = bench.bot.sent().pop().expect("sent");
    assert_eq!(sent[0], json!({ "type": "reply", "data": { "id": long } }));
    let forwarded = json!([{ "sender": { "nickname": "Bob" }, "message": text("inside") }]);
    bench.bot.forward("7377489374298374923", forwarded);
    let heard = bench
        .hear(
            &bench.bot.private_message(ADA, json!([{ "type": "forward", "data": { "id": 7377489374298374923_i64 } }])),
        )
        .await;
    assert_eq!(heard.text, "[forwarded messages]\nBob: inside\n[end of the forwarded messages]");
    assert_eq!(heard.trust, Trust::Relayed);
}

#[tokio::test]
async fn bad_input_33_messages_of_unknown_form_are_counted_and_the_next_is_read() {
    let bench = ready().await;
    for message in [json!({ "type": "text", "data": { "text": "x" } }), Value::Null, json!(5)] {
        bench.bot.bring(&bench.bot.private_message(ADA, message));
    }
    bench.bot.bring(
        &bench.bot.event(json!({ "post_type": "message", "message_type": "private", "user_id": 1, "message_id": 1 })),
    );
    bench.counted("message_of_unknown_form", 4).await;
    assert_eq!(bench.hear(&bench.bot.private_message(ADA, json!("文[CQ:face,id=182]"))).await.text, "文[face: 笑哭]");
    assert_eq!(bench.hear(&bench.bot.private_message(ADA, text("list"))).await.text, "list");
}

#[tokio::test]
async fn bad_input_36_notices_requests_and_signs_of_unknown_kinds_are_ignored_cheaply() {
    let bench = ready().await;
    for event in [
        json!({ "post_type": "notice", "notice_type": "group_upload", "group_id": 1, "user_id": 2, "file": {} }),
        json!({ "post_type": "notice", "notice_type": "notify", "sub_type": "input_status", "user_id": 2 }),
        json!({ "post_type": "notice", "notice_type": "group_msg_emoji_like", "group_id": 1 }),
        json!({ "post_type": "notice" }),
        json!({ "post_type": "request", "request_type": "group", "sub_type": "add", "user_id": 1, "flag": "f" }),
        json!({ "post_type": "request", "request_type": "new" }),
        json!({ "post_type": "meta_event", "meta_event_type": "lifecycle", "sub_type": "enable" }),
        json!({ "post_type": "weather" }),
        json!({ "post_type": "notice", "notice_type": "notify", "sub_type": "poke", "user_id": 5, "target_id": 6 }),
    ] {
        bench.bot.bring(&bench.bot.event(event));
    }
    bench.hear(&bench.bot.private_message(ADA, text("after"))).await;
    assert_eq!(bench.gateway.intake.offered().len(), 1);
    assert!(bench.bot.calls().iter().all(|call| !call.action.starts_with("set_")), "{:?}", bench.bot.calls());
}

#[tokio::test]
async fn bad_input_37_replies_to_unknown_messages_and_forwards_without_end_are_bounded_and_marked() {
    let bench = ready().await;
    let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, json!("[CQ:reply,id=424242]what?"))).await;
    let reply = heard.reply_to.expect("a reply");
    assert_eq!((reply.id.as_deref(), reply.ours, reply.text), (Some("group:700:424242"), false, None));
    assert!(!heard.mentions_us);
    // A message that answers itself.
    let mut cycle = bench.bot.private_message(ADA, text("x"));
    cycle["message"] = json!([{ "type": "reply", "data": { "id": cycle["message_id"] } }, { "type": "text", "data": { "text": "x" } }]);
    assert_eq!(bench.hear(&cycle).await.reply_to.and_then(|reply| reply.text).as_deref(), Some("x"));

    let deep = json!([{ "type": "forward", "data": { "id": "self" } }]);
    bench.bot.forward("self", json!([{ "sender": { "nickname": "A" }, "message": deep }]));
    let heard = bench.hear(&bench.bot.private_message(ADA, deep)).await;
    assert!(heard.text.contains("[the same forwarded messages again]"), "{}", heard.text);

    for depth in 0..6 {
        let inner = json!([{ "type": "text", "data": { "text": format!("depth {depth}") } }, { "type": "forward", "data": { "id": format!("d{}", depth + 1) } }]);
        bench.bot.forward(&format!("d{depth}"), json!([{ "sender": { "nickname": "A" }, "message": inner }]));
    }
    let heard =
        bench.hear(&bench.bot.private_message(ADA, json!([{ "type": "forward", "data": { "id": "d0" } }]))).await;
    assert!(heard.text.contains("depth 2") && !heard.text.contains("depth 3"), "{}", heard.text);
    assert!(heard.text.contains("too deep to be read"), "{}", heard.text);

    let many: Vec<Value> =
        (0..500).map(|n| json!({ "sender": { "user_id": n + 1 }, "content": format!("line {n}.") })).collect();
    bench.bot.forward("many", Value::Array(many));
    let heard =
        bench.hear(&bench.bot.private_message(ADA, json!([{ "type": "forward", "data": { "id": "many" } }]))).await;
    assert!(
        heard.text.contains("line 49.") && !heard.text.contains("line 50.") && heard.text.contains("[450 more]"),
        "{}",
        heard.text
    );
    let heard =
        bench.hear(&bench.bot.private_message(ADA, json!([{ "type": "forward", "data": { "id": "gone" } }]))).await;
    assert_eq!(heard.text, "[forwarded messages, which could not be read]");
}

#[tokio::test]
async fn bad_input_39_files_of_private_addresses_and_paths_are_not_fetched_and_the_message_goes_in() {
    let bench = ready().await;
    let image = |url: &str| json!({ "type": "image", "data": { "file": "x.jpg", "url": url } });
    bench.gateway.media.put_link("http://10.0.0.1/x.jpg", "secret");
    bench.gateway.media.put_link("http://localhost/x.jpg", "secret");
    let heard = bench
        .hear(&bench.bot.private_message(
            ADA,
            json!([
                { "type": "text", "data": { "text": "look" } },
                { "type": "image", "data": { "file": "file:///etc/passwd" } },
                { "type": "image", "data": { "file": "C:\\Users\\bot\\x.jpg" } },
                image("http://10.0.0.1/x.jpg"),
                image("http://localhost/x.jpg"),
                image("https://example.org/2-GB.jpg"),
                { "type": "image", "data": { "file": "base64://%%%" } },
            ]),
        ))
        .await;
    assert_eq!((heard.text.as_str(), heard.attachments.len()), ("look", 6));
    for file in &heard.attachments {
        assert!(file.media.is_none() && file.unavailable.as_ref().is_some_and(|why| !why.is_empty()), "{file:?}");
    }
    assert!(bench.gateway.media.files().is_empty());
}

#[tokio::test]
async fn pictures_voices_films_and_files_come_along() {
    let bench = ready().await;
    let media = &bench.gateway.media;
    media.put_link("https://multimedia.nt.qq.com.cn/download?rkey=1", "a picture");
    media.put_link("https://grouptalk.c2c.qq.com/v.mp4", "a film");
    media.put_link("https://njc-download.ftn.qq.com/f", "a file");
    bench.bot.file("voice.amr", json!({ "file": "/tmp/voice.mp3", "base64": "YSB2b2ljZQ==" }));
    bench.bot.file("f-1", json!({ "url": "https://njc-download.ftn.qq.com/f" }));
    let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, json!([
        { "type": "at", "data": { "qq": "10001" } },
        { "type": "image", "data": { "file": "A.jpg", "url": "https://multimedia.nt.qq.com.cn/download?rkey=1", "file_size": 9 } },
        { "type": "record", "data": { "file": "voice.amr", "url": "/root/voice.amr" } },
        { "type": "video", "data": { "file": "v.mp4", "url": "https://grouptalk.c2c.qq.com/v.mp4" } },
        { "type": "file", "data": { "file": "report.pdf", "file_id": "f-1", "file_size": "6" } },
        { "type": "image", "data": { "file": "base64://aW5saW5l" } },
    ]))).await;
    let kinds: Vec<AttachmentKind> = heard.attachments.iter().map(|file| file.kind).collect();
    assert_eq!(
        kinds,
        [
            AttachmentKind::Image,
            AttachmentKind::Audio,
            AttachmentKind::Video,
            AttachmentKind::File,
            AttachmentKind::Image
        ]
    );
    assert!(heard.attachments.iter().all(|file| file.media.is_some()), "{:?}", heard.attachments);
    assert_eq!(heard.attachments[3].name.as_deref(), Some("report.pdf"));
    let mut kept: Vec<Bytes> = media.files();
    kept.sort();
    assert_eq!(kept, ["a file", "a film", "a picture", "a voice", "inline"]);
    assert_eq!(bench.bot.calls_of("get_group_file_url")[0]["group_id"], json!(700));
}

#[tokio::test]
async fn files_that_never_come_cost_twenty_seconds_and_not_the_message() {
    let bench = ready().await;
    bench.bot.fault("get_record", Fault::DoneButSilent);
    let event = bench.bot.private_message(ADA, json!([{ "type": "record", "data": { "file": "voice.amr" } }]));
    bench.bot.bring(&event);
    bench.bot.until("it is asked", |bot| !bot.calls_of("get_record").is_empty()).await;
    bench.gateway.clock.until_sleeping(3).await;
    bench.gateway.clock.advance(Duration::from_secs(20));
    bench.gateway.intake.until_stored(1).await;
    let file = &bench.gateway.intake.events()[0].attachments[0];
    assert!(file.media.is_none() && file.unavailable.is_some(), "{file:?}");
}

#[tokio::test]
async fn a_reply_to_the_bots_message_is_said_to_it_known_or_asked_for() {
    let bench = ready().await;
    bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("hi"))).await;
    let receipt = bench.send(&bench.address(), &one(&bench.channel, "hello there")).await.expect("sent");
    let id = receipt.platform_id.expect("an id").rsplit(':').next().expect("an id").to_owned();
    let reply = |id: &str| json!([{ "type": "reply", "data": { "id": id } }, { "type": "text", "data": { "text": "and now?" } }]);
    let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, reply(&id))).await;
    let answered = heard.reply_to.expect("a reply");
    assert!(heard.mentions_us && answered.ours);
    assert_eq!((answered.text.as_deref(), answered.sender_id.as_deref()), (Some("hello there"), Some("10001")));
    // After a restart it has to be asked for; and where that fails too, what we sent ourselves is known.
    let mut later = Bench::of(Flavour::NapCat, &config(), FakeGateway::new());
    later.bot = bench.bot.clone();
    later.connect();
    later.up().await;
    assert!(later.hear(&later.bot.group_message(GROUP, ADA, reply(&id))).await.mentions_us);
    bench.bot.forget("get_msg");
    let others = bench.bot.group_message(GROUP, 5, text("mine"));
    let other = others["message_id"].to_string();
    assert!(!later.hear(&later.bot.group_message(GROUP, ADA, reply(&other))).await.mentions_us);
}

#[tokio::test]
async fn a_quote_never_shows_one_chat_what_another_said() {
    let bench = ready().await;
    let secret = bench.bot.group_message(GROUP, 5, text("the group's secret"))["message_id"].to_string();
    let reply = json!([{ "type": "reply", "data": { "id": secret } }, { "type": "text", "data": { "text": "what?" } }]);
    let heard = bench.hear(&bench.bot.private_message(ADA, reply.clone())).await;
    assert_eq!(heard.reply_to.expect("a reply").text, None);
    let heard = bench.hear(&bench.bot.group_message(701, ADA, reply)).await;
    assert_eq!(heard.reply_to.expect("a reply").text, None);
}

#[tokio::test]
async fn cards_places_and_shares_become_a_line() {
    let bench = ready().await;
    let card = json!({ "app": "com.tencent.miniapp", "prompt": "[QQ小程序]哔哩哔哩", "meta": { "detail_1": { "title": "哔哩哔哩", "desc": "龙虾怎么做", "qqdocurl": "https://b23.tv/x" } } });
    for (segment, line) in [
        (
            json!({ "type": "json", "data": { "data": card.to_string() } }),
            "[card: 哔哩哔哩, 龙虾怎么做, https://b23.tv/x]",
        ),
        (json!({ "type": "json", "data": { "data": card } }), "[card: 哔哩哔哩, 龙虾怎么做, https://b23.tv/x]"),
        (json!({ "type": "json", "data": { "data": "{broken" } }), "[card]"),
        (
            json!({ "type": "share", "data": { "url": "https://a.example", "title": "A" } }),
            "[shared: A, https://a.example]",
        ),
        (
            json!({ "type": "location", "data": { "lat": "39.9", "lon": 116.4, "title": "天安门" } }),
            "[location: 天安门, 39.9, 116.4]",
        ),
        (json!({ "type": "contact", "data": { "type": "qq", "id": "5" } }), "[contact: qq, 5]"),
        (json!({ "type": "dice", "data": { "result": 6 } }), "[dice: 6]"),
        (json!({ "type": "mface", "data": { "summary": "[赞]" } }), "[sticker: [赞]]"),
        (json!({ "type": "face", "data": { "id": "9999", "raw": { "faceText": "/新表情" } } }), "[face: 新表情]"),
        (json!({ "type": "markdown", "data": { "content": "# hi" } }), "# hi"),
    ] {
        let heard = bench.hear(&bench.bot.private_message(ADA, json!([segment]))).await;
        assert_eq!(heard.text, line, "{segment}");
    }
    bench.bot.bring(&bench.bot.private_message(ADA, json!([{ "type": "hologram", "data": {} }])));
    bench.counted("nothing_in_it", 1).await;
}

#[tokio::test]
async fn a_temporary_chat_is_answered_with_person_and_group() {
    let bench = ready().await;
    for (group, expected) in [(json!(700), json!(700)), (json!(284_840_486), Value::Null)] {
        let mut event = bench.bot.private_message(ADA, text("psst"));
        event["sub_type"] = json!("group");
        event["group_id"] = group;
        let heard = bench.hear(&event).await;
        assert_eq!((heard.conversation.id.as_str(), heard.mentions_us), ("99", true));
        bench.gateway.clock.advance(Duration::from_secs(5));
        bench.send(&heard.address, &one(&bench.channel, "yes?")).await.expect("sent");
        let call = bench.bot.calls_of("send_private_msg").pop().expect("a call");
        assert_eq!((&call["user_id"], &call["group_id"]), (&json!(99), &expected));
    }
}

#[tokio::test]
async fn a_guilds_ids_are_texts_and_the_bot_has_another_number_there() {
    let mut bench = Bench::new(Flavour::GoCqhttp);
    bench.connect();
    bench.up().await;
    let event = |user: &str, id: &str, words: &str| {
        bench.bot.event(json!({
            "post_type": "message", "message_type": "guild", "sub_type": "channel", "guild_id": "72057594037927936",
            "channel_id": "1234567890123456789", "self_tiny_id": "144115218", "message_id": id, "user_id": user,
            "message": format!("[CQ:at,qq=144115218] {words}"), "sender": { "nickname": "Ada", "user_id": 5 },
        }))
    };
    bench.bot.bring(&event("144115218", "BAC0", "mine"));
    let heard = bench.hear(&event("144115219", "BACA3HL+w==", "hello")).await;
    assert_eq!((heard.text.as_str(), heard.mentions_us), ("hello", true));
    assert_eq!(
        (heard.conversation.id.as_str(), heard.conversation.thread.as_deref()),
        ("72057594037927936", Some("1234567890123456789"))
    );
    bench.send(&heard.address, &one(&bench.channel, "hi")).await.expect("sent");
    let call = bench.bot.calls_of("send_guild_channel_msg").pop().expect("a call");
    assert_eq!((&call["guild_id"], &call["channel_id"]), (&json!("72057594037927936"), &json!("1234567890123456789")));
    assert_eq!(bench.gateway.intake.offered().len(), 1);
}

#[tokio::test]
async fn an_anonymous_sender_has_no_rights() {
    let bench = ready().await;
    let mut event = bench.bot.group_message(GROUP, 80_000_000, at_bot("who am I"));
    event["sub_type"] = json!("anonymous");
    event["anonymous"] = json!({ "id": 42, "name": "某人", "flag": "x" });
    let heard = bench.hear(&event).await;
    assert_eq!((heard.sender.id.as_str(), heard.trust), ("anonymous:42", Trust::Relayed));
}

#[tokio::test]
async fn a_poke_of_the_bot_is_said_to_it_and_a_recall_names_the_message() {
    let bench = ready().await;
    let poke = |target: i64| {
        bench.bot.event(json!({
        "post_type": "notice", "notice_type": "notify", "sub_type": "poke", "group_id": GROUP, "user_id": ADA, "target_id": target,
    }))
    };
    bench.bot.bring(&poke(5));
    let heard = bench.hear(&poke(BOT)).await;
    assert_eq!((heard.text.as_str(), heard.mentions_us, heard.conversation.id.as_str()), ("[poked you]", true, "700"));
    let said = bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("oops"))).await;
    let id = said.platform_id.split(':').nth(2).expect("an id").parse::<i64>().expect("a number");
    let recall = |id: i64| {
        bench.bot.event(json!({
        "post_type": "notice", "notice_type": "group_recall", "group_id": GROUP, "user_id": ADA, "operator_id": ADA, "message_id": id,
    }))
    };
    let gone = bench.hear(&recall(id)).await;
    assert_eq!((gone.kind, gone.about.as_deref()), (InboundKind::Deleted, Some(said.platform_id.as_str())));
    assert_ne!(gone.platform_id, said.platform_id);
    let unknown = bench.hear(&recall(31_337)).await;
    assert_eq!(unknown.about.as_deref(), Some("group:700:31337"));
}

#[tokio::test]
async fn requests_are_granted_by_policy_only() {
    let friend = |bot: &fake::OneBot, user: i64| {
        bot.event(json!({ "post_type": "request", "request_type": "friend", "user_id": user, "flag": "f-1", "comment": "let me in" }))
    };
    let invite = |bot: &fake::OneBot, user: i64| {
        bot.event(json!({ "post_type": "request", "request_type": "group", "sub_type": "invite", "user_id": user, "group_id": GROUP, "flag": 77 }))
    };
    for (friends, groups, granted) in [
        (Consent::Ignore, Consent::Ignore, (0, 0)),
        (Consent::Approve, Consent::Ignore, (2, 0)),
        (Consent::From(vec!["99".to_owned()]), Consent::From(vec!["5".to_owned()]), (1, 1)),
    ] {
        let config = Config { friend_requests: friends, group_invites: groups, ..config() };
        let mut bench = Bench::with(Flavour::NapCat, &config);
        bench.connect();
        bench.up().await;
        for user in [ADA, 5] {
            bench.bot.bring(&friend(&bench.bot, user));
            bench.bot.bring(&invite(&bench.bot, user));
        }
        bench.hear(&bench.bot.private_message(ADA, text("after"))).await;
        let (friends, groups) =
            (bench.bot.calls_of("set_friend_add_request"), bench.bot.calls_of("set_group_add_request"));
        assert_eq!((friends.len(), groups.len()), granted);
        assert!(friends.iter().all(|call| call["flag"] == "f-1" && call["approve"] == json!(true)));
        assert!(groups.iter().all(|call| call["flag"] == "77" && call["sub_type"] == "invite"));
    }
}

#[tokio::test]
async fn an_event_that_cannot_be_stored_is_held_and_those_behind_it_stay_behind() {
    let bench = ready().await;
    bench.gateway.intake.answer_next(Err(IntakeError::Busy(Duration::from_secs(2))));
    bench.gateway.intake.answer_next(Err(IntakeError::Unavailable("disk full".to_owned())));
    bench.bot.bring(&bench.bot.private_message(ADA, text("one")));
    bench.bot.bring(&bench.bot.private_message(ADA, text("two")));
    bench.gateway.clock.until_sleeping(2).await;
    bench.gateway.clock.advance(Duration::from_secs(2));
    bench.bot.until("it was offered again", |_| bench.gateway.intake.offered().len() == 2).await;
    bench.gateway.clock.until_sleeping(2).await;
    bench.gateway.clock.advance(Duration::from_secs(1));
    bench.gateway.intake.until_stored(2).await;
    let texts: Vec<String> = bench.gateway.intake.events().into_iter().map(|event| event.text).collect();
    assert_eq!(texts, ["one", "two"]);
}

#[tokio::test]
async fn a_slow_file_of_one_chat_holds_up_no_other() {
    let bench = ready().await;
    bench.bot.fault("get_record", Fault::DoneButSilent);
    bench.bot.bring(&bench.bot.private_message(5, json!([{ "type": "record", "data": { "file": "voice.amr" } }])));
    bench.bot.until("it is asked", |bot| !bot.calls_of("get_record").is_empty()).await;
    bench.bot.bring(&bench.bot.private_message(5, text("listen")));
    let heard = bench.hear(&bench.bot.private_message(ADA, text("not behind it"))).await;
    assert_eq!(heard.text, "not behind it");
    bench.gateway.clock.until_sleeping(3).await;
    bench.gateway.clock.advance(Duration::from_secs(20));
    bench.gateway.intake.until_stored(3).await;
    assert_eq!(bench.gateway.intake.events()[2].text, "listen", "and its own chat stays in order");
}

#[tokio::test]
async fn what_was_said_while_the_connection_was_down_is_asked_for_once() {
    let gateway = FakeGateway::new();
    let mut bench = Bench::of(Flavour::NapCat, &config(), gateway.clone());
    bench.connect();
    bench.up().await;
    let last = bench.bot.group_message(GROUP, ADA, at_bot("before"));
    bench.hear(&last).await;
    bench.bot.private_message(ADA, text("in a chat that is not known"));
    // The gateway's map knows what was seen, as its commit wrote it.
    let seen = gateway.intake.batches().into_iter().filter_map(|batch| batch.cursor).next_back().expect("a cursor");
    channel_api::ChannelKv::set(gateway.kv.as_ref(), &seen.key, &seen.value).await.expect("it is kept");
    drop(bench.tasks);
    bench.bot.at(1_795_996_800 - 700);
    bench.bot.group_message(GROUP, ADA, at_bot("too old"));
    bench.bot.at(1_795_996_801);
    bench.bot.group_message(GROUP, ADA, at_bot("missed one"));
    bench.bot.group_message(GROUP, BOT, text("own"));
    bench.bot.group_message(GROUP, ADA, at_bot("missed two"));
    let mut later = Bench::of(Flavour::NapCat, &config(), gateway.clone());
    later.bot = bench.bot.clone();
    later.connect();
    later.bot.bring(&later.bot.group_message(GROUP, ADA, at_bot("live")));
    gateway.intake.until_stored(4).await;
    let texts: Vec<String> = gateway.intake.events().into_iter().map(|event| event.text).collect();
    assert_eq!(texts, ["before", "missed one", "missed two", "live"]);
    let asked = later.bot.calls_of("get_group_msg_history");
    assert_eq!((asked.len(), &asked[0]["count"]), (1, &json!(50)));
}

#[tokio::test]
async fn a_bot_that_was_logged_out_is_said_to_be_down() {
    let bench = ready().await;
    bench
        .bot
        .bring(&bench.bot.event(json!({ "post_type": "notice", "notice_type": "bot_offline", "message": "被踢下线" })));
    bench
        .bot
        .until("it is down", |_| matches!(bench.ctx.pulse.look().0, Link::Down(why) if why.contains("被踢下线")))
        .await;
}

proptest::proptest! {
    #[test]
    fn no_event_makes_it_panic(
        post in "message|notice|request|meta_event|x",
        keys in proptest::collection::vec(("message_type|sub_type|user_id|group_id|message_id|message|sender|time|notice_type|flag|anonymous|target_id|guild_id|file", 0..12_usize), 0..10),
    ) {
        let values = [
            json!(null), json!("group"), json!("private"), json!("poke"), json!(-5), json!(1.5), json!(u64::MAX), json!([]),
            json!({}), json!("[CQ:at,qq=1]"), json!([{ "type": "image", "data": { "file": 5 } }, { "type": "forward", "data": { "id": null } }]),
            json!(i64::MIN),
        ];
        let mut event = json!({ "post_type": post });
        for (key, value) in keys {
            event[key] = values[value].clone();
        }
        let _ = crate::inbound::read(&channel_api::ChannelId::new("onebot", "qq"), "10001", &event);
    }
}

#[tokio::test]
async fn nothing_is_asked_for_on_account_of_a_stranger_and_everything_for_an_admitted_sender() {
    let bench = ready().await;
    bench.gateway.intake.want_no_files_of("5");
    bench.gateway.media.put_link("https://multimedia.nt.qq.com.cn/1", "a picture");
    bench.bot.file("voice.amr", json!({ "base64": "YSB2b2ljZQ==" }));
    bench.bot.forward("f", json!([{ "sender": { "nickname": "A" }, "content": "words" }]));
    let everything = json!([
        { "type": "reply", "data": { "id": "7" } },
        { "type": "image", "data": { "file": "base64://aW5saW5l" } },
        { "type": "image", "data": { "file": "A.jpg", "url": "https://multimedia.nt.qq.com.cn/1" } },
        { "type": "record", "data": { "file": "voice.amr" } },
        { "type": "forward", "data": { "id": "f" } },
    ]);
    let asked = |bench: &Bench| {
        let all = ["get_msg", "get_forward_msg", "get_record", "get_image"];
        all.map(|action| bench.bot.calls_of(action).len())
    };
    for event in
        [bench.bot.private_message(5, everything.clone()), bench.bot.group_message(GROUP, 5, everything.clone())]
    {
        let heard = bench.hear(&event).await;
        assert_eq!((heard.text.as_str(), heard.attachments.len()), ("[forwarded messages, which were not read]", 3));
        for file in &heard.attachments {
            assert!(
                file.media.is_none() && file.unavailable.as_ref().is_some_and(|why| why.starts_with("not fetched"))
            );
        }
    }
    // Nor is a message that a stranger takes back.
    let recall = |user: i64| json!({ "post_type": "notice", "notice_type": "group_recall", "group_id": GROUP, "user_id": user, "operator_id": user, "message_id": 70 + user });
    bench.hear(&bench.bot.event(recall(5))).await;
    assert_eq!((asked(&bench), bench.gateway.media.files().len()), ([0; 4], 0));

    let heard = bench.hear(&bench.bot.private_message(ADA, everything)).await;
    assert!(heard.text.contains("A: words") && heard.attachments.iter().all(|file| file.media.is_some()), "{heard:?}");
    assert_eq!(bench.gateway.media.files().len(), 3);
    assert_eq!(asked(&bench), [1, 1, 1, 0]);
    bench.hear(&bench.bot.event(recall(ADA))).await;
    assert_eq!(bench.bot.calls_of("get_msg").len(), 2);
}

#[tokio::test]
async fn a_files_name_is_no_path_and_holds_no_control_characters() {
    let bench = ready().await;
    let file = json!([{ "type": "file", "data": { "file_id": "f", "name": "../../etc/pass\u{1b}[31m\nwd" } }]);
    let heard = bench.hear(&bench.bot.private_message(ADA, file)).await;
    assert_eq!(heard.attachments[0].name.as_deref(), Some("pass[31mwd"));
    let notice = json!({
        "post_type": "notice", "notice_type": "offline_file", "user_id": ADA,
        "file": { "name": "..\\a\u{0}\nb.txt", "size": 1, "url": "" },
    });
    let heard = bench.hear(&bench.bot.event(notice)).await;
    assert_eq!(heard.attachments[0].name.as_deref(), Some("ab.txt"));
    assert!(heard.platform_id.contains(":ab.txt:") && !heard.platform_id.chars().any(char::is_control));
}
