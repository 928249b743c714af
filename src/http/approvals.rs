//! `/api/approvals`: what waits for the owner's word, the word, and what was approved for good.

use std::sync::Arc;

use axum::{body::Body, extract::State, http::HeaderMap, response::Response};
use serde::Deserialize;

use super::{
    Server,
    api::{Asked, Named, asked, body_of},
    error::Refusal,
};
use crate::{
    approvals::{Decision, How},
    inspect::Query,
};

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
    /// What the caller is; for the audit log, no right hangs on it.
    #[serde(default)]
    how: How,
}

/// The query of what takes one back.
#[derive(Debug, Deserialize)]
pub struct Way {
    #[serde(default)]
    how: How,
}

/// `GET /api/approvals?all=true`: what waits, newest first; all of it with `all`.
pub async fn list(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    asked(&server, Query::Approvals(ask.all)).await
}

/// `GET /api/approvals/{id}`: one, whole.
pub async fn show(State(server): Gateway, Named(id): Named) -> Answer {
    asked(&server, Query::Approval(id)).await
}

/// `POST /api/approvals/{id} {"decision": "once|always|deny", "how"?}`.
pub async fn decide(State(server): Gateway, Named(id): Named, headers: HeaderMap, sent: Body) -> Answer {
    let Word { decision, how } = body_of(&server, &headers, sent).await?;
    let answer = asked(&server, Query::Decide { id, decision, how }).await;
    server.http.work.wake();
    answer
}

/// `GET /api/approvals/grants`: what was approved for good, newest first.
pub async fn grants(State(server): Gateway) -> Answer {
    asked(&server, Query::Grants).await
}

/// `DELETE /api/approvals/grants/{id}`: it is asked for again.
pub async fn revoke(State(server): Gateway, Named(id): Named, Asked(way): Asked<Way>) -> Answer {
    asked(&server, Query::RevokeGrant { id, how: way.how }).await
}
