//! The slash commands that Discord's clients offer, in both languages.

use serde_json::{Value, json};

/// Name, English, Chinese. Each is a command that the gateway obeys.
pub const COMMANDS: [(&str, &str, &str); 8] = [
    ("help", "What can be said here", "可以说些什么"),
    ("new", "Begin a new conversation", "开始新对话"),
    ("stop", "Stop what is running and forget what waits", "停止正在做的，清空排队的"),
    ("status", "What is going on", "现在的状态"),
    ("queue", "What happens to messages sent meanwhile", "忙的时候收到的消息怎么处理"),
    ("usage", "What models took and cost", "模型的用量和费用"),
    ("model", "Which model answers here", "这里由哪个模型回答"),
    ("whoami", "Who the bot thinks you are", "机器人眼里你是谁"),
];

/// What follows a command's name, for those that take something.
const ARGUMENT: [(&str, &str, &str, &str); 3] = [
    ("queue", "mode", "collect, followup, steer or interrupt", "collect、followup、steer 或 interrupt"),
    ("usage", "below", "full, tokens or off: what stands below answers", "full、tokens 或 off：回答下方显示什么"),
    ("model", "name", "a model of the configuration, or default", "配置中的模型名称，或 default"),
];

/// The whole list as Discord takes it, e.g. for `PUT /applications/{id}/commands`.
pub fn payload() -> Value {
    let command = |(name, english, chinese): (&str, &str, &str)| {
        let options: Vec<Value> = ARGUMENT
            .iter()
            .filter(|(of, ..)| *of == name)
            .map(|(_, option, english, chinese)| {
                json!({
                    "type": 3, "name": option, "required": false,
                    "description": english, "description_localizations": {"zh-CN": chinese, "zh-TW": chinese},
                })
            })
            .collect();
        json!({
            "type": 1, "name": name, "description": english,
            "description_localizations": {"zh-CN": chinese, "zh-TW": chinese},
            "options": options,
        })
    };
    COMMANDS.map(command).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_descriptions_fit_discord() {
        let all = payload();
        let all = all.as_array().expect("a list");
        assert_eq!(all.len(), COMMANDS.len());
        for command in all {
            let name = command["name"].as_str().expect("a name");
            assert!((1..=32).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_lowercase()), "{name}");
            for text in [&command["description"], &command["description_localizations"]["zh-CN"]] {
                assert!((1..=100).contains(&text.as_str().expect("a text").chars().count()), "{text}");
            }
        }
    }
}
