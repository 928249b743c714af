//! One event of the gateway or the webhook as an [`Inbound`]. Pure, never fails: what it does not know costs that piece,
//! never the event.

use base64::Engine as _;
use channel_api::{
    AttachmentKind, ChannelId, Conversation, ConversationKind, Inbound, InboundKind, ReplyTo, Sender, Trust,
};
use serde_json::Value;

use crate::target::{Place, Target};

/// The longest text that is taken, in characters.
const TEXT_CHARS: usize = 16_384;
/// The longest name or title, in characters.
const NAME_CHARS: usize = 256;
/// The longest id, in bytes.
const ID_BYTES: usize = 512;
/// The most files of one event.
const FILES: usize = 10;

/// An event as it came.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Event {
    /// Its name, e.g. `C2C_MESSAGE_CREATE`.
    pub name: String,
    /// Its own id (not the message's): what an answer to a pressed button names.
    pub id: Option<String>,
    /// Its number in the session of a WebSocket.
    pub seq: Option<u64>,
    /// The rest.
    pub data: Value,
}

impl Event {
    /// The event in a payload `{op, s, t, id, d}`; `None` when it names none.
    pub fn of(payload: &Value) -> Option<Self> {
        let name = payload.get("t")?.as_str()?.to_owned();
        let id = payload.get("id").and_then(id_of);
        Some(Self { name, id, seq: payload.get("s").and_then(Value::as_u64), data: payload.get("d")?.clone() })
    }
}

/// What an event says to the bot.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// The message, its files not fetched yet.
    pub inbound: Inbound,
    /// The files.
    pub files: Vec<File>,
    /// The interaction that QQ wants confirmed once it is taken.
    pub interaction: Option<String>,
}

/// A file that came with a message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What it is.
    pub kind: AttachmentKind,
    /// Where it is, for some hours.
    pub url: Option<String>,
    /// Its name.
    pub name: Option<String>,
}

/// What an event says to the bot at `now` (epoch milliseconds); `None` when it says nothing. `me`: the bot's id in guilds.
pub fn said(channel: &ChannelId, me: Option<&str>, now: i64, event: &Event) -> Option<Said> {
    let d = &event.data;
    match event.name.as_str() {
        "C2C_MESSAGE_CREATE" => message(channel, me, now, d, Place::C2c, true),
        "GROUP_AT_MESSAGE_CREATE" => message(channel, me, now, d, Place::Group, true),
        "GROUP_MESSAGE_CREATE" => message(channel, me, now, d, Place::Group, false),
        "AT_MESSAGE_CREATE" => message(channel, me, now, d, Place::Channel, true),
        "MESSAGE_CREATE" => message(channel, me, now, d, Place::Channel, false),
        "DIRECT_MESSAGE_CREATE" => message(channel, me, now, d, Place::Dm, true),
        "INTERACTION_CREATE" => press(channel, now, event),
        "PUBLIC_MESSAGE_DELETE" | "MESSAGE_DELETE" => deleted(channel, now, d, Place::Channel),
        "DIRECT_MESSAGE_DELETE" => deleted(channel, now, d, Place::Dm),
        _ => None,
    }
}

fn message(channel: &ChannelId, me: Option<&str>, now: i64, d: &Value, place: Place, addressed: bool) -> Option<Said> {
    let id = id(d, "id")?;
    let author = d.get("author").unwrap_or(&Value::Null);
    let conversation = conversation(d, author, place)?;
    let sender = sender(author, place)?;
    if me.is_some_and(|me| me == sender.id) {
        return None;
    }
    let content = word(d, "content").unwrap_or_default();
    let (content, mentioned) = without_our_mention(content, me);
    let mut text = start(with_faces(content).trim(), TEXT_CHARS);
    let (files, heard) = files(d);
    for line in heard {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&line);
    }
    if text.is_empty() && files.is_empty() {
        return None;
    }
    let target = target(d, &conversation, place, now, Some(&id), None);
    let inbound = Inbound {
        channel: channel.clone(),
        platform_id: id,
        fingerprint: None,
        kind: InboundKind::Message,
        about: None,
        mentions_us: addressed || mentioned || mentions(d, me),
        conversation,
        sender,
        text,
        attachments: Vec::new(),
        reply_to: answered(d),
        at: at(d),
        address: target.address(channel),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    };
    Some(Said { inbound, files, interaction: None })
}

/// A pressed button.
fn press(channel: &ChannelId, now: i64, event: &Event) -> Option<Said> {
    let d = &event.data;
    let interaction = id(d, "id")?;
    let resolved = d.get("data")?.get("resolved")?;
    let text = start(word(resolved, "button_data")?.trim(), TEXT_CHARS);
    if text.is_empty() {
        return None;
    }
    let (place, who) = match d.get("chat_type").and_then(Value::as_i64) {
        Some(1) => (Place::Group, id(d, "group_member_openid")?),
        Some(2) => (Place::C2c, id(d, "user_openid")?),
        _ => (Place::Channel, id(resolved, "user_id")?),
    };
    let conversation = match place {
        Place::C2c => here(ConversationKind::Direct, who.clone()),
        Place::Group => here(ConversationKind::Group, id(d, "group_openid")?),
        Place::Channel | Place::Dm => here(ConversationKind::Group, id(d, "channel_id")?),
    };
    let target = target(d, &conversation, place, now, None, Some(event.id.as_deref().unwrap_or(&interaction)));
    let inbound = Inbound {
        channel: channel.clone(),
        platform_id: format!("interaction:{interaction}"),
        fingerprint: None,
        kind: InboundKind::Button,
        about: id(resolved, "message_id"),
        conversation,
        sender: Sender { id: who, name: None, is_bot: false },
        text,
        attachments: Vec::new(),
        mentions_us: true,
        reply_to: None,
        at: at(d),
        address: target.address(channel),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    };
    Some(Said { inbound, files: Vec::new(), interaction: Some(interaction) })
}

/// A message of a guild that was taken back; private chats and groups do not tell.
fn deleted(channel: &ChannelId, now: i64, d: &Value, place: Place) -> Option<Said> {
    let message = d.get("message")?;
    let about = id(message, "id")?;
    let author = message.get("author").unwrap_or(&Value::Null);
    let conversation = conversation(message, author, place)?;
    let by = d.get("op_user").filter(|user| user.get("id").is_some()).unwrap_or(author);
    let target = target(message, &conversation, place, now, None, None);
    let inbound = Inbound {
        channel: channel.clone(),
        platform_id: format!("deleted:{about}"),
        fingerprint: None,
        kind: InboundKind::Deleted,
        about: Some(about),
        sender: sender(by, place)?,
        conversation,
        text: String::new(),
        attachments: Vec::new(),
        mentions_us: false,
        reply_to: None,
        at: None,
        address: target.address(channel),
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    };
    Some(Said { inbound, files: Vec::new(), interaction: None })
}

fn here(kind: ConversationKind, id: String) -> Conversation {
    Conversation { kind, id, thread: None, title: None }
}

/// openids differ by bot and by group: each names a person in its own place only, and is never joined with another.
fn conversation(d: &Value, author: &Value, place: Place) -> Option<Conversation> {
    Some(match place {
        Place::C2c => here(ConversationKind::Direct, id(author, "user_openid").or_else(|| id(author, "id"))?),
        Place::Group => here(ConversationKind::Group, id(d, "group_openid").or_else(|| id(d, "group_id"))?),
        Place::Channel => here(ConversationKind::Group, id(d, "channel_id")?),
        Place::Dm => here(ConversationKind::Direct, id(author, "id")?),
    })
}

fn sender(author: &Value, place: Place) -> Option<Sender> {
    let openid = match place {
        Place::C2c => id(author, "user_openid"),
        Place::Group => id(author, "member_openid"),
        Place::Channel | Place::Dm => None,
    };
    let name = word(author, "username").map(|name| start(name, NAME_CHARS)).filter(|name| !name.trim().is_empty());
    let is_bot = author.get("bot").and_then(Value::as_bool).unwrap_or(false);
    Some(Sender { id: openid.or_else(|| id(author, "id"))?, name, is_bot })
}

fn target(
    d: &Value,
    conversation: &Conversation,
    to: Place,
    now: i64,
    msg_id: Option<&str>,
    event_id: Option<&str>,
) -> Target {
    let id = match to {
        // Such messages are posted to a guild made for the two.
        Place::Dm => id(d, "guild_id").unwrap_or_default(),
        _ => conversation.id.clone(),
    };
    Target { to, id, msg_id: msg_id.map(str::to_owned), event_id: event_id.map(str::to_owned), at: now }
}

/// Whether the list of mentions names the bot: by a flag in groups, by its id in guilds.
fn mentions(d: &Value, me: Option<&str>) -> bool {
    let list = d.get("mentions").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    list.iter().take(100).any(|one| {
        let flag = ["is_you", "is_self"].iter().any(|key| one.get(key).and_then(Value::as_bool) == Some(true));
        flag || (me.is_some() && id(one, "id").as_deref() == me)
    })
}

/// The words without the bot's own mention at their beginning, and whether they mention it anywhere.
fn without_our_mention<'a>(content: &'a str, me: Option<&str>) -> (&'a str, bool) {
    let Some(me) = me.filter(|me| !me.is_empty()) else { return (content.trim(), false) };
    let marks = [format!("<@!{me}>"), format!("<@{me}>")];
    let mentioned = marks.iter().any(|mark| content.contains(mark.as_str()));
    let mut text = content.trim();
    while let Some(rest) = marks.iter().find_map(|mark| text.strip_prefix(mark.as_str())) {
        text = rest.trim_start();
    }
    (text, mentioned)
}

/// Emoji of QQ as words: `<faceType=1,faceId="13",ext="eyJ0ZXh0Ijoi5ZGy54mZIn0=">` is `[呲牙]`.
fn with_faces(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find("<faceType=") {
        let Some(length) = rest[begin..].find('>') else { break };
        out.push_str(&rest[..begin]);
        out.push_str(
            &face(&rest[begin..begin + length]).map_or_else(|| "[emoji]".to_owned(), |name| format!("[{name}]")),
        );
        rest = &rest[begin + length + 1..];
    }
    out.push_str(rest);
    out
}

fn face(tag: &str) -> Option<String> {
    let (_, ext) = tag.split_once("ext=\"")?;
    let (ext, _) = ext.split_once('"')?;
    let decoded = base64::engine::general_purpose::STANDARD.decode(ext).ok()?;
    let name = serde_json::from_slice::<Value>(&decoded).ok()?;
    let name = start(word(&name, "text")?.trim_matches(['/', '[', ']']), 20);
    (!name.is_empty()).then_some(name)
}

/// The message that is answered: its id in guilds, its words in newer private chats.
fn answered(d: &Value) -> Option<ReplyTo> {
    let quoted = (d.get("message_type").and_then(Value::as_i64) == Some(103))
        .then(|| d.get("msg_elements")?.as_array()?.first())
        .flatten();
    let id = d.get("message_reference").and_then(|reference| id(reference, "message_id"));
    let text = quoted.and_then(|quoted| word(quoted, "content")).map(|text| start(with_faces(text).trim(), TEXT_CHARS));
    let text = text.filter(|text| !text.is_empty());
    (id.is_some() || text.is_some()).then_some(ReplyTo { id, text, sender_id: None, ours: false })
}

/// The files, and what QQ heard in voice messages.
fn files(d: &Value) -> (Vec<File>, Vec<String>) {
    let list = d.get("attachments").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let mut heard = Vec::new();
    let files = list.iter().filter(|file| file.is_object()).take(FILES).map(|file| {
        let kind = kind(file);
        // Where there is a copy that others than QQ can play, that one.
        let wav = (kind == AttachmentKind::Audio).then(|| word(file, "voice_wav_url")).flatten();
        let url = wav.filter(|url| !url.is_empty()).or_else(|| word(file, "url")).filter(|url| !url.is_empty());
        if let Some(words) = word(file, "asr_refer_text").map(str::trim).filter(|words| !words.is_empty()) {
            heard.push(format!("[voice, as QQ heard it: {}]", start(words, TEXT_CHARS / 4)));
        }
        let name = word(file, "filename").map(|name| start(name, NAME_CHARS)).filter(|name| !name.trim().is_empty());
        File { kind, url: url.map(whole), name }
    });
    (files.collect(), heard)
}

/// An address with its scheme: guilds leave it out.
fn whole(url: &str) -> String {
    match url.strip_prefix("//") {
        Some(rest) => format!("https://{rest}"),
        None if url.contains("://") => url.to_owned(),
        None => format!("https://{url}"),
    }
}

fn kind(file: &Value) -> AttachmentKind {
    let mime = word(file, "content_type").unwrap_or_default().to_ascii_lowercase();
    let name = word(file, "filename").unwrap_or_default().to_ascii_lowercase();
    if mime.starts_with("image") {
        AttachmentKind::Image
    } else if mime.starts_with("voice")
        || mime.starts_with("audio")
        || name.ends_with(".silk")
        || name.ends_with(".amr")
    {
        AttachmentKind::Audio
    } else if mime.starts_with("video") {
        AttachmentKind::Video
    } else {
        AttachmentKind::File
    }
}

fn at(d: &Value) -> Option<i64> {
    match d.get("timestamp")? {
        Value::String(text) => text.parse::<jiff::Timestamp>().ok().map(jiff::Timestamp::as_millisecond),
        number => number.as_i64().and_then(|seconds| seconds.checked_mul(1_000)),
    }
}

/// An id, written as a text or a number; never an empty or endless one.
fn id(value: &Value, key: &str) -> Option<String> {
    value.get(key).and_then(id_of)
}

fn id_of(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.trim().to_owned(),
        Value::Number(number) if number.is_i64() || number.is_u64() => number.to_string(),
        _ => return None,
    };
    (!text.is_empty() && text.len() <= ID_BYTES && !text.chars().any(char::is_control)).then_some(text)
}

fn word<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key)?.as_str()
}

fn start(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const ME: &str = "7788";

    fn read(name: &str, d: Value) -> Option<Said> {
        let payload = json!({ "op": 0, "s": 5, "t": name, "id": format!("{name}:e1"), "d": d });
        said(&ChannelId::new("qq", "main"), Some(ME), 1_000, &Event::of(&payload).expect("an event"))
    }

    fn target_of(said: &Said) -> Target {
        Target::of(&said.inbound.address).expect("ours")
    }

    #[test]
    fn a_private_message_with_a_picture() {
        let said = read(
            "C2C_MESSAGE_CREATE",
            json!({
                "id": "ROBOT1.0_YVzT", "content": " 看这个 ", "timestamp": "2025-02-15T16:32:42+08:00",
                "author": { "id": "7D29", "user_openid": "7D29", "union_openid": "7D29" },
                "attachments": [{ "url": "https://multimedia.nt.qq.com.cn/download?x=1", "filename": "B43A.jpg",
                    "width": 520, "height": 524, "size": 53851, "content_type": "image/jpeg", "content": "" }],
                "message_scene": { "source": "default" }
            }),
        )
        .expect("a message");
        let inbound = &said.inbound;
        assert_eq!((inbound.platform_id.as_str(), inbound.text.as_str()), ("ROBOT1.0_YVzT", "看这个"));
        assert_eq!((inbound.conversation.kind, inbound.conversation.id.as_str()), (ConversationKind::Direct, "7D29"));
        assert_eq!(inbound.at, Some(1_739_608_362_000));
        assert_eq!(inbound.address.lane, "c2c:7D29");
        let target = target_of(&said);
        assert_eq!((target.to, target.msg_id.as_deref(), target.at), (Place::C2c, Some("ROBOT1.0_YVzT"), 1_000));
        let url = Some("https://multimedia.nt.qq.com.cn/download?x=1".to_owned());
        assert_eq!(said.files, [File { kind: AttachmentKind::Image, url, name: Some("B43A.jpg".to_owned()) }]);
    }

    #[test]
    fn a_group_message_is_its_members_and_openids_are_not_joined() {
        let d = json!({ "id": "m1", "content": " /help 你好", "group_openid": "G1", "group_id": "G1",
            "timestamp": "2023-11-06T13:37:18+08:00", "author": { "member_openid": "M1", "id": "M1" } });
        let said = read("GROUP_AT_MESSAGE_CREATE", d.clone()).expect("a message");
        assert_eq!(said.inbound.text, "/help 你好");
        assert_eq!((said.inbound.sender.id.as_str(), said.inbound.conversation.id.as_str()), ("M1", "G1"));
        assert!(said.inbound.mentions_us);
        let mut unaddressed = d;
        assert!(!read("GROUP_MESSAGE_CREATE", unaddressed.clone()).expect("a message").inbound.mentions_us);
        unaddressed["mentions"] = json!([{ "member_openid": "B", "is_you": true }]);
        assert!(read("GROUP_MESSAGE_CREATE", unaddressed).expect("a message").inbound.mentions_us);
    }

    #[test]
    fn guild_messages_lose_our_mention_and_keep_those_of_others() {
        let d = json!({ "id": "g1", "channel_id": "C", "guild_id": "G", "content": "<@!7788> hi <@!99> there",
            "author": { "id": "42", "username": "Ada", "bot": false }, "seq": 101,
            "message_reference": { "message_id": "old" }, "timestamp": "2021-05-20T15:14:58+08:00" });
        let said = read("AT_MESSAGE_CREATE", d.clone()).expect("a message");
        assert_eq!(said.inbound.text, "hi <@!99> there");
        assert_eq!(said.inbound.sender.name.as_deref(), Some("Ada"));
        assert_eq!(said.inbound.reply_to.as_ref().and_then(|reply| reply.id.as_deref()), Some("old"));
        assert_eq!(said.inbound.address.lane, "channel:C");
        assert!(read("MESSAGE_CREATE", d.clone()).expect("a message").inbound.mentions_us, "by its id");
        let mut other = d;
        other["content"] = json!("@7788 hi");
        assert!(!read("MESSAGE_CREATE", other.clone()).expect("a message").inbound.mentions_us, "never by a name");
        other["author"]["id"] = json!(ME);
        assert_eq!(read("MESSAGE_CREATE", other), None, "our own words");
    }

    #[test]
    fn a_guild_private_message_goes_back_to_its_guild() {
        let said = read(
            "DIRECT_MESSAGE_CREATE",
            json!({ "id": "d1", "guild_id": "DMG", "channel_id": "DMC", "src_guild_id": "G", "content": "hi",
                "author": { "id": "42", "username": "Ada" }, "timestamp": "2021-05-20T15:14:58+08:00" }),
        )
        .expect("a message");
        assert_eq!(said.inbound.conversation, here(ConversationKind::Direct, "42".to_owned()));
        assert_eq!(target_of(&said).messages(), ["dms", "DMG", "messages"]);
    }

    #[test]
    fn a_press_is_said_by_whoever_presses() {
        let d = json!({ "id": "i1", "type": 11, "chat_type": 1, "scene": "group", "group_openid": "G1",
            "group_member_openid": "M2", "timestamp": "2023-11-06T13:37:18+08:00", "version": 1,
            "data": { "type": 11, "resolved": { "button_data": "/approve 7", "button_id": "1" } } });
        let said = read("INTERACTION_CREATE", d).expect("a press");
        assert_eq!((said.inbound.kind, said.inbound.text.as_str()), (InboundKind::Button, "/approve 7"));
        assert_eq!((said.inbound.sender.id.as_str(), said.interaction.as_deref()), ("M2", Some("i1")));
        assert_eq!(target_of(&said).event_id.as_deref(), Some("INTERACTION_CREATE:e1"));
        assert_eq!(target_of(&said).window().as_secs(), 295);
    }

    #[test]
    fn voice_is_audio_with_what_qq_heard_and_faces_are_words() {
        let said = read(
            "C2C_MESSAGE_CREATE",
            json!({ "id": "v", "content": "<faceType=1,faceId=\"13\",ext=\"eyJ0ZXh0Ijoi5ZGy54mZIn0=\"><faceType=6>x<faceType",
                "author": { "user_openid": "U" },
                "attachments": [{ "content_type": "voice", "filename": "a.amr", "url": "//grouptalk.c2c.qq.com/x",
                    "asr_refer_text": "今天天气" }, 7, { "content_type": "file", "filename": "a.pdf", "url": "host/y" }] }),
        )
        .expect("a message");
        assert_eq!(said.inbound.text, "[呲牙][emoji]x<faceType\n[voice, as QQ heard it: 今天天气]");
        let kinds: Vec<AttachmentKind> = said.files.iter().map(|file| file.kind).collect();
        assert_eq!(kinds, [AttachmentKind::Audio, AttachmentKind::File]);
        assert_eq!(said.files[0].url.as_deref(), Some("https://grouptalk.c2c.qq.com/x"));
        assert_eq!(said.files[1].url.as_deref(), Some("https://host/y"));
    }

    #[test]
    fn a_message_taken_back_names_what_it_was() {
        let said = read(
            "PUBLIC_MESSAGE_DELETE",
            json!({ "message": { "id": "g1", "channel_id": "C", "guild_id": "G", "author": { "id": "42" } },
                "op_user": { "id": "43" } }),
        )
        .expect("an event");
        assert_eq!((said.inbound.kind, said.inbound.about.as_deref()), (InboundKind::Deleted, Some("g1")));
        assert_eq!((said.inbound.platform_id.as_str(), said.inbound.sender.id.as_str()), ("deleted:g1", "43"));
    }

    #[test]
    fn what_says_nothing_is_nothing() {
        for name in ["FRIEND_ADD", "GROUP_ADD_ROBOT", "C2C_MSG_REJECT", "GUILD_CREATE", "SOMETHING_NEW"] {
            assert_eq!(read(name, json!({ "openid": "U", "timestamp": 1 })), None, "{name}");
        }
        let author = json!({ "user_openid": "U" });
        for d in [
            json!({ "id": "m", "content": "  ", "author": author }),
            json!({ "id": "", "content": "x", "author": author }),
            json!({ "id": "a\nb", "content": "x", "author": author }),
            json!({ "id": "m", "content": "x" }),
            json!({ "content": "x", "author": author }),
            json!(null),
            json!([1]),
        ] {
            assert_eq!(read("C2C_MESSAGE_CREATE", d.clone()), None, "{d}");
        }
        assert!(read("C2C_MESSAGE_CREATE", json!({ "id": 7, "content": "x", "author": author })).is_some());
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[ -~龙<>@!\\n]{0,12}".prop_map(Value::from)
        ];
        let keys = prop::sample::select(vec![
            "id",
            "content",
            "author",
            "user_openid",
            "attachments",
            "url",
            "data",
            "resolved",
            "button_data",
            "mentions",
            "message",
            "msg_elements",
            "message_type",
            "timestamp",
            "content_type",
            "group_openid",
        ]);
        leaf.prop_recursive(4, 48, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec((keys.clone(), inner), 0..6)
                    .prop_map(|pairs| pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
            ]
        })
    }

    proptest! {
        #[test]
        fn any_event_is_read_or_ignored(d in any_json(), n in 0usize..6) {
            let name = ["C2C_MESSAGE_CREATE", "GROUP_AT_MESSAGE_CREATE", "MESSAGE_CREATE", "DIRECT_MESSAGE_CREATE",
                "INTERACTION_CREATE", "PUBLIC_MESSAGE_DELETE"][n];
            if let Some(said) = read(name, d) {
                prop_assert!(!said.inbound.platform_id.is_empty());
                prop_assert!(Target::of(&said.inbound.address).is_some());
            }
        }
    }
}
