//! Files that come with messages: streamed from Discord's store into the gateway's before the message is stored.

use std::time::Duration;

use channel_api::{Attachment, AttachmentKind, Media, MediaError, MediaRef, MediaStream, kind_of};
use futures_util::{StreamExt, TryStreamExt};
use serde_json::Value;
use tracing::debug;

use crate::api::{self, Api};

/// The most files of one message.
pub const MOST: usize = 10;
/// How long all files of a message may take.
const TIME: Duration = Duration::from_secs(20);
/// The longest name, in characters.
const NAME_CHARS: usize = 150;

/// A file as Discord names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incoming {
    /// Where it is. It stops working after a day.
    pub url: String,
    /// Its name, as the sender gave it.
    pub name: Option<String>,
    /// Its media type.
    pub mime: Option<String>,
    /// Its size in bytes.
    pub size: Option<u64>,
}

/// The files of a message.
pub fn listed(attachments: Option<&Value>) -> Vec<Incoming> {
    let all = attachments.and_then(Value::as_array).into_iter().flatten().take(MOST);
    all.filter_map(|file| {
        let word = |key: &str| file.get(key).and_then(Value::as_str);
        Some(Incoming {
            url: word("url").filter(|url| url.len() <= 2_048)?.to_owned(),
            name: word("filename").map(|name| name.chars().take(NAME_CHARS).collect()),
            mime: word("content_type")
                .map(|mime| mime.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
                .filter(|mime| mime.len() <= 100 && mime.contains('/')),
            size: file.get("size").and_then(Value::as_u64),
        })
    })
    .collect()
}

/// Fetches them, one after the other; what fails is said to be unavailable, and the rest comes all the same.
pub async fn fetch(api: &Api, media: &dyn Media, files: &[Incoming], largest: u64) -> Vec<Attachment> {
    let mut fetched = Vec::with_capacity(files.len());
    let all = async {
        for file in files {
            let kept = one(api, media, file, largest).await;
            if let Err(why) = &kept {
                debug!(why, "a file of a message was not fetched");
            }
            fetched.push(attachment(file, kept));
        }
    };
    let in_time = tokio::time::timeout(TIME, all).await.is_ok();
    if !in_time {
        for file in &files[fetched.len()..] {
            fetched.push(attachment(file, Err("it did not come in time".to_owned())));
        }
    }
    fetched
}

/// What they are, before anything is fetched.
pub fn unfetched(files: &[Incoming]) -> Vec<Attachment> {
    let plain = |file| Attachment { unavailable: None, ..attachment(file, Err(String::new())) };
    files.iter().map(plain).collect()
}

async fn one(api: &Api, media: &dyn Media, file: &Incoming, largest: u64) -> Result<MediaRef, String> {
    let too_large = || format!("it is larger than {} MB", largest / (1024 * 1024));
    if file.size.is_some_and(|size| size > largest) {
        return Err(too_large());
    }
    let response = api.download(&file.url).await?;
    if response.content_length().is_some_and(|length| length > largest) {
        return Err(too_large());
    }
    let mut left = largest;
    let limit = too_large();
    let bytes = response.bytes_stream().map_err(api::told).map(move |piece| {
        let piece = piece?;
        left = left.checked_sub(piece.len() as u64).ok_or_else(|| limit.clone())?;
        Ok(piece)
    });
    let bytes: MediaStream = Box::pin(bytes);
    media.keep(bytes, file.mime.clone()).await.map_err(|error| match error {
        MediaError::Unreachable(why) => why,
        error => error.to_string(),
    })
}

fn attachment(file: &Incoming, kept: Result<MediaRef, String>) -> Attachment {
    let (media, unavailable) = match kept {
        Ok(media) => (Some(media), None),
        Err(why) => (None, Some(why)),
    };
    let mime = media.as_ref().and_then(|media| media.mime.as_deref()).or(file.mime.as_deref());
    let kind = match kind_of(mime) {
        AttachmentKind::File => by_name(file.name.as_deref()),
        kind => kind,
    };
    Attachment { kind, media, name: file.name.clone(), unavailable }
}

/// Where Discord names no type.
fn by_name(name: Option<&str>) -> AttachmentKind {
    let ending = name.and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending.to_ascii_lowercase());
    match ending.as_deref() {
        Some("png" | "jpg" | "jpeg" | "gif" | "webp") => AttachmentKind::Image,
        Some("ogg" | "mp3" | "wav" | "m4a" | "flac" | "opus") => AttachmentKind::Audio,
        Some("mp4" | "mov" | "webm" | "mkv") => AttachmentKind::Video,
        _ => AttachmentKind::File,
    }
}
