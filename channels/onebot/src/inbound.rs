//! One event of an implementation as what it means to us: a message, a recall, a request, a sign of life. Pure, never
//! fails: an unknown kind, field or segment costs that piece, never the event.

use std::time::Duration;

use channel_api::{AttachmentKind, ChannelId, ConversationKind, Inbound, InboundKind, ReplyTo, Sender, Trust};
use serde_json::Value;

use crate::{
    faces, ids,
    message::{self, Segment},
    target::{self, Chat, Target},
};

/// The longest text that is taken, in characters.
const TEXT_CHARS: usize = 32_768;
/// The longest name or title, in characters.
const NAME_CHARS: usize = 256;
/// The most files of one message.
const FILES: usize = 10;
/// How long the question to a picture may take.
const NEXT_PICTURE: Duration = Duration::from_millis(1_200);
/// How long the remark on something forwarded may take.
const NEXT_FORWARD: Duration = Duration::from_millis(800);
/// NapCat's group of a temporary chat whose group it does not know.
const NO_GROUP: &str = "284840486";

/// What an event means.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Somebody said something, or poked the bot.
    Said(Box<Said>),
    /// A message was taken back.
    Recalled {
        /// Where.
        chat: Chat,
        /// Its id.
        message: String,
        /// Who wrote it.
        user: String,
        /// When it was taken back, in epoch seconds.
        time: i64,
    },
    /// Somebody wants to be the bot's friend.
    Friend {
        /// Who.
        user: String,
        /// What the answer must name.
        flag: String,
    },
    /// Somebody invites the bot into a group.
    Invite {
        /// Who.
        user: String,
        /// Into which.
        group: String,
        /// What the answer must name.
        flag: String,
    },
    /// A sign of life; the next one comes after this long.
    Heartbeat(Duration),
    /// The account was logged out, and why.
    Offline(String),
    /// Nothing for us; the reason is a stable name.
    Ignored(&'static str),
}

impl Event {
    /// The chat that it happened in.
    pub fn chat(&self) -> Option<Chat> {
        match self {
            Self::Said(said) => Some(said.chat.clone()),
            Self::Recalled { chat, .. } => Some(chat.clone()),
            _ => None,
        }
    }
}

/// A message, with what has to be asked for before it is whole.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The event; files, quoted text and forwarded messages are still to come.
    pub inbound: Inbound,
    /// Where it was said.
    pub chat: Chat,
    /// The message's own id.
    pub message: String,
    /// When it was said, in epoch seconds.
    pub time: i64,
    /// The files it came with.
    pub files: Vec<File>,
    /// What it forwards.
    pub forwards: Vec<Forward>,
    /// The message it answers.
    pub reply: Option<String>,
}

/// A file that came with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What it is.
    pub kind: AttachmentKind,
    /// Where it is said to be, first the best: `https://…`, `base64://…`, `file://…`, a name.
    pub places: Vec<String>,
    /// Its id for a call, and whether it lies in a group's folder.
    pub id: Option<String>,
    /// Its name as the sender gave it.
    pub name: Option<String>,
}

/// Something forwarded.
#[derive(Clone, Debug, PartialEq)]
pub enum Forward {
    /// To be asked for.
    Id(String),
    /// It came with the message.
    Content(Value),
}

/// What `event` means to the bot `self_id`.
pub fn read(channel: &ChannelId, self_id: &str, event: &Value) -> Event {
    match event.get("post_type").and_then(Value::as_str) {
        Some("message") => said(channel, self_id, event),
        Some("message_sent") => Event::Ignored("own_message"),
        Some("meta_event") => meta(event),
        Some("notice") => notice(channel, self_id, event),
        Some("request") => request(event),
        _ => Event::Ignored("unknown_post_type"),
    }
}

fn meta(event: &Value) -> Event {
    match word(event, "meta_event_type") {
        Some("heartbeat") => {
            let interval = event.get("interval").and_then(Value::as_u64).unwrap_or(15_000);
            Event::Heartbeat(Duration::from_millis(interval.clamp(1_000, 600_000)))
        }
        _ => Event::Ignored("meta"),
    }
}

fn request(event: &Value) -> Event {
    let (Some(user), Some(flag)) = (ids::number_at(event, "user_id"), text_at(event, "flag")) else {
        return Event::Ignored("request_without_flag");
    };
    match (word(event, "request_type"), word(event, "sub_type")) {
        (Some("friend"), _) => Event::Friend { user, flag },
        (Some("group"), Some("invite")) => match ids::number_at(event, "group_id") {
            Some(group) => Event::Invite { user, group, flag },
            None => Event::Ignored("request_without_group"),
        },
        // Who may join a group is for the people of that group.
        _ => Event::Ignored("request"),
    }
}

fn notice(channel: &ChannelId, self_id: &str, event: &Value) -> Event {
    let user = ids::number_at(event, "user_id");
    let time = time(event);
    match (word(event, "notice_type"), word(event, "sub_type")) {
        (Some(kind @ ("group_recall" | "friend_recall")), _) => {
            let chat = match (kind, ids::number_at(event, "group_id"), &user) {
                ("group_recall", Some(group), _) => Chat::Group(group),
                ("friend_recall", _, Some(user)) => Chat::Private(user.clone()),
                _ => return Event::Ignored("recall_without_chat"),
            };
            match (event.get("message_id").and_then(ids::message), user) {
                (Some(_), Some(user)) if user == self_id => Event::Ignored("own_message"),
                (Some(message), Some(user)) => Event::Recalled { chat, message, user, time },
                _ => Event::Ignored("recall_without_message"),
            }
        }
        // go-cqhttp and Lagrange tell it as notify/poke, others leave out the notice's own type.
        (Some("notify"), Some("poke")) | (Some("poke"), _) => poke(channel, self_id, event, user),
        (Some("offline_file"), _) => offline_file(channel, self_id, event, user),
        (Some("bot_offline"), _) => {
            let why = word(event, "message").or_else(|| word(event, "tag")).unwrap_or("no reason given");
            Event::Offline(start(why, NAME_CHARS))
        }
        _ => Event::Ignored("notice"),
    }
}

fn poke(channel: &ChannelId, self_id: &str, event: &Value, user: Option<String>) -> Event {
    let target = ids::number_at(event, "target_id");
    // Some name the one who poked `sender_id`.
    let Some(user) = ids::number_at(event, "sender_id").or(user) else { return Event::Ignored("poke_without_user") };
    if target.as_deref() != Some(self_id) || user == self_id {
        return Event::Ignored("poke_of_others");
    }
    let chat = match ids::number_at(event, "group_id") {
        Some(group) => Chat::Group(group),
        None => Chat::Private(user.clone()),
    };
    let time = time(event);
    let event = Inbound {
        platform_id: format!("poke:{}:{user}:{time}", chat.name()),
        mentions_us: true,
        text: "[poked you]".to_owned(),
        ..plain(channel, self_id, &chat, Sender { id: user, name: None, is_bot: false }, time)
    };
    Event::Said(Box::new(whole(event, chat, String::new(), time)))
}

/// A file that somebody sent in a private chat: go-cqhttp tells it as a notice, without an id of a message.
fn offline_file(channel: &ChannelId, self_id: &str, event: &Value, user: Option<String>) -> Event {
    let (Some(user), Some(file)) = (user, event.get("file")) else { return Event::Ignored("file_without_user") };
    if user == self_id {
        return Event::Ignored("own_message");
    }
    let (chat, time) = (Chat::Private(user.clone()), time(event));
    let name = word(file, "name").map(base_name).filter(|name| !name.is_empty());
    let inbound = Inbound {
        platform_id: format!("file:{}:{}:{time}", chat.name(), name.as_deref().unwrap_or_default()),
        mentions_us: true,
        ..plain(channel, self_id, &chat, Sender { id: user, name: None, is_bot: false }, time)
    };
    let places = word(file, "url").map(str::to_owned).into_iter().collect();
    let mut said = whole(inbound, chat, String::new(), time);
    said.files.push(File { kind: AttachmentKind::File, places, id: None, name });
    Event::Said(Box::new(said))
}

fn whole(inbound: Inbound, chat: Chat, message: String, time: i64) -> Said {
    Said { inbound, chat, message, time, files: Vec::new(), forwards: Vec::new(), reply: None }
}

/// An event with nothing in it yet.
fn plain(channel: &ChannelId, self_id: &str, chat: &Chat, sender: Sender, time: i64) -> Inbound {
    let target = Target { bot: self_id.to_owned(), chat: chat.clone(), reply: None };
    Inbound {
        channel: channel.clone(),
        platform_id: String::new(),
        fingerprint: None,
        kind: InboundKind::Message,
        about: None,
        conversation: chat.conversation(None),
        sender,
        text: String::new(),
        attachments: Vec::new(),
        mentions_us: false,
        reply_to: None,
        at: time.checked_mul(1_000).filter(|at| *at > 0),
        address: target.address(channel),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    }
}

/// The news that a message is gone. `about` is its key, if it is known.
pub fn recalled(channel: &ChannelId, self_id: &str, chat: &Chat, message: &str, user: &str, time: i64) -> Inbound {
    Inbound {
        platform_id: format!("recall:{}:{message}:{time}", chat.name()),
        kind: InboundKind::Deleted,
        about: Some(format!("{}:{message}", chat.name())),
        mentions_us: !chat.is_group(),
        ..plain(channel, self_id, chat, Sender { id: user.to_owned(), name: None, is_bot: false }, time)
    }
}

fn said(channel: &ChannelId, self_id: &str, event: &Value) -> Event {
    let sender = event.get("sender").unwrap_or(&Value::Null);
    let user = event.get("user_id").and_then(ids::number).or_else(|| ids::number_at(sender, "user_id"));
    let Some(user) = user else { return Event::Ignored("message_without_sender") };
    // In guilds the bot has another number.
    let tiny = ids::number_at(event, "self_tiny_id");
    let is_us = |id: &str| id == self_id || tiny.as_deref() == Some(id);
    if is_us(&user) {
        return Event::Ignored("own_message");
    }
    let Some(chat) = chat(event, sender, &user) else { return Event::Ignored("message_without_chat") };
    let Some(message) = event.get("message_id").and_then(ids::message) else {
        return Event::Ignored("message_without_id");
    };
    let Some(segments) = event.get("message").and_then(message::read) else {
        return Event::Ignored("message_of_unknown_form");
    };
    let pieces = Pieces::of(&segments, &is_us);
    if pieces.text.trim().is_empty() && pieces.files.is_empty() && pieces.forwards.is_empty() && !pieces.mentioned {
        return Event::Ignored("nothing_in_it");
    }
    let time = time(event);
    let anonymous = event.get("anonymous").filter(|anonymous| anonymous.is_object());
    let name = match anonymous {
        Some(anonymous) => word(anonymous, "name"),
        None => {
            [word(sender, "card"), word(sender, "nickname")].into_iter().flatten().find(|name| !name.trim().is_empty())
        }
    };
    let name = name.map(|name| start(name.trim(), NAME_CHARS));
    let id = match anonymous.and_then(|anonymous| ids::number_at(anonymous, "id")) {
        Some(id) => format!("anonymous:{id}"),
        None => user,
    };
    let title = word(event, "group_name").map(|title| start(title, NAME_CHARS));
    let direct = !chat.is_group();
    let relayed = anonymous.is_some() || !pieces.forwards.is_empty();
    let target = Target { bot: self_id.to_owned(), chat: chat.clone(), reply: (!direct).then(|| message.clone()) };
    let more_expected = if !pieces.forwards.is_empty() {
        Some(NEXT_FORWARD)
    } else {
        (pieces.text.trim().is_empty() && !pieces.files.is_empty()).then_some(NEXT_PICTURE)
    };
    let reply_to = pieces.reply.as_ref().map(|reply| ReplyTo {
        id: Some(format!("{}:{reply}", chat.name())),
        text: None,
        sender_id: None,
        ours: false,
    });
    let inbound = Inbound {
        platform_id: target::key(&chat, &message, time),
        conversation: chat.conversation(title),
        text: pieces.text,
        mentions_us: direct || pieces.mentioned,
        reply_to,
        address: target.address(channel),
        trust: if relayed { Trust::Relayed } else { Trust::Own },
        more_expected,
        ..plain(channel, self_id, &chat, Sender { id, name, is_bot: false }, time)
    };
    debug_assert!(direct == (inbound.conversation.kind == ConversationKind::Direct), "a chat is of one kind");
    Event::Said(Box::new(Said {
        inbound,
        chat,
        message,
        time,
        files: pieces.files,
        forwards: pieces.forwards,
        reply: pieces.reply,
    }))
}

fn chat(event: &Value, sender: &Value, user: &str) -> Option<Chat> {
    let group = ids::number_at(event, "group_id");
    match (word(event, "message_type"), &group) {
        (Some("guild"), _) => {
            let (guild, channel) =
                (event.get("guild_id").and_then(ids::message), event.get("channel_id").and_then(ids::message));
            guild.zip(channel).map(|(guild, channel)| Chat::Guild(guild, channel))
        }
        (Some("private"), _) => {
            let from_group = word(event, "sub_type") == Some("group");
            let group =
                group.or_else(|| ids::number_at(sender, "group_id")).filter(|group| from_group && group != NO_GROUP);
            Some(match group {
                Some(group) => Chat::Temporary(user.to_owned(), group),
                None => Chat::Private(user.to_owned()),
            })
        }
        (Some("group"), _) => group.map(Chat::Group),
        (Some(_), _) => None,
        (None, Some(group)) => Some(Chat::Group(group.clone())),
        (None, None) => Some(Chat::Private(user.to_owned())),
    }
}

/// What the segments of a message hold.
#[derive(Debug, Default)]
struct Pieces {
    text: String,
    files: Vec<File>,
    forwards: Vec<Forward>,
    reply: Option<String>,
    mentioned: bool,
}

impl Pieces {
    fn of(segments: &[Segment], is_us: &impl Fn(&str) -> bool) -> Self {
        let mut pieces = Self::default();
        // The bot's name at the beginning is the address, not part of what is said; one space goes with it.
        let mut after_our_name = false;
        for segment in segments {
            let strip = std::mem::take(&mut after_our_name);
            match segment.kind.as_str() {
                "at" => {
                    let Some(who) = segment.data.get("qq").and_then(at) else { continue };
                    if who == "all" {
                        pieces.say("@全体成员");
                    } else if is_us(&who) {
                        pieces.mentioned = true;
                        if pieces.text.trim().is_empty() {
                            pieces.text.clear();
                            after_our_name = true;
                        } else {
                            pieces.say(&format!("@{who}"));
                        }
                    } else {
                        let name =
                            segment.word("name").map(|name| start(name.trim().trim_start_matches('@'), NAME_CHARS));
                        match name.filter(|name| !name.is_empty()) {
                            Some(name) => pieces.say(&format!("@{name}({who})")),
                            None => pieces.say(&format!("@{who}")),
                        }
                    }
                }
                "text" => {
                    let text = segment.word("text").unwrap_or_default();
                    let text = if strip { text.strip_prefix(' ').unwrap_or(&text) } else { &text };
                    pieces.say(text);
                }
                "reply" => {
                    if pieces.reply.is_none() {
                        pieces.reply = segment.data.get("id").and_then(ids::message).filter(|id| id != "0");
                    }
                    after_our_name = strip;
                }
                "forward" => match (segment.data.get("content"), segment.data.get("id")) {
                    (Some(content @ Value::Array(_)), _) => pieces.forwards.push(Forward::Content(content.clone())),
                    (_, Some(id)) => pieces.forwards.extend(ids::message(id).map(Forward::Id)),
                    _ => {}
                },
                "image" | "record" | "video" | "file" => {
                    if pieces.files.len() < FILES {
                        pieces.files.push(file(segment));
                    } else {
                        pieces.say("[one more file]");
                    }
                }
                _ => {
                    if let Some(line) = content(segment) {
                        pieces.say(&line);
                    }
                }
            }
        }
        pieces.text = pieces.text.trim_end().to_owned();
        pieces
    }

    fn say(&mut self, text: &str) {
        let room = TEXT_CHARS.saturating_sub(self.text.chars().count());
        self.text.extend(text.chars().filter(|c| *c != '\0').map(|c| if c == '\r' { '\n' } else { c }).take(room));
    }
}

/// Whom an `at` means: a number, or `all`.
fn at(who: &Value) -> Option<String> {
    match who.as_str() {
        Some("all") => Some("all".to_owned()),
        _ => ids::number(who),
    }
}

fn file(segment: &Segment) -> File {
    let kind = match segment.kind.as_str() {
        "image" => AttachmentKind::Image,
        "record" => AttachmentKind::Audio,
        "video" => AttachmentKind::Video,
        _ => AttachmentKind::File,
    };
    let mut places: Vec<String> = ["url", "file", "path"].iter().filter_map(|key| segment.word(key)).collect();
    places.retain(|place| !place.trim().is_empty());
    // What can be fetched comes first.
    places.sort_by_key(|place| !(place.starts_with("http") || place.starts_with("base64://")));
    let id = segment.word("file_id").or_else(|| segment.word("file")).filter(|id| !id.contains("://"));
    let name = ["name", "file_name", "file"].iter().find_map(|key| segment.word(key));
    let name = name.filter(|name| !name.contains("://")).map(|name| base_name(&name));
    File { kind, places, id, name: name.filter(|name| !name.is_empty()) }
}

/// A name without folders and control characters.
fn base_name(name: &str) -> String {
    let name = name.rsplit(['/', '\\']).next().unwrap_or_default();
    name.chars().filter(|c| !c.is_control()).take(NAME_CHARS).collect()
}

/// What a segment holds besides words and files, in a line the model can read.
fn content(segment: &Segment) -> Option<String> {
    let word = |key: &str| segment.word(key).map(|text| start(text.trim(), NAME_CHARS)).filter(|text| !text.is_empty());
    let joined = |keys: &[&str]| keys.iter().filter_map(|key| word(key)).collect::<Vec<_>>().join(", ");
    let line = |label: &str, keys: &[&str]| match joined(keys) {
        said if said.is_empty() => format!("[{label}]"),
        said => format!("[{label}: {said}]"),
    };
    Some(match segment.kind.as_str() {
        "face" => {
            let shown = segment.data.get("raw").and_then(|raw| raw.get("faceText")).and_then(Value::as_str);
            let id = word("id").unwrap_or_default();
            let name =
                faces::name(&id).map(str::to_owned).or(shown.map(|name| start(name.trim_matches(['/', '[', ']']), 32)));
            format!("[face: {}]", name.unwrap_or(id))
        }
        "mface" | "bface" | "marketface" => line("sticker", &["summary"]),
        "dice" => line("dice", &["result"]),
        "rps" => line("rock-paper-scissors", &["result"]),
        "poke" | "shake" => "[poke]".to_owned(),
        "share" => line("shared", &["title", "content", "url"]),
        "location" => line("location", &["title", "content", "lat", "lon"]),
        "contact" => line("contact", &["type", "id"]),
        "music" => line("music", &["title", "content", "url", "type", "id"]),
        "markdown" => start(&segment.word("content").or_else(|| segment.word("data"))?, TEXT_CHARS),
        "json" | "miniapp" | "lightapp" => card(segment.data.get("data")?),
        "xml" => line("card", &["title", "brief"]),
        _ => return None,
    })
}

/// The title, the words and the address of a card, which is JSON in a text, or JSON itself.
fn card(data: &Value) -> String {
    let read;
    let card = match data {
        Value::String(text) => match channel_api::json::parse(text) {
            Some(card) => {
                read = card;
                &read
            }
            None => return "[card]".to_owned(),
        },
        other => other,
    };
    let detail = card.get("meta").and_then(Value::as_object).and_then(|meta| meta.values().next());
    let mut said: Vec<String> = Vec::new();
    let found = [
        detail.and_then(|detail| word(detail, "title")),
        detail.and_then(|detail| word(detail, "desc")),
        detail.and_then(|detail| word(detail, "name")),
        detail.and_then(|detail| word(detail, "address")),
        word(card, "prompt").filter(|_| detail.is_none_or(|detail| word(detail, "title").is_none())),
        detail.and_then(|detail| {
            ["qqdocurl", "jumpUrl", "url"].iter().find_map(|key| word(detail, key)).filter(|url| url.contains('.'))
        }),
    ];
    for text in found.into_iter().flatten() {
        let text = start(text.trim(), NAME_CHARS);
        if !text.is_empty() && !said.contains(&text) {
            said.push(text);
        }
    }
    if said.is_empty() { "[card]".to_owned() } else { format!("[card: {}]", said.join(", ")) }
}

/// A node of something forwarded, as far as one line can say it: who, what, and what it forwards itself.
pub fn forwarded(node: &Value) -> Option<(String, String, Vec<Forward>)> {
    // NapCat and LLOneBot: a message as in an event; go-cqhttp: `content` beside `sender`; a node segment: in `data`.
    let node = node.get("data").filter(|data| data.is_object()).unwrap_or(node);
    let sender = node.get("sender").unwrap_or(node);
    let name = [word(sender, "card"), word(sender, "nickname"), word(sender, "name")];
    let name =
        name.into_iter().flatten().find(|name| !name.trim().is_empty()).map(|name| start(name.trim(), NAME_CHARS));
    let name = name.or_else(|| ids::number_at(sender, "user_id")).unwrap_or_else(|| "?".to_owned());
    // A name must not make lines of its own.
    let name: String = name.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    let segments =
        node.get("message").and_then(message::read).or_else(|| node.get("content").and_then(message::read))?;
    let mut pieces = Pieces::of(&segments, &|_: &str| false);
    for file in &pieces.files {
        let kind = match file.kind {
            AttachmentKind::Image => "picture",
            AttachmentKind::Audio => "voice",
            AttachmentKind::Video => "video",
            AttachmentKind::File => "file",
        };
        pieces.text.push_str(&format!("[{kind}]"));
    }
    Some((name, pieces.text, pieces.forwards))
}

/// The words of a message, as `reconcile` and quotes need them: text only.
pub fn words(message: &Value) -> String {
    let segments = message.get("message").and_then(message::read).unwrap_or_default();
    Pieces::of(&segments, &|_: &str| false).text
}

/// Whether a text is Chinese; `None` when it has no letters.
pub fn language(text: &str) -> Option<bool> {
    let letters: Vec<char> = text.chars().filter(|c| c.is_alphabetic()).take(500).collect();
    let chinese = letters.iter().filter(|c| ('\u{4E00}'..='\u{9FFF}').contains(*c)).count();
    (!letters.is_empty()).then_some(chinese * 3 > letters.len())
}

/// When it happened, in epoch seconds; some write milliseconds, some a text.
pub fn time(event: &Value) -> i64 {
    let time = event.get("time").and_then(ids::number).and_then(|time| time.parse::<i64>().ok()).unwrap_or_default();
    if time > 100_000_000_000 { time / 1_000 } else { time }
}

fn word<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

/// A text or a number at `key`, as text.
fn text_at(value: &Value, key: &str) -> Option<String> {
    match value.get(key)? {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

fn start(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}
