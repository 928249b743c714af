//! The one writer: a task that owns the writing connection and commits what is queued in groups.
//!
//! Writes are values that can be run again. If one of a group fails, the group is rolled back and each is run alone, so
//! that a bad one fails alone. Every caller is answered after its commit, in the order of the queue.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
};

use async_trait::async_trait;
use sqlx::{ConnectOptions, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinSet,
};

use crate::store::{Load, StoreError};

/// The most writes of one commit.
const GROUP: usize = 256;
/// The most writes that wait before callers wait to queue theirs.
const QUEUE: usize = 1024;

/// Whether a commit waits for the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Durability {
    /// Survives a power cut.
    Hard,
    /// Survives a killed process, perhaps not a power cut.
    Soft,
}

/// One write: may be run several times, each time in a transaction that sees nothing of the time before.
#[async_trait]
pub(super) trait Write: Send + Sync + 'static {
    /// What the caller gets after the commit.
    type Answer: Send + 'static;

    /// How sure the commit must be.
    fn durability(&self) -> Durability {
        Durability::Hard
    }

    /// Runs it. `Fenced` and `NotFound` are answers like others: then nothing was written. Any other error rolls back.
    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Answer, StoreError>;
}

/// The open transaction.
pub(super) struct Tx<'c> {
    /// The connection it is open on.
    pub conn: &'c mut SqliteConnection,
    /// What this write adds to the gauge of waiting entries, once committed.
    pub load: Delta,
}

/// A change of the gauge.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    /// Entries.
    pub rows: i64,
    /// Their payload.
    pub bytes: i64,
}

impl Delta {
    /// An entry that waits from now on.
    pub fn add(&mut self, bytes: i64) {
        self.rows += 1;
        self.bytes += bytes;
    }

    /// An entry that is settled.
    pub fn remove(&mut self, bytes: i64) {
        self.rows -= 1;
        self.bytes -= bytes;
    }
}

/// What waits or runs, counted as commits go by.
#[derive(Debug, Default)]
struct Gauge {
    rows: AtomicI64,
    bytes: AtomicI64,
}

impl Gauge {
    fn apply(&self, delta: Delta) {
        self.rows.fetch_add(delta.rows, Ordering::AcqRel);
        self.bytes.fetch_add(delta.bytes, Ordering::AcqRel);
    }
}

/// The handle to the writer's task.
pub(super) struct Writer {
    queue: Mutex<Option<mpsc::Sender<Box<dyn Job>>>>,
    task: tokio::sync::Mutex<JoinSet<()>>,
    gauge: Arc<Gauge>,
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("gauge", &self.gauge).finish_non_exhaustive()
    }
}

impl Writer {
    /// Starts the task on an open connection.
    pub fn start(conn: SqliteConnection, options: SqliteConnectOptions, load: Delta) -> Self {
        let gauge = Arc::new(Gauge::default());
        gauge.apply(load);
        let (sender, queue) = mpsc::channel(QUEUE);
        let mut task = JoinSet::new();
        task.spawn(Committer { conn: Some(conn), options, full: None, gauge: gauge.clone() }.run(queue));
        Self { queue: Mutex::new(Some(sender)), task: tokio::sync::Mutex::new(task), gauge }
    }

    /// Queues a write and waits for its commit.
    pub async fn write<W: Write>(&self, write: W) -> Result<W::Answer, StoreError> {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(queue) = queue else { return Err(StoreError::Unavailable("the store is closed".into())) };
        let (answer, answered) = oneshot::channel();
        let job = Box::new(Queued { write, outcome: None, answer });
        // A clone of the sender must not outlive this call, or `close` would wait for it.
        queue.send(job).await.map_err(|_| StoreError::Unavailable("the writer has ended".into()))?;
        drop(queue);
        answered.await.unwrap_or_else(|_| Err(StoreError::Unavailable("the writer has ended".into())))
    }

    /// What waits or runs.
    pub fn load(&self) -> Load {
        let at_least_none = |n: &AtomicI64| u64::try_from(n.load(Ordering::Acquire)).unwrap_or(0);
        Load { queued: at_least_none(&self.gauge.rows), bytes: at_least_none(&self.gauge.bytes) }
    }

    /// Takes no more writes, commits what is queued and closes the connection.
    pub async fn close(&self) {
        drop(self.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        let mut task = self.task.lock().await;
        while let Some(ended) = task.join_next().await {
            if let Err(error) = ended {
                tracing::error!(%error, "the database writer ended badly");
            }
        }
    }
}

/// A queued write of some type.
#[async_trait]
trait Job: Send {
    fn durability(&self) -> Durability;
    /// Runs it within the open transaction; an error means the transaction must be rolled back.
    async fn run(&mut self, conn: &mut SqliteConnection) -> Result<(), StoreError>;
    /// Answers after the commit.
    fn committed(self: Box<Self>, gauge: &Gauge);
    /// Answers after the rollback.
    fn failed(self: Box<Self>, error: StoreError);
}

struct Queued<W: Write> {
    write: W,
    outcome: Option<(Result<W::Answer, StoreError>, Delta)>,
    answer: oneshot::Sender<Result<W::Answer, StoreError>>,
}

#[async_trait]
impl<W: Write> Job for Queued<W> {
    fn durability(&self) -> Durability {
        self.write.durability()
    }

    async fn run(&mut self, conn: &mut SqliteConnection) -> Result<(), StoreError> {
        let mut tx = Tx { conn, load: Delta::default() };
        let outcome = self.write.run(&mut tx).await;
        let load = tx.load;
        match outcome {
            Err(error @ (StoreError::Unavailable(_) | StoreError::Corrupt(_))) => Err(error),
            answer => {
                self.outcome = Some((answer, load));
                Ok(())
            }
        }
    }

    fn committed(self: Box<Self>, gauge: &Gauge) {
        let Some((answer, load)) = self.outcome else { return };
        gauge.apply(load);
        // The caller may have gone away; what it asked for is done all the same.
        let _ = self.answer.send(answer);
    }

    fn failed(self: Box<Self>, error: StoreError) {
        let _ = self.answer.send(Err(error));
    }
}

/// The task.
struct Committer {
    /// Gone after an error that the connection did not survive; opened again for the next group.
    conn: Option<SqliteConnection>,
    options: SqliteConnectOptions,
    /// Whether `synchronous` is FULL, as far as we know.
    full: Option<bool>,
    gauge: Arc<Gauge>,
}

impl Committer {
    async fn run(mut self, mut queue: mpsc::Receiver<Box<dyn Job>>) {
        let mut jobs = Vec::new();
        while queue.recv_many(&mut jobs, GROUP).await > 0 {
            match self.commit(&mut jobs).await {
                Ok(()) => jobs.drain(..).for_each(|job| job.committed(&self.gauge)),
                Err(error) if jobs.len() == 1 => jobs.drain(..).for_each(|job| job.failed(error.clone())),
                Err(error) => {
                    tracing::debug!(%error, writes = jobs.len(), "a group of writes failed and is run one by one");
                    for mut job in jobs.drain(..) {
                        match self.commit(std::slice::from_mut(&mut job)).await {
                            Ok(()) => job.committed(&self.gauge),
                            Err(error) => job.failed(error),
                        }
                    }
                }
            }
        }
        if let Some(conn) = self.conn.take() {
            super::end(conn).await;
        }
    }

    /// Runs the jobs in one transaction; after an error nothing of it is left.
    async fn commit(&mut self, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        let full = jobs.iter().any(|job| job.durability() == Durability::Hard);
        let result = self.attempt(full, jobs).await;
        if result.is_err() {
            self.roll_back().await;
        }
        result
    }

    async fn attempt(&mut self, full: bool, jobs: &mut [Box<dyn Job>]) -> Result<(), StoreError> {
        if self.conn.is_none() {
            self.conn = Some(self.options.connect().await?);
            self.full = None;
        }
        let Some(conn) = self.conn.as_mut() else { return Err(StoreError::Unavailable("no connection".into())) };
        // The pragma takes effect when it is prepared, so it must not come from the statement cache.
        let (begin, cached) = match (full, self.full == Some(full)) {
            (_, true) => ("BEGIN IMMEDIATE", true),
            (true, false) => ("PRAGMA synchronous = FULL; BEGIN IMMEDIATE", false),
            (false, false) => ("PRAGMA synchronous = NORMAL; BEGIN IMMEDIATE", false),
        };
        // Not known until it has worked.
        self.full = None;
        sqlx::query(begin).persistent(cached).execute(&mut *conn).await?;
        self.full = Some(full);
        channel_api::crash_point!("commit.begun");
        for job in jobs {
            job.run(conn).await?;
        }
        channel_api::crash_point!("commit.written");
        sqlx::query("COMMIT").execute(&mut *conn).await?;
        channel_api::crash_point!("commit.done");
        Ok(())
    }

    async fn roll_back(&mut self) {
        let Some(conn) = self.conn.as_mut() else { return };
        match sqlx::query("ROLLBACK").execute(&mut *conn).await {
            Ok(_) => {}
            // SQLITE_ERROR: no transaction is active, SQLite has rolled back by itself.
            Err(error) if super::primary_code(&error) == Some(1) => {}
            Err(error) => {
                tracing::warn!(%error, "the database connection is opened again after a failed rollback");
                self.conn = None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes `key`, then fails if `bad`.
    struct Put {
        key: i64,
        bad: bool,
        fenced: bool,
    }

    #[async_trait]
    impl Write for Put {
        type Answer = i64;

        async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
            if self.fenced {
                return Err(StoreError::Fenced);
            }
            tx.load.add(1);
            sqlx::query("INSERT INTO probe (id, at) VALUES ($1, 0)").bind(self.key).execute(&mut *tx.conn).await?;
            if self.bad {
                sqlx::query("INSERT INTO nowhere VALUES (1)").execute(&mut *tx.conn).await?;
            }
            Ok(self.key)
        }
    }

    #[tokio::test]
    async fn a_bad_write_of_a_group_fails_alone_and_the_gauge_counts_commits_only() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = super::super::SqliteStore::open(&dir.path().join("t.db")).await.expect("opens");
        let put = |key, bad, fenced| store.write(Put { key, bad, fenced });
        let (a, b, c, d) =
            tokio::join!(put(1, false, false), put(2, true, false), put(3, false, true), put(4, false, false));
        assert_eq!(a, Ok(1));
        assert!(matches!(b, Err(StoreError::Unavailable(_))), "{b:?}");
        assert_eq!(c, Err(StoreError::Fenced));
        assert_eq!(d, Ok(4));
        assert_eq!(store.writer.load(), Load { queued: 2, bytes: 2 });
        let kept: Vec<i64> =
            sqlx::query_scalar("SELECT id FROM probe ORDER BY id").fetch_all(&store.readers).await.expect("reads");
        assert_eq!(kept, [1, 4]);
        store.writer.close().await;
        assert!(matches!(put(5, false, false).await, Err(StoreError::Unavailable(_))));
    }
}
