//! The way between the gateway and a platform: no reply, no preview and no stored message holds a secret, and nothing that an
//! adapter says of an error does. security.md rows 27 and 28.

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use channel_api::{
    Accepted, Address, Batch, Capabilities, Channel, ChannelContext, ChannelError, ChannelId, Finding, HttpEndpoint,
    Inbound, Intake, IntakeError, Level, LiveEdit, LivePace, Mark, Part, Preview, Rate, Receipt, Reconciled, Reply,
    Said, SendError, SendKey, SocketEndpoint,
};
use serde_json::Value;
use tracing::warn;

use super::Redactor;

/// A channel whose words hold no secret.
pub struct Screened {
    inner: Arc<dyn Channel>,
    redactor: Redactor,
}

impl Screened {
    /// Stands before `inner`.
    pub fn before(inner: Arc<dyn Channel>, redactor: Redactor) -> Arc<dyn Channel> {
        Arc::new(Self { inner, redactor })
    }

    fn text(&self, mut text: String) -> String {
        self.redactor.clean(&mut text);
        text
    }

    fn told(&self, what: &'static str) {
        warn!(channel = %self.inner.id(), what, "a secret of this gateway was on its way out: it was taken out");
    }

    fn part<'a>(&self, part: &'a Part) -> Cow<'a, Part> {
        let mut body = part.body.clone();
        let found = body_cleaned(&self.redactor, &mut body);
        match self.redactor.redact(&part.text) {
            Cow::Borrowed(_) if !found => Cow::Borrowed(part),
            text => {
                self.told("message");
                Cow::Owned(Part { text: text.into_owned(), body })
            }
        }
    }

    fn error(&self, error: SendError) -> SendError {
        match error {
            SendError::Retry(why) => SendError::Retry(self.text(why)),
            SendError::Unknown(why) => SendError::Unknown(self.text(why)),
            SendError::Refused(why) => SendError::Refused(self.text(why)),
            SendError::ChannelDown(why) => SendError::ChannelDown(self.text(why)),
            other @ (SendError::RetryAfter(_) | SendError::Rerender(_)) => other,
        }
    }

    fn edits(&self) -> Result<&dyn LiveEdit, SendError> {
        self.inner.live().ok_or_else(|| SendError::Refused("it shows no previews".to_owned()))
    }
}

/// Takes the secrets out of the strings of a body; whether there was one.
fn body_cleaned(redactor: &Redactor, body: &mut Value) -> bool {
    match body {
        Value::String(text) => redactor.clean(text),
        Value::Array(list) => list.iter_mut().fold(false, |found, value| body_cleaned(redactor, value) | found),
        Value::Object(map) => map.values_mut().fold(false, |found, value| body_cleaned(redactor, value) | found),
        _ => false,
    }
}

#[async_trait]
impl Channel for Screened {
    fn id(&self) -> &ChannelId {
        self.inner.id()
    }

    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn lane_rate(&self, lane: &str) -> Option<Rate> {
        self.inner.lane_rate(lane)
    }

    fn exclusive(&self) -> Option<String> {
        self.inner.exclusive()
    }

    fn unguarded(&self) -> Option<&'static str> {
        self.inner.unguarded()
    }

    fn unheard(&self) -> Option<&'static str> {
        self.inner.unheard()
    }

    fn open(&self, ctx: &ChannelContext) {
        self.inner.open(ctx);
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        self.inner.run(ctx).await.map_err(|error| match error {
            ChannelError::Restart(why) => ChannelError::Restart(self.text(why)),
            ChannelError::RestartAfter(pause, why) => ChannelError::RestartAfter(pause, self.text(why)),
            ChannelError::Stop(why) => ChannelError::Stop(self.text(why)),
        })
    }

    fn screened<'a>(&self, reply: &'a Reply) -> Cow<'a, Reply> {
        let mut clean = reply.clone();
        let mut found = self.redactor.clean(&mut clean.text);
        for attachment in &mut clean.attachments {
            found |= attachment.name.as_mut().is_some_and(|name| self.redactor.clean(name));
        }
        for button in clean.buttons.iter_mut().flatten() {
            found |= self.redactor.clean(&mut button.label);
        }
        if !found {
            return Cow::Borrowed(reply);
        }
        self.told("reply");
        Cow::Owned(clean)
    }

    fn render(&self, reply: &Reply, level: Level) -> Vec<Part> {
        self.inner.render(&self.screened(reply), level)
    }

    async fn send(&self, to: &Address, part: &Part, key: &SendKey) -> Result<Receipt, SendError> {
        self.inner.send(to, &self.part(part), key).await.map_err(|error| self.error(error))
    }

    async fn reconcile(&self, to: &Address, part: &Part, key: &SendKey, since: i64) -> Reconciled {
        self.inner.reconcile(to, part, key, since).await
    }

    fn unprompted(&self, to: &Address) -> Address {
        self.inner.unprompted(to)
    }

    async fn typing(&self, to: &Address) {
        self.inner.typing(to).await;
    }

    fn live(&self) -> Option<&dyn LiveEdit> {
        self.inner.live().map(|_| self as &dyn LiveEdit)
    }

    fn http(&self) -> Option<&dyn HttpEndpoint> {
        self.inner.http()
    }

    fn socket(&self) -> Option<&dyn SocketEndpoint> {
        self.inner.socket()
    }

    async fn probe(&self) -> Vec<Finding> {
        let said = |said: Said| Said::new(self.text(said.en), self.text(said.zh));
        let found = self.inner.probe().await.into_iter();
        found.map(|one| Finding { said: said(one.said), fix: one.fix.map(said), ..one }).collect()
    }
}

#[async_trait]
impl LiveEdit for Screened {
    fn pace(&self, to: &Address) -> LivePace {
        self.inner.live().map_or(LivePace::Off, |live| live.pace(to))
    }

    async fn begin(&self, to: &Address, text: &str) -> Result<Preview, SendError> {
        let text = self.redactor.redact(text);
        self.edits()?.begin(to, &text).await.map_err(|error| self.error(error))
    }

    async fn update(&self, to: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
        let text = self.redactor.redact(text);
        self.edits()?.update(to, preview, &text).await.map_err(|error| self.error(error))
    }

    async fn drop_preview(&self, to: &Address, preview: &Preview) {
        if let Some(live) = self.inner.live() {
            live.drop_preview(to, preview).await;
        }
    }

    async fn mark(&self, to: &Address, platform_id: &str, mark: Mark) {
        if let Some(live) = self.inner.live() {
            live.mark(to, platform_id, mark).await;
        }
    }
}

/// Takes messages in without the secrets that somebody may have put into them: no row, no prompt and no log holds them.
pub struct ScreenedIntake {
    /// Takes them.
    pub intake: Arc<dyn Intake>,
    /// Knows the secrets.
    pub redactor: Redactor,
}

#[async_trait]
impl Intake for ScreenedIntake {
    fn wants_files(&self, event: &Inbound) -> bool {
        self.intake.wants_files(event)
    }

    async fn accept(&self, mut batch: Batch) -> Result<Vec<Accepted>, IntakeError> {
        for event in &mut batch.events {
            let mut found = self.redactor.clean(&mut event.text);
            let quoted = event.reply_to.as_mut().and_then(|quoted| quoted.text.as_mut());
            let names = event.attachments.iter_mut().filter_map(|file| file.name.as_mut());
            let others =
                quoted.into_iter().chain(names).chain(&mut event.sender.name).chain(&mut event.conversation.title);
            for text in others {
                found |= self.redactor.clean(text);
            }
            if found {
                warn!(channel = %event.channel, "a message held a secret of this gateway: it was taken out");
            }
        }
        self.intake.accept(batch).await
    }
}
