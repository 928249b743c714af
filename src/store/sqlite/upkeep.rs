//! Opening after a crash, health, retention and the end.

use std::collections::HashSet;

use async_trait::async_trait;
use channel_api::{Inbound, InboxId};
use futures_util::TryStreamExt as _;
use sqlx::ConnectOptions as _;

use super::{
    SqliteStore, event, finish, get, group, json, outbox, session, small, turn,
    writer::{Tx, Write},
};
use crate::{
    session::SessionKey,
    store::{Apology, BootId, Recovered, Retention, StoreError, Upkeep},
};

/// The crashes of an entry that ran alone after which it is a dead letter. guarantees.md G4.
const MAX_CRASHES: u32 = 3;
/// What a dead letter by crashes says.
const CRASHED: &str = "the gateway died three times while it worked on this message alone";
/// What the turn of several suspects says once each of them runs by itself.
const SPLIT: &str = "the gateway died while it worked on these messages; each is tried by itself";
/// The most rows of one call of prune.
const PRUNE: i64 = 500;
/// Dedupe keys are kept at least this long (72 h).
const MIN_KEYS_MS: i64 = 72 * 60 * 60 * 1000;
/// A session is held by back-off or debounce for no longer than this; more comes of a clock that jumped.
const MAX_HOLD_MS: i64 = 60 * 60 * 1000;
/// A part waits no longer than this for its next try (a channel's longest pause is 2 h ± 20 %); more comes of a clock too.
const MAX_PAUSE_MS: i64 = 3 * 60 * 60 * 1000;

#[async_trait]
impl Upkeep for SqliteStore {
    async fn recover(&self, boot: &BootId, now: i64, apology: Apology) -> Result<Recovered, StoreError> {
        self.write(Recover { boot: boot.clone(), now, apology }).await
    }

    async fn clock_was_set(&self, by_ms: i64) -> Result<(), StoreError> {
        self.write(ClockWasSet(by_ms)).await
    }

    async fn prune(&self, now: i64, keep: &Retention) -> Result<bool, StoreError> {
        self.write(Prune { now, keep: *keep }).await
    }

    async fn files_in_use(&self) -> Result<HashSet<String>, StoreError> {
        // What an adapter puts into a part's body is its own affair: any name in it counts.
        let statement = "
            SELECT payload FROM inbox WHERE state < 2 AND payload LIKE '%\"stored\"%'
            UNION ALL
            SELECT body || coalesce(reply, '') FROM outbox WHERE state < 4";
        let mut rows = sqlx::query_scalar::<_, String>(statement).fetch(&self.readers);
        let mut names = HashSet::new();
        while let Some(row) = rows.try_next().await? {
            let words = row.split(|c: char| !c.is_ascii_hexdigit()).filter(|word| word.len() == 64);
            names.extend(words.map(str::to_owned));
        }
        Ok(names)
    }

    async fn check(&self) -> Result<(), StoreError> {
        let found: Vec<String> = sqlx::query_scalar("PRAGMA quick_check(3)").fetch_all(&self.readers).await?;
        if found.len() == 1 && found[0] == "ok" { Ok(()) } else { Err(StoreError::Corrupt(found.join("; "))) }
    }

    async fn probe(&self, now: i64) -> Result<(), StoreError> {
        self.write(Probe(now)).await?;
        let stored: i64 = sqlx::query_scalar("SELECT at FROM probe WHERE id = 1").fetch_one(&self.readers).await?;
        if stored == now {
            Ok(())
        } else {
            Err(StoreError::Unavailable("a committed row reads back differently".into()))
        }
    }

    async fn checkpoint(&self) -> Result<(), StoreError> {
        let mut conn = self.options.clone().pragma("cache_size", "-512").connect().await?;
        // PASSIVE waits for nobody; the log is cut to `journal_size_limit` when the writer starts it over.
        let result = sqlx::query("PRAGMA wal_checkpoint(PASSIVE)").persistent(false).fetch_all(&mut conn).await;
        super::end(conn).await;
        result.map(|_| ()).map_err(Into::into)
    }

    async fn close(&self) {
        self.readers.close().await;
        self.writer.close().await;
    }
}

/// Voids the claims of other boots.
struct Recover {
    boot: BootId,
    now: i64,
    apology: Apology,
}

/// A session that was leased by a boot that is gone.
struct Orphan {
    id: i64,
    key: SessionKey,
    turn: String,
    alone: bool,
    /// Told to stop: the next claim settles it.
    stopped: bool,
}

#[async_trait]
impl Write for Recover {
    type Answer = Recovered;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Recovered, StoreError> {
        let mut recovered = Recovered::default();
        let rows = sqlx::query(
            "SELECT id, key, lease_turn, lease_alone, stop_turn IS lease_turn FROM session INDEXED BY session_leased
             WHERE lease_boot IS NOT NULL AND lease_boot <> $1",
        )
        .bind(self.boot.as_str())
        .fetch_all(&mut *tx.conn)
        .await?;
        for row in &rows {
            let orphan = Orphan {
                id: get(row, 0)?,
                key: SessionKey::from(get::<String>(row, 1)?),
                turn: get::<Option<String>>(row, 2)?.unwrap_or_default(),
                alone: get(row, 3)?,
                stopped: get(row, 4)?,
            };
            self.take_back(tx, &orphan, &mut recovered).await?;
        }
        let parts = sqlx::query(
            "UPDATE outbox INDEXED BY outbox_open SET state = 3, epoch = epoch + 1, doubt = 0
             WHERE state < 4 AND state = 2 AND boot IS NOT $1",
        )
        .bind(self.boot.as_str())
        .execute(&mut *tx.conn)
        .await?;
        recovered.uncertain = parts.rows_affected();
        sqlx::query(
            "UPDATE outbox INDEXED BY outbox_open SET state = 0 WHERE state < 4 AND state = 1 AND boot IS NOT $1",
        )
        .bind(self.boot.as_str())
        .execute(&mut *tx.conn)
        .await?;
        set_right(tx, self.now).await?;
        Ok(recovered)
    }
}

impl Recover {
    async fn take_back(&self, tx: &mut Tx<'_>, orphan: &Orphan, recovered: &mut Recovered) -> Result<(), StoreError> {
        let rows = sqlx::query(
            "UPDATE inbox INDEXED BY inbox_open SET state = 0, suspect = 1, crashes = crashes + $2
             WHERE session = $1 AND state < 2 AND state = 1 RETURNING seq, id, crashes, bytes, payload, errand",
        )
        .bind(orphan.id)
        .bind(orphan.alone)
        .fetch_all(&mut *tx.conn)
        .await?;
        recovered.entries += rows.len() as u64;
        let mut dead = 0;
        for row in &rows {
            if small(row, 2)? < MAX_CRASHES {
                continue;
            }
            dead += 1;
            tx.load.remove(get(row, 3)?);
            let id = InboxId::from(get::<String>(row, 1)?);
            finish::bury(tx, get(row, 0)?, CRASHED, self.now).await?;
            event::failed(tx, &orphan.key, &id, CRASHED, self.now).await?;
            let inbound: Inbound = json(row, 4)?;
            // Whoever gave an errand that reports was told where it was buried.
            let errand: Option<crate::errand::Errand> =
                get::<Option<&str>>(row, 5)?.is_some().then(|| json(row, 5)).transpose()?;
            if !crate::subagents::reports(errand.as_ref()) {
                // Whoever held a connection for the answer died with the old process.
                outbox::insert_pending(tx, &(self.apology)(&id, &inbound), None).await?;
            }
        }
        recovered.dead += dead;
        let left = rows.len() as u64 - dead;
        if dead > 0 {
            turn::end(tx, &orphan.turn, "failed", Some(CRASHED), self.now).await?;
            // It may be what kills: the next turn is not told of it.
            group::forget(tx, &orphan.key, &orphan.turn).await?;
            finish::leave_turn(tx, orphan.id, &orphan.turn).await?;
        } else if orphan.alone && !orphan.stopped && left > 1 && !had_effect(tx, &orphan.turn).await? {
            // One of them may be the cause. Nothing was done yet, so each can have a turn of its own.
            turn::end(tx, &orphan.turn, "failed", Some(SPLIT), self.now).await?;
            finish::leave_turn(tx, orphan.id, &orphan.turn).await?;
        }
        sqlx::query("UPDATE session SET epoch = epoch + 1 WHERE id = $1")
            .bind(orphan.id)
            .execute(&mut *tx.conn)
            .await?;
        session::free(tx, orphan.id, 0, false).await
    }
}

/// Moves what waits for a time on the wall clock.
struct ClockWasSet(i64);

#[async_trait]
impl Write for ClockWasSet {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        sqlx::query(
            "UPDATE session SET hold_until = CASE WHEN hold_until > 0 THEN max(hold_until + $1, 1) ELSE 0 END,
                 not_before = CASE WHEN not_before > 0 THEN max(not_before + $1, 1) ELSE 0 END,
                 parked_until = parked_until + $1
             WHERE hold_until > 0 OR not_before > 0 OR parked_until IS NOT NULL;
             UPDATE inbox INDEXED BY inbox_open SET not_before = max(not_before + $1, 1)
             WHERE state < 2 AND not_before > 0;
             UPDATE outbox INDEXED BY outbox_open SET expires_at = expires_at + $1,
                 not_before = CASE WHEN not_before > 0 THEN max(not_before + $1, 1) ELSE 0 END
             WHERE state < 4;
             UPDATE pairing SET expires_at = expires_at + $1",
        )
        .bind(self.0)
        .execute(&mut *tx.conn)
        .await?;
        Ok(())
    }
}

/// Whether a tool with an effect began in the turn.
async fn had_effect(tx: &mut Tx<'_>, turn: &str) -> Result<bool, StoreError> {
    Ok(sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM step WHERE turn = $1 AND effect = 'effect')")
        .bind(turn)
        .fetch_one(&mut *tx.conn)
        .await?)
}

/// Counts again what is counted, and ends holds that no clock explains.
async fn set_right(tx: &mut Tx<'_>, now: i64) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE session SET pending = c.n, suspects = c.suspects,
             ready_seq = CASE WHEN lease_boot IS NULL AND c.n > 0 THEN coalesce(ready_seq, 0) END
         FROM (SELECT session, sum(state = 0) AS n, sum(state = 0 AND suspect) AS suspects
               FROM inbox INDEXED BY inbox_open WHERE state < 2 GROUP BY session) c
         WHERE session.id = c.session AND (pending <> c.n OR session.suspects <> c.suspects
                                          OR (ready_seq IS NULL AND lease_boot IS NULL AND c.n > 0));
         UPDATE session INDEXED BY session_ready SET ready_seq = NULL, pending = 0, suspects = 0
         WHERE ready_seq IS NOT NULL
           AND NOT EXISTS (SELECT 1 FROM inbox INDEXED BY inbox_open WHERE session = session.id AND state < 2);
         UPDATE session INDEXED BY session_due SET hold_until = 0, not_before = 0
         WHERE ready_seq IS NOT NULL AND not_before > $1 AND parked_until IS NULL;
         UPDATE outbox INDEXED BY outbox_open SET not_before = 0 WHERE state < 4 AND not_before > $2",
    )
    .bind(now.saturating_add(MAX_HOLD_MS))
    .bind(now.saturating_add(MAX_PAUSE_MS))
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

/// Deletes what is past its time.
struct Prune {
    now: i64,
    keep: Retention,
}

#[async_trait]
impl Write for Prune {
    type Answer = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let statements = [
            ("DELETE FROM pairing WHERE seq IN (SELECT seq FROM pairing WHERE expires_at <= $1 LIMIT $2)", 0),
            (
                "DELETE FROM inbox WHERE seq IN (
                     SELECT seq FROM inbox INDEXED BY inbox_settled WHERE state = 2 AND settled_at < $1 LIMIT $2)",
                self.keep.keys_ms.max(MIN_KEYS_MS),
            ),
            (
                "DELETE FROM inbox WHERE seq IN (
                     SELECT seq FROM inbox INDEXED BY inbox_dead WHERE state = 3 AND settled_at < $1 LIMIT $2)",
                self.keep.dead_ms.max(MIN_KEYS_MS),
            ),
            (
                "DELETE FROM outbox WHERE seq IN (
                     SELECT seq FROM outbox INDEXED BY outbox_settled WHERE settled_at < $1 LIMIT $2)",
                self.keep.parts_ms,
            ),
            // The oldest only: events are in the order of time, but for jumps of the clock.
            (
                "DELETE FROM event WHERE seq IN (SELECT seq FROM event ORDER BY seq LIMIT $2) AND at < $1",
                self.keep.events_ms,
            ),
            // What was heard is in the order of time too.
            (
                "DELETE FROM heard WHERE seq IN (SELECT seq FROM heard ORDER BY seq LIMIT $2) AND at < $1",
                self.keep.heard_ms,
            ),
            (
                "DELETE FROM hook WHERE seq IN (
                     SELECT seq FROM hook INDEXED BY hook_created
                     WHERE created_at < $1 AND entry IS NOT NULL LIMIT $2)",
                self.keep.keys_ms.max(MIN_KEYS_MS),
            ),
            (
                "UPDATE step SET args = NULL, result = NULL WHERE rowid IN (
                     SELECT rowid FROM step INDEXED BY step_bodies WHERE args IS NOT NULL AND started_at < $1 LIMIT $2)",
                self.keep.step_bodies_ms,
            ),
        ];
        let mut left = PRUNE;
        for (sql, keep_ms) in statements {
            if left == 0 {
                break;
            }
            let done =
                sqlx::query(sql).bind(self.now.saturating_sub(keep_ms)).bind(left).execute(&mut *tx.conn).await?;
            left -= i64::try_from(done.rows_affected()).unwrap_or(left);
        }
        Ok(left == 0)
    }
}

/// Finds out whether commits work.
struct Probe(i64);

#[async_trait]
impl Write for Probe {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        sqlx::query("INSERT INTO probe (id, at) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET at = excluded.at")
            .bind(self.0)
            .execute(&mut *tx.conn)
            .await?;
        Ok(())
    }
}
