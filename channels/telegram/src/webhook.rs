//! Updates that Telegram posts to the gateway: only with the secret, and acknowledged only after they are stored. Keeps
//! the webhook set, and says when Telegram cannot reach it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use channel_api::{
    ChannelContext, ChannelError, ChannelId, HttpRequest, HttpResponse, IntakeError, Link, Secret, Seldom,
};
use reqwest::{Method, StatusCode, header};
use serde_json::{Value, json};
use subtle::ConstantTimeEq;
use tracing::{info, warn};
use url::Url;

use crate::{
    api::{self, Api, ApiError},
    inbound::Me,
    menu,
    moves::Moves,
    poll,
    take::{Patience, Reception, Told},
};

/// The largest body that is taken: one update of the longest message stays far below.
pub const BODY_LIMIT: usize = 1024 * 1024;
/// The header that holds the secret.
const SECRET_HEADER: &str = "x-telegram-bot-api-secret-token";
/// How often it is looked whether the webhook still stands.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// How long after a failure that Telegram tells of the webhook counts as out of reach, in seconds.
const FRESH_FAILURE: i64 = 10 * 60;
/// When Telegram shall come again after the store failed.
const AGAIN: Duration = Duration::from_secs(5);

/// A bot whose updates come in by themselves.
pub struct Webhook {
    /// Where Telegram reaches it.
    pub url: Url,
    secret: Secret,
    /// Who we are, once it is known.
    me: Mutex<Option<Me>>,
    told: Told,
    turned_away: Seldom,
}

impl Webhook {
    /// At this address, with this secret.
    pub fn new(url: Url, secret: Secret) -> Self {
        Self { url, secret, me: Mutex::default(), told: Told::default(), turned_away: Seldom::default() }
    }

    /// Sets the webhook and keeps it until `ctx.shutdown` is cancelled.
    ///
    /// # Errors
    /// What the supervisor does next.
    pub async fn run(&self, api: &Api, ctx: &ChannelContext) -> Result<(), ChannelError> {
        tokio::select! {
            biased;
            () = ctx.shutdown.cancelled() => Ok(()),
            ended = self.keep(api, ctx) => ended,
        }
    }

    async fn keep(&self, api: &Api, ctx: &ChannelContext) -> Result<(), ChannelError> {
        let me = poll::who_we_are(api).await.map_err(poll::ended)?;
        let bot = me.username.clone();
        // Known before the first call can come.
        *self.me.lock().unwrap_or_else(PoisonError::into_inner) = Some(me);
        self.set(api).await.map_err(|error| match error {
            ApiError::Refused { description, .. } => {
                ChannelError::Stop(format!("Telegram does not take the `webhook_url`: {description}"))
            }
            error => poll::ended(error),
        })?;
        info!(bot, url = %self.url, "Telegram posts messages to the webhook");
        ctx.pulse.link(Link::Up);
        if let Err(error) = menu::publish(api).await {
            warn!(%error, "the command menu was not set");
        }
        let mut up = true;
        loop {
            ctx.clock.sleep(LOOK_EVERY).await;
            let info: Value = match api.call("getWebhookInfo", &json!({})).await {
                Ok(info) => info,
                Err(error @ (ApiError::WrongToken(_) | ApiError::Conflict(_))) => return Err(poll::ended(error)),
                Err(error) => {
                    warn!(%error, "whether the webhook stands could not be asked");
                    continue;
                }
            };
            ctx.pulse.beat();
            if info.get("url").and_then(Value::as_str) != Some(self.url.as_str()) {
                warn!("the webhook was changed by someone else; it is set again");
                self.set(api).await.map_err(poll::ended)?;
            }
            match failure(&info, ctx.clock.now_ms() / 1_000) {
                Some(why) => {
                    warn!(error = why, "Telegram does not reach the webhook");
                    ctx.pulse.link(Link::Down(format!("Telegram does not reach the webhook: {why}")));
                    up = false;
                }
                None if !up => {
                    ctx.pulse.link(Link::Up);
                    up = true;
                }
                None => {}
            }
        }
    }

    async fn set(&self, api: &Api) -> Result<(), ApiError> {
        let call = json!({
            "url": self.url.as_str(), "secret_token": self.secret.expose(), "allowed_updates": poll::KINDS,
        });
        api.call::<_, Value>("setWebhook", &call).await.map(drop)
    }

    /// Answers one call.
    pub async fn handle(
        &self,
        api: &Api,
        moves: &Moves,
        channel: &ChannelId,
        ctx: &ChannelContext,
        request: &HttpRequest,
    ) -> HttpResponse {
        let given = request.headers.get(SECRET_HEADER).map_or(&b""[..], |value| value.as_bytes());
        if !bool::from(given.ct_eq(self.secret.expose().as_bytes())) {
            if let Some(left_out) = self.turned_away.due(ctx.clock.monotonic()) {
                warn!(
                    code = "telegram_turned_away",
                    left_out, "a call of the webhook was turned away: it came without or with another `secret_token`"
                );
            }
            return answer(StatusCode::UNAUTHORIZED, "the secret token is wrong");
        }
        if !request.path.is_empty() && request.path != "/" {
            return answer(StatusCode::NOT_FOUND, "there is nothing here");
        }
        if request.method != Method::POST {
            return answer(StatusCode::METHOD_NOT_ALLOWED, "only POST");
        }
        let update = api::answer_of(&request.body);
        if !update.is_object() {
            return answer(StatusCode::BAD_REQUEST, "no update");
        }
        let me = self.me.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(me) = me else { return later(StatusCode::SERVICE_UNAVAILABLE, AGAIN) };
        let patience = Patience::None;
        let reception = Reception { api, moves, channel, ctx, me: &me, told: &self.told, patience };
        ctx.pulse.beat();
        match reception.take(std::slice::from_ref(&update), None).await {
            Ok(()) => answer(StatusCode::OK, "stored"),
            Err(IntakeError::Busy(pause)) => later(StatusCode::SERVICE_UNAVAILABLE, pause),
            Err(error @ IntakeError::Unavailable(_)) => {
                warn!(%error, "an update was not stored; Telegram is asked to bring it again");
                later(StatusCode::SERVICE_UNAVAILABLE, AGAIN)
            }
        }
    }
}

/// What Telegram says is wrong with the webhook, if that was lately.
pub fn failure(info: &Value, now: i64) -> Option<String> {
    let at = info.get("last_error_date").and_then(Value::as_i64)?;
    let why = info.get("last_error_message").and_then(Value::as_str)?;
    let why = why.chars().take(200).map(|c| if c.is_control() { ' ' } else { c }).collect();
    (now.saturating_sub(at) < FRESH_FAILURE).then_some(why)
}

fn answer(status: StatusCode, text: &str) -> HttpResponse {
    HttpResponse::json(status, &json!({ "ok": status.is_success(), "description": text }))
}

fn later(status: StatusCode, pause: Duration) -> HttpResponse {
    let seconds = pause.as_secs().max(1).to_string();
    answer(status, "not now").with_header(header::RETRY_AFTER, &seconds)
}
