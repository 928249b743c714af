//! Where a message of Discord goes: what stands in the `data` of this channel's addresses. Also the one place that says
//! what an id of Discord looks like, since ids become parts of addresses.

use channel_api::{Address, ChannelId};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The epoch of Discord's ids, in epoch milliseconds.
const EPOCH_MS: u64 = 1_420_070_400_000;
/// How long an interaction can be answered in place: 15 minutes, with some room.
const TOKEN_MS: i64 = 14 * 60 * 1_000;

/// A channel or thread, a message in it, a slash command that waits there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Target {
    /// The channel, or the thread, that is written to.
    pub channel: String,
    /// The message that an answer shows itself a reply to: set in servers, where others may write in between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reply: Option<String>,
    /// The slash command whose own answer the first part becomes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<Command>,
}

/// A slash command that was acknowledged and waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Command {
    /// The application.
    pub app: String,
    /// What its answer is sent with; good for 15 minutes.
    pub token: String,
    /// When it came, in epoch milliseconds.
    pub at: i64,
    /// Only the one who gave it sees the answer.
    #[serde(default)]
    pub hidden: bool,
}

impl Command {
    /// Whether its answer can still be given in place.
    pub fn waits(&self, now_ms: i64) -> bool {
        now_ms.saturating_sub(self.at) < TOKEN_MS
    }
}

impl Target {
    /// As an address. One channel is one lane: Discord's pace counts by channel.
    pub fn address(&self, channel: &ChannelId) -> Address {
        Address { channel: channel.clone(), lane: self.channel.clone(), data: serde_json::json!(self) }
    }

    /// From an address; `None` when it is not one of this channel's.
    pub fn of(address: &Address) -> Option<Self> {
        let target = Self::deserialize(&address.data).ok()?;
        let mut ids =
            std::iter::once(&target.channel).chain(&target.reply).chain(target.command.iter().map(|c| &c.app));
        let token = target.command.as_ref().is_none_or(|command| is_token(&command.token));
        (token && ids.all(|id| is_id(id))).then_some(target)
    }
}

/// Whether a text is an id: it may then stand in an address.
pub fn is_id(text: &str) -> bool {
    (1..=20).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether a text may be the token of an interaction.
pub fn is_token(text: &str) -> bool {
    (1..=1_024).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'='))
}

/// The id under a key: digits as a text, as Discord writes it, or as a whole number.
pub fn id(value: &Value, key: &str) -> Option<String> {
    let id = match value.get(key)? {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_u64()?.to_string(),
        _ => return None,
    };
    is_id(&id).then_some(id)
}

/// An id as a number, for its order.
pub fn order(id: &str) -> u64 {
    id.parse().unwrap_or(0)
}

/// When the thing with this id was made, in epoch milliseconds.
pub fn made_at(id: &str) -> i64 {
    i64::try_from((order(id) >> 22).saturating_add(EPOCH_MS)).unwrap_or(i64::MAX)
}

/// The smallest id of this moment.
pub fn id_at(epoch_ms: i64) -> u64 {
    (u64::try_from(epoch_ms).unwrap_or(0).saturating_sub(EPOCH_MS)) << 22
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bad_input_34_ids_stay_digits_or_are_none() {
        let value = json!({
            "text": "1234567890123456789", "number": 1234567890123456789_u64, "float": 1.0e9, "negative": -1,
            "path": "../users", "empty": "", "long": "1".repeat(21), "null": null,
        });
        assert_eq!(id(&value, "text").as_deref(), Some("1234567890123456789"));
        assert_eq!(id(&value, "number").as_deref(), Some("1234567890123456789"));
        for key in ["float", "negative", "path", "empty", "long", "null", "none"] {
            assert_eq!(id(&value, key), None, "{key}");
        }
    }

    #[test]
    fn an_id_tells_its_time() {
        // The example of Discord's own reference.
        assert_eq!(made_at("175928847299117063"), 1_462_015_105_796);
        assert!(id_at(1_462_015_105_796) <= 175_928_847_299_117_063);
        assert_eq!(made_at(&id_at(1_462_015_105_796).to_string()), 1_462_015_105_796);
    }

    #[test]
    fn a_foreign_address_is_none_of_ours() {
        let channel = ChannelId::new("discord", "main");
        let target = Target { channel: "5".into(), reply: Some("6".into()), command: None };
        assert_eq!(Target::of(&target.address(&channel)), Some(target));
        for data in [json!({}), json!({"channel": "../@me"}), json!({"channel": "5", "reply": "x"}), json!(null)] {
            assert_eq!(Target::of(&Address { channel: channel.clone(), lane: "5".into(), data }), None);
        }
    }
}
