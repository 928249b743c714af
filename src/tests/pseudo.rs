//! Calls that a model only writes down (伪指令), as real models write them, and answers that look like them: through the
//! webhook and the gateway's own stream, end to end. What is written is never shown and never run.

use std::fs;

use futures_util::{StreamExt as _, stream};
use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, message},
    gateway::{Gateway, client},
    model_server::{Ask, Gate, ModelServer, Say, call, text},
};

/// A text of `corpus/pseudo/`.
struct Case {
    name: &'static str,
    /// As the model writes it.
    text: String,
    /// What stands before the call, when that is kept.
    kept: Option<String>,
    /// What the person said.
    asked: Option<&'static str>,
}

fn cases(file: &'static str) -> Vec<Case> {
    let parts = file.strip_prefix("=== ").expect("it begins with a case").split("\n=== ");
    parts
        .map(|part| {
            let (head, text) = part.split_once('\n').expect("a name and a text");
            let (name, more) = head.split_once(" | ").unwrap_or((head, ""));
            let before = text.split('‸').next().unwrap_or_default().trim();
            Case {
                name,
                text: text.trim_end().replace('‸', ""),
                kept: (more == "keeps").then(|| before.to_owned()),
                asked: more.strip_prefix("asked: "),
            }
        })
        .collect()
}

fn written_calls() -> Vec<Case> {
    cases(include_str!("corpus/pseudo/calls.txt"))
}

fn look_alikes() -> Vec<Case> {
    cases(include_str!("corpus/pseudo/answers.txt"))
}

/// The place of the case that this turn is about.
fn place(ask: &Ask) -> usize {
    let said = ask.messages().iter().rev().filter_map(|message| message["content"].as_str());
    let named = said.filter_map(|text| text.split("case ").nth(1)?.split(';').next()?.parse().ok()).next();
    named.expect("every message names its case")
}

fn is_corrected(ask: &Ask) -> bool {
    ask.said().starts_with("[gateway]")
}

fn is_again(ask: &Ask) -> bool {
    ask.messages().iter().any(|message| message["content"].as_str().is_some_and(|text| text.contains("again;")))
}

fn corrections(ask: &Ask) -> usize {
    let texts = ask.messages().iter().filter_map(|message| message["content"].as_str());
    texts.filter(|text| text.starts_with("[gateway]")).count()
}

/// Writes the call down, and after the correction makes one, or (`again`) writes it down once more.
fn learner(ask: &Ask, texts: &[String]) -> Say {
    let n = place(ask);
    if ask.said().contains("and now?") {
        return text("ok");
    }
    match (is_corrected(ask), ask.round()) {
        (true, 0) if !is_again(ask) => {
            let arguments = json!({ "path": format!("made/{n}-{}.txt", ask.n), "content": "y" });
            Say::Calls(vec![call("r1", "write", &arguments.to_string())])
        }
        (true, 1) => text(format!("all done {n}")),
        _ => text(texts[n].clone()),
    }
}

async fn set_up(script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> (Gateway, Bridge, ModelServer) {
    let model = ModelServer::start(script).await;
    model.be_strict();
    let quirks = "[models.main.quirks]\nnull_content = false\n";
    let mut gateway = Gateway::folder(&format!("{}\n{quirks}\n{}", model.section(), Bridge::section("")));
    fs::create_dir_all(gateway.workspace()).expect("a folder");
    gateway.restart().await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model)
}

/// The preview at its longest and everything else that was shown, of a stream of events.
fn all_shown(events: &[Value]) -> String {
    events.iter().map(|event| event["text"].as_str().or(event["result"].as_str()).unwrap_or_default()).collect()
}

/// Pieces of a call that no person may see.
fn leaked(shown: &str) -> Option<&'static str> {
    const SCRAPS: [&str; 17] = [
        "canary",
        "tool_call",
        "TOOL_CALL",
        "｜tool",
        "<|",
        "<｜",
        "arguments",
        "parameters",
        "invoke",
        "<function",
        "action_input",
        "Action",
        "动作",
        "write_file",
        "```",
        "调用工具",
        "{",
    ];
    SCRAPS.into_iter().find(|scrap| shown.contains(scrap))
}

/// What went wrong with one case: corrected and then made, through the webhook's stream; written down again, through the
/// gateway's own.
async fn broken(n: usize, case: &Case, gateway: &Gateway, bridge: &Bridge, model: &ModelServer) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut check = |what: &str, good: bool, got: &str| {
        if !good {
            wrong.push(format!("{}: {what}: {got}", case.name));
        }
    };
    let asks = |again: bool| {
        let all = model.asks().into_iter();
        all.filter(|ask| place(ask) == n && is_again(ask) == again).collect::<Vec<Ask>>()
    };
    let kept = case.kept.as_ref().map(|kept| format!("{kept}\n\n")).unwrap_or_default();
    let room = format!("fix-{n}");
    let events = bridge.stream(&message(&room, &room, &format!("case {n};"))).await;
    let texts: Vec<&str> = events.iter().filter_map(|(_, data)| data["text"].as_str()).collect();
    check("a scrap in the stream", leaked(&texts.concat()).is_none(), &texts.concat());
    let answer = format!("{kept}all done {n}");
    let whole = events.iter().any(|(_, data)| data.to_string().contains(&json!(answer).to_string()));
    check("the answer after the correction", whole, &format!("{events:?}"));
    let corrections: Vec<usize> = asks(false).iter().map(corrections).collect();
    check("three requests, one correction", corrections == [0, 1, 1], &format!("{corrections:?}"));

    let body = json!({ "message": format!("again; case {n};"), "session": format!("again-{n}") });
    let task = gateway.chat(&body).await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let shown = all_shown(&events);
    check("a scrap in the events", leaked(&shown).is_none(), &shown);
    let end = events.last().map(Value::to_string).unwrap_or_default();
    check("an honest end", end.contains("only wrote down a tool call"), &end);
    check("the words before it", case.kept.as_ref().is_none_or(|kept| shown.contains(kept)), &shown);
    check("two requests", asks(true).len() == 2, &asks(true).len().to_string());

    // Nothing of it stays in the conversation.
    bridge.wait(&message(&format!("next-{n}"), &room, "and now?")).await;
    let wire = asks(false).last().map(|ask| ask.body["messages"].to_string()).unwrap_or_default();
    let clean = wire.contains("and now?") && !wire.contains("canary") && !wire.contains("[gateway]");
    check("nothing of it in the history", clean, &wire);
    wrong
}

#[tokio::test]
async fn bad_input_59_no_written_call_is_shown_or_run_and_each_is_corrected_once() {
    let cases = written_calls();
    let texts: Vec<String> = cases.iter().map(|case| case.text.clone()).collect();
    let (gateway, bridge, model) = set_up(move |ask| learner(ask, &texts)).await;
    let all = cases.iter().enumerate().map(|(n, case)| broken(n, case, &gateway, &bridge, &model));
    let wrong: Vec<String> = stream::iter(all).buffer_unordered(12).collect::<Vec<_>>().await.concat();
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(!gateway.workspace().join("canary.txt").exists(), "a written call was run");
    let made = fs::read_dir(gateway.workspace().join("made")).expect("calls were made").count();
    assert_eq!(made, cases.len(), "each real call ran once");
    model.assert_strict_order();
}

#[tokio::test]
async fn the_honest_failure_is_told_in_the_persons_language() {
    let written =
        "<tool_call>{\"name\":\"write\",\"arguments\":{\"path\":\"canary.txt\",\"content\":\"x\"}}</tool_call>";
    let (gateway, bridge, _model) = set_up(move |_| text(written)).await;
    let said = bridge.wait(&message("zh", "zh", "请把这句话保存到文件里")).await;
    assert!(said.text().contains("没有真正调用"), "{said:?}");
    let said = bridge.wait(&message("en", "en", "please save this sentence")).await;
    assert!(said.text().contains("only wrote down a tool call"), "{said:?}");
    assert!(!gateway.workspace().join("canary.txt").exists());
}

#[tokio::test]
async fn bad_input_59_answers_that_look_like_calls_are_delivered_as_they_are() {
    let cases = look_alikes();
    let texts: Vec<String> = cases.iter().map(|case| case.text.clone()).collect();
    let (_gateway, bridge, model) = set_up(move |ask| text(texts[place(ask)].clone())).await;
    let mut wrong = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        let said = format!("{} case {n};", case.asked.unwrap_or("hello"));
        let answer = bridge.wait(&message(&format!("m{n}"), &format!("room-{n}"), &said)).await;
        let got: String = answer.body["messages"]
            .as_array()
            .map(|all| all.iter().filter_map(|message| message["text"].as_str()).collect())
            .unwrap_or_default();
        if got != case.text {
            wrong.push(format!("{}: {}", case.name, answer.raw));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(model.asks().len(), cases.len(), "none was corrected");
}

#[tokio::test]
async fn a_stranger_who_has_no_tools_sees_no_written_call_either() {
    let cases = written_calls();
    let texts: Vec<String> = cases.iter().map(|case| case.text.clone()).collect();
    let (gateway, bridge, model) = set_up(move |ask| match is_corrected(ask) {
        true => text("plain words"),
        false => text(texts[place(ask)].clone()),
    })
    .await;
    let mut wrong = Vec::new();
    for (n, case) in cases.iter().enumerate() {
        let mut body = message(&format!("m{n}"), &format!("room-{n}"), &format!("case {n};"));
        body["sender"] = json!({ "id": "u9", "name": "u1" });
        let answer = bridge.wait(&body).await;
        let kept = case.kept.as_ref().map(|kept| format!("{kept}\n\n")).unwrap_or_default();
        if answer.body["messages"][0]["text"] != format!("{kept}plain words") {
            wrong.push(format!("{}: {}", case.name, answer.raw));
        }
    }
    assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert!(model.asks().iter().all(|ask| ask.tools().is_empty()), "no tools were offered");
    assert!(!gateway.workspace().join("canary.txt").exists());
}

#[tokio::test]
async fn a_claim_without_a_step_stands_in_the_trace() {
    let (gateway, _bridge, model) = set_up(|ask| match (ask.said().contains("fail"), ask.round()) {
        (true, 0) => Say::Calls(vec![call("w", "write", "{\"path\":\"../out.txt\",\"content\":\"x\"}")]),
        _ => text("I've saved the file for you."),
    })
    .await;
    for (said, expected) in
        [("please save it", "claims an effect no step"), ("try and fail", "claims an effect no step")]
    {
        let task = gateway.chat(&json!({ "message": said, "session": said.replace(' ', "-") })).await;
        let task = task["taskId"].as_str().expect("a task").to_owned();
        gateway.events(&task).await;
        let trace = gateway.cli(&["trace", &task]).await;
        assert!(trace.good().contains(expected), "{said}: {trace:?}");
        let get = async |path: String| -> Value {
            let request = client().get(format!("{}{path}", gateway.url())).bearer_auth(gateway.token());
            request.send().await.expect("it answers").json().await.expect("JSON")
        };
        let turns = get(format!("/api/turns?task={task}")).await;
        assert!(turns.to_string().contains(expected), "{turns}");
    }
    assert!(!gateway.dir().join("out.txt").exists());
    model.assert_strict_order();
}

#[tokio::test]
async fn the_last_sign_of_a_text_before_a_real_call_is_not_lost() {
    let said = "我看看目录里有什么，马上回来。";
    let gate = Gate::default();
    let watched = gate.clone();
    let (gateway, _bridge, _model) = set_up(move |ask| match ask.round() {
        0 => {
            let call = json!({ "index": 0, "id": "c1", "function": { "name": "ls", "arguments": "{\"path\":\".\"}" } });
            let delta = |delta: Value| format!("data: {}\n\n", json!({ "choices": [{ "index": 0, "delta": delta }] }));
            let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "tool_calls" }] });
            let (text, call) = (delta(json!({ "content": said })), delta(json!({ "tool_calls": [call] })));
            let stream = Say::Raw(200, None, format!("{text}{call}data: {end}\n\ndata: [DONE]\n\n"));
            Say::After(watched.clone(), Box::new(stream))
        }
        _ => text("done"),
    })
    .await;
    let task = gateway.chat(&json!({ "message": "有什么文件" })).await;
    let events = format!("{}/sse?taskId={}", gateway.url(), task["taskId"].as_str().expect("a task"));
    let mut events = client().get(events).bearer_auth(gateway.token()).send().await.expect("it answers");
    gate.open();
    let mut stream = String::new();
    while !stream.contains("\"task_complete\"") || !stream.ends_with('\n') {
        let chunk = events.chunk().await.expect("the stream goes on").expect("it goes on to the end");
        stream.push_str(std::str::from_utf8(&chunk).expect("each event is whole"));
    }
    let events =
        stream.lines().filter_map(|line| serde_json::from_str::<Value>(line.strip_prefix("data:")?.trim()).ok());
    let before: Vec<Value> = events.take_while(|event| event["type"] != "tool_start").collect();
    let shown: String = before.iter().filter_map(|event| event["text"].as_str()).collect();
    assert_eq!(shown, said, "{stream}");
}
