//! Who connects, how connections live and end, and that the newest of a bot is the one that counts.

use super::*;

fn heartbeat(bot: &fake::OneBot, interval: u64) -> Value {
    bot.event(json!({
        "post_type": "meta_event", "meta_event_type": "heartbeat", "interval": interval,
        "status": { "online": true, "good": true },
    }))
}

async fn next(socket: &mut Socket) -> Option<Frame> {
    tokio::time::timeout(Duration::from_secs(20), socket.incoming.recv()).await.expect("a frame in time")
}

#[test]
fn rule_22_the_upgrade_is_admitted_at_once_with_token_and_bearer() {
    let channel = OneBot::new("qq", &config(), &network()).expect("a section that works");
    let endpoint = channel.socket().expect("reverse");
    let status = |request: &HttpRequest| endpoint.admit(request).map_err(|answer| answer.status.as_u16());
    for scheme in ["Bearer", "bearer", "Token"] {
        let mut request = upgrade("/ws", "Universal", Some("10001"));
        request.headers.insert("authorization", format!("{scheme} {TOKEN}").parse().expect("a header"));
        assert_eq!(status(&request), Ok(()), "{scheme}");
    }
    let mut request = upgrade("", "Universal", Some("10001"));
    request.headers.remove("authorization");
    assert_eq!(status(&request), Err(401));
    request.query = format!("access_token={TOKEN}");
    assert_eq!(status(&request), Ok(()));
    request.query = "access_token=x".to_owned();
    assert_eq!(status(&request), Err(403));
    assert_eq!(status(&upgrade("/admin", "Universal", None)), Err(404));
    let pinned = Config { self_id: Some(crate::Number("10001".to_owned())), ..config() };
    let channel = OneBot::new("qq", &pinned, &network()).expect("a section that works");
    let admitted = |bot| channel.socket().expect("reverse").admit(&upgrade("", "Universal", Some(bot))).is_ok();
    assert!(admitted("10001") && !admitted("10002"));
}

#[tokio::test]
async fn a_client_that_is_turned_away_is_the_links_reason_until_one_is_let_in() {
    let mut bench = Bench::new(Flavour::NapCat);
    let reason = |bench: &Bench| match bench.ctx.pulse.look().0 {
        Link::Down(why) => why,
        link => format!("{link:?}"),
    };
    bench.bot.until("it waits", |_| reason(&bench).contains("no OneBot client")).await;
    let admit = |bench: &Bench, request: &HttpRequest| bench.channel.socket().expect("reverse").admit(request).is_ok();
    let mut request = upgrade("", "Universal", Some("10001"));
    request.headers.remove("authorization");
    assert!(!admit(&bench, &request));
    let said = reason(&bench);
    assert!(said.contains("without a token (`access_token`) at ") && said.contains(" UTC"), "{said}");
    request.query = "access_token=x".to_owned();
    assert!(!admit(&bench, &request));
    let said = reason(&bench);
    assert!(said.contains("another token") && !said.contains(TOKEN), "{said}");
    bench.connect();
    bench.up().await;
    assert!(!admit(&bench, &request));
    assert_eq!(bench.ctx.pulse.look().0, Link::Up, "a stranger changes nothing for those that are connected");
}

#[tokio::test]
async fn an_empty_token_lets_in_programs_of_this_machine_only() {
    let channel = OneBot::new("qq", &Config::default(), &network()).expect("a section that works");
    let mut request = upgrade("", "Universal", None);
    assert!(channel.socket().expect("reverse").admit(&request).is_err());
    request.local = true;
    assert!(channel.socket().expect("reverse").admit(&request).is_ok());
}

#[tokio::test]
async fn rule_21_calls_that_wait_fail_at_disconnect_and_a_lost_heartbeat_closes() {
    let mut bench = Bench::new(Flavour::NapCat);
    bench.connect();
    bench.up().await;
    bench.hear(&bench.bot.private_message(ADA, text("hello"))).await;
    let (to, part) = (bench.address(), one(&bench.channel, "an answer"));
    bench.bot.fault("send_private_msg", Fault::DoneThenGone);
    let sent = bench.send(&to, &part).await;
    assert_eq!(SendClass::of(&sent), SendClass::Unknown, "bytes had left: {sent:?}");
    bench.bot.until("it is gone", |_| bench.ctx.pulse.look().0 != Link::Up).await;
    bench.gateway.clock.advance(Duration::from_secs(5));
    let sent = bench.send(&to, &part).await;
    assert_eq!(SendClass::of(&sent), SendClass::Retry, "nothing was sent: {sent:?}");

    let mut socket = bench.raw("", "Universal", Some("10001"));
    bench.up().await;
    bench.gateway.clock.until_sleeping(1).await;
    bench.gateway.clock.advance(Duration::from_secs(3_600));
    assert_eq!(next(&mut socket).await, Some(Frame::Ping(Bytes::from_static(b"crawfish"))), "no heartbeat, no verdict");
    socket.outgoing.send(Frame::Text(heartbeat(&bench.bot, 5_000).to_string())).await.expect("it listens");
    socket.outgoing.send(Frame::Text("{}".to_owned())).await.expect("it listens");
    bench.counted("answer_to_nothing", 1).await;
    bench.gateway.clock.until_sleeping(1).await;
    bench.gateway.clock.advance(Duration::from_secs(14));
    assert!(socket.incoming.recv().now_or_never().is_none(), "twice the interval and five seconds are not over");
    bench.gateway.clock.advance(Duration::from_secs(1));
    assert!(matches!(next(&mut socket).await, Some(Frame::Close(1001, _))));
    assert_eq!(bench.ctx.pulse.look().0, Link::Down("the OneBot side fell silent".to_owned()));
}

#[tokio::test]
async fn pings_that_were_answered_once_and_are_no_more_end_a_connection_without_heartbeat() {
    let mut bench = Bench::new(Flavour::GoCqhttp);
    let mut socket = bench.raw("", "Universal", Some("10001"));
    bench.up().await;
    for n in 0..4 {
        bench.gateway.clock.until_sleeping(1).await;
        bench.gateway.clock.advance(Duration::from_secs(30));
        assert!(matches!(next(&mut socket).await, Some(Frame::Ping(_))), "{n}");
        if n == 0 {
            socket.outgoing.send(Frame::Pong(Bytes::new())).await.expect("it listens");
            bench.bot.until("the pong is read", |_| socket.outgoing.capacity() == socket.outgoing.max_capacity()).await;
            tokio::task::yield_now().await;
        }
    }
    bench.gateway.clock.until_sleeping(1).await;
    bench.gateway.clock.advance(Duration::from_secs(30));
    assert!(matches!(next(&mut socket).await, Some(Frame::Close(1001, _))));
}

#[tokio::test]
async fn bad_input_40_the_newest_socket_of_a_bot_counts_and_an_old_one_that_closes_late_takes_nothing_away() {
    let mut bench = Bench::new(Flavour::NapCat);
    let mut old = bench.raw("", "Universal", Some("10001"));
    bench.up().await;
    let new = bench.raw("", "Universal", Some("10001"));
    assert_eq!(next(&mut old).await, Some(Frame::Close(1000, "replaced by a newer connection".to_owned())));
    drop(old);
    assert_eq!((bench.channel.links.places(), bench.ctx.pulse.look().0), (2, Link::Up));
    // The other order: the old one is long gone before the new one comes.
    new.outgoing.send(Frame::Close(1000, String::new())).await.expect("it listens");
    bench.bot.until("it is gone", |_| bench.channel.links.places() == 0).await;
    let _newest = bench.raw("", "Universal", Some("10001"));
    bench.up().await;
    assert_eq!(bench.channel.links.places(), 2);
}

#[tokio::test]
async fn rule_2_five_reconnects_leave_one_connection_and_one_run() {
    let mut bench = Bench::new(Flavour::NapCat);
    for _ in 0..5 {
        bench.connect();
    }
    bench.bot.until("one is left", |bot| bot.connections() == (1, 5)).await;
    bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("once"))).await;
    assert_eq!(bench.gateway.intake.offered().len(), 1);
}

#[tokio::test]
async fn calls_and_events_may_have_a_connection_each_in_any_order() {
    for roles in [["API", "Event"], ["Event", "API"]] {
        let mut bench = Bench::new(Flavour::GoCqhttp);
        let mut api = None;
        let mut events = None;
        for role in roles {
            let socket = bench.raw(if role == "API" { "/api" } else { "/event" }, role, Some("10001"));
            if role == "API" { api = Some(socket) } else { events = Some(socket) }
        }
        bench.bot.until("both stand", |_| bench.channel.links.places() == 2).await;
        let (mut api, events) = (api.expect("api"), events.expect("events"));
        let event = bench.bot.private_message(ADA, text("hello"));
        events.outgoing.send(Frame::Text(event.to_string())).await.expect("it listens");
        bench.gateway.intake.until_stored(1).await;
        let (to, part) = (bench.address(), one(&bench.channel, "hi"));
        let answer = async {
            let Some(Frame::Text(call)) = next(&mut api).await else { panic!("no call") };
            let call: Value = serde_json::from_str(&call).expect("JSON");
            assert_eq!(call["action"], "send_private_msg");
            let answer = json!({ "status": "ok", "retcode": 0, "data": { "message_id": 5 }, "echo": call["echo"] });
            api.outgoing.send(Frame::Text(answer.to_string())).await.expect("it listens");
        };
        let (sent, ()) = tokio::join!(bench.send(&to, &part), answer);
        assert_eq!(sent.expect("sent").platform_id.as_deref(), Some("private:99:5"));
    }
}

#[tokio::test]
async fn a_bot_whose_head_says_nothing_is_known_by_its_first_event() {
    let mut bench = Bench::new(Flavour::Lagrange);
    let socket = bench.raw("", "", None);
    let event = bench.bot.group_message(GROUP, ADA, at_bot("who am I"));
    socket.outgoing.send(Frame::Text(event.to_string())).await.expect("it listens");
    bench.gateway.intake.until_stored(1).await;
    assert_eq!(bench.channel.links.bots(), ["10001"]);
}

#[tokio::test]
async fn a_bot_that_is_not_the_accounts_is_closed_and_the_address_without_a_token_is_named() {
    let pinned = Config { self_id: Some(crate::Number("10002".to_owned())), ..config() };
    let mut bench = Bench::with(Flavour::NapCat, &pinned);
    let mut socket = bench.raw("", "", None);
    let event = bench.bot.private_message(ADA, text("hello"));
    socket.outgoing.send(Frame::Text(event.to_string())).await.expect("it listens");
    assert!(matches!(next(&mut socket).await, Some(Frame::Close(1008, _))));
    assert!(bench.channel.links.bots().is_empty() && bench.gateway.intake.offered().is_empty());
    let unguarded = |config: &Config| OneBot::new("qq", config, &network()).expect("a section that works").unguarded();
    assert_eq!(unguarded(&config()), None);
    assert_eq!(unguarded(&Config::default()), Some("access_token"));
    let forward = Config { mode: crate::Mode::Forward, url: Some("ws://127.0.0.1:1".to_owned()), ..Config::default() };
    assert_eq!(unguarded(&forward), None, "nobody can reach it");
}

#[tokio::test]
async fn bad_input_35_events_of_another_bot_are_dropped() {
    let mut bench = Bench::new(Flavour::NapCat);
    bench.connect();
    bench.up().await;
    let stranger = fake::OneBot::of(Flavour::NapCat, 666);
    bench.bot.bring(&stranger.private_message(ADA, text("hello")));
    bench.counted("event_of_another_bot", 1).await;
    bench.hear(&bench.bot.private_message(ADA, text("hello"))).await;
    assert_eq!(bench.gateway.intake.offered().len(), 1);
}

#[tokio::test]
async fn bad_input_41_long_messages_binary_frames_and_floods_of_pings_close() {
    let mut bench = Bench::new(Flavour::NapCat);
    const { assert!(MESSAGE_LIMIT < 16_000_000) };
    let long = format!("{{\"post_type\":\"{}\"}}", "x".repeat(16_000_000));
    for (frame, times, code) in [
        (Frame::Text(long), 1, 1009),
        (Frame::Binary(Bytes::from_static(b"\0")), 1, 1003),
        (Frame::Ping(Bytes::new()), 101, 1008),
    ] {
        let mut socket = bench.raw("", "Universal", Some("10001"));
        for _ in 0..times {
            socket.outgoing.send(frame.clone()).await.expect("it listens");
        }
        match next(&mut socket).await {
            Some(Frame::Close(found, _)) => assert_eq!(found, code),
            other => panic!("no close with {code}: {other:?}"),
        }
        assert_eq!(bench.channel.links.places(), 0);
    }
}

#[tokio::test]
async fn frames_that_say_nothing_cost_only_themselves() {
    let mut bench = Bench::new(Flavour::NapCat);
    let socket = bench.raw("", "Universal", Some("10001"));
    for frame in ["", "null", "[]", "5", "{", "{\"post_type\":5}", "{\"echo\":[]}", &"[".repeat(5_000)] {
        socket.outgoing.send(Frame::Text(frame.to_owned())).await.expect("it listens");
    }
    let event = bench.bot.private_message(ADA, text("after all that"));
    socket.outgoing.send(Frame::Text(event.to_string())).await.expect("it listens");
    bench.gateway.intake.until_stored(1).await;
    assert_eq!(bench.gateway.intake.events()[0].text, "after all that");
}

#[tokio::test]
async fn r13_a_storm_of_reconnects_never_leaves_a_bot_that_hears_and_cannot_speak() {
    let mut bench = Bench::new(Flavour::NapCat);
    for n in 0..60_usize {
        match n % 3 {
            // Cut.
            0 => bench.bot.hang_up(1006),
            // Half-open: the old one stays and says nothing.
            1 => bench.bot.deaf(true),
            _ => {}
        }
        bench.bot.deaf(false);
        bench.connect();
        bench
            .bot
            .until("the new one counts", |bot| bot.connections() == (1, n + 1) && bench.channel.links.places() == 2)
            .await;
        let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot(&format!("question {n}")))).await;
        assert_eq!(heard.text, format!("question {n}"));
        let part = one(&bench.channel, &format!("answer {n}"));
        // The pace of a chat is not what is tried here.
        bench.gateway.clock.advance(Duration::from_secs(5));
        bench.send(&heard.address, &part).await.expect("it hears and speaks");
    }
    let said = bench.bot.said();
    assert_eq!(said.len(), 60);
    assert!(said.iter().enumerate().all(|(n, text)| *text == format!("answer {n}")), "in order, once: {said:?}");
}

#[tokio::test]
async fn a_shutdown_ends_run_in_every_mode() {
    let bot = fake::OneBot::new(Flavour::NapCat);
    let at = bot.serve().await;
    let forward = Config { mode: crate::Mode::Forward, url: Some(format!("ws://{at}/")), ..config() };
    let http = Config { mode: crate::Mode::Http, api_url: Some(format!("http://{at}")), ..config() };
    for config in [config(), forward, http] {
        let channel = OneBot::new("qq", &config, &network()).expect("a section that works");
        contract::check_shutdown(&channel, &FakeGateway::new()).await;
    }
}

#[tokio::test]
async fn forward_connects_again_after_a_pause_and_goes_on() {
    let bot = fake::OneBot::new(Flavour::NapCat);
    bot.token(TOKEN);
    let at = bot.serve().await;
    let config = Config { mode: crate::Mode::Forward, url: Some(format!("ws://{at}")), ..config() };
    let mut bench = Bench::with(Flavour::NapCat, &config);
    bench.bot = bot;
    bench.up().await;
    bench.hear(&bench.bot.private_message(ADA, text("one"))).await;
    bench.send(&bench.address(), &one(&bench.channel, "first")).await.expect("sent");
    bench.bot.hang_up(1006);
    bench.bot.until("it is down", |_| matches!(bench.ctx.pulse.look().0, Link::Down(_))).await;
    bench.gateway.clock.until_sleeping(1).await;
    bench.gateway.clock.advance(Duration::from_secs(5));
    bench.up().await;
    bench.bot.until("it is connected", |bot| bot.connections().0 == 1).await;
    bench.hear(&bench.bot.private_message(ADA, text("two"))).await;
    bench.send(&bench.address(), &one(&bench.channel, "second")).await.expect("sent");
    assert_eq!(bench.bot.said(), ["first", "second"]);
}

#[tokio::test]
async fn forward_with_a_wrong_token_stops_and_names_the_key() {
    for flavour in [Flavour::NapCat, Flavour::LlOneBot, Flavour::GoCqhttp] {
        let bot = fake::OneBot::new(flavour);
        bot.token("another");
        let at = bot.serve().await;
        let config = Config { mode: crate::Mode::Forward, url: Some(format!("ws://{at}/")), ..config() };
        let channel = OneBot::new("qq", &config, &network()).expect("a section that works");
        let gateway = FakeGateway::new();
        channel.open(&gateway.context());
        match channel.run(gateway.context()).await {
            Err(ChannelError::Stop(words)) => assert!(words.contains("`access_token`"), "{words}"),
            other => panic!("{flavour:?}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn a_look_at_the_account_says_what_is_there_and_what_to_enter() {
    let channel = OneBot::new("qq", &config(), &network()).expect("a section that works");
    let found = channel.probe().await;
    let fix = found
        .iter()
        .find(|finding| finding.name == "connection")
        .and_then(|finding| finding.fix.clone())
        .expect("a fix");
    for words in [&fix.en, &fix.zh] {
        assert!(words.contains("/channels/onebot/qq") && words.contains("WebUI"), "{words}");
    }
    let bot = fake::OneBot::new(Flavour::NapCat);
    bot.token(TOKEN);
    let at = bot.serve().await;
    let forward = Config { mode: crate::Mode::Forward, url: Some(format!("ws://{at}/")), ..config() };
    let http = Config { mode: crate::Mode::Http, api_url: Some(format!("http://{at}")), ..config() };
    for config in [forward, http] {
        let look = async |config: &Config| {
            let channel = OneBot::new("qq", config, &network()).expect("a section that works");
            let found = channel.probe().await;
            found.iter().map(|finding| (finding.name.clone(), finding.said.en.clone())).collect::<Vec<_>>()
        };
        let found = look(&config).await;
        let said = |name: &str| found.iter().find(|(found, _)| found == name).map(|(_, said)| said.as_str());
        assert_eq!(said("account"), Some("QQ 10001 小龙虾"), "{found:?}");
        assert_eq!(said("program"), Some("NapCat.Onebot 1.0.0"), "{found:?}");
        let wrong = Config { access_token: Secret::from("another-token-0123456789"), ..config };
        let found = look(&wrong).await;
        assert!(found.iter().any(|(_, said)| said.contains("refuses")), "{found:?}");
    }
}
