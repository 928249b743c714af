//! Events by HTTP POST and calls by the HTTP API.

use super::*;

async fn bench(config: Config) -> Bench {
    let bot = fake::OneBot::new(Flavour::NapCat);
    bot.token(TOKEN);
    let at = bot.serve().await;
    let config = Config { mode: crate::Mode::Http, api_url: Some(format!("http://{at}")), ..config };
    let mut bench = Bench::with(Flavour::NapCat, &config);
    bench.bot = bot;
    bench
}

fn sign(key: &str, body: &str) -> String {
    let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.as_bytes());
    let tag = ring::hmac::sign(&key, body.as_bytes());
    format!("sha1={}", tag.as_ref().iter().map(|byte| format!("{byte:02x}")).collect::<String>())
}

fn pushed(body: &str, headers: &[(&'static str, &str)]) -> HttpRequest {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.insert(*name, value.parse().expect("a header"));
    }
    let (path, query, body) = (String::new(), String::new(), Bytes::from(body.to_owned()));
    HttpRequest { method: Method::POST, path, query, headers: map, body, local: false }
}

async fn push(bench: &Bench, request: HttpRequest) -> HttpResponse {
    bench.channel.http().expect("http").handle(&bench.ctx, request).await
}

#[tokio::test]
async fn a_pushed_event_is_answered_by_an_empty_204_after_it_is_stored_and_the_answer_goes_by_a_call() {
    let bench = bench(config()).await;
    let event = bench.bot.group_message(GROUP, ADA, at_bot("hello")).to_string();
    let answer = push(&bench, pushed(&event, &[("x-signature", &sign(TOKEN, &event)), ("x-self-id", "10001")])).await;
    assert_eq!(answer.status, StatusCode::NO_CONTENT);
    assert!(
        matches!(answer.body, channel_api::HttpBody::Whole { bytes, .. } if bytes.is_empty()),
        "no quick operation"
    );
    assert_eq!(bench.gateway.intake.events()[0].text, "hello");
    bench.send(&bench.address(), &one(&bench.channel, "hi")).await.expect("sent");
    assert_eq!(bench.bot.said(), ["hi"]);
}

#[tokio::test]
async fn row_07_a_wrong_missing_or_foreign_signature_is_refused_and_leaves_no_row() {
    let bench = bench(Config { secret: Secret::from("signing-key-0123456789"), ..config() }).await;
    let event = bench.bot.group_message(GROUP, ADA, at_bot("hello")).to_string();
    let good = sign("signing-key-0123456789", &event);
    for (request, status) in [
        (pushed(&event, &[]), 401),
        (pushed(&event, &[("x-signature", &sign(TOKEN, &event))]), 403),
        (pushed(&format!("{event} "), &[("x-signature", &good)]), 403),
        (pushed(&event, &[("x-signature", "sha1=00")]), 403),
        (pushed(&event, &[("authorization", "Bearer x")]), 403),
        (pushed("[]", &[("x-signature", &sign("signing-key-0123456789", "[]"))]), 400),
        (pushed("{", &[("x-signature", &sign("signing-key-0123456789", "{"))]), 400),
        (HttpRequest { method: Method::GET, ..pushed(&event, &[("x-signature", &good)]) }, 405),
        (HttpRequest { path: "/x".to_owned(), ..pushed(&event, &[("x-signature", &good)]) }, 404),
    ] {
        assert_eq!(push(&bench, request).await.status.as_u16(), status);
    }
    assert!(bench.gateway.intake.offered().is_empty());
    assert_eq!(push(&bench, pushed(&event, &[("x-signature", &good)])).await.status.as_u16(), 204);
    let bearing = pushed(&event, &[("authorization", "Bearer hush-hush-0123456789")]);
    assert_eq!(push(&bench, bearing).await.status.as_u16(), 204, "the token will do");
    assert_eq!(bench.gateway.intake.events().len(), 1);
}

#[tokio::test]
async fn events_that_are_refused_are_the_links_reason_until_one_is_taken() {
    let bench = bench(config()).await;
    bench.bot.until("it can be called", |_| bench.ctx.pulse.look().0 == Link::Up).await;
    let event = bench.bot.private_message(ADA, text("hello")).to_string();
    assert_eq!(push(&bench, pushed(&event, &[])).await.status.as_u16(), 401);
    let down = |bench: &Bench| matches!(bench.ctx.pulse.look().0, Link::Down(why) if why.contains("without a token"));
    // Asked again every half minute, whenever the one that asks is back at its sleep.
    let later = |bench: &Bench| bench.gateway.clock.advance(Duration::from_secs(31));
    bench
        .bot
        .until("it is the reason", |_| {
            later(&bench);
            down(&bench)
        })
        .await;
    assert_eq!(push(&bench, pushed(&event, &[("x-signature", &sign(TOKEN, &event))])).await.status.as_u16(), 204);
    assert_eq!(push(&bench, pushed(&event, &[])).await.status.as_u16(), 401);
    bench
        .bot
        .until("it is up", |_| {
            later(&bench);
            bench.ctx.pulse.look().0 == Link::Up
        })
        .await;
    assert_eq!(bench.channel.turned_away.last(), None, "a stranger changes nothing once events are taken");
}

#[tokio::test]
async fn bad_input_35_a_pushed_event_of_another_bot_is_dropped() {
    let bench = bench(config()).await;
    let event = bench.bot.private_message(ADA, text("hello")).to_string();
    let request = pushed(&event, &[("x-signature", &sign(TOKEN, &event)), ("x-self-id", "666")]);
    assert_eq!(push(&bench, request).await.status, StatusCode::NO_CONTENT);
    assert!(bench.gateway.intake.offered().is_empty());
    assert_eq!(bench.channel.queue.counted("event_of_another_bot"), 1);
}

#[tokio::test]
async fn rule_20_calls_by_http_that_broke_off_are_unknown_and_those_that_never_left_are_not() {
    let bench = bench(config()).await;
    let event = bench.bot.private_message(ADA, text("hello")).to_string();
    push(&bench, pushed(&event, &[("x-signature", &sign(TOKEN, &event))])).await;
    let (to, part) = (bench.address(), one(&bench.channel, "hi"));
    for (fault, class) in [
        (Fault::DoneButTimeout, SendClass::Unknown),
        (Fault::DoneThenGone, SendClass::Unknown),
        (Fault::Refuse(1400, "消息体无法解析"), SendClass::Refused),
    ] {
        bench.bot.fault("send_private_msg", fault);
        bench.gateway.clock.advance(Duration::from_secs(5));
        assert_eq!(SendClass::of(&bench.send(&to, &part).await), class);
    }
    let closed = Config { mode: crate::Mode::Http, api_url: Some("http://127.0.0.1:1".to_owned()), ..config() };
    let channel = OneBot::new("qq", &closed, &network()).expect("a section that works");
    channel.open(&bench.ctx);
    assert_eq!(SendClass::of(&channel.send(&to, &part, &key(1)).await), SendClass::Retry);
    let stranger = Config { access_token: Secret::from("another-token-0123456789"), ..bench.channel.config.clone() };
    let channel = OneBot::new("qq", &stranger, &network()).expect("a section that works");
    channel.open(&bench.ctx);
    assert_eq!(SendClass::of(&channel.send(&to, &part, &key(1)).await), SendClass::ChannelDown);
}

/// Deliveries by push, which alone are acknowledged.
struct Pushing;

#[async_trait]
impl Platform for Pushing {
    fn channel(&self) -> Arc<dyn Channel> {
        let config = Config { mode: crate::Mode::Http, api_url: Some("http://127.0.0.1:1".to_owned()), ..config() };
        Arc::new(OneBot::new("qq", &config, &network()).expect("a section that works"))
    }

    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        let ctx = gateway.context();
        channel.open(&ctx);
        let event = json!({
            "time": 1_795_996_800, "self_id": BOT, "post_type": "message", "message_type": "private", "sub_type": "friend",
            "message_id": n, "user_id": ADA, "message": text("hello"),
        });
        let event = event.to_string();
        let request = pushed(&event, &[("x-signature", &sign(TOKEN, &event))]);
        tokio::select! {
            answer = channel.http().expect("http").handle(&ctx, request) => answer.status.is_success(),
            ended = channel.run(ctx.clone()) => panic!("run ended: {ended:?}"),
        }
    }
}

#[tokio::test]
async fn reception_keeps_the_contract() {
    contract::check_reception(&Pushing).await;
}
