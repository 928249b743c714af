//! Words that address the bot in a group without a mention. Pure.

use unicode_normalization::UnicodeNormalization;

/// The most characters of a message that are looked at.
const LOOKED_AT: usize = 4_000;

/// Whether one of these words stands in the text: without regard to case or to full-width forms, and as a word of its
/// own where its script puts spaces between words: `crab` is in "Hey crab!", "crab's" and "问crab一下", not in "crabs" or
/// "crab_bot". Scripts without spaces (Chinese, Japanese, Thai …) and Korean, which adds its endings to the word, match
/// anywhere.
pub fn wakes(words: &[String], text: &str) -> bool {
    if words.is_empty() {
        return false;
    }
    let text: Vec<char> = folded(text).take(LOOKED_AT).collect();
    words.iter().any(|word| {
        let word: Vec<char> = folded(word.trim()).collect();
        let (Some(first), Some(last)) = (word.first().copied(), word.last().copied()) else { return false };
        text.windows(word.len()).enumerate().any(|(at, found)| {
            let before = at.checked_sub(1).map(|before| text[before]);
            let after = text.get(at + word.len()).copied();
            found == word.as_slice() && apart(before, first) && apart(after, last)
        })
    })
}

fn folded(text: &str) -> impl Iterator<Item = char> {
    text.nfkc().flat_map(char::to_lowercase)
}

/// Whether a word may begin or end between these two.
fn apart(outside: Option<char>, inside: char) -> bool {
    !(spaced(inside) && outside.is_some_and(spaced))
}

/// A letter or digit of a script that puts spaces between words.
fn spaced(c: char) -> bool {
    let joined = matches!(c,
        // Thai, Lao; Myanmar; Hangul; Khmer; kana, ideographs and all between; Hangul; the same in full; half-width kana.
        '\u{e00}'..='\u{eff}' | '\u{1000}'..='\u{109f}' | '\u{1100}'..='\u{11ff}' | '\u{1780}'..='\u{17ff}'
        | '\u{2e80}'..='\u{a4cf}' | '\u{a960}'..='\u{a97f}' | '\u{ac00}'..='\u{d7ff}' | '\u{f900}'..='\u{faff}'
        | '\u{ff66}'..='\u{ffdc}' | '\u{1b000}'..='\u{1b2ff}' | '\u{20000}'..='\u{3ffff}');
    (c.is_alphanumeric() || c == '_') && !joined
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_word_wakes_as_a_word() {
        let table = [
            ("crab", "Hey Crab!", true),
            ("crab", "crab", true),
            ("Crab", "ＣＲＡＢ，在吗", true),
            ("crab", "问crab一下", true),
            ("crab", "that is the crab's job", true),
            ("crab", "crabs are not crab-like", true),
            ("crab", "crabs", false),
            ("crab", "scrab crab2 crab_bot @crab_bot", false),
            ("crab", "écrab", false),
            ("hey crab", "well, hey  crab", false),
            ("hey crab", "well, hey crab", true),
            ("小龙虾", "请问小龙虾在吗", true),
            ("小龙虾", "小龙", false),
            ("虾bot", "小龙虾bot你好", true),
            ("虾bot", "小龙虾bots", false),
            ("크레이", "크레이야 안녕", true),
            ("краб", "Краб, привет", true),
            ("краб", "крабы", false),
            ("!", "help!", true),
            ("  ", "help me", false),
            ("", "help me", false),
            ("crab", "", false),
        ];
        for (word, text, expected) in table {
            assert_eq!(wakes(&[word.to_owned()], text), expected, "{word:?} in {text:?}");
        }
        assert!(!wakes(&[], "crab"));
        assert!(wakes(&["lobster".to_owned(), "crab".to_owned()], "crab?"));
    }

    proptest! {
        #[test]
        fn any_text_and_any_word_have_an_answer(word in "(?s).{0,8}", text in "(?s).{0,40}") {
            let quoted = format!("“{word}”");
            let _ = wakes(std::slice::from_ref(&word), &text);
            prop_assert_eq!(wakes(std::slice::from_ref(&word), &quoted), folded(word.trim()).next().is_some());
        }
    }
}
