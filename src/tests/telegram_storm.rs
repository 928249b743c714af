//! Telegram at its limits: what it refuses as too fast is sent later, in order, and nothing is refused twice.

use crate::support::{
    chance::scale,
    gateway::Gateway,
    model_server::ModelServer,
    telegram::{Fault, Telegram},
};

/// `CRAWFISH_REPLIES=20` is R12 as it is written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r12_a_storm_of_429_breaks_no_limit_afterwards_and_loses_and_reorders_nothing() {
    const CHATS: i64 = 50;
    const FIRST: i64 = 1_000;
    let replies = i64::try_from(scale("CRAWFISH_REPLIES", 4)).expect("few");
    let telegram = Telegram::start().await;
    let model = ModelServer::echo().await;
    let more = "dm_policy = \"open\"\nallow_from = [\"*\"]\nqueue = \"followup\"";
    let _gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(more))).await;
    telegram.enforce_limits();
    telegram.then("sendMessage", (0..30).map(|_| Fault::RetryAfter(2)));
    for n in 1..=replies {
        for chat in FIRST..FIRST + CHATS {
            telegram.private(chat, &format!("number {n}."));
        }
    }
    telegram
        .until("every answer", |telegram| {
            let sent = telegram.sent();
            let of = |chat: i64| sent.iter().filter(|sent| sent.chat == chat).count();
            (FIRST..FIRST + CHATS).all(|chat| i64::try_from(of(chat)) == Ok(replies)).then_some(())
        })
        .await;
    for chat in FIRST..FIRST + CHATS {
        let texts: Vec<String> = telegram.sent_to(chat).into_iter().map(|sent| sent.text).collect();
        let expected: Vec<String> = (1..=replies).map(|n| format!("you said: number {n}.")).collect();
        assert_eq!(texts, expected);
    }
    let refused = telegram.calls_of("sendMessage").iter().filter(|call| call.status == 429).count();
    assert_eq!(refused, 30, "only what the storm itself refused");
}
