//! What became of messages, for adapters that answer in place, and the channel's own durable map.

use std::sync::Arc;

use async_trait::async_trait;
use channel_api::{
    ChannelId, ChannelKv, Clock, InboxId, KvError, LiveEvent, PartId, Settled, Settlements as SettlementsSeam,
};
use tokio::sync::mpsc;
use tracing::warn;

use crate::{
    journal::Journal,
    outbox::LaneWakeUp,
    store::{ChannelStore, InboxStore, OutboxStore},
    supervisor::Health,
};

/// Settlements of one channel.
pub struct Settlements {
    /// The channel.
    pub channel: ChannelId,
    /// Where messages are.
    pub inbox: Arc<dyn InboxStore>,
    /// Where parts are.
    pub outbox: Arc<dyn OutboxStore>,
    /// Tells of ends.
    pub journal: Journal,
    /// Wakes delivery.
    pub lanes: LaneWakeUp,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Is told what went out.
    pub health: Health,
}

#[async_trait]
impl SettlementsSeam for Settlements {
    async fn settled(&self, message: &InboxId) -> Option<Settled> {
        self.inbox.settled(message).await.unwrap_or_else(|error| {
            warn!(%error, entry = %message, "what became of a message could not be read");
            None
        })
    }

    async fn find(&self, platform_id: &str) -> Option<InboxId> {
        self.inbox.find(&self.channel, platform_id).await.unwrap_or_else(|error| {
            warn!(%error, "a message could not be looked up");
            None
        })
    }

    async fn watch(&self, message: &InboxId) -> mpsc::Receiver<LiveEvent> {
        let events = self.journal.wait_for(message);
        // Registered before the look, so that an end between the two is seen by one of them.
        if let Some(settled) = self.settled(message).await {
            self.journal.settled(message, &settled);
        }
        events
    }

    async fn handed_over(&self, message: &InboxId, parts: &[PartId]) {
        match self.outbox.handed_over(message, parts, self.clock.now_ms()).await {
            Ok(lanes) => {
                self.health.went_out(&self.channel, parts.len(), self.clock.now_ms());
                self.lanes.wake(lanes);
            }
            // They stay held and are delivered by callback, under the same ids, after the next start.
            Err(error) => warn!(%error, entry = %message, "an answer in place could not be marked as sent"),
        }
    }

    async fn release(&self, message: &InboxId) {
        match self.outbox.release_hold(message, self.clock.now_ms()).await {
            Ok(lanes) => self.lanes.wake(lanes),
            Err(error) => warn!(%error, entry = %message, "a held answer could not be released"),
        }
    }
}

/// The durable map of one channel.
pub struct Kv {
    /// The channel.
    pub channel: ChannelId,
    /// Where it is.
    pub store: Arc<dyn ChannelStore>,
}

#[async_trait]
impl ChannelKv for Kv {
    async fn get(&self, key: &str) -> Result<Option<String>, KvError> {
        self.store.kv_get(&self.channel, key).await.map_err(|error| KvError(error.to_string()))
    }

    async fn set(&self, key: &str, value: &str) -> Result<(), KvError> {
        self.store.kv_set(&self.channel, key, value).await.map_err(|error| KvError(error.to_string()))
    }
}
