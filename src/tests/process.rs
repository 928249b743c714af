//! Commands in the background: they outlive their turn, can be looked at, typed into and ended, tell how they ended, and
//! never outlive the gateway.

#![cfg(target_os = "linux")]

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
    wait::{SOON, until},
};

const ON: &str = "[tools.exec]\nenabled = true\n[limits]\ndrain_s = 1\n";

async fn set_up(script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> (Gateway, ModelServer) {
    let model = ModelServer::start(script).await;
    let gateway = Gateway::start(&format!("{}\n{ON}", model.section())).await;
    (gateway, model)
}

fn one(tool: &str, args: &Value) -> Say {
    Say::Calls(vec![call("c1", tool, &args.to_string())])
}

async fn line_of(path: &Path) -> String {
    until("a line in a file", SOON, async || {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.ends_with('\n').then(|| text.trim().to_owned())
    })
    .await
}

/// Waits until the model was asked with these words in the newest message.
async fn told(model: &ModelServer, words: &str) -> String {
    until(words, SOON, async || {
        let asks = model.asks();
        asks.iter().map(|ask| ask.said().to_owned()).find(|said| said.contains(words))
    })
    .await
}

/// What a person says decides which call is made; a report is answered with a word.
fn by_words(ask: &Ask) -> Say {
    let said = ask.said();
    if ask.round() > 0 {
        return text(ask.results().join("|"));
    }
    match () {
        () if said.contains("background command") => text("noted"),
        () if said.contains("echo please") => {
            let command = "echo $$ > pid; echo ready; while read line; do echo \"heard $line\"; [ \"$line\" = end ] && exit 3; done";
            one("exec", &json!({ "command": command, "run_in_background": true }))
        }
        () if said.contains("sleep please") => {
            one("exec", &json!({ "command": "echo $$ > pid; setsid sleep 300 & sleep 300", "background": true }))
        }
        () if said.contains("hide please") => {
            let command = "env -i sleep 300 & echo $! > pid; sleep 300";
            one("exec", &json!({ "command": command, "background": true }))
        }
        () if said.contains("look") => one("process", &json!({ "action": "poll", "id": "job-1", "wait": 20 })),
        () if said.contains("say hello") => one("process", &json!({ "action": "write", "id": "1", "text": "hello\n" })),
        () if said.contains("say end") => one("process", &json!({ "action": "write", "text": "end\n" })),
        () if said.contains("kill") => one("process", &json!({ "action": "kill", "id": "job-1" })),
        () if said.contains("list") => one("process", &json!({ "action": "list" })),
        () => text("what?"),
    }
}

#[tokio::test]
async fn a_command_runs_on_is_typed_into_and_its_end_is_told_once() {
    let (gateway, model) = set_up(by_words).await;
    assert_eq!(gateway.answer("list", None).await, "There are no background commands.");
    let answer = gateway.answer("echo please", None).await;
    assert!(answer.contains("Started in the background as job-1"), "{answer}");
    let answer = gateway.answer("look", None).await;
    assert!(answer.starts_with("ready\n[job-1 runs since"), "{answer}");
    let answer = gateway.answer("say hello", None).await;
    assert!(answer.starts_with("Written. job-1 runs"), "{answer}");
    let answer = gateway.answer("look again", None).await;
    assert!(answer.starts_with("heard hello\n["), "{answer}");
    gateway.answer("say end", None).await;
    let report = told(&model, "background command job-1 ended: exit code 3").await;
    assert!(report.contains("heard end"), "{report}");
    let answer = gateway.answer("list", None).await;
    assert!(answer.contains("job-1 ended, exit code 3"), "{answer}");
    let reports =
        model.asks().iter().filter(|ask| ask.round() == 0 && ask.said().contains("job-1 ended: exit")).count();
    assert_eq!(reports, 1);
    assert_eq!(fs::read_dir(gateway.dir().join("data/jobs")).expect("the folder").count(), 0);
}

#[tokio::test]
async fn a_killed_command_is_gone_with_all_that_it_started() {
    let (gateway, model) = set_up(by_words).await;
    gateway.answer("sleep please", None).await;
    line_of(&gateway.workspace().join("pid")).await;
    let answer = gateway.answer("kill it", None).await;
    assert!(answer.contains("job-1 ended, ended because it was told to"), "{answer}");
    gateway.no_command_runs().await;
    assert!(
        !model.asks().iter().any(|ask| ask.said().contains("background command job-1 ended")),
        "who ended it knows"
    );
}

#[tokio::test]
async fn a_command_that_hides_its_mark_ends_with_the_gateway_too() {
    let model = ModelServer::start(by_words).await;
    let on = ON.replace("enabled = true", "enabled = true\nsandbox = \"off\"");
    let mut gateway = Gateway::start(&format!("{}\n{on}", model.section())).await;
    gateway.answer("hide please", None).await;
    let hidden = line_of(&gateway.workspace().join("pid")).await;
    gateway.kill9().await;
    gateway.restart().await;
    let report = told(&model, "background command job-1 ended: the gateway was restarted").await;
    assert!(!report.contains("may still run"), "{report}");
    until("what hid is gone", SOON, async || {
        let stat = fs::read_to_string(format!("/proc/{hidden}/stat")).unwrap_or_default();
        stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with(['Z', 'X'])).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_command_ends_with_the_gateway_and_the_next_start_says_so() {
    let (mut gateway, model) = set_up(by_words).await;
    gateway.answer("sleep please", None).await;
    line_of(&gateway.workspace().join("pid")).await;
    gateway.kill9().await;
    gateway.restart().await;
    gateway.no_command_runs().await;
    let report = told(&model, "background command job-1 ended: the gateway was restarted").await;
    assert!(report.contains("sleep 300"), "{report}");
    assert_eq!(gateway.answer("list", None).await, "There are no background commands.");
    // A second start has nothing more to tell.
    let asked = model.asks().len();
    gateway.terminate().await;
    gateway.restart().await;
    assert_eq!(gateway.answer("hm", None).await, "what?");
    assert_eq!(model.asks().len(), asked + 1);
}
