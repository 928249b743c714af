//! Calls to the HTTP API of an implementation: one POST each, told apart by whether anything was sent.

use channel_api::Secret;
use std::time::Duration;

use http::{HeaderMap, HeaderValue, header};
use reqwest::StatusCode;
use serde_json::Value;
use url::Url;

use crate::{
    config::ConfigError,
    links::{CallError, Failure, outcome},
};

/// The longest answer that is read, in bytes.
const LONGEST: usize = 15 * 1024 * 1024;
/// How long one call may take at most, whatever its caller waits.
const WHOLE: Duration = Duration::from_secs(55);

/// Where calls go.
pub struct HttpApi {
    client: reqwest::Client,
    base: Url,
}

impl HttpApi {
    /// The API at `base`, which ends with a slash.
    ///
    /// # Errors
    /// [`ConfigError::Client`].
    pub fn new(base: Url, token: &Secret, http: reqwest::ClientBuilder) -> Result<Self, ConfigError> {
        let client = http
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .timeout(WHOLE)
            .default_headers(bearer(token))
            .build()
            .map_err(|error| ConfigError::Client(error.without_url().to_string()))?;
        Ok(Self { client, base })
    }

    /// Makes a call.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, action: &str, params: &Value) -> Result<Value, CallError> {
        let url = self.base.join(action).map_err(|error| CallError::NotSent(error.to_string()))?;
        let params = if params.is_object() { params.clone() } else { Value::Object(serde_json::Map::new()) };
        let mut answer = self.client.post(url).json(&params).send().await.map_err(|error| {
            let said = error.without_url();
            match said.is_connect() || said.is_builder() {
                true => CallError::NotSent(format!("the HTTP API cannot be reached: {said}")),
                false => CallError::Unknown(format!("the HTTP API broke off: {said}")),
            }
        })?;
        let status = answer.status();
        let refused = |words: &str| {
            Err(CallError::Failed(Failure { retcode: i64::from(status.as_u16()), words: words.to_owned() }))
        };
        match status {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return refused("the access_token is not right"),
            StatusCode::NOT_FOUND => return refused("no such action"),
            StatusCode::TOO_MANY_REQUESTS => return Err(CallError::NotSent("the HTTP API answered 429".to_owned())),
            status if status.is_server_error() => {
                return Err(CallError::Unknown(format!("the HTTP API answered {status}")));
            }
            _ => {}
        }
        let mut body = Vec::new();
        loop {
            match answer.chunk().await {
                Ok(Some(piece)) if body.len() + piece.len() <= LONGEST => body.extend_from_slice(&piece),
                Ok(Some(_)) => return Err(CallError::Unknown("the answer is too long".to_owned())),
                Ok(None) => break,
                Err(error) => return Err(CallError::Unknown(format!("the answer broke off: {}", error.without_url()))),
            }
        }
        let answer = std::str::from_utf8(&body).ok().and_then(channel_api::json::parse);
        match answer {
            Some(answer) if answer.is_object() => outcome(&answer).map_err(CallError::Failed),
            _ if status.is_success() => Err(CallError::Unknown("the answer cannot be read".to_owned())),
            _ => refused("the answer cannot be read"),
        }
    }
}

/// The header that carries the token; none where there is no token.
pub fn bearer(token: &Secret) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if !token.is_empty()
        && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
    {
        value.set_sensitive(true);
        headers.insert(header::AUTHORIZATION, value);
    }
    headers
}
