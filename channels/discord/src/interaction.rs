//! Slash commands and buttons: acknowledged within 3 s, before anything waits for the store, and beside whatever does.

use std::time::Duration;

use channel_api::Said;
use futures_util::{StreamExt, stream::FuturesUnordered};
use reqwest::Method;
use serde_json::{Value, json};
use serenity::model::channel::MessageFlags;
use tokio::sync::{mpsc, oneshot};
use tracing::debug;

use crate::{
    api::Api,
    target::{Command, id, is_token},
};

/// How long an acknowledgement is worth trying: Discord waits 3 s, and some went by on the way here.
const WORTH: Duration = Duration::from_millis(2_500);
/// The most acknowledgements at once; what is more waits, and most likely in vain.
const AT_ONCE: usize = 32;

/// One interaction to acknowledge.
#[derive(Debug)]
pub struct Ack {
    interaction: String,
    token: String,
    body: Value,
    done: oneshot::Sender<bool>,
}

/// The acknowledgement of an interaction, if it is one that wants any, and what tells whether it was taken.
///
/// A command shows "thinking" to the one who gave it (in servers to nobody else) until its answer takes that place; a button
/// shows nothing.
pub fn ack(data: &Value) -> Option<(Ack, oneshot::Receiver<bool>)> {
    let token = data.get("token").and_then(Value::as_str).filter(|token| is_token(token))?.to_owned();
    let hidden = id(data, "guild_id").map_or(0, |_| MessageFlags::EPHEMERAL.bits());
    let body = match data.get("type").and_then(Value::as_u64)? {
        2 => json!({"type": 5, "data": {"flags": hidden}}),
        3 => json!({"type": 6}),
        _ => return None,
    };
    let (done, acknowledged) = oneshot::channel();
    Some((Ack { interaction: id(data, "id")?, token, body, done }, acknowledged))
}

/// Acknowledges until nothing more comes.
pub async fn acknowledge(api: &Api, mut acks: mpsc::Receiver<Ack>) {
    let mut running = FuturesUnordered::new();
    loop {
        tokio::select! {
            next = acks.recv(), if running.len() < AT_ONCE => match next {
                Some(ack) => running.push(one(api, ack)),
                None => break,
            },
            Some(()) = running.next() => {}
        }
    }
    while running.next().await.is_some() {}
}

async fn one(api: &Api, ack: Ack) {
    let path = format!("/interactions/{}/{}/callback", ack.interaction, ack.token);
    let taken = match tokio::time::timeout(WORTH, api.call(Method::POST, &path, Some(&ack.body))).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => {
            debug!(%error, "an interaction was not acknowledged: it is answered in its channel");
            false
        }
        Err(_) => false,
    };
    let _ = ack.done.send(taken);
}

/// Ends a command that gets no answer, so that it does not show "thinking" for ever.
pub async fn refuse(api: &Api, command: &Command, locale: &str) {
    let said = Said::new("This is not for you to use here.", "你不能在这里使用。");
    let content = if locale.starts_with("zh") { said.zh } else { said.en };
    let body = json!({"content": content, "allowed_mentions": {"parse": []}});
    let path = format!("/webhooks/{}/{}/messages/@original", command.app, command.token);
    if let Err(error) = api.call(Method::PATCH, &path, Some(&body)).await {
        debug!(%error, "a refused command was not told so");
    }
}
