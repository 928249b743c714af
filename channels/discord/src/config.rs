//! The section `[channels.discord.<account>]`, without the keys that every channel has.

use base64::Engine as _;
use channel_api::{Said, Secret};
use serde::Deserialize;
use url::{Host, Url};

/// Where the REST API is, when the config does not say.
const API_URL: &str = "https://discord.com/api/v10";

/// One bot.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The bot's token, from the page "Bot" of the Developer Portal.
    pub token: Secret,
    /// Where the REST API is. Plain `http` only on this machine or a private network, because every call carries the
    /// token.
    #[serde(default = "default_api_url")]
    pub api_url: String,
    /// Where the gateway is; asked of the REST API when it is not set.
    #[serde(default)]
    pub gateway_url: Option<String>,
    /// Asks for the privileged Message Content intent. Without it only direct messages, and messages that mention the
    /// bot, have words.
    #[serde(default = "yes")]
    pub message_content: bool,
    /// Registers the bot's slash commands.
    #[serde(default = "yes")]
    pub commands: bool,
    /// How old a message may be, in minutes, that is fetched after a gap; 0 fetches none.
    #[serde(default = "default_backfill")]
    pub backfill_minutes: u32,
    /// The largest file that is taken in, in MiB.
    #[serde(default = "default_file")]
    pub max_file_mb: u32,
}

fn default_api_url() -> String {
    API_URL.to_owned()
}

fn yes() -> bool {
    true
}

fn default_backfill() -> u32 {
    10
}

fn default_file() -> u32 {
    25
}

/// Why no channel can be built. Each names its key; none shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// The token is not what the Developer Portal gives.
    #[error("`token` {}", .0.en)]
    BadToken(Said),
    /// Not an address that the API can be called at.
    #[error("`api_url` {}", .0.en)]
    BadApiUrl(Said),
    /// Not an address that the gateway can be at.
    #[error("`gateway_url` {}", .0.en)]
    BadGatewayUrl(Said),
    /// A number out of its range.
    #[error("`{0}` must be from {1} to {2}")]
    OutOfRange(&'static str, u32, u32),
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
            Self::BadGatewayUrl(why) => format!("`gateway_url` {}", why.zh),
            Self::OutOfRange(key, least, most) => format!("`{key}` 必须在 {least} 到 {most} 之间"),
            Self::Client(error) => format!("无法创建 HTTP 客户端：{error}"),
        };
        Said::new(self.to_string(), zh)
    }
}

impl Config {
    /// Everything that can be said without asking Discord.
    ///
    /// # Errors
    /// [`ConfigError`], naming the key.
    pub fn check(&self) -> Result<(), ConfigError> {
        if let Some(problem) = problem_of(self.token.expose()) {
            return Err(ConfigError::BadToken(problem));
        }
        self.api()?;
        self.gateway()?;
        if self.backfill_minutes > 24 * 60 {
            return Err(ConfigError::OutOfRange("backfill_minutes", 0, 24 * 60));
        }
        if !(1..=500).contains(&self.max_file_mb) {
            return Err(ConfigError::OutOfRange("max_file_mb", 1, 500));
        }
        Ok(())
    }

    /// Where the REST API is.
    pub(crate) fn api(&self) -> Result<Url, ConfigError> {
        address(&self.api_url, "https", "http").map_err(ConfigError::BadApiUrl)
    }

    /// Where the gateway is, if the section says so.
    pub(crate) fn gateway(&self) -> Result<Option<Url>, ConfigError> {
        let Some(text) = &self.gateway_url else { return Ok(None) };
        address(text, "wss", "ws").map(Some).map_err(ConfigError::BadGatewayUrl)
    }
}

/// The bot's id: the first part of its token is this number in base64.
pub(crate) fn bot_id(token: &str) -> Option<String> {
    let first = token.split('.').next()?.trim_end_matches('=');
    let bytes = base64::engine::general_purpose::STANDARD_NO_PAD.decode(first).ok()?;
    let id = String::from_utf8(bytes).ok()?;
    ((1..=20).contains(&id.len()) && id.bytes().all(|b| b.is_ascii_digit())).then_some(id)
}

fn address(text: &str, secure: &str, bare: &str) -> Result<Url, Said> {
    let bad = |en: &str, zh: &str| Said::new(en, zh);
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
        scheme if scheme == secure => Ok(url),
        scheme if scheme == bare && is_near(&host) => Ok(url),
        scheme if scheme == bare => Err(Said::new(
            format!("must begin with {secure}://: the token would cross the network unprotected"),
            format!("必须以 {secure}:// 开头，否则令牌会在网络上明文传输"),
        )),
        _ => Err(Said::new(format!("must begin with {secure}://"), format!("必须以 {secure}:// 开头"))),
    }
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

/// What is wrong with a token, in words that fit behind its key.
fn problem_of(token: &str) -> Option<Said> {
    let some = |en: &str, zh: &str| Some(Said::new(en, zh));
    let lower = token.trim_start().to_ascii_lowercase();
    if token.trim().is_empty() {
        return some(
            "is empty: Developer Portal → your application → Bot → Reset Token gives one",
            "为空：在 Developer Portal → 你的应用 → Bot → Reset Token 获取",
        );
    }
    if lower.starts_with("bot ") || lower.starts_with("bearer ") {
        return some(
            "must stand alone, without `Bot` or `Bearer` in front",
            "只写令牌本身，前面不要带 `Bot` 或 `Bearer`",
        );
    }
    if token.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return some("has white space or control characters around or in it", "前后或中间有空白或控制字符");
    }
    if token.contains(['"', '\'', '“', '”', '‘', '’', '`']) {
        return some("has quotes in it: it must stand alone", "里有引号：只写内容本身");
    }
    if token.starts_with("${") {
        return some("is a variable without a value", "是一个没有值的变量");
    }
    let letters = token.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.' | b'='));
    if !letters || token.split('.').count() != 3 || token.split('.').any(str::is_empty) {
        return some(
            "is no bot token: it has three parts with dots between them (not the client secret or public key)",
            "不是机器人令牌：令牌由点号隔开的三段组成（不是 client secret，也不是 public key）",
        );
    }
    if bot_id(token).is_none() {
        return some(
            "is no bot token: its first part must be the bot's number in base64",
            "不是机器人令牌：第一段必须是机器人数字 ID 的 base64",
        );
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "1000000000000000001" in base64, and two parts of nonsense.
    const TOKEN: &str = "MTAwMDAwMDAwMDAwMDAwMDAwMQ.GaBcDe.abcdefghijklmnopqrstuvwxyz0123456789-_";

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
        assert!(told(&section("max_file_mb = 501").check().expect_err("out of range")).contains("500"));
    }

    fn section(more: &str) -> Config {
        toml::from_str(&format!("token = '{TOKEN}'\n{more}")).expect("a section")
    }

    #[test]
    fn the_smallest_section_is_enough() {
        let config = section("");
        assert_eq!(config.check(), Ok(()));
        assert_eq!(config.api().map(|url| url.to_string()).as_deref(), Ok("https://discord.com/api/v10"));
        assert_eq!((config.message_content, config.commands, config.backfill_minutes), (true, true, 10));
        assert_eq!(bot_id(TOKEN).as_deref(), Some("1000000000000000001"));
    }

    #[test]
    fn bad_input_9_a_token_with_anything_around_it_is_refused_and_never_shown() {
        for token in [
            "",
            "  ",
            "Bot MTAwMDAwMDAwMDAwMDAwMDAwMQ.GaBcDe.abc",
            "Bearer x.y.z",
            "MTAwMDAwMDAwMDAwMDAwMDAwMQ.GaBcDe.abc\n",
            "\"MTAwMDAwMDAwMDAwMDAwMDAwMQ.GaBcDe.abc\"",
            "${DISCORD_TOKEN}",
            "0123456789abcdef0123456789abcdef",
            "eHh4.GaBcDe.abc",
            "MTAwMDAwMDAwMDAwMDAwMDAwMQ..abc",
        ] {
            let config = Config { token: Secret::from(token), ..section("") };
            let error = config.check().expect_err(token);
            told(&error);
            assert!(matches!(error, ConfigError::BadToken(_)), "{token:?}");
            assert!(token.trim().len() < 5 || !error.to_string().contains(token.trim()), "{error}");
        }
        assert!(!format!("{:?}", section("")).contains("GaBcDe"));
        let wrong = toml::from_str::<Config>("token = 123456789").expect_err("a number");
        assert!(!wrong.message().contains("123456789"), "{wrong}");
    }

    #[test]
    fn the_token_crosses_no_open_network() {
        for (url, good) in [
            ("https://relay.example.org/discord/api/v10", true),
            ("http://127.0.0.1:8080/api/v10", true),
            ("http://discord.internal/api/v10", true),
            ("http://relay.example.org/api", false),
            ("https://user:pw@relay.example.org", false),
            ("ftp://example.org", false),
            ("discord.com", false),
        ] {
            assert_eq!(
                section(&format!("api_url = '{url}'")).check().map_err(|error| told(&error)).is_ok(),
                good,
                "{url}"
            );
        }
        for (url, good) in [("wss://gateway.discord.gg", true), ("ws://10.0.0.1:1", true), ("ws://example.org", false)]
        {
            assert_eq!(section(&format!("gateway_url = '{url}'")).check().is_ok(), good, "{url}");
        }
    }

    #[test]
    fn bad_input_3_and_4_unknown_keys_and_wrong_numbers_are_refused() {
        assert!(toml::from_str::<Config>(&format!("token = '{TOKEN}'\ntokn = 'x'")).is_err());
        assert_eq!(
            section("backfill_minutes = 5000").check(),
            Err(ConfigError::OutOfRange("backfill_minutes", 0, 1440))
        );
        assert!(section("max_file_mb = 0").check().is_err());
    }
}
