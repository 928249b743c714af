//! The files of the notes: what is there, what is in them, and how one is written. Never follows a link, never waits for a
//! pipe, and whoever looks at a file sees the old text or the new, whole.

use std::{
    ffi::OsString,
    io::{self, Read as _, Write as _},
    path::{Component, Path},
};

use cap_fs_ext::{DirExt as _, FollowSymlinks, MetadataExt as _, OpenOptionsFollowExt as _, OpenOptionsSyncExt as _};
use cap_std::{
    ambient_authority,
    fs::{Dir, DirEntry, Metadata, OpenOptions},
};

use crate::{
    store::note::{Area, FOLDER, MEMORY},
    workspace,
};

/// The most bytes of a note.
pub const LARGEST: u64 = 1024 * 1024;
/// The most notes of a workspace.
const MOST_NOTES: usize = 200_000;
/// Deeper folders are not entered: each level holds one open handle.
const DEEPEST: usize = 32;
/// A file that was changed less long ago than this may change again without looking otherwise (coarse clocks).
const SETTLED_MS: i64 = 2_000;
/// A folder with so many files is looked at by two threads.
const MANY: usize = 500;
/// How often an append is begun anew because somebody else wrote.
const TRIES: usize = 16;

/// A note that is there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Its path in the workspace, with `/`.
    pub path: String,
    /// What it looks like; 0 = too new to be sure.
    pub stamp: i64,
}

/// What is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scan {
    /// The notes.
    pub notes: Vec<Seen>,
    /// Files named like notes that are none: links, files with several names, too large, odd names.
    pub left_out: usize,
}

/// Looks at every note: names, sizes, times. Quarantine is not looked at. A missing folder holds none.
///
/// # Errors
/// When the workspace or the folder of notes cannot be read; no note may be taken for deleted then.
pub fn scan(workspace: &Path, now_ms: i64) -> io::Result<Scan> {
    let mut scan = Scan::default();
    let root = match Dir::open_ambient_dir(workspace, ambient_authority()) {
        Ok(root) => root,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(scan),
        Err(error) => return Err(error),
    };
    match root.symlink_metadata(MEMORY) {
        Ok(metadata) => scan.take(MEMORY.to_owned(), &metadata, now_ms),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    // A link instead of the folder is not followed, and neither is one below it.
    match root.symlink_metadata(FOLDER) {
        Ok(metadata) if metadata.is_dir() => scan.walk(root.open_dir_nofollow(FOLDER)?, FOLDER, 0, now_ms)?,
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    Ok(scan)
}

impl Scan {
    fn walk(&mut self, dir: Dir, path: &str, depth: usize, now_ms: i64) -> io::Result<()> {
        let (mut folders, mut files): (Vec<OsString>, Vec<(String, DirEntry)>) = Default::default();
        for entry in dir.entries()? {
            let entry = entry?;
            let kind = entry.file_type()?;
            let name = entry.file_name();
            if kind.is_dir() {
                folders.push(name);
                continue;
            }
            let shown = name.to_str().filter(|name| !name.chars().any(char::is_control));
            let Some(shown) = shown else {
                self.left_out += usize::from(name.to_string_lossy().to_lowercase().ends_with(".md"));
                continue;
            };
            let path = format!("{path}/{shown}");
            if Area::of(&path).is_none() {
                continue;
            }
            files.push((path, entry));
        }
        let looks = look_at(&files);
        for ((path, _), look) in files.into_iter().zip(looks) {
            match look {
                _ if self.notes.len() >= MOST_NOTES => self.left_out += 1,
                Ok(metadata) => self.take(path, &metadata, now_ms),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        for name in folders {
            let shown = name.to_str().filter(|name| !name.chars().any(char::is_control));
            let Some(path) = shown.map(|name| format!("{path}/{name}")) else { continue };
            // A folder whose notes would be nobody's (quarantine) is not entered.
            let is_chats = path == "memory/chats";
            if depth >= DEEPEST || (!is_chats && Area::of(&format!("{path}/x.md")).is_none()) {
                continue;
            }
            match dir.open_dir_nofollow(&name) {
                Ok(below) => self.walk(below, &path, depth + 1, now_ms)?,
                // Gone, or swapped for a link meanwhile.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Err(error),
                Err(_) => {}
            }
        }
        Ok(())
    }

    fn take(&mut self, path: String, metadata: &Metadata, now_ms: i64) {
        if is_plain(metadata) {
            self.notes.push(Seen { path, stamp: stamp(metadata, now_ms) });
        } else {
            self.left_out += 1;
        }
    }
}

/// What the files look like, links not followed, in their order. Of many a second thread looks at half: a search waits for
/// this, and ten thousand take a dozen milliseconds.
fn look_at(files: &[(String, DirEntry)]) -> Vec<io::Result<Metadata>> {
    let look = |files: &[(String, DirEntry)]| files.iter().map(|(_, entry)| entry.metadata()).collect::<Vec<_>>();
    if files.len() < MANY {
        return look(files);
    }
    let (first, second) = files.split_at(files.len() / 2);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| look(second));
        let mut looks = look(first);
        looks.extend(other.join().unwrap_or_else(|_| second.iter().map(|(_, entry)| entry.metadata()).collect()));
        looks
    })
}

fn is_plain(metadata: &Metadata) -> bool {
    metadata.is_file() && metadata.nlink() <= 1 && metadata.len() <= LARGEST
}

fn stamp(metadata: &Metadata, now_ms: i64) -> i64 {
    let modified = metadata.modified().ok().map(cap_std::time::SystemTime::into_std);
    let since = modified.and_then(|at| at.duration_since(std::time::UNIX_EPOCH).ok()).unwrap_or_default();
    let age = now_ms - i64::try_from(since.as_millis()).unwrap_or(i64::MAX);
    if (-SETTLED_MS..SETTLED_MS).contains(&age) {
        return 0;
    }
    let mut mixed = 0xcbf2_9ce4_8422_2325u64;
    for part in [metadata.len(), since.as_nanos() as u64, changed(metadata), metadata.ino()] {
        mixed = (mixed.rotate_left(23) ^ part).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
    (mixed >> 1) as i64 | 1
}

/// When anything about the file was changed last; a writer can set the other time as it likes.
#[cfg(unix)]
fn changed(metadata: &Metadata) -> u64 {
    use cap_std::fs::MetadataExt as _;
    (metadata.ctime() as u64).wrapping_mul(1_000_000_000).wrapping_add(metadata.ctime_nsec() as u64)
}

#[cfg(not(unix))]
fn changed(_: &Metadata) -> u64 {
    0
}

/// The text of a note; `None` when it is gone or no plain, readable text of a sensible size (any more).
pub fn read(workspace: &Path, path: &str) -> Option<String> {
    let (dir, name) = folder_of(workspace, path, false).ok()?;
    let bytes = bytes_of(&dir, name).ok()??;
    workspace::decode(&bytes)
}

/// The folder of a path below the workspace, no link on the way, and the file's name.
fn folder_of<'a>(workspace: &Path, path: &'a str, make: bool) -> io::Result<(Dir, &'a str)> {
    let (folders, name) = path.rsplit_once('/').unwrap_or(("", path));
    if make {
        std::fs::create_dir_all(workspace)?;
    }
    let mut dir = Dir::open_ambient_dir(workspace, ambient_authority())?;
    for part in Path::new(folders).components() {
        let Component::Normal(part) = part else { return Err(io::ErrorKind::InvalidInput.into()) };
        let mut next = dir.open_dir_nofollow(part);
        if make && next.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
            match dir.create_dir(part) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => next = dir.open_dir_nofollow(part),
            }
        }
        dir = next?;
    }
    Ok((dir, name))
}

/// The bytes of a plain file; `None` when there is none.
fn bytes_of(dir: &Dir, name: &str) -> io::Result<Option<Vec<u8>>> {
    let mut options = OpenOptions::new();
    options.read(true).nonblock(true).follow(FollowSymlinks::No);
    let file = match dir.open_with(name, &options) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let metadata = file.metadata()?;
    if !is_plain(&metadata) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no plain file of at most 1 MiB with one name"));
    }
    let mut bytes = Vec::with_capacity(metadata.len() as usize);
    file.take(LARGEST + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

/// Adds `entry` at the end of a note, which begins with `head` when it is new. Says whether it was added: an entry that
/// stands there already is not. What others write meanwhile stays, and nothing is ever half there.
///
/// # Errors
/// When the file is no text that can be added to, would be larger than a note may be, or cannot be written.
pub fn append(workspace: &Path, path: &str, head: &str, entry: &str) -> io::Result<bool> {
    let (dir, name) = folder_of(workspace, path, true)?;
    let entry = entry.trim_end();
    for _ in 0..TRIES {
        let before = bytes_of(&dir, name)?;
        let mut text = match &before {
            None => head.to_owned(),
            Some(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => text.to_owned(),
                Err(_) => workspace::decode(bytes)
                    .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the note that is there is no text"))?,
            },
        };
        if format!("\n{text}\n").replace("\r\n", "\n").contains(&format!("\n{entry}\n")) {
            return Ok(false);
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(entry);
        text.push('\n');
        if text.len() as u64 > LARGEST {
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, "the note would be larger than 1 MiB"));
        }
        match replace(&dir, name, text.as_bytes(), before.as_deref()) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            done => return done.map(|()| true),
        }
    }
    Err(io::Error::new(io::ErrorKind::ResourceBusy, "others keep writing to it"))
}

/// Puts `bytes` in place of `before`: a new file beside it, synced, then renamed over it.
///
/// # Errors
/// `AlreadyExists` when something else is there by now.
fn replace(dir: &Dir, name: &str, bytes: &[u8], before: Option<&[u8]>) -> io::Result<()> {
    let mut random = [0u8; 8];
    getrandom::fill(&mut random).map_err(|error| io::Error::other(error.to_string()))?;
    let temporary = format!(".crawfish-{:016x}.tmp", u64::from_ne_bytes(random));
    let write = || -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).follow(FollowSymlinks::No);
        let mut file = dir.open_with(&temporary, &options)?;
        file.write_all(bytes)?;
        if before.is_some() {
            let permissions = dir.symlink_metadata(name)?.permissions();
            if permissions.readonly() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is marked read-only"));
            }
            file.set_permissions(permissions)?;
        }
        file.sync_all()?;
        if bytes_of(dir, name)?.as_deref() != before {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        channel_api::crash_point!("file.written");
        dir.rename(&temporary, dir, name)
    };
    if let Err(error) = write() {
        // What is left of a failed try is worth nothing; that it cannot be removed changes no answer.
        let _ = dir.remove_file(&temporary);
        return Err(error);
    }
    // The name is durable only with its folder. Systems that cannot sync a folder do not need it.
    if let Ok(folder) = dir.open(".") {
        let _ = folder.sync_all();
    }
    Ok(())
}

/// The names of the files of a folder in the workspace that end in `.md`, in order.
pub fn names_in(workspace: &Path, folder: &str) -> Vec<String> {
    let Ok((dir, _)) = folder_of(workspace, &format!("{folder}/x"), false) else { return Vec::new() };
    let Ok(entries) = dir.entries() else { return Vec::new() };
    let mut names: Vec<String> = entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| name.ends_with(".md"))
        .collect();
    names.sort();
    names
}

/// Removes a file of the workspace. That it is gone already is no error.
///
/// # Errors
/// When it cannot be removed.
pub fn remove(workspace: &Path, path: &str) -> io::Result<()> {
    let (dir, name) = folder_of(workspace, path, false)?;
    match dir.remove_file(name) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const LATER: i64 = 4_000_000_000_000;

    fn paths(scan: &Scan) -> Vec<&str> {
        let mut paths: Vec<&str> = scan.notes.iter().map(|seen| seen.path.as_str()).collect();
        paths.sort_unstable();
        paths
    }

    #[test]
    fn notes_are_seen_and_nothing_else() {
        let home = tempfile::tempdir().expect("a folder");
        let dir = home.path();
        assert_eq!(scan(&dir.join("nowhere"), LATER).expect("nothing"), Scan::default());
        assert_eq!(scan(dir, LATER).expect("nothing"), Scan::default());
        for path in [
            "MEMORY.md",
            "memory/2026-03-22-伪指令问题修复总结.md",
            "memory/项目/进展.MD",
            "memory/chats/a.b/x.md",
            "memory/shared/y.md",
            "memory/quarantine/z.md",
            "memory/data.json",
            "USER.md",
            "memory/chats/loose.md",
        ] {
            let path = dir.join(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, "text").expect("writable");
        }
        let seen = scan(dir, LATER).expect("readable");
        let notes = [
            "MEMORY.md",
            "memory/2026-03-22-伪指令问题修复总结.md",
            "memory/chats/a.b/x.md",
            "memory/shared/y.md",
            "memory/项目/进展.MD",
        ];
        assert_eq!((paths(&seen), seen.left_out), (notes.to_vec(), 0));
        assert!(seen.notes.iter().all(|seen| seen.stamp != 0));
        assert_eq!(scan(dir, LATER).expect("readable"), seen);
        // One that was written just now is not trusted to stay as it is.
        let modified = fs::metadata(dir.join("MEMORY.md")).and_then(|facts| facts.modified()).expect("a time");
        let at = modified.duration_since(std::time::UNIX_EPOCH).expect("after").as_millis() as i64;
        assert!(scan(dir, at + 5).expect("readable").notes.iter().all(|seen| seen.stamp == 0));
        fs::write(dir.join("MEMORY.md"), "texts").expect("writable");
        assert_ne!(scan(dir, LATER).expect("readable").notes, seen.notes);
    }

    #[cfg(unix)]
    #[test]
    fn links_and_giants_are_left_out() {
        let home = tempfile::tempdir().expect("a folder");
        let dir = home.path().join("workspace");
        fs::create_dir_all(dir.join("memory")).expect("a folder");
        fs::create_dir(home.path().join("outside")).expect("a folder");
        fs::write(home.path().join("outside/secret.md"), "secret").expect("writable");
        std::os::unix::fs::symlink("../../outside/secret.md", dir.join("memory/link.md")).expect("a link");
        std::os::unix::fs::symlink("../../outside", dir.join("memory/folder")).expect("a link");
        fs::hard_link(home.path().join("outside/secret.md"), dir.join("MEMORY.md")).expect("a link");
        fs::write(dir.join("memory/giant.md"), vec![b'a'; LARGEST as usize + 1]).expect("writable");
        let seen = scan(&dir, LATER).expect("readable");
        assert_eq!((paths(&seen), seen.left_out), (vec![], 3));
        for path in
            ["memory/link.md", "memory/folder/secret.md", "MEMORY.md", "memory/giant.md", "../outside/secret.md"]
        {
            assert_eq!(read(&dir, path), None, "{path}");
            append(&dir, path, "", "x").expect_err(path);
        }
        assert_eq!(fs::read_to_string(home.path().join("outside/secret.md")).expect("there"), "secret");
        fs::remove_dir_all(dir.join("memory")).expect("removable");
        std::os::unix::fs::symlink("../outside", dir.join("memory")).expect("a link");
        assert_eq!(paths(&scan(&dir, LATER).expect("readable")), [""; 0]);
    }

    #[test]
    fn appends_lose_nothing_and_repeat_nothing() {
        let home = tempfile::tempdir().expect("a folder");
        let (dir, path) = (home.path(), "memory/2026-03-22.md");
        assert!(append(dir, path, "# 2026-03-22\n\n", "- first\n").expect("writable"));
        assert!(!append(dir, path, "# 2026-03-22\n\n", "- first").expect("writable"));
        fs::write(dir.join("memory/b.md"), "no line end").expect("writable");
        assert!(append(dir, "memory/b.md", "# x\n", "- more").expect("writable"));
        assert_eq!(read(dir, "memory/b.md").as_deref(), Some("no line end\n- more\n"));
        fs::write(dir.join("memory/gbk.md"), encoding_rs::GBK.encode("用旧编码写的笔记，里面提到了高铁车票。\n").0)
            .expect("writable");
        assert!(append(dir, "memory/gbk.md", "", "- 新的").expect("writable"));
        assert_eq!(read(dir, "memory/gbk.md").as_deref(), Some("用旧编码写的笔记，里面提到了高铁车票。\n- 新的\n"));
        fs::write(dir.join("memory/binary.md"), b"a\0b\xff").expect("writable");
        append(dir, "memory/binary.md", "", "- x").expect_err("no text");
        assert_eq!(read(dir, path).as_deref(), Some("# 2026-03-22\n\n- first\n"));
        let left = fs::read_dir(dir.join("memory")).expect("there").flatten();
        assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().ends_with(".tmp")));
    }
}
