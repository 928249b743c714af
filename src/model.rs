//! Station 8: the seam to a language model, one request in, one streamed response or one classified error out.

mod anthropic;
pub mod audio;
mod cause;
mod classify;
pub mod config;
pub mod failover;
mod openai;
pub mod preset;
pub mod quirks;
mod remote;
pub mod scripted;
mod sse;
#[cfg(test)]
mod tests;

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use self::cause::Cause;
use crate::{
    lang::{self, Lang},
    secrets::Redactor,
};

/// A language model behind some wire format.
#[async_trait]
pub trait Model: Send + Sync + 'static {
    /// The name it has in the configuration, e.g. `main`.
    fn name(&self) -> &str;

    /// How many tokens a request and its answer may have together, where the configuration says so.
    fn context_tokens(&self) -> Option<u32> {
        None
    }

    /// Whether it can look at pictures; what it is shown of them otherwise it leaves out.
    fn sees(&self) -> bool {
        false
    }

    /// Sends one request and waits for the whole response; `progress` sees the text as it comes.
    /// Ends promptly with [`ModelError::Cancelled`] when `cancel` fires.
    ///
    /// # Errors
    /// [`ModelError`], named by what the caller does next.
    async fn complete(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError>;

    /// The same for a caller that has another model to ask: pauses and tries that would keep a person waiting are left out.
    ///
    /// # Errors
    /// As [`Model::complete`].
    async fn complete_soon(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        self.complete(request, progress, cancel).await
    }
}

/// Sees a response while it is being written.
pub trait Progress: Send + Sync {
    /// A piece of the answer's text.
    fn text(&self, delta: &str);

    /// What was shown so far is void: the call is made again (another try, another model).
    fn reset(&self);

    /// No answer yet, and a try goes on.
    fn waiting(&self, _why: Waiting) {}

    /// This model is not the one that answers: it failed, or rests after a failure.
    fn passed_over(&self, _model: &str, _why: &str) {}
}

/// Why there is no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// The provider is slow.
    Slow,
    /// It failed and is asked again.
    Again,
}

impl Waiting {
    /// One plain line for the person who waits.
    pub fn line(self, lang: Lang) -> String {
        match self {
            Self::Slow => lang::model_slow(lang),
            Self::Again => lang::model_asked_again(lang),
        }
    }
}

/// Ignores progress.
impl Progress for () {
    fn text(&self, _delta: &str) {}
    fn reset(&self) {}
}

/// One request: everything the model sees, in order.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    /// The system prompt.
    pub system: String,
    /// The conversation, strictly ordered: see [`crate::agent::turn`] for the order it guarantees.
    pub messages: Vec<Message>,
    /// The tools it may call; empty in the last round.
    pub tools: Vec<ToolSpec>,
    /// The most tokens of the answer, where the caller limits them.
    pub max_tokens: Option<u32>,
}

/// One message of the conversation, free of any provider's wire format.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "role", rename_all = "snake_case")]
pub enum Message {
    /// From the person (or the gateway on their behalf).
    User {
        /// The text.
        text: String,
        /// The pictures that came with it, in order.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        pictures: Vec<Picture>,
    },
    /// From the model.
    Assistant {
        /// What it said; empty when it only called tools.
        text: String,
        /// The calls it made.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        calls: Vec<ToolCall>,
        /// What the provider wants back byte for byte (reasoning, signatures), as it came.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        opaque: Option<Value>,
    },
    /// The result of one call.
    Tool {
        /// The call's id.
        call_id: String,
        /// The tool's name.
        name: String,
        /// The result as the model reads it.
        text: String,
    },
}

impl Message {
    /// A user message without pictures.
    pub fn user(text: impl Into<String>) -> Self {
        Self::User { text: text.into(), pictures: Vec::new() }
    }
}

/// A picture that came with a message. What the text says of it stands for it wherever it is not shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// Its name in the media folder (SHA-256, hex).
    pub name: String,
    /// Its media type, e.g. `image/png`.
    pub mime: String,
    /// What is shown of it: read when the request is made, never kept in a row.
    #[serde(skip)]
    pub bytes: Option<Bytes>,
}

impl Picture {
    /// The formats that models look at.
    pub const FORMATS: [&'static str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
    /// The most bytes of one that is shown. openclaw-parity.md §9.
    pub const LARGEST: u64 = 10_000_000;
}

/// A call the model asks for, as it came: not yet repaired or checked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// Our own id, unique in the session (`call_…`); never the provider's.
    pub id: String,
    /// The name as the model wrote it.
    pub name: String,
    /// The arguments as the model wrote them: JSON, or what it takes for JSON.
    pub arguments: String,
}

/// What a tool looks like to the model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSpec {
    /// The name, `[a-z0-9_]{1,64}`.
    pub name: String,
    /// What it does and when to use it.
    pub description: String,
    /// JSON Schema (an object) of its arguments.
    pub parameters: Value,
}

/// A whole response.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ModelResponse {
    /// The text, raw: reasoning tags and tokens are the reply filter's business.
    pub text: String,
    /// The calls, ids made ours.
    pub calls: Vec<ToolCall>,
    /// Why it ended.
    pub finish: Finish,
    /// What the provider wants back byte for byte with this message.
    pub opaque: Option<Value>,
    /// What it cost.
    pub usage: Usage,
    /// The model that answered, as the provider names it.
    pub model: String,
    /// The same by its name in the configuration, where a model is made of several; empty = the one that was asked.
    pub answered_by: String,
    /// The provider's id of the request, for support.
    pub request_id: Option<String>,
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// It was done, or wants tools run.
    #[default]
    Stop,
    /// The token limit cut it.
    Length,
    /// The provider's content filter cut it.
    Filtered,
    /// The stream ended in the middle; the text is what came.
    Cut,
}

/// Tokens, as the provider counted them (or estimated when it did not: then `estimated`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the request.
    pub input: u64,
    /// Of the response.
    pub output: u64,
    /// Of the request, those read from the provider's cache.
    pub cached: u64,
    /// Of the request, those written to the provider's cache, where that has a price of its own.
    #[serde(default)]
    pub cache_write: u64,
    /// Counted by us.
    #[serde(default)]
    pub estimated: bool,
}

impl Usage {
    /// The most tokens of one call that a provider is believed: a hundred times what the largest models read. bad-inputs.md 64.
    pub const MOST: u64 = 100_000_000;

    /// Of request and answer together.
    pub fn total(&self) -> u64 {
        self.input.saturating_add(self.output)
    }

    /// Of a service that counts no tokens: what goes in and what comes out, in bytes of text.
    pub fn of_bytes(input: usize, output: usize) -> Self {
        let tokens = |bytes: usize| bytes.div_ceil(4) as u64;
        Self { input: tokens(input), output: tokens(output), estimated: true, ..Self::default() }
    }

    /// Adds what another answer took. A provider may count as much as it likes: the sum ends at the largest number.
    pub fn add(&mut self, more: &Self) {
        self.input = self.input.saturating_add(more.input);
        self.output = self.output.saturating_add(more.output);
        self.cached = self.cached.saturating_add(more.cached);
        self.cache_write = self.cache_write.saturating_add(more.cache_write);
        self.estimated |= more.estimated;
    }

    /// With our own rough count in place of each that the provider did not give, or not so that it could be believed: no
    /// request is nothing, and no text is.
    pub fn or_estimated(self, request: &ModelRequest, response: &ModelResponse) -> Self {
        let guess = || Self::estimate(request, response);
        let mut usage = self;
        if usage.input == 0 {
            (usage.input, usage.cached, usage.cache_write) = (guess().input, 0, 0);
            usage.estimated = true;
        }
        if usage.output == 0 && guess().output > 0 {
            usage.output = guess().output;
            usage.estimated = true;
        }
        usage
    }

    /// A rough count for providers that give none: four bytes a token, which is near for English and for Chinese alike.
    pub fn estimate(request: &ModelRequest, response: &ModelResponse) -> Self {
        let calls = |calls: &[ToolCall]| -> usize {
            calls.iter().map(|call| call.name.len() + call.arguments.len() + 16).sum()
        };
        let messages = request.messages.iter().map(|message| match message {
            // A picture is about a thousand tokens to those that say how they count.
            Message::User { text, pictures } => {
                text.len() + 16 + 4_000 * pictures.iter().filter(|picture| picture.bytes.is_some()).count()
            }
            Message::Tool { text, .. } => text.len() + 16,
            Message::Assistant { text, calls: made, .. } => text.len() + calls(made) + 16,
        });
        let tools = request.tools.iter().map(|tool| tool.name.len() + tool.description.len() + 128);
        let input = request.system.len() + messages.sum::<usize>() + tools.sum::<usize>();
        let output = response.text.len() + calls(&response.calls);
        Self {
            input: input.div_ceil(4) as u64,
            output: output.div_ceil(4) as u64,
            cached: 0,
            cache_write: 0,
            estimated: true,
        }
    }
}

/// A call id of our own (`call_…`, 31 characters): providers repeat theirs, leave them out or send them empty.
pub fn new_call_id() -> String {
    format!("call_{}", ulid::Ulid::generate())
}

/// Why there is no response, named by what the caller does next. A cause is plain, bounded (500 characters) and free of
/// secrets, addresses with keys, and HTML.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// Ask the same model again after this long.
    #[error("the provider asks to wait {0:?}")]
    RetryAfter(Duration),
    /// It failed several times in a row and is left alone for this long; nothing was asked now.
    #[error("it failed several times in a row and is asked again in {} s", .0.as_secs().max(1))]
    Resting(Duration),
    /// Ask again, here or at the next model.
    #[error("{0}")]
    Retry(Cause),
    /// The request is too long for the model: shorten the history.
    #[error("the request is too long: {0}")]
    TooLong(Cause),
    /// The provider refused the order of tool messages: rebuild the history once.
    #[error("the provider refused the message order: {0}")]
    Order(Cause),
    /// The content was refused; the same text will be refused again.
    #[error("refused: {0}")]
    Refused(Cause),
    /// Wrong key, no money, unknown model: nothing will change by itself.
    #[error("{0}")]
    Fatal(Cause),
    /// The caller cancelled.
    #[error("cancelled")]
    Cancelled,
}

impl ModelError {
    /// Why, where there is more to say than the name of the error.
    pub fn cause(&self) -> Option<&Cause> {
        match self {
            Self::Retry(cause)
            | Self::TooLong(cause)
            | Self::Order(cause)
            | Self::Refused(cause)
            | Self::Fatal(cause) => Some(cause),
            Self::RetryAfter(_) | Self::Resting(_) | Self::Cancelled => None,
        }
    }

    /// Without the secrets that the provider's words hold.
    pub fn screened(mut self, redactor: &Redactor) -> Self {
        match &mut self {
            Self::Retry(cause)
            | Self::TooLong(cause)
            | Self::Order(cause)
            | Self::Refused(cause)
            | Self::Fatal(cause) => cause.screen(redactor),
            Self::RetryAfter(_) | Self::Resting(_) | Self::Cancelled => {}
        }
        self
    }

    /// With the provider's id of the request, unless one is known.
    fn of_request(mut self, id: Option<&str>) -> Self {
        match &mut self {
            Self::Retry(cause)
            | Self::TooLong(cause)
            | Self::Order(cause)
            | Self::Refused(cause)
            | Self::Fatal(cause) => {
                cause.of_request(id);
            }
            Self::RetryAfter(_) | Self::Resting(_) | Self::Cancelled => {}
        }
        self
    }
}
