//! Memory: what is written down is found and cited, by the owner alone; what others want remembered waits; an embedding
//! model adds to the search and is never needed for it.

use std::fs;

use serde_json::{Value, json};

use crate::support::{
    bridge::{Bridge, message},
    embeddings::Embeddings,
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
    wait::{SOON, until},
};

const NOTE: &str = "memory/2026-03-22-伪指令问题修复总结.md";
const QUESTION: &str = "上次修复伪指令问题是什么时候？";

/// Searches for what it is asked, and answers with the first passage and its source.
fn recall(ask: &Ask) -> Say {
    match ask.round() {
        0 => Say::Calls(vec![call("c1", "memory_search", &json!({ "query": ask.said() }).to_string())]),
        _ => text(format!("查到：{}", ask.results().join("|"))),
    }
}

async fn set_up(sections: &str, script: impl Fn(&Ask) -> Say + Send + Sync + 'static) -> (Gateway, ModelServer) {
    let model = ModelServer::start(script).await;
    let bridge = Bridge::section(
        "owners = [\"boss\"]\ndm_policy = \"open\"\nallow_from = [\"pal\", \"*\"]\ngroup_policy = \"open\"",
    );
    let mut gateway = Gateway::folder(&format!("{}\n{bridge}\n{sections}", model.section()));
    write(&gateway, NOTE, "# 总结\n\n2026 年 3 月 22 日修复：模型只写出工具调用时，给一次纠正。\n");
    write(&gateway, "MEMORY.md", "# People\n\nAda likes green tea.\n");
    gateway.restart().await;
    (gateway, model)
}

fn write(gateway: &Gateway, path: &str, content: &str) {
    let path = gateway.workspace().join(path);
    fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
    fs::write(path, content).expect("a note");
}

fn said(id: &str, sender: &str, group: bool, words: &str) -> Value {
    let mut body = message(id, if group { "group" } else { sender }, words);
    body["sender"] = json!({ "id": sender, "name": sender });
    if group {
        body["conversation"] = json!({ "id": "the-group", "type": "group" });
        body["mentioned"] = true.into();
    }
    body
}

#[tokio::test]
async fn the_note_is_found_and_cited_for_the_owner_alone() {
    let (gateway, model) = set_up("", recall).await;
    let bridge = Bridge::to(&gateway);
    let source = format!("Source: {NOTE}#L1-L3");
    let answer = bridge.wait(&said("m1", "boss", false, QUESTION)).await;
    assert!(answer.text().contains(&source) && answer.text().contains("3 月 22 日"), "{answer:?}");
    for (id, sender, group) in
        [("m2", "stranger", false), ("m3", "u1", false), ("m4", "u1", true), ("m5", "boss", true)]
    {
        let answer = bridge.wait(&said(id, sender, group, QUESTION)).await;
        assert_eq!(answer.status, 200, "{id}: {answer:?}");
        assert!(!answer.raw.contains("22 日") && !answer.raw.contains("Source"), "{id}: {answer:?}");
    }
    // A note dropped while it runs is found by the next search; one that is deleted is not.
    write(&gateway, "memory/旅行/东京.md", "五月去东京，住新宿。\n");
    let answer = bridge.wait(&said("m6", "boss", false, "东京住哪里？")).await;
    assert!(answer.text().contains("Source: memory/旅行/东京.md#L1-L1"), "{answer:?}");
    fs::remove_file(gateway.workspace().join("memory/旅行/东京.md")).expect("removed");
    let answer = bridge.wait(&said("m7", "boss", false, "东京住哪里？")).await;
    assert!(!answer.text().contains("新宿"), "{answer:?}");
    model.assert_strict_order();
}

#[tokio::test]
async fn row_30_what_others_want_remembered_waits_for_the_owner() {
    let (gateway, model) = set_up("", |ask| match (ask.round(), ask.said().contains("remember")) {
        (0, true) => Say::Calls(vec![
            call("c1", "memory_add", &json!({ "text": "the password is swordfish" }).to_string()),
            call("c2", "write", &json!({ "path": "memory/2026-01-01.md", "content": "swordfish" }).to_string()),
        ]),
        (0, false) => recall(ask),
        _ => text(format!("heard: {}", ask.results().join("|"))),
    })
    .await;
    let bridge = Bridge::to(&gateway);
    // A member's wish waits; a trusted one's in a group is the group's; nothing of either reaches the owner's notes.
    let member = bridge.wait(&said("m1", "pal", false, "remember this")).await;
    assert!(member.text().contains("crawfish memory quarantine accept"), "{member:?}");
    let trusted = bridge.wait(&said("m2", "u1", true, "remember this")).await;
    assert!(trusted.text().contains("Noted in `memory/chats/webhook.bridge.group.the-group/"), "{trusted:?}");
    assert!(!gateway.workspace().join("memory/2026-01-01.md").exists());
    let owner = bridge.wait(&said("m3", "boss", false, "what is the password?")).await;
    assert!(!owner.raw.contains("swordfish"), "{owner:?}");
    let listed = gateway.cli(&["memory", "quarantine", "list", "--json"]).await.json();
    assert_eq!(
        (listed[0]["text"].as_str(), listed[0]["asked"]["sender"].as_str()),
        (Some("the password is swordfish"), Some("pal"))
    );
    let id = listed[0]["id"].as_str().expect("an id").to_owned();
    assert_eq!(gateway.cli(&["memory", "quarantine", "drop", "none"]).await.code, Some(66));
    gateway.cli(&["memory", "quarantine", "accept", &id, "--mine"]).await.good();
    let owner = bridge.wait(&said("m4", "boss", false, "what is the password?")).await;
    assert!(owner.raw.contains("swordfish"), "{owner:?}");
    assert_eq!(gateway.cli(&["memory", "quarantine", "list", "--json"]).await.json(), json!([]));
    model.assert_strict_order();
}

#[tokio::test]
async fn the_command_line_searches_with_and_without_a_gateway() {
    let (mut gateway, _model) = set_up("", recall).await;
    for runs in [true, false] {
        if !runs {
            gateway.terminate().await;
        }
        let found = gateway.cli(&["memory", "search", "伪指令", "--json"]).await.json();
        assert_eq!(found["passages"][0]["path"], NOTE, "{found}");
        let shown = gateway.cli(&["memory", "search", "green tea"]).await;
        assert!(shown.good().contains("Ada likes green tea.\nSource: MEMORY.md#L1-L3"), "{shown:?}");
        assert!(gateway.cli(&["memory", "search", "xylophone"]).await.good().contains('2'));
        let count = gateway.cli(&["memory", "reindex", "--json"]).await.json();
        assert_eq!(count["notes"], 2, "{count}");
        assert!(gateway.cli(&["--lang", "zh", "memory", "reindex"]).await.good().contains("索引已重建"));
    }
}

#[tokio::test]
async fn meaning_is_found_with_an_embedding_model_and_words_without() {
    let embeddings = Embeddings::start().await;
    let (gateway, model) = set_up(&embeddings.section(), recall).await;
    write(&gateway, "memory/car.md", "The automobile was repaired on Monday.\n");
    let found = async |query: &str| gateway.cli(&["memory", "search", query, "--json"]).await.json();
    // The fake model knows that a vehicle is an automobile; no word of the question stands in the note.
    until("the note has its vector", SOON, async || {
        let found = found("vehicle").await;
        (found["passages"][0]["path"] == "memory/car.md").then_some(())
    })
    .await;
    assert!(found("vehicle").await["without_vectors"].is_null());
    assert!(embeddings.keys().iter().all(|key| key == "Bearer sk-embed-0123456789"), "{:?}", embeddings.keys());
    let texts = embeddings.texts();
    let of_note = texts.iter().filter(|text| text.contains("automobile")).count();
    assert_eq!(of_note, 1, "a text is sent once: {texts:?}");
    // What it took stands in the ledger, by its purpose.
    let spent = gateway.cli(&["usage", "--by", "purpose", "--json"]).await.json();
    let spent = spent.as_array().expect("a list").iter().find(|row| row["key"] == "embed").cloned();
    let spent = spent.unwrap_or_else(|| panic!("nothing of purpose embed"));
    assert!(spent["calls"].as_u64() >= Some(2) && spent["usage"]["input"].as_u64() > Some(0), "{spent}");
    // When it is away, words are enough, and only the listing for people says so.
    embeddings.fail(true);
    let by_words = found("automobile").await;
    assert_eq!(by_words["passages"][0]["path"], "memory/car.md");
    assert!(by_words["without_vectors"].as_str().is_some_and(|why| why.contains("503")), "{by_words}");
    let bridge = Bridge::to(&gateway);
    let answer = bridge.wait(&said("m1", "boss", false, "automobile")).await;
    assert!(answer.text().contains("memory/car.md#L1-L1") && !answer.raw.contains("503"), "{answer:?}");
    assert!(!gateway.log().contains("sk-embed-0123456789"));
    model.assert_strict_order();
}
