//! An answer that can be read while it is written: a draft in private chats, a message that is edited elsewhere; and marks
//! on the messages of people. What must arrive is sent by `send.rs`.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use channel_api::{Address, Clock, Level, LivePace, Mark, Preview, SendError};
use serde_json::{Value, json};
use tracing::{debug, info};

use crate::{
    api::{Api, ApiError},
    config::Limits,
    moves::Moves,
    render,
    send::{self, EditError, Look},
    target::Target,
};

/// How long one step of a preview may take: the next one is better than a late one.
const TIME: Duration = Duration::from_secs(10);
/// A notification shows the first of a message only: it should say something. A draft makes none.
const FIRST: usize = 30;
const FIRST_OF_DRAFT: usize = 10;
/// The pauses between two updates: of a draft, of a message in a private chat, of one in a group, where 20 calls a minute
/// are allowed in all.
const DRAFT_EVERY: Duration = Duration::from_millis(1_000);
const EVERY: Duration = Duration::from_millis(1_500);
const GROUP_EVERY: Duration = Duration::from_secs(4);
/// The same on a server without limits.
const FREE_EVERY: Duration = Duration::from_millis(300);
/// The most chats whose pauses are remembered.
const MOST_PAUSES: usize = 1_000;

/// What a preview is: its id as the gateway keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// A message of the bot.
    Message { chat: i64, message: i64 },
    /// A draft, which vanishes when a message comes.
    Draft { chat: i64, draft: i64 },
}

impl Shown {
    /// From a preview's id.
    pub fn parse(id: &str) -> Option<Self> {
        let (kind, rest) = id.split_once(':')?;
        let (chat, number) = rest.split_once(':')?;
        let (chat, number) = (chat.parse().ok()?, number.parse().ok()?);
        match kind {
            "message" => Some(Self::Message { chat, message: number }),
            "draft" => Some(Self::Draft { chat, draft: number }),
            _ => None,
        }
    }

    fn preview(self) -> Preview {
        match self {
            Self::Message { chat, message } => Preview { id: format!("message:{chat}:{message}"), replaced: true },
            Self::Draft { chat, draft } => Preview { id: format!("draft:{chat}:{draft}"), replaced: false },
        }
    }
}

/// What was learned of the server and its chats.
#[derive(Default)]
pub struct Learned {
    /// The server knows no drafts.
    no_drafts: AtomicBool,
    /// Before these times nothing is shown in these chats: Telegram asked to wait.
    pauses: Mutex<HashMap<i64, Duration>>,
}

/// What showing needs.
pub struct Live<'a> {
    pub api: &'a Api,
    pub moves: &'a Moves,
    pub limits: Limits,
    pub learned: &'a Learned,
    /// `None` before the channel is opened: then no pause is kept.
    pub clock: Option<&'a dyn Clock>,
}

impl Live<'_> {
    /// See [`channel_api::LiveEdit::pace`].
    pub fn pace(&self, to: &Address) -> LivePace {
        let Some(target) = Target::of(to) else { return LivePace::Off };
        let private = target.chat > 0;
        let draft = private && !self.learned.no_drafts.load(Ordering::Relaxed);
        let every = match (self.limits, draft, private) {
            (Limits::Off, ..) => FREE_EVERY,
            (_, true, _) => DRAFT_EVERY,
            (_, _, true) => EVERY,
            _ => GROUP_EVERY,
        };
        LivePace::Edits { first: if draft { FIRST_OF_DRAFT } else { FIRST }, every, most: None }
    }

    /// See [`channel_api::LiveEdit::begin`].
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError> {
        let refused = |why: &str| SendError::Refused(why.to_owned());
        let target = Target::of(to).ok_or_else(|| refused("the address is none of Telegram's"))?;
        let (plain, html) = render::beginning(text).ok_or_else(|| refused("there is nothing to show yet"))?;
        let chat = self.moves.now(target.chat).await;
        self.may(chat)?;
        if chat > 0 && !self.learned.no_drafts.load(Ordering::Relaxed) {
            let draft = some_number();
            match self.draft(&target, draft, &html).await {
                Ok(()) => return Ok(Shown::Draft { chat, draft }.preview()),
                Err(ApiError::Refused { code, description }) => {
                    info!(code, description, "no draft can be shown; a message that is edited takes its place");
                    if code == 404 {
                        self.learned.no_drafts.store(true, Ordering::Relaxed);
                    }
                }
                // A server that does not know a method may say so in the words for a wrong token: the message will tell.
                Err(ApiError::WrongToken(said)) if !said.contains("Unauthorized") => {
                    self.learned.no_drafts.store(true, Ordering::Relaxed);
                }
                Err(error) => return Err(self.failed(chat, error)),
            }
        }
        let look = |level| match level {
            Level::Rich => Look::html(html.clone()),
            Level::Plain => Look::plain(plain.clone()),
        };
        let mut chat = chat;
        let mut sent = self.message(chat, &target, look(Level::Rich)).await;
        if let Err(ApiError::Moved(new)) = sent {
            self.moves.remember(chat, new).await;
            chat = new;
            sent = self.message(chat, &target, look(Level::Rich)).await;
        }
        if matches!(&sent, Err(ApiError::Refused { code: 400, description }) if description.contains("can't parse")) {
            sent = self.message(chat, &target, look(Level::Plain)).await;
        }
        let sent = sent.map_err(|error| self.failed(chat, error))?;
        let message = sent.get("message_id").and_then(Value::as_i64);
        let message = message.ok_or_else(|| SendError::Unknown("Telegram named no message".to_owned()))?;
        Ok(Shown::Message { chat, message }.preview())
    }

    /// See [`channel_api::LiveEdit::update`].
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn update(&self, to: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
        let gone = || SendError::Refused("the preview is gone".to_owned());
        let (target, shown) = Target::of(to).zip(Shown::parse(&preview.id)).ok_or_else(gone)?;
        let Some((plain, html)) = render::beginning(text) else { return Ok(()) };
        match shown {
            Shown::Draft { chat, draft } => {
                self.may(chat)?;
                self.draft(&target, draft, &html).await.map_err(|error| self.failed(chat, error))
            }
            Shown::Message { chat, message } => {
                self.may(chat)?;
                let mut edited = send::edit(self.api, chat, message, &Look::html(html)).await;
                if let Err(EditError::Failed(SendError::Rerender(_))) = edited {
                    edited = send::edit(self.api, chat, message, &Look::plain(plain)).await;
                }
                match edited {
                    Ok(_) => Ok(()),
                    Err(EditError::Gone) => Err(gone()),
                    Err(EditError::Failed(error)) => {
                        if let SendError::RetryAfter(pause) = error {
                            self.wait(chat, pause);
                        }
                        Err(error)
                    }
                }
            }
        }
    }

    /// See [`channel_api::LiveEdit::drop_preview`]. A draft vanishes by itself.
    pub async fn drop_preview(&self, preview: &Preview) {
        if let Some(Shown::Message { chat, message }) = Shown::parse(&preview.id) {
            send::delete(self.api, chat, message).await;
        }
    }

    /// See [`channel_api::LiveEdit::mark`].
    pub async fn mark(&self, to: &Address, platform_id: &str, mark: Mark) {
        let Some(target) = Target::of(to) else { return };
        let Some((chat, message)) = message_of(platform_id) else { return };
        // The ids of messages begin anew in a supergroup.
        if chat != target.chat || self.moves.now(chat).await != chat || self.may(chat).is_err() {
            return;
        }
        let emoji = match mark {
            Mark::Seen => Some("👀"),
            Mark::Working => Some("🤔"),
            Mark::Done => Some("👍"),
            Mark::Failed => Some("😱"),
            Mark::None => None,
        };
        let reaction: Vec<Value> = emoji.map(|emoji| json!({ "type": "emoji", "emoji": emoji })).into_iter().collect();
        let call = json!({ "chat_id": chat, "message_id": message, "reaction": reaction });
        match self.api.call_within::<_, Value>(TIME, "setMessageReaction", &call).await {
            Ok(_) => {}
            Err(ApiError::RetryAfter(pause)) => self.wait(chat, pause),
            Err(error) => debug!(%error, chat, "a message was not marked"),
        }
    }

    async fn draft(&self, target: &Target, draft: i64, html: &str) -> Result<(), ApiError> {
        let mut call = json!({ "chat_id": target.chat, "draft_id": draft, "text": html, "parse_mode": "HTML" });
        if let Some(thread) = target.thread_to_send() {
            call["message_thread_id"] = thread.0.0.into();
        }
        match self.api.call_within::<_, Value>(TIME, "sendMessageDraft", &call).await {
            Ok(_) | Err(ApiError::Unreadable(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn message(&self, chat: i64, target: &Target, look: Look) -> Result<Value, ApiError> {
        let mut fields = look.to(chat, target);
        if let Some(id) = target.reply.filter(|_| chat == target.chat) {
            fields.insert("reply_parameters".to_owned(), send::replying(id));
        }
        self.api.call_within(TIME, "sendMessage", &fields).await
    }

    fn failed(&self, chat: i64, error: ApiError) -> SendError {
        if let ApiError::RetryAfter(pause) = error {
            self.wait(chat, pause);
        }
        send::failed(error)
    }

    /// Telegram asked to wait; until then this chat is left in peace.
    fn wait(&self, chat: i64, pause: Duration) {
        let Some(clock) = self.clock else { return };
        let now = clock.monotonic();
        let mut pauses = self.learned.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        if pauses.len() >= MOST_PAUSES {
            pauses.retain(|_, until| *until > now);
        }
        if pauses.len() < MOST_PAUSES {
            pauses.insert(chat, now + pause);
        }
    }

    fn may(&self, chat: i64) -> Result<(), SendError> {
        let Some(clock) = self.clock else { return Ok(()) };
        let pauses = self.learned.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        let left = pauses.get(&chat).map_or(Duration::ZERO, |until| until.saturating_sub(clock.monotonic()));
        if left.is_zero() { Ok(()) } else { Err(SendError::RetryAfter(left)) }
    }
}

/// The chat and the message that an inbound id names; a pressed button is none.
fn message_of(platform_id: &str) -> Option<(i64, i64)> {
    let mut parts = platform_id.split(':');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

/// A number that no other draft of this chat has: not zero, and within what a JSON reader of any kind keeps exact.
fn some_number() -> i64 {
    let number = RandomState::new().build_hasher().finish() & 0x7FFF_FFFF;
    i64::try_from(number).unwrap_or(1).max(1)
}
