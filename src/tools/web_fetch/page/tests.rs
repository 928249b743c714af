//! Pages written for these tests, and what is left of them; and pages made to hurt the reader.

use super::*;

const ARTICLE_PAGE: &str = r##"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>How crayfish moult &amp; grow</title>
<style>p { color: red }</style><script>var secret = "<p>not a paragraph</p>";</script></head>
<body><nav><a href="/">Home</a> <a href="/about">About</a></nav>
<article><h1>How crayfish moult</h1>
<p>A crayfish wears its skeleton outside, so it has to leave it behind to grow. Young animals do this every few
weeks, older ones once or twice a year, and each time they take up water to stretch the new, soft shell.</p>
<!-- <p>A comment.</p> -->
<h2>What to watch for</h2>
<ul><li>It stops eating a day or two before.</li><li>It hides, because the <b>new shell</b> is soft.</li></ul>
<p>Leave the old shell in the tank: the animal eats it for its chalk. See <a href="/chalk?x=1&amp;y=2">the page on
chalk</a> for the details, and never help by pulling, since that tears off legs.</p>
<table><tr><th>Age</th><th>Moults a year</th></tr><tr><td>young</td><td>10</td></tr><tr><td>old</td><td>2</td></tr></table>
<pre><code>if soft { hide(); }</code></pre>
</article><footer>Imprint</footer></body></html>"##;

#[test]
fn an_article_becomes_markdown() {
    let page = readable(ARTICLE_PAGE, "https://example.org/moult", Form::Markdown);
    assert_eq!(page.title, "How crayfish moult & grow");
    for part in [
        "## What to watch for",
        "It stops eating a day or two before.",
        "because the new shell is soft.",
        "[the page on chalk](https://example.org/chalk?x=1&y=2)",
        "| young | 10 |",
        "if soft { hide(); }",
    ] {
        assert!(page.text.contains(part), "{part} is missing in:\n{}", page.text);
    }
    for gone in ["color: red", "secret", "A comment", "About", "<"] {
        assert!(!page.text.contains(gone), "{gone} is in:\n{}", page.text);
    }
    let text = readable(ARTICLE_PAGE, "https://example.org/moult", Form::Text).text;
    assert!(text.contains("See the page on chalk for the details") && !text.contains("]("), "{text}");
}

#[test]
fn a_page_without_an_article_is_shown_whole() {
    let page = readable(
        "<html><head><title>Status</title></head><body><div>All <i>green</i></div><div>北京 25°C</div></body></html>",
        "https://example.org/",
        Form::Markdown,
    );
    assert_eq!((page.title.as_str(), page.text.as_str()), ("Status", "All green\n\n北京 25°C"));
    let list: String = (0..40).map(|n| format!("<li><a href='/{n}'>Story {n}</a>")).collect();
    let page = readable(&format!("<ul>{list}</ul>"), "https://example.org/", Form::Markdown);
    assert!(page.text.contains("Story 0") && page.text.contains("Story 39"), "{}", page.text);
    for nothing in ["", "<html><body><script>render()</script><div id=app></div></body></html>", "<!-- -->", "<"] {
        let page = readable(nothing, "https://example.org/", Form::Markdown);
        assert!(page.text.is_empty() || page.text == "<" || page.text == "\\<", "{nothing}: {page:?}");
    }
}

#[test]
fn odd_markup_is_read_as_browsers_do() {
    let said = |html: &str| readable(html, "https://example.org/", Form::Text).text;
    assert_eq!(said("<p title='a > b'>one<p data-x=\"<p>\">two"), "one\n\ntwo");
    assert_eq!(said("<P>1 < 2 &amp;&amp; 3 > 2</P>"), "1 < 2 && 3 > 2");
    assert_eq!(said("a<br/>b<script>c</SCRIPT >d"), "a\nbd");
    assert_eq!(said("x<!doctype html><?php y ?>z"), "xz");
    assert_eq!(said("<div a = 'b' c=d/ =e f>text</div>"), "text");
    assert_eq!(said("text <a href=\"never ends"), "text");
    assert_eq!(said("text <!-- never ends"), "text");
    assert_eq!(said("<title>t</title><style>never ends"), "");
    assert_eq!(said("&#x4f60;&#22909; &lt;b&gt;"), "你好 <b>");
}

/// Each of these costs a careless parser minutes or gigabytes; here each ends, and what it says is still found.
#[test]
fn pages_made_to_hurt_are_read_in_bounds() {
    const MUCH: usize = 64 << 10;
    let filled = |unit: &str| unit.repeat(MUCH / unit.len());
    let numbered =
        |unit: &str| (0..MUCH / (unit.len() + 6)).map(|n| unit.replace('#', &n.to_string())).collect::<String>();
    for (name, html) in [
        ("deep", filled("<div>")),
        ("deep lists", filled("<ul><li>")),
        ("deep quotes", filled("<blockquote>")),
        ("deep tables", filled("<table><tr><td>")),
        ("formatting", numbered("<b id=#>") + &filled("<p>x")),
        ("formatting in disguise", filled("<b><table><td></b></table>") + &filled("<p>x")),
        ("links", filled("<a href=x>")),
        ("links and code", filled("<a><code><div></a></code>")),
        ("disguised depth", filled("<div><table><td></div></table>")),
        ("half disguised depth", "<div><table><td></div></table>".repeat(3_000)),
        ("attributes", format!("<p {}>x</p>", numbered(" a#"))),
        ("same attributes", format!("<p {}>x</p>", filled(" id"))),
        ("quoted attributes", format!("<p {}>x</p>", filled(" a='b'"))),
        ("open angle brackets", filled("<")),
        ("open tags", filled("<a ")),
        ("comments", filled("<!--")),
        ("ends", filled("</")),
        ("unknown ends", filled("</x>")),
        ("scripts", filled("<script>")),
        ("entities", filled("&amp;")),
        ("half entities", filled("&")),
        ("forms", filled("<form><input><select><option>")),
        ("tables in cells", "<table><tr><td>".repeat(150) + &"<p>x</table>".repeat(2_500)),
        ("more tags than the parser gets", "<p>x".repeat(TAGS + 1)),
        ("svg", filled("<svg><foreignObject>")),
        ("words", filled("word ")),
        ("zeros", filled("\0")),
        ("multi-byte", filled("<é ü='ö'>")),
    ] {
        let html = format!("<body><p>the beginning</p>{html}");
        let page = readable(&html, "https://example.org/", Form::Markdown);
        assert!(page.text.contains("the beginning"), "{name}");
        assert!(page.text.len() <= 3 * MUCH, "{name}: {}", page.text.len());
    }
}

/// A whole download of them kept a thread busy for more than half an hour.
#[test]
fn two_mebibytes_of_signs_that_are_escaped_are_read_in_bounds() {
    for sign in ["&", "\u{a1}", "&amp;"] {
        let html = format!("<body><p>the beginning</p><p>{}</p>", sign.repeat((2 << 20) / sign.len()));
        let page = readable(&html, "https://example.org/", Form::Markdown);
        assert!(page.text.contains("the beginning"), "{sign}");
    }
}

mod any_text {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn is_read_without_a_panic(
            html in "(</?(a|p|b|table|td|ul|li|code|pre|title|script|svg|div)( [a-z]{1,4}=(\"[^\"]{0,4}\"|'é'|[a-z/]{0,3}))?/?>|[a-zé<>&;!/'\" -]{0,6}){0,40}",
        ) {
            readable(&html, "https://example.org/", Form::Markdown);
            readable(&html, "https://example.org/", Form::Text);
        }
    }
}
