//! What is seen of an answer before it is whole: a message that grows by paced edits, and reactions on the question.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use channel_api::{Address, LivePace, Mark, Preview, SendError, TextUnit, split};
use reqwest::Method;
use serde_json::json;
use serenity::model::channel::MessageFlags;
use tracing::debug;

use crate::{
    api::{Api, ApiError},
    render::{self, TEXT_LIMIT},
    send::{meaning, no_mentions},
    target::{Target, id, is_id},
};

/// The smallest pause between two edits of a message: five in five seconds are allowed, with those of others.
const EVERY: Duration = Duration::from_millis(1_250);
/// Nothing is shown before there are so many characters: a notification shows the first of them only.
const FIRST: usize = 30;
/// The most marks that are remembered.
const MOST_MARKS: usize = 1_000;
/// The longest wait for a mark that Discord puts off.
const MARK_WAIT: Duration = Duration::from_secs(2);

/// The bot's reaction on each message that has one.
#[derive(Default)]
pub struct Marks(Mutex<HashMap<String, Mark>>);

/// How much is shown there.
pub fn pace(to: &Address) -> LivePace {
    match Target::of(to) {
        // It shows "thinking", and is answered once.
        Some(Target { command: Some(_), .. }) | None => LivePace::Off,
        Some(_) => LivePace::Edits { first: FIRST, every: EVERY, most: None },
    }
}

/// See [`channel_api::LiveEdit::begin`].
pub async fn begin(api: &Api, to: &Address, text: &str) -> Result<Preview, SendError> {
    let Some(target) = Target::of(to) else {
        return Err(SendError::Refused("the address is none of Discord's".to_owned()));
    };
    let mut payload = payload(text);
    if let Some(message) = &target.reply {
        payload["message_reference"] =
            json!({"message_id": message, "channel_id": target.channel, "fail_if_not_exists": false});
    }
    let path = format!("/channels/{}/messages", target.channel);
    let sent = api.call(Method::POST, &path, Some(&payload)).await.map_err(meaning)?;
    match id(&sent, "id") {
        Some(id) => Ok(Preview { id, replaced: true }),
        None => Err(SendError::Unknown("Discord named no message".to_owned())),
    }
}

/// See [`channel_api::LiveEdit::update`].
pub async fn update(api: &Api, to: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
    let Some(path) = path_of(to, &preview.id) else {
        return Err(SendError::Refused("the preview is none of Discord's".to_owned()));
    };
    api.call(Method::PATCH, &path, Some(&payload(text))).await.map(|_| ()).map_err(meaning)
}

/// See [`channel_api::LiveEdit::drop_preview`].
pub async fn drop_preview(api: &Api, to: &Address, preview: &Preview) {
    let Some(path) = path_of(to, &preview.id) else { return };
    if let Err(error) = api.call(Method::DELETE, &path, None).await {
        debug!(%error, "a preview was not taken away");
    }
}

fn path_of(to: &Address, message: &str) -> Option<String> {
    let target = Target::of(to)?;
    is_id(message).then(|| format!("/channels/{}/messages/{message}", target.channel))
}

/// As much of it as fits one message.
fn payload(text: &str) -> serde_json::Value {
    let text = render::laid_out(text);
    let mut pieces = split::split(&text, TEXT_LIMIT - 2, TextUnit::Utf16);
    let more = pieces.len() > 1;
    let mut shown = if pieces.is_empty() { "…".to_owned() } else { pieces.swap_remove(0) };
    if more {
        shown.push_str("\n…");
    }
    json!({"content": shown, "allowed_mentions": no_mentions(), "flags": MessageFlags::SUPPRESS_EMBEDS.bits()})
}

/// See [`channel_api::LiveEdit::mark`].
pub async fn mark(api: &Api, marks: &Marks, to: &Address, message: &str, mark: Mark) {
    let Some(base) = path_of(to, message) else { return };
    let before = {
        let mut marks = marks.0.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.len() >= MOST_MARKS && !marks.contains_key(message) {
            marks.clear();
        }
        match mark {
            Mark::None => marks.remove(message),
            mark => marks.insert(message.to_owned(), mark),
        }
    };
    if before == Some(mark) {
        return;
    }
    let path = |mark| emoji(mark).map(|emoji| format!("{base}/reactions/{emoji}/@me"));
    if let Some(path) = path(mark) {
        react(api, Method::PUT, &path).await;
    }
    if let Some(path) = before.and_then(path) {
        react(api, Method::DELETE, &path).await;
    }
}

async fn react(api: &Api, method: Method, path: &str) {
    let mut done = api.call(method.clone(), path, None).await;
    if let Err(ApiError::RetryAfter(pause)) = &done
        && *pause <= MARK_WAIT
    {
        tokio::time::sleep(*pause).await;
        done = api.call(method, path, None).await;
    }
    if let Err(error) = done {
        debug!(%error, "a mark was not put on a message");
    }
}

/// A mark's emoji as it stands in an address.
fn emoji(mark: Mark) -> Option<&'static str> {
    match mark {
        Mark::Seen => Some("%F0%9F%91%80"),
        Mark::Working => Some("%F0%9F%A4%94"),
        Mark::Done => Some("%F0%9F%91%8D"),
        Mark::Failed => Some("%F0%9F%98%B1"),
        Mark::None => None,
    }
}
