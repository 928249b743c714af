//! Just enough HTTP/1.1 over loopback for the fakes: a keep-alive server and a keep-alive client.
//!
//! Written by hand because load and gateway share one machine: what the load costs is taken from what is measured.

use std::{io, net::SocketAddr};

use bytes::{Buf, Bytes, BytesMut};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// One message of either direction: its first line, its headers (names in lower case) and its body.
pub struct Message {
    /// `POST /path HTTP/1.1` or `HTTP/1.1 200 OK`.
    pub first: String,
    /// The headers.
    pub headers: Vec<(String, String)>,
    /// The body.
    pub body: Bytes,
}

impl Message {
    /// A header's value, by its name in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// The second word of the first line: a request's path, an answer's status.
    pub fn second(&self) -> &str {
        self.first.split(' ').nth(1).unwrap_or("")
    }
}

/// What a fake answers.
pub struct Answer {
    /// The status line's number.
    pub status: u16,
    /// Its `Content-Type`.
    pub kind: &'static str,
    /// The body's pieces: sent as chunks when there are several.
    pub body: Vec<Bytes>,
}

impl Answer {
    /// A JSON answer in one piece.
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        Self { status, kind: "application/json", body: vec![body.into()] }
    }

    fn bytes(&self) -> BytesMut {
        let mut out = BytesMut::with_capacity(256 + self.body.iter().map(|piece| piece.len() + 16).sum::<usize>());
        out.extend_from_slice(format!("HTTP/1.1 {} .\r\ncontent-type: {}\r\n", self.status, self.kind).as_bytes());
        if let [whole] = self.body.as_slice() {
            out.extend_from_slice(format!("content-length: {}\r\n\r\n", whole.len()).as_bytes());
            out.extend_from_slice(whole);
        } else {
            out.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            for piece in &self.body {
                out.extend_from_slice(format!("{:x}\r\n", piece.len()).as_bytes());
                out.extend_from_slice(piece);
                out.extend_from_slice(b"\r\n");
            }
            out.extend_from_slice(b"0\r\n\r\n");
        }
        out
    }
}

/// Answers every request on `listener` until dropped.
pub async fn serve<H, F>(listener: TcpListener, handler: H)
where
    H: Fn(Message) -> F + Clone + Send + 'static,
    F: Future<Output = Answer> + Send,
{
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let handler = handler.clone();
                connections.spawn(async move {
                    let mut connection = Connection::new(stream);
                    while let Ok(Some(request)) = connection.read().await {
                        let answer = handler(request).await;
                        if connection.stream.write_all(&answer.bytes()).await.is_err() {
                            break;
                        }
                    }
                });
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// A client of one address, with one connection that is opened again when it broke.
pub struct Client {
    to: SocketAddr,
    connection: Option<Connection>,
}

impl Client {
    /// A client; it connects with the first request.
    pub fn new(to: SocketAddr) -> Self {
        Self { to, connection: None }
    }

    /// Sends a request and reads the answer: its status and its body. `headers` are whole lines, each with its `\r\n`.
    ///
    /// # Errors
    /// When the other side is not there or breaks off; the next call connects again.
    pub async fn send(&mut self, method: &str, path: &str, headers: &str, body: &[u8]) -> io::Result<(u16, Bytes)> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => Connection::new(TcpStream::connect(self.to).await?),
        };
        let mut out = BytesMut::with_capacity(256 + headers.len() + body.len());
        let (host, length) = (self.to, body.len());
        out.extend_from_slice(
            format!("{method} {path} HTTP/1.1\r\nhost: {host}\r\n{headers}content-length: {length}\r\n\r\n").as_bytes(),
        );
        out.extend_from_slice(body);
        connection.stream.write_all(&out).await?;
        let answer = connection.read().await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let status = answer.second().parse().map_err(|_| io::ErrorKind::InvalidData)?;
        if answer.header("connection") != Some("close") {
            self.connection = Some(connection);
        }
        Ok((status, answer.body))
    }
}

struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        // Without it an answer may wait 40 ms for an acknowledgement.
        let _ = stream.set_nodelay(true);
        Self { stream, buffer: BytesMut::with_capacity(16 * 1024) }
    }

    /// The next message; `None` when the other side closed between two.
    async fn read(&mut self) -> io::Result<Option<Message>> {
        let end = loop {
            if let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") {
                break end;
            }
            if !self.more().await? {
                return Ok(None);
            }
        };
        let head = self.buffer.split_to(end + 4);
        let head = String::from_utf8_lossy(&head);
        let mut lines = head.split("\r\n");
        let first = lines.next().unwrap_or("").to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
            .collect();
        let mut message = Message { first, headers, body: Bytes::new() };
        message.body = if message.header("transfer-encoding") == Some("chunked") {
            self.chunked().await?
        } else {
            let length = message.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            self.exactly(length).await?
        };
        Ok(Some(message))
    }

    async fn chunked(&mut self) -> io::Result<Bytes> {
        let mut body = BytesMut::new();
        loop {
            let end = loop {
                if let Some(end) = self.buffer.windows(2).position(|two| two == b"\r\n") {
                    break end;
                }
                if !self.more().await? {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            };
            let line = self.buffer.split_to(end + 2);
            let length = std::str::from_utf8(&line).ok().and_then(|line| usize::from_str_radix(line.trim(), 16).ok());
            let length = length.ok_or(io::ErrorKind::InvalidData)?;
            let piece = self.exactly(length + 2).await?;
            if length == 0 {
                return Ok(body.freeze());
            }
            body.extend_from_slice(&piece[..length]);
        }
    }

    async fn exactly(&mut self, length: usize) -> io::Result<Bytes> {
        while self.buffer.len() < length {
            if !self.more().await? {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(self.buffer.split_to(length).copy_to_bytes(length))
    }

    async fn more(&mut self) -> io::Result<bool> {
        Ok(self.stream.read_buf(&mut self.buffer).await? > 0)
    }
}
