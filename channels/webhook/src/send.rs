//! Posting to the bridge's callback: one signed request a try, and what its answer means. protocols.md §5.2.
//!
//! A try whose answer never came is repeated (`Retry`, not `Unknown`): the receiver knows a second copy by `webhook-id`,
//! which stays the same, so repeating is the safe way.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use channel_api::{Receipt, Said, SendError};
use futures_util::StreamExt;
use http::{HeaderMap, StatusCode, header};
use reqwest::{Client, ClientBuilder, Response, redirect};
use url::{Host, Url};

use crate::{
    auth,
    config::{Config, ConfigError},
    reach::{self, Resolver},
};

/// How long one try may take.
const TIMEOUT: Duration = Duration::from_secs(15);

/// How much of an answer is read.
const ANSWER_BYTES: usize = 64 * 1024;

/// The longest pause that a receiver may ask for.
const LONGEST_PAUSE: Duration = Duration::from_secs(2 * 60 * 60);

/// The bridge's receiver.
pub struct Callback {
    client: Client,
    url: Url,
    keys: Vec<Vec<u8>>,
    /// It answered 410: it wants no more.
    gone: AtomicBool,
}

impl Callback {
    /// The receiver that the config names, if any. `http` brings the proxy of the channel; a receiver on this machine
    /// or a private network is always reached directly. Through a proxy the proxy resolves names: then only names and
    /// literal addresses that are private by themselves are refused.
    pub fn new(config: &Config, http: ClientBuilder, keys: Vec<Vec<u8>>) -> Result<Option<Self>, ConfigError> {
        let Some(url) = config.callback()? else { return Ok(None) };
        let host = url.host().ok_or_else(|| ConfigError::BadCallback(Said::new("names no host", "没有主机名")))?;
        let guarded = match &host {
            Host::Domain(name) if !config.allow_private_callback => Some(*name),
            _ => None,
        };
        // HTTP_PROXY would carry even loopback requests to the proxy. dependencies.md §9.
        let http = if reach::is_private_host(&host) { http.no_proxy() } else { http };
        let client = http
            .redirect(redirect::Policy::none())
            .timeout(TIMEOUT)
            .connect_timeout(Duration::from_secs(10))
            .dns_resolver(std::sync::Arc::new(Resolver::new(guarded)))
            .user_agent(concat!("crawfish/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| ConfigError::Client(told(&error.without_url())))?;
        Ok(Some(Self { client, url, keys, gone: AtomicBool::new(false) }))
    }

    /// One try. `id` is the same for every try of one message; the time in the signature is this try's.
    pub async fn post(&self, id: &str, body: String, now_ms: i64) -> Result<Receipt, SendError> {
        if self.gone.load(Ordering::Relaxed) {
            return Err(disabled());
        }
        let now_s = now_ms.div_euclid(1_000);
        let request = self
            .client
            .post(self.url.clone())
            .header(header::CONTENT_TYPE, "application/json")
            .header("webhook-id", id)
            .header("webhook-timestamp", now_s)
            .header("webhook-signature", auth::sign(&self.keys, id, now_s, body.as_bytes()))
            .body(body);
        // The URL may hold a secret of the receiver: it stays out of errors.
        let response = request.send().await.map_err(|error| SendError::Retry(told(&error.without_url())))?;
        let status = response.status();
        match class(status, response.headers(), now_ms) {
            None => Ok(Receipt { platform_id: their_id(response).await }),
            Some(error) => {
                if status == StatusCode::GONE {
                    self.gone.store(true, Ordering::Relaxed);
                }
                Err(error)
            }
        }
    }
}

/// What an answer's status means; `None` is delivered.
fn class(status: StatusCode, headers: &HeaderMap, now_ms: i64) -> Option<SendError> {
    if status.is_success() {
        return None;
    }
    Some(match status.as_u16() {
        410 => disabled(),
        code @ 400..=499 if !matches!(code, 408 | 409 | 425 | 429) => {
            SendError::Refused(format!("the callback answered {code}"))
        }
        code => match retry_after(headers, now_ms) {
            Some(pause) => SendError::RetryAfter(pause),
            None => SendError::Retry(format!("the callback answered {code}")),
        },
    })
}

fn disabled() -> SendError {
    SendError::ChannelDown(
        "the callback answered 410 (gone) and is switched off until the channel is restarted".to_owned(),
    )
}

/// Seconds or an HTTP date.
fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    let pause = match value.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let then = jiff::fmt::rfc2822::parse(value).ok()?.timestamp().as_millisecond();
            Duration::from_millis(u64::try_from(then.saturating_sub(now_ms)).unwrap_or(0))
        }
    };
    Some(pause.min(LONGEST_PAUSE))
}

/// The receiver's own id of the message: `{"id":"…"}`. What cannot be read is no error, the message is delivered.
async fn their_id(response: Response) -> Option<String> {
    let mut answer = Vec::new();
    let mut chunks = response.bytes_stream();
    while let Some(Ok(chunk)) = chunks.next().await {
        if answer.len() + chunk.len() > ANSWER_BYTES {
            return None;
        }
        answer.extend_from_slice(&chunk);
    }
    let answer: serde_json::Value = serde_json::from_slice(&answer).ok()?;
    match answer.get("id")? {
        serde_json::Value::String(id) if !id.is_empty() && id.len() <= 512 => Some(id.clone()),
        serde_json::Value::Number(id) => Some(id.to_string()),
        _ => None,
    }
}

/// An error with its causes.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use channel_api::contract::SendClass;
    use http::HeaderValue;

    use super::*;

    #[test]
    fn an_answers_status_decides_what_delivery_does_next() {
        let table = [
            (200, SendClass::Sent),
            (204, SendClass::Sent),
            (301, SendClass::Retry),
            (304, SendClass::Retry),
            (400, SendClass::Refused),
            (401, SendClass::Refused),
            (404, SendClass::Refused),
            (408, SendClass::Retry),
            (409, SendClass::Retry),
            (410, SendClass::ChannelDown),
            (413, SendClass::Refused),
            (422, SendClass::Refused),
            (425, SendClass::Retry),
            (429, SendClass::Retry),
            (500, SendClass::Retry),
            (503, SendClass::Retry),
        ];
        for (status, expected) in table {
            let status = StatusCode::from_u16(status).expect("a status");
            let result = class(status, &HeaderMap::new(), 0).map_or(Ok(Receipt::default()), Err);
            assert_eq!(SendClass::of(&result), expected, "{status}");
        }
    }

    #[test]
    fn retry_after_is_honoured_in_both_forms_and_bounded() {
        let class_of = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::RETRY_AFTER, HeaderValue::from_str(value).expect("a value"));
            // Wed, 21 Oct 2015 07:28:00 GMT is 1445412480.
            let result = class(StatusCode::SERVICE_UNAVAILABLE, &headers, 1_445_412_470_000);
            SendClass::of(&result.map_or(Ok(Receipt::default()), Err))
        };
        assert_eq!(class_of("7"), SendClass::RetryAfter(Duration::from_secs(7)));
        assert_eq!(class_of("Wed, 21 Oct 2015 07:28:00 GMT"), SendClass::RetryAfter(Duration::from_secs(10)));
        assert_eq!(class_of("Wed, 21 Oct 2015 07:27:00 GMT"), SendClass::RetryAfter(Duration::ZERO));
        assert_eq!(class_of("99999999"), SendClass::RetryAfter(LONGEST_PAUSE));
        assert_eq!(class_of("soon"), SendClass::Retry);
    }
}
