//! How many entries a ZIP container can have, counted before anything opens it: whoever reads its directory keeps something
//! for each of them, and a few megabytes can hold a million.

use std::io::{self, Read, Seek, SeekFrom};

/// What each entry of a directory begins with (APPNOTE 4.3.12).
const MARK: &[u8] = b"PK\x01\x02";

/// Whether the directory of a container can hold no more than about `most` entries. Reads it from its beginning, no
/// further than it takes to tell, and goes back there.
///
/// # Errors
/// Those of reading.
pub fn is_short(mut container: impl Read + Seek, most: usize) -> io::Result<bool> {
    container.seek(SeekFrom::Start(0))?;
    let short = marks_are_few(&mut container, most)?;
    container.seek(SeekFrom::Start(0))?;
    Ok(short)
}

fn marks_are_few(mut bytes: impl Read, most: usize) -> io::Result<bool> {
    let mut window = vec![0u8; 64 * 1024];
    let (mut kept, mut found) = (0, 0);
    loop {
        let got = bytes.read(&mut window[kept..])?;
        if got == 0 {
            return Ok(true);
        }
        let filled = kept + got;
        found += window[..filled].windows(MARK.len()).filter(|four| *four == MARK).count();
        // What is packed in it may hold the mark as well.
        if found > most.saturating_mul(2) {
            return Ok(false);
        }
        kept = filled.min(MARK.len() - 1);
        window.copy_within(filled - kept..filled, 0);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn a_long_directory_is_seen_before_it_is_read() {
        let entry = [MARK, &[7; 42]].concat();
        assert!(is_short(Cursor::new(entry.repeat(4_000)), 4_000).expect("it is read"));
        let long = entry.repeat(90_000);
        let mut container = Cursor::new(&long);
        assert!(!is_short(&mut container, 4_000).expect("it is read"));
        assert_eq!(container.position(), 0);
        // No more of it is read than it takes.
        let mut rest = long.as_slice();
        assert!(!marks_are_few(&mut rest, 4_000).expect("it is read"));
        assert!(long.len() - rest.len() < 8_001 * entry.len() + (64 << 10));
    }

    #[test]
    fn marks_that_two_reads_cut_apart_are_counted() {
        struct Dripping<'a>(&'a [u8], usize);
        impl Read for Dripping<'_> {
            fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
                let some = self.1.min(bytes.len()).min(self.0.len());
                (&self.0[..some]).read_exact(&mut bytes[..some])?;
                self.0 = &self.0[some..];
                Ok(some)
            }
        }
        let entry = [MARK, &[7; 42]].concat().repeat(21);
        for each in 1..50 {
            assert!(!marks_are_few(Dripping(&entry, each), 10).expect("it is read"), "{each}");
            assert!(marks_are_few(Dripping(&entry, each), 11).expect("it is read"), "{each}");
        }
    }
}
