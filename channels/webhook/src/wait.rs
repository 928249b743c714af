//! Callers that wait for their answer on the connection of their request: one JSON answer, or a stream of events.
//!
//! A waiting exchange belongs to a task of `Webhook::run`, not to the request: when the caller goes away in the middle,
//! the task still hands the answer's parts back, to be delivered by callback under the same ids. Parts count as sent
//! only when the answer was fully written.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use channel_api::{
    Accepted, ChannelContext, HttpBody, HttpResponse, Inbound, InboxId, LiveEvent, PartId, QueueMode, Settled,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};

use crate::{
    answer::{Refusal, State},
    config::Profile,
    render::{self, Envelope},
    webhook::{accept, not_waiting},
};

/// How long a written answer may take to reach the connection.
const WRITE_TIME: Duration = Duration::from_secs(60);

/// The same once the gateway stops: what is on its way may still arrive, nobody is waited for.
const LAST_WRITE_TIME: Duration = Duration::from_secs(1);

/// A sign of life for the caller of a stream.
const PING: Duration = Duration::from_secs(15);

/// How the caller waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// For one JSON answer, at most so long.
    Answer(Duration),
    /// On a stream of events.
    Stream,
}

/// One waiting caller, as a job for a task of `run`.
pub struct Exchange {
    /// What the adapter may use.
    pub ctx: ChannelContext,
    /// The message; not accepted yet.
    pub message: Inbound,
    /// How its caller waits.
    pub wait: Wait,
    /// The shape of its answer.
    pub profile: Profile,
    /// Takes the answer; closed when the caller went away.
    pub reply: oneshot::Sender<HttpResponse>,
    /// Who else waits.
    pub seats: Arc<Seats>,
}

impl Exchange {
    /// Accepts the message, waits for its end and answers.
    pub async fn run(mut self) {
        self.message.hold = true;
        self.message.queue = Some(QueueMode::Followup);
        let (inbox, duplicate) = match accept(&self.ctx, self.message.clone()).await {
            Ok(Accepted::New(inbox)) => (inbox, false),
            Ok(Accepted::Duplicate(inbox)) => (inbox, true),
            Ok(other) => {
                let response = not_waiting(&self.message.platform_id, self.profile, &other);
                let _ = self.reply.send(response.unwrap_or_else(|refusal| refusal.response()));
                return;
            }
            Err(refusal) => {
                let _ = self.reply.send(refusal.response());
                return;
            }
        };
        self.seats.sit(&inbox);
        let seats = self.seats.clone();
        let ctx = self.ctx.clone();
        let handed_over = match self.wait {
            Wait::Answer(limit) => self.answer(&inbox, duplicate, limit).await,
            Wait::Stream => self.stream(&inbox, duplicate).await,
        };
        match handed_over {
            Some(parts) if !parts.is_empty() => {
                seats.leave(&inbox, true);
                ctx.settlements.handed_over(&inbox, &parts).await;
            }
            Some(_) => drop(seats.leave(&inbox, true)),
            // Others may still get it in place; the last to leave empty-handed gives it back.
            None if seats.leave(&inbox, false) => ctx.settlements.release(&inbox).await,
            None => {}
        }
    }

    /// One JSON answer. Returns the parts that were handed over, or `None` if they were not.
    async fn answer(self, inbox: &InboxId, duplicate: bool, limit: Duration) -> Option<Vec<PartId>> {
        let Self { ctx, message, profile, mut reply, .. } = self;
        let state = State { id: &message.platform_id, duplicate };
        let mut events = ctx.settlements.watch(inbox).await;
        // What was settled before the watch began sends no event.
        let mut settled = ctx.settlements.settled(inbox).await;
        if settled.is_none() {
            settled = tokio::select! {
                settled = end_of(&ctx, inbox, &mut events) => settled,
                () = ctx.clock.sleep(limit) => None,
                () = reply.closed() => return None,
                () = ctx.shutdown.cancelled() => None,
            };
        }
        let Some(settled) = settled else {
            let mut body = state.accepted();
            if profile == Profile::Reply {
                body["reply"] = json!("");
            }
            let _ = reply.send(HttpResponse::json(StatusCode::ACCEPTED, &body));
            return None;
        };
        let body = match profile {
            Profile::Standard => state.done(&settled, messages(&ctx, &message, &settled).await),
            Profile::Reply => json!({ "reply": texts(&settled) }),
        };
        let response = HttpResponse::json(StatusCode::OK, &body);
        let response =
            response.with_header(HeaderName::from_static("preference-applied"), &format!("wait={}", limit.as_secs()));
        let (response, written) = response.confirmed();
        reply.send(response).ok()?;
        tokio::select! {
            written = written => written.ok()?,
            () = too_long(&ctx) => return None,
        }
        Some(part_ids(&settled))
    }

    /// A stream of events. Returns the parts that were handed over, or `None` if they were not.
    async fn stream(self, inbox: &InboxId, duplicate: bool) -> Option<Vec<PartId>> {
        let Self { ctx, message, reply, .. } = self;
        let state = State { id: &message.platform_id, duplicate };
        let mut events = ctx.settlements.watch(inbox).await;
        let mut settled = ctx.settlements.settled(inbox).await;
        // One place: a chunk fits only when the one before was taken by the connection.
        let (chunks, body) = mpsc::channel(1);
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        reply.send(HttpResponse { status: StatusCode::OK, headers, body: HttpBody::Stream(body) }).ok()?;
        let mut stream = EventStream { chunks, number: 0 };
        while settled.is_none() {
            let event = tokio::select! {
                event = events.recv() => event,
                () = ctx.clock.sleep(PING) => {
                    tokio::select! {
                        sent = stream.comment("ping") => sent?,
                        () = ctx.shutdown.cancelled() => return None,
                    }
                    continue;
                }
                () = stream.chunks.closed() => return None,
                () = ctx.shutdown.cancelled() => return None,
            };
            let (name, shown) = match event {
                Some(LiveEvent::Started | LiveEvent::Waiting(_)) => {
                    ("typing", json!({ "v": 1, "type": "typing", "in_reply_to": state.id }))
                }
                Some(LiveEvent::Text(text)) => (
                    "message.update",
                    json!({
                        "v": 1, "type": "message.update", "conversation": message.address.data,
                        "in_reply_to": state.id, "text": text, "format": "markdown", "final": false,
                    }),
                ),
                // A plan and steps are for chats that show them; who waits in place waits for the words.
                Some(LiveEvent::Plan(_) | LiveEvent::Step(_)) => continue,
                Some(LiveEvent::Settled(end)) => {
                    settled = Some(end);
                    continue;
                }
                None => {
                    // The watch ended without an end: the row knows.
                    settled = Some(ctx.settlements.settled(inbox).await?);
                    continue;
                }
            };
            tokio::select! {
                sent = stream.event(name, &shown) => sent?,
                () = ctx.shutdown.cancelled() => return None,
            }
        }
        let settled = settled?;
        let last_words = async {
            for message in messages(&ctx, &message, &settled).await {
                stream.event("message", &message).await?;
            }
            stream.event("done", &state.ended(&settled)).await?;
            stream.comment("end").await?;
            // There is room again only when the comment, and so all before it, was taken.
            stream.chunks.reserve().await.ok().map(drop)
        };
        tokio::select! {
            taken = last_words => taken?,
            () = too_long(&ctx) => return None,
        }
        Some(part_ids(&settled))
    }
}

/// Ends when an answer has had its time to be written.
async fn too_long(ctx: &ChannelContext) {
    let stopping = async {
        ctx.shutdown.cancelled().await;
        ctx.clock.sleep(LAST_WRITE_TIME).await;
    };
    tokio::select! {
        () = ctx.clock.sleep(WRITE_TIME) => {}
        () = stopping => {}
    }
}

/// Waits for the end of a message; `None` when its watch ended without one.
async fn end_of(ctx: &ChannelContext, inbox: &InboxId, events: &mut mpsc::Receiver<LiveEvent>) -> Option<Settled> {
    loop {
        match events.recv().await {
            Some(LiveEvent::Settled(settled)) => return Some(settled),
            Some(_) => {}
            None => return ctx.settlements.settled(inbox).await,
        }
    }
}

async fn messages(ctx: &ChannelContext, message: &Inbound, settled: &Settled) -> Vec<Value> {
    settled_messages(ctx, &message.platform_id, Some(&message.address.data), settled).await
}

/// The messages of an end, as they would be posted.
pub async fn settled_messages(
    ctx: &ChannelContext,
    in_reply_to: &str,
    conversation: Option<&Value>,
    settled: &Settled,
) -> Vec<Value> {
    let mut messages = Vec::with_capacity(settled.parts.len());
    for part in &settled.parts {
        let envelope = Envelope {
            id: part.id.as_str(),
            conversation,
            in_reply_to: Some(in_reply_to),
            seq: part.seq,
            last: part.last,
            created_at: part.created_at,
        };
        messages.push(render::message(envelope, &part.part, ctx.media.as_ref()).await);
    }
    messages
}

fn texts(settled: &Settled) -> String {
    let texts: Vec<&str> = settled.parts.iter().map(|part| part.part.text.as_str()).collect();
    texts.join("\n")
}

fn part_ids(settled: &Settled) -> Vec<PartId> {
    settled.parts.iter().map(|part| part.id.clone()).collect()
}

/// Writes server-sent events; `None` from any method means that the caller went away.
struct EventStream {
    chunks: mpsc::Sender<Bytes>,
    number: u64,
}

impl EventStream {
    /// `data` is one line: JSON escapes line breaks.
    async fn event(&mut self, name: &str, data: &Value) -> Option<()> {
        self.number += 1;
        let chunk = format!("event: {name}\nid: {}\ndata: {data}\n\n", self.number);
        self.chunks.send(Bytes::from(chunk)).await.ok()
    }

    async fn comment(&mut self, text: &str) -> Option<()> {
        self.chunks.send(Bytes::from(format!(": {text}\n\n"))).await.ok()
    }
}

/// How many callers wait for each message, and whether one of them got it: a caller that gives up must not take the
/// answer from another that still waits.
#[derive(Default)]
pub struct Seats(Mutex<HashMap<InboxId, Seat>>);

#[derive(Default)]
struct Seat {
    waiting: usize,
    served: bool,
}

impl Seats {
    fn sit(&self, message: &InboxId) {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        seats.entry(message.clone()).or_default().waiting += 1;
    }

    /// True when this was the last to leave and nobody was served: the answer must find another way.
    fn leave(&self, message: &InboxId, served: bool) -> bool {
        let mut seats = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(seat) = seats.get_mut(message) else { return !served };
        seat.waiting = seat.waiting.saturating_sub(1);
        seat.served |= served;
        let give_back = seat.waiting == 0 && !seat.served;
        if seat.waiting == 0 {
            seats.remove(message);
        }
        give_back
    }
}

/// How the caller of a request wants to wait; `None` is not at all.
pub fn wanted(headers: &HeaderMap, profile: Profile) -> Option<Wait> {
    let listed = |name: HeaderName| -> Vec<String> {
        let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).map(|item| item.trim().to_ascii_lowercase()).collect()
    };
    let streams = listed(header::ACCEPT).iter().any(|kind| kind.split(';').next() == Some("text/event-stream"));
    if streams {
        return Some(Wait::Stream);
    }
    let preferences = listed(HeaderName::from_static("prefer"));
    let seconds = preferences.iter().find_map(|item| {
        let (name, value) = item.split(';').next()?.split_once('=')?;
        (name.trim() == "wait").then(|| value.trim().trim_matches('"').parse::<u64>().ok())?
    });
    let asynchronous = preferences.iter().any(|item| item == "respond-async");
    let seconds = seconds.or((profile == Profile::Reply && !asynchronous).then_some(60))?;
    (seconds > 0).then(|| Wait::Answer(Duration::from_secs(seconds.min(120))))
}

/// The gateway takes no waiting callers just now.
pub fn closed() -> Refusal {
    Refusal::Unavailable(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_headers_say_how_long_the_caller_waits() {
        let wanted = |name: &'static str, value: &str, profile| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_str(value).expect("a value"));
            super::wanted(&headers, profile)
        };
        let seconds = |n| Some(Wait::Answer(Duration::from_secs(n)));
        for (value, expected) in [
            ("wait=30", seconds(30)),
            ("Wait = \"5\"", seconds(5)),
            ("return=minimal, wait=7; x=y", seconds(7)),
            ("wait=999999", seconds(120)),
            ("wait=0", None),
            ("wait=-1", None),
            ("wait=soon", None),
            ("wait", None),
            ("respond-async", None),
        ] {
            assert_eq!(wanted("prefer", value, Profile::Standard), expected, "{value}");
        }
        assert_eq!(wanted("accept", "text/event-stream", Profile::Standard), Some(Wait::Stream));
        assert_eq!(wanted("accept", "application/json, text/event-stream;q=0.5", Profile::Reply), Some(Wait::Stream));
        assert_eq!(wanted("accept", "*/*", Profile::Standard), None);
        assert_eq!(wanted("accept", "*/*", Profile::Reply), seconds(60));
        assert_eq!(wanted("prefer", "wait=3", Profile::Reply), seconds(3));
        assert_eq!(wanted("prefer", "respond-async", Profile::Reply), None);
    }

    #[test]
    fn only_the_last_to_leave_empty_handed_gives_the_answer_back() {
        let (seats, id) = (Seats::default(), InboxId::generate());
        seats.sit(&id);
        seats.sit(&id);
        assert!(!seats.leave(&id, false));
        assert!(seats.leave(&id, false));
        seats.sit(&id);
        seats.sit(&id);
        assert!(!seats.leave(&id, true));
        assert!(!seats.leave(&id, false), "the other one got it");
        assert!(seats.0.lock().expect("not poisoned").is_empty());
    }
}
