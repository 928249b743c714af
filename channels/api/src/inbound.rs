//! What comes in: one platform event as a platform-free value.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Address, ChannelId, Conversation, ConversationKind};

/// One event of a platform, normalised. Pure data: making it performs no IO.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inbound {
    /// The channel that received it.
    pub channel: ChannelId,
    /// The platform's id of this event, unique within the channel: the key that makes a second delivery harmless.
    pub platform_id: String,
    /// SHA-256 (hex) of the raw body, on platforms where the same id with another body is an error of the sender.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// What happened.
    #[serde(default)]
    pub kind: InboundKind,
    /// The platform id of the earlier message that was changed, deleted or reacted to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub about: Option<String>,
    /// Where it was said.
    pub conversation: Conversation,
    /// Who said it.
    pub sender: Sender,
    /// The words, without platform markup. May be empty when there are attachments.
    pub text: String,
    /// Pictures, voice, files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// The bot was addressed: a mention, a reply to it, or any direct message.
    pub mentions_us: bool,
    /// The message it answers, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply_to: Option<ReplyTo>,
    /// When the platform says it was written, in epoch milliseconds. For display only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<i64>,
    /// Where the answer goes.
    pub address: Address,
    /// Whether the words are the sender's own.
    #[serde(default)]
    pub trust: Trust,
    /// The platform is known to cut such messages in pieces: wait this long for the rest before a turn starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub more_expected: Option<Duration>,
    /// The queue mode that this request's own protocol fixes (a synchronous caller wants one turn for one message).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<QueueMode>,
    /// The caller waits on its own connection for the answer: parts are held for it instead of being sent at once.
    #[serde(default)]
    pub hold: bool,
}

impl Inbound {
    /// Whether it was said to the bot: anything in a direct chat, in a group what addresses it. Nothing shows in a group
    /// (typing, notices, errors) on account of a message that was not.
    pub fn addressed(&self) -> bool {
        self.mentions_us || self.conversation.kind == ConversationKind::Direct
    }

    /// Leaves the files where they are: what [`crate::Intake::wants_files`] says no to. Each says so, unless it has a reason
    /// of its own; bytes, links and ids of them are not kept.
    pub fn leave_files(&mut self) {
        for attachment in &mut self.attachments {
            attachment.media = None;
            attachment
                .unavailable
                .get_or_insert_with(|| "not fetched: the bot does not answer this message".to_owned());
        }
    }

    /// The event as it were if it addressed the bot. What stands behind it (a quote, forwarded messages) is asked for only
    /// when [`crate::Intake::wants_files`] of this one: then its sender may speak here.
    pub fn as_if_addressed(&self) -> Self {
        Self { mentions_us: true, ..self.clone() }
    }
}

/// What kind of event an [`Inbound`] is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InboundKind {
    /// A new message.
    #[default]
    Message,
    /// A message that was changed after it was sent: `about` names it, `text` is what it says now.
    Edit,
    /// A message that was deleted: `about` names it.
    Deleted,
    /// A pressed button, or a command chosen from a menu: `text` is what it stands for.
    Button,
    /// A reaction.
    Reaction,
}

/// Who wrote a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sender {
    /// The platform's immutable id. Rights follow this and nothing else.
    pub id: String,
    /// A name for people and the model; never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Another bot.
    #[serde(default)]
    pub is_bot: bool,
}

/// Whether words carry their sender's rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trust {
    /// The sender's own words: they carry the sender's role.
    #[default]
    Own,
    /// Forwarded, sent by way of another bot, or from an anonymous sender: no rights are inherited.
    Relayed,
}

/// The message that another one answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyTo {
    /// Its platform id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Its text, where the platform gives it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// Who wrote it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender_id: Option<String>,
    /// The bot itself wrote it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ours: bool,
}

/// A file that came with a message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attachment {
    /// What it is.
    pub kind: AttachmentKind,
    /// Its bytes, or why there are none.
    pub media: Option<MediaRef>,
    /// The file's name as the sender gave it. Input: never a path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Why the file is not available, in a few plain words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unavailable: Option<String>,
}

/// The kinds of files people send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AttachmentKind {
    /// A picture.
    Image,
    /// Voice or music.
    Audio,
    /// A film.
    Video,
    /// Anything else.
    File,
}

/// A file in the gateway's media store, or a link to one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MediaRef {
    /// Where the bytes are.
    pub source: MediaSource,
    /// Its media type, e.g. `image/png`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mime: Option<String>,
    /// Its size in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
}

/// Where the bytes of a [`MediaRef`] are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MediaSource {
    /// Stored under this name (SHA-256 in hex) in the media folder.
    Stored(String),
    /// Not fetched: a link as the sender gave it. Input: fetched through the guarded egress client only.
    Url(String),
}

/// What happens to messages that arrive while a turn of their session runs. design.md §5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueMode {
    /// What arrived becomes one next turn.
    Collect,
    /// One turn for each message.
    Followup,
    /// Handed to the running turn at its next checkpoint.
    Steer,
    /// The running turn is stopped and the newest message starts its own.
    Interrupt,
}

impl QueueMode {
    /// The name in configuration, chat and rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Collect => "collect",
            Self::Followup => "followup",
            Self::Steer => "steer",
            Self::Interrupt => "interrupt",
        }
    }

    /// The mode of that name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Collect, Self::Followup, Self::Steer, Self::Interrupt].into_iter().find(|mode| mode.as_str() == name)
    }
}
