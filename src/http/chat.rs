//! `POST /api/chat`: a message into the web chat.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Request, State},
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use channel_api::{Accepted, Batch, Conversation, ConversationKind, IntakeError};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::{Http, Server, auth::Caller, body, error::Refusal, json_answer, web};
use crate::session::SessionKey;

/// The longest name of a session, and the longest idempotency key, in characters.
const NAME: usize = 128;

/// The body. What else is in it is ignored.
#[derive(Deserialize)]
struct Ask {
    message: String,
    session: Option<String>,
}

/// `{"message","session"?}` → `{"success":true,"taskId","session"}`. The answer comes by `/sse?taskId=`.
pub async fn post(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Response {
    match accept(&server, &caller, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn accept(server: &Server, caller: &Caller, request: Request) -> Result<Response, Refusal> {
    let http = &server.http;
    let (head, body) = request.into_parts();
    let clock = http.clock.as_ref();
    let bytes = body::read(&head.headers, body, server.limits.body_bytes, server.limits.body, clock).await?;
    let ask: Ask = body::json(&bytes)?;
    if ask.message.trim().is_empty() {
        return Err(Refusal::invalid("`message` is empty"));
    }
    let key = idempotency_key(&head.headers)?;
    let place = Place::of(http, caller, ask.session.as_deref())?;
    let fingerprint = key.is_some().then(|| Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect());
    let platform_id = key.unwrap_or_else(|| ulid::Ulid::generate().to_string());
    let message = channel_api::Inbound {
        fingerprint,
        at: Some(clock.now_ms()),
        ..web::inbound(&place.channel, place.sender, &place.conversation, platform_id, ask.message)
    };
    let answers = http.intake.accept(Batch::from(message)).await.map_err(|error| match error {
        IntakeError::Busy(wait) => {
            let message = "the gateway is full or stopping; nothing was stored";
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "busy", message).retry_after(wait)
        }
        IntakeError::Unavailable(_) => Refusal::unavailable(),
    })?;
    let (task, duplicate) = match answers.into_iter().next().ok_or_else(Refusal::unavailable)? {
        Accepted::New(task) => (task, false),
        Accepted::Duplicate(task) => (task, true),
        Accepted::Conflict => {
            let message = "this Idempotency-Key was used with another body";
            return Err(Refusal::new(StatusCode::CONFLICT, "id_conflict", message));
        }
        Accepted::Full(wait) => {
            let message = "too many messages wait in this session; nothing was stored";
            return Err(Refusal::new(StatusCode::TOO_MANY_REQUESTS, "session_full", message).retry_after(wait));
        }
        Accepted::Paired | Accepted::Ignored(_) => {
            return Err(Refusal::new(StatusCode::FORBIDDEN, "not_accepted", "the message is not for the bot"));
        }
    };
    let mut answer = json!({ "success": true, "taskId": task.as_str(), "session": place.key.as_str() });
    if duplicate {
        answer["duplicate"] = true.into();
    }
    Ok(json_answer(StatusCode::OK, &answer))
}

fn idempotency_key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let Some(key) = headers.get("idempotency-key") else { return Ok(None) };
    let key = key.to_str().ok().filter(|key| !key.is_empty() && key.len() <= NAME);
    key.map(|key| Some(key.to_owned())).ok_or_else(|| Refusal::invalid("the Idempotency-Key is empty or too long"))
}

/// Where a caller's message goes: which web chat, which conversation, which session.
pub struct Place {
    /// The web chat.
    pub channel: channel_api::ChannelId,
    /// Whose message it is.
    pub sender: &'static str,
    /// The conversation in it.
    pub conversation: String,
    /// Its session.
    pub key: SessionKey,
}

impl Place {
    /// The place of a session that a caller names: by its short name, or by the key that an answer told.
    ///
    /// # Errors
    /// 422 for a name that cannot be one, 404 when there is no such web chat.
    pub fn of(http: &Http, caller: &Caller, session: Option<&str>) -> Result<Self, Refusal> {
        let local = *caller == Caller::Local;
        let channel = if local { web::local_channel() } else { web::owner_channel() };
        let entry = http.channels.get(&channel).ok_or_else(Refusal::not_found)?;
        let key_of = |id: &str| {
            let id = id.to_owned();
            entry.session(&Conversation { kind: ConversationKind::Direct, id, thread: None, title: None }, None)
        };
        let main = key_of("main");
        let named = session.map(str::trim).filter(|name| !name.is_empty()).unwrap_or("main");
        // `agent:main:web:x` → `x`; `agent:main:main` → `main`.
        let prefix = key_of("\u{1}").as_str().trim_end_matches("%01").to_owned();
        let name = match named.strip_prefix(&prefix) {
            Some(rest) => rest.replace("%3A", ":").replace("%25", "%"),
            None if named == main.as_str() => "main".to_owned(),
            None => named.to_owned(),
        };
        if name.chars().count() > NAME || name.chars().any(char::is_control) || name.starts_with("agent:") {
            return Err(Refusal::invalid("`session` is too long, or not a session of the web chat"));
        }
        let is_local = name.starts_with(web::LOCAL_PREFIX);
        let conversation = match local {
            true if is_local => name,
            true => format!("{}{name}", web::LOCAL_PREFIX),
            false if is_local => return Err(Refusal::invalid("sessions of local clients are theirs alone")),
            false => name,
        };
        let key = key_of(&conversation);
        Ok(Self { channel, sender: if local { "local" } else { "token" }, conversation, key })
    }
}
