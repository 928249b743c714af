//! A model made of models: the first that answers, in order. guarantees.md G12, openclaw-parity.md §9.
//!
//! The next one is asked when a model is ill, too busy, without money or wrongly configured. It is not asked when the
//! request itself is at fault (too long, wrong order, refused content) or was cancelled: another model would see the same
//! request, and a refusal by a content filter is not to be shopped around: what the owner's first provider does not want
//! said stays unsaid, and the exchange is left out of later requests. Every call begins with the first model again; its
//! breaker makes that cheap while it is ill.

use std::{
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use super::{Cause, Model, ModelError, ModelRequest, ModelResponse, Progress, cause::What, remote::Shown};

/// Models, tried in order.
pub struct Failover {
    name: String,
    models: Vec<Arc<dyn Model>>,
}

impl Failover {
    /// Asks `models` in order; without any, every call fails.
    pub fn new(name: impl Into<String>, models: Vec<Arc<dyn Model>>) -> Self {
        Self { name: name.into(), models }
    }
}

#[async_trait]
impl Model for Failover {
    fn name(&self) -> &str {
        &self.name
    }

    /// The smallest: any of them may be the one that answers.
    fn context_tokens(&self) -> Option<u32> {
        self.models.iter().filter_map(|model| model.context_tokens()).min()
    }

    async fn complete(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        let shown = Shown { progress, shown: AtomicBool::new(false) };
        let mut soonest: Option<(Duration, ModelError)> = None;
        let mut retry = None;
        let mut fatal = None;
        for (place, model) in self.models.iter().enumerate() {
            let error = match model.complete(request, &shown, cancel).await {
                Ok(mut response) => {
                    if response.answered_by.is_empty() {
                        model.name().clone_into(&mut response.answered_by);
                    }
                    if place > 0 {
                        tracing::info!(model = self.name, answered = model.name(), "a fallback model answered");
                    }
                    return Ok(response);
                }
                Err(error) => error,
            };
            match error {
                ModelError::TooLong(_) | ModelError::Order(_) | ModelError::Refused(_) | ModelError::Cancelled => {
                    return Err(error);
                }
                ModelError::RetryAfter(after) | ModelError::Resting(after) => {
                    if soonest.as_ref().is_none_or(|(known, _)| after < *known) {
                        soonest = Some((after, error));
                    }
                }
                ModelError::Retry(_) => retry = retry.or(Some(error)),
                ModelError::Fatal(ref cause) => {
                    tracing::warn!(model = model.name(), error = %cause, "a model cannot be used");
                    fatal = fatal.or(Some(error));
                }
            }
            shown.reset();
        }
        // What may work later counts for more than what never will.
        Err(retry
            .or(soonest.map(|(_, error)| error))
            .or(fatal)
            .unwrap_or_else(|| ModelError::Fatal(Cause::new(What::NoModel))))
    }
}
