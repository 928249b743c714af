//! One call of the Bot API: a POST with JSON or with a file, or the download of one, and what its answer means for the
//! caller. Knows nothing of updates or messages; never shows the token, which is part of every address.
//!
//! Not teloxide's own client: that one gives up after 17 s (a long poll waits longer), sleeps 10 s on any 5xx and hides
//! error codes. Its payload types are what goes in here.

use channel_api::Secret;
use std::time::Duration;

use bytes::Bytes;
use channel_socket::Network;
use futures_util::{Stream, StreamExt};
use reqwest::{Client, RequestBuilder, Response, StatusCode, header, multipart, redirect};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use url::Url;

use crate::config::{Config, ConfigError};

/// How long a call may take that is no long poll.
const TIMEOUT: Duration = Duration::from_secs(20);

/// How long an upload may take beside [`SLOWEST`].
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(60);

/// The slowest upload that is waited for, in bytes a second.
const SLOWEST: u64 = 256 * 1024;

/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The largest answer that is read: a hundred updates of the longest messages stay far below.
const ANSWER_BYTES: usize = 32 * 1024 * 1024;

/// The pause after a 429 that names none.
const USUAL_PAUSE: Duration = Duration::from_secs(5);

/// The longest pause that is believed.
const LONGEST_PAUSE: Duration = Duration::from_secs(24 * 60 * 60);

/// The longest description of a refusal that is kept, in characters.
const DESCRIPTION_CHARS: usize = 300;

/// A bot's access to the Bot API.
pub struct Api {
    client: Client,
    /// Address and token: `<api_url>/bot<token>/`.
    base: Secret,
    /// Where files are: `<api_url>/file/bot<token>/`.
    files: Secret,
    token: Secret,
}

/// A file on its way out.
pub struct Upload {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub mime: String,
    /// What is in it.
    pub bytes: Bytes,
}

/// Why a call gave no result, named by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request never left: try again.
    #[error("Telegram was not reached: {0}")]
    Retry(String),
    /// The request left, and what came back (nothing, a 5xx, an HTML page) does not say whether it was done.
    #[error("no clear answer: {0}")]
    Unknown(String),
    /// Telegram asks to wait this long; nothing was done.
    #[error("Telegram asks to wait {0:?}")]
    RetryAfter(Duration),
    /// Someone else asks for this bot's updates, or a webhook is set.
    #[error("{0}")]
    Conflict(String),
    /// The token is wrong or was revoked: no call can work before it is changed.
    #[error("Telegram does not accept the token: {0}")]
    WrongToken(String),
    /// The group has become a supergroup with this id; nothing was done.
    #[error("the group is now {0}")]
    Moved(i64),
    /// Telegram said no, and will say it again.
    #[error("{code}: {description}")]
    Refused {
        /// Its error code: 400, 403, …
        code: u16,
        /// Its words.
        description: String,
    },
    /// It was done, and the result cannot be read.
    #[error("the result cannot be read: {0}")]
    Unreadable(String),
}

impl Api {
    /// The access that a checked config names. A server on this machine is always reached directly.
    ///
    /// # Errors
    /// [`ConfigError`] when the address or the client is unusable.
    pub fn new(config: &Config, network: &Network) -> Result<Self, ConfigError> {
        let url = config.api()?;
        let client = network
            .http_to(&url)
            // The token is part of the address: it goes to no other.
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("crawfish/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| ConfigError::Client(told(error)))?;
        let token = config.token.clone();
        let api = url.as_str().trim_end_matches('/');
        let base = Secret::from(format!("{api}/bot{}/", token.expose()).as_str());
        let files = Secret::from(format!("{api}/file/bot{}/", token.expose()).as_str());
        Ok(Self { client, base, files, token })
    }

    /// Calls `method` with `payload` (a payload of `teloxide::payloads`, or any value that serialises to an object).
    ///
    /// # Errors
    /// [`ApiError`], named by what the caller does next.
    pub async fn call<P, R>(&self, method: &str, payload: &P) -> Result<R, ApiError>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        self.call_within(TIMEOUT, method, payload).await
    }

    /// [`Self::call`] with a time of its own, from the first byte to the last of the answer.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_within<P, R>(&self, timeout: Duration, method: &str, payload: &P) -> Result<R, ApiError>
    where
        P: Serialize + ?Sized,
        R: DeserializeOwned,
    {
        let body = serde_json::to_vec(payload).map_err(|error| ApiError::Retry(error.to_string()))?;
        let request = self
            .client
            .post(format!("{}{method}", self.base.expose()))
            .timeout(timeout)
            .header(header::CONTENT_TYPE, "application/json")
            .body(body);
        self.result(request).await
    }

    /// Calls `method` with these parameters and a file as the parameter `field`.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn upload<R: DeserializeOwned>(
        &self,
        method: &str,
        parameters: &Map<String, Value>,
        field: &str,
        file: &Upload,
    ) -> Result<R, ApiError> {
        let mut form = multipart::Form::new();
        for (name, value) in parameters {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            form = form.text(name.clone(), value);
        }
        let size = file.bytes.len() as u64;
        let part = multipart::Part::stream_with_length(file.bytes.clone(), size).file_name(file.name.clone());
        let part = part.mime_str(&file.mime).map_err(|error| ApiError::Retry(told(error)))?;
        let request = self
            .client
            .post(format!("{}{method}", self.base.expose()))
            .timeout(UPLOAD_TIMEOUT + Duration::from_secs(size / SLOWEST))
            .multipart(form.part(field.to_owned(), part));
        self.result(request).await
    }

    /// The content of a file, by the path that `getFile` gave, as it comes.
    ///
    /// # Errors
    /// [`ApiError`]; [`ApiError::Refused`] when it is not there.
    pub async fn download(
        &self,
        path: &str,
        timeout: Duration,
    ) -> Result<impl Stream<Item = Result<Bytes, String>> + Send + use<>, ApiError> {
        let unusable = || ApiError::Refused { code: 400, description: "the file has no usable path".to_owned() };
        let mut url = Url::parse(self.files.expose()).map_err(|_| unusable())?;
        // Segment by segment: nothing in it can lead elsewhere.
        url.path_segments_mut().map_err(|()| unusable())?.pop_if_empty().extend(path.split('/'));
        let response = self.client.get(url).timeout(timeout).send().await.map_err(unanswered)?;
        let (status, wait) = (response.status(), retry_after(&response));
        match status.as_u16() {
            200 => Ok(response.bytes_stream().map(|piece| piece.map_err(told))),
            429 => Err(ApiError::RetryAfter(wait.unwrap_or(USUAL_PAUSE).min(LONGEST_PAUSE))),
            // A redirect too: the token is part of the address, and goes to no other server.
            code @ 300..500 => Err(ApiError::Refused { code, description: "the file is not there".to_owned() }),
            code => Err(ApiError::Unknown(format!("HTTP {code} instead of the file"))),
        }
    }

    async fn result<R: DeserializeOwned>(&self, request: RequestBuilder) -> Result<R, ApiError> {
        let response = request.send().await.map_err(unanswered)?;
        let status = response.status();
        let wait = retry_after(&response);
        let answer = match read(response).await {
            Ok(body) => answer_of(&body),
            Err(error) => return Err(ApiError::Unknown(error)),
        };
        let result = self.judge(status, wait, answer)?;
        serde_json::from_value(result).map_err(|error| ApiError::Unreadable(self.shown(&error.to_string())))
    }

    /// What an answer means. `answer` is `Null` where the body was no JSON: a page of some server in between.
    fn judge(&self, status: StatusCode, wait: Option<Duration>, mut answer: Value) -> Result<Value, ApiError> {
        let ok = answer.get("ok").and_then(Value::as_bool);
        if ok == Some(true) && status.is_success() {
            return match answer.get_mut("result") {
                Some(result) => Ok(result.take()),
                None => Err(ApiError::Unreadable("there is none".to_owned())),
            };
        }
        let stated = answer.get("error_code").and_then(Value::as_u64).and_then(|code| u16::try_from(code).ok());
        let code = stated.unwrap_or(status.as_u16());
        let description = self.shown(answer.get("description").and_then(Value::as_str).unwrap_or_default());
        let parameters = answer.get("parameters");
        let parameter = |name: &str| parameters.and_then(|parameters| parameters.get(name));
        if code == 429 {
            let seconds = parameter("retry_after").and_then(Value::as_u64).map(Duration::from_secs);
            return Err(ApiError::RetryAfter(seconds.or(wait).unwrap_or(USUAL_PAUSE).min(LONGEST_PAUSE)));
        }
        if let Some(id) = parameter("migrate_to_chat_id").and_then(Value::as_i64) {
            return Err(ApiError::Moved(id));
        }
        if status == StatusCode::PAYLOAD_TOO_LARGE {
            return Err(ApiError::Refused { code: 413, description: "Request Entity Too Large".to_owned() });
        }
        // Only a JSON answer with `ok: false` is Telegram's own no.
        if ok != Some(false) || !(400..500).contains(&code) {
            return Err(ApiError::Unknown(match description.is_empty() {
                true => format!("HTTP {} without an answer of the Bot API", status.as_u16()),
                false => format!("HTTP {}: {description}", status.as_u16()),
            }));
        }
        Err(match code {
            401 => ApiError::WrongToken(description),
            // A method that this server does not know is a 404 too, with more words.
            404 if description.is_empty() || description == "Not Found" => ApiError::WrongToken(description),
            409 => ApiError::Conflict(description),
            _ => ApiError::Refused { code, description },
        })
    }

    /// Words of the other side, fit for a log: bounded, in one line, without the token.
    fn shown(&self, text: &str) -> String {
        let text: String = text.chars().take(4 * DESCRIPTION_CHARS).collect();
        let text = text.replace(self.token.expose(), "[token]");
        text.chars().take(DESCRIPTION_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// An answer as JSON, `Null` when it is none. A character that is broken costs itself only: read strictly, one such message
/// would hold back all others, since no question behind it is ever answered.
pub fn answer_of(body: &[u8]) -> Value {
    serde_json::from_slice(body)
        .unwrap_or_else(|_| channel_api::json::parse(&String::from_utf8_lossy(body)).unwrap_or(Value::Null))
}

/// What a request without an answer means: whether its bytes may have arrived.
fn unanswered(error: reqwest::Error) -> ApiError {
    match error.is_connect() || error.is_builder() {
        true => ApiError::Retry(told(error)),
        false => ApiError::Unknown(told(error)),
    }
}

/// The whole body, if it is not too large.
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

/// The header that servers in between use; Telegram says it in the body.
fn retry_after(response: &Response) -> Option<Duration> {
    let value = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?;
    value.trim().parse().ok().map(Duration::from_secs)
}

/// An error with its causes and without the address, which holds the token.
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
    use std::sync::Arc;

    use axum::{
        Router,
        body::Body,
        extract::{Path, State},
        response::Response,
    };
    use serde_json::json;

    use super::*;

    const TOKEN: &str = "123456789:AAF0_ak-8s7dHqXyZ1234567890abcdefgh";

    type Answer = Arc<(u16, String)>;

    /// A server that gives one answer to every call.
    async fn server(status: u16, body: &str) -> (String, tokio::task::JoinSet<()>) {
        let all: Answer = Arc::new((status, body.to_owned()));
        async fn answer(State(all): State<Answer>, Path(_): Path<String>) -> Response {
            let mut response = Response::new(Body::from(all.1.clone()));
            *response.status_mut() = StatusCode::from_u16(all.0).expect("a status");
            response
        }
        let app = Router::new().route("/{*path}", axum::routing::post(answer)).with_state(all);
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}/prefix/", listener.local_addr().expect("bound"));
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, app).await.expect("serves") });
        (url, tasks)
    }

    fn api(url: &str) -> Api {
        let config: Config = toml::from_str(&format!("token = '{TOKEN}'\napi_url = '{url}'")).expect("a config");
        config.check().expect("a good config");
        Api::new(&config, &Network::new(None, None).expect("a network")).expect("a client")
    }

    async fn outcome(status: u16, body: &str) -> Result<Value, ApiError> {
        let (url, _tasks) = server(status, body).await;
        api(&url).call("getMe", &json!({})).await
    }

    #[tokio::test]
    async fn every_answer_has_its_meaning() {
        let refused = |code, text: &str| ApiError::Refused { code, description: text.to_owned() };
        let table = [
            (
                401,
                r#"{"ok":false,"error_code":401,"description":"Unauthorized"}"#,
                ApiError::WrongToken("Unauthorized".into()),
            ),
            (
                404,
                r#"{"ok":false,"error_code":404,"description":"Not Found"}"#,
                ApiError::WrongToken("Not Found".into()),
            ),
            (
                404,
                r#"{"ok":false,"error_code":404,"description":"Not Found: method not found"}"#,
                refused(404, "Not Found: method not found"),
            ),
            (
                409,
                r#"{"ok":false,"error_code":409,"description":"Conflict: x"}"#,
                ApiError::Conflict("Conflict: x".into()),
            ),
            (
                429,
                r#"{"ok":false,"error_code":429,"description":"Too Many Requests: retry after 7","parameters":{"retry_after":7}}"#,
                ApiError::RetryAfter(Duration::from_secs(7)),
            ),
            (429, "<html>slow down</html>", ApiError::RetryAfter(USUAL_PAUSE)),
            (
                400,
                r#"{"ok":false,"error_code":400,"description":"Bad Request: group chat was upgraded to a supergroup chat","parameters":{"migrate_to_chat_id":-1001234567890}}"#,
                ApiError::Moved(-1_001_234_567_890),
            ),
            (
                400,
                r#"{"ok":false,"error_code":400,"description":"Bad Request: chat not found"}"#,
                refused(400, "Bad Request: chat not found"),
            ),
            (200, r#"{"ok":false,"error_code":400,"description":"Bad Request: x"}"#, refused(400, "Bad Request: x")),
            (403, r#"{"ok":false,"error_code":403,"description":"Forbidden: x"}"#, refused(403, "Forbidden: x")),
            (200, r#"{"ok":true}"#, ApiError::Unreadable("there is none".into())),
        ];
        for (status, body, expected) in table {
            assert_eq!(outcome(status, body).await, Err(expected), "{status} {body}");
        }
        assert_eq!(outcome(200, r#"{"ok":true,"result":{"id":1}}"#).await, Ok(json!({"id": 1})));
    }

    #[tokio::test]
    async fn a_broken_character_does_not_hide_the_answer() {
        let found = outcome(200, r#"{"ok":true,"result":["\ud83d half","whole"]}"#).await;
        assert_eq!(found, Ok(json!(["\u{fffd} half", "whole"])));
        assert_eq!(answer_of(b"{\"ok\":true,\"result\":\"\xf0\x9f\"}"), json!({"ok": true, "result": "\u{fffd}"}));
    }

    #[tokio::test]
    async fn what_is_no_answer_of_the_bot_api_says_nothing_about_the_deed() {
        for (status, body) in [
            (502, "<html><head><title>502 Bad Gateway</title></head></html>"),
            (500, r#"{"ok":false,"error_code":500,"description":"Internal Server Error"}"#),
            (200, "<html>login</html>"),
            (200, ""),
            (200, r#"{"ok":false}"#),
            (200, "[1]"),
            (401, "<html>proxy login</html>"),
            (404, "no such page"),
            (302, ""),
        ] {
            let outcome = outcome(status, body).await;
            assert!(matches!(outcome, Err(ApiError::Unknown(_))), "{status} {body}: {outcome:?}");
        }
        let (url, _tasks) = server(200, r#"{"ok":true,"result":{}}"#).await;
        let outcome: Result<Vec<Value>, _> = api(&url).call("getUpdates", &json!({})).await;
        assert!(matches!(outcome, Err(ApiError::Unreadable(_))), "{outcome:?}");
    }

    #[tokio::test]
    async fn a_server_that_is_not_there_was_not_reached_and_one_that_hangs_up_may_have_acted() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let api = api(&url);
        let nothing = json!({});
        let call = api.call::<_, Value>("getMe", &nothing);
        let hang_up = async {
            let (mut socket, _) = listener.accept().await.expect("a call");
            let mut some = [0_u8; 64];
            tokio::io::AsyncReadExt::read(&mut socket, &mut some).await.expect("a request");
        };
        let (outcome, ()) = tokio::join!(call, hang_up);
        assert!(matches!(outcome, Err(ApiError::Unknown(_))), "{outcome:?}");
        drop(listener);
        let outcome = api.call::<_, Value>("getMe", &json!({})).await;
        let Err(ApiError::Retry(text)) = outcome else { panic!("{outcome:?}") };
        assert!(!text.contains("AAF0"), "{text}");
    }

    #[tokio::test]
    async fn the_token_is_shown_nowhere() {
        let body = format!(r#"{{"ok":false,"error_code":400,"description":"cannot find /bot{TOKEN}/getMe\n\u0007"}}"#);
        let Err(error) = outcome(400, &body).await else { panic!("accepted") };
        assert!(!format!("{error:?} {error}").contains("AAF0"), "{error:?}");
        let description = "cannot find /bot[token]/getMe  ".to_owned();
        assert_eq!(error, ApiError::Refused { code: 400, description });
    }

    #[tokio::test]
    async fn a_call_ends_when_its_time_is_over() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let outcome: Result<Value, _> =
            api(&url).call_within(Duration::from_millis(50), "getUpdates", &json!({})).await;
        assert!(matches!(outcome, Err(ApiError::Unknown(_))), "{outcome:?}");
    }
}
