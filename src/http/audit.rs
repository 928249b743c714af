//! `/api/audit` and `/api/halt`: what was done and decided, and the brake.

use axum::{body::Body, extract::State, http::HeaderMap};
use serde::Deserialize;
use tracing::warn;

use super::{
    Server,
    api::{Answer, Asked, Gateway, asked, body_of},
    error::Refusal,
};
use crate::{
    audit::{CONSOLE, Event, Head, Kind},
    inspect::Query,
};

/// What is asked for.
#[derive(Debug, Deserialize)]
pub struct Wanted {
    after: Option<i64>,
    since: Option<i64>,
    kind: Option<String>,
    limit: Option<u32>,
}

/// `GET /api/audit?after=&since=&kind=&limit=`, oldest first; `since` is epoch milliseconds.
pub async fn rows(State(server): Gateway, Asked(ask): Asked<Wanted>) -> Answer {
    let (after, since, limit) = (ask.after.unwrap_or(0), ask.since.unwrap_or(0), ask.limit.unwrap_or(50));
    asked(&server, Query::Audit { after, since, kind: ask.kind, limit }).await
}

/// Heads that were written down elsewhere.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Seen {
    heads: Vec<Head>,
}

/// `POST /api/audit/verify {"heads"?: [{"seq","hash"}]}` → `{"head"}` or `{"broken"}`.
pub async fn verify(State(server): Gateway, headers: HeaderMap, sent: Body) -> Answer {
    let Seen { heads } = body_of(&server, &headers, sent).await?;
    asked(&server, Query::VerifyAudit(heads)).await
}

/// What a command of the terminal did that belongs into the log.
#[derive(Debug, Deserialize)]
struct Grant {
    what: String,
    #[serde(default)]
    detail: serde_json::Value,
}

/// `POST /api/audit/grant {"what","detail"}`: a skill or an MCP server was allowed something on the command line.
pub async fn grant(State(server): Gateway, headers: HeaderMap, sent: Body) -> Answer {
    let Grant { what, detail } = body_of(&server, &headers, sent).await?;
    if what.is_empty() || what.chars().count() > 64 {
        return Err(Refusal::invalid("`what` is empty or too long"));
    }
    asked(&server, Query::Granted { what, detail }).await
}

/// `GET /api/halt` → `{"halted": null | {"at","who"}}`.
pub async fn halted(State(server): Gateway) -> Answer {
    asked(&server, Query::Halted).await
}

/// `POST /api/halt`: nothing new is begun.
pub async fn halt(State(server): Gateway) -> Answer {
    // First: what is committed a moment later holds already.
    server.http.halt.set(true);
    warn!("halted: nothing new is begun until `crawfish resume`");
    asked(&server, Query::SetHalted(true)).await
}

/// `POST /api/resume`.
pub async fn resume(State(server): Gateway) -> Answer {
    let answer = asked(&server, Query::SetHalted(false)).await?;
    server.http.halt.set(false);
    server.http.work.wake();
    warn!("work goes on");
    Ok(answer)
}

/// Writes down what happened at the door. A log that cannot be written opens nothing: a log-in waits for it.
///
/// # Errors
/// 503 when it cannot be written.
pub async fn record(server: &Server, what: &str) -> Result<(), Refusal> {
    let http = &server.http;
    let (at, what, detail) = (http.clock.now_ms(), what.to_owned(), serde_json::json!({}));
    let event = Event { at, kind: Kind::Login, who: CONSOLE.to_owned(), what, detail };
    http.store.audit(vec![event]).await.map_err(|error| {
        warn!(%error, "the audit log could not be written");
        Refusal::unavailable()
    })
}
