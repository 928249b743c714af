//! The chats in which somebody wrote, kept when the messages are gone.

use async_trait::async_trait;
use channel_api::{ChannelId, ConversationKind, Trust};
use sqlx::sqlite::SqliteRow;

use super::{SqliteStore, get, json, to_json, writer::Tx};
use crate::{
    chats::{ChatRow, ChatStore, Place},
    policy::Role,
    session::SessionKey,
    store::{NewEntry, StoreError},
};

/// What is written of a chat at most once in this time while nothing about it changes.
const SEEN_MS: i64 = 60_000;

fn chat(row: &SqliteRow) -> Result<ChatRow, StoreError> {
    Ok(ChatRow {
        session: SessionKey::from(get::<String>(row, 0)?),
        channel: ChannelId::from(get::<String>(row, 1)?),
        agent: get(row, 2)?,
        role: Role::parse(get(row, 3)?),
        place: json(row, 4)?,
        seen_at: get(row, 5)?,
    })
}

/// The row of a chat in which somebody wrote just now.
pub(super) struct Seen {
    place: String,
}

impl Seen {
    /// What is kept of this message's chat; none of an errand's.
    pub(super) fn of(new: &NewEntry) -> Result<Option<Self>, StoreError> {
        let inbound = &new.inbound;
        if new.errand.is_some() || inbound.trust != Trust::Own {
            return Ok(None);
        }
        let place = Place {
            conversation: inbound.conversation.clone(),
            address: inbound.address.clone(),
            sender: inbound.sender.clone(),
        };
        Ok(Some(Self { place: to_json(&place)? }))
    }

    /// Keeps it.
    pub(super) async fn keep(&self, tx: &mut Tx<'_>, new: &NewEntry) -> Result<(), StoreError> {
        let inbound = &new.inbound;
        sqlx::query(
            "INSERT INTO chat (session, channel, peer, direct, agent, role, place, seen_at)
             VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
             ON CONFLICT (session) DO UPDATE SET
                 channel = excluded.channel, peer = excluded.peer, agent = excluded.agent, role = excluded.role,
                 place = excluded.place, seen_at = excluded.seen_at
             WHERE seen_at <= excluded.seen_at - $9 OR role <> excluded.role OR place <> excluded.place",
        )
        .bind(new.session.as_str())
        .bind(inbound.channel.as_str())
        .bind(&inbound.conversation.id)
        .bind(inbound.conversation.kind == ConversationKind::Direct)
        .bind(&new.agent)
        .bind(new.role.as_str())
        .bind(&self.place)
        .bind(new.received_at)
        .bind(SEEN_MS)
        .execute(&mut *tx.conn)
        .await?;
        Ok(())
    }
}

#[async_trait]
impl ChatStore for SqliteStore {
    async fn owner_chats(&self, agent: &str, limit: u32) -> Result<Vec<ChatRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT session, channel, agent, role, place, seen_at FROM chat INDEXED BY chat_owner
             WHERE direct AND role = 'owner' AND agent = $1 ORDER BY seen_at DESC LIMIT $2",
        )
        .bind(agent)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(chat).collect()
    }

    async fn chats_at(&self, channel: &ChannelId, peer: &str, limit: u32) -> Result<Vec<ChatRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT session, channel, agent, role, place, seen_at FROM chat INDEXED BY chat_peer
             WHERE channel = $1 AND peer = $2 ORDER BY seen_at DESC LIMIT $3 + 0",
        )
        .bind(channel.as_str())
        .bind(peer)
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(chat).collect()
    }

    async fn chat_of(&self, session: &SessionKey) -> Result<Option<ChatRow>, StoreError> {
        let row = sqlx::query("SELECT session, channel, agent, role, place, seen_at FROM chat WHERE session = $1")
            .bind(session.as_str())
            .fetch_optional(&self.readers)
            .await?;
        row.as_ref().map(chat).transpose()
    }

    async fn chats(&self, limit: u32) -> Result<Vec<ChatRow>, StoreError> {
        let rows = sqlx::query(
            "SELECT session, channel, agent, role, place, seen_at FROM chat INDEXED BY chat_seen
             ORDER BY seen_at DESC LIMIT $1 + 0",
        )
        .bind(i64::from(limit))
        .fetch_all(&self.readers)
        .await?;
        rows.iter().map(chat).collect()
    }
}
