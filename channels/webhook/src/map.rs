//! Where things stand in a body, as JSON pointers: ours by default, a foreign program's by configuration.

use serde::Deserialize;

use crate::config::ConfigError;

/// JSON pointers (RFC 6901, e.g. `/message/text`) into a foreign body. Ids there may be whole numbers.
///
/// What is not mapped gets a fair default: the conversation is the sender's, the sender is the conversation's, both are
/// `default` if neither is mapped, and the chat is direct.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Map {
    /// The words. Required.
    pub text: String,
    /// The message's id, unique for this account. Without one the id is a `webhook-id` or `Idempotency-Key` header;
    /// failing that, the SHA-256 of the body and `timestamp`; failing that too, each delivery is a message of its own.
    pub id: Option<String>,
    /// Who wrote it: an id that never changes.
    pub sender_id: Option<String>,
    /// The sender's name.
    pub sender_name: Option<String>,
    /// True for messages of other bots.
    pub is_bot: Option<String>,
    /// The room or chat.
    pub conversation_id: Option<String>,
    /// `direct` (or `private`, `false`) or `group` (or `true`).
    pub conversation_type: Option<String>,
    /// The room's name.
    pub conversation_title: Option<String>,
    /// The thread within the room.
    pub thread_id: Option<String>,
    /// True when a group message addresses the bot.
    pub mentioned: Option<String>,
    /// The id of the message that is answered.
    pub reply_to_id: Option<String>,
    /// The text of the message that is answered.
    pub reply_to_text: Option<String>,
    /// The author of the message that is answered.
    pub reply_to_sender_id: Option<String>,
    /// A list of attachments in our shape.
    pub attachments: Option<String>,
    /// When it was written (RFC 3339).
    pub timestamp: Option<String>,
}

impl Map {
    /// Our own body. protocols.md §5.2.
    pub(crate) fn standard() -> Self {
        let at = |pointer: &str| Some(pointer.to_owned());
        Self {
            text: "/text".to_owned(),
            id: at("/id"),
            sender_id: at("/sender/id"),
            sender_name: at("/sender/name"),
            is_bot: at("/sender/is_bot"),
            conversation_id: at("/conversation/id"),
            conversation_type: at("/conversation/type"),
            conversation_title: at("/conversation/title"),
            thread_id: at("/conversation/thread_id"),
            mentioned: at("/mentioned"),
            reply_to_id: at("/reply_to/id"),
            reply_to_text: at("/reply_to/text"),
            reply_to_sender_id: at("/reply_to/sender_id"),
            attachments: at("/attachments"),
            timestamp: at("/timestamp"),
        }
    }

    /// Every pointer begins with `/` and is of a sane length.
    pub(crate) fn check(&self) -> Result<(), ConfigError> {
        let optional = [
            ("id", &self.id),
            ("sender_id", &self.sender_id),
            ("sender_name", &self.sender_name),
            ("is_bot", &self.is_bot),
            ("conversation_id", &self.conversation_id),
            ("conversation_type", &self.conversation_type),
            ("conversation_title", &self.conversation_title),
            ("thread_id", &self.thread_id),
            ("mentioned", &self.mentioned),
            ("reply_to_id", &self.reply_to_id),
            ("reply_to_text", &self.reply_to_text),
            ("reply_to_sender_id", &self.reply_to_sender_id),
            ("attachments", &self.attachments),
            ("timestamp", &self.timestamp),
        ];
        let given = optional.into_iter().filter_map(|(key, pointer)| Some((key, pointer.as_deref()?)));
        for (key, pointer) in given.chain([("text", self.text.as_str())]) {
            if !pointer.starts_with('/') || pointer.len() > 512 {
                return Err(ConfigError::BadPointer { key });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pointer_that_points_nowhere_is_named() {
        assert_eq!(Map::standard().check(), Ok(()));
        let map = Map { sender_id: Some("user.id".to_owned()), ..Map::standard() };
        assert_eq!(map.check(), Err(ConfigError::BadPointer { key: "sender_id" }));
        assert_eq!(Map::default().check(), Err(ConfigError::BadPointer { key: "text" }));
    }
}
