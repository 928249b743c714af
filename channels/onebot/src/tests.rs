//! The adapter against a OneBot implementation, as people see it. Rules of protocols.md §6 and lines of bad-inputs.md by
//! name; §1.5 has a test for each difference.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use bytes::Bytes;
use channel_api::{
    Attachment, AttachmentKind, Channel, ChannelContext, ChannelError, Frame, HttpRequest, HttpResponse, InboundKind,
    IntakeError, Level, Link, LivePace, Mark, MediaRef, MediaSource, Part, PartId, Receipt, Reconciled, Reply, Secret,
    SendError, SendKey, Socket, Trust,
    contract::{self, FakeGateway, Platform, SendClass},
};
use channel_socket::Network;
use futures_util::FutureExt;
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};

use crate::{
    Config, Consent, OneBot,
    fake::{self, ADA, BOT, Fault, Flavour, GROUP, Line, at_bot, text},
    socket::MESSAGE_LIMIT,
};

mod calls;
mod connections;
mod differences;
mod events;
mod http_push;
mod outbound;

const TOKEN: &str = "hush-hush-0123456789";

fn network() -> Network {
    Network::new(None, None).expect("no proxy")
}

fn config() -> Config {
    Config { access_token: Secret::from(TOKEN), ..Config::default() }
}

/// A channel that runs, and what it runs against.
struct Bench {
    gateway: FakeGateway,
    ctx: ChannelContext,
    channel: Arc<OneBot>,
    bot: fake::OneBot,
    tasks: tokio::task::JoinSet<()>,
}

impl Bench {
    fn new(flavour: Flavour) -> Self {
        Self::with(flavour, &config())
    }

    fn with(flavour: Flavour, config: &Config) -> Self {
        Self::of(flavour, config, FakeGateway::new())
    }

    /// A gateway that was there before.
    fn of(flavour: Flavour, config: &Config, gateway: FakeGateway) -> Self {
        let channel = Arc::new(OneBot::new("qq", config, &network()).expect("a section that works"));
        let ctx = gateway.context();
        channel.open(&ctx);
        let mut bench =
            Self { gateway, ctx, channel, bot: fake::OneBot::new(flavour), tasks: tokio::task::JoinSet::new() };
        bench.run();
        bench
    }

    fn run(&mut self) {
        let (channel, ctx) = (self.channel.clone(), self.ctx.clone());
        self.tasks.spawn(async move {
            let _ = channel.run(ctx).await;
        });
    }

    /// A reverse connection in memory.
    fn connect(&mut self) {
        self.connect_as(&self.bot.clone(), "Universal");
    }

    fn connect_as(&mut self, bot: &fake::OneBot, role: &str) {
        let (to_bot, mut lines) = bot.attach();
        let (ours, mut theirs) = Socket::pair();
        let request = upgrade("", role, Some(&BOT.to_string()));
        let (channel, ctx) = (self.channel.clone(), self.ctx.clone());
        self.tasks.spawn(async move { channel.socket().expect("reverse").serve(&ctx, request, ours).await });
        self.tasks.spawn(async move {
            loop {
                tokio::select! {
                    line = lines.recv() => match line {
                        Some(Line::Text(text)) => if theirs.outgoing.send(Frame::Text(text)).await.is_err() { return },
                        Some(Line::Close(code)) => {
                            let _ = theirs.outgoing.send(Frame::Close(code, String::new())).await;
                            return;
                        }
                        None => return,
                    },
                    frame = theirs.incoming.recv() => match frame {
                        Some(Frame::Text(text)) => {
                            let _ = to_bot.send(Line::Text(text));
                        }
                        Some(Frame::Close(..)) | None => return,
                        Some(_) => {}
                    },
                }
            }
        });
    }

    /// A connection whose other end the test holds.
    fn raw(&mut self, path: &str, role: &str, bot: Option<&str>) -> Socket {
        let (ours, theirs) = Socket::pair();
        let request = upgrade(path, role, bot);
        let (channel, ctx) = (self.channel.clone(), self.ctx.clone());
        self.tasks.spawn(async move { channel.socket().expect("reverse").serve(&ctx, request, ours).await });
        theirs
    }

    async fn up(&self) {
        self.bot.until("the channel is up", |_| self.ctx.pulse.look().0 == Link::Up).await;
    }

    async fn counted(&self, reason: &str, count: u64) {
        self.bot.until(reason, |_| self.channel.queue.counted(reason) >= count).await;
    }

    /// The address of the last stored event.
    fn address(&self) -> channel_api::Address {
        self.gateway.intake.events().last().expect("an event").address.clone()
    }

    async fn hear(&self, event: &Value) -> channel_api::Inbound {
        let before = self.gateway.intake.events().len();
        self.bot.bring(event);
        self.gateway.intake.until_stored(before + 1).await;
        self.gateway.intake.events().pop().expect("it is stored")
    }

    async fn send(&self, to: &channel_api::Address, part: &Part) -> Result<Receipt, SendError> {
        self.channel.send(to, part, &key(1)).await
    }
}

fn upgrade(path: &str, role: &str, bot: Option<&str>) -> HttpRequest {
    let mut headers = HeaderMap::new();
    headers.insert("authorization", format!("Bearer {TOKEN}").parse().expect("a header"));
    headers.insert("x-client-role", role.parse().expect("a header"));
    if let Some(bot) = bot {
        headers.insert("x-self-id", bot.parse().expect("a header"));
    }
    let (path, query) = (path.to_owned(), String::new());
    HttpRequest { method: Method::GET, path, query, headers, body: Bytes::new(), local: false }
}

fn key(seq: u32) -> SendKey {
    SendKey {
        part: PartId::generate(),
        seq,
        last: true,
        in_reply_to: None,
        created_at: 1_795_996_800_000,
        resend: false,
        replaces: None,
    }
}

fn one(channel: &OneBot, text: &str) -> Part {
    let mut parts = channel.render(&Reply::message(text), Level::Rich);
    assert_eq!(parts.len(), 1, "{parts:?}");
    parts.remove(0)
}
