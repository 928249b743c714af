//! One part as one message of Discord, and what its answer means for delivery.
//!
//! A call that Discord refused showed nothing, so what it found wrong (a preview that is gone, a command that waited too
//! long, a file that is too large) is left out and the message sent in the same breath.

use std::time::Duration;

use channel_api::{
    Address, Attachment, Capabilities, ChannelContext, Format, MediaSource, Part, QueueMode, Rate, Receipt, Reconciled,
    SendError, SendKey, TextUnit,
};
use reqwest::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use serenity::model::channel::MessageFlags;
use tracing::{debug, info};

use crate::{
    api::{Api, ApiError, File},
    render::{self, Body, TEXT_LIMIT},
    target::{Target, id, id_at, is_id, order},
};

/// The largest file that a bot may send anywhere, in bytes.
pub const FILE_LIMIT: usize = 10 * 1024 * 1024;
/// How long the sign that an answer is being written is worth waiting for: it lives 10 s.
const TYPING_TIME: Duration = Duration::from_secs(5);
/// How long Discord surely remembers a nonce: "the past few minutes".
const NONCE_MS: i64 = 2 * 60 * 1_000;
/// How many of the newest messages are searched for a lost one.
const SEARCHED: usize = 50;
/// How far the clocks may differ.
const SKEW_MS: i64 = 5_000;
/// The silence after which the connection is taken for dead: a heartbeat is answered every 41 s.
const SILENCE: Duration = Duration::from_secs(150);

/// The pauses between tries of one part; the last one repeats until the part expires.
const RETRY_PAUSES: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// What Discord can do.
pub fn capabilities() -> Capabilities {
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
        silence_limit: Some(SILENCE),
        expires_after: Duration::from_secs(60 * 60),
        retry_pauses: &RETRY_PAUSES,
        // Five messages in five seconds in one channel, fifty calls in any second.
        per_lane: Some(Rate { burst: 4, every: Duration::from_millis(1_200) }),
        per_channel: Some(Rate { burst: 20, every: Duration::from_millis(25) }),
    }
}

/// Nobody is notified by what a model wrote, on any path: not `@everyone`, no role, no person, not who is replied to.
pub fn no_mentions() -> Value {
    json!({"parse": [], "replied_user": false})
}

/// Sends one part: see [`channel_api::Channel::send`].
///
/// # Errors
/// [`SendError`], named by what delivery does next.
pub async fn send(
    api: &Api,
    ctx: &ChannelContext,
    to: &Address,
    part: &Part,
    key: &SendKey,
) -> Result<Receipt, SendError> {
    let Some(target) = Target::of(to) else {
        return Err(SendError::Refused("the address is none of Discord's".to_owned()));
    };
    let body = Body::deserialize(&part.body).unwrap_or_default();
    let file = match &body.file {
        Some(attachment) => load(ctx, attachment).await,
        None => None,
    };
    let message = Message { api, ctx, target: &target, key, text: text(part, key.resend), components: body.components };
    let quote = body.quote.filter(|quote| is_id(quote));
    let sent = match file {
        Some(file) => match message.send(quote.as_deref(), Some(file)).await {
            // The file is named instead.
            Err(ApiError::Refused { status, code, .. }) if is_about_the_file(status, code) => {
                message.send(quote.as_deref(), None).await
            }
            sent => sent,
        },
        None => message.send(quote.as_deref(), None).await,
    };
    match sent {
        Ok(sent) => Ok(Receipt { platform_id: id(&sent, "id") }),
        Err(error) => Err(meaning(error)),
    }
}

struct Message<'a> {
    api: &'a Api,
    ctx: &'a ChannelContext,
    target: &'a Target,
    key: &'a SendKey,
    text: String,
    components: Vec<Value>,
}

impl Message<'_> {
    async fn send(&self, quote: Option<&str>, file: Option<File>) -> Result<Value, ApiError> {
        let channel = &self.target.channel;
        if let Some(command) = self.target.command.as_ref().filter(|c| c.waits(self.ctx.clock.now_ms())) {
            let base = format!("/webhooks/{}/{}", command.app, command.token);
            let hidden = if command.hidden { MessageFlags::EPHEMERAL } else { MessageFlags::empty() };
            let payload = self.payload(hidden, file.as_ref());
            let answered = match self.key.seq {
                // An edit: to repeat it changes nothing.
                1 => self.call(Method::PATCH, &format!("{base}/messages/@original"), payload, &file).await,
                _ => self.call(Method::POST, &format!("{base}?wait=true"), payload, &file).await,
            };
            if !is_gone(&answered) {
                return answered;
            }
        }
        let mut refused = None;
        if let Some(preview) = self.key.replaces.as_deref().filter(|preview| is_id(preview)) {
            let payload = self.payload(MessageFlags::empty(), file.as_ref());
            let edited =
                self.call(Method::PATCH, &format!("/channels/{channel}/messages/{preview}"), payload, &file).await;
            match edited {
                edited if is_gone(&edited) => {}
                // Nothing was changed, and the same words may pass as a message of their own: never a lost answer.
                Err(ApiError::Refused { status, code, words }) if !later_or_elsewhere(status, code, file.is_some()) => {
                    info!(status, code, words, "a preview cannot be changed; the answer comes as a new message");
                    refused = Some(preview);
                }
                edited => return edited,
            }
        }
        let mut payload = self.payload(MessageFlags::empty(), file.as_ref());
        payload["nonce"] = nonce(self.key.part.as_str()).into();
        payload["enforce_nonce"] = true.into();
        let replied = quote.or(self.target.reply.as_deref()).filter(|_| self.key.seq == 1);
        if let Some(message) = replied {
            payload["message_reference"] =
                json!({"message_id": message, "channel_id": channel, "fail_if_not_exists": false});
        }
        let sent = self.call(Method::POST, &format!("/channels/{channel}/messages"), payload, &file).await;
        if let (Ok(_), Some(preview)) = (&sent, refused) {
            // It must not stand there beside the answer.
            let path = format!("/channels/{channel}/messages/{preview}");
            if let Err(error) = self.api.call(Method::DELETE, &path, None).await {
                debug!(%error, "a preview stays");
            }
        }
        sent
    }

    fn payload(&self, flags: MessageFlags, file: Option<&File>) -> Value {
        let mut payload = json!({
            "content": self.text,
            "allowed_mentions": no_mentions(),
            "flags": (flags | MessageFlags::SUPPRESS_EMBEDS).bits(),
            "components": self.components,
        });
        if let Some(file) = file {
            payload["content"] = "".into();
            payload["attachments"] = json!([{"id": 0, "filename": file.name}]);
        }
        payload
    }

    async fn call(&self, method: Method, path: &str, payload: Value, file: &Option<File>) -> Result<Value, ApiError> {
        match file {
            Some(file) => {
                let file = File { name: file.name.clone(), mime: file.mime.clone(), bytes: file.bytes.clone() };
                self.api.call_with_file(method, path, &payload, file).await
            }
            None => self.api.call(method, path, Some(&payload)).await,
        }
    }
}

/// The message that was to be changed, or the command that was to be answered, is no more: nothing was shown.
fn is_gone(answer: &Result<Value, ApiError>) -> bool {
    matches!(answer, Err(ApiError::Refused { status: 404, code, .. }) if *code != 10003)
        || matches!(answer, Err(ApiError::Refused { code: 50027, .. }))
}

/// Whether a refused edit is cured by waiting, by leaving out the file, or not at all.
fn later_or_elsewhere(status: u16, code: u64, with_file: bool) -> bool {
    matches!(code, 30046 | 10003) || (with_file && is_about_the_file(status, code))
}

/// Too large here, or files are not allowed.
fn is_about_the_file(status: u16, code: u64) -> bool {
    status == 413 || matches!(code, 40005 | 50013)
}

/// What a failed call means for delivery.
pub fn meaning(error: ApiError) -> SendError {
    match error {
        ApiError::Retry(why) => SendError::Retry(why),
        ApiError::Unknown(why) => SendError::Unknown(why),
        ApiError::RetryAfter(pause) => SendError::RetryAfter(pause),
        ApiError::WrongToken => SendError::ChannelDown(error.to_string()),
        // Messages older than an hour may be edited a few times only, and slowly.
        ApiError::Refused { code: 30046, .. } => SendError::RetryAfter(Duration::from_secs(60)),
        ApiError::Refused { status, code, words } => SendError::Refused(match code {
            10003 => "Discord knows no such channel".to_owned(),
            50001 => "the bot may not see this channel".to_owned(),
            50013 => {
                "the bot may not write in this channel: it needs Send Messages (in threads: Send Messages in Threads)"
                    .to_owned()
            }
            50007 | 50278 => "the person takes no direct messages from the bot".to_owned(),
            50083 => "the thread is archived or locked".to_owned(),
            50006 => "there is nothing to show in it".to_owned(),
            160002 => "the bot may not reply here: it needs Read Message History".to_owned(),
            _ => format!("Discord answered {status} ({code}): {words}"),
        }),
    }
}

/// What is sent: marked where it may stand there already.
fn text(part: &Part, resend: bool) -> String {
    if !resend {
        return part.text.clone();
    }
    let note = render::resend_note(&part.text);
    let room = TEXT_LIMIT.saturating_sub(TextUnit::Utf16.len(&part.text));
    match room {
        room if room > TextUnit::Utf16.len(note) => format!("{note}\n{}", part.text),
        room if room >= 2 && !part.text.starts_with("```") => format!("↻ {}", part.text),
        _ => part.text.clone(),
    }
}

/// The bytes of a file to send; `None` when they are gone, or too many.
async fn load(ctx: &ChannelContext, attachment: &Attachment) -> Option<File> {
    let media = attachment.media.as_ref()?;
    if media.size.is_some_and(|size| size > FILE_LIMIT as u64) {
        return None;
    }
    let stored = match &media.source {
        MediaSource::Stored(_) => media.clone(),
        MediaSource::Url(url) => match ctx.media.fetch(url).await {
            Ok(stored) => stored,
            Err(error) => {
                debug!(%error, "a file to send was not fetched: it is sent as its link");
                return None;
            }
        },
    };
    let bytes = ctx.media.read(&stored).await.filter(|bytes| bytes.len() <= FILE_LIMIT)?;
    let mime = stored.mime.or_else(|| media.mime.clone());
    Some(File { name: render::file_name(attachment), mime, bytes })
}

/// A part's id in at most 25 characters, the same for the same part: 128 bits (FNV-1a) in base 36.
pub fn nonce(part: &str) -> String {
    let mut hash: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    for byte in part.bytes() {
        hash = (hash ^ u128::from(byte)).wrapping_mul(0x0000_0000_0100_0000_0000_0000_0000_013b);
    }
    let mut digits = [b'0'; 25];
    for digit in digits.iter_mut().rev() {
        let value = u8::try_from(hash % 36).unwrap_or(0);
        *digit = if value < 10 { b'0' + value } else { b'a' + value - 10 };
        hash /= 36;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

/// What became of a part whose send was cut off: see [`channel_api::Channel::reconcile`].
pub async fn reconcile(
    api: &Api,
    ctx: &ChannelContext,
    me: Option<&str>,
    to: &Address,
    part: &Part,
    key: &SendKey,
    since: i64,
) -> Reconciled {
    let Some(target) = Target::of(to) else { return Reconciled::CannotTell };
    let now = ctx.clock.now_ms();
    if let Some(command) = target.command.as_ref().filter(|command| command.waits(now)) {
        // The first is an edit; what follows has no key, and cannot be searched for where it is hidden.
        return match (key.seq, command.hidden) {
            (1, _) => Reconciled::SafeToRepeat,
            _ => Reconciled::CannotTell,
        };
    }
    if (0..NONCE_MS).contains(&now.saturating_sub(since)) {
        return Reconciled::SafeToRepeat;
    }
    // While it stays an edit may be made again, unless the edit was refused and the answer stands below it.
    let mut preview_stays = false;
    if let Some(preview) = key.replaces.as_deref().filter(|preview| is_id(preview)) {
        let path = format!("/channels/{}/messages/{preview}", target.channel);
        let found = api.call(Method::GET, &path, None).await;
        preview_stays = found.is_ok();
        let shows = found.as_ref().ok().and_then(|message| message.get("content")).and_then(Value::as_str);
        if shows.is_some_and(|shown| shown.trim() == text(part, key.resend).trim()) {
            return Reconciled::SafeToRepeat;
        }
        if !preview_stays && !is_gone(&found) {
            return Reconciled::CannotTell;
        }
    }
    let path = format!("/channels/{}/messages?limit={SEARCHED}", target.channel);
    let Ok(Value::Array(messages)) = api.call(Method::GET, &path, None).await else { return Reconciled::CannotTell };
    let earliest = id_at(since.saturating_sub(SKEW_MS));
    let ours = messages.iter().filter(|message| {
        let author = message.get("author").and_then(|author| id(author, "id"));
        author.is_some() && author.as_deref() == me && id(message, "id").is_some_and(|id| order(&id) >= earliest)
    });
    let wanted = nonce(key.part.as_str());
    let body = Body::deserialize(&part.body).unwrap_or_default();
    for message in ours {
        let content = message.get("content").and_then(Value::as_str).unwrap_or_default().trim();
        let same_text =
            body.file.is_none() && [text(part, false), text(part, true)].iter().any(|t| t.trim() == content);
        let same_file = body.file.as_ref().is_some_and(|file| {
            let name = render::file_name(file);
            let files = message.get("attachments").and_then(Value::as_array).into_iter().flatten();
            let mut names = files.filter_map(|file| file.get("filename").and_then(Value::as_str));
            // Discord writes spaces and other signs of a name as `_`.
            names.any(|found| plain(found) == plain(&name)) || content == part.text.trim()
        });
        let same_nonce = message.get("nonce").and_then(Value::as_str) == Some(wanted.as_str());
        if same_nonce || same_text || same_file {
            return Reconciled::Found(Receipt { platform_id: id(message, "id") });
        }
    }
    let reaches_back = messages.len() < SEARCHED
        || messages.iter().filter_map(|message| id(message, "id")).any(|message| order(&message) < earliest);
    match (reaches_back, preview_stays) {
        (true, true) => Reconciled::SafeToRepeat,
        (true, false) => Reconciled::Absent,
        (false, _) => Reconciled::CannotTell,
    }
}

fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect()
}

/// Shows that an answer is being written. Best effort.
pub async fn typing(api: &Api, to: &Address) {
    // A command shows that it is thought about already.
    let Some(target) = Target::of(to).filter(|target| target.command.is_none()) else { return };
    let path = format!("/channels/{}/typing", target.channel);
    if let Ok(Err(error)) = tokio::time::timeout(TYPING_TIME, api.call(Method::POST, &path, None)).await {
        debug!(%error, "Discord does not show that an answer is being written");
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_nonce_fits_and_is_the_parts_own() {
        let parts: Vec<String> = (0..5_000).map(|n| format!("pt_01JDVW0X3M7Q8R9S0T1V2W{n:04}")).collect();
        let nonces: HashSet<String> = parts.iter().map(|part| nonce(part)).collect();
        assert_eq!(nonces.len(), parts.len());
        assert!(nonces.iter().all(|nonce| nonce.len() == 25 && nonce.bytes().all(|b| b.is_ascii_alphanumeric())));
        assert_eq!(nonce(&parts[0]), nonce(&parts[0]), "the same on every try");
    }

    #[test]
    fn a_resend_is_marked_where_there_is_room() {
        let part = |text: String| Part { text, body: Value::Null };
        assert_eq!(text(&part("hello".into()), false), "hello");
        assert_eq!(text(&part("hello".into()), true), "↻ (this message may have arrived once before)\nhello");
        assert!(text(&part("你好，世界".into()), true).starts_with("↻（这条消息可能已经发过一次）"));
        assert_eq!(text(&part("x".repeat(1_998)), true), format!("↻ {}", "x".repeat(1_998)));
        assert_eq!(text(&part("x".repeat(2_000)), true).len(), 2_000);
    }
}
