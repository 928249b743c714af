//! Models that hear and speak: OpenAI's `/audio/transcriptions` and `/audio/speech`, which other providers and local servers
//! speak as well. A section of `[models]` says where they are; its key, proxy and limits are those of any other model.
//!
//! platform.openai.com "Audio" (read in November 2026). A call is made at most twice: what is heard is paid by the minute.

use std::{sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use channel_api::{Clock, json::parse};
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderValue, header::CONTENT_TYPE};
use reqwest::Url;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::{
    Cause, ModelError, Usage,
    cause::{What, bounded},
    classify::{Class, classify, plain},
    config::{BuildError, ModelConfig, OPENAI, Provider, Reach, endpoint},
    openai::trouble_in,
    remote::retry_after,
};
use crate::{
    lang::{self, Lang},
    secrets::Redactor,
};

/// The most bytes of a recording. openclaw-parity.md §9.
pub const LARGEST: u64 = 20_000_000;
/// Less than this is a slip of the finger.
pub const SMALLEST: u64 = 1_024;
/// The most characters that are kept of what was heard.
const HEARD_CHARS: usize = 16_000;
/// The most characters spoken at once, as the API takes them.
pub const SPOKEN_CHARS: usize = 4_096;
/// How long one try may take.
const LIMIT: Duration = Duration::from_secs(60);
/// The longest pause before the second try.
const PAUSE: Duration = Duration::from_secs(5);
const AT_ONCE: usize = 2;
const MAX_TEXT: usize = 1 << 20;
/// Bytes of a recording for each byte of what is said in it: a minute of a voice message is about 180 kB, and where
/// providers count tokens it is some hundred of them.
const BYTES_OF_SPEECH: usize = 75;

/// What hearing a recording takes about: services tell no tokens.
pub fn heard(recording: &[u8], words: &str) -> Usage {
    Usage::of_bytes(recording.len() / BYTES_OF_SPEECH, words.len())
}

/// The same of speaking a text.
pub fn spoken(text: &str) -> Usage {
    Usage::of_bytes(text.len(), 0)
}

/// A service that is asked for one thing.
struct Service {
    name: String,
    model: String,
    client: reqwest::Client,
    url: Url,
    headers: HeaderMap,
    redactor: Redactor,
    quota_is_rate: bool,
    slots: Semaphore,
    clock: Arc<dyn Clock>,
}

impl Service {
    fn of(name: &str, config: &ModelConfig, operation: &str, clock: Arc<dyn Clock>) -> Result<Self, BuildError> {
        let lang = Lang::current();
        if config.provider != Provider::Openai {
            return Err(BuildError::new(name, "provider", lang::model_no_audio(lang)));
        }
        let model = config.model.as_deref().map(str::trim).filter(|model| !model.is_empty());
        let model = model.ok_or_else(|| BuildError::new(name, "model", lang::model_unnamed(lang)))?;
        let url = endpoint(name, config.base_url.as_deref().unwrap_or(OPENAI), operation)?;
        let Reach { client, headers, quirks, key, proxy_secret } = Reach::of(name, config, &url)?;
        Ok(Self {
            name: name.to_owned(),
            model: model.to_owned(),
            client,
            url,
            headers,
            redactor: Redactor::new(key.iter().chain(&proxy_secret)),
            quota_is_rate: quirks.quota_is_rate,
            slots: Semaphore::new(AT_ONCE),
            clock,
        })
    }

    /// The body of the answer, at most `most` bytes of it.
    async fn ask(&self, kind: &str, body: Bytes, most: usize, cancel: &CancellationToken) -> Result<Bytes, ModelError> {
        let asked = async {
            let _slot = self.slots.acquire().await.map_err(|_| ModelError::Retry(Cause::new(What::Full)))?;
            match self.attempt(kind, body.clone(), most).await {
                Err((error, Some(pause))) if pause <= PAUSE => {
                    tracing::debug!(model = self.name, %error, "a call failed and is made once more");
                    self.clock.sleep(pause).await;
                    self.attempt(kind, body, most).await.map_err(|(error, _)| error)
                }
                answer => answer.map_err(|(error, _)| error),
            }
        };
        tokio::select! {
            biased;
            () = cancel.cancelled() => Err(ModelError::Cancelled),
            answer = asked => answer,
        }
    }

    /// One try; with an error, the pause after which another makes sense.
    async fn attempt(&self, kind: &str, body: Bytes, most: usize) -> Result<Bytes, (ModelError, Option<Duration>)> {
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_str(kind).expect("a type of ours"));
        let answer = async {
            let response = self.client.post(self.url.clone()).headers(headers).body(body).send().await?;
            let (status, after) = (response.status(), retry_after(response.headers(), self.clock.now_ms()));
            let (mut stream, mut body) = (response.bytes_stream(), BytesMut::new());
            while let Some(piece) = stream.next().await {
                body.extend_from_slice(&piece?);
                if body.len() > most {
                    break;
                }
            }
            Ok((status, after, body.freeze()))
        };
        let silent = || (ModelError::Retry(Cause::new(What::Silent)), None);
        let answered: reqwest::Result<_> = tokio::select! {
            answer = answer => answer,
            () = self.clock.sleep(LIMIT) => return Err(silent()),
        };
        let (status, after, body) = answered.map_err(|error| {
            let what = match error.is_connect() {
                true => What::Unreachable(self.url.host_str().unwrap_or_default().to_owned()),
                false => What::Broke,
            };
            // What was on its way may have been heard, and paid: it is not sent twice.
            let again = error.is_connect().then_some(Duration::from_secs(1));
            (ModelError::Retry(Cause::new(what)), again)
        })?;
        if body.len() > most {
            return Err((ModelError::Fatal(Cause::new(What::TooMuch)), None));
        }
        if status.is_success() {
            return Ok(body);
        }
        Err(self.refusal(status.as_u16(), after, &body))
    }

    fn refusal(&self, status: u16, after: Option<Duration>, body: &[u8]) -> (ModelError, Option<Duration>) {
        let text = String::from_utf8_lossy(&body[..body.len().min(64 << 10)]);
        let said = match parse(text.trim()) {
            Some(value) => trouble_in(&value, true).map(|trouble| trouble.text).unwrap_or_default(),
            None => text.into_owned(),
        };
        let name = || self.name.clone();
        let with = |what| Cause::new(what).saying(bounded(&self.redactor.redact(&plain(&said)), 500));
        let fatal = |what| (ModelError::Fatal(with(what)), None);
        match classify(status, &said, self.quota_is_rate) {
            Class::Key => (ModelError::Fatal(Cause::new(What::Key(name(), status))), None),
            Class::Denied => fatal(What::Denied(name(), status)),
            Class::Money => fatal(What::Money),
            Class::Missing => fatal(What::Missing(name(), status)),
            Class::Refused => (ModelError::Refused(with(What::Filtered)), None),
            Class::TooLong | Class::Order | Class::Wrong => fatal(What::Status(status)),
            Class::Busy => (ModelError::Retry(with(What::Rate)), Some(after.unwrap_or(Duration::from_secs(1)))),
            Class::Ill => {
                (ModelError::Retry(with(What::Status(status))), Some(after.unwrap_or(Duration::from_secs(1))))
            }
        }
    }
}

/// A model that writes down what is said in a recording.
pub struct Ears {
    service: Service,
    language: Option<String>,
}

impl Ears {
    /// `language`: what is mostly spoken, as ISO 639-1 (`zh`), where it is known.
    ///
    /// # Errors
    /// [`BuildError`] when the section cannot work; nothing was connected to.
    pub fn new(
        name: &str,
        config: &ModelConfig,
        language: Option<String>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, BuildError> {
        Ok(Self { service: Service::of(name, config, "audio/transcriptions", clock)?, language })
    }

    /// The name it has in the configuration.
    pub fn name(&self) -> &str {
        &self.service.name
    }

    /// Whether the API takes recordings of this type, and the ending by which it knows them.
    pub fn takes(mime: &str) -> Option<&'static str> {
        Some(match mime.split(';').next().unwrap_or_default().trim() {
            "audio/ogg" | "audio/opus" => "ogg",
            "audio/mpeg" | "audio/mp3" => "mp3",
            "audio/m4a" | "audio/mp4" | "audio/x-m4a" => "m4a",
            "audio/wav" | "audio/x-wav" => "wav",
            "audio/flac" | "audio/x-flac" => "flac",
            "audio/webm" | "video/webm" => "webm",
            "video/mp4" => "mp4",
            _ => return None,
        })
    }

    /// The words of a recording, at most 16,000 characters; empty when nobody speaks in it.
    ///
    /// # Errors
    /// [`ModelError`], named by what the caller does next.
    pub async fn hear(&self, recording: &[u8], mime: &str, cancel: &CancellationToken) -> Result<String, ModelError> {
        let ending = Self::takes(mime).ok_or_else(|| ModelError::Fatal(Cause::new(What::Status(415))))?;
        let mut fields = vec![("model", self.service.model.as_str()), ("response_format", "json")];
        fields.extend(self.language.as_deref().map(|language| ("language", language)));
        let (kind, body) = form(&fields, recording, mime, ending);
        let answer = self.service.ask(&kind, body, MAX_TEXT, cancel).await?;
        let text = String::from_utf8_lossy(&answer);
        let words = match parse(text.trim()) {
            Some(value) => match value["text"].as_str() {
                Some(words) => words.to_owned(),
                None => {
                    let (error, _) = self.service.refusal(200, None, &answer);
                    return Err(error);
                }
            },
            None if text.trim_start().starts_with('<') => return Err(ModelError::Fatal(Cause::new(What::WebPage))),
            // Some servers answer with the words alone.
            None => text.into_owned(),
        };
        Ok(words.replace('\0', "").trim().chars().take(HEARD_CHARS).collect())
    }
}

/// A model that speaks.
pub struct Voice {
    service: Service,
    voice: String,
}

impl Voice {
    /// `voice`: one of the provider's.
    ///
    /// # Errors
    /// [`BuildError`] when the section cannot work; nothing was connected to.
    pub fn new(name: &str, config: &ModelConfig, voice: String, clock: Arc<dyn Clock>) -> Result<Self, BuildError> {
        Ok(Self { service: Service::of(name, config, "audio/speech", clock)?, voice })
    }

    /// The section's name.
    pub fn name(&self) -> &str {
        &self.service.name
    }

    /// The text as a recording: Opus in Ogg, what chats take for a voice message.
    ///
    /// # Errors
    /// [`ModelError`], named by what the caller does next.
    pub async fn say(&self, text: &str, cancel: &CancellationToken) -> Result<Bytes, ModelError> {
        let model = &self.service.model;
        let body = json!({ "model": model, "input": text, "voice": self.voice, "response_format": "opus" });
        let answer = self.service.ask("application/json", body.to_string().into(), LARGEST as usize, cancel).await?;
        match answer.iter().find(|byte| !byte.is_ascii_whitespace()) {
            None => Err(ModelError::Retry(Cause::new(What::Nothing))),
            Some(b'<') => Err(ModelError::Fatal(Cause::new(What::WebPage))),
            Some(b'{') if parse(&String::from_utf8_lossy(&answer)).is_some_and(|value: Value| value.is_object()) => {
                Err(self.service.refusal(200, None, &answer).0)
            }
            Some(_) => Ok(answer),
        }
    }
}

/// A form with a file, as browsers send it; the type that names its border.
fn form(fields: &[(&str, &str)], file: &[u8], mime: &str, ending: &str) -> (String, Bytes) {
    let border = format!("crawfish-{}", ulid::Ulid::generate());
    let mut body = Vec::with_capacity(file.len() + 1_024);
    for (name, value) in fields {
        let value = value.replace(['\r', '\n'], " ");
        let part = format!("--{border}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
        body.extend_from_slice(part.as_bytes());
    }
    let mime: String = mime.chars().filter(|c| c.is_ascii_graphic()).collect();
    let head = format!(
        "--{border}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"voice.{ending}\"\r\n\
         Content-Type: {mime}\r\n\r\n"
    );
    body.extend_from_slice(head.as_bytes());
    body.extend_from_slice(file);
    body.extend_from_slice(format!("\r\n--{border}--\r\n").as_bytes());
    (format!("multipart/form-data; boundary={border}"), body.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::SystemClock;

    fn config(text: &str) -> ModelConfig {
        toml::from_str(text).expect("a good section")
    }

    fn ears(text: &str) -> Result<Ears, BuildError> {
        Ears::new("ears", &config(text), None, Arc::new(SystemClock::new()))
    }

    #[test]
    fn a_section_is_checked_like_any_other() {
        let address =
            |text: &str| ears(text).map(|ears| ears.service.url.to_string()).map_err(|error| error.to_string());
        assert_eq!(address("model = \"m\"").as_deref(), Ok("https://api.openai.com/v1/audio/transcriptions"));
        let local = "model = \"m\"\nbase_url = \"http://127.0.0.1:8000/v1/audio/transcriptions\"";
        assert_eq!(address(local).as_deref(), Ok("http://127.0.0.1:8000/v1/audio/transcriptions"));
        assert!(address("").expect_err("no model").starts_with("models.ears.model: "));
        let plain = "model = \"m\"\nbase_url = \"http://api.example.com/v1\"";
        assert!(address(plain).expect_err("not in the open").contains("http"));
        let other = "model = \"m\"\nprovider = \"anthropic\"";
        assert!(address(other).expect_err("it does not hear").starts_with("models.ears.provider: "));
    }

    #[test]
    fn refusals_are_told_in_plain_words_without_the_key() {
        let ears = ears("model = \"m\"\napi_key = \"sk-canary-0123456789\"").expect("good");
        for (status, body, again) in [
            (401, "Incorrect API key provided: sk-canary-0123456789", false),
            (429, "rate limit", true),
            (500, "<html>sk-canary-0123456789</html>", true),
            (400, "{\"error\":{\"message\":\"Invalid file format. sk-canary-0123456789\"}}", false),
        ] {
            let (error, pause) = ears.service.refusal(status, None, body.as_bytes());
            assert_eq!(pause.is_some(), again, "{status}");
            let text = error.to_string();
            assert!(!text.contains("canary") && !text.contains('<'), "{text}");
        }
    }

    #[test]
    fn a_form_holds_the_recording_as_it_is() {
        let (kind, body) = form(&[("model", "m\r\n1")], b"\0\xffab", "audio/ogg", "ogg");
        let border = kind.strip_prefix("multipart/form-data; boundary=").expect("a form");
        let mut expected = format!(
            "--{border}\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm  1\r\n--{border}\r\nContent-Disposition: \
             form-data; name=\"file\"; filename=\"voice.ogg\"\r\nContent-Type: audio/ogg\r\n\r\n"
        )
        .into_bytes();
        expected.extend_from_slice(b"\0\xffab");
        expected.extend_from_slice(format!("\r\n--{border}--\r\n").as_bytes());
        assert_eq!(body, expected);
        assert_eq!(Ears::takes("audio/ogg; codecs=opus"), Some("ogg"));
        assert_eq!((Ears::takes("audio/silk"), Ears::takes("audio/amr")), (None, None));
    }
}
