//! The trait every adapter implements, and the facts about its platform.

use std::{borrow::Cow, time::Duration};

use async_trait::async_trait;

use crate::{
    Address, ChannelContext, ChannelId, Finding, HttpEndpoint, Level, LiveEdit, Part, QueueMode, Receipt, Reconciled,
    Reply, SendError, SendKey, SocketEndpoint,
};

/// One account on one platform.
#[async_trait]
pub trait Channel: Send + Sync + 'static {
    /// `kind:account`.
    fn id(&self) -> &ChannelId;

    /// What the platform can do, as data.
    fn capabilities(&self) -> &Capabilities;

    /// The most sends this lane may make, where a platform's lanes differ: groups are slower than private chats.
    fn lane_rate(&self, _lane: &str) -> Option<Rate> {
        self.capabilities().per_lane
    }

    /// What the platform lets only one program use at a time, as a word that is equal for two accounts which would fight
    /// over it: a bot's number, an app's id. Never a secret. `None` where any number may connect.
    fn exclusive(&self) -> Option<String> {
        None
    }

    /// The key that is not set and without which anybody who reaches this channel's address is believed. Such a channel is
    /// refused where `channels_listen` shows it to the network.
    fn unguarded(&self) -> Option<&'static str> {
        None
    }

    /// The key that is not set and without which nobody gets what was not asked for: a message that the gateway sends by
    /// itself would wait for a request that nobody knows to make.
    fn unheard(&self) -> Option<&'static str> {
        None
    }

    /// Given once, before anything else is asked of the channel; sends may come before `run` does.
    fn open(&self, _ctx: &ChannelContext) {}

    /// Receives until `ctx.shutdown` is cancelled. Its supervisor restarts it with growing pauses when it fails.
    ///
    /// # Errors
    /// Whatever ended it, named by what the supervisor does next.
    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError>;

    /// The reply as it may leave. An adapter says nothing here; the gateway stands before every channel and takes out what no
    /// reply may hold.
    fn screened<'a>(&self, reply: &'a Reply) -> Cow<'a, Reply> {
        Cow::Borrowed(reply)
    }

    /// Fits a reply to the platform. Pure; every part fits one platform message; never empty for a non-empty reply.
    fn render(&self, reply: &Reply, level: Level) -> Vec<Part>;

    /// Makes exactly one visible platform call. Uploads and token refreshes may precede it.
    ///
    /// # Errors
    /// [`SendError`], named by what delivery does next.
    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError>;

    /// What became of a send that was cut off at `since` (epoch milliseconds) or later.
    async fn reconcile(&self, _to: &Address, _part: &Part, _key: &SendKey, _since: i64) -> Reconciled {
        Reconciled::CannotTell
    }

    /// The same target for a message that answers none: without what belongs to one message (a quoted one, a command that
    /// waits for its answer).
    fn unprompted(&self, to: &Address) -> Address {
        to.clone()
    }

    /// Shows that an answer is being written. Best effort.
    async fn typing(&self, _to: &Address) {}

    /// Showing an answer before it is whole, and marking messages, where the platform can.
    fn live(&self) -> Option<&dyn LiveEdit> {
        None
    }

    /// The platform calls in by HTTP at `/channels/<kind>/<account>`.
    fn http(&self) -> Option<&dyn HttpEndpoint> {
        None
    }

    /// The platform opens a WebSocket at the same address.
    fn socket(&self) -> Option<&dyn SocketEndpoint> {
        None
    }

    /// Asks the platform what stands between an empty account and the first answer: one finding each for the token,
    /// every scope, intent, event and click that is needed. Changes nothing there, takes no messages, needs no `open`.
    async fn probe(&self) -> Vec<Finding> {
        Vec::new()
    }
}

/// Facts about a platform.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// The longest text of one message, in `text_unit`s.
    pub text_limit: usize,
    /// What `text_limit` counts.
    pub text_unit: TextUnit,
    /// The best format it shows.
    pub format: Format,
    /// Sent messages can be edited.
    pub edits: bool,
    /// It shows that the bot is typing.
    pub typing: bool,
    /// It has threads or topics.
    pub threads: bool,
    /// It has buttons.
    pub buttons: bool,
    /// The queue mode when neither configuration nor session says another.
    pub queue: QueueMode,
    /// Over the session's cap: refuse (the caller gets a clear answer and nothing is stored) instead of collapsing.
    pub refuse_over_cap: bool,
    /// Ids mean nothing outside their account: the account is part of the session key.
    pub account_in_key: bool,
    /// `run` shows a sign of life ([`crate::Pulse::beat`]) at least this often once it is connected; without one for so
    /// long it is taken for dead and started again. `None`: it has no connection that could die.
    pub silence_limit: Option<Duration>,
    /// How long a part may wait before it expires. guarantees.md G5: 1 h for chats, 24 h for webhooks.
    pub expires_after: Duration,
    /// The pauses between tries of one part; the last one repeats until `expires_after`.
    pub retry_pauses: &'static [Duration],
    /// The most sends a lane may make.
    pub per_lane: Option<Rate>,
    /// The most sends the whole channel may make.
    pub per_channel: Option<Rate>,
}

/// `burst` sends at once, then one each `every`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Sends at once.
    pub burst: u32,
    /// The pause that earns one more.
    pub every: Duration,
}

/// What a text limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextUnit {
    /// UTF-16 code units (Telegram, Discord's client).
    Utf16,
    /// Unicode scalar values.
    Chars,
    /// UTF-8 bytes.
    Bytes,
}

impl TextUnit {
    /// The length of `text` in this unit.
    pub fn len(self, text: &str) -> usize {
        match self {
            Self::Utf16 => text.encode_utf16().count(),
            Self::Chars => text.chars().count(),
            Self::Bytes => text.len(),
        }
    }
}

/// The best format a platform shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// No markup.
    Plain,
    /// Markdown as the model writes it.
    Markdown,
    /// The adapter makes its own (HTML, cards).
    Own,
}

/// Why [`Channel::run`] ended, named by what its supervisor does next.
#[derive(Debug, thiserror::Error)]
pub enum ChannelError {
    /// Start it again, with growing pauses.
    #[error("{0}")]
    Restart(String),
    /// Start it again, but not before this pause is over: the platform refuses until then.
    #[error("{1}")]
    RestartAfter(Duration, String),
    /// Do not start it again before the configuration changes: wrong token, missing permission.
    #[error("{0}")]
    Stop(String),
}
