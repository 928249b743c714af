//! An embedding model's server that is always the same: a text's vector says which of a few ideas it speaks of.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::{Value, json};
use tokio::{net::TcpListener, task::JoinSet};

/// Words of one idea.
const IDEAS: [&[&str]; 4] = [
    &["automobile", "vehicle", "car"],
    &["tea", "drink", "beverage"],
    &["伪指令", "假的调用"],
    &["money", "price", "cost"],
];

#[derive(Default)]
struct Heard {
    keys: Vec<String>,
    texts: Vec<String>,
}

#[derive(Clone, Default)]
struct Shared {
    heard: Arc<Mutex<Heard>>,
    failing: Arc<AtomicBool>,
}

/// The server; it ends with this.
pub struct Embeddings {
    shared: Shared,
    url: String,
    _server: JoinSet<()>,
}

impl Embeddings {
    /// Starts it.
    pub async fn start() -> Self {
        let shared = Shared::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}/v1", listener.local_addr().expect("bound"));
        let router = Router::new().route("/v1/embeddings", post(answer)).with_state(shared.clone());
        let mut server = JoinSet::new();
        server.spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Self { shared, url, _server: server }
    }

    /// Its section of the configuration.
    pub fn section(&self) -> String {
        format!(
            "[memory.embedding]\nbase_url = \"{}\"\nmodel = \"ideas\"\napi_key = \"sk-embed-0123456789\"\n",
            self.url
        )
    }

    /// Whether it answers 503 from now on.
    pub fn fail(&self, failing: bool) {
        self.shared.failing.store(failing, Ordering::SeqCst);
    }

    /// The keys it was asked with.
    pub fn keys(&self) -> Vec<String> {
        self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner).keys.clone()
    }

    /// The texts it was asked about.
    pub fn texts(&self) -> Vec<String> {
        self.shared.heard.lock().unwrap_or_else(PoisonError::into_inner).texts.clone()
    }
}

async fn answer(
    State(shared): State<Shared>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> (StatusCode, Json<Value>) {
    if shared.failing.load(Ordering::SeqCst) {
        return (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "error": { "message": "overloaded" } })));
    }
    let texts: Vec<String> = serde_json::from_value(body["input"].clone()).expect("a list of texts");
    let data: Vec<Value> = texts
        .iter()
        .enumerate()
        .map(|(index, text)| {
            let mut vector: Vec<f64> = IDEAS
                .iter()
                .map(|idea| if idea.iter().any(|word| text.to_lowercase().contains(word)) { 1.0 } else { -0.1 })
                .collect();
            // Of no idea at all.
            vector.push(if vector.iter().all(|x| *x < 0.0) { 1.0 } else { -0.1 });
            json!({ "object": "embedding", "index": index, "embedding": vector })
        })
        .collect();
    let mut heard = shared.heard.lock().unwrap_or_else(PoisonError::into_inner);
    heard.texts.extend(texts);
    heard.keys.push(headers.get("authorization").and_then(|key| key.to_str().ok()).unwrap_or_default().to_owned());
    (StatusCode::OK, Json(json!({ "object": "list", "data": data, "model": body["model"] })))
}
