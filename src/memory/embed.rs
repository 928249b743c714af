//! The embedding model: an OpenAI-compatible `/embeddings` endpoint that turns texts into vectors. Optional; when it is
//! away, notes are searched by words, and it is left alone for a while.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use channel_api::Clock;
use http::{
    HeaderMap, HeaderValue,
    header::{AUTHORIZATION, CONTENT_TYPE},
};
use reqwest::Url;
use serde::Deserialize;
use serde_json::json;

use crate::{
    lang::{self, Lang},
    ledger::{Ledger, NotNow, Spender, price::Price},
    model::{
        Usage,
        config::{BuildError, Proxy, clean_key, client, endpoint},
    },
    policy::Role,
    secrets::{Redactor, Secret},
};

/// `[memory]`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct MemoryConfig {
    /// `[memory.embedding]`: vectors beside the words; none without it.
    pub embedding: Option<EmbeddingConfig>,
}

/// `[memory.embedding]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddingConfig {
    /// Where the API is, up to and without `/embeddings`. Plain `http` only for this machine and private networks.
    pub base_url: String,
    /// The key; none for servers that want none.
    #[serde(default)]
    pub api_key: Option<Secret>,
    /// The model's name as the provider knows it.
    pub model: String,
    /// How many numbers a vector has, for models that let one choose.
    #[serde(default)]
    pub dimensions: Option<u32>,
    /// The most texts of one request (1 to 256).
    #[serde(default = "default_batch")]
    pub batch: usize,
    /// How to reach it. This machine is always reached directly.
    #[serde(default)]
    pub proxy: Proxy,
    /// What its tokens cost, as in a section of `[models]`.
    #[serde(default)]
    pub price: Option<Price>,
}

fn default_batch() -> usize {
    32
}

/// What it is called in the ledger.
pub const IN_LEDGER: &str = "memory.embedding";
/// How long a batch of notes may take.
const BATCH_TIME: Duration = Duration::from_secs(60);
/// How long a search waits for its question's vector.
const QUESTION_TIME: Duration = Duration::from_secs(3);
/// How long it is left alone after the first failure; doubles up to the longest.
const FIRST_REST: Duration = Duration::from_secs(5);
const LONGEST_REST: Duration = Duration::from_secs(300);
/// The most bytes of an answer.
const LARGEST_ANSWER: usize = 32 << 20;
/// The most numbers of a vector.
const MOST_NUMBERS: usize = 8192;
/// The most characters of a text that are sent: models cut at some hundred tokens anyway.
const MOST_CHARS: usize = 2000;

/// The embedding model.
pub struct Embedder {
    url: Url,
    headers: HeaderMap,
    client: reqwest::Client,
    model: String,
    dimensions: Option<u32>,
    /// The most texts of one request.
    pub batch: usize,
    redactor: Redactor,
    ledger: Arc<Ledger>,
    rest: Mutex<Rest>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Rest {
    /// Not asked before this time of the monotonic clock.
    until: Duration,
    failures: u32,
}

impl fmt::Debug for Embedder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Embedder").field("model", &self.model).finish_non_exhaustive()
    }
}

/// Why there is no vector, in words for the log and the trace.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct NoVector(String);

impl Embedder {
    /// Built from its section; nothing is connected to. What it takes is written in this ledger.
    ///
    /// # Errors
    /// [`BuildError`], named by its key.
    pub fn new(config: &EmbeddingConfig, ledger: Arc<Ledger>) -> Result<Self, BuildError> {
        let lang = Lang::current();
        let renamed = |error: BuildError| BuildError {
            key: error.key.replacen("models.embedding", "memory.embedding", 1),
            text: error.text,
        };
        let wrong = |key: &str, text: String| BuildError { key: format!("memory.embedding.{key}"), text };
        if config.model.trim().is_empty() {
            return Err(wrong("model", lang::model_unnamed(lang)));
        }
        if !(1..=256).contains(&config.batch) {
            return Err(wrong("batch", lang::model_number(lang, 1, 256)));
        }
        let url = endpoint("embedding", &config.base_url, "embeddings").map_err(renamed)?;
        let key = config.api_key.as_ref().map(|key| clean_key("embedding", key)).transpose().map_err(renamed)?;
        let key = key.filter(|key| !key.is_empty());
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(key) = &key {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", key.expose()))
                .map_err(|_| wrong("api_key", lang::model_key_characters(lang)))?;
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let client = client("embedding", url.host_str().unwrap_or_default(), &config.proxy).map_err(renamed)?;
        Ok(Self {
            headers,
            client,
            model: config.model.trim().to_owned(),
            dimensions: config.dimensions,
            batch: config.batch,
            redactor: Redactor::new(key.iter()),
            url,
            ledger,
            rest: Mutex::default(),
        })
    }

    /// What vectors are kept under: those of another model say nothing about this one's.
    pub fn key(&self) -> String {
        let (host, port) = (self.url.host_str().unwrap_or_default(), self.url.port_or_known_default().unwrap_or(0));
        match self.dimensions {
            Some(dimensions) => format!("{}@{host}:{port}#{dimensions}", self.model),
            None => format!("{}@{host}:{port}", self.model),
        }
    }

    /// When it may be asked again; zero = now.
    pub fn resting(&self, clock: &dyn Clock) -> Duration {
        self.rest.lock().unwrap_or_else(PoisonError::into_inner).until.saturating_sub(clock.monotonic())
    }

    /// The vector of a question, of length 1. `agent`: whose notes are searched.
    ///
    /// # Errors
    /// [`NoVector`] when it is away or resting.
    pub async fn question(&self, text: &str, agent: &str, clock: &dyn Clock) -> Result<Vec<f32>, NoVector> {
        if !self.resting(clock).is_zero() {
            return Err(NoVector("the embedding model did not answer lately and rests".to_owned()));
        }
        let vectors = self.ask(&[text], agent, QUESTION_TIME, clock).await?;
        vectors.into_iter().next().ok_or_else(|| NoVector("the embedding model gave no vector".to_owned()))
    }

    /// The vectors of texts, of length 1, in their order.
    ///
    /// # Errors
    /// [`NoVector`]; it rests then, longer each time.
    pub async fn texts(&self, texts: &[&str], agent: &str, clock: &dyn Clock) -> Result<Vec<Vec<f32>>, NoVector> {
        self.ask(texts, agent, BATCH_TIME, clock).await
    }

    async fn ask(
        &self,
        texts: &[&str],
        agent: &str,
        time: Duration,
        clock: &dyn Clock,
    ) -> Result<Vec<Vec<f32>>, NoVector> {
        let input: Vec<String> = texts.iter().map(|text| text.chars().take(MOST_CHARS).collect()).collect();
        let usage = Usage::of_bytes(input.iter().map(String::len).sum(), 0);
        let asking = async {
            tokio::select! {
                answer = self.post(&input) => answer.map(|vectors| (vectors, usage)),
                () = clock.sleep(time) => Err(NoVector(format!("the embedding model did not answer within {} s", time.as_secs()))),
            }
        };
        // The gateway looks for everybody, so it is nobody's own spending but the day's.
        let who = Spender { agent: agent.to_owned(), session: None, sender: String::new(), role: Role::Owner };
        let answer = match self.ledger.ask(&who, None, (IN_LEDGER, "embed"), usage.input, asking).await {
            Ok(answer) => answer,
            Err(NotNow::Reached(reached)) => Err(NoVector(self.ledger.line(&reached, Lang::current(), true))),
            Err(NotNow::Store(error)) => Err(NoVector(error.to_string())),
        };
        let mut rest = self.rest.lock().unwrap_or_else(PoisonError::into_inner);
        match &answer {
            Ok(_) => *rest = Rest::default(),
            Err(_) => {
                let pause = FIRST_REST.saturating_mul(1 << rest.failures.min(8)).min(LONGEST_REST);
                *rest = Rest { until: clock.monotonic() + pause, failures: rest.failures.saturating_add(1) };
            }
        }
        answer
    }

    async fn post(&self, input: &[String]) -> Result<Vec<Vec<f32>>, NoVector> {
        let mut body = json!({ "model": self.model, "input": input, "encoding_format": "float" });
        if let Some(dimensions) = self.dimensions {
            body["dimensions"] = dimensions.into();
        }
        let body = serde_json::to_vec(&body).map_err(|error| NoVector(error.to_string()))?;
        let away = |error: reqwest::Error| {
            NoVector(format!(
                "the embedding model cannot be reached: {}",
                self.redactor.redact(&error.without_url().to_string())
            ))
        };
        let sent = self.client.post(self.url.clone()).headers(self.headers.clone()).body(body).send().await;
        let mut response = sent.map_err(away)?;
        let status = response.status();
        if !status.is_success() {
            return Err(NoVector(format!("the embedding model answers {}", status.as_u16())));
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = response.chunk().await.map_err(away)? {
            if bytes.len() + chunk.len() > LARGEST_ANSWER {
                return Err(NoVector("the embedding model's answer is too large".to_owned()));
            }
            bytes.extend_from_slice(&chunk);
        }
        vectors_in(&bytes, input.len())
    }
}

/// Reads `{"data": [{"index", "embedding": [numbers]}]}`: one vector a text, in order, all of one length, made 1 long.
fn vectors_in(bytes: &[u8], count: usize) -> Result<Vec<Vec<f32>>, NoVector> {
    #[derive(Deserialize)]
    struct Answer {
        #[serde(default)]
        data: Vec<One>,
    }
    #[derive(Deserialize)]
    struct One {
        #[serde(default)]
        index: Option<usize>,
        embedding: Vec<f32>,
    }
    let odd = |what: &str| NoVector(format!("the embedding model's answer is odd: {what}"));
    let answer: Answer = serde_json::from_slice(bytes).map_err(|_| odd("not the JSON of an embedding"))?;
    if answer.data.len() != count {
        return Err(odd(&format!("{} vectors for {count} texts", answer.data.len())));
    }
    let mut vectors: Vec<Vec<f32>> = vec![Vec::new(); count];
    for (n, one) in answer.data.into_iter().enumerate() {
        let place = vectors.get_mut(one.index.unwrap_or(n)).ok_or_else(|| odd("an index that was not asked for"))?;
        *place = one.embedding;
    }
    let length = vectors.first().map_or(0, Vec::len);
    if length == 0 || length > MOST_NUMBERS || vectors.iter().any(|vector| vector.len() != length) {
        return Err(odd("vectors of no or different length"));
    }
    for vector in &mut vectors {
        let norm = vector.iter().map(|number| f64::from(*number).powi(2)).sum::<f64>().sqrt();
        if !norm.is_finite() || norm < 1e-9 {
            return Err(odd("a vector without a direction"));
        }
        vector.iter_mut().for_each(|number| *number = (f64::from(*number) / norm) as f32);
    }
    Ok(vectors)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_in_their_order_and_odd_ones_are_refused() {
        let good = br#"{"data":[{"index":1,"embedding":[0,2]},{"index":0,"embedding":[3,4]}]}"#;
        assert_eq!(vectors_in(good, 2), Ok(vec![vec![0.6, 0.8], vec![0.0, 1.0]]));
        for bad in [
            r#"{"data":[]}"#,
            r#"{"data":[{"embedding":[1]}]}"#,
            "<html>",
            "{}",
            r#"{"error":{"message":"no"}}"#,
            r#"{"data":[{"embedding":[1]},{"embedding":[1,2]}]}"#,
            r#"{"data":[{"embedding":[]},{"embedding":[]}]}"#,
            r#"{"data":[{"embedding":[0,0]},{"embedding":[1,0]}]}"#,
            r#"{"data":[{"index":9,"embedding":[1]},{"embedding":[1]}]}"#,
            r#"{"data":[{"embedding":"AAAA"},{"embedding":"AAAA"}]}"#,
        ] {
            assert!(vectors_in(bad.as_bytes(), 2).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn a_section_is_checked_and_keeps_its_key_to_itself() {
        let dir = tempfile::tempdir().expect("a folder");
        let store = crate::store::sqlite::SqliteStore::open(&dir.path().join("x.db")).await.expect("it opens");
        let clock: Arc<dyn Clock> = Arc::new(crate::clock::SystemClock::new());
        let zone = jiff::tz::TimeZone::UTC;
        let ledger = Arc::new(Ledger::new(Arc::new(store), clock, zone, Default::default(), Default::default()));
        let section = |text: &str| toml::from_str::<EmbeddingConfig>(text);
        let good = section("base_url = \"http://127.0.0.1:9/v1\"\nmodel = \"m\"\napi_key = \"sk-hidden-words\"")
            .expect("good");
        let built = Embedder::new(&good, Arc::clone(&ledger)).expect("good");
        assert_eq!((built.url.path(), built.key().as_str()), ("/v1/embeddings", "m@127.0.0.1:9"));
        assert!(!format!("{good:?}{built:?}").contains("hidden-words"));
        for (text, key) in [
            ("base_url = \"http://example.com/v1\"\nmodel = \"m\"", "memory.embedding.base_url"),
            ("base_url = \"nonsense\"\nmodel = \"m\"", "memory.embedding.base_url"),
            ("base_url = \"https://example.com\"\nmodel = \" \"", "memory.embedding.model"),
            ("base_url = \"https://example.com\"\nmodel = \"m\"\nbatch = 0", "memory.embedding.batch"),
            ("base_url = \"https://example.com\"\nmodel = \"m\"\napi_key = \"a b\"", "memory.embedding.api_key"),
        ] {
            assert_eq!(
                Embedder::new(&section(text).expect("TOML"), Arc::clone(&ledger)).expect_err(text).key,
                key,
                "{text}"
            );
        }
        section("base_url = \"x\"\nmodel = \"m\"\nurl = \"y\"").expect_err("unknown keys are refused");
    }
}
