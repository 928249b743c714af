//! What a person sees before the answer: one short line after a long silence, and marks on questions in groups where the
//! implementation can set them. Nothing can be edited here, so nothing grows.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::{Address, LiveEdit, LivePace, Mark, Preview, SendError};
use serde_json::{Value, json};
use tracing::debug;

use crate::{
    OneBot, ids,
    links::{CALL, CallError},
    send,
    target::{Chat, Target, message_in},
};

/// How long a mark may take.
const MARK: Duration = Duration::from_secs(5);
/// The longest working line, in characters.
const LINE: usize = 200;
/// The most marks that are remembered.
const MARKS: usize = 1_000;

/// The faces that stand for the marks.
fn face(mark: Mark) -> Option<&'static str> {
    match mark {
        // 睁眼. The work begins soon after the message was seen: one face for both spares a call.
        Mark::Seen | Mark::Working => Some("289"),
        // OK.
        Mark::Done => Some("124"),
        // NO.
        Mark::Failed => Some("123"),
        Mark::None => None,
    }
}

/// The mark that each message has.
#[derive(Default)]
pub struct Marks(Mutex<HashMap<String, &'static str>>);

impl Marks {
    /// Sets a mark and tells the one that was there.
    fn put(&self, message: &str, face: Option<&'static str>) -> Option<&'static str> {
        let mut marks = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if marks.len() >= MARKS {
            marks.clear();
        }
        match face {
            Some(face) => marks.insert(message.to_owned(), face),
            None => marks.remove(message),
        }
    }
}

#[async_trait]
impl LiveEdit for OneBot {
    fn pace(&self, _to: &Address) -> LivePace {
        self.config.working_line().map_or(LivePace::Off, |after| LivePace::OneLine { after })
    }

    async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError> {
        let target = Target::of(to).ok_or_else(|| SendError::Refused("the address is none of OneBot's".to_owned()))?;
        // The gateway's one line; nothing of an answer is ever shown here.
        let line: String = text.chars().take(LINE).collect();
        let words = json!({ "type": "text", "data": { "text": line } });
        match send::message(self, &target, vec![words], CALL).await {
            Ok(data) => {
                let id = data.get("message_id").and_then(ids::message).unwrap_or_default();
                if !id.is_empty() {
                    self.recent.sent(&target.chat, &id);
                }
                Ok(Preview { id, replaced: false })
            }
            Err(CallError::NotSent(why)) => Err(SendError::Retry(why)),
            Err(CallError::Unknown(why)) => Err(SendError::Unknown(why)),
            Err(CallError::Failed(failure)) => Err(SendError::Refused(failure.to_string())),
        }
    }

    async fn update(&self, _to: &Address, _preview: &Preview, _text: &str) -> Result<(), SendError> {
        Ok(())
    }

    async fn mark(&self, to: &Address, platform_id: &str, mark: Mark) {
        let Some(target) = Target::of(to).filter(|target| matches!(target.chat, Chat::Group(_))) else { return };
        let Some(message) = message_in(platform_id) else { return };
        if !self.about(&target.bot).await.marks {
            return;
        }
        let face = face(mark);
        let before = self.marks.put(platform_id, face);
        if before == face {
            return;
        }
        for (face, set) in [(before, false), (face, true)] {
            let Some(face) = face else { continue };
            let params = json!({ "message_id": ids::parameter(message), "emoji_id": face, "set": set });
            if let Err(error) = self.links.call(&target.bot, "set_msg_emoji_like", params, MARK).await {
                debug!(%error, "a mark was not set");
            }
        }
    }
}

/// What an implementation says about itself and the bot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// The bot's nickname.
    pub name: Option<String>,
    /// It can put faces under messages.
    pub marks: bool,
}

impl About {
    /// From the answers to `get_login_info` and `get_version_info`.
    pub fn of(login: Option<&Value>, version: Option<&Value>) -> Self {
        let text =
            |value: Option<&Value>, key: &str| value.and_then(|value| value.get(key)?.as_str()).map(str::to_owned);
        let name = text(login, "nickname").filter(|name| !name.trim().is_empty());
        let app = text(version, "app_name").unwrap_or_default().to_ascii_lowercase();
        let marks = ["napcat", "llonebot", "llbot"].iter().any(|known| app.contains(known));
        Self { name, marks }
    }
}
