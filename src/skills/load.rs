//! Finds the SKILL.md files below the skills folders, reads them, decides which skill can be used and which of two with
//! one name wins. Follows no link, waits for no pipe, and reads within limits.

use std::{
    collections::{BTreeMap, HashSet, hash_map::DefaultHasher},
    hash::{Hash, Hasher},
    io::{self, Read},
    path::{Path, PathBuf},
};

use cap_fs_ext::{DirExt, FollowSymlinks, MetadataExt, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions},
};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};
use unicode_normalization::UnicodeNormalization;

use super::{
    Env, Fault, Problem, Requires, Skill, Skills, Source, State, Tier, Unmet, Warning, front_matter,
    grants::{self, Consent, Grants},
    pinned,
};
use crate::{intake::command::Command, tools::names, untrusted, workspace::decode};

/// The most bytes of a SKILL.md.
pub(super) const FILE_BYTES: u64 = 256_000;
/// The most skills of one folder, and as many broken ones beside them.
pub(super) const MOST: usize = 300;
/// The most SKILL.md files found in one folder, the most entries read of one directory, and how deep it is searched.
const CANDIDATES: usize = 3_000;
const ENTRIES: usize = 2_000;
const LEVELS: usize = 6;
/// The most characters of a name, an alias and a description.
const NAME_CHARS: usize = 64;
const ALIAS_CHARS: usize = 32;
const DESCRIPTION_CHARS: usize = 4_000;

/// Reads all skills of these folders.
pub(super) fn load(sources: &[Source], env: &dyn Env) -> Skills {
    let mut skills = Skills::default();
    let mut found = Vec::new();
    for (tier, root) in ordered(sources, env) {
        if tier == Tier::Managed {
            skills.installed.push(root.clone());
        }
        match scan(&root) {
            Ok(Scan { found: candidates, more }) => {
                let grants = if tier == Tier::Managed { Grants::read(&root) } else { Grants::default() };
                let look = |skill| if tier == Tier::Managed { compared(skill, &root, &grants) } else { skill };
                let (mut whole, mut broken, mut left_out) = (0, 0, 0);
                for candidate in candidates {
                    if whole == MOST {
                        left_out += 1;
                        continue;
                    }
                    let skill = read(candidate, tier, env);
                    // What is broken takes no other's place.
                    let count = if matches!(skill.state, State::Broken(_)) { &mut broken } else { &mut whole };
                    if *count == MOST {
                        left_out += 1;
                        continue;
                    }
                    *count += 1;
                    found.push(look(skill));
                }
                if left_out > 0 || more {
                    skills.problems.push(Problem::LeftOut(root.clone(), left_out, more));
                }
                skills.folders.push(root);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => skills.problems.push(Problem::Unread(root, error.to_string())),
        }
    }
    skills.list = settle(found, env);
    skills
}

/// Whether a need of one of these skills is met now and was not, or the other way round: a program came or went.
pub(super) fn is_outdated(skills: &Skills, env: &dyn Env) -> bool {
    skills.list.iter().any(|skill| match &skill.state {
        State::Broken(_) => false,
        State::Loaded => !unmet(skill, env).is_empty(),
        State::Off(needs) => {
            let is_need = |need: &&Unmet| !matches!(need, Unmet::Changed(_));
            !needs.iter().filter(is_need).eq(&unmet(skill, env))
        }
    })
}

/// An installed skill beside what it was when it was installed, and what it was granted.
fn compared(mut skill: Skill, root: &Path, grants: &Grants) -> Skill {
    let Some(folder) = skill.location.parent().map(Path::to_owned) else { return skill };
    let files = pinned::files(&folder).ok();
    let whole = unit(root, &folder);
    let state = match whole == folder {
        true => pinned::state_of(&folder, files.as_deref()),
        false => pinned::state(&whole),
    };
    skill.consent = grants.consent(root, &skill, files.as_deref().map(pinned::sums).as_ref());
    if state == pinned::State::Changed {
        let name = whole.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match &mut skill.state {
            State::Broken(_) => {}
            State::Off(needs) => needs.insert(0, Unmet::Changed(name)),
            State::Loaded => skill.state = State::Off(vec![Unmet::Changed(name)]),
        }
    }
    skill
}

/// What was installed as one: the folder directly below the installed ones, when it has notes. A SKILL.md that lies deeper
/// in it shows only when somebody took the upper one away.
fn unit(root: &Path, folder: &Path) -> PathBuf {
    let first = folder.strip_prefix(root).ok().and_then(|below| below.components().next());
    let top = first.map(|first| root.join(first)).filter(|top| pinned::is_noted(top));
    top.unwrap_or_else(|| folder.to_owned())
}

/// A number that changes when a skill is added, removed, edited or granted something.
pub(super) fn stamp(sources: &[Source], env: &dyn Env) -> u64 {
    let mut hasher = DefaultHasher::new();
    for (tier, root) in ordered(sources, env) {
        (tier as u8, &root).hash(&mut hasher);
        if tier == Tier::Managed {
            let facts = std::fs::symlink_metadata(grants::file(&root)).ok();
            facts.map(|facts| (facts.len(), facts.modified().ok())).hash(&mut hasher);
        }
        match scan(&root) {
            Ok(Scan { found, .. }) => {
                for candidate in found {
                    if tier == Tier::Managed
                        && let Some(folder) = candidate.location.parent()
                    {
                        pinned::stamp(folder, &mut hasher);
                    }
                    let facts = std::fs::symlink_metadata(&candidate.location);
                    let modified = facts.as_ref().ok().and_then(|facts| facts.modified().ok());
                    let since = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok());
                    (candidate.location, since, facts.map(|facts| facts.len()).ok()).hash(&mut hasher);
                }
            }
            Err(error) => error.kind().hash(&mut hasher),
        }
    }
    hasher.finish()
}

/// The folders by rank, each once, `~` replaced.
pub(super) fn ordered(sources: &[Source], env: &dyn Env) -> Vec<(Tier, PathBuf)> {
    let mut folders: Vec<(Tier, PathBuf)> =
        sources.iter().map(|source| (source.tier, expand(&source.dir, env.home()))).collect();
    folders.sort_by_key(|(tier, _)| *tier);
    let mut seen = HashSet::new();
    folders.retain(|(_, dir)| seen.insert(std::fs::canonicalize(dir).unwrap_or_else(|_| dir.clone())));
    folders
}

/// `~` and `~/…` as the home folder.
fn expand(path: &Path, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path.to_owned(),
    }
}

/// A SKILL.md that was found.
struct Candidate {
    location: PathBuf,
    /// The name of its folder.
    folder: String,
    fault: Option<Fault>,
}

/// What was found below a folder.
#[derive(Default)]
struct Scan {
    /// The SKILL.md files, by path.
    found: Vec<Candidate>,
    /// There may be more: a limit was reached.
    more: bool,
}

fn scan(root: &Path) -> io::Result<Scan> {
    let dir = Dir::open_ambient_dir(root, ambient_authority())?;
    let mut scan = Scan::default();
    let folder = root.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    walk(&dir, root, folder, 0, &mut scan)?;
    Ok(scan)
}

fn walk(dir: &Dir, path: &Path, folder: String, level: usize, scan: &mut Scan) -> io::Result<()> {
    for name in ["SKILL.md", "skill.md"] {
        if let Ok(facts) = dir.symlink_metadata(name) {
            let fault = match () {
                () if facts.is_symlink() => Some(Fault::Link),
                () if !facts.is_file() => Some(Fault::NotAFile),
                () if facts.nlink() > 1 => Some(Fault::Link),
                () if facts.len() > FILE_BYTES => Some(Fault::TooLarge),
                () => None,
            };
            scan.found.push(Candidate { location: path.join(name), folder, fault });
            return Ok(());
        }
    }
    if level >= LEVELS {
        return Ok(());
    }
    let mut seen = 0;
    let mut names: Vec<String> = dir
        .entries()?
        .take(ENTRIES + 1)
        .inspect(|_| seen += 1)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| !name.starts_with('.') && name != "node_modules" && name != "__pycache__")
        .collect();
    names.sort_unstable();
    // Deep inside somebody's sources nothing is missed.
    scan.more |= seen > ENTRIES && level <= 1;
    for name in names {
        if scan.found.len() >= CANDIDATES {
            scan.more = true;
            return Ok(());
        }
        let below = path.join(&name);
        match dir.symlink_metadata(&name) {
            // A linked folder is named only where skills are expected, not deep inside somebody's sources.
            Ok(facts) if facts.is_symlink() && level == 0 && std::fs::metadata(&below).is_ok_and(|to| to.is_dir()) => {
                scan.found.push(Candidate { location: below.join("SKILL.md"), folder: name, fault: Some(Fault::Link) });
            }
            Ok(facts) if facts.is_dir() => match dir.open_dir_nofollow(&name) {
                Ok(inner) => {
                    // A folder that cannot be listed costs itself alone.
                    if let Err(error) = walk(&inner, &below, name.clone(), level + 1, scan) {
                        let fault = Some(Fault::Io(error.to_string()));
                        scan.found.push(Candidate { location: below.join("SKILL.md"), folder: name, fault });
                    }
                }
                Err(error) => {
                    let fault = Some(Fault::Io(error.to_string()));
                    scan.found.push(Candidate { location: below.join("SKILL.md"), folder: name, fault });
                }
            },
            _ => {}
        }
    }
    Ok(())
}

/// The text of a SKILL.md.
pub(super) fn text_of(location: &Path) -> Result<String, Fault> {
    let io = |error: io::Error| Fault::Io(error.to_string());
    let (Some(folder), Some(name)) = (location.parent(), location.file_name()) else {
        return Err(Fault::NotAFile);
    };
    let folder = Dir::open_ambient_dir(folder, ambient_authority()).map_err(io)?;
    let mut options = OpenOptions::new();
    options.read(true).follow(FollowSymlinks::No).nonblock(true);
    let file = folder.open_with(name, &options).map_err(io)?;
    if !file.metadata().map_err(io)?.is_file() {
        return Err(Fault::NotAFile);
    }
    let mut bytes = Vec::new();
    file.take(FILE_BYTES + 1).read_to_end(&mut bytes).map_err(io)?;
    if bytes.len() as u64 > FILE_BYTES {
        return Err(Fault::TooLarge);
    }
    decode(&bytes).ok_or(Fault::NotText)
}

fn read(candidate: Candidate, tier: Tier, env: &dyn Env) -> Skill {
    let Candidate { location, folder, fault } = candidate;
    let text = match fault {
        Some(fault) => Err(fault),
        None => text_of(&location),
    };
    let sha256 = text.as_ref().map(|text| hex(&Sha256::digest(text.as_bytes()))).unwrap_or_default();
    let hosts = text.as_ref().map(|text| grants::hosts_of(text)).unwrap_or_default();
    let hides_text = text.as_ref().is_ok_and(|text| untrusted::hiding(text.trim_start_matches('\u{feff}')).is_some());
    let mut skill = match text.and_then(|text| front_matter::parse(&text)) {
        Ok(front) => skill(front, &folder, location, tier, env),
        Err(fault) => Skill { state: State::Broken(fault), ..blank(harmless(&folder), location, tier) },
    };
    if hides_text {
        skill.warnings.push(Warning::HiddenCharacters);
    }
    Skill { sha256, hosts, ..skill }
}

pub(super) fn blank(name: String, location: PathBuf, tier: Tier) -> Skill {
    Skill {
        alias: String::new(),
        key: name.clone(),
        name,
        description: String::new(),
        location,
        tier,
        state: State::Loaded,
        warnings: Vec::new(),
        user_invocable: true,
        model_invocable: true,
        homepage: None,
        emoji: None,
        primary_env: None,
        requires: Requires::default(),
        install: None,
        tool: None,
        consent: Consent::default(),
        sha256: String::new(),
        hosts: Vec::new(),
    }
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads the fields of a front matter into a skill. Pure but for the questions to `env`.
pub(super) fn skill(
    front: front_matter::FrontMatter,
    folder: &str,
    location: PathBuf,
    tier: Tier,
    env: &dyn Env,
) -> Skill {
    let front_matter::FrontMatter { fields, mut warnings } = front;
    let meta = metadata(fields.get("metadata"), &mut warnings);
    let requires_field = meta.get("requires").and_then(Value::as_object).cloned().unwrap_or_default();
    let requires = Requires {
        os: words(meta.get("os")).iter().map(|os| os_name(os)).collect(),
        bins: words(requires_field.get("bins")),
        any_bins: words(requires_field.get("anyBins")),
        env: words(requires_field.get("env")),
        config: words(requires_field.get("config")),
        always: truth(meta.get("always")).unwrap_or(false),
    };
    let name = match text(fields.get("name")) {
        Some(name) => name,
        None => {
            warnings.push(Warning::NameFromFolder);
            folder.trim().to_owned()
        }
    };
    let name: String = name.nfc().collect();
    let description: String =
        text(fields.get("description")).unwrap_or_default().chars().take(DESCRIPTION_CHARS).collect();
    let switch = |key: &str| fields.get(key).or_else(|| fields.get(&key.replace('-', "_")));
    let key = text(meta.get("skillKey")).unwrap_or_else(|| name.clone());
    let mut skill = Skill {
        description,
        user_invocable: truth(switch("user-invocable")).unwrap_or(true),
        model_invocable: !truth(switch("disable-model-invocation")).unwrap_or(false),
        homepage: text(fields.get("homepage")).or_else(|| text(meta.get("homepage"))),
        emoji: text(meta.get("emoji")),
        primary_env: text(meta.get("primaryEnv")),
        install: meta.get("install").cloned(),
        tool: meta.get("tool").cloned(),
        requires,
        warnings,
        ..blank(name, location, tier)
    };
    skill.key = key;
    skill.state = match () {
        () if is_bad_name(&skill.name) => State::Broken(Fault::BadName(harmless(&skill.name))),
        () if skill.description.is_empty() => State::Broken(Fault::NoDescription),
        () => match unmet(&skill, env) {
            needs if needs.is_empty() => State::Loaded,
            needs => State::Off(needs),
        },
    };
    if is_bad_name(&skill.name) {
        // The list stays readable whatever a file calls itself.
        skill.name = harmless(folder);
    }
    skill
}

/// The object under the first of our keys; the field may be an object or JSON in a string.
fn metadata(field: Option<&Value>, warnings: &mut Vec<Warning>) -> Map<String, Value> {
    let parsed = match field {
        None | Some(Value::Null) => return Map::new(),
        Some(Value::Object(object)) => Some(object.clone()),
        Some(Value::String(json)) => serde_json::from_str(json).ok(),
        Some(_) => None,
    };
    let Some(object) = parsed else {
        warnings.push(Warning::FieldIgnored("metadata".to_owned()));
        return Map::new();
    };
    let ours = ["crawfish", "openclaw", "clawdbot", "clawdis"].iter().find_map(|key| object.get(*key)?.as_object());
    ours.cloned().unwrap_or_default()
}

fn text(field: Option<&Value>) -> Option<String> {
    let text = match field? {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Bool(truth) => truth.to_string(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

/// A list of words; one word alone is a list of one. Bounded.
fn words(field: Option<&Value>) -> Vec<String> {
    match field {
        Some(Value::Array(list)) => list.iter().take(100).filter_map(|word| text(Some(word))).collect(),
        other => text(other).into_iter().collect(),
    }
}

fn truth(field: Option<&Value>) -> Option<bool> {
    match field? {
        Value::Bool(truth) => Some(*truth),
        Value::String(word) => match word.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" => Some(true),
            "false" | "no" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

/// The names OpenClaw's skills use.
fn os_name(os: &str) -> String {
    match os.to_ascii_lowercase().as_str() {
        "macos" | "mac" | "osx" => "darwin".to_owned(),
        "windows" | "win" => "win32".to_owned(),
        os => os.to_owned(),
    }
}

fn unmet(skill: &Skill, env: &dyn Env) -> Vec<Unmet> {
    let Requires { os, bins, any_bins, env: variables, config, always } = &skill.requires;
    let mut needs = Vec::new();
    if !env.is_enabled(&skill.key) {
        needs.push(Unmet::SwitchedOff);
    }
    if !os.is_empty() && !os.iter().any(|os| os == env.os()) {
        needs.push(Unmet::Os(os.clone()));
    }
    if *always {
        return needs;
    }
    needs.extend(bins.iter().filter(|name| !env.has_program(name)).cloned().map(Unmet::Program));
    if !any_bins.is_empty() && !any_bins.iter().any(|name| env.has_program(name)) {
        needs.push(Unmet::AnyProgram(any_bins.clone()));
    }
    let is_unset = |name: &&String| !env.has_variable(&skill.key, skill.primary_env.as_deref(), name);
    needs.extend(variables.iter().filter(is_unset).cloned().map(Unmet::Variable));
    needs.extend(config.iter().filter(|path| !env.config_is_true(path)).cloned().map(Unmet::Config));
    needs
}

fn is_bad_name(name: &str) -> bool {
    name.is_empty()
        || name.chars().count() > NAME_CHARS
        || name.contains(['/', '\\', '<', '>'])
        || name.chars().all(|c| c == '.')
        || name.contains(['\n', '\t', '\u{2028}', '\u{2029}'])
        || untrusted::hiding(name).is_some()
}

fn harmless(name: &str) -> String {
    name.chars().filter(|c| !untrusted::is_invisible(*c)).take(NAME_CHARS).collect()
}

/// What two names share that are the same to a person's eye: width, case, and Cyrillic or Greek letters that look Latin.
pub(super) fn skeleton(name: &str) -> String {
    key_of(name)
        .chars()
        .filter(|c| !untrusted::is_invisible(*c))
        .map(|c| match c {
            'а' | 'α' | 'ɑ' => 'a',
            'в' | 'ь' => 'b',
            'с' | 'ϲ' => 'c',
            'ԁ' => 'd',
            'е' | 'ё' | 'є' | 'ε' => 'e',
            'ɡ' => 'g',
            'һ' | 'н' => 'h',
            'і' | 'ι' | 'ı' => 'i',
            'ј' => 'j',
            'к' | 'κ' => 'k',
            'ӏ' | 'ⅼ' => 'l',
            'м' => 'm',
            'п' | 'η' | 'ո' => 'n',
            'о' | 'ο' | 'σ' => 'o',
            'р' | 'ρ' => 'p',
            'ԛ' => 'q',
            'г' => 'r',
            'ѕ' => 's',
            'т' | 'τ' => 't',
            'υ' | 'ս' => 'u',
            'ν' | 'ѵ' => 'v',
            'ԝ' | 'ω' => 'w',
            'х' | 'χ' => 'x',
            'у' | 'γ' => 'y',
            c => c,
        })
        .collect()
}

/// Names that differ in width or case alone are one name.
pub(super) fn key_of(name: &str) -> String {
    name.nfkc().flat_map(char::to_lowercase).collect()
}

/// The ASCII alias of a name: `None` when nothing of it is left.
pub(super) fn alias_of(name: &str) -> Option<String> {
    let mapped: String = key_of(name).chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    let alias = mapped.trim_matches('_').chars().take(ALIAS_CHARS).collect::<String>();
    // A word in which most letters were lost says less than nothing (`小龙虾a` would be `a`).
    let kept = alias.chars().filter(char::is_ascii_alphanumeric).count();
    let wrote = name.chars().filter(|c| c.is_alphanumeric()).count();
    (kept * 2 > wrote).then_some(alias)
}

/// Whether a name is one of our commands, as `/name` or as a word that is an order alone, or a tool's.
fn is_built_in(name: &str) -> bool {
    let command = |text: &str| Command::parse(text).is_some();
    command(&format!("/{name}")) || command(name) || names::is_tool(name)
}

/// Takes from a skill the key (`skillKey`) that is another one's name, or that one before it has: what the owner put aside for
/// one skill in `[skills.entries.<key>]` is not for whoever names it.
fn own_keys(list: &mut [Skill], env: &dyn Env) {
    let names: BTreeMap<String, PathBuf> =
        list.iter().map(|skill| (key_of(&skill.name), skill.location.clone())).collect();
    let mut taken: BTreeMap<String, PathBuf> = BTreeMap::new();
    for skill in list.iter_mut().filter(|skill| !matches!(skill.state, State::Broken(_))) {
        let key = key_of(&skill.key);
        let is_others = names.get(&key).is_some_and(|owner| *owner != skill.location)
            || taken.get(&key).is_some_and(|first| *first != skill.location);
        taken.entry(key).or_insert_with(|| skill.location.clone());
        if !is_others || skill.key == skill.name {
            continue;
        }
        let key = std::mem::replace(&mut skill.key, skill.name.clone());
        skill.warnings.push(Warning::KeyTaken(key));
        let changed = match &skill.state {
            State::Off(needs) => needs.iter().find(|need| matches!(need, Unmet::Changed(_))).cloned(),
            _ => None,
        };
        let needs: Vec<Unmet> = changed.into_iter().chain(unmet(skill, env)).collect();
        skill.state = if needs.is_empty() { State::Loaded } else { State::Off(needs) };
    }
}

/// Decides between skills of one name, refuses look-alikes, gives each its alias and sorts the list.
fn settle(found: Vec<Skill>, env: &dyn Env) -> Vec<Skill> {
    let is_usable = |skill: &Skill| !matches!(skill.state, State::Broken(_));
    let mut list: Vec<Skill> = Vec::new();
    // `found` is in order of rank, then path: the first of a name wins.
    let mut winner: BTreeMap<String, usize> = BTreeMap::new();
    for skill in found {
        if !is_usable(&skill) {
            list.push(skill);
            continue;
        }
        match winner.get(&key_of(&skill.name)) {
            Some(at) if list[*at].sha256 == skill.sha256 => {}
            Some(at) => list[*at].warnings.push(Warning::Hides(skill.location)),
            None => {
                winner.insert(key_of(&skill.name), list.len());
                list.push(skill);
            }
        }
    }
    own_keys(&mut list, env);
    let plain: BTreeMap<String, String> = list
        .iter()
        .filter(|skill| is_usable(skill) && skill.name.is_ascii())
        .map(|skill| (skeleton(&skill.name), skill.name.clone()))
        .collect();
    for skill in list.iter_mut().filter(|skill| is_usable(skill) && !skill.name.nfkc().all(|c| c.is_ascii())) {
        if let Some(other) = plain.get(&skeleton(&skill.name)) {
            skill.state = State::Broken(Fault::LookAlike(other.clone()));
        }
    }
    list.sort_by(|a, b| (&a.name, &a.location).cmp(&(&b.name, &b.location)));
    let mut taken = HashSet::new();
    for skill in &mut list {
        let folder = skill.location.parent().and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
        let wanted = alias_of(&skill.name)
            .or_else(|| alias_of(&folder.unwrap_or_default()))
            .unwrap_or_else(|| format!("skill_{}", hex(&Sha256::digest(skill.name.as_bytes())[..3])));
        if matches!(skill.state, State::Broken(_)) {
            skill.alias = wanted;
            continue;
        }
        let mut alias = wanted.clone();
        let mut n = 2;
        while !taken.insert(alias.clone()) {
            let end = format!("_{n}");
            alias = format!("{}{end}", &wanted[..wanted.len().min(ALIAS_CHARS - end.len())]);
            n += 1;
        }
        let is_usual = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
        if !skill.name.chars().all(is_usual) {
            skill.warnings.push(Warning::OddName(alias.clone()));
        }
        skill.alias = alias;
        if let Some(taken) = [&skill.name, &skill.alias].into_iter().find(|name| is_built_in(name)).cloned() {
            skill.warnings.push(Warning::LikeBuiltIn(taken));
        }
    }
    list
}
