//! What is SQLite's own: plans, files that are refused, and what a killed process leaves behind.

use std::{path::Path, sync::Arc};

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, sqlite::SqliteConnectOptions};

use super::{
    OpenError, SqliteStore, claim, get, outbox,
    writer::{Tx, Write},
};
use crate::store::{
    ClaimAsk, ClaimKind, InboxStore as _, LedgerStore as _, NewBatch, OutboxStore as _, SessionStore as _, SpentAsk,
    SpentBy, SpentOf, Store, StoreError, Stored, TurnStore as _, Upkeep as _,
    conformance::{boot, finish_of, ids, key, lane_of, new_entry, new_part},
};

async fn open(path: &Path) -> SqliteStore {
    SqliteStore::open(path).await.expect("opens")
}

async fn plan(store: &SqliteStore, sql: &'static str) -> Vec<String> {
    let explain = AssertSqlSafe(format!("EXPLAIN QUERY PLAN {sql}"));
    let rows = sqlx::query(explain).fetch_all(&store.readers).await.expect("explains");
    rows.iter().map(|row| get(row, 3).expect("a text")).collect()
}

#[tokio::test]
async fn a_claim_searches_the_partial_indexes_and_never_scans_a_table() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir.path().join("t.db")).await;
    let claims =
        [(claim::ORDINARY, "session_ready"), (claim::SUSPECT, "session_suspect"), (claim::FEARED, "session_suspect")];
    for (sql, index) in claims {
        let plan = plan(&store, sql).await;
        assert!(plan.iter().any(|line| line.contains(&format!("USING COVERING INDEX {index}"))), "{plan:#?}");
        assert!(plan.iter().any(|line| line.starts_with("SEARCH i USING INDEX inbox_open (session=?)")), "{plan:#?}");
        assert!(plan.iter().any(|line| line.starts_with("SEARCH s USING INTEGER PRIMARY KEY")), "{plan:#?}");
        let scans = plan.iter().filter(|line| line.starts_with("SCAN")).collect::<Vec<_>>();
        assert!(
            scans.iter().all(|line| line.contains(index) || line.as_str() == "SCAN ready"),
            "only the short list is walked: {plan:#?}"
        );
    }
    let plan = plan(&store, outbox::FIRST).await;
    assert_eq!(plan, ["SEARCH outbox USING INDEX outbox_open (channel=? AND lane=?)"]);
}

#[tokio::test]
async fn a_claim_among_many_sessions_finds_the_right_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir.path().join("t.db")).await;
    // 5,000 sessions wait for their time, 14,999 have nothing to do, one is due.
    let mut conn = SqliteConnectOptions::new().filename(dir.path().join("t.db")).connect().await.expect("connects");
    sqlx::query(
        "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 19999)
         INSERT INTO session (key, agent, pending, ready_seq, not_before, created_at, updated_at)
         SELECT 's' || n, 'main', n <= 5000, CASE WHEN n <= 5000 THEN n END, CASE WHEN n <= 5000 THEN 9000 ELSE 0 END, 0, 0 FROM n;
         INSERT INTO inbox (id, channel, platform_id, session, sender, role, mode, state, not_before, received_at, bytes, payload)
         SELECT 'in_' || key, 'test:x', key, id, 'a', 'member', 'followup', 0, 9000, 0, 2, '{}' FROM session WHERE pending",
    )
    .execute(&mut conn)
    .await
    .expect("fills");
    conn.close().await.expect("closes");
    store
        .accept(NewBatch { entries: vec![new_entry("due", "due", "a")], ..NewBatch::default() })
        .await
        .expect("accepts");
    let ask = ClaimAsk { boot: boot("bt_1"), now: 2_000, max: 9, max_entries: 20, kind: ClaimKind::Ordinary };
    let claims = store.claim(&ask).await.expect("claims");
    assert_eq!(claims.iter().map(ids).collect::<Vec<_>>(), [["due"]]);
    assert!(store.claim(&ask).await.expect("claims").is_empty());
    assert_eq!(store.next_due(2_000).await, Ok(Some(9_000)));
}

#[tokio::test]
async fn a_count_no_call_can_take_breaks_no_sum() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir.path().join("t.db")).await;
    let mut conn = SqliteConnectOptions::new().filename(dir.path().join("t.db")).connect().await.expect("connects");
    // As an older version wrote what a provider claimed: a session whose sum has become a floating-point number.
    sqlx::query(
        "INSERT INTO session (key, agent, created_at, updated_at, tokens_in, tokens_out, tokens_cached)
         VALUES ('s', 'main', 0, 0, 9223372036854775807 + 9223372036854775807.0, 9223372036854775807, 3)",
    )
    .execute(&mut conn)
    .await
    .expect("fills");
    for id in ["a", "b", "c"] {
        sqlx::query(
            "INSERT INTO spend (id, session, agent, sender, model, purpose, day, at, tokens_in, tokens_out,
                                tokens_cached, tokens_cache_write, estimated, currency, nano)
             VALUES ($1, 1, 'main', 'test:main a', 'main', 'turn', '2026-11-30', 1, 9223372036854775807,
                     9223372036854775807, 9223372036854775807, 9223372036854775807, 0, 'CNY', 9223372036854775807)",
        )
        .bind(id)
        .execute(&mut conn)
        .await
        .expect("fills");
    }
    conn.close().await.expect("closes");
    let day = store.spent_on("2026-11-30").await.expect("reads");
    assert_eq!((day.len(), day[0].tokens, day[0].cost.expect("a cost").nano), (1, 6_000_000_000, i64::MAX));
    for by in [SpentBy::Total, SpentBy::Day, SpentBy::Model, SpentBy::Sender, SpentBy::Session] {
        for of in [SpentOf::All, SpentOf::Session(key("s")), SpentOf::Sender("test:main a".to_owned())] {
            let ask = SpentAsk { by, of, since: None, until: None, limit: 5 };
            let rows = store.spent(&ask).await.expect("reads");
            let usage = rows[0].usage;
            assert_eq!((rows.len(), rows[0].calls, usage.input, usage.output), (1, 3, 3_000_000_000, 3_000_000_000));
        }
    }
    let row = store.session(&key("s")).await.expect("reads").expect("a session");
    assert_eq!(
        (row.usage.input, row.usage.output, row.usage.cached),
        (1_000_000_000_000_000, 1_000_000_000_000_000, 3)
    );
}

#[tokio::test]
async fn a_message_of_an_unknown_kind_is_left_out_of_the_history() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir.path().join("t.db")).await;
    let mut conn = SqliteConnectOptions::new().filename(dir.path().join("t.db")).connect().await.expect("connects");
    let bodies = [
        r#"{"role":"user","text":"a"}"#,
        r#"{"role":"summary","text":"of a later version"}"#,
        r#"{"role":"assistant","text":"b","mood":"of a later version"}"#,
        r#"{"role":"tool","call_id":3}"#,
        r#"{"role":"user","text":"c"}"#,
    ];
    sqlx::query("INSERT INTO session (key, agent, created_at, updated_at) VALUES ('s', 'main', 0, 0)")
        .execute(&mut conn)
        .await
        .expect("fills");
    for (place, body) in bodies.iter().enumerate() {
        sqlx::query(
            "INSERT INTO message (session, generation, turn, created_at, place, body) VALUES (1, 0, 'tn_1', 0, $1, $2)",
        )
        .bind(i64::try_from(place).expect("small"))
        .bind(body)
        .execute(&mut conn)
        .await
        .expect("fills");
    }
    conn.close().await.expect("closes");
    let history = store.history(&key("s"), 0, 80, 1 << 20).await.expect("reads");
    let texts: Vec<String> =
        history.iter().map(|message| serde_json::to_value(message).expect("JSON")["text"].to_string()).collect();
    assert_eq!(texts, ["\"a\"", "\"b\"", "\"c\""]);
}

#[tokio::test]
async fn what_is_left_of_a_lost_database_is_no_new_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let (path, log) = (dir.path().join("t.db"), dir.path().join("t.db-wal"));
    let refused = async || matches!(SqliteStore::open(&path).await, Err(OpenError::Corrupt(_)));
    std::fs::write(&path, "").expect("written");
    assert!(refused().await, "an empty file");
    assert_eq!(std::fs::metadata(&path).expect("still there").len(), 0, "it is left as it was");
    std::fs::remove_file(&path).expect("removed");
    std::fs::write(&log, "pages").expect("written");
    assert!(refused().await, "a log without its file");
    assert_eq!(std::fs::read(&log).expect("still there"), b"pages");
    std::fs::write(&log, "").expect("written");
    open(&path).await.close().await;
    open(&path).await.close().await;
}

#[tokio::test]
async fn a_killed_process_leaves_every_answered_write_behind() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("t.db");
    let mut answered: Vec<String> = Vec::new();
    for round in 0..4 {
        let store: Arc<dyn Store> = Arc::new(open(&path).await);
        assert_eq!(store.load().await.expect("counts").queued, answered.len() as u64, "the gauge is counted at open");
        for id in &answered {
            assert!(store.find(&new_entry("x", "s", "a").inbound.channel, id).await.expect("reads").is_some());
        }
        let mut writes = tokio::task::JoinSet::new();
        for n in 0..50 {
            let (store, id) = (store.clone(), format!("{round}-{n}"));
            writes.spawn(async move {
                let entries = vec![new_entry(&id, &format!("s{n}"), "a")];
                let stored = store.accept(NewBatch { entries, ..NewBatch::default() }).await.expect("accepts");
                assert!(matches!(stored[0], Stored::New { .. }));
                id
            });
        }
        answered.extend(writes.join_all().await);
        // Dropped, not closed: the writer's task is aborted where it stands.
        drop(store);
    }
    let store = open(&path).await;
    // A claim and a part on its way when the process died.
    let ask = ClaimAsk { boot: boot("bt_1"), now: 2_000, max: 2, max_entries: 20, kind: ClaimKind::Ordinary };
    let claims = store.claim(&ask).await.expect("claims");
    let part = new_part("p", None, "lane");
    store.finish(finish_of(&claims[0], vec![part])).await.expect("finishes");
    let taken = store.next_part(&lane_of("lane"), &boot("bt_1"), 2_000).await.expect("answers");
    assert!(matches!(taken, crate::store::NextPart::Send(_)));
    drop(store);
    let store = open(&path).await;
    let found = store.recover(&boot("bt_2"), 3_000, crate::store::no_apology()).await.expect("recovers");
    assert_eq!((found.entries, found.dead, found.uncertain), (1, 0, 1));
    assert_eq!(store.load().await.expect("counts").queued, answered.len() as u64 - 1);
    store.check().await.expect("is healthy");
    store.close().await;
}

/// Lets the writer's database grow no further, or again.
struct Room(bool);

#[async_trait]
impl Write for Room {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let sql = if self.0 { "PRAGMA max_page_count = 1000000" } else { "PRAGMA max_page_count = 1" };
        sqlx::query(sql).persistent(false).fetch_all(&mut *tx.conn).await?;
        Ok(())
    }
}

#[tokio::test]
async fn a_full_disk_acknowledges_nothing_and_ends_without_a_restart() {
    let dir = tempfile::tempdir().expect("a folder");
    let store = open(&dir.path().join("t.db")).await;
    let big = |id: &str| {
        let mut entry = new_entry(id, id, "a");
        entry.inbound.text = "x".repeat(100_000);
        store.accept(NewBatch { entries: vec![entry], ..NewBatch::default() })
    };
    assert!(big("1").await.is_ok());
    store.write(Room(false)).await.expect("shrinks");
    let (a, b) = tokio::join!(big("2"), big("3"));
    for refused in [a, b] {
        assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    }
    assert_eq!(store.load().await.expect("counts").queued, 1);
    let channel = new_entry("x", "s", "a").inbound.channel;
    assert_eq!(store.find(&channel, "2").await, Ok(None), "it may come again");
    store.write(Room(true)).await.expect("grows");
    assert!(matches!(big("2").await.expect("accepts")[0], Stored::New { .. }));
    assert_eq!(store.load().await.expect("counts").queued, 2);
    store.check().await.expect("is healthy");
}

#[tokio::test]
async fn files_that_are_not_ours_are_refused_and_left_alone() {
    let dir = tempfile::tempdir().expect("a folder");
    let text = dir.path().join("text.db");
    std::fs::write(&text, "this is not a database, whatever its name says".repeat(100)).expect("writes");
    let before = std::fs::read(&text).expect("reads");
    assert!(matches!(SqliteStore::open(&text).await, Err(OpenError::Corrupt(_))));
    assert_eq!(std::fs::read(&text).expect("reads"), before);

    let newer = dir.path().join("newer.db");
    open(&newer).await.close().await;
    let mut conn = SqliteConnectOptions::new().filename(&newer).connect().await.expect("connects");
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (99, 'x', 1, x'', 0)",
    )
    .execute(&mut conn)
    .await
    .expect("inserts");
    conn.close().await.expect("closes");
    assert!(matches!(SqliteStore::open(&newer).await, Err(OpenError::Newer { found: 99, .. })));

    let folder = dir.path().join("missing").join("t.db");
    assert!(matches!(SqliteStore::open(&folder).await, Err(OpenError::Io(_))));

    let foreign = dir.path().join("foreign.db");
    let mut conn =
        SqliteConnectOptions::new().filename(&foreign).create_if_missing(true).connect().await.expect("connects");
    sqlx::query("CREATE TABLE session (x)").execute(&mut conn).await.expect("creates");
    conn.close().await.expect("closes");
    assert!(matches!(SqliteStore::open(&foreign).await, Err(OpenError::Corrupt(_))));
}
