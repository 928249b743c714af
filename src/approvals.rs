//! Approvals: a call that the policy does not decide alone waits until an owner has said yes or no.
//!
//! An approval is a row, bound to one call of one turn, its exact arguments, the folder and the file of the program, and is
//! used once. The turn that asks is parked; no answer is a no. The text that people see is ours, never the model's.

use std::{collections::BTreeMap, fmt::Write as _, sync::Arc};

use async_trait::async_trait;
use channel_api::{Button, Level, Reply, ReplyKind, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{
    audit,
    channels::Channels,
    chats::Chats,
    lang::{self, Lang},
    outbox::{self, LaneWakeUp},
    policy::{AskWhy, Role},
    schedule::when::Span,
    session::SessionKey,
    store::{EventRow, LaneKey, Lease, NewPart, StepRecord, StoreError},
    tools::{Bound, Call},
    untrusted,
};

/// The most characters of arguments in a request; what is longer is shown as its head and its tail.
const SHOWN_CHARS: usize = 2_400;

/// `[approvals]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalsConfig {
    /// How long a request waits for an answer; no answer is a no.
    pub expires: Span,
}

impl Default for ApprovalsConfig {
    fn default() -> Self {
        Self { expires: Span::minutes(5) }
    }
}

/// What an owner is asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// Short, for typing.
    pub id: String,
    /// How far it is.
    pub state: State,
    /// Whose turn asks.
    pub session: SessionKey,
    /// The turn.
    pub turn: TurnId,
    /// The call.
    pub call_id: String,
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// Its arguments, as they will be used.
    pub args: Value,
    /// The folder it works in.
    pub folder: Option<String>,
    /// The program it runs.
    pub program: Option<String>,
    /// Of the tool, the arguments, the folder and the program's file.
    pub digest: String,
    /// For whom: channel and sender id.
    pub asker: String,
    /// Their name, as their platform tells it.
    pub asker_name: Option<String>,
    /// The session of the chat in which the owner was asked.
    pub shown_in: Option<SessionKey>,
    /// Why it is asked for.
    pub why: AskWhy,
    /// It can be approved for good.
    pub may_always: bool,
    /// When it was asked.
    pub created_at: i64,
    /// Until when it can be answered.
    pub expires_at: i64,
    /// Who decided, and when.
    pub decided_by: Option<String>,
    /// When.
    pub decided_at: Option<i64>,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nobody has answered.
    Pending,
    /// Yes, and not used yet.
    Approved,
    /// No.
    Denied,
    /// Nobody answered in time, or its turn is over.
    Expired,
    /// Yes, and the call was started.
    Used,
}

impl State {
    /// Its name in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Used => "used",
        }
    }

    /// The state of that name; what is unknown is over.
    pub fn parse(name: &str) -> Self {
        match name {
            "pending" => Self::Pending,
            "approved" => Self::Approved,
            "denied" => Self::Denied,
            "used" => Self::Used,
            _ => Self::Expired,
        }
    }
}

/// What an owner says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// This call.
    Once,
    /// This call, and the same again for the same asker.
    Always,
    /// No.
    Deny,
}

impl Decision {
    /// The decision of that word, in either language.
    pub fn named(word: &str) -> Option<Self> {
        match word {
            "once" | "yes" | "y" | "一次" | "同意" => Some(Self::Once),
            "always" | "总是" | "始终" => Some(Self::Always),
            "deny" | "no" | "n" | "拒绝" => Some(Self::Deny),
            _ => None,
        }
    }

    /// The decision that a whole plain answer is.
    pub fn answered(text: &str) -> Option<Self> {
        let word = text.trim().trim_end_matches(['.', '!', '。', '！']).to_lowercase();
        match word.as_str() {
            "y" | "yes" | "同意" | "是" => Some(Self::Once),
            "n" | "no" | "拒绝" | "不" => Some(Self::Deny),
            _ => None,
        }
    }

    /// Its word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Once => "once",
            Self::Always => "always",
            Self::Deny => "deny",
        }
    }
}

/// Whose decision it is, and by which way it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct By {
    /// Channel and sender id (`telegram:main 42`), or [`audit::CONSOLE`]: whoever holds the gateway's token.
    pub who: String,
    /// How.
    pub how: How,
}

impl By {
    /// Whoever holds the gateway's token.
    pub fn token(how: How) -> Self {
        Self { who: audit::CONSOLE.to_owned(), how }
    }
}

/// By which way a decision came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// A button below the request.
    Button,
    /// `/approve`, written.
    Command,
    /// `y`, `n` and their like.
    Answer,
    /// `crawfish approvals`.
    CommandLine,
    /// At the prompt of `crawfish chat`.
    Chat,
    /// Over HTTP.
    #[default]
    Api,
}

impl How {
    /// Its name in rows.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Button => "button",
            Self::Command => "command",
            Self::Answer => "answer",
            Self::CommandLine => "command_line",
            Self::Chat => "chat",
            Self::Api => "api",
        }
    }
}

/// What was approved for good: exactly this, for exactly this person.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Always {
    /// Short, for typing.
    pub id: String,
    /// The agent.
    pub agent: String,
    /// For whom: channel and sender id.
    pub asker: String,
    /// The tool.
    pub tool: String,
    /// Of the tool, the arguments, the folder and the program's file.
    pub digest: String,
    /// The request that it was given to, where that is known: its arguments, its folder, its program.
    pub request: Option<Approval>,
    /// When, epoch milliseconds.
    pub created_at: i64,
}

impl Always {
    /// What is let through, made visible, in one line.
    pub fn what(&self) -> String {
        self.request.as_ref().map_or_else(|| self.digest.clone(), |request| request.what().replace('\n', " "))
    }
}

/// A request to be stored.
#[derive(Clone, Debug)]
pub struct NewApproval {
    /// The row.
    pub row: Approval,
    /// The last message of the conversation that the turn began with.
    pub upto: i64,
    /// The words to the owner.
    pub parts: Vec<NewPart>,
    /// An owner can be asked.
    pub reachable: bool,
    /// What watchers are shown.
    pub text: String,
    /// How long an unused yes holds, in milliseconds.
    pub holds_ms: i64,
    /// Now.
    pub now: i64,
}

/// What became of a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// It waits for an answer until then.
    Waits {
        /// The request.
        id: String,
        /// When it ends.
        until: i64,
        /// Lanes to wake.
        lanes: Vec<LaneKey>,
        /// The rows written for watchers.
        events: Vec<EventRow>,
    },
    /// Yes: to be used with [`ApprovalStore::start_approved`].
    Approved(String),
    /// It was approved for good.
    Always,
    /// No.
    Denied,
    /// Nobody answered in time.
    Expired,
    /// There is nobody to be asked.
    Nobody,
}

/// What became of a decision.
#[derive(Clone, Debug, PartialEq)]
pub enum Decided {
    /// It was made now.
    Done(Approval),
    /// It is over: as it was decided before, or ended.
    Over(Approval),
}

/// Where approvals are kept.
#[async_trait]
pub trait ApprovalStore: Send + Sync + 'static {
    /// Asks, once for a call: a second question of the same call finds the first. The same again in one turn after a no is a
    /// no. `Fenced` when the turn is not ours any more.
    async fn ask(&self, lease: &Lease, new: NewApproval) -> Result<Asked, StoreError>;

    /// Decides, and ends the parking of the turn that waits. `NotFound`: no such request.
    async fn decide_approval(&self, id: &str, decision: Decision, by: &By, now: i64) -> Result<Decided, StoreError>;

    /// Uses a yes and records these steps as started, together. `Fenced` when the turn is not ours any more, `NotFound` when
    /// there is no yes to use: nothing is recorded then.
    async fn start_approved(
        &self,
        lease: &Lease,
        id: &str,
        digest: &str,
        steps: Vec<StepRecord>,
        now: i64,
    ) -> Result<Vec<EventRow>, StoreError>;

    /// What nobody answered in time is over, and the audit log says so; how many.
    async fn expire_approvals(&self, now: i64) -> Result<u64, StoreError>;

    /// What was approved for good, newest first.
    async fn always(&self, limit: u32) -> Result<Vec<Always>, StoreError>;

    /// Takes one of them back: from now on it is asked for again. `NotFound`: there is none of that id.
    async fn revoke_always(&self, id: &str, by: &By, now: i64) -> Result<Always, StoreError>;

    /// Requests, newest first; those that wait alone unless `all`.
    async fn approvals(&self, all: bool, limit: u32, now: i64) -> Result<Vec<Approval>, StoreError>;

    /// One request.
    async fn approval(&self, id: &str) -> Result<Option<Approval>, StoreError>;

    /// The last message that an owner's yes in this session stands behind; 0 = none.
    async fn confirmed(&self, session: &SessionKey) -> Result<i64, StoreError>;
}

/// What asking stands on. Cheap to clone.
#[derive(Clone)]
pub struct Approvals {
    /// The rows.
    pub rows: Arc<dyn ApprovalStore>,
    /// Where the owner can be asked.
    pub chats: Chats,
    /// Whose renderers are used.
    pub channels: Channels,
    /// Wakes delivery.
    pub lanes: LaneWakeUp,
    /// The settings.
    pub config: ApprovalsConfig,
}

/// A call that needs a word.
pub struct Question<'a> {
    /// For whom it runs.
    pub call: &'a Call,
    /// The tool.
    pub tool: &'a str,
    /// Its arguments.
    pub args: &'a Value,
    /// What else it is bound to.
    pub bound: Bound,
    /// Why.
    pub why: AskWhy,
    /// The last message of the conversation that the turn began with.
    pub upto: i64,
    /// Now.
    pub now: i64,
}

impl Approvals {
    /// Asks the owner.
    ///
    /// # Errors
    /// Those of the store.
    pub async fn ask(&self, lease: &Lease, question: Question<'_>) -> Result<Asked, StoreError> {
        let Question { call, tool, args, bound, why, upto, now } = question;
        let inbound = &call.inbound;
        let digest = digest(tool, args, &bound);
        let own = call.asker.role == Role::Owner && call.asker.direct;
        let web = matches!(inbound.address.channel.kind(), "web" | "console");
        // Where it is asked: with the asker when that is the owner, or else where the owner wrote last.
        let (shown_in, to) = match own {
            true => {
                // Not always the session of the turn: a sub-agent's asks in its parent's chat, where the answer is written.
                let entry = self.channels.get(&inbound.address.channel);
                let chat = entry.map_or_else(|| call.session.clone(), |entry| entry.session_of(inbound));
                (Some(chat), (!web).then(|| inbound.address.clone()))
            }
            false => {
                let chat = self.chats.owner(&call.agent).await?;
                let is_web = |channel: &channel_api::ChannelId| matches!(channel.kind(), "web" | "console");
                (
                    chat.as_ref().map(|chat| chat.session.clone()),
                    chat.map(|chat| chat.place.address).filter(|address| !is_web(&address.channel)),
                )
            }
        };
        let row = Approval {
            id: new_id(),
            state: State::Pending,
            session: call.session.clone(),
            turn: call.turn.clone(),
            call_id: call.call_id.clone(),
            agent: call.agent.clone(),
            tool: tool.to_owned(),
            args: args.clone(),
            folder: bound.folder,
            program: bound.program.map(|(program, _)| program),
            digest,
            asker: format!("{}:{}", inbound.channel, inbound.sender.id),
            asker_name: inbound.sender.name.clone(),
            shown_in: shown_in.clone(),
            why,
            may_always: !bound.once_only,
            created_at: now,
            expires_at: now + self.config.expires.ms(),
            decided_by: None,
            decided_at: None,
        };
        let text = row.request(call.lang);
        let elsewhere = to.clone();
        let mut parts = Vec::new();
        if let Some((to, entry)) = to.and_then(|to| Some((to.clone(), self.channels.get(&to.channel)?))) {
            let reply =
                Reply { kind: ReplyKind::Notice, buttons: row.buttons(call.lang), ..Reply::message(text.clone()) };
            let to = entry.channel.unprompted(&to);
            parts = outbox::rows(entry.channel.as_ref(), &reply, Level::Rich, &to, None, now);
        }
        // On the web nothing is sent: it is listed, and events tell of it.
        let reachable = shown_in.is_some() && (elsewhere.is_none() || !parts.is_empty());
        let holds_ms = self.config.expires.ms();
        let asked = self.rows.ask(lease, NewApproval { row, upto, parts, reachable, text, holds_ms, now }).await?;
        if let Asked::Waits { lanes, .. } = &asked
            && !lanes.is_empty()
        {
            self.lanes.wake(lanes.clone());
        }
        Ok(asked)
    }
}

/// What an approval stands for, in one number.
pub fn digest(tool: &str, args: &Value, bound: &Bound) -> String {
    // Keys in order, so that the same arguments are the same.
    let sorted: BTreeMap<&str, &Value> =
        args.as_object().into_iter().flatten().map(|(key, value)| (key.as_str(), value)).collect();
    let all = serde_json::json!([tool, sorted, bound.folder, bound.program]).to_string();
    Sha256::digest(all).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

/// Six letters and digits that are not taken for one another: a billion of them, of which a handful wait.
fn new_id() -> String {
    const LETTERS: &[u8; 32] = b"23456789abcdefghjkmnpqrstuvwxyz0";
    let random = ulid::Ulid::generate().random();
    (0..6).map(|n| char::from(LETTERS[((random >> (5 * n)) & 31) as usize])).collect()
}

/// Text in which nothing hides: what shows nothing, turns text or passes for a space is written as its number.
pub fn visible(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        let joiner = matches!(c, '\u{200b}'..='\u{200f}' | '\u{fe00}'..='\u{fe0f}');
        let odd_space = c.is_whitespace() && !matches!(c, ' ' | '\n' | '\t');
        if untrusted::is_hidden(c) || joiner || odd_space {
            let _ = write!(shown, "[U+{:04X}]", u32::from(c));
        } else {
            shown.push(c);
        }
    }
    shown
}

impl Approval {
    /// What is to be done, whole: the arguments as they are, made visible.
    pub fn what(&self) -> String {
        let mut lines = Vec::new();
        for (key, value) in self.args.as_object().into_iter().flatten() {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            // A command stands alone, so that nothing of it is taken for ours.
            match key == "command" {
                true => lines.insert(0, visible(&value)),
                false => lines.push(format!("{}: {}", visible(key), visible(&value))),
            }
        }
        lines.join("\n")
    }

    /// The words to the owner.
    pub fn request(&self, lang: Lang) -> String {
        let what = self.what();
        let chars = what.chars().count();
        let what = if chars <= SHOWN_CHARS {
            what
        } else {
            let head: String = what.chars().take(SHOWN_CHARS * 2 / 3).collect();
            let tail: String = what.chars().skip(chars - SHOWN_CHARS / 3).collect();
            let left_out = lang::approval_cut(lang, chars - SHOWN_CHARS / 3 - SHOWN_CHARS * 2 / 3, &self.id);
            format!("{head}\n{left_out}\n{tail}")
        };
        // A fence that nothing inside can end.
        let longest = what.split(|c| c != '`').map(str::len).max().unwrap_or(0);
        let fence = "`".repeat((longest + 1).max(3));
        let one_line = |text: &str| visible(text).replace(['\n', '\t', '`', '*', '_', '[', ']'], " ");
        let who = match &self.asker_name {
            Some(name) => format!("{} ({})", one_line(&name.chars().take(64).collect::<String>()), self.asker),
            None => self.asker.clone(),
        };
        let mut text = lang::approval_title(lang, &self.tool);
        let _ = write!(text, "\n{fence}\n{what}\n{fence}");
        if let Some(folder) = &self.folder {
            let _ = write!(text, "\n{}", lang::approval_folder(lang, visible(folder)));
        }
        let why = match self.why {
            AskWhy::Outside => lang::approval_why_outside(lang),
            AskWhy::Always => lang::approval_why_always(lang),
        };
        let minutes = (self.expires_at - self.created_at).div_euclid(60_000).max(1);
        let _ = write!(
            text,
            "\n{}\n{}\n{}",
            lang::approval_for(lang, who),
            why,
            lang::approval_how(lang, &self.id, minutes)
        );
        text
    }

    /// What can be pressed below the request.
    pub fn buttons(&self, lang: Lang) -> Vec<Vec<Button>> {
        let button = |label: String, word: &str| Button { label, data: format!("/approve {} {word}", self.id) };
        let mut row = vec![button(lang::approval_button_once(lang), "once")];
        if self.may_always {
            row.push(button(lang::approval_button_always(lang), "always"));
        }
        row.push(button(lang::approval_button_deny(lang), "deny"));
        vec![row]
    }

    /// What was decided, in a line.
    pub fn outcome(&self, lang: Lang) -> String {
        match self.state {
            State::Pending => lang::approval_waits(lang, &self.id),
            State::Approved | State::Used => lang::approval_yes(lang, &self.id, &self.tool),
            State::Denied => lang::approval_no(lang, &self.id, &self.tool),
            State::Expired => lang::approval_over(lang, &self.id),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_hides_is_shown_as_its_number() {
        assert_eq!(
            visible("rm \u{202e}txt.sh\u{200b}\u{a0}x\u{1b}[2K"),
            "rm [U+202E]txt.sh[U+200B][U+00A0]x[U+001B][2K"
        );
        assert_eq!(visible("echo 'héllo 你好 👍'\n\tnext"), "echo 'héllo 你好 👍'\n\tnext");
    }

    #[test]
    fn a_word_is_bound_to_exactly_what_was_shown() {
        let bound =
            Bound { folder: Some("/w".into()), program: Some(("/bin/x".into(), "aa".into())), once_only: false };
        let one = digest("t", &json!({"a": 1, "b": 2}), &bound);
        assert_eq!(one, digest("t", &json!({"b": 2, "a": 1}), &bound));
        let others = [
            digest("u", &json!({"a": 1, "b": 2}), &bound),
            digest("t", &json!({"a": 1, "b": 3}), &bound),
            digest("t", &json!({"a": 1, "b": 2}), &Bound { folder: Some("/v".into()), ..bound.clone() }),
            digest(
                "t",
                &json!({"a": 1, "b": 2}),
                &Bound { program: Some(("/bin/x".into(), "ab".into())), ..bound.clone() },
            ),
        ];
        assert!(others.iter().all(|other| *other != one));
    }

    #[test]
    fn only_a_whole_plain_answer_is_one() {
        for (text, decision) in [
            ("y", Some(Decision::Once)),
            (" Yes! ", Some(Decision::Once)),
            ("同意", Some(Decision::Once)),
            ("拒绝。", Some(Decision::Deny)),
            ("no", Some(Decision::Deny)),
            ("yes please tell me more", None),
            ("always", None),
            ("", None),
        ] {
            assert_eq!(Decision::answered(text), decision, "{text}");
        }
    }
}
