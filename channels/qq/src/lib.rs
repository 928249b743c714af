//! The official QQ bot: private chats, groups and guilds of QQ through the open platform at q.qq.com.
//!
//! Events come over a WebSocket that is resumed after every break, or by signed webhooks; either way they are confirmed
//! only after the gateway has stored them. QQ lets a bot answer only, a few times and for some minutes: each answer
//! carries the id of the message that it answers and a number that makes a second try of it harmless.

// The journey of an event, in order.
mod gateway;
mod webhook;

mod signature;

mod inbound;
mod receive;

// The journey of a reply, in order.
mod render;

mod plain;

mod window;

mod send;

// What both ways use.
mod api;
mod config;
mod probe;
mod target;

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Finding, HttpEndpoint, Level, Part,
    Receipt, Reconciled, Reply, Said, SendError, SendKey,
};
use channel_socket::Network;
use tracing::warn;

use api::{Api, ApiError};
use gateway::Gateway;
use receive::Me;
use signature::Key;
use webhook::Webhook;
use window::Windows;

pub use config::{Config, ConfigError, Intents, Markdown, Mode};
pub use signature::sign;

/// What both ways of one bot use.
struct Bot {
    id: ChannelId,
    app_id: String,
    key: Key,
    api: Api,
    network: Network,
    markdown: Markdown,
    me: Me,
    windows: Windows,
    ctx: OnceLock<ChannelContext>,
}

/// One bot.
pub struct Qq {
    bot: Arc<Bot>,
    sandbox: bool,
    mode: Mode,
    capabilities: Capabilities,
    gateway: Gateway,
    webhook: Option<Webhook>,
}

impl Qq {
    /// The bot of `account`, reached by `network`.
    ///
    /// # Errors
    /// [`ConfigError`] when the section cannot work.
    pub fn new(account: &str, config: &Config, network: &Network) -> Result<Self, ConfigError> {
        config.check()?;
        let key = Key::of(&config.app_secret)
            .ok_or_else(|| ConfigError::BadSecret(Said::new("makes no key", "生成不了密钥")))?;
        let bot = Arc::new(Bot {
            id: ChannelId::new("qq", account),
            app_id: config.app_id.clone(),
            key,
            api: Api::new(config, network)?,
            network: network.clone(),
            markdown: config.markdown,
            me: Me::default(),
            windows: Windows::default(),
            ctx: OnceLock::new(),
        });
        Ok(Self {
            sandbox: config.sandbox,
            mode: config.mode,
            capabilities: send::capabilities(config.mode, config.markdown),
            gateway: Gateway::new(config.intents),
            webhook: (config.mode == Mode::Webhook).then(|| Webhook::new(Arc::clone(&bot))),
            bot,
        })
    }

    /// Waits for calls; knows who the bot is, so that its mentions in guild channels are seen.
    async fn wait(&self, ctx: &ChannelContext) -> Result<(), ChannelError> {
        let asking = async {
            match self.bot.me.ask(&self.bot.api).await {
                Ok(_) => {}
                Err(error @ ApiError::Credentials(_)) => {
                    return ChannelError::Stop(format!("{error}; copy both again from q.qq.com, \"开发设置\""));
                }
                Err(error) => warn!(%error, "QQ did not say who this bot is: mentions in guild channels may go unseen"),
            }
            std::future::pending().await
        };
        tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => Ok(()),
            error = asking => Err(error),
        }
    }
}

#[async_trait]
impl Channel for Qq {
    fn id(&self) -> &ChannelId {
        &self.bot.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn exclusive(&self) -> Option<String> {
        Some(self.bot.app_id.clone())
    }

    fn open(&self, ctx: &ChannelContext) {
        self.bot.api.keep_time_by(ctx.clock.clone());
        let _ = self.bot.ctx.set(ctx.clone());
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        match self.mode {
            Mode::Ws => self.gateway.run(&self.bot, &ctx).await,
            Mode::Webhook => self.wait(&ctx).await,
        }
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        render::render(reply, level)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        send::send(&self.bot, to, part, key).await
    }

    async fn reconcile(&self, to: &Address, _part: &Part, key: &SendKey, _since: i64) -> Reconciled {
        send::reconcile(&self.bot, to, key).await
    }

    fn http(&self) -> Option<&dyn HttpEndpoint> {
        self.webhook.as_ref().map(|webhook| webhook as &dyn HttpEndpoint)
    }

    async fn probe(&self) -> Vec<Finding> {
        probe::probe(&self.bot, self.mode, self.sandbox).await
    }
}

#[cfg(test)]
#[path = "../../../src/tests/support/qq.rs"]
mod fake;

#[cfg(test)]
#[path = "../../../src/tests/support/warnings.rs"]
mod warnings;

#[cfg(test)]
mod tests;
