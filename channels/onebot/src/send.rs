//! One part as one message of QQ, and what the answer means for delivery. A message is always a list of segments, so no
//! text can become a code. A send without an answer is never repeated here: QQ often delivers it all the same.

use std::{
    collections::HashMap,
    hash::{BuildHasher, Hasher, RandomState},
    sync::Mutex,
    time::Duration,
};

use base64::Engine as _;
use channel_api::{
    Address, AttachmentKind, Capabilities, ChannelContext, Format, Level, MediaSource, Part, QueueMode, Rate, Receipt,
    Reconciled, SendError, SendKey, TextUnit,
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::{
    OneBot, history, ids, inbound,
    links::{CALL, CallError, Failure},
    message,
    render::{Body, OutFile, TEXT_LIMIT},
    target::{Chat, Target, message_in},
};

/// The largest file that goes into a message as base64, in bytes. protocols.md §1.5: more makes NapCat fall over.
const INLINE: u64 = 10 * 1024 * 1024;
/// How long a message with a file may take.
const FILE_TIME: Duration = Duration::from_secs(45);
/// The pause between two messages of a chat. guarantees.md G13.
const PACE: Duration = Duration::from_millis(1_200);
/// What chance adds at most to that pause: QQ takes a steady beat for a machine.
const JITTER: Duration = Duration::from_millis(500);
/// Messages further apart than this need no jitter.
const BURST: Duration = Duration::from_secs(4);
/// The pauses between tries of one part; the last one repeats until the part expires.
const RETRY_PAUSES: [Duration; 6] = [
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(30),
    Duration::from_secs(60),
    Duration::from_secs(120),
];
/// How long after a send that was cut off its trace is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(3);
/// How long the look waits for a connection: delivery gives it a minute in all.
const CONNECTED: Duration = Duration::from_secs(35);
/// How far the clocks of both sides may differ, in seconds.
const CLOCKS: i64 = 10;
/// How many messages of the history are looked at.
const LOOKED_AT: usize = 20;

/// What QQ can do by way of OneBot.
pub fn capabilities() -> Capabilities {
    Capabilities {
        text_limit: TEXT_LIMIT,
        text_unit: TextUnit::Chars,
        format: Format::Plain,
        edits: false,
        typing: false,
        threads: true,
        buttons: false,
        queue: QueueMode::Collect,
        refuse_over_cap: false,
        account_in_key: true,
        // Each connection watches its own heartbeat; waiting for one is no sign of death.
        silence_limit: None,
        expires_after: Duration::from_secs(60 * 60),
        retry_pauses: &RETRY_PAUSES,
        per_lane: Some(Rate { burst: 1, every: PACE }),
        per_channel: Some(Rate { burst: 5, every: Duration::from_millis(250) }),
    }
}

/// When something was last sent in each lane.
#[derive(Default)]
pub struct Paces(Mutex<HashMap<String, Duration>>);

impl Paces {
    /// The extra pause before a message of this lane.
    fn jitter(&self, lane: &str, now: Duration) -> Duration {
        let mut last = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        last.retain(|_, at| now.saturating_sub(*at) < BURST);
        match last.insert(lane.to_owned(), now) {
            Some(_) => JITTER.mul_f64(chance()),
            None => Duration::ZERO,
        }
    }
}

/// A number from 0 to 1.
pub fn chance() -> f64 {
    let draw = RandomState::new().build_hasher().finish();
    (draw >> 11) as f64 / (1_u64 << 53) as f64
}

/// Sends one part: see [`channel_api::Channel::send`].
///
/// # Errors
/// [`SendError`], named by what delivery does next.
pub async fn send(
    onebot: &OneBot,
    ctx: &ChannelContext,
    to: &Address,
    part: &Part,
    key: &SendKey,
) -> Result<Receipt, SendError> {
    let Some(target) = Target::of(to) else {
        return Err(SendError::Refused("the address is none of OneBot's".to_owned()));
    };
    let jitter = onebot.paces.jitter(&to.lane, ctx.clock.monotonic());
    if !jitter.is_zero() {
        ctx.clock.sleep(jitter).await;
    }
    let text = if key.resend { format!("{}\n{}", resend_note(&part.text), part.text) } else { part.text.clone() };
    let words = json!({ "type": "text", "data": { "text": text } });
    let sent = match Body::deserialize(&part.body) {
        Ok(Body::Forward(nodes)) => forward(onebot, &target, nodes, key).await,
        Ok(Body::File(file)) => file_or_line(onebot, ctx, &target, &file, words).await,
        Ok(Body::Text { quote }) => {
            let quote = quote.as_deref().and_then(message_in).map(str::to_owned);
            let reply = quote.or_else(|| target.reply.clone()).filter(|_| key.seq == 1);
            message(onebot, &target, with_reply(reply, words), CALL).await
        }
        Err(_) => message(onebot, &target, vec![words], CALL).await,
    };
    let data = sent.map_err(|error| meaning(&error))?;
    let id = data.get("message_id").and_then(ids::message).filter(|id| id != "0");
    if let Some(id) = &id {
        onebot.recent.sent(&target.chat, id);
    }
    Ok(Receipt { platform_id: id.map(|id| format!("{}:{id}", target.chat.name())) })
}

fn with_reply(reply: Option<String>, words: Value) -> Vec<Value> {
    let reply = reply.map(|id| json!({ "type": "reply", "data": { "id": id } }));
    reply.into_iter().chain([words]).collect()
}

/// A message of these segments.
pub async fn message(
    onebot: &OneBot,
    target: &Target,
    segments: Vec<Value>,
    limit: Duration,
) -> Result<Value, CallError> {
    let action = match &target.chat {
        Chat::Group(_) => "send_group_msg",
        Chat::Private(_) | Chat::Temporary(..) => "send_private_msg",
        Chat::Guild(..) => "send_guild_channel_msg",
    };
    let mut params = target.chat.parameters();
    params.insert("message".to_owned(), Value::Array(segments));
    onebot.links.call(&target.bot, action, Value::Object(params), limit).await
}

/// A merged forward: nodes, and nothing but nodes.
async fn forward(onebot: &OneBot, target: &Target, nodes: Vec<String>, key: &SendKey) -> Result<Value, CallError> {
    let action = match &target.chat {
        Chat::Group(_) => "send_group_forward_msg",
        Chat::Private(_) => "send_private_forward_msg",
        // Whoever is no friend gets none, and guilds have none.
        Chat::Temporary(..) | Chat::Guild(..) => return Err(no_forward()),
    };
    let bot = ids::parameter(&target.bot);
    let name = onebot.about(&target.bot).await.name.unwrap_or_else(|| "crawfish".to_owned());
    let note = (key.resend).then(|| resend_note(nodes.first().map_or("", String::as_str)).to_owned());
    let nodes = note.into_iter().chain(nodes).map(|text| {
        let content = json!([{ "type": "text", "data": { "text": text } }]);
        // `user_id` and `nickname` are NapCat's words, `uin` and `name` those of go-cqhttp.
        json!({ "type": "node", "data": {
            "user_id": bot, "nickname": name, "uin": bot, "name": name, "content": content,
        } })
    });
    let mut params = target.chat.parameters();
    params.insert("messages".to_owned(), nodes.collect());
    match onebot.links.call(&target.bot, action, Value::Object(params), CALL * 2).await {
        Err(CallError::Failed(failure)) if !failure.timed_out() && !failure.forbidden() => Err(no_forward()),
        answer => answer,
    }
}

/// A refusal that is cured by the plain form.
fn no_forward() -> CallError {
    CallError::Failed(Failure { retcode: NO_FORWARD, words: "no merged forward can be sent there".to_owned() })
}

/// Our own number for [`no_forward`]; no implementation has it.
const NO_FORWARD: i64 = -4_730;

/// A file as a message, or the line that stands for it where it is gone, too large, or refused.
async fn file_or_line(
    onebot: &OneBot,
    ctx: &ChannelContext,
    target: &Target,
    file: &OutFile,
    line: Value,
) -> Result<Value, CallError> {
    let link = match &file.media.source {
        MediaSource::Url(url) => Some(url.clone()),
        MediaSource::Stored(_) => None,
    };
    let media = match &link {
        Some(url) => ctx.media.fetch(url).await.ok(),
        None => Some(file.media.clone()),
    };
    let small = media.filter(|media| media.size.is_none_or(|size| size <= INLINE));
    let bytes = match &small {
        Some(media) => ctx.media.read(media).await.filter(|bytes| bytes.len() as u64 <= INLINE),
        None => None,
    };
    let sent = match bytes {
        Some(bytes) => {
            let inline = format!("base64://{}", base64::engine::general_purpose::STANDARD.encode(&bytes));
            as_file(onebot, target, file, &inline).await
        }
        None => None,
    };
    match sent {
        // A refusal showed nothing: the line is sent in the same breath.
        None => message(onebot, target, vec![line], CALL).await,
        Some(Err(CallError::Failed(failure))) if !failure.timed_out() && !failure.forbidden() => {
            message(onebot, target, vec![line], CALL).await
        }
        Some(answer) => answer,
    }
}

/// `None`: there is no way to send such a file there.
async fn as_file(onebot: &OneBot, target: &Target, file: &OutFile, place: &str) -> Option<Result<Value, CallError>> {
    let kind = match file.kind {
        AttachmentKind::Image => "image",
        AttachmentKind::Audio => "record",
        AttachmentKind::Video => "video",
        AttachmentKind::File => {
            let action = match &target.chat {
                Chat::Group(_) => "upload_group_file",
                Chat::Private(_) => "upload_private_file",
                Chat::Temporary(..) | Chat::Guild(..) => return None,
            };
            let mut params = target.chat.parameters();
            params.insert("file".to_owned(), Value::from(place));
            params.insert("name".to_owned(), Value::from(file.name.as_str()));
            return Some(onebot.links.call(&target.bot, action, Value::Object(params), FILE_TIME).await);
        }
    };
    let segment = json!({ "type": kind, "data": { "file": place, "name": file.name } });
    Some(message(onebot, target, vec![segment], FILE_TIME).await)
}

/// What a failed call means for delivery.
fn meaning(error: &CallError) -> SendError {
    let failure = match error {
        CallError::NotSent(why) => return SendError::Retry(why.clone()),
        CallError::Unknown(why) => return SendError::Unknown(why.clone()),
        CallError::Failed(failure) => failure,
    };
    let words = failure.words.to_ascii_lowercase();
    let says = |known: &[&str]| known.iter().any(|known| words.contains(known));
    if failure.retcode == NO_FORWARD {
        return SendError::Rerender(Level::Plain);
    }
    if failure.timed_out() {
        return SendError::Unknown(failure.to_string());
    }
    if failure.forbidden() {
        return SendError::ChannelDown(format!("the OneBot side refuses the access_token: {failure}"));
    }
    if says(&["频繁", "too fast", "rate limit", "too many requests", "稍后"]) {
        return SendError::RetryAfter(Duration::from_secs(30));
    }
    if says(&["network", "网络", "offline", "离线", "未登录", "not logged in"]) {
        return SendError::Retry(failure.to_string());
    }
    SendError::Refused(failure.to_string())
}

/// What became of a send that was cut off: its words, or its kind of content, are looked for among the bot's own last
/// messages, twice.
pub async fn reconcile(onebot: &OneBot, ctx: &ChannelContext, to: &Address, part: &Part, since: i64) -> Reconciled {
    let Some(target) = Target::of(to).filter(|target| !matches!(target.chat, Chat::Guild(..))) else {
        return Reconciled::CannotTell;
    };
    // After a restart the question comes before the OneBot side is connected again.
    onebot.links.until_called(&target.bot, CONNECTED).await;
    let body = Body::deserialize(&part.body).ok();
    let since = since / 1_000 - CLOCKS;
    let mut covered = false;
    for round in 0..2 {
        if round > 0 {
            ctx.clock.sleep(LOOK_AGAIN).await;
        }
        let Ok(history) = history::ask(onebot, &target.bot, &target.chat, LOOKED_AT, CALL).await else {
            return Reconciled::CannotTell;
        };
        // A history that begins after the send may have lost it.
        covered = history.iter().any(|message| inbound::time(message) <= since) || history.len() < LOOKED_AT;
        covered &= !history.is_empty();
        let id_of = |message: &Value| message.get("message_id").and_then(ids::message).filter(|id| id != "0");
        let found = history.iter().rev().find(|message| {
            // One whose receipt we have is another part with the same words.
            let receipted = id_of(message).is_some_and(|id| onebot.recent.is_ours(&target.chat, &id));
            !receipted && is_it(message, &target, part, body.as_ref(), since)
        });
        if let Some(found) = found {
            let id = id_of(found).map(|id| format!("{}:{id}", target.chat.name()));
            return Reconciled::Found(Receipt { platform_id: id });
        }
    }
    if covered { Reconciled::Absent } else { Reconciled::CannotTell }
}

fn is_it(message: &Value, target: &Target, part: &Part, body: Option<&Body>, since: i64) -> bool {
    let sender = ids::number_at(message, "user_id")
        .or_else(|| ids::number_at(message.get("sender").unwrap_or(&Value::Null), "user_id"));
    if sender.as_deref() != Some(target.bot.as_str()) || inbound::time(message) < since {
        return false;
    }
    let segments = message.get("message").and_then(message::read).unwrap_or_default();
    let has = |kind: &str| segments.iter().any(|segment| segment.kind == kind);
    let squeezed = |text: &str| text.split_whitespace().collect::<String>();
    let says = |text: &str| !text.trim().is_empty() && squeezed(&inbound::words(message)).ends_with(&squeezed(text));
    match body {
        Some(Body::Forward(_)) => has("forward"),
        Some(Body::File(file)) => match file.kind {
            AttachmentKind::Image => has("image") || says(&part.text),
            AttachmentKind::Audio => has("record") || says(&part.text),
            AttachmentKind::Video => has("video") || says(&part.text),
            AttachmentKind::File => has("file") || says(&part.text),
        },
        _ => says(&part.text),
    }
}

/// The first line of a message that may have arrived before.
fn resend_note(text: &str) -> &'static str {
    match inbound::language(text) {
        Some(true) => "↻（这条消息可能已经发过一次）",
        _ => "↻ (this message may have arrived once before)",
    }
}
