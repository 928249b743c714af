//! Discord as its users meet it: the real gateway against a Discord with real sessions, files and nonces.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::json;

use crate::support::{
    discord::{ADA, BOB, BOT_ID, DM, Discord, Fault, GENERAL, TOKEN},
    gateway::Gateway,
    model_server::{ModelServer, text},
};

struct Chat {
    discord: Discord,
    model: ModelServer,
    gateway: Gateway,
}

/// A gateway with one bot that is connected; Ada is its owner.
async fn chat(more: &str) -> Chat {
    #[allow(clippy::disallowed_methods, reason = "the real gateway runs in real time")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis();
    let discord = Discord::start(i64::try_from(now).expect("before the year 292277026")).await;
    let model = ModelServer::echo().await;
    let section = format!("[channels.discord.main]\n{}owners = [\"{ADA}\"]\n{more}\n", discord.section());
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    discord.until_connected(1).await;
    Chat { discord, model, gateway }
}

impl Chat {
    async fn said(&self, channel: &str, words: &str) {
        self.discord.until(words, |discord| discord.texts(channel).iter().any(|text| text.contains(words))).await;
    }
}

#[tokio::test]
async fn text_picture_and_voice_go_in_and_out() {
    let mut chat = chat(&format!("groups.\"{GENERAL}\" = {{ allow_from = [\"*\"] }}")).await;
    chat.discord.say(DM, ADA, "hello there", json!({}));
    chat.said(DM, "you said: hello there").await;
    let asked = chat.discord.say(GENERAL, BOB, &format!("<@{BOT_ID}> what do you think?"), json!({}));
    chat.said(GENERAL, "what do you think?").await;
    assert_eq!(chat.discord.written(GENERAL)[0]["message_reference"]["message_id"], asked);
    chat.discord.say(GENERAL, BOB, "nobody asked the bot", json!({}));

    let png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01\0\0\0\x01\x08\x06\0\0\0\x1f\x15\xc4\x89";
    let picture = chat.discord.put_file("cat.png", png);
    let voice = chat.discord.put_file("voice-message.ogg", b"OggS\0\x02\0\0\0\0\0\0\0\0voice");
    let file = |name: &str, url: &str, mime: &str| json!({"filename": name, "url": url, "content_type": mime});
    let files = json!([file("cat.png", &picture, "image/png"), file("voice-message.ogg", &voice, "audio/ogg")]);
    std::fs::write(chat.gateway.workspace().join("chart.png"), png).expect("written");
    std::fs::write(chat.gateway.workspace().join("song.ogg"), b"OggS\0\x02song").expect("written");
    chat.model.follow(|ask| match ask.said().contains("look and listen") {
        true => text("Here you are.\nMEDIA:./chart.png\nMEDIA:./song.ogg"),
        false => text("quiet"),
    });
    chat.discord.say(DM, ADA, "look and listen", json!({"attachments": files}));
    chat.discord
        .until("the files of the answer", |discord| {
            discord
                .calls_of(&format!("POST /channels/{DM}/messages"))
                .iter()
                .map(|call| call.files.len())
                .sum::<usize>()
                == 2
        })
        .await;
    let asks = chat.model.asks_about("look and listen");
    for line in ["attachment: image \"cat.png\" (image/png", "attachment: audio \"voice-message.ogg\" (audio/ogg"] {
        assert!(asks[0].said().contains(line), "{}", asks[0].said());
    }
    let sent: Vec<(String, Vec<u8>)> = chat.discord.calls().into_iter().flat_map(|call| call.files).collect();
    assert_eq!(sent, [("chart.png".to_owned(), png.to_vec()), ("song.ogg".to_owned(), b"OggS\0\x02song".to_vec())]);
    assert!(chat.model.asks_about("nobody asked the bot").is_empty());
    assert_eq!(chat.discord.violations(), Vec::<String>::new());
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
    let log = chat.gateway.log();
    assert!(!log.contains(TOKEN) && !log.contains("hello there"), "the log tells a token or words");
}

#[tokio::test]
async fn a_slash_command_is_answered_in_its_place_without_the_model() {
    let chat = chat(&format!("groups.\"{GENERAL}\" = {{}}")).await;
    let command = chat.discord.interact(2, GENERAL, ADA, json!({"name": "whoami", "type": 1}), json!({}));
    chat.discord.until("the answer", |discord| !discord.answers(&command).is_empty()).await;
    let answer = chat.discord.answers(&command)[0]["content"].clone();
    assert!(answer.as_str().is_some_and(|text| text.contains(ADA)), "{answer}");
    assert!(chat.discord.texts(GENERAL).is_empty() && chat.model.asks().is_empty());
    let stranger = chat.discord.interact(2, GENERAL, BOB, json!({"name": "whoami", "type": 1}), json!({}));
    chat.discord.until("the refusal", |discord| !discord.answers(&stranger).is_empty()).await;
    assert_eq!(chat.discord.answers(&stranger)[0]["content"], "This is not for you to use here.");
}

#[tokio::test]
async fn a_lost_answer_to_a_send_makes_no_copy() {
    let chat = chat("").await;
    for n in 0..3 {
        chat.discord.fail_next(&format!("POST /channels/{DM}/messages"), Fault::DoneThenReset);
        chat.discord.say(DM, ADA, &format!("errand {n};"), json!({}));
        chat.said(DM, &format!("errand {n};")).await;
        chat.discord
            .until("it is settled", |discord| {
                discord
                    .calls_of(&format!("POST /channels/{DM}/messages"))
                    .iter()
                    .filter(|call| call.status == 200)
                    .count()
                    >= 2 * (n + 1)
            })
            .await;
    }
    assert_eq!(chat.discord.texts(DM).len(), 3, "{:?}", chat.discord.texts(DM));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_in_the_middle_lose_nothing_and_double_nothing() {
    let mut chat = chat("queue = \"followup\"").await;
    chat.discord.say(DM, ADA, "first;", json!({}));
    chat.said(DM, "first;").await;
    let mut all = Vec::new();
    for kill in 1..=3 {
        for n in 1..=3 {
            let words = format!("errand {kill}.{n};");
            chat.discord.say(DM, ADA, &words, json!({}));
            all.push(words);
        }
        chat.gateway.kill9().await;
        // While nobody listens.
        let words = format!("errand {kill}.4;");
        chat.discord.say_unheard(DM, ADA, &words, json!({}));
        all.push(words);
        chat.gateway.restart().await;
        chat.discord.until_connected(1 + kill).await;
    }
    chat.discord
        .until("every answer", |discord| {
            let texts = discord.texts(DM);
            all.iter().all(|words| texts.iter().any(|text| text.contains(words.as_str())))
        })
        .await;
    let texts = chat.discord.texts(DM);
    for words in &all {
        let copies = texts.iter().filter(|text| text.contains(words.as_str())).count();
        assert_eq!(copies, 1, "{words}: {texts:?}");
    }
    let answered: Vec<&String> = texts.iter().filter(|text| text.contains("errand")).collect();
    let mut sorted = answered.clone();
    sorted.sort_unstable();
    assert_eq!(answered, sorted, "answers in the order of the questions");
    assert_eq!(chat.gateway.terminate().await.0, Some(0));
}
