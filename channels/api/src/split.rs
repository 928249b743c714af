//! Cutting a long text into pieces that each fit one platform message, without breaking code fences. Pure.
//!
//! A cut goes, in this order, between paragraphs, lines, sentences (English and Chinese) and words, and only then
//! anywhere; never inside what a reader sees as one character, unless that alone is too long. White space at a cut is
//! dropped; nothing else is. A fence that is open at a cut is closed there and opened again with its info string.

use unicode_segmentation::UnicodeSegmentation;

use crate::TextUnit;

/// The pieces of `text`, each at most `limit` long, counted in `unit`. A text that is all white space has none.
///
/// A single Unicode scalar value that is longer than `limit` (a limit below 4 bytes or 2 UTF-16 units) is a piece of
/// its own, over the limit: there is nothing left to cut.
pub fn split(text: &str, limit: usize, unit: TextUnit) -> Vec<String> {
    if text.trim().is_empty() {
        return Vec::new();
    }
    if unit.len(text) <= limit {
        return vec![text.to_owned()];
    }
    Cutter { text, limit, unit, at: 0, mid_line: false, fence: None }.pieces()
}

/// Where the first piece of `text` ends, at most `limit` long: for adapters that cut a text with marks of their own,
/// which knows no fences. The kinds of cuts are those of [`split`]; white space around the cut is the caller's.
pub fn piece(text: &str, limit: usize, unit: TextUnit) -> usize {
    let cutter = Cutter { text, limit, unit, at: 0, mid_line: false, fence: None };
    if cutter.fits(text, limit) { text.len() } else { cutter.best_break(cutter.window(limit)) }
}

struct Cutter<'a> {
    text: &'a str,
    limit: usize,
    unit: TextUnit,
    /// Where the next piece begins.
    at: usize,
    /// `at` is not the beginning of a line of the text.
    mid_line: bool,
    /// The fence that is open at `at`.
    fence: Option<Fence>,
}

/// An open code fence.
#[derive(Clone, Debug, PartialEq)]
struct Fence {
    /// The line that opened it, or only its marks if that line is too long to be repeated in every piece.
    opening: String,
    /// The line that closes it.
    closing: String,
    /// Where its opening line begins in the text.
    begins: usize,
}

impl Cutter<'_> {
    fn pieces(mut self) -> Vec<String> {
        let mut pieces = Vec::new();
        while self.at < self.text.len() {
            let prefix = self.fence.as_ref().map_or_else(String::new, |fence| format!("{}\n", fence.opening));
            let room = self.limit.saturating_sub(self.unit.len(&prefix));
            let rest = &self.text[self.at..];
            if self.fits(rest, room) {
                if !rest.trim().is_empty() {
                    pieces.push(prefix + rest.trim_end());
                }
                break;
            }
            let cut = self.cut(room);
            let fence = self.fence_at(cut);
            let body = &self.text[self.at..cut];
            if !body.trim().is_empty() {
                let body = if fence.is_some() { body.trim_end_matches(['\n', '\r']) } else { body.trim_end() };
                let closing = fence.as_ref().map_or_else(String::new, |fence| format!("\n{}", fence.closing));
                pieces.push(prefix + body + &closing);
            }
            self.go_on_from(cut, fence);
        }
        pieces
    }

    fn fits(&self, text: &str, room: usize) -> bool {
        // A byte count is an upper bound of the others: most texts are decided without counting.
        text.len() <= room || (text.len() <= room.saturating_mul(4) && self.unit.len(text) <= room)
    }

    /// Where this piece ends: after its last character that stays.
    fn cut(&self, room: usize) -> usize {
        let end = self.window(room);
        let open = self.fence_at(end).or_else(|| self.fence.clone());
        // A fence anywhere in the window may be open at the cut: leave room to close it.
        let reserve = open.or_else(|| self.any_fence_within(end)).map_or(0, |fence| self.unit.len(&fence.closing) + 1);
        let end = if reserve == 0 { end } else { self.window(room.saturating_sub(reserve)) };
        let cut = self.best_break(end);
        match self.fence_at(cut) {
            // Nothing but the opening line would stand in the fence: begin it in the next piece.
            Some(fence)
                if fence.begins > self.at
                    && !self.text[self.at..fence.begins].trim().is_empty()
                    && self.text[fence.begins..cut].lines().skip(1).all(|line| line.trim().is_empty()) =>
            {
                fence.begins
            }
            _ => cut,
        }
    }

    /// The end of the longest run of whole characters from `at` that fits; at least one scalar value.
    fn window(&self, room: usize) -> usize {
        let rest = &self.text[self.at..];
        // No unit takes more than four bytes: what follows cannot count, however long its characters are.
        let rest = &rest[..rest.floor_char_boundary(room.saturating_mul(4).saturating_add(8))];
        let mut used = 0;
        for (offset, grapheme) in rest.grapheme_indices(true) {
            used += self.unit.len(grapheme);
            if used > room {
                if offset > 0 {
                    return self.at + offset;
                }
                return self.at + self.scalars_within(grapheme, room);
            }
        }
        self.text.len()
    }

    /// As much of one over-long character as fits, and at least one scalar value of it.
    fn scalars_within(&self, grapheme: &str, room: usize) -> usize {
        let mut used = 0;
        for (offset, scalar) in grapheme.char_indices() {
            used += self.unit.len(scalar.encode_utf8(&mut [0; 4]));
            if used > room && offset > 0 {
                return offset;
            }
        }
        grapheme.chars().next().map_or(grapheme.len(), char::len_utf8)
    }

    /// The best place to cut in `at..end`: the kindest kind of break in the second half, else any, else `end`.
    fn best_break(&self, end: usize) -> usize {
        let window = &self.text[self.at..end];
        let half = self.at + window.len() / 2;
        let mut last: [Option<usize>; 4] = [None; 4];
        let mut blank_line = true;
        let mut graphemes = window.grapheme_indices(true).peekable();
        while let Some((offset, grapheme)) = graphemes.next() {
            let (begin, after) = (self.at + offset, self.at + offset + grapheme.len());
            let next = graphemes.peek().map(|(_, next)| *next);
            let first = grapheme.chars().next().unwrap_or(' ');
            let found = if matches!(grapheme, "\n" | "\r\n" | "\r") {
                let kind = if blank_line { Break::Paragraph } else { Break::Line };
                blank_line = true;
                Some((kind, begin))
            } else if grapheme.chars().all(char::is_whitespace) {
                Some((Break::Word, begin))
            } else {
                blank_line = false;
                let ends_sentence = match first {
                    '。' | '！' | '？' | '；' | '…' => !next.is_some_and(closes_or_ends),
                    '.' | '!' | '?' => next.is_some_and(|next| next.trim().is_empty()),
                    '”' | '」' | '』' | '）' | '’' => self.text[..begin].ends_with(['。', '！', '？', '…']),
                    _ => false,
                };
                ends_sentence.then_some((Break::Sentence, after))
            };
            if let Some((kind, place)) = found
                && place > self.at
            {
                last[kind as usize] = Some(place);
            }
        }
        // What follows the window may itself be the break.
        let rest = &self.text[end..];
        if rest.starts_with(['\n', '\r']) {
            last[if blank_line { Break::Paragraph } else { Break::Line } as usize] = Some(end);
            let after = rest.trim_start_matches('\r').trim_start_matches('\n');
            if after.starts_with(['\n', '\r']) {
                last[Break::Paragraph as usize] = Some(end);
            }
        } else if rest.starts_with(char::is_whitespace) {
            last[Break::Word as usize] = Some(end);
        }
        let late = last.iter().flatten().find(|place| **place >= half);
        // In code only the lines count.
        let early = last[Break::Paragraph as usize]
            .max(last[Break::Line as usize])
            .max(last[Break::Sentence as usize])
            .max(last[Break::Word as usize]);
        late.copied().or(early).filter(|place| !self.text[self.at..*place].trim().is_empty()).unwrap_or(end)
    }

    /// Moves to what follows `cut`: white space there is dropped, indentation of a following line is not.
    fn go_on_from(&mut self, cut: usize, fence: Option<Fence>) {
        let rest = &self.text[cut..];
        let line_end = rest.find(|c: char| c == '\n' || !c.is_whitespace()).unwrap_or(rest.len());
        let ends_line = rest[line_end..].starts_with('\n');
        let mut next = cut + if ends_line { line_end + 1 } else { line_end };
        if ends_line && fence.is_none() {
            while let Some(end) = self.text[next..].find('\n')
                && self.text[next..next + end].trim().is_empty()
            {
                next += end + 1;
            }
        }
        if fence.is_some() && !ends_line {
            // A hard cut in a line of code keeps its spaces.
            next = cut;
        }
        self.mid_line = !ends_line && !self.text[..next].ends_with('\n');
        self.at = next;
        self.fence = fence;
    }

    /// The fence that is open at `end`, counting whole lines only.
    fn fence_at(&self, end: usize) -> Option<Fence> {
        let mut fence = self.fence.clone();
        self.each_line(end, |begins, line| fence = self.after_line(fence.take(), begins, line));
        fence
    }

    fn any_fence_within(&self, end: usize) -> Option<Fence> {
        let mut found = None;
        self.each_line(end, |begins, line| found = found.take().or_else(|| self.opened_by(begins, line)));
        found
    }

    fn each_line(&self, end: usize, mut visit: impl FnMut(usize, &str)) {
        let mut begins = self.at;
        let mut skip = self.mid_line;
        for line in self.text[self.at..end].split_inclusive('\n') {
            let ends = begins + line.len();
            let whole = line.ends_with('\n') || self.text[ends..].trim_start_matches('\r').starts_with('\n');
            if !std::mem::take(&mut skip) && (whole || ends == self.text.len()) {
                visit(begins, line.trim_end_matches(['\n', '\r']));
            }
            begins = ends;
        }
    }

    fn after_line(&self, open: Option<Fence>, begins: usize, line: &str) -> Option<Fence> {
        let Some(fence) = open else { return self.opened_by(begins, line) };
        let line = line.trim();
        let mark = fence.closing.chars().next().unwrap_or('`');
        let closes = line.len() >= fence.closing.len() && line.chars().all(|c| c == mark);
        if closes { None } else { Some(fence) }
    }

    fn opened_by(&self, begins: usize, line: &str) -> Option<Fence> {
        let line = line.trim();
        let mark = line.chars().next().filter(|c| matches!(c, '`' | '~'))?;
        let count = line.chars().take_while(|c| *c == mark).count();
        if count < 3 || (mark == '`' && line[count..].contains('`')) {
            return None;
        }
        let closing = line[..count].to_owned();
        // Repeating the fence must leave room for the code; otherwise the text is cut as it stands.
        if (self.unit.len(&closing) + 1) * 4 > self.limit {
            return None;
        }
        let opening = if self.unit.len(line) * 4 > self.limit { closing.clone() } else { line.to_owned() };
        Some(Fence { opening, closing, begins })
    }
}

/// The kinds of breaks, kindest first.
#[derive(Clone, Copy)]
enum Break {
    Paragraph,
    Line,
    Sentence,
    Word,
}

/// A closing quote, or one more mark of the same sentence.
fn closes_or_ends(grapheme: &str) -> bool {
    matches!(grapheme, "”" | "」" | "』" | "）" | "’" | "。" | "！" | "？" | "…")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chars(text: &str, limit: usize) -> Vec<String> {
        split(text, limit, TextUnit::Chars)
    }

    #[test]
    fn short_texts_stay_as_they_are_and_blank_ones_vanish() {
        assert_eq!(chars("  hi\n", 10), ["  hi\n"]);
        assert!(chars(" \n\t", 10).is_empty());
        assert!(chars("", 0).is_empty());
    }

    #[test]
    fn the_kindest_break_in_the_second_half_wins() {
        assert_eq!(chars("one two\n\nthree four five", 16), ["one two", "three four five"]);
        assert_eq!(chars("one\ntwo three\nfour five", 15), ["one\ntwo three", "four five"]);
        assert_eq!(chars("It rains. We stay in today", 15), ["It rains.", "We stay in", "today"]);
        assert_eq!(chars("abcdefghij", 4), ["abcd", "efgh", "ij"]);
    }

    #[test]
    fn chinese_sentences_are_kept_whole_with_their_closing_quotes() {
        assert_eq!(
            chars("他说:“今天天气很好。”我们去公园吧！好的", 14),
            ["他说:“今天天气很好。”", "我们去公园吧！好的"]
        );
        assert_eq!(chars("天气很好。我们去公园吧！走吗？走", 8), ["天气很好。", "我们去公园吧！", "走吗？走"]);
    }

    #[test]
    fn an_open_fence_is_closed_and_opened_again_with_its_info_string() {
        let text = "Look:\n```rust\nlet a = 1;\nlet b = 2;\nlet c = 3;\n```\nDone.";
        assert_eq!(chars(text, 40), ["Look:\n```rust\nlet a = 1;\nlet b = 2;\n```", "```rust\nlet c = 3;\n```\nDone."]);
    }

    #[test]
    fn a_fence_does_not_begin_at_the_very_end_of_a_piece() {
        let text = "Some words before it\n```rust\nlet a = 1111111111;\n```";
        assert_eq!(chars(text, 38), ["Some words before it", "```rust\nlet a = 1111111111;\n```"]);
    }

    #[test]
    fn indentation_of_code_survives_a_cut() {
        let text = "```\nif x {\n    one();\n\n    two();\n    three();\n}\n```";
        let pieces = chars(text, 32);
        assert!(pieces.len() > 1);
        for piece in &pieces {
            assert!(piece.starts_with("```\n") && piece.ends_with("```"), "{piece:?}");
        }
        let code: Vec<&str> = pieces.iter().flat_map(|piece| piece.lines()).filter(|line| *line != "```").collect();
        assert_eq!(code, ["if x {", "    one();", "    two();", "    three();", "}"]);
    }

    #[test]
    fn the_unit_is_what_is_counted() {
        assert_eq!(split("😀😀😀", 4, TextUnit::Utf16), ["😀😀", "😀"]);
        assert_eq!(split("数数数", 7, TextUnit::Bytes), ["数数", "数"]);
        assert_eq!(split("😀😀😀", 2, TextUnit::Chars), ["😀😀", "😀"]);
    }

    #[test]
    fn a_character_of_many_scalars_is_cut_only_when_it_alone_is_too_long() {
        let family = "👩‍👩‍👧‍👦";
        let text = family.repeat(3);
        assert_eq!(chars(&text, 7), vec![family; 3]);
        assert!(chars(&text, 3).iter().all(|piece| piece.chars().count() <= 3));
        assert_eq!(chars(&text, 3).concat(), text);
    }

    fn texts() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            "[a-z]{1,12}",
            Just("数据".to_owned()),
            Just("好。".to_owned()),
            Just("👩‍👩‍👧‍👦".to_owned()),
            Just("e\u{301}\u{302}".to_owned()),
            Just("\n```rust\n".to_owned()),
            Just("\n```\n".to_owned()),
            Just("\n~~~~\n".to_owned()),
            Just("\n".to_owned()),
            Just("\r\n".to_owned()),
            Just("\n\n".to_owned()),
            Just("    ".to_owned()),
            Just(" ".to_owned()),
            Just("one. ".to_owned()),
            Just("```".to_owned()),
            any::<char>().prop_map(String::from),
        ];
        proptest::collection::vec(word, 0..60).prop_map(|words| words.concat())
    }

    fn units() -> impl Strategy<Value = TextUnit> {
        prop_oneof![Just(TextUnit::Chars), Just(TextUnit::Utf16), Just(TextUnit::Bytes)]
    }

    proptest! {
        #[test]
        fn every_piece_fits_and_none_is_blank(text in texts(), limit in 4_usize..60, unit in units()) {
            for piece in split(&text, limit, unit) {
                prop_assert!(unit.len(&piece) <= limit, "{} > {limit}: {piece:?}", unit.len(&piece));
                prop_assert!(!piece.trim().is_empty());
            }
        }

        #[test]
        fn nothing_is_lost_or_reordered(text in texts(), limit in 4_usize..60, unit in units()) {
            // Fences may be repeated; everything else is there once and in order.
            let joined = split(&text, limit, unit).concat();
            let mut rest = joined.chars().filter(|c| !c.is_whitespace());
            for wanted in text.chars().filter(|c| !c.is_whitespace()) {
                prop_assert!(rest.any(|c| c == wanted), "{wanted:?} is missing in {joined:?}");
            }
        }

        #[test]
        fn without_fences_the_pieces_are_the_text(text in "[ a-z好。\n]{0,200}", limit in 4_usize..60) {
            let keep = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
            prop_assert_eq!(keep(&split(&text, limit, TextUnit::Chars).concat()), keep(&text));
        }

        #[test]
        fn every_piece_closes_the_fences_it_opens_and_code_lines_stay_whole(
            blocks in proptest::collection::vec(
                prop_oneof![
                    "[a-z ]{1,80}[.]",
                    proptest::collection::vec(" {0,4}[a-z]{1,12}", 1..12)
                        .prop_map(|lines| format!("```rust\n{}\n```", lines.join("\n"))),
                ],
                1..8,
            ),
            limit in 50_usize..120,
        ) {
            let text = blocks.join("\n\n");
            let mut code = Vec::new();
            for piece in split(&text, limit, TextUnit::Chars) {
                let mut inside = false;
                for line in piece.lines() {
                    if line.starts_with("```") {
                        prop_assert_eq!(line, if inside { "```" } else { "```rust" });
                        inside = !inside;
                    } else if inside {
                        code.push(line.to_owned());
                    }
                }
                prop_assert!(!inside, "left open: {piece:?}");
            }
            let blocks = blocks.iter().filter_map(|block| block.strip_prefix("```rust\n")?.strip_suffix("\n```"));
            prop_assert_eq!(code, blocks.flat_map(str::lines).map(str::to_owned).collect::<Vec<_>>());
        }

        #[test]
        fn any_limit_ends(text in texts(), limit in 0_usize..4, unit in units()) {
            split(&text, limit, unit);
        }
    }
}
