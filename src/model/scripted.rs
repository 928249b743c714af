//! A model that answers from a rules file: for demos, tests and benchmarks, without a key and without a network.
//!
//! # The rules file (YAML)
//!
//! ```yaml
//! stream: { chars: 8, delay_ms: 20 }      # how text is shown, unless an answer says otherwise; default: all at once
//! rules:                                  # the first rule that matches answers
//!   - match: '^echo (?<what>.+)$'         # a regular expression, searched in the last user message, the person's words alone;
//!     text: 'You said: ${what}'           #   ^ and $ match at lines, (?i) ignores case, (?s) lets . match line breaks
//!   - match: 'list (\S+)'
//!     text: 'Let me look.'                # optional beside calls
//!     calls:
//!       - { name: ls, args: { path: '$1' } }       # or `arguments: '…'`: the raw string, for broken JSON
//!     results:                            # after the tools ran: the first whose pattern is found in the newest results
//!       - { match: '(?i)no such (\w+)', text: 'There is no such $1.' }
//!     then:                               # else by round: the first follow-up, the second, … (the last one repeats)
//!       - text: 'Found: ${result}'
//!   - match: 'flaky'
//!     answers:                            # one after the other, counted over the whole process
//!       - error: { retry: 'the provider is busy' }
//!       - text: 'now it works'
//!     repeat: cycle                       # or `last` (default): how it goes on after the last of them
//! otherwise: { text: 'I have no rule for: ${input}' }
//! ```
//!
//! An answer has any of: `text`, `calls`, `then`, `results`, `delay_ms` (before anything comes), `stream`, `finish`
//! (`stop | length | filtered | cut`), `usage` (`{ input, output, cached }`; default: estimated), `error` (raised after
//! `text` was shown: `retry`, `too_long`, `order`, `refused`, `fatal` with a text, `retry_after_ms` with a number, or the
//! word `hang`, which waits until it is cancelled), and `force_calls: true`, which makes calls although the request offers
//! no tools (by default they are then left out, as a real model would).
//!
//! In texts and arguments stand `$1` and `${name}` for groups of the pattern (`$0`: all it matched), `${input}` for the
//! last user message, `${result}` for the newest tool results, `${round}` for how often tools ran, `${turn}` for the
//! number of user messages, `${model}` for this model's name, and `$$` for a dollar sign. Without `then` the answer to
//! tool results is the results. Which round it is follows from the request alone, so a restart changes nothing.

use std::{
    borrow::Cow,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use channel_api::Clock;
use regex::{Captures, Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::{Finish, Message, Model, ModelError, ModelRequest, ModelResponse, Progress, ToolCall, Usage, new_call_id};
use crate::lang::{self, Lang};

/// A model that answers from rules.
pub struct Scripted {
    name: String,
    clock: Arc<dyn Clock>,
    /// All patterns at once: tells which rule answers in one pass over the text.
    set: RegexSet,
    rules: Vec<Rule>,
    otherwise: Option<Rule>,
}

/// Why a rules file was refused.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is larger than 4 MiB or not UTF-8.
    #[error("{}: not a rules file (UTF-8 text of at most 4 MiB)", .0.display())]
    NotText(PathBuf),
    /// The content is wrong.
    #[error("{place}: {text}")]
    Wrong {
        /// The file, and the rule where it is known.
        place: String,
        /// What is wrong.
        text: String,
    },
}

const MAX_FILE: u64 = 4 << 20;
const DEMO: &str = include_str!("demo-rules.yaml");

impl Scripted {
    /// Reads the rules of a file.
    ///
    /// # Errors
    /// [`RulesError`], naming file and rule.
    pub fn from_file(name: &str, path: &Path, clock: Arc<dyn Clock>) -> Result<Self, RulesError> {
        let read = |source| RulesError::Read { path: path.to_owned(), source };
        let meta = std::fs::metadata(path).map_err(read)?;
        if !meta.is_file() || meta.len() > MAX_FILE {
            return Err(RulesError::NotText(path.to_owned()));
        }
        let bytes = std::fs::read(path).map_err(read)?;
        let text = String::from_utf8(bytes).map_err(|_| RulesError::NotText(path.to_owned()))?;
        Self::from_text(name, &text, &path.display().to_string(), clock)
    }

    /// The friendly demo that is embedded in the program.
    ///
    /// # Errors
    /// Never: a test reads it.
    pub fn demo(name: &str, clock: Arc<dyn Clock>) -> Result<Self, RulesError> {
        Self::from_text(name, DEMO, "demo-rules.yaml", clock)
    }

    /// Reads rules from a text; `place` names it in errors.
    ///
    /// # Errors
    /// [`RulesError::Wrong`], naming the rule.
    pub fn from_text(name: &str, text: &str, place: &str, clock: Arc<dyn Clock>) -> Result<Self, RulesError> {
        let wrong = |place: String, text: String| RulesError::Wrong { place, text };
        let text = text.strip_prefix('\u{feff}').unwrap_or(text);
        let file: RulesFile = serde_yaml::from_str(text).map_err(|error| wrong(place.to_owned(), error.to_string()))?;
        let mut rules = Vec::with_capacity(file.rules.len());
        for (index, rule) in file.rules.into_iter().enumerate() {
            let rule = Rule::read(rule, true, file.stream)
                .map_err(|error| wrong(format!("{place}, rule {}", index + 1), error))?;
            rules.push(rule);
        }
        let otherwise = file
            .otherwise
            .map(|rule| Rule::read(rule, false, file.stream))
            .transpose()
            .map_err(|error| wrong(format!("{place}, otherwise"), error))?;
        let set = RegexSetBuilder::new(rules.iter().map(|rule| rule.pattern.as_str()))
            .multi_line(true)
            .build()
            .map_err(|error| wrong(place.to_owned(), error.to_string()))?;
        Ok(Self { name: name.to_owned(), clock, set, rules, otherwise })
    }

    /// The answer to a request, its placeholders filled in.
    fn answer(&self, request: &ModelRequest) -> Result<Filled<'_>, ModelError> {
        let scene = Scene::of(request, &self.name);
        let rule = self.set.matches(scene.input).iter().next().map(|index| &self.rules[index]);
        let rule = rule
            .or(self.otherwise.as_ref())
            .ok_or_else(|| ModelError::Fatal(lang::model_no_rule(Lang::current()).into()))?;
        let captures = rule.pattern.captures(scene.input);
        let first = rule.start(&scene);
        if scene.round == 0 {
            return Ok(first.fill(&scene, captures.as_ref(), request));
        }
        let result = scene.result();
        for (pattern, answer) in &first.results {
            if let Some(captures) = pattern.captures(&result) {
                return Ok(answer.fill(&scene, Some(&captures), request));
            }
        }
        Ok(match first.then.get(scene.round - 1).or(first.then.last()) {
            Some(answer) => answer.fill(&scene, captures.as_ref(), request),
            None => Filled { text: result.into_owned(), calls: Vec::new(), answer: &first.plain },
        })
    }

    /// Waits, or ends with [`ModelError::Cancelled`].
    async fn wait(&self, millis: u64, cancel: &CancellationToken) -> Result<(), ModelError> {
        if millis == 0 {
            return Ok(());
        }
        tokio::select! {
            () = self.clock.sleep(Duration::from_millis(millis)) => Ok(()),
            () = cancel.cancelled() => Err(ModelError::Cancelled),
        }
    }

    async fn show(
        &self,
        text: &str,
        stream: Stream,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<(), ModelError> {
        if text.is_empty() {
            return Ok(());
        }
        if stream.chars == 0 {
            progress.text(text);
            return Ok(());
        }
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.char_indices().nth(stream.chars).map_or(rest.len(), |(at, _)| at);
            let (piece, after) = rest.split_at(end);
            self.wait(stream.delay_ms, cancel).await?;
            progress.text(piece);
            rest = after;
        }
        Ok(())
    }
}

#[async_trait]
impl Model for Scripted {
    fn name(&self) -> &str {
        &self.name
    }

    async fn complete(
        &self,
        request: &ModelRequest,
        progress: &dyn Progress,
        cancel: &CancellationToken,
    ) -> Result<ModelResponse, ModelError> {
        if cancel.is_cancelled() {
            return Err(ModelError::Cancelled);
        }
        let Filled { text, calls, answer } = self.answer(request)?;
        self.wait(answer.delay_ms, cancel).await?;
        self.show(&text, answer.stream, progress, cancel).await?;
        match &answer.error {
            None => {}
            Some(Fault::Hang) => {
                cancel.cancelled().await;
                return Err(ModelError::Cancelled);
            }
            Some(fault) => return Err(fault.raise()),
        }
        let mut response =
            ModelResponse { text, calls, finish: answer.finish, model: self.name.clone(), ..ModelResponse::default() };
        response.usage = answer.usage.unwrap_or_else(|| Usage::estimate(request, &response));
        Ok(response)
    }
}

/// What of a request the rules look at.
struct Scene<'a> {
    model: &'a str,
    /// The last user message.
    input: &'a str,
    /// How many user messages there are.
    turn: usize,
    /// How many messages with calls came after it.
    round: usize,
    /// The names of the calls of the first of them.
    first_calls: Vec<&'a str>,
    /// The newest tool results, the first one first.
    results: Vec<&'a str>,
}

impl<'a> Scene<'a> {
    fn of(request: &'a ModelRequest, model: &'a str) -> Self {
        let mut scene = Self { model, input: "", turn: 0, round: 0, first_calls: Vec::new(), results: Vec::new() };
        for message in request.messages.iter().rev() {
            match message {
                Message::User { text, .. } => {
                    scene.input = words(text);
                    break;
                }
                Message::Assistant { calls, .. } if !calls.is_empty() => {
                    scene.round += 1;
                    scene.first_calls = calls.iter().map(|call| call.name.as_str()).collect();
                }
                Message::Tool { text, .. } if scene.round == 0 => scene.results.push(text),
                Message::Assistant { .. } | Message::Tool { .. } => {}
            }
        }
        scene.results.reverse();
        scene.turn = request.messages.iter().filter(|message| matches!(message, Message::User { .. })).count();
        scene
    }

    fn result(&self) -> Cow<'a, str> {
        match self.results.as_slice() {
            [one] => Cow::Borrowed(one),
            many => Cow::Owned(many.join("\n")),
        }
    }
}

/// A user message without what the gateway wrote below the person's words (see `agent::prompt::user_text`).
fn words(text: &str) -> &str {
    const CONTEXT: &str = "<message_context>";
    match text.rfind(CONTEXT) {
        Some(at) if text.trim_end().ends_with("</message_context>") => text[..at].trim_end(),
        _ => text,
    }
}

/// A pattern and its answers, one after the other.
struct Rule {
    pattern: Regex,
    answers: Vec<Answer>,
    repeat: Repeat,
    next: AtomicUsize,
}

impl Rule {
    fn read(mut fields: Map<String, Value>, matches: bool, stream: Stream) -> Result<Self, String> {
        let pattern = match (matches, fields.remove("match")) {
            (true, Some(Value::String(pattern))) => pattern,
            (true, _) => return Err("needs `match`: a regular expression".to_owned()),
            (false, None) => String::new(),
            (false, Some(_)) => return Err("takes no `match`".to_owned()),
        };
        let pattern = compile(&pattern)?;
        let repeat = fields.remove("repeat").map_or(Ok(Repeat::Last), serde_json::from_value);
        let repeat = repeat.map_err(|error| format!("repeat: {error}"))?;
        let texts: Vec<AnswerText> = match fields.remove("answers") {
            Some(_) if !fields.is_empty() => {
                return Err("has `answers` and an answer beside them: put it into the list".to_owned());
            }
            Some(answers) => serde_json::from_value(answers).map_err(|error| format!("answers: {error}"))?,
            None => vec![serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())?],
        };
        if texts.is_empty() {
            return Err("`answers` is empty".to_owned());
        }
        let answers = texts.into_iter().map(|text| Answer::read(text, &pattern, stream)).collect::<Result<_, _>>()?;
        Ok(Self { pattern, answers, repeat, next: AtomicUsize::new(0) })
    }

    /// The answer that begins a turn; in its later rounds, the one that made the calls.
    fn start(&self, scene: &Scene<'_>) -> &Answer {
        let last = self.answers.len() - 1;
        if last == 0 {
            return &self.answers[0];
        }
        if scene.round > 0 {
            let made = |answer: &&Answer| {
                answer.calls.iter().map(|call| call.name.as_str()).eq(scene.first_calls.iter().copied())
            };
            return self.answers.iter().find(made).unwrap_or(&self.answers[0]);
        }
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        match self.repeat {
            Repeat::Last => &self.answers[count.min(last)],
            Repeat::Cycle => &self.answers[count % self.answers.len()],
        }
    }
}

fn compile(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(pattern).multi_line(true).build().map_err(|error| format!("match: {error}"))
}

/// One answer, ready to be filled in.
struct Answer {
    text: Template,
    calls: Vec<CallTemplate>,
    force_calls: bool,
    plain: Manner,
    manner: Manner,
    results: Vec<(Regex, Answer)>,
    then: Vec<Answer>,
}

/// How an answer comes, apart from its words.
#[derive(Clone, Default)]
struct Manner {
    delay_ms: u64,
    stream: Stream,
    finish: Finish,
    usage: Option<Usage>,
    error: Option<Fault>,
}

struct Filled<'a> {
    text: String,
    calls: Vec<ToolCall>,
    answer: &'a Manner,
}

impl Answer {
    fn read(text: AnswerText, pattern: &Regex, stream: Stream) -> Result<Self, String> {
        let stream = text.stream.unwrap_or(stream);
        let follow_up = |text: AnswerText, pattern: &Regex| {
            if text.then.is_empty() && text.results.is_empty() {
                Self::read(text, pattern, stream)
            } else {
                Err("a follow-up has no `then` or `results` of its own: list the rounds in one `then`".to_owned())
            }
        };
        let then = text.then.into_iter().map(|text| follow_up(text, pattern)).collect::<Result<_, _>>()?;
        let mut results = Vec::new();
        for mut fields in text.results {
            let Some(Value::String(pattern)) = fields.remove("match") else {
                return Err("each of `results` needs `match`: a regular expression".to_owned());
            };
            let pattern = compile(&pattern)?;
            let text = serde_json::from_value(Value::Object(fields)).map_err(|error| format!("results: {error}"))?;
            let answer = follow_up(text, &pattern)?;
            results.push((pattern, answer));
        }
        Ok(Self {
            text: Template::read(&text.text, pattern)?,
            calls: text.calls.into_iter().map(|call| CallTemplate::read(call, pattern)).collect::<Result<_, _>>()?,
            force_calls: text.force_calls,
            plain: Manner { stream, ..Manner::default() },
            manner: Manner {
                delay_ms: text.delay_ms,
                stream,
                finish: text.finish,
                usage: text.usage.map(|usage| Usage {
                    input: usage.input,
                    output: usage.output,
                    cached: usage.cached,
                    ..Usage::default()
                }),
                error: text.error,
            },
            results,
            then,
        })
    }

    fn fill(&self, scene: &Scene<'_>, captures: Option<&Captures<'_>>, request: &ModelRequest) -> Filled<'_> {
        let calls = if request.tools.is_empty() && !self.force_calls { &[] } else { self.calls.as_slice() };
        let calls: Vec<ToolCall> = calls
            .iter()
            .map(|call| ToolCall {
                id: new_call_id(),
                name: call.name.clone(),
                arguments: call.arguments.fill(scene, captures),
            })
            .collect();
        let mut text = self.text.fill(scene, captures);
        if text.is_empty() && calls.is_empty() && !self.calls.is_empty() {
            // Only calls were planned and none may be made: say something, as a real model would.
            text = scene.result().into_owned();
            if text.is_empty() {
                text = lang::model_no_tools(Lang::of_text(scene.input).unwrap_or_default());
            }
        }
        Filled { text, calls, answer: &self.manner }
    }
}

struct CallTemplate {
    name: String,
    arguments: Arguments,
}

enum Arguments {
    Raw(Template),
    /// Filled in leaf by leaf, so that a captured quote cannot break the JSON.
    Json(Value),
}

impl CallTemplate {
    fn read(text: CallText, pattern: &Regex) -> Result<Self, String> {
        let arguments = match (text.args, text.arguments) {
            (Some(_), Some(_)) => return Err(format!("call {}: either `args` or `arguments`", text.name)),
            (None, Some(raw)) => Arguments::Raw(Template::read(&raw, pattern)?),
            (args, None) => {
                let args = args.unwrap_or_else(|| Value::Object(Map::new()));
                let mut variable = false;
                check_leaves(&args, pattern, &mut variable)?;
                if variable { Arguments::Json(args) } else { Arguments::Raw(Template::fixed(args.to_string())) }
            }
        };
        Ok(Self { name: text.name, arguments })
    }
}

fn check_leaves(value: &Value, pattern: &Regex, variable: &mut bool) -> Result<(), String> {
    match value {
        Value::String(text) => {
            *variable |= text.contains('$');
            Template::read(text, pattern).map(drop)
        }
        Value::Array(items) => items.iter().try_for_each(|item| check_leaves(item, pattern, variable)),
        Value::Object(fields) => fields.values().try_for_each(|field| check_leaves(field, pattern, variable)),
        _ => Ok(()),
    }
}

impl Arguments {
    fn fill(&self, scene: &Scene<'_>, captures: Option<&Captures<'_>>) -> String {
        fn leaves(value: &mut Value, scene: &Scene<'_>, captures: Option<&Captures<'_>>) {
            match value {
                Value::String(text) => *text = Template::parse(text).fill(scene, captures),
                Value::Array(items) => items.iter_mut().for_each(|item| leaves(item, scene, captures)),
                Value::Object(fields) => fields.values_mut().for_each(|field| leaves(field, scene, captures)),
                _ => {}
            }
        }
        match self {
            Self::Raw(template) => template.fill(scene, captures),
            Self::Json(value) => {
                let mut value = value.clone();
                leaves(&mut value, scene, captures);
                value.to_string()
            }
        }
    }
}

/// A text with places to fill in.
struct Template(Vec<Piece>);

enum Piece {
    Text(String),
    Group(usize),
    Named(String),
    Input,
    Result,
    Round,
    Turn,
    Model,
}

impl Template {
    fn fixed(text: String) -> Self {
        Self(vec![Piece::Text(text)])
    }

    /// Reads a text and checks that the pattern has the groups it names.
    fn read(text: &str, pattern: &Regex) -> Result<Self, String> {
        let template = Self::parse(text);
        for piece in &template.0 {
            match piece {
                Piece::Group(number) if *number >= pattern.captures_len() => {
                    return Err(format!("${number}: the pattern has only {} groups", pattern.captures_len() - 1));
                }
                Piece::Named(name) if !pattern.capture_names().flatten().any(|group| group == name) => {
                    return Err(format!("${{{name}}}: the pattern has no such group"));
                }
                _ => {}
            }
        }
        Ok(template)
    }

    fn parse(text: &str) -> Self {
        let mut pieces = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some(at) = rest.find('$') {
            literal.push_str(&rest[..at]);
            rest = &rest[at + 1..];
            let digits = rest.bytes().take(2).take_while(u8::is_ascii_digit).count();
            let piece = if digits > 0 {
                let (number, after) = rest.split_at(digits);
                rest = after;
                number.parse().ok().map(Piece::Group)
            } else if let Some((name, after)) = rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
                rest = after;
                Some(match name {
                    "input" => Piece::Input,
                    "result" => Piece::Result,
                    "round" => Piece::Round,
                    "turn" => Piece::Turn,
                    "model" => Piece::Model,
                    _ => name.parse().map_or_else(|_| Piece::Named(name.to_owned()), Piece::Group),
                })
            } else {
                rest = rest.strip_prefix('$').unwrap_or(rest);
                literal.push('$');
                None
            };
            if let Some(piece) = piece {
                if !literal.is_empty() {
                    pieces.push(Piece::Text(std::mem::take(&mut literal)));
                }
                pieces.push(piece);
            }
        }
        literal.push_str(rest);
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Self(pieces)
    }

    fn fill(&self, scene: &Scene<'_>, captures: Option<&Captures<'_>>) -> String {
        let mut out = String::new();
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.push_str(text),
                Piece::Group(number) => {
                    out.push_str(captures.and_then(|groups| groups.get(*number)).map_or("", |group| group.as_str()));
                }
                Piece::Named(name) => {
                    out.push_str(captures.and_then(|groups| groups.name(name)).map_or("", |group| group.as_str()));
                }
                Piece::Input => out.push_str(scene.input),
                Piece::Result => out.push_str(&scene.result()),
                Piece::Round => out.push_str(&scene.round.to_string()),
                Piece::Turn => out.push_str(&scene.turn.to_string()),
                Piece::Model => out.push_str(scene.model),
            }
        }
        out
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RulesFile {
    #[serde(default)]
    stream: Stream,
    #[serde(default)]
    rules: Vec<Map<String, Value>>,
    #[serde(default)]
    otherwise: Option<Map<String, Value>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct AnswerText {
    #[serde(default)]
    text: String,
    #[serde(default)]
    calls: Vec<CallText>,
    #[serde(default)]
    force_calls: bool,
    #[serde(default)]
    delay_ms: u64,
    #[serde(default)]
    stream: Option<Stream>,
    #[serde(default)]
    finish: Finish,
    #[serde(default)]
    usage: Option<UsageText>,
    #[serde(default)]
    error: Option<Fault>,
    #[serde(default)]
    results: Vec<Map<String, Value>>,
    #[serde(default)]
    then: Vec<AnswerText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CallText {
    name: String,
    #[serde(default)]
    args: Option<Value>,
    #[serde(default)]
    arguments: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct UsageText {
    #[serde(default)]
    input: u64,
    #[serde(default)]
    output: u64,
    #[serde(default)]
    cached: u64,
}

/// How text is shown: `chars` at once (0: all), `delay_ms` before each piece.
#[derive(Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stream {
    #[serde(default)]
    chars: usize,
    #[serde(default)]
    delay_ms: u64,
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Repeat {
    Last,
    Cycle,
}

#[derive(Clone, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Fault {
    Retry(String),
    RetryAfterMs(u64),
    TooLong(String),
    Order(String),
    Refused(String),
    Fatal(String),
    Hang,
}

impl Fault {
    fn raise(&self) -> ModelError {
        match self {
            Self::Retry(text) => ModelError::Retry(text.clone().into()),
            Self::RetryAfterMs(millis) => ModelError::RetryAfter(Duration::from_millis(*millis)),
            Self::TooLong(text) => ModelError::TooLong(text.clone().into()),
            Self::Order(text) => ModelError::Order(text.clone().into()),
            Self::Refused(text) => ModelError::Refused(text.clone().into()),
            Self::Fatal(text) => ModelError::Fatal(text.clone().into()),
            Self::Hang => ModelError::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::{
        clock::{ManualClock, SystemClock},
        model::ToolSpec,
    };

    #[derive(Default)]
    struct Seen(Mutex<Vec<String>>);

    impl Progress for Seen {
        fn text(&self, delta: &str) {
            self.0.lock().expect("not poisoned").push(delta.to_owned());
        }
        fn reset(&self) {
            self.0.lock().expect("not poisoned").clear();
        }
    }

    fn user(text: &str) -> Message {
        Message::user(text)
    }

    fn called(names: &[&str]) -> Message {
        let calls = names
            .iter()
            .map(|name| ToolCall { id: new_call_id(), name: (*name).to_owned(), arguments: "{}".to_owned() })
            .collect();
        Message::Assistant { text: String::new(), calls, opaque: None }
    }

    fn result(text: &str) -> Message {
        Message::Tool { call_id: "call_1".to_owned(), name: "ls".to_owned(), text: text.to_owned() }
    }

    fn ask(messages: Vec<Message>) -> ModelRequest {
        let tool = |name: &str| ToolSpec {
            name: name.to_owned(),
            description: String::new(),
            parameters: serde_json::json!({"type": "object"}),
        };
        ModelRequest { system: String::new(), messages, tools: vec![tool("ls")], max_tokens: None }
    }

    fn rules(text: &str) -> Scripted {
        Scripted::from_text("test", text, "rules.yaml", Arc::new(SystemClock::new())).expect("good rules")
    }

    async fn reply(model: &Scripted, messages: Vec<Message>) -> Result<ModelResponse, ModelError> {
        model.complete(&ask(messages), &(), &CancellationToken::new()).await
    }

    fn refused(text: &str) -> String {
        match Scripted::from_text("test", text, "rules.yaml", Arc::new(SystemClock::new())) {
            Ok(_) => panic!("these rules are wrong: {text}"),
            Err(error) => error.to_string(),
        }
    }

    #[tokio::test]
    async fn the_first_rule_that_matches_the_last_user_text_answers_with_its_groups() {
        let model = rules(
            r#"
rules:
  - match: '^echo (?<what>.+)$'
    text: 'You said: ${what} / $1 / $0 / $$1 / ${turn} / ${model}'
  - match: 'echo'
    text: 'never'
otherwise: { text: 'no rule: ${input}' }
"#,
        );
        let response = reply(&model, vec![user("hi"), user("echo a\n[time]")]).await.expect("an answer");
        assert_eq!(response.text, "You said: a / a / echo a / $1 / 2 / test");
        assert_eq!(response.finish, Finish::Stop);
        assert!(response.usage.estimated && response.usage.input > 0 && response.usage.output > 0);
        let response = reply(&model, vec![user("echo a"), user("b")]).await.expect("an answer");
        assert_eq!(response.text, "no rule: b");
    }

    #[tokio::test]
    async fn calls_follow_ups_and_results_go_by_round() {
        let model = rules(
            r#"
rules:
  - match: 'list (\S+)'
    text: 'Let me look.'
    calls:
      - { name: ls, args: { path: '$1', deep: [true, 'x ${input}'] } }
      - { name: bad, arguments: '{"path": $1,}' }
    results:
      - { match: 'no such (\w+)', text: 'There is no $1.' }
    then:
      - { text: '', calls: [ { name: ls } ] }
      - { text: 'Found ${result} after ${round} rounds' }
"#,
        );
        let start = vec![user(r#"list a"b"#)];
        let response = reply(&model, start.clone()).await.expect("an answer");
        assert_eq!(response.text, "Let me look.");
        assert_eq!(response.calls[0].arguments, r#"{"deep":[true,"x list a\"b"],"path":"a\"b"}"#);
        assert_eq!(response.calls[1].arguments, r#"{"path": a"b,}"#);
        assert_ne!(response.calls[0].id, response.calls[1].id);
        assert!(response.calls[0].id.starts_with("call_"));

        let mut once = start.clone();
        once.extend([called(&["ls", "bad"]), result("one"), result("two")]);
        let response = reply(&model, once.clone()).await.expect("an answer");
        assert_eq!(response.calls.len(), 1);
        let mut failed = start.clone();
        failed.extend([called(&["ls", "bad"]), result("ls: no such folder"), result("x")]);
        assert_eq!(reply(&model, failed).await.expect("an answer").text, "There is no folder.");
        let mut twice = once.clone();
        twice.extend([called(&["ls"]), result("three")]);
        assert_eq!(reply(&model, twice.clone()).await.expect("an answer").text, "Found three after 2 rounds");
        twice.extend([called(&["ls"]), result("four"), result("five")]);
        assert_eq!(reply(&model, twice).await.expect("an answer").text, "Found four\nfive after 3 rounds");
    }

    #[tokio::test]
    async fn without_tools_no_call_is_made_unless_forced() {
        let model = rules(
            r#"
rules:
  - { match: 'endless', calls: [ { name: ls } ], then: [ { calls: [ { name: ls } ] } ] }
  - { match: 'stubborn', force_calls: true, calls: [ { name: ls } ] }
"#,
        );
        let mut request = ask(vec![user("endless"), called(&["ls"]), result("same")]);
        let response = model.complete(&request, &(), &CancellationToken::new()).await.expect("an answer");
        assert_eq!((response.calls.len(), response.text.as_str()), (1, ""));
        request.tools.clear();
        let response = model.complete(&request, &(), &CancellationToken::new()).await.expect("an answer");
        assert_eq!((response.calls.len(), response.text.as_str()), (0, "same"));
        request.messages = vec![user("stubborn")];
        let response = model.complete(&request, &(), &CancellationToken::new()).await.expect("an answer");
        assert_eq!(response.calls.len(), 1);
    }

    #[tokio::test]
    async fn a_sequence_goes_on_from_call_to_call_and_finds_its_answer_again_after_tools() {
        let model = rules(
            r#"
rules:
  - match: 'flaky'
    answers:
      - error: { retry: 'busy' }
      - error: { retry_after_ms: 1500 }
      - { calls: [ { name: ls } ], then: [ { text: 'got ${result}' } ] }
      - text: 'done'
  - match: 'round'
    repeat: cycle
    answers: [ { text: a }, { text: b } ]
"#,
        );
        let ask = || reply(&model, vec![user("flaky")]);
        assert_eq!(ask().await, Err(ModelError::Retry("busy".into())));
        assert_eq!(ask().await, Err(ModelError::RetryAfter(Duration::from_millis(1500))));
        assert_eq!(ask().await.expect("calls").calls.len(), 1);
        let after = vec![user("flaky"), called(&["ls"]), result("x")];
        assert_eq!(reply(&model, after).await.expect("an answer").text, "got x");
        assert_eq!(ask().await.expect("text").text, "done");
        assert_eq!(ask().await.expect("text").text, "done");
        for expected in ["a", "b", "a"] {
            assert_eq!(reply(&model, vec![user("round")]).await.expect("text").text, expected);
        }
    }

    #[tokio::test]
    async fn errors_come_after_the_text_and_a_hang_ends_when_cancelled() {
        let model = rules(
            r#"
rules:
  - { match: 'long', error: { too_long: 'x' } }
  - { match: 'order', error: { order: 'x' } }
  - { match: 'filter', error: { refused: 'x' } }
  - { match: 'key', text: 'partial', error: { fatal: 'x' } }
  - { match: 'hang', text: 'partial', error: hang }
  - { match: 'cut', text: 'half', finish: cut, usage: { input: 3, output: 2, cached: 1 } }
"#,
        );
        let x = || "x".to_owned();
        assert_eq!(reply(&model, vec![user("long")]).await, Err(ModelError::TooLong(x().into())));
        assert_eq!(reply(&model, vec![user("order")]).await, Err(ModelError::Order(x().into())));
        assert_eq!(reply(&model, vec![user("filter")]).await, Err(ModelError::Refused(x().into())));
        let seen = Seen::default();
        let result = model.complete(&ask(vec![user("key")]), &seen, &CancellationToken::new()).await;
        assert_eq!(result, Err(ModelError::Fatal(x().into())));
        assert_eq!(*seen.0.lock().expect("not poisoned"), ["partial"]);
        let cut = reply(&model, vec![user("cut")]).await.expect("partial");
        assert_eq!((cut.text.as_str(), cut.finish), ("half", Finish::Cut));
        assert_eq!(cut.usage, Usage { input: 3, output: 2, cached: 1, ..Usage::default() });
        assert!(matches!(reply(&model, vec![user("nothing")]).await, Err(ModelError::Fatal(_))));

        let cancel = CancellationToken::new();
        let request = ask(vec![user("hang")]);
        let hanging = model.complete(&request, &(), &cancel);
        let (result, ()) = tokio::join!(hanging, async { cancel.cancel() });
        assert_eq!(result, Err(ModelError::Cancelled));
        let result = model.complete(&ask(vec![user("cut")]), &(), &cancel).await;
        assert_eq!(result, Err(ModelError::Cancelled));
    }

    #[tokio::test]
    async fn text_comes_in_pieces_at_the_pace_of_the_clock() {
        let clock = Arc::new(ManualClock::at(0));
        let text = "
stream: { chars: 2, delay_ms: 10 }
rules:
  - { match: 'slow', text: 小龙虾abc, delay_ms: 100 }
  - { match: 'fast', text: abc, stream: {} }
";
        let model = Scripted::from_text("test", text, "rules.yaml", clock.clone()).expect("good rules");
        let seen = Seen::default();
        let request = ask(vec![user("slow")]);
        let cancel = CancellationToken::new();
        let mut running = std::pin::pin!(model.complete(&request, &seen, &cancel));
        let pieces: [(u64, &[&str]); 5] =
            [(100, &[]), (10, &["小龙"]), (9, &["小龙"]), (1, &["小龙", "虾a"]), (10, &["小龙", "虾a", "bc"])];
        for (millis, expected) in pieces {
            assert!(futures_util::poll!(&mut running).is_pending());
            clock.advance(Duration::from_millis(millis));
            let done = futures_util::poll!(&mut running);
            assert_eq!(*seen.0.lock().expect("not poisoned"), expected);
            if let std::task::Poll::Ready(response) = done {
                assert_eq!(response.expect("an answer").text, "小龙虾abc");
            }
        }
        let seen = Seen::default();
        model.complete(&ask(vec![user("fast")]), &seen, &cancel).await.expect("an answer");
        assert_eq!(*seen.0.lock().expect("not poisoned"), ["abc"]);
    }

    #[test]
    fn wrong_rules_name_the_rule_and_what_is_wrong_with_it() {
        let cases = [
            ("rules: [ { match: '(', text: a } ]", "rule 1: match: regex parse error"),
            ("rules: [ { text: a } ]", "rule 1: needs `match`"),
            ("rules: [ { match: 'a', text: '$1' } ]", "$1: the pattern has only 0 groups"),
            ("rules: [ { match: 'a', text: '${nmae}' } ]", "${nmae}: the pattern has no such group"),
            ("rules: [ { match: 'a', calls: [ { name: ls, args: { path: ['$2'] } } ] } ]", "$2: the pattern has only"),
            ("rules: [ { match: 'a', txet: b } ]", "unknown field `txet`"),
            ("rules: [ { match: 'a', text: b, answers: [ { text: c } ] } ]", "put it into the list"),
            ("rules: [ { match: 'a', answers: [] } ]", "`answers` is empty"),
            ("rules: [ { match: 'a', then: [ { then: [ { text: b } ] } ] } ]", "no `then` or `results` of its own"),
            ("rules: [ { match: 'a', results: [ { text: b } ] } ]", "each of `results` needs `match`"),
            ("rules: [ { match: 'a', error: { nonsense: 1 } } ]", "unknown variant `nonsense`"),
            ("rule: []", "unknown field `rule`"),
            ("rules: [", "rules.yaml"),
            ("otherwise: { match: 'a', text: b }", "otherwise: takes no `match`"),
        ];
        for (text, expected) in cases {
            let error = refused(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
        let folder = tempfile::tempdir().expect("a folder");
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let missing = Scripted::from_file("x", &folder.path().join("none.yaml"), clock.clone()).err();
        assert!(missing.expect("refused").to_string().contains("none.yaml"));
        std::fs::write(folder.path().join("bad.yaml"), b"\xff\xfe\x00").expect("written");
        let bad = Scripted::from_file("x", &folder.path().join("bad.yaml"), clock).err();
        assert!(matches!(bad, Some(RulesError::NotText(_))));
    }

    #[tokio::test]
    async fn the_demo_greets_echoes_explains_itself_and_calls_a_tool_in_both_languages() {
        let model = rules(&DEMO.replace("stream: {", "stream: {} #"));
        assert!(Scripted::demo("demo", Arc::new(SystemClock::new())).is_ok());
        let cases = [
            ("Hello there", "Hello! I am the demo model"),
            ("你好", "你好！我是 crawfish（小龙虾）的演示模型"),
            ("who are you?", "api_key = \"${OPENAI_API_KEY}\""),
            ("你是谁？", "api_key = \"${DASHSCOPE_API_KEY}\""),
            ("谢谢！", "不客气"),
            (
                "the weather is fine\nreally\n\n<message_context>\ntime\n</message_context>",
                "You said: the weather is fine\nreally\n\n(I am",
            ),
            ("今天天气不错", "您说的是：今天天气不错\n"),
            ("say hello", "You said: say hello\n"),
            ("  ", "I am here."),
        ];
        for (said, expected) in cases {
            let response = reply(&model, vec![user(said)]).await.expect("an answer");
            assert!(response.text.contains(expected), "{said}: {}", response.text);
            assert!(response.calls.is_empty(), "{said}");
        }
        for (said, expected) in [("Please list the files", "I called the tool `ls`"), ("列出文件", "我调用了工具 `ls`")]
        {
            let response = reply(&model, vec![user(said)]).await.expect("a call");
            assert_eq!(
                (response.calls[0].name.as_str(), response.calls[0].arguments.as_str()),
                ("ls", r#"{"path":"."}"#)
            );
            let after = vec![user(said), called(&["ls"]), result("notes.md\nskills/")];
            let response = reply(&model, after).await.expect("an answer");
            assert!(response.text.starts_with(expected) && response.text.ends_with("notes.md\nskills/"));
        }
    }
}
