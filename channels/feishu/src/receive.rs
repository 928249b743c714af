//! An event that is certainly Feishu's becomes a row: what belongs to the message is fetched, then it is offered to the
//! gateway. Both ways in, the long connection and the webhook, end here. Messages of one chat keep their order.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use channel_api::{
    Accepted, Address, Attachment, AttachmentKind, Batch, ChannelContext, ChannelId, Conversation, ConversationKind,
    Inbound, InboundKind, IntakeError, MediaError, ReplyTo, Sender, kind_of,
};
use futures_util::StreamExt;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::{
    api::{Api, ApiError, segment, told},
    config::Config,
    content::{Content, File, MOST_FILES, start},
    inbound::{self, Event, Message, Named, Us},
    recent::Recent,
};

/// How long all files of one message may take.
const FILES_TIME: Duration = Duration::from_secs(20);
/// How long a question beside a message may take.
const ASIDE_TIME: Duration = Duration::from_secs(3);
/// When an event that cannot be judged yet is offered again.
const AGAIN: Duration = Duration::from_secs(15);
/// The messages that are remembered.
const REMEMBERED: usize = 4_096;
/// The most forwarded messages that are read.
const MOST_FORWARDED: usize = 50;
/// What stands for forwarded messages that were not, or could not be, asked for.
const UNREAD: &str = "[forwarded messages that cannot be read]";
/// The longest quotation, in characters.
const QUOTE_CHARS: usize = 2_000;

/// What became of an event.
#[derive(Debug, PartialEq)]
pub enum Taken {
    /// It may be acknowledged, with these words for a card's callback.
    Safe(Option<Value>),
    /// It may not: it was not stored.
    Again(Duration),
}

/// What is known of the app while it runs.
pub struct Reception {
    channel: ChannelId,
    at_all: bool,
    stale_after: Option<Duration>,
    bot: Mutex<Option<String>>,
    /// Messages of the bot: what they say.
    sent: Mutex<Recent<String>>,
    /// Messages that were stored.
    seen: Mutex<Recent<Origin>>,
    /// One lock a chat.
    chats: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
    /// Messages that were too old.
    stale: AtomicU64,
}

/// Where a message came from.
#[derive(Clone, Debug)]
struct Origin {
    conversation: Conversation,
    sender: Sender,
    address: Address,
}

impl Reception {
    /// Nothing known yet.
    pub fn new(channel: ChannelId, config: &Config) -> Self {
        Self {
            channel,
            at_all: config.at_all,
            stale_after: config.stale_after,
            bot: Mutex::default(),
            sent: Mutex::new(Recent::holding(REMEMBERED)),
            seen: Mutex::new(Recent::holding(REMEMBERED)),
            chats: Mutex::default(),
            stale: AtomicU64::new(0),
        }
    }

    /// The bot's own id, asked for until it is known.
    ///
    /// # Errors
    /// [`ApiError`], when the platform does not say.
    pub async fn bot(&self, api: &Api) -> Result<String, ApiError> {
        if let Some(bot) = lock(&self.bot).clone() {
            return Ok(bot);
        }
        let answer = api.get("/open-apis/bot/v3/info").await?;
        // Beside `code`, not in `data` as everywhere else.
        let found = answer.get("bot").and_then(|bot| bot.get("open_id")).and_then(Value::as_str);
        match found.filter(|id| !id.is_empty()) {
            Some(id) => {
                *lock(&self.bot) = Some(id.to_owned());
                Ok(id.to_owned())
            }
            None => Err(ApiError::Unknown("an answer without the bot's id".to_owned())),
        }
    }

    /// A message of the bot and what it says.
    pub fn remember_sent(&self, message: &str, text: &str) {
        lock(&self.sent).put(message, start(text, 500));
    }

    /// How many messages were too old to be answered.
    pub fn stale(&self) -> u64 {
        self.stale.load(Ordering::Relaxed)
    }

    /// Takes one event.
    pub async fn take(&self, api: &Api, ctx: &ChannelContext, event: &Value) -> Taken {
        let known = lock(&self.bot).clone();
        let bot = match known {
            Some(bot) => Some(bot),
            None => match tokio::time::timeout(ASIDE_TIME, self.bot(api)).await {
                Ok(Ok(bot)) => Some(bot),
                Ok(Err(error)) => {
                    warn!(%error, "the bot's own id is not known yet");
                    None
                }
                Err(_) => None,
            },
        };
        let us = Us { channel: &self.channel, bot: bot.as_deref(), at_all: self.at_all };
        match inbound::read(us, event) {
            Event::Nothing => {
                debug!("an event that says nothing to the bot");
                Taken::Safe(None)
            }
            Event::Recalled(message, at) => self.recalled(ctx, &message, at).await,
            Event::Pressed(inbound) => {
                let _turn = self.turn(&inbound.address.lane).await;
                self.offer(ctx, *inbound).await
            }
            Event::Message(message) => {
                let group = message.inbound.conversation.kind == ConversationKind::Group;
                if group && bot.is_none() {
                    // Whether it is said to the bot cannot be told: it must come again.
                    return Taken::Again(AGAIN);
                }
                if self.is_stale(ctx, &message.inbound) {
                    return Taken::Safe(None);
                }
                let _turn = self.turn(&message.inbound.address.lane).await;
                self.message(api, ctx, *message).await
            }
        }
    }

    async fn message(&self, api: &Api, ctx: &ChannelContext, message: Message) -> Taken {
        let Message { mut inbound, files, parent, forwarded } = message;
        let id = inbound.platform_id.clone();
        inbound.attachments = files.iter().map(unfetched).collect();
        if forwarded && inbound.text.trim().is_empty() {
            inbound.text = UNREAD.to_owned();
        }
        // What was stored is told once more, without being fetched once more. Nothing is asked for on account of somebody who
        // may not speak to the bot; whether this message does may be known by its quote only.
        if lock(&self.seen).get(&id).is_some() || !ctx.intake.wants_files(&inbound.as_if_addressed()) {
            inbound.leave_files();
        } else {
            if forwarded {
                inbound.text = self.forwarded(api, &id).await.unwrap_or_else(|| UNREAD.to_owned());
            }
            if let Some(parent) = parent {
                let answered = self.answered(api, parent).await;
                inbound.mentions_us |= answered.ours;
                inbound.reply_to = Some(answered);
            }
            match ctx.intake.wants_files(&inbound) {
                true => inbound.attachments = fetch(api, ctx, &id, files).await,
                false => inbound.leave_files(),
            }
        }
        let origin = Origin {
            conversation: inbound.conversation.clone(),
            sender: inbound.sender.clone(),
            address: inbound.address.clone(),
        };
        let taken = self.offer(ctx, inbound).await;
        if matches!(taken, Taken::Safe(_)) {
            lock(&self.seen).put(&id, origin);
        }
        taken
    }

    async fn recalled(&self, ctx: &ChannelContext, message: &str, at: Option<i64>) -> Taken {
        // The event names neither the sender nor the kind of chat.
        let Some(origin) = lock(&self.seen).get(message).cloned() else {
            debug!(message, "a message was taken back that is not remembered");
            return Taken::Safe(None);
        };
        let _turn = self.turn(&origin.address.lane).await;
        let inbound = Inbound {
            channel: self.channel.clone(),
            platform_id: format!("recall:{message}"),
            fingerprint: None,
            kind: InboundKind::Deleted,
            about: Some(message.to_owned()),
            mentions_us: origin.conversation.kind == ConversationKind::Direct,
            conversation: origin.conversation,
            sender: origin.sender,
            text: String::new(),
            attachments: Vec::new(),
            reply_to: None,
            at,
            address: origin.address,
            trust: channel_api::Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        };
        self.offer(ctx, inbound).await
    }

    /// Offers it once; who delivers it offers it again when it was not stored.
    async fn offer(&self, ctx: &ChannelContext, inbound: Inbound) -> Taken {
        let (id, press) = (inbound.platform_id.clone(), inbound.kind == InboundKind::Button);
        channel_api::crash_point!("feishu.event");
        match ctx.intake.accept(Batch::from(inbound)).await {
            Ok(answers) => {
                channel_api::crash_point!("feishu.stored");
                debug!(id, ?answers, "an event was taken");
                let turned_away = press && matches!(answers.first(), Some(Accepted::Ignored(_) | Accepted::Full(_)));
                Taken::Safe(turned_away.then(|| toast("You cannot press this.", "你不能操作这个按钮。")))
            }
            Err(IntakeError::Busy(pause)) => {
                info!(id, seconds = pause.as_secs(), "the gateway is full; Feishu delivers this event again");
                Taken::Again(pause)
            }
            Err(error @ IntakeError::Unavailable(_)) => {
                warn!(id, %error, "an event could not be stored; Feishu delivers it again");
                Taken::Again(Duration::from_secs(5))
            }
        }
    }

    /// After a lost connection everything comes at once that was written in the meantime, and nothing marks it as old.
    fn is_stale(&self, ctx: &ChannelContext, inbound: &Inbound) -> bool {
        let (Some(limit), Some(at)) = (self.stale_after, inbound.at) else { return false };
        let age = ctx.clock.now_ms().saturating_sub(at);
        if age <= i64::try_from(limit.as_millis()).unwrap_or(i64::MAX) {
            return false;
        }
        let so_far = self.stale.fetch_add(1, Ordering::Relaxed) + 1;
        warn!(
            id = inbound.platform_id,
            minutes = age / 60_000,
            so_far,
            "a message is too old to be answered (`stale_after`): it was written while the bot was not connected, or \
             this machine's clock is wrong"
        );
        true
    }

    async fn turn(&self, chat: &str) -> tokio::sync::OwnedMutexGuard<()> {
        let turn = {
            let mut chats = lock(&self.chats);
            if chats.len() > 1_024 {
                chats.retain(|_, turn| Arc::strong_count(turn) > 1);
            }
            chats.entry(chat.to_owned()).or_default().clone()
        };
        turn.lock_owned().await
    }

    /// The message that is answered. Whether it is the bot's own decides, where the platform cannot be asked, what is
    /// remembered: otherwise it is not.
    async fn answered(&self, api: &Api, parent: String) -> ReplyTo {
        if let Some(text) = lock(&self.sent).get(&parent).cloned() {
            let bot = lock(&self.bot).clone();
            return ReplyTo { id: Some(parent), text: Some(text), sender_id: bot, ours: true };
        }
        let items = self.ask(api, &parent).await;
        let Some(item) = items.first() else {
            return ReplyTo { id: Some(parent), text: None, sender_id: None, ours: false };
        };
        let sender = item.get("sender");
        let sender_id = sender.and_then(|sender| sender.get("id")).and_then(Value::as_str).map(str::to_owned);
        let ours = sender_id.as_deref() == Some(api.app_id());
        let text = Some(said(item)).filter(|text| !text.trim().is_empty());
        ReplyTo { id: Some(parent), text: text.map(|text| start(&text, QUOTE_CHARS)), sender_id, ours }
    }

    /// What forwarded messages say, each with its sender's id.
    async fn forwarded(&self, api: &Api, message: &str) -> Option<String> {
        let items = self.ask(api, message).await;
        let mut lines = vec!["[forwarded messages]".to_owned()];
        let inner = items.iter().filter(|item| item.get("message_id").and_then(Value::as_str) != Some(message));
        for item in inner.take(MOST_FORWARDED) {
            let who = item.get("sender").and_then(|sender| sender.get("id")).and_then(Value::as_str).unwrap_or("?");
            lines.push(format!("{}: {}", start(who, 64), start(&said(item), QUOTE_CHARS)));
        }
        (lines.len() > 1).then(|| lines.join("\n"))
    }

    async fn ask(&self, api: &Api, message: &str) -> Vec<Value> {
        let path = format!("/open-apis/im/v1/messages/{}", segment(message));
        let answer = match tokio::time::timeout(ASIDE_TIME, api.get(&path)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => {
                debug!(%error, message, "a message that belongs to another could not be read");
                return Vec::new();
            }
            Err(_) => return Vec::new(),
        };
        answer.get("data").and_then(|data| data.get("items")).and_then(Value::as_array).cloned().unwrap_or_default()
    }
}

/// What a message says that was asked for.
fn said(item: &Value) -> String {
    let kind = item.get("msg_type").and_then(Value::as_str).unwrap_or("text");
    let content = item.get("body").and_then(|body| body.get("content")).and_then(Value::as_str).unwrap_or_default();
    let content = Content::read(kind, content);
    let named = Named::read(item.get("mentions"));
    let mut text = content.text(|key| named.name(key));
    for file in &content.files {
        text.push_str(&format!(" [{}]", file.name.as_deref().unwrap_or(kind_word(file.kind))));
    }
    text
}

fn kind_word(kind: AttachmentKind) -> &'static str {
    match kind {
        AttachmentKind::Image => "image",
        AttachmentKind::Audio => "audio",
        AttachmentKind::Video => "video",
        AttachmentKind::File => "file",
    }
}

/// Words that a client shows for a moment, in its own language.
fn toast(en: &str, zh: &str) -> Value {
    json!({ "toast": { "type": "warning", "content": en, "i18n": { "zh_cn": zh, "en_us": en } } })
}

/// What a file is, before it is fetched.
fn unfetched(file: &File) -> Attachment {
    Attachment { kind: file.kind, media: None, name: file.name.clone(), unavailable: None }
}

/// Fetches the files of a message, one after the other; one that does not come costs itself only.
async fn fetch(api: &Api, ctx: &ChannelContext, message: &str, files: Vec<File>) -> Vec<Attachment> {
    let begun = ctx.clock.monotonic();
    let mut attachments = Vec::new();
    for (n, file) in files.into_iter().enumerate() {
        let mut attachment = unfetched(&file);
        let left = FILES_TIME.saturating_sub(ctx.clock.monotonic().saturating_sub(begun));
        let fetched = match file.key.as_deref() {
            None => Err("Feishu gives no access to it".to_owned()),
            Some(_) if n >= MOST_FILES => Err(format!("only the first {MOST_FILES} files of a message are taken")),
            Some(key) => match tokio::time::timeout(left, download(api, ctx, message, key, file.resource())).await {
                Ok(fetched) => fetched,
                Err(_) => Err("it did not come in time".to_owned()),
            },
        };
        match fetched {
            Ok(media) => {
                if file.kind == AttachmentKind::File {
                    attachment.kind = kind_of(media.mime.as_deref());
                }
                attachment.media = Some(media);
            }
            Err(why) => {
                info!(message, why, "a file is not available");
                attachment.unavailable = Some(why);
            }
        }
        attachments.push(attachment);
    }
    attachments
}

async fn download(
    api: &Api,
    ctx: &ChannelContext,
    message: &str,
    key: &str,
    kind: &str,
) -> Result<channel_api::MediaRef, String> {
    let path = format!("/open-apis/im/v1/messages/{}/resources/{}?type={kind}", segment(message), segment(key));
    let response = api.download(&path).await.map_err(|error| match error {
        ApiError::NoScope(_) => "the app has no permission to read files (im:resource)".to_owned(),
        ApiError::Refused { code: 234_037 | 234_006, .. } => "it is too large for Feishu to hand it out".to_owned(),
        ApiError::Refused { code, .. } => format!("Feishu does not hand it out ({code})"),
        _ => "Feishu did not hand it out".to_owned(),
    })?;
    let mime = response.headers().get(reqwest::header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let mime = mime.map(|mime| mime.split(';').next().unwrap_or_default().trim().to_ascii_lowercase());
    let mime = mime.filter(|mime| !mime.is_empty() && mime != "application/octet-stream");
    let bytes = response.bytes_stream().map(|piece| piece.map_err(told));
    ctx.media.keep(Box::pin(bytes), mime).await.map_err(|error| match error {
        MediaError::TooLarge(most) => format!("it is larger than {most} bytes"),
        MediaError::Full => "there is no room for more files".to_owned(),
        MediaError::Io(_) => "it could not be written".to_owned(),
        MediaError::Refused(_) | MediaError::Unreachable(_) => "it did not come whole".to_owned(),
    })
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
