//! From an event to the inbox, the same for both ways in: read it, fetch its files while their links live, store it.

use std::{
    sync::{PoisonError, RwLock},
    time::Duration,
};

use channel_api::{Accepted, Attachment, Batch, ChannelContext, ChannelId, Cursor, IntakeError, MediaRef};
use futures_util::{StreamExt, stream::FuturesUnordered};
use http::Method;
use serde_json::{Value, json};
use tracing::{debug, info};

use crate::{
    api::{Api, ApiError, Payload, TIMEOUT},
    inbound::{self, Event, File, Said},
    target::Target,
    window::Windows,
};

/// How long all files of a message may take.
const FILES_TIME: Duration = Duration::from_secs(20);
/// How long telling QQ that a press was taken may take.
const PRESS_TIME: Duration = Duration::from_secs(3);

/// Receives for one bot.
pub struct Receiver<'a> {
    pub channel: &'a ChannelId,
    pub api: &'a Api,
    pub me: &'a Me,
    pub windows: &'a Windows,
    pub ctx: &'a ChannelContext,
}

/// The bot's id in guilds, once it is known.
#[derive(Default)]
pub struct Me(RwLock<Option<String>>);

impl Me {
    pub fn get(&self) -> Option<String> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set(&self, id: &str) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(id.to_owned());
    }

    /// Asks who the bot is.
    ///
    /// # Errors
    /// [`ApiError`].
    pub async fn ask(&self, api: &Api) -> Result<Value, ApiError> {
        let me = api.call(Method::GET, &["users", "@me"], Payload::None, TIMEOUT).await?;
        if let Some(id) = me.get("id").and_then(Value::as_str) {
            self.set(id);
        }
        Ok(me)
    }
}

impl Receiver<'_> {
    /// Reads an event and fetches its files, if the bot is to answer it; `None` when it says nothing to the bot.
    pub async fn prepare(&self, event: &Event) -> Option<Said> {
        let me = self.me.get();
        let mut said = inbound::said(self.channel, me.as_deref(), self.ctx.clock.now_ms(), event)?;
        said.inbound.attachments = unfetched(&said.files);
        if self.ctx.intake.wants_files(&said.inbound) {
            said.inbound.attachments = self.fetch(&said.files).await;
        } else {
            said.inbound.leave_files();
        }
        Some(said)
    }

    /// Offers it to the inbox, together with the position in the session, if there is one.
    ///
    /// # Errors
    /// [`IntakeError`]: nothing was stored, and QQ must not be told that it was.
    pub async fn offer(&self, said: &Said, cursor: Option<Cursor>) -> Result<Accepted, IntakeError> {
        let batch = Batch {
            channel: Some(self.channel.clone()),
            events: vec![said.inbound.clone()],
            cursor,
            ..Batch::default()
        };
        channel_api::crash_point!("qq.event");
        let answers = self.ctx.intake.accept(batch).await?;
        channel_api::crash_point!("qq.stored");
        let answer = answers.into_iter().next().ok_or_else(|| IntakeError::Unavailable("no answer".to_owned()))?;
        debug!(id = said.inbound.platform_id, ?answer, "an event was taken");
        // What was not said to the bot gives it no right to answer.
        if let Some(target) = Target::of(&said.inbound.address).filter(|_| said.inbound.mentions_us) {
            self.windows.heard(&target);
        }
        Ok(answer)
    }

    /// Tells QQ that a press was taken; else the button shows an error. Best effort.
    pub async fn confirm(&self, said: &Said) {
        let Some(interaction) = &said.interaction else { return };
        let body = json!({ "code": 0 });
        let path = ["interactions", interaction];
        if let Err(error) = self.api.call(Method::PUT, &path, Payload::Json(&body), PRESS_TIME).await {
            info!(%error, "a pressed button could not be confirmed");
        }
    }

    async fn fetch(&self, files: &[File]) -> Vec<Attachment> {
        let mut found = unfetched(files);
        for file in &mut found {
            file.unavailable = Some("it did not come in time".to_owned());
        }
        let mut fetching: FuturesUnordered<_> = (0..files.len()).map(|n| self.fetch_one(n, &files[n])).collect();
        let mut time = self.ctx.clock.sleep(FILES_TIME);
        while !fetching.is_empty() {
            tokio::select! {
                Some((n, media)) = fetching.next() => match media {
                    Ok(media) => (found[n].media, found[n].unavailable) = (Some(media), None),
                    Err(why) => found[n].unavailable = Some(why.chars().take(200).collect()),
                },
                () = &mut time => {
                    info!("files of a message did not come in time");
                    break;
                }
            }
        }
        found
    }

    async fn fetch_one(&self, n: usize, file: &File) -> (usize, Result<MediaRef, String>) {
        match &file.url {
            Some(url) => (n, self.ctx.media.fetch(url).await.map_err(|error| error.to_string())),
            None => (n, Err("QQ gave no link to it".to_owned())),
        }
    }
}

/// What the files are, before anything is fetched.
fn unfetched(files: &[File]) -> Vec<Attachment> {
    let one = |file: &File| Attachment { kind: file.kind, media: None, name: file.name.clone(), unavailable: None };
    files.iter().map(one).collect()
}
