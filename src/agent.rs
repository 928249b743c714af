//! Station 9, the agent's driver: performs the IO that a `Turn` asks for.

use serde::{Deserialize, Serialize};

use crate::{inbox::QueueConfig, lang::Lang};

pub mod prompt;
pub mod turn;

/// `[agent]`: the agent `main`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct AgentConfig {
    /// Its workspace folder, relative to the configuration file.
    pub workspace: String,
    /// The name of its model in `[models]`; `None` = `main`, or the scripted demo when there is no `[models.main]`.
    pub model: Option<String>,
    /// Models asked in turn when it does not answer.
    pub fallbacks: Vec<String>,
    /// The most model calls of one turn.
    pub max_rounds: u32,
    /// The most turns at once.
    pub workers: u32,
    /// The language of its rules; `None` = the person's.
    pub lang: Option<Lang>,
    /// The most characters of one tool result.
    pub tool_output_chars: u32,
    /// The most messages of history in a request.
    pub history_messages: u32,
    /// The most bytes of history in a request.
    pub history_bytes: u32,
    /// Where silence is honoured.
    pub silent_replies: SilentReplies,
    /// The queue.
    pub queue: QueueConfig,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            workspace: "workspace".to_owned(),
            model: None,
            fallbacks: Vec::new(),
            max_rounds: 15,
            workers: 64,
            lang: None,
            tool_output_chars: 16_000,
            history_messages: 60,
            history_bytes: 96 * 1024,
            silent_replies: SilentReplies::Everywhere,
            queue: QueueConfig::default(),
        }
    }
}

/// Where the agent may answer with silence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SilentReplies {
    /// In every chat.
    Everywhere,
    /// In groups only.
    Groups,
}
