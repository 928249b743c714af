//! The gateway's own folder: its lock, the file that tells the command line where it runs, and its token.

use std::{
    fs::{File, OpenOptions},
    io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use crate::{http::config::is_strong_token, os, secrets::Secret, store::BootId};

/// `data/`, held by one process at a time.
#[derive(Debug)]
pub struct DataDir {
    dir: PathBuf,
    /// Held as long as this lives; the system frees it when the process dies.
    _lock: File,
}

/// `data/run.json`: who holds the folder and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFile {
    /// The process.
    pub pid: u32,
    /// Its start.
    pub boot: String,
    /// Where it listens, e.g. `http://127.0.0.1:3002`; empty until it does.
    pub url: String,
}

/// Why the folder could not be taken.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process holds it.
    #[error("another crawfish holds {dir}")]
    Held {
        /// The folder.
        dir: String,
        /// What it says of itself, if it can be read.
        by: Option<RunFile>,
    },
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// The file or folder.
        path: String,
        /// Why.
        source: io::Error,
    },
}

impl DataDir {
    /// Makes the folder (mode 0700) if need be and takes its lock.
    ///
    /// # Errors
    /// [`DataDirError`]; nothing is held then.
    pub fn take(dir: &Path) -> Result<Self, DataDirError> {
        let io_error = |path: &Path| {
            let path = path.display().to_string();
            move |source| DataDirError::Io { path, source }
        };
        os::create_private_dir(dir).map_err(io_error(dir))?;
        let path = dir.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(&path).map_err(io_error(&path))?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { dir: dir.to_owned(), _lock: lock }),
            Err(std::fs::TryLockError::WouldBlock) => {
                Err(DataDirError::Held { dir: dir.display().to_string(), by: RunFile::read(dir) })
            }
            Err(std::fs::TryLockError::Error(source)) => Err(io_error(&path)(source)),
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.dir
    }

    /// Says where this process listens.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn announce(&self, boot: &BootId, url: &str) -> Result<(), DataDirError> {
        let run = RunFile { pid: std::process::id(), boot: boot.as_str().to_owned(), url: url.to_owned() };
        let path = self.dir.join(RunFile::NAME);
        let text = serde_json::to_vec(&run).unwrap_or_default();
        os::write_private(&path, &text).map_err(|source| DataDirError::Io { path: path.display().to_string(), source })
    }

    /// Takes the announcement back.
    pub fn withdraw(&self) {
        // It may not be there; a stale one is told from a live one by the lock.
        let _ = std::fs::remove_file(self.dir.join(RunFile::NAME));
    }

    /// The gateway's token, made at the first start: 32 random bytes in hex, mode 0600.
    ///
    /// # Errors
    /// Those of the file system; a token too weak to be ours is one too.
    pub fn token(&self) -> Result<Secret, DataDirError> {
        let path = self.dir.join(TOKEN);
        let io_error = |source| DataDirError::Io { path: path.display().to_string(), source };
        match read_token(&self.dir) {
            Ok(token) => return Ok(token),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io_error(error)),
        }
        let mut bytes = [0_u8; 32];
        getrandom::fill(&mut bytes).map_err(|error| io_error(io::Error::other(error.to_string())))?;
        let token: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        os::write_private(&path, format!("{token}\n").as_bytes()).map_err(io_error)?;
        Ok(Secret::new(token))
    }
}

/// The token's file.
pub const TOKEN: &str = "token";

/// Reads the token of the gateway that keeps its state in `dir`.
///
/// # Errors
/// Those of the file system; `InvalidData` for a token too weak to be ours.
pub fn read_token(dir: &Path) -> io::Result<Secret> {
    let text = std::fs::read_to_string(dir.join(TOKEN))?;
    let text = text.trim();
    if !is_strong_token(text) {
        let what = "this is not a gateway token (32 random bytes in hex); delete the file and a new one is made";
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(Secret::new(text))
}

impl RunFile {
    /// The file's name.
    pub const NAME: &str = "run.json";

    /// What the process that keeps its state in `dir` says of itself. It may be gone: only the lock tells.
    pub fn read(dir: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(dir.join(Self::NAME)).ok()?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_holds_the_folder_and_the_next_is_told_which() {
        let top = tempfile::tempdir().expect("a temporary folder");
        let dir = top.path().join("data");
        let boot = BootId::generate();
        let held = DataDir::take(&dir).expect("it is free");
        held.announce(&boot, "http://127.0.0.1:1").expect("it can be written");
        match DataDir::take(&dir) {
            Err(DataDirError::Held { by: Some(by), .. }) => {
                assert_eq!((by.pid, by.url.as_str()), (std::process::id(), "http://127.0.0.1:1"));
            }
            other => panic!("expected Held, got {other:?}"),
        }
        drop(held);
        DataDir::take(&dir).expect("it is free again");
    }

    #[test]
    fn the_token_is_made_once_and_private() {
        let top = tempfile::tempdir().expect("a temporary folder");
        let dir = DataDir::take(&top.path().join("data")).expect("it is free");
        let first = dir.token().expect("it is made");
        assert_eq!(first.expose().len(), 64);
        assert_eq!(dir.token().expect("it is read").expose(), first.expose());
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(dir.path().join(TOKEN)).expect("it is there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        std::fs::write(dir.path().join(TOKEN), "changeme\n").expect("it can be written");
        assert!(dir.token().is_err());
    }
}
