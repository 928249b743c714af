//! NO_REPLY in its disguises is silence, and what only looks like it is delivered: through the webhook, end to end.
//! openclaw-parity.md §1.1–1.3.

use serde_json::json;

use crate::support::{
    bridge::{Bridge, Receiver, message},
    gateway::Gateway,
    model_server::{ModelServer, text},
};

/// What the model says; what the person gets (`None`: nothing).
const CASES: [(&str, Option<&str>); 33] = [
    ("NO_REPLY", None),
    ("no_reply", None),
    ("  NO_REPLY\n\n", None),
    ("NO_REPLY.", None),
    ("NO_REPLY!!", None),
    ("**NO_REPLY**", None),
    ("_NO_REPLY_", None),
    ("(NO_REPLY)", None),
    ("\"NO_REPLY\"", None),
    ("NO_REPLY NO_REPLY", None),
    ("`NO_REPLY`", None),
    ("```\nNO_REPLY\n```", None),
    ("{\"action\":\"NO_REPLY\"}", None),
    ("{\"action\":\"NO_REPLY\",\"x\":1}", None),
    ("{\"reply\":\"NO_REPLY\"}", None),
    ("<think>Nobody asked me.</think>NO_REPLY", None),
    ("<think>Nobody asked me, so NO_REPLY", None),
    ("NO_REPLY 👍", None),
    ("NO_REPLY🦞", None),
    ("ＮＯ＿ＲＥＰＬＹ", None),
    ("<think>a</think>\n**NO_REPLY**.", None),
    ("Done. NO_REPLY", Some("Done.")),
    ("Done.\n\nNO_REPLY", Some("Done.")),
    ("text **NO_REPLY**", Some("text")),
    ("text `NO_REPLY`", Some("text")),
    ("无紧急事项 → NO_REPLY", Some("无紧急事项")),
    ("NO_REPLYThe user said hello.", Some("The user said hello.")),
    ("No reply is needed from you.", Some("No reply is needed from you.")),
    ("NO", Some("NO")),
    ("interject.NO_REPLY", Some("interject.NO_REPLY")),
    ("The word NO_REPLY means that I stay silent.", Some("The word NO_REPLY means that I stay silent.")),
    ("NO_REPLY_TO is a header field.", Some("NO_REPLY_TO is a header field.")),
    ("回复 NO_REPLY 表示不回答。", Some("回复 NO_REPLY 表示不回答。")),
];

#[tokio::test]
async fn silence_is_kept_in_every_disguise_and_look_alikes_are_delivered() {
    let model = ModelServer::start(|ask| {
        let case = ask.said().split("case ").nth(1).and_then(|rest| rest.split(';').next()?.parse::<usize>().ok());
        text(CASES[case.expect("every message names its case")].0)
    })
    .await;
    let receiver = Receiver::start().await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(&receiver.lines()))).await;
    let bridge = Bridge::to(&gateway);
    let mut wrong = Vec::new();
    for (n, (said, expected)) in CASES.iter().enumerate() {
        let room = format!("room-{n}");
        // In place.
        let answer = bridge.wait(&message(&format!("wait-{n}"), &room, &format!("case {n};"))).await;
        let got = answer.body["messages"][0]["text"].as_str();
        let silent = answer.body["silent"] == "no_reply" && answer.body["messages"] == json!([]);
        if answer.status != 200 || got != *expected || expected.is_none() != silent {
            wrong.push(format!("{said:?} in place: expected {expected:?}, got {} {}", answer.status, answer.raw));
        }
        // Without waiting: a callback, or none.
        let id = format!("post-{n}");
        bridge.accepted(&message(&id, &room, &format!("case {n};"))).await;
        match expected {
            Some(expected) => {
                let callback = receiver.answer_to(&id).await;
                if callback.text() != *expected {
                    wrong.push(format!("{said:?} by callback: expected {expected:?}, got {:?}", callback.text()));
                }
            }
            None => {
                let end = bridge.ended(&id).await;
                if end.body["silent"] != "no_reply" || end.body["messages"] != json!([]) {
                    wrong.push(format!("{said:?} by poll: expected silence, got {}", end.raw));
                }
            }
        }
    }
    // Whatever would have been sent for a silent turn came before this.
    bridge.accepted(&message("last", "room-last", "case 27;")).await;
    receiver.answer_to("last").await;
    for (n, (said, _)) in CASES.iter().enumerate().filter(|(_, (_, expected))| expected.is_none()) {
        if !receiver.answers_to(&format!("post-{n}")).is_empty() {
            wrong.push(format!("{said:?}: something was posted"));
        }
    }
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), CASES.len(), wrong.join("\n"));
}

#[tokio::test]
async fn a_stream_never_shows_a_piece_of_the_token_or_of_the_reasoning() {
    let model = ModelServer::start(|ask| {
        text(if ask.said().contains("quiet") { "<think>secret plan</think>NO_REPLY" } else { "<think>plan</think>Hi!" })
    })
    .await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    let shown = |events: &[(String, serde_json::Value)]| {
        events.iter().map(|(_, data)| data.to_string()).collect::<Vec<_>>().join("\n")
    };
    let quiet = bridge.stream(&message("m1", "room", "quiet")).await;
    assert!(!shown(&quiet).contains("secret") && !shown(&quiet).contains("NO_"), "{quiet:?}");
    let loud = bridge.stream(&message("m2", "room", "loud")).await;
    assert!(shown(&loud).contains("Hi!") && !shown(&loud).contains("plan"), "{loud:?}");
}
