//! A conversation that outgrows its window: its older part becomes a summary that loses no name and no number, at once or
//! when it is asked for, through a crash too; `/context` tells sizes; `/new` greets.

use std::fs;

use serde_json::json;

use crate::support::{
    bridge::{Bridge, message},
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
    wait::{SOON, until},
};

const SUMMARY_ASKED: &str = "The messages to be summarised";
const SAVE_ASKED: &str = "are about to be summarised and removed";

/// A model that answers, saves a note when it is told to, and writes summaries without a single number.
fn forgetful(ask: &Ask) -> Say {
    let said = ask.said();
    if said.contains(SUMMARY_ASKED) {
        return text(
            "## State\nThe person told the assistant a number of things about a flat in the city, one after another.",
        );
    }
    if said.contains(SAVE_ASKED) {
        return match ask.round() {
            0 => {
                let entry = json!({ "text": "The person looks for a flat in the city." });
                Say::Calls(vec![call("s1", "memory_add", &entry.to_string())])
            }
            _ => text("NO_REPLY"),
        };
    }
    text(format!("noted, {} messages seen", ask.messages().len()))
}

async fn set_up(channel: &str, agent: &str) -> (Gateway, Bridge, ModelServer) {
    let model = ModelServer::start(forgetful).await;
    let config = format!("{}\n{}\n[agent]\n{agent}\n", model.section(), Bridge::section(channel));
    let gateway = Gateway::start(&config).await;
    let bridge = Bridge::to(&gateway);
    (gateway, bridge, model)
}

async fn say(bridge: &Bridge, n: usize, words: &str) -> String {
    let answer = bridge.wait(&message(&format!("m{n}"), "room", words)).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.text().to_owned()
}

async fn compacted(model: &ModelServer) {
    let asked = || async { (!model.asks_about(SUMMARY_ASKED).is_empty()).then_some(()) };
    until("the conversation to be compacted", SOON, asked).await;
}

#[tokio::test]
async fn what_no_longer_fits_becomes_a_summary_that_keeps_names_and_numbers() {
    let (gateway, bridge, model) = set_up("owners = [\"u1\"]", "history_messages = 12").await;
    say(&bridge, 0, "The landlord is Wang Qiang, his number is 13800138000.").await;
    for n in 1..9 {
        say(&bridge, n, &format!("one more thing about the flat, thing {n}")).await;
    }
    compacted(&model).await;
    let said = say(&bridge, 9, "and what was the landlord's number?").await;
    assert!(said.starts_with("noted"), "the person hears of no compaction: {said}");
    let asks = model.asks_about("what was the landlord's number?");
    let first = asks[0].messages().iter().find(|message| message["role"] == "user").expect("a user message");
    let first = first["content"].as_str().expect("text");
    assert!(first.contains("conversation_summary") && first.contains("a flat in the city"), "{first}");
    assert!(first.contains("13800138000") && first.contains("Wang Qiang"), "what the model forgot is kept: {first}");
    let notes: Vec<_> = fs::read_dir(gateway.workspace().join("memory")).expect("notes were saved").flatten().collect();
    assert_eq!(notes.len(), 1, "the owner's notes were saved first: {notes:?}");
    let note = fs::read_to_string(notes[0].path()).expect("a note");
    assert!(note.contains("looks for a flat"), "{note}");
    model.assert_strict_order();
    // Each message was answered once, and nothing else was said.
    let sessions = gateway.cli(&["sessions", "list", "--json"]).await.json();
    assert!(sessions.to_string().contains("room"), "{sessions}");
}

#[tokio::test]
async fn compact_and_context_answer_in_words_and_a_member_s_notes_stay_alone() {
    let (gateway, bridge, model) = set_up("", "").await;
    assert!(say(&bridge, 0, "/context").await.contains("not asked"));
    assert!(say(&bridge, 1, "/compact").await.contains("short"));
    say(&bridge, 2, "remember the code 4711 of the garage").await;
    say(&bridge, 3, "and the rest is not important").await;
    let context = say(&bridge, 4, "/context").await;
    assert!(context.contains("KB") && context.contains("Same beginning"), "{context}");
    let done = say(&bridge, 5, "/compact the code").await;
    assert!(done.contains("summary"), "{done}");
    let asked = model.asks_about(SUMMARY_ASKED);
    assert!(asked[0].said().contains("the code"), "what is wanted is passed on");
    assert!(model.asks_about(SAVE_ASKED).is_empty(), "only the owner has notes");
    assert!(!gateway.workspace().join("memory").join("x").exists());
    say(&bridge, 6, "what is the code?").await;
    let ask = &model.asks_about("what is the code?")[0];
    assert!(ask.messages()[1]["content"].as_str().is_some_and(|text| text.contains("4711")), "{:?}", ask.messages());
}

#[tokio::test]
async fn a_compaction_that_dies_in_the_middle_is_done_again_and_saves_once() {
    let model = ModelServer::start(forgetful).await;
    let config =
        format!("{}\n{}\n[agent]\nhistory_messages = 8\n", model.section(), Bridge::section("owners = [\"u1\"]"));
    let mut gateway = Gateway::folder(&config);
    gateway.fail_at("compact.saved=1*return");
    gateway.restart().await;
    let bridge = Bridge::to(&gateway);
    for n in 0..4 {
        say(&bridge, n, &format!("the number of room {n} is 70{n}1")).await;
    }
    gateway.ended().await;
    gateway.fail_at("");
    gateway.restart().await;
    compacted(&model).await;
    say(&bridge, 5, "which rooms?").await;
    let ask = &model.asks_about("which rooms?")[0];
    assert!(ask.messages()[1]["content"].as_str().is_some_and(|text| text.contains("7001")), "{:?}", ask.messages());
    assert_eq!(model.asks_about(SAVE_ASKED).iter().filter(|ask| ask.round() == 0).count(), 1, "saved once");
}

#[tokio::test]
async fn a_new_conversation_begins_with_a_greeting_and_without_a_model_with_a_line() {
    let model = ModelServer::start(|ask| match ask.said().contains("/new") {
        true => text("Hello, I am Crab. What shall we do?"),
        false => text(format!("{} messages", ask.messages().len())),
    })
    .await;
    let gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    assert_eq!(say(&bridge, 0, "one").await, "2 messages");
    assert_eq!(say(&bridge, 1, "/new").await, "Hello, I am Crab. What shall we do?");
    assert_eq!(say(&bridge, 2, "two").await, "2 messages", "what came before is not sent");
    model.follow(|ask| match ask.said().contains("/new") {
        true => Say::Status(401, None),
        false => text("yes"),
    });
    assert!(say(&bridge, 3, "/new").await.contains("New conversation"));
    assert_eq!(say(&bridge, 4, "three").await, "yes");
}
