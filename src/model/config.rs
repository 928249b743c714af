//! The `[models.<name>]` section: what a model is, checked, and built into a [`Model`].

use std::{
    collections::BTreeMap,
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use channel_api::Clock;
use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE},
};
use reqwest::Url;
use serde::{Deserialize, Deserializer};
use tokio::sync::Semaphore;

use super::{
    Model,
    anthropic::{Anthropic, VERSION},
    openai::OpenAi,
    preset::Preset,
    quirks::{Auth, QuirkOverrides, Quirks},
    remote::{Breaker, CONNECT, IDLE, Limits, Privacy, Remote, TOTAL, Wire, privacy},
    scripted::Scripted,
};
use crate::{
    lang::{self, Lang},
    ledger::price::Price,
    secrets::{Redactor, Secret},
};

/// One `[models.<name>]` section.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// A known provider: its wire format, its address and the usual variable of its key. What else the section says counts
    /// before that.
    #[serde(default)]
    pub preset: Option<&'static Preset>,
    /// Which wire format it speaks. A preset knows it.
    #[serde(default)]
    pub provider: Provider,
    /// Where the API is, up to and without `/chat/completions` (or `/v1/messages`), e.g. `http://127.0.0.1:11434/v1`. Plain
    /// `http` only for this machine and private networks. Default: that of OpenAI, or of Anthropic.
    #[serde(default)]
    pub base_url: Option<String>,
    /// The key; none for servers that want none.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// The model's name as the provider knows it. Needed but for `scripted`.
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
    /// What it takes: `["text"]`, or `["text", "image"]` for one that can look at pictures.
    #[serde(default = "default_input")]
    pub input: Vec<Input>,
    /// How many seconds it may take to begin an answer (1 to 600), e.g. longer for a large model on a small machine.
    #[serde(default = "default_first_byte")]
    pub first_byte_timeout: u64,
    /// What it costs; `None` = its tokens are counted and no money is.
    #[serde(default)]
    pub price: Option<Price>,
    /// Where the server differs from what is known of its host.
    #[serde(default)]
    pub quirks: QuirkOverrides,
}

fn default_max_concurrent() -> usize {
    64
}

fn default_first_byte() -> u64 {
    60
}

fn default_input() -> Vec<Input> {
    vec![Input::Text]
}

/// What a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// Words.
    Text,
    /// Pictures.
    Image,
}

impl ModelConfig {
    /// Takes from its preset what the section leaves out; the key it found in the environment, for the redactor.
    pub fn fill_in<'a>(&mut self, env: impl Fn(&str) -> Option<&'a str>) -> Option<Secret> {
        let preset = self.preset?;
        self.provider = preset.provider;
        self.base_url.get_or_insert_with(|| preset.base_url.to_owned());
        if self.api_key.is_some() {
            return None;
        }
        if !self.is_at_home() {
            return None;
        }
        let found = preset.keys.iter().find_map(|name| env(name).filter(|key| !key.trim().is_empty()));
        self.api_key = found.map(Secret::new);
        self.api_key.clone()
    }

    /// The variable whose key it does without because its `base_url` is at another host than its preset's.
    pub fn withheld<'a>(&self, env: impl Fn(&str) -> Option<&'a str>) -> Option<&'static str> {
        let preset = self.preset.filter(|_| self.api_key.is_none() && !self.is_at_home())?;
        preset.keys.iter().copied().find(|name| env(name).is_some_and(|key| !key.trim().is_empty()))
    }

    /// Whether it is asked at its preset's own host and port: a key is for the host that gave it, whatever else speaks its
    /// language.
    fn is_at_home(&self) -> bool {
        let host = |url: &str| {
            let url = Url::parse(url.trim()).ok()?;
            Some((url.scheme() == "https", url.host_str()?.to_owned(), url.port()))
        };
        let own = self.base_url.as_deref().and_then(host);
        own.is_some() && own == self.preset.and_then(|preset| host(preset.base_url))
    }

    /// Whether its server is Ollama, as far as one can tell from here.
    pub fn is_ollama(&self) -> bool {
        let url = self.base_url.as_deref().and_then(|url| Url::parse(url.trim()).ok());
        let of = url.and_then(|url| Some(self.known_ways(url.host_str()?, url.port_or_known_default()?)));
        self.provider == Provider::Openai && of.is_some_and(|quirks| quirks.with(&self.quirks).ollama)
    }

    /// What is known of a server by its host; of a host that nobody knows, what is known of the preset's.
    fn known_ways(&self, host: &str, port: u16) -> Quirks {
        let usual = |preset: &Preset| Url::parse(preset.base_url).ok();
        Quirks::known(host, port)
            .or_else(|| {
                let url = self.preset.and_then(usual)?;
                Quirks::known(url.host_str()?, url.port_or_known_default()?)
            })
            .unwrap_or_default()
    }

    /// The model of a gateway that has none configured: the scripted demo.
    pub fn demo() -> Self {
        Self {
            preset: None,
            provider: Provider::Scripted,
            base_url: None,
            api_key: None,
            model: None,
            max_concurrent: default_max_concurrent(),
            proxy: Proxy::default(),
            rules: None,
            context_tokens: None,
            max_tokens: None,
            input: default_input(),
            first_byte_timeout: default_first_byte(),
            price: None,
            quirks: QuirkOverrides::default(),
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
    /// Anthropic's Messages API, which some others speak as well.
    Anthropic,
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
    Breakers::default().build(name, config, clock, base_dir)
}

/// Builds the models of all sections; sections of one model at one provider with one key share their breaker.
///
/// # Errors
/// The first [`BuildError`].
pub fn build_all(
    configs: &BTreeMap<String, ModelConfig>,
    clock: &Arc<dyn Clock>,
    base_dir: &Path,
) -> Result<BTreeMap<String, Arc<dyn Model>>, BuildError> {
    let mut breakers = Breakers::default();
    configs
        .iter()
        .map(|(name, config)| Ok((name.clone(), breakers.build(name, config, Arc::clone(clock), base_dir)?)))
        .collect()
}

/// The breakers by host, key and model: that one model of a provider is ill says nothing of its others.
#[derive(Default)]
struct Breakers(BTreeMap<(String, String, String), Arc<Breaker>>);

impl Breakers {
    fn build(
        &mut self,
        name: &str,
        config: &ModelConfig,
        clock: Arc<dyn Clock>,
        base_dir: &Path,
    ) -> Result<Arc<dyn Model>, BuildError> {
        let lang = Lang::current();
        if !(1..=4096).contains(&config.max_concurrent) {
            return Err(BuildError::new(name, "max_concurrent", lang::model_number(lang, 1, 4096)));
        }
        if !(1..=600).contains(&config.first_byte_timeout) {
            return Err(BuildError::new(name, "first_byte_timeout", lang::model_number(lang, 1, 600)));
        }
        match config.provider {
            Provider::Scripted => {
                let model = match &config.rules {
                    Some(path) => Scripted::from_file(name, &base_dir.join(path), clock),
                    None => Scripted::demo(name, clock),
                };
                Ok(Arc::new(model.map_err(|error| BuildError::new(name, "rules", error.to_string()))?))
            }
            Provider::Openai | Provider::Anthropic => Ok(Arc::new(self.remote(name, config, clock)?)),
        }
    }

    fn remote(&mut self, name: &str, config: &ModelConfig, clock: Arc<dyn Clock>) -> Result<Remote, BuildError> {
        let lang = Lang::current();
        let model = config.model.as_deref().map(str::trim).filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| BuildError::new(name, "model", lang::model_unnamed(lang)))?;
        let anthropic = config.provider == Provider::Anthropic;
        let url = match anthropic {
            true => endpoint(name, config.base_url.as_deref().unwrap_or(ANTHROPIC), "v1/messages")?,
            false => endpoint(name, config.base_url.as_deref().unwrap_or(OPENAI), "chat/completions")?,
        };
        let Reach { client, mut headers, quirks, key, proxy_secret } = Reach::of(name, config, &url)?;
        let host = url.host_str().unwrap_or_default().to_owned();
        let port = url.port_or_known_default().unwrap_or_default();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let accept = if quirks.stream { "text/event-stream, application/json" } else { "application/json" };
        headers.insert(ACCEPT, HeaderValue::from_static(accept));
        let (model, max_tokens, extra) = (model.to_owned(), config.max_tokens, config.quirks.extra.clone());
        let sees = config.input.contains(&Input::Image);
        let wire: Box<dyn Wire> = if anthropic {
            headers.insert("anthropic-version", HeaderValue::from_static(VERSION));
            Box::new(Anthropic { model: model.clone(), sees, stream: quirks.stream, max_tokens, extra })
        } else {
            Box::new(OpenAi { model: model.clone(), quirks, sees, max_tokens, extra })
        };
        let first_byte = Duration::from_secs(config.first_byte_timeout);
        let key_text = key.as_ref().map(|key| key.expose().to_owned()).unwrap_or_default();
        let breaker = self.0.entry((format!("{host}:{port}"), key_text, model.clone()));
        Ok(Remote {
            name: name.to_owned(),
            model,
            sees,
            quirks,
            context_tokens: config.context_tokens,
            clock,
            client,
            url,
            headers,
            wire,
            limits: Limits { first_byte: if quirks.stream { first_byte } else { TOTAL }, idle: IDLE, total: TOTAL },
            slots: Semaphore::new(config.max_concurrent),
            breaker: Arc::clone(breaker.or_default()),
            redactor: Redactor::new(key.iter().chain(&proxy_secret)),
        })
    }
}

pub(super) const OPENAI: &str = "https://api.openai.com/v1";
const ANTHROPIC: &str = "https://api.anthropic.com";

/// How a provider is reached, whatever is asked of it: the client with its proxy, the key in its header, what is known of
/// its ways.
pub(super) struct Reach {
    pub client: reqwest::Client,
    pub headers: HeaderMap,
    pub quirks: Quirks,
    pub key: Option<Secret>,
    /// The password in the proxy's address.
    pub proxy_secret: Option<Secret>,
}

impl Reach {
    pub fn of(name: &str, config: &ModelConfig, url: &Url) -> Result<Self, BuildError> {
        let lang = Lang::current();
        let host = url.host_str().unwrap_or_default();
        let mut quirks = config.known_ways(host, url.port_or_known_default().unwrap_or_default()).with(&config.quirks);
        if config.provider == Provider::Anthropic && config.quirks.auth.is_none() {
            quirks.auth = Auth::XApiKey;
        }
        let key = config.api_key.as_ref().map(|key| clean_key(name, key)).transpose()?.filter(|key| !key.is_empty());
        let mut headers = HeaderMap::new();
        if let Some(key) = &key {
            let (header, value) = match quirks.auth {
                Auth::Bearer => (AUTHORIZATION, format!("Bearer {}", key.expose())),
                Auth::ApiKey => (HeaderName::from_static("api-key"), key.expose().to_owned()),
                Auth::XApiKey => (HeaderName::from_static("x-api-key"), key.expose().to_owned()),
            };
            let mut value = HeaderValue::from_str(&value)
                .map_err(|_| BuildError::new(name, "api_key", lang::model_key_characters(lang)))?;
            value.set_sensitive(true);
            headers.insert(header, value);
        }
        let proxy_secret = match &config.proxy {
            Proxy::Url(url) => reqwest::Url::parse(url.expose()).ok().and_then(|url| url.password().map(Secret::new)),
            Proxy::Env | Proxy::None => None,
        };
        Ok(Self { client: client(name, host, &config.proxy)?, headers, quirks, key, proxy_secret })
    }
}

/// The address of an operation below a `base_url`: https, or plain http to this machine and private networks.
pub(crate) fn endpoint(name: &str, base_url: &str, operation: &str) -> Result<Url, BuildError> {
    let lang = Lang::current();
    let wrong = |text: String| BuildError::new(name, "base_url", text);
    let mut url = Url::parse(base_url.trim()).map_err(|_| wrong(lang::model_url(lang)))?;
    let host = url.host_str().filter(|host| !host.is_empty()).ok_or_else(|| wrong(lang::model_url(lang)))?.to_owned();
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong(lang::model_url_with_key(lang)));
    }
    match url.scheme() {
        "https" => {}
        "http" if privacy(&host) != Privacy::Public => {}
        "http" => return Err(wrong(lang::model_plain_http(lang, host))),
        _ => return Err(wrong(lang::model_url(lang))),
    }
    url.set_fragment(None);
    let path = url.path().trim_end_matches('/');
    // People paste the whole address, or a part of it.
    let mut path = path.strip_suffix(operation).unwrap_or(path).trim_end_matches('/');
    if let Some((version, _)) = operation.split_once('/').filter(|(version, _)| *version == "v1") {
        path = path.strip_suffix(version).unwrap_or(path).trim_end_matches('/');
    }
    url.set_path(&format!("{path}/{operation}"));
    Ok(url)
}

/// The key as it is sent. What people paste along (spaces, quotes, `Bearer`) is taken off.
pub(crate) fn clean_key(name: &str, key: &Secret) -> Result<Secret, BuildError> {
    let pasted = key.expose();
    let wrapping = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '“' | '”');
    let clean = pasted.trim_matches(wrapping);
    let clean = clean.strip_prefix("Bearer ").unwrap_or(clean).trim_matches(wrapping);
    if clean.chars().any(|c| !c.is_ascii_graphic()) {
        return Err(BuildError::new(name, "api_key", lang::model_key_characters(Lang::current())));
    }
    if clean != pasted {
        tracing::warn!(model = name, "took spaces, quotes or `Bearer` off the api_key");
    }
    Ok(Secret::new(clean))
}

/// The HTTP client of one model. This machine is always reached directly, whatever the environment says, and so is a
/// private network unless a proxy is written down.
pub(crate) fn client(name: &str, host: &str, proxy: &Proxy) -> Result<reqwest::Client, BuildError> {
    let builder = reqwest::Client::builder()
        .connect_timeout(CONNECT)
        .redirect(reqwest::redirect::Policy::none())
        .tcp_nodelay(true)
        .tcp_keepalive(Duration::from_secs(30))
        .pool_idle_timeout(Duration::from_secs(60))
        .user_agent(concat!("crawfish/", env!("CARGO_PKG_VERSION")));
    let wrong = || BuildError::new(name, "proxy", lang::model_proxy(Lang::current()));
    let builder = match (privacy(host), proxy) {
        (Privacy::Loopback, _) | (Privacy::Private, Proxy::Env) | (_, Proxy::None) => builder.no_proxy(),
        (Privacy::Public, Proxy::Env) => builder,
        (_, Proxy::Url(url)) => builder.proxy(reqwest::Proxy::all(url.expose()).map_err(|_| wrong())?),
    };
    builder.build().map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn section(text: &str) -> ModelConfig {
        toml::from_str(text).expect("a good section")
    }

    fn refused(text: &str) -> String {
        match build("main", &section(text), Arc::new(SystemClock::new()), Path::new(".")) {
            Ok(_) => panic!("this cannot work: {text}"),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn a_section_is_read_with_its_defaults_and_unknown_keys_are_refused() {
        let config = section("model = \"m\"");
        assert_eq!((config.provider, config.max_concurrent, config.first_byte_timeout), (Provider::Openai, 64, 60));
        assert!(matches!(config.proxy, Proxy::Env));
        assert!(toml::from_str::<ModelConfig>("modle = \"m\"").is_err());
        assert!(toml::from_str::<ModelConfig>("provider = \"opnai\"").is_err());
        let config = section("api_key = \"sk-secret-value\"\nproxy = \"socks5h://me:hidden-word@127.0.0.1:1080\"");
        let shown = format!("{config:?}");
        assert!(!shown.contains("secret-value") && !shown.contains("hidden-word"), "{shown}");
        let error = toml::from_str::<ModelConfig>("proxy = \"ftp://me:hidden-word@x\"").expect_err("no such proxy");
        assert!(!error.message().contains("hidden-word"), "{error}");
        build("demo", &ModelConfig::demo(), Arc::new(SystemClock::new()), Path::new(".")).expect("the demo");
    }

    #[test]
    fn an_address_is_https_or_private_and_holds_no_key() {
        let at =
            |url: &str| endpoint("main", url, "chat/completions").map(String::from).map_err(|error| error.to_string());
        let good = [
            ("https://api.example.com/v1", "https://api.example.com/v1/chat/completions"),
            ("https://api.example.com/v1/", "https://api.example.com/v1/chat/completions"),
            ("https://x.example/v1/chat/completions", "https://x.example/v1/chat/completions"),
            ("https://x.example/d?api-version=1", "https://x.example/d/chat/completions?api-version=1"),
            (" http://127.0.0.1:11434/v1\n", "http://127.0.0.1:11434/v1/chat/completions"),
            ("http://[::1]:8080", "http://[::1]:8080/chat/completions"),
            ("http://192.168.1.5/v1", "http://192.168.1.5/v1/chat/completions"),
            ("http://ollama:11434/v1", "http://ollama:11434/v1/chat/completions"),
            ("http://host.docker.internal/v1", "http://host.docker.internal/v1/chat/completions"),
        ];
        for (url, expected) in good {
            assert_eq!(at(url).as_deref(), Ok(expected));
        }
        for url in
            ["http://api.example.com/v1", "http://8.8.8.8/v1", "http://[2001:db8::1]/v1", "http://localhost.evil.com"]
        {
            assert!(at(url).expect_err(url).contains("http"), "{url}");
        }
        for url in ["https://a.example", "https://a.example/v1", "https://a.example/v1/messages/"] {
            let at = endpoint("main", url, "v1/messages").map(String::from);
            assert_eq!(at.as_deref(), Ok("https://a.example/v1/messages"));
        }
        for url in ["", "api.example.com", "ftp://x.example", "https://", "https://sk-key@x.example/v1"] {
            let error = at(url).expect_err(url);
            assert!(error.starts_with("models.main.base_url: ") && !error.contains("sk-key"), "{error}");
        }
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_key() {
        assert!(refused("").starts_with("models.main.model: "));
        assert!(refused("model = \" \"").starts_with("models.main.model: "));
        assert!(refused("model = \"m\"\nmax_concurrent = 0").starts_with("models.main.max_concurrent: "));
        assert!(refused("model = \"m\"\nfirst_byte_timeout = 0").starts_with("models.main.first_byte_timeout: "));
        let mut config = section("preset = \"claude\"\nmodel = \"m\"");
        let env = |name: &str| (name == "ANTHROPIC_API_KEY").then_some("sk-from-the-environment");
        assert_eq!(config.fill_in(env).expect("a key").expose(), "sk-from-the-environment");
        assert_eq!((config.provider, config.base_url.as_deref()), (Provider::Anthropic, Some(ANTHROPIC)));
        let mut config =
            section("preset = \"qwen\"\nmodel = \"m\"\nbase_url = \"https://x.example/v1\"\napi_key = \"k\"");
        assert!(config.fill_in(|_| Some("another")).is_none(), "what is written counts");
        assert_eq!(config.base_url.as_deref(), Some("https://x.example/v1"));
        for elsewhere in [
            "https://x.example/v1",
            "http://api.openai.com/v1",
            "https://api.openai.com.x.example",
            "https://api.openai.com:8443/v1",
            "?",
        ] {
            let mut config = section(&format!("preset = \"openai\"\nmodel = \"m\"\nbase_url = \"{elsewhere}\""));
            assert!(config.fill_in(|_| Some("sk-1")).is_none() && config.api_key.is_none(), "{elsewhere}");
            assert_eq!(config.withheld(|_| Some("sk-1")), Some("OPENAI_API_KEY"), "{elsewhere}");
            assert_eq!(config.withheld(|_| None), None);
        }
        let mut config = section("preset = \"openai\"\nmodel = \"m\"\nbase_url = \"https://api.openai.com/v2/\"");
        assert_eq!(config.fill_in(|_| Some("sk-1")).expect("its own host").expose(), "sk-1");
        assert_eq!(config.withheld(|_| Some("sk-1")), None);
        let error = toml::from_str::<ModelConfig>("preset = \"opnai\"").expect_err("no such provider");
        assert!(error.message().contains("qwen, deepseek, kimi, glm"), "{error}");
        let error = refused("model = \"m\"\napi_key = \"sk-se\\u0001cret\"");
        assert!(error.starts_with("models.main.api_key: ") && !error.contains("cret"), "{error}");
        assert!(refused("provider = \"scripted\"\nrules = \"none.yaml\"").starts_with("models.main.rules: "));
        for pasted in ["Bearer sk-1234\n", " \"Bearer sk-1234\"\n", "'sk-1234'", "sk-1234"] {
            assert_eq!(clean_key("main", &Secret::new(pasted)).expect("clean").expose(), "sk-1234");
        }
    }
}
