//! Feishu as its users meet it: the real gateway on a long connection to a platform that behaves as Feishu does.

use std::time::Duration;

use channel_api::Clock;
use crawfish::clock::SystemClock;
use serde_json::json;

use crate::support::{
    feishu::{self, APP_ID, APP_SECRET, Feishu},
    gateway::Gateway,
    model_server::{ModelServer, Say, call, text},
};

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";
const VOICE: &[u8] = b"OggS\0\x02\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x01\x13OpusHead\x01\x01";

fn section(platform: &Feishu) -> String {
    format!(
        "[channels.feishu.main]\napp_id = \"{APP_ID}\"\napp_secret = \"{APP_SECRET}\"\napi_url = \"{}\"\n\
         owners = [\"{}\"]\ngroups.\"oc_g\" = {{ allow_from = [\"*\"] }}\n",
        platform.url(),
        feishu::ADA
    )
}

fn now() -> i64 {
    SystemClock::new().now_ms()
}

/// Waits until somebody reads this.
async fn read(platform: &Feishu, what: &str) -> String {
    let found = |platform: &Feishu| platform.read().into_iter().find(|text| text.contains(what));
    platform.until(what, |told| feishu::shown(told).iter().any(|text| text.contains(what))).await;
    found(platform).unwrap_or_default()
}

#[tokio::test]
async fn an_owner_is_answered_once_in_private_in_a_group_and_in_a_thread() {
    let platform = Feishu::start().await;
    let model = ModelServer::echo().await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), section(&platform))).await;
    platform.until_connected(1).await;
    let hello = feishu::text("om_1", "oc_1", "p2p", "hello there", now());
    for _ in 0..2 {
        // The second time it is a new delivery of the same message.
        let frame = platform.deliver(&hello, 1);
        assert_eq!(platform.ack(&frame).await, 200);
    }
    read(&platform, "you said: hello there").await;
    for (id, words) in [("om_2", "nice weather"), ("om_3", "@_all dinner"), ("om_4", "@_user_1 what do you think?")] {
        platform.deliver(&feishu::text(id, "oc_g", "group", words, now()), 1);
    }
    read(&platform, "what do you think?").await;
    let mut threaded = feishu::text("om_5", "oc_g", "group", "@_user_1 in the thread", now());
    threaded["event"]["message"]["thread_id"] = json!("omt_1");
    platform.deliver(&threaded, 2);
    read(&platform, "in the thread").await;
    platform.deliver(&feishu::text("om_6", "oc_1", "p2p", "/whoami", now()), 1);
    read(&platform, "owner").await;
    let sent = platform.look(|told| told.sent.clone());
    let places: Vec<_> = sent.iter().map(|sent| (sent.reply_to.as_deref(), sent.in_thread)).collect();
    let expected = [(None, false), (Some("om_4"), false), (Some("om_5"), true), (None, false)];
    assert_eq!(places, expected, "{:?}", platform.read());
    assert_eq!(model.asks().len(), 3, "nothing else was for the bot");
    assert_eq!(gateway.terminate().await.0, Some(0));
    assert!(!gateway.log().contains(APP_SECRET), "the secret is in the log");
}

#[tokio::test]
async fn text_picture_and_voice_go_both_ways() {
    let platform = Feishu::start().await;
    platform.change(|told| {
        told.resources.insert("img_1".to_owned(), ("image/png".to_owned(), PNG.to_vec()));
        told.resources.insert("voice_1".to_owned(), ("audio/ogg".to_owned(), VOICE.to_vec()));
    });
    // Sends back the file of the last message.
    let model = ModelServer::start(|ask| {
        let line = ask.said().lines().rfind(|line| line.starts_with("attachment: ")).unwrap_or_default().to_owned();
        match (ask.round(), line.rsplit_once(", path ")) {
            (0, Some((_, path))) => Say::Calls(vec![call("c1", "read", &json!({ "path": path }).to_string())]),
            (_, Some((what, path))) => text(format!("Got {what}.\nMEDIA:{path}")),
            _ => text("No file."),
        }
    })
    .await;
    let _gateway = Gateway::start(&format!("{}\n{}", model.section(), section(&platform))).await;
    platform.until_connected(1).await;
    for (id, kind, content) in [
        ("om_1", "image", json!({ "image_key": "img_1" })),
        ("om_2", "audio", json!({ "file_key": "voice_1", "duration": 1000 })),
    ] {
        let frame = platform.deliver(&feishu::message(id, "oc_1", "p2p", kind, &content, now()), 1);
        assert_eq!(platform.ack(&frame).await, 200);
        platform.until("the file comes back", |told| told.sent.iter().any(|sent| sent.kind == kind)).await;
    }
    let uploads: Vec<Vec<u8>> = platform.look(|told| told.uploads.values().map(|file| file.bytes.clone()).collect());
    assert!(uploads.contains(&PNG.to_vec()) && uploads.contains(&VOICE.to_vec()), "they are the same bytes");
    let read = platform.read();
    assert!(read.iter().any(|text| text.contains("Got attachment: image")), "{read:?}");
    assert!(read.iter().any(|text| text.contains("Got attachment: audio")), "{read:?}");
}

#[tokio::test]
async fn kill_9_at_every_station_loses_nothing_and_shows_nothing_twice() {
    let platform = Feishu::start().await;
    let model = ModelServer::echo().await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), section(&platform))).await;
    platform.until_connected(1).await;
    platform.say(&feishu::text("om_0", "oc_1", "p2p", "station 0.", now()));
    read(&platform, "station 0.").await;
    let stations = ["feishu.event", "feishu.stored", "turn.begun", "finish.done", "part.sending", "part.sent"];
    for (n, station) in (1..).zip(stations) {
        gateway.kill9().await;
        platform.say(&feishu::text(&format!("om_{n}"), "oc_1", "p2p", &format!("station {n}."), now()));
        let ended = gateway.restart_doomed(&format!("{station}=return"), Duration::from_secs(60)).await;
        assert!(ended.is_some_and(|ended| !ended.success()), "`{station}` was never reached:\n{}", gateway.log());
        gateway.restart().await;
        read(&platform, &format!("you said: station {n}.")).await;
    }
    platform.say(&feishu::text("om_end", "oc_1", "p2p", "the end", now()));
    read(&platform, "you said: the end").await;
    let texts = platform.read();
    for n in 0..=stations.len() {
        let copies = texts.iter().filter(|text| text.contains(&format!("station {n}."))).count();
        assert_eq!(copies, 1, "station {n}: {texts:?}");
    }
}
