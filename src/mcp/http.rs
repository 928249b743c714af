//! The transport of servers that are reached over HTTP (the protocol's "streamable HTTP"), on our own guarded client: no
//! redirects, no private address unless the owner said so, nothing unbounded. security.md rows 16 and 22.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{Arc, Mutex, PoisonError},
};

use bytes::Bytes;
use channel_api::Clock;
use futures_util::{Stream, StreamExt as _, stream::BoxStream};
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT, CONTENT_TYPE, RETRY_AFTER},
};
use reqwest::{Client, RequestBuilder, Response};
use rmcp::{
    model::{ClientJsonRpcMessage, ServerJsonRpcMessage},
    transport::streamable_http_client::{
        HttpStatusError, SseError, StreamableHttpClient, StreamableHttpError, StreamableHttpPostResponse,
    },
};
use sse_stream::{Sse, SseStream};
use tokio::sync::Notify;

use super::pace::{MOST, Pace, is_news};

const SESSION: &str = "mcp-session-id";
const LAST_EVENT: &str = "last-event-id";
const EVENTS: &str = "text/event-stream";
const JSON: &str = "application/json";

/// How requests go out.
#[derive(Clone)]
pub struct Wire {
    /// The guarded client.
    pub client: Client,
    /// The time, for the pace of what comes.
    pub clock: Arc<dyn Clock>,
    /// Told when the server says that its list is another.
    pub changed: Arc<Notify>,
}

/// Why a request failed; holds nothing of the address.
#[derive(Debug)]
pub struct WireError(String);

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WireError {}

type Failure = StreamableHttpError<WireError>;

/// The causes tell more than the error itself; the address may hold a key and goes.
fn failed(error: reqwest::Error) -> Failure {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    Failure::Client(WireError(text))
}

fn odd(text: impl Into<String>) -> Failure {
    Failure::UnexpectedServerResponse(text.into().into())
}

impl Wire {
    async fn send(
        &self,
        request: RequestBuilder,
        session: Option<Arc<str>>,
        token: Option<String>,
        headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<Response, Failure> {
        let mut request = request.header(ACCEPT, format!("{JSON}, {EVENTS}"));
        if let Some(session) = session {
            request = request.header(SESSION, session.as_ref());
        }
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        for (name, value) in headers {
            request = request.header(name, value);
        }
        request.send().await.map_err(failed)
    }

    /// The events of an answer, none larger than a message may be, at the pace that is allowed, without news.
    fn events(&self, response: Response) -> BoxStream<'static, Result<Sse, SseError>> {
        let (clock, pace) = (Arc::clone(&self.clock), Arc::new(Mutex::new(Pace::default())));
        let wait = move |messages, lines| {
            let clock = Arc::clone(&clock);
            let wait = pace.lock().unwrap_or_else(PoisonError::into_inner).count(messages, lines, clock.monotonic());
            async move {
                if let Some(wait) = wait {
                    clock.sleep(wait).await;
                }
            }
        };
        let wait_for_lines = wait.clone();
        let paced = bounded(response.bytes_stream()).then(move |piece| {
            let lines = piece.as_ref().map_or(0, |bytes| bytes.iter().filter(|byte| **byte == b'\n').count());
            let waiting = wait_for_lines(0, u32::try_from(lines).unwrap_or(u32::MAX));
            async move {
                waiting.await;
                piece
            }
        });
        let changed = Arc::clone(&self.changed);
        let events = SseStream::from_bytes_stream(paced.boxed()).filter_map(move |event| {
            let data = event.as_ref().ok().and_then(|event| event.data.as_deref());
            let news = data.is_some_and(|data| is_news(data.as_bytes(), &changed));
            let waiting = (!news).then(|| wait(1, 0));
            async move {
                waiting?.await;
                Some(event)
            }
        });
        events.boxed()
    }
}

/// Ends with an error at an event that is too large.
fn bounded(
    stream: impl Stream<Item = reqwest::Result<Bytes>> + Send + 'static,
) -> impl Stream<Item = io::Result<Bytes>> + Send + 'static {
    // Bytes of the event, and of its last line.
    let state = (stream.boxed(), 0_usize, 0_usize);
    futures_util::stream::unfold(Some(state), async |state| {
        let (mut stream, mut event, mut line) = state?;
        let bytes = match stream.next().await? {
            Ok(bytes) => bytes,
            Err(error) => return Some((Err(io::Error::other(error.without_url())), None)),
        };
        for byte in &bytes {
            match byte {
                b'\n' if line == 0 => event = 0,
                b'\n' => line = 0,
                b'\r' => {}
                _ => {
                    line += 1;
                    event += 1;
                }
            }
            if event > MOST {
                return Some((Err(io::Error::other(format!("a message of more than {} MiB", MOST >> 20))), None));
            }
        }
        Some((Ok(bytes), Some((stream, event, line))))
    })
}

fn kind(response: &Response) -> String {
    let kind = response.headers().get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

async fn body(mut response: Response) -> Result<Vec<u8>, Failure> {
    let mut all = Vec::new();
    while let Some(bytes) = response.chunk().await.map_err(failed)? {
        if all.len() + bytes.len() > MOST {
            return Err(Failure::ResponseBodyTooLarge { max_size: MOST });
        }
        all.extend_from_slice(&bytes);
    }
    Ok(all)
}

/// What a status means when it is none of success.
fn refusal(response: &Response) -> Failure {
    let status = response.status();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            odd(format!("HTTP {}: it wants to know who asks; see `headers`", status.as_u16()))
        }
        _ if status.is_redirection() => odd("it redirects; write the address it redirects to"),
        _ if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() => {
            let after = response.headers().get(RETRY_AFTER).and_then(|after| after.to_str().ok()).map(str::to_owned);
            HttpStatusError::new(status.as_u16(), after).into()
        }
        _ => odd(format!("HTTP {}", status.as_u16())),
    }
}

impl StreamableHttpClient for Wire {
    type Error = WireError;

    async fn post_message(
        &self,
        uri: Arc<str>,
        message: ClientJsonRpcMessage,
        session_id: Option<Arc<str>>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<StreamableHttpPostResponse, Failure> {
        let had_session = session_id.is_some();
        let asks = matches!(message, ClientJsonRpcMessage::Request(_));
        let request = self.client.post(uri.as_ref()).json(&message);
        let response = self.send(request, session_id, auth_header, custom_headers).await?;
        let status = response.status();
        if status == StatusCode::NOT_FOUND && had_session {
            return Err(Failure::SessionExpired);
        }
        if matches!(status, StatusCode::ACCEPTED | StatusCode::NO_CONTENT) || (!asks && status.is_success()) {
            return Ok(StreamableHttpPostResponse::Accepted);
        }
        let session = response.headers().get(SESSION).and_then(|id| id.to_str().ok()).map(str::to_owned);
        let kind = kind(&response);
        if !status.is_success() {
            let refusal = refusal(&response);
            // Its own words on what is wrong, when they are an error of the protocol.
            if kind == JSON
                && status != StatusCode::TOO_MANY_REQUESTS
                && let Ok(message @ ServerJsonRpcMessage::Error(_)) = serde_json::from_slice(&body(response).await?)
            {
                return Ok(StreamableHttpPostResponse::Json(message, session));
            }
            return Err(refusal);
        }
        match kind.as_str() {
            EVENTS => Ok(StreamableHttpPostResponse::Sse(self.events(response), session)),
            JSON => {
                let body = body(response).await?;
                let message =
                    serde_json::from_slice(&body).map_err(|_| odd("its answer is no message of the protocol"))?;
                Ok(StreamableHttpPostResponse::Json(message, session))
            }
            _ => Err(odd("its answer is neither JSON nor a stream of events; is the address right?")),
        }
    }

    async fn delete_session(
        &self,
        uri: Arc<str>,
        session_id: Arc<str>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<(), Failure> {
        // A server that ends no sessions, or has ended this one, is fine.
        self.send(self.client.delete(uri.as_ref()), Some(session_id), auth_header, custom_headers).await?;
        Ok(())
    }

    async fn get_stream(
        &self,
        uri: Arc<str>,
        session_id: Option<Arc<str>>,
        last_event_id: Option<String>,
        auth_header: Option<String>,
        custom_headers: HashMap<HeaderName, HeaderValue>,
    ) -> Result<BoxStream<'static, Result<Sse, SseError>>, Failure> {
        let mut request = self.client.get(uri.as_ref());
        if let Some(id) = last_event_id {
            request = request.header(LAST_EVENT, id);
        }
        let response = self.send(request, session_id, auth_header, custom_headers).await?;
        match response.status() {
            StatusCode::METHOD_NOT_ALLOWED => Err(Failure::ServerDoesNotSupportSse),
            status if !status.is_success() => Err(refusal(&response)),
            _ if kind(&response) == EVENTS => Ok(self.events(response)),
            _ => Err(odd("its stream of events is none")),
        }
    }
}
