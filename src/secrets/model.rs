//! The way between the agent and its providers: no request holds a secret, and nothing that comes back does, be it a text, a
//! call, a name or an error. security.md rows 28 and 44.
//!
//! What a provider writes is not trusted with the keys that it was given: an answer that repeats one is an answer with
//! `[redacted]` in it, and a line in the log. Pieces of a text pass as they come: whoever shows them holds them back
//! ([`Redactor::redact_growing`]).

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::Redactor;
use crate::model::{Message, Model, ModelError, ModelRequest, ModelResponse, Progress};

/// A model that neither learns a secret nor tells one.
pub struct Screened {
    inner: Arc<dyn Model>,
    redactor: Redactor,
}

impl Screened {
    /// Stands before `inner`.
    pub fn before(inner: Arc<dyn Model>, redactor: Redactor) -> Arc<dyn Model> {
        Arc::new(Self { inner, redactor })
    }

    fn request<'a>(&self, request: &'a ModelRequest) -> Cow<'a, ModelRequest> {
        let finds = |text: &str| self.redactor.finds(text);
        let held = finds(&request.system)
            || request.tools.iter().any(|tool| finds(&tool.description))
            || request.messages.iter().any(|message| match message {
                Message::User { text, .. } | Message::Tool { text, .. } => finds(text),
                Message::Assistant { text, calls, .. } => {
                    finds(text)
                        || calls.iter().any(|call| self.redactor.finds_in_json(&call.arguments) || finds(&call.name))
                }
            });
        if !held {
            return Cow::Borrowed(request);
        }
        let mut request = request.clone();
        self.redactor.clean(&mut request.system);
        for tool in &mut request.tools {
            self.redactor.clean(&mut tool.description);
        }
        for message in &mut request.messages {
            match message {
                Message::User { text, .. } | Message::Tool { text, .. } => drop(self.redactor.clean(text)),
                Message::Assistant { text, calls, .. } => {
                    self.redactor.clean(text);
                    for call in calls {
                        self.redactor.clean_json(&mut call.arguments);
                        self.redactor.clean(&mut call.name);
                    }
                }
            }
        }
        Cow::Owned(request)
    }

    fn answer(&self, answer: Result<ModelResponse, ModelError>) -> Result<ModelResponse, ModelError> {
        match answer {
            Ok(mut response) => {
                let mut found = self.redactor.clean(&mut response.text);
                for call in &mut response.calls {
                    found |= self.redactor.clean_json(&mut call.arguments);
                    found |= self.redactor.clean(&mut call.name);
                }
                found |= self.redactor.clean(&mut response.model);
                found |= response.request_id.as_mut().is_some_and(|id| self.redactor.clean(id));
                // It is wanted back byte for byte, or not at all.
                if response.opaque.as_ref().is_some_and(|opaque| self.redactor.finds_in_json(&opaque.to_string())) {
                    (response.opaque, found) = (None, true);
                }
                if found {
                    warn!(
                        model = self.inner.name(),
                        "a model answered with a secret of this gateway: it was taken out"
                    );
                }
                Ok(response)
            }
            Err(error) => Err(error.screened(&self.redactor)),
        }
    }
}

#[async_trait]
impl Model for Screened {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn context_tokens(&self) -> Option<u32> {
        self.inner.context_tokens()
    }

    fn sees(&self) -> bool {
        self.inner.sees()
    }

    async fn complete(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        self.answer(self.inner.complete(&self.request(request), progress, cancel).await)
    }

    async fn complete_soon(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        self.answer(self.inner.complete_soon(&self.request(request), progress, cancel).await)
    }
}
