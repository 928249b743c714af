//! The registry of adapters: the only file that names them.

use std::{collections::HashMap, sync::Arc};

use channel_api::{Channel, ChannelId, Conversation, QueueMode};

use crate::{
    intake::access::{AccessConfig, ChannelPolicy, Gate},
    session::SessionKey,
};

/// One channel as the gateway uses it: its adapter, its gate, its policy.
pub struct Entry {
    /// The adapter.
    pub channel: Arc<dyn Channel>,
    /// Who is admitted.
    pub gate: Gate,
    /// Queue mode, agent.
    pub policy: ChannelPolicy,
}

impl Entry {
    /// Joins an adapter with its policy. `token_is_owner`: see [`Gate::new`].
    pub fn new(channel: Arc<dyn Channel>, policy: ChannelPolicy, access: &AccessConfig, token_is_owner: bool) -> Self {
        let gate = Gate::new(channel.id(), &policy, access, token_is_owner);
        Self { channel, gate, policy }
    }

    /// The agent that answers a conversation: the group's, the channel's, else `main`.
    pub fn agent(&self, conversation: &Conversation) -> &str {
        let group = (conversation.kind == channel_api::ConversationKind::Group)
            .then(|| self.gate.group(&conversation.id))
            .flatten()
            .and_then(|group| group.agent.as_deref());
        group.or(self.policy.agent.as_deref()).unwrap_or("main")
    }

    /// The session of a conversation.
    pub fn session(&self, conversation: &Conversation) -> SessionKey {
        if self.channel.id().kind() == "web" {
            return SessionKey::web(
                self.agent(conversation),
                Some(conversation.id.as_str()).filter(|id| *id != "main"),
            );
        }
        let account_in_key = self.channel.capabilities().account_in_key;
        SessionKey::of(self.agent(conversation), self.channel.id(), account_in_key, conversation)
    }

    /// The queue mode when the session has none of its own.
    pub fn mode(&self, general: Option<QueueMode>) -> QueueMode {
        self.policy.queue.or(general).unwrap_or(self.channel.capabilities().queue)
    }
}

/// All channels of this process.
#[derive(Clone, Default)]
pub struct Channels(Arc<HashMap<ChannelId, Entry>>);

impl Channels {
    /// These channels.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        Self(Arc::new(entries.into_iter().map(|entry| (entry.channel.id().clone(), entry)).collect()))
    }

    /// One of them.
    pub fn get(&self, id: &ChannelId) -> Option<&Entry> {
        self.0.get(id)
    }

    /// All of them, ordered by id.
    pub fn all(&self) -> Vec<&Entry> {
        let mut all: Vec<&Entry> = self.0.values().collect();
        all.sort_by(|a, b| a.channel.id().cmp(b.channel.id()));
        all
    }
}
