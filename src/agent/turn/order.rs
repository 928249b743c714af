//! The strict message order of a request, whatever the history holds. Knows nothing of a turn's state.
//!
//! The order (design.md §6): it begins with a user message; an assistant message with calls is followed at once by one
//! result for each call, in the order of the calls, and then by the next assistant message; no two user messages and no two
//! assistant messages stand side by side; nothing is empty; call ids are unique; it ends with a user message or a result.
//! Some providers accept less; none refuses this.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value, json};

use crate::model::{Message, Picture, ToolCall};

/// Stands in for a result that nobody recorded.
pub const NO_RESULT: &str = "No result of this call was recorded. Its outcome is unknown; check before repeating it.";
/// Opens a request whose history begins with the assistant.
const OPENING: &str = "(earlier messages are not shown)";
/// Closes a request that would end with the assistant's own words.
const GO_ON: &str = "(go on)";
/// Stands between results and a person's message that came before the model read them.
const BRIDGE: &str = "(a new message came in)";
/// The most characters kept of arguments that are no JSON object.
const UNPARSED_CHARS: usize = 2_000;
/// The most characters of a result once it is told in plain words.
const TOLD_CHARS: usize = 1_500;

/// The messages in strict order, ready for a request: results are moved behind their calls, orphans and duplicates dropped,
/// missing results filled in, neighbours of one role joined, names and arguments made acceptable.
pub fn for_request(messages: &[Message]) -> Vec<Message> {
    let mut out = ordered(messages, true);
    if matches!(out.last(), None | Some(Message::Assistant { .. })) {
        push_user(&mut out, GO_ON, &[]);
    }
    out
}

/// The same for what a conversation keeps: it may begin and end with the assistant.
pub fn for_transcript(messages: &[Message]) -> Vec<Message> {
    ordered(messages, false)
}

/// The first break of the strict order, in words; `Ok` for an ordered request.
///
/// # Errors
/// What is wrong, and at which message.
pub fn check(messages: &[Message]) -> Result<(), String> {
    let mut ids = HashSet::new();
    let mut open: std::collections::VecDeque<(&str, &str)> = Default::default();
    let mut before: Option<&Message> = None;
    for (at, message) in messages.iter().enumerate() {
        let wrong = |what: &str| Err(format!("message {at}: {what}"));
        if !open.is_empty() && !matches!(message, Message::Tool { .. }) {
            return wrong("results are missing before it");
        }
        match message {
            Message::User { text, .. } => {
                if text.trim().is_empty() {
                    return wrong("empty user message");
                }
                if matches!(before, Some(Message::User { .. } | Message::Tool { .. })) {
                    return wrong("user message after a user message or a result");
                }
            }
            Message::Assistant { text, calls, .. } => {
                if text.trim().is_empty() && calls.is_empty() {
                    return wrong("empty assistant message");
                }
                if matches!(before, None | Some(Message::Assistant { .. })) {
                    return wrong("assistant message at the beginning or after another");
                }
                for call in calls {
                    if call.id.is_empty() || !ids.insert(call.id.as_str()) {
                        return wrong("call id empty or not unique");
                    }
                    if !name_fits(&call.name) || !is_object(&call.arguments) {
                        return wrong("call name or arguments that providers refuse");
                    }
                    open.push_back((&call.id, &call.name));
                }
            }
            Message::Tool { call_id, name, text } => {
                if open.pop_front() != Some((call_id, name)) {
                    return wrong("a result that is not the next open call's");
                }
                if text.is_empty() {
                    return wrong("empty result");
                }
            }
        }
        before = Some(message);
    }
    if !open.is_empty() {
        return Err("results are missing at the end".to_owned());
    }
    match before {
        Some(Message::User { .. } | Message::Tool { .. }) => Ok(()),
        _ => Err("it does not end with a user message or a result".to_owned()),
    }
}

/// Tells old calls and results in plain words, for a provider that refuses their order: no tool message is left.
pub fn flattened(messages: &[Message]) -> Vec<Message> {
    let ordered = for_transcript(messages);
    let mut out: Vec<Message> = Vec::new();
    let mut results: HashMap<&str, &str> = HashMap::new();
    for message in &ordered {
        if let Message::Tool { call_id, text, .. } = message {
            results.insert(call_id, text);
        }
    }
    for message in &ordered {
        match message {
            Message::User { .. } => out.push(message.clone()),
            Message::Tool { .. } => {}
            Message::Assistant { text, calls, .. } => {
                let mut told = text.clone();
                for call in calls {
                    let result = results.get(call.id.as_str()).copied().unwrap_or(NO_RESULT);
                    if !told.is_empty() {
                        told.push_str("\n\n");
                    }
                    // In the past tense and without call syntax: a model that reads calls as text begins to write them.
                    told.push_str(&format!(
                        "(I used the tool {} on {}. It gave: {})",
                        call.name,
                        head(&call.arguments, 300),
                        head(result, TOLD_CHARS)
                    ));
                }
                out.push(Message::Assistant { text: told, calls: Vec::new(), opaque: None });
            }
        }
    }
    ordered_again(out)
}

/// Whether any message belongs to a tool exchange.
pub fn has_tools(messages: &[Message]) -> bool {
    messages.iter().any(|message| match message {
        Message::Assistant { calls, .. } => !calls.is_empty(),
        Message::Tool { .. } => true,
        Message::User { .. } => false,
    })
}

/// Removes the oldest messages until at most half the bytes are left, and on to the next user message. Returns how many went.
pub fn drop_older_half(messages: &mut Vec<Message>) -> usize {
    let total: usize = messages.iter().map(size).sum();
    let mut dropped = 0;
    let mut bytes = 0;
    while dropped < messages.len() && (bytes * 2 < total || dropped == 0) {
        bytes += size(&messages[dropped]);
        dropped += 1;
    }
    while dropped < messages.len() && !matches!(messages[dropped], Message::User { .. }) {
        dropped += 1;
    }
    messages.drain(..dropped);
    dropped
}

/// Call ids used so far.
pub fn ids(messages: &[Message]) -> impl Iterator<Item = &str> {
    messages
        .iter()
        .flat_map(|message| match message {
            Message::Assistant { calls, .. } => calls.as_slice(),
            _ => &[],
        })
        .map(|call| call.id.as_str())
}

/// The first characters of a text, with a mark when something was left out.
pub fn head(text: &str, chars: usize) -> String {
    match text.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn size(message: &Message) -> usize {
    16 + match message {
        Message::User { text, .. } | Message::Tool { text, .. } => text.len(),
        Message::Assistant { text, calls, opaque } => {
            text.len()
                + calls.iter().map(|call| call.name.len() + call.arguments.len() + 32).sum::<usize>()
                + opaque.as_ref().map_or(0, |value| value.to_string().len())
        }
    }
}

fn ordered(messages: &[Message], open_with_user: bool) -> Vec<Message> {
    let mut results = Results::of(messages);
    let mut used = HashSet::new();
    let mut out = Vec::with_capacity(messages.len());
    for (at, message) in messages.iter().enumerate() {
        match message {
            Message::User { text, pictures } => push_user(&mut out, text, pictures),
            // Placed behind their calls below; what belongs to no call is dropped.
            Message::Tool { .. } => {}
            Message::Assistant { text, calls, opaque } => {
                let answered: Vec<(ToolCall, String)> = calls
                    .iter()
                    .map(|call| {
                        let result = results.take(messages, at, &call.id).unwrap_or_else(|| NO_RESULT.to_owned());
                        let call = ToolCall {
                            id: unique(&mut used, &call.id),
                            name: fitting_name(&call.name),
                            arguments: object(&call.arguments),
                        };
                        (call, result)
                    })
                    .collect();
                push_assistant(&mut out, text, answered, opaque.as_ref(), open_with_user);
            }
        }
    }
    out
}

/// Joins neighbours once more after messages changed their kind.
fn ordered_again(messages: Vec<Message>) -> Vec<Message> {
    ordered(&messages, false)
}

/// Where the results of each id are, and which of them are taken.
struct Results {
    by_id: HashMap<String, Vec<usize>>,
    asked_at: HashMap<String, Vec<usize>>,
    taken: HashSet<usize>,
}

impl Results {
    fn of(messages: &[Message]) -> Self {
        let mut by_id: HashMap<String, Vec<usize>> = HashMap::new();
        let mut asked_at: HashMap<String, Vec<usize>> = HashMap::new();
        for (at, message) in messages.iter().enumerate() {
            match message {
                Message::Tool { call_id, .. } => by_id.entry(call_id.clone()).or_default().push(at),
                Message::Assistant { calls, .. } => {
                    for call in calls {
                        asked_at.entry(call.id.clone()).or_default().push(at);
                    }
                }
                Message::User { .. } => {}
            }
        }
        Self { by_id, asked_at, taken: HashSet::new() }
    }

    /// The result of a call made at `at`: the first free one behind it and before the id is used again; for an id never
    /// used before, one that stands too early.
    fn take(&mut self, messages: &[Message], at: usize, id: &str) -> Option<String> {
        let places = self.by_id.get(id)?;
        let asked = &self.asked_at[id];
        let until = asked.iter().copied().find(|&next| next > at).unwrap_or(usize::MAX);
        let free = |place: &&usize| !self.taken.contains(*place);
        let first_use = asked.first() == Some(&at);
        let place = places
            .iter()
            .filter(free)
            .find(|&&place| place > at && place < until)
            .or_else(|| if first_use { places.iter().filter(free).find(|&&place| place < at) } else { None })
            .copied()?;
        self.taken.insert(place);
        match &messages[place] {
            Message::Tool { text, .. } if !text.is_empty() => Some(text.clone()),
            _ => Some("(no output)".to_owned()),
        }
    }
}

fn push_user(out: &mut Vec<Message>, text: &str, pictures: &[Picture]) {
    if text.trim().is_empty() {
        return;
    }
    match out.last_mut() {
        Some(Message::User { text: before, pictures: seen }) => {
            before.push_str("\n\n");
            before.push_str(text);
            seen.extend_from_slice(pictures);
        }
        last => {
            if matches!(last, Some(Message::Tool { .. })) {
                out.push(Message::Assistant { text: BRIDGE.to_owned(), calls: Vec::new(), opaque: None });
            }
            out.push(Message::User { text: text.to_owned(), pictures: pictures.to_vec() });
        }
    }
}

fn push_assistant(
    out: &mut Vec<Message>,
    text: &str,
    answered: Vec<(ToolCall, String)>,
    opaque: Option<&Value>,
    open_with_user: bool,
) {
    let silent = text.trim().is_empty();
    if silent && answered.is_empty() {
        return;
    }
    if out.is_empty() && open_with_user {
        out.push(Message::user(OPENING));
    }
    let calls: Vec<ToolCall> = answered.iter().map(|(call, _)| call.clone()).collect();
    match out.last_mut() {
        // The last assistant message has no calls here: results follow calls at once.
        Some(Message::Assistant { text: before, calls: none, opaque: old }) => {
            if !silent {
                before.push_str("\n\n");
                before.push_str(text);
            }
            *none = calls;
            *old = opaque.cloned();
        }
        _ => {
            let text = if silent { String::new() } else { text.to_owned() };
            out.push(Message::Assistant { text, calls, opaque: opaque.cloned() });
        }
    }
    for (call, text) in answered {
        out.push(Message::Tool { call_id: call.id, name: call.name, text });
    }
}

/// The id itself, or one made from it that no earlier call has.
pub fn unique(used: &mut HashSet<String>, id: &str) -> String {
    let base = if id.is_empty() { "call" } else { id };
    let mut candidate = base.to_owned();
    let mut n = 1_u32;
    while !used.insert(candidate.clone()) {
        n += 1;
        candidate = format!("{base}_{n}");
    }
    candidate
}

fn name_fits(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

/// A name every provider accepts in a history (`[A-Za-z0-9_-]{1,64}`).
fn fitting_name(name: &str) -> String {
    if name_fits(name) {
        return name.to_owned();
    }
    let fitting: String = name
        .chars()
        .map(|c| if c.is_ascii_alphanumeric() || c == '_' || c == '-' { c } else { '_' })
        .take(64)
        .collect();
    if fitting.is_empty() { "unknown".to_owned() } else { fitting }
}

fn is_object(arguments: &str) -> bool {
    serde_json::from_str::<Map<String, Value>>(arguments).is_ok()
}

/// Arguments as the JSON object providers and chat templates parse; what is none is quoted, so that the model still sees it.
fn object(arguments: &str) -> String {
    let trimmed = arguments.trim();
    if is_object(trimmed) {
        return arguments.to_owned();
    }
    if trimmed.is_empty() || trimmed == "null" {
        return "{}".to_owned();
    }
    json!({ "unparsed": head(trimmed, UNPARSED_CHARS) }).to_string()
}

#[cfg(test)]
pub(in crate::agent::turn) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn user(text: &str) -> Message {
        Message::user(text)
    }

    fn assistant(text: &str, ids: &[&str]) -> Message {
        let calls = ids
            .iter()
            .map(|id| ToolCall { id: (*id).to_owned(), name: "read".to_owned(), arguments: "{}".to_owned() })
            .collect();
        Message::Assistant { text: text.to_owned(), calls, opaque: None }
    }

    fn tool(id: &str, text: &str) -> Message {
        Message::Tool { call_id: id.to_owned(), name: "read".to_owned(), text: text.to_owned() }
    }

    #[test]
    fn an_ordered_history_passes_byte_for_byte() {
        let history = [
            user("a"),
            assistant("", &["c1", "c2"]),
            tool("c1", "1"),
            tool("c2", "2"),
            assistant("done", &[]),
            user("b"),
        ];
        assert_eq!(for_request(&history), history);
    }

    #[test]
    fn broken_histories_are_mended() {
        let cases: [(&str, Vec<Message>, Vec<Message>); 9] = [
            ("orphan result", vec![user("a"), tool("c9", "x")], vec![user("a")]),
            (
                "missing result",
                vec![user("a"), assistant("", &["c1"]), user("b")],
                vec![user("a"), assistant("", &["c1"]), tool("c1", NO_RESULT), assistant(BRIDGE, &[]), user("b")],
            ),
            (
                "result before its call",
                vec![user("a"), tool("c1", "early"), assistant("", &["c1"])],
                vec![user("a"), assistant("", &["c1"]), tool("c1", "early")],
            ),
            (
                "results swapped, and something between",
                vec![user("a"), assistant("", &["c1", "c2"]), tool("c2", "2"), user("b"), tool("c1", "1")],
                vec![
                    user("a"),
                    assistant("", &["c1", "c2"]),
                    tool("c1", "1"),
                    tool("c2", "2"),
                    assistant(BRIDGE, &[]),
                    user("b"),
                ],
            ),
            (
                "two results for one id",
                vec![
                    user("a"),
                    assistant("", &["c1"]),
                    tool("c1", "1"),
                    tool("c1", "again"),
                    assistant("x", &[]),
                    user("b"),
                ],
                vec![user("a"), assistant("", &["c1"]), tool("c1", "1"), assistant("x", &[]), user("b")],
            ),
            (
                "an id used twice",
                vec![user("a"), assistant("", &["c1"]), tool("c1", "1"), assistant("", &["c1"]), tool("c1", "2")],
                vec![user("a"), assistant("", &["c1"]), tool("c1", "1"), assistant("", &["c1_2"]), tool("c1_2", "2")],
            ),
            ("empty messages", vec![user(" "), user("a"), assistant("\n", &[]), user("b")], vec![user("a\n\nb")]),
            (
                "begins and ends with the assistant",
                vec![assistant("hello", &[]), assistant("there", &[])],
                vec![user(OPENING), assistant("hello\n\nthere", &[]), user(GO_ON)],
            ),
            ("nothing at all", vec![], vec![user(GO_ON)]),
        ];
        for (name, given, expected) in cases {
            // Unique ids of results follow their calls.
            let got = for_request(&given);
            assert_eq!(got, expected, "{name}");
            assert_eq!(check(&got), Ok(()), "{name}");
        }
    }

    #[test]
    fn a_duplicate_result_is_not_handed_to_a_later_call_of_that_id() {
        let history = [user("a"), assistant("", &["c"]), tool("c", "1"), tool("c", "1b"), assistant("", &["c"])];
        let got = for_request(&history);
        assert_eq!(got.last(), Some(&tool("c_2", NO_RESULT)));
    }

    #[test]
    fn names_and_arguments_are_made_acceptable() {
        let call = |name: &str, arguments: &str| Message::Assistant {
            text: String::new(),
            calls: vec![ToolCall { id: "c".into(), name: name.into(), arguments: arguments.into() }],
            opaque: None,
        };
        for (name, arguments, expected_name, expected) in [
            ("functions.exec", "", "functions_exec", "{}"),
            ("", "null", "unknown", "{}"),
            ("读", "{\"path\": ", "_", r#"{"unparsed":"{\"path\":"}"#),
            ("a", "[1]", "a", r#"{"unparsed":"[1]"}"#),
        ] {
            let got = for_request(&[user("x"), call(name, arguments)]);
            assert_eq!(got[1], call(expected_name, expected));
            assert_eq!(check(&got), Ok(()));
        }
    }

    #[test]
    fn flattening_leaves_no_tool_message_and_keeps_what_was_learnt() {
        let history =
            [user("a"), assistant("look", &["c1"]), tool("c1", "the weather is fine"), assistant("Fine.", &[])];
        let flat = flattened(&history);
        assert!(!has_tools(&flat));
        assert_eq!(flat.len(), 2);
        assert!(
            matches!(&flat[1], Message::Assistant { text, .. } if text.contains("the weather is fine") && text.ends_with("Fine."))
        );
    }

    #[test]
    fn halving_cuts_at_a_user_message() {
        let mut history =
            vec![user("a"), assistant("", &["c1"]), tool("c1", &"x".repeat(500)), assistant("b", &[]), user("c")];
        assert_eq!(drop_older_half(&mut history), 4);
        assert_eq!(history, [user("c")]);
        assert_eq!(drop_older_half(&mut history), 1);
        assert!(history.is_empty());
        assert_eq!(drop_older_half(&mut history), 0);
    }

    pub(in crate::agent::turn) fn any_message() -> impl Strategy<Value = Message> {
        let id = prop_oneof![Just(""), Just("c1"), Just("c1_2"), Just("c2"), Just("call"), Just("c3")];
        let text = prop_oneof![Just(""), Just("  "), Just("words"), Just("更多"), Just("(go on)")];
        let name = prop_oneof![Just("read"), Just(""), Just("functions.read"), Just("搜索")];
        let arguments = prop_oneof![Just("{}"), Just(""), Just("{\"a\":1}"), Just("{'a'"), Just("null")];
        let call = (id.clone(), name.clone(), arguments).prop_map(|(id, name, arguments)| ToolCall {
            id: id.into(),
            name: name.into(),
            arguments: arguments.into(),
        });
        prop_oneof![
            text.clone().prop_map(user),
            (text.clone(), prop::collection::vec(call, 0..4)).prop_map(|(text, calls)| Message::Assistant {
                text: text.into(),
                calls,
                opaque: None
            }),
            (id, name, text).prop_map(|(id, name, text)| Message::Tool {
                call_id: id.into(),
                name: name.into(),
                text: text.into()
            }),
        ]
    }

    proptest! {
        #[test]
        fn every_history_becomes_ordered(
            history in prop::collection::vec(any_message(), 0..24),
            cut in any::<(prop::sample::Index, prop::sample::Index)>(),
        ) {
            let got = for_request(&history);
            prop_assert_eq!(check(&got), Ok(()));
            // Mending what is in order changes nothing.
            prop_assert_eq!(for_request(&got), got);
            // A window that begins and ends anywhere is mended too, and so is the transcript of it.
            let (a, b) = (cut.0.index(history.len() + 1), cut.1.index(history.len() + 1));
            let window = &history[a.min(b)..a.max(b)];
            prop_assert_eq!(check(&for_request(window)), Ok(()));
            let mut kept = for_transcript(window);
            prop_assert_eq!(for_transcript(&kept), kept.clone());
            kept.push(user("next"));
            prop_assert_eq!(check(&for_request(&kept)), Ok(()));
            let flat = for_request(&flattened(&history));
            prop_assert_eq!(check(&flat), Ok(()));
            prop_assert!(!has_tools(&flat));
        }
    }
}
