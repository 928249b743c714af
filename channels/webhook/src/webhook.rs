//! The channel itself: its route, its polls, and how its pieces meet.

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::{
    Accepted, Address, Attachment, Batch, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Format,
    HttpEndpoint, HttpRequest, HttpResponse, Inbound, Level, LiveEdit, LivePace, MediaError, MediaSource, Part, PartId,
    Preview, QueueMode, Receipt, Reconciled, Reply, Seldom, SendError, SendKey, TextUnit,
};
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::{
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
};

use crate::{
    answer::{self, Refusal, State},
    auth,
    config::{Config, ConfigError, Keys, Profile},
    inbound::{self, File, Message},
    map::Map,
    render::{self, Envelope},
    send::Callback,
    wait::{self, Exchange, Seats, Wait, settled_messages},
};

/// The largest body, in bytes.
const BODY_LIMIT: usize = 1024 * 1024;

/// The most links that are fetched for one message, all within this time; further ones stay links.
const LINKS: usize = 10;
const LINKS_WITHIN: Duration = Duration::from_secs(10);

/// protocols.md §5.2: the first try is at once, then these; the last repeats for a day.
const RETRY_PAUSES: &[Duration] = &[
    Duration::from_secs(5),
    Duration::from_secs(30),
    Duration::from_secs(2 * 60),
    Duration::from_secs(10 * 60),
    Duration::from_secs(30 * 60),
    Duration::from_secs(2 * 60 * 60),
];

/// One bridge.
pub struct Webhook {
    id: ChannelId,
    capabilities: Capabilities,
    keys: Keys,
    turned_away: Seldom,
    profile: Profile,
    map: Option<Map>,
    callback: Option<Callback>,
    /// What the gateway gave; sends come without it.
    ctx: RwLock<Option<ChannelContext>>,
    /// Callers that wait, for `run` to serve.
    exchanges: mpsc::UnboundedSender<Exchange>,
    arrivals: tokio::sync::Mutex<mpsc::UnboundedReceiver<Exchange>>,
    running: watch::Sender<bool>,
    seats: Arc<Seats>,
}

impl Webhook {
    /// A bridge by the name of `account`. `http` brings the proxy that callbacks go through, if any; everything else
    /// about the client (no redirects, 15 s, checked addresses) is set here.
    ///
    /// # Errors
    /// [`ConfigError`] when the config is not safe to serve: no usable secret, a private or unusable callback, a pointer
    /// that points nowhere. The route must then not exist.
    pub fn new(account: &str, config: Config, http: reqwest::ClientBuilder) -> Result<Self, ConfigError> {
        let keys = config.keys()?;
        if let Some(map) = &config.map {
            map.check()?;
        }
        let callback = Callback::new(&config, http, keys.outgoing.clone())?;
        let previews = config.previews && callback.is_some();
        let (exchanges, arrivals) = mpsc::unbounded_channel();
        Ok(Self {
            id: ChannelId::new("webhook", account),
            capabilities: Capabilities {
                text_limit: render::TEXT_LIMIT,
                text_unit: TextUnit::Chars,
                format: Format::Markdown,
                edits: previews,
                typing: previews,
                threads: true,
                buttons: false,
                queue: QueueMode::Collect,
                refuse_over_cap: true,
                account_in_key: true,
                silence_limit: None,
                expires_after: Duration::from_secs(24 * 60 * 60),
                retry_pauses: RETRY_PAUSES,
                per_lane: None,
                per_channel: None,
            },
            keys,
            turned_away: Seldom::default(),
            profile: config.profile,
            map: config.map,
            callback,
            ctx: RwLock::new(None),
            exchanges,
            arrivals: tokio::sync::Mutex::new(arrivals),
            running: watch::Sender::new(false),
            seats: Arc::default(),
        })
    }

    pub(crate) fn remember(&self, ctx: &ChannelContext) {
        *self.ctx.write().unwrap_or_else(PoisonError::into_inner) = Some(ctx.clone());
    }

    fn remembered(&self) -> Option<ChannelContext> {
        self.ctx.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn answer(&self, ctx: &ChannelContext, request: HttpRequest) -> Result<HttpResponse, Refusal> {
        match request.path.as_str() {
            "" | "/" => {
                if request.method != Method::POST {
                    return Err(Refusal::Method("POST"));
                }
                self.receive(ctx, request).await
            }
            path => {
                let id = path.strip_prefix("/messages/").filter(|id| !id.is_empty()).ok_or(Refusal::NoSuchHook)?;
                if request.method != Method::GET {
                    return Err(Refusal::Method("GET"));
                }
                self.admit(ctx, &request)?;
                self.poll(ctx, id).await
            }
        }
    }

    fn admit(&self, ctx: &ChannelContext, request: &HttpRequest) -> Result<(), Refusal> {
        if request.body.len() > BODY_LIMIT {
            return Err(Refusal::TooLarge(BODY_LIMIT));
        }
        auth::authenticate(&self.keys, &request.headers, &request.body, ctx.clock.now_ms())
            .map_err(|auth::Unauthorized| {
                if let Some(left_out) = self.turned_away.due(ctx.clock.monotonic()) {
                    tracing::warn!(
                        channel = %self.id,
                        code = "webhook_turned_away",
                        left_out,
                        "a request was turned away: its signature or token does not fit, or it is older than five minutes"
                    );
                }
                Refusal::Unauthorized
            })
    }

    async fn receive(&self, ctx: &ChannelContext, request: HttpRequest) -> Result<HttpResponse, Refusal> {
        self.admit(ctx, &request)?;
        inbound::check_media_type(&request.headers)?;
        let HttpRequest { headers, body, .. } = request;
        let Message { mut inbound, files } =
            inbound::inbound(&self.id, self.map.as_ref(), &headers, &body, ctx.clock.now_ms())?;
        drop(body);
        bring_in(ctx, &mut inbound, files).await;
        match wait::wanted(&headers, self.profile) {
            Some(wait) => self.wait(ctx, inbound, wait).await,
            None => {
                let id = inbound.platform_id.clone();
                match accept(ctx, inbound).await? {
                    Accepted::New(_) => Ok(accepted(&State { id: &id, duplicate: false }, None)),
                    Accepted::Duplicate(inbox) => {
                        let settled = ctx.settlements.settled(&inbox).await;
                        let state = State { id: &id, duplicate: true };
                        Ok(accepted(&state, settled.map(|settled| state.ended(&settled))))
                    }
                    other => not_waiting(&id, Profile::Standard, &other),
                }
            }
        }
    }

    /// Leaves the exchange to a task of `run`, which outlives this request.
    async fn wait(&self, ctx: &ChannelContext, message: Inbound, wait: Wait) -> Result<HttpResponse, Refusal> {
        if !*self.running.borrow() {
            return Err(wait::closed());
        }
        let (reply, answer) = oneshot::channel();
        let (ctx, profile, seats) = (ctx.clone(), self.profile, self.seats.clone());
        let exchange = Exchange { ctx, message, wait, profile, reply, seats };
        self.exchanges.send(exchange).map_err(|_| wait::closed())?;
        answer.await.map_err(|_| wait::closed())
    }

    /// What became of a message, by its platform id alone: ids of rows would reach beyond this channel.
    async fn poll(&self, ctx: &ChannelContext, id: &str) -> Result<HttpResponse, Refusal> {
        let state = State { id, duplicate: false };
        let inbox = ctx.settlements.find(id).await.ok_or(Refusal::NoSuchMessage)?;
        match ctx.settlements.settled(&inbox).await {
            Some(settled) => {
                let messages = settled_messages(ctx, id, None, &settled).await;
                Ok(HttpResponse::json(StatusCode::OK, &state.done(&settled, messages)))
            }
            None => Ok(accepted(&state, None)),
        }
    }

    async fn serve(&self, ctx: &ChannelContext, tasks: &mut JoinSet<()>) {
        let mut arrivals = self.arrivals.lock().await;
        self.running.send_replace(true);
        loop {
            tokio::select! {
                biased;
                () = ctx.shutdown.cancelled() => break,
                Some(ended) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(channel = %self.id, %error, "a waiting webhook call ended by a fault");
                    }
                }
                Some(exchange) = arrivals.recv() => drop(tasks.spawn(exchange.run())),
            }
        }
        self.running.send_replace(false);
        // Who was not served yet is told to come again: their `reply` is dropped.
        while arrivals.try_recv().is_ok() {}
    }

    /// Waits until `run` serves.
    #[cfg(test)]
    pub(crate) async fn until_running(&self) {
        let _ = self.running.subscribe().wait_for(|running| *running).await;
    }

    /// Posts one message of ours.
    async fn post(&self, id: &PartId, message: &Value) -> Result<Receipt, SendError> {
        let Some(callback) = &self.callback else { return Ok(Receipt::default()) };
        let Some(ctx) = self.remembered() else { return Err(not_started()) };
        callback.post(id.as_str(), message.to_string(), ctx.clock.now_ms()).await
    }
}

/// Nothing was sent; the channel is about to begin.
fn not_started() -> SendError {
    SendError::RetryAfter(Duration::from_millis(100))
}

fn accepted(state: &State<'_>, body: Option<Value>) -> HttpResponse {
    HttpResponse::json(StatusCode::ACCEPTED, &body.unwrap_or_else(|| state.accepted()))
}

/// Offers one message to the intake.
pub(crate) async fn accept(ctx: &ChannelContext, message: Inbound) -> Result<Accepted, Refusal> {
    let answers = ctx.intake.accept(Batch::from(message)).await?;
    channel_api::crash_point!("webhook.accepted");
    answers.into_iter().next().ok_or(Refusal::Unavailable(Duration::from_secs(5)))
}

/// The answer for a message that no turn will answer.
pub(crate) fn not_waiting(id: &str, profile: Profile, accepted: &Accepted) -> Result<HttpResponse, Refusal> {
    let state = State { id, duplicate: false };
    let mut body = match accepted {
        Accepted::New(_) | Accepted::Duplicate(_) | Accepted::Paired => state.accepted(),
        Accepted::Ignored(reason) => state.ignored(answer::ignored(*reason)?),
        Accepted::Conflict => return Err(Refusal::IdConflict),
        Accepted::Full(pause) => return Err(Refusal::SessionFull(*pause)),
    };
    if profile == Profile::Reply {
        body["reply"] = json!("");
        return Ok(HttpResponse::json(StatusCode::OK, &body));
    }
    Ok(HttpResponse::json(StatusCode::ACCEPTED, &body))
}

/// Brings in the files of a message that was not accepted before and that is to be answered: bytes are stored, links
/// fetched now, for many of them expire. A file that cannot be had costs the file, not the message.
async fn bring_in(ctx: &ChannelContext, inbound: &mut Inbound, files: Vec<File>) {
    if inbound.attachments.is_empty() || ctx.settlements.find(&inbound.platform_id).await.is_some() {
        return;
    }
    if !ctx.intake.wants_files(inbound) {
        return inbound.leave_files();
    }
    for (n, bytes) in files {
        let Some(attachment) = inbound.attachments.get_mut(n) else { continue };
        let mime = attachment.media.take().and_then(|media| media.mime);
        match ctx.media.store(bytes, mime).await {
            Ok(media) => attachment.media = Some(media),
            Err(error) => attachment.unavailable = Some(error.to_string()),
        }
    }
    let links = inbound.attachments.iter().enumerate().filter_map(|(n, attachment)| Some((n, link(attachment)?)));
    let fetched = links.take(LINKS).map(|(n, url)| async move {
        let fetched = tokio::select! {
            biased;
            fetched = ctx.media.fetch(url) => fetched,
            () = ctx.clock.sleep(LINKS_WITHIN) => Err(MediaError::Unreachable("it took too long".to_owned())),
        };
        (n, fetched)
    });
    for (n, fetched) in futures_util::future::join_all(fetched).await {
        let attachment = &mut inbound.attachments[n];
        match fetched {
            Ok(media) => attachment.media = Some(media),
            Err(error @ (MediaError::Refused(_) | MediaError::TooLarge(_))) => {
                attachment.media = None;
                attachment.unavailable = Some(error.to_string());
            }
            // The link stays: it may work later.
            Err(MediaError::Unreachable(_) | MediaError::Full | MediaError::Io(_)) => {}
        }
    }
}

fn link(attachment: &Attachment) -> Option<&str> {
    match &attachment.media.as_ref()?.source {
        MediaSource::Url(url) => Some(url),
        MediaSource::Stored(_) => None,
    }
}

#[async_trait]
impl HttpEndpoint for Webhook {
    fn body_limit(&self) -> usize {
        BODY_LIMIT
    }

    async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse {
        if self.remembered().is_none() {
            self.remember(ctx);
        }
        self.answer(ctx, request).await.unwrap_or_else(|refusal| refusal.response())
    }
}

#[async_trait]
impl Channel for Webhook {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    fn unheard(&self) -> Option<&'static str> {
        self.callback.is_none().then_some("callback_url")
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        self.remember(&ctx);
        let mut tasks = JoinSet::new();
        self.serve(&ctx, &mut tasks).await;
        // Each sees the shutdown too and answers 202 at once.
        while tasks.join_next().await.is_some() {}
        Ok(())
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        render::render(reply, level)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        if self.callback.is_none() {
            // Kept for whoever asks for it.
            return Ok(Receipt::default());
        }
        let Some(ctx) = self.remembered() else { return Err(not_started()) };
        let envelope = Envelope {
            id: key.part.as_str(),
            conversation: Some(&to.data),
            in_reply_to: key.in_reply_to.as_deref(),
            seq: key.seq,
            last: key.last,
            created_at: key.created_at,
        };
        let mut message = render::message(envelope, part, ctx.media.as_ref()).await;
        if let Some(preview) = &key.replaces {
            message["type"] = json!("message.update");
            message["target_id"] = json!(preview);
        }
        self.post(&key.part, &message).await
    }

    async fn reconcile(&self, _to: &Address, _part: &Part, _key: &SendKey, _since: i64) -> Reconciled {
        Reconciled::SafeToRepeat
    }

    async fn typing(&self, to: &Address) {
        if self.capabilities.typing
            && let Some(ctx) = self.remembered()
        {
            let id = PartId::generate();
            let timestamp = render::rfc3339(ctx.clock.now_ms());
            let message =
                json!({ "v": 1, "type": "typing", "id": id, "conversation": to.data, "timestamp": timestamp });
            if let Err(error) = self.post(&id, &message).await {
                tracing::debug!(channel = %self.id, %error, "a sign of typing was not taken");
            }
        }
    }

    fn live(&self) -> Option<&dyn LiveEdit> {
        self.capabilities.edits.then_some(self)
    }

    fn http(&self) -> Option<&dyn HttpEndpoint> {
        Some(self)
    }
}

/// Previews, where the config asks for them. The closing text comes by `send`, as a `message.update` of the preview.
#[async_trait]
impl LiveEdit for Webhook {
    fn pace(&self, _to: &Address) -> LivePace {
        LivePace::Edits { first: 1, every: Duration::from_millis(500), most: None }
    }

    async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError> {
        let id = PartId::generate();
        self.post(&id, &self.preview("message", &id, to, text, None)).await?;
        Ok(Preview { id: id.to_string(), replaced: true })
    }

    async fn update(&self, to: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
        let id = PartId::generate();
        let message = self.preview("message.update", &id, to, text, Some(&preview.id));
        self.post(&id, &message).await.map(drop)
    }

    async fn drop_preview(&self, to: &Address, preview: &Preview) {
        let id = PartId::generate();
        let message = self.preview("message.delete", &id, to, "", Some(&preview.id));
        if let Err(error) = self.post(&id, &message).await {
            tracing::debug!(channel = %self.id, %error, "the end of a preview was not taken");
        }
    }
}

impl Webhook {
    fn preview(&self, kind: &str, id: &PartId, to: &Address, text: &str, target: Option<&str>) -> Value {
        let now_ms = self.remembered().map_or(0, |ctx| ctx.clock.now_ms());
        let mut message = json!({
            "v": 1, "type": kind, "id": id, "conversation": to.data, "final": false, "text": text,
            "format": "markdown", "timestamp": render::rfc3339(now_ms),
        });
        if let Some(target) = target {
            message["target_id"] = json!(target);
        }
        message
    }
}
