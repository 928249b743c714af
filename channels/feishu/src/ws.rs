//! The long connection: events come without any address of ours, and each is answered only after it is stored. Knows
//! nothing of what events mean. protocols.md §2.4.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use channel_api::{ChannelContext, ChannelError, Frame as Message, Link, Socket};
use channel_socket::{DialError, Network};
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::HeaderMap;
use serde_json::Value;
use tokio::task::JoinSet;
use tracing::{debug, info, warn};
use url::Url;

use crate::{
    api::{Api, ApiError},
    frames::{CONTROL, DATA, Frame, Parts},
    receive::{Reception, Taken},
};

/// The longest message of the socket.
const MESSAGE_BYTES: usize = 16 * 1024 * 1024;
/// The most events that are worked on at once; no more are read meanwhile.
const MOST_AT_ONCE: usize = 64;
/// How long a socket may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(3);

/// How the platform wants the connection to be kept. Sent with its address and with every pong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Keeping {
    /// Tries after a lost connection; below zero: without end.
    pub tries: i64,
    /// The pause between two tries.
    pub pause: Duration,
    /// The first try comes after a random part of this.
    pub spread: Duration,
    /// The pause between two pings.
    pub ping: Duration,
}

impl Default for Keeping {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { tries: -1, pause: seconds(120), spread: seconds(30), ping: seconds(120) }
    }
}

impl Keeping {
    /// What `ClientConfig` says; what it leaves out, or says beyond reason, stays.
    fn told(self, config: &Value) -> Self {
        let seconds = |key: &str, least: u64, most: u64, now: Duration| match config.get(key).and_then(Value::as_u64) {
            Some(seconds) => Duration::from_secs(seconds.clamp(least, most)),
            None => now,
        };
        Self {
            tries: config.get("ReconnectCount").and_then(Value::as_i64).unwrap_or(self.tries),
            pause: seconds("ReconnectInterval", 1, 600, self.pause),
            spread: seconds("ReconnectNonce", 0, 120, self.spread),
            ping: seconds("PingInterval", 1, 600, self.ping),
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
enum Lost {
    /// Try again.
    Again(String),
    /// No try helps here: `run` ends.
    Ends(ChannelError),
}

/// Keeps a connection until `ctx.shutdown` is cancelled.
///
/// # Errors
/// When it cannot be opened, named by what the supervisor does next.
pub async fn serve(
    api: &Api,
    network: &Network,
    reception: &Reception,
    ctx: &ChannelContext,
) -> Result<(), ChannelError> {
    let mut keeping = Keeping::default();
    let mut open = match open(api, network, &mut keeping).await {
        Ok(open) => open,
        Err(Lost::Again(why)) => return Err(ChannelError::Restart(why)),
        Err(Lost::Ends(error)) => return Err(error),
    };
    loop {
        info!("the long connection to Feishu stands");
        ctx.pulse.link(Link::Up);
        let why = open.run(api, reception, ctx, &mut keeping).await;
        if ctx.shutdown.is_cancelled() {
            return Ok(());
        }
        warn!(why, "the long connection to Feishu is lost; Feishu keeps what is written meanwhile");
        ctx.pulse.link(Link::Down(why));
        let mut tries = 0;
        let mut pause = part_of(keeping.spread);
        open = loop {
            if waited(ctx, pause).await {
                return Ok(());
            }
            tries += 1;
            match self::open(api, network, &mut keeping).await {
                Ok(open) => break open,
                Err(Lost::Ends(error)) => return Err(error),
                Err(Lost::Again(why)) if keeping.tries >= 0 && tries >= keeping.tries => {
                    return Err(ChannelError::Restart(why));
                }
                Err(Lost::Again(why)) => {
                    pause = keeping.pause;
                    warn!(why, tries, seconds = pause.as_secs(), "Feishu could not be reached");
                    ctx.pulse.link(Link::Down(why));
                }
            }
        };
    }
}

/// Waits; true when the gateway stops meanwhile. A long pause is no silence that the supervisor should end.
async fn waited(ctx: &ChannelContext, pause: Duration) -> bool {
    let mut left = pause;
    loop {
        let step = left.min(Duration::from_secs(60));
        tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => return true,
            () = ctx.clock.sleep(step) => ctx.pulse.beat(),
        }
        left -= step;
        if left.is_zero() {
            return false;
        }
    }
}

struct Open {
    socket: Socket,
    pumps: JoinSet<()>,
    service: i32,
}

async fn open(api: &Api, network: &Network, keeping: &mut Keeping) -> Result<Open, Lost> {
    let answer = api.ws_endpoint().await.map_err(lost)?;
    let data = answer.get("data").unwrap_or(&Value::Null);
    if let Some(config) = data.get("ClientConfig") {
        *keeping = keeping.told(config);
    }
    let address = data.get("URL").and_then(Value::as_str).unwrap_or_default();
    let url =
        Url::parse(address).map_err(|_| Lost::Again("Feishu named no address for the long connection".to_owned()))?;
    if api.is_secure() && url.scheme() != "wss" {
        return Err(Lost::Again(format!("Feishu named an address that is not secure ({}://)", url.scheme())));
    }
    let service = url.query_pairs().find(|(key, _)| key == "service_id").and_then(|(_, id)| id.parse().ok());
    let (socket, pump) =
        network.websocket(&url, &HeaderMap::new(), MESSAGE_BYTES).await.map_err(|error| match error {
            DialError::Status { status: status @ (403 | 514), body } if body.contains("1000040350") => {
                lost(ApiError::Refused { code: 1_000_040_350, said: format!("HTTP {status}") })
            }
            DialError::Status { status: 403, .. } => {
                lost(ApiError::Refused { code: 403, said: "the connection is refused".to_owned() })
            }
            error => Lost::Again(error.to_string()),
        })?;
    let mut pumps = JoinSet::new();
    pumps.spawn(pump);
    Ok(Open { socket, pumps, service: service.unwrap_or_default() })
}

/// What a refusal of the long connection means, in words that name the cure.
fn lost(error: ApiError) -> Lost {
    let later = |seconds, words: String| Lost::Ends(ChannelError::RestartAfter(Duration::from_secs(seconds), words));
    match error {
        ApiError::Credentials(said) => Lost::Ends(ChannelError::Stop(format!(
            "Feishu does not accept `app_id` and `app_secret` ({said}); copy both from the developer console, Credentials & Basic Info"
        ))),
        ApiError::Refused { code: 514, said } => Lost::Ends(ChannelError::Stop(format!(
            "Feishu does not accept `app_id` and `app_secret` for the long connection ({said}); copy both from the developer console"
        ))),
        ApiError::AppOff(said) => later(
            300,
            format!(
                "the app is switched off or not released ({said}); create and publish a version in the developer console"
            ),
        ),
        ApiError::Refused { code: 403, said } => later(
            300,
            format!(
                "Feishu refuses the long connection ({said}): the app must be a custom app with \"Receive events through \
                 persistent connection\" chosen under Events & Callbacks, and published"
            ),
        ),
        ApiError::Refused { code: 1_000_040_350, said } => later(
            60,
            format!(
                "too many long connections of this app ({said}): stop the other programs that use it, or give each an app \
                 of its own; they take each other's messages"
            ),
        ),
        ApiError::Refused { code: 1, said } => Lost::Again(format!("Feishu is busy ({said})")),
        ApiError::Refused { code: 1_000_040_343, said } => Lost::Again(format!("an error inside Feishu ({said})")),
        ApiError::RetryAfter(pause, said) => Lost::Ends(ChannelError::RestartAfter(pause, said)),
        error => Lost::Again(error.to_string()),
    }
}

impl Open {
    /// Serves the connection until it ends; says why.
    async fn run(mut self, api: &Api, reception: &Reception, ctx: &ChannelContext, keeping: &mut Keeping) -> String {
        let mut parts = Parts::default();
        let mut work = FuturesUnordered::new();
        let mut heard = ctx.clock.monotonic();
        let mut next_ping = heard;
        let why = loop {
            let now = ctx.clock.monotonic();
            tokio::select! {
                biased;
                () = ctx.shutdown.cancelled() => break "the gateway stops".to_owned(),
                answer = work.next(), if !work.is_empty() => {
                    let Some(Some(answer)) = answer else { continue };
                    let answer: Frame = answer;
                    if self.socket.outgoing.send(Message::Binary(answer.bytes().into())).await.is_err() {
                        break "the connection is closed".to_owned();
                    }
                }
                message = self.socket.incoming.recv(), if work.len() < MOST_AT_ONCE => {
                    heard = ctx.clock.monotonic();
                    ctx.pulse.beat();
                    let bytes = match message {
                        None => break "the connection is closed".to_owned(),
                        Some(Message::Close(code, words)) => break format!("closed with {code} {words}"),
                        Some(Message::Binary(bytes)) => bytes,
                        Some(_) => continue,
                    };
                    let Some(frame) = Frame::read(&bytes) else {
                        warn!(bytes = bytes.len(), "a frame that cannot be read is left out");
                        continue;
                    };
                    match frame.method {
                        CONTROL => {
                            let config = frame.payload.as_deref().and_then(|bytes| serde_json::from_slice(bytes).ok());
                            if frame.header("type") == Some("pong") && let Some(config) = config {
                                let config: Value = config;
                                *keeping = keeping.told(&config);
                                next_ping = next_ping.min(heard + keeping.ping);
                            }
                        }
                        DATA => {
                            if let Some(payload) = parts.take(&frame, heard) {
                                work.push(take(api, reception, ctx, frame, payload));
                            }
                        }
                        other => debug!(method = other, "a frame of an unknown kind"),
                    }
                }
                () = ctx.clock.sleep(next_ping.saturating_sub(now)) => {
                    let now = ctx.clock.monotonic();
                    // Each ping is answered: a connection that is silent for two of them is dead on the other side.
                    if now.saturating_sub(heard) > keeping.ping * 2 + Duration::from_secs(10) {
                        break "no answer to two pings".to_owned();
                    }
                    let ping = Frame::ping(self.service).bytes();
                    if self.socket.outgoing.send(Message::Binary(ping.into())).await.is_err() {
                        break "the connection is closed".to_owned();
                    }
                    next_ping = now + keeping.ping;
                }
            }
        };
        drop(work);
        drop(self.socket);
        let _ = tokio::time::timeout(GOODBYE, self.pumps.join_next()).await;
        why
    }
}

/// Takes one event; the answer to its frame.
async fn take(api: &Api, reception: &Reception, ctx: &ChannelContext, frame: Frame, payload: Vec<u8>) -> Option<Frame> {
    let begun = ctx.clock.monotonic();
    let event = channel_api::json::parse(&String::from_utf8_lossy(&payload));
    let (code, shown) = match event {
        Some(event) => match reception.take(api, ctx, &event).await {
            Taken::Safe(shown) => (200, shown),
            Taken::Again(_) => (500, None),
        },
        None => {
            // It would come again for ever.
            warn!(bytes = payload.len(), "an event that is no JSON is left out");
            (200, None)
        }
    };
    Some(frame.answer(code, ctx.clock.monotonic().saturating_sub(begun), shown.as_ref()))
}

/// A random part of a time, so that many gateways do not come back at once.
fn part_of(spread: Duration) -> Duration {
    let chance = RandomState::new().build_hasher().finish() % 1_000;
    spread * u32::try_from(chance).unwrap_or(0) / 1_000
}
