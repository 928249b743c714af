//! The golden tables of openclaw-parity.md §1 with our disguises and look-alikes, and the properties of the filter.

use proptest::prelude::*;

use super::*;

/// What the tables expect: a text that is sent, or why nothing is.
#[derive(Debug)]
enum Want {
    Sent(&'static str),
    Quiet(SilentReason),
}
use SilentReason::{Artifact, Empty, HeartbeatOk, NoReply, Reasoning};
use Want::{Quiet, Sent};

fn check(rows: &[(&str, Want)], policy: &Policy) {
    let mut wrong = Vec::new();
    for (input, want) in rows {
        let got = Outcome::from_text(input, policy);
        let right = match (&got, want) {
            (Outcome::Reply(text), Sent(expected)) => text.text == *expected,
            (Outcome::Silent(reason), Quiet(expected)) => reason == expected,
            _ => false,
        };
        if !right {
            wrong.push(format!("{input:?}: expected {want:?}, got {got:?}"));
        }
        if let Err(broken) = hold_keeps_its_promise(input, policy, 1) {
            wrong.push(broken);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

fn chat() -> Policy {
    Policy::default()
}

fn heartbeat() -> Policy {
    Policy { heartbeat: true, ..Policy::default() }
}

#[test]
fn no_reply_in_the_table_of_both_eras() {
    check(
        &[
            // §1.1
            ("NO_REPLY", Quiet(NoReply)),
            ("Done.\n\nNO_REPLY", Sent("Done.")),
            ("😄 NO_REPLY", Quiet(NoReply)), // ours: a token and emoji is silence
            ("**NO_REPLY", Quiet(NoReply)),
            ("reasoning**NO_REPLY", Sent("reasoning")),
            ("interject.NO_REPLY", Sent("interject.NO_REPLY")),
            ("NO_REPLY ok NO_REPLY", Sent("NO_REPLY ok")),
            ("No, that is wrong.", Sent("No, that is wrong.")),
            // §1.2, left column
            ("no_reply", Quiet(NoReply)),
            ("  NO_REPLY\n", Quiet(NoReply)),
            ("NO_REPLY.", Quiet(NoReply)),
            ("NO_REPLY!!", Quiet(NoReply)),
            ("**NO_REPLY**", Quiet(NoReply)),
            ("_NO_REPLY_", Quiet(NoReply)),
            ("(NO_REPLY)", Quiet(NoReply)),
            ("\"NO_REPLY\"", Quiet(NoReply)),
            ("NO_REPLY NO_REPLY", Quiet(NoReply)),
            ("NO_REPLYNO_REPLY", Quiet(NoReply)),
            ("{\"action\":\"NO_REPLY\"}", Quiet(NoReply)),
            ("<think>They talk to each other.</think>NO_REPLY", Quiet(NoReply)),
            ("NO_REPLYThe user", Sent("The user")),
            ("Done. NO_REPLY", Sent("Done.")),
            ("───", Quiet(Artifact)),
            ("<|channel|>…", Quiet(Artifact)),
            // §1.2, right column: what 9.6 got wrong
            ("`NO_REPLY`", Quiet(NoReply)),
            ("```\nNO_REPLY\n```", Quiet(NoReply)),
            ("```text\nNO_REPLY\n```", Quiet(NoReply)),
            ("{\"action\":\"NO_REPLY\",\"x\":1}", Quiet(NoReply)),
            ("{\"reply\":\"NO_REPLY\"}", Quiet(NoReply)),
            ("<think>unclosed reasoning NO_REPLY", Quiet(NoReply)),
            ("text **NO_REPLY**", Sent("text")),
            ("text `NO_REPLY`", Sent("text")),
            ("NO_REPLY 👍", Quiet(NoReply)),
            ("NO_REPLY🦞", Quiet(NoReply)),
            ("NO_REPLY: why", Sent("why")),
            ("无紧急事项 → NO_REPLY", Sent("无紧急事项")),
            ("NO REPLY", Quiet(NoReply)),
            ("NOREPLY", Quiet(NoReply)),
            ("ＮＯ＿ＲＥＰＬＹ", Quiet(NoReply)),
        ],
        &chat(),
    );
}

#[test]
fn more_disguises_of_silence() {
    check(
        &[
            ("No_Reply", Quiet(NoReply)),
            ("no-reply", Quiet(NoReply)),
            ("noreply.", Quiet(NoReply)),
            ("**NO REPLY**", Quiet(NoReply)),
            ("ｎｏ＿ｒｅｐｌｙ", Quiet(NoReply)),
            ("𝐍𝐎_𝐑𝐄𝐏𝐋𝐘", Quiet(NoReply)),
            ("NO\\_REPLY", Quiet(NoReply)),
            ("\u{feff}NO_REPLY\u{200b}", Quiet(NoReply)),
            ("NO\u{200b}_REPLY", Quiet(NoReply)),
            ("“NO_REPLY”", Quiet(NoReply)),
            ("「NO_REPLY」", Quiet(NoReply)),
            ("【NO_REPLY】。", Quiet(NoReply)),
            ("'NO_REPLY'", Quiet(NoReply)),
            ("[NO_REPLY]", Quiet(NoReply)),
            ("<NO_REPLY>", Quiet(NoReply)),
            ("<b>NO_REPLY</b>", Quiet(NoReply)),
            ("<reply>NO_REPLY</reply>", Quiet(NoReply)),
            ("> NO_REPLY", Quiet(NoReply)),
            ("# NO_REPLY", Quiet(NoReply)),
            ("- NO_REPLY", Quiet(NoReply)),
            ("→ NO_REPLY", Quiet(NoReply)),
            ("``NO_REPLY``", Quiet(NoReply)),
            ("```NO_REPLY```", Quiet(NoReply)),
            ("~~~\nNO_REPLY\n~~~", Quiet(NoReply)),
            ("```json\n{\"action\": \"NO_REPLY\"}\n```", Quiet(NoReply)),
            ("```\nNO_REPLY", Quiet(NoReply)),
            ("`{\"action\":\"NO_REPLY\"}`", Quiet(NoReply)),
            ("{\"text\":\"no_reply\",\"mood\":\"calm\"}", Quiet(NoReply)),
            ("{\"Action\":\"NO_REPLY\",\"reason\":\"not for me\"}", Quiet(NoReply)),
            ("{\"message\":{\"content\":\"NO_REPLY\"},\"n\":1}", Quiet(NoReply)),
            ("[\"NO_REPLY\"]", Quiet(NoReply)),
            ("\"NO_REPLY\\n\"", Quiet(NoReply)),
            ("\"NO\\u005fREPLY\"", Quiet(NoReply)),
            ("{'action': 'NO_REPLY'}", Quiet(NoReply)),
            ("{action: NO_REPLY,}", Quiet(NoReply)),
            ("Reply: NO_REPLY", Quiet(NoReply)),
            ("**Final answer:** NO_REPLY", Quiet(NoReply)),
            ("回复：NO_REPLY", Quiet(NoReply)),
            ("NO_REPLY\n\nNO_REPLY\n", Quiet(NoReply)),
            ("NO_REPLY, NO_REPLY", Quiet(NoReply)),
            ("👍 🦞 NO_REPLY 1️⃣", Quiet(NoReply)),
            ("1️⃣ NO_REPLY", Quiet(NoReply)),
            ("👨‍👩‍👧 NO_REPLY", Quiet(NoReply)),
            ("ℹ️ NO_REPLY", Quiet(NoReply)),
            ("&nbsp;NO_REPLY", Quiet(NoReply)),
            ("NO_REPLY HEARTBEAT_OK", Quiet(NoReply)),
            ("[[reply_to_current]] NO_REPLY", Quiet(NoReply)),
            ("[[reply_to_current]]", Quiet(Empty)),
            ("<thinking>hm</thinking>\n\n`NO_REPLY`", Quiet(NoReply)),
            ("<think>a<think>b</think>c</think>NO_REPLY", Quiet(NoReply)),
            ("<think>They do not mean me. NO_REPLY</think>", Quiet(NoReply)),
            ("<think>别人在聊天，不用回复。NO_REPLY。", Quiet(NoReply)),
            ("<REASONING>x</REASONING>no_reply", Quiet(NoReply)),
            ("reasoning without an opening tag\n</think>\nNO_REPLY", Quiet(NoReply)),
            ("think\nThe two talk to each other.\nI should stay silent. NO_REPLY", Quiet(NoReply)),
            ("Thinking:\n他们在互相聊天\n不需要回复：NO_REPLY", Quiet(NoReply)),
            ("<|channel|>final<|message|>NO_REPLY", Quiet(NoReply)),
            (
                "<|channel|>analysis<|message|>not me<|end|><|start|>assistant<|channel|>final<|message|>NO_REPLY<|return|>",
                Quiet(NoReply),
            ),
            ("NO_REPLY<|im_end|>", Quiet(NoReply)),
            ("<final>NO_REPLY</final>", Quiet(NoReply)),
            ("", Quiet(Empty)),
            (" \n\t\u{3000}", Quiet(Empty)),
            ("\u{200b}\u{feff}", Quiet(Empty)),
            ("---", Quiet(Artifact)),
            ("<|channel|>analysis<|message|>only thoughts", Quiet(Artifact)),
            ("<think>only thoughts</think>", Quiet(Reasoning)),
            ("<think>only thoughts", Quiet(Reasoning)),
        ],
        &chat(),
    );
}

#[test]
fn a_token_at_the_edge_goes_and_the_rest_is_sent() {
    check(
        &[
            ("NO_REPLY\n\nHere is the file.", Sent("Here is the file.")),
            ("**NO_REPLY**\n\nHello", Sent("Hello")),
            ("`NO_REPLY`\nHello", Sent("Hello")),
            ("no_replyThe user", Sent("The user")),
            ("NO_REPLYthe user", Sent("the user")),
            ("NO_REPLYI think so", Sent("I think so")),
            ("NO_REPLY用户在和别人聊天。", Sent("用户在和别人聊天。")),
            ("NO_REPLY. The user was talking to Bob.", Sent("The user was talking to Bob.")),
            ("NO_REPLY。大家在聊天", Sent("大家在聊天")),
            ("NO_REPLY — nothing for me", Sent("nothing for me")),
            ("NO_REPLY (not for me)", Sent("(not for me)")),
            ("Done. NO_REPLY.", Sent("Done.")),
            ("Done NO_REPLY.", Sent("Done.")),
            ("Done. NO_REPLY 👍", Sent("Done.")),
            ("Done. (NO_REPLY)", Sent("Done.")),
            ("Done. \"NO_REPLY\"", Sent("Done.")),
            ("Done.\n\n**NO_REPLY**", Sent("Done.")),
            ("Done.\n`NO_REPLY`", Sent("Done.")),
            ("Done.\n\n---\n\nNO_REPLY", Sent("Done.")),
            ("Done - NO_REPLY", Sent("Done")),
            ("Done — NO_REPLY", Sent("Done")),
            ("Done | NO_REPLY", Sent("Done")),
            ("Nothing urgent: NO_REPLY", Sent("Nothing urgent")),
            ("Nothing urgent -> NO_REPLY", Sent("Nothing urgent")),
            ("Nothing urgent => NO_REPLY", Sent("Nothing urgent")),
            ("Nothing urgent, NO_REPLY", Sent("Nothing urgent")),
            ("完成。NO_REPLY", Sent("完成。")),
            ("一切正常NO_REPLY", Sent("一切正常")),
            ("完成，ＮＯ＿ＲＥＰＬＹ", Sent("完成")),
            ("完成 【NO_REPLY】", Sent("完成")),
            ("**all done NO_REPLY**", Sent("**all done**")),
            ("(all done NO_REPLY)", Sent("(all done)")),
            ("Done <b>NO_REPLY</b>", Sent("Done")),
            ("Done. NO_REPLY NO_REPLY", Sent("Done.")),
            ("Done. NO_REPLY HEARTBEAT_OK", Sent("Done.")),
            ("Done. NO\\_REPLY", Sent("Done.")),
            ("<think>x</think>Done. NO_REPLY", Sent("Done.")),
            ("Hello <think>secret NO_REPLY", Sent("Hello")),
            ("好的👌NO_REPLY", Sent("好的👌")),
        ],
        &chat(),
    );
}

#[test]
fn look_alikes_are_delivered() {
    let same = [
        "NO_REPLYING",
        "NO_REPLYING to that",
        "no_replying",
        "NO_REPLY_TOKEN",
        "NO_REPLYS are fine",
        "NO_REPLY2",
        "XNO_REPLY",
        "my_NO_REPLY",
        "foo-NO_REPLY",
        "path/NO_REPLY",
        "Token::NO_REPLY",
        "call(NO_REPLY)",
        "NO_REPLY.md is the file",
        "NO_REPLY is the word by which I stay silent.",
        "NO_REPLY 是保持沉默的标记。",
        "NO_REPLY的意思是不回复。",
        "The word NO_REPLY means that I stay silent.",
        "我发送 NO_REPLY 就表示不回复。",
        "To stay silent I answer with `NO_REPLY`.",
        "The token is NO_REPLY",
        "静默标记是 `NO_REPLY`",
        "Did you mean NO_REPLY?",
        "为什么是 NO_REPLY？",
        "Run `echo NO_REPLY`",
        "To stay silent, send this:\n```\nNO_REPLY\n```",
        "const X = NO_REPLY;",
        "No reply needed from my side, but here is the link.",
        "No reply.",
        "no reply",
        "No replies so far.",
        "Please use noreply@example.com",
        "noreply is the account",
        "Nothing to reply: NOREPLY",
        "不需要回复，不过链接在这里。",
        "没有回复",
        "NOT",
        "NO ",
        "N",
        "No",
        "no",
        "NO",
        "Reply: yes, at noon",
        "回复：好的",
        "Think about it.",
        "think\nabout the plan first",
        "{\"action\":\"send\",\"text\":\"hello\"}",
        "{\"a\":\"NO_REPLY\",\"b\":\"hello\"}",
        "\"Quoted\" words first",
        "{\"broken\": ",
        "a < b and b > c",
        "Use `<think>` to think.",
        "The <think> tag holds reasoning.",
        "```html\n<think>shown</think>\n[[reply_to_current]]\nMEDIA:./a.png\n```",
        "`[[reply_to_current]]` answers the message.",
        "[[wiki link]] and [x](y)",
        "Media: the press was there.",
        "MEDIA: the press was there.",
        "Harmony marks channels with <|channel|> and more.",
        "`<|channel|>final<|message|>` is a header.",
        "**",
        "!",
        "?",
        "。。。",
        "👍",
        "1️⃣",
        "—",
        "HEARTBEAT",
        "heartbeat_ok",
        "HEARTBEAT_OKAY",
        "a HEARTBEAT_OK b",
        "~~~\ncode",
        "    indented",
    ];
    let rows: Vec<_> = same.iter().map(|text| (*text, Sent(text.trim()))).collect();
    check(&rows, &chat());
}

#[test]
fn reasoning_is_private() {
    check(
        &[
            ("<think>a</think>Hello", Sent("Hello")),
            // Every way of marking it that we know of: by model, closed and cut.
            ("<thought>Gemini</thought>Hello", Sent("Hello")),
            ("<reasoning>a</reasoning>\nHello", Sent("Hello")),
            ("<antThinking>Claude</antThinking>Hello", Sent("Hello")),
            ("<seed:think>Doubao</seed:think>Hello", Sent("Hello")),
            ("<redacted_thinking>a</redacted_thinking>Hello", Sent("Hello")),
            ("◁think▷Kimi-VL 在想◁/think▷你好", Sent("你好")),
            ("◁think▷still thinking, and cut", Quiet(Reasoning)),
            ("Hi ◁think▷the rest is mine", Sent("Hi")),
            ("[THINK]Magistral[/THINK]Hello", Sent("Hello")),
            ("[THINK]cut NO_REPLY", Quiet(NoReply)),
            ("Use `◁think▷` or `[THINK]` to think.", Sent("Use `◁think▷` or `[THINK]` to think.")),
            ("[think] about [THE] plan", Sent("[think] about [THE] plan")),
            (
                "<|channel|>analysis<|message|>gpt-oss<|end|><|start|>assistant<|channel|>final<|message|>Hello",
                Sent("Hello"),
            ),
            ("<think>a<think>b</think>c</think>Hello", Sent("Hello")),
            ("<think>mind the <think> tag</think>Hello", Sent("Hello")),
            ("<THINK>a</THINK>\n\nHello", Sent("Hello")),
            ("<thinking>a</thinking>Hi<thinking>b</thinking> there", Sent("Hi there")),
            ("<thinking>a</thinking>Hi", Sent("Hi")),
            ("<think reason=\"x\">a</think >Hi", Sent("Hi")),
            ("Hi <think>the rest is mine", Sent("Hi")),
            ("<think>```\ncode</think>Hello\n```\nx\n```", Sent("Hello\n```\nx\n```")),
            ("the user wants a greeting\n</think>\n\nHello", Sent("Hello")),
            ("the user wants a greeting</think>\n\nHello", Sent("Hello")),
            ("Hello</think>", Sent("Hello")),
            ("<final>Hello</final>", Sent("Hello")),
            ("<th<think></think>ink>secret</think>Hello", Quiet(Reasoning)),
            (
                "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>Hello<|return|>",
                Sent("Hello"),
            ),
            ("<|channel|>final<|message|>Hello", Sent("Hello")),
            (
                "<|start|>assistant<|channel|>commentary to=functions.x <|constrain|>json<|message|>{}<|call|>",
                Quiet(Artifact),
            ),
            ("Hello<|im_end|>", Sent("Hello")),
            ("<|im_start|>assistant\nHello<|im_end|>", Sent("Hello")),
            ("a\0b", Sent("a\u{fffd}b")),
        ],
        &chat(),
    );
    let stripped = strip_reasoning("<think>one</think>A<think>two");
    assert_eq!(stripped.visible, "A");
    assert_eq!(stripped.reasoning.as_deref(), Some("two"));
}

#[test]
fn heartbeat_acknowledgements_are_dropped_and_alerts_are_not() {
    let ack_300 = format!("HEARTBEAT_OK {}", "a".repeat(300));
    let long_301 = format!("HEARTBEAT_OK {}", "a".repeat(301));
    assert_eq!(Outcome::from_text(&ack_300, &heartbeat()).silent(), Some(HeartbeatOk));
    assert_eq!(Outcome::from_text(&long_301, &heartbeat()).silent(), None);
    check(
        &[
            ("HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("HEARTBEAT_OK.", Quiet(HeartbeatOk)),
            ("HEARTBEAT_OK!!!!!", Quiet(HeartbeatOk)),
            ("**HEARTBEAT_OK**", Quiet(HeartbeatOk)),
            ("`HEARTBEAT_OK`", Quiet(HeartbeatOk)),
            ("<b>HEARTBEAT_OK</b>", Quiet(HeartbeatOk)),
            ("```\nHEARTBEAT_OK\n```", Quiet(HeartbeatOk)),
            ("ＨＥＡＲＴＢＥＡＴ＿ＯＫ", Quiet(HeartbeatOk)),
            ("{\"reply\":\"HEARTBEAT_OK\"}", Quiet(HeartbeatOk)),
            ("<think>nothing to do, HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("NO_REPLY", Quiet(NoReply)),
            ("heartbeat_ok", Sent("heartbeat_ok")),
            ("HEARTBEAT_OKAY", Sent("HEARTBEAT_OKAY")),
            ("a HEARTBEAT_OK b", Sent("a HEARTBEAT_OK b")),
            ("all fine (HEARTBEAT_OK)", Quiet(HeartbeatOk)),
            ("HEARTBEAT_OK all fine", Quiet(HeartbeatOk)),
            ("Everything is fine.\nNothing new in the inbox.\nHEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("No errors, no urgent mail. HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("Nothing urgent. HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("errors: 0, failed: 0 HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("0 errors, 0 warnings. HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("No errors, warnings or failures. HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("No new messages or alerts. HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("Nothing needs your attention. HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("No action needed. HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("没有需要关注的事项。HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("无错误和告警 HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("错误数：0，失败 0 个 HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("一切正常 HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("一切正常，未发现异常。HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("没有紧急告警，HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("无紧急事项 → HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("HEARTBEAT_OK\n暂无待办", Quiet(HeartbeatOk)),
            // Alerts survive, with their lines.
            ("ALERT disk full HEARTBEAT_OK", Sent("ALERT disk full")),
            ("Checked.\n- disk: 97%\n- mail: ok\n\nHEARTBEAT_OK", Sent("Checked.\n- disk: 97%\n- mail: ok")),
            ("HEARTBEAT_OK\nBackup failed at 03:00", Sent("Backup failed at 03:00")),
            ("The site is down.\nHEARTBEAT_OK", Sent("The site is down.")),
            (
                "No errors in the log, but the backup failed. HEARTBEAT_OK",
                Sent("No errors in the log, but the backup failed."),
            ),
            ("No space left on the drive HEARTBEAT_OK", Sent("No space left on the drive")),
            ("The server is not responding. HEARTBEAT_OK", Sent("The server is not responding.")),
            ("Meeting due at 15:00 HEARTBEAT_OK", Sent("Meeting due at 15:00")),
            ("Should I restart it? HEARTBEAT_OK", Sent("Should I restart it?")),
            ("10 errors HEARTBEAT_OK", Sent("10 errors")),
            ("No new mail, backup failed HEARTBEAT_OK", Sent("No new mail, backup failed")),
            ("No urgent mail and the backup failed HEARTBEAT_OK", Sent("No urgent mail and the backup failed")),
            ("HEARTBEAT_OK, but the disk is at 99%", Sent("but the disk is at 99%")),
            ("未知错误 HEARTBEAT_OK", Sent("未知错误")),
            ("无锡服务器故障 HEARTBEAT_OK", Sent("无锡服务器故障")),
            ("没有新邮件，备份失败 HEARTBEAT_OK", Sent("没有新邮件，备份失败")),
            ("失败任务 3 个 HEARTBEAT_OK", Sent("失败任务 3 个")),
            ("🚨 HEARTBEAT_OK", Sent("🚨")),
            ("磁盘空间只剩 2G HEARTBEAT_OK", Sent("磁盘空间只剩 2G")),
            ("告警：数据库连接超时 HEARTBEAT_OK", Sent("告警：数据库连接超时")),
            ("备份失败\n请检查\nHEARTBEAT_OK", Sent("备份失败\n请检查")),
            ("没有新邮件，但是服务器出现异常。HEARTBEAT_OK", Sent("没有新邮件，但是服务器出现异常。")),
            ("数据库无法连接 HEARTBEAT_OK", Sent("数据库无法连接")),
            ("记得下午三点开会 HEARTBEAT_OK", Sent("记得下午三点开会")),
            ("Backup failed at 03:00", Sent("Backup failed at 03:00")),
        ],
        &heartbeat(),
    );
}

#[test]
fn heartbeat_token_in_an_ordinary_message() {
    check(
        &[
            ("HEARTBEAT_OK", Quiet(HeartbeatOk)),
            ("all fine (HEARTBEAT_OK)", Sent("all fine")),
            ("all fine HEARTBEAT_OK.", Sent("all fine.")),
            ("HEARTBEAT_OK all fine", Sent("all fine")),
            ("one\ntwo\nHEARTBEAT_OK", Sent("one\ntwo")),
            ("HEARTBEAT_OKAY then", Sent("HEARTBEAT_OKAY then")),
            ("HEARTBEAT_OK一切正常", Sent("一切正常")),
            ("HEARTBEAT_OK is my word for calm.", Sent("HEARTBEAT_OK is my word for calm.")),
        ],
        &chat(),
    );
}

#[test]
fn tags_and_media_lines_are_read_and_gone() {
    let reply = |raw: &str| match Outcome::from_text(raw, &chat()) {
        Outcome::Reply(text) => text,
        Outcome::Silent(reason) => panic!("{raw:?} is silent: {reason}"),
    };
    let got = reply("[[reply_to_current]] Hello");
    assert_eq!((got.text.as_str(), got.reply_to), ("Hello", ReplyTo::Current));
    let got = reply("Hello [[ reply_to : 42:7 ]] world");
    assert_eq!((got.text.as_str(), got.reply_to), ("Hello world", ReplyTo::Id("42:7".into())));
    let got = reply("[[reply_to:1]]\nA\n[[Reply_To_Current]]\nB [[reply_to:2]]\nC");
    assert_eq!((got.text.as_str(), got.reply_to), ("A\nB\nC", ReplyTo::Id("2".into())));
    let got = reply("Hi [[reply_to:<id>]]");
    assert_eq!((got.text.as_str(), got.reply_to), ("Hi", ReplyTo::Auto));
    let got = reply("[[audio_as_voice]]\nMEDIA:./out/voice.ogg\nListen!\nMEDIA: `https://example.com/a b.png`\n");
    assert_eq!(
        got,
        Text {
            text: "Listen!".into(),
            reply_to: ReplyTo::Auto,
            media: vec!["./out/voice.ogg".into(), "https://example.com/a b.png".into()],
            audio_as_voice: true,
        }
    );
    // Silence keeps the media.
    let got = reply("NO_REPLY\nMEDIA:/tmp/chart.png");
    assert_eq!((got.text.as_str(), got.media), ("", vec!["/tmp/chart.png".to_owned()]));
    let got = reply("MEDIA:/tmp/chart.png NO_REPLY");
    assert_eq!((got.text.as_str(), got.media), ("", vec!["/tmp/chart.png".to_owned()]));
    let got = Outcome::from_parts("All fine. HEARTBEAT_OK", true, &heartbeat());
    assert!(matches!(&got, Outcome::Reply(text) if text.text == "All fine."), "{got:?}");
    let got = Outcome::from_parts("", true, &chat());
    assert_eq!(got, Outcome::Reply(Text::default()));
}

#[test]
fn more_media_lines_than_allowed_stay_as_text() {
    let raw = "MEDIA:./a.png\n".repeat(MAX_MEDIA + 2);
    let Outcome::Reply(text) = Outcome::from_text(&raw, &chat()) else { panic!("media is never silent") };
    assert_eq!(text.media.len(), MAX_MEDIA);
    assert_eq!(text.text, "MEDIA:./a.png\nMEDIA:./a.png");
}

#[test]
fn a_chat_that_wants_answers_never_shows_the_token() {
    let policy = Policy { may_be_silent: false, ..Policy::default() };
    let silent = Outcome::from_text("NO_REPLY", &policy);
    assert_eq!(silent.silent(), Some(NoReply));
    assert!(silent.wants_answer(&policy));
    assert!(!silent.wants_answer(&chat()));
    assert!(Outcome::from_text("<think>x</think>", &chat()).wants_answer(&chat()));
    assert!(!Outcome::from_text("<think>x NO_REPLY", &chat()).wants_answer(&chat()));
    assert!(!Outcome::from_text("Hello", &policy).wants_answer(&policy));
}

#[test]
fn reasons_have_one_name_everywhere() {
    for reason in [NoReply, HeartbeatOk, Empty, Artifact, Reasoning] {
        assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
    }
}

#[test]
fn an_empty_heartbeat_file_has_no_work() {
    for empty in [
        "",
        "\n \n",
        "# HEARTBEAT.md\n\n",
        "#",
        "## Tasks\n- \n* [ ]\n- [x]\n1.\n",
        "\u{feff}# T\r\n- [ ] \r\n",
        "<!-- keep this\nempty -->\n# X",
        "```markdown\n# X\n```",
        "<!-- open",
        "---\n",
    ] {
        assert!(effectively_empty_heartbeat(empty), "{empty:?}");
    }
    for work in [
        "#TODO",
        "- check mail",
        "# T\n- [ ] call Bob",
        "检查邮件",
        "<!-- a --> x",
        "```\nrun\n```",
        "####### x",
        "1. mail",
    ] {
        assert!(!effectively_empty_heartbeat(work), "{work:?}");
    }
}

#[test]
fn the_preview_flows_and_stops_short_of_a_token() {
    let shown = |raw: &str| {
        let mut hold = HoldBack::new(chat());
        hold.push(raw);
        hold.shown().to_owned()
    };
    assert_eq!(shown("Hello there, I am"), "Hello there, I am");
    assert_eq!(shown("你好，我在"), "你好，我在");
    assert_eq!(shown("No, that"), "No, that");
    assert_eq!(shown("NOT"), "NOT");
    assert_eq!(shown("Done. NO_RE"), "Done");
    assert_eq!(shown("Done. NO_REPLY"), "Done");
    assert_eq!(shown("Hello <thi"), "Hello");
    assert_eq!(shown("Hello [[reply_to"), "Hello");
    assert_eq!(shown("a < b and so"), "a < b and so");
    assert_eq!(shown("HEARTBEAT is a word"), "HEARTBEAT is a word");
    assert_eq!(shown("Say `code` and go"), "Say `code` and go");
    assert_eq!(shown("It's `open and on"), "It's `open and on");
    for held in
        ["NO", "NO_", "NO_REP", "no_rep", "**NO", "```\nNO_", "{\"action\":\"NO", "<think>abc", "Reply: NO", "───"]
    {
        assert_eq!(shown(held), "", "{held:?}");
    }
    let mut hold = HoldBack::new(heartbeat());
    assert_eq!(hold.push("All fine and quiet here"), None);
}

#[test]
fn a_text_that_has_ended_is_settled_whole_without_its_token() {
    let settled = |raw: &str| {
        let mut hold = HoldBack::new(chat());
        hold.push(raw);
        (hold.shown().to_owned(), hold.settled())
    };
    for (raw, shown, whole) in [
        ("我看看目录里有什么，马上回来。", "我看看目录里有什么，马上回来", Some("我看看目录里有什么，马上回来。")),
        ("Let me look.\n", "Let me look", Some("Let me look.")),
        ("Hello <thi", "Hello", Some("Hello <thi")),
        ("Done. NO_REPLY", "Done", Some("Done.")),
        ("NO_REPLY", "", None),
        ("<think>hm.", "", None),
    ] {
        assert_eq!(settled(raw), (shown.to_owned(), whole.map(str::to_owned)), "{raw}");
    }
    let mut hold = HoldBack::new(heartbeat());
    hold.push("All fine.");
    assert_eq!(hold.settled(), None);
}

/// The promise of [`HoldBack`], for one text cut into pieces of about `size` bytes.
fn hold_keeps_its_promise(raw: &str, policy: &Policy, size: usize) -> Result<(), String> {
    if has_orphan_close(raw) {
        return Ok(());
    }
    let mut hold = HoldBack::new(policy.clone());
    let mut shown: Vec<String> = Vec::new();
    let mut rest = raw;
    while !rest.is_empty() {
        let mut cut = size.min(rest.len());
        while !rest.is_char_boundary(cut) {
            cut += 1;
        }
        shown.extend(hold.push(&rest[..cut]));
        rest = &rest[cut..];
    }
    let outcome = hold.finish();
    let visible = match &outcome {
        Outcome::Reply(text) => text.text.as_str(),
        Outcome::Silent(_) => "",
    };
    match shown.iter().find(|shown| !visible.starts_with(shown.as_str())) {
        None => Ok(()),
        Some(early) => Err(format!("{raw:?} by {size}: showed {early:?}, but the end is {outcome:?}")),
    }
}

/// A closing tag that no opening one precedes: the documented exception of the preview.
fn has_orphan_close(raw: &str) -> bool {
    let lower = raw.to_ascii_lowercase();
    let fixed = [("◁think▷", "◁/think▷"), ("[think]", "[/think]")].iter().any(|(open, close)| {
        lower
            .match_indices(close)
            .any(|(at, _)| lower[..at].matches(open).count() <= lower[..at].matches(close).count())
    });
    fixed
        || lower.match_indices("</").any(|(at, _)| {
            lower[..at].matches("<th").count() + lower[..at].matches("<reas").count()
                <= lower[..at].matches("</").count()
                && ["</th", "</reas"].iter().any(|name| lower[at..].starts_with(name))
        })
}

/// Pieces of which hostile answers are made.
fn piece() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "NO_REPLY",
            "no_reply",
            "NO_",
            "NO",
            "REPLY",
            "N",
            "HEARTBEAT_OK",
            "HEARTBEAT",
            "NO REPLY",
            "NOREPLY",
            "<think>",
            "</think>",
            "◁think▷",
            "◁/think▷",
            "◁th",
            "[THINK]",
            "[/THI",
            "<thinking>",
            "<think",
            "<",
            ">",
            "</",
            "<final>",
            "<b>",
            "</b>",
            "`",
            "``",
            "```",
            "```json\n",
            "~~~",
            "\n",
            "\n\n",
            " ",
            "  ",
            "**",
            "*",
            "_",
            "\"",
            "'",
            "(",
            ")",
            "[",
            "]",
            "[[",
            "]]",
            "{",
            "}",
            ":",
            "：",
            "→",
            "-",
            "->",
            "=>",
            ",",
            ".",
            "?",
            "[[reply_to_current]]",
            "[[reply_to:1]]",
            "[[audio_as_voice]]",
            "MEDIA:",
            "MEDIA:./a.png",
            "\nMEDIA:./b.png\n",
            "<|channel|>",
            "<|message|>",
            "<|end|>",
            "<|start|>",
            "final",
            "analysis",
            "assistant",
            "<|im_end|>",
            "{\"action\":\"NO_REPLY\"}",
            "\"NO_REPLY\"",
            "Reply:",
            "think\n",
            "───",
            "👍",
            "1️⃣",
            "&nbsp;",
            "\\",
            "\u{200b}",
            "\u{feff}",
            "Hello",
            "the",
            "is",
            "一切正常",
            "完成",
            "。",
            "，",
            "ＮＯ＿",
            "a",
            "Done.",
            "tag",
            "0",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,3}",
    ]
}

fn hostile() -> impl Strategy<Value = String> {
    prop::collection::vec(piece(), 0..12).prop_map(|pieces| pieces.concat())
}

const MARKERS: [&str; 4] = ["◁think▷", "◁/think▷", "[THINK]", "[/THINK]"];

/// Whether a text breaks off in the middle of a marker.
fn ends_in_a_piece_of(text: &str, marker: &str) -> bool {
    marker.char_indices().skip(1).any(|(end, _)| text.trim_end().ends_with(&marker[..end]))
}

/// Whether anything in `text` could be machinery: then the byte-for-byte promise says nothing about it.
fn may_be_machinery(text: &str) -> bool {
    use unicode_normalization::UnicodeNormalization;
    let folded: String = text.nfkc().filter(|c| c.is_alphanumeric()).collect::<String>().to_uppercase();
    folded.contains("NOREPLY")
        || folded.contains("HEARTBEATOK")
        || text.contains(['<', '\0'])
        || text.contains("[[")
        || MARKERS.iter().any(|marker| text.contains(marker) || ends_in_a_piece_of(text, marker))
        || text.contains("MEDIA:")
        || is_blank(text)
        || token::is_rule(text)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text_is_judged_without_a_panic(text in any::<String>(), beat in any::<bool>()) {
        let policy = if beat { heartbeat() } else { chat() };
        let _ = Outcome::from_text(&text, &policy);
        let _ = effectively_empty_heartbeat(&text);
        let _ = strip_reasoning(&text);
    }

    #[test]
    fn a_plain_text_is_delivered_byte_for_byte(text in prop_oneof![any::<String>(), hostile(), "[ -~\n你好，。]{0,80}"]) {
        if may_be_machinery(&text) {
            return Ok(());
        }
        let got = Outcome::from_text(&text, &chat());
        let expected = Outcome::Reply(Text { text: text.trim().to_owned(), ..Text::default() });
        prop_assert_eq!(got, expected);
    }

    #[test]
    fn a_token_is_never_the_whole_of_what_is_shown(text in hostile(), beat in any::<bool>()) {
        let policy = if beat { heartbeat() } else { chat() };
        if let Outcome::Reply(reply) = Outcome::from_text(&text, &policy) {
            prop_assert!(token::whole(&reply.text).is_none(), "{:?} became {:?}", text, reply.text);
        }
    }

    #[test]
    fn judging_twice_changes_nothing(text in hostile()) {
        if let Outcome::Reply(first) = Outcome::from_text(&text, &chat())
            && !first.text.is_empty()
        {
            let again = Outcome::from_text(&first.text, &chat());
            let expected = Outcome::Reply(Text { text: first.text.clone(), ..Text::default() });
            prop_assert_eq!(again, expected, "from {:?}", text);
        }
    }

    #[test]
    fn the_preview_never_shows_what_the_end_takes_back(text in hostile(), size in 1usize..20) {
        if let Err(broken) = hold_keeps_its_promise(&text, &chat(), size) {
            prop_assert!(false, "{}", broken);
        }
    }
}

#[test]
#[expect(clippy::disallowed_methods, reason = "this test is about real time")]
fn the_work_is_linear_whatever_the_text() {
    let size = 1 << 16;
    for pattern in [
        "a",
        " ",
        "\n",
        "`",
        "` ``",
        "```\n",
        "<",
        "<think>",
        "<think></think>",
        "</think>",
        "x</think>\n",
        "<think> tag ",
        "[[",
        "[[reply_to_current]]",
        "NO_REPLY",
        "NO_REPLY ",
        "x NO_REPLY** ",
        "NO_REPLY\n",
        "x (NO_REPLY) ",
        "MEDIA:./a.png\n",
        "MEDIA:",
        "<|channel|>",
        "<|start|>assistant<|message|>",
        "a<|channel|>",
        "<|end|>",
        "{",
        "[",
        "\"",
        "**",
        "<b>",
        "</b>",
        "HEARTBEAT_OK ",
        "no errors ",
        "失败0",
        "👍",
        "\u{200b}",
        "N\u{200b}",
        "<th<think></think>ink>",
        "~~~\n",
        "<!--",
        "- \n",
    ] {
        let text = pattern.repeat(size / pattern.len());
        let begun = std::time::Instant::now();
        for text in [text.clone(), format!("Hello {text}"), format!("{text} HEARTBEAT_OK")] {
            let mut hold = HoldBack::new(chat());
            hold.push(&text);
            let _ = hold.finish();
            let _ = Outcome::from_text(&text, &heartbeat());
        }
        let _ = effectively_empty_heartbeat(&text);
        // Linear work is done in a second even in a debug build on a busy machine; quadratic work is not in minutes.
        let took = begun.elapsed();
        assert!(took.as_secs() < 10, "{pattern:?} took {took:?}");
    }
}
