//! The one way from a tool to the disk: it turns what a model wrote into a place inside an allowed folder, or refuses.
//!
//! The boundary is the kernel's, not string comparison: every open goes through a directory handle (`cap-std`, on Linux
//! `openat2` with `RESOLVE_BENEATH`), so a folder swapped for a link between check and use leads nowhere. What a path is
//! compared with decides only *which* folder is meant. Writes walk down one component at a time without following any
//! link, and land by rename. Sources of the rules: security.md §3.3 row 17, §3.4.

use std::{
    ffi::{OsStr, OsString},
    fmt,
    io::{self, Read, Write},
    path::{Component, Path, PathBuf},
};

use cap_fs_ext::{DirExt, FollowSymlinks, MetadataExt, OpenOptionsFollowExt, OpenOptionsSyncExt};
use cap_std::{
    ambient_authority,
    fs::{Dir, File, Metadata, OpenOptions},
};
use tokio_util::sync::CancellationToken;

use super::{ToolContext, ToolError, ToolOutput, truncate};
use crate::policy::{Asker, Role};

/// The most bytes a file that is written or edited may have.
pub const LARGEST_WRITE: u64 = 10 * 1024 * 1024;

/// Runs `work` on a thread that may wait for the disk, with the folders of `ctx` opened, and bounds its text.
/// `how` tells the model how to see what was cut.
///
/// # Errors
/// What `work` says, or that the call was stopped.
pub async fn on_disk<W>(ctx: &ToolContext, how: &'static str, work: W) -> Result<ToolOutput, ToolError>
where
    W: FnOnce(&Broker) -> Result<String, ToolError> + Send + 'static,
{
    // When the caller gives up and drops this future, the thread is told at its next check and writes nothing more.
    let cancel = ctx.cancel.child_token();
    let context = ToolContext { cancel: cancel.clone(), ..ctx.clone() };
    let _given_up = cancel.drop_guard();
    let text = tokio::task::spawn_blocking(move || work(&Broker::open(&context)?))
        .await
        .map_err(|error| ToolError::Abort(format!("a file tool ended unexpectedly: {error}")))??;
    debug_assert!(!text.is_empty(), "a tool's text is never empty");
    Ok(ToolOutput::from(truncate::head_and_tail(&text, ctx.output_chars, how)))
}

/// A file that an answer names, opened.
#[derive(Debug)]
pub struct Outgoing {
    /// Read from its beginning.
    pub file: std::fs::File,
    /// Its own name, without folders.
    pub name: String,
    /// Its size in bytes when it was opened.
    pub size: u64,
}

/// Opens a file that an answer names, in the workspace or in what else may be read, under the same rules as `read`: no
/// link leads out, only a plain file is opened, and the owner's notes go to the owner alone. Waits for the disk.
///
/// # Errors
/// Why not, in words for the owner.
pub fn open_to_send(workspace: &Path, readable: &[PathBuf], written: &str, asker: Asker) -> Result<Outgoing, String> {
    let found = || {
        let files = Broker::of(workspace, readable, CancellationToken::new(), 0, Notes::of(asker, false))?;
        let place = files.place(written)?;
        let (file, metadata) = files.open_file(&place)?;
        let name = place.inner.file_name().map(|name| visible(&name.to_string_lossy())).unwrap_or_default();
        Ok(Outgoing { file: file.into_std(), name, size: metadata.len() })
    };
    found().map_err(|error: ToolError| error.to_string())
}

/// The allowed folders of one call, opened.
pub struct Broker {
    /// The workspace first; only it may be written.
    roots: Vec<Root>,
    home: Option<PathBuf>,
    cancel: CancellationToken,
    /// The most characters of the result.
    pub output_chars: usize,
    notes: Notes,
}

/// What file tools may do with MEMORY.md and memory/ of the workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notes {
    /// All.
    Open,
    /// Nothing is written: the turn has read things from outside, and what it remembers goes through quarantine.
    ReadOnly,
    /// They are the owner's and others read along: the notes of the chat are reached by the memory tools.
    Hidden,
}

impl Notes {
    fn of(asker: Asker, outside: bool) -> Self {
        match asker.role {
            Role::Owner if asker.direct && !outside => Self::Open,
            Role::Owner if asker.direct => Self::ReadOnly,
            // Their workspace is another one, which holds no notes.
            Role::Stranger | Role::Member => Self::Open,
            Role::Owner | Role::Trusted => Self::Hidden,
        }
    }
}

struct Root {
    /// What people and models see instead of the host's path.
    name: String,
    /// As it was configured, and as the file system has it (they differ when links lead to it).
    paths: [Option<PathBuf>; 2],
    dir: Dir,
}

/// A place in an allowed folder. Shows as the path that a tool takes back: relative to the workspace, or led by the
/// folder's name.
#[derive(Clone)]
pub struct Place<'a> {
    root: &'a Root,
    is_workspace: bool,
    inner: PathBuf,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let inner = visible(&self.inner.to_string_lossy());
        match (self.is_workspace, inner.is_empty()) {
            (true, true) => f.write_str("."),
            (true, false) => f.write_str(&inner),
            (false, true) => f.write_str(&self.root.name),
            (false, false) => write!(f, "{}/{inner}", self.root.name),
        }
    }
}

/// The file on this machine that a path of a call means, links resolved; `None` where it means none. Blocks for as long
/// as opening the folders takes.
pub fn file_meant(ctx: &ToolContext, written: &str) -> Option<PathBuf> {
    let broker = Broker::open(ctx).ok()?;
    let place = broker.place(written).ok()?;
    let root = place.root.paths.iter().rev().flatten().next()?;
    std::fs::canonicalize(root.join(&place.inner)).ok()
}

/// The files on this machine that paths of earlier calls meant, links resolved; `None` where one means none (any more).
/// Blocks for as long as opening the folders takes.
pub fn files_meant(workspace: &Path, readable: &[PathBuf], written: &[String]) -> Vec<Option<PathBuf>> {
    let Ok(broker) = Broker::of(workspace, readable, CancellationToken::new(), 0, Notes::Open) else {
        return vec![None; written.len()];
    };
    let meant = |written: &String| {
        let place = broker.place(written).ok()?;
        let root = place.root.paths.iter().rev().flatten().next()?;
        std::fs::canonicalize(root.join(&place.inner)).ok()
    };
    written.iter().map(meant).collect()
}

impl Broker {
    /// Opens the allowed folders. A workspace that does not exist yet is made (its parent must exist); a readable folder
    /// that is missing is left out.
    ///
    /// # Errors
    /// [`ToolError::TellModel`] when the workspace cannot be opened.
    pub fn open(ctx: &ToolContext) -> Result<Self, ToolError> {
        Self::of(
            &ctx.workspace,
            &ctx.readable,
            ctx.cancel.clone(),
            ctx.output_chars,
            Notes::of(ctx.call.asker, ctx.call.outside),
        )
    }

    fn of(
        workspace: &Path,
        readable: &[PathBuf],
        cancel: CancellationToken,
        output_chars: usize,
        notes: Notes,
    ) -> Result<Self, ToolError> {
        let mut roots: Vec<Root> = Vec::with_capacity(1 + readable.len());
        for (n, path) in std::iter::once(workspace).chain(readable.iter().map(PathBuf::as_path)).enumerate() {
            let mut opened = Dir::open_ambient_dir(path, ambient_authority());
            if n == 0 && opened.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                // Whether this or another call made it is told by the second try.
                let _ = std::fs::create_dir(path);
                opened = Dir::open_ambient_dir(path, ambient_authority());
            }
            let dir = match opened {
                Ok(dir) => dir,
                Err(error) if n == 0 => {
                    return tell(format!(
                        "The workspace folder cannot be opened ({}). No file tool works until the operator mends that.",
                        error.kind()
                    ));
                }
                Err(_) => continue,
            };
            let base = if n == 0 {
                "workspace".to_owned()
            } else {
                path.file_name().map_or_else(|| "folder".to_owned(), |name| visible(&name.to_string_lossy()))
            };
            let taken = |name: &str| roots.iter().any(|root| root.name == name);
            let name = (1..)
                .map(|n| if n == 1 { base.clone() } else { format!("{base}-{n}") })
                .find(|name| !taken(name))
                .expect("the numbers do not run out");
            roots.push(Root { name, paths: [Some(path.to_owned()), std::fs::canonicalize(path).ok()], dir });
        }
        Ok(Self { roots, home: std::env::home_dir(), cancel, output_chars, notes })
    }

    /// Fires when the turn is stopped, for readers that ask by themselves.
    pub fn cancel_token(&self) -> CancellationToken {
        self.cancel.clone()
    }

    /// Whether the turn was stopped.
    ///
    /// # Errors
    /// [`ToolError::Abort`] when it was.
    pub fn go_on(&self) -> Result<(), ToolError> {
        if self.cancel.is_cancelled() { Err(ToolError::Abort("stopped".to_owned())) } else { Ok(()) }
    }

    /// The place a path means, for reading: the first candidate that exists.
    ///
    /// # Errors
    /// [`ToolError::TellModel`]: outside, or no path at all.
    pub fn place(&self, written: &str) -> Result<Place<'_>, ToolError> {
        let places = self.candidates(written)?;
        if self.notes == Notes::Hidden && places.iter().any(Place::is_note) {
            return tell(NOTES_ARE_ELSEWHERE.to_owned());
        }
        Ok(Self::first(places))
    }

    /// The place of a note, whoever asks: the caller decides who may see it.
    ///
    /// # Errors
    /// As [`Broker::place`].
    pub fn note(&self, written: &str) -> Result<Place<'_>, ToolError> {
        Ok(Self::first(self.candidates(written)?))
    }

    fn first(mut places: Vec<Place<'_>>) -> Place<'_> {
        let found = places.iter().position(|place| place.inner.as_os_str().is_empty() || place.exists()).unwrap_or(0);
        places.swap_remove(found)
    }

    /// The places a path can mean, the likeliest first; never none.
    fn candidates(&self, written: &str) -> Result<Vec<Place<'_>>, ToolError> {
        let text = written.trim();
        let text = text.strip_prefix("file://").unwrap_or(text);
        if text.is_empty() {
            return tell("`path` is empty. Give a file's path, relative to the workspace.".to_owned());
        }
        if text.contains('\0') || text.len() > 4096 {
            return tell("`path` is no valid path: it holds a zero byte or is longer than 4,096 bytes.".to_owned());
        }
        let path = match (text.strip_prefix('~'), &self.home) {
            (Some(rest), Some(home)) if rest.is_empty() || rest.starts_with(['/', '\\']) => {
                home.join(rest.trim_start_matches(['/', '\\']))
            }
            _ => PathBuf::from(text),
        };
        let place = |n: usize, inner: PathBuf| Place { root: &self.roots[n], is_workspace: n == 0, inner };
        let mut places = Vec::new();
        if path.is_absolute() {
            let Some(path) = flat(&path) else { return self.outside(text) };
            for (n, root) in self.roots.iter().enumerate() {
                let inner = root.paths.iter().flatten().find_map(|root| path.strip_prefix(flat(root)?).ok());
                places.extend(inner.map(|inner| place(n, inner.to_owned())));
            }
            // The deepest folder is meant; the workspace wins a tie, for it can be written.
            places.sort_by_key(|place| place.inner.components().count());
        } else {
            let Some(inner) = flat(&path) else { return self.outside(text) };
            let mut parts = inner.components();
            let first = parts.next().map(|part| part.as_os_str().to_string_lossy().into_owned());
            let rest = parts.as_path().to_owned();
            places.push(place(0, inner.clone()));
            let named = self.roots.iter().position(|root| first.as_deref() == Some(&root.name));
            places.extend(named.map(|n| place(n, rest)));
        }
        places.retain(|place| !place.is_systems());
        if places.is_empty() { self.outside(text) } else { Ok(places) }
    }

    fn outside<T>(&self, written: &str) -> Result<T, ToolError> {
        let others: Vec<_> = self.roots[1..].iter().map(|root| format!("`{}`", root.name)).collect();
        let others =
            if others.is_empty() { String::new() } else { format!(", and read only in {}", others.join(", ")) };
        tell(format!(
            "`{}` lies outside the folders you may use. Files can be read and written in the workspace{others}. Use a \
             path relative to the workspace, e.g. `notes.md`; `ls` with path `.` shows what is there.",
            short(written)
        ))
    }

    /// Opens a regular file for reading; links are followed while they stay inside. Never waits for a FIFO.
    ///
    /// # Errors
    /// [`ToolError::TellModel`] for what is missing or is no plain file.
    pub fn open_file(&self, place: &Place<'_>) -> Result<(File, Metadata), ToolError> {
        let before = place.root.dir.metadata(place.path()).map_err(|error| self.explain(place, &error))?;
        plain_file(&before, place)?;
        let mut options = OpenOptions::new();
        options.read(true).nonblock(true);
        let file = place.root.dir.open_with(place.path(), &options).map_err(|error| self.explain(place, &error))?;
        // Asked again of the open file: the name may mean something else by now.
        let metadata = file.metadata().map_err(|error| self.explain(place, &error))?;
        plain_file(&metadata, place)?;
        Ok((file, metadata))
    }

    /// Opens a folder; links are followed while they stay inside.
    ///
    /// # Errors
    /// [`ToolError::TellModel`] for what is missing or is no folder.
    pub fn open_dir(&self, place: &Place<'_>) -> Result<Dir, ToolError> {
        place.root.dir.open_dir(place.path()).map_err(|error| self.explain(place, &error))
    }

    /// The host's path of a folder in the workspace, links resolved, for a program that is started there.
    ///
    /// # Errors
    /// [`ToolError::TellModel`]: outside the workspace, missing, or no folder.
    pub fn workspace_folder(&self, written: &str) -> Result<PathBuf, ToolError> {
        let places = self.candidates(written)?;
        let Some(place) = places.iter().find(|place| place.is_workspace) else {
            return tell(format!("`{}` is no folder of the workspace. Give one inside it.", short(written.trim())));
        };
        // Opened by the handle of the workspace, so that a link that leads out is refused in the usual words.
        drop(self.open_dir(place)?);
        let host = place.root.paths.iter().rev().flatten().next().map(|root| root.join(&place.inner));
        match host {
            Some(host) if place.inner.as_os_str().is_empty() => Ok(host),
            Some(host) => std::fs::canonicalize(&host).map_err(|error| self.explain(place, &error)),
            None => self.outside(written),
        }
    }

    /// Whether an entry of the folder `place` is hidden from this call.
    pub fn hides(&self, place: &Place<'_>, name: &OsStr) -> bool {
        let below = Place { inner: place.inner.join(name), ..place.clone() };
        self.notes == Notes::Hidden && below.is_note()
    }

    /// Whether there is anything at the place.
    pub fn exists(&self, place: &Place<'_>) -> bool {
        place.exists()
    }

    /// Whether the place is a folder (through links that stay inside).
    pub fn is_dir(&self, place: &Place<'_>) -> bool {
        place.root.dir.is_dir(place.path())
    }

    /// What a failed open means, in words that say what to do.
    fn explain(&self, place: &Place<'_>, error: &io::Error) -> ToolError {
        ToolError::TellModel(match error.kind() {
            io::ErrorKind::NotFound => self.not_found(place),
            io::ErrorKind::NotADirectory if place.root.dir.is_file(place.path()) => {
                format!("`{place}` is a file, not a folder. Use `read` for it.")
            }
            io::ErrorKind::NotADirectory => {
                format!("A part of `{place}` is a file, not a folder. Look with `ls` at what is there.")
            }
            // `cap-std` marks an attempt to leave its folder with this kind and no number of the system's.
            io::ErrorKind::PermissionDenied if error.raw_os_error().is_none() => format!(
                "`{place}` is or passes a symbolic link that leads out of the allowed folders (absolute links count as \
                 leading out). It cannot be used; ask the user for a copy inside the workspace."
            ),
            io::ErrorKind::PermissionDenied => {
                format!("The gateway has no permission for `{place}`. Ask the user to change its permissions.")
            }
            kind => format!("`{place}` cannot be opened: {kind}."),
        })
    }

    /// Names the part that is missing and what is there instead.
    fn not_found(&self, place: &Place<'_>) -> String {
        let mut folder = place.inner.parent().unwrap_or(Path::new(""));
        while !folder.as_os_str().is_empty() && !place.root.dir.is_dir(folder) {
            folder = folder.parent().unwrap_or(Path::new(""));
        }
        let wanted = place.inner.strip_prefix(folder).unwrap_or(&place.inner).components().next();
        let wanted = wanted.map(|part| part.as_os_str().to_string_lossy().to_lowercase()).unwrap_or_default();
        let parent = Place { inner: folder.to_owned(), ..place.clone() };
        let mut names: Vec<(u32, String)> = Vec::new();
        if let Ok(entries) = place.root.dir.read_dir(parent.path()) {
            for entry in entries.flatten().take(5000) {
                let name = visible(&entry.file_name().to_string_lossy());
                let closeness = strsim::jaro_winkler(&wanted, &name.to_lowercase());
                let is_dir = entry.file_type().is_ok_and(|kind| kind.is_dir());
                names.push(((closeness * 1000.0) as u32, format!("`{name}{}`", if is_dir { "/" } else { "" })));
            }
        }
        names.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let close: Vec<_> = names.iter().take_while(|(closeness, _)| *closeness >= 750).take(5).collect();
        let shown: Vec<_> = if close.is_empty() { names.iter().take(5).collect() } else { close.clone() };
        let shown: Vec<_> = shown.into_iter().map(|(_, name)| name.as_str()).collect();
        let hint = match (names.is_empty(), close.is_empty()) {
            (true, _) => format!("The folder `{parent}` is empty."),
            (false, true) => format!("The folder `{parent}` holds {} entries, e.g. {}.", names.len(), shown.join(", ")),
            (false, false) => format!("Near it in `{parent}`: {}.", shown.join(", ")),
        };
        format!("`{place}` does not exist. {hint} Use `find` to search by name.")
    }

    /// The slot a path means, for writing: in the workspace, with no link on the way. `make_folders` creates the ones
    /// that are missing.
    ///
    /// # Errors
    /// [`ToolError::TellModel`] when it is outside, read only, or passes something that is no plain folder.
    pub fn slot(&self, written: &str, make_folders: bool) -> Result<Slot, ToolError> {
        let places = self.candidates(written)?;
        let Some(place) = places.into_iter().find(|place| place.is_workspace) else {
            return tell(format!(
                "`{}` can be read but not written. Write inside the workspace instead.",
                short(written.trim())
            ));
        };
        if self.notes != Notes::Open && place.is_note() {
            let text = if self.notes == Notes::Hidden { NOTES_ARE_ELSEWHERE } else { NOTES_WAIT };
            return tell(text.to_owned());
        }
        let shown = place.to_string();
        let Some(name) = place.inner.file_name() else {
            return tell("`path` names the workspace itself. Give the path of a file in it.".to_owned());
        };
        if place.inner.to_string_lossy().chars().any(char::is_control) {
            return tell("`path` has control characters in it. Use a plain name.".to_owned());
        }
        if place.inner.components().any(|part| part.as_os_str().eq_ignore_ascii_case(".git")) {
            return tell(format!("`{shown}` belongs to git's own files, which are not written by hand."));
        }
        let mut dir = place.root.dir.try_clone().map_err(|error| self.explain(&place, &error))?;
        for part in place.inner.parent().unwrap_or(Path::new("")).components() {
            let part = part.as_os_str();
            let mut next = dir.open_dir_nofollow(part);
            if make_folders && next.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound) {
                match dir.create_dir(part) {
                    Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                        return Err(self.explain(&place, &error));
                    }
                    _ => next = dir.open_dir_nofollow(part),
                }
            }
            dir = match next {
                Ok(next) => next,
                Err(error) => {
                    return Err(match dir.symlink_metadata(part) {
                        Ok(metadata) if metadata.is_symlink() => through_link(&shown),
                        _ => self.explain(&place, &error),
                    });
                }
            };
        }
        Ok(Slot { dir, name: name.to_owned(), shown })
    }
}

impl Place<'_> {
    /// The path inside its folder, as the system takes it.
    fn path(&self) -> &Path {
        if self.inner.as_os_str().is_empty() { Path::new(".") } else { &self.inner }
    }

    /// Whether it lies in what the system makes up (`/proc` and the like) though its folder does not.
    fn is_systems(&self) -> bool {
        let made_up = |path: &Path| ["/proc", "/sys", "/dev"].iter().any(|system| path.starts_with(system));
        self.root.paths.iter().flatten().any(|root| made_up(&root.join(&self.inner)) && !made_up(root))
    }

    /// Whether it is MEMORY.md or memory/ of the workspace, or below it.
    fn is_note(&self) -> bool {
        let first = self.inner.components().next();
        let is = |name: &str| first.is_some_and(|part| part.as_os_str().eq_ignore_ascii_case(name));
        self.is_workspace && (is("memory") || is("MEMORY.md"))
    }

    fn exists(&self) -> bool {
        self.root.dir.symlink_metadata(self.path()).is_ok()
    }
}

const NOTES_ARE_ELSEWHERE: &str = "The owner's notes (MEMORY.md, memory/) are not for this chat. Its own notes: memory_search, memory_get, memory_add.";
const NOTES_WAIT: &str = "This turn has read things from outside, so notes are not written by it. Use memory_add: it keeps \
                          the text until the owner accepts it.";

/// A name in an opened folder of the workspace, to be written.
pub struct Slot {
    dir: Dir,
    name: OsString,
    /// The path as a model sees it.
    pub shown: String,
}

/// What a file looked like when it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stamp {
    inode: (u64, u64),
    len: u64,
    modified: Option<std::time::SystemTime>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            inode: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            modified: metadata.modified().ok().map(cap_std::time::SystemTime::into_std),
        }
    }
}

impl Slot {
    /// The plain file that is there, if any.
    ///
    /// # Errors
    /// [`ToolError::TellModel`] when something else is there.
    pub fn existing(&self) -> Result<Option<Metadata>, ToolError> {
        match self.dir.symlink_metadata(&self.name) {
            Ok(metadata) if metadata.is_symlink() => Err(through_link(&self.shown)),
            Ok(metadata) => plain_file(&metadata, &self.shown).map(|()| Some(metadata)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// The whole file and what it looked like; `None` when there is none.
    ///
    /// # Errors
    /// [`ToolError::TellModel`] when it is no plain file or larger than [`LARGEST_WRITE`].
    pub fn read(&self) -> Result<Option<(Vec<u8>, Stamp)>, ToolError> {
        if self.existing()?.is_none() {
            return Ok(None);
        }
        let mut options = OpenOptions::new();
        options.read(true).nonblock(true).follow(FollowSymlinks::No);
        let file = self.dir.open_with(&self.name, &options).map_err(|error| self.failed(&error))?;
        let metadata = file.metadata().map_err(|error| self.failed(&error))?;
        plain_file(&metadata, &self.shown)?;
        let mut bytes = Vec::new();
        file.take(LARGEST_WRITE + 1).read_to_end(&mut bytes).map_err(|error| self.failed(&error))?;
        if bytes.len() as u64 > LARGEST_WRITE {
            return tell(format!("`{}` is larger than 10 MiB, the most that can be edited.", self.shown));
        }
        Ok(Some((bytes, Stamp::of(&metadata))))
    }

    /// Puts `bytes` there: a new file beside it, synced, then renamed over it with the old one's mode. Whoever looks
    /// sees the old content or the new, whole. `unchanged` = refuse when the file no longer looks like that. Says
    /// whether there was a file before.
    ///
    /// # Errors
    /// [`ToolError::TellModel`] when it is too large, or what is there may not be replaced.
    pub fn replace(&self, bytes: &[u8], unchanged: Option<&Stamp>) -> Result<bool, ToolError> {
        if bytes.len() as u64 > LARGEST_WRITE {
            return tell(format!("That is {} bytes; one file can have at most 10 MiB. Write less.", bytes.len()));
        }
        let existing = self.existing()?;
        if existing.as_ref().is_some_and(|metadata| metadata.permissions().readonly()) {
            return tell(format!("`{}` is marked read-only. Ask the user before changing it.", self.shown));
        }
        let mut random = [0u8; 8];
        getrandom::fill(&mut random).map_err(|error| ToolError::Abort(format!("no randomness: {error}")))?;
        let temporary = format!(".crawfish-{:016x}.tmp", u64::from_ne_bytes(random));
        let done = self.write_new(&temporary, bytes, existing.as_ref()).and_then(|()| {
            let now = self.existing().map_err(|_| io::Error::from(io::ErrorKind::AlreadyExists))?;
            if unchanged.is_some_and(|before| now.as_ref().map(Stamp::of).as_ref() != Some(before)) {
                return Err(io::ErrorKind::AlreadyExists.into());
            }
            channel_api::crash_point!("file.written");
            self.dir.rename(&temporary, &self.dir, &self.name)
        });
        if let Err(error) = done {
            // What is left of a failed try is worth nothing; that it cannot be removed changes no answer.
            let _ = self.dir.remove_file(&temporary);
            return Err(self.failed(&error));
        }
        channel_api::crash_point!("file.renamed");
        // The name is durable only with its folder. Systems that cannot sync a folder do not need it.
        if let Ok(folder) = self.dir.open(".") {
            let _ = folder.sync_all();
        }
        Ok(existing.is_some())
    }

    fn write_new(&self, temporary: &str, bytes: &[u8], like: Option<&Metadata>) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).follow(FollowSymlinks::No);
        let mut file = self.dir.open_with(temporary, &options)?;
        file.write_all(bytes)?;
        if let Some(metadata) = like {
            file.set_permissions(metadata.permissions())?;
        }
        file.sync_all()
    }

    fn failed(&self, error: &io::Error) -> ToolError {
        let shown = &self.shown;
        ToolError::TellModel(match error.kind() {
            io::ErrorKind::AlreadyExists => {
                format!("`{shown}` was changed by someone else meanwhile; nothing was written. Read it again first.")
            }
            io::ErrorKind::PermissionDenied => {
                format!("The gateway has no permission to write `{shown}`. Ask the user to change its permissions.")
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                format!("`{shown}` was not written: the disk is full. Tell the user.")
            }
            io::ErrorKind::InvalidFilename => format!("`{shown}` is no valid file name here. Choose a shorter one."),
            kind => format!("`{shown}` cannot be written: {kind}."),
        })
    }
}

/// Refuses all that is not a regular file with one name.
fn plain_file(metadata: &Metadata, shown: &impl fmt::Display) -> Result<(), ToolError> {
    if metadata.is_dir() {
        return tell(format!("`{shown}` is a folder. Use `ls` to see what is in it."));
    }
    if !metadata.is_file() {
        return tell(format!("`{shown}` is no regular file (a pipe, socket or device). It cannot be used."));
    }
    if metadata.nlink() > 1 {
        return tell(format!(
            "`{shown}` has several names (hard links), so it may belong elsewhere. It cannot be used; ask the user for \
             a copy."
        ));
    }
    Ok(())
}

fn through_link(shown: &str) -> ToolError {
    ToolError::TellModel(format!(
        "`{shown}` is or passes a symbolic link; nothing is written through links. Write to the real path in the \
         workspace."
    ))
}

/// The path without `.` and `..`; `None` when `..` would leave its beginning.
fn flat(path: &Path) -> Option<PathBuf> {
    let mut flat = PathBuf::new();
    let mut depth = 0usize;
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                depth = depth.checked_sub(1)?;
                flat.pop();
            }
            Component::Normal(name) => {
                depth += 1;
                flat.push(name);
            }
            Component::Prefix(_) | Component::RootDir => flat.push(part),
        }
    }
    Some(flat)
}

/// A name on one line: control characters are shown, not sent.
pub fn visible(name: &str) -> String {
    if name.chars().any(char::is_control) {
        name.chars().flat_map(|c| if c.is_control() { c.escape_default().collect() } else { vec![c] }).collect()
    } else {
        name.to_owned()
    }
}

/// What a model wrote, short enough to be repeated to it.
pub fn short(text: &str) -> String {
    let shown: String = visible(text).chars().take(200).collect();
    if shown.len() < text.len() && text.chars().count() > 200 { format!("{shown}…") } else { shown }
}

/// A number of bytes for people: `812 B`, `3.4 KiB`, `1.2 MiB`.
pub fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        1_048_576..1_073_741_824 => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

/// An error for the model.
pub(super) fn tell<T>(text: String) -> Result<T, ToolError> {
    Err(ToolError::TellModel(text))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::json;

    use super::{
        super::{fixture::Fixture, ls::ListFolder, read::ReadFile, write::WriteFile},
        *,
    };

    async fn read(house: &Fixture, path: &str) -> Result<String, String> {
        house.run(&ReadFile, json!({"path": path})).await
    }

    async fn write(house: &Fixture, path: &str) -> Result<String, String> {
        house.run(&WriteFile, json!({"path": path, "content": "new\n"})).await
    }

    #[tokio::test]
    async fn every_way_to_name_an_inside_file_is_understood() {
        let house = Fixture::new();
        house.put("notes/a.md", "hello\n");
        let workspace = house.ctx.workspace.display().to_string();
        for path in [
            "notes/a.md".to_owned(),
            " ./notes/a.md\n".to_owned(),
            "notes/../notes//a.md".to_owned(),
            "workspace/notes/a.md".to_owned(),
            format!("{workspace}/notes/a.md"),
            format!("file://{workspace}/notes/../notes/a.md"),
        ] {
            assert_eq!(read(&house, &path).await, Ok("hello\n".to_owned()), "{path}");
        }
        let skill = house.ctx.readable[0].join("weather/SKILL.md").display().to_string();
        for path in ["skills/weather/SKILL.md", &skill] {
            assert_eq!(read(&house, path).await, Ok("# Weather\n".to_owned()), "{path}");
        }
    }

    #[tokio::test]
    async fn a_missing_workspace_is_made_and_an_impossible_one_is_told() {
        let mut house = Fixture::new();
        house.ctx.workspace = house.at("shared");
        assert_eq!(house.run(&ListFolder, json!({})).await, Ok("(`.` is an empty folder)".to_owned()));
        house.ctx.workspace = house.at("no/such/folder");
        let told = house.run(&ListFolder, json!({})).await.expect_err("no parent");
        assert!(told.contains("The workspace folder cannot be opened (entity not found)"), "{told}");
        house.ctx.workspace = house.top.path().join("workspace");
        house.ctx.readable.push(house.at("gone"));
        assert_eq!(house.run(&ListFolder, json!({})).await, Ok("shared/\n".to_owned()));
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_stops_its_thread() {
        let house = Fixture::new();
        let (begun, began) = tokio::sync::oneshot::channel();
        let (say, said) = std::sync::mpsc::channel();
        let call = on_disk(&house.ctx, "", move |files| {
            begun.send(()).expect("the test waits");
            while files.go_on().is_ok() {
                std::thread::yield_now();
            }
            say.send(()).expect("the test waits");
            Ok("stopped".to_owned())
        });
        tokio::select! {
            _ = call => panic!("it ends only when it is given up"),
            begun = began => begun.expect("it began"),
        }
        said.recv_timeout(std::time::Duration::from_secs(60)).expect("the thread was told");
        assert!(!house.ctx.cancel.is_cancelled());
    }

    #[tokio::test]
    async fn the_home_folder_is_expanded() {
        let house = Fixture::new();
        house.put("a.md", "x");
        let mut broker = Broker::open(&house.ctx).expect("it opens");
        broker.home = Some(house.top.path().to_owned());
        assert_eq!(broker.place("~/workspace/a.md").expect("inside").to_string(), "a.md");
        assert_eq!(broker.place("~/skills/weather").expect("inside").to_string(), "skills/weather");
        assert!(broker.place("~/outside/secret.txt").is_err());
        assert!(broker.place("~").is_err());
    }

    #[tokio::test]
    async fn row_17_what_lies_outside_is_refused_without_naming_host_paths() {
        let house = Fixture::new();
        let outside = house.top.path().join("outside/secret.txt").display().to_string();
        let sibling = format!("{}-other/x", house.ctx.workspace.display());
        for path in [
            "../outside/secret.txt",
            "a/../../outside/secret.txt",
            "/etc/passwd",
            "/proc/self/root/etc/passwd",
            "/proc/self/environ",
            "/",
            "..",
            &sibling,
            &outside,
        ] {
            for result in [read(&house, path).await, write(&house, path).await] {
                let told = result.expect_err(path);
                assert!(told.contains("outside the folders you may use"), "{told}");
                assert!(told.contains("`skills`"), "{told}");
                let top = house.top.path().display().to_string();
                assert!(path.contains(&top) || !told.contains(&top), "{told}");
            }
            house.run(&ListFolder, json!({"path": path})).await.expect_err(path);
        }
        assert_eq!(fs::read_to_string(outside).expect("still there"), "TOP SECRET\n");
    }

    #[tokio::test]
    async fn skills_are_read_only() {
        let house = Fixture::new();
        let skill = house.ctx.readable[0].join("weather/SKILL.md").display().to_string();
        let told = write(&house, &skill).await.expect_err("read only");
        assert!(told.contains("can be read but not written"), "{told}");
        assert_eq!(fs::read_to_string(skill).expect("there"), "# Weather\n");
    }

    #[tokio::test]
    async fn a_missing_file_comes_with_its_neighbours() {
        let house = Fixture::new();
        house.put("docs/README.md", "x").put("docs/CHANGELOG.md", "x").put("docs/guide/intro.md", "x");
        let told = read(&house, "docs/Readme.txt").await.expect_err("missing");
        assert!(told.starts_with("`docs/Readme.txt` does not exist. Near it in `docs`: `README.md`"), "{told}");
        let told = read(&house, "doc/README.md").await.expect_err("missing");
        assert!(told.contains("Near it in `.`: `docs/`"), "{told}");
        let told = read(&house, "docs/zzz").await.expect_err("missing");
        assert!(told.contains("holds 3 entries, e.g. `"), "{told}");
        let told = read(&house, "docs").await.expect_err("a folder");
        assert!(told.contains("is a folder. Use `ls`"), "{told}");
        let told = house.run(&ListFolder, json!({"path": "docs/README.md"})).await.expect_err("a file");
        assert!(told.contains("is a file, not a folder. Use `read`"), "{told}");
        let told = write(&house, "docs/README.md/x").await.expect_err("a file on the way");
        assert!(told.contains("is a file, not a folder"), "{told}");
        let told = read(&house, " ").await.expect_err("empty");
        assert!(told.contains("`path` is empty"), "{told}");
        let told = read(&house, "a\0b").await.expect_err("zero byte");
        assert!(told.contains("zero byte"), "{told}");
    }

    #[cfg(unix)]
    mod unix {
        use std::{
            os::unix::{
                fs::{PermissionsExt, symlink},
                net::UnixListener,
            },
            process::Command,
            sync::{
                Arc,
                atomic::{AtomicBool, Ordering},
            },
        };

        use super::*;

        #[tokio::test]
        async fn row_17_links_are_read_inside_and_never_written() {
            let house = Fixture::new();
            house.put("real/a.md", "inside\n");
            symlink("real/a.md", house.at("link.md")).expect("a link");
            symlink("real", house.at("linked")).expect("a link");
            symlink("../outside/secret.txt", house.at("escape.txt")).expect("a link");
            symlink("../outside", house.at("escape")).expect("a link");
            symlink(house.top.path().join("outside"), house.at("absolute")).expect("a link");
            symlink("loop", house.at("loop")).expect("a link");
            symlink("/proc/self/root", house.at("root")).expect("a link");
            assert_eq!(read(&house, "link.md").await, Ok("inside\n".to_owned()));
            assert_eq!(read(&house, "linked/a.md").await, Ok("inside\n".to_owned()));
            for path in ["escape.txt", "escape/secret.txt", "absolute/secret.txt", "root/etc/passwd"] {
                let told = read(&house, path).await.expect_err(path);
                assert!(told.contains("leads out of the allowed folders"), "{told}");
            }
            read(&house, "loop").await.expect_err("a loop");
            house.run(&ListFolder, json!({"path": "escape"})).await.expect_err("out");
            for path in ["link.md", "linked/a.md", "linked/b.md", "escape.txt", "escape/new.txt", "absolute/n", "loop"]
            {
                let told = write(&house, path).await.expect_err(path);
                assert!(told.contains("nothing is written through links"), "{told}");
            }
            assert_eq!(fs::read_to_string(house.at("real/a.md")).expect("there"), "inside\n");
            assert!(!house.top.path().join("outside/new.txt").exists());
        }

        #[tokio::test]
        async fn row_17_pipes_sockets_devices_and_hard_links_are_refused_at_once() {
            let house = Fixture::new();
            let made = Command::new("mkfifo").arg(house.at("pipe")).status().expect("mkfifo runs");
            assert!(made.success());
            let _socket = UnixListener::bind(house.at("socket")).expect("a socket");
            fs::hard_link(house.top.path().join("outside/secret.txt"), house.at("hard.txt")).expect("a hard link");
            for (path, why) in
                [("pipe", "no regular file"), ("socket", "no regular file"), ("hard.txt", "several names (hard links)")]
            {
                for result in [read(&house, path).await, write(&house, path).await] {
                    let told = result.expect_err(path);
                    assert!(told.contains(why), "{told}");
                }
            }
        }

        #[tokio::test]
        async fn a_write_keeps_the_mode_and_leaves_nothing_beside() {
            let house = Fixture::new();
            house.put("run.sh", "old\n");
            fs::set_permissions(house.at("run.sh"), fs::Permissions::from_mode(0o750)).expect("a mode");
            let told = write(&house, "run.sh").await.expect("written");
            assert_eq!(told, "Replaced `run.sh`: 4 bytes, 1 lines.");
            assert_eq!(fs::metadata(house.at("run.sh")).expect("there").permissions().mode() & 0o777, 0o750);
            assert_eq!(write(&house, "a/b/c.md").await, Ok("Created `a/b/c.md`: 4 bytes, 1 lines.".to_owned()));
            assert_eq!(fs::read_to_string(house.at("a/b/c.md")).expect("there"), "new\n");
            fs::set_permissions(house.at("run.sh"), fs::Permissions::from_mode(0o440)).expect("a mode");
            let told = write(&house, "run.sh").await.expect_err("read only");
            assert!(told.contains("marked read-only"), "{told}");
            let mut names: Vec<_> = fs::read_dir(&house.ctx.workspace)
                .expect("a folder")
                .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"))
                .collect();
            names.sort();
            assert_eq!(names, ["a", "run.sh"]);
        }

        #[tokio::test]
        async fn odd_targets_of_a_write_are_refused() {
            let house = Fixture::new();
            house.put(".git/config", "x");
            for (path, why) in [
                (".", "names the workspace itself"),
                (".git/hooks/pre-commit", "git's own files"),
                ("a\nb", "control characters"),
                (&"x".repeat(300), "no valid file name"),
            ] {
                let told = write(&house, path).await.expect_err(path);
                assert!(told.contains(why), "{told}");
            }
            let big = "x".repeat(LARGEST_WRITE as usize + 1);
            let told = house.run(&WriteFile, json!({"path": "big", "content": big})).await.expect_err("too big");
            assert!(told.contains("at most 10 MiB"), "{told}");
            assert!(!house.at("big").exists());
        }

        #[tokio::test]
        async fn a_workspace_that_is_the_whole_disk_still_has_no_system_files() {
            let mut house = Fixture::new();
            house.ctx.workspace = "/".into();
            for path in ["/proc/self/environ", "proc/self/environ", "tmp/../proc/1/cmdline", "/sys/kernel", "dev/zero"]
            {
                let told = read(&house, path).await.expect_err(path);
                assert!(told.contains("outside the folders you may use"), "{told}");
            }
            let inside = house.top.path().join("skills/weather/SKILL.md").display().to_string();
            assert_eq!(read(&house, &inside).await, Ok("# Weather\n".to_owned()));
        }

        /// A file that becomes a pipe between check and open must not make the open wait for a writer.
        #[test]
        fn row_17_a_file_swapped_for_a_pipe_never_blocks() {
            let house = Fixture::new();
            house.put("door", "harmless\n");
            let made = Command::new("mkfifo").arg(house.at("pipe")).status().expect("mkfifo runs");
            assert!(made.success());
            let stop = Arc::new(AtomicBool::new(false));
            let swapper = std::thread::spawn({
                let (door, pipe, spare) = (house.at("door"), house.at("pipe"), house.at("spare"));
                let stop = stop.clone();
                move || {
                    while !stop.load(Ordering::Relaxed) {
                        // The second and third move leave the pipe where the file was for a moment.
                        for (from, to) in [(&door, &spare), (&pipe, &door), (&door, &pipe), (&spare, &door)] {
                            fs::rename(from, to).expect("only this thread renames");
                        }
                    }
                }
            });
            let (done, ended) = std::sync::mpsc::channel();
            let ctx = house.ctx.clone();
            let reader = std::thread::spawn(move || {
                let broker = Broker::open(&ctx).expect("it opens");
                for _ in 0..20_000 {
                    let _ = broker.place("door").and_then(|place| broker.open_file(&place));
                    let _ = broker.slot("door", false).and_then(|slot| slot.read());
                }
                done.send(()).expect("the test waits");
            });
            ended.recv_timeout(std::time::Duration::from_secs(60)).expect("no open waits for a writer");
            stop.store(true, Ordering::Relaxed);
            swapper.join().expect("the swapper ends");
            reader.join().expect("the reader ends");
        }

        /// One thread swaps a folder for a link that leads out, as fast as it can; no read and no write may follow it.
        #[test]
        fn row_17_a_folder_swapped_for_a_link_leads_nowhere() {
            const ROUNDS: usize = 2_000;
            let house = Fixture::new();
            house.put("door/secret.txt", "harmless\n");
            symlink("../outside", house.at("lure")).expect("a link");
            let stop = Arc::new(AtomicBool::new(false));
            let swapper = std::thread::spawn({
                let (door, lure, spare) = (house.at("door"), house.at("lure"), house.at("spare"));
                let stop = stop.clone();
                move || {
                    let mut swaps = 0u64;
                    while !stop.load(Ordering::Relaxed) {
                        let swapped = fs::rename(&door, &spare)
                            .and_then(|()| fs::rename(&lure, &door))
                            .and_then(|()| fs::rename(&door, &lure))
                            .and_then(|()| fs::rename(&spare, &door));
                        swapped.expect("only this thread renames");
                        swaps += 1;
                    }
                    swaps
                }
            });
            let broker = Broker::open(&house.ctx).expect("it opens");
            let (mut inside, mut refused) = (0, 0);
            for round in 0..ROUNDS * 50 {
                if round >= ROUNDS && inside > 0 && refused > 0 {
                    break;
                }
                let read = broker.place("door/secret.txt").and_then(|place| broker.open_file(&place));
                match read {
                    Ok((mut file, _)) => {
                        let mut text = String::new();
                        file.read_to_string(&mut text).expect("text");
                        assert!(text != "TOP SECRET\n", "round {round} read what lies outside");
                        inside += 1;
                    }
                    Err(_) => refused += 1,
                }
                let name = format!("door/new-{}", round % 7);
                let _ = broker.slot(&name, false).and_then(|slot| slot.replace(b"mine", None));
            }
            stop.store(true, Ordering::Relaxed);
            let swaps = swapper.join().expect("the swapper ends");
            assert!(swaps > 0 && inside > 0 && refused > 0, "a race: {swaps} swaps, {inside} in, {refused} refused");
            let outside: Vec<_> = fs::read_dir(house.top.path().join("outside")).expect("a folder").flatten().collect();
            assert_eq!(outside.len(), 1, "{outside:?}");
        }
    }
}
