//! What a message needs before it is whole: its files, the message it answers, what it forwards. Bounded in number, depth
//! and time; what does not come is said, and the message goes in all the same.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use base64::Engine as _;
use bytes::Bytes;
use channel_api::{Attachment, AttachmentKind, ChannelContext, MediaRef, kind_of, reach};
use futures_util::future::{BoxFuture, FutureExt};
use serde_json::{Value, json};
use url::Url;

use crate::{
    OneBot, ids,
    inbound::{self, File, Forward, Said},
    target::{self, Chat},
};

/// How long all files of a message may take.
const FILES_TIME: Duration = Duration::from_secs(20);
/// How long a question about a message may take.
const ASK: Duration = Duration::from_secs(5);
/// The deepest forward within forwards that is read.
const DEEPEST: usize = 3;
/// The most forwarded messages that are read, all depths together.
const NODES: usize = 50;
/// The longest quoted text, in characters.
const QUOTE: usize = 4_000;
/// The most messages that are remembered.
const REMEMBERED: usize = 4_000;

/// Completes a message. Nothing is asked for on account of somebody who may not speak to the bot, and no file is fetched
/// with a message that the bot does not answer.
pub async fn complete(onebot: &OneBot, ctx: &ChannelContext, bot: &str, said: &mut Said) {
    let files = std::mem::take(&mut said.files);
    let unfetched =
        |file: &File| Attachment { kind: file.kind, media: None, name: file.name.clone(), unavailable: None };
    said.inbound.attachments = files.iter().map(unfetched).collect();
    if !may_speak(ctx, said) {
        if !said.forwards.is_empty() {
            add_lines(&mut said.inbound.text, "[forwarded messages, which were not read]");
        }
        return said.inbound.leave_files();
    }
    if said.reply.is_some() {
        reply(onebot, bot, said).await;
    }
    if !said.forwards.is_empty() {
        let shown = forwards(onebot, bot, std::mem::take(&mut said.forwards)).await;
        add_lines(&mut said.inbound.text, &shown);
    }
    if files.is_empty() {
        return;
    }
    if ctx.intake.wants_files(&said.inbound) {
        said.inbound.attachments = attachments(onebot, ctx, bot, &said.chat, files).await;
    } else {
        said.inbound.leave_files();
    }
}

/// Whether the bot would answer this message if it addressed the bot; whether it does may be known by its quote only.
fn may_speak(ctx: &ChannelContext, said: &Said) -> bool {
    let mut event = said.inbound.as_if_addressed();
    if event.text.trim().is_empty() && !said.forwards.is_empty() {
        // What it forwards are its words.
        event.text = "[forwarded messages]".to_owned();
    }
    ctx.intake.wants_files(&event)
}

fn add_lines(text: &mut String, lines: &str) {
    if !text.is_empty() {
        text.push('\n');
    }
    text.push_str(lines);
}

/// Who wrote the message that this one answers, and what it said.
async fn reply(onebot: &OneBot, bot: &str, said: &mut Said) {
    let Some(id) = said.reply.clone() else { return };
    let ours = onebot.recent.is_ours(&said.chat, &id);
    let asked = onebot.links.call(bot, "get_msg", json!({ "message_id": ids::parameter(&id) }), ASK).await;
    let answered = asked.ok().filter(|message| is_of(message, &said.chat));
    let sender = answered.as_ref().and_then(|message| {
        ids::number_at(message.get("sender").unwrap_or(&Value::Null), "user_id")
            .or_else(|| ids::number_at(message, "user_id"))
    });
    let text = answered.as_ref().map(inbound::words).filter(|text| !text.trim().is_empty());
    if let Some(reply) = &mut said.inbound.reply_to {
        reply.ours = ours || sender.as_deref() == Some(bot);
        reply.sender_id = sender.or_else(|| ours.then(|| bot.to_owned()));
        reply.text = text.map(|text| text.chars().take(QUOTE).collect());
        said.inbound.mentions_us |= reply.ours;
    }
}

/// An id is unique in its chat only; a message of another chat is not the one that was meant.
fn is_of(message: &Value, chat: &Chat) -> bool {
    let found = ids::number_at(message, "group_id");
    let kind = message.get("message_type").and_then(Value::as_str);
    match chat {
        Chat::Group(group) => kind != Some("private") && found.is_none_or(|found| *group == found),
        // What was said in a group is not shown to one person alone.
        Chat::Private(_) => kind != Some("group") && found.is_none(),
        Chat::Temporary(..) | Chat::Guild(..) => kind != Some("group"),
    }
}

/// The key of a message that was seen, or can still be asked for.
pub async fn key_of(onebot: &OneBot, bot: &str, chat: &Chat, message: &str) -> Option<String> {
    if let Some(key) = onebot.recent.key(chat, message) {
        return Some(key);
    }
    let params = json!({ "message_id": ids::parameter(message) });
    let found = onebot.links.call(bot, "get_msg", params, ASK).await.ok().filter(|found| is_of(found, chat))?;
    let time = inbound::time(&found);
    (time > 0).then(|| target::key(chat, message, time))
}

/// What was forwarded, as lines.
async fn forwards(onebot: &OneBot, bot: &str, found: Vec<Forward>) -> String {
    let mut reading = Reading { onebot, bot, left: NODES, known: HashSet::new(), lines: Vec::new() };
    for forward in found {
        reading.forward(forward, 1).await;
    }
    reading.lines.join("\n")
}

struct Reading<'a> {
    onebot: &'a OneBot,
    bot: &'a str,
    left: usize,
    known: HashSet<String>,
    lines: Vec<String>,
}

impl Reading<'_> {
    fn forward(&mut self, forward: Forward, depth: usize) -> BoxFuture<'_, ()> {
        async move {
            let indent = "  ".repeat(depth - 1);
            if depth > DEEPEST {
                self.lines.push(format!("{indent}[forwarded messages, too deep to be read]"));
                return;
            }
            let content = match forward {
                Forward::Content(content) => content,
                Forward::Id(id) => {
                    if !self.known.insert(id.clone()) {
                        self.lines.push(format!("{indent}[the same forwarded messages again]"));
                        return;
                    }
                    // The id is longer than numbers are exact; some know it by one name, some by the other.
                    let params = json!({ "id": id, "message_id": id });
                    match self.onebot.links.call(self.bot, "get_forward_msg", params, ASK * 2).await {
                        Ok(data) => ["messages", "message", "content"]
                            .iter()
                            .find_map(|key| data.get(key).filter(|list| list.is_array()).cloned())
                            .unwrap_or(data),
                        Err(_) => {
                            self.lines.push(format!("{indent}[forwarded messages, which could not be read]"));
                            return;
                        }
                    }
                }
            };
            self.lines.push(format!("{indent}[forwarded messages]"));
            let nodes = content.as_array().map_or(&[][..], Vec::as_slice);
            for (n, node) in nodes.iter().enumerate() {
                if self.left == 0 {
                    self.lines.push(format!("{indent}[{} more]", nodes.len() - n));
                    break;
                }
                let Some((name, text, inner)) = inbound::forwarded(node) else { continue };
                self.left -= 1;
                if !text.trim().is_empty() || inner.is_empty() {
                    self.lines.push(format!("{indent}{name}: {}", text.replace('\n', &format!("\n{indent}  "))));
                } else {
                    self.lines.push(format!("{indent}{name}:"));
                }
                for forward in inner {
                    self.forward(forward, depth + 1).await;
                }
            }
            self.lines.push(format!("{indent}[end of the forwarded messages]"));
        }
        .boxed()
    }
}

/// The files of a message, kept, or why they are not there. What came late is left out with the rest.
async fn attachments(
    onebot: &OneBot,
    ctx: &ChannelContext,
    bot: &str,
    chat: &Chat,
    files: Vec<File>,
) -> Vec<Attachment> {
    let kept = futures_util::future::join_all(files.into_iter().map(|file| async move {
        let found = tokio::select! {
            biased;
            found = keep(onebot, ctx, bot, chat, &file) => found,
            () = ctx.clock.sleep(FILES_TIME) => Err("it did not come in time".to_owned()),
        };
        let File { kind, name, .. } = file;
        match found {
            Ok(media) => {
                let kind = if kind == AttachmentKind::File { kind_of(media.mime.as_deref()) } else { kind };
                Attachment { kind, media: Some(media), name, unavailable: None }
            }
            Err(why) => Attachment { kind, media: None, name, unavailable: Some(why) },
        }
    }));
    kept.await
}

/// One file: from the message itself, from a public address, or from the implementation.
async fn keep(onebot: &OneBot, ctx: &ChannelContext, bot: &str, chat: &Chat, file: &File) -> Result<MediaRef, String> {
    // QQ's voices are in a format of its own; the implementation can turn them into one that others read.
    let asks_first = file.kind == AttachmentKind::Audio;
    if asks_first && let Some(Ok(media)) = ask(onebot, ctx, bot, chat, file).await {
        return Ok(media);
    }
    let mut why = "the OneBot side gives no address that it could be fetched from".to_owned();
    for place in &file.places {
        match at(ctx, place).await {
            Some(Ok(media)) => return Ok(media),
            Some(Err(failed)) => why = failed,
            None => {}
        }
    }
    if !asks_first {
        match ask(onebot, ctx, bot, chat, file).await {
            Some(Ok(media)) => return Ok(media),
            Some(Err(failed)) => why = failed,
            None => {}
        }
    }
    Err(why)
}

/// What is at a place; `None` when it is none that we can read: a path on the other machine, a bare name.
async fn at(ctx: &ChannelContext, place: &str) -> Option<Result<MediaRef, String>> {
    if let Some(text) = place.strip_prefix("base64://") {
        return Some(inline(ctx, text).await);
    }
    let url = Url::parse(place).ok().filter(|url| matches!(url.scheme(), "http" | "https"))?;
    if url.host().is_none_or(|host| is_private(&host)) {
        return Some(Err("its address is not a public one".to_owned()));
    }
    Some(ctx.media.fetch(url.as_str()).await.map_err(|error| error.to_string()))
}

fn is_private(host: &url::Host<&str>) -> bool {
    match host {
        url::Host::Ipv4(ip) => !reach::is_public((*ip).into()),
        url::Host::Ipv6(ip) => !reach::is_public((*ip).into()),
        url::Host::Domain(name) => reach::is_private_name(name),
    }
}

async fn inline(ctx: &ChannelContext, text: &str) -> Result<MediaRef, String> {
    let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
    let engine = base64::engine::general_purpose::STANDARD_NO_PAD;
    let bytes = engine.decode(text.trim_end_matches('=')).map_err(|_| "its base64 cannot be read".to_owned())?;
    ctx.media.store(Bytes::from(bytes), None).await.map_err(|error| error.to_string())
}

/// Asks the implementation for the file; `None` when there is nothing to ask for.
async fn ask(
    onebot: &OneBot,
    ctx: &ChannelContext,
    bot: &str,
    chat: &Chat,
    file: &File,
) -> Option<Result<MediaRef, String>> {
    let id = file.id.as_deref()?;
    let (action, params) = match (file.kind, chat) {
        (AttachmentKind::Audio, _) => ("get_record", json!({ "file": id, "file_id": id, "out_format": "mp3" })),
        (AttachmentKind::Image, _) => ("get_image", json!({ "file": id, "file_id": id })),
        (_, Chat::Group(group)) => ("get_group_file_url", json!({ "group_id": ids::parameter(group), "file_id": id })),
        (_, Chat::Private(user) | Chat::Temporary(user, _)) => {
            ("get_private_file_url", json!({ "user_id": ids::parameter(user), "file_id": id }))
        }
        (_, Chat::Guild(..)) => return None,
    };
    let data = onebot.links.call(bot, action, params, ASK).await.ok()?;
    let text = |key: &str| data.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
    if let Some(bytes) = text("base64") {
        return Some(inline(ctx, bytes.strip_prefix("base64://").unwrap_or(bytes)).await);
    }
    for key in ["url", "file"] {
        if let Some(place) = text(key)
            && let Some(found) = at(ctx, place).await
        {
            return Some(found);
        }
    }
    None
}

/// The last messages, so that a quote or a recall that names one by its id alone finds it.
#[derive(Default)]
pub struct Recent {
    state: Mutex<Remembered>,
}

#[derive(Default)]
struct Remembered {
    ours: Bounded<()>,
    keys: Bounded<String>,
}

/// A map that forgets its oldest entries.
struct Bounded<T> {
    map: HashMap<String, T>,
    order: VecDeque<String>,
}

impl<T> Default for Bounded<T> {
    fn default() -> Self {
        Self { map: HashMap::new(), order: VecDeque::new() }
    }
}

impl<T> Bounded<T> {
    fn put(&mut self, key: String, value: T) {
        if self.map.insert(key.clone(), value).is_none() {
            self.order.push_back(key);
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.map.remove(&oldest);
            }
        }
    }
}

impl Recent {
    /// We sent this message.
    pub fn sent(&self, chat: &Chat, message: &str) {
        self.state().ours.put(place(chat, message), ());
    }

    /// Whether we sent it, as far as is known.
    pub fn is_ours(&self, chat: &Chat, message: &str) -> bool {
        self.state().ours.map.contains_key(&place(chat, message))
    }

    /// A message came, under this key.
    pub fn saw(&self, chat: &Chat, message: &str, key: &str) {
        if !message.is_empty() {
            self.state().keys.put(place(chat, message), key.to_owned());
        }
    }

    /// The key under which it came.
    pub fn key(&self, chat: &Chat, message: &str) -> Option<String> {
        self.state().keys.map.get(&place(chat, message)).cloned()
    }

    fn state(&self) -> MutexGuard<'_, Remembered> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn place(chat: &Chat, message: &str) -> String {
    format!("{}:{message}", chat.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_messages_are_forgotten() {
        let (recent, chat) = (Recent::default(), Chat::Group("1".to_owned()));
        for n in 0..=REMEMBERED {
            recent.sent(&chat, &n.to_string());
            recent.sent(&chat, &n.to_string());
        }
        assert!(!recent.is_ours(&chat, "0"));
        assert!(recent.is_ours(&chat, "1") && recent.is_ours(&chat, &REMEMBERED.to_string()));
        assert!(!recent.is_ours(&Chat::Private("1".to_owned()), "1"), "ids are unique in their chat only");
    }
}
