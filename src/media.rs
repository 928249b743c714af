//! Files that came with messages or go out with answers: kept once by content under a quota, never under a name that
//! someone sent, never whole in memory on their way in.
//!
//! A file is written beside the others as `tmp-…`, synced, and renamed to its SHA-256: what a crash leaves is swept at
//! the next start. What a session may read lies copied in a folder of its own ([`MediaFolder::show`]), so that nobody
//! reads what came in another chat, and a command that changes its copy changes nothing that is still to be sent.
//!
//! A file lives `keep_days` from the last time it came, and for as long as a waiting message or an unsent part needs it.
//! When the room is nearly used up, the oldest that nothing needs go before their time.

use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use async_trait::async_trait;
use bytes::Bytes;
use channel_api::{Clock, Media, MediaError, MediaRef, MediaSource, MediaStream};
use futures_util::StreamExt;
use sha2::{Digest, Sha256};
use tokio::{
    fs::{self, File},
    io::{AsyncReadExt, AsyncWriteExt},
    sync::{Mutex, OnceCell, Semaphore},
};
use tracing::{debug, info, warn};
use ulid::Ulid;

use crate::{
    egress::{Egress, EgressError},
    os,
    secrets::Redactor,
    session::SessionKey,
};

pub mod config;
mod kind;
pub mod pixels;

pub use config::{ByteSize, MediaConfig};

/// The most files that are written at once.
const WRITERS: usize = 16;
/// The longest that a file may take to come.
const KEEP_WITHIN: Duration = Duration::from_secs(120);
/// The longest that a link may take, redirects included.
const FETCH_WITHIN: Duration = Duration::from_secs(30);
const REDIRECTS: usize = 5;
/// Files younger than this are never deleted to make room: a turn that began with them may still run.
const SPARED: Duration = Duration::from_secs(2 * 60 * 60);
/// The most files deleted in one round.
const A_ROUND: usize = 500;
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const INCOMING: &str = "tmp-";
const SESSIONS: &str = "sessions";
/// What was heard in recordings, each under its recording's name.
const HEARD: &str = "heard";
/// The most bytes of what was heard in one.
const MOST_HEARD: u64 = 128 * 1024;
/// The folder of a session's files as tools name it.
pub const SHOWN: &str = "media";

/// The media folder, e.g. `data/media`.
pub struct MediaFolder {
    dir: PathBuf,
    config: MediaConfig,
    egress: Egress,
    clock: Arc<dyn Clock>,
    /// Bytes that are kept, copies included.
    used: OnceCell<Arc<AtomicU64>>,
    writers: Semaphore,
    /// Held while a file gets its name or loses it.
    naming: Mutex<()>,
}

/// What a round of the sweep did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files that went.
    pub files: usize,
    /// There may be more.
    pub more: bool,
}

impl MediaFolder {
    /// The folder is made when the first file comes. `egress` fetches links.
    pub fn new(dir: PathBuf, config: MediaConfig, egress: Egress, clock: Arc<dyn Clock>) -> Self {
        let (used, writers) = (OnceCell::new(), Semaphore::new(WRITERS));
        Self { dir, config, egress, clock, used, writers, naming: Mutex::default() }
    }

    /// Bytes that are kept. The first look also removes what a crash left behind.
    async fn used(&self) -> &Arc<AtomicU64> {
        self.used
            .get_or_init(|| async {
                let dir = self.dir.clone();
                let total = tokio::task::spawn_blocking(move || {
                    let all = files_in(&dir);
                    let left = all.iter().filter(|file| file.incoming);
                    let left = left.filter(|file| std::fs::remove_file(&file.path).is_ok()).count();
                    if left > 0 {
                        info!(files = left, "files that had not fully arrived when the gateway ended were removed");
                    }
                    all.iter().filter(|file| !file.incoming).map(|file| file.len).sum()
                });
                Arc::new(AtomicU64::new(total.await.unwrap_or_default()))
            })
            .await
    }

    /// Whether the room is nearly used up: new files may be refused before the next ordinary sweep.
    pub async fn is_crowded(&self) -> bool {
        self.used().await.load(Ordering::Relaxed) > self.config.quota.0 / 8 * 7
    }

    /// Deletes at most 500 files that have not come again for `keep_days`, and when the room is nearly used up the
    /// oldest others, until a quarter of it is free. Those `in_use` stay.
    pub async fn sweep(&self, in_use: HashSet<String>) -> Swept {
        let crowded = self.is_crowded().await;
        let (used, naming) = (Arc::clone(self.used().await), self.naming.lock().await);
        let (dir, now, keep) = (self.dir.clone(), self.now(), DAY * self.config.keep_days);
        let enough = self.config.quota.0 / 4 * 3;
        let swept = tokio::task::spawn_blocking(move || {
            let age = |file: &Lies| now.duration_since(file.modified).unwrap_or_default();
            let mut files = files_in(&dir);
            files.retain(|file| {
                let name = file.path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
                !file.incoming && !in_use.contains(name) && age(file) > if crowded { SPARED.min(keep) } else { keep }
            });
            files.sort_by_key(|file| file.modified);
            let mut swept = Swept::default();
            for file in files {
                if age(&file) <= keep && used.load(Ordering::Relaxed) <= enough {
                    break;
                }
                if swept.files == A_ROUND {
                    swept.more = true;
                    break;
                }
                if let Err(error) = std::fs::remove_file(&file.path) {
                    warn!(%error, "an old file of a message could not be deleted");
                    break;
                }
                used.fetch_sub(file.len, Ordering::Relaxed);
                swept.files += 1;
                // Empty folders of sessions go with their last file; others refuse.
                let folders = file.path.ancestors().skip(1).take(2);
                folders.take_while(|folder| *folder != dir).for_each(|folder| drop(std::fs::remove_dir(folder)));
            }
            swept
        });
        let swept = swept.await.unwrap_or_default();
        drop(naming);
        if swept.files > 0 {
            info!(files = swept.files, crowded, "old files of messages were deleted");
        }
        swept
    }

    fn now(&self) -> SystemTime {
        UNIX_EPOCH + Duration::from_millis(self.clock.now_ms().try_into().unwrap_or_default())
    }

    /// Takes `bytes` from the quota.
    async fn reserve(&self, bytes: u64) -> Result<Reserved, MediaError> {
        let mut reserved = Reserved { used: Arc::clone(self.used().await), bytes: 0 };
        reserved.grow(bytes, self.config.quota.0)?;
        Ok(reserved)
    }

    /// Where a stored file lies; `None` for what is no name of ours.
    fn place(&self, media: &MediaRef) -> Option<PathBuf> {
        let MediaSource::Stored(name) = &media.source else { return None };
        is_ours(name).then(|| self.dir.join(name))
    }

    /// The folder from which the tools of a session read the files that came in it; may not exist. Its name is
    /// [`SHOWN`].
    pub fn shown(&self, session: &SessionKey) -> PathBuf {
        let hash = hex(&Sha256::digest(session.as_str()));
        self.dir.join(SESSIONS).join(&hash[..32]).join(SHOWN)
    }

    /// Makes a stored file readable in a session and gives the path that its tools take. `None` when it is gone or
    /// there is no room.
    pub async fn show(&self, session: &SessionKey, media: &MediaRef, name: Option<&str>) -> Option<String> {
        self.show_in(self.shown(session), media, name).await
    }

    /// The same in a folder that [`MediaFolder::shown`] gave.
    pub async fn show_in(&self, folder: PathBuf, media: &MediaRef, name: Option<&str>) -> Option<String> {
        let from = self.place(media)?;
        let stem = from.file_name()?.to_str()?.get(..16)?.to_owned();
        let ending = ending(media.mime.as_deref(), name).map(|ending| format!(".{ending}")).unwrap_or_default();
        let shown = format!("{stem}{ending}");
        let to = folder.join(&shown);
        let path = format!("{SHOWN}/{shown}");
        if fs::try_exists(&to).await.unwrap_or(false) {
            self.touch(&to).await;
            return Some(path);
        }
        let size = fs::metadata(&from).await.ok()?.len();
        let reserved = self.reserve(size).await.ok()?;
        let copied = tokio::task::spawn_blocking(move || {
            os::create_private_dir(&folder)?;
            let temporary = folder.join(format!("{INCOMING}{}", Ulid::generate()));
            // The copy has the mode of what it copies.
            let copied = std::fs::copy(&from, &temporary).and_then(|_| std::fs::rename(&temporary, &to));
            copied.inspect_err(|_| drop(std::fs::remove_file(&temporary)))
        });
        match copied.await {
            Ok(Ok(())) => {
                reserved.keep();
                Some(path)
            }
            Ok(Err(error)) => {
                warn!(%error, "a file could not be made readable for its session");
                None
            }
            Err(_) => None,
        }
    }

    /// Keeps a file that is to be sent, unless it is a text of at most a mebibyte with a secret in it.
    ///
    /// # Errors
    /// Why it is not sent, in a sentence.
    pub async fn take_in_to_send(&self, file: std::fs::File, redactor: &Redactor) -> Result<MediaRef, String> {
        const SEARCHED: u64 = 1 << 20;
        let media = self.take_in(file).await.map_err(|error| error.to_string())?;
        let bytes = self.small(&media, SEARCHED).await.unwrap_or_default();
        match redactor.finds(&String::from_utf8_lossy(&bytes)) {
            false => Ok(media),
            true => Err("it holds a secret of this gateway".to_owned()),
        }
    }

    /// The bytes of a stored file of at most `most` bytes.
    pub async fn small(&self, media: &MediaRef, most: u64) -> Option<Vec<u8>> {
        let file = File::open(self.place(media)?).await.ok()?;
        let mut bytes = Vec::new();
        file.take(most + 1).read_to_end(&mut bytes).await.ok()?;
        (bytes.len() as u64 <= most).then_some(bytes)
    }

    /// What was heard in a recording, in whichever chat it came; empty when nobody speaks in it.
    pub async fn heard(&self, media: &MediaRef) -> Option<String> {
        let file = File::open(self.heard_place(media)?).await.ok()?;
        let mut words = String::new();
        file.take(MOST_HEARD).read_to_string(&mut words).await.ok()?;
        Some(words)
    }

    /// Keeps what was heard, for as long as the recording: it is paid for once. Best effort: without it the recording is
    /// heard again.
    pub async fn keep_heard(&self, media: &MediaRef, words: &str) {
        let Some(place) = self.heard_place(media) else { return };
        let Ok(reserved) = self.reserve(words.len() as u64).await else { return };
        let words = words.to_owned();
        let kept = tokio::task::spawn_blocking(move || {
            let folder = place.parent().expect("it is in a folder");
            os::create_private_dir(folder)?;
            let temporary = folder.join(format!("{INCOMING}{}", Ulid::generate()));
            let written = os::create_private(&temporary).and_then(|mut file| {
                std::io::Write::write_all(&mut file, words.as_bytes())?;
                file.sync_all()?;
                std::fs::rename(&temporary, &place)
            });
            written.inspect_err(|_| drop(std::fs::remove_file(&temporary)))
        });
        match kept.await {
            Ok(Ok(())) => reserved.keep(),
            Ok(Err(error)) => warn!(%error, "what was heard in a recording could not be kept"),
            Err(_) => {}
        }
    }

    fn heard_place(&self, media: &MediaRef) -> Option<PathBuf> {
        let MediaSource::Stored(name) = &media.source else { return None };
        is_ours(name).then(|| self.dir.join(HEARD).join(name))
    }

    /// Whether the bytes are still there.
    pub async fn holds(&self, media: &MediaRef) -> bool {
        match self.place(media) {
            Some(place) => fs::try_exists(place).await.unwrap_or(false),
            None => false,
        }
    }

    /// Keeps an opened file.
    ///
    /// # Errors
    /// As [`Media::store`].
    pub async fn take_in(&self, file: std::fs::File) -> Result<MediaRef, MediaError> {
        let pieces = futures_util::stream::unfold(Some(File::from_std(file)), |file| async {
            let mut file = file?;
            let mut piece = vec![0; 64 * 1024];
            match file.read(&mut piece).await {
                Ok(0) => None,
                Ok(read) => {
                    piece.truncate(read);
                    Some((Ok(Bytes::from(piece)), Some(file)))
                }
                Err(error) => Some((Err(error.to_string()), None)),
            }
        });
        self.keep(pieces.boxed(), None).await
    }

    /// Its time is what it lives by.
    async fn touch(&self, path: &Path) {
        let (path, now) = (path.to_owned(), self.now());
        let touched =
            tokio::task::spawn_blocking(move || std::fs::OpenOptions::new().append(true).open(path)?.set_modified(now));
        if let Ok(Err(error)) = touched.await {
            debug!(%error, "a file's time could not be set");
        }
    }

    async fn written(&self, mut bytes: MediaStream, mime: Option<String>) -> Result<MediaRef, MediaError> {
        let mut incoming = Incoming::begin(self).await?;
        while let Some(piece) = bytes.next().await {
            incoming.write(&piece.map_err(MediaError::Unreachable)?).await?;
        }
        incoming.land(mime.as_deref()).await
    }

    async fn fetched(&self, url: &str) -> Result<MediaRef, MediaError> {
        let opened = self.egress.open(url, REDIRECTS).await.map_err(not_fetched)?;
        let answered = |status| format!("the address answered with status {status}");
        match opened.status {
            200 => {}
            408 | 425 | 429 | 500.. => return Err(MediaError::Unreachable(answered(opened.status))),
            status => return Err(MediaError::Refused(answered(status))),
        }
        if opened.length.is_some_and(|length| length > self.config.largest.0) {
            return Err(MediaError::TooLarge(self.config.largest.0));
        }
        let mime = Some(opened.content_type).filter(|mime| !mime.is_empty());
        let body = opened.body.map(|piece| piece.map_err(|error| error.to_string()));
        self.keep(body.boxed(), mime).await
    }
}

#[async_trait]
impl Media for MediaFolder {
    async fn store(&self, bytes: Bytes, mime: Option<String>) -> Result<MediaRef, MediaError> {
        self.keep(futures_util::stream::iter([Ok(bytes)]).boxed(), mime).await
    }

    async fn keep(&self, bytes: MediaStream, mime: Option<String>) -> Result<MediaRef, MediaError> {
        let late = || MediaError::Unreachable(format!("it took longer than {} seconds", KEEP_WITHIN.as_secs()));
        tokio::select! {
            biased;
            kept = async {
                let _writer = self.writers.acquire().await.map_err(|error| MediaError::Io(error.to_string()))?;
                self.written(bytes, mime).await
            } => kept,
            () = self.clock.sleep(KEEP_WITHIN) => Err(late()),
        }
    }

    async fn fetch(&self, url: &str) -> Result<MediaRef, MediaError> {
        let late = || MediaError::Unreachable(format!("it took longer than {} seconds", FETCH_WITHIN.as_secs()));
        tokio::select! {
            biased;
            fetched = self.fetched(url) => fetched,
            () = self.clock.sleep(FETCH_WITHIN) => Err(late()),
        }
    }

    async fn read(&self, media: &MediaRef) -> Option<Bytes> {
        self.small(media, config::LARGEST).await.map(Bytes::from)
    }
}

/// What the caller can do about a link that was not fetched.
fn not_fetched(error: EgressError) -> MediaError {
    let told = error.to_string();
    let told = told.trim_end_matches('.').to_owned();
    match error {
        EgressError::Unreachable(_)
        | EgressError::TimedOut(..)
        | EgressError::Broken(_)
        | EgressError::NoSuchName(_)
        | EgressError::Cancelled => MediaError::Unreachable(told),
        EgressError::Address(_)
        | EgressError::NotPublic
        | EgressError::Insecure(_)
        | EgressError::Redirect(_)
        | EgressError::Encoding(_)
        | EgressError::Setup => MediaError::Refused(told),
    }
}

/// Bytes taken from the quota; given back when dropped before [`Reserved::keep`].
struct Reserved {
    used: Arc<AtomicU64>,
    bytes: u64,
}

impl Reserved {
    fn grow(&mut self, bytes: u64, quota: u64) -> Result<(), MediaError> {
        if self.used.fetch_add(bytes, Ordering::Relaxed) + bytes > quota {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(MediaError::Full);
        }
        self.bytes += bytes;
        Ok(())
    }

    fn keep(mut self) {
        self.bytes = 0;
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// A file on its way in. Dropped before it landed, it leaves nothing.
struct Incoming<'a> {
    folder: &'a MediaFolder,
    file: File,
    temporary: Temporary,
    reserved: Reserved,
    hash: Sha256,
    head: Vec<u8>,
    size: u64,
}

/// A path that is removed when dropped.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It is gone when it got its name.
        let _ = std::fs::remove_file(&self.0);
    }
}

fn disk(error: &std::io::Error) -> MediaError {
    MediaError::Io(error.to_string())
}

impl<'a> Incoming<'a> {
    async fn begin(folder: &'a MediaFolder) -> Result<Self, MediaError> {
        let reserved = folder.reserve(0).await?;
        let temporary = folder.dir.join(format!("{INCOMING}{}", Ulid::generate()));
        let (dir, path) = (folder.dir.clone(), temporary.clone());
        let file = tokio::task::spawn_blocking(move || {
            os::create_private_dir(&dir)?;
            os::create_private(&path)
        });
        let file = file.await.map_err(|error| MediaError::Io(error.to_string()))?.map_err(|error| disk(&error))?;
        Ok(Self {
            folder,
            file: File::from_std(file),
            temporary: Temporary(temporary),
            reserved,
            hash: Sha256::new(),
            head: Vec::new(),
            size: 0,
        })
    }

    async fn write(&mut self, piece: &[u8]) -> Result<(), MediaError> {
        let MediaConfig { largest, quota, .. } = self.folder.config;
        let more = piece.len() as u64;
        if self.size + more > largest.0 {
            return Err(MediaError::TooLarge(largest.0));
        }
        self.reserved.grow(more, quota.0)?;
        self.size += more;
        let missing = kind::HEAD.saturating_sub(self.head.len()).min(piece.len());
        self.head.extend_from_slice(&piece[..missing]);
        self.hash.update(piece);
        self.file.write_all(piece).await.map_err(|error| disk(&error))
    }

    /// Synced, then named by its content. The same content that is there already is kept once.
    async fn land(mut self, mime: Option<&str>) -> Result<MediaRef, MediaError> {
        self.file.flush().await.map_err(|error| disk(&error))?;
        self.file.sync_all().await.map_err(|error| disk(&error))?;
        let mime = kind::media_type(&self.head, self.size as usize <= self.head.len(), mime);
        let name = hex(&self.hash.finalize());
        let place = self.folder.dir.join(&name);
        let _named = self.folder.naming.lock().await;
        if fs::metadata(&place).await.is_ok_and(|there| there.len() == self.size) {
            self.folder.touch(&place).await;
        } else {
            fs::rename(&self.temporary.0, &place).await.map_err(|error| disk(&error))?;
            self.reserved.keep();
            let dir = self.folder.dir.clone();
            let synced = tokio::task::spawn_blocking(move || os::sync_dir(&dir)).await;
            synced.map_err(|error| MediaError::Io(error.to_string()))?.map_err(|error| disk(&error))?;
        }
        Ok(MediaRef { source: MediaSource::Stored(name), mime: Some(mime), size: Some(self.size) })
    }
}

/// The ending of a copy's name: what its type says, or else a plain one of the name that somebody gave it.
fn ending(mime: Option<&str>, name: Option<&str>) -> Option<String> {
    if let Some(ending) = mime.and_then(kind::ending) {
        return Some(ending.to_owned());
    }
    let (_, ending) = name?.rsplit_once('.')?;
    let plain = (1..=8).contains(&ending.len()) && ending.bytes().all(|byte| byte.is_ascii_alphanumeric());
    plain.then(|| ending.to_ascii_lowercase())
}

/// What bytes are, told from their beginning.
pub fn media_type(bytes: &[u8]) -> String {
    let head = &bytes[..bytes.len().min(kind::HEAD)];
    kind::media_type(head, head.len() == bytes.len(), None)
}

fn is_ours(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A file of ours on the disk.
struct Lies {
    path: PathBuf,
    len: u64,
    modified: SystemTime,
    /// It has not fully arrived.
    incoming: bool,
}

/// Every file of ours: the kept ones and the sessions' copies. What else lies there is left alone.
fn files_in(dir: &Path) -> Vec<Lies> {
    let mut all = Vec::new();
    let entries = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten();
    let mut look = |dir: &Path, named: &dyn Fn(&str) -> bool| {
        for entry in entries(dir) {
            let name = entry.file_name().to_string_lossy().into_owned();
            let incoming = name.starts_with(INCOMING);
            // Of the entry itself: a link is nothing of ours.
            let Ok(metadata) = entry.metadata() else { continue };
            if metadata.is_file() && (incoming || named(&name)) {
                let modified = metadata.modified().unwrap_or(UNIX_EPOCH);
                all.push(Lies { path: entry.path(), len: metadata.len(), modified, incoming });
            }
        }
    };
    look(dir, &is_ours);
    look(&dir.join(HEARD), &is_ours);
    for session in entries(&dir.join(SESSIONS)) {
        if session.file_type().is_ok_and(|kind| kind.is_dir()) {
            look(&session.path().join(SHOWN), &|_| true);
        }
    }
    all
}

#[cfg(test)]
mod tests;
