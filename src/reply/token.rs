//! Finds the two words by which a model asks for silence, in every disguise they come in.
//!
//! `NO_REPLY` in any case and `HEARTBEAT_OK` in capitals, also in full-width or styled letters (NFKC), with a
//! Markdown-escaped underscore or zero-width characters inside. `NO REPLY` (capitals only: "No reply." is an answer),
//! `NOREPLY` and `no-reply` count only as a whole message; beside other words they are words.

use std::sync::LazyLock;

use regex::Regex;
use unicode_normalization::UnicodeNormalization;

use super::code::CodeMap;
use super::think::head;

/// One of the two words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    NoReply,
    HeartbeatOk,
}

const TOKENS: [(Token, &str); 2] = [(Token::NoReply, "NO_REPLY"), (Token::HeartbeatOk, "HEARTBEAT_OK")];
/// Whole messages that mean the same; the last two only in capitals.
const VARIANTS: [(Token, &str, bool); 5] = [
    (Token::NoReply, "NOREPLY", true),
    (Token::NoReply, "NO-REPLY", true),
    (Token::NoReply, "NO REPLY", false),
    (Token::HeartbeatOk, "HEARTBEAT OK", false),
    (Token::HeartbeatOk, "HEARTBEAT-OK", false),
];
/// What a model writes before the token as if it filled a form.
const LABELS: [&str; 16] = [
    "final answer",
    "assistant",
    "response",
    "message",
    "output",
    "action",
    "answer",
    "result",
    "reply",
    "final",
    "text",
    "回复",
    "输出",
    "回答",
    "结果",
    "答复",
];
/// First lines of untagged reasoning.
const LEAD_INS: [&str; 6] = ["thinking", "think", "thought", "reasoning", "思考", "思考过程"];
const MAX_JSON: usize = 64 * 1024;
const MAX_JSON_STRING: usize = 256;

/// The plain capital letter a character stands for, if it is a styled or full-width one.
fn fold(c: char, upper: bool) -> Option<char> {
    let plain = if c.is_ascii() {
        c
    } else {
        let mut forms = c.nfkc();
        match (forms.next(), forms.next()) {
            (Some(form), None) if form.is_ascii() => form,
            _ => return None,
        }
    };
    Some(if upper { plain.to_ascii_uppercase() } else { plain })
}

fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2060}'..='\u{2064}' | '\u{feff}' | '\u{ad}' | '\u{fe00}'..='\u{fe0f}')
}

enum Match {
    /// The whole word; its length in bytes.
    Full(usize),
    /// The text ends inside the word.
    Partial,
    No,
}

fn match_word(text: &str, word: &str, upper: bool) -> Match {
    let mut wanted = word.chars().peekable();
    let mut skipped = 0;
    for (at, c) in text.char_indices() {
        let Some(&next) = wanted.peek() else {
            return Match::Full(at);
        };
        if is_invisible(c) && at > 0 && skipped < 32 {
            skipped += 1;
        } else if c == '\\' && next == '_' {
        } else if fold(c, upper) == Some(next) {
            wanted.next();
        } else {
            return Match::No;
        }
    }
    match wanted.peek() {
        None => Match::Full(text.len()),
        Some(_) => Match::Partial,
    }
}

/// The token that `text` begins with, and its length in bytes.
fn token_at(text: &str) -> Option<(Token, usize)> {
    let first = text.chars().next()?;
    TOKENS.into_iter().find_map(|(token, word)| {
        let upper = token == Token::NoReply;
        if fold(first, upper) != word.chars().next() {
            return None;
        }
        match match_word(text, word, upper) {
            Match::Full(len) => Some((token, len)),
            _ => None,
        }
    })
}

/// Whether `text` is a proper beginning of a token or of a whole-message variant.
fn is_partial(text: &str) -> bool {
    !text.is_empty()
        && text.len() <= 256
        && (TOKENS
            .iter()
            .any(|(token, word)| matches!(match_word(text, word, *token == Token::NoReply), Match::Partial))
            || VARIANTS.iter().any(|(_, word, upper)| matches!(match_word(text, word, *upper), Match::Partial)))
}

fn variant_at(text: &str) -> Option<(Token, usize)> {
    VARIANTS.into_iter().find_map(|(token, word, upper)| match match_word(text, word, upper) {
        Match::Full(len) => Some((token, len)),
        _ => None,
    })
}

/// The token that ends exactly at the end of `text`, and where it begins.
fn token_ending(text: &str) -> Option<(Token, usize)> {
    // A token is at most 12 letters, but each can be wide and have invisible company.
    let window = last(text, 96);
    let base = text.len() - window.len();
    let mut tail = None;
    for (at, c) in window.char_indices() {
        if matches!(fold(c, true), Some('N' | 'H'))
            && let Some((token, len)) = token_at(&window[at..])
            && at + len == window.len()
        {
            tail = Some((token, base + at));
        }
    }
    tail
}

/// The end of `text`, at most `bytes` long, cut at a character.
fn last(text: &str, bytes: usize) -> &str {
    let mut start = text.len().saturating_sub(bytes);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    &text[start..]
}

static HTML_TAG: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"^</?[A-Za-z][A-Za-z0-9-]{0,15}(?:[ \t][^<>\n]{0,200})?/?>"#).expect("a fixed pattern")
});

fn html_len(text: &str) -> usize {
    if !text.starts_with('<') {
        return 0;
    }
    HTML_TAG.find(text).map_or(0, |tag| tag.end())
}

/// Where the first letter or digit of `text` stands that no markup, emoji or blank explains.
fn first_word(text: &str) -> usize {
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let html = html_len(rest);
        if html > 0 {
            at += html;
        } else if rest.starts_with("&nbsp;") {
            at += 6;
        } else if c.is_alphanumeric() && !rest[c.len_utf8()..].starts_with('\u{fe0f}') {
            return at;
        } else {
            at += c.len_utf8();
        }
    }
    text.len()
}

/// Whether `text` is nothing but tokens, markup, punctuation, emoji and blanks; NO_REPLY wins over HEARTBEAT_OK.
fn residue(text: &str) -> Option<Token> {
    let mut found = None;
    let mut at = 0;
    loop {
        at += first_word(&text[at..]);
        if at == text.len() {
            break;
        }
        let (token, len) = token_at(&text[at..])?;
        at += len;
        if token == Token::NoReply || found.is_none() {
            found = Some(token);
        }
    }
    if found == Some(Token::HeartbeatOk) && super::heartbeat::has_alarm_sign(text) {
        return None;
    }
    found
}

/// Whether `text` is one token and nothing else that could be read.
pub(super) fn is_only_token(text: &str) -> bool {
    residue(text).is_some()
}

/// The token that a piece of reasoning ends in.
pub(super) fn ends_in_token(text: &str) -> Option<Token> {
    let text = text.trim_end_matches(|c: char| !c.is_alphanumeric());
    token_ending(text).map(|(token, _)| token)
}

/// The token that a whole message comes down to, if it says nothing else (openclaw-parity.md §1.2).
pub(super) fn whole(text: &str) -> Option<Token> {
    let text = text.trim();
    residue(text)
        .or_else(|| variant(text))
        .or_else(|| labelled(text))
        .or_else(|| fenced(text).and_then(|inner| residue(inner).or_else(|| variant(inner)).or_else(|| json(inner))))
        .or_else(|| json(text.trim_matches('`').trim()))
        .or_else(|| untagged_reasoning(text))
}

fn variant(text: &str) -> Option<Token> {
    let rest = &text[first_word(text)..];
    let (token, len) = variant_at(rest)?;
    (first_word(&rest[len..]) == rest.len() - len).then_some(token)
}

fn label_at(text: &str) -> Option<usize> {
    let lower = head(text, 32).to_lowercase();
    LABELS
        .iter()
        .find(|label| lower.strip_prefix(**label).is_some_and(|rest| !rest.starts_with(char::is_alphanumeric)))
        .map(|label| label.len())
}

fn labelled(text: &str) -> Option<Token> {
    let rest = &text[first_word(text)..];
    let after = rest.get(label_at(rest)?..)?;
    let gap = &after[..first_word(after)];
    if !gap.contains([':', '：', '=', '>']) {
        return None;
    }
    residue(after)
}

/// The content of a message that is one fenced block with an info string.
fn fenced(text: &str) -> Option<&str> {
    let mark = if text.starts_with("```") {
        '`'
    } else if text.starts_with("~~~") {
        '~'
    } else {
        return None;
    };
    let (info, content) = text.split_once('\n')?;
    is_info(info).then(|| content.trim_end().trim_end_matches(mark).trim())
}

fn is_info(line: &str) -> bool {
    let info = line.trim_start_matches(['`', '~']).trim();
    info.len() <= 40 && info.chars().all(|c| c.is_alphanumeric() || matches!(c, '_' | '-' | '+' | '.' | '#'))
}

static LOOSE_JSON: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"^\{\s*["'“]?(?i:action|reply|text)["'”]?\s*[:=：]\s*["'“]?([^\s"'“”,{}]{1,64})["'”]?\s*,?\s*\}$"#)
        .expect("a fixed pattern")
});

/// A JSON string, object or array whose meaning is the token.
fn json(text: &str) -> Option<Token> {
    let limit = if text.starts_with('"') { MAX_JSON_STRING } else { MAX_JSON };
    if text.len() > limit || !text.starts_with(['{', '[', '"']) {
        return None;
    }
    match serde_json::from_str::<serde_json::Value>(text) {
        Ok(value) => json_value(&value),
        Err(_) => residue(LOOSE_JSON.captures(text)?.get(1)?.as_str()),
    }
}

fn json_value(value: &serde_json::Value) -> Option<Token> {
    if let Some(fields) = value.as_object() {
        let said = fields
            .iter()
            .filter(|(key, _)| ["action", "reply", "text"].iter().any(|known| key.eq_ignore_ascii_case(known)))
            .filter_map(|(_, field)| residue(field.as_str()?));
        if let Some(token) = said.into_iter().next() {
            return Some(token);
        }
    }
    let mut leaves = Vec::new();
    string_leaves(value, &mut leaves);
    match leaves[..] {
        [only] => residue(only).or_else(|| variant(only)),
        _ => None,
    }
}

fn string_leaves<'v>(value: &'v serde_json::Value, leaves: &mut Vec<&'v str>) {
    match value {
        serde_json::Value::String(leaf) => leaves.push(leaf),
        serde_json::Value::Array(items) => items.iter().for_each(|item| string_leaves(item, leaves)),
        serde_json::Value::Object(fields) => fields.values().for_each(|field| string_leaves(field, leaves)),
        _ => {}
    }
}

static SILENT_INTENT: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(
        r"(?i)silen|quiet|\bno (?:reply|response|answer)|(?:not|n't|needn't|without|nothing).{0,40}(?:repl|respon|answer|say|add|need|do)|(?:respond|reply|answer|output|return|send|say|use|so|therefore)\b|沉默|静默|安静|不(?:需要|必|用|应该?|要)?(?:再)?(?:回复|回答|说话|参与)|无需|没有.{0,10}(?:说|回)|回复|输出",
    )
    .expect("a fixed pattern")
});

/// "think", then reasoning, then a last line that means silence and ends in the token.
fn untagged_reasoning(text: &str) -> Option<Token> {
    if !has_lead_in(text) {
        return None;
    }
    let body = text.trim_end_matches(|c: char| !c.is_alphanumeric());
    let (token, start) = token_ending(body)?;
    let line = &body[body[..start].rfind('\n').map_or(0, |at| at + 1)..start];
    (first_word(line) == line.len() || SILENT_INTENT.is_match(line)).then_some(token)
}

fn has_lead_in(text: &str) -> bool {
    let Some((first, _)) = text.split_once('\n') else {
        return false;
    };
    let word = head(first, 128).trim_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    first.len() <= 128 && LEAD_INS.contains(&word.as_str())
}

/// Whether the message is only a rule (`───`, `---`): a scrap of formatting, nothing to send.
pub(super) fn is_rule(text: &str) -> bool {
    let mut count = 0usize;
    for c in text.chars().filter(|c| !c.is_whitespace()) {
        if !matches!(c, '─' | '━' | '═' | '—' | '-' | '_' | '*' | '=' | '~' | '╌' | '┄' | '┈') {
            return false;
        }
        count += 1;
    }
    count >= 3
}

/// What is left when a token at the edges has been cut off.
pub(super) struct Cut {
    pub text: String,
    /// Which token was cut; HEARTBEAT_OK only when NO_REPLY was not.
    pub token: Token,
}

/// Cuts tokens off the beginning and the end of a message that also says something else.
pub(super) fn cut(text: &str) -> Option<Cut> {
    let mut token = None;
    let mut note = |found: Token| {
        if token != Some(Token::NoReply) {
            token = Some(found);
        }
    };
    let mut rest = text.trim();
    while let Some((found, after)) = leading(rest) {
        note(found);
        rest = after.trim_start();
    }
    let mut kept = String::new();
    let codes = if ends_near_token(rest) { CodeMap::new(rest).all() } else { Vec::new() };
    while let Some(end) = trailing(rest, &codes) {
        note(end.token);
        rest = &rest[..end.keep];
        kept = end.closers;
    }
    let token = token?;
    Some(Cut { text: format!("{rest}{kept}").trim().to_owned(), token })
}

/// Punctuation by which a leading token is set off from the text after it.
fn sets_off(c: char) -> bool {
    matches!(
        c,
        '.' | '!'
            | ';'
            | ':'
            | '-'
            | '|'
            | '>'
            | '='
            | '。'
            | '！'
            | '；'
            | '：'
            | '…'
            | '→'
            | '⇒'
            | '—'
            | '–'
            | '｜'
    )
}

static SPOKEN_AFTER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(?:\s*(?i:is|are|was|were|means?|stands|tells|has|can|will|should|and|or|token|as|in|for|when)\b|\s*(?:是|的|表示|指|代表|和|与|或|意思|意味|标记|令牌|用于|用来|不是))")
        .expect("a fixed pattern")
});

/// The token a message begins with, and the text after it, where it is set off from that text.
fn leading(text: &str) -> Option<(Token, &str)> {
    // A first line that is only the token, in whatever markup.
    if let Some((line, after)) = text.split_once('\n')
        && line.len() <= 256
        && let Some(token) = residue(line)
    {
        return Some((token, after));
    }
    let (token, len) = token_at(text)?;
    let after = &text[len..];
    let next = after.chars().next()?;
    if SPOKEN_AFTER.is_match(head(after, 48)) {
        return None;
    }
    if next.is_whitespace() {
        let separated = after.trim_start_matches([' ', '\t', '\u{3000}']);
        if separated.starts_with([':', '-', '|', '→', '⇒', '—', '–', '：', '｜']) {
            return Some((token, skip_separators(separated)));
        }
        let apart = token == Token::HeartbeatOk || separated.starts_with(['\n', '\r', '(', '（', '【']);
        return apart.then_some((token, after));
    }
    let comma = token == Token::HeartbeatOk && matches!(next, ',' | '，');
    if sets_off(next) || comma {
        let rest = skip_separators(&after[next.len_utf8()..]);
        // `NO_REPLY.md`, `NO_REPLY::X`, `NO_REPLY=1` are names, not silence.
        let glued = rest.len() == after.len() - next.len_utf8()
            && next.is_ascii()
            && rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let doubled = after.starts_with("::") || after.starts_with('=') && !after.starts_with("=>");
        return (!glued && !doubled && !rest.is_empty()).then_some((token, rest));
    }
    is_glued_text(&text[..len], after).then_some((token, after))
}

fn skip_separators(text: &str) -> &str {
    text.trim_start_matches(|c: char| sets_off(c) || c.is_whitespace())
}

/// Whether `after` is a text whose first word was only glued to the token: `NO_REPLYThe user`, not `NO_REPLYING`.
fn is_glued_text(token: &str, after: &str) -> bool {
    let Some(first) = after.chars().next() else {
        return false;
    };
    if !first.is_alphabetic() {
        return false;
    }
    if !first.is_uppercase() && !first.is_lowercase() {
        return true;
    }
    let token_is_upper = !token.chars().any(char::is_lowercase);
    if first.is_lowercase() {
        return token_is_upper;
    }
    let mut word = after.chars().take(24).take_while(|c| c.is_alphanumeric() || *c == '_');
    word.next();
    match word.next() {
        Some(second) => second.is_lowercase(),
        None => matches!(first, 'I' | 'A') && after[1..].starts_with(' '),
    }
}

fn ends_near_token(text: &str) -> bool {
    let body = text.trim_end_matches(|c: char| !c.is_alphanumeric());
    let body = if body.len() < text.len() || token_ending(body).is_some() { body } else { return false };
    token_ending(body).is_some() || last(text, 256).contains("</")
}

struct End {
    token: Token,
    /// Length of the text before the token and what led to it.
    keep: usize,
    /// Closing marks after the token that belong to the text before it.
    closers: String,
}

static CLOSING_HTML: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"</[A-Za-z]{1,10}>\s*$").expect("a fixed pattern"));
static OPENING_HTML: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"<[A-Za-z]{1,10}>$").expect("a fixed pattern"));

static SPOKEN_BEFORE: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"(?:(?:^|[^\p{L}])(?i:is|are|was|with|the|a|an|as|of|say|says|said|saying|return|returns|output|outputs|send|sends|use|uses|using|called|named|token|tokens|literal|string|word|write|writes|emit|emits|print|prints|type|like|means|answering|replying|exactly|just)|是|为|叫|用|输出|返回|发送|写|说|即|或|和|令牌|标记|一个|所谓)\s*$|(?:^|[^=])=\s*$"#)
        .expect("a fixed pattern")
});

fn is_separator(c: char) -> bool {
    c.is_whitespace()
        || is_invisible(c)
        || matches!(
            c,
            '→' | '⇒'
                | '➜'
                | '➡'
                | '-'
                | '—'
                | '–'
                | ':'
                | '：'
                | '|'
                | '｜'
                | ','
                | '，'
                | '、'
                | ';'
                | '；'
                | '·'
                | '•'
                | '─'
        )
}

fn is_opener(c: char) -> bool {
    matches!(
        c,
        '*' | '_'
            | '~'
            | '`'
            | '('
            | '['
            | '{'
            | '（'
            | '【'
            | '「'
            | '『'
            | '《'
            | '〔'
            | '<'
            | '"'
            | '\''
            | '“'
            | '‘'
            | '«'
            | '>'
            | '#'
    )
}

fn is_quote_or_bracket(c: char) -> bool {
    is_opener(c) && !matches!(c, '*' | '_' | '~' | '`' | '>' | '#')
}

/// The token at the end of `text`, where it is set off from the text before it.
fn trailing(text: &str, codes: &[super::code::Code]) -> Option<End> {
    // What may follow: marks, blanks, emoji, closing HTML; a question asks about the token.
    let mut end = text.len();
    loop {
        let before = end;
        end = text[..end].trim_end_matches(|c: char| !c.is_alphanumeric() && c != '>' && c != '<').len();
        if let Some(tag) = CLOSING_HTML.find(last(&text[..end], 32)) {
            end -= tag.len();
        } else if text[..end].ends_with('>') {
            end -= 1;
        }
        if end == before {
            break;
        }
    }
    let after = &text[end..];
    if after.contains(['?', '？']) {
        return None;
    }
    let (token, start) = token_ending(&text[..end])?;
    let code = codes.partition_point(|code| code.end <= start);
    let inside = codes.get(code).filter(|code| code.start < start);
    // In a fence, or in a span with other words, it is quoted.
    let quoted = inside.is_some_and(|code| {
        let around = [text.get(code.start..start), text.get(end..code.end.min(text.len()))];
        code.fence || around.into_iter().flatten().any(|part| !part.trim_matches(['`', ' ']).is_empty())
    });
    if quoted {
        return None;
    }
    // What leads to it: markup glued to it, then separators.
    let mut lead = start;
    let mut bracketed = false;
    loop {
        let before = lead;
        if let Some(tag) = OPENING_HTML.find(last(&text[..lead], 16)) {
            lead -= tag.len();
        } else if let Some(c) = text[..lead].chars().next_back()
            && is_opener(c)
            && !(c == '`' && inside.is_none() && ends_code(codes, lead))
        {
            bracketed |= is_quote_or_bracket(c);
            lead -= c.len_utf8();
        }
        if lead == before {
            break;
        }
    }
    let marked = lead < start;
    if let Some(c) = text[..lead].chars().next_back() {
        let joined = c.is_ascii_alphanumeric()
            || matches!(c, '_' | '.' | '-' | ':' | '/' | '\\' | '@' | '$' | '%' | '&' | '+' | '=' | '#' | '?' | '？')
            || (c.is_alphabetic() && (c.is_lowercase() || c.is_uppercase()));
        let star = marked && !bracketed && text[lead..].starts_with('*');
        if joined && !(star && c != '?') {
            return None;
        }
    }
    let mut keep = lead;
    loop {
        let before = keep;
        keep = text[..keep].trim_end_matches(is_separator).len();
        if text[..keep].ends_with(['>', '=']) && (text[keep..].is_empty() || keep < text.len()) {
            let arrow = ["->", "=>", "-->", "==>"].iter().find(|arrow| text[..keep].ends_with(**arrow));
            if let Some(arrow) = arrow {
                keep -= arrow.len();
            } else if text[..keep].ends_with("\n>") {
                keep -= 2;
            }
        }
        if keep == before {
            break;
        }
    }
    if keep == lead && SPOKEN_BEFORE.is_match(last(&text[..keep], 48)) {
        return None;
    }
    if text[keep..lead].chars().all(char::is_whitespace)
        && !text[keep..lead].contains('\n')
        && SPOKEN_BEFORE.is_match(last(&text[..keep], 48))
    {
        return None;
    }
    Some(End { token, keep, closers: closers(&text[..keep], after, marked) })
}

fn ends_code(codes: &[super::code::Code], at: usize) -> bool {
    let next = codes.partition_point(|code| code.end < at);
    codes.get(next).is_some_and(|code| code.end == at)
}

/// Which of the marks after a cut token close something in the text before it; looks back 512 bytes at most.
fn closers(before: &str, after: &str, marked: bool) -> String {
    let near = last(before, 512);
    let mut kept = String::new();
    if !marked {
        for (open, close) in [('(', ')'), ('（', '）'), ('[', ']'), ('【', '】'), ('“', '”'), ('「', '」')] {
            if after.contains(close) && near.matches(open).count() > near.matches(close).count() {
                kept.push(close);
            }
        }
        for mark in ["**", "~~", "__"] {
            if after.contains(mark) && near.matches(mark).count() % 2 == 1 {
                kept.push_str(mark);
            }
        }
    }
    // The full stop of a sentence the token stood in.
    if let Some(stop) = after.chars().find(|c| matches!(c, '.' | '。' | '!' | '！'))
        && before.ends_with(char::is_alphanumeric)
        && kept.is_empty()
    {
        kept.push(stop);
    }
    kept
}

/// How much of a growing text may be shown: never anything that a token still to come could cut off or silence.
pub(super) fn shown(text: &str) -> &str {
    let text = text.trim_start();
    if could_be_whole(text) {
        return "";
    }
    let mut end = text.len();
    loop {
        let before = end;
        end = text[..end].trim_end_matches(|c: char| !c.is_alphanumeric()).len();
        // An HTML tag that could turn out to wrap the token.
        let letters = last(&text[..end], 24);
        let name = letters.trim_end_matches(|c: char| c.is_ascii_alphanumeric());
        if name.len() < letters.len() && (name.ends_with('<') || name.ends_with("</")) {
            end -= letters.len() - name.len();
        } else if let Some((_, start)) = token_ending(&text[..end]) {
            end = start;
        } else if let Some(start) = partial_ending(text, end) {
            end = start;
        }
        if end == before {
            break;
        }
    }
    &text[..end]
}

/// Where a token begins that is cut off at the end of `text` (whose letters end at `end`).
fn partial_ending(text: &str, end: usize) -> Option<usize> {
    let window = last(text, 96);
    let base = text.len() - window.len();
    window.char_indices().find_map(|(at, c)| {
        let start = base + at;
        let begins = start < end
            && matches!(fold(c, true), Some('N' | 'H'))
            && is_partial(&window[at..])
            && !text[..start].ends_with(|c: char| c.is_ascii_alphanumeric());
        begins.then_some(start)
    })
}

/// Whether a growing text could still end as a message that is only a token.
fn could_be_whole(text: &str) -> bool {
    if says_nothing_yet(text) {
        return true;
    }
    let rest = &text[first_word(text)..];
    if begins_like_token(rest) || begins_like_label(rest) || begins_like_lead_in(rest) {
        return true;
    }
    let open = text.trim_start_matches('`').trim_start();
    if (open.starts_with(['{', '[']) && text.len() <= MAX_JSON)
        || (open.starts_with('"') && text.len() <= MAX_JSON_STRING + 8 && open.contains('\\'))
    {
        return true;
    }
    if text.starts_with("```") || text.starts_with("~~~") {
        return match text.split_once('\n') {
            None => is_info(text),
            Some((info, content)) => {
                is_info(info) && {
                    let content = content.trim_start();
                    let first = first_word(content);
                    says_nothing_yet(content)
                        || begins_like_token(&content[first..])
                        || content.starts_with(['{', '[', '"'])
                }
            }
        };
    }
    false
}

/// Whether a growing text has no word so far: what looks like the beginning of one may still become an emoji (its
/// last character), a `&nbsp;` or an HTML tag.
fn says_nothing_yet(text: &str) -> bool {
    let (before, rest) = text.split_at(first_word(text));
    let in_html = (before.ends_with('<') || before.ends_with("</")) && rest.len() < 240 && !rest.contains(['>', '\n']);
    rest.chars().nth(1).is_none() || in_html || (before.ends_with('&') && "nbsp;".starts_with(rest))
}

fn begins_like_token(text: &str) -> bool {
    if token_at(text).is_some() || is_partial(head(text, 256)) && text.len() <= 256 {
        return true;
    }
    variant_at(text).is_some_and(|(_, len)| {
        let after = &text[len..];
        let next = &after[first_word(after)..];
        says_nothing_yet(after) || token_at(next).is_some() || is_partial(next)
    })
}

fn begins_like_label(text: &str) -> bool {
    if text.len() <= 32 {
        let lower = text.to_lowercase();
        if LABELS.iter().any(|label| label.starts_with(lower.as_str())) {
            return true;
        }
    }
    label_at(text).and_then(|len| text.get(len..)).is_some_and(|after| {
        let first = first_word(after);
        says_nothing_yet(after) || begins_like_token(&after[first..])
    })
}

fn begins_like_lead_in(text: &str) -> bool {
    if has_lead_in(text) {
        return true;
    }
    let line = head(text, 160);
    if line.contains('\n') || text.len() > 128 {
        return false;
    }
    let word = line.trim_end_matches(|c: char| !c.is_alphanumeric()).to_lowercase();
    LEAD_INS.iter().any(|lead| lead.starts_with(word.as_str()))
}
