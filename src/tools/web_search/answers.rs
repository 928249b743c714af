//! What the search services answer, read leniently: what is missing is empty, what is unknown is left. Pure.

use serde_json::Value;

use super::Found;

/// SearXNG's `format=json`. `None` = this is no such answer.
pub fn searxng(body: &Value) -> Option<Vec<Found>> {
    list(body.get("results")?, "content")
}

/// Brave's web search. Answers that hold only news or videos have no `web`.
pub fn brave(body: &Value) -> Option<Vec<Found>> {
    match body.pointer("/web/results") {
        Some(results) => list(results, "description"),
        None => (body.get("type").is_some() || body.get("query").is_some()).then(Vec::new),
    }
}

/// Tavily's search.
pub fn tavily(body: &Value) -> Option<Vec<Found>> {
    list(body.get("results")?, "content")
}

fn list(results: &Value, snippet: &str) -> Option<Vec<Found>> {
    let word = |result: &Value, key: &str| plain(result.get(key).and_then(Value::as_str).unwrap_or_default());
    let one = |result: &Value| Found {
        title: word(result, "title"),
        // An address is not marked up.
        url: result.get("url").and_then(Value::as_str).unwrap_or_default().to_owned(),
        snippet: word(result, snippet),
    };
    Some(results.as_array()?.iter().take(MOST_FOUND).map(one).collect())
}

/// DuckDuckGo's pages for browsers without scripts. `None` = the page asks for proof of being human.
pub fn duckduckgo(page: &str) -> Option<Vec<Found>> {
    let mut found: Vec<Found> = Vec::new();
    for element in Elements(page) {
        let class =
            |name: &str| element.attribute("class").is_some_and(|all| all.split_whitespace().any(|one| one == name));
        if found.len() == MOST_FOUND {
            break;
        }
        if element.name == "a" && (class("result__a") || class("result-link")) {
            let url = target(&entities(element.attribute("href").unwrap_or_default()));
            found.push(Found { title: plain(element.inner), url, snippet: String::new() });
        } else if (class("result__snippet") || class("result-snippet"))
            && let Some(last) = found.last_mut()
            && last.snippet.is_empty()
        {
            last.snippet = plain(element.inner);
        }
    }
    // Advertisements lead through a page of their own.
    found.retain(|found| !found.url.contains("duckduckgo.com/y.js"));
    let lower = page.to_ascii_lowercase();
    let asked = lower.contains("anomaly-modal") || lower.contains("challenge-form") || lower.contains("g-recaptcha");
    if found.is_empty() && asked { None } else { Some(found) }
}

/// Where a result's link leads: the address itself, or the one in `uddg`.
fn target(href: &str) -> String {
    let full = if href.starts_with("//") { format!("https:{href}") } else { href.to_owned() };
    let Ok(url) = reqwest::Url::parse(&full) else { return full };
    if url.host_str().is_some_and(|host| host.ends_with("duckduckgo.com")) && url.path().starts_with("/l/") {
        let inner = url.query_pairs().find(|(key, _)| key == "uddg").map(|(_, value)| value.into_owned());
        return inner.unwrap_or(full);
    }
    full
}

/// The longest tag, and the most bytes that lie in an element that is read.
const MOST_TAG: usize = 8 << 10;
const MOST_INNER: usize = 32 << 10;
/// The most bytes of a text of an answer: far more than is shown of it.
const MOST_WORDS: usize = 32 << 10;
/// The most results that are looked at.
const MOST_FOUND: usize = 1_000;

/// The elements of a page one after the other, whatever they lie in: no tree, so nothing to break.
struct Elements<'a>(&'a str);

struct Element<'a> {
    /// In lower case as HTML is written by machines.
    name: &'a str,
    tag: &'a str,
    /// Up to the next closing tag of the same name.
    inner: &'a str,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        loop {
            let open = self.0.find('<')?;
            let rest = &self.0[open + 1..];
            let length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
            let name = &rest[..length];
            let Some(end) = end_of_tag(&rest[length..]).map(|end| end + length) else {
                self.0 = "";
                return None;
            };
            self.0 = &rest[end + 1..];
            if name.is_empty() {
                continue;
            }
            let close = begin(self.0, MOST_INNER).find(&format!("</{}", begin(name, 32))).unwrap_or(0);
            return Some(Element { name, tag: &rest[length..end], inner: &self.0[..close] });
        }
    }
}

/// Where a tag ends: the first `>` outside quotes.
fn end_of_tag(tag: &str) -> Option<usize> {
    let mut quote = None;
    for (at, c) in begin(tag, MOST_TAG).char_indices() {
        match (quote, c) {
            (None, '>') => return Some(at),
            (None, '"' | '\'') => quote = Some(c),
            (Some(open), c) if open == c => quote = None,
            _ => {}
        }
    }
    // A quote that is never closed.
    tag.find('>')
}

/// The first bytes of a text: what looks further than this does so for every tag of a page.
fn begin(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

impl Element<'_> {
    fn attribute(&self, name: &str) -> Option<&str> {
        let mut rest = self.tag;
        loop {
            let at = rest.find(name)?;
            let before = rest[..at].chars().next_back();
            let after = rest[at + name.len()..].trim_start();
            rest = &rest[at + name.len()..];
            let Some(value) = after.strip_prefix('=').map(str::trim_start) else { continue };
            if before.is_some_and(|c| !c.is_whitespace() && c != '"' && c != '\'') {
                continue;
            }
            let quote = value.chars().next().filter(|c| matches!(c, '"' | '\''));
            return match quote {
                Some(quote) => value[1..].split(quote).next(),
                None => value.split(|c: char| c.is_whitespace() || c == '>').next(),
            };
        }
    }
}

/// Words without tags and entities.
fn plain(html: &str) -> String {
    let mut text = String::new();
    let mut rest = begin(html, MOST_WORDS);
    while let Some(open) = rest.find('<') {
        // `a < b` is no tag.
        let is_tag = rest[open + 1..].starts_with(|c: char| c.is_ascii_alphabetic() || c == '/' || c == '!');
        match is_tag.then(|| rest[open..].find('>')) {
            Some(Some(end)) => {
                text.push_str(&rest[..open]);
                rest = &rest[open + end + 1..];
            }
            // No tag ends behind this one either.
            Some(None) => break,
            None => {
                text.push_str(&rest[..=open]);
                rest = &rest[open + 1..];
            }
        }
    }
    text.push_str(rest);
    entities(&text)
}

fn entities(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        let end = rest.char_indices().take(12).find(|(_, c)| *c == ';').map(|(at, _)| at);
        let meant = end.and_then(|end| {
            let name = &rest[1..end];
            let number = name.strip_prefix('#').and_then(|number| match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok(),
                None => number.parse().ok(),
            });
            let c = match name {
                "amp" => Some('&'),
                "lt" => Some('<'),
                "gt" => Some('>'),
                "quot" => Some('"'),
                "apos" => Some('\''),
                "nbsp" => Some(' '),
                _ => number.and_then(char::from_u32),
            };
            c.map(|c| (c, end))
        });
        match meant {
            Some((c, end)) => {
                out.push(c);
                rest = &rest[end + 1..];
            }
            None => {
                out.push('&');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn found(title: &str, url: &str, snippet: &str) -> Found {
        Found { title: title.to_owned(), url: url.to_owned(), snippet: snippet.to_owned() }
    }

    /// A page as such pages are built, of our own making.
    const PAGE: &str = r#"<!DOCTYPE html><html><body><form action="/html/"><input name="q" value="a > b"></form>
<div class="result results_links result--ad"><h2><a rel="nofollow" class="result__a" href="https://duckduckgo.com/y.js?ad_domain=shop.test">Buy</a></h2></div>
<div class="result results_links web-result"><h2 class="result__title">
<a rel="nofollow" class="result__a" href="//duckduckgo.com/l/?uddg=https%3A%2F%2Fexample.org%2Fa%3Fx%3D1%26y%3D2&amp;rut=abc">Fish &amp; <b>crabs</b></a></h2>
<a class="result__snippet" href="//duckduckgo.com/l/?uddg=x">All about <b>crabs</b> &lt;3 &#39;n&#x27; more</a></div>
<div class='result'><a class='result-link' href='https://example.net/'>Second</a><td class='result-snippet'>2 < 3</td></div>
</body></html>"#;

    #[test]
    fn pages_without_scripts_are_read() {
        assert_eq!(
            duckduckgo(PAGE),
            Some(vec![
                found("Fish & crabs", "https://example.org/a?x=1&y=2", "All about crabs <3 'n' more"),
                found("Second", "https://example.net/", "2 < 3"),
            ])
        );
        assert_eq!(duckduckgo("<html><div class=\"no-results\">nothing</div>"), Some(Vec::new()));
        assert_eq!(duckduckgo("<form id=\"challenge-form\"><div class=\"anomaly-modal__title\">"), None);
    }

    #[test]
    fn answers_of_the_services_are_read() {
        let searxng_body = json!({"query": "x", "results": [
            {"title": "A <b>b</b>", "url": "https://a.test/?q=1&lt=2", "content": "text &amp; more", "engine": "x"},
            {"url": "https://b.test/"}, 7]});
        assert_eq!(
            searxng(&searxng_body),
            Some(vec![
                found("A b", "https://a.test/?q=1&lt=2", "text & more"),
                found("", "https://b.test/", ""),
                Found::default()
            ])
        );
        let brave_body = json!({"type": "search", "web": {"results": [{"title": "T", "url": "https://a.test", "description": "<strong>D</strong>"}]}});
        assert_eq!(brave(&brave_body), Some(vec![found("T", "https://a.test", "D")]));
        assert_eq!(brave(&json!({"type": "search"})), Some(Vec::new()));
        let tavily_body = json!({"results": [{"title": "T", "url": "https://a.test", "content": "C", "score": 0.9}]});
        assert_eq!(tavily(&tavily_body), Some(vec![found("T", "https://a.test", "C")]));
        for wrong in [json!({}), json!([]), json!({"results": "x"}), json!(null)] {
            assert!(searxng(&wrong).is_none() && tavily(&wrong).is_none() && brave(&wrong).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_page_made_to_be_read_for_ever_is_read() {
        // Each of a million tags would be looked for to the end of the page.
        for piece in ["<a>", "<a \"", "<a '>", "<b", "<", "&#", "<a class=\"result__a\" href=x>"] {
            let page = piece.repeat((4 << 20) / piece.len());
            let found = duckduckgo(&page).expect("a page");
            assert!(found.len() <= MOST_FOUND, "{piece}: {}", found.len());
            let body = json!({"results": [{"title": page, "url": "https://a.test", "content": page}]});
            assert!(searxng(&body).expect("an answer")[0].title.len() <= MOST_WORDS, "{piece}");
        }
        let long = format!("<a class=\"result__a\" href=\"https://a.test/\">{}é</a>", "y".repeat(MOST_INNER - 1));
        assert_eq!(duckduckgo(&long).expect("a page"), [found("", "https://a.test/", "")]);
    }

    proptest! {
        #[test]
        fn no_page_panics(page in "(<a|class=|\"|'|result__a|href=|>|</a>|&|#|;|x|é|<| ){0,60}") {
            let _ = duckduckgo(&page);
        }
    }
}
