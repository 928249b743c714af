//! The one way from a sandboxed command into the network: an HTTP proxy on a unix socket, one for each command, that opens
//! the hosts of that command and nothing else.
//!
//! It speaks `CONNECT` and the absolute form of HTTP/1.1 (RFC 9112 §3.2). A host is compared by its name and port
//! ([`hosts`]); what the name leads to is looked up here, judged by [`resolve`] and connected to at the judged address, so
//! nothing can lead it elsewhere in between. TLS goes through unread: what a server behind an open host is asked for is the
//! command's affair. It knows nothing of who asked, since only its own command can reach its socket; that is the sandbox's
//! part. security.md §3.4, row 16.

use std::{
    collections::BTreeSet,
    fmt, io,
    net::{IpAddr, SocketAddr},
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use channel_api::Clock;
use channel_socket::Network;
use reqwest::Url;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpStream, UnixListener, UnixStream},
    sync::Semaphore,
    task::JoinSet,
};
use ulid::Ulid;

use super::{
    address::{self, Rules},
    config::{EgressConfig, Proxy},
    hosts::{self, Host, Open},
    resolve::{self, Guard, Lookup, Unresolved},
};
use crate::os;

/// The most connections at once, and in all. A page with everything on it takes some dozens.
const AT_ONCE: usize = 32;
const IN_ALL: u64 = 2_000;
/// The most bytes through one doorway, both ways together: as large as the largest file that a command may write.
const BYTES: u64 = 256 << 20;
/// The longest head of a request, in bytes, and how long it may take to come.
const HEAD: usize = 32 * 1024;
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a connection to a host may take to stand.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection may stand still.
const IDLE: Duration = Duration::from_secs(60);
/// The most refused hosts that are remembered.
const REMEMBERED: usize = 5;
/// The longest path of a unix socket that every system takes.
const LONGEST_PATH: usize = 100;

/// Opens doorways: what all of them share.
#[derive(Clone)]
pub struct Doorways {
    folder: PathBuf,
    lookup: Arc<dyn Lookup>,
    rules: Rules,
    upstream: Option<Network>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Doorways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorways").field("folder", &self.folder).finish_non_exhaustive()
    }
}

impl Doorways {
    /// Below `folder`, which is made with mode 0700 when the first one opens and belongs to this gateway alone. The public
    /// internet is reached as `config` says for every other address that is not the owner's.
    pub fn new(folder: PathBuf, config: &EgressConfig, clock: Arc<dyn Clock>) -> Self {
        Self::with_lookup(folder, config, clock, Arc::new(resolve::System))
    }

    /// The same with another way to resolve names.
    pub fn with_lookup(folder: PathBuf, config: &EgressConfig, clock: Arc<dyn Clock>, lookup: Arc<dyn Lookup>) -> Self {
        let upstream = match &config.proxy {
            Proxy::None => None,
            Proxy::Env => Network::new(Some("env"), None).ok(),
            // One that cannot be used was told of by the check of the configuration; going around it is not meant.
            Proxy::Url(url) => Network::new(Some(url), None).ok(),
        };
        let rules = Rules { named: Vec::new(), fake_ip: config.fake_ip, proxies: Vec::new() };
        Self { folder, lookup, rules, upstream, clock }
    }

    /// Opens a doorway to these hosts for a command of the owner's. Needs a running runtime.
    ///
    /// # Errors
    /// Those of the file system: nothing is open then.
    pub fn open(&self, hosts: Vec<Host>) -> io::Result<Doorway> {
        self.open_for(hosts, None)
    }

    /// The same for the MCP server of this name, if it is one.
    ///
    /// # Errors
    /// As [`Doorways::open`].
    pub fn open_for(&self, hosts: Vec<Host>, server: Option<String>) -> io::Result<Doorway> {
        os::create_private_dir(&self.folder)?;
        let near = self.folder.join(Ulid::generate().to_string());
        let bound = if near.as_os_str().len() > LONGEST_PATH { None } else { UnixListener::bind(&near).ok() };
        let (path, own_folder, listener) = match bound {
            Some(listener) => (near, None, listener),
            None => {
                // The data folder lies too deep, or where there are no sockets (a mounted disk of another system). A folder
                // of a name that nobody can guess, made here or not at all.
                let folder = std::env::temp_dir().join(format!("crawfish-{}", Ulid::generate()));
                let mut builder = std::fs::DirBuilder::new();
                std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
                builder.create(&folder)?;
                let path = folder.join("s");
                let listener = UnixListener::bind(&path).inspect_err(|_| drop(std::fs::remove_dir(&folder)))?;
                (path, Some(folder), listener)
            }
        };
        let shared = Arc::new(Shared {
            hosts,
            server,
            ways: self.clone(),
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            count: Count::default(),
        });
        let mut doorway = Doorway { path, own_folder, shared: Arc::clone(&shared), serving: JoinSet::new() };
        std::fs::set_permissions(&doorway.path, std::fs::Permissions::from_mode(0o600))?;
        doorway.serving.spawn(accept(listener, shared));
        Ok(doorway)
    }

    /// Removes what a gateway that was killed left behind. Nothing else may use the folder then.
    pub fn sweep(&self) {
        for entry in std::fs::read_dir(&self.folder).into_iter().flatten().flatten() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// An open doorway; dropping it ends every connection through it and removes its socket.
pub struct Doorway {
    path: PathBuf,
    own_folder: Option<PathBuf>,
    shared: Arc<Shared>,
    serving: JoinSet<()>,
}

impl Doorway {
    /// Its socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the model is told of hosts that were refused, a line each; `None` when there were none. Programs seldom show
    /// what a proxy says.
    pub fn note(&self) -> Option<String> {
        let refused = self.shared.count.refused.lock().unwrap_or_else(PoisonError::into_inner);
        let lines: Vec<String> = refused.iter().map(|line| format!("[{line}]")).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Connections that were let through, and those that were not.
    pub fn counted(&self) -> (u64, u64) {
        (self.shared.count.opened.load(Relaxed), self.shared.count.closed.load(Relaxed))
    }
}

impl Drop for Doorway {
    fn drop(&mut self) {
        self.serving.abort_all();
        let _ = std::fs::remove_file(&self.path);
        if let Some(folder) = &self.own_folder {
            let _ = std::fs::remove_dir(folder);
        }
        let count = &self.shared.count;
        let (opened, refused, bytes) =
            (count.opened.load(Relaxed), count.closed.load(Relaxed), count.bytes.load(Relaxed));
        if opened + refused > 0 {
            tracing::info!(opened, refused, bytes, "a command used the network");
        }
    }
}

impl fmt::Debug for Doorway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Doorway").field("path", &self.path).field("hosts", &self.shared.hosts).finish_non_exhaustive()
    }
}

/// What the connections of a doorway share.
struct Shared {
    hosts: Vec<Host>,
    /// Whose it is, when it is an MCP server's.
    server: Option<String>,
    ways: Doorways,
    slots: Arc<Semaphore>,
    count: Count,
}

#[derive(Default)]
struct Count {
    opened: AtomicU64,
    closed: AtomicU64,
    bytes: AtomicU64,
    refused: Mutex<BTreeSet<String>>,
}

/// An answer of the doorway's own: its status and its line.
#[derive(Debug, PartialEq, Eq)]
struct Refusal(&'static str, String);

async fn accept(listener: UnixListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    let mut came = 0;
    loop {
        // The next one is taken when there is room for it: until then it waits in the system's queue.
        let Ok(slot) = Arc::clone(&shared.slots).acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else { return };
        while connections.try_join_next().is_some() {}
        came += 1;
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let _slot = slot;
            serve(&shared, stream, came).await;
        });
    }
}

async fn serve(shared: &Shared, mut stream: UnixStream, nth: u64) {
    let clock = &shared.ways.clock;
    let asked = tokio::select! {
        asked = Request::of(&mut stream) => asked,
        () = clock.sleep(HEAD_TIME) => Err(Refusal("408 Request Timeout", "crawfish: no request came".to_owned())),
    };
    let entered = match asked {
        Err(refusal) => Err(refusal),
        Ok(_) if nth > IN_ALL => {
            Err(Refusal("429 Too Many Requests", format!("crawfish: a command has {IN_ALL} connections at most")))
        }
        Ok(request) => shared.enter(request).await,
    };
    match entered {
        Ok((request, far)) => {
            shared.count.opened.fetch_add(1, Relaxed);
            carry(shared, stream, request, far).await;
        }
        Err(Refusal(status, line)) => {
            shared.count.closed.fetch_add(1, Relaxed);
            let head = "Content-Type: text/plain; charset=utf-8\r\nConnection: close\r\nContent-Length:";
            let answer = format!("HTTP/1.1 {status}\r\n{head} {}\r\n\r\n{line}\n", line.len() + 1);
            let _ = stream.write_all(answer.as_bytes()).await;
            let _ = stream.shutdown().await;
        }
    }
}

/// A connection to a host.
type Far = std::pin::Pin<Box<dyn Both>>;

trait Both: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Both for T {}

impl Shared {
    /// Connects to what is asked for, if it is open.
    async fn enter(&self, request: Request) -> Result<(Request, Far), Refusal> {
        let (name, port) = (request.name.as_str(), request.port);
        let place = format!("{name}:{port}");
        let Some(open) = hosts::opened(&self.hosts, name, port) else {
            tracing::debug!(host = %place, "a command was refused a host");
            let line = self.line(if matches!(port, 80 | 443) { name } else { &place });
            return Err(self.refused(match &self.server {
                Some(server) => format!("crawfish: {place} is not open to the MCP server {server}; the owner opens it with {line}"),
                None => format!(
                    "crawfish: {place} is not open to this command; a skill's hosts are open once its SKILL.md was read in \
                     this turn and, if it is installed, the owner ran `crawfish skills grant NAME`; other hosts the owner \
                     opens with {line}; tell the user"
                ),
            }));
        };
        let private = || {
            self.refused(format!(
                "crawfish: {place} leads into a private network, and it was not opened for that; the owner opens it with \
                 {}; tell the user",
                self.line(&place)
            ))
        };
        if open == Open::Public && !address::is_public_host(name, request.ip) {
            return Err(private());
        }
        let gone = |why: &str| Refusal("502 Bad Gateway", format!("crawfish: {place} {why}"));
        let proxied =
            self.ways.upstream.as_ref().filter(|way| open == Open::Public && way.is_proxied(name, request.tunnel));
        let far = async {
            if let Some(upstream) = proxied {
                // The proxy resolves the name, as for every other address that is fetched through it.
                let stream = upstream.stream(name, port, false).await.map_err(|_| gone("could not be reached"))?;
                return Ok(Box::pin(stream) as Far);
            }
            let guard = Guard {
                lookup: Arc::clone(&self.ways.lookup),
                named: open == Open::Anywhere,
                fake_ip: self.ways.rules.fake_ip,
                proxies: Vec::new(),
            };
            let found = match request.ip {
                // Judged when the list was read, or just now.
                Some(ip) => vec![ip],
                None => guard.checked(name).await.map_err(|error| match error {
                    Unresolved::NotPublic => private(),
                    Unresolved::NoSuchName => gone("was not found"),
                })?,
            };
            let stream = connect(&found, port).await.map_err(|_| gone("could not be reached"))?;
            Ok(Box::pin(stream) as Far)
        };
        let far = tokio::select! {
            far = far => far?,
            () = self.ways.clock.sleep(CONNECT) => return Err(gone("did not answer in time")),
        };
        Ok((request, far))
    }

    /// The line of the configuration that opens a host.
    fn line(&self, host: &str) -> String {
        match &self.server {
            Some(server) => format!("[mcp.servers.{server}] hosts = [\"{host}\"]"),
            None => format!("[tools.exec] network = \"hosts\", hosts = [\"{host}\"]"),
        }
    }

    fn refused(&self, line: String) -> Refusal {
        let mut refused = self.count.refused.lock().unwrap_or_else(PoisonError::into_inner);
        if refused.len() < REMEMBERED && refused.insert(line.clone()) && self.server.is_some() {
            // Nobody reads what a server's program is told.
            tracing::warn!("{line}");
        }
        Refusal("403 Forbidden", line)
    }
}

/// Connects to the first of these that answers.
async fn connect(found: &[IpAddr], port: u16) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for ip in found {
        match TcpStream::connect(SocketAddr::new(*ip, port)).await {
            Ok(stream) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Carries bytes both ways until both sides end, the doorway's bytes are used up, or nothing moves any more.
async fn carry(shared: &Shared, near: UnixStream, request: Request, mut far: Far) {
    let mut near = near;
    let begun = match request.tunnel {
        true => near.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await,
        false => far.write_all(&request.head).await,
    };
    if begun.is_err() {
        return;
    }
    let moved = AtomicU64::new(0);
    let (near_in, near_out) = tokio::io::split(near);
    let (far_in, far_out) = tokio::io::split(far);
    let both = async {
        tokio::join!(pump(near_in, far_out, shared, &moved), pump(far_in, near_out, shared, &moved));
    };
    let still = async {
        let mut before = u64::MAX;
        while before != moved.load(Relaxed) {
            before = moved.load(Relaxed);
            shared.ways.clock.sleep(IDLE).await;
        }
    };
    tokio::select! {
        () = both => {}
        () = still => tracing::debug!("a command's connection stood still and was closed"),
    }
}

async fn pump(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin, shared: &Shared, moved: &AtomicU64) {
    let mut buffer = vec![0_u8; 16 * 1024];
    loop {
        let read = match from.read(&mut buffer).await {
            Ok(0) | Err(_) => break,
            Ok(read) => read,
        };
        if shared.count.bytes.fetch_add(read as u64, Relaxed) + read as u64 > BYTES {
            let line = format!(
                "crawfish: more than {} MiB went through the network of this command; it was cut off",
                BYTES >> 20
            );
            drop(shared.refused(line));
            break;
        }
        moved.fetch_add(read as u64, Relaxed);
        if to.write_all(&buffer[..read]).await.is_err() {
            break;
        }
    }
    let _ = to.shutdown().await;
}

/// What a command asks its doorway for.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    /// The host in the form that is compared.
    name: String,
    ip: Option<IpAddr>,
    port: u16,
    /// `CONNECT`: the bytes are not looked at.
    tunnel: bool,
    /// What the host is sent first: the head in its own form, and what came behind it.
    head: Vec<u8>,
}

impl Request {
    async fn of(stream: &mut UnixStream) -> Result<Self, Refusal> {
        let mut bytes = Vec::with_capacity(1024);
        let end = loop {
            // A tunnel's first bytes come after its answer; a body's may come with the head.
            if let Some(at) = bytes.windows(4).position(|end| end == b"\r\n\r\n") {
                break at;
            }
            if bytes.len() >= HEAD {
                return Err(bad("the head of the request is too long"));
            }
            let mut room = [0_u8; 1024];
            match stream.read(&mut room).await {
                Ok(0) | Err(_) => return Err(bad("the request broke off")),
                Ok(read) => bytes.extend_from_slice(&room[..read]),
            }
        };
        Self::read(&bytes[..end], &bytes[end + 4..])
    }

    /// Reads a head, without the empty line at its end, and what came behind it.
    fn read(head: &[u8], rest: &[u8]) -> Result<Self, Refusal> {
        let head = std::str::from_utf8(head).map_err(|_| bad("the head of the request is no text"))?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap_or_default().split(' ');
        let (Some(method), Some(target), Some(version @ ("HTTP/1.1" | "HTTP/1.0")), None) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(bad("this is no request of HTTP/1.1"));
        };
        if !is_token(method) || target.is_empty() || target.contains(char::is_control) {
            return Err(bad("this is no request of HTTP/1.1"));
        }
        if method == "CONNECT" {
            let (_, port) = target.rsplit_once(':').ok_or_else(|| bad("CONNECT needs a host and a port"))?;
            let port: u16 = port.parse().ok().filter(|port| *port > 0).ok_or_else(|| bad("CONNECT needs a port"))?;
            if target.contains(['/', '@', '?', '#', '\\']) {
                return Err(bad("CONNECT needs a host and a port"));
            }
            let url = Url::parse(&format!("http://{target}/")).map_err(|_| bad("this is no host"))?;
            let (name, ip) = hosts::plain(&url).ok_or_else(|| bad("this is no host"))?;
            if !rest.is_empty() {
                return Err(bad("CONNECT has no body"));
            }
            return Ok(Self { name, ip, port, tunnel: true, head: Vec::new() });
        }
        let url = Url::parse(target).ok().filter(|url| url.scheme() == "http");
        let url = url.ok_or_else(|| bad("a proxy is asked with CONNECT, or with a whole http:// address"))?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("the address holds a user name or password"));
        }
        let (name, ip) = hosts::plain(&url).ok_or_else(|| bad("this is no host"))?;
        let port = url.port_or_known_default().filter(|port| *port > 0).ok_or_else(|| bad("this is no port"))?;
        let mut out = format!("{method} {}", url.path());
        if let Some(query) = url.query() {
            out.push('?');
            out.push_str(query);
        }
        // One request a connection, so that a second one cannot pass unread, and the name that was judged.
        out.push_str(&format!(" {version}\r\nHost: {}", url.host_str().unwrap_or_default()));
        if let Some(port) = url.port() {
            out.push_str(&format!(":{port}"));
        }
        out.push_str("\r\n");
        for line in lines {
            let (field, value) = line.split_once(':').ok_or_else(|| bad("a header has no name"))?;
            if !is_token(field) || value.contains(|c: char| c.is_control() && c != '\t') {
                return Err(bad("a header is malformed"));
            }
            let lower = field.to_ascii_lowercase();
            let ours = ["host", "connection", "keep-alive", "te", "trailer", "upgrade"];
            if !ours.contains(&lower.as_str()) && !lower.starts_with("proxy-") {
                out.push_str(line);
                out.push_str("\r\n");
            }
        }
        out.push_str("Connection: close\r\n\r\n");
        let mut head = out.into_bytes();
        head.extend_from_slice(rest);
        Ok(Self { name, ip, port, tunnel: false, head })
    }
}

fn bad(why: &str) -> Refusal {
    Refusal("400 Bad Request", format!("crawfish: {why}"))
}

/// RFC 9110 §5.6.2.
fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests;
