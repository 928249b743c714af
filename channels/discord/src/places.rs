//! What is known of servers' channels and threads, and which roles are the bot's own: learned from the gateway, asked for
//! where it is not known. A thread is a channel of its own to Discord; here it is a thread of its parent.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
};

use serde_json::Value;

use crate::target::id;

/// The most channels that are remembered: more than ten of the largest servers have.
const MOST: usize = 20_000;
/// The longest name, in characters.
const NAME_CHARS: usize = 100;

/// One channel or thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The channel that a thread belongs to.
    pub parent: Option<String>,
    /// Its name, for people.
    pub name: Option<String>,
}

/// All that are known. Shared by the relay, which learns, and the inbox, which asks.
#[derive(Default)]
pub struct Places {
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    places: HashMap<String, Place>,
    roles: HashSet<String>,
}

impl Places {
    /// Learns from an event. `true`: it was about places, and is of no use to anyone else.
    pub fn learn(&self, event: &str, data: &Value, me: Option<&str>) -> bool {
        let lists: &[&str] = match event {
            "GUILD_CREATE" => &["channels", "threads"],
            "THREAD_LIST_SYNC" => &["threads"],
            "CHANNEL_CREATE" | "CHANNEL_UPDATE" | "THREAD_CREATE" | "THREAD_UPDATE" => &[],
            "GUILD_ROLE_CREATE" | "GUILD_ROLE_UPDATE" => {
                self.learn_role(data.get("role").unwrap_or(&Value::Null), me);
                return true;
            }
            _ => return false,
        };
        if lists.is_empty() {
            self.add(data);
        }
        for channel in lists.iter().filter_map(|list| data.get(list).and_then(Value::as_array)).flatten() {
            self.add(channel);
        }
        for role in data.get("roles").and_then(Value::as_array).into_iter().flatten() {
            self.learn_role(role, me);
        }
        true
    }

    /// One channel as Discord describes it.
    pub fn add(&self, channel: &Value) {
        let Some(channel_id) = id(channel, "id") else { return };
        let kind = channel.get("type").and_then(Value::as_u64);
        let thread = matches!(kind, Some(10..=12));
        let name = channel.get("name").and_then(Value::as_str).map(|name| name.chars().take(NAME_CHARS).collect());
        let place = Place { parent: id(channel, "parent_id").filter(|_| thread), name };
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if known.places.len() < MOST || known.places.contains_key(&channel_id) {
            known.places.insert(channel_id, place);
        }
    }

    /// The role that Discord made for the bot itself: who mentions it means the bot.
    fn learn_role(&self, role: &Value, me: Option<&str>) {
        let ours = role.get("tags").and_then(|tags| id(tags, "bot_id"));
        if let (Some(role), Some(ours)) = (id(role, "id"), ours)
            && Some(ours.as_str()) == me
        {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            if known.roles.len() < MOST {
                known.roles.insert(role);
            }
        }
    }

    /// The channel or thread with this id.
    pub fn get(&self, id: &str) -> Option<Place> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).places.get(id).cloned()
    }

    /// Whether a role is the bot's own.
    pub fn is_our_role(&self, id: &str) -> bool {
        self.known.lock().unwrap_or_else(PoisonError::into_inner).roles.contains(id)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_server_tells_its_channels_threads_and_our_role() {
        let places = Places::default();
        let guild = json!({
            "id": "1",
            "channels": [{"id": "10", "type": 0, "name": "general", "parent_id": "9"}, {"type": 0}, 7],
            "threads": [{"id": "11", "type": 11, "name": "a thread", "parent_id": "10"}],
            "roles": [
                {"id": "1", "name": "@everyone"},
                {"id": "2", "tags": {"bot_id": "42"}},
                {"id": "3", "tags": {"bot_id": "43"}},
            ],
        });
        assert!(places.learn("GUILD_CREATE", &guild, Some("42")));
        assert_eq!(places.get("10"), Some(Place { parent: None, name: Some("general".into()) }));
        assert_eq!(places.get("11"), Some(Place { parent: Some("10".into()), name: Some("a thread".into()) }));
        assert!(places.is_our_role("2") && !places.is_our_role("1") && !places.is_our_role("3"));
        assert!(places.learn("THREAD_CREATE", &json!({"id": "12", "type": 12, "parent_id": "10"}), None));
        assert_eq!(places.get("12").and_then(|place| place.parent).as_deref(), Some("10"));
        assert!(!places.learn("MESSAGE_CREATE", &json!({"id": "13"}), None));
    }
}
