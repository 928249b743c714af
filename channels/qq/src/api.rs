//! One call of QQ's API and what its answer means for the caller; the access token, fetched once for all who wait for it.
//! Knows nothing of messages; never shows the secret or the token.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use channel_api::{Clock, Secret};
use channel_socket::Network;
use futures_util::StreamExt;
use http::{Method, StatusCode, header};
use reqwest::{Client, Response, multipart, redirect};
use serde_json::{Value, json};
use tokio::sync::Mutex;
use url::Url;

use crate::config::{Config, ConfigError};

/// How long an ordinary call may take. QQ wants at least 5 s.
pub const TIMEOUT: Duration = Duration::from_secs(15);
/// How long an upload may take.
pub const UPLOAD_TIMEOUT: Duration = Duration::from_secs(35);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const ANSWER_BYTES: usize = 1024 * 1024;
/// A new token is given out in the last minute of the old one, and not before.
const LAST_MINUTE: u64 = 60;
/// The shortest time a token is kept, so that a strange `expires_in` does not make every call fetch one.
const SHORTEST: u64 = 5;
/// The pause after a rate limit that names none.
const USUAL_PAUSE: Duration = Duration::from_secs(10);
/// The longest pause that is believed.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// The longest words of a refusal that are kept, in characters.
const MESSAGE_CHARS: usize = 300;

/// Codes of rate limits.
const RATE: [i64; 6] = [11_263, 11_264, 11_265, 20_028, 22_009, 100_017];
/// The token is missing, wrong or over.
const TOKEN: [i64; 4] = [11_241, 11_242, 11_243, 11_244];
/// The caller's address is not on the bot's list.
const ADDRESS: i64 = 11_298;

/// A bot's access to the API.
pub struct Api {
    calls: Client,
    tokens: Client,
    base: Url,
    token_url: Url,
    app_id: String,
    secret: Secret,
    clock: OnceLock<Arc<dyn Clock>>,
    token: Mutex<Option<Token>>,
}

#[derive(Clone)]
struct Token {
    text: String,
    /// On the monotonic clock.
    until: Duration,
}

/// Why a call gave no result, named by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request never left: try again.
    #[error("QQ was not reached: {0}")]
    NotSent(String),
    /// The request left and no answer came: it may have been done.
    #[error("no answer: {0}")]
    Unknown(String),
    /// An answer came that says nothing of the deed: a 5xx, a page for people.
    #[error("no clear answer: {0}")]
    Broken(String),
    /// QQ asks to wait this long; nothing was done.
    #[error("QQ asks to wait {0:?}")]
    Wait(Duration),
    /// AppID and AppSecret are not accepted.
    #[error("QQ does not accept `app_id` and `app_secret`: {0}")]
    Credentials(String),
    /// The address that this machine has on the internet is not on the bot's list.
    #[error("this machine's address is not on the bot's IP list (q.qq.com, \"开发设置\" → \"IP白名单\"): {0}")]
    NotListed(String),
    /// QQ said no.
    #[error("{code}: {message}")]
    Refused {
        /// Its code; the HTTP status where the body has none.
        code: i64,
        /// Its words.
        message: String,
    },
}

/// What is sent along.
pub enum Payload<'a> {
    /// Nothing.
    None,
    /// JSON.
    Json(&'a Value),
    /// A form with one picture in `file_image`.
    Picture {
        /// The other fields.
        fields: &'a [(&'static str, String)],
        /// The picture.
        bytes: Bytes,
    },
}

impl Api {
    /// The access that a checked config names.
    ///
    /// # Errors
    /// [`ConfigError`] when an address or a client is unusable.
    pub fn new(config: &Config, network: &Network) -> Result<Self, ConfigError> {
        let (base, token_url) = (config.api()?, config.tokens()?);
        let client = |url: &Url| {
            network
                .http_to(url)
                // Token and secret go to no other address.
                .redirect(redirect::Policy::none())
                .referer(false)
                .connect_timeout(CONNECT_TIMEOUT)
                .user_agent(concat!("crawfish/", env!("CARGO_PKG_VERSION")))
                .build()
                .map_err(|error| ConfigError::Client(told(error)))
        };
        Ok(Self {
            calls: client(&base)?,
            tokens: client(&token_url)?,
            base,
            token_url,
            app_id: config.app_id.clone(),
            secret: config.app_secret.clone(),
            clock: OnceLock::new(),
            token: Mutex::default(),
        })
    }

    /// From now on tokens are kept as long as they are good by this clock; before, each is used once.
    pub fn keep_time_by(&self, clock: Arc<dyn Clock>) {
        let _ = self.clock.set(clock);
    }

    /// Calls `/a/b` for the path `["a", "b"]`. A token that is refused is replaced once.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn call(
        &self,
        method: Method,
        path: &[&str],
        payload: Payload<'_>,
        timeout: Duration,
    ) -> Result<Value, ApiError> {
        let mut stale = None;
        loop {
            let token = self.token(stale.as_deref()).await?;
            match self.once(&method, path, &payload, timeout, &token).await {
                Err(Failed::Token(_)) if stale.is_none() => stale = Some(token),
                Err(Failed::Token(said)) => return Err(ApiError::Credentials(said)),
                Err(Failed::Other(error)) => return Err(error),
                Ok(value) => return Ok(value),
            }
        }
    }

    async fn once(
        &self,
        method: &Method,
        path: &[&str],
        payload: &Payload<'_>,
        timeout: Duration,
        token: &str,
    ) -> Result<Value, Failed> {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let mut request = self
            .calls
            .request(method.clone(), url)
            .timeout(timeout)
            .header(header::AUTHORIZATION, format!("QQBot {token}"))
            .header("X-Union-Appid", &self.app_id);
        request = match payload {
            Payload::None => request,
            Payload::Json(value) => request.json(value),
            Payload::Picture { fields, bytes } => {
                let picture = multipart::Part::stream(bytes.clone()).file_name("picture");
                let form = multipart::Form::new().part("file_image", picture);
                request.multipart(fields.iter().fold(form, |form, (name, value)| form.text(*name, value.clone())))
            }
        };
        let response = request.send().await.map_err(unsent).map_err(Failed::Other)?;
        let (status, pause) = (response.status(), retry_after(&response));
        let body = read(response).await.map_err(|error| Failed::Other(ApiError::Unknown(error)))?;
        judge(status, pause, &body)
    }

    /// The access token. One request for all who wait; `stale` is one that was refused.
    pub async fn token(&self, stale: Option<&str>) -> Result<String, ApiError> {
        let mut kept = self.token.lock().await;
        let now = self.clock.get().map(|clock| clock.monotonic());
        if let (Some(token), Some(now)) = (kept.as_ref(), now)
            && now < token.until
            && stale != Some(token.text.as_str())
        {
            return Ok(token.text.clone());
        }
        *kept = None;
        let (text, seconds) = self.fetch_token().await?;
        if let Some(now) = now {
            let good = seconds.saturating_sub(LAST_MINUTE).clamp(SHORTEST, 24 * 60 * 60);
            *kept = Some(Token { text: text.clone(), until: now + Duration::from_secs(good) });
        }
        Ok(text)
    }

    async fn fetch_token(&self) -> Result<(String, u64), ApiError> {
        let body = json!({ "appId": self.app_id, "clientSecret": self.secret.expose() });
        let request = self.tokens.post(self.token_url.clone()).timeout(TIMEOUT).json(&body);
        // Asking for a token twice does no harm: nothing here is unknown.
        let response = request.send().await.map_err(|error| ApiError::NotSent(told(error)))?;
        let (status, pause) = (response.status(), retry_after(&response));
        let body = read(response).await.map_err(ApiError::NotSent)?;
        let answer = channel_api::json::parse(&String::from_utf8_lossy(&body)).unwrap_or(Value::Null);
        if let Some(token) = answer.get("access_token").and_then(Value::as_str).filter(|token| !token.is_empty()) {
            // A number in the table of the documentation and a text in its example.
            let seconds = integer(&answer, "expires_in").and_then(|seconds| u64::try_from(seconds).ok());
            return Ok((token.to_owned(), seconds.unwrap_or(LAST_MINUTE + SHORTEST)));
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            return Err(ApiError::Wait(pause.unwrap_or(USUAL_PAUSE)));
        }
        let Some(code) = code_of(&answer) else {
            return Err(ApiError::Broken(format!("HTTP {} where a token was asked for", status.as_u16())));
        };
        let message = self.shown(&message_of(&answer));
        Err(match code {
            ADDRESS => ApiError::NotListed(message),
            _ if names_the_list(&message) => ApiError::NotListed(message),
            code if RATE.contains(&code) => ApiError::Wait(USUAL_PAUSE),
            _ if status.is_server_error() => ApiError::Broken(format!("{code}: {message}")),
            _ => ApiError::Credentials(format!("{code}: {message}")),
        })
    }

    fn shown(&self, text: &str) -> String {
        text.replace(self.secret.expose(), "[secret]")
    }
}

/// What one try of a call came to.
enum Failed {
    /// The token was refused, in these words.
    Token(String),
    Other(ApiError),
}

/// What an answer means. QQ says no with any status, 200 among them: the body decides.
fn judge(status: StatusCode, pause: Option<Duration>, body: &[u8]) -> Result<Value, Failed> {
    let answer = channel_api::json::parse(&String::from_utf8_lossy(body));
    let code = answer.as_ref().and_then(code_of).filter(|code| *code != 0);
    let message = answer.as_ref().map(message_of).unwrap_or_default();
    let other = |error| Err(Failed::Other(error));
    if status == StatusCode::TOO_MANY_REQUESTS || code.is_some_and(|code| RATE.contains(&code)) {
        return other(ApiError::Wait(pause.unwrap_or(USUAL_PAUSE)));
    }
    match code {
        Some(code) if TOKEN.contains(&code) => Err(Failed::Token(format!("{code}: {message}"))),
        Some(ADDRESS) => other(ApiError::NotListed(message)),
        Some(_) if names_the_list(&message) => other(ApiError::NotListed(message)),
        Some(code) if status == StatusCode::UNAUTHORIZED => Err(Failed::Token(format!("{code}: {message}"))),
        Some(code) if status.is_server_error() && !is_verdict(code) => {
            other(ApiError::Broken(format!("HTTP {}, {code}: {message}", status.as_u16())))
        }
        Some(code) => other(ApiError::Refused { code, message }),
        None if status.is_success() => match answer {
            Some(value) => Ok(value),
            None if body.is_empty() => Ok(Value::Null),
            None => other(ApiError::Broken("an answer that is no JSON".to_owned())),
        },
        None if status == StatusCode::UNAUTHORIZED && answer.is_some() => Err(Failed::Token(format!("401: {message}"))),
        None if status.is_client_error() && answer.is_some() => {
            other(ApiError::Refused { code: i64::from(status.as_u16()), message })
        }
        None => other(ApiError::Broken(format!("HTTP {} without an answer of the API", status.as_u16()))),
    }
}

/// Codes about the message itself, whatever status they come with.
fn is_verdict(code: i64) -> bool {
    matches!(code, 304_000..=304_999 | 40_034_000..=40_099_999)
}

fn names_the_list(message: &str) -> bool {
    message.contains("白名单") || message.to_ascii_lowercase().contains("whitelist")
}

fn code_of(answer: &Value) -> Option<i64> {
    integer(answer, "code").or_else(|| integer(answer, "err_code")).or_else(|| integer(answer, "retcode"))
}

/// A number, or a text that is one.
fn integer(value: &Value, key: &str) -> Option<i64> {
    match value.get(key)? {
        Value::String(text) => text.trim().parse().ok(),
        number => number.as_i64(),
    }
}

/// Words of the other side, fit for a log: bounded, in one line.
fn message_of(answer: &Value) -> String {
    let words = ["message", "msg", "error"].iter().find_map(|key| answer.get(key)?.as_str()).unwrap_or_default();
    words.chars().take(MESSAGE_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
}

fn unsent(error: reqwest::Error) -> ApiError {
    match error.is_connect() || error.is_builder() {
        true => ApiError::NotSent(told(error)),
        false => ApiError::Unknown(told(error)),
    }
}

async fn read(response: Response) -> Result<Vec<u8>, String> {
    let mut body = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(chunk) = chunks.next().await {
        let chunk = chunk.map_err(told)?;
        if body.len() + chunk.len() > ANSWER_BYTES {
            return Err(format!("an answer of more than {ANSWER_BYTES} bytes"));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(|seconds| Duration::from_secs(seconds).min(LONGEST_PAUSE))
}

/// An error with its causes.
fn told(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        let error_text = error.to_string();
        if !text.contains(&error_text) {
            text.push_str(": ");
            text.push_str(&error_text);
        }
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(status: u16, body: &str) -> Result<Value, ApiError> {
        match judge(StatusCode::from_u16(status).expect("a status"), None, body.as_bytes()) {
            Ok(value) => Ok(value),
            Err(Failed::Token(said)) => Err(ApiError::Credentials(said)),
            Err(Failed::Other(error)) => Err(error),
        }
    }

    #[test]
    fn the_body_decides_whatever_the_status() {
        let refused = |code, message: &str| Err(ApiError::Refused { code, message: message.to_owned() });
        let broken = |said: &str| Err(ApiError::Broken(said.to_owned()));
        let table = [
            (200, r#"{"id":"m"}"#, Ok(json!({"id": "m"}))),
            (200, r#"{"code":0,"id":"m"}"#, Ok(json!({"code": 0, "id": "m"}))),
            (204, "", Ok(Value::Null)),
            (200, r#"{"code":100001,"message":"no"}"#, refused(100_001, "no")),
            (200, r#"{"code":"40034012","message":"no\nway"}"#, refused(40_034_012, "no way")),
            (400, r#"{"err_code":40034024,"message":"x"}"#, refused(40_034_024, "x")),
            (500, r#"{"code":304003,"message":"url"}"#, refused(304_003, "url")),
            (500, r#"{"code":850018,"message":"later"}"#, broken("HTTP 500, 850018: later")),
            (502, "<html>", broken("HTTP 502 without an answer of the API")),
            (200, "<html>login</html>", broken("an answer that is no JSON")),
            (401, "<html>proxy</html>", broken("HTTP 401 without an answer of the API")),
            (429, "{}", Err(ApiError::Wait(USUAL_PAUSE))),
            (400, r#"{"code":22009,"message":"msg limit exceed"}"#, Err(ApiError::Wait(USUAL_PAUSE))),
            (401, r#"{"code":11244,"message":"expire"}"#, Err(ApiError::Credentials("11244: expire".to_owned()))),
            (401, r#"{"code":11298,"message":"ip"}"#, Err(ApiError::NotListed("ip".to_owned()))),
            (400, r#"{"code":1,"message":"接口访问源IP不在白名单"}"#, {
                Err(ApiError::NotListed("接口访问源IP不在白名单".to_owned()))
            }),
            (404, r#"{"message":"nothing"}"#, refused(404, "nothing")),
        ];
        for (status, body, expected) in table {
            assert_eq!(judged(status, body), expected, "{status} {body}");
        }
    }
}
