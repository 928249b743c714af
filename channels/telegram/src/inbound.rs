//! One update as an [`Inbound`]. Pure, never fails: what it does not know costs that piece, never the message.
//!
//! Fields are read from the raw JSON and pieces as teloxide's types. The whole update as `teloxide::types::Update` would
//! be stricter than we may be: one new kind of entity makes it a message without text.

use std::time::Duration;

use channel_api::{
    Attachment, AttachmentKind, ChannelId, Conversation, ConversationKind, Inbound, InboundKind, ReplyTo, Sender, Trust,
};
use serde_json::Value;
use teloxide::types::{MessageEntity, MessageEntityKind, User, UserId};

use crate::{menu, target::Target};

/// A text from here on, in UTF-16 units, is likely the first piece of a longer one: clients cut at 4,096.
const NEARLY_FULL: usize = 4000;
/// How long the next piece of a long text may take.
const NEXT_PIECE: Duration = Duration::from_millis(1_500);
/// How long the rest of an album, or the question to a picture, may take.
const NEXT_PICTURE: Duration = Duration::from_millis(1_200);
/// How long the next of several forwarded messages, or the remark on them, may take.
const NEXT_FORWARD: Duration = Duration::from_millis(800);

/// The longest text that is taken, in characters: four times what Telegram allows.
const TEXT_CHARS: usize = 16_384;
/// The longest name or title, in characters.
const NAME_CHARS: usize = 256;
/// The longest text that a button stands for, in characters: four times what Telegram allows.
const DATA_CHARS: usize = 256;
/// The longest id of a file, in characters.
const FILE_ID_CHARS: usize = 512;
/// The most entities that are looked at.
const ENTITIES: usize = 1_000;

/// Who we are, as `getMe` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Me {
    /// Our id.
    pub id: UserId,
    /// Our name, without `@`.
    pub username: String,
}

/// An event, and the file that has to be fetched for its only attachment.
#[derive(Clone, Debug, PartialEq)]
pub struct Taken {
    /// The event.
    pub event: Inbound,
    /// The file, where Telegram names one.
    pub file: Option<File>,
}

/// A file at Telegram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What `getFile` takes.
    pub id: String,
    /// Its media type, as far as it is told.
    pub mime: Option<String>,
}

/// What an update says to the bot; `None` when it says nothing: a service message, a poll, a kind that is not asked for.
pub fn inbound(channel: &ChannelId, me: &Me, update: &Value) -> Option<Taken> {
    if let Some(query) = update.get("callback_query") {
        return button(channel, me, query).map(|event| Taken { event, file: None });
    }
    let either = |one: &str, other: &str| update.get(one).or_else(|| update.get(other));
    let (kind, message) = match either("message", "channel_post") {
        Some(message) => (InboundKind::Message, message),
        None => (InboundKind::Edit, either("edited_message", "edited_channel_post")?),
    };
    let chat = message.get("chat")?;
    let chat_id = integer(chat, "id")?;
    let message_id = integer(message, "message_id")?;
    let words = Words::of(message);
    // "/help@another_bot" is said to that one.
    let command = words.command();
    if command.is_some_and(|(_, to)| to.is_some_and(|to| !to.eq_ignore_ascii_case(&me.username))) {
        return None;
    }
    let (mut attachments, mut file) = attachment(message).map_or((Vec::new(), None), |(it, file)| (vec![it], file));
    let text = with_content(words.without_our_name(me), message);
    if text.trim().is_empty() && attachments.is_empty() {
        return None;
    }
    let direct = word(chat, "type") == Some("private");
    let reply_to = answered(message, me);
    let mentions_us = direct
        || words.mention(me)
        || command.is_some_and(|(name, to)| to.is_some() || menu::has(name))
        || reply_to.as_ref().is_some_and(|reply| reply.ours);
    let (sender, own) = sender(message, chat_id);
    let forwarded = ["forward_origin", "forward_date"].iter().any(|key| message.get(key).is_some());
    let relayed = !own || forwarded || message.get("via_bot").is_some();
    let album = message.get("media_group_id").is_some();
    let more_expected = if words.units() >= NEARLY_FULL {
        Some(NEXT_PIECE)
    } else if album || (words.text.is_empty() && !attachments.is_empty()) {
        Some(NEXT_PICTURE)
    } else {
        forwarded.then_some(NEXT_FORWARD)
    };
    // "What is this?" in answer to a picture: the picture is what is asked about.
    if attachments.is_empty()
        && mentions_us
        && kind == InboundKind::Message
        && let Some((answered, Some(its))) = message.get("reply_to_message").and_then(attachment)
    {
        attachments.push(answered);
        file = Some(its);
    }
    let thread = thread(chat, message);
    let target = Target { chat: chat_id, thread, reply: (!direct).then(|| i32::try_from(message_id).ok()).flatten() };
    let date = integer(message, "date");
    let id = format!("{chat_id}:{message_id}");
    let (platform_id, at, about) = match kind {
        InboundKind::Edit => {
            // Two edits within one second differ in their updates only.
            let update = integer(update, "update_id").unwrap_or_default();
            let edited = integer(message, "edit_date").or(date);
            (format!("{id}:{}:{update}", edited.unwrap_or_default()), edited, Some(id))
        }
        _ => (id, date, None),
    };
    let event = Inbound {
        about,
        channel: channel.clone(),
        platform_id,
        fingerprint: None,
        kind,
        conversation: conversation(chat, chat_id, thread),
        sender,
        text,
        attachments,
        mentions_us,
        reply_to,
        at: at.and_then(|seconds| seconds.checked_mul(1_000)),
        address: target.address(channel),
        trust: if relayed { Trust::Relayed } else { Trust::Own },
        more_expected,
        queue: None,
        hold: false,
    };
    Some(Taken { event, file })
}

/// The id of a pressed button's query, which has to be answered whatever it says.
pub fn pressed(update: &Value) -> Option<&str> {
    word(update.get("callback_query")?, "id")
}

/// A pressed button: who pressed it says what it stands for, in the chat of the message under which it is.
fn button(channel: &ChannelId, me: &Me, query: &Value) -> Option<Inbound> {
    let message = query.get("message")?;
    let chat = message.get("chat")?;
    let chat_id = integer(chat, "id")?;
    let message_id = integer(message, "message_id")?;
    let text = start(word(query, "data")?.trim(), DATA_CHARS);
    let (sender, own) = sender(query, chat_id);
    if text.is_empty() || !own {
        return None;
    }
    let direct = word(chat, "type") == Some("private");
    let thread = thread(chat, message);
    let target = Target { chat: chat_id, thread, reply: (!direct).then(|| i32::try_from(message_id).ok()).flatten() };
    let about = format!("{chat_id}:{message_id}");
    let asked = Words::of(message).text;
    Some(Inbound {
        channel: channel.clone(),
        platform_id: format!("button:{}", start(word(query, "id")?, NAME_CHARS)),
        fingerprint: None,
        kind: InboundKind::Button,
        about: Some(about.clone()),
        conversation: conversation(chat, chat_id, thread),
        sender,
        text,
        attachments: Vec::new(),
        mentions_us: true,
        reply_to: Some(ReplyTo {
            id: Some(about),
            text: (!asked.trim().is_empty()).then(|| asked.to_owned()),
            sender_id: Some(me.id.to_string()),
            ours: true,
        }),
        at: None,
        address: target.address(channel),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    })
}

fn conversation(chat: &Value, id: i64, thread: Option<i32>) -> Conversation {
    let direct = word(chat, "type") == Some("private");
    Conversation {
        kind: if direct { ConversationKind::Direct } else { ConversationKind::Group },
        id: id.to_string(),
        thread: thread.map(|thread| thread.to_string()),
        title: word(chat, "title").map(|title| start(title, NAME_CHARS)),
    }
}

/// The group that an update says has moved: its old id and its new one. Telegram tells it on both sides of the move.
pub fn moved(update: &Value) -> Option<(i64, i64)> {
    let message = update.get("message")?;
    let here = integer(message.get("chat")?, "id")?;
    match (integer(message, "migrate_to_chat_id"), integer(message, "migrate_from_chat_id")) {
        (Some(new), _) => Some((here, new)),
        (None, Some(old)) => Some((old, here)),
        (None, None) => None,
    }
}

/// Who wrote it, and whether as themselves: a channel, a group (its anonymous administrators) and a post without an
/// author are somebody nobody knows.
fn sender(message: &Value, chat: i64) -> (Sender, bool) {
    if let Some(written_as) = message.get("sender_chat") {
        let id = integer(written_as, "id").unwrap_or(chat).to_string();
        let name = word(written_as, "title").map(|title| start(title, NAME_CHARS));
        return (Sender { id, name, is_bot: false }, false);
    }
    let Some(from) = message.get("from") else {
        return (Sender { id: chat.to_string(), name: None, is_bot: false }, false);
    };
    let sender = match piece::<User>(from) {
        Some(user) => {
            let name = start(&user.full_name(), NAME_CHARS);
            Sender { id: user.id.to_string(), name: Some(name), is_bot: user.is_bot }
        }
        None => match integer(from, "id") {
            Some(id) => Sender {
                id: id.to_string(),
                name: word(from, "first_name").map(|name| start(name, NAME_CHARS)),
                is_bot: from.get("is_bot").and_then(Value::as_bool).unwrap_or(false),
            },
            None => return (Sender { id: chat.to_string(), name: None, is_bot: false }, false),
        },
    };
    (sender, true)
}

/// The topic of a forum, or of a private chat with topics. Elsewhere `message_thread_id` is a chain of replies.
fn thread(chat: &Value, message: &Value) -> Option<i32> {
    let is = |value: &Value, key: &str| value.get(key).and_then(Value::as_bool) == Some(true);
    if is(message, "is_topic_message") {
        return integer(message, "message_thread_id").and_then(|thread| i32::try_from(thread).ok());
    }
    // What is said in "General" names no topic.
    is(chat, "is_forum").then_some(1)
}

/// The message that this one answers. In a topic every message "answers" the one that opened it; that is none.
fn answered(message: &Value, me: &Me) -> Option<ReplyTo> {
    let quote = message.get("quote").and_then(|quote| word(quote, "text"));
    if let Some(answered) = message.get("reply_to_message") {
        if answered.get("forum_topic_created").is_some() {
            return None;
        }
        let chat = answered.get("chat").or_else(|| message.get("chat")).and_then(|chat| integer(chat, "id"));
        let id = chat.zip(integer(answered, "message_id")).map(|(chat, id)| format!("{chat}:{id}"));
        let text = quote.map(str::to_owned).or_else(|| {
            let text = with_content(Words::of(answered).text.to_owned(), answered);
            Some(text).filter(|text| !text.trim().is_empty())
        });
        let (sender, _) = sender(answered, chat.unwrap_or_default());
        let ours = sender.id == me.id.to_string();
        return Some(ReplyTo { id, text: text.map(|text| start(&text, TEXT_CHARS)), sender_id: Some(sender.id), ours });
    }
    // A message of another chat: only what is quoted of it is known.
    message.get("external_reply")?;
    Some(ReplyTo { id: None, text: quote.map(|text| start(text, TEXT_CHARS)), sender_id: None, ours: false })
}

/// The words of a message and what is marked in them.
struct Words<'a> {
    text: &'a str,
    entities: Vec<MessageEntity>,
}

impl<'a> Words<'a> {
    fn of(message: &'a Value) -> Self {
        let (text, entities) = match word(message, "text") {
            Some(text) => (text, message.get("entities")),
            None => (word(message, "caption").unwrap_or_default(), message.get("caption_entities")),
        };
        let text = match text.char_indices().nth(TEXT_CHARS) {
            Some((end, _)) => &text[..end],
            None => text,
        };
        let entities = entities.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        // One of a new kind is left out, the others stay.
        Self { text, entities: entities.iter().take(ENTITIES).filter_map(piece).collect() }
    }

    /// The length in UTF-16 units.
    fn units(&self) -> usize {
        self.text.encode_utf16().count()
    }

    /// What an entity marks, as byte offsets. Entities are input: one that ends behind the text or stands in the middle
    /// of a character is drawn in.
    fn marked(&self, entity: &MessageEntity) -> (usize, usize) {
        let end = entity.offset.saturating_add(entity.length);
        let (mut units, mut from, mut to) = (0, None, self.text.len());
        for (at, c) in self.text.char_indices() {
            if from.is_none() && units >= entity.offset {
                from = Some(at);
            }
            if units + c.len_utf16() > end {
                to = at;
                break;
            }
            units += c.len_utf16();
        }
        let from = from.unwrap_or(self.text.len()).min(to);
        (from, to)
    }

    /// The command that the message begins with, and the bot that it names.
    fn command(&self) -> Option<(&'a str, Option<&'a str>)> {
        let first =
            self.entities.iter().find(|entity| entity.kind == MessageEntityKind::BotCommand && entity.offset == 0)?;
        let (from, to) = self.marked(first);
        let command = self.text[from..to].strip_prefix('/')?;
        Some(match command.split_once('@') {
            Some((name, bot)) => (name, Some(bot)),
            None => (command, None),
        })
    }

    fn is_our_name(&self, entity: &MessageEntity, me: &Me) -> bool {
        match &entity.kind {
            MessageEntityKind::Mention => {
                let (from, to) = self.marked(entity);
                let name = self.text[from..to].strip_prefix('@');
                name.is_some_and(|name| name.eq_ignore_ascii_case(&me.username))
            }
            MessageEntityKind::TextMention { user } => user.id == me.id,
            _ => false,
        }
    }

    fn mention(&self, me: &Me) -> bool {
        self.entities.iter().any(|entity| self.is_our_name(entity, me))
    }

    /// The text without our name where it is only the address: behind a command, at the start, at the end. A message
    /// that is nothing but our name stays as it is.
    fn without_our_name(&self, me: &Me) -> String {
        if let Some((name, Some(bot))) = self.command() {
            let rest = &self.text["/@".len() + name.len() + bot.len()..];
            return format!("/{name}{rest}");
        }
        let names: Vec<(usize, usize)> = self
            .entities
            .iter()
            .filter(|entity| entity.kind == MessageEntityKind::Mention && self.is_our_name(entity, me))
            .map(|entity| self.marked(entity))
            .collect();
        let mut text = self.text;
        let mut cut = 0;
        if let Some((from, to)) = names.iter().find(|(from, _)| text[..*from].trim().is_empty())
            && from < to
        {
            text = text[*to..].trim_start_matches([',', ':', '，', '：']).trim_start();
            cut = self.text.len() - text.len();
        }
        if let Some((from, _)) = names.iter().find(|(from, to)| *from >= cut && self.text[*to..].trim().is_empty()) {
            text = self.text[cut..*from].trim_end();
        }
        if text.trim().is_empty() { self.text.to_owned() } else { text.to_owned() }
    }
}

/// The text with what a message holds besides words and files, in a line the model can read.
fn with_content(text: String, message: &Value) -> String {
    let text_of = |value: &Value, key: &str| start(word(value, key).unwrap_or_default(), NAME_CHARS);
    let place = |value: &Value| {
        let degrees = |key| value.get(key).and_then(Value::as_f64);
        degrees("latitude").zip(degrees("longitude")).map(|(lat, lon)| format!("{lat:.6}, {lon:.6}"))
    };
    let line = if let Some(venue) = message.get("venue") {
        let place = venue.get("location").and_then(place).unwrap_or_default();
        format!("[venue: {}, {} ({place})]", text_of(venue, "title"), text_of(venue, "address"))
    } else if let Some(place) = message.get("location").and_then(place) {
        format!("[location: {place}]")
    } else if let Some(contact) = message.get("contact") {
        let name = format!("{} {}", text_of(contact, "first_name"), text_of(contact, "last_name"));
        format!("[contact: {}, {}]", name.trim(), text_of(contact, "phone_number"))
    } else if let Some(poll) = message.get("poll") {
        let options = poll.get("options").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let options: Vec<String> = options.iter().take(20).map(|option| text_of(option, "text")).collect();
        format!("[poll: {} ({})]", text_of(poll, "question"), options.join(" / "))
    } else if let Some(dice) = message.get("dice") {
        let value = integer(dice, "value").unwrap_or_default();
        format!("[dice {}: {value}]", text_of(dice, "emoji"))
    } else if message.get("story").is_some() {
        "[story]".to_owned()
    } else if message.get("paid_media").is_some() {
        "[paid media]".to_owned()
    } else {
        return text;
    };
    if text.is_empty() { line } else { format!("{text}\n{line}") }
}

/// The file that came with it, and where Telegram has it. Its bytes are not there yet.
fn attachment(message: &Value) -> Option<(Attachment, Option<File>)> {
    use AttachmentKind as Kind;
    // An animation also stands as a document, for old clients: the first that is there counts.
    let kinds = [
        ("photo", Kind::Image, "image/jpeg"),
        ("sticker", Kind::Image, "image/webp"),
        ("voice", Kind::Audio, "audio/ogg"),
        ("audio", Kind::Audio, "audio/mpeg"),
        ("video", Kind::Video, "video/mp4"),
        ("video_note", Kind::Video, "video/mp4"),
        ("animation", Kind::Video, "video/mp4"),
        ("document", Kind::File, ""),
    ];
    let (key, kind, usual, file) =
        kinds.iter().find_map(|(key, kind, usual)| message.get(key).map(|file| (*key, *kind, *usual, file)))?;
    let mime = word(file, "mime_type").unwrap_or_default();
    let kind = match (kind, mime.split('/').next()) {
        (Kind::File, Some("image")) => Kind::Image,
        (Kind::File, Some("audio")) => Kind::Audio,
        (Kind::File, Some("video")) => Kind::Video,
        (kind, _) => kind,
    };
    let name = match key {
        "sticker" => word(file, "emoji").map(|emoji| format!("sticker {emoji}")),
        _ => word(file, "file_name").or_else(|| word(file, "title")).map(str::to_owned),
    };
    let moving = ["is_animated", "is_video"].iter().any(|key| file.get(key).and_then(Value::as_bool) == Some(true));
    let source = match key {
        "photo" => largest(file),
        // What moves is no picture; its small still one is.
        "sticker" if moving => file.get("thumbnail"),
        _ => Some(file),
    };
    let id = source.and_then(|source| word(source, "file_id")).filter(|id| id.len() <= FILE_ID_CHARS);
    let mime = if mime.is_empty() { usual } else { mime };
    let file =
        id.map(|id| File { id: id.to_owned(), mime: (!mime.is_empty() && !moving).then(|| start(mime, NAME_CHARS)) });
    let unavailable = file.is_none().then(|| "Telegram does not say where it is".to_owned());
    Some((Attachment { kind, media: None, name: name.map(|name| start(&name, NAME_CHARS)), unavailable }, file))
}

/// The largest of a picture's sizes.
fn largest(sizes: &Value) -> Option<&Value> {
    let area = |size: &&Value| {
        let side = |key| integer(size, key).unwrap_or_default().max(0);
        side("width").saturating_mul(side("height"))
    };
    sizes.as_array()?.iter().filter(|size| word(size, "file_id").is_some()).max_by_key(area)
}

/// A piece as teloxide reads it, if it can.
fn piece<'a, T: serde::Deserialize<'a>>(value: &'a Value) -> Option<T> {
    T::deserialize(value).ok()
}

fn integer(value: &Value, key: &str) -> Option<i64> {
    value.get(key)?.as_i64()
}

fn word<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn start(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

#[cfg(test)]
mod tests;
