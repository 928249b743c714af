//! The fake chat platform behind the webhook: signs and posts messages, receives callbacks and knows which message each
//! answers.

use std::{
    collections::{HashMap, HashSet},
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::{Engine, engine::general_purpose::STANDARD};
use channel_api::Clock;
use crawfish::clock::SystemClock;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use tokio::sync::{Notify, oneshot};

use crate::wire::{Answer, Client, Message};

/// The key of both directions, as the config has it.
pub const SECRET: &str = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=";
/// The sender of every message; an owner, so that requests carry all tools.
pub const OWNER: &str = "bench-owner";

/// How long an answer may take before the run is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// The platform's state.
pub struct Platform {
    clock: SystemClock,
    state: Mutex<State>,
    arrived: Notify,
}

#[derive(Default)]
struct State {
    /// Who waits for the answer to a message.
    waiting: HashMap<String, oneshot::Sender<Duration>>,
    /// Ids of callbacks seen, for telling a repetition from a second answer.
    seen: HashSet<String>,
    /// How often each mark was answered by callbacks of different ids.
    answered: HashMap<String, u32>,
    /// Callbacks that came again under an id already seen.
    repeated: u64,
    /// The first callback that reported a failure.
    failure: Option<String>,
}

/// The times of one message, all on the platform's clock.
#[derive(Clone, Copy, Debug)]
pub struct Trip {
    /// Its first byte was about to be sent.
    pub sent: Duration,
    /// Its 202 had been read.
    pub acked: Duration,
    /// Its callback had been read.
    pub answered: Duration,
}

impl Platform {
    /// An idle platform.
    pub fn new() -> Arc<Self> {
        Arc::new(Self { clock: SystemClock::new(), state: Mutex::default(), arrived: Notify::new() })
    }

    /// Time since the platform began.
    pub fn now(&self) -> Duration {
        self.clock.monotonic()
    }

    /// Receives one callback. Signatures are not checked: the adapter's own tests do that, and here it would cost CPU.
    pub async fn receive(self: Arc<Self>, request: Message) -> Answer {
        let at = self.now();
        let body: Value = match serde_json::from_slice(&request.body) {
            Ok(body) => body,
            Err(_) => return Answer::json(400, "{}"),
        };
        let text = body["text"].as_str().unwrap_or("");
        let id = request.header("webhook-id").unwrap_or("").to_owned();
        let mut state = self.lock();
        if body["type"] == "error" && state.failure.is_none() {
            state.failure = Some(text.to_owned());
        }
        if state.seen.insert(id) {
            for mark in text.split_inclusive(' ').filter_map(|word| word.split('#').nth(1)) {
                *state.answered.entry(mark.to_owned()).or_default() += 1;
            }
        } else {
            state.repeated += 1;
        }
        if let Some(waiter) = body["in_reply_to"].as_str().and_then(|message| state.waiting.remove(message)) {
            // Nobody waits any more: the load was given up.
            let _ = waiter.send(at);
        }
        drop(state);
        self.arrived.notify_waiters();
        Answer::json(200, "{}")
    }

    /// Waits until `done` holds for what was answered: mark → by how many callbacks. False when it takes too long.
    pub async fn wait_for(&self, patience: Duration, done: impl Fn(&HashMap<String, u32>) -> bool) -> bool {
        let until = self.now() + patience;
        loop {
            let arrived = self.arrived.notified();
            tokio::pin!(arrived);
            arrived.as_mut().enable();
            if done(&self.lock().answered) {
                return true;
            }
            let Some(left) = until.checked_sub(self.now()) else { return false };
            if tokio::time::timeout(left, arrived).await.is_err() {
                return done(&self.lock().answered);
            }
        }
    }

    /// How many callbacks of different ids answered this mark.
    pub fn answers(&self, mark: &str) -> u32 {
        self.lock().answered.get(mark).copied().unwrap_or(0)
    }

    /// Callbacks that came again under the same id (a receiver knows them and ignores them).
    pub fn repeated(&self) -> u64 {
        self.lock().repeated
    }

    /// The text of the first callback that reported a failure; forgotten by asking.
    pub fn failure(&self) -> Option<String> {
        self.lock().failure.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One sender with a connection of its own.
pub struct Sender {
    platform: Arc<Platform>,
    client: Client,
}

impl Sender {
    /// A sender to the gateway at `to`.
    pub fn new(platform: &Arc<Platform>, to: SocketAddr) -> Self {
        Self { platform: Arc::clone(platform), client: Client::new(to) }
    }

    /// Posts one message, once. Answers with the status.
    ///
    /// # Errors
    /// When the gateway is not there.
    pub async fn post(&mut self, conversation: &str, id: &str) -> std::io::Result<u16> {
        let body = json!({
            "v": 1,
            "id": id,
            "conversation": { "id": conversation, "type": "direct" },
            "sender": { "id": OWNER, "name": "Bench" },
            "text": format!("What is the weather like in Hangzhou today? #{id}#"),
        })
        .to_string();
        let seconds = self.platform.clock.now_ms() / 1000;
        let signature = sign(id, seconds, body.as_bytes());
        let headers = format!(
            "content-type: application/json\r\nwebhook-id: {id}\r\nwebhook-timestamp: {seconds}\r\n\
             webhook-signature: v1,{signature}\r\n"
        );
        let (status, _) = self.client.send("POST", "/channels/webhook/bridge", &headers, body.as_bytes()).await?;
        Ok(status)
    }

    /// One message from post to callback.
    ///
    /// # Errors
    /// A line that says what went wrong.
    pub async fn trip(&mut self, conversation: &str, id: &str) -> Result<Trip, String> {
        let (answer, answered) = oneshot::channel();
        self.platform.lock().waiting.insert(id.to_owned(), answer);
        let sent = self.platform.now();
        let status = self.post(conversation, id).await.map_err(|error| format!("posting {id}: {error}"))?;
        let acked = self.platform.now();
        if status != 202 {
            return Err(format!("posting {id}: the gateway answered {status}"));
        }
        match tokio::time::timeout(PATIENCE, answered).await {
            Ok(Ok(answered)) => Ok(Trip { sent, acked, answered }),
            _ => Err(format!("no callback for {id} within {} s", PATIENCE.as_secs())),
        }
    }
}

fn sign(id: &str, seconds: i64, body: &[u8]) -> String {
    let key = STANDARD.decode(SECRET.trim_start_matches("whsec_")).unwrap_or_default();
    let mut mac = Hmac::<Sha256>::new_from_slice(&key).expect("HMAC takes keys of any length");
    mac.update(format!("{id}.{seconds}.").as_bytes());
    mac.update(body);
    STANDARD.encode(mac.finalize().into_bytes())
}
