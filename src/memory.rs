//! The agent's memory: `MEMORY.md` and the notes below `memory/` are the truth; an index in the store follows them, is
//! looked through by words and, where an embedding model is configured, by meaning, and can be made again at any time.
//!
//! A search first looks at the files (names, sizes, times) and reads those that changed, so a note written a second ago is
//! found. What may be found follows from the [`Scope`] of whoever asks, without which there is no search. What others than
//! the owner want remembered, or what came from outside, waits in quarantine ([`held`]).

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use channel_api::Clock;
use jiff::{Timestamp, ZonedDateTime, tz::TimeZone};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, Notify};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use self::embed::Embedder;
pub use crate::store::note::{Area, FOLDER, MEMORY, NoteCount, Scope};
use crate::store::{
    StoreError,
    note::{NewNote, NoteRow, NoteStore, PassageHit},
};

pub mod ask;
pub mod embed;
mod files;
pub mod held;
pub mod rank;
pub mod words;

#[cfg(test)]
mod tests;

/// How many hits of each kind a search puts together for each passage it is asked for.
const CANDIDATES: usize = 4;
/// The most passages of one answer.
pub const MOST_RESULTS: usize = 20;
/// The most notes, and bytes of them, of one transaction: messages are committed between two of them.
const BATCH_NOTES: usize = 32;
const BATCH_BYTES: usize = 512 * 1024;
/// How often the files are looked at when nobody searches, for the vectors.
const LOOK_EVERY: Duration = Duration::from_secs(300);

/// Why memory could not do it.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The files.
    #[error("the notes cannot be read or written: {0}")]
    Files(#[from] io::Error),
    /// The index.
    #[error("the index of the notes: {0}")]
    Store(#[from] StoreError),
    /// The work was given up.
    #[error("stopped")]
    Stopped,
}

/// How far the index is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Changed notes that are in the index.
    pub done: u64,
    /// Changed notes in all.
    pub all: u64,
}

/// A passage that was found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passage {
    /// The note's path.
    pub path: String,
    /// Its first and last line, from 1.
    pub lines: (u32, u32),
    /// Its text.
    pub text: String,
    /// From 0 to 1, the best of a search being near 1.
    pub score: f64,
}

impl Passage {
    /// `memory/2026-03-22.md#L1-L5`.
    pub fn source(&self) -> String {
        format!("{}#L{}-L{}", self.path, self.lines.0, self.lines.1)
    }
}

/// What a search gave.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// The best passages, the best first.
    pub passages: Vec<Passage>,
    /// How many there would be without the limit.
    pub all: usize,
    /// How many notes there are in this scope.
    pub notes: usize,
    /// Files that are no plain, readable notes.
    pub left_out: usize,
    /// Why there were no vectors, for the trace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub without_vectors: Option<String>,
}

/// The memory of one agent.
pub struct Memory {
    agent: String,
    workspace: PathBuf,
    store: Arc<dyn NoteStore>,
    clock: Arc<dyn Clock>,
    embedder: Option<Arc<Embedder>>,
    /// Counts how often the whole index was forgotten, by whichever agent.
    forgotten: Arc<AtomicU64>,
    known: Mutex<Known>,
    /// Raised whenever something was put into the index.
    version: AtomicU64,
    /// Whoever writes a note.
    writing: Mutex<()>,
    /// The index changed: there may be texts without a vector.
    changed: Notify,
    progress: std::sync::Mutex<Progress>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("agent", &self.agent).finish_non_exhaustive()
    }
}

/// What the index knows of the files, as far as this process remembers.
#[derive(Default)]
struct Known {
    /// `None`: not read from the store yet.
    notes: Option<HashMap<String, (i64, Hash)>>,
    /// [`Memory::forgotten`] when that was.
    at: u64,
    left_out: usize,
}

type Hash = [u8; 16];

/// Stands for the hash of a file that is no text: it is in no index and not read again until it changes.
const NO_TEXT: Hash = [0; 16];

fn hash_of(text: &str) -> Hash {
    let mut hash = Hash::default();
    hash.copy_from_slice(&Sha256::digest(text.as_bytes())[..16]);
    hash
}

impl Memory {
    /// The memory of an agent; nothing is read yet. `forgotten` is shared by all agents on one store.
    pub fn new(
        agent: &str,
        workspace: PathBuf,
        store: Arc<dyn NoteStore>,
        clock: Arc<dyn Clock>,
        embedder: Option<Arc<Embedder>>,
        forgotten: Arc<AtomicU64>,
    ) -> Self {
        Self {
            agent: agent.to_owned(),
            workspace,
            store,
            clock,
            embedder,
            forgotten,
            known: Mutex::default(),
            version: AtomicU64::default(),
            writing: Mutex::default(),
            changed: Notify::new(),
            progress: std::sync::Mutex::default(),
        }
    }

    /// Its agent's id.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Its agent's workspace.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Looks for passages that answer a question; the files are looked at first. Without a word in it nothing is found.
    ///
    /// # Errors
    /// [`MemoryError`]. An embedding model that does not answer is none: [`Found::without_vectors`].
    pub async fn search(&self, scope: &Scope, query: &str, most: usize) -> Result<Found, MemoryError> {
        let most = most.clamp(1, MOST_RESULTS);
        let candidates = (most * CANDIDATES).max(24) as u32;
        let words = words::of_question(query);
        // Looking at the files and looking into the index take as long as each other: what the index gave is used when the
        // files turn out to be as it knows them.
        let before = self.version.load(Ordering::Acquire);
        let (changed, hits, vector) =
            tokio::join!(self.update(), self.store.find_words(scope, &words, candidates), self.question(query));
        // Another search, or the one at the start, may have brought the index up to the files meanwhile.
        let as_it_was = self.version.load(Ordering::Acquire) == before;
        let mut hits = match (changed, hits) {
            (Ok(false), Ok(hits)) if as_it_was => hits,
            (Ok(_), Err(StoreError::Corrupt(why))) | (Err(MemoryError::Store(StoreError::Corrupt(why))), _) => {
                self.make_anew(&why).await?;
                self.store.find_words(scope, &words, candidates).await?
            }
            (Ok(_), _) => self.store.find_words(scope, &words, candidates).await?,
            (Err(error), _) => return Err(error),
        };
        let (near, without_vectors) = match (&self.embedder, vector) {
            (Some(embedder), Some(Ok(vector))) => {
                (self.store.find_near(scope, &embedder.key(), &vector, candidates).await?, None)
            }
            (_, Some(Err(why))) => (Vec::new(), Some(why)),
            _ => (Vec::new(), None),
        };
        let known = self.known.lock().await;
        let in_scope = |path: &String| Area::of(path).is_some_and(|area| scope.sees(&area));
        let notes = known.notes.iter().flatten().filter(|(path, it)| it.1 != NO_TEXT && in_scope(path)).count();
        if hits.len() < candidates as usize {
            rank::weigh_few(&mut hits, &words, notes);
        }
        let ranked = rank::order(rank::fuse(hits, near, rank::NEAR_WEIGHT));
        Ok(Found {
            all: ranked.len(),
            passages: ranked.into_iter().take(most).map(shown).collect(),
            notes,
            left_out: if scope.is_owner() { known.left_out } else { 0 },
            without_vectors,
        })
    }

    /// The vector of a question; `None` when no model is configured.
    async fn question(&self, query: &str) -> Option<Result<Vec<f32>, String>> {
        let embedder = self.embedder.as_ref()?;
        Some(embedder.question(query, &self.agent, self.clock.as_ref()).await.map_err(|why| why.to_string()))
    }

    /// Brings the index up to the files, and says whether anything changed in it. Cheap when nothing did.
    ///
    /// # Errors
    /// [`MemoryError`]; what was put until then stays.
    pub async fn update(&self) -> Result<bool, MemoryError> {
        let mut known = self.known.lock().await;
        let at = self.forgotten.load(Ordering::Acquire);
        if known.notes.is_none() || known.at != at {
            let rows = self.store.known_notes(&self.agent).await?;
            let notes = rows.into_iter().filter_map(|row| Some((row.path, (row.stamp, row.hash.try_into().ok()?))));
            (known.notes, known.at) = (Some(notes.collect()), at);
        }
        let Known { notes, left_out, .. } = &mut *known;
        let notes = notes.get_or_insert_default();
        let (workspace, now) = (self.workspace.clone(), self.clock.now_ms());
        let scan = blocking(move || files::scan(&workspace, now)).await??;
        let (mut changed, mut still_there) = (Vec::new(), 0);
        for seen in &scan.notes {
            let before = notes.get(&seen.path);
            still_there += usize::from(before.is_some());
            if seen.stamp == 0 || before.is_none_or(|(stamp, _)| *stamp != seen.stamp) {
                changed.push(seen.clone());
            }
        }
        let gone: Vec<String> = if still_there < notes.len() {
            let there: HashSet<&str> = scan.notes.iter().map(|seen| seen.path.as_str()).collect();
            notes.keys().filter(|path| !there.contains(path.as_str())).cloned().collect()
        } else {
            Vec::new()
        };
        if changed.is_empty() && gone.is_empty() {
            return Ok(false);
        }
        let any = self.apply(notes, changed, gone).await?;
        *left_out = scan.left_out + notes.values().filter(|(_, hash)| *hash == NO_TEXT).count();
        if any {
            self.changed.notify_one();
        }
        Ok(any)
    }

    /// Reads the changed notes and puts them, a batch a transaction.
    async fn apply(
        &self,
        notes: &mut HashMap<String, (i64, Hash)>,
        changed: Vec<files::Seen>,
        mut gone: Vec<String>,
    ) -> Result<bool, MemoryError> {
        let mut any = false;
        self.tell(0, changed.len());
        let (mut done, mut rest) = (0, changed.into_iter().peekable());
        while rest.peek().is_some() || !gone.is_empty() {
            let seen: Vec<files::Seen> = rest.by_ref().take(BATCH_NOTES).collect();
            done += seen.len();
            let workspace = self.workspace.clone();
            let read =
                move || seen.into_iter().map(|seen| (files::read(&workspace, &seen.path), seen)).collect::<Vec<_>>();
            let mut read = blocking(read).await?.into_iter().peekable();
            while read.peek().is_some() || !gone.is_empty() {
                let (mut put, mut bytes) = (Vec::new(), 0);
                let mut forget: Vec<String> = gone.drain(..gone.len().min(BATCH_NOTES)).collect();
                let (mut fresh, mut unread) = (Vec::new(), Vec::new());
                while bytes < BATCH_BYTES
                    && let Some((text, seen)) = read.next()
                {
                    let (Some(text), Some(area)) = (text, Area::of(&seen.path)) else {
                        // Gone meanwhile, or no text.
                        if notes
                            .insert(seen.path.clone(), (seen.stamp, NO_TEXT))
                            .is_some_and(|(_, hash)| hash != NO_TEXT)
                        {
                            unread.push(seen.path);
                        }
                        continue;
                    };
                    let hash = hash_of(&text);
                    let before = notes.get(&seen.path).copied();
                    if before == Some((seen.stamp, hash)) {
                        continue;
                    }
                    bytes += text.len();
                    let same = before.is_some_and(|(_, before)| before == hash);
                    fresh.push((seen.path.clone(), (seen.stamp, hash), same));
                    let passages = (!same).then(|| words::passages(&seen.path, &text));
                    let row = NoteRow { path: seen.path, stamp: seen.stamp, hash: hash.to_vec() };
                    put.push(NewNote { row, area, passages });
                }
                let forgotten = forget.clone();
                forget.append(&mut unread);
                if put.is_empty() && forget.is_empty() {
                    continue;
                }
                any |= !forget.is_empty() || fresh.iter().any(|(.., same)| !same);
                self.store.put_notes(&self.agent, put, forget).await?;
                self.version.fetch_add(1, Ordering::AcqRel);
                forgotten.iter().for_each(|path| {
                    notes.remove(path);
                });
                notes.extend(fresh.into_iter().map(|(path, known, _)| (path, known)));
            }
            self.tell(done, done + rest.len());
        }
        Ok(any)
    }

    fn tell(&self, done: usize, all: usize) {
        *self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
            Progress { done: done as u64, all: all as u64 };
    }

    /// How far the index is with what changed last.
    pub fn progress(&self) -> Progress {
        *self.progress.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Forgets the whole index and makes it again from the files.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub async fn reindex(&self) -> Result<NoteCount, MemoryError> {
        self.forget().await?;
        self.update().await?;
        Ok(self.store.count_notes(&self.agent).await?)
    }

    async fn make_anew(&self, why: &str) -> Result<(), MemoryError> {
        warn!(agent = self.agent, why, "the index of the notes was damaged and is made anew from the files");
        self.forget().await?;
        self.update().await.map(|_| ())
    }

    async fn forget(&self) -> Result<(), MemoryError> {
        let mut known = self.known.lock().await;
        self.store.forget_notes().await?;
        self.forgotten.fetch_add(1, Ordering::AcqRel);
        known.notes = None;
        Ok(())
    }

    /// Keeps the index and the vectors up to date until it is told to stop. Without an embedding model it looks once, so
    /// that the first search has little to do.
    pub async fn follow(&self, stop: CancellationToken) {
        if let Some(embedder) = &self.embedder
            && let Err(error) = self.store.forget_vectors(&embedder.key()).await
        {
            warn!(%error, "old vectors of notes were not removed");
        }
        loop {
            let round = async {
                match self.update().await {
                    Err(MemoryError::Store(StoreError::Corrupt(why))) => self.make_anew(&why).await,
                    done => done.map(|_| ()),
                }?;
                self.expire_held().await?;
                self.embed_all().await
            };
            let done = tokio::select! {
                done = round => done,
                () = stop.cancelled() => return,
            };
            let pause = match done {
                Ok(pause) => pause,
                Err(error) => {
                    warn!(agent = self.agent, %error, "the notes were not looked at");
                    LOOK_EVERY
                }
            };
            tokio::select! {
                () = self.changed.notified() => {}
                () = self.clock.sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    /// Gives every passage its vector, as far as the model answers. Returns when to look again.
    async fn embed_all(&self) -> Result<Duration, MemoryError> {
        let Some(embedder) = &self.embedder else { return Ok(LOOK_EVERY) };
        let (clock, key) = (self.clock.as_ref(), embedder.key());
        let (mut after, mut count) = (0, 0usize);
        loop {
            let resting = embedder.resting(clock);
            if !resting.is_zero() {
                return Ok(resting);
            }
            let bare = self.store.sketch_notes(&key, after, embedder.batch as u32).await?;
            let Some(last) = bare.last() else { break };
            after = last.id;
            let texts: Vec<String> =
                bare.iter().map(|bare| format!("{}\n{}", bare.heading, bare.text).trim().to_owned()).collect();
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            match embedder.texts(&texts, &self.agent, clock).await {
                Ok(vectors) => {
                    count += vectors.len();
                    self.store.put_vectors(&key, bare.into_iter().map(|bare| bare.hash).zip(vectors).collect()).await?;
                }
                Err(why) => {
                    // Each search says so in its trace; here once a failure is enough.
                    info!(agent = self.agent, %why, "notes have no vectors for now and are searched by words");
                    return Ok(embedder.resting(clock).max(Duration::from_secs(1)));
                }
            }
        }
        if count > 0 {
            debug!(agent = self.agent, count, "passages got their vectors");
        }
        Ok(LOOK_EVERY)
    }

    /// The lines of the day's note: where it lies in a scope, and how it begins.
    fn day_note(&self, scope: &Scope, now: &ZonedDateTime) -> (String, String) {
        let day = now.strftime("%Y-%m-%d");
        let folder = scope.folder().map_or_else(|| FOLDER.to_owned(), |folder| format!("{FOLDER}/{folder}"));
        (format!("{folder}/{day}.md"), format!("# {day}\n\n"))
    }

    fn now(&self) -> ZonedDateTime {
        let now = Timestamp::from_millisecond(self.clock.now_ms()).unwrap_or(Timestamp::UNIX_EPOCH);
        now.to_zoned_datetime(TimeZone::system())
    }

    /// Adds a text to the day's note of a scope, as an entry of a list, and returns the note's path. The same text is added
    /// once a day. This is also what the silent save before a compaction calls. Whoever calls it vouches that the text may
    /// be remembered; what may not goes to [`Memory::hold`].
    ///
    /// # Errors
    /// [`MemoryError::Files`].
    pub async fn remember(&self, scope: &Scope, text: &str) -> Result<String, MemoryError> {
        let (path, head) = self.day_note(scope, &self.now());
        self.append(path, head, entry(text)).await
    }

    async fn append(&self, path: String, head: String, entry: String) -> Result<String, MemoryError> {
        let _one_at_a_time = self.writing.lock().await;
        let (workspace, note) = (self.workspace.clone(), path.clone());
        blocking(move || files::append(&workspace, &note, &head, &entry)).await??;
        Ok(path)
    }
}

/// A text as an entry of a note: a list item whose further lines are indented, so that it stays one.
fn entry(text: &str) -> String {
    let mut lines = text.trim().lines();
    let mut entry = format!("- {}", lines.next().unwrap_or_default().trim_start_matches(['-', '*', ' ']));
    for line in lines {
        entry.push('\n');
        if !line.trim().is_empty() {
            entry.push_str("  ");
            entry.push_str(line.trim_end());
        }
    }
    entry
}

fn shown(ranked: rank::Ranked) -> Passage {
    let rank::Ranked { hit: PassageHit { path, lines, text, .. }, worth } = ranked;
    Passage { path, lines, text, score: (worth * 1000.0).round() / 1000.0 }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T, MemoryError> {
    tokio::task::spawn_blocking(work).await.map_err(|error| {
        warn!(%error, "work on the notes ended unexpectedly");
        MemoryError::Stopped
    })
}

/// The memories of all agents, by their ids.
#[derive(Clone, Debug, Default)]
pub struct Memories(Arc<BTreeMap<String, Arc<Memory>>>);

impl Memories {
    /// These.
    pub fn new(all: impl IntoIterator<Item = Memory>) -> Self {
        Self(Arc::new(all.into_iter().map(|memory| (memory.agent.clone(), Arc::new(memory))).collect()))
    }

    /// That of an agent.
    pub fn get(&self, agent: &str) -> Option<&Arc<Memory>> {
        self.0.get(agent)
    }

    /// Follows the files of all agents until it is told to stop.
    pub async fn follow(self, stop: CancellationToken) {
        futures_util::future::join_all(self.0.values().map(|memory| memory.follow(stop.clone()))).await;
        stop.cancelled().await;
    }
}
