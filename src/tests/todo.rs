//! The plan of a long task: shown while it changes in one message, told to programs and to the next turn, kept over a
//! `kill -9`, and accounted for at the end by what ran.

use serde_json::{Value, json};

use crate::support::{
    gateway::Gateway,
    model_server::{Ask, Gate, ModelServer, Say, call, text},
    telegram::{ADA, BOT_NAME, Telegram, group},
};

const GROUP: i64 = -1_001_234_567_890;

fn todo(id: &str, arguments: &Value) -> Say {
    Say::Calls(vec![call(id, "todo", &arguments.to_string())])
}

fn three_steps() -> Value {
    json!({ "items": [{ "text": "look around", "state": "doing" }, { "text": "write it down" }, "tell 大家"] })
}

/// Plans, writes a file once the gate is open, is done.
fn planned(ask: &Ask, gate: &Gate) -> Say {
    match ask.round() {
        0 => todo("t1", &three_steps()),
        1 => Say::After(
            gate.clone(),
            Box::new(Say::Calls(vec![call("w1", "write", r#"{"path":"found.txt","content":"x"}"#)])),
        ),
        2 => todo("t2", &json!({ "set": { "1": "done", "2": "completed", "3": "cancelled" } })),
        _ => text("All of it is ready."),
    }
}

#[tokio::test]
async fn a_plan_is_shown_in_one_message_and_the_turn_goes_on_with_it_after_a_kill() {
    let telegram = Telegram::start().await;
    let gate = Gate::default();
    let held = gate.clone();
    let model = ModelServer::start(move |ask| planned(ask, &held)).await;
    let more = format!("limits = \"off\"\ngroups.\"{GROUP}\" = {{}}");
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), telegram.section(&more))).await;
    telegram.group(&group(GROUP), ADA, &format!("@{BOT_NAME} look, write and tell"));
    let shown = telegram.said(GROUP, "📋 0/3").await;
    assert!(shown.text.contains("look around") && shown.text.contains("tell 大家"), "{shown:?}");
    model.asked_about("look, write and tell").await;
    telegram.all_confirmed().await;
    telegram.until("the second request", |_| model.asks().iter().any(|ask| ask.round() == 1).then_some(())).await;
    gateway.kill9().await;
    gateway.restart().await;
    gate.open();
    let answer = telegram.said(GROUP, "All of it is ready.").await;
    assert!(answer.text.contains("Plan: 2 of 3 done, 1 dropped. Ran: write ×1."), "{answer:?}");
    assert_eq!((answer.id, telegram.sent_to(GROUP).len()), (shown.id, 1), "one message: {:?}", telegram.sent_to(GROUP));
    let resumed: Vec<Ask> = model.asks().into_iter().filter(|ask| ask.boot == 2).collect();
    assert!(resumed.iter().all(|ask| ask.results()[0].contains("Plan: 0 of 3 done")), "it goes on with its plan");
    assert!(resumed[0].round() == 1 && !resumed[0].said().contains("still open"), "{:?}", resumed[0].messages());
    model.assert_strict_order();

    telegram.group(&group(GROUP), ADA, &format!("/todo@{BOT_NAME}"));
    let told = telegram.said(GROUP, "📋 2/2").await;
    assert!(told.text.contains("✅ look around") && told.text.contains("✖️ tell 大家"), "{told:?}");
    assert_eq!(gateway.terminate().await.0, Some(0));
}

#[tokio::test]
async fn a_turn_that_runs_out_of_rounds_says_so_and_go_on_continues_the_plan() {
    let model = ModelServer::start(|ask| match (ask.said().contains("go on"), ask.round()) {
        (false, 0) => todo("t1", &three_steps()),
        (false, _) => text("I looked around."),
        (true, 0) => todo("t2", &json!({ "set": { "1": "done", "2": "done", "3": "done" } })),
        (true, _) => text("Now it is done."),
    })
    .await;
    let gateway = Gateway::start(&format!("{}\n[agent]\nmax_rounds = 2\n", model.section())).await;
    let task = gateway.chat(&json!({ "message": "do three things" })).await;
    let events = gateway.events(task["taskId"].as_str().expect("a task")).await;
    let plan = events.iter().find(|event| event["type"] == "plan").expect("programs are told of the plan");
    let first = json!({ "id": 1, "text": "look around", "state": "doing" });
    assert_eq!((&plan["items"][0], &plan["done"], &plan["total"]), (&first, &json!(0), &json!(3)), "{plan}");
    let end = events.last().expect("an end")["result"].as_str().unwrap_or_default().to_owned();
    assert!(end.starts_with("I looked around.") && end.contains("3 open") && end.contains("go on"), "{end}");

    let end = gateway.answer("go on", None).await;
    assert_eq!(end, "Now it is done.\n\n📋 Plan: 3 of 3 done.");
    let went_on = model.asks_about("go on");
    assert!(went_on[0].said().contains("your plan is still open"), "{}", went_on[0].said());
    assert!(went_on[0].said().contains("1. [doing] look around"), "{}", went_on[0].said());

    model.follow(|_| text("hello"));
    assert_eq!(gateway.answer("hi", None).await, "hello", "a short chat hears nothing of plans");
    assert!(!model.asks_about("hi").iter().any(|ask| ask.said().contains("your plan is still open")));
    model.follow(|_| todo("t3", &three_steps()));
    let failed = gateway.chat(&json!({ "message": "开始另一个任务" })).await;
    let events = gateway.events(failed["taskId"].as_str().expect("a task")).await;
    assert_eq!(events.last().expect("an end")["type"], "task_failed", "{events:?}");
    let said = gateway.cli(&["sessions", "show", "agent:main:main"]).await;
    assert!(said.good().contains("2 个步骤已用完"), "{said:?}");
    assert!(gateway.answer("/new", None).await.len() > 1);
    assert!(gateway.answer("/计划", None).await.contains("没有计划"));
}
