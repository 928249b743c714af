//! Proxies as a channel may have to go through: HTTP (CONNECT, and requests with a whole address) and SOCKS5.
//!
//! Depends on nothing of this program: adapters' tests use it to reach their fakes by names that only a proxy knows.
#![allow(dead_code, reason = "each user of this file needs another part of it")]

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A proxy that leads every name to one place and remembers which names were asked for.
pub struct Proxy {
    /// Where it listens.
    pub addr: SocketAddr,
    seen: Arc<Mutex<Vec<String>>>,
    _tasks: JoinSet<()>,
}

impl Proxy {
    /// An HTTP proxy: CONNECT, and requests with a whole address.
    pub async fn http(to: SocketAddr) -> Self {
        Self::start(to, false).await
    }

    /// A SOCKS5 proxy without a password.
    pub async fn socks5(to: SocketAddr) -> Self {
        Self::start(to, true).await
    }

    async fn start(to: SocketAddr, socks: bool) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let addr = listener.local_addr().expect("bound");
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = JoinSet::new();
        let names = seen.clone();
        tasks.spawn(async move {
            let mut open = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let names = names.clone();
                open.spawn(async move {
                    let _ = if socks {
                        through_socks(stream, to, &names).await
                    } else {
                        through_http(stream, to, &names).await
                    };
                });
            }
        });
        Self { addr, seen, _tasks: tasks }
    }

    /// What was asked for: `CONNECT host:port`, `GET`, `socks host:port`.
    pub fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

async fn through_http(mut stream: TcpStream, to: SocketAddr, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut words = text.split_whitespace();
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{method} {target}"));
    let mut upstream = TcpStream::connect(to).await?;
    if method == "CONNECT" {
        stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await?;
    } else {
        upstream.write_all(&head).await?;
    }
    tokio::io::copy_bidirectional(&mut stream, &mut upstream).await.map(|_| ())
}

async fn through_socks(mut stream: TcpStream, to: SocketAddr, seen: &Mutex<Vec<String>>) -> std::io::Result<()> {
    let mut hello = [0; 2];
    stream.read_exact(&mut hello).await?;
    let mut methods = vec![0; usize::from(hello[1])];
    stream.read_exact(&mut methods).await?;
    stream.write_all(&[5, 0]).await?;
    let mut request = [0; 4];
    stream.read_exact(&mut request).await?;
    let name = match request[3] {
        3 => {
            let mut name = vec![0; usize::from(stream.read_u8().await?)];
            stream.read_exact(&mut name).await?;
            String::from_utf8_lossy(&name).into_owned()
        }
        _ => {
            let mut ip = [0; 4];
            stream.read_exact(&mut ip).await?;
            std::net::Ipv4Addr::from(ip).to_string()
        }
    };
    let port = stream.read_u16().await?;
    seen.lock().unwrap_or_else(PoisonError::into_inner).push(format!("socks {name}:{port}"));
    let mut upstream = TcpStream::connect(to).await?;
    stream.write_all(&[5, 0, 0, 1, 127, 0, 0, 1, 0, 0]).await?;
    tokio::io::copy_bidirectional(&mut stream, &mut upstream).await.map(|_| ())
}
