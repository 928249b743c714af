//! The configuration: one section a part, each defined next to its code; this file lists them, loads them and says
//! exactly what is wrong.
//!
//! [`load`] touches nothing but the file and its `.env`, so a running gateway may call it again: when it fails, the
//! caller keeps what it has. Nothing here connects to anything.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, fs, io,
    io::Read as _,
    ops::Range,
    path::{Component, Path, PathBuf},
};

use channel_api::{ChannelId, Said};
use serde::de::DeserializeOwned;
use toml::de::DeTable;

pub use self::{
    env::Env,
    finding::{Finding, Line, is_secret_name},
    limits::LimitsConfig,
    tree::{Mistake, Node},
};
use self::{
    finding::{Source, line},
    tree::{Build, Entry, Hidden, MistakeKind, Table, Value, dotted},
};
use crate::{
    agent::{AgentConfig, OtherAgent},
    approvals::ApprovalsConfig,
    channels,
    heartbeat::tick::HeartbeatConfig,
    http::{
        config::{ListenProblem, ServerConfig, is_strong_token},
        hooks::{HooksConfig, MIN_TOKEN},
    },
    intake::{
        access::{self, AccessConfig, ChannelPolicy, Gate, ListProblem},
        route::BindingProblem,
    },
    lang::{self, Lang, UiConfig},
    ledger::price::Price,
    logs::LogConfig,
    mcp::config::McpConfig,
    media::MediaConfig,
    memory::embed::MemoryConfig,
    model::config::{ModelConfig, Provider},
    os,
    policy::{self, ToolPolicies, ToolPolicy},
    schedule::ScheduleConfig,
    secrets::{Redactor, Secret},
    skills::config::SkillsConfig,
    store::config::StoreConfig,
    tools::ToolsConfig,
};

pub mod doors;
mod env;
mod finding;
mod limits;
mod tree;

#[cfg(test)]
mod tests;

/// The name of the file that is read when none is named.
pub const FILE: &str = "config.toml";
/// The most bytes of a file. bad-inputs.md 7.
const MAX_BYTES: u64 = 1 << 20;
/// The most errors shown of one file: more are of no use.
const MAX_SHOWN: usize = 20;

/// Everything that can be configured.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// `[server]`.
    pub server: ServerConfig,
    /// `[store]`.
    pub store: StoreConfig,
    /// `[agent]`.
    pub agent: AgentConfig,
    /// `[agents.<id>]`.
    pub agents: BTreeMap<String, OtherAgent>,
    /// `[access]`.
    pub access: AccessConfig,
    /// `[models.<name>]`.
    pub models: BTreeMap<String, ModelConfig>,
    /// `[skills]`.
    pub skills: SkillsConfig,
    /// `[tools]`.
    pub tools: ToolsConfig,
    /// `[approvals]`.
    pub approvals: ApprovalsConfig,
    /// `[mcp]`.
    pub mcp: McpConfig,
    /// `[media]`.
    pub media: MediaConfig,
    /// `[heartbeat]`.
    pub heartbeat: HeartbeatConfig,
    /// `[schedule]`.
    pub schedule: ScheduleConfig,
    /// `[hooks]`. Holds a secret.
    pub hooks: HooksConfig,
    /// `[memory]`.
    pub memory: MemoryConfig,
    /// `[limits]`.
    pub limits: LimitsConfig,
    /// `[log]`.
    pub log: LogConfig,
    /// `[ui]`.
    pub ui: UiConfig,
    /// `[channels.<kind>.<account>]`.
    pub channels: BTreeMap<ChannelId, ChannelSection>,
}

impl Config {
    /// Which tools there are where, besides what each agent says.
    pub fn tool_policies(&self) -> ToolPolicies {
        let channels = self.channels.iter().map(|(id, section)| (id.to_string(), section.policy.tools.clone()));
        let senders = self.access.senders.iter().map(|(id, section)| (id.clone(), section.tools.clone()));
        ToolPolicies { everywhere: self.tools.policy(), channels: channels.collect(), senders: senders.collect() }
    }

    /// Whether an agent names this section of `[models]` to talk with.
    pub fn names_model(&self, name: &str) -> bool {
        let of_agents = self.agents.values();
        let of_agents = of_agents.flat_map(|agent| agent.model.iter().chain(agent.fallbacks.iter().flatten()));
        let mut named = self.agent.model.iter().chain(&self.agent.fallbacks).chain(of_agents);
        name == "main" || named.any(|model| model == name)
    }
}

/// The names of the sections.
const SECTIONS: [&str; 19] = [
    "server",
    "store",
    "agent",
    "agents",
    "access",
    "models",
    "skills",
    "tools",
    "approvals",
    "mcp",
    "media",
    "memory",
    "heartbeat",
    "schedule",
    "hooks",
    "limits",
    "log",
    "ui",
    "channels",
];

/// `[channels.<kind>.<account>]`.
#[derive(Clone, PartialEq)]
pub struct ChannelSection {
    /// Who may write, and how it is answered: the same keys for every kind.
    pub policy: ChannelPolicy,
    /// The rest, for the adapter. Holds secrets.
    pub settings: toml::Table,
}

/// Keys only: the settings hold secrets.
impl fmt::Debug for ChannelSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChannelSection")
            .field("policy", &self.policy)
            .field("settings", &self.settings.keys().collect::<Vec<_>>())
            .finish()
    }
}

/// A configuration that can be used.
#[derive(Clone)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// What its paths are relative to: the file's folder, or the current one without a file.
    pub dir: PathBuf,
    /// What is odd and does not stop anything.
    pub warnings: Vec<Finding>,
    /// The file; `None` = there is none and everything is at its default.
    pub source: Option<PathBuf>,
    /// The language of the process's own lines.
    pub lang: Lang,
    /// Every secret in it.
    secrets: Vec<String>,
    /// Takes them out of texts. One for the whole process: what a clone learns, all know.
    redactor: Redactor,
    /// The files that secrets were read from, and the folder of systemd's credentials: no command may read them.
    secret_places: Vec<PathBuf>,
    /// The file's values, secrets masked, for [`Loaded::show`].
    masked: toml::Table,
    /// The environment it was read in, `.env` included.
    pub env: Env,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loaded").field("dir", &self.dir).field("source", &self.source).finish_non_exhaustive()
    }
}

impl Loaded {
    /// A path of the configuration: relative to its folder, `~` being the home folder.
    pub fn path(&self, path: &str) -> PathBuf {
        placed(path, &self.dir, &self.env)
    }

    /// Where the gateway keeps its state.
    pub fn data_dir(&self) -> PathBuf {
        self.dir.join("data")
    }

    /// Where it logs.
    pub fn logs_dir(&self) -> PathBuf {
        self.dir.join("logs")
    }

    /// Takes every secret of the configuration out of texts, and whatever else it learns.
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// Files and folders beside the configuration that hold secrets.
    pub fn secret_places(&self) -> &[PathBuf] {
        &self.secret_places
    }

    /// Every secret value of the configuration.
    pub fn secrets(&self) -> impl Iterator<Item = &str> {
        self.secrets.iter().map(String::as_str)
    }

    /// Listens elsewhere than the file says (`serve --listen`).
    ///
    /// # Errors
    /// The same as for the file: [`ConfigErrors`] when the address is no address or open to the network.
    pub fn listen_on(&mut self, addr: &str) -> Result<(), ConfigErrors> {
        let server = ServerConfig { listen: addr.to_owned(), ..self.config.server.clone() };
        let (problem, key) = match (server.listen_addr(), server.channels_addr()) {
            (Err(problem), _) => (problem, "--listen"),
            (_, Err(problem)) => (problem, "server.channels_listen"),
            (Ok(addr), Ok(_)) => {
                if let Some(text) = weak_token(addr.ip(), &self.data_dir()) {
                    return Err(ConfigErrors::one(self.lang, finding_without_place("--listen", text)));
                }
                self.config.server = server;
                return Ok(());
            }
        };
        let (text, hint) = listen_lines(problem);
        let finding = Finding { hint, ..finding_without_place(key, text) };
        Err(ConfigErrors::one(self.lang, finding))
    }

    /// The whole configuration as TOML, defaults filled in, secrets masked: values from the environment as `${NAME}`,
    /// others as `***`.
    pub fn show(&self) -> String {
        let mut shown = toml::Table::new();
        let mut put = |name: &str, section: Result<toml::Value, toml::ser::Error>| {
            if let Ok(value) = section
                && value.as_table().is_none_or(|table| !table.is_empty())
            {
                shown.insert(name.to_owned(), value);
            }
        };
        let config = &self.config;
        put("server", toml::Value::try_from(&config.server));
        put("store", toml::Value::try_from(&config.store));
        put("agent", toml::Value::try_from(&config.agent));
        put("agents", toml::Value::try_from(&config.agents));
        put("access", toml::Value::try_from(&config.access));
        put("skills", toml::Value::try_from(&config.skills));
        put("tools", toml::Value::try_from(&config.tools));
        put("media", toml::Value::try_from(&config.media));
        put("heartbeat", toml::Value::try_from(&config.heartbeat));
        put("approvals", toml::Value::try_from(&config.approvals));
        put("schedule", toml::Value::try_from(&config.schedule));
        put("limits", toml::Value::try_from(&config.limits));
        put("log", toml::Value::try_from(&config.log));
        put("ui", toml::Value::try_from(&config.ui));
        // What the file says replaces what was filled in, so that references are shown as written.
        merge(&mut shown, &self.masked);
        toml::to_string_pretty(&shown).unwrap_or_default()
    }

    /// The same as JSON.
    pub fn show_json(&self) -> serde_json::Value {
        let text = self.show();
        toml::from_str::<toml::Table>(&text).ok().and_then(|table| serde_json::to_value(table).ok()).unwrap_or_default()
    }
}

fn merge(into: &mut toml::Table, from: &toml::Table) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(toml::Value::Table(into)), toml::Value::Table(from)) => merge(into, from),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

/// Why a configuration cannot be used: everything that was found, and what the process exits with.
#[derive(Clone, Debug)]
pub struct ConfigErrors {
    /// Never empty.
    pub errors: Vec<Finding>,
    /// What was odd besides.
    pub warnings: Vec<Finding>,
    /// 66: no such file, 74: it cannot be read, 78: it is wrong.
    pub exit: u8,
    /// The language it should be told in.
    pub lang: Lang,
}

impl ConfigErrors {
    fn one(lang: Lang, finding: Finding) -> Self {
        Self { errors: vec![finding], warnings: Vec::new(), exit: 78, lang }
    }

    /// All errors, one below the other.
    pub fn render(&self, lang: Lang) -> String {
        let shown: Vec<String> = self.errors.iter().take(MAX_SHOWN).map(|error| error.render(lang)).collect();
        let mut text = shown.join("\n");
        if self.errors.len() > MAX_SHOWN {
            text.push_str(&format!("\n… +{}", self.errors.len() - MAX_SHOWN));
        }
        text
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(self.lang))
    }
}

impl std::error::Error for ConfigErrors {}

/// Reads and checks a configuration: the named file, or `config.toml` in the current folder, or none at all.
///
/// # Errors
/// [`ConfigErrors`]; nothing was changed. A running gateway keeps what it has.
pub fn load(path: Option<&Path>, env: &Env) -> Result<Loaded, ConfigErrors> {
    Parsed::read(path, env)?.check()
}

/// A file that was read and is TOML: its language is known, the rest is not yet checked.
pub struct Parsed {
    path: Option<PathBuf>,
    dir: PathBuf,
    source: Source,
    root: Node,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
    env: Env,
    lang: Lang,
    /// The permission bits, when others may read it.
    open_mode: Option<u32>,
    secret_places: Vec<PathBuf>,
}

impl Parsed {
    /// Reads the named file, or `config.toml` in the current folder, or nothing.
    ///
    /// # Errors
    /// [`ConfigErrors`] when there is no such file, or no TOML in it.
    pub fn read(path: Option<&Path>, env: &Env) -> Result<Self, ConfigErrors> {
        let mut env = env.clone();
        let mut warnings = Vec::new();
        let mut secret_places = read_credentials(&mut env, &mut warnings);
        let lang = env.lang.unwrap_or_else(|| Lang::of_locale(|name| env.get(name).map(Into::into)));
        let named = path.is_some();
        let path = path.unwrap_or(Path::new(FILE));
        let dir = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
            _ => PathBuf::from("."),
        };
        let dir = std::path::absolute(&dir).map_or(dir, |dir| dir.components().collect());
        let fail = |exit, text| ConfigErrors { exit, ..ConfigErrors::one(lang, Finding::about_file(path, text)) };
        let (bytes, open_mode) = match read_file(path) {
            Ok(read) => read,
            Err(ReadError::Missing) if !named => {
                let source = Source { name: String::new(), text: String::new() };
                let root = Node::empty();
                let errors = Vec::new();
                return Ok(Self {
                    path: None,
                    dir,
                    source,
                    root,
                    errors,
                    warnings,
                    env,
                    lang,
                    open_mode: None,
                    secret_places,
                });
            }
            Err(ReadError::Missing) => return Err(fail(66, line!(config_missing))),
            Err(ReadError::NotAFile(kind)) => return Err(fail(66, line!(config_not_a_file, kind))),
            Err(ReadError::TooLarge) => return Err(fail(78, line!(config_too_large, MAX_BYTES >> 20))),
            Err(ReadError::Io(error)) => return Err(fail(74, line!(config_unreadable, error))),
        };
        if let Some(target) = elsewhere(path) {
            warnings.push(Finding::about_file(path, line!(config_symlink, target.display())));
        }
        let text = match decode(&bytes) {
            Ok(text) => text.to_owned(),
            Err(text) => {
                let mut finding = Finding::about_file(path, text);
                if let Err(error) = std::str::from_utf8(&bytes) {
                    let good = String::from_utf8_lossy(&bytes[..error.valid_up_to()]).into_owned();
                    let at = good.len()..good.len();
                    if !good.contains('\0') && !good.is_empty() {
                        finding.place = Some(Source { name: String::new(), text: good }.place(at));
                    }
                }
                return Err(ConfigErrors { exit: 78, ..ConfigErrors::one(lang, finding) });
            }
        };
        read_dotenv(&dir, &mut env, &mut warnings);
        let source = Source { name: finding::shown(path), text };
        let table = match DeTable::parse(&source.text) {
            Ok(table) => table,
            Err(error) => {
                let finding = syntax_error(&source, &error);
                return Err(ConfigErrors { warnings, ..ConfigErrors::one(lang, finding) });
            }
        };
        let mut build =
            Build { source: &source, env: &env, dir: &dir, errors: Vec::new(), warnings, files: Vec::new() };
        let root = build.root(table.get_ref());
        let Build { errors, warnings, files, .. } = build;
        secret_places.extend(files);
        let chosen = root.table().and_then(|root| root.get("ui")).and_then(|ui| ui.node.table()?.get("lang"));
        let lang = match (env.lang, chosen.and_then(|lang| lang.node.str())) {
            (Some(lang), _) => lang,
            (None, Some("en")) => Lang::En,
            (None, Some("zh")) => Lang::Zh,
            _ => lang,
        };
        let path = Some(path.to_owned());
        Ok(Self { path, dir, source, root, errors, warnings, env, lang, open_mode, secret_places })
    }

    /// The language of the process's own lines, as far as this file decides it.
    pub fn lang(&self) -> Lang {
        self.lang
    }

    /// Checks every section.
    ///
    /// # Errors
    /// [`ConfigErrors`] with everything that is wrong.
    pub fn check(self) -> Result<Loaded, ConfigErrors> {
        let Self { path, dir, source, root, errors, warnings, env, lang, open_mode, secret_places } = self;
        let mut check = Check { source: &source, root: &root, errors, warnings };
        let config = check.config(&dir);
        if check.errors.is_empty() {
            check.folders(&config, &dir, path.as_deref(), &env, &secret_places);
            check.adapters(&config, &dir, &env);
        }
        if let Some(mode) = open_mode
            && !env.insecure_perms
            && check.has_inline_secret()
        {
            let file = path.as_deref().unwrap_or(Path::new(FILE));
            let text = line!(config_readable_by_others, format!("{mode:04o}"));
            check
                .errors
                .push(Finding::about_file(file, text).with_hint(line!(config_readable_hint, finding::shown(file))));
        }
        let Check { mut errors, mut warnings, .. } = check;
        let mut config = config;
        let mut secrets = secrets_of(&root);
        let from_env = config.models.values_mut().filter_map(|model| model.fill_in(|name| env.get(name)));
        secrets.extend(from_env.map(|key| key.expose().to_owned()));
        for (name, model) in &config.models {
            if let Some(variable) = model.withheld(|name| env.get(name)) {
                let key = format!("models.{name}.api_key");
                warnings.push(finding_without_place(&key, line!(config_key_withheld, variable)));
            }
        }
        for finding in errors.iter_mut().chain(&mut warnings) {
            finding.text = finding.text.map(|text| without(text, &secrets));
        }
        if !errors.is_empty() {
            errors.sort_by_key(|error| error.place.as_ref().map_or((0, 0), |place| (place.line, place.column)));
            return Err(ConfigErrors { errors, warnings, exit: 78, lang });
        }
        let masked = match root.to_toml(true) {
            toml::Value::Table(table) => table,
            _ => toml::Table::new(),
        };
        let redactor = Redactor::new(&secrets.iter().map(Secret::new).collect::<Vec<_>>());
        Ok(Loaded { config, dir, warnings, source: path, lang, secrets, redactor, secret_places, masked, env })
    }
}

enum ReadError {
    Missing,
    NotAFile(&'static str),
    TooLarge,
    Io(io::Error),
}

/// The bytes of a file, and its permission bits when others may read it.
fn read_file(path: &Path) -> Result<(Vec<u8>, Option<u32>), ReadError> {
    let io = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ReadError::Missing,
        _ => ReadError::Io(error),
    };
    let metadata = fs::metadata(path).map_err(io)?;
    if let Some(kind) = os::not_a_file(path, &metadata) {
        return Err(ReadError::NotAFile(kind));
    }
    if metadata.len() > MAX_BYTES {
        return Err(ReadError::TooLarge);
    }
    let mut bytes = Vec::new();
    fs::File::open(path).map_err(io)?.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(ReadError::TooLarge);
    }
    Ok((bytes, os::readable_by_others(&metadata)))
}

/// Where a link leads, when that is another folder.
fn elsewhere(path: &Path) -> Option<PathBuf> {
    if !fs::symlink_metadata(path).ok()?.file_type().is_symlink() {
        return None;
    }
    let target = fs::canonicalize(path).ok()?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    (target.parent() != fs::canonicalize(parent).ok().as_deref()).then_some(target)
}

fn decode(bytes: &[u8]) -> Result<&str, Line> {
    let bytes = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let utf16 = bytes.starts_with(&[0xff, 0xfe])
        || bytes.starts_with(&[0xfe, 0xff])
        || (bytes.len() >= 4 && bytes.iter().take(64).filter(|byte| **byte == 0).count() * 3 >= bytes.len().min(64));
    if utf16 {
        return Err(line!(config_utf16));
    }
    std::str::from_utf8(bytes)
        .map_err(|error| line!(config_not_utf8, format!("0x{:02x}", bytes.get(error.valid_up_to()).unwrap_or(&0))))
}

/// `.env` beside the file never overrides the real environment.
fn read_dotenv(dir: &Path, env: &mut Env, warnings: &mut Vec<Finding>) {
    let path = dir.join(".env");
    let text = match read_file(&path) {
        Ok((bytes, _)) => String::from_utf8_lossy(bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes)).into_owned(),
        Err(ReadError::Missing) => return,
        Err(ReadError::NotAFile(kind)) => {
            return warnings.push(Finding::about_file(&path, line!(config_not_a_file, kind)));
        }
        Err(ReadError::TooLarge) => {
            return warnings.push(Finding::about_file(&path, line!(config_too_large, MAX_BYTES >> 20)));
        }
        Err(ReadError::Io(error)) => {
            return warnings.push(Finding::about_file(&path, line!(config_unreadable, error)));
        }
    };
    let (vars, bad) = env::parse_dotenv(&text);
    env.add_missing(vars);
    for number in bad.into_iter().take(MAX_SHOWN) {
        warnings.push(Finding::about_file(&path, line!(config_dotenv_line, number)));
    }
}

/// The first mistake in a file: what the parser makes of the rest is seldom a mistake of its own.
fn syntax_error(source: &Source, error: &toml::de::Error) -> Finding {
    let at = error.span();
    let text = match (error.message(), &at) {
        ("duplicate key", Some(at)) => {
            let key = source.text.get(at.clone()).unwrap_or_default().to_owned();
            // What stands in the lines before was read without a mistake.
            let line_start = source.text[..at.start].rfind('\n').map_or(0, |newline| newline + 1);
            let before = DeTable::parse(&source.text[..line_start]).ok();
            match before.and_then(|table| first_of(source, table.get_ref(), &key, at)) {
                Some(first) => line!(config_duplicate, key, source.line_of(first)),
                None => line!(config_duplicate_here, key),
            }
        }
        (message, _) if message.contains("recurs") => line!(config_too_deep, tree::MAX_DEPTH),
        (message, _) => line!(config_syntax, message),
    };
    let is_section = |at: &Range<usize>| {
        let line_start = source.text[..at.start].rfind('\n').map_or(0, |newline| newline + 1);
        source.text[line_start..].trim_start().starts_with('[')
    };
    let twice = error.message() == "duplicate key" && at.as_ref().is_some_and(is_section);
    Finding { hint: twice.then(|| line!(config_duplicate_section_hint)), ..source.finding(at, "", text) }
}

/// Where the key that stands a second time at `again` stood first: the nearest one of that name before it, in the same
/// table if that can be told.
fn first_of(source: &Source, table: &DeTable<'_>, key: &str, again: &Range<usize>) -> Option<usize> {
    fn collect(table: &DeTable<'_>, path: &str, found: &mut Vec<(String, Range<usize>)>) {
        for (key, value) in table {
            let here = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
            found.push((here.clone(), key.span()));
            if let Some(table) = value.get_ref().as_table() {
                collect(table, &here, found);
            }
        }
    }
    let mut keys = Vec::new();
    collect(table, "", &mut keys);
    let name = key.trim_matches(['"', '\'']);
    let same = |(path, at): &&(String, Range<usize>)| {
        (path == name || path.ends_with(&format!(".{name}"))) && at.start < again.start
    };
    // The section that `again` stands in, or that it names itself.
    let before = &source.text[..again.start];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    let own = before[line_start..].trim_start();
    let section = if own.starts_with('[') {
        own.trim_start_matches('[').trim_end_matches('.').trim().to_owned()
    } else {
        let header = before.lines().rev().find(|line| line.trim_start().starts_with('['));
        let header = header.unwrap_or_default().trim();
        header.trim_start_matches('[').split(']').next().unwrap_or_default().trim().to_owned()
    };
    let section = section.replace(['"', '\'', ' '], "");
    let wanted = if section.is_empty() { name.to_owned() } else { format!("{section}.{name}") };
    let exact = keys.iter().filter(same).find(|(path, _)| *path == wanted);
    exact.or_else(|| keys.iter().filter(same).max_by_key(|(_, at)| at.start)).map(|(_, at)| at.start)
}

/// The most bytes of a file that holds one secret: systemd takes a mebibyte for all, no key is longer than this.
const MAX_SECRET: u64 = 64 << 10;
/// The most credentials that are read.
const MAX_CREDENTIALS: usize = 256;

/// What systemd hands to this service (`LoadCredential=`, `SetCredentialEncrypted=`): a credential whose id can name a
/// variable is one for `${NAME}`, and wins over the environment. Its folder, for those that a `*_file` key names.
fn read_credentials(env: &mut Env, warnings: &mut Vec<Finding>) -> Vec<PathBuf> {
    let Some(folder) = env.get(CREDENTIALS).filter(|folder| !folder.is_empty()).map(PathBuf::from) else {
        return Vec::new();
    };
    let entries = match fs::read_dir(&folder) {
        Ok(entries) => entries,
        Err(error) => {
            warnings.push(Finding::about_file(&folder, line!(config_unreadable, error)));
            return vec![folder];
        }
    };
    for entry in entries.flatten().take(MAX_CREDENTIALS) {
        let name = entry.file_name();
        let Some(name) = name.to_str().filter(|name| env::is_name(name)) else { continue };
        match secret_of(&entry.path()) {
            Ok((value, _)) => env.set(name, &value),
            Err(text) => warnings.push(Finding::about_file(&entry.path(), text)),
        }
    }
    vec![folder]
}

/// The variable that names the folder of systemd's credentials.
const CREDENTIALS: &str = "CREDENTIALS_DIRECTORY";

/// The secret that is the content of a file, without line ends after it, and the file's permission bits when others may
/// read it.
fn secret_of(path: &Path) -> Result<(String, Option<u32>), Line> {
    let (bytes, open) = read_file(path).map_err(|error| match error {
        ReadError::Missing => line!(config_secret_file_missing),
        ReadError::NotAFile(kind) => line!(config_not_a_file, kind),
        ReadError::TooLarge => line!(config_secret_file_large, MAX_SECRET >> 10),
        ReadError::Io(error) => line!(config_unreadable, error),
    })?;
    if bytes.len() as u64 > MAX_SECRET {
        return Err(line!(config_secret_file_large, MAX_SECRET >> 10));
    }
    let value = decode(&bytes)?.trim_end_matches(['\r', '\n']);
    if value.trim().is_empty() {
        return Err(line!(config_secret_file_empty));
    }
    Ok((value.to_owned(), open))
}

/// Every string that must not be seen, longest first. What a reference brings in for a key that names no secret, from a
/// variable that names none (an address, a number, a folder), is one only where it looks like one.
fn secrets_of(root: &Node) -> Vec<String> {
    fn collect(node: &Node, key: &str, secrets: &mut Vec<String>) {
        match &node.value {
            Value::Str(text) if text.len() >= 4 => {
                let looks = || {
                    let mixed = text.chars().any(|c| c.is_ascii_digit()) && text.chars().any(char::is_alphabetic);
                    crate::skills::variables::is_secret(text) && (text.contains("://") || (text.len() >= 16 && mixed))
                };
                let secret = match &node.hidden {
                    None => false,
                    Some(Hidden::Inline | Hidden::File(_)) => true,
                    Some(Hidden::Reference(written)) => is_secret_name(key) || is_secret_name(written) || looks(),
                };
                if secret {
                    secrets.push(text.clone());
                }
            }
            Value::List(items) => items.iter().for_each(|item| collect(item, key, secrets)),
            Value::Table(table) => table.0.iter().for_each(|entry| collect(&entry.node, &entry.key, secrets)),
            _ => {}
        }
    }
    let mut secrets = Vec::new();
    collect(root, "", &mut secrets);
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets.dedup();
    secrets
}

/// A text without the secrets. Short ones are words of our own sentences too: of those only what stands in quotes, as a
/// value would, is taken out.
fn without(text: &str, secrets: &[String]) -> String {
    const WORD: usize = 8;
    secrets.iter().fold(text.to_owned(), |text, secret| match secret.len() < WORD {
        true => text.replace(&format!("\"{secret}\""), "\"***\""),
        false => text.replace(secret.as_str(), "***"),
    })
}

/// A path of the configuration, see [`Loaded::path`].
fn placed(path: &str, dir: &Path, env: &Env) -> PathBuf {
    match (path.strip_prefix("~/"), env.home()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ if path == "~" => env.home().unwrap_or_else(|| dir.join(path)),
        _ => dir.join(path),
    }
}

/// The path as the file system has it, so far as it exists: links resolved, no `..`.
fn real(path: &Path) -> PathBuf {
    let mut rest = Vec::new();
    for ancestor in path.ancestors() {
        let existing = if ancestor.as_os_str().is_empty() { Path::new(".") } else { ancestor };
        if let Ok(found) = fs::canonicalize(existing) {
            return rest.iter().rev().fold(found, |path, part| match part {
                Component::ParentDir => path.parent().map_or_else(|| path.clone(), Path::to_owned),
                part => path.join(part),
            });
        }
        rest.extend(ancestor.components().next_back());
    }
    path.to_owned()
}

fn finding_without_place(key: &str, text: Line) -> Finding {
    Finding { file: String::new(), place: None, key: key.to_owned(), text, hint: None }
}

fn listen_lines(problem: ListenProblem) -> (Line, Option<Line>) {
    match problem {
        ListenProblem::NotAnAddress => (line!(config_listen_form), None),
        ListenProblem::Exposed => (line!(config_listen_exposed), Some(line!(config_listen_exposed_hint))),
        ListenProblem::Twice => (line!(config_listen_twice), None),
    }
}

/// A token that is there and could be guessed, when the network can reach it.
fn weak_token(ip: std::net::IpAddr, data: &Path) -> Option<Line> {
    if ip.to_canonical().is_loopback() {
        return None;
    }
    let file = data.join("token");
    let token = fs::read_to_string(&file).ok()?;
    (!is_strong_token(token.trim())).then(|| line!(config_weak_token, finding::shown(&file)))
}

/// The checks of one file.
struct Check<'a> {
    source: &'a Source,
    root: &'a Node,
    errors: Vec<Finding>,
    warnings: Vec<Finding>,
}

impl Check<'_> {
    fn config(&mut self, dir: &Path) -> Config {
        let empty = Table::default();
        let root = self.root;
        let root = root.table().unwrap_or(&empty);
        for entry in &root.0 {
            if !SECTIONS.contains(&entry.key.as_str()) {
                self.unknown_section(entry);
            }
        }
        let config = Config {
            server: self.section(root, "server"),
            store: self.section(root, "store"),
            agent: self.section(root, "agent"),
            agents: self.named(root, "agents"),
            access: self.section(root, "access"),
            models: self.named(root, "models"),
            skills: self.section(root, "skills"),
            tools: self.section(root, "tools"),
            mcp: self.section(root, "mcp"),
            media: self.section(root, "media"),
            heartbeat: self.section(root, "heartbeat"),
            approvals: self.section(root, "approvals"),
            schedule: self.section(root, "schedule"),
            hooks: self.section(root, "hooks"),
            memory: self.section(root, "memory"),
            limits: self.section(root, "limits"),
            log: self.section(root, "log"),
            ui: self.section(root, "ui"),
            channels: self.channels(root),
        };
        if self.errors.is_empty() {
            self.server(&config, dir);
            self.ranges(&config);
            self.references(&config);
            self.hubs(&config);
            self.mcp(&config);
            self.access(&config);
            self.tool_policies(&config);
            self.channel_lists(&config);
            self.same_credentials();
        }
        config
    }

    /// No folder that tools may read or write holds the gateway's own: its configuration, token, database and logs.
    fn folders(&mut self, config: &Config, dir: &Path, file: Option<&Path>, env: &Env, secret: &[PathBuf]) {
        let own = [
            file.map_or_else(|| dir.join(FILE), Path::to_owned),
            dir.join("data"),
            placed(config.store.sqlite_path(), dir, env),
            dir.join("logs"),
        ];
        let own: Vec<_> = own.into_iter().chain(secret.iter().cloned()).map(|path| (real(&path), path)).collect();
        let held = |folder: &str| {
            let folder = real(&placed(folder, dir, env));
            own.iter().find(|(path, _)| path.starts_with(&folder)).map(|(_, path)| path)
        };
        let mut wrong: Vec<(Vec<&str>, &Path)> = Vec::new();
        wrong.extend(held(&config.agent.workspace).map(|what| (vec!["agent", "workspace"], what.as_path())));
        for (id, agent) in &config.agents {
            let what = held(&agent.workspace(id));
            wrong.extend(what.map(|what| (vec!["agents", id, "workspace"], what.as_path())));
            let what = agent.skill_dirs.iter().find_map(|folder| held(folder));
            wrong.extend(what.map(|what| (vec!["agents", id, "skill_dirs"], what.as_path())));
        }
        let what = config.skills.dirs.iter().find_map(|folder| held(folder));
        wrong.extend(what.map(|what| (vec!["skills", "dirs"], what.as_path())));
        if wrong.is_empty() {
            self.apart(config, dir, env);
        }
        for (key, what) in wrong {
            let text = line!(config_folder_holds, finding::shown(what));
            self.error_at(&key, text, Some(line!(config_folder_holds_hint)));
        }
    }

    /// One agent's workspace does not hold another's: they are one folder, for both to use, or two.
    fn apart(&mut self, config: &Config, dir: &Path, env: &Env) {
        let folder = |path: &str| real(&placed(path, dir, env));
        let main = ("main", folder(&config.agent.workspace));
        let others = config.agents.iter().map(|(id, agent)| (id.as_str(), folder(&agent.workspace(id))));
        let all: Vec<(&str, PathBuf)> = std::iter::once(main).chain(others).collect();
        for (id, inner) in &all {
            let outer = all.iter().find(|(_, outer)| inner != outer && inner.starts_with(outer));
            let Some((other, _)) = outer else { continue };
            let path = if *id == "main" { vec!["agent", "workspace"] } else { vec!["agents", id, "workspace"] };
            self.error_at(&path, line!(config_workspace_inside, other), Some(line!(config_workspace_inside_hint)));
        }
    }

    /// The entry at a path.
    fn at(&self, path: &[&str]) -> Option<&Entry> {
        let (last, parents) = path.split_last()?;
        let mut table = self.root.table()?;
        for part in parents {
            table = table.get(part)?.node.table()?;
        }
        table.get(last)
    }

    fn error_at(&mut self, path: &[&str], text: Line, hint: Option<Line>) {
        let finding = self.finding_at(path, text, hint);
        self.errors.push(finding);
    }

    fn finding_at(&self, path: &[&str], text: Line, hint: Option<Line>) -> Finding {
        let at = self.at(path).map(|entry| match entry.node.value {
            Value::Table(_) => entry.key_at.clone(),
            _ => entry.node.at.clone(),
        });
        let key: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        Finding { hint, ..self.source.finding(at, dotted(&key), text) }
    }

    fn unknown_section(&mut self, entry: &Entry) {
        let hint = match known_section_of(&entry.key) {
            Some(section) => Some(line!(config_belongs_in, section, entry.key)),
            None if known_kinds().contains(&entry.key.as_str()) => {
                Some(line!(config_did_you_mean, format!("channels.{}", entry.key)))
            }
            None => Some(suggestion(&entry.key, &SECTIONS)),
        };
        let finding = self.source.finding(Some(entry.key_at.clone()), "", line!(config_unknown_key, entry.key));
        self.errors.push(Finding { hint, ..finding });
    }

    fn section<T: DeserializeOwned + Default>(&mut self, root: &Table, name: &'static str) -> T {
        let Some(entry) = root.get(name) else { return T::default() };
        if entry.node.table().is_none() {
            self.error_at(&[name], line!(config_section_expected, name), None);
            return T::default();
        }
        self.parse(&entry.node, &[name]).unwrap_or_default()
    }

    fn named<T: DeserializeOwned>(&mut self, root: &Table, name: &'static str) -> BTreeMap<String, T> {
        let Some(entry) = root.get(name) else { return BTreeMap::new() };
        let Some(table) = entry.node.table() else {
            self.error_at(&[name], line!(config_section_expected, format!("{name}.<name>")), None);
            return BTreeMap::new();
        };
        let mut all = BTreeMap::new();
        for entry in &table.0 {
            if !is_good_name(&entry.key) {
                self.error_at(&[name, &entry.key], line!(config_bad_name, entry.key), None);
            } else if entry.node.table().is_none() {
                let written = format!("{name}.{}", entry.key);
                self.error_at(&[name, &entry.key], line!(config_section_expected, written), None);
            } else if let Some(section) = self.parse(&entry.node, &[name, &entry.key]) {
                all.insert(entry.key.clone(), section);
            }
        }
        all
    }

    fn parse<T: DeserializeOwned>(&mut self, node: &Node, path: &[&str]) -> Option<T> {
        match T::deserialize(node) {
            Ok(section) => Some(section),
            Err(mistake) => {
                self.mistake(mistake, path, &[]);
                None
            }
        }
    }

    fn mistake(&mut self, mistake: Mistake, section: &[&str], more_keys: &[&str]) {
        let mut path: Vec<String> = section.iter().map(|part| (*part).to_owned()).collect();
        path.extend(mistake.path);
        let (text, hint) = match mistake.kind {
            MistakeKind::UnknownKey(key, known) => {
                let known: Vec<&str> = known.iter().chain(more_keys).copied().collect();
                (line!(config_unknown_key, key), Some(suggestion(&key, &known)))
            }
            MistakeKind::UnknownWord(known) => (line!(config_unknown_word, words(known)), None),
            MistakeKind::Expected(what) => (Line::new(|lang| lang::config_expected(lang, expected(&what, lang))), None),
            MistakeKind::Missing(key) => (line!(config_key_missing, key), None),
            MistakeKind::Other(text) => (Line::as_is(text), None),
        };
        let at = mistake.at.or_else(|| self.at(section).map(|entry| entry.key_at.clone()));
        let finding = self.source.finding(at, dotted(&path), text);
        self.errors.push(Finding { hint, ..finding });
    }

    fn channels(&mut self, root: &Table) -> BTreeMap<ChannelId, ChannelSection> {
        let mut all = BTreeMap::new();
        let Some(entry) = root.get("channels") else { return all };
        let Some(kinds) = entry.node.table() else {
            self.error_at(&["channels"], line!(config_section_expected, "channels.<kind>.<account>"), None);
            return all;
        };
        for kind in &kinds.0 {
            let known = known_kinds();
            if !known.contains(&kind.key.as_str()) {
                let text = line!(config_unknown_kind, kind.key);
                self.errors.push(Finding {
                    hint: Some(suggestion(&kind.key, &known)),
                    ..self.source.finding(Some(kind.key_at.clone()), format!("channels.{}", kind.key), text)
                });
                continue;
            }
            let accounts = kind.node.table().filter(|table| table.0.iter().all(|entry| entry.node.table().is_some()));
            let Some(accounts) = accounts else {
                self.error_at(&["channels", &kind.key], line!(config_account_expected, kind.key), None);
                continue;
            };
            for account in &accounts.0 {
                let path = ["channels", kind.key.as_str(), account.key.as_str()];
                if !is_good_name(&account.key) {
                    self.error_at(&path, line!(config_bad_name, account.key), None);
                } else if let Some(section) = self.channel(&account.node, &path) {
                    all.insert(ChannelId::new(&kind.key, &account.key), section);
                }
            }
        }
        all
    }

    fn channel(&mut self, node: &Node, path: &[&str; 3]) -> Option<ChannelSection> {
        let table = node.table()?;
        let (ours, theirs): (Vec<_>, Vec<_>) =
            table.0.iter().cloned().partition(|entry| ChannelPolicy::KEYS.contains(&entry.key.as_str()));
        let part = |entries| Node { value: Value::Table(Table(entries)), at: node.at.clone(), hidden: None };
        let policy = self.parse(&part(ours), path)?;
        let theirs = part(theirs);
        if let Err(mistake) = channels::kind(path[1]).map_or(Ok(()), |kind| (kind.shape)(&theirs)) {
            let unset = mistake.path.first().and_then(|key| table.get(key)).is_some_and(|entry| entry.node.is_unset());
            match &mistake.kind {
                // Said where the variable stands.
                _ if unset => {}
                MistakeKind::Other(text) if mistake.path.len() <= 1 => {
                    self.adapter_error(channels::unread(text), table, path)
                }
                _ => self.mistake(mistake, path, &ChannelPolicy::KEYS),
            }
            return None;
        }
        let toml::Value::Table(settings) = theirs.to_toml(false) else { return None };
        if let Err(said) = channels::kind(path[1]).map_or(Ok(()), |kind| (kind.check)(&settings)) {
            self.adapter_error(said, table, path);
            return None;
        }
        Some(ChannelSection { policy, settings })
    }

    /// An adapter answers in words. Where they name a key of the section in backquotes, the finding stands there.
    fn adapter_error(&mut self, said: Said, table: &Table, path: &[&str; 3]) {
        let text = said.en.as_str();
        let named = text.split('`').skip(1).step_by(2).find_map(|word| table.get(word));
        if named.is_some_and(|entry| entry.node.is_unset()) {
            // Said where the variable stands.
            return;
        }
        let mut key: Vec<String> = path.iter().map(|part| (*part).to_owned()).collect();
        let section = self.at(path).map(|entry| entry.key_at.clone());
        let at = named.map(|entry| entry.key_at.clone()).or(section);
        if let (Some(entry), true) = (named, text.starts_with("unknown field")) {
            key.push(entry.key.clone());
            let known: Vec<&str> = text.split('`').skip(3).step_by(2).chain(ChannelPolicy::KEYS).collect();
            let finding = self.source.finding(at, dotted(&key), line!(config_unknown_key, entry.key));
            self.errors.push(Finding { hint: Some(suggestion(&entry.key, &known)), ..finding });
            return;
        }
        if let Some(entry) = named {
            key.push(entry.key.clone());
        }
        let text = match text.strip_prefix("missing field `").and_then(|rest| rest.split('`').next()) {
            Some(missing) => line!(config_key_missing, missing),
            None => Line::from(said),
        };
        self.errors.push(self.source.finding(at, dotted(&key), text));
    }

    fn server(&mut self, config: &Config, dir: &Path) {
        match config.server.listen_addr() {
            Err(problem) => {
                let (text, hint) = listen_lines(problem);
                self.error_at(&["server", "listen"], text, hint);
            }
            Ok(addr) => {
                if let Some(text) = weak_token(addr.ip(), &dir.join("data")) {
                    self.error_at(&["server", "listen"], text, None);
                }
            }
        }
        if let Err(problem) = config.server.channels_addr() {
            let (text, hint) = listen_lines(problem);
            self.error_at(&["server", "channels_listen"], text, hint);
        }
        if !config.store.is_sqlite() {
            self.error_at(&["store", "url"], line!(config_store_url), None);
        }
    }

    fn ranges(&mut self, config: &Config) {
        let (agent, queue, limits) = (&config.agent, &config.agent.queue, &config.limits);
        let table: [(&[&str], u64, u64, u64); 13] = [
            (&["agent", "max_rounds"], agent.max_rounds.into(), 1, 200),
            (&["agent", "workers"], agent.workers.into(), 1, 4096),
            (&["agent", "tool_output_chars"], agent.tool_output_chars.into(), 200, 1_000_000),
            (&["agent", "history_messages"], agent.history_messages.into(), 2, 10_000),
            (&["agent", "history_bytes"], agent.history_bytes.into(), 1024, 64 << 20),
            (&["agent", "queue", "debounce_ms"], queue.debounce_ms.into(), 0, 60_000),
            (&["agent", "queue", "cap"], queue.cap.into(), 1, 10_000),
            (&["tools", "exec", "timeout"], config.tools.exec.timeout, 1, 120),
            (&["limits", "max_queued"], limits.max_queued, 1, 10_000_000),
            (&["limits", "max_queued_mib"], limits.max_queued_mib, 1, 65_536),
            (&["limits", "turn_idle_s"], limits.turn_idle_s, 1, 86_400),
            (&["limits", "turn_max_s"], limits.turn_max_s, 1, 7 * 86_400),
            (&["limits", "drain_s"], limits.drain_s, 0, 3600),
        ];
        for (path, value, from, to) in table {
            if !(from..=to).contains(&value) {
                self.error_at(path, line!(config_out_of_range, from, to), None);
            }
        }
        for (key, _) in limits.budget.numbers().into_iter().filter(|(_, value)| *value < 1) {
            let path: Vec<&str> = ["limits", "budget"].into_iter().chain(key).collect();
            self.error_at(&path, line!(config_out_of_range, 1, i64::MAX), None);
        }
        self.prices(config);
        if limits.per_sender_per_min == Some(0) {
            self.error_at(&["limits", "per_sender_per_min"], line!(config_out_of_range, 1, u32::MAX), None);
        }
    }

    /// A budget of money counts what has a price in its currency; a model without one would go uncounted.
    fn prices(&mut self, config: &Config) {
        for (key, cost) in config.limits.budget.costs() {
            let priced = |price: &Price| price.currency == cost.currency;
            let free: Vec<&str> = config
                .models
                .iter()
                .filter(|(_, model)| model.provider != Provider::Scripted && !model.price.as_ref().is_some_and(priced))
                .map(|(name, _)| name.as_str())
                .collect();
            let Some(first) = free.first() else { continue };
            let path: Vec<&str> = ["limits", "budget"].into_iter().chain(key).collect();
            let hint = line!(config_price_missing_hint, first, cost.currency);
            let warning = self.finding_at(&path, line!(config_price_missing, words(&free)), Some(hint));
            self.warnings.push(warning);
        }
    }

    fn hubs(&mut self, config: &Config) {
        let Some((below, known)) = config.skills.hubs.wrong() else { return };
        let path: Vec<&str> = ["skills", "hubs"].into_iter().chain(below.iter().map(String::as_str)).collect();
        let text = match known {
            Some(known) => line!(hubs_order, known),
            None => line!(hubs_url),
        };
        self.error_at(&path, text, None);
    }

    fn mcp(&mut self, config: &Config) {
        for (below, wrong) in config.mcp.wrong() {
            let path: Vec<&str> = ["mcp"].into_iter().chain(below.iter().map(String::as_str)).collect();
            self.error_at(&path, Line::new(|lang| wrong.text(lang)), None);
        }
    }

    fn references(&mut self, config: &Config) {
        let mut missing: Vec<(Vec<String>, String)> = Vec::new();
        let mut model = |path: Vec<String>, name: &str| {
            if !config.models.contains_key(name) {
                missing.push((path, name.to_owned()));
            }
        };
        if let Some(name) = &config.agent.model {
            model(vec!["agent".into(), "model".into()], name);
        }
        for name in &config.agent.fallbacks {
            model(vec!["agent".into(), "fallbacks".into()], name);
        }
        for (id, agent) in &config.agents {
            if let Some(name) = &agent.model {
                model(vec!["agents".into(), id.clone(), "model".into()], name);
            }
            for name in agent.fallbacks.iter().flatten() {
                model(vec!["agents".into(), id.clone(), "fallbacks".into()], name);
            }
        }
        if let Some(name) = &config.heartbeat.model {
            model(vec!["heartbeat".into(), "model".into()], name);
        }
        for (id, beat) in &config.heartbeat.agents {
            if let Some(name) = &beat.model {
                model(vec!["heartbeat".into(), "agents".into(), id.clone(), "model".into()], name);
            }
        }
        for (path, name) in missing {
            let known: Vec<&str> = config.models.keys().map(String::as_str).collect();
            let hint = match nearest(&name, &known) {
                Some(known) => line!(config_did_you_mean, known),
                None => line!(config_no_model_hint, name),
            };
            let path: Vec<&str> = path.iter().map(String::as_str).collect();
            self.error_at(&path, line!(config_no_model, name), Some(hint));
        }
        for id in config.heartbeat.agents.keys().filter(|id| *id != "main" && !config.agents.contains_key(*id)) {
            self.error_at(&["heartbeat", "agents", id], line!(config_no_agent, id), None);
        }
        let token = config.hooks.token.as_ref().map_or(0, |token| token.expose().len());
        if config.hooks.enabled && token < MIN_TOKEN {
            self.error_at(&["hooks", "token"], line!(config_hooks_token, MIN_TOKEN), None);
        }
        for (id, channel) in &config.channels {
            let base = ["channels", id.kind(), id.account()];
            let agents = channel.policy.groups.iter().filter_map(|(group, section)| {
                Some((vec![base[0], base[1], base[2], "groups", group, "agent"], section.agent.as_ref()?))
            });
            let own = channel.policy.agent.iter().map(|agent| (vec![base[0], base[1], base[2], "agent"], agent));
            let wrong: Vec<_> = own
                .chain(agents)
                .filter(|(_, agent)| *agent != "main" && !config.agents.contains_key(*agent))
                .collect();
            let known: Vec<&str> = std::iter::once("main").chain(config.agents.keys().map(String::as_str)).collect();
            for (path, agent) in wrong {
                self.error_at(&path, line!(config_no_agent, agent), Some(suggestion(agent, &known)));
            }
        }
        self.bindings(config);
        self.identity_links(config);
    }

    fn bindings(&mut self, config: &Config) {
        let kinds = known_kinds();
        for (id, agent) in &config.agents {
            let path = ["agents", id.as_str(), "bindings"];
            if id == "main" {
                self.error_at(&["agents", "main"], line!(config_agent_main), None);
            }
            if agent.max_rounds.is_some_and(|rounds| !(1..=200).contains(&rounds)) {
                self.error_at(&["agents", id, "max_rounds"], line!(config_out_of_range, 1, 200), None);
            }
            for binding in &agent.bindings {
                let text = match binding.problem() {
                    Some(BindingProblem::NoChannel) => line!(config_binding_channel),
                    Some(BindingProblem::ThreadWithoutGroup) => line!(config_binding_thread),
                    Some(BindingProblem::SenderInGroup) => line!(config_binding_sender),
                    Some(BindingProblem::NotAnId) => line!(config_binding_id),
                    None => {
                        let (kind, account) = binding.channel.split_once(':').unwrap_or((&binding.channel, ""));
                        if kind != "web" && !kinds.contains(&kind) {
                            let hint = suggestion(kind, &kinds);
                            self.error_at(&path, line!(config_unknown_kind, kind), Some(hint));
                        } else if !account.is_empty() && kind != "web" {
                            let here = config.channels.keys().filter(|channel| channel.kind() == kind);
                            let here: Vec<&str> = here.map(ChannelId::account).collect();
                            if !here.contains(&account) {
                                let hint = suggestion(account, &here);
                                self.error_at(&path, line!(config_binding_nowhere, binding.channel), Some(hint));
                            }
                        }
                        continue;
                    }
                };
                self.error_at(&path, text, None);
            }
        }
    }

    fn identity_links(&mut self, config: &Config) {
        let mut seen: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, peers) in &config.access.identity_links {
            let path = ["access", "identity_links", name.as_str()];
            if !is_good_name(name) {
                self.error_at(&path, line!(config_bad_name, name), None);
            }
            for peer in peers {
                let good = peer.split_once(':').is_some_and(|(kind, id)| {
                    is_good_name(kind) && !id.is_empty() && !id.starts_with('@') && id != "*"
                });
                if !good {
                    self.error_at(&path, line!(config_owner_form, peer), None);
                } else if let Some(other) = seen.insert(peer, name) {
                    self.error_at(&path, line!(config_link_twice, peer, other), None);
                }
            }
        }
    }

    fn access(&mut self, config: &Config) {
        for owner in &config.access.owners {
            let good = owner
                .split_once(':')
                .is_some_and(|(kind, id)| is_good_name(kind) && !id.is_empty() && !id.starts_with('@') && id != "*");
            if !good {
                self.error_at(&["access", "owners"], line!(config_owner_form, owner), None);
                continue;
            }
            let Some((kind, id)) = owner.split_once(':') else { continue };
            let kinds: BTreeSet<&str> = config.channels.keys().map(ChannelId::kind).collect();
            // Without any channel there is still time for one.
            if kind == "web" || kinds.contains(kind) || (kinds.is_empty() && channels::kind(kind).is_some()) {
                continue;
            }
            let known: Vec<&str> = kinds.iter().copied().collect();
            let text =
                line!(config_owner_nobody, owner, kind, if known.is_empty() { "-".to_owned() } else { words(&known) });
            let meant = nearest(kind, &known).or_else(|| known.first().copied());
            let hint = meant.map(|meant| line!(config_owner_nobody_hint, meant, id));
            let warning = self.finding_at(&["access", "owners"], text, hint);
            self.warnings.push(warning);
        }
    }

    /// Lists of tools that name nothing: most likely a slip, but tools of skills and of servers are known only later.
    fn tool_policies(&mut self, config: &Config) {
        let known = policy::known_tools();
        let everywhere = config.tools.policy();
        let mut policies: Vec<(Vec<&str>, &ToolPolicy)> = vec![(vec!["tools"], &everywhere)];
        for (id, agent) in &config.agents {
            policies.push((vec!["agents", id, "tools"], &agent.tools));
        }
        for (id, channel) in &config.channels {
            policies.push((vec!["channels", id.kind(), id.account(), "tools"], &channel.policy.tools));
        }
        for (sender, section) in &config.access.senders {
            let good = sender
                .split_once(':')
                .is_some_and(|(kind, id)| is_good_name(kind) && !id.is_empty() && !id.starts_with('@') && id != "*");
            if !good {
                self.error_at(&["access", "senders", sender], line!(config_owner_form, sender), None);
            }
            policies.push((vec!["access", "senders", sender, "tools"], &section.tools));
        }
        for (mut path, policy) in policies {
            for (key, entry) in policy.unknown(&known) {
                path.push(key);
                let hint = match nearest(entry, &known) {
                    Some(meant) => line!(config_did_you_mean, meant),
                    None => line!(config_known_tools, words(&known)),
                };
                let warning = self.finding_at(&path, line!(config_tool_unknown, entry), Some(hint));
                self.warnings.push(warning);
                path.pop();
            }
        }
    }

    fn channel_lists(&mut self, config: &Config) {
        for (id, channel) in &config.channels {
            let base = ["channels", id.kind(), id.account()];
            for (key, problem) in access::problems(&channel.policy) {
                let text = match problem {
                    ListProblem::WildcardNeedsOpen => line!(config_wildcard_needs_open),
                    ListProblem::WildcardNotHere => line!(config_wildcard_not_here),
                    ListProblem::NotAnId(name) => line!(config_not_an_id, name),
                };
                self.error_at(&[base[0], base[1], base[2], &key], text, None);
            }
            for (group, section) in &channel.policy.groups {
                if section.history > access::MAX_HISTORY {
                    let path = [base[0], base[1], base[2], "groups", group.as_str(), "history"];
                    self.error_at(&path, line!(config_history_too_long, section.history, access::MAX_HISTORY), None);
                }
                for name in section.allow_from.iter().flatten().filter(|entry| entry.starts_with('@')) {
                    let path = [base[0], base[1], base[2], "groups", group.as_str(), "allow_from"];
                    self.error_at(&path, line!(config_not_an_id, name), None);
                }
            }
            let gate = Gate::new(
                id,
                &channel.policy,
                &config.access,
                channels::kind(id.kind()).is_some_and(|kind| kind.owners_own),
            );
            if channel.policy.enabled && gate.is_open() && channel.policy.dm_policy.is_some() {
                let warning = self.finding_at(&base, line!(config_open_to_all), None);
                self.warnings.push(warning);
            }
            if channel.policy.enabled && !gate.admits_anyone() {
                let warning = self.finding_at(&base, line!(config_nobody), Some(line!(config_nobody_hint)));
                self.warnings.push(warning);
            } else if channel.policy.enabled && gate.private_is_for_nobody() {
                let warning = self.finding_at(&base, line!(config_nobody_privately), Some(line!(config_nobody_hint)));
                self.warnings.push(warning);
            }
        }
    }

    /// Two accounts with one credential would fight over the same messages. bad-inputs.md 15.
    fn same_credentials(&mut self) {
        const IDENTITIES: [&str; 4] = ["token", "secret", "app_id", "app_secret"];
        let kinds = self.at(&["channels"]).and_then(|entry| entry.node.table());
        let mut found = Vec::new();
        for kind in kinds.iter().flat_map(|kinds| &kinds.0) {
            let mut seen: BTreeMap<(&str, &str), &str> = BTreeMap::new();
            for account in kind.node.table().iter().flat_map(|accounts| &accounts.0) {
                let Some(table) = account.node.table() else { continue };
                if matches!(table.get("enabled").map(|entry| &entry.node.value), Some(Value::Bool(false))) {
                    continue;
                }
                for key in IDENTITIES {
                    let Some(text) = table.get(key).and_then(|entry| entry.node.str()) else { continue };
                    if let Some(other) = seen.insert((key, text), &account.key) {
                        let other = format!("channels.{}.{other}", kind.key);
                        let text = line!(config_same_credential, key, other);
                        found.push(self.finding_at(&["channels", &kind.key, &account.key, key], text, None));
                    }
                }
            }
        }
        self.errors.extend(found);
    }

    /// Builds every adapter as a start would: what it refuses, two accounts that are one, and what the network could use
    /// without a secret.
    fn adapters(&mut self, config: &Config, dir: &Path, env: &Env) {
        let mut seen: BTreeMap<(&str, String), &ChannelId> = BTreeMap::new();
        for (id, section) in config.channels.iter().filter(|(_, section)| section.policy.enabled) {
            let path = ["channels", id.kind(), id.account()];
            let network = channels::network(&section.policy, |path| placed(path, dir, env));
            let built = network.and_then(|network| {
                let (settings, policy) = (&section.settings, &section.policy);
                channels::build(&channels::BuildChannel { id, settings, policy, network: &network })
            });
            let channel = match built {
                Ok(channel) => channel,
                Err(said) => {
                    let table = self.at(&path).and_then(|entry| entry.node.table()).cloned().unwrap_or_default();
                    self.adapter_error(said, &table, &path);
                    continue;
                }
            };
            if let Some(identity) = channel.exclusive()
                && let Some(other) = seen.insert((id.kind(), identity), id)
            {
                let other = format!("channels.{}.{}", other.kind(), other.account());
                self.error_at(&path, line!(config_same_account, other), None);
            }
            if let Some(key) = channel.unguarded().filter(|_| !config.server.channels_listen.is_empty()) {
                self.error_at(&path, line!(config_unguarded, key), None);
            }
        }
    }

    fn has_inline_secret(&self) -> bool {
        let mut found = false;
        self.root.strings(&mut |node, text| found |= node.hidden == Some(Hidden::Inline) && !text.is_empty());
        found
    }
}

/// The kinds of channels that there are adapters for.
fn known_kinds() -> Vec<&'static str> {
    channels::KINDS.iter().map(|kind| kind.name).collect()
}

/// Names of sections, accounts and agents become parts of session keys, addresses and file names.
fn is_good_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    (1..=64).contains(&name.len()) && name.chars().all(good) && !name.starts_with('.')
}

/// The section of a key that was written outside of any.
fn known_section_of(key: &str) -> Option<&'static str> {
    let section = match normal(key).as_str() {
        "listen" | "port" | "host" | "bind" | "hosts" | "channelslisten" | "localclients" => "server",
        "workspace" | "workers" | "maxrounds" | "fallbacks" => "agent",
        "owners" => "access",
        "apikey" | "baseurl" | "provider" => "models.main",
        "lang" | "language" => "ui",
        "exec" => "tools",
        _ => return None,
    };
    Some(section)
}

fn normal(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// The known word that was probably meant.
/// What was meant by a word, of those that are known.
pub fn nearest<'a>(word: &str, known: &[&'a str]) -> Option<&'a str> {
    let word = normal(word);
    let synonym = match word.as_str() {
        "port" | "host" | "bind" | "address" => "listen",
        "bottoken" => "token",
        "allowlist" | "allowedusers" | "allow" => "allow_from",
        "admins" | "admin" | "owner" => "owners",
        "endpoint" | "apibase" | "url" => "base_url",
        "key" => "api_key",
        "language" => "lang",
        "callback" | "webhook" => "callback_url",
        _ => "",
    };
    if known.contains(&synonym) {
        return known.iter().find(|name| **name == synonym).copied();
    }
    let distance = |name: &&str| strsim::damerau_levenshtein(&word, &normal(name));
    let best = known.iter().min_by_key(|name| distance(name)).copied()?;
    (distance(&best) <= (word.chars().count() / 3).max(1)).then_some(best)
}

fn suggestion(word: &str, known: &[&str]) -> Line {
    match nearest(word, known) {
        Some(name) => line!(config_did_you_mean, name),
        None => line!(config_known_keys, words(known)),
    }
}

fn words(known: &[&str]) -> String {
    known.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}

/// What serde expected, as a person would say it.
fn expected(what: &str, lang: Lang) -> String {
    let both = |en: &str, zh: &str| if lang == Lang::Zh { zh.to_owned() } else { en.to_owned() };
    let range =
        |from: &str, to: &str| both(&format!("a whole number from {from} to {to}"), &format!(" {from} 到 {to} 的整数"));
    match what {
        "u8" => range("0", "255"),
        "u16" => range("0", "65535"),
        "u32" => range("0", "4294967295"),
        "u64" | "usize" => both("a whole number from 0", "不小于 0 的整数"),
        "i8" | "i16" | "i32" | "i64" | "isize" => both("a whole number", "整数"),
        "f32" | "f64" => both("a number", "数字"),
        "a boolean" => both("true or false", " true 或 false"),
        "a string" => both("a text in quotes", "带引号的文本"),
        "a sequence" => both("a list in [ ]", " [ ] 列表"),
        "a map" => both("a table", "表"),
        "IP address" => both("an IP address in quotes", "带引号的 IP 地址"),
        what if what.starts_with("struct ") => both("a table", "表"),
        what => what.to_owned(),
    }
}
