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
    intake::{access::Admission, pairing::Access, route::Asked},
    policy::Role,
    session::SessionKey,
    store::StoreError,
};

/// Chats of the owner that are looked at.
const CHATS: u32 = 20;
/// Chats looked through for a name, and threads of a conversation.
const LOOKED_AT: u32 = 500;
const THREADS: u32 = 12;

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
    /// When that was, to the minute.
    pub seen_at: i64,
}

impl ChatRow {
    /// A name for people: the group's title, or who writes there. Whoever writes there chose it: it decides nothing.
    pub fn name(&self) -> &str {
        let Place { conversation, sender, .. } = &self.place;
        let title = conversation.title.as_deref();
        match conversation.kind {
            ConversationKind::Group => title.unwrap_or(&conversation.id),
            ConversationKind::Direct => sender.name.as_deref().or(title).unwrap_or(&conversation.id),
        }
    }

    /// Whether it may be this chat that is meant: its name, or its bare id.
    fn resembles(&self, written: &str) -> bool {
        written == self.place.conversation.id || self.name().to_lowercase() == written.to_lowercase()
    }
}

/// The chats that are known.
#[async_trait]
pub trait ChatStore: Send + Sync + 'static {
    /// Direct chats of this agent in which an owner wrote last, newest first.
    async fn owner_chats(&self, agent: &str, limit: u32) -> Result<Vec<ChatRow>, StoreError>;

    /// The chats of that conversation: its threads, newest first.
    async fn chats_at(&self, channel: &ChannelId, peer: &str, limit: u32) -> Result<Vec<ChatRow>, StoreError>;

    /// The chat of a session.
    async fn chat_of(&self, session: &SessionKey) -> Result<Option<ChatRow>, StoreError>;

    /// Chats, newest first.
    async fn chats(&self, limit: u32) -> Result<Vec<ChatRow>, StoreError>;
}

/// Which chat is meant.
#[derive(Clone, Debug, PartialEq)]
pub enum Meant {
    /// This one.
    One(Box<ChatRow>),
    /// It could be one of these: ask.
    Several(Vec<ChatRow>),
    /// None; these there are.
    Nobody(Vec<ChatRow>),
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
    /// Nobody gets what is not an answer there, before this key is set.
    Unheard(&'static str),
}

impl Barred {
    /// Why, and what would change it, in a few words for the model.
    pub fn for_model(self) -> String {
        let why = match self {
            Self::NoChannel => "its channel is not configured any more",
            Self::Blocked => "who writes there is blocked (`crawfish pairing unblock` ends that)",
            Self::NotAllowed => {
                "who wrote there may not write here any more (`crawfish pairing approve` or `allow_from` allow it)"
            }
            Self::Unheard(key) => {
                return format!("nobody gets messages there that are no answers, before its channel has a `{key}`");
            }
        };
        why.to_owned()
    }
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

    /// Whether somebody gets what is said first on a channel.
    ///
    /// # Errors
    /// [`Barred::Unheard`], [`Barred::NoChannel`].
    pub fn hears(&self, channel: &ChannelId) -> Result<(), Barred> {
        let entry = self.channels.get(channel).ok_or(Barred::NoChannel)?;
        entry.channel.unheard().map_or(Ok(()), |key| Err(Barred::Unheard(key)))
    }

    /// Where somebody hears of what was set in this chat: there; for an owner's own chat in which nobody gets what is said
    /// first, the owner's last chat in which they do.
    ///
    /// # Errors
    /// As the store gives them; within, why nobody hears.
    pub async fn heard(&self, place: Place, role: Role, agent: &str) -> Result<Result<Place, Barred>, StoreError> {
        let Err(barred) = self.hears(&place.address.channel) else { return Ok(Ok(place)) };
        if role < Role::Owner || place.conversation.kind != ConversationKind::Direct {
            return Ok(Err(barred));
        }
        Ok(self.owner(agent).await?.map(|chat| chat.place).ok_or(barred))
    }

    /// The owner's last direct chat with this agent on a chat platform where they are heard, else the web chat if they ever
    /// wrote there.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn owner(&self, agent: &str) -> Result<Option<ChatRow>, StoreError> {
        let chats = self.rows.owner_chats(agent, CHATS).await?;
        let still_owner =
            |chat: &&ChatRow| self.role(&chat.place) == Ok(Role::Owner) && self.hears(&chat.channel).is_ok();
        let own = |chat: &ChatRow| self.channels.get(&chat.channel).is_some_and(|entry| entry.gate.is_owners_own());
        let elsewhere = chats.iter().filter(still_owner).find(|chat| !own(chat));
        Ok(elsewhere.or_else(|| chats.iter().find(still_owner)).cloned())
    }

    /// Whether the owner wrote to this agent, but only where nobody gets what is said first.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn owner_is_unheard(&self, agent: &str) -> Result<bool, StoreError> {
        let chats = self.rows.owner_chats(agent, CHATS).await?;
        let mut owned = chats.iter().filter(|chat| self.role(&chat.place) == Ok(Role::Owner)).peekable();
        Ok(owned.peek().is_some() && owned.all(|chat| self.hears(&chat.channel).is_err()))
    }

    /// The chat that `channel` and `peer` name, where somebody wrote who still may.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn named(&self, channel: &ChannelId, peer: &str) -> Result<Option<ChatRow>, StoreError> {
        let chat = self.rows.chats_at(channel, peer, 1).await?.pop();
        Ok(chat.filter(|chat| self.role(&chat.place).is_ok()))
    }

    /// Whether words may be sent to a chat now: whoever wrote there may still write, and somebody gets them. A group is not
    /// shut because of one of its members.
    ///
    /// # Errors
    /// Why not.
    pub fn may_be_told(&self, chat: &ChatRow) -> Result<(), Barred> {
        match self.role(&chat.place) {
            Err(Barred::Blocked) if chat.place.conversation.kind == ConversationKind::Group => Ok(()),
            other => other.map(drop),
        }?;
        self.hears(&chat.channel)
    }

    /// The one chat that these words name: its session's key, or `<channel>:<conversation id>` with or without the account
    /// where only one chat has that. A name is chosen by whoever bears it and names nobody.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn meant(&self, written: &str) -> Result<Meant, StoreError> {
        let written = written.trim();
        if let Some(chat) = self.rows.chat_of(&SessionKey::from(written.to_owned())).await? {
            return Ok(Meant::One(Box::new(chat)));
        }
        let mut hits = Vec::new();
        for entry in self.channels.all() {
            let channel = entry.channel.id();
            let peer = |prefix: &str| written.strip_prefix(prefix).and_then(|rest| rest.strip_prefix(':'));
            for id in [peer(channel.as_str()), peer(channel.kind())].into_iter().flatten() {
                hits.extend(self.rows.chats_at(channel, id, THREADS).await?);
            }
        }
        // The conversation itself is meant, not one of its threads.
        if hits.iter().any(|chat| chat.place.conversation.thread.is_none()) {
            hits.retain(|chat| chat.place.conversation.thread.is_none());
        }
        if let [chat] = &hits[..] {
            return Ok(Meant::One(Box::new(chat.clone())));
        }
        let known = if hits.is_empty() { self.rows.chats(LOOKED_AT).await? } else { Vec::new() };
        hits.extend(known.iter().filter(|chat| chat.resembles(written)).cloned());
        Ok(if hits.is_empty() { Meant::Nobody(known) } else { Meant::Several(hits) })
    }

    /// Whether what was said in this chat is this sender's own: they wrote it there, alone with the agent, or it was another
    /// account of theirs (`[access.identity_links]`), or it was said with the gateway's token and they are its only owner.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn is_own(&self, chat: &ChatRow, asker: &Place) -> Result<bool, StoreError> {
        let (theirs, own) = (&chat.place, |place: &Place| (place.address.channel.clone(), place.sender.id.clone()));
        if own(theirs) == own(asker) {
            return Ok(true);
        }
        if self.person(theirs).is_some_and(|person| Some(person) == self.person(asker)) {
            return Ok(true);
        }
        let by_token =
            |place: &Place| self.channels.get(&place.address.channel).is_some_and(|entry| entry.gate.is_owners_own());
        let one = match (by_token(theirs), by_token(asker)) {
            (true, true) => return Ok(true),
            (true, false) => asker,
            (false, true) => theirs,
            (false, false) => return Ok(false),
        };
        let owners = self.rows.owner_chats(&chat.agent, CHATS).await?;
        let mut others = owners.iter().map(|owner| &owner.place).filter(|place| !by_token(place));
        Ok(others.all(|place| {
            own(place) == own(one)
                || self.person(place).is_some_and(|person| Some(person) == self.person(one))
                || self.role(place) != Ok(Role::Owner)
        }))
    }

    /// The name under which `[access.identity_links]` knows who writes in this direct chat.
    fn person(&self, place: &Place) -> Option<String> {
        let entry = self.channels.get(&place.address.channel)?;
        let (channel, conversation) = (&place.address.channel, &place.conversation);
        let asked = Asked { channel, conversation, sender: Some(&place.sender.id) };
        entry.links.person(asked, entry.channel.capabilities().account_in_key).map(str::to_owned)
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
