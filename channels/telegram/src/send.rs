//! One part as one message of Telegram, and what its answer means for delivery.
//!
//! A call that Telegram refused showed nothing, so what it found wrong (a deleted message to reply to, a closed topic, an
//! old id of a group, a picture it cannot show) is left out and the message sent in the same breath.

use std::{sync::Arc, time::Duration};

use channel_api::{
    Address, Attachment, AttachmentKind, Button, Capabilities, Format, Level, Media, MediaSource, Part, QueueMode,
    Rate, Receipt, Reconciled, SendError, SendKey, TextUnit,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use teloxide::{
    payloads::SendChatAction,
    types::{ChatAction, ChatId, Recipient},
};
use tracing::{debug, info};

use crate::{
    api::{Api, ApiError, Upload},
    config::{Limits, Mode},
    live::Shown,
    moves::Moves,
    render::{self, Body, CAPTION_LIMIT, TEXT_LIMIT},
    target::Target,
    text,
};

/// The most calls of one send. Each after the first leaves out one thing that was refused.
const MOST_CALLS: usize = 6;

/// How long the sign that an answer is being written is worth waiting for: it lives 5 s.
const TYPING_TIME: Duration = Duration::from_secs(5);

/// The largest file that a bot may send, in bytes, and the largest that is shown as a picture.
const FILE_BYTES: usize = 50 * 1024 * 1024;
const PHOTO_BYTES: usize = 10 * 1024 * 1024;

/// After how long without an answered question a poll is dead: well above the time that one takes.
const SILENCE: Duration = Duration::from_secs(120);

/// The pauses between tries of one part; the last one repeats until the part expires.
const RETRY_PAUSES: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// What Telegram can do.
pub fn capabilities(limits: Limits, mode: Mode) -> Capabilities {
    Capabilities {
        text_limit: TEXT_LIMIT,
        text_unit: TextUnit::Utf16,
        format: Format::Own,
        edits: true,
        typing: true,
        threads: true,
        buttons: true,
        queue: QueueMode::Collect,
        refuse_over_cap: false,
        account_in_key: false,
        silence_limit: (mode == Mode::Polling).then_some(SILENCE),
        expires_after: Duration::from_secs(60 * 60),
        retry_pauses: &RETRY_PAUSES,
        per_lane: rate(limits, Rate { burst: 3, every: Duration::from_secs(1) }),
        // 30 in any second, with room for what the way there bunches.
        per_channel: rate(limits, Rate { burst: 5, every: Duration::from_millis(45) }),
    }
}

/// How fast one chat may get messages; `lane` is its id. A group gets 20 in any minute.
pub fn lane_rate(limits: Limits, lane: &str) -> Option<Rate> {
    match lane.starts_with('-') {
        true => rate(limits, Rate { burst: 3, every: Duration::from_millis(3_500) }),
        false => capabilities(limits, Mode::Polling).per_lane,
    }
}

fn rate(limits: Limits, rate: Rate) -> Option<Rate> {
    (limits == Limits::On).then_some(rate)
}

/// What sends need. Without a media store (before the channel is opened) files are only named.
pub struct Way<'a> {
    /// The Bot API.
    pub api: &'a Api,
    /// Where groups went.
    pub moves: &'a Moves,
    /// Where files are.
    pub media: Option<&'a Arc<dyn Media>>,
}

/// Sends one part: see [`channel_api::Channel::send`]. The receipt's id is `chat:message`, as inbound ids are.
///
/// # Errors
/// [`SendError`], named by what delivery does next.
pub async fn send(way: &Way<'_>, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
    let Some(target) = Target::of(to) else {
        return Err(SendError::Refused("the address is none of Telegram's".to_owned()));
    };
    let body = Body::deserialize(&part.body).unwrap_or_default();
    let shown = key.replaces.as_deref().and_then(Shown::parse);
    if let (None, Some(Shown::Message { chat, message })) = (&body.file, shown) {
        match edit(way.api, chat, message, &Look::of(part, &body, false)).await {
            Ok(receipt) => return Ok(receipt),
            Err(EditError::Gone) => info!(chat, "the preview of an answer is gone; the answer comes as a new message"),
            // Nothing was changed, and the same words may pass as a message of their own: never a lost answer.
            Err(EditError::Failed(SendError::Refused(why))) => {
                info!(chat, why, "the preview of an answer cannot be changed; the answer comes as a new message");
            }
            Err(EditError::Failed(error)) => return Err(error),
        }
    }
    let receipt = new_message(way, &target, part, &body, key).await?;
    if let Some(Shown::Message { chat, message }) = shown {
        // A file cannot take the place of a text, and what could not be changed must not stand there beside the answer.
        delete(way.api, chat, message).await;
    }
    Ok(receipt)
}

/// What became of a part that was cut off while it took the place of a preview: an edit may be made twice, so it is.
pub async fn reconcile(way: &Way<'_>, part: &Part, key: &SendKey) -> Reconciled {
    let body = Body::deserialize(&part.body).unwrap_or_default();
    match key.replaces.as_deref().and_then(Shown::parse) {
        Some(Shown::Message { chat, message }) if body.file.is_none() => {
            match edit(way.api, chat, message, &Look::of(part, &body, false)).await {
                Ok(receipt) => Reconciled::Found(receipt),
                // Without the preview it would have gone out as a message of its own, which nobody can look for.
                Err(EditError::Gone | EditError::Failed(SendError::Refused(_))) => Reconciled::CannotTell,
                Err(EditError::Failed(_)) => Reconciled::SafeToRepeat,
            }
        }
        _ => Reconciled::CannotTell,
    }
}

/// The text of a message and what stands under it.
pub struct Look {
    text: String,
    html: bool,
    buttons: Option<Value>,
}

impl Look {
    /// What a part looks like; `again`: marked as possibly there already.
    fn of(part: &Part, body: &Body, again: bool) -> Self {
        let limit = if body.file.is_some() { CAPTION_LIMIT } else { TEXT_LIMIT };
        let text = marked(&part.text, body.html.as_deref(), again, limit);
        Self { text, html: body.html.is_some(), buttons: keyboard(&body.buttons) }
    }

    /// A text without buttons.
    pub fn html(text: String) -> Self {
        Self { text, html: true, buttons: None }
    }

    /// The same without markup.
    pub fn plain(text: String) -> Self {
        Self { text, html: false, buttons: None }
    }

    fn put(self, field: &str, fields: &mut Map<String, Value>) {
        fields.insert(field.to_owned(), self.text.into());
        if field == "text" {
            // Nobody fetches an address because the bot wrote it. security.md row 15.
            fields.insert("link_preview_options".to_owned(), json!({ "is_disabled": true }));
        }
        if self.html {
            fields.insert("parse_mode".to_owned(), "HTML".into());
        }
        if let Some(buttons) = self.buttons {
            fields.insert("reply_markup".to_owned(), buttons);
        }
    }

    /// As the parameters of a message to a chat.
    pub fn to(self, chat: i64, target: &Target) -> Map<String, Value> {
        let mut fields = addressed(chat, target);
        self.put("text", &mut fields);
        fields
    }
}

fn keyboard(rows: &[Vec<Button>]) -> Option<Value> {
    let key = |button: &Button| json!({ "text": button.label, "callback_data": button.data });
    let rows: Vec<Vec<Value>> = rows.iter().map(|row| row.iter().map(key).collect()).collect();
    (!rows.is_empty()).then(|| json!({ "inline_keyboard": rows }))
}

fn addressed(chat: i64, target: &Target) -> Map<String, Value> {
    let mut fields = Map::new();
    fields.insert("chat_id".to_owned(), chat.into());
    if let Some(thread) = target.thread_to_send() {
        fields.insert("message_thread_id".to_owned(), thread.0.0.into());
    }
    fields
}

/// `reply_parameters`: a message that was deleted meanwhile is no obstacle.
pub fn replying(id: i32) -> Value {
    json!({ "message_id": id, "allow_sending_without_reply": true })
}

async fn new_message(
    way: &Way<'_>,
    target: &Target,
    part: &Part,
    body: &Body,
    key: &SendKey,
) -> Result<Receipt, SendError> {
    let Way { api, moves, media } = *way;
    let mut chat = moves.now(target.chat).await;
    let mut fields = addressed(chat, target);
    // The ids of messages begin anew in a supergroup.
    if key.seq == 1 && chat == target.chat {
        let quoted = body.quote.as_deref().and_then(|quote| message_id(quote, chat));
        if let Some(id) = quoted.or(target.reply) {
            fields.insert("reply_parameters".to_owned(), replying(id));
        }
    }
    let rich = body.html.is_some();
    let look = Look::of(part, body, key.resend);
    let mut ways: &[Form] = &[];
    let mut upload = None;
    match &body.file {
        None => look.put("text", &mut fields),
        Some(file) => {
            upload = load(media, file).await;
            ways = upload.as_ref().map_or(&[][..], |upload| forms(file.kind, upload));
            if ways.is_empty() {
                instead(file, part, body, key, &mut fields);
            } else if body.caption {
                look.put("caption", &mut fields);
            } else {
                if key.resend {
                    fields.insert("caption".to_owned(), render::resend_note(&part.text).into());
                }
                fields.extend(keyboard(&body.buttons).map(|buttons| ("reply_markup".to_owned(), buttons)));
            }
        }
    }
    for _ in 0..MOST_CALLS {
        let answer: Result<Value, ApiError> = match (ways.first(), &upload) {
            (Some(form), Some(upload)) => api.upload(form.method, &fields, form.field, upload).await,
            _ => api.call("sendMessage", &fields).await,
        };
        let error = match answer {
            Ok(sent) => {
                let id = sent.get("message_id").and_then(Value::as_i64);
                return Ok(Receipt { platform_id: id.map(|id| format!("{chat}:{id}")) });
            }
            Err(error) => error,
        };
        match error {
            // Done, and only its id is not known.
            ApiError::Unreadable(_) => return Ok(Receipt::default()),
            ApiError::Moved(new) if new != chat => {
                moves.remember(chat, new).await;
                chat = new;
                fields.insert("chat_id".to_owned(), chat.into());
                fields.remove("reply_parameters");
            }
            ApiError::Refused { code, description } => {
                let left = match Refusal::of(code, &description) {
                    Refusal::Format if rich => return Err(SendError::Rerender(Level::Plain)),
                    Refusal::Reply => fields.remove("reply_parameters"),
                    Refusal::Topic => fields.remove("message_thread_id"),
                    Refusal::Buttons => fields.remove("reply_markup"),
                    Refusal::Down => return Err(SendError::ChannelDown(format!("{code}: {description}"))),
                    Refusal::Final(reason) => return Err(SendError::Refused(reason.to_owned())),
                    _ => None,
                };
                if left.is_some() {
                    continue;
                }
                match (&body.file, ways) {
                    // The same file in a simpler form, at last as a line: never a lost answer.
                    (Some(file), [_, simpler @ ..]) => {
                        debug!(code, description, "a file was refused; it goes out in a simpler form");
                        ways = simpler;
                        if ways.is_empty() {
                            instead(file, part, body, key, &mut fields);
                        }
                    }
                    _ => return Err(SendError::Refused(format!("Telegram answered {code}: {description}"))),
                }
            }
            error => return Err(failed(error)),
        }
    }
    Err(SendError::Refused("Telegram refused every form of the message".to_owned()))
}

/// What a failure means that has nothing to do with the content.
pub fn failed(error: ApiError) -> SendError {
    match error {
        ApiError::RetryAfter(pause) => SendError::RetryAfter(pause),
        ApiError::Unknown(error) => SendError::Unknown(error),
        ApiError::WrongToken(_) => SendError::ChannelDown(error.to_string()),
        ApiError::Refused { code, description } => {
            SendError::Refused(format!("Telegram answered {code}: {description}"))
        }
        ApiError::Unreadable(error) => SendError::Unknown(error),
        ApiError::Retry(_) | ApiError::Conflict(_) | ApiError::Moved(_) => SendError::Retry(error.to_string()),
    }
}

/// Why a message was not changed.
pub enum EditError {
    /// It is not there any more, or cannot be changed any more.
    Gone,
    /// Anything else.
    Failed(SendError),
}

/// Gives a message of the bot another text. Doing so twice does no harm.
pub async fn edit(api: &Api, chat: i64, message: i64, look: &Look) -> Result<Receipt, EditError> {
    let receipt = Receipt { platform_id: Some(format!("{chat}:{message}")) };
    let mut fields = Map::new();
    fields.insert("chat_id".to_owned(), chat.into());
    fields.insert("message_id".to_owned(), message.into());
    Look { text: look.text.clone(), html: look.html, buttons: look.buttons.clone() }.put("text", &mut fields);
    loop {
        let error = match api.call::<_, Value>("editMessageText", &fields).await {
            Ok(_) | Err(ApiError::Unreadable(_)) => return Ok(receipt),
            Err(error) => error,
        };
        let ApiError::Refused { code, description } = error else {
            return Err(match error {
                // In a supergroup the ids of messages begin anew.
                ApiError::Moved(_) => EditError::Gone,
                error => EditError::Failed(failed(error)),
            });
        };
        let said = description.to_ascii_lowercase();
        if said.contains("message is not modified") {
            return Ok(receipt);
        }
        if ["message to edit not found", "message can't be edited", "message_id_invalid"]
            .iter()
            .any(|it| said.contains(it))
        {
            return Err(EditError::Gone);
        }
        return Err(EditError::Failed(match Refusal::of(code, &description) {
            Refusal::Format if look.html => SendError::Rerender(Level::Plain),
            Refusal::Buttons if fields.remove("reply_markup").is_some() => continue,
            Refusal::Down => SendError::ChannelDown(format!("{code}: {description}")),
            Refusal::Final(reason) => SendError::Refused(reason.to_owned()),
            _ => SendError::Refused(format!("Telegram answered {code}: {description}")),
        }));
    }
}

/// Takes a message of the bot away. Best effort.
pub async fn delete(api: &Api, chat: i64, message: i64) {
    let what = json!({ "chat_id": chat, "message_id": message });
    if let Err(error) = api.call_within::<_, Value>(TYPING_TIME, "deleteMessage", &what).await {
        debug!(%error, chat, "a preview stays");
    }
}

/// A way to show a file.
struct Form {
    method: &'static str,
    field: &'static str,
}

const DOCUMENT: Form = Form { method: "sendDocument", field: "document" };
const PHOTO: [Form; 2] = [Form { method: "sendPhoto", field: "photo" }, DOCUMENT];
const MOVING: [Form; 2] = [Form { method: "sendAnimation", field: "animation" }, DOCUMENT];
const VOICE: [Form; 2] = [Form { method: "sendVoice", field: "voice" }, DOCUMENT];
const MUSIC: [Form; 2] = [Form { method: "sendAudio", field: "audio" }, DOCUMENT];
const FILM: [Form; 2] = [Form { method: "sendVideo", field: "video" }, DOCUMENT];
const PLAIN: [Form; 1] = [DOCUMENT];

/// How a file is shown best, then how simpler.
fn forms(kind: AttachmentKind, file: &Upload) -> &'static [Form] {
    use AttachmentKind as Kind;
    match (kind, file.mime.as_str()) {
        (Kind::Image, "image/jpeg" | "image/png" | "image/webp") if file.bytes.len() <= PHOTO_BYTES => &PHOTO,
        (Kind::Image, "image/gif") => &MOVING,
        (Kind::Audio, "audio/ogg" | "audio/opus") => &VOICE,
        (Kind::Audio, "audio/mpeg" | "audio/mp4" | "audio/m4a" | "audio/x-m4a") => &MUSIC,
        (Kind::Video, "video/mp4") => &FILM,
        _ => &PLAIN,
    }
}

/// The bytes of a file; `None` when it is gone, cannot be fetched or is larger than a bot may send.
async fn load(media: Option<&Arc<dyn Media>>, file: &Attachment) -> Option<Upload> {
    let (media, from) = (media?, file.media.as_ref()?);
    let stored = match &from.source {
        MediaSource::Stored(_) => from.clone(),
        MediaSource::Url(url) => match media.fetch(url).await {
            Ok(stored) => stored,
            Err(error) => {
                info!(%error, "a linked file is not sent; its link is");
                return None;
            }
        },
    };
    let bytes = media.read(&stored).await.filter(|bytes| !bytes.is_empty() && bytes.len() <= FILE_BYTES)?;
    let mime = stored.mime.or_else(|| from.mime.clone()).unwrap_or_default().to_ascii_lowercase();
    let mime = mime.split(';').next().unwrap_or_default().trim().to_owned();
    let known = mime.split_once('/').is_some_and(|(kind, of)| !kind.is_empty() && !of.is_empty());
    let mime = if known { mime } else { "application/octet-stream".to_owned() };
    let name = render::name(file).unwrap_or_else(|| usual_name(file.kind, &mime));
    Some(Upload { name, mime, bytes })
}

fn usual_name(kind: AttachmentKind, mime: &str) -> String {
    let end = match mime {
        "image/jpeg" => "jpg",
        "audio/mpeg" => "mp3",
        "audio/mp4" | "audio/x-m4a" => "m4a",
        "text/plain" => "txt",
        "application/octet-stream" => "bin",
        mime => mime.rsplit(['/', '+']).next().unwrap_or("bin"),
    };
    let what = match kind {
        AttachmentKind::Image => "picture",
        AttachmentKind::Audio => "voice",
        AttachmentKind::Video => "video",
        AttachmentKind::File => "file",
    };
    format!("{what}.{end}")
}

/// A line in place of a file that cannot be sent, below the text that would have stood under it.
fn instead(file: &Attachment, part: &Part, body: &Body, key: &SendKey, fields: &mut Map<String, Value>) {
    fields.remove("caption");
    let line = render::named(file);
    let part = match body.caption {
        true => Part { text: format!("{}\n\n{line}", part.text), body: Value::Null },
        false => Part { text: line.clone(), body: Value::Null },
    };
    let html = body.html.as_deref().filter(|_| body.caption).map(|html| {
        let mut html = format!("{html}\n\n");
        text::escape(&line, &mut html);
        html
    });
    let body = Body { html, buttons: body.buttons.clone(), ..Body::default() };
    Look::of(&part, &body, key.resend).put("text", fields);
}

/// Shows that an answer is being written. Best effort.
pub async fn typing(api: &Api, moves: &Moves, to: &Address) {
    let Some(target) = Target::of(to) else { return };
    let chat = moves.now(target.chat).await;
    let mut action = SendChatAction::new(Recipient::Id(ChatId(chat)), ChatAction::Typing);
    action.message_thread_id = target.thread_to_show();
    if let Err(error) = api.call_within::<_, Value>(TYPING_TIME, "sendChatAction", &action).await {
        debug!(%error, chat, "Telegram does not show that an answer is being written");
    }
}

/// What is sent: HTML or plain text, marked where it may stand there already and the mark fits.
fn marked(plain: &str, html: Option<&str>, again: bool, limit: usize) -> String {
    let text = html.unwrap_or(plain);
    if !again {
        return text.to_owned();
    }
    let note = render::resend_note(plain);
    let room = limit.saturating_sub(TextUnit::Utf16.len(plain));
    match room {
        room if room > TextUnit::Utf16.len(note) => format!("{note}\n{text}"),
        room if room >= 2 => format!("↻ {text}"),
        _ => text.to_owned(),
    }
}

/// A message's own id: `1234`, or `chat:1234` when the chat is this one.
fn message_id(quote: &str, chat: i64) -> Option<i32> {
    match quote.trim().split_once(':') {
        Some((of, id)) if of == chat.to_string() => id.parse().ok(),
        Some(_) => None,
        None => quote.trim().parse().ok(),
    }
}

/// What a refusal is about, named by what can be done.
#[derive(Debug, PartialEq, Eq)]
enum Refusal {
    /// The markup: plain text may pass.
    Format,
    /// The message that is replied to: without it, it may pass.
    Reply,
    /// The topic: outside it, it may pass.
    Topic,
    /// The buttons: without them, it may pass.
    Buttons,
    /// The whole channel.
    Down,
    /// Nothing can be done; the plain reason.
    Final(&'static str),
    /// Unknown words.
    Other,
}

impl Refusal {
    /// Telegram has no codes for these, only English sentences.
    fn of(code: u16, description: &str) -> Self {
        let said = description.to_ascii_lowercase();
        let says = |words: &[&str]| words.iter().any(|words| said.contains(words));
        if code == 404 {
            return Self::Down;
        }
        if says(&["can't parse", "can't find end", "unsupported start tag", "message is too long", "entity_"]) {
            return Self::Format;
        }
        if says(&[
            "to be replied not found",
            "reply message not found",
            "replied message not found",
            "reply_to_invalid",
        ]) {
            return Self::Reply;
        }
        if says(&["thread not found", "topic_deleted", "topic_id_invalid"]) {
            return Self::Topic;
        }
        if says(&["button_", "reply_markup", "reply markup", "inline keyboard"]) {
            return Self::Buttons;
        }
        // It may not send such a thing, and may still write.
        let narrow = ["photos", "documents", "videos", "voice", "audios", "music", "media"];
        if says(&["not enough rights to send", "voice_messages_forbidden"]) && says(&narrow) {
            return Self::Other;
        }
        let reasons: [(&[&str], &str); 8] = [
            (&["blocked by the user"], "the person has blocked the bot"),
            (&["kicked from", "not a member"], "the bot was removed from the group"),
            (&["user is deactivated"], "the person's account no longer exists"),
            (&["can't initiate conversation"], "the person has never written to the bot"),
            (&["chat not found", "peer_id_invalid"], "Telegram knows no such chat"),
            (&["topic_closed"], "the topic is closed"),
            (
                &["not enough rights", "have no rights", "need administrator rights", "chat_write_forbidden"],
                "the bot may not write in this chat",
            ),
            (&["text is empty", "text must be non-empty"], "there is nothing to show in it"),
        ];
        let found = reasons.iter().find(|(words, _)| says(words));
        found.map_or(Self::Other, |(_, reason)| Self::Final(reason))
    }
}

#[cfg(test)]
mod tests;
