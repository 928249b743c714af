//! A conversation in Telegram with words, a picture and a voice message, both ways; and an end of the gateway at any
//! station between Telegram and Telegram, which loses nothing and repeats nothing without a mark.

use std::{fs, time::Duration};

use serde_json::json;

use crate::support::{
    gateway::Gateway,
    model_server::{ModelServer, text},
    telegram::{ADA, Telegram, private},
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";
const OGG: &[u8] =
    b"OggS\0\x02\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\0\0\x01\x13OpusHead\x01\x01\0\0\x80\xbb\0\0\0\0\0";

#[tokio::test]
async fn words_a_picture_and_a_voice_message_go_both_ways() {
    let telegram = Telegram::start().await;
    let model = ModelServer::start(|ask| match ask.said() {
        said if said.contains("attachment: image") => text("A **picture** for a picture.\nMEDIA:plot.png"),
        said if said.contains("attachment: audio") => text("Heard.\nMEDIA:word.ogg"),
        said if said.contains("attachment: file") => text("Read it. Both again:\nMEDIA:plot.png\nMEDIA:word.ogg"),
        _ => text("Just words."),
    })
    .await;
    let mut gateway = Gateway::folder(&format!("{}\n{}", model.section(), telegram.section("")));
    fs::create_dir_all(gateway.workspace()).expect("a folder");
    fs::write(gateway.workspace().join("plot.png"), PNG).expect("a file");
    fs::write(gateway.workspace().join("word.ogg"), OGG).expect("a file");
    gateway.restart().await;

    telegram.private(ADA, "hello");
    telegram.said(ADA, "Just words.").await;

    let photo = telegram.put_file("photo", PNG);
    let sizes = json!([{ "file_id": photo, "file_unique_id": "p", "width": 640, "height": 480 }]);
    telegram.message(&private(ADA), ADA, &json!({ "photo": sizes, "caption": "what is this?" }));
    let answer = telegram.said(ADA, "A picture for a picture.").await;
    let file = answer.file.expect("a picture");
    assert_eq!((file.kind.as_str(), file.name.as_str(), file.bytes.as_slice()), ("photo", "plot.png", PNG));
    let asked = model.asks_about("what is this?").remove(0);
    let line = format!("attachment: image (image/png, {} bytes), path media/", PNG.len());
    assert!(asked.said().contains(&line), "{}", asked.said());

    let voice = telegram.put_file("voice", OGG);
    telegram.message(
        &private(ADA),
        ADA,
        &json!({ "voice": { "file_id": voice, "duration": 2, "mime_type": "audio/ogg" } }),
    );
    let answer = telegram.said(ADA, "Heard.").await;
    let file = answer.file.expect("a voice message");
    assert_eq!((file.kind.as_str(), file.bytes.as_slice()), ("voice", OGG));

    let paper = telegram.put_file("paper", b"%PDF-1.7 not much of a paper");
    let document = json!({ "file_id": paper, "file_name": "paper.pdf", "mime_type": "application/pdf" });
    telegram.message(&private(ADA), ADA, &json!({ "document": document, "caption": "and this?" }));
    telegram.until("both files", |telegram| (telegram.sent_to(ADA).len() == 6).then_some(())).await;
    let sent = telegram.sent_to(ADA);
    let shown: Vec<_> = sent[3..].iter().map(|sent| sent.file.as_ref().map_or("text", |file| &file.kind)).collect();
    assert_eq!(shown, ["text", "photo", "voice"], "{sent:?}");
    telegram.all_confirmed().await;
}

#[tokio::test]
async fn a_file_that_is_too_big_is_told_to_the_model_and_the_words_are_answered() {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let _gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(""))).await;
    let film = telegram.put_file("film", &vec![0; (20 << 20) + 1]);
    telegram.message(&private(ADA), ADA, &json!({ "video": { "file_id": film }, "caption": "my film" }));
    telegram.said(ADA, "my film").await;
    let asked = model.asks_about("my film").remove(0);
    assert!(asked.said().contains("larger than the 20 MB"), "{}", asked.said());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r2_an_end_at_every_station_of_telegram_loses_nothing_and_marks_what_may_come_twice() {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let mut gateway = Gateway::folder(&format!("{}\n{}", model.section(), telegram.section("limits = \"off\"")));
    // At the last three, Telegram may have the answer already.
    let points = [
        "telegram.batch",
        "intake.routed",
        "intake.committed",
        "telegram.stored",
        "claim.done",
        "model.answered",
        "finish.done",
        "part.sending",
        "part.sent",
        "part.settled",
    ];
    let known = channel_api::crash_point::ADAPTERS.iter().filter(|point| point.starts_with("telegram."));
    assert!(known.clone().all(|point| points.contains(point)), "{known:?}");
    let photo = telegram.put_file("photo", PNG);
    for (n, point) in points.iter().enumerate() {
        if n % 2 == 0 {
            let sizes = json!([{ "file_id": photo, "file_unique_id": "p", "width": 640, "height": 480 }]);
            telegram.message(&private(ADA), ADA, &json!({ "photo": sizes, "caption": format!("message {n}.") }));
        } else {
            telegram.private(ADA, &format!("message {n}."));
        }
        let ended = gateway.restart_doomed(&format!("{point}=return"), Duration::from_secs(60)).await;
        assert!(ended.is_some_and(|ended| !ended.success()), "`{point}` was never reached:\n{}", gateway.log());
        gateway.restart().await;
        telegram.said(ADA, &format!("message {n}.")).await;
        telegram.all_confirmed().await;
        // An end in order: every answer that was sent is known to be.
        assert_eq!(gateway.terminate().await.0, Some(0));
    }
    gateway.restart().await;
    telegram.private(ADA, "the last one");
    telegram.said(ADA, "the last one").await;
    let sent = telegram.sent_to(ADA);
    for (n, point) in points.iter().enumerate() {
        let answers: Vec<&str> =
            sent.iter().map(|sent| sent.text.as_str()).filter(|text| text.contains(&format!("message {n}."))).collect();
        let unmarked = answers.iter().filter(|text| !text.starts_with('↻')).count();
        let most = if point.starts_with("part.s") { 2 } else { 1 };
        assert!(unmarked <= 1 && (1..=most).contains(&answers.len()), "{point}: {answers:?}");
    }
}
