//! What a look at an account found, in words for its owner.

use serde::Serialize;

/// A sentence in both languages of the product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Said {
    /// Plain English.
    pub en: String,
    /// Natural Chinese.
    pub zh: String,
}

impl Said {
    /// The sentence in both languages.
    pub fn new(en: impl Into<String>, zh: impl Into<String>) -> Self {
        Self { en: en.into(), zh: zh.into() }
    }
}

/// Stands in the words of a [`Finding`] for the host and port at which the gateway takes what the platform sends: the
/// adapter does not know them, whoever shows the finding puts them there.
pub const GATEWAY_ADDRESS: &str = "<gateway>";

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// A stable name for programs, e.g. `token`, `intent:message_content`, `scope:im:message`.
    pub name: String,
    /// Whether it is as it must be.
    pub state: FindingState,
    /// What was found.
    pub said: Said,
    /// The one thing to do about it: where to click, which line to change.
    pub fix: Option<Said>,
}

/// How one thing stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingState {
    /// As it must be.
    Fine,
    /// It works, and something may surprise.
    Warning,
    /// The channel cannot work so.
    Wrong,
    /// Could not be found out from here.
    Unknown,
}

impl Finding {
    /// All is well with it.
    pub fn fine(name: impl Into<String>, en: impl Into<String>, zh: impl Into<String>) -> Self {
        Self { name: name.into(), state: FindingState::Fine, said: Said::new(en, zh), fix: None }
    }

    /// The channel cannot work so; `fix` says what to do.
    pub fn wrong(name: impl Into<String>, said: Said, fix: Said) -> Self {
        Self { name: name.into(), state: FindingState::Wrong, said, fix: Some(fix) }
    }

    /// It works, and something may surprise; `fix` says what to do.
    pub fn warning(name: impl Into<String>, said: Said, fix: Said) -> Self {
        Self { name: name.into(), state: FindingState::Warning, said, fix: Some(fix) }
    }

    /// It could not be found out; `fix` says how its owner finds out.
    pub fn unknown(name: impl Into<String>, said: Said, fix: Said) -> Self {
        Self { name: name.into(), state: FindingState::Unknown, said, fix: Some(fix) }
    }
}
