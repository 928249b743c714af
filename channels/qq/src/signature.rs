//! Ed25519 as QQ uses it on webhooks. Pure. protocols.md §3.
//!
//! One key signs events and answers to validations: whoever gets an answer to a made-up validation holds a signed event.
//! So only what no event can look like is ever signed (protocols.md §0 (1)).

use channel_api::Secret;
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};

/// The key of a bot.
pub struct Key(Ed25519KeyPair);

impl Key {
    /// The key that an AppSecret stands for: the secret repeated to 32 bytes. `None` for an empty one.
    pub fn of(secret: &Secret) -> Option<Self> {
        let secret = secret.expose().as_bytes();
        let seed: Vec<u8> = secret.iter().copied().cycle().take(32).collect();
        Ed25519KeyPair::from_seed_unchecked(&seed).ok().map(Self)
    }

    /// Whether `signature` (hex) signs the timestamp and the raw body.
    pub fn verifies(&self, timestamp: &str, body: &[u8], signature: &str) -> bool {
        let Some(signature) = unhex(signature) else { return false };
        // The upper bits of S: a signature has one form only.
        if signature.len() != 64 || signature[63] & 0xE0 != 0 {
            return false;
        }
        let message = [timestamp.as_bytes(), body].concat();
        UnparsedPublicKey::new(&ED25519, self.0.public_key().as_ref()).verify(&message, &signature).is_ok()
    }

    /// Signs the answer to a validation, if the request is one: nothing that could be the beginning of an event.
    pub fn answer(&self, event_ts: &str, plain_token: &str) -> Option<String> {
        let token = (1..=64).contains(&plain_token.len()) && plain_token.bytes().all(|b| b.is_ascii_alphanumeric());
        let time = (1..=13).contains(&event_ts.len()) && event_ts.bytes().all(|b| b.is_ascii_digit());
        (token && time).then(|| self.sign(event_ts, plain_token.as_bytes()))
    }

    /// Signs an event, as QQ does.
    pub(crate) fn sign(&self, timestamp: &str, body: &[u8]) -> String {
        let signature = self.0.sign(&[timestamp.as_bytes(), body].concat());
        signature.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Signs an event as QQ does, for tests that play the platform.
pub fn sign(secret: &str, timestamp: &str, body: &[u8]) -> String {
    Key::of(&Secret::from(secret)).map(|key| key.sign(timestamp, body)).unwrap_or_default()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let text = text.trim().as_bytes();
    if text.len() != 128 {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    text.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn vectors() -> Value {
        serde_json::from_str(include_str!("fixtures/vectors.json")).expect("JSON")
    }

    fn word<'a>(value: &'a Value, key: &str) -> &'a str {
        value[key].as_str().expect("a text")
    }

    fn key(secret: &str) -> Key {
        Key::of(&Secret::from(secret)).expect("a key")
    }

    #[test]
    fn the_vectors_verify_and_tampered_ones_do_not() {
        for vector in vectors()["events"].as_array().expect("vectors") {
            let key = key(word(vector, "secret"));
            let (time, body, signature) = (word(vector, "timestamp"), word(vector, "body"), word(vector, "signature"));
            assert!(key.verifies(time, body.as_bytes(), signature), "{vector}");
            assert!(key.verifies(time, body.as_bytes(), &signature.to_uppercase()));
            assert!(!key.verifies("1", body.as_bytes(), signature));
            assert!(!key.verifies(time, format!("{body} ").as_bytes(), signature));
            for place in [0, 63, 126] {
                let mut bent = signature.to_owned().into_bytes();
                bent[place] = if bent[place] == b'0' { b'1' } else { b'0' };
                assert!(!key.verifies(time, body.as_bytes(), &String::from_utf8(bent).expect("ASCII")));
            }
        }
    }

    #[test]
    fn a_signature_has_one_form() {
        let key = key("DG5g3B4j9X2KOErG");
        let good = key.sign("1", b"{}");
        for bad in ["", "zz", &good[2..], &format!("{}e0", &good[..126]), &format!("{good}00"), &"g".repeat(128)] {
            assert!(!key.verifies("1", b"{}", bad), "{bad}");
        }
        assert!(Key::of(&Secret::from("")).is_none());
    }

    #[test]
    fn a_validation_is_answered_as_the_documentation_shows() {
        let vector = &vectors()["op13"];
        let answer = key(word(vector, "secret")).answer(word(vector, "event_ts"), word(vector, "plain_token"));
        assert_eq!(answer.as_deref(), Some(word(vector, "signature")));
    }

    #[test]
    fn op13_oracle_attack_gets_no_signature() {
        let vector = &vectors()["op13_oracle_attack"];
        let key = key(word(vector, "secret"));
        let (time, token) = (word(vector, "event_ts"), word(vector, "plain_token"));
        assert!(key.verifies(time, token.as_bytes(), word(vector, "naive_signature")), "the attack is real");
        assert_eq!(key.answer(time, token), None);
        for (time, token) in [
            ("", "abc"),
            ("12345678901234", "abc"),
            ("1{", "abc"),
            ("1", ""),
            ("1", "{}"),
            ("1", "a b"),
            ("1", "é"),
            ("1", &"a".repeat(65)),
        ] {
            assert_eq!(key.answer(time, token), None, "{time} {token}");
        }
        assert!(key.answer("1234567890123", &"a".repeat(64)).is_some());
    }
}
