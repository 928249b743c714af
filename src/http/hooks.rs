//! `POST /hooks/wake` and `POST /hooks/agent`: programs that say something to the agent. The answer is 202 and the
//! address of the run, whose status can be followed to its end.
//!
//! A caller proves itself by the token of `[hooks]` in a header, which opens nothing else. What it says is a report, read
//! with the rights of `[hooks] role`; it cannot name a chat that the owner did not list.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse, Response},
};
use channel_api::{Address, ChannelId, Sender, Trust};
use serde::Deserialize;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::{Server, api::Named, body, error::Refusal, initiative::Initiative, json_answer};
use crate::{
    channels::Channels,
    chats::{Barred, Place, web_chat},
    errand::{Errand, ErrandKind, Order, PROGRAM},
    heartbeat::{
        Beat,
        rows::{Called, HookRow, RunState},
        tick::{slot, slot_end},
    },
    lang::{self, Lang},
    policy::Role,
    schedule::when::Span,
    secrets::Secret,
    session::SessionKey,
    store::StoreError,
};

/// The largest body. openclaw-parity.md §8.1.
const BODY: usize = 256 * 1024;
/// The longest text, in characters, and the longest name or key.
const TEXT: usize = 16_000;
const NAME: usize = 128;
/// The shortest token.
pub const MIN_TOKEN: usize = 16;
/// This many wrong tokens within [`WINDOW`] refuse every wrong one for as long.
const WRONG: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);

/// `[hooks]`: lets programs speak to the agent.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HooksConfig {
    /// The routes are there.
    pub enabled: bool,
    /// What callers prove themselves by: at least 16 characters, and not the gateway's own token.
    pub token: Option<Secret>,
    /// What their words may do: `member` reads, `trusted` and `owner` have effects, `stranger` has no tools.
    pub role: Role,
    /// Chats that callers may name besides the owner's: `telegram:main:-100123`.
    pub targets: Vec<String>,
    /// The most calls a minute.
    pub per_min: u32,
}

impl Default for HooksConfig {
    fn default() -> Self {
        Self { enabled: false, token: None, role: Role::Member, targets: Vec::new(), per_min: 60 }
    }
}

/// When calls came, in memory: a restart forgives.
#[derive(Debug, Default)]
pub struct Calls {
    right: Mutex<VecDeque<Duration>>,
    wrong: Mutex<VecDeque<Duration>>,
}

/// The first of the last minute that still counts, if there are `most` of them; else counts this one.
fn counted(at: &Mutex<VecDeque<Duration>>, most: usize, now: Duration) -> Result<(), Duration> {
    let mut at = at.lock().unwrap_or_else(PoisonError::into_inner);
    at.retain(|one| now.saturating_sub(*one) < WINDOW);
    if at.len() >= most {
        return Err((at.front().copied().unwrap_or(now) + WINDOW).saturating_sub(now));
    }
    at.push_back(now);
    Ok(())
}

/// The body of `/hooks/wake`, by the names OpenClaw's callers use. What else is in it is ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WakeBody {
    text: String,
    #[serde(default)]
    mode: Option<String>,
    #[serde(default, alias = "agent")]
    agent_id: Option<String>,
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// The body of `/hooks/agent`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct AgentBody {
    message: String,
    #[serde(default)]
    name: Option<String>,
    #[serde(default, alias = "agent")]
    agent_id: Option<String>,
    #[serde(default, alias = "session")]
    session_key: Option<String>,
    #[serde(default)]
    deliver: Option<bool>,
    #[serde(default)]
    channel: Option<String>,
    #[serde(default)]
    account_id: Option<String>,
    #[serde(default)]
    to: Option<String>,
    #[serde(default)]
    model: Option<String>,
    #[serde(default)]
    idempotency_key: Option<String>,
}

type Answer = Result<Response, Refusal>;
type Gateway = State<Arc<Server>>;

/// `POST /hooks/wake {"text", "mode"?: "now" | "next-heartbeat", "agentId"?}` → 202.
pub(super) async fn wake(State(server): Gateway, headers: HeaderMap, sent: Body) -> Answer {
    let (hooks, bytes) = admitted(&server, &headers, sent).await?;
    let asked: WakeBody = body::json(&bytes)?;
    let text = said(&asked.text, "text")?;
    let beat = beat(hooks, asked.agent_id.as_deref())?;
    let now = server.http.clock.now_ms();
    let every = beat.config.every;
    let due_at = match asked.mode.as_deref() {
        None | Some("now") => 0,
        Some("next-heartbeat") if every == Span::default() => 0,
        Some("next-heartbeat") => slot_end(every, slot(every, now)),
        Some(_) => return Err(Refusal::invalid("`mode` is `now` or `next-heartbeat`")),
    };
    let row = HookRow {
        kind: "wake".to_owned(),
        agent: beat.agent.clone(),
        text,
        due_at,
        ..row(&headers, asked.idempotency_key, &bytes, now)?
    };
    let answer = called(hooks, &row, None).await?;
    hooks.heartbeat.wake();
    Ok(answer)
}

/// `POST /hooks/agent {"message", "name"?, "agentId"?, "sessionKey"?, "deliver"?, "channel"? + "to"?, "model"?}` → 202.
pub(super) async fn agent(State(server): Gateway, headers: HeaderMap, sent: Body) -> Answer {
    let (hooks, bytes) = admitted(&server, &headers, sent).await?;
    let asked: AgentBody = body::json(&bytes)?;
    let text = said(&asked.message, "message")?;
    let agent = beat(hooks, asked.agent_id.as_deref())?.agent.clone();
    if asked.model.as_ref().is_some_and(|model| !hooks.models.contains(model)) {
        return Err(Refusal::invalid("`model` is not one of [models]"));
    }
    let now = server.http.clock.now_ms();
    let row = HookRow {
        kind: "agent".to_owned(),
        agent: agent.clone(),
        text: text.clone(),
        ..row(&headers, asked.idempotency_key.clone(), &bytes, now)?
    };
    let place = place(hooks, &asked, &agent).await?;
    let order = Order {
        errand: Errand {
            kind: ErrandKind::Hook,
            id: row.id.clone(),
            model: asked.model,
            parent: None,
            depth: 1,
            tick: None,
        },
        platform_id: format!("hook:{}", row.id),
        session: session(&agent, asked.session_key.as_deref(), &row.id)?,
        agent,
        role: hooks.hooks.role,
        sender: Sender {
            id: PROGRAM.to_owned(),
            name: Some(asked.name.unwrap_or_else(|| "hook".to_owned()).chars().take(NAME).collect()),
            is_bot: true,
        },
        conversation: place.conversation,
        address: place.address,
        text,
        attachments: Vec::new(),
        trust: Trust::Relayed,
        not_before: 0,
    };
    let answer = called(hooks, &row, Some(order.entry(now, hooks.cap))).await?;
    hooks.work.wake();
    Ok(answer)
}

/// `GET /hooks/runs/{id}`: how a run stands.
pub(super) async fn run(State(server): Gateway, headers: HeaderMap, Named(id): Named) -> Answer {
    let hooks = caller(&server, &headers).await?;
    let row = hooks.rows.hook(&id).await.map_err(unavailable)?.ok_or_else(Refusal::not_found)?;
    let state = match &row.entry {
        Some(entry) => hooks.rows.run_state(entry).await.map_err(unavailable)?,
        None => Some(RunState { state: "waiting".to_owned(), ..RunState::default() }),
    };
    // The rows of a run go after a week, its call a little later.
    let state = state.unwrap_or_else(|| RunState { state: "forgotten".to_owned(), ..RunState::default() });
    let sent = |part: &Value| part["state"] == "sent";
    let delivered = !state.parts.is_empty() && state.parts.iter().all(sent);
    Ok(json_answer(
        StatusCode::OK,
        &json!({
            "success": true, "ok": true, "runId": row.id, "kind": row.kind, "agentId": row.agent, "createdAt": row.created_at,
            "status": state.state, "session": state.session, "turn": state.turn, "silent": state.silent,
            "error": state.error, "reply": state.reply, "delivered": delivered, "parts": state.parts,
        }),
    ))
}

/// The caller's token and the rate, then the body.
async fn admitted<'s>(
    server: &'s Server,
    headers: &HeaderMap,
    sent: Body,
) -> Result<(&'s Initiative, axum::body::Bytes), Refusal> {
    let hooks = caller(server, headers).await?;
    let most = hooks.hooks.per_min.max(1) as usize;
    counted(&hooks.calls.right, most, server.http.clock.monotonic()).map_err(|wait| {
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_calls", "more calls than `[hooks] per_min` allows")
            .retry_after(wait)
    })?;
    let bytes = body::read(headers, sent, BODY, server.limits.body, server.http.clock.as_ref()).await?;
    Ok((hooks, bytes))
}

/// Who holds the hooks' token; wrong ones wait, and are refused after ten.
async fn caller<'s>(server: &'s Server, headers: &HeaderMap) -> Result<&'s Initiative, Refusal> {
    let off = || Refusal::new(StatusCode::NOT_FOUND, "hooks_off", "hooks are off: set `[hooks] enabled` and `token`");
    let hooks = server.http.initiative.as_ref().filter(|hooks| hooks.hooks.enabled).ok_or_else(off)?;
    let token = hooks.hooks.token.as_ref().filter(|token| token.expose().len() >= MIN_TOKEN).ok_or_else(off)?;
    if given(headers).is_some_and(|given| token.matches(given)) {
        return Ok(hooks);
    }
    let now = server.http.clock.monotonic();
    counted(&hooks.calls.wrong, WRONG, now).map_err(|wait| {
        Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", "too many wrong tokens").retry_after(wait)
    })?;
    server.http.clock.sleep(server.limits.wrong_token).await;
    Err(Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", "the hooks' token is needed in `Authorization: Bearer`"))
}

/// The token of a header; one in the address would stand in logs and is not looked for.
fn given(headers: &HeaderMap) -> Option<&[u8]> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
    });
    bearer.or_else(|| headers.get("x-openclaw-token").map(|value| value.as_bytes()))
}

fn said(text: &str, field: &str) -> Result<String, Refusal> {
    let text = text.trim();
    if text.is_empty() || text.chars().count() > TEXT {
        return Err(Refusal::invalid(format!("`{field}` is empty or longer than {TEXT} characters")));
    }
    Ok(text.replace('\0', "\u{fffd}"))
}

fn beat<'h>(hooks: &'h Initiative, agent: Option<&str>) -> Result<&'h Beat, Refusal> {
    let agent = agent.unwrap_or("main");
    let found = hooks.beats.iter().find(|beat| beat.agent == agent);
    found.ok_or_else(|| Refusal::invalid("`agentId` is not an agent of this gateway"))
}

/// What is the same for both kinds of calls.
fn row(headers: &HeaderMap, in_body: Option<String>, bytes: &[u8], now: i64) -> Result<HookRow, Refusal> {
    let key = match headers.get("idempotency-key") {
        Some(key) => Some(key.to_str().map(str::to_owned).map_err(|_| bad_key())?),
        None => in_body,
    };
    if key.as_ref().is_some_and(|key| key.is_empty() || key.len() > NAME || key.chars().any(char::is_control)) {
        return Err(bad_key());
    }
    Ok(HookRow {
        id: format!("hk_{}", ulid::Ulid::generate()),
        key,
        fingerprint: Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect(),
        kind: String::new(),
        agent: String::new(),
        text: String::new(),
        due_at: 0,
        entry: None,
        created_at: now,
    })
}

fn bad_key() -> Refusal {
    Refusal::invalid("the Idempotency-Key is empty, too long or not plain text")
}

/// Keeps the call; the answer is the same for a second try.
async fn called(hooks: &Initiative, row: &HookRow, entry: Option<crate::store::NewEntry>) -> Answer {
    let (id, duplicate) = match hooks.rows.call(row, entry).await.map_err(unavailable)? {
        Called::New => (row.id.clone(), false),
        Called::Again(id) => (id, true),
        Called::Conflict => {
            let message = "this Idempotency-Key was used with another body";
            return Err(Refusal::new(StatusCode::CONFLICT, "id_conflict", message));
        }
        Called::Full => {
            let message = "too many calls wait in this session; nothing was kept";
            let refusal = Refusal::new(StatusCode::TOO_MANY_REQUESTS, "session_full", message);
            return Err(refusal.retry_after(Duration::from_secs(10)));
        }
    };
    channel_api::crash_point!("hook.kept");
    let run = format!("/hooks/runs/{id}");
    let answer = json!({
        "success": true, "ok": true, "runId": id, "run": run, "duplicate": duplicate, "eventOutcome": "queued",
    });
    let mut response = json_answer(StatusCode::ACCEPTED, &answer);
    if let Ok(location) = run.parse() {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response.into_response())
}

/// Where the answer of a run goes.
async fn place(hooks: &Initiative, asked: &AgentBody, agent: &str) -> Result<Place, Refusal> {
    if asked.deliver == Some(false) {
        // Nobody is told: the answer stands in the status of the run.
        let web = web_chat();
        let address = Address { lane: "hooks".to_owned(), ..web.address };
        return Ok(Place { address, ..web });
    }
    let owner = hooks.chats.owner(agent).await.map_err(unavailable)?.map(|chat| chat.place);
    let (channel, to) = match (&asked.channel, &asked.to) {
        (None, None) => return Ok(owner.unwrap_or_else(web_chat)),
        (Some(channel), Some(to)) => (channel, to),
        _ => return Err(Refusal::invalid("`channel` and `to` belong together")),
    };
    let channel = channel_id(&hooks.chats.channels, channel, asked.account_id.as_deref())?;
    if let Some(own) = owner.filter(|own| own.address.channel == channel && own.conversation.id == *to) {
        return Ok(own);
    }
    if !hooks.hooks.targets.contains(&format!("{channel}:{to}")) {
        let message = "this chat is not in `[hooks] targets`";
        return Err(Refusal::new(StatusCode::FORBIDDEN, "target_not_allowed", message));
    }
    if let Err(Barred::Unheard(key)) = hooks.chats.hears(&channel) {
        return Err(Refusal::invalid(lang::unheard(Lang::current(), &channel, key)));
    }
    let chat = hooks.chats.named(&channel, to).await.map_err(unavailable)?;
    chat.map(|chat| chat.place).ok_or_else(|| {
        Refusal::invalid("nobody who may write has written in this chat yet, so its address is not known")
    })
}

/// `telegram:main`, or `telegram` with its account, or the only account of it.
fn channel_id(channels: &Channels, channel: &str, account: Option<&str>) -> Result<ChannelId, Refusal> {
    let all = channels.all();
    let mut fits = all.iter().map(|entry| entry.channel.id()).filter(|id| {
        id.as_str() == channel || (id.kind() == channel && account.is_none_or(|account| id.account() == account))
    });
    match (fits.next(), fits.next()) {
        (Some(id), None) => Ok(id.clone()),
        (Some(_), Some(_)) => Err(Refusal::invalid("there is more than one account of this channel: name it")),
        _ => Err(Refusal::invalid("`channel` is not one of this gateway's")),
    }
}

/// A session of hooks: a named one goes on, otherwise each run has its own. Never a chat's.
fn session(agent: &str, named: Option<&str>, id: &str) -> Result<SessionKey, Refusal> {
    let name = named.map_or(id, |name| name.trim().trim_start_matches("hook:"));
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.len() > NAME || !name.chars().all(plain) {
        return Err(Refusal::invalid("`sessionKey` is letters, digits, `-`, `_` and `.`; it names a session of hooks"));
    }
    Ok(SessionKey::from(format!("agent:{agent}:hook:{name}")))
}

fn unavailable(error: StoreError) -> Refusal {
    tracing::warn!(%error, "a hook could not be served");
    Refusal::unavailable()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_of_openclaws_callers_are_understood() {
        let body = json!({
            "message": "hi", "name": "CI", "agentId": "main", "sessionKey": "hook:ci", "wakeMode": "now", "deliver": true,
            "channel": "telegram", "to": "42", "model": "main", "thinking": "low", "timeoutSeconds": 120,
        });
        let asked: AgentBody = serde_json::from_value(body).expect("it is one");
        assert_eq!((asked.session_key.as_deref(), asked.to.as_deref()), (Some("hook:ci"), Some("42")));
        let key = session("main", Some("hook:ci"), "hk_1").expect("a session");
        assert_eq!(key.as_str(), "agent:main:hook:ci");
        for bad in ["", "hook:", "agent:main:main", "a b", "x:y", "../x"] {
            assert!(session("main", Some(bad), "hk_1").is_err(), "{bad}");
        }
        assert!(serde_json::from_value::<WakeBody>(json!({ "text": 1 })).is_err());
    }

    #[test]
    fn a_minute_holds_so_many_calls_and_no_more() {
        let at = Mutex::default();
        let second = Duration::from_secs;
        assert_eq!([0, 1, 2].map(|n| counted(&at, 2, second(n)).is_ok()), [true, true, false]);
        assert_eq!(counted(&at, 2, second(10)), Err(second(50)));
        assert_eq!(counted(&at, 2, second(60)), Ok(()));
    }

    #[test]
    fn only_headers_hold_a_token() {
        let mut headers = HeaderMap::new();
        assert_eq!(given(&headers), None);
        headers.insert("x-openclaw-token", "abc".parse().expect("a value"));
        assert_eq!(given(&headers), Some(&b"abc"[..]));
        headers.insert(header::AUTHORIZATION, "bearer  xyz ".parse().expect("a value"));
        assert_eq!(given(&headers), Some(&b"xyz"[..]));
    }
}
