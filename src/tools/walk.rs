//! Walks the files below a folder, in a stable order, without ever following a link.

use std::ffi::OsString;

use cap_fs_ext::DirExt;
use cap_std::fs::{Dir, FileType};

use super::{
    ToolError,
    broker::{Broker, Place},
};

/// Folders that are stepped over unless they are asked for: what is in them is made by machines.
pub const SKIPPED: &[&str] = &[".git", "node_modules", "target"];
/// Deeper folders are not entered: each level holds one open handle.
const DEEPEST: usize = 64;
/// Entries looked at, at most.
const MOST_ENTRIES: usize = 200_000;

/// What a visitor says after an entry.
pub enum Next {
    /// Go on.
    On,
    /// That is enough.
    Enough,
}

/// One entry on the way.
pub struct Entry<'a> {
    /// The folder that holds it.
    pub dir: &'a Dir,
    /// Its name in `dir`.
    pub name: &'a OsString,
    /// Its path from where the walk began, with `/` between.
    pub path: &'a str,
    /// What it is, links not followed.
    pub kind: FileType,
}

/// Visits all below the folder `place`, files of a folder and its folders in order of their names. Returns whether it saw everything
/// that is not skipped.
///
/// # Errors
/// What the visitor says, or that the turn was stopped.
pub fn walk(
    files: &Broker,
    place: &Place<'_>,
    everything: bool,
    mut visit: impl FnMut(&Entry<'_>) -> Result<Next, ToolError>,
) -> Result<bool, ToolError> {
    let mut whole = true;
    let mut seen = 0usize;
    let mut stack = vec![Level::of(files.open_dir(place)?, String::new())];
    while let Some(level) = stack.last_mut() {
        let Some((name, kind)) = level.entries.pop() else {
            stack.pop();
            continue;
        };
        files.go_on()?;
        seen += 1;
        if seen > MOST_ENTRIES {
            return Ok(false);
        }
        if is_top(level) && files.hides(place, &name) {
            continue;
        }
        let shown = name.to_string_lossy();
        if kind.is_dir() && !everything && SKIPPED.contains(&shown.as_ref()) {
            continue;
        }
        let path = if level.path.is_empty() { shown.into_owned() } else { format!("{}/{shown}", level.path) };
        if let Next::Enough = visit(&Entry { dir: &level.dir, name: &name, path: &path, kind })? {
            return Ok(whole);
        }
        if kind.is_dir() {
            // A folder that was swapped for a link meanwhile, or may not be read, is left out.
            match level.dir.open_dir_nofollow(&name) {
                Ok(dir) if stack.len() < DEEPEST => stack.push(Level::of(dir, path)),
                _ => whole = false,
            }
        }
    }
    Ok(whole)
}

/// Whether it is the folder where the walk began.
fn is_top(level: &Level) -> bool {
    level.path.is_empty()
}

struct Level {
    dir: Dir,
    path: String,
    /// The next one last.
    entries: Vec<(OsString, FileType)>,
}

impl Level {
    fn of(dir: Dir, path: String) -> Self {
        let mut entries: Vec<_> = dir.entries().map_or_else(
            |_| Vec::new(),
            |entries| {
                let known = entries.flatten().filter_map(|entry| Some((entry.file_name(), entry.file_type().ok()?)));
                known.take(MOST_ENTRIES).collect()
            },
        );
        entries.sort_by(|a, b| b.0.cmp(&a.0));
        Self { dir, path, entries }
    }
}
