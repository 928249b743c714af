//! One part as one message of Telegram, and what its answer means for delivery.
//!
//! A call that Telegram refused showed nothing, so what it found wrong (a deleted message to reply to, a closed topic, an
//! old id of a group) is left out and the message sent in the same breath.

use std::time::Duration;

use channel_api::{Address, Capabilities, Format, Level, Part, QueueMode, Rate, Receipt, SendError, SendKey, TextUnit};
use serde::Deserialize;
use serde_json::Value;
use teloxide::{
    payloads::{SendChatAction, SendMessage},
    types::{ChatAction, ChatId, MessageId, ParseMode, Recipient, ReplyParameters},
};
use tracing::debug;

use crate::{
    api::{Api, ApiError},
    config::Limits,
    moves::Moves,
    render::{self, Body, TEXT_LIMIT},
    target::Target,
};

/// The most calls of one send. Each after the first leaves out one thing that was refused.
const MOST_CALLS: usize = 4;

/// How long the sign that an answer is being written is worth waiting for: it lives 5 s.
const TYPING_TIME: Duration = Duration::from_secs(5);

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
pub fn capabilities(limits: Limits) -> Capabilities {
    Capabilities {
        text_limit: TEXT_LIMIT,
        text_unit: TextUnit::Utf16,
        format: Format::Own,
        edits: false,
        typing: true,
        threads: true,
        buttons: false,
        queue: QueueMode::Collect,
        refuse_over_cap: false,
        account_in_key: false,
        silence_limit: None,
        expires_after: Duration::from_secs(60 * 60),
        retry_pauses: &RETRY_PAUSES,
        per_lane: rate(limits, Rate { burst: 3, every: Duration::from_secs(1) }),
        // 30 in any second.
        per_channel: rate(limits, Rate { burst: 5, every: Duration::from_millis(40) }),
    }
}

/// How fast one chat may get messages; `lane` is its id. A group gets 20 in any minute.
pub fn lane_rate(limits: Limits, lane: &str) -> Option<Rate> {
    match lane.starts_with('-') {
        true => rate(limits, Rate { burst: 3, every: Duration::from_millis(3_500) }),
        false => capabilities(limits).per_lane,
    }
}

fn rate(limits: Limits, rate: Rate) -> Option<Rate> {
    (limits == Limits::On).then_some(rate)
}

/// Sends one part: see [`channel_api::Channel::send`]. The receipt's id is `chat:message`, as inbound ids are.
///
/// # Errors
/// [`SendError`], named by what delivery does next.
pub async fn send(api: &Api, moves: &Moves, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
    let Some(target) = Target::of(to) else {
        return Err(SendError::Refused("the address is none of Telegram's".to_owned()));
    };
    let body = Body::deserialize(&part.body).unwrap_or_default();
    let rich = body.html.is_some();
    let mut chat = moves.now(target.chat).await;
    let mut message = SendMessage::new(Recipient::Id(ChatId(chat)), text(part, body.html, key.resend));
    message.parse_mode = rich.then_some(ParseMode::Html);
    message.message_thread_id = target.thread_to_send();
    // The ids of messages begin anew in a supergroup.
    if key.seq == 1 && chat == target.chat {
        let quoted = body.quote.as_deref().and_then(|quote| message_id(quote, chat));
        message.reply_parameters = quoted.or(target.reply).map(|id| {
            let mut reply = ReplyParameters::new(MessageId(id));
            reply.allow_sending_without_reply = Some(true);
            reply
        });
    }
    for _ in 0..MOST_CALLS {
        let error = match api.call::<_, Value>("sendMessage", &message).await {
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
                message.chat_id = Recipient::Id(ChatId(chat));
                message.reply_parameters = None;
            }
            ApiError::Refused { code, description } => match Refusal::of(code, &description) {
                Refusal::Format if rich => return Err(SendError::Rerender(Level::Plain)),
                Refusal::Reply if message.reply_parameters.is_some() => message.reply_parameters = None,
                Refusal::Topic if message.message_thread_id.is_some() => message.message_thread_id = None,
                Refusal::Down => return Err(SendError::ChannelDown(format!("{code}: {description}"))),
                Refusal::Final(reason) => return Err(SendError::Refused(reason.to_owned())),
                _ => return Err(SendError::Refused(format!("Telegram answered {code}: {description}"))),
            },
            ApiError::RetryAfter(pause) => return Err(SendError::RetryAfter(pause)),
            ApiError::Unknown(error) => return Err(SendError::Unknown(error)),
            ApiError::WrongToken(_) => return Err(SendError::ChannelDown(error.to_string())),
            ApiError::Retry(_) | ApiError::Conflict(_) | ApiError::Moved(_) => {
                return Err(SendError::Retry(error.to_string()));
            }
        }
    }
    Err(SendError::Refused("Telegram refused every form of the message".to_owned()))
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

/// What is sent: HTML or plain text, marked where it may stand there already.
fn text(part: &Part, html: Option<String>, resend: bool) -> String {
    let text = html.unwrap_or_else(|| part.text.clone());
    if !resend {
        return text;
    }
    let note = render::resend_note(&part.text);
    let room = TEXT_LIMIT.saturating_sub(TextUnit::Utf16.len(&part.text));
    match room {
        room if room > TextUnit::Utf16.len(note) => format!("{note}\n{text}"),
        room if room >= 2 => format!("↻ {text}"),
        _ => text,
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
