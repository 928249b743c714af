//! Secrets in memory: the value that cannot be printed or compared by accident ([`Secret`]), and the redactor that takes it
//! out of every text that leaves the program.
//!
//! security.md rows 5, 27, 28 and §3.5. Knows nothing of where a secret comes from. The ways out are few, and each has its
//! seam: [`model`] (what providers say and are told), [`channel`] (what people get, and what adapters say of it), the
//! agent's one place for tool results, `http.rs` for answers of the API, `logs.rs` for lines.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    net::{IpAddr, SocketAddr},
    path::Path,
    sync::{Arc, PoisonError, RwLock},
};

use aho_corasick::{AhoCorasick, Input, MatchKind};
use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
pub use channel_api::secret::{Secret, constant_time_eq};
use serde_json::Value;
use tracing::error;

use crate::untrusted;

pub mod channel;
pub mod model;

/// What stands where a secret stood.
pub const REDACTED: &str = "[redacted]";

/// The shortest value that is looked for: a shorter one would eat ordinary words.
pub const MIN_LENGTH: usize = 8;

/// What people write where a server wants a key and checks none, and other words that say nothing: no secrets, and words of
/// ordinary texts.
const ORDINARY: [&str; 18] = [
    "changeme",
    "change-me",
    "password",
    "placeholder",
    "undefined",
    "localhost",
    "lm-studio",
    "lmstudio",
    "llama.cpp",
    "llama-cpp",
    "not-needed",
    "no-key-needed",
    "not-used",
    "none-needed",
    "your-api-key",
    "your_api_key",
    "dummy-key",
    "example-key",
];

/// Takes known secrets out of a text: the exact values, their base64 (both alphabets, at any offset inside a longer
/// encoded text), hexadecimal, URL-encoded, HTML- and JSON-escaped forms, each also where blanks or invisible characters
/// break it (`base64` and `xxd -p` write lines of 76 and 60 characters). Linear in the text, whatever is known. Cheap to
/// clone; clones know the same secrets, those learnt later too.
#[derive(Clone, Default)]
pub struct Redactor {
    known: Arc<RwLock<Arc<Known>>>,
}

/// So many bytes of every form are searched for at once; what begins so is then compared whole.
const HEAD: usize = MIN_LENGTH;

#[derive(Default)]
struct Known {
    /// The values that were learnt, so that learning them again costs nothing.
    values: BTreeSet<String>,
    /// Every form without its blanks, none shorter than [`HEAD`], in order.
    forms: Vec<Box<[u8]>>,
    /// Finds the heads of the forms.
    heads: Option<AhoCorasick>,
    /// For each head the forms that begin so, the longest first: of two secrets that start alike, the whole of the longer
    /// one goes.
    behind: Vec<Vec<usize>>,
    /// The bytes that forms begin with.
    first: Vec<bool>,
    longest: usize,
}

impl Redactor {
    /// Looks for these values; those shorter than 8 bytes, plain addresses, paths of this machine and well-known
    /// placeholders are left out.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let redactor = Self::default();
        redactor.learn(secrets);
        redactor
    }

    /// Looks for these values too from now on, here and in every clone. What is known already costs nothing.
    pub fn learn<'a>(&self, secrets: impl IntoIterator<Item = &'a Secret>) {
        let now = self.known();
        let new: BTreeSet<&str> = secrets
            .into_iter()
            .map(|secret| secret.expose().trim())
            .filter(|value| !now.values.contains(*value) && !is_ordinary(value))
            .collect();
        if new.is_empty() {
            return;
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let learnt = known.with(new).map(|more| *known = Arc::new(more));
        // Told after the lock is free: the log's writer asks us.
        drop(known);
        if let Err(why) = learnt {
            // Not for any number of secrets that a machine has.
            error!(%why, "new secrets could not be learnt: they are not taken out of texts");
        }
    }

    fn known(&self) -> Arc<Known> {
        Arc::clone(&self.known.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// `text` without the secrets; borrowed when there was none in it.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let known = self.known();
        let Some(heads) = &known.heads else { return Cow::Borrowed(text) };
        let squeezed = squeezed(text);
        if known.find(heads, &squeezed, 0).is_none() {
            return Cow::Borrowed(text);
        }
        let places = Places::of(text);
        Cow::Owned(places.without(text, &known.all(heads, &squeezed)))
    }

    /// What may be shown of a text that is still being written: without the secrets, and without an end that may become
    /// one. That end is never longer than the longest form of a secret, and seldom more than a letter or two.
    pub fn redact_growing<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let known = self.known();
        let Some(heads) = &known.heads else { return Cow::Borrowed(text) };
        let squeezed = squeezed(text);
        let found = known.all(heads, &squeezed);
        let open = known.open_end(&squeezed);
        if found.is_empty() && open == squeezed.len() {
            return Cow::Borrowed(text);
        }
        // What ends inside a secret was found whole: no part of that comes back.
        let inside = found.iter().find(|(begin, end)| *begin < open && open < *end);
        let open = inside.map_or(open, |(_, end)| *end);
        let places = Places::of(text);
        let end = if open < squeezed.len() { places.of_byte(open) } else { text.len() };
        let found: Vec<_> = found.into_iter().filter(|(_, end)| *end <= open).collect();
        match found.is_empty() {
            true => Cow::Borrowed(&text[..end]),
            false => Cow::Owned(places.without(&text[..end], &found)),
        }
    }

    /// Whether there is a secret in it.
    pub fn finds(&self, text: &str) -> bool {
        let known = self.known();
        known.heads.as_ref().is_some_and(|heads| known.find(heads, &squeezed(text), 0).is_some())
    }

    /// Takes the secrets out of a text where it stands; whether there was one.
    pub fn clean(&self, text: &mut String) -> bool {
        match self.redact(text) {
            Cow::Borrowed(_) => false,
            Cow::Owned(clean) => {
                *text = clean;
                true
            }
        }
    }

    /// Whether a text of JSON holds one, as it stands or in what its strings mean: `\u0073k-…` is a key, and so is one with
    /// an escaped line break in it.
    pub fn finds_in_json(&self, text: &str) -> bool {
        fn any(value: &Value, finds: &impl Fn(&str) -> bool) -> bool {
            match value {
                Value::String(text) => finds(text),
                Value::Array(items) => items.iter().any(|item| any(item, finds)),
                Value::Object(fields) => fields.iter().any(|(key, item)| finds(key) || any(item, finds)),
                Value::Null | Value::Bool(_) | Value::Number(_) => false,
            }
        }
        self.finds(text)
            || (text.contains('\\')
                && serde_json::from_str::<Value>(text).is_ok_and(|value| any(&value, &|text| self.finds(text))))
    }

    /// The same as [`Self::clean`] for a text of JSON, whose strings are cleaned as what they mean. It stays JSON; what is
    /// none is cleaned as it stands.
    pub fn clean_json(&self, text: &mut String) -> bool {
        if !self.finds_in_json(text) {
            return false;
        }
        if let Ok(value) = serde_json::from_str::<Value>(text) {
            *text = self.cleaned(value).to_string();
        }
        self.clean(text);
        true
    }

    fn cleaned(&self, value: Value) -> Value {
        match value {
            Value::String(text) => self.redact(&text).into_owned().into(),
            Value::Array(items) => items.into_iter().map(|item| self.cleaned(item)).collect(),
            Value::Object(fields) => fields
                .into_iter()
                .map(|(key, item)| (self.redact(&key).into_owned(), self.cleaned(item)))
                .collect::<serde_json::Map<_, _>>()
                .into(),
            other => other,
        }
    }
}

impl Known {
    /// The same and these values.
    fn with(&self, new: BTreeSet<&str>) -> Result<Self, aho_corasick::BuildError> {
        let mut forms: BTreeSet<Box<[u8]>> = self.forms.iter().cloned().collect();
        for value in &new {
            let all = forms_of(value);
            let all = all.iter().map(|form| -> Box<[u8]> { squeezed(form).as_ref().into() });
            forms.extend(all.filter(|form| form.len() >= HEAD));
        }
        let forms: Vec<Box<[u8]>> = forms.into_iter().collect();
        // In order, those that begin alike are neighbours.
        let mut heads: Vec<&[u8]> = Vec::new();
        let mut behind: Vec<Vec<usize>> = Vec::new();
        for (at, form) in forms.iter().enumerate() {
            if heads.last() != Some(&&form[..HEAD]) {
                heads.push(&form[..HEAD]);
                behind.push(Vec::new());
            }
            behind.last_mut().expect("it was just pushed").push(at);
        }
        behind.iter_mut().for_each(|group| group.sort_by_key(|at| std::cmp::Reverse(forms[*at].len())));
        let search = AhoCorasick::builder().match_kind(MatchKind::LeftmostFirst).build(&heads)?;
        let mut first = vec![false; 256];
        forms.iter().for_each(|form| first[usize::from(form[0])] = true);
        let mut values = self.values.clone();
        values.extend(new.into_iter().map(str::to_owned));
        let longest = forms.iter().map(|form| form.len()).max().unwrap_or(0);
        Ok(Self { values, heads: (!forms.is_empty()).then_some(search), forms, behind, first, longest })
    }

    /// The first secret from this byte on.
    fn find(&self, heads: &AhoCorasick, text: &[u8], from: usize) -> Option<(usize, usize)> {
        let mut at = from;
        while let Some(found) = heads.find(Input::new(text).span(at..text.len())) {
            let rest = &text[found.start()..];
            let group = &self.behind[found.pattern().as_usize()];
            if let Some(form) = group.iter().map(|form| &self.forms[*form]).find(|form| rest.starts_with(form)) {
                return Some((found.start(), found.start() + form.len()));
            }
            at = found.start() + 1;
        }
        None
    }

    fn all(&self, heads: &AhoCorasick, text: &[u8]) -> Vec<(usize, usize)> {
        let mut all = Vec::new();
        let mut at = 0;
        while let Some(found) = self.find(heads, text, at) {
            at = found.1;
            all.push(found);
        }
        all
    }

    /// Where the end begins that a secret may begin with; the text's length when there is none.
    fn open_end(&self, text: &[u8]) -> usize {
        let from = text.len().saturating_sub(self.longest.saturating_sub(1));
        let opens = |end: &[u8]| {
            let at = self.forms.partition_point(|form| &**form < end);
            self.forms.get(at).is_some_and(|form| form.len() > end.len() && form.starts_with(end))
                // The end may be a whole form and the beginning of a longer one.
                || self.forms.get(at + 1).is_some_and(|form| form.len() > end.len() && form.starts_with(end))
        };
        (from..text.len()).find(|at| self.first[usize::from(text[*at])] && opens(&text[*at..])).unwrap_or(text.len())
    }
}

/// Whether nothing is given away by showing it, or it is a word of ordinary texts.
fn is_ordinary(value: &str) -> bool {
    let rooted = || {
        // A path of this machine: what base64 makes of a key may begin with a slash too, but names no folder.
        let first = value.strip_prefix('/').and_then(|rest| rest.split('/').next()).filter(|first| !first.is_empty());
        let drive = value.as_bytes().get(1..3).is_some_and(|colon| matches!(colon, b":\\" | b":/"));
        value.starts_with("~/") || drive || first.is_some_and(|first| Path::new("/").join(first).exists())
    };
    let address = || {
        let host =
            value.rsplit_once(':').filter(|(_, port)| port.parse::<u16>().is_ok()).map_or(value, |(host, _)| host);
        host == "localhost" || value.parse::<IpAddr>().is_ok() || value.parse::<SocketAddr>().is_ok()
    };
    squeezed(value).len() < MIN_LENGTH
        || ORDINARY.iter().any(|word| word.eq_ignore_ascii_case(value))
        || value.bytes().all(|byte| byte == value.as_bytes()[0])
        || !crate::skills::variables::is_secret(value)
        || address()
        || rooted()
}

/// Whether a character breaks no secret: blanks, and what shows nothing.
fn is_blank(c: char) -> bool {
    c.is_whitespace() || matches!(c, '\u{200c}' | '\u{200d}') || untrusted::is_hidden(c)
}

/// The bytes of a text without its blanks.
fn squeezed(text: &str) -> Cow<'_, [u8]> {
    let bytes = text.as_bytes();
    let Some(mut begin) = next_blank(text, 0).map(|(at, length)| (at, at + length)) else {
        return Cow::Borrowed(bytes);
    };
    let mut out = Vec::with_capacity(bytes.len());
    out.extend_from_slice(&bytes[..begin.0]);
    loop {
        match next_blank(text, begin.1) {
            Some((at, length)) => {
                out.extend_from_slice(&bytes[begin.1..at]);
                begin = (at, at + length);
            }
            None => {
                out.extend_from_slice(&bytes[begin.1..]);
                return Cow::Owned(out);
            }
        }
    }
}

/// The next blank from this byte on, and its length.
fn next_blank(text: &str, from: usize) -> Option<(usize, usize)> {
    let bytes = text.as_bytes();
    let mut at = from;
    while let Some(byte) = bytes.get(at) {
        match byte {
            0..=b' ' | 0x7f => return Some((at, 1)),
            // The first bytes of all blanks beyond ASCII; other scripts' letters are passed by.
            0xc2 | 0xd8 | 0xe1 | 0xe2 | 0xe3 | 0xef | 0xf3 => match text[at..].chars().next() {
                Some(c) if is_blank(c) => return Some((at, c.len_utf8())),
                c => at += c.map_or(1, char::len_utf8),
            },
            _ => at += 1,
        }
    }
    None
}

/// Where the bytes of a squeezed text stand in the text.
struct Places {
    /// For each stretch without blanks: its place in the squeezed text, and in the text.
    stretches: Vec<(usize, usize)>,
}

impl Places {
    fn of(text: &str) -> Self {
        let mut stretches = Vec::new();
        let (mut at, mut squeezed) = (0, 0);
        while at < text.len() {
            let (blank, length) = next_blank(text, at).unwrap_or((text.len(), 0));
            if blank > at {
                stretches.push((squeezed, at));
                squeezed += blank - at;
            }
            at = blank + length;
        }
        Self { stretches }
    }

    fn of_byte(&self, at: usize) -> usize {
        let stretch = self.stretches[self.stretches.partition_point(|(begin, _)| *begin <= at) - 1];
        stretch.1 + (at - stretch.0)
    }

    /// The text without what stands there in its squeezed form.
    fn without(&self, text: &str, found: &[(usize, usize)]) -> String {
        let mut out = String::with_capacity(text.len());
        let mut done = 0;
        for (begin, end) in found {
            // The last byte's own place: blanks behind it stay.
            let (begin, end) = (self.of_byte(*begin), self.of_byte(end - 1) + 1);
            out.push_str(&text[done..begin]);
            out.push_str(REDACTED);
            done = end;
        }
        out.push_str(&text[done..]);
        out
    }
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor(***)")
    }
}

/// Every spelling of `value` that is looked for.
fn forms_of(value: &str) -> Vec<String> {
    let mut forms = vec![value.to_owned()];
    for offset in 0..3 {
        // In front of the value stand 0, 1 or 2 foreign bytes of a base64 group; the characters that depend on a
        // neighbour's bits are not ours and stay out of the form.
        let mut bytes = vec![0; offset];
        bytes.extend_from_slice(value.as_bytes());
        let lead = [0, 2, 3][offset];
        let tail = usize::from(!bytes.len().is_multiple_of(3));
        for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
            let encoded = engine.encode(&bytes);
            forms.push(encoded[lead..encoded.len() - tail].to_owned());
        }
    }
    for upper in [true, false] {
        forms.push(
            value.bytes().map(|byte| if upper { format!("{byte:02X}") } else { format!("{byte:02x}") }).collect(),
        );
        let hex = |byte: u8| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") };
        let encode = |keep: &[u8], space: &str| -> String {
            value.bytes().fold(String::new(), |mut out, byte| {
                match byte {
                    b' ' => out.push_str(space),
                    _ if byte.is_ascii_alphanumeric() || keep.contains(&byte) => out.push(byte as char),
                    _ => out.push_str(&hex(byte)),
                }
                out
            })
        };
        forms.push(encode(b"-._~", "%20"));
        forms.push(encode(b"*-._", "+"));
        forms.push(value.bytes().map(hex).collect());
    }
    if value.contains(['&', '<', '>', '"', '\'']) {
        let html = value.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        forms.push(html.replace('"', "&quot;").replace('\'', "&#39;"));
        forms.push(html.replace('"', "&quot;").replace('\'', "&#x27;"));
        forms.push(html);
    }
    let json = serde_json::Value::from(value).to_string();
    let json = json[1..json.len() - 1].to_owned();
    forms.push(json.replace('/', "\\/"));
    // Escaped to ASCII, as Python and some JavaScript writers do.
    let mut ascii = String::new();
    for c in json.chars() {
        if c.is_ascii() {
            ascii.push(c);
        } else {
            for unit in c.encode_utf16(&mut [0; 2]) {
                ascii.push_str(&format!("\\u{unit:04x}"));
            }
        }
    }
    forms.push(ascii);
    forms.push(json);
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling_of_a_value_is_taken_out() {
        let value = "pä/ss\"wörd+9?";
        let redactor = Redactor::new([&Secret::new(value)]);
        let json = serde_json::to_string(value).expect("a string");
        let texts = [
            value.to_owned(),
            json,
            "p\\u00e4/ss\\\"w\\u00f6rd+9?".to_owned(),
            "p%C3%A4%2Fss%22w%C3%B6rd%2B9%3F".to_owned(),
            "p%c3%a4%2fss%22w%c3%b6rd%2b9%3f".to_owned(),
            STANDARD_NO_PAD.encode(value),
        ];
        for text in texts {
            let whole = format!("before {text} after");
            let redacted = redactor.redact(&whole);
            assert!(redacted.contains(REDACTED), "{whole}");
            assert!(redacted.starts_with("before ") && redacted.ends_with(" after"), "{redacted}");
            assert!(!redacted.contains("rd"), "{redacted}");
        }
    }

    #[test]
    fn what_the_strings_of_json_mean_is_cleaned_and_it_stays_json() {
        let redactor = Redactor::new([&Secret::new("sk-canary-0123456789")]);
        let hex: String = "sk-canary-0123456789".bytes().map(|byte| format!("{byte:02x}")).collect();
        for (text, clean) in [
            (r#"{"a":"sk-canary-0123456789"}"#.to_owned(), r#"{"a":"[redacted]"}"#),
            (r#"{"a":"\u0073\u006b-canary-0123456789"}"#.to_owned(), r#"{"a":"[redacted]"}"#),
            (format!(r#"{{"a":["{}\n{}"]}}"#, &hex[..16], &hex[16..]), r#"{"a":["[redacted]"]}"#),
            (r#"{"\u0073k-canary-0123456789":1}"#.to_owned(), r#"{"[redacted]":1}"#),
            (r#"{"a":"sk-canary-0123456789"#.to_owned(), r#"{"a":"[redacted]"#),
        ] {
            let mut it = text.clone();
            assert!(redactor.clean_json(&mut it), "{text}");
            assert_eq!(it, clean, "{text}");
        }
        let mut harmless = r#"{ "b": 1,  "a": "\u0073k" }"#.to_owned();
        assert!(!redactor.clean_json(&mut harmless));
        assert_eq!(harmless, r#"{ "b": 1,  "a": "\u0073k" }"#, "byte for byte what it was");
    }

    #[test]
    fn base64_is_found_at_every_offset() {
        let redactor = Redactor::new([&Secret::new("correct horse battery")]);
        for (before, after) in [("", ""), ("u:", "x"), ("us:", "xy"), ("use:", "xyz"), ("user:", "")] {
            for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
                let encoded = engine.encode(format!("{before}correct horse battery{after}"));
                assert!(redactor.redact(&encoded).contains(REDACTED), "{encoded}");
            }
        }
    }

    #[test]
    fn what_white_space_breaks_is_found_and_clones_learn() {
        let redactor = Redactor::default();
        let clone = redactor.clone();
        let token: String = (0..40).map(|n| format!("{n:02}-ключ.")).collect();
        redactor.learn([&Secret::new(token.clone())]);
        let base64 = base64::engine::general_purpose::STANDARD.encode(&token);
        let wrapped = |text: &str, width: usize| {
            let chars: Vec<char> = text.chars().collect();
            chars.chunks(width).map(|line| line.iter().collect::<String>()).collect::<Vec<_>>().join("\n")
        };
        let hex: String = token.bytes().map(|byte| format!("{byte:02x}")).collect();
        for form in [wrapped(&base64, 76), wrapped(&hex, 60), wrapped(&token, 10), wrapped(&hex, 2).replace('\n', " ")]
        {
            let shown = format!("it is\n{form}\nand no more");
            assert_eq!(
                clone.redact(&shown).trim_end_matches("==").replace("==\n", "\n"),
                "it is\n[redacted]\nand no more"
            );
        }
        assert!(matches!(clone.redact("nothing here 00-к"), Cow::Borrowed(_)));
    }

    #[test]
    fn short_values_and_clean_texts_stay() {
        let redactor = Redactor::new([&Secret::new("abc"), &Secret::new("")]);
        assert!(matches!(redactor.redact("abc and more"), Cow::Borrowed("abc and more")));
        let redactor = Redactor::new([&Secret::new("12345678"), &Secret::new("12345678-and-longer")]);
        assert_eq!(redactor.redact("12345678-and-longer 12345678"), "[redacted] [redacted]");
        assert!(matches!(redactor.redact("1234567"), Cow::Borrowed(_)));
    }

    #[test]
    fn what_is_no_secret_is_not_learnt() {
        let here = std::env::current_exe().expect("a path").display().to_string();
        for ordinary in [
            "/bin/sh -c",
            here.as_str(),
            "~/notes/today",
            "http://127.0.0.1:8123",
            "192.168.100.200",
            "127.0.0.1:11434",
            "localhost:11434",
            "LM-Studio",
            "changeme",
            "********",
            "a b c d e f g",
        ] {
            let redactor = Redactor::new([&Secret::new(ordinary)]);
            assert!(!redactor.finds(&format!("see {ordinary} there")), "{ordinary}");
        }
        for secret in ["/9j4AAQSkZJRgABAQ/x", "correct horse", "123456:ABC-DEF1234ghIkl", "https://h.test/T0/B0/x"] {
            let redactor = Redactor::new([&Secret::new(secret)]);
            assert_eq!(redactor.redact(&format!("see {secret} there")), "see [redacted] there");
        }
    }

    #[test]
    fn blanks_and_invisible_characters_hide_nothing() {
        let redactor = Redactor::new([&Secret::new("correct horse battery")]);
        for spelling in [
            "correct horse battery",
            "correct\nhorse\tbattery",
            "c o r r e c t h o r s e b a t t e r y",
            "correct\u{200b}horse\u{feff}bat\u{ad}tery",
            "correct\u{3000}horse\u{a0}battery",
            "correcthorsebattery",
        ] {
            assert_eq!(redactor.redact(&format!("it is {spelling} .")), "it is [redacted] .", "{spelling:?}");
        }
    }

    #[test]
    fn every_way_of_cutting_a_stream_shows_the_same_and_never_a_piece_of_a_secret() {
        let (long, short) = ("sk-canary-7f3a9c1e5b2d", "sk-canar");
        let redactor = Redactor::new([&Secret::new(long), &Secret::new(short)]);
        let texts = [
            format!("the key is {long}, say no more"),
            format!("ends with {long}"),
            "is a mask? no: sk-can you see; sk-cana".to_owned(),
            format!("{short} and {long}{long} s k"),
            format!("看 {long}。好的 ѕk"),
        ];
        for text in &texts {
            let whole = redactor.redact(text).into_owned();
            for (at, _) in text.char_indices() {
                let shown = redactor.redact_growing(&text[..at]).into_owned();
                assert!(whole.starts_with(&shown), "{:?}: {shown:?} is no beginning of {whole:?}", &text[..at]);
                assert!(!shown.contains("sk-canary"), "{shown:?}");
            }
        }
        assert_eq!(redactor.redact_growing("no mor"), "no mor");
        assert_eq!(redactor.redact_growing("it is sk-c"), "it is ");
        assert!(matches!(Redactor::default().redact_growing("sk-c"), Cow::Borrowed("sk-c")));
    }

    #[test]
    fn many_long_and_odd_secrets_are_learnt_without_a_panic() {
        let mut odd: Vec<Secret> =
            (0..500).map(|n| Secret::new(format!("secret-number-{n}-{}", "x".repeat(n)))).collect();
        odd.push(Secret::new("\0\u{1}\u{2}\u{3}\u{4}\u{5}\u{6}\u{7}\u{8}"));
        odd.push(Secret::new("€".repeat(100_000)));
        odd.push(Secret::new("(((((((((((((((((((((((((((((("));
        let redactor = Redactor::new(&odd);
        assert_eq!(redactor.redact("a secret-number-7-xxxxxxx b"), "a [redacted] b");
        assert_eq!(redactor.redact(&format!("a {} b", "€".repeat(100_000))), "a [redacted] b");
        redactor.learn(&odd);
    }

    proptest::proptest! {
        #[test]
        fn a_secret_anywhere_goes_and_nothing_else_does(before in "[ -~é中\n]{0,40}", after in "[ -~é中\n]{0,40}") {
            let redactor = Redactor::new([&Secret::new("sk-canary-7f3a9c1e5b2d")]);
            let clean = redactor.redact(&before).into_owned() == before && redactor.redact(&after).into_owned() == after;
            proptest::prop_assume!(clean);
            let text = format!("{before}sk-canary-7f3a9c1e5b2d{after}");
            proptest::prop_assert_eq!(redactor.redact(&text), format!("{before}[redacted]{after}"));
        }
    }
}
