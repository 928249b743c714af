//! Station 5's names: which session a message belongs to. Pure.

use std::fmt;

use channel_api::{ChannelId, Conversation, ConversationKind};
use serde::{Deserialize, Serialize};

/// The key of one session, e.g. `agent:main:telegram:direct:42`. Messages of one session are answered one after another
/// and share a history. Its parts are the platform's ids as they came: never lower-cased, for some platforms' ids
/// differ only in case.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionKey(String);

impl SessionKey {
    /// The session of a conversation (design.md §5). Where ids mean nothing outside their account, `account_in_key`
    /// puts the account in. A `:` or `%` inside an id is written `%3A` or `%25`, so that no two conversations share a key.
    pub fn of(agent: &str, channel: &ChannelId, account_in_key: bool, conversation: &Conversation) -> Self {
        let mut key = format!("agent:{agent}:{}", channel.kind());
        if account_in_key {
            key.push(':');
            key.push_str(channel.account());
        }
        key.push_str(match conversation.kind {
            ConversationKind::Direct => ":direct:",
            ConversationKind::Group => ":group:",
        });
        push_escaped(&mut key, &conversation.id);
        if let Some(thread) = &conversation.thread {
            key.push_str(if channel.kind() == "telegram" { ":topic:" } else { ":thread:" });
            push_escaped(&mut key, thread);
        }
        Self(key)
    }

    /// The session of all direct chats of a person whose senders are linked: `agent:main:direct:ada`.
    pub fn person(agent: &str, name: &str) -> Self {
        let mut key = format!("agent:{agent}:direct:");
        push_escaped(&mut key, name);
        Self(key)
    }

    /// The web chat's session: `agent:main:main`, or `agent:main:web:<id>` when the caller names one.
    pub fn web(agent: &str, session: Option<&str>) -> Self {
        match session {
            None => Self(format!("agent:{agent}:main")),
            Some(id) => {
                let mut key = format!("agent:{agent}:web:");
                push_escaped(&mut key, id);
                Self(key)
            }
        }
    }

    /// A sub-agent's session.
    pub fn subagent(agent: &str, id: &str) -> Self {
        let mut key = format!("agent:{agent}:subagent:");
        push_escaped(&mut key, id);
        Self(key)
    }

    /// Whether it is a sub-agent's.
    pub fn is_subagent(&self) -> bool {
        self.0
            .strip_prefix("agent:")
            .and_then(|rest| rest.split_once(':'))
            .is_some_and(|(_, rest)| rest.starts_with("subagent:"))
    }

    /// The id of its agent.
    pub fn agent(&self) -> &str {
        let rest = self.0.strip_prefix("agent:").unwrap_or(&self.0);
        rest.split(':').next().unwrap_or(rest)
    }

    /// What the keys of a group's sessions have after their agent: `:telegram:group:-100`.
    pub fn group_segment(channel: &ChannelId, account_in_key: bool, group: &str) -> String {
        let mut segment = format!(":{}", channel.kind());
        if account_in_key {
            segment.push(':');
            segment.push_str(channel.account());
        }
        segment.push_str(":group:");
        push_escaped(&mut segment, group);
        segment
    }

    /// The key under the new id when this is a session of the group `from`, a topic or thread of it included.
    pub fn moved(&self, channel: &ChannelId, account_in_key: bool, from: &str, to: &str) -> Option<Self> {
        let old = Self::group_segment(channel, account_in_key, from);
        let agent = self.0.strip_prefix("agent:")?.split_once(':')?.0;
        let rest = self.0["agent:".len() + agent.len()..].strip_prefix(&old)?;
        (rest.is_empty() || rest.starts_with(':'))
            .then(|| Self(format!("agent:{agent}{}{rest}", Self::group_segment(channel, account_in_key, to))))
    }

    /// As stored and shown.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for SessionKey {
    /// Takes a key read from a row or a person as it is.
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn push_escaped(key: &mut String, id: &str) {
    for c in id.chars() {
        match c {
            ':' => key.push_str("%3A"),
            '%' => key.push_str("%25"),
            c if c.is_control() => key.push_str(&format!("%{:02X}", c as u32)),
            c => key.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conversation(kind: ConversationKind, id: &str, thread: Option<&str>) -> Conversation {
        Conversation { kind, id: id.into(), thread: thread.map(Into::into), title: None }
    }

    #[test]
    fn keys_are_the_ones_openclaw_users_know() {
        use ConversationKind::{Direct, Group};
        let telegram = ChannelId::new("telegram", "main");
        let webhook = ChannelId::new("webhook", "bridge");
        let key = |channel: &ChannelId, account, conversation: Conversation| {
            SessionKey::of("main", channel, account, &conversation).to_string()
        };
        assert_eq!(key(&telegram, false, conversation(Direct, "42", None)), "agent:main:telegram:direct:42");
        assert_eq!(
            key(&telegram, false, conversation(Group, "-100", Some("7"))),
            "agent:main:telegram:group:-100:topic:7"
        );
        assert_eq!(key(&webhook, true, conversation(Direct, "Room", None)), "agent:main:webhook:bridge:direct:Room");
        assert_eq!(
            key(&webhook, true, conversation(Group, "a:thread:b", None)),
            "agent:main:webhook:bridge:group:a%3Athread%3Ab"
        );
        assert_eq!(SessionKey::person("main", "ada").as_str(), "agent:main:direct:ada");
        assert_eq!(SessionKey::web("main", None).as_str(), "agent:main:main");
        assert_eq!(SessionKey::web("main", Some("x")).as_str(), "agent:main:web:x");
    }

    #[test]
    fn a_group_that_moves_takes_its_topics_along_and_nothing_else() {
        let (telegram, webhook) = (ChannelId::new("telegram", "main"), ChannelId::new("webhook", "b"));
        let table = [
            ("agent:main:telegram:group:-1", &telegram, Some("agent:main:telegram:group:-1002")),
            ("agent:other:telegram:group:-1:topic:7", &telegram, Some("agent:other:telegram:group:-1002:topic:7")),
            ("agent:main:telegram:group:-10", &telegram, None),
            ("agent:main:telegram:direct:-1", &telegram, None),
            ("agent:main:main", &telegram, None),
            ("agent:main", &telegram, None),
            ("agent:main:webhook:b:group:-1", &webhook, Some("agent:main:webhook:b:group:-1002")),
            ("agent:main:webhook:other:group:-1", &webhook, None),
            ("agent:main:webhook:b:direct:x%3Awebhook%3Ab%3Agroup%3A-1", &webhook, None),
        ];
        for (key, channel, expected) in table {
            let moved = SessionKey::from(key.to_owned()).moved(channel, channel.kind() == "webhook", "-1", "-1002");
            assert_eq!(moved.as_ref().map(SessionKey::as_str), expected, "{key}");
        }
    }
}
