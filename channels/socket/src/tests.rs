//! The ways out against servers and proxies on this machine: straight, HTTP CONNECT, SOCKS5, in TLS and bare.

use std::sync::{Arc, Mutex};

use channel_api::Frame;
use futures_util::{SinkExt, StreamExt};
use http::HeaderMap;
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, copy_bidirectional},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;
use tokio_tungstenite::tungstenite::Message;
use url::Url;

use crate::{DialError, Network};

/// The name that only the proxies know.
const NAME: &str = "platform.test";

/// A WebSocket server that echoes, in TLS when it has a key; its port.
async fn echo(tasks: &mut JoinSet<()>, tls: Option<TlsAcceptor>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tasks.spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            match tls.clone() {
                None => drop(served.spawn(converse(stream))),
                Some(tls) => drop(served.spawn(async move {
                    if let Ok(stream) = tls.accept(stream).await {
                        converse(stream).await;
                    }
                })),
            }
        }
    });
    port
}

async fn converse(stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin) {
    let Ok(mut socket) = tokio_tungstenite::accept_async(stream).await else { return };
    while let Some(Ok(message)) = socket.next().await {
        let said = match message {
            Message::Text(text) if text.as_str() == "long" => Message::text("x".repeat(5_000)),
            Message::Text(text) if text.as_str() == "bye" => Message::Close(None),
            Message::Text(_) | Message::Binary(_) => message,
            _ => continue,
        };
        if socket.send(said).await.is_err() {
            return;
        }
    }
}

/// What a proxy was asked for, in order.
type Asked = Arc<Mutex<Vec<String>>>;

/// An HTTP proxy that knows `NAME` and wants `user:pass word`.
async fn connect_proxy(tasks: &mut JoinSet<()>) -> (u16, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (port, asked) = (listener.local_addr().expect("an address").port(), Asked::default());
    let seen = asked.clone();
    tasks.spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            let seen = seen.clone();
            served.spawn(async move {
                let mut stream = BufReader::new(stream);
                let (mut line, mut head) = (String::new(), String::new());
                while stream.read_line(&mut line).await.is_ok_and(|read| read > 2) {
                    head.push_str(&line);
                    line.clear();
                }
                let target = head.split_whitespace().nth(1).unwrap_or_default().to_owned();
                seen.lock().expect("no panic").push(target.clone());
                // user:pass word
                let answer = match (head.contains("Basic dXNlcjpwYXNzIHdvcmQ="), target.split_once(':')) {
                    (false, _) => "HTTP/1.1 407 Proxy Authentication Required\r\n\r\n",
                    (true, Some((NAME, port))) => {
                        let port: u16 = port.parse().expect("a port");
                        let mut inner = TcpStream::connect(("127.0.0.1", port)).await.expect("the server");
                        stream
                            .write_all(b"HTTP/1.1 200 Connection established\r\nVia: test\r\n\r\n")
                            .await
                            .expect("told");
                        let _ = copy_bidirectional(&mut stream, &mut inner).await;
                        return;
                    }
                    (true, _) => "HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n",
                };
                let _ = stream.write_all(answer.as_bytes()).await;
            });
        }
    });
    (port, asked)
}

/// A SOCKS5 proxy (RFC 1928) that knows `NAME` and takes everyone.
async fn socks_proxy(tasks: &mut JoinSet<()>) -> (u16, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let (port, asked) = (listener.local_addr().expect("an address").port(), Asked::default());
    let seen = asked.clone();
    tasks.spawn(async move {
        let mut served = JoinSet::new();
        while let Ok((mut stream, _)) = listener.accept().await {
            let seen = seen.clone();
            served.spawn(async move {
                let mut hello = [0; 2];
                stream.read_exact(&mut hello).await.expect("a greeting");
                let mut methods = vec![0; usize::from(hello[1])];
                stream.read_exact(&mut methods).await.expect("methods");
                stream.write_all(&[5, 0]).await.expect("told");
                let mut head = [0; 4];
                stream.read_exact(&mut head).await.expect("a request");
                let host = match head[3] {
                    3 => {
                        let mut name = vec![0; usize::from(stream.read_u8().await.expect("a length"))];
                        stream.read_exact(&mut name).await.expect("a name");
                        String::from_utf8(name).expect("a name")
                    }
                    1 => {
                        let mut ip = [0; 4];
                        stream.read_exact(&mut ip).await.expect("an address");
                        std::net::Ipv4Addr::from(ip).to_string()
                    }
                    other => format!("kind {other}"),
                };
                let port = stream.read_u16().await.expect("a port");
                seen.lock().expect("no panic").push(format!("{host}:{port}"));
                let code = if host == NAME { 0 } else { 2 };
                stream.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await.expect("told");
                if code == 0 {
                    let mut inner = TcpStream::connect(("127.0.0.1", port)).await.expect("the server");
                    let _ = copy_bidirectional(&mut stream, &mut inner).await;
                }
            });
        }
    });
    (port, asked)
}

/// Opens a socket, says a word and hears it again.
async fn hears_itself(network: &Network, url: &str) -> Result<(), DialError> {
    let url = Url::parse(url).expect("an address");
    let (mut socket, pump) = network.websocket(&url, &HeaderMap::new(), 1 << 20).await?;
    let talk = async {
        socket.outgoing.send(Frame::Text("你好".to_owned())).await.expect("it is open");
        assert_eq!(socket.incoming.recv().await, Some(Frame::Text("你好".to_owned())));
        drop(socket);
    };
    tokio::join!(pump, talk);
    Ok(())
}

#[tokio::test]
async fn a_socket_says_and_hears_and_ends_when_either_side_wants() {
    let mut tasks = JoinSet::new();
    let port = echo(&mut tasks, None).await;
    let network = Network::new(None, None).expect("straight");
    let url = format!("ws://127.0.0.1:{port}/x?y=1");
    hears_itself(&network, &url).await.expect("straight");

    let url = Url::parse(&url).expect("an address");
    let (mut socket, pump) = network.websocket(&url, &HeaderMap::new(), 1_000).await.expect("it opens");
    let talk = async {
        socket.outgoing.send(Frame::Text("bye".to_owned())).await.expect("it is open");
        assert!(matches!(socket.incoming.recv().await, Some(Frame::Close(..))));
        assert_eq!(socket.incoming.recv().await, None, "nothing follows a goodbye");
    };
    tokio::join!(pump, talk);

    let (mut socket, pump) = network.websocket(&url, &HeaderMap::new(), 1_000).await.expect("it opens");
    let talk = async {
        socket.outgoing.send(Frame::Text("long".to_owned())).await.expect("it is open");
        let end = socket.incoming.recv().await;
        assert!(matches!(end, Some(Frame::Close(1009, _))), "{end:?}");
    };
    tokio::join!(pump, talk);
}

#[tokio::test]
async fn a_socket_goes_through_an_http_proxy_and_a_socks_proxy_that_alone_know_the_name() {
    let mut tasks = JoinSet::new();
    let port = echo(&mut tasks, None).await;
    let url = format!("ws://{NAME}:{port}/");
    let (proxy, asked) = connect_proxy(&mut tasks).await;
    let network = Network::new(Some(&format!("http://user:pass%20word@127.0.0.1:{proxy}")), None).expect("a proxy");
    hears_itself(&network, &url).await.expect("through CONNECT");
    assert_eq!(*asked.lock().expect("no panic"), [format!("{NAME}:{port}")]);

    let (proxy, asked) = socks_proxy(&mut tasks).await;
    let network = Network::new(Some(&format!("socks5h://127.0.0.1:{proxy}")), None).expect("a proxy");
    hears_itself(&network, &url).await.expect("through SOCKS5");
    assert_eq!(*asked.lock().expect("no panic"), [format!("{NAME}:{port}")]);
}

#[tokio::test]
async fn what_a_proxy_or_server_refuses_is_said_and_no_password_with_it() {
    let mut tasks = JoinSet::new();
    let (proxy, _) = connect_proxy(&mut tasks).await;
    let (socks, _) = socks_proxy(&mut tasks).await;
    let port = echo(&mut tasks, None).await;
    let table = [
        (format!("http://user:wrong@127.0.0.1:{proxy}"), format!("ws://{NAME}:{port}/"), "407"),
        (format!("http://user:pass%20word@127.0.0.1:{proxy}"), "ws://other.test/".to_owned(), "403"),
        (format!("socks5h://127.0.0.1:{socks}"), "ws://other.test/".to_owned(), "proxy refuses"),
        ("http://user:secret@127.0.0.1:1".to_owned(), format!("ws://{NAME}/"), "cannot be reached"),
        ("none".to_owned(), format!("wss://127.0.0.1:{port}/"), "TLS"),
    ];
    for (proxy, url, says) in table {
        let network = Network::new(Some(&proxy), None).expect("a proxy");
        let error = hears_itself(&network, &url).await.expect_err(&url).to_string();
        assert!(error.contains(says), "{proxy}: {error}");
        assert!(!["wrong", "secret", "pass word", "pass%20"].iter().any(|secret| error.contains(secret)), "{error}");
    }
}

#[tokio::test]
async fn tls_is_checked_inside_the_tunnel_against_the_public_roots_and_the_owners_file() {
    let mut tasks = JoinSet::new();
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(made.signing_key.serialize_pem().as_bytes()).expect("a key");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let server = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .expect("a server");
    let port = echo(&mut tasks, Some(TlsAcceptor::from(Arc::new(server)))).await;
    let (proxy, _) = connect_proxy(&mut tasks).await;
    let (proxy, url) = (format!("http://user:pass%20word@127.0.0.1:{proxy}"), format!("wss://{NAME}:{port}/"));
    let stranger = Network::new(Some(&proxy), None).expect("a proxy");
    let refused = hears_itself(&stranger, &url).await.expect_err("nobody vouches for it");
    assert!(matches!(refused, DialError::Tls(_)), "{refused}");

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("ca.pem");
    std::fs::write(&file, made.cert.pem()).expect("written");
    let trusting = Network::new(Some(&proxy), Some(&file)).expect("a proxy and a file");
    hears_itself(&trusting, &url).await.expect("the owner vouches for it");

    for (text, says) in
        [("", "no certificate"), ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "ca.pem")]
    {
        std::fs::write(&file, text).expect("written");
        let error = Network::new(None, Some(&file)).expect_err("no certificate").to_string();
        assert!(error.contains(says) && error.contains("`ca_file`"), "{error}");
    }
}
