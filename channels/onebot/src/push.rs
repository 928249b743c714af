//! Events that an implementation posts to us (`mode = "http"`): signed or with the token, answered by an empty 204 once
//! they are stored. Quick operations are never used: what is sent goes by calls, where its outcome is known.

use std::time::Duration;

use async_trait::async_trait;
use channel_api::{ChannelContext, HttpBody, HttpEndpoint, HttpRequest, HttpResponse, Link};
use http::{HeaderMap, Method, StatusCode};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tracing::warn;

use crate::{
    OneBot, auth, ids,
    inbound::{self, Event},
    queue::What,
    socket::MESSAGE_LIMIT,
};

/// How long an answer may wait for the commit. go-cqhttp gives up after 5 s by default; the event stays with us.
const WAIT: Duration = Duration::from_secs(15);

#[async_trait]
impl HttpEndpoint for OneBot {
    fn body_limit(&self) -> usize {
        MESSAGE_LIMIT
    }

    async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse {
        if !matches!(request.path.as_str(), "" | "/") {
            return refusal(StatusCode::NOT_FOUND, "no such path");
        }
        if request.method != Method::POST {
            return refusal(StatusCode::METHOD_NOT_ALLOWED, "events are posted")
                .with_header(http::header::ALLOW, "POST");
        }
        let config = &self.config;
        let key = if config.secret.is_empty() { &config.access_token } else { &config.secret };
        if let Err(denied) = auth::by_signature(key, &config.access_token, &request) {
            self.turn_away(denied.words());
            return denied.response();
        }
        self.turned_away.forget();
        let event = std::str::from_utf8(&request.body).ok().and_then(channel_api::json::parse).filter(Value::is_object);
        let Some(event) = event else { return refusal(StatusCode::BAD_REQUEST, "the body is no JSON object") };
        ctx.pulse.beat();
        let told = request.headers.get("x-self-id").and_then(|id| id.to_str().ok()).map(Value::from);
        let told = told.as_ref().and_then(ids::number);
        let said = ids::number_at(&event, "self_id");
        if let (Some(told), Some(said)) = (&told, &said)
            && told != said
        {
            if self.queue.count("event_of_another_bot").is_power_of_two() {
                warn!(told, said, "an event whose self_id is not that of its header is dropped");
            }
            return empty();
        }
        let Some(bot) = said.or(told).filter(|bot| self.expects(bot)) else {
            self.queue.count("event_without_bot");
            return empty();
        };
        let chat = match inbound::read(&self.id, &bot, &event) {
            Event::Ignored(reason) => {
                self.queue.count(reason);
                return empty();
            }
            Event::Heartbeat(_) => {
                ctx.pulse.link(Link::Up);
                return empty();
            }
            read => read.chat(),
        };
        let (tx, stored) = oneshot::channel();
        if !self.queue.add(&bot, What::Event(chat, event), request.body.len(), Some(tx)) {
            return busy();
        }
        tokio::select! {
            biased;
            stored = stored => if stored == Ok(true) { empty() } else { busy() },
            () = ctx.shutdown.cancelled() => busy(),
            () = ctx.clock.sleep(WAIT) => busy(),
        }
    }
}

fn refusal(status: StatusCode, said: &str) -> HttpResponse {
    HttpResponse::json(status, &json!({ "error": said }))
}

fn empty() -> HttpResponse {
    let body = HttpBody::Whole { bytes: bytes::Bytes::new(), written: None };
    HttpResponse { status: StatusCode::NO_CONTENT, headers: HeaderMap::new(), body }
}

fn busy() -> HttpResponse {
    refusal(StatusCode::SERVICE_UNAVAILABLE, "not stored yet").with_header(http::header::RETRY_AFTER, "5")
}
