//! `/api/memory/…`: searching and making anew the index of the notes, and what waits in quarantine.

use std::sync::Arc;

use axum::{extract::State, http::StatusCode, response::Response};
use serde::Deserialize;
use tracing::warn;

use super::{
    Server,
    api::{Asked, Named},
    error::Refusal,
    json_answer,
};
use crate::memory::{
    MOST_RESULTS,
    ask::{AskError, MemoryQuery},
    held::To,
};

type Gateway = State<Arc<Server>>;
type Answer = Result<Response, Refusal>;

/// What every route takes.
#[derive(Debug, Deserialize)]
pub struct Whose {
    #[serde(default = "main")]
    agent: String,
    q: Option<String>,
    limit: Option<u32>,
    to: Option<To>,
}

fn main() -> String {
    "main".to_owned()
}

async fn answered(server: &Server, query: MemoryQuery) -> Answer {
    let mut value = server.http.memories.answer(&query).await.map_err(|error| match error {
        AskError::NotFound => Refusal::not_found(),
        AskError::Memory(error) => {
            warn!(%error, "the notes could not be used");
            Refusal::unavailable()
        }
    })?;
    value["success"] = true.into();
    Ok(json_answer(StatusCode::OK, &value))
}

/// `GET /api/memory/search?q=&limit=&agent=`.
pub async fn search(State(server): Gateway, Asked(whose): Asked<Whose>) -> Answer {
    let query = whose.q.ok_or_else(|| Refusal::invalid("`q` is needed"))?;
    let limit = whose.limit.unwrap_or(6).clamp(1, MOST_RESULTS as u32);
    answered(&server, MemoryQuery::Search { agent: whose.agent, query, limit }).await
}

/// `POST /api/memory/reindex?agent=`: answers when it is done; a caller that goes away stops it between two batches.
pub async fn reindex(State(server): Gateway, Asked(whose): Asked<Whose>) -> Answer {
    answered(&server, MemoryQuery::Reindex { agent: whose.agent }).await
}

/// `GET /api/memory/progress?agent=`.
pub async fn progress(State(server): Gateway, Asked(whose): Asked<Whose>) -> Answer {
    answered(&server, MemoryQuery::Progress { agent: whose.agent }).await
}

/// `GET /api/memory/quarantine?agent=`.
pub async fn held(State(server): Gateway, Asked(whose): Asked<Whose>) -> Answer {
    answered(&server, MemoryQuery::Held { agent: whose.agent }).await
}

/// `POST /api/memory/quarantine/{id}/accept?agent=&to=`.
pub async fn accept(State(server): Gateway, Named(id): Named, Asked(whose): Asked<Whose>) -> Answer {
    let to = whose.to.unwrap_or_default();
    answered(&server, MemoryQuery::Accept { agent: whose.agent, id, to }).await
}

/// `POST /api/memory/quarantine/{id}/drop?agent=`.
pub async fn discard(State(server): Gateway, Named(id): Named, Asked(whose): Asked<Whose>) -> Answer {
    answered(&server, MemoryQuery::Drop { agent: whose.agent, id }).await
}
