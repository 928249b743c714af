//! Telegram: what the Bot API delivers becomes inbound events, and answers become its messages.
//!
//! Updates are asked for (long polling) and confirmed only after the gateway has stored them; every part of an answer is
//! one `sendMessage`. teloxide gives the types and payloads of the Bot API; the calls are made here (see `api.rs`).

// The journey of an update, in order.
mod poll;

mod inbound;

// The journey of a reply, in order.
mod render;

mod markdown;
mod text;

mod send;

// What both ways use.
mod api;
mod config;
mod menu;
mod moves;
mod target;

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Level, Part, Rate, Receipt, Reply,
    SendError, SendKey,
};

use moves::Moves;

pub use api::{Api, ApiError};
pub use config::{Config, ConfigError, Limits, Mode, Secret};
pub use menu::COMMANDS;
pub use target::Target;

/// One bot.
pub struct Telegram {
    id: ChannelId,
    /// The bot's number.
    bot: String,
    limits: Limits,
    capabilities: Capabilities,
    api: Api,
    moves: Moves,
}

impl Telegram {
    /// The bot of `account`. `http` brings the proxy of the channel, if any; a server on this machine is reached
    /// directly.
    ///
    /// # Errors
    /// [`ConfigError`] when the section cannot work.
    pub fn new(account: &str, config: &Config, http: reqwest::ClientBuilder) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            id: ChannelId::new("telegram", account),
            bot: config.token.expose().split(':').next().unwrap_or_default().to_owned(),
            limits: config.limits,
            capabilities: send::capabilities(config.limits),
            api: Api::new(config, http)?,
            moves: Moves::default(),
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

    fn lane_rate(&self, lane: &str) -> Option<Rate> {
        send::lane_rate(self.limits, lane)
    }

    fn exclusive(&self) -> Option<String> {
        Some(self.bot.clone())
    }

    fn open(&self, ctx: &ChannelContext) {
        self.moves.keep_in(ctx.kv.clone());
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        poll::run(&self.api, &self.moves, &self.id, &ctx).await
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        render::render(reply, level)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        send::send(&self.api, &self.moves, to, part, key).await
    }

    async fn typing(&self, to: &Address) {
        send::typing(&self.api, &self.moves, to).await;
    }
}
