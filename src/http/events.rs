//! `GET /sse`: what happens, as it happens, and after a break what was missed.
//!
//! Rows come in the order of their sequence numbers, each once: a row told by the journal only says up to where to read.
//! Texts carry no number and are never stored; who comes in the middle of one gets it whole with its next piece.

use std::{collections::HashMap, collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    Extension,
    body::{Body, Bytes},
    extract::State,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use channel_api::InboxId;
use futures_util::stream;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::sync::broadcast::{self, error::RecvError, error::TryRecvError};
use tracing::warn;

use super::{Server, api::Asked, auth::Caller, chat::Place, error::Refusal, web};
use crate::{
    journal::LiveRow,
    session::SessionKey,
    store::{EventFilter, StoreError},
};

/// Rows read at once.
const PAGE: u32 = 256;
/// How often a stream looks whether it may go on. security.md row 6.
const LOOK: Duration = Duration::from_secs(1);

/// What a watcher asks for.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Ask {
    task_id: Option<String>,
    session: Option<String>,
    last_event_id: Option<String>,
}

/// The stream of events.
pub async fn stream(
    State(server): State<Arc<Server>>,
    Extension(caller): Extension<Caller>,
    headers: HeaderMap,
    Asked(ask): Asked<Ask>,
) -> Response {
    match Watcher::begin(server, caller, &headers, ask).await {
        Ok(watcher) => {
            let events = stream::unfold(watcher, |mut watcher| async move {
                let bytes = watcher.next().await?;
                Some((Ok::<Bytes, std::convert::Infallible>(bytes), watcher))
            });
            let mut response = Response::new(Body::from_stream(events));
            let headers = response.headers_mut();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
            // Proxies keep what they gather otherwise.
            headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
            response
        }
        Err(refusal) => refusal.into_response(),
    }
}

/// One watcher's place in the events.
struct Watcher {
    server: Arc<Server>,
    caller: Caller,
    filter: EventFilter,
    /// Every row must belong to a session whose key begins so.
    within: Option<String>,
    live: broadcast::Receiver<LiveRow>,
    /// Texts that began before this watcher saw them; each is told whole with its next piece.
    texts: HashMap<InboxId, String>,
    /// Everything up to here was told.
    last: i64,
    /// Rows up to here are in the store.
    goal: i64,
    /// What stands in the queue is older than `goal`, in part: its texts are gathered, not told.
    catching_up: bool,
    ready: VecDeque<Bytes>,
    /// When something was last written, and when it was last asked whether to go on.
    written: Duration,
    looked: Duration,
}

impl Watcher {
    async fn begin(server: Arc<Server>, caller: Caller, headers: &HeaderMap, ask: Ask) -> Result<Self, Refusal> {
        let http = &server.http;
        let (session, within) = match (&caller, ask.session.as_deref(), &ask.task_id) {
            // A local client names a task of its own, or sees its one session.
            (Caller::Local, None, Some(_)) => {
                let mine = Place::of(http, &caller, None)?.key;
                let end = mine.as_str().len() - "main".len();
                (None, Some(mine.as_str()[..end].to_owned()))
            }
            (Caller::Local, named, _) => (Some(Place::of(http, &caller, named)?.key), None),
            (_, None, _) => (None, None),
            (_, Some(key), _) if key.starts_with("agent:") => (Some(SessionKey::from(key.to_owned())), None),
            // The owner may look at everything, local clients' sessions too.
            (_, Some(name), _) if name.starts_with(web::LOCAL_PREFIX) => {
                (Some(Place::of(http, &Caller::Local, Some(name))?.key), None)
            }
            (_, named, _) => (Some(Place::of(http, &caller, named)?.key), None),
        };
        let header = headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let resumed = header.or(ask.last_event_id).filter(|id| !id.is_empty());
        let resumed = match resumed {
            Some(id) => Some(id.parse::<i64>().ok().filter(|id| *id >= 0).ok_or_else(|| {
                Refusal::new(StatusCode::BAD_REQUEST, "bad_event_id", "Last-Event-ID is not a number of ours")
            })?),
            None => None,
        };
        // First the live rows, then the store's newest: nothing falls between.
        let (live, texts) = http.journal.watch_with_texts();
        let goal = http.store.last_event().await.map_err(|_| Refusal::unavailable())?;
        let last = match (resumed, &ask.task_id) {
            // A number from before a restored backup would hide everything until it is reached again.
            (Some(id), _) => id.min(goal),
            // The task may have begun, or even ended, before its sender got here.
            (None, Some(_)) => 0,
            (None, None) => goal,
        };
        let filter = EventFilter { task: ask.task_id.map(InboxId::from), session };
        let now = http.clock.monotonic();
        Ok(Self {
            caller,
            filter,
            within,
            live,
            texts,
            last,
            goal,
            catching_up: true,
            ready: VecDeque::from([Bytes::from_static(b"retry: 2000\n: hello\n\n")]),
            written: now,
            looked: now,
            server,
        })
    }

    /// The next bytes; `None` when the stream ends.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some(bytes) = self.ready.pop_front() {
                self.written = self.server.http.clock.monotonic();
                return Some(bytes);
            }
            if !self.may_go_on() {
                return None;
            }
            if self.last < self.goal {
                if let Err(error) = self.read_rows().await {
                    // The client comes back and says where it was.
                    warn!(%error, "events could not be read; a stream ends");
                    return None;
                }
                continue;
            }
            if self.catching_up {
                self.gather();
                continue;
            }
            let http = Arc::clone(&self.server.http);
            tokio::select! {
                biased;
                () = http.stopping.cancelled() => return None,
                row = self.live.recv() => match row {
                    Ok(row) => self.take(row).await.ok()?,
                    Err(RecvError::Lagged(_)) => self.begin_again().await.ok()?,
                    Err(RecvError::Closed) => return None,
                },
                () = http.clock.sleep(LOOK.min(self.server.limits.keep_alive)) => {}
            }
            let now = http.clock.monotonic();
            if self.ready.is_empty() && now.saturating_sub(self.written) >= self.server.limits.keep_alive {
                self.ready.push_back(Bytes::from_static(b": still here\n\n"));
            }
        }
    }

    /// The token that opened the stream is still the token.
    fn may_go_on(&mut self) -> bool {
        let now = self.server.http.clock.monotonic();
        if now.saturating_sub(self.looked) < LOOK {
            return true;
        }
        self.looked = now;
        match self.caller {
            Caller::Owner { generation, .. } => self.server.auth.generation() == generation,
            Caller::Local | Caller::Anyone => true,
        }
    }

    /// Reads a page of rows up to `goal`.
    async fn read_rows(&mut self) -> Result<(), StoreError> {
        let rows = self.server.http.store.events(self.last, self.filter.clone(), PAGE).await?;
        let more = rows.len() == PAGE as usize;
        for row in rows {
            if row.seq > self.goal {
                self.last = self.goal;
                return Ok(());
            }
            self.last = row.seq;
            self.tell(&row.into());
        }
        if !more {
            self.last = self.goal;
        }
        Ok(())
    }

    /// Takes what stands in the queue from before the rows that were just read.
    fn gather(&mut self) {
        loop {
            match self.live.try_recv() {
                Ok(row) => match row.seq {
                    Some(seq) if seq > self.goal => {
                        self.texts.remove(&row.task);
                        self.goal = seq;
                        self.catching_up = false;
                        return;
                    }
                    _ if self.wants(&row) => row.apply_to(&mut self.texts),
                    _ => {}
                },
                Err(TryRecvError::Empty | TryRecvError::Closed) => {
                    self.catching_up = false;
                    return;
                }
                // `recv` says so again.
                Err(TryRecvError::Lagged(_)) => {
                    self.texts.clear();
                    self.catching_up = false;
                    return;
                }
            }
        }
    }

    async fn take(&mut self, row: LiveRow) -> Result<(), StoreError> {
        match row.seq {
            Some(seq) => {
                self.texts.remove(&row.task);
                if seq == self.last + 1 {
                    self.last = seq;
                    self.goal = seq;
                    self.tell(&row);
                } else {
                    // Those before it were committed before it, and told elsewhere or late.
                    self.goal = self.goal.max(seq);
                }
            }
            None if row.kind == LiveRow::LOOK => {
                self.goal = self.goal.max(self.server.http.store.last_event().await?);
            }
            None if self.wants(&row) => {
                if row.kind != "text_delta" {
                    self.texts.remove(&row.task);
                    self.tell(&row);
                } else if self.texts.contains_key(&row.task) {
                    row.apply_to(&mut self.texts);
                    let text = self.texts.remove(&row.task).unwrap_or_default();
                    let data = serde_json::json!({ "text": text, "replace": true });
                    self.tell(&LiveRow { data, ..row });
                } else {
                    self.tell(&row);
                }
            }
            None => {}
        }
        Ok(())
    }

    /// Too slow: the oldest events are lost to it, so it comes in anew where it was.
    async fn begin_again(&mut self) -> Result<(), StoreError> {
        let http = &self.server.http;
        (self.live, self.texts) = http.journal.watch_with_texts();
        self.goal = http.store.last_event().await?;
        self.catching_up = true;
        Ok(())
    }

    fn wants(&self, row: &LiveRow) -> bool {
        self.filter.task.as_ref().is_none_or(|task| *task == row.task)
            && self.filter.session.as_ref().is_none_or(|session| *session == row.session)
            && self.within.as_ref().is_none_or(|prefix| row.session.as_str().starts_with(prefix))
    }

    fn tell(&mut self, row: &LiveRow) {
        if self.wants(row) {
            self.ready.push_back(event(row));
        }
    }
}

/// One event as it goes over the wire.
fn event(row: &LiveRow) -> Bytes {
    let mut object = Map::new();
    object.insert("type".to_owned(), row.kind.as_str().into());
    object.insert("taskId".to_owned(), row.task.as_str().into());
    object.insert("session".to_owned(), row.session.as_str().into());
    if let Value::Object(data) = &row.data {
        for (key, value) in data {
            object.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    let json = Value::Object(object);
    Bytes::from(match row.seq {
        Some(seq) => format!("id: {seq}\ndata: {json}\n\n"),
        None => format!("data: {json}\n\n"),
    })
}
