//! What is alive in a Telegram chat: pressed buttons, edited messages, answers that grow while they are written.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    gateway::Gateway,
    model_server::{ModelServer, Say},
    telegram::{ADA, BOT_NAME, Telegram, group, private},
};

const GROUP: i64 = -1_001_234_567_890;

#[tokio::test]
async fn a_press_is_a_word_of_who_pressed_and_passes_the_same_gate() {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let more = format!("groups.\"{GROUP}\" = {{}}");
    let _gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(&more))).await;
    telegram.private(ADA, "hello");
    let answer = telegram.said(ADA, "you said: hello").await;
    let query = telegram.press(&private(ADA), answer.id, ADA, "/whoami");
    telegram.said(ADA, "owner").await;
    telegram.until("the answer to the press", |telegram| telegram.answered().contains(&query).then_some(())).await;

    telegram.group(&group(GROUP), ADA, &format!("@{BOT_NAME} in here"));
    let answer = telegram.said(GROUP, "in here").await;
    // Under the owner's answer, by somebody else.
    let query = telegram.press(&group(GROUP), answer.id, 7, "/whoami");
    telegram.until("the answer to the press", |telegram| telegram.answered().contains(&query).then_some(())).await;
    telegram.all_confirmed().await;
    let before = telegram.sent_to(GROUP).len();
    telegram.press(&group(GROUP), answer.id, ADA, "/whoami");
    let said = telegram.said(GROUP, "owner").await;
    assert_eq!((said.reply_to, telegram.sent_to(GROUP).len()), (Some(answer.id), before + 1));
    assert_eq!(model.asks().len(), 2, "the model saw no press");
}

#[tokio::test]
async fn bad_input_43_an_edit_of_an_answered_message_starts_no_second_turn() {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let _gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(""))).await;
    let id = telegram.private(ADA, "helo");
    telegram.said(ADA, "you said: helo").await;
    for (n, text) in ["hello", "hello!", "hello!!"].iter().enumerate() {
        let edited = json!({
            "message_id": id, "date": 1_795_000_000, "edit_date": 1_795_000_000 + n / 2, "text": text,
            "chat": private(ADA), "from": { "id": ADA, "is_bot": false, "first_name": "Ada" },
        });
        telegram.update("edited_message", &edited);
    }
    telegram.private(ADA, "next");
    telegram.said(ADA, "you said: next").await;
    telegram.all_confirmed().await;
    assert_eq!((telegram.sent_to(ADA).len(), model.asks().len()), (2, 2), "{:?}", telegram.sent_to(ADA));
}

/// An answer that takes a while to write.
const LONG: &str = "The first words of a **long** answer, then more of them, and a list:\n\n- one thing\n- another thing\n\n\
                    ```rust\nlet x = 1;\n```\n\nand at last the end of it.";

fn slow(text: &str) -> Say {
    Say::Written(Duration::from_millis(100), text.to_owned())
}

#[tokio::test]
async fn in_a_private_chat_a_draft_grows_and_the_answer_comes_once() {
    let telegram = Telegram::start().await;
    let model =
        ModelServer::start(|ask| if ask.said().contains("quiet") { slow("NO_REPLY") } else { slow(LONG) }).await;
    let _gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section("limits = \"off\""))).await;
    telegram.private(ADA, "tell me");
    let answer = telegram.said(ADA, "the end of it.").await;
    let drafts = telegram.drafts();
    assert!(drafts.len() >= 3, "{drafts:?}");
    assert!(drafts.iter().all(|draft| draft.chat == ADA && draft.id == drafts[0].id), "one draft: {drafts:?}");
    let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    let whole = letters(&answer.text);
    assert!(drafts.iter().all(|draft| whole.starts_with(&letters(&draft.text))), "{drafts:?}");
    assert_eq!((telegram.sent_to(ADA).len(), answer.earlier.len()), (1, 0));
    // What is to stay unsaid is not shown either, not even its beginning.
    telegram.private(ADA, "be quiet");
    model.asked_about("be quiet").await;
    telegram.private(ADA, "tell me again");
    telegram.until("the second answer", |telegram| (telegram.sent_to(ADA).len() == 2).then_some(())).await;
    let shown = telegram.drafts();
    assert!(shown.iter().all(|draft| !draft.text.starts_with("NO")), "{shown:?}");
}

#[tokio::test]
async fn in_a_group_a_message_is_edited_and_ends_with_the_final_text_once_and_after_a_crash_too() {
    let telegram = Telegram::start().await;
    let model = ModelServer::start(|_| slow(LONG)).await;
    let more = format!("limits = \"off\"\ngroups.\"{GROUP}\" = {{}}");
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(&more))).await;
    let asked = telegram.group(&group(GROUP), ADA, &format!("@{BOT_NAME} tell me"));
    let answer = telegram.said(GROUP, "the end of it.").await;
    assert_eq!(answer.reply_to, Some(asked));
    assert!(answer.earlier.len() >= 2, "{:?}", answer.earlier);
    let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
    let whole = letters(&answer.text);
    assert!(answer.earlier.iter().all(|text| whole.starts_with(&letters(text))), "{:?}", answer.earlier);
    assert!(answer.earlier[0].chars().count() >= 30, "the notification says something: {:?}", answer.earlier[0]);
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    assert_eq!(telegram.sent_to(GROUP).len(), 1, "{:?}", telegram.sent_to(GROUP));

    for (n, point) in ["preview.stored", "finish.done", "part.sending", "part.sent"].into_iter().enumerate() {
        telegram.group(&group(GROUP), ADA, &format!("@{BOT_NAME} once more"));
        let ended = gateway.restart_doomed(&format!("{point}=return"), Duration::from_secs(60)).await;
        assert!(ended.is_some_and(|ended| !ended.success()), "`{point}` was never reached:\n{}", gateway.log());
        gateway.restart().await;
        telegram
            .until("the next answer", |telegram| {
                let sent = telegram.sent_to(GROUP);
                (sent.len() == n + 2 && sent.iter().all(|sent| sent.text.ends_with("the end of it."))).then_some(())
            })
            .await;
        telegram.all_confirmed().await;
        assert_eq!(gateway.terminate().await.0, Some(0));
        let sent = telegram.sent_to(GROUP);
        assert!(sent.len() == n + 2 && sent.iter().all(|sent| !sent.text.starts_with('↻')), "{point}: {sent:?}");
    }
}
