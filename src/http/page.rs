//! The page at `/`: the login and a small chat, and what a browser needs to log in and out.
//!
//! The files are embedded; nothing is fetched from elsewhere and nothing is inline, so that the page's
//! Content-Security-Policy can forbid both.

use std::sync::Arc;

use axum::{
    Extension,
    extract::{Path, Request, State},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use serde::Deserialize;
use serde_json::json;

use super::{
    Server, audit,
    auth::{COOKIE, Caller, check_slowly},
    body,
    error::Refusal,
    json_answer,
};

const INDEX: &str = include_str!("assets/index.html");
/// Name, media type, content.
const ASSETS: [(&str, &str, &str); 3] = [
    ("chat.css", "text/css; charset=utf-8", include_str!("assets/chat.css")),
    ("chat.js", "text/javascript; charset=utf-8", include_str!("assets/chat.js")),
    ("icon.svg", "image/svg+xml", include_str!("assets/icon.svg")),
];
/// The largest login, in bytes.
const LOGIN_BYTES: usize = 4096;

/// `GET /`.
pub async fn index() -> Response {
    file("text/html; charset=utf-8", INDEX)
}

/// `GET /assets/{name}`.
pub async fn asset(Path(name): Path<String>) -> Response {
    match ASSETS.iter().find(|(known, ..)| *known == name) {
        Some((_, kind, text)) => file(kind, text),
        None => Refusal::not_found().into_response(),
    }
}

fn file(kind: &'static str, text: &'static str) -> Response {
    ([(header::CONTENT_TYPE, HeaderValue::from_static(kind))], text).into_response()
}

#[derive(Deserialize)]
struct Login {
    token: String,
}

/// `POST /api/login {"token"}` → a cookie that scripts cannot read, and `{"success":true,"csrf"}` for the header of every
/// later change.
pub async fn login(State(server): State<Arc<Server>>, request: Request) -> Response {
    match log_in(&server, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn log_in(server: &Server, request: Request) -> Result<Response, Refusal> {
    let clock = server.http.clock.as_ref();
    let (head, body) = request.into_parts();
    let bytes = body::read(&head.headers, body, LOGIN_BYTES, server.limits.body, clock).await?;
    let login: Login = body::json(&bytes)?;
    check_slowly(server, login.token.trim().as_bytes()).await?;
    audit::record(server, "logged in").await?;
    let (cookie, csrf) = server.auth.open_session(clock.now_ms()).ok_or_else(Refusal::unavailable)?;
    let mut response = json_answer(StatusCode::OK, &json!({ "success": true, "csrf": csrf }));
    let https = head.headers.get(header::ORIGIN).is_some_and(|origin| origin.as_bytes().starts_with(b"https:"));
    set_cookie(&mut response, &cookie, 30 * 24 * 60 * 60, https);
    Ok(response)
}

/// `POST /api/logout`.
pub async fn logout(State(server): State<Arc<Server>>, Extension(caller): Extension<Caller>) -> Response {
    if let Caller::Owner { session: Some(session), .. } = &caller {
        server.auth.close_session(session, server.http.clock.now_ms());
        // It has ended, whether this can be written or not.
        let _ = audit::record(&server, "logged out").await;
    }
    let mut response = json_answer(StatusCode::OK, &json!({ "success": true }));
    set_cookie(&mut response, "", 0, false);
    response
}

/// `GET /api/me`: whether the browser is logged in, and its CSRF token after a reload.
pub async fn me(State(server): State<Arc<Server>>, Extension(caller): Extension<Caller>) -> Response {
    let csrf = match &caller {
        Caller::Owner { session: Some(session), .. } => server.auth.csrf(session),
        _ => None,
    };
    json_answer(StatusCode::OK, &json!({ "success": true, "csrf": csrf }))
}

fn set_cookie(response: &mut Response, value: &str, seconds: i64, https: bool) {
    let secure = if https { "; Secure" } else { "" };
    let cookie = format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().insert(header::SET_COOKIE, cookie);
    }
}
