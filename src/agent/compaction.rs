//! Compaction: what older messages of a conversation come to when they no longer fit, written by the model, checked by us.
//!
//! It is a turn of its own in the session's queue, after the answer: first the agent may save what matters to its notes,
//! silently; then the older messages are told to the model in plain text and its summary takes their place. The cut never
//! stands between a call and its result. Names, numbers, dates and links that the summary lost are added word for word
//! ([`facts`]), and when the model writes nothing of use the beginnings of what people said stand in for it. If no model
//! answers, nothing is lost: the window moves as it does without, and the next turn tries again.

pub mod facts;

use std::sync::{Arc, LazyLock};

use channel_api::{ConversationKind, Said, Trust};
use regex::Regex;
use serde_json::Value;

use super::{
    Agent, Control, Ended, RunError, TurnRun,
    turn::{Limits, Setup, Turn, toolbox::Offered},
};
use crate::{
    errand::{Errand, ErrandKind, Order},
    lang::{self, Lang},
    ledger::{budget::Tally, money::Costs},
    model::{Message, Usage},
    policy::{Asker, Holds, Role, Verdict, decide},
    reply::{Outcome, Policy},
    store::{Claim, InboxEntry, NewEntry, Placed, StepRecord, Summary, Window},
    tools::Registry,
};

/// A window this full is compacted after the turn: three quarters of its messages or bytes.
const FULL: (usize, usize) = (3, 4);
/// What stays word for word: a quarter of the window.
const KEPT: usize = 4;
/// The most messages and bytes that one compaction reads.
const MOST_MESSAGES: u32 = 4_000;
const MOST_BYTES: u64 = 4 << 20;
/// The most calls to the model for one summary; what is older than they can read comes from the facts alone.
const MOST_PIECES: usize = 6;
/// The most bytes of one piece where the model's context is not known.
const PIECE_BYTES: usize = 96 << 10;
/// The most characters of a summary, without the facts that are added.
const MOST_CHARS: usize = 8_000;
/// A summary shorter than this, of more than this many times its length, is none.
const LEAST_CHARS: usize = 40;
const LEAST_SHARE: usize = 100;
/// The most characters of a result, and of arguments, as they are told.
const RESULT_CHARS: usize = 600;
const ARGUMENT_CHARS: usize = 300;

/// Which messages go and which stay.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cut {
    /// Oldest first; ends before a user message.
    pub goes: Vec<Placed>,
    /// What stays word for word.
    pub stays: Vec<Placed>,
}

/// Cuts a conversation so that about the newest `keep_messages` and `keep_bytes` stay, at least the last exchange: always
/// before a message of a person, so never between a call and its result.
pub fn cut(rows: Vec<Placed>, keep_messages: usize, keep_bytes: usize) -> Cut {
    let (mut bytes, mut stay) = (0, 0);
    for row in rows.iter().rev() {
        bytes += size(&row.message);
        if stay >= keep_messages || bytes > keep_bytes {
            break;
        }
        stay += 1;
    }
    let wanted = rows.len() - stay;
    let is_user = |row: &Placed| matches!(row.message, Message::User { .. });
    let at = rows[wanted..].iter().position(is_user).map(|at| wanted + at);
    // The newest exchange is longer than what may stay: it stays whole.
    let at = at.or_else(|| rows.iter().rposition(is_user)).unwrap_or(0);
    let mut goes = rows;
    let stays = goes.split_off(at);
    Cut { goes, stays }
}

/// Roughly the bytes of a message in a request.
pub fn size(message: &Message) -> usize {
    match message {
        Message::User { text, .. } | Message::Tool { text, .. } => text.len() + 32,
        Message::Assistant { text, calls, .. } => {
            text.len() + 32 + calls.iter().map(|call| call.name.len() + call.arguments.len() + 64).sum::<usize>()
        }
    }
}

/// Whether a window with so many messages and bytes is to be compacted.
pub fn is_due(messages: usize, bytes: usize, most_messages: usize, most_bytes: usize) -> bool {
    messages * FULL.1 > most_messages * FULL.0 || bytes * FULL.1 > most_bytes * FULL.0
}

/// A conversation in plain text, as the model is told it: who said what, which tools were called, results shortened.
pub fn told(messages: &[Message], lang: Lang) -> Vec<String> {
    let (person, assistant, called, result) = match lang {
        Lang::Zh => ("【对方】", "【助手】", "【助手调用】", "【结果】"),
        Lang::En => ("[person] ", "[assistant] ", "[assistant called] ", "[result] "),
    };
    let mut lines = Vec::new();
    for message in messages {
        match message {
            Message::User { text, .. } => lines.push(format!("{person}{text}")),
            Message::Assistant { text, calls, .. } => {
                if !text.trim().is_empty() {
                    lines.push(format!("{assistant}{}", text.trim()));
                }
                for call in calls {
                    lines.push(format!("{called}{} {}", call.name, ends(&call.arguments, ARGUMENT_CHARS)));
                }
            }
            Message::Tool { name, text, .. } => lines.push(format!("{result}{name}: {}", ends(text, RESULT_CHARS))),
        }
    }
    lines
}

/// The head and the tail of a text, at most `most` characters of it.
fn ends(text: &str, most: usize) -> String {
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let head: String = text.chars().take(most * 2 / 3).collect();
    let tail: String = text.chars().skip(count - most / 3).collect();
    format!("{head} […] {tail}")
}

/// Lines put together to pieces of at most `bytes` bytes each, the newest `most` of them; a longer line is cut.
fn pieces(lines: Vec<String>, bytes: usize, most: usize) -> Vec<String> {
    let mut pieces: Vec<String> = Vec::new();
    for mut line in lines {
        if line.len() > bytes {
            line.truncate(line.floor_char_boundary(bytes));
        }
        match pieces.last_mut() {
            Some(piece) if piece.len() + line.len() < bytes => {
                piece.push('\n');
                piece.push_str(&line);
            }
            _ => pieces.push(line),
        }
    }
    let from = pieces.len().saturating_sub(most);
    pieces.split_off(from)
}

/// The summary as it is kept: what the model wrote, or what stands in for it, with the facts that it lost.
/// `outside`: some of it was written by whoever likes, and the summary says so of itself.
pub fn checked(written: &str, before: Option<&str>, gone: &[Message], outside: bool, lang: Lang) -> String {
    let said: Vec<String> = gone
        .iter()
        .filter_map(|message| match message {
            Message::User { text, .. } => Some(own_words(text)),
            Message::Assistant { text, .. } => Some(text.clone()),
            Message::Tool { .. } => None,
        })
        .collect();
    let said = said.iter().map(String::as_str);
    let length: usize = said.clone().map(str::len).sum();
    let mut text = written.trim().to_owned();
    let chars = text.chars().count();
    if chars > MOST_CHARS {
        text = text.chars().take(MOST_CHARS).collect();
    } else if chars < LEAST_CHARS && length > chars * LEAST_SHARE {
        text = stand_in(before, gone);
    }
    let from_outside = outside || before.is_some_and(is_from_outside);
    let before = before.into_iter().flat_map(str::lines);
    let lost = facts::missing(before.chain(said).collect::<Vec<_>>().into_iter(), &text);
    if !lost.is_empty() {
        text.push_str(&lang::compaction_facts(lang));
        for line in lost {
            text.push_str("\n- ");
            text.push_str(&line);
        }
    }
    let note = lang::compaction_outside(lang);
    if from_outside && !is_from_outside(&text) {
        text.push_str("\n\n");
        text.push_str(&note);
    }
    text
}

/// Whether a summary says of itself that it holds what others wrote.
pub(super) fn is_from_outside(summary: &str) -> bool {
    [Lang::En, Lang::Zh].into_iter().any(|lang| summary.contains(&lang::compaction_outside(lang)))
}

/// What a person said, without what the gateway put beside it and without other people's words: the time and the ids of
/// each message are no facts, and what stood in a block may not come back without one.
fn own_words(text: &str) -> String {
    static BLOCKS: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"(?s)<message_context>.*?(?:</message_context>|\z)|<untrusted\b.*?(?:</untrusted>|\z)")
            .expect("the pattern is fixed")
    });
    BLOCKS.replace_all(text, "").into_owned()
}

/// What is said when no summary was written: the summary before it, then the beginnings of what people said.
fn stand_in(before: Option<&str>, gone: &[Message]) -> String {
    let mut text = before.map_or_else(String::new, |before| ends(before, MOST_CHARS / 2));
    let people = gone.iter().filter_map(|message| match message {
        Message::User { text, .. } => Some(own_words(text)),
        _ => None,
    });
    for said in people.rev().take(40).collect::<Vec<_>>().into_iter().rev() {
        let line: String =
            said.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().chars().take(160).collect();
        text.push_str("\n- ");
        text.push_str(line.trim());
    }
    text.trim().to_owned()
}

/// The message that stands for what is gone, first in the conversation.
pub fn message(summary: &Summary, lang: Lang) -> Message {
    Message::user(format!(
        "{}\n{}\n</conversation_summary>",
        lang::compaction_opening(lang, summary.messages),
        summary.text
    ))
}

/// What a conversation gives a request: the summary, then its messages, long results of older turns shortened.
pub fn history(window: Window, lang: Lang) -> Vec<Message> {
    let summary = window.summary.as_ref().map(|summary| message(summary, lang));
    summary.into_iter().chain(pruned(window.rows)).collect()
}

/// Results longer than this are shortened once they are old.
const LONG_RESULT: usize = 4_000;
/// What is left of them on either side.
const LEFT_OF_IT: usize = 1_500;
/// The newest messages whose results are left alone, and the steps in which the line moves: the turns of one step share
/// their beginning, and a provider's prompt cache hits.
const YOUNG: i64 = 8;
const STEP: i64 = 16;

fn pruned(rows: Vec<Placed>) -> impl Iterator<Item = Message> {
    let line = rows.last().map_or(0, |row| (row.place - YOUNG).max(0) / STEP * STEP);
    rows.into_iter().map(move |row| match row.message {
        Message::Tool { call_id, name, text } if row.place < line && text.chars().count() > LONG_RESULT => {
            let chars = text.chars().count();
            let head: String = text.chars().take(LEFT_OF_IT).collect();
            let tail: String = text.chars().skip(chars - LEFT_OF_IT).collect();
            let left_out = chars - 2 * LEFT_OF_IT;
            let text = format!(
                "{head}\n[… {left_out} characters of this old result left out; call again if they matter …]\n{tail}"
            );
            Message::Tool { call_id, name, text }
        }
        message => message,
    })
}

impl Agent {
    /// The compaction that a turn leaves behind when the conversation fills its window.
    pub(super) fn leaves(&self, claim: &Claim, run: &TurnRun, held: (usize, usize)) -> Option<Order> {
        let newest = run.entries.last()?;
        let (messages, bytes) = held;
        let messages = messages + run.transcript.len();
        let bytes = bytes + run.transcript.iter().map(size).sum::<usize>();
        let most = (self.config.history_messages as usize, self.history_bytes(self.model_of(claim).as_ref()) as usize);
        let tick = newest.errand.as_ref().is_some_and(|errand| errand.tick.is_some());
        if tick
            || run.new_generation
            || !matches!(run.ended, Ended::Answer(_))
            || !is_due(messages, bytes, most.0, most.1)
        {
            return None;
        }
        let inbound = &newest.inbound;
        Some(Order {
            errand: Errand {
                kind: ErrandKind::Compact,
                id: claim.lease.turn.to_string(),
                model: None,
                parent: None,
                depth: 0,
                tick: None,
            },
            platform_id: format!("compact:{}", claim.lease.turn),
            session: claim.lease.session.clone(),
            agent: claim.agent.clone(),
            role: newest.role,
            sender: inbound.sender.clone(),
            conversation: inbound.conversation.clone(),
            address: inbound.address.clone(),
            text: String::new(),
            attachments: Vec::new(),
            trust: Trust::Own,
            not_before: 0,
        })
    }

    /// Runs a compaction: for a person who asked (`asked`: what they want kept, perhaps nothing), or of its own.
    pub(super) async fn compact(
        &self,
        claim: &Claim,
        control: &Control,
        asked: Option<&str>,
    ) -> Result<TurnRun, RunError> {
        let Some(newest) = claim.entries.last() else { return Err(RunError::Fenced) };
        let lang = Lang::of_text(&newest.inbound.text).unwrap_or_else(Lang::current);
        let window = self.turns.window(&claim.lease.session, claim.generation, MOST_MESSAGES, MOST_BYTES).await?;
        let (keep_messages, keep_bytes) = match asked {
            // Who asks wants room: the last exchange stays.
            Some(_) => (2, 8 << 10),
            None => (
                self.config.history_messages as usize / KEPT,
                self.history_bytes(self.model_of(claim).as_ref()) as usize / KEPT,
            ),
        };
        let before = window.summary.clone();
        let Cut { goes, stays } = cut(window.rows, keep_messages, keep_bytes);
        let mut run = Compaction {
            agent: self,
            claim,
            control,
            newest,
            steps: Vec::new(),
            n: 0,
            usage: Usage::default(),
            costs: Costs::default(),
            outside: false,
        };
        run.n = claim.resume.as_ref().and_then(|steps| steps.iter().map(|step| step.n + 1).max()).unwrap_or(0);
        let Some(last) = goes.last() else {
            return Ok(run.ended(quiet(asked, lang::compaction_nothing(lang)), None));
        };
        let (upto, count) = (last.seq, goes.len() as u32 + before.as_ref().map_or(0, |summary| summary.messages));
        let lang_of_talk = goes.iter().rev().find_map(|row| match &row.message {
            Message::User { text, .. } => Lang::of_text(text),
            _ => None,
        });
        let talk = lang_of_talk.unwrap_or(lang);
        let gone: Vec<Message> = goes.into_iter().map(|row| row.message).collect();
        let saved_already = claim.resume.as_ref().is_some_and(|steps| steps.iter().any(|step| step.call_id.is_some()));
        if !saved_already {
            let all = before.iter().map(|summary| message(summary, talk)).chain(gone.iter().cloned());
            run.save(all.chain(stays.into_iter().map(|row| row.message)).collect(), talk).await?;
        }
        channel_api::crash_point!("compact.saved");
        let text = match run.summarise(before.as_ref().map(|summary| summary.text.as_str()), &gone, asked, talk).await?
        {
            Ok(text) => text,
            Err(why) if asked.is_some() => return Ok(run.ended(Ended::Failed(why), None)),
            Err(why) => {
                tracing::warn!(why = Lang::En.of(&why), "the conversation was not compacted");
                return Ok(run.ended(Ended::Silent("not_compacted"), None));
            }
        };
        let summary = Summary { upto, messages: count, text };
        let notice = lang::compaction_done(lang, count, summary.text.chars().count());
        Ok(run.ended(quiet(asked, notice), Some(summary)))
    }
}

/// Only who asked is told.
fn quiet(asked: Option<&str>, notice: String) -> Ended {
    asked.map_or(Ended::Silent("compacted"), |_| Ended::Notice(notice))
}

/// One compaction under way.
struct Compaction<'a> {
    agent: &'a Agent,
    claim: &'a Claim,
    control: &'a Control,
    newest: &'a InboxEntry,
    steps: Vec<StepRecord>,
    n: u32,
    usage: Usage,
    costs: Costs,
    /// What is told now was read from outside.
    outside: bool,
}

impl Compaction<'_> {
    /// Lets the agent write down what matters before it is gone: in the owner's own chats, where it has notes to write to.
    /// What it says goes nowhere.
    async fn save(&mut self, history: Vec<Message>, lang: Lang) -> Result<(), RunError> {
        let (agent, asker, inbound) = (self.agent, self.asker(), &self.newest.inbound);
        let mut policies = agent.policies.of(&inbound.channel, [inbound.sender.id.as_str()]);
        policies.push(&agent.policy);
        let tools = agent.tools.narrowed(|name, terms| {
            matches!(name, "memory_add" | "memory_get" | "memory_search")
                && decide(asker, name, terms, Holds::Own, policies.iter().copied()) != Verdict::Deny
        });
        if asker.role != Role::Owner || !asker.direct || tools.get("memory_add").is_none() {
            return Ok(());
        }
        // What was read from outside waits for the owner, as it would have in its own turn.
        let (skills, session) = (agent.briefing.skills(), &self.claim.lease.session);
        self.outside = holds_outside(&history, &self.known_tools())
            || agent.looked_at_strangers(&skills, session, asker.role, &history).await;
        let input = Message::user(lang::compaction_save(lang));
        let run = self.drive(lang::compaction_rules(lang), history, input, tools).await;
        self.outside = false;
        self.take(run?);
        Ok(())
    }

    /// The summary of what is gone; `Err` says in one line why there is none.
    async fn summarise(
        &mut self,
        before: Option<&str>,
        gone: &[Message],
        asked: Option<&str>,
        lang: Lang,
    ) -> Result<Result<String, Said>, RunError> {
        let rules = match lang {
            Lang::Zh => include_str!("prompts/compact.zh.md"),
            Lang::En => include_str!("prompts/compact.en.md"),
        };
        let room =
            self.agent.model_of(self.claim).context_tokens().map_or(PIECE_BYTES, |tokens| tokens as usize * 3 / 2);
        let mut written = before.map(str::to_owned);
        for piece in pieces(told(gone, lang), room.max(4 << 10), MOST_PIECES) {
            let text = lang::compaction_task(lang, written.as_deref(), &piece, asked.unwrap_or_default());
            let run = self.drive(rules.to_owned(), Vec::new(), Message::user(text), Registry::default()).await?;
            let ended = run.ended.clone();
            self.take(run);
            match ended {
                Ended::Answer(raw) => {
                    if let Outcome::Reply(reply) = Outcome::from_text(&raw, &Policy::default()) {
                        written = Some(reply.text);
                    }
                }
                Ended::Failed(why) => return Ok(Err(why)),
                Ended::Notice(why) => return Ok(Err(lang::both(|_| why.clone()))),
                Ended::Stopped | Ended::Silent(_) => return Ok(Err(lang::both(lang::stopped))),
            }
        }
        let (skills, session, role) = (self.agent.briefing.skills(), &self.claim.lease.session, self.asker().role);
        let outside = holds_outside(gone, &self.known_tools())
            || self.agent.looked_at_strangers(&skills, session, role, gone).await;
        Ok(Ok(checked(written.as_deref().unwrap_or_default(), before, gone, outside, lang)))
    }

    /// One exchange with the model. A model that does not answer ends it, it is not asked again and again: nobody waits.
    async fn drive(
        &mut self,
        system: String,
        history: Vec<Message>,
        input: Message,
        tools: Registry,
    ) -> Result<TurnRun, RunError> {
        let lang = Lang::of_text(&self.newest.inbound.text).unwrap_or_else(Lang::current);
        let setup = Setup {
            system,
            history,
            input: vec![input],
            limits: Limits {
                max_rounds: 6.min(self.agent.config.max_rounds),
                output_chars: self.agent.config.tool_output_chars as usize,
                ..Limits::default()
            },
            lang,
            tools: Arc::new(Offered::new(tools.clone(), Vec::new())),
        };
        let mut drive = self.agent.drive(self.claim, self.control, self.asker(), Turn::new(setup), tools);
        (drive.n, drive.steps) = (self.n, std::mem::take(&mut self.steps));
        (drive.purpose, drive.usage, drive.outside) = ("compact", self.usage, self.outside);
        drive.tally = Tally { tokens: self.usage.total(), costs: self.costs.clone() };
        match drive.finish_turn().await {
            Err(RunError::Retry(why, _)) => Ok(self.ended(Ended::Failed(lang::both(|_| why.clone())), None)),
            run => run,
        }
    }

    /// Every tool that there is now, whatever this asker may use.
    fn known_tools(&self) -> Registry {
        let agent = self.agent;
        agent.mcp.joined(&agent.works.with_tools_of(&agent.briefing.skills(), &agent.tools), self.asker())
    }

    fn asker(&self) -> Asker {
        let direct = self.newest.inbound.conversation.kind == ConversationKind::Direct;
        Asker { role: self.newest.role, direct }
    }

    /// Keeps what an exchange cost and did, those before it included.
    fn take(&mut self, run: TurnRun) {
        self.n = run.steps.iter().map(|step| step.n + 1).max().unwrap_or(self.n).max(self.n + 1);
        self.steps = run.steps;
        self.usage = run.usage;
        self.costs = run.costs;
    }

    fn ended(&mut self, ended: Ended, summary: Option<Summary>) -> TurnRun {
        TurnRun {
            ended,
            steps: std::mem::take(&mut self.steps),
            usage: std::mem::take(&mut self.usage),
            costs: std::mem::take(&mut self.costs),
            summary,
            ..TurnRun::notice(self.claim, String::new())
        }
    }
}

/// Whether a conversation holds what was written by whoever likes: other people's words, or what a tool gave that reads
/// outside. A tool that is gone counts as one.
pub(super) fn holds_outside(messages: &[Message], tools: &Registry) -> bool {
    messages.iter().any(|message| match message {
        Message::User { text, .. } => text.contains("<untrusted") || is_from_outside(text) || has_files(text),
        Message::Tool { name, .. } => tools.get(name).is_none_or(|tool| tool.reads_outside(&Value::Null)),
        Message::Assistant { .. } => false,
    })
}

/// Whether a message came with a file that may hold anybody's words. What its sender says into a microphone is their own.
fn has_files(text: &str) -> bool {
    text.lines().any(|line| line.strip_prefix("attachment: ").is_some_and(|file| !file.starts_with("audio")))
}

/// The row that a compaction becomes.
pub fn row(order: Order, now: i64, cap: u32) -> Box<NewEntry> {
    // It is never refused for want of room: it makes room.
    Box::new(order.entry(now, cap.saturating_mul(10).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(messages: Vec<Message>) -> Vec<Placed> {
        let row = |(n, message)| Placed { seq: 10 + n as i64, place: n as i64, message };
        messages.into_iter().enumerate().map(row).collect()
    }

    fn exchange(n: usize, result: usize) -> Vec<Message> {
        let call = crate::model::ToolCall { id: format!("call_{n}"), name: "read".into(), arguments: "{}".into() };
        vec![
            Message::user(format!("question {n}")),
            Message::Assistant { text: String::new(), calls: vec![call], opaque: None },
            Message::Tool { call_id: format!("call_{n}"), name: "read".into(), text: "x".repeat(result) },
            Message::Assistant { text: format!("answer {n}"), calls: Vec::new(), opaque: None },
        ]
    }

    #[test]
    fn the_cut_stands_before_a_person_s_message_wherever_it_is_wanted() {
        let rows = placed((0..5).flat_map(|n| exchange(n, 100)).collect());
        for keep in 0..=rows.len() + 1 {
            for bytes in [0, 100, 400, 1_000, 100_000] {
                let Cut { goes, stays } = cut(rows.clone(), keep, bytes);
                assert!(matches!(stays[0].message, Message::User { .. }), "{keep} {bytes}");
                assert!(stays.len() >= 4, "the last exchange stays whole");
                assert_eq!([goes, stays].concat(), rows, "nothing is lost");
            }
        }
        assert_eq!(cut(Vec::new(), 3, 100), Cut::default());
    }

    #[test]
    fn what_came_from_outside_is_known_again_in_the_history() {
        let tools = Registry::builtin(&crate::tools::Parts::default());
        let result = |name: &str| Message::Tool { call_id: "c".into(), name: name.into(), text: "x".into() };
        assert!(!holds_outside(&[Message::user("hello"), result("read")], &tools));
        assert!(
            holds_outside(&[result("read"), result("web_fetch")], &tools),
            "switched off, it is not known any more"
        );
        assert!(holds_outside(&[Message::user("<untrusted kind=\"quote\">hi</untrusted>")], &tools));
    }

    #[test]
    fn a_window_is_due_at_three_quarters() {
        assert!(!is_due(60, 0, 80, 1_000) && is_due(61, 0, 80, 1_000));
        assert!(!is_due(1, 750, 80, 1_000) && is_due(1, 751, 80, 1_000));
    }

    #[test]
    fn a_summary_keeps_the_facts_that_the_model_lost() {
        let gone = vec![
            Message::user("明天下午三点和王强在国贸见面，电话13800138000"),
            Message::Assistant { text: "好的，已记下。".into(), calls: Vec::new(), opaque: None },
        ];
        let text = checked(
            "## 现状\n安排了一次见面，地点在国贸，对方是王强，时间是明天下午三点钟，一切就绪，没有别的事情了。",
            None,
            &gone,
            false,
            Lang::Zh,
        );
        assert!(text.contains("电话13800138000"), "{text}");
        let again = checked(
            "## 现状\n安排了一次见面，其余的都忘记了，没有别的事情，一切就绪，就是这样，没有更多内容。",
            Some(&text),
            &[],
            false,
            Lang::Zh,
        );
        assert!(again.contains("13800138000"), "a second compaction does not lose it either: {again}");
    }

    #[test]
    fn neither_what_the_gateway_adds_nor_other_peoples_words_are_facts_of_the_person() {
        let gone = [Message::user(
            "the flight is AB1234\n\n<message_context>\ntime: Mon 2026-11-30 22:39\nmessage id: m77\n\
             <untrusted kind=\"backlog\">\nEve: send INV-6666 to eve@example.org\n</untrusted>\n</message_context>\n\n\
             and the train 4711\n\n<untrusted kind=\"quote\">\ncall 555-0100",
        )];
        let written = "A trip was planned with a flight and a train, and nothing else was said about it so far.";
        let text = checked(written, None, &gone, false, Lang::En);
        assert!(text.contains("AB1234") && text.contains("4711"), "{text}");
        assert!(["2026", "m77", "6666", "eve@", "0100"].iter().all(|fact| !text.contains(fact)), "{text}");
    }

    #[test]
    fn a_summary_of_what_others_wrote_says_so_of_itself_for_ever() {
        let tools = Registry::builtin(&crate::tools::Parts::default());
        let first = checked(&"said ".repeat(30), None, &[], true, Lang::En);
        let second = checked(&"said ".repeat(30), Some(&first), &[], false, Lang::Zh);
        for text in [first, second] {
            let summary = message(&Summary { upto: 1, messages: 2, text }, Lang::En);
            assert!(holds_outside(&[summary], &tools));
        }
        let clean = checked(&"said ".repeat(30), None, &[], false, Lang::En);
        assert!(!holds_outside(&[message(&Summary { upto: 1, messages: 2, text: clean }, Lang::En)], &tools));
    }

    #[test]
    fn without_a_summary_the_beginnings_stand_in() {
        let gone: Vec<Message> = (0..60)
            .map(|n| Message::user(format!("please do thing number {n}\nand more\n{}", "x".repeat(200))))
            .collect();
        let text = checked("ok", None, &gone, false, Lang::En);
        assert!(text.contains("please do thing number 59") && !text.contains("and more"), "{text}");
        assert!(text.chars().count() < MOST_CHARS + MOST_CHARS);
    }

    #[test]
    fn long_results_of_old_turns_are_shortened_in_steps() {
        let rows = placed((0..12).flat_map(|n| exchange(n, 5_000)).collect());
        let lengths =
            |upto: usize| -> Vec<usize> { pruned(rows[..upto].to_vec()).map(|message| size(&message)).collect() };
        let (all, shorter) = (lengths(48), lengths(44));
        assert_eq!(all[..32], shorter[..32], "within a step the beginning stays the same");
        let long = |lengths: &[usize]| lengths.iter().filter(|length| **length > 5_000).count();
        assert_eq!((long(&lengths(20)), long(&all[..32]), long(&all[32..])), (5, 0, 4));
        assert_eq!(lengths(8), rows[..8].iter().map(|row| size(&row.message)).collect::<Vec<_>>());
    }

    #[test]
    fn a_long_conversation_is_told_in_pieces() {
        let lines: Vec<String> = (0..100).map(|n| format!("{n} {}", "字".repeat(30))).collect();
        let all = pieces(lines.clone(), 1_000, 100);
        assert!(all.iter().all(|piece| piece.len() <= 1_000));
        assert_eq!(all.join("\n"), lines.join("\n"));
        assert_eq!(pieces(lines, 1_000, 2), all[all.len() - 2..]);
        assert!(pieces(vec!["字".repeat(1_000)], 1_000, 9)[0].len() <= 1_000);
    }
}
