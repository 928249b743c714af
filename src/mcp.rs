//! Servers of the Model Context Protocol: programs and services that bring tools. security.md §3.3 row 22.
//!
//! What a model sees of them is what the owner approved, word for word: a list is hashed and pinned when it is approved, and
//! a tool that is new or not the same is withheld, the others go on. So a turn needs no server to be there: its tools come
//! from the pins, and the server is started by the first turn that may use them. Each is kept by itself, with growing pauses
//! when it fails; one server's trouble is never another's.

use std::{
    collections::BTreeMap,
    io,
    panic::AssertUnwindSafe,
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use channel_api::Clock;
use futures_util::FutureExt as _;
use rmcp::{RoleClient, service::Peer};
use tokio::{
    sync::{Notify, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error, info, info_span, warn};

use self::{
    config::{Approve, McpConfig, ServerConfig},
    connection::{Connection, Reach},
    listing::Listing,
    pins::{Files, Pins, Seen, Stamp, Standing},
    tool::McpTool,
};
use crate::{
    egress::{Egress, EgressConfig, Proxy},
    os,
    policy::{Asker, Effect, Terms, Verdict, may_use},
    secrets::Redactor,
    tools::Registry,
};

pub mod config;
pub mod connection;
pub mod http;
pub mod listing;
pub mod pace;
pub mod pins;
pub mod tool;

#[cfg(test)]
mod tests;

/// The pauses before a server is tried again; the last one repeats.
const PAUSES: [Duration; 7] = [
    Duration::ZERO,
    Duration::from_secs(1),
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(60),
    Duration::from_secs(120),
    Duration::from_secs(300),
];
/// Calls wait out a pause that is no longer than this; in longer ones they are told at once.
const SHORT: Duration = Duration::from_secs(1);
/// A connection that lived this long begins with the first pause again.
const HEALTHY: Duration = Duration::from_secs(30);
/// A server that says its list has changed is asked again this often at most.
const ASK_AGAIN: Duration = Duration::from_secs(5);
/// A call waits no longer than this for a server that is being started.
const PATIENCE: Duration = Duration::from_secs(100);

/// Looks up an environment variable.
pub type Lookup = Box<dyn Fn(&str) -> Option<String>>;

/// What all servers have in common.
pub struct Common {
    /// The folder of the configuration file.
    pub dir: PathBuf,
    /// The data folder.
    pub data: PathBuf,
    /// By which the programs of this gateway are known, the same after a restart.
    pub house: String,
    /// The local proxy makes addresses up (`[tools.web_fetch] fake_ip`).
    pub fake_ip: bool,
    /// Looks up environment variables, for `proxy = "env"`.
    pub env: Lookup,
    /// Takes the configuration's secrets out of what servers give.
    pub redactor: Redactor,
    /// What confines the programs.
    pub sandbox: crate::confinement::Sandbox,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// All servers of the configuration that are switched on.
#[derive(Clone, Default)]
pub struct Mcp(Arc<Inner>);

#[derive(Default)]
struct Inner {
    servers: Vec<Arc<Server>>,
    redactor: Redactor,
    offered: Mutex<Offered>,
    programs: String,
}

/// The tools that were last put together, and from what.
#[derive(Default)]
struct Offered {
    from: Vec<(Stamp, u64)>,
    tools: Registry,
}

/// One server.
pub struct Server {
    reach: Reach,
    files: Files,
    wanted: Notify,
    doubted: Notify,
    state: watch::Sender<State>,
}

#[derive(Clone, Default)]
struct State {
    now: Now,
    /// Grows with every list that differs from the one before.
    lists: u64,
    /// The last list.
    listing: Option<Arc<Listing>>,
}

#[derive(Clone, Default)]
enum Now {
    /// Nobody has asked for it.
    #[default]
    Idle,
    /// It is being started or dialled.
    Starting,
    /// It answers.
    Ready(Peer<RoleClient>),
    /// It does not, for this reason.
    Down(String),
}

impl Mcp {
    /// Those of this configuration. Starts nothing.
    pub fn new(config: &McpConfig, common: &Common) -> Self {
        let servers = config.servers.iter().filter(|(_, server)| server.enabled);
        let servers = servers.map(|(name, server)| Arc::new(Server::new(name, server, common))).collect();
        Self(Arc::new(Inner {
            servers,
            redactor: common.redactor.clone(),
            offered: Mutex::default(),
            programs: mark(&common.house),
        }))
    }

    /// The servers.
    pub fn servers(&self) -> &[Arc<Server>] {
        &self.0.servers
    }

    /// Keeps the servers until `abort`, and ends them.
    pub async fn run(self, abort: CancellationToken) {
        let programs = self.0.programs.clone();
        if self.0.servers.iter().any(|server| server.reach.config.url.is_none()) {
            let left = tokio::task::spawn_blocking(move || os::end_marked(&programs)).await.unwrap_or(0);
            if left > 0 {
                warn!(processes = left, "MCP servers of an earlier run still ran; they were ended");
            }
        }
        let mut keeping = JoinSet::new();
        for server in &self.0.servers {
            let (server, abort) = (Arc::clone(server), abort.clone());
            let span = info_span!("mcp", server = server.name());
            keeping.spawn(async move { server.keep(abort).await }.instrument(span));
        }
        abort.cancelled().await;
        while keeping.join_next().await.is_some() {}
    }

    /// These tools and the approved ones of the servers; a name that is taken is not taken again. The servers whose tools
    /// the asker may use are started.
    pub fn joined(&self, tools: &Registry, asker: Asker) -> Registry {
        if self.0.servers.is_empty() {
            return tools.clone();
        }
        let from: Vec<(Stamp, u64)> = self.0.servers.iter().map(|server| server.version()).collect();
        let mut offered = self.0.offered.lock().unwrap_or_else(PoisonError::into_inner);
        if offered.from != from {
            *offered = Offered { from, tools: self.put_together(tools) };
        }
        for server in &self.0.servers {
            let terms = Terms { least: server.reach.config.least, ..Terms::of(Effect::Read) };
            if may_use(asker, terms) == Verdict::Allow && server.files.stamp().is_some() {
                server.wanted.notify_one();
            }
        }
        tools.joined(&offered.tools)
    }

    /// The approved tools that the servers still have as they were approved, as far as that is known.
    fn put_together(&self, taken: &Registry) -> Registry {
        let mut all = Registry::default();
        for server in &self.0.servers {
            let (Some(pins), listing) = (server.files.pins(), server.state.borrow().listing.clone()) else { continue };
            let wanted = server.reach.config.wanted();
            let names = listing::names(server.name(), pins.tools.keys().map(String::as_str));
            for (theirs, approved) in &pins.tools {
                let same = listing
                    .as_ref()
                    .is_none_or(|now| now.tools.get(theirs).is_some_and(|now| now.hash == approved.hash));
                if !same || !wanted.as_ref().is_some_and(|wanted| wanted.is_match(theirs)) {
                    continue;
                }
                let ours = names[theirs.as_str()].clone();
                if taken.get(&ours).is_some() {
                    warn!(
                        server = server.name(),
                        tool = ours,
                        "a tool of ours has this name; the server's is left out"
                    );
                    continue;
                }
                let tool = McpTool {
                    server: Arc::clone(server),
                    theirs: theirs.clone(),
                    ours,
                    approved: approved.clone(),
                    redactor: self.0.redactor.clone(),
                };
                if let Err(why) = all.add(Arc::new(tool)) {
                    warn!(server = server.name(), tool = theirs, why, "a tool of an MCP server is left out");
                }
            }
        }
        all
    }
}

/// What the marks of programs of this gateway's servers begin with.
fn mark(house: &str) -> String {
    format!("{house}-mcp.")
}

impl Server {
    fn new(name: &str, config: &ServerConfig, common: &Common) -> Self {
        let egress = config.address().map(|url| {
            let named = match (config.private, url.host_str(), url.port_or_known_default()) {
                (true, Some(host), Some(port)) => vec![format!("{host}:{port}")],
                _ => Vec::new(),
            };
            let proxy = if config.private { Proxy::None } else { config.proxy.clone() };
            let rules = EgressConfig { enabled: true, proxy, fake_ip: common.fake_ip, allow_hosts: named };
            Arc::new(Egress::new(&rules, &common.env, Arc::clone(&common.clock)))
        });
        let reach = Reach {
            name: name.to_owned(),
            config: config.clone(),
            dir: common.dir.clone(),
            own: connection::own_folder(&common.data, name),
            mark: mark(&common.house),
            egress,
            redactor: common.redactor.clone(),
            sandbox: common.sandbox.clone(),
            clock: Arc::clone(&common.clock),
        };
        let files = Files::of(&common.data.join("mcp"), name);
        let state = watch::channel(State::default()).0;
        Self { reach, files, wanted: Notify::new(), doubted: Notify::new(), state }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.reach.name
    }

    /// Its section.
    pub fn config(&self) -> &ServerConfig {
        &self.reach.config
    }

    /// What is approved, and what was last seen.
    pub fn files(&self) -> &Files {
        &self.files
    }

    /// Connects, reads the list, and ends the connection: for commands, apart from what a gateway keeps.
    ///
    /// # Errors
    /// Why there is no list.
    pub async fn look(&self) -> Result<Listing, String> {
        // Known as the command's own: a gateway that starts meanwhile ends only its own leftovers.
        let reach = Reach { mark: format!("look-{}", self.reach.mark), ..self.reach.clone() };
        let connection = reach.connect().await?;
        let listing = connection.list().await;
        connection.end().await;
        listing
    }

    /// The way to call it, and its list; waits while it is being started.
    ///
    /// # Errors
    /// Why it cannot be called.
    pub async fn ready(&self) -> Result<(Peer<RoleClient>, Arc<Listing>), String> {
        self.wanted.notify_one();
        let mut state = self.state.subscribe();
        let waiting = async {
            loop {
                {
                    let state = state.borrow_and_update();
                    match (&state.now, &state.listing) {
                        (Now::Ready(peer), Some(listing)) => return Ok((peer.clone(), Arc::clone(listing))),
                        (Now::Down(why), _) => return Err(why.clone()),
                        _ => {}
                    }
                }
                if state.changed().await.is_err() {
                    return Err("the gateway stops".to_owned());
                }
            }
        };
        tokio::select! {
            ready = waiting => ready,
            () = self.reach.clock.sleep(PATIENCE) => Err("it is still being started".to_owned()),
        }
    }

    /// A call found the connection dead: it is made anew.
    pub fn doubt(&self) {
        self.doubted.notify_one();
    }

    fn version(&self) -> (Stamp, u64) {
        (self.files.stamp(), self.state.borrow().lists)
    }

    async fn keep(&self, abort: CancellationToken) {
        let first = self.reach.config.approve == Approve::First && self.files.stamp().is_none();
        if !first {
            if self.files.stamp().is_none() {
                info!(
                    "the tools of this MCP server are not approved; `crawfish mcp approve {}` shows them",
                    self.name()
                );
            }
            tokio::select! {
                () = self.wanted.notified() => {}
                () = abort.cancelled() => return,
            }
        }
        let mut failures = 0;
        loop {
            let began = self.reach.clock.monotonic();
            let kept = AssertUnwindSafe(self.connected(&abort)).catch_unwind().await;
            let why = kept.unwrap_or_else(|_| {
                error!("the keeper of an MCP server panicked");
                "an error of the gateway itself".to_owned()
            });
            if abort.is_cancelled() {
                return;
            }
            failures = match self.reach.clock.monotonic().saturating_sub(began) > HEALTHY {
                true => 0,
                false => failures + 1,
            };
            let pause = PAUSES[failures.min(PAUSES.len() - 1)];
            warn!(why, again_in_s = pause.as_secs(), "an MCP server is gone");
            let long = pause > SHORT;
            self.set(|state| state.now = if long { Now::Down(why.clone()) } else { Now::Starting });
            if long {
                let listing = self.files.seen().map(|seen| seen.listing).unwrap_or_default();
                self.saw(&Seen { down: Some(why), listing });
            }
            tokio::select! {
                () = self.reach.clock.sleep(pause) => {}
                () = abort.cancelled() => return,
            }
        }
    }

    /// Connects and serves calls until the connection is over; why it is.
    async fn connected(&self, abort: &CancellationToken) -> String {
        // While it is down, calls are told so; only the first start, and the ones after short pauses, are waited for.
        self.set(|state| {
            if !matches!(state.now, Now::Down(_)) {
                state.now = Now::Starting;
            }
        });
        let connecting = async {
            let connection = self.reach.connect().await?;
            match connection.list().await {
                Ok(listing) => Ok((connection, listing)),
                Err(why) => {
                    connection.end().await;
                    Err(why)
                }
            }
        };
        let (mut connection, listing) = tokio::select! {
            connected = connecting => match connected {
                Ok(connected) => connected,
                Err(why) => return why,
            },
            // What was started ends as its handle is dropped.
            () = abort.cancelled() => return String::new(),
        };
        // A doubt about the connection before is none about this one.
        let _ = self.doubted.notified().now_or_never();
        self.take(listing, Some(&connection));
        info!("connected to an MCP server");
        let why = loop {
            let changed = Arc::clone(&connection.changed);
            tokio::select! {
                () = abort.cancelled() => break String::new(),
                why = connection.over() => break why,
                () = self.doubted.notified() => break "the connection broke".to_owned(),
                () = changed.notified() => {}
            }
            match connection.list().await {
                Ok(listing) => self.take(listing, None),
                Err(why) => break why,
            }
            tokio::select! {
                () = self.reach.clock.sleep(ASK_AGAIN) => {}
                () = abort.cancelled() => break String::new(),
                why = connection.over() => break why,
            }
        };
        self.set(|state| state.now = Now::Starting);
        connection.end().await;
        why
    }

    /// Takes a list: approves it when it is the first and may be taken so, and says what is withheld.
    fn take(&self, listing: Listing, connection: Option<&Connection>) {
        if self.files.stamp().is_none() && self.reach.config.approve == Approve::First {
            match self.files.approve(&Pins { tools: listing.tools.clone() }) {
                Ok(()) => info!(tools = listing.tools.len(), "took the first list of an MCP server as approved"),
                Err(error) => warn!(%error, "the approved tools cannot be written"),
            }
        }
        let is_new = self.state.borrow().listing.as_deref() != Some(&listing);
        if is_new {
            let withheld = withheld(&self.files, &listing);
            if !withheld.is_empty() {
                let tools = withheld.iter().map(|(name, standing)| format!("{name} ({})", standing.as_str()));
                let tools = tools.collect::<Vec<_>>().join(", ");
                warn!(tools, "tools of an MCP server are withheld until `crawfish mcp approve {}`", self.name());
            }
            for (tool, why) in &listing.refused {
                warn!(tool, why, "a tool of an MCP server cannot be used");
            }
            if listing.more {
                warn!("an MCP server lists more than {} tools; the rest is left out", listing::MOST_TOOLS);
            }
        }
        self.saw(&Seen { down: None, listing: listing.clone() });
        self.set(|state| {
            if is_new {
                state.lists += 1;
                state.listing = Some(Arc::new(listing.clone()));
            }
            if let Some(connection) = connection {
                state.now = Now::Ready(connection.peer.clone());
            }
        });
    }

    fn saw(&self, seen: &Seen) {
        if let Err(error) = self.files.see(seen) {
            warn!(%error, "what was seen of an MCP server cannot be written");
        }
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        self.state.send_modify(change);
    }

    /// Approves tools of a list: those named, or all. Others stay as they were.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn approve(&self, listing: &Listing, only: &[String]) -> io::Result<()> {
        let mut pins = self.files.pins().unwrap_or_default();
        if only.is_empty() {
            pins.tools.retain(|name, _| listing.tools.contains_key(name));
        }
        let chosen = listing.tools.iter().filter(|(name, _)| only.is_empty() || only.contains(name));
        pins.tools.extend(chosen.map(|(name, listed)| (name.clone(), listed.clone())));
        self.files.approve(&pins)?;
        self.files.see(&Seen { down: None, listing: listing.clone() })
    }
}

/// The tools of a list that are not as they were approved.
pub fn withheld(files: &Files, listing: &Listing) -> BTreeMap<String, Standing> {
    let standings = files.pins().unwrap_or_default().standings(listing);
    standings.into_iter().filter(|(_, standing)| standing.is_withheld()).collect()
}
