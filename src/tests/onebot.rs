//! QQ by way of OneBot as its users meet it: the real gateway, and an implementation that connects to it over a real
//! WebSocket, is connected to, or pushes by HTTP.

use std::{fs, time::Duration};

use channel_api::Clock;
use crawfish::clock::SystemClock;
use serde_json::json;

use crate::support::{
    gateway::{Gateway, client},
    model_server::{ModelServer, text as says},
    onebot::{ADA, BOT, Fault, Flavour, GROUP, OneBot, at_bot, text, words},
};

const TOKEN: &str = "hush-hush-0123456789";
/// 1 x 1, whole.
const PNG: &[u8] = &[
    0x89, b'P', b'N', b'G', 0x0d, 0x0a, 0x1a, 0x0a, 0, 0, 0, 13, b'I', b'H', b'D', b'R', 0, 0, 0, 1, 0, 0, 0, 1, 8, 0,
    0, 0, 0, 0x3a, 0x7e, 0x9b, 0x55, 0, 0, 0, 10, b'I', b'D', b'A', b'T', 0x78, 0x9c, 0x63, 0x60, 0, 0, 0, 2, 0, 1,
    0x48, 0xaf, 0xa4, 0x71, 0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82,
];

struct Chat {
    bot: OneBot,
    model: ModelServer,
    gateway: Gateway,
}

fn section(more: &str) -> String {
    format!(
        "[channels.onebot.qq]\naccess_token = \"{TOKEN}\"\nowners = [\"{ADA}\"]\nmarks = \"off\"\n\
         groups.\"{GROUP}\" = {{ allow_from = [\"*\"] }}\n{more}"
    )
}

/// A gateway and an implementation that is logged in and not connected yet.
async fn apart(more: &str) -> Chat {
    let bot = OneBot::new(Flavour::NapCat);
    bot.at(SystemClock::new().now_ms() / 1_000);
    let model = ModelServer::echo().await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), section(more))).await;
    Chat { bot, model, gateway }
}

impl Chat {
    /// Connects over a real WebSocket, as NapCat does: within two seconds, or not at all.
    async fn connect(&self) {
        let url = format!("{}/channels/onebot/qq", self.gateway.url().replace("http://", "ws://"));
        let bearer = format!("Bearer {TOKEN}");
        self.bot.dial(&url, "Universal", &[("authorization", &bearer)]).await.expect("the upgrade");
    }

    async fn said(&self, what: &str) {
        self.bot.until(what, |bot| bot.said().iter().any(|said| said.contains(what))).await;
    }
}

#[tokio::test]
async fn a_member_of_a_group_mentions_the_bot_over_reverse_websocket_and_is_answered_once() {
    let mut chat = apart("").await;
    chat.connect().await;
    let event = chat.bot.group_message(GROUP, 5, at_bot("hello there"));
    chat.bot.bring(&event);
    chat.said("you said: hello there").await;
    // The same event once more, something not said to the bot, and the bot's own words.
    chat.bot.bring(&event);
    chat.bot.bring(&chat.bot.group_message(GROUP, 5, text("nice weather")));
    chat.bot.bring(&chat.bot.group_message(GROUP, BOT, at_bot("me")));
    chat.bot.bring(&chat.bot.private_message(ADA, text("in private")));
    chat.said("you said: in private").await;
    let sent = chat.bot.sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert_eq!(sent[0][0], json!({ "type": "reply", "data": { "id": event["message_id"].to_string() } }));
    assert_eq!(sent[1][0]["type"], "text");
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
    assert!(!chat.gateway.log().contains(TOKEN), "the token is in the log");
}

#[tokio::test]
async fn a_wrong_token_opens_no_websocket_and_leaves_no_row() {
    let chat = apart("").await;
    let url = format!("{}/channels/onebot/qq", chat.gateway.url().replace("http://", "ws://"));
    for (headers, status) in [
        (&[("authorization", "Bearer wrong")][..], 403),
        (&[("authorization", "Token hush-hush-0123456789x")], 403),
        (&[], 401),
    ] {
        assert_eq!(chat.bot.dial(&url, "Universal", headers).await, Err(status));
    }
    let token = format!("Token {TOKEN}");
    chat.bot.dial(&format!("{url}/ws"), "Universal", &[("authorization", &token)]).await.expect("Token is taken too");
    assert!(chat.model.asks().is_empty());
}

#[tokio::test]
async fn pictures_and_voices_come_in_and_go_out() {
    let mut chat = apart("").await;
    for (name, bytes) in [("cat.png", PNG), ("song.mp3", b"ID3\x03\x00\x00\x00\x00\x00\x00")] {
        fs::create_dir_all(chat.gateway.workspace()).expect("a folder");
        fs::write(chat.gateway.workspace().join(name), bytes).expect("a file");
    }
    chat.model.follow(|ask| match ask.said().contains("draw") {
        true => says("Here.\nMEDIA:./cat.png\nMEDIA:./song.mp3"),
        false => says(format!("got: {}", ask.said())),
    });
    chat.connect().await;
    // `cat.png` as the sender's own bytes; the voice is asked for.
    chat.bot.file("voice.amr", json!({ "base64": "SUQzAwAAAAAAAA==" }));
    chat.bot.bring(&chat.bot.private_message(ADA, json!([
        { "type": "text", "data": { "text": "look and listen" } },
        { "type": "image", "data": { "file": "base64://iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNgAAAAAgABSK+kcQAAAABJRU5ErkJggg==" } },
        { "type": "record", "data": { "file": "voice.amr" } },
    ])));
    chat.said("got:").await;
    let asked = chat.model.asks_about("look and listen").remove(0);
    assert!(asked.said().contains("image") && asked.said().contains("audio"), "{}", asked.said());
    chat.bot.bring(&chat.bot.private_message(ADA, text("draw")));
    chat.bot.until("both files", |bot| bot.sent().iter().filter(|sent| sent[0]["type"] != "text").count() == 2).await;
    let sent = chat.bot.sent();
    let kinds: Vec<&str> = sent.iter().rev().take(3).rev().filter_map(|sent| sent[0]["type"].as_str()).collect();
    assert_eq!(kinds, ["text", "image", "record"]);
    assert!(
        sent[sent.len() - 2][0]["data"]["file"].as_str().is_some_and(|file| file.starts_with("base64://iVBORw0KGgo"))
    );
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
}

#[tokio::test]
async fn kills_at_any_moment_lose_nothing_and_double_nothing_unmarked() {
    let mut chat = apart("queue = \"followup\"").await;
    chat.model.follow(|ask| says(format!("done {}", ask.said().lines().next().unwrap_or_default())));
    chat.connect().await;
    chat.bot.bring(&chat.bot.private_message(ADA, text("errand 0.0;")));
    chat.bot.bring(&chat.bot.group_message(GROUP, ADA, at_bot("errand 0.1;")));
    chat.said("errand 0.0;").await;
    chat.said("errand 0.1;").await;
    let mut all = Vec::new();
    for kill in 1..=4 {
        for n in 0..2 {
            let words = format!("errand {kill}.{n};");
            let event = match n {
                0 => chat.bot.private_message(ADA, text(&words)),
                _ => chat.bot.group_message(GROUP, ADA, at_bot(&words)),
            };
            // The last of each round is said while nobody listens.
            if kill % 2 == 0 || n == 0 {
                chat.bot.bring(&event);
            }
            all.push(words);
        }
        if kill == 3 {
            chat.model.asked_about("errand 3.0;").await;
        }
        chat.gateway.kill9().await;
        chat.bot.hang_up(1006);
        chat.gateway.restart().await;
        chat.connect().await;
    }
    chat.bot
        .until("every answer", |bot| {
            let said = bot.said();
            all.iter().all(|words| said.iter().any(|said| said.contains(words.as_str())))
        })
        .await;
    let said = chat.bot.said();
    for words in &all {
        let texts: Vec<&String> = said.iter().filter(|said| said.contains(words.as_str())).collect();
        let unmarked = texts.iter().filter(|text| !text.contains('↻')).count();
        assert!(unmarked <= 1 && texts.len() <= 2, "{words}: {texts:?}");
    }
    for n in 0..2 {
        let order: Vec<&String> =
            said.iter().filter(|said| said.contains(&format!(".{n};")) && !said.contains('↻')).collect();
        assert!(order.is_sorted(), "answers in the order of the questions: {order:?}");
    }
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
}

#[tokio::test]
async fn a_send_that_timed_out_and_arrived_is_found_and_not_sent_again() {
    let mut chat = apart("").await;
    chat.connect().await;
    chat.bot.fault("send_private_msg", Fault::DoneButTimeout);
    chat.bot.bring(&chat.bot.private_message(ADA, text("one")));
    chat.said("you said: one").await;
    chat.bot.bring(&chat.bot.private_message(ADA, text("two")));
    chat.said("you said: two").await;
    assert_eq!(chat.bot.said(), ["you said: one", "you said: two"]);
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
}

#[tokio::test]
async fn a_long_answer_is_one_merged_forward() {
    let mut chat = apart("").await;
    let answer: String = (1..=700).map(|n| format!("Sentence {n}.\n\n")).collect();
    let whole = answer.clone();
    chat.model.follow(move |_| says(whole.clone()));
    chat.connect().await;
    chat.bot.bring(&chat.bot.group_message(GROUP, 5, at_bot("tell me all")));
    chat.said("Sentence 700.").await;
    let sent = chat.bot.sent();
    let found: Vec<String> =
        sent.iter().map(words).flat_map(|said| said.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    let found: Vec<String> = found.into_iter().filter(|line| !line.is_empty()).collect();
    let wanted: Vec<&str> = answer.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(found, wanted);
    assert!(sent.iter().all(|sent| sent[0]["type"] == "forward"), "{}", sent.len());
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
}

#[tokio::test]
async fn forward_websocket_and_http_answer_too() {
    let bot = OneBot::new(Flavour::NapCat);
    bot.token(TOKEN);
    bot.at(SystemClock::new().now_ms() / 1_000);
    let at = bot.serve().await;
    let model = ModelServer::echo().await;
    let forward = section(&format!("mode = \"forward\"\nurl = \"ws://{at}/\""));
    let mut gateway = Gateway::start(&format!("{}\n{forward}", model.section())).await;
    bot.until("it is connected", |bot| bot.connections().0 == 1).await;
    bot.bring(&bot.private_message(ADA, text("by forward WebSocket")));
    bot.until("the answer", |bot| bot.said() == ["you said: by forward WebSocket"]).await;
    assert_eq!(gateway.terminate().await.0, Some(0));

    let http = section(&format!("mode = \"http\"\napi_url = \"http://{at}\""));
    let mut gateway = Gateway::start(&format!("{}\n{http}", model.section())).await;
    let push = async |bearer: &str| {
        let url = format!("{}/channels/onebot/qq", gateway.url());
        let event = bot.private_message(ADA, text("by HTTP")).to_string();
        let post = client().post(url).bearer_auth(bearer).header("x-self-id", BOT.to_string()).body(event);
        let answer =
            tokio::time::timeout(Duration::from_secs(20), post.send()).await.expect("in time").expect("an answer");
        answer.status().as_u16()
    };
    assert_eq!(push("wrong").await, 403);
    assert_eq!(push(TOKEN).await, 204);
    bot.until("the answer", |bot| bot.said().len() == 2).await;
    assert_eq!(bot.said()[1], "you said: by HTTP");
    assert_eq!(gateway.terminate().await.0, Some(0));
}
