//! An answer that is shown while it is written: it grows in one place, ends there once, is taken away when nothing comes,
//! and a kill at any moment of it leads to the same end. Through the webhook with `previews`.

use std::time::Duration;

use crate::support::{
    bridge::{Bridge, Callback, Receiver, message},
    gateway::Gateway,
    model_server::{Gate, ModelServer, Say, text},
    wait::SOON,
};

const FIRST: &str = "The first half is here, ";
const REST: &str = "and so is the second.";

struct Chat {
    gateway: Gateway,
    bridge: Bridge,
    model: ModelServer,
    receiver: Receiver,
}

async fn chat(script: impl Fn(&crate::support::model_server::Ask) -> Say + Send + Sync + 'static) -> Chat {
    let model = ModelServer::start(script).await;
    let receiver = Receiver::start().await;
    let section = Bridge::section(&format!("{}\npreviews = true", receiver.lines()));
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    Chat { gateway, bridge, model, receiver }
}

/// Everything that shows text, in order: what it is, which message it changes, what it says.
fn shown(callbacks: &[Callback]) -> Vec<(&str, &str, &str)> {
    let taken = callbacks.iter().filter(|callback| callback.taken && callback.body["type"] != "typing");
    taken
        .map(|callback| {
            (
                callback.body["type"].as_str().unwrap_or_default(),
                callback.body["target_id"].as_str().unwrap_or_default(),
                callback.text(),
            )
        })
        .collect()
}

/// The previews that were begun: their ids.
fn begun(callbacks: &[Callback]) -> Vec<String> {
    let previews = callbacks.iter().filter(|callback| callback.taken && callback.body["final"] == false);
    let begun = previews.filter(|callback| callback.body["type"] == "message");
    begun.map(|callback| callback.id.clone()).collect()
}

#[tokio::test]
async fn an_answer_grows_in_one_place_and_ends_there_once() {
    let gate = Gate::default();
    let held = gate.clone();
    let chat = chat(move |ask| match ask.said().contains("long") {
        true => Say::InTwo(FIRST.to_owned(), held.clone(), REST.to_owned()),
        false => text("ok"),
    })
    .await;
    chat.bridge.accepted(&message("m1", "room", "a long one")).await;
    let callbacks = chat.receiver.until("a preview", SOON, |all| !begun(all).is_empty()).await;
    let preview = begun(&callbacks).remove(0);
    gate.open();
    let answer = chat.receiver.answer_to("m1").await;
    assert_eq!(
        (answer.body["type"].as_str(), answer.body["target_id"].as_str()),
        (Some("message.update"), Some(&*preview))
    );
    assert_eq!(answer.text(), format!("{FIRST}{REST}"));
    // Whatever would come late comes before this.
    chat.bridge.accepted(&message("m2", "room", "short")).await;
    chat.receiver.answer_to("m2").await;
    let callbacks = chat.receiver.callbacks();
    let of_first: Vec<&Callback> = callbacks
        .iter()
        .filter(|callback| callback.id == preview || callback.body["target_id"] == preview.as_str())
        .collect();
    assert!(of_first.last().is_some_and(|last| last.body["final"] == true), "{of_first:?}");
    assert_eq!(chat.receiver.answers_to("m1").len(), 1);
    for (_, _, said) in shown(&callbacks) {
        assert!(said == "ok" || format!("{FIRST}{REST}").starts_with(said), "{said:?}");
    }
    chat.receiver.assert_all_signed();
}

#[tokio::test]
async fn no_piece_of_the_token_is_ever_shown() {
    let gates = [Gate::default(), Gate::default(), Gate::default()];
    let held = gates.clone();
    let halves = [("NO_", "REPLY"), ("**NO", "_REPLY**"), ("That is all for today, really. NO_", "REPLY")];
    let chat = chat(move |ask| {
        let n = ask.said().split("case ").nth(1).and_then(|rest| rest.split(';').next()?.parse::<usize>().ok());
        let n = n.expect("every message names its case");
        Say::InTwo(halves[n].0.to_owned(), held[n].clone(), halves[n].1.to_owned())
    })
    .await;
    for n in 0..3 {
        chat.bridge.accepted(&message(&format!("m{n}"), &format!("room-{n}"), &format!("case {n};"))).await;
    }
    // The one with words shows them while the others are half said.
    chat.receiver.until("a preview", SOON, |all| !begun(all).is_empty()).await;
    for (n, gate) in gates.iter().enumerate() {
        chat.model.asked_about(&format!("case {n};")).await;
        gate.open();
    }
    for n in 0..2 {
        assert_eq!(chat.bridge.ended(&format!("m{n}")).await.body["silent"], "no_reply");
    }
    assert_eq!(chat.receiver.answer_to("m2").await.text(), "That is all for today, really.");
    for (kind, _, said) in shown(&chat.receiver.callbacks()) {
        assert!(!said.contains("NO") && !said.contains('_'), "{kind}: {said:?}");
    }
}

#[tokio::test]
async fn what_was_shown_of_a_turn_that_is_stopped_is_taken_away() {
    let chat = chat(|_| Say::InTwo(FIRST.to_owned(), Gate::default(), REST.to_owned())).await;
    chat.bridge.accepted(&message("m1", "room", "go")).await;
    let callbacks = chat.receiver.until("a preview", SOON, |all| !begun(all).is_empty()).await;
    let preview = begun(&callbacks).remove(0);
    chat.bridge.accepted(&message("m2", "room", "/stop")).await;
    let gone = |callback: &Callback| {
        callback.body["type"] == "message.delete" && callback.body["target_id"] == preview.as_str()
    };
    chat.receiver.until("the preview is taken away", SOON, |all| all.iter().any(gone)).await;
    assert!(chat.receiver.answers_to("m1").is_empty());
}

#[tokio::test]
async fn a_kill_between_the_first_words_and_the_last_leads_to_one_answer() {
    for (point, most) in [("preview.begun", 2), ("preview.stored", 1)] {
        let hold = Gate::default();
        let held = hold.clone();
        let mut chat = chat(move |_| Say::After(held.clone(), Box::new(text("never")))).await;
        chat.bridge.accepted(&message("m1", "room", "a long one")).await;
        chat.model.asked_about("a long one").await;
        chat.gateway.kill9().await;
        // The turn goes on, shows its first words and dies there.
        chat.model.follow(|_| Say::InTwo(FIRST.to_owned(), Gate::default(), REST.to_owned()));
        let ended = chat.gateway.restart_doomed(&format!("{point}=return"), Duration::from_secs(60)).await;
        assert!(ended.is_some(), "`{point}` was never reached:\n{}", chat.gateway.log());
        let first = begun(&chat.receiver.callbacks());
        assert_eq!(first.len(), 1, "{point}");
        // It goes on again, and is shown to its end.
        let gate = Gate::default();
        let held = gate.clone();
        chat.model.follow(move |_| Say::InTwo(FIRST.to_owned(), held.clone(), REST.to_owned()));
        chat.gateway.restart().await;
        let grows = |all: &[Callback]| match most {
            1 => all.iter().any(|callback| callback.body["target_id"] == first[0].as_str()),
            _ => begun(all).len() == most,
        };
        chat.receiver.until("the answer is shown again", SOON, grows).await;
        gate.open();
        let answer = chat.receiver.answer_to("m1").await;
        let previews = begun(&chat.receiver.callbacks());
        assert_eq!(previews.len(), most, "{point}: {previews:?}");
        assert_eq!(answer.body["target_id"].as_str(), previews.last().map(String::as_str), "{point}");
        assert_eq!(answer.text(), format!("{FIRST}{REST}"));
        assert_eq!(chat.gateway.terminate().await.0, Some(0));
        assert_eq!(chat.receiver.answers_to("m1").len(), 1, "{point}");
        chat.receiver.assert_all_signed();
    }
}
