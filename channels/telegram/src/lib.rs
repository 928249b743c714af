//! Telegram: what the Bot API delivers becomes inbound events, and answers become its messages.
//!
//! Updates are asked for (long polling) or posted (webhook) and confirmed only after the gateway has stored them; every
//! part of an answer is one message. teloxide gives the types and payloads of the Bot API; the calls are made here (see
//! `api.rs`).

// The journey of an update, in order.
mod poll;
mod webhook;

mod take;

mod inbound;

mod files;

// The journey of a reply, in order.
mod render;

mod markdown;
mod text;

mod live;
mod send;

// What both ways use.
mod api;
mod config;
mod menu;
mod moves;
mod target;

// A look at an account.
mod probe;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Clock, Finding, HttpEndpoint, HttpRequest,
    HttpResponse, Level, LiveEdit, LivePace, Mark, Media, Part, Preview, Rate, Receipt, Reconciled, Reply, SendError,
    SendKey,
};
use channel_socket::Network;

use live::{Learned, Live};
use moves::Moves;
use send::Way;
use webhook::Webhook;

pub use api::{Api, ApiError};
pub use config::{Config, ConfigError, Limits, Mode};
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
    learned: Learned,
    /// In mode `webhook`.
    webhook: Option<Webhook>,
    opened: OnceLock<Opened>,
}

/// What the gateway gave.
struct Opened {
    media: Arc<dyn Media>,
    clock: Arc<dyn Clock>,
}

impl Telegram {
    /// The bot of `account`. A server on this machine is reached directly, whatever way out `network` is.
    ///
    /// # Errors
    /// [`ConfigError`] when the section cannot work.
    pub fn new(account: &str, config: &Config, network: &Network) -> Result<Self, ConfigError> {
        config.check()?;
        let webhook = match config.mode {
            Mode::Polling => None,
            Mode::Webhook => Some(config.webhook(account)?),
        };
        Ok(Self {
            id: ChannelId::new("telegram", account),
            bot: config.token.expose().split(':').next().unwrap_or_default().to_owned(),
            limits: config.limits,
            capabilities: send::capabilities(config.limits, config.mode),
            api: Api::new(config, network)?,
            moves: Moves::default(),
            learned: Learned::default(),
            webhook: webhook.map(|(url, secret)| Webhook::new(url, secret)),
            opened: OnceLock::new(),
        })
    }

    fn way(&self) -> Way<'_> {
        Way { api: &self.api, moves: &self.moves, media: self.opened.get().map(|opened| &opened.media) }
    }

    fn shows(&self) -> Live<'_> {
        Live {
            api: &self.api,
            moves: &self.moves,
            limits: self.limits,
            learned: &self.learned,
            clock: self.opened.get().map(|opened| opened.clock.as_ref()),
        }
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

    fn unprompted(&self, to: &Address) -> Address {
        let target = Target::of(to).map(|target| Target { reply: None, ..target });
        target.map_or_else(|| to.clone(), |target| target.address(&to.channel))
    }

    fn lane_rate(&self, lane: &str) -> Option<Rate> {
        send::lane_rate(self.limits, lane)
    }

    fn exclusive(&self) -> Option<String> {
        Some(self.bot.clone())
    }

    fn open(&self, ctx: &ChannelContext) {
        self.moves.keep_in(ctx.kv.clone());
        let _ = self.opened.set(Opened { media: ctx.media.clone(), clock: ctx.clock.clone() });
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        match &self.webhook {
            Some(webhook) => webhook.run(&self.api, &ctx).await,
            None => poll::run(&self.api, &self.moves, &self.id, &ctx).await,
        }
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        render::render(reply, level)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        send::send(&self.way(), to, part, key).await
    }

    async fn reconcile(&self, _to: &Address, part: &Part, key: &SendKey, _since: i64) -> Reconciled {
        send::reconcile(&self.way(), part, key).await
    }

    async fn typing(&self, to: &Address) {
        send::typing(&self.api, &self.moves, to).await;
    }

    fn live(&self) -> Option<&dyn LiveEdit> {
        Some(self)
    }

    fn http(&self) -> Option<&dyn HttpEndpoint> {
        self.webhook.is_some().then_some(self as &dyn HttpEndpoint)
    }

    async fn probe(&self) -> Vec<Finding> {
        probe::probe(&self.api, self.webhook.as_ref()).await
    }
}

#[async_trait]
impl LiveEdit for Telegram {
    fn pace(&self, to: &Address) -> LivePace {
        self.shows().pace(to)
    }

    async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError> {
        self.shows().begin(to, text).await
    }

    async fn update(&self, to: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
        self.shows().update(to, preview, text).await
    }

    async fn drop_preview(&self, _to: &Address, preview: &Preview) {
        self.shows().drop_preview(preview).await;
    }

    async fn mark(&self, to: &Address, platform_id: &str, mark: Mark) {
        self.shows().mark(to, platform_id, mark).await;
    }
}

#[async_trait]
impl HttpEndpoint for Telegram {
    fn body_limit(&self) -> usize {
        webhook::BODY_LIMIT
    }

    async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse {
        match &self.webhook {
            Some(webhook) => webhook.handle(&self.api, &self.moves, &self.id, ctx, &request).await,
            None => HttpResponse::json(reqwest::StatusCode::NOT_FOUND, &serde_json::json!({ "ok": false })),
        }
    }
}

#[cfg(test)]
#[path = "../../../src/tests/support/telegram.rs"]
mod fake;

#[cfg(test)]
#[path = "../../../src/tests/support/proxy.rs"]
mod proxy;

#[cfg(test)]
mod proxied;

#[cfg(test)]
mod tests;
