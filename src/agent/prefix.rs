//! How much of a request is the same, byte for byte, as the beginning of the request before it in the same session: what a
//! provider's prompt cache can take. Measured for the trace; knows nothing of any provider.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Mutex, PoisonError},
};

use serde_json::{Value, json};

use crate::{
    model::{Message, ModelRequest},
    session::SessionKey,
};

/// The most sessions that are remembered; then all are forgotten, and their next turns have no figure.
const MOST_SESSIONS: usize = 512;

/// The last request of each session, as lengths and hashes of its pieces.
#[derive(Debug, Default)]
pub struct Prefixes(Mutex<HashMap<SessionKey, Vec<(usize, u64)>>>);

impl Prefixes {
    /// The sizes of a request: `{"system","tools","history": bytes, "messages": count, "same","of": bytes}`; `same` is
    /// missing for the first request of a session since the start.
    pub fn measure(&self, session: &SessionKey, request: &ModelRequest) -> Value {
        let pieces = pieces(request);
        let of: usize = pieces.iter().map(|(bytes, _)| bytes).sum();
        let (system, tools) = (pieces[0].0, pieces[1].0);
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MOST_SESSIONS && !known.contains_key(session) {
            known.clear();
        }
        let same = known.get(session).map(|before| {
            let alike = before.iter().zip(&pieces).take_while(|(before, now)| before == now);
            alike.map(|(_, (bytes, _))| bytes).sum::<usize>()
        });
        known.insert(session.clone(), pieces);
        let mut sizes = json!({
            "system": system,
            "tools": tools,
            "history": of - system - tools,
            "messages": request.messages.len(),
            "of": of,
        });
        if let Some(same) = same {
            sizes["same"] = json!(same);
        }
        sizes
    }
}

/// The system prompt, the tools, then each message.
fn pieces(request: &ModelRequest) -> Vec<(usize, u64)> {
    let mut pieces = Vec::with_capacity(request.messages.len() + 2);
    pieces.push(piece(&[request.system.as_bytes()]));
    let mut tools = (0, DefaultHasher::new());
    for tool in &request.tools {
        // A schema's text is made when its tool is; its size and name stand for it, specs of one name do not change unseen.
        tools.0 += tool.name.len() + tool.description.len() + tool.parameters.to_string().len();
        (&tool.name, &tool.description).hash(&mut tools.1);
        tools.1.write_usize(tools.0);
    }
    pieces.push((tools.0, tools.1.finish()));
    pieces.extend(request.messages.iter().map(|message| match message {
        Message::User { text, .. } => piece(&[b"u", text.as_bytes()]),
        Message::Tool { text, .. } => piece(&[b"t", text.as_bytes()]),
        Message::Assistant { text, calls, .. } => {
            let mut parts = vec![b"a".as_slice(), text.as_bytes()];
            parts.extend(calls.iter().flat_map(|call| [call.name.as_bytes(), call.arguments.as_bytes()]));
            piece(&parts)
        }
    }));
    pieces
}

fn piece(parts: &[&[u8]]) -> (usize, u64) {
    let mut hasher = DefaultHasher::new();
    parts.hash(&mut hasher);
    (parts.iter().map(|part| part.len()).sum(), hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(texts: &[&str]) -> ModelRequest {
        let messages = texts.iter().map(|text| Message::user(*text)).collect();
        ModelRequest { system: "rules".into(), messages, tools: Vec::new(), max_tokens: None }
    }

    #[test]
    fn what_is_the_same_ends_at_the_first_difference() {
        let prefixes = Prefixes::default();
        let session = SessionKey::web("main", None);
        let measure = |texts: &[&str]| {
            let sizes = prefixes.measure(&session, &request(texts));
            (sizes["same"].as_u64(), sizes["of"].as_u64().expect("a size"))
        };
        assert_eq!(measure(&["one"]), (None, 9));
        assert_eq!(measure(&["one", "two"]), (Some(9), 13));
        assert_eq!(measure(&["one", "2", "three"]), (Some(9), 17));
        assert_eq!(measure(&["other", "2", "three"]), (Some(5), 19));
        let other = prefixes.measure(&SessionKey::web("main", Some("x")), &request(&["one"]));
        assert_eq!(other["same"], Value::Null);
    }
}
