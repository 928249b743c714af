//! One part as one visible message: its number first, then the file if it is one, then the call, and for each refusal the
//! one other form that may pass. protocols.md §3, §6 rules 3–9.

use std::time::Duration;

use base64::Engine as _;
use bytes::Bytes;
use channel_api::{
    Address, Attachment, AttachmentKind, Capabilities, ChannelContext, Format, MediaSource, Part, QueueMode, Rate,
    Receipt, Reconciled, SendError, SendKey, TextUnit,
};
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, info, warn};

use crate::{
    Bot,
    api::{ApiError, Payload, TIMEOUT, UPLOAD_TIMEOUT},
    config::{Markdown, Mode},
    render::{self, Body, TEXT_LIMIT},
    target::Target,
    window::{Closed, Desk},
};

/// The most calls for one part: one, and one for each other form.
const MOST_CALLS: usize = 6;
/// The largest file that is sent, in bytes.
const FILE_BYTES: usize = 20 * 1024 * 1024;
/// How long Markdown is not tried again after QQ refused it.
const MARKDOWN_REST_MS: i64 = 7 * 24 * 60 * 60 * 1_000;
/// Where it stands since when it is refused.
const MARKDOWN: &str = "markdown_refused";
/// The pause before a send without an answer is tried again under its number.
const LOOK_AGAIN: Duration = Duration::from_secs(2);

const RETRY_PAUSES: &[Duration] =
    &[Duration::from_secs(2), Duration::from_secs(5), Duration::from_secs(15), Duration::from_secs(30)];

/// What QQ can do.
pub fn capabilities(mode: Mode, markdown: Markdown) -> Capabilities {
    Capabilities {
        text_limit: TEXT_LIMIT,
        text_unit: TextUnit::Chars,
        format: if markdown == Markdown::Auto { Format::Markdown } else { Format::Plain },
        edits: false,
        typing: false,
        threads: false,
        buttons: markdown == Markdown::Auto,
        queue: QueueMode::Collect,
        refuse_over_cap: false,
        // An openid means nothing to another bot.
        account_in_key: true,
        silence_limit: (mode == Mode::Ws).then_some(Duration::from_secs(150)),
        // No window is longer.
        expires_after: Duration::from_secs(60 * 60),
        retry_pauses: RETRY_PAUSES,
        per_lane: Some(Rate { burst: 4, every: Duration::from_secs(1) }),
        per_channel: Some(Rate { burst: 20, every: Duration::from_millis(100) }),
    }
}

/// What a part is sent as.
enum Form {
    Text(String),
    Markdown(String),
    /// An uploaded file.
    File(String),
    /// A picture for a guild.
    Picture(Bytes),
}

/// Sends one part: see [`channel_api::Channel::send`].
///
/// # Errors
/// [`SendError`], named by what delivery does next.
pub async fn send(bot: &Bot, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
    let Some(target) = Target::of(to) else {
        return Err(SendError::Refused("the address is none of QQ's".to_owned()));
    };
    let Some(ctx) = bot.ctx.get() else { return Err(SendError::Retry("the channel is not open yet".to_owned())) };
    let body = Body::deserialize(&part.body).unwrap_or_default();
    let desk = Desk { kv: &ctx.kv, clock: &ctx.clock };
    let slot = bot.windows.slot(desk, &target, &key.part, body.weight).await;
    let mut slot = slot.map_err(|closed| match closed {
        Closed::Store(error) => SendError::Retry(error.to_string()),
        closed => {
            warn!(code = "qq_window", lane = to.lane, part = %key.part, "not sent: {closed}");
            SendError::Refused(closed.to_string())
        }
    })?;
    let target = slot.target.clone();
    channel_api::crash_point!("qq.numbered");
    let mut form = match &body.file {
        Some(file) => file_form(bot, ctx, &target, file, part, slot.again).await?,
        None => text_form(bot, ctx, &target, &body, part, key).await,
    };
    let (mut defused, mut moderated, mut collisions) = (false, false, 0);
    for _ in 0..MOST_CALLS {
        let sent = post(bot, &target, &form, &body, slot.seq).await;
        let (code, message) = match sent {
            Ok(_) if moderated => {
                return Err(SendError::Refused("QQ's content review held it back; the person was told".to_owned()));
            }
            Ok(answer) => {
                let id = answer.get("id").and_then(Value::as_str).map(str::to_owned);
                return Ok(Receipt { platform_id: id });
            }
            Err(ApiError::Refused { code, message }) => (code, message),
            Err(error) => return Err(failed(&target, error)),
        };
        debug!(code, %message, "QQ refused a form of a part");
        match Refusal::of(code, &message) {
            // People look at it first; then it appears.
            Refusal::Audited => return Ok(Receipt::default()),
            Refusal::Seen if slot.again => return Ok(Receipt::default()),
            // A number that QQ knows and we do not: the store is older than the conversation.
            Refusal::Seen if collisions < 3 => collisions += 1,
            Refusal::Markdown if matches!(form, Form::Markdown(_)) => {
                forbid_markdown(ctx).await;
                form = Form::Text(part.text.clone());
            }
            Refusal::Url if !defused => {
                defused = true;
                form = Form::Text(render::defused(&part.text));
            }
            Refusal::File if matches!(form, Form::File(_) | Form::Picture(_)) => form = Form::Text(part.text.clone()),
            Refusal::Moderated if !moderated => {
                moderated = true;
                form = Form::Text(render::moderated_note(&part.text).to_owned());
            }
            Refusal::Final(reason) => return Err(SendError::Refused(format!("{reason} ({code})"))),
            _ => return Err(SendError::Refused(format!("QQ answered {code}: {message}"))),
        }
        let renewed = bot.windows.renew(desk, &target, &key.part).await;
        slot = renewed.map_err(|error| SendError::Retry(error.to_string()))?;
    }
    Err(SendError::Refused("QQ refused every form of the message".to_owned()))
}

/// What became of a send that was cut off: under its number it may go again as long as the window is open.
pub async fn reconcile(bot: &Bot, to: &Address, key: &SendKey) -> Reconciled {
    let (Some(target), Some(ctx)) = (Target::of(to), bot.ctx.get()) else { return Reconciled::CannotTell };
    let desk = Desk { kv: &ctx.kv, clock: &ctx.clock };
    if !target.to.is_v2() || !bot.windows.has(desk, &target, &key.part).await {
        return Reconciled::CannotTell;
    }
    ctx.clock.sleep(LOOK_AGAIN).await;
    Reconciled::SafeToRepeat
}

async fn post(bot: &Bot, target: &Target, form: &Form, body: &Body, seq: u32) -> Result<Value, ApiError> {
    let path = target.messages();
    let answers = match (&target.msg_id, &target.event_id) {
        (Some(id), _) => Some(("msg_id", id)),
        (None, Some(id)) => Some(("event_id", id)),
        (None, None) => None,
    };
    let mut payload = match form {
        Form::Picture(bytes) => {
            let fields: Vec<(&'static str, String)> = answers.map(|(key, id)| (key, id.clone())).into_iter().collect();
            let picture = Payload::Picture { fields: &fields, bytes: bytes.clone() };
            return bot.api.call(Method::POST, &path, picture, UPLOAD_TIMEOUT).await;
        }
        Form::Text(text) if target.to.is_v2() => json!({ "msg_type": 0, "content": text }),
        Form::Text(text) => json!({ "content": text }),
        Form::Markdown(markdown) => {
            let mut payload = json!({ "msg_type": 2, "markdown": { "content": markdown } });
            if !body.buttons.is_empty() {
                payload["keyboard"] = keyboard(body);
            }
            payload
        }
        // Refused without any content.
        Form::File(info) => json!({ "msg_type": 7, "content": " ", "media": { "file_info": info } }),
    };
    if let Some((key, id)) = answers {
        payload[key] = json!(id);
    }
    if target.to.is_v2() {
        payload["msg_seq"] = json!(seq);
    }
    bot.api.call(Method::POST, &path, Payload::Json(&payload), TIMEOUT).await
}

/// Buttons that call back, for everyone: access is the gateway's.
fn keyboard(body: &Body) -> Value {
    let mut n = 0;
    let rows: Vec<Value> = body
        .buttons
        .iter()
        .map(|row| {
            let buttons: Vec<Value> = row
                .iter()
                .map(|button| {
                    n += 1;
                    json!({
                        "id": n.to_string(),
                        "render_data": { "label": button.label, "visited_label": button.label, "style": 1 },
                        "action": { "type": 1, "permission": { "type": 2 }, "data": button.data,
                            "unsupport_tips": button.data }
                    })
                })
                .collect();
            json!({ "buttons": buttons })
        })
        .collect();
    json!({ "content": { "rows": rows } })
}

async fn text_form(bot: &Bot, ctx: &ChannelContext, target: &Target, body: &Body, part: &Part, key: &SendKey) -> Form {
    if let Some(markdown) = &body.markdown
        && target.to.is_v2()
        && bot.markdown == Markdown::Auto
        && !is_markdown_forbidden(ctx).await
    {
        return Form::Markdown(markdown.clone());
    }
    // Only guilds can show it twice: elsewhere its number is known.
    if key.resend && !target.to.is_v2() {
        let note = render::resend_note(&part.text);
        if note.chars().count() + 1 + part.text.chars().count() <= TEXT_LIMIT {
            return Form::Text(format!("{note}\n{}", part.text));
        }
    }
    Form::Text(part.text.clone())
}

async fn is_markdown_forbidden(ctx: &ChannelContext) -> bool {
    let since = ctx.kv.get(MARKDOWN).await.ok().flatten().and_then(|since| since.parse::<i64>().ok());
    since.is_some_and(|since| ctx.clock.now_ms().saturating_sub(since) < MARKDOWN_REST_MS)
}

async fn forbid_markdown(ctx: &ChannelContext) {
    info!("QQ lets this bot send no Markdown; plain text from now on, and another try in a week");
    if let Err(error) = ctx.kv.set(MARKDOWN, &ctx.clock.now_ms().to_string()).await {
        warn!(%error, "it was not noted that QQ refuses Markdown");
    }
}

/// A file, uploaded where that comes first; the line that stands for it where it cannot be sent.
async fn file_form(
    bot: &Bot,
    ctx: &ChannelContext,
    target: &Target,
    file: &Attachment,
    part: &Part,
    again: bool,
) -> Result<Form, SendError> {
    let line = Form::Text(part.text.clone());
    let Some(bytes) = bytes_of(ctx, file).await else { return Ok(line) };
    if bytes.is_empty() || bytes.len() > FILE_BYTES {
        info!(bytes = bytes.len(), "a file is too large for QQ; its name is sent instead");
        return Ok(line);
    }
    let Some(path) = target.files() else {
        // Guilds take pictures with the message, and nothing else.
        return Ok(if is_picture(&bytes) { Form::Picture(bytes) } else { line });
    };
    let kind = file_type(file.kind, &bytes);
    let mut payload = json!({
        "file_type": kind,
        "srv_send_msg": false,
        "file_data": base64::engine::general_purpose::STANDARD.encode(&bytes),
    });
    if kind == OTHER {
        payload["file_name"] = json!(file.name.as_deref().unwrap_or("file"));
    }
    match bot.api.call(Method::POST, &path, Payload::Json(&payload), UPLOAD_TIMEOUT).await {
        Ok(answer) => Ok(match answer.get("file_info").and_then(Value::as_str) {
            Some(info) if !info.is_empty() => Form::File(info.to_owned()),
            _ => line,
        }),
        Err(ApiError::Refused { code, message }) => {
            info!(code, %message, "QQ does not take a file; its name is sent instead");
            Ok(line)
        }
        // Nothing is visible yet: once more, and then at least its name.
        Err(error @ (ApiError::NotSent(_) | ApiError::Unknown(_) | ApiError::Broken(_))) => match again {
            false => Err(SendError::Retry(format!("a file was not uploaded: {error}"))),
            true => Ok(line),
        },
        Err(error) => Err(failed(target, error)),
    }
}

async fn bytes_of(ctx: &ChannelContext, file: &Attachment) -> Option<Bytes> {
    let media = file.media.as_ref()?;
    match &media.source {
        MediaSource::Stored(_) => ctx.media.read(media).await,
        MediaSource::Url(url) => match ctx.media.fetch(url).await {
            Ok(stored) => ctx.media.read(&stored).await,
            Err(error) => {
                info!(%error, "a file of an answer could not be fetched; its link is sent instead");
                None
            }
        },
    }
}

/// `file_type` of an upload.
const PICTURE: u8 = 1;
const VIDEO: u8 = 2;
const VOICE: u8 = 3;
const OTHER: u8 = 4;

/// What QQ takes a file for: pictures and voice only in the formats it plays, everything else as a file.
fn file_type(kind: AttachmentKind, bytes: &[u8]) -> u8 {
    match kind {
        AttachmentKind::Image if is_picture(bytes) => PICTURE,
        AttachmentKind::Video if bytes.get(4..8) == Some(b"ftyp") => VIDEO,
        AttachmentKind::Audio if is_silk(bytes) => VOICE,
        _ => OTHER,
    }
}

/// PNG, JPEG, and GIF, which QQ shows although it names only the two.
fn is_picture(bytes: &[u8]) -> bool {
    bytes.starts_with(b"\x89PNG") || bytes.starts_with(b"\xff\xd8\xff") || bytes.starts_with(b"GIF8")
}

fn is_silk(bytes: &[u8]) -> bool {
    bytes.strip_prefix(b"\x02").unwrap_or(bytes).starts_with(b"#!SILK_V3")
}

fn failed(target: &Target, error: ApiError) -> SendError {
    match error {
        ApiError::NotSent(why) => SendError::Retry(why),
        ApiError::Wait(pause) => SendError::RetryAfter(pause),
        ApiError::Credentials(_) | ApiError::NotListed(_) => SendError::ChannelDown(error.to_string()),
        // The number makes a second try harmless, so growing pauses are all it needs.
        ApiError::Broken(why) if target.to.is_v2() => SendError::Retry(why),
        ApiError::Unknown(why) | ApiError::Broken(why) => SendError::Unknown(why),
        ApiError::Refused { code, message } => SendError::Refused(format!("QQ answered {code}: {message}")),
    }
}

/// What a refusal is about, named by what can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refusal {
    /// It waits for a review: it was taken.
    Audited,
    /// The number was used before.
    Seen,
    /// The bot may not send Markdown or buttons.
    Markdown,
    /// Something in it looks like an address.
    Url,
    /// The file.
    File,
    /// The content.
    Moderated,
    /// Nothing can be done; the plain reason.
    Final(&'static str),
    /// Unknown words.
    Other,
}

impl Refusal {
    fn of(code: i64, message: &str) -> Self {
        let said = message.to_lowercase();
        let says = |words: &[&str]| words.iter().any(|words| said.contains(words));
        match code {
            304_023 | 304_024 => return Self::Audited,
            40_054_005 => return Self::Seen,
            40_034_012 => return Self::Markdown,
            304_003 => return Self::Url,
            304_082 | 304_083 => return Self::File,
            40_034_024 | 40_034_025 => {
                return Self::Final("QQ no longer takes answers to this message");
            }
            40_034_102 => return Self::Final("QQ lets a bot answer only, and takes this for no answer"),
            _ => {}
        }
        if says(&["去重", "duplicate msg_seq"]) {
            Self::Seen
        } else if says(&["markdown", "按钮", "keyboard"]) {
            Self::Markdown
        } else if says(&["不允许包含url", "不允许发送url", "url not allowed", "包含链接"]) {
            Self::Url
        } else if says(&["富媒体", "file_info"]) {
            Self::File
        } else if says(&["违规", "敏感", "不合规", "内容审核", "内容安全"]) {
            Self::Moderated
        } else if says(&["拒收", "拒绝接收"]) {
            Self::Final("the person or group does not want messages of this bot")
        } else if says(&["已过期", "主动消息", "超过限制次数", "msg_id"]) {
            Self::Final("QQ no longer takes answers to this message")
        } else {
            Self::Other
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_named_by_code_or_words() {
        let table = [
            (304_023, "push message is waiting for audit now", Refusal::Audited),
            (40_054_005, "消息被去重，请检查请求msgseq", Refusal::Seen),
            (1, "消息被去重，请检查请求msgseq", Refusal::Seen),
            (400, "不允许发送原生 markdown", Refusal::Markdown),
            (40_034_012, "", Refusal::Markdown),
            (304_003, "url not allowed", Refusal::Url),
            (1, "请求参数不允许包含URL a.md", Refusal::Url),
            (304_082, "upload media info fail", Refusal::File),
            (1, "消息内容违规", Refusal::Moderated),
            (40_034_024, "x", Refusal::Final("QQ no longer takes answers to this message")),
            (7, "what", Refusal::Other),
        ];
        for (code, message, expected) in table {
            assert_eq!(Refusal::of(code, message), expected, "{code} {message}");
        }
    }

    #[test]
    fn voice_must_be_silk_and_pictures_of_a_known_kind() {
        assert_eq!(file_type(AttachmentKind::Audio, b"\x02#!SILK_V3..."), VOICE);
        assert_eq!(file_type(AttachmentKind::Audio, b"#!SILK_V3"), VOICE);
        assert_eq!(file_type(AttachmentKind::Audio, b"ID3 mp3"), OTHER);
        assert_eq!(file_type(AttachmentKind::Image, b"\x89PNG\r\n"), PICTURE);
        assert_eq!(file_type(AttachmentKind::Image, b"RIFF....WEBP"), OTHER);
        assert_eq!(file_type(AttachmentKind::Video, b"\0\0\0\x18ftypmp42"), VIDEO);
        assert_eq!(file_type(AttachmentKind::File, b"\x89PNG\r\n"), OTHER);
    }
}
