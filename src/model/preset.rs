//! Known providers: where each is, which wire format it speaks, whose ways it has and how its key is usually called.
//!
//! One row a provider. No model name stands here: they change faster than this file, and are the person's to choose.

use serde::Deserialize;

use super::config::Provider;

/// A provider.
#[derive(Debug, PartialEq, Eq)]
pub struct Preset {
    /// What `preset` and `crawfish init` call it.
    pub name: &'static str,
    /// What else people call it.
    also: &'static [&'static str],
    /// The wire format.
    pub provider: Provider,
    /// Where its API is.
    pub base_url: &'static str,
    /// The environment variables its key usually stands in, the first that is set counts; none for a server without keys.
    pub keys: &'static [&'static str],
}

/// The providers, in the order in which they are offered. Addresses and names of keys from the providers' own pages, read in
/// November 2026: help.aliyun.com model-studio, api-docs.deepseek.com, platform.moonshot.cn, docs.bigmodel.cn,
/// volcengine.com docs 82379, docs.siliconflow.cn, openrouter.ai docs, docs.ollama.com, platform.openai.com,
/// docs.claude.com.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "qwen",
        also: &["dashscope", "bailian"],
        provider: Provider::Openai,
        base_url: "https://dashscope.aliyuncs.com/compatible-mode/v1",
        keys: &["DASHSCOPE_API_KEY"],
    },
    Preset {
        name: "deepseek",
        also: &[],
        provider: Provider::Openai,
        base_url: "https://api.deepseek.com",
        keys: &["DEEPSEEK_API_KEY"],
    },
    Preset {
        name: "kimi",
        also: &["moonshot"],
        provider: Provider::Openai,
        base_url: "https://api.moonshot.cn/v1",
        keys: &["MOONSHOT_API_KEY"],
    },
    Preset {
        name: "glm",
        also: &["zhipu", "bigmodel"],
        provider: Provider::Openai,
        base_url: "https://open.bigmodel.cn/api/paas/v4",
        keys: &["ZAI_API_KEY", "ZHIPUAI_API_KEY"],
    },
    Preset {
        name: "doubao",
        also: &["ark", "volcengine"],
        provider: Provider::Openai,
        base_url: "https://ark.cn-beijing.volces.com/api/v3",
        keys: &["ARK_API_KEY"],
    },
    Preset {
        name: "siliconflow",
        also: &[],
        provider: Provider::Openai,
        base_url: "https://api.siliconflow.cn/v1",
        keys: &["SILICONFLOW_API_KEY"],
    },
    Preset {
        name: "openrouter",
        also: &[],
        provider: Provider::Openai,
        base_url: "https://openrouter.ai/api/v1",
        keys: &["OPENROUTER_API_KEY"],
    },
    Preset { name: "ollama", also: &[], provider: Provider::Openai, base_url: "http://127.0.0.1:11434/v1", keys: &[] },
    Preset {
        name: "openai",
        also: &[],
        provider: Provider::Openai,
        base_url: "https://api.openai.com/v1",
        keys: &["OPENAI_API_KEY"],
    },
    Preset {
        name: "anthropic",
        also: &["claude"],
        provider: Provider::Anthropic,
        base_url: "https://api.anthropic.com",
        keys: &["ANTHROPIC_API_KEY"],
    },
];

impl Preset {
    /// The provider of that name, or of another one people have for it.
    pub fn named(name: &str) -> Option<&'static Self> {
        let name = name.trim().to_ascii_lowercase();
        PRESETS.iter().find(|preset| preset.name == name || preset.also.contains(&name.as_str()))
    }
}

/// `preset = "…"`.
impl<'de> Deserialize<'de> for &'static Preset {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Preset::named(&name).ok_or_else(|| {
            let known: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
            serde::de::Error::custom(format!("expected one of {}", known.join(", ")))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_one_provider_s_and_every_address_can_be_used() {
        let mut seen = std::collections::BTreeSet::new();
        for preset in PRESETS {
            for name in preset.also.iter().chain([&preset.name]) {
                assert!(seen.insert(*name), "{name} twice");
                assert_eq!(Preset::named(&name.to_uppercase()), Some(preset));
            }
            assert!(preset.base_url.starts_with("https://") || preset.keys.is_empty(), "{}", preset.name);
        }
        assert_eq!(Preset::named("nobody"), None);
    }
}
