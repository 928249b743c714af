//! Streaming cards: an answer that is seen while it is written. Every change of a card carries a number above all earlier
//! ones, so changes of one card are made one after the other. protocols.md §2.3, rule 14.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use channel_api::{Preview, SendError, TextUnit, split};
use reqwest::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{debug, info};

use crate::{
    api::{Api, ApiError, segment},
    markdown::{self, MOST_TABLES},
    render::{self, ELEMENT},
    send::{Form, deliver, send_error},
    target::Target,
};

/// The most changes of one card in a second; one more is left for the final text.
const OPS_A_SECOND: usize = 9;
/// The longest text of a preview, in characters: what the first part of the answer can hold.
const PREVIEW_CHARS: usize = 3_500;
/// The number of a change is not above that of an earlier one.
const OUT_OF_ORDER: i64 = 300_317;
/// The card no longer streams: that ends by itself after ten minutes.
const CLOSED: i64 = 300_309;
/// How often a change is tried with a higher number.
const TRIES: usize = 4;

/// The cards that are being written.
pub struct Streams {
    cards: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Card>>>>,
    off: AtomicBool,
}

#[derive(Debug, Default)]
struct Card {
    /// The number of the last change.
    sequence: i64,
    /// When the last changes were made.
    ops: VecDeque<Duration>,
    /// What it shows.
    shown: String,
}

/// What [`Preview::id`] holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Handle {
    /// The card.
    #[serde(rename = "c")]
    pub card: String,
    /// The message that shows it.
    #[serde(rename = "m")]
    pub message: String,
    /// When it was made, in epoch milliseconds: numbers of changes grow with its age, so that they rise over a restart.
    #[serde(rename = "t")]
    pub made: i64,
}

impl Handle {
    /// From a preview's id; `None` when it is none of this channel's.
    pub fn of(preview: &str) -> Option<Self> {
        serde_json::from_str(preview).ok()
    }
}

/// What became of the final text.
pub enum Finished {
    /// It stands in the preview's place.
    Shown(String),
    /// The preview cannot take it: it must be sent as a message of its own.
    Gone,
}

/// The time, as the numbers need it.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// Epoch milliseconds.
    pub wall: i64,
    /// Since some moment.
    pub monotonic: Duration,
}

impl Streams {
    /// No card yet. `on`: whether there are to be any.
    pub fn new(on: bool) -> Self {
        Self { cards: Mutex::default(), off: AtomicBool::new(!on) }
    }

    /// Whether answers are shown while they are written.
    pub fn on(&self) -> bool {
        !self.off.load(Ordering::Relaxed)
    }

    /// Makes a card and shows it.
    ///
    /// # Errors
    /// [`SendError`]; an app without the permission is not asked twice.
    pub async fn begin(&self, api: &Api, target: &Target, text: &str, now: Now) -> Result<Preview, SendError> {
        let shown = fit(text);
        let card = render::card(&shown, "", &[], target, true);
        let body = json!({ "type": "card_json", "data": card.to_string() });
        let answer = api.post("/open-apis/cardkit/v1/cards", &body).await.map_err(|error| {
            if matches!(error, ApiError::NoScope(_)) {
                self.off.store(true, Ordering::Relaxed);
                info!(%error, "answers are not shown while they are written: the permission cardkit:card:write is missing");
            }
            send_error(error)
        })?;
        let card = answer.get("data").and_then(|data| data.get("card_id")).and_then(Value::as_str);
        let card = card.filter(|card| !card.is_empty() && card.len() <= 128);
        let Some(card) = card else { return Err(SendError::Unknown("a card without an id".to_owned())) };
        let content = json!({ "type": "card", "data": { "card_id": card } });
        let form = Form { kind: "interactive", content };
        let quote = if target.direct { None } else { target.reply.clone() };
        let message =
            deliver(api, target, &form, quote, &format!("pv_{card}").chars().take(50).collect::<String>()).await;
        let message = message.map_err(send_error)?;
        let Some(message) = message else { return Err(SendError::Unknown("a message without an id".to_owned())) };
        let handle = Handle { card: card.to_owned(), message, made: now.wall };
        let state = Card { shown, ..Card::default() };
        lock(&self.cards).insert(card.to_owned(), Arc::new(tokio::sync::Mutex::new(state)));
        Ok(Preview { id: json!(handle).to_string(), replaced: true })
    }

    /// Shows more of it.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn update(&self, api: &Api, handle: &Handle, text: &str, now: Now) -> Result<(), SendError> {
        let shown = fit(text);
        let card = self.card(&handle.card);
        let mut card = card.lock().await;
        if card.shown == shown {
            return Ok(());
        }
        if card.busy(now.monotonic) {
            return Err(SendError::RetryAfter(Duration::from_millis(300)));
        }
        let path = format!("/open-apis/cardkit/v1/cards/{}/elements/{ELEMENT}/content", segment(&handle.card));
        let body = json!({ "content": shown });
        match card.change(api, handle, now, Method::PUT, &path, body.clone()).await {
            Err(error) if error.code() == Some(CLOSED) => {
                self.settings(api, &mut card, handle, now, true).await.map_err(send_error)?;
                card.change(api, handle, now, Method::PUT, &path, body).await.map_err(send_error)?;
            }
            changed => changed.map_err(send_error)?,
        }
        card.shown = shown;
        Ok(())
    }

    /// Puts the final text in the preview's place, and ends the streaming: one change that may be repeated. `cards` are the
    /// forms it may have, the best first.
    ///
    /// # Errors
    /// [`SendError`] when it is not known or not yet.
    pub async fn finish(&self, api: &Api, handle: &Handle, cards: &[Value], now: Now) -> Result<Finished, SendError> {
        let state = self.card(&handle.card);
        let mut state = state.lock().await;
        let path = format!("/open-apis/cardkit/v1/cards/{}", segment(&handle.card));
        for card in cards {
            let body = json!({ "card": { "type": "card_json", "data": card.to_string() } });
            match state.change(api, handle, now, Method::PUT, &path, body).await {
                Ok(()) => {
                    lock(&self.cards).remove(&handle.card);
                    return Ok(Finished::Shown(handle.message.clone()));
                }
                Err(error @ (ApiError::Refused { .. } | ApiError::NoScope(_))) => {
                    debug!(%error, card = handle.card, "the preview does not take the final text in this form");
                }
                Err(error) => return Err(send_error(error)),
            }
        }
        drop(state);
        self.drop_preview(api, handle, now).await;
        Ok(Finished::Gone)
    }

    /// Takes the preview away, or ends its streaming where it cannot be taken away.
    pub async fn drop_preview(&self, api: &Api, handle: &Handle, now: Now) {
        let path = format!("/open-apis/im/v1/messages/{}", segment(&handle.message));
        if let Err(error) = api.call(Method::DELETE, &path, None).await {
            debug!(%error, "a preview could not be taken away");
            let card = self.card(&handle.card);
            let mut card = card.lock().await;
            if let Err(error) = self.settings(api, &mut card, handle, now, false).await {
                debug!(%error, "a preview could not be closed");
            }
        }
        lock(&self.cards).remove(&handle.card);
    }

    async fn settings(&self, api: &Api, card: &mut Card, handle: &Handle, now: Now, on: bool) -> Result<(), ApiError> {
        let path = format!("/open-apis/cardkit/v1/cards/{}/settings", segment(&handle.card));
        let settings = json!({ "config": { "streaming_mode": on } }).to_string();
        card.change(api, handle, now, Method::PATCH, &path, json!({ "settings": settings })).await
    }

    fn card(&self, id: &str) -> Arc<tokio::sync::Mutex<Card>> {
        let mut cards = lock(&self.cards);
        if cards.len() > 1_024 {
            cards.retain(|_, card| Arc::strong_count(card) > 1);
        }
        cards.entry(id.to_owned()).or_default().clone()
    }
}

impl Card {
    /// One change, with the next number; tried with higher ones where the platform has seen a higher one already.
    async fn change(
        &mut self,
        api: &Api,
        handle: &Handle,
        now: Now,
        method: Method,
        path: &str,
        mut body: Value,
    ) -> Result<(), ApiError> {
        let mut tries = 0;
        loop {
            tries += 1;
            self.sequence = self.next(handle, now);
            self.ops.push_back(now.monotonic);
            body["sequence"] = json!(self.sequence);
            match api.call(method.clone(), path, Some(&body)).await {
                Ok(_) => return Ok(()),
                Err(error) if error.code() == Some(OUT_OF_ORDER) && tries < TRIES => {
                    debug!(card = handle.card, sequence = self.sequence, "a higher number was seen already");
                    self.sequence += 1_000 * i64::try_from(tries).unwrap_or(1);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Above the last one, and above all that another process could have used: at most ten a second since it was made.
    fn next(&self, handle: &Handle, now: Now) -> i64 {
        let age = now.wall.saturating_sub(handle.made).clamp(0, 14 * 24 * 60 * 60 * 1_000) / 100;
        (self.sequence + 1).max(age)
    }

    fn busy(&mut self, now: Duration) -> bool {
        while self.ops.front().is_some_and(|at| now.saturating_sub(*at) >= Duration::from_secs(1)) {
            self.ops.pop_front();
        }
        self.ops.len() >= OPS_A_SECOND
    }
}

/// What a preview shows of a text.
fn fit(text: &str) -> String {
    let end = split::piece(text, PREVIEW_CHARS, TextUnit::Chars);
    let fit = markdown::for_card(&text[..end], MOST_TABLES);
    if end < text.len() { format!("{} …", fit.trim_end()) } else { fit }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
