//! A WebSocket to a platform, as a pair of frame queues and the future that moves the frames.

use std::{future::Future, pin::Pin, time::Duration};

use channel_api::{Frame, Socket};
use futures_util::{SinkExt, StreamExt};
use http::{HeaderMap, Request};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::{
    self, Message,
    client::IntoClientRequest,
    protocol::{CloseFrame, WebSocketConfig, frame::coding::CloseCode},
};
use url::Url;

use crate::{DialError, network::Network};

/// How long the handshake may take once the connection stands.
const HANDSHAKE: Duration = Duration::from_secs(15);
/// How long the other side may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(2);
/// Frames that wait on each side.
const QUEUE: usize = 64;

/// Moves the frames of one socket until it ends; whoever opened the socket runs it. It also ends soon after
/// `outgoing` is dropped and the goodbye is said.
pub type Pump = Pin<Box<dyn Future<Output = ()> + Send>>;

impl Network {
    /// Opens a WebSocket at a `ws` or `wss` address. Messages above `limit` bytes close it.
    ///
    /// # Errors
    /// [`DialError`].
    pub async fn websocket(&self, url: &Url, headers: &HeaderMap, limit: usize) -> Result<(Socket, Pump), DialError> {
        let tls = match url.scheme() {
            "wss" => true,
            "ws" => false,
            other => return Err(DialError::Protocol(format!("{other} is not ws or wss"))),
        };
        let host = url.host_str().ok_or_else(|| DialError::Protocol("the address names no host".to_owned()))?;
        let port = url.port().unwrap_or(if tls { 443 } else { 80 });
        let stream = self.stream(host, port, tls).await?;
        let mut request: Request<()> =
            url.as_str().into_client_request().map_err(|error| DialError::Protocol(error.to_string()))?;
        for (name, value) in headers {
            request.headers_mut().append(name, value.clone());
        }
        let config = WebSocketConfig::default().max_message_size(Some(limit)).max_frame_size(Some(limit));
        let handshake = tokio_tungstenite::client_async_with_config(request, stream, Some(config));
        let (socket, _) = match tokio::time::timeout(HANDSHAKE, handshake).await {
            Err(_) => return Err(DialError::Unreachable(format!("{host} did not open a WebSocket in time"))),
            Ok(Err(tungstenite::Error::Http(answer))) => {
                let body = answer.body().as_deref().unwrap_or_default();
                let body = String::from_utf8_lossy(&body[..body.len().min(1024)]).into_owned();
                return Err(DialError::Status { status: answer.status().as_u16(), body });
            }
            Ok(Err(tungstenite::Error::Io(error))) => return Err(DialError::Unreachable(format!("{host}: {error}"))),
            Ok(Err(error)) => return Err(DialError::Protocol(error.to_string())),
            Ok(Ok(opened)) => opened,
        };
        let (incoming_tx, incoming) = mpsc::channel(QUEUE);
        let (outgoing, outgoing_rx) = mpsc::channel(QUEUE);
        Ok((Socket { incoming, outgoing }, Box::pin(pump(socket, incoming_tx, outgoing_rx))))
    }
}

async fn pump<S>(socket: S, incoming: mpsc::Sender<Frame>, mut outgoing: mpsc::Receiver<Frame>)
where
    S: futures_util::Stream<Item = Result<Message, tungstenite::Error>> + futures_util::Sink<Message> + Send,
{
    let (mut sink, mut stream) = socket.split();
    let writing = async {
        while let Some(frame) = outgoing.recv().await {
            let last = matches!(frame, Frame::Close(..));
            if sink.send(message(frame)).await.is_err() || last {
                return;
            }
        }
        let _ = sink.send(message(Frame::Close(1000, String::new()))).await;
    };
    let reading = async {
        while let Some(read) = stream.next().await {
            let frame = match read {
                Ok(Message::Text(text)) => Frame::Text(text.as_str().to_owned()),
                Ok(Message::Binary(bytes)) => Frame::Binary(bytes),
                Ok(Message::Ping(bytes)) => Frame::Ping(bytes),
                Ok(Message::Pong(bytes)) => Frame::Pong(bytes),
                Ok(Message::Close(frame)) => frame.map_or(Frame::Close(1005, String::new()), |frame| {
                    Frame::Close(frame.code.into(), frame.reason.as_str().to_owned())
                }),
                Ok(Message::Frame(_)) => continue,
                Err(tungstenite::Error::Capacity(_)) => Frame::Close(1009, "a message is too long".to_owned()),
                Err(error) => Frame::Close(1006, error.to_string().chars().take(100).collect()),
            };
            let last = matches!(frame, Frame::Close(..));
            if incoming.send(frame).await.is_err() || last {
                return;
            }
        }
    };
    tokio::pin!(writing, reading);
    tokio::select! {
        () = &mut reading => {}
        () = &mut writing => {
            // The goodbye is said: what the other side still says is of no use, but it may answer.
            let _ = tokio::time::timeout(GOODBYE, reading).await;
        }
    }
}

fn message(frame: Frame) -> Message {
    match frame {
        Frame::Text(text) => Message::text(text),
        Frame::Binary(bytes) => Message::Binary(bytes),
        Frame::Ping(bytes) => Message::Ping(bytes),
        Frame::Pong(bytes) => Message::Pong(bytes),
        Frame::Close(code, reason) => {
            Message::Close(Some(CloseFrame { code: CloseCode::from(code), reason: reason.into() }))
        }
    }
}
