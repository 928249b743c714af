//! One call of the open platform: its token, its time limit, and what its answer means for the caller. Success and failure
//! are told by `code` in the body, whatever the HTTP status is. Knows nothing of messages. protocols.md §2.3.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use channel_api::{Clock, Secret};
use channel_socket::Network;
use futures_util::StreamExt;
use reqwest::{Client, Method, RequestBuilder, Response, StatusCode, header, multipart, redirect};
use serde_json::{Value, json};
use url::Url;

use crate::config::{Config, ConfigError};

/// How long a call may take.
const TIMEOUT: Duration = Duration::from_secs(20);
/// How long an upload or the head of a download may take.
const TRANSFER: Duration = Duration::from_secs(60);
/// How long a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read.
const ANSWER_BYTES: usize = 4 * 1024 * 1024;
/// A token is renewed when it lives no longer than this: from then on the platform gives a new one, and both hold. One
/// that came with less than twice as much is used for half of its time.
const RENEW_BEFORE: Duration = Duration::from_secs(30 * 60);
/// The pause after a limit that names none.
const USUAL_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause that is believed.
const LONGEST_PAUSE: Duration = Duration::from_secs(60 * 60);
/// The longest words of a refusal that are kept, in characters.
const WORDS: usize = 400;

/// The token is invalid or expired: a new one may pass.
const TOKEN_CODES: [i64; 4] = [99_991_663, 99_991_664, 99_991_665, 99_991_668];
/// Too fast: for the app, the tenant or the chat.
const LIMIT_CODES: [i64; 6] = [99_991_400, 11_232, 11_233, 11_247, 230_020, 300_313];
/// The app's id or secret is wrong.
const CREDENTIAL_CODES: [i64; 4] = [10_003, 10_012, 10_014, 10_015];
/// The app is switched off or not installed.
const APP_CODES: [i64; 4] = [99_991_662, 10_005, 10_013, 212_100];
/// A scope is missing.
pub const NO_SCOPE: i64 = 99_991_672;

/// An app's access to the open platform.
pub struct Api {
    client: Client,
    base: String,
    app_id: String,
    secret: Secret,
    clock: OnceLock<Arc<dyn Clock>>,
    token: Mutex<Option<Token>>,
    /// Held by the one who renews.
    renewing: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
struct Token {
    text: Secret,
    renew_at: Duration,
}

/// Why a call gave no result, named by what the caller does next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiError {
    /// The request never left: try again.
    #[error("Feishu was not reached: {0}")]
    Retry(String),
    /// The request left, and what came back (nothing, a 5xx, an HTML page) does not say whether it was done.
    #[error("no clear answer: {0}")]
    Unknown(String),
    /// Feishu asks to wait this long; nothing was done.
    #[error("Feishu asks to wait {0:?} ({1})")]
    RetryAfter(Duration, String),
    /// The app's id or secret is wrong: no call can work before they are changed.
    #[error("Feishu does not accept the app's id and secret: {0}")]
    Credentials(String),
    /// The app is switched off or not installed in the organisation.
    #[error("the app is switched off or not installed: {0}")]
    AppOff(String),
    /// A scope is missing; the words name it, with a link.
    #[error("a permission is missing: {0}")]
    NoScope(String),
    /// Feishu said no, and will say it again.
    #[error("{code}: {said}")]
    Refused {
        /// Its code.
        code: i64,
        /// Its words.
        said: String,
    },
}

impl ApiError {
    /// The code of a refusal.
    pub fn code(&self) -> Option<i64> {
        match self {
            Self::Refused { code, .. } => Some(*code),
            Self::NoScope(_) => Some(NO_SCOPE),
            _ => None,
        }
    }
}

/// A file to upload.
#[derive(Clone, Debug)]
pub struct Upload {
    /// The text fields.
    pub fields: Vec<(&'static str, String)>,
    /// The name of the field with the bytes.
    pub field: &'static str,
    /// The file's name.
    pub name: String,
    /// Its bytes.
    pub bytes: bytes::Bytes,
}

impl Api {
    /// The access that a checked config names.
    ///
    /// # Errors
    /// [`ConfigError`] when the address or the client is unusable.
    pub fn new(config: &Config, network: &Network) -> Result<Self, ConfigError> {
        let url = config.api()?;
        let client = network
            .http_to(&url)
            // The token goes to no other server.
            .redirect(redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("crawfish/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| ConfigError::Client(told(error)))?;
        Ok(Self {
            client,
            base: url.as_str().trim_end_matches('/').to_owned(),
            app_id: config.app_id.clone(),
            secret: config.app_secret.clone(),
            clock: OnceLock::new(),
            token: Mutex::default(),
            renewing: tokio::sync::Mutex::default(),
        })
    }

    /// Told once; before that a token is taken to live as long as this value.
    pub fn live_by(&self, clock: Arc<dyn Clock>) {
        let _ = self.clock.set(clock);
    }

    /// Whether calls go over TLS.
    pub fn is_secure(&self) -> bool {
        self.base.starts_with("https:")
    }

    /// The app's id.
    pub fn app_id(&self) -> &str {
        &self.app_id
    }

    /// GET.
    ///
    /// # Errors
    /// [`ApiError`], named by what the caller does next.
    pub async fn get(&self, path: &str) -> Result<Value, ApiError> {
        self.call(Method::GET, path, None).await
    }

    /// POST with JSON.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn post(&self, path: &str, body: &Value) -> Result<Value, ApiError> {
        self.call(Method::POST, path, Some(body)).await
    }

    /// Any method; the whole answer.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn call(&self, method: Method, path: &str, body: Option<&Value>) -> Result<Value, ApiError> {
        self.with_token(|token| {
            let request = self.request(method.clone(), path, TIMEOUT).bearer_auth(token);
            match body {
                Some(body) => json_body(request, body),
                None => request,
            }
        })
        .await
    }

    /// Uploads a file.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn upload(&self, path: &str, upload: &Upload) -> Result<Value, ApiError> {
        self.with_token(|token| {
            let length = upload.bytes.len() as u64;
            let body = reqwest::Body::from(upload.bytes.clone());
            let file = multipart::Part::stream_with_length(body, length).file_name(upload.name.clone());
            let mut form = multipart::Form::new();
            for (name, value) in &upload.fields {
                form = form.text(*name, value.clone());
            }
            self.request(Method::POST, path, TRANSFER).bearer_auth(token).multipart(form.part(upload.field, file))
        })
        .await
    }

    /// Downloads a file: an open answer whose body has not been read.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn download(&self, path: &str) -> Result<Response, ApiError> {
        for last in [false, true] {
            let token = self.token().await?;
            let response = sent(self.request(Method::GET, path, TRANSFER).bearer_auth(token.expose())).await?;
            let json = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
            let told_apart = response.headers().get(header::CONTENT_DISPOSITION).is_some();
            let json = json.is_some_and(|kind| kind.starts_with("application/json")) && !told_apart;
            if response.status().is_success() && !json {
                return Ok(response);
            }
            match self.judged(response).await {
                Ok(_) => return Err(ApiError::Unknown("an answer that is no file".to_owned())),
                Err(Judgement::Token(_)) if !last => self.forget(&token),
                Err(judgement) => return Err(judgement.into_error()),
            }
        }
        Err(ApiError::Unknown("the token is refused".to_owned()))
    }

    /// Asks for the address of a long connection.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn ws_endpoint(&self) -> Result<Value, ApiError> {
        let body = json!({ "AppID": self.app_id, "AppSecret": self.secret.expose() });
        let request = json_body(self.request(Method::POST, "/callback/ws/endpoint", TIMEOUT), &body);
        let response = sent(request).await?;
        self.judged(response).await.map_err(Judgement::into_error)
    }

    /// Whether the app's id and secret are accepted.
    ///
    /// # Errors
    /// As [`Self::get`].
    pub async fn check_credentials(&self) -> Result<(), ApiError> {
        self.token().await.map(|_| ())
    }

    async fn with_token(&self, request: impl Fn(&str) -> RequestBuilder) -> Result<Value, ApiError> {
        let token = self.token().await?;
        let refused = match self.judged(sent(request(token.expose())).await?).await {
            Ok(answer) => return Ok(answer),
            Err(Judgement::Token(said)) => said,
            Err(Judgement::Error(error)) => return Err(error),
        };
        tracing::debug!(said = refused, "Feishu refuses the token; asking for a new one");
        self.forget(&token);
        let token = self.token().await?;
        self.judged(sent(request(token.expose())).await?).await.map_err(Judgement::into_error)
    }

    /// A token that lives long enough; asked for by one caller at a time.
    async fn token(&self) -> Result<Secret, ApiError> {
        if let Some(token) = self.held() {
            return Ok(token);
        }
        let _renewing = self.renewing.lock().await;
        if let Some(token) = self.held() {
            return Ok(token);
        }
        let path = "/open-apis/auth/v3/tenant_access_token/internal";
        let body = json!({ "app_id": self.app_id, "app_secret": self.secret.expose() });
        let response = sent(json_body(self.request(Method::POST, path, TIMEOUT), &body)).await;
        // Asking for a token does nothing that anyone sees.
        let response = response.map_err(|error| match error {
            ApiError::Unknown(said) => ApiError::Retry(said),
            error => error,
        })?;
        let answer = self.judged(response).await.map_err(|judgement| match judgement.into_error() {
            ApiError::Unknown(said) => ApiError::Retry(said),
            error => error,
        })?;
        let text = answer.get("tenant_access_token").and_then(Value::as_str).filter(|text| !text.is_empty());
        let Some(text) = text else { return Err(ApiError::Retry("an answer without a token".to_owned())) };
        let seconds = answer.get("expire").and_then(Value::as_u64).unwrap_or(7_200).min(7_200);
        let life = Duration::from_secs(seconds);
        let renew_at = self.now() + life.saturating_sub(RENEW_BEFORE.min(life / 2));
        let token = Token { text: Secret::from(text), renew_at };
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.clone());
        Ok(token.text)
    }

    /// The token that is held and lives long enough.
    fn held(&self) -> Option<Secret> {
        let token = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
        (self.now() < token.renew_at).then_some(token.text)
    }

    fn forget(&self, used: &Secret) {
        let mut token = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        if token.as_ref().is_some_and(|token| token.text.expose() == used.expose()) {
            *token = None;
        }
    }

    fn now(&self) -> Duration {
        self.clock.get().map_or(Duration::ZERO, |clock| clock.monotonic())
    }

    fn request(&self, method: Method, path: &str, timeout: Duration) -> RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base)).timeout(timeout)
    }

    async fn judged(&self, response: Response) -> Result<Value, Judgement> {
        let status = response.status();
        let wait = pause(&response);
        match read(response).await {
            Ok(body) => self.judge(status, wait, &body),
            Err(error) => Err(Judgement::Error(ApiError::Unknown(error))),
        }
    }

    fn judge(&self, status: StatusCode, wait: Option<Duration>, body: &[u8]) -> Result<Value, Judgement> {
        let answer = serde_json::from_slice::<Value>(body)
            .ok()
            .or_else(|| channel_api::json::parse(&String::from_utf8_lossy(body)))
            .unwrap_or(Value::Null);
        let code = answer.get("code").and_then(Value::as_i64);
        let words = answer.get("msg").and_then(Value::as_str).unwrap_or_default();
        let said = self.shown(words);
        let error = |error| Err(Judgement::Error(error));
        if status == StatusCode::TOO_MANY_REQUESTS || code.is_some_and(|code| LIMIT_CODES.contains(&code)) {
            let lower = said.to_ascii_lowercase();
            // One SDK reads 230020 as "the message that is answered was recalled".
            if code == Some(230_020) && ["recall", "revoke", "withdraw"].iter().any(|word| lower.contains(word)) {
                return error(ApiError::Refused { code: 230_011, said });
            }
            let named = match code {
                Some(code) => format!("{code}: {said}"),
                None => format!("HTTP {}", status.as_u16()),
            };
            return error(ApiError::RetryAfter(wait.unwrap_or(USUAL_PAUSE).min(LONGEST_PAUSE), named));
        }
        match code {
            Some(0) if status.is_success() => Ok(answer),
            Some(code) if TOKEN_CODES.contains(&code) => Err(Judgement::Token(said)),
            Some(code) if CREDENTIAL_CODES.contains(&code) => error(ApiError::Credentials(format!("{code}: {said}"))),
            Some(code) if APP_CODES.contains(&code) => error(ApiError::AppOff(format!("{code}: {said}"))),
            Some(NO_SCOPE) => error(ApiError::NoScope(said)),
            Some(code) if code != 0 && !status.is_server_error() => error(ApiError::Refused { code, said }),
            Some(code) => error(ApiError::Unknown(format!("HTTP {} with code {code}: {said}", status.as_u16()))),
            None => error(ApiError::Unknown(format!("HTTP {} without an answer of Feishu", status.as_u16()))),
        }
    }

    /// Words of the other side, fit for a log: bounded, in one line, without the secret.
    fn shown(&self, text: &str) -> String {
        let text: String = text.chars().take(4 * WORDS).collect();
        let text = text.replace(self.secret.expose(), "[secret]");
        text.chars().take(WORDS).map(|c| if c.is_control() { ' ' } else { c }).collect()
    }
}

/// What an answer means, the token apart.
enum Judgement {
    Token(String),
    Error(ApiError),
}

impl Judgement {
    fn into_error(self) -> ApiError {
        match self {
            // Nothing was done with a token that is refused.
            Self::Token(said) => ApiError::Retry(format!("the token is refused: {said}")),
            Self::Error(error) => error,
        }
    }
}

fn json_body(request: RequestBuilder, body: &Value) -> RequestBuilder {
    request.header(header::CONTENT_TYPE, "application/json; charset=utf-8").body(body.to_string())
}

async fn sent(request: RequestBuilder) -> Result<Response, ApiError> {
    request.send().await.map_err(|error| match error.is_connect() || error.is_builder() {
        true => ApiError::Retry(told(error)),
        false => ApiError::Unknown(told(error)),
    })
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

/// The pause that a limit names, in seconds.
fn pause(response: &Response) -> Option<Duration> {
    let named = |name: &str| response.headers().get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    let seconds = named("x-ogw-ratelimit-reset").or_else(|| named("retry-after"))?;
    Some(Duration::from_secs(seconds.max(1)))
}

/// An error with its causes and without the address.
pub fn told(error: reqwest::Error) -> String {
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

/// A part of a path that may hold anything.
pub fn segment(text: &str) -> String {
    let mut url = Url::parse("http://x/").expect("it is one");
    if let Ok(mut segments) = url.path_segments_mut() {
        segments.clear().push(text);
    }
    url.path().trim_start_matches('/').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn api() -> Api {
        let config: Config = toml::from_str("app_id = 'cli_1'\napp_secret = 'SeCrEt9876543210'").expect("a config");
        Api::new(&config, &Network::new(None, None).expect("a network")).expect("an api")
    }

    fn judged(status: u16, body: &str) -> Result<Value, ApiError> {
        api().judge(StatusCode::from_u16(status).expect("a status"), None, body.as_bytes()).map_err(|judgement| {
            match judgement {
                Judgement::Token(said) => ApiError::Retry(format!("token: {said}")),
                Judgement::Error(error) => error,
            }
        })
    }

    #[test]
    fn every_answer_is_judged_by_its_code_whatever_the_status() {
        assert_eq!(judged(200, r#"{"code":0,"data":{}}"#), Ok(json!({"code": 0, "data": {}})));
        for status in [200, 400, 403] {
            let said = "Bot/User can NOT be out of the chat.";
            let body = json!({ "code": 230_002, "msg": said }).to_string();
            assert_eq!(judged(status, &body), Err(ApiError::Refused { code: 230_002, said: said.to_owned() }));
            for code in TOKEN_CODES {
                let found = judged(status, &json!({ "code": code, "msg": "invalid" }).to_string());
                assert_eq!(found, Err(ApiError::Retry("token: invalid".to_owned())), "{code}");
            }
        }
        assert!(matches!(judged(200, r#"{"code":10014,"msg":"app secret invalid"}"#), Err(ApiError::Credentials(_))));
        assert!(matches!(judged(400, r#"{"code":99991672,"msg":"x"}"#), Err(ApiError::NoScope(_))));
        for (status, body) in [
            (502, "<html>bad gateway</html>"),
            (200, "<html>login</html>"),
            (200, ""),
            (500, r#"{"code":2200,"msg":"x"}"#),
        ] {
            assert!(matches!(judged(status, body), Err(ApiError::Unknown(_))), "{status} {body}");
        }
    }

    #[test]
    fn limits_are_waits_in_every_shape() {
        for (status, body) in [
            (429, ""),
            (429, r#"{"code":99991400,"msg":"request trigger frequency limit"}"#),
            (200, r#"{"code":11232,"msg":"create message trigger rate limit"}"#),
            (400, r#"{"code":230020,"msg":"This operation triggers the frequency limit"}"#),
        ] {
            assert!(matches!(judged(status, body), Err(ApiError::RetryAfter(..))), "{status} {body}");
        }
        let recalled = judged(400, r#"{"code":230020,"msg":"the message was recalled"}"#);
        assert_eq!(recalled.expect_err("refused").code(), Some(230_011));
    }

    #[test]
    fn the_secret_is_shown_nowhere() {
        let found = judged(400, r#"{"code":1,"msg":"bad SeCrEt9876543210\n\u0007"}"#).expect_err("refused");
        assert!(!format!("{found:?} {found}").contains("SeCrEt"), "{found}");
        assert_eq!(segment("../a b/ü?x#"), "..%2Fa%20b%2F%C3%BC%3Fx%23");
    }
}
