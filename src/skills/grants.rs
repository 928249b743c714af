//! What the owner allowed an installed skill: one grant a skill, with the files it was given for.
//!
//! Kept in `data/skill-grants.json`, beside the installed skills and outside of them: an archive cannot bring its own, an
//! update cannot take it along, `crawfish skills grant` works with and without a running gateway, and the gateway sees it
//! as it sees the skills, without a restart. It holds names and hashes and no value.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::{Skill, Tier, pinned};
use crate::os;

/// The file, beside the folder of installed skills.
const FILE: &str = "skill-grants.json";
/// The most hosts that are named.
const HOSTS: usize = 50;

/// All grants.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Grants {
    /// By the skill's folder below the installed ones, `/` between parts.
    #[serde(default)]
    pub grants: BTreeMap<String, Grant>,
}

/// What one skill was allowed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
pub struct Grant {
    /// What.
    #[serde(flatten)]
    pub asks: Asks,
    /// Its files when it was given, every one of them (those of [`pinned::files`]): path below its folder, SHA-256 in hex.
    pub files: BTreeMap<String, String>,
    /// When, in epoch milliseconds.
    pub at: i64,
    /// Other files were put into its place since: it counts no more, and says what was granted before.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
}

/// What a skill asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
pub struct Asks {
    /// Environment variables.
    pub env: Vec<String>,
    /// Hosts that its text names.
    pub hosts: Vec<String>,
    /// Programs that it runs.
    pub commands: Vec<String>,
}

/// Whether the owner agreed to a skill's variables and hosts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Consent {
    /// It lies in the owner's own folders: naming them there is the consent.
    #[default]
    OwnFolder,
    /// It is installed, and the owner granted this.
    Granted(Asks),
    /// It is installed, and there is no grant.
    Missing,
    /// There was a grant, and this file has changed since.
    Changed(PathBuf),
}

impl Grants {
    /// The grants for the skills installed in this folder; none when there is no such file or it cannot be read.
    pub fn read(installed: &Path) -> Self {
        let text = std::fs::read_to_string(file(installed)).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// What the skill in this folder was granted, in force or not.
    pub fn of(&self, installed: &Path, folder: &Path) -> Option<&Grant> {
        self.grants.get(&below(installed, folder)?)
    }

    /// Whether the owner agreed to this skill of that folder, whose files are these; `None` = they cannot be looked at.
    pub(super) fn consent(&self, installed: &Path, skill: &Skill, now: Option<&BTreeMap<String, String>>) -> Consent {
        if skill.tier != Tier::Managed {
            return Consent::OwnFolder;
        }
        let Some(folder) = skill.location.parent() else { return Consent::Missing };
        let Some(grant) = self.of(installed, folder) else { return Consent::Missing };
        // One more file is another skill too: it can be what a granted one runs.
        let other = match now {
            Some(now) => pinned::differences(&grant.files, now).into_iter().next().map(|(_, path)| folder.join(path)),
            None => Some(folder.to_owned()),
        };
        match other.or_else(|| grant.ended.then(|| skill.location.clone())) {
            Some(path) => Consent::Changed(path),
            None => Consent::Granted(grant.asks.clone()),
        }
    }
}

/// Where the grants for the skills installed in a folder are.
pub(super) fn file(installed: &Path) -> PathBuf {
    installed.with_file_name(FILE)
}

/// Grants an installed skill what it asks for, for these files of it, which were shown; an earlier grant of it is replaced.
///
/// # Errors
/// Those of the file system, and when the skill is not an installed one.
pub fn give(
    installed: &Path,
    skill: &Skill,
    asks: Asks,
    files: BTreeMap<String, String>,
    now_ms: i64,
) -> io::Result<()> {
    let folder = skill.location.parent().filter(|_| skill.tier == Tier::Managed);
    let place = folder.and_then(|folder| below(installed, folder));
    let Some(key) = place else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not an installed skill"));
    };
    let mut grants = Grants::read(installed);
    grants.grants.insert(key, Grant { asks, files, at: now_ms, ended: false });
    write(installed, &grants)
}

/// Ends the grant of the skill in this folder, unless it was given for these files; whether one ended. For a skill that was
/// replaced.
///
/// # Errors
/// Those of the file system.
pub(super) fn end_unless(installed: &Path, folder: &Path, files: &BTreeMap<String, String>) -> io::Result<bool> {
    let mut grants = Grants::read(installed);
    let granted = below(installed, folder).and_then(|key| grants.grants.get_mut(&key));
    let Some(grant) = granted.filter(|grant| !grant.ended && grant.files != *files) else { return Ok(false) };
    grant.ended = true;
    write(installed, &grants)?;
    Ok(true)
}

/// Takes back what a skill was granted; whether there was a grant. For a skill that is removed.
///
/// # Errors
/// Those of the file system.
pub fn withdraw(installed: &Path, folder: &Path) -> io::Result<bool> {
    let mut grants = Grants::read(installed);
    let Some(key) = below(installed, folder) else { return Ok(false) };
    let was = grants.grants.remove(&key).is_some();
    if was {
        write(installed, &grants)?;
    }
    Ok(was)
}

fn write(installed: &Path, grants: &Grants) -> io::Result<()> {
    let path = file(installed);
    let text = serde_json::to_vec_pretty(grants)?;
    os::write_private(&path, &text)?;
    path.parent().map_or(Ok(()), os::sync_dir)
}

fn below(installed: &Path, folder: &Path) -> Option<String> {
    let rest = folder.strip_prefix(installed).ok()?;
    let parts: Vec<_> = rest.components().map(|part| part.as_os_str().to_string_lossy()).collect();
    (!parts.is_empty()).then(|| parts.join("/"))
}

/// The hosts that a text names, `host` or `host:port`.
pub(super) fn hosts_of(text: &str) -> Vec<String> {
    let mut hosts = BTreeSet::new();
    for (at, _) in text.match_indices("://") {
        let rest = &text[at + 3..];
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '@' | '_')));
        let host = &rest[..end.unwrap_or(rest.len())];
        let host = host.rsplit('@').next().unwrap_or(host).trim_end_matches(['.', ':']).to_ascii_lowercase();
        if host.contains('.') || host.starts_with("localhost") {
            hosts.insert(host);
        }
    }
    hosts.into_iter().take(HOSTS).collect()
}

impl Asks {
    /// What a skill asks for: its variables, the hosts its SKILL.md names, its programs.
    pub fn of(skill: &Skill, text: &str) -> Self {
        let mut env: Vec<String> = skill.declared();
        env.retain(|name| super::variables::may_be_given(name));
        let mut commands: BTreeSet<String> =
            skill.requires.bins.iter().chain(&skill.requires.any_bins).cloned().collect();
        let program = skill.tool.as_ref().and_then(|tool| tool.get("command")?.get(0)?.as_str());
        commands.extend(program.map(str::to_owned));
        Self { env, hosts: hosts_of(text), commands: commands.into_iter().collect() }
    }

    /// Whether it asks for nothing that needs a grant.
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.hosts.is_empty()
    }
}
