//! Where messages come from and where replies go: channel, conversation and address.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One account on one kind of platform, written `kind:account`, e.g. `webhook:bridge`.
///
/// An open string: the gateway has no list of platforms. Both halves are lower-case ASCII letters, digits, `_` and `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ChannelId(String);

impl ChannelId {
    /// The channel `kind:account`.
    pub fn new(kind: &str, account: &str) -> Self {
        Self(format!("{kind}:{account}"))
    }

    /// The platform's kind, e.g. `webhook`.
    pub fn kind(&self) -> &str {
        self.0.split_once(':').map_or(self.0.as_str(), |(kind, _)| kind)
    }

    /// The account's name in the configuration, e.g. `bridge`.
    pub fn account(&self) -> &str {
        self.0.split_once(':').map_or("", |(_, account)| account)
    }

    /// `kind:account`.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for ChannelId {
    /// Takes an id read from a row as it is.
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether one person or many can read what is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConversationKind {
    /// One person and the bot.
    Direct,
    /// A group, channel or room.
    Group,
}

/// The conversation a message belongs to. Ids are the platform's immutable ones, compared exactly.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Conversation {
    /// Direct or group.
    pub kind: ConversationKind,
    /// The peer's id in a direct chat, the group's id in a group.
    pub id: String,
    /// The topic or thread within it, if any: a session of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<String>,
    /// A name for people; never compared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
}

/// Where a reply goes. Made and read by the same adapter; everyone else only compares `lane`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// The channel that sends.
    pub channel: ChannelId,
    /// One target of that channel: parts with the same channel and lane are sent strictly one after the other.
    pub lane: String,
    /// What the adapter needs to send there.
    pub data: Value,
}
