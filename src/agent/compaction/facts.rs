//! What a summary must not lose: names, numbers, dates, links and ids, found in the messages and looked for in the summary.
//! Pure; what is missing is given back with the words around it.

use std::{collections::HashSet, ops::Range, sync::LazyLock};

use regex::Regex;

/// The most lines that are given back.
const MOST: usize = 40;
/// The most characters of one of them.
const CLAUSE_CHARS: usize = 120;
/// A clause ends here.
const ENDS: &[char] = &['\n', '。', '！', '？', '；', ';', '!', '?'];

/// What counts as a fact: addresses, links, paths, dates and times, amounts, numbers of two digits and more, ids, quoted
/// names, and words with a capital inside or in the middle of a sentence.
static FACT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?x) https?://[^\s<>\x22）)，。]+ ",
        r"| [\w.+-]+@[\w-]+\.[\w.-]*\w ",
        r"| (?:~|\.{0,2})/[\w.\-/]+\w ",
        r"| \d{1,4}[年月日号点时]\d{0,2}[月日号分]?\d{0,2}[日号]? ",
        r"| [¥$€£]\x20?\d[\d.,]* ",
        r"| \d[\d.,:/-]*\d(?:\x20?[%℃°])? ",
        r"| [A-Za-z]+[-_]?\d[\w-]* ",
        r"| 「[^」\n]{1,40}」 | 《[^》\n]{1,40}》 | “[^”\n]{1,40}” | \x22[^\x22\n]{1,40}\x22 ",
    ))
    .expect("the pattern is fixed")
});
/// A word with a capital that does not begin a sentence: a name, as a rule.
static NAME: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"[a-z,]\s([A-Z][\w'’-]+(?:\s[A-Z][\w'’-]+){0,3})").expect("the pattern is fixed"));

/// The clauses of `texts`, newest text first, that hold a fact which `summary` does not have; each once, at most 40 of at
/// most 120 characters.
pub fn missing<'a>(texts: impl DoubleEndedIterator<Item = &'a str>, summary: &str) -> Vec<String> {
    let have = squeezed(summary);
    let (mut seen, mut lines) = (HashSet::new(), Vec::new());
    for text in texts.rev() {
        let names = NAME.captures_iter(text).filter_map(|found| found.get(1));
        let mut found: Vec<Range<usize>> = FACT.find_iter(text).chain(names).map(|found| found.range()).collect();
        found.sort_by_key(|range| range.start);
        let mut clauses: Vec<Range<usize>> = Vec::new();
        for fact in found {
            let bare = squeezed(&text[fact.clone()]);
            let known = bare.chars().count() < 2 || have.contains(&bare) || !seen.insert(bare);
            let told = clauses.last().is_some_and(|clause| clause.end >= fact.end);
            if !known && !told {
                clauses.push(clause_around(text, fact));
            }
        }
        let of_text =
            clauses.into_iter().map(|clause| text[clause].trim().trim_start_matches(['-', '*', ' ']).to_owned());
        lines.extend(of_text.filter(|line| !line.is_empty()));
        if lines.len() >= MOST {
            lines.truncate(MOST);
            break;
        }
    }
    lines
}

/// The clause that holds this range, cut to what a line may have, never in the middle of a character.
fn clause_around(text: &str, fact: Range<usize>) -> Range<usize> {
    let start = text[..fact.start].rfind(ENDS).map_or(0, |at| at + text[at..].chars().next().map_or(1, char::len_utf8));
    let end = text[fact.end..].find(ENDS).map_or(text.len(), |at| fact.end + at);
    let room = CLAUSE_CHARS.saturating_sub(text[fact.clone()].chars().count()) / 2;
    let left = text[start..fact.start].char_indices().rev().nth(room).map_or(start, |(at, _)| start + at);
    let right = text[fact.end..end].char_indices().nth(room).map_or(end, |(at, _)| fact.end + at);
    left..right
}

/// Letters and digits only, in lower case: `1,200 元` is found in `1200元`.
fn squeezed(text: &str) -> String {
    text.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, summary: &str) -> Vec<String> {
        missing([text].into_iter(), summary)
    }

    #[test]
    fn what_the_summary_has_is_not_said_again() {
        assert_eq!(of("会议改到3月22日下午三点，在望京SOHO", "会议：3月22日"), Vec::<String>::new());
        assert_eq!(of("The budget is 1,200 euros.", "budget 1200"), Vec::<String>::new());
        assert_eq!(of("nothing here to keep", ""), Vec::<String>::new());
    }

    #[test]
    fn names_numbers_links_and_ids_come_back_with_their_clause() {
        let table = [
            ("好的。张三的电话是13800138000。就这样", "张三的电话是13800138000"),
            (
                "Fine. The invoice INV-2031 is due on 2026-04-01. Bye",
                "Fine. The invoice INV-2031 is due on 2026-04-01. Bye",
            ),
            ("see https://example.com/a?b=1 for it", "see https://example.com/a?b=1 for it"),
            ("mail bob@example.org please", "mail bob@example.org please"),
            ("I met Alice Smith yesterday", "I met Alice Smith yesterday"),
            ("文件放在 ~/docs/报告.md 里", "文件放在 ~/docs/报告.md 里"),
            ("她在看《百年孤独》；我没有", "她在看《百年孤独》"),
            ("价格 ¥35.5 一斤", "价格 ¥35.5 一斤"),
        ];
        for (text, expected) in table {
            assert_eq!(of(text, "a summary without it"), [expected], "{text}");
        }
    }

    #[test]
    fn the_newest_come_first_each_once_and_never_too_many() {
        let texts = ["order 111 came", "order 222 came", "again order 222"];
        assert_eq!(missing(texts.into_iter(), ""), ["again order 222", "order 111 came"]);
        let many: Vec<String> = (0..100).map(|n| format!("number {} is open", 1000 + n)).collect();
        assert_eq!(missing(many.iter().map(String::as_str), "").len(), MOST);
        let long = format!("{} 4711 {}", "字".repeat(500), "字".repeat(500));
        let lines = of(&long, "");
        assert!(lines[0].contains("4711") && lines[0].chars().count() <= CLAUSE_CHARS + 2, "{lines:?}");
    }
}
