//! Chat commands and stop words, in both languages. Pure.

use channel_api::{Inbound, QueueMode};

use crate::lang::Lang;

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
    /// Stop what runs and forget what waits.
    Stop,
    /// The session's queue mode: show it, set it, or (`Some(None)`) go back to the channel's.
    Queue(Option<Option<QueueMode>>),
    /// A queue mode that does not exist.
    BadQueueMode(String),
}

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
        let text = normalised(text);
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
            "status" | "状态" => Self::Status,
            "whoami" | "id" | "我是谁" => Self::WhoAmI,
            // With words behind it, it is a message: they are not dropped.
            "new" | "新对话" | "新会话" if argument.is_empty() => Self::New,
            "stop" | "abort" | "停止" | "停" => Self::Stop,
            "queue" | "队列" => match argument {
                "" => Self::Queue(None),
                "default" | "reset" | "默认" => Self::Queue(Some(None)),
                mode => match mode_named(mode) {
                    Some(mode) => Self::Queue(Some(Some(mode))),
                    None => Self::BadQueueMode(mode.chars().take(32).collect()),
                },
            },
            _ => return None,
        };
        Some((command, lang))
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

/// Lower case, full-width forms made ordinary, invisible characters removed, outer white space cut.
fn normalised(text: &str) -> String {
    use unicode_normalization::UnicodeNormalization;
    let text = text.trim();
    if text.len() > 256 {
        // No command is that long; the rest of a long message never matters here.
        return text.chars().take(64).collect();
    }
    text.nfkc()
        .filter(
            |c| !matches!(c, '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'),
        )
        .flat_map(char::to_lowercase)
        .collect::<String>()
        .trim()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_in_both_languages_and_their_disguises() {
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
        ];
        for (text, expected) in table {
            assert_eq!(Command::parse(text).map(|(command, _)| command), expected, "{text:?}");
        }
        assert_eq!(Command::parse("/停止").and_then(|(_, lang)| lang), Some(Lang::Zh));
        let long = format!("/help {}", "x".repeat(100_000));
        assert_eq!(Command::parse(&long).map(|(command, _)| command), Some(Command::Help));
    }
}
