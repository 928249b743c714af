//! Answers that say no: one JSON shape, a stable code for programs, a sentence for people, and the header that tells when
//! to come back.

use std::time::Duration;

use axum::{
    body::Body,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde_json::json;

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    /// The status.
    pub status: StatusCode,
    /// A stable name for programs.
    pub code: &'static str,
    /// A sentence for people; never a secret, never what a caller sent.
    pub message: String,
    /// When to come back.
    pub retry_after: Option<Duration>,
    /// The rest of the request was not read: the connection cannot be used again.
    pub close: bool,
}

impl Refusal {
    /// A refusal with this status, code and sentence.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), retry_after: None, close: false }
    }

    /// The same, and when to come back.
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }

    /// The same, and the connection is closed after it.
    pub fn closing(mut self) -> Self {
        self.close = true;
        self
    }

    /// 400: the body is not the JSON that was promised.
    pub fn bad_json(message: &str) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "bad_json", message)
    }

    /// 422: the JSON says something that cannot be.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid", message)
    }

    /// 404.
    pub fn not_found() -> Self {
        Self::new(StatusCode::NOT_FOUND, "not_found", "there is nothing here")
    }

    /// 503: the store does not answer.
    pub fn unavailable() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "the gateway cannot reach its database; try again soon",
        )
        .retry_after(Duration::from_secs(5))
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        // `ok` is what callers of /channels look at, `success` what callers of /api do.
        let body = json!({ "success": false, "ok": false, "error": { "code": self.code, "message": self.message } });
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(wait) = self.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(wait.as_secs_f64().ceil().max(1.0) as u64));
        }
        if self.close {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}
