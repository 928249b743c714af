//! Where a message of QQ goes and what it answers: what stands in the `data` of this channel's addresses.

use std::time::Duration;

use channel_api::{Address, ChannelId};
use serde::{Deserialize, Serialize};

/// A conversation, and the message that gives the right to answer in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// What kind of conversation.
    pub to: Place,
    /// Its id: an openid, a channel's or a guild's id.
    pub id: String,
    /// The message that is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msg_id: Option<String>,
    /// The event that is answered, where it is no message: a pressed button.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    /// When it was received, in epoch milliseconds.
    pub at: i64,
}

/// The kinds of conversations.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// A private chat.
    C2c,
    /// A group.
    Group,
    /// A text channel of a guild.
    Channel,
    /// A private chat by way of a guild.
    Dm,
}

impl Place {
    /// Private chats and groups: the API with Markdown, files and `msg_seq`.
    pub fn is_v2(self) -> bool {
        matches!(self, Self::C2c | Self::Group)
    }

    fn name(self) -> &'static str {
        match self {
            Self::C2c => "c2c",
            Self::Group => "group",
            Self::Channel => "channel",
            Self::Dm => "dm",
        }
    }
}

impl Target {
    /// As an address: one conversation is one lane.
    pub fn address(&self, channel: &ChannelId) -> Address {
        let lane = format!("{}:{}", self.to.name(), self.id);
        Address { channel: channel.clone(), lane, data: serde_json::json!(self) }
    }

    /// From an address; `None` when it is not one of this channel's.
    pub fn of(address: &Address) -> Option<Self> {
        Self::deserialize(&address.data).ok()
    }

    /// What answers are counted by: `msg_id` or `event_id`.
    pub fn answers(&self) -> Option<&str> {
        self.msg_id.as_deref().or(self.event_id.as_deref())
    }

    /// How long it may be answered, a little less than QQ allows. protocols.md §3.
    pub fn window(&self) -> Duration {
        match (self.to, &self.msg_id) {
            (Place::C2c, Some(_)) => Duration::from_secs(60 * 60 - 30),
            _ => Duration::from_secs(5 * 60 - 5),
        }
    }

    /// How many answers it may get.
    pub fn most(&self) -> usize {
        match self.to {
            Place::C2c => 4,
            _ => 5,
        }
    }

    /// The path that messages are posted to.
    pub fn messages(&self) -> Vec<&str> {
        match self.to {
            Place::C2c => vec!["v2", "users", &self.id, "messages"],
            Place::Group => vec!["v2", "groups", &self.id, "messages"],
            Place::Channel => vec!["channels", &self.id, "messages"],
            Place::Dm => vec!["dms", &self.id, "messages"],
        }
    }

    /// The path that files are posted to; `None` where there is none.
    pub fn files(&self) -> Option<Vec<&str>> {
        match self.to {
            Place::C2c => Some(vec!["v2", "users", &self.id, "files"]),
            Place::Group => Some(vec!["v2", "groups", &self.id, "files"]),
            Place::Channel | Place::Dm => None,
        }
    }
}
