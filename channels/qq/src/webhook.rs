//! QQ's calls: who may call, what is signed, and an acknowledgement only for what is stored. Never signs what could be an
//! event (see `signature.rs`).

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use async_trait::async_trait;
use channel_api::{Accepted, ChannelContext, HttpEndpoint, HttpRequest, HttpResponse, IntakeError, Seldom};
use http::{HeaderName, Method, StatusCode, header};
use serde_json::{Value, json};
use tokio::{sync::oneshot, task::JoinSet};
use tracing::{debug, warn};

use crate::{Bot, inbound::Event, receive::Receiver};

/// The largest body, in bytes.
const BODY_LIMIT: usize = 1024 * 1024;
/// The longest time between QQ's signing and now: dedupe remembers much longer, and clocks may be wrong.
const OLDEST_MS: u64 = 24 * 60 * 60 * 1_000;
/// Events that are read at the same time.
const AT_ONCE: usize = 64;

const SIGNATURE: HeaderName = HeaderName::from_static("x-signature-ed25519");
const TIMESTAMP: HeaderName = HeaderName::from_static("x-signature-timestamp");
const APP_ID: HeaderName = HeaderName::from_static("x-bot-appid");

/// The route of one bot.
pub struct Webhook {
    bot: Arc<Bot>,
    /// Events that are being stored: QQ hangs up after some seconds, and a file may take longer.
    work: Mutex<JoinSet<()>>,
    /// How many signatures were asked for and not given: anybody can ask, and the log is not theirs to fill.
    not_signed: AtomicU64,
    turned_away: Seldom,
}

impl Webhook {
    pub fn new(bot: Arc<Bot>) -> Self {
        Self { bot, work: Mutex::default(), not_signed: AtomicU64::new(0), turned_away: Seldom::default() }
    }

    /// What a request is, if its sender may send it.
    fn admit(&self, ctx: &ChannelContext, request: &HttpRequest) -> Result<Value, Box<HttpResponse>> {
        if request.method != Method::POST {
            let answer = refusal(StatusCode::METHOD_NOT_ALLOWED, "POST only");
            return Err(Box::new(answer.with_header(header::ALLOW, "POST")));
        }
        if !matches!(request.path.as_str(), "" | "/") {
            return Err(Box::new(refusal(StatusCode::NOT_FOUND, "no such route")));
        }
        if request.body.len() > BODY_LIMIT {
            return Err(Box::new(refusal(StatusCode::PAYLOAD_TOO_LARGE, "too large")));
        }
        let encoding = text(request, &header::CONTENT_ENCODING);
        if encoding.is_some_and(|encoding| !encoding.eq_ignore_ascii_case("identity")) {
            return Err(Box::new(refusal(StatusCode::UNSUPPORTED_MEDIA_TYPE, "no encodings")));
        }
        if request.headers.get(&APP_ID).is_some_and(|id| id.as_bytes() != self.bot.app_id.as_bytes()) {
            return Err(Box::new(refusal(StatusCode::FORBIDDEN, "not for this bot")));
        }
        let signed = request.headers.contains_key(&SIGNATURE);
        if signed && !self.is_signed(ctx, request) {
            return Err(Box::new(refusal(StatusCode::UNAUTHORIZED, "unauthorized")));
        }
        let payload = std::str::from_utf8(&request.body).ok().and_then(channel_api::json::parse);
        match payload {
            // A validation may come unsigned; what it gets can do no harm.
            Some(payload) if signed || op(&payload) == Some(13) => Ok(payload),
            _ if !signed => Err(Box::new(refusal(StatusCode::UNAUTHORIZED, "unauthorized"))),
            _ => Err(Box::new(refusal(StatusCode::BAD_REQUEST, "no JSON"))),
        }
    }

    fn is_signed(&self, ctx: &ChannelContext, request: &HttpRequest) -> bool {
        let one = |name: &HeaderName| request.headers.get_all(name).iter().count() == 1;
        let (Some(signature), Some(time)) = (text(request, &SIGNATURE), text(request, &TIMESTAMP)) else {
            return false;
        };
        let seconds = time.parse::<i64>().ok().filter(|_| time.bytes().all(|byte| byte.is_ascii_digit()));
        let fresh = seconds.and_then(|seconds| seconds.checked_mul(1_000)).is_some_and(|ms| {
            // Seconds in all examples; milliseconds are as good.
            let now = ctx.clock.now_ms();
            [ms, ms / 1_000].iter().any(|ms| now.abs_diff(*ms) <= OLDEST_MS)
        });
        one(&SIGNATURE) && one(&TIMESTAMP) && fresh && self.bot.key.verifies(time, &request.body, signature)
    }

    fn validate(&self, payload: &Value) -> HttpResponse {
        let word = |key: &str| payload.get("d").and_then(|d| d.get(key)).and_then(Value::as_str).unwrap_or_default();
        let (token, time) = (word("plain_token"), word("event_ts"));
        match self.bot.key.answer(time, token) {
            Some(signature) => {
                HttpResponse::json(StatusCode::OK, &json!({ "plain_token": token, "signature": signature }))
            }
            None => {
                let count = self.not_signed.fetch_add(1, Ordering::Relaxed) + 1;
                let (code, what) =
                    ("qq_bad_validation", "someone asked for a signature that could be misused; it was not given");
                match count.is_power_of_two() {
                    true => warn!(code, count, "{what}"),
                    false => debug!(code, count, "{what}"),
                }
                refusal(StatusCode::FORBIDDEN, "not a validation")
            }
        }
    }

    /// Stores an event, even if QQ does not wait for it.
    async fn store(&self, ctx: &ChannelContext, payload: &Value) -> HttpResponse {
        let Some(event) = Event::of(payload) else { return refusal(StatusCode::BAD_REQUEST, "no event") };
        let (told, answer) = oneshot::channel();
        {
            let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
            while work.try_join_next().is_some() {}
            if work.len() >= AT_ONCE || ctx.shutdown.is_cancelled() {
                return busy(5);
            }
            let (bot, ctx) = (Arc::clone(&self.bot), ctx.clone());
            work.spawn(async move {
                let stored = tokio::select! {
                    stored = stored(&bot, &ctx, &event) => stored,
                    () = ctx.shutdown.cancelled() => busy(5),
                };
                let _ = told.send(stored);
            });
        }
        answer.await.unwrap_or_else(|_| busy(5))
    }
}

async fn stored(bot: &Bot, ctx: &ChannelContext, event: &Event) -> HttpResponse {
    ctx.pulse.beat();
    let receiver = Receiver { channel: &bot.id, api: &bot.api, me: &bot.me, windows: &bot.windows, ctx };
    let Some(said) = receiver.prepare(event).await else { return taken() };
    match receiver.offer(&said, None).await {
        Ok(Accepted::Full(pause)) => {
            failed(StatusCode::TOO_MANY_REQUESTS).with_header(header::RETRY_AFTER, &pause.as_secs().max(1).to_string())
        }
        Ok(_) => {
            receiver.confirm(&said).await;
            taken()
        }
        Err(IntakeError::Busy(pause)) => busy(pause.as_secs()),
        Err(error @ IntakeError::Unavailable(_)) => {
            warn!(%error, "an event of QQ could not be stored; QQ will send it again");
            busy(5)
        }
    }
}

#[async_trait]
impl HttpEndpoint for Webhook {
    fn body_limit(&self) -> usize {
        BODY_LIMIT
    }

    async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse {
        let payload = match self.admit(ctx, &request) {
            Ok(payload) => payload,
            Err(refusal) => {
                let status = refusal.status;
                if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)
                    && let Some(left_out) = self.turned_away.due(ctx.clock.monotonic())
                {
                    warn!(
                        code = "qq_turned_away",
                        left_out,
                        "a call of the webhook was turned away: its signature does not fit `app_secret`, it is too old, or \
                         it is for another `app_id`"
                    );
                }
                return *refusal;
            }
        };
        match op(&payload) {
            Some(13) => self.validate(&payload),
            Some(0) => self.store(ctx, &payload).await,
            Some(_) => taken(),
            None => refusal(StatusCode::BAD_REQUEST, "no op"),
        }
    }
}

fn op(payload: &Value) -> Option<i64> {
    payload.get("op").and_then(Value::as_i64)
}

fn text<'a>(request: &'a HttpRequest, name: &HeaderName) -> Option<&'a str> {
    request.headers.get(name)?.to_str().ok()
}

/// It is stored (or nothing to store).
fn taken() -> HttpResponse {
    HttpResponse::json(StatusCode::OK, &json!({ "op": 12, "d": 0 }))
}

/// It is not stored: QQ sends it again.
fn failed(status: StatusCode) -> HttpResponse {
    HttpResponse::json(status, &json!({ "op": 12, "d": 1 }))
}

fn busy(seconds: u64) -> HttpResponse {
    failed(StatusCode::SERVICE_UNAVAILABLE).with_header(header::RETRY_AFTER, &seconds.max(1).to_string())
}

fn refusal(status: StatusCode, why: &str) -> HttpResponse {
    HttpResponse::json(status, &json!({ "error": why }))
}
