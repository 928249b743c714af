//! The door: who may use which route. One layer over every route, closed unless the route's own line opens it.
//!
//! security.md rows 2–6, 35 and 36. Host and Origin are checked before any secret, so that a page in somebody's browser
//! learns nothing.

use std::{
    collections::{HashMap, VecDeque},
    fs, io,
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use axum::{
    extract::{MatchedPath, Request, State},
    http::{HeaderMap, HeaderValue, Method, StatusCode, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use tracing::warn;

use super::{
    Access, Face, Server, audit,
    body::drain,
    config::{LocalClients, ServerConfig},
    connection::Peer,
    error::Refusal,
};
use crate::{
    data_dir::{TOKEN, read_token},
    secrets::{Redactor, Secret, constant_time_eq},
};

/// The cookie of a browser that logged in.
pub const COOKIE: &str = "crawfish_session";
/// The header that every change from a browser carries.
pub const CSRF: &str = "x-csrf-token";
/// How long a browser stays logged in.
const SESSION_MS: i64 = 30 * 24 * 60 * 60 * 1000;
/// The most logged-out sessions remembered until they would have expired.
const REVOKED: usize = 10_000;
/// This many wrong tokens within [`WINDOW`] refuse every wrong one for [`LOCKED`]. security.md row 4.
const FAILURES: usize = 10;
const WINDOW: Duration = Duration::from_secs(60);
const LOCKED: Duration = Duration::from_secs(5 * 60);

/// Who makes a request, once it passed the door. In the request's extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Nobody in particular: a public route.
    Anyone,
    /// Holds the token. The generation of the token that was shown: what outlives the request ends with it.
    Owner {
        /// See [`Auth::generation`].
        generation: u64,
        /// The browser's session, when it came with a cookie.
        session: Option<BrowserSession>,
    },
    /// A program on this machine without a token, where `local_clients = "open"`.
    Local,
}

/// A browser that logged in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrowserSession {
    nonce: String,
    expires_ms: i64,
}

/// What the door knows.
#[derive(Debug)]
pub struct Auth {
    data_dir: PathBuf,
    redactor: Redactor,
    token: Mutex<Known>,
    wrong: Mutex<Wrong>,
    revoked: Mutex<HashMap<String, i64>>,
    /// The lock fell and is not written down yet.
    just_locked: AtomicBool,
}

/// The token as it was last read.
#[derive(Debug, Default)]
struct Known {
    /// Of the file: a change means that it is read again.
    stamp: Option<(SystemTime, u64)>,
    token: Option<Secret>,
    generation: u64,
}

#[derive(Debug, Default)]
struct Wrong {
    at: VecDeque<Duration>,
    locked_until: Option<Duration>,
}

impl Auth {
    /// The door of the gateway that keeps its token in `data_dir`.
    pub fn new(data_dir: PathBuf, redactor: Redactor) -> Self {
        Self {
            data_dir,
            redactor,
            token: Mutex::default(),
            wrong: Mutex::default(),
            revoked: Mutex::default(),
            just_locked: AtomicBool::default(),
        }
    }

    /// The token and its generation, read again when its file changed: a rotation works at once. No token, no entry.
    fn token(&self) -> (Option<Secret>, u64) {
        let mut known = self.token.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = fs::metadata(self.data_dir.join(TOKEN)).and_then(|meta| Ok((meta.modified()?, meta.len()))).ok();
        if known.stamp != stamp || known.token.is_none() {
            let token: io::Result<Secret> = read_token(&self.data_dir);
            if let Err(error) = &token {
                warn!(%error, "the gateway's token cannot be read; nobody can log in");
            }
            let token = token.ok();
            let same = match (&known.token, &token) {
                (Some(old), Some(new)) => old.matches(new.expose().as_bytes()),
                (None, None) => true,
                _ => false,
            };
            if !same {
                known.generation += 1;
            }
            // No text shows the new one either.
            self.redactor.learn(&token);
            known.token = token;
            known.stamp = stamp;
        }
        (known.token.clone(), known.generation)
    }

    /// Raised by every change of the token.
    pub fn generation(&self) -> u64 {
        self.token().1
    }

    /// Whether `given` is the token. A right one always passes; a wrong one is counted.
    ///
    /// # Errors
    /// 401, or 429 after too many wrong ones.
    pub fn check_token(&self, given: &[u8], now: Duration) -> Result<u64, Refusal> {
        let (token, generation) = self.token();
        if token.is_some_and(|token| token.matches(given)) {
            return Ok(generation);
        }
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(until) = wrong.locked_until {
            if now < until {
                return Err(locked(until.saturating_sub(now)));
            }
            wrong.locked_until = None;
            wrong.at.clear();
        }
        while wrong.at.front().is_some_and(|at| now.saturating_sub(*at) >= WINDOW) {
            wrong.at.pop_front();
        }
        wrong.at.push_back(now);
        if wrong.at.len() >= FAILURES {
            warn!("too many wrong tokens: wrong ones are refused for five minutes");
            wrong.locked_until = Some(now + LOCKED);
            self.just_locked.store(true, Ordering::Release);
        }
        Err(unauthorized())
    }

    /// A new browser session: the cookie's value and its CSRF token.
    pub fn open_session(&self, now_ms: i64) -> Option<(String, String)> {
        let (token, _) = self.token();
        let token = token?;
        let mut nonce = [0_u8; 16];
        getrandom::fill(&mut nonce).ok()?;
        let nonce = hex(&nonce);
        let expires_ms = now_ms + SESSION_MS;
        let session = BrowserSession { nonce, expires_ms };
        let cookie = format!("{expires_ms}.{}.{}", session.nonce, session.seal(&token));
        let csrf = session.csrf(&token);
        Some((cookie, csrf))
    }

    /// The CSRF token of a session.
    pub fn csrf(&self, session: &BrowserSession) -> Option<String> {
        Some(session.csrf(&self.token().0?))
    }

    /// Ends a browser session.
    pub fn close_session(&self, session: &BrowserSession, now_ms: i64) {
        let mut revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner);
        if revoked.len() >= REVOKED {
            revoked.retain(|_, expires_ms| *expires_ms > now_ms);
        }
        revoked.insert(session.nonce.clone(), session.expires_ms);
    }

    fn session_of(&self, headers: &HeaderMap, now_ms: i64) -> Option<(BrowserSession, u64)> {
        let value = cookie(headers, COOKIE)?;
        let (expires, rest) = value.split_once('.')?;
        let (nonce, seal) = rest.split_once('.')?;
        let session = BrowserSession { nonce: nonce.to_owned(), expires_ms: expires.parse().ok()? };
        let (token, generation) = self.token();
        let genuine = constant_time_eq(session.seal(&token?).as_bytes(), seal.as_bytes());
        let revoked = self.revoked.lock().unwrap_or_else(PoisonError::into_inner).contains_key(nonce);
        (genuine && !revoked && session.expires_ms > now_ms).then_some((session, generation))
    }
}

impl BrowserSession {
    /// Sealed with the token: it survives a restart and dies with a rotation.
    fn seal(&self, token: &Secret) -> String {
        mac(token, &format!("crawfish session\n{}\n{}", self.expires_ms, self.nonce))
    }

    fn csrf(&self, token: &Secret) -> String {
        mac(token, &format!("crawfish csrf\n{}", self.nonce))
    }
}

fn mac(key: &Secret, text: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(key.expose().as_bytes()).expect("HMAC takes keys of any length");
    mac.update(text.as_bytes());
    hex(&mac.finalize().into_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unauthorized() -> Refusal {
    let message = "this needs the gateway's token (data/token)";
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", message)
}

fn locked(wait: Duration) -> Refusal {
    let message = "too many wrong tokens; the right one works at any time";
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", message).retry_after(wait)
}

fn forbidden(code: &'static str, message: &str) -> Refusal {
    Refusal::new(StatusCode::FORBIDDEN, code, message)
}

/// The layer: lets a request through to its route or refuses it, and puts the protecting headers on every answer.
pub async fn door(State((server, face)): State<(Arc<Server>, Face)>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    let mut response = match admit(&server, face, &head).await {
        Ok(caller) => {
            head.extensions.insert(caller);
            head.extensions.insert(face);
            next.run(Request::from_parts(head, body)).await
        }
        Err(refusal) => {
            // Read on for a moment: whoever is still writing would not see the answer.
            drain(body, 0, server.http.clock.as_ref()).await;
            refusal.into_response()
        }
    };
    protect(response.headers_mut());
    if server.http.stopping.is_cancelled() {
        // Each gets its answer, and its next request goes to whoever listens then.
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

async fn admit(server: &Server, face: Face, request: &Parts) -> Result<Caller, Refusal> {
    let headers = &request.headers;
    let host = match face {
        Face::Main => Some(checked_host(request, &server.http.config)?),
        Face::Channels => None,
    };
    let matched = request.extensions.get::<MatchedPath>().ok_or_else(Refusal::not_found)?;
    let access = server.access(&request.method, matched.as_str());
    if access == Access::Channel {
        return Ok(Caller::Anyone);
    }
    let from_browser = match host {
        Some(host) => same_origin(headers, host)?,
        None => return Err(Refusal::not_found()),
    };
    let changes = !matches!(request.method, Method::GET | Method::HEAD | Method::OPTIONS);
    let now_ms = server.http.clock.now_ms();
    let caller = match access {
        Access::Public | Access::Hooks => Caller::Anyone,
        Access::Local | Access::Token | Access::Channel => {
            if let Some(given) = bearer(headers).filter(|_| !from_browser) {
                let generation = check_slowly(server, given).await?;
                Caller::Owner { generation, session: None }
            } else if let Some((session, generation)) = server.auth.session_of(headers, now_ms) {
                if changes {
                    let given = headers.get(CSRF).map(HeaderValue::as_bytes).unwrap_or_default();
                    let wanted = server.auth.csrf(&session).ok_or_else(unauthorized)?;
                    if !constant_time_eq(wanted.as_bytes(), given) {
                        return Err(forbidden("csrf", "a change from a browser needs the CSRF header of its login"));
                    }
                }
                Caller::Owner { generation, session: Some(session) }
            } else if access == Access::Local && is_local_client(server, request) {
                Caller::Local
            } else {
                return Err(unauthorized());
            }
        }
    };
    if changes && !is_json(headers) {
        let message = "send application/json";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "not_json", message));
    }
    Ok(caller)
}

/// Checks a token; the answer to a wrong one takes its time.
///
/// # Errors
/// 401 or 429.
pub async fn check_slowly(server: &Server, given: &[u8]) -> Result<u64, Refusal> {
    let checked = server.auth.check_token(given, server.http.clock.monotonic());
    if server.auth.just_locked.swap(false, Ordering::AcqRel) {
        // It is refused whether this can be written or not.
        let _ = audit::record(server, "locked out: too many wrong tokens").await;
    }
    if checked.is_err() {
        server.http.clock.sleep(server.limits.wrong_token).await;
    }
    checked
}

/// The request's host, if it is one of ours: a page that points its own name at this machine gets nothing.
fn checked_host<'a>(request: &'a Parts, config: &ServerConfig) -> Result<&'a str, Refusal> {
    let refused = || {
        let message = "this name is not one of the gateway's; add it to [server] hosts if it is yours";
        Refusal::new(StatusCode::MISDIRECTED_REQUEST, "wrong_host", message)
    };
    let mut hosts = request.headers.get_all(header::HOST).iter();
    let host = hosts.next().and_then(|host| host.to_str().ok()).ok_or_else(refused)?;
    let named = request.uri.authority().map(|authority| authority.as_str());
    if hosts.next().is_some() || named.is_some_and(|named| !named.eq_ignore_ascii_case(host)) {
        return Err(refused());
    }
    if is_our_host(host, &config.hosts) { Ok(host) } else { Err(refused()) }
}

fn is_our_host(host: &str, hosts: &[String]) -> bool {
    let Some(name) = without_port(host) else { return false };
    ["localhost", "127.0.0.1", "[::1]"].iter().any(|loopback| name.eq_ignore_ascii_case(loopback))
        || hosts.iter().any(|ours| {
            ours.eq_ignore_ascii_case(host)
                || (without_port(ours) == Some(ours.as_str()) && ours.eq_ignore_ascii_case(name))
        })
}

/// The host without its port; `None` when it is no host at all.
fn without_port(host: &str) -> Option<&str> {
    let end = if host.starts_with('[') { host.find(']')? + 1 } else { host.find(':').unwrap_or(host.len()) };
    let (name, port) = host.split_at(end);
    let port_is_fine = match port.strip_prefix(':') {
        Some(digits) => digits.len() <= 5 && digits.bytes().all(|digit| digit.is_ascii_digit()),
        None => port.is_empty(),
    };
    (port_is_fine && !name.is_empty()).then_some(name)
}

/// Whether a browser's own page of ours asks. Another page's request is refused.
fn same_origin(headers: &HeaderMap, host: &str) -> Result<bool, Refusal> {
    let refused = || forbidden("wrong_origin", "a page of another origin may not use the gateway");
    if let Some(site) = headers.get("sec-fetch-site") {
        // `none` is a person who typed the address; a link from elsewhere may open the login page and nothing more.
        let opens_page = headers.get("sec-fetch-mode").is_some_and(|mode| mode == "navigate")
            && headers.get("sec-fetch-dest").is_some_and(|dest| dest == "document");
        if site != "same-origin" && site != "none" && !opens_page {
            return Err(refused());
        }
    }
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let Some(origin) = origins.next() else { return Ok(false) };
    let authority = origin
        .to_str()
        .ok()
        .and_then(|origin| origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://")))
        .ok_or_else(refused)?;
    if origins.next().is_some() || !authority.eq_ignore_ascii_case(host) {
        return Err(refused());
    }
    Ok(true)
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}

fn cookie<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers
        .get_all(header::COOKIE)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(name)?.strip_prefix('='))
}

fn is_local_client(server: &Server, request: &Parts) -> bool {
    server.http.config.local_clients == LocalClients::Open && is_near(server, request)
}

/// A program on this machine that speaks for itself: no browser, no proxy in between. Never so on the listener for the
/// network: what forwards ports into a container makes everybody look near.
pub fn is_near(server: &Server, request: &Parts) -> bool {
    if request.extensions.get::<Face>() == Some(&Face::Channels) {
        return false;
    }
    let forwarded = ["x-forwarded-for", "forwarded", "x-real-ip", "via", "origin", "sec-fetch-site"];
    let peer = request.extensions.get::<Peer>().map(|peer| peer.0.ip().to_canonical());
    let host = request.headers.get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    peer.is_some_and(|ip| ip.is_loopback() && !server.http.config.trusted_proxy.contains(&ip))
        && is_our_host(host, &[])
        && !forwarded.iter().any(|name| request.headers.contains_key(*name))
}

fn is_json(headers: &HeaderMap) -> bool {
    headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).is_some_and(|value| {
        value.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
    })
}

/// security.md rows 34 and 35, on every answer.
fn protect(headers: &mut HeaderMap) {
    const ALWAYS: [(&str, &str); 7] = [
        (
            "content-security-policy",
            "default-src 'self'; script-src 'self'; object-src 'none'; frame-ancestors 'none'; base-uri 'none'; \
             form-action 'self'; img-src 'self'; connect-src 'self'; style-src 'self'",
        ),
        ("x-content-type-options", "nosniff"),
        ("cache-control", "no-store"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ];
    for (name, value) in ALWAYS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_compared_exactly() {
        let hosts = ["bot.example.org".to_owned(), "lan:3002".to_owned()];
        for ours in [
            "localhost",
            "LOCALHOST:1",
            "127.0.0.1:3002",
            "[::1]:3002",
            "bot.example.org",
            "bot.example.org:443",
            "lan:3002",
        ] {
            assert!(is_our_host(ours, &hosts), "{ours}");
        }
        for other in [
            "evil.test",
            "localhost.evil.com",
            "localhost.",
            "127.0.0.1.nip.io",
            "127.0.0.2",
            "[::2]",
            "::1",
            "lan",
            "lan:3003",
            "",
            ":80",
            "localhost:80:80",
            "localhost:http",
            "evil.test:3002",
            "[::1",
            "xlocalhost",
            "bot.example.org.",
            "a@localhost",
        ] {
            assert!(!is_our_host(other, &hosts), "{other}");
        }
    }

    #[test]
    fn ten_wrong_tokens_refuse_wrong_ones_for_five_minutes_and_never_the_right_one() {
        let dir = tempfile::tempdir().expect("a folder");
        let token = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        fs::write(dir.path().join(TOKEN), token).expect("it can be written");
        let auth = Auth::new(dir.path().to_owned(), Redactor::default());
        let at = Duration::from_secs;
        let status =
            |given: &str, now| auth.check_token(given.as_bytes(), now).map_err(|refusal| refusal.status.as_u16());
        for second in 0..10 {
            assert_eq!(status("wrong", at(second)), Err(401));
        }
        assert_eq!(status("wrong", at(10)), Err(429));
        assert!(status(token, at(10)).is_ok());
        assert_eq!(status("wrong", at(308)), Err(429));
        assert_eq!(status("wrong", at(310)), Err(401));
    }
}
