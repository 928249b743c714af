//! The connections to OneBot implementations and the calls that go over them.
//!
//! A connection is known by its own identity, not by the bot's number: an old one that closes late takes nothing of the
//! new one away (protocols.md §1.5). A call that ends without an answer says whether its bytes had left.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use channel_api::{Clock, Frame};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

use crate::api::HttpApi;

/// How long a call may take, if nothing else is said.
pub const CALL: Duration = Duration::from_secs(10);

/// Why a call has no result.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// Nothing was sent: try again.
    #[error("{0}")]
    NotSent(String),
    /// Bytes left and no answer came: it may have been done.
    #[error("{0}")]
    Unknown(String),
    /// The implementation says that it failed.
    #[error("{0}")]
    Failed(Failure),
}

/// What an implementation says about a call that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{words} (retcode {retcode})")]
pub struct Failure {
    /// Its number. Implementations differ: 100, 200, 1200, 1400 …
    pub retcode: i64,
    /// Its words, at most 300 characters.
    pub words: String,
}

impl Failure {
    /// It waited for QQ in vain; what was to be sent is often there all the same. protocols.md §0 trap 5.
    pub fn timed_out(&self) -> bool {
        let words = self.words.to_ascii_lowercase();
        ["timeout", "timed out", "time out", "超时", "ntevent"].iter().any(|word| words.contains(word))
    }

    /// It knows no such action.
    pub fn unsupported(&self) -> bool {
        let words = self.words.to_ascii_lowercase();
        matches!(self.retcode, 404 | 1404)
            || ["不支持的api", "不支持的 api", "unsupported", "not found api", "unknown action", "no such action"]
                .iter()
                .any(|word| words.contains(word))
            || (words.contains("api") && (words.contains("不存在") || words.contains("not exist")))
    }

    /// The token is not right.
    pub fn forbidden(&self) -> bool {
        matches!(self.retcode, 401 | 403 | 1401 | 1403)
    }
}

/// The answer of an implementation to a call: its `data`.
///
/// # Errors
/// [`Failure`], judged by `status`; NapCat gives a failed call the retcode 200.
pub fn outcome(answer: &Value) -> Result<Value, Failure> {
    let retcode = answer.get("retcode").and_then(Value::as_i64);
    let done = match answer.get("status").and_then(Value::as_str) {
        Some(status) => matches!(status, "ok" | "async"),
        None => matches!(retcode, Some(0 | 1)),
    };
    if done {
        return Ok(answer.get("data").cloned().unwrap_or(Value::Null));
    }
    let words = ["wording", "message", "msg"].iter().filter_map(|key| answer.get(key)?.as_str());
    let words = words.filter(|words| !words.trim().is_empty()).collect::<Vec<_>>().join("; ");
    let words = if words.is_empty() { "it failed without a reason".to_owned() } else { words };
    Err(Failure { retcode: retcode.unwrap_or(-1), words: words.chars().take(300).collect() })
}

/// What a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Calls.
    Api,
    /// Events.
    Event,
    /// Both.
    Universal,
}

impl Role {
    fn calls(self) -> bool {
        self != Self::Event
    }

    fn events(self) -> bool {
        self != Self::Api
    }
}

/// One open WebSocket.
pub struct Connection {
    id: u64,
    role: Role,
    outgoing: mpsc::Sender<Frame>,
    /// Calls without an answer yet; `None` once the connection is gone.
    waiting: Mutex<Option<HashMap<String, oneshot::Sender<Value>>>>,
    calls: AtomicU64,
    /// Ends the connection from our side.
    pub over: CancellationToken,
    clock: Option<Arc<dyn Clock>>,
}

impl Connection {
    /// Makes a call.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, action: &str, params: Value, limit: Duration) -> Result<Value, CallError> {
        let echo = format!("crawfish-{}-{}", self.id, self.calls.fetch_add(1, Ordering::Relaxed));
        let (tx, mut answer) = oneshot::channel();
        match self.waiting().as_mut() {
            Some(waiting) => waiting.insert(echo.clone(), tx),
            None => return Err(gone()),
        };
        let _forget = Forget { connection: self, echo: &echo };
        let frame = json!({ "action": action, "params": params, "echo": echo }).to_string();
        let deadline = sleep(self.clock.as_ref(), limit);
        tokio::pin!(deadline);
        tokio::select! {
            biased;
            () = self.over.cancelled() => return Err(gone()),
            place = self.outgoing.reserve() => match place {
                Ok(place) => place.send(Frame::Text(frame)),
                Err(_) => return Err(gone()),
            },
            () = &mut deadline => {
                // It takes nothing any more: a connection that only looks open.
                self.over.cancel();
                return Err(CallError::NotSent("the connection takes no more calls".to_owned()));
            }
        }
        tokio::select! {
            biased;
            answer = &mut answer => match answer {
                Ok(answer) => outcome(&answer).map_err(CallError::Failed),
                Err(_) => Err(CallError::Unknown("the connection ended before the answer".to_owned())),
            },
            () = &mut deadline => Err(CallError::Unknown(format!("no answer within {} s", limit.as_secs()))),
        }
    }

    /// What it carries.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Hands an answer to the call that waits for it. `false`: nobody does, or no longer.
    pub fn answered(&self, answer: Value) -> bool {
        let Some(echo) = answer.get("echo").and_then(Value::as_str) else { return false };
        let waiting = self.waiting().as_mut().and_then(|waiting| waiting.remove(echo));
        waiting.is_some_and(|waiting| waiting.send(answer).is_ok())
    }

    fn waiting(&self) -> MutexGuard<'_, Option<HashMap<String, oneshot::Sender<Value>>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn gone() -> CallError {
    CallError::NotSent("the connection is gone".to_owned())
}

/// Takes a call off the list when nobody waits for it any more.
struct Forget<'a> {
    connection: &'a Connection,
    echo: &'a str,
}

impl Drop for Forget<'_> {
    fn drop(&mut self) {
        if let Some(waiting) = self.connection.waiting().as_mut() {
            waiting.remove(self.echo);
        }
    }
}

async fn sleep(clock: Option<&Arc<dyn Clock>>, duration: Duration) {
    match clock {
        Some(clock) => clock.sleep(duration).await,
        // A look at the account before anything was opened.
        None => tokio::time::sleep(duration).await,
    }
}

/// All connections of one account.
#[derive(Default)]
pub struct Links {
    state: Mutex<State>,
    clock: OnceLock<Arc<dyn Clock>>,
    http: Option<HttpApi>,
    /// Changes with every registration.
    registered: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    next: u64,
    bots: BTreeMap<String, Slots>,
}

/// The connections of one bot; a universal one stands in both places.
#[derive(Default)]
struct Slots {
    calls: Option<Arc<Connection>>,
    events: Option<Arc<Connection>>,
}

/// What came of a registration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The bot can now be called and heard, and could not before, or not by this connection.
    pub whole: bool,
}

impl Links {
    /// Calls go by HTTP.
    pub fn by_http(api: HttpApi) -> Self {
        Self { http: Some(api), ..Self::default() }
    }

    /// From now on time is this clock's.
    pub fn keep_time(&self, clock: &Arc<dyn Clock>) {
        let _ = self.clock.set(clock.clone());
    }

    /// A new connection, not registered yet.
    pub fn open(&self, role: Role, outgoing: mpsc::Sender<Frame>) -> Arc<Connection> {
        let mut state = self.state();
        state.next += 1;
        Arc::new(Connection {
            id: state.next,
            role,
            outgoing,
            waiting: Mutex::new(Some(HashMap::new())),
            calls: AtomicU64::new(1),
            over: CancellationToken::new(),
            clock: self.clock.get().cloned(),
        })
    }

    /// The newest connection of a bot takes the places of older ones; one that has no place left is closed.
    pub fn register(&self, bot: &str, connection: &Arc<Connection>) -> Registered {
        let mut state = self.state();
        let slots = state.bots.entry(bot.to_owned()).or_default();
        let mut replaced = Vec::new();
        if connection.role.calls() {
            replaced.extend(slots.calls.replace(connection.clone()));
        }
        if connection.role.events() {
            replaced.extend(slots.events.replace(connection.clone()));
        }
        for old in replaced {
            let stays = [&slots.calls, &slots.events].into_iter().flatten().any(|kept| kept.id == old.id);
            if !stays {
                old.over.cancel();
            }
        }
        self.registered.send_replace(());
        Registered { whole: slots.calls.is_some() && slots.events.is_some() }
    }

    /// A connection is gone: its calls fail at once, and it alone leaves its places.
    pub fn close(&self, connection: &Connection) {
        connection.over.cancel();
        connection.waiting().take();
        let mut state = self.state();
        for slots in state.bots.values_mut() {
            for place in [&mut slots.calls, &mut slots.events] {
                if place.as_ref().is_some_and(|kept| kept.id == connection.id) {
                    *place = None;
                }
            }
        }
        state.bots.retain(|_, slots| slots.calls.is_some() || slots.events.is_some());
    }

    /// Whether events can come.
    pub fn hears(&self) -> bool {
        self.state().bots.values().any(|slots| slots.events.is_some())
    }

    /// Waits until this bot can be called, or for so long.
    pub async fn until_called(&self, bot: &str, limit: Duration) {
        let mut registered = self.registered.subscribe();
        let can = || self.http.is_some() || self.state().bots.get(bot).is_some_and(|slots| slots.calls.is_some());
        let connected = async {
            while !can() {
                if registered.changed().await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            biased;
            () = connected => {}
            () = sleep(self.clock.get(), limit) => {}
        }
    }

    /// The bots that are connected.
    pub fn bots(&self) -> Vec<String> {
        self.state().bots.keys().cloned().collect()
    }

    /// Makes a call in the name of `bot`.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn call(&self, bot: &str, action: &str, params: Value, limit: Duration) -> Result<Value, CallError> {
        if let Some(http) = &self.http {
            let call = http.call(action, &params);
            tokio::pin!(call);
            return tokio::select! {
                biased;
                answer = &mut call => answer,
                () = sleep(self.clock.get(), limit) => {
                    Err(CallError::Unknown(format!("no answer within {} s", limit.as_secs())))
                }
            };
        }
        let connection = self.state().bots.get(bot).and_then(|slots| slots.calls.clone());
        match connection {
            Some(connection) => connection.call(action, params, limit).await,
            None => Err(CallError::NotSent(format!("no OneBot client is connected for {bot}"))),
        }
    }

    /// How many connections hold a place.
    #[cfg(test)]
    pub fn places(&self) -> usize {
        self.state()
            .bots
            .values()
            .map(|slots| usize::from(slots.calls.is_some()) + usize::from(slots.events.is_some()))
            .sum()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn success_is_judged_by_status_and_not_by_retcode() {
        assert_eq!(outcome(&json!({"status": "ok", "retcode": 0, "data": {"a": 1}})), Ok(json!({"a": 1})));
        assert_eq!(outcome(&json!({"status": "async", "retcode": 1})), Ok(Value::Null));
        assert_eq!(outcome(&json!({"retcode": 0, "data": null})), Ok(Value::Null));
        let failed =
            outcome(&json!({"status": "failed", "retcode": 200, "message": "x".repeat(999)})).expect_err("failed");
        assert_eq!((failed.retcode, failed.words.len()), (200, 300));
        assert!(outcome(&json!({})).is_err() && outcome(&json!([])).is_err());
    }

    #[test]
    fn failures_are_told_apart_by_their_words() {
        let failure = |retcode, words: &str| Failure { retcode, words: words.to_owned() };
        assert!(failure(1200, "Timeout: NTEvent serviceAndMethod:NodeIKernelMsgService/sendMsg").timed_out());
        assert!(failure(200, "发送超时").timed_out());
        assert!(!failure(1200, "消息体无法解析").timed_out());
        assert!(failure(1404, "").unsupported() && failure(200, "不支持的Api get_x").unsupported());
        assert!(!failure(200, "群不存在").unsupported());
        assert!(failure(1403, "token验证失败").forbidden());
    }
}
