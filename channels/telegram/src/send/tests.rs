//! Every answer of the Bot API to `sendMessage`, given by a server on this machine.

use std::sync::{Arc, Mutex, PoisonError};

use axum::{Router, extract::State, http::StatusCode, response::IntoResponse};
use channel_api::{ChannelId, PartId, Reply, contract::SendClass};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::*;
use crate::config::Config;

/// A server that answers as its script says, then that all is well, and keeps what it was asked.
#[derive(Clone, Default)]
struct Server {
    script: Arc<Mutex<Vec<(u16, String)>>>,
    asked: Arc<Mutex<Vec<(String, Value)>>>,
}

async fn answer(State(server): State<Server>, uri: axum::http::Uri, body: String) -> impl IntoResponse {
    let method = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
    let asked = serde_json::from_str(&body).expect("JSON");
    server.asked.lock().unwrap_or_else(PoisonError::into_inner).push((method, asked));
    let mut script = server.script.lock().unwrap_or_else(PoisonError::into_inner);
    if script.is_empty() {
        return (StatusCode::OK, json!({ "ok": true, "result": { "message_id": 77 } }).to_string());
    }
    let (status, body) = script.remove(0);
    (StatusCode::from_u16(status).expect("a status"), body)
}

struct Bot {
    server: Server,
    api: Api,
    moves: Moves,
    _tasks: JoinSet<()>,
}

impl Bot {
    async fn answering(script: &[(u16, &str)]) -> Self {
        let server = Server::default();
        let script = script.iter().map(|(status, body)| (*status, (*body).to_owned())).collect();
        *server.script.lock().unwrap_or_else(PoisonError::into_inner) = script;
        let app = Router::new().fallback(answer).with_state(server.clone());
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, app).await.expect("serves") });
        Self { server, api: api(&url), moves: Moves::default(), _tasks: tasks }
    }

    async fn send(&self, target: &Target, part: &Part) -> Result<Receipt, SendError> {
        self.send_as(target, part, &key()).await
    }

    async fn send_as(&self, target: &Target, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        send(&way(&self.api, &self.moves), &target.address(&ChannelId::new("telegram", "main")), part, key).await
    }

    fn asked(&self) -> Vec<Value> {
        let asked = self.server.asked.lock().unwrap_or_else(PoisonError::into_inner);
        asked.iter().map(|(_, asked)| asked.clone()).collect()
    }
}

fn api(url: &str) -> Api {
    let token = "123456789:AAF0_ak-8s7dHqXyZ1234567890abcdefgh";
    let config: Config = toml::from_str(&format!("token = '{token}'\napi_url = '{url}'")).expect("a config");
    Api::new(&config, &channel_socket::Network::new(None, None).expect("a network")).expect("a client")
}

fn way<'a>(api: &'a Api, moves: &'a Moves) -> Way<'a> {
    Way { api, moves, media: None }
}

fn key() -> SendKey {
    SendKey {
        part: PartId::generate(),
        seq: 1,
        last: true,
        in_reply_to: None,
        created_at: 0,
        resend: false,
        replaces: None,
    }
}

fn part(text: &str, level: Level) -> Part {
    render::render(&Reply::message(text), level).remove(0)
}

fn refusal(code: u16, description: &str) -> String {
    json!({ "ok": false, "error_code": code, "description": description }).to_string()
}

const PRIVATE: Target = Target { chat: 5, thread: None, reply: None };
const GROUP: Target = Target { chat: -100, thread: Some(9), reply: Some(33) };

/// Row 15: no link preview, on any text.
fn off() -> Value {
    json!({ "is_disabled": true })
}

#[tokio::test]
async fn a_part_is_one_call_and_its_receipt_names_the_message() {
    let bot = Bot::answering(&[]).await;
    let receipt = bot.send(&PRIVATE, &part("**好** & <b>", Level::Rich)).await.expect("sent");
    assert_eq!(receipt.platform_id.as_deref(), Some("5:77"));
    let receipt = bot.send(&GROUP, &part("**好** & <b>", Level::Plain)).await.expect("sent");
    assert_eq!(receipt.platform_id.as_deref(), Some("-100:77"));
    let second = SendKey { seq: 2, ..key() };
    bot.send_as(&GROUP, &part("more", Level::Plain), &second).await.expect("sent");
    let reply = json!({ "message_id": 33, "allow_sending_without_reply": true });
    assert_eq!(
        bot.asked(),
        [
            json!({ "link_preview_options": off(), "chat_id": 5, "text": "<b>好</b> &amp; &lt;b&gt;", "parse_mode": "HTML" }),
            json!({ "link_preview_options": off(), "chat_id": -100, "text": "好 & <b>", "message_thread_id": 9, "reply_parameters": reply }),
            json!({ "link_preview_options": off(), "chat_id": -100, "text": "more", "message_thread_id": 9 }),
        ]
    );
}

#[tokio::test]
async fn the_topic_general_is_not_named_and_a_quote_goes_before_the_message_that_is_answered() {
    let bot = Bot::answering(&[]).await;
    let general = Target { thread: Some(1), ..GROUP };
    for quote in ["44", "-100:45", "-7:46", "none"] {
        let reply = Reply { quote: Some(quote.to_owned()), ..Reply::message("hi") };
        bot.send(&general, &render::render(&reply, Level::Plain)[0]).await.expect("sent");
    }
    let asked = bot.asked();
    assert!(asked.iter().all(|asked| asked.get("message_thread_id").is_none()), "{asked:?}");
    let replies: Vec<_> = asked.iter().map(|asked| asked["reply_parameters"]["message_id"].clone()).collect();
    assert_eq!(replies, [44, 45, 33, 33]);
}

#[tokio::test]
async fn a_second_try_is_marked() {
    let bot = Bot::answering(&[]).await;
    let again = SendKey { resend: true, ..key() };
    bot.send_as(&PRIVATE, &part("**hi** there", Level::Rich), &again).await.expect("sent");
    bot.send_as(&PRIVATE, &part("你好", Level::Plain), &again).await.expect("sent");
    bot.send_as(&PRIVATE, &part(&"x".repeat(TEXT_LIMIT - 2), Level::Plain), &again).await.expect("sent");
    let texts: Vec<String> =
        bot.asked().iter().map(|asked| asked["text"].as_str().expect("a text").to_owned()).collect();
    assert_eq!(texts[0], "↻ (this message may have arrived once before)\n<b>hi</b> there");
    assert_eq!(texts[1], "↻（这条消息可能已经发过一次）\n你好");
    assert_eq!(texts[2].encode_utf16().count(), TEXT_LIMIT);
    assert!(texts[2].starts_with("↻ x"), "{:?}", &texts[2][..20]);
}

#[tokio::test]
async fn what_telegram_answers_decides_what_delivery_does_next() {
    let too_many = json!({
        "ok": false, "error_code": 429, "description": "Too Many Requests: retry after 7",
        "parameters": { "retry_after": 7 },
    });
    let table = [
        (429, too_many.to_string(), SendClass::RetryAfter(Duration::from_secs(7))),
        (
            400,
            refusal(400, "Bad Request: can't parse entities: Unsupported start tag \"x\" at byte offset 0"),
            SendClass::Rerender(Level::Plain),
        ),
        (400, refusal(400, "Bad Request: message is too long"), SendClass::Rerender(Level::Plain)),
        (400, refusal(400, "Bad Request: message text is empty"), SendClass::Refused),
        (400, refusal(400, "Bad Request: chat not found"), SendClass::Refused),
        (400, refusal(400, "Bad Request: not enough rights to send text messages to the chat"), SendClass::Refused),
        (400, refusal(400, "Bad Request: TOPIC_CLOSED"), SendClass::Refused),
        (400, refusal(400, "Bad Request: something new"), SendClass::Refused),
        (403, refusal(403, "Forbidden: bot was blocked by the user"), SendClass::Refused),
        (403, refusal(403, "Forbidden: bot was kicked from the supergroup chat"), SendClass::Refused),
        (401, refusal(401, "Unauthorized"), SendClass::ChannelDown),
        (404, refusal(404, "Not Found"), SendClass::ChannelDown),
        (404, refusal(404, "Not Found: method not found"), SendClass::ChannelDown),
        (409, refusal(409, "Conflict: terminated by other getUpdates request"), SendClass::Retry),
        (500, refusal(500, "Internal Server Error"), SendClass::Unknown),
        (502, "<html>Bad Gateway</html>".to_owned(), SendClass::Unknown),
        (200, "<html>login</html>".to_owned(), SendClass::Unknown),
        (200, json!({ "ok": true, "result": true }).to_string(), SendClass::Sent),
    ];
    for (status, body, expected) in table {
        let bot = Bot::answering(&[(status, &body)]).await;
        let result = bot.send(&PRIVATE, &part("**hi**", Level::Rich)).await;
        assert_eq!(SendClass::of(&result), expected, "{status} {body}: {result:?}");
        assert_eq!(bot.asked().len(), 1, "{body}");
    }
}

#[tokio::test]
async fn plain_text_that_is_refused_is_not_rendered_again() {
    for said in ["Bad Request: can't parse entities", "Bad Request: message is too long"] {
        let bot = Bot::answering(&[(400, &refusal(400, said))]).await;
        let result = bot.send(&PRIVATE, &part("hi", Level::Plain)).await;
        assert_eq!(SendClass::of(&result), SendClass::Refused, "{said}");
    }
}

#[tokio::test]
async fn the_reasons_are_plain_words() {
    let bot = Bot::answering(&[(403, &refusal(403, "Forbidden: bot was blocked by the user"))]).await;
    let Err(error) = bot.send(&PRIVATE, &part("hi", Level::Rich)).await else { panic!("sent") };
    assert_eq!(error.to_string(), "refused: the person has blocked the bot");
}

#[tokio::test]
async fn what_was_refused_is_left_out_and_the_message_still_sent() {
    let reply = refusal(400, "Bad Request: message to be replied not found");
    let topic = refusal(400, "Bad Request: message thread not found");
    let bot = Bot::answering(&[(400, &reply), (400, &topic)]).await;
    let receipt = bot.send(&GROUP, &part("hi", Level::Plain)).await.expect("sent");
    assert_eq!(receipt.platform_id.as_deref(), Some("-100:77"));
    let asked = bot.asked();
    assert_eq!(asked.len(), 3);
    assert_eq!(
        asked[1],
        json!({ "link_preview_options": off(), "chat_id": -100, "text": "hi", "message_thread_id": 9 })
    );
    assert_eq!(asked[2], json!({ "link_preview_options": off(), "chat_id": -100, "text": "hi" }));
    // Whoever names neither cannot leave them out.
    let bot = Bot::answering(&[(400, &reply)]).await;
    let result = bot.send(&PRIVATE, &part("hi", Level::Plain)).await;
    assert_eq!(SendClass::of(&result), SendClass::Refused);
    assert_eq!(bot.asked().len(), 1);
}

#[tokio::test]
async fn a_group_that_moved_is_followed_at_once_and_ever_after() {
    let moved = json!({
        "ok": false, "error_code": 400,
        "description": "Bad Request: group chat was upgraded to a supergroup chat",
        "parameters": { "migrate_to_chat_id": -1_002 },
    });
    let bot = Bot::answering(&[(400, &moved.to_string())]).await;
    let target = Target { chat: -2, thread: None, reply: Some(4) };
    let receipt = bot.send(&target, &part("one", Level::Plain)).await.expect("sent");
    assert_eq!(receipt.platform_id.as_deref(), Some("-1002:77"));
    bot.send(&target, &part("two", Level::Plain)).await.expect("sent");
    let asked = bot.asked();
    assert_eq!(asked.iter().map(|asked| asked["chat_id"].clone()).collect::<Vec<_>>(), [-2, -1_002, -1_002]);
    assert_eq!(asked[2], json!({ "link_preview_options": off(), "chat_id": -1_002, "text": "two" }));
}

#[tokio::test]
async fn a_server_that_moves_a_group_without_end_is_not_followed() {
    let moved =
        |id: i64| json!({ "ok": false, "error_code": 400, "parameters": { "migrate_to_chat_id": id } }).to_string();
    let script: Vec<(u16, String)> = (3..20).map(|n| (400, moved(-n))).collect();
    let script: Vec<(u16, &str)> = script.iter().map(|(status, body)| (*status, body.as_str())).collect();
    let bot = Bot::answering(&script).await;
    let target = Target { chat: -2, thread: None, reply: None };
    let result = bot.send(&target, &part("one", Level::Plain)).await;
    assert_eq!(SendClass::of(&result), SendClass::Refused);
    assert_eq!(bot.asked().len(), MOST_CALLS);
}

#[tokio::test]
async fn a_connection_that_was_refused_is_tried_again_and_one_that_was_cut_is_not() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let api = api(&format!("http://{}", listener.local_addr().expect("bound")));
    let moves = Moves::default();
    let to = PRIVATE.address(&ChannelId::new("telegram", "main"));
    let (part, key) = (part("hi", Level::Rich), key());
    let cut = async {
        let (mut socket, _) = listener.accept().await.expect("a call");
        let mut some = [0_u8; 64];
        tokio::io::AsyncReadExt::read(&mut socket, &mut some).await.expect("a request");
    };
    let way = way(&api, &moves);
    let (result, ()) = tokio::join!(send(&way, &to, &part, &key), cut);
    assert_eq!(SendClass::of(&result), SendClass::Unknown);
    drop(listener);
    let result = send(&way, &to, &part, &key).await;
    assert_eq!(SendClass::of(&result), SendClass::Retry);
}

#[tokio::test]
async fn typing_names_the_topic_general_too() {
    let bot = Bot::answering(&[]).await;
    let to = Target { thread: Some(1), ..GROUP }.address(&ChannelId::new("telegram", "main"));
    typing(&bot.api, &bot.moves, &to).await;
    assert_eq!(bot.asked(), [json!({ "chat_id": -100, "action": "typing", "message_thread_id": 1 })]);
}

#[test]
fn groups_are_slower_than_people_and_no_limit_is_none() {
    assert_eq!(lane_rate(Limits::On, "5").expect("a rate").every, Duration::from_secs(1));
    let group = lane_rate(Limits::On, "-100").expect("a rate");
    let minute = group.burst + u32::try_from(60_000 / group.every.as_millis()).expect("few");
    assert!(minute <= 20, "{minute} a minute");
    assert_eq!(lane_rate(Limits::Off, "-100"), None);
    assert_eq!(capabilities(Limits::Off, Mode::Polling).per_channel, None);
}
