//! The commands that Telegram's clients offer, in both languages.

use teloxide::{payloads::SetMyCommands, types::BotCommand};

use crate::api::{Api, ApiError};

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

/// Whether a bare `/name` is one of ours.
pub fn has(name: &str) -> bool {
    COMMANDS.iter().any(|(ours, ..)| ours.eq_ignore_ascii_case(name))
}

/// Tells Telegram the commands: once for all languages, once for Chinese.
pub async fn publish(api: &Api) -> Result<(), ApiError> {
    for language in [None, Some("zh")] {
        let commands = COMMANDS
            .map(|(name, english, chinese)| BotCommand::new(name, if language.is_some() { chinese } else { english }));
        let mut payload = SetMyCommands::new(commands);
        payload.language_code = language.map(str::to_owned);
        let _: bool = api.call("setMyCommands", &payload).await?;
    }
    Ok(())
}
