//! The words of notes and of questions, and where a note is cut into passages. Pure: texts in, values out.
//!
//! Latin words are compared without case, accents and (in the index) endings; Chinese, Japanese and Korean text by pairs of
//! characters, so that words of two are found without a dictionary.

use std::ops::Range;

use sha2::{Digest as _, Sha256};
use unicode_normalization::{UnicodeNormalization as _, char::is_combining_mark};

use crate::store::note::NewPassage;

/// The most characters of a passage.
pub const PASSAGE_CHARS: usize = 600;
/// The most lines of a passage.
const PASSAGE_LINES: usize = 15;
/// Characters that two pieces of one long line share.
const OVERLAP_CHARS: usize = 80;
/// The most words of a question that count.
const MOST_WORDS: usize = 32;
/// The shortest word that finds longer ones.
const SHORTEST_BEGINNING: usize = 4;
/// The most characters of the headings above a passage.
const HEADING_CHARS: usize = 160;

/// Words of questions that say nothing about what is asked for. They count only when there are no others.
const SAYS_NOTHING: &[&str] = &[
    "a", "about", "again", "all", "am", "an", "and", "any", "are", "at", "be", "been", "but", "by", "can", "could",
    "did", "do", "does", "for", "from", "had", "has", "have", "her", "him", "his", "how", "i", "in", "is", "it", "its",
    "me", "my", "of", "on", "or", "our", "please", "say", "said", "she", "should", "so", "some", "tell", "that", "the",
    "their", "them", "there", "they", "this", "to", "us", "was", "we", "were", "what", "when", "where", "which", "who",
    "whom", "whose", "why", "will", "with", "would", "you", "your", "什么", "时候", "么时", "怎么", "多少", "哪里",
    "哪个", "哪些", "哪天", "哪位", "为什", "是谁", "谁的", "是什", "我们", "你们", "他们", "她们", "这个", "那个",
    "一下", "可以", "有没", "没有", "是不", "不是", "是否", "请问", "告诉", "诉我", "几点", "怎样", "如何", "是多",
    "在哪", "么样", "了什", "了吗", "了么", "的吗", "来着",
];

/// What a question looks for: words as the index has them, those that only begin so with a `*` after them.
pub fn of_question(query: &str) -> Vec<String> {
    let (mut words, mut idle, mut single) = (Vec::new(), Vec::new(), Vec::new());
    let add = |list: &mut Vec<String>, word: String| {
        if list.len() < MOST_WORDS && !list.contains(&word) {
            list.push(word);
        }
    };
    tokens(query, &mut |token, alone| {
        let list = match () {
            () if SAYS_NOTHING.contains(&token) => &mut idle,
            // A single character says little beside pairs; alone it is all there is.
            () if is_one_of_pairs(token) && !alone => return,
            () if is_one_of_pairs(token) => &mut single,
            () => &mut words,
        };
        if is_one_of_pairs(token) {
            return add(list, format!("{token}*"));
        }
        add(list, token.to_owned());
        if token.is_ascii() && token.len() >= SHORTEST_BEGINNING && !token.bytes().all(|byte| byte.is_ascii_digit()) {
            add(list, format!("{token}*"));
        }
    });
    [words, single, idle].into_iter().find(|list| !list.is_empty()).unwrap_or_default()
}

/// The words of a text as the index keeps them, parted by blanks.
pub fn of_text(text: &str) -> String {
    let mut words = String::with_capacity(text.len() + text.len() / 2);
    tokens(text, &mut |token, _| {
        if !words.is_empty() {
            words.push(' ');
        }
        words.push_str(token);
    });
    words
}

/// The passages of a note, cut at headings, else after so many lines or characters, at a blank line if there is one. Blank
/// ones are left out; a line longer than a passage is cut into several that overlap.
pub fn passages(path: &str, text: &str) -> Vec<NewPassage> {
    let path_words = of_text(path.strip_suffix(".md").unwrap_or(path));
    let mut passages = Vec::new();
    let mut headings: Vec<(usize, String)> = Vec::new();
    let (mut line, mut at) = (1u32, 0);
    for range in cut(text) {
        line += text[at..range.start].matches('\n').count() as u32;
        at = range.start;
        let passage = text[range].trim_end();
        let last = line + passage.matches('\n').count() as u32;
        // A heading at its top ends those of its own level and below.
        let own = heading_of(passage).map_or(usize::MAX, |(level, _)| level);
        let above = headings.iter().filter(|(level, _)| *level < own).map(|(_, text)| text.as_str());
        let above = above.collect::<Vec<_>>().join(" › ");
        let above: String = above.chars().take(HEADING_CHARS).collect();
        let title_words = format!("{path_words} {}", of_text(&above));
        for piece in pieces(passage) {
            let mut hash = Sha256::new();
            hash.update(above.as_bytes());
            hash.update([0]);
            hash.update(piece.as_bytes());
            passages.push(NewPassage {
                lines: (line, last),
                heading: above.clone(),
                words: of_text(piece),
                text: piece.to_owned(),
                title_words: title_words.clone(),
                hash: hash.finalize().to_vec(),
            });
        }
        for line in passage.lines() {
            if let Some((level, text)) = heading_of(line) {
                headings.retain(|(above, _)| *above < level);
                headings.push((level, text.to_owned()));
            }
        }
    }
    passages
}

/// The level and the text of the heading that a text begins with.
fn heading_of(text: &str) -> Option<(usize, &str)> {
    let line = text.lines().next()?;
    let words = line.trim_start_matches('#');
    let level = line.len() - words.len();
    let is_heading = (1..=6).contains(&level) && words.starts_with(' ') && !words.trim().is_empty();
    is_heading.then(|| (level, words.trim()))
}

/// A passage whole, or, when it is one long line, pieces of it.
fn pieces(passage: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = passage;
    loop {
        let Some((end, _)) = rest.char_indices().nth(PASSAGE_CHARS) else {
            pieces.push(rest);
            return pieces;
        };
        pieces.push(&rest[..end]);
        let back = rest[..end].char_indices().rev().nth(OVERLAP_CHARS - 1).map_or(0, |(at, _)| at);
        rest = &rest[back..];
    }
}

fn cut(text: &str) -> Vec<Range<usize>> {
    let mut ranges = Vec::new();
    let (mut start, mut at, mut lines, mut chars) = (0usize, 0usize, 0usize, 0usize);
    for line in text.split_inclusive('\n') {
        let length = line.chars().count();
        let full = lines >= PASSAGE_LINES || chars + length > PASSAGE_CHARS;
        let blank_soon = lines >= PASSAGE_LINES * 2 / 3 && line.trim().is_empty();
        // A heading with nothing below it yet stays with what follows.
        let heading = line.starts_with('#')
            && !text[start..at].lines().all(|line| line.starts_with('#') || line.trim().is_empty());
        if at > start && (heading || full || blank_soon) {
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

/// Gives the words of a text: runs of letters and digits in lower case without accents, and for scripts without blanks each
/// pair of neighbours and the last character of a run; that one with `true` when it is the whole run.
fn tokens(text: &str, give: &mut impl FnMut(&str, bool)) {
    let mut run = Run::default();
    for c in text.chars() {
        // Most characters are one of these two, and neither has another form.
        if c.is_ascii() || matches!(c, '\u{4e00}'..='\u{9fff}') {
            run.take(c, give);
        } else {
            for c in std::iter::once(c).nfkd() {
                run.take(c, give);
            }
        }
    }
    run.end(give);
}

/// Where the reader of a text is.
#[derive(Default)]
struct Run {
    word: String,
    /// The last character, in a script without blanks.
    before: Option<char>,
    /// It is the first of its run.
    first: bool,
    pair: String,
}

impl Run {
    fn take(&mut self, c: char, give: &mut impl FnMut(&str, bool)) {
        if c.is_ascii_alphanumeric() {
            self.letter(c.to_ascii_lowercase(), give);
        } else if c.is_ascii() {
            self.end(give);
        } else if in_pairs(c) {
            match self.before.replace(c) {
                Some(before) => {
                    self.pair.clear();
                    self.pair.extend([before, c]);
                    give(&self.pair, false);
                    self.first = false;
                }
                None => {
                    self.end_word(give);
                    self.first = true;
                }
            }
        } else if c.is_alphanumeric() {
            for c in c.to_lowercase() {
                self.letter(c, give);
            }
        } else if !is_combining_mark(c) {
            self.end(give);
        }
    }

    fn letter(&mut self, c: char, give: &mut impl FnMut(&str, bool)) {
        self.end_run(give);
        self.word.push(c);
    }

    fn end(&mut self, give: &mut impl FnMut(&str, bool)) {
        self.end_run(give);
        self.end_word(give);
    }

    fn end_run(&mut self, give: &mut impl FnMut(&str, bool)) {
        if let Some(last) = self.before.take() {
            self.pair.clear();
            self.pair.push(last);
            give(&self.pair, self.first);
        }
    }

    fn end_word(&mut self, give: &mut impl FnMut(&str, bool)) {
        if !self.word.is_empty() {
            give(&self.word, false);
            self.word.clear();
        }
    }
}

/// The day in a note's name (`2026-03-22`), or nothing.
pub fn day_of(path: &str) -> Option<&str> {
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

    #[test]
    fn texts_become_words() {
        for (text, words) in [
            ("Ada's Café, ２０２６!", "ada s cafe 2026"),
            ("伪指令问题", "伪指 指令 令问 问题 题"),
            ("用SQLite存储", "用 sqlite 存储 储"),
            ("茶。好茶", "茶 好茶 茶"),
            ("カタカナ と", "カタ タカ カナ ナ と"),
            ("", ""),
            ("--- ***", ""),
        ] {
            assert_eq!(of_text(text), words, "{text}");
        }
    }

    #[test]
    fn questions_keep_what_says_something() {
        for (query, words) in [
            ("What did we decide about the database?", vec!["decide", "decide*", "database", "database*"]),
            ("什么时候出差", vec!["候出", "出差"]),
            ("订", vec!["订*"]),
            ("订 hotel", vec!["hotel", "hotel*"]),
            ("the", vec!["the"]),
            ("2026-03-22", vec!["2026", "03", "22"]),
            ("?!", vec![]),
        ] {
            assert_eq!(of_question(query), words, "{query}");
        }
        let many: String = (0..100).map(|n| format!("w{n} ")).collect();
        assert_eq!(of_question(&many).len(), MOST_WORDS);
    }

    #[test]
    fn passages_are_bounded_know_their_headings_and_their_lines_are_true() {
        let long: String = (1..=200).map(|n| format!("line {n} about item{n}\n")).collect();
        let text = format!("# Top\n\n## First\n{long}\n## Second\n\nlast words\n");
        let lines: Vec<&str> = text.lines().collect();
        let all = passages("memory/2026-01-01-计划.md", &text);
        for passage in &all {
            let (first, last) = passage.lines;
            assert_eq!(passage.text, lines[first as usize - 1..last as usize].join("\n").trim_end());
            assert!(passage.text.chars().count() <= PASSAGE_CHARS);
            assert!(passage.title_words.starts_with("memory 2026 01 01 计划 划"), "{}", passage.title_words);
        }
        assert_eq!(all[0].heading, "");
        assert!(all[0].text.starts_with("# Top\n\n## First\nline 1 "), "{}", all[0].text);
        assert_eq!(all[3].heading, "Top › First");
        let last = all.last().expect("some");
        assert_eq!((last.heading.as_str(), last.text.as_str()), ("Top", "## Second\n\nlast words"));
        let one = format!("{}needle{}", "x ".repeat(5000), " y".repeat(5000));
        let all = passages("memory/one.md", &one);
        assert!(all.iter().all(|passage| passage.lines == (1, 1) && passage.text.chars().count() <= PASSAGE_CHARS));
        assert!(all.iter().any(|passage| passage.text.contains("needle")));
        assert_eq!(passages("memory/none.md", " \n\n"), []);
    }

    #[test]
    fn a_day_in_the_name_is_known() {
        assert_eq!(day_of("memory/2026-03-22-x.md"), Some("2026-03-22"));
        assert_eq!((day_of("MEMORY.md"), day_of("memory/春节放假.md")), (None, None));
    }

    proptest! {
        #[test]
        fn no_text_and_no_question_breaks_it(text in "[a-z #\n小龙虾é👍\u{301}]{0,300}", query in "[a-z小龙虾é👍 ]{0,20}") {
            of_question(&query);
            for passage in passages("memory/x.md", &text) {
                let (first, last) = passage.lines;
                let lines: Vec<_> = text.split('\n').skip(first as usize - 1).take((last - first) as usize + 1).collect();
                let lines = lines.join("\n");
                prop_assert_eq!(passage.text.trim_end(), lines.trim_end());
            }
        }

        #[test]
        fn every_pair_of_a_text_is_found_by_asking_for_it(text in "[小龙虾记忆会议]{2,30}") {
            let words = of_text(&text);
            let chars: Vec<char> = text.chars().collect();
            for pair in chars.windows(2) {
                let pair: String = pair.iter().collect();
                prop_assert!(words.split(' ').any(|word| word == pair));
            }
        }
    }
}
