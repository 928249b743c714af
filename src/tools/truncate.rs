//! Cuts a text that is too long: head and tail stay, and a marker between them says how much went and how to get it.
//!
//! Used for every tool's result and by the turn for what other parts hand to a model.

/// The shortest limit that still leaves room for a marker; below it the text is simply cut.
const ROOM_FOR_MARKER: usize = 200;

/// `text` within `max_chars` characters (Unicode scalar values): the first 70 % and the last 30 % of what fits, cut at
/// line ends where one is near, around a marker. `how` is the advice in the marker, e.g. "narrow it with `path`".
pub fn head_and_tail(text: &str, max_chars: usize, how: &str) -> String {
    // Bytes are never fewer than characters, so this spares most texts the count.
    if text.len() <= max_chars {
        return text.to_owned();
    }
    let total = text.chars().count();
    if total <= max_chars {
        return text.to_owned();
    }
    if max_chars < ROOM_FOR_MARKER {
        return text.chars().take(max_chars).collect();
    }
    let how: String = how.chars().take(max_chars / 3).collect();
    // The widest the marker can get: every number in it is at most `total`.
    let room = max_chars - marker(total, total, &how).chars().count();
    let head = line_end_before(&text[..byte_of(text, room * 7 / 10)]);
    let tail = line_start_after(&text[byte_of(text, total - (room - room * 7 / 10))..]);
    let cut = total - head.chars().count() - tail.chars().count();
    format!("{head}{}{tail}", marker(cut, total, &how))
}

fn marker(cut: usize, total: usize, how: &str) -> String {
    format!("\n[… {cut} of {total} characters were cut here; {how} …]\n")
}

/// Where the character of that number begins.
fn byte_of(text: &str, chars: usize) -> usize {
    text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
}

/// The head without its last, incomplete line, unless that would cost more than a fifth.
fn line_end_before(head: &str) -> &str {
    match head.rfind('\n') {
        Some(at) if at >= head.len() - head.len() / 5 => &head[..at],
        _ => head,
    }
}

/// The tail without its first, incomplete line, unless that would cost more than a fifth.
fn line_start_after(tail: &str) -> &str {
    match tail.find('\n') {
        Some(at) if at < tail.len() / 5 => &tail[at + 1..],
        _ => tail,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn head_and_tail_stay_and_the_marker_counts() {
        let text: String = (1..=1000).map(|n| format!("line {n}\n")).collect();
        let cut = head_and_tail(&text, 1000, "use offset and limit");
        assert!(cut.starts_with("line 1\nline 2\n"), "{cut}");
        assert!(cut.ends_with("line 999\nline 1000\n"), "{cut}");
        assert!(cut.contains(&format!("of {} characters were cut here; use offset and limit …]", text.len())), "{cut}");
        assert!(cut.chars().count() <= 1000);
        // The marker's number is true: what stays and what went are the whole.
        let marker = cut.lines().find(|line| line.starts_with("[…")).expect("there is a marker");
        let gone: usize = marker.split(' ').nth(1).expect("a number").parse().expect("a number");
        assert_eq!(cut.chars().count() - marker.chars().count() - 2 + gone, text.len());
    }

    #[test]
    fn a_text_that_fits_is_untouched() {
        assert_eq!(head_and_tail("小龙虾", 3, "x"), "小龙虾");
        assert_eq!(head_and_tail("", 0, "x"), "");
        assert_eq!(head_and_tail("小龙虾", 2, "x"), "小龙");
    }

    proptest! {
        #[test]
        fn never_longer_than_asked(text in "[a-z\n小龙虾👍]{0,900}", max in 0usize..700, how in ".{0,300}") {
            prop_assert!(head_and_tail(&text, max, &how).chars().count() <= max);
        }
    }
}
