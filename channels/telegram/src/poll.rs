//! Asking for updates: whatever was taken is committed together with the position before the next question confirms it.
//! Knows nothing of what updates mean.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use channel_api::{Accepted, Batch, ChannelContext, ChannelError, ChannelId, Cursor, Inbound, IntakeError, Moved};
use serde_json::Value;
use teloxide::{
    payloads::{DeleteWebhook, GetMe, GetUpdates, SendMessage},
    types::{AllowedUpdate, User},
};
use tracing::{debug, info, warn};

use crate::{
    api::{Api, ApiError},
    inbound::{self, Me},
    menu,
    moves::Moves,
    target::Target,
};

/// How long Telegram holds a question without news, in seconds.
const HOLD: u32 = 30;
/// How much longer an answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// The most updates at once: what Telegram allows.
const LIMIT: u8 = 100;
/// What is asked for.
const KINDS: [AllowedUpdate; 3] = [AllowedUpdate::Message, AllowedUpdate::EditedMessage, AllowedUpdate::ChannelPost];
/// Failed questions in a row that are waited out here; the next one ends the run, and the supervisor tells it in health.
const PATIENCE: u32 = 3;
/// The pause after another instance took the updates.
const CONFLICT_PAUSE: Duration = Duration::from_secs(30);
/// After a week without updates Telegram may begin with any id, lower ones too. A position this old is not named any
/// more: everything before it was confirmed long ago.
const STALE_MS: i64 = 6 * 24 * 60 * 60 * 1_000;

/// A chat is told at most this often that a message was refused.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// The most chats that are told in that time.
const MOST_TOLD: usize = 20;
/// How long telling it may take.
const NOTICE_TIME: Duration = Duration::from_secs(5);

/// Who we are.
pub async fn who_we_are(api: &Api) -> Result<Me, ApiError> {
    let user: User = api.call("getMe", &GetMe::new()).await?;
    match user.username {
        Some(username) => Ok(Me { id: user.id, username }),
        None => Err(ApiError::Unreadable("the bot has no user name".to_owned())),
    }
}

/// Asks until `ctx.shutdown` is cancelled.
///
/// # Errors
/// What the supervisor does next: stop on a refused token, else start again, after a while where Telegram wants one.
pub async fn run(api: &Api, moves: &Moves, channel: &ChannelId, ctx: &ChannelContext) -> Result<(), ChannelError> {
    tokio::select! {
        biased;
        () = ctx.shutdown.cancelled() => Ok(()),
        ended = ask_on(api, moves, channel, ctx) => ended,
    }
}

async fn ask_on(api: &Api, moves: &Moves, channel: &ChannelId, ctx: &ChannelContext) -> Result<(), ChannelError> {
    let me = who_we_are(api).await.map_err(ended)?;
    // With a webhook set, Telegram answers no question. What waits for it is kept.
    let _: bool = api.call("deleteWebhook", &DeleteWebhook::new()).await.map_err(ended)?;
    info!(bot = %me.username, "asking Telegram for messages");
    let poller = Poller { api, moves, channel, ctx, key: format!("offset:{}", me.id), me: &me, told: Mutex::default() };
    let menu = async {
        if let Err(error) = menu::publish(api).await {
            warn!(%error, "the command menu was not set");
        }
        std::future::pending().await
    };
    tokio::select! {
        ended = poller.ask_on() => ended,
        never = menu => never,
    }
}

struct Poller<'a> {
    api: &'a Api,
    moves: &'a Moves,
    channel: &'a ChannelId,
    ctx: &'a ChannelContext,
    /// Where the position stands: each bot has its own, whatever account it is configured as.
    key: String,
    me: &'a Me,
    /// When a chat was last told that a message was refused.
    told: Mutex<HashMap<i64, Duration>>,
}

/// The first update that was not committed, and when that was so, in epoch milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Position {
    offset: i32,
    at: i64,
}

impl Position {
    fn parse(text: &str) -> Option<Self> {
        let (offset, at) = text.split_once('@')?;
        Some(Self { offset: offset.parse().ok()?, at: at.parse().ok()? })
    }

    fn text(self) -> String {
        format!("{}@{}", self.offset, self.at)
    }
}

impl Poller<'_> {
    async fn ask_on(&self) -> Result<(), ChannelError> {
        let stored = self.ctx.kv.get(&self.key).await.map_err(|error| ChannelError::Restart(error.to_string()))?;
        let mut position = stored.as_deref().and_then(Position::parse);
        let mut failures = 0;
        loop {
            let asked = match self.ask(position).await {
                Ok(updates) => self.take(&updates, &mut position).await,
                Err(error) => Err(error),
            };
            let Err(error) = asked else {
                failures = 0;
                continue;
            };
            failures += 1;
            match error {
                ApiError::RetryAfter(pause) => {
                    warn!(seconds = pause.as_secs(), "Telegram asks to wait before the next question");
                    self.ctx.clock.sleep(pause).await;
                    continue;
                }
                ApiError::Retry(_) | ApiError::Unknown(_) if failures <= PATIENCE => {}
                error => return Err(ended(error)),
            }
            let pause = jittered(Duration::from_secs(1 << failures.min(5)));
            warn!(%error, seconds = pause.as_secs_f32(), "Telegram did not answer the question for updates");
            self.ctx.clock.sleep(pause).await;
        }
    }

    /// One question, which confirms everything before `position`.
    async fn ask(&self, position: Option<Position>) -> Result<Vec<Value>, ApiError> {
        let fresh = |position: &Position| self.ctx.clock.now_ms().saturating_sub(position.at) < STALE_MS;
        let mut question = GetUpdates::new();
        question.offset = position.filter(fresh).map(|position| position.offset);
        question.timeout = Some(HOLD);
        question.limit = Some(LIMIT);
        question.allowed_updates = Some(KINDS.to_vec());
        let time = Duration::from_secs(HOLD.into()) + GRACE;
        self.api.call_within(time, "getUpdates", &question).await
    }

    /// Commits what came. Returns when it is safe to confirm it; then `position` stands behind it.
    async fn take(&self, updates: &[Value], position: &mut Option<Position>) -> Result<(), ApiError> {
        if updates.is_empty() {
            return Ok(());
        }
        let ids = updates.iter().filter_map(|update| update.get("update_id")?.as_i64());
        // The newest of this batch, not of all times: ids may begin anew.
        let Some(offset) = ids.max().and_then(|id| i32::try_from(id.checked_add(1)?).ok()) else {
            return Err(ApiError::Unreadable("updates without ids".to_owned()));
        };
        let behind = Position { offset, at: self.ctx.clock.now_ms() };
        let events: Vec<Inbound> =
            updates.iter().filter_map(|update| inbound::inbound(self.channel, self.me, update)).collect();
        let mut moved = Vec::new();
        for (from, to) in updates.iter().filter_map(inbound::moved) {
            info!(from, to, "a group became a supergroup");
            self.moves.remember(from, to).await;
            moved.push(Moved { from: from.to_string(), to: to.to_string() });
        }
        let skipped = updates.len() - events.len();
        if skipped > 0 {
            debug!(skipped, "updates that say nothing to the bot");
        }
        let cursor = Cursor { key: self.key.clone(), value: behind.text() };
        let batch = Batch { channel: Some(self.channel.clone()), events, cursor: Some(cursor), moved };
        let answers = self.commit(&batch).await;
        *position = Some(behind);
        for (event, answer) in batch.events.iter().zip(answers) {
            debug!(id = event.platform_id, ?answer, "an update was taken");
            if let Accepted::Full(pause) = answer {
                self.tell_refused(event, pause).await;
            }
        }
        Ok(())
    }

    /// Tells the sender of a message that was not stored, each chat once a minute. Best effort.
    async fn tell_refused(&self, event: &Inbound, pause: Duration) {
        let Some(target) = Target::of(&event.address) else { return };
        warn!(chat = target.chat, seconds = pause.as_secs(), "refused: its sender writes too much");
        {
            let now = self.ctx.clock.monotonic();
            let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
            told.retain(|_, at| now.saturating_sub(*at) < TOLD_AGAIN);
            if told.len() >= MOST_TOLD || told.contains_key(&target.chat) {
                return;
            }
            told.insert(target.chat, now);
        }
        let seconds = pause.as_secs().max(1);
        let text = match event.text.chars().any(|c| matches!(c, '\u{3400}'..='\u{9fff}')) {
            true => format!("消息太密了，这一条没有收下。请 {seconds} 秒后再发一次。"),
            false => format!("Too many messages at once: this one was not taken. Please send it again in {seconds} s."),
        };
        let mut message = SendMessage::new(target.recipient(), text);
        message.message_thread_id = target.thread_to_send();
        if let Err(error) = self.api.call_within::<_, Value>(NOTICE_TIME, "sendMessage", &message).await {
            debug!(%error, chat = target.chat, "the refusal was not told");
        }
    }

    /// Offers a batch until it is stored.
    async fn commit(&self, batch: &Batch) -> Vec<Accepted> {
        loop {
            let pause = if batch.events.is_empty() && batch.moved.is_empty() {
                // Nothing but a position: a restart may see these updates again, and ignores them again.
                let Some(cursor) = &batch.cursor else { return Vec::new() };
                match self.ctx.kv.set(&cursor.key, &cursor.value).await {
                    Ok(()) => return Vec::new(),
                    Err(error) => {
                        warn!(%error, "the position waits for the store");
                        Duration::from_secs(5)
                    }
                }
            } else {
                match self.ctx.intake.accept(batch.clone()).await {
                    Ok(answers) => return answers,
                    Err(IntakeError::Busy(pause)) => {
                        info!(seconds = pause.as_secs(), "the gateway is full; Telegram keeps what comes");
                        pause
                    }
                    Err(error @ IntakeError::Unavailable(_)) => {
                        warn!(%error, "what Telegram delivered waits for the store");
                        Duration::from_secs(5)
                    }
                }
            };
            self.ctx.clock.sleep(pause).await;
        }
    }
}

/// What a failure that is not waited out here means for the whole channel.
fn ended(error: ApiError) -> ChannelError {
    match error {
        ApiError::WrongToken(_) => {
            ChannelError::Stop(format!("{error}; get a new one from @BotFather and put it into the configuration"))
        }
        ApiError::Conflict(said) => ChannelError::RestartAfter(
            jittered(CONFLICT_PAUSE),
            format!("another program asks for this bot's messages; stop it, or give it a bot of its own ({said})"),
        ),
        ApiError::RetryAfter(pause) => ChannelError::RestartAfter(pause, error.to_string()),
        error => ChannelError::Restart(error.to_string()),
    }
}

/// Between one and one and a half times as long, so that many gateways do not come back at once.
fn jittered(pause: Duration) -> Duration {
    let chance = RandomState::new().build_hasher().finish() % 500;
    pause + pause * u32::try_from(chance).unwrap_or(0) / 1_000
}

#[cfg(test)]
mod tests;
