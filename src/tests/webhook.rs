//! A signed bridge: every wrong request has its answer, and the next good message is answered all the same.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{
    bridge::{Answer, Bridge, Receiver, message},
    gateway::{Gateway, client},
    model_server::{Gate, ModelServer, Say, echo, text},
    wait::SOON,
};

async fn set_up(more: &str) -> (Gateway, Bridge, ModelServer, Receiver) {
    let (model, receiver) = (ModelServer::echo().await, Receiver::start().await);
    let bridge = Bridge::section(&format!("{}\n{more}", receiver.lines()));
    let gateway = Gateway::start(&format!("{}\n{bridge}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model, receiver)
}

fn refused(answer: &Answer, status: u16, code: &str, what: &str) {
    assert_eq!((answer.status, answer.code()), (status, code), "{what}: {answer:?}");
    assert_eq!(answer.body["ok"], false, "{what}: {answer:?}");
}

#[tokio::test]
async fn wrong_requests_have_their_answers_and_the_next_good_message_is_answered() {
    let (gateway, bridge, model, receiver) = set_up("").await;
    let good = |id: &str| message(id, "room", "hello").to_string();
    let url = format!("{}/channels/webhook/bridge", gateway.url());

    let forged = [
        ("no signature", bridge.unsigned(good("f1"))),
        ("a bearer token beside a secret", bridge.unsigned(good("f2")).bearer_auth("whatever-this-token-is")),
        ("signed for another body", bridge.request("f3", &good("f3")).body(good("f3").replace("hello", "HELLO"))),
        ("the same JSON written anew", bridge.request("f4", &good("f4")).body(good("f4").replace(':', ": "))),
        ("two ids", bridge.request("f5", &good("f5")).header("webhook-id", "other")),
        ("15 minutes old", bridge.request_at("f6", &good("f6"), bridge.now() - 900)),
        ("301 seconds old", bridge.request_at("f7", &good("f7"), bridge.now() - 302)),
        ("from the future", bridge.request_at("f8", &good("f8"), bridge.now() + 310)),
        ("two signatures", bridge.request("f9", &good("f9")).header("webhook-signature", "v1,AAAA")),
        ("another scheme", bridge.unsigned(good("f10")).header("webhook-signature", "none,AAAA")),
    ];
    let mut texts = Vec::new();
    for (what, request) in forged {
        let answer = bridge.send(request).await;
        refused(&answer, 401, "unauthorized", what);
        texts.push(answer.raw);
    }
    texts.dedup();
    assert_eq!(texts.len(), 1, "one text for every reason: {texts:?}");

    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let deep_in = good("b5").replace("\"hello\"", &deep);
    for (what, body) in [
        ("broken", "{\"v\":1,"),
        ("an array", "[]"),
        ("null", "null"),
        ("a number", "7"),
        ("nothing", ""),
        ("deep", &deep),
        ("deep in a field", &deep_in),
        ("not UTF-8's words", "{\"id\":\"\\ud800\"}"),
    ] {
        let answer = bridge.send(bridge.request("b1", body)).await;
        assert!(matches!(answer.status, 400 | 422), "{what}: {answer:?}");
        if what != "not UTF-8's words" {
            refused(&answer, 400, "bad_json", what);
        }
    }

    let wrong_types = [
        json!({ "v": 1, "id": "t1", "conversation": "room", "sender": { "id": "u1" }, "text": "x" }),
        json!({ "v": 1, "id": "t1", "conversation": { "id": "r" }, "sender": { "id": "u1" }, "text": 7 }),
        json!({ "v": 1, "id": "t1", "conversation": { "id": "r" }, "sender": { "id": "u1" } }),
        json!({ "v": 1, "id": "t1", "conversation": { "id": "r" }, "sender": { "id": ["u1"] }, "text": "x" }),
        json!({ "v": 2, "id": "t1", "conversation": { "id": "r" }, "sender": { "id": "u1" }, "text": "x" }),
        json!({ "v": 1, "id": "t".repeat(129), "conversation": { "id": "r" }, "sender": { "id": "u1" }, "text": "x" }),
    ];
    for body in wrong_types {
        let answer = bridge.send(bridge.request("t1", &body.to_string())).await;
        refused(&answer, 422, "invalid", &body.to_string());
    }
    let other_id = bridge.send(bridge.request("h1", &good("h2"))).await;
    refused(&other_id, 422, "invalid", "the header's id is not the body's");
    let other_key = bridge.send(bridge.request("h3", &good("h3")).header("idempotency-key", "h4")).await;
    refused(&other_key, 422, "invalid", "the key is not the id");

    let large = message("l1", "room", &"x".repeat(2 << 20)).to_string();
    refused(&bridge.send(bridge.request("l1", &large)).await, 413, "too_large", "2 MB");
    let zipped = bridge.request("z1", &good("z1")).header("content-encoding", "gzip");
    assert!(matches!(bridge.send(zipped).await.status, 413 | 415));
    let mut xml = bridge.request("x1", &good("x1")).build().expect("a request");
    xml.headers_mut().insert("content-type", "application/xml".parse().expect("a value"));
    assert_eq!(client().execute(xml).await.expect("it answers").status().as_u16(), 415);

    let client = client();
    for (request, expected) in [
        (client.get(&url), 405),
        (client.put(&url).body("{}"), 405),
        (client.delete(&url), 405),
        (client.post(format!("{}/channels/webhook/unknown", gateway.url())).body("{}"), 404),
        (client.post(format!("{}/channels/nothing/bridge", gateway.url())).body("{}"), 404),
        (client.post(format!("{url}/%2e%2e/admin")).body("{}"), 404),
    ] {
        let request = request.build().expect("a request");
        let shown = format!("{} {}", request.method(), request.url());
        let answer = client.execute(request).await.expect("it answers");
        assert_eq!(answer.status().as_u16(), expected, "{shown}");
    }

    assert_eq!(model.asks().len(), 0, "nothing wrong ran");
    let answer = bridge.wait(&message("good-1", "room", "hello there")).await;
    assert_eq!((answer.status, &answer.body["status"]), (200, &json!("done")), "{answer:?}");
    assert!(answer.text().contains("hello there"), "{answer:?}");
    for id in ["f1", "f6", "b1", "t1", "h1", "h2", "h3", "l1"] {
        assert_eq!(bridge.poll(id).await.status, 404, "{id} was stored");
    }
    assert_eq!(receiver.callbacks().len(), 0, "an answer that was waited for is not posted too");
    let log = gateway.log();
    assert!(!log.contains("panicked") && !log.contains("S2l0LXNl"), "{log}");
}

#[tokio::test]
async fn a_message_is_answered_in_place_by_callback_by_stream_and_by_poll_and_only_once() {
    let (_gateway, bridge, model, receiver) = set_up("").await;

    let first = message("w1", "room", "in place");
    let answer = bridge.wait(&first).await;
    assert_eq!((answer.status, &answer.body["status"], &answer.body["ok"]), (200, &json!("done"), &json!(true)));
    let out = answer.body["messages"][0].clone();
    assert_eq!((&out["in_reply_to"], &out["seq"], &out["final"]), (&json!("w1"), &json!(1), &json!(true)));
    assert_eq!(model.asks().len(), 1);

    let again = bridge.post(&first).await;
    assert_eq!((again.status, &again.body["duplicate"]), (202, &json!(true)), "{again:?}");
    let again = bridge.wait(&first).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)), "{again:?}");
    assert_eq!(again.body["messages"][0]["id"], out["id"], "the same answer under the same id");
    let other = bridge.post(&message("w1", "room", "another text")).await;
    refused(&other, 409, "id_conflict", "another body under a known id");
    assert_eq!(model.asks().len(), 1, "a duplicate runs nothing");

    let taken = bridge.post(&message("c1", "room", "by callback")).await;
    assert_eq!((taken.status, &taken.body["status"]), (202, &json!("accepted")), "{taken:?}");
    let callback = receiver.answer_to("c1").await;
    assert!(callback.text().contains("by callback"), "{callback:?}");
    assert_eq!((&callback.body["type"], &callback.body["seq"]), (&json!("message"), &json!(1)));
    assert_eq!(callback.body["conversation"]["id"], "room");
    let polled = bridge.ended("c1").await;
    assert_eq!(polled.body["messages"][0]["id"], callback.body["id"], "{polled:?}");

    let events = bridge.stream(&message("s1", "room", "by stream")).await;
    let names: Vec<&str> = events.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names.last(), Some(&"done"), "{events:?}");
    let said: Vec<&Value> = events.iter().filter(|(name, _)| name == "message").map(|(_, data)| data).collect();
    assert!(said.len() == 1 && said[0]["text"].as_str().is_some_and(|text| text.contains("by stream")), "{events:?}");

    assert_eq!(bridge.poll("never-sent").await.status, 404);
    assert_eq!(receiver.callbacks().len(), 1, "only what nobody waited for is posted: {:?}", receiver.callbacks());
    receiver.assert_all_signed();
    model.assert_strict_order();
}

#[tokio::test]
async fn a_wait_that_runs_out_is_202_and_the_answer_comes_by_callback() {
    let (_gateway, bridge, model, receiver) = set_up("").await;
    let gate = Gate::default();
    let held = gate.clone();
    model.follow(move |ask| Say::After(held.clone(), Box::new(echo(ask))));
    let body = message("slow", "room", "take your time");
    let answer = bridge.send(bridge.request("slow", &body.to_string()).header("prefer", "wait=1")).await;
    assert_eq!((answer.status, &answer.body["status"]), (202, &json!("accepted")), "{answer:?}");
    gate.open();
    let callback = receiver.answer_to("slow").await;
    let again = bridge.wait(&body).await;
    assert_eq!(again.body["messages"][0]["id"], callback.body["id"], "{again:?}");
    assert_eq!(receiver.answers_to("slow").len(), 1);
}

#[tokio::test]
async fn a_full_conversation_gets_429_nothing_is_stored_and_others_go_on() {
    let (_gateway, bridge, model, receiver) = set_up("queue = \"followup\"").await;
    let gate = Gate::default();
    let held = gate.clone();
    model.follow(move |ask| {
        let say = echo(ask);
        if ask.said().contains("crowd") { Say::After(held.clone(), Box::new(say)) } else { say }
    });
    let crowd = |n: u32| message(&format!("crowd-{n}"), "crowd", &format!("crowd {n}"));
    let mut taken = Vec::new();
    let refusal = loop {
        let n = taken.len() as u32 + 1;
        assert!(n <= 40, "no cap");
        let answer = bridge.post(&crowd(n)).await;
        if answer.status != 202 {
            break answer;
        }
        taken.push(format!("crowd-{n}"));
    };
    refused(&refusal, 429, "queue_full", "over the cap");
    assert!(refusal.retry_after.as_deref().and_then(|text| text.parse::<u64>().ok()).is_some_and(|s| s > 0));
    let next = taken.len() as u32 + 1;
    assert_eq!(bridge.poll(&format!("crowd-{next}")).await.status, 404, "nothing of it is stored");
    assert!((20..=22).contains(&taken.len()), "{} were taken", taken.len());

    let neighbour = bridge.wait(&message("calm", "calm", "a neighbour")).await;
    assert_eq!(neighbour.status, 200, "{neighbour:?}");
    gate.open();
    for id in &taken {
        receiver.answer_to(id).await;
    }
    assert_eq!(bridge.deliver(&crowd(next)).await.status, 202, "the same message again, when there is room");
    receiver.answer_to(&format!("crowd-{next}")).await;
    let order: Vec<String> = receiver.callbacks().iter().map(|callback| callback.in_reply_to().to_owned()).collect();
    taken.push(format!("crowd-{next}"));
    assert_eq!(order, taken, "in order, each once");
}

#[tokio::test]
async fn senders_who_are_not_listed_get_403_where_a_list_decides() {
    let model = ModelServer::echo().await;
    let bridge = Bridge::section("dm_policy = \"allowlist\"\nallow_from = [\"u1\"]");
    let gateway = Gateway::start(&format!("{}\n{bridge}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    let mut stranger = message("m1", "room", "let me in");
    stranger["sender"] = json!({ "id": "u2", "name": "u1" });
    let answer = bridge.post(&stranger).await;
    assert_eq!((answer.status, answer.code()), (403, "sender_not_allowed"), "{answer:?}");
    assert_eq!(bridge.wait(&message("m2", "room", "it is me")).await.status, 200);
    assert_eq!(model.asks().len(), 1);
}

#[tokio::test]
async fn curl_with_a_bearer_token_gets_one_json_out() {
    let model = ModelServer::start(|_| text("hello from the model")).await;
    let section = "[channels.webhook.bridge]\ntoken = \"a-token-for-curl-000000001\"\nprofile = \"reply\"\n";
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    let body = message("m1", "room", "hi").to_string();
    let no_token = bridge.send(bridge.unsigned(body.clone())).await;
    assert_eq!(no_token.status, 401);
    let request = bridge.unsigned(body).bearer_auth("a-token-for-curl-000000001").timeout(SOON);
    let answer = bridge.send(request).await;
    assert_eq!((answer.status, &answer.body["reply"]), (200, &json!("hello from the model")), "{answer:?}");
}

#[tokio::test]
async fn ten_callers_of_one_message_share_one_turn() {
    let (_gateway, bridge, model, _receiver) = set_up("").await;
    model.follow(|ask| Say::Slowly(Duration::from_millis(200), Box::new(echo(ask))));
    let body = message("one", "room", "for all");
    let calls = (0..10).map(|_| bridge.wait(&body));
    let answers = futures_util::future::join_all(calls).await;
    let ids: std::collections::BTreeSet<String> = answers
        .iter()
        .map(|answer| {
            assert_eq!(answer.status, 200, "{answer:?}");
            answer.body["messages"][0]["id"].as_str().expect("an id").to_owned()
        })
        .collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(model.asks().len(), 1);
    let fresh = answers.iter().filter(|answer| answer.body["duplicate"] != true).count();
    assert_eq!(fresh, 1, "one of them was the first");
}
