//! The content of a message: its words with the places where somebody is named, and the files in it. Pure, never fails:
//! what it does not know costs that piece. protocols.md §2.2.

use channel_api::AttachmentKind;
use serde_json::Value;

/// The most files of one message that are fetched.
pub const MOST_FILES: usize = 10;
/// The longest text that is taken, in characters.
const TEXT_CHARS: usize = 32_768;
/// The longest name, in characters.
const NAME_CHARS: usize = 256;
/// The most elements of a post or card that are looked at.
const MOST_ELEMENTS: usize = 2_000;
/// How deep a card is read.
const DEPTH: usize = 12;
/// The name of everybody.
pub const ALL: &str = "@_all";

/// What a message holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content {
    /// Its words, in order.
    pub pieces: Vec<Piece>,
    /// Its files, in order.
    pub files: Vec<File>,
    /// It is a bundle of forwarded messages: what they say must be asked for.
    pub forwarded: bool,
}

/// Words, or the place where somebody is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Words.
    Words(String),
    /// A place where somebody is named: the key that the message's `mentions` explain (`@_user_1`), [`ALL`], or an id.
    At(String),
}

/// A file that can be downloaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    /// What it is.
    pub kind: AttachmentKind,
    /// Its key; `None` where the platform gives no way to its bytes.
    pub key: Option<String>,
    /// Its name.
    pub name: Option<String>,
}

impl File {
    /// The `type` that its download is asked for with.
    pub fn resource(&self) -> &'static str {
        if self.kind == AttachmentKind::Image { "image" } else { "file" }
    }
}

impl Content {
    /// Reads `content` (JSON in a text) of a message of this type.
    pub fn read(kind: &str, content: &str) -> Self {
        let mut all = Self::default();
        let value = channel_api::json::parse(content).unwrap_or(Value::Null);
        let word = |key: &str| word(&value, key);
        match kind {
            "text" => match word("text") {
                Some(text) => all.tokens(text),
                None => all.words(if value.is_null() { content } else { "" }),
            },
            "post" => all.post(&value),
            "image" => all.file(AttachmentKind::Image, word("image_key"), None),
            "file" => all.file(AttachmentKind::File, word("file_key"), word("file_name")),
            "audio" => all.file(AttachmentKind::Audio, word("file_key"), word("file_name")),
            "media" => all.file(AttachmentKind::Video, word("file_key"), word("file_name")),
            "folder" => all.file(AttachmentKind::File, None, word("file_name")),
            "sticker" => all.words("[sticker]"),
            "share_chat" => all.line("shared group", word("chat_name").or_else(|| word("chat_id"))),
            "share_user" => all.line("shared contact", word("user_name").or_else(|| word("user_id"))),
            "location" => {
                let place = [word("name"), word("latitude"), word("longitude")];
                let place: Vec<&str> = place.into_iter().flatten().collect();
                all.line("location", Some(place.join(", ")).filter(|place| !place.is_empty()).as_deref());
            }
            "merge_forward" => all.forwarded = true,
            "interactive" => all.card(&value),
            // Told by the platform itself, not by a person.
            "system" => {}
            "todo" => all.described("task", &value),
            "vote" => all.described("vote", &value),
            "video_chat" => all.described("video meeting", &value),
            "calendar" | "share_calendar_event" | "general_calendar" => all.described("calendar event", &value),
            other => all.described(other, &value),
        }
        all.bound();
        all
    }

    /// The words with every name put in by `name`.
    pub fn text(&self, name: impl Fn(&str) -> String) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Words(words) => words.clone(),
            Piece::At(who) => name(who),
        };
        self.pieces.iter().map(piece).collect()
    }

    /// Whether somebody is named by this key.
    pub fn names(&self, who: &str) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::At(at) if at == who))
    }

    fn words(&mut self, words: &str) {
        match self.pieces.last_mut() {
            _ if words.is_empty() => {}
            Some(Piece::Words(last)) => last.push_str(words),
            _ => self.pieces.push(Piece::Words(words.to_owned())),
        }
    }

    /// Words with `@_user_1` and `@_all` in them: the whole number counts, and `@_all` ends where the word ends.
    fn tokens(&mut self, text: &str) {
        let mut rest = text;
        while let Some(at) = rest.find("@_") {
            let token = token_at(&rest[at..]);
            let end = at + token.map_or(2, str::len);
            match token {
                Some(token) => {
                    self.words(&rest[..at]);
                    self.pieces.push(Piece::At(token.to_owned()));
                }
                None => self.words(&rest[..end]),
            }
            rest = &rest[end..];
        }
        self.words(rest);
    }

    fn file(&mut self, kind: AttachmentKind, key: Option<&str>, name: Option<&str>) {
        let key = key.filter(|key| !key.is_empty() && key.len() <= 512).map(str::to_owned);
        let name = name.filter(|name| !name.is_empty()).map(|name| start(name, NAME_CHARS));
        self.files.push(File { kind, key, name });
    }

    fn line(&mut self, what: &str, which: Option<&str>) {
        let which = which.map(|which| start(which, NAME_CHARS).replace(['[', ']', '\n'], " "));
        self.words(&match which {
            Some(which) => format!("[{what}: {which}]"),
            None => format!("[{what}]"),
        });
    }

    /// Something that is no message: its kind and the words found in it.
    fn described(&mut self, what: &str, value: &Value) {
        let mut found = Vec::new();
        collect(value, DEPTH, &mut found);
        let what: String = what.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '_')).take(40).collect();
        self.line(&what, Some(found.join(" ")).filter(|words| !words.is_empty()).as_deref());
    }

    fn card(&mut self, value: &Value) {
        let mut found = Vec::new();
        collect(value, DEPTH, &mut found);
        match found.is_empty() {
            true => self.words("[card]"),
            false => self.words(&found.join("\n")),
        }
    }

    fn post(&mut self, value: &Value) {
        // What comes has no language level; what is asked for may have one.
        let body = match value.get("content").and_then(Value::as_array) {
            Some(_) => Some(value),
            None => value.as_object().and_then(|all| all.values().find(|body| body.get("content").is_some())),
        };
        let Some(body) = body else { return };
        if let Some(title) = word(body, "title").filter(|title| !title.trim().is_empty()) {
            self.words(title);
            self.words("\n");
        }
        let lines = body.get("content").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let mut left = MOST_ELEMENTS;
        for (n, line) in lines.iter().enumerate() {
            if n > 0 {
                self.words("\n");
            }
            // A single element instead of a line is taken for one.
            let elements = line.as_array().map_or(std::slice::from_ref(line), Vec::as_slice);
            for element in elements {
                if left == 0 {
                    return;
                }
                left -= 1;
                self.element(element);
            }
        }
    }

    fn element(&mut self, element: &Value) {
        let word = |key: &str| word(element, key);
        match word("tag").unwrap_or_default() {
            "a" => {
                let (text, link) = (word("text").unwrap_or_default(), word("href").unwrap_or_default());
                match text.is_empty() || text == link {
                    true => self.words(link),
                    false => self.words(&format!("{text} ({link})")),
                }
            }
            "at" => match word("user_id").filter(|id| !id.is_empty()) {
                Some("all" | ALL) => self.pieces.push(Piece::At(ALL.to_owned())),
                Some(id) => self.pieces.push(Piece::At(id.to_owned())),
                None => self.words(&format!("@{}", word("user_name").unwrap_or_default())),
            },
            "img" => self.file(AttachmentKind::Image, word("image_key"), None),
            "media" => self.file(AttachmentKind::Video, word("file_key"), word("file_name")),
            "emotion" => self.words(&format!("[{}]", start(word("emoji_type").unwrap_or("emoji"), 40))),
            "code_block" => {
                let language = word("language").unwrap_or_default().to_ascii_lowercase();
                let language: String = language.chars().filter(char::is_ascii_alphanumeric).take(20).collect();
                let code = word("text").unwrap_or_default();
                let fence = if code.contains("```") { "````" } else { "```" };
                self.words(&format!("{fence}{language}\n{}\n{fence}", code.trim_end_matches('\n')));
            }
            "hr" => self.words("---"),
            // `text`, `md`, and whatever comes later with words in it.
            _ => self.words(word("text").unwrap_or_default()),
        }
    }

    fn bound(&mut self) {
        let mut left = TEXT_CHARS;
        self.pieces.retain_mut(|piece| {
            if let Piece::Words(words) = piece {
                let length = words.chars().count();
                if length > left {
                    *words = start(words, left);
                }
                left = left.saturating_sub(length);
                return !words.is_empty();
            }
            left > 0
        });
        self.pieces.truncate(2 * MOST_ELEMENTS);
        self.files.truncate(100);
    }
}

/// `@_user_12` or `@_all` at the beginning of a text.
fn token_at(text: &str) -> Option<&str> {
    if let Some(rest) = text.strip_prefix("@_user_") {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        return (digits > 0).then(|| &text[.."@_user_".len() + digits]);
    }
    let rest = text.strip_prefix(ALL)?;
    let goes_on = rest.chars().next().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_');
    (!goes_on).then_some(ALL)
}

/// The words of a structure that is not known, in order: what stands under `text`, `content`, `title`, `summary`, `topic`.
fn collect(value: &Value, depth: usize, found: &mut Vec<String>) {
    if depth == 0 || found.len() >= 200 {
        return;
    }
    match value {
        Value::Array(all) => all.iter().take(MOST_ELEMENTS).for_each(|value| collect(value, depth - 1, found)),
        Value::Object(all) => {
            for (key, value) in all {
                match value.as_str() {
                    Some(words) if matches!(key.as_str(), "text" | "content" | "title" | "summary" | "topic") => {
                        match channel_api::json::parse(words).filter(|inner| inner.is_object() || inner.is_array()) {
                            Some(inner) => collect(&inner, depth - 1, found),
                            None if words.trim().is_empty() => {}
                            None => found.push(start(words, 4_000)),
                        }
                    }
                    Some(_) => {}
                    None => collect(value, depth - 1, found),
                }
            }
        }
        _ => {}
    }
}

fn word<'a>(value: &'a Value, key: &str) -> Option<&'a str> {
    value.get(key).and_then(Value::as_str)
}

/// The first `most` characters.
pub fn start(text: &str, most: usize) -> String {
    text.chars().take(most).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn text(kind: &str, content: &Value) -> String {
        Content::read(kind, &content.to_string()).text(|who| format!("<{who}>"))
    }

    #[test]
    fn a_name_is_a_whole_token() {
        let content = json!({ "text": "@_user_1 a @_user_10 b @_all, c @_allx @_user_ x@_user_2" });
        let expected = "<@_user_1> a <@_user_10> b <@_all>, c @_allx @_user_ x<@_user_2>";
        assert_eq!(text("text", &content), expected);
        assert!(Content::read("text", &content.to_string()).names("@_user_10"));
        assert!(!Content::read("text", r#"{"text":"@_user_10"}"#).names("@_user_1"));
        assert_eq!(text("text", &json!({ "text": "@_all你好" })), "<@_all>你好");
    }

    #[test]
    fn a_post_is_flattened_with_links_names_code_and_pictures() {
        let post = json!({
            "title": "Plan",
            "content": [
                [{"tag": "at", "user_id": "@_user_1", "user_name": "Bot"}, {"tag": "text", "text": "0 apples "},
                 {"tag": "a", "text": "here", "href": "https://x.test/"}],
                [{"tag": "img", "image_key": "img_1"}],
                [{"tag": "code_block", "language": "RUST", "text": "let a = 1;\n"}],
                [{"tag": "new_thing", "text": "kept"}, {"tag": "unknown"}, 7, null],
                [{"tag": "at", "user_id": "all"}, {"tag": "media", "file_key": "file_1", "image_key": "img_2"}],
            ],
        });
        let expected = "Plan\n<@_user_1>0 apples here (https://x.test/)\n\n```rust\nlet a = 1;\n```\nkept\n<@_all>";
        assert_eq!(text("post", &post), expected);
        assert_eq!(text("post", &json!({ "zh_cn": post })), expected, "with a language level too");
        let files = Content::read("post", &post.to_string()).files;
        let keys: Vec<_> = files.iter().map(|file| (file.resource(), file.key.as_deref())).collect();
        assert_eq!(keys, [("image", Some("img_1")), ("file", Some("file_1"))]);
    }

    #[test]
    fn every_kind_has_words_or_files() {
        for (kind, content, words, files) in [
            ("image", json!({"image_key": "img_1"}), "", 1),
            ("file", json!({"file_key": "f", "file_name": "a.pdf"}), "", 1),
            ("audio", json!({"file_key": "f", "duration": 1000}), "", 1),
            ("media", json!({"file_key": "f", "image_key": "i", "file_name": "a.mp4"}), "", 1),
            ("sticker", json!({"file_key": "f"}), "[sticker]", 0),
            ("share_chat", json!({"chat_id": "oc_1"}), "[shared group: oc_1]", 0),
            ("share_user", json!({"user_id": "ou_1"}), "[shared contact: ou_1]", 0),
            ("location", json!({"name": "Park", "latitude": "1.5", "longitude": "2"}), "[location: Park, 1.5, 2]", 0),
            ("interactive", json!({"title": "T", "elements": [[{"tag": "text", "text": "hello"}]]}), "hello\nT", 0),
            (
                "todo",
                json!({"task_id": "1", "summary": {"content": [[{"tag": "text", "text": "buy"}]]}}),
                "[task: buy]",
                0,
            ),
            ("hongbao", json!({"text": "red packet"}), "[hongbao: red packet]", 0),
            ("system", json!({"template": "{from_user} joined"}), "", 0),
            ("a new kind", json!({}), "[a new kind]", 0),
        ] {
            let read = Content::read(kind, &content.to_string());
            let mut lines: Vec<&str> = words.split('\n').collect();
            let read_words = read.text(str::to_owned);
            let mut read_lines: Vec<&str> = read_words.split('\n').collect();
            lines.sort_unstable();
            read_lines.sort_unstable();
            assert_eq!((read_lines, read.files.len()), (lines, files), "{kind}");
        }
        assert!(Content::read("merge_forward", "Merged and Forwarded Message").forwarded);
        assert_eq!(Content::read("text", "not JSON").text(str::to_owned), "not JSON");
        assert_eq!(Content::read("text", r#"{"text":"half \ud83d"}"#).text(str::to_owned), "half \u{fffd}");
    }

    #[test]
    fn long_and_deep_content_is_bounded() {
        let long = text("text", &json!({ "text": "字".repeat(200_000) }));
        assert_eq!(long.chars().count(), TEXT_CHARS);
        let mut deep = json!({"text": "deep"});
        for _ in 0..100 {
            deep = json!([deep]);
        }
        assert_eq!(text("interactive", &deep), "[card]");
        let many = json!({ "content": [vec![json!({"tag": "img", "image_key": "k"}); 5_000]] });
        assert!(Content::read("post", &many.to_string()).files.len() <= 100);
    }

    proptest! {
        #[test]
        fn any_content_is_read(kind in "text|post|image|interactive|todo|x", content in r#"(\{|\}|\[|\]|"|:|,|text|content|tag|at|@_user_|@_all|1|数|\\u00d8|\\ud83d){0,60}"#) {
            Content::read(&kind, &content).text(str::to_owned);
        }
    }
}
