//! Answers in Telegram as people see them: long ones, marked ones, refused ones, doubtful ones.

use std::time::Duration;

use crate::support::{
    gateway::Gateway,
    model_server::{ModelServer, text},
    telegram::{ADA, BOT_NAME, Fault, Sent, Telegram, group},
};

const CANNOT_PARSE: Fault =
    Fault::Refuse(400, "Bad Request: can't parse entities: Unsupported start tag \"x\" at byte offset 7");

struct Chat {
    telegram: Telegram,
    _model: ModelServer,
    _gateway: Gateway,
}

/// A gateway whose model gives this answer to "tell me", and repeats everything else.
async fn telling(answer: &str) -> Chat {
    telling_with(answer, "").await
}

async fn telling_with(answer: &str, more: &str) -> Chat {
    let telegram = Telegram::start().await;
    let answer = answer.to_owned();
    let model = ModelServer::start(move |ask| match ask.said().contains("tell me") {
        true => text(answer.clone()),
        false => text(format!("you said: {}", ask.said().lines().next().unwrap_or_default())),
    })
    .await;
    let config = format!("{}\n{}", model.section(), telegram.section(&format!("limits = \"off\"\n{more}")));
    let gateway = Gateway::start(&config).await;
    telegram.polled().await;
    Chat { telegram, _model: model, _gateway: gateway }
}

impl Chat {
    /// What people see of the answer, when nothing more of it can come: the next message has been answered.
    async fn told(&self) -> Vec<Sent> {
        self.telegram.private(ADA, "tell me");
        self.telegram
            .until("the answer", |telegram| (!telegram.calls_of("sendMessage").is_empty()).then_some(()))
            .await;
        self.telegram.private(ADA, "thanks");
        self.telegram.said(ADA, "you said: thanks").await;
        let mut sent = self.telegram.sent_to(ADA);
        sent.pop();
        sent
    }
}

fn html(sent: &Sent) -> bool {
    sent.parse_mode.as_deref() == Some("HTML")
}

#[tokio::test]
async fn an_answer_of_4097_units_arrives_whole() {
    let lines: Vec<String> = (0..150).map(|n| format!("    let 数{n} = \"😀\";")).collect();
    let code = lines.join("\n");
    let head = "# 结果 👩‍👩‍👧‍👦\n\n> a **bold *and leaning* `x < y`** quote\n\n- one\n  - **two**\n\n";
    // As it is read: without the marks, with the bullets.
    let read = |fill: &str| format!("结果 👩‍👩‍👧‍👦\n\na bold and leaning x < y quote\n\n• one\n  ◦ two\n\n{fill}\n\n{code}");
    // The mark of a quote that the plain form shows counts too.
    let units = |fill: &str| read(fill).encode_utf16().count() + "> ".len();
    let fill = "x".repeat(4_097 - units(""));
    assert_eq!(units(&fill), 4_097);
    let chat = telling(&format!("{head}{fill}\n\n```rust\n{code}\n```")).await;
    let sent = chat.told().await;
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent.iter().all(html));
    // The code block is closed at the cut and opened again; nothing is lost.
    let open = "<pre><code class=\"language-rust\">";
    assert!(sent[0].raw.ends_with("</code></pre>") && sent[1].raw.starts_with(open), "{sent:?}");
    let seen = sent.iter().map(|sent| sent.text.as_str()).collect::<Vec<_>>().join("\n");
    let trimmed = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    assert_eq!(trimmed(&seen), trimmed(&read(&fill)));
    assert!(
        sent[0].raw.contains("<blockquote>a <b>bold <i>and leaning</i> </b><code>x &lt; y</code> quote</blockquote>")
    );
}

#[tokio::test]
async fn bad_input_50_a_parse_error_falls_back_to_plain_text_of_the_same_chunk() {
    let paragraphs: Vec<String> =
        (0..12).map(|n| format!("**part {n}** {}", "some words ".repeat(80).trim())).collect();
    let chat = telling(&paragraphs.join("\n\n")).await;
    // The first passes; the second does not.
    chat.telegram.then("sendMessage", [Fault::Slow(Duration::ZERO), CANNOT_PARSE]);
    let sent = chat.told().await;
    assert_eq!(sent.iter().map(html).collect::<Vec<_>>(), [true, false, false], "{sent:?}");
    assert!(!sent[1].raw.contains("<b>") && !sent[1].raw.contains("**"), "{:?}", sent[1].raw);
    // The refused message and the plain one are the same piece of the answer.
    let calls = chat.telegram.calls_of("sendMessage");
    let bodies: Vec<&str> = calls.iter().map(|call| call.body["text"].as_str().expect("a text")).collect();
    assert_eq!(calls[1].status, 400);
    assert_eq!(bodies[1].replace("<b>", "").replace("</b>", ""), bodies[2]);
    let seen = sent.iter().map(|sent| sent.text.as_str()).collect::<Vec<_>>().join("\n\n");
    assert_eq!(seen, paragraphs.join("\n\n").replace("**", ""));
}

#[tokio::test]
async fn an_answer_whose_fate_is_not_known_comes_once_more_with_a_mark() {
    let chat = telling("the **answer**").await;
    chat.telegram.then("sendMessage", [Fault::DoneThenReset]);
    let sent = chat.told().await;
    let texts: Vec<&str> = sent.iter().map(|sent| sent.text.as_str()).collect();
    assert_eq!(texts, ["the answer", "↻ (this message may have arrived once before)\nthe answer"]);
}

#[tokio::test]
async fn bad_input_50_a_refused_answer_stops_nothing_behind_it() {
    let chat = telling("the answer").await;
    chat.telegram.then("sendMessage", [Fault::Refuse(403, "Forbidden: bot was blocked by the user")]);
    let sent = chat.told().await;
    assert!(sent.is_empty(), "{sent:?}");
    let calls = chat.telegram.calls_of("sendMessage");
    assert_eq!(calls.iter().map(|call| call.status).collect::<Vec<_>>(), [403, 200]);
}

#[tokio::test]
async fn an_answer_follows_a_group_that_moved() {
    let (old, new) = (-777, -1_000_000_000_777);
    let chat = telling_with(&"the answer ".repeat(500), &format!("groups.\"{old}\" = {{}}")).await;
    // The new group is there, and nobody has said anything to the bot in it.
    chat.telegram.group(&group(new), ADA, "we are here now");
    chat.telegram.then("sendMessage", [Fault::Moved(new)]);
    let asked = chat.telegram.group(&group(old), ADA, &format!("@{BOT_NAME} tell me"));
    let sent = chat.telegram.until("both parts", |telegram| Some(telegram.sent()).filter(|sent| sent.len() == 2)).await;
    assert!(sent.iter().all(|sent| sent.chat == new && sent.reply_to.is_none()), "{sent:?}");
    let calls = chat.telegram.calls_of("sendMessage");
    assert_eq!(
        calls.iter().map(|call| call.body["chat_id"].as_i64()).collect::<Vec<_>>(),
        [Some(old), Some(new), Some(new)]
    );
    assert_eq!(calls[0].body["reply_parameters"]["message_id"], asked);
}
