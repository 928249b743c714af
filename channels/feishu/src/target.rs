//! Where a message of Feishu goes: what stands in the `data` of this channel's addresses.

use channel_api::{Address, ChannelId};
use serde::{Deserialize, Serialize};

/// A chat, a thread of it, a message in it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The chat: `oc_…`. A private chat has one too.
    pub chat: String,
    /// It is a private chat: nothing is quoted there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub direct: bool,
    /// The thread: `omt_…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// It is a group of topics, where a message that answers none opens a new topic.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub topics: bool,
    /// An answer opens a thread under its question. Set by the adapter's configuration at sending.
    #[serde(skip)]
    pub opens_thread: bool,
    /// The message that is answered: `om_…`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
}

impl Target {
    /// As an address. One chat is one lane: Feishu's pace counts by chat.
    pub fn address(&self, channel: &ChannelId) -> Address {
        let data = serde_json::json!(self);
        Address { channel: channel.clone(), lane: self.chat.clone(), data }
    }

    /// From an address; `None` when it is not one of this channel's.
    pub fn of(address: &Address) -> Option<Self> {
        Self::deserialize(&address.data).ok().filter(|target: &Self| !target.chat.is_empty())
    }

    /// Every part of an answer must be a reply, or it leaves its topic.
    pub fn in_thread(&self) -> bool {
        self.thread.is_some() || self.topics
    }
}
