//! The whole channel against the fake Bot API: files in and out, buttons, edits, previews, marks, the webhook.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use channel_api::{
    Attachment, AttachmentKind, Button, Channel, ChannelContext, ChannelId, Clock, FindingState, HttpRequest,
    HttpResponse, Inbound, InboundKind, IntakeError, Level, Link, LivePace, Mark, Media, MediaRef, MediaSource, Part,
    PartId, Preview, Receipt, Reconciled, Reply, SendError, SendKey,
    contract::{self, FakeGateway, MemoryMedia, Platform},
};
use channel_socket::Network;
use reqwest::{Method, StatusCode, header::HeaderMap};
use serde_json::{Value, json};

use crate::{
    Config, Target, Telegram,
    fake::{self, ADA, Fault, TOKEN, group, private},
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\nnot much of a picture";
const OGG: &[u8] = b"OggS\0not much of a voice";
const SECRET: &str = "0123456789abcdef-secret";
const GROUP: i64 = -1_001_234_567_890;

/// A channel at a fake, and the gateway it is given.
struct Chat {
    telegram: fake::Telegram,
    gateway: FakeGateway,
    channel: Telegram,
}

fn made(telegram: &fake::Telegram, more: &str) -> Telegram {
    let text = format!("token = '{TOKEN}'\napi_url = '{}'\n{more}", telegram.api_url());
    let config: Config = toml::from_str(&text).expect("a config");
    Telegram::new("main", &config, &Network::new(None, None).expect("a network")).expect("a good config")
}

impl Chat {
    async fn new() -> Self {
        Self::with("").await
    }

    async fn with(more: &str) -> Self {
        let telegram = fake::Telegram::start().await;
        let channel = made(&telegram, more);
        let gateway = FakeGateway::new();
        channel.open(&gateway.context());
        // Somebody has written: the chats exist.
        telegram.private(ADA, "hello");
        telegram.group(&group(GROUP), ADA, "hello");
        Self { telegram, gateway, channel }
    }

    /// Runs the channel until something else ended.
    async fn while_running<T>(&self, other: impl Future<Output = T>) -> T {
        tokio::select! {
            ended = self.channel.run(self.gateway.context()) => panic!("run ended: {ended:?}"),
            done = other => done,
        }
    }

    /// The events that came, once there are so many.
    async fn taken(&self, count: usize) -> Vec<Inbound> {
        self.while_running(self.gateway.intake.until_stored(count)).await;
        self.gateway.intake.events()
    }

    /// Runs a channel until it has set its webhook: then it knows who it is.
    async fn known(&self, gateway: &FakeGateway, channel: &dyn Channel) {
        let before = self.telegram.calls_of("setWebhook").len();
        let set = |telegram: &fake::Telegram| (telegram.calls_of("setWebhook").len() > before).then_some(());
        tokio::select! {
            ended = channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
            () = self.telegram.until("the webhook", set) => {}
        }
    }

    async fn store(&self, bytes: &'static [u8], mime: &str) -> MediaRef {
        let stored = self.gateway.media.store(Bytes::from_static(bytes), Some(mime.to_owned())).await;
        stored.expect("there is room")
    }

    /// Sends each part of a reply; the first takes the place of a preview.
    async fn say(&self, chat: i64, reply: &Reply, replaces: Option<&Preview>) -> Vec<Result<Receipt, SendError>> {
        let mut results = Vec::new();
        for (n, part) in self.channel.render(reply, Level::Rich).into_iter().enumerate() {
            let seq = u32::try_from(n + 1).expect("few");
            let replaces = replaces.filter(|_| n == 0).map(|preview| preview.id.clone());
            results.push(self.channel.send(&to(chat), &part, &SendKey { seq, replaces, ..key() }).await);
        }
        results
    }
}

fn to(chat: i64) -> channel_api::Address {
    Target { chat, thread: None, reply: None }.address(&ChannelId::new("telegram", "main"))
}

fn key() -> SendKey {
    let part = PartId::generate();
    SendKey { part, seq: 1, last: true, in_reply_to: None, created_at: 0, resend: false, replaces: None }
}

fn attached(kind: AttachmentKind, media: MediaRef, name: Option<&str>) -> Attachment {
    Attachment { kind, media: Some(media), name: name.map(str::to_owned), unavailable: None }
}

fn photo(file: &str) -> Value {
    json!({ "photo": [
        { "file_id": "small", "file_unique_id": "s", "width": 90, "height": 67 },
        { "file_id": file, "file_unique_id": "l", "width": 1280, "height": 960 },
    ]})
}

#[tokio::test]
async fn pictures_voice_and_documents_are_fetched_before_the_message_is_told() {
    let chat = Chat::new().await;
    let (large, voice, paper) = (
        chat.telegram.put_file("large", PNG),
        chat.telegram.put_file("voice", OGG),
        chat.telegram.put_file("paper", b"%PDF-1.7"),
    );
    let mut picture = photo(&large);
    picture["caption"] = json!("what is this?");
    picture["media_group_id"] = json!("album");
    chat.telegram.message(&private(ADA), ADA, &picture);
    chat.telegram.message(&private(ADA), ADA, &json!({ "voice": { "file_id": voice, "duration": 2 } }));
    let document = json!({ "file_id": paper, "file_name": "re/port.pdf", "mime_type": "application/pdf" });
    chat.telegram.message(&private(ADA), ADA, &json!({ "document": document }));
    let events = chat.taken(5).await;
    let find = |id: &str| events.iter().find(|event| event.platform_id == id).expect("it came");
    let (picture, voice, paper) = (find("99:2"), find("99:3"), find("99:4"));
    assert_eq!(picture.text, "what is this?");
    assert!(picture.more_expected.is_some(), "an album goes on");
    for (event, kind, mime, name, bytes) in [
        (picture, AttachmentKind::Image, "image/jpeg", None, PNG),
        (voice, AttachmentKind::Audio, "audio/ogg", None, OGG),
        (paper, AttachmentKind::File, "application/pdf", Some("re/port.pdf"), b"%PDF-1.7"),
    ] {
        let [attachment] = event.attachments.as_slice() else { panic!("{:?}", event.attachments) };
        assert_eq!((attachment.kind, attachment.name.as_deref()), (kind, name));
        let media = attachment.media.as_ref().expect("its bytes");
        assert_eq!(media.mime.as_deref(), Some(mime));
        assert_eq!(chat.gateway.media.read(media).await.as_deref(), Some(bytes));
    }
    let asked = chat.telegram.calls_of("getFile");
    assert!(asked.iter().all(|call| call.body["file_id"] != "small"), "{asked:?}");
}

#[tokio::test]
async fn a_strangers_file_is_not_asked_for_and_an_admitted_senders_is() {
    let chat = Chat::new().await;
    chat.gateway.intake.want_no_files_of("6");
    let (theirs, ours) = (chat.telegram.put_file("theirs", b"%PDF-1.7"), chat.telegram.put_file("ours", PNG));
    let document = json!({ "document": { "file_id": theirs, "file_name": "x.pdf" }, "caption": "take this" });
    chat.telegram.message(&private(6), 6, &document);
    chat.telegram.message(&private(ADA), ADA, &photo(&ours));
    let events = chat.taken(4).await;
    let of = |id: &str| &events.iter().find(|event| event.platform_id == id).expect("it came").attachments[0];
    let (theirs, ours) = (of("6:1"), of("99:2"));
    assert!(theirs.media.is_none() && theirs.unavailable.as_deref().is_some_and(|why| why.starts_with("not fetched")));
    assert!(ours.media.is_some(), "{ours:?}");
    assert_eq!(chat.gateway.media.files(), [PNG]);
    let asked: Vec<Value> =
        ["getFile", "file"].iter().flat_map(|it| chat.telegram.calls_of(it)).map(|call| call.body).collect();
    assert_eq!(asked, [json!({ "file_id": "ours" }), json!("files/ours")]);
}

#[tokio::test]
async fn a_file_in_a_group_that_moved_is_judged_by_its_new_id() {
    let chat = Chat::new().await;
    let mut picture = photo(&chat.telegram.put_file("large", PNG));
    picture["message_id"] = json!(8);
    picture["chat"] = private(ADA);
    let old = json!({ "id": -5, "type": "group", "title": "Friends" });
    let moved = json!({ "message_id": 7, "date": 1, "chat": old, "migrate_to_chat_id": GROUP });
    let api = &chat.channel.api;
    let ctx = chat.gateway.context();
    let me = crate::poll::who_we_are(api).await.expect("known");
    let reception = crate::take::Reception {
        api,
        moves: &chat.channel.moves,
        channel: chat.channel.id(),
        ctx: &ctx,
        me: &me,
        told: &crate::take::Told::default(),
        patience: crate::take::Patience::None,
    };
    let updates = [moved, picture].map(|message| json!({ "update_id": 1, "message": message }));
    reception.take(&updates, None).await.expect("stored");
    let batches = chat.gateway.intake.batches();
    assert_eq!((batches[0].moved.len(), batches[0].events.len()), (1, 0), "the gate learns of the move first");
    assert!(batches[1].events[0].attachments[0].media.is_some());
}

#[tokio::test]
async fn a_redirect_of_a_download_is_not_followed() {
    let chat = Chat::new().await;
    let file = chat.telegram.put_file("large", PNG);
    chat.telegram.then("file", [Fault::Redirect("/api/file/elsewhere/files/large")]);
    chat.telegram.message(&private(ADA), ADA, &photo(&file));
    let events = chat.taken(3).await;
    let file = events.iter().flat_map(|event| &event.attachments).next().expect("a file");
    assert!(file.media.is_none() && file.unavailable.is_some(), "{file:?}");
    assert_eq!(chat.telegram.calls_of("file").len(), 1, "asked once, and nowhere else");
    assert!(chat.gateway.media.files().is_empty());
}

#[tokio::test]
async fn bad_input_46_a_file_too_big_is_final_a_5xx_is_tried_again_and_other_chats_go_on() {
    let chat = Chat::new().await;
    let flaky = chat.telegram.put_file("flaky", PNG);
    chat.telegram.then("getFile", [Fault::Refuse(400, "Bad Request: file is too big"), Fault::Html(502)]);
    chat.telegram.message(&private(ADA), ADA, &json!({ "document": { "file_id": "big" }, "caption": "keep it" }));
    chat.telegram.message(&group(GROUP), ADA, &photo(&flaky));
    chat.telegram.private(5, "no file");
    let clock = chat.gateway.clock.clone();
    let paused = async {
        // The file that was refused with a page is asked for once more after a pause; nobody else waits for it.
        clock.until_sleeping(1).await;
        chat.gateway.intake.until_stored(1).await;
        assert_eq!(chat.gateway.intake.events()[0].text, "no file");
        clock.advance(Duration::from_secs(2));
        chat.gateway.intake.until_stored(5).await;
    };
    chat.while_running(paused).await;
    let events = chat.gateway.intake.events();
    let of = |text: &str| events.iter().find(|event| event.text == text && !event.attachments.is_empty());
    let big = &of("keep it").expect("the message is there all the same").attachments[0];
    assert!(big.media.is_none() && big.unavailable.as_deref().is_some_and(|why| why.contains("20 MB")), "{big:?}");
    assert!(of("").expect("the picture").attachments[0].media.is_some(), "it came at the second try");
    let asked = chat.telegram.calls_of("getFile");
    assert_eq!(asked.iter().filter(|call| call.body["file_id"] == "big").count(), 1, "never asked for again");
}

#[tokio::test]
async fn a_file_that_is_nowhere_costs_itself_only() {
    let chat = Chat::new().await;
    let lost = chat.telegram.put_file("lost", PNG);
    chat.telegram.then("file", [Fault::Refuse(404, "Not Found")]);
    chat.telegram.message(&private(ADA), ADA, &photo("unknown"));
    chat.telegram.message(&private(ADA), ADA, &photo(&lost));
    let events = chat.taken(4).await;
    let missing = events.iter().flat_map(|event| &event.attachments).filter(|it| it.unavailable.is_some()).count();
    assert!(missing >= 1, "{events:?}");
    assert!(
        events.iter().flat_map(|event| &event.attachments).all(|it| it.media.is_some() != it.unavailable.is_some())
    );
}

#[tokio::test]
async fn a_full_store_is_told_as_the_reason() {
    let chat = Chat::new().await;
    let mut gateway = chat.gateway.clone();
    gateway.media = Arc::new(MemoryMedia::holding(4));
    let large = chat.telegram.put_file("large", PNG);
    chat.telegram.message(&private(ADA), ADA, &photo(&large));
    tokio::select! {
        ended = chat.channel.run(gateway.context()) => panic!("run ended: {ended:?}"),
        () = gateway.intake.until_stored(3) => {}
    }
    let events = gateway.intake.events();
    let why = events.iter().find_map(|event| event.attachments.first()?.unavailable.clone());
    assert_eq!(why.as_deref(), Some("the file is larger than 4 bytes"));
}

#[tokio::test]
async fn files_go_out_as_what_they_are() {
    let chat = Chat::new().await;
    let (png, ogg) = (chat.store(PNG, "image/png").await, chat.store(OGG, "audio/ogg").await);
    let text = chat.store(b"a,b\n1,2\n", "text/csv").await;
    let one = Reply {
        attachments: vec![attached(AttachmentKind::Image, png.clone(), Some("../plot.png"))],
        ..Reply::message("**the** plot")
    };
    let receipts = chat.say(ADA, &one, None).await;
    assert!(receipts[0].as_ref().is_ok_and(|receipt| receipt.platform_id.as_deref() == Some("99:2")), "{receipts:?}");
    let many = Reply {
        attachments: vec![
            attached(AttachmentKind::Audio, ogg, None),
            attached(AttachmentKind::File, text, Some("数据.csv")),
        ],
        ..Reply::message("both:")
    };
    assert!(chat.say(ADA, &many, None).await.iter().all(Result::is_ok));
    let sent = chat.telegram.sent_to(ADA);
    let shown: Vec<_> = sent
        .iter()
        .map(|sent| {
            let file = sent.file.as_ref().map(|file| (file.kind.as_str(), file.name.as_str(), file.mime.as_str()));
            (sent.text.as_str(), file)
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("the plot", Some(("photo", "plot.png", "image/png"))),
            ("both:", None),
            ("", Some(("voice", "voice.ogg", "audio/ogg"))),
            ("", Some(("document", "数据.csv", "text/csv"))),
        ]
    );
    assert_eq!(sent[0].raw, "<b>the</b> plot");
    assert_eq!(sent[0].file.as_ref().map(|file| file.bytes.as_slice()), Some(PNG));
}

#[tokio::test]
async fn a_refused_picture_goes_out_as_a_document_and_what_cannot_go_out_as_a_line() {
    let chat = Chat::new().await;
    let odd = chat.store(b"no picture at all", "image/png").await;
    let reply =
        Reply { attachments: vec![attached(AttachmentKind::Image, odd, Some("odd.png"))], ..Reply::message("*hm*") };
    assert!(chat.say(ADA, &reply, None).await[0].is_ok());
    let sent = chat.telegram.sent_to(ADA).remove(0);
    assert_eq!((sent.text.as_str(), sent.file.expect("a file").kind.as_str()), ("hm", "document"));
    // Refused in every form, gone, and a link that may not be fetched.
    let refused = "Bad Request: not enough rights to send documents to the chat";
    chat.telegram.then("sendPhoto", [Fault::Refuse(400, refused)]);
    chat.telegram.then("sendDocument", [Fault::Refuse(400, refused)]);
    assert!(chat.say(ADA, &reply, None).await[0].is_ok());
    let gone = MediaRef { source: MediaSource::Stored("77".to_owned()), mime: None, size: None };
    let link = MediaRef { source: MediaSource::Url("https://e.com/x.zip".to_owned()), mime: None, size: None };
    for media in [gone, link] {
        let reply =
            Reply { attachments: vec![attached(AttachmentKind::File, media, Some("x.zip"))], ..Reply::message("") };
        assert!(chat.say(ADA, &reply, None).await[0].is_ok());
    }
    let texts: Vec<String> = chat.telegram.sent_to(ADA).into_iter().skip(1).map(|sent| sent.text).collect();
    assert_eq!(texts, ["hm\n\n[file: odd.png]", "[file: x.zip]", "[file: x.zip] https://e.com/x.zip"]);
    // A link that may be fetched is.
    chat.gateway.media.put_link("https://e.com/y.zip", &b"PK"[..]);
    let link = MediaRef { source: MediaSource::Url("https://e.com/y.zip".to_owned()), mime: None, size: None };
    let reply = Reply { attachments: vec![attached(AttachmentKind::File, link, Some("y.zip"))], ..Reply::message("") };
    assert!(chat.say(ADA, &reply, None).await[0].is_ok());
    let last = chat.telegram.sent_to(ADA).pop().and_then(|sent| sent.file).expect("a file");
    assert_eq!((last.name.as_str(), last.bytes.as_slice()), ("y.zip", &b"PK"[..]));
}

#[tokio::test]
async fn an_upload_that_breaks_off_is_unknown_and_its_second_try_is_marked() {
    let chat = Chat::new().await;
    let png = chat.store(PNG, "image/png").await;
    let reply = Reply { attachments: vec![attached(AttachmentKind::Image, png, None)], ..Reply::message("look") };
    let part = chat.channel.render(&reply, Level::Rich).remove(0);
    chat.telegram.then("sendPhoto", [Fault::DoneThenReset, Fault::RetryAfter(4)]);
    let result = chat.channel.send(&to(ADA), &part, &key()).await;
    assert!(matches!(result, Err(SendError::Unknown(_))), "{result:?}");
    assert_eq!(chat.channel.reconcile(&to(ADA), &part, &key(), 0).await, Reconciled::CannotTell);
    let again = SendKey { resend: true, ..key() };
    let result = chat.channel.send(&to(ADA), &part, &again).await;
    assert!(matches!(result, Err(SendError::RetryAfter(pause)) if pause == Duration::from_secs(4)), "{result:?}");
    chat.channel.send(&to(ADA), &part, &again).await.expect("sent");
    let last = chat.telegram.sent_to(ADA).pop().expect("sent");
    assert_eq!(last.text, "↻ (this message may have arrived once before)\nlook");
}

#[tokio::test]
async fn buttons_go_out_and_a_press_comes_in_from_who_pressed_and_is_answered() {
    let chat = Chat::new().await;
    let button = |label: &str, data: &str| Button { label: label.to_owned(), data: data.to_owned() };
    let rows = vec![vec![button("Yes", "/approve 7"), button("No", "/deny 7")]];
    let reply = Reply { buttons: rows, ..Reply::message("May I?") };
    assert!(chat.say(GROUP, &reply, None).await[0].is_ok());
    let asked = chat.telegram.sent_to(GROUP).remove(0);
    assert_eq!(asked.keyboard[0][1], json!({ "text": "No", "callback_data": "/deny 7" }));
    let query = chat.telegram.press(&group(GROUP), asked.id, 7, "/deny 7");
    let events = chat.taken(3).await;
    let pressed = events.iter().find(|event| event.kind == InboundKind::Button).expect("the press");
    assert_eq!((pressed.text.as_str(), pressed.sender.id.as_str()), ("/deny 7", "7"));
    assert_eq!(pressed.reply_to.as_ref().and_then(|reply| reply.text.as_deref()), Some("May I?"));
    let answered =
        chat.telegram.until("the answer to the press", |telegram| telegram.answered().contains(&query).then_some(()));
    chat.while_running(answered).await;
    // Buttons that Telegram refuses cost themselves only.
    chat.telegram.then("sendMessage", [Fault::Refuse(400, "Bad Request: BUTTON_DATA_INVALID")]);
    assert!(chat.say(GROUP, &reply, None).await[0].is_ok());
    assert!(chat.telegram.sent_to(GROUP)[1].keyboard.is_null());
}

#[tokio::test]
async fn in_a_private_chat_a_draft_grows_and_the_answer_is_a_message() {
    let chat = Chat::new().await;
    let live = chat.channel.live().expect("it shows");
    let LivePace::Edits { first, every, .. } = live.pace(&to(ADA)) else { panic!("nothing is shown") };
    assert!(first > 0 && every >= Duration::from_secs(1));
    let preview = live.begin(&to(ADA), "The **first** wo").await.expect("shown");
    assert!(!preview.replaced);
    live.update(&to(ADA), &preview, "The **first** words").await.expect("shown");
    let drafts = chat.telegram.drafts();
    assert_eq!(drafts.iter().map(|draft| draft.text.as_str()).collect::<Vec<_>>(), ["The first wo", "The first words"]);
    assert!(drafts[0].id != 0 && drafts[0].id == drafts[1].id);
    chat.say(ADA, &Reply::message("The first words."), None).await;
    assert_eq!(chat.telegram.sent_to(ADA).len(), 1);
}

#[tokio::test]
async fn a_server_without_drafts_is_remembered_and_a_message_is_edited_instead() {
    for refusal in [Fault::Refuse(404, "Not Found: method not found"), Fault::Refuse(404, "Not Found")] {
        let chat = Chat::new().await;
        let live = chat.channel.live().expect("it shows");
        chat.telegram.then("sendMessageDraft", [refusal]);
        let preview = live.begin(&to(ADA), "The first words").await.expect("shown");
        assert!(preview.replaced);
        let LivePace::Edits { first, every, .. } = live.pace(&to(ADA)) else { panic!("nothing is shown") };
        assert!(first >= 30 && every >= Duration::from_millis(1_500));
        live.begin(&to(ADA), "Another").await.expect("shown");
        assert_eq!(chat.telegram.calls_of("sendMessageDraft").len(), 1, "not asked again");
    }
}

#[tokio::test]
async fn in_a_group_one_message_is_edited_and_ends_with_the_final_text_once() {
    let chat = Chat::new().await;
    let live = chat.channel.live().expect("it shows");
    let LivePace::Edits { first, every, .. } = live.pace(&to(GROUP)) else { panic!("nothing is shown") };
    // 20 calls a minute, the messages of others among them.
    assert!(first >= 30 && every >= Duration::from_secs(3));
    let preview = live.begin(&to(GROUP), "The first").await.expect("shown");
    assert!(preview.replaced && preview.id.len() <= 512);
    live.update(&to(GROUP), &preview, "The first").await.expect("not modified is no failure");
    live.update(&to(GROUP), &preview, "The first **words**").await.expect("shown");
    live.update(&to(GROUP), &preview, &"x".repeat(9_000)).await.expect("what does not fit is cut");
    let reply = Reply::message(format!("**all** {}", "of it ".repeat(900)));
    let receipts = chat.say(GROUP, &reply, Some(&preview)).await;
    assert!(receipts.iter().all(Result::is_ok), "{receipts:?}");
    let sent = chat.telegram.sent_to(GROUP);
    assert_eq!(sent.len(), receipts.len(), "part 1 is the preview");
    assert!(sent[0].text.starts_with("all of it") && sent[0].earlier.len() == 3, "{:?}", sent[0].earlier);
    // The same edit once more: as after a restart.
    let part = chat.channel.render(&reply, Level::Rich).remove(0);
    let key = SendKey { replaces: Some(preview.id.clone()), ..key() };
    let again = chat.channel.send(&to(GROUP), &part, &key).await.expect("not modified");
    assert_eq!(again, *receipts[0].as_ref().expect("sent"));
    assert_eq!(chat.channel.reconcile(&to(GROUP), &part, &key, 0).await, Reconciled::Found(again));
    chat.telegram.then("editMessageText", [Fault::Html(502)]);
    assert_eq!(chat.channel.reconcile(&to(GROUP), &part, &key, 0).await, Reconciled::SafeToRepeat);
    assert_eq!(chat.telegram.sent_to(GROUP).len(), receipts.len());
}

#[tokio::test]
async fn a_preview_that_is_gone_is_followed_by_a_message_and_one_before_a_file_is_taken_away() {
    let chat = Chat::new().await;
    let live = chat.channel.live().expect("it shows");
    let preview = live.begin(&to(GROUP), "The first words of it").await.expect("shown");
    live.drop_preview(&to(GROUP), &preview).await;
    assert!(chat.telegram.sent_to(GROUP).is_empty());
    let gone = live.update(&to(GROUP), &preview, "more").await;
    assert!(matches!(gone, Err(SendError::Refused(_))), "{gone:?}");
    assert!(chat.say(GROUP, &Reply::message("all"), Some(&preview)).await[0].is_ok());
    assert_eq!(chat.telegram.said(GROUP, "all").await.earlier, [""; 0]);
    let part = Part { text: "all".to_owned(), body: Value::Null };
    let key = SendKey { replaces: Some(preview.id), ..key() };
    assert_eq!(chat.channel.reconcile(&to(GROUP), &part, &key, 0).await, Reconciled::CannotTell);

    let preview = live.begin(&to(GROUP), "A picture comes").await.expect("shown");
    let png = chat.store(PNG, "image/png").await;
    let reply = Reply { attachments: vec![attached(AttachmentKind::Image, png, None)], ..Reply::message("here") };
    assert!(chat.say(GROUP, &reply, Some(&preview)).await[0].is_ok());
    let texts: Vec<String> = chat.telegram.sent_to(GROUP).into_iter().map(|sent| sent.text).collect();
    assert_eq!(texts, ["all", "here"]);
}

#[tokio::test]
async fn bad_input_50_an_answer_whose_preview_may_not_be_changed_comes_as_a_message_in_its_place() {
    let chat = Chat::new().await;
    let live = chat.channel.live().expect("it shows");
    for (n, refused) in ["Bad Request: method refused", "Bad Request: not enough rights to edit"].iter().enumerate() {
        let preview = live.begin(&to(GROUP), "The first words of it").await.expect("shown");
        chat.telegram.then("editMessageText", [Fault::Refuse(400, refused)]);
        let answer = format!("The first words of it all, {n}.");
        let receipts = chat.say(GROUP, &Reply::message(answer.as_str()), Some(&preview)).await;
        assert!(receipts.iter().all(Result::is_ok), "{refused}: {receipts:?}");
        let texts: Vec<String> = chat.telegram.sent_to(GROUP).into_iter().map(|sent| sent.text).collect();
        assert_eq!(texts.last(), Some(&answer), "{refused}");
        assert_eq!(texts.len(), n + 1, "the preview does not stay beside it: {texts:?}");
        // What was cut off then may stand there as a message that nobody can look for.
        chat.telegram.then("editMessageText", [Fault::Refuse(400, refused)]);
        let part = Part { text: answer, body: Value::Null };
        let key = SendKey { replaces: Some(preview.id), ..key() };
        assert_eq!(chat.channel.reconcile(&to(GROUP), &part, &key, 0).await, Reconciled::CannotTell);
    }
}

#[tokio::test]
async fn bad_input_49_a_preview_follows_a_group_that_moved() {
    let chat = Chat::new().await;
    let live = chat.channel.live().expect("it shows");
    let old = -777;
    chat.telegram.group(&group(old), ADA, "hello");
    chat.telegram.then("sendMessage", [Fault::Moved(GROUP)]);
    let preview = live.begin(&to(old), "The first words of it").await.expect("shown");
    live.update(&to(old), &preview, "The first words of it all").await.expect("shown");
    let reply = Reply::message("The first words of it all.");
    assert!(chat.say(old, &reply, Some(&preview)).await[0].is_ok());
    let sent = chat.telegram.sent_to(GROUP);
    assert_eq!((sent.len(), sent[0].text.as_str(), sent[0].earlier.len()), (1, "The first words of it all.", 2));
}

#[tokio::test]
async fn a_429_stops_a_preview_until_it_is_due() {
    let chat = Chat::new().await;
    let live = chat.channel.live().expect("it shows");
    let preview = live.begin(&to(GROUP), "The first words of it").await.expect("shown");
    chat.telegram.then("editMessageText", [Fault::RetryAfter(7)]);
    for left in [7, 7, 4] {
        if left == 4 {
            chat.gateway.clock.advance(Duration::from_secs(3));
        }
        let result = live.update(&to(GROUP), &preview, "more").await;
        assert!(
            matches!(result, Err(SendError::RetryAfter(pause)) if pause == Duration::from_secs(left)),
            "{result:?}"
        );
        live.mark(&to(GROUP), &format!("{GROUP}:1"), Mark::Seen).await;
    }
    assert_eq!(chat.telegram.calls_of("editMessageText").len(), 1, "not asked before it is due");
    assert!(chat.telegram.marks(GROUP, 1).is_empty());
    chat.gateway.clock.advance(Duration::from_secs(4));
    live.update(&to(GROUP), &preview, "more").await.expect("shown");
}

#[tokio::test]
async fn marks_replace_each_other_and_go_on_messages_only() {
    let chat = Chat::new().await;
    let live = chat.channel.live().expect("it shows");
    for mark in [Mark::Seen, Mark::Working, Mark::Done, Mark::Failed, Mark::None] {
        live.mark(&to(ADA), "99:1", mark).await;
    }
    assert_eq!(chat.telegram.marks(ADA, 1), ["👀", "🤔", "👍", "😱", ""]);
    for id in ["button:5", "", "99", "x:y", "7:1"] {
        live.mark(&to(ADA), id, Mark::Seen).await;
    }
    assert_eq!(chat.telegram.calls_of("setMessageReaction").len(), 5);
}

fn hook() -> String {
    format!("mode = 'webhook'\nwebhook_url = 'http://127.0.0.1:9/hook'\nsecret_token = '{SECRET}'")
}

fn update(id: i64, text: &str) -> Value {
    json!({ "update_id": id, "message": {
        "message_id": id, "date": 1_795_000_000, "text": text, "chat": private(ADA),
        "from": { "id": ADA, "is_bot": false, "first_name": "Ada" },
    }})
}

async fn post(channel: &dyn Channel, ctx: &ChannelContext, secret: Option<&str>, body: &str) -> HttpResponse {
    let mut headers = HeaderMap::new();
    if let Some(secret) = secret {
        headers.insert("x-telegram-bot-api-secret-token", secret.parse().expect("a header"));
    }
    let request = HttpRequest { headers, body: Bytes::from(body.to_owned()), ..request() };
    channel.http().expect("a webhook").handle(ctx, request).await
}

fn request() -> HttpRequest {
    HttpRequest {
        method: Method::POST,
        path: String::new(),
        query: String::new(),
        headers: HeaderMap::new(),
        body: Bytes::new(),
        local: false,
    }
}

/// A webhook that knows who it is.
async fn hooked() -> Chat {
    let chat = Chat::with(&hook()).await;
    let set = chat.telegram.until("the webhook", |telegram| telegram.webhook());
    assert_eq!(chat.while_running(set).await, "http://127.0.0.1:9/hook");
    chat
}

#[tokio::test]
async fn a_webhook_without_the_right_secret_is_401_and_leaves_nothing() {
    let chat = hooked().await;
    let ctx = chat.gateway.context();
    let good = update(1, "hi").to_string();
    for secret in [None, Some(""), Some("wrong"), Some(&SECRET[1..]), Some("0123456789ABCDEF-secret")] {
        assert_eq!(post(&chat.channel, &ctx, secret, &good).await.status, StatusCode::UNAUTHORIZED, "{secret:?}");
    }
    assert!(chat.gateway.intake.offered().is_empty());
    for (body, status) in [("", 400), ("nonsense", 400), ("[]", 400), ("{}", 200), (good.as_str(), 200)] {
        assert_eq!(post(&chat.channel, &ctx, Some(SECRET), body).await.status.as_u16(), status, "{body}");
    }
    let texts: Vec<String> = chat.gateway.intake.events().into_iter().map(|event| event.text).collect();
    assert_eq!(texts, ["hi"]);
    let set = &chat.telegram.calls_of("setWebhook")[0].body;
    assert_eq!(
        (set["secret_token"].as_str(), set["allowed_updates"].as_array().map(Vec::len)),
        (Some(SECRET), Some(5))
    );
    // Two more ways to be wrong.
    let mut headers = HeaderMap::new();
    headers.insert("x-telegram-bot-api-secret-token", SECRET.parse().expect("a header"));
    let http = chat.channel.http().expect("a webhook");
    let get = HttpRequest { method: Method::GET, headers: headers.clone(), ..request() };
    assert_eq!(http.handle(&ctx, get).await.status, StatusCode::METHOD_NOT_ALLOWED);
    let elsewhere = HttpRequest { path: "/x".to_owned(), headers, ..request() };
    assert_eq!(http.handle(&ctx, elsewhere).await.status, StatusCode::NOT_FOUND);
    assert!(made(&chat.telegram, "").http().is_none(), "a bot that asks takes no calls");
}

#[tokio::test]
async fn a_webhook_before_it_knows_who_it_is_asks_for_patience() {
    let chat = Chat::with(&hook()).await;
    let answer = post(&chat.channel, &chat.gateway.context(), Some(SECRET), &update(1, "hi").to_string()).await;
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(answer.headers.contains_key("retry-after") && chat.gateway.intake.offered().is_empty());
}

struct Hooked(Chat);

#[async_trait::async_trait]
impl Platform for Hooked {
    fn channel(&self) -> Arc<dyn Channel> {
        Arc::new(made(&self.0.telegram, &hook()))
    }

    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool {
        self.0.known(gateway, channel).await;
        let ctx = gateway.context();
        let body = update(n.into(), &format!("message {n}")).to_string();
        let answer = post(channel, &ctx, Some(SECRET), &body).await;
        let refused = answer.status == StatusCode::SERVICE_UNAVAILABLE && answer.headers.contains_key("retry-after");
        assert!(answer.status.is_success() || refused, "{}", answer.status);
        answer.status.is_success()
    }

    async fn deliver_move(&self, gateway: &FakeGateway, channel: &dyn Channel) -> Option<(channel_api::Moved, bool)> {
        self.0.known(gateway, channel).await;
        let moved = json!({ "update_id": 91, "message": {
            "message_id": 91, "date": 1_795_000_000, "chat": { "id": -5, "type": "group" }, "migrate_to_chat_id": GROUP,
        }});
        let answer = post(channel, &gateway.context(), Some(SECRET), &moved.to_string()).await;
        let news = channel_api::Moved { from: "-5".to_owned(), to: GROUP.to_string() };
        Some((news, answer.status.is_success()))
    }
}

#[tokio::test]
async fn a_webhook_is_answered_with_2xx_only_after_the_commit() {
    let platform = Hooked(Chat::with(&hook()).await);
    contract::check_reception(&platform).await;
}

#[tokio::test]
async fn a_full_gateway_names_the_pause() {
    let chat = hooked().await;
    chat.gateway.intake.answer_next(Err(IntakeError::Busy(Duration::from_secs(9))));
    let body = update(1, "hi").to_string();
    let answer = post(&chat.channel, &chat.gateway.context(), Some(SECRET), &body).await;
    assert_eq!(answer.headers.get("retry-after").and_then(|value| value.to_str().ok()), Some("9"));
}

#[tokio::test]
async fn a_webhook_that_somebody_changed_is_set_again_and_one_out_of_reach_is_told() {
    let chat = Chat::with(&hook()).await;
    let clock = chat.gateway.clock.clone();
    let ctx = chat.gateway.context();
    let pulse = ctx.pulse.clone();
    let story = async {
        clock.until_sleeping(1).await;
        chat.telegram.set_webhook("https://elsewhere.example.com");
        clock.advance(Duration::from_secs(60));
        let again = |telegram: &fake::Telegram| telegram.webhook().filter(|url| url.ends_with("/hook"));
        chat.telegram.until("the webhook again", again).await;
        clock.until_sleeping(1).await;
        pulse.look().0
    };
    let link = tokio::select! {
        ended = chat.channel.run(ctx) => panic!("run ended: {ended:?}"),
        link = story => link,
    };
    // Nobody listens at the address: what Telegram says of it is told.
    assert!(matches!(link, Link::Up | Link::Down(_)), "{link:?}");
    assert_eq!(
        crate::webhook::failure(&json!({ "last_error_date": 100, "last_error_message": "x\ny" }), 500),
        Some("x y".to_owned())
    );
    assert_eq!(crate::webhook::failure(&json!({ "last_error_date": 100, "last_error_message": "x" }), 5_000), None);
    assert_eq!(crate::webhook::failure(&json!({ "url": "x" }), 5_000), None);
}

#[tokio::test]
async fn a_poll_beats_and_a_broken_one_says_why() {
    let chat = Chat::new().await;
    assert_eq!(chat.channel.capabilities().silence_limit, Some(Duration::from_secs(120)));
    assert_eq!(made(&chat.telegram, &hook()).capabilities().silence_limit, None);
    let ctx = chat.gateway.context();
    let pulse = ctx.pulse.clone();
    chat.telegram.then("getUpdates", [Fault::Html(502)]);
    let clock = chat.gateway.clock.clone();
    let story = async {
        clock.until_sleeping(1).await;
        let down = pulse.look();
        clock.advance(Duration::from_secs(100));
        chat.gateway.intake.until_stored(2).await;
        (down.0, pulse.look())
    };
    let (down, (up, age)) = tokio::select! {
        ended = chat.channel.run(ctx) => panic!("run ended: {ended:?}"),
        seen = story => seen,
    };
    assert!(matches!(&down, Link::Down(why) if why.contains("502")), "{down:?}");
    assert_eq!((up, age), (Link::Up, Duration::ZERO));
    assert!(chat.gateway.clock.monotonic() >= Duration::from_secs(100));
}

#[tokio::test]
async fn a_long_pause_that_telegram_names_is_the_supervisors() {
    let chat = Chat::new().await;
    chat.telegram.then("getUpdates", [Fault::RetryAfter(600)]);
    let ended = chat.channel.run(chat.gateway.context()).await;
    let kept = |pause: &Duration| *pause == Duration::from_secs(600);
    assert!(matches!(&ended, Err(channel_api::ChannelError::RestartAfter(pause, _)) if kept(pause)), "{ended:?}");
}

#[tokio::test]
async fn a_probe_names_what_is_missing_and_where_to_click() {
    let chat = Chat::new().await;
    let found = |findings: &[channel_api::Finding], name: &str| {
        let finding = findings.iter().find(|finding| finding.name == name).unwrap_or_else(|| panic!("no {name}"));
        (finding.state, finding.fix.as_ref().map(|fix| fix.en.clone()).unwrap_or_default())
    };
    let findings = chat.channel.probe().await;
    assert_eq!(found(&findings, "token").0, FindingState::Fine);
    assert_eq!(found(&findings, "webhook").0, FindingState::Fine);
    let (state, fix) = found(&findings, "privacy");
    assert!(state == FindingState::Warning && fix.contains("/setprivacy"), "{fix}");
    chat.telegram.set_webhook("https://elsewhere.example.com");
    let findings = chat.channel.probe().await;
    assert_eq!(found(&findings, "webhook").0, FindingState::Warning);
    assert!(findings.iter().all(|finding| !finding.said.zh.is_empty() && !finding.said.en.contains(TOKEN)));
    let hooked = made(&chat.telegram, &hook());
    assert!(found(&hooked.probe().await, "webhook").1.contains("starts"));
    chat.telegram.revoke();
    let findings = chat.channel.probe().await;
    let (state, fix) = found(&findings, "token");
    assert!(state == FindingState::Wrong && fix.contains("@BotFather") && findings.len() == 1, "{fix}");
    assert!(chat.telegram.calls_of("deleteWebhook").is_empty(), "a probe changes nothing");
}
