//! Which agent answers a conversation, and which of a person's chats are one: bindings and identity links. Pure.
//!
//! Both follow the platforms' immutable ids. Words whose sender is only told by somebody else are bound by their
//! conversation alone.

use std::collections::BTreeMap;

use channel_api::{ChannelId, Conversation, ConversationKind};
use serde::{Deserialize, Serialize};

/// One of `[agents.<id>] bindings`: conversations that this agent answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Binding {
    /// A channel (`telegram:main`), or every account of a kind (`telegram`).
    pub channel: String,
    /// Direct chats of this sender alone.
    pub sender: Option<String>,
    /// This group alone, its topics and threads included.
    pub group: Option<String>,
    /// This topic or thread of the group alone.
    pub thread: Option<String>,
}

/// What is wrong with a [`Binding`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindingProblem {
    /// It names no channel.
    NoChannel,
    /// A thread without its group.
    ThreadWithoutGroup,
    /// A sender and a group: in a group everybody shares one session.
    SenderInGroup,
    /// A name where an immutable id belongs.
    NotAnId,
}

impl Binding {
    /// What is wrong with it.
    pub fn problem(&self) -> Option<BindingProblem> {
        let ids = [&self.sender, &self.group, &self.thread];
        let bad = |id: &&String| id.trim().is_empty() || id.starts_with('@') || id.as_str() == "*";
        if self.channel.is_empty() {
            Some(BindingProblem::NoChannel)
        } else if self.thread.is_some() && self.group.is_none() {
            Some(BindingProblem::ThreadWithoutGroup)
        } else if self.sender.is_some() && self.group.is_some() {
            Some(BindingProblem::SenderInGroup)
        } else if ids.into_iter().flatten().any(|id| bad(&id)) {
            Some(BindingProblem::NotAnId)
        } else {
            None
        }
    }
}

/// How closely a rule names a conversation: its thread before its group or sender before its channel, one account before a
/// whole kind. The greater one decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Closeness {
    what: What,
    account: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Channel,
    Chat,
    Thread,
}

impl Closeness {
    /// That of `[channels.<kind>.<account>] agent`.
    pub const CHANNEL: Self = Self { what: What::Channel, account: true };
    /// That of `groups.<id>.agent`.
    pub const GROUP: Self = Self { what: What::Chat, account: true };
}

/// Who is spoken to about what: what a rule looks at.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The channel.
    pub channel: &'a ChannelId,
    /// The conversation, its group by the id it has now.
    pub conversation: &'a Conversation,
    /// The sender, where the platform itself says who that is.
    pub sender: Option<&'a str>,
}

/// The bindings of all agents, in the order of the agents' ids.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bindings(Vec<(String, Binding)>);

impl Bindings {
    /// These: agent and binding.
    pub fn new(all: impl IntoIterator<Item = (String, Binding)>) -> Self {
        Self(all.into_iter().collect())
    }

    /// The agent whose binding names the conversation most closely; of two equally close ones the first. `current` is the
    /// id that a group has now, by any it had.
    pub fn agent(&self, asked: Asked<'_>, current: impl Fn(&str) -> String) -> Option<(Closeness, &str)> {
        let mut best: Option<(Closeness, &str)> = None;
        for (agent, binding) in &self.0 {
            if let Some(closeness) = closeness(binding, asked, &current)
                && best.is_none_or(|(known, _)| closeness > known)
            {
                best = Some((closeness, agent));
            }
        }
        best
    }
}

fn closeness(binding: &Binding, asked: Asked<'_>, current: &impl Fn(&str) -> String) -> Option<Closeness> {
    let account = binding.channel == asked.channel.as_str();
    if !account && binding.channel != asked.channel.kind() {
        return None;
    }
    let Conversation { kind, id, thread, .. } = asked.conversation;
    let what = match binding {
        Binding { group: Some(group), thread: bound, .. } => {
            if *kind != ConversationKind::Group || current(group) != *id {
                return None;
            }
            match bound {
                None => What::Chat,
                Some(bound) if Some(bound) == thread.as_ref() => What::Thread,
                Some(_) => return None,
            }
        }
        Binding { sender: Some(sender), .. } => {
            if *kind != ConversationKind::Direct || asked.sender != Some(sender) {
                return None;
            }
            What::Chat
        }
        Binding { .. } => What::Channel,
    };
    Some(Closeness { what, account })
}

/// `[access.identity_links]`: a person's name, and the senders that person is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Links(BTreeMap<String, String>);

impl Links {
    /// From each name's senders, `telegram:42` or `webhook:bridge:u1`.
    pub fn new(links: &BTreeMap<String, Vec<String>>) -> Self {
        let each = |(name, peers): (&String, &Vec<String>)| {
            peers.iter().map(|peer| (peer.clone(), name.clone())).collect::<Vec<_>>()
        };
        Self(links.iter().flat_map(each).collect())
    }

    /// The person whose direct chat this is. Where ids mean nothing outside their account (`account_in_key`), only a link
    /// that names the account counts.
    pub fn person(&self, asked: Asked<'_>, account_in_key: bool) -> Option<&str> {
        let sender = asked.sender.filter(|_| asked.conversation.kind == ConversationKind::Direct)?;
        let exact = self.0.get(&format!("{}:{sender}", asked.channel));
        let of_kind = || self.0.get(&format!("{}:{sender}", asked.channel.kind()));
        exact.or_else(|| if account_in_key { None } else { of_kind() }).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(kind: ConversationKind, id: &str, thread: Option<&str>) -> Conversation {
        Conversation { kind, id: id.into(), thread: thread.map(Into::into), title: None }
    }

    fn binding(text: &str) -> Binding {
        toml::from_str(text).expect("a binding")
    }

    #[test]
    fn the_closest_binding_decides_whatever_the_order() {
        use ConversationKind::{Direct, Group};
        let all = [
            ("kind", "channel = 'telegram'"),
            ("account", "channel = 'telegram:main'"),
            ("group", "channel = 'telegram'\ngroup = '-1'"),
            ("exact", "channel = 'telegram:main'\ngroup = '-1'"),
            ("thread", "channel = 'telegram'\ngroup = '-1'\nthread = '7'"),
            ("person", "channel = 'telegram'\nsender = '42'"),
        ];
        let of = |order: &[(&str, &str)]| {
            Bindings::new(order.iter().map(|(agent, text)| ((*agent).to_owned(), binding(text))))
        };
        let mut turned = all;
        turned.reverse();
        for bindings in [of(&all), of(&turned)] {
            let agent = |channel: &ChannelId, conversation: Conversation, sender: Option<&str>| {
                let asked = Asked { channel, conversation: &conversation, sender };
                // The group was `-1` once and is `-1002` now.
                let current = |id: &str| if id == "-1" { "-1002".to_owned() } else { id.to_owned() };
                bindings.agent(asked, current).map(|(_, agent)| agent.to_owned())
            };
            let (main, other) = (ChannelId::new("telegram", "main"), ChannelId::new("telegram", "other"));
            let group = |thread| chat(Group, "-1002", thread);
            assert_eq!(agent(&main, group(Some("7")), Some("42")).as_deref(), Some("thread"));
            assert_eq!(agent(&main, group(Some("8")), Some("42")).as_deref(), Some("exact"));
            assert_eq!(agent(&other, group(None), Some("42")).as_deref(), Some("group"));
            assert_eq!(agent(&main, chat(Group, "-2", Some("7")), Some("42")).as_deref(), Some("account"));
            assert_eq!(agent(&main, chat(Direct, "42", None), Some("42")).as_deref(), Some("person"));
            assert_eq!(agent(&main, chat(Direct, "42", None), None).as_deref(), Some("account"), "only told of");
            assert_eq!(agent(&other, chat(Direct, "4", None), Some("4")).as_deref(), Some("kind"));
            assert_eq!(agent(&ChannelId::new("discord", "main"), group(None), Some("42")), None);
        }
    }

    #[test]
    fn what_binds_nothing_or_too_much_is_refused() {
        for (text, problem) in [
            ("sender = '1'", BindingProblem::NoChannel),
            ("channel = 'telegram'\nthread = '1'", BindingProblem::ThreadWithoutGroup),
            ("channel = 'telegram'\nsender = '1'\ngroup = '2'", BindingProblem::SenderInGroup),
            ("channel = 'telegram'\nsender = '@ada'", BindingProblem::NotAnId),
            ("channel = 'telegram'\ngroup = '*'", BindingProblem::NotAnId),
        ] {
            assert_eq!(binding(text).problem(), Some(problem), "{text}");
        }
        assert_eq!(binding("channel = 'telegram'\ngroup = '-1'\nthread = '2'").problem(), None);
    }

    #[test]
    fn a_person_is_linked_by_ids_and_never_where_an_id_is_anybodys() {
        let peers = ["telegram:42", "onebot:42", "webhook:bridge:u1"].map(str::to_owned).to_vec();
        let links = Links::new(&BTreeMap::from([("ada".to_owned(), peers)]));
        let person = |kind: &str, account: &str, sender: Option<&str>, group: bool, account_in_key: bool| {
            let channel = ChannelId::new(kind, account);
            let kind = if group { ConversationKind::Group } else { ConversationKind::Direct };
            let conversation = chat(kind, "room", None);
            let asked = Asked { channel: &channel, conversation: &conversation, sender };
            links.person(asked, account_in_key).map(str::to_owned)
        };
        assert_eq!(person("telegram", "main", Some("42"), false, false).as_deref(), Some("ada"));
        assert_eq!(person("webhook", "bridge", Some("u1"), false, true).as_deref(), Some("ada"));
        assert_eq!(person("webhook", "other", Some("u1"), false, true), None);
        assert_eq!(person("onebot", "qq", Some("42"), false, true), None, "another account's 42 is somebody else");
        assert_eq!(person("telegram", "main", Some("42"), true, false), None, "a group is nobody's own");
        assert_eq!(person("telegram", "main", None, false, false), None);
    }
}
