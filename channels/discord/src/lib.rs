//! Discord: what its gateway delivers becomes inbound events, and answers become its messages.
//!
//! serenity keeps the gateway's session, on a thread of its own and behind a relay on loopback, which goes through the
//! channel's proxy and reads the events (see `relay.rs`). Calls are made here (see `api.rs`), each part of an answer with a
//! nonce by which Discord drops a second copy.

// The journey of an event, in order.
mod gateway;
mod relay;

mod interaction;

mod inbox;

mod files;
mod inbound;

// The journey of a reply, in order.
mod render;

mod send;

mod live;

// What both ways use.
mod api;
mod config;
mod menu;
mod places;
mod probe;
mod target;

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Finding, Level, Link, LiveEdit, LivePace,
    Mark, Part, Preview, Receipt, Reconciled, Reply, SendError, SendKey,
};
use channel_socket::Network;
use reqwest::Method;
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tracing::{debug, warn};
use url::Url;

use api::{Api, ApiError};
use gateway::Gateway;
use inbox::{Inbox, Known, Recent};
use live::Marks;
use places::Places;
use relay::Relay;

pub use config::{Config, ConfigError};
pub use menu::COMMANDS;
pub use target::Target;

/// Events that wait for the store, before no more are asked for.
const QUEUE: usize = 2_048;
/// Interactions that wait for their acknowledgement.
const ACKS: usize = 256;
/// Where the registered commands are remembered.
const COMMANDS_KEY: &str = "commands";

/// One bot.
pub struct Discord {
    id: ChannelId,
    /// The bot's number.
    bot: Option<String>,
    config: Config,
    gateway_url: Option<Url>,
    network: Network,
    capabilities: Capabilities,
    api: Api,
    marks: Marks,
    ctx: OnceLock<ChannelContext>,
}

impl Discord {
    /// The bot of `account`, which reaches Discord by `network`.
    ///
    /// # Errors
    /// [`ConfigError`] when the section cannot work.
    pub fn new(account: &str, config: &Config, network: &Network) -> Result<Self, ConfigError> {
        config.check()?;
        Ok(Self {
            id: ChannelId::new("discord", account),
            bot: config::bot_id(config.token.expose()),
            gateway_url: config.gateway()?,
            network: network.clone(),
            capabilities: send::capabilities(),
            api: Api::new(config, network)?,
            marks: Marks::default(),
            config: config.clone(),
            ctx: OnceLock::new(),
        })
    }

    fn ctx(&self) -> Result<&ChannelContext, SendError> {
        self.ctx.get().ok_or_else(|| SendError::Retry("the channel is not open yet".to_owned()))
    }

    /// Where the gateway is, and whether a session may begin now.
    async fn gateway(&self) -> Result<Url, ChannelError> {
        let answer = match self.api.call(Method::GET, "/gateway/bot", None).await {
            Ok(answer) => answer,
            Err(error @ ApiError::WrongToken) => return Err(ChannelError::Stop(error.to_string())),
            Err(ApiError::RetryAfter(pause)) => {
                return Err(ChannelError::RestartAfter(pause, "Discord asks to wait".to_owned()));
            }
            Err(error) => return Err(ChannelError::Restart(error.to_string())),
        };
        let limit = answer.get("session_start_limit");
        let number = |key: &str| limit.and_then(|limit| limit.get(key)).and_then(Value::as_u64);
        if number("remaining") == Some(0) {
            let pause = Duration::from_millis(number("reset_after").unwrap_or(60_000));
            let why = "the bot has begun more sessions than Discord allows in a day".to_owned();
            return Err(ChannelError::RestartAfter(pause, why));
        }
        if let Some(url) = &self.gateway_url {
            return Ok(url.clone());
        }
        let url = answer.get("url").and_then(Value::as_str).and_then(|url| Url::parse(url).ok());
        // The token goes there: never bare over an open network, whoever answered.
        url.filter(|url| url.scheme() == "wss" && url.host().is_some())
            .ok_or_else(|| ChannelError::Restart("Discord named no gateway".to_owned()))
    }

    async fn receive(&self, ctx: &ChannelContext) -> Result<(), ChannelError> {
        let base = tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => return Ok(()),
            base = self.gateway() => base?,
        };
        let (told, inbox) = mpsc::channel(QUEUE);
        let (acks, acks_to_give) = mpsc::channel(ACKS);
        let (app, app_known) = watch::channel(None);
        let places = Arc::new(Places::default());
        let relay = Relay {
            network: self.network.clone(),
            token: self.config.token.clone(),
            base,
            told,
            acks,
            places: places.clone(),
            me: self.bot.clone(),
            clock: ctx.clock.clone(),
            pulse: ctx.pulse.clone(),
            stop: ctx.shutdown.child_token(),
        };
        let thread = Gateway::start(self.id.account(), relay, gateway::intents(self.config.message_content))
            .map_err(|error| ChannelError::Restart(format!("no thread for the gateway: {error}")))?;
        let inbox_run = Inbox {
            channel: &self.id,
            api: &self.api,
            ctx,
            places,
            me: self.bot.clone().unwrap_or_default(),
            backfill: Duration::from_secs(u64::from(self.config.backfill_minutes) * 60),
            largest: u64::from(self.config.max_file_mb) * 1024 * 1024,
            app,
            known: Known::default(),
            recent: Recent::default(),
        };
        let beside = async {
            tokio::join!(interaction::acknowledge(&self.api, acks_to_give), self.register(ctx, app_known));
            std::future::pending::<()>().await;
        };
        let ended = tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => Ok(()),
            ended = inbox_run.take(inbox) => ended,
            () = beside => Ok(()),
        };
        thread.end().await;
        ctx.pulse.link(Link::Down("not connected".to_owned()));
        ended
    }

    /// Tells Discord the slash commands, when they are not those that it was told last.
    async fn register(&self, ctx: &ChannelContext, mut app: watch::Receiver<Option<String>>) {
        if !self.config.commands {
            return;
        }
        let Ok(app) = app.wait_for(Option::is_some).await.map(|app| app.clone().unwrap_or_default()) else { return };
        let payload = menu::payload();
        let text = format!("{app} {payload}");
        if ctx.kv.get(COMMANDS_KEY).await.ok().flatten().as_deref() == Some(text.as_str()) {
            return;
        }
        match self.api.call(Method::PUT, &format!("/applications/{app}/commands"), Some(&payload)).await {
            Ok(_) => {
                if let Err(error) = ctx.kv.set(COMMANDS_KEY, &text).await {
                    debug!(%error, "the slash commands are registered once more after a restart");
                }
            }
            Err(error) => warn!(%error, "the slash commands were not registered"),
        }
    }
}

#[async_trait]
impl Channel for Discord {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn unprompted(&self, to: &Address) -> Address {
        let target = Target::of(to).map(|target| Target { reply: None, command: None, ..target });
        target.map_or_else(|| to.clone(), |target| target.address(&to.channel))
    }

    fn exclusive(&self) -> Option<String> {
        self.bot.clone()
    }

    fn open(&self, ctx: &ChannelContext) {
        self.api.keep_time(ctx.clock.clone());
        let _ = self.ctx.set(ctx.clone());
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        self.receive(&ctx).await
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        render::render(reply, level)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        send::send(&self.api, self.ctx()?, to, part, key).await
    }

    async fn reconcile(&self, to: &Address, part: &Part, key: &SendKey, since: i64) -> Reconciled {
        match self.ctx.get() {
            Some(ctx) => send::reconcile(&self.api, ctx, self.bot.as_deref(), to, part, key, since).await,
            None => Reconciled::CannotTell,
        }
    }

    async fn typing(&self, to: &Address) {
        send::typing(&self.api, to).await;
    }

    fn live(&self) -> Option<&dyn LiveEdit> {
        Some(self)
    }

    async fn probe(&self) -> Vec<Finding> {
        probe::probe(&self.api, self.config.message_content).await
    }
}

#[async_trait]
impl LiveEdit for Discord {
    fn pace(&self, to: &Address) -> LivePace {
        live::pace(to)
    }

    async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError> {
        live::begin(&self.api, to, text).await
    }

    async fn update(&self, to: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
        live::update(&self.api, to, preview, text).await
    }

    async fn drop_preview(&self, to: &Address, preview: &Preview) {
        live::drop_preview(&self.api, to, preview).await;
    }

    async fn mark(&self, to: &Address, platform_id: &str, mark: Mark) {
        live::mark(&self.api, &self.marks, to, platform_id, mark).await;
    }
}

#[cfg(test)]
#[path = "../../../src/tests/support/discord.rs"]
mod fake;

#[cfg(test)]
#[path = "../../../src/tests/support/proxy.rs"]
mod proxy;

#[cfg(test)]
mod tests;
