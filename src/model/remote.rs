//! A model behind an HTTP API: tries and pauses, time limits, the breaker, a free place, plain errors. Knows no wire
//! format: that is a [`Wire`]'s.
//!
//! guarantees.md G12, security.md row 44, bad-inputs.md 61–63, dependencies.md §9.

use std::{
    collections::VecDeque,
    net::IpAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use channel_api::Clock;
use futures_util::{Stream, StreamExt as _};
use http::{HeaderMap, StatusCode};
use reqwest::Url;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    Cause, Finish, Model, ModelError, ModelRequest, ModelResponse, Progress, Waiting,
    cause::{What, bounded},
    classify::{Class, classify, plain},
    openai::{request_id, trouble_in},
    quirks::Quirks,
    sse::{Decoder, Event},
};
use crate::secrets::Redactor;

/// A wire format: requests to bytes, answers to responses. Pure.
pub(super) trait Wire: Send + Sync + 'static {
    /// The body of a request.
    fn body(&self, request: &ModelRequest) -> Vec<u8>;
    /// Reads one answer.
    fn reader(&self) -> Box<dyn Reader>;
}

/// An answer while it comes.
pub(super) trait Reader: Send {
    /// Takes the next event of a stream.
    fn event(&mut self, event: &Event, progress: &dyn Progress) -> Result<(), Trouble>;
    /// Takes a whole answer that came instead of a stream.
    fn whole(&mut self, body: &[u8], progress: &dyn Progress) -> Result<(), Trouble>;
    /// Nothing more will come.
    fn is_done(&self) -> bool;
    /// The answer itself is over; a few words about it may follow.
    fn has_ended(&self) -> bool;
    /// There is text worth keeping.
    fn has_text(&self) -> bool;
    /// Something of an answer came, were it only a thought.
    fn has_begun(&self) -> bool;
    /// The response; [`Finish::Cut`], without calls, when it is not whole.
    fn finish(self: Box<Self>, end: End) -> ModelResponse;
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// As it should.
    Clean,
    /// In the middle.
    Broken,
}

/// An error a provider told of inside an answer.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Trouble {
    /// The HTTP status it stands for, where it says so.
    pub status: Option<u16>,
    /// Its words, raw.
    pub text: String,
    /// The provider's id of the request.
    pub request_id: Option<String>,
}

/// The time limits of G12.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Until the head of the answer.
    pub first_byte: Duration,
    /// Between two pieces.
    pub idle: Duration,
    /// Of a call with all its tries.
    pub total: Duration,
}

pub(super) const CONNECT: Duration = Duration::from_secs(10);
pub(super) const IDLE: Duration = Duration::from_secs(90);
pub(super) const TOTAL: Duration = Duration::from_secs(600);
/// How long a call goes on before the caller decides.
struct Patience {
    tries: u32,
    /// The longest pause a provider may ask for.
    longest_pause: Duration,
}

const PATIENT: Patience = Patience { tries: 4, longest_pause: Duration::from_secs(120) };
/// There is another model to ask.
const HURRIED: Patience = Patience { tries: 2, longest_pause: Duration::from_secs(2) };
/// A pause that the person who waits hears of.
const WORTH_TELLING: Duration = Duration::from_secs(3);
/// What a provider can ask a caller to wait at most.
const LONGEST_ASKED: Duration = Duration::from_secs(3600);
const SLOW: Duration = Duration::from_secs(30);
/// How long the words after the end of an answer may take (usage, `[DONE]`).
const AFTERWORDS: Duration = Duration::from_secs(5);
const MAX_WHOLE: usize = 16 << 20;
const MAX_STREAM: usize = 64 << 20;
const MAX_ERROR: usize = 64 << 10;

/// Where providers write their id of a request; the first that is there counts. The last four are DeepSeek's, SiliconFlow's,
/// Moonshot's and OpenRouter's.
const REQUEST_IDS: [&str; 7] = [
    "x-request-id",
    "request-id",
    "x-dashscope-request-id",
    "x-ds-trace-id",
    "x-siliconcloud-trace-id",
    "msh-request-id",
    "x-generation-id",
];

/// A model behind an HTTP API.
pub(super) struct Remote {
    pub name: String,
    /// The model as the provider names it.
    pub model: String,
    pub quirks: Quirks,
    pub sees: bool,
    pub context_tokens: Option<u32>,
    pub clock: Arc<dyn Clock>,
    pub client: reqwest::Client,
    pub url: Url,
    /// Among them the key.
    pub headers: HeaderMap,
    pub wire: Box<dyn Wire>,
    pub limits: Limits,
    pub slots: Semaphore,
    pub breaker: Arc<Breaker>,
    pub redactor: Redactor,
}

/// One call with all its tries.
struct Call<'a> {
    deadline: Duration,
    slow_at: Option<Duration>,
    progress: &'a Shown<'a>,
    cancel: &'a CancellationToken,
}

/// Why a wait was given up.
enum Stop {
    Cancelled,
    Limit,
    Total,
}

/// A try that failed.
struct Failure {
    error: ModelError,
    /// Another try makes sense.
    again: bool,
    /// It asked to wait this long.
    after: Option<Duration>,
    /// It says that the provider is ill.
    ill: bool,
}

impl Failure {
    fn last(error: ModelError) -> Self {
        Self { error, again: false, after: None, ill: false }
    }

    fn ill(what: What) -> Self {
        Self::ill_because(Cause::new(what))
    }

    /// More than an answer can be. It is this request's trouble: asked again it would flood again, and others are served.
    fn flood() -> Self {
        Self::last(ModelError::Fatal(Cause::new(What::TooMuch)))
    }

    fn ill_because(cause: Cause) -> Self {
        Self { error: ModelError::Retry(cause), again: true, after: None, ill: true }
    }
}

#[async_trait]
impl Model for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn context_tokens(&self) -> Option<u32> {
        self.context_tokens
    }

    fn sees(&self) -> bool {
        self.sees
    }

    async fn complete(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        self.ask(request, progress, cancel, &PATIENT).await
    }

    async fn complete_soon(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        self.ask(request, progress, cancel, &HURRIED).await
    }
}

impl Remote {
    async fn ask(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
        patience: &Patience,
    ) -> Result<ModelResponse, ModelError> {
        let body = Bytes::from(self.wire.body(request));
        let now = self.clock.monotonic();
        let shown = Shown { progress, shown: AtomicBool::new(false) };
        let mut call = Call { deadline: now + self.limits.total, slow_at: Some(now + SLOW), progress: &shown, cancel };
        let mut tries = 0;
        let mut empty = false;
        let mut last = None;
        loop {
            tries += 1;
            let slot = match self.wait(self.slots.acquire(), self.limits.total, &mut call).await {
                Ok(Ok(slot)) => slot,
                Err(Stop::Cancelled) => return Err(ModelError::Cancelled),
                _ => return Err(ModelError::Retry(Cause::new(What::Full))),
            };
            let pass = match (self.breaker.pass(self.clock.monotonic()), last.take()) {
                (Ok(pass), _) => pass,
                // What this call itself found out is its answer; only who was not let in at all is told to wait.
                (Err(_), Some(failed)) => return Err(failed),
                (Err(wait), None) => return Err(ModelError::Resting(wait)),
            };
            let result = self.attempt(body.clone(), &mut call).await;
            drop(slot);
            if !matches!(result, Err(Failure { error: ModelError::Cancelled, .. })) {
                pass.settle(matches!(result, Err(Failure { ill: true, .. })), self.clock.monotonic());
            }
            let failure = match result {
                Ok(mut response) if !is_empty(&response) => {
                    response.usage = response.usage.or_estimated(request, &response);
                    return Ok(response);
                }
                Ok(_) => {
                    // Twice nothing is an answer of a kind: said honestly, not asked for ever. bad-inputs.md 61.
                    let why = Cause::new(What::Nothing);
                    let error = if empty { ModelError::Fatal(why) } else { ModelError::Retry(why) };
                    Failure {
                        error,
                        again: !std::mem::replace(&mut empty, true),
                        after: Some(Duration::ZERO),
                        ill: false,
                    }
                }
                Err(failure) => failure,
            };
            tracing::debug!(model = self.name, tries, error = %failure.error, "a call to the model failed");
            let pause = failure.after.unwrap_or_else(|| jitter(tries));
            let out_of_time = self.clock.monotonic() + pause >= call.deadline;
            if !failure.again || tries == patience.tries || pause > patience.longest_pause || out_of_time {
                return Err(match failure.after {
                    Some(after) if failure.again && after > Duration::ZERO => {
                        ModelError::RetryAfter(after.min(LONGEST_ASKED))
                    }
                    _ => failure.error,
                });
            }
            shown.reset();
            if tries == 2 || pause >= WORTH_TELLING {
                shown.waiting(Waiting::Again);
            }
            match self.wait(self.clock.sleep(pause), pause + SLOW, &mut call).await {
                Ok(()) => {}
                Err(Stop::Cancelled) => return Err(ModelError::Cancelled),
                Err(_) => return Err(failure.error),
            }
            last = Some(failure.error);
        }
    }
}

impl Remote {
    /// One try.
    async fn attempt(&self, body: Bytes, call: &mut Call<'_>) -> Result<ModelResponse, Failure> {
        let sent = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body).send();
        let response = match self.wait(sent, self.limits.first_byte, call).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => return Err(self.broken(error)),
            Err(stop) => return Err(given_up(stop)),
        };
        let status = response.status();
        let id = REQUEST_IDS.iter().find_map(|name| response.headers().get(*name)?.to_str().ok()).map(request_id);
        let told = |failure: Failure| Failure { error: failure.error.of_request(id.as_deref()), ..failure };
        if !status.is_success() {
            let after = retry_after(response.headers(), self.clock.now_ms());
            let body = self.read_some(response, call).await?;
            return Err(told(self.refusal(status, after, &body)));
        }
        let mut response = self.read(response.bytes_stream(), call).await.map_err(told)?;
        response.request_id = id.or(response.request_id);
        Ok(response)
    }

    /// Reads an answer: a stream, or the whole answer that some servers send although a stream was asked for.
    async fn read(
        &self,
        mut stream: impl Stream<Item = reqwest::Result<Bytes>> + Unpin,
        call: &mut Call<'_>,
    ) -> Result<ModelResponse, Failure> {
        let mut reader = self.wire.reader();
        let mut body = BytesMut::new();
        let mut decoder = None::<Decoder>;
        let mut events = Vec::new();
        let mut seen = 0;
        let mut failed = None;
        while !reader.is_done() {
            let limit = if reader.has_ended() { AFTERWORDS } else { self.limits.idle };
            let chunk = match self.wait(stream.next(), limit, call).await {
                Ok(Some(Ok(chunk))) => chunk,
                Ok(None) => break,
                Ok(Some(Err(error))) => {
                    failed = Some(self.broken(error));
                    break;
                }
                Err(Stop::Cancelled) => return Err(given_up(Stop::Cancelled)),
                Err(stop) => {
                    failed = Some(given_up(stop));
                    break;
                }
            };
            seen += chunk.len();
            if seen > MAX_STREAM || body.len() > MAX_WHOLE {
                failed = Some(Failure::flood());
                break;
            }
            if decoder.is_none() {
                body.extend_from_slice(&chunk);
                match first_character(&body) {
                    None => continue,
                    // JSON at once, or a web page: nothing can be read before it is whole.
                    Some(b'{' | b'[' | b'<') => continue,
                    Some(_) => decoder = Some(Decoder::default()),
                }
            }
            let chunk = if body.is_empty() { chunk } else { body.split().freeze() };
            let too_long = decoder.as_mut().is_some_and(|decoder| decoder.push(&chunk, &mut events).is_err());
            for event in events.drain(..) {
                if let Err(trouble) = reader.event(&event, call.progress) {
                    failed = Some(self.told(trouble));
                    break;
                }
            }
            if too_long {
                failed = failed.or_else(|| Some(Failure::flood()));
            }
            if failed.is_some() {
                break;
            }
        }
        if failed.is_none() && !reader.is_done() {
            let rest = match decoder {
                Some(decoder) => match decoder.finish() {
                    Ok(Some(event)) => reader.event(&event, call.progress),
                    _ => Ok(()),
                },
                None if first_character(&body) == Some(b'<') => {
                    return Err(Failure::ill(What::WebPage));
                }
                None if first_character(&body).is_none() => Ok(()),
                None => reader.whole(&body, call.progress),
            };
            failed = rest.err().map(|trouble| self.told(trouble));
        }
        let (has_text, has_ended) = (reader.has_text(), reader.has_ended());
        let has_begun = reader.has_begun();
        let end = if failed.is_some() { End::Broken } else { End::Clean };
        let mut response = reader.finish(end);
        match failed {
            // It was over before the connection was.
            Some(_) if has_ended && !is_empty(&response) => Ok(response),
            Some(failure) if has_text => {
                if matches!(failure.error, ModelError::Refused(_)) {
                    response.finish = Finish::Filtered;
                }
                Ok(response)
            }
            Some(failure) => Err(failure),
            // The connection was closed in a thought or in the arguments of a call, as if that were the end.
            None if response.finish == Finish::Cut && has_begun && !has_text => Err(Failure::ill(What::Broke)),
            None if response.finish == Finish::Filtered && !has_text && response.calls.is_empty() => {
                Err(Failure::last(ModelError::Refused(Cause::new(What::Filtered))))
            }
            None => Ok(response),
        }
    }

    /// The beginning of an error's body.
    async fn read_some(&self, response: reqwest::Response, call: &mut Call<'_>) -> Result<Bytes, Failure> {
        let mut stream = response.bytes_stream();
        let mut body = BytesMut::new();
        while body.len() < MAX_ERROR {
            match self.wait(stream.next(), CONNECT, call).await {
                Ok(Some(Ok(chunk))) => body.extend_from_slice(&chunk[..chunk.len().min(MAX_ERROR - body.len())]),
                Err(Stop::Cancelled) => return Err(given_up(Stop::Cancelled)),
                _ => break,
            }
        }
        Ok(body.freeze())
    }

    /// Waits for `future`, at most `limit`; tells once that the provider is slow.
    async fn wait<T>(&self, future: impl Future<Output = T>, limit: Duration, call: &mut Call<'_>) -> Result<T, Stop> {
        let end = self.clock.monotonic() + limit;
        let mut future = std::pin::pin!(future);
        loop {
            let now = self.clock.monotonic();
            let next = end.min(call.deadline).min(call.slow_at.unwrap_or(Duration::MAX));
            tokio::select! {
                biased;
                () = call.cancel.cancelled() => return Err(Stop::Cancelled),
                output = &mut future => return Ok(output),
                () = self.clock.sleep(next.saturating_sub(now)) => {
                    let now = self.clock.monotonic();
                    if now >= call.deadline {
                        return Err(Stop::Total);
                    }
                    if now >= end {
                        return Err(Stop::Limit);
                    }
                    if call.slow_at.is_some_and(|at| now >= at) {
                        call.slow_at = None;
                        if !call.progress.shown.load(Ordering::Relaxed) {
                            call.progress.waiting(Waiting::Slow);
                        }
                    }
                }
            }
        }
    }

    /// A connection that failed. The address, which may hold a key, is left out.
    fn broken(&self, error: reqwest::Error) -> Failure {
        let connecting = error.is_connect();
        let refused = std::iter::successors(std::error::Error::source(&error), |error| error.source())
            .filter_map(|error| error.downcast_ref::<std::io::Error>())
            .any(|error| error.kind() == std::io::ErrorKind::ConnectionRefused);
        let error = error.without_url();
        let mut source: &dyn std::error::Error = &error;
        while let Some(inner) = source.source() {
            source = inner;
        }
        let why = self.clean(&source.to_string());
        let host = self.url.host_str().unwrap_or_default();
        let port = self.url.port_or_known_default().unwrap_or_default();
        let what = match connecting {
            true if refused && privacy(host) == Privacy::Loopback => {
                What::NotRunning(format!("{host}:{port}"), self.quirks.ollama)
            }
            true => What::Unreachable(host.to_owned()),
            false => What::Broke,
        };
        Failure::ill_because(Cause::new(what).saying(why))
    }

    /// An answer with a status that is no success.
    fn refusal(&self, status: StatusCode, after: Option<Duration>, body: &[u8]) -> Failure {
        let text = String::from_utf8_lossy(body);
        let trouble = match serde_json::from_str::<Value>(text.trim()) {
            Ok(value) => trouble_in(&value, true).unwrap_or_default(),
            Err(_) => Trouble { text: text.into_owned(), ..Trouble::default() },
        };
        self.judge(status.as_u16(), after, &trouble)
    }

    /// An error inside an answer that began well.
    fn told(&self, trouble: Trouble) -> Failure {
        self.judge(trouble.status.unwrap_or(200), None, &trouble)
    }

    fn judge(&self, status: u16, after: Option<Duration>, trouble: &Trouble) -> Failure {
        let section = || self.name.clone();
        let with = |what: What| {
            let mut cause = Cause::new(what).saying(self.clean(&trouble.text));
            cause.of_request(trouble.request_id.as_deref());
            cause
        };
        match classify(status, &trouble.text, self.quirks.quota_is_rate) {
            Class::TooLong => Failure::last(ModelError::TooLong(with(What::Status(status)))),
            Class::Order => Failure::last(ModelError::Order(with(What::Status(status)))),
            Class::Refused => Failure::last(ModelError::Refused(with(What::Filtered))),
            // What a provider says of a wrong key may hold half of it.
            Class::Key => Failure::last(ModelError::Fatal(with(What::Key(section(), status)).saying(String::new()))),
            Class::Denied => Failure::last(ModelError::Fatal(with(What::Denied(section(), status)))),
            Class::Money => Failure::last(ModelError::Fatal(with(What::Money))),
            Class::Missing if self.quirks.ollama && trouble.text.contains("not found") => {
                Failure::last(ModelError::Fatal(with(What::NotPulled(self.model.clone()))))
            }
            Class::Missing => Failure::last(ModelError::Fatal(with(What::Missing(section(), status)))),
            Class::Wrong => Failure::last(ModelError::Fatal(with(What::Status(status)))),
            Class::Busy => Failure { error: ModelError::Retry(with(What::Rate)), again: true, after, ill: false },
            Class::Ill => Failure { after, ..Failure::ill_because(with(What::Status(status))) },
        }
    }

    fn clean(&self, raw: &str) -> String {
        bounded(&self.redactor.redact(&plain(raw)), 500)
    }
}

fn given_up(stop: Stop) -> Failure {
    match stop {
        Stop::Cancelled => Failure::last(ModelError::Cancelled),
        Stop::Limit => Failure::ill(What::Silent),
        Stop::Total => Failure { again: false, ..Failure::ill(What::Silent) },
    }
}

/// Nothing a person or a tool could use, and no reason for it.
fn is_empty(response: &ModelResponse) -> bool {
    response.text.trim().is_empty() && response.calls.is_empty() && response.finish != Finish::Length
}

fn first_character(body: &[u8]) -> Option<u8> {
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    body.iter().copied().find(|byte| !byte.is_ascii_whitespace())
}

/// A random part of a pause that doubles from 1 s to 30 s.
fn jitter(tries: u32) -> Duration {
    let mut bytes = [0; 4];
    let chance = if getrandom::fill(&mut bytes).is_ok() { f64::from(u32::from_le_bytes(bytes)) } else { 0.0 };
    let longest = 30f64.min(f64::from(1u32 << (tries - 1).min(5)));
    Duration::from_secs_f64(longest * chance / f64::from(u32::MAX))
}

/// How long the provider asks to wait: seconds or a date.
pub(super) fn retry_after(headers: &HeaderMap, now_ms: i64) -> Option<Duration> {
    let header = |name: &str| headers.get(name)?.to_str().ok().map(str::trim);
    if let Some(millis) = header("retry-after-ms").and_then(|text| text.parse::<f64>().ok()) {
        return Duration::try_from_secs_f64(millis / 1000.0).ok();
    }
    let text = header("retry-after")?;
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).ok();
    }
    let at = jiff::fmt::rfc2822::DateTimeParser::new().parse_timestamp(text).ok()?;
    Some(Duration::from_millis(at.as_millisecond().saturating_sub(now_ms).max(0).unsigned_abs()))
}

/// Whether a host is this machine, and whether it is on a private network: by its name or address as written.
pub(super) fn privacy(host: &str) -> Privacy {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    match host.parse::<IpAddr>().map(|address| address.to_canonical()) {
        Ok(address) if address.is_loopback() || address.is_unspecified() => Privacy::Loopback,
        Ok(IpAddr::V4(address)) => {
            let [a, b, ..] = address.octets();
            let shared = a == 100 && (64..128).contains(&b);
            if address.is_private() || address.is_link_local() || shared { Privacy::Private } else { Privacy::Public }
        }
        Ok(IpAddr::V6(address)) => {
            let first = address.segments()[0];
            if first & 0xfe00 == 0xfc00 || first & 0xffc0 == 0xfe80 { Privacy::Private } else { Privacy::Public }
        }
        Err(_) if host == "localhost" || host.ends_with(".localhost") => Privacy::Loopback,
        // A name without a dot is a machine or a container beside us.
        Err(_) if !host.contains('.') => Privacy::Private,
        Err(_) if [".local", ".lan", ".internal", ".home.arpa"].iter().any(|end| host.ends_with(end)) => {
            Privacy::Private
        }
        Err(_) => Privacy::Public,
    }
}

/// Where a host is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Privacy {
    Loopback,
    Private,
    Public,
}

/// Passes on what is shown and remembers that something was.
pub(super) struct Shown<'a> {
    pub progress: &'a dyn Progress,
    pub shown: AtomicBool,
}

impl Progress for Shown<'_> {
    fn text(&self, delta: &str) {
        self.shown.store(true, Ordering::Relaxed);
        self.progress.text(delta);
    }

    /// Only when there is something to take back.
    fn reset(&self) {
        if self.shown.swap(false, Ordering::Relaxed) {
            self.progress.reset();
        }
    }

    fn waiting(&self, why: Waiting) {
        self.progress.waiting(why);
    }

    fn passed_over(&self, model: &str, why: &str) {
        self.progress.passed_over(model, why);
    }
}

/// Keeps calls from a provider that is ill: 5 failures in 60 s close the way for 30 s, then one call tries it.
#[derive(Debug, Default)]
pub(super) struct Breaker {
    state: Mutex<Health>,
}

#[derive(Debug, Default)]
struct Health {
    failures: VecDeque<Duration>,
    shut_until: Option<Duration>,
    probing: bool,
}

const FAILURES: usize = 5;
const WINDOW: Duration = Duration::from_secs(60);
const SHUT: Duration = Duration::from_secs(30);

/// Leave to make one call. Given back unsettled (the call was cancelled), it says nothing about the provider.
pub(super) struct Pass<'a> {
    breaker: &'a Breaker,
    probe: bool,
}

impl Breaker {
    /// Leave to make a call now, or how long to wait.
    pub fn pass(&self, now: Duration) -> Result<Pass<'_>, Duration> {
        let mut health = self.health();
        match health.shut_until {
            None => Ok(Pass { breaker: self, probe: false }),
            Some(until) if now < until => Err(until - now),
            Some(_) if health.probing => Err(Duration::from_secs(1)),
            Some(_) => {
                health.probing = true;
                Ok(Pass { breaker: self, probe: true })
            }
        }
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pass<'_> {
    /// Says how the call went.
    pub fn settle(self, ill: bool, now: Duration) {
        let mut health = self.breaker.health();
        if !ill {
            if self.probe {
                health.shut_until = None;
            }
            if health.shut_until.is_none() {
                health.failures.clear();
            }
            return;
        }
        health.failures.push_back(now);
        while health.failures.front().is_some_and(|at| *at + WINDOW < now) {
            health.failures.pop_front();
        }
        if self.probe || health.failures.len() >= FAILURES {
            health.shut_until = Some(now + SHUT);
            health.failures.clear();
        }
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        if self.probe {
            self.breaker.health().probing = false;
        }
    }
}
