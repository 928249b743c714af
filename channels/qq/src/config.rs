//! The section `[channels.qq.<account>]`, without the keys that every channel has.

use channel_api::{Said, Secret};
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
    #[error("`app_id` {}", .0.en)]
    BadAppId(Said),
    /// The AppSecret is none.
    #[error("`app_secret` {}", .0.en)]
    BadSecret(Said),
    /// Not an address that can be called.
    #[error("`{key}` {}", .why.en)]
    BadUrl {
        /// `api_url` or `token_url`.
        key: &'static str,
        /// What is wrong with it.
        why: Said,
    },
    /// Two keys that exclude each other.
    #[error("`sandbox` and `api_url` exclude each other: leave one out")]
    TwoApis,
    /// The HTTP client could not be built.
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

impl ConfigError {
    /// The same in both languages.
    pub fn said(&self) -> Said {
        let zh = match self {
            Self::BadAppId(why) => format!("`app_id` {}", why.zh),
            Self::BadSecret(why) => format!("`app_secret` {}", why.zh),
            Self::BadUrl { key, why } => format!("`{key}` {}", why.zh),
            Self::TwoApis => "`sandbox` 和 `api_url` 不能同时设置：请去掉一个".to_owned(),
            Self::Client(error) => format!("无法创建 HTTP 客户端：{error}"),
        };
        Said::new(self.to_string(), zh)
    }
}

impl Config {
    /// Everything that can be said without asking QQ.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        let bad_id = |en: &str, zh: &str| ConfigError::BadAppId(Said::new(en, zh));
        let id = self.app_id.as_str();
        if id.trim().is_empty() {
            return Err(bad_id(
                "is empty: copy AppID from q.qq.com, \"开发设置\"",
                "为空：请从 q.qq.com 的“开发设置”页复制 AppID",
            ));
        }
        if id.len() > 20 || !id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(bad_id(
                "is not all digits: copy AppID from q.qq.com, \"开发设置\"",
                "不全是数字：请从 q.qq.com 的“开发设置”页复制 AppID",
            ));
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
    let bad = |en: &str, zh: &str| ConfigError::BadUrl { key, why: Said::new(en, zh) };
    let url = Url::parse(text.trim())
        .map_err(|error| bad(&format!("is no URL: {error}"), &format!("不是有效的地址：{error}")))?;
    let Some(host) = url.host() else { return Err(bad("names no host", "没有主机名")) };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(bad("must not hold a user name or password", "里不能有用户名或密码"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(bad("must end with its path: no `?` and no `#`", "必须以路径结尾，不能有 `?` 和 `#`"));
    }
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(&host) => Ok(url),
        "http" => Err(bad(
            "must begin with https://: the secret would cross the network unprotected",
            "必须以 https:// 开头，否则密钥会在网络上明文传输",
        )),
        _ => Err(bad("must begin with https://", "必须以 https:// 开头")),
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
fn problem_of(secret: &str) -> Option<Said> {
    let some = |en: &str, zh: &str| Some(Said::new(en, zh));
    if secret.trim().is_empty() {
        return some(
            "is empty: reset AppSecret at q.qq.com, \"开发设置\", and copy it; it is shown once",
            "为空：请在 q.qq.com 的“开发设置”页重置 AppSecret 并复制，它只显示一次",
        );
    }
    if secret.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return some("has white space or control characters around or in it", "前后或中间有空白或控制字符");
    }
    if secret.contains(['"', '\'', '“', '”', '‘', '’', '`']) {
        return some("has quotes in it: it must stand alone", "里有引号：只写内容本身");
    }
    if secret.starts_with("${") {
        return some("is a variable without a value", "是一个没有值的变量");
    }
    if secret.len() > 256 {
        return some("is longer than any AppSecret", "太长，不是 AppSecret");
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

    fn is_chinese(text: &str) -> bool {
        text.chars().any(|c| matches!(c, '一'..='鿿'))
    }

    /// What is said of an error, which must be said in Chinese too.
    fn told(error: &ConfigError) -> String {
        let said = error.said();
        assert_eq!(said.en, error.to_string());
        assert!(is_chinese(&said.zh), "not in Chinese: {said:?}");
        assert_eq!(said.en.split('`').nth(1), said.zh.split('`').nth(1), "the same key: {said:?}");
        said.en
    }

    #[test]
    fn what_no_section_causes_is_said_in_chinese_too() {
        // All others are made by the sections of the other tests, which look at each.
        assert!(told(&ConfigError::Client("x".to_owned())).starts_with("the HTTP client"));
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
            let error = read(text).expect("it is read").check().expect_err(text);
            let error = told(&error);
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
