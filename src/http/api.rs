//! `GET /api/…`: what the gateway knows, for the page, the command line and whoever holds the token; and the few things
//! a person decides about it.
//!
//! Every listing is a page: `limit` rows, and `next` to ask for those after it, `null` at the end.

use std::sync::Arc;

use axum::{
    body::Body,
    extract::{FromRequestParts, Path, State},
    http::{HeaderMap, StatusCode, request::Parts},
    response::Response,
};
use channel_api::{ChannelId, InboxId, TurnId};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tracing::warn;

use super::{Server, body, error::Refusal, json_answer, web};
use crate::{
    agent::briefing::Need,
    config::doors,
    inspect::{self, Query},
    intake::pairing::{AccessError, AccessQuery},
    lang::Lang,
    policy::{Asker, Holds, Role, Verdict, decide},
    session::SessionKey,
    store::{DeadResolution, SpentBy, StoreError, Who},
};

/// Rows of a page unless `limit` says otherwise.
const PAGE: u32 = 50;
/// The most bytes of what was said last.
const LAST_BYTES: u64 = 1 << 20;

/// A query that can be read, or 400.
pub struct Asked<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Asked<T> {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Refusal> {
        let refused =
            |error| Refusal::new(StatusCode::BAD_REQUEST, "bad_query", format!("the query is wrong: {error}"));
        axum::extract::Query::try_from_uri(&parts.uri).map(|axum::extract::Query(asked)| Self(asked)).map_err(refused)
    }
}

/// The name in a path, percent-decoded, or 404.
pub struct Named(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Path(name) = Path::<String>::from_request_parts(parts, state).await.map_err(|_| Refusal::not_found())?;
        Ok(Self(name))
    }
}

/// What every listing takes.
#[derive(Debug, Deserialize)]
pub struct Listing {
    limit: Option<u32>,
    after: Option<String>,
    last: Option<u32>,
    q: Option<String>,
    task: Option<String>,
    session: Option<String>,
    agent: Option<String>,
    since: Option<String>,
    by: Option<SpentBy>,
}

impl Listing {
    fn limit(&self) -> u32 {
        self.limit.unwrap_or(PAGE)
    }

    /// `after` as a row's number.
    fn after(&self) -> Result<Option<i64>, Refusal> {
        let number = |after: &String| after.parse().map_err(|_| bad_after());
        self.after.as_ref().map(number).transpose()
    }
}

pub(super) type Answer = Result<Response, Refusal>;
pub(super) type Gateway = State<Arc<Server>>;

/// A question that the command line asks as well, answered from the rows.
pub(super) async fn asked(server: &Server, query: Query) -> Answer {
    let http = &server.http;
    let listing = inspect::answer(http.store.as_ref(), &query, http.clock.now_ms()).await.map_err(refused)?;
    Ok(shown(listing))
}

/// `GET /api/sessions`, last active first.
pub async fn sessions(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    let after = match &ask.after {
        Some(after) => {
            let (at, key) = after.split_once(',').ok_or_else(bad_after)?;
            Some((at.parse().map_err(|_| bad_after())?, SessionKey::from(key.to_owned())))
        }
        None => None,
    };
    asked(&server, Query::Sessions { after, limit: ask.limit() }).await
}

/// `GET /api/sessions/{key}`.
pub async fn session(State(server): Gateway, Named(key): Named) -> Answer {
    asked(&server, Query::Session(SessionKey::from(key))).await
}

/// `GET /api/sessions/{key}/messages`, oldest first, all that was ever said; with `?last=50` the last of what the model
/// still sees.
pub async fn messages(State(server): Gateway, Named(key): Named, Asked(ask): Asked<Listing>) -> Answer {
    let (store, key) = (&server.http.store, SessionKey::from(key));
    if let Some(last) = ask.last {
        let row = store.session(&key).await.map_err(refused)?.ok_or_else(Refusal::not_found)?;
        let last = last.clamp(1, inspect::MAX_ROWS);
        let said = store.history(&key, row.generation, last, LAST_BYTES).await.map_err(refused)?;
        let rows: Vec<Value> = said.iter().map(|message| json!({ "message": message })).collect();
        return Ok(shown(json!({ "messages": rows, "next": null })));
    }
    let after = ask.after()?.unwrap_or(0);
    asked(&server, Query::Messages { key, after, limit: ask.limit() }).await
}

/// `POST /api/sessions/{key}/reset`: the next message begins anew, as after `/new`.
pub async fn reset(State(server): Gateway, Named(key): Named) -> Answer {
    let http = &server.http;
    let stopped = http.store.reset(&SessionKey::from(key), http.clock.now_ms()).await.map_err(refused)?;
    stopped.iter().for_each(|session| http.running.stop(session));
    Ok(shown(json!({ "stopped": stopped })))
}

/// `GET /api/search?q=`: messages that contain the words, newest first.
pub async fn search(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    let words = ask.q.as_deref().map(str::trim).filter(|words| !words.is_empty() && words.len() <= 1000);
    let text = words.ok_or_else(|| Refusal::invalid("`q` is empty or too long"))?.to_owned();
    asked(&server, Query::Search { text, limit: ask.limit() }).await
}

/// `GET /api/turns?task=` or `?session=`, newest first.
pub async fn turns(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    let limit = ask.limit();
    let (task, session) = (ask.task.map(InboxId::from), ask.session.map(SessionKey::from));
    asked(&server, Query::Turns { task, session, limit }).await
}

/// `GET /api/usage?by=&since=`: what models took and cost.
pub async fn usage(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    let limit = ask.limit();
    let since = ask.since.filter(|day| !day.is_empty() && day.len() <= 32);
    asked(&server, Query::Usage { by: ask.by.unwrap_or_default(), since, limit }).await
}

/// `GET /api/turns/{id}`: the turn with its messages, steps and parts.
pub async fn turn(State(server): Gateway, Named(id): Named) -> Answer {
    asked(&server, Query::Turn(TurnId::from(id))).await
}

/// `GET /api/dlq`: messages that could not be processed, newest first.
pub async fn dead_letters(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    asked(&server, Query::DeadLetters { after: ask.after()?, limit: ask.limit() }).await
}

/// `POST /api/dlq/{id}/retry`: it waits in its session again.
pub async fn retry(State(server): Gateway, Named(id): Named) -> Answer {
    let answer = asked(&server, Query::Resolve { id: InboxId::from(id), how: DeadResolution::Retry }).await;
    server.http.work.wake();
    answer
}

/// `POST /api/dlq/{id}/drop`: it is let go.
pub async fn let_go(State(server): Gateway, Named(id): Named) -> Answer {
    asked(&server, Query::Resolve { id: InboxId::from(id), how: DeadResolution::Drop }).await
}

/// `GET /api/prompt?agent=`: what the model reads first in the owner's web chat, and the size of each section.
pub async fn prompt(State(server): Gateway, Asked(ask): Asked<Listing>) -> Answer {
    let agent = server.http.agents.get(ask.agent.as_deref().unwrap_or("main")).ok_or_else(Refusal::not_found)?;
    let channel = web::owner_channel();
    let need = Need {
        mode: crate::agent::prompt::Mode::Full,
        role: Role::Owner,
        memory: true,
        silent: true,
        channel: channel.as_str(),
        model: agent.model.name(),
        lang: agent.config.lang.unwrap_or_else(Lang::current),
    };
    let asker = Asker { role: Role::Owner, direct: true };
    let skills = agent.briefing.skills();
    let tools = agent.mcp.joined(&agent.works.with_tools_of(&skills, &agent.tools), asker);
    let mut policies = agent.policies.of(&channel, []);
    policies.push(&agent.policy);
    let offered = |name: &str, terms| decide(asker, name, terms, Holds::Own, policies.iter().copied()) != Verdict::Deny;
    let tools = tools.narrowed(offered);
    let brief = agent.briefing.brief(&need, &skills, &tools.specs());
    let names = tools.names();
    Ok(shown(json!({ "agent": agent.id, "text": brief.text, "sections": brief.sections, "tools": names })))
}

/// `GET /api/doors`: what is not possible yet or open to everyone, and where messages were turned away since the start,
/// each with the one line that changes it.
pub async fn doors(State(server): Gateway) -> Answer {
    let (lang, now) = (Lang::current(), server.http.clock.now_ms());
    let access = server.http.access.pairings().await.map_err(refused)?;
    let http = &server.http;
    let places = http.turned_away.places(|channel, sender| http.access.block_scope(channel, sender));
    let doors = doors::with_access(&http.doors, &access, lang);
    let gate = |channel: &ChannelId| http.channels.get(channel).map(|entry| entry.gate.clone());
    let doors = doors::with_turned_away(&doors, &places, gate, now, lang);
    Ok(shown(json!({ "doors": doors, "turned_away": places })))
}

/// What is decided about a code.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Decision {
    channel: Option<String>,
    role: Option<String>,
}

/// Whom a decision is about.
#[derive(Debug, Deserialize)]
pub struct About {
    channel: Option<String>,
    sender: Option<String>,
    who: Option<String>,
}

async fn decided(server: &Server, query: AccessQuery) -> Answer {
    Ok(shown(server.http.access.answer(&query).await.map_err(not_decided)?))
}

pub(super) async fn body_of<T: DeserializeOwned>(
    server: &Server,
    headers: &HeaderMap,
    sent: Body,
) -> Result<T, Refusal> {
    let limits = &server.limits;
    body::json(&body::read(headers, sent, limits.body_bytes, limits.body, server.http.clock.as_ref()).await?)
}

/// `GET /api/pairings`: who waits to be let in, and who was.
pub async fn pairings(State(server): Gateway) -> Answer {
    decided(&server, AccessQuery::Pairings).await
}

/// `POST /api/pairings/{code}/approve {"channel"?, "role"?}`: lets them in and tells them.
pub async fn approve(State(server): Gateway, Named(code): Named, headers: HeaderMap, sent: Body) -> Answer {
    let Decision { channel: scope, role } = body_of(&server, &headers, sent).await?;
    let role = match role {
        None => None,
        Some(name) => {
            Some(Role::named(&name).ok_or_else(|| Refusal::invalid("`role` is one of owner, trusted and member"))?)
        }
    };
    decided(&server, AccessQuery::Approve { scope, code, role }).await
}

/// `POST /api/pairings/{code}/reject {"channel"?}`.
pub async fn reject(State(server): Gateway, Named(code): Named, headers: HeaderMap, sent: Body) -> Answer {
    let Decision { channel: scope, .. } = body_of(&server, &headers, sent).await?;
    decided(&server, AccessQuery::Reject { scope, code }).await
}

/// `DELETE /api/pairings?channel=&sender=`: takes an approval back.
pub async fn revoke(State(server): Gateway, Asked(about): Asked<About>) -> Answer {
    let who = about.channel.zip(about.sender).map(|(scope, sender)| Who { scope, sender });
    let who = who.ok_or_else(|| Refusal::invalid("`channel` and `sender` are needed"))?;
    decided(&server, AccessQuery::Revoke(who)).await
}

/// `GET /api/access`: who is blocked.
pub async fn blocked(State(server): Gateway) -> Answer {
    decided(&server, AccessQuery::Blocked).await
}

/// `POST /api/access {"who"}`: blocks.
pub async fn block(State(server): Gateway, headers: HeaderMap, sent: Body) -> Answer {
    let about: About = body_of(&server, &headers, sent).await?;
    let who = about.who.ok_or_else(|| Refusal::invalid("`who` is needed"))?;
    decided(&server, AccessQuery::Block(who)).await
}

/// `DELETE /api/access?who=`: blocks no longer.
pub async fn unblock(State(server): Gateway, Asked(about): Asked<About>) -> Answer {
    let who = about.who.ok_or_else(|| Refusal::invalid("`who` is needed"))?;
    decided(&server, AccessQuery::Unblock(who)).await
}

fn not_decided(error: AccessError) -> Refusal {
    let text = error.to_string();
    match error {
        AccessError::NoSuchCode => Refusal::new(StatusCode::NOT_FOUND, "no_such_code", text),
        AccessError::NoSuchSender => Refusal::new(StatusCode::NOT_FOUND, "no_such_sender", text),
        AccessError::Locked(wait) => {
            Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", text).retry_after(wait)
        }
        AccessError::BadWho(_) => Refusal::invalid(text),
        AccessError::Store(error) => refused(error),
    }
}

/// `GET /api/channels`: each with how it is; and the models that give no answer.
pub async fn channels(State(server): Gateway) -> Answer {
    let health = server.http.health.all();
    let rows: Vec<Value> = server
        .http
        .channels
        .all()
        .into_iter()
        .map(|entry| {
            let id = entry.channel.id();
            json!({
                "id": id,
                "health": health.get(id),
                "open_to_everyone": entry.gate.is_open(),
                "admits_anyone": entry.gate.admits_anyone(),
                "http": entry.channel.http().is_some(),
            })
        })
        .collect();
    let resting = server.http.health.models().down(server.http.clock.monotonic());
    Ok(shown(json!({ "channels": rows, "models_down": resting })))
}

/// A listing as it is sent.
fn shown(mut listing: Value) -> Response {
    listing["success"] = true.into();
    json_answer(StatusCode::OK, &listing)
}

fn bad_after() -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "bad_query", "`after` is not a `next` of this listing")
}

pub(super) fn refused(error: StoreError) -> Refusal {
    match error {
        StoreError::NotFound => Refusal::not_found(),
        error => {
            warn!(%error, "a listing could not be read");
            Refusal::unavailable()
        }
    }
}
