//! JSON as other programs write it: half a surrogate pair, which strict readers refuse the whole text for, costs that one
//! character only. Somebody's cut emoji must not take the words around it, or the messages behind it, away.

use serde_json::Value;

/// Reads JSON; half surrogate pairs in it become U+FFFD.
pub fn parse(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok().or_else(|| serde_json::from_str(&mend_surrogates(text)?).ok())
}

/// The text with U+FFFD for escapes of half a surrogate pair; nothing when there is none.
fn mend_surrogates(text: &str) -> Option<String> {
    let unit = |at: usize| -> Option<u16> {
        let digits = text.get(at..at + 6)?.strip_prefix("\\u")?;
        digits.bytes().all(|byte| byte.is_ascii_hexdigit()).then(|| u16::from_str_radix(digits, 16).ok())?
    };
    let mut out = String::with_capacity(text.len());
    let mut mended = false;
    let mut at = 0;
    while let Some(next) = text[at..].find('\\') {
        out.push_str(&text[at..at + next]);
        at += next;
        let length = match unit(at) {
            Some(0xd800..=0xdbff) if matches!(unit(at + 6), Some(0xdc00..=0xdfff)) => 12,
            Some(0xd800..=0xdfff) => {
                out.push('\u{fffd}');
                mended = true;
                at += 6;
                continue;
            }
            Some(_) => 6,
            None => 1 + text[at + 1..].chars().next().map_or(0, char::len_utf8),
        };
        out.push_str(&text[at..at + length]);
        at += length;
    }
    out.push_str(&text[at..]);
    mended.then_some(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn half_a_pair_costs_one_character() {
        let read = |text: &str| parse(text).map(|value| value.to_string());
        assert_eq!(read(r#"["\ud83d x","\ud83d\ude00","\\ud83d","\udE00"]"#).as_deref(), {
            Some("[\"\u{fffd} x\",\"😀\",\"\\\\ud83d\",\"\u{fffd}\"]")
        });
        assert_eq!(read(r#"["\ud83d"#), None, "what is no JSON besides stays none");
    }

    proptest! {
        #[test]
        fn any_text_is_mended_or_left(text in r#"(\\u[dD][89abcAB][0-9a-f]{2}|\\|"|龙|[a-z]|\\u00e9){0,12}"#) {
            if let Some(value) = parse(&format!("\"{text}\"")) {
                prop_assert!(value.is_string());
            }
            if let Some(mended) = mend_surrogates(&text) {
                prop_assert!(mended.contains(char::REPLACEMENT_CHARACTER));
                prop_assert_eq!(mend_surrogates(&mended), None);
            }
        }
    }
}
