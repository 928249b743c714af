//! A model made of models: the first that answers, in order. guarantees.md G12, openclaw-parity.md §9.
//!
//! The next one is asked when a model is ill, too busy, without money or wrongly configured. It is not asked when the
//! request itself is at fault (too long, wrong order, refused content) or was cancelled: another model would see the same
//! request, and a refusal by a content filter is not to be shopped around: what the owner's first provider does not want
//! said stays unsaid, and the exchange is left out of later requests.
//!
//! A model that failed rests, it alone and not its provider's others: 30 s, then 1 min, then 5 min, longer where the
//! provider asks for it or only a person can help. After its rest one call tries it. Every call begins with the first
//! again, so the fallback holds for as long as it is needed and is written nowhere.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError, atomic::AtomicBool},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::Clock;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{Cause, Model, ModelError, ModelRequest, ModelResponse, Progress, cause::What, remote::Shown};
use crate::{
    lang::{self, Lang},
    supervisor::ago,
};

/// How long a model rests after its first, its second and every later failure in a row.
const REST: [Duration; 3] = [Duration::from_secs(30), Duration::from_secs(60), Duration::from_secs(300)];
/// How long when only a person can help: a key, money, a name. Short enough that what they mended is soon seen.
const LONG_REST: Duration = Duration::from_secs(300);
/// The longest that a provider can ask for.
const LONGEST_REST: Duration = Duration::from_secs(3_600);
/// An owner hears of a model that has given no answer for this long.
const WORTH_TELLING: Duration = Duration::from_secs(300);

/// Models, tried in order.
pub struct Failover {
    name: String,
    models: Vec<Arc<dyn Model>>,
    rests: Rests,
    clock: Arc<dyn Clock>,
}

impl Failover {
    /// Asks `models` in order; without any, every call fails. `rests` is shared by all that ask the same models.
    pub fn new(name: impl Into<String>, models: Vec<Arc<dyn Model>>, rests: Rests, clock: Arc<dyn Clock>) -> Self {
        Self { name: name.into(), models, rests, clock }
    }

    /// Asks one of them; without patience when there is another to ask.
    async fn ask(
        &self,
        model: &dyn Model,
        patient: bool,
        request: &ModelRequest,
        shown: &Shown<'_>,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        let pass = Probing { rests: &self.rests, name: model.name() };
        let mut answer = match patient {
            true => model.complete(request, shown, cancel).await,
            false => model.complete_soon(request, shown, cancel).await,
        };
        if let Ok(response) = &mut answer
            && response.answered_by.is_empty()
        {
            model.name().clone_into(&mut response.answered_by);
        }
        let now = self.clock.monotonic();
        match &answer {
            Ok(_) => self.rests.answered(model.name()),
            Err(error) => self.rests.failed(model.name(), error, now, self.clock.now_ms()),
        }
        drop(pass);
        answer
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

    /// One of them does; the others leave out what they are shown.
    fn sees(&self) -> bool {
        self.models.iter().any(|model| model.sees())
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
        let mut asked = false;
        let now = || self.clock.monotonic();
        for (place, model) in self.models.iter().enumerate() {
            if let Err(rest) = self.rests.pass(model.name(), now()) {
                shown.passed_over(model.name(), &rest.why);
                if soonest.as_ref().is_none_or(|(known, _)| rest.left < *known) {
                    soonest = Some((rest.left, ModelError::Resting(rest.left)));
                }
                continue;
            }
            asked = true;
            let rest = &self.models[place + 1..];
            let last = !rest.iter().any(|model| self.rests.is_awake(model.name(), now()));
            let error = match self.ask(model.as_ref(), last, request, &shown, cancel).await {
                Ok(response) => {
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
                    shown.passed_over(model.name(), &error.to_string());
                    if soonest.as_ref().is_none_or(|(known, _)| after < *known) {
                        soonest = Some((after, error));
                    }
                }
                ModelError::Retry(_) => {
                    shown.passed_over(model.name(), &error.to_string());
                    retry = retry.or(Some(error));
                }
                ModelError::Fatal(ref cause) => {
                    // When none is left to be asked, whoever asked says so: one line of the log for one fault.
                    if !last {
                        tracing::warn!(model = model.name(), error = %cause, "a model cannot be used");
                    }
                    shown.passed_over(model.name(), &error.to_string());
                    fatal = fatal.or(Some(error));
                }
            }
            shown.reset();
        }
        if !asked && let Some(model) = self.first_to_wake() {
            // All of them rest: better to ask than to have nobody answer.
            return self.ask(model.as_ref(), true, request, &shown, cancel).await;
        }
        // What may work later counts for more than what never will.
        Err(retry
            .or(soonest.map(|(_, error)| error))
            .or(fatal)
            .unwrap_or_else(|| ModelError::Fatal(Cause::new(What::NoModel))))
    }
}

impl Failover {
    fn first_to_wake(&self) -> Option<&Arc<dyn Model>> {
        self.models.iter().min_by_key(|model| self.rests.wakes_at(model.name()))
    }
}

/// Which models rest, by their names: shared by everyone who asks them, gone with the process.
#[derive(Clone, Default)]
pub struct Rests(Arc<Mutex<BTreeMap<String, Kept>>>);

/// A model that failed and gave no answer since.
#[derive(Clone, Debug)]
struct Kept {
    failures: usize,
    /// On the monotonic clock.
    until: Duration,
    since: Duration,
    since_ms: i64,
    why: String,
    /// Only a person can help.
    needs_a_person: bool,
    /// A call tries it now.
    probing: bool,
}

/// A model that is not asked now.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Rest {
    left: Duration,
    why: String,
}

/// A model that gives no answer: for a while already, or until a person does something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Down {
    /// Its name in the configuration.
    pub model: String,
    /// When it first failed, in epoch milliseconds.
    pub since_ms: i64,
    /// What it said last.
    pub why: String,
    /// How long it still rests before one call tries it.
    #[serde(rename = "again_in_s", with = "seconds")]
    pub left: Duration,
}

/// Whole seconds.
mod seconds {
    use std::time::Duration;

    use serde::{Deserialize as _, Deserializer, Serializer};

    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(time.as_secs())
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<Duration, D::Error> {
        u64::deserialize(from).map(Duration::from_secs)
    }
}

impl Down {
    /// For its owner.
    pub fn line(&self, lang: Lang, now_ms: i64) -> String {
        let ago = ago(lang, now_ms, Some(self.since_ms));
        lang::model_down(lang, &self.model, ago, self.left.as_secs().div_ceil(60).max(1), &self.why)
    }
}

impl Rests {
    /// Leave to ask a model now; of one whose rest is over, one call at a time.
    fn pass(&self, name: &str, now: Duration) -> Result<(), Rest> {
        let mut kept = self.kept();
        let Some(kept) = kept.get_mut(name) else { return Ok(()) };
        if now >= kept.until && !kept.probing {
            kept.probing = true;
            return Ok(());
        }
        let left = kept.until.saturating_sub(now).max(Duration::from_secs(1));
        Err(Rest { left, why: kept.why.clone() })
    }

    fn is_awake(&self, name: &str, now: Duration) -> bool {
        self.kept().get(name).is_none_or(|kept| now >= kept.until && !kept.probing)
    }

    fn wakes_at(&self, name: &str) -> Duration {
        self.kept().get(name).map_or(Duration::ZERO, |kept| kept.until)
    }

    fn answered(&self, name: &str) {
        if let Some(kept) = self.kept().remove(name) {
            tracing::info!(model = name, failures = kept.failures, "a model answers again");
        }
    }

    fn failed(&self, name: &str, error: &ModelError, now: Duration, now_ms: i64) {
        let asked_for = match error {
            ModelError::RetryAfter(after) | ModelError::Resting(after) => (*after).min(LONGEST_REST),
            ModelError::Retry(_) => Duration::ZERO,
            ModelError::Fatal(cause) if cause.needs_a_person() => LONG_REST,
            // The request's own fault says nothing of the model.
            _ => return,
        };
        let mut kept = self.kept();
        let fresh = || Kept {
            failures: 0,
            until: now,
            since: now,
            since_ms: now_ms,
            why: String::new(),
            needs_a_person: false,
            probing: false,
        };
        let kept = kept.entry(name.to_owned()).or_insert_with(fresh);
        // Calls that failed side by side are one failure.
        if kept.failures == 0 || now >= kept.until {
            kept.failures += 1;
        }
        let rest = REST[(kept.failures - 1).min(REST.len() - 1)].max(asked_for);
        kept.until = kept.until.max(now.saturating_add(rest));
        kept.why = error.to_string();
        kept.needs_a_person = matches!(error, ModelError::Fatal(_));
        if kept.needs_a_person {
            let seconds = kept.until.saturating_sub(now).as_secs();
            tracing::warn!(model = name, seconds, why = kept.why, "a model rests; then one call tries it");
        }
    }

    /// The models that have given no answer for five minutes and more, and at once those that wait for their owner to do
    /// something.
    pub fn down(&self, now: Duration) -> Vec<Down> {
        let kept = self.kept();
        let long = |kept: &Kept| kept.failures > 1 && now.saturating_sub(kept.since) >= WORTH_TELLING;
        let long = kept.iter().filter(|(_, kept)| kept.needs_a_person || long(kept));
        let down = |(name, kept): (&String, &Kept)| Down {
            model: name.clone(),
            since_ms: kept.since_ms,
            why: kept.why.clone(),
            left: kept.until.saturating_sub(now),
        };
        long.map(down).collect()
    }

    fn kept(&self) -> MutexGuard<'_, BTreeMap<String, Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends a model's probe, however the call went: a cancelled one must not keep others away.
struct Probing<'a> {
    rests: &'a Rests,
    name: &'a str,
}

impl Drop for Probing<'_> {
    fn drop(&mut self) {
        if let Some(kept) = self.rests.kept().get_mut(self.name) {
            kept.probing = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_rests_longer_each_time_and_one_call_tries_it() {
        let rests = Rests::default();
        let at = Duration::from_secs;
        let ill = ModelError::Retry("ill".into());
        let left = |now| rests.pass("a", at(now)).map_err(|rest| rest.left.as_secs());
        rests.failed("a", &ill, at(0), 1_000);
        rests.failed("a", &ill, at(1), 2_000);
        assert_eq!(
            (left(2), rests.pass("b", at(2))),
            (Err(29), Ok(())),
            "both calls were one failure, and b is not ill"
        );
        assert_eq!((left(31), left(31)), (Ok(()), Err(1)), "one call tries it");
        drop(Probing { rests: &rests, name: "a" });
        rests.failed("a", &ill, at(40), 40_000);
        assert_eq!(left(41), Err(59));
        rests.failed("a", &ill, at(100), 100_000);
        assert_eq!(left(101), Err(299));
        assert_eq!(rests.down(at(299)), []);
        let down = rests.down(at(300));
        assert_eq!((down[0].model.as_str(), down[0].since_ms, down[0].why.as_str()), ("a", 1_000, "ill"));
        rests.answered("a");
        assert_eq!((left(102), rests.down(at(9_999))), (Ok(()), vec![]));
    }

    #[test]
    fn what_the_provider_asks_for_and_what_a_person_must_mend_rests_longer() {
        let rests = Rests::default();
        let at = Duration::from_secs;
        for (name, error, seconds) in [
            ("busy", ModelError::RetryAfter(at(120)), Some(120)),
            ("soon", ModelError::RetryAfter(at(2)), Some(30)),
            ("far", ModelError::RetryAfter(at(99_999)), Some(3_600)),
            ("poor", ModelError::Fatal(Cause::new(What::Money)), Some(300)),
            ("key", ModelError::Fatal(Cause::new(What::Key("key".to_owned(), 401))), Some(300)),
            ("odd", ModelError::Fatal(Cause::new(What::Status(400))), None),
            ("long", ModelError::TooLong("x".into()), None),
            ("gone", ModelError::Cancelled, None),
        ] {
            rests.failed(name, &error, at(0), 0);
            assert_eq!(rests.pass(name, at(0)).err().map(|rest| rest.left.as_secs()), seconds, "{name}");
        }
        // Their owner hears at once of those that wait for them, and how long they are left alone.
        let down: Vec<_> = rests.down(at(60)).into_iter().map(|down| (down.model, down.left.as_secs())).collect();
        assert_eq!(down, [("key".to_owned(), 240), ("poor".to_owned(), 240)]);
        // A mended key is used from the first call that tries it.
        assert_eq!(rests.pass("key", at(300)), Ok(()));
        rests.answered("key");
        assert_eq!(rests.down(at(300)).len(), 1);
    }
}
