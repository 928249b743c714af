//! How servers that speak "OpenAI's" chat completions differ: a table by host, and what the configuration says otherwise.
//!
//! Adding a provider is adding a row. No model name stands here: they change faster than this file.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::remote::{Privacy, privacy};

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
    /// What stands for the reasoning of a call that has none, where the field must be there.
    pub reasoning_filler: &'static str,
    /// Models that think by default refuse a request without a stream unless it says `enable_thinking: false`.
    pub thinking_needs_stream: bool,
    /// "You exceeded your current quota" (429, `insufficient_quota`) is the limit of tokens a minute, not an empty account.
    pub quota_is_rate: bool,
    /// It is Ollama: what is missing can be pulled, what is not running can be started.
    pub ollama: bool,
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
    /// Those that called tools and have some.
    WithCallsIfAny,
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
    /// `x-api-key: …`
    XApiKey,
}

const DEFAULT: Quirks = Quirks {
    max_tokens: MaxTokens::MaxTokens,
    usage_in_stream: true,
    null_content: true,
    reasoning: SendReasoning::Never,
    call_ids: CallIds::Own,
    auth: Auth::Bearer,
    stream: true,
    reasoning_filler: "",
    thinking_needs_stream: false,
    quota_is_rate: false,
    ollama: false,
};

/// One row of the table.
struct Row {
    /// What `like` calls it.
    name: &'static str,
    /// Its hosts: the name itself, a domain above it when it begins with a dot, or a port of a private host after a colon.
    hosts: &'static [&'static str],
    quirks: Quirks,
}

/// The first row that fits counts. Where a row came from (read in November 2026):
///
/// * DeepSeek: api-docs.deepseek.com, "Thinking Mode" and "Error Codes".
/// * DashScope: help.aliyun.com model-studio, "Error codes" (`Throttling.AllocationQuota`/`insufficient_quota` is a rate or
///   token limit, 429) and "Rate limits"; langchain4j/langchain4j#3974 (`parameter.enable_thinking must be set to false for
///   non-streaming calls`); ModelScope says the same in other words: musistudio/claude-code-router#948.
/// * Moonshot: platform.kimi.ai "Errors"; theopenco/llmgateway#2093 (calls go back with `reasoning_content`, and an empty one
///   counts as missing, a space does not).
/// * OpenRouter: openrouter.ai docs, "Errors and Debugging", "Streaming", "Reasoning Tokens" (reasoning may go back).
/// * Ollama: docs.ollama.com "Context length"; ollama/ollama#2722 (the window cannot be set by `/v1`).
const TABLE: &[Row] = &[
    Row {
        name: "openai",
        hosts: &["api.openai.com"],
        quirks: Quirks { max_tokens: MaxTokens::MaxCompletionTokens, ..DEFAULT },
    },
    Row {
        name: "azure",
        hosts: &[".openai.azure.com"],
        quirks: Quirks { max_tokens: MaxTokens::MaxCompletionTokens, auth: Auth::ApiKey, ..DEFAULT },
    },
    // Refuses a request whose earlier calls come without their reasoning, and null content beside it.
    Row {
        name: "deepseek",
        hosts: &["api.deepseek.com"],
        quirks: Quirks { reasoning: SendReasoning::WithCalls, null_content: false, ..DEFAULT },
    },
    // Refuses null content and unknown lengths of ids.
    Row {
        name: "mistral",
        hosts: &["api.mistral.ai"],
        quirks: Quirks { call_ids: CallIds::Nine, null_content: false, usage_in_stream: false, ..DEFAULT },
    },
    Row {
        name: "dashscope",
        hosts: &[".aliyuncs.com"],
        quirks: Quirks { null_content: false, thinking_needs_stream: true, quota_is_rate: true, ..DEFAULT },
    },
    Row {
        name: "modelscope",
        hosts: &["api-inference.modelscope.cn"],
        quirks: Quirks { null_content: false, thinking_needs_stream: true, ..DEFAULT },
    },
    Row {
        name: "moonshot",
        hosts: &["api.moonshot.cn", "api.moonshot.ai"],
        quirks: Quirks { reasoning: SendReasoning::WithCalls, reasoning_filler: " ", null_content: false, ..DEFAULT },
    },
    Row {
        name: "openrouter",
        hosts: &["openrouter.ai"],
        quirks: Quirks { reasoning: SendReasoning::WithCallsIfAny, ..DEFAULT },
    },
    Row { name: "ollama", hosts: &[":11434"], quirks: Quirks { ollama: true, ..DEFAULT } },
];

impl Default for Quirks {
    fn default() -> Self {
        DEFAULT
    }
}

impl Quirks {
    /// The ways of a server at this host and port. A port says something on private hosts only.
    #[cfg(test)]
    pub fn of_server(host: &str, port: u16) -> Self {
        Self::known(host, port).unwrap_or_default()
    }

    /// The same; `None` for a server that nobody knows.
    pub fn known(host: &str, port: u16) -> Option<Self> {
        let fits = |pattern: &&str| match pattern.strip_prefix(':') {
            Some(known) => known.parse() == Ok(port) && privacy(host) != Privacy::Public,
            None if pattern.starts_with('.') => host.ends_with(pattern),
            None => host == *pattern,
        };
        TABLE.iter().find(|row| row.hosts.iter().any(fits)).map(|row| row.quirks)
    }

    /// With what the configuration says otherwise.
    pub fn with(self, overrides: &QuirkOverrides) -> Self {
        let known = match overrides.like {
            Some(Like(name)) => TABLE.iter().find(|row| row.name == name).map_or(self, |row| row.quirks),
            None => self,
        };
        Self {
            max_tokens: overrides.max_tokens_field.unwrap_or(known.max_tokens),
            usage_in_stream: overrides.usage_in_stream.unwrap_or(known.usage_in_stream),
            null_content: overrides.null_content.unwrap_or(known.null_content),
            reasoning: overrides.send_reasoning.unwrap_or(known.reasoning),
            call_ids: overrides.call_ids.unwrap_or(known.call_ids),
            auth: overrides.auth.unwrap_or(known.auth),
            stream: overrides.stream.unwrap_or(known.stream),
            ..known
        }
    }
}

/// The name of a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Like(&'static str);

impl<'de> Deserialize<'de> for Like {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        let row = TABLE.iter().find(|row| row.name == name);
        row.map(|row| Self(row.name)).ok_or_else(|| {
            let known: Vec<&str> = TABLE.iter().map(|row| row.name).collect();
            serde::de::Error::custom(format!("expected one of {}", known.join(", ")))
        })
    }
}

/// `[models.<name>.quirks]`: where a server differs from what is known of its host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct QuirkOverrides {
    /// A known provider whose ways this server has, e.g. `"dashscope"` for a relay in front of it.
    pub like: Option<Like>,
    /// `max_tokens` or `max_completion_tokens`.
    pub max_tokens_field: Option<MaxTokens>,
    /// Ask for the usage at the end of a stream.
    pub usage_in_stream: Option<bool>,
    /// Write `null` rather than an empty string in messages that only call tools.
    pub null_content: Option<bool>,
    /// `never`, `with_calls`, `with_calls_if_any` or `always`.
    pub send_reasoning: Option<SendReasoning>,
    /// `own` or `nine`.
    pub call_ids: Option<CallIds>,
    /// `bearer`, `api_key` or `x_api_key`.
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
        let of = |host: &str| Quirks::of_server(host, 443);
        assert_eq!(of("127.0.0.1"), DEFAULT);
        assert_eq!(of("api.openai.com").max_tokens, MaxTokens::MaxCompletionTokens);
        assert_eq!(of("evil-api.openai.com.example"), DEFAULT);
        assert_eq!(of("me.openai.azure.com").auth, Auth::ApiKey);
        let overrides: QuirkOverrides =
            toml::from_str("null_content = false\nsend_reasoning = \"always\"\nextra = { enable_thinking = false }")
                .expect("known keys");
        let quirks = DEFAULT.with(&overrides);
        assert!(!quirks.null_content && quirks.stream);
        assert_eq!(quirks.reasoning, SendReasoning::Always);
        assert_eq!(overrides.extra["enable_thinking"], Value::Bool(false));
        assert!(toml::from_str::<QuirkOverrides>("nul_content = true").is_err());
    }

    #[test]
    fn people_s_providers_are_known_by_their_hosts() {
        for host in ["dashscope.aliyuncs.com", "dashscope-intl.aliyuncs.com", "x.ap-southeast-1.maas.aliyuncs.com"] {
            let quirks = Quirks::of_server(host, 443);
            assert!(quirks.quota_is_rate && quirks.thinking_needs_stream && !quirks.null_content, "{host}");
        }
        for host in ["api.moonshot.cn", "api.moonshot.ai"] {
            assert_eq!(Quirks::of_server(host, 443).reasoning_filler, " ", "{host}");
        }
        assert!(Quirks::of_server("127.0.0.1", 11434).ollama && Quirks::of_server("ollama", 11434).ollama);
        assert!(!Quirks::of_server("127.0.0.1", 8080).ollama && !Quirks::of_server("example.com", 11434).ollama);
        assert_eq!(Quirks::of_server("openrouter.ai", 443).reasoning, SendReasoning::WithCallsIfAny);
    }

    #[test]
    fn a_relay_can_be_like_a_known_provider() {
        let overrides: QuirkOverrides = toml::from_str("like = \"dashscope\"\nnull_content = true").expect("known");
        let quirks = Quirks::of_server("relay.example.com", 443).with(&overrides);
        assert!(quirks.quota_is_rate && quirks.null_content);
        let error = toml::from_str::<QuirkOverrides>("like = \"dashscpe\"").expect_err("no such provider");
        assert!(error.message().contains("dashscope, modelscope, moonshot"), "{error}");
        for row in TABLE {
            let like = toml::from_str::<QuirkOverrides>(&format!("like = {:?}", row.name)).expect("its own name");
            assert_eq!(DEFAULT.with(&like), row.quirks, "{}", row.name);
        }
    }
}
