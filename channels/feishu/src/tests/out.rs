//! The way out: forms, limits, files, previews and reactions, and what every answer means.

use channel_api::{
    Attachment, AttachmentKind, Button, MediaRef, MediaSource, TextUnit,
    contract::{self, SendClass},
};
use fake::Fault;
use serde_json::Value;

use super::*;

fn part(rig: &Rig, text: &str) -> Part {
    rig.channel.render(&Reply::message(text), Level::Rich).remove(0)
}

fn kinds(rig: &Rig) -> Vec<String> {
    rig.platform.look(|told| told.sent.iter().map(|sent| sent.kind.clone()).collect())
}

#[tokio::test]
async fn renders_by_the_contract() {
    let rig = Rig::new("").await;
    contract::check_render(rig.channel.as_ref());
}

/// A text of 4,097 UTF-16 units with emoji, nested lists and a code block across the cut.
fn long_answer() -> String {
    let mut text = "# 计划 Plan\n\n- one 🦞\n  - two **bold**\n    1. three\n- four\n\n".to_owned();
    let line = "Words before the code, 数据在这里。👩‍👩‍👧‍👦 ";
    while TextUnit::Utf16.len(&text) < 1_000 {
        text.push_str(line);
    }
    text.push_str("\n\n```rust\n");
    while TextUnit::Utf16.len(&text) < 4_000 {
        text.push_str("let crab = \"🦀\";\n");
    }
    text.push_str("```\n\nEnd ");
    while TextUnit::Utf16.len(&text) < 4_096 {
        text.push('x');
    }
    text.push('.');
    text
}

#[tokio::test]
async fn a_4097_unit_answer_arrives_whole_and_well_formed() {
    let text = long_answer();
    assert_eq!(TextUnit::Utf16.len(&text), 4_097);
    let rig = Rig::new("").await;
    for done in rig.reply(&direct(), &Reply::message(text.clone())).await {
        done.expect("sent");
    }
    assert_eq!(kinds(&rig), ["interactive", "interactive"]);
    let read = rig.platform.read();
    for piece in &read {
        assert_eq!(piece.matches("```").count() % 2, 0, "a fence is left open: {piece}");
        assert!(piece.chars().count() <= 3_500);
    }
    assert!(
        read[0].starts_with("# 计划 Plan\n\n- one 🦞\n  - two **bold**\n    1. three\n- four\n\nWords"),
        "{}",
        read[0]
    );
    assert!(read[0].ends_with("\n```") && read[1].starts_with("```rust\nlet crab = \"🦀\";\n"), "{}", read[1]);
    assert!(read[1].ends_with("x."));
    let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert_eq!(letters(&read.join("\n")).replacen("``````rust", "", 1), letters(&text));
}

#[tokio::test]
async fn an_endless_answer_ends_with_a_file_that_has_all_of_it() {
    let rig = Rig::new("").await;
    let text = "word and word and word. ".repeat(4_000);
    for done in rig.reply(&direct(), &Reply::message(text.clone())).await {
        done.expect("sent");
    }
    let kinds = kinds(&rig);
    assert_eq!((kinds.len(), kinds.last().map(String::as_str)), (10, Some("file")));
    let uploaded = rig.platform.look(|told| told.uploads.values().next().cloned()).expect("an upload");
    assert_eq!(uploaded.bytes, text.as_bytes());
    assert_eq!(uploaded.fields["file_name"], "answer.md");
}

#[tokio::test]
async fn rule_13_six_tables_are_delivered() {
    let table = "| a | b |\n|---|---|\n| 1 | 2 |";
    let text = [table; 6].join("\n\nnext\n\n");
    let rig = Rig::new("").await;
    for done in rig.reply(&direct(), &Reply::message(text.clone())).await {
        done.expect("sent");
    }
    assert_eq!(kinds(&rig), ["interactive"], "the sixth is shown as code");
    // A platform that counts otherwise: a post, then plain text, then a file.
    for (faults, expected) in [(1, "post"), (2, "text"), (3, "file")] {
        let rig = Rig::new("").await;
        let fault = Fault::Code(
            400,
            230_099,
            "Failed to create card content, ext=ErrCode: 11310; ErrMsg: card table number over limit",
        );
        rig.platform.fault("POST /open-apis/im/v1/messages?", vec![fault; faults]);
        let key = key();
        let receipt = rig.send(&direct(), &part(&rig, &text), &key).await.expect("sent");
        assert_eq!((kinds(&rig), receipt.platform_id.as_deref()), (vec![expected.to_owned()], Some("om_bot_1")));
        let uuids: Vec<Value> = rig.platform.look(|told| {
            let calls = told.calls.iter().filter(|call| call.path.starts_with("/open-apis/im/v1/messages?"));
            calls.map(|call| call.body["uuid"].clone()).collect()
        });
        assert!(uuids.iter().all(|uuid| uuid == key.part.as_str()), "one id for all forms: {uuids:?}");
    }
}

#[tokio::test]
async fn rule_17_an_answer_to_a_thread_stays_in_it() {
    let rig = Rig::new("").await;
    let long = "a line of words\n".repeat(300);
    for target in [thread(), Target { topics: true, ..group() }] {
        rig.platform.change(|told| told.sent.clear());
        for done in rig.reply(&target, &Reply::message(long.clone())).await {
            done.expect("sent");
        }
        let sent = rig.platform.look(|told| told.sent.clone());
        assert!(sent.len() > 1);
        for sent in sent {
            assert_eq!((sent.reply_to.as_deref(), sent.in_thread), (Some("om_1"), true), "{sent:?}");
        }
    }
    // In a group the first part is a reply, in a private chat none is.
    rig.platform.change(|told| told.sent.clear());
    rig.reply(&group(), &Reply::message(long.clone())).await;
    rig.reply(&direct(), &Reply::message("hi")).await;
    let replies = rig.platform.look(|told| {
        told.sent.iter().map(|sent| (sent.reply_to.clone(), sent.in_thread, sent.chat.clone())).collect::<Vec<_>>()
    });
    assert_eq!(replies[0], (Some("om_1".to_owned()), false, String::new()));
    assert_eq!(replies[1], (None, false, "oc_g".to_owned()));
    assert_eq!(replies.last(), Some(&(None, false, "oc_1".to_owned())));
    let opening = Rig::new("reply_in_thread = true").await;
    opening.reply(&group(), &Reply::message("hi")).await;
    assert!(opening.platform.look(|told| told.sent[0].in_thread));
}

#[tokio::test]
async fn a_question_that_was_taken_back_is_answered_without_a_quotation() {
    let rig = Rig::new("").await;
    rig.platform.change(|told| told.deleted.push("om_1".to_owned()));
    rig.send(&group(), &part(&rig, "hi"), &key()).await.expect("sent");
    let sent = rig.platform.look(|told| told.sent[0].clone());
    assert_eq!((sent.reply_to, sent.chat.as_str(), sent.kind.as_str()), (None, "oc_g", "interactive"));
}

#[tokio::test]
async fn rule_19_limits_are_waits_and_every_answer_has_its_class() {
    let rig = Rig::new("").await;
    let wait = |seconds| SendClass::RetryAfter(Duration::from_secs(seconds));
    for (fault, expected) in [
        (Fault::Limit(7), wait(7)),
        (Fault::Code(400, 230_020, "This operation triggers the frequency limit."), wait(2)),
        (Fault::Code(200, 11_232, "create message trigger frequency limit"), wait(2)),
        (Fault::Code(400, 99_991_400, "request trigger frequency limit"), wait(2)),
        (Fault::Html(502), SendClass::Unknown),
        (Fault::Reset, SendClass::Unknown),
        (Fault::Code(500, 2_200, "internal error"), SendClass::Unknown),
        (Fault::Code(400, 230_002, "Bot/User can NOT be out of the chat."), SendClass::Refused),
        (Fault::Code(200, 230_013, "Bot has NO availability to this user."), SendClass::Refused),
        (Fault::Code(400, 230_028, "The messages do NOT pass the audit"), SendClass::Refused),
        (Fault::Code(400, 230_006, "Bot ability is not activated."), SendClass::ChannelDown),
        (
            Fault::Code(400, 99_991_672, "Access denied. One of the following scopes is required: [im:message]."),
            SendClass::ChannelDown,
        ),
        (Fault::Code(403, 99_991_662, "the app is not enabled"), SendClass::ChannelDown),
    ] {
        rig.platform.fault("POST /open-apis/im/v1/messages", [fault.clone()]);
        let done = rig.send(&direct(), &part(&rig, "hi"), &key()).await;
        assert_eq!(SendClass::of(&done), expected, "{fault:?}: {done:?}");
    }
    assert!(rig.platform.look(|told| told.sent.is_empty()), "a refused call showed nothing");
    let nowhere = adapter("http://127.0.0.1:9", "");
    let done = nowhere.send(&direct().address(nowhere.id()), &part(&rig, "hi"), &key()).await;
    assert_eq!(SendClass::of(&done), SendClass::Retry);
}

#[tokio::test]
async fn r12_a_storm_of_limits_loses_and_reorders_nothing() {
    let rig = Rig::new("").await;
    rig.platform.fault(
        "POST /open-apis/im/v1/messages",
        (0..60).map(|n| match n % 3 {
            0 => Fault::Limit(1),
            1 => Fault::Code(400, 230_020, "frequency limit"),
            _ => Fault::Code(200, 11_232, "frequency limit"),
        }),
    );
    for n in 0..20 {
        let (part, key) = (part(&rig, &format!("answer {n}")), key());
        loop {
            match rig.send(&direct(), &part, &key).await {
                Ok(_) => break,
                Err(SendError::RetryAfter(pause)) => rig.gateway.clock.advance(pause),
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(rig.platform.read(), (0..20).map(|n| format!("answer {n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn r11_a_platform_in_chaos_gets_each_answer_once_and_in_order() {
    let rig = Rig::new("").await;
    // Of twenty calls six are too many, two break inside the platform, one is done and one is not before the line breaks.
    let fault = |n: u32| match n % 20 {
        0 | 3 | 6 | 9 | 12 | 15 => Fault::Limit(1),
        1 | 11 => Fault::Html(502),
        7 => Fault::DoneThenReset,
        _ => Fault::Reset,
    };
    for n in 0..40_u32 {
        let (part, key) = (part(&rig, &format!("answer {n}")), key());
        if n % 20 % 3 == 0 || matches!(n % 20, 1 | 7 | 11 | 13) {
            rig.platform.fault("POST /open-apis/im/v1/messages?", [fault(n)]);
        }
        let to = direct().address(rig.channel.id());
        let mut tries = 0;
        loop {
            tries += 1;
            match rig.channel.send(&to, &part, &key).await {
                Ok(_) => break,
                Err(SendError::RetryAfter(pause)) => rig.gateway.clock.advance(pause),
                Err(SendError::Unknown(_)) => {
                    let now = rig.channel.now().wall;
                    assert_eq!(rig.channel.reconcile(&to, &part, &key, now).await, Reconciled::SafeToRepeat);
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(tries <= 2, "{tries} tries for one fault");
    }
    assert_eq!(rig.platform.read(), (0..40).map(|n| format!("answer {n}")).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_send_that_was_cut_off_is_repeated_under_its_key_and_shown_once() {
    let rig = Rig::new("").await;
    rig.platform.fault("POST /open-apis/im/v1/messages", [Fault::DoneThenReset, Fault::Reset]);
    let (part, key) = (part(&rig, "once"), key());
    let to = direct().address(rig.channel.id());
    let mut tries = 0;
    while let Err(error) = rig.channel.send(&to, &part, &key).await {
        assert!(matches!(error, SendError::Unknown(_)), "{error:?}");
        assert_eq!(rig.channel.reconcile(&to, &part, &key, NOW).await, Reconciled::SafeToRepeat);
        tries += 1;
    }
    assert_eq!((tries, rig.platform.read()), (2, vec!["once".to_owned()]));
    rig.gateway.clock.advance(Duration::from_secs(54 * 60));
    assert_eq!(rig.channel.reconcile(&to, &part, &key, NOW).await, Reconciled::SafeToRepeat);
    rig.gateway.clock.advance(Duration::from_secs(60));
    assert_eq!(rig.channel.reconcile(&to, &part, &key, NOW).await, Reconciled::CannotTell, "the platform forgets it");
    let again = SendKey { resend: true, ..super::key() };
    rig.channel.send(&to, &part, &again).await.expect("sent");
    assert!(rig.platform.read()[1].starts_with("↻"), "a copy is marked");
}

#[tokio::test]
async fn nobody_is_named_by_an_answer_in_any_form() {
    let text = "<at id=all></at> <at user_id=\"all\">x</at> hello";
    for faults in 0..3 {
        let rig = Rig::new("").await;
        rig.platform.fault("POST /open-apis/im/v1/messages?", vec![Fault::Code(400, 230_099, "no"); faults]);
        rig.send(&direct(), &part(&rig, text), &key()).await.expect("sent");
        let read = rig.platform.read().join("");
        assert!(!read.contains("<at") && read.contains("hello"), "{read}");
    }
}

#[tokio::test]
async fn buttons_say_where_they_were_shown() {
    let rig = Rig::new("").await;
    let button = |label: &str, data: &str| Button { label: label.to_owned(), data: data.to_owned() };
    let mut reply = Reply::message("Run it? Type /approve 7 or /deny 7.");
    reply.buttons = vec![vec![button("Run", "/approve 7"), button("No", "/deny 7")]];
    rig.reply(&thread(), &reply).await.remove(0).expect("sent");
    let card = rig.platform.look(|told| told.sent[0].content.clone());
    let buttons: Vec<Value> = card["body"]["elements"][1]["columns"]
        .as_array()
        .expect("columns")
        .iter()
        .map(|column| column["elements"][0].clone())
        .collect();
    assert_eq!(buttons[0]["text"]["content"], "Run");
    let value = json!({ "say": "/approve 7", "direct": false, "chat": "oc_g", "thread": "omt_1" });
    assert_eq!(buttons[0]["behaviors"], json!([{ "type": "callback", "value": value }]));
    assert_eq!(buttons[1]["behaviors"][0]["value"]["say"], "/deny 7");
}

fn attachment(kind: AttachmentKind, source: MediaSource, name: &str, mime: &str) -> Attachment {
    let media = MediaRef { source, mime: Some(mime.to_owned()), size: None };
    Attachment { kind, media: Some(media), name: Some(name.to_owned()), unavailable: None }
}

#[tokio::test]
async fn pictures_voice_and_files_go_out_and_what_cannot_is_a_line() {
    let rig = Rig::new("").await;
    let media = rig.gateway.context().media;
    let mut stored = Vec::new();
    for bytes in [&b"\x89PNG picture"[..], b"OggS....OpusHead voice", b"%PDF-1.7"] {
        stored.push(media.store(bytes.to_vec().into(), None).await.expect("stored").source);
    }
    rig.gateway.media.put_link("https://x.test/film.mp4", b"....ftypisom".to_vec());
    let url = |url: &str| MediaSource::Url(url.to_owned());
    let mut reply = Reply::message("Here:");
    reply.attachments = vec![
        attachment(AttachmentKind::Image, stored[0].clone(), "a.png", "image/png"),
        attachment(AttachmentKind::Audio, stored[1].clone(), "a.ogg", "audio/ogg"),
        attachment(AttachmentKind::File, stored[2].clone(), "../a.pdf", "application/pdf"),
        attachment(AttachmentKind::Video, url("https://x.test/film.mp4"), "film.mp4", "video/mp4"),
        attachment(AttachmentKind::File, url("http://10.0.0.1/secret"), "secret", ""),
        attachment(AttachmentKind::File, MediaSource::Stored("99".to_owned()), "gone.txt", "text/plain"),
    ];
    for done in rig.reply(&direct(), &reply).await {
        done.expect("sent");
    }
    assert_eq!(kinds(&rig), ["interactive", "image", "audio", "file", "file", "text", "text"]);
    let read = rig.platform.read();
    assert_eq!((read[5].as_str(), read[6].as_str()), ("[file: secret] http://10.0.0.1/secret", "[file: gone.txt]"));
    let fields: Vec<_> = rig.platform.look(|told| {
        let field = |upload: &fake::Uploaded| {
            let kind = upload.fields.get("file_type").or_else(|| upload.fields.get("image_type"));
            (kind.cloned().unwrap_or_default(), upload.bytes.len())
        };
        let mut all: Vec<_> = told.uploads.iter().map(|(key, upload)| (key.clone(), field(upload))).collect();
        all.sort_by_key(|(key, _)| key.rsplit('_').next().and_then(|n| n.parse::<u32>().ok()));
        all.into_iter().map(|(_, field)| field).collect()
    });
    assert_eq!(fields[..3], [("message".to_owned(), 12), ("opus".to_owned(), 22), ("pdf".to_owned(), 8)]);
    // An upload that is refused is a line; one that is cut off is made again.
    rig.platform.fault("POST /open-apis/im/v1/images", [Fault::Code(400, 234_006, "too large"), Fault::Reset]);
    rig.platform.fault("POST /open-apis/im/v1/files", [Fault::Code(400, 234_006, "too large")]);
    let mut one = Reply::message("");
    one.attachments = vec![attachment(AttachmentKind::Image, stored[0].clone(), "a.png", "image/png")];
    rig.reply(&direct(), &one).await.remove(0).expect("sent");
    assert_eq!(rig.platform.read().last().map(String::as_str), Some("[file: a.png]"));
    let done = rig.reply(&direct(), &one).await.remove(0);
    assert_eq!(SendClass::of(&done), SendClass::Retry, "an upload shows nothing");
}

fn finishing(preview: &Preview) -> SendKey {
    SendKey { replaces: Some(preview.id.clone()), ..key() }
}

#[tokio::test]
async fn rule_18_a_streamed_answer_is_shown_once() {
    let rig = Rig::new("").await;
    let to = group().address(rig.channel.id());
    let live = rig.channel.live().expect("live");
    let preview = live.begin(&to, "The").await.expect("shown");
    assert!(preview.replaced && preview.id.len() <= 512);
    for text in ["The answer", "The answer is", "The answer is", "The answer is 42"] {
        rig.gateway.clock.advance(Duration::from_millis(600));
        live.update(&to, &preview, text).await.expect("shown");
    }
    let card = |rig: &Rig| rig.platform.look(|told| told.cards.values().next().cloned()).expect("a card");
    assert!(card(&rig).streaming);
    assert_eq!(card(&rig).shown, ["The", "The answer", "The answer is", "The answer is 42"]);
    let key = finishing(&preview);
    let done = part(&rig, "The answer is **42**.");
    let receipt = rig.send(&group(), &done, &key).await.expect("finished");
    assert_eq!(receipt.platform_id.as_deref(), Some("om_bot_1"));
    assert_eq!(rig.platform.read(), ["The answer is **42**."]);
    assert!(!card(&rig).streaming, "it does not stay at \"generating\"");
    assert_eq!(rig.platform.look(|told| told.sent[0].reply_to.clone()).as_deref(), Some("om_1"));
    // Cut off and done again, after a restart too: still once.
    let other = adapter(&rig.platform.url(), "");
    other.open(&rig.gateway.context());
    other.send(&to, &done, &key).await.expect("finished again");
    assert_eq!(rig.platform.read(), ["The answer is **42**."]);
}

#[tokio::test]
async fn rule_14_numbers_rise_whatever_the_platform_has_seen() {
    let rig = Rig::new("").await;
    let to = direct().address(rig.channel.id());
    let live = rig.channel.live().expect("live");
    let preview = live.begin(&to, "a").await.expect("shown");
    live.update(&to, &preview, "ab").await.expect("shown");
    rig.platform.change(|told| told.cards.values_mut().for_each(|card| card.sequence = 700));
    live.update(&to, &preview, "abc").await.expect("shown with a higher number");
    // Many at once.
    let texts: Vec<String> = (0..5).map(|n| format!("abc{n}")).collect();
    let updates = texts.iter().map(|text| live.update(&to, &preview, text));
    let done = futures_util::future::join_all(updates).await;
    assert!(done.iter().all(|done| matches!(done, Ok(()) | Err(SendError::RetryAfter(_)))), "{done:?}");
    let part = part(&rig, "abcd");
    rig.send(&direct(), &part, &finishing(&preview)).await.expect("finished");
    let numbers: Vec<i64> = rig.platform.look(|told| {
        let changes = told.calls.iter().filter(|call| call.path.contains("/cardkit/v1/cards/"));
        changes.filter_map(|call| call.body["sequence"].as_i64()).collect()
    });
    assert!(numbers.windows(2).all(|two| two[0] < two[1]), "{numbers:?}");
    assert_eq!(rig.platform.read(), ["abcd"]);
}

#[tokio::test]
async fn rule_15_previews_are_cards_that_have_no_count_of_edits() {
    let rig = Rig::new("").await;
    let to = direct().address(rig.channel.id());
    let live = rig.channel.live().expect("live");
    let preview = live.begin(&to, "0").await.expect("shown");
    let mut shown = 0;
    for n in 1..=60 {
        // Ten changes in a second are the most that one card takes.
        match live.update(&to, &preview, &format!("0 {n}")).await {
            Ok(()) => shown += 1,
            Err(SendError::RetryAfter(_)) => rig.gateway.clock.advance(Duration::from_secs(1)),
            other => panic!("{other:?}"),
        }
    }
    assert!(shown > 20);
    let calls = rig.platform.look(|told| told.calls.clone());
    assert!(!calls.iter().any(|call| call.method == "PUT" && call.path.contains("/im/v1/messages/")));
}

#[tokio::test]
async fn a_preview_that_was_closed_streams_on_and_one_that_is_gone_is_a_new_message() {
    let rig = Rig::new("").await;
    let to = direct().address(rig.channel.id());
    let live = rig.channel.live().expect("live");
    let preview = live.begin(&to, "a").await.expect("shown");
    rig.platform.change(|told| told.cards.values_mut().for_each(|card| card.streaming = false));
    live.update(&to, &preview, "ab").await.expect("it streams again");
    rig.platform.change(|told| told.cards.clear());
    rig.send(&direct(), &part(&rig, "abc"), &finishing(&preview)).await.expect("sent");
    assert_eq!(rig.platform.read(), ["abc"], "the preview was taken away");
    let preview = live.begin(&to, "never").await.expect("shown");
    live.drop_preview(&to, &preview).await;
    assert_eq!(rig.platform.read(), ["abc"]);
    let preview = live.begin(&to, "stays").await.expect("shown");
    rig.platform.fault("DELETE /open-apis/im/v1/messages/", [Fault::Code(400, 230_001, "no")]);
    live.drop_preview(&to, &preview).await;
    let stays = rig.platform.look(|told| told.cards.values().find(|card| card.shown == ["stays"]).cloned());
    assert!(!stays.expect("a card").streaming, "closed where it stays");
}

#[tokio::test]
async fn a_final_text_with_six_tables_fits_its_preview() {
    let rig = Rig::new("").await;
    let to = direct().address(rig.channel.id());
    let live = rig.channel.live().expect("live");
    let preview = live.begin(&to, "tables").await.expect("shown");
    let text = ["| a | b |\n|---|---|\n| 1 | 2 |"; 6].join("\n\nnext\n\n");
    rig.platform
        .fault("PUT /open-apis/cardkit/v1/cards/", [Fault::Code(400, 300_300, "11310 card table number over limit")]);
    rig.send(&direct(), &part(&rig, &text), &finishing(&preview)).await.expect("finished");
    let read = rig.platform.read();
    assert_eq!((read.len(), read[0].matches("```").count()), (1, 12));
}

#[tokio::test]
async fn a_file_does_not_become_the_line_of_a_preview() {
    let rig = Rig::new("").await;
    let to = direct().address(rig.channel.id());
    let preview = rig.channel.live().expect("live").begin(&to, "look").await.expect("shown");
    let source = rig.gateway.context().media.store(b"\x89PNG".to_vec().into(), None).await.expect("stored").source;
    let mut reply = Reply::message("");
    reply.attachments = vec![attachment(AttachmentKind::Image, source, "a.png", "image/png")];
    let part = rig.channel.render(&reply, Level::Rich).remove(0);
    rig.send(&direct(), &part, &finishing(&preview)).await.expect("sent");
    assert_eq!(rig.platform.read(), ["[image]"]);
}

#[tokio::test]
async fn without_the_permission_nothing_is_shown_early_and_the_answer_comes_all_the_same() {
    let rig = Rig::new("").await;
    let to = direct().address(rig.channel.id());
    let live = rig.channel.live().expect("live");
    assert!(matches!(live.pace(&to), LivePace::Edits { .. }));
    let denied =
        Fault::Code(400, 99_991_672, "Access denied. One of the following scopes is required: [cardkit:card:write].");
    rig.platform.fault("/cardkit/", vec![denied; 9]);
    live.begin(&to, "a").await.expect_err("no permission");
    assert_eq!(live.pace(&to), LivePace::Off, "it is not asked for again");
    rig.send(&direct(), &part(&rig, "abc"), &key()).await.expect("sent");
    assert_eq!(rig.platform.read(), ["abc"]);
    let off = adapter(&rig.platform.url(), "streaming = false");
    assert_eq!(off.live().expect("live").pace(&to), LivePace::Off);
}

#[tokio::test]
async fn reactions_show_that_an_answer_is_written_and_go_with_it() {
    let rig = Rig::new("").await;
    let to = group().address(rig.channel.id());
    for _ in 0..3 {
        rig.channel.typing(&to).await;
    }
    assert_eq!(rig.platform.look(|told| told.reacted.clone()), [("om_1".to_owned(), "Typing".to_owned())]);
    rig.send(&group(), &part(&rig, "hi"), &key()).await.expect("sent");
    assert!(rig.platform.look(|told| told.reactions.is_empty()));
    let live = rig.channel.live().expect("live");
    for mark in [Mark::Seen, Mark::Working, Mark::Working, Mark::Done] {
        live.mark(&to, "om_1", mark).await;
    }
    let stand = |rig: &Rig| {
        rig.platform.look(|told| told.reactions.iter().map(|(_, emoji, _)| emoji.clone()).collect::<Vec<_>>())
    };
    assert_eq!(stand(&rig), ["DONE"]);
    live.mark(&to, "om_1", Mark::None).await;
    live.mark(&to, "card:ev1", Mark::Done).await;
    assert!(stand(&rig).is_empty());
    // One sign is enough: whichever of typing and the mark comes first.
    let reacted = |rig: &Rig| rig.platform.look(|told| told.reacted.len());
    let before = reacted(&rig);
    live.mark(&to, "om_1", Mark::Working).await;
    rig.channel.typing(&to).await;
    assert_eq!((stand(&rig), reacted(&rig) - before), (vec!["OnIt".to_owned()], 1));
    live.mark(&to, "om_1", Mark::None).await;
    rig.channel.typing(&to).await;
    live.mark(&to, "om_1", Mark::Working).await;
    assert_eq!((stand(&rig), reacted(&rig) - before), (vec!["Typing".to_owned()], 2));
    live.mark(&to, "om_1", Mark::Failed).await;
    assert_eq!(reacted(&rig) - before, 3, "that it failed is said");
    live.mark(&to, "om_1", Mark::None).await;
    // A turn that ends in silence: the sign fades.
    rig.channel.typing(&to).await;
    rig.running(async {
        rig.platform.until_connected(1).await;
        for _ in 0..4 {
            rig.gateway.clock.until_sleeping(1).await;
            rig.gateway.clock.advance(Duration::from_secs(6));
        }
        rig.platform.until("the reaction is gone", |told| told.reactions.is_empty()).await;
    })
    .await;
    let quiet = adapter(&rig.platform.url(), "reactions = false");
    quiet.open(&rig.gateway.context());
    quiet.typing(&to).await;
    assert!(!quiet.capabilities().typing && stand(&rig).is_empty());
}
