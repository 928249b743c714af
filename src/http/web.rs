//! The web chat as a channel: what `/api/chat` takes in, and whose answers are already in the journal.
//!
//! Whoever watches `/sse` has each answer from the journal, durably and in order; so sending one is done at once.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Conversation, ConversationKind, Format,
    Inbound, InboundKind, Level, Part, QueueMode, Receipt, Reply, SendError, SendKey, Sender, TextUnit, Trust,
};
use serde_json::Value;

use super::config::{LocalClients, ServerConfig};
use crate::intake::access::{ChannelPolicy, DmPolicy, GroupPolicy};

/// The chat of whoever holds the token.
pub fn owner_channel() -> ChannelId {
    ChannelId::new("web", "main")
}

/// The chat of programs on this machine without a token.
pub fn local_channel() -> ChannelId {
    ChannelId::new("web", "local")
}

/// What every session of a local client is called, before its own name.
pub const LOCAL_PREFIX: &str = "local-";

/// The web chats of this configuration, each with its policy and whether its senders hold the token.
pub fn channels(config: &ServerConfig) -> Vec<(Arc<dyn Channel>, ChannelPolicy, bool)> {
    let closed = ChannelPolicy { group_policy: Some(GroupPolicy::Disabled), ..ChannelPolicy::default() };
    let mut all: Vec<(Arc<dyn Channel>, ChannelPolicy, bool)> =
        vec![(Arc::new(WebChat::new(owner_channel())), closed.clone(), true)];
    if config.local_clients == LocalClients::Open {
        // Strangers: they talk, without tools.
        let open = ChannelPolicy { dm_policy: Some(DmPolicy::Open), allow_from: Some(vec!["*".to_owned()]), ..closed };
        all.push((Arc::new(WebChat::new(local_channel())), open, false));
    }
    all
}

/// A message of the web chat.
pub fn inbound(channel: &ChannelId, sender: &str, conversation: &str, platform_id: String, text: String) -> Inbound {
    Inbound {
        channel: channel.clone(),
        platform_id,
        fingerprint: None,
        kind: InboundKind::Message,
        about: None,
        conversation: Conversation {
            kind: ConversationKind::Direct,
            id: conversation.to_owned(),
            thread: None,
            title: None,
        },
        sender: Sender { id: sender.to_owned(), name: None, is_bot: false },
        text,
        attachments: Vec::new(),
        mentions_us: true,
        reply_to: None,
        at: None,
        address: Address { channel: channel.clone(), lane: conversation.to_owned(), data: Value::Null },
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    }
}

/// Nothing can refuse it.
const RETRY_PAUSES: &[Duration] = &[Duration::from_secs(1)];

/// One web chat.
struct WebChat {
    id: ChannelId,
    capabilities: Capabilities,
}

impl WebChat {
    fn new(id: ChannelId) -> Self {
        let capabilities = Capabilities {
            text_limit: 1 << 20,
            text_unit: TextUnit::Chars,
            format: Format::Markdown,
            edits: false,
            typing: false,
            threads: false,
            buttons: false,
            queue: QueueMode::Followup,
            refuse_over_cap: true,
            account_in_key: false,
            silence_limit: None,
            expires_after: Duration::from_secs(60 * 60),
            retry_pauses: RETRY_PAUSES,
            per_lane: None,
            per_channel: None,
        };
        Self { id, capabilities }
    }
}

#[async_trait]
impl Channel for WebChat {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        ctx.shutdown.cancelled().await;
        Ok(())
    }

    fn render(&self, reply: &Reply, _level: Level) -> Vec<Part> {
        let mut text = reply.text.clone();
        for file in &reply.attachments {
            let name = file.name.as_deref().unwrap_or("file");
            text.push_str(&format!("\n\n[{name}]"));
        }
        vec![Part { text, body: Value::Null }]
    }

    async fn send(&self, _to: &Address, _part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        Ok(Receipt { platform_id: Some(key.part.as_str().to_owned()) })
    }
}
