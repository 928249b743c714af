//! Takes a model's private reasoning out of its answer: `<think>` tags, `◁think▷`, `[THINK]` and harmony channels.
//!
//! Tags are obeyed closed, unclosed and nested, in any case, but not inside code, and not where a sentence speaks
//! about them ("the `<think>` tag"). Of a harmony stream only what goes to the `final` channel is for people.

use std::sync::LazyLock;

use regex::Regex;

use super::code::{Step, marks_and, walk};

/// A text without its reasoning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stripped {
    /// What remains for people, untrimmed.
    pub visible: String,
    /// The last reasoning that was taken out, if any was.
    pub reasoning: Option<String>,
    /// Whether markers of a wire format were taken out.
    pub artefacts: bool,
}

/// Removes reasoning tags and harmony markers (bad-inputs.md 60); see the head of this file for the rules.
///
/// A closing tag that was never opened ends the reasoning when it begins a line or ends one that more text follows
/// (providers whose prompt already holds the opening tag); elsewhere only the tag goes.
pub fn strip_reasoning(text: &str) -> Stripped {
    strip(text, false)
}

const TAG: &str = r"(?i:</?[ \t]{0,4}(?:[a-z]{1,8}:)?(?:think|thinking|thought|reasoning|antthinking|redacted_thinking|final)(?:[ \t][^<>\n]{0,200})?/?>)|◁/?think▷|\[/?THINK\]";
/// Tags that are written one way only: Kimi-VL's and Magistral's.
const FIXED_TAGS: [&str; 4] = ["◁think▷", "◁/think▷", "[THINK]", "[/THINK]"];
const TAG_NAMES: [&str; 7] = ["think", "thinking", "thought", "reasoning", "antthinking", "redacted_thinking", "final"];
const MARKER: &str = r"<\|(?:start|channel|message|constrain|end|return|call|im_start|im_end|endoftext|eot_id|eom_id)\|>|<｜end▁of▁sentence｜>";

static TAGS: LazyLock<Regex> = LazyLock::new(|| marks_and(TAG));
static TAG_ALONE: LazyLock<Regex> = LazyLock::new(|| Regex::new(TAG).expect("a fixed pattern"));
static MARKERS: LazyLock<Regex> = LazyLock::new(|| marks_and(MARKER));
static MARKER_ALONE: LazyLock<Regex> = LazyLock::new(|| Regex::new(MARKER).expect("a fixed pattern"));
static SPOKEN_OF: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(?i:[ \t]+(?:tags?|blocks?|elements?|sections?)\b|[ \t]*(?:标签|标记|块))").expect("a fixed pattern")
});

/// Bytes after a tag that decide whether a sentence speaks about it.
const LOOKAHEAD: usize = 24;

pub(super) fn strip(text: &str, growing: bool) -> Stripped {
    let mut done = Stripped::default();
    let without_harmony = strip_harmony(text, growing, &mut done);
    done.visible = strip_tags(&without_harmony, growing, &mut done);
    done
}

fn strip_tags(text: &str, growing: bool, done: &mut Stripped) -> String {
    if !text.contains(['<', '◁', '[']) {
        return text.to_owned();
    }
    let mut reasoning: Option<(usize, usize)> = None;
    let mut opened = false;
    let visible = walk(text, &TAGS, growing, tag_tail, |out, start, end| {
        let tag = &text[start..end];
        let mid_line = line_has_text(out);
        if mid_line {
            if growing && text.len() - end < LOOKAHEAD && !text[end..].contains('\n') {
                return Step::Hold;
            }
            if SPOKEN_OF.is_match(head(&text[end..], LOOKAHEAD)) {
                return Step::Keep;
            }
        }
        let closing = is_closing(tag);
        if is_final(tag) || tag.ends_with("/>") {
            return Step::Resume(end);
        }
        if closing {
            let rest = &text[end..];
            let ends_line = rest.trim_start_matches([' ', '\t', '\r']).starts_with('\n');
            if growing && mid_line && rest.trim_start().is_empty() {
                return Step::Hold;
            }
            if !opened && (!mid_line || (ends_line && !rest.trim_start().is_empty())) {
                reasoning = Some((0, start));
                out.clear();
            }
            opened = true;
            return Step::Resume(end);
        }
        opened = true;
        let (inner_end, resume) = match closing_of(text, end) {
            Closing::At(close, after) => (close, after),
            Closing::Unbalanced(..) | Closing::Never if growing => return Step::Hold,
            Closing::Unbalanced(close, after) => (close, after),
            Closing::Never => (text.len(), text.len()),
        };
        reasoning = Some((end, inner_end));
        Step::Resume(resume)
    });
    if let Some((start, end)) = reasoning {
        done.reasoning = Some(text[start..end].to_owned());
    }
    visible
}

/// Whether the last line of `out` holds more than blanks; looks at 256 characters at most, to stay linear.
fn line_has_text(out: &str) -> bool {
    out.chars().rev().take(256).take_while(|c| *c != '\n').any(|c| !c.is_whitespace())
}

fn is_closing(tag: &str) -> bool {
    ["</", "◁/", "[/"].iter().any(|start| tag.starts_with(start))
}

fn is_final(tag: &str) -> bool {
    let name = tag.trim_start_matches(['<', '/', ' ', '\t']);
    let name = name.split_once(':').map_or(name, |(_, name)| name);
    name.get(..5).is_some_and(|name| name.eq_ignore_ascii_case("final"))
}

enum Closing {
    At(usize, usize),
    /// More opened than closed: the last closing tag is taken as the end.
    Unbalanced(usize, usize),
    Never,
}

fn closing_of(text: &str, from: usize) -> Closing {
    let mut depth = 1usize;
    let mut last = Closing::Never;
    for tag in TAG_ALONE.find_iter(&text[from..]) {
        let is = tag.as_str();
        if is_final(is) || is.ends_with("/>") {
            continue;
        }
        if is_closing(is) {
            depth -= 1;
            let (start, end) = (from + tag.start(), from + tag.end());
            if depth == 0 {
                return Closing::At(start, end);
            }
            last = Closing::Unbalanced(start, end);
        } else {
            depth += 1;
        }
    }
    last
}

/// From where the end of a growing text could be the beginning of a tag.
fn tag_tail(text: &str, pos: usize) -> usize {
    let fixed = text[pos..].rfind(['◁', '[']).map(|at| pos + at);
    if let Some(open) = fixed.filter(|open| FIXED_TAGS.iter().any(|tag| tag.starts_with(&text[*open..]))) {
        return open;
    }
    let Some(open) = text[pos..].rfind('<').map(|at| pos + at) else {
        return text.len();
    };
    let body = text[open + 1..].trim_start_matches('/').trim_start_matches([' ', '\t']);
    if body.len() > 260 || body.contains(['>', '\n']) {
        return text.len();
    }
    let lower = body.to_ascii_lowercase();
    let name = lower.split_once(':').map_or(lower.as_str(), |(_, name)| name);
    let letters = name.split([' ', '\t', '/']).next().unwrap_or_default();
    let could_be = if letters.len() == name.len() {
        TAG_NAMES.iter().any(|known| known.starts_with(letters))
            || (lower.len() <= 8 && lower.bytes().all(|byte| byte.is_ascii_lowercase()))
    } else {
        TAG_NAMES.contains(&letters)
    };
    if could_be { open } else { text.len() }
}

/// The head of `text`, at most `bytes` long, cut at a character.
pub(super) fn head(text: &str, bytes: usize) -> &str {
    let mut end = bytes.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

fn strip_harmony(text: &str, growing: bool, done: &mut Stripped) -> String {
    let marked = text.contains("<|") || text.contains("<｜") || (growing && text.ends_with('<'));
    if !marked {
        return text.to_owned();
    }
    let mut in_harmony = false;
    let mut hidden: Option<(usize, usize)> = None;
    let mut artefacts = false;
    let visible = walk(text, &MARKERS, growing, marker_tail, |out, start, end| {
        let marker = &text[start..end];
        let at_start = in_harmony || out.trim().is_empty();
        let rest = &text[end..];
        let unblanked = rest.trim_start_matches(|c: char| c.is_whitespace() && !matches!(c, '\n' | '\r'));
        if growing && !in_harmony && unblanked.len() < 16 {
            return Step::Hold;
        }
        match marker {
            "<|channel|>" if at_start || starts_with_any(rest, &["analysis", "commentary", "final", "thought"]) => {}
            "<|start|>"
                if at_start
                    || starts_with_any(rest, &["assistant", "system", "user", "developer", "tool", "functions"]) => {}
            "<|im_start|>" if at_start || rest.starts_with("assistant") => {}
            "<|message|>" | "<|constrain|>" if at_start => {}
            "<|channel|>" | "<|start|>" | "<|im_start|>" | "<|message|>" | "<|constrain|>" => {
                return Step::Keep;
            }
            _ => {
                // An end marker: alone at the end of a line, or before the next marker.
                let ends_line = unblanked.is_empty() || unblanked.starts_with(['\n', '\r']);
                if in_harmony || ends_line || unblanked.starts_with("<|") {
                    artefacts = true;
                    return Step::Resume(end);
                }
                return Step::Keep;
            }
        }
        artefacts = true;
        in_harmony = true;
        let Some((inner, resume, complete)) = next_visible(text, start) else {
            if growing {
                return Step::Hold;
            }
            hidden = Some((end, text.len()));
            return Step::Resume(text.len());
        };
        if growing && !complete {
            return Step::Hold;
        }
        if inner.1 > inner.0 {
            hidden = Some(inner);
        }
        Step::Resume(resume)
    });
    if let Some((start, end)) = hidden {
        done.reasoning = Some(text[start..end].to_owned());
    }
    done.artefacts |= artefacts;
    visible
}

fn starts_with_any(text: &str, words: &[&str]) -> bool {
    words.iter().any(|word| text.starts_with(word))
}

/// From the header marker at `start`: the last hidden stretch, where visible text begins, and whether more text
/// could not move that place.
fn next_visible(text: &str, start: usize) -> Option<((usize, usize), usize, bool)> {
    enum Part {
        Header { from: usize, channel: Option<usize> },
        Hidden(usize),
    }
    let mut part = Part::Header { from: start, channel: None };
    let mut hidden = (start, start);
    for found in MARKER_ALONE.find_iter(&text[start..]) {
        let (at, end) = (start + found.start(), start + found.end());
        part = match (found.as_str(), part) {
            ("<|im_start|>", _) => {
                let role = text[end..].bytes().take_while(u8::is_ascii_alphabetic).count();
                let after = end + role;
                let newline = usize::from(text[after..].starts_with('\n'));
                return Some((hidden, after + newline, after < text.len()));
            }
            ("<|start|>", part) => {
                if let Part::Hidden(from) = part {
                    hidden = (from, at);
                }
                Part::Header { from: end, channel: None }
            }
            ("<|channel|>", part) => {
                let from = match part {
                    Part::Hidden(begun) => {
                        hidden = (begun, at);
                        end
                    }
                    Part::Header { from, .. } => from,
                };
                Part::Header { from, channel: Some(end) }
            }
            ("<|message|>", Part::Header { from, channel }) => {
                let name = &text[channel.unwrap_or(from).min(at)..at];
                let role_hides =
                    channel.is_none() && starts_with_any(name, &["system", "user", "developer", "tool", "functions"]);
                if !role_hides && (channel.is_none() || name.trim_start().starts_with("final")) {
                    return Some((hidden, end, true));
                }
                Part::Hidden(end)
            }
            ("<|message|>" | "<|constrain|>", part) => part,
            (_, Part::Hidden(from)) => {
                hidden = (from, at);
                // What follows an end without a new header is visible, unless that header is coming.
                let rest = &text[end..];
                if rest.trim_start().starts_with("<|") {
                    Part::Header { from: end, channel: None }
                } else {
                    return Some((hidden, end, !rest.trim_start().is_empty() && !"<|".starts_with(rest.trim_start())));
                }
            }
            (_, header) => header,
        };
    }
    None
}

fn marker_tail(text: &str, pos: usize) -> usize {
    let Some(open) = text[pos..].rfind('<').map(|at| pos + at) else {
        return text.len();
    };
    let body = &text[open + 1..];
    let could_be =
        body.is_empty() || (body.len() <= 48 && body.starts_with(['|', '｜']) && !body.contains(['>', '\n', ' ']));
    if could_be { open } else { text.len() }
}
