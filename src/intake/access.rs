//! Station 3, the access gate: who is admitted, with which role. Pure; every kind of event passes here.

use std::collections::BTreeMap;

use channel_api::{ChannelId, ConversationKind, IgnoredReason, Inbound, InboundKind, QueueMode, Trust};
use serde::{Deserialize, Serialize};

use crate::policy::Role;

/// `[access]`: rights that hold on every channel.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AccessConfig {
    /// Owners, written `<kind>:<sender id>`, e.g. `telegram:123`.
    pub owners: Vec<String>,
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
    /// The agent that answers here.
    pub agent: Option<String>,
    /// `env`, `none` or a proxy's address.
    pub proxy: Option<String>,
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
            agent: None,
            proxy: None,
            enabled: true,
        }
    }
}

impl ChannelPolicy {
    /// The names of these keys, so that the rest of a channel's section can be handed to its adapter.
    pub const KEYS: [&str; 10] = [
        "dm_policy",
        "group_policy",
        "allow_from",
        "owners",
        "trusted",
        "groups",
        "queue",
        "agent",
        "proxy",
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
    /// Only messages that address the bot start a turn.
    pub require_mention: bool,
    /// Words that address the bot, compared without case.
    pub wake: Vec<String>,
    /// Unaddressed messages kept as context for the next turn.
    pub history: u32,
    /// Who may write to the bot here; `None` = the channel's `allow_from`, or everyone if the group policy is open.
    pub allow_from: Option<Vec<String>>,
    /// The agent that answers here.
    pub agent: Option<String>,
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self { require_mention: true, wake: Vec::new(), history: 50, allow_from: None, agent: None }
    }
}

/// The gate's decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It may start a turn, with this role.
    Admit(Role),
    /// A stranger in a direct chat whose channel pairs.
    Pair,
    /// Not for the bot, but kept as context for what is.
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
        }
    }

    /// The channel it guards.
    pub fn channel(&self) -> &ChannelId {
        &self.channel
    }

    /// Whether any sender at all may write directly.
    pub fn admits_anyone(&self) -> bool {
        self.token_is_owner
            || !self.owners.is_empty()
            || !self.policy.trusted.is_empty()
            || !self.allow_from.is_empty()
            || self.dm == DmPolicy::Pairing
    }

    /// Everyone is admitted to direct chats.
    pub fn is_open(&self) -> bool {
        self.dm == DmPolicy::Open && self.allow_from.iter().any(|id| id == "*")
    }

    /// The group's section, or the one for groups that are not named.
    pub fn group(&self, id: &str) -> Option<&GroupConfig> {
        self.policy.groups.get(id).or_else(|| self.policy.groups.get("*"))
    }

    /// The decision about one event. `paired` and `blocked` are what the pairing list says of the sender.
    pub fn admit(&self, event: &Inbound, paired: bool, blocked: bool) -> Admission {
        use IgnoredReason as Why;
        if self.token_is_owner {
            return match event.kind {
                InboundKind::Message | InboundKind::Button => Admission::Admit(Role::Owner),
                InboundKind::Edit | InboundKind::Reaction => Admission::Ignore(Why::NothingToAnswer),
            };
        }
        if blocked {
            return Admission::Ignore(Why::Blocked);
        }
        if event.sender.is_bot {
            return Admission::Ignore(Why::Bot);
        }
        if matches!(event.kind, InboundKind::Edit | InboundKind::Reaction) {
            return Admission::Ignore(Why::NothingToAnswer);
        }
        if event.text.trim().is_empty() && event.attachments.is_empty() {
            return Admission::Ignore(Why::NothingToAnswer);
        }
        let id = event.sender.id.as_str();
        let listed = self.listed_role(id);
        let role = match event.conversation.kind {
            ConversationKind::Direct => match self.dm {
                DmPolicy::Disabled => return Admission::Ignore(Why::Disabled),
                _ if listed.is_some() || paired => listed.unwrap_or(Role::Member),
                DmPolicy::Open if contains(&self.allow_from, "*") => Role::Stranger,
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
                let allowed = match group.and_then(|group| group.allow_from.as_ref()) {
                    Some(list) => contains(list, "*") || contains(list, id),
                    None => self.group == GroupPolicy::Open || contains(&self.allow_from, "*"),
                };
                let role = match listed {
                    Some(role) => role,
                    None if allowed => Role::Stranger,
                    None => return Admission::Ignore(Why::SenderNotAllowed),
                };
                let fallback = GroupConfig::default();
                let group = group.unwrap_or(&fallback);
                if group.require_mention && !event.mentions_us && !wakes(&group.wake, &event.text) {
                    return if group.history > 0 { Admission::Context } else { Admission::Ignore(Why::NotAddressed) };
                }
                role
            }
        };
        // Words that are not the sender's own carry nobody's rights.
        Admission::Admit(if event.trust == Trust::Relayed { Role::Stranger } else { role })
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

fn wakes(words: &[String], text: &str) -> bool {
    let text = text.to_lowercase();
    words.iter().any(|word| !word.trim().is_empty() && text.contains(&word.trim().to_lowercase()))
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

    fn gate(kind: &str, policy: ChannelPolicy) -> (ChannelId, Gate) {
        let channel = ChannelId::new(kind, "a");
        let access = AccessConfig { owners: vec!["telegram:1".into(), "discord:2".into()] };
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
        assert_eq!(gate.admit(&event(&channel, Direct, "1", true), false, false), Admit(Role::Owner));
        assert_eq!(gate.admit(&event(&channel, Direct, "3", true), false, false), Admit(Role::Trusted));
        let stranger = gate.admit(&event(&channel, Direct, "2", true), false, false);
        assert_eq!(stranger, Ignore(IgnoredReason::SenderNotAllowed), "an owner elsewhere is nobody here");
        assert_eq!(gate.admit(&event(&channel, Direct, "9", true), true, false), Admit(Role::Member));
        assert_eq!(gate.admit(&event(&channel, Direct, "1", true), false, true), Ignore(IgnoredReason::Blocked));
        let mut forwarded = event(&channel, Direct, "1", true);
        forwarded.trust = Trust::Relayed;
        assert_eq!(gate.admit(&forwarded, false, false), Admit(Role::Stranger));
    }

    #[test]
    fn the_webhook_is_open_to_strangers_and_others_pair() {
        use {Admission::*, ConversationKind::Direct};
        let (channel, webhook) = gate("webhook", ChannelPolicy::default());
        assert_eq!(webhook.admit(&event(&channel, Direct, "u", true), false, false), Admit(Role::Stranger));
        assert!(webhook.is_open());
        let (channel, closed) = gate("webhook", ChannelPolicy { allow_from: Some(vec![]), ..ChannelPolicy::default() });
        let answer = closed.admit(&event(&channel, Direct, "u", true), false, false);
        assert_eq!(answer, Ignore(IgnoredReason::SenderNotAllowed));
        assert!(!closed.admits_anyone());
        let (channel, telegram) = gate("telegram", ChannelPolicy::default());
        assert_eq!(telegram.admit(&event(&channel, Direct, "u", true), false, false), Pair);
    }

    #[test]
    fn groups_need_a_list_and_a_mention() {
        use {Admission::*, ConversationKind::Group};
        let (channel, none) = gate("telegram", ChannelPolicy::default());
        let answer = none.admit(&event(&channel, Group, "1", true), false, false);
        assert_eq!(answer, Ignore(IgnoredReason::GroupNotAllowed));
        let group =
            GroupConfig {
                wake: vec!["小龙虾".into()], allow_from: Some(vec!["*".into()]), ..GroupConfig::default()
            };
        let (channel, listed) =
            gate("telegram", ChannelPolicy { groups: [("c1".into(), group)].into(), ..ChannelPolicy::default() });
        assert_eq!(listed.admit(&event(&channel, Group, "9", true), false, false), Admit(Role::Stranger));
        assert_eq!(listed.admit(&event(&channel, Group, "9", false), false, false), Context);
        let mut woken = event(&channel, Group, "9", false);
        woken.text = "小龙虾，在吗".into();
        assert_eq!(listed.admit(&woken, false, false), Admit(Role::Stranger));
    }

    #[test]
    fn bots_and_edits_start_nothing() {
        let (channel, webhook) = gate("webhook", ChannelPolicy::default());
        let mut bot = event(&channel, ConversationKind::Direct, "u", true);
        bot.sender.is_bot = true;
        assert_eq!(webhook.admit(&bot, false, false), Admission::Ignore(IgnoredReason::Bot));
        let mut edit = event(&channel, ConversationKind::Direct, "u", true);
        edit.kind = InboundKind::Edit;
        assert_eq!(webhook.admit(&edit, false, false), Admission::Ignore(IgnoredReason::NothingToAnswer));
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
