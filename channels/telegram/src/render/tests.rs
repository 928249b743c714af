//! Markdown in, messages out; and whatever comes in, what Telegram would refuse does not come out.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn html(text: &str) -> Vec<String> {
    let parts = render(&Reply::message(text), Level::Rich);
    parts.iter().map(|part| part.body["html"].as_str().expect("HTML").to_owned()).collect()
}

fn plain(text: &str) -> Vec<String> {
    let parts = render(&Reply::message(text), Level::Plain);
    assert!(parts.iter().all(|part| part.body.get("html").is_none()));
    parts.into_iter().map(|part| part.text).collect()
}

#[test]
fn markdown_becomes_html() {
    let table = [
        // What is no markup stays as it is.
        ("a < b && c > \"d\"", "a &lt; b &amp;&amp; c &gt; &quot;d&quot;"),
        ("<b>tag</b> and <u>x</u>", "&lt;b&gt;tag&lt;/b&gt; and &lt;u&gt;x&lt;/u&gt;"),
        ("<div>\nblock\n</div>", "&lt;div&gt;\nblock\n&lt;/div&gt;"),
        ("<!-- c -->", "&lt;!-- c --&gt;"),
        ("one<br>two", "one\ntwo"),
        ("half **open _markup `here", "half **open _markup `here"),
        ("\\*no\\* 1 \\< 2", "*no* 1 &lt; 2"),
        ("2*3*4 and snake_case_name", "2*3*4 and snake_case_name"),
        ("3~5天，10~20元", "3~5天，10~20元"),
        ("$x_1$ and $$y$$", "$x_1$ and $$y$$"),
        ("&lt;b&gt; &copy;", "&lt;b&gt; ©"),
        ("#", "#"),
        ("**", "**"),
        ("a\u{0}b\u{7}c\r\nd\u{1b}[0m", "a\u{FFFD}bc\nd[0m"),
        // Within lines.
        ("**bold** *it* _it_ ~~gone~~ `a<b`", "<b>bold</b> <i>it</i> <i>it</i> <s>gone</s> <code>a&lt;b</code>"),
        ("***both*** **a *b* c**", "<b><i>both</i></b> <b>a <i>b</i> c</b>"),
        ("**重点：**内容，**另一个：**内容。", "<b>重点：</b>内容，<b>另一个：</b>内容。"),
        ("这是**“重点”**内容", "这是<b>“重点”</b>内容"),
        ("**a\nb**", "<b>a</b>\n<b>b</b>"),
        ("**b `c` b**", "<b>b </b><code>c</code><b> b</b>"),
        (
            "it is ||42||. 答案是||四十二||。",
            "it is <tg-spoiler>42</tg-spoiler>. 答案是<tg-spoiler>四十二</tg-spoiler>。",
        ),
        ("a || b || c, x||y||z", "a || b || c, x||y||z"),
        ("👩‍👩‍👧‍👦 **👍🏽** 数据", "👩‍👩‍👧‍👦 <b>👍🏽</b> 数据"),
        // Links.
        ("[l](https://e.com/?b=1&c=\"2\")", "<a href=\"https://e.com/?b=1&amp;c=&quot;2&quot;\">l</a>"),
        ("[**b** `c`](tg://resolve?domain=x)", "<a href=\"tg://resolve?domain=x\"><b>b</b> c</a>"),
        ("[bad](javascript:alert(1)) [rel](./a.md)", "bad (javascript:alert(1)) rel (./a.md)"),
        (
            "<https://e.com> <me@e.com>",
            "<a href=\"https://e.com\">https://e.com</a> <a href=\"mailto:me@e.com\">me@e.com</a>",
        ),
        ("![alt](https://i.com/x.png)", "<a href=\"https://i.com/x.png\">alt</a>"),
        ("![](https://i.com/y.png)", "<a href=\"https://i.com/y.png\">https://i.com/y.png</a>"),
        ("[![badge](https://i/x)](https://y)", "<a href=\"https://y\">badge</a>"),
        (
            "see [1]\n\n[1]: https://one.com\n[1]: https://again.com",
            "see <a href=\"https://one.com\">1</a>\n\n[1]: https://one.com\n[1]: https://again.com",
        ),
        // Blocks.
        ("# 标题\n正文\n\n## Two **b**\n\ntext", "<b>标题</b>\n正文\n\n<b>Two b</b>\n\ntext"),
        ("one\ntwo  \nthree\n\n\n\nfour", "one\ntwo\nthree\n\nfour"),
        ("text\n- a\n- **b**\n  - c\n    - d\n- e", "text\n• a\n• <b>b</b>\n  ◦ c\n    ▪ d\n• e"),
        ("3. c\n4. d\n   more\n   1. x", "3. c\n4. d\n  more\n  1. x"),
        ("- [ ] todo\n- [x] done", "☐ todo\n☑ done"),
        ("- - a\n  - b", "• ◦ a\n  ◦ b"),
        ("> one\n> two\n>\n> **three**\n\nafter", "<blockquote>one\ntwo\n\n<b>three</b></blockquote>\n\nafter"),
        ("> > in\n\n> other", "<blockquote>&gt; in</blockquote>\n\n<blockquote>other</blockquote>"),
        ("- > **b** in quote\n- x", "<blockquote>• <b>b</b> in quote</blockquote>\n• x"),
        (
            "```rust\nlet a = \"<x>\";\n\n  b\n```\nafter",
            "<pre><code class=\"language-rust\">let a = &quot;&lt;x&gt;&quot;;\n\n  b</code></pre>\nafter",
        ),
        ("```c++ title=\"x\"\n\"`\n```", "<pre><code class=\"language-c++\">&quot;`</code></pre>"),
        ("```\"onclick\nx\n```", "<pre>x</pre>"),
        ("```\nopen **x**", "<pre>open **x**</pre>"),
        ("    indented\n      code", "<pre>indented\n  code</pre>"),
        ("- a\n  ```sh\n  ls\n  ```\n- b", "• a\n<pre><code class=\"language-sh\">ls</code></pre>\n• b"),
        ("a\n\n---\n\nb", "a\n\n———\n\nb"),
        (
            "| 名字 | n |\n|---|--:|\n| 张三 | 1 |\n| **Bob** | 22 | more |",
            "<pre>名字 |  n\n-----+----+-----\n张三 |  1\nBob  | 22 | more</pre>",
        ),
        ("| a |\n|---|\n| [l](http://q) `x<y` |", "<pre>a\n----------------\nl (http://q) x&lt;y</pre>"),
    ];
    for (source, expected) in table {
        assert_eq!(html(source), [expected], "{source:?}");
        check(&Reply::message(source));
    }
}

#[test]
fn plain_text_has_no_marks_where_markdown_was_understood() {
    let table = [
        (
            "# T\n**bold** `code` ~~x~~ [l](https://e.com) <https://e.com/>",
            "T\nbold code x l (https://e.com) https://e.com/",
        ),
        ("> a\n> b\n\n- c\n  - d", "> a\n> b\n\n• c\n  ◦ d"),
        ("```py\nx = '**'\n```", "x = '**'"),
        ("**重点：**内容", "重点：内容"),
    ];
    for (source, expected) in table {
        assert_eq!(plain(source), [expected], "{source:?}");
    }
}

#[test]
fn the_contract_of_rendering_is_kept() {
    let token = "123456789:AAF0_ak-8s7dHqXyZ1234567890abcdefgh";
    let config = toml::from_str(&format!("token = '{token}'")).expect("a config");
    let channel = crate::Telegram::new("main", &config, &channel_socket::Network::new(None, None).expect("a network"))
        .expect("a channel");
    channel_api::contract::check_render(&channel);
}

#[test]
fn nothing_makes_no_message() {
    for text in ["", " \n\t", "\u{7}", "\n\n\n"] {
        assert_eq!(render(&Reply::message(text), Level::Rich), [], "{text:?}");
    }
}

#[test]
fn a_quote_belongs_to_the_first_part() {
    let reply = Reply { quote: Some("7".to_owned()), ..Reply::message("word ".repeat(2_000)) };
    let parts = render(&reply, Level::Rich);
    let quotes: Vec<_> = parts.iter().map(|part| part.body.get("quote").and_then(Value::as_str)).collect();
    assert_eq!(quotes, [Some("7"), None, None]);
}

#[test]
fn an_answer_of_4097_units_with_everything_in_it_arrives_whole() {
    let head =
        "# 结果 👩‍👩‍👧‍👦\n\n> quoted **bold *both* `code`** 👍🏽\n\n- one\n  - **two [link](https://example.com/a_(b))**\n\n";
    let code = "    let 数 = \"😀\";\n".repeat(200);
    // The code block stands across the limit, and the whole shows one unit more than one message may.
    let text = |fill: usize| format!("{head}{}\n\n```rust\n{code}```", "字".repeat(fill));
    let units = |text: &str| {
        let (text, _) = markdown::read(text);
        TextUnit::Utf16.len(text.as_str())
    };
    let text = text(TEXT_LIMIT + 1 - units(&text(1)) + 1);
    assert_eq!(units(&text), TEXT_LIMIT + 1);
    let parts = html(&text);
    assert_eq!(parts.len(), 2);
    assert!(parts[0].ends_with("</code></pre>"), "{:?}", parts[0]);
    assert!(parts[1].starts_with("<pre><code class=\"language-rust\">    let"), "{:?}", parts[1]);
    check(&Reply::message(&text));
    let shown: String = parts.iter().map(|part| shown(part)).collect();
    assert_eq!(shown.matches("    let 数 = \"😀\";").count(), 200);
    assert!(shown.contains("👩‍👩‍👧‍👦") && shown.contains(&"字".repeat(100)));
    // One unit less is one message.
    assert_eq!(html(&text.replacen("字", "", 1)).len(), 1);
}

#[test]
fn markup_is_closed_at_a_cut_and_opened_again() {
    let inner = ["word"; 900].join(" ");
    let parts = html(&format!("- > **{inner}**"));
    assert_eq!(parts.len(), 2);
    assert!(parts[0].starts_with("<blockquote>• <b>word ") && parts[0].ends_with(" word</b></blockquote>"));
    assert!(parts[1].starts_with("<blockquote><b>word ") && parts[1].ends_with(" word</b></blockquote>"));
    let lines: Vec<String> = (0..600).map(|n| format!("    line({n});")).collect();
    let parts = html(&format!("```js\n{}\n```", lines.join("\n")));
    let open = "<pre><code class=\"language-js\">";
    let code: Vec<&str> = parts.iter().map(|part| part.strip_prefix(open).expect("opened")).collect();
    let code: Vec<&str> = code.iter().map(|part| part.strip_suffix("</code></pre>").expect("closed")).collect();
    assert!(code.len() > 1);
    assert_eq!(code.join("\n").lines().collect::<Vec<_>>(), lines);
}

#[test]
fn a_link_is_not_cut() {
    for before in 4_060..4_096 {
        let text = format!("{} [two words](https://example.com/a?b=(c)) after", "x".repeat(before));
        let parts = plain(&text);
        assert!(parts.iter().any(|part| part.contains("two words (https://example.com/a?b=(c))")), "{before}");
        check(&Reply::message(&text));
    }
}

#[test]
fn too_much_is_cut_after_ten_messages_and_says_so() {
    for (text, said) in [
        ("word ".repeat(200_000), "The answer is too long"),
        ("很长的回答。".repeat(200_000), "回答太长"),
        ((0..50_000).map(|n| format!("{n}\n")).collect(), "the rest was not sent"),
        ("x".repeat(1_000_000), "too long"),
        (format!("```\n{}```", "x\n".repeat(100_000)), "too long"),
        ("|a|b|\n|-|-|\n".to_owned() + &"|1|2|\n".repeat(100_000), "too long"),
    ] {
        let parts = plain(&text);
        assert!(parts.len() >= MOST_PARTS - 1, "{}", parts.len());
        assert!(parts.last().is_some_and(|part| part.contains(said)), "{:?}", parts.last());
        check(&Reply::message(&text));
    }
    assert_eq!(plain(&("a".to_owned() + &"\n".repeat(50_000) + "b")), ["a\n\nb"]);
}

#[test]
fn hostile_shapes_end() {
    let size = 128 * 1024;
    for unit in [
        "> ",
        "- ",
        "* ",
        "[",
        "![",
        "](",
        "**a",
        "*a ",
        "_",
        "`",
        "||",
        "~~",
        "<a ",
        "|",
        "\n",
        "a\n",
        "[a]: b\n",
        "&#1;",
        "e\u{301}",
        "\u{301}",
        "1. ",
        "\\",
        "- a\n",
        "> > a\n",
        "```\n",
        "|a|\n|-|\n",
        "👩‍",
        "[a](b)",
        "**a** ",
        "# ",
        "<!--",
        "$",
        "字",
    ] {
        let text = unit.repeat(size / unit.len());
        assert!(!render(&Reply::message(&text), Level::Rich).is_empty() || text.trim().is_empty(), "{unit:?}");
    }
}

fn file(source: MediaSource) -> Attachment {
    Attachment {
        kind: channel_api::AttachmentKind::File,
        media: Some(channel_api::MediaRef { source, mime: None, size: None }),
        name: Some("/etc/re[port]*.pdf".to_owned()),
        unavailable: None,
    }
}

fn body(part: &Part) -> Body {
    Body::deserialize(&part.body).expect("one of ours")
}

#[test]
fn one_file_takes_a_short_text_with_it_and_more_follow_the_text() {
    let one = file(MediaSource::Stored("m".to_owned()));
    let linked = file(MediaSource::Url("https://e.com/f".to_owned()));
    let reply = Reply { attachments: vec![one.clone()], ..Reply::message("**here**:") };
    let parts = render(&reply, Level::Rich);
    assert_eq!(parts.len(), 1);
    let first = body(&parts[0]);
    assert_eq!((parts[0].text.as_str(), first.html.as_deref(), first.caption), ("here:", Some("<b>here</b>:"), true));
    assert_eq!(first.file, Some(one.clone()));

    let reply = Reply { attachments: vec![one.clone(), linked], ..reply };
    for level in [Level::Rich, Level::Plain] {
        let parts = render(&reply, level);
        let texts: Vec<_> = parts.iter().map(|part| part.text.as_str()).collect();
        assert_eq!(texts, ["here:", "[file: report.pdf]", "[file: report.pdf] https://e.com/f"]);
        assert!(parts[1..].iter().all(|part| body(part).file.is_some() && !body(part).caption));
    }
    let long = Reply { attachments: vec![one.clone()], ..Reply::message("x".repeat(CAPTION_LIMIT + 1)) };
    assert_eq!(render(&long, Level::Rich).len(), 2, "too long for a caption");
    let only = Reply { attachments: vec![one.clone()], ..Reply::message("") };
    let parts = render(&only, Level::Rich);
    assert_eq!((parts.len(), parts[0].text.as_str()), (1, "[file: report.pdf]"));
    // What is nowhere, and what is too much, is named.
    let mut attachments = vec![one; MOST_FILES + 1];
    attachments.push(Attachment { media: None, name: Some("../..".to_owned()), ..attachments[0].clone() });
    let parts = render(&Reply { attachments, ..Reply::message("all:") }, Level::Plain);
    assert_eq!(parts[0].text, "all:\n\n[file: report.pdf]\n\n[file: ?]");
    assert_eq!(parts.len(), 1 + MOST_FILES);
}

#[test]
fn buttons_stand_under_the_last_text_and_bad_ones_nowhere() {
    let button = |label: &str, data: &str| Button { label: label.to_owned(), data: data.to_owned() };
    let good = button("Yes", "/approve 1");
    let rows = vec![
        vec![good.clone(), button("", "x"), button("No data", "")],
        vec![button("Too long", &"x".repeat(65))],
        vec![button(&"长".repeat(100), "/deny 1")],
    ];
    let reply = Reply { buttons: rows, ..Reply::message("x".repeat(TEXT_LIMIT + 1)) };
    let parts = render(&reply, Level::Rich);
    assert!(body(&parts[0]).buttons.is_empty());
    let expected = vec![vec![good], vec![button(&"长".repeat(LABEL_CHARS), "/deny 1")]];
    assert_eq!(body(&parts[1]).buttons, expected);
}

/// What holds for every reply: every part fits, both levels are the same parts, and the HTML is what Telegram takes.
fn check(reply: &Reply) {
    let rich = render(reply, Level::Rich);
    let plain = render(reply, Level::Plain);
    let texts = |parts: &[Part]| parts.iter().map(|part| part.text.clone()).collect::<Vec<_>>();
    assert_eq!(texts(&rich), texts(&plain));
    assert!(rich.len() <= MOST_PARTS);
    for part in &rich {
        let units = TextUnit::Utf16.len(&part.text);
        assert!(units <= TEXT_LIMIT, "{units} units");
        assert!(!part.text.trim().is_empty());
        let html = part.body["html"].as_str().expect("HTML");
        assert!(html.len() <= 40 * 1024, "{} bytes of HTML", html.len());
        let seen = shown(html);
        assert!(!seen.trim().is_empty(), "nothing to see in {html:?}");
        // What tags show is the plain text without the addresses and the marks of quotes.
        let mut rest = part.text.chars();
        for wanted in seen.chars() {
            assert!(rest.any(|c| c == wanted), "{wanted:?} of {seen:?} is not in {:?}", part.text);
        }
    }
}

/// What Telegram shows of HTML.
///
/// # Panics
/// When Telegram would refuse it: a tag it does not know, one that is not closed in order, a stray `<`, `>` or `&`.
fn shown(html: &str) -> String {
    let tags: HashSet<&str> = ["b", "i", "s", "code", "pre", "a", "blockquote", "tg-spoiler"].into();
    let mut open: Vec<&str> = Vec::new();
    let mut text = String::new();
    let mut rest = html;
    while let Some(c) = rest.chars().next() {
        if c == '<' {
            let (tag, after) = rest[1..].split_once('>').expect("a tag ends");
            if let Some(closed) = tag.strip_prefix('/') {
                assert_eq!(open.pop(), Some(closed), "{html:?}");
            } else {
                let (name, attribute) = tag.split_once(' ').unwrap_or((tag, ""));
                assert!(tags.contains(name), "<{tag}>");
                let value = attribute.strip_prefix("href=\"").or_else(|| attribute.strip_prefix("class=\"language-"));
                let value = value.and_then(|value| value.strip_suffix('"'));
                assert!(attribute.is_empty() || value.is_some_and(|value| !value.contains(['"', '<'])), "<{tag}>");
                assert!(!open.contains(&name), "{name} in {name}: {html:?}");
                assert!(!open.contains(&"code") && (!open.contains(&"pre") || name == "code"), "{html:?}");
                open.push(name);
            }
            rest = after;
        } else if c == '&' {
            let entities = [("&amp;", '&'), ("&lt;", '<'), ("&gt;", '>'), ("&quot;", '"')];
            let (entity, c) = entities.into_iter().find(|(entity, _)| rest.starts_with(entity)).expect("an entity");
            text.push(c);
            rest = &rest[entity.len()..];
        } else {
            assert!(c != '>', "{html:?}");
            text.push(c);
            rest = &rest[c.len_utf8()..];
        }
    }
    assert_eq!(open, [""; 0], "left open in {html:?}");
    text
}

/// Pieces of Markdown in any order: what makes sense and what does not.
fn soup() -> impl Strategy<Value = String> {
    let marks: &'static [&str] = &[
        "**",
        "*",
        "_",
        "__",
        "~~",
        "~",
        "`",
        "``",
        "\n```rust\n",
        "\n```\n",
        "\n",
        "\n\n",
        "\n- ",
        "\n  - ",
        "\n1. ",
        "\n> ",
        "\n> > ",
        "\n# ",
        "\n| a | b |\n|---|:-:|\n| ",
        " | ",
        " |\n",
        "[",
        "](https://e.com/x) ",
        "](",
        ")",
        "![",
        "](x) ",
        "<b>",
        "<br>",
        "</i>",
        "<",
        ">",
        "&amp;",
        "&",
        "\"",
        "||",
        "\n[a]: http://b\n",
        "[a]",
        "\\",
        "    ",
        "\t",
        "\r\n",
        "- [x] ",
        "\n---\n",
        "“",
        "：",
        "。",
        "\u{0}",
        "\u{7}",
        "\u{FEFF}",
        "\u{F101}",
        "👩‍👩‍👧‍👦",
        "e\u{301}\u{302}",
        "字",
        " ",
        "word",
        "a\u{200D}",
        "<https://e.com>",
    ];
    let piece = prop_oneof![
        12 => proptest::sample::select(marks).prop_map(str::to_owned),
        3 => "[a-z]{1,12} ",
        1 => any::<char>().prop_map(String::from),
        1 => (1_usize..1_500).prop_map(|n| "long ".repeat(n)),
    ];
    proptest::collection::vec(piece, 0..80).prop_map(|pieces| pieces.concat())
}

/// Paragraphs, lists, quotes, tables and code of words that are all different, and those words.
fn document() -> impl Strategy<Value = (String, Vec<String>)> {
    let kinds = prop_oneof![Just(0), Just(1), Just(2), Just(3), Just(4), Just(5), Just(6)];
    proptest::collection::vec((kinds, 1_usize..200), 1..8).prop_map(|blocks| {
        let mut words = Vec::new();
        let mut text = String::new();
        for (kind, count) in blocks {
            let from = words.len();
            words.extend((from..from + count).map(|n| format!("w{n}词")));
            let new = &words[from..];
            let rows =
                |prefix: &str| new.chunks(5).map(|row| format!("{prefix}{}\n", row.join(" "))).collect::<String>();
            text.push_str(&match kind {
                0 => format!("{}\n\n", new.join(" ")),
                1 => format!("**{}**\n\n", new.join(" ")),
                2 => format!("```rust\n{}```\n\n", rows("    ")),
                3 => format!("{}\n", rows("- ")),
                4 => format!("{}\n", rows("> ")),
                5 => format!(
                    "|{}|\n|---|\n{}\n",
                    new[0],
                    new[1..].iter().map(|word| format!("|{word}|\n")).collect::<String>()
                ),
                _ => new.iter().map(|word| format!("[{word}](https://e.com/?x=y) ")).collect::<String>() + "\n\n",
            });
        }
        (text, words)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_comes_in_fits_and_is_good_html(text in soup()) {
        check(&Reply::message(text));
    }

    #[test]
    fn every_word_arrives_once_and_in_order((text, words) in document()) {
        let parts = render(&Reply::message(&text), Level::Rich);
        check(&Reply::message(&text));
        let seen: Vec<String> = parts.iter().map(|part| shown(part.body["html"].as_str().expect("HTML"))).collect();
        let seen = seen.join("\n");
        let found: Vec<&str> = seen.split(|c: char| !c.is_alphanumeric()).filter(|word| word.starts_with('w')).collect();
        if parts.len() < MOST_PARTS {
            prop_assert_eq!(found, words);
        } else {
            prop_assert!(found.len() > 100 && words.starts_with(&found.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>()));
        }
    }
}

#[test]
fn row_31_more_than_five_people_are_not_named() {
    let crowd: String = (0..9).map(|n| format!("@person{n} ")).collect();
    let linked = |text: &str| text.matches('@').count();
    assert_eq!((linked(&html(&crowd)[0]), linked(&plain(&crowd)[0])), (5, 5));
    assert!(plain(&crowd)[0].contains("＠person8"), "and it is still read");
    // Code and addresses name nobody.
    let code = format!("```py\n{}```\nmail a@example.org", "@property\n".repeat(9));
    assert_eq!(linked(&html(&code)[0]), 10);
    // A link to a person would notify them.
    assert!(!html("[x](tg://user?id=42) [y](TG:user?id=1)")[0].contains("<a "));
}

#[test]
fn row_32_no_markup_of_a_model_is_telegrams() {
    let long = format!("{}**{}", "a".repeat(TEXT_LIMIT - 3), "👩‍👩‍👧".repeat(40));
    for text in [
        "<a href=\"tg://user?id=1\"><a href=\"https://e.test\">x</a></a>",
        "<b>open <i>never closed",
        "`<b>` and ```\n<script>\n```",
        "</pre></code><a href='https://e.test'>",
        "[x](https://e.test/\"onclick=\"a)",
        long.as_str(),
    ] {
        for piece in html(text) {
            assert!(TextUnit::Utf16.len(&piece.replace("<b>", "").replace("</b>", "")) <= TEXT_LIMIT + 200);
            for evil in ["<script", "<a href='", "<a href=\"tg:", "onclick=\"", "<a href=\"https://e.test\">x</a></a>"]
            {
                assert!(!piece.contains(evil), "{evil} in {piece}");
            }
            for tag in ["a", "b", "i", "code", "pre"] {
                let opened = piece.matches(&format!("<{tag}>")).count() + piece.matches(&format!("<{tag} ")).count();
                assert_eq!(opened, piece.matches(&format!("</{tag}>")).count(), "{tag} in {piece}");
            }
        }
    }
}
