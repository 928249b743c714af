//! The WebSocket that an implementation opens to us (`mode = "reverse"`): who may, and what its head says.

use async_trait::async_trait;
use channel_api::{ChannelContext, HttpRequest, HttpResponse, Socket, SocketEndpoint};
use http::{HeaderMap, StatusCode};
use serde_json::{Value, json};

use crate::{
    OneBot, auth, ids,
    links::Role,
    socket::{self, Head, MESSAGE_LIMIT},
};

#[async_trait]
impl SocketEndpoint for OneBot {
    fn message_limit(&self) -> usize {
        MESSAGE_LIMIT
    }

    fn admit(&self, request: &HttpRequest) -> Result<(), Box<HttpResponse>> {
        let refused = |status, said: &str| Err(Box::new(HttpResponse::json(status, &json!({ "error": said }))));
        if role(&request.path, &request.headers).is_none() {
            return refused(StatusCode::NOT_FOUND, "no such path: connect to the account's address itself");
        }
        if let Err(denied) = auth::by_token(&self.config.access_token, request) {
            self.turn_away(denied.words());
            return Err(Box::new(denied.response()));
        }
        match bot(&request.headers) {
            Some(bot) if !self.expects(&bot) => {
                self.turn_away("for another number than `self_id`");
                refused(StatusCode::FORBIDDEN, "this address is for another self_id")
            }
            _ => Ok(()),
        }
    }

    async fn serve(&self, ctx: &ChannelContext, request: HttpRequest, socket: Socket) {
        let role = role(&request.path, &request.headers).unwrap_or(Role::Universal);
        let head = Head { bot: bot(&request.headers), role };
        socket::serve(self, ctx, head, socket).await;
    }
}

/// What a connection will carry: its header says so, or its path. `None`: a path that is nothing here.
fn role(path: &str, headers: &HeaderMap) -> Option<Role> {
    let by_path = match path.trim_end_matches('/') {
        "" | "/ws" => Role::Universal,
        "/api" => Role::Api,
        "/event" => Role::Event,
        _ => return None,
    };
    let said = headers.get("x-client-role").and_then(|role| role.to_str().ok()).unwrap_or_default();
    Some(match said.to_ascii_lowercase().as_str() {
        "api" => Role::Api,
        "event" => Role::Event,
        "universal" => Role::Universal,
        _ => by_path,
    })
}

/// The bot's number, if the head says it.
fn bot(headers: &HeaderMap) -> Option<String> {
    let said = headers.get("x-self-id")?.to_str().ok()?;
    ids::number(&Value::from(said)).filter(|id| id != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_stands_in_the_header_or_in_the_path() {
        let with = |said: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-client-role", said.parse().expect("a header"));
            headers
        };
        for (path, said, expected) in [
            ("", "Universal", Some(Role::Universal)),
            ("/", "API", Some(Role::Api)),
            ("/ws", "event", Some(Role::Event)),
            ("/api", "", Some(Role::Api)),
            ("/event/", "", Some(Role::Event)),
            ("/ws", "?", Some(Role::Universal)),
            ("/admin", "API", None),
        ] {
            assert_eq!(role(path, &with(said)), expected, "{path} {said}");
        }
    }
}
