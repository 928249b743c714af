//! What goes out: a reply, the platform messages it becomes, and what a platform said to each.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{Attachment, PartId};

/// One answer of the agent (or a notice of the gateway), before it is fitted to a platform.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// What it is.
    pub kind: ReplyKind,
    /// Markdown (CommonMark).
    pub text: String,
    /// Files to send with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<Attachment>,
    /// The platform id of the message to quote, where the reply asks for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quote: Option<String>,
    /// Rows of buttons under it. Where the platform has none, nothing is lost: the text says what can be typed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<Vec<Button>>,
}

/// A button under a message. Who presses it says `data`, with their own rights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Button {
    /// What stands on it.
    pub label: String,
    /// The text that a press stands for: a command of the gateway, at most 60 bytes (Telegram allows 64).
    pub data: String,
}

impl Reply {
    /// A plain message.
    pub fn message(text: impl Into<String>) -> Self {
        Self { kind: ReplyKind::Message, text: text.into(), attachments: Vec::new(), quote: None, buttons: Vec::new() }
    }

    /// An honest line that something failed.
    pub fn error(text: impl Into<String>) -> Self {
        Self { kind: ReplyKind::Error, ..Self::message(text) }
    }
}

/// What kind of [`Reply`] this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplyKind {
    /// An answer.
    Message,
    /// A line that says the turn failed.
    Error,
    /// A word of the gateway itself: the answer to a command, a refusal.
    Notice,
}

/// How much of the formatting survives: delivery asks for `Plain` after a platform refused `Rich`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// The best this platform shows.
    Rich,
    /// Plain text of the same content.
    Plain,
}

/// One platform message: it fits the platform's limits and is sent by one visible call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// The text as a person will read it: for the dashboard, the trace and `reconcile`.
    pub text: String,
    /// What the adapter's `send` needs; opaque to everyone else.
    pub body: Value,
}

/// What identifies one send: the same on every retry, after a restart too.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SendKey {
    /// The part's id: the idempotency key, where the platform takes one.
    pub part: PartId,
    /// This part's place among the parts of its reply, from 1.
    pub seq: u32,
    /// The last part of its reply.
    pub last: bool,
    /// The platform id of the message that is answered, if any.
    pub in_reply_to: Option<String>,
    /// When the part was committed, in epoch milliseconds: the same on every retry.
    pub created_at: i64,
    /// A resend after an unknown outcome, to be marked as such where the platform cannot deduplicate.
    pub resend: bool,
    /// The preview ([`crate::Preview::id`]) whose place this part takes, by an edit that may be repeated. Where it is gone,
    /// the part is sent as a message of its own.
    pub replaces: Option<String>,
}

/// A platform's answer to a send.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// The platform's id of the new message, if it gave one.
    pub platform_id: Option<String>,
}

/// Why a send did not give a receipt, named by what delivery does next.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The platform asked to wait; nothing was sent.
    #[error("the platform asks to wait {0:?}")]
    RetryAfter(Duration),
    /// Nothing was sent; try again with growing pauses.
    #[error("not sent: {0}")]
    Retry(String),
    /// Bytes left and no answer came: it may have been sent. Never repeated blindly.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// This format was refused; render again at this level and replace the unsent parts.
    #[error("the platform refused the format")]
    Rerender(Level),
    /// The platform refused for good: this part will never be accepted.
    #[error("refused: {0}")]
    Refused(String),
    /// The whole channel cannot send (revoked token, disabled endpoint); its lanes wait.
    #[error("channel down: {0}")]
    ChannelDown(String),
}

/// What became of a part whose send was cut off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reconciled {
    /// It arrived.
    Found(Receipt),
    /// It certainly did not.
    Absent,
    /// It may be sent again under the same key: the platform drops the second copy.
    SafeToRepeat,
    /// The platform cannot say.
    CannotTell,
}
