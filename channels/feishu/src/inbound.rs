//! One event as an [`Inbound`]. Pure, never fails: what it does not know costs that piece, never the message. What must be
//! asked of the platform (files, the message that is answered, forwarded messages) is named, not fetched.

use std::time::Duration;

use channel_api::{ChannelId, Conversation, ConversationKind, Inbound, InboundKind, Sender, Trust};
use serde_json::Value;

use crate::{
    content::{ALL, Content, File, Piece, start},
    target::Target,
};

/// How long the words to a picture, or the rest of several, may take.
const NEXT_PICTURE: Duration = Duration::from_millis(1_200);
/// How long the remark on forwarded messages may take.
const NEXT_FORWARD: Duration = Duration::from_millis(800);
/// The longest id that is taken, in bytes.
const ID_BYTES: usize = 128;
/// The longest text of a button, in characters.
const BUTTON_CHARS: usize = 256;

/// What is known of ourselves.
#[derive(Clone, Copy, Debug)]
pub struct Us<'a> {
    /// The channel.
    pub channel: &'a ChannelId,
    /// The bot's own id: `ou_…`. While it is not known nobody has named the bot.
    pub bot: Option<&'a str>,
    /// Whether `@all` addresses the bot.
    pub at_all: bool,
}

/// What an event says.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// A message.
    Message(Box<Message>),
    /// A message was taken back: its id, and when, in epoch milliseconds.
    Recalled(String, Option<i64>),
    /// A button was pressed.
    Pressed(Box<Inbound>),
    /// Nothing to the bot.
    Nothing,
}

/// A message, and what belongs to it and must be asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// What is known from the event alone.
    pub inbound: Inbound,
    /// Its files.
    pub files: Vec<File>,
    /// The message that it answers.
    pub parent: Option<String>,
    /// It is a bundle of forwarded messages.
    pub forwarded: bool,
}

/// Reads an event (schema 2.0, or a card's callback).
pub fn read(us: Us<'_>, event: &Value) -> Event {
    let header = event.get("header");
    let kind = header.and_then(|header| word(header, "event_type")).unwrap_or_default();
    let Some(body) = event.get("event") else { return Event::Nothing };
    let read = match kind {
        "im.message.receive_v1" => message(us, body).map(|message| Event::Message(Box::new(message))),
        "im.message.recalled_v1" => id(body, "message_id").map(|id| Event::Recalled(id, number(body, "recall_time"))),
        "card.action.trigger" => {
            header.and_then(|header| pressed(us, header, body)).map(|inbound| Event::Pressed(Box::new(inbound)))
        }
        _ => None,
    };
    read.unwrap_or(Event::Nothing)
}

fn message(us: Us<'_>, event: &Value) -> Option<Message> {
    let (sender, message) = (event.get("sender")?, event.get("message")?);
    // Bots, ourselves among them.
    if word(sender, "sender_type").is_some_and(|kind| kind != "user") {
        return None;
    }
    let open_id = sender.get("sender_id").and_then(|ids| id(ids, "open_id"))?;
    if us.bot == Some(open_id.as_str()) {
        return None;
    }
    let (message_id, chat) = (id(message, "message_id")?, id(message, "chat_id")?);
    let chat_type = word(message, "chat_type").unwrap_or_default();
    let direct = chat_type == "p2p";
    let content =
        Content::read(word(message, "message_type").unwrap_or("text"), word(message, "content").unwrap_or_default());
    let named = Named::read(message.get("mentions"));
    let text = words(&content, &named, us);
    if text.trim().is_empty() && content.files.is_empty() && !content.forwarded {
        return None;
    }
    let thread = id(message, "thread_id");
    let (root, parent) = (id(message, "root_id"), id(message, "parent_id"));
    // In a thread every message "answers" the one that opened it; that is no answer.
    let parent = parent.filter(|parent| thread.is_none() || root.as_ref() != Some(parent));
    let to_all = us.at_all && (content.names(ALL) || named.all());
    let mentions_us = direct || to_all || us.bot.is_some_and(|bot| named.someone_is(bot) || content.names(bot));
    let target = Target {
        chat: chat.clone(),
        direct,
        thread: thread.clone(),
        opens_thread: false,
        topics: chat_type == "topic_group",
        reply: Some(message_id.clone()),
    };
    let more_expected = match content.forwarded {
        true => Some(NEXT_FORWARD),
        false => (text.trim().is_empty()).then_some(NEXT_PICTURE),
    };
    let inbound = Inbound {
        channel: us.channel.clone(),
        platform_id: message_id,
        fingerprint: None,
        kind: InboundKind::Message,
        about: None,
        conversation: Conversation {
            kind: if direct { ConversationKind::Direct } else { ConversationKind::Group },
            id: if direct { open_id.clone() } else { chat },
            thread,
            title: None,
        },
        sender: Sender { id: open_id, name: None, is_bot: false },
        text,
        attachments: Vec::new(),
        mentions_us,
        reply_to: None,
        at: number(message, "create_time"),
        address: target.address(us.channel),
        trust: if content.forwarded { Trust::Relayed } else { Trust::Own },
        more_expected,
        queue: None,
        hold: false,
    };
    Some(Message { inbound, files: content.files, parent, forwarded: content.forwarded })
}

/// A press: the button's value holds what it says and where it was shown (`send.rs` puts it there).
fn pressed(us: Us<'_>, header: &Value, event: &Value) -> Option<Inbound> {
    let event_id = id(header, "event_id")?;
    let open_id = event.get("operator").and_then(|operator| id(operator, "open_id"))?;
    let value = event.get("action")?.get("value")?;
    let text = word(value, "say").filter(|text| !text.trim().is_empty()).map(|text| start(text, BUTTON_CHARS))?;
    let place = event.get("context");
    let told = |key: &str| place.and_then(|place| id(place, key)).or_else(|| id(event, key));
    let chat = told("open_chat_id").or_else(|| id(value, "chat"))?;
    let direct = value.get("direct").and_then(Value::as_bool)?;
    let thread = id(value, "thread");
    let card = told("open_message_id");
    let target = Target {
        chat: chat.clone(),
        direct,
        thread: thread.clone(),
        opens_thread: false,
        topics: value.get("topics").and_then(Value::as_bool).unwrap_or(false),
        reply: card.clone(),
    };
    Some(Inbound {
        channel: us.channel.clone(),
        platform_id: format!("card:{event_id}"),
        fingerprint: None,
        kind: InboundKind::Button,
        about: card,
        conversation: Conversation {
            kind: if direct { ConversationKind::Direct } else { ConversationKind::Group },
            id: if direct { open_id.clone() } else { chat },
            thread,
            title: None,
        },
        sender: Sender { id: open_id, name: None, is_bot: false },
        text,
        attachments: Vec::new(),
        mentions_us: true,
        reply_to: None,
        at: None,
        address: target.address(us.channel),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    })
}

/// Who is named in a message: key, id, name.
#[derive(Debug, Default)]
pub struct Named(Vec<(String, Option<String>, String)>);

impl Named {
    /// Reads `mentions`.
    pub fn read(mentions: Option<&Value>) -> Self {
        let all = mentions.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let one = |mention: &Value| {
            let key = word(mention, "key")?.to_owned();
            // Events have an object of ids, messages that are asked for a text.
            let who = mention.get("id").and_then(|ids| id(ids, "open_id")).or_else(|| id(mention, "id"));
            Some((key, who, start(word(mention, "name").unwrap_or_default(), 100)))
        };
        Self(all.iter().take(500).filter_map(one).collect())
    }

    fn someone_is(&self, who: &str) -> bool {
        self.0.iter().any(|(_, id, _)| id.as_deref() == Some(who))
    }

    fn all(&self) -> bool {
        self.0.iter().any(|(key, id, _)| key == ALL || id.as_deref() == Some("all"))
    }

    fn who(&self, key: &str) -> Option<(Option<&str>, &str)> {
        let (_, id, name) = self.0.iter().find(|(other, ..)| other == key)?;
        Some((id.as_deref(), name))
    }

    /// How somebody is called in a text.
    pub fn name(&self, key: &str) -> String {
        match self.who(key) {
            _ if key == ALL => "@all".to_owned(),
            Some((_, name)) if !name.is_empty() => format!("@{name}"),
            _ => {
                if key.starts_with('@') {
                    key.to_owned()
                } else {
                    format!("@{key}")
                }
            }
        }
    }
}

/// The words as people read them; our own name in front of them is left out.
fn words(content: &Content, named: &Named, us: Us<'_>) -> String {
    let is_us =
        |key: &str| us.bot.is_some_and(|bot| key == bot || named.who(key).is_some_and(|(id, _)| id == Some(bot)));
    let blank = |words: &str| words.trim().is_empty();
    let in_front = content
        .pieces
        .iter()
        .take_while(|piece| match piece {
            Piece::Words(words) => blank(words),
            Piece::At(key) => is_us(key),
        })
        .count();
    let rest = Content { pieces: content.pieces[in_front..].to_vec(), ..Content::default() };
    let text = rest.text(|key| named.name(key));
    if in_front > 0 { text.trim_start().to_owned() } else { text }
}

fn word<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// An id: a text, not empty, of a sensible length and without control characters.
fn id(value: &Value, key: &str) -> Option<String> {
    word(value, key)
        .filter(|id| !id.is_empty() && id.len() <= ID_BYTES && !id.chars().any(|c| c.is_control() || c.is_whitespace()))
        .map(str::to_owned)
}

/// A number that comes as one or as a text.
fn number(value: &Value, key: &str) -> Option<i64> {
    let value = value.get(key)?;
    value.as_i64().or_else(|| value.as_str()?.trim().parse().ok())
}

#[cfg(test)]
mod tests;
