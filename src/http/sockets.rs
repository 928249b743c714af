//! WebSockets that platforms open to adapters: the upgrade, the frames both ways, and the end.
//!
//! A socket keeps its connection's place until it is over. An adapter that reads slowly is not read for: the peer waits in
//! TCP. A peer that shows no sign of life is asked for one, and let go of when none comes, so that no half-open socket is
//! taken for a live one; a quiet peer that answers pings may stay for ever.

use std::{
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use axum::{
    extract::{
        FromRequestParts,
        ws::{self, Message, WebSocket, WebSocketUpgrade},
    },
    http::{HeaderMap, HeaderValue, StatusCode, header, request::Parts},
    response::Response,
};
use bytes::Bytes;
use channel_api::{Channel, ChannelContext, Clock, Frame, HttpRequest, Socket};
use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio::{
    sync::{Notify, mpsc},
    time::timeout,
};
use tokio_tungstenite::tungstenite;
use tracing::{Instrument, debug, error, info_span, warn};

use super::{Server, connection::Place, error::Refusal};

/// Frames that wait on each side.
const QUEUE: usize = 64;
/// How long the other side may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long an adapter may work on what came before its socket ended.
const LAST_WORK: Duration = Duration::from_secs(60);
/// So many pings in a row without any answer, and the peer is gone.
const UNANSWERED: u32 = 2;
/// The longest reason of a close frame, in bytes. RFC 6455 §5.5.1.
const LONGEST_REASON: usize = 123;

/// A request that may become a socket.
pub struct Opening {
    /// Its channel, which has a [`channel_api::SocketEndpoint`] and admitted the request.
    pub channel: Arc<dyn Channel>,
    /// What the adapter is given.
    pub context: ChannelContext,
    /// What it admitted.
    pub request: HttpRequest,
    /// The connection's place.
    pub place: Place,
}

/// Answers the handshake; the socket lives on after it.
///
/// # Errors
/// What is wrong with the handshake, or that the gateway is stopping.
pub async fn open(server: &Arc<Server>, opening: Opening, mut head: Parts) -> Result<Response, Refusal> {
    if server.http.stopping.is_cancelled() {
        let message = "the gateway is stopping; connect again soon";
        return Err(
            Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message).retry_after(Duration::from_secs(5))
        );
    }
    let upgrade = WebSocketUpgrade::from_request_parts(&mut head, &()).await;
    let mut upgrade =
        upgrade.map_err(|rejection| Refusal::new(rejection.status(), "bad_handshake", rejection.body_text()))?;
    // Whoever asks for protocols hangs up when none is chosen; whoever asks for none hangs up when one is.
    if let Some(first) = first_protocol(&head.headers) {
        upgrade.set_selected_protocol(first);
    }
    let limit = opening.channel.socket().map_or(0, |endpoint| endpoint.message_limit());
    let span = info_span!("socket", channel = %opening.channel.id());
    let (server, tracked) = (Arc::clone(server), server.sockets.token());
    Ok(upgrade
        .max_message_size(limit)
        .max_frame_size(limit)
        .on_failed_upgrade(|error| debug!(%error, "a WebSocket did not come about"))
        .on_upgrade(move |socket| {
            async move {
                serve(&server, opening, socket).await;
                drop(tracked);
            }
            .instrument(span)
        }))
}

fn first_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let asked = headers.get(header::SEC_WEBSOCKET_PROTOCOL)?.to_str().ok()?;
    let first = asked.split(',').map(str::trim).find(|word| !word.is_empty())?;
    HeaderValue::from_str(first).ok()
}

async fn serve(server: &Server, opening: Opening, socket: WebSocket) {
    let Opening { channel, context, request, place } = opening;
    let Some(endpoint) = channel.socket() else { return };
    // While the gateway drains nothing more is accepted, but answers still go out: the socket stays to the end of it.
    let context = ChannelContext { shutdown: server.abort.child_token(), ..context };
    let (incoming_tx, incoming) = mpsc::channel(QUEUE);
    let (outgoing, outgoing_rx) = mpsc::channel(QUEUE);
    let farewell = AtomicU16::new(1000);
    let work = async {
        let work = AssertUnwindSafe(endpoint.serve(&context, request, Socket { incoming, outgoing })).catch_unwind();
        let stopped = async {
            server.abort.cancelled().await;
            // The adapter has its moment to end by itself.
            tokio::time::sleep(GOODBYE / 4).await;
        };
        tokio::select! {
            ended = work => ended,
            () = stopped => Ok(()),
        }
    };
    let pump = Pump { farewell: &farewell, clock: server.http.clock.as_ref(), quiet: server.limits.keep_alive * 2 };
    let wire = pump.run(socket, incoming_tx, outgoing_rx);
    tokio::pin!(work, wire);
    tokio::select! {
        ended = &mut work => {
            if ended.is_err() {
                error!("the adapter panicked while it served a socket");
                farewell.store(1011, Ordering::Relaxed);
            } else if server.abort.is_cancelled() {
                farewell.store(1001, Ordering::Relaxed);
            }
            wire.await;
        }
        () = &mut wire => {
            match timeout(LAST_WORK, work).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => error!("the adapter panicked after its socket ended"),
                Err(_) => warn!("the adapter still worked a minute after its socket ended, and is ended"),
            }
        }
    }
    drop(place);
}

/// How reading ended.
enum End {
    /// The peer said goodbye.
    Closed,
    /// A message was longer than the adapter takes.
    TooLong,
    /// The connection broke, or went silent.
    Broken,
}

struct Pump<'a> {
    /// The code of our goodbye when the adapter says none itself.
    farewell: &'a AtomicU16,
    clock: &'a dyn Clock,
    /// After so long without a sign of life the peer is asked for one.
    quiet: Duration,
}

impl Pump<'_> {
    /// Moves frames until either side ends.
    async fn run(&self, socket: WebSocket, incoming: mpsc::Sender<Frame>, mut outgoing: mpsc::Receiver<Frame>) {
        let (mut sink, mut stream) = socket.split();
        let ask = Notify::new();
        let end = {
            let writing = async {
                loop {
                    let frame = tokio::select! {
                        frame = outgoing.recv() => frame,
                        () = ask.notified() => Some(Frame::Ping(Bytes::new())),
                    };
                    let frame =
                        frame.unwrap_or_else(|| Frame::Close(self.farewell.load(Ordering::Relaxed), String::new()));
                    let last = matches!(frame, Frame::Close(..));
                    if sink.send(message(frame)).await.is_err() || last {
                        return;
                    }
                }
            };
            let reading = async {
                let mut unanswered = 0;
                loop {
                    let (frame, end) = tokio::select! {
                        read = stream.next() => {
                            unanswered = 0;
                            frame(read)
                        }
                        () = self.clock.sleep(self.quiet) => {
                            if unanswered < UNANSWERED {
                                unanswered += 1;
                                ask.notify_one();
                                continue;
                            }
                            (Frame::Close(1006, "no sign of life".to_owned()), Some(End::Broken))
                        }
                    };
                    // An adapter that listens no more may still speak.
                    let _ = incoming.send(frame).await;
                    if let Some(end) = end {
                        return end;
                    }
                }
            };
            tokio::pin!(writing, reading);
            tokio::select! {
                end = &mut reading => end,
                () = &mut writing => {
                    // Our goodbye is said; the peer may answer it.
                    let _ = timeout(GOODBYE, reading).await;
                    return;
                }
            }
        };
        drop(incoming);
        let goodbye = async {
            match end {
                End::Broken => return,
                End::TooLong => {
                    let close = Frame::Close(1009, "the message is too long".to_owned());
                    if sink.send(message(close)).await.is_err() {
                        return;
                    }
                }
                End::Closed => {}
            }
            // Writes the answer to a goodbye, too.
            while stream.next().await.is_some_and(|read| read.is_ok()) {}
        };
        let _ = timeout(GOODBYE, goodbye).await;
    }
}

/// What was read, and whether it was the last.
fn frame(read: Option<Result<Message, axum::Error>>) -> (Frame, Option<End>) {
    match read {
        Some(Ok(Message::Text(text))) => (Frame::Text(text.as_str().to_owned()), None),
        Some(Ok(Message::Binary(bytes))) => (Frame::Binary(bytes), None),
        Some(Ok(Message::Ping(bytes))) => (Frame::Ping(bytes), None),
        Some(Ok(Message::Pong(bytes))) => (Frame::Pong(bytes), None),
        Some(Ok(Message::Close(close))) => {
            let (code, reason) =
                close.map_or((1005, String::new()), |close| (close.code, close.reason.as_str().to_owned()));
            (Frame::Close(code, reason), Some(End::Closed))
        }
        Some(Err(error)) => {
            let error = error.into_inner();
            match error.downcast_ref::<tungstenite::Error>() {
                Some(tungstenite::Error::Capacity(_)) => {
                    (Frame::Close(1009, "the message is too long".to_owned()), Some(End::TooLong))
                }
                _ => (Frame::Close(1006, error.to_string().chars().take(100).collect()), Some(End::Broken)),
            }
        }
        None => (Frame::Close(1006, "the connection ended".to_owned()), Some(End::Broken)),
    }
}

fn message(frame: Frame) -> Message {
    match frame {
        Frame::Text(text) => Message::Text(text.into()),
        Frame::Binary(bytes) => Message::Binary(bytes),
        Frame::Ping(bytes) => Message::Ping(bytes),
        Frame::Pong(bytes) => Message::Pong(bytes),
        // These three are never written: they say that nothing was said.
        Frame::Close(1005 | 1006 | 1015, _) => Message::Close(None),
        Frame::Close(code, reason) => {
            let reason = &reason[..reason.floor_char_boundary(LONGEST_REASON)];
            Message::Close(Some(ws::CloseFrame { code, reason: reason.into() }))
        }
    }
}
