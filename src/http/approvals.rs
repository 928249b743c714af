//! `GET /api/approvals` and `POST /api/approvals/{id}`: what waits for the owner's word, and the word.

use std::sync::Arc;

use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use serde::Deserialize;

use super::{
    Server,
    api::{Asked, Named, asked, body_of},
    error::Refusal,
};
use crate::{approvals::Decision, inspect::Query};

type Answer = Result<Response, Refusal>;
type Gateway = State<Arc<Server>>;

/// The query of the listing.
#[derive(Debug, Deserialize)]
pub struct Listing {
    #[serde(default)]
    all: bool,
}

/// The body of a decision.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Word {
    decision: Decision,
}

/// `GET /api/approvals?all=true`: what waits, newest first; all of it with `all`.
pub async fn list(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    asked(&server, Query::Approvals(ask.all)).await
}

/// `GET /api/approvals/{id}`: one, whole.
pub async fn show(State(server): Gateway, Named(id): Named) -> Answer {
    asked(&server, Query::Approval(id)).await
}

/// `POST /api/approvals/{id} {"decision": "once|always|deny"}`.
pub async fn decide(State(server): Gateway, Named(id): Named, headers: HeaderMap, sent: Body) -> Answer {
    let Word { decision } = body_of(&server, &headers, sent).await?;
    let answer = asked(&server, Query::Decide { id, decision }).await;
    server.http.work.wake();
    answer
}
