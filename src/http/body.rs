//! Bodies with bounds: reading a request's in limited size and time, and answers that know when they were written.

use std::{
    mem,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll},
    time::Duration,
};

use axum::{
    body::{Body, Bytes},
    http::{HeaderMap, StatusCode, header},
};
use channel_api::Clock;
use futures_util::StreamExt;
use http_body::{Frame, SizeHint};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use super::error::Refusal;

/// How much of a refused body is read, so that its sender gets to read the answer. protocols.md §5.2.
const DRAIN_BYTES: usize = 4 << 20;
/// How long it is read.
const DRAIN_TIME: Duration = Duration::from_secs(1);
/// The deepest JSON that is taken. security.md row 20.
const JSON_DEPTH: usize = 64;

/// Reads a body of at most `limit` bytes within `time`.
///
/// # Errors
/// 413, 408, 415 for an encoded body, 400 when the sender went away in the middle.
pub async fn read(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    time: Duration,
    clock: &dyn Clock,
) -> Result<Bytes, Refusal> {
    let encoded = headers
        .get_all(header::CONTENT_ENCODING)
        .iter()
        .any(|value| !value.as_bytes().trim_ascii().eq_ignore_ascii_case(b"identity"));
    if encoded {
        drain(body, 0, clock).await;
        let message = "an encoded body is not taken: send it without Content-Encoding";
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_encoding", message).closing());
    }
    let too_large = || {
        let message = format!("the body is larger than {limit} bytes");
        Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", message).closing()
    };
    let promised = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if promised.is_some_and(|length| length > limit as u64) {
        drain(body, 0, clock).await;
        return Err(too_large());
    }
    let mut chunks = body.into_data_stream();
    let mut bytes: Vec<u8> = Vec::new();
    let late = clock.sleep(time);
    tokio::pin!(late);
    loop {
        let chunk = tokio::select! {
            chunk = chunks.next() => chunk,
            () = &mut late => {
                let message = "the body did not arrive in time";
                return Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, "too_slow", message).closing());
            }
        };
        match chunk {
            None => return Ok(bytes.into()),
            Some(Ok(chunk)) if bytes.len() + chunk.len() > limit => {
                let read = bytes.len() + chunk.len();
                drain(Body::from_stream(chunks), read, clock).await;
                return Err(too_large());
            }
            Some(Ok(chunk)) => bytes.extend_from_slice(&chunk),
            Some(Err(_)) => {
                let message = "the body ended before its time";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "cut_body", message).closing());
            }
        }
    }
}

/// Reads on and throws away, `read` bytes being read already: a sender that is still writing would otherwise never see
/// the answer.
pub async fn drain(body: Body, mut read: usize, clock: &dyn Clock) {
    let mut chunks = body.into_data_stream();
    let all = async {
        while let Some(Ok(chunk)) = chunks.next().await {
            read += chunk.len();
            if read > DRAIN_BYTES {
                break;
            }
        }
    };
    tokio::select! {
        () = all => {}
        () = clock.sleep(DRAIN_TIME) => {}
    }
}

/// A JSON body as a `T`.
///
/// # Errors
/// 400 when it is not JSON or nested too deep, 422 when it is not a `T`.
pub fn json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    if deeper_than(bytes, JSON_DEPTH) {
        return Err(Refusal::bad_json("the JSON is nested too deep"));
    }
    let value: Value =
        serde_json::from_slice(bytes).map_err(|error| Refusal::bad_json(&format!("the body is not JSON: {error}")))?;
    if !value.is_object() {
        return Err(Refusal::bad_json("the body is not a JSON object"));
    }
    serde_json::from_value(value).map_err(|error| Refusal::invalid(error.to_string()))
}

/// Whether brackets nest deeper than `most`, those inside strings not counted.
fn deeper_than(bytes: &[u8], most: usize) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    for byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'[' | b'{' if !in_string => {
                depth += 1;
                if depth > most {
                    return true;
                }
            }
            b']' | b'}' if !in_string => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    false
}

/// Those who want to know when what was handed to a connection has been written to it. One for each connection; dropped
/// with it, unanswered.
#[derive(Debug, Default)]
pub struct Handover(Mutex<Vec<oneshot::Sender<()>>>);

impl Handover {
    fn push(&self, sender: oneshot::Sender<()>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
    }

    /// Everything that was handed over so far has left.
    pub fn written(&self) {
        let all = mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner));
        for sender in all {
            // An error only says that nobody waits any more.
            let _ = sender.send(());
        }
    }
}

/// A whole body that tells when its last byte was written.
pub struct Whole {
    bytes: Option<Bytes>,
    written: Option<oneshot::Sender<()>>,
    handover: Arc<Handover>,
}

impl Whole {
    /// These bytes on this connection.
    pub fn new(bytes: Bytes, written: Option<oneshot::Sender<()>>, handover: Arc<Handover>) -> Self {
        Self { bytes: Some(bytes), written, handover }
    }
}

impl http_body::Body for Whole {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let Some(bytes) = self.bytes.take() else { return Poll::Ready(None) };
        // The connection puts this chunk into its buffer before it flushes the next time.
        if let Some(written) = self.written.take() {
            self.handover.push(written);
        }
        Poll::Ready((!bytes.is_empty()).then(|| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.as_ref().is_none_or(Bytes::is_empty)
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // An empty body is never polled: it goes with the head.
        if self.bytes.as_ref().is_some_and(Bytes::is_empty)
            && let Some(written) = self.written.take()
        {
            self.handover.push(written);
        }
    }
}

/// Chunks as they come.
pub struct Chunks(pub mpsc::Receiver<Bytes>);

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.0.poll_recv(cx).map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depth_counts_brackets_outside_strings() {
        let nested = |depth: usize| format!("{}1{}", "[".repeat(depth), "]".repeat(depth));
        assert!(!deeper_than(nested(64).as_bytes(), 64));
        assert!(deeper_than(nested(65).as_bytes(), 64));
        assert!(!deeper_than(br#"{"a":"[[[[\"[[[["}"#, 1));
    }

    #[test]
    fn json_is_refused_by_what_is_wrong_with_it() {
        let status =
            |text: &str| json::<std::collections::HashMap<String, String>>(text.as_bytes()).map_err(|r| r.status);
        assert_eq!(status("{"), Err(StatusCode::BAD_REQUEST));
        assert_eq!(status("null"), Err(StatusCode::BAD_REQUEST));
        assert_eq!(status("[]"), Err(StatusCode::BAD_REQUEST));
        assert_eq!(status(&"[".repeat(5000)), Err(StatusCode::BAD_REQUEST));
        assert_eq!(status(r#"{"a":1}"#), Err(StatusCode::UNPROCESSABLE_ENTITY));
        assert!(status(r#"{"a":"b"}"#).is_ok());
    }
}
