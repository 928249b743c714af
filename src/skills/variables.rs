//! What a skill's commands get in their environment: which variables, whose values, and whose not and why.
//!
//! Values come from the owner alone: `[skills.entries.<key>]`, else the gateway's own environment (`.env` among it). They
//! leave this file for a command's environment and for the redactor, and nothing else; design.md §10.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::PathBuf,
    sync::Arc,
};

use super::{Skill, Skills, State, Tier, config::SkillConfig, grants::Consent};
use crate::{
    egress::hosts::{By, Host},
    secrets::Secret,
};

/// The value of a variable of the gateway's environment, if it is set.
type Lookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The values that the owner put aside for skills.
#[derive(Clone)]
pub struct Keyring {
    entries: Arc<BTreeMap<String, SkillConfig>>,
    lookup: Lookup,
    own: Arc<Vec<Secret>>,
}

impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Keyring(***)")
    }
}

impl Default for Keyring {
    fn default() -> Self {
        Self::new(BTreeMap::new(), |_| None, Vec::new())
    }
}

/// What the commands of a turn or of one skill's tool get.
#[derive(Clone, Debug, Default)]
pub struct Handed {
    /// By name.
    pub given: BTreeMap<String, Secret>,
    /// What is set and not given, and why.
    pub withheld: Vec<Withheld>,
    /// The hosts that are open to them where commands are confined.
    pub hosts: Vec<Host>,
}

/// A variable that is set and not given to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Withheld {
    /// Its name.
    pub name: String,
    /// The skill that declares it.
    pub skill: String,
    /// Why not.
    pub why: Why,
}

/// Why a variable is not given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Why {
    /// The skill's SKILL.md was not read in this turn; where it is.
    NotRead(String),
    /// It is an installed skill without the owner's grant.
    NotGranted,
    /// The owner granted it, and its files have changed since.
    Changed,
    /// Its value is the gateway's own, and the skill lies where the agent can write.
    Own,
}

impl Withheld {
    /// The line for the model.
    fn line(&self) -> String {
        let Self { name, skill, why } = self;
        let skill = crate::terminal::escape_line(skill);
        match why {
            Why::NotRead(path) => {
                format!("[{name} is set only after `read` of {path} in this turn: read it, then run the command again]")
            }
            Why::NotGranted => {
                format!(
                    "[{name} is withheld: the owner has to run `crawfish skills grant {skill}` first; tell the user]"
                )
            }
            Why::Changed => format!(
                "[{name} is withheld: the files of the skill changed since the owner's grant; `crawfish skills grant \
                 {skill}` renews it; tell the user]"
            ),
            Why::Own => format!(
                "[{name} is withheld: it is a key of the gateway itself; the owner can give it by \
                 [skills.entries.{skill}.env] in the configuration; tell the user]"
            ),
        }
    }
}

impl Handed {
    /// What the model is told of variables that a command names and does not get; `None` when there are none.
    pub fn note(&self, command: &str) -> Option<String> {
        let named = |name: &str| {
            command.match_indices(name).any(|(at, _)| {
                let is_word = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
                !is_word(command[..at].chars().next_back()) && !is_word(command[at + name.len()..].chars().next())
            })
        };
        let lines: Vec<String> = self.withheld.iter().filter(|held| named(&held.name)).map(Withheld::line).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// What the model is told when it has read the skill's SKILL.md: of each variable that will not be there.
    pub fn told_at_reading(&self) -> Option<String> {
        let lines: Vec<String> = self.withheld.iter().map(Withheld::line).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }
}

impl Keyring {
    /// `entries` of the configuration, `lookup` for the gateway's environment, and the secrets that are the gateway's own.
    pub fn new(
        entries: BTreeMap<String, SkillConfig>,
        lookup: impl Fn(&str) -> Option<String> + Send + Sync + 'static,
        own: Vec<Secret>,
    ) -> Self {
        Self { entries: Arc::new(entries), lookup: Arc::new(lookup), own: Arc::new(own) }
    }

    /// Whether a variable is set for a skill of this key, whose `primaryEnv` is `primary`.
    pub fn has(&self, key: &str, primary: Option<&str>, name: &str) -> bool {
        self.set_aside(key, primary, name).is_some() || self.of_environment(name).is_some()
    }

    fn set_aside(&self, key: &str, primary: Option<&str>, name: &str) -> Option<&Secret> {
        let entry = self.entries.get(key)?;
        let api_key = entry.api_key.as_ref().filter(|_| primary == Some(name));
        entry.env.get(name).or(api_key).filter(|value| !value.is_empty())
    }

    fn of_environment(&self, name: &str) -> Option<Secret> {
        (self.lookup)(name).filter(|value| !value.is_empty() && !value.contains('\0')).map(Secret::new)
    }

    /// The variables a skill's commands may get: those it declares and those the owner set aside for it.
    pub fn names(&self, skill: &Skill) -> Vec<String> {
        let mut names: Vec<String> = skill.declared();
        names.extend(self.entries.get(&skill.key).into_iter().flat_map(|entry| entry.env.keys().cloned()));
        names.retain(|name| may_be_given(name));
        names.sort_unstable();
        names.dedup();
        names
    }

    /// What the commands of one skill get.
    pub fn of_skill(&self, skill: &Skill) -> Handed {
        let mut handed = Handed::default();
        for name in self.names(skill) {
            let aside = self.set_aside(&skill.key, skill.primary_env.as_deref(), &name);
            let Some(value) = aside.cloned().or_else(|| self.of_environment(&name)) else { continue };
            let is_own = || self.own.iter().any(|own| own.matches(value.expose().as_bytes()));
            let why = match &skill.consent {
                Consent::Granted(asks) if asks.env.contains(&name) => None,
                Consent::Granted(_) | Consent::Missing => Some(Why::NotGranted),
                Consent::Changed(_) => Some(Why::Changed),
                // The agent may write there: a name in such a file is not the owner's word for a key that is not a skill's.
                Consent::OwnFolder if skill.tier == Tier::Workspace && aside.is_none() && is_own() => Some(Why::Own),
                Consent::OwnFolder => None,
            };
            match why {
                None => drop(handed.given.insert(name, value)),
                Some(why) => handed.withheld.push(Withheld { name, skill: skill.name.clone(), why }),
            }
        }
        let named: &[String] = match &skill.consent {
            Consent::Granted(asks) => &asks.hosts,
            // Where a command can write, an address in a file is not the owner's word.
            Consent::OwnFolder if skill.tier != Tier::Workspace => &skill.hosts,
            Consent::OwnFolder | Consent::Missing | Consent::Changed(_) => &[],
        };
        handed.hosts.extend(named.iter().filter_map(|host| Host::read(host, By::Skill)));
        // The address of the owner's own server (`HA_URL`), for the skill that may have it.
        handed.hosts.extend(handed.given.values().filter_map(|value| Host::of_value(value.expose())));
        handed
    }

    /// What the commands of a turn get that has read these SKILL.md files, in this order: of two values of one name the
    /// later one counts.
    pub fn of_turn(&self, skills: &Skills, read: &[PathBuf]) -> Handed {
        let mut handed = Handed::default();
        for skill in read.iter().filter_map(|path| skills.at(path)) {
            let one = self.of_skill(skill);
            handed.given.extend(one.given);
            handed.withheld.extend(one.withheld);
            handed.hosts.extend(one.hosts);
        }
        for skill in skills.usable().filter(|skill| !read.contains(&skill.location)) {
            let path = super::shown_path(&skill.location, None);
            handed.withheld.extend(self.of_skill(skill).given.into_keys().map(|name| Withheld {
                name,
                skill: skill.name.clone(),
                why: Why::NotRead(path.clone()),
            }));
        }
        handed.withheld.retain(|held| !handed.given.contains_key(&held.name));
        handed
    }

    /// Every value that a skill is given and that must not be seen, for the redactor; and all that the owner put aside. A name
    /// in a skill that nobody granted hides nothing: else any skill could blot out `/bin/bash` or the folder we are in.
    pub fn secrets(&self, skills: &Skills) -> Vec<Secret> {
        let aside = self.entries.values().flat_map(|entry| entry.env.values().chain(&entry.api_key)).cloned();
        let found = skills.list.iter().filter(|skill| !matches!(skill.state, State::Broken(_)));
        let given = found.flat_map(|skill| self.of_skill(skill).given);
        let given = given.filter(|(name, _)| !says_nothing(name)).map(|(_, value)| value);
        let mut known = BTreeSet::new();
        let is_new = |value: &Secret| known.insert(value.expose().to_owned());
        aside.chain(given).filter(|value| !value.is_empty() && is_secret(value.expose())).filter(is_new).collect()
    }
}

/// Whether a value has to be kept from being seen: everything but the plain address of a server, which says who is asked
/// and opens nothing.
pub fn is_secret(value: &str) -> bool {
    let Some((scheme, rest)) = value.split_once("://") else { return true };
    let host = rest.strip_suffix('/').unwrap_or(rest);
    let plain = |c: char| c.is_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']');
    !matches!(scheme, "http" | "https" | "ws" | "wss" | "mqtt" | "tcp") || host.is_empty() || !host.chars().all(plain)
}

/// Whether a variable of that name never holds a secret: every shell and desktop sets it.
fn says_nothing(name: &str) -> bool {
    const PLAIN: [&str; 14] = [
        "SHELL",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "HOSTNAME",
        "HOST",
        "EDITOR",
        "VISUAL",
        "PAGER",
        "BROWSER",
        "DISPLAY",
        "COLORTERM",
        "COLUMNS",
        "LINES",
    ];
    PLAIN.contains(&name) || name.starts_with("XDG_") || name.starts_with("SYSTEMD_")
}

/// Whether a name is one of a variable, and none by which programs are made to load other code or that every command has
/// anyway.
pub fn may_be_given(name: &str) -> bool {
    const EVERYWHERE: [&str; 9] = ["PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM"];
    const LOADERS: [&str; 24] = [
        "LD_",
        "DYLD_",
        "LC_",
        "CRAWFISH_",
        "NODE_OPTIONS",
        "NODE_PATH",
        "PYTHONPATH",
        "PYTHONHOME",
        "PYTHONSTARTUP",
        "BASH_ENV",
        "SHELLOPTS",
        "BASHOPTS",
        "PROMPT_COMMAND",
        "PERL5OPT",
        "PERL5LIB",
        "RUBYOPT",
        "RUBYLIB",
        "GIT_SSH",
        "GIT_EXEC_PATH",
        "GIT_CONFIG",
        "JAVA_TOOL_OPTIONS",
        "GCONV_PATH",
        "PS4",
        "IFS",
    ];
    let is_name = !name.is_empty()
        && name.len() <= 128
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name && name != "ENV" && !EVERYWHERE.contains(&name) && !LOADERS.iter().any(|loader| name.starts_with(loader))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_address_is_no_secret_and_everything_else_is() {
        for plain in ["http://127.0.0.1:8123", "https://ha.example.org/", "http://[::1]:80"] {
            assert!(!is_secret(plain), "{plain}");
        }
        for secret in
            ["eyJhbGciOi", "https://user:pw@host", "https://hooks.example/services/T0/B0/x", "http://", "a://b"]
        {
            assert!(is_secret(secret), "{secret}");
        }
    }

    #[test]
    fn names_that_load_code_are_never_given() {
        for name in ["HA_TOKEN", "API_KEY", "x1", "PATHS"] {
            assert!(may_be_given(name), "{name}");
        }
        for name in
            ["PATH", "LD_PRELOAD", "NODE_OPTIONS", "BASH_ENV", "ENV", "", "1X", "A-B", "A=B", "CRAWFISH_COMMAND"]
        {
            assert!(!may_be_given(name), "{name}");
        }
    }

    #[test]
    fn a_command_that_names_a_withheld_variable_is_told_why() {
        let held = |name: &str, why| Withheld { name: name.to_owned(), skill: "home".to_owned(), why };
        let handed = Handed {
            given: BTreeMap::new(),
            hosts: Vec::new(),
            withheld: vec![held("HA_TOKEN", Why::NotGranted), held("HA", Why::NotRead("~/s/SKILL.md".to_owned()))],
        };
        assert_eq!(handed.note("echo $HA_TOKENS $XHA_TOKEN"), None);
        let note = handed.note("curl -H \"Bearer $HA_TOKEN\" ${HA}").expect("both are named");
        assert!(note.contains("crawfish skills grant home") && note.contains("`read` of ~/s/SKILL.md"), "{note}");
        assert_eq!(note.lines().count(), 2);
    }
}
