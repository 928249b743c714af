//! The section `[channels.qq.<account>]`, without the keys that every channel has.

use std::fmt;

use serde::{Deserialize, Deserializer, de};
use url::{Host, Url};

/// Where the API is, when the config does not say.
const API_URL: &str = "https://api.sgroup.qq.com";
/// The API that shows only the test groups and channels of the console.
const SANDBOX_URL: &str = "https://sandbox.api.sgroup.qq.com";
/// Where tokens are given out, when the config does not say.
const TOKEN_URL: &str = "https://bots.qq.com/app/getAppAccessToken";

/// One bot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// How events come.
    #[serde(default)]
    pub mode: Mode,
    /// AppID of the console's page "开发设置": digits.
    #[serde(deserialize_with = "digits")]
    pub app_id: String,
    /// AppSecret of the same page.
    pub app_secret: Secret,
    /// Where the API is. Plain `http` only on this machine.
    #[serde(default)]
    pub api_url: Option<String>,
    /// Where tokens are given out. Plain `http` only on this machine.
    #[serde(default)]
    pub token_url: Option<String>,
    /// Calls the sandbox of the API instead: for the test groups and channels that the console names.
    #[serde(default)]
    pub sandbox: bool,
    /// Which events the gateway is asked for. Webhook mode knows no intents: the console has a click for each.
    #[serde(default)]
    pub intents: Intents,
    /// Whether answers are sent as Markdown.
    #[serde(default)]
    pub markdown: Markdown,
}

/// How events come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Over a WebSocket that the gateway opens: works behind any router.
    #[default]
    Ws,
    /// QQ posts them to the gateway.
    Webhook,
}

/// Which events are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Intents {
    /// Private chats and groups alone.
    Chats,
    /// Those, and guild channels where the bot is mentioned, guild private messages, buttons.
    #[default]
    Public,
    /// Those, and every message of a guild channel: for bots of the private domain.
    Private,
}

/// Whether answers are sent as Markdown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Markdown {
    /// Until QQ says that this bot may not; then as plain text for a week.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// A text that is never shown.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl From<&str> for Secret {
    fn from(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[secret]")
    }
}

impl<'de> Deserialize<'de> for Secret {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The deserializer's own words for a wrong type would show the value.
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text)),
            _ => Err(de::Error::custom("`app_secret` must be a text in quotes")),
        }
    }
}

/// A number, with or without quotes: the console shows one, and people copy it as it stands.
fn digits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => Ok(text),
        serde_json::Value::Number(number) => Ok(number.to_string()),
        _ => Err(de::Error::custom("`app_id` must be the AppID of the console, e.g. \"102012345\"")),
    }
}

/// Why no channel can be built. Each names its key; none shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The AppID is none.
    #[error("`app_id` {0}")]
    BadAppId(&'static str),
    /// The AppSecret is none.
    #[error("`app_secret` {0}")]
    BadSecret(&'static str),
    /// Not an address that can be called.
    #[error("`{key}` {why}")]
    BadUrl {
        /// `api_url` or `token_url`.
        key: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// Two keys that exclude each other.
    #[error("`sandbox` and `api_url` exclude each other: leave one out")]
    TwoApis,
    /// The HTTP client could not be built.
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

impl Config {
    /// Everything that can be said without asking QQ.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        let id = self.app_id.as_str();
        if id.trim().is_empty() {
            return Err(ConfigError::BadAppId("is empty: copy AppID from q.qq.com, \"开发设置\""));
        }
        if id.len() > 20 || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(ConfigError::BadAppId("is not all digits: copy AppID from q.qq.com, \"开发设置\""));
        }
        if let Some(problem) = problem_of(self.app_secret.expose()) {
            return Err(ConfigError::BadSecret(problem));
        }
        self.api()?;
        self.tokens()?;
        Ok(())
    }

    /// Where the API is, without a slash at its end.
    pub(crate) fn api(&self) -> Result<Url, ConfigError> {
        match (&self.api_url, self.sandbox) {
            (Some(_), true) => Err(ConfigError::TwoApis),
            (Some(url), false) => checked("api_url", url),
            (None, sandbox) => checked("api_url", if sandbox { SANDBOX_URL } else { API_URL }),
        }
    }

    /// Where tokens are given out.
    pub(crate) fn tokens(&self) -> Result<Url, ConfigError> {
        checked("token_url", self.token_url.as_deref().unwrap_or(TOKEN_URL))
    }
}

fn checked(key: &'static str, text: &str) -> Result<Url, ConfigError> {
    let bad = |why: &str| ConfigError::BadUrl { key, why: why.to_owned() };
    let url = Url::parse(text.trim()).map_err(|error| bad(&format!("is no URL: {error}")))?;
    let Some(host) = url.host() else { return Err(bad("names no host")) };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("must not hold a user name or password"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("must end with its path: no `?` and no `#`"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&host) => Ok(url),
        "http" => Err(bad("must begin with https://: the secret would cross the network unprotected")),
        _ => Err(bad("must begin with https://")),
    }
}

/// Whether a host is this machine.
pub(crate) fn is_loopback(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.');
            name.eq_ignore_ascii_case("localhost") || name.to_ascii_lowercase().ends_with(".localhost")
        }
    }
}

/// What is wrong with a secret, in words that fit behind its key.
fn problem_of(secret: &str) -> Option<&'static str> {
    if secret.trim().is_empty() {
        return Some("is empty: reset AppSecret at q.qq.com, \"开发设置\", and copy it; it is shown once");
    }
    if secret.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Some("has white space or control characters around or in it");
    }
    if secret.contains(['"', '\'', '“', '”', '‘', '’', '`']) {
        return Some("has quotes in it: it must stand alone");
    }
    if secret.starts_with("${") {
        return Some("is a variable without a value");
    }
    if secret.len() > 256 {
        return Some("is longer than any AppSecret");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Config, String> {
        toml::from_str(text).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn the_smallest_section_is_id_and_secret() {
        let config = read("app_id = 102012345\napp_secret = 'DG5g3B4j9X2KOErG'").expect("a section");
        config.check().expect("a good section");
        assert_eq!((config.app_id.as_str(), config.mode, config.intents), ("102012345", Mode::Ws, Intents::Public));
        assert_eq!(config.api().expect("an address").as_str(), "https://api.sgroup.qq.com/");
        assert!(!format!("{config:?}").contains("DG5g3B4j9X2KOErG"), "no secret is shown");
    }

    #[test]
    fn mistakes_are_named_by_their_key_and_no_secret_is_shown() {
        let cases = [
            ("app_id = ''\napp_secret = 'x'", "`app_id` is empty"),
            ("app_id = 'abc'\napp_secret = 'x'", "`app_id` is not all digits"),
            ("app_id = '1'\napp_secret = ''", "`app_secret` is empty"),
            ("app_id = '1'\napp_secret = 'hush hush'", "`app_secret` has white space"),
            ("app_id = '1'\napp_secret = '${QQ_SECRET}'", "`app_secret` is a variable"),
            ("app_id = '1'\napp_secret = 'x'\napi_url = 'http://example.org'", "`api_url` must begin with https"),
            ("app_id = '1'\napp_secret = 'x'\ntoken_url = 'https://u:p@example.org'", "`token_url` must not hold"),
            ("app_id = '1'\napp_secret = 'x'\nsandbox = true\napi_url = 'https://a.org'", "exclude each other"),
        ];
        for (text, expected) in cases {
            let error = read(text).expect("it is read").check().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains("hush"), "{error}");
        }
        let unknown = read("app_id = '1'\napp_secret = 'hush'\nsecret = 'hush'").expect_err("an unknown key");
        assert!(unknown.contains("unknown field `secret`") && !unknown.contains("hush"), "{unknown}");
        let number = read("app_id = '1'\napp_secret = 12345").expect_err("no text");
        assert!(number.contains("must be a text") && !number.contains("12345"), "{number}");
    }

    #[test]
    fn the_sandbox_has_its_own_address() {
        let config = read("app_id = '1'\napp_secret = 'x'\nsandbox = true").expect("a section");
        assert_eq!(config.api().expect("an address").host_str(), Some("sandbox.api.sgroup.qq.com"));
    }
}
