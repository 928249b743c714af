//! The chats that the gateway has been in: where a word to another chat goes. Nothing is ever sent to an address that no
//! message came from.

use async_trait::async_trait;
use channel_api::{Address, Conversation, ConversationKind, Sender, TurnId};

use crate::{
    session::SessionKey,
    store::{LaneKey, NewPart, StoreError},
};

/// A chat that somebody wrote in.
#[derive(Clone, Debug, PartialEq)]
pub struct Addressee {
    /// Its session.
    pub session: SessionKey,
    /// The agent of that session.
    pub agent: String,
    /// Where its answers go: as of its newest messages.
    pub address: Address,
    /// The conversation.
    pub conversation: Conversation,
    /// Who wrote there last.
    pub sender: Sender,
    /// An owner wrote there last: their own direct chat, or a group they speak in.
    pub owners: bool,
    /// When somebody wrote there, to the hour.
    pub seen_at: i64,
}

impl Addressee {
    /// A name for people: the group's title, or who writes there.
    pub fn name(&self) -> &str {
        let title = self.conversation.title.as_deref();
        match self.conversation.kind {
            ConversationKind::Group => title.unwrap_or(&self.conversation.id),
            ConversationKind::Direct => self.sender.name.as_deref().or(title).unwrap_or(&self.conversation.id),
        }
    }

    /// Whether this is what is meant: its session's key, `<channel>:<conversation id>` with or without the account, the bare
    /// id, or its name.
    fn is_meant(&self, written: &str) -> Meant {
        let (channel, id) = (&self.address.channel, self.conversation.id.as_str());
        let exact = [channel.as_str(), channel.kind()].iter().any(|channel| {
            written.strip_prefix(channel).and_then(|rest| rest.strip_prefix(':')).is_some_and(|rest| rest == id)
        });
        if written == self.session.as_str() || (exact && self.conversation.thread.is_none()) {
            return Meant::Exactly;
        }
        let same = |name: &str| name.to_lowercase() == written.to_lowercase();
        if written == id || same(self.name()) { Meant::Perhaps } else { Meant::Not }
    }
}

#[derive(PartialEq)]
enum Meant {
    Exactly,
    Perhaps,
    Not,
}

/// The chat that a model means.
///
/// # Errors
/// Those that could be meant; none when there is no such chat.
pub fn meant<'a>(chats: &'a [Addressee], written: &str) -> Result<&'a Addressee, Vec<&'a Addressee>> {
    let written = written.trim();
    if let Some(chat) = chats.iter().find(|chat| chat.is_meant(written) == Meant::Exactly) {
        return Ok(chat);
    }
    let perhaps: Vec<&Addressee> = chats.iter().filter(|chat| chat.is_meant(written) == Meant::Perhaps).collect();
    match perhaps[..] {
        [chat] => Ok(chat),
        _ => Err(perhaps),
    }
}

/// Where chats are kept, and words to them.
#[async_trait]
pub trait AddresseeStore: Send + Sync + 'static {
    /// The chat of a session.
    async fn addressee(&self, session: &SessionKey) -> Result<Option<Addressee>, StoreError>;

    /// Chats, last active first.
    async fn addressees(&self, limit: u32) -> Result<Vec<Addressee>, StoreError>;

    /// Stores what a running turn says to another chat, as parts that answer nobody, and in that session's history.
    /// Once: a first part that is stored already changes nothing. The lanes to wake. `Fenced` when the turn does not hold
    /// its session (any more).
    async fn say(&self, word: Word) -> Result<Vec<LaneKey>, StoreError>;
}

/// A word to another chat.
#[derive(Clone, Debug)]
pub struct Word {
    /// The session that says it.
    pub session: SessionKey,
    /// Its turn.
    pub turn: TurnId,
    /// What is sent; their ids are the same for a second try.
    pub parts: Vec<NewPart>,
    /// The session it is said to, and the text for its history; `None` when that is the same session.
    pub heard: Option<(SessionKey, String)>,
    /// Now.
    pub now: i64,
}

#[cfg(test)]
mod tests {
    use channel_api::ChannelId;

    use super::*;

    fn chat(channel: &str, kind: ConversationKind, id: &str, name: &str) -> Addressee {
        let (kind_name, account) = channel.split_once(':').expect("a channel");
        let channel = ChannelId::new(kind_name, account);
        let conversation = Conversation { kind, id: id.to_owned(), thread: None, title: Some(name.to_owned()) };
        Addressee {
            session: SessionKey::of("main", &channel, false, &conversation),
            agent: "main".to_owned(),
            address: Address { channel, lane: id.to_owned(), data: serde_json::Value::Null },
            conversation,
            sender: Sender { id: "1".to_owned(), name: Some(name.to_owned()), is_bot: false },
            owners: false,
            seen_at: 0,
        }
    }

    #[test]
    fn a_chat_is_found_by_what_is_plain_and_by_nothing_else() {
        use ConversationKind::{Direct, Group};
        let chats = [
            chat("telegram:main", Direct, "42", "Ada"),
            chat("telegram:main", Group, "-7", "家庭群"),
            chat("discord:main", Direct, "42", "Bob"),
            chat("discord:main", Group, "9", "Ada"),
        ];
        let at = |written: &str| meant(&chats, written).map(|chat| chat.session.to_string());
        for (written, session) in [
            ("agent:main:telegram:direct:42", "agent:main:telegram:direct:42"),
            ("telegram:42", "agent:main:telegram:direct:42"),
            ("discord:main:42", "agent:main:discord:direct:42"),
            (" 家庭群 ", "agent:main:telegram:group:-7"),
            ("bob", "agent:main:discord:direct:42"),
            ("-7", "agent:main:telegram:group:-7"),
        ] {
            assert_eq!(at(written), Ok(session.to_owned()), "{written}");
        }
        assert_eq!(meant(&chats, "42").map_err(|perhaps| perhaps.len()), Err(2));
        assert_eq!(meant(&chats, "Ada").map_err(|perhaps| perhaps.len()), Err(2));
        for nobody in ["telegram:43", "agent:main:telegram:direct:4", "", "eve", "telegram:"] {
            assert_eq!(meant(&chats, nobody).map_err(|perhaps| perhaps.len()), Err(0), "{nobody}");
        }
    }
}
