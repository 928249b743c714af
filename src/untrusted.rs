//! Other people's words on their way to a model: nothing in them can pass for a control token, end one of our blocks or
//! hide from the eye. What they *say* is not judged: rights are, in `policy`. security.md rows 14 and 38.

use std::sync::LazyLock;

use regex::Regex;

/// Text that is already [`defuse`]d, in the block that the rules call information and never orders. `attributes` is ours:
/// empty, or ` name="value"` without brackets or quotes in the value.
pub fn block(kind: &str, attributes: &str, text: &str) -> String {
    format!("<untrusted kind=\"{kind}\"{attributes}>\n{text}\n</untrusted>")
}

/// Whether a character shows nothing and can hide or turn text: controls (but line break and tab), direction marks,
/// zero-width characters other than the joiners emoji and scripts need, Hangul's empty letters, and the invisible ones of
/// plane 14 (tags, and selectors that can spell any text).
pub fn is_hidden(c: char) -> bool {
    (c.is_control() && !matches!(c, '\n' | '\t'))
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{2069}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
            | '\u{115f}' | '\u{1160}' | '\u{3164}' | '\u{ffa0}')
}

/// Text in which nothing can pass for a model's control token or for one of our blocks: a space is put after the
/// bracket. Controls and invisible characters go. Doing it twice changes nothing more.
pub fn defuse(text: &str) -> String {
    // `<|im_start|>`, `<｜begin▁of▁sentence｜>`, Llama's and Mistral's brackets, Gemma's turns, and our own tags.
    static TOKENS: LazyLock<Regex> = LazyLock::new(|| {
        let pattern = r"(?i)(<)([|｜][^|｜<>\n]{1,64}[|｜]>|<SYS>>|</SYS>>|/?s>|/?(?:start|end)_of_turn>|[be]os>|/?message_context|/?untrusted|/?conversation_summary)|(\[)(/?INST\]|/?SYSTEM_PROMPT\]|/?TOOL_(?:CALLS|RESULTS)\]|/?AVAILABLE_TOOLS\])";
        Regex::new(pattern).expect("the pattern is a constant and tested")
    });
    let visible: String = if text.contains(is_hidden) {
        text.replace("\r\n", "\n").replace('\r', "\n").chars().filter(|c| !is_hidden(*c)).collect()
    } else {
        text.to_owned()
    };
    match TOKENS.is_match(&visible) {
        true => TOKENS.replace_all(&visible, "${1}${3} ${2}${4}").into_owned(),
        false => visible,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn row_38_what_spells_unseen_goes_and_what_emoji_need_stays() {
        // Tags, supplementary selectors (one byte each) and Hangul's empty letters.
        assert_eq!(defuse("a\u{e0041}\u{e0100}\u{e01ef}\u{115f}\u{1160}\u{3164}\u{ffa0}b"), "ab");
        assert_eq!(
            defuse("<\u{e0100}/untrusted>"),
            "< /untrusted>",
            "they cannot stand between a bracket and its word"
        );
        for kept in ["👩\u{200d}💻", "❤\u{fe0f}", "한글", "می\u{200c}خواهم"] {
            assert_eq!(defuse(kept), kept);
        }
    }
}
