//! How servers that speak "OpenAI's" chat completions differ: a table by host, and what the configuration says otherwise.
//!
//! Adding a provider is adding a row. No model name stands here: they change faster than this file.

use serde::Deserialize;
use serde_json::{Map, Value};

/// One server's ways.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Quirks {
    /// How the limit of the answer's tokens is named.
    pub max_tokens: MaxTokens,
    /// The last chunk of a stream carries the usage when asked (`stream_options.include_usage`).
    pub usage_in_stream: bool,
    /// The content of an assistant message that only calls tools is `null`; else an empty string.
    pub null_content: bool,
    /// Whether the model's reasoning goes back.
    pub reasoning: SendReasoning,
    /// How call ids are written.
    pub call_ids: CallIds,
    /// How the key is sent.
    pub auth: Auth,
    /// The answer comes as a stream.
    pub stream: bool,
}

/// The name of the limit of an answer's tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MaxTokens {
    /// The old name, which nearly every server knows.
    MaxTokens,
    /// OpenAI's new one; its reasoning models refuse the old.
    MaxCompletionTokens,
}

/// Which assistant messages go back with their reasoning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SendReasoning {
    /// None.
    Never,
    /// Those that called tools; the field is there even when there is nothing in it.
    WithCalls,
    /// All that have some.
    Always,
}

/// How call ids are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallIds {
    /// Our own, as they are.
    Own,
    /// Nine letters and digits, made from ours.
    Nine,
}

/// How the key is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Auth {
    /// `Authorization: Bearer …`
    Bearer,
    /// `api-key: …`
    ApiKey,
}

const DEFAULT: Quirks = Quirks {
    max_tokens: MaxTokens::MaxTokens,
    usage_in_stream: true,
    null_content: true,
    reasoning: SendReasoning::Never,
    call_ids: CallIds::Own,
    auth: Auth::Bearer,
    stream: true,
};

/// By host: its own name, or a domain above it when it begins with a dot. The first that fits.
const TABLE: &[(&str, Quirks)] = &[
    ("api.openai.com", Quirks { max_tokens: MaxTokens::MaxCompletionTokens, ..DEFAULT }),
    (".openai.azure.com", Quirks { max_tokens: MaxTokens::MaxCompletionTokens, auth: Auth::ApiKey, ..DEFAULT }),
    // Refuses a request whose earlier calls come without their reasoning, and null content beside it.
    ("api.deepseek.com", Quirks { reasoning: SendReasoning::WithCalls, null_content: false, ..DEFAULT }),
    // Refuses null content and unknown lengths of ids.
    ("api.mistral.ai", Quirks { call_ids: CallIds::Nine, null_content: false, usage_in_stream: false, ..DEFAULT }),
    (".aliyuncs.com", Quirks { null_content: false, ..DEFAULT }),
];

impl Quirks {
    /// The ways of a host.
    pub fn of_host(host: &str) -> Self {
        let fits = |pattern: &str| if pattern.starts_with('.') { host.ends_with(pattern) } else { host == pattern };
        TABLE.iter().find(|(pattern, _)| fits(pattern)).map_or(DEFAULT, |(_, quirks)| *quirks)
    }

    /// With what the configuration says otherwise.
    pub fn with(self, overrides: &QuirkOverrides) -> Self {
        Self {
            max_tokens: overrides.max_tokens_field.unwrap_or(self.max_tokens),
            usage_in_stream: overrides.usage_in_stream.unwrap_or(self.usage_in_stream),
            null_content: overrides.null_content.unwrap_or(self.null_content),
            reasoning: overrides.send_reasoning.unwrap_or(self.reasoning),
            call_ids: overrides.call_ids.unwrap_or(self.call_ids),
            auth: overrides.auth.unwrap_or(self.auth),
            stream: overrides.stream.unwrap_or(self.stream),
        }
    }
}

/// `[models.<name>.quirks]`: where a server differs from what is known of its host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuirkOverrides {
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens_field: Option<MaxTokens>,
    /// Ask for the usage at the end of a stream.
    pub usage_in_stream: Option<bool>,
    /// Write `null` rather than an empty string in messages that only call tools.
    pub null_content: Option<bool>,
    /// `never`, `with_calls` or `always`.
    pub send_reasoning: Option<SendReasoning>,
    /// `own` or `nine`.
    pub call_ids: Option<CallIds>,
    /// `bearer` or `api_key`.
    pub auth: Option<Auth>,
    /// Ask for a stream.
    pub stream: Option<bool>,
    /// Fields added to every request as they are, e.g. `temperature = 0.2` or `enable_thinking = false`.
    pub extra: Map<String, Value>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_its_row_and_the_configuration_the_last_word() {
        assert_eq!(Quirks::of_host("127.0.0.1"), DEFAULT);
        assert_eq!(Quirks::of_host("api.openai.com").max_tokens, MaxTokens::MaxCompletionTokens);
        assert_eq!(Quirks::of_host("evil-api.openai.com.example"), DEFAULT);
        assert_eq!(Quirks::of_host("me.openai.azure.com").auth, Auth::ApiKey);
        let overrides: QuirkOverrides =
            toml::from_str("null_content = false\nsend_reasoning = \"always\"\nextra = { enable_thinking = false }")
                .expect("known keys");
        let quirks = DEFAULT.with(&overrides);
        assert!(!quirks.null_content && quirks.stream);
        assert_eq!(quirks.reasoning, SendReasoning::Always);
        assert_eq!(overrides.extra["enable_thinking"], Value::Bool(false));
        assert!(toml::from_str::<QuirkOverrides>("nul_content = true").is_err());
    }
}
