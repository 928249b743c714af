//! Groups: what was said in them but not to the bot, from its arrival to the turn that is told of it, and moves to a new
//! id.

use sqlx::sqlite::SqliteRow;
use tracing::{info, warn};

use super::{get, session, writer::Tx};
use crate::{
    session::SessionKey,
    store::{Heard, MovedGroup, NewHeard, StoreError},
};

/// The most rows of one session, emptied ones too.
const SESSION_ROWS: i64 = 400;
/// The most rows of all sessions: only the newest are kept.
const ROWS: i64 = 100_000;

/// The columns of a [`Heard`], in the order [`heard`] reads them.
macro_rules! heard_columns {
    () => {
        "seq, sender, name, text, at"
    };
}
pub(super) use heard_columns;

/// How many `heard_columns!` there are: tells their rows from others of the same script.
pub(super) const HEARD_COLUMNS: usize = 5;

/// Reads `heard_columns!`.
pub(super) fn heard(row: &SqliteRow) -> Result<Heard, StoreError> {
    Ok(Heard {
        seq: get(row, 0)?,
        sender: get(row, 1)?,
        name: get(row, 2)?,
        text: get::<Option<String>>(row, 3)?.unwrap_or_default(),
        at: get(row, 4)?,
    })
}

/// Keeps one message, once, and forgets what is over the bounds.
pub(super) async fn hear(tx: &mut Tx<'_>, new: &NewHeard) -> Result<(), StoreError> {
    let row = sqlx::query(
        "INSERT INTO heard (channel, platform_id, session, sender, name, text, at) VALUES ($1, $2, $3, $4, $5, $6, $7)
         ON CONFLICT (channel, platform_id) DO NOTHING RETURNING seq",
    )
    .bind(new.channel.as_str())
    .bind(&new.platform_id)
    .bind(new.session.as_str())
    .bind(&new.sender)
    .bind(&new.name)
    .bind(&new.text)
    .bind(new.at)
    .fetch_optional(&mut *tx.conn)
    .await?;
    match row {
        Some(row) => bound(tx, new, get(&row, 0)?).await,
        None => Ok(()),
    }
}

/// Keeps the key of an event, so that it does something once; its row, or `None` when it was here before.
pub(super) async fn once(tx: &mut Tx<'_>, new: &NewHeard) -> Result<Option<i64>, StoreError> {
    let row = sqlx::query(
        "INSERT INTO heard (channel, platform_id, session, sender, at) VALUES ($1, $2, $3, '', $4)
         ON CONFLICT (channel, platform_id) DO NOTHING RETURNING seq",
    )
    .bind(new.channel.as_str())
    .bind(&new.platform_id)
    .bind(new.session.as_str())
    .bind(new.at)
    .fetch_optional(&mut *tx.conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let seq = get(&row, 0)?;
    bound(tx, new, seq).await?;
    Ok(Some(seq))
}

/// Gives an event that was kept by [`once`] words for the next turn.
pub(super) async fn tell(tx: &mut Tx<'_>, seq: i64, new: &NewHeard, text: &str) -> Result<(), StoreError> {
    sqlx::query("UPDATE heard SET text = $2, name = $3, sender = $4 WHERE seq = $1")
        .bind(seq)
        .bind(text)
        .bind(&new.name)
        .bind(&new.sender)
        .execute(&mut *tx.conn)
        .await?;
    Ok(())
}

/// Forgets what is over the bounds with this newest row.
async fn bound(tx: &mut Tx<'_>, new: &NewHeard, newest: i64) -> Result<(), StoreError> {
    // What a turn was given is not its group's to forget: it goes with the turn.
    sqlx::query(
        "UPDATE heard SET text = NULL, name = NULL, sender = ''
         WHERE session = $1 AND text IS NOT NULL AND turn IS NULL
           AND seq <= (SELECT seq FROM heard INDEXED BY heard_live
                       WHERE session = $1 AND text IS NOT NULL AND turn IS NULL
                       ORDER BY seq DESC LIMIT 1 OFFSET $2 + 0);
         DELETE FROM heard
         WHERE session = $1 AND text IS NULL
           AND seq <= (SELECT seq FROM heard INDEXED BY heard_session
                       WHERE session = $1 ORDER BY seq DESC LIMIT 1 OFFSET $3 + 0);
         DELETE FROM heard WHERE seq <= $4",
    )
    .bind(new.session.as_str())
    .bind(i64::from(new.keep))
    .bind(SESSION_ROWS)
    .bind(newest - ROWS)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

/// Forgets what a turn was given: nobody is told of it again.
pub(super) async fn forget(tx: &mut Tx<'_>, session: &SessionKey, turn: &str) -> Result<(), StoreError> {
    sqlx::query(
        "UPDATE heard SET text = NULL, name = NULL, sender = '' WHERE session = $1 AND text IS NOT NULL AND turn = $2",
    )
    .bind(session.as_str())
    .bind(turn)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}

/// Gives the sessions of a group its new id, and what was heard there with them.
pub(super) async fn move_to(tx: &mut Tx<'_>, moved: &MovedGroup) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO moved (channel, old, new, at) VALUES ($1, $2, $3, $4)
         ON CONFLICT (channel, old) DO UPDATE SET new = excluded.new, at = excluded.at",
    )
    .bind(moved.channel.as_str())
    .bind(&moved.from)
    .bind(&moved.to)
    .bind(moved.at)
    .execute(&mut *tx.conn)
    .await?;
    let target = |key: &str| {
        let key = SessionKey::from(key.to_owned());
        key.moved(&moved.channel, moved.account_in_key, &moved.from, &moved.to)
    };
    let segment = SessionKey::group_segment(&moved.channel, moved.account_in_key, &moved.from);
    let rows = sqlx::query("SELECT id, key, lease_boot IS NOT NULL FROM session WHERE instr(key, $1) > 0")
        .bind(&segment)
        .fetch_all(&mut *tx.conn)
        .await?;
    for row in &rows {
        let (id, old, leased): (i64, &str, bool) = (get(row, 0)?, get(row, 1)?, get(row, 2)?);
        let Some(new) = target(old) else { continue };
        let done = sqlx::query(
            "UPDATE session SET key = $2, epoch = epoch + $3
             WHERE id = $1 AND NOT EXISTS (SELECT 1 FROM session WHERE key = $2)",
        )
        .bind(id)
        .bind(new.as_str())
        .bind(i64::from(leased))
        .execute(&mut *tx.conn)
        .await?;
        if done.rows_affected() == 0 {
            // What waits in the old one is answered from there; new messages go to the new one.
            warn!(%old, %new, "a group has a new id and a session under it already: the old one keeps its history to itself");
            continue;
        }
        info!(%old, %new, "a group has a new id: its session goes on under it");
        if leased {
            // Whoever works on it holds the old key: it is fenced off, and the same turn goes on under the new one.
            sqlx::query(
                "UPDATE inbox INDEXED BY inbox_open SET state = 0 WHERE session = $1 AND state < 2 AND state = 1",
            )
            .bind(id)
            .execute(&mut *tx.conn)
            .await?;
            session::free(tx, id, 0, false).await?;
        }
    }
    let sessions: Vec<String> = sqlx::query_scalar("SELECT DISTINCT session FROM heard WHERE instr(session, $1) > 0")
        .bind(&segment)
        .fetch_all(&mut *tx.conn)
        .await?;
    for old in &sessions {
        let Some(new) = target(old) else { continue };
        sqlx::query("UPDATE heard SET session = $2 WHERE session = $1")
            .bind(old)
            .bind(new.as_str())
            .execute(&mut *tx.conn)
            .await?;
    }
    Ok(())
}
