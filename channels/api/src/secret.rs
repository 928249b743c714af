//! A value that cannot be printed or compared by accident: tokens and keys of the gateway and of every adapter.
//!
//! security.md rows 5, 27 and §3.5. Knows nothing of where it comes from.

use std::{fmt, sync::Arc};

use serde::{Deserialize, Deserializer, de};
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

/// Nothing.
impl Default for Secret {
    fn default() -> Self {
        Self::new("")
    }
}

impl From<&str> for Secret {
    fn from(value: &str) -> Self {
        Self::new(value)
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
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(value) => Ok(Self::new(value)),
            _ => Err(de::Error::custom("it must be a text in quotes")),
        }
    }
}

/// Compares two byte strings in a time that depends on neither's content: their SHA-256 hashes are compared.
pub fn constant_time_eq(left: &[u8], right: &[u8]) -> bool {
    Sha256::digest(left).ct_eq(&Sha256::digest(right)).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_shows_nothing_and_compares_by_hash() {
        let secret = Secret::new("sk-very-secret-value");
        assert_eq!(format!("{secret:?} {:#?}", Some(&secret)).matches("secret-value").count(), 0);
        assert!(secret.matches(b"sk-very-secret-value"));
        assert!(!secret.matches(b"sk-very-secret-valu"));
        assert!(!secret.matches(b""));
    }

    #[test]
    fn a_wrong_type_does_not_show_the_value() {
        for wrong in ["1234567890123", "[\"1234567890123\"]", "{\"a\":\"1234567890123\"}", "true", "null"] {
            let error = serde_json::from_str::<Secret>(wrong).expect_err("no string").to_string();
            assert!(error.contains("it must be a text in quotes") && !error.contains("1234567890123"), "{error}");
        }
        assert!(serde_json::from_str::<Secret>("\"abc\"").is_ok_and(|secret| secret.matches(b"abc")));
    }
}
