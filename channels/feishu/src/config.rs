//! The section `[channels.feishu.<account>]`, without the keys that every channel has.

use std::time::Duration;

use channel_api::{Said, Secret};
use serde::{Deserialize, Deserializer, de};
use url::{Host, Url};

/// Where Feishu's API is.
const FEISHU: &str = "https://open.feishu.cn";
/// Where Lark's is.
const LARK: &str = "https://open.larksuite.com";

/// One app with a bot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The app's id: `cli_…`.
    pub app_id: String,
    /// The app's secret.
    pub app_secret: Secret,
    /// How events come.
    #[serde(default)]
    pub mode: Mode,
    /// The console's *Encrypt Key*: with it only encrypted and signed events are taken.
    #[serde(default)]
    pub encrypt_key: Option<Secret>,
    /// The console's *Verification Token*.
    #[serde(default)]
    pub verification_token: Option<Secret>,
    /// `feishu`, `lark`, or an address: a server of one's own, or a relay. Plain `http` only on this machine or a private
    /// network, because the secret crosses it.
    #[serde(default = "feishu")]
    pub api_url: String,
    /// Whether `@all` addresses the bot.
    #[serde(default)]
    pub at_all: bool,
    /// Whether an answer in a group opens a thread under its question. In a thread it always stays in it.
    #[serde(default)]
    pub reply_in_thread: bool,
    /// Messages older than this are not answered: after a lost connection Feishu delivers everything that was written in
    /// the meantime at once. `off` answers them all.
    #[serde(default = "half_an_hour", deserialize_with = "age")]
    pub stale_after: Option<Duration>,
    /// Whether an answer is shown while it is written, as a streaming card.
    #[serde(default = "yes")]
    pub streaming: bool,
    /// Whether reactions show that an answer is being written.
    #[serde(default = "yes")]
    pub reactions: bool,
}

fn feishu() -> String {
    "feishu".to_owned()
}

#[expect(clippy::unnecessary_wraps, reason = "the default of a field that may be absent")]
fn half_an_hour() -> Option<Duration> {
    Some(Duration::from_secs(30 * 60))
}

fn yes() -> bool {
    true
}

/// How events come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The gateway opens a long connection: works behind any router.
    #[default]
    Ws,
    /// Feishu posts them to the gateway.
    Webhook,
}

/// A number with its unit (`45s`, `30m`, `2h`), or `off`.
fn age<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let wrong = || de::Error::custom("`stale_after` is a time such as \"30m\" or \"2h\", or \"off\"");
    let text = text.trim();
    if text == "off" {
        return Ok(None);
    }
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
    let seconds = match &text[digits.len()..] {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(wrong()),
    };
    let whole = number.checked_mul(seconds).filter(|whole| (1..=366 * 24 * 60 * 60).contains(whole));
    Ok(Some(Duration::from_secs(whole.ok_or_else(wrong)?)))
}

/// Why no channel can be built. Each names its key; none shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not an app's id.
    #[error("`app_id` {}", .0.en)]
    BadAppId(Said),
    /// A secret that is none.
    #[error("`{key}` {}", .problem.en)]
    BadSecret {
        /// The key.
        key: &'static str,
        /// What is wrong.
        problem: Said,
    },
    /// Not an address that the API can be called at.
    #[error("`api_url` {}", .0.en)]
    BadApiUrl(Said),
    /// Anyone could post events.
    #[error(
        "`mode` = \"webhook\" needs `encrypt_key` (better) or `verification_token`: without one of them anybody could \
         post messages in anybody's name; both stand in the developer console under Events & Callbacks, Encryption \
         Strategy"
    )]
    OpenWebhook,
    /// The HTTP client could not be built.
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

impl ConfigError {
    /// The same in both languages.
    pub fn said(&self) -> Said {
        let zh = match self {
            Self::BadAppId(why) => format!("`app_id` {}", why.zh),
            Self::BadSecret { key, problem } => format!("`{key}` {}", problem.zh),
            Self::BadApiUrl(why) => format!("`api_url` {}", why.zh),
            Self::OpenWebhook => {
                "`mode` = \"webhook\" 需要 `encrypt_key`（更好）或 `verification_token`：两者都没有时，\
                                  任何人都能冒充别人发消息；它们在开发者后台的“事件与回调”→“加密策略”页"
                    .to_owned()
            }
            Self::Client(error) => format!("无法创建 HTTP 客户端：{error}"),
        };
        Said::new(self.to_string(), zh)
    }
}

impl Config {
    /// Everything that can be said without asking Feishu.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        let bad_id = |en: &str, zh: &str| ConfigError::BadAppId(Said::new(en, zh));
        if let Some(problem) = problem_of(&self.app_id) {
            return Err(ConfigError::BadAppId(problem));
        }
        if !self.app_id.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')) {
            return Err(bad_id(
                "has characters that no id has: it looks like `cli_a1b2c3d4e5f6`",
                "里有 App ID 不会有的字符：它形如 `cli_a1b2c3d4e5f6`",
            ));
        }
        let secrets = [
            ("app_secret", Some(&self.app_secret)),
            ("encrypt_key", self.encrypt_key.as_ref()),
            ("verification_token", self.verification_token.as_ref()),
        ];
        for (key, secret) in secrets {
            if let Some(problem) = secret.and_then(|secret| problem_of(secret.expose())) {
                return Err(ConfigError::BadSecret { key, problem });
            }
        }
        if self.mode == Mode::Webhook && self.encrypt_key.is_none() && self.verification_token.is_none() {
            return Err(ConfigError::OpenWebhook);
        }
        self.api().map(|_| ())
    }

    /// Where the API is, without a slash at its end.
    pub(crate) fn api(&self) -> Result<Url, ConfigError> {
        let bad = |en: &str, zh: &str| ConfigError::BadApiUrl(Said::new(en, zh));
        let text = match self.api_url.trim() {
            "feishu" => FEISHU,
            "lark" => LARK,
            other => other,
        };
        let url = Url::parse(text).map_err(|error| {
            bad(
                &format!("is no URL ({error}); it is \"feishu\", \"lark\" or an address"),
                &format!("不是有效的地址（{error}）；可填 \"feishu\"、\"lark\" 或一个地址"),
            )
        })?;
        let Some(host) = url.host() else { return Err(bad("names no host", "没有主机名")) };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("must not hold a user name or password", "里不能有用户名或密码"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("must end with its path: no `?` and no `#`", "必须以路径结尾，不能有 `?` 和 `#`"));
        }
        if url.path().trim_end_matches('/').ends_with("/open-apis") {
            return Err(bad("must end before `/open-apis`", "只写到 `/open-apis` 之前"));
        }
        match url.scheme() {
            "https" => Ok(url),
            "http" if is_near(&host) => Ok(url),
            "http" => Err(bad(
                "must begin with https://: the secret would cross the network unprotected",
                "必须以 https:// 开头，否则密钥会在网络上明文传输",
            )),
            _ => Err(bad("must begin with https://", "必须以 https:// 开头")),
        }
    }

    /// Whether it is Lark: its console is another one.
    pub(crate) fn console(&self) -> &'static str {
        match self.api().ok().and_then(|url| url.host_str().map(|host| host.ends_with("larksuite.com"))) {
            Some(true) => LARK,
            _ => FEISHU,
        }
    }
}

/// What is wrong with a key's text, in words that fit behind its name.
fn problem_of(text: &str) -> Option<Said> {
    let some = |en: &str, zh: &str| Some(Said::new(en, zh));
    if text.trim().is_empty() {
        return some(
            "is empty: it stands in the developer console under Credentials & Basic Info, or Encryption Strategy",
            "为空：在开发者后台的“凭证与基础信息”或“加密策略”页可以找到",
        );
    }
    if text.starts_with("${") {
        return some("is a variable without a value", "是一个没有值的变量");
    }
    if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return some("has white space or control characters around or in it", "前后或中间有空白或控制字符");
    }
    if text.contains(['"', '\'', '“', '”', '‘', '’', '`']) {
        return some("has quotes in it: it must stand alone", "里有引号：只写内容本身");
    }
    if text.len() > 256 {
        return some("is too long", "太长");
    }
    None
}

/// Whether a host is this machine or on a private network: a name without a dot is a container's or a neighbour's.
fn is_near(host: &Host<&str>) -> bool {
    match host {
        Host::Ipv4(ip) => ip.is_loopback() || ip.is_private() || ip.is_link_local(),
        Host::Ipv6(ip) => ip.is_loopback() || ip.is_unique_local() || ip.is_unicast_link_local(),
        Host::Domain(name) => {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            !name.contains('.') || [".localhost", ".local", ".internal", ".lan"].iter().any(|end| name.ends_with(end))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "app_id = 'cli_9f5343c580712544'\napp_secret = 'SeCrEt9876543210'\n";

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

    fn check(more: &str) -> String {
        match toml::from_str::<Config>(&format!("{GOOD}{more}")) {
            Err(error) => error.message().to_owned(),
            Ok(config) => match config.check() {
                Ok(()) => "fine".to_owned(),
                Err(error) => told(&error),
            },
        }
    }

    #[test]
    fn a_webhook_that_anybody_could_post_to_is_refused() {
        assert_eq!(check(""), "fine");
        assert_eq!(check("mode = 'ws'"), "fine");
        let said = check("mode = 'webhook'");
        assert!(said.contains("`encrypt_key`") && said.contains("`verification_token`"), "{said}");
        assert_eq!(check("mode = 'webhook'\nencrypt_key = 'test-key'"), "fine");
        assert_eq!(check("mode = 'webhook'\nverification_token = 'v_token'"), "fine");
        for blank in ["encrypt_key = ''", "verification_token = '  '"] {
            let said = check(&format!("mode = 'webhook'\n{blank}"));
            assert!(said.contains("is empty"), "{blank}: {said}");
        }
    }

    #[test]
    fn a_secret_is_shown_nowhere_and_what_is_wrong_is_said() {
        for (more, says) in [
            ("encrypt_key = '${FEISHU_KEY}'", "without a value"),
            ("encrypt_key = ' key'", "white space"),
            ("encrypt_key = 12345", "in quotes"),
            ("verification_token = '“x”'", "quotes"),
        ] {
            let said = check(more);
            assert!(said.contains(says), "{more}: {said}");
        }
        let shown = format!("{:?}", toml::from_str::<Config>(GOOD));
        assert!(!shown.contains("SeCrEt"), "{shown}");
        assert!(toml::from_str::<Config>("app_id = 'x'").expect_err("no secret").message().contains("app_secret"));
        assert!(check("app_ids = 'x'").contains("unknown field `app_ids`"));
    }

    #[test]
    fn the_address_is_feishu_lark_or_a_safe_one() {
        let url = |api_url: &str| {
            let config: Config = toml::from_str(&format!("{GOOD}api_url = '{api_url}'")).expect("a config");
            config.api().map(|url| url.to_string()).unwrap_or_else(|error| told(&error))
        };
        assert_eq!(url("feishu"), "https://open.feishu.cn/");
        assert_eq!(url("lark"), "https://open.larksuite.com/");
        assert_eq!(url("http://127.0.0.1:9000/x"), "http://127.0.0.1:9000/x");
        for (bad, says) in [
            ("http://open.feishu.cn", "https://"),
            ("open.feishu.cn", "no URL"),
            ("https://u:p@open.feishu.cn", "password"),
            ("https://open.feishu.cn/open-apis", "before"),
            ("ftp://127.0.0.1", "https://"),
        ] {
            assert!(url(bad).contains("`api_url`") && url(bad).contains(says), "{bad}: {}", url(bad));
        }
    }

    #[test]
    fn an_age_has_a_unit() {
        let age =
            |text: &str| toml::from_str::<Config>(&format!("{GOOD}stale_after = '{text}'")).map(|c| c.stale_after);
        assert_eq!(age("30m"), Ok(Some(Duration::from_secs(1800))));
        assert_eq!(age("2h"), Ok(Some(Duration::from_secs(7200))));
        assert_eq!(age("off"), Ok(None));
        for bad in ["30", "m", "0m", "-1m", "1y", "99999999999999999999h", "18446744073709551615d"] {
            assert!(age(bad).is_err(), "{bad}");
        }
    }
}
