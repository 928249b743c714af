//! Asking for updates: whatever was taken is committed together with the position before the next question confirms it.
//! Knows nothing of what updates mean.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    time::Duration,
};

use channel_api::{ChannelContext, ChannelError, ChannelId, Cursor, Link};
use serde_json::Value;
use teloxide::{
    payloads::{DeleteWebhook, GetMe, GetUpdates},
    types::{AllowedUpdate, User},
};
use tracing::{info, warn};

use crate::{
    api::{Api, ApiError},
    inbound::Me,
    menu,
    moves::Moves,
    take::{Patience, Reception, Told},
};

/// How long Telegram holds a question without news, in seconds.
const HOLD: u32 = 30;
/// How much longer an answer may take.
const GRACE: Duration = Duration::from_secs(10);
/// The most updates at once: what Telegram allows.
const LIMIT: u8 = 100;
/// What is asked for.
pub const KINDS: [AllowedUpdate; 5] = [
    AllowedUpdate::Message,
    AllowedUpdate::EditedMessage,
    AllowedUpdate::ChannelPost,
    AllowedUpdate::EditedChannelPost,
    AllowedUpdate::CallbackQuery,
];
/// Failed questions in a row that are waited out here; the next one ends the run, and the supervisor tells it in health.
const PATIENCE: u32 = 3;
/// The longest pause that is waited out here: a longer one would look like death.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The pause after another instance took the updates.
const CONFLICT_PAUSE: Duration = Duration::from_secs(30);
/// After a week without updates Telegram may begin with any id, lower ones too. A position this old is not named any
/// more: everything before it was confirmed long ago.
const STALE_MS: i64 = 6 * 24 * 60 * 60 * 1_000;

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
    ctx.pulse.link(Link::Up);
    let (key, told) = (format!("offset:{}", me.id), Told::default());
    let reception = Reception { api, moves, channel, ctx, me: &me, told: &told, patience: Patience::Endless };
    let poller = Poller { reception, key };
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
    reception: Reception<'a>,
    /// Where the position stands: each bot has its own, whatever account it is configured as.
    key: String,
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
        let ctx = self.reception.ctx;
        let stored = ctx.kv.get(&self.key).await.map_err(|error| ChannelError::Restart(error.to_string()))?;
        let mut position = stored.as_deref().and_then(Position::parse);
        let mut failures = 0;
        loop {
            let asked = match self.ask(position).await {
                Ok(updates) => {
                    if failures > 0 {
                        ctx.pulse.link(Link::Up);
                    }
                    ctx.pulse.beat();
                    self.take(&updates, &mut position).await
                }
                Err(error) => Err(error),
            };
            let Err(error) = asked else {
                failures = 0;
                continue;
            };
            failures += 1;
            ctx.pulse.link(Link::Down(error.to_string()));
            match error {
                ApiError::RetryAfter(pause) if pause <= LONGEST_WAIT => {
                    warn!(seconds = pause.as_secs(), "Telegram asks to wait before the next question");
                    ctx.clock.sleep(pause).await;
                    continue;
                }
                ApiError::Retry(_) | ApiError::Unknown(_) if failures <= PATIENCE => {}
                error => return Err(ended(error)),
            }
            let pause = jittered(Duration::from_secs(1 << failures.min(5)));
            warn!(%error, seconds = pause.as_secs_f32(), "Telegram did not answer the question for updates");
            ctx.clock.sleep(pause).await;
        }
    }

    /// One question, which confirms everything before `position`.
    async fn ask(&self, position: Option<Position>) -> Result<Vec<Value>, ApiError> {
        let fresh = |position: &Position| self.reception.ctx.clock.now_ms().saturating_sub(position.at) < STALE_MS;
        let mut question = GetUpdates::new();
        question.offset = position.filter(fresh).map(|position| position.offset);
        question.timeout = Some(HOLD);
        question.limit = Some(LIMIT);
        question.allowed_updates = Some(KINDS.to_vec());
        let time = Duration::from_secs(HOLD.into()) + GRACE;
        self.reception.api.call_within(time, "getUpdates", &question).await
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
        let behind = Position { offset, at: self.reception.ctx.clock.now_ms() };
        let cursor = Cursor { key: self.key.clone(), value: behind.text() };
        let stored = self.reception.take(updates, Some(cursor)).await;
        stored.map_err(|error| ApiError::Retry(error.to_string()))?;
        *position = Some(behind);
        Ok(())
    }
}

/// What a failure that is not waited out here means for the whole channel.
pub fn ended(error: ApiError) -> ChannelError {
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
pub fn jittered(pause: Duration) -> Duration {
    let chance = RandomState::new().build_hasher().finish() % 500;
    pause + pause * u32::try_from(chance).unwrap_or(0) / 1_000
}

#[cfg(test)]
mod tests;
