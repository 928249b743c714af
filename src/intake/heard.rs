//! What is kept of a group message that is not for the bot. Pure.

use channel_api::{Attachment, AttachmentKind, Inbound, Trust};

use crate::{session::SessionKey, store::NewHeard};

/// The most characters kept of the words, of a name and of a file's name. A turn shows fewer.
const TEXT_CHARS: usize = 1_000;
const NAME_CHARS: usize = 128;
/// The most files named.
const FILES: usize = 5;

/// The row of an unaddressed message: who, and the words in one piece; forwarded words and files are marked as such.
pub fn heard(event: &Inbound, session: SessionKey, keep: u32, now: i64) -> NewHeard {
    let cut = |text: &str, chars: usize| text.chars().take(chars).collect::<String>();
    let mut words: Vec<String> = Vec::new();
    if event.trust == Trust::Relayed {
        words.push("[forwarded]".to_owned());
    }
    let text = event.text.trim();
    if !text.is_empty() {
        words.push(cut(text, TEXT_CHARS));
    }
    words.extend(event.attachments.iter().take(FILES).map(|file| cut(&named(file), NAME_CHARS)));
    if event.attachments.len() > FILES {
        words.push(format!("[{} more files]", event.attachments.len() - FILES));
    }
    NewHeard {
        session,
        channel: event.channel.clone(),
        platform_id: event.platform_id.clone(),
        sender: event.sender.id.clone(),
        name: event.sender.name.as_deref().map(|name| cut(name, NAME_CHARS)),
        text: words.join(" "),
        at: now,
        keep,
    }
}

fn named(file: &Attachment) -> String {
    let kind = match file.kind {
        AttachmentKind::Image => "image",
        AttachmentKind::Audio => "audio",
        AttachmentKind::Video => "video",
        AttachmentKind::File => "file",
    };
    match &file.name {
        Some(name) => format!("[{kind} {name}]"),
        None => format!("[{kind}]"),
    }
}
