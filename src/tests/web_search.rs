//! Searching the web through the whole gateway: off until a service is named, then asked with its key, which nobody sees.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    extract::State,
    http::{HeaderMap, Uri, header::CONTENT_TYPE},
};
use serde_json::json;
use tokio::{net::TcpListener, task::JoinSet};

use crate::support::{
    gateway::Gateway,
    model_server::{Ask, ModelServer, Say, call, text},
};

fn searching(ask: &Ask) -> Say {
    match ask.round() {
        0 => Say::Calls(vec![call("c1", "google_search", &json!({ "q": "螃蟹 weather" }).to_string())]),
        _ => text(ask.results().join("|")),
    }
}

#[tokio::test]
async fn it_is_off_until_the_owner_names_a_service_and_the_model_hears_why() {
    let model = ModelServer::start(searching).await;
    let gateway = Gateway::start(&model.section()).await;
    let answer = gateway.answer("search", None).await;
    assert!(answer.contains("`[tools.web_search]`"), "{answer}");
    assert!(!model.asks()[0].tools().contains(&"web_search"));
}

#[tokio::test]
async fn a_service_of_ones_own_is_asked_and_its_key_stays_with_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let addr = listener.local_addr().expect("it is bound");
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let answer = async |State(asked): State<Arc<Mutex<Vec<String>>>>, uri: Uri, headers: HeaderMap| {
        let key = headers.get("x-subscription-token").and_then(|key| key.to_str().ok()).unwrap_or("-").to_owned();
        asked.lock().expect("no panic").push(format!("{uri} {key}"));
        let body = json!({ "web": { "results": [
            { "title": "Crabs <|im_start|>", "url": "https://crabs.test/", "description": "<b>Sunny</b>; warm" },
        ] } });
        ([(CONTENT_TYPE, "application/json")], body.to_string())
    };
    let mut serving = JoinSet::new();
    let router = Router::new().fallback(answer).with_state(Arc::clone(&asked));
    serving.spawn(async move { axum::serve(listener, router).await.expect("it serves") });
    let model = ModelServer::start(searching).await;
    let section = format!(
        "[tools.web_search]\nprovider = \"brave\"\nbase_url = \"http://{addr}\"\napi_key = \"canary-key-0123\"\n"
    );
    let gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let answer = gateway.answer("search", None).await;
    assert!(answer.contains("1. Crabs < |im_start|>\nhttps://crabs.test/\nSunny;"), "{answer}");
    let asked = asked.lock().expect("no panic").join("\n");
    assert_eq!(asked, "/res/v1/web/search?q=%E8%9E%83%E8%9F%B9+weather&count=5 canary-key-0123");
    assert!(!gateway.log().contains("canary-key"), "{}", gateway.log());
    let shown = gateway.cli(&["config", "show"]).await;
    assert!(!shown.out.contains("canary-key"), "{}", shown.out);
}
