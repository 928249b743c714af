//! The whole adapter against a fake of Discord: real HTTP, a real gateway with sessions, real proxies.

use std::{sync::Arc, time::Duration};

use channel_api::{
    Attachment, AttachmentKind, Button, Channel, ChannelError, ConversationKind, FindingState, Inbound, InboundKind,
    IntakeError, Level, LivePace, Mark, MediaRef, MediaSource, PartId, Receipt, Reconciled, Reply, SendError, SendKey,
    contract::{self, FakeGateway, SendClass},
};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::fake::{ADA, BOB, BOT_ID, BOT_ROLE, DM, Fault, GENERAL, GUILD, THREAD};
use crate::proxy::Proxy;

/// The time of [`FakeGateway`].
const NOW: i64 = 1_795_996_800_000;

fn open(fake: &fake::Discord, gateway: &FakeGateway) -> Arc<Discord> {
    with(fake, gateway, "", None)
}

fn with(fake: &fake::Discord, gateway: &FakeGateway, more: &str, proxy: Option<&str>) -> Arc<Discord> {
    let config: Config = toml::from_str(&format!("{}{more}", fake.section())).expect("a section");
    let network = Network::new(proxy, None).expect("a network");
    let channel = Arc::new(Discord::new("main", &config, &network).expect("a channel"));
    channel.open(&gateway.context());
    channel
}

struct Run(Option<JoinHandle<Result<(), ChannelError>>>, tokio_util::sync::CancellationToken);

impl Run {
    #[allow(clippy::disallowed_methods, reason = "the gateway's supervisor does it in a task too")]
    fn start(channel: &Arc<Discord>, gateway: &FakeGateway) -> Self {
        let mut ctx = gateway.context();
        ctx.shutdown = gateway.shutdown.child_token();
        let stop = ctx.shutdown.clone();
        let channel = channel.clone();
        Self(Some(tokio::spawn(async move { channel.run(ctx).await })), stop)
    }

    async fn ended(mut self) -> Result<(), ChannelError> {
        let task = self.0.take().expect("not asked twice");
        tokio::time::timeout(Duration::from_secs(30), task).await.expect("run goes on").expect("no panic")
    }

    async fn stop(self) {
        self.1.cancel();
        self.ended().await.expect("a shutdown is no failure");
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.1.cancel();
    }
}

/// A connected bot.
async fn connected(more: &str) -> (fake::Discord, FakeGateway, Arc<Discord>, Run) {
    let fake = fake::Discord::start(NOW).await;
    let gateway = FakeGateway::new();
    let channel = with(&fake, &gateway, more, None);
    let run = Run::start(&channel, &gateway);
    fake.until_connected(1).await;
    (fake, gateway, channel, run)
}

fn key(part: &str) -> SendKey {
    SendKey {
        part: PartId::from(part),
        seq: 1,
        last: true,
        in_reply_to: None,
        created_at: NOW,
        resend: false,
        replaces: None,
    }
}

async fn say(channel: &Discord, to: &Address, text: &str) -> Result<Receipt, SendError> {
    let parts = channel.render(&Reply::message(text), Level::Rich);
    assert_eq!(parts.len(), 1);
    channel.send(to, &parts[0], &SendKey { part: PartId::generate(), ..key("x") }).await
}

fn to(channel: &str) -> Address {
    Target { channel: channel.into(), reply: None, command: None }.address(&ChannelId::new("discord", "main"))
}

async fn stored(gateway: &FakeGateway, count: usize) -> Vec<Inbound> {
    gateway.intake.until_stored(count).await;
    gateway.intake.events()
}

/// Waits, a turn of the runtime at a time, until something is so.
async fn until(what: &str, so: impl Fn() -> bool) {
    let waiting = async {
        while !so() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    assert!(tokio::time::timeout(Duration::from_secs(30), waiting).await.is_ok(), "waited in vain until {what}");
}

struct Contract(fake::Discord);

#[async_trait]
impl contract::Platform for Contract {
    fn channel(&self) -> Arc<dyn Channel> {
        // Without back-fill: it would be a delivery of its own.
        let config: Config = toml::from_str(&format!("{}backfill_minutes = 0", self.0.section())).expect("a section");
        Arc::new(Discord::new("main", &config, &Network::new(None, None).expect("a network")).expect("a channel"))
    }

    /// Discord takes no acknowledgement: an event is taken when the adapter goes on to the next one, and held until then.
    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        let mut ctx = gateway.context();
        ctx.shutdown = gateway.shutdown.child_token();
        let shutdown = ctx.shutdown.clone();
        channel.open(&ctx);
        let sessions = self.0.frames(2).len();
        let (offered, refused) = (gateway.intake.batches().len(), gateway.intake.refused());
        let run = channel.run(ctx);
        tokio::pin!(run);
        let deliver = async {
            self.0.until_connected(sessions + 1).await;
            let id = target::id_at(NOW) + u64::from(n);
            self.0.say(GENERAL, ADA, &format!("<@{BOT_ID}> hello {n}"), json!({"id": id.to_string()}));
            until("the event was offered", || gateway.intake.batches().len() > offered).await;
            let refused = gateway.intake.refused() > refused;
            if refused {
                // Held: it waits for its next try. An adapter that went on instead would never sleep here.
                gateway.clock.until_sleeping(1).await;
            }
            !refused
        };
        let acknowledged = tokio::select! {
            ended = &mut run => panic!("run ended: {ended:?}"),
            acknowledged = deliver => acknowledged,
        };
        shutdown.cancel();
        run.await.expect("a shutdown is no failure");
        acknowledged
    }
}

#[tokio::test]
async fn the_contract_of_reception() {
    contract::check_reception(&Contract(fake::Discord::start(NOW).await)).await;
}

#[tokio::test]
async fn the_contract_of_shutdown() {
    let fake = fake::Discord::start(NOW).await;
    let gateway = FakeGateway::new();
    contract::check_shutdown(open(&fake, &gateway).as_ref(), &gateway).await;
}

#[tokio::test]
async fn the_contract_of_rendering() {
    let fake = fake::Discord::start(NOW).await;
    contract::check_render(open(&fake, &FakeGateway::new()).as_ref());
}

#[tokio::test]
async fn a_question_in_a_server_is_answered_as_a_reply_that_notifies_nobody() {
    let (fake, gateway, channel, run) = connected("").await;
    let id = fake.say(GENERAL, ADA, &format!("<@{BOT_ID}> what is <#{GENERAL}>?"), json!({}));
    let event = stored(&gateway, 1).await.remove(0);
    assert_eq!(
        (event.platform_id.as_str(), event.text.as_str(), event.mentions_us, event.kind),
        (id.as_str(), "what is #general?", true, InboundKind::Message)
    );
    assert_eq!((event.conversation.kind, event.conversation.id.as_str()), (ConversationKind::Group, GENERAL));
    assert_eq!((event.sender.id.as_str(), event.sender.name.as_deref()), (ADA, Some("Ada")));
    channel.typing(&event.address).await;
    let receipt = say(&channel, &event.address, "@everyone it is **this** <@4000000000000000001>").await.expect("sent");
    let written = fake.written(GENERAL);
    assert_eq!(receipt.platform_id.as_deref(), written[0]["id"].as_str());
    assert_eq!(
        written[0]["message_reference"],
        json!({
            "message_id": id, "channel_id": GENERAL, "fail_if_not_exists": false
        })
    );
    assert_eq!(fake.calls_of(&format!("POST /channels/{GENERAL}/typing")).len(), 1);
    assert_eq!(fake.violations(), Vec::<String>::new());
    // Unaddressed talk is told as such, threads are threads, direct messages need no mention.
    fake.say(THREAD, BOB, "nobody in particular", json!({}));
    fake.say(DM, ADA, "hello", json!({}));
    let events = stored(&gateway, 3).await;
    let thread = &events[1].conversation;
    assert_eq!((thread.id.as_str(), thread.thread.as_deref(), events[1].mentions_us), (GENERAL, Some(THREAD), false));
    assert_eq!(events[1].address.lane, THREAD);
    assert_eq!((events[2].conversation.kind, events[2].conversation.id.as_str()), (ConversationKind::Direct, ADA));
    assert!(events[2].mentions_us);
    say(&channel, &events[2].address, "hi").await.expect("sent");
    assert!(fake.written(DM)[0]["message_reference"].is_null(), "nobody else writes in a direct chat");
    run.stop().await;
}

#[tokio::test]
async fn mentions_are_ids_and_replies_are_to_us_by_id() {
    let (fake, gateway, _channel, run) = connected("").await;
    let ours = json!({"id": "77", "channel_id": GENERAL, "author": {"id": BOT_ID}, "content": "earlier words"});
    let reference = json!({"type": 0, "message_id": "77", "channel_id": GENERAL});
    fake.say(
        GENERAL,
        ADA,
        "and then?",
        json!({"type": 19, "message_reference": reference, "referenced_message": ours}),
    );
    fake.say(GENERAL, ADA, &format!("<@&{BOT_ROLE}> hey"), json!({"mention_roles": [BOT_ROLE]}));
    fake.say(GENERAL, ADA, "@crawfish @everyone <@999>", json!({"mention_everyone": true}));
    fake.say(GENERAL, BOT_ID, "our own words", json!({}));
    fake.say(GENERAL, BOB, "another bot", json!({"author": {"id": BOB, "username": "b", "bot": true}}));
    fake.say(GENERAL, BOB, "a webhook", json!({"webhook_id": "5"}));
    fake.say(GENERAL, BOB, "joined", json!({"type": 7}));
    fake.say(
        GENERAL,
        BOB,
        "",
        json!({"message_reference": {"type": 1, "message_id": "78"},
        "message_snapshots": [{"message": {"content": "words of another", "attachments": []}}]}),
    );
    let events = stored(&gateway, 4).await;
    let reply = events[0].reply_to.clone().expect("a reply");
    assert!(events[0].mentions_us && reply.ours);
    assert_eq!((reply.id.as_deref(), reply.text.as_deref()), (Some("77"), Some("earlier words")));
    assert_eq!((events[1].mentions_us, events[1].text.as_str()), (true, "hey"));
    assert_eq!((events[2].mentions_us, events[2].text.as_str()), (false, "@crawfish @everyone @999"));
    assert_eq!((events[3].text.as_str(), events[3].trust), ("words of another", channel_api::Trust::Relayed));
    run.stop().await;
}

#[tokio::test]
async fn order_is_kept_over_a_burst() {
    let (fake, gateway, _channel, run) = connected("").await;
    let ids: Vec<String> = (0..1_000).map(|n| fake.say(DM, ADA, &format!("n {n}"), json!({}))).collect();
    let events = stored(&gateway, 1_000).await;
    assert_eq!(events.iter().map(|event| event.platform_id.clone()).collect::<Vec<_>>(), ids);
    run.stop().await;
}

#[tokio::test]
async fn a_closed_connection_is_resumed_where_discord_says_and_nothing_is_lost_or_asked_twice() {
    let (fake, gateway, channel, run) = connected("").await;
    fake.say(DM, ADA, "one", json!({}));
    stored(&gateway, 1).await;
    fake.close(4000);
    fake.until("the session is resumed", |fake| fake.frames(6).len() == 1).await;
    fake.say(DM, ADA, "two", json!({}));
    stored(&gateway, 2).await;
    assert_eq!(fake.opened()[1..], ["/resume"]);
    // A connection that breaks without a word.
    fake.cut();
    until_slept(&gateway, &fake, 2).await;
    fake.say(DM, ADA, "three", json!({}));
    let events = stored(&gateway, 3).await;
    assert_eq!(events.iter().map(|event| event.text.as_str()).collect::<Vec<_>>(), ["one", "two", "three"]);
    assert_eq!(gateway.intake.offered().len(), 3, "what was stored is not told again");
    assert_eq!(fake.frames(2).len(), 1);
    assert_eq!(fake.calls_of("/messages?after=").len(), 0, "a resumed session has no gap");
    say(&channel, &to(DM), "and it sends").await.expect("sent");
    run.stop().await;
}

#[tokio::test]
async fn r13_a_storm_of_cuts_ends_in_a_bot_that_hears_and_speaks() {
    let (fake, gateway, channel, run) = connected("").await;
    for n in 0..20 {
        fake.say(DM, ADA, &format!("before {n}"), json!({}));
        match n % 3 {
            0 => fake.cut(),
            1 => fake.close(4000),
            _ => fake.raw(r#"{"op":7,"d":null}"#),
        }
        let resumed = n + 1;
        until_slept(&gateway, &fake, resumed).await;
    }
    fake.say(DM, ADA, "last", json!({}));
    let events = stored(&gateway, 21).await;
    assert_eq!(events.last().map(|event| event.text.as_str()), Some("last"));
    assert_eq!(gateway.intake.offered().len(), 21, "each was told once");
    say(&channel, &events[20].address, "heard").await.expect("sent");
    assert_eq!(fake.texts(DM), ["heard"]);
    run.stop().await;
}

/// The pauses between connections pass.
async fn until_slept(gateway: &FakeGateway, fake: &fake::Discord, resumed: usize) {
    until("the session is resumed", || {
        gateway.clock.advance(Duration::from_secs(1));
        fake.frames(6).len() >= resumed
    })
    .await;
}

#[tokio::test]
async fn a_restart_fetches_what_was_missed_in_order_and_once() {
    let fake = fake::Discord::start(NOW).await;
    let gateway = FakeGateway::new();
    let channel = open(&fake, &gateway);
    let run = Run::start(&channel, &gateway);
    fake.until_connected(1).await;
    fake.say(GENERAL, ADA, &format!("<@{BOT_ID}> one"), json!({}));
    fake.say(DM, BOB, "two", json!({}));
    let events = stored(&gateway, 2).await;
    // What the gateway commits with an event.
    for batch in gateway.intake.batches() {
        let cursor = batch.cursor.expect("an addressed message moves its channel's position");
        channel_api::ChannelKv::set(gateway.kv.as_ref(), &cursor.key, &cursor.value).await.expect("kept");
    }
    assert_eq!(events.len(), 2);
    run.stop().await;
    fake.say_unheard(GENERAL, ADA, &format!("<@{BOT_ID}> three"), json!({}));
    fake.say_unheard(GENERAL, BOT_ID, "our own", json!({}));
    fake.say_unheard(GENERAL, ADA, "four, to nobody", json!({}));
    fake.say_unheard(DM, BOB, "five", json!({}));
    let old = target::id_at(NOW - 11 * 60 * 1_000).to_string();
    fake.say_unheard(GENERAL, ADA, "too old", json!({"id": old}));
    let channel = open(&fake, &gateway);
    let run = Run::start(&channel, &gateway);
    let events = stored(&gateway, 5).await;
    let texts: Vec<&str> = events[2..].iter().map(|event| event.text.as_str()).collect();
    assert_eq!(texts, ["five", "three", "four, to nobody"], "each channel in its order, the newest channel first");
    let three = events.iter().find(|event| event.text == "three").expect("it");
    assert_eq!((three.conversation.kind, three.conversation.id.as_str(), three.mentions_us), {
        (ConversationKind::Group, GENERAL, true)
    });
    // A session that cannot be resumed has a gap too, and knows what it took. serenity waits 5 s before a new session.
    fake.say(DM, BOB, "six", json!({}));
    stored(&gateway, 6).await;
    fake.forget_sessions();
    fake.say_unheard(DM, BOB, "seven", json!({}));
    fake.cut();
    // The third connection since one lasted waits a second.
    gateway.clock.until_sleeping(1).await;
    gateway.clock.advance(Duration::from_secs(1));
    gateway.intake.until_stored(7).await;
    let events = gateway.intake.events();
    assert_eq!(events[6].text, "seven");
    assert_eq!(gateway.intake.offered().len(), 7, "nothing was told twice");
    run.stop().await;
}

#[tokio::test]
async fn backfill_is_bounded_and_a_channel_that_is_gone_is_forgotten() {
    let fake = fake::Discord::start(NOW).await;
    let gateway = FakeGateway::new();
    let known = json!({DM: {"peer": ADA}, GENERAL: {"guild": GUILD}, "3000000000000000008": {"guild": GUILD}});
    channel_api::ChannelKv::set(gateway.kv.as_ref(), "channels", &known.to_string()).await.expect("kept");
    for n in 0..150 {
        fake.say_unheard(DM, ADA, &format!("n {n}"), json!({}));
    }
    fake.fail_next("3000000000000000008/messages", Fault::Refuse(404, 10003, "Unknown Channel"));
    fake.fail_next(&format!("{GENERAL}/messages"), Fault::RetryAfter(0.5, false));
    let channel = open(&fake, &gateway);
    let run = Run::start(&channel, &gateway);
    until("everything was asked", || {
        gateway.clock.advance(Duration::from_secs(1));
        fake.calls_of(&format!("{GENERAL}/messages?after=")).len() == 2
            && gateway.intake.events().len() == 100
            && fake.calls_of("3000000000000000008/messages").len() == 1
    })
    .await;
    fake.say(DM, ADA, "live", json!({}));
    let events = stored(&gateway, 101).await;
    assert_eq!((events[0].text.as_str(), events[99].text.as_str(), events[100].text.as_str()), ("n 0", "n 99", "live"));
    let kept = channel_api::ChannelKv::get(gateway.kv.as_ref(), "channels").await.expect("kept").unwrap_or_default();
    assert!(!kept.contains("3000000000000000008") && kept.contains(GENERAL), "{kept}");
    run.stop().await;
    // Nothing is fetched where nothing is wanted.
    let quiet = with(&fake, &gateway, "backfill_minutes = 0\n", None);
    let calls = fake.calls_of("?after=").len();
    let run = Run::start(&quiet, &gateway);
    fake.until_connected(2).await;
    fake.say(DM, ADA, "later", json!({}));
    stored(&gateway, 102).await;
    assert_eq!(fake.calls_of("?after=").len(), calls);
    run.stop().await;
}

#[tokio::test]
async fn what_no_new_try_cures_stops_the_channel_in_words_that_name_the_cure() {
    let fake = fake::Discord::start(NOW).await;
    let gateway = FakeGateway::new();
    fake.set_content_intent(false);
    let channel = open(&fake, &gateway);
    let ended = Run::start(&channel, &gateway).ended().await;
    let Err(ChannelError::Stop(why)) = ended else { panic!("{ended:?}") };
    assert!(why.contains("enable Message Content Intent in the Developer Portal") && why.contains("4014"), "{why}");
    // Without the intent it works.
    let humble = with(&fake, &gateway, "message_content = false\n", None);
    let run = Run::start(&humble, &gateway);
    fake.until_connected(2).await;
    let intents = fake.frames(2)[1].1["intents"].as_u64().expect("intents");
    assert_eq!(intents, 1 | 1 << 9 | 1 << 12);
    // The token is reset while it runs.
    fake.revoke();
    fake.forget_sessions();
    fake.close(4004);
    let ended = run.ended().await;
    let Err(ChannelError::Stop(why)) = ended else { panic!("{ended:?}") };
    assert!(why.contains("token (4004)"), "{why}");
    let ended = Run::start(&channel, &gateway).ended().await;
    assert!(matches!(&ended, Err(ChannelError::Stop(why)) if why.contains("does not accept the token")), "{ended:?}");
}

#[tokio::test]
async fn an_interaction_is_acknowledged_while_the_store_stands_and_answered_in_its_place() {
    let (fake, gateway, channel, run) = connected("").await;
    fake.until("the commands are registered", |fake| fake.calls_of("PUT /applications").len() == 1).await;
    gateway.intake.close_gate();
    fake.say(DM, ADA, "it stands", json!({}));
    gateway.intake.until_waiting().await;
    let data =
        json!({"id": "1", "name": "queue", "type": 1, "options": [{"name": "mode", "type": 3, "value": "steer"}]});
    let command = fake.interact(2, GENERAL, ADA, data, json!({}));
    fake.until("it is acknowledged", |fake| fake.calls_of("/callback").len() == 1).await;
    let ack = fake.calls_of("/callback").remove(0);
    assert_eq!(ack.body, json!({"type": 5, "data": {"flags": 64}}));
    gateway.intake.open_gate();
    let event = stored(&gateway, 2).await.remove(1);
    assert_eq!((event.kind, event.text.as_str(), event.sender.id.as_str()), (InboundKind::Button, "/queue steer", ADA));
    assert!(event.mentions_us);
    let long = channel.render(&Reply::message("word ".repeat(600)), Level::Rich);
    let live = channel.live().expect("live");
    assert_eq!(live.pace(&event.address), LivePace::Off);
    for (n, part) in long.iter().enumerate() {
        let seq = u32::try_from(n + 1).expect("few");
        channel.send(&event.address, part, &SendKey { seq, ..key(&format!("pt_{n}")) }).await.expect("sent");
    }
    assert_eq!(fake.answers(&command).len(), 2);
    assert_eq!(fake.answers(&command)[1]["flags"], 64 | 4);
    assert_eq!(fake.texts(GENERAL), Vec::<String>::new(), "nobody else sees it");
    let again = channel.reconcile(&event.address, &long[0], &key("pt_0"), NOW).await;
    assert_eq!(again, Reconciled::SafeToRepeat);
    // 15 minutes later it is answered in its channel.
    gateway.clock.advance(Duration::from_secs(15 * 60));
    say(&channel, &event.address, "late").await.expect("sent");
    assert_eq!(fake.texts(GENERAL), ["late"]);
    assert_eq!(fake.violations(), Vec::<String>::new());
    run.stop().await;
}

#[tokio::test]
async fn a_command_that_is_not_allowed_is_told_so_and_one_that_cannot_be_acknowledged_is_answered_in_its_channel() {
    let (fake, gateway, channel, run) = connected("").await;
    use channel_api::{Accepted, IgnoredReason};
    gateway.intake.answer_next(Ok(vec![Accepted::Ignored(IgnoredReason::SenderNotAllowed)]));
    let data = json!({"id": "1", "name": "status", "type": 1});
    let refused = fake.interact(2, GENERAL, BOB, data.clone(), json!({"locale": "zh-CN"}));
    fake.until("it is told so", |fake| fake.answers(&refused).len() == 1).await;
    assert_eq!(fake.answers(&refused)[0]["content"], "你不能在这里使用。");
    fake.fail_next("/callback", Fault::Refuse(404, 10062, "Unknown interaction"));
    fake.interact(2, GENERAL, ADA, data, json!({}));
    let event = stored(&gateway, 1).await.remove(0);
    say(&channel, &event.address, "here").await.expect("sent");
    assert_eq!(fake.texts(GENERAL), ["here"]);
    run.stop().await;
}

#[tokio::test]
async fn a_button_says_what_it_stands_for_from_the_one_who_pressed_it() {
    let (fake, gateway, channel, run) = connected("").await;
    fake.say(GENERAL, ADA, &format!("<@{BOT_ID}> may I?"), json!({}));
    let event = stored(&gateway, 1).await.remove(0);
    let button = |label: &str, data: &str| Button { label: label.into(), data: data.into() };
    let mut reply = Reply::message("It wants to run a command.");
    reply.buttons = vec![vec![button("Yes", "/approve 1"), button("No", "/deny 1"), button("Twice", "/deny 1")]];
    let parts = channel.render(&reply, Level::Rich);
    channel.send(&event.address, &parts[0], &key("pt_b")).await.expect("sent");
    let rows = fake.written(GENERAL)[0]["components"].clone();
    assert_eq!(
        rows,
        json!([{"type": 1, "components": [
            {"type": 2, "style": 2, "label": "Yes", "custom_id": "/approve 1"},
            {"type": 2, "style": 2, "label": "No", "custom_id": "/deny 1"},
        ]}])
    );
    let message = json!({"message": fake.written(GENERAL)[0].clone()});
    fake.interact(3, GENERAL, BOB, json!({"component_type": 2, "custom_id": "/approve 1"}), message);
    let press = stored(&gateway, 2).await.remove(1);
    assert_eq!((press.kind, press.text.as_str(), press.sender.id.as_str()), (InboundKind::Button, "/approve 1", BOB));
    assert_eq!(fake.calls_of("/callback")[0].body, json!({"type": 6}));
    run.stop().await;
}

#[tokio::test]
async fn files_come_in_before_the_message_is_stored_and_what_fails_costs_itself_only() {
    let (fake, gateway, _channel, run) = connected("max_file_mb = 1\n").await;
    gateway.intake.want_no_files_of(BOB);
    let png = [b"\x89PNG\r\n\x1a\n".as_slice(), &[7; 100]].concat();
    let picture = fake.put_file("cat.png", &png);
    let voice = fake.put_file("voice-message.ogg", b"OggS voice");
    let large = fake.put_file("large.bin", &vec![1; 2 * 1024 * 1024]);
    let file = |name: &str, url: &str, mime: Option<&str>, size: u64| json!({"id": "1", "filename": name, "url": url, "content_type": mime, "size": size, "new_field": []});
    let attachments = json!([
        file("cat.png", &picture, Some("image/png"), 108),
        file("voice-message.ogg", &voice, Some("audio/ogg; codecs=opus"), 10),
        file("large.bin", &large, None, 2 * 1024 * 1024),
        file("lies.bin", &large, None, 5),
        file("gone.txt", &format!("{picture}.gone"), Some("text/plain"), 5),
        file("inside.txt", "http://169.254.169.254/latest/meta-data", Some("text/plain"), 5),
        file("file.txt", "file:///etc/passwd", Some("text/plain"), 5),
        json!({"no": "address"}),
        json!(7),
    ]);
    fake.say(DM, ADA, "look", json!({"attachments": attachments}));
    fake.say(GENERAL, BOB, "not for you", json!({"attachments": [file("cat.png", &picture, Some("image/png"), 108)]}));
    let events = stored(&gateway, 2).await;
    let found: Vec<(AttachmentKind, bool)> =
        events[0].attachments.iter().map(|file| (file.kind, file.media.is_some())).collect();
    assert_eq!(
        found,
        [
            (AttachmentKind::Image, true),
            (AttachmentKind::Audio, true),
            (AttachmentKind::File, false),
            (AttachmentKind::File, false),
            (AttachmentKind::File, false),
            (AttachmentKind::File, false),
            (AttachmentKind::File, false),
        ]
    );
    assert_eq!(gateway.media.files(), [bytes::Bytes::from(png), bytes::Bytes::from_static(b"OggS voice")]);
    let why: Vec<&str> = events[0].attachments.iter().filter_map(|file| file.unavailable.as_deref()).collect();
    assert_eq!(
        why,
        [
            "it is larger than 1 MB",
            "it is larger than 1 MB",
            "Discord's store answered 404",
            "it is not in Discord's store",
            "it is not in Discord's store",
        ]
    );
    let left = &events[1].attachments[0];
    assert_eq!((left.kind, left.media.as_ref()), (AttachmentKind::Image, None), "what is not answered is not fetched");
    assert!(left.unavailable.as_deref().is_some_and(|why| why.starts_with("not fetched")), "{left:?}");
    assert_eq!(fake.violations(), Vec::<String>::new(), "the store gets no token");
    run.stop().await;
}

#[tokio::test]
async fn a_strangers_file_is_not_asked_for_and_an_admitted_senders_is() {
    let (fake, gateway, channel, run) = connected("").await;
    gateway.intake.want_no_files_of(BOB);
    let file = |name: &str, bytes: &[u8]| json!([{"filename": name, "url": fake.put_file(name, bytes), "size": 3}]);
    fake.say(DM, BOB, "take this", json!({"attachments": file("theirs.bin", b"BOB")}));
    let events = stored(&gateway, 1).await;
    assert!(events[0].attachments[0].media.is_none() && events[0].attachments[0].unavailable.is_some());
    let kept = channel_api::ChannelKv::get(gateway.kv.as_ref(), "channels").await.expect("kept");
    assert_eq!(kept, None, "a stranger's chat is not asked for what it said in a gap");
    // In a group that answers everybody nothing names the bot.
    fake.say(GENERAL, ADA, "look", json!({"attachments": file("ours.bin", b"ADA")}));
    let events = stored(&gateway, 2).await;
    assert!(!events[1].mentions_us && events[1].attachments[0].media.is_some(), "{:?}", events[1]);
    assert_eq!((fake.downloads(), gateway.media.files()), (vec!["ours.bin".to_owned()], vec!["ADA".into()]));
    run.stop().await;
    drop(channel);
}

#[tokio::test]
async fn a_redirect_of_a_download_is_not_followed() {
    let (fake, gateway, _channel, run) = connected("").await;
    fake.put_file("inside", b"secret");
    fake.fail_next("GET /cdn/cat.png", Fault::Redirect("/cdn/inside"));
    fake.say(
        DM,
        ADA,
        "look",
        json!({"attachments": [{"filename": "cat.png", "url": fake.put_file("cat.png", b"cat")}]}),
    );
    let file = stored(&gateway, 1).await.remove(0).attachments.remove(0);
    assert_eq!(file.unavailable.as_deref(), Some("Discord's store answered 302"));
    assert_eq!(fake.downloads(), ["cat.png"]);
    run.stop().await;
}

#[tokio::test]
async fn edits_and_deletions_are_events_of_their_own() {
    let (fake, gateway, _channel, run) = connected("").await;
    let id = fake.say(GENERAL, ADA, "helo", json!({}));
    let changed = json!({
        "id": id, "channel_id": GENERAL, "guild_id": GUILD, "type": 0, "content": "hello",
        "author": {"id": ADA, "username": "ada"}, "edited_timestamp": "2026-11-30T00:00:05.120000+00:00",
    });
    fake.dispatch("MESSAGE_UPDATE", changed.clone());
    fake.dispatch("MESSAGE_UPDATE", changed);
    // Only a preview came in.
    fake.dispatch("MESSAGE_UPDATE", json!({"id": id, "channel_id": GENERAL, "guild_id": GUILD, "embeds": [{}]}));
    fake.delete(GENERAL, &id);
    fake.dispatch("MESSAGE_DELETE_BULK", json!({"ids": ["71", "72", 7], "channel_id": GENERAL, "guild_id": GUILD}));
    let events = stored(&gateway, 5).await;
    assert_eq!(
        (events[1].kind, events[1].about.as_deref(), events[1].text.as_str()),
        (InboundKind::Edit, Some(id.as_str()), "hello")
    );
    assert_eq!((events[2].kind, events[2].about.as_deref()), (InboundKind::Deleted, Some(id.as_str())));
    assert_eq!((events[2].sender.id.as_str(), events[2].conversation.id.as_str()), (ADA, GENERAL));
    assert_eq!(events[3].about.as_deref(), Some("71"));
    let keys: std::collections::HashSet<&str> = events.iter().map(|event| event.platform_id.as_str()).collect();
    assert_eq!(keys.len(), 5);
    assert_eq!(gateway.intake.offered().len(), 6, "the second delivery of an edit has the key of the first");
    run.stop().await;
}

#[tokio::test]
async fn every_answer_of_discord_has_its_meaning_for_delivery() {
    let (fake, gateway, channel, run) = connected("").await;
    let table = [
        (Fault::RetryAfter(1.5, false), SendClass::RetryAfter(Duration::from_millis(1_500))),
        (Fault::Html(502), SendClass::Unknown),
        (Fault::Html(403), SendClass::Unknown),
        (Fault::Refuse(500, 0, "Internal Server Error"), SendClass::Unknown),
        (Fault::Reset, SendClass::Unknown),
        (Fault::DoneThenReset, SendClass::Unknown),
        (Fault::Refuse(403, 50001, "Missing Access"), SendClass::Refused),
        (Fault::Refuse(403, 50013, "Missing Permissions"), SendClass::Refused),
        (Fault::Refuse(403, 50007, "Cannot send messages to this user"), SendClass::Refused),
        (Fault::Refuse(404, 10003, "Unknown Channel"), SendClass::Refused),
        (Fault::Refuse(400, 50035, "Invalid Form Body"), SendClass::Refused),
        (Fault::Refuse(401, 0, "401: Unauthorized"), SendClass::ChannelDown),
    ];
    for (fault, expected) in table {
        fake.fail_next("POST /channels", fault.clone());
        assert_eq!(SendClass::of(&say(&channel, &to(DM), "hello").await), expected, "{fault:?}");
    }
    // Nothing is asked while Discord wants no call at all.
    fake.fail_next("POST /channels", Fault::RetryAfter(7.0, true));
    let _ = say(&channel, &to(DM), "hello").await;
    let calls = fake.calls().len();
    gateway.clock.advance(Duration::from_secs(5));
    assert_eq!(SendClass::of(&say(&channel, &to(GENERAL), "x").await), SendClass::RetryAfter(Duration::from_secs(2)));
    assert_eq!(fake.calls().len(), calls);
    gateway.clock.advance(Duration::from_secs(2));
    assert_eq!(SendClass::of(&say(&channel, &to(GENERAL), "x").await), SendClass::Sent);
    let foreign = Address { data: json!({"chat": 5}), ..to(DM) };
    assert_eq!(SendClass::of(&say(&channel, &foreign, "x").await), SendClass::Refused);
    run.stop().await;
    // Nobody listens there.
    let config = format!("token = \"{}\"\napi_url = \"http://127.0.0.1:9/api\"", fake::TOKEN);
    let config: Config = toml::from_str(&config).expect("a section");
    let away = Discord::new("main", &config, &Network::new(None, None).expect("a network")).expect("a channel");
    away.open(&gateway.context());
    assert_eq!(SendClass::of(&say(&away, &to(DM), "x").await), SendClass::Retry);
}

#[tokio::test]
async fn rule_20_a_send_without_an_answer_is_unknown_and_repeating_it_makes_no_copy() {
    let (fake, gateway, channel, run) = connected("").await;
    let parts = channel.render(&Reply::message("once only"), Level::Rich);
    fake.fail_next("POST /channels", Fault::DoneThenReset);
    let key = key("pt_01JDVW0X3M7Q8R9S0T1V2W3X4Y");
    assert_eq!(SendClass::of(&channel.send(&to(DM), &parts[0], &key).await), SendClass::Unknown);
    gateway.clock.advance(Duration::from_secs(60));
    assert_eq!(channel.reconcile(&to(DM), &parts[0], &key, NOW).await, Reconciled::SafeToRepeat);
    let receipt = channel.send(&to(DM), &parts[0], &key).await.expect("sent");
    assert_eq!(fake.texts(DM), ["once only"]);
    // Later Discord has forgotten the nonce: what was written last is searched.
    gateway.clock.advance(Duration::from_secs(120));
    assert_eq!(channel.reconcile(&to(DM), &parts[0], &key, NOW).await, Reconciled::Found(receipt));
    let other = channel.render(&Reply::message("never sent"), Level::Rich);
    assert_eq!(channel.reconcile(&to(DM), &other[0], &key, NOW).await, Reconciled::Absent);
    for n in 0..60 {
        fake.say_unheard(DM, ADA, &format!("{n}"), json!({}));
    }
    assert_eq!(channel.reconcile(&to(DM), &other[0], &key, NOW).await, Reconciled::CannotTell);
    fake.fail_next("GET /channels", Fault::Html(502));
    assert_eq!(channel.reconcile(&to(DM), &parts[0], &key, NOW).await, Reconciled::CannotTell);
    run.stop().await;
}

#[tokio::test]
async fn a_preview_grows_and_the_answer_takes_its_place_once() {
    let (fake, gateway, channel, run) = connected("").await;
    let id = fake.say(GENERAL, ADA, &format!("<@{BOT_ID}> tell me"), json!({}));
    let event = stored(&gateway, 1).await.remove(0);
    let live = channel.live().expect("live");
    let LivePace::Edits { first, every, .. } = live.pace(&event.address) else { panic!("edits") };
    assert!(first >= 30 && every >= Duration::from_millis(1_200));
    live.mark(&event.address, &id, Mark::Seen).await;
    live.mark(&event.address, &id, Mark::Working).await;
    assert_eq!(fake.reactions(), [(GENERAL.to_owned(), id.clone(), "%F0%9F%A4%94".to_owned())]);
    let preview = live.begin(&event.address, "The answer is").await.expect("shown");
    live.update(&event.address, &preview, &"The answer is long. ".repeat(200)).await.expect("shown");
    assert!(fake.texts(GENERAL)[0].ends_with('…') && fake.texts(GENERAL)[0].chars().count() <= 2_000);
    let parts = channel.render(&Reply::message("The answer is 42."), Level::Rich);
    let last = SendKey { replaces: Some(preview.id.clone()), ..key("pt_a") };
    for _ in 0..2 {
        let receipt = channel.send(&event.address, &parts[0], &last).await.expect("sent");
        assert_eq!(receipt.platform_id.as_ref(), Some(&preview.id));
    }
    assert_eq!(fake.texts(GENERAL), ["The answer is 42."]);
    gateway.clock.advance(Duration::from_secs(600));
    assert_eq!(channel.reconcile(&event.address, &parts[0], &last, NOW).await, Reconciled::SafeToRepeat);
    // Somebody took the preview away: the answer comes all the same.
    let preview = live.begin(&event.address, "Another answer").await.expect("shown");
    fake.delete(GENERAL, &preview.id);
    let last = SendKey { replaces: Some(preview.id.clone()), ..key("pt_b") };
    channel.send(&event.address, &parts[0], &last).await.expect("sent");
    assert_eq!(fake.texts(GENERAL), ["The answer is 42.", "The answer is 42."]);
    let dropped = live.begin(&event.address, "never finished").await.expect("shown");
    live.drop_preview(&event.address, &dropped).await;
    assert_eq!(fake.texts(GENERAL).len(), 2);
    live.mark(&event.address, &id, Mark::None).await;
    assert_eq!(fake.reactions(), []);
    assert_eq!(fake.violations(), Vec::<String>::new());
    run.stop().await;
}

#[tokio::test]
async fn an_answer_whose_preview_may_not_be_changed_comes_as_a_message_in_its_place() {
    let (fake, gateway, channel, run) = connected("").await;
    fake.say(GENERAL, ADA, &format!("<@{BOT_ID}> tell me"), json!({}));
    let event = stored(&gateway, 1).await.remove(0);
    let live = channel.live().expect("live");
    let preview = live.begin(&event.address, "The answer is").await.expect("shown");
    let parts = channel.render(&Reply::message("The answer is 42."), Level::Rich);
    let last = SendKey { replaces: Some(preview.id.clone()), ..key("pt_a") };
    fake.fail_next(
        &format!("PATCH /channels/{GENERAL}/messages"),
        Fault::Refuse(403, 50005, "Cannot edit a message authored by another user"),
    );
    let receipt = channel.send(&event.address, &parts[0], &last).await.expect("sent");
    assert_ne!(receipt.platform_id, Some(preview.id), "a message of its own");
    assert_eq!(fake.texts(GENERAL), ["The answer is 42."], "and the preview does not stay beside it");
    // Cut off after that, with a preview that stayed: the message is looked for, not made again.
    let stays = live.begin(&event.address, "The answer").await.expect("shown");
    let last = SendKey { replaces: Some(stays.id), ..last };
    gateway.clock.advance(Duration::from_secs(600));
    let found = channel.reconcile(&event.address, &parts[0], &last, NOW).await;
    assert_eq!(found, Reconciled::Found(receipt));
    assert_eq!(fake.violations(), Vec::<String>::new());
    run.stop().await;
}

#[tokio::test]
async fn files_go_out_and_one_that_cannot_is_named() {
    let (fake, gateway, channel, run) = connected("").await;
    let attachment = |name: &str, source, mime: &str| Attachment {
        kind: AttachmentKind::File,
        media: Some(MediaRef { source, mime: Some(mime.into()), size: None }),
        name: Some(name.into()),
        unavailable: None,
    };
    let media = gateway.media.as_ref();
    let kept = channel_api::Media::store(media, bytes::Bytes::from_static(b"a chart"), None).await.expect("kept");
    let large = bytes::Bytes::from(vec![0; 11 * 1024 * 1024]);
    let large = channel_api::Media::store(media, large, None).await.expect("kept");
    gateway.media.put_link("https://example.org/a.pdf", "%PDF");
    let mut reply = Reply::message("Here they are.");
    reply.attachments = vec![
        attachment("chart 1.png", kept.source, "image/png"),
        attachment("report.pdf", MediaSource::Url("https://example.org/a.pdf".into()), "application/pdf"),
        attachment("gone.txt", MediaSource::Stored("99".into()), "text/plain"),
        attachment("away.txt", MediaSource::Url("https://example.org/none".into()), "text/plain"),
        attachment("huge.bin", large.source, "application/octet-stream"),
    ];
    let parts = channel.render(&reply, Level::Rich);
    assert_eq!(parts.len(), 6);
    for (n, part) in parts.iter().enumerate() {
        let seq = u32::try_from(n + 1).expect("few");
        channel.send(&to(DM), part, &SendKey { seq, ..key(&format!("pt_{n}")) }).await.expect("sent");
    }
    let files: Vec<(String, Vec<u8>)> = fake.calls().into_iter().flat_map(|call| call.files).collect();
    assert_eq!(files, [("chart 1.png".into(), b"a chart".to_vec()), ("report.pdf".into(), b"%PDF".to_vec())]);
    assert_eq!(
        fake.texts(DM),
        [
            "Here they are.",
            "",
            "",
            "[file: gone.txt]",
            "[file: away.txt] <https://example.org/none>",
            "[file: huge.bin]",
        ]
    );
    assert_eq!(fake.written(DM)[1]["attachments"][0]["filename"], "chart_1.png");
    // Files may be forbidden where words are not.
    fake.fail_next("POST /channels", Fault::Refuse(403, 50013, "Missing Permissions"));
    channel.send(&to(GENERAL), &parts[1], &key("pt_x")).await.expect("sent");
    assert_eq!(fake.texts(GENERAL), ["[file: chart 1.png]"]);
    // A lost answer to a file is found by the file's name.
    gateway.clock.advance(Duration::from_secs(600));
    assert!(matches!(channel.reconcile(&to(DM), &parts[1], &key("pt_1"), NOW).await, Reconciled::Found(_)));
    run.stop().await;
}

#[tokio::test]
async fn rest_and_gateway_go_through_an_http_and_a_socks5_proxy() {
    for socks in [false, true] {
        let fake = fake::Discord::start(NOW).await;
        // Only the proxy knows this name.
        fake.be_known_as("discord.internal");
        let proxy = if socks { Proxy::socks5(fake.addr()).await } else { Proxy::http(fake.addr()).await };
        let scheme = if socks { "socks5h" } else { "http" };
        let gateway = FakeGateway::new();
        let channel = with(&fake, &gateway, "", Some(&format!("{scheme}://{}", proxy.addr)));
        let run = Run::start(&channel, &gateway);
        fake.until_connected(1).await;
        let url = fake.put_file("a.txt", b"through the proxy");
        let file = json!([{"filename": "a.txt", "url": url, "size": 17, "content_type": "text/plain"}]);
        fake.say(DM, ADA, "hello", json!({"attachments": file}));
        let event = stored(&gateway, 1).await.remove(0);
        assert_eq!(gateway.media.files(), [bytes::Bytes::from_static(b"through the proxy")]);
        say(&channel, &event.address, "hi").await.expect("sent");
        assert_eq!(fake.texts(DM), ["hi"]);
        fake.cut();
        fake.until("it is resumed through the proxy", |fake| fake.frames(6).len() == 1).await;
        let seen = proxy.seen();
        let target = format!("discord.internal:{}", fake.addr().port());
        let tunnel = if socks { format!("socks {target}") } else { format!("CONNECT {target}") };
        assert!(seen.iter().filter(|line| **line == tunnel).count() >= 2, "{seen:?}");
        assert!(seen.len() >= 3, "REST goes that way too: {seen:?}");
        run.stop().await;
    }
}

#[tokio::test]
async fn the_relay_lets_nobody_in_who_does_not_know_its_path() {
    let door = relay::Door::open().await.expect("a port");
    let url = door.url().expect("an address");
    assert!(url.starts_with("ws://127.0.0.1:") && url.rsplit('/').next().is_some_and(|path| path.len() == 48));
    let wrong = Url::parse(&url[..url.len() - 1]).expect("a URL");
    let (guessed, right) = (wrong.clone(), Url::parse(&format!("{url}?v=10")).expect("a URL"));
    let network = Network::new(None, None).expect("a network");
    let headers = http::HeaderMap::new();
    let knocks = async {
        let refused = network.websocket(&guessed, &headers, 1_024).await.err().expect("refused");
        assert!(matches!(refused, channel_socket::DialError::Status { status: 404, .. }), "{refused:?}");
        let _open = network.websocket(&right, &headers, 1_024).await.expect("let in");
    };
    let (_, ()) = tokio::join!(door.next(), knocks);
}

#[tokio::test]
async fn junk_from_the_gateway_costs_itself_only() {
    let (fake, gateway, _channel, run) = connected("").await;
    for raw in [
        "",
        "{",
        "[]",
        "null",
        "\"x\"",
        "{\"op\":99}",
        "{\"op\":0}",
        "{\"op\":0,\"s\":null,\"t\":null,\"d\":null}",
        "{\"op\":\"0\"}",
        "{\"op\":11}",
    ] {
        fake.raw(raw);
    }
    for data in [json!(null), json!([]), json!({}), json!({"id": 7}), json!({"id": "x", "channel_id": GENERAL})] {
        for name in
            ["MESSAGE_CREATE", "MESSAGE_UPDATE", "MESSAGE_DELETE", "INTERACTION_CREATE", "GUILD_CREATE", "NEW_IN_2030"]
        {
            fake.dispatch(name, data.clone());
        }
    }
    fake.dispatch("TYPING_START", Value::Array(vec![json!("x"); 10_000]));
    // Odd types where serenity's own reading would give the event up.
    fake.say(
        DM,
        ADA,
        "whole",
        json!({
            "flags": "many", "embeds": {"not": "a list"}, "components": 7, "mentions": [7, {"id": null}], "poll": "x",
            "timestamp": 12, "sticker_items": [{"name": "wave"}, 3], "attachments": {"a": 1},
        }),
    );
    let events = stored(&gateway, 1).await;
    assert_eq!(events[0].text, "whole\n[sticker: wave]\n[poll:  ]");
    assert_eq!((fake.frames(2).len(), fake.frames(6).len()), (1, 0), "and the session stands");
    run.stop().await;
}

#[tokio::test]
async fn bad_input_32_a_full_store_holds_events_and_offers_them_again_in_order() {
    let (fake, gateway, _channel, run) = connected("").await;
    for error in [IntakeError::Busy(Duration::from_secs(5)), IntakeError::Unavailable("disk full".into())] {
        gateway.intake.answer_next(Err(error));
    }
    fake.say(DM, ADA, "one", json!({}));
    fake.say(DM, ADA, "two", json!({}));
    for _ in 0..2 {
        gateway.clock.until_sleeping(1).await;
        assert!(gateway.intake.events().is_empty());
        gateway.clock.advance(Duration::from_secs(5));
    }
    let events = stored(&gateway, 2).await;
    assert_eq!(events.iter().map(|event| event.text.as_str()).collect::<Vec<_>>(), ["one", "two"]);
    run.stop().await;
}

#[tokio::test]
async fn what_does_not_fit_stays_with_discord_and_comes_by_a_resumed_session() {
    let (fake, gateway, _channel, run) = connected("").await;
    gateway.intake.close_gate();
    let ids: Vec<String> = (0..QUEUE + 200).map(|n| fake.say(DM, ADA, &format!("n {n}"), json!({}))).collect();
    fake.until("the connection is closed", |fake| fake.goodbyes().contains(&4000)).await;
    assert_eq!(fake.frames(6).len(), 0, "nothing is asked for while there is no room");
    gateway.intake.open_gate();
    let events = stored(&gateway, ids.len()).await;
    assert_eq!(events.iter().map(|event| event.platform_id.clone()).collect::<Vec<_>>(), ids);
    assert_eq!((fake.frames(2).len(), fake.frames(6).is_empty()), (1, false));
    run.stop().await;
}

#[tokio::test]
async fn r13_a_half_open_connection_is_left_and_what_was_said_into_it_is_fetched() {
    let fake = fake::Discord::start(NOW).await;
    fake.set_heartbeat(300, true);
    let gateway = FakeGateway::new();
    let channel = open(&fake, &gateway);
    let run = Run::start(&channel, &gateway);
    fake.until_connected(1).await;
    fake.say(DM, ADA, "one", json!({}));
    stored(&gateway, 1).await;
    fake.until("heartbeats", |fake| fake.frames(1).len() >= 2).await;
    // Nothing comes through any more, and nobody says so. serenity begins anew after some seconds.
    fake.set_heartbeat(300, false);
    fake.say_unheard(DM, ADA, "two", json!({}));
    fake.until("another session", |fake| fake.frames(2).len() >= 2).await;
    fake.set_heartbeat(41_250, true);
    let events = stored(&gateway, 2).await;
    assert_eq!(events[1].text, "two");
    fake.say(DM, ADA, "three", json!({}));
    let events = stored(&gateway, 3).await;
    say(&channel, &events[2].address, "and it speaks").await.expect("sent");
    assert_eq!(fake.texts(DM), ["and it speaks"]);
    run.stop().await;
}

#[tokio::test]
async fn a_probe_names_what_is_missing_and_where_to_click() {
    let fake = fake::Discord::start(NOW).await;
    let gateway = FakeGateway::new();
    let channel = open(&fake, &gateway);
    let states = |findings: &[channel_api::Finding]| -> Vec<(String, FindingState)> {
        findings.iter().map(|finding| (finding.name.clone(), finding.state)).collect()
    };
    let found = channel.probe().await;
    let permissions = format!("permissions:{GUILD}");
    assert_eq!(
        states(&found),
        [
            ("token".to_owned(), FindingState::Fine),
            ("intent:message_content".to_owned(), FindingState::Fine),
            ("servers".to_owned(), FindingState::Fine),
            (permissions, FindingState::Warning),
            ("sessions".to_owned(), FindingState::Fine),
        ]
    );
    assert!(found[3].said.en.contains("Read Message History, Attach Files, Add Reactions"), "{}", found[3].said.en);
    let link = "https://discord.com/oauth2/authorize?client_id=1000000000000000001&scope=bot+applications.commands&permissions=274878008384";
    assert!(found[2].said.en.contains(link), "{}", found[2].said.en);
    fake.set_content_intent(false);
    fake.leave_servers();
    let found = channel.probe().await;
    assert_eq!((found[1].state, found[2].state), (FindingState::Wrong, FindingState::Warning));
    assert!(
        found[1].fix.as_ref().is_some_and(|fix| fix.en.contains("Message Content Intent") && fix.zh.contains("打开"))
    );
    fake.revoke();
    let found = channel.probe().await;
    assert_eq!(states(&found), [("token".to_owned(), FindingState::Wrong)]);
    assert!(found[0].fix.as_ref().is_some_and(|fix| fix.en.contains("Reset Token")));
}

#[test]
fn two_accounts_with_one_token_are_told_apart_by_the_bots_number() {
    let config = |token: &str| -> Config { toml::from_str(&format!("token = '{token}'")).expect("a section") };
    let network = Network::new(None, None).expect("a network");
    let bot = |token| Discord::new("main", &config(token), &network).expect("a channel").exclusive();
    assert_eq!(bot(fake::TOKEN).as_deref(), Some(BOT_ID));
    assert_eq!(bot("MTAwMDAwMDAwMDAwMDAwMDAwMQ.another.secret").as_deref(), Some(BOT_ID));
}
