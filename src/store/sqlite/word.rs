//! Words that a running turn says to other chats.

use async_trait::async_trait;

use super::{
    outbox, session, to_json,
    writer::{Tx, Write},
};
use crate::{
    model::Message,
    store::{LaneKey, StoreError, Word},
};

#[async_trait]
impl Write for Word {
    type Answer = Vec<LaneKey>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<LaneKey>, StoreError> {
        let Some(first) = self.parts.first() else { return Ok(Vec::new()) };
        session::fence(tx, &self.lease).await?;
        let known: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM outbox WHERE id = $1)")
            .bind(first.id.as_str())
            .fetch_one(&mut *tx.conn)
            .await?;
        if known {
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
            .bind(self.lease.turn.as_str())
            .bind(self.now)
            .bind(to_json(&said)?)
            .execute(&mut *tx.conn)
            .await?;
        }
        Ok(lanes)
    }
}
