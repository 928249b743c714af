//! Where a message of Telegram goes: what stands in the `data` of this channel's addresses.

use channel_api::{Address, ChannelId};
use serde::{Deserialize, Serialize};
use teloxide::types::{ChatId, MessageId, Recipient, ThreadId};

/// The topic "General" of a forum. Telegram knows it by this id where something is shown in it, and refuses the id where
/// a message is sent to it.
const GENERAL: i32 = 1;

/// A chat, a topic of it, a message in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The chat.
    pub chat: i64,
    /// The topic, 1 for a forum's "General".
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<i32>,
    /// The message that an answer shows itself a reply to: set in groups, where others may write in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<i32>,
}

impl Target {
    /// As an address. One chat is one lane: Telegram's pace counts by chat.
    pub fn address(&self, channel: &ChannelId) -> Address {
        let data = serde_json::json!(self);
        Address { channel: channel.clone(), lane: self.chat.to_string(), data }
    }

    /// From an address; `None` when it is not one of this channel's.
    pub fn of(address: &Address) -> Option<Self> {
        Self::deserialize(&address.data).ok()
    }

    /// The chat as the Bot API's payloads take it.
    pub fn recipient(&self) -> Recipient {
        Recipient::Id(ChatId(self.chat))
    }

    /// `message_thread_id` of a message.
    pub fn thread_to_send(&self) -> Option<ThreadId> {
        self.thread.filter(|thread| *thread != GENERAL).map(|thread| ThreadId(MessageId(thread)))
    }

    /// `message_thread_id` of a chat action: here "General" is named.
    pub fn thread_to_show(&self) -> Option<ThreadId> {
        self.thread.map(|thread| ThreadId(MessageId(thread)))
    }
}
