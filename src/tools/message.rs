//! `message`: a word to another chat, or an extra one to this chat. Stored as outbox parts whose ids come from the call, so
//! that a call which runs again after a crash says nothing twice.

use std::sync::Arc;

use async_trait::async_trait;
use channel_api::{Attachment, Level, PartId, Reply, kind_of};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments, open_to_send};
use crate::{
    channels::Channels,
    chats::{ChatRow, Chats, Meant, Place},
    media::MediaFolder,
    outbox::{self, LaneWakeUp},
    policy::{Asks, Role},
    reply::{Outcome, Policy},
    secrets::Redactor,
    store::{OutboxStore, StepRecord, StepState, StoreError, Word},
};

/// The most characters of one message, files of it, and platform messages it becomes.
const TEXT_CHARS: usize = 16_000;
const FILES: usize = 10;
const PARTS: usize = 12;
/// Chats named when it is not plain which one is meant.
const NAMED: usize = 12;
/// How the result of a word to the same chat begins.
const SENT_HERE: &str = "Sent to this chat.";

/// Sends to a chat the gateway knows.
pub struct SendMessage {
    /// What it stands on; `None` where no turn runs.
    pub ways: Option<Ways>,
    /// Takes the configuration's secrets out.
    pub redactor: Redactor,
}

/// How words reach other chats.
#[derive(Clone)]
pub struct Ways {
    /// The chats.
    pub chats: Chats,
    /// Where words are stored.
    pub outbox: Arc<dyn OutboxStore>,
    /// Whose renderers are used.
    pub channels: Channels,
    /// Files to send.
    pub media: Arc<MediaFolder>,
    /// Wakes delivery.
    pub lanes: LaneWakeUp,
}

#[derive(Deserialize)]
struct Arguments {
    to: Option<String>,
    #[serde(default)]
    text: String,
    #[serde(default)]
    files: Vec<String>,
}

#[async_trait]
impl Tool for SendMessage {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "message".to_owned(),
            description: "Sends a message to another chat that has written here before.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "to": {"type": "string", "description": "Session key or channel:id"},
                    "text": {"type": "string"},
                    "files": {"type": "array", "items": {"type": "string"}},
                },
                "required": ["text"],
                "additionalProperties": false,
            }),
        }
    }

    /// The ids of its parts come from the call: a second run of the same call finds them and changes nothing.
    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    fn asks(&self, args: &Value) -> Asks {
        // A word in its own chat is the answer.
        if args["to"].is_string() { Asks::Outside } else { Asks::Never }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { to, text, files } = arguments::typed(args)?;
        let tell = |text: String| ToolError::TellModel(text);
        let ways = self.ways.as_ref().ok_or_else(|| tell("Nothing can be sent from here.".to_owned()))?;
        let call = &ctx.call;
        let chat = ways.target(to.as_deref(), call).await?;
        let here = chat.session == call.session;
        if !here && call.asker.role < Role::Owner {
            return Err(tell(
                "Not sent: only the owner may have other chats written to. Tell the person so.".to_owned(),
            ));
        }
        let text = self.redactor.redact(text.trim()).into_owned();
        if text.chars().count() > TEXT_CHARS || files.len() > FILES {
            return Err(tell(format!("Not sent: at most {TEXT_CHARS} characters and {FILES} files. Send less.")));
        }
        if files.is_empty() && Outcome::from_text(&text, &Policy::default()).silent().is_some() {
            return Err(tell("Not sent: the text says nothing.".to_owned()));
        }
        if here && matches!(chat.channel.kind(), "web" | "console") {
            return Err(tell(
                "Not sent: this chat shows your answer and nothing beside it. Put all of it in your answer.".to_owned(),
            ));
        }
        if let Err(why) = ways.chats.hears(&chat.channel) {
            let instead = if here { " Put all of it in your answer." } else { "" };
            return Err(tell(format!("Not sent: {}.{instead}", why.for_model())));
        }
        let entry = ways.channels.get(&chat.channel).filter(|entry| entry.channel.id().kind() != "web");
        let entry = entry.ok_or_else(|| {
            tell(format!("Not sent: `{}` is not a channel that can be written to now.", chat.channel))
        })?;
        let mut attachments = Vec::with_capacity(files.len());
        for path in files {
            attachments
                .push(ways.file(path, ctx, &self.redactor).await.map_err(|why| tell(format!("Not sent: {why}")))?);
        }
        let now = ctx.clock.now_ms();
        let reply = Reply { attachments, ..Reply::message(text.clone()) };
        let to = entry.channel.unprompted(&chat.place.address);
        let mut parts = outbox::rows(entry.channel.as_ref(), &reply, Level::Rich, &to, None, now);
        if parts.len() > PARTS {
            return Err(tell(format!("Not sent: that would be {} messages, at most {PARTS}. Send less.", parts.len())));
        }
        for (n, part) in parts.iter_mut().enumerate() {
            part.id = PartId::from(format!("pt_{}", call.key(n)));
        }
        let heard = (!here).then(|| (chat.session.clone(), text));
        let word = Word { lease: call.lease.clone(), parts, heard, now };
        let lanes = ways.outbox.say(word).await.map_err(failed)?;
        ways.lanes.wake(lanes);
        Ok(if here {
            format!("{SENT_HERE} If that was the answer, end with NO_REPLY alone.")
        } else {
            format!("Sent to {} ({}).", super::broker::visible(chat.name()), chat.session)
        }
        .into())
    }
}

fn failed(error: StoreError) -> ToolError {
    match error {
        StoreError::Fenced => ToolError::Abort(error.to_string()),
        error => ToolError::TellModel(format!("It could not be stored ({error}). Try once more, or say so.")),
    }
}

impl Ways {
    async fn target(&self, to: Option<&str>, call: &Call) -> Result<ChatRow, ToolError> {
        let inbound = &call.inbound;
        let Some(to) = to.map(str::trim).filter(|to| !to.is_empty() && *to != call.session.as_str()) else {
            return Ok(ChatRow {
                session: call.session.clone(),
                channel: inbound.address.channel.clone(),
                agent: call.agent.clone(),
                role: call.asker.role,
                place: Place {
                    conversation: inbound.conversation.clone(),
                    address: inbound.address.clone(),
                    sender: inbound.sender.clone(),
                },
                seen_at: 0,
            });
        };
        if call.asker.role < Role::Owner {
            // Who is asked for is nobody's business here: there is no list to be read out.
            return Err(ToolError::TellModel(
                "Not sent: only the owner may have other chats written to. Tell the person so.".to_owned(),
            ));
        }
        let (what, list) = match self.chats.meant(to).await.map_err(failed)? {
            Meant::One(chat) => {
                return match self.chats.may_be_told(&chat) {
                    Ok(()) => Ok(*chat),
                    Err(why) => {
                        Err(ToolError::TellModel(format!("Not sent to {}: {}.", chat.session, why.for_model())))
                    }
                };
            }
            Meant::Several(list) => ("is no address; it may be one of these", list),
            Meant::Nobody(list) => ("is no chat that has written here before", list),
        };
        let list: Vec<String> = list
            .iter()
            .filter(|chat| chat.channel.kind() != "web" && self.chats.may_be_told(chat).is_ok())
            .take(NAMED)
            .map(|chat| format!("- {}: {}", chat.session, super::broker::visible(chat.name())))
            .collect();
        let instead = match list.is_empty() {
            true => "No other chat can be written to: one can after somebody wrote in it.".to_owned(),
            false => format!("Use a session key:\n{}", list.join("\n")),
        };
        Err(ToolError::TellModel(format!("Not sent: `{}` {what}. {instead}", super::broker::short(to))))
    }

    /// A file of the workspace or of this session, kept among the gateway's own.
    async fn file(&self, path: String, ctx: &ToolContext, redactor: &Redactor) -> Result<Attachment, String> {
        let (workspace, readable, asker) = (ctx.workspace.clone(), vec![ctx.media.clone()], ctx.call.asker);
        let opened = tokio::task::spawn_blocking(move || open_to_send(&workspace, &readable, &path, asker)).await;
        let outgoing = opened.map_err(|error| error.to_string())??;
        let media = self.media.take_in_to_send(outgoing.file, redactor).await?;
        let name = Some(outgoing.name).filter(|name| !name.is_empty());
        Ok(Attachment { kind: kind_of(media.mime.as_deref()), media: Some(media), name, unavailable: None })
    }
}

/// What a finished step said in its own chat.
pub fn said_here(step: &StepRecord) -> Option<&str> {
    let here = step.name == "message"
        && step.state == StepState::Finished
        && step.result.as_str().is_some_and(|result| result.starts_with(SENT_HERE));
    here.then(|| step.args["text"].as_str()).flatten()
}
