//! The `[models.<name>]` section: what a model is, checked, and built into a [`Model`].

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
};

use channel_api::Clock;
use serde::{Deserialize, Deserializer};

use super::{Model, scripted::Scripted};
use crate::{
    lang::{self, Lang},
    secrets::Secret,
};

/// One `[models.<name>]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Which wire format it speaks.
    #[serde(default)]
    pub provider: Provider,
    /// Where the API is, up to and without `/chat/completions`, e.g. `http://127.0.0.1:11434/v1`. Plain `http` only for
    /// this machine and private networks. Default: `https://api.openai.com/v1`.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The key; none for servers that want none.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// The model's name as the provider knows it. Needed for `openai`.
    #[serde(default)]
    pub model: Option<String>,
    /// The most requests at once (1 to 4,096). Others wait for a free place.
    #[serde(default = "default_max_concurrent")]
    pub max_concurrent: usize,
    /// How to reach it. This machine is always reached directly.
    #[serde(default)]
    pub proxy: Proxy,
    /// The rules file of a `scripted` model, relative to the configuration. Default: the embedded demo.
    #[serde(default)]
    pub rules: Option<PathBuf>,
    /// How many tokens a request and its answer may have together. Default: what the agent assumes.
    #[serde(default)]
    pub context_tokens: Option<u32>,
    /// The most tokens of an answer, where the agent sets no limit of its own. Default: the provider's.
    #[serde(default)]
    pub max_tokens: Option<u32>,
}

fn default_max_concurrent() -> usize {
    64
}

impl ModelConfig {
    /// The model of a gateway that has none configured: the scripted demo.
    pub fn demo() -> Self {
        Self {
            provider: Provider::Scripted,
            base_url: None,
            api_key: None,
            model: None,
            max_concurrent: default_max_concurrent(),
            proxy: Proxy::default(),
            rules: None,
            context_tokens: None,
            max_tokens: None,
        }
    }
}

/// A wire format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Provider {
    /// OpenAI's chat completions, which most providers and local servers speak.
    #[default]
    Openai,
    /// Rules from a file: no key, no network.
    Scripted,
}

/// How to reach a host: `proxy = "env" | "none" | "<scheme>://…"` with `http`, `https`, `socks5` or `socks5h`.
#[derive(Clone, Debug, Default)]
pub enum Proxy {
    /// As `HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY` and `NO_PROXY` say; private addresses directly.
    #[default]
    Env,
    /// Directly.
    None,
    /// Through this proxy. The address may hold a password.
    Url(Secret),
}

impl<'de> Deserialize<'de> for Proxy {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = Secret::deserialize(deserializer)?;
        match text.expose() {
            "env" => Ok(Self::Env),
            "none" => Ok(Self::None),
            url if ["http://", "https://", "socks5://", "socks5h://"].iter().any(|scheme| url.starts_with(scheme)) => {
                Ok(Self::Url(text))
            }
            _ => Err(serde::de::Error::custom(
                "expected \"env\", \"none\" or an address that starts with http://, https://, socks5:// or socks5h://",
            )),
        }
    }
}

/// What is wrong with a section: which key, and what to do, in one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuildError {
    /// The key, e.g. `models.main.base_url`.
    pub key: String,
    /// What is wrong and what to write instead; free of secrets.
    pub text: String,
}

impl BuildError {
    pub(super) fn new(name: &str, key: &str, text: String) -> Self {
        let key = if key.is_empty() { format!("models.{name}") } else { format!("models.{name}.{key}") };
        Self { key, text }
    }
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.text)
    }
}

impl std::error::Error for BuildError {}

/// Builds the model of one section. `base_dir` is the folder of the configuration file.
///
/// # Errors
/// [`BuildError`] when the section cannot work; nothing was connected to.
pub fn build(
    name: &str,
    config: &ModelConfig,
    clock: Arc<dyn Clock>,
    base_dir: &Path,
) -> Result<Arc<dyn Model>, BuildError> {
    if !(1..=4096).contains(&config.max_concurrent) {
        return Err(BuildError::new(name, "max_concurrent", lang::model_max_concurrent(Lang::current())));
    }
    match config.provider {
        Provider::Scripted => {
            let model = match &config.rules {
                Some(path) => Scripted::from_file(name, &base_dir.join(path), clock),
                None => Scripted::demo(name, clock),
            };
            Ok(Arc::new(model.map_err(|error| BuildError::new(name, "rules", error.to_string()))?))
        }
        Provider::Openai => Err(BuildError::new(name, "provider", "only `scripted` is built so far".to_owned())),
    }
}

/// Builds the models of all sections; those of one provider with one key share their breaker.
///
/// # Errors
/// The first [`BuildError`].
pub fn build_all(
    configs: &BTreeMap<String, ModelConfig>,
    clock: &Arc<dyn Clock>,
    base_dir: &Path,
) -> Result<BTreeMap<String, Arc<dyn Model>>, BuildError> {
    configs.iter().map(|(name, config)| Ok((name.clone(), build(name, config, Arc::clone(clock), base_dir)?))).collect()
}
