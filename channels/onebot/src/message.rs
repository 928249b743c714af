//! A message as OneBot writes it, a list of segments or a text with CQ codes, as a list of [`Segment`]s. Pure; never
//! fails: a piece that is none is left out.

use serde_json::{Map, Value};

/// The most segments of one message that are read.
const SEGMENTS: usize = 500;
/// The longest text with codes that is read, in bytes.
const LONGEST: usize = 1024 * 1024;

/// One piece of a message.
#[derive(Clone, Debug, PartialEq)]
pub struct Segment {
    /// `text`, `at`, `image` …
    pub kind: String,
    /// What it holds.
    pub data: Map<String, Value>,
}

impl Segment {
    /// A piece of plain words.
    pub fn text(text: &str) -> Self {
        let mut data = Map::new();
        data.insert("text".to_owned(), Value::from(text));
        Self { kind: "text".to_owned(), data }
    }

    /// What it holds at `key`, as text; numbers too.
    pub fn word(&self, key: &str) -> Option<String> {
        match self.data.get(key)? {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            Value::Bool(flag) => Some(flag.to_string()),
            _ => None,
        }
    }
}

/// The pieces of the field `message`; `None` when it is neither a list nor a text.
pub fn read(message: &Value) -> Option<Vec<Segment>> {
    match message {
        Value::String(text) => Some(codes(text)),
        Value::Array(list) => Some(list.iter().take(SEGMENTS).filter_map(segment).collect()),
        _ => None,
    }
}

fn segment(value: &Value) -> Option<Segment> {
    let kind = value.get("type")?.as_str()?.to_owned();
    let data = match value.get("data") {
        Some(Value::Object(data)) => data.clone(),
        // NapCat writes null where there is nothing to say.
        _ => Map::new(),
    };
    Some(Segment { kind, data })
}

/// A text with codes such as `[CQ:at,qq=10001]`. What is no code stands as it is.
pub fn codes(text: &str) -> Vec<Segment> {
    let mut rest = &text[..text.floor_char_boundary(LONGEST)];
    let mut segments = Vec::new();
    let mut words = String::new();
    while let Some(start) = rest.find("[CQ:") {
        let found = (segments.len() < SEGMENTS).then(|| code(&rest[start + 4..])).flatten();
        let Some((segment, length)) = found else {
            words.push_str(&rest[..start + 4]);
            rest = &rest[start + 4..];
            continue;
        };
        words.push_str(&rest[..start]);
        if !words.is_empty() {
            segments.push(Segment::text(&unescape(&std::mem::take(&mut words))));
        }
        segments.push(segment);
        rest = &rest[start + 4 + length..];
    }
    words.push_str(rest);
    if !words.is_empty() {
        segments.push(Segment::text(&unescape(&words)));
    }
    segments
}

/// The code that `text` begins with, after its `[CQ:`, and its length. One that is not closed before the next begins is
/// none: inside a code `[` is escaped, and no beginning is looked for through all that follows it.
fn code(text: &str) -> Option<(Segment, usize)> {
    let own = &text[..text.find("[CQ:").unwrap_or(text.len())];
    let end = own.find(']')?;
    let mut pieces = text[..end].split(',');
    let kind = pieces.next()?;
    if kind.is_empty() || !kind.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
        return None;
    }
    let mut data = Map::new();
    for piece in pieces {
        let (key, value) = piece.split_once('=')?;
        if key.is_empty() || !key.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
            return None;
        }
        data.insert(key.to_owned(), Value::from(unescape(value)));
    }
    Some((Segment { kind: kind.to_owned(), data }, end + 1))
}

/// `&amp;` goes last: what it leaves is no escape any more.
fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    text.replace("&#44;", ",").replace("&#91;", "[").replace("&#93;", "]").replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_vectors_of_two_libraries_are_read_alike() {
        let vectors: Value = serde_json::from_str(include_str!("vectors.json")).expect("JSON");
        let cases = vectors["cq"].as_array().expect("a list");
        assert!(cases.len() >= 8);
        for case in cases {
            let expected: Vec<Segment> =
                case["aiocqhttp"].as_array().expect("a list").iter().filter_map(segment).collect();
            let text = case["string"].as_str().expect("a text");
            assert_eq!(codes(text), expected, "{text}");
            let words: String =
                codes(text).iter().filter(|s| s.kind == "text").filter_map(|s| s.word("text")).collect();
            assert_eq!(words, case["plain_text"].as_str().expect("a text"), "{text}");
        }
    }

    #[test]
    fn bad_input_33_lists_and_texts_are_messages_and_nothing_else_is() {
        assert_eq!(read(&json!("a[CQ:at,qq=1]")).map(|s| s.len()), Some(2));
        assert_eq!(read(&json!([{"type": "text", "data": {"text": "a"}}])), Some(vec![Segment::text("a")]));
        assert_eq!(read(&json!({"type": "text", "data": {"text": "a"}})), None);
        assert_eq!(read(&Value::Null), None);
        assert_eq!(read(&json!(5)), None);
        let odd = json!([1, null, {"data": {}}, {"type": "shake", "data": null}, {"type": "dice"}, {"type": "text", "data": {"text": "x"}}]);
        let kinds: Vec<String> = read(&odd).expect("a list").into_iter().map(|s| s.kind).collect();
        assert_eq!(kinds, ["shake", "dice", "text"]);
    }

    #[test]
    fn a_code_that_is_not_closed_before_the_next_is_words_and_costs_no_more_than_its_length() {
        let at = |who: &str| {
            let data = [("qq".to_owned(), Value::from(who))].into_iter().collect();
            Segment { kind: "at".to_owned(), data }
        };
        let read = codes("[CQ:share,title=[CQ:at,qq=1]]");
        assert_eq!(read, [Segment::text("[CQ:share,title="), at("1"), Segment::text("]")]);
        // A million bytes each; what grew with their square took minutes.
        for flood in ["[CQ:".repeat(240_000), format!("{},x]", "[CQ:a,a=1".repeat(110_000))] {
            assert_eq!(codes(&flood), [Segment::text(&flood)]);
        }
        let flood = format!("{}[CQ:at,qq=1]", "[CQ:a,".repeat(100_000));
        assert_eq!(codes(&flood).last(), Some(&at("1")));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fail_and_no_word_is_lost(text in r"(\[CQ:|\]|,|=|&amp;|&#91;|at|qq|龙| ){0,24}") {
            let _ = codes(&text);
        }

        #[test]
        fn words_without_codes_stay(text in "[a-z龙, ]{0,20}") {
            let words: String = codes(&text).iter().filter_map(|s| s.word("text")).collect();
            prop_assert_eq!(words, text);
        }
    }
}
