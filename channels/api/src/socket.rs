//! WebSockets as a pair of frame queues, so that no adapter depends on a web framework.

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use crate::{ChannelContext, HttpRequest, HttpResponse};

/// One frame. Fragments are joined before they become one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// Text.
    Text(String),
    /// Bytes.
    Binary(Bytes),
    /// A ping: answered by the gateway, handed on as a sign of life.
    Ping(Bytes),
    /// The answer to a ping.
    Pong(Bytes),
    /// The end, with a close code and its words (at most 123 bytes). Nothing follows it.
    Close(u16, String),
}

/// An open WebSocket. It is closed when `outgoing` is dropped; `incoming` ends when the peer is gone.
#[derive(Debug)]
pub struct Socket {
    /// What comes.
    pub incoming: mpsc::Receiver<Frame>,
    /// What goes.
    pub outgoing: mpsc::Sender<Frame>,
}

impl Socket {
    /// Two ends of one socket in memory, for tests.
    pub fn pair() -> (Self, Self) {
        let ((a, b), (c, d)) = (mpsc::channel(64), mpsc::channel(64));
        (Self { incoming: b, outgoing: c }, Self { incoming: d, outgoing: a })
    }
}

/// An adapter to which its platform opens WebSockets at `/channels/<kind>/<account>` and below.
#[async_trait]
pub trait SocketEndpoint: Send + Sync {
    /// The longest message it takes, in bytes; a longer one closes the socket with 1009.
    fn message_limit(&self) -> usize;

    /// Whether this request may open one, told from its head alone and at once: authentication is all the adapter's.
    ///
    /// # Errors
    /// The answer to a request that may not.
    fn admit(&self, request: &HttpRequest) -> Result<(), Box<HttpResponse>>;

    /// Serves one open socket until it ends or `ctx.shutdown` is cancelled. That token is the socket's own: it outlives
    /// the one of `run`, so that answers still go out while the gateway drains. After it the gateway says goodbye (1001)
    /// for whoever returned without.
    async fn serve(&self, ctx: &ChannelContext, request: HttpRequest, socket: Socket);
}
