//! One open WebSocket, whoever opened it: frames become answers to calls and events in the queue; silence where there was
//! a heartbeat ends it. Waits for nothing but frames, so an answer is never behind an event.

use std::time::Duration;

use bytes::Bytes;
use channel_api::{ChannelContext, Frame, Link, Socket};
use serde_json::Value;
use tracing::{debug, info, warn};

use crate::{
    OneBot, ids,
    inbound::{self, Event},
    links::{Connection, Role, outcome},
    queue::What,
};

/// The longest message that is taken, in bytes. bad-inputs.md 41: one of 16 MB ends the connection.
pub const MESSAGE_LIMIT: usize = 15 * 1024 * 1024;
/// How long nothing may come before we ask with a ping, where there is no heartbeat.
const QUIET: Duration = Duration::from_secs(30);
/// So many pings without any sign of life end a connection that has answered one before.
const UNANSWERED: u32 = 3;
/// The most pings in [`PING_WINDOW`].
const PINGS: u32 = 100;
/// See [`PINGS`].
const PING_WINDOW: Duration = Duration::from_secs(10);

/// What the head of a connection said.
pub struct Head {
    /// The bot's number, if it was said.
    pub bot: Option<String>,
    /// What it carries.
    pub role: Role,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The other side closed it, or it broke.
    Gone(String),
    /// Nothing came for too long.
    Silent,
    /// A newer one took its place, or it took no more calls.
    Replaced,
    /// It broke the rules.
    Misused(&'static str),
    /// The other side does not accept our token.
    Refused(String),
    /// The gateway stops.
    Shutdown,
}

impl Ended {
    /// The close frame that says so, if there is anybody to say it to.
    fn goodbye(&self) -> Option<Frame> {
        let (code, words) = match self {
            Self::Gone(_) => return None,
            Self::Silent => (1001, "no heartbeat"),
            Self::Replaced => (1000, "replaced by a newer connection"),
            Self::Misused(words @ "a message is too long") => (1009, *words),
            Self::Misused(words @ "only text is spoken here") => (1003, *words),
            Self::Misused(words) => (1008, *words),
            Self::Refused(_) => (1000, "the token was refused"),
            Self::Shutdown => (1001, "the gateway stops"),
        };
        Some(Frame::Close(code, words.to_owned()))
    }
}

/// Serves one connection until it ends.
pub async fn serve(onebot: &OneBot, ctx: &ChannelContext, head: Head, socket: Socket) -> Ended {
    let Socket { mut incoming, outgoing } = socket;
    let connection = onebot.links.open(head.role, outgoing.clone());
    let mut line =
        Line { onebot, ctx, connection: &connection, bot: None, beat: None, pings: (ctx.clock.monotonic(), 0) };
    if let Some(bot) = head.bot
        && !line.belongs_to(bot)
    {
        connection.over.cancel();
    }
    let mut unanswered = 0;
    let mut answers_pings = false;
    let ended = loop {
        let patience = line.beat.unwrap_or(QUIET);
        tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => break Ended::Shutdown,
            () = connection.over.cancelled() => break Ended::Replaced,
            frame = incoming.recv() => {
                ctx.pulse.beat();
                unanswered = 0;
                answers_pings |= matches!(frame, Some(Frame::Pong(_)));
                if let Some(ended) = line.frame(frame) {
                    break ended;
                }
            }
            () = ctx.clock.sleep(patience) => {
                if line.beat.is_some() || (answers_pings && unanswered >= UNANSWERED) {
                    break Ended::Silent;
                }
                unanswered += 1;
                let _ = outgoing.try_send(Frame::Ping(Bytes::from_static(b"crawfish")));
            }
        }
    };
    onebot.links.close(&connection);
    if let Some(goodbye) = ended.goodbye() {
        let _ = outgoing.try_send(goodbye);
    }
    if !onebot.links.hears() {
        ctx.pulse.link(Link::Down(match &ended {
            Ended::Silent => "the OneBot side fell silent".to_owned(),
            Ended::Refused(words) => format!("the OneBot side refuses the access_token: {words}"),
            _ => "no OneBot client is connected".to_owned(),
        }));
    }
    match &ended {
        Ended::Silent => warn!(bot = line.bot.as_deref(), "a OneBot connection fell silent and is closed"),
        Ended::Misused(why) => warn!(bot = line.bot.as_deref(), why, "a OneBot connection is closed"),
        ended => info!(bot = line.bot.as_deref(), ?ended, "a OneBot connection ended"),
    }
    ended
}

/// A connection and what it has shown so far.
struct Line<'a> {
    onebot: &'a OneBot,
    ctx: &'a ChannelContext,
    connection: &'a std::sync::Arc<Connection>,
    /// The bot's number, once it is known.
    bot: Option<String>,
    /// How long it may be silent, once a heartbeat was seen.
    beat: Option<Duration>,
    /// When the pings began to be counted, and how many there were.
    pings: (Duration, u32),
}

impl Line<'_> {
    fn frame(&mut self, frame: Option<Frame>) -> Option<Ended> {
        match frame {
            None => Some(Ended::Gone("it broke".to_owned())),
            Some(Frame::Close(code, words)) => Some(Ended::Gone(format!("closed with {code} {words}"))),
            Some(Frame::Binary(_)) => Some(Ended::Misused("only text is spoken here")),
            Some(Frame::Ping(_) | Frame::Pong(_)) => {
                let now = self.ctx.clock.monotonic();
                if now.saturating_sub(self.pings.0) > PING_WINDOW {
                    self.pings = (now, 0);
                }
                self.pings.1 += 1;
                (self.pings.1 > PINGS).then_some(Ended::Misused("too many pings"))
            }
            Some(Frame::Text(text)) if text.len() > MESSAGE_LIMIT => Some(Ended::Misused("a message is too long")),
            Some(Frame::Text(text)) => self.text(&text),
        }
    }

    fn text(&mut self, text: &str) -> Option<Ended> {
        let Some(value) = channel_api::json::parse(text).filter(Value::is_object) else {
            self.ignored("frame_unreadable");
            return None;
        };
        if value.get("post_type").is_some() {
            return self.event(value, text.len());
        }
        // NapCat opens the socket in spite of a wrong token and says so in its first message.
        let unasked = value.get("echo").is_none_or(|echo| echo.is_null() || echo.as_str() == Some(""));
        if unasked
            && let Err(failure) = outcome(&value)
            && failure.forbidden()
        {
            return Some(Ended::Refused(failure.words));
        }
        if !self.connection.answered(value) {
            self.ignored("answer_to_nothing");
        }
        None
    }

    fn event(&mut self, event: Value, bytes: usize) -> Option<Ended> {
        let said = ids::number_at(&event, "self_id");
        match (&self.bot, &said) {
            (Some(bot), Some(said)) if bot != said => {
                if self.onebot.queue.count("event_of_another_bot").is_power_of_two() {
                    warn!(bot, said, "an event of another bot came over this one's connection and is dropped");
                }
                return None;
            }
            (None, None) => {
                self.ignored("event_without_bot");
                return None;
            }
            _ => {}
        }
        if self.bot.is_none() && !said.is_some_and(|said| self.belongs_to(said)) {
            return Some(Ended::Misused("this account is for another self_id"));
        }
        let bot = self.bot.as_ref()?;
        match inbound::read(&self.onebot.id, bot, &event) {
            Event::Heartbeat(interval) => self.beat = Some(interval * 2 + Duration::from_secs(5)),
            Event::Ignored(reason) => self.ignored(reason),
            read => {
                self.onebot.queue.add(bot, What::Event(read.chat(), event), bytes, None);
            }
        }
        None
    }

    /// The connection is this bot's. `false`: this account is for another.
    fn belongs_to(&mut self, bot: String) -> bool {
        if !self.onebot.expects(&bot) {
            warn!(bot, "a bot that is not this account's `self_id` is turned away");
            return false;
        }
        self.onebot.turned_away.forget();
        let registered = self.onebot.links.register(&bot, self.connection);
        info!(bot, role = ?self.connection.role(), "a OneBot client is connected");
        if self.onebot.links.hears() {
            self.ctx.pulse.link(Link::Up);
        }
        if registered.whole {
            self.onebot.queue.add(&bot, What::Connected, 0, None);
        }
        self.bot = Some(bot);
        true
    }

    fn ignored(&self, reason: &'static str) {
        let count = self.onebot.queue.count(reason);
        debug!(reason, count, "a frame of OneBot says nothing to us");
    }
}
