//! A reply as QQ's messages: few of them, for QQ counts the answers to a message. Pure.

use channel_api::{
    Attachment, AttachmentKind, Button, Level, MediaSource, Part, Reply, ReplyKind, TextUnit, split::split,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::plain::plain;

/// The longest text of one message, in characters. QQ names no limit; texts of this length have always passed.
pub const TEXT_LIMIT: usize = 2_000;
/// The most messages of one reply: a private chat gets four answers to a message. protocols.md §6 rule 9.
pub const MOST_PARTS: usize = 4;
/// The most of them that are text, so that a notice or a file still has a place.
const MOST_TEXTS: usize = 3;
/// Room for the line that says that the rest is missing.
const NOTE: usize = 40;
/// The most rows of buttons, and buttons in a row: what QQ allows.
const ROWS: usize = 5;
/// The longest name of a file that is shown, in characters.
const NAME_CHARS: usize = 100;

/// What [`Part::body`] holds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Body {
    /// The text as Markdown; without it the part's text is sent as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub markdown: Option<String>,
    /// A file, instead of a text. The part's text is the line that stands for it when it cannot be sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<Attachment>,
    /// Buttons under the Markdown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub buttons: Vec<Vec<Button>>,
    /// How much it needs one of the few answers.
    #[serde(default)]
    pub weight: Weight,
}

/// How much a part needs one of the few answers that a message may get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// The end of an answer: may take the last one.
    #[default]
    End,
    /// Something that an end follows.
    Middle,
    /// A word of the gateway that an answer may follow.
    Notice,
}

/// The parts of a reply. Both levels have the same parts with the same [`Part::text`].
pub fn render(reply: &Reply, level: Level) -> Vec<Part> {
    let (text, files) = with_files(reply);
    let mut pieces = split(&text, TEXT_LIMIT, TextUnit::Chars);
    let most = MOST_TEXTS.min(MOST_PARTS - files.len());
    let mut note = None;
    if pieces.len() > most {
        // Cut again with room for the line at the end of the last one.
        pieces = split(&text, TEXT_LIMIT - NOTE, TextUnit::Chars);
        pieces.truncate(most);
        note = Some(cut_note(&text));
    }
    let ends = pieces.len() + files.len();
    let mut parts: Vec<Part> = Vec::with_capacity(ends);
    let texts = pieces.len();
    for (n, mut piece) in pieces.into_iter().enumerate() {
        let last = n + 1 == texts;
        let room = if note.is_some() { TEXT_LIMIT - NOTE } else { TEXT_LIMIT };
        let mut shown = plain(&piece);
        if shown.chars().count() > room || shown.trim().is_empty() {
            shown = piece.clone();
        }
        if let (true, Some(note)) = (last, note) {
            shown = format!("{shown}\n\n{note}");
            piece = format!("{piece}\n\n{note}");
        }
        let body = Body {
            markdown: (level == Level::Rich).then(|| harmless(&piece)),
            file: None,
            buttons: if last { buttons(reply) } else { Vec::new() },
            weight: weight(reply, n + 1 == ends, n == 0),
        };
        parts.push(part(shown, body));
    }
    for (n, file) in files.into_iter().enumerate() {
        let weight = weight(reply, texts + n + 1 == ends, false);
        parts.push(part(line(&file), Body { file: Some(file), weight, ..Body::default() }));
    }
    parts
}

fn part(text: String, body: Body) -> Part {
    Part { text: harmless(&text), body: serde_json::to_value(body).unwrap_or(Value::Null) }
}

/// The same text, and nobody is named by it: an unseen joiner stands in `@everyone`, `<@id>`, `<#id>` and `<qqbot-at-…>`.
/// security.md row 31.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for (at, c) in text.char_indices() {
        out.push(c);
        let rest = &text[at + c.len_utf8()..];
        let begins = |word: &str| rest.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word));
        let names = match c {
            '<' => {
                let inside = rest.trim_start_matches([' ', '/']);
                inside.starts_with(['@', '#'])
                    || inside.get(..5).is_some_and(|start| start.eq_ignore_ascii_case("qqbot"))
                    || inside.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("emoji:"))
            }
            '@' | '＠' => ["everyone", "all", "here", "全体成员", "所有人"].iter().any(|word| begins(word)),
            _ => false,
        };
        if names {
            out.push('\u{2060}');
        }
    }
    out
}

fn weight(reply: &Reply, last: bool, first: bool) -> Weight {
    match reply.kind {
        ReplyKind::Notice if first => Weight::Notice,
        _ if last => Weight::End,
        _ => Weight::Middle,
    }
}

/// The text, with a line for every file that finds no place, and the files that find one.
fn with_files(reply: &Reply) -> (String, Vec<Attachment>) {
    let texts = split(&reply.text, TEXT_LIMIT, TextUnit::Chars).len().min(MOST_TEXTS);
    let mut text = reply.text.clone();
    let mut files = Vec::new();
    for attachment in &reply.attachments {
        if attachment.media.is_some() && files.len() + texts.max(1) < MOST_PARTS {
            files.push(attachment.clone());
            continue;
        }
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&line(attachment));
    }
    (text, files)
}

/// The line that stands for a file.
pub fn line(file: &Attachment) -> String {
    let word = match file.kind {
        AttachmentKind::Image => "image",
        AttachmentKind::Audio => "audio",
        AttachmentKind::Video => "video",
        AttachmentKind::File => "file",
    };
    let name = file.name.as_deref().unwrap_or_default();
    let name: String =
        name.chars().filter(|c| !c.is_control() && !"[]()<>`*_\\".contains(*c)).take(NAME_CHARS).collect();
    let named = if name.trim().is_empty() { format!("[{word}]") } else { format!("[{word}: {}]", name.trim()) };
    match file.media.as_ref().map(|media| &media.source) {
        Some(MediaSource::Url(url)) if url.chars().count() <= TEXT_LIMIT / 2 => format!("{named} {url}"),
        _ => named,
    }
}

fn buttons(reply: &Reply) -> Vec<Vec<Button>> {
    reply.buttons.iter().take(ROWS).map(|row| row.iter().take(ROWS).cloned().collect()).collect()
}

/// The language of a message: an adapter knows no other than that of the answer.
pub fn is_chinese(text: &str) -> bool {
    let start: Vec<char> = text.chars().filter(|c| c.is_alphabetic()).take(500).collect();
    let chinese = start.iter().filter(|c| ('\u{4E00}'..='\u{9FFF}').contains(*c)).count();
    chinese * 3 > start.len()
}

/// The last line of an answer that is too long.
fn cut_note(text: &str) -> &'static str {
    match is_chinese(text) {
        true => "（回答太长，后面的内容没有发送）",
        false => "(cut off here: too long for QQ)",
    }
}

/// What a person reads instead of an answer that QQ's review held back.
pub fn moderated_note(text: &str) -> &'static str {
    match is_chinese(text) {
        true => "（这条回答没有通过 QQ 的内容审核，换个说法再问一次吧）",
        false => "(QQ's content review held this answer back; please ask in other words)",
    }
}

/// The first line of a message that may have arrived before.
pub fn resend_note(text: &str) -> &'static str {
    match is_chinese(text) {
        true => "↻（这条消息可能已经发过一次）",
        false => "↻ (this message may have arrived once before)",
    }
}

/// The text with every dot that QQ could take for one of an address or a file's name made harmless: `a.md` is a domain
/// to it. Numbers keep theirs. protocols.md §6 rule 7.
pub fn defused(text: &str) -> String {
    let chars: Vec<char> = text.replace("://", "：//").chars().collect();
    let word = |at: Option<usize>| at.and_then(|at| chars.get(at)).copied().filter(|c| c.is_alphanumeric());
    let dot = |at: usize| match (word(at.checked_sub(1)), word(Some(at + 1))) {
        (Some(before), Some(after)) => !(before.is_ascii_digit() && after.is_ascii_digit()) || is_address(&chars, at),
        _ => false,
    };
    chars.iter().enumerate().map(|(at, c)| if *c == '.' && dot(at) { '。' } else { *c }).collect()
}

/// Whether the dot is one of at least three in a run of digits and dots: an IPv4 address.
fn is_address(chars: &[char], at: usize) -> bool {
    let of_it = |c: &&char| c.is_ascii_digit() || **c == '.';
    let after = chars[at..].iter().take_while(of_it).filter(|c| **c == '.').count();
    let before = chars[..at].iter().rev().take_while(of_it).filter(|c| **c == '.').count();
    before + after >= 3
}

#[cfg(test)]
mod tests {
    use channel_api::MediaRef;

    use super::*;

    fn body(part: &Part) -> Body {
        serde_json::from_value(part.body.clone()).expect("a body")
    }

    fn file(kind: AttachmentKind, name: &str) -> Attachment {
        let media = MediaRef { source: MediaSource::Stored("0".to_owned()), mime: None, size: None };
        Attachment { kind, media: Some(media), name: Some(name.to_owned()), unavailable: None }
    }

    #[test]
    fn a_short_answer_is_one_message_of_markdown() {
        let parts = render(&Reply::message("**好** [官网](https://a.org)"), Level::Rich);
        assert_eq!(parts.len(), 1);
        assert_eq!(parts[0].text, "好 官网 (https://a.org)");
        assert_eq!(body(&parts[0]).markdown.as_deref(), Some("**好** [官网](https://a.org)"));
        let parts = render(&Reply::message("**好**"), Level::Plain);
        assert_eq!((parts[0].text.as_str(), body(&parts[0]).markdown), ("好", None));
    }

    #[test]
    fn rule_9_a_long_answer_becomes_few_messages_and_says_that_it_is_cut() {
        let parts = render(&Reply::message("天气很好。".repeat(4_000)), Level::Rich);
        assert_eq!(parts.len(), MOST_TEXTS);
        assert!(parts[2].text.ends_with("（回答太长，后面的内容没有发送）"));
        assert!(parts.iter().all(|part| part.text.chars().count() <= TEXT_LIMIT));
        assert!(parts.iter().all(|part| part.text.chars().count() > TEXT_LIMIT - 100), "the pieces are full");
        let weights: Vec<Weight> = parts.iter().map(|part| body(part).weight).collect();
        assert_eq!(weights, [Weight::Middle, Weight::Middle, Weight::End]);
    }

    #[test]
    fn a_4097_unit_answer_arrives_whole() {
        let items: String = (1..=40).map(|n| format!("- item {n} 👩‍👩‍👧‍👦\n  - nested {n}\n")).collect();
        let code = format!("```rust\n{}```\n", "let answer = 42; // 好\n".repeat(60));
        let mut text = format!("# 清单\n\n{items}\n{code}\n");
        while TextUnit::Utf16.len(&text) < 4_097 {
            text.push('尾');
        }
        let parts = render(&Reply::message(text.clone()), Level::Rich);
        assert_eq!(parts.len(), 3, "{:?}", parts.iter().map(|part| part.text.len()).collect::<Vec<_>>());
        for part in &parts {
            let markdown = body(part).markdown.expect("Markdown");
            assert_eq!(markdown.matches("```").count() % 2, 0, "fences are closed: {markdown}");
            assert!(!part.text.contains("```"), "plain text has none: {}", part.text);
        }
        let letters = |text: &str| text.chars().filter(|c| c.is_alphanumeric()).collect::<String>();
        let read: String = parts.iter().map(|part| part.text.as_str()).collect();
        assert_eq!(letters(&read), letters(&text.replace("rust\n", "")));
        assert!(read.contains("- item 1 👩‍👩‍👧‍👦\n  - nested 1"));
    }

    #[test]
    fn files_are_messages_of_their_own_while_there_is_room() {
        let mut reply = Reply::message("here");
        reply.attachments = (1..=5).map(|n| file(AttachmentKind::Image, &format!("{n}.png"))).collect();
        let parts = render(&reply, Level::Rich);
        let texts: Vec<&str> = parts.iter().map(|part| part.text.as_str()).collect();
        assert_eq!(
            texts,
            ["here\n\n[image: 4.png]\n\n[image: 5.png]", "[image: 1.png]", "[image: 2.png]", "[image: 3.png]"]
        );
        assert!(body(&parts[1]).file.is_some());
        reply.text = String::new();
        reply.attachments.truncate(1);
        assert_eq!(render(&reply, Level::Plain).len(), 1, "a file alone");
        reply.attachments[0].media.as_mut().expect("media").source = MediaSource::Url("https://a.org/x".to_owned());
        assert_eq!(render(&reply, Level::Plain)[0].text, "[image: 1.png] https://a.org/x");
    }

    #[test]
    fn row_31_nobody_is_named_by_what_a_model_wrote() {
        for text in [
            "@everyone come",
            "@every**one**",
            "<@!123> and \\<@456>",
            "<qqbot-at-everyone />",
            "<qqbot-at-user id=\"7\" />",
            "<QQBOT-AT-EVERYONE/>",
            "@全体成员",
            "<#42>",
        ] {
            let mut reply = Reply::message(text);
            reply.attachments.push(file(AttachmentKind::File, "@everyone <@1>.txt"));
            for level in [Level::Rich, Level::Plain] {
                for part in render(&reply, level) {
                    for shown in [Some(part.text.clone()), body(&part).markdown].into_iter().flatten() {
                        let lower = shown.to_lowercase();
                        for evil in ["@everyone", "<@", "<qqbot", "@全体成员", "<#"] {
                            assert!(!lower.contains(evil), "{evil} in {shown:?} of {text:?}");
                        }
                    }
                }
            }
        }
        assert_eq!(harmless("mail a@example.org, 1 < 2, <b>"), "mail a@example.org, 1 < 2, <b>");
    }

    #[test]
    fn rule_7_dots_of_addresses_and_files_are_defused_and_numbers_stay() {
        let table = [
            ("see foo.sh and a.md", "see foo。sh and a。md"),
            ("https://example.org/x.html.", "https：//example。org/x。html."),
            ("3.14 is pi. And 1.2.", "3.14 is pi. And 1.2."),
            ("ping 10.0.0.1", "ping 10。0。0。1"),
            ("v1.x 你好.好", "v1。x 你好。好"),
            ("...", "..."),
        ];
        for (text, expected) in table {
            assert_eq!(defused(text), expected);
        }
    }
}
