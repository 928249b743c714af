//! The gateway's HTTP side: what is served where, to whom, and for how long.
//!
//! Every route is one line of `routes` with who may use it; the door in front of them (`http/auth.rs`) is closed unless
//! that line opens it. The second listener serves only `/channels/*`.

use std::{collections::HashMap, path::PathBuf, sync::Arc, time::Duration};

use axum::{
    Router,
    body::HttpBody as _,
    http::{Method, StatusCode, header},
    middleware,
    response::{IntoResponse, Response},
    routing::{self, MethodRouter},
};
use channel_api::{ChannelContext, ChannelId, Clock};
use tokio::net::TcpListener;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{auth::Auth, config::ServerConfig, error::Refusal};
use crate::{
    agent::Agents,
    channels::Channels,
    config::doors::Door,
    halt::Halt,
    inbox::{Running, WakeUp},
    intake,
    journal::Journal,
    ledger::Ledger,
    memory::Memories,
    os,
    secrets::Redactor,
    store::Store,
    supervisor::Health,
    upkeep::Ready,
};

pub mod config;
pub mod web;

mod api;
mod approvals;
mod audit;
mod auth;
mod body;
mod channels;
mod chat;
mod connection;
mod error;
mod events;
pub mod hooks;
pub mod initiative;
mod memory;
mod metrics;
mod page;
mod sockets;
#[cfg(test)]
mod tests;

/// Everything the HTTP side uses.
pub struct Http {
    /// `[server]`.
    pub config: ServerConfig,
    /// Where the token is; read again when its file changes.
    pub data_dir: PathBuf,
    /// Takes messages in.
    pub intake: Arc<dyn channel_api::Intake>,
    /// Whose endpoints are served, and whose sessions `/api/chat` uses.
    pub channels: Channels,
    /// What the adapters are given.
    pub contexts: HashMap<ChannelId, ChannelContext>,
    /// Wakes workers when a dead letter is put back.
    pub work: WakeUp,
    /// Stops the sub-agents of a session that begins anew.
    pub running: Running,
    /// For events and listings.
    pub store: Arc<dyn Store>,
    /// Live events.
    pub journal: Journal,
    /// How the channels are.
    pub health: Health,
    /// For `/api/prompt`.
    pub agents: Agents,
    /// For `/api/memory`.
    pub memories: Memories,
    /// For `/api/pairings` and `/api/access`.
    pub access: Arc<intake::pairing::Access>,
    /// For `/api/doors`: what the configuration leaves closed, and what stands wide open.
    pub doors: Vec<Door>,
    /// For `/hooks`, `/api/schedules` and `/api/heartbeat`.
    pub initiative: Option<initiative::Initiative>,
    /// For `/api/doors`: where messages were turned away.
    pub turned_away: intake::turned_away::TurnedAway,
    /// The brake, for `/api/halt`.
    pub halt: Halt,
    /// For `/metrics`.
    pub ledger: Arc<Ledger>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// For `/readyz`.
    pub ready: Ready,
    /// Cancelled when the gateway stops: streams end, what runs may finish.
    pub stopping: CancellationToken,
    /// Knows what no answer may hold.
    pub redactor: Redactor,
}

/// What keeps one connection or request from using up the gateway. security.md row 37.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For a request's head.
    pub head: Duration,
    /// The most bytes of it.
    pub head_bytes: usize,
    /// For a request's body.
    pub body: Duration,
    /// How long a reader may take nothing.
    pub write: Duration,
    /// Connections of one listener at once.
    pub connections: usize,
    /// The largest body of our own routes, in bytes.
    pub body_bytes: usize,
    /// The pause before the answer to a wrong token.
    pub wrong_token: Duration,
    /// The pause between two signs of life on a stream. A WebSocket that was silent for twice as long is asked for one.
    pub keep_alive: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            head: Duration::from_secs(10),
            head_bytes: 64 * 1024,
            body: Duration::from_secs(30),
            write: Duration::from_secs(30),
            connections: 1024,
            body_bytes: 1 << 20,
            wrong_token: Duration::from_millis(300),
            keep_alive: Duration::from_secs(15),
        }
    }
}

/// Open files that are left for the store, the platforms, the models and the tools.
const FILES_KEPT: u64 = 256;

impl Limits {
    /// The same with so few connections that both listeners full of them leave files to open.
    fn within(self, open_files: Option<u64>) -> Self {
        let Some(files) = open_files else { return self };
        let each = files.saturating_sub(FILES_KEPT.min(files / 2)) / 2;
        let connections = usize::try_from(each).unwrap_or(usize::MAX).clamp(1, self.connections.max(1));
        Self { connections, ..self }
    }
}

impl Http {
    /// Serves both listeners until `abort`, and ends soon after it: open sockets are closed with a word.
    pub async fn serve(self: Arc<Self>, main: TcpListener, channels: Option<TcpListener>, abort: CancellationToken) {
        let limits = Limits::default().within(os::open_files());
        self.serve_within(main, channels, abort, limits).await;
    }

    /// The same with other limits.
    pub async fn serve_within(
        self: Arc<Self>,
        main: TcpListener,
        channels: Option<TcpListener>,
        abort: CancellationToken,
        limits: Limits,
    ) {
        let server = Arc::new(Server::new(self, limits, abort.clone()));
        let front = connection::serve(main, server.router(Face::Main), limits, abort.clone());
        let second = async {
            if let Some(listener) = channels {
                connection::serve(listener, server.router(Face::Channels), limits, abort).await;
            }
        };
        tokio::join!(front, second);
        server.sockets.close();
        let _ = tokio::time::timeout(FAREWELL, server.sockets.wait()).await;
    }
}

/// How long open sockets have to end once everything ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// The HTTP side while it runs.
struct Server {
    http: Arc<Http>,
    /// The very end: sockets are closed.
    abort: CancellationToken,
    /// The open sockets.
    sockets: TaskTracker,
    auth: Auth,
    limits: Limits,
    access: HashMap<(Method, &'static str), Access>,
}

/// Which listener a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Face {
    /// `listen`.
    Main,
    /// `channels_listen`.
    Channels,
}

/// Who may use a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Everyone.
    Public,
    /// The channel's adapter decides.
    Channel,
    /// Whoever holds the token, and programs on this machine where `local_clients = "open"`.
    Local,
    /// Whoever holds the token of `[hooks]`: the handler asks.
    Hooks,
    /// Whoever holds the token.
    Token,
}

/// One route.
struct Route {
    /// `None`: every method.
    method: Option<Method>,
    path: &'static str,
    access: Access,
    handler: MethodRouter<Arc<Server>>,
}

/// Every route there is.
fn routes() -> Vec<Route> {
    use Access::{Channel, Hooks, Local, Public, Token};
    let get = |path, access, handler| Route { method: Some(Method::GET), path, access, handler };
    let post = |path, access, handler| Route { method: Some(Method::POST), path, access, handler };
    let delete = |path, access, handler| Route { method: Some(Method::DELETE), path, access, handler };
    let any = |path, access, handler| Route { method: None, path, access, handler };
    vec![
        get("/healthz", Public, routing::get(healthz)),
        get("/readyz", Public, routing::get(readyz)),
        any(channels::ACCOUNT, Channel, routing::any(channels::handle)),
        any(channels::BELOW, Channel, routing::any(channels::handle)),
        get("/", Public, routing::get(page::index)),
        get("/assets/{name}", Public, routing::get(page::asset)),
        post("/api/login", Public, routing::post(page::login)),
        post("/api/logout", Token, routing::post(page::logout)),
        get("/api/me", Token, routing::get(page::me)),
        post("/api/chat", Local, routing::post(chat::post)),
        get("/sse", Local, routing::get(events::stream)),
        get("/api/sessions", Token, routing::get(api::sessions)),
        get("/api/sessions/{key}", Token, routing::get(api::session)),
        get("/api/sessions/{key}/messages", Token, routing::get(api::messages)),
        post("/api/sessions/{key}/reset", Token, routing::post(api::reset)),
        get("/api/search", Token, routing::get(api::search)),
        get("/api/turns", Token, routing::get(api::turns)),
        get("/api/turns/{id}", Token, routing::get(api::turn)),
        get("/api/usage", Token, routing::get(api::usage)),
        get("/api/dlq", Token, routing::get(api::dead_letters)),
        post("/api/dlq/{id}/retry", Token, routing::post(api::retry)),
        post("/api/dlq/{id}/drop", Token, routing::post(api::let_go)),
        get("/api/prompt", Token, routing::get(api::prompt)),
        get("/api/approvals", Token, routing::get(approvals::list)),
        get("/api/approvals/grants", Token, routing::get(approvals::grants)),
        delete("/api/approvals/grants/{id}", Token, routing::delete(approvals::revoke)),
        get("/api/approvals/{id}", Token, routing::get(approvals::show)),
        post("/api/approvals/{id}", Token, routing::post(approvals::decide)),
        get("/api/pairings", Token, routing::get(api::pairings)),
        post("/api/pairings/{code}/approve", Token, routing::post(api::approve)),
        post("/api/pairings/{code}/reject", Token, routing::post(api::reject)),
        delete("/api/pairings", Token, routing::delete(api::revoke)),
        get("/api/access", Token, routing::get(api::blocked)),
        post("/api/access", Token, routing::post(api::block)),
        delete("/api/access", Token, routing::delete(api::unblock)),
        get("/api/doors", Token, routing::get(api::doors)),
        get("/api/channels", Token, routing::get(api::channels)),
        post("/hooks/wake", Hooks, routing::post(hooks::wake)),
        post("/hooks/agent", Hooks, routing::post(hooks::agent)),
        get("/hooks/runs/{id}", Hooks, routing::get(hooks::run)),
        get("/api/schedules", Token, routing::get(initiative::schedules)),
        post("/api/schedules", Token, routing::post(initiative::add)),
        get("/api/schedules/{id}", Token, routing::get(initiative::schedule)),
        delete("/api/schedules/{id}", Token, routing::delete(initiative::cancel)),
        post("/api/schedules/{id}/run", Token, routing::post(initiative::run)),
        get("/api/heartbeat", Token, routing::get(initiative::heartbeat)),
        get("/api/memory/search", Token, routing::get(memory::search)),
        post("/api/memory/reindex", Token, routing::post(memory::reindex)),
        get("/api/memory/progress", Token, routing::get(memory::progress)),
        get("/api/memory/quarantine", Token, routing::get(memory::held)),
        post("/api/memory/quarantine/{id}/accept", Token, routing::post(memory::accept)),
        post("/api/memory/quarantine/{id}/drop", Token, routing::post(memory::discard)),
        get("/api/audit", Token, routing::get(audit::rows)),
        post("/api/audit/verify", Token, routing::post(audit::verify)),
        post("/api/audit/grant", Token, routing::post(audit::grant)),
        get("/api/halt", Token, routing::get(audit::halted)),
        post("/api/halt", Token, routing::post(audit::halt)),
        post("/api/resume", Token, routing::post(audit::resume)),
        get("/metrics", Token, routing::get(metrics::page)),
    ]
}

impl Server {
    fn new(http: Arc<Http>, limits: Limits, abort: CancellationToken) -> Self {
        let access =
            routes().into_iter().filter_map(|route| Some(((route.method?, route.path), route.access))).collect();
        Self {
            auth: Auth::new(http.data_dir.clone(), http.redactor.clone()),
            http,
            abort,
            sockets: TaskTracker::new(),
            limits,
            access,
        }
    }

    /// Who may use this method of this route: whoever holds the token, unless its line says otherwise.
    fn access(&self, method: &Method, path: &str) -> Access {
        if path == channels::ACCOUNT || path == channels::BELOW {
            return Access::Channel;
        }
        if path.starts_with("/hooks/") {
            return Access::Hooks;
        }
        let method = if method == Method::HEAD { &Method::GET } else { method };
        let found = self.access.iter().find(|((m, p), _)| m == method && *p == path);
        found.map_or(Access::Token, |(_, access)| *access)
    }

    fn router(self: &Arc<Self>, face: Face) -> Router {
        let mut router = Router::new();
        for route in routes() {
            if face == Face::Main || route.access == Access::Channel {
                router = router.route(route.path, route.handler);
            }
        }
        let wrong_method = || async {
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "wrong_method", "this address takes other methods")
        };
        router
            .method_not_allowed_fallback(wrong_method)
            .layer(middleware::from_fn_with_state((Arc::clone(self), face), auth::door))
            .layer(middleware::from_fn_with_state(Arc::clone(self), screen))
            .with_state(Arc::clone(self))
    }
}

/// Takes the secrets out of answers that are text. Streams are made of rows and pieces that hold none; what a channel
/// answers is its adapter's reply, screened before it was stored.
async fn screen(
    axum::extract::State(server): axum::extract::State<Arc<Server>>,
    request: axum::extract::Request,
    next: middleware::Next,
) -> Response {
    let path = request.uri().path();
    let as_it_is = path == "/" || path.starts_with("/assets/") || path.starts_with("/channels/");
    let path = path.to_owned();
    let response = next.run(request).await;
    let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_text = kind.starts_with("application/json") || (kind.starts_with("text/") && !kind.contains("event-stream"));
    let length = response.body().size_hint().exact().and_then(|length| usize::try_from(length).ok());
    let Some(length) = length.filter(|length| is_text && !as_it_is && *length > 0) else { return response };
    let (mut head, body) = response.into_parts();
    let Ok(bytes) = axum::body::to_bytes(body, length).await else {
        return Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "internal", "the answer broke off").into_response();
    };
    let is_json =
        head.headers.get(header::CONTENT_TYPE).is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    let redactor = &server.http.redactor;
    let clean = std::str::from_utf8(&bytes).ok().and_then(|text| {
        let mut clean = text.to_owned();
        let found = if is_json { redactor.clean_json(&mut clean) } else { redactor.clean(&mut clean) };
        found.then_some(clean)
    });
    match clean {
        Some(clean) => {
            tracing::warn!(path, "an answer of the API held a secret of this gateway: it was taken out");
            head.headers.remove(header::CONTENT_LENGTH);
            Response::from_parts(head, clean.into())
        }
        _ => Response::from_parts(head, bytes.into()),
    }
}

/// The process answers.
async fn healthz() -> Response {
    json_answer(StatusCode::OK, &serde_json::json!({ "status": "ok" }))
}

/// It can do its work: started, not stopping, commits work.
async fn readyz(axum::extract::State(server): axum::extract::State<Arc<Server>>) -> Response {
    let http = &server.http;
    if http.stopping.is_cancelled() {
        return json_answer(StatusCode::SERVICE_UNAVAILABLE, &serde_json::json!({ "status": "stopping" }));
    }
    if !http.ready.is_ready() {
        return json_answer(StatusCode::SERVICE_UNAVAILABLE, &serde_json::json!({ "status": "not ready" }));
    }
    json_answer(StatusCode::OK, &serde_json::json!({ "status": "ok" }))
}

fn json_answer(status: StatusCode, body: &serde_json::Value) -> Response {
    (status, axum::Json(body)).into_response()
}
