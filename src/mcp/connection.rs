//! One connection to a server: started or dialled, greeted, its tools listed, calls made on it, and ended with everything
//! that was started for it. What it is told of us is our name; sampling, elicitation and roots are granted to none.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use channel_api::Clock;
use futures_util::{
    FutureExt as _,
    future::{BoxFuture, Shared},
};
use globset::GlobSet;
use rmcp::{
    ClientHandler, RoleClient,
    model::{
        CallToolRequest, CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, ClientRequest,
        Implementation, PaginatedRequestParams, ServerResult,
    },
    service::{
        NotificationContext, Peer, PeerRequestOptions, QuitReason, RunningServiceCancellationToken, ServiceError,
        serve_client,
    },
    transport::{
        StreamableHttpClientTransport, async_rw::AsyncRwTransport,
        streamable_http_client::StreamableHttpClientTransportConfig,
    },
};
use serde_json::{Map, Value};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _},
    process::Command,
    sync::Notify,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug};

use super::{
    config::ServerConfig,
    http::Wire,
    listing::{Listing, MOST_TOOLS},
    pace::{MOST, Paced},
};
use crate::{
    confinement::{Limits, Network, Reachable, Ruling, Sandbox, Wanted, installation_of},
    egress::{
        Egress,
        hosts::{By, Host},
    },
    lang::Lang,
    os::{self, Started},
    secrets::Redactor,
};

/// How long a server may take to be there: `uvx` and `npx` fetch their program first.
const GREETING: Duration = Duration::from_secs(60);
/// How long its list may take.
const LISTING: Duration = Duration::from_secs(30);
/// The most pages of a list.
const PAGES: usize = 16;
/// Lines of stderr that are logged of one start; the rest is read and dropped.
const LOGGED_LINES: usize = 500;
/// The most characters of such a line.
const LOGGED_CHARS: usize = 300;
/// How long a program may take to end by itself when its stdin has ended, and then when it is asked to.
const LAST_WORDS: [Duration; 2] = [Duration::from_millis(500), Duration::from_millis(400)];

/// What it takes to connect to one server.
#[derive(Clone)]
pub struct Reach {
    /// The server's name.
    pub name: String,
    /// Its section.
    pub config: ServerConfig,
    /// The folder of the configuration file.
    pub dir: PathBuf,
    /// A folder of its own.
    pub own: PathBuf,
    /// By which its processes are known; the same after a restart.
    pub mark: String,
    /// The guarded client, for one that is reached over HTTP.
    pub egress: Option<Arc<Egress>>,
    /// Takes secrets out of what it writes.
    pub redactor: Redactor,
    /// What confines its program.
    pub sandbox: Sandbox,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// A server that answers.
pub struct Connection {
    /// For calls.
    pub peer: Peer<RoleClient>,
    /// Told when the server says that its list is another.
    pub changed: Arc<Notify>,
    reach: Reach,
    wanted: GlobSet,
    stop: Option<RunningServiceCancellationToken>,
    ended: Shared<BoxFuture<'static, String>>,
    process: Option<Started>,
    /// What reads its stderr.
    _stderr: JoinSet<()>,
}

/// What the server may tell us.
struct Ears {
    changed: Arc<Notify>,
}

impl ClientHandler for Ears {
    async fn on_tool_list_changed(&self, _context: NotificationContext<RoleClient>) {
        self.changed.notify_one();
    }

    fn get_info(&self) -> ClientConfig {
        let us = Implementation::new("crawfish", env!("CARGO_PKG_VERSION"));
        ClientConfig::new(ClientCapabilities::default(), us)
    }
}

impl Reach {
    /// Connects and greets.
    ///
    /// # Errors
    /// Why not, in a few words without secrets.
    pub async fn connect(&self) -> Result<Connection, String> {
        let changed = Arc::new(Notify::new());
        let ears = Ears { changed: Arc::clone(&changed) };
        let wanted = self.config.wanted().ok_or("a pattern of `tools` is none")?;
        let mut stderr = JoinSet::new();
        let (mut process, greeting) = match self.config.address() {
            Some(url) => {
                let egress = self.egress.as_ref().ok_or("there is no client for web addresses")?;
                let client = egress.client_for(&url).map_err(|error| error.to_string())?;
                let headers = self.config.parsed_headers().ok_or("a header cannot be sent")?;
                let mut config = StreamableHttpClientTransportConfig::with_uri(url.as_str());
                config = config.custom_headers(headers.into_iter().collect()).max_json_response_size(MOST);
                let wire = Wire { client, clock: Arc::clone(&self.clock), changed: Arc::clone(&changed) };
                let transport = StreamableHttpClientTransport::with_client(wire, config);
                (None, serve_client(ears, transport).boxed())
            }
            None => {
                let (started, pipes) = self.start().await?;
                let reading = log_stderr(pipes.stderr, self.name.clone(), self.redactor.clone());
                stderr.spawn(reading.in_current_span());
                let stdout = Paced::new(pipes.stdout, Arc::clone(&self.clock), Arc::clone(&changed));
                let transport = AsyncRwTransport::new_client(stdout, pipes.stdin).with_max_line_length(MOST + 1);
                (Some(started), serve_client(ears, transport).boxed())
            }
        };
        let greeted = tokio::select! {
            greeted = greeting => greeted.map_err(|error| self.clean(&error.to_string())),
            () = self.clock.sleep(GREETING) => Err(format!("it did not greet within {} s", GREETING.as_secs())),
        };
        let service = match greeted {
            Ok(service) => service,
            Err(why) => {
                let Some(process) = &mut process else { return Err(why) };
                let ended = tokio::select! {
                    ended = process.wait() => ended.ok(),
                    () = self.clock.sleep(LAST_WORDS[0]) => None,
                };
                process.end().await;
                return Err(ended.map_or(why, |status| format!("the program ended ({status}) before it greeted")));
            }
        };
        let stop = Some(service.cancellation_token());
        let peer = service.peer().clone();
        let ended = async move {
            match service.waiting().await {
                Ok(QuitReason::Cancelled) => "it was ended".to_owned(),
                _ => "it closed the connection".to_owned(),
            }
        };
        Ok(Connection {
            peer,
            changed,
            reach: self.clone(),
            wanted,
            stop,
            ended: ended.boxed().shared(),
            process,
            _stderr: stderr,
        })
    }

    async fn start(&self) -> Result<(Started, os::Pipes), String> {
        let (program, arguments) = self.config.command.split_first().ok_or("there is no command")?;
        let path = if program.contains(['/', '\\']) {
            self.dir.join(program)
        } else {
            os::program(program).ok_or_else(|| format!("`{program}` is not in the search path"))?
        };
        let folder = match &self.config.cwd {
            Some(cwd) => self.dir.join(cwd),
            None => {
                os::create_private_dir(&self.own).map_err(|error| format!("{}: {error}", self.own.display()))?;
                self.own.clone()
            }
        };
        let mut command = Command::new(&path);
        command.args(arguments).current_dir(&folder).env_clear();
        command.envs(os::clean_environment(std::env::vars_os()));
        command.envs(self.config.env.iter().map(|(name, value)| (name, value.expose())));
        let mark = format!("{}{}", self.mark, ulid::Ulid::generate());
        let ruling = match self.config.sandbox {
            Wanted::Off => Ruling::Open,
            wanted => wanted.rule(self.sandbox.found().await, Lang::current()),
        };
        let launch = match ruling {
            Ruling::Open => command.into(),
            // Nobody can be asked about a server each time: it runs on.
            Ruling::Refused(why) | Ruling::Asked(_, why) => return Err(why),
            Ruling::Confined(level) => self.sandbox.launch(command, level, self.reachable(&path, &folder))?,
        };
        Started::spawn_spoken_to(launch, mark).map_err(|error| {
            let place = if folder.is_dir() { path.display() } else { folder.display() };
            format!("{place}: {error}")
        })
    }

    /// Its own folder, its installation, the scripts that its command names, and what the owner wrote.
    fn reachable(&self, program: &Path, folder: &Path) -> Reachable {
        let mut read = installation_of(program);
        for argument in self.config.command.iter().skip(1).map(Path::new).filter(|path| path.is_absolute()) {
            read.push(argument.to_owned());
            // What a script stands on lies beside it.
            read.extend(argument.parent().filter(|_| argument.is_file()).map(Path::to_owned));
        }
        read.extend(self.config.read.iter().map(|path| self.dir.join(path)));
        let mut write = vec![folder.to_owned()];
        write.extend(self.config.write.iter().map(|path| self.dir.join(path)));
        // The sandbox refuses what holds the gateway's own files; of what is only beside a script, it is left out.
        Reachable {
            write,
            read,
            network: if self.config.network { Network::Host } else { Network::Off },
            hosts: self.config.hosts.iter().filter_map(|written| Host::read(written, By::Owner)).collect(),
            server: Some(self.name.clone()),
            limits: Limits { cpu_s: None, memory: None, file: Some(1 << 30), open_files: Some(1_024), processes: 512 },
        }
    }

    /// The words of a library or a server, on one line, without secrets.
    fn clean(&self, text: &str) -> String {
        super::listing::one_line(&self.redactor.redact(text), 300)
    }
}

/// Reads what the program complains, so that it never waits for us, and logs the first of it.
async fn log_stderr(mut stderr: impl AsyncRead + Unpin, server: String, redactor: Redactor) {
    let mut bytes = vec![0; 4 * 1024];
    let mut line = Vec::new();
    let mut logged = 0;
    while let Ok(read) = stderr.read(&mut bytes).await {
        if read == 0 {
            return;
        }
        for byte in &bytes[..read] {
            match byte {
                b'\n' => {
                    let text = String::from_utf8_lossy(&line);
                    let text = super::listing::one_line(&redactor.redact(&text), LOGGED_CHARS);
                    if logged < LOGGED_LINES && !text.is_empty() {
                        logged += 1;
                        debug!(server, text, "an MCP server writes");
                    }
                    line.clear();
                }
                byte if line.len() < LOGGED_CHARS * 4 => line.push(*byte),
                _ => {}
            }
        }
    }
}

impl Connection {
    /// Its tools as they are now.
    ///
    /// # Errors
    /// Why there is no list.
    pub async fn list(&self) -> Result<Listing, String> {
        let pages = async {
            let mut all = Vec::new();
            let mut cursor = None;
            for _ in 0..PAGES {
                let page = PaginatedRequestParams::default().with_cursor(cursor);
                let page =
                    self.peer.list_tools(Some(page)).await.map_err(|error| self.reach.clean(&error.to_string()))?;
                all.extend(page.tools);
                cursor = page.next_cursor;
                if cursor.is_none() || all.len() > MOST_TOOLS {
                    break;
                }
            }
            Ok(Listing::of(&all, |name| self.wanted.is_match(name)))
        };
        tokio::select! {
            listing = pages => listing.map_err(|why: String| format!("its list of tools cannot be read: {why}")),
            () = self.reach.clock.sleep(LISTING) => Err(format!("it gave no list of tools within {} s", LISTING.as_secs())),
        }
    }

    /// Waits until it is over; why.
    pub async fn over(&mut self) -> String {
        let Some(process) = &mut self.process else { return self.ended.clone().await };
        tokio::select! {
            status = process.wait() => status.map_or_else(|error| error.to_string(), |status| format!("the program ended ({status})")),
            why = self.ended.clone() => why,
        }
    }

    /// Ends it, with everything that was started for it.
    pub async fn end(mut self) {
        if let Some(stop) = self.stop.take() {
            stop.cancel();
        }
        let clock = Arc::clone(&self.reach.clock);
        // Its stdin ends with the service; a session is said goodbye to.
        tokio::select! {
            _ = self.over() => {}
            () = clock.sleep(LAST_WORDS[0]) => {}
        }
        if let Some(process) = &mut self.process {
            process.ask_to_end();
            tokio::select! {
                _ = process.wait() => {}
                () = clock.sleep(LAST_WORDS[1]) => {}
            }
            process.end().await;
        }
    }
}

/// Why a call gave nothing.
#[derive(Debug, PartialEq)]
pub enum CallError {
    /// The turn was stopped.
    Stopped,
    /// It took too long. The server was told; what it did until then stays done.
    TimedOut,
    /// The connection is no more.
    Lost,
    /// The server says why.
    Refused(String),
    /// The server wants something that it is not granted.
    Asks,
}

/// Calls a tool. A call that is stopped or takes too long is cancelled at the server too.
///
/// # Errors
/// [`CallError`].
pub async fn call(
    peer: &Peer<RoleClient>,
    tool: &str,
    arguments: Map<String, Value>,
    most: Duration,
    cancel: &CancellationToken,
    clock: &dyn Clock,
) -> Result<CallToolResult, CallError> {
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    let request = ClientRequest::CallToolRequest(CallToolRequest::new(params));
    let sending = peer.send_cancellable_request(request, PeerRequestOptions::no_options());
    let mut asked = tokio::select! {
        biased;
        () = cancel.cancelled() => return Err(CallError::Stopped),
        asked = sending => asked.map_err(|_| CallError::Lost)?,
        () = clock.sleep(most) => return Err(CallError::TimedOut),
    };
    let why = tokio::select! {
        biased;
        answer = &mut asked.rx => return read(answer.map_err(|_| CallError::Lost)?),
        () = cancel.cancelled() => CallError::Stopped,
        () = clock.sleep(most) => CallError::TimedOut,
    };
    // The server may not read any more.
    tokio::select! {
        _ = asked.cancel(None) => {}
        () = clock.sleep(LAST_WORDS[0]) => {}
    }
    Err(why)
}

fn read(answer: Result<ServerResult, ServiceError>) -> Result<CallToolResult, CallError> {
    match answer {
        Ok(ServerResult::CallToolResult(result)) => Ok(result),
        Ok(ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_)) => Ok(CallToolResult::default()),
        Ok(ServerResult::InputRequiredResult(_) | ServerResult::CreateTaskResult(_)) => Err(CallError::Asks),
        Ok(_) => Err(CallError::Refused("the answer is not that of a tool".to_owned())),
        Err(ServiceError::McpError(error)) => Err(CallError::Refused(error.message.into_owned())),
        Err(_) => Err(CallError::Lost),
    }
}

/// The folder of one server's own.
pub fn own_folder(data: &Path, server: &str) -> PathBuf {
    data.join("mcp").join(server)
}
