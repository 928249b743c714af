//! The section `[channels.webhook.<account>]`, without the keys that every channel has.

use base64::{Engine, engine::general_purpose::STANDARD};
use channel_api::{Said, Secret};
use serde::Deserialize;
use url::Url;

use crate::{map::Map, reach};

/// One bridge. A config without a usable secret builds no channel: the route does not exist then.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The Standard Webhooks secret, `whsec_` and base64 of at least 16 bytes; a list while keys are rotated (any of
    /// them is accepted, all of them sign callbacks). With a secret a bearer token alone is refused.
    #[serde(default)]
    pub secret: Option<Secrets>,
    /// A bearer token of at least 16 characters, for callers that cannot sign (curl). Callbacks are then signed with
    /// the secret `whsec_` + base64 of the token.
    #[serde(default)]
    pub token: Option<Secret>,
    /// Also takes `X-Hub-Signature-256` (GitHub's way: the signature of the body alone, keyed with the text of
    /// `secret`, which then may be any text). It has no time in it: only the message's id stops a replay.
    #[serde(default)]
    pub hub_signature: bool,
    /// Where answers are posted. Without one they can be waited for or asked for, and are not sent anywhere.
    #[serde(default)]
    pub callback_url: Option<String>,
    /// Lets `callback_url` name this machine or a private network.
    #[serde(default)]
    pub allow_private_callback: bool,
    /// The shape of synchronous answers.
    #[serde(default)]
    pub profile: Profile,
    /// Where to find things in a body that is not ours.
    #[serde(default)]
    pub map: Option<Map>,
    /// Also posts `message.update` previews and `typing` while an answer is written.
    #[serde(default)]
    pub previews: bool,
}

/// The shape of synchronous answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// `{"ok":true,"status":"done","messages":[…]}`, when the caller asked to wait.
    #[default]
    Standard,
    /// `{"reply":"…"}`, always the same one key: an empty text says that there is nothing to say. Each request waits
    /// (60 s) unless it says otherwise (`Prefer: respond-async`, `Prefer: wait=…`).
    Reply,
}

/// One secret or several.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text like \"whsec_…\" or a list of such texts")]
pub enum Secrets {
    /// One.
    One(Secret),
    /// While keys are rotated.
    Several(Vec<Secret>),
}

impl Secrets {
    fn all(&self) -> &[Secret] {
        match self {
            Self::One(secret) => std::slice::from_ref(secret),
            Self::Several(secrets) => secrets,
        }
    }
}

/// Why no channel can be built. Each names its key; none shows a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Nothing says who may post.
    #[error("no secret: set `secret = \"whsec_…\"` or `token = \"…\"`, or nobody can be told from anybody")]
    NoSecret,
    /// A secret or token that cannot be used.
    #[error("`{key}` {}", .problem.en)]
    BadSecret {
        /// `secret` or `token`.
        key: &'static str,
        /// What is wrong with it.
        problem: Said,
    },
    /// Not a URL that can be posted to.
    #[error("`callback_url` {}", .0.en)]
    BadCallback(Said),
    /// The callback is on this machine or a private network.
    #[error("`callback_url` names a private address ({0}): set `allow_private_callback = true` if that is meant")]
    PrivateCallback(String),
    /// A pointer of `map` that cannot point at anything.
    #[error("`map.{key}` must be a JSON pointer such as \"/message/text\"")]
    BadPointer {
        /// The key.
        key: &'static str,
    },
    /// The HTTP client could not be built.
    #[error("the HTTP client cannot be built: {0}")]
    Client(String),
}

/// The keys of a checked config.
pub(crate) struct Keys {
    /// Keys of Standard Webhooks signatures; empty when only a token is configured.
    pub signing: Vec<Vec<u8>>,
    /// Keys of `X-Hub-Signature-256`; empty unless the config allows it.
    pub hub: Vec<Vec<u8>>,
    /// The bearer token; `None` when a secret is configured.
    pub token: Option<Vec<u8>>,
    /// What signs callbacks.
    pub outgoing: Vec<Vec<u8>>,
}

impl ConfigError {
    /// The same in both languages.
    pub fn said(&self) -> Said {
        let zh = match self {
            Self::NoSecret => "没有密钥：请设置 `secret = \"whsec_…\"` 或 `token = \"…\"`，否则分不清谁是谁".to_owned(),
            Self::BadSecret { key, problem } => format!("`{key}` {}", problem.zh),
            Self::BadCallback(why) => format!("`callback_url` {}", why.zh),
            Self::PrivateCallback(host) => {
                format!("`callback_url` 指向私有地址（{host}）：确实需要时请设置 `allow_private_callback = true`")
            }
            Self::BadPointer { key } => format!("`map.{key}` 必须是 JSON 指针，例如 \"/message/text\""),
            Self::Client(error) => format!("无法创建 HTTP 客户端：{error}"),
        };
        Said::new(self.to_string(), zh)
    }
}

impl Config {
    pub(crate) fn keys(&self) -> Result<Keys, ConfigError> {
        let secrets = self.secret.as_ref().map_or(&[][..], Secrets::all);
        if secrets.is_empty() && self.token.is_none() {
            return Err(ConfigError::NoSecret);
        }
        for secret in secrets {
            check("secret", secret.expose())?;
        }
        let signing = secrets
            .iter()
            .map(|secret| signing_key(secret.expose(), self.hub_signature))
            .collect::<Result<Vec<_>, _>>()?;
        let hub = if self.hub_signature {
            secrets.iter().map(|secret| secret.expose().as_bytes().to_vec()).collect()
        } else {
            Vec::new()
        };
        if self.hub_signature && secrets.is_empty() {
            return Err(bad_secret(
                "secret",
                "is missing: `hub_signature` needs one",
                "没有设置：`hub_signature` 需要它",
            ));
        }
        let token = match &self.token {
            Some(token) => {
                check("token", token.expose())?;
                Some(token.expose().as_bytes().to_vec())
            }
            None => None,
        };
        let outgoing = if signing.is_empty() { token.iter().cloned().collect() } else { signing.clone() };
        let token = if signing.is_empty() { token } else { None };
        Ok(Keys { signing, hub, token, outgoing })
    }

    pub(crate) fn callback(&self) -> Result<Option<Url>, ConfigError> {
        let Some(text) = self.callback_url.as_deref().filter(|text| !text.trim().is_empty()) else { return Ok(None) };
        let bad = |en: &str, zh: &str| ConfigError::BadCallback(Said::new(en, zh));
        let url = Url::parse(text)
            .map_err(|error| bad(&format!("is no URL: {error}"), &format!("不是有效的地址：{error}")))?;
        if !matches!(url.scheme(), "http" | "https") {
            return Err(bad("must begin with https:// or http://", "必须以 https:// 或 http:// 开头"));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(bad("must not hold a user name or password", "里不能有用户名或密码"));
        }
        let Some(host) = url.host() else { return Err(bad("names no host", "没有主机名")) };
        if !self.allow_private_callback && reach::is_private_host(&host) {
            return Err(ConfigError::PrivateCallback(host.to_string()));
        }
        Ok(Some(url))
    }
}

fn bad_secret(key: &'static str, en: &str, zh: &str) -> ConfigError {
    ConfigError::BadSecret { key, problem: Said::new(en, zh) }
}

fn check(key: &'static str, secret: &str) -> Result<(), ConfigError> {
    let (en, zh) = if secret.trim().is_empty() {
        ("is empty", "为空")
    } else if secret.chars().any(|c| c.is_control()) || secret.trim() != secret {
        ("has white space or control characters around or in it", "前后或中间有空白或控制字符")
    } else if secret.starts_with(['"', '\'']) || secret.to_ascii_lowercase().starts_with("bearer ") {
        ("must stand alone, without quotes or `Bearer`", "只写内容本身，不要带引号或 `Bearer`")
    } else if secret.chars().count() < 16 {
        ("is too short: 16 characters at least", "太短：至少 16 个字符")
    } else {
        return Ok(());
    };
    Err(bad_secret(key, en, zh))
}

fn signing_key(secret: &str, any_text: bool) -> Result<Vec<u8>, ConfigError> {
    let bad = |en: &str, zh: &str| bad_secret("secret", en, zh);
    let Some(encoded) = secret.strip_prefix("whsec_") else {
        return if any_text {
            Ok(secret.as_bytes().to_vec())
        } else {
            Err(bad("must begin with `whsec_`", "必须以 `whsec_` 开头"))
        };
    };
    let key =
        STANDARD.decode(encoded).map_err(|_| bad("is not base64 after `whsec_`", "在 `whsec_` 之后不是 base64"))?;
    if key.len() < 16 {
        Err(bad("is too short: 16 bytes at least after `whsec_`", "太短：`whsec_` 之后至少 16 字节"))
    } else {
        Ok(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        toml::from_str(text).expect("the test's config is well-formed")
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
        assert!(told(&ConfigError::BadPointer { key: "text" }).contains("JSON pointer"));
    }

    fn problem(text: &str) -> String {
        match config(text).keys() {
            Ok(_) => "accepted".to_owned(),
            Err(error) => told(&error),
        }
    }

    #[test]
    fn row_07_a_missing_blank_short_or_spaced_secret_is_an_error_and_never_no_check() {
        for text in [
            "",
            "secret = []",
            "secret = ''",
            "secret = '   '",
            "token = ''",
            "token = \"\\t\"",
            "token = 'short'",
            "token = 'changeme'",
            "secret = 'whsec_'",
            "secret = 'whsec_c2hvcnQ='",
            "secret = 'whsec_not base64 at all!!'",
            "secret = 'MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'",
            "secret = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw', '']",
            "secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw '",
            "token = \"a-long-enough-token\\n\"",
            "token = 'Bearer a-long-enough-token'",
            "token = '\"a-long-enough-token\"'",
            "hub_signature = true\ntoken = 'a-long-enough-token'",
        ] {
            assert_ne!(problem(text), "accepted", "{text}");
        }
        assert_eq!(config("").keys().err(), Some(ConfigError::NoSecret));
    }

    #[test]
    fn a_secret_makes_the_token_useless_alone() {
        let both = "secret = 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw'\ntoken = 'a-long-enough-token'";
        let keys = config(both).keys().expect("both are good");
        assert!(keys.token.is_none());
        assert_eq!((keys.signing.len(), keys.outgoing.len()), (1, 1));
        let keys = config("token = 'a-long-enough-token'").keys().expect("the token is good");
        assert_eq!(keys.outgoing, [b"a-long-enough-token".to_vec()]);
    }

    #[test]
    fn secrets_are_never_shown() {
        let shown =
            format!("{:?}", config("secret = ['whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw']\ntoken = 'tok-tok-tok-tok-1'"));
        assert!(!shown.contains("MfKQ") && !shown.contains("tok-tok"), "{shown}");
    }

    #[test]
    fn unknown_keys_and_wrong_types_are_refused_with_their_names() {
        let error = toml::from_str::<Config>("secrt = 'x'").expect_err("unknown").to_string();
        assert!(error.contains("secrt"), "{error}");
        let error = toml::from_str::<Config>("secret = 5").expect_err("a number").to_string();
        assert!(error.contains("whsec_"), "{error}");
        let error = toml::from_str::<Config>("[map]\ntext = '/a'\nsendr = '/b'").expect_err("unknown").to_string();
        assert!(error.contains("sendr"), "{error}");
    }

    #[test]
    fn callbacks_to_private_places_need_the_flag() {
        for url in [
            "http://127.0.0.1/x",
            "http://localhost:8080/x",
            "http://LOCALHOST./x",
            "http://a.localhost/x",
            "http://0x7f.1/",
            "http://2130706433/",
            "http://①②⑦.0.0.1/",
            "http://[::1]/",
            "http://[::ffff:169.254.169.254]/",
            "http://[64:ff9b::7f00:1]/",
            "http://10.1.2.3/",
            "http://metadata.google.internal/",
            "http://printer.local/",
        ] {
            let config = Config { callback_url: Some(url.to_owned()), ..Config::default() };
            assert!(
                matches!(config.callback(), Err(ConfigError::PrivateCallback(_))),
                "{url}: {:?}",
                config.callback()
            );
            told(&config.callback().expect_err("private"));
            let config = Config { allow_private_callback: true, ..config };
            assert!(matches!(config.callback(), Ok(Some(_))), "{url}");
        }
        for url in ["ftp://example.com/", "file:///etc/passwd", "not a url", "https://user:pw@example.com/"] {
            let config = Config { callback_url: Some(url.to_owned()), ..Config::default() };
            assert!(matches!(config.callback(), Err(ConfigError::BadCallback(_))), "{url}");
            told(&config.callback().expect_err("no callback"));
        }
        let config = Config { callback_url: Some("https://example.com/hook".to_owned()), ..Config::default() };
        assert!(matches!(config.callback(), Ok(Some(_))));
        assert_eq!(Config { callback_url: Some(" ".to_owned()), ..Config::default() }.callback(), Ok(None));
    }
}
