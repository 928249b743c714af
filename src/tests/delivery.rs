//! Answers on their way out: a receiver that fails, callers that go away, a gateway that dies while somebody waits.

use std::time::Duration;

use serde_json::json;

use crate::support::{
    bridge::{Bridge, Callback, Fault, Receiver, message},
    gateway::Gateway,
    model_server::{Gate, ModelServer, Say, echo},
    wait::SOON,
};

async fn set_up() -> (Gateway, Bridge, ModelServer, Receiver) {
    let (model, receiver) = (ModelServer::echo().await, Receiver::start().await);
    let section = Bridge::section(&receiver.lines());
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model, receiver)
}

fn hold(model: &ModelServer) -> Gate {
    let gate = Gate::default();
    let held = gate.clone();
    model.follow(move |ask| Say::After(held.clone(), Box::new(echo(ask))));
    gate
}

#[tokio::test]
async fn a_callback_that_failed_comes_again_under_its_id_and_only_its_conversation_waits() {
    let (_gateway, bridge, _model, receiver) = set_up().await;
    let mut rooms = Vec::new();
    // The first try of each of these fails in its own way; the second comes after 5 s.
    for (n, fault) in
        [Fault::Status(500), Fault::Reset, Fault::TakenThenReset, Fault::Status(503)].into_iter().enumerate()
    {
        receiver.then([fault]);
        let (id, room) = (format!("first-{n}"), format!("room-{n}"));
        bridge.accepted(&message(&id, &room, "first")).await;
        receiver.until("its first try", SOON, |all| all.iter().any(|callback| callback.in_reply_to() == id)).await;
        bridge.accepted(&message(&format!("second-{n}"), &room, "second")).await;
        rooms.push((id, room));
    }
    let neighbour = bridge.post(&message("neighbour", "elsewhere", "hello")).await;
    assert_eq!(neighbour.status, 202);
    let callback = receiver.answer_to("neighbour").await;
    for n in 0..rooms.len() {
        let second = format!("second-{n}");
        receiver.until(&second, SOON, |all| all.iter().any(|callback| callback.in_reply_to() == second)).await;
    }
    let callbacks = receiver.callbacks();
    for (n, (first, _)) in rooms.iter().enumerate() {
        let tries: Vec<&Callback> = callbacks.iter().filter(|callback| callback.in_reply_to() == first).collect();
        assert_eq!(tries.len(), 2, "{first}: {tries:?}");
        assert_eq!(tries[0].id, tries[1].id, "under the same id");
        assert_eq!(tries[0].body, tries[1].body, "and the same in every byte that counts");
        let second: Vec<&Callback> =
            callbacks.iter().filter(|callback| callback.in_reply_to() == format!("second-{n}")).collect();
        assert_eq!(second.len(), 1, "{second:?}");
        assert!(second[0].order > tries[1].order, "the conversation keeps its order");
        assert!(callback.order < tries[1].order, "nobody else waits");
    }
    receiver.assert_all_signed();
}

#[tokio::test]
async fn a_refused_callback_is_given_up_and_the_next_goes_out() {
    let (_gateway, bridge, _model, receiver) = set_up().await;
    receiver.then([Fault::Status(422)]);
    bridge.accepted(&message("m1", "room", "one")).await;
    receiver.until("the refused answer", SOON, |all| all.len() == 1).await;
    bridge.accepted(&message("m2", "room", "two")).await;
    let second = receiver.until("the second answer", SOON, |all| all.iter().any(|c| c.taken)).await;
    assert!(second.iter().filter(|callback| callback.in_reply_to() == "m1").count() <= 1, "{second:?}");
    let polled = bridge.ended("m1").await;
    assert_eq!(polled.body["status"], "done", "the answer is still there for whoever asks: {polled:?}");
}

#[tokio::test]
async fn a_receiver_that_is_gone_is_left_alone_and_answers_can_be_asked_for() {
    let (_gateway, bridge, _model, receiver) = set_up().await;
    receiver.then([Fault::Status(410)]);
    bridge.accepted(&message("m1", "room", "one")).await;
    receiver.until("the 410", SOON, |all| all.len() == 1).await;
    let waited = bridge.wait(&message("m2", "room-2", "two")).await;
    assert_eq!(waited.status, 200, "{waited:?}");
    bridge.accepted(&message("m3", "room-3", "three")).await;
    assert!(bridge.ended("m3").await.text().contains("three"));
    assert_eq!(receiver.callbacks().len(), 1, "no more is posted");
}

#[tokio::test]
async fn an_answer_somebody_waited_for_when_the_gateway_died_comes_by_callback_under_the_same_id() {
    let (mut gateway, bridge, model, receiver) = set_up().await;
    let gate = hold(&model);
    let body = message("held", "room", "wait for me");
    let request = bridge.request("held", &body.to_string()).header("prefer", "wait=60");
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(request.send());
    model.asked_about("wait for me").await;
    gateway.kill9().await;
    let broken = waiting.join_next().await.expect("a caller").expect("it ends");
    assert!(broken.is_err(), "the caller's connection broke: {broken:?}");
    gateway.restart().await;
    gate.open();
    let callback = receiver.answer_to("held").await;
    let again = bridge.wait(&body).await;
    assert_eq!((again.status, &again.body["duplicate"]), (200, &json!(true)), "{again:?}");
    assert_eq!(again.body["messages"][0]["id"], callback.body["id"]);
    assert_eq!(again.body["messages"][0]["text"], callback.body["text"]);
    assert_eq!(receiver.answers_to("held").len(), 1);
}

#[tokio::test]
async fn a_caller_who_goes_away_gets_the_answer_by_callback() {
    let (_gateway, bridge, model, receiver) = set_up().await;
    let gate = hold(&model);
    let body = message("gone", "room", "never mind");
    let request = bridge.request("gone", &body.to_string()).header("prefer", "wait=60");
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(request.send());
    model.asked_about("never mind").await;
    waiting.shutdown().await;
    gate.open();
    let callback = receiver.answer_to("gone").await;
    assert_eq!(bridge.ended("gone").await.body["messages"][0]["id"], callback.body["id"]);
}

#[tokio::test]
async fn a_caller_who_waits_at_a_stop_is_told_202_and_gets_the_answer_after_the_start() {
    let (mut gateway, bridge, model, receiver) = set_up().await;
    let gate = hold(&model);
    let body = message("stopped", "room", "just before the stop");
    let request = bridge.request("stopped", &body.to_string()).header("prefer", "wait=60");
    let mut waiting = tokio::task::JoinSet::new();
    waiting.spawn(request.send());
    model.asked_about("just before the stop").await;
    gateway.signal("TERM").await;
    let answer = waiting.join_next().await.expect("a caller").expect("it ends").expect("it is answered");
    assert_eq!(answer.status().as_u16(), 202);
    let (code, time) = gateway.ended().await;
    assert_eq!(code, Some(0), "{}", gateway.log());
    assert!(time < Duration::from_secs(10), "{time:?}");
    gateway.restart().await;
    gate.open();
    receiver.answer_to("stopped").await;
    assert_eq!(receiver.answers_to("stopped").len(), 1);
}

#[tokio::test]
async fn a_callback_cut_off_by_a_kill_comes_again_under_its_id() {
    let (mut gateway, bridge, _model, receiver) = set_up().await;
    receiver.then([Fault::Slow(Duration::from_secs(2))]);
    let body = message("cut", "room", "slow receiver");
    let before = receiver.callbacks().len();
    bridge.accepted(&body).await;
    // Its bytes are on their way: the answer is known, the receiver has not taken it yet.
    bridge.ended("cut").await;
    gateway.kill9().await;
    gateway.restart().await;
    let callbacks = receiver.until("the answer", SOON, |all| all.len() > before).await;
    let ids: std::collections::BTreeSet<&str> = callbacks.iter().map(|callback| callback.id.as_str()).collect();
    assert_eq!(ids.len(), 1, "{callbacks:?}");
}
