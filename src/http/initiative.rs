//! `/api/schedules` and `/api/heartbeat`: what the gateway does by itself, for the page and the command line.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::Response,
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Server,
    api::{Named, asked},
    body,
    error::Refusal,
    hooks::{Calls, HooksConfig},
    json_answer,
};
use crate::{
    chats::{Chats, web_chat},
    heartbeat::{Beat, rows::InitiativeStore},
    inbox::WakeUp,
    inspect::Query,
    policy::Role,
    schedule::{Ask, Schedules, SetError},
};

/// What the routes of hooks, schedules and heartbeats stand on.
pub struct Initiative {
    /// `[hooks]`.
    pub hooks: HooksConfig,
    /// The rows.
    pub rows: Arc<dyn InitiativeStore>,
    /// Sets schedules.
    pub schedules: Schedules,
    /// Finds chats, asks the gate.
    pub chats: Chats,
    /// The agents and when they tick.
    pub beats: Vec<Beat>,
    /// The names of the models.
    pub models: Vec<String>,
    /// Wakes the heartbeat.
    pub heartbeat: WakeUp,
    /// Wakes the workers.
    pub work: WakeUp,
    /// The most waiting entries of a session.
    pub cap: u32,
    /// Who called how often.
    pub calls: Calls,
}

type Answer = Result<Response, Refusal>;
type Gateway = State<Arc<Server>>;

/// `GET /api/schedules`: the next one first.
pub(super) async fn schedules(State(server): Gateway) -> Answer {
    asked(&server, Query::Schedules).await
}

/// `GET /api/schedules/{id}`.
pub(super) async fn schedule(State(server): Gateway, Named(id): Named) -> Answer {
    asked(&server, Query::Schedule(id)).await
}

/// `DELETE /api/schedules/{id}`.
pub(super) async fn cancel(State(server): Gateway, Named(id): Named) -> Answer {
    asked(&server, Query::CancelSchedule(id)).await
}

/// `POST /api/schedules/{id}/run`: now, besides its own times.
pub(super) async fn run(State(server): Gateway, Named(id): Named) -> Answer {
    let answer = asked(&server, Query::RunSchedule(id)).await;
    if let Some(initiative) = &server.http.initiative {
        initiative.schedules.woken.wake();
    }
    answer
}

/// `GET /api/heartbeat`: the last tick of each agent, and what became of it.
pub(super) async fn heartbeat(State(server): Gateway) -> Answer {
    asked(&server, Query::Heartbeat).await
}

/// What is set: its time and words, and whose chat it is for.
#[derive(Deserialize)]
struct Set {
    #[serde(default)]
    agent: Option<String>,
    #[serde(flatten)]
    ask: Ask,
}

/// `POST /api/schedules {"text", "at" | "every" | "cron", "tz"?, "title"?}`: for the owner's chat.
pub(super) async fn add(State(server): Gateway, headers: HeaderMap, sent: Body) -> Answer {
    let limits = &server.limits;
    let bytes = body::read(&headers, sent, limits.body_bytes, limits.body, server.http.clock.as_ref()).await?;
    let Set { agent, ask } = body::json(&bytes)?;
    let initiative = server.http.initiative.as_ref().ok_or_else(Refusal::not_found)?;
    let agent = agent.unwrap_or_else(|| "main".to_owned());
    let chat = initiative.chats.owner(&agent).await.map_err(super::api::refused)?;
    let place = chat.map_or_else(web_chat, |chat| chat.place);
    let key = ulid::Ulid::generate().to_string();
    let row = initiative.schedules.add(&ask, place, Role::Owner, &agent, &key).await.map_err(|error| match error {
        SetError::Store(error) => super::api::refused(error),
        error => Refusal::invalid(error.to_string()),
    })?;
    Ok(json_answer(StatusCode::OK, &json!({ "success": true, "schedule": row, "coming": row.coming(3) })))
}
