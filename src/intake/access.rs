//! Station 3, the access gate: who is admitted, with which role. Pure; every kind of event passes here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard},
};

use channel_api::{ChannelId, ConversationKind, IgnoredReason, Inbound, InboundKind, QueueMode, Trust};
use serde::{Deserialize, Serialize};

use super::{command::Command, wake};
use crate::{
    marks::Switch,
    policy::{Role, ToolPolicy},
};

/// `[access]`: rights that hold on every channel.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Owners, written `<kind>:<sender id>`, e.g. `telegram:123`.
    pub owners: Vec<String>,
    /// A person's name and the senders that person is: their direct chats are one session. Written as owners are, or with the
    /// account, `webhook:bridge:u1`, where ids mean nothing outside of it.
    pub identity_links: BTreeMap<String, Vec<String>>,
    /// What holds for one sender, written the same way: `[access.senders."telegram:42"]`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub senders: BTreeMap<String, SenderConfig>,
}

/// `[access.senders."<kind>:<sender id>"]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SenderConfig {
    /// Which tools there are for this sender, on every channel of that kind.
    pub tools: ToolPolicy,
}

/// The keys that every `[channels.<kind>.<account>]` takes besides its adapter's own.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ChannelPolicy {
    /// Who may write in direct chats. `None` = the kind's default.
    pub dm_policy: Option<DmPolicy>,
    /// In which groups the bot takes part. `None` = the kind's default.
    pub group_policy: Option<GroupPolicy>,
    /// Sender ids that are admitted; `"*"` with an open policy only. Empty = nobody.
    pub allow_from: Option<Vec<String>>,
    /// Sender ids with the role owner.
    pub owners: Vec<String>,
    /// Sender ids with the role trusted.
    pub trusted: Vec<String>,
    /// Groups by id; `"*"` stands for those not named.
    pub groups: BTreeMap<String, GroupConfig>,
    /// The queue mode of this channel.
    pub queue: Option<QueueMode>,
    /// Whether messages are marked here; `None` = as `[agent]` says.
    pub marks: Option<Switch>,
    /// The agent that answers here.
    pub agent: Option<String>,
    /// `env`, `none` or a proxy's address.
    pub proxy: Option<String>,
    /// A file of certificates (PEM) that this channel trusts beside the public ones, relative to the configuration file.
    pub ca_file: Option<String>,
    /// Which tools there are here.
    pub tools: ToolPolicy,
    /// Switched off without deleting its section.
    pub enabled: bool,
}

impl Default for ChannelPolicy {
    fn default() -> Self {
        Self {
            dm_policy: None,
            group_policy: None,
            allow_from: None,
            owners: Vec::new(),
            trusted: Vec::new(),
            groups: BTreeMap::new(),
            queue: None,
            marks: None,
            agent: None,
            proxy: None,
            ca_file: None,
            tools: ToolPolicy::default(),
            enabled: true,
        }
    }
}

impl ChannelPolicy {
    /// The names of these keys, so that the rest of a channel's section can be handed to its adapter.
    pub const KEYS: [&str; 13] = [
        "dm_policy",
        "group_policy",
        "allow_from",
        "owners",
        "trusted",
        "groups",
        "queue",
        "marks",
        "agent",
        "proxy",
        "ca_file",
        "tools",
        "enabled",
    ];
}

/// Who may write in direct chats.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum DmPolicy {
    /// Strangers get a pairing code once; an owner approves it.
    Pairing,
    /// Those in `allow_from`, `owners` and `trusted`.
    Allowlist,
    /// Everyone in `allow_from`, where `"*"` is legal.
    Open,
    /// Nobody.
    Disabled,
}

/// In which groups the bot takes part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupPolicy {
    /// Those named in `groups`.
    Allowlist,
    /// All.
    Open,
    /// None.
    Disabled,
}

/// One group.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct GroupConfig {
    /// Only messages that address the bot start a turn. Otherwise every message does, and the model stays silent by
    /// NO_REPLY.
    pub require_mention: bool,
    /// Words that address the bot, see [`wake::wakes`].
    pub wake: Vec<String>,
    /// Unaddressed messages kept as context for the next turn of their session: 0 = none, at most [`MAX_HISTORY`].
    pub history: u32,
    /// Who may write to the bot here, besides owners and trusted senders; who is named is a member here. `None` = the
    /// channel's `allow_from`, or everyone if the group policy is open.
    pub allow_from: Option<Vec<String>>,
    /// The agent that answers here.
    pub agent: Option<String>,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self { require_mention: true, wake: Vec::new(), history: 50, allow_from: None, agent: None }
    }
}

/// The most unaddressed messages that wait as context in one session.
pub const MAX_HISTORY: u32 = 200;

/// The gate's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may start a turn, with this role.
    Admit(Role),
    /// A stranger in a direct chat whose channel pairs.
    Pair,
    /// Said in a group by somebody who may write there, but not to the bot: kept as context for what is.
    Context,
    /// Not stored.
    Ignore(IgnoredReason),
}

/// The lists of one channel, ready for decisions.
#[derive(Clone, Debug)]
pub struct Gate {
    channel: ChannelId,
    owners: Vec<String>,
    dm: DmPolicy,
    group: GroupPolicy,
    allow_from: Vec<String>,
    policy: ChannelPolicy,
    token_is_owner: bool,
    moves: Arc<RwLock<Moves>>,
}

/// Groups that got a new id.
#[derive(Debug, Default)]
struct Moves {
    /// The new id, and the one before it.
    former: HashMap<String, String>,
    /// The old id, and the one after it.
    next: HashMap<String, String>,
}

impl Moves {
    /// The most ids of one group that are followed: groups move once, and a circle must end.
    const FAR: usize = 8;

    /// The id that the group has now.
    fn current<'a>(&'a self, id: &'a str) -> &'a str {
        std::iter::successors(Some(id), |id| self.next.get(*id).map(String::as_str))
            .take(Self::FAR)
            .last()
            .unwrap_or(id)
    }
}

impl Gate {
    /// The gate of one channel. The webhook's defaults are open (its bridge is authenticated, its senders are strangers
    /// unless listed); all other kinds pair direct chats and list groups. `token_is_owner`: every sender already proved
    /// to hold the gateway's token or terminal (web, console).
    pub fn new(channel: &ChannelId, policy: &ChannelPolicy, access: &AccessConfig, token_is_owner: bool) -> Self {
        let open = channel.kind() == "webhook";
        let prefix = format!("{}:", channel.kind());
        let mut owners: Vec<String> =
            access.owners.iter().filter_map(|owner| owner.strip_prefix(&prefix)).map(Into::into).collect();
        owners.extend(policy.owners.iter().cloned());
        let dm = policy.dm_policy.unwrap_or(if open { DmPolicy::Open } else { DmPolicy::Pairing });
        let default_allow = if open && policy.dm_policy.is_none() { vec!["*".to_owned()] } else { Vec::new() };
        Self {
            channel: channel.clone(),
            owners,
            dm,
            group: policy.group_policy.unwrap_or(if open { GroupPolicy::Open } else { GroupPolicy::Allowlist }),
            allow_from: policy.allow_from.clone().unwrap_or(default_allow),
            policy: policy.clone(),
            token_is_owner,
            moves: Arc::default(),
        }
    }

    /// The channel it guards.
    pub fn channel(&self) -> &ChannelId {
        &self.channel
    }

    /// Whether any sender at all may write, in private or in a group.
    pub fn admits_anyone(&self) -> bool {
        let private = self.dm != DmPolicy::Disabled && !self.names_nobody();
        self.token_is_owner || private || self.admits_in_groups()
    }

    /// Private chats are on, and yet nobody may write in one: no list names anybody.
    pub fn private_is_for_nobody(&self) -> bool {
        !self.token_is_owner && self.dm != DmPolicy::Disabled && self.names_nobody()
    }

    fn names_nobody(&self) -> bool {
        self.dm != DmPolicy::Pairing && self.allow_from.is_empty() && !self.names_trusted()
    }

    fn names_trusted(&self) -> bool {
        !self.owners.is_empty() || !self.policy.trusted.is_empty()
    }

    fn admits_in_groups(&self) -> bool {
        let open = self.group == GroupPolicy::Open;
        let somebody = |group: Option<&GroupConfig>| match group.and_then(|group| group.allow_from.as_ref()) {
            _ if self.names_trusted() => true,
            Some(list) => !list.is_empty(),
            None => open || !self.allow_from.is_empty(),
        };
        let named = self.policy.groups.values().any(|group| somebody(Some(group)));
        self.group != GroupPolicy::Disabled && (named || (open && somebody(self.policy.groups.get("*"))))
    }

    /// Whom the channel's `allow_from` names.
    pub fn allowed(&self) -> &[String] {
        &self.allow_from
    }

    /// Who may speak in the group besides owners and trusted senders: its `allow_from`, or else the channel's.
    pub fn allowed_in(&self, group: &str) -> &[String] {
        self.own_list(group).unwrap_or(&self.allow_from)
    }

    /// The group's own `allow_from` names the sender.
    pub fn lists_in(&self, group: &str, sender: &str) -> bool {
        self.own_list(group).is_some_and(|list| contains(list, sender))
    }

    /// Whether the sender may speak in the group once it is let in.
    pub fn speaks_in(&self, group: &str, sender: &str) -> bool {
        self.group_role(self.own_list(group), sender).is_some()
    }

    fn own_list(&self, group: &str) -> Option<&[String]> {
        self.group(group).and_then(|group| group.allow_from.as_deref())
    }

    /// The name of the group's own section: the one there is, or the one to write.
    pub fn section_of(&self, group: &str) -> String {
        self.named_group(group).map_or_else(|| self.current(group), |(name, _)| name.to_owned())
    }

    /// Everyone is admitted to direct chats.
    pub fn is_open(&self) -> bool {
        self.dm == DmPolicy::Open && self.allow_from.iter().any(|id| id == "*")
    }

    /// The group's section, that of another id it had or has, or the one for groups that are not named.
    pub fn group(&self, id: &str) -> Option<&GroupConfig> {
        self.named_group(id).map(|(_, group)| group).or_else(|| self.policy.groups.get("*"))
    }

    /// The section that names the group, and the id it names it by: the present one first, then those before.
    fn named_group(&self, id: &str) -> Option<(&str, &GroupConfig)> {
        let moves = self.moves();
        std::iter::successors(Some(moves.current(id)), |id| moves.former.get(*id).map(String::as_str))
            .take(Moves::FAR)
            .find_map(|id| self.policy.groups.get_key_value(id))
            .map(|(name, group)| (name.as_str(), group))
    }

    /// The id that a group has now: what is late under its old one belongs to the same sessions.
    pub fn current(&self, group: &str) -> String {
        self.moves().current(group).to_owned()
    }

    fn moves(&self) -> RwLockReadGuard<'_, Moves> {
        self.moves.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A group got a new id. Returns the id its section of the configuration is still named by, when that is an old one
    /// and the move is news.
    pub fn moved(&self, from: &str, to: &str) -> Option<String> {
        {
            let mut moves = self.moves.write().unwrap_or_else(PoisonError::into_inner);
            // A move back undoes the one before: the newest is true.
            moves.next.remove(to);
            moves.next.insert(from.to_owned(), to.to_owned());
            if moves.former.insert(to.to_owned(), from.to_owned()).as_deref() == Some(from) {
                return None;
            }
        }
        self.named_group(to).map(|(name, _)| name).filter(|name| *name != to).map(str::to_owned)
    }

    /// How many unaddressed messages a session of this group keeps as context.
    pub fn history(&self, group: &str) -> u32 {
        self.group(group).map_or(GroupConfig::default().history, |group| group.history).min(MAX_HISTORY)
    }

    /// Whether a word of the group's `wake` list stands in the message: it is then taken as a mention.
    pub fn wakes(&self, event: &Inbound) -> bool {
        event.conversation.kind == ConversationKind::Group
            && self.group(&event.conversation.id).is_some_and(|group| wake::wakes(&group.wake, &event.text))
    }

    /// Strangers in direct chats get a pairing code.
    pub fn pairs(&self) -> bool {
        self.dm == DmPolicy::Pairing && !self.token_is_owner
    }

    /// Whoever writes here already proved to be an owner.
    pub fn is_owners_own(&self) -> bool {
        self.token_is_owner
    }

    /// The configuration names an owner here.
    pub fn has_owner(&self) -> bool {
        !self.owners.is_empty()
    }

    /// The role that the configuration gives this sender.
    pub fn listed(&self, sender: &str) -> Option<Role> {
        self.listed_role(sender)
    }

    /// The decision about one event, which has `mentions_us` set where [`Gate::wakes`]. `paired` is the role that a pairing
    /// gave the sender: it holds in direct chats alone, no group is opened by it. A sender who is `blocked` is not heard
    /// whatever the configuration says.
    pub fn admit(&self, event: &Inbound, paired: Option<Role>, blocked: bool) -> Admission {
        use IgnoredReason as Why;
        if self.token_is_owner {
            return match event.kind {
                InboundKind::Reaction => Admission::Ignore(Why::NothingToAnswer),
                _ => Admission::Admit(Role::Owner),
            };
        }
        if blocked {
            return Admission::Ignore(Why::Blocked);
        }
        if event.sender.is_bot {
            return Admission::Ignore(Why::Bot);
        }
        // What is said about an earlier message needs no word to the bot, only somebody who may write there.
        let amends = matches!(event.kind, InboundKind::Edit | InboundKind::Deleted);
        let says = !event.text.trim().is_empty() || !event.attachments.is_empty();
        if event.kind == InboundKind::Reaction || !(says || event.kind == InboundKind::Deleted) {
            return Admission::Ignore(Why::NothingToAnswer);
        }
        let id = event.sender.id.as_str();
        let listed = self.listed_role(id);
        let role = match event.conversation.kind {
            ConversationKind::Direct => match self.dm {
                DmPolicy::Disabled => return Admission::Ignore(Why::Disabled),
                _ if listed.is_some() || paired.is_some() => listed.max(paired).unwrap_or(Role::Member),
                DmPolicy::Open if contains(&self.allow_from, "*") => Role::Stranger,
                // Words that are not the sender's own ask for nothing.
                DmPolicy::Pairing if amends || event.trust == Trust::Relayed => {
                    return Admission::Ignore(Why::SenderNotAllowed);
                }
                DmPolicy::Pairing => return Admission::Pair,
                DmPolicy::Allowlist | DmPolicy::Open => return Admission::Ignore(Why::SenderNotAllowed),
            },
            ConversationKind::Group => {
                let group = self.group(&event.conversation.id);
                match self.group {
                    GroupPolicy::Disabled => return Admission::Ignore(Why::Disabled),
                    GroupPolicy::Allowlist if group.is_none() => return Admission::Ignore(Why::GroupNotAllowed),
                    _ => {}
                }
                let list = group.and_then(|group| group.allow_from.as_deref());
                let Some(role) = self.group_role(list, id) else {
                    return Admission::Ignore(Why::SenderNotAllowed);
                };
                let required = group.is_none_or(|group| group.require_mention);
                // `/status@otherbot` is for that one, whatever this group asks for.
                let for_another = !event.mentions_us && Command::names_a_bot(&event.text);
                let commands = role >= Role::Trusted && Command::of(event).is_some();
                if !amends && (for_another || (required && !event.mentions_us && !commands)) {
                    let keeps = self.history(&event.conversation.id) > 0;
                    return if keeps { Admission::Context } else { Admission::Ignore(Why::NotAddressed) };
                }
                role
            }
        };
        // Words that are not the sender's own carry nobody's rights.
        Admission::Admit(if event.trust == Trust::Relayed { Role::Stranger } else { role })
    }

    /// The role of a sender in a group that is let in and has this list; `None`: they may not speak there.
    fn group_role(&self, list: Option<&[String]>, id: &str) -> Option<Role> {
        let listed = self.listed_role(id);
        match (listed, list) {
            (Some(role @ (Role::Owner | Role::Trusted)), _) | (Some(role), None) => Some(role),
            (_, Some(list)) if contains(list, id) => Some(Role::Member),
            (_, Some(list)) if contains(list, "*") => Some(listed.unwrap_or(Role::Stranger)),
            (None, None) if self.group == GroupPolicy::Open || contains(&self.allow_from, "*") => Some(Role::Stranger),
            _ => None,
        }
    }

    fn listed_role(&self, id: &str) -> Option<Role> {
        if contains(&self.owners, id) {
            Some(Role::Owner)
        } else if contains(&self.policy.trusted, id) {
            Some(Role::Trusted)
        } else if contains(&self.allow_from, id) {
            Some(Role::Member)
        } else {
            None
        }
    }
}

fn contains(list: &[String], id: &str) -> bool {
    list.iter().any(|entry| entry == id)
}

/// What is wrong with a channel's lists: the key and why. Checked when the configuration is read.
pub fn problems(policy: &ChannelPolicy) -> Vec<(String, ListProblem)> {
    let mut found = Vec::new();
    let wildcard = policy.allow_from.as_ref().is_some_and(|list| contains(list, "*"));
    if wildcard && policy.dm_policy != Some(DmPolicy::Open) {
        found.push(("allow_from".to_owned(), ListProblem::WildcardNeedsOpen));
    }
    let lists = [
        ("allow_from", policy.allow_from.as_deref().unwrap_or_default()),
        ("owners", &policy.owners),
        ("trusted", &policy.trusted),
    ];
    for (key, list) in lists {
        for entry in list {
            if entry.starts_with('@') {
                found.push((key.to_owned(), ListProblem::NotAnId(entry.clone())));
            }
            if entry == "*" && key != "allow_from" {
                found.push((key.to_owned(), ListProblem::WildcardNotHere));
            }
        }
    }
    found
}

/// A mistake in an access list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ListProblem {
    /// `"*"` without `dm_policy = "open"`.
    WildcardNeedsOpen,
    /// `"*"` in `owners` or `trusted`.
    WildcardNotHere,
    /// A user name instead of an immutable id.
    NotAnId(String),
}

#[cfg(test)]
mod tests {
    use channel_api::{Address, Conversation, Sender};

    use super::*;

    fn event(channel: &ChannelId, kind: ConversationKind, sender: &str, mentions_us: bool) -> Inbound {
        Inbound {
            channel: channel.clone(),
            platform_id: "m1".into(),
            fingerprint: None,
            kind: InboundKind::Message,
            about: None,
            conversation: Conversation { kind, id: "c1".into(), thread: None, title: None },
            sender: Sender { id: sender.into(), name: Some("owner".into()), is_bot: false },
            text: "hi".into(),
            attachments: Vec::new(),
            mentions_us,
            reply_to: None,
            at: None,
            address: Address { channel: channel.clone(), lane: "c1".into(), data: serde_json::Value::Null },
            trust: Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        }
    }

    fn gate_of(kind: &str, policy: ChannelPolicy) -> Gate {
        gate(kind, policy).1
    }

    fn gate(kind: &str, policy: ChannelPolicy) -> (ChannelId, Gate) {
        let channel = ChannelId::new(kind, "a");
        let access = AccessConfig { owners: vec!["telegram:1".into(), "discord:2".into()], ..AccessConfig::default() };
        let gate = Gate::new(&channel, &policy, &access, false);
        (channel, gate)
    }

    #[test]
    fn an_empty_list_is_nobody_and_rights_follow_ids() {
        use {Admission::*, ConversationKind::Direct};
        let (channel, gate) = gate(
            "telegram",
            ChannelPolicy {
                dm_policy: Some(DmPolicy::Allowlist),
                trusted: vec!["3".into()],
                ..ChannelPolicy::default()
            },
        );
        assert_eq!(gate.admit(&event(&channel, Direct, "1", true), None, false), Admit(Role::Owner));
        assert_eq!(gate.admit(&event(&channel, Direct, "3", true), None, false), Admit(Role::Trusted));
        let stranger = gate.admit(&event(&channel, Direct, "2", true), None, false);
        assert_eq!(stranger, Ignore(IgnoredReason::SenderNotAllowed), "an owner elsewhere is nobody here");
        assert_eq!(gate.admit(&event(&channel, Direct, "9", true), Some(Role::Member), false), Admit(Role::Member));
        assert_eq!(gate.admit(&event(&channel, Direct, "1", true), None, true), Ignore(IgnoredReason::Blocked));
        let mut forwarded = event(&channel, Direct, "1", true);
        forwarded.trust = Trust::Relayed;
        assert_eq!(gate.admit(&forwarded, None, false), Admit(Role::Stranger));
    }

    #[test]
    fn the_webhook_is_open_to_strangers_and_others_pair() {
        use {Admission::*, ConversationKind::Direct};
        let (channel, webhook) = gate("webhook", ChannelPolicy::default());
        assert_eq!(webhook.admit(&event(&channel, Direct, "u", true), None, false), Admit(Role::Stranger));
        assert!(webhook.is_open());
        let (channel, closed) = gate("webhook", ChannelPolicy { allow_from: Some(vec![]), ..ChannelPolicy::default() });
        let answer = closed.admit(&event(&channel, Direct, "u", true), None, false);
        assert_eq!(answer, Ignore(IgnoredReason::SenderNotAllowed));
        assert!(closed.private_is_for_nobody() && closed.admits_anyone(), "its groups are open");
        let groups_off = ChannelPolicy {
            allow_from: Some(vec![]),
            group_policy: Some(GroupPolicy::Disabled),
            ..ChannelPolicy::default()
        };
        assert!(!gate_of("webhook", groups_off).admits_anyone());
        let (channel, telegram) = gate("telegram", ChannelPolicy::default());
        assert_eq!(telegram.admit(&event(&channel, Direct, "u", true), None, false), Pair);
    }

    #[test]
    fn a_channel_is_for_nobody_when_neither_private_chats_nor_groups_let_anybody_in() {
        let listing = |ids: &[&str]| GroupConfig {
            allow_from: Some(ids.iter().map(|id| (*id).to_owned()).collect()),
            ..GroupConfig::default()
        };
        // Groups by policy and section, the channel's list, whether anybody may write; private chats are off.
        let table = [
            (None, None, &[][..], false),
            (None, None, &["7"][..], false),
            (None, Some(("-1", listing(&["42"]))), &[][..], true),
            (None, Some(("-1", listing(&[]))), &["7"][..], false),
            (None, Some(("-1", GroupConfig::default())), &["7"][..], true),
            (None, Some(("-1", GroupConfig::default())), &[][..], false),
            (Some(GroupPolicy::Open), None, &[][..], true),
            (Some(GroupPolicy::Open), Some(("*", listing(&[]))), &[][..], false),
            (Some(GroupPolicy::Disabled), Some(("-1", listing(&["42"]))), &["7"][..], false),
        ];
        for (n, (group_policy, group, allowed, expected)) in table.into_iter().enumerate() {
            let policy = ChannelPolicy {
                dm_policy: Some(DmPolicy::Disabled),
                group_policy,
                allow_from: Some(allowed.iter().map(|id| (*id).to_owned()).collect()),
                groups: group.into_iter().map(|(id, group)| (id.to_owned(), group)).collect(),
                ..ChannelPolicy::default()
            };
            let gate = gate_of("slack", policy);
            assert_eq!(gate.admits_anyone(), expected, "case {n}");
            assert!(!gate.private_is_for_nobody(), "case {n}: switched off on purpose");
        }
    }

    #[test]
    fn groups_need_a_list_and_a_mention() {
        use {Admission::*, ConversationKind::Group};
        let (channel, none) = gate("telegram", ChannelPolicy::default());
        let answer = none.admit(&event(&channel, Group, "1", true), None, false);
        assert_eq!(answer, Ignore(IgnoredReason::GroupNotAllowed));
        let group =
            GroupConfig {
                wake: vec!["小龙虾".into()], allow_from: Some(vec!["*".into()]), ..GroupConfig::default()
            };
        let (channel, listed) =
            gate("telegram", ChannelPolicy { groups: [("c1".into(), group)].into(), ..ChannelPolicy::default() });
        assert_eq!(listed.admit(&event(&channel, Group, "9", true), None, false), Admit(Role::Stranger));
        assert_eq!(listed.admit(&event(&channel, Group, "9", false), None, false), Context);
        let mut woken = event(&channel, Group, "9", false);
        woken.text = "小龙虾，在吗".into();
        assert!(listed.wakes(&woken));
        woken.conversation.kind = ConversationKind::Direct;
        assert!(!listed.wakes(&woken), "in a direct chat everything is said to the bot");
    }

    #[test]
    fn who_may_speak_in_a_group() {
        use {Admission::*, ConversationKind::Group, IgnoredReason as Why};
        let policy = |group_policy, group: Option<GroupConfig>| ChannelPolicy {
            dm_policy: Some(DmPolicy::Allowlist),
            group_policy,
            allow_from: Some(vec!["5".into()]),
            trusted: vec!["3".into()],
            groups: group.into_iter().map(|group| ("c1".to_owned(), group)).collect(),
            ..ChannelPolicy::default()
        };
        let listing = |ids: &[&str]| {
            Some(GroupConfig {
                allow_from: Some(ids.iter().map(|id| (*id).to_owned()).collect()),
                ..GroupConfig::default()
            })
        };
        let named = Some(GroupConfig::default());
        let refused = Ignore(Why::SenderNotAllowed);
        // Group policy, the group's section, sender, the answer to a mention.
        let table = [
            (None, None, "1", Ignore(Why::GroupNotAllowed)),
            (None, named.clone(), "1", Admit(Role::Owner)),
            (None, named.clone(), "3", Admit(Role::Trusted)),
            (None, named.clone(), "5", Admit(Role::Member)),
            (None, named.clone(), "9", refused.clone()),
            (None, listing(&["9"]), "9", Admit(Role::Member)),
            (None, listing(&["9"]), "5", refused.clone()),
            (None, listing(&["9"]), "3", Admit(Role::Trusted)),
            (None, listing(&[]), "5", refused.clone()),
            (None, listing(&[]), "1", Admit(Role::Owner)),
            (None, listing(&["*"]), "5", Admit(Role::Member)),
            (None, listing(&["*"]), "9", Admit(Role::Stranger)),
            (Some(GroupPolicy::Open), None, "9", Admit(Role::Stranger)),
            (Some(GroupPolicy::Open), listing(&["5"]), "9", refused.clone()),
            (Some(GroupPolicy::Disabled), named, "1", Ignore(Why::Disabled)),
        ];
        for (n, (group_policy, group, sender, expected)) in table.into_iter().enumerate() {
            let (channel, gate) = gate("telegram", policy(group_policy, group));
            // Paired or not: pairing opens no group.
            for paired in [None, Some(Role::Member), Some(Role::Owner)] {
                assert_eq!(gate.admit(&event(&channel, Group, sender, true), paired, false), expected, "case {n}");
            }
        }
        let (channel, gate) = gate("telegram", policy(None, Some(GroupConfig::default())));
        assert_eq!(gate.admit(&event(&channel, Group, "1", true), None, true), Ignore(Why::Blocked));
    }

    #[test]
    fn without_a_mention_a_group_message_is_context_or_a_turn_or_a_command() {
        use {Admission::*, ConversationKind::Group, IgnoredReason::NotAddressed};
        let everyone = |group: GroupConfig| GroupConfig { allow_from: Some(vec!["*".into()]), ..group };
        let quiet = everyone(GroupConfig::default());
        let deaf = everyone(GroupConfig { history: 0, ..GroupConfig::default() });
        let open = everyone(GroupConfig { require_mention: false, ..GroupConfig::default() });
        let (owner, stranger) = ("1", "9");
        let table = [
            (&quiet, stranger, "lunch?", Context),
            (&quiet, owner, "lunch?", Context),
            (&quiet, owner, "/status", Admit(Role::Owner)),
            (&quiet, owner, "／STATUS", Admit(Role::Owner)),
            (&quiet, owner, "/停止", Admit(Role::Owner)),
            (&quiet, owner, "停", Context),
            (&quiet, owner, "/status@other_bot", Context),
            (&quiet, stranger, "/status", Context),
            (&quiet, owner, "/nothing of ours", Context),
            (&deaf, stranger, "lunch?", Ignore(NotAddressed)),
            (&deaf, owner, "/status", Admit(Role::Owner)),
            (&open, stranger, "lunch?", Admit(Role::Stranger)),
            (&open, stranger, "/status", Admit(Role::Stranger)),
            (&open, owner, "/status@other_bot", Context),
            (&open, owner, "/nothing@other_bot of ours", Context),
        ];
        for (group, sender, text, expected) in table {
            let policy = ChannelPolicy { groups: [("*".into(), group.clone())].into(), ..ChannelPolicy::default() };
            let (channel, gate) = gate("telegram", policy);
            let mut said = event(&channel, Group, sender, false);
            said.text = text.to_owned();
            assert_eq!(gate.admit(&said, None, false), expected, "{sender}: {text}");
            said.mentions_us = true;
            assert!(matches!(gate.admit(&said, None, false), Admit(_)), "{sender}: {text}, mentioned");
        }
    }

    #[test]
    fn the_section_of_a_group_goes_on_to_hold_for_its_new_id() {
        let section = |history| GroupConfig { history, ..GroupConfig::default() };
        let groups = [("-1".into(), section(7)), ("*".into(), section(900))].into();
        let (_, gate) = gate("telegram", ChannelPolicy { groups, ..ChannelPolicy::default() });
        assert_eq!(gate.history("-2"), MAX_HISTORY, "the ceiling holds whatever is configured");
        assert_eq!(gate.moved("-1", "-2"), Some("-1".to_owned()));
        assert_eq!(gate.moved("-1", "-2"), None, "said once");
        assert_eq!(gate.moved("-2", "-3"), Some("-1".to_owned()));
        assert_eq!((gate.history("-3"), gate.history("-4")), (7, MAX_HISTORY));
        assert_eq!(gate.moved("-7", "-8"), None, "it has no section of its own");
        assert_eq!((gate.current("-1"), gate.current("-9")), ("-3".to_owned(), "-9".to_owned()));
        assert_eq!(gate.history("-2"), 7, "what is late under an old id is of the same group");
        // A circle ends.
        assert_eq!((gate.moved("-8", "-7"), gate.history("-8")), (None, MAX_HISTORY));
        assert_eq!(gate.moved("-9", "-1"), None, "the section has the new name already");
    }

    #[test]
    fn row_40_bots_start_nothing_and_edits_pass_by_their_sender_alone() {
        let (channel, webhook) = gate("webhook", ChannelPolicy::default());
        let mut bot = event(&channel, ConversationKind::Direct, "u", true);
        bot.sender.is_bot = true;
        assert_eq!(webhook.admit(&bot, None, false), Admission::Ignore(IgnoredReason::Bot));
        let mut edit = event(&channel, ConversationKind::Direct, "u", true);
        edit.kind = InboundKind::Edit;
        assert_eq!(webhook.admit(&edit, None, false), Admission::Admit(Role::Stranger));
        edit.text.clear();
        assert_eq!(webhook.admit(&edit, None, false), Admission::Ignore(IgnoredReason::NothingToAnswer));
        edit.kind = InboundKind::Deleted;
        assert_eq!(webhook.admit(&edit, None, false), Admission::Admit(Role::Stranger));
        assert_eq!(webhook.admit(&edit, None, true), Admission::Ignore(IgnoredReason::Blocked));
        edit.kind = InboundKind::Reaction;
        assert_eq!(webhook.admit(&edit, None, false), Admission::Ignore(IgnoredReason::NothingToAnswer));
        // No pairing begins with an edit, and in a group no word to the bot is needed.
        let (channel, telegram) = gate("telegram", ChannelPolicy::default());
        let mut edit = event(&channel, ConversationKind::Direct, "u", true);
        edit.kind = InboundKind::Edit;
        assert_eq!(telegram.admit(&edit, None, false), Admission::Ignore(IgnoredReason::SenderNotAllowed));
        let (channel, webhook) = gate("webhook", ChannelPolicy::default());
        let mut edit = event(&channel, ConversationKind::Group, "u", false);
        edit.kind = InboundKind::Edit;
        assert_eq!(webhook.admit(&edit, None, false), Admission::Admit(Role::Stranger));
    }

    #[test]
    fn mistakes_in_lists_are_named() {
        let policy = ChannelPolicy {
            allow_from: Some(vec!["*".into(), "@bob".into()]),
            owners: vec!["*".into()],
            ..ChannelPolicy::default()
        };
        let found: Vec<_> = problems(&policy).into_iter().map(|(_, problem)| problem).collect();
        let expected =
            [ListProblem::WildcardNeedsOpen, ListProblem::NotAnId("@bob".into()), ListProblem::WildcardNotHere];
        assert_eq!(found, expected);
    }
}
