//! Unpacks what a skill comes in, a ZIP file or a folder, into an empty folder of ours. One wrong entry and nothing of it
//! is taken.
//!
//! security.md §3.3 rows 18 and 19, bad-inputs.md 21 and 23: only plain files, under names that mean the same on every
//! system; no links, no devices, no archives in archives; caps on count, size, ratio and depth, counted on what comes out
//! and not on what a header says. Starts no program, follows no link.

use std::{
    collections::HashMap,
    fs,
    io::{self, Read, Seek, Write},
    path::{Path, PathBuf},
};

use cap_fs_ext::{DirExt, FollowSymlinks, MetadataExt, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions},
};
use unicode_normalization::UnicodeNormalization;

use super::pinned;
use crate::{
    lang::{self, Lang},
    untrusted, zip_directory,
};

/// How much a skill may be (security.md §3.3 row 19).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Files.
    pub files: usize,
    /// Bytes of one file.
    pub file: u64,
    /// Bytes of all files.
    pub total: u64,
    /// How many times its packed size a file may have, beyond the first 64 KiB.
    pub ratio: u64,
    /// Folders in one another.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { files: 1_000, file: 10 << 20, total: 50 << 20, ratio: 100, depth: 8 }
    }
}

/// Why nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is no ZIP file, or a damaged one.
    NotAZip(String),
    /// A name that leads elsewhere: `..`, absolute, a drive, a backslash.
    Outside(String),
    /// A name that is no name on every system: not UTF-8, invisible or control characters, reserved words.
    BadName(String),
    /// Two names that are one where case does not count.
    Clash(String, String),
    /// A symbolic or hard link.
    Link(String),
    /// A pipe, socket or device.
    NotAFile(String),
    /// It has a password.
    Encrypted(String),
    /// An archive in the archive.
    Nested(String),
    /// More files than allowed.
    TooMany(usize),
    /// A file of more bytes than allowed.
    TooLarge(String, u64),
    /// More bytes than allowed in all.
    TooMuch(u64),
    /// A file that grows beyond all measure when unpacked.
    Bomb(String),
    /// More folders in one another than allowed.
    TooDeep(String),
    /// No SKILL.md.
    NoSkill,
    /// More than one skill, and nothing says which.
    ManySkills(Vec<String>),
    /// There is no skill in the folder that was asked for.
    NoSuchFolder(String),
    /// The system refused, with its words.
    Io(String),
}

impl Refused {
    /// What is wrong and what to do, in one line.
    pub fn text(&self, lang: Lang) -> String {
        match self {
            Self::NotAZip(why) => lang::archive_not_a_zip(lang, why),
            Self::Outside(name) => lang::archive_outside(lang, name),
            Self::BadName(name) => lang::archive_bad_name(lang, name),
            Self::Clash(one, other) => lang::archive_clash(lang, one, other),
            Self::Link(name) => lang::archive_link(lang, name),
            Self::NotAFile(name) => lang::archive_not_a_file(lang, name),
            Self::Encrypted(name) => lang::archive_encrypted(lang, name),
            Self::Nested(name) => lang::archive_nested(lang, name),
            Self::TooMany(most) => lang::archive_too_many(lang, most),
            Self::TooLarge(name, most) => lang::archive_too_large(lang, name, most >> 20),
            Self::TooMuch(most) => lang::archive_too_much(lang, most >> 20),
            Self::Bomb(name) => lang::archive_bomb(lang, name),
            Self::TooDeep(name) => lang::archive_too_deep(lang, name),
            Self::NoSkill => lang::archive_no_skill(lang),
            Self::ManySkills(folders) => lang::archive_many_skills(lang, folders.join(", ")),
            Self::NoSuchFolder(folder) => lang::archive_no_such_folder(lang, folder),
            Self::Io(why) => why.clone(),
        }
    }
}

impl From<io::Error> for Refused {
    fn from(error: io::Error) -> Self {
        Self::Io(error.to_string())
    }
}

/// Unpacks the skill of a ZIP file into `into`, an empty folder. `path` says which folder of the archive it is when there
/// are several.
///
/// # Errors
/// [`Refused`]; the caller throws the folder away.
pub fn unzip<R: Read + Seek>(mut reader: R, into: &Path, path: Option<&str>, limits: Limits) -> Result<(), Refused> {
    let damaged = |error: zip::result::ZipError| Refused::NotAZip(error.to_string());
    // Counted before anything is kept for each of them.
    if !zip_directory::is_short(&mut reader, limits.files * 2)? {
        return Err(Refused::TooMany(limits.files));
    }
    let mut archive = zip::ZipArchive::new(reader).map_err(damaged)?;
    if archive.len() > limits.files * 2 {
        return Err(Refused::TooMany(limits.files));
    }
    if archive.has_duplicate_names() {
        return Err(Refused::NotAZip("two entries have one name".to_owned()));
    }
    if archive.has_overlapping_files().map_err(damaged)? {
        return Err(Refused::NotAZip("two entries share their bytes".to_owned()));
    }
    let mut names = Names::default();
    let mut entries = Vec::new();
    for index in 0..archive.len() {
        let entry = archive.by_index_raw(index).map_err(damaged)?;
        let is_dir = entry.name_raw().ends_with(b"/");
        let name = names.admit(entry.name_raw(), is_dir, limits.depth)?;
        if entry.encrypted() {
            return Err(Refused::Encrypted(name));
        }
        match entry.unix_mode().unwrap_or(0) & 0o170_000 {
            0 => {}
            0o100_000 if !is_dir => {}
            0o040_000 if is_dir => {}
            0o120_000 => return Err(Refused::Link(name)),
            _ => return Err(Refused::NotAFile(name)),
        }
        if is_dir {
            continue;
        }
        if is_archive_name(&name) {
            return Err(Refused::Nested(name));
        }
        let runs = entry.unix_mode().is_some_and(|mode| mode & 0o100 != 0);
        entries.push(Entry { name, index, packed: entry.compressed_size(), size: entry.size(), runs });
    }
    let taken = chosen(entries, path, limits)?;
    let declared: u64 = taken.iter().map(|(entry, _)| entry.size).fold(0, u64::saturating_add);
    if declared > limits.total {
        return Err(Refused::TooMuch(limits.total));
    }
    let mut total = 0;
    for (entry, below) in taken {
        let most = limits.file.min(64 * 1024 + entry.packed.saturating_mul(limits.ratio));
        let too_large = |entry: &Entry| match most < limits.file {
            true => Refused::Bomb(entry.name.clone()),
            false => Refused::TooLarge(entry.name.clone(), limits.file),
        };
        if entry.size > most {
            return Err(too_large(&entry));
        }
        let file = archive.by_index(entry.index).map_err(damaged)?;
        let written = write(file, into, &below, entry.runs, most, &entry.name)?;
        if written > most {
            return Err(too_large(&entry));
        }
        total += written;
        if total > limits.total {
            return Err(Refused::TooMuch(limits.total));
        }
    }
    sync_folders(into)?;
    Ok(())
}

/// Copies the skill of a folder into `into`, an empty folder; `path` says which folder below it is when there are
/// several. `.git`, caches and the leftovers of file managers stay behind.
///
/// # Errors
/// [`Refused`]; the caller throws the folder away.
pub fn copy(from: &Path, into: &Path, path: Option<&str>, limits: Limits) -> Result<(), Refused> {
    let root = Dir::open_ambient_dir(from, ambient_authority())
        .map_err(|error| Refused::Io(format!("{}: {error}", from.display())))?;
    let (mut names, mut entries) = (Names::default(), Vec::new());
    let mut search = Search { names: &mut names, entries: &mut entries, limits };
    search.walk(&root, "")?;
    let mut total = 0;
    for (entry, below) in chosen(entries, path, limits)? {
        if is_archive_name(&entry.name) {
            return Err(Refused::Nested(entry.name));
        }
        let mut options = OpenOptions::new();
        options.read(true).follow(FollowSymlinks::No).nonblock(true);
        let (folder, file) = entry.name.rsplit_once('/').unwrap_or(("", &entry.name));
        let mut dir = root.try_clone()?;
        for part in folder.split('/').filter(|part| !part.is_empty()) {
            dir = dir.open_dir_nofollow(part)?;
        }
        let file = dir.open_with(file, &options)?;
        let facts = file.metadata()?;
        if !facts.is_file() || facts.nlink() > 1 {
            return Err(Refused::Link(entry.name));
        }
        let written = write(file, into, &below, entry.runs, limits.file, &entry.name)?;
        if written > limits.file {
            return Err(Refused::TooLarge(entry.name, limits.file));
        }
        total += written;
        if total > limits.total {
            return Err(Refused::TooMuch(limits.total));
        }
    }
    sync_folders(into)?;
    Ok(())
}

/// One file that was found.
struct Entry {
    /// Its path, `/` between parts.
    name: String,
    /// Its place in the archive.
    index: usize,
    packed: u64,
    /// As a header says; what comes out is counted.
    size: u64,
    /// It is meant to be run.
    runs: bool,
}

/// The names that were seen, and what each of them is where case does not count.
#[derive(Default)]
struct Names {
    seen: HashMap<String, (String, bool)>,
}

impl Names {
    /// The name as text, if it is one that means the same everywhere and clashes with none before it.
    fn admit(&mut self, raw: &[u8], is_dir: bool, depth: usize) -> Result<String, Refused> {
        let text = std::str::from_utf8(raw).map_err(|_| Refused::BadName(String::from_utf8_lossy(raw).into_owned()))?;
        let name = text.strip_suffix('/').filter(|_| is_dir).unwrap_or(text);
        if name.starts_with('/') || name.contains(['\\', ':']) {
            return Err(Refused::Outside(name.to_owned()));
        }
        let parts: Vec<&str> = name.split('/').collect();
        if parts.contains(&"..") {
            return Err(Refused::Outside(name.to_owned()));
        }
        if name.len() > 1_000 || parts.iter().any(|part| is_bad_part(part)) {
            return Err(Refused::BadName(name.to_owned()));
        }
        if parts.len() > depth + 1 {
            return Err(Refused::TooDeep(name.to_owned()));
        }
        for length in 1..=parts.len() {
            let path = parts[..length].join("/");
            let is_folder = is_dir || length < parts.len();
            let known = self.seen.entry(folded(&path)).or_insert_with(|| (path.clone(), is_folder));
            // A file comes once; a folder may be named again, in the same letters.
            let is_last = length == parts.len();
            if known.0 != path || known.1 != is_folder {
                return Err(Refused::Clash(known.0.clone(), path));
            }
            if is_last && !is_dir && known.1 {
                return Err(Refused::Clash(known.0.clone(), path));
            }
        }
        Ok(name.to_owned())
    }
}

/// A path as a file system sees it that ignores case and ways of composing letters.
fn folded(path: &str) -> String {
    path.nfkc().flat_map(char::to_lowercase).collect()
}

/// Whether a part of a path is no name on one of the systems: empty, `.`, devices of Windows, trailing dots and spaces,
/// characters that nobody sees.
fn is_bad_part(part: &str) -> bool {
    const DEVICES: [&str; 6] = ["con", "prn", "aux", "nul", "conin$", "conout$"];
    let stem = part.split('.').next().unwrap_or_default().trim_end().to_ascii_lowercase();
    let numbered = |word: &str| stem.strip_prefix(word).is_some_and(|rest| matches!(rest.as_bytes(), [b'0'..=b'9']));
    // What Windows makes of long names: `GIT~1` is `.git` there.
    let short = stem
        .rsplit_once('~')
        .is_some_and(|(head, n)| head.len() <= 6 && !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    part.is_empty()
        || short
        || part == "."
        || part.len() > 255
        || part.ends_with(['.', ' '])
        || part.starts_with(' ')
        || part.contains(['<', '>', '"', '|', '?', '*'])
        || part.contains(['\n', '\t', '\u{2028}', '\u{2029}'])
        || untrusted::hiding(part).is_some()
        || DEVICES.contains(&stem.as_str())
        || numbered("com")
        || numbered("lpt")
}

/// Archives and packages that hold files of their own; documents that happen to be ZIP files are none.
fn is_archive_name(name: &str) -> bool {
    const ENDS: [&str; 16] = [
        ".zip", ".jar", ".war", ".apk", ".whl", ".7z", ".rar", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".lz4",
        ".cab", ".iso",
    ];
    let name = name.to_ascii_lowercase();
    ENDS.iter().any(|end| name.ends_with(end))
}

/// Documents that are ZIP files by nature.
fn is_document_name(name: &str) -> bool {
    const ENDS: [&str; 8] = [".docx", ".xlsx", ".pptx", ".odt", ".ods", ".odp", ".epub", ".xlsm"];
    let name = name.to_ascii_lowercase();
    ENDS.iter().any(|end| name.ends_with(end))
}

/// What file managers and tools leave lying about.
fn is_litter(name: &str) -> bool {
    name.split('/').any(|part| matches!(part, "__MACOSX" | ".DS_Store" | "Thumbs.db" | "desktop.ini" | "__pycache__"))
}

/// The files of the one skill, each with its path below the skill's folder.
fn chosen(entries: Vec<Entry>, path: Option<&str>, limits: Limits) -> Result<Vec<(Entry, String)>, Refused> {
    let folder_of = |name: &str| name.rsplit_once('/').map_or(String::new(), |(folder, _)| folder.to_owned());
    let is_skill = |name: &str| matches!(name.rsplit('/').next(), Some("SKILL.md" | "skill.md")) && !is_litter(name);
    let mut folders: Vec<String> =
        entries.iter().filter(|entry| is_skill(&entry.name)).map(|entry| folder_of(&entry.name)).collect();
    folders.sort();
    folders.dedup();
    let is_below = |folder: &str, top: &str| top.is_empty() || folder == top || folder.starts_with(&format!("{top}/"));
    // A SKILL.md inside a skill belongs to it.
    let tops: Vec<String> = folders
        .iter()
        .filter(|folder| !folders.iter().any(|other| other != *folder && is_below(folder, other)))
        .cloned()
        .collect();
    let top = match path.map(|path| path.trim_matches('/').trim_start_matches("./")).filter(|path| !path.is_empty()) {
        Some(path) => {
            // Archives of code hosts put everything into one folder that nobody names.
            let fits = |folder: &&String| {
                folder.as_str() == path || folder.split_once('/').is_some_and(|(_, below)| below == path)
            };
            folders.iter().find(fits).cloned().ok_or_else(|| Refused::NoSuchFolder(path.to_owned()))?
        }
        None => match tops.as_slice() {
            [] => return Err(Refused::NoSkill),
            [top] => top.clone(),
            many => return Err(Refused::ManySkills(many.iter().take(20).cloned().collect())),
        },
    };
    let prefix = if top.is_empty() { String::new() } else { format!("{top}/") };
    let mut taken: Vec<(Entry, String)> = Vec::new();
    for entry in entries {
        let Some(below) = entry.name.strip_prefix(&prefix).map(str::to_owned) else { continue };
        let is_notes = |part: &str| pinned::NOTES.contains(&folded(part).as_str());
        let (first, rest) = below.split_once('/').unwrap_or((&below, ""));
        // The notes on an installation are ours to write; histories are nobody's skill.
        if is_litter(&entry.name) || is_notes(first) {
            continue;
        }
        // Deeper ones have no business in a skill, and other programs pass over them.
        if rest.split('/').any(is_notes) {
            return Err(Refused::BadName(entry.name));
        }
        taken.push((entry, below));
    }
    if taken.len() > limits.files {
        return Err(Refused::TooMany(limits.files));
    }
    Ok(taken)
}

/// The files below a folder.
struct Search<'a> {
    names: &'a mut Names,
    entries: &'a mut Vec<Entry>,
    limits: Limits,
}

impl Search<'_> {
    fn walk(&mut self, dir: &Dir, path: &str) -> Result<(), Refused> {
        for found in dir.entries()? {
            let found = found?;
            let os_name = found.file_name();
            let below = match path {
                "" => os_name.as_encoded_bytes().to_vec(),
                path => [path.as_bytes(), b"/", os_name.as_encoded_bytes()].concat(),
            };
            if matches!(os_name.to_str(), Some(".git" | ".svn" | ".hg" | ".clawhub" | ".clawdhub")) {
                continue;
            }
            if os_name.to_str().is_some_and(is_litter) {
                continue;
            }
            let facts = dir.symlink_metadata(&os_name)?;
            let kind = facts.file_type();
            let name = self.names.admit(&below, facts.is_dir(), self.limits.depth)?;
            if facts.is_symlink() {
                return Err(Refused::Link(name));
            }
            if facts.is_dir() {
                self.walk(&dir.open_dir_nofollow(&os_name)?, &name)?;
                continue;
            }
            if !kind.is_file() {
                return Err(Refused::NotAFile(name));
            }
            if facts.nlink() > 1 {
                return Err(Refused::Link(name));
            }
            // A whole repository may be larger than the one skill of it that is taken.
            if self.entries.len() >= self.limits.files * 20 {
                return Err(Refused::TooMany(self.limits.files));
            }
            let size = facts.len();
            self.entries.push(Entry { name, index: 0, packed: size, size, runs: may_run(&facts) });
        }
        Ok(())
    }
}

fn may_run(facts: &cap_std::fs::Metadata) -> bool {
    #[cfg(unix)]
    return cap_std::fs::MetadataExt::mode(facts) & 0o100 != 0;
    #[cfg(not(unix))]
    {
        let _ = facts;
        false
    }
}

/// Writes at most one byte more than `most` to `below` in `into` and makes it durable; how many were written.
fn write(from: impl Read, into: &Path, below: &str, runs: bool, most: u64, name: &str) -> Result<u64, Refused> {
    let path: PathBuf = below.split('/').fold(into.to_owned(), |path, part| path.join(part));
    if let Some(folder) = path.parent() {
        crate::os::create_private_dir(folder)?;
    }
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, if runs { 0o700 } else { 0o600 });
    #[cfg(not(unix))]
    let _ = runs;
    let mut file = options.open(&path)?;
    let mut from = from.take(most.saturating_add(1));
    let mut begun = Vec::with_capacity(4);
    from.by_ref().take(4).read_to_end(&mut begun).map_err(|error| unreadable(name, &error))?;
    if begun == b"PK\x03\x04" && !is_document_name(name) {
        return Err(Refused::Nested(name.to_owned()));
    }
    file.write_all(&begun)?;
    let rest = io::copy(&mut from, &mut file).map_err(|error| unreadable(name, &error))?;
    file.sync_all()?;
    Ok(begun.len() as u64 + rest)
}

fn unreadable(name: &str, error: &io::Error) -> Refused {
    Refused::NotAZip(format!("{name}: {error}"))
}

/// Makes the names in a folder and below it durable.
fn sync_folders(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_folders(&entry.path())?;
        }
    }
    crate::os::sync_dir(folder)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, io::Cursor, rc::Rc};

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    const SKILL: &str = "---\nname: demo\ndescription: Shows things.\n---\nDo it.\n";

    /// A ZIP file of these names and contents.
    fn zip_of(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, content) in files {
            match name.strip_suffix('/') {
                Some(folder) => writer.add_directory(folder, SimpleFileOptions::default()).expect("a folder"),
                None => {
                    writer.start_file(*name, SimpleFileOptions::default()).expect("a file");
                    writer.write_all(content).expect("its content");
                }
            }
        }
        writer.finish().expect("an archive").into_inner()
    }

    /// The archive with one run of bytes replaced everywhere by another of the same length: names that no writer makes.
    fn forged(mut archive: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
        assert_eq!(from.len(), to.len());
        let mut at = 0;
        while let Some(found) = archive[at..].windows(from.len()).position(|window| window == from) {
            archive[at + found..at + found + to.len()].copy_from_slice(to);
            at += found + to.len();
        }
        archive
    }

    fn unpacked(archive: Vec<u8>, path: Option<&str>) -> Result<Vec<String>, Refused> {
        let top = tempfile::tempdir().expect("a folder");
        let into = top.path().join("in");
        fs::create_dir(&into).expect("it can be made");
        let end = unzip(Cursor::new(archive), &into, path, Limits::default());
        let outside: Vec<_> = fs::read_dir(top.path()).expect("it is there").flatten().collect();
        assert_eq!(outside.len(), 1, "nothing beside the folder: {outside:?}");
        end.map(|()| names_below(&into))
    }

    fn names_below(folder: &Path) -> Vec<String> {
        fn list(top: &Path, folder: &Path, names: &mut Vec<String>) {
            for entry in fs::read_dir(folder).expect("it can be read").flatten() {
                if entry.path().is_dir() {
                    list(top, &entry.path(), names);
                } else {
                    let path = entry.path();
                    names.push(path.strip_prefix(top).expect("below").to_string_lossy().replace('\\', "/"));
                }
            }
        }
        let mut names = Vec::new();
        list(folder, folder, &mut names);
        names.sort();
        names
    }

    #[test]
    fn the_one_skill_is_taken_from_wherever_it_lies() {
        let at_top = zip_of(&[("SKILL.md", SKILL.as_bytes()), ("scripts/", b""), ("scripts/go.sh", b"echo")]);
        assert_eq!(unpacked(at_top, None), Ok(vec!["SKILL.md".to_owned(), "scripts/go.sh".to_owned()]));
        let deep = zip_of(&[
            ("repo-1a2b/README.md", b"hi"),
            ("repo-1a2b/skills/demo/SKILL.md", SKILL.as_bytes()),
            ("repo-1a2b/skills/demo/a/SKILL.md", b"an example inside"),
            ("repo-1a2b/skills/demo/.clawhub/origin.json", b"{}"),
            ("__MACOSX/repo-1a2b/._SKILL.md", b"x"),
        ]);
        assert_eq!(unpacked(deep, None), Ok(vec!["SKILL.md".to_owned(), "a/SKILL.md".to_owned()]));
        let with = |name: &'static str| zip_of(&[("r/SKILL.md", SKILL.as_bytes()), (name, b"x")]);
        for top in ["r/.git/hooks/post-checkout", "r/.svn/entries", "r/.ClawHub/origin.json", "r/.hg", "r/.git"] {
            assert_eq!(unpacked(with(top), None), Ok(vec!["SKILL.md".to_owned()]), "{top}");
        }
        for deep in ["r/a/.git/config", "r/scripts/.svn/run.sh", "r/a/.GIT", "r/b/.clawhub/origin.json"] {
            assert_eq!(unpacked(with(deep), None), Err(Refused::BadName(deep.to_owned())));
        }
        let two = || zip_of(&[("r/one/SKILL.md", SKILL.as_bytes()), ("r/two/SKILL.md", SKILL.as_bytes())]);
        assert_eq!(unpacked(two(), None), Err(Refused::ManySkills(vec!["r/one".to_owned(), "r/two".to_owned()])));
        assert_eq!(unpacked(two(), Some("two/")), Ok(vec!["SKILL.md".to_owned()]));
        assert_eq!(unpacked(two(), Some("three")), Err(Refused::NoSuchFolder("three".to_owned())));
        assert_eq!(unpacked(zip_of(&[("README.md", b"hi")]), None), Err(Refused::NoSkill));
        assert!(matches!(unpacked(b"PK no".to_vec(), None), Err(Refused::NotAZip(_))));
    }

    #[test]
    fn row_18_names_that_lead_elsewhere_or_clash_refuse_the_whole() {
        let with = |name: &str| zip_of(&[("SKILL.md", SKILL.as_bytes()), (name, b"x")]);
        for name in ["../evil", "a/../../evil", "/etc/evil", "C:/evil", "a\\b", "..\\evil", "a/.."] {
            let end = unpacked(with(name), None);
            assert!(matches!(end, Err(Refused::Outside(_))), "{name}: {end:?}");
        }
        for name in [
            "a//b",
            "./a",
            "nul",
            "docs/COM1.txt",
            "end.",
            "end ",
            "a\u{202e}b",
            "a\u{200b}",
            "a\nb",
            "wh?t",
            "git~1",
            "a/LONGNA~12.TXT",
            "a\u{fe0f}",
            "a\u{200d}b",
            "a\u{e0101}",
        ] {
            let end = unpacked(with(name), None);
            assert!(matches!(end, Err(Refused::BadName(_))), "{name:?}: {end:?}");
        }
        for (one, other) in [("a/x", "A/y"), ("Read.md", "READ.md"), ("é", "e\u{301}"), ("ｆ", "f"), ("b", "b/c")] {
            let end = unpacked(zip_of(&[("SKILL.md", SKILL.as_bytes()), (one, b"x"), (other, b"y")]), None);
            assert!(matches!(end, Err(Refused::Clash(..))), "{one} {other}: {end:?}");
        }
        let raw = forged(with("latin-name"), b"latin-name", b"latin\xff\xfe\xfame");
        assert!(matches!(unpacked(raw, None), Err(Refused::BadName(_))));
        let deep = with("1/2/3/4/5/6/7/8/9/x");
        assert!(matches!(unpacked(deep, None), Err(Refused::TooDeep(_))));
        let twice = forged(zip_of(&[("SKILL.md", b"a"), ("SKILX.md", b"b")]), b"SKILX.md", b"SKILL.md");
        assert!(unpacked(twice, None).is_err());
    }

    #[test]
    fn row_18_links_passwords_and_archives_inside_refuse_the_whole() {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        writer.start_file("SKILL.md", SimpleFileOptions::default()).expect("a file");
        writer.write_all(SKILL.as_bytes()).expect("its content");
        writer.add_symlink("link", "/etc/passwd", SimpleFileOptions::default()).expect("a link");
        let link = writer.finish().expect("an archive").into_inner();
        assert_eq!(unpacked(link, None), Err(Refused::Link("link".to_owned())));

        // Bit 0 of the flags in both headers says that an entry has a password.
        let mut locked = zip_of(&[("SKILL.md", SKILL.as_bytes())]);
        for (signature, flags) in [(b"PK\x03\x04", 6), (b"PK\x01\x02", 8)] {
            let at = locked.windows(4).position(|window| window == signature).expect("a header");
            locked[at + flags] |= 1;
        }
        assert_eq!(unpacked(locked, None), Err(Refused::Encrypted("SKILL.md".to_owned())));

        let inner = zip_of(&[("x", b"y")]);
        for name in ["more.zip", "MORE.TAR.GZ", "picture.png"] {
            let end = unpacked(zip_of(&[("SKILL.md", SKILL.as_bytes()), (name, &inner)]), None);
            assert_eq!(end, Err(Refused::Nested(name.to_owned())));
        }
        assert!(unpacked(zip_of(&[("SKILL.md", SKILL.as_bytes()), ("form.docx", &inner)]), None).is_ok());
        // A device: the file type of the Unix mode in the central directory (its upper 16 bits at offset 38).
        let mut device = zip_of(&[("SKILL.md", SKILL.as_bytes())]);
        let at = device.windows(4).position(|window| window == b"PK\x01\x02").expect("a header");
        device[at + 5] = 3;
        device[at + 40..at + 42].copy_from_slice(&0o020_666_u16.to_le_bytes());
        assert_eq!(unpacked(device, None), Err(Refused::NotAFile("SKILL.md".to_owned())));
    }

    #[test]
    fn row_19_bombs_are_refused_and_what_a_header_says_of_the_size_is_not_believed() {
        let zeros = vec![0_u8; 9 << 20];
        let end = unpacked(zip_of(&[("SKILL.md", SKILL.as_bytes()), ("zeros", &zeros)]), None);
        assert_eq!(end, Err(Refused::Bomb("zeros".to_owned())));
        // The same with a header that promises three bytes.
        let mut liar = zip_of(&[("SKILL.md", SKILL.as_bytes()), ("zeros", &zeros)]);
        let size = u32::try_from(zeros.len()).expect("small").to_le_bytes();
        liar = forged(liar, &size, &3_u32.to_le_bytes());
        assert!(unpacked(liar, None).is_err());
        let many: Vec<String> = (0..1_100).map(|n| format!("f{n}")).collect();
        let mut files: Vec<(&str, &[u8])> = many.iter().map(|name| (name.as_str(), b"x".as_slice())).collect();
        files.push(("SKILL.md", SKILL.as_bytes()));
        assert_eq!(unpacked(zip_of(&files), None), Err(Refused::TooMany(1_000)));
        let mut noise = vec![0_u8; 11 << 20];
        let mut state = 7_u32;
        for byte in &mut noise {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *byte = (state >> 24) as u8;
        }
        let end = unpacked(zip_of(&[("SKILL.md", SKILL.as_bytes()), ("noise", &noise)]), None);
        assert_eq!(end, Err(Refused::TooLarge("noise".to_owned(), 10 << 20)));
        // A flipped byte in the packed data.
        let mut flipped = zip_of(&[("SKILL.md", SKILL.as_bytes()), ("noise", &noise[..4096])]);
        let at = flipped.windows(5).position(|window| window == b"noise").expect("its header") + 500;
        flipped[at] ^= 0xff;
        assert!(matches!(unpacked(flipped, None), Err(Refused::NotAZip(_))));
    }

    #[cfg(unix)]
    #[test]
    fn row_19_an_archive_of_a_million_entries_is_not_opened() {
        /// Counts what is read of it.
        struct Counted(Cursor<Vec<u8>>, Rc<Cell<usize>>);
        impl Read for Counted {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                let got = self.0.read(bytes)?;
                self.1.set(self.1.get() + got);
                Ok(got)
            }
        }
        impl Seek for Counted {
            fn seek(&mut self, to: io::SeekFrom) -> io::Result<u64> {
                self.0.seek(to)
            }
        }
        // Entries without a body, all of one byte of name, and the end of the directory that counts them.
        let entry = [b"PK\x01\x02".as_slice(), &[0; 24], &[1, 0], &[0; 16], b"a"].concat();
        let mut archive = entry.repeat(60_000);
        let size = u32::try_from(archive.len()).expect("a small archive").to_le_bytes();
        archive.extend([b"PK\x05\x06".as_slice(), &[0; 4], &[0x60, 0xea], &[0x60, 0xea], &size, &[0; 6]].concat());
        let (read, into) = (Rc::default(), tempfile::tempdir().expect("a folder"));
        let counted = Counted(Cursor::new(archive), Rc::clone(&read));
        let refused = unzip(counted, into.path(), None, Limits::default()).expect_err("too many entries");
        assert_eq!(refused, Refused::TooMany(1_000));
        assert!(read.get() < 300_000, "{} bytes were read of it", read.get());
        assert!(refused.text(Lang::En).contains("1000"), "{}", refused.text(Lang::En));
        assert!(refused.text(Lang::Zh).contains("1000"), "{}", refused.text(Lang::Zh));
    }

    #[test]
    fn a_folder_is_copied_without_its_history_and_links_refuse_it() {
        use std::os::unix::fs::{PermissionsExt as _, symlink};
        let top = tempfile::tempdir().expect("a folder");
        let from = top.path().join("from");
        fs::create_dir_all(from.join("scripts")).expect("folders");
        fs::create_dir_all(from.join(".git")).expect("folders");
        fs::write(from.join("SKILL.md"), SKILL).expect("a file");
        fs::write(from.join(".git/config"), "x").expect("a file");
        fs::write(from.join("scripts/go.sh"), "echo").expect("a file");
        fs::set_permissions(from.join("scripts/go.sh"), fs::Permissions::from_mode(0o4755)).expect("a mode");
        let copied = |name: &str| {
            let into = top.path().join(name);
            fs::create_dir(&into).expect("a folder");
            copy(&from, &into, None, Limits::default()).map(|()| into)
        };
        let into = copied("good").expect("it is fine");
        assert_eq!(names_below(&into), ["SKILL.md", "scripts/go.sh"]);
        let mode = fs::metadata(into.join("scripts/go.sh")).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700, "no set-uid bit, nothing for others");

        fs::hard_link(from.join("SKILL.md"), from.join("twin")).expect("a link");
        assert!(matches!(copied("hard"), Err(Refused::Link(_))));
        fs::remove_file(from.join("twin")).expect("it is there");
        symlink("/etc/passwd", from.join("soft")).expect("a link");
        assert_eq!(copied("soft"), Err(Refused::Link("soft".to_owned())));
        fs::remove_file(from.join("soft")).expect("it is there");
        let made = std::process::Command::new("mkfifo").arg(from.join("pipe")).status();
        if made.is_ok_and(|status| status.success()) {
            assert_eq!(copied("pipe"), Err(Refused::NotAFile("pipe".to_owned())));
        }
    }
}
