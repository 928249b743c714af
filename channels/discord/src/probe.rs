//! What stands between a new application and its first answer, asked of Discord; changes nothing there.

use channel_api::{Finding, Said};
use reqwest::Method;
use serde_json::Value;
use serenity::model::{application::ApplicationFlags, permissions::Permissions};

use crate::{
    api::{Api, ApiError},
    target::id,
};

/// The most servers that are looked at one by one.
const MOST_SERVERS: usize = 200;

/// What the bot needs in a server, with the names that Discord shows.
fn needed() -> [(Permissions, &'static str); 6] {
    [
        (Permissions::VIEW_CHANNEL, "View Channels"),
        (Permissions::SEND_MESSAGES, "Send Messages"),
        (Permissions::SEND_MESSAGES_IN_THREADS, "Send Messages in Threads"),
        (Permissions::READ_MESSAGE_HISTORY, "Read Message History"),
        (Permissions::ATTACH_FILES, "Attach Files"),
        (Permissions::ADD_REACTIONS, "Add Reactions"),
    ]
}

/// The address that adds the bot to a server.
pub fn invitation(app: &str) -> String {
    let permissions = needed().iter().fold(Permissions::empty(), |all, (one, _)| all | *one);
    format!(
        "https://discord.com/oauth2/authorize?client_id={app}&scope=bot+applications.commands&permissions={}",
        permissions.bits()
    )
}

/// One finding each: see [`channel_api::Channel::probe`].
pub async fn probe(api: &Api, message_content: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    let me = match api.call(Method::GET, "/users/@me", None).await {
        Ok(me) => me,
        Err(error) => return vec![no_token(&error)],
    };
    let name: String = me.get("username").and_then(Value::as_str).unwrap_or("?").chars().take(100).collect();
    findings.push(Finding::fine("token", format!("the token is {name}'s"), format!("令牌属于 {name}")));
    let app = match api.call(Method::GET, "/applications/@me", None).await {
        Ok(app) => {
            findings.push(content_intent(&app, message_content));
            id(&app, "id")
        }
        Err(error) => {
            findings.push(not_known("intent:message_content", &error));
            None
        }
    };
    let app = app.or_else(|| id(&me, "id")).unwrap_or_default();
    match api.call(Method::GET, &format!("/users/@me/guilds?limit={MOST_SERVERS}"), None).await {
        Ok(servers) => servers_found(&servers, &app, &mut findings),
        Err(error) => findings.push(not_known("servers", &error)),
    }
    match api.call(Method::GET, "/gateway/bot", None).await {
        Ok(gateway) => findings.push(sessions(&gateway)),
        Err(error) => findings.push(not_known("sessions", &error)),
    }
    findings
}

fn no_token(error: &ApiError) -> Finding {
    match error {
        ApiError::WrongToken => Finding::wrong(
            "token",
            Said::new("Discord does not accept the token", "Discord 不接受这个令牌"),
            Said::new(
                "Developer Portal → your application → Bot → Reset Token, then put the new one into the section",
                "开发者后台 → 你的应用 → Bot → Reset Token，把新令牌写进配置",
            ),
        ),
        error => not_known("token", error),
    }
}

fn not_known(name: &str, error: &ApiError) -> Finding {
    Finding::unknown(
        name,
        Said::new(format!("it was not found out: {error}"), format!("没有查到：{error}")),
        Said::new(
            "look whether this machine reaches discord.com, or set `proxy` in the section",
            "检查这台机器能否访问 discord.com，或者在配置里设置 `proxy`",
        ),
    )
}

fn content_intent(app: &Value, wanted: bool) -> Finding {
    let name = "intent:message_content";
    let flags = ApplicationFlags::from_bits_truncate(app.get("flags").and_then(Value::as_u64).unwrap_or(0));
    let granted =
        flags.intersects(ApplicationFlags::GATEWAY_MESSAGE_CONTENT | ApplicationFlags::GATEWAY_MESSAGE_CONTENT_LIMITED);
    let fix = || {
        Said::new(
            "Developer Portal → your application → Bot → Privileged Gateway Intents → switch Message Content Intent on",
            "开发者后台 → 你的应用 → Bot → Privileged Gateway Intents → 打开 Message Content Intent",
        )
    };
    match (granted, wanted) {
        (true, true) => Finding::fine(name, "Message Content Intent is on", "Message Content Intent 已打开"),
        (false, true) => Finding::wrong(
            name,
            Said::new(
                "Message Content Intent is off: Discord refuses the connection (4014)",
                "Message Content Intent 没有打开：Discord 会拒绝连接（4014）",
            ),
            fix(),
        ),
        (granted, false) => Finding::warning(
            name,
            Said::new(
                "`message_content = false`: only direct messages, mentions and replies to the bot have words",
                "`message_content = false`：只有私信、@机器人的消息和对它的回复才有内容",
            ),
            if granted {
                Said::new("take `message_content = false` out of the section", "从配置里去掉 `message_content = false`")
            } else {
                fix()
            },
        ),
    }
}

fn servers_found(servers: &Value, app: &str, findings: &mut Vec<Finding>) {
    let all = servers.as_array().map_or(&[][..], Vec::as_slice);
    let link = invitation(app);
    let invite = Said::new(
        format!("open this address and choose a server: {link}"),
        format!("打开这个地址，选择服务器：{link}"),
    );
    if all.is_empty() {
        findings.push(Finding::warning(
            "servers",
            Said::new(
                "the bot is in no server: nobody can write to it, privately either",
                "机器人还没有加入任何服务器：谁也没法给它写消息，私信也不行",
            ),
            invite,
        ));
        return;
    }
    let count = all.len();
    findings.push(Finding::fine(
        "servers",
        format!("the bot is in {count} server(s); to add it to another: {link}"),
        format!("机器人在 {count} 个服务器里；再加一个：{link}"),
    ));
    for server in all.iter().take(MOST_SERVERS) {
        let bits = server.get("permissions").and_then(Value::as_str).and_then(|bits| bits.parse().ok());
        let Some(permissions) = bits.map(Permissions::from_bits_truncate) else { continue };
        if permissions.contains(Permissions::ADMINISTRATOR) {
            continue;
        }
        let missing: Vec<&str> =
            needed().iter().filter(|(one, _)| !permissions.contains(*one)).map(|(_, name)| *name).collect();
        if missing.is_empty() {
            continue;
        }
        let server_id = id(server, "id").unwrap_or_default();
        let name: String = server.get("name").and_then(Value::as_str).unwrap_or("?").chars().take(100).collect();
        let missing = missing.join(", ");
        findings.push(Finding::warning(
            format!("permissions:{server_id}"),
            Said::new(
                format!("in the server {name} the bot lacks: {missing}"),
                format!("在服务器 {name} 里机器人缺少权限：{missing}"),
            ),
            invite.clone(),
        ));
    }
}

fn sessions(gateway: &Value) -> Finding {
    let limit = gateway.get("session_start_limit");
    let number = |key: &str| limit.and_then(|limit| limit.get(key)).and_then(Value::as_u64);
    let (remaining, total) = (number("remaining"), number("total"));
    let minutes = number("reset_after").unwrap_or(0) / 60_000;
    match (remaining, total) {
        (Some(remaining), Some(total)) if remaining < 10 => Finding::warning(
            "sessions",
            Said::new(
                format!("{remaining} of {total} connections are left for the next {minutes} minutes"),
                format!("接下来 {minutes} 分钟内只剩 {remaining}/{total} 次连接"),
            ),
            Said::new(
                "look whether the bot's token is in use elsewhere, or the gateway is started again and again",
                "检查这个令牌是否在别处使用，或者网关是否在反复重启",
            ),
        ),
        (Some(remaining), Some(total)) => Finding::fine(
            "sessions",
            format!("{remaining} of {total} connections are left for today"),
            format!("今天还剩 {remaining}/{total} 次连接"),
        ),
        _ => Finding::fine("sessions", "the gateway answers", "网关有应答"),
    }
}
