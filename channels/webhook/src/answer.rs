//! What a caller is told: the refusals and the states of a message, as HTTP answers. protocols.md §5.2.

use std::time::Duration;

use channel_api::{HttpResponse, IgnoredReason, InboxId, IntakeError, Settled};
use http::{StatusCode, header};
use serde_json::{Map as Object, Value, json};

/// Why a request was not taken. Nothing was stored.
#[derive(Debug, PartialEq)]
pub enum Refusal {
    /// 400: the body is not a JSON object.
    BadJson(String),
    /// 401: one text for every reason.
    Unauthorized,
    /// 403: the access lists do not admit this sender here.
    SenderNotAllowed,
    /// 404: nothing at this path.
    NoSuchHook,
    /// 404: no message of that id.
    NoSuchMessage,
    /// 405, with the method that would do.
    Method(&'static str),
    /// 409: the id was used for another body.
    IdConflict,
    /// 413: more than this many bytes.
    TooLarge(usize),
    /// 415.
    UnsupportedMedia(&'static str),
    /// 422: a field, as a JSON pointer (empty: a header), and what it must be.
    Invalid {
        /// Where.
        pointer: String,
        /// What is wrong.
        problem: String,
    },
    /// 429: the conversation has too many waiting messages.
    SessionFull(Duration),
    /// 503: the whole gateway is full, stopping, or cannot store.
    Unavailable(Duration),
}

impl From<IntakeError> for Refusal {
    fn from(error: IntakeError) -> Self {
        match error {
            IntakeError::Busy(pause) => Self::Unavailable(pause),
            IntakeError::Unavailable(_) => Self::Unavailable(Duration::from_secs(5)),
        }
    }
}

impl Refusal {
    /// The answer.
    pub fn response(&self) -> HttpResponse {
        let (status, code, message) = match self {
            Self::BadJson(problem) => (StatusCode::BAD_REQUEST, "bad_json", problem.clone()),
            Self::Unauthorized => (
                StatusCode::UNAUTHORIZED,
                "unauthorized",
                "nothing proves that this request comes from the bridge".to_owned(),
            ),
            Self::SenderNotAllowed => (
                StatusCode::FORBIDDEN,
                "sender_not_allowed",
                "this sender may not write here: allow_from, dm_policy and group_policy of this channel decide"
                    .to_owned(),
            ),
            Self::NoSuchHook => (StatusCode::NOT_FOUND, "no_such_hook", "there is no webhook at this path".to_owned()),
            Self::NoSuchMessage => {
                (StatusCode::NOT_FOUND, "no_such_message", "no message of this id was accepted here".to_owned())
            }
            Self::Method(allowed) => {
                (StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", format!("only {allowed} is answered here"))
            }
            Self::IdConflict => (
                StatusCode::CONFLICT,
                "id_conflict",
                "this id was accepted before with another body; a new message needs a new id".to_owned(),
            ),
            Self::TooLarge(limit) => {
                (StatusCode::PAYLOAD_TOO_LARGE, "too_large", format!("the body is larger than {limit} bytes"))
            }
            Self::UnsupportedMedia(problem) => {
                (StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", (*problem).to_owned())
            }
            Self::Invalid { pointer, problem } if pointer.is_empty() => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid", problem.clone())
            }
            Self::Invalid { pointer, problem } => {
                (StatusCode::UNPROCESSABLE_ENTITY, "invalid", format!("{pointer} {problem}"))
            }
            Self::SessionFull(_) => (
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                "this conversation has too many waiting messages; nothing was stored, try again".to_owned(),
            ),
            Self::Unavailable(_) => (
                StatusCode::SERVICE_UNAVAILABLE,
                "unavailable",
                "the gateway cannot take messages now; nothing was stored, try again".to_owned(),
            ),
        };
        let mut error = json!({ "code": code, "message": message });
        if let Self::Invalid { pointer, .. } = self
            && !pointer.is_empty()
        {
            error["pointer"] = json!(pointer);
        }
        let response = HttpResponse::json(status, &json!({ "ok": false, "error": error }));
        match self {
            Self::Method(allowed) => response.with_header(header::ALLOW, allowed),
            Self::SessionFull(pause) | Self::Unavailable(pause) => {
                response.with_header(header::RETRY_AFTER, &whole_seconds(*pause).to_string())
            }
            _ => response,
        }
    }
}

/// `Retry-After` counts whole seconds; never less than asked, never none.
fn whole_seconds(pause: Duration) -> u64 {
    (pause.as_secs() + u64::from(pause.subsec_nanos() > 0)).max(1)
}

/// What the gateway did with a message that it did not store for an answer.
pub fn ignored(reason: IgnoredReason) -> Result<&'static str, Refusal> {
    match reason {
        IgnoredReason::SenderNotAllowed
        | IgnoredReason::GroupNotAllowed
        | IgnoredReason::Disabled
        | IgnoredReason::Blocked => Err(Refusal::SenderNotAllowed),
        // The bridge did nothing wrong and need not send it again: the message starts no turn.
        IgnoredReason::NotAddressed | IgnoredReason::Bot | IgnoredReason::NothingToAnswer => Ok(reason.as_str()),
    }
}

/// The state of one message, before it becomes a body.
pub struct State<'a> {
    /// The platform id.
    pub id: &'a str,
    /// It was accepted before.
    pub duplicate: bool,
}

impl State<'_> {
    fn body(&self, status: &str) -> Object<String, Value> {
        let mut body = Object::new();
        body.insert("ok".to_owned(), json!(true));
        body.insert("id".to_owned(), json!(self.id));
        body.insert("status".to_owned(), json!(status));
        if self.duplicate {
            body.insert("duplicate".to_owned(), json!(true));
        }
        body
    }

    /// Accepted; its answer comes later.
    pub fn accepted(&self) -> Value {
        Value::Object(self.body("accepted"))
    }

    /// Taken note of; it starts no turn.
    pub fn ignored(&self, reason: &str) -> Value {
        let mut body = self.body("ignored");
        body.insert("reason".to_owned(), json!(reason));
        Value::Object(body)
    }

    /// Answered, without its messages.
    pub fn ended(&self, settled: &Settled) -> Value {
        let mut body = self.body("done");
        if let Some(reason) = &settled.silent {
            body.insert("silent".to_owned(), json!(reason));
        }
        if let Some(problem) = &settled.failed {
            body.insert("failed".to_owned(), json!(problem));
        }
        if let Some(newer) = &settled.merged_into {
            body.insert("merged_into".to_owned(), json!(InboxId::as_str(newer)));
        }
        Value::Object(body)
    }

    /// Answered, with its messages.
    pub fn done(&self, settled: &Settled, messages: Vec<Value>) -> Value {
        let mut body = self.ended(settled);
        body["messages"] = Value::Array(messages);
        body
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_refusal_has_its_status_and_a_code() {
        let pause = Duration::from_millis(1_200);
        let invalid = Refusal::Invalid { pointer: "/text".to_owned(), problem: "must be a text".to_owned() };
        let table = [
            (Refusal::BadJson("no".to_owned()), 400),
            (Refusal::Unauthorized, 401),
            (Refusal::SenderNotAllowed, 403),
            (Refusal::NoSuchHook, 404),
            (Refusal::NoSuchMessage, 404),
            (Refusal::Method("POST"), 405),
            (Refusal::IdConflict, 409),
            (Refusal::TooLarge(1), 413),
            (Refusal::UnsupportedMedia("no"), 415),
            (invalid, 422),
            (Refusal::SessionFull(pause), 429),
            (Refusal::Unavailable(pause), 503),
        ];
        for (refusal, status) in table {
            let response = refusal.response();
            assert_eq!(response.status.as_u16(), status, "{refusal:?}");
            let retry = response.headers.get("retry-after").map(|value| value.to_str().expect("ASCII").to_owned());
            assert_eq!(retry.as_deref(), matches!(status, 429 | 503).then_some("2"), "{refusal:?}");
            assert_eq!(response.headers.contains_key("allow"), status == 405, "{refusal:?}");
        }
    }
}
