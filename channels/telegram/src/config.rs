//! The section `[channels.telegram.<account>]`, without the keys that every channel has.

use channel_api::{Said, Secret};
use serde::{Deserialize, Deserializer, de};
use url::{Host, Url};

/// Where the Bot API is, when the config does not say.
const API_URL: &str = "https://api.telegram.org";

/// One bot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// What @BotFather gave: `123456789:AA…`.
    #[serde(deserialize_with = "token")]
    pub token: Secret,
    /// Where the Bot API is: a server of one's own, or one under a path of another. Plain `http` only on this machine
    /// or a private network, because the token is part of every address.
    #[serde(default = "default_api_url")]
    pub api_url: String,
    /// How updates come.
    #[serde(default)]
    pub mode: Mode,
    /// In mode `webhook`: the address at which Telegram reaches this account, `https`. Without a path,
    /// `/channels/telegram/<account>` is added.
    pub webhook_url: Option<String>,
    /// In mode `webhook`: what Telegram has to say with each update, so that nobody else can. 16 to 256 characters of
    /// `A-Z`, `a-z`, `0-9`, `_` and `-`.
    #[serde(default, deserialize_with = "secret_token")]
    pub secret_token: Option<Secret>,
    /// Whether sends keep to the pace that Telegram allows. `off` is for a server of one's own that has no limits.
    #[serde(default)]
    pub limits: Limits,
}

fn default_api_url() -> String {
    API_URL.to_owned()
}

/// How updates come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The gateway asks for them: works behind any router.
    #[default]
    Polling,
    /// Telegram posts them to the gateway.
    Webhook,
}

/// Whether sends are paced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Limits {
    /// One message a second in a chat, 20 a minute in a group, 30 a second in all.
    #[default]
    On,
    /// As fast as they come.
    Off,
}

fn token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Secret, D::Error> {
    secret(deserializer, "token")
}

fn secret_token<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Secret>, D::Error> {
    secret(deserializer, "secret_token").map(Some)
}

/// The deserializer's own words for a wrong type would show the value.
fn secret<'de, D: Deserializer<'de>>(deserializer: D, key: &str) -> Result<Secret, D::Error> {
    match serde_json::Value::deserialize(deserializer)? {
        serde_json::Value::String(text) => Ok(Secret::new(text)),
        _ => Err(de::Error::custom(format!("`{key}` must be a text in quotes"))),
    }
}

/// Why no channel can be built. Each names its key; none shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The token is not what @BotFather gives.
    #[error("`token` {}", .0.en)]
    BadToken(Said),
    /// Not an address that the Bot API can be called at.
    #[error("`api_url` {}", .0.en)]
    BadApiUrl(Said),
    /// Not an address that Telegram would call.
    #[error("`webhook_url` {}", .0.en)]
    BadWebhookUrl(Said),
    /// Nothing that keeps others out.
    #[error("`secret_token` {}", .0.en)]
    BadSecret(Said),
    /// The HTTP client could not be built.
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

impl ConfigError {
    /// The same in both languages.
    pub fn said(&self) -> Said {
        let zh = match self {
            Self::BadToken(why) => format!("`token` {}", why.zh),
            Self::BadApiUrl(why) => format!("`api_url` {}", why.zh),
            Self::BadWebhookUrl(why) => format!("`webhook_url` {}", why.zh),
            Self::BadSecret(why) => format!("`secret_token` {}", why.zh),
            Self::Client(error) => format!("无法创建 HTTP 客户端：{error}"),
        };
        Said::new(self.to_string(), zh)
    }
}

impl Config {
    /// Everything that can be said without asking Telegram.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(problem) = problem_of(self.token.expose()) {
            return Err(ConfigError::BadToken(problem));
        }
        self.api()?;
        match self.mode {
            Mode::Polling => Ok(()),
            Mode::Webhook => self.webhook("x").map(drop),
        }
    }

    /// In mode `webhook`: the address of this account, and the secret that its calls hold.
    pub(crate) fn webhook(&self, account: &str) -> Result<(Url, Secret), ConfigError> {
        let bad = |en: &str, zh: &str| ConfigError::BadWebhookUrl(Said::new(en, zh));
        let Some(text) = self.webhook_url.as_deref().map(str::trim).filter(|text| !text.is_empty()) else {
            return Err(bad(
                "is missing: with `mode` = \"webhook\" it is the address at which Telegram reaches this gateway",
                "没有设置：`mode` = \"webhook\" 时，它是 Telegram 访问本网关的地址",
            ));
        };
        let mut url = Url::parse(text)
            .map_err(|error| bad(&format!("is no URL: {error}"), &format!("不是有效的地址：{error}")))?;
        let Some(host) = url.host() else { return Err(bad("names no host", "没有主机名")) };
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return Err(bad("must hold no user name, no password and no `#`", "里不能有用户名、密码和 `#`"));
        }
        match url.scheme() {
            "https" => {}
            "http" if is_near(&host) && self.api_url != API_URL => {}
            _ => {
                return Err(bad(
                    "must begin with https://: Telegram calls no other",
                    "必须以 https:// 开头：Telegram 不调用别的地址",
                ));
            }
        }
        if matches!(url.path(), "" | "/") {
            url.set_path(&format!("/channels/telegram/{account}"));
        }
        let no = |en: &str, zh: &str| ConfigError::BadSecret(Said::new(en, zh));
        let secret = self.secret_token.clone().ok_or_else(|| {
            no(
                "is missing: without it anybody could write in anybody's name; make one with `openssl rand -hex 32`",
                "没有设置：没有它，任何人都能冒充别人发消息；可用 `openssl rand -hex 32` 生成",
            )
        })?;
        let text = secret.expose();
        if !text.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-')) {
            return Err(no("may hold only A-Z, a-z, 0-9, `_` and `-`", "只能包含 A-Z、a-z、0-9、`_` 和 `-`"));
        }
        match text.len() {
            ..16 => Err(no(
                "must have 16 characters at least: `openssl rand -hex 32` makes one",
                "至少要 16 个字符：可用 `openssl rand -hex 32` 生成",
            )),
            257.. => Err(no("may have 256 characters at most", "最多 256 个字符")),
            _ => Ok((url, secret)),
        }
    }

    /// Where the Bot API is, without a slash at its end.
    pub(crate) fn api(&self) -> Result<Url, ConfigError> {
        let bad = |en: &str, zh: &str| ConfigError::BadApiUrl(Said::new(en, zh));
        let url = Url::parse(self.api_url.trim())
            .map_err(|error| bad(&format!("is no URL: {error}"), &format!("不是有效的地址：{error}")))?;
        let Some(host) = url.host() else { return Err(bad("names no host", "没有主机名")) };
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("must not hold a user name or password", "里不能有用户名或密码"));
        }
        if url.query().is_some() || url.fragment().is_some() {
            return Err(bad("must end with its path: no `?` and no `#`", "必须以路径结尾，不能有 `?` 和 `#`"));
        }
        if url.path().split('/').any(|segment| segment.starts_with("bot") && segment.contains(':')) {
            return Err(bad("must not hold the token: it is added by itself", "里不能写令牌：程序会自己加上"));
        }
        match url.scheme() {
            "https" => Ok(url),
            "http" if is_near(&host) => Ok(url),
            "http" => Err(bad(
                "must begin with https://: the token would cross the network unprotected",
                "必须以 https:// 开头，否则令牌会在网络上明文传输",
            )),
            _ => Err(bad("must begin with https://", "必须以 https:// 开头")),
        }
    }
}

/// Whether a host is this machine: it is reached directly, whatever proxy is set. dependencies.md §9.
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

/// Whether a host is this machine or on a private network: a name without a dot is a container's or a neighbour's.
fn is_near(host: &Host<&str>) -> bool {
    is_loopback(host)
        || match host {
            Host::Ipv4(ip) => ip.is_private() || ip.is_link_local(),
            Host::Ipv6(ip) => ip.is_unique_local() || ip.is_unicast_link_local(),
            Host::Domain(name) => {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                !name.contains('.') || [".local", ".internal", ".lan"].iter().any(|end| name.ends_with(end))
            }
        }
}

/// What is wrong with a token, in words that fit behind its key.
fn problem_of(token: &str) -> Option<Said> {
    let some = |en: &str, zh: &str| Some(Said::new(en, zh));
    let lower = token.to_ascii_lowercase();
    if token.trim().is_empty() {
        return some("is empty: ask @BotFather for one with /newbot", "为空：请用 /newbot 向 @BotFather 申请");
    }
    if token.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return match lower.trim_start().starts_with("bearer ") {
            true => some("must stand alone, without `Bearer`", "只写令牌本身，不要带 `Bearer`"),
            false => some("has white space or control characters around or in it", "前后或中间有空白或控制字符"),
        };
    }
    if token.contains(['"', '\'', '“', '”', '‘', '’', '`']) {
        return some("has quotes in it: it must stand alone", "里有引号：只写内容本身");
    }
    if lower.starts_with("bot") {
        return some(
            "must begin with the bot's number: leave `bot` out, it belongs to the address",
            "必须以机器人的数字 ID 开头：去掉 `bot`，它属于地址",
        );
    }
    if token.starts_with("${") {
        return some("is a variable without a value", "是一个没有值的变量");
    }
    if token.contains('/') {
        return some("must be the token alone, not an address", "只写令牌本身，不要写成地址");
    }
    let Some((number, key)) = token.split_once(':') else {
        return some(
            "has no colon: it looks like `123456789:AA…`, as @BotFather gives it",
            "里没有冒号：@BotFather 给的令牌形如 `123456789:AA…`",
        );
    };
    let digits = !number.is_empty() && number.len() <= 20 && number.bytes().all(|b| b.is_ascii_digit());
    let letters = key.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-'));
    if !digits || !letters {
        return some(
            "has characters that no token has: it looks like `123456789:AA…`, as @BotFather gives it",
            "里有令牌不会有的字符：@BotFather 给的令牌形如 `123456789:AA…`",
        );
    }
    match key.len() {
        ..30 => some("is too short: copy all of it from @BotFather", "太短：请从 @BotFather 完整复制"),
        129.. => some("is too long for a token", "太长，不是令牌"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "123456789:AAF0_ak-8s7dHqXyZ1234567890abcdefgh";

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

    fn check(text: &str) -> String {
        match toml::from_str::<Config>(text) {
            Err(error) => error.message().to_owned(),
            Ok(config) => match config.check() {
                Ok(()) => "fine".to_owned(),
                Err(error) => told(&error),
            },
        }
    }

    #[test]
    fn a_token_is_what_botfather_gives_and_what_is_wrong_is_said_without_showing_it() {
        assert_eq!(check(&format!("token = '{GOOD}'")), "fine");
        for (token, says) in [
            (String::new(), "is empty"),
            ("  ".to_owned(), "is empty"),
            (format!("{GOOD}\\n"), "white space"),
            (format!(" {GOOD}"), "white space"),
            (format!("\\\"{GOOD}\\\""), "quotes"),
            (format!("“{GOOD}”"), "quotes"),
            (format!("Bearer {GOOD}"), "`Bearer`"),
            ("${TELEGRAM_TOKEN}".to_owned(), "without a value"),
            (format!("bot{GOOD}"), "leave `bot` out"),
            (format!("https://api.telegram.org/bot{GOOD}/"), "not an address"),
            ("123456789".to_owned(), "no colon"),
            ("123456789:AAF0".to_owned(), "too short"),
            ("name:AAF0_ak-8s7dHqXyZ1234567890abcdefgh".to_owned(), "characters"),
            ("123456789:AAF0_ak-8s7dHqXyZ1234567890abcdefg！".to_owned(), "characters"),
        ] {
            let said = check(&format!("token = \"{token}\""));
            assert!(said.contains("`token`") && said.contains(says), "{token}: {said}");
            assert!(!said.contains("AAF0"), "shows the token: {said}");
        }
        let said = check("token = 123456789");
        assert!(said.contains("text in quotes") && !said.contains("123456789"), "{said}");
        let said = check(&format!("token = '{GOOD}'\nsecret_token = 4242424242"));
        assert!(said.contains("`secret_token` must") && !said.contains("424242"), "{said}");
        let shown = format!("{:?}", toml::from_str::<Config>(&format!("token = '{GOOD}'")));
        assert!(!shown.contains("AAF0"), "{shown}");
    }

    #[test]
    fn missing_and_unknown_keys_are_named() {
        assert!(check("").contains("missing field `token`"));
        assert!(check(&format!("token = '{GOOD}'\napi_ulr = 'x'")).contains("unknown field `api_ulr`"));
        assert!(check(&format!("token = '{GOOD}'\nlimits = 'maybe'")).contains("maybe"));
    }

    #[test]
    fn a_webhook_needs_an_address_and_a_secret() {
        const SECRET: &str = "0123456789abcdef_-";
        let says = |url: &str, secret: &str| {
            check(&format!("token = '{GOOD}'\nmode = 'webhook'\nwebhook_url = '{url}'\nsecret_token = '{secret}'"))
        };
        assert_eq!(says("https://bot.example.com", SECRET), "fine");
        let config: Config = toml::from_str(&format!(
            "token = '{GOOD}'\nmode = 'webhook'\nwebhook_url = 'https://bot.example.com/'\nsecret_token = '{SECRET}'"
        ))
        .expect("a config");
        let (url, _) = config.webhook("main").expect("a good one");
        assert_eq!(url.as_str(), "https://bot.example.com/channels/telegram/main");
        assert!(!format!("{config:?}").contains(SECRET));
        for (url, secret, word) in [
            ("", SECRET, "`webhook_url` is missing"),
            ("bot.example.com", SECRET, "`webhook_url` is no URL"),
            ("http://bot.example.com", SECRET, "https://"),
            ("http://127.0.0.1:1", SECRET, "https://"),
            ("https://a:b@example.com", SECRET, "password"),
            ("https://bot.example.com", "", "16 characters"),
            ("https://bot.example.com", "short", "16 characters"),
            ("https://bot.example.com", "0123456789abcdef 0", "may hold only"),
            ("https://bot.example.com", &"x".repeat(257), "256 characters"),
        ] {
            let said = says(url, secret);
            assert!(said.contains(word), "{url} {secret}: {said}");
            assert!(secret.len() < 17 || !said.contains(secret), "shows the secret: {said}");
        }
        let said = check(&format!("token = '{GOOD}'\nmode = 'webhook'\nwebhook_url = 'https://bot.example.com'"));
        assert!(said.contains("`secret_token` is missing"), "{said}");
        // A server of one's own may call on this machine.
        let own = "api_url = 'http://127.0.0.1:8081'\nmode = 'webhook'\nwebhook_url = 'http://127.0.0.1:1'";
        assert_eq!(check(&format!("token = '{GOOD}'\n{own}\nsecret_token = '{SECRET}'")), "fine");
    }

    #[test]
    fn plain_http_stays_on_this_machine_and_private_networks() {
        for (url, fine) in [
            ("https://api.telegram.org", true),
            ("https://relay.example.com/telegram/", true),
            ("http://127.0.0.1:8081", true),
            ("http://localhost:8081/prefix", true),
            ("http://[::1]:8081", true),
            ("http://telegram-bot-api:8081", true),
            ("http://192.168.1.7:8081", true),
            ("http://api.telegram.org", false),
            ("http://8.8.8.8", false),
            ("ftp://127.0.0.1", false),
            ("api.telegram.org", false),
            ("https://user:pw@example.com", false),
            ("https://example.com/?x=1", false),
            ("https://example.com/bot123:abc/", false),
        ] {
            let said = check(&format!("token = '{GOOD}'\napi_url = '{url}'"));
            assert_eq!(said == "fine", fine, "{url}: {said}");
            assert!(fine || said.contains("`api_url`"), "{url}: {said}");
        }
    }
}
