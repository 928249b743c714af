//! Words to the chats that somebody wrote in.

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;

use super::{
    SqliteStore, get, json, outbox, to_json,
    writer::{Tx, Write},
};
use crate::{
    addressees::{Addressee, AddresseeStore, Word},
    chats::Place,
    model::Message,
    session::SessionKey,
    store::{LaneKey, StoreError},
};

fn addressee(row: &SqliteRow) -> Result<Addressee, StoreError> {
    let Place { conversation, address, sender } = json(row, 2)?;
    Ok(Addressee {
        session: SessionKey::from(get::<String>(row, 0)?),
        agent: get(row, 1)?,
        address,
        conversation,
        sender,
        owners: get(row, 3)?,
        seen_at: get(row, 4)?,
    })
}

#[async_trait]
impl AddresseeStore for SqliteStore {
    async fn addressee(&self, session: &SessionKey) -> Result<Option<Addressee>, StoreError> {
        let row = sqlx::query("SELECT session, agent, place, role = 'owner', seen_at FROM chat WHERE session = $1")
            .bind(session.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(addressee).transpose()
    }

    async fn addressees(&self, limit: u32) -> Result<Vec<Addressee>, StoreError> {
        let rows = sqlx::query(
            "SELECT session, agent, place, role = 'owner', seen_at FROM chat ORDER BY seen_at DESC LIMIT $1 + 0",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(addressee).collect()
    }

    async fn say(&self, word: Word) -> Result<Vec<LaneKey>, StoreError> {
        self.write(word).await
    }
}

#[async_trait]
impl Write for Word {
    type Answer = Vec<LaneKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneKey>, StoreError> {
        let Some(first) = self.parts.first() else { return Ok(Vec::new()) };
        let known: Option<bool> = sqlx::query_scalar(
            "SELECT EXISTS (SELECT 1 FROM outbox WHERE id = $3) FROM session WHERE key = $1 AND lease_turn = $2",
        )
        .bind(self.session.as_str())
        .bind(self.turn.as_str())
        .bind(first.id.as_str())
        .fetch_optional(&mut *tx.conn)
        .await?;
        if known.ok_or(StoreError::Fenced)? {
            return Ok(Vec::new());
        }
        let lanes = outbox::insert(tx, &self.parts, &outbox::Insert::default()).await?.lanes;
        if let Some((session, text)) = &self.heard {
            // Who answers there knows what was said.
            let said = Message::Assistant { text: text.clone(), calls: Vec::new(), opaque: None };
            sqlx::query(
                "INSERT INTO message (session, generation, turn, created_at, place, body)
                 SELECT id, generation, $2, $3, messages, $4 FROM session WHERE key = $1;
                 UPDATE session SET messages = messages + 1 WHERE key = $1",
            )
            .bind(session.as_str())
            .bind(self.turn.as_str())
            .bind(self.now)
            .bind(to_json(&said)?)
            .execute(&mut *tx.conn)
            .await?;
        }
        Ok(lanes)
    }
}
