//! Chat commands and stop words, in both languages. Pure.

use channel_api::{Inbound, QueueMode};

use crate::{approvals::Decision, lang::Lang, policy::Role, store::Footer};

/// A command of a person to the gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// What can be said here.
    Help,
    /// What is going on.
    Status,
    /// Who the gateway thinks the sender is.
    WhoAmI,
    /// A new conversation: a row of the queue, not answered at intake.
    New,
    /// Make room in the conversation: a row of the queue, not answered at intake. What is to be kept above all, in the
    /// person's words; empty = nothing special.
    Compact(String),
    /// What the model was sent last, by size.
    Context,
    /// Stop what runs and forget what waits.
    Stop,
    /// Stop every turn, sub-agent and background command of the gateway: the owners' alone.
    StopAll,
    /// The session's queue mode: show it, set it, or (`Some(None)`) go back to the channel's.
    Queue(Option<Option<QueueMode>>),
    /// The plan of the session's long task.
    Todo,
    /// A queue mode that does not exist.
    BadQueueMode(String),
    /// The session's model: a row of the queue, not answered at intake.
    Model(ModelWish),
    /// What models took and cost, or what stands below answers.
    Usage(UsageWish),
    /// Who waits to be let in, and the owner's decision.
    Pair(Pair),
    /// What waits for the owner's word, and the word.
    Approve(Word),
    /// Shuts a sender out: an id as it was written, or the sender of the message that this one answers.
    Block(Option<String>),
    /// Ends that.
    Unblock(Option<String>),
}

/// What `/model` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ModelWish {
    /// Which is it, and which are there?
    Show,
    /// Back to the agent's own.
    Default,
    /// This one, as it was written.
    Named(String),
}

/// What `/usage` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum UsageWish {
    /// What was used.
    Show,
    /// Put this below answers.
    Below(Footer),
    /// Something else.
    Unclear(String),
}

/// What `/approve` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// What waits?
    List,
    /// This, about the request of that id.
    Decide {
        /// The id as it was written.
        id: String,
        /// What.
        decision: Decision,
    },
    /// This, about the one request that was shown here.
    Answer(Decision),
    /// A plain answer, and it is not plain to what.
    Which,
    /// What was approved for good?
    Grants,
    /// Take this one of them back.
    Revoke(String),
    /// Something else.
    Unclear,
}

/// What `/pair` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pair {
    /// Who waits.
    List,
    /// Let them in.
    Approve {
        /// The code as it was written.
        code: String,
        /// The role, if one was named.
        role: Option<Role>,
    },
    /// Do not.
    Reject {
        /// The code as it was written.
        code: String,
    },
    /// Something else.
    Unclear,
}

impl Command {
    /// Whether it is a row of the queue that takes effect between the turns before and after it.
    pub fn waits_its_turn(&self) -> bool {
        matches!(self, Self::New | Self::Compact(_) | Self::Model(_))
    }

    /// Whether it is about who may write, or stops everything: the owners' alone.
    pub fn is_about_access(&self) -> bool {
        matches!(self, Self::Pair(_) | Self::Block(_) | Self::Unblock(_) | Self::StopAll | Self::Approve(_))
    }
}

/// The most bytes of a command: room for the longest id.
const MOST: usize = 320;
/// The most characters of what a summary is to keep.
const WORDS_CHARS: usize = 2_000;
/// Words that stop a turn when they are the whole message. A short list on purpose: each is an order and nothing else.
const STOP_WORDS: [&str; 12] =
    ["stop", "abort", "halt", "stop it", "stop now", "停", "停止", "停下", "停下来", "中止", "终止", "别做了"];

impl Command {
    /// The command a message is. In a group a message that does not address the bot is one only when it begins with `/`
    /// and names no bot: "停" is said to people there, and `/status@otherbot` to another bot.
    pub fn of(message: &Inbound) -> Option<(Self, Option<Lang>)> {
        let text = &message.text;
        if !message.addressed() && (!normalised(text).starts_with('/') || Self::names_a_bot(text)) {
            return None;
        }
        Self::parse(text)
    }

    /// Whether it looks like a command to a bot named in it, `/name@bot`.
    pub fn names_a_bot(text: &str) -> bool {
        let text = normalised(text);
        let name = text.strip_prefix('/').and_then(|rest| rest.split(char::is_whitespace).next());
        name.and_then(|name| name.split_once('@')).is_some_and(|(name, bot)| !name.is_empty() && !bot.is_empty())
    }

    /// The command a message is, with the language it was given in where its name tells. `/name@bot` is taken as
    /// `/name`; full-width `／` and letters work.
    pub fn parse(text: &str) -> Option<(Self, Option<Lang>)> {
        // What was cut names nobody.
        let whole = text.trim().len() <= MOST;
        let (written, folded) = (text, folded(text));
        let text = folded.to_lowercase();
        let bare = text.trim_end_matches(|c: char| c.is_ascii_punctuation() || "。！？…，、～".contains(c)).trim();
        if STOP_WORDS.contains(&bare) {
            return Some((Self::Stop, Lang::of_text(bare)));
        }
        let rest = text.strip_prefix('/')?;
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        let argument = argument.trim();
        let lang = match name.is_ascii() {
            true => None,
            false => Some(Lang::Zh),
        };
        let command = match name {
            "help" | "start" | "commands" | "帮助" | "命令" => Self::Help,
            "status" | "subagents" | "状态" | "子助手" => Self::Status,
            "whoami" | "id" | "我是谁" => Self::WhoAmI,
            // With words behind it, it is a message: they are not dropped.
            "new" | "新对话" | "新会话" if argument.is_empty() => Self::New,
            "compact" | "压缩" if !whole => Self::Compact(words_behind(written)),
            "compact" | "压缩" => Self::Compact(as_written(&folded).collect::<Vec<_>>().join(" ")),
            "context" | "上下文" => Self::Context,
            "stop" | "abort" | "停止" | "停" => match argument {
                "all" | "everything" | "全部" | "所有" => Self::StopAll,
                _ => Self::Stop,
            },
            "todo" | "plan" | "计划" | "待办" if argument.is_empty() => Self::Todo,
            "queue" | "队列" => match argument {
                "" => Self::Queue(None),
                "default" | "reset" | "默认" => Self::Queue(Some(None)),
                mode => match mode_named(mode) {
                    Some(mode) => Self::Queue(Some(Some(mode))),
                    None => Self::BadQueueMode(mode.chars().take(32).collect()),
                },
            },
            "model" | "models" | "模型" if whole => Self::Model(match (argument, as_written(&folded).next()) {
                ("default" | "reset" | "默认", _) => ModelWish::Default,
                (_, Some(name)) => ModelWish::Named(name.chars().take(64).collect()),
                (_, None) => ModelWish::Show,
            }),
            "usage" | "cost" | "用量" | "费用" => Self::Usage(match argument {
                "" => UsageWish::Show,
                "full" | "完整" => UsageWish::Below(Footer::Full),
                "tokens" | "token" => UsageWish::Below(Footer::Tokens),
                "off" | "关" | "关闭" => UsageWish::Below(Footer::Off),
                other => UsageWish::Unclear(other.chars().take(32).collect()),
            }),
            "pair" | "pairing" | "配对" if whole => Self::Pair(pair(as_written(&folded))),
            "approve" | "批准" if whole => Self::Approve(word(as_written(&folded))),
            "approvals" | "授权" if whole => Self::Approve(grants(as_written(&folded))),
            "block" | "拉黑" if whole => Self::Block(as_written(&folded).next().map(str::to_owned)),
            "unblock" | "解除拉黑" if whole => Self::Unblock(as_written(&folded).next().map(str::to_owned)),
            _ => return None,
        };
        Some((command, lang))
    }
}

/// The words behind the command's name, their case kept: ids differ by it.
fn as_written(folded: &str) -> impl Iterator<Item = &str> {
    folded.split_whitespace().skip(1)
}

fn pair<'a>(mut words: impl Iterator<Item = &'a str>) -> Pair {
    let Some(what) = words.next() else { return Pair::List };
    let (code, role, more) = (words.next().map(str::to_owned), words.next(), words.next());
    match (what.to_lowercase().as_str(), code, role.map(|name| Role::named(&name.to_lowercase())), more) {
        ("list" | "列表", None, None, None) => Pair::List,
        ("approve" | "批准" | "同意", Some(code), None, None) => Pair::Approve { code, role: None },
        ("approve" | "批准" | "同意", Some(code), Some(Some(role)), None) => {
            Pair::Approve { code, role: Some(role) }
        }
        ("reject" | "拒绝", Some(code), None, None) => Pair::Reject { code },
        _ => Pair::Unclear,
    }
}

fn word<'a>(mut words: impl Iterator<Item = &'a str>) -> Word {
    let Some(id) = words.next() else { return Word::List };
    match (words.next().map(|word| Decision::named(&word.to_lowercase())), words.next()) {
        (Some(Some(decision)), None) => Word::Decide { id: id.to_lowercase(), decision },
        _ => Word::Unclear,
    }
}

fn grants<'a>(mut words: impl Iterator<Item = &'a str>) -> Word {
    let Some(what) = words.next() else { return Word::Grants };
    match (what.to_lowercase().as_str(), words.next(), words.next()) {
        ("list" | "列表", None, None) => Word::Grants,
        ("revoke" | "收回" | "撤销", Some(id), None) => Word::Revoke(id.to_lowercase()),
        _ => Word::Unclear,
    }
}

fn mode_named(name: &str) -> Option<QueueMode> {
    match name {
        "合并" => Some(QueueMode::Collect),
        "逐条" => Some(QueueMode::Followup),
        "插入" | "queue" => Some(QueueMode::Steer),
        "打断" => Some(QueueMode::Interrupt),
        name => QueueMode::parse(name),
    }
}

/// [`folded`], in lower case.
fn normalised(text: &str) -> String {
    folded(text).to_lowercase()
}

/// Full-width forms made ordinary, invisible characters removed, outer white space cut.
/// What stands behind the command's name in a text too long to be folded, as it was written.
fn words_behind(text: &str) -> String {
    let words = text.trim().split_once(char::is_whitespace).map_or("", |(_, words)| words);
    words.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(WORDS_CHARS).collect()
}

fn folded(text: &str) -> String {
    use unicode_normalization::UnicodeNormalization;
    let text = text.trim();
    if text.len() > MOST {
        // No command is that long; the rest of a long message never matters here.
        return text.chars().take(64).collect();
    }
    text.nfkc()
        .filter(
            |c| !matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'),
        )
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_38_commands_in_both_languages_and_their_disguises() {
        let table = [
            ("/help", Some(Command::Help)),
            ("／ＨＥＬＰ", Some(Command::Help)),
            ("/help@crawfish_bot", Some(Command::Help)),
            ("/帮助", Some(Command::Help)),
            ("/状态", Some(Command::Status)),
            ("/新对话", Some(Command::New)),
            (" /Stop \n", Some(Command::Stop)),
            ("stop!", Some(Command::Stop)),
            ("停止。", Some(Command::Stop)),
            ("停\u{200b}", Some(Command::Stop)),
            ("/todo", Some(Command::Todo)),
            ("/计划", Some(Command::Todo)),
            ("/todo buy milk", None),
            ("/queue", Some(Command::Queue(None))),
            ("/queue steer", Some(Command::Queue(Some(Some(QueueMode::Steer))))),
            ("/队列 打断", Some(Command::Queue(Some(Some(QueueMode::Interrupt))))),
            ("/queue default", Some(Command::Queue(Some(None)))),
            ("/queue sideways", Some(Command::BadQueueMode("sideways".into()))),
            ("please stop the server", None),
            ("stop the server", None),
            ("停车场在哪里", None),
            ("/unknown", None),
            ("/ help", None),
            ("/new and tell me a story", None),
            ("", None),
            ("/", None),
            ("/pair", Some(Command::Pair(Pair::List))),
            ("/配对", Some(Command::Pair(Pair::List))),
            ("/pair approve abcd2345", Some(Command::Pair(Pair::Approve { code: "abcd2345".into(), role: None }))),
            (
                "／Pair Approve ABCD2345 Owner",
                Some(Command::Pair(Pair::Approve { code: "ABCD2345".into(), role: Some(Role::Owner) })),
            ),
            (
                "/配对 批准 ABCD2345 信任",
                Some(Command::Pair(Pair::Approve { code: "ABCD2345".into(), role: Some(Role::Trusted) })),
            ),
            ("/pair reject ABCD2345", Some(Command::Pair(Pair::Reject { code: "ABCD2345".into() }))),
            ("/pair approve ABCD2345 emperor", Some(Command::Pair(Pair::Unclear))),
            ("/pair approve", Some(Command::Pair(Pair::Unclear))),
            ("/pair ABCD2345", Some(Command::Pair(Pair::Unclear))),
            ("/block", Some(Command::Block(None))),
            ("/block@crawfish_bot ou_AbC", Some(Command::Block(Some("ou_AbC".into())))),
            ("/拉黑 123", Some(Command::Block(Some("123".into())))),
            ("/解除拉黑 123", Some(Command::Unblock(Some("123".into())))),
            ("/approve", Some(Command::Approve(Word::List))),
            (
                "/Approve AB23cd Always",
                Some(Command::Approve(Word::Decide { id: "ab23cd".into(), decision: Decision::Always })),
            ),
            (
                "/批准 ab23cd 一次",
                Some(Command::Approve(Word::Decide { id: "ab23cd".into(), decision: Decision::Once })),
            ),
            (
                "/批准 ab23cd 拒绝",
                Some(Command::Approve(Word::Decide { id: "ab23cd".into(), decision: Decision::Deny })),
            ),
            ("/approve ab23cd", Some(Command::Approve(Word::Unclear))),
            ("/approvals", Some(Command::Approve(Word::Grants))),
            ("/授权 收回 AB23cd", Some(Command::Approve(Word::Revoke("ab23cd".into())))),
            ("/approvals revoke", Some(Command::Approve(Word::Unclear))),
            ("/approve ab23cd once please", Some(Command::Approve(Word::Unclear))),
            ("/blocked", None),
            ("/stop", Some(Command::Stop)),
            ("/stop all", Some(Command::StopAll)),
            ("／停止 全部", Some(Command::StopAll)),
            ("/stop now please", Some(Command::Stop)),
            ("/model", Some(Command::Model(ModelWish::Show))),
            ("/模型 默认", Some(Command::Model(ModelWish::Default))),
            ("/model Qwen-Max", Some(Command::Model(ModelWish::Named("Qwen-Max".into())))),
            ("/usage", Some(Command::Usage(UsageWish::Show))),
            ("/用量 完整", Some(Command::Usage(UsageWish::Below(Footer::Full)))),
            ("/usage off", Some(Command::Usage(UsageWish::Below(Footer::Off)))),
            ("/usage sideways", Some(Command::Usage(UsageWish::Unclear("sideways".into())))),
        ];
        let words = "keep the address ".repeat(40);
        let long = Command::parse(&format!("/compact {words}")).map(|(command, _)| command);
        assert_eq!(long, Some(Command::Compact(words.trim().to_owned())), "long words are not cut");
        for (text, expected) in table {
            assert_eq!(Command::parse(text).map(|(command, _)| command), expected, "{text:?}");
        }
        assert_eq!(Command::parse("/停止").and_then(|(_, lang)| lang), Some(Lang::Zh));
        let long = format!("/block {}", "x".repeat(400));
        assert_eq!(Command::parse(&long), None, "a cut id is nobody's");
        let long = format!("/help {}", "x".repeat(100_000));
        assert_eq!(Command::parse(&long).map(|(command, _)| command), Some(Command::Help));
    }
}
