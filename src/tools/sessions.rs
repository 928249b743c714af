//! `sessions`: the other conversations of whoever asks: which there are, what was said, and a question to one of them.
//! Never other people's: what somebody said to the agent alone stays between them.

use std::sync::Arc;

use async_trait::async_trait;
use channel_api::{ConversationKind, Trust};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Call, Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments};
use crate::{
    chats::{ChatRow, Chats, Place},
    errand::{Errand, ErrandError, ErrandKind, Errands, Order},
    model::Message,
    policy::Role,
    session::SessionKey,
    store::{SessionStore, StoreError, TurnStore},
    subagents::{DEEPEST, SubagentStore},
    untrusted,
};

/// Sessions listed, messages shown when no limit is given and at most, characters of each, bytes of them all.
const LISTED: u32 = 30;
const MESSAGES: u32 = 20;
const MOST_MESSAGES: u32 = 100;
const MESSAGE_CHARS: usize = 1_000;
const BYTES: u64 = 64 * 1024;
/// The most characters of a question to another session.
const TEXT_CHARS: usize = 8_000;

/// Looks at sessions.
pub struct OtherSessions {
    /// What it stands on; `None` where no turn runs.
    pub rooms: Option<Rooms>,
}

/// What is known of sessions.
#[derive(Clone)]
pub struct Rooms {
    /// The sessions.
    pub sessions: Arc<dyn SessionStore>,
    /// What was said in them.
    pub turns: Arc<dyn TurnStore>,
    /// Whose they are.
    pub chats: Chats,
    /// The sub-agents among them.
    pub subagents: Arc<dyn SubagentStore>,
    /// Takes questions.
    pub errands: Errands,
}

#[derive(Deserialize)]
struct Arguments {
    action: String,
    session: Option<String>,
    text: Option<String>,
    limit: Option<u32>,
}

#[async_trait]
impl Tool for OtherSessions {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "sessions".to_owned(),
            description: "Your other conversations. send asks one; its answer comes later.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "action": {"enum": ["list", "history", "send"]},
                    "session": {"type": "string", "description": "Key"},
                    "text": {"type": "string"},
                    "limit": {"type": "integer", "minimum": 1},
                },
                "required": ["action"],
                "additionalProperties": false,
            }),
        }
    }

    /// A question has its id from the call: a second run of the same call asks nothing twice.
    fn effect(&self) -> Effect {
        Effect::Idempotent
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { action, session, text, limit } = arguments::typed(args)?;
        let rooms = self.rooms.as_ref().ok_or_else(|| tell("No sessions can be seen from here."))?;
        let named = || session.as_deref().map(str::trim).filter(|key| !key.is_empty());
        let key = || named().map(|key| SessionKey::from(key.to_owned())).ok_or_else(|| tell("Which `session`?"));
        match action.as_str() {
            "list" => rooms.list(&ctx.call, limit.unwrap_or(LISTED).min(LISTED)).await,
            "history" => rooms.history(&ctx.call, &key()?, limit.unwrap_or(MESSAGES).min(MOST_MESSAGES)).await,
            "send" => rooms.send(&ctx.call, &key()?, text.as_deref().unwrap_or_default().trim()).await,
            _ => Err(tell("`action` is one of list, history, send.")),
        }
        .map(ToolOutput::from)
    }
}

/// What of a session may be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    /// It is the asker's own: it may be asked, too.
    Own,
    /// A group's: others read what is said there.
    Group,
    /// Nothing.
    Nothing,
}

fn tell(text: &str) -> ToolError {
    ToolError::TellModel(text.to_owned())
}

fn failed(error: StoreError) -> ToolError {
    ToolError::TellModel(format!("Sessions cannot be read now ({error})."))
}

impl Rooms {
    /// What of a session may be seen here: of this very session and its sub-agents all; for the owner, alone with the agent,
    /// also of their own direct chats, of groups in which an owner wrote last, and of the sub-agents of those.
    async fn seen(&self, call: &Call, session: &SessionKey) -> Result<Seen, ToolError> {
        let mut session = session.clone();
        for _ in 0..=DEEPEST {
            if session == call.session {
                return Ok(Seen::Own);
            }
            if !session.is_subagent() {
                break;
            }
            match self.subagents.subagent(&session).await.map_err(failed)? {
                Some(subagent) => session = subagent.parent,
                None => return Ok(Seen::Nothing),
            }
        }
        if call.asker.role < Role::Owner || !call.asker.direct {
            return Ok(Seen::Nothing);
        }
        let Some(chat) = self.chats.rows.chat_of(&session).await.map_err(failed)? else { return Ok(Seen::Nothing) };
        // The stored role is what its writer was; what they are now is asked.
        if self.chats.role(&chat.place) != Ok(Role::Owner) {
            return Ok(Seen::Nothing);
        }
        if chat.place.conversation.kind == ConversationKind::Group {
            return Ok(Seen::Group);
        }
        Ok(if self.is_own(call, &chat).await? { Seen::Own } else { Seen::Nothing })
    }

    async fn is_own(&self, call: &Call, chat: &ChatRow) -> Result<bool, ToolError> {
        let inbound = &call.inbound;
        let asker = Place {
            conversation: inbound.conversation.clone(),
            address: inbound.address.clone(),
            sender: inbound.sender.clone(),
        };
        self.chats.is_own(chat, &asker).await.map_err(failed)
    }

    async fn list(&self, call: &Call, limit: u32) -> Result<String, ToolError> {
        let mut lines = Vec::new();
        for row in self.sessions.sessions(None, 200).await.map_err(failed)? {
            if lines.len() >= limit as usize {
                break;
            }
            if self.seen(call, &row.key).await? == Seen::Nothing {
                continue;
            }
            let name = match row.key.is_subagent() {
                true => self.subagents.subagent(&row.key).await.map_err(failed)?.map(|subagent| subagent.label),
                false => self.chats.rows.chat_of(&row.key).await.map_err(failed)?.map(|chat| chat.name().to_owned()),
            };
            let name = super::broker::visible(&name.unwrap_or_default());
            let running = if row.running { ", running" } else { "" };
            let here = if row.key == call.session { " (this one)" } else { "" };
            lines.push(format!("- {}: {name}, {} messages{running}{here}", row.key, row.messages));
        }
        Ok(if lines.is_empty() { "(no sessions to be seen from here)".to_owned() } else { lines.join("\n") })
    }

    async fn history(&self, call: &Call, session: &SessionKey, limit: u32) -> Result<String, ToolError> {
        let row = match self.seen(call, session).await? {
            Seen::Nothing => None,
            _ => self.sessions.session(session).await.map_err(failed)?,
        };
        let row =
            row.ok_or_else(|| tell("There is no such session that may be read here. `list` shows those there are."))?;
        let history = self.turns.history(session, row.generation, limit, BYTES).await.map_err(failed)?;
        let lines: Vec<String> = history.iter().filter_map(line).collect();
        if lines.is_empty() {
            return Ok("(nothing was said there)".to_owned());
        }
        Ok(untrusted::block("session", "", &untrusted::defuse(&lines.join("\n"))).to_string())
    }

    async fn send(&self, call: &Call, session: &SessionKey, text: &str) -> Result<String, ToolError> {
        if text.is_empty() || text.chars().count() > TEXT_CHARS {
            return Err(tell("Not sent: `text` is empty or too long."));
        }
        if *session == call.session {
            return Err(tell("Not sent: that is this session."));
        }
        let depth = call.errand.as_ref().map_or(0, |errand| errand.depth);
        if depth >= DEEPEST {
            return Err(tell("Not sent: sessions have answered each other often enough. Answer with what you have."));
        }
        let row = match self.seen(call, session).await? {
            Seen::Own => self.sessions.session(session).await.map_err(failed)?,
            Seen::Group => {
                return Err(tell(
                    "Not sent: what a group's session is asked and answers is its members' to read. `history` shows what \
                     was said there; `message` writes to the group.",
                ));
            }
            Seen::Nothing => None,
        };
        let row = row.ok_or_else(|| {
            tell("There is no such session that may be asked here. To write to people, use `message`.")
        })?;
        let order = Order {
            errand: Errand {
                kind: ErrandKind::Message,
                id: format!("session {session}"),
                model: None,
                parent: Some(call.session.clone()),
                depth: depth + 1,
                tick: None,
            },
            platform_id: format!("ask:{}", call.key(0)),
            session: session.clone(),
            agent: row.agent,
            role: call.asker.role,
            sender: call.inbound.sender.clone(),
            // Nobody but the one who asks hears the answer.
            conversation: call.inbound.conversation.clone(),
            address: call.inbound.address.clone(),
            text: text.to_owned(),
            attachments: Vec::new(),
            trust: Trust::Own,
            not_before: 0,
        };
        match self.errands.give(order).await {
            Ok(_) => Ok(format!("Asked {session}. Do not wait: its answer comes as a message here.")),
            Err(ErrandError::Full) => Err(tell("Not sent: that session's queue is full.")),
            Err(ErrandError::Store(error)) => Err(failed(error)),
        }
    }
}

/// A message in a line or two: the words alone.
fn line(message: &Message) -> Option<String> {
    let (who, text) = match message {
        Message::User { text, .. } => ("user", text.split("<message_context>").next().unwrap_or_default()),
        Message::Assistant { text, .. } => ("you", text.as_str()),
        Message::Tool { .. } => return None,
    };
    let text = text.trim();
    (!text.is_empty())
        .then(|| format!("{who}: {}", super::truncate::head_and_tail(text, MESSAGE_CHARS, "it is longer")))
}
