//! Where an answer goes: the bot that heard the question and the chat it heard it in. Pure.

use channel_api::{Address, ChannelId, Conversation, ConversationKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::ids;

/// A chat of one bot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chat {
    /// A group.
    Group(String),
    /// One person.
    Private(String),
    /// One person who is no friend, met in this group.
    Temporary(String, String),
    /// A channel of a guild: the guild and the channel.
    Guild(String, String),
}

/// The address of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The bot's number.
    pub bot: String,
    /// The chat.
    pub chat: Chat,
    /// The message that is answered, shown above the first part where many can read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
}

impl Chat {
    /// A name that no other chat of the bot has; the lane of its answers.
    pub fn name(&self) -> String {
        match self {
            Self::Group(group) => format!("group:{group}"),
            Self::Private(user) | Self::Temporary(user, _) => format!("private:{user}"),
            Self::Guild(guild, channel) => format!("guild:{guild}/{channel}"),
        }
    }

    /// The chat of a name: a temporary one comes back as an ordinary one.
    pub fn of_name(name: &str) -> Option<Self> {
        let (kind, id) = name.split_once(':')?;
        match kind {
            "group" => Some(Self::Group(id.to_owned())),
            "private" => Some(Self::Private(id.to_owned())),
            "guild" => id.split_once('/').map(|(guild, channel)| Self::Guild(guild.to_owned(), channel.to_owned())),
            _ => None,
        }
    }

    /// Many can read it.
    pub fn is_group(&self) -> bool {
        matches!(self, Self::Group(_) | Self::Guild(..))
    }

    /// As the gateway knows it.
    pub fn conversation(&self, title: Option<String>) -> Conversation {
        let (kind, id, thread) = match self {
            Self::Group(group) => (ConversationKind::Group, group, None),
            Self::Private(user) | Self::Temporary(user, _) => (ConversationKind::Direct, user, None),
            Self::Guild(guild, channel) => (ConversationKind::Group, guild, Some(channel.clone())),
        };
        Conversation { kind, id: id.clone(), thread, title }
    }

    /// The parameters that name it in a call. Guild ids are texts, whatever they look like.
    pub fn parameters(&self) -> Map<String, Value> {
        let mut map = Map::new();
        match self {
            Self::Group(group) => {
                map.insert("group_id".to_owned(), ids::parameter(group));
            }
            Self::Private(user) => {
                map.insert("user_id".to_owned(), ids::parameter(user));
            }
            Self::Temporary(user, group) => {
                map.insert("user_id".to_owned(), ids::parameter(user));
                map.insert("group_id".to_owned(), ids::parameter(group));
            }
            Self::Guild(guild, channel) => {
                map.insert("guild_id".to_owned(), Value::from(guild.as_str()));
                map.insert("channel_id".to_owned(), Value::from(channel.as_str()));
            }
        }
        map
    }
}

impl Target {
    /// As the gateway carries it.
    pub fn address(&self, channel: &ChannelId) -> Address {
        let data = serde_json::to_value(self).unwrap_or(Value::Null);
        Address { channel: channel.clone(), lane: self.chat.name(), data }
    }

    /// What [`Target::address`] made.
    pub fn of(address: &Address) -> Option<Self> {
        Self::deserialize(&address.data).ok()
    }
}

/// The key of a message: its id alone is not enough, it is a hash that comes again.
pub fn key(chat: &Chat, message: &str, time: i64) -> String {
    format!("{}:{message}:{time}", chat.name())
}

/// The message's own id in what [`key`] made, or in `chat:message`, or bare.
pub fn message_in(key: &str) -> Option<&str> {
    let mut pieces = key.trim().split(':');
    let id = match (pieces.next()?, pieces.next(), pieces.next()) {
        (id, None, None) => id,
        ("group" | "private" | "guild", Some(_), Some(id)) => id,
        _ => return None,
    };
    (!id.is_empty()).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_comes_back_from_its_address() {
        let channel = ChannelId::new("onebot", "qq");
        for chat in [
            Chat::Group("1".into()),
            Chat::Private("2".into()),
            Chat::Temporary("2".into(), "1".into()),
            Chat::Guild("72057594037927936".into(), "1".into()),
        ] {
            let target = Target { bot: "9".into(), chat: chat.clone(), reply: Some("-5".into()) };
            let address = target.address(&channel);
            assert_eq!(Target::of(&address), Some(target));
            assert_eq!(Chat::of_name(&chat.name()).map(|chat| chat.name()), Some(chat.name()));
            assert_eq!(message_in(&key(&chat, "-5", 1_700_000_000)), Some("-5"));
        }
        assert_eq!(message_in("-5"), Some("-5"));
        assert_eq!(message_in("group:1:-5"), Some("-5"));
        assert_eq!(message_in("poke:group:1"), None);
        assert_eq!(message_in(""), None);
        assert_eq!(Target::of(&Address { channel, lane: String::new(), data: Value::Null }), None);
    }
}
