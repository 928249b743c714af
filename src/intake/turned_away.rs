//! What the gate turned away since the start, so that `doctor` can say why nobody answers there, and how a group's id is
//! learned. In memory and bounded: it explains, it decides nothing.

use std::sync::{Arc, Mutex, PoisonError};

use channel_api::{ChannelId, ConversationKind, IgnoredReason, Inbound};
use serde::{Deserialize, Serialize};

use crate::terminal;

/// The most places remembered: the last ones.
const MOST: usize = 50;
/// The most characters kept of a title or a name, which strangers choose.
const NAME_CHARS: usize = 40;
/// The most bytes of an id. A longer one is no platform's, and a cut one would name somebody else: it is passed over.
const ID_BYTES: usize = 256;

/// The last places where messages were turned away. Cheap to clone; all clones are one list.
#[derive(Clone, Debug, Default)]
pub struct TurnedAway(Arc<Mutex<Vec<Place>>>);

/// One conversation, and why its messages went no further.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// Where.
    pub channel: ChannelId,
    /// A group, not a private chat.
    pub group: bool,
    /// The conversation's id.
    pub conversation: String,
    /// The conversation's title: escaped, and cut to 40 characters.
    pub title: Option<String>,
    /// The id of whoever wrote last.
    pub sender: String,
    /// Their name: escaped, and cut to 40 characters.
    pub name: Option<String>,
    /// Why.
    pub why: Why,
    /// The words were kept as context of the conversation.
    pub kept: bool,
    /// For [`Why::Blocked`]: the scope of the block, a channel or a kind of channel.
    pub scope: Option<String>,
    /// How many messages. One that was delivered again is counted again.
    pub count: u64,
    /// When the last one came, in epoch milliseconds.
    pub last_at: i64,
}

/// Why a message was turned away: the reasons somebody may want to change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// The sender is on no list.
    SenderNotAllowed,
    /// The group is on no list.
    GroupNotAllowed,
    /// Private chats or groups are switched off here.
    Disabled,
    /// Said in a group, but not to the bot.
    NotAddressed,
    /// The sender was blocked.
    Blocked,
}

impl Why {
    /// The reason, when it is one of these: other bots and empty messages are nobody's question.
    pub fn of(reason: IgnoredReason) -> Option<Self> {
        match reason {
            IgnoredReason::SenderNotAllowed => Some(Self::SenderNotAllowed),
            IgnoredReason::GroupNotAllowed => Some(Self::GroupNotAllowed),
            IgnoredReason::Disabled => Some(Self::Disabled),
            IgnoredReason::NotAddressed => Some(Self::NotAddressed),
            IgnoredReason::Blocked => Some(Self::Blocked),
            IgnoredReason::Bot | IgnoredReason::NothingToAnswer => None,
        }
    }

    /// Its name, as in JSON and in the names of doors.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::SenderNotAllowed => "sender_not_allowed",
            Self::GroupNotAllowed => "group_not_allowed",
            Self::Disabled => "disabled",
            Self::NotAddressed => "not_addressed",
            Self::Blocked => "blocked",
        }
    }
}

impl TurnedAway {
    /// Remembers one message at `now` (epoch milliseconds). `kept`: its words wait as context; `scope`: what a block holds
    /// for.
    pub fn remember(&self, event: &Inbound, reason: IgnoredReason, kept: bool, scope: Option<String>, now: i64) {
        let Some(why) = Why::of(reason) else { return };
        let (conversation, sender) = (&event.conversation.id, &event.sender.id);
        if conversation.len() > ID_BYTES || sender.len() > ID_BYTES {
            return;
        }
        let mut places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // A person who is not let in is a place of their own; a group is one whoever writes there.
        let personal = matches!(why, Why::SenderNotAllowed | Why::Blocked);
        let known = places.iter().position(|place| {
            place.why == why
                && place.channel == event.channel
                && place.conversation == *conversation
                && (!personal || place.sender == *sender)
        });
        let count = known.map_or(0, |at| places.remove(at).count);
        if places.len() >= MOST {
            places.remove(0);
        }
        places.push(Place {
            channel: event.channel.clone(),
            group: event.conversation.kind == ConversationKind::Group,
            conversation: conversation.clone(),
            title: event.conversation.title.as_deref().and_then(shown),
            sender: sender.clone(),
            name: event.sender.name.as_deref().and_then(shown),
            why,
            kept,
            scope,
            count: count.saturating_add(1),
            last_at: now,
        });
    }

    /// The places, the latest first. `block`: the scope of the block of a sender, if there is one now; who is no longer
    /// blocked is turned away nowhere for it.
    pub fn places(&self, block: impl Fn(&ChannelId, &str) -> Option<String>) -> Vec<Place> {
        let places = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let still = |place: &Place| match place.why {
            Why::Blocked => {
                let scope = Some(block(&place.channel, &place.sender)?);
                Some(Place { scope, ..place.clone() })
            }
            _ => Some(place.clone()),
        };
        places.iter().rev().filter_map(still).collect()
    }
}

/// A title or a name as it may be shown; `None` when nothing is left of it.
fn shown(text: &str) -> Option<String> {
    let text: String = text.trim().chars().take(NAME_CHARS).collect();
    (!text.is_empty()).then(|| terminal::escape_line(&text).into_owned())
}

#[cfg(test)]
pub(crate) mod tests {
    use channel_api::{Address, Conversation, InboundKind, Sender, Trust};

    use super::*;

    /// A message of `sender` in a group.
    pub(crate) fn event(group: &str, sender: &str) -> Inbound {
        let channel = ChannelId::new("telegram", "main");
        Inbound {
            channel: channel.clone(),
            platform_id: "m1".into(),
            fingerprint: None,
            kind: InboundKind::Message,
            about: None,
            conversation: Conversation {
                kind: ConversationKind::Group,
                id: group.into(),
                thread: None,
                title: Some("Friends".into()),
            },
            sender: Sender { id: sender.into(), name: Some("Bob".into()), is_bot: false },
            text: "hi".into(),
            attachments: Vec::new(),
            mentions_us: false,
            reply_to: None,
            at: None,
            address: Address { channel, lane: group.into(), data: serde_json::Value::Null },
            trust: Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        }
    }

    #[test]
    fn places_are_counted_bounded_and_the_latest_comes_first() {
        let away = TurnedAway::default();
        for n in 0..200 {
            away.remember(&event(&format!("g{n}"), "1"), IgnoredReason::GroupNotAllowed, false, None, n);
        }
        // Whoever writes in a group, it is one place; and it is the latest again.
        away.remember(&event("g150", "2"), IgnoredReason::GroupNotAllowed, false, None, 500);
        let places = away.places(|_, _| None);
        assert_eq!(places.len(), MOST);
        assert_eq!((places[0].conversation.as_str(), places[0].count, places[0].last_at), ("g150", 2, 500));
        assert_eq!((places[0].sender.as_str(), places[1].conversation.as_str()), ("2", "g199"));
        assert!(!places.iter().any(|place| place.conversation == "g149"), "the oldest are let go");
    }

    #[test]
    fn people_who_are_not_let_in_are_told_apart_and_a_reason_is_a_place_of_its_own() {
        let away = TurnedAway::default();
        for sender in ["1", "2", "1"] {
            away.remember(&event("g", sender), IgnoredReason::SenderNotAllowed, false, None, 1);
        }
        away.remember(&event("g", "3"), IgnoredReason::NotAddressed, true, None, 2);
        away.remember(&event("g", "4"), IgnoredReason::NotAddressed, true, None, 3);
        away.remember(&event("g", "5"), IgnoredReason::Bot, false, None, 4);
        away.remember(&event("g", "6"), IgnoredReason::NothingToAnswer, false, None, 4);
        let seen: Vec<_> =
            away.places(|_, _| None).into_iter().map(|place| (place.why, place.sender, place.count)).collect();
        let expected = [
            (Why::NotAddressed, "4".to_owned(), 2),
            (Why::SenderNotAllowed, "1".to_owned(), 2),
            (Why::SenderNotAllowed, "2".to_owned(), 1),
        ];
        assert_eq!(seen, expected);
        assert!(away.places(|_, _| None)[0].kept);
    }

    #[test]
    fn names_are_escaped_and_cut_and_ids_that_no_platform_gives_are_passed_over() {
        let away = TurnedAway::default();
        let mut hostile = event("g", "1");
        hostile.conversation.title = Some(format!("\u{1b}[2J\u{202e}{}", "x".repeat(500)));
        hostile.sender.name = Some("  \n ".into());
        away.remember(&hostile, IgnoredReason::GroupNotAllowed, false, None, 1);
        let place = away.places(|_, _| None).remove(0);
        let title = place.title.expect("a title");
        assert!(title.starts_with("\\x1b[2J\\u{202e}x") && title.len() < 60, "{title}");
        assert_eq!(place.name, None);
        away.remember(&event(&"9".repeat(257), "1"), IgnoredReason::GroupNotAllowed, false, None, 1);
        away.remember(&event("g", &"9".repeat(257)), IgnoredReason::Blocked, false, None, 1);
        assert_eq!(away.places(|_, _| None).len(), 1);
    }

    #[test]
    fn who_is_no_longer_blocked_is_not_told_as_blocked_and_a_block_is_told_where_it_holds_now() {
        let away = TurnedAway::default();
        let scope = || Some("telegram".to_owned());
        for sender in ["1", "2"] {
            away.remember(&event("g", sender), IgnoredReason::Blocked, false, scope(), 1);
        }
        away.remember(&event("g", "1"), IgnoredReason::SenderNotAllowed, false, None, 2);
        let places = away.places(|channel, sender| (sender == "2").then(|| channel.to_string()));
        let seen: Vec<_> =
            places.iter().map(|place| (place.why, place.sender.as_str(), place.scope.as_deref())).collect();
        assert_eq!(seen, [(Why::SenderNotAllowed, "1", None), (Why::Blocked, "2", Some("telegram:main"))]);
    }

    #[test]
    fn reasons_are_named_alike_in_rows_and_in_json() {
        for reason in [
            IgnoredReason::SenderNotAllowed,
            IgnoredReason::GroupNotAllowed,
            IgnoredReason::Disabled,
            IgnoredReason::NotAddressed,
            IgnoredReason::Blocked,
        ] {
            let why = Why::of(reason).expect("it is one of these");
            assert_eq!(why.as_str(), reason.as_str());
            assert_eq!(serde_json::to_value(why).expect("JSON"), reason.as_str());
        }
    }
}
