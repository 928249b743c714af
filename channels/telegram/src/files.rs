//! The files of messages: asked for by their id, streamed into the media store before anything of the message is told.
//! What does not come costs that file, never the message.

use std::time::Duration;

use channel_api::{ChannelContext, MediaError, MediaRef};
use futures_util::{StreamExt, stream};
use serde_json::{Value, json};
use tracing::{debug, warn};

use crate::{
    api::{Api, ApiError},
    inbound::{File, Taken},
};

/// How long all files of a batch may take.
const TIME: Duration = Duration::from_secs(20);
/// How many are fetched at once.
const AT_ONCE: usize = 6;
/// The most tries of one file.
const MOST_TRIES: u32 = 3;
/// The longest pause between two of them that is waited out.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long the question where a file is may take.
const ASK_TIME: Duration = Duration::from_secs(8);

const TOO_LATE: &str = "it did not come in time";
const TOO_BIG: &str = "it is larger than the 20 MB that Telegram gives to bots";

/// Fetches the files of these messages and puts them into their attachments.
pub async fn fetch(api: &Api, ctx: &ChannelContext, taken: &mut [Taken]) {
    let wanted = taken.iter().enumerate().filter_map(|(n, taken)| Some((n, taken.file.clone()?)));
    let fetching = wanted.map(|(n, file)| async move { (n, one(api, ctx, &file).await) });
    let mut fetching = stream::iter(fetching.collect::<Vec<_>>()).buffer_unordered(AT_ONCE);
    let mut found: Vec<(usize, Result<MediaRef, String>)> = Vec::new();
    let all = async {
        while let Some(one) = fetching.next().await {
            found.push(one);
        }
    };
    if tokio::time::timeout(TIME, all).await.is_err() {
        warn!(seconds = TIME.as_secs(), "not all files came in time; their messages go on without them");
    }
    drop(fetching);
    for (n, result) in found {
        let Some(attachment) = taken[n].event.attachments.first_mut() else { continue };
        match result {
            Ok(media) => attachment.media = Some(media),
            Err(why) => attachment.unavailable = Some(why),
        }
    }
    for attachment in taken.iter_mut().flat_map(|taken| &mut taken.event.attachments) {
        if attachment.media.is_none() && attachment.unavailable.is_none() {
            attachment.unavailable = Some(TOO_LATE.to_owned());
        }
    }
}

/// Why a file did not come, named by what is done next.
enum Failure {
    /// Ask again, after this pause where Telegram names one.
    Again(String, Option<Duration>),
    /// It will never come.
    Final(String),
}

async fn one(api: &Api, ctx: &ChannelContext, file: &File) -> Result<MediaRef, String> {
    let mut tries = 1;
    loop {
        match once(api, ctx, file).await {
            Ok(media) => return Ok(media),
            Err(Failure::Again(error, pause)) if tries < MOST_TRIES => {
                let pause = pause.unwrap_or(Duration::from_millis(500) * tries);
                debug!(error, ?pause, "a file is asked for again");
                ctx.clock.sleep(pause).await;
                tries += 1;
            }
            Err(Failure::Again(error, _)) => {
                warn!(error, "a file did not come");
                return Err("Telegram did not give it out".to_owned());
            }
            Err(Failure::Final(why)) => return Err(why),
        }
    }
}

async fn once(api: &Api, ctx: &ChannelContext, file: &File) -> Result<MediaRef, Failure> {
    let asked: Value = api.call_within(ASK_TIME, "getFile", &json!({ "file_id": file.id })).await.map_err(failure)?;
    let Some(path) = asked.get("file_path").and_then(Value::as_str) else {
        return Err(Failure::Final("Telegram does not say where it is".to_owned()));
    };
    if path.starts_with('/') {
        // `telegram-bot-api --local` names paths of its own disk.
        return Err(Failure::Final("the Bot API server keeps its files to itself (it runs with --local)".to_owned()));
    }
    let bytes = api.download(path, TIME).await.map_err(failure)?;
    ctx.media.keep(Box::pin(bytes), file.mime.clone()).await.map_err(|error| match error {
        MediaError::Unreachable(error) => Failure::Again(error, None),
        error => Failure::Final(error.to_string()),
    })
}

fn failure(error: ApiError) -> Failure {
    match error {
        ApiError::Refused { description, .. } if description.to_ascii_lowercase().contains("file is too big") => {
            Failure::Final(TOO_BIG.to_owned())
        }
        ApiError::Refused { code, description } => {
            debug!(code, description, "Telegram gives a file not out");
            Failure::Final("Telegram has it no more".to_owned())
        }
        ApiError::RetryAfter(pause) if pause > LONGEST_PAUSE => {
            Failure::Final("Telegram asks to wait too long for it".to_owned())
        }
        ApiError::RetryAfter(pause) => Failure::Again(error.to_string(), Some(pause)),
        error => Failure::Again(error.to_string(), None),
    }
}
