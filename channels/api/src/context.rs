//! What an adapter is given: the intake, its own key/value, the media store, settlements, the clock and the shutdown token.
//! Adapters reach for nothing else.

use std::{pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::Stream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{AttachmentKind, ChannelId, Inbound, InboxId, MediaRef, PartId, Pulse};

/// Everything an adapter may use. Cheap to clone.
#[derive(Clone)]
pub struct ChannelContext {
    /// Takes messages in.
    pub intake: Arc<dyn Intake>,
    /// Cancelled when the gateway stops or this channel is reloaded.
    pub shutdown: CancellationToken,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// A small durable map of this channel's own.
    pub kv: Arc<dyn ChannelKv>,
    /// Stores files.
    pub media: Arc<dyn Media>,
    /// Tells what became of a message.
    pub settlements: Arc<dyn Settlements>,
    /// Shows that this channel lives.
    pub pulse: Pulse,
}

/// The durable inbox, as an adapter sees it.
#[async_trait]
pub trait Intake: Send + Sync + 'static {
    /// Stores the events and the poll position in one commit and answers after it, one answer an event, in order.
    /// Every [`Accepted`] means "you may acknowledge".
    ///
    /// # Errors
    /// [`IntakeError`] means "do not acknowledge": nothing of the batch was stored.
    async fn accept(&self, batch: Batch) -> Result<Vec<Accepted>, IntakeError>;

    /// Whether the event, as far as it is known, would be answered: a look at the gate that stores and tells nothing. Asked
    /// before files are fetched, so that a stranger fills no disk and what a group says among itself is not downloaded.
    fn wants_files(&self, _event: &Inbound) -> bool {
        true
    }
}

/// What is committed together.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Whose batch it is. Needed when there is a cursor or a move and perhaps no event; `None` = the events say it.
    pub channel: Option<ChannelId>,
    /// The events, in the platform's order.
    pub events: Vec<Inbound>,
    /// The poll position that becomes true with them.
    pub cursor: Option<Cursor>,
    /// Groups that got a new id, told before the events: what is said from now on under the new id goes on with the
    /// session, the context and the configuration of the old one. Telling a move again changes nothing.
    pub moved: Vec<Moved>,
}

impl From<Inbound> for Batch {
    fn from(event: Inbound) -> Self {
        Self { events: vec![event], ..Self::default() }
    }
}

/// A group whose id the platform changed (Telegram: a group became a supergroup). Ids of [`crate::Conversation`].
///
/// Answers already under way keep the address they were made with: the adapter sends them to the new id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Moved {
    /// The id it had.
    pub from: String,
    /// The id it has now.
    pub to: String,
}

/// A poll position: a key and value of the channel's own map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// The key, e.g. `offset`.
    pub key: String,
    /// The value.
    pub value: String,
}

/// What became of one event of an accepted batch. All of them may be acknowledged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Stored; it will be answered.
    New(InboxId),
    /// Stored before under the same id, with the same body.
    Duplicate(InboxId),
    /// The same id was stored with another body; this one was not stored.
    Conflict,
    /// The sender was given a pairing code.
    Paired,
    /// Not for us, or not allowed; not stored.
    Ignored(IgnoredReason),
    /// The session's queue is full and this channel refuses visibly: nothing was stored, try later.
    Full(Duration),
}

/// Why an event was not stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IgnoredReason {
    /// The sender is on no list that would admit them.
    SenderNotAllowed,
    /// The group is on no list that would admit it.
    GroupNotAllowed,
    /// Direct messages or groups are switched off for this channel.
    Disabled,
    /// A group message that does not address the bot. Where the group keeps a history, it is kept as context.
    NotAddressed,
    /// From a bot (or from us).
    Bot,
    /// The sender was blocked.
    Blocked,
    /// Nothing to answer: no text and no attachment, or a kind of event that starts no turn.
    NothingToAnswer,
}

impl IgnoredReason {
    /// A stable name for logs and counters.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SenderNotAllowed => "sender_not_allowed",
            Self::GroupNotAllowed => "group_not_allowed",
            Self::Disabled => "disabled",
            Self::NotAddressed => "not_addressed",
            Self::Bot => "bot",
            Self::Blocked => "blocked",
            Self::NothingToAnswer => "nothing_to_answer",
        }
    }
}

/// Why a batch was not accepted. The platform must not be told that it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IntakeError {
    /// The whole gateway is full or stopping; come back after this long.
    #[error("busy, try again after {0:?}")]
    Busy(Duration),
    /// The store cannot commit (disk full, database gone).
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
}

/// The time. Durations are measured on `monotonic`, wall time is for display and schedules.
#[async_trait]
pub trait Clock: Send + Sync + 'static {
    /// Wall time in epoch milliseconds.
    fn now_ms(&self) -> i64;

    /// Time since some fixed moment of this process; never goes back.
    fn monotonic(&self) -> Duration;

    /// Waits.
    async fn sleep(&self, duration: Duration);
}

/// A small durable map of one channel's own: poll positions, tokens, learned permissions.
#[async_trait]
pub trait ChannelKv: Send + Sync + 'static {
    /// The value of `key`, if any.
    ///
    /// # Errors
    /// [`KvError`] when the store does not answer.
    async fn get(&self, key: &str) -> Result<Option<String>, KvError>;

    /// Stores a value, durable when this returns.
    ///
    /// # Errors
    /// [`KvError`] when the store cannot commit.
    async fn set(&self, key: &str, value: &str) -> Result<(), KvError>;
}

/// The channel's map did not answer; try again later.
#[derive(Debug, thiserror::Error)]
#[error("the channel's store is unavailable: {0}")]
pub struct KvError(pub String);

/// The media store: files by content, under a quota, their type told from their bytes.
#[async_trait]
pub trait Media: Send + Sync + 'static {
    /// Stores bytes.
    ///
    /// # Errors
    /// [`MediaError`] says in plain words why the file is not there.
    async fn store(&self, bytes: Bytes, mime: Option<String>) -> Result<MediaRef, MediaError>;

    /// Stores a stream, never whole in memory: what an adapter downloads with its own client and token. An item that is an
    /// error ends it as [`MediaError::Unreachable`].
    ///
    /// # Errors
    /// As [`Media::store`].
    async fn keep(&self, bytes: MediaStream, mime: Option<String>) -> Result<MediaRef, MediaError>;

    /// Fetches a link that someone sent and stores what is there: only public addresses, http and https, redirects
    /// included. For links that expire, at receipt.
    ///
    /// # Errors
    /// As [`Media::store`].
    async fn fetch(&self, url: &str) -> Result<MediaRef, MediaError>;

    /// The bytes of a stored file; `None` when it is not (or no longer) there, and for a link.
    async fn read(&self, media: &MediaRef) -> Option<Bytes>;
}

/// Pieces of a file as they come; the error is why no more come.
pub type MediaStream = Pin<Box<dyn Stream<Item = Result<Bytes, String>> + Send>>;

/// Why a file is not there.
#[derive(Debug, thiserror::Error)]
pub enum MediaError {
    /// Larger than one file may be, in bytes.
    #[error("the file is larger than {0} bytes")]
    TooLarge(u64),
    /// The quota is used up.
    #[error("no room for more files")]
    Full,
    /// The disk refused.
    #[error("the file could not be written: {0}")]
    Io(String),
    /// Not an address that may be fetched from, or nothing that will ever be there.
    #[error("the file may not be fetched: {0}")]
    Refused(String),
    /// It did not come; another try may help.
    #[error("the file could not be fetched: {0}")]
    Unreachable(String),
}

/// What a file is, told from its media type.
pub fn kind_of(mime: Option<&str>) -> AttachmentKind {
    match mime.and_then(|mime| mime.split('/').next()) {
        Some("image") => AttachmentKind::Image,
        Some("audio") => AttachmentKind::Audio,
        Some("video") => AttachmentKind::Video,
        _ => AttachmentKind::File,
    }
}

/// What became of messages, for adapters that answer in place.
#[async_trait]
pub trait Settlements: Send + Sync + 'static {
    /// The message's end, if it has come: a look at its row. `None` while it is queued or running, or when no such
    /// message exists in this channel.
    async fn settled(&self, message: &InboxId) -> Option<Settled>;

    /// The row's id for a platform id of this channel, if such a message was stored.
    async fn find(&self, platform_id: &str) -> Option<InboxId>;

    /// Events of this message from now on, then [`LiveEvent::Settled`] exactly once; nothing is missed between a
    /// `watch` and a later settlement. The receiver may be dropped at any time.
    async fn watch(&self, message: &InboxId) -> mpsc::Receiver<LiveEvent>;

    /// The held parts of this message were handed over in place: they are sent.
    async fn handed_over(&self, message: &InboxId, parts: &[PartId]);

    /// Nobody waits in place any more: held parts (present and future) of this message are delivered as usual.
    async fn release(&self, message: &InboxId);
}

/// What a watcher of one message sees.
#[derive(Clone, Debug, PartialEq)]
pub enum LiveEvent {
    /// A turn began to work on it.
    Started,
    /// The answer so far, whole, already filtered; replaces what was shown before.
    Text(String),
    /// There is no answer yet and the turn goes on: one plain line.
    Waiting(String),
    /// The plan of the work, whole, as Markdown; replaces what was shown of it before.
    Plan(String),
    /// What runs now, in a word or two; an empty one: nothing.
    Step(String),
    /// It is settled.
    Settled(Settled),
}

/// The end of a message.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settled {
    /// The parts of its answer, in order.
    pub parts: Vec<SettledPart>,
    /// It was answered by silence: the reason's name, e.g. `no_reply`.
    pub silent: Option<String>,
    /// The turn failed: one plain line. The parts then hold the notice that the person gets.
    pub failed: Option<String>,
    /// It was collected into a turn that answers this newer message instead.
    pub merged_into: Option<InboxId>,
}

/// One part of a settled answer.
#[derive(Clone, Debug, PartialEq)]
pub struct SettledPart {
    /// Its id, the same in every form of delivery.
    pub id: PartId,
    /// From 1.
    pub seq: u32,
    /// The last of its answer.
    pub last: bool,
    /// What the adapter rendered.
    pub part: crate::Part,
    /// When it was committed, in epoch milliseconds.
    pub created_at: i64,
}
