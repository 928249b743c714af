//! Feishu and Lark: what the open platform delivers becomes inbound events, and answers become its messages.
//!
//! Events come over a long connection (no address of one's own is needed) or are posted; each is acknowledged only after
//! the gateway has stored it. Answers are cards, with posts and plain text where a card is refused, each under an id by which
//! the platform drops a second copy.

// The journey of an event, in order.
mod ws;

mod frames;
mod seal;
mod webhook;

mod content;
mod inbound;

mod receive;

// The journey of a reply, in order.
mod render;

mod markdown;

mod send;

mod marks;
mod stream;

// What both ways use.
mod api;
mod config;
mod probe;
mod recent;
mod target;

use std::{sync::OnceLock, time::Duration};

use async_trait::async_trait;
use channel_api::{
    Address, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Finding, HttpEndpoint, HttpRequest,
    HttpResponse, Level, Link, LiveEdit, LivePace, Mark, Part, Preview, Receipt, Reconciled, Reply, SendError, SendKey,
};
use channel_socket::Network;
use futures_util::{StreamExt, stream::FuturesUnordered};
use tracing::warn;

use api::{Api, ApiError};
use marks::Marks;
use receive::Reception;
use stream::{Handle, Now, Streams};
use target::Target;
use webhook::Door;

pub use config::{Config, ConfigError, Mode};

/// After how long without a sign of life the long connection is taken for dead: pings come every two minutes.
const SILENCE: Duration = Duration::from_secs(10 * 60);
/// How often reactions are looked at that nobody asks for any more.
const SWEEP: Duration = Duration::from_secs(5);
/// The pause before the bot's own id is asked for again.
const ASK_AGAIN: Duration = Duration::from_secs(15);
/// The pause after the app was found without a bot: a click in the console cures it.
const NO_BOT: Duration = Duration::from_secs(60);
/// The most posted events that are worked on at once.
const MOST_AT_ONCE: usize = 64;
/// The first characters of an answer that are shown, and the pause between two changes: Feishu's typewriter fills it.
const FIRST: usize = 30;
/// See [`FIRST`].
const EVERY: Duration = Duration::from_millis(600);

/// One app with a bot.
pub struct Feishu {
    id: ChannelId,
    config: Config,
    capabilities: Capabilities,
    network: Network,
    api: Api,
    reception: Reception,
    door: Door,
    marks: Marks,
    streams: Streams,
    ctx: OnceLock<ChannelContext>,
}

impl Feishu {
    /// The app of `account`, reached by `network`.
    ///
    /// # Errors
    /// [`ConfigError`] when the section cannot work. The route must then not exist.
    pub fn new(account: &str, config: &Config, network: &Network) -> Result<Self, ConfigError> {
        config.check()?;
        let id = ChannelId::new("feishu", account);
        let silence = (config.mode == Mode::Ws).then_some(SILENCE);
        Ok(Self {
            capabilities: send::capabilities(silence, config.reactions),
            network: network.clone(),
            api: Api::new(config, network)?,
            reception: Reception::new(id.clone(), config),
            door: Door::new(config),
            marks: Marks::new(config.reactions),
            streams: Streams::new(config.streaming),
            ctx: OnceLock::new(),
            config: config.clone(),
            id,
        })
    }

    /// How many messages were too old to be answered since the start.
    pub fn stale_messages(&self) -> u64 {
        self.reception.stale()
    }

    fn now(&self) -> Now {
        match self.ctx.get() {
            Some(ctx) => Now { wall: ctx.clock.now_ms(), monotonic: ctx.clock.monotonic() },
            None => Now { wall: 0, monotonic: Duration::ZERO },
        }
    }

    fn target(&self, to: &Address) -> Option<Target> {
        let target = Target::of(to)?;
        let opens_thread = self.config.reply_in_thread && !target.direct;
        Some(Target { opens_thread, ..target })
    }

    /// Receives what is posted until the gateway stops.
    async fn serve_posts(&self, ctx: &ChannelContext) {
        let mut jobs = self.door.waiting.lock().await;
        let mut work = FuturesUnordered::new();
        loop {
            tokio::select! {
                biased;
                _ = work.next(), if !work.is_empty() => {}
                job = jobs.recv(), if work.len() < MOST_AT_ONCE => {
                    let Some((event, done)) = job else { return };
                    work.push(async move {
                        let taken = self.reception.take(&self.api, ctx, &event).await;
                        // Whoever waited may have gone; the event is stored all the same.
                        let _ = done.send(taken);
                    });
                }
            }
        }
    }

    /// Asks for the bot's own id until it is known.
    async fn know_ourselves(&self, ctx: &ChannelContext) -> Result<(), ChannelError> {
        loop {
            let error = match self.reception.bot(&self.api).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            match error {
                ApiError::Credentials(said) => {
                    return Err(ChannelError::Stop(format!(
                        "Feishu does not accept `app_id` and `app_secret` ({said}); copy both from the developer console, \
                         Credentials & Basic Info"
                    )));
                }
                ApiError::Refused { code, said } if self.config.mode == Mode::Ws => {
                    let words = format!(
                        "the app has no bot ({code}: {said}): add the bot ability in the developer console, then create a \
                         version and publish it"
                    );
                    return Err(ChannelError::RestartAfter(NO_BOT, words));
                }
                error if self.config.mode == Mode::Ws => return Err(ChannelError::Restart(error.to_string())),
                error => {
                    warn!(%error, "the bot's own id is not known yet: messages in groups wait");
                    ctx.pulse.link(Link::Down(error.to_string()));
                    ctx.clock.sleep(ASK_AGAIN).await;
                }
            }
        }
    }

    async fn receive(&self, ctx: &ChannelContext) -> Result<(), ChannelError> {
        match self.config.mode {
            Mode::Ws => {
                self.know_ourselves(ctx).await?;
                ws::serve(&self.api, &self.network, &self.reception, ctx).await
            }
            Mode::Webhook => {
                let known = async {
                    self.know_ourselves(ctx).await?;
                    ctx.pulse.link(Link::Up);
                    std::future::pending::<Result<(), ChannelError>>().await
                };
                tokio::select! {
                    ended = known => ended,
                    () = self.serve_posts(ctx) => Ok(()),
                }
            }
        }
    }

    async fn sweep(&self, ctx: &ChannelContext) {
        loop {
            ctx.clock.sleep(SWEEP).await;
            self.marks.fade(&self.api, ctx.clock.monotonic()).await;
        }
    }
}

#[async_trait]
impl Channel for Feishu {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn unprompted(&self, to: &Address) -> Address {
        // In a thread, and in a group of topics, it must answer something.
        let target = Target::of(to).filter(|target| target.thread.is_none() && !target.topics);
        let target = target.map(|target| Target { reply: None, ..target });
        target.map_or_else(|| to.clone(), |target| target.address(&to.channel))
    }

    fn exclusive(&self) -> Option<String> {
        // Each event goes to one connection only: a second one takes messages away.
        Some(self.config.app_id.clone())
    }

    fn open(&self, ctx: &ChannelContext) {
        let _ = self.ctx.set(ctx.clone());
        self.api.live_by(ctx.clock.clone());
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        self.open(&ctx);
        if !self.config.app_id.starts_with("cli_") {
            warn!(channel = %self.id, "`app_id` does not begin with cli_ as the ids of Feishu's apps do: is it the App ID?");
        }
        let work = async {
            tokio::select! {
                ended = self.receive(&ctx) => ended,
                () = self.sweep(&ctx) => Ok(()),
            }
        };
        match self.config.mode {
            // The connection says goodbye by itself.
            Mode::Ws => {
                tokio::pin!(work);
                tokio::select! {
                    ended = &mut work => return ended,
                    () = ctx.shutdown.cancelled() => {}
                }
                if let Ok(Err(error)) = tokio::time::timeout(Duration::from_secs(3), work).await {
                    warn!(%error, "the long connection ended while the gateway stops");
                }
                Ok(())
            }
            Mode::Webhook => tokio::select! {
                ended = work => ended,
                () = ctx.shutdown.cancelled() => Ok(()),
            },
        }
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        render::render(reply, level)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        send::send(self, to, part, key).await
    }

    async fn reconcile(&self, _to: &Address, _part: &Part, _key: &SendKey, since: i64) -> Reconciled {
        let age = self.now().wall.saturating_sub(since);
        match age < i64::try_from(send::UUID_LIVES.as_millis()).unwrap_or(i64::MAX) {
            true => Reconciled::SafeToRepeat,
            false => Reconciled::CannotTell,
        }
    }

    async fn typing(&self, to: &Address) {
        if let Some(question) = Target::of(to).and_then(|target| target.reply) {
            self.marks.typing(&self.api, &question, self.now().monotonic).await;
        }
    }

    fn live(&self) -> Option<&dyn LiveEdit> {
        Some(self)
    }

    fn http(&self) -> Option<&dyn HttpEndpoint> {
        (self.config.mode == Mode::Webhook).then_some(self)
    }

    async fn probe(&self) -> Vec<Finding> {
        probe::probe(&self.api, &self.config, self.id.account()).await
    }
}

#[async_trait]
impl HttpEndpoint for Feishu {
    fn body_limit(&self) -> usize {
        webhook::BODY_LIMIT
    }

    async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse {
        self.door.handle(ctx, request).await
    }
}

#[async_trait]
impl LiveEdit for Feishu {
    fn pace(&self, _to: &Address) -> LivePace {
        match self.streams.on() {
            true => LivePace::Edits { first: FIRST, every: EVERY, most: None },
            false => LivePace::Off,
        }
    }

    async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError> {
        let Some(target) = self.target(to) else {
            return Err(SendError::Refused("the address is none of Feishu's".to_owned()));
        };
        self.streams.begin(&self.api, &target, text, self.now()).await
    }

    async fn update(&self, _to: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
        let Some(handle) = Handle::of(&preview.id) else {
            return Err(SendError::Refused("the preview is none of Feishu's".to_owned()));
        };
        self.streams.update(&self.api, &handle, text, self.now()).await
    }

    async fn drop_preview(&self, _to: &Address, preview: &Preview) {
        if let Some(handle) = Handle::of(&preview.id) {
            self.streams.drop_preview(&self.api, &handle, self.now()).await;
        }
    }

    async fn mark(&self, _to: &Address, platform_id: &str, mark: Mark) {
        if platform_id.starts_with("om_") {
            self.marks.mark(&self.api, platform_id, mark).await;
        }
    }
}

#[cfg(test)]
mod tests;
