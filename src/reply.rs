//! Decides what of a model's answer people see: a text, or nothing and why. Never performs IO.
//!
//! The one matcher for streamed previews ([`HoldBack`]), finals, scheduled and heartbeat turns. In order: reasoning and
//! wire markers go (`reply/think.rs`), reply tags and media lines are read and go (`reply/tags.rs`), then the words for
//! silence are looked for (`reply/token.rs`), and beside `HEARTBEAT_OK` an acknowledgement is told from an alert
//! (`reply/heartbeat.rs`). What is quoted in code is never obeyed (`reply/code.rs`). A text in which none of this
//! occurs is delivered byte for byte, but for the blanks around it. Rules: design.md §7, openclaw-parity.md §1 and
//! §3.2; where they are silent, a text is delivered rather than lost, and a token is not shown. All of it is linear.

mod code;
mod heartbeat;
mod hold;
pub mod links;
mod tags;
mod think;
mod token;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use self::heartbeat::effectively_empty_heartbeat;
pub use self::hold::HoldBack;
pub use self::tags::{MAX_MEDIA, ReplyTo};
pub use self::think::{Stripped, strip_reasoning};
use self::token::Token;

/// What becomes of an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is sent.
    Reply(Text),
    /// Nothing is sent.
    Silent(SilentReason),
}

/// An answer as people get it. The text may be empty when there is media.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Text {
    /// The visible text, trimmed.
    pub text: String,
    /// Which message it replies to.
    pub reply_to: ReplyTo,
    /// Paths and URLs of its `MEDIA:` lines, in order, at most [`MAX_MEDIA`]; nothing is known of them yet.
    pub media: Vec<String>,
    /// Whether audio goes out as a voice message.
    pub audio_as_voice: bool,
}

/// Why an answer is not sent; shown in the dashboard and by `crawfish trace`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SilentReason {
    /// The model asked for silence.
    NoReply,
    /// A heartbeat found nothing to report.
    HeartbeatOk,
    /// There was nothing in it.
    Empty,
    /// Only scraps of a wire format or a lone rule.
    Artifact,
    /// Only reasoning, which is nobody's business.
    Reasoning,
}

impl SilentReason {
    /// Its name in rows, traces and `silent: "…"`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::NoReply => "no_reply",
            Self::HeartbeatOk => "heartbeat_ok",
            Self::Empty => "empty",
            Self::Artifact => "artifact",
            Self::Reasoning => "reasoning",
        }
    }
}

impl std::fmt::Display for SilentReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Under which rules an answer is judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The turn is a heartbeat: an acknowledgement beside `HEARTBEAT_OK` is dropped.
    pub heartbeat: bool,
    /// The longest acknowledgement, in characters.
    pub ack_max_chars: usize,
    /// Whether this chat accepts silence (`silent_replies`). A token is never shown either way; without it
    /// [`Outcome::wants_answer`] says that the model owes an answer.
    pub may_be_silent: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { heartbeat: false, ack_max_chars: 300, may_be_silent: true }
    }
}

/// Rounds in which removed machinery may uncover more of it; text nested deeper is sent as it stands.
const MAX_NESTING: usize = 16;
/// Rounds in which a cut token may uncover something else to judge.
const MAX_ROUNDS: usize = 6;

impl Outcome {
    /// Judges an answer that is only text.
    pub fn from_text(raw: &str, policy: &Policy) -> Self {
        Self::from_parts(raw, false, policy)
    }

    /// Judges an answer whose turn also has something to send beside the text (`has_media`): that is never withheld,
    /// so silence then means an empty text.
    pub fn from_parts(raw: &str, has_media: bool, policy: &Policy) -> Self {
        let mut found = Found::default();
        let verdict = judge(raw, has_media, policy, &mut found);
        let has_media = has_media || !found.tags.media.is_empty();
        let text = match verdict {
            Ok(text) => text,
            Err(_) if has_media => String::new(),
            Err(reason) => return Self::Silent(reason),
        };
        Self::Reply(Text {
            text,
            reply_to: found.tags.reply_to,
            media: found.tags.media,
            audio_as_voice: found.tags.audio_as_voice,
        })
    }

    /// Why it is silent, if it is.
    pub fn silent(&self) -> Option<SilentReason> {
        match self {
            Self::Reply(_) => None,
            Self::Silent(reason) => Some(*reason),
        }
    }

    /// Whether the model should be asked once more: nothing usable came, or it was silent where an answer is owed.
    /// After reasoning that ends in a token nothing is owed (bad-inputs.md 60): that silence is NO_REPLY.
    pub fn wants_answer(&self, policy: &Policy) -> bool {
        match self.silent() {
            None | Some(SilentReason::HeartbeatOk) => false,
            Some(SilentReason::NoReply) => !policy.may_be_silent && !policy.heartbeat,
            Some(SilentReason::Empty | SilentReason::Artifact | SilentReason::Reasoning) => true,
        }
    }
}

#[derive(Default)]
struct Found {
    tags: tags::Tags,
    reasoning: Option<String>,
    artefacts: bool,
}

impl From<Token> for SilentReason {
    fn from(token: Token) -> Self {
        match token {
            Token::NoReply => Self::NoReply,
            Token::HeartbeatOk => Self::HeartbeatOk,
        }
    }
}

fn judge(raw: &str, has_media: bool, policy: &Policy, found: &mut Found) -> Result<String, SilentReason> {
    let mut text = without_nul(raw);
    let mut said = None;
    for _ in 0..MAX_ROUNDS {
        text = strip_machinery(&text, false, found);
        let trimmed = text.trim();
        if is_blank(trimmed) {
            let reasoned = || found.reasoning.as_deref().and_then(token::ends_in_token);
            return Err(match said.or_else(reasoned) {
                Some(token) => SilentReason::from(token),
                None if found.artefacts => SilentReason::Artifact,
                None if found.reasoning.is_some() => SilentReason::Reasoning,
                None => SilentReason::Empty,
            });
        }
        if token::is_rule(trimmed) {
            return Err(said.map_or(SilentReason::Artifact, SilentReason::from));
        }
        if let Some(token) = token::whole(trimmed) {
            return Err(SilentReason::from(token));
        }
        let Some(cut) = token::cut(trimmed) else {
            return Ok(trimmed.to_owned());
        };
        said = Some(cut.token);
        let acknowledged = policy.heartbeat
            && cut.token == Token::HeartbeatOk
            && !has_media
            && found.tags.media.is_empty()
            && cut.text.chars().count() <= policy.ack_max_chars
            && !heartbeat::reads_as_alert(trimmed);
        if acknowledged {
            return Err(SilentReason::HeartbeatOk);
        }
        text = cut.text;
    }
    Ok(text.trim().to_owned())
}

/// NUL is legal in Rust and JSON, but in no database and on no platform (bad-inputs.md 65).
fn without_nul(raw: &str) -> String {
    raw.trim().replace('\0', "\u{fffd}")
}

fn is_blank(text: &str) -> bool {
    text.chars().all(|c| {
        c.is_whitespace() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{ad}')
    })
}

/// Takes out reasoning, wire markers, tags and media lines, until nothing more comes to light.
fn strip_machinery(text: &str, growing: bool, found: &mut Found) -> String {
    let mut text = text.to_owned();
    for _ in 0..MAX_NESTING {
        let stripped = think::strip(text.trim_start(), growing);
        found.artefacts |= stripped.artefacts;
        if stripped.reasoning.is_some() {
            found.reasoning = stripped.reasoning;
        }
        let next = tags::strip(&stripped.visible, growing, &mut found.tags);
        let settled = next == text;
        text = next;
        if settled {
            break;
        }
    }
    text
}

/// What of an unfinished answer may be shown: always a beginning of the final text.
fn preview(raw: &str) -> String {
    let raw = raw.trim_start().replace('\0', "\u{fffd}");
    let text = strip_machinery(&raw, true, &mut Found::default());
    token::shown(&text).to_owned()
}
