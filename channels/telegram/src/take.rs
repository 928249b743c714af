//! What updates come to: events with their files, stored in one commit with the position behind them. Both ways in end
//! here; knows nothing of how updates come.

use std::{
    collections::{HashMap, HashSet},
    sync::{Mutex, PoisonError},
    time::Duration,
};

use channel_api::{Accepted, Batch, ChannelContext, ChannelId, Cursor, Inbound, IntakeError, Moved, crash_point};
use futures_util::future::join_all;
use serde_json::{Value, json};
use teloxide::payloads::SendMessage;
use tracing::{debug, info, warn};

use crate::{
    api::Api,
    files,
    inbound::{self, Me, Taken},
    moves::Moves,
    target::Target,
};

/// A chat is told at most this often that a message was refused.
const TOLD_AGAIN: Duration = Duration::from_secs(60);
/// The most chats that are told in that time.
const MOST_TOLD: usize = 20;
/// How long telling it, or answering a pressed button, may take.
const NOTICE_TIME: Duration = Duration::from_secs(5);
/// The pause before a batch is offered again that the store did not take.
const STORE_PAUSE: Duration = Duration::from_secs(5);

/// When chats were last told that a message was refused.
pub type Told = Mutex<HashMap<i64, Duration>>;

/// What is done when the gateway cannot take a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patience {
    /// It is offered until it is taken: Telegram keeps what comes meanwhile.
    Endless,
    /// Telegram is told, and delivers it again.
    None,
}

/// Takes updates of one bot.
pub struct Reception<'a> {
    pub api: &'a Api,
    pub moves: &'a Moves,
    pub channel: &'a ChannelId,
    pub ctx: &'a ChannelContext,
    pub me: &'a Me,
    pub told: &'a Told,
    pub patience: Patience,
}

impl Reception<'_> {
    /// Stores what these updates say, and `cursor` with it. Returns when it is safe to confirm them.
    ///
    /// # Errors
    /// [`IntakeError`] without [`Patience`]: not everything was stored, and all of it has to come again.
    pub async fn take(&self, updates: &[Value], cursor: Option<Cursor>) -> Result<(), IntakeError> {
        crash_point!("telegram.batch");
        let mut taken: Vec<Taken> =
            updates.iter().filter_map(|update| inbound::inbound(self.channel, self.me, update)).collect();
        let skipped = updates.len() - taken.len();
        if skipped > 0 {
            debug!(skipped, "updates that say nothing to the bot");
        }
        let mut moved = Vec::new();
        for (from, to) in updates.iter().filter_map(inbound::moved) {
            info!(from, to, "a group became a supergroup");
            self.moves.remember(from, to).await;
            moved.push(Moved { from: from.to_string(), to: to.to_string() });
        }
        if taken.iter().any(|taken| taken.file.is_some()) {
            if !moved.is_empty() {
                // Whose files are wanted in a group is known by its new id only after this.
                self.store(Vec::new(), None, std::mem::take(&mut moved)).await?;
            }
            for taken in taken.iter_mut().filter(|taken| taken.file.is_some()) {
                if !self.ctx.intake.wants_files(&taken.event) {
                    taken.file = None;
                    taken.event.leave_files();
                }
            }
        }
        if taken.iter().any(|taken| taken.file.is_some()) {
            // Whoever sent no file does not wait for those of others.
            let slow = taken.iter().filter(|taken| taken.file.is_some()).map(|taken| taken.event.address.lane.clone());
            let slow: HashSet<String> = slow.collect();
            let (waiting, quick) = taken.into_iter().partition(|taken| slow.contains(&taken.event.address.lane));
            taken = waiting;
            if quick.is_empty() {
                files::fetch(self.api, self.ctx, &mut taken).await;
            } else {
                let stored = self.store(quick, None, Vec::new());
                let ((), stored) = tokio::join!(files::fetch(self.api, self.ctx, &mut taken), stored);
                stored?;
            }
        }
        self.store(taken, cursor, moved).await?;
        crash_point!("telegram.stored");
        join_all(updates.iter().filter_map(inbound::pressed).map(|query| self.answer(query))).await;
        Ok(())
    }

    async fn store(&self, taken: Vec<Taken>, cursor: Option<Cursor>, moved: Vec<Moved>) -> Result<(), IntakeError> {
        let events: Vec<Inbound> = taken.into_iter().map(|taken| taken.event).collect();
        let batch = Batch { channel: Some(self.channel.clone()), events, cursor, moved };
        let answers = self.commit(&batch).await?;
        let mut refused = Vec::new();
        for (event, answer) in batch.events.iter().zip(answers) {
            debug!(id = event.platform_id, ?answer, "an update was taken");
            if let Accepted::Full(pause) = answer {
                refused.push((event, pause));
            }
        }
        join_all(refused.into_iter().map(|(event, pause)| self.tell_refused(event, pause))).await;
        Ok(())
    }

    /// Ends the waiting sign on a pressed button. Best effort.
    async fn answer(&self, query: &str) {
        let answer = json!({ "callback_query_id": query });
        if let Err(error) = self.api.call_within::<_, Value>(NOTICE_TIME, "answerCallbackQuery", &answer).await {
            debug!(%error, "a pressed button was not answered");
        }
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

    async fn commit(&self, batch: &Batch) -> Result<Vec<Accepted>, IntakeError> {
        loop {
            let error = match self.offer(batch).await {
                Ok(answers) => return Ok(answers),
                Err(error) if self.patience == Patience::None => return Err(error),
                Err(error) => error,
            };
            // It lives: it waits for the gateway, not for Telegram.
            self.ctx.pulse.beat();
            let pause = match error {
                IntakeError::Busy(pause) => {
                    info!(seconds = pause.as_secs(), "the gateway is full; Telegram keeps what comes");
                    pause
                }
                IntakeError::Unavailable(_) => {
                    warn!(%error, "what Telegram delivered waits for the store");
                    STORE_PAUSE
                }
            };
            self.ctx.clock.sleep(pause).await;
        }
    }

    async fn offer(&self, batch: &Batch) -> Result<Vec<Accepted>, IntakeError> {
        if !batch.events.is_empty() || !batch.moved.is_empty() {
            return self.ctx.intake.accept(batch.clone()).await;
        }
        // Nothing but a position: a restart may see these updates again, and ignores them again.
        let Some(cursor) = &batch.cursor else { return Ok(Vec::new()) };
        let set = self.ctx.kv.set(&cursor.key, &cursor.value).await;
        set.map(|()| Vec::new()).map_err(|error| IntakeError::Unavailable(error.to_string()))
    }
}
