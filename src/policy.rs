//! Who may do what: roles, the terms of a tool, and the one function that decides whether a call may run.

use std::collections::{BTreeMap, BTreeSet};

use channel_api::ChannelId;
use serde::{Deserialize, Serialize};

/// What a sender may do. Follows the immutable sender id, never a name. Ordered: a greater role may do more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Admitted only by `"*"` or an open group: no tools, no workspace files.
    Stranger,
    /// Allow-listed or paired: read tools in their own scope.
    Member,
    /// Named in `trusted`: effects too.
    Trusted,
    /// Named in `owners`, or holding the gateway's token: everything.
    Owner,
}

impl Role {
    /// The name in rows and configuration.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stranger => "stranger",
            Self::Member => "member",
            Self::Trusted => "trusted",
            Self::Owner => "owner",
        }
    }

    /// The role that a person names and can give, in either language.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "owner" | "主人" => Some(Self::Owner),
            "trusted" | "信任" => Some(Self::Trusted),
            "member" | "成员" => Some(Self::Member),
            _ => None,
        }
    }

    /// The role of that name; what is unknown has no rights.
    pub fn parse(name: &str) -> Self {
        match name {
            "owner" => Self::Owner,
            "trusted" => Self::Trusted,
            "member" => Self::Member,
            _ => Self::Stranger,
        }
    }
}

/// What a second run of a call would do: decides what recovery may repeat. guarantees.md G4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing: run again freely.
    Read,
    /// A second run leaves the same state.
    Idempotent,
    /// A second run would do it twice: never repeated by the machine.
    Effect,
}

impl Effect {
    /// The name in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Idempotent => "idempotent",
            Self::Effect => "effect",
        }
    }

    /// The class of that name; what is unknown counts as the worst.
    pub fn parse(name: &str) -> Self {
        match name {
            "read" => Self::Read,
            "idempotent" => Self::Idempotent,
            _ => Self::Effect,
        }
    }
}

/// For whom a turn runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asker {
    /// The lowest role of what is answered.
    pub role: Role,
    /// Nobody but the asker sees the answer: a direct chat.
    pub direct: bool,
}

/// What a tool asks of the asker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The least role.
    pub least: Role,
    /// Only in a direct chat: what it shows is nobody else's business.
    pub direct_only: bool,
    /// When the owner is asked before it runs.
    pub asks: Asks,
}

/// When the owner is asked before a call runs. Ordered: a greater one asks more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Asks {
    /// Never: it reaches nobody and steers nothing.
    Never,
    /// In a turn that holds other people's words: they may be whose wish it is.
    Outside,
    /// In such a turn, and whenever anybody but an owner asks: it steers the owner's own turns.
    Steers,
    /// Each time.
    Always,
}

/// Whose words a turn holds: the lowest trust of everything in its context. security.md §3.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// Those of its asker, and what the gateway and the asker's own files say.
    Own,
    /// Those of others as well: a page, a group, an installed skill, a server.
    Outside,
}

impl Terms {
    /// What the class of a tool asks. design.md §14: strangers have no tools, members read, effects need trusted or owner.
    pub fn of(effect: Effect) -> Self {
        let least = match effect {
            Effect::Read => Role::Member,
            Effect::Idempotent | Effect::Effect => Role::Trusted,
        };
        let asks = if effect == Effect::Effect { Asks::Outside } else { Asks::Never };
        Self { least, direct_only: false, asks }
    }

    /// The owner is asked then.
    #[must_use]
    pub fn asks(self, asks: Asks) -> Self {
        Self { asks, ..self }
    }

    /// The owner is asked each time, whoever asks for it and whatever the turn holds.
    #[must_use]
    pub fn always_ask(self) -> Self {
        self.asks(Asks::Always)
    }

    /// The owner alone.
    #[must_use]
    pub fn owner_only(self) -> Self {
        Self { least: Role::Owner, ..self }
    }

    /// Direct chats alone.
    #[must_use]
    pub fn direct_only(self) -> Self {
        Self { direct_only: true, ..self }
    }
}

/// The decision about one tool for one turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may run.
    Allow,
    /// It may once the owner has said so: why they are asked.
    Ask(AskWhy),
    /// It may not, and is not shown to the model.
    Deny,
}

/// Why the owner is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AskWhy {
    /// The turn holds other people's words.
    Outside,
    /// Each such call is asked for.
    Always,
}

/// Whether a turn for this asker may use a tool on these terms at all: by role and place.
pub fn may_use(asker: Asker, terms: Terms) -> Verdict {
    let fits = asker.role >= terms.least && (asker.direct || !terms.direct_only);
    if fits { Verdict::Allow } else { Verdict::Deny }
}

/// Whether a turn for this asker may use the tool of that name: its terms, every policy that applies, and whose words the
/// turn holds. The one decision about a tool, for whatever started the turn; each policy only takes away.
pub fn decide<'a>(
    asker: Asker,
    tool: &str,
    terms: Terms,
    holds: Holds,
    policies: impl IntoIterator<Item = &'a ToolPolicy>,
) -> Verdict {
    if !policies.into_iter().all(|policy| policy.admits(tool)) || may_use(asker, terms) == Verdict::Deny {
        return Verdict::Deny;
    }
    match (terms.asks, holds) {
        (Asks::Always, _) => Verdict::Ask(AskWhy::Always),
        (Asks::Steers, _) if asker.role < Role::Owner => Verdict::Ask(AskWhy::Outside),
        (Asks::Outside | Asks::Steers, Holds::Outside) => Verdict::Ask(AskWhy::Outside),
        _ => Verdict::Allow,
    }
}

/// Which tools there are in some place: everywhere (`[tools]`), for an agent, on a channel, for a sender. What it does not
/// say it leaves open.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolPolicy {
    /// The tools to begin with; `None` = all, or only those in `allow` when it names any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Names, patterns (`memory_*`) and groups (`group:fs`): added to a profile; without one, nothing else is left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub allow: Vec<String>,
    /// The same; what is named here is not there, whatever else says so.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub deny: Vec<String>,
}

/// A set of tools for a kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// All.
    Full,
    /// Files, commands, the web, notes, plans and sub-agents.
    Coding,
    /// Other chats, reminders, notes, the web, pictures and voice: no files and no commands.
    Messaging,
    /// The plan of a task alone.
    Minimal,
}

/// The groups that lists may name, and their tools.
pub const GROUPS: &[(&str, &[&str])] = &[
    ("fs", &["read", "write", "edit", "ls", "find", "grep", "spreadsheet"]),
    ("runtime", &["exec", "process"]),
    ("web", &["web_fetch", "web_search"]),
    ("memory", &["memory_search", "memory_get", "memory_save", "memory_*"]),
    ("messaging", &["message"]),
    ("automation", &["schedule", "todo"]),
    ("sessions", &["sessions", "spawn"]),
    ("media", &["image", "transcribe", "speak"]),
];

impl Profile {
    fn holds(self, tool: &str) -> bool {
        let groups: &[&str] = match self {
            Self::Full => return true,
            Self::Coding => &["fs", "runtime", "web", "memory", "automation", "sessions", "media"],
            Self::Messaging => &["web", "memory", "messaging", "automation", "sessions", "media"],
            Self::Minimal => return tool == "todo",
        };
        groups.iter().any(|group| in_group(group, tool))
    }
}

impl ToolPolicy {
    /// Whether it leaves the tool of that name.
    pub fn admits(&self, tool: &str) -> bool {
        let named = |list: &[String]| list.iter().any(|entry| names(entry, tool));
        let begun = match self.profile {
            Some(profile) => profile.holds(tool) || named(&self.allow),
            None => self.allow.is_empty() || named(&self.allow),
        };
        begun && !named(&self.deny)
    }

    /// The entries that name none of these tools and no group: mistakes, or tools that come later (of skills, of servers).
    pub fn unknown<'a>(&'a self, known: &'a [&str]) -> impl Iterator<Item = (&'static str, &'a str)> {
        let lists = [("allow", &self.allow), ("deny", &self.deny)];
        lists.into_iter().flat_map(move |(key, list)| {
            let unknown = list.iter().filter(|entry| match group(entry) {
                Some(name) => !GROUPS.iter().any(|(group, _)| group.eq_ignore_ascii_case(name)),
                None => !known.iter().any(|tool| names(entry, tool)),
            });
            unknown.map(move |entry| (key, entry.as_str()))
        })
    }
}

/// The policies of a gateway besides those of its agents.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolPolicies {
    /// `[tools]`.
    pub everywhere: ToolPolicy,
    /// `[channels.<kind>.<account>] tools`, by `<kind>:<account>`.
    pub channels: BTreeMap<String, ToolPolicy>,
    /// `[access.senders."<kind>:<id>"] tools`.
    pub senders: BTreeMap<String, ToolPolicy>,
}

impl ToolPolicies {
    /// Those that apply on a channel, for what these senders said: all of them together, for an answer to several people
    /// may use what each of them may use.
    pub fn of<'a>(&'a self, channel: &ChannelId, senders: impl IntoIterator<Item = &'a str>) -> Vec<&'a ToolPolicy> {
        let mut found = vec![&self.everywhere];
        found.extend(self.channels.get(channel.as_str()));
        let senders: BTreeSet<&str> = senders.into_iter().collect();
        found.extend(senders.iter().filter_map(|id| self.senders.get(&format!("{}:{id}", channel.kind()))));
        found
    }
}

/// The names of the tools that come with the gateway, whether or not they are switched on here.
pub fn known_tools() -> Vec<&'static str> {
    GROUPS.iter().flat_map(|(_, tools)| tools.iter().copied()).filter(|tool| !tool.contains('*')).collect()
}

fn group(entry: &str) -> Option<&str> {
    let (word, name) = entry.trim().split_once(':')?;
    word.trim().eq_ignore_ascii_case("group").then_some(name.trim())
}

fn in_group(name: &str, tool: &str) -> bool {
    GROUPS.iter().any(|(group, tools)| {
        group.eq_ignore_ascii_case(name) && tools.iter().any(|pattern| matches(pattern.as_bytes(), tool.as_bytes()))
    })
}

/// Whether an entry of a list means the tool.
fn names(entry: &str, tool: &str) -> bool {
    match group(entry) {
        Some(name) => in_group(name, tool),
        None => matches(entry.trim().as_bytes(), tool.as_bytes()),
    }
}

/// Whether a pattern with `*` (anything) and `?` (one character) fits the whole name; capitals make no difference. Takes
/// time proportional to the product of the two lengths at worst.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Where the last star was, and what it stands for so far.
    let mut star: Option<(usize, usize)> = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(c) if *c == b'?' || c.eq_ignore_ascii_case(&name[n]) => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_grow_with_the_role() {
        use {Role::*, Verdict::*};
        let classes = [Effect::Read, Effect::Idempotent, Effect::Effect];
        let table = [
            (Stranger, [Deny, Deny, Deny], Deny),
            (Member, [Allow, Deny, Deny], Deny),
            (Trusted, [Allow, Allow, Allow], Deny),
            (Owner, [Allow, Allow, Allow], Allow),
        ];
        for (role, verdicts, owners) in table {
            for direct in [true, false] {
                let asker = Asker { role, direct };
                assert_eq!(classes.map(|effect| may_use(asker, Terms::of(effect))), verdicts, "{role:?}");
                for effect in classes {
                    assert_eq!(may_use(asker, Terms::of(effect).owner_only()), owners, "{role:?}");
                    let private = may_use(asker, Terms::of(effect).direct_only());
                    assert_eq!(private, if direct { may_use(asker, Terms::of(effect)) } else { Deny }, "{role:?}");
                }
            }
            assert_eq!(Role::parse(role.as_str()), role);
        }
        assert_eq!(Role::parse("root"), Stranger);
    }

    fn policy(profile: Option<Profile>, allow: &[&str], deny: &[&str]) -> ToolPolicy {
        let list = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        ToolPolicy { profile, allow: list(allow), deny: list(deny) }
    }

    #[test]
    fn a_policy_leaves_what_it_says() {
        const TOOLS: [&str; 8] =
            ["exec", "memory_get", "message", "mcp_files_read", "read", "spreadsheet", "todo", "web_fetch"];
        use Profile::*;
        let table: &[(ToolPolicy, &[&str])] = &[
            (policy(None, &[], &[]), &TOOLS),
            (policy(Some(Full), &[], &[]), &TOOLS),
            (policy(Some(Coding), &[], &[]), &["exec", "memory_get", "read", "spreadsheet", "todo", "web_fetch"]),
            (policy(Some(Messaging), &[], &[]), &["memory_get", "message", "todo", "web_fetch"]),
            (policy(Some(Minimal), &[], &[]), &["todo"]),
            // Added to a profile; alone when there is none.
            (policy(Some(Minimal), &["read", "group:web"], &[]), &["read", "todo", "web_fetch"]),
            (policy(None, &["read", "GROUP:Web"], &[]), &["read", "web_fetch"]),
            (policy(None, &["mem*", "M?SSAGE"], &[]), &["memory_get", "message"]),
            // Deny wins over everything.
            (policy(None, &["*"], &["*"]), &[]),
            (
                policy(Some(Full), &["exec"], &["exec", "group:fs", "mcp_*"]),
                &["memory_get", "message", "todo", "web_fetch"],
            ),
            (policy(None, &[], &["no_such_tool"]), &TOOLS),
            (policy(None, &["no_such_tool"], &[]), &[]),
            (policy(None, &["group:nonsense"], &[]), &[]),
        ];
        for (policy, left) in table {
            let found: Vec<&str> = TOOLS.into_iter().filter(|tool| policy.admits(tool)).collect();
            assert_eq!(&found, left, "{policy:?}");
        }
    }

    #[test]
    fn every_policy_takes_away_and_none_gives() {
        use {Role::*, Verdict::*};
        let terms = Terms::of(Effect::Effect);
        let (open, no_web, web_only) =
            (policy(None, &[], &[]), policy(None, &[], &["web_*"]), policy(None, &["group:web"], &[]));
        let table: &[(Role, &str, Terms, &[&ToolPolicy], Verdict)] = &[
            (Owner, "web_fetch", terms, &[], Allow),
            (Owner, "web_fetch", terms, &[&open, &web_only], Allow),
            (Owner, "web_fetch", terms, &[&web_only, &no_web], Deny),
            (Owner, "web_fetch", terms, &[&no_web, &web_only], Deny),
            (Owner, "write", terms, &[&open, &web_only], Deny),
            // A list gives nobody a right that the role does not have.
            (Member, "write", terms, &[&policy(Some(Profile::Full), &["write"], &[])], Deny),
            (Stranger, "web_fetch", Terms::of(Effect::Read), &[&web_only], Deny),
            (Trusted, "exec", terms.owner_only(), &[&policy(None, &["exec"], &[])], Deny),
        ];
        for (role, tool, terms, policies, verdict) in table {
            let asker = Asker { role: *role, direct: true };
            assert_eq!(
                decide(asker, tool, *terms, Holds::Own, policies.iter().copied()),
                *verdict,
                "{role:?} {tool} {policies:?}"
            );
        }
    }

    #[test]
    fn policies_are_found_by_channel_and_by_every_sender() {
        let of = |name: &str| policy(None, &[name], &[]);
        let policies = ToolPolicies {
            everywhere: of("all"),
            channels: [("telegram:main".to_owned(), of("channel"))].into(),
            senders: [("telegram:42".to_owned(), of("42")), ("discord:42".to_owned(), of("other"))].into(),
        };
        let found = |channel: &ChannelId, senders: &[&'static str]| -> Vec<String> {
            policies.of(channel, senders.iter().copied()).iter().map(|policy| policy.allow[0].clone()).collect()
        };
        let telegram = ChannelId::new("telegram", "main");
        assert_eq!(found(&telegram, &["42", "7", "42"]), ["all", "channel", "42"]);
        assert_eq!(found(&ChannelId::new("telegram", "second"), &["7"]), ["all"]);
        assert_eq!(found(&ChannelId::new("discord", "main"), &["42"]), ["all", "other"]);
    }

    #[test]
    fn entries_that_mean_nothing_are_named() {
        let policy = policy(None, &["read", "group:fs", "raed", "group:net"], &["mem*", "xx*"]);
        let unknown: Vec<_> = policy.unknown(&["read", "memory_get"]).collect();
        assert_eq!(unknown, [("allow", "raed"), ("allow", "group:net"), ("deny", "xx*")]);
    }

    #[test]
    fn patterns_end() {
        assert!(matches(b"a*b*c", b"axxbyyc") && !matches(b"a*b*c", b"axxbyyd"));
        assert!(matches(b"*", b"") && matches(b"**", b"x") && !matches(b"", b"x"));
        let long = "a".repeat(64);
        assert!(!matches("*a".repeat(40).as_bytes(), format!("{long}b").as_bytes()));
    }

    #[test]
    fn row_13_what_steers_the_owners_turns_is_the_owners_to_change() {
        let terms = Terms::of(Effect::Idempotent).asks(Asks::Steers);
        let as_role = |role, holds| decide(Asker { role, direct: true }, "write", terms, holds, []);
        assert_eq!(as_role(Role::Owner, Holds::Own), Verdict::Allow);
        assert_eq!(as_role(Role::Owner, Holds::Outside), Verdict::Ask(AskWhy::Outside));
        assert_eq!(as_role(Role::Trusted, Holds::Own), Verdict::Ask(AskWhy::Outside));
        assert_eq!(as_role(Role::Member, Holds::Own), Verdict::Deny);
        for (path, asks) in [
            ("notes.txt", Asks::Never),
            ("memory/2026-12-01.md", Asks::Outside),
            ("SOUL.md", Asks::Steers),
            ("./Agents.MD", Asks::Steers),
            ("skills/trap/SKILL.md", Asks::Steers),
            ("/srv/bot/workspace/HEARTBEAT.md", Asks::Steers),
            ("a/../SOUL.md", Asks::Steers),
            ("~/x", Asks::Steers),
        ] {
            assert_eq!(crate::tools::asks_before_writing(path), asks, "{path}");
        }
    }
}
