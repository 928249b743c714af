//! QQ by way of OneBot v11: NapCat, LLOneBot, go-cqhttp, Lagrange and others log in to QQ and speak OneBot to us.
//!
//! They connect to us, we connect to them, or both call each other by HTTP; from there on all is one. OneBot repeats and
//! acknowledges nothing, so what came in is held until it is stored, what was missed is asked for after a reconnect, and a
//! send without an answer is never repeated blindly.

// The journey of an event, in order.
mod auth;

mod reverse;

mod forward;

mod push;

mod watch;

mod socket;

mod queue;

mod receive;

mod message;

mod inbound;

mod gather;
mod history;

// The journey of a reply, in order.
mod render;

mod text;

mod send;

mod live;

// What both ways use.
mod api;
mod config;
mod faces;
mod ids;
mod links;
mod probe;
mod target;

use std::{collections::HashMap, sync::OnceLock, time::Duration};

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Finding, HttpEndpoint, Level, LiveEdit,
    Part, Receipt, Reconciled, Reply, SendError, SendKey, SocketEndpoint,
};
use channel_socket::Network;
use serde_json::json;
use tracing::warn;

pub use config::{Config, ConfigError, Consent, Mode, Number};

/// How long a question about the bot itself may take.
const ABOUT: Duration = Duration::from_secs(5);

/// One QQ number.
pub struct OneBot {
    id: ChannelId,
    config: Config,
    capabilities: Capabilities,
    network: Network,
    links: links::Links,
    queue: queue::Queue,
    recent: gather::Recent,
    seen: tokio::sync::Mutex<HashMap<String, history::Seen>>,
    paces: send::Paces,
    marks: live::Marks,
    about: tokio::sync::Mutex<HashMap<String, live::About>>,
    turned_away: auth::TurnedAway,
    ctx: OnceLock<ChannelContext>,
}

impl OneBot {
    /// The QQ number of `account`. `network` is the channel's way out; programs of this machine are reached directly.
    ///
    /// # Errors
    /// [`ConfigError`] when the section cannot work.
    pub fn new(account: &str, config: &Config, network: &Network) -> Result<Self, ConfigError> {
        config.check()?;
        let links = match config.mode {
            Mode::Http => {
                let base = config.api()?;
                let http = network.http_to(&base);
                links::Links::by_http(api::HttpApi::new(base, &config.access_token, http)?)
            }
            Mode::Reverse | Mode::Forward => links::Links::default(),
        };
        Ok(Self {
            id: ChannelId::new("onebot", account),
            config: config.clone(),
            capabilities: send::capabilities(),
            network: network.clone(),
            links,
            queue: queue::Queue::default(),
            recent: gather::Recent::default(),
            seen: tokio::sync::Mutex::default(),
            paces: send::Paces::default(),
            marks: live::Marks::default(),
            about: tokio::sync::Mutex::default(),
            turned_away: auth::TurnedAway::default(),
            ctx: OnceLock::new(),
        })
    }

    /// Whether this account is for that bot.
    fn expects(&self, bot: &str) -> bool {
        self.config.self_id.as_ref().is_none_or(|number| number.0 == bot)
    }

    /// What the implementation says about itself and the bot; asked once.
    async fn about(&self, bot: &str) -> live::About {
        let mut known = self.about.lock().await;
        if let Some(about) = known.get(bot) {
            return about.clone();
        }
        let login = self.links.call(bot, "get_login_info", json!({}), ABOUT).await;
        let version = self.links.call(bot, "get_version_info", json!({}), ABOUT).await;
        let about = live::About::of(login.as_ref().ok(), version.as_ref().ok());
        if version.is_ok() {
            known.insert(bot.to_owned(), about.clone());
        }
        about
    }

    /// Somebody may not come in: said in the log, and as the link's reason where nobody else is connected.
    fn turn_away(&self, why: &str) {
        let Some(ctx) = self.ctx.get() else { return };
        let connects = self.config.mode == Mode::Reverse;
        // Once pushed events are taken, a stranger at the same address must not make the account look broken.
        let keep = if connects { !self.links.hears() } else { !self.turned_away.let_in() };
        self.turned_away.note(ctx, why, keep);
        if connects && keep {
            ctx.pulse.link(self.turned_away.link("no OneBot client is connected"));
        }
    }

    fn context(&self) -> Result<&ChannelContext, SendError> {
        self.ctx.get().ok_or_else(|| SendError::Retry("the channel is not open yet".to_owned()))
    }

    /// Receives until something other than a shutdown ends it.
    async fn receive(&self, ctx: &ChannelContext) -> Result<(), ChannelError> {
        let connecting = async {
            match self.config.mode {
                Mode::Reverse => {
                    if !self.links.hears() {
                        ctx.pulse.link(self.turned_away.link("no OneBot client is connected yet"));
                    }
                    std::future::pending().await
                }
                Mode::Http => watch::run(self, ctx).await,
                Mode::Forward => {
                    let url = self.config.forward_url().map_err(|error| ChannelError::Stop(error.to_string()))?;
                    forward::run(self, ctx, &self.network, &url).await
                }
            }
        };
        tokio::select! {
            ended = connecting => ended,
            () = receive::run(self, ctx) => Ok(()),
        }
    }
}

#[async_trait]
impl Channel for OneBot {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn unprompted(&self, to: &Address) -> Address {
        let target = target::Target::of(to).map(|target| target::Target { reply: None, ..target });
        target.map_or_else(|| to.clone(), |target| target.address(&to.channel))
    }

    fn exclusive(&self) -> Option<String> {
        match (&self.config.self_id, &self.config.url, &self.config.api_url) {
            (Some(number), ..) => Some(number.0.clone()),
            (None, Some(url), _) | (None, None, Some(url)) => Some(url.trim().trim_end_matches('/').to_owned()),
            (None, None, None) => None,
        }
    }

    fn unguarded(&self) -> Option<&'static str> {
        let served = match self.config.mode {
            Mode::Forward => false,
            Mode::Reverse => true,
            Mode::Http => self.config.secret.is_empty(),
        };
        (served && self.config.access_token.is_empty()).then_some("access_token")
    }

    fn open(&self, ctx: &ChannelContext) {
        self.links.keep_time(&ctx.clock);
        let _ = self.ctx.set(ctx.clone());
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        if self.config.access_token.is_empty() {
            warn!(channel = %self.id, "no access_token is set: any program of this machine can speak for QQ");
        }
        tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => Ok(()),
            ended = self.receive(&ctx) => ended,
        }
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        render::render(reply, level, self.config.forward_above)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        send::send(self, self.context()?, to, part, key).await
    }

    async fn reconcile(&self, to: &Address, part: &Part, _key: &SendKey, since: i64) -> Reconciled {
        match self.ctx.get() {
            Some(ctx) => send::reconcile(self, ctx, to, part, since).await,
            None => Reconciled::CannotTell,
        }
    }

    fn live(&self) -> Option<&dyn LiveEdit> {
        Some(self)
    }

    fn http(&self) -> Option<&dyn HttpEndpoint> {
        (self.config.mode == Mode::Http).then_some(self as &dyn HttpEndpoint)
    }

    fn socket(&self) -> Option<&dyn SocketEndpoint> {
        (self.config.mode == Mode::Reverse).then_some(self as &dyn SocketEndpoint)
    }

    async fn probe(&self) -> Vec<Finding> {
        probe::probe(self).await
    }
}

#[cfg(test)]
#[path = "../../../src/tests/support/onebot.rs"]
#[allow(dead_code, reason = "the journeys connect for real; the tests here do so in memory")]
mod fake;
#[cfg(test)]
mod tests;
