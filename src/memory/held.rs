//! Quarantine: what may not simply be remembered waits in `memory/quarantine/`, a file each, which no search looks into,
//! until the owner accepts or drops it. security.md §3.3 row 30.

use std::path::Path;

use channel_api::Inbound;
use serde::{Deserialize, Serialize};

use super::{Memory, MemoryError, Scope, blocking, entry, files};
use crate::{policy::Role, store::note};

/// The most texts that wait; more are refused.
const MOST: usize = 200;
/// The most of one person that wait at once: nobody fills the place of the others.
const MOST_OF_ONE: usize = 40;
/// How long one waits before it is dropped.
const DAYS: i64 = 30;
/// The most characters of one.
pub const MOST_CHARS: usize = 4_000;

/// Why a text waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Somebody asked who may not decide what is remembered.
    Member,
    /// The turn had read things from outside (a web page, a forwarded message).
    Untrusted,
}

/// Who asked, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// The channel.
    pub channel: String,
    /// The sender's id.
    pub sender: String,
    /// The sender's name, as they gave it.
    pub name: Option<String>,
    /// Their role.
    pub role: Role,
    /// Why it waits.
    pub why: Why,
}

impl Asked {
    /// The sender of a message.
    pub fn by(inbound: &Inbound, role: Role, why: Why) -> Self {
        Self {
            channel: inbound.channel.to_string(),
            sender: inbound.sender.id.clone(),
            name: inbound.sender.name.clone(),
            role,
            why,
        }
    }
}

/// A text that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// What it is called in commands.
    pub id: String,
    /// When it was said, in epoch milliseconds.
    pub at: i64,
    /// Who asked.
    pub asked: Asked,
    /// The note it goes to when it is accepted.
    pub note: String,
    /// The text.
    #[serde(default)]
    pub text: String,
}

/// Where an accepted text goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum To {
    /// Where it was asked for: the notes of that chat.
    #[default]
    Asked,
    /// The owner's own notes.
    Owner,
}

const OPEN: &str = "<!-- crawfish-held: ";
const CLOSE: &str = " -->";

impl Memory {
    /// Lets a text wait for the owner; returns its id, or `None` when too many wait already.
    ///
    /// # Errors
    /// [`MemoryError::Files`].
    pub async fn hold(&self, scope: &Scope, text: &str, asked: Asked) -> Result<Option<String>, MemoryError> {
        let _one_at_a_time = self.writing.lock().await;
        let workspace = self.workspace.clone();
        let all = blocking(move || held_in_folder(&workspace)).await?;
        let text: String = text.trim().chars().take(MOST_CHARS).collect();
        if let Some(same) = all.iter().find(|held| held.text == text && held.asked == asked) {
            return Ok(Some(same.id.clone()));
        }
        // What the owner's own turns hold does not wait behind what others want.
        let alike = all.iter().filter(|held| held.asked.why == asked.why);
        let of_one =
            alike.clone().filter(|held| held.asked.channel == asked.channel && held.asked.sender == asked.sender);
        if alike.count() >= MOST || (asked.why == Why::Member && of_one.count() >= MOST_OF_ONE) {
            return Ok(None);
        }
        let now = self.now();
        let id = format!("{}-{:06x}", now.strftime("%m%d"), short_number(&text, now.timestamp().as_millisecond()));
        let (note, _) = self.day_note(scope, &now);
        let held = Held { id: id.clone(), at: now.timestamp().as_millisecond(), asked, note, text: String::new() };
        let head = serde_json::to_string(&held).map_err(|error| std::io::Error::other(error.to_string()))?;
        let (workspace, path) = (self.workspace.clone(), path_of(&id));
        let head = format!("{OPEN}{head}{CLOSE}\n");
        blocking(move || files::append(&workspace, &path, &head, &text)).await??;
        Ok(Some(id))
    }

    /// What waits, the oldest first. A file that somebody else put there is none of it.
    pub fn held(&self) -> Vec<Held> {
        held_in_folder(&self.workspace)
    }

    fn held_in(&self, id: &str) -> Option<Held> {
        held_at(&self.workspace, id)
    }

    /// Writes what waits under this id into a note, and returns the note's path; `None` when nothing does.
    ///
    /// # Errors
    /// [`MemoryError::Files`]; it waits on then.
    pub async fn accept(&self, id: &str, to: To) -> Result<Option<String>, MemoryError> {
        let Some(held) = self.held_in(id) else { return Ok(None) };
        let day = held.note.rsplit('/').next().and_then(|name| name.strip_suffix(".md")).unwrap_or_default().to_owned();
        // The head of the file is not taken at its word for where to write.
        let path = match (to, note::Area::of(&held.note)) {
            (To::Asked, Some(_)) => held.note.clone(),
            _ => self.day_note(&Scope::owner(self.agent()), &self.now()).0,
        };
        let who = held.asked.name.as_deref().unwrap_or(&held.asked.sender);
        let text = match held.asked.why {
            Why::Member => format!("{} ({who}, {})", held.text, held.asked.channel),
            Why::Untrusted => held.text.clone(),
        };
        let path = self.append(path, format!("# {day}\n\n"), entry(&text)).await?;
        // Killed here it waits on, and is not written twice when it is accepted again.
        self.discard(id).await?;
        Ok(Some(path))
    }

    /// Drops what waits under this id; says whether anything did.
    ///
    /// # Errors
    /// [`MemoryError::Files`].
    pub async fn discard(&self, id: &str) -> Result<bool, MemoryError> {
        if self.held_in(id).is_none() {
            return Ok(false);
        }
        let (workspace, path) = (self.workspace.clone(), path_of(id));
        blocking(move || files::remove(&workspace, &path)).await??;
        Ok(true)
    }

    /// Drops what has waited too long.
    pub(super) async fn expire_held(&self) -> Result<(), MemoryError> {
        let oldest = self.clock.now_ms() - DAYS * 24 * 60 * 60 * 1000;
        let workspace = self.workspace.clone();
        let expire = move || {
            let mut old = held_in_folder(&workspace).into_iter().filter(|held| held.at < oldest);
            old.try_for_each(|held| files::remove(&workspace, &path_of(&held.id)))
        };
        Ok(blocking(expire).await??)
    }
}

fn held_in_folder(workspace: &Path) -> Vec<Held> {
    let names = files::names_in(workspace, &format!("{}/{}", note::FOLDER, note::QUARANTINE));
    let mut all: Vec<Held> = names.iter().filter_map(|name| held_at(workspace, name.strip_suffix(".md")?)).collect();
    all.sort_by(|a, b| (a.at, &a.id).cmp(&(b.at, &b.id)));
    all
}

fn held_at(workspace: &Path, id: &str) -> Option<Held> {
    let named = !id.is_empty() && id.len() <= 64 && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let text = files::read(workspace, &path_of(id)).filter(|_| named)?;
    let (head, text) = text.split_once('\n')?;
    let held: Held = serde_json::from_str(head.strip_prefix(OPEN)?.strip_suffix(CLOSE)?).ok()?;
    (held.id == id).then(|| Held { text: text.trim_end().to_owned(), ..held })
}

fn path_of(id: &str) -> String {
    format!("{}/{}/{id}.md", note::FOLDER, note::QUARANTINE)
}

fn short_number(text: &str, at: i64) -> u32 {
    let hash = super::hash_of(&format!("{at} {text}"));
    u32::from_be_bytes([0, hash[0], hash[1], hash[2]])
}
