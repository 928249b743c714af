//! Plain HTTP values, so that an adapter answers its platform's calls without depending on a web framework.

use async_trait::async_trait;
use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode, header};
use tokio::sync::{mpsc, oneshot};

use crate::ChannelContext;

/// An adapter that its platform calls at `/channels/<kind>/<account>`.
#[async_trait]
pub trait HttpEndpoint: Send + Sync {
    /// The largest body it takes, in bytes; the server answers 413 above it without calling `handle`.
    fn body_limit(&self) -> usize;

    /// Answers one request, authentication included: the gateway checks nothing on these routes.
    async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse;
}

/// One request, its body whole.
#[derive(Clone, Debug)]
pub struct HttpRequest {
    /// The method.
    pub method: Method,
    /// What follows `/channels/<kind>/<account>`, e.g. `` or `/messages/m-1`; percent-decoded.
    pub path: String,
    /// The query string without `?`, as sent.
    pub query: String,
    /// The headers.
    pub headers: HeaderMap,
    /// The raw body.
    pub body: Bytes,
    /// It comes from a program on this machine, with no proxy and no browser in between, to the listener that is not shown
    /// to the network: an adapter may then do without a token where none is set.
    pub local: bool,
}

/// One answer.
#[derive(Debug)]
pub struct HttpResponse {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub body: HttpBody,
}

/// The body of an [`HttpResponse`].
#[derive(Debug)]
pub enum HttpBody {
    /// Bytes known whole. `written` is answered once the last byte was handed to the connection and dropped unanswered
    /// when the peer went away before.
    Whole {
        /// The bytes.
        bytes: Bytes,
        /// Told when they were written.
        written: Option<oneshot::Sender<()>>,
    },
    /// Chunks as they come; the response ends when the sender is dropped, and a send fails once the peer went away.
    Stream(mpsc::Receiver<Bytes>),
}

impl HttpResponse {
    /// An answer with a JSON body.
    pub fn json(status: StatusCode, body: &serde_json::Value) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
        let bytes = Bytes::from(body.to_string());
        Self { status, headers, body: HttpBody::Whole { bytes, written: None } }
    }

    /// The same answer, and a receiver that resolves to `Ok` once it was written, or to `Err` when the peer went away.
    pub fn confirmed(mut self) -> (Self, oneshot::Receiver<()>) {
        let (tx, rx) = oneshot::channel();
        if let HttpBody::Whole { written, .. } = &mut self.body {
            *written = Some(tx);
        }
        (self, rx)
    }

    /// The same answer with one more header; an invalid value is left out.
    pub fn with_header(mut self, name: header::HeaderName, value: &str) -> Self {
        if let Ok(value) = header::HeaderValue::from_str(value) {
            self.headers.insert(name, value);
        }
        self
    }
}
