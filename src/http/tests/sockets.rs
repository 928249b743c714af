//! WebSockets over a real connection, spoken to by an independent client.

use futures_util::{FutureExt, SinkExt, StreamExt};
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{self, Message, client::IntoClientRequest, handshake::client::Response as Opened},
};

use super::*;

type Client = WebSocketStream<TcpStream>;

async fn opens(
    url: &str,
    path: &str,
    headers: &[(&'static str, &str)],
) -> Result<(Client, Opened), tungstenite::Error> {
    let stream = TcpStream::connect(url.trim_start_matches("http://")).await.expect("a connection");
    let mut request = format!("ws{}{path}", url.trim_start_matches("http")).into_client_request().expect("an address");
    for (name, value) in headers {
        request.headers_mut().insert(*name, value.parse().expect("a header"));
    }
    timeout(SOON, client_async(request, stream)).await.expect("an answer in time")
}

async fn open(url: &str) -> Client {
    opens(url, "/channels/echo/one", &[("authorization", "Bearer sesame")]).await.expect("it opens").0
}

async fn next(client: &mut Client) -> Message {
    timeout(SOON, client.next()).await.expect("a frame in time").expect("a frame").expect("no error")
}

async fn closed(client: &mut Client) -> (u16, String) {
    loop {
        match next(client).await {
            Message::Close(Some(close)) => return (close.code.into(), close.reason.as_str().to_owned()),
            Message::Close(None) => return (0, String::new()),
            _ => {}
        }
    }
}

async fn say(client: &mut Client, text: &str) {
    client.send(Message::text(text)).await.expect("it is sent");
}

fn status_of(refused: Result<(Client, Opened), tungstenite::Error>) -> u16 {
    match refused {
        Err(tungstenite::Error::Http(answer)) => answer.status().as_u16(),
        other => panic!("not refused: {other:?}"),
    }
}

#[tokio::test]
async fn the_adapter_says_who_may_open_a_socket_and_its_refusal_is_the_answer() {
    let gateway = gateway().await;
    for url in [&gateway.url, &gateway.channels_url] {
        assert_eq!(status_of(opens(url, "/channels/echo/one", &[]).await), 401);
        assert_eq!(status_of(opens(url, "/channels/echo/two", &[]).await), 404);
        assert_eq!(status_of(opens(url, "/channels/web/main", &[]).await), 404);
        let old = [("authorization", "Bearer sesame"), ("sec-websocket-version", "8")];
        assert_eq!(status_of(opens(url, "/channels/echo/one", &old).await), 400);
    }
    gateway.stopping.cancel();
    let late = opens(&gateway.url, "/channels/echo/one", &[("authorization", "Bearer sesame")]).await;
    assert_eq!(status_of(late), 503);
}

#[tokio::test]
async fn frames_go_both_ways_on_both_listeners() {
    let gateway = gateway().await;
    for (url, host) in [(&gateway.url, "localhost"), (&gateway.channels_url, "any.name.test")] {
        let headers = [("authorization", "Bearer sesame"), ("host", host)];
        let (mut client, opened) = opens(url, "/channels/echo/one/ws?a=%20b", &headers).await.expect("it opens");
        assert_eq!(opened.headers().get("sec-websocket-protocol"), None);
        say(&mut client, "path").await;
        assert_eq!(next(&mut client).await, Message::text("/ws?a=%20b"));
        say(&mut client, "你好").await;
        assert_eq!(next(&mut client).await, Message::text("你好"));
        client.send(Message::binary(vec![1, 2, 3])).await.expect("it is sent");
        assert_eq!(next(&mut client).await, Message::binary(vec![1, 2, 3]));
        // A ping is answered by the gateway and handed on.
        client.send(Message::Ping("abc".into())).await.expect("it is sent");
        let answers = [next(&mut client).await, next(&mut client).await];
        assert!(answers.contains(&Message::Pong("abc".into())), "{answers:?}");
        assert!(answers.contains(&Message::text("a ping of 3")), "{answers:?}");
        client.close(None).await.expect("it is sent");
        assert!(gateway.was_written().await, "the adapter learned of the end");
    }
}

#[tokio::test]
async fn a_protocol_is_chosen_for_whoever_asks_for_one() {
    let gateway = gateway().await;
    let headers = [("authorization", "Bearer sesame"), ("sec-websocket-protocol", "v12.bot, v11.bot")];
    let (_, opened) = opens(&gateway.url, "/channels/echo/one", &headers).await.expect("it opens");
    assert_eq!(opened.headers()["sec-websocket-protocol"], "v12.bot");
}

#[tokio::test]
async fn many_frames_at_once_come_back_whole_and_in_order() {
    let gateway = gateway().await;
    let (mut write, mut read) = open(&gateway.url).await.split();
    let sending = async {
        for number in 0..2000 {
            write.send(Message::text(number.to_string())).await.expect("it is sent");
        }
    };
    let receiving = async {
        for number in 0..2000 {
            let frame = read.next().await.expect("a frame").expect("no error");
            assert_eq!(frame, Message::text(number.to_string()));
        }
    };
    timeout(SOON, async { tokio::join!(sending, receiving) }).await.expect("in time");
}

#[tokio::test]
async fn a_message_above_the_limit_closes_the_socket_with_1009() {
    let gateway = gateway().await;
    let mut client = open(&gateway.url).await;
    say(&mut client, &"x".repeat(1000)).await;
    assert_eq!(next(&mut client).await, Message::text("x".repeat(1000)));
    say(&mut client, &"x".repeat(1001)).await;
    assert_eq!(closed(&mut client).await, (1009, "the message is too long".into()));
    assert!(gateway.was_written().await);
}

#[tokio::test]
async fn an_adapters_goodbye_is_sent_and_its_panic_closes_its_own_socket_only() {
    let gateway = gateway().await;
    let (mut one, mut two, mut three) = (open(&gateway.url).await, open(&gateway.url).await, open(&gateway.url).await);
    say(&mut one, "bye").await;
    assert_eq!(closed(&mut one).await, (4001, "é".repeat(61)));
    say(&mut two, "panic").await;
    assert_eq!(closed(&mut two).await, (1011, String::new()));
    say(&mut three, "still here").await;
    assert_eq!(next(&mut three).await, Message::text("still here"));
}

#[tokio::test]
async fn sockets_stay_while_the_gateway_drains_and_are_told_when_it_ends() {
    let mut gateway = gateway().await;
    let mut client = open(&gateway.channels_url).await;
    gateway.stopping.cancel();
    say(&mut client, "draining").await;
    assert_eq!(next(&mut client).await, Message::text("draining"));
    gateway.abort.cancel();
    assert_eq!(closed(&mut client).await, (1001, String::new()));
    timeout(SOON, gateway.tasks.join_next()).await.expect("the HTTP side ends").expect("it ran").expect("no panic");
}

#[tokio::test]
async fn a_quiet_socket_lives_and_a_dead_one_does_not() {
    let limits = Limits {
        head: Duration::from_millis(20),
        body: Duration::from_millis(20),
        write: Duration::from_millis(20),
        keep_alive: Duration::from_millis(10),
        ..Limits::default()
    };
    let gateway = start(ServerConfig::default(), limits).await;
    let mut quiet = open(&gateway.url).await;
    // Says nothing itself, and its library answers the gateway's pings.
    for _ in 0..10 {
        assert_eq!(next(&mut quiet).await, Message::Ping(Default::default()));
    }
    say(&mut quiet, "here").await;
    while next(&mut quiet).await != Message::text("here") {}
    drop(quiet);
    assert!(gateway.was_written().await, "the adapter learned of the end");
    // Open, and never read from again.
    let mut dead = open(&gateway.url).await;
    assert!(gateway.was_written().await, "the adapter learned of the end");
    let end = async { while dead.next().await.is_some_and(|frame| frame.is_ok()) {} };
    timeout(SOON, end).await.expect("the connection is ended");
}

#[tokio::test]
async fn an_open_socket_keeps_its_place_among_the_connections() {
    let limits = Limits { connections: 1, ..Limits::default() };
    let gateway = start(ServerConfig::default(), limits).await;
    let mut client = open(&gateway.url).await;
    let mut other = Box::pin(sent(gateway.get("/healthz")));
    for number in 0..50 {
        assert!((&mut other).now_or_never().is_none(), "one place, and it is taken");
        say(&mut client, &number.to_string()).await;
        assert_eq!(next(&mut client).await, Message::text(number.to_string()));
    }
    client.close(None).await.expect("it is sent");
    assert_eq!(timeout(SOON, other).await.expect("its turn comes").status(), 200);
}
