//! Events that Feishu posts: told to be its own by signature, encryption and token, then left to `run`, which outlives the
//! request. Answered with 200 only after the gateway has stored them. protocols.md §2.1, §5.2.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use channel_api::{ChannelContext, HttpRequest, HttpResponse, Secret};
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use tracing::{debug, warn};

use crate::{config::Config, receive::Taken, seal};

/// The largest body, in bytes.
pub const BODY_LIMIT: usize = 1024 * 1024;
/// The most events that wait for `run`.
const QUEUE: usize = 256;
/// The longest challenge that is echoed, in characters.
const CHALLENGE_CHARS: usize = 512;

/// An event that waits for `run`, and who waits for its end.
pub type Job = (Value, oneshot::Sender<Taken>);

/// What makes a request Feishu's.
pub struct Door {
    encrypt_key: Option<Secret>,
    token: Option<Secret>,
    /// How many requests were turned away: anybody can make them, and the log is not theirs to fill.
    turned_away: AtomicU64,
    jobs: mpsc::Sender<Job>,
    /// For `run`.
    pub waiting: tokio::sync::Mutex<mpsc::Receiver<Job>>,
}

/// Why a request is turned away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// Not Feishu's. One answer for every reason.
    Unauthorized,
    /// Feishu's, and no event.
    Broken,
}

/// What a request is.
#[derive(Debug, PartialEq)]
enum Opened {
    /// The console asks whether somebody is there.
    Challenge(String),
    /// An event.
    Event(Value),
}

impl Door {
    /// The door of a checked config.
    pub fn new(config: &Config) -> Self {
        let (jobs, waiting) = mpsc::channel(QUEUE);
        Self {
            encrypt_key: config.encrypt_key.clone(),
            token: config.verification_token.clone(),
            turned_away: AtomicU64::new(0),
            jobs,
            waiting: tokio::sync::Mutex::new(waiting),
        }
    }

    /// Answers one request.
    pub async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse {
        if !matches!(request.path.as_str(), "" | "/") {
            return answer(StatusCode::NOT_FOUND, "no such address");
        }
        if request.method != Method::POST {
            return answer(StatusCode::METHOD_NOT_ALLOWED, "events are posted").with_header(header::ALLOW, "POST");
        }
        if request.body.len() > BODY_LIMIT {
            return answer(StatusCode::PAYLOAD_TOO_LARGE, "the body is too large");
        }
        let event = match self.open(&request.headers, &request.body) {
            Ok(Opened::Event(event)) => event,
            Ok(Opened::Challenge(challenge)) => {
                return HttpResponse::json(StatusCode::OK, &json!({ "challenge": challenge }));
            }
            Err(Refusal::Unauthorized) => {
                let count = self.turned_away.fetch_add(1, Ordering::Relaxed) + 1;
                let what = "a request that is not Feishu's was turned away (signature, token or encryption)";
                match count.is_power_of_two() {
                    true => warn!(count, "{what}"),
                    false => debug!(count, "{what}"),
                }
                return answer(StatusCode::UNAUTHORIZED, "not authorized");
            }
            Err(Refusal::Broken) => return answer(StatusCode::BAD_REQUEST, "the body is no event"),
        };
        let (done, taken) = oneshot::channel();
        if self.jobs.try_send((event, done)).is_err() {
            return later(Duration::from_secs(15));
        }
        let taken = tokio::select! {
            taken = taken => taken,
            () = ctx.shutdown.cancelled() => return later(Duration::from_secs(5)),
        };
        match taken {
            Ok(Taken::Safe(shown)) => HttpResponse::json(StatusCode::OK, &shown.unwrap_or_else(|| json!({}))),
            Ok(Taken::Again(pause)) => later(pause),
            Err(_) => later(Duration::from_secs(5)),
        }
    }

    fn open(&self, headers: &HeaderMap, body: &[u8]) -> Result<Opened, Refusal> {
        let Some(key) = &self.encrypt_key else {
            let event = json_of(body).ok_or(Refusal::Broken)?;
            return self.checked(event);
        };
        let key = key.expose();
        match self.signed(headers, key, body) {
            Some(true) => {
                let sealed = json_of(body).ok_or(Refusal::Broken)?;
                let plain = unsealed(key, &sealed).ok_or(Refusal::Unauthorized)?;
                self.checked(json_of(&plain).ok_or(Refusal::Broken)?)
            }
            Some(false) => Err(Refusal::Unauthorized),
            // The console's question may come without a signature. Whatever is wrong with anything else is not told: the
            // difference would open ciphertexts.
            None => {
                let plain = json_of(body).and_then(|sealed| unsealed(key, &sealed));
                let event = plain.and_then(|plain| json_of(&plain)).ok_or(Refusal::Unauthorized)?;
                match self.checked(event) {
                    Ok(Opened::Challenge(challenge)) => Ok(Opened::Challenge(challenge)),
                    _ => Err(Refusal::Unauthorized),
                }
            }
        }
    }

    /// Whether the signature is right; `None` when there is no trace of one.
    fn signed(&self, headers: &HeaderMap, key: &str, body: &[u8]) -> Option<bool> {
        let names = ["x-lark-signature", "x-lark-request-timestamp", "x-lark-request-nonce"];
        if names.iter().all(|name| !headers.contains_key(*name)) {
            return None;
        }
        let one = |name: &str| {
            let mut all = headers.get_all(name).iter();
            let value = all.next()?.to_str().ok()?;
            (all.next().is_none() && !value.is_empty()).then_some(value)
        };
        let [signature, timestamp, nonce] = names.map(one);
        let (Some(signature), Some(timestamp), Some(nonce)) = (signature, timestamp, nonce) else { return Some(false) };
        Some(seal::is_signed(key, timestamp, nonce, body, signature))
    }

    /// Compares the token, and tells a question of the console from an event.
    fn checked(&self, event: Value) -> Result<Opened, Refusal> {
        if !event.is_object() {
            return Err(Refusal::Broken);
        }
        let in_header = event.get("header").and_then(|header| header.get("token"));
        let given = in_header.or_else(|| event.get("token")).and_then(Value::as_str);
        if let Some(token) = &self.token
            && !given.is_some_and(|given| seal::is_same(token.expose(), given))
        {
            return Err(Refusal::Unauthorized);
        }
        if event.get("type").and_then(Value::as_str) == Some("url_verification") {
            let challenge = event.get("challenge").and_then(Value::as_str).ok_or(Refusal::Broken)?;
            return match challenge.chars().count() <= CHALLENGE_CHARS {
                true => Ok(Opened::Challenge(challenge.to_owned())),
                false => Err(Refusal::Broken),
            };
        }
        if event.get("schema").is_none() {
            debug!("an event of the old form; the console can switch it to version 2.0");
        }
        Ok(Opened::Event(event))
    }
}

fn unsealed(key: &str, sealed: &Value) -> Option<Vec<u8>> {
    seal::open(key, sealed.get("encrypt").and_then(Value::as_str)?)
}

fn json_of(bytes: &[u8]) -> Option<Value> {
    channel_api::json::parse(std::str::from_utf8(bytes).ok()?)
}

fn answer(status: StatusCode, text: &str) -> HttpResponse {
    HttpResponse::json(status, &json!({ "msg": text }))
}

fn later(pause: Duration) -> HttpResponse {
    let seconds = pause.as_secs().max(1).to_string();
    answer(StatusCode::SERVICE_UNAVAILABLE, "try again later").with_header(header::RETRY_AFTER, &seconds)
}
