//! The one HTTP client for addresses that are not the owner's: what a model, a page or a chat names.
//!
//! It reads (`GET`) and nothing else: no cookies, no credentials, no referrer, no proxy of the environment unless the
//! owner says so. Every hop is judged anew: by its form ([`address`]), and by what its name resolves to ([`resolve`]),
//! where the connection goes to the checked address. security.md §3.3 row 16, bad-inputs.md 28, 29, 39.

use std::{
    error::Error as _,
    fmt, io,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use channel_api::Clock;
use futures_util::{StreamExt as _, stream::BoxStream};
use http::{
    HeaderMap, StatusCode,
    header::{ACCEPT, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, LOCATION},
};
use reqwest::{Client, Response, Url};
use tokio_util::sync::CancellationToken;

use self::{
    address::{Rules, Way},
    resolve::{Guard, Lookup, Unresolved},
};

pub mod address;
pub mod config;
#[cfg(unix)]
pub mod doorway;
pub mod hosts;
pub mod resolve;

pub use config::{EgressConfig, Proxy};

const CONNECT: Duration = Duration::from_secs(10);

/// How far one fetch may go.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the first look-up to the last byte, redirects included.
    pub total: Duration,
    /// Redirects that are followed.
    pub redirects: usize,
    /// Bytes of the body that are kept, counted after decompression; the rest is not read.
    pub body: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { total: Duration::from_secs(20), redirects: 5, body: 2 << 20 }
    }
}

/// What an address gave.
#[derive(Clone, Debug)]
pub struct Fetched {
    /// Where it came from in the end.
    pub url: Url,
    /// The HTTP status; may be an error's.
    pub status: u16,
    /// `Content-Type` as sent; empty when there is none.
    pub content_type: String,
    /// What `Content-Length` promised, of a body that was not compressed.
    pub length: Option<u64>,
    /// The body, decompressed, within [`Limits::body`].
    pub body: Vec<u8>,
    /// There was more of it.
    pub cut: bool,
}

/// What an address gives, as it comes.
pub struct Opened {
    /// The HTTP status; may be an error's.
    pub status: u16,
    /// `Content-Type` as sent; empty when there is none.
    pub content_type: String,
    /// What `Content-Length` promised, of a body that was not compressed.
    pub length: Option<u64>,
    /// The body, decompressed, in pieces.
    pub body: BoxStream<'static, Result<Bytes, EgressError>>,
}

/// Why an address gave nothing. Shows as a sentence for a model: it says nothing of what lies inside our networks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// Not an address this client takes.
    #[error("{0}")]
    Address(&'static str),
    /// It leads, or may lead, into a private network.
    #[error(
        "This address is not public. Only addresses of the public internet can be fetched, and what the owner names in `[tools.web_fetch] allow_hosts`."
    )]
    NotPublic,
    /// No such name.
    #[error("The name `{0}` was not found.")]
    NoSuchName(String),
    /// The connection failed.
    #[error("`{0}` could not be reached.")]
    Unreachable(String),
    /// Its certificate or its TLS is not good.
    #[error("`{0}` could not be reached securely: its certificate or its TLS version is not acceptable.")]
    Insecure(String),
    /// The answer was no HTTP, or broke off.
    #[error("The answer of `{0}` broke off or is no valid HTTP.")]
    Broken(String),
    /// It took too long.
    #[error("`{0}` did not answer within {1} seconds.")]
    TimedOut(String, u64),
    /// A redirect that is not followed.
    #[error("{0}")]
    Redirect(&'static str),
    /// The body is compressed in a way that was not asked for.
    #[error("The answer of `{0}` is compressed in a way that cannot be read.")]
    Encoding(String),
    /// The turn was stopped.
    #[error("stopped")]
    Cancelled,
    /// The client itself cannot be built.
    #[error("The gateway's web access is not set up correctly; its owner has to look at [tools.web_fetch].")]
    Setup,
}

/// The client. Cheap until the first fetch.
pub struct Egress {
    rules: Rules,
    proxies: Vec<(config::Kind, String)>,
    no_proxy: Option<String>,
    lookup: Arc<dyn Lookup>,
    clock: Arc<dyn Clock>,
    /// For the public internet.
    public: OnceLock<Option<Client>>,
    /// For hosts the owner named: directly, wherever they are.
    named: OnceLock<Option<Client>>,
}

impl Egress {
    /// A client under these rules. `env` looks up environment variables, for `proxy = "env"`.
    pub fn new(config: &EgressConfig, env: impl Fn(&str) -> Option<String>, clock: Arc<dyn Clock>) -> Self {
        Self::with_lookup(config, env, clock, Arc::new(resolve::System))
    }

    /// The same with another way to resolve names.
    pub fn with_lookup(
        config: &EgressConfig,
        env: impl Fn(&str) -> Option<String>,
        clock: Arc<dyn Clock>,
        lookup: Arc<dyn Lookup>,
    ) -> Self {
        let (proxies, no_proxy) = config.proxy.resolved(env);
        let own = proxies.iter().filter_map(|(_, url)| Url::parse(url).ok()?.host_str().map(str::to_owned)).collect();
        Self {
            rules: Rules { named: config.named_hosts(), fake_ip: config.fake_ip, proxies: own },
            proxies,
            no_proxy,
            lookup,
            clock,
            public: OnceLock::new(),
            named: OnceLock::new(),
        }
    }

    /// Gets what is at `url` (as somebody wrote it).
    ///
    /// # Errors
    /// [`EgressError`]. An HTTP error is no error here: it has a status and a body.
    pub async fn fetch(&self, url: &str, limits: Limits, cancel: &CancellationToken) -> Result<Fetched, EgressError> {
        let url = address::parse(url)?;
        let host = host_of(&url);
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(EgressError::Cancelled),
            fetched = async { read(self.follow(url, limits.redirects, ACCEPTED).await?, limits.body).await } => {
                match &fetched {
                    // The path and the query may hold somebody's secrets.
                    Ok(got) => tracing::debug!(%host, status = got.status, bytes = got.body.len(), "fetched a web address"),
                    Err(error) => tracing::debug!(%host, %error, "a web address was not fetched"),
                }
                fetched
            }
            () = self.clock.sleep(limits.total) => Err(EgressError::TimedOut(host.clone(), limits.total.as_secs().max(1))),
        }
    }

    /// Asks a service that the configuration names, with its key in `headers`. Follows no redirect, so that the key goes
    /// nowhere else; where it may connect is judged like for every other address.
    ///
    /// # Errors
    /// [`EgressError`]. An HTTP error is no error here.
    pub async fn ask(
        &self,
        url: Url,
        headers: HeaderMap,
        json: Option<&serde_json::Value>,
        limits: Limits,
        cancel: &CancellationToken,
    ) -> Result<Fetched, EgressError> {
        let host = host_of(&url);
        let asking = async {
            let client = self.client_on(self.rules.admit(&url)?)?;
            let request = match json {
                Some(json) => client.post(url.clone()).json(json),
                None => client.get(url.clone()),
            };
            let response = request.headers(headers).send().await.map_err(|error| why(&error, &url))?;
            read(Answered { response, url }, limits.body).await
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(EgressError::Cancelled),
            fetched = asking => {
                match &fetched {
                    Ok(got) => tracing::debug!(%host, status = got.status, bytes = got.body.len(), "asked a service"),
                    Err(error) => tracing::debug!(%host, %error, "a service was not asked"),
                }
                fetched
            }
            () = self.clock.sleep(limits.total) => Err(EgressError::TimedOut(host.clone(), limits.total.as_secs().max(1))),
        }
    }

    /// Asks for what is at `url` (as somebody wrote it), to be read piece by piece. How long it may take and how much is
    /// read is the caller's affair.
    ///
    /// # Errors
    /// [`EgressError`]. An HTTP error is no error here.
    pub async fn open(&self, url: &str, redirects: usize) -> Result<Opened, EgressError> {
        let url = address::parse(url)?;
        let host = host_of(&url);
        let answered = match self.follow(url, redirects, "*/*").await {
            Ok(answered) => answered,
            Err(error) => {
                tracing::debug!(%host, %error, "a web address was not fetched");
                return Err(error);
            }
        };
        let Head { url, status, content_type, length } = Head::of(&answered)?;
        tracing::debug!(%host, status, "reading from a web address");
        let broken = move |_| EgressError::Broken(host_of(&url));
        let body = answered.response.bytes_stream().map(move |piece| piece.map_err(&broken)).boxed();
        Ok(Opened { status, content_type, length, body })
    }

    /// The client for one address, for a caller that speaks more than `GET` to it. It follows no redirects and goes to
    /// checked addresses only; the answer's bounds are the caller's affair.
    ///
    /// # Errors
    /// [`EgressError`] when such an address is not reached from here.
    pub fn client_for(&self, url: &Url) -> Result<Client, EgressError> {
        Ok(self.client_on(self.rules.admit(url)?)?.clone())
    }

    async fn follow(&self, mut url: Url, redirects: usize, accept: &'static str) -> Result<Answered, EgressError> {
        let mut hops = 0;
        loop {
            let client = self.client_on(self.rules.admit(&url)?)?;
            let request = client.get(url.clone()).header(ACCEPT, accept);
            let response = request.send().await.map_err(|error| why(&error, &url))?;
            let Some(next) = redirect(response.status(), response.headers(), &url)? else {
                return Ok(Answered { response, url });
            };
            hops += 1;
            if hops > redirects {
                return Err(EgressError::Redirect("It redirects too many times."));
            }
            url = next;
        }
    }

    fn client_on(&self, way: Way) -> Result<&Client, EgressError> {
        let client = match way {
            Way::Public => &self.public,
            Way::Named => &self.named,
        };
        client.get_or_init(|| self.client(way)).as_ref().ok_or(EgressError::Setup)
    }

    fn client(&self, way: Way) -> Option<Client> {
        let guard = Guard {
            lookup: Arc::clone(&self.lookup),
            named: way == Way::Named,
            fake_ip: self.rules.fake_ip,
            proxies: self.rules.proxies.clone(),
        };
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT)
            .pool_max_idle_per_host(0)
            .user_agent(concat!("Mozilla/5.0 (compatible; crawfish/", env!("CARGO_PKG_VERSION"), ")"))
            .dns_resolver(Arc::new(guard));
        if way == Way::Public {
            for (kind, url) in &self.proxies {
                let proxy = match kind {
                    config::Kind::Http => reqwest::Proxy::http(url),
                    config::Kind::Https => reqwest::Proxy::https(url),
                    config::Kind::All => reqwest::Proxy::all(url),
                };
                let exceptions = self.no_proxy.as_deref().and_then(reqwest::NoProxy::from_string);
                builder = builder.proxy(proxy.ok()?.no_proxy(exceptions));
            }
        }
        builder.build().inspect_err(|error| tracing::warn!(%error, "the client for web addresses cannot be built")).ok()
    }
}

impl fmt::Debug for Egress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Egress").field("rules", &self.rules).finish_non_exhaustive()
    }
}

const ACCEPTED: &str = "text/markdown, text/html, application/xhtml+xml, application/json, text/*;q=0.9, */*;q=0.5";

/// Where an answer sends the caller, if it does.
fn redirect(status: StatusCode, headers: &HeaderMap, from: &Url) -> Result<Option<Url>, EgressError> {
    if !matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return Ok(None);
    }
    let Some(location) = headers.get(LOCATION) else { return Ok(None) };
    let wrong = EgressError::Redirect("It redirects to something that is no web address.");
    let location = std::str::from_utf8(location.as_bytes()).map_err(|_| wrong.clone())?;
    if location.len() > address::LONGEST {
        return Err(wrong);
    }
    let mut next = from.join(location.trim()).map_err(|_| wrong)?;
    next.set_fragment(None);
    if from.scheme() == "https" && next.scheme() == "http" {
        return Err(EgressError::Redirect("It redirects from https to http, which is not followed."));
    }
    Ok(Some(next))
}

/// An answer that is no redirect, and where it came from.
struct Answered {
    response: Response,
    url: Url,
}

/// What stands before a body.
struct Head {
    url: Url,
    status: u16,
    content_type: String,
    length: Option<u64>,
}

impl Head {
    fn of(Answered { response, url }: &Answered) -> Result<Self, EgressError> {
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        // What was asked for is already taken off; what is still named here is something else.
        if header(CONTENT_ENCODING).is_some_and(|coding| !coding.trim().eq_ignore_ascii_case("identity")) {
            return Err(EgressError::Encoding(host_of(url)));
        }
        Ok(Self {
            url: url.clone(),
            status: response.status().as_u16(),
            content_type: header(CONTENT_TYPE).unwrap_or_default().to_owned(),
            length: header(CONTENT_LENGTH).and_then(|length| length.trim().parse().ok()),
        })
    }
}

/// Reads a body up to its limit and leaves the rest.
async fn read(answered: Answered, limit: usize) -> Result<Fetched, EgressError> {
    let Head { url, status, content_type, length } = Head::of(&answered)?;
    let (mut body, mut cut) = (Vec::new(), false);
    let mut stream = answered.response.bytes_stream();
    while let Some(chunk) = stream.next().await {
        let chunk = chunk.map_err(|_| EgressError::Broken(host_of(&url)))?;
        let room = limit - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if chunk.len() > room {
            cut = true;
            break;
        }
    }
    Ok(Fetched { url, status, content_type, length, body, cut })
}

/// What a failed request means.
fn why(error: &reqwest::Error, url: &Url) -> EgressError {
    let host = host_of(url);
    let mut source = error.source();
    while let Some(cause) = source {
        match cause.downcast_ref::<Unresolved>() {
            Some(Unresolved::NotPublic) => return EgressError::NotPublic,
            Some(Unresolved::NoSuchName) => return EgressError::NoSuchName(host),
            None => {}
        }
        if error.is_connect() && cause.downcast_ref().is_some_and(is_refused_tls) {
            return EgressError::Insecure(host);
        }
        source = cause.source();
    }
    match () {
        () if error.is_timeout() => EgressError::TimedOut(host, CONNECT.as_secs()),
        () if error.is_connect() => EgressError::Unreachable(host),
        () => EgressError::Broken(host),
    }
}

/// What TLS refuses comes as invalid data, wrapped in other errors of the connection.
fn is_refused_tls(error: &io::Error) -> bool {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref());
    error.kind() == io::ErrorKind::InvalidData || inner.is_some_and(is_refused_tls)
}

/// The host, for sentences and logs.
fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests;
