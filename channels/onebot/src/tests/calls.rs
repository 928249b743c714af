//! Calls: their answers, and what it means when there is none.

use super::*;

async fn ready() -> Bench {
    let mut bench = Bench::new(Flavour::NapCat);
    bench.connect();
    bench.up().await;
    bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("a question"))).await;
    bench
}

#[tokio::test]
async fn rule_20_a_timed_out_send_is_unknown_and_not_repeated() {
    let bench = ready().await;
    bench.bot.fault("send_group_msg", Fault::DoneButTimeout);
    let sent = bench.send(&bench.address(), &one(&bench.channel, "an answer")).await;
    assert_eq!(SendClass::of(&sent), SendClass::Unknown, "{sent:?}");
    assert_eq!(bench.bot.calls_of("send_group_msg").len(), 1);
    assert_eq!(bench.bot.said(), ["an answer"], "it arrived all the same");
}

#[tokio::test]
async fn bad_input_38_an_answer_that_never_comes_is_unknown_after_ten_seconds_and_a_second_one_is_ignored() {
    for fault in [Fault::DoneButSilent, Fault::WrongEcho] {
        let bench = ready().await;
        bench.bot.fault("send_group_msg", fault);
        let (to, part) = (bench.address(), one(&bench.channel, "an answer"));
        let send = bench.send(&to, &part);
        tokio::pin!(send);
        let waiting = bench.bot.until("it is called", |bot| bot.calls_of("send_group_msg").len() == 1);
        tokio::select! {
            biased;
            sent = &mut send => panic!("answered early: {sent:?}"),
            () = waiting => {}
        }
        bench.gateway.clock.advance(Duration::from_millis(9_900));
        assert!(send.as_mut().now_or_never().is_none());
        bench.gateway.clock.advance(Duration::from_millis(100));
        let sent = send.await;
        assert_eq!(SendClass::of(&sent), SendClass::Unknown, "{sent:?}");
    }
    let bench = ready().await;
    bench.bot.fault("send_group_msg", Fault::AnsweredTwice);
    let sent = bench.send(&bench.address(), &one(&bench.channel, "an answer")).await;
    assert_eq!(SendClass::of(&sent), SendClass::Sent, "{sent:?}");
    bench.counted("answer_to_nothing", 1).await;
    let (to, part) = (bench.address(), one(&bench.channel, "the next"));
    let next = bench.send(&to, &part);
    tokio::pin!(next);
    // It waits for its turn in the chat first.
    tokio::select! {
        sent = &mut next => assert!(sent.is_ok(), "{sent:?}"),
        () = bench.gateway.clock.until_sleeping(2) => {
            bench.gateway.clock.advance(Duration::from_secs(1));
            assert!(next.await.is_ok());
        }
    }
}

#[tokio::test]
async fn what_an_implementation_says_decides_what_happens_next() {
    let bench = ready().await;
    for (retcode, words, class) in [
        (1200, "Timeout: NTEvent sendMsg", SendClass::Unknown),
        (200, "timeout: EventChecker Failed", SendClass::Unknown),
        (1202, "发送超时", SendClass::Unknown),
        (1403, "token验证失败", SendClass::ChannelDown),
        (100, "消息发送过于频繁，请稍后再试", SendClass::RetryAfter(Duration::from_secs(30))),
        (100, "网络错误", SendClass::Retry),
        (1200, "您已被禁言", SendClass::Refused),
        (100, "SEND_MSG_API_ERROR", SendClass::Refused),
        (1400, "消息体无法解析", SendClass::Refused),
    ] {
        bench.bot.fault("send_group_msg", Fault::Refuse(retcode, words));
        bench.gateway.clock.advance(Duration::from_secs(5));
        let sent = bench.send(&bench.address(), &one(&bench.channel, "an answer")).await;
        assert_eq!(SendClass::of(&sent), class, "{retcode} {words}: {sent:?}");
    }
    assert!(bench.bot.said().is_empty());
}

#[tokio::test]
async fn an_unknown_send_is_looked_for_in_the_history() {
    let bench = ready().await;
    let since = 1_795_996_800_000;
    let (to, part) = (bench.address(), one(&bench.channel, "the **answer** is 42"));
    let look = async |part: &Part| {
        let reconcile = bench.channel.reconcile(&to, part, &PART, since);
        tokio::pin!(reconcile);
        loop {
            tokio::select! {
                biased;
                found = &mut reconcile => return found,
                // In small steps: between its two looks it waits, and during each it must not run out of time.
                () = tokio::task::yield_now() => bench.gateway.clock.advance(Duration::from_millis(50)),
            }
        }
    };
    static PART: std::sync::LazyLock<SendKey> = std::sync::LazyLock::new(|| key(1));
    assert_eq!(look(&part).await, Reconciled::Absent);
    bench.bot.fault("send_group_msg", Fault::DoneButTimeout);
    assert!(bench.send(&to, &part).await.is_err());
    match look(&part).await {
        Reconciled::Found(receipt) => assert!(receipt.platform_id.is_some_and(|id| id.starts_with("group:700:"))),
        other => panic!("{other:?}"),
    }
    assert_eq!(look(&one(&bench.channel, "something else")).await, Reconciled::Absent);
    // One with a receipt is another part that says the same.
    bench.gateway.clock.advance(Duration::from_secs(5));
    let twin = one(&bench.channel, "ok");
    bench.send(&to, &twin).await.expect("sent");
    assert_eq!(look(&twin).await, Reconciled::Absent);
    bench.bot.forget("get_group_msg_history");
    assert_eq!(look(&part).await, Reconciled::CannotTell);
}

#[tokio::test]
async fn r11_of_a_chaotic_implementation_every_answer_comes_once() {
    let bench = ready().await;
    let to = bench.address();
    let mut wanted = Vec::new();
    let mut calls = 0;
    for n in 0..60 {
        let answer = format!("answer {n}");
        let part = one(&bench.channel, &answer);
        match n % 5 {
            0 => bench.bot.fault("send_group_msg", Fault::Refuse(100, "网络错误")),
            1 => bench.bot.fault("send_group_msg", Fault::DoneButTimeout),
            2 => bench.bot.fault("send_group_msg", Fault::AnsweredTwice),
            _ => {}
        }
        // As delivery does it: again after a retry, a look after an unknown outcome.
        loop {
            bench.gateway.clock.advance(Duration::from_secs(5));
            calls += 1;
            match bench.send(&to, &part).await {
                Ok(_) => break,
                Err(SendError::Retry(_)) => {}
                Err(SendError::Unknown(_)) => {
                    match bench.channel.reconcile(&to, &part, &key(1), 1_795_996_800_000).await {
                        Reconciled::Found(_) => break,
                        other => panic!("it arrived, and {other:?}"),
                    }
                }
                Err(error) => panic!("{error}"),
            }
        }
        wanted.push(answer);
    }
    assert_eq!(bench.bot.said(), wanted, "none twice, none lost, in order");
    assert!(calls as f64 <= 1.6 * 60.0, "{calls} calls");
}

#[tokio::test]
async fn r12_a_chat_never_gets_more_than_its_pace_and_two_in_a_row_are_not_in_step() {
    let bench = ready().await;
    let rate = bench.channel.lane_rate("group:700").expect("a pace");
    assert_eq!((rate.burst, rate.every), (1, Duration::from_millis(1_200)));
    let to = bench.address();
    bench.send(&to, &one(&bench.channel, "one")).await.expect("the first goes at once");
    let part = one(&bench.channel, "two");
    let second = bench.send(&to, &part);
    tokio::pin!(second);
    let waits = tokio::select! {
        biased;
        sent = &mut second => { sent.expect("chance may add nothing"); false }
        () = bench.gateway.clock.until_sleeping(2) => true,
    };
    if waits {
        bench.gateway.clock.advance(Duration::from_millis(500));
        second.await.expect("chance adds half a second at most");
    }
    assert_eq!(bench.bot.said(), ["one", "two"]);
}
