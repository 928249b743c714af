//! One part as one message of Feishu, and what its answer means for delivery.
//!
//! A call that Feishu refused showed nothing, so the next form may be tried in the same breath: a card, a post, plain text,
//! at last a file. All of them carry the same `uuid`, so that of all tries one is shown. protocols.md §2.3.

use std::time::Duration;

use bytes::Bytes;
use channel_api::{
    Address, Attachment, Capabilities, ChannelContext, Format, MediaSource, Part, QueueMode, Rate, Receipt, SendError,
    SendKey, TextUnit,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tracing::{debug, info};

use crate::{
    Feishu,
    api::{Api, ApiError, Upload, segment},
    markdown::{self, MOST_TABLES},
    render::{self, Body, TEXT_LIMIT},
    stream::{Finished, Handle},
    target::Target,
};

/// The largest card or post, in bytes: Feishu's 30 KB less what it adds.
const RICH_BYTES: usize = 28 * 1024;
/// The largest picture, in bytes.
const IMAGE_BYTES: usize = 10 * 1024 * 1024;
/// The largest other file, in bytes.
const FILE_BYTES: usize = 30 * 1024 * 1024;
/// How long after the first try the platform still knows a `uuid`: it is an hour, and clocks differ.
pub const UUID_LIVES: Duration = Duration::from_secs(55 * 60);

/// The pauses between tries of one part; the last one repeats until the part expires.
const RETRY_PAUSES: [Duration; 6] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// What Feishu can do. `silence_limit` as [`Capabilities::silence_limit`].
pub fn capabilities(silence_limit: Option<Duration>, typing: bool) -> Capabilities {
    Capabilities {
        text_limit: TEXT_LIMIT,
        text_unit: TextUnit::Chars,
        format: Format::Own,
        edits: true,
        typing,
        threads: true,
        buttons: true,
        queue: QueueMode::Collect,
        refuse_over_cap: false,
        account_in_key: true,
        silence_limit,
        expires_after: Duration::from_secs(60 * 60),
        retry_pauses: &RETRY_PAUSES,
        // Five in any second in a chat, shared by all bots there.
        per_lane: Some(Rate { burst: 2, every: Duration::from_millis(300) }),
        // Fifty a second and a thousand a minute.
        per_channel: Some(Rate { burst: 20, every: Duration::from_millis(62) }),
    }
}

/// A message as it is sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Form {
    /// `msg_type`.
    pub kind: &'static str,
    /// `content`, before it becomes a text.
    pub content: Value,
}

/// Sends one part: see [`channel_api::Channel::send`].
///
/// # Errors
/// [`SendError`], named by what delivery does next.
pub async fn send(feishu: &Feishu, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
    let Some(target) = feishu.target(to) else {
        return Err(SendError::Refused("the address is none of Feishu's".to_owned()));
    };
    let body = Body::deserialize(&part.body).unwrap_or_default();
    let api = &feishu.api;
    if let Some(handle) = key.replaces.as_deref().and_then(Handle::of) {
        // A file takes no card's place.
        let forms =
            if body.file.is_none() && body.document.is_none() { finals(part, &body, &target) } else { Vec::new() };
        match feishu.streams.finish(api, &handle, &forms, feishu.now()).await? {
            Finished::Shown(message) => return Ok(sent(feishu, &target, part, key, Some(message)).await),
            Finished::Gone => {
                info!(message = handle.message, "the preview is gone; the answer is a message of its own")
            }
        }
    }
    let mut forms = match (&body.file, &body.document) {
        (Some(file), _) => file_forms(feishu, file).await?,
        (_, Some(text)) => document_forms(api, text).await?,
        _ => Vec::new(),
    };
    forms.extend(text_forms(part, &body, &target, key.resend));
    let quote = quoted(&target, &body, key);
    let mut last = None;
    for form in forms {
        match deliver(api, &target, &form, quote.clone(), key.part.as_str()).await {
            Ok(message) => return Ok(sent(feishu, &target, part, key, message).await),
            Err(error) => match refusal(error)? {
                Refusal::Final(why) => return Err(SendError::Refused(why)),
                Refusal::Form(why) => {
                    info!(form = form.kind, why, "Feishu refuses this form of a message; trying the next");
                    last = Some(why);
                }
            },
        }
    }
    // The file of last resort for words that no form carried.
    if body.file.is_none() && body.document.is_none() {
        for form in document_forms(api, &part.text).await? {
            match deliver(api, &target, &form, quote.clone(), key.part.as_str()).await {
                Ok(message) => return Ok(sent(feishu, &target, part, key, message).await),
                Err(error) => {
                    let (Refusal::Final(why) | Refusal::Form(why)) = refusal(error)?;
                    last = Some(why);
                }
            }
        }
    }
    Err(SendError::Refused(last.unwrap_or_else(|| "Feishu refused every form of the message".to_owned())))
}

async fn sent(feishu: &Feishu, target: &Target, part: &Part, key: &SendKey, message: Option<String>) -> Receipt {
    if let Some(message) = &message {
        feishu.reception.remember_sent(message, &part.text);
    }
    if let (true, Some(question)) = (key.last, &target.reply) {
        feishu.marks.answered(&feishu.api, question).await;
    }
    Receipt { platform_id: message }
}

/// The message that the part is a reply to.
fn quoted(target: &Target, body: &Body, key: &SendKey) -> Option<String> {
    let asked = body.quote.clone().filter(|quote| quote.starts_with("om_"));
    // In a thread, and where threads are opened, every part must be one; elsewhere the first shows what is answered.
    let always = target.in_thread() || target.opens_thread;
    let usual = target.reply.clone().filter(|_| always || (!target.direct && key.seq == 1));
    asked.or(usual)
}

/// Makes the one visible call: a reply, or a new message where there is nothing to reply to (any more). The new message's
/// id, where the platform gives it.
///
/// # Errors
/// [`ApiError`], named by what the caller does next.
pub async fn deliver(
    api: &Api,
    target: &Target,
    form: &Form,
    quote: Option<String>,
    uuid: &str,
) -> Result<Option<String>, ApiError> {
    let id = |answer: Value| {
        let id = answer.get("data").and_then(|data| data.get("message_id")).and_then(Value::as_str);
        id.map(str::to_owned)
    };
    let mut body = json!({ "msg_type": form.kind, "content": form.content.to_string(), "uuid": uuid });
    if let Some(quote) = quote {
        let path = format!("/open-apis/im/v1/messages/{}/reply", segment(&quote));
        body["reply_in_thread"] = json!(target.in_thread() || target.opens_thread);
        match api.post(&path, &body).await {
            Err(ApiError::Refused { code, said }) if is_gone(code, &said) => {
                debug!(code, said, "there is nothing to reply to any more");
            }
            done => return done.map(id),
        }
        if let Some(body) = body.as_object_mut() {
            body.remove("reply_in_thread");
        }
    }
    body["receive_id"] = json!(target.chat);
    api.post("/open-apis/im/v1/messages?receive_id_type=chat_id", &body).await.map(id)
}

/// Whether a refusal is about the message that is replied to, or its thread.
fn is_gone(code: i64, said: &str) -> bool {
    matches!(code, 230_011 | 230_019 | 230_071 | 230_072 | 230_110 | 230_111 | 231_003)
        || (code == 230_001 && said.to_ascii_lowercase().contains("message_id"))
}

/// The forms of a text, the best first.
fn text_forms(part: &Part, body: &Body, target: &Target, resend: bool) -> Vec<Form> {
    let note = |text: &str| match resend {
        true => format!("{}\n\n{text}", render::resend_note(&part.text)),
        false => text.to_owned(),
    };
    let mut forms = Vec::new();
    if let Some(md) = &body.md {
        let md = note(md);
        let card = render::card(&markdown::for_card(&md, MOST_TABLES), &part.text, &body.buttons, target, false);
        let post = json!({ "zh_cn": { "content": [[{ "tag": "md", "text": markdown::for_card(&md, 0) }]] } });
        forms.push(Form { kind: "interactive", content: card });
        forms.push(Form { kind: "post", content: post });
        forms.retain(|form| form.content.to_string().len() <= RICH_BYTES);
    } else if !body.buttons.is_empty() {
        let card = render::plain_card(&note(&part.text), &part.text, &body.buttons, target);
        forms.push(Form { kind: "interactive", content: card });
    }
    forms.push(Form { kind: "text", content: json!({ "text": note(&part.text) }) });
    forms
}

/// The cards that a preview may become, the best first.
fn finals(part: &Part, body: &Body, target: &Target) -> Vec<Value> {
    let plain = render::plain_card(&part.text, &part.text, &body.buttons, target);
    let Some(md) = &body.md else { return vec![plain] };
    let card = |tables| render::card(&markdown::for_card(md, tables), &part.text, &body.buttons, target, false);
    [card(MOST_TABLES), card(0), plain].into_iter().filter(|card| card.to_string().len() <= RICH_BYTES).collect()
}

/// A file as it is sent; empty where it cannot be: then its line is.
async fn file_forms(feishu: &Feishu, file: &Attachment) -> Result<Vec<Form>, SendError> {
    let Some(ctx) = feishu.ctx.get() else { return Err(SendError::Retry("the channel is not open".to_owned())) };
    let Some((bytes, mime)) = bytes_of(ctx, file).await else { return Ok(Vec::new()) };
    let name: String = file.name.as_deref().unwrap_or("file").chars().filter(|c| !c.is_control()).take(200).collect();
    let name = name.replace(['/', '\\'], "_");
    if bytes.is_empty() || bytes.len() > FILE_BYTES {
        return Ok(Vec::new());
    }
    let mut forms = Vec::new();
    if is_picture(&mime) && bytes.len() <= IMAGE_BYTES {
        let fields = vec![("image_type", "message".to_owned())];
        let upload = Upload { fields, field: "image", name: name.clone(), bytes: bytes.clone() };
        if let Some(key) = uploaded(&feishu.api, "/open-apis/im/v1/images", &upload, "image_key").await? {
            forms.push(Form { kind: "image", content: json!({ "image_key": key }) });
            return Ok(forms);
        }
    }
    let (kind, file_type) = kind_of(&bytes, &mime, &name);
    if let Some(key) = file_key(&feishu.api, file_type, &name, bytes.clone()).await? {
        forms.push(Form { kind, content: json!({ "file_key": key }) });
    } else if file_type != "stream"
        && let Some(key) = file_key(&feishu.api, "stream", &name, bytes).await?
    {
        forms.push(Form { kind: "file", content: json!({ "file_key": key }) });
    }
    Ok(forms)
}

async fn document_forms(api: &Api, text: &str) -> Result<Vec<Form>, SendError> {
    let key = file_key(api, "stream", "answer.md", Bytes::from(text.to_owned())).await?;
    Ok(key.map(|key| Form { kind: "file", content: json!({ "file_key": key }) }).into_iter().collect())
}

async fn file_key(api: &Api, file_type: &str, name: &str, bytes: Bytes) -> Result<Option<String>, SendError> {
    let fields = vec![("file_type", file_type.to_owned()), ("file_name", name.to_owned())];
    let upload = Upload { fields, field: "file", name: name.to_owned(), bytes };
    uploaded(api, "/open-apis/im/v1/files", &upload, "file_key").await
}

/// The key of an uploaded file; `None` where it was refused. An upload shows nothing: a cut-off one is made again.
async fn uploaded(api: &Api, path: &str, upload: &Upload, key: &str) -> Result<Option<String>, SendError> {
    match api.upload(path, upload).await {
        Ok(answer) => {
            let key = answer.get("data").and_then(|data| data.get(key)).and_then(Value::as_str);
            Ok(key.map(str::to_owned))
        }
        Err(error @ (ApiError::Refused { .. } | ApiError::NoScope(_))) => {
            info!(%error, "Feishu does not take a file");
            Ok(None)
        }
        Err(ApiError::Unknown(error)) => Err(SendError::Retry(error)),
        Err(error) => Err(send_error(error)),
    }
}

async fn bytes_of(ctx: &ChannelContext, file: &Attachment) -> Option<(Bytes, String)> {
    let mut media = file.media.clone()?;
    if let MediaSource::Url(url) = &media.source {
        media = match ctx.media.fetch(url).await {
            Ok(media) => media,
            Err(error) => {
                info!(%error, "a file of an answer could not be fetched");
                return None;
            }
        };
    }
    let bytes = ctx.media.read(&media).await?;
    Some((bytes, media.mime.unwrap_or_default().to_ascii_lowercase()))
}

fn is_picture(mime: &str) -> bool {
    ["image/jpeg", "image/png", "image/gif", "image/webp", "image/bmp", "image/tiff", "image/x-icon"].contains(&mime)
}

/// `msg_type` of a file and the `file_type` it is uploaded as. Voice must be Opus.
fn kind_of(bytes: &[u8], mime: &str, name: &str) -> (&'static str, &'static str) {
    let start = &bytes[..bytes.len().min(64)];
    if start.starts_with(b"OggS") && start.windows(8).any(|eight| eight == b"OpusHead") {
        return ("audio", "opus");
    }
    if mime == "video/mp4" || start.get(4..8) == Some(b"ftyp") && mime.starts_with("video/") {
        return ("media", "mp4");
    }
    let end = name.rsplit_once('.').map(|(_, end)| end.to_ascii_lowercase()).unwrap_or_default();
    let file_type = match end.as_str() {
        "pdf" => "pdf",
        "doc" | "docx" => "doc",
        "xls" | "xlsx" => "xls",
        "ppt" | "pptx" => "ppt",
        _ => "stream",
    };
    ("file", file_type)
}

/// What a refusal is about, named by what can be done.
enum Refusal {
    /// Another form may pass.
    Form(String),
    /// Nothing can be done.
    Final(String),
}

fn refusal(error: ApiError) -> Result<Refusal, SendError> {
    let ApiError::Refused { code, said } = error else { return Err(send_error(error)) };
    let reasons = [
        (&[230_002][..], "the bot is not in this chat"),
        (&[230_013, 230_053], "the person may not use the bot, or does not want its messages"),
        (&[230_018, 230_035, 230_050], "the bot may not write in this chat"),
        (&[230_029, 230_014, 230_038], "the person has left, or is in another organisation"),
        (&[230_015, 232_009, 232_011], "the chat was dissolved, or does not take messages"),
        (&[230_022, 230_028], "Feishu does not let these words through (content check)"),
    ];
    if let Some((_, reason)) = reasons.iter().find(|(codes, _)| codes.contains(&code)) {
        return Ok(Refusal::Final(format!("{reason} ({code})")));
    }
    match code {
        230_006 => Err(SendError::ChannelDown(
            "the app has no bot: add the bot ability in the developer console and publish a version (230006)"
                .to_owned(),
        )),
        230_027 => Err(SendError::ChannelDown(format!("a permission is missing: {said} (230027)"))),
        _ => Ok(Refusal::Form(format!("{code}: {said}"))),
    }
}

/// What an error means for delivery.
pub fn send_error(error: ApiError) -> SendError {
    match error {
        ApiError::RetryAfter(pause, _) => SendError::RetryAfter(pause),
        ApiError::Retry(said) => SendError::Retry(said),
        ApiError::Unknown(said) => SendError::Unknown(said),
        error @ (ApiError::Credentials(_) | ApiError::AppOff(_) | ApiError::NoScope(_)) => {
            SendError::ChannelDown(error.to_string())
        }
        ApiError::Refused { code, said } => SendError::Refused(format!("{code}: {said}")),
    }
}
