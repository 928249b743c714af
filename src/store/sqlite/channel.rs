//! The channels' own small maps, and the groups that moved.

use async_trait::async_trait;
use channel_api::{ChannelId, Moved};

use super::{
    SqliteStore, get,
    writer::{Tx, Write},
};
use crate::store::{ChannelStore, StoreError};

#[async_trait]
impl ChannelStore for SqliteStore {
    async fn kv_get(&self, channel: &ChannelId, key: &str) -> Result<Option<String>, StoreError> {
        Ok(sqlx::query_scalar("SELECT value FROM channel_kv WHERE channel = $1 AND key = $2")
            .bind(channel.as_str())
            .bind(key)
            .fetch_optional(&self.readers)
            .await?)
    }

    async fn moves(&self) -> Result<Vec<(ChannelId, Moved)>, StoreError> {
        let rows = sqlx::query("SELECT channel, old, new FROM moved ORDER BY at, channel, old")
            .fetch_all(&self.readers)
            .await?;
        rows.iter()
            .map(|row| {
                let channel = ChannelId::from(get::<String>(row, 0)?);
                Ok((channel, Moved { from: get(row, 1)?, to: get(row, 2)? }))
            })
            .collect()
    }

    async fn kv_set(&self, channel: &ChannelId, key: &str, value: &str) -> Result<(), StoreError> {
        self.write(Set { channel: channel.clone(), key: key.to_owned(), value: value.to_owned() }).await
    }
}

struct Set {
    channel: ChannelId,
    key: String,
    value: String,
}

#[async_trait]
impl Write for Set {
    type Answer = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        set(tx, &self.channel, &self.key, &self.value).await
    }
}

/// Stores a value within a transaction.
pub(super) async fn set(tx: &mut Tx<'_>, channel: &ChannelId, key: &str, value: &str) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO channel_kv (channel, key, value) VALUES ($1, $2, $3)
         ON CONFLICT (channel, key) DO UPDATE SET value = excluded.value",
    )
    .bind(channel.as_str())
    .bind(key)
    .bind(value)
    .execute(&mut *tx.conn)
    .await?;
    Ok(())
}
