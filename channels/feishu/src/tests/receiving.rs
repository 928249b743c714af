//! Both ways in: what is answered, what becomes a row, what comes again.

use async_trait::async_trait;
use channel_api::{
    HttpBody, HttpRequest, InboundKind, IntakeError, MediaSource, Secret,
    contract::{self, Platform as Delivers},
};
use http::{HeaderMap, Method, StatusCode};
use serde_json::Value;

use super::*;

const WEBHOOK: &str =
    "mode = 'webhook'\nencrypt_key = 'test key'\nverification_token = 'v_test_token'\nstale_after = 'off'";

/// The configuration of a case; its keys have spaces, which a real one has not.
fn case_section(case: &Value) -> String {
    let mut section = "mode = 'webhook'\nstale_after = 'off'\n".to_owned();
    if case["encrypt_key"] != "" {
        section.push_str("encrypt_key = 'x'\n");
    }
    section + &format!("verification_token = '{}'", case["verification_token"].as_str().expect("a token"))
}

/// A channel like `adapter`, with an encryption key that may have spaces.
fn webhook(url: &str, section: &str, encrypt_key: Option<&str>) -> Arc<Feishu> {
    let text = format!("app_id = '{APP_ID}'\napp_secret = '{APP_SECRET}'\napi_url = '{url}'\n{section}");
    let mut config: Config = toml::from_str(&text.replace("'test key'", "'x'")).expect("a config");
    let network = Network::new(None, None).expect("a network");
    let mut channel = Feishu::new("main", &config, &network).expect("an adapter");
    if let Some(encrypt_key) = encrypt_key {
        config.encrypt_key = Some(Secret::from(encrypt_key));
        channel.door = Door::new(&config);
    }
    Arc::new(channel)
}

fn request(body: &[u8], headers: &[(&str, &str)]) -> HttpRequest {
    let mut all = HeaderMap::new();
    for (name, value) in headers {
        let name: http::HeaderName = name.parse().expect("a name");
        all.append(name, value.parse().expect("a value"));
    }
    HttpRequest {
        method: Method::POST,
        path: String::new(),
        query: String::new(),
        headers: all,
        body: body.to_vec().into(),
        local: false,
    }
}

/// Posts while the adapter runs; the status and the body.
async fn post(channel: &Feishu, gateway: &FakeGateway, request: HttpRequest) -> (StatusCode, Value) {
    let ctx = gateway.context();
    let response = tokio::select! {
        biased;
        ended = channel.run(ctx.clone()) => panic!("run ended: {ended:?}"),
        response = channel.http().expect("a route").handle(&ctx, request) => response,
    };
    let HttpBody::Whole { bytes, .. } = response.body else { panic!("a stream") };
    (response.status, serde_json::from_slice(&bytes).expect("JSON"))
}

fn cases() -> Vec<Value> {
    let all: Value = serde_json::from_str(include_str!("../fixtures/feishu_webhook.json")).expect("vectors");
    all["cases"].as_array().expect("cases").clone()
}

fn case_request(case: &Value) -> HttpRequest {
    let headers = case["headers"].as_object().expect("headers");
    let headers: Vec<(&str, &str)> =
        headers.iter().map(|(name, value)| (name.as_str(), value.as_str().expect("text"))).collect();
    request(case["body"].as_str().expect("a body").as_bytes(), &headers)
}

#[tokio::test]
async fn whoever_posts_rubbish_without_end_does_not_fill_the_log() {
    let (gateway, channel) = (FakeGateway::new(), webhook("http://127.0.0.1:1", WEBHOOK, Some("test key")));
    let warnings = super::warnings::Warnings::begin();
    let ctx = gateway.context();
    for _ in 0..200 {
        let response = channel.http().expect("a route").handle(&ctx, request(b"{}", &[])).await;
        assert_eq!(response.status, StatusCode::UNAUTHORIZED);
    }
    assert!((1..=10).contains(&warnings.count()), "{}", warnings.count());
}

#[tokio::test]
async fn row_07_the_official_requests_are_answered_and_forged_ones_leave_no_row() {
    let platform = Platform::start().await;
    for case in cases() {
        let name = case["name"].as_str().expect("a name");
        let key = case["encrypt_key"].as_str().filter(|key| !key.is_empty());
        let channel = webhook(&platform.url(), &case_section(&case), key);
        let gateway = FakeGateway::new();
        let (status, body) = post(&channel, &gateway, case_request(&case)).await;
        let good = case["sdk_status"] == 200;
        assert_eq!(status.as_u16(), if good { 200 } else { 401 }, "{name}: {body}");
        if name == "challenge_plain" {
            assert_eq!(body, json!({ "challenge": "ajls384kdjx98XX" }));
        }
        let rows = gateway.intake.events().len() as u64;
        assert_eq!(rows, case["handler_called"].as_u64().expect("a count"), "{name}");
    }
}

#[tokio::test]
async fn row_09_with_a_key_only_encrypted_and_signed_events_are_taken() {
    let platform = Platform::start().await;
    let section = "mode = 'webhook'\nencrypt_key = 'x'\nverification_token = 'v_test_token'\nstale_after = 'off'";
    let channel = webhook(&platform.url(), section, Some("test key"));
    let all = cases();
    let case = |name: &str| all.iter().find(|case| case["name"] == name).expect("a case");
    let plain = case("event_plain_no_key")["body"].as_str().expect("a body");
    let signature = |body: &str| {
        use sha2::Digest as _;
        let digest = sha2::Sha256::digest(format!("1n{}{body}", "test key").as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
    };
    let signed = |body: &str| {
        let signature = signature(body);
        let headers =
            [("x-lark-signature", &*signature), ("x-lark-request-timestamp", "1"), ("x-lark-request-nonce", "n")];
        request(body.as_bytes(), &headers)
    };
    let aes: Value = serde_json::from_str(include_str!("../fixtures/feishu_aes.json")).expect("vectors");
    let sealed = |name: &str| {
        let all = aes["ok"].as_array().expect("ok");
        let found = all.iter().find(|one| one["name"] == name && one["key"] == "test key").expect("a vector");
        json!({ "encrypt": found["encrypt"] }).to_string()
    };
    let mut requests = vec![
        ("a signed plain event", signed(plain), 401),
        (
            "an unsigned encrypted event",
            request(case("event_encrypted_signed")["body"].as_str().expect("b").as_bytes(), &[]),
            401,
        ),
        ("an unsigned plain event", request(plain.as_bytes(), &[]), 401),
        ("an unsigned plain challenge", case_request(case("challenge_plain")), 401),
        ("an unsigned encrypted challenge", request(sealed("url_verification").as_bytes(), &[]), 200),
        ("a signed encrypted challenge", signed(&sealed("url_verification")), 200),
        ("a signed ciphertext of no event", signed(&sealed("utf8")), 400),
        ("a signed ciphertext of nothing", signed(&sealed("empty_object")), 401),
        ("unsigned rubbish", request(b"rubbish", &[]), 401),
        ("signed rubbish", signed("rubbish"), 400),
        ("signed JSON of another kind", signed("[]"), 401),
        ("a broken ciphertext", signed(r#"{"encrypt":"AAECAwQFBgcICQoLDA0ODzVLW2Kh9zgECsaDCTw/p4o="}"#), 401),
    ];
    // Every reason has the same body.
    let mut bodies = Vec::new();
    for (what, request, expected) in requests.drain(..) {
        let gateway = FakeGateway::new();
        let (status, body) = post(&channel, &gateway, request).await;
        assert_eq!(status.as_u16(), expected, "{what}: {body}");
        assert!(gateway.intake.offered().is_empty(), "{what}");
        if expected == 401 {
            bodies.push(body);
        }
    }
    bodies.dedup();
    assert_eq!(bodies.len(), 1);
}

#[tokio::test]
async fn bad_input_25_to_32_of_posted_events() {
    let platform = Platform::start().await;
    let section = "mode = 'webhook'\nverification_token = 'v_test_token'";
    let channel = webhook(&platform.url(), section, None);
    let gateway = FakeGateway::new();
    let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
    for (body, expected) in [
        ("", 400),
        ("not JSON", 400),
        ("[1]", 400),
        ("null", 400),
        ("\"text\"", 400),
        (deep.as_str(), 400),
        ("\u{feff}{}", 400),
        ("{}", 401),
        (r#"{"header":{"token":""},"event":{}}"#, 401),
        (r#"{"header":{"token":7},"event":{}}"#, 401),
        (r#"{"header":{"token":"v_test_toke"},"event":{}}"#, 401),
        (r#"{"token":"v_test_token","type":"url_verification"}"#, 400),
        (r#"{"header":{"token":"v_test_token","event_type":"unknown"},"event":{}}"#, 200),
    ] {
        let (status, answer) = post(&channel, &gateway, request(body.as_bytes(), &[])).await;
        assert_eq!(status.as_u16(), expected, "{}: {answer}", &body[..body.len().min(60)]);
    }
    let (status, _) = post(&channel, &gateway, request(&[0xff, 0xfe, b'{'], &[])).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let (status, _) = post(&channel, &gateway, request(&vec![b' '; webhook::BODY_LIMIT + 1], &[])).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE);
    let get = HttpRequest { method: Method::GET, ..request(b"", &[]) };
    assert_eq!(post(&channel, &gateway, get).await.0, StatusCode::METHOD_NOT_ALLOWED);
    let elsewhere = HttpRequest { path: "/x".to_owned(), ..request(b"{}", &[]) };
    assert_eq!(post(&channel, &gateway, elsewhere).await.0, StatusCode::NOT_FOUND);
    assert!(gateway.intake.offered().is_empty());
    // The gateway is full, or cannot store: nothing is acknowledged, and the next try passes.
    let event = fake::text("om_1", "oc_1", "p2p", "hi", NOW).to_string();
    for refusal in [IntakeError::Busy(Duration::from_secs(7)), IntakeError::Unavailable("disk full".to_owned())] {
        gateway.intake.answer_next(Err(refusal));
        let (status, _) = post(&channel, &gateway, request(event.as_bytes(), &[])).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    }
    assert_eq!(post(&channel, &gateway, request(event.as_bytes(), &[])).await.0, StatusCode::OK);
    assert_eq!(gateway.intake.events().len(), 1);
}

/// Posted events, for the contract.
struct Posts(Platform);

#[async_trait]
impl Delivers for Posts {
    fn channel(&self) -> Arc<dyn Channel> {
        webhook(&self.0.url(), &WEBHOOK.replace("encrypt_key = 'test key'\n", ""), None)
    }

    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        let ctx = gateway.context();
        let event = fake::text(&format!("om_{n}"), "oc_1", "p2p", "hi", NOW).to_string();
        let response = tokio::select! {
            biased;
            ended = channel.run(ctx.clone()) => panic!("run ended: {ended:?}"),
            response = channel.http().expect("a route").handle(&ctx, request(event.as_bytes(), &[])) => response,
        };
        response.status.is_success()
    }
}

#[tokio::test]
async fn posted_events_keep_the_contract() {
    let posts = Posts(Platform::start().await);
    contract::check_reception(&posts).await;
    contract::check_shutdown(posts.channel().as_ref(), &FakeGateway::new()).await;
}

/// Events of the long connection, for the contract.
struct Frames(Platform);

#[async_trait]
impl Delivers for Frames {
    fn channel(&self) -> Arc<dyn Channel> {
        adapter(&self.0.url(), "")
    }

    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        let opened = self.0.look(|told| told.opened);
        let test = async {
            self.0.until_connected(opened + 1).await;
            let event = fake::text(&format!("om_{n}"), "oc_1", "p2p", "hi", NOW);
            let frame = self.0.deliver(&event, 1 + n as usize % 2);
            self.0.ack(&frame).await == 200
        };
        tokio::select! {
            biased;
            ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
            acknowledged = test => acknowledged,
        }
    }
}

#[tokio::test]
async fn the_long_connection_keeps_the_contract() {
    let frames = Frames(Platform::start().await);
    contract::check_reception(&frames).await;
    contract::check_shutdown(frames.channel().as_ref(), &FakeGateway::new()).await;
}

#[tokio::test]
async fn a_shutdown_closes_the_connection_and_ends_the_run() {
    let rig = Rig::new("").await;
    let stop = async {
        rig.platform.until_connected(1).await;
        rig.gateway.shutdown.cancel();
    };
    let (ended, ()) = tokio::join!(rig.channel.run(rig.gateway.context()), stop);
    assert!(ended.is_ok(), "{ended:?}");
}

#[tokio::test]
async fn rule_10_two_copies_at_once_become_one_row() {
    let rig = Rig::new("").await;
    rig.platform.change(|told| {
        told.resources.insert("img_1".to_owned(), ("image/png".to_owned(), b"\x89PNG picture".to_vec()));
    });
    rig.running(async {
        rig.platform.until_connected(1).await;
        rig.gateway.intake.close_gate();
        let event = fake::message("om_1", "oc_1", "p2p", "image", &json!({ "image_key": "img_1" }), NOW);
        let frames = [rig.platform.deliver(&event, 1), rig.platform.deliver(&event, 1)];
        rig.gateway.intake.until_waiting().await;
        rig.gateway.intake.open_gate();
        for frame in frames {
            assert_eq!(rig.platform.ack(&frame).await, 200);
        }
    })
    .await;
    assert_eq!(rig.gateway.intake.events().len(), 1);
    let downloads =
        rig.platform.look(|told| told.calls.iter().filter(|call| call.path.contains("/resources/")).count());
    assert_eq!(downloads, 1, "the second copy is not fetched again");
}

#[tokio::test]
async fn rule_11_an_event_that_comes_again_after_a_restart_is_the_same_row() {
    let platform = Platform::start().await;
    let gateway = FakeGateway::new();
    for n in 0..2 {
        let channel = adapter(&platform.url(), "");
        let opened = platform.look(|told| told.opened);
        let test = async {
            platform.until_connected(opened + 1).await;
            // A new event id for the same message: that is how a reconnected connection fills its gap.
            let mut event = fake::text("om_1", "oc_1", "p2p", "hi", NOW);
            event["header"]["event_id"] = json!(format!("ev-{n}"));
            let frame = platform.deliver(&event, 1);
            assert_eq!(platform.ack(&frame).await, 200);
        };
        tokio::select! {
            biased;
            ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
            () = test => {}
        }
    }
    assert_eq!((gateway.intake.offered().len(), gateway.intake.events().len()), (2, 1));
}

#[tokio::test]
async fn what_could_not_be_stored_is_answered_with_500_and_comes_again() {
    let rig = Rig::new("").await;
    rig.gateway.intake.answer_next(Err(IntakeError::Unavailable("disk full".to_owned())));
    rig.running(async {
        rig.platform.until_connected(1).await;
        rig.platform.say(&fake::text("om_1", "oc_1", "p2p", "hi", NOW));
        rig.platform.until("it is refused", |told| told.acks.iter().any(|(_, code, _)| *code == 500)).await;
        assert!(rig.gateway.intake.events().is_empty());
        rig.platform.cut();
        while rig.platform.look(|told| told.opened) < 2 {
            rig.gateway.clock.advance(Duration::from_secs(1));
            tokio::task::yield_now().await;
        }
        rig.platform.until("it is taken", |told| told.acks.iter().any(|(_, code, _)| *code == 200)).await;
    })
    .await;
    assert_eq!(rig.gateway.intake.events().len(), 1);
}

#[tokio::test]
async fn rule_12_what_is_too_old_after_a_reconnect_is_acknowledged_and_not_answered() {
    let rig = Rig::new("").await;
    rig.running(async {
        rig.platform.until_connected(1).await;
        let minute = 60 * 1_000;
        for (id, age, stale) in [("om_1", 31 * minute, true), ("om_2", 29 * minute, false), ("om_3", -minute, false)] {
            let frame = rig.platform.deliver(&fake::text(id, "oc_1", "p2p", "/reset", NOW - age), 1);
            assert_eq!(rig.platform.ack(&frame).await, 200, "{id}");
            assert_eq!(rig.gateway.intake.events().iter().all(|event| event.platform_id != id), stale, "{id}");
        }
    })
    .await;
    assert_eq!(rig.channel.stale_messages(), 1);
}

#[tokio::test]
async fn rule_16_at_all_alone_does_not_address_the_bot() {
    for (more, addressed) in [("", false), ("at_all = true", true)] {
        let rig = Rig::new(more).await;
        rig.running(async {
            rig.platform.until_connected(1).await;
            let frame = rig.platform.deliver(&fake::text("om_1", "oc_g", "group", "@_all dinner", NOW), 1);
            assert_eq!(rig.platform.ack(&frame).await, 200);
        })
        .await;
        assert_eq!(rig.gateway.intake.events()[0].mentions_us, addressed);
    }
}

#[tokio::test]
async fn while_the_bots_own_id_is_not_known_groups_wait_and_nothing_is_lost() {
    let platform = Platform::start().await;
    platform.fault("bot/v3/info", vec![fake::Fault::Html(502); 3]);
    let channel = webhook(&platform.url(), "mode = 'webhook'\nverification_token = 'v_test_token'", None);
    let gateway = FakeGateway::new();
    let event = fake::text("om_1", "oc_g", "group", "@_user_1 hi", NOW).to_string();
    let (status, _) = post(&channel, &gateway, request(event.as_bytes(), &[])).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "it comes again");
    assert!(gateway.intake.offered().is_empty());
    platform.change(|told| told.calls.clear());
    let mut status = StatusCode::SERVICE_UNAVAILABLE;
    while status == StatusCode::SERVICE_UNAVAILABLE {
        (status, _) = post(&channel, &gateway, request(event.as_bytes(), &[])).await;
    }
    assert_eq!(status, StatusCode::OK);
    assert!(gateway.intake.events()[0].mentions_us);
}

#[tokio::test]
async fn files_are_fetched_before_the_row_and_one_that_fails_costs_itself_only() {
    let rig = Rig::new("").await;
    rig.platform.change(|told| {
        told.resources.insert("img_1".to_owned(), ("image/png".to_owned(), b"\x89PNG picture".to_vec()));
        told.resources.insert("file_1".to_owned(), ("audio/ogg".to_owned(), b"OggS voice".to_vec()));
    });
    rig.running(async {
        rig.platform.until_connected(1).await;
        let post = json!({ "content": [[
            { "tag": "text", "text": "look" }, { "tag": "img", "image_key": "img_1" }, { "tag": "img", "image_key": "img_gone" },
        ]] });
        let voice = json!({ "file_key": "file_1", "duration": 1000 });
        let events = [
            fake::message("om_1", "oc_1", "p2p", "post", &post, NOW),
            fake::message("om_2", "oc_1", "p2p", "audio", &voice, NOW),
        ];
        for event in events {
            let frame = rig.platform.deliver(&event, 1);
            assert_eq!(rig.platform.ack(&frame).await, 200);
        }
    })
    .await;
    let events = rig.gateway.intake.events();
    assert_eq!(events[0].text, "look");
    let files: Vec<_> = events.iter().flat_map(|event| &event.attachments).collect();
    assert_eq!(files.len(), 3);
    assert!(matches!(files[0].media.as_ref().map(|media| &media.source), Some(MediaSource::Stored(_))));
    assert_eq!(files[0].media.as_ref().and_then(|media| media.mime.as_deref()), Some("image/png"));
    assert!(files[1].media.is_none() && files[1].unavailable.as_deref().is_some_and(|why| why.contains("234003")));
    assert_eq!((files[2].kind, files[2].media.is_some()), (channel_api::AttachmentKind::Audio, true));
    let asked = rig.platform.look(|told| {
        let asked = told.calls.iter().filter(|call| call.path.contains("/resources/"));
        asked.map(|call| call.path.clone()).collect::<Vec<_>>()
    });
    assert!(asked[0].ends_with("/messages/om_1/resources/img_1?type=image"), "{asked:?}");
    assert!(asked[2].ends_with("/messages/om_2/resources/file_1?type=file"), "{asked:?}");
}

#[tokio::test]
async fn nothing_is_asked_for_on_account_of_a_stranger_and_everything_for_an_admitted_sender() {
    let rig = Rig::new("").await;
    rig.gateway.intake.want_no_files_of("ou_eve");
    rig.platform.change(|told| {
        told.resources.insert("img_1".to_owned(), ("image/png".to_owned(), b"\x89PNG picture".to_vec()));
    });
    rig.running(async {
        rig.platform.until_connected(1).await;
        for (n, who) in ["ou_eve", fake::ADA].into_iter().enumerate() {
            let mut picture =
                fake::message(&format!("om_p{n}"), "oc_g", "group", "image", &json!({ "image_key": "img_1" }), NOW);
            picture["event"]["message"]["parent_id"] = json!("om_other");
            let merged = fake::message(&format!("om_f{n}"), "oc_1", "p2p", "merge_forward", &json!("Merged"), NOW);
            for mut event in [picture, merged] {
                event["event"]["sender"]["sender_id"]["open_id"] = json!(who);
                let frame = rig.platform.deliver(&event, 1);
                assert_eq!(rig.platform.ack(&frame).await, 200);
            }
        }
    })
    .await;
    let events = rig.gateway.intake.events();
    let file = |n: usize| &events[n].attachments[0];
    assert!(
        file(0).media.is_none() && file(0).unavailable.as_deref().is_some_and(|why| why.starts_with("not fetched"))
    );
    assert_eq!(events[1].text, "[forwarded messages that cannot be read]");
    assert!(file(2).media.is_some() && events[2].reply_to.is_some(), "{:?}", events[2]);
    assert_eq!(rig.gateway.media.files().len(), 1);
    let asked = rig.platform.look(|told| {
        let asked = told.calls.iter().filter(|call| call.path.contains("/im/v1/messages/"));
        asked.map(|call| call.path.rsplit("/messages/").next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    });
    assert_eq!(asked, ["om_other", "om_p1/resources/img_1?type=image", "om_f1"]);
}

#[tokio::test]
async fn a_redirect_of_a_download_is_not_followed() {
    let rig = Rig::new("").await;
    rig.platform.change(|told| {
        told.resources.insert("img_in".to_owned(), ("image/png".to_owned(), b"secret".to_vec()));
    });
    let inside = "/open-apis/im/v1/messages/om_1/resources/img_in";
    rig.platform.fault("/resources/", [fake::Fault::Redirect(inside)]);
    rig.running(async {
        rig.platform.until_connected(1).await;
        let picture = fake::message("om_1", "oc_1", "p2p", "image", &json!({ "image_key": "img_1" }), NOW);
        let frame = rig.platform.deliver(&picture, 1);
        assert_eq!(rig.platform.ack(&frame).await, 200);
    })
    .await;
    let file = rig.gateway.intake.events().remove(0).attachments.remove(0);
    assert!(file.media.is_none() && file.unavailable.is_some(), "{file:?}");
    assert_eq!(rig.platform.look(|told| told.calls.iter().filter(|call| call.path.contains("/img_in")).count()), 0);
    assert!(rig.gateway.media.files().is_empty());
}

#[tokio::test]
async fn messages_of_one_chat_keep_their_order_while_a_file_is_slow() {
    let rig = Rig::new("").await;
    rig.platform.change(|told| {
        told.resources.insert("img_1".to_owned(), ("image/png".to_owned(), vec![7; 4 << 20]));
    });
    rig.running(async {
        rig.platform.until_connected(1).await;
        let image = json!({ "image_key": "img_1" });
        let mut frames = vec![rig.platform.deliver(&fake::message("om_0", "oc_1", "p2p", "image", &image, NOW), 1)];
        for n in 1..20 {
            frames.push(rig.platform.deliver(&fake::text(&format!("om_{n}"), "oc_1", "p2p", "hi", NOW), 1 + n % 3));
        }
        for frame in frames {
            assert_eq!(rig.platform.ack(&frame).await, 200);
        }
    })
    .await;
    let ids: Vec<String> = rig.gateway.intake.events().into_iter().map(|event| event.platform_id).collect();
    assert_eq!(ids, (0..20).map(|n| format!("om_{n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reply_to_the_bot_addresses_it_and_others_are_quoted() {
    let rig = Rig::new("").await;
    let sent = rig.reply(&group(), &Reply::message("the **answer**")).await.remove(0).expect("sent");
    let ours = sent.platform_id.expect("an id");
    rig.platform.change(|told| {
        let item = |id: &str, sender: &str| {
            json!({
                "message_id": id, "msg_type": "text", "body": { "content": "{\"text\":\"@_user_1 said\"}" },
                "sender": { "id": sender, "sender_type": "user" },
                "mentions": [{ "key": "@_user_1", "id": "ou_x", "name": "Xi" }],
            })
        };
        told.messages.insert("om_old".to_owned(), vec![item("om_old", APP_ID)]);
        told.messages.insert("om_eve".to_owned(), vec![item("om_eve", "ou_eve")]);
        told.messages.insert(
            "om_f".to_owned(),
            vec![
                json!({ "message_id": "om_f", "msg_type": "merge_forward", "body": { "content": "x" } }),
                item("om_f1", "ou_eve"),
            ],
        );
    });
    rig.running(async {
        rig.platform.until_connected(1).await;
        for (n, parent) in [ours.as_str(), "om_old", "om_eve", "om_gone"].into_iter().enumerate() {
            let mut event = fake::text(&format!("om_{n}"), "oc_g", "group", "and?", NOW);
            event["event"]["message"]["parent_id"] = json!(parent);
            event["event"]["message"]["root_id"] = json!(parent);
            let frame = rig.platform.deliver(&event, 1);
            assert_eq!(rig.platform.ack(&frame).await, 200);
        }
        let forwarded = fake::message("om_f", "oc_1", "p2p", "merge_forward", &json!("Merged"), NOW);
        let frame = rig.platform.deliver(&forwarded, 1);
        assert_eq!(rig.platform.ack(&frame).await, 200);
    })
    .await;
    let events = rig.gateway.intake.events();
    let seen: Vec<_> = events[..4]
        .iter()
        .map(|event| {
            let reply = event.reply_to.clone().expect("an answered message");
            (reply.ours, event.mentions_us, reply.text)
        })
        .collect();
    assert_eq!(
        seen,
        [
            (true, true, Some("the answer".to_owned())),
            (true, true, Some("@Xi said".to_owned())),
            (false, false, Some("@Xi said".to_owned())),
            (false, false, None),
        ]
    );
    assert_eq!(events[4].text, "[forwarded messages]\nou_eve: @Xi said");
    assert_eq!(events[4].trust, channel_api::Trust::Relayed);
}

#[tokio::test]
async fn what_is_taken_back_and_what_is_pressed_become_events_of_their_own() {
    let rig = Rig::new("").await;
    rig.running(async {
        rig.platform.until_connected(1).await;
        let recall = |id: &str| {
            json!({
                "schema": "2.0", "header": { "event_id": "r", "event_type": "im.message.recalled_v1" },
                "event": { "message_id": id, "chat_id": "oc_1", "recall_time": NOW.to_string() },
            })
        };
        let press = json!({
            "schema": "2.0", "header": { "event_id": "p1", "event_type": "card.action.trigger" },
            "event": {
                "operator": { "open_id": "ou_eve" }, "token": "c-1", "host": "im_message",
                "action": { "tag": "button", "value": { "say": "/approve 7", "direct": false, "chat": "oc_g" } },
                "context": { "open_message_id": "om_card", "open_chat_id": "oc_g" },
            },
        });
        let events = [fake::text("om_1", "oc_1", "p2p", "hi", NOW), recall("om_1"), recall("om_unknown"), press];
        for event in events {
            let frame = rig.platform.deliver(&event, 1);
            assert_eq!(rig.platform.ack(&frame).await, 200);
        }
        rig.gateway
            .intake
            .answer_next(Ok(vec![channel_api::Accepted::Ignored(channel_api::IgnoredReason::SenderNotAllowed)]));
        let press = json!({
            "schema": "2.0", "header": { "event_id": "p2", "event_type": "card.action.trigger" },
            "event": {
                "operator": { "open_id": "ou_eve" }, "action": { "value": { "say": "/approve 7", "direct": false } },
                "context": { "open_message_id": "om_card", "open_chat_id": "oc_g" },
            },
        });
        let frame = rig.platform.deliver(&press, 1);
        assert_eq!(rig.platform.ack(&frame).await, 200);
        let shown = rig.platform.look(|told| told.acks.last().map(|(_, _, data)| data.clone()));
        assert!(shown.is_some_and(|data| data.is_string()), "who may not press is told so");
    })
    .await;
    let events = rig.gateway.intake.events();
    let kinds: Vec<_> = events.iter().map(|event| (event.kind, event.about.as_deref())).collect();
    assert_eq!(
        kinds,
        [(InboundKind::Message, None), (InboundKind::Deleted, Some("om_1")), (InboundKind::Button, Some("om_card")),]
    );
    assert_eq!((events[2].sender.id.as_str(), events[2].text.as_str()), ("ou_eve", "/approve 7"));
}

#[tokio::test]
async fn frames_that_are_none_are_left_out_and_the_connection_goes_on() {
    let rig = Rig::new("").await;
    rig.running(async {
        rig.platform.until_connected(1).await;
        rig.platform.deliver_bytes(b"\xff\xff\xff rubbish");
        rig.platform.deliver_bytes(b"");
        let broken = rig.platform.deliver(&json!("not an event"), 1);
        assert_eq!(rig.platform.ack(&broken).await, 200, "it would come again for ever");
        let frame = rig.platform.deliver(&fake::text("om_1", "oc_1", "p2p", "hi", NOW), 3);
        assert_eq!(rig.platform.ack(&frame).await, 200);
    })
    .await;
    assert_eq!(rig.platform.look(|told| told.opened), 1);
    assert_eq!(rig.gateway.intake.events().len(), 1);
}

#[tokio::test]
async fn pings_follow_the_platforms_pace_and_a_deaf_connection_is_replaced() {
    let rig = Rig::new("").await;
    rig.platform.change(|told| told.config["PingInterval"] = json!(10));
    rig.running(async {
        rig.platform.until("a ping came", |told| told.pings == 1).await;
        for pings in 2..5 {
            rig.gateway.clock.until_sleeping(1).await;
            rig.gateway.clock.advance(Duration::from_secs(11));
            rig.platform.until("the next ping came", |told| told.pings >= pings).await;
        }
        rig.platform.change(|told| told.deaf = true);
        while rig.platform.look(|told| told.opened) == 1 {
            rig.gateway.clock.advance(Duration::from_secs(5));
            tokio::task::yield_now().await;
        }
        rig.platform.change(|told| told.deaf = false);
        rig.platform.until_connected(2).await;
    })
    .await;
}

#[tokio::test]
async fn r13_a_connection_that_breaks_again_and_again_comes_back_and_hears() {
    let rig = Rig::new("").await;
    let ctx = rig.gateway.context();
    let pulse = ctx.pulse.clone();
    let test = async {
        for n in 1..=20 {
            while rig.platform.look(|told| told.opened) < n {
                rig.gateway.clock.advance(Duration::from_secs(2));
                tokio::task::yield_now().await;
            }
            rig.platform.until_connected(n).await;
            let id = format!("om_{n}");
            let frame = rig.platform.deliver(&fake::text(&id, "oc_1", "p2p", "hi", rig.channel.now().wall), 1);
            assert_eq!(rig.platform.ack(&frame).await, 200);
            assert_eq!(pulse.look().0, Link::Up);
            rig.platform.cut();
        }
    };
    tokio::select! {
        biased;
        ended = rig.channel.run(ctx) => panic!("run ended: {ended:?}"),
        () = test => {}
    }
    assert_eq!(rig.gateway.intake.events().len(), 20);
}
