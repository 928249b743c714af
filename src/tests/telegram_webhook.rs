//! Telegram by webhook: posted updates are answered, an update is acknowledged only once it is stored, and nobody without
//! the secret is heard.

use serde_json::json;

use crate::support::{
    gateway::{Gateway, client},
    model_server::ModelServer,
    telegram::{ADA, Telegram},
};

const SECRET: &str = "a-secret-of-the-tests_0123456789";
const MODE: &str =
    "mode = \"webhook\"\nwebhook_url = \"http://127.0.0.1\"\nsecret_token = \"a-secret-of-the-tests_0123456789\"";

#[tokio::test]
async fn posted_messages_are_answered_and_an_end_in_between_loses_none() {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(MODE))).await;
    telegram.reach(gateway.address());
    telegram.private(ADA, "hello");
    telegram.said(ADA, "you said: hello").await;
    assert_eq!(telegram.webhook().as_deref(), Some("http://127.0.0.1/channels/telegram/main"));
    telegram.all_confirmed().await;
    assert_eq!(gateway.terminate().await.0, Some(0));
    let update = telegram.newest_update() + 1;
    telegram.private(ADA, "are you there?");
    telegram
        .until("a post in vain", |telegram| telegram.posted().iter().any(|post| post.update == update).then_some(()))
        .await;
    for point in ["telegram.batch", "telegram.stored"] {
        let ended = gateway.restart_doomed(&format!("{point}=return"), std::time::Duration::from_secs(60)).await;
        assert!(ended.is_some_and(|ended| !ended.success()), "`{point}` was never reached:\n{}", gateway.log());
    }
    gateway.restart().await;
    telegram.said(ADA, "you said: are you there?").await;
    telegram.all_confirmed().await;
    telegram.private(ADA, "good");
    telegram.said(ADA, "you said: good").await;
    assert_eq!(telegram.sent_to(ADA).len(), 3, "{:?}", telegram.sent_to(ADA));
    let statuses: Vec<u16> = telegram.posted().into_iter().map(|post| post.status).collect();
    assert!(statuses.iter().all(|status| matches!(status, 0 | 200 | 404 | 503)), "{statuses:?}");
    assert!(telegram.calls_of("getUpdates").is_empty(), "it asks for nothing");
    assert!(!gateway.log().contains(SECRET), "the secret is in the log");
}

#[tokio::test]
async fn row_07_who_does_not_know_the_secret_is_401_and_leaves_no_row() {
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(MODE))).await;
    let url = format!("{}/channels/telegram/main", gateway.url());
    let forged = json!({ "update_id": 1, "message": {
        "message_id": 1, "date": 1_795_000_000, "text": "forged", "chat": { "id": ADA, "type": "private" },
        "from": { "id": ADA, "is_bot": false, "first_name": "Ada" },
    }});
    for secret in [None, Some("wrong"), Some("")] {
        let mut post = client().post(&url).json(&forged);
        if let Some(secret) = secret {
            post = post.header("X-Telegram-Bot-Api-Secret-Token", secret);
        }
        assert_eq!(post.send().await.expect("an answer").status(), 401);
    }
    let long = client().post(&url).header("X-Telegram-Bot-Api-Secret-Token", SECRET).body(vec![b' '; 2 << 20]);
    assert_eq!(long.send().await.expect("an answer").status(), 413);
    telegram.reach(gateway.address());
    telegram.private(ADA, "genuine");
    telegram.said(ADA, "you said: genuine").await;
    assert!(model.asks_about("forged").is_empty());
    assert_eq!(telegram.sent_to(ADA).len(), 1);
}
