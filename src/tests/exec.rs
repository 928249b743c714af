//! Commands: steps that are seen, a switch that is off, people who never get it, and ends that leave nothing behind.

use std::{fs, path::Path};

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
    wait::{SOON, until},
};

const ON: &str = "[tools.exec]\nenabled = true\n[limits]\ndrain_s = 1\n";

async fn set_up(sections: &str, script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> (Gateway, ModelServer) {
    let model = ModelServer::start(script).await;
    let bridge = Bridge::section("owners = [\"boss\"]\ngroup_policy = \"open\"");
    let mut gateway = Gateway::folder(&format!("{}\n{bridge}\n{sections}", model.section()));
    fs::create_dir_all(gateway.workspace().join("src/deep")).expect("a folder");
    for (name, lines) in [("main.py", 3), ("src/a.py", 40), ("src/deep/b.py", 7), ("src/notes.txt", 1000)] {
        fs::write(gateway.workspace().join(name), "x = 1\n".repeat(lines)).expect("a file");
    }
    gateway.restart().await;
    (gateway, model)
}

fn exec(id: &str, args: &Value) -> Say {
    Say::Calls(vec![call(id, "exec", &args.to_string())])
}

/// Waits until a file of the workspace holds as many lines.
async fn lines_of(path: &Path, count: usize) -> Vec<String> {
    until("lines in a file", SOON, async || {
        let text = fs::read_to_string(path).unwrap_or_default();
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        (text.ends_with('\n') && lines.len() >= count).then_some(lines)
    })
    .await
}

const COUNT: &str = "统计当前目录下所有 Python 文件的总行数，并写入 result.txt";

/// Four steps: looks for the files, counts, writes what was counted, reads it back.
fn counting(ask: &Ask) -> Say {
    let results = ask.results();
    match ask.round() {
        0 => Say::Calls(vec![call("c1", "find", &json!({ "pattern": "*.py" }).to_string())]),
        1 => {
            let command = "find . -name '*.py' -print0 | xargs -0 cat | wc -l";
            Say::Calls(vec![call("c2", "execute_shell", &json!({ "cmd": command }).to_string())])
        }
        2 => {
            let number = results[1].split_whitespace().next().unwrap_or_default();
            Say::Calls(vec![call("c3", "write", &json!({ "path": "result.txt", "content": number }).to_string())])
        }
        3 => Say::Calls(vec![call("c4", "read", &json!({ "path": "result.txt" }).to_string())]),
        _ => text(format!("共 {} 行。", results[3].trim())),
    }
}

#[tokio::test]
async fn lines_are_counted_in_four_steps_that_the_terminal_and_the_trace_show() {
    let (gateway, model) = set_up(ON, counting).await;
    let output = gateway.cli_with(&["chat", "--json"], COUNT).await;
    let events: Vec<Value> = output.good().lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let of = |kind: &str, key: &str| -> Vec<Value> {
        events.iter().filter(|event| event["type"] == kind).map(|event| event[key].clone()).collect()
    };
    assert_eq!(of("tool_start", "tool"), ["find", "exec", "write", "read"], "{events:?}");
    assert_eq!(of("tool_end", "tool"), ["find", "exec", "write", "read"]);
    assert!(of("tool_end", "ok").iter().all(|ok| ok != &Value::Bool(false)), "{events:?}");
    assert_eq!(of("task_complete", "result"), ["共 50 行。"]);
    let written = fs::read_to_string(gateway.workspace().join("result.txt")).expect("it was written");
    assert_eq!(written.trim(), "50");
    let task = of("task_complete", "taskId").remove(0);
    let trace = gateway.cli(&["trace", task.as_str().expect("an id"), "--full"]).await;
    for shown in ["find", "exec", "wc -l", "exit code 0", "write", "read"] {
        assert!(trace.good().contains(shown), "{shown}: {}", trace.out);
    }
    model.assert_strict_order();
    assert!(gateway.log().contains("commands are confined"), "the start says it: {}", gateway.log());
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(doctor.good().contains("commands are confined as level L"), "{}", doctor.out);
}

#[tokio::test]
async fn while_it_is_off_the_model_has_no_commands_and_is_told_why() {
    let (gateway, model) = set_up("", |ask| match ask.round() {
        0 => exec("c1", &json!({ "command": "echo ran > ran.txt" })),
        _ => text(ask.results().join("|")),
    })
    .await;
    let answer = gateway.answer("run it", None).await;
    assert!(answer.contains("`[tools.exec]`") && answer.contains("owner"), "{answer}");
    assert!(!gateway.workspace().join("ran.txt").exists());
    let asks = model.asks();
    assert!(!asks[0].tools().contains(&"exec"), "{:?}", asks[0].tools());
    assert!(asks[0].tools().contains(&"write") && asks[0].tools().contains(&"memory_search"), "{:?}", asks[0].tools());
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    assert!(doctor.good().contains("[tools.exec] enabled = true"), "{}", doctor.out);
    assert!(!gateway.log().contains("commands are confined"), "nothing is tried for nobody");
}

#[tokio::test]
async fn commands_are_the_owners_and_notes_never_reach_another_chat() {
    let (gateway, model) = set_up(ON, |ask| match (ask.round(), ask.said().contains("go")) {
        (0, true) => Say::Calls(vec![
            call("c1", "exec", &json!({ "command": "echo ran >> ran.txt" }).to_string()),
            call("c2", "memory_search", &json!({ "query": "canary" }).to_string()),
        ]),
        _ => text(format!("heard: {}", ask.results().join("|"))),
    })
    .await;
    fs::create_dir_all(gateway.workspace().join("memory")).expect("a folder");
    fs::write(gateway.workspace().join("memory/2026-01-02.md"), "The canary is yellow.\n").expect("a note");
    let bridge = Bridge::to(&gateway);
    let said = |id: &str, sender: &str, group: bool| {
        let mut body = message(id, if group { "group" } else { sender }, "go");
        body["sender"] = json!({ "id": sender, "name": sender });
        if group {
            body["conversation"] = json!({ "id": "the-group", "type": "group" });
            body["mentioned"] = true.into();
        }
        body
    };
    let offered = || -> (bool, bool) {
        let asks = model.asks();
        let first = asks.iter().rev().find(|ask| ask.round() == 0).expect("it was asked");
        let tools = first.tools();
        (tools.contains(&"exec"), tools.contains(&"memory_search") || tools.contains(&"memory_get"))
    };
    let ran = gateway.workspace().join("ran.txt");
    for (id, sender, group, may) in [
        ("m1", "stranger", false, (false, false)),
        // They search the notes of their own chat, of which there are none.
        ("m2", "u1", false, (false, true)),
        ("m3", "u1", true, (false, true)),
        ("m4", "boss", true, (false, true)),
        ("m5", "boss", false, (true, true)),
    ] {
        let before = fs::read_to_string(&ran).unwrap_or_default().lines().count();
        let answer = bridge.wait(&said(id, sender, group)).await;
        assert_eq!(answer.status, 200, "{id}: {answer:?}");
        assert_eq!(offered(), may, "{id}");
        let after = fs::read_to_string(&ran).unwrap_or_default().lines().count();
        assert_eq!(after - before, usize::from(may.0), "{id}: {answer:?}");
        assert_eq!(answer.raw.contains("yellow"), may.0, "{id}: {answer:?}");
        assert_eq!(answer.raw.contains("memory/2026-01-02.md#L1-L1"), may.0, "{id}: {answer:?}");
        // They were searched, and hold nothing: no error hides the difference.
        assert_eq!(answer.raw.contains("no notes of this chat"), may == (false, true), "{id}: {answer:?}");
    }
    let direct = model.asks().into_iter().rev().find(|ask| ask.round() == 0).expect("asked");
    let system = direct.messages()[0]["content"].as_str().unwrap_or_default().to_owned();
    assert!(system.contains("memory_search"), "{system}");
    model.assert_strict_order();
}

/// Where a child could find what its parents know.
const LOOKS: &str = "env; cat ../config.toml ../data/token; cat /proc/$PPID/environ /proc/[0-9]*/environ \
    /proc/[0-9]*/cmdline /proc/self/environ | tr '\\0' '\\n'; strings /proc/$PPID/mem 2>&1 | head -c 2000; \
    gdb -p $PPID -batch 2>&1 | head -5; ulimit -c; ls /proc/self/fd";

#[tokio::test]
async fn row_25_a_command_finds_no_key_and_no_token_in_any_process() {
    let (gateway, model) = set_up(ON, |ask| match ask.round() {
        0 => exec("c1", &json!({ "command": LOOKS })),
        _ => text("seen"),
    })
    .await;
    #[cfg(target_os = "linux")]
    {
        let pid = gateway.pid().expect("it runs");
        let status = std::fs::read_to_string(format!("/proc/{pid}/limits")).expect("it is there");
        let core = status.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
        assert_eq!(core.split_whitespace().nth(4), Some("0"), "{core}");
    }
    assert_eq!(gateway.answer("look", None).await, "seen");
    let last = model.asks().pop().expect("asked");
    let result = last.results()[0];
    assert!(result.contains("PATH=") && !result.contains("[models.main]"), "{result}");
    for secret in ["sk-kit-0123456789abcdef", crate::support::bridge::SECRET, gateway.token().as_str(), "KIT_BOOT="] {
        assert!(!result.contains(secret), "{secret}: {result}");
    }
}

/// A command that says when it runs and then takes its time; the turn is told how it ended.
fn slow(ask: &Ask) -> Say {
    let command = "echo once >> effect.txt; echo $$ > pids; setsid sleep 300 & echo $! >> pids; sleep 300";
    match ask.round() {
        0 => exec("c1", &json!({ "command": command, "timeout": 120 })),
        _ => text(format!("it was: {}", ask.results().join("|"))),
    }
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn after_a_crash_a_command_is_ended_and_not_run_again() {
    let (mut gateway, model) = set_up(ON, slow).await;
    let task = gateway.chat(&json!({ "message": "run it" })).await;
    lines_of(&gateway.workspace().join("pids"), 2).await;
    gateway.kill9().await;
    gateway.no_command_runs().await;
    gateway.restart().await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let end = events.last().expect("an end");
    let result = end["result"].as_str().unwrap_or_default();
    assert!(result.contains("interrupted") && result.contains("verify before repeating"), "{end}");
    let effect = fs::read_to_string(gateway.workspace().join("effect.txt")).expect("it ran");
    assert_eq!(effect, "once\n", "it ran once");
    model.assert_strict_order();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_drain_that_cannot_wait_ends_the_command_and_the_next_start_tells_the_turn() {
    let (mut gateway, model) = set_up(ON, slow).await;
    let task = gateway.chat(&json!({ "message": "run it" })).await;
    lines_of(&gateway.workspace().join("pids"), 2).await;
    let (code, _) = gateway.terminate().await;
    assert_eq!(code, Some(0));
    gateway.no_command_runs().await;
    gateway.restart().await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let end = events.last().expect("an end");
    assert!(end["result"].as_str().unwrap_or_default().contains("interrupted"), "{end}");
    let effect = fs::read_to_string(gateway.workspace().join("effect.txt")).expect("it ran");
    assert_eq!(effect, "once\n", "it ran once");
    model.assert_strict_order();
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_stop_word_ends_a_command_at_once() {
    let (gateway, model) = set_up(ON, slow).await;
    let task = gateway.chat(&json!({ "message": "run it" })).await;
    lines_of(&gateway.workspace().join("pids"), 2).await;
    gateway.chat(&json!({ "message": "停止" })).await;
    gateway.no_command_runs().await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let kind = events.last().expect("an end")["type"].clone();
    assert!(kind == "task_complete" || kind == "task_failed", "{events:?}");
    assert_eq!(model.asks().len(), 1, "the model is not asked again");
    model.follow(|_| text("still here"));
    assert_eq!(gateway.answer("still there?", None).await, "still here");
    model.assert_strict_order();
}
