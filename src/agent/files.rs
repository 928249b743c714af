//! The files on both sides of a turn: how those that came become readable to the model, and how those that an answer
//! names become durable before it is committed.
//!
//! What a file *says* is information and never an order; what may be *sent* follows the role of who is answered, for
//! everybody who can make the agent write a line could read its workspace otherwise. security.md §3.3 row 17.

use std::{collections::BTreeMap, path::PathBuf};

use bytes::Bytes;
use channel_api::{Attachment, AttachmentKind, MediaRef, MediaSource, kind_of};

use tokio_util::sync::CancellationToken;
use tracing::warn;

use super::{Agent, SHARED, prompt::Attached};
use crate::{
    ledger::{Spender, sender_key},
    media::pixels,
    model::{
        Message, ModelError, ModelRequest, Picture,
        audio::{self, Ears},
    },
    policy::{Asker, Role},
    reply::Text,
    session::SessionKey,
    store::InboxEntry,
    tools::{self, Outgoing, decode},
};

/// The most bytes of a text file that stands in the message itself, and of all of a message.
const QUOTED: u64 = 16 * 1024;
const ALL_QUOTED: u64 = 48 * 1024;

/// The most recordings of one turn that are heard before it.
const MOST_HEARD: usize = 5;

/// The most pictures of a request, and bytes of all of them.
const MOST_PICTURES: usize = 6;
const ALL_PICTURES: usize = 20_000_000;
/// The newest messages of people whose pictures are shown.
const NEWEST: usize = 8;

/// The files of an answer, ready for commit 2, and a line for the trace about each that is not sent.
#[derive(Debug, Default)]
pub struct Sent {
    /// In the answer's order.
    pub attachments: Vec<Attachment>,
    /// Why others are not.
    pub notes: Vec<String>,
}

impl Agent {
    /// The workspace of a turn: a member's files are those the owner put where members may look.
    pub(super) fn workspace_of(&self, role: Role) -> PathBuf {
        match role {
            Role::Stranger | Role::Member => self.workspace.join(SHARED),
            Role::Trusted | Role::Owner => self.workspace.clone(),
        }
    }

    /// The folders that may be read besides the workspace: what came in this session, and the skills.
    pub(super) fn readable(&self, session: &SessionKey) -> Vec<PathBuf> {
        let skills = self.briefing.skills();
        std::iter::once(self.media.shown(session)).chain(skills.folders.iter().cloned()).collect()
    }

    /// The files of these messages as the model is told of them: each where the tools of this session read it, short
    /// texts with their words.
    pub(super) async fn attached(
        &self,
        session: &SessionKey,
        entries: &[InboxEntry],
        stop: &CancellationToken,
    ) -> Vec<Vec<Attached>> {
        // Strangers have no tools: nothing is copied for them.
        let may_read = entries.iter().all(|entry| entry.role >= Role::Member);
        let mut room = ALL_QUOTED;
        let mut recordings = MOST_HEARD;
        let mut all = Vec::with_capacity(entries.len());
        for entry in entries {
            let mut files = Vec::with_capacity(entry.inbound.attachments.len());
            for file in &entry.inbound.attachments {
                let mut attached = self.attached_one(session, file, may_read, &mut room).await;
                // Strangers cannot spend what hearing costs.
                if may_read && recordings > 0 && file.kind == AttachmentKind::Audio {
                    let spender = Spender {
                        agent: self.id.clone(),
                        session: Some(session.clone()),
                        sender: sender_key(&entry.inbound),
                        role: entry.role,
                    };
                    attached.voice = self.heard(file, &spender, stop).await;
                    recordings -= usize::from(attached.voice.is_some());
                }
                files.push(attached);
            }
            all.push(files);
        }
        all
    }

    /// What is said in a recording: heard once, however often the turn begins again. `None` when nobody can tell, or may
    /// not for what it costs.
    async fn heard(&self, file: &Attachment, who: &Spender, stop: &CancellationToken) -> Option<String> {
        let (ears, media) = (self.ears.as_ref()?, stored(file)?);
        let mime = media.mime.as_deref().filter(|mime| Ears::takes(mime).is_some())?;
        if media.size.is_some_and(|size| !(audio::SMALLEST..=audio::LARGEST).contains(&size)) {
            return None;
        }
        if let Some(words) = self.media.heard(media).await {
            return Some(words).filter(|words| !words.is_empty());
        }
        let recording = self.media.small(media, audio::LARGEST).await?;
        let hearing = async {
            let words = ears.hear(&recording, mime, stop).await?;
            self.media.keep_heard(media, &words).await;
            let usage = audio::heard(&recording, &words);
            Ok((words, usage))
        };
        let expected = audio::heard(&recording, "").input;
        match self.ledger.ask(who, None, (ears.name(), "transcribe"), expected, hearing).await {
            Ok(Ok(words)) => Some(words).filter(|words| !words.is_empty()),
            Ok(Err(ModelError::Cancelled)) => None,
            Err(why) => {
                warn!(model = ears.name(), ?why, "a voice message was not heard");
                None
            }
            Ok(Err(error)) => {
                warn!(model = ears.name(), %error, "a voice message could not be heard");
                None
            }
        }
    }

    async fn attached_one(&self, session: &SessionKey, file: &Attachment, may_read: bool, room: &mut u64) -> Attached {
        let Some(media) = stored(file) else { return Attached::new(file, None, None) };
        if !self.media.holds(media).await {
            let gone = Attachment { unavailable: Some("the file is no longer kept".to_owned()), ..file.clone() };
            return Attached::new(&gone, None, None);
        }
        let path = match may_read {
            true => self.media.show(session, media, file.name.as_deref()).await,
            false => None,
        };
        let size = media.size.unwrap_or(u64::MAX);
        let mut text = None;
        if file.kind == AttachmentKind::File && size <= QUOTED.min(*room) {
            text = self.media.small(media, QUOTED).await.and_then(|bytes| words(&bytes));
            *room -= text.as_ref().map_or(0, |_| size);
        }
        Attached::new(file, path.as_deref(), text)
    }

    /// Puts the newest pictures into a request, for a model that looks at them. Which those are changes only when newer ones
    /// come, so that what a provider keeps of the request stays the same; the others are what the text says of them.
    pub(super) async fn show_pictures(&self, sees: bool, request: &mut ModelRequest, known: &mut Shown) {
        if !sees {
            return;
        }
        let (mut left, mut room) = (MOST_PICTURES, ALL_PICTURES);
        let said = request.messages.iter_mut().rev().filter_map(|message| match message {
            Message::User { pictures, .. } => Some(pictures),
            _ => None,
        });
        for picture in said.take(NEWEST).flat_map(|pictures| pictures.iter_mut().rev()) {
            if left == 0 {
                break;
            }
            if !known.0.contains_key(&picture.name) {
                let source = MediaSource::Stored(picture.name.clone());
                let media = MediaRef { source, mime: Some(picture.mime.clone()), size: None };
                let bytes = self.media.small(&media, Picture::LARGEST).await.map(Bytes::from);
                known.0.insert(picture.name.clone(), bytes.filter(|bytes| pixels::may_be_shown(bytes)));
            }
            let Some(bytes) = known.0.get(&picture.name).cloned().flatten() else { continue };
            let Some(rest) = room.checked_sub(bytes.len()) else { break };
            (left, room) = (left - 1, rest);
            picture.bytes = Some(bytes);
        }
    }

    /// The files of an answer's `MEDIA:` lines. Links stay links; a file of the workspace or of this session is kept
    /// among the gateway's own, so that what is committed outlives what is done to the workspace.
    pub async fn sent(&self, session: &SessionKey, asker: Asker, answer: &Text) -> Sent {
        let mut sent = Sent::default();
        for written in &answer.media {
            match self.sent_one(session, asker, written, answer.audio_as_voice).await {
                Ok(file) => sent.attachments.push(file),
                Err(why) => sent.notes.push(format!("not sent: `MEDIA:{written}`: {why}")),
            }
        }
        sent
    }

    async fn sent_one(
        &self,
        session: &SessionKey,
        asker: Asker,
        written: &str,
        voice: bool,
    ) -> Result<Attachment, String> {
        if let Some(link) = linked(written, voice) {
            return Ok(link);
        }
        if asker.role < Role::Trusted {
            return Err("files are sent only where everyone who is answered is trusted or an owner".to_owned());
        }
        let (workspace, readable) = (self.workspace_of(asker.role), vec![self.media.shown(session)]);
        let path = written.to_owned();
        let opened =
            tokio::task::spawn_blocking(move || tools::open_to_send(&workspace, &readable, &path, asker)).await;
        let Outgoing { file, name, .. } = opened.map_err(|error| error.to_string())??;
        let media = self.media.take_in_to_send(file, &self.works.redactor).await?;
        // The name of a file that came in a chat is ours and says nothing to people.
        let name = Some(name).filter(|name| !name.is_empty());
        Ok(Attachment { kind: kind_of(media.mime.as_deref()), media: Some(media), name, unavailable: None })
    }
}

/// The pictures of a turn, read once.
#[derive(Debug, Default)]
pub struct Shown(BTreeMap<String, Option<Bytes>>);

/// The pictures of these messages that a model can look at.
pub(super) fn pictures(entries: &[InboxEntry]) -> Vec<Picture> {
    let files = entries.iter().flat_map(|entry| &entry.inbound.attachments);
    let pictures = files.filter(|file| file.kind == AttachmentKind::Image).filter_map(|file| {
        let MediaRef { source: MediaSource::Stored(name), mime: Some(mime), size } = stored(file)? else { return None };
        let seen = Picture::FORMATS.contains(&mime.as_str()) && size.is_none_or(|size| size <= Picture::LARGEST);
        seen.then(|| Picture { name: name.clone(), mime: mime.clone(), bytes: None })
    });
    pictures.take(MOST_PICTURES).collect()
}

/// The file, when its bytes are said to be kept.
fn stored(file: &Attachment) -> Option<&MediaRef> {
    let media = file.media.as_ref().filter(|_| file.unavailable.is_none())?;
    matches!(media.source, MediaSource::Stored(_)).then_some(media)
}

/// The words of a text file; `None` when it is none, or empty.
fn words(bytes: &[u8]) -> Option<String> {
    let decode::Content::Text(encoding) = decode::sniff(bytes, true) else { return None };
    let (text, _) = encoding.decode(bytes);
    (!text.trim().is_empty()).then(|| text.into_owned())
}

/// The file of a `MEDIA:` line that is a link.
fn linked(place: &str, voice: bool) -> Option<Attachment> {
    let path = place.strip_prefix("https://").or_else(|| place.strip_prefix("http://"))?;
    let file = path.split(['?', '#']).next().unwrap_or(path);
    let name = file.rsplit('/').next().filter(|name| !name.is_empty() && file.contains('/'));
    let ending = name.and_then(|name| name.rsplit_once('.')).map(|(_, ending)| ending.to_ascii_lowercase());
    let ending = ending.as_deref().unwrap_or_default();
    let kind = match ending {
        "png" | "jpg" | "jpeg" | "gif" | "webp" | "avif" => AttachmentKind::Image,
        "mp3" | "ogg" | "oga" | "opus" | "wav" | "m4a" | "flac" => AttachmentKind::Audio,
        "mp4" | "webm" | "mov" | "mkv" => AttachmentKind::Video,
        _ => AttachmentKind::File,
    };
    // Audio in Ogg is what platforms take for voice.
    let voice = voice && ["ogg", "oga", "opus"].contains(&ending);
    let mime = voice.then(|| "audio/ogg".to_owned());
    let media = MediaRef { source: MediaSource::Url(place.to_owned()), mime, size: None };
    Some(Attachment { kind, media: Some(media), name: name.map(str::to_owned), unavailable: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_attached_as_what_their_names_say() {
        let cat = linked("https://e.test/a/cat.PNG?x=1", false).expect("a link");
        assert_eq!((cat.kind, cat.name.as_deref()), (AttachmentKind::Image, Some("cat.PNG")));
        let bare = linked("https://e.test", false).expect("a link");
        assert_eq!((bare.kind, bare.name), (AttachmentKind::File, None));
        let mime = |place, voice| linked(place, voice).and_then(|file| file.media?.mime);
        assert_eq!(mime("https://e.test/a.opus", true).as_deref(), Some("audio/ogg"));
        assert_eq!(mime("https://e.test/a.opus", false), None);
        assert_eq!(mime("https://e.test/a.mp3", true), None, "what is no Ogg is not called so");
        for local in ["/etc/passwd", "file:///etc/passwd", "cat.png", "media/a.png", "~/x.pdf"] {
            assert_eq!(linked(local, false), None, "{local}");
        }
    }

    #[test]
    fn short_texts_are_read_in_the_encodings_people_use() {
        assert_eq!(words("你好".as_bytes()).as_deref(), Some("你好"));
        assert_eq!(words(b"\xc4\xe3\xba\xc3\xa3\xac\xca\xc0\xbd\xe7").as_deref(), Some("你好，世界"));
        assert_eq!(words(b"\x89PNG\r\n\x1a\n\0\0"), None);
        assert_eq!(words(b" \n"), None);
    }
}
