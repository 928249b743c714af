//! The words of a user message: what was said, and after it what the gateway knows about this moment.
//!
//! Everything that changes with each turn (time, sender, quote, backlog, notes) stands here, is stored as sent and
//! replayed byte for byte. What people wrote can neither close our blocks nor look like a model's control tokens.

use channel_api::{Attachment, AttachmentKind, MediaSource};
use jiff::{Timestamp, ZonedDateTime};
use unicode_normalization::UnicodeNormalization;

use super::one_line;
pub use crate::untrusted::defuse;
use crate::{policy::Role, untrusted};

/// The most characters kept of one message, one quote, one backlog line and the backlog. security.md row 37.
const TEXT_CHARS: usize = 16_000;
const QUOTE_CHARS: usize = 1_000;
const HEARD_CHARS: usize = 500;
const BACKLOG_CHARS: usize = 8_000;
/// Whether a group speaks to the agent, and what it does when not.
const ADDRESSED: &str = "addressed to you: yes\n";
const NOT_ADDRESSED: &str =
    "addressed to you: no. Answer only what calls for you; otherwise your whole message is NO_REPLY\n";
/// Before a plan that an earlier turn left open.
const PLAN: &str = "your plan is still open. Told to go on, or asked about it: continue with it and keep `todo` true; else \
                    leave it";
/// The most characters of a nickname.
const NAME_CHARS: usize = 64;
/// The most files named of one message, and characters of a line and of a link in it.
const FILES: usize = 20;
const LINE_CHARS: usize = 2_400;
const LINK_CHARS: usize = 2_000;
/// A message older than this when its turn starts has its own time shown.
const LATE_MS: i64 = 60_000;

/// What one user message is made of.
#[derive(Clone, Debug)]
pub struct UserText<'a> {
    /// The messages this turn answers, oldest first.
    pub entries: &'a [Said<'a>],
    /// When the turn starts, in the owner's zone.
    pub now: &'a ZonedDateTime,
    /// The group's title or id; `None` in a direct chat.
    pub group: Option<&'a str>,
    /// One of the messages was said to the agent. Told in groups only: in a direct chat each is.
    pub addressed: bool,
    /// One line each from the gateway itself (what was merged, dropped or is waiting).
    pub notes: &'a [String],
    /// The session's plan, as long as something of it is open.
    pub plan: Option<&'a str>,
    /// What others said in the group since the last reply, oldest first.
    pub backlog: &'a [Heard<'a>],
}

/// One message that is to be answered.
#[derive(Clone, Debug)]
pub struct Said<'a> {
    /// Its platform id, for `[[reply_to:<id>]]`.
    pub message_id: Option<&'a str>,
    /// Who said it.
    pub sender: Who<'a>,
    /// The words; may be empty when there are attachments.
    pub text: &'a str,
    /// The words are not the sender's own (forwarded, by way of another bot).
    pub relayed: bool,
    /// The files that came with it.
    pub attachments: &'a [Attached],
    /// The message it answers.
    pub quote: Option<Quote<'a>>,
    /// When it was sent, in epoch milliseconds.
    pub sent_at: Option<i64>,
}

/// A file that came with a message, as the model is told of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attached {
    /// What it is and where its bytes are: the same line for the same file.
    pub line: String,
    /// The name its sender gave it: input.
    pub name: Option<String>,
    /// Its text, when it is a short one.
    pub text: Option<String>,
    /// What its sender says in it, when it is a recording.
    pub voice: Option<String>,
}

impl Attached {
    /// The file as it came; `path` is what tools read it by. Everything in it is input.
    pub fn new(file: &Attachment, path: Option<&str>, text: Option<String>) -> Self {
        let kind = match file.kind {
            AttachmentKind::Image => "image",
            AttachmentKind::Audio => "audio",
            AttachmentKind::Video => "video",
            AttachmentKind::File => "file",
        };
        let name = file.name.as_deref().map(nickname).filter(|name| !name.is_empty());
        let mut line = match &name {
            Some(name) => format!("{kind} \"{name}\""),
            None => kind.to_owned(),
        };
        let Some(media) = file.media.as_ref().filter(|_| file.unavailable.is_none()) else {
            let why = file.unavailable.as_deref().unwrap_or("it did not come with the message");
            let line = format!("[{line} unavailable: {}]", one_line(why, 200));
            return Self { line, name, ..Self::default() };
        };
        let facts: Vec<String> = media
            .mime
            .as_deref()
            .map(nickname)
            .into_iter()
            .chain(media.size.map(|size| format!("{size} bytes")))
            .collect();
        if !facts.is_empty() {
            line.push_str(&format!(" ({})", facts.join(", ")));
        }
        match (&media.source, path) {
            (MediaSource::Url(url), _) => line.push_str(&format!(", link {}", one_line(url, LINK_CHARS))),
            (MediaSource::Stored(_), Some(path)) => line.push_str(&format!(", path {path}")),
            (MediaSource::Stored(_), None) => {}
        }
        Self { line, name, text, voice: None }
    }
}

/// A sender.
#[derive(Clone, Copy, Debug)]
pub struct Who<'a> {
    /// The platform's immutable id.
    pub id: &'a str,
    /// The name they gave themselves: input.
    pub name: Option<&'a str>,
    /// Their role.
    pub role: Role,
}

/// The message that another one answers.
#[derive(Clone, Copy, Debug)]
pub struct Quote<'a> {
    /// Who wrote it: an id or a name; `you` when it was the agent itself.
    pub from: Option<&'a str>,
    /// Its words.
    pub text: &'a str,
}

/// A message of the group that is context only.
#[derive(Clone, Copy, Debug)]
pub struct Heard<'a> {
    /// Who said it.
    pub name: &'a str,
    /// The words.
    pub text: &'a str,
}

/// The text of a user message: the words first, then one `<message_context>` block. Pure and never empty.
pub fn user_text(input: &UserText<'_>) -> String {
    let mut out = String::new();
    let one_sender = input.entries.windows(2).all(|pair| pair[0].sender.id == pair[1].sender.id);
    for entry in input.entries {
        let mut text = kept(&defuse(entry.text.trim()), TEXT_CHARS);
        for words in entry.attachments.iter().filter_map(|file| file.voice.as_deref()) {
            let gap = if text.is_empty() { "" } else { "\n\n" };
            text.push_str(&format!("{gap}voice: \"{}\"", kept(&defuse(words.trim()), TEXT_CHARS)));
        }
        if text.is_empty() {
            continue;
        }
        if !one_sender {
            out.push_str(&format!("{}: ", shown_name(&entry.sender)));
        }
        match entry.relayed {
            true => out.push_str(&untrusted::block("forwarded", "", &text)),
            false => out.push_str(&text),
        }
        out.push_str("\n\n");
    }
    out.push_str("<message_context>\n");
    out.push_str(&format!("time: {} {}\n", input.now.strftime("%a %Y-%m-%d %H:%M %:z"), zone_name(input.now)));
    if let Some(group) = input.group {
        out.push_str(&format!("group: \"{}\"\n", nickname(group)));
        out.push_str(if input.addressed { ADDRESSED } else { NOT_ADDRESSED });
    }
    let many = input.entries.len() > 1;
    let mut last_sender = None;
    for (n, entry) in input.entries.iter().enumerate() {
        if many {
            out.push_str(&format!("message {} of {}:\n", n + 1, input.entries.len()));
        }
        if last_sender != Some(entry.sender.id) {
            last_sender = Some(entry.sender.id);
            let Who { id, name, role } = entry.sender;
            out.push_str(&format!("from: id {}, {}", plain(id, 128), role.as_str()));
            if let Some(name) = name.map(nickname).filter(|name| !name.is_empty()) {
                out.push_str(&format!(", \"{name}\""));
            }
            out.push('\n');
        }
        if let Some(id) = entry.message_id {
            out.push_str(&format!("message id: {}\n", plain(id, 128)));
        }
        let late = entry.sent_at.filter(|at| input.now.timestamp().as_millisecond().saturating_sub(*at) > LATE_MS);
        if let Some(at) = late.and_then(|at| Timestamp::from_millisecond(at).ok()) {
            let at = at.to_zoned_datetime(input.now.time_zone().clone());
            out.push_str(&format!("sent: {}\n", at.strftime("%a %Y-%m-%d %H:%M %:z")));
        }
        for file in entry.attachments.iter().take(FILES) {
            out.push_str(&format!("attachment: {}\n", plain(&file.line, LINE_CHARS)));
            if let Some(text) = &file.text {
                let name = file.name.as_deref().map(|name| format!(" name=\"{}\"", nickname(name))).unwrap_or_default();
                out.push_str(&untrusted::block("file", &name, &kept(&defuse(text), TEXT_CHARS)));
                out.push('\n');
            }
        }
        if entry.attachments.len() > FILES {
            out.push_str(&format!("attachment: [{} more are not shown]\n", entry.attachments.len() - FILES));
        }
        if let Some(quote) = &entry.quote {
            let from = quote.from.map(|from| format!(" from=\"{}\"", nickname(from))).unwrap_or_default();
            let text = kept(&defuse(quote.text.trim()), QUOTE_CHARS);
            out.push_str(&format!("<untrusted kind=\"quote\"{from}>\n{text}\n</untrusted>\n"));
        }
    }
    for note in input.notes {
        out.push_str(&format!("note: {}\n", plain(note, 500)));
    }
    if let Some(plan) = input.plan {
        out.push_str(&format!("{PLAN}\n{}\n", defuse(plan)));
    }
    let backlog = backlog(input.backlog);
    if !backlog.is_empty() {
        out.push_str(&format!("<untrusted kind=\"backlog\">\n{backlog}</untrusted>\n"));
    }
    out.push_str("</message_context>");
    out
}

/// The newest lines of the backlog that fit, oldest first.
fn backlog(heard: &[Heard<'_>]) -> String {
    let mut lines = Vec::new();
    let mut chars = 0;
    for one in heard.iter().rev() {
        let line = format!("{}: {}\n", nickname(one.name), plain(one.text, HEARD_CHARS));
        chars += line.chars().count();
        if chars > BACKLOG_CHARS {
            lines.push(format!("[{} earlier messages left out]\n", heard.len() - lines.len()));
            break;
        }
        lines.push(line);
    }
    lines.reverse();
    lines.concat()
}

fn shown_name(who: &Who<'_>) -> String {
    who.name.map(nickname).filter(|name| !name.is_empty()).unwrap_or_else(|| plain(who.id, 64))
}

fn zone_name(now: &ZonedDateTime) -> String {
    now.time_zone().iana_name().unwrap_or_default().to_owned()
}

/// One harmless line of somebody else's words.
fn plain(text: &str, chars: usize) -> String {
    defuse(&one_line(text, chars))
}

/// The first `chars` characters, with a mark when more was said.
fn kept(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((byte, _)) => format!("{}\n[… cut: {chars} of {} characters …]", &text[..byte], text.chars().count()),
        None => text.to_owned(),
    }
}

/// A name people gave themselves: one line, NFC, at most 64 characters, without quotes and brackets that could end ours.
pub fn nickname(name: &str) -> String {
    let name: String = name.chars().take(1_000).nfc().collect();
    let name: String = one_line(&name, NAME_CHARS)
        .chars()
        .map(|c| match c {
            '<' => '‹',
            '>' => '›',
            '"' => '\'',
            c => c,
        })
        .collect();
    defuse(&name)
}
