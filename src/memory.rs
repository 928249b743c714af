//! Search in the notes of a workspace: by words, in Chinese and English, the best passages first. Pure: texts in,
//! passages out; knows nothing of files or people.
//!
//! Latin words are compared without case, a longer word counts a little for its beginning; Chinese, Japanese and Korean
//! text by pairs of characters, so that words of two are found without a dictionary. Ranked by BM25.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    ops::Range,
};

use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

/// The most characters of a passage.
const PASSAGE_CHARS: usize = 600;
/// The most lines of a passage.
const PASSAGE_LINES: usize = 15;
/// The most words of a question that count.
const MOST_TERMS: usize = 32;
/// The most passages of one note among the results: the other notes want to be seen too.
const MOST_OF_ONE_NOTE: usize = 3;
/// A passage that scores less than this part of the best one has met a word by chance.
const LEAST_OF_BEST: f64 = 0.25;
/// A word that only begins with the one asked for counts this much.
const BEGINS: f64 = 0.5;
/// The shortest word that finds longer ones.
const SHORTEST_BEGINNING: usize = 3;
/// The usual constants of BM25.
const K1: f64 = 1.2;
const B: f64 = 0.75;

/// One note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// Its path, with `/` between: `memory/2026-03-22-春节.md`. Searched too.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// A passage that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passage {
    /// The note's path.
    pub path: String,
    /// Its first and last line, from 1.
    pub lines: (usize, usize),
    /// Its text, at most 600 characters.
    pub text: String,
}

/// What a search gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The best passages, the best first.
    pub passages: Vec<Passage>,
    /// How many passages there would be without the limit.
    pub all: usize,
}

/// The passages that best answer `query`, at most `most` of them.
pub fn search(notes: &[Note], query: &str, most: usize) -> Found {
    let terms = Terms::of(query);
    if terms.places.is_empty() {
        return Found::default();
    }
    let mut candidates = Vec::new();
    let (mut passages, mut words) = (0usize, 0usize);
    let mut met = vec![0usize; terms.places.len()];
    for (number, note) in notes.iter().enumerate() {
        let mut title = vec![0.0; terms.places.len()];
        terms.count(&note.path, &mut title);
        for range in cut(&note.text) {
            let mut counts = title.clone();
            let length = terms.count(&note.text[range.clone()], &mut counts);
            passages += 1;
            words += length;
            if counts.iter().all(|count| *count == 0.0) {
                continue;
            }
            for (met, count) in met.iter_mut().zip(&counts) {
                *met += usize::from(*count > 0.0);
            }
            candidates.push(Candidate { note: number, range, counts, length });
        }
    }
    let average = (words as f64 / passages.max(1) as f64).max(1.0);
    let rarity: Vec<f64> =
        met.iter().map(|met| (1.0 + (passages as f64 - *met as f64 + 0.5) / (*met as f64 + 0.5)).ln()).collect();
    let score = |candidate: &Candidate| -> f64 {
        let norm = K1 * (1.0 - B + B * candidate.length as f64 / average);
        candidate.counts.iter().zip(&rarity).map(|(count, rarity)| rarity * count * (K1 + 1.0) / (count + norm)).sum()
    };
    let mut scored: Vec<(f64, Candidate)> = candidates.into_iter().map(|it| (score(&it), it)).collect();
    let best = scored.iter().map(|(score, _)| *score).fold(0.0, f64::max);
    scored.retain(|(score, _)| *score >= best * LEAST_OF_BEST);
    // Of passages that are as good as each other the note of the newest day comes first.
    scored.sort_by_cached_key(|(score, candidate)| {
        let note = &notes[candidate.note];
        let rank = (score / best * 20.0).round() as u32;
        (Reverse(rank), Reverse(day_of(&note.path)), note.path.clone(), candidate.range.start)
    });
    let mut of_note = BTreeMap::new();
    scored.retain(|(_, candidate)| {
        let seen = of_note.entry(candidate.note).or_insert(0usize);
        *seen += 1;
        *seen <= MOST_OF_ONE_NOTE
    });
    let all = scored.len();
    let passages = scored.into_iter().take(most).map(|(_, candidate)| candidate.passage(notes, &terms)).collect();
    Found { passages, all }
}

/// A passage that holds at least one of the words.
struct Candidate {
    note: usize,
    range: Range<usize>,
    /// How often each of the words is there.
    counts: Vec<f64>,
    /// Its words.
    length: usize,
}

impl Candidate {
    fn passage(&self, notes: &[Note], terms: &Terms) -> Passage {
        let note = &notes[self.note];
        let text = &note.text[self.range.clone()];
        let first = note.text[..self.range.start].matches('\n').count() + 1;
        let last = first + text.trim_end().matches('\n').count();
        Passage { path: note.path.clone(), lines: (first, last), text: excerpt(text.trim_end(), terms) }
    }
}

/// A passage whole, or, when a single line is longer than one, the part of it around the first word that was met.
fn excerpt(text: &str, terms: &Terms) -> String {
    let chars = text.chars().count();
    if chars <= PASSAGE_CHARS {
        return text.to_owned();
    }
    let mut met = text.len();
    tokens(text, &mut |token, at| {
        if at < met && terms.places.contains_key(token) {
            met = at;
        }
    });
    let before = text[..met].chars().count();
    let skip = if met == text.len() { 0 } else { before.saturating_sub(PASSAGE_CHARS / 3).min(chars - PASSAGE_CHARS) };
    let part: String = text.chars().skip(skip).take(PASSAGE_CHARS).collect();
    let (lead, trail) = (if skip > 0 { "…" } else { "" }, if skip + PASSAGE_CHARS < chars { "…" } else { "" });
    format!("{lead}{part}{trail}")
}

/// Where a note is cut into passages: at headings, else after so many lines or characters, at a blank line if there is
/// one. Blank passages are left out.
fn cut(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut at, mut lines, mut chars) = (0usize, 0usize, 0usize, 0usize);
    for line in text.split_inclusive('\n') {
        let length = line.chars().count();
        let full = lines >= PASSAGE_LINES || chars + length > PASSAGE_CHARS;
        let blank_soon = lines >= PASSAGE_LINES * 2 / 3 && line.trim().is_empty();
        if at > start && (line.starts_with('#') || full || blank_soon) {
            ranges.push(start..at);
            (start, lines, chars) = (at, 0, 0);
        }
        at += line.len();
        lines += 1;
        chars += length;
    }
    ranges.push(start..at);
    ranges.retain_mut(|range| {
        let passage = &text[range.clone()];
        let blank = passage.len() - passage.trim_start_matches(['\n', '\r']).len();
        range.start += blank;
        !passage.trim().is_empty()
    });
    ranges
}

/// The words of a question.
struct Terms {
    /// Each with its place.
    places: HashMap<String, usize>,
    /// Those that also find longer words.
    beginnings: Vec<(String, usize)>,
    /// The sketches of all of them: tells at once that nearly every other word is none of them.
    sketches: [bool; 256],
}

/// A word's first and last byte, mixed.
fn sketch(token: &str) -> usize {
    let bytes = token.as_bytes();
    let (first, last) = (bytes.first().copied().unwrap_or(0), bytes.last().copied().unwrap_or(0));
    usize::from(first.wrapping_mul(31) ^ last)
}

impl Terms {
    fn of(query: &str) -> Self {
        let mut terms = HashMap::new();
        let mut single = Vec::new();
        tokens(query, &mut |token, _| {
            if is_one_of_pairs(token) {
                single.push(token.to_owned());
            } else if terms.len() < MOST_TERMS {
                let next = terms.len();
                terms.entry(token.to_owned()).or_insert(next);
            }
        });
        // A single character says little beside pairs; alone it is all there is.
        if terms.is_empty() {
            for token in single.into_iter().take(MOST_TERMS) {
                let next = terms.len();
                terms.entry(token).or_insert(next);
            }
        }
        let finds_longer = |term: &&String| term.is_ascii() && term.len() >= SHORTEST_BEGINNING;
        let beginnings = terms.iter().filter(|(term, _)| finds_longer(term));
        let mut sketches = [false; 256];
        terms.keys().for_each(|term| sketches[sketch(term)] = true);
        Self { beginnings: beginnings.map(|(term, place)| (term.clone(), *place)).collect(), places: terms, sketches }
    }

    /// Adds how often each word is in `text`, and says how many words the text has.
    fn count(&self, text: &str, counts: &mut [f64]) -> usize {
        let mut length = 0;
        tokens(text, &mut |token, _| {
            length += 1;
            if self.sketches[sketch(token)]
                && let Some(place) = self.places.get(token)
            {
                counts[*place] += 1.0;
                return;
            }
            for (beginning, place) in &self.beginnings {
                if token.starts_with(beginning) {
                    counts[*place] += BEGINS;
                }
            }
        });
        length
    }
}

fn is_one_of_pairs(token: &str) -> bool {
    let mut chars = token.chars();
    matches!((chars.next(), chars.next()), (Some(c), None) if in_pairs(c))
}

/// Whether text of this character's script is written without blanks between words.
fn in_pairs(c: char) -> bool {
    matches!(c,
        '\u{3040}'..='\u{30ff}' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{ac00}'..='\u{d7af}'
        | '\u{f900}'..='\u{faff}' | '\u{20000}'..='\u{3ffff}')
}

/// Gives the words of a text with the place of each: runs of letters and digits in lower case without accents, and for
/// scripts without blanks each character and each pair of neighbours.
fn tokens(text: &str, give: &mut impl FnMut(&str, usize)) {
    let mut run = Run { word: String::new(), began: 0, before: None, pair: String::new() };
    for (at, c) in text.char_indices() {
        // Most characters are one of these two, and neither has another form.
        if c.is_ascii() || matches!(c, '\u{4e00}'..='\u{9fff}') {
            run.take(c, at, give);
        } else {
            for c in std::iter::once(c).nfkd() {
                run.take(c, at, give);
            }
        }
    }
    run.end_word(give);
}

/// Where the reader of a text is.
struct Run {
    word: String,
    /// Where the word began.
    began: usize,
    /// The neighbour of the next character, in a script without blanks.
    before: Option<char>,
    pair: String,
}

impl Run {
    fn take(&mut self, c: char, at: usize, give: &mut impl FnMut(&str, usize)) {
        if c.is_ascii_alphanumeric() {
            self.letter(c.to_ascii_lowercase(), at);
        } else if c.is_ascii() {
            self.end_word(give);
        } else if in_pairs(c) {
            let before = self.before;
            self.end_word(give);
            self.pair.clear();
            self.pair.extend(before);
            let single = self.pair.len();
            self.pair.push(c);
            if before.is_some() {
                give(&self.pair, at);
            }
            give(&self.pair[single..], at);
            self.before = Some(c);
        } else if c.is_alphanumeric() {
            for c in c.to_lowercase() {
                self.letter(c, at);
            }
        } else if !is_combining_mark(c) {
            self.end_word(give);
        }
    }

    fn letter(&mut self, c: char, at: usize) {
        self.before = None;
        if self.word.is_empty() {
            self.began = at;
        }
        self.word.push(c);
    }

    fn end_word(&mut self, give: &mut impl FnMut(&str, usize)) {
        self.before = None;
        if !self.word.is_empty() {
            give(&self.word, self.began);
            self.word.clear();
        }
    }
}

/// The day in a note's name (`2026-03-22`), or nothing.
fn day_of(path: &str) -> Option<&str> {
    let name = path.rsplit('/').next()?;
    let day = name.get(..10)?;
    let form = day.bytes().enumerate().all(|(at, byte)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    });
    form.then_some(day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn note(path: &str, text: &str) -> Note {
        Note { path: path.to_owned(), text: text.to_owned() }
    }

    fn notes() -> Vec<Note> {
        vec![
            note(
                "MEMORY.md",
                "# People\n\nAda likes green tea.\nBob is allergic to peanuts.\n\n# 偏好\n\n喜欢用中文回复。\n",
            ),
            note(
                "memory/2026-03-20.md",
                "Talked about the Database migration.\nDecided: SQLite first, Postgres later.\n",
            ),
            note(
                "memory/2026-03-22-伪指令问题修复总结.md",
                "# 总结\n\n模型只是写出了工具调用，没有真的调用。\n修复：给一次纠正。\n",
            ),
            note("memory/2026-04-01.md", "下周三去杭州出差，酒店已订。\nTeam lunch on Friday.\n"),
            note("memory/2026-04-02.md", "Team lunch on Friday.\n"),
        ]
    }

    fn paths(query: &str) -> Vec<String> {
        let line = |passage: Passage| format!("{}#L{}-L{}", passage.path, passage.lines.0, passage.lines.1);
        search(&notes(), query, 8).passages.into_iter().map(line).collect()
    }

    #[test]
    fn words_are_found_in_both_languages() {
        for (query, first) in [
            ("green tea", "MEMORY.md#L1-L4"),
            ("ALLERGIC", "MEMORY.md#L1-L4"),
            ("what did we decide about the database", "memory/2026-03-20.md#L1-L2"),
            ("migrat", "memory/2026-03-20.md#L1-L2"),
            ("出差", "memory/2026-04-01.md#L1-L2"),
            ("杭州酒店", "memory/2026-04-01.md#L1-L2"),
            ("偏好", "MEMORY.md#L6-L8"),
            ("茶 tea", "MEMORY.md#L1-L4"),
            ("我们上次修复了什么问题", "memory/2026-03-22-伪指令问题修复总结.md#L1-L4"),
            ("ｓｑｌｉｔｅ", "memory/2026-03-20.md#L1-L2"),
            ("订", "memory/2026-04-01.md#L1-L2"),
            // Only the name of the file holds it.
            ("伪指令", "memory/2026-03-22-伪指令问题修复总结.md#L1-L4"),
        ] {
            assert_eq!(paths(query).first().map(String::as_str), Some(first), "{query}");
        }
        for nothing in ["", "  ?!", "xylophone", "高铁", "a"] {
            assert_eq!(paths(nothing), [""; 0], "{nothing}");
        }
    }

    #[test]
    fn the_newest_day_wins_a_tie() {
        assert_eq!(day_of("memory/2026-03-22-x.md"), Some("2026-03-22"));
        assert_eq!((day_of("MEMORY.md"), day_of("memory/春节放假.md")), (None, None));
        let same = [
            note("memory/2026-01-01.md", "tea\n"),
            note("memory/2026-02-01.md", "tea\n"),
            note("memory/b.md", "tea\n"),
        ];
        let found: Vec<_> = search(&same, "tea", 8).passages.into_iter().map(|passage| passage.path).collect();
        assert_eq!(found, ["memory/2026-02-01.md", "memory/2026-01-01.md", "memory/b.md"]);
    }

    #[test]
    fn passages_are_bounded_and_their_lines_are_true() {
        let long: String = (1..=200).map(|n| format!("line {n} about item{n}\n")).collect();
        let found = search(&[note("memory/long.md", &long)], "item117", 8);
        let passage = &found.passages[0];
        let (first, last) = passage.lines;
        assert!((first..=last).contains(&117), "{passage:?}");
        let lines: Vec<_> = long.lines().skip(first - 1).take(last - first + 1).collect();
        assert_eq!(passage.text, lines.join("\n"));
        let one = format!("{}needle{}", "x ".repeat(5000), " y".repeat(5000));
        let found = search(&[note("memory/one.md", &one)], "needle", 8);
        assert!(
            found.passages[0].text.contains("needle") && found.passages[0].text.chars().count() <= PASSAGE_CHARS + 2
        );
        assert_eq!(found.passages[0].lines, (1, 1));
        // A note that says it everywhere does not fill the list.
        let found = search(&[note("a.md", &"tea\n".repeat(500)), note("b.md", "some tea\n")], "tea", 8);
        assert_eq!(found.passages.iter().filter(|passage| passage.path == "a.md").count(), MOST_OF_ONE_NOTE);
        assert!(found.passages.iter().any(|passage| passage.path == "b.md"));
    }

    proptest! {
        #[test]
        fn no_text_and_no_question_breaks_it(text in "[a-z #\n小龙虾é👍\u{301}]{0,300}", query in "[a-z小龙虾é👍 ]{0,20}") {
            let found = search(&[note("memory/x.md", &text)], &query, 8);
            for passage in found.passages {
                let (first, last) = passage.lines;
                let lines: Vec<_> = text.split('\n').skip(first - 1).take(last - first + 1).collect();
                let lines = lines.join("\n");
                prop_assert_eq!(passage.text.trim_end(), lines.trim_end());
            }
        }
    }
}
