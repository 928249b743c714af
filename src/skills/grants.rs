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
use sha2::{Digest, Sha256};

use super::{Skill, Tier, load};
use crate::os;

/// The file, beside the folder of installed skills.
const FILE: &str = "skill-grants.json";
/// The most files of a skill that are looked at, the most bytes of each, and how deep. As an installed skill may have.
const FILES: usize = 1_000;
const FILE_BYTES: u64 = 10 << 20;
const LEVELS: usize = 8;
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
    /// Its files when it was given: path below its folder, SHA-256 in hex.
    pub files: BTreeMap<String, String>,
    /// When, in epoch milliseconds.
    pub at: i64,
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

    /// Whether the owner agreed to this skill of that folder.
    pub(super) fn consent(&self, installed: &Path, skill: &Skill) -> Consent {
        if skill.tier != Tier::Managed {
            return Consent::OwnFolder;
        }
        let Some(folder) = skill.location.parent() else { return Consent::Missing };
        let Some(grant) = below(installed, folder).and_then(|key| self.grants.get(&key)) else {
            return Consent::Missing;
        };
        let now = files(folder);
        // A file that came later (a cache, a log) is what the granted ones wrote; one that changed is another skill.
        match grant.files.iter().find(|(path, hash)| now.get(*path) != Some(*hash)) {
            Some((path, _)) => Consent::Changed(folder.join(path)),
            None => Consent::Granted(grant.asks.clone()),
        }
    }
}

/// Where the grants for the skills installed in a folder are.
pub(super) fn file(installed: &Path) -> PathBuf {
    installed.with_file_name(FILE)
}

/// Grants an installed skill what it asks for, for its files as they are; an earlier grant of it is replaced.
///
/// # Errors
/// Those of the file system, and when the skill is not an installed one.
pub fn give(installed: &Path, skill: &Skill, asks: Asks, now_ms: i64) -> io::Result<()> {
    let folder = skill.location.parent().filter(|_| skill.tier == Tier::Managed);
    let place = folder.and_then(|folder| Some((folder, below(installed, folder)?)));
    let Some((folder, key)) = place else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not an installed skill"));
    };
    let mut grants = Grants::read(installed);
    grants.grants.insert(key, Grant { asks, files: files(folder), at: now_ms });
    write(installed, &grants)
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

/// The regular files of a skill with their hashes; links, hidden files and what interpreters leave behind do not count.
fn files(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut open = vec![(folder.to_owned(), 0)];
    while let Some((dir, level)) = open.pop() {
        for entry in std::fs::read_dir(&dir).into_iter().flatten().flatten() {
            let (path, Ok(kind)) = (entry.path(), entry.file_type()) else { continue };
            let name = entry.file_name();
            let name = name.to_string_lossy();
            if name.starts_with('.') || name == "__pycache__" || name == "node_modules" || found.len() >= FILES {
                continue;
            }
            if kind.is_dir() && level < LEVELS {
                open.push((path, level + 1));
            } else if kind.is_file()
                && entry.metadata().is_ok_and(|facts| facts.len() <= FILE_BYTES)
                && let (Some(key), Ok(bytes)) = (below(folder, &path), std::fs::read(&path))
            {
                found.insert(key, load::hex(&Sha256::digest(&bytes)));
            }
        }
    }
    found
}

/// What changes when a granted file changes: sizes and times, for the watch over the skills.
pub(super) fn stamps(installed: &Path) -> Vec<(PathBuf, Option<std::time::SystemTime>, u64)> {
    let grants = Grants::read(installed);
    let granted = grants
        .grants
        .iter()
        .flat_map(|(folder, grant)| grant.files.keys().map(move |path| installed.join(folder).join(path)));
    std::iter::once(file(installed))
        .chain(granted)
        .map(|path| {
            let facts = std::fs::symlink_metadata(&path).ok();
            let modified = facts.as_ref().and_then(|facts| facts.modified().ok());
            (path, modified, facts.map_or(0, |facts| facts.len()))
        })
        .collect()
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
