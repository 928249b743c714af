//! What a person sees of an answer before it is whole: previews that grow, marks on the question.
//!
//! A platform that cannot edit shows nothing or one line, never a row of messages. Everything here is best effort and at
//! most once; what must arrive comes by [`crate::Channel::send`].

use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::{Address, SendError};

/// Showing an answer that is being written.
#[async_trait]
pub trait LiveEdit: Send + Sync {
    /// How much is shown there: private chats and groups may differ.
    fn pace(&self, to: &Address) -> LivePace;

    /// Shows the first of it. A lost preview is not repeated.
    ///
    /// # Errors
    /// [`SendError`]; the caller gives the preview up on any.
    async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError>;

    /// Shows `text` (whole, Markdown, cut by the adapter where it does not fit) instead of what was shown.
    ///
    /// # Errors
    /// [`SendError`]; the caller gives the preview up on any but `RetryAfter`.
    async fn update(&self, to: &Address, preview: &Preview, text: &str) -> Result<(), SendError>;

    /// There is no final text that would take its place: takes it away, or closes it where it cannot be taken away.
    async fn drop_preview(&self, _to: &Address, _preview: &Preview) {}

    /// Puts a mark on the message `platform_id` (as in [`crate::Inbound`]) in place of the bot's earlier one.
    async fn mark(&self, _to: &Address, _platform_id: &str, _mark: Mark) {}
}

/// How much of an answer is shown before it is whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LivePace {
    /// Nothing.
    Off,
    /// A preview that grows.
    Edits {
        /// Nothing is shown before there are so many characters: a notification shows the first of them only.
        first: usize,
        /// The smallest pause between two updates.
        every: Duration,
        /// The most updates of one preview, where the platform counts them. The final text is not among them.
        most: Option<u32>,
    },
    /// One line that says the work goes on, when no answer has come for this long.
    OneLine {
        /// The silence before it.
        after: Duration,
    },
}

/// Something shown by [`LiveEdit::begin`]. Kept in the turn's row, so that a restart finds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Preview {
    /// What the adapter needs to change it: opaque to everyone else, at most 512 bytes.
    pub id: String,
    /// The first part of the answer takes its place ([`crate::SendKey::replaces`]). Otherwise it vanishes by itself or
    /// stays beside the answer.
    pub replaced: bool,
}

/// How the gateway stands to a message, shown as a reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// Stored; it will be answered. 👀
    Seen,
    /// A turn works on it. 🤔
    Working,
    /// Answered. 👍
    Done,
    /// It failed. 😱
    Failed,
    /// No mark: the answer itself says it.
    None,
}
