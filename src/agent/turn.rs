//! Station 9: the state machine of one turn. Performs no IO and knows no clock: its driver (`agent.rs`) asks [`Turn::next`]
//! what to do, does it, and tells it what came of it.
//!
//! Invariants, each with a property test below: every request is in strict order ([`order::check`]); at most
//! `max_rounds` requests are answered, the last without tools; a turn rebuilt from its journal goes on where it was, and a
//! call with an effect that was started is never planned again (guarantees.md G4).

use std::{collections::HashSet, mem, sync::Arc};

use channel_api::Said;
use serde_json::{Map, Value, json};

use crate::{
    lang::{self, Lang},
    model::{Cause, Finish, Message, ModelError, ModelRequest, ModelResponse, ToolCall, ToolSpec, Usage},
    reply::{Outcome, Policy},
    store::{StepKind, StepRecord, StepState},
    tools::Effect,
};

pub mod loop_guard;
pub mod order;
pub mod pseudo;
pub mod toolbox;

mod claims;

use loop_guard::LoopGuard;
use pseudo::PseudoCall;

/// What a turn begins with.
#[derive(Clone)]
pub struct Setup {
    /// The system prompt.
    pub system: String,
    /// What the conversation holds, oldest first; any order is mended.
    pub history: Vec<Message>,
    /// What is new: the message(s) to answer.
    pub input: Vec<Message>,
    /// Its bounds.
    pub limits: Limits,
    /// The language of the lines a person reads.
    pub lang: Lang,
    /// The tools it may use.
    pub tools: Arc<dyn Toolbox>,
}

/// The bounds of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The most model calls that are answered; 0 counts as 1.
    pub max_rounds: u32,
    /// The most calls of one response that run; the next is answered "too many" for all that follow.
    pub max_parallel_calls: usize,
    /// The most characters of one result.
    pub output_chars: usize,
    /// The same call with the same result this many times: the model is told.
    pub loop_tell: u32,
    /// This many times: the turn ends.
    pub loop_stop: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_rounds: 15, max_parallel_calls: 16, output_chars: 16_000, loop_tell: 3, loop_stop: 5 }
    }
}

/// What a turn knows of its tools: names, schemas, effects. Never runs one.
pub trait Toolbox: Send + Sync {
    /// What a name written by the model means, near misses and synonyms included; `None` for an unknown one.
    fn resolve(&self, name: &str) -> Option<Resolved>;

    /// What a second run of a tool would do; what is unknown counts as the worst.
    fn effect(&self, tool: &str) -> Effect;

    /// The arguments of a tool as the model wrote them, repaired and checked against its schema.
    ///
    /// # Errors
    /// What is wrong and what to write instead, for the model.
    fn check_arguments(&self, tool: &str, raw: &str) -> Result<Arguments, ArgumentError>;

    /// What the model is offered, in a stable order.
    fn specs(&self) -> Vec<ToolSpec>;

    /// What the model is told about a name that means nothing here.
    fn unknown(&self, name: &str) -> String {
        let names = self.names();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        crate::tools::names::unknown(name, &names)
    }

    /// The names it is offered, in the same order.
    fn names(&self) -> Vec<String> {
        self.specs().into_iter().map(|spec| spec.name).collect()
    }
}

/// What a name means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// A tool, by its own name.
    Tool(String),
    /// The end of the turn: its argument is the answer.
    FinalAnswer,
    /// A loaded skill that is no tool: the path of its SKILL.md, to be read with `read`.
    Skill(String),
}

/// Arguments that fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Arguments {
    /// The JSON object.
    pub value: Value,
    /// What had to be repaired, in a few words each; empty for clean JSON.
    pub repairs: Vec<String>,
}

/// Why arguments do not fit: what is wrong and what to write instead, in a sentence or two for the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ArgumentError(pub String);

/// What the driver does next.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Ask the model, then [`Turn::model_answered`] or [`Turn::model_failed`].
    CallModel(ModelRequest),
    /// Run these and tell [`Turn::tool_finished`] of each. Empty: calls handed out before are still running.
    RunTools(Vec<PlannedCall>),
    /// The turn is over.
    Finish(Ending),
}

/// A call that may run: known, its arguments checked. Bad ones never reach the driver.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedCall {
    /// Its id, unique in the session.
    pub call_id: String,
    /// The tool's own name.
    pub name: String,
    /// The checked arguments.
    pub args: Value,
    /// What a second run would do; an [`Effect::Effect`] is journalled as started before it runs.
    pub effect: Effect,
    /// The round it belongs to, from 1.
    pub round: u32,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ending {
    /// With an answer; the reply filter decides what of it is sent.
    Answer {
        /// The text, raw.
        text: String,
        /// It is not complete: the token limit or a broken stream cut it, and going on did not help.
        cut: bool,
        /// The provider's content filter cut it; the text says so.
        filtered: bool,
    },
    /// Without one.
    Failed {
        /// Why.
        reason: FailReason,
        /// What the model had said beside its last calls, if anything.
        text: Option<String>,
    },
    /// A person or a newer message stopped it.
    Stopped,
}

/// Why a turn failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FailReason {
    /// The model still wanted tools in the last round.
    RoundLimit(u32),
    /// The same call with the same result, over and over: the tool's name.
    Loop(String),
    /// Only unknown tools, three rounds in a row.
    UnknownTools,
    /// Two empty answers.
    Empty,
    /// The call was written as text again after the correction.
    PseudoCall,
    /// The request stays too long.
    TooLong,
    /// The provider refuses the history in every form.
    Order(Cause),
    /// The provider refused the content.
    Refused(Cause),
    /// No model can answer now; a later try may.
    Unavailable(Cause),
    /// No model will answer until something is changed.
    Model(Cause),
    /// Ended from outside (a budget, a tool that cannot go on): one plain line.
    Ended(Said),
}

impl FailReason {
    /// Its name in rows.
    pub fn as_str(&self) -> &'static str {
        match self {
            Self::RoundLimit(_) => "round_limit",
            Self::Loop(_) => "loop",
            Self::UnknownTools => "unknown_tools",
            Self::Empty => "empty",
            Self::PseudoCall => "pseudo_call",
            Self::TooLong => "too_long",
            Self::Order(_) => "order",
            Self::Refused(_) => "refused",
            Self::Unavailable(_) => "unavailable",
            Self::Model(_) => "model",
            Self::Ended(_) => "ended",
        }
    }

    /// One plain line for a person.
    pub fn line(&self, lang: Lang) -> String {
        match self {
            Self::RoundLimit(rounds) => lang::turn_round_limit(lang, rounds),
            Self::Loop(tool) => lang::turn_loop(lang, tool),
            Self::UnknownTools => lang::turn_unknown_tools(lang),
            Self::Empty => lang::turn_empty(lang),
            Self::PseudoCall => lang::turn_pseudo_call(lang),
            Self::TooLong => lang::turn_too_long(lang),
            Self::Order(_) => lang::turn_order(lang),
            Self::Refused(why) => lang::turn_refused(lang, why.line(lang)),
            Self::Unavailable(why) => lang::turn_unavailable(lang, why.line(lang)),
            Self::Model(why) => lang::turn_model(lang, why.line(lang)),
            Self::Ended(why) => lang.of(why).to_owned(),
        }
    }

    /// The line for everybody who reads it: the person in the chat's language, the owner in the gateway's.
    pub fn said(&self) -> Said {
        lang::both(|lang| self.line(lang))
    }
}

/// One turn.
pub struct Turn {
    system: String,
    history: Vec<Message>,
    limits: Limits,
    lang: Lang,
    tools: Arc<dyn Toolbox>,
    /// Everything since the turn began, input first.
    items: Vec<Item>,
    phase: Phase,
    /// The model call that was asked last, from 1; 0 before the first.
    round: u32,
    used_ids: HashSet<String>,
    guard: LoopGuard,
    unknown_rounds: u32,
    empty_answers: u32,
    corrected: bool,
    /// The person asks how calls are written: one in a fence is the answer.
    asked_about_calls: bool,
    /// Words before a pseudo-call that are an answer in themselves, and their place among the items.
    prose: Option<(String, usize)>,
    /// What the model said last was taken back: nobody is to see it.
    took_back: bool,
    continued: bool,
    shortened: u32,
    rebuilt: bool,
    /// What a cut answer has so far.
    partial: String,
    /// Answers given before an absorbed message was answered as well.
    said: Vec<String>,
    absorbed: Vec<Message>,
    /// The round in which a call with an effect was interrupted and not verified since.
    unverified: Option<u32>,
    interrupted: Vec<String>,
    skipped: Vec<PlannedCall>,
    /// A call that changes something succeeded.
    changed: bool,
    /// The tool whose last call should have changed something and failed.
    failed_effect: Option<String>,
    hidden: bool,
    notes: Vec<String>,
}

/// Keeps calls in the making out of previews.
pub struct Screen {
    tools: Arc<dyn Toolbox>,
    asked: bool,
    /// What a cut answer had so far: the next one goes on where it ended.
    pub before: String,
}

impl Screen {
    /// How many bytes of a text that is still being written may be shown.
    pub fn showable(&self, text: &str) -> usize {
        pseudo::showable(text, &*self.tools, self.asked)
    }

    /// How many bytes of a text that has ended may be shown.
    pub fn showable_at_end(&self, text: &str) -> usize {
        pseudo::showable_at_end(text, &*self.tools, self.asked)
    }
}

/// One message of the turn, and what the conversation keeps of it.
struct Item {
    message: Message,
    keep: Keep,
}

enum Keep {
    Same,
    As(Message),
    Not,
}

enum Phase {
    /// The model is to be asked; `again`: the same round once more, because the request was refused.
    Ask {
        again: bool,
    },
    /// It was asked.
    Asked,
    /// Its calls are worked on.
    Tools(Batch),
    Done(Ending),
}

/// The calls of one response.
struct Batch {
    slots: Vec<Slot>,
    /// The assistant message they belong to.
    item: usize,
    /// The answer in a `final_answer` call, and its call id.
    answer: Option<(String, String)>,
    /// Not one of the names was known.
    all_unknown: bool,
}

struct Slot {
    call_id: String,
    name: String,
    /// What the loop guard compares.
    key: String,
    /// `None` for a call that was answered without running.
    plan: Option<PlannedCall>,
    handed: bool,
    result: Option<Result<String, String>>,
}

/// Requests that are too long are shortened this often.
const MOST_SHORTENINGS: u32 = 3;
/// What is left of a result when the request is too long without any history.
const SHORT_RESULT_CHARS: usize = 1_500;
/// Rounds with unknown tools only that end a turn.
const MOST_UNKNOWN_ROUNDS: u32 = 3;

const CONTINUE: &str =
    "[gateway] Your message was cut off. Go on exactly where it stopped, without repeating anything.";
/// The result of the first call over the limit, which stands for all that follow it.
const TOO_MANY: &str = "Not run, nor any call after it: too many calls in one message. Make the rest in the next ones.";
const CUT_ARGUMENTS: &str = "Not run: your message was cut off before these arguments were complete. \
     Call again with shorter arguments, for long content in several calls.";
/// The result of a call that an absorbed message kept from running.
pub const SKIPPED: &str =
    "Not run: a new message from the person came first. Read it, then decide whether this call is still wanted.";
const STOPPED_BEFORE: &str = "Not run: the person stopped the turn.";
const STOPPED_DURING: &str = "Stopped while it ran. Its outcome is unknown; check before repeating it.";
const UNVERIFIED: &str = "Not run: an earlier call of this turn was interrupted by a restart and its outcome is unknown. \
     First look with a reading tool whether it took effect, then decide what is still to be done.";
const NO_OUTPUT: &str = "(no output)";
/// The tool whose calls change the plan and nothing else.
pub const PLAN: &str = "todo";

impl Turn {
    /// A turn that has not begun.
    pub fn new(setup: Setup) -> Self {
        let used_ids = order::ids(&setup.history).map(str::to_owned).collect();
        let asked_about_calls = setup.input.iter().any(asks_about_calls);
        let items = setup.input.into_iter().map(|message| Item { message, keep: Keep::Same }).collect();
        Self {
            system: setup.system,
            history: setup.history,
            limits: Limits {
                max_rounds: setup.limits.max_rounds.max(1),
                output_chars: setup.limits.output_chars.max(200),
                ..setup.limits
            },
            lang: setup.lang,
            tools: setup.tools,
            items,
            phase: Phase::Ask { again: false },
            round: 0,
            used_ids,
            guard: LoopGuard::default(),
            unknown_rounds: 0,
            empty_answers: 0,
            corrected: false,
            asked_about_calls,
            prose: None,
            took_back: false,
            continued: false,
            shortened: 0,
            rebuilt: false,
            partial: String::new(),
            said: Vec::new(),
            absorbed: Vec::new(),
            unverified: None,
            interrupted: Vec::new(),
            skipped: Vec::new(),
            changed: false,
            failed_effect: None,
            hidden: false,
            notes: Vec::new(),
        }
    }

    /// A turn whose process died, rebuilt from its journal: what was answered is not asked again, what was finished is not
    /// run again, and a call with an effect that was started counts as interrupted, its outcome unknown.
    pub fn resume(setup: Setup, steps: &[StepRecord]) -> Self {
        let mut turn = Self::new(setup);
        let journal = Journal::of(steps);
        for (at, answer) in journal.answers.iter().enumerate() {
            turn.reopen();
            if !matches!(turn.next(), Step::CallModel(_)) {
                turn.notes.push("resumed: the journal holds more answers than the turn asked for".to_owned());
                break;
            }
            match answer {
                Answer::Response(response) => turn.model_answered(response.clone()),
                Answer::Error(error) => turn.model_failed(error.clone()),
            }
            let more = at + 1 < journal.answers.len();
            turn.replay_tools(&journal, more);
        }
        // A started call whose model step is lost: nothing shows what it was for, so the next effect waits as well.
        let lost = journal.tools().any(|step| step.is_open_effect() && !turn.used_ids.contains(step.call_id));
        if lost {
            turn.unverified = Some(turn.round);
            turn.notes.push("resumed: a started call has no model step; effects wait until a read".to_owned());
        }
        turn
    }

    /// What to do next. Asking again without telling what came of it changes nothing: the same request, no call twice.
    #[allow(clippy::should_implement_trait, reason = "a turn is asked and told, it is no iterator")]
    pub fn next(&mut self) -> Step {
        loop {
            match &mut self.phase {
                Phase::Ask { again } => {
                    if !*again {
                        self.round += 1;
                    }
                    self.phase = Phase::Asked;
                }
                Phase::Asked => return Step::CallModel(self.request()),
                Phase::Tools(batch) => {
                    refuse_unverified(batch, self.unverified);
                    let mut calls = Vec::new();
                    for slot in batch.slots.iter_mut().filter(|slot| slot.result.is_none() && !slot.handed) {
                        slot.handed = true;
                        calls.extend(slot.plan.clone());
                    }
                    if calls.is_empty() && batch.is_answered() {
                        self.settle();
                    } else {
                        return Step::RunTools(calls);
                    }
                }
                Phase::Done(ending) => return Step::Finish(ending.clone()),
            }
        }
    }

    /// The model's whole response to the last request.
    pub fn model_answered(&mut self, mut response: ModelResponse) {
        if !matches!(self.phase, Phase::Asked) {
            return;
        }
        self.took_back = false;
        if response.finish == Finish::Filtered {
            return self.filtered(&response);
        }
        if response.calls.is_empty() {
            return self.text_answered(response);
        }
        // One call more than run is kept: its result says that the others were left out. bad-inputs.md 58.
        let most = self.limits.max_parallel_calls;
        if response.calls.len() > most {
            self.notes.push(format!("{} calls in one response, {most} kept", response.calls.len()));
            response.calls.truncate(most + 1);
        }
        self.calls_answered(response);
    }

    /// The last request gave no response.
    pub fn model_failed(&mut self, error: ModelError) {
        if !matches!(self.phase, Phase::Asked) {
            return;
        }
        match error {
            ModelError::Cancelled => self.stop(),
            ModelError::TooLong(_) => {
                if self.shortened < MOST_SHORTENINGS && self.shorten() {
                    self.shortened += 1;
                    self.phase = Phase::Ask { again: true };
                } else {
                    self.fail(FailReason::TooLong);
                }
            }
            ModelError::Order(why) => {
                if self.rebuilt {
                    return self.fail(FailReason::Order(why));
                }
                self.rebuilt = true;
                self.rebuild();
                self.phase = Phase::Ask { again: true };
            }
            ModelError::Refused(why) => {
                self.hidden = true;
                self.fail(FailReason::Refused(why));
            }
            ModelError::Resting(wait) => {
                self.fail(FailReason::Unavailable(lang::turn_resting(self.lang, wait.as_secs().max(1)).into()));
            }
            ModelError::RetryAfter(wait) => {
                self.fail(FailReason::Unavailable(lang::turn_busy(self.lang, wait.as_secs().max(1)).into()));
            }
            ModelError::Retry(why) => self.fail(FailReason::Unavailable(why)),
            ModelError::Fatal(why) => self.fail(FailReason::Model(why)),
        }
    }

    /// What became of a call handed out by [`Turn::next`]: its output, or an error the model can act on. A second result
    /// of one call, or one of a call nobody made, is ignored.
    pub fn tool_finished(&mut self, call_id: &str, result: Result<String, String>) {
        let limit = self.limits.output_chars;
        let Phase::Tools(batch) = &mut self.phase else { return };
        let slot = batch.slots.iter_mut().find(|slot| slot.call_id == call_id && slot.handed && slot.result.is_none());
        if let Some(slot) = slot {
            slot.result = Some(bounded(result, limit));
        }
    }

    /// Whether [`Turn::absorb`] would take messages now. Ask before messages are moved into the turn for good.
    pub fn can_absorb(&self) -> bool {
        let rounds_left = self.round < self.limits.max_rounds;
        match &self.phase {
            // The same round again: it has room for more even when it is the last one.
            Phase::Ask { .. } => true,
            Phase::Done(Ending::Answer { filtered, .. }) => rounds_left && !filtered,
            Phase::Done(_) => false,
            Phase::Asked | Phase::Tools(_) => rounds_left,
        }
    }

    /// Takes messages that came while the turn runs (`steer`): they follow the results of the running calls, and calls not
    /// handed out yet are not made. An answer that is there already is kept and delivered with the next one. `false` when
    /// it is too late; they then belong to the next turn.
    pub fn absorb(&mut self, messages: Vec<Message>) -> bool {
        if !self.can_absorb() {
            return false;
        }
        self.reopen();
        self.asked_about_calls |= messages.iter().any(asks_about_calls);
        match &mut self.phase {
            Phase::Ask { .. } => {
                for message in messages {
                    self.push(message, Keep::Same);
                }
                return true;
            }
            Phase::Tools(batch) => {
                for slot in batch.slots.iter_mut().filter(|slot| slot.result.is_none() && !slot.handed) {
                    slot.result = Some(Err(SKIPPED.to_owned()));
                    self.skipped.extend(slot.plan.clone());
                }
            }
            Phase::Asked | Phase::Done(_) => {}
        }
        self.absorbed.extend(messages);
        true
    }

    /// Ends the turn because a person or a newer message wants it.
    pub fn stop(&mut self) {
        self.end(Ending::Stopped);
    }

    /// Ends the turn without an answer. One that was given before an absorbed message failed is delivered all the same, with
    /// the failure's line.
    pub fn fail(&mut self, reason: FailReason) {
        // What may be tried again is not over yet.
        if !matches!(self.phase, Phase::Done(_)) && !matches!(reason, FailReason::Unavailable(_)) {
            self.said.extend(self.prose.take().map(|(prose, _)| prose));
        }
        if !self.said.is_empty() && !matches!(self.phase, Phase::Done(_)) {
            let line = lang::turn_failed(self.lang, reason.line(self.lang));
            let mut said = mem::take(&mut self.said);
            self.take_absorbed();
            self.push(assistant(line.clone(), Vec::new(), None), Keep::Same);
            said.push(line);
            let text = joined(&said);
            self.notes.push(format!("failed after an answer: {}", reason.as_str()));
            return self.end(Ending::Answer { text, cut: false, filtered: false });
        }
        let text = self.last_words();
        self.end(Ending::Failed { reason, text });
    }

    /// What the conversation gains, in strict order: input, exchanges and the last word; no corrections. Empty when the
    /// exchange must be left out of later requests ([`Turn::hidden`]).
    pub fn transcript(&self) -> Vec<Message> {
        if self.hidden { Vec::new() } else { self.exchange() }
    }

    /// The same for people's eyes, a filtered exchange included.
    pub fn exchange(&self) -> Vec<Message> {
        let mut messages = self.kept();
        if let Phase::Tools(batch) = &self.phase {
            messages.extend(batch.slots.iter().filter_map(|slot| slot.message(None)));
        }
        messages.extend(self.absorbed.iter().cloned());
        let last_word = match &self.phase {
            Phase::Done(Ending::Failed { reason, .. }) => Some(lang::turn_failed(self.lang, reason.line(self.lang))),
            Phase::Done(Ending::Stopped) => Some(lang::stopped(self.lang)),
            _ => None,
        };
        messages.extend(last_word.map(|text| assistant(text, Vec::new(), None)));
        order::for_transcript(&messages)
    }

    /// A content filter refused the exchange: kept for people, left out of later requests.
    pub fn hidden(&self) -> bool {
        self.hidden
    }

    /// For the preview of the answer that is asked for now.
    pub fn screen(&self) -> Screen {
        Screen { tools: Arc::clone(&self.tools), asked: self.asked_about_calls, before: self.partial.clone() }
    }

    /// Whether nobody is to see what the model said last: it only wrote a call down.
    pub fn took_back(&self) -> bool {
        self.took_back
    }

    /// Findings for the trace, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The round of the last request, from 1: the `round` of its journal row.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// Call ids found started in the journal and not run again, for their rows.
    pub fn interrupted(&self) -> &[String] {
        &self.interrupted
    }

    /// Calls that an absorbed message kept from running, each told once. Journalled as failed with [`SKIPPED`], they are
    /// not made after a restart either.
    pub fn take_skipped(&mut self) -> Vec<PlannedCall> {
        mem::take(&mut self.skipped)
    }

    fn kept(&self) -> Vec<Message> {
        let kept = self.items.iter().filter_map(|item| match &item.keep {
            Keep::Same => Some(item.message.clone()),
            Keep::As(message) => Some(message.clone()),
            Keep::Not => None,
        });
        kept.collect()
    }

    fn request(&self) -> ModelRequest {
        let messages: Vec<Message> =
            self.history.iter().cloned().chain(self.items.iter().map(|item| item.message.clone())).collect();
        let last = self.round >= self.limits.max_rounds;
        ModelRequest {
            system: self.system.clone(),
            messages: order::for_request(&messages),
            tools: if last { Vec::new() } else { self.tools.specs() },
            max_tokens: None,
        }
    }

    fn is_last_round(&self) -> bool {
        self.round >= self.limits.max_rounds
    }

    fn push(&mut self, message: Message, keep: Keep) {
        self.items.push(Item { message, keep });
    }

    fn filtered(&mut self, response: &ModelResponse) {
        self.hidden = true;
        let notice = lang::turn_filtered(self.lang);
        let said = pseudo::visible(&format!("{}{}", mem::take(&mut self.partial), response.text));
        let text =
            if said.is_empty() || self.pseudo_call(&said).is_some() { notice } else { format!("{said}\n\n{notice}") };
        self.notes.push("the provider's content filter cut the answer".to_owned());
        self.push(assistant(text.clone(), Vec::new(), None), Keep::Same);
        self.end(Ending::Answer { text, cut: false, filtered: true });
    }

    fn text_answered(&mut self, response: ModelResponse) {
        let text = format!("{}{}", self.partial, response.text);
        let broke_off = matches!(response.finish, Finish::Length | Finish::Cut);
        if let Some(call) = self.pseudo_call(&text) {
            return self.correct(&text, call, response);
        }
        if is_nothing(&response.text) {
            if !self.partial.is_empty() {
                let partial = mem::take(&mut self.partial);
                return self.answered(partial, None, None, true);
            }
            self.empty_answers += 1;
            if self.empty_answers > 1 || self.is_last_round() {
                return self.fail(FailReason::Empty);
            }
            self.notes.push("empty answer, asked again".to_owned());
            self.phase = Phase::Ask { again: false };
            return;
        }
        self.empty_answers = 0;
        if broke_off && !self.continued && !self.is_last_round() {
            self.continued = true;
            self.notes.push("cut answer, asked to go on".to_owned());
            self.partial = text;
            self.push(assistant(response.text, Vec::new(), response.opaque), Keep::Not);
            self.push(Message::user(CONTINUE), Keep::Not);
            self.phase = Phase::Ask { again: false };
            return;
        }
        self.partial.clear();
        self.answered(text, Some(response.text), response.opaque, broke_off);
    }

    fn pseudo_call(&self, text: &str) -> Option<PseudoCall> {
        pseudo::looks_like_call(text, &*self.tools, self.asked_about_calls)
    }

    /// The answer only writes a call: the model is told once, in the right place, and what it said goes; words before the
    /// call that are an answer in themselves stay.
    fn correct(&mut self, text: &str, call: PseudoCall, response: ModelResponse) {
        let tool = shown(call.tool.as_deref().unwrap_or("?"));
        let prose = pseudo::kept_prose(&pseudo::visible(text), &call);
        self.partial.clear();
        if self.corrected || self.is_last_round() {
            self.notes.push(format!("pseudo-call ({}) of {tool}, given up", call.shape.as_str()));
            if let Some(prose) = prose.filter(|_| self.prose.is_none()) {
                self.push(assistant(prose.clone(), Vec::new(), None), Keep::Same);
                self.prose = Some((prose, self.items.len() - 1));
            }
            return self.fail(FailReason::PseudoCall);
        }
        self.notes.push(format!("pseudo-call ({}) of {tool}, corrected", call.shape.as_str()));
        self.corrected = true;
        let correction = pseudo::correction(&call, &self.tools.names(), prose.is_some());
        let keep = match prose {
            Some(prose) => {
                self.prose = Some((prose.clone(), self.items.len()));
                Keep::As(assistant(prose, Vec::new(), None))
            }
            None => {
                self.took_back = true;
                Keep::Not
            }
        };
        self.push(assistant(response.text, Vec::new(), response.opaque), keep);
        self.push(Message::user(correction), Keep::Not);
        self.phase = Phase::Ask { again: false };
    }

    /// Words kept from before a pseudo-call come before the answer, unless it repeats them.
    fn say(&mut self, text: String) {
        if let Some((prose, item)) = self.prose.take() {
            if !text.contains(&prose) {
                self.said.push(prose);
            } else if let Some(item) = self.items.get_mut(item)
                && matches!(&item.keep, Keep::As(Message::Assistant { text, .. }) if *text == prose)
            {
                item.keep = Keep::Not;
            }
        }
        self.said.push(text);
    }

    /// The turn has its answer, unless a message came in meanwhile that wants one too. `asked` is what the model wrote last,
    /// where that is only the end of the text.
    fn answered(&mut self, text: String, asked: Option<String>, opaque: Option<Value>, cut: bool) {
        let keep = match &asked {
            Some(asked) if *asked != text => Keep::As(assistant(text.clone(), Vec::new(), opaque.clone())),
            _ => Keep::Same,
        };
        self.push(assistant(asked.unwrap_or_else(|| text.clone()), Vec::new(), opaque), keep);
        if !self.absorbed.is_empty() && !self.is_last_round() {
            self.say(text);
            self.take_absorbed();
            self.phase = Phase::Ask { again: false };
            return;
        }
        if let Some(claim) = claims::effect_claimed(&text) {
            match &self.failed_effect {
                _ if !self.changed => {
                    self.notes.push(format!("the answer claims an effect no step of the turn had: “{claim}”"));
                }
                Some(tool) => {
                    self.notes.push(format!("the answer claims an effect, but the last {tool} failed: “{claim}”"));
                }
                None => {}
            }
        }
        self.say(text);
        let said = mem::take(&mut self.said);
        self.end(Ending::Answer { text: joined(&said), cut, filtered: false });
    }

    fn calls_answered(&mut self, mut response: ModelResponse) {
        self.empty_answers = 0;
        let broke_off = matches!(response.finish, Finish::Length | Finish::Cut);
        if let Some(call) = self.pseudo_call(&response.text) {
            // The call stands in the text as well; kept there it would teach the model to write calls.
            response.text = pseudo::kept_prose(&pseudo::visible(&response.text), &call).unwrap_or_default();
        }
        let whole_text = format!("{}{}", mem::take(&mut self.partial), response.text);
        let mut batch = Batch { slots: Vec::new(), item: self.items.len(), answer: None, all_unknown: true };
        let mut calls = Vec::new();
        for (at, mut call) in response.calls.into_iter().enumerate() {
            if call.id.is_empty() || self.used_ids.contains(&call.id) {
                // Made from its place, so that a replay of the journal gives the same id.
                call.id = format!("call_r{}_{at}", self.round);
            }
            call.id = order::unique(&mut self.used_ids, &call.id);
            let resolved = self.tools.resolve(&call.name);
            batch.all_unknown &= resolved.is_none();
            let cut = broke_off && serde_json::from_str::<Map<String, Value>>(&call.arguments).is_err();
            let slot = match resolved {
                _ if at >= self.limits.max_parallel_calls => Slot::refused(&call, TOO_MANY.to_owned()),
                _ if cut => {
                    self.notes.push(format!("{}: arguments cut, not run", shown(&call.name)));
                    Slot::refused(&call, CUT_ARGUMENTS.to_owned())
                }
                Some(Resolved::FinalAnswer) => match final_answer(&call.arguments) {
                    Some(text) if batch.answer.is_none() && self.pseudo_call(&text).is_none() => {
                        batch.answer = Some((text, call.id.clone()));
                        // Its result is only needed when the turn goes on.
                        Slot::refused(
                            &call,
                            "Not delivered yet: look at the other results first, then answer.".to_owned(),
                        )
                    }
                    _ => {
                        Slot::refused(&call, "No text to deliver. Answer in plain words instead of a call.".to_owned())
                    }
                },
                Some(Resolved::Tool(tool)) => {
                    call.name = tool;
                    self.plan(&mut call)
                }
                Some(Resolved::Skill(path)) => {
                    self.notes.push(format!("skill {} called as a tool, its SKILL.md is read", shown(&call.name)));
                    call.name = "read".to_owned();
                    call.arguments = json!({ "path": path }).to_string();
                    self.plan(&mut call)
                }
                None => {
                    self.notes.push(format!("unknown tool {}", shown(&call.name)));
                    Slot::refused(&call, self.tools.unknown(&call.name))
                }
            };
            batch.slots.push(slot);
            calls.push(call);
        }
        if self.is_last_round() {
            // No tools were offered; nothing of this runs.
            return match batch.answer {
                Some((text, _)) => self.answered(text, None, None, false),
                None => {
                    if !is_nothing(&whole_text) {
                        self.push(assistant(whole_text, Vec::new(), None), Keep::Same);
                    }
                    self.fail(FailReason::RoundLimit(self.limits.max_rounds));
                }
            };
        }
        let keep = if whole_text == response.text {
            Keep::Same
        } else {
            Keep::As(assistant(whole_text, calls.clone(), response.opaque.clone()))
        };
        self.push(assistant(response.text, calls, response.opaque), keep);
        self.phase = Phase::Tools(batch);
    }

    /// A call of a known tool: its arguments checked, and written back clean into the message.
    fn plan(&mut self, call: &mut ToolCall) -> Slot {
        match self.tools.check_arguments(&call.name, &call.arguments) {
            Ok(arguments) => {
                if !arguments.repairs.is_empty() {
                    self.notes.push(format!("{}: arguments repaired ({})", call.name, arguments.repairs.join(", ")));
                    call.arguments = arguments.value.to_string();
                }
                let plan = PlannedCall {
                    call_id: call.id.clone(),
                    name: call.name.clone(),
                    effect: self.tools.effect(&call.name),
                    round: self.round,
                    args: arguments.value,
                };
                Slot {
                    call_id: call.id.clone(),
                    name: call.name.clone(),
                    key: plan.args.to_string(),
                    plan: Some(plan),
                    handed: false,
                    result: None,
                }
            }
            Err(ArgumentError(why)) => {
                self.notes.push(format!("{}: arguments refused", call.name));
                Slot::refused(call, order::head(&why, 2_000))
            }
        }
    }

    /// All calls are answered: their results follow the message, and the turn goes on or ends.
    fn settle(&mut self) {
        let Phase::Tools(batch) = mem::replace(&mut self.phase, Phase::Ask { again: false }) else { return };
        self.unknown_rounds = if batch.all_unknown { self.unknown_rounds + 1 } else { 0 };
        let answer_id = batch.answer.as_ref().map(|(_, id)| id.clone());
        let others_fine = batch
            .slots
            .iter()
            .all(|slot| Some(&slot.call_id) == answer_id.as_ref() || matches!(slot.result, Some(Ok(_))));
        let ends = others_fine && self.absorbed.is_empty();
        let mut looping = None;
        for slot in &batch.slots {
            let is_answer = Some(&slot.call_id) == answer_id.as_ref();
            if is_answer && ends {
                continue;
            }
            let effect = slot.plan.as_ref().map(|plan| plan.effect);
            let (fine, text) = match &slot.result {
                Some(Ok(text)) => (true, text),
                Some(Err(text)) => (false, text),
                None => continue,
            };
            // A plan that says "done" has done nothing.
            let changes = fine && slot.name != PLAN && effect.is_some_and(|effect| effect != Effect::Read);
            self.changed |= changes;
            if fine {
                if self.failed_effect.as_deref() == Some(slot.name.as_str()) {
                    self.failed_effect = None;
                }
            } else if !is_answer && effect.unwrap_or_else(|| self.tools.effect(&slot.name)) != Effect::Read {
                self.failed_effect = Some(shown(&slot.name));
            }
            if fine && effect == Some(Effect::Read) && self.unverified.is_some_and(|since| since < self.round) {
                self.unverified = None;
            }
            let times = self.guard.observe(self.round, &slot.name, &slot.key, text, changes);
            let told = (times >= self.limits.loop_tell).then(|| {
                format!(
                    "\n\n[gateway] This is the same result of the same call for the {times}th time. Calling again will not \
                     change it: try something else, or answer with what you have."
                )
            });
            if times == self.limits.loop_tell {
                self.notes.push(format!("{}: same call, same result {times} times, told", slot.name));
            }
            if times >= self.limits.loop_stop {
                looping = Some(slot.name.clone());
            }
            self.items.extend(slot.message(told).map(|message| Item { message, keep: Keep::Same }));
        }
        if let Some((text, id)) = batch.answer.filter(|_| ends) {
            self.drop_call(batch.item, &id);
            return self.answered(text, None, None, false);
        }
        if let Some(tool) = looping {
            return self.fail(FailReason::Loop(shown(&tool)));
        }
        if self.unknown_rounds >= MOST_UNKNOWN_ROUNDS {
            return self.fail(FailReason::UnknownTools);
        }
        self.take_absorbed();
    }

    /// Takes a `final_answer` call out of its message: its text becomes the answer, so it needs no result.
    fn drop_call(&mut self, item: usize, id: &str) {
        let item = &mut self.items[item];
        let messages = match &mut item.keep {
            Keep::As(kept) => vec![&mut item.message, kept],
            _ => vec![&mut item.message],
        };
        for message in messages {
            if let Message::Assistant { calls, .. } = message {
                calls.retain(|call| call.id != id);
            }
        }
    }

    fn take_absorbed(&mut self) {
        for message in mem::take(&mut self.absorbed) {
            self.push(message, Keep::Same);
        }
    }

    /// Makes the next request shorter; `false` when nothing is left to shorten.
    fn shorten(&mut self) -> bool {
        if !self.history.is_empty() {
            let dropped = order::drop_older_half(&mut self.history);
            self.notes.push(format!("request too long, the oldest {dropped} messages left out"));
            return true;
        }
        let mut shortened = 0;
        for item in &mut self.items {
            if let Message::Tool { text, .. } = &mut item.message
                && text.chars().nth(SHORT_RESULT_CHARS + 200).is_some()
            {
                *text = cut_to(text, SHORT_RESULT_CHARS);
                shortened += 1;
            }
        }
        if shortened > 0 {
            self.notes.push(format!("request too long, {shortened} results shortened"));
        }
        shortened > 0
    }

    /// The provider refuses the order: old exchanges are told in plain words; when there are none, those of this turn.
    fn rebuild(&mut self) {
        self.notes.push("the provider refused the message order, the history was rebuilt".to_owned());
        if order::has_tools(&self.history) {
            self.history = order::flattened(&self.history);
            return;
        }
        let asked: Vec<Message> = self.items.iter().map(|item| item.message.clone()).collect();
        // What is asked and what is kept part ways here: the conversation keeps the exchanges as they were. An empty user
        // message is left out of every request.
        let kept = self.kept().into_iter().map(|message| (Message::user(""), Keep::As(message)));
        let told = order::flattened(&asked).into_iter().map(|message| (message, Keep::Not));
        self.items = kept.chain(told).map(|(message, keep)| Item { message, keep }).collect();
    }

    fn last_words(&self) -> Option<String> {
        if !self.partial.is_empty() {
            return Some(self.partial.clone());
        }
        self.items.iter().rev().find_map(|item| match (&item.message, &item.keep) {
            (Message::Assistant { text, .. }, Keep::Same | Keep::As(_)) => {
                Some(pseudo::visible(text)).filter(|t| !t.is_empty())
            }
            _ => None,
        })
    }

    /// Ends the turn once; calls without a result get one that says what happened.
    fn end(&mut self, ending: Ending) {
        if matches!(self.phase, Phase::Done(_)) {
            return;
        }
        if let Phase::Tools(batch) = mem::replace(&mut self.phase, Phase::Done(ending)) {
            for mut slot in batch.slots {
                if slot.result.is_none() {
                    let why = if slot.handed { STOPPED_DURING } else { STOPPED_BEFORE };
                    slot.result = Some(Err(why.to_owned()));
                }
                self.items.extend(slot.message(None).map(|message| Item { message, keep: Keep::Same }));
            }
        }
        if !self.partial.is_empty() {
            let partial = mem::take(&mut self.partial);
            self.push(assistant(partial, Vec::new(), None), Keep::Same);
        }
        self.take_absorbed();
    }

    /// Goes on after an answer, because a message was absorbed after it.
    fn reopen(&mut self) {
        if let Phase::Done(Ending::Answer { text, filtered: false, .. }) = &self.phase {
            self.said = vec![text.clone()];
            self.phase = Phase::Ask { again: false };
        }
    }

    /// Gives the calls of the present round what the journal knows of them. `more`: the model was asked again later, so all
    /// of them had a result then.
    fn replay_tools(&mut self, journal: &Journal<'_>, more: bool) {
        let limit = self.limits.output_chars;
        let round = self.round;
        let Phase::Tools(batch) = &mut self.phase else { return };
        for slot in &mut batch.slots {
            let Some(step) = journal.tool(&slot.call_id) else { continue };
            if let Some(result) = step.result.clone() {
                // What ran then counts, whatever the tools are now.
                slot.result = Some(bounded(result, limit));
            } else if step.is_open_effect() || slot.plan.as_ref().is_none_or(|plan| plan.effect == Effect::Effect) {
                slot.result = Some(Err(interrupted_result()));
                self.unverified = Some(round);
                self.interrupted.push(slot.call_id.clone());
                self.notes.push(format!("{}: interrupted by a restart, not run again", slot.name));
            }
        }
        refuse_unverified(batch, self.unverified);
        if more {
            for slot in batch.slots.iter_mut().filter(|slot| slot.result.is_none()) {
                slot.result = Some(Err(order::NO_RESULT.to_owned()));
            }
        }
        if batch.is_answered() {
            self.settle();
        }
    }
}

impl Batch {
    fn is_answered(&self) -> bool {
        self.slots.iter().all(|slot| slot.result.is_some())
    }
}

impl Slot {
    /// A call that is answered without running.
    fn refused(call: &ToolCall, why: String) -> Self {
        Self {
            call_id: call.id.clone(),
            name: call.name.clone(),
            key: call.arguments.clone(),
            plan: None,
            handed: false,
            result: Some(Err(why)),
        }
    }

    fn message(&self, told: Option<String>) -> Option<Message> {
        let (Ok(text) | Err(text)) = self.result.as_ref()?;
        let text = format!("{text}{}", told.unwrap_or_default());
        Some(Message::Tool { call_id: self.call_id.clone(), name: self.name.clone(), text })
    }
}

/// Effects wait while an interrupted one is not verified.
fn refuse_unverified(batch: &mut Batch, unverified: Option<u32>) {
    if unverified.is_none() {
        return;
    }
    for slot in batch.slots.iter_mut().filter(|slot| slot.result.is_none() && !slot.handed) {
        if slot.plan.as_ref().is_some_and(|plan| plan.effect == Effect::Effect) {
            slot.result = Some(Err(UNVERIFIED.to_owned()));
        }
    }
}

/// The result of a call that was started and whose end nobody saw.
pub fn interrupted_result() -> String {
    json!({ "status": "interrupted", "outcome": "unknown", "hint": "verify before repeating" }).to_string()
}

/// A response as its journal row keeps it.
pub fn journal_of(response: &ModelResponse) -> Value {
    let mut row = json!({
        "text": response.text,
        "finish": response.finish,
        "usage": response.usage,
        "model": response.model,
    });
    if !response.calls.is_empty() {
        row["calls"] = json!(response.calls);
    }
    if let Some(opaque) = &response.opaque {
        row["opaque"] = opaque.clone();
    }
    if let Some(id) = &response.request_id {
        row["request_id"] = json!(id);
    }
    row
}

/// An error as its journal row keeps it: those that change the next request are replayed.
pub fn journal_of_error(error: &ModelError) -> Value {
    let (kind, why) = match error {
        ModelError::RetryAfter(_) => ("retry_after", error.to_string()),
        ModelError::Resting(_) => ("resting", error.to_string()),
        ModelError::Retry(why) => ("retry", why.to_string()),
        ModelError::TooLong(why) => ("too_long", why.to_string()),
        ModelError::Order(why) => ("order", why.to_string()),
        ModelError::Refused(why) => ("refused", why.to_string()),
        ModelError::Fatal(why) => ("fatal", why.to_string()),
        ModelError::Cancelled => ("cancelled", error.to_string()),
    };
    json!({ "error": kind, "message": order::head(&why, 500) })
}

/// What a finished model step says, read leniently: a piece that is missing or of a wrong type costs that piece.
fn response_of(row: &Value) -> Option<ModelResponse> {
    let object = row.as_object()?;
    if object.contains_key("error") {
        return None;
    }
    let string = |key: &str| object.get(key).and_then(Value::as_str).map(str::to_owned);
    fn piece<T: serde::de::DeserializeOwned + Default>(object: &Map<String, Value>, key: &str) -> T {
        object.get(key).and_then(|value| serde_json::from_value(value.clone()).ok()).unwrap_or_default()
    }
    let calls = object.get("calls").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    Some(ModelResponse {
        text: string("text").unwrap_or_default(),
        calls: calls.iter().filter_map(|call| serde_json::from_value(call.clone()).ok()).collect(),
        finish: piece(object, "finish"),
        opaque: object.get("opaque").filter(|opaque| !opaque.is_null()).cloned(),
        usage: piece::<Usage>(object, "usage"),
        model: string("model").unwrap_or_default(),
        answered_by: String::new(),
        request_id: string("request_id"),
    })
}

/// The journal of a turn, read for its replay.
struct Journal<'a> {
    answers: Vec<Answer>,
    tools: Vec<ToolStep<'a>>,
}

enum Answer {
    Response(ModelResponse),
    Error(ModelError),
}

struct ToolStep<'a> {
    call_id: &'a str,
    effect: Option<Effect>,
    result: Option<Result<String, String>>,
}

impl ToolStep<'_> {
    /// It was started, has an effect, and nobody saw its end.
    fn is_open_effect(&self) -> bool {
        self.result.is_none() && self.effect == Some(Effect::Effect)
    }
}

impl<'a> Journal<'a> {
    fn of(steps: &'a [StepRecord]) -> Self {
        let mut ordered: Vec<&StepRecord> = steps.iter().collect();
        ordered.sort_by_key(|step| step.n);
        let mut answers = Vec::new();
        let mut tools: Vec<ToolStep<'a>> = Vec::new();
        for step in ordered {
            match (step.kind, step.state) {
                (StepKind::Llm, StepState::Finished) => answers.extend(response_of(&step.result).map(Answer::Response)),
                (StepKind::Llm, StepState::Failed) => answers.extend(error_of(&step.result).map(Answer::Error)),
                (StepKind::Llm, _) => {}
                (StepKind::Tool, state) => {
                    let Some(call_id) = step.call_id.as_deref() else { continue };
                    let text = || match &step.result {
                        Value::String(text) => text.clone(),
                        Value::Null => String::new(),
                        other => other.to_string(),
                    };
                    let result = match state {
                        StepState::Finished => Some(Ok(text())),
                        StepState::Failed => Some(Err(text())),
                        StepState::Started | StepState::Interrupted => None,
                    };
                    match tools.iter_mut().find(|known| known.call_id == call_id) {
                        Some(known) => {
                            if known.result.is_none() {
                                known.result = result;
                            }
                            known.effect = known.effect.or(step.effect);
                        }
                        None => tools.push(ToolStep { call_id, effect: step.effect, result }),
                    }
                }
            }
        }
        Self { answers, tools }
    }

    fn tools(&self) -> impl Iterator<Item = &ToolStep<'a>> {
        self.tools.iter()
    }

    fn tool(&self, call_id: &str) -> Option<&ToolStep<'a>> {
        self.tools.iter().find(|step| step.call_id == call_id)
    }
}

fn error_of(row: &Value) -> Option<ModelError> {
    let message = row.get("message").and_then(Value::as_str).unwrap_or_default().to_owned();
    match row.get("error").and_then(Value::as_str)? {
        "too_long" => Some(ModelError::TooLong(message.into())),
        "order" => Some(ModelError::Order(message.into())),
        _ => None,
    }
}

fn assistant(text: String, calls: Vec<ToolCall>, opaque: Option<Value>) -> Message {
    Message::Assistant { text, calls, opaque }
}

/// Several answers of one turn as one text; silence beside words is left out.
fn joined(said: &[String]) -> String {
    let words = |text: &&String| Outcome::from_text(text, &Policy::default()).silent().is_none();
    let spoken: Vec<&str> = said.iter().filter(words).map(String::as_str).collect();
    match (spoken.is_empty(), said) {
        (true, [.., last]) => last.clone(),
        // One answer stays as it came, byte for byte.
        _ => spoken.join("\n\n"),
    }
}

/// A name as it may stand in a note: one line, bounded.
fn shown(name: &str) -> String {
    order::head(&name.replace(char::is_control, " "), 64)
}

fn asks_about_calls(message: &Message) -> bool {
    matches!(message, Message::User { text, .. } if pseudo::asks_how_calls_are_written(text))
}

/// Nothing for a person to read, and no silence that the reply filter would honour.
fn is_nothing(text: &str) -> bool {
    let policy = Policy::default();
    Outcome::from_text(text, &policy).wants_answer(&policy)
}

/// The text in the arguments of a `final_answer` call, however they are named.
fn final_answer(arguments: &str) -> Option<String> {
    let trimmed = arguments.trim();
    let text = match serde_json::from_str::<Value>(trimmed) {
        Ok(Value::String(text)) => text,
        Ok(Value::Object(object)) => {
            let named =
                ["answer", "final_answer", "text", "content", "message", "response", "result", "output", "reply"]
                    .iter()
                    .find_map(|key| object.get(*key).and_then(Value::as_str));
            let only = || object.values().find_map(Value::as_str).filter(|_| object.len() == 1);
            named.or_else(only)?.to_owned()
        }
        Ok(_) => return None,
        Err(_) if trimmed.starts_with(['{', '[', '"']) => return None,
        Err(_) => trimmed.to_owned(),
    };
    (!is_nothing(&text)).then_some(text)
}

fn bounded(result: Result<String, String>, chars: usize) -> Result<String, String> {
    let fit = |text: String| if text.trim().is_empty() { NO_OUTPUT.to_owned() } else { cut_to(&text, chars) };
    result.map(fit).map_err(fit)
}

fn cut_to(text: &str, chars: usize) -> String {
    crate::tools::truncate::head_and_tail(text, chars, "ask for a smaller part")
}

#[cfg(test)]
mod tests;
