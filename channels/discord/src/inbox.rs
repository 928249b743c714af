//! From the gateway into the inbox: one event after the other is stored, and held and offered again while it cannot be.
//! Discord confirms nothing and repeats nothing, so what was missed is asked for when a new session begins.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use channel_api::{
    Accepted, Batch, ChannelContext, ChannelError, ChannelId, Conversation, Cursor, Inbound, IntakeError, Sender,
};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};
use tracing::{debug, info, warn};

use crate::{
    api::{Api, ApiError},
    files,
    inbound::{Read, Reader},
    interaction,
    places::Places,
    relay::Told,
    target::{Target, id, id_at, is_id, order},
};

/// The longest pause before a held event is offered again.
const LONGEST_HOLD: Duration = Duration::from_secs(30);
/// How long an acknowledgement may take to be known.
const ACKNOWLEDGED: Duration = Duration::from_secs(3);
/// How often the position of a channel is written on account of messages that are not said to the bot.
const CURSOR_EVERY: Duration = Duration::from_secs(20);
/// The most channels whose positions are kept.
const MOST_CHANNELS: usize = 500;
/// The most channels that are asked for what was missed.
const MOST_ASKED: usize = 50;
/// Discord does not answer: after so many channels the rest is given up, for what is said now waits behind it.
const MOST_FAILED: u32 = 3;
/// The most messages of one channel that are fetched: what Discord gives at once.
const MOST_MISSED: usize = 100;
/// The most messages whose senders are remembered, for news of their deletion.
const MOST_RECENT: usize = 5_000;
/// Where the channels are kept.
const CHANNELS_KEY: &str = "channels";

/// What one run of the inbox works with.
pub struct Inbox<'a> {
    pub(crate) channel: &'a ChannelId,
    pub(crate) api: &'a Api,
    pub(crate) ctx: &'a ChannelContext,
    pub(crate) places: Arc<Places>,
    /// The bot's id.
    pub(crate) me: String,
    /// How old a message may be that is fetched after a gap.
    pub(crate) backfill: Duration,
    /// The largest file, in bytes.
    pub(crate) largest: u64,
    /// Tells the application's id once it is known.
    pub(crate) app: watch::Sender<Option<String>>,
    pub(crate) known: Known,
    pub(crate) recent: Recent,
}

/// Where the bot is spoken to.
#[derive(Default)]
pub struct Known {
    channels: BTreeMap<String, Spoken>,
    positions: HashMap<String, Position>,
}

/// What messages of a REST list do not say.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Spoken {
    /// The server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    guild: Option<String>,
    /// The person, in a direct chat.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    peer: Option<String>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Position {
    /// The newest message that was taken.
    last: u64,
    /// When it was written down, on the monotonic clock.
    written: Option<Duration>,
}

/// Who said the last messages.
#[derive(Default)]
pub struct Recent {
    said: HashMap<String, (Conversation, Sender)>,
    order: VecDeque<String>,
}

impl Recent {
    fn note(&mut self, message: &str, conversation: &Conversation, sender: &Sender) {
        if self.said.insert(message.to_owned(), (conversation.clone(), sender.clone())).is_none() {
            self.order.push_back(message.to_owned());
        }
        if self.order.len() > MOST_RECENT
            && let Some(oldest) = self.order.pop_front()
        {
            self.said.remove(&oldest);
        }
    }
}

impl Inbox<'_> {
    /// Takes what the relay tells until it tells no more.
    ///
    /// # Errors
    /// What the supervisor does next.
    pub async fn take(mut self, mut told: mpsc::Receiver<Told>) -> Result<(), ChannelError> {
        self.remember().await;
        while let Some(told) = told.recv().await {
            match told {
                Told::Fatal(code, why) => return Err(fatal(code, &why)),
                Told::Event(name, data, acknowledged) => self.event(&name, data, acknowledged).await,
            }
        }
        Err(ChannelError::Restart("the connection to the gateway ended".to_owned()))
    }

    async fn event(&mut self, name: &str, data: Value, acknowledged: Option<tokio::sync::oneshot::Receiver<bool>>) {
        match name {
            "READY" => {
                if let Some(me) = data.get("user").and_then(|user| id(user, "id")) {
                    self.me = me;
                }
                if let Some(app) = data.get("application").and_then(|app| id(app, "id")) {
                    self.app.send_replace(Some(app));
                }
                info!(bot = self.me, "connected to Discord");
                self.catch_up().await;
            }
            "RESUMED" => info!("the session with Discord goes on"),
            "MESSAGE_CREATE" => self.message(&data).await,
            "MESSAGE_UPDATE" => {
                self.know_place(&data).await;
                if let Some(read) = self.reader().edit(&data) {
                    self.store(read.inbound, None).await;
                }
            }
            "MESSAGE_DELETE" => {
                if let Some(message) = id(&data, "id") {
                    self.deleted(&message, &data).await;
                }
            }
            "MESSAGE_DELETE_BULK" => {
                let ids = data.get("ids").and_then(Value::as_array).into_iter().flatten().take(MOST_MISSED);
                for message in ids.filter_map(Value::as_str).filter(|message| is_id(message)) {
                    self.deleted(message, &data).await;
                }
            }
            "INTERACTION_CREATE" => {
                let acknowledged = match acknowledged {
                    Some(acknowledged) => {
                        matches!(tokio::time::timeout(ACKNOWLEDGED, acknowledged).await, Ok(Ok(true)))
                    }
                    None => false,
                };
                let Some(inbound) = self.reader().interaction(&data, acknowledged, self.ctx.clock.now_ms()) else {
                    debug!("an interaction of an unknown kind");
                    return;
                };
                let address = inbound.address.clone();
                let taken = self.store(inbound, None).await;
                if matches!(taken, Some(Accepted::Ignored(_) | Accepted::Conflict | Accepted::Full(_)))
                    && let Some(command) = Target::of(&address).and_then(|target| target.command)
                {
                    let locale = data.get("locale").and_then(Value::as_str).unwrap_or_default();
                    interaction::refuse(self.api, &command, locale).await;
                }
            }
            _ => {}
        }
    }

    fn reader(&self) -> Reader<'_> {
        Reader { channel: self.channel, me: &self.me, places: &self.places }
    }

    async fn message(&mut self, data: &Value) {
        self.know_place(data).await;
        let Some(Read { mut inbound, files }) = self.reader().message(data) else { return };
        let Some(channel_id) = id(data, "channel_id") else { return };
        let addressed = inbound.addressed();
        inbound.attachments = files::unfetched(&files);
        let wanted = self.ctx.intake.wants_files(&inbound);
        if !wanted {
            inbound.leave_files();
        } else if !files.is_empty() {
            inbound.attachments = files::fetch(self.api, self.ctx.media.as_ref(), &files, self.largest).await;
        }
        // What strangers say is not asked for after a gap, and makes no other chat forgotten.
        if addressed && wanted {
            let peer = id(data, "guild_id").is_none().then(|| inbound.sender.id.clone());
            self.spoken_in(&channel_id, Spoken { guild: id(data, "guild_id"), peer }).await;
        }
        self.recent.note(&inbound.platform_id, &inbound.conversation, &inbound.sender);
        let number = order(&inbound.platform_id);
        let cursor = self.known.cursor(&channel_id, number, addressed, self.ctx.clock.monotonic());
        self.store(inbound, cursor).await;
        self.known.taken(&channel_id, number);
    }

    async fn deleted(&mut self, message: &str, data: &Value) {
        let known = self.recent.said.get(message).cloned().or_else(|| {
            let spoken = self.known.channels.get(&id(data, "channel_id")?)?;
            let sender = Sender { id: spoken.peer.clone()?, name: None, is_bot: false };
            let kind = channel_api::ConversationKind::Direct;
            Some((Conversation { kind, id: sender.id.clone(), thread: None, title: None }, sender))
        });
        self.know_place(data).await;
        if let Some(inbound) = self.reader().deleted(message, data, known) {
            self.store(inbound, None).await;
        }
    }

    /// A channel of a server may be a thread: Discord says so elsewhere than in its messages.
    async fn know_place(&self, data: &Value) {
        let Some(channel_id) = id(data, "channel_id") else { return };
        if id(data, "guild_id").is_none() || self.places.get(&channel_id).is_some() {
            return;
        }
        match self.api.call(Method::GET, &format!("/channels/{channel_id}"), None).await {
            Ok(channel) => self.places.add(&channel),
            Err(error) => {
                debug!(%error, channel = channel_id, "a channel could not be looked at");
                if matches!(error, ApiError::Refused { .. }) {
                    self.places.add(&json!({"id": channel_id}));
                }
            }
        }
    }

    /// Stores one event, however long it takes: Discord would not send it again.
    async fn store(&self, inbound: Inbound, cursor: Option<Cursor>) -> Option<Accepted> {
        let batch = Batch { channel: Some(self.channel.clone()), events: vec![inbound], cursor, moved: Vec::new() };
        let mut pause = Duration::from_secs(1);
        loop {
            match self.ctx.intake.accept(batch.clone()).await {
                Ok(answers) => return answers.into_iter().next(),
                Err(error) => {
                    let wait = match &error {
                        IntakeError::Busy(wait) => (*wait).clamp(Duration::from_millis(100), LONGEST_HOLD),
                        IntakeError::Unavailable(_) => pause,
                    };
                    warn!(%error, "an event of Discord waits to be stored");
                    // It lives, and holds what a restart would lose.
                    self.ctx.pulse.beat();
                    self.ctx.clock.sleep(wait).await;
                    pause = (pause * 2).min(LONGEST_HOLD);
                }
            }
        }
    }

    /// What an earlier run knew.
    async fn remember(&mut self) {
        let stored = match self.ctx.kv.get(CHANNELS_KEY).await {
            Ok(stored) => stored.unwrap_or_default(),
            Err(error) => return debug!(%error, "the channels of an earlier run are not known"),
        };
        let channels: BTreeMap<String, Spoken> = serde_json::from_str(&stored).unwrap_or_default();
        for (channel, spoken) in channels.into_iter().filter(|(channel, _)| is_id(channel)).take(MOST_CHANNELS) {
            let last = self.ctx.kv.get(&position_key(&channel)).await.ok().flatten();
            let last = last.filter(|last| is_id(last)).map_or(0, |last| order(&last));
            self.known.positions.insert(channel.clone(), Position { last, written: None });
            self.known.channels.insert(channel, spoken);
        }
    }

    async fn spoken_in(&mut self, channel: &str, spoken: Spoken) {
        if self.known.channels.get(channel) == Some(&spoken) {
            return;
        }
        self.known.channels.insert(channel.to_owned(), spoken);
        self.known.bound(channel);
        self.write_channels().await;
    }

    async fn write_channels(&self) {
        let text = serde_json::to_string(&self.known.channels).unwrap_or_default();
        if let Err(error) = self.ctx.kv.set(CHANNELS_KEY, &text).await {
            warn!(%error, "a channel is not known after a restart: what is missed there is not fetched");
        }
    }

    /// Fetches what was said while nobody listened, oldest first, before anything newer is taken.
    async fn catch_up(&mut self) {
        if self.backfill.is_zero() {
            return;
        }
        let now = self.ctx.clock.now_ms();
        let oldest = id_at(now.saturating_sub(i64::try_from(self.backfill.as_millis()).unwrap_or(i64::MAX)));
        let mut channels: Vec<(String, Spoken)> =
            self.known.channels.iter().map(|(channel, spoken)| (channel.clone(), spoken.clone())).collect();
        channels.sort_by_key(|(channel, _)| std::cmp::Reverse(self.known.last(channel)));
        let (mut forgotten, mut failed) = (false, 0);
        for (channel, spoken) in channels.into_iter().take(MOST_ASKED) {
            let after = self.known.last(&channel).max(oldest);
            match self.missed(&channel, after).await {
                Ok(messages) => {
                    if !messages.is_empty() {
                        info!(channel, count = messages.len(), "fetched messages that were missed");
                    }
                    for mut message in messages {
                        if let (Some(guild), Some(fields)) = (&spoken.guild, message.as_object_mut()) {
                            fields.insert("guild_id".to_owned(), guild.as_str().into());
                        }
                        self.message(&message).await;
                    }
                }
                // The channel is gone, or the bot is.
                Err(ApiError::Refused { status: 403 | 404, .. }) => {
                    self.known.channels.remove(&channel);
                    self.known.positions.remove(&channel);
                    forgotten = true;
                }
                Err(error) => {
                    warn!(%error, channel, "what was missed in a channel was not fetched");
                    failed += 1;
                    if failed == MOST_FAILED {
                        break;
                    }
                }
            }
        }
        if forgotten {
            self.write_channels().await;
        }
    }

    async fn missed(&self, channel: &str, after: u64) -> Result<Vec<Value>, ApiError> {
        let path = format!("/channels/{channel}/messages?after={after}&limit={MOST_MISSED}");
        let mut answer = self.api.call(Method::GET, &path, None).await;
        for _ in 0..2 {
            let pause = match &answer {
                Err(ApiError::RetryAfter(pause)) => (*pause).min(LONGEST_HOLD),
                Err(ApiError::Retry(_) | ApiError::Unknown(_)) => Duration::from_secs(1),
                _ => break,
            };
            self.ctx.clock.sleep(pause).await;
            answer = self.api.call(Method::GET, &path, None).await;
        }
        let Value::Array(mut messages) = answer? else { return Ok(Vec::new()) };
        messages.retain(|message| id(message, "id").is_some_and(|message| order(&message) > after));
        messages.sort_by_key(|message| id(message, "id").map_or(0, |message| order(&message)));
        messages.truncate(MOST_MISSED);
        Ok(messages)
    }
}

impl Known {
    fn last(&self, channel: &str) -> u64 {
        self.positions.get(channel).map_or(0, |position| position.last)
    }

    /// What is written down with a message. One that is not said to the bot costs no write of its own, mostly.
    fn cursor(&mut self, channel: &str, message: u64, addressed: bool, now: Duration) -> Option<Cursor> {
        if !self.channels.contains_key(channel) {
            return None;
        }
        let position = self.positions.entry(channel.to_owned()).or_default();
        let due = position.written.is_none_or(|written| now.saturating_sub(written) >= CURSOR_EVERY);
        if message <= position.last || !(addressed || due) {
            return None;
        }
        position.written = Some(now);
        Some(Cursor { key: position_key(channel), value: message.to_string() })
    }

    /// A message was stored, or is none for us.
    fn taken(&mut self, channel: &str, message: u64) {
        if self.channels.contains_key(channel) {
            let position = self.positions.entry(channel.to_owned()).or_default();
            position.last = position.last.max(message);
        }
    }

    /// Too many: the one that was silent for the longest goes.
    fn bound(&mut self, newest: &str) {
        while self.channels.len() > MOST_CHANNELS {
            let silent =
                self.channels.keys().filter(|channel| *channel != newest).min_by_key(|channel| self.last(channel));
            let Some(silent) = silent.cloned() else { return };
            self.channels.remove(&silent);
            self.positions.remove(&silent);
        }
    }
}

fn position_key(channel: &str) -> String {
    format!("last:{channel}")
}

/// What a close code that no new try cures asks of the owner.
pub fn fatal(code: u16, why: &str) -> ChannelError {
    let why: String = why.chars().filter(|c| !c.is_control()).take(100).collect();
    ChannelError::Stop(match code {
        4004 => "Discord does not accept the token (4004): Developer Portal → your application → Bot → Reset Token, \
                 then put the new one into the section"
            .to_owned(),
        4013 | 4014 => format!(
            "Discord refuses what the bot asks to see ({code}): enable Message Content Intent in the Developer Portal → \
             your application → Bot → Privileged Gateway Intents, or set `message_content = false` in the section"
        ),
        4010..=4012 => {
            format!("Discord refuses the connection ({code} {why}): the bot is in too many servers for one session")
        }
        _ => format!("Discord closed the connection for good ({code} {why})"),
    })
}
