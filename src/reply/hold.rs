//! Holds a streamed answer back as far as its end could still change what may be shown.

use super::think::head;
use super::{Outcome, Policy, preview};

/// The preview of an answer that is still being written.
///
/// What it promises, for every way of cutting a text into deltas: if [`Outcome::from_text`] of the whole is a reply,
/// everything ever shown is a beginning of that reply's text; if it is silence, nothing is ever shown. (The one
/// exception is a `</think>` without its opening tag: nobody can know before it comes that what preceded it was
/// reasoning, so the final answer then replaces the preview.) In heartbeat turns nothing is shown before the end.
#[derive(Clone, Debug)]
pub struct HoldBack {
    policy: Policy,
    raw: String,
    read: usize,
    shown: String,
}

/// Up to this many bytes every delta is looked at; later ones are gathered, so that the work stays linear.
const EAGER: usize = 4096;
/// Of a longer answer only this much is previewed; no platform shows more in one message.
const MAX_PREVIEW: usize = 64 * 1024;

impl HoldBack {
    /// Begins a preview.
    pub fn new(policy: Policy) -> Self {
        Self { policy, raw: String::new(), read: 0, shown: String::new() }
    }

    /// Takes the next piece of the answer; returns the whole text that may be shown now, when it has grown.
    pub fn push(&mut self, delta: &str) -> Option<String> {
        self.raw.push_str(delta);
        let waiting = self.raw.len() - self.read;
        if self.policy.heartbeat || self.read >= MAX_PREVIEW || waiting < self.raw.len().saturating_sub(EAGER) / 32 {
            return None;
        }
        self.read = self.raw.len();
        let text = preview(head(&self.raw, MAX_PREVIEW));
        if text.len() <= self.shown.len() || !text.starts_with(&self.shown) {
            return None;
        }
        self.shown.clone_from(&text);
        Some(text)
    }

    /// The text has ended, and something else than its delivery follows (a tool call): all of it that people may see, what
    /// was held back as the possible beginning of a token too. `None` where it is silence, too long for a preview, or
    /// nothing is shown before the end.
    pub fn settled(&self) -> Option<String> {
        if self.policy.heartbeat || self.raw.len() > MAX_PREVIEW {
            return None;
        }
        match Outcome::from_text(&self.raw, &self.policy) {
            Outcome::Reply(reply) => Some(reply.text),
            Outcome::Silent(_) => None,
        }
    }

    /// What is shown so far.
    pub fn shown(&self) -> &str {
        &self.shown
    }

    /// The verdict on the whole answer.
    pub fn finish(self) -> Outcome {
        Outcome::from_text(&self.raw, &self.policy)
    }
}
