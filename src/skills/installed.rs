//! `data/skills`: how a skill gets there and away again, so that a kill at any place leaves either the old one or the new
//! one, whole.
//!
//! Everything is made in `.staging`, on the same file system, written through to the disk, and put into its place by one
//! rename (an exchange, where one of that name is there already). What a kill leaves in `.staging` is swept by the next
//! command. One command at a time: they share a lock. The loader never looks into folders that begin with a dot.

use std::{
    fs::{self, File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use super::{
    grants,
    pinned::{self, FileSum, Lock, Origin},
};
use crate::os;

/// The folder of installed skills, held by one command.
#[derive(Debug)]
pub struct Installed {
    dir: PathBuf,
    /// Freed by the system when the process dies.
    _lock: File,
}

/// A folder in which a skill is made.
#[derive(Debug)]
pub struct Staged {
    top: PathBuf,
}

impl Staged {
    /// Where the skill's files go; made and empty.
    pub fn skill(&self) -> PathBuf {
        self.top.join("skill")
    }

    /// A place for a download or a checkout, not made.
    pub fn beside(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    /// Empties the place of the skill's files.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn clear(&self) -> io::Result<()> {
        fs::remove_dir_all(self.skill())?;
        os::create_private_dir(&self.skill())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // What cannot be removed now is swept later.
        let _ = fs::remove_dir_all(&self.top);
    }
}

/// Why the folder is not ours to work in.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another command works in it.
    #[error("another command is installing skills")]
    Held,
    /// The file system refused.
    #[error("{0}")]
    Io(String),
}

impl Installed {
    /// Takes the folder (made if need be), and sweeps what a killed command left.
    ///
    /// # Errors
    /// [`HoldError`].
    pub fn hold(dir: &Path) -> Result<Self, HoldError> {
        let wrong = |error: io::Error| HoldError::Io(format!("{}: {error}", dir.display()));
        os::create_private_dir(&dir.join(STAGING)).map_err(wrong)?;
        let path = dir.join(STAGING).join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(wrong)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(HoldError::Held),
            Err(fs::TryLockError::Error(error)) => return Err(wrong(error)),
        }
        let installed = Self { dir: dir.to_owned(), _lock: lock };
        installed.sweep().map_err(wrong)?;
        Ok(installed)
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where the skill of that name is or would be.
    pub fn place(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// A new folder to make a skill in.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn stage(&self) -> io::Result<Staged> {
        let mut bytes = [0_u8; 8];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let name: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let staged = Staged { top: self.dir.join(STAGING).join(name) };
        os::create_private_dir(&staged.skill())?;
        Ok(staged)
    }

    /// Puts a finished skill into its place under `name`, instead of one that is there, with its notes. What the owner
    /// granted other files than these ends; whether there was such a grant.
    ///
    /// # Errors
    /// Those of the file system; the old one is in its place then.
    pub fn put(&self, staged: &Staged, name: &str, mut origin: Origin, files: &[FileSum]) -> io::Result<bool> {
        origin.pin_to(files);
        origin.write(&staged.skill())?;
        os::sync_dir(&staged.skill())?;
        let place = self.place(name);
        if place.symlink_metadata().is_ok() {
            self.exchange(&staged.skill(), &place, name)?;
        } else {
            fs::rename(staged.skill(), &place)?;
        }
        os::sync_dir(&self.dir)?;
        // A grant is bound to its files: one that a kill leaves here is void by itself.
        let ended = grants::end_unless(&self.dir, &place, &pinned::sums(files))?;
        Lock::refresh(&self.dir)?;
        Ok(ended)
    }

    /// Puts `fresh` into `place`; the old one goes to where `fresh` was, or to `.staging/<name>.old`.
    fn exchange(&self, fresh: &Path, place: &Path, name: &str) -> io::Result<()> {
        #[cfg(any(target_os = "linux", target_os = "macos"))]
        {
            use rustix::fs::{CWD, RenameFlags, renameat_with};
            match renameat_with(CWD, fresh, CWD, place, RenameFlags::EXCHANGE) {
                Ok(()) => return Ok(()),
                // A file system that cannot: in two steps, see `sweep`.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::NOTSUP) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.exchange_in_two(fresh, place, name)
    }

    /// Between the two steps there is none in its place; [`Installed::sweep`] puts the old one back then.
    fn exchange_in_two(&self, fresh: &Path, place: &Path, name: &str) -> io::Result<()> {
        let old = self.old(name);
        fs::rename(place, &old)?;
        fs::rename(fresh, place).inspect_err(|_| {
            // The old one goes back at once if it can, else with the next sweep.
            let _ = fs::rename(&old, place);
        })?;
        // The rest is done by the next sweep if it cannot be done now.
        let _ = fs::remove_dir_all(&old);
        Ok(())
    }

    fn old(&self, name: &str) -> PathBuf {
        self.dir.join(STAGING).join(format!("{name}{OLD}"))
    }

    /// Takes an installed skill away: out of its place at once, then its files.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn remove(&self, name: &str) -> io::Result<()> {
        let staged = self.stage()?;
        fs::rename(self.place(name), staged.beside("gone"))?;
        os::sync_dir(&self.dir)?;
        drop(staged);
        Lock::refresh(&self.dir)
    }

    /// The installed skills by folder name, each with its notes. Folders without notes were not installed.
    pub fn list(&self) -> Vec<(String, Origin)> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let mut list: Vec<(String, Origin)> = entries
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok().filter(|name| !name.starts_with('.'))?;
                Some((name, Origin::read(&entry.path())?))
            })
            .collect();
        list.sort_by(|a, b| a.0.cmp(&b.0));
        list
    }

    /// Whether the skill of that name is what was installed.
    pub fn state(&self, name: &str) -> pinned::State {
        pinned::state(&self.place(name))
    }

    /// Ends what a killed command began: an old skill whose place is empty goes back, everything else in `.staging` goes.
    fn sweep(&self) -> io::Result<()> {
        for entry in fs::read_dir(self.dir.join(STAGING))? {
            let entry = entry?;
            let path = entry.path();
            if !entry.file_type()?.is_dir() {
                continue;
            }
            let name = entry.file_name().into_string().unwrap_or_default();
            if let Some(name) = name.strip_suffix(OLD).filter(|name| !name.is_empty()) {
                let place = self.place(name);
                if place.symlink_metadata().is_err() {
                    fs::rename(&path, &place)?;
                    continue;
                }
            }
            fs::remove_dir_all(&path)?;
        }
        Lock::refresh(&self.dir)
    }
}

const STAGING: &str = ".staging";
const OLD: &str = ".old";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::skills::pinned::State;

    fn made(installed: &Installed, text: &str) -> Staged {
        let staged = installed.stage().expect("a folder");
        fs::write(staged.skill().join("SKILL.md"), text).expect("a file");
        staged
    }

    fn put(installed: &Installed, text: &str) {
        let staged = made(installed, text);
        let files = pinned::files(&staged.skill()).expect("it can be read");
        installed.put(&staged, "demo", Origin::default(), &files).expect("it can be put");
    }

    fn text(installed: &Installed) -> String {
        fs::read_to_string(installed.place("demo").join("SKILL.md")).expect("it is there")
    }

    fn left(installed: &Installed) -> Vec<String> {
        let entries = fs::read_dir(installed.dir().join(STAGING)).expect("it is there").flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name != "lock").collect()
    }

    #[test]
    fn a_skill_is_put_replaced_and_removed_without_leftovers() {
        let top = tempfile::tempdir().expect("a folder");
        let dir = top.path().join("skills");
        let installed = Installed::hold(&dir).expect("it is free");
        assert!(matches!(Installed::hold(&dir), Err(HoldError::Held)));
        put(&installed, "one");
        assert_eq!((text(&installed).as_str(), installed.state("demo")), ("one", State::Untouched));
        put(&installed, "two");
        assert_eq!((text(&installed).as_str(), installed.state("demo")), ("two", State::Untouched));
        assert_eq!(Lock::read(&dir).skills.len(), 1);
        assert_eq!(left(&installed), [""; 0]);
        installed.remove("demo").expect("it can be removed");
        assert!(!installed.place("demo").exists());
        assert_eq!((Lock::read(&dir).skills.len(), left(&installed).len()), (0, 0));
        assert!(installed.remove("demo").is_err());
    }

    #[test]
    fn row_21_a_grant_ends_when_other_files_are_put_and_only_then() {
        let top = tempfile::tempdir().expect("a folder");
        let dir = top.path().join("skills");
        let installed = Installed::hold(&dir).expect("it is free");
        let put = |more: Option<&str>| {
            let staged = made(&installed, "one");
            if let Some(more) = more {
                fs::write(staged.skill().join(more), "x").expect("a file");
            }
            let files = pinned::files(&staged.skill()).expect("it can be read");
            installed.put(&staged, "demo", Origin::default(), &files).expect("it can be put")
        };
        let skill = crate::skills::load::blank(
            "demo".to_owned(),
            installed.place("demo").join("SKILL.md"),
            crate::skills::Tier::Managed,
        );
        let grant = || {
            let files = pinned::files(&installed.place("demo")).expect("it can be read");
            grants::give(&dir, &skill, grants::Asks::default(), pinned::sums(&files), 7).expect("it can be written");
        };
        let ended = || grants::Grants::read(&dir).of(&dir, &installed.place("demo")).map(|grant| grant.ended);
        assert!(!put(None));
        grant();
        assert!(!put(None), "the same files");
        assert_eq!(ended(), Some(false));
        for more in ["new.md", ".env"] {
            assert!(put(Some(more)), "{more}");
            assert_eq!(ended(), Some(true));
            assert!(!put(None), "it has ended already, and the old files do not bring it back");
            assert_eq!(ended(), Some(true));
            grant();
        }
    }

    #[test]
    fn whatever_a_kill_leaves_is_the_old_one_or_the_new_one() {
        let top = tempfile::tempdir().expect("a folder");
        let dir = top.path().join("skills");
        // Killed while the new one was made: a half-written folder lies about.
        let installed = Installed::hold(&dir).expect("it is free");
        put(&installed, "one");
        std::mem::forget(made(&installed, "tw"));
        drop(installed);
        let installed = Installed::hold(&dir).expect("it is free");
        assert_eq!((text(&installed).as_str(), left(&installed).len()), ("one", 0));
        // Killed after the exchange: the old one lies where the new one was made.
        let staged = made(&installed, "two");
        installed.exchange(&staged.skill(), &installed.place("demo"), "demo").expect("it can be exchanged");
        std::mem::forget(staged);
        drop(installed);
        let installed = Installed::hold(&dir).expect("it is free");
        assert_eq!((text(&installed).as_str(), left(&installed).len()), ("two", 0));
        // Without an exchange: killed between the two steps, and after the second.
        fs::rename(installed.place("demo"), installed.old("demo")).expect("the first step");
        drop(installed);
        let installed = Installed::hold(&dir).expect("it is free");
        assert_eq!((text(&installed).as_str(), left(&installed).len()), ("two", 0));
        let staged = made(&installed, "three");
        fs::rename(installed.place("demo"), installed.old("demo")).expect("the first step");
        fs::rename(staged.skill(), installed.place("demo")).expect("the second step");
        std::mem::forget(staged);
        drop(installed);
        let installed = Installed::hold(&dir).expect("it is free");
        assert_eq!((text(&installed).as_str(), left(&installed).len()), ("three", 0));
        let staged = made(&installed, "four");
        installed.exchange_in_two(&staged.skill(), &installed.place("demo"), "demo").expect("both steps");
        assert_eq!(text(&installed), "four");
    }
}
