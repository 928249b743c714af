//! What stands between an app in the developer console and the first answer: one finding for each click that is needed.
//! Changes nothing, takes no messages.

use channel_api::{Finding, Said};
use serde_json::Value;

use crate::{
    api::{Api, ApiError},
    config::{Config, Mode},
};

/// What the app must or should be allowed: any one of the scopes, whether nothing works without it, and what it is for.
const SCOPES: [(&[&str], bool, &str, &str); 7] = [
    (
        &["im:message.p2p_msg:readonly", "im:message.p2p_msg", "im:message"],
        true,
        "private messages to the bot",
        "接收单聊消息",
    ),
    (
        &["im:message.group_at_msg:readonly", "im:message.group_at_msg", "im:message.group_msg", "im:message"],
        true,
        "messages in groups that mention the bot",
        "接收群里 @ 机器人的消息",
    ),
    (&["im:message:send_as_bot", "im:message:send", "im:message"], true, "sending answers", "发送回答"),
    (&["im:resource"], false, "pictures, voice and files, in and out", "收发图片、语音和文件"),
    (&["im:message:readonly", "im:message"], false, "reading the message that somebody replies to", "读取被回复的消息"),
    (
        &["im:message.reactions:write_only", "im:message"],
        false,
        "the reaction that says that an answer is being written",
        "用表情回应表示正在回答",
    ),
    (&["cardkit:card:write"], false, "showing an answer while it is written", "边写边显示回答"),
];

/// Looks at an account.
pub async fn probe(api: &Api, config: &Config, account: &str) -> Vec<Finding> {
    let console = format!("{}/app/{}", config.console(), api.app_id());
    let mut findings = Vec::new();
    if let Err(error) = api.check_credentials().await {
        return vec![credentials(&error, &console)];
    }
    findings.push(Finding::fine("token", "`app_id` and `app_secret` are accepted", "`app_id` 和 `app_secret` 有效"));
    findings.push(bot(api, &console).await);
    findings.extend(scopes(api, &console).await);
    findings.push(match config.mode {
        Mode::Ws => long_connection(api, &console).await,
        Mode::Webhook => posted(&console, account),
    });
    findings.push(Finding::unknown(
        "event:im.message.receive_v1",
        Said::new(
            "whether the app receives the event im.message.receive_v1 cannot be asked",
            "无法查询应用是否订阅了事件 im.message.receive_v1",
        ),
        Said::new(
            format!(
                "open {console}/event: Events & Callbacks, Event Configuration, Add Events, \"Receive messages\"; then Version Management & Release, create a version and publish it"
            ),
            format!("打开 {console}/event：“事件与回调 → 事件配置 → 添加事件”，选“接收消息”；然后在“版本管理与发布”创建版本并发布"),
        ),
    ));
    findings
}

/// In mode `webhook`: the address to enter.
fn posted(console: &str, account: &str) -> Finding {
    Finding::unknown(
        "webhook",
        Said::new("whether Feishu can reach this gateway is not known from here", "从这里无法知道飞书能否访问本网关"),
        Said::new(
            format!(
                "open {console}/event, Events & Callbacks, Event Configuration: set the request URL to https://<your address>/channels/feishu/{account}; Feishu checks it at once"
            ),
            format!(
                "打开 {console}/event，“事件与回调 → 事件配置”：把请求地址设为 https://<你的地址>/channels/feishu/{account}，飞书会立即校验"
            ),
        ),
    )
}

fn credentials(error: &ApiError, console: &str) -> Finding {
    match error {
        ApiError::Credentials(said) => Finding::wrong(
            "token",
            Said::new(
                format!("Feishu does not accept `app_id` and `app_secret` ({said})"),
                format!("飞书不接受 `app_id` 和 `app_secret`（{said}）"),
            ),
            Said::new(
                format!("copy both from {console}/baseinfo, Credentials & Basic Info"),
                format!("从 {console}/baseinfo “凭证与基础信息”重新复制这两项"),
            ),
        ),
        ApiError::AppOff(said) => Finding::wrong(
            "token",
            Said::new(
                format!("the app is switched off or not released ({said})"),
                format!("应用未启用或未发布（{said}）"),
            ),
            Said::new(
                format!("open {console}/version: create a version and publish it"),
                format!("打开 {console}/version，创建版本并发布"),
            ),
        ),
        error => Finding::unknown(
            "token",
            Said::new(format!("Feishu did not answer: {error}"), format!("飞书没有回应：{error}")),
            Said::new(
                "check the network, `api_url` (\"feishu\" or \"lark\") and `proxy`",
                "检查网络、`api_url`（\"feishu\" 或 \"lark\"）和 `proxy`",
            ),
        ),
    }
}

async fn bot(api: &Api, console: &str) -> Finding {
    let add = || {
        Said::new(
            format!("open {console}/bot: Add Features, Bot; then create a version and publish it"),
            format!("打开 {console}/bot，“添加应用能力 → 机器人”；然后创建版本并发布"),
        )
    };
    match api.get("/open-apis/bot/v3/info").await {
        Ok(answer) => {
            let bot = answer.get("bot").unwrap_or(&Value::Null);
            let name = bot.get("app_name").and_then(Value::as_str).unwrap_or("?");
            let name: String = name.chars().filter(|c| !c.is_control()).take(60).collect();
            let active = bot.get("activate_status").and_then(Value::as_i64);
            match (bot.get("open_id").and_then(Value::as_str), active) {
                (Some(_), Some(2) | None) => {
                    Finding::fine("bot", format!("the bot is {name:?}"), format!("机器人是“{name}”"))
                }
                (Some(_), Some(status)) => Finding::wrong(
                    "bot",
                    Said::new(
                        format!("the bot {name:?} is not active (status {status})"),
                        format!("机器人“{name}”未启用（状态 {status}）"),
                    ),
                    Said::new(
                        format!("open {console}/version: publish a version, and have an administrator approve it"),
                        format!("打开 {console}/version 发布版本，并由管理员审核、启用"),
                    ),
                ),
                _ => Finding::wrong("bot", Said::new("the app has no bot", "应用没有机器人"), add()),
            }
        }
        Err(error @ (ApiError::Refused { .. } | ApiError::NoScope(_))) => Finding::wrong(
            "bot",
            Said::new(format!("the app has no bot ({error})"), format!("应用没有机器人能力（{error}）")),
            add(),
        ),
        Err(error) => Finding::unknown(
            "bot",
            Said::new(format!("the bot could not be asked for: {error}"), format!("无法查询机器人：{error}")),
            add(),
        ),
    }
}

async fn scopes(api: &Api, console: &str) -> Vec<Finding> {
    let answer = match api.get("/open-apis/application/v6/scopes").await {
        Ok(answer) => answer,
        Err(error) => {
            return vec![Finding::unknown(
                "scopes",
                Said::new(format!("the permissions could not be asked for: {error}"), format!("无法查询权限：{error}")),
                Said::new(format!("look at {console}/auth"), format!("请查看 {console}/auth")),
            )];
        }
    };
    let all = answer.get("data").and_then(|data| data.get("scopes")).and_then(Value::as_array);
    let granted: Vec<&str> = all
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .filter(|scope| scope.get("grant_status").and_then(Value::as_i64) == Some(1))
        .filter_map(|scope| scope.get("scope_name").and_then(Value::as_str))
        .collect();
    let finding = |(names, needed, en, zh): &(&[&str], bool, &str, &str)| {
        let name = format!("scope:{}", names[0]);
        if names.iter().any(|scope| granted.contains(scope)) {
            return Finding::fine(name, format!("permission for {en}"), format!("权限：{zh}"));
        }
        let said =
            Said::new(format!("the permission {} is missing: {en}", names[0]), format!("缺少权限 {}：{zh}", names[0]));
        let fix = Said::new(
            format!("open {console}/auth?q={}, add it, then create a version and publish it", names[0]),
            format!("打开 {console}/auth?q={} 开通，然后创建版本并发布", names[0]),
        );
        if *needed { Finding::wrong(name, said, fix) } else { Finding::warning(name, said, fix) }
    };
    SCOPES.iter().map(finding).collect()
}

async fn long_connection(api: &Api, console: &str) -> Finding {
    let fix = || {
        Said::new(
            format!(
                "open {console}/event, Events & Callbacks, Event Configuration: choose \"Receive events through persistent connection\" while crawfish runs, and save"
            ),
            format!("打开 {console}/event，“事件与回调 → 事件配置”：在 crawfish 运行时选“使用长连接接收事件”并保存"),
        )
    };
    match api.ws_endpoint().await {
        Ok(_) => {
            Finding::fine("long_connection", "Feishu gives an address for the long connection", "飞书给出了长连接地址")
        }
        Err(ApiError::Refused { code: 1_000_040_350, .. }) => Finding::warning(
            "long_connection",
            Said::new("too many programs hold a long connection of this app", "这个应用的长连接过多"),
            Said::new(
                "stop the others: each message goes to one of them only",
                "停掉其他程序：每条消息只会送给其中一个连接",
            ),
        ),
        Err(error @ ApiError::Refused { .. }) => Finding::wrong(
            "long_connection",
            Said::new(format!("Feishu refuses the long connection ({error})"), format!("飞书拒绝长连接（{error}）")),
            fix(),
        ),
        Err(error) => Finding::unknown(
            "long_connection",
            Said::new(format!("not known: {error}"), format!("无法得知：{error}")),
            fix(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_to_enter_names_the_account() {
        let fix = posted("https://open.feishu.cn/app/cli_1", "work").fix.expect("a fix");
        for text in [fix.en, fix.zh] {
            assert!(text.contains("/channels/feishu/work") && text.contains("/app/cli_1/event"), "{text}");
        }
    }
}
