//! Where the gateway can speak first: chats in which somebody wrote, who the owner is there, and what they may still do.
//!
//! An address is made by its adapter alone, so a chat is one that was written in; nobody can be made up. Rights are asked
//! for anew each time, at the same gate as a message's.

use std::sync::Arc;

use async_trait::async_trait;
use channel_api::{Address, ChannelId, Conversation, ConversationKind, Inbound, InboundKind, Sender, Trust};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    channels::Channels,
    intake::{access::Admission, pairing::Access},
    policy::Role,
    session::SessionKey,
    store::StoreError,
};

/// Chats of the owner that are looked at.
const CHATS: u32 = 20;

/// A chat in which the gateway can speak first.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The conversation.
    pub conversation: Conversation,
    /// Where answers go.
    pub address: Address,
    /// Who wrote there.
    pub sender: Sender,
}

/// A chat somebody wrote in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatRow {
    /// Its session.
    pub session: SessionKey,
    /// Its channel.
    pub channel: ChannelId,
    /// Its agent.
    pub agent: String,
    /// The role of whoever wrote last.
    pub role: Role,
    /// Where it is.
    pub place: Place,
    /// When that was.
    pub seen_at: i64,
}

/// The chats that are known.
#[async_trait]
pub trait ChatStore: Send + Sync + 'static {
    /// Direct chats of this agent in which an owner wrote last, newest first.
    async fn owner_chats(&self, agent: &str, limit: u32) -> Result<Vec<ChatRow>, StoreError>;

    /// The chat of that conversation, the newest of its threads.
    async fn chat(&self, channel: &ChannelId, peer: &str) -> Result<Option<ChatRow>, StoreError>;
}

/// Why somebody may not have something done in a chat any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Barred {
    /// Their channel is not configured any more.
    NoChannel,
    /// They are blocked.
    Blocked,
    /// They may not write there.
    NotAllowed,
}

/// Finds chats and asks the gate about them. Cheap to clone.
#[derive(Clone)]
pub struct Chats {
    /// The rows.
    pub rows: Arc<dyn ChatStore>,
    /// Whose gates are asked.
    pub channels: Channels,
    /// Who was let in and who is shut out.
    pub access: Arc<Access>,
}

impl Chats {
    /// The role of a chat's sender now.
    ///
    /// # Errors
    /// Why they have none.
    pub fn role(&self, place: &Place) -> Result<Role, Barred> {
        let channel = &place.address.channel;
        let entry = self.channels.get(channel).ok_or(Barred::NoChannel)?;
        let rights = self.access.rights(channel, &place.sender.id);
        if rights.blocked && !entry.gate.is_owners_own() {
            return Err(Barred::Blocked);
        }
        match entry.gate.admit(&word(place), rights.paired, rights.blocked) {
            Admission::Admit(role) => Ok(role),
            _ => Err(Barred::NotAllowed),
        }
    }

    /// The session and agent of a chat as they are configured now.
    pub fn session(&self, place: &Place) -> Option<(SessionKey, String)> {
        let entry = self.channels.get(&place.address.channel)?;
        let sender = Some(place.sender.id.as_str());
        Some((entry.session(&place.conversation, sender), entry.agent(&place.conversation, sender).to_owned()))
    }

    /// The owner's last direct chat with this agent on a chat platform, else the web chat if they ever wrote there.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn owner(&self, agent: &str) -> Result<Option<ChatRow>, StoreError> {
        let chats = self.rows.owner_chats(agent, CHATS).await?;
        let still_owner = |chat: &&ChatRow| self.role(&chat.place) == Ok(Role::Owner);
        let own = |chat: &ChatRow| self.channels.get(&chat.channel).is_some_and(|entry| entry.gate.is_owners_own());
        let elsewhere = chats.iter().filter(still_owner).find(|chat| !own(chat));
        Ok(elsewhere.or_else(|| chats.iter().find(still_owner)).cloned())
    }

    /// The chat that `channel` and `peer` name, where somebody wrote who still may.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn named(&self, channel: &ChannelId, peer: &str) -> Result<Option<ChatRow>, StoreError> {
        let chat = self.rows.chat(channel, peer).await?;
        Ok(chat.filter(|chat| self.role(&chat.place).is_ok()))
    }
}

/// A word said in the chat by its sender, for the gate.
fn word(place: &Place) -> Inbound {
    Inbound {
        channel: place.address.channel.clone(),
        platform_id: String::new(),
        fingerprint: None,
        kind: InboundKind::Message,
        about: None,
        conversation: place.conversation.clone(),
        sender: place.sender.clone(),
        text: "-".to_owned(),
        attachments: Vec::new(),
        mentions_us: true,
        reply_to: None,
        at: None,
        address: place.address.clone(),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    }
}

/// The web chat of whoever holds the gateway's token.
pub fn web_chat() -> Place {
    let channel = ChannelId::new("web", "main");
    Place {
        conversation: Conversation { kind: ConversationKind::Direct, id: "main".to_owned(), thread: None, title: None },
        address: Address { channel, lane: "main".to_owned(), data: Value::Null },
        sender: Sender { id: "token".to_owned(), name: None, is_bot: false },
    }
}
