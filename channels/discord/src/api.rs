//! One call of Discord's REST API, and what its answer means for the caller. Knows nothing of events or messages; never
//! shows the token.
//!
//! Not serenity's own client: that one sleeps through 429s without a bound and hides whether bytes left. What a 429 says is
//! handed to delivery, which keeps it over a restart (guarantees.md G13).

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use channel_api::{Clock, Secret};
use channel_socket::Network;
use futures_util::StreamExt;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header, multipart, redirect};
use serde_json::Value;
use url::Url;

use crate::config::{Config, ConfigError};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long a call with a file may take.
const FILE_TIMEOUT: Duration = Duration::from_secs(90);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const ANSWER_BYTES: usize = 16 * 1024 * 1024;
/// The pause after a 429 that names none.
const USUAL_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause that is believed.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// The longest words of a refusal that are kept, in characters.
const WORDS_CHARS: usize = 300;

/// A bot's access to the REST API.
pub struct Api {
    client: Client,
    base: Url,
    token: Secret,
    clock: OnceLock<Arc<dyn Clock>>,
    /// Until when Discord wants no call at all, on the monotonic clock.
    silence: Mutex<Duration>,
}

/// Why a call gave no result, named by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request never left: try again.
    #[error("Discord was not reached: {0}")]
    Retry(String),
    /// The request left, and what came back (nothing, a 5xx, an HTML page) does not say whether it was done.
    #[error("no clear answer: {0}")]
    Unknown(String),
    /// Discord asks to wait this long; nothing was done.
    #[error("Discord asks to wait {0:?}")]
    RetryAfter(Duration),
    /// The token is wrong or was reset: no call can work before it is changed.
    #[error("Discord does not accept the token: Developer Portal → your application → Bot → Reset Token")]
    WrongToken,
    /// Discord said no, and will say it again.
    #[error("{status} ({code}): {words}")]
    Refused {
        /// The HTTP status.
        status: u16,
        /// Discord's own code, e.g. 10008; 0 without one.
        code: u64,
        /// Its words.
        words: String,
    },
}

/// A file to send.
pub struct File {
    /// Its name.
    pub name: String,
    /// Its media type.
    pub mime: Option<String>,
    /// What is in it.
    pub bytes: Bytes,
}

impl Api {
    /// The access that a checked config names.
    ///
    /// # Errors
    /// [`ConfigError`] when the address or the client is unusable.
    pub fn new(config: &Config, network: &Network) -> Result<Self, ConfigError> {
        let base = config.api()?;
        let client = network
            .http_to(&base)
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("DiscordBot (crawfish, ", env!("CARGO_PKG_VERSION"), ")"))
            .build()
            .map_err(|error| ConfigError::Client(told(error)))?;
        Ok(Self { client, base, token: config.token.clone(), clock: OnceLock::new(), silence: Mutex::default() })
    }

    /// From now on a pause that Discord wants of all calls is kept.
    pub fn keep_time(&self, clock: Arc<dyn Clock>) {
        let _ = self.clock.set(clock);
    }

    /// Calls `path` (it begins with `/`; ids in it are checked by the caller) with a JSON body, or without one.
    ///
    /// # Errors
    /// [`ApiError`], named by what the caller does next.
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ApiError> {
        let request = self.request(method, path)?.timeout(TIMEOUT);
        self.run(match body {
            Some(body) => request.json(body),
            None => request,
        })
        .await
    }

    /// The same with a file beside the JSON.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub async fn call_with_file(
        &self,
        method: Method,
        path: &str,
        body: &Value,
        file: File,
    ) -> Result<Value, ApiError> {
        let length = file.bytes.len() as u64;
        let part = || multipart::Part::stream_with_length(file.bytes.clone(), length).file_name(file.name.clone());
        let part = match &file.mime {
            Some(mime) => part().mime_str(mime).unwrap_or_else(|_| part()),
            None => part(),
        };
        let form = multipart::Form::new().text("payload_json", body.to_string()).part("files[0]", part);
        self.run(self.request(method, path)?.timeout(FILE_TIMEOUT).multipart(form)).await
    }

    /// Opens a file that came with a message: Discord's own store needs no token, and gets none.
    ///
    /// # Errors
    /// A few plain words.
    pub async fn download(&self, url: &str) -> Result<Response, String> {
        let url = Url::parse(url).map_err(|_| "its address is none".to_owned())?;
        if !self.is_store(&url) {
            return Err("it is not in Discord's store".to_owned());
        }
        match self.client.get(url).timeout(FILE_TIMEOUT).send().await {
            Ok(response) if response.status() == StatusCode::OK => Ok(response),
            Ok(response) => Err(format!("Discord's store answered {}", response.status().as_u16())),
            Err(error) => Err(told(error)),
        }
    }

    /// Whether an address is one of Discord's file servers, or of the server that stands for Discord.
    fn is_store(&self, url: &Url) -> bool {
        let host = url.host_str().unwrap_or_default();
        let discord = url.scheme() == "https"
            && url.port().is_none()
            && ["cdn.discordapp.com", "media.discordapp.net", "cdn.discord.com"].contains(&host);
        discord || url.origin() == self.base.origin()
    }

    fn request(&self, method: Method, path: &str) -> Result<RequestBuilder, ApiError> {
        if let Some(pause) = self.pause() {
            return Err(ApiError::RetryAfter(pause));
        }
        let url = format!("{}{path}", self.base.as_str().trim_end_matches('/'));
        let mut token =
            header::HeaderValue::try_from(format!("Bot {}", self.token.expose())).map_err(|_| ApiError::WrongToken)?;
        token.set_sensitive(true);
        Ok(self.client.request(method, url).header(header::AUTHORIZATION, token))
    }

    async fn run(&self, request: RequestBuilder) -> Result<Value, ApiError> {
        let response = request.send().await.map_err(|error| match error.is_connect() || error.is_builder() {
            true => ApiError::Retry(told(error)),
            false => ApiError::Unknown(told(error)),
        })?;
        let status = response.status();
        let asked = seconds(response.headers().get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()));
        let global = response.headers().contains_key("x-ratelimit-global");
        let answer = match read(response).await {
            Ok(body) => answer_of(&body),
            Err(error) if status.is_success() => return Err(ApiError::Unknown(error)),
            Err(_) => Value::Null,
        };
        if status.is_success() {
            return Ok(answer);
        }
        if status == StatusCode::TOO_MANY_REQUESTS {
            let named = answer.get("retry_after").and_then(Value::as_f64);
            let named = named.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            let pause = named.or(asked).unwrap_or(USUAL_PAUSE).min(LONGEST_PAUSE);
            if global || answer.get("global").and_then(Value::as_bool) == Some(true) {
                self.be_silent(pause);
            }
            return Err(ApiError::RetryAfter(pause));
        }
        let words = self.shown(answer.get("message").and_then(Value::as_str).unwrap_or_default());
        // Only a JSON answer is Discord's own no.
        if status.is_server_error() || !status.is_client_error() || !answer.is_object() {
            return Err(ApiError::Unknown(format!("HTTP {} {words}", status.as_u16()).trim_end().to_owned()));
        }
        if status == StatusCode::UNAUTHORIZED && answer.get("code").and_then(Value::as_u64).unwrap_or(0) == 0 {
            return Err(ApiError::WrongToken);
        }
        let code = answer.get("code").and_then(Value::as_u64).unwrap_or(0);
        Err(ApiError::Refused { status: status.as_u16(), code, words })
    }

    fn pause(&self) -> Option<Duration> {
        let until = *self.silence.lock().unwrap_or_else(PoisonError::into_inner);
        until.checked_sub(self.clock.get()?.monotonic()).filter(|rest| !rest.is_zero())
    }

    fn be_silent(&self, pause: Duration) {
        if let Some(clock) = self.clock.get() {
            let mut silence = self.silence.lock().unwrap_or_else(PoisonError::into_inner);
            *silence = (clock.monotonic() + pause).max(*silence);
        }
    }

    /// Words of the other side, fit for a log: bounded, in one line, without the token.
    fn shown(&self, text: &str) -> String {
        let text: String = text.chars().take(4 * WORDS_CHARS).collect();
        let text = text.replace(self.token.expose(), "[token]");
        text.chars().take(WORDS_CHARS).map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

fn seconds(text: Option<&str>) -> Option<Duration> {
    Duration::try_from_secs_f64(text?.trim().parse().ok()?).ok()
}

/// An answer as JSON, `Null` when it is none.
fn answer_of(body: &[u8]) -> Value {
    serde_json::from_slice(body)
        .unwrap_or_else(|_| channel_api::json::parse(&String::from_utf8_lossy(body)).unwrap_or(Value::Null))
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

/// An error with its causes and without the address, which may hold a token of an interaction.
pub(crate) fn told(error: reqwest::Error) -> String {
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
