//! The hash of a program's file, to which an approval is bound: read in pieces, and remembered for as long as the file is the
//! same one.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, Read as _},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

use sha2::{Digest as _, Sha256};

use crate::os::{self, FileStamp};

/// A file larger than this is known by its stamp alone: no program is, and hashing it would keep people waiting.
const MOST_BYTES: u64 = 512 << 20;
/// The most files remembered.
const MOST: usize = 256;

/// The hashes of files that were read. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Hashes(Arc<Mutex<HashMap<FileStamp, String>>>);

impl Hashes {
    /// The SHA-256 of a file in hex; empty when it cannot be read. Waits for the disk, and takes no more memory than a piece.
    pub fn of(&self, file: &Path) -> String {
        self.read(file).unwrap_or_default()
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        // What is no plain file may never end, and opening it may wait for ever.
        if !std::fs::metadata(path)?.is_file() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut file = File::open(path)?;
        let stamp = os::stamp(&file.metadata()?);
        if let Some(known) = stamp.and_then(|stamp| self.known().get(&stamp).cloned()) {
            return Ok(known);
        }
        let size = file.metadata()?.len();
        if size > MOST_BYTES {
            return Ok(format!("larger than {} MiB: {stamp:?}", MOST_BYTES >> 20));
        }
        let mut hash = Sha256::new();
        let mut piece = vec![0; 64 * 1024];
        let mut left = MOST_BYTES;
        loop {
            let read = file.read(&mut piece)?;
            if read == 0 {
                break;
            }
            left = left.checked_sub(read as u64).ok_or(io::ErrorKind::InvalidData)?;
            hash.update(&piece[..read]);
        }
        let hash: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        // What changed while it was read is read again the next time.
        if let Some(stamp) = stamp.filter(|stamp| file.metadata().is_ok_and(|now| os::stamp(&now) == Some(*stamp))) {
            let mut known = self.known();
            if known.len() >= MOST {
                known.clear();
            }
            known.insert(stamp, hash.clone());
        }
        Ok(hash)
    }

    fn known(&self) -> std::sync::MutexGuard<'_, HashMap<FileStamp, String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_hashed_once_and_again_when_it_changed() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("program");
        std::fs::write(&path, "abc").expect("written");
        let hashes = Hashes::default();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hashes.of(&path), abc);
        assert_eq!(hashes.known().len(), usize::from(cfg!(unix)));
        assert_eq!(hashes.of(&path), abc);
        // Another file under the same name, of the same size and with the old time on it.
        let modified = std::fs::metadata(&path).and_then(|facts| facts.modified()).expect("its time");
        std::fs::write(&path, "abd").expect("written");
        File::options().write(true).open(&path).and_then(|file| file.set_modified(modified)).expect("set back");
        assert_ne!(hashes.of(&path), abc);
        assert_eq!(hashes.of(dir.path()), "", "a folder is no program");
        assert_eq!(hashes.of(Path::new("/nowhere/at/all")), "");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_huge_file_and_an_endless_one_take_no_time() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("huge");
        File::create(&path).and_then(|file| file.set_len(1 << 40)).expect("a hole");
        let hashes = Hashes::default();
        let (one, again) = (hashes.of(&path), hashes.of(&path));
        assert!(one.starts_with("larger than 512 MiB") && one == again, "{one}");
        assert_eq!(hashes.of(Path::new("/dev/zero")), "");
    }
}
