//! Telegram: what the Bot API delivers becomes inbound events, and answers become its messages.
//!
//! Updates are asked for (long polling) and confirmed only after the gateway has stored them; every part of an answer is
//! one `sendMessage`. teloxide gives the types and payloads of the Bot API; the calls are made here (see `api.rs`).

// The journey of an update, in order.
mod poll;

mod inbound;

// What both ways use.
mod api;
mod config;
mod menu;
mod target;

use std::time::Duration;

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Format, Level, Part, QueueMode, Rate,
    Receipt, Reply, SendError, SendKey, TextUnit, split::split,
};
use serde_json::{Value, json};
use teloxide::{
    payloads::{SendChatAction, SendMessage},
    types::{ChatAction, MessageId, ReplyParameters},
};
use tracing::debug;

pub use api::{Api, ApiError};
pub use config::{Config, ConfigError, Limits, Mode, Secret};
pub use menu::COMMANDS;
pub use target::Target;

/// The longest text of one message, in UTF-16 units.
const TEXT_LIMIT: usize = 4096;

/// The pauses between tries of one part; the last one repeats until the part expires.
const RETRY_PAUSES: &[Duration] = &[
    Duration::from_secs(1),
    Duration::from_secs(3),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// How long an answer may wait. guarantees.md G5.
const EXPIRES_AFTER: Duration = Duration::from_secs(60 * 60);

/// How long the sign that an answer is being written is worth waiting for: it lives 5 s.
const TYPING_TIME: Duration = Duration::from_secs(5);

/// One bot.
pub struct Telegram {
    id: ChannelId,
    capabilities: Capabilities,
    api: Api,
}

impl Telegram {
    /// The bot of `account`. `http` brings the proxy of the channel, if any; a server on this machine is reached
    /// directly.
    ///
    /// # Errors
    /// [`ConfigError`] when the section cannot work.
    pub fn new(account: &str, config: &Config, http: reqwest::ClientBuilder) -> Result<Self, ConfigError> {
        config.check()?;
        let paced = |burst, every| (config.limits == Limits::On).then_some(Rate { burst, every });
        Ok(Self {
            id: ChannelId::new("telegram", account),
            capabilities: Capabilities {
                text_limit: TEXT_LIMIT,
                text_unit: TextUnit::Utf16,
                format: Format::Own,
                edits: true,
                typing: true,
                threads: true,
                buttons: false,
                queue: QueueMode::Collect,
                refuse_over_cap: false,
                account_in_key: false,
                expires_after: EXPIRES_AFTER,
                retry_pauses: RETRY_PAUSES,
                per_lane: paced(3, Duration::from_secs(1)),
                per_channel: paced(30, Duration::from_millis(34)),
            },
            api: Api::new(config, http)?,
        })
    }
}

#[async_trait]
impl Channel for Telegram {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        poll::run(&self.api, &self.id, &ctx).await
    }

    fn render(&self, reply: &Reply, _level: Level) -> Vec<Part> {
        let texts = split(&reply.text, TEXT_LIMIT, TextUnit::Utf16);
        texts.into_iter().map(|text| Part { text, body: json!({}) }).collect()
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        let target = Target::of(to).ok_or_else(|| SendError::Refused("no address of Telegram".to_owned()))?;
        let mut message = SendMessage::new(target.recipient(), part.text.clone());
        message.message_thread_id = target.thread_to_send();
        message.reply_parameters = target
            .reply
            .filter(|_| key.seq == 1)
            .map(|reply| ReplyParameters::new(MessageId(reply)).allow_sending_without_reply());
        match self.api.call::<_, Value>("sendMessage", &message).await {
            Ok(sent) => {
                let id = sent.get("message_id").and_then(Value::as_i64);
                Ok(Receipt { platform_id: id.map(|id| format!("{}:{id}", target.chat)) })
            }
            Err(ApiError::Unreadable(_)) => Ok(Receipt::default()),
            Err(error @ (ApiError::Retry(_) | ApiError::Conflict(_))) => Err(SendError::Retry(error.to_string())),
            Err(ApiError::RetryAfter(pause)) => Err(SendError::RetryAfter(pause)),
            Err(error @ ApiError::Unknown(_)) => Err(SendError::Unknown(error.to_string())),
            Err(error @ ApiError::WrongToken(_)) => Err(SendError::ChannelDown(error.to_string())),
            Err(error @ (ApiError::Refused { .. } | ApiError::Moved(_))) => Err(SendError::Refused(error.to_string())),
        }
    }

    async fn typing(&self, to: &Address) {
        let Some(target) = Target::of(to) else { return };
        let mut action = SendChatAction::new(target.recipient(), ChatAction::Typing);
        action.message_thread_id = target.thread_to_show();
        if let Err(error) = self.api.call_within::<_, Value>(TYPING_TIME, "sendChatAction", &action).await {
            debug!(%error, chat = target.chat, "Telegram does not show that an answer is being written");
        }
    }
}
