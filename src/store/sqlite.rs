//! The store on SQLite: one writer task with group commit and a small pool of readers.
//!
//! Every write is a value that can be run again (`writer::Write`); reads go through the pool and never wait for the
//! writer. Who may open the file at all (`flock`) is the caller's business. Some statements are scripts of several
//! statements under one set of `$N` parameters (`?N` would not do: sqlx counts their gaps): one hop to SQLite's thread instead of four.

use std::{path::Path, time::Duration};

use channel_api::ChannelId;
use sqlx::{
    ConnectOptions, Connection, Row, SqlSafeStr, SqliteConnection, SqlitePool,
    migrate::{MigrateError, Migration, MigrationType, Migrator},
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteRow, SqliteSynchronous},
};

use super::{LaneKey, StoreError};

mod access;
mod amend;
mod approval;
mod audit;
mod channel;
mod chat;
mod claim;
mod event;
mod finish;
mod group;
mod inbox;
mod initiative;
mod ledger;
mod note;
mod outbox;
mod plan;
mod schedule;
mod session;
mod subagent;
mod turn;
mod upkeep;
mod word;
mod writer;

#[cfg(test)]
mod tests;

use writer::Writer;

/// The readers' pool: enough for a dashboard beside the stations, little enough to stay small (1 MiB each).
const READERS: u32 = 4;

/// Why the database could not be opened, named by the exit code that follows.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// A newer program wrote it (exit code 67): nothing was changed.
    #[error("the database has schema version {found}, this program knows {known}: it was written by a newer program")]
    Newer {
        /// The version it has.
        found: i64,
        /// The newest this program has.
        known: i64,
    },
    /// It is damaged, or not a database of this program (exit code 65): nothing was changed.
    #[error("the database is damaged: {0}")]
    Corrupt(String),
    /// The file cannot be read or written (exit code 74).
    #[error("the database cannot be opened: {0}")]
    Io(String),
    /// Another process holds it.
    #[error("the database is in use by another process: {0}")]
    Locked(String),
}

/// The store on one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    writer: Writer,
    readers: SqlitePool,
    /// For a checkpoint's connection of its own.
    options: SqliteConnectOptions,
}

impl SqliteStore {
    /// Opens the file, made if missing, and brings its schema up to date. Call [`super::Upkeep::recover`] next.
    ///
    /// # Errors
    /// [`OpenError`]; the file is left as it was.
    pub async fn open(path: &Path) -> Result<Self, OpenError> {
        refuse_remains(path)?;
        register_vectors();
        let options = SqliteConnectOptions::new()
            .filename(path)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5))
            .foreign_keys(false)
            .statement_cache_capacity(256)
            .pragma("cache_size", "-4096")
            .pragma("mmap_size", "0")
            .pragma("temp_store", "memory")
            // Checkpoints run on a connection of their own; this is the net below them.
            .pragma("wal_autocheckpoint", "4000")
            .pragma("journal_size_limit", "16777216")
            .thread_name(|_| "sqlite-writer".to_owned())
            .disable_statement_logging();
        let mut conn = options.connect().await.map_err(open_error)?;
        migrator().run_direct(None, &mut conn, false).await.map_err(migrate_error)?;
        let load = inbox::count_open(&mut conn).await.map_err(open_error)?;

        let reader = SqliteConnectOptions::new()
            .filename(path)
            .read_only(true)
            .busy_timeout(Duration::from_secs(5))
            .foreign_keys(false)
            .pragma("cache_size", "-1024")
            .pragma("mmap_size", "0")
            .pragma("temp_store", "memory")
            .thread_name(|n| format!("sqlite-reader-{n}"))
            .disable_statement_logging();
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .test_before_acquire(false)
            .acquire_timeout(Duration::from_secs(10))
            .idle_timeout(Duration::from_secs(60))
            .max_lifetime(None)
            .connect_lazy_with(reader);
        Ok(Self { writer: Writer::start(conn, options.clone(), load), readers, options })
    }

    /// Runs a write and waits for its commit.
    async fn write<W: writer::Write>(&self, write: W) -> Result<W::Answer, StoreError> {
        self.writer.write(write).await
    }
}

/// Refuses what is left of a lost database, which SQLite would take for a new one: a file of no bytes, or a write-ahead
/// log without its file. Never an empty start where messages were. guarantees.md G11.
fn refuse_remains(path: &Path) -> Result<(), OpenError> {
    let bytes_in = |path: &Path| std::fs::metadata(path).ok().map(|meta| meta.len());
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    let what = match (bytes_in(path), bytes_in(Path::new(&log))) {
        (Some(0), _) => "the file is empty; put a backup in its place, or delete it to begin with nothing",
        (None, Some(1..)) => {
            "the file is gone and its write-ahead log (`-wal`) is still there; put the file back beside it, or delete the log \
             to begin with nothing"
        }
        _ => return Ok(()),
    };
    Err(OpenError::Corrupt(what.to_owned()))
}

/// Gives every connection that is opened from now on the functions that measure vectors.
#[allow(unsafe_code, reason = "SQLite takes extensions as C functions; sqlite-vec has no other way in")]
fn register_vectors() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        type Entry = unsafe extern "C" fn(
            *mut libsqlite3_sys::sqlite3,
            *mut *mut std::ffi::c_char,
            *const libsqlite3_sys::sqlite3_api_routines,
        ) -> std::ffi::c_int;
        // SAFETY: `sqlite3_vec_init` is an entry point of SQLite's kind whose declaration leaves out its parameters, and it
        // was compiled against the same SQLite (`SQLITE_CORE`). SQLite keeps the pointer, which is a function's: it stays.
        let code = unsafe {
            let entry = std::mem::transmute::<unsafe extern "C" fn(), Entry>(sqlite_vec::sqlite3_vec_init);
            libsqlite3_sys::sqlite3_auto_extension(Some(entry))
        };
        if code != 0 {
            tracing::error!(
                code,
                "the vector functions of the database are missing: notes are searched by words alone"
            );
        }
    });
}

/// The schema, one file a version.
fn migrator() -> Migrator {
    let list = [
        (1, "spine", include_str!("../../migrations/sqlite/0001_spine.sql")),
        (2, "access", include_str!("../../migrations/sqlite/0002_access.sql")),
        (3, "groups", include_str!("../../migrations/sqlite/0003_groups.sql")),
        (4, "suspects", include_str!("../../migrations/sqlite/0004_suspects.sql")),
        (5, "live", include_str!("../../migrations/sqlite/0005_live.sql")),
        (6, "errand", include_str!("../../migrations/sqlite/0006_errand.sql")),
        (7, "memory", include_str!("../../migrations/sqlite/0007_memory.sql")),
        (8, "initiative", include_str!("../../migrations/sqlite/0008_initiative.sql")),
        (9, "ledger", include_str!("../../migrations/sqlite/0009_ledger.sql")),
        (10, "acts", include_str!("../../migrations/sqlite/0010_acts.sql")),
        (13, "context", include_str!("../../migrations/sqlite/0013_context.sql")),
        (14, "approvals", include_str!("../../migrations/sqlite/0014_approvals.sql")),
        (15, "audit", include_str!("../../migrations/sqlite/0015_audit.sql")),
        (16, "chat_seen", include_str!("../../migrations/sqlite/0016_chat_seen.sql")),
        (18, "spend_sender", include_str!("../../migrations/sqlite/0018_spend_sender.sql")),
        (20, "approvals_for_good", include_str!("../../migrations/sqlite/0020_approvals.sql")),
    ];
    Migrator::with_migrations(
        list.into_iter()
            .map(|(version, name, sql)| {
                Migration::new(version, name.into(), MigrationType::Simple, sql.into_sql_str(), false)
            })
            .collect(),
    )
}

fn migrate_error(error: MigrateError) -> OpenError {
    let known = migrator().iter().map(|migration| migration.version).max().unwrap_or(0);
    match error {
        MigrateError::VersionMissing(found) | MigrateError::VersionMismatch(found) => OpenError::Newer { found, known },
        MigrateError::Execute(error) => open_error(error),
        MigrateError::ExecuteMigration(error, version) => match open_error(error) {
            // SQL that fails on a healthy file: its tables are not ours.
            OpenError::Corrupt(why) => OpenError::Corrupt(format!("migration {version}: {why}")),
            other => other,
        },
        other => OpenError::Corrupt(other.to_string()),
    }
}

fn open_error(error: sqlx::Error) -> OpenError {
    let text = error.to_string();
    match (primary_code(&error), &error) {
        (Some(5 | 6), _) => OpenError::Locked(text),
        // READONLY, IOERR, FULL, CANTOPEN, PERM, AUTH, NOMEM
        (Some(3 | 7 | 8 | 10 | 13 | 14 | 23), _) | (None, sqlx::Error::Io(_)) => OpenError::Io(text),
        (Some(_), _) | (None, sqlx::Error::ColumnDecode { .. }) => OpenError::Corrupt(text),
        (None, _) => OpenError::Io(text),
    }
}

/// SQLite's primary result code, if it was SQLite that refused.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        match (primary_code(&error), &error) {
            // CORRUPT, NOTADB
            (Some(11 | 26), _) => Self::Corrupt(error.to_string()),
            (None, sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)) => Self::Corrupt(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

/// Column `i` of a row.
fn get<'r, T>(row: &'r SqliteRow, i: usize) -> Result<T, StoreError>
where
    T: sqlx::Decode<'r, sqlx::Sqlite> + sqlx::Type<sqlx::Sqlite>,
{
    Ok(row.try_get(i)?)
}

/// A count column.
fn count(row: &SqliteRow, i: usize) -> Result<u64, StoreError> {
    Ok(u64::try_from(get::<i64>(row, i)?).unwrap_or(0))
}

/// A small count column.
fn small(row: &SqliteRow, i: usize) -> Result<u32, StoreError> {
    Ok(u32::try_from(get::<i64>(row, i)?).unwrap_or(u32::MAX))
}

/// A JSON column.
fn json<T: serde::de::DeserializeOwned>(row: &SqliteRow, i: usize) -> Result<T, StoreError> {
    serde_json::from_str(get::<&str>(row, i)?).map_err(|error| StoreError::Corrupt(format!("a stored value: {error}")))
}

/// A value as JSON, for a column.
fn to_json<T: serde::Serialize + ?Sized>(value: &T) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| StoreError::Unavailable(format!("cannot be stored: {error}")))
}

/// A column of unsigned numbers.
fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// The most tokens that are read of a sum: rows are older than the bounds of what is written now, and a sum that has become
/// a floating-point number is no count any more. As a text, for SQL.
macro_rules! most_tokens {
    () => {
        "1000000000000000"
    };
}
use most_tokens;

/// Tokens for a column, so few that no sum of them can overflow.
fn tokens(n: u64) -> i64 {
    const MOST: u64 = 1_000_000_000_000_000;
    signed(n.min(MOST))
}

fn lane(channel: String, lane: String) -> LaneKey {
    LaneKey { channel: ChannelId::from(channel), lane }
}

/// Adds a lane that is not there yet.
fn push_lane(lanes: &mut Vec<LaneKey>, lane: LaneKey) {
    if !lanes.contains(&lane) {
        lanes.push(lane);
    }
}

/// Ends a connection in order; it is gone either way.
async fn end(conn: SqliteConnection) {
    if let Err(error) = conn.close().await {
        tracing::warn!(%error, "a database connection did not close cleanly");
    }
}
