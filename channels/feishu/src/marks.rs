//! Reactions on the questions: that an answer is being written, and how the gateway stands to a message. Best effort; an
//! app without the permission is not asked twice.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use channel_api::Mark;
use reqwest::Method;
use serde_json::{Value, json};
use tracing::{debug, info};

use crate::{
    api::{Api, ApiError, segment},
    recent::Recent,
};

/// The reaction that says that an answer is being written: Feishu has no other sign.
const TYPING: &str = "Typing";
/// It is taken away when nobody has asked for it for so long.
const FADES: Duration = Duration::from_secs(12);
/// How long one call may take.
const CALL_TIME: Duration = Duration::from_secs(4);
/// The messages that are remembered.
const REMEMBERED: usize = 1_024;

/// The reactions that stand.
pub struct Marks {
    /// Typing, by message: the reaction's id once it is there, and when it was last asked for.
    typing: Mutex<Recent<(Option<String>, Duration)>>,
    /// The gateway's mark, by message, and its reaction's id once it is there.
    marks: Mutex<Recent<(Mark, Option<String>)>>,
    off: AtomicBool,
}

impl Marks {
    /// None yet. `on`: whether there are to be any.
    pub fn new(on: bool) -> Self {
        Self {
            typing: Mutex::new(Recent::holding(REMEMBERED)),
            marks: Mutex::new(Recent::holding(REMEMBERED)),
            off: AtomicBool::new(!on),
        }
    }

    /// Shows on `message` that an answer is being written, until it is asked for no more. One reaction says enough: where
    /// a mark stands, this shows nothing.
    pub async fn typing(&self, api: &Api, message: &str, now: Duration) {
        if lock(&self.marks).get(message).is_some() {
            return;
        }
        {
            let mut typing = lock(&self.typing);
            if let Some((_, asked)) = typing.get_mut(message) {
                *asked = now;
                return;
            }
            typing.put(message, (None, now));
        }
        match self.add(api, message, TYPING).await {
            Some(id) => {
                let stands = match lock(&self.typing).get_mut(message) {
                    Some((held, _)) => {
                        *held = Some(id.clone());
                        true
                    }
                    None => false,
                };
                // The answer was faster.
                if !stands {
                    self.remove(api, message, &id).await;
                }
            }
            None => {
                lock(&self.typing).remove(message);
            }
        }
    }

    /// The answer is there.
    pub async fn answered(&self, api: &Api, message: &str) {
        let held = lock(&self.typing).remove(message);
        if let Some((Some(id), _)) = held {
            self.remove(api, message, &id).await;
        }
    }

    /// Takes away what nobody asks for any more: the turn ended without an answer.
    pub async fn fade(&self, api: &Api, now: Duration) {
        let over = lock(&self.typing).keys_where(|(id, asked)| id.is_some() && now.saturating_sub(*asked) > FADES);
        for message in over {
            self.answered(api, &message).await;
        }
    }

    /// Puts a mark on a message in place of the earlier one. That it is in work is not said twice: typing says it too.
    pub async fn mark(&self, api: &Api, message: &str, mark: Mark) {
        let earlier = lock(&self.marks).remove(message);
        if let Some((held, id)) = earlier {
            if held == mark {
                lock(&self.marks).put(message, (held, id));
                return;
            }
            if let Some(id) = id {
                self.remove(api, message, &id).await;
            }
        }
        if mark == Mark::Working && lock(&self.typing).get(message).is_some() {
            return;
        }
        let emoji = match mark {
            Mark::Seen => "Get",
            Mark::Working => "OnIt",
            Mark::Done => "DONE",
            Mark::Failed => "CrossMark",
            Mark::None => return,
        };
        // Known before it is there, so that typing that is asked for meanwhile shows nothing.
        lock(&self.marks).put(message, (mark, None));
        match self.add(api, message, emoji).await {
            Some(id) => lock(&self.marks).put(message, (mark, Some(id))),
            None => {
                lock(&self.marks).remove(message);
            }
        }
    }

    async fn add(&self, api: &Api, message: &str, emoji: &str) -> Option<String> {
        if self.off.load(Ordering::Relaxed) {
            return None;
        }
        let path = format!("/open-apis/im/v1/messages/{}/reactions", segment(message));
        let body = json!({ "reaction_type": { "emoji_type": emoji } });
        match tokio::time::timeout(CALL_TIME, api.post(&path, &body)).await {
            Ok(Ok(answer)) => {
                let id = answer.get("data").and_then(|data| data.get("reaction_id")).and_then(Value::as_str);
                id.map(str::to_owned)
            }
            Ok(Err(error @ ApiError::NoScope(_))) => {
                self.off.store(true, Ordering::Relaxed);
                info!(%error, "no reactions are shown: the app may not set any (im:message.reactions:write_only)");
                None
            }
            Ok(Err(error)) => {
                debug!(%error, message, emoji, "a reaction is not shown");
                None
            }
            Err(_) => None,
        }
    }

    async fn remove(&self, api: &Api, message: &str, id: &str) {
        let path = format!("/open-apis/im/v1/messages/{}/reactions/{}", segment(message), segment(id));
        if let Ok(Err(error)) = tokio::time::timeout(CALL_TIME, api.call(Method::DELETE, &path, None)).await {
            debug!(%error, message, "a reaction is not taken away");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
