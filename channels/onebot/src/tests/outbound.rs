//! What goes out: text, merged forwards, files, the working line.

use super::*;

async fn ready() -> Bench {
    let mut bench = Bench::new(Flavour::NapCat);
    bench.connect();
    bench.up().await;
    bench
}

fn channel() -> OneBot {
    OneBot::new("qq", &config(), &network()).expect("a section that works")
}

/// 4,097 characters with emoji, nested lists and a code block across the border of a message.
fn long_answer() -> String {
    let mut text = "# 龙虾 🦞\n\n- 第一 👩‍👩‍👧‍👦\n  - 里面\n    - 更里面\n- 第二\n\n".to_owned();
    let mut n = 0;
    while text.chars().count() < 1_400 {
        n += 1;
        text.push_str(&format!("这是第 {n} 句话，说得不长。"));
    }
    text.push_str("\n\n```rust\n");
    for line in 0..20 {
        text.push_str(&format!("    let crab_{line} = {line}; // 🦀\n"));
    }
    text.push_str("```\n\n");
    while text.chars().count() < 4_096 {
        n += 1;
        let sentence = format!("这是第 {n} 句话。");
        text.extend(sentence.chars().take(4_096 - text.chars().count()));
    }
    text.push('完');
    assert_eq!(text.chars().count(), 4_097);
    text
}

#[test]
fn rendering_keeps_the_contract() {
    contract::check_render(&channel());
    let off = OneBot::new("qq", &Config { forward_above: 0, ..config() }, &network()).expect("a section that works");
    contract::check_render(&off);
}

#[test]
fn an_answer_of_4097_characters_arrives_whole_and_well_formed() {
    let channel = channel();
    let parts = channel.render(&Reply::message(long_answer()), Level::Rich);
    assert_eq!(parts.len(), 3, "three messages are no forward yet");
    assert!(parts.iter().all(|part| part.text.chars().count() <= 1_500));
    let whole = parts.iter().map(|part| part.text.as_str()).collect::<Vec<_>>().join("\n");
    assert!(
        whole.starts_with("龙虾 🦞\n\n• 第一 👩‍👩‍👧‍👦\n  • 里面\n    • 更里面\n• 第二\n\n这是第 1 句话"),
        "{}",
        &whole[..200]
    );
    assert!(whole.ends_with('完') && !whole.contains("```"));
    let first_of_second = parts[1].text.lines().next().expect("a line");
    assert!(first_of_second.starts_with("    let crab_"), "the code goes on as it stood: {first_of_second:?}");
    for line in 0..20 {
        assert!(whole.contains(&format!("\n    let crab_{line} = {line}; // 🦀")), "{line}");
    }
}

#[test]
fn more_than_three_messages_become_one_merged_forward_and_plain_parts_where_that_is_refused() {
    let reply = Reply::message(format!("{}\n\nend", "一句话。".repeat(1_300)));
    let forward = channel().render(&reply, Level::Rich);
    assert_eq!(forward.len(), 1);
    let plain = channel().render(&reply, Level::Plain);
    assert_eq!(plain.len(), 2);
    let squeezed =
        |parts: &[Part]| parts.iter().map(|part| part.text.split_whitespace().collect::<String>()).collect::<String>();
    assert_eq!(squeezed(&forward), squeezed(&plain));
    let endless = channel().render(&Reply::message("词 ".repeat(120_000)), Level::Rich);
    assert_eq!(endless.len(), 10);
    assert!(endless[9].text.contains("没有发送"), "{}", endless[9].text);
}

#[tokio::test]
async fn a_merged_forward_that_is_refused_asks_for_the_plain_form_and_one_that_timed_out_does_not() {
    let bench = ready().await;
    bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("tell me all"))).await;
    let parts = bench.channel.render(&Reply::message("long. ".repeat(1_000)), Level::Rich);
    let to = bench.address();
    bench.bot.fault("send_group_forward_msg", Fault::Refuse(1200, "转发失败"));
    assert_eq!(SendClass::of(&bench.send(&to, &parts[0]).await), SendClass::Rerender(Level::Plain));
    bench.bot.fault("send_group_forward_msg", Fault::DoneButTimeout);
    bench.gateway.clock.advance(Duration::from_secs(5));
    assert_eq!(SendClass::of(&bench.send(&to, &parts[0]).await), SendClass::Unknown);
    assert!(matches!(bench.channel.reconcile(&to, &parts[0], &key(1), 1_795_996_800_000).await, Reconciled::Found(_)));
    assert_eq!(bench.bot.said().len(), 1);
    assert_eq!(bench.bot.said()[0].split_whitespace().count(), 1_000, "nothing is lost");
}

#[tokio::test]
async fn no_text_becomes_a_code() {
    let bench = ready().await;
    let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("mention everyone"))).await;
    for evil in ["[CQ:at,qq=all] hi", "&#91;CQ:at,qq=all&#93;", "[CQ:image,file=file:///etc/passwd]", "@全体成员"] {
        bench.gateway.clock.advance(Duration::from_secs(5));
        for part in bench.channel.render(&Reply::message(format!("`{evil}`")), Level::Rich) {
            bench.send(&heard.address, &part).await.expect("sent");
        }
        let sent = bench.bot.sent().pop().expect("sent");
        let kinds: Vec<&str> =
            sent.as_array().expect("a list").iter().filter_map(|segment| segment["type"].as_str()).collect();
        assert_eq!((kinds, fake::words(&sent).as_str()), (vec!["reply", "text"], evil));
    }
    let file = Attachment {
        kind: AttachmentKind::File,
        media: None,
        name: Some("[CQ:at,qq=all]".to_owned()),
        unavailable: None,
    };
    for part in bench.channel.render(&Reply { attachments: vec![file], ..Reply::message("") }, Level::Rich) {
        bench.gateway.clock.advance(Duration::from_secs(5));
        bench.send(&heard.address, &part).await.expect("sent");
    }
    assert!(bench.bot.calls_of("send_group_msg").iter().all(|call| call["message"].is_array()));
}

#[tokio::test]
async fn the_first_part_in_a_group_shows_what_it_answers_and_others_do_not() {
    let bench = ready().await;
    let group = bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("x"))).await;
    let private = bench.hear(&bench.bot.private_message(ADA, text("x"))).await;
    for (to, seq, kinds) in [
        (&group.address, 1, vec!["reply", "text"]),
        (&group.address, 2, vec!["text"]),
        (&private.address, 1, vec!["text"]),
    ] {
        bench.gateway.clock.advance(Duration::from_secs(5));
        bench.channel.send(to, &one(&bench.channel, "y"), &key(seq)).await.expect("sent");
        let sent = bench.bot.sent().pop().expect("sent");
        let found: Vec<&str> =
            sent.as_array().expect("a list").iter().filter_map(|segment| segment["type"].as_str()).collect();
        assert_eq!(found, kinds);
    }
    bench.gateway.clock.advance(Duration::from_secs(5));
    let again = SendKey { resend: true, ..key(2) };
    bench.channel.send(&group.address, &one(&bench.channel, "一"), &again).await.expect("sent");
    assert_eq!(bench.bot.said().pop().as_deref(), Some("↻（这条消息可能已经发过一次）\n一"));
}

#[tokio::test]
async fn pictures_voices_and_files_go_out_and_what_cannot_becomes_a_line() {
    let bench = ready().await;
    let heard = bench.hear(&bench.bot.group_message(GROUP, ADA, at_bot("draw"))).await;
    let stored = async |bytes: &'static str| {
        channel_api::Media::store(bench.gateway.media.as_ref(), Bytes::from(bytes), None).await.expect("kept")
    };
    let url = |url: &str| MediaRef { source: MediaSource::Url(url.to_owned()), mime: None, size: None };
    bench.gateway.media.put_link("https://a.example/cat.png", "a cat");
    let gone = MediaRef { source: MediaSource::Stored("999".to_owned()), mime: None, size: None };
    let file = |kind, media, name: &str| Attachment {
        kind,
        media: Some(media),
        name: Some(name.to_owned()),
        unavailable: None,
    };
    let attachments = vec![
        file(AttachmentKind::Image, stored("a picture").await, "a.png"),
        file(AttachmentKind::Audio, stored("a voice").await, "a.mp3"),
        file(AttachmentKind::Image, url("https://a.example/cat.png"), "cat.png"),
        file(AttachmentKind::File, stored("a file").await, "../report.pdf"),
        file(AttachmentKind::Image, gone, "gone.png"),
        file(AttachmentKind::File, url("https://a.example/none.zip"), "none.zip"),
    ];
    let parts = bench.channel.render(&Reply { attachments, ..Reply::message("here") }, Level::Rich);
    assert_eq!(parts.len(), 7);
    for (n, part) in parts.iter().enumerate() {
        bench.gateway.clock.advance(Duration::from_secs(5));
        bench.channel.send(&heard.address, part, &key(n as u32 + 1)).await.expect("sent");
    }
    let sent = bench.bot.sent();
    let first = |n: usize| {
        (sent[n][0]["type"].as_str().expect("a kind"), sent[n][0]["data"]["file"].as_str().unwrap_or_default())
    };
    assert_eq!(first(1), ("image", "base64://YSBwaWN0dXJl"));
    assert_eq!(first(2), ("record", "base64://YSB2b2ljZQ=="));
    assert_eq!(first(3), ("image", "base64://YSBjYXQ="));
    assert_eq!(first(4), ("file", "base64://YSBmaWxl"));
    assert_eq!(sent[4][0]["data"]["name"], "report.pdf");
    assert_eq!(fake::words(&sent[5]), "[file: gone.png]");
    assert_eq!(fake::words(&sent[6]), "[file: none.zip] https://a.example/none.zip");
    // Refused for good: the line goes out in the same breath; timed out: it does not.
    bench.bot.fault("send_group_msg", Fault::Refuse(1200, "rich media transfer failed"));
    bench.gateway.clock.advance(Duration::from_secs(5));
    bench.channel.send(&heard.address, &parts[1], &key(2)).await.expect("sent");
    assert_eq!(bench.bot.said().pop().as_deref(), Some("[file: a.png]"));
    bench.bot.fault("send_group_msg", Fault::DoneButTimeout);
    bench.gateway.clock.advance(Duration::from_secs(5));
    let sent = bench.channel.send(&heard.address, &parts[1], &key(2)).await;
    assert_eq!(SendClass::of(&sent), SendClass::Unknown);
}

#[tokio::test]
async fn after_ten_seconds_one_short_line_says_that_it_goes_on_and_nothing_more() {
    let bench = ready().await;
    let live = bench.channel.live().expect("live");
    let heard = bench.hear(&bench.bot.private_message(ADA, text("帮我查一下"))).await;
    assert_eq!(live.pace(&heard.address), LivePace::OneLine { after: Duration::from_secs(10) });
    let preview = live.begin(&heard.address, "还在处理…").await.expect("shown");
    assert!(!preview.replaced, "the answer is a message of its own");
    live.update(&heard.address, &preview, "more").await.expect("nothing is edited");
    live.drop_preview(&heard.address, &preview).await;
    assert_eq!(bench.bot.said(), ["还在处理…"]);
    let off = Config { working_line_after: 0, ..config() };
    let off = OneBot::new("qq", &off, &network()).expect("a section that works");
    assert_eq!(off.live().expect("live").pace(&bench.address()), LivePace::Off);
}
