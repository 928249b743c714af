//! One event of the gateway as an [`Inbound`]. Pure, never fails: what it does not know costs that piece, never the message.

use std::time::Duration;

use channel_api::{ChannelId, Conversation, ConversationKind, Inbound, InboundKind, ReplyTo, Sender, Trust};
use serde_json::Value;

use crate::{
    files::{self, Incoming},
    places::Places,
    target::{Command, Target, id, is_token, made_at},
};

/// A text from here on, in UTF-16 units, is likely the first piece of a longer one: clients cut at 2,000.
const NEARLY_FULL: usize = 1_900;
/// How long the next piece of a long text may take.
const NEXT_PIECE: Duration = Duration::from_millis(1_500);
/// How long the question to a picture may take.
const NEXT_PICTURE: Duration = Duration::from_millis(1_200);
/// The longest text that is taken, in characters: four times what Discord allows anyone.
const TEXT_CHARS: usize = 16_000;
/// The longest name or title, in characters.
const NAME_CHARS: usize = 100;
/// The most mentions, stickers and forwarded pieces that are looked at.
const PIECES: usize = 200;

/// What a reader of events has to know.
pub struct Reader<'a> {
    /// The channel.
    pub channel: &'a ChannelId,
    /// The bot's own id.
    pub me: &'a str,
    /// Channels, threads, roles.
    pub places: &'a Places,
}

/// A message and the files to fetch for it.
#[derive(Debug, PartialEq)]
pub struct Read {
    /// The message, without its files.
    pub inbound: Inbound,
    /// Its files, as Discord names them.
    pub files: Vec<Incoming>,
}

impl Reader<'_> {
    /// What a new message (`MESSAGE_CREATE`, or one of a REST list with its `guild_id` put in) says to the bot; `None` when
    /// it says nothing: our own, another bot's, a notice of Discord.
    pub fn message(&self, data: &Value) -> Option<Read> {
        let message_id = id(data, "id")?;
        self.read(data, InboundKind::Message, message_id)
    }

    /// What a changed message (`MESSAGE_UPDATE`) says now; `None` when only Discord changed something, such as a preview.
    pub fn edit(&self, data: &Value) -> Option<Read> {
        let edited = data.get("edited_timestamp")?.as_str()?;
        data.get("content")?.as_str()?;
        let message_id = id(data, "id")?;
        let stamp: String = edited.chars().filter(char::is_ascii_digit).take(20).collect();
        let mut read = self.read(data, InboundKind::Edit, format!("{message_id}:{stamp}"))?;
        read.inbound.about = Some(message_id);
        Some(read)
    }

    /// A message that is gone. `known` is what was said when it came.
    pub fn deleted(&self, message_id: &str, data: &Value, known: Option<(Conversation, Sender)>) -> Option<Inbound> {
        let channel_id = id(data, "channel_id")?;
        let (conversation, sender) = match known {
            Some(known) => known,
            None => {
                id(data, "guild_id")?;
                let unknown = Sender { id: "unknown".to_owned(), name: None, is_bot: false };
                (self.group(&channel_id), unknown)
            }
        };
        let target = Target { channel: channel_id, reply: None, command: None };
        Some(Inbound {
            about: Some(message_id.to_owned()),
            platform_id: format!("{message_id}:deleted"),
            ..self.event(InboundKind::Deleted, conversation, sender, target)
        })
    }

    /// A slash command or a pressed button; `acknowledged` decides whether a command can be answered in place.
    pub fn interaction(&self, data: &Value, acknowledged: bool, now_ms: i64) -> Option<Inbound> {
        let interaction = id(data, "id")?;
        let kind = data.get("type").and_then(Value::as_u64)?;
        let chosen = data.get("data")?;
        let text = match kind {
            2 => command_text(chosen)?,
            3 => start(chosen.get("custom_id")?.as_str()?, 100),
            _ => return None,
        };
        if let Some(channel) = data.get("channel") {
            self.places.add(channel);
        }
        let channel_id = id(data, "channel_id").or_else(|| id(data.get("channel")?, "id"))?;
        let guild = id(data, "guild_id").is_some();
        let user = data.get("member").and_then(|member| member.get("user")).or_else(|| data.get("user"))?;
        let sender = self.sender(user, data.get("member"))?;
        let command = (kind == 2 && acknowledged).then(|| {
            let token = data.get("token").and_then(Value::as_str).filter(|token| is_token(token))?;
            Some(Command { app: id(data, "application_id")?, token: token.to_owned(), at: now_ms, hidden: guild })
        });
        let reply = (guild && kind == 3).then(|| data.get("message").and_then(|message| id(message, "id"))).flatten();
        let conversation = match guild {
            true => self.group(&channel_id),
            false => direct(&sender),
        };
        let target = Target { channel: channel_id, reply, command: command.flatten() };
        Some(Inbound {
            // No message has such an id: nothing is marked or quoted by it.
            platform_id: format!("interaction:{interaction}"),
            text,
            mentions_us: true,
            at: Some(made_at(&interaction)),
            ..self.event(InboundKind::Button, conversation, sender, target)
        })
    }

    fn read(&self, data: &Value, kind: InboundKind, platform_id: String) -> Option<Read> {
        let message_id = id(data, "id")?;
        let channel_id = id(data, "channel_id")?;
        let guild = id(data, "guild_id").is_some();
        // 0: a message, 19: a reply. The rest are notices: somebody joined, something was pinned.
        if !matches!(data.get("type").and_then(Value::as_u64), None | Some(0 | 19)) {
            return None;
        }
        let sender = self.sender(data.get("author")?, data.get("member"))?;
        if sender.id == self.me || sender.is_bot || data.get("webhook_id").is_some_and(|id| !id.is_null()) {
            return None;
        }
        let (text, forwarded) = self.words(data);
        let mut files = files::listed(data.get("attachments"));
        for snapshot in snapshots(data) {
            files.extend(files::listed(snapshot.get("attachments")));
        }
        files.truncate(files::MOST);
        if text.trim().is_empty() && files.is_empty() && kind == InboundKind::Message {
            return None;
        }
        let reply_to = self.answered(data);
        let mentions_us = !guild || self.mentioned(data) || reply_to.as_ref().is_some_and(|reply| reply.ours);
        let more_expected = if text.encode_utf16().count() >= NEARLY_FULL {
            Some(NEXT_PIECE)
        } else {
            (text.trim().is_empty() && !files.is_empty()).then_some(NEXT_PICTURE)
        };
        let conversation = if guild { self.group(&channel_id) } else { direct(&sender) };
        let target = Target { channel: channel_id, reply: guild.then(|| message_id.clone()), command: None };
        let inbound = Inbound {
            platform_id,
            text,
            mentions_us,
            reply_to,
            at: Some(made_at(&message_id)),
            trust: if forwarded { Trust::Relayed } else { Trust::Own },
            more_expected,
            ..self.event(kind, conversation, sender, target)
        };
        Some(Read { inbound, files })
    }

    fn event(&self, kind: InboundKind, conversation: Conversation, sender: Sender, target: Target) -> Inbound {
        Inbound {
            channel: self.channel.clone(),
            platform_id: String::new(),
            fingerprint: None,
            kind,
            about: None,
            conversation,
            sender,
            text: String::new(),
            attachments: Vec::new(),
            mentions_us: false,
            reply_to: None,
            at: None,
            address: target.address(self.channel),
            trust: Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        }
    }

    /// A channel of a server, or a thread of one.
    fn group(&self, channel_id: &str) -> Conversation {
        let place = self.places.get(channel_id).unwrap_or_default();
        let (id, thread) = match place.parent {
            Some(parent) => (parent, Some(channel_id.to_owned())),
            None => (channel_id.to_owned(), None),
        };
        Conversation { kind: ConversationKind::Group, id, thread, title: place.name }
    }

    fn sender(&self, user: &Value, member: Option<&Value>) -> Option<Sender> {
        let word =
            |value: &Value, key: &str| value.get(key).and_then(Value::as_str).map(|name| start(name, NAME_CHARS));
        let name = member
            .and_then(|member| word(member, "nick"))
            .or_else(|| word(user, "global_name"))
            .or_else(|| word(user, "username"));
        let is_bot = ["bot", "system"].iter().any(|key| user.get(key).and_then(Value::as_bool) == Some(true));
        Some(Sender { id: id(user, "id")?, name, is_bot })
    }

    /// The words, and whether somebody else's were forwarded.
    fn words(&self, data: &Value) -> (String, bool) {
        let own = data.get("content").and_then(Value::as_str).unwrap_or_default();
        let mut text = self.readable(&start(own, TEXT_CHARS), data);
        let mut forwarded = false;
        for snapshot in snapshots(data) {
            forwarded = true;
            let said = snapshot.get("content").and_then(Value::as_str).unwrap_or_default();
            add_line(&mut text, &self.readable(&start(said, TEXT_CHARS), snapshot));
        }
        for sticker in data.get("sticker_items").and_then(Value::as_array).into_iter().flatten().take(PIECES) {
            if let Some(name) = sticker.get("name").and_then(Value::as_str) {
                add_line(&mut text, &format!("[sticker: {}]", start(name, NAME_CHARS)));
            }
        }
        if let Some(poll) = data.get("poll") {
            let ask = |value: &Value| Some(start(value.get("text")?.as_str()?, 300));
            let question = poll.get("question").and_then(ask).unwrap_or_default();
            let answers = poll.get("answers").and_then(Value::as_array).into_iter().flatten().take(20);
            let answers: Vec<String> = answers.filter_map(|answer| answer.get("poll_media").and_then(ask)).collect();
            add_line(&mut text, &format!("[poll: {question} {}]", answers.join(" / ")));
        }
        (start(&text, TEXT_CHARS), forwarded)
    }

    /// Discord's marks as a person reads them: our own mention is left out, others become names.
    fn readable(&self, content: &str, data: &Value) -> String {
        let mut text = String::with_capacity(content.len());
        let mut rest = content;
        while let Some(at) = rest.find('<') {
            text.push_str(&rest[..at]);
            rest = &rest[at..];
            let Some(end) = rest.find('>').filter(|end| *end < 80) else {
                text.push('<');
                rest = &rest[1..];
                continue;
            };
            match self.mark(&rest[1..end], data) {
                Some(name) => {
                    text.push_str(&name);
                    rest = &rest[end + 1..];
                }
                None => {
                    text.push('<');
                    rest = &rest[1..];
                }
            }
        }
        text.push_str(rest);
        text.trim().to_owned()
    }

    /// What stands between `<` and `>`; `None` when it is no mark of Discord.
    fn mark(&self, mark: &str, data: &Value) -> Option<String> {
        let digits = |text: &str| crate::target::is_id(text);
        if let Some(role) = mark.strip_prefix("@&").filter(|role| digits(role)) {
            return Some(if self.places.is_our_role(role) { String::new() } else { format!("@role:{role}") });
        }
        if let Some(user) = mark.strip_prefix('@').map(|user| user.trim_start_matches('!')).filter(|user| digits(user))
        {
            if user == self.me {
                return Some(String::new());
            }
            let named = mentions(data).find(|mention| id(mention, "id").as_deref() == Some(user));
            let name = named.and_then(|mention| self.sender(mention, mention.get("member"))).and_then(|s| s.name);
            return Some(format!("@{}", name.unwrap_or_else(|| user.to_owned())));
        }
        if let Some(channel) = mark.strip_prefix('#').filter(|channel| digits(channel)) {
            let name = self.places.get(channel).and_then(|place| place.name);
            return Some(format!("#{}", name.unwrap_or_else(|| channel.to_owned())));
        }
        // An emoji of a server: `:name:id` or `a:name:id`.
        let emoji = mark.strip_prefix('a').unwrap_or(mark).strip_prefix(':')?;
        let (name, number) = emoji.split_once(':')?;
        (digits(number) && !name.is_empty()).then(|| format!(":{name}:"))
    }

    /// By id only: a name can be anybody's. `@everyone` means nobody in particular.
    fn mentioned(&self, data: &Value) -> bool {
        let roles = data.get("mention_roles").and_then(Value::as_array).into_iter().flatten().take(PIECES);
        mentions(data).any(|mention| id(mention, "id").as_deref() == Some(self.me))
            || roles.filter_map(Value::as_str).any(|role| self.places.is_our_role(role))
    }

    /// The message that this one answers.
    fn answered(&self, data: &Value) -> Option<ReplyTo> {
        let reference = data.get("message_reference").filter(|reference| {
            // 1 is a forward.
            reference.get("type").and_then(Value::as_u64).unwrap_or(0) == 0
        })?;
        let answered_id = id(reference, "message_id")?;
        let Some(answered) = data.get("referenced_message").filter(|message| message.is_object()) else {
            return Some(ReplyTo { id: Some(answered_id), text: None, sender_id: None, ours: false });
        };
        let author = answered.get("author").and_then(|author| id(author, "id"));
        let (text, _) = self.words(answered);
        Some(ReplyTo {
            id: Some(answered_id),
            text: Some(text).filter(|text| !text.is_empty()),
            ours: author.as_deref() == Some(self.me),
            sender_id: author,
        })
    }
}

fn direct(sender: &Sender) -> Conversation {
    Conversation { kind: ConversationKind::Direct, id: sender.id.clone(), thread: None, title: None }
}

fn mentions(data: &Value) -> impl Iterator<Item = &Value> {
    data.get("mentions").and_then(Value::as_array).into_iter().flatten().take(PIECES)
}

/// Forwarded messages.
fn snapshots(data: &Value) -> impl Iterator<Item = &Value> {
    let snapshots = data.get("message_snapshots").and_then(Value::as_array).into_iter().flatten().take(10);
    snapshots.filter_map(|snapshot| snapshot.get("message"))
}

fn add_line(text: &mut String, line: &str) {
    if line.trim().is_empty() {
        return;
    }
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(line);
}

/// `/name value value`, as it would be typed.
fn command_text(chosen: &Value) -> Option<String> {
    let mut text = format!("/{}", start(chosen.get("name")?.as_str()?, 32));
    for option in chosen.get("options").and_then(Value::as_array).into_iter().flatten().take(10) {
        match option.get("value") {
            Some(Value::String(value)) => text.push_str(&format!(" {}", start(value, TEXT_CHARS))),
            Some(value @ (Value::Number(_) | Value::Bool(_))) => text.push_str(&format!(" {value}")),
            _ => {}
        }
    }
    Some(text)
}

fn start(text: &str, chars: usize) -> String {
    text.chars().take(chars).collect()
}

#[cfg(test)]
mod tests;
