//! A request's body as an [`Inbound`]: pure, tested on recorded bodies. Looks at nothing but its arguments.

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use channel_api::{
    Address, Attachment, AttachmentKind, ChannelId, Conversation, ConversationKind, Inbound, InboundKind, MediaRef,
    MediaSource, ReplyTo, Sender, Trust,
};
use http::{HeaderMap, header};
use serde_json::{Value, json};

use crate::{answer::Refusal, auth::sha256_hex, map::Map};

/// Nested deeper than this, a body is refused before it is parsed.
const DEPTH: usize = 64;

/// The longest id of a message, in characters; other ids may be twice as long.
const ID_CHARS: usize = 128;

/// Names and titles are cut here.
const NAME_CHARS: usize = 256;

/// The most attachments of one message.
const ATTACHMENTS: usize = 32;

/// A message, and the bytes that came with it.
#[derive(Debug, PartialEq)]
pub struct Message {
    /// The event; attachments that came as bytes have no `media` yet.
    pub inbound: Inbound,
    /// Bytes to be stored, each with the number of its attachment.
    pub files: Vec<File>,
}

/// Bytes that came with a message, and the number of their attachment.
pub type File = (usize, Bytes);

/// Only JSON in UTF-8, not compressed. A missing `Content-Type` is taken as JSON.
///
/// # Errors
/// 415.
pub fn check_media_type(headers: &HeaderMap) -> Result<(), Refusal> {
    let coded = headers.get_all(header::CONTENT_ENCODING).iter().any(|value| value.as_bytes() != b"identity");
    if coded {
        return Err(Refusal::UnsupportedMedia("send the body as it is, without Content-Encoding"));
    }
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let value = value.to_str().unwrap_or("").to_ascii_lowercase();
    let mut pieces = value.split(';').map(str::trim);
    let kind = pieces.next().unwrap_or("");
    let json = kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"));
    let utf8 = pieces
        .filter_map(|piece| piece.strip_prefix("charset="))
        .all(|charset| matches!(charset.trim_matches('"'), "utf-8" | "utf8" | "us-ascii"));
    if json && utf8 {
        Ok(())
    } else {
        Err(Refusal::UnsupportedMedia("send JSON in UTF-8, with `Content-Type: application/json`"))
    }
}

/// Reads a body, ours (`map` is `None`) or a foreign one. `now_ms` only makes an id where a foreign body has none.
///
/// # Errors
/// 400 when it is no JSON object, 422 with a JSON pointer when a field is missing or of the wrong type.
pub fn inbound(
    channel: &ChannelId,
    map: Option<&Map>,
    headers: &HeaderMap,
    raw: &[u8],
    now_ms: i64,
) -> Result<Message, Refusal> {
    let body = parse(raw)?;
    let standard = Map::standard();
    let read = Reader { body: &body, foreign: map.is_some() };
    let map = map.unwrap_or(&standard);
    if !read.foreign
        && let Some((pointer, version)) = read.find("/v")?
        && version.as_i64() != Some(1)
    {
        return Err(invalid(pointer, "must be 1"));
    }

    let id = read.id(&map.id, ID_CHARS)?;
    let at = read.time(&map.timestamp)?;
    let id = message_id(id, headers, read.foreign.then_some((raw, at, now_ms)))?;

    let (conversation_id, sender_id) =
        (read.id(&map.conversation_id, 2 * ID_CHARS)?, read.id(&map.sender_id, 2 * ID_CHARS)?);
    let (conversation_id, sender_id) = match (conversation_id, sender_id) {
        (Some(conversation), Some(sender)) => (conversation, sender),
        (None, _) if map.conversation_id.is_some() => return Err(missing(&map.conversation_id)),
        (_, None) if map.sender_id.is_some() => return Err(missing(&map.sender_id)),
        (Some(conversation), None) => (conversation.clone(), conversation),
        (None, Some(sender)) => (sender.clone(), sender),
        (None, None) => ("default".to_owned(), "default".to_owned()),
    };
    let conversation = Conversation {
        kind: read.conversation_kind(&map.conversation_type)?,
        id: conversation_id,
        thread: read.id(&map.thread_id, 2 * ID_CHARS)?,
        title: read.name(&map.conversation_title)?,
    };
    let sender =
        Sender { id: sender_id, name: read.name(&map.sender_name)?, is_bot: read.flag(&map.is_bot)?.unwrap_or(false) };

    let (attachments, files) = read.attachments(&map.attachments)?;
    let text = read.text(&Some(map.text.clone()))?.unwrap_or_default();
    if text.is_empty() && attachments.is_empty() {
        return Err(invalid(&map.text, "must hold some text, or `attachments` a file"));
    }
    let direct = conversation.kind == ConversationKind::Direct;
    let inbound = Inbound {
        channel: channel.clone(),
        platform_id: id,
        fingerprint: Some(sha256_hex(raw)),
        kind: InboundKind::Message,
        about: None,
        address: address(channel, &conversation),
        conversation,
        sender,
        text,
        attachments,
        mentions_us: read.flag(&map.mentioned)?.unwrap_or(direct),
        reply_to: read.reply_to(map)?,
        at,
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    };
    Ok(Message { inbound, files })
}

/// Where answers to a conversation go: its lane, and the conversation as callbacks repeat it.
fn address(channel: &ChannelId, conversation: &Conversation) -> Address {
    let kind = match conversation.kind {
        ConversationKind::Direct => "direct",
        ConversationKind::Group => "group",
    };
    let mut data = json!({ "id": conversation.id, "type": kind });
    if let Some(title) = &conversation.title {
        data["title"] = json!(title);
    }
    let mut lane = format!("{kind}:{}", escaped(&conversation.id));
    if let Some(thread) = &conversation.thread {
        data["thread_id"] = json!(thread);
        lane = format!("{lane}#{}", escaped(thread));
    }
    Address { channel: channel.clone(), lane, data }
}

/// `#` separates a conversation from its thread in a lane.
fn escaped(id: &str) -> String {
    id.replace('%', "%25").replace('#', "%23")
}

/// One JSON object, not too deep.
fn parse(raw: &[u8]) -> Result<Value, Refusal> {
    if too_deep(raw) {
        return Err(Refusal::BadJson(format!("the body is nested deeper than {DEPTH} levels")));
    }
    let body: Value =
        serde_json::from_slice(raw).map_err(|error| Refusal::BadJson(format!("the body is no JSON: {error}")))?;
    if body.is_object() { Ok(body) } else { Err(Refusal::BadJson("the body must be one JSON object".to_owned())) }
}

/// Counts brackets outside strings, so that depth is known before anything recurses.
fn too_deep(raw: &[u8]) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in raw {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' | b'[' if !in_string => {
                depth += 1;
                if depth > DEPTH {
                    return true;
                }
            }
            b'}' | b']' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// The one id of the body and the headers, which must agree; `foreign` bodies may do without.
fn message_id(
    in_body: Option<String>,
    headers: &HeaderMap,
    foreign: Option<(&[u8], Option<i64>, i64)>,
) -> Result<String, Refusal> {
    let mut id = in_body;
    for name in ["webhook-id", "idempotency-key"] {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { continue };
        let value = value.to_str().map_err(|_| invalid("", &format!("the header {name} must be plain ASCII")))?;
        check_id(value, ID_CHARS).map_err(|problem| invalid("", &format!("the header {name} {problem}")))?;
        if values.next().is_some() || id.as_deref().is_some_and(|id| id != value) {
            return Err(invalid("/id", &format!("and the header {name} must be the same id, given once")));
        }
        id = Some(value.to_owned());
    }
    match (id, foreign) {
        (Some(id), _) => Ok(id),
        (None, Some((raw, at, now_ms))) => Ok(format!("sha256:{}:{}", sha256_hex(raw), at.unwrap_or(now_ms))),
        (None, None) => Err(invalid("/id", "is missing: each message needs an id of its own")),
    }
}

fn check_id(id: &str, max: usize) -> Result<(), String> {
    if id.is_empty() || id.trim() != id || id.chars().any(char::is_control) {
        Err("must be a text without control characters and without space around it".to_owned())
    } else if id.chars().count() > max {
        Err(format!("must have at most {max} characters"))
    } else {
        Ok(())
    }
}

fn invalid(pointer: &str, problem: &str) -> Refusal {
    Refusal::Invalid { pointer: pointer.to_owned(), problem: problem.to_owned() }
}

fn missing(pointer: &Option<String>) -> Refusal {
    invalid(pointer.as_deref().unwrap_or(""), "is missing")
}

/// Reads fields by pointer. `null` and absent are the same.
struct Reader<'a> {
    body: &'a Value,
    /// Whole numbers are ids too.
    foreign: bool,
}

impl<'a> Reader<'a> {
    /// The value at a pointer. An error if something on the way is neither object nor list.
    fn find<'p>(&self, pointer: &'p str) -> Result<Option<(&'p str, &'a Value)>, Refusal> {
        let mut value = self.body;
        let mut passed = String::new();
        for token in pointer.split('/').skip(1) {
            let key = token.replace("~1", "/").replace("~0", "~");
            let next = match value {
                Value::Object(fields) => fields.get(&key),
                Value::Array(items) => key.parse::<usize>().ok().and_then(|n| items.get(n)),
                _ => return Err(invalid(&passed, "must be an object")),
            };
            match next {
                None | Some(Value::Null) => return Ok(None),
                Some(next) => value = next,
            }
            passed = format!("{passed}/{token}");
        }
        Ok(Some((pointer, value)))
    }

    fn at<'p>(&self, pointer: &'p Option<String>) -> Result<Option<(&'p str, &'a Value)>, Refusal> {
        pointer.as_deref().map_or(Ok(None), |pointer| self.find(pointer))
    }

    fn id(&self, pointer: &Option<String>, max: usize) -> Result<Option<String>, Refusal> {
        let Some((pointer, value)) = self.at(pointer)? else { return Ok(None) };
        let id = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) if self.foreign && (number.is_i64() || number.is_u64()) => number.to_string(),
            _ => return Err(invalid(pointer, "must be a text")),
        };
        check_id(&id, max).map_err(|problem| invalid(pointer, &problem))?;
        Ok(Some(id))
    }

    fn text(&self, pointer: &Option<String>) -> Result<Option<String>, Refusal> {
        let Some((pointer, value)) = self.at(pointer)? else { return Ok(None) };
        // NUL is no text, and no database of ours takes it.
        let text = value.as_str().ok_or_else(|| invalid(pointer, "must be a text"))?;
        Ok(Some(text.replace('\0', "\u{fffd}")))
    }

    fn name(&self, pointer: &Option<String>) -> Result<Option<String>, Refusal> {
        let name = self.text(pointer)?.map(|name| name.chars().take(NAME_CHARS).collect::<String>());
        Ok(name.filter(|name| !name.trim().is_empty()))
    }

    fn flag(&self, pointer: &Option<String>) -> Result<Option<bool>, Refusal> {
        let Some((pointer, value)) = self.at(pointer)? else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| invalid(pointer, "must be true or false"))
    }

    fn time(&self, pointer: &Option<String>) -> Result<Option<i64>, Refusal> {
        let Some((pointer, value)) = self.at(pointer)? else { return Ok(None) };
        let time = value.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
        let time = time.ok_or_else(|| invalid(pointer, "must be a time such as \"2026-11-30T12:00:00Z\""))?;
        Ok(Some(time.as_millisecond()))
    }

    fn conversation_kind(&self, pointer: &Option<String>) -> Result<ConversationKind, Refusal> {
        let Some((pointer, value)) = self.at(pointer)? else { return Ok(ConversationKind::Direct) };
        match value {
            Value::String(kind) if kind == "direct" => Ok(ConversationKind::Direct),
            Value::String(kind) if kind == "group" => Ok(ConversationKind::Group),
            Value::String(kind) if self.foreign && kind == "private" => Ok(ConversationKind::Direct),
            Value::Bool(group) if self.foreign => {
                Ok(if *group { ConversationKind::Group } else { ConversationKind::Direct })
            }
            _ => Err(invalid(pointer, "must be \"direct\" or \"group\"")),
        }
    }

    fn reply_to(&self, map: &Map) -> Result<Option<ReplyTo>, Refusal> {
        let reply_to = ReplyTo {
            id: self.id(&map.reply_to_id, 2 * ID_CHARS)?,
            text: self.text(&map.reply_to_text)?,
            sender_id: self.id(&map.reply_to_sender_id, 2 * ID_CHARS)?,
            ours: false,
        };
        let empty = reply_to == ReplyTo { id: None, text: None, sender_id: None, ours: false };
        Ok((!empty).then_some(reply_to))
    }

    fn attachments(&self, pointer: &Option<String>) -> Result<(Vec<Attachment>, Vec<File>), Refusal> {
        let (mut attachments, mut files) = (Vec::new(), Vec::new());
        let Some((pointer, value)) = self.at(pointer)? else { return Ok((attachments, files)) };
        let items = value.as_array().ok_or_else(|| invalid(pointer, "must be a list"))?;
        if items.len() > ATTACHMENTS {
            return Err(invalid(pointer, &format!("must have at most {ATTACHMENTS} entries")));
        }
        for (n, item) in items.iter().enumerate() {
            let here = format!("{pointer}/{n}");
            if !item.is_object() {
                return Err(invalid(&here, "must be an object"));
            }
            let (attachment, bytes) = self.attachment(&here)?;
            attachments.push(attachment);
            files.extend(bytes.map(|bytes| (n, bytes)));
        }
        Ok((attachments, files))
    }

    fn attachment(&self, here: &str) -> Result<(Attachment, Option<Bytes>), Refusal> {
        let at = |key: &str| Some(format!("{here}/{key}"));
        let kind = match self.text(&at("kind"))?.as_deref() {
            Some("image") => AttachmentKind::Image,
            Some("audio") => AttachmentKind::Audio,
            Some("video") => AttachmentKind::Video,
            Some("file") | None => AttachmentKind::File,
            Some(_) => {
                return Err(invalid(&format!("{here}/kind"), "must be \"image\", \"audio\", \"video\" or \"file\""));
            }
        };
        let (url, data, mime, name) =
            (self.text(&at("url"))?, self.text(&at("data"))?, self.name(&at("mime"))?, self.name(&at("name"))?);
        let size = match self.at(&at("size"))? {
            Some((_, value)) => {
                Some(value.as_u64().ok_or_else(|| invalid(&format!("{here}/size"), "must be a number of bytes"))?)
            }
            None => None,
        };
        let mut attachment = Attachment { kind, media: None, name, unavailable: None };
        match (data, url) {
            (Some(data), _) => {
                let bytes = STANDARD.decode(data.as_bytes());
                let bytes = bytes.map_err(|_| invalid(&format!("{here}/data"), "must be base64"))?;
                // The type is kept with the bytes when they are stored.
                attachment.media = mime.map(|mime| MediaRef {
                    source: MediaSource::Stored(String::new()),
                    mime: Some(mime),
                    size: None,
                });
                Ok((attachment, Some(Bytes::from(bytes))))
            }
            (None, Some(url)) => {
                if url::Url::parse(&url).is_ok_and(|url| matches!(url.scheme(), "http" | "https")) {
                    attachment.media = Some(MediaRef { source: MediaSource::Url(url), mime, size });
                } else {
                    attachment.unavailable = Some("the link is not an http or https one".to_owned());
                }
                Ok((attachment, None))
            }
            (None, None) => Err(invalid(here, "needs `url` or `data`")),
        }
    }
}
