//! What stands between a QQ number and the first answer, asked of the implementation the configured way.

use std::time::Duration;

use channel_api::{Finding, Frame, GATEWAY_ADDRESS, Said};
use channel_socket::DialError;
use serde_json::{Value, json};

use crate::{
    OneBot, api,
    config::Mode,
    ids,
    links::{CallError, Links, Role},
    socket::MESSAGE_LIMIT,
};

/// How long each question may take.
const ASK: Duration = Duration::from_secs(8);

/// Looks at the account.
pub async fn probe(onebot: &OneBot) -> Vec<Finding> {
    let mut found = vec![token(onebot)];
    match onebot.config.mode {
        Mode::Reverse => reverse(onebot, &mut found).await,
        Mode::Http => asked(onebot, &onebot.links, "", &mut found).await,
        Mode::Forward => forward(onebot, &mut found).await,
    }
    found
}

fn token(onebot: &OneBot) -> Finding {
    if !onebot.config.access_token.is_empty() {
        return Finding::fine("token", "an access_token is set", "已设置 access_token");
    }
    Finding::warning(
        "token",
        Said::new(
            "no access_token is set: any program of this machine can speak for QQ",
            "没有设置 access_token：本机任何程序都可以冒充 QQ",
        ),
        Said::new(
            "set `access_token` in the section, and the same token on the OneBot side",
            "在本渠道的配置里写上 `access_token`，并在 OneBot 一侧填同一个令牌",
        ),
    )
}

async fn reverse(onebot: &OneBot, found: &mut Vec<Finding>) {
    let bots = onebot.links.bots();
    if let Some(bot) = bots.first() {
        return asked(onebot, &onebot.links, bot, found).await;
    }
    let url = format!("ws://{GATEWAY_ADDRESS}/channels/onebot/{}", onebot.id.account());
    let token = if onebot.config.access_token.is_empty() {
        ("empty", "留空")
    } else {
        ("the access_token of this section", "填本渠道的 access_token")
    };
    found.push(Finding::unknown(
        "connection",
        Said::new(
            "the OneBot side connects to us; whether it does is seen in the running gateway (`crawfish doctor`, /status)",
            "由 OneBot 一侧连接本程序；是否已连上要看运行中的网关（`crawfish doctor` 或 /status）",
        ),
        Said::new(
            format!(
                "NapCat: WebUI > Network > New > WebSocket client; URL {url} (HOST stands for this machine; a NapCat in a container needs an address of [server] channels_listen), token: {}, message format: array",
                token.0
            ),
            format!(
                "NapCat：WebUI → 网络配置 → 新建 → Websocket 客户端；URL 填 {url}（HOST 换成本机地址；NapCat 在容器里时需要设置 [server] channels_listen），Token：{}，消息格式：array",
                token.1
            ),
        ),
    ));
}

async fn forward(onebot: &OneBot, found: &mut Vec<Finding>) {
    let Ok(url) = onebot.config.forward_url() else { return };
    let headers = api::bearer(&onebot.config.access_token);
    let (mut socket, pump) = match onebot.network.websocket(&url, &headers, MESSAGE_LIMIT).await {
        Ok(open) => open,
        Err(DialError::Status { status: 401 | 403, .. }) => return found.push(refused()),
        Err(error) => return found.push(unreachable(&error.to_string())),
    };
    let links = Links::default();
    let connection = links.open(Role::Universal, socket.outgoing.clone());
    links.register("", &connection);
    let mut forbidden = false;
    let reading = async {
        while let Some(frame) = socket.incoming.recv().await {
            if let Frame::Text(text) = frame
                && let Some(value) = channel_api::json::parse(&text).filter(|value| value.get("post_type").is_none())
            {
                forbidden |= matches!(value.get("retcode").and_then(Value::as_i64), Some(1401 | 1403));
                connection.answered(value);
            }
        }
        links.close(&connection);
        std::future::pending::<()>().await;
    };
    let mut answers = Vec::new();
    tokio::select! {
        () = asked(onebot, &links, "", &mut answers) => {}
        () = async { tokio::join!(pump, reading); } => {}
    }
    if forbidden { found.push(refused()) } else { found.append(&mut answers) }
}

/// The account, the program and its state, by calls.
async fn asked(onebot: &OneBot, links: &Links, bot: &str, found: &mut Vec<Finding>) {
    let login = match links.call(bot, "get_login_info", json!({}), ASK).await {
        Ok(login) => login,
        Err(CallError::Failed(failure)) if failure.forbidden() => return found.push(refused()),
        Err(error) => return found.push(unreachable(&error.to_string())),
    };
    found.push(Finding::fine("connection", "the OneBot side answers", "OneBot 一侧有应答"));
    let number = ids::number_at(&login, "user_id").unwrap_or_default();
    let nickname: String = login.get("nickname").and_then(Value::as_str).unwrap_or_default().chars().take(60).collect();
    found.push(match onebot.expects(&number) {
        true => Finding::fine("account", format!("QQ {number} {nickname}"), format!("QQ {number} {nickname}")),
        false => Finding::wrong(
            "account",
            Said::new(
                format!("the OneBot side is logged in as {number}, which is not this section's self_id"),
                format!("OneBot 一侧登录的是 {number}，与本渠道的 self_id 不同"),
            ),
            Said::new("correct `self_id`, or log in with the other number", "改正 `self_id`，或者登录另一个 QQ 号"),
        ),
    });
    if let Ok(version) = links.call(bot, "get_version_info", json!({}), ASK).await {
        let text =
            |key: &str| version.get(key).and_then(Value::as_str).unwrap_or("?").chars().take(60).collect::<String>();
        let shown = format!("{} {}", text("app_name"), text("app_version"));
        found.push(Finding::fine("program", shown.clone(), shown));
    }
    if let Ok(status) = links.call(bot, "get_status", json!({}), ASK).await
        && status.get("online").and_then(Value::as_bool) == Some(false)
    {
        found.push(Finding::wrong(
            "online",
            Said::new("QQ is offline on the OneBot side", "OneBot 一侧的 QQ 已掉线"),
            Said::new(
                "log in again there (scan the code in its WebUI or log)",
                "在那里重新登录（在 WebUI 或日志里扫码）",
            ),
        ));
    }
}

fn refused() -> Finding {
    Finding::wrong(
        "connection",
        Said::new("the OneBot side refuses the access_token", "OneBot 一侧拒绝了 access_token"),
        Said::new(
            "copy the token of its server (NapCat: WebUI > Network) into `access_token`",
            "把它的服务端令牌（NapCat：WebUI → 网络配置）填进 `access_token`",
        ),
    )
}

fn unreachable(why: &str) -> Finding {
    Finding::wrong(
        "connection",
        Said::new(format!("the OneBot side cannot be reached: {why}"), format!("连不上 OneBot 一侧：{why}")),
        Said::new(
            "is it running, is its server switched on, and is the address in the section the one it shows?",
            "确认它在运行、对应的服务端已启用，并且配置里的地址与它显示的一致",
        ),
    )
}
