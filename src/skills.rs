//! Skills: folders with a SKILL.md that teach the agent a task. The model sees name, description and place of each, and
//! reads the file when one fits.
//!
//! A skill that cannot be used never stops the others: it stands in the list with its reason. Runs nothing; values of
//! environment variables are the matter of `variables` alone.

pub mod archive;
pub mod bring;
pub mod callable;
pub mod command;
pub mod config;
mod front_matter;
mod git;
pub mod grants;
pub mod hub;
pub mod installed;
pub mod lint;
mod load;
pub mod pinned;
pub mod requirements;
pub mod source;
pub mod variables;
pub mod view;
pub mod watch;

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use serde_json::Value;

pub use self::grants::Consent;
use self::variables::Keyring;
use crate::{
    lang::{self, Lang},
    terminal,
};

/// One skill as the prompt lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkillEntry {
    /// Its name, as its author wrote it.
    pub name: String,
    /// When to use it.
    pub description: String,
    /// Where its SKILL.md is, as the agent should write it for `read` (the home folder as `~`).
    pub location: String,
}

/// One skill that was found, usable or not.
#[derive(Clone, Debug, PartialEq)]
pub struct Skill {
    /// Its name as its author wrote it; the folder's name when there is none.
    pub name: String,
    /// The name of its command and tool: `[a-z0-9_]{1,32}`, unique.
    pub alias: String,
    /// When to use it.
    pub description: String,
    /// Its SKILL.md.
    pub location: PathBuf,
    /// Where it came from.
    pub tier: Tier,
    /// Whether it can be used.
    pub state: State,
    /// What was odd and did not stop it.
    pub warnings: Vec<Warning>,
    /// It has a command of its own (default yes).
    pub user_invocable: bool,
    /// The model sees it (default yes).
    pub model_invocable: bool,
    /// Its page.
    pub homepage: Option<String>,
    /// Its sign.
    pub emoji: Option<String>,
    /// Its name in `[skills.entries.<key>]`.
    pub key: String,
    /// The variable that its one API key goes to.
    pub primary_env: Option<String>,
    /// What it needs.
    pub requires: Requires,
    /// How it wants its programs installed, as written; not checked.
    pub install: Option<Value>,
    /// The callable tool it declares, as written; not checked.
    pub tool: Option<Value>,
    /// Whether the owner agreed that its commands get its variables.
    pub consent: Consent,
    /// SHA-256 (hex) of its SKILL.md; empty when it was not read.
    pub sha256: String,
    /// The hosts its SKILL.md names.
    pub hosts: Vec<String>,
}

impl Skill {
    /// The environment variables it declares.
    pub fn declared(&self) -> Vec<String> {
        let mut names = self.requires.env.clone();
        names.extend(self.primary_env.clone().filter(|name| !self.requires.env.contains(name)));
        names
    }
}

impl Skill {
    /// Its SKILL.md, decoded; `None` when it cannot be read.
    pub fn text(&self) -> Option<String> {
        load::text_of(&self.location).ok()
    }

    /// What its commands go without for want of the owner's grant, in a line that names the command for it.
    pub fn ungranted(&self, lang: Lang) -> Option<String> {
        let name = terminal::shell_word(&self.name).into_owned();
        match &self.consent {
            Consent::Missing => {
                let asked = self.declared().into_iter().chain(self.hosts.iter().cloned());
                let asked: Vec<String> = asked.map(|name| terminal::escape_line(&name).into_owned()).collect();
                (!asked.is_empty()).then(|| lang::skill_not_granted(lang, lang.listed(asked), name))
            }
            Consent::Changed(path) => Some(lang::skill_changed(lang, path.display(), name)),
            Consent::OwnFolder | Consent::Granted(_) => None,
        }
    }
}

/// What a skill needs before it is offered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requires {
    /// Operating systems (`linux`, `darwin`, `win32`); empty = any.
    pub os: Vec<String>,
    /// Programs, all of them.
    pub bins: Vec<String>,
    /// Programs, one of them.
    pub any_bins: Vec<String>,
    /// Environment variables, all set.
    pub env: Vec<String>,
    /// Configuration paths, all true.
    pub config: Vec<String>,
    /// Offered whatever else is missing (the operating system still counts).
    pub always: bool,
}

/// Where skills come from; the first wins when two have one name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// The agent's own workspace.
    Workspace,
    /// Installed by the owner.
    Managed,
    /// Folders the owner named in `[skills] dirs`, those of other programs among them.
    Extra,
    /// Shipped inside the binary: everything else may replace it.
    Bundled,
}

impl Tier {
    /// The name in listings.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Workspace => "workspace",
            Self::Managed => "installed",
            Self::Extra => "folder",
            Self::Bundled => "shipped",
        }
    }
}

/// A folder of skills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its rank.
    pub tier: Tier,
    /// The folder; `~` at the start is the home folder.
    pub dir: PathBuf,
}

/// The usual folders of an agent: `skills` in its workspace, `skills` in the data folder (installed ones), the folders
/// of `[skills] dirs`, and where [`write_bundled`] puts the shipped ones.
pub fn sources(workspace: &Path, data: &Path, dirs: impl IntoIterator<Item = PathBuf>) -> Vec<Source> {
    let mut sources = vec![
        Source { tier: Tier::Workspace, dir: workspace.join("skills") },
        Source { tier: Tier::Managed, dir: data.join("skills") },
    ];
    sources.extend(dirs.into_iter().map(|dir| Source { tier: Tier::Extra, dir }));
    sources.push(Source { tier: Tier::Bundled, dir: bundled_dir(data) });
    sources
}

/// Where the skills inside the binary are written.
pub fn bundled_dir(data: &Path) -> PathBuf {
    data.join("bundled-skills")
}

/// Whether a skill can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Yes.
    Loaded,
    /// Not here: something it needs is missing.
    Off(Vec<Unmet>),
    /// No: its file is wrong.
    Broken(Fault),
}

/// A need that is not met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unmet {
    /// Made for these operating systems.
    Os(Vec<String>),
    /// This program.
    Program(String),
    /// One of these programs.
    AnyProgram(Vec<String>),
    /// This environment variable.
    Variable(String),
    /// This configuration key.
    Config(String),
    /// Switched off in the configuration.
    SwitchedOff,
    /// It is installed in this folder, and a file is other than it was then.
    Changed(String),
}

impl Unmet {
    /// The reason in one line, with what would mend it. The words of a skill in it are shown, never obeyed.
    pub fn text(&self, lang: Lang) -> String {
        let one = |names: &[String]| lang.listed(names.iter().map(|name| terminal::escape_line(name).into_owned()));
        match self {
            Self::Os(names) => lang::skill_needs_os(lang, one(names)),
            Self::Program(name) => lang::skill_needs_program(lang, terminal::escape_line(name)),
            Self::AnyProgram(names) => lang::skill_needs_any_program(lang, one(names)),
            Self::Variable(name) => lang::skill_needs_variable(lang, terminal::escape_line(name)),
            Self::Config(path) => lang::skill_needs_config(lang, terminal::escape_line(path)),
            Self::SwitchedOff => lang::skill_switched_off(lang),
            Self::Changed(folder) => lang::skill_off_changed(lang, terminal::shell_word(folder)),
        }
    }
}

/// What is wrong with a skill's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The file does not begin with a `---` line.
    NoFrontMatter,
    /// The second `---` line is missing.
    NotClosed,
    /// The file has more than 256,000 bytes.
    TooLarge,
    /// The front matter has more than 16 KiB.
    FrontMatterTooLarge,
    /// Nested deeper than 64 levels.
    TooDeep,
    /// Anchors and aliases, or explicit type tags.
    AnchorsOrTags,
    /// The name, at this line, begins with a bracket or a quote that is never closed.
    NameNotClosed(usize),
    /// There is no description, so nobody can tell when to use it.
    NoDescription,
    /// A name that is empty, too long, a path, or has invisible characters.
    BadName(String),
    /// Looks like another skill's name in other letters.
    LookAlike(String),
    /// A symbolic or hard link.
    Link,
    /// A folder, pipe or device.
    NotAFile,
    /// In no encoding we know.
    NotText,
    /// The system refused, with its words.
    Io(String),
}

impl Fault {
    /// The reason in one line, with what would mend it.
    pub fn text(&self, lang: Lang) -> String {
        match self {
            Self::NoFrontMatter => lang::skill_no_front_matter(lang),
            Self::NotClosed => lang::skill_front_matter_not_closed(lang),
            Self::TooLarge => lang::skill_too_large(lang, load::FILE_BYTES),
            Self::FrontMatterTooLarge => lang::skill_front_matter_too_large(lang, front_matter::BYTES / 1024),
            Self::TooDeep => lang::skill_too_deep(lang, front_matter::DEPTH),
            Self::AnchorsOrTags => lang::skill_anchors_or_tags(lang),
            Self::NameNotClosed(line) => lang::skill_name_not_closed(lang, line),
            Self::NoDescription => lang::skill_no_description(lang),
            Self::BadName(name) => lang::skill_bad_name(lang, name),
            Self::LookAlike(other) => lang::skill_look_alike(lang, other),
            Self::Link => lang::skill_is_link(lang),
            Self::NotAFile => lang::file_not_regular(lang),
            Self::NotText => lang::file_not_text(lang),
            Self::Io(why) => why.clone(),
        }
    }
}

/// What was odd about a skill and did not stop it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Warning {
    /// The front matter is not YAML and was read with repairs.
    Repaired,
    /// A field could not be read and counts as absent.
    FieldIgnored(String),
    /// A field stands there twice; the last one counts.
    FieldTwice(String),
    /// The description ends at ` #`, where YAML begins a comment.
    CutAtHash,
    /// No name in the file: the folder's name is used.
    NameFromFolder,
    /// Capitals, spaces or other letters in the name: its command is the alias.
    OddName(String),
    /// The file has characters that people do not see: tag letters or direction overrides.
    HiddenCharacters,
    /// It hides another skill of the same name whose SKILL.md says something else.
    Hides(PathBuf),
    /// It is called like a command of ours or a tool, which it can never be.
    LikeBuiltIn(String),
    /// Its `skillKey` is another skill's: it does not get what the owner put aside for that one.
    KeyTaken(String),
}

impl Warning {
    /// The warning in one line.
    pub fn text(&self, lang: Lang) -> String {
        match self {
            Self::Repaired => lang::skill_repaired(lang),
            Self::FieldIgnored(key) => lang::skill_field_ignored(lang, key),
            Self::FieldTwice(key) => lang::skill_field_twice(lang, key),
            Self::CutAtHash => lang::skill_cut_at_hash(lang),
            Self::NameFromFolder => lang::skill_name_from_folder(lang),
            Self::OddName(alias) => lang::skill_odd_name(lang, alias),
            Self::HiddenCharacters => lang::skill_hidden_characters(lang),
            Self::Hides(path) => lang::skill_hides(lang, path.display()),
            Self::LikeBuiltIn(name) => lang::skill_like_built_in(lang, name),
            Self::KeyTaken(key) => lang::skill_key_taken(lang, key),
        }
    }
}

/// What the gates ask about this machine.
pub trait Env: Send + Sync {
    /// A program of that plain name is on the path.
    fn has_program(&self, name: &str) -> bool;
    /// The environment variable is set and not empty, or configured for the skill of this key, whose `primaryEnv` is
    /// `primary`.
    fn has_variable(&self, key: &str, primary: Option<&str>, name: &str) -> bool;
    /// `linux`, `darwin` or `win32`.
    fn os(&self) -> &str;
    /// The configuration has a true value at this dotted path.
    fn config_is_true(&self, path: &str) -> bool;
    /// The skill is not switched off in the configuration.
    fn is_enabled(&self, key: &str) -> bool;
    /// The home folder.
    fn home(&self) -> Option<&Path>;
}

/// The machine we run on: its search path, the variables that are set for skills, and the configuration.
pub struct ProcessEnv {
    keyring: Keyring,
    path: Vec<PathBuf>,
    home: Option<PathBuf>,
    config: Value,
}

impl ProcessEnv {
    /// `variable` looks an environment variable up as the configuration sees them (`.env` too); `config` is the whole
    /// configuration, where only the truth of a value counts (secrets may be masked).
    pub fn new(variable: impl Fn(&str) -> Option<String>, keyring: Keyring, config: Value) -> Self {
        let filled = |name: &str| variable(name).filter(|value| !value.is_empty());
        let path = filled("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
        let home = filled("HOME").or_else(|| filled("USERPROFILE")).map(PathBuf::from);
        Self { keyring, path, home, config }
    }
}

impl Env for ProcessEnv {
    fn has_program(&self, name: &str) -> bool {
        let endings: &[&str] = if cfg!(windows) { &["", ".exe", ".cmd", ".bat"] } else { &[""] };
        let is_plain = !name.is_empty() && !name.contains(['/', '\\', '\0']) && name != "." && name != "..";
        is_plain
            && self.path.iter().any(|dir| endings.iter().any(|ending| dir.join(format!("{name}{ending}")).is_file()))
    }

    fn has_variable(&self, key: &str, primary: Option<&str>, name: &str) -> bool {
        self.keyring.has(key, primary, name)
    }

    fn os(&self) -> &str {
        match std::env::consts::OS {
            "macos" => "darwin",
            "windows" => "win32",
            os => os,
        }
    }

    fn config_is_true(&self, path: &str) -> bool {
        let found = path.split('.').try_fold(&self.config, |value, key| value.get(key));
        match found {
            None | Some(Value::Null) => false,
            Some(Value::Bool(truth)) => *truth,
            Some(Value::String(text)) => !text.is_empty(),
            Some(Value::Number(number)) => number.as_f64() != Some(0.0),
            Some(Value::Array(list)) => !list.is_empty(),
            Some(Value::Object(table)) => !table.is_empty(),
        }
    }

    fn is_enabled(&self, key: &str) -> bool {
        let entry = self.config.get("skills").and_then(|skills| skills.get("entries")?.get(key)?.get("enabled"));
        entry != Some(&Value::Bool(false))
    }

    fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }
}

/// All skills of an agent, by name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Skills {
    /// Every skill that was found, sorted by name; names are unique among those that are not broken.
    pub list: Vec<Skill>,
    /// The folders that were read, for the file broker: these may be read by the agent.
    pub folders: Vec<PathBuf>,
    /// The folders of what is installed, there or not yet.
    pub installed: Vec<PathBuf>,
    /// Folders that could not be read, or not all of them.
    pub problems: Vec<Problem>,
}

/// What is wrong with a folder of skills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// It cannot be read: its path, and why.
    Unread(PathBuf, String),
    /// It holds more skills than are taken: its path, how many were left out, and whether there may be more still.
    LeftOut(PathBuf, usize, bool),
}

impl Problem {
    /// The problem in one line.
    pub fn text(&self, lang: Lang) -> String {
        match self {
            Self::Unread(path, why) => lang::doctor_skill_folder(lang, path.display(), why),
            Self::LeftOut(path, n, more) => {
                let n = if *more { format!("≥ {n}") } else { n.to_string() };
                lang::skills_left_out(lang, path.display(), n, load::MOST)
            }
        }
    }
}

impl Skills {
    /// Those of these names or aliases alone, broken ones too.
    pub fn only(&self, names: &[String]) -> Self {
        let wanted = |skill: &&Skill| names.iter().any(|name| *name == skill.name || *name == skill.alias);
        Self { list: self.list.iter().filter(wanted).cloned().collect(), ..self.clone() }
    }

    /// Reads all skills of these folders. Folders that do not exist are passed over.
    pub fn load(sources: &[Source], env: &dyn Env) -> Self {
        load::load(sources, env)
    }

    /// The skills that can be used.
    pub fn usable(&self) -> impl Iterator<Item = &Skill> {
        self.list.iter().filter(|skill| skill.state == State::Loaded)
    }

    /// What the prompt lists: usable skills that the model may see.
    pub fn entries(&self, home: Option<&Path>) -> Vec<SkillEntry> {
        let seen = self.usable().filter(|skill| skill.model_invocable);
        seen.map(|skill| SkillEntry {
            name: skill.name.clone(),
            description: skill.description.clone(),
            location: shown_path(&skill.location, home),
        })
        .collect()
    }

    /// Usable skills that have a command: alias and the first 100 characters of the description.
    pub fn commands(&self) -> impl Iterator<Item = (&str, String)> {
        let invocable = self.usable().filter(|skill| skill.user_invocable);
        invocable.map(|skill| (skill.alias.as_str(), skill.description.chars().take(100).collect()))
    }

    /// The usable skill whose SKILL.md this file is; links are resolved on both sides.
    pub fn at(&self, file: &Path) -> Option<&Skill> {
        self.known_at(file).filter(|skill| skill.state == State::Loaded)
    }

    /// The skill whose SKILL.md this file is, usable or not; links are resolved on both sides.
    pub fn known_at(&self, file: &Path) -> Option<&Skill> {
        self.list.iter().find(|skill| skill.location == file).or_else(|| {
            let real = std::fs::canonicalize(file).ok()?;
            self.list.iter().find(|skill| std::fs::canonicalize(&skill.location).is_ok_and(|path| path == real))
        })
    }

    /// Whether this file lies among the installed skills and in none that the owner granted something and that is as it was
    /// then: its author may be anybody. One that was installed since this list was made is in none. `below`: the file is a
    /// folder of which all was looked through.
    pub fn is_strangers(&self, file: &Path, below: bool) -> bool {
        let both =
            |folder: &Path| [folder.to_owned(), std::fs::canonicalize(folder).unwrap_or_else(|_| folder.to_owned())];
        let granted = |skill: &&Skill| matches!(skill.consent, grants::Consent::Granted(_));
        let trusted: Vec<PathBuf> =
            self.list.iter().filter(granted).filter_map(|skill| skill.location.parent()).flat_map(both).collect();
        let is_trusted = |path: &Path| trusted.iter().any(|folder| path.starts_with(folder));
        let holds_others = |root: &Path| {
            let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
            entries.map(|entry| entry.path()).any(|path| path.is_dir() && !is_trusted(&path))
        };
        self.installed.iter().flat_map(|root| both(root)).any(|root| match file.strip_prefix(&root) {
            Ok(rest) if rest.as_os_str().is_empty() => holds_others(&root),
            Ok(_) => !is_trusted(file),
            Err(_) => below && root.starts_with(file) && holds_others(&root),
        })
    }

    /// The usable skill of that name or alias; `-` and `_`, capitals and small letters are alike.
    pub fn find(&self, name: &str) -> Option<&Skill> {
        let exact = self.usable().find(|skill| skill.name == name || skill.alias == name);
        let wanted = load::alias_of(name);
        exact.or_else(|| wanted.and_then(|wanted| self.usable().find(|skill| skill.alias == wanted)))
    }
}

/// A path as the agent should write it: the home folder as `~`, `/` between parts.
pub fn shown_path(path: &Path, home: Option<&Path>) -> String {
    let shown = match home.and_then(|home| path.strip_prefix(home).ok()) {
        Some(rest) => Path::new("~").join(rest),
        None => path.to_owned(),
    };
    let shown = shown.to_string_lossy();
    if cfg!(windows) { shown.replace('\\', "/") } else { shown.into_owned() }
}

/// The skills of an agent, read again when a file changed or a program came: nothing here needs a restart.
pub struct Shelf {
    sources: Vec<Source>,
    env: Box<dyn Env>,
    held: Mutex<Held>,
}

struct Held {
    looked: Duration,
    stamp: u64,
    skills: Arc<Skills>,
}

/// No folders and so no skills.
impl Default for Shelf {
    fn default() -> Self {
        let env = ProcessEnv::new(|_| None, Keyring::default(), Value::Null);
        Self::open(Vec::new(), Box::new(env), Duration::ZERO)
    }
}

impl Shelf {
    /// How often the folders are looked at for a turn, at most.
    const PAUSE: Duration = Duration::from_secs(2);

    /// Reads the skills; `now` is the clock's monotonic time.
    pub fn open(sources: Vec<Source>, env: Box<dyn Env>, now: Duration) -> Self {
        let stamp = load::stamp(&sources, env.as_ref());
        let skills = Arc::new(Skills::load(&sources, env.as_ref()));
        Self { sources, env, held: Mutex::new(Held { looked: now, stamp, skills }) }
    }

    /// The skills as they are now. Looks at the folders at most every two seconds and reads only when something
    /// changed. Blocks for the time of a directory listing. Whoever holds what it gave before keeps that.
    pub fn current(&self, now: Duration) -> Arc<Skills> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = now.saturating_sub(held.looked) >= Self::PAUSE;
        if is_due { self.looked(held, now) } else { held.skills.clone() }
    }

    /// The same, looking at once: something is known to have changed.
    pub fn look(&self, now: Duration) -> Arc<Skills> {
        self.looked(self.held.lock().unwrap_or_else(PoisonError::into_inner), now)
    }

    /// What was read last, without looking: never blocks.
    pub fn held(&self) -> Arc<Skills> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).skills.clone()
    }

    fn looked(&self, mut held: MutexGuard<'_, Held>, now: Duration) -> Arc<Skills> {
        held.looked = now;
        let stamp = load::stamp(&self.sources, self.env.as_ref());
        if stamp != held.stamp || load::is_outdated(&held.skills, self.env.as_ref()) {
            held.stamp = stamp;
            held.skills = Arc::new(Skills::load(&self.sources, self.env.as_ref()));
        }
        held.skills.clone()
    }

    /// The folders that are looked into, `~` replaced.
    fn folders(&self) -> Vec<PathBuf> {
        load::ordered(&self.sources, self.env.as_ref()).into_iter().map(|(_, dir)| dir).collect()
    }
}

/// The skills inside the binary: folder and SKILL.md.
const BUNDLED: [(&str, &str); 5] = [
    ("page-summary", include_str!("../skills/page-summary/SKILL.md")),
    ("reminders", include_str!("../skills/reminders/SKILL.md")),
    ("spreadsheet-report", include_str!("../skills/spreadsheet-report/SKILL.md")),
    ("study-notes", include_str!("../skills/study-notes/SKILL.md")),
    ("weather", include_str!("../skills/weather/SKILL.md")),
];

/// How many come inside the binary.
pub fn bundled_count() -> usize {
    BUNDLED.len()
}

/// Writes the skills inside the binary below `dir`, which belongs to crawfish: other versions of them are replaced.
///
/// # Errors
/// When a folder or file cannot be written; the error names it.
pub fn write_bundled(dir: &Path) -> io::Result<()> {
    for (folder, text) in BUNDLED {
        let folder = dir.join(folder);
        let path = folder.join("SKILL.md");
        if std::fs::read(&path).is_ok_and(|there| there == text.as_bytes()) {
            continue;
        }
        let fresh = folder.join("SKILL.md.new");
        std::fs::create_dir_all(&folder)
            .and_then(|()| std::fs::write(&fresh, text))
            .and_then(|()| std::fs::rename(&fresh, &path))
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
