//! QQ's WebSocket gateway: one session that is resumed after every break, over restarts too. The position in it moves
//! only with what is stored, so whatever was not is sent again. protocols.md §3.

use std::{
    collections::hash_map::RandomState,
    hash::{BuildHasher, Hasher},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use channel_api::{Accepted, ChannelContext, ChannelError, Cursor, Frame, IntakeError, Link, Socket};
use futures_util::{StreamExt, stream::FuturesOrdered};
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tracing::{debug, info, warn};
use url::Url;

use crate::{
    Bot,
    api::{ApiError, Payload, TIMEOUT},
    config::{self, Intents},
    inbound::{Event, Said},
    receive::Receiver,
};

/// The longest frame, in bytes.
const FRAME_LIMIT: usize = 4 * 1024 * 1024;
/// Events that wait to be stored; then nothing more is read.
const WAITING: usize = 256;
/// Events whose files are fetched at the same time.
const AT_ONCE: usize = 8;
/// How long the first word of the gateway may take.
const HELLO: Duration = Duration::from_secs(20);
/// The heartbeat when the gateway names none.
const USUAL_BEAT: Duration = Duration::from_secs(41);
/// Failed connections in a row that are waited out here.
const PATIENCE: u32 = 3;
/// The pause before the next try when this machine's address is refused.
const NOT_LISTED_PAUSE: Duration = Duration::from_secs(5 * 60);
/// Where the session stands.
const SESSION: &str = "session";

/// Private chats and groups.
const CHATS: u32 = 1 << 25;
/// Guild channels, where the bot is mentioned.
const GUILDS: u32 = 1 << 30;
/// Guild private messages.
const DIRECT: u32 = 1 << 12;
/// Pressed buttons.
const PRESSES: u32 = 1 << 26;
/// Every message of a guild channel.
const ALL_GUILD: u32 = 1 << 9;

/// The intents of a preset.
pub fn intents(preset: Intents) -> u32 {
    match preset {
        Intents::Chats => CHATS | PRESSES,
        Intents::Public => CHATS | PRESSES | GUILDS | DIRECT,
        Intents::Private => CHATS | PRESSES | GUILDS | DIRECT | ALL_GUILD,
    }
}

/// What is asked for after `refused` was, and what is given up; `None` when nothing is left to give up.
fn fewer(refused: u32) -> Option<(u32, &'static str)> {
    let steps = [
        (ALL_GUILD, "every message of guild channels"),
        (DIRECT, "guild private messages"),
        (PRESSES, "buttons"),
        (GUILDS, "guild channels"),
    ];
    let (bit, name) = steps.into_iter().find(|(bit, _)| refused & bit != 0)?;
    let rest = refused & !bit;
    (rest != 0).then_some((rest, name))
}

/// The position in a session.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Session {
    id: String,
    seq: u64,
}

impl Session {
    fn parse(text: &str) -> Option<Self> {
        let (seq, id) = text.split_once(' ')?;
        (!id.is_empty()).then_some(Self { id: id.to_owned(), seq: seq.parse().ok()? })
    }

    fn cursor(&self) -> Cursor {
        Cursor { key: SESSION.to_owned(), value: format!("{} {}", self.seq, self.id) }
    }
}

/// How a connection ended, named by what comes next.
#[derive(Debug)]
enum Ended {
    /// Connect again and go on with the session.
    Resume(String),
    /// Connect again and begin a new session.
    Anew(String),
    /// The intents were refused.
    Intents(String),
    /// For the supervisor.
    Over(ChannelError),
}

/// The state of a bot's gateway that outlives a connection.
pub struct Gateway {
    intents: AtomicU32,
    /// Held by whoever runs: one connection at a time, whatever is reloaded.
    running: tokio::sync::Mutex<()>,
}

impl Gateway {
    pub fn new(preset: Intents) -> Self {
        Self { intents: AtomicU32::new(intents(preset)), running: tokio::sync::Mutex::default() }
    }

    /// Receives until `ctx.shutdown` is cancelled.
    ///
    /// # Errors
    /// What the supervisor does next.
    pub async fn run(&self, bot: &Bot, ctx: &ChannelContext) -> Result<(), ChannelError> {
        let receiving = async {
            let _alone = self.running.lock().await;
            self.receive(bot, ctx).await
        };
        tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => Ok(()),
            ended = receiving => ended,
        }
    }

    async fn receive(&self, bot: &Bot, ctx: &ChannelContext) -> Result<(), ChannelError> {
        let stored = ctx.kv.get(SESSION).await.map_err(|error| ChannelError::Restart(error.to_string()))?;
        let link = Connection {
            gateway: self,
            bot,
            ctx,
            receiver: Receiver { channel: &bot.id, api: &bot.api, me: &bot.me, windows: &bot.windows, ctx },
            session: Mutex::new(stored.as_deref().and_then(Session::parse)),
            ready: AtomicU32::new(0),
        };
        let mut failures = 0;
        loop {
            let before = link.ready.load(Ordering::Relaxed);
            let ended = link.once().await;
            if link.ready.load(Ordering::Relaxed) != before {
                failures = 0;
            }
            let why = match ended {
                Ended::Over(error) => return Err(error),
                Ended::Resume(why) => why,
                Ended::Anew(why) => {
                    link.forget().await;
                    why
                }
                Ended::Intents(why) => {
                    let refused = self.intents.load(Ordering::Relaxed);
                    let Some((rest, given_up)) = fewer(refused) else {
                        return Err(ChannelError::Stop(format!(
                            "QQ refuses every event ({why}): this bot may not be in private chats or groups yet; see \
                             q.qq.com, \"开发\" → \"功能配置\""
                        )));
                    };
                    warn!(
                        given_up,
                        "QQ refuses the events that were asked for; going on without some. Set `intents` to what this \
                         bot may have (\"chats\", \"public\", \"private\") and this line goes away"
                    );
                    self.intents.store(rest, Ordering::Relaxed);
                    link.forget().await;
                    why
                }
            };
            ctx.pulse.link(Link::Down(why.clone()));
            failures += 1;
            if failures > PATIENCE {
                return Err(ChannelError::Restart(why));
            }
            // The first time at once, but never in a circle without end.
            let pause = if failures == 1 { Duration::from_millis(500) } else { Duration::from_secs(1 << failures) };
            info!(%why, seconds = pause.as_secs_f32(), "the connection to QQ ended; connecting again");
            ctx.clock.sleep(jittered(pause)).await;
        }
    }
}

struct Connection<'a> {
    gateway: &'a Gateway,
    bot: &'a Bot,
    ctx: &'a ChannelContext,
    receiver: Receiver<'a>,
    session: Mutex<Option<Session>>,
    /// How often a session began or went on.
    ready: AtomicU32,
}

impl Connection<'_> {
    fn session(&self) -> Option<Session> {
        self.session.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set(&self, session: Option<Session>) {
        *self.session.lock().unwrap_or_else(PoisonError::into_inner) = session;
    }

    /// The position behind an event that needs nothing more.
    fn behind(&self, seq: Option<u64>) -> Option<Session> {
        let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
        let session = session.as_mut()?;
        session.seq = session.seq.max(seq?);
        Some(session.clone())
    }

    async fn forget(&self) {
        self.set(None);
        self.keep("").await;
    }

    async fn keep(&self, value: &str) {
        if let Err(error) = self.ctx.kv.set(SESSION, value).await {
            warn!(%error, "the position in QQ's session was not stored");
        }
    }

    async fn once(&self) -> Ended {
        let url = match self.address().await {
            Ok(url) => url,
            Err(error) => return ended(error),
        };
        let opened = self.bot.network.websocket(&url, &HeaderMap::new(), FRAME_LIMIT).await;
        let (mut socket, mut pump) = match opened {
            Ok(opened) => opened,
            Err(error) => return Ended::Resume(format!("QQ's gateway: {error}")),
        };
        let (events, arrived) = mpsc::channel(WAITING);
        let storing = self.store(arrived);
        tokio::pin!(storing);
        let ended = {
            let talking = self.talk(&mut socket, events);
            tokio::pin!(talking);
            let (mut pumped, mut stored) = (false, false);
            loop {
                tokio::select! {
                    ended = &mut talking => break (ended, stored),
                    () = &mut pump, if !pumped => pumped = true,
                    () = &mut storing, if !stored => stored = true,
                }
            }
        };
        // The connection is let go before the rest is stored: nothing more comes by it.
        drop((socket, pump));
        let (ended, stored) = ended;
        if !stored {
            storing.await;
        }
        ended
    }

    /// Where the gateway is.
    async fn address(&self) -> Result<Url, ApiError> {
        let answer = self.bot.api.call(Method::GET, &["gateway", "bot"], Payload::None, TIMEOUT).await?;
        let left = answer.pointer("/session_start_limit/remaining").and_then(Value::as_i64);
        if left.is_some_and(|left| left <= 0) && self.session().is_none() {
            let pause = answer.pointer("/session_start_limit/reset_after").and_then(Value::as_u64).unwrap_or(60_000);
            return Err(ApiError::Wait(Duration::from_millis(pause.clamp(1_000, 24 * 60 * 60 * 1_000))));
        }
        let url = answer.get("url").and_then(Value::as_str).and_then(|url| Url::parse(url).ok());
        let url = url.ok_or_else(|| ApiError::Broken("QQ names no gateway".to_owned()))?;
        let near = url.host().is_some_and(|host| config::is_loopback(&host));
        match url.scheme() {
            "wss" => Ok(url),
            "ws" if near => Ok(url),
            _ => Err(ApiError::Broken("QQ names a gateway without TLS".to_owned())),
        }
    }

    /// Talks until the connection ends. What is to be stored goes into `events`.
    async fn talk(&self, socket: &mut Socket, events: mpsc::Sender<Event>) -> Ended {
        let resume = |why: &str| Ended::Resume(why.to_owned());
        let hello = match tokio::time::timeout(HELLO, next(socket)).await {
            Ok(Next::Payload(hello)) => hello,
            Ok(Next::Noise) => Value::Null,
            Ok(Next::Closed(code, why)) => return closed(code, &why),
            Err(_) => return resume("QQ's gateway said nothing"),
        };
        if op(&hello) != Some(10) {
            return resume("QQ's gateway did not say hello");
        }
        let beat = hello.pointer("/d/heartbeat_interval").and_then(Value::as_u64);
        let beat = beat.map_or(USUAL_BEAT, |ms| Duration::from_millis(ms.clamp(1_000, 120_000)));
        let token = match self.bot.api.token(None).await {
            Ok(token) => format!("QQBot {token}"),
            Err(error) => return ended(error),
        };
        let resuming = self.session();
        let first = match &resuming {
            Some(session) => {
                json!({ "op": 6, "d": { "token": token, "session_id": session.id, "seq": session.seq } })
            }
            None => json!({ "op": 2, "d": {
                "token": token, "intents": self.gateway.intents.load(Ordering::Relaxed), "shard": [0, 1],
                "properties": { "$os": "linux", "$browser": "crawfish", "$device": "crawfish" }
            } }),
        };
        if socket.outgoing.send(Frame::Text(first.to_string())).await.is_err() {
            return resume("the connection broke");
        }
        let mut seen = resuming.as_ref().map(|session| session.seq);
        let (mut answered, mut waiting) = (true, None::<Event>);
        // Whether the session began or went on, and whether events came since the last heartbeat.
        let (mut greeted, mut heard) = (false, false);
        let mut tick = self.ctx.clock.sleep(beat);
        loop {
            tokio::select! {
                () = &mut tick => {
                    // While the store is behind, nothing is read, and an answer may lie unread.
                    if !answered && waiting.is_none() {
                        return resume("QQ's gateway stopped answering heartbeats");
                    }
                    if !greeted && !std::mem::take(&mut heard) && waiting.is_none() {
                        return Ended::Anew("QQ's gateway did not begin the session".to_owned());
                    }
                    answered = false;
                    let heartbeat = json!({ "op": 1, "d": seen }).to_string();
                    if socket.outgoing.send(Frame::Text(heartbeat)).await.is_err() {
                        return resume("the connection broke");
                    }
                    if waiting.is_some() {
                        self.ctx.pulse.beat();
                    }
                    tick = self.ctx.clock.sleep(beat);
                }
                place = events.reserve(), if waiting.is_some() => {
                    let Ok(place) = place else { return resume("nothing stores what comes") };
                    if let Some(event) = waiting.take() {
                        place.send(event);
                    }
                }
                frame = next(socket), if waiting.is_none() => {
                    let payload = match frame {
                        Next::Payload(payload) => payload,
                        Next::Noise => continue,
                        Next::Closed(code, why) => return closed(code, &why),
                    };
                    self.ctx.pulse.beat();
                    match op(&payload) {
                        Some(0) => {
                            let Some(event) = Event::of(&payload) else { continue };
                            seen = seen.max(event.seq);
                            heard = true;
                            match self.greeted(&event, resuming.as_ref()).await {
                                true => greeted = true,
                                false => waiting = Some(event),
                            }
                        }
                        Some(1) => {
                            let heartbeat = json!({ "op": 1, "d": seen }).to_string();
                            let _ = socket.outgoing.send(Frame::Text(heartbeat)).await;
                        }
                        Some(7) => return resume("QQ's gateway asks to connect again"),
                        Some(9) if payload["d"] == true => return resume("QQ's gateway asks to go on with the session"),
                        Some(9) => return Ended::Anew("QQ's gateway knows the session no more".to_owned()),
                        Some(11) => answered = true,
                        other => debug!(?other, "an unknown word of QQ's gateway"),
                    }
                }
            }
        }
    }

    /// Whether it was the greeting of a session; then it began or went on.
    async fn greeted(&self, event: &Event, resuming: Option<&Session>) -> bool {
        match event.name.as_str() {
            "READY" => {
                if let Some(me) = event.data.pointer("/user/id").and_then(Value::as_str) {
                    self.bot.me.set(me);
                }
                if let Some(id) = event.data.get("session_id").and_then(Value::as_str).filter(|id| !id.is_empty()) {
                    let session = Session { id: id.to_owned(), seq: event.seq.unwrap_or(0) };
                    self.keep(&session.cursor().value).await;
                    self.set(Some(session));
                }
                let name = event.data.pointer("/user/username").and_then(Value::as_str).unwrap_or_default();
                info!(bot = name, "connected to QQ");
            }
            "RESUMED" => info!(seq = resuming.map(|session| session.seq), "connected to QQ again, nothing missed"),
            _ => return false,
        }
        if self.bot.me.get().is_none()
            && let Err(error) = self.bot.me.ask(&self.bot.api).await
        {
            warn!(%error, "QQ did not say who this bot is: mentions in guild channels may go unseen");
        }
        self.ready.fetch_add(1, Ordering::Relaxed);
        self.ctx.pulse.link(Link::Up);
        true
    }

    /// Stores what arrives, in order, each with the position behind it. Ends when nothing more can arrive.
    async fn store(&self, mut arrived: mpsc::Receiver<Event>) {
        let (mut preparing, mut open) = (FuturesOrdered::new(), true);
        while open || !preparing.is_empty() {
            tokio::select! {
                event = arrived.recv(), if open && preparing.len() < AT_ONCE => match event {
                    Some(event) => preparing.push_back(self.prepare(event)),
                    None => open = false,
                },
                Some((seq, said)) = preparing.next(), if !preparing.is_empty() => match said {
                    Some(said) => self.commit(&said, seq).await,
                    None => {
                        self.behind(seq);
                    }
                },
            }
        }
    }

    async fn prepare(&self, event: Event) -> (Option<u64>, Option<Said>) {
        (event.seq, self.receiver.prepare(&event).await)
    }

    /// Offers an event until it is stored: QQ sends it again only after a break.
    async fn commit(&self, said: &Said, seq: Option<u64>) {
        loop {
            let mut session = self.session();
            if let (Some(session), Some(seq)) = (&mut session, seq) {
                session.seq = session.seq.max(seq);
            }
            let pause = match self.receiver.offer(said, session.map(|session| session.cursor())).await {
                Ok(answer) => {
                    if let Accepted::Full(pause) = answer {
                        warn!(seconds = pause.as_secs(), "refused: its sender writes too much");
                    }
                    self.behind(seq);
                    self.receiver.confirm(said).await;
                    return;
                }
                Err(IntakeError::Busy(pause)) => pause,
                Err(error @ IntakeError::Unavailable(_)) => {
                    warn!(%error, "what QQ delivered waits for the store");
                    Duration::from_secs(5)
                }
            };
            self.ctx.clock.sleep(pause).await;
        }
    }
}

enum Next {
    Payload(Value),
    /// Nothing to be read: a ping, broken JSON.
    Noise,
    Closed(u16, String),
}

async fn next(socket: &mut Socket) -> Next {
    match socket.incoming.recv().await {
        Some(Frame::Text(text)) => channel_api::json::parse(&text).map_or(Next::Noise, Next::Payload),
        Some(Frame::Binary(bytes)) => {
            let text = String::from_utf8_lossy(&bytes);
            channel_api::json::parse(&text).map_or(Next::Noise, Next::Payload)
        }
        Some(Frame::Ping(_) | Frame::Pong(_)) => Next::Noise,
        Some(Frame::Close(code, why)) => Next::Closed(code, why),
        None => Next::Closed(1006, String::new()),
    }
}

fn op(payload: &Value) -> Option<i64> {
    payload.get("op").and_then(Value::as_i64)
}

/// What a close code asks for. protocols.md §3.
fn closed(code: u16, why: &str) -> Ended {
    let said = match why.is_empty() {
        true => format!("QQ's gateway closed the connection ({code})"),
        false => format!("QQ's gateway closed the connection ({code}: {why})"),
    };
    let stop = |words: &str| Ended::Over(ChannelError::Stop(format!("{words} ({code})")));
    match code {
        4001 | 4002 | 4012 => stop("QQ's gateway does not understand this version of crawfish; a newer one is needed"),
        4010 | 4011 => stop("QQ wants this bot split over several connections, which crawfish does not do"),
        4013 | 4014 => Ended::Intents(said),
        4914 => stop(
            "QQ has taken this bot offline: it may only be used with its test groups; set `sandbox = true`, or publish \
             it at q.qq.com",
        ),
        4915 => stop("QQ has banned this bot; q.qq.com says why and takes appeals"),
        // A new token and the same session may pass.
        4004 => Ended::Anew(said),
        4006..=4008 | 4900..=4999 => Ended::Anew(said),
        _ => Ended::Resume(said),
    }
}

/// What a failed call means for the whole channel.
fn ended(error: ApiError) -> Ended {
    match error {
        ApiError::Credentials(_) => {
            Ended::Over(ChannelError::Stop(format!("{error}; copy both again from q.qq.com, \"开发设置\"")))
        }
        ApiError::NotListed(_) => Ended::Over(ChannelError::RestartAfter(NOT_LISTED_PAUSE, error.to_string())),
        ApiError::Wait(pause) => Ended::Over(ChannelError::RestartAfter(pause, error.to_string())),
        error => Ended::Resume(error.to_string()),
    }
}

/// Between one and one and a half times as long, so that many gateways do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let chance = RandomState::new().build_hasher().finish() % 500;
    pause + pause * u32::try_from(chance).unwrap_or(0) / 1_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn close_codes_say_what_comes_next() {
        let kind = |code| match closed(code, "x") {
            Ended::Resume(_) => "resume",
            Ended::Anew(_) => "anew",
            Ended::Intents(_) => "intents",
            Ended::Over(ChannelError::Stop(_)) => "stop",
            Ended::Over(_) => "over",
        };
        let table = [
            (1000, "resume"),
            (1006, "resume"),
            (4009, "resume"),
            (4006, "anew"),
            (4007, "anew"),
            (4008, "anew"),
            (4900, "anew"),
            (4913, "anew"),
            (4001, "stop"),
            (4002, "stop"),
            (4010, "stop"),
            (4011, "stop"),
            (4012, "stop"),
            (4914, "stop"),
            (4915, "stop"),
            (4013, "intents"),
            (4014, "intents"),
        ];
        for (code, expected) in table {
            assert_eq!(kind(code), expected, "{code}");
        }
    }

    #[test]
    fn refused_intents_are_given_up_one_by_one_and_chats_last() {
        let mut asked = intents(Intents::Private);
        let mut given_up = Vec::new();
        while let Some((rest, name)) = fewer(asked) {
            asked = rest;
            given_up.push(name);
        }
        assert_eq!(asked, CHATS);
        assert_eq!(given_up.len(), 4);
        assert_eq!(intents(Intents::Public), 1 << 25 | 1 << 30 | 1 << 12 | 1 << 26);
    }

    #[test]
    fn a_position_is_read_as_it_is_written() {
        let session = Session { id: "a b".to_owned(), seq: 7 };
        assert_eq!(Session::parse(&session.cursor().value), Some(session));
        for bad in ["", "7", "x y", "7 "] {
            assert_eq!(Session::parse(bad), None, "{bad}");
        }
    }
}
