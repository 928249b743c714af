//! Secrets in memory: a value that cannot be printed or compared by accident, and the redactor that takes its value out of
//! every text that leaves the program.
//!
//! security.md rows 5, 27 and §3.5. Knows nothing of where a secret comes from.

use std::{
    borrow::Cow,
    collections::BTreeSet,
    fmt,
    sync::{Arc, PoisonError, RwLock},
};

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use regex::Regex;
use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A value that no log, error or listing may show. It has no `Display`, no `Serialize` and no `PartialEq`; `Debug` shows
/// that it is there and nothing of it.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Keeps `value`.
    pub fn new(value: impl Into<String>) -> Self {
        Self(Arc::from(value.into()))
    }

    /// The value, for the one place that sends it or signs with it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether `candidate` is the value, in a time that tells nothing of either: hashes of both sides are compared.
    pub fn matches(&self, candidate: &[u8]) -> bool {
        constant_time_eq(self.0.as_bytes(), candidate)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A wrong type would put the value into the error's text ("invalid type: integer `123456`"): say it without.
        let value = serde_json::Value::deserialize(deserializer)
            .map_err(|_| serde::de::Error::custom("expected a string in quotes"))?;
        match value {
            serde_json::Value::String(value) => Ok(Self::new(value)),
            _ => Err(serde::de::Error::custom("expected a string in quotes")),
        }
    }
}

/// Compares two byte strings in a time that depends on neither's content: their SHA-256 hashes are compared.
pub fn constant_time_eq(left: &[u8], right: &[u8]) -> bool {
    Sha256::digest(left).ct_eq(&Sha256::digest(right)).into()
}

/// What stands where a secret stood.
pub const REDACTED: &str = "[redacted]";

/// The shortest value that is looked for: a shorter one would eat ordinary words.
const MIN_LENGTH: usize = 8;

/// Takes known secrets out of a text: the exact values, their base64 (both alphabets, at any offset inside a longer
/// encoded text), hexadecimal, URL-encoded and JSON-escaped forms, each also where white space breaks it (`base64` and
/// `xxd -p` write lines of 76 and 60 characters). Cheap to clone; clones know the same secrets, those learnt later too.
#[derive(Clone, Default)]
pub struct Redactor {
    known: Arc<RwLock<Known>>,
}

#[derive(Default)]
struct Known {
    forms: BTreeSet<String>,
    pattern: Option<Arc<Regex>>,
}

impl Redactor {
    /// Looks for these values; those shorter than 8 bytes are left out.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a Secret>) -> Self {
        let redactor = Self::default();
        redactor.learn(secrets);
        redactor
    }

    /// Looks for these values too from now on, here and in every clone. What is known already costs nothing.
    pub fn learn<'a>(&self, secrets: impl IntoIterator<Item = &'a Secret>) {
        let new: BTreeSet<String> = secrets.into_iter().flat_map(|secret| forms_of(secret.expose())).collect();
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if new.is_subset(&known.forms) {
            return;
        }
        known.forms.extend(new);
        // The longest first: of two secrets that start alike, the whole of the longer one goes.
        let mut forms: Vec<&String> = known.forms.iter().collect();
        forms.sort_by(|a, b| b.len().cmp(&a.len()).then_with(|| a.cmp(b)));
        let alternatives: Vec<String> = forms.iter().map(|form| regex::escape(form)).collect();
        let pattern = regex::RegexBuilder::new(&alternatives.join("|"))
            .size_limit(64 << 20)
            .build()
            .expect("escaped literals are a valid pattern");
        known.pattern = Some(Arc::new(pattern));
    }

    /// `text` without the secrets; borrowed when there was none in it.
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let pattern = self.known.read().unwrap_or_else(PoisonError::into_inner).pattern.clone();
        let Some(pattern) = pattern else { return Cow::Borrowed(text) };
        match pattern.replace_all(text, REDACTED) {
            Cow::Borrowed(text) => without_broken(text, &pattern).map_or(Cow::Borrowed(text), Cow::Owned),
            Cow::Owned(text) => Cow::Owned(without_broken(&text, &pattern).unwrap_or(text)),
        }
    }
}

/// The text without the secrets that white space breaks; `None` when there is none.
fn without_broken(text: &str, pattern: &Regex) -> Option<String> {
    if !text.contains(char::is_whitespace) {
        return None;
    }
    let mut squeezed = String::with_capacity(text.len());
    // Where in the text each stretch without white space begins: (place in `squeezed`, place in `text`).
    let mut stretches: Vec<(usize, usize)> = Vec::new();
    for word in text.split(char::is_whitespace).filter(|word| !word.is_empty()) {
        stretches.push((squeezed.len(), word.as_ptr() as usize - text.as_ptr() as usize));
        squeezed.push_str(word);
    }
    let place = |at: usize| {
        let stretch = stretches[stretches.partition_point(|(begin, _)| *begin <= at) - 1];
        stretch.1 + (at - stretch.0)
    };
    let mut out = String::new();
    let mut done = 0;
    for found in pattern.find_iter(&squeezed) {
        // The last character's own place: white space behind it stays.
        let (begin, end) = (place(found.start()), place(found.end() - 1) + 1);
        let end = text.ceil_char_boundary(end);
        out.push_str(&text[done..begin]);
        out.push_str(REDACTED);
        done = end;
    }
    (done > 0).then(|| out + &text[done..])
}

impl fmt::Debug for Redactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Redactor(***)")
    }
}

/// Every spelling of `value` that is looked for.
fn forms_of(value: &str) -> Vec<String> {
    if value.len() < MIN_LENGTH {
        return Vec::new();
    }
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
    fn row_05_a_secret_shows_nothing_and_compares_by_hash() {
        let secret = Secret::new("sk-very-secret-value");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)).matches("secret-value").count(), 0);
        assert!(secret.matches(b"sk-very-secret-value"));
        assert!(!secret.matches(b"sk-very-secret-valu"));
        assert!(!secret.matches(b""));
    }

    #[test]
    fn a_wrong_type_in_the_file_does_not_show_the_value() {
        #[derive(Debug, Deserialize)]
        struct Section {
            #[expect(dead_code, reason = "only its error is looked at")]
            key: Secret,
        }
        let error = toml::from_str::<Section>("key = 1234567890123").expect_err("a number is not a key");
        assert!(error.message().contains("expected a string"), "{error}");
        assert!(!error.message().contains("1234567890123"), "{error}");
        assert!(toml::from_str::<Section>("key = \"abc\"").is_ok());
    }

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
}
