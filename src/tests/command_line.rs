//! The command line, as people and scripts use it: what it says, and the code it ends with.

use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::ModelServer,
};

#[tokio::test]
async fn a_second_gateway_ends_with_75_and_names_the_first() {
    let gateway = Gateway::start("").await;
    let second = gateway.cli(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert_eq!(second.code, Some(75), "{second:?}");
    let pid = gateway.pid().expect("it runs").to_string();
    assert!(second.err.contains(&pid), "{second:?}");
    assert!(!gateway.answer("still there?", None).await.is_empty());
}

#[tokio::test]
async fn bad_input_14_a_taken_port_is_71() {
    let taken = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = taken.local_addr().expect("it is bound").to_string();
    let gateway = Gateway::folder("");
    let output = gateway.cli(&["serve", "--listen", &addr]).await;
    assert_eq!(output.code, Some(71), "{output:?}");
    assert!(output.err.contains(&addr), "{output:?}");
}

#[tokio::test]
async fn what_is_wrong_with_a_configuration_is_said_with_its_place_and_78() {
    for (config, said) in [
        ("[sever]\nlisten = \"127.0.0.1:1\"\n", "server"),
        ("[server]\nlisten = 7\n", "listen"),
        ("[server\n", "1"),
        (
            "[models.main]\nprovider = \"openai\"\nbase_url = \"http://127.0.0.1:1/v1\"\nmodel = \"m\"\napi_key = \"${NOT_SET}\"\n",
            "NOT_SET",
        ),
        ("[channels.webhook.bridge]\ncallback_url = \"https://example.com/\"\n", "secret"),
        ("[channels.telegrm.main]\ntoken = \"x\"\n", "telegrm"),
        ("[server]\nlisten = \"0.0.0.0:0\"\n", "listen"),
    ] {
        let gateway = Gateway::folder(config);
        for args in [&["serve"][..], &["config", "check"]] {
            let output = gateway.cli(args).await;
            assert_eq!(output.code, Some(78), "{args:?} {config}: {output:?}");
            let text = format!("{}{}", output.err, output.out);
            assert!(text.contains(said) && text.contains("config.toml"), "{args:?} {config}: {text}");
        }
    }
    let empty = Gateway::folder("");
    let missing = empty.cli(&["--config", "nothing.toml", "serve"]).await;
    assert_eq!(missing.code, Some(66), "{missing:?}");
    let usage = empty.cli(&["srve"]).await;
    assert_eq!(usage.code, Some(64), "{usage:?}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_configuration_with_secrets_that_others_may_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let gateway = Gateway::folder("[channels.webhook.bridge]\ntoken = \"a-token-for-curl-000000001\"\n");
    let path = gateway.dir().join("config.toml");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).expect("its mode can be set");
    let output = gateway.cli(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    assert!(!output.err.contains("a-token-for-curl-000000001"), "{output:?}");
    assert_eq!(gateway.cli(&["--insecure-perms", "config", "check"]).await.code, Some(0));
}

#[tokio::test]
async fn doctor_lists_every_closed_door_with_the_line_that_opens_it() {
    let gateway = Gateway::folder("");
    let doctor = gateway.cli(&["doctor"]).await;
    for line in ["[models.main]", "[channels.webhook.bridge]", "channels_listen", "local_clients"] {
        assert!(doctor.out.contains(line), "{line}: {doctor:?}");
    }
    let json = gateway.cli(&["doctor", "--json"]).await.json();
    let names: Vec<&str> = doors(&json).filter_map(|door| door["name"].as_str()).collect();
    for name in ["model", "channel", "channels_listen", "hosts", "local_clients"] {
        assert!(names.contains(&name), "{name}: {json}");
    }
    gateway.configure(&Bridge::section(""));
    let json = gateway.cli(&["doctor", "--json"]).await.json();
    let names: Vec<&str> = doors(&json).filter_map(|door| door["name"].as_str()).collect();
    assert!(!names.contains(&"channel") && names.contains(&"owner"), "{json}");
}

fn doors(doctor: &Value) -> impl Iterator<Item = &Value> {
    doctor["doors"].as_array().or(doctor.as_array()).into_iter().flatten()
}

#[tokio::test]
async fn sessions_can_be_listed_shown_searched_reset_and_exported_with_and_without_a_gateway() {
    let model = ModelServer::echo().await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    let key = "agent:main:webhook:bridge:direct:kitchen";
    assert_eq!(bridge.wait(&message("m1", "kitchen", "the kettle is blue")).await.status, 200);
    assert_eq!(bridge.wait(&message("m2", "garden", "the 茶壶 is green")).await.status, 200);
    for running in [true, false] {
        if !running {
            assert_eq!(gateway.terminate().await.0, Some(0));
        }
        let list = gateway.cli(&["sessions", "list", "--json"]).await;
        assert!(list.good().contains(key), "running {running}: {list:?}");
        assert!(list.json().is_array(), "{list:?}");
        assert!(gateway.cli(&["sessions", "list"]).await.good().contains("kitchen"));
        let show = gateway.cli(&["sessions", "show", key]).await;
        assert!(show.good().contains("the kettle is blue"), "running {running}: {show:?}");
        let found = gateway.cli(&["sessions", "search", "kettle"]).await;
        assert!(found.good().contains("kitchen"), "running {running}: {found:?}");
        let found = gateway.cli(&["sessions", "search", "茶壶"]).await;
        assert!(found.good().contains("garden"), "running {running}: {found:?}");
        let export = gateway.cli(&["sessions", "export", key]).await;
        assert!(export.good().contains("the kettle is blue"), "running {running}: {export:?}");
        assert_eq!(gateway.cli(&["dlq", "list", "--json"]).await.json(), json!([]));
    }
    gateway.cli(&["sessions", "reset", key]).await.good();
    gateway.restart().await;
    assert_eq!(bridge.wait(&message("m3", "kitchen", "what colour?")).await.status, 200);
    let last = model.asks().pop().expect("asked");
    assert!(!serde_json::to_string(&last.body).expect("JSON").contains("kettle"), "it was reset");
    gateway.cli(&["sessions", "reset", key]).await.good();
    assert_eq!(bridge.wait(&message("m4", "kitchen", "and now?")).await.status, 200);
    let last = model.asks().pop().expect("asked");
    assert!(!serde_json::to_string(&last.body).expect("JSON").contains("what colour"), "it was reset while running");
    assert_ne!(gateway.cli(&["sessions", "show", "agent:main:nothing"]).await.code, Some(0));
}

#[tokio::test]
async fn a_turn_can_be_traced_and_a_silent_one_says_why() {
    let model = ModelServer::start(|_| crate::support::model_server::text("NO_REPLY")).await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    assert_eq!(bridge.wait(&message("m1", "room", "say nothing")).await.body["silent"], "no_reply");
    // By the turn's id, which `sessions show` tells, or by that of the message.
    let show = gateway.cli(&["sessions", "show", "agent:main:webhook:bridge:direct:room", "--json"]).await;
    let turn = show.good().split('"').find(|word| word.starts_with("tn_")).map(str::to_owned);
    let turn = turn.unwrap_or_else(|| panic!("no turn's id: {show:?}"));
    let trace = gateway.cli(&["trace", &turn]).await;
    assert!(trace.good().contains("no_reply"), "{trace:?}");
    assert!(trace.out.contains("kit-1"), "the model call is in it: {trace:?}");
    assert!(gateway.cli(&["trace", &turn, "--json"]).await.json().is_object());
    assert_ne!(gateway.cli(&["trace", "tn_nothing"]).await.code, Some(0));
}

#[tokio::test]
async fn chat_over_a_pipe_says_the_whole_input_and_writes_the_answer_alone() {
    let gateway = Gateway::start("").await;
    let chat = gateway.cli_with(&["chat"], "what a day\nand what a night\n").await;
    assert!(chat.good().contains("what a day\nand what a night"), "{chat:?}");
    let chinese = gateway.cli_with(&["chat"], "今天天气真好").await;
    assert!(chinese.good().contains("今天天气真好"), "{chinese:?}");
    let tool = gateway.cli_with(&["chat"], "list files\n").await;
    assert!(tool.out.contains("AGENTS.md"), "{tool:?}");
    assert!(format!("{}{}", tool.out, tool.err).contains("ls"), "the tool step is shown: {tool:?}");
}

#[tokio::test]
async fn the_prompt_can_be_shown_with_the_size_of_each_section() {
    let gateway = Gateway::start("").await;
    let prompt = gateway.cli(&["prompt", "show"]).await;
    assert!(prompt.good().contains("AGENTS.md"), "{prompt:?}");
}

#[tokio::test]
async fn what_is_not_there_is_66_and_a_language_nobody_speaks_64() {
    let gateway = Gateway::folder("");
    for args in [
        &["skills", "check", "nobody"][..],
        &["skills", "grant", "nobody"],
        &["skills", "remove", "nobody", "--yes"],
        &["mcp", "approve", "nobody"],
        &["mcp", "tools", "nobody"],
    ] {
        let output = gateway.cli(args).await;
        assert!(output.code == Some(66) && output.err.contains("nobody"), "{args:?}: {output:?}");
    }
    let output = gateway.cli(&["--lang", "xx", "config", "check"]).await;
    assert!(output.code == Some(64) && output.err.contains("xx"), "{output:?}");
}

#[tokio::test]
async fn the_prompt_of_a_role_lists_the_tools_that_its_turns_are_offered() {
    let gateway = Gateway::folder("[tools]\ndeny = [\"grep\"]\n");
    for (role, there, not) in [
        ("owner", &["schedule", "write"][..], &["grep"][..]),
        ("member", &["read"], &["schedule", "write", "grep"]),
        ("stranger", &[], &["read", "schedule"]),
    ] {
        let shown = gateway.cli(&["prompt", "show", "--as", role]).await;
        let line = shown.good().lines().last().expect("the tools").to_owned();
        let tools: Vec<&str> = line.split([' ', ',']).collect();
        assert!(there.iter().all(|tool| tools.contains(tool)), "{role}: {line}");
        assert!(!not.iter().any(|tool| tools.contains(tool)), "{role}: {line}");
    }
    let doctor = gateway.cli(&["doctor", "--offline"]).await;
    let line = doctor.out.lines().find(|line| line.contains("schedule")).unwrap_or_else(|| panic!("{doctor:?}"));
    assert!(line.contains("message") && !line.contains("grep"), "{line}");
    assert_eq!(gateway.cli(&["prompt", "show", "--as", "king"]).await.code, Some(64));
}

#[tokio::test]
async fn chinese_is_spoken_where_it_is_asked_for() {
    let gateway = Gateway::folder("[ui]\nlang = \"zh\"\n[sever]\n");
    let output = gateway.cli(&["config", "check"]).await;
    assert_eq!(output.code, Some(78), "{output:?}");
    let text = format!("{}{}", output.err, output.out);
    assert!(text.chars().any(|c| ('\u{4e00}'..='\u{9fff}').contains(&c)), "{text}");
}

#[tokio::test]
async fn init_says_of_a_webhook_without_a_callback_that_nobody_is_told_anything_first_there() {
    let gateway = Gateway::folder("");
    let init = gateway.cli(&["init", "--non-interactive", "--no-probe", "--channel", "webhook"]).await;
    let line = init.good().lines().find(|line| line.contains("callback_url")).unwrap_or_else(|| panic!("{init:?}"));
    assert!(line.starts_with("! ") && line.contains("heartbeats"), "{line}");
    let checked = gateway.cli(&["config", "check"]).await;
    checked.good();
}
