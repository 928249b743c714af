//! One connection to a host: straight or through the proxy, in TLS or bare.

use std::{io, pin::Pin, sync::Arc};

use base64::Engine as _;
use rustls::pki_types::ServerName;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;
use url::Url;

use crate::network::{CONNECT, Network};

/// The longest answer of a proxy to CONNECT, in bytes.
const LONGEST_ANSWER: usize = 16 * 1024;

/// A connection that can be read and written.
pub trait Dial: AsyncRead + AsyncWrite + Send {}
impl<T: AsyncRead + AsyncWrite + Send> Dial for T {}

/// An open connection.
pub type Stream = Pin<Box<dyn Dial>>;

/// Why there is no connection. Shows no password.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host, or the proxy, could not be reached: try again.
    #[error("{0}")]
    Unreachable(String),
    /// The proxy does not let this connection through.
    #[error("the proxy refuses: {0}")]
    ProxyRefused(String),
    /// The other side's certificate is not trusted, or it speaks no TLS.
    #[error("TLS: {0}")]
    Tls(String),
    /// The server answered the request for a WebSocket with this status instead, and the start of its body.
    #[error("the server answered {status} instead of opening a WebSocket")]
    Status {
        /// The HTTP status.
        status: u16,
        /// At most 1 KiB of the body.
        body: String,
    },
    /// It speaks no WebSocket.
    #[error("no WebSocket: {0}")]
    Protocol(String),
}

impl Network {
    /// Connects to `host:port`, with TLS inside when `tls`.
    ///
    /// # Errors
    /// [`DialError`], after 15 s at the latest.
    pub async fn stream(&self, host: &str, port: u16, tls: bool) -> Result<Stream, DialError> {
        match tokio::time::timeout(CONNECT, self.dial(host, port, tls)).await {
            Ok(dialled) => dialled,
            Err(_) => {
                Err(DialError::Unreachable(format!("{host}:{port} did not answer within {} s", CONNECT.as_secs())))
            }
        }
    }

    async fn dial(&self, host: &str, port: u16, tls: bool) -> Result<Stream, DialError> {
        let bare = match self.proxy_to(host, tls) {
            None => tcp(host, port).await?,
            Some(proxy) => self.through(&proxy, host, port).await?,
        };
        if tls { self.secured(bare, host).await } else { Ok(bare) }
    }

    async fn through(&self, proxy: &Url, host: &str, port: u16) -> Result<Stream, DialError> {
        let proxy_host = proxy.host_str().unwrap_or_default();
        let (name, bare) = (host.trim_matches(['[', ']']), |port| tcp(proxy_host, port));
        match proxy.scheme() {
            "socks5" | "socks5h" => {
                let stream = bare(proxy.port().unwrap_or(1080)).await?;
                // Not named with an h: the name is looked up here, and the proxy gets an address.
                let target = match proxy.scheme() {
                    "socks5" => resolved(name, port).await?,
                    _ => (name.to_owned(), port),
                };
                let target = (target.0.as_str(), target.1);
                let (user, password) = credentials(proxy);
                let tunnel = if user.is_empty() {
                    tokio_socks::tcp::Socks5Stream::connect_with_socket(stream, target).await
                } else {
                    tokio_socks::tcp::Socks5Stream::connect_with_password_and_socket(stream, target, &user, &password)
                        .await
                };
                match tunnel {
                    Ok(tunnel) => Ok(Box::pin(tunnel)),
                    Err(tokio_socks::Error::Io(error)) => Err(away(proxy_host, &error)),
                    Err(error) => Err(DialError::ProxyRefused(error.to_string())),
                }
            }
            scheme => {
                let port_of_proxy = proxy.port_or_known_default().unwrap_or(3128);
                let mut stream = bare(port_of_proxy).await?;
                if scheme == "https" {
                    stream = self.secured(stream, proxy_host).await?;
                }
                connect(stream, proxy, host, port).await
            }
        }
    }

    async fn secured(&self, stream: Stream, host: &str) -> Result<Stream, DialError> {
        let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned())
            .map_err(|_| DialError::Tls(format!("{host} is no name that a certificate could be for")))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let secured =
            connector.connect(name, stream).await.map_err(|error| DialError::Tls(format!("{host}: {error}")))?;
        Ok(Box::pin(secured))
    }
}

async fn tcp(host: &str, port: u16) -> Result<Stream, DialError> {
    let stream = TcpStream::connect((host.trim_matches(['[', ']']), port)).await.map_err(|error| away(host, &error))?;
    let _ = stream.set_nodelay(true);
    Ok(Box::pin(stream))
}

async fn resolved(name: &str, port: u16) -> Result<(String, u16), DialError> {
    let mut found = tokio::net::lookup_host((name, port)).await.map_err(|error| away(name, &error))?;
    let first = found.next().ok_or_else(|| DialError::Unreachable(format!("{name} has no address")))?;
    Ok((first.ip().to_string(), port))
}

fn away(host: &str, error: &io::Error) -> DialError {
    DialError::Unreachable(format!("{host} cannot be reached: {error}"))
}

/// User name and password of a proxy's address, percent-decoded.
fn credentials(proxy: &Url) -> (String, String) {
    let decoded = |text: &str| {
        let pairs = format!("x={}", text.replace('+', "%2B"));
        url::form_urlencoded::parse(pairs.as_bytes()).next().map(|(_, value)| value.into_owned()).unwrap_or_default()
    };
    (decoded(proxy.username()), decoded(proxy.password().unwrap_or_default()))
}

/// HTTP CONNECT. RFC 9110 §9.3.6.
async fn connect(mut stream: Stream, proxy: &Url, host: &str, port: u16) -> Result<Stream, DialError> {
    let target = if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    };
    let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
    let (user, password) = credentials(proxy);
    if !user.is_empty() {
        let token = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
        request.push_str(&format!("Proxy-Authorization: Basic {token}\r\n"));
    }
    request.push_str("\r\n");
    let failed = |error: io::Error| DialError::Unreachable(format!("the proxy broke off: {error}"));
    stream.write_all(request.as_bytes()).await.map_err(failed)?;
    // Byte by byte: what follows the head belongs to the tunnel.
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= LONGEST_ANSWER {
            return Err(DialError::ProxyRefused("its answer is no HTTP".to_owned()));
        }
        head.push(stream.read_u8().await.map_err(failed)?);
    }
    let line = String::from_utf8_lossy(head.split(|byte| *byte == b'\r').next().unwrap_or_default()).into_owned();
    let mut words = line.split_whitespace();
    match (words.next(), words.next().and_then(|code| code.parse::<u16>().ok())) {
        (Some(version), Some(200..=299)) if version.starts_with("HTTP/1.") => Ok(stream),
        (_, Some(407)) => {
            Err(DialError::ProxyRefused("it wants a user name and password in its address (407)".to_owned()))
        }
        _ => Err(DialError::ProxyRefused(line)),
    }
}
