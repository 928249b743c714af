//! The differences of implementations, protocols.md §1.5: a test for each row.

use super::*;

async fn ready(flavour: Flavour) -> Bench {
    let mut bench = Bench::new(flavour);
    bench.connect();
    bench.up().await;
    bench
}

#[tokio::test]
async fn napcat_reuses_the_token_as_the_key_of_pushed_events() {
    let channel = OneBot::new(
        "qq",
        &Config { mode: crate::Mode::Http, api_url: Some("http://127.0.0.1:1".into()), ..config() },
        &network(),
    );
    let channel = channel.expect("a section that works");
    assert!(channel.config.secret.is_empty(), "the token is the key where no secret is set: see http_push");
}

#[tokio::test]
async fn napcat_judges_nothing_by_retcode_200_and_neither_do_we() {
    let bench = ready(Flavour::NapCat).await;
    bench.hear(&bench.bot.private_message(ADA, text("x"))).await;
    bench.bot.fault("send_private_msg", Fault::Refuse(200, "消息体无法解析"));
    let sent = bench.send(&bench.address(), &one(&bench.channel, "y")).await;
    assert_eq!(SendClass::of(&sent), SendClass::Refused, "{sent:?}");
}

#[tokio::test]
async fn lagrange_gives_message_id_0_and_the_receipt_has_none() {
    let bench = ready(Flavour::Lagrange).await;
    bench.hear(&bench.bot.private_message(ADA, text("x"))).await;
    let receipt = bench.send(&bench.address(), &one(&bench.channel, "y")).await.expect("sent");
    assert_eq!(receipt.platform_id, None);
}

#[tokio::test]
async fn napcats_negative_message_ids_are_quoted_and_kept() {
    let bench = ready(Flavour::NapCat).await;
    let mut event = bench.bot.group_message(GROUP, ADA, at_bot("x"));
    event["message_id"] = json!(-2_147_483_648_i64);
    let heard = bench.hear(&event).await;
    bench.send(&heard.address, &one(&bench.channel, "y")).await.expect("sent");
    assert_eq!(bench.bot.sent()[0][0], json!({ "type": "reply", "data": { "id": "-2147483648" } }));
}

#[tokio::test]
async fn an_unknown_action_is_200_in_napcat_and_404_elsewhere_and_is_unsupported_in_all() {
    for flavour in [Flavour::NapCat, Flavour::LlOneBot, Flavour::GoCqhttp, Flavour::Lagrange] {
        let bot = fake::OneBot::new(flavour);
        let at = bot.serve().await;
        let by_http = Config { mode: crate::Mode::Http, api_url: Some(format!("http://{at}")), ..config() };
        let channel = OneBot::new("qq", &by_http, &network()).expect("a section that works");
        bot.forget("get_group_msg_history");
        let failed =
            channel.links.call("", "get_group_msg_history", json!({}), crate::links::CALL).await.expect_err("unknown");
        assert!(crate::receive::is_unsupported(&failed), "{flavour:?}: {failed}");
        let bench = ready(flavour).await;
        bench.bot.forget("get_friend_msg_history");
        let failed = bench.channel.links.call("10001", "get_friend_msg_history", json!({}), crate::links::CALL).await;
        assert!(crate::receive::is_unsupported(&failed.expect_err("unknown")), "{flavour:?}");
    }
}

#[tokio::test]
async fn a_history_that_is_not_there_costs_nothing() {
    let gateway = FakeGateway::new();
    channel_api::ChannelKv::set(gateway.kv.as_ref(), "seen:10001", r#"{"group:700":[1795996800,"-1"]}"#)
        .await
        .expect("it is kept");
    let mut bench = Bench::of(Flavour::GoCqhttp, &config(), gateway);
    bench.bot.forget("get_group_msg_history");
    bench.connect();
    bench.hear(&bench.bot.private_message(ADA, text("live"))).await;
    assert_eq!(bench.bot.calls_of("get_group_msg_history").len(), 1);
}

#[tokio::test]
async fn napcat_says_1403_after_the_upgrade_and_go_cqhttp_refuses_it() {
    // The whole of it: connections::forward_with_a_wrong_token_stops_and_names_the_key.
    let mut bench = Bench::new(Flavour::NapCat);
    let mut socket = bench.raw("", "Universal", None);
    let refused = json!({ "status": "failed", "retcode": 1403, "data": null, "message": "token验证失败", "echo": "" });
    socket.outgoing.send(Frame::Text(refused.to_string())).await.expect("it listens");
    let closed = tokio::time::timeout(Duration::from_secs(20), socket.incoming.recv()).await.expect("in time");
    assert!(matches!(closed, Some(Frame::Close(..))), "{closed:?}");
}

#[tokio::test]
async fn napcat_wants_nodes_alone_and_drops_at_in_private_chats() {
    let bench = ready(Flavour::NapCat).await;
    for event in [bench.bot.group_message(GROUP, ADA, at_bot("x")), bench.bot.private_message(ADA, text("x"))] {
        let heard = bench.hear(&event).await;
        let parts = bench.channel.render(&Reply::message("long. ".repeat(1_000)), Level::Rich);
        assert_eq!(parts.len(), 1);
        bench.gateway.clock.advance(Duration::from_secs(5));
        bench.send(&heard.address, &parts[0]).await.expect("sent");
    }
    let calls = bench.bot.calls();
    let forwards: Vec<_> = calls.iter().filter(|call| call.action.ends_with("_forward_msg")).collect();
    assert_eq!(forwards.len(), 2);
    for call in &forwards {
        let nodes = call.params["messages"].as_array().expect("nodes");
        assert!(nodes.iter().all(|node| node["type"] == "node"), "{nodes:?}");
    }
    assert!(!calls.iter().any(|call| call.params.to_string().contains("\"at\"")), "nobody is called by name");
}

#[tokio::test]
async fn marks_are_set_where_the_implementation_can_and_nowhere_else() {
    for (flavour, expected) in
        [(Flavour::NapCat, true), (Flavour::LlOneBot, true), (Flavour::GoCqhttp, false), (Flavour::Lagrange, false)]
    {
        let bench = ready(flavour).await;
        let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("x"))).await;
        let live = bench.channel.live().expect("live");
        for mark in [Mark::Seen, Mark::Working, Mark::Done] {
            live.mark(&heard.address, &heard.platform_id, mark).await;
        }
        let calls = bench.bot.calls_of("set_msg_emoji_like");
        let set: Vec<(&str, bool)> =
            calls.iter().map(|call| (call["emoji_id"].as_str().expect("a face"), call["set"] == json!(true))).collect();
        let wanted: &[(&str, bool)] = if expected { &[("289", true), ("289", false), ("124", true)] } else { &[] };
        assert_eq!(set, wanted, "{flavour:?}");
        let private = bench.hear(&bench.bot.private_message(ADA, text("x"))).await;
        live.mark(&private.address, &private.platform_id, Mark::Done).await;
        assert_eq!(bench.bot.calls_of("set_msg_emoji_like").len(), wanted.len());
    }
}

#[tokio::test]
async fn napcats_crash_over_large_base64_is_avoided() {
    let bench = ready(Flavour::NapCat).await;
    bench.hear(&bench.bot.private_message(ADA, text("x"))).await;
    let large =
        channel_api::Media::store(bench.gateway.media.as_ref(), Bytes::from(vec![0; 10 * 1024 * 1024 + 1]), None)
            .await
            .expect("kept");
    let file = Attachment {
        kind: AttachmentKind::Video,
        media: Some(large),
        name: Some("film.mp4".to_owned()),
        unavailable: None,
    };
    let parts = bench.channel.render(&Reply { attachments: vec![file], ..Reply::message("") }, Level::Rich);
    bench.send(&bench.address(), &parts[0]).await.expect("sent");
    assert_eq!(bench.bot.said(), ["[file: film.mp4]"]);
}
