//! A look at an account: what stands between the console of q.qq.com and the first answer. Changes nothing there.

use channel_api::{Finding, Said};
use http::Method;
use serde_json::Value;

use crate::{
    Bot,
    api::{ApiError, Payload, TIMEOUT},
    config::Mode,
    receive::Me,
};

/// One finding for the secret, the gateway, the bot, and each click that cannot be seen from here.
pub async fn probe(bot: &Bot, mode: Mode, sandbox: bool) -> Vec<Finding> {
    if let Err(error) = bot.api.token(None).await {
        return vec![failed("token", &error)];
    }
    let mut found = vec![Finding::fine("token", "QQ accepts app_id and app_secret", "QQ 接受 app_id 和 app_secret")];
    match Me::default().ask(&bot.api).await {
        Ok(me) => {
            let name = me.get("username").and_then(Value::as_str).unwrap_or("?");
            found.push(Finding::fine("bot", format!("the bot is {name}"), format!("机器人是 {name}")));
        }
        Err(error) => found.push(failed("bot", &error)),
    }
    if mode == Mode::Ws {
        found.push(gateway(bot).await);
    }
    found.push(events(mode, bot.id.account()));
    found.push(match sandbox {
        true => Finding::warning(
            "sandbox",
            Said::new(
                "sandbox = true: only the test group, test channel and test people of the console reach this bot",
                "sandbox = true：只有管理端里配置的沙箱群、频道和成员能用这个机器人",
            ),
            Said::new(
                "when the bot is published, remove `sandbox` from its section",
                "机器人上线后，从配置里删掉 `sandbox`",
            ),
        ),
        false => Finding::unknown(
            "published",
            Said::new(
                "whether the bot is published cannot be seen from here; until then only its test group and test people \
                 reach it",
                "从这里看不出机器人是否已上线；上线前只有沙箱群和沙箱成员能用它",
            ),
            Said::new(
                "q.qq.com → your bot → \"沙箱配置\" adds a test group and test people; \"发布\" → \"提审与发布\" publishes it",
                "在 q.qq.com → 你的机器人 →「沙箱配置」添加测试群和成员；「发布」→「提审与发布」上线",
            ),
        ),
    });
    found
}

async fn gateway(bot: &Bot) -> Finding {
    let answer = match bot.api.call(Method::GET, &["gateway", "bot"], Payload::None, TIMEOUT).await {
        Ok(answer) => answer,
        Err(error) => return failed("gateway", &error),
    };
    let limit = |key: &str| answer.pointer(&format!("/session_start_limit/{key}")).and_then(Value::as_i64);
    match (limit("remaining"), limit("total")) {
        (Some(left), _) if left <= 0 => Finding::warning(
            "gateway",
            Said::new("no new session may be begun today", "今天不能再建立新的会话"),
            Said::new(
                "wait until tomorrow, and look for a second program that connects with this bot over and over",
                "等到明天，并检查是否有另一个程序用这个机器人反复连接",
            ),
        ),
        (Some(left), total) => {
            let total = total.unwrap_or(left);
            Finding::fine(
                "gateway",
                format!("the WebSocket gateway is open; {left} of {total} new sessions are left today"),
                format!("WebSocket 网关可用；今天还能新建 {left}/{total} 个会话"),
            )
        }
        _ => Finding::fine("gateway", "the WebSocket gateway is open", "WebSocket 网关可用"),
    }
}

fn events(mode: Mode, account: &str) -> Finding {
    match mode {
        Mode::Ws => Finding::unknown(
            "intents",
            Said::new(
                "which events this bot may have shows only when it connects; what is refused is given up with one \
                 line in the log",
                "能订阅哪些事件要连接后才知道；被拒绝的会自动放弃，并在日志里留一行",
            ),
            Said::new(
                "q.qq.com → your bot → \"开发\" → \"功能配置\": switch on QQ groups, private chats (消息列表) and channels",
                "q.qq.com → 你的机器人 →「开发」→「功能配置」：打开 QQ 群、消息列表（单聊）和频道",
            ),
        ),
        Mode::Webhook => Finding::unknown(
            "callback",
            Said::new(
                "whether QQ posts to this gateway cannot be seen from here",
                "从这里看不出 QQ 是否会把事件发到本网关",
            ),
            Said::new(
                format!(
                    "q.qq.com → \"开发\" → \"回调配置\": enter https://<your address>/channels/qq/{account} (port 443, 80, \
                     8080 or 8443), save, and tick the events of private chats, groups and channels"
                ),
                format!(
                    "q.qq.com →「开发」→「回调配置」：填入 https://<你的地址>/channels/qq/{account}（端口 443、80、8080 或 \
                     8443），保存后勾选单聊、群聊和频道事件"
                ),
            ),
        ),
    }
}

fn failed(name: &str, error: &ApiError) -> Finding {
    match error {
        ApiError::Credentials(said) => Finding::wrong(
            name,
            Said::new(
                format!("QQ does not accept app_id and app_secret: {said}"),
                format!("QQ 不接受 app_id 和 app_secret：{said}"),
            ),
            Said::new(
                "copy AppID from q.qq.com → \"开发\" → \"开发设置\" and reset AppSecret there; it is shown once",
                "在 q.qq.com →「开发」→「开发设置」复制 AppID，并重置 AppSecret（只显示一次）",
            ),
        ),
        ApiError::NotListed(said) => Finding::wrong(
            name,
            Said::new(
                format!("this machine's address is not on the bot's IP list: {said}"),
                format!("本机的公网 IP 不在机器人的 IP 白名单里：{said}"),
            ),
            Said::new(
                "q.qq.com → \"开发\" → \"开发设置\" → \"IP白名单\": add this machine's public address",
                "q.qq.com →「开发」→「开发设置」→「IP白名单」：加入本机的公网 IP",
            ),
        ),
        ApiError::Wait(pause) => Finding::unknown(
            name,
            Said::new(format!("QQ asks to wait {} s", pause.as_secs()), format!("QQ 要求等待 {} 秒", pause.as_secs())),
            Said::new("ask again after that", "过后再试"),
        ),
        ApiError::Refused { .. } => Finding::wrong(
            name,
            Said::new(format!("QQ refuses: {error}"), format!("QQ 拒绝：{error}")),
            Said::new(
                "look at the state of the bot at q.qq.com: it may be offline, banned or under review",
                "到 q.qq.com 查看机器人状态：可能已下线、被封禁或正在审核",
            ),
        ),
        ApiError::NotSent(_) | ApiError::Unknown(_) | ApiError::Broken(_) => Finding::unknown(
            name,
            Said::new(format!("QQ could not be asked: {error}"), format!("无法询问 QQ：{error}")),
            Said::new(
                "check the network of this machine, and `proxy`, `api_url` and `token_url` of the section",
                "检查本机网络，以及配置中的 `proxy`、`api_url`、`token_url`",
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_to_enter_names_the_account() {
        let fix = events(Mode::Webhook, "work").fix.expect("a fix");
        assert!(fix.en.contains("/channels/qq/work") && fix.zh.contains("/channels/qq/work"), "{fix:?}");
    }
}
