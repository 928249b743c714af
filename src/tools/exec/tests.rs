//! Commands as a model writes them, on a real shell.

use std::{fs, path::Path};

use channel_api::Clock;
use serde_json::json;

use super::*;
use crate::{
    clock::SystemClock,
    secrets::Secret,
    tools::{Parts, Registry, ToolsConfig, fixture::Fixture},
};

fn exec() -> Exec {
    let canary = Secret::new("sk-canary-0123456789");
    let config = ExecConfig { enabled: true, ..ExecConfig::default() };
    Exec::new(config, Commands::default(), Redactor::new([&canary]))
}

async fn run(house: &Fixture, args: Value) -> Result<String, String> {
    house.run(&exec(), args).await
}

/// Whether a process of that pid runs. One that ended and that nobody has collected does not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with(['Z', 'X']))
}

/// Waits until the file holds as many lines, and gives them.
async fn lines_of(path: &Path, count: usize) -> Vec<String> {
    let clock = SystemClock::new();
    loop {
        let text = fs::read_to_string(path).unwrap_or_default();
        if text.ends_with('\n') && text.lines().count() >= count {
            return text.lines().map(str::to_owned).collect();
        }
        assert!(clock.monotonic() < Duration::from_secs(20), "{text}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_gone(pids: &[String]) {
    let clock = SystemClock::new();
    while let Some(pid) = pids.iter().find(|pid| runs(pid)) {
        assert!(clock.monotonic() < Duration::from_secs(20), "{pid} still runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[test]
fn it_is_there_when_it_is_switched_on_and_understands_other_agents() {
    let mut config = ToolsConfig::default();
    config.exec.enabled = true;
    let tools = Registry::builtin(&Parts { config, ..Parts::default() });
    let ready = tools.prepare("run_terminal_cmd", r#"{"cmd": "ls", "cwd": "src", "timeout_seconds": "20"}"#);
    assert_eq!(ready.expect("it is understood").args, json!({"command": "ls", "workdir": "src", "timeout": 20}));
    let refused = tools.prepare("exec", r#"{"command": "ls", "timeout": 300000}"#).err().expect("too long").to_string();
    assert!(refused.contains("86400"), "{refused}");
    assert!(Registry::builtin(&Parts::default()).get("exec").is_none());
}

#[tokio::test]
async fn output_comes_in_order_with_the_exit_code() {
    let house = Fixture::new();
    house.put("a.py", "1\n2\n").put("sub/b.py", "3\n");
    let text = run(&house, json!({"command": "echo one; echo two >&2; echo three; exit 3"})).await.expect("it ran");
    assert!(text.starts_with("one\ntwo\nthree\n[exit code 3"), "{text}");
    let text = run(&house, json!({"command": "true"})).await.expect("it ran");
    assert!(text.starts_with("(no output)\n[exit code 0"), "{text}");
    let count = json!({"command": "cat $(find . -name '*.py') | wc -l > result.txt; cat result.txt"});
    assert!(run(&house, count).await.expect("it ran").starts_with("3\n"));
    assert_eq!(fs::read_to_string(house.at("result.txt")).expect("made").trim(), "3");
    // Nothing can be typed into it.
    assert!(run(&house, json!({"command": "cat"})).await.expect("it ran").starts_with("(no output)"));
    let killed = run(&house, json!({"command": "kill -9 $$"})).await.expect_err("no exit code");
    assert!(killed.contains("ended by signal 9 (killed"), "{killed}");
}

#[tokio::test]
async fn it_starts_in_the_workspace_or_in_a_folder_of_it_and_nowhere_else() {
    let house = Fixture::new();
    house.put("sub/here.txt", "x");
    std::os::unix::fs::symlink(house.top.path().join("outside"), house.at("link")).expect("a link");
    let ls = |folder: &str| json!({"command": "ls", "workdir": folder});
    assert!(run(&house, ls("sub")).await.expect("it ran").starts_with("here.txt\n"));
    assert!(run(&house, ls("")).await.expect("it ran").contains("sub\n"));
    for (folder, told) in [
        ("../outside", "outside the folders"),
        ("/", "outside the folders"),
        ("/etc", "outside the folders"),
        ("link", "leads out"),
        ("skills", "does not exist"),
        ("sub/here.txt", "is a file"),
        ("none", "does not exist"),
    ] {
        let error = run(&house, ls(folder)).await.expect_err(folder);
        assert!(error.contains(told), "{folder}: {error}");
    }
}

#[tokio::test]
async fn a_command_that_takes_too_long_is_ended_with_all_that_it_started() {
    let house = Fixture::new();
    // One child in the group, one that left it, one that ignores the request to end.
    let command = "echo $$ > pids; sleep 300 & echo $! >> pids; setsid sleep 301 & echo $! >> pids; \
                   (trap '' TERM; echo here; while :; do sleep 0.05; done) & echo $! >> pids; wait";
    let clock = SystemClock::new();
    let error = run(&house, json!({"command": command, "timeout": 1})).await.expect_err("too long");
    assert!(clock.monotonic() < Duration::from_secs(6));
    assert!(error.contains("here\n[stopped after 1 s, with everything it had started"), "{error}");
    assert!(error.contains("larger timeout (at most 120)"), "{error}");
    let pids = lines_of(&house.at("pids"), 4).await;
    until_gone(&pids).await;
}

#[tokio::test]
async fn a_stop_ends_it_at_once() {
    let house = Fixture::new();
    let tool = exec();
    let call =
        tool.call(json!({"command": "echo $$ > pids; sleep 300 & echo $! >> pids; wait", "timeout": 60}), &house.ctx);
    let clock = SystemClock::new();
    let stop = async {
        lines_of(&house.at("pids"), 2).await;
        house.ctx.cancel.cancel();
    };
    let (result, ()) = tokio::join!(call, stop);
    assert!(matches!(result, Err(ToolError::Abort(why)) if why == "stopped"));
    assert!(clock.monotonic() < Duration::from_secs(5));
    until_gone(&lines_of(&house.at("pids"), 2).await).await;
}

#[tokio::test]
async fn a_call_that_is_dropped_leaves_nothing_behind() {
    let house = Fixture::new();
    let tool = exec();
    let command = "echo $$ > pids; sleep 300 & echo $! >> pids; setsid sleep 300 & echo $! >> pids; wait";
    let call = tool.call(json!({"command": command, "timeout": 60}), &house.ctx);
    let pids = house.at("pids");
    tokio::select! {
        _ = call => panic!("it cannot end"),
        _ = lines_of(&pids, 3) => {}
    }
    until_gone(&lines_of(&house.at("pids"), 3).await).await;
}

#[tokio::test]
async fn what_goes_to_the_background_neither_hangs_the_call_nor_outlives_it() {
    let house = Fixture::new();
    let clock = SystemClock::new();
    for command in [
        "sleep 300 & echo $! > pids; echo done",
        "setsid sleep 300 & echo $! > pids; echo done",
        "nohup sleep 300 > /dev/null 2>&1 & echo $! > pids; echo done",
    ] {
        let text = run(&house, json!({"command": command, "timeout": 60})).await.expect("it ran");
        assert!(text.starts_with("done\n[exit code 0"), "{text}");
        assert!(text.contains("left running in the background was ended"), "{text}");
        until_gone(&lines_of(&house.at("pids"), 1).await).await;
    }
    assert!(clock.monotonic() < Duration::from_secs(20));
}

#[tokio::test]
async fn a_flood_of_output_stays_small() {
    let house = Fixture::new();
    let command = "echo FIRST; head -c 100000000 /dev/zero | tr '\\0' 'x' | fold -w 99; echo; echo LAST";
    let text = run(&house, json!({"command": command, "timeout": 100})).await.expect("it ran");
    assert!(text.starts_with("FIRST\nxxx") && text.contains("LAST\n[exit code 0"), "{}", &text[text.len() - 200..]);
    assert!(text.contains("of 96.3 MiB in all the middle was not kept"), "{}", text.len());
}

#[tokio::test]
async fn no_secret_comes_out_of_it() {
    let house = Fixture::new();
    let text = run(&house, json!({"command": "printf 'sk-canary-%s\\n' 0123456789; printf '\\377\\376 odd\\n'"})).await;
    let text = text.expect("it ran");
    assert!(text.starts_with("[redacted]\n") && text.contains(" odd\n"), "{text}");
    let text = run(&house, json!({"command": "env"})).await.expect("it ran");
    let media = format!("CRAWFISH_MEDIA={}", house.ctx.media.display());
    assert!(text.contains(&media), "{text}");
    for line in text.lines().filter(|line| line.contains('=')) {
        let name = line.split('=').next().unwrap_or_default();
        let known =
            ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM", "PWD", "SHLVL", "_"];
        assert!(
            known.contains(&name) || name.starts_with("LC_") || [os::COMMAND_MARK, "CRAWFISH_MEDIA"].contains(&name),
            "{line}"
        );
    }
    let all = [
        ("PATH", "/bin"),
        ("OPENAI_API_KEY", "sk-1"),
        ("LC_ALL", "C"),
        ("HOME", "/h"),
        ("path", "x"),
        ("LD_PRELOAD", "x"),
    ];
    let kept = os::clean_environment(all.map(|(name, value)| (name.into(), value.into())));
    let kept: Vec<_> = kept.iter().filter_map(|(name, _)| name.to_str()).collect();
    assert_eq!(kept, ["PATH", "LC_ALL", "HOME", "TERM"]);
}

#[tokio::test]
async fn a_shell_that_is_not_there_is_told_with_those_that_are() {
    let house = Fixture::new();
    let error = run(&house, json!({"command": "dir", "shell": "cmd"})).await.expect_err("not on this system");
    assert!(error.contains("There is no `cmd` on this machine; it has `sh`"), "{error}");
    let text = run(&house, json!({"command": "echo $0", "shell": "sh"})).await.expect("it ran");
    assert!(text.contains("sh\n"), "{text}");
    for command in ["", "  \n", "echo \0"] {
        assert!(run(&house, json!({"command": command})).await.is_err(), "{command:?}");
    }
}

#[tokio::test]
async fn no_more_than_eight_run_at_once() {
    let house = Fixture::new();
    let tool = exec();
    let command = "echo + >> running; while [ ! -e go ]; do sleep 0.02; done";
    let calls = (0..AT_ONCE + 4).map(|_| tool.call(json!({"command": command, "timeout": 60}), &house.ctx));
    let watch = async {
        lines_of(&house.at("running"), AT_ONCE).await;
        assert_eq!(tool.commands.slots.available_permits(), 0);
        let begun = lines_of(&house.at("running"), AT_ONCE).await.len();
        assert_eq!(begun, AT_ONCE, "the others wait");
        house.put("go", "");
    };
    let (results, ()) = tokio::join!(futures_util::future::join_all(calls), watch);
    assert!(results.iter().all(Result::is_ok));
    assert_eq!(lines_of(&house.at("running"), AT_ONCE + 4).await.len(), AT_ONCE + 4);
}

#[tokio::test]
async fn what_a_killed_gateway_left_is_found_by_its_mark() {
    let commands = Commands::of("tests-of-leftovers");
    let mut child = std::process::Command::new("setsid")
        .args(["sleep", "300"])
        .env(os::COMMAND_MARK, commands.mark())
        .spawn()
        .expect("it starts");
    assert_eq!(Commands::of("another-house").end_leftovers(), 0);
    // Between fork and exec it still shows the environment of this test.
    let clock = SystemClock::new();
    while commands.end_leftovers() == 0 {
        assert!(clock.monotonic() < Duration::from_secs(20));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(os::ended_by(child.wait().expect("it ended")), Some(9));
}
