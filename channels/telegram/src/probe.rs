//! What stands between a new bot and its first answer: token, webhook, groups, privacy mode. Asks only, changes nothing.

use channel_api::{Finding, Said};
use serde_json::{Value, json};

use crate::{
    api::{Api, ApiError},
    webhook::{self, Webhook},
};

/// The findings for one bot.
pub async fn probe(api: &Api, webhook: Option<&Webhook>) -> Vec<Finding> {
    let me: Value = match api.call("getMe", &json!({})).await {
        Ok(me) => me,
        Err(error) => return vec![unreachable(&error)],
    };
    let is = |key: &str| me.get(key).and_then(Value::as_bool);
    let name = me.get("username").and_then(Value::as_str).unwrap_or("?");
    let mut findings = vec![Finding::fine(
        "token",
        format!("Telegram knows the bot as @{name}"),
        format!("Telegram 认识这个机器人：@{name}"),
    )];
    findings.push(match is("can_join_groups") {
        Some(false) => Finding::warning(
            "groups",
            Said::new("The bot cannot be added to groups.", "这个机器人不能被加入群。"),
            Said::new(
                "For groups: @BotFather → /setjoingroups → the bot → Enable",
                "要在群里用：@BotFather → /setjoingroups → 选机器人 → Enable",
            ),
        ),
        _ => Finding::fine("groups", "The bot can be added to groups", "可以把机器人加入群"),
    });
    findings.push(match is("can_read_all_group_messages") {
        Some(true) => Finding::fine("privacy", "In groups it sees every message", "在群里能看到所有消息"),
        _ => Finding::warning(
            "privacy",
            Said::new(
                "Privacy mode is on: in groups Telegram shows the bot only what is said to it.",
                "隐私模式开着：在群里，Telegram 只把对机器人说的话给它看。",
            ),
            Said::new(
                "If it is to follow the talk: @BotFather → /setprivacy → the bot → Disable, then remove it from the group \
                 and add it again",
                "要让它听到全部对话：@BotFather → /setprivacy → 选机器人 → Disable，然后把它移出群再重新加入",
            ),
        ),
    });
    findings.push(match api.call::<_, Value>("getWebhookInfo", &json!({})).await {
        Ok(info) => webhook_finding(&info, webhook),
        Err(error) => Finding::unknown(
            "webhook",
            Said::new(format!("The webhook could not be asked for: {error}"), format!("查不到 Webhook：{error}")),
            Said::new("Try again later.", "稍后再试。"),
        ),
    });
    findings
}

fn webhook_finding(info: &Value, wanted: Option<&Webhook>) -> Finding {
    let url = info.get("url").and_then(Value::as_str).unwrap_or_default();
    let waiting = info.get("pending_update_count").and_then(Value::as_i64).unwrap_or_default();
    let Some(wanted) = wanted else {
        return match url {
            "" => Finding::fine("webhook", "No webhook stands in the way of polling", "没有 Webhook 挡住轮询"),
            _ => Finding::warning(
                "webhook",
                Said::new(
                    format!("Another program has set a webhook: {}", shown(url)),
                    format!("别的程序设了 Webhook：{}", shown(url)),
                ),
                Said::new(
                    "The gateway takes it away when it starts. Stop the other program, or give it a bot of its own.",
                    "网关启动时会把它删掉。请停掉那个程序，或给它另一个机器人。",
                ),
            ),
        };
    };
    let address = shown(wanted.url.as_str());
    if url != wanted.url.as_str() {
        return Finding::warning(
            "webhook",
            Said::new(format!("The webhook is not set to {address} yet."), format!("Webhook 还没有设为 {address}。")),
            Said::new("The gateway sets it when it starts: crawfish start", "网关启动时会设置：crawfish start"),
        );
    }
    match info.get("last_error_message").and_then(Value::as_str) {
        Some(_) if waiting > 0 => {
            let why = webhook::failure(info, i64::MIN).unwrap_or_default();
            Finding::wrong(
                "webhook",
                Said::new(
                    format!("Telegram does not reach {address} ({why}); {waiting} updates wait."),
                    format!("Telegram 连不上 {address}（{why}），有 {waiting} 条更新在等。"),
                ),
                Said::new(
                    "The address must lead to the gateway from the internet, by https with a certificate that Telegram \
                     trusts, on port 443, 80, 88 or 8443.",
                    "这个地址要能从公网到达网关：https，证书受信任，端口 443、80、88 或 8443。",
                ),
            )
        }
        _ => Finding::fine("webhook", format!("Telegram posts to {address}"), format!("Telegram 会发到 {address}")),
    }
}

fn unreachable(error: &ApiError) -> Finding {
    match error {
        ApiError::WrongToken(said) => Finding::wrong(
            "token",
            Said::new(
                format!("Telegram does not accept the token ({said})."),
                format!("Telegram 不认识这个令牌（{said}）。"),
            ),
            Said::new(
                "@BotFather → /mybots → the bot → API Token; put it into the configuration",
                "@BotFather → /mybots → 选机器人 → API Token，把它写进配置",
            ),
        ),
        error => Finding::unknown(
            "token",
            Said::new(format!("Telegram was not reached: {error}"), format!("连不上 Telegram：{error}")),
            Said::new(
                "Is there a network? Where api.telegram.org is not reachable directly, set `proxy`.",
                "网络通吗？不能直接访问 api.telegram.org 的地方，请设置 `proxy`。",
            ),
        ),
    }
}

/// An address of the other side, fit for a line.
fn shown(url: &str) -> String {
    url.chars().filter(|c| !c.is_control()).take(200).collect()
}
