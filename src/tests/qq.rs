//! The official QQ bot as people meet it: the real gateway against a platform that keeps sessions, counts answers and drops
//! second copies by their number.

use std::{fs, time::Duration};

use serde_json::json;

use crate::support::{
    gateway::{Gateway, client},
    model_server::{ModelServer, text},
    qq::{APP_ID, APP_SECRET, Qq},
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";
const SILK: &[u8] = b"\x02#!SILK_V3 some voice";

fn section(qq: &Qq, more: &str) -> String {
    format!(
        "[media]\nallow_hosts = [\"{}\"]\n[channels.qq.main]\n{}\nowners = [\"U1\"]\n{more}\n\
         [channels.qq.main.groups.G1]\nallow_from = [\"*\"]",
        qq.host(),
        qq.section()
    )
}

/// Waits until somebody reads this, and tells the number and the message it answers.
async fn said(qq: &Qq, words: &str) -> (Option<u64>, String) {
    qq.until(words, |told| told.sent.iter().any(|sent| sent.text().contains(words))).await;
    qq.look(|told| {
        let sent = told.sent.iter().find(|sent| sent.text().contains(words)).expect("it was just there");
        (sent.seq(), sent.body["msg_id"].as_str().unwrap_or_default().to_owned())
    })
}

async fn connected(qq: &Qq) {
    qq.until("the bot is connected", |told| told.open == 1 && !told.identified.is_empty()).await;
}

#[tokio::test]
async fn people_and_groups_are_answered_once_by_name_of_their_message() {
    let qq = Qq::start().await;
    let model = ModelServer::echo().await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), section(&qq, ""))).await;
    connected(&qq).await;
    qq.event("C2C_MESSAGE_CREATE", Qq::c2c("m1", "U1", "你好"));
    assert_eq!(said(&qq, "you said: 你好").await, (Some(1), "m1".to_owned()));
    qq.event("C2C_MESSAGE_CREATE", Qq::c2c("m1", "U1", "你好"));
    qq.event("GROUP_AT_MESSAGE_CREATE", Qq::group("m2", "G1", "M7", "what is it"));
    assert_eq!(said(&qq, "what is it").await.1, "m2");
    qq.event("GROUP_AT_MESSAGE_CREATE", Qq::group("m3", "G2", "M7", "a group nobody listed"));
    qq.event("C2C_MESSAGE_CREATE", Qq::c2c("m4", "U1", "the last"));
    said(&qq, "the last").await;
    assert_eq!(qq.look(|told| told.sent.len()), 3);
    assert!(model.asks_about("nobody listed").is_empty());
    assert_eq!(gateway.terminate().await.0, Some(0));
    qq.until("it is gone", |told| told.open == 0).await;
    assert!(!gateway.log().contains(APP_SECRET) && !gateway.log().contains("token-1"), "a secret is in the log");
}

#[tokio::test]
async fn text_picture_and_voice_go_both_ways() {
    let qq = Qq::start().await;
    let model = ModelServer::start(|_| text("Here.\nMEDIA:./out/a.png\nMEDIA:./out/b.silk")).await;
    let mut gateway = Gateway::folder(&format!("{}\n{}", model.section(), section(&qq, "")));
    let out = gateway.workspace().join("out");
    fs::create_dir_all(&out).expect("a folder");
    fs::write(out.join("a.png"), PNG).expect("a file");
    fs::write(out.join("b.silk"), SILK).expect("a file");
    gateway.restart().await;
    connected(&qq).await;
    let mut message = Qq::c2c("m1", "U1", "look and listen");
    message["attachments"] = json!([
        { "content_type": "image/png", "filename": "cat.png", "url": qq.file("cat", PNG) },
        { "content_type": "voice", "filename": "v.amr", "url": qq.file("voice", SILK), "asr_refer_text": "早上好" },
    ]);
    qq.event("C2C_MESSAGE_CREATE", message);
    qq.until("three messages", |told| told.sent.len() == 3).await;
    let asked = model.asks_about("look and listen").remove(0);
    let said = asked.said();
    assert!(said.contains("attachment: image \"cat.png\" (image/png"), "{said}");
    assert!(said.contains("attachment: audio \"v.amr\"") && said.contains("早上好"), "{said}");
    assert_eq!(said.matches(", path media/").count(), 2, "both were fetched: {said}");
    let (files, numbers) = qq.look(|told| {
        let files: Vec<u64> = told.files.iter().map(|file| file.1).collect();
        (files, told.sent.iter().map(|sent| sent.seq()).collect::<Vec<_>>())
    });
    assert_eq!((files.as_slice(), numbers.as_slice()), (&[1, 3][..], &[Some(1), Some(2), Some(3)][..]));
}

#[tokio::test]
async fn kill_9_at_every_station_loses_nothing_and_shows_nothing_twice() {
    let qq = Qq::start().await;
    let model = ModelServer::echo().await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), section(&qq, ""))).await;
    connected(&qq).await;
    qq.event("C2C_MESSAGE_CREATE", Qq::c2c("m0", "U1", "station 0."));
    said(&qq, "station 0.").await;
    let stations = ["qq.event", "qq.stored", "turn.begun", "finish.done", "qq.numbered", "part.sent"];
    for (n, station) in (1..).zip(stations) {
        gateway.kill9().await;
        qq.event("C2C_MESSAGE_CREATE", Qq::c2c(&format!("m{n}"), "U1", &format!("station {n}.")));
        let ended = gateway.restart_doomed(&format!("{station}=return"), Duration::from_secs(60)).await;
        assert!(ended.is_some_and(|ended| !ended.success()), "`{station}` was never reached:\n{}", gateway.log());
        gateway.restart().await;
        assert_eq!(said(&qq, &format!("station {n}.")).await.1, format!("m{n}"), "{station}");
    }
    qq.event("C2C_MESSAGE_CREATE", Qq::c2c("end", "U1", "the end"));
    said(&qq, "the end").await;
    let texts = qq.look(|told| told.sent.iter().map(|sent| sent.text().to_owned()).collect::<Vec<_>>());
    for n in 0..=stations.len() {
        let copies = texts.iter().filter(|text| text.contains(&format!("station {n}."))).count();
        assert_eq!(copies, 1, "station {n}: {texts:?}");
    }
    assert_eq!(qq.look(|told| told.identified.len()), 1, "one session all the time");
}

#[tokio::test]
async fn a_signed_webhook_is_answered_and_an_unsigned_one_leaves_no_row() {
    let qq = Qq::start().await;
    let model = ModelServer::echo().await;
    let config = format!("{}\n{}", model.section(), section(&qq, "mode = \"webhook\""));
    let gateway = Gateway::start(&config).await;
    let url = format!("{}/channels/qq/main", gateway.url());
    let post = async |body: String, sign: bool| {
        let time = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_secs().to_string();
        let mut request = client().post(&url).header("x-bot-appid", APP_ID);
        if sign {
            let signature = channel_qq::sign(APP_SECRET, &time, body.as_bytes());
            request = request.header("x-signature-timestamp", &time).header("x-signature-ed25519", signature);
        }
        let answer = request.body(body).send().await.expect("an answer");
        (answer.status().as_u16(), answer.text().await.expect("a body"))
    };
    let event = |id: &str, words: &str| {
        let d = Qq::c2c(id, "U1", words);
        json!({ "op": 0, "id": format!("e-{id}"), "t": "C2C_MESSAGE_CREATE", "d": d }).to_string()
    };
    assert_eq!(post(event("m0", "unsigned"), false).await.0, 401);
    for _ in 0..3 {
        assert_eq!(post(event("m1", "signed"), true).await, (200, json!({ "op": 12, "d": 0 }).to_string()));
    }
    said(&qq, "you said: signed").await;
    let asked = json!({ "op": 13, "d": { "plain_token": "{\"op\":0}", "event_ts": "1725442341" } }).to_string();
    assert_eq!(post(asked, false).await.0, 403);
    post(event("m2", "the end"), true).await;
    said(&qq, "the end").await;
    assert_eq!(qq.look(|told| told.sent.len()), 2);
    assert!(model.asks_about("unsigned").is_empty());
}
