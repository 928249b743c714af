//! Brings a skill from where it comes into a staging folder, and reads there what it is: everything that happens before
//! anybody is asked, and nothing that could not be thrown away.

use std::{fs, path::Path};

use channel_api::Clock;
use strsim::damerau_levenshtein;

use super::{
    Env, Fault, Skill, Skills, Source as Folder, State, Tier,
    archive::{self, Limits, Refused},
    git::{self, GitError},
    hub::{self, Hub, HubError, Hubs},
    installed::Staged,
    load,
    pinned::{self, FileSum, Origin, Pin},
    source::Source,
    view::{self, View},
};
use crate::{
    egress::Egress,
    lang::{self, Lang},
    workspace::decode,
};

/// What bringing stands on.
pub struct Bringer<'a> {
    /// The hubs to ask.
    pub hubs: &'a Hubs,
    /// For addresses that are nobody's.
    pub egress: &'a Egress,
    /// Looks up environment variables.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
    /// What the gates ask.
    pub env: &'a dyn Env,
    /// The time.
    pub clock: &'a dyn Clock,
    /// Tells how far a download is: bytes that are there, bytes in all.
    pub progress: &'a dyn Fn(u64, Option<u64>),
    /// Tells of something that a person should read now: a hub that was passed over.
    pub tell: &'a dyn Fn(String),
    /// The language of what is told.
    pub lang: Lang,
    /// Only the hub of this address is asked: what came from one is not updated from another.
    pub registry: Option<&'a str>,
}

/// A skill in a staging folder.
#[derive(Debug)]
pub struct Brought {
    /// The skill, as the loader reads it.
    pub skill: Skill,
    /// The folder it should have, by where it came from.
    pub folder: String,
    /// Its files.
    pub files: Vec<FileSum>,
    /// What it will be able to do.
    pub view: View,
    /// Its notes.
    pub origin: Origin,
    /// The hub's warning, if it has one.
    pub suspicious: Option<String>,
    /// Sentences a person should read before agreeing.
    pub remarks: Vec<String>,
}

/// Why nothing was brought.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotBrought {
    /// A hub, or all of them.
    Hub(HubError, String),
    /// The archive or folder.
    Refused(Refused),
    /// git.
    Git(GitError),
    /// Its SKILL.md.
    Fault(Fault),
    /// Somebody else published it.
    OtherOwner(String),
    /// The hub does not say who published it, and the owner was named; the name, and the hub.
    NoOwner(String, String),
    /// The hub that it came from is not configured any more; its address.
    HubGone(String),
    /// The file system, with its words.
    Io(String),
}

impl NotBrought {
    /// Why, in one line.
    pub fn text(&self, lang: Lang) -> String {
        match self {
            Self::Hub(error, hub) => error.text(lang, hub),
            Self::Refused(refused) => refused.text(lang),
            Self::Git(GitError::NoGit) => lang::git_missing(lang),
            Self::Git(GitError::Failed(why)) => lang::git_failed(lang, why),
            Self::Git(GitError::TooLong(seconds)) => lang::git_too_long(lang, seconds),
            Self::Git(GitError::TooLarge(mib)) => lang::git_too_large(lang, mib),
            Self::Fault(fault) => lang::install_broken(lang, fault.text(lang)),
            Self::OtherOwner(owner) => lang::install_other_owner(lang, owner),
            Self::NoOwner(owner, hub) => lang::install_no_owner(lang, owner, hub),
            Self::HubGone(registry) => lang::install_hub_gone(lang, registry),
            Self::Io(why) => why.clone(),
        }
    }
}

impl From<Refused> for NotBrought {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Io(why) => Self::Io(why),
            refused => Self::Refused(refused),
        }
    }
}

impl From<std::io::Error> for NotBrought {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

impl Bringer<'_> {
    /// Brings the skill of `source` into `staged`. `path` says which folder of it when there are several skills; `word` is
    /// what the owner wrote, for the notes.
    ///
    /// # Errors
    /// [`NotBrought`].
    pub async fn bring(
        &self,
        source: &Source,
        path: Option<&str>,
        word: &str,
        staged: &Staged,
    ) -> Result<Brought, NotBrought> {
        let lang = self.lang;
        let (zip, into) = (staged.beside("archive.zip"), staged.skill());
        let pin = Pin { from: word.to_owned(), path: path.map(str::to_owned), ..Pin::default() };
        let mut origin =
            Origin { version: 1.into(), installed_at: self.clock.now_ms().into(), pin: Some(pin), ..Origin::default() };
        let (mut suspicious, mut remarks, mut named) = (None, Vec::new(), None);
        match source {
            Source::Hub { owner, slug, version } => {
                let passed = |hub: &str, error: &HubError| (self.tell)(error.text(lang, hub));
                let fetch = async |hub: &Hub, clock: &dyn Clock| {
                    let about = hub.about(slug, clock).await?;
                    let version = version.clone().or_else(|| about.version.clone());
                    let listed = match &version {
                        Some(version) => hub.files(&about.slug, version, clock).await?,
                        None => None,
                    };
                    let load = hub.download(&about.slug, version.as_deref(), &zip, self.egress, clock, self.progress);
                    let loaded = load.await?;
                    Ok((about, version, listed, loaded))
                };
                let asked = match self.registry {
                    Some(registry) => {
                        let hub = self.hubs.at(registry).ok_or_else(|| NotBrought::HubGone(registry.to_owned()))?;
                        fetch(hub, self.hubs.clock())
                            .await
                            .map(|got| (got, hub))
                            .map_err(|error| (error, hub.name.clone()))
                    }
                    None => self.hubs.first(passed, fetch).await,
                };
                let ((about, version, listed, loaded), hub) =
                    asked.map_err(|(error, hub)| NotBrought::Hub(error, hub))?;
                match (owner, &about.owner) {
                    (Some(owner), Some(is)) if !is.eq_ignore_ascii_case(owner) => {
                        return Err(NotBrought::OtherOwner(is.clone()));
                    }
                    (Some(owner), None) => return Err(NotBrought::NoOwner(owner.clone(), hub.name.clone())),
                    _ => {}
                }
                self.unzip(&zip, &into, path.or(loaded.path.as_deref()))?;
                match listed {
                    Some(listed) => hub::compare(&listed, &pinned::files(&into)?)
                        .map_err(|file| NotBrought::Hub(HubError::Tampered(file), hub.name.clone()))?,
                    None => remarks.push(lang::install_unverified(lang, &hub.name)),
                }
                remarks.extend(loaded.handed_to.map(|host| lang::install_handed(lang, &hub.name, host)));
                if about.slug != *slug {
                    remarks.push(lang::install_renamed(lang, slug, &about.slug));
                }
                suspicious = about.suspicious;
                named = Some(about.slug.clone());
                origin.registry = hub.registry().to_owned();
                origin.slug = about.slug;
                origin.owner_handle = about.owner;
                origin.installed_version = version;
            }
            Source::Folder(folder) => archive::copy(folder, &into, path, Limits::default())?,
            Source::Zip(file) => self.unzip(file, &into, path)?,
            Source::Url(url) => {
                if url.starts_with("http://") {
                    remarks.push(lang::install_plain_http(lang));
                }
                let saved = hub::save_from(self.egress, url, &zip, self.progress).await;
                saved.map_err(|error| NotBrought::Hub(error, url_host(url)))?;
                self.unzip(&zip, &into, path)?;
            }
            Source::Git { url, branch, path: inside } => {
                let inside = path.or(inside.as_deref());
                let work = staged.beside("repository");
                let packed = git::pack(url, branch.as_deref(), inside, &work, &zip, self.variable, self.clock);
                origin.installed_version = Some(packed.await.map_err(NotBrought::Git)?);
                self.unzip(&zip, &into, None)?;
            }
        }
        let files = pinned::files(&into)?;
        let skill = self.read(&into)?;
        let folder = named.unwrap_or_else(|| folder_name(&skill));
        let text = |path: &str| text_of(&into.join(path));
        let view = view::view(&skill, &files, text);
        Ok(Brought { skill, folder, files, view, origin, suspicious, remarks })
    }

    fn unzip(&self, zip: &Path, into: &Path, path: Option<&str>) -> Result<(), NotBrought> {
        let file = fs::File::open(zip).map_err(|error| NotBrought::Io(format!("{}: {error}", zip.display())))?;
        if file.metadata()?.len() > hub::ARCHIVE_BYTES {
            return Err(Refused::TooMuch(hub::ARCHIVE_BYTES).into());
        }
        Ok(archive::unzip(std::io::BufReader::new(file), into, path, Limits::default())?)
    }

    /// The skill as the loader sees it.
    fn read(&self, folder: &Path) -> Result<Skill, NotBrought> {
        let loaded = Skills::load(&[Folder { tier: Tier::Managed, dir: folder.to_owned() }], self.env);
        let skill = loaded.list.into_iter().next().ok_or(NotBrought::Refused(Refused::NoSkill))?;
        match skill.state {
            State::Broken(fault) => Err(NotBrought::Fault(fault)),
            _ => Ok(skill),
        }
    }
}

/// A name for the folder of a skill that no hub named.
fn folder_name(skill: &Skill) -> String {
    let lower = skill.name.to_lowercase();
    match hub::is_slug(&lower) {
        true => lower,
        false => skill.alias.clone(),
    }
}

/// A file's text as the agent's tools would read it, when it is one.
pub fn text_of(path: &Path) -> Option<String> {
    decode(&fs::read(path).ok()?)
}

fn url_host(url: &str) -> String {
    reqwest::Url::parse(url).ok().and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default()
}

/// How the name of a new skill stands to those that are there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resembles {
    /// The same to a person's eye in other letters: refused.
    LookAlike(String),
    /// One letter away from it: told.
    Near(String),
    /// The same name in another folder: one will hide the other.
    Same(String),
}

/// Compares a new skill's name with those that are there, but for the skill in `own` (the one it replaces).
pub fn resembles(name: &str, folder: &str, there: &Skills, own: &Path) -> Option<Resembles> {
    let others = || there.list.iter().filter(|skill| skill.location.parent() != Some(own));
    let names = [name, folder];
    for other in others() {
        let look_alike = |name: &&str| {
            load::skeleton(name) == load::skeleton(&other.name) && load::key_of(name) != load::key_of(&other.name)
        };
        if names.iter().any(look_alike) {
            return Some(Resembles::LookAlike(other.name.clone()));
        }
    }
    if let Some(same) = others().find(|other| load::key_of(&other.name) == load::key_of(name)) {
        return Some(Resembles::Same(same.location.display().to_string()));
    }
    // Digits and letters that pass for one another count as one letter each.
    let near = |other: &&Skill| {
        name.chars().count() >= 5 && damerau_levenshtein(&load::key_of(&other.name), &load::key_of(name)) == 1
    };
    others().find(near).map(|other| Resembles::Near(other.name.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_pass_for_another_are_told_apart() {
        let mut there = Skills::default();
        for name in ["weather", "notes"] {
            there.list.push(load::blank(name.to_owned(), format!("/s/{name}/SKILL.md").into(), Tier::Bundled));
        }
        let of = |name: &str| resembles(name, name, &there, Path::new("/data/skills/x"));
        assert_eq!(of("wеather"), Some(Resembles::LookAlike("weather".to_owned())), "a Cyrillic letter");
        assert_eq!(of("weathre"), Some(Resembles::Near("weather".to_owned())));
        assert_eq!(of("Weather"), Some(Resembles::Same("/s/weather/SKILL.md".to_owned())));
        assert_eq!(of("forecast"), None);
        assert_eq!(resembles("weather", "weather", &there, Path::new("/s/weather")), None, "the one it replaces");
    }
}
