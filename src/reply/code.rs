//! Where Markdown code stands in a text: what is quoted there is shown, never obeyed.
//!
//! Fences (three or more backticks or tildes at the start of a line, closed or running to the end) and inline spans
//! (a run of backticks and the next run of the same length before a blank line). Linear in the text, whatever it is.

use std::collections::HashMap;
use std::sync::LazyLock;

use regex::Regex;

static BLANK_LINE: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"\n[ \t\r]*\n").expect("a fixed pattern"));

/// One stretch of code, byte offsets into the text; `settled` is false while more text could still undo it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub start: usize,
    pub end: usize,
    pub settled: bool,
    pub fence: bool,
}

/// What a code mark at some place turns out to be.
pub(super) enum Mark {
    /// Code from here to its end.
    Code(Code),
    /// Loose backticks, up to this offset; not settled while their partner could still come.
    Loose { end: usize, settled: bool },
}

/// The backtick runs of a text with their partners, so that any mark is judged in O(log n).
pub(super) struct CodeMap<'t> {
    text: &'t str,
    runs: Vec<(usize, usize)>,
    partner: Vec<Option<usize>>,
    blanks: Vec<usize>,
}

impl<'t> CodeMap<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for (at, _) in text.match_indices('`') {
            match runs.last_mut() {
                Some((start, len)) if *start + *len == at => *len += 1,
                _ => runs.push((at, 1)),
            }
        }
        let mut partner = vec![None; runs.len()];
        let mut last_of_length: HashMap<usize, usize> = HashMap::new();
        for (index, (_, len)) in runs.iter().enumerate().rev() {
            partner[index] = last_of_length.insert(*len, index);
        }
        let blanks = if runs.is_empty() { Vec::new() } else { BLANK_LINE.find_iter(text).map(|m| m.start()).collect() };
        Self { text, runs, partner, blanks }
    }

    /// Judges the code mark that was matched at `at..end`: spaces and a fence, or a run of backticks.
    pub(super) fn mark(&self, at: usize, end: usize) -> Mark {
        let matched = &self.text[at..end];
        let fence = matched.trim_start_matches(' ');
        let at_line_start = at == 0 || self.text.as_bytes()[at - 1] == b'\n';
        if at_line_start
            && matched.len() - fence.len() <= 3
            && (fence.starts_with("```") || fence.starts_with("~~~"))
            && let Some(code) = self.fence(at, end, fence)
        {
            return Mark::Code(code);
        }
        let run_start = end - fence.len();
        let Ok(index) = self.runs.binary_search_by_key(&run_start, |run| run.0) else {
            return Mark::Loose { end, settled: true };
        };
        let blank = self.blanks.partition_point(|blank| *blank < run_start);
        let paragraph_end = self.blanks.get(blank).copied();
        if let Some((start, len)) = self.partner[index].map(|partner| self.runs[partner])
            && paragraph_end.is_none_or(|blank| start < blank)
        {
            return Mark::Code(Code {
                start: run_start,
                end: start + len,
                settled: start + len < self.text.len(),
                fence: false,
            });
        }
        Mark::Loose { end, settled: paragraph_end.is_some() }
    }

    fn fence(&self, at: usize, end: usize, fence: &str) -> Option<Code> {
        let kind = fence.as_bytes()[0];
        let Some(line_end) = self.text[end..].find('\n').map(|found| end + found) else {
            let info = &self.text[end..];
            if kind == b'`' && info.contains('`') {
                return None;
            }
            return Some(Code { start: at, end: self.text.len(), settled: false, fence: true });
        };
        if kind == b'`' && self.text[end..line_end].contains('`') {
            return None;
        }
        let mut line_start = line_end + 1;
        for line in self.text[line_start..].split_inclusive('\n') {
            let body = line.trim_end();
            let run = body.trim_start_matches(' ');
            if body.len() - run.len() <= 3 && run.len() >= fence.len() && run.bytes().all(|byte| byte == kind) {
                return Some(Code {
                    start: at,
                    end: line_start + line.len(),
                    settled: line.ends_with('\n'),
                    fence: true,
                });
            }
            line_start += line.len();
        }
        Some(Code { start: at, end: self.text.len(), settled: true, fence: true })
    }

    /// Every stretch of code, in order.
    pub(super) fn all(&self) -> Vec<Code> {
        static MARKS: LazyLock<Regex> =
            LazyLock::new(|| Regex::new(r"(?m)^ {0,3}(?:`{3,}|~{3,})|`+").expect("a fixed pattern"));
        let mut found = Vec::new();
        let mut pos = 0;
        while let Some(mark) = MARKS.find_at(self.text, pos) {
            pos = match self.mark(mark.start(), mark.end()) {
                Mark::Code(code) => {
                    found.push(code);
                    code.end.max(mark.end())
                }
                Mark::Loose { end, .. } => end,
            };
        }
        found
    }
}

/// What a stage does with one construct it found outside code.
pub(super) enum Step {
    /// It is ordinary text.
    Keep,
    /// It is gone from the visible text, which goes on at this offset.
    Resume(usize),
    /// More text could change the verdict: a growing text ends here for now.
    Hold,
}

/// Copies `text`, asking `construct` about each match of `pattern` that is not inside code.
///
/// `pattern` must also match the code marks (see [`marks_and`]). A `growing` text is one whose end has not been seen:
/// the result is then only what no continuation can change, and `tail` says from where the end of the text could be
/// the beginning of a construct.
pub(super) fn walk(
    text: &str,
    pattern: &Regex,
    growing: bool,
    tail: impl Fn(&str, usize) -> usize,
    mut construct: impl FnMut(&mut String, usize, usize) -> Step,
) -> String {
    let map = CodeMap::new(text);
    let mut out = String::with_capacity(text.len());
    let mut pos = 0;
    let mut unsettled = false;
    while let Some(found) = pattern.find_at(text, pos) {
        let (start, end) = (found.start(), found.end());
        let is_mark = matches!(found.as_str().trim_start_matches(' ').as_bytes().first(), Some(b'`' | b'~'));
        if is_mark {
            let next = match map.mark(start, end) {
                Mark::Code(code) => {
                    if growing && (unsettled || !code.settled) {
                        out.push_str(&text[pos..code.start]);
                        return out;
                    }
                    code.end.max(end)
                }
                Mark::Loose { end, settled } => {
                    unsettled |= !settled;
                    end
                }
            };
            out.push_str(&text[pos..next]);
            pos = next;
            continue;
        }
        out.push_str(&text[pos..start]);
        if growing && unsettled {
            return out;
        }
        match construct(&mut out, start, end) {
            Step::Keep => {
                out.push_str(&text[start..end]);
                pos = end;
            }
            Step::Resume(next) => pos = next.max(end),
            Step::Hold => return out,
        }
    }
    let rest = if growing { tail(text, pos).max(pos) } else { text.len() };
    out.push_str(&text[pos..rest]);
    out
}

/// A pattern that matches the code marks and `construct` (a regular expression, multi-line mode).
pub(super) fn marks_and(construct: &str) -> Regex {
    Regex::new(&format!(r"(?m)^ {{0,3}}(?:`{{3,}}|~{{3,}})|`+|{construct}")).expect("a fixed pattern")
}
