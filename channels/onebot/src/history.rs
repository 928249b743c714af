//! What was said while nobody listened: after a reconnect the known chats are asked for their last messages, where the
//! implementation can tell, at most 50 a chat and ten minutes old. Messages that were seen have the same key and are
//! dropped by the gateway. guarantees.md G1.

use std::{collections::BTreeMap, time::Duration};

use channel_api::{ChannelContext, Cursor};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{debug, info};

use crate::{
    OneBot, ids,
    inbound::{self, Said},
    receive,
    target::Chat,
};

/// The most chats that are remembered and asked.
const CHATS: usize = 50;
/// The most messages of one chat.
const MESSAGES: usize = 50;
/// How old they may be, in seconds.
const OLDEST: i64 = 600;
/// How long one question may take, and all of them together.
const ASK: Duration = Duration::from_secs(5);
/// See [`ASK`].
const ALL: Duration = Duration::from_secs(60);

/// The last message of each known chat: its time in epoch seconds and its id.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seen(BTreeMap<String, (i64, String)>);

impl Seen {
    /// What was stored; nothing when it cannot be read.
    pub fn parse(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Adds one; the chats that were quiet longest are forgotten.
    pub fn add(&mut self, chat: &Chat, message: &str, time: i64) {
        let last = self.0.entry(chat.name()).or_default();
        if time >= last.0 {
            *last = (time, message.to_owned());
        }
        while self.0.len() > CHATS {
            let Some(oldest) = self.0.iter().min_by_key(|(_, (time, _))| *time).map(|(name, _)| name.clone()) else {
                return;
            };
            self.0.remove(&oldest);
        }
    }

    /// The chats, most recent first.
    fn chats(&self) -> Vec<(Chat, i64, String)> {
        let mut chats: Vec<_> = self
            .0
            .iter()
            .filter_map(|(name, (time, message))| Some((Chat::of_name(name)?, *time, message.clone())))
            .collect();
        chats.sort_by_key(|(_, time, _)| std::cmp::Reverse(*time));
        chats
    }
}

fn key(bot: &str) -> String {
    format!("seen:{bot}")
}

/// What is committed with a message so that it counts as seen: what was stored before, and it. Other chats may be a moment
/// behind in it; then they are asked for more than they need to be.
pub async fn seen(onebot: &OneBot, ctx: &ChannelContext, bot: &str, said: &Said) -> Option<Cursor> {
    if said.message.is_empty() || said.time <= 0 {
        return None;
    }
    let mut known = onebot.seen.lock().await;
    if !known.contains_key(bot) {
        let stored = ctx.kv.get(&key(bot)).await.ok()?;
        known.insert(bot.to_owned(), stored.as_deref().map(Seen::parse).unwrap_or_default());
    }
    let known = known.get_mut(bot)?;
    // Messages of other chats are committed at the same time: this chat is known to them, as not seen so far.
    known.0.entry(said.chat.name()).or_insert_with(|| (said.time - 1, String::new()));
    let mut seen = known.clone();
    seen.add(&said.chat, &said.message, said.time);
    Some(Cursor { key: key(bot), value: serde_json::to_string(&seen).ok()? })
}

/// A message was stored.
pub async fn stored(onebot: &OneBot, bot: &str, chat: &Chat, message: &str, time: i64) {
    if let Some(seen) = onebot.seen.lock().await.get_mut(bot).filter(|_| !message.is_empty() && time > 0) {
        seen.add(chat, message, time);
    }
}

/// Takes in what the known chats said since their last message.
pub async fn fill(onebot: &OneBot, ctx: &ChannelContext, bot: &str) {
    let Ok(Some(stored)) = ctx.kv.get(&key(bot)).await else { return };
    let oldest = ctx.clock.now_ms() / 1_000 - OLDEST;
    let until = ctx.clock.monotonic() + ALL;
    for (chat, last, message) in Seen::parse(&stored).chats() {
        if ctx.clock.monotonic() >= until {
            info!(bot, "not all chats could be asked for what they said in the meantime");
            return;
        }
        let found = match ask(onebot, bot, &chat, MESSAGES, ASK).await {
            Ok(found) => found,
            Err(error) if receive::is_unsupported(&error) => {
                debug!(bot, "the implementation cannot tell what was said in the meantime");
                return;
            }
            Err(error) => {
                debug!(bot, chat = chat.name(), %error, "a chat could not be asked for what it said in the meantime");
                continue;
            }
        };
        let mut missed: Vec<Value> = found
            .into_iter()
            .filter(|event| {
                let time = inbound::time(event);
                let known = event.get("message_id").and_then(ids::message).as_deref() == Some(message.as_str());
                time >= last.max(oldest) && !known
            })
            .collect();
        // The sort is stable: messages of one second keep the order they came in.
        missed.sort_by_key(inbound::time);
        let skipped = missed.len().saturating_sub(MESSAGES);
        for event in missed.drain(..).skip(skipped) {
            receive::one(onebot, ctx, bot, &event, &mut None).await;
        }
    }
}

/// The last messages of a chat, as events.
///
/// # Errors
/// [`crate::links::CallError`].
pub async fn ask(
    onebot: &OneBot,
    bot: &str,
    chat: &Chat,
    count: usize,
    limit: Duration,
) -> Result<Vec<Value>, crate::links::CallError> {
    let (action, params) = match chat {
        Chat::Group(group) => ("get_group_msg_history", json!({ "group_id": ids::parameter(group), "count": count })),
        Chat::Private(user) | Chat::Temporary(user, _) => {
            ("get_friend_msg_history", json!({ "user_id": ids::parameter(user), "count": count }))
        }
        Chat::Guild(..) => return Ok(Vec::new()),
    };
    let data = onebot.links.call(bot, action, params, limit).await?;
    let messages = data.get("messages").unwrap_or(&data).as_array().cloned().unwrap_or_default();
    Ok(messages.into_iter().filter(Value::is_object).map(|message| as_event(message, chat)).collect())
}

/// A message of the history with what an event has and it may lack.
fn as_event(mut message: Value, chat: &Chat) -> Value {
    if let Some(map) = message.as_object_mut() {
        if map.get("post_type").and_then(Value::as_str) != Some("message_sent") {
            map.insert("post_type".to_owned(), Value::from("message"));
        }
        // Who wrote a private message is never guessed from the chat: it may be the bot itself.
        if let Chat::Group(group) = chat {
            map.entry("group_id").or_insert_with(|| ids::parameter(group));
        }
        let kind = if chat.is_group() { "group" } else { "private" };
        map.insert("message_type".to_owned(), Value::from(kind));
    }
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chats_that_were_quiet_longest_are_forgotten() {
        let mut seen = Seen::default();
        for n in 0..60_i64 {
            seen.add(&Chat::Group(n.to_string()), "-1", 1_000 + n);
        }
        seen.add(&Chat::Group("59".into()), "-2", 10);
        let chats = seen.chats();
        assert_eq!((chats.len(), chats[0].1, chats[0].2.as_str()), (CHATS, 1_059, "-1"));
        assert_eq!(Seen::parse(&serde_json::to_string(&seen).expect("JSON")), seen);
        assert_eq!(Seen::parse("x"), Seen::default());
    }
}
