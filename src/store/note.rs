//! The index of the notes, as a store keeps it: passages, their words, their vectors. Knows no files; `memory` keeps it
//! like them.
//!
//! Whoever looks for passages needs a [`Scope`]: whose notes, and who will read them. There is no search without one.

use std::fmt::Write as _;

use async_trait::async_trait;
use channel_api::{ChannelId, Conversation, ConversationKind};
use sha2::{Digest as _, Sha256};

use super::StoreError;
use crate::policy::Role;

/// The folder of notes that everyone may find who may search at all, below `memory/`.
pub const SHARED: &str = "shared";
/// The folder of the notes of single chats, below `memory/`.
pub const CHATS: &str = "chats";
/// The folder of what waits for the owner's decision, below `memory/`: never indexed.
pub const QUARANTINE: &str = "quarantine";
/// The file that holds what lasts.
pub const MEMORY: &str = "MEMORY.md";
/// The folder of the notes.
pub const FOLDER: &str = "memory";

/// Whose notes are looked through, and for whom. Made only from what a turn is ([`Scope::of_turn`]) or by the person at
/// the machine ([`Scope::owner`]); its parts cannot be written down elsewhere:
///
/// ```compile_fail
/// let everything = crawfish::store::note::Scope { agent: "main".into(), chat: None };
/// ```
///
/// and a search does not go without:
///
/// ```compile_fail
/// async fn look(store: &dyn crawfish::store::note::NoteStore) {
///     let _ = store.find_words(&["secret".to_owned()], 5).await;
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    agent: String,
    /// `None`: the owner, where nobody else reads along.
    chat: Option<String>,
}

impl Scope {
    /// The owner's own: a direct chat of the owner, or whoever runs the command line.
    pub fn owner(agent: &str) -> Self {
        Self { agent: agent.to_owned(), chat: None }
    }

    /// What a turn may search: the owner's notes in the owner's direct chat, the notes of the chat everywhere else, and
    /// for a stranger nothing. `role` is the lowest of those who are answered.
    pub fn of_turn(agent: &str, role: Role, channel: &ChannelId, conversation: &Conversation) -> Option<Self> {
        match (role, conversation.kind) {
            (Role::Stranger, _) => None,
            (Role::Owner, ConversationKind::Direct) => Some(Self::owner(agent)),
            _ => Some(Self { agent: agent.to_owned(), chat: Some(chat_folder(channel, conversation)) }),
        }
    }

    /// The agent.
    pub fn agent(&self) -> &str {
        &self.agent
    }

    /// Whether it is the owner's own.
    pub fn is_owner(&self) -> bool {
        self.chat.is_none()
    }

    /// The folder below `memory/` where notes of this scope are written: none for the owner's.
    pub fn folder(&self) -> Option<String> {
        self.chat.as_ref().map(|chat| format!("{CHATS}/{chat}"))
    }

    /// Whether a note of that area may be found.
    pub fn sees(&self, area: &Area) -> bool {
        match (area, &self.chat) {
            (Area::Shared, _) | (Area::Owner, None) => true,
            (Area::Chat(of), Some(chat)) => of == chat,
            (Area::Owner | Area::Chat(_), _) => false,
        }
    }

    /// The areas it sees.
    pub fn areas(&self) -> [Area; 2] {
        [self.chat.clone().map_or(Area::Owner, Area::Chat), Area::Shared]
    }
}

/// Who may find a note: follows from where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Area {
    /// The owner alone.
    Owner,
    /// Everyone who may search.
    Shared,
    /// One chat: the name of its folder.
    Chat(String),
}

impl Area {
    /// The area of a note's path; `None` when it is no note, or waits in quarantine. Letters' case does not matter where
    /// the file system does not heed it, so it never opens anything.
    pub fn of(path: &str) -> Option<Self> {
        if path == MEMORY {
            return Some(Self::Owner);
        }
        let (folder, rest) = path.split_once('/')?;
        let has_ending = path.rsplit_once('.').is_some_and(|(_, ending)| ending.eq_ignore_ascii_case("md"));
        if folder != FOLDER || rest.is_empty() || !has_ending || rest.starts_with('/') {
            return None;
        }
        match rest.split_once('/') {
            Some((first, _)) if first.eq_ignore_ascii_case(QUARANTINE) => None,
            Some((SHARED, _)) => Some(Self::Shared),
            Some((CHATS, below)) => below.split_once('/').map(|(chat, _)| Self::Chat(chat.to_owned())),
            // Another spelling of a folder that others may see is nobody's.
            Some((first, _)) if first.eq_ignore_ascii_case(CHATS) || first.eq_ignore_ascii_case(SHARED) => None,
            _ => Some(Self::Owner),
        }
    }

    /// As stored.
    pub fn name(&self) -> String {
        match self {
            Self::Owner => "owner".to_owned(),
            Self::Shared => "shared".to_owned(),
            Self::Chat(folder) => format!("chat:{folder}"),
        }
    }

    /// One word that stands for this area of this agent in the index.
    pub fn place(&self, agent: &str) -> String {
        let digest = Sha256::digest(format!("{agent}\0{}", self.name()).as_bytes());
        digest.iter().take(12).fold("p".to_owned(), |mut word, byte| {
            let _ = write!(word, "{byte:02x}");
            word
        })
    }
}

/// The most bytes of a chat's folder: longer ids end in a hash.
const FOLDER_BYTES: usize = 120;

/// The folder of a chat's notes: `telegram.main.group.-1001234`. No two chats share one, on no file system: what is not a
/// small letter, a digit, `-` or `_` is written `%XX`. Topics of a group share theirs.
fn chat_folder(channel: &ChannelId, conversation: &Conversation) -> String {
    let kind = match conversation.kind {
        ConversationKind::Direct => "direct",
        ConversationKind::Group => "group",
    };
    let mut name = String::new();
    for part in [channel.kind(), channel.account(), kind, &conversation.id] {
        if !name.is_empty() {
            name.push('.');
        }
        for byte in part.bytes() {
            match byte {
                b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' => name.push(char::from(byte)),
                other => {
                    let _ = write!(name, "%{other:02x}");
                }
            }
        }
    }
    if name.len() > FOLDER_BYTES {
        let digest = Sha256::digest(name.as_bytes());
        name.truncate(FOLDER_BYTES - 40);
        name.push('~');
        digest.iter().take(16).for_each(|byte| {
            let _ = write!(name, "{byte:02x}");
        });
    }
    name
}

/// A note as the index knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoteRow {
    /// Its path in the workspace, with `/`.
    pub path: String,
    /// What the file looked like when it was read; 0 = it was too new to be sure.
    pub stamp: i64,
    /// The hash of what was read.
    pub hash: Vec<u8>,
}

/// A note to be put into the index, in place of what was known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct NewNote {
    /// Its path and what it looked like.
    pub row: NoteRow,
    /// Who may find it.
    pub area: Area,
    /// Its passages; `None` = as they are in the index: the file was touched and says the same.
    pub passages: Option<Vec<NewPassage>>,
}

/// A passage of a note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPassage {
    /// First and last line, from 1.
    pub lines: (u32, u32),
    /// The headings above it.
    pub heading: String,
    /// Its text.
    pub text: String,
    /// The words of the note's path and of the headings, parted by blanks.
    pub title_words: String,
    /// Its own words, parted by blanks.
    pub words: String,
    /// SHA-256 of heading and text: what its vector is kept by.
    pub hash: Vec<u8>,
}

/// A passage that was found.
#[derive(Clone, Debug, PartialEq)]
pub struct PassageHit {
    /// Its row.
    pub id: i64,
    /// The note's path.
    pub path: String,
    /// First and last line, from 1.
    pub lines: (u32, u32),
    /// Its text.
    pub text: String,
    /// By words: BM25, greater is better. By vectors: the cosine, 1 is best.
    pub score: f64,
}

/// A text that has no vector yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bare {
    /// Its row.
    pub id: i64,
    /// What it is kept by.
    pub hash: Vec<u8>,
    /// The headings above it.
    pub heading: String,
    /// The text.
    pub text: String,
}

/// How much the index holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NoteCount {
    /// Notes.
    pub notes: u64,
    /// Passages.
    pub passages: u64,
    /// Passages with a vector.
    pub vectors: u64,
}

/// The index of the notes.
#[async_trait]
pub trait NoteStore: Send + Sync + 'static {
    /// Every note of an agent that the index knows. [`StoreError::Corrupt`] also when parts of the index do not fit together:
    /// call [`NoteStore::forget_notes`] and put everything again.
    async fn known_notes(&self, agent: &str) -> Result<Vec<NoteRow>, StoreError>;

    /// Puts notes in place of what was known of them, and forgets those of the paths in `gone`; together.
    async fn put_notes(&self, agent: &str, notes: Vec<NewNote>, gone: Vec<String>) -> Result<(), StoreError>;

    /// The passages that hold some of these words, the best first. A word as `memory::words` cuts it; one that ends in `*`
    /// means all that begin so.
    async fn find_words(&self, scope: &Scope, words: &[String], most: u32) -> Result<Vec<PassageHit>, StoreError>;

    /// The passages whose vectors are nearest, the nearest first. `vector` has length 1.
    async fn find_near(
        &self,
        scope: &Scope,
        model: &str,
        vector: &[f32],
        most: u32,
    ) -> Result<Vec<PassageHit>, StoreError>;

    /// Makes the sketches of this model's vectors current (those of another model go), and gives texts that have no vector,
    /// after the row `after`.
    async fn sketch_notes(&self, model: &str, after: i64, most: u32) -> Result<Vec<Bare>, StoreError>;

    /// Keeps what the model said of texts, by their hashes. Vectors have length 1.
    async fn put_vectors(&self, model: &str, vectors: Vec<(Vec<u8>, Vec<f32>)>) -> Result<(), StoreError>;

    /// Forgets vectors of texts that no note has any more, and of other models.
    async fn forget_vectors(&self, model: &str) -> Result<u64, StoreError>;

    /// How much the index holds of an agent.
    async fn count_notes(&self, agent: &str) -> Result<NoteCount, StoreError>;

    /// Makes the index empty and whole again, whatever is wrong with it. Vectors stay.
    async fn forget_notes(&self) -> Result<(), StoreError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chat(kind: ConversationKind, id: &str) -> Conversation {
        Conversation { kind, id: id.into(), thread: Some("7".into()), title: None }
    }

    #[test]
    fn a_turn_sees_what_its_readers_may() {
        use ConversationKind::{Direct, Group};
        let telegram = ChannelId::new("telegram", "main");
        let of = |role, kind, id: &str| Scope::of_turn("main", role, &telegram, &chat(kind, id));
        assert_eq!(of(Role::Owner, Direct, "1"), Some(Scope::owner("main")));
        assert_eq!((of(Role::Stranger, Direct, "1"), of(Role::Stranger, Group, "1")), (None, None));
        let group = of(Role::Owner, Group, "-100").expect("a scope");
        assert_eq!(group, of(Role::Member, Group, "-100").expect("a scope"));
        assert_eq!(group.folder().as_deref(), Some("chats/telegram.main.group.-100"));
        let member = of(Role::Member, Direct, "5").expect("a scope");
        let trusted = of(Role::Trusted, Direct, "6").expect("a scope");
        let notes = [
            "MEMORY.md",
            "memory/2026-03-22-伪指令问题修复总结.md",
            "memory/shared/rules.md",
            "memory/chats/telegram.main.group.-100/a.md",
            "memory/chats/telegram.main.direct.5/a.md",
        ];
        let seen = |scope: &Scope| notes.map(|path| Area::of(path).is_some_and(|area| scope.sees(&area)));
        assert_eq!(seen(&Scope::owner("main")), [true, true, true, false, false]);
        assert_eq!(seen(&group), [false, false, true, true, false]);
        assert_eq!(seen(&member), [false, false, true, false, true]);
        assert_eq!(seen(&trusted), [false, false, true, false, false]);
    }

    #[test]
    fn only_notes_have_an_area() {
        for note in ["MEMORY.md", "memory/a.md", "memory/b/c.md", "memory/2026-03-22-春节.MD", "memory/chats.md"] {
            assert_eq!(Area::of(note), Some(Area::Owner), "{note}");
        }
        for other in [
            "memory.md",
            "memory",
            "memory/",
            "memory/a.txt",
            "USER.md",
            "skills/memory/a.md",
            "memoryx/a.md",
            "memory/quarantine/a.md",
            "memory/Quarantine/a.md",
            "memory/Chats/x/a.md",
            "memory/SHARED/a.md",
            "memory/chats/a.md",
            "memory//a.md",
        ] {
            assert_eq!(Area::of(other), None, "{other}");
        }
    }

    #[test]
    fn no_two_chats_share_a_folder() {
        let folder = |kind: &str, account: &str, id: &str| {
            chat_folder(&ChannelId::new(kind, account), &chat(ConversationKind::Group, id))
        };
        let long = "x".repeat(300);
        let all = [
            folder("webhook", "b", "Room"),
            folder("webhook", "b", "room"),
            folder("webhook", "b", "a.b"),
            folder("webhook", "b", "a%2eb"),
            folder("webhook", "b", "../../MEMORY.md"),
            folder("webhook", "b", "群"),
            folder("webhook", "b", &long),
            folder("webhook", "b", &format!("{long}y")),
        ];
        for (n, name) in all.iter().enumerate() {
            assert!(name.len() <= FOLDER_BYTES && !name.contains(['/', '\\']) && !name.contains(".."), "{name}");
            assert!(all[..n].iter().all(|other| !other.eq_ignore_ascii_case(name)), "{name}");
        }
        assert_ne!(Area::Owner.place("main"), Area::Owner.place("other"));
        assert_ne!(Area::Owner.place("main"), Area::Shared.place("main"));
    }
}
