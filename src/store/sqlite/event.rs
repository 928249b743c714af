//! Events for watchers: rows written with what they tell of, read by sequence.

use async_trait::async_trait;
use channel_api::InboxId;
use serde_json::{Value, json as value};

use super::{SqliteStore, get, json, to_json, writer::Tx};
use crate::{
    session::SessionKey,
    store::{EventFilter, EventRow, EventStore, NewPart, StoreError},
};

#[async_trait]
impl EventStore for SqliteStore {
    async fn events(&self, after: i64, filter: EventFilter, limit: u32) -> Result<Vec<EventRow>, StoreError> {
        let query = match (&filter.task, &filter.session) {
            (Some(task), session) => sqlx::query(
                "SELECT seq, task, session, kind, data, at FROM event
                 WHERE task = $3 AND ($4 IS NULL OR session = $4) AND seq > $1 ORDER BY seq LIMIT $2",
            )
            .bind(after)
            .bind(i64::from(limit))
            .bind(task.as_str())
            .bind(session.as_ref().map(|key| key.as_str())),
            (None, session) => sqlx::query(
                "SELECT seq, task, session, kind, data, at FROM event
                 WHERE seq > $1 AND ($3 IS NULL OR session = $3) ORDER BY seq LIMIT $2",
            )
            .bind(after)
            .bind(i64::from(limit))
            .bind(session.as_ref().map(|key| key.as_str())),
        };
        let rows = query.fetch_all(&self.readers).await?;
        rows.iter()
            .map(|row| {
                Ok(EventRow {
                    seq: get(row, 0)?,
                    task: InboxId::from(get::<String>(row, 1)?),
                    session: SessionKey::from(get::<String>(row, 2)?),
                    kind: get(row, 3)?,
                    data: json(row, 4)?,
                    at: get(row, 5)?,
                })
            })
            .collect()
    }

    async fn last_event(&self) -> Result<i64, StoreError> {
        let last: Option<i64> = sqlx::query_scalar("SELECT max(seq) FROM event").fetch_one(&self.readers).await?;
        Ok(last.unwrap_or(0))
    }
}

/// Writes one event.
pub(super) async fn insert(
    tx: &mut Tx<'_>,
    task: &InboxId,
    session: &SessionKey,
    kind: &str,
    data: Value,
    at: i64,
) -> Result<EventRow, StoreError> {
    let seq: i64 = sqlx::query_scalar(
        "INSERT INTO event (task, session, kind, data, at) VALUES ($1, $2, $3, $4, $5) RETURNING seq",
    )
    .bind(task.as_str())
    .bind(session.as_str())
    .bind(kind)
    .bind(to_json(&data)?)
    .bind(at)
    .fetch_one(&mut *tx.conn)
    .await?;
    Ok(EventRow { seq, task: task.clone(), session: session.clone(), kind: kind.to_owned(), data, at })
}

/// What `task_complete` says of an answer: the parts of this message, joined, and why it is silent.
pub(super) fn completion(entry: &InboxId, parts: &[NewPart], silent: Option<&str>) -> Value {
    let texts: Vec<&str> =
        parts.iter().filter(|part| part.entry.as_ref() == Some(entry)).map(|part| part.part.text.as_str()).collect();
    let mut data = value!({ "result": texts.join("\n") });
    if let (Some(reason), Value::Object(data)) = (silent, &mut data) {
        data.insert("silent".to_owned(), reason.into());
    }
    data
}

/// Writes `task_complete` for an answered message.
pub(super) async fn completed(
    tx: &mut Tx<'_>,
    session: &SessionKey,
    entry: &InboxId,
    parts: &[NewPart],
    silent: Option<&str>,
    at: i64,
) -> Result<EventRow, StoreError> {
    insert(tx, entry, session, "task_complete", completion(entry, parts, silent), at).await
}

/// Writes `task_failed` for a message that will not be answered.
pub(super) async fn failed(
    tx: &mut Tx<'_>,
    session: &SessionKey,
    entry: &InboxId,
    error: &str,
    at: i64,
) -> Result<EventRow, StoreError> {
    insert(tx, entry, session, "task_failed", value!({ "error": error }), at).await
}
