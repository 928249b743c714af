//! The way of serenity's gateway socket: serenity connects to this relay on loopback, and the relay to Discord, through the
//! channel's proxy and with rustls 0.23. dependencies.md §9.
//!
//! serenity keeps the session (identify, heartbeats, resume, reconnect). What happens in Discord is read here, from the
//! frames as they come and in their order: serenity spawns a task for each event, and reads events so strictly that one
//! unknown field's type would cost the event. It sees each event's number only. A number reaches it after the event was
//! handed over, so that a session is never resumed behind an event that was lost.

use std::{sync::Arc, time::Duration};

use channel_api::{Clock, Frame, Link, Pulse, Secret, Socket};
use channel_socket::Network;
use futures_util::{Sink, SinkExt, Stream, StreamExt};
use http::HeaderMap;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{
        Error as WsError, Message,
        handshake::server::{ErrorResponse, Request, Response},
        protocol::{CloseFrame, frame::coding::CloseCode},
    },
};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use url::Url;

use crate::{
    interaction::{self, Ack},
    places::Places,
    target::id,
};

/// The longest message of the gateway: large servers are described in one.
const MESSAGE_BYTES: usize = 64 * 1024 * 1024;
/// How long serenity may take to open its side.
const HANDSHAKE: Duration = Duration::from_secs(3);
/// How long serenity may take to say that it resumes, before the relay takes it for a new session.
const RESUMES: Duration = Duration::from_millis(500);
/// The most frames of serenity that wait for a connection.
const PENDING: usize = 16;
/// How long the goodbye to Discord may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// The pauses before the next connection while none has lasted; the last one repeats.
const PAUSES: [u64; 7] = [0, 0, 1, 2, 5, 10, 30];
/// A connection that lasted so long begins the pauses anew.
const LASTED: Duration = Duration::from_secs(60);

/// What the relay tells the inbox, in the order of the gateway.
#[derive(Debug)]
pub enum Told {
    /// An event: its name and its data; for an interaction, what tells whether it was acknowledged.
    Event(String, Value, Option<tokio::sync::oneshot::Receiver<bool>>),
    /// Discord ended the connection for a reason that only a change outside cures.
    Fatal(u16, String),
}

/// One relay, for one bot.
pub struct Relay {
    /// The way out.
    pub network: Network,
    /// The bot's token: serenity does not know it.
    pub token: Secret,
    /// Where the gateway is.
    pub base: Url,
    /// Takes events.
    pub told: mpsc::Sender<Told>,
    /// Takes interactions at once: they are acknowledged within 3 s, whatever waits in `told`.
    pub acks: mpsc::Sender<Ack>,
    /// Learns the channels.
    pub places: Arc<Places>,
    /// The bot's id.
    pub me: Option<String>,
    /// The time.
    pub clock: Arc<dyn Clock>,
    /// Signs of life.
    pub pulse: Pulse,
    /// Ends it.
    pub stop: CancellationToken,
}

/// The listening side: bound to loopback, guarded by a path that nobody can guess.
pub struct Door {
    listener: TcpListener,
    path: String,
}

#[allow(clippy::result_large_err, reason = "the signature of a refusal is tungstenite's")]
impl Door {
    /// Opens a port of loopback.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn open() -> std::io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let mut secret = [0_u8; 24];
        getrandom::fill(&mut secret).map_err(|error| std::io::Error::other(error.to_string()))?;
        let path = secret.iter().fold(String::from("/"), |path, byte| format!("{path}{byte:02x}"));
        Ok(Self { listener, path })
    }

    /// Where serenity connects to.
    ///
    /// # Errors
    /// Those of the system.
    pub fn url(&self) -> std::io::Result<String> {
        Ok(format!("ws://{}{}", self.listener.local_addr()?, self.path))
    }

    /// The next connection that knows the path.
    pub async fn next(&self) -> WebSocketStream<TcpStream> {
        loop {
            let Ok((stream, _)) = self.listener.accept().await else {
                tokio::task::yield_now().await;
                continue;
            };
            let _ = stream.set_nodelay(true);
            let opened = tokio_tungstenite::accept_hdr_async(stream, |request: &Request, response| {
                self.admits(request.uri().path(), response)
            });
            match tokio::time::timeout(HANDSHAKE, opened).await {
                Ok(Ok(socket)) => return socket,
                Ok(Err(error)) => debug!(%error, "somebody else knocked at the relay of the Discord gateway"),
                Err(_) => debug!("somebody opened the relay of the Discord gateway and said nothing"),
            }
        }
    }

    fn admits(&self, path: &str, response: Response) -> Result<Response, ErrorResponse> {
        // Compared whole: the time tells nothing about where it differs.
        let differs = path.len() != self.path.len()
            || path.bytes().zip(self.path.bytes()).fold(0, |sum, (a, b)| sum | (a ^ b)) != 0;
        if differs {
            let mut refusal = ErrorResponse::new(None);
            *refusal.status_mut() = http::StatusCode::NOT_FOUND;
            return Err(refusal);
        }
        Ok(response)
    }
}

/// How one connection ended.
enum End {
    /// serenity will come again.
    Over,
    /// Nothing can cure it.
    Fatal(u16, String),
}

impl Relay {
    /// Carries one connection after the other until it is stopped, or Discord wants no more. A newer connection of serenity
    /// takes the place of the one before.
    pub async fn serve(self, door: &Door) {
        let mut carrier = Carrier { relay: &self, resume: None, tries: 0 };
        // Kept over the turns: serenity comes again before its last connection is put away, and if it were let down in the
        // middle of its handshake it would give up the session.
        let mut coming = Box::pin(door.next());
        let mut next = None;
        loop {
            let socket = match next.take() {
                Some(socket) => socket,
                None => tokio::select! {
                    () = self.stop.cancelled() => return,
                    socket = &mut coming => {
                        coming = Box::pin(door.next());
                        socket
                    }
                },
            };
            let end = tokio::select! {
                biased;
                end = carrier.carry(socket) => end,
                newer = &mut coming => {
                    coming = Box::pin(door.next());
                    next = Some(newer);
                    End::Over
                }
            };
            if let End::Fatal(code, why) = end {
                tokio::select! {
                    _ = self.told.send(Told::Fatal(code, why)) => {}
                    () = self.stop.cancelled() => {}
                }
                return;
            }
            if self.stop.is_cancelled() {
                return;
            }
        }
    }
}

/// What is kept from one connection to the next.
struct Carrier<'a> {
    relay: &'a Relay,
    /// Where the session that serenity has is resumed.
    resume: Option<Url>,
    /// Connections since one lasted.
    tries: usize,
}

impl Carrier<'_> {
    async fn carry(&mut self, client: WebSocketStream<TcpStream>) -> End {
        let relay = self.relay;
        let (mut down, mut up) = client.split();
        // While the inbox is full nothing is asked for: Discord keeps what comes, and the session is resumed.
        tokio::select! {
            room = relay.told.reserve() => if room.is_err() { return End::Over },
            () = relay.stop.cancelled() => return End::Over,
        }
        let mut pending = Vec::new();
        let mut resuming = false;
        if self.resume.is_some()
            && let Ok(Some(Ok(Message::Text(text)))) = tokio::time::timeout(RESUMES, up.next()).await
        {
            let frame = self.spoken(text.as_str());
            resuming = frame.1 == Some(6);
            pending.push(frame.0);
        }
        let (socket, pump) = {
            let dialled = self.dial(resuming);
            tokio::pin!(dialled);
            loop {
                tokio::select! {
                    biased;
                    dialled = &mut dialled => match dialled {
                        Some(opened) => break opened,
                        None => return End::Over,
                    },
                    frame = up.next() => match frame {
                        Some(Ok(Message::Text(text))) if pending.len() < PENDING => {
                            pending.push(spoken(&relay.token, text.as_str()).0);
                        }
                        Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                        // serenity gave up, and comes again.
                        _ => return End::Over,
                    },
                }
            }
        };
        let since = relay.clock.monotonic();
        let end = {
            let work = self.pass_on(socket, pending, &mut down, &mut up);
            tokio::pin!(work);
            let pump = async {
                pump.await;
                std::future::pending::<()>().await;
            };
            tokio::select! {
                end = &mut work => end,
                () = pump => End::Over,
            }
        };
        if relay.clock.monotonic().saturating_sub(since) >= LASTED {
            self.tries = 0;
        }
        let _ = tokio::time::timeout(GOODBYE, down.close()).await;
        end
    }

    /// Connects to Discord, again and again; `None` when it was stopped.
    async fn dial(&mut self, resuming: bool) -> Option<(Socket, channel_socket::Pump)> {
        let relay = self.relay;
        loop {
            let pause = Duration::from_secs(PAUSES[self.tries.min(PAUSES.len() - 1)]);
            self.tries += 1;
            if !pause.is_zero() {
                tokio::select! {
                    () = relay.clock.sleep(pause) => {}
                    () = relay.stop.cancelled() => return None,
                }
            }
            // An address that cannot be reached twice is left.
            let url = self.resume.as_ref().filter(|_| resuming && self.tries < 4).unwrap_or(&relay.base);
            let (url, headers) = (with_version(url), HeaderMap::new());
            let opened = tokio::select! {
                opened = relay.network.websocket(&url, &headers, MESSAGE_BYTES) => opened,
                () = relay.stop.cancelled() => return None,
            };
            match opened {
                Ok(opened) => return Some(opened),
                Err(error) => {
                    debug!(%error, "the Discord gateway was not reached");
                    relay.pulse.link(Link::Down(format!("the gateway was not reached: {error}")));
                }
            }
        }
    }

    /// Both directions of an open connection.
    async fn pass_on(
        &mut self,
        mut socket: Socket,
        pending: Vec<String>,
        down: &mut (impl Sink<Message> + Unpin),
        up: &mut (impl Stream<Item = Result<Message, WsError>> + Unpin),
    ) -> End {
        let relay = self.relay;
        for text in pending {
            if socket.outgoing.send(Frame::Text(text)).await.is_err() {
                break;
            }
        }
        loop {
            tokio::select! {
                frame = socket.incoming.recv() => match frame {
                    Some(Frame::Text(text)) => {
                        relay.pulse.beat();
                        let forward = match self.heard(&text) {
                            Heard::Forward(text) => text,
                            Heard::Nothing => continue,
                            Heard::Full => {
                                warn!("more comes from Discord than can be stored: the connection is closed and resumed");
                                goodbye(&mut socket, 4000).await;
                                return self.close(down, 4000).await;
                            }
                            Heard::Gone => {
                                goodbye(&mut socket, 1000).await;
                                return End::Over;
                            }
                        };
                        if down.send(Message::text(forward)).await.is_err() {
                            goodbye(&mut socket, 4000).await;
                            return End::Over;
                        }
                    }
                    Some(Frame::Close(code, why)) => {
                        info!(code, "the Discord gateway closed the connection");
                        relay.pulse.link(Link::Down(format!("the gateway closed the connection ({code})")));
                        if is_fatal(code) {
                            return End::Fatal(code, why);
                        }
                        return self.close(down, code).await;
                    }
                    // Compression was not asked for.
                    Some(Frame::Binary(_) | Frame::Ping(_) | Frame::Pong(_)) => relay.pulse.beat(),
                    None => {
                        relay.pulse.link(Link::Down("the connection broke".to_owned()));
                        return self.close(down, 4000).await;
                    }
                },
                frame = up.next() => match frame {
                    Some(Ok(Message::Text(text))) => {
                        let (text, _) = self.spoken(text.as_str());
                        if socket.outgoing.send(Frame::Text(text)).await.is_err() {
                            return self.close(down, 4000).await;
                        }
                    }
                    Some(Ok(Message::Ping(_) | Message::Pong(_) | Message::Binary(_) | Message::Frame(_))) => {}
                    Some(Ok(Message::Close(frame))) => {
                        let code = frame.map_or(4000, |frame| u16::from(frame.code));
                        goodbye(&mut socket, code).await;
                        return End::Over;
                    }
                    Some(Err(_)) | None => {
                        // 4000 keeps the session.
                        goodbye(&mut socket, 4000).await;
                        return End::Over;
                    }
                },
                () = relay.stop.cancelled() => {
                    // 1000 ends it: the bot goes offline at once.
                    goodbye(&mut socket, 1000).await;
                    return End::Over;
                }
            }
        }
    }

    /// Tells serenity that the connection is closed, by a code that it knows to go on from.
    async fn close(&mut self, down: &mut (impl Sink<Message> + Unpin), code: u16) -> End {
        let code = if matches!(code, 4007 | 4009) { code } else { 4000 };
        if code != 4000 {
            self.resume = None;
        }
        let frame = CloseFrame { code: CloseCode::from(code), reason: "".into() };
        let _ = down.send(Message::Close(Some(frame))).await;
        End::Over
    }

    /// What serenity says, with what it does not know or should not say: see [`spoken`].
    fn spoken(&self, text: &str) -> (String, Option<u64>) {
        spoken(&self.relay.token, text)
    }

    /// What Discord says: events go to the inbox, serenity gets what keeps its session.
    fn heard(&mut self, text: &str) -> Heard {
        let relay = self.relay;
        let Some(mut frame) = channel_api::json::parse(text) else {
            debug!("a frame of the Discord gateway is no JSON");
            return Heard::Nothing;
        };
        match frame.get("op").and_then(Value::as_u64) {
            Some(0) => {}
            Some(9) => {
                if frame.get("d").and_then(Value::as_bool) != Some(true) {
                    self.resume = None;
                }
                relay.pulse.link(Link::Down("Discord wants a new session".to_owned()));
                return Heard::Forward(text.to_owned());
            }
            Some(1 | 7 | 10 | 11) => return Heard::Forward(text.to_owned()),
            _ => return Heard::Nothing,
        }
        let Some(number) = frame.get("s").and_then(Value::as_u64) else { return Heard::Nothing };
        let name = frame.get("t").and_then(Value::as_str).unwrap_or_default().to_owned();
        let data = frame.get_mut("d").map(Value::take).unwrap_or_default();
        let slim = |name: &str, data: Value| json!({"op": 0, "s": number, "t": name, "d": data}).to_string();
        let seen = match name.as_str() {
            "READY" => {
                self.resume = data
                    .get("resume_gateway_url")
                    .and_then(Value::as_str)
                    .and_then(|url| Url::parse(url).ok())
                    .filter(|url| url.scheme() == relay.base.scheme() && url.host().is_some());
                relay.pulse.link(Link::Up);
                slim("READY", ready(&data, relay.me.as_deref()))
            }
            "RESUMED" => {
                relay.pulse.link(Link::Up);
                slim("RESUMED", json!({}))
            }
            name if relay.places.learn(name, &data, relay.me.as_deref()) => {
                return Heard::Forward(slim("SEEN", json!({})));
            }
            "MESSAGE_CREATE" | "MESSAGE_UPDATE" | "MESSAGE_DELETE" | "MESSAGE_DELETE_BULK" | "INTERACTION_CREATE" => {
                slim("SEEN", json!({}))
            }
            _ => return Heard::Forward(slim("SEEN", json!({}))),
        };
        let place = match relay.told.try_reserve() {
            Ok(place) => place,
            Err(mpsc::error::TrySendError::Full(())) => return Heard::Full,
            Err(mpsc::error::TrySendError::Closed(())) => return Heard::Gone,
        };
        let acknowledged = match name.as_str() {
            "INTERACTION_CREATE" => interaction::ack(&data).map(|(ack, acknowledged)| {
                // Where nobody takes it, its sender is dropped: not acknowledged.
                let _ = relay.acks.try_send(ack);
                acknowledged
            }),
            _ => None,
        };
        place.send(Told::Event(name, data, acknowledged));
        Heard::Forward(seen)
    }
}

/// Says goodbye to Discord, and waits a little for its answer.
async fn goodbye(socket: &mut Socket, code: u16) {
    let _ = socket.outgoing.send(Frame::Close(code, String::new())).await;
    let _ = tokio::time::timeout(GOODBYE, async { while socket.incoming.recv().await.is_some() {} }).await;
}

enum Heard {
    Forward(String),
    Nothing,
    /// The inbox has no room: nothing of it was taken.
    Full,
    /// Nobody listens any more.
    Gone,
}

/// A frame of serenity as it goes to Discord, and its opcode: the token comes in, compression is not asked for.
fn spoken(token: &Secret, text: &str) -> (String, Option<u64>) {
    let Ok(mut frame) = serde_json::from_str::<Value>(text) else { return (text.to_owned(), None) };
    let op = frame.get("op").and_then(Value::as_u64);
    if let (Some(2 | 6), Some(data)) = (op, frame.get_mut("d").and_then(Value::as_object_mut)) {
        data.insert("token".to_owned(), token.expose().into());
        if op == Some(2) {
            data.insert("compress".to_owned(), false.into());
            let properties = json!({"os": std::env::consts::OS, "browser": "crawfish", "device": "crawfish"});
            data.insert("properties".to_owned(), properties);
        }
        return (frame.to_string(), op);
    }
    (text.to_owned(), op)
}

/// READY with what serenity needs of it: a new shape of anything else cannot keep a bot offline.
fn ready(data: &Value, me: Option<&str>) -> Value {
    let user = data.get("user").unwrap_or(&Value::Null);
    let user_id = id(user, "id").or_else(|| me.map(str::to_owned)).unwrap_or_else(|| "1".to_owned());
    let app = data.get("application").and_then(|app| id(app, "id")).unwrap_or_else(|| user_id.clone());
    json!({
        "v": 10,
        "user": {"id": user_id, "username": "bot", "discriminator": "0", "avatar": null, "bot": true},
        "guilds": [],
        "session_id": data.get("session_id").and_then(Value::as_str).unwrap_or_default(),
        "resume_gateway_url": "",
        "shard": [0, 1],
        "application": {"id": app, "flags": 0},
    })
}

/// Close codes after which a new try ends the same way.
fn is_fatal(code: u16) -> bool {
    matches!(code, 4004 | 4010..=4014)
}

/// The address with what every connection asks for: version and format.
fn with_version(url: &Url) -> Url {
    let mut url = url.clone();
    if url.path().is_empty() {
        url.set_path("/");
    }
    url.set_query(Some("v=10&encoding=json"));
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serenity_reads_the_ready_that_is_left() {
        let raw = json!({
            "v": 10, "session_id": "abc", "resume_gateway_url": "wss://x.discord.gg",
            "user": {"id": "42", "username": "b", "brand_new_field": {"a": []}, "avatar": 7},
            "guilds": [{"id": "1", "unavailable": true}], "application": {"id": "42", "flags": "new"},
        });
        let frame = json!({"op": 0, "s": 1, "t": "READY", "d": ready(&raw, None)});
        let event: serenity::model::event::GatewayEvent = serde_json::from_value(frame).expect("serenity reads it");
        let serenity::model::event::GatewayEvent::Dispatch(1, serenity::model::event::Event::Ready(ready)) = event
        else {
            panic!("{event:?}")
        };
        assert_eq!((ready.ready.session_id.as_str(), ready.ready.user.id.get()), ("abc", 42));
        for (name, data) in [("RESUMED", json!({})), ("SEEN", json!({}))] {
            let frame = json!({"op": 0, "s": 7, "t": name, "d": data});
            let event: serenity::model::event::GatewayEvent = serde_json::from_value(frame).expect("serenity reads it");
            assert!(matches!(event, serenity::model::event::GatewayEvent::Dispatch(7, _)), "{event:?}");
        }
    }

    #[test]
    fn the_token_comes_in_and_compression_goes_out() {
        let token = Secret::from("real.token.here");
        let (text, op) = spoken(&token, r#"{"op":2,"d":{"token":"x","compress":true,"intents":513}}"#);
        let frame: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(
            (op, &frame["d"]["token"], &frame["d"]["compress"]),
            (Some(2), &json!("real.token.here"), &json!(false))
        );
        assert_eq!(frame["d"]["intents"], 513);
        let (text, op) = spoken(&token, r#"{"op":6,"d":{"token":"x","session_id":"s","seq":5}}"#);
        assert!(op == Some(6) && text.contains("real.token.here"));
        assert_eq!(spoken(&token, r#"{"op":1,"d":5}"#), (r#"{"op":1,"d":5}"#.to_owned(), Some(1)));
    }

    #[test]
    fn the_address_has_one_version() {
        let url = |text| Url::parse(text).expect("a URL");
        let expected = "wss://gateway-us-east1-b.discord.gg/?v=10&encoding=json";
        assert_eq!(with_version(&url("wss://gateway-us-east1-b.discord.gg")).as_str(), expected);
        assert_eq!(with_version(&url("wss://gateway-us-east1-b.discord.gg/?v=6&compress=zlib")).as_str(), expected);
    }
}
