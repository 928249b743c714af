//! Whether an implementation that is called by HTTP lives: it is asked every half minute. Knows the bot's number from it.

use std::time::Duration;

use channel_api::{ChannelContext, ChannelError, Link};
use serde_json::json;
use tracing::info;

use crate::{
    OneBot, ids,
    links::{CALL, CallError},
};

/// The pause between two questions.
const PAUSE: Duration = Duration::from_secs(30);

/// Asks without end.
///
/// # Errors
/// [`ChannelError::Stop`] when the token is refused.
pub async fn run(onebot: &OneBot, ctx: &ChannelContext) -> Result<(), ChannelError> {
    let mut up = false;
    loop {
        match onebot.links.call("", "get_status", json!({}), CALL).await {
            Ok(status) => {
                let online = status.get("online").and_then(serde_json::Value::as_bool).unwrap_or(true);
                let turned_away = onebot.turned_away.last();
                ctx.pulse.link(match (online, turned_away) {
                    (true, None) => Link::Up,
                    (true, Some(why)) => Link::Down(format!("the OneBot side can be called, but {why}")),
                    (false, _) => Link::Down("the OneBot side says that QQ is offline".to_owned()),
                });
                if !up {
                    up = true;
                    connected(onebot).await;
                }
            }
            Err(CallError::Failed(failure)) if failure.forbidden() => {
                return Err(ChannelError::Stop(
                    "the OneBot side refuses the access_token: `access_token` must be the token of its HTTP server"
                        .to_owned(),
                ));
            }
            // It answers: that it has no such action is a sign of life too.
            Err(CallError::Failed(_)) => ctx.pulse.link(Link::Up),
            Err(error) => {
                up = false;
                ctx.pulse.link(Link::Down(format!("the OneBot side cannot be reached: {error}")));
            }
        }
        ctx.clock.sleep(PAUSE).await;
    }
}

/// It can be called, perhaps again: what was said in between is asked for.
async fn connected(onebot: &OneBot) {
    let login = onebot.links.call("", "get_login_info", json!({}), CALL).await;
    if let Some(bot) = login.ok().and_then(|login| ids::number_at(&login, "user_id")).filter(|bot| onebot.expects(bot))
    {
        info!(bot, "the OneBot side can be called");
        onebot.queue.add(&bot, crate::queue::What::Connected, 0, None);
    }
}
