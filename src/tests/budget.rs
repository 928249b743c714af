//! What models cost: a turn that would never end stops at its budget, the day's spend is right to the token through a
//! `kill -9`, nobody spends somebody else's day, and a session chooses its model.

use std::{
    fs,
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{Ask, Gate, ModelServer, Say, call, text},
};

/// The tokens a fake model reported: input, output, cached.
type Told = Arc<Mutex<[u64; 3]>>;

/// The price of the fake model, in billionths a token: 2, 8 and 0.2 CNY a million.
const PRICE: &str = "[models.main.price]\ncurrency = \"CNY\"\ninput = 2.0\noutput = 8\ncached = 0.2\n";

fn cost(told: [u64; 3]) -> u64 {
    let [input, output, cached] = told;
    (input - cached) * 2_000 + output * 8_000 + cached * 200
}

/// An answer with the usage it reports, which is added up.
fn reports(told: &Told, usage: [u64; 3], message: &Value, finish: &str) -> Say {
    let mut sum = told.lock().expect("not poisoned");
    for (sum, more) in sum.iter_mut().zip(usage) {
        *sum += more;
    }
    let [input, output, cached] = usage;
    let body = json!({
        "id": "chatcmpl-kit", "object": "chat.completion", "created": 1, "model": "kit-1",
        "choices": [{ "index": 0, "message": message, "finish_reason": finish }],
        "usage": { "prompt_tokens": input, "completion_tokens": output, "total_tokens": input + output,
                   "prompt_tokens_details": { "cached_tokens": cached } },
    });
    Say::Raw(200, None, body.to_string())
}

fn says(told: &Told, usage: [u64; 3], text: &str) -> Say {
    reports(told, usage, &json!({ "role": "assistant", "content": text }), "stop")
}

/// A call that is another one each time, so that nothing but a budget ends it.
fn calls(told: &Told, usage: [u64; 3], n: u64) -> Say {
    let (name, arguments) = match n % 2 {
        0 => ("grep", json!({ "pattern": format!("word{n}") })),
        _ => ("read", json!({ "path": format!("notes-{n}.txt") })),
    };
    let call = json!({ "id": format!("c{n}"), "type": "function",
                       "function": { "name": name, "arguments": arguments.to_string() } });
    reports(told, usage, &json!({ "role": "assistant", "content": null, "tool_calls": [call] }), "tool_calls")
}

async fn start(model: &ModelServer, more: &str) -> (Gateway, Bridge) {
    let section = Bridge::section("owners = [\"boss\"]");
    let mut gateway = Gateway::folder(&format!("{}{PRICE}\n{section}\n{more}\n", model.section()));
    fs::create_dir_all(gateway.workspace()).expect("a folder");
    gateway.restart().await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge)
}

fn from(id: &str, sender: &str, text: &str) -> Value {
    let mut body = message(id, &format!("room-{sender}"), text);
    body["sender"] = json!({ "id": sender });
    body
}

async fn usage(gateway: &Gateway, by: &str) -> Vec<Value> {
    let rows = gateway.cli(&["usage", "--by", by, "--since", "today", "--json"]).await.json();
    rows.as_array().expect("a list").clone()
}

/// What the ledger holds of a sum: input, output, cached.
fn of(row: &Value) -> [u64; 3] {
    ["input", "output", "cached"].map(|key| row["usage"][key].as_u64().expect("tokens"))
}

/// Money as the ledger writes it, in billionths.
fn nano(amount: &Value) -> u64 {
    let amount = amount.as_str().expect("an amount");
    let (whole, rest) = amount.split_once('.').unwrap_or((amount, ""));
    format!("{whole}{rest:0<9}").parse().expect("digits")
}

#[tokio::test]
async fn row_39_a_model_that_calls_tools_for_ever_stops_at_its_budget_with_one_line() {
    let told = Told::default();
    let model = ModelServer::start({
        let told = Arc::clone(&told);
        move |ask: &Ask| calls(&told, [6_000, 100, 5_000], ask.n)
    })
    .await;
    let (gateway, bridge) =
        start(&model, "[agent]\nmax_rounds = 200\n[limits.budget]\nturn_tokens = 60_000\nday_cost = \"5 CNY\"").await;
    let answer = bridge.wait(&message("m1", "room", "go on and on")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    let messages = answer.body["messages"].as_array().expect("messages");
    assert_eq!(messages.len(), 1, "one line: {answer:?}");
    let line = answer.text();
    assert!(line.contains("60,000 tokens") && !line.contains('\n'), "{line}");
    assert!(!line.contains("turn_tokens"), "who is no owner is not told of the configuration: {line}");
    let asked = model.asks().len() as u64;
    assert!((5..=9).contains(&asked), "{asked} calls of 6,100 tokens are within 60,000");
    model.assert_strict_order();
    // A new message has a budget of its own; the owner hears which line raises it, in their language.
    let answer = bridge.wait(&from("m2", "boss", "不停地干")).await;
    assert!(answer.text().contains("预算") && answer.text().contains("limits.budget.turn_tokens"), "{answer:?}");
    // The owner's list is in the gateway's language, whatever the chat's is.
    let recent = gateway.cli(&["sessions", "search", "不停地干", "--json"]).await;
    let turn = recent.good().split('"').find(|word| word.starts_with("tn_")).map(str::to_owned);
    let trace = gateway.cli(&["trace", &turn.unwrap_or_else(|| panic!("no turn's id: {recent:?}"))]).await;
    assert!(
        trace.good().lines().next().is_some_and(|line| line.contains("failed (this task has used up")),
        "{trace:?}"
    );
    let told = *told.lock().expect("not poisoned");
    let all = usage(&gateway, "total").await;
    assert_eq!((all.len(), of(&all[0]), &all[0]["calls"]), (1, told, &json!(model.asks().len())));
    assert_eq!(nano(&all[0]["costs"]["CNY"]), cost(told), "{all:?}");
    // Nothing of it was in vain for the watchers.
    let metrics = bridge_metrics(&gateway).await;
    assert!(metrics.contains(&format!("crawfish_model_tokens_total{{model=\"main\",kind=\"input\"}} {}", told[0])));
    assert!(metrics.contains("crawfish_model_cost_total{model=\"main\",currency=\"CNY\"} 0."), "{metrics}");
}

async fn bridge_metrics(gateway: &Gateway) -> String {
    let request = crate::support::gateway::client().get(format!("{}/metrics", gateway.url()));
    let answer = request.bearer_auth(gateway.token()).send().await.expect("it answers");
    answer.text().await.expect("a page")
}

#[tokio::test]
async fn the_days_spend_is_right_to_the_token_through_a_kill() {
    let (told, gate) = (Told::default(), Gate::default());
    let model = ModelServer::start({
        let (told, gate) = (Arc::clone(&told), gate.clone());
        move |ask: &Ask| match ask.round() {
            // The process is killed while this one is under way: the provider reports nothing.
            2 if ask.boot == 1 && ask.said().contains("long") => Say::After(gate.clone(), Box::new(text("never"))),
            round @ 0..=2 => calls(&told, [1_000 + round as u64, 11, 7], ask.n),
            _ => says(&told, [2_003, 17, 1_001], "all done"),
        }
    })
    .await;
    let (mut gateway, bridge) = start(&model, "").await;
    assert_eq!(bridge.wait(&from("m1", "u1", "a short one")).await.text(), "all done");
    bridge.accepted(&from("m2", "u2", "a stranger")).await;
    bridge.ended("m2").await;
    let long = message("m3", "room", "a long one");
    bridge.accepted(&long).await;
    crate::support::wait::until("the third call", crate::support::wait::SOON, async || {
        model.asks_about("a long one").iter().any(|ask| ask.round() == 2).then_some(())
    })
    .await;
    gateway.kill9().await;
    gateway.restart().await;
    let ended = bridge.ended("m3").await;
    assert_eq!(ended.text(), "all done");
    // The model was asked twice in its third round, and paid once.
    assert_eq!(model.asks_about("a long one").iter().filter(|ask| ask.round() == 2).count(), 2);
    let sums = *told.lock().expect("not poisoned");
    for by in ["total", "day", "model", "agent", "purpose"] {
        let rows = usage(&gateway, by).await;
        assert_eq!((rows.len(), of(&rows[0])), (1, sums), "{by}");
        assert_eq!(nano(&rows[0]["costs"]["CNY"]), cost(sums), "{by}");
    }
    for (by, keys) in [("sender", ["webhook:bridge u1", "webhook:bridge u2"]), ("session", ["room-u1", "room-u2"])] {
        let rows = usage(&gateway, by).await;
        let mut sum = [0; 3];
        rows.iter().for_each(|row| of(row).iter().zip(&mut sum).for_each(|(more, sum)| *sum += more));
        assert_eq!(sum, sums, "{by}: {rows:?}");
        for key in keys {
            assert!(rows.iter().any(|row| row["key"].as_str().is_some_and(|k| k.ends_with(key))), "{key}: {rows:?}");
        }
    }
    // The turn that went on says what all of it took, the tries before the kill included.
    let trace = gateway.cli(&["sessions", "list", "--json"]).await.json();
    assert!(trace.to_string().contains("room"), "{trace}");
    let said = bridge.wait(&message("m4", "room", "/usage")).await;
    assert!(said.text().contains("4 model calls, 5,006 tokens in (1,022 cached), 50 out"), "{said:?}");
    // The rows are on the disk, for a gateway that is not there any more.
    assert_eq!(gateway.terminate().await.0, Some(0));
    let rows = usage(&gateway, "total").await;
    assert_eq!(of(&rows[0]), sums);
    let table = gateway.cli(&["usage"]).await;
    assert!(table.good().contains("CNY") && table.good().contains("OUT"), "{table:?}");
}

#[tokio::test]
async fn strangers_spend_their_own_day_and_nobody_elses() {
    let told = Told::default();
    let model = ModelServer::start({
        let told = Arc::clone(&told);
        move |_: &Ask| says(&told, [40_000, 5, 0], "here you are")
    })
    .await;
    let budget = "[limits.budget]\nday_tokens = 1_000_000\n[limits.budget.stranger]\nsender_day_tokens = 80_500\n\
                  [limits.budget.owner]\nsender_day_cost = \"0.15 CNY\"";
    let (mut gateway, bridge) = start(&model, budget).await;
    let ask = async |id: &str, sender: &str, text: &str| bridge.wait(&from(id, sender, text)).await.text().to_owned();
    assert_eq!(ask("m1", "loud", "one").await, "here you are");
    assert_eq!(ask("m2", "loud", "two").await, "here you are");
    let line = ask("m3", "loud", "three").await;
    assert!(line.contains("80,500") && line.contains("00:00") && !line.contains("limits.budget"), "{line}");
    assert_eq!(model.asks().len(), 2, "the model was not asked");
    // A new name, the same id; and a restart forgets nothing.
    gateway.kill9().await;
    gateway.restart().await;
    let mut renamed = from("m4", "loud", "四");
    renamed["sender"] = json!({ "id": "loud", "name": "boss" });
    let line = bridge.wait(&renamed).await;
    assert!(line.text().contains("您今天的预算（80,500 个 token）已用完"), "{line:?}");
    // Somebody else is not concerned.
    assert_eq!(ask("m5", "calm", "one").await, "here you are");
    assert_eq!(ask("m6", "boss", "one").await, "here you are");
    assert_eq!(ask("m7", "boss", "two").await, "here you are", "0.08 of 0.15, and the request is small");
    let line = ask("m8", "boss", "three").await;
    assert!(line.contains("0.15 CNY") && line.contains("limits.budget.owner.sender_day_cost"), "{line}");
    let sums = *told.lock().expect("not poisoned");
    assert_eq!(of(&usage(&gateway, "total").await[0]), sums);
    // What reads like nothing and costs like it is refused before anything starts.
    gateway.kill9().await;
    gateway.configure("[limits.budget]\nday_tokens = 0\n");
    let check = gateway.cli(&["config", "check"]).await;
    assert!(check.code == Some(78) && check.err.contains("day_tokens"), "{check:?}");
    gateway.configure("[limits.budget]\nday_cost = \"5 yuan\"\n");
    let check = gateway.cli(&["config", "check"]).await;
    assert!(check.code == Some(78) && check.err.contains("CNY"), "{check:?}");
}

#[tokio::test]
async fn a_session_chooses_its_model_and_keeps_it_over_a_restart() {
    let (main, spare) = (ModelServer::start(|_| text("the main one")).await, ModelServer::echo().await);
    spare.follow(|_| Say::Calls(vec![call("c", "ls", "{}")]));
    spare.follow(|ask| if ask.said().contains("fail") { Say::Status(401, None) } else { text("the spare one") });
    let second = spare.section().replace("models.main", "models.Spare");
    let (mut gateway, bridge) = start(&main, &format!("{second}\n[agent]\nfallbacks = [\"Spare\"]")).await;
    let ask = async |id: &str, sender: &str, text: &str| bridge.wait(&from(id, sender, text)).await.text().to_owned();
    assert_eq!(ask("m1", "u1", "who?").await, "the main one");
    let list = ask("m2", "u1", "/model").await;
    assert!(list.contains("main") && list.contains("Spare"), "{list}");
    let near = ask("m3", "u1", "/模型 spare").await;
    assert!(near.contains("没有") && near.contains("您是否想用 Spare"), "{near}");
    let not_yours = ask("m4", "stranger", "/model Spare").await;
    assert!(not_yours.contains("owners") && ask("m5", "stranger", "who?").await == "the main one", "{not_yours}");
    assert!(ask("m6", "u1", "/model Spare").await.contains("Spare"));
    assert_eq!(ask("m7", "u1", "who?").await, "the spare one");
    gateway.kill9().await;
    gateway.restart().await;
    assert_eq!(ask("m8", "u1", "who?").await, "the spare one");
    // Explicit is strict: the other one is not asked in its place.
    let before = main.asks().len();
    let failed = ask("m9", "u1", "please fail").await;
    assert!(!failed.contains("the main one") && main.asks().len() == before, "{failed}");
    // Below each answer what it took; the model never sees that.
    assert!(ask("m10", "u1", "/usage full").await.contains("/usage off"));
    let answer = ask("m11", "u1", "who?").await;
    assert!(answer.starts_with("the spare one\n\n") && answer.contains("10 tokens in (0 cached), 5 out"), "{answer}");
    assert!(ask("m12", "u1", "/model default").await.contains("main"));
    assert!(ask("m13", "u1", "who?").await.contains("the main one"));
    let wire = serde_json::to_string(&main.asks().last().expect("asked").body).expect("JSON");
    assert!(!wire.contains("cached)"), "{wire}");
    assert!(ask("m14", "u1", "/用量 关").await.contains("不再显示"));
    assert_eq!(ask("m15", "u1", "who?").await, "the main one");
    // A model without a price counts tokens and no money.
    let rows = usage(&gateway, "model").await;
    let of = |name: &str| rows.iter().find(|row| row["key"] == name).unwrap_or_else(|| panic!("{name}: {rows:?}"));
    assert_eq!((&of("Spare")["costs"], &of("Spare")["calls"]), (&json!({}), &json!(3)));
    assert!(of("main")["costs"]["CNY"].is_string());
}

#[tokio::test]
async fn a_task_says_at_its_end_what_it_took() {
    let told = Told::default();
    let model = ModelServer::start({
        let told = Arc::clone(&told);
        move |_: &Ask| says(&told, [1_000, 10, 0], "done")
    })
    .await;
    let (gateway, _bridge) = start(&model, "").await;
    let task = gateway.chat(&json!({ "message": "hello" })).await;
    let id = task["taskId"].as_str().expect("a task").to_owned();
    let events = gateway.events(&id).await;
    let end = events.last().expect("an end");
    assert_eq!(end["usage"], json!({ "input": 1_000, "output": 10, "cached": 0, "estimated": false }), "{end}");
    assert_eq!(end["cost"], json!({ "CNY": "0.00208" }), "{end}");
    let trace = gateway.cli(&["trace", &id]).await;
    assert!(trace.good().contains("1000 + 10 tokens, 0 cached · 0.0021 CNY"), "{trace:?}");
}

#[tokio::test]
async fn a_call_that_is_stopped_half_way_is_counted() {
    let model = ModelServer::start(|_| Say::Hang).await;
    let (gateway, bridge) = start(&model, "").await;
    bridge.accepted(&message("m1", "room", &"think about this for long ".repeat(100))).await;
    model.asked_about("think about this").await;
    bridge.accepted(&message("m2", "room", "/stop")).await;
    bridge.ended("m1").await;
    let total = &usage(&gateway, "total").await[0];
    let (input, estimated) = (total["usage"]["input"].as_u64(), &total["usage"]["estimated"]);
    assert!(input.is_some_and(|input| input > 600) && *estimated == json!(true), "{total}");
}

#[tokio::test]
async fn what_a_provider_claims_to_have_counted_stops_neither_turns_nor_questions() {
    let model = ModelServer::start(|_: &Ask| {
        let body = json!({
            "id": "c", "object": "chat.completion", "created": 1, "model": "kit-1",
            "choices": [{ "index": 0, "message": { "role": "assistant", "content": "here" }, "finish_reason": "stop" }],
            "usage": { "prompt_tokens": i64::MAX, "completion_tokens": i64::MAX, "total_tokens": 1 },
        });
        Say::Raw(200, None, body.to_string())
    })
    .await;
    let (mut gateway, bridge) = start(&model, "[limits.budget]\nday_tokens = 1_000_000").await;
    for id in ["m1", "m2"] {
        assert_eq!(bridge.wait(&from(id, "alice", "hello")).await.text(), "here", "{id}");
        // What the day took is read anew.
        gateway.terminate().await;
        gateway.restart().await;
    }
    let bridge = Bridge::to(&gateway);
    let said = bridge.wait(&from("u1", "alice", "/usage")).await;
    assert!(said.status == 200 && said.text().contains("2 model calls") && said.text().contains('≈'), "{said:?}");
    let all = usage(&gateway, "total").await;
    let [input, output, _] = of(&all[0]);
    assert!((1..200_000).contains(&input) && (1..1_000).contains(&output), "{all:?}");
    assert_eq!(bridge.wait(&from("m3", "alice", "hello")).await.text(), "here");
}
