use proptest::prelude::*;

use super::*;

#[test]
fn what_discord_does_not_show_is_written_as_it_does() {
    let source = "# Title\n#### Small ##\n---\n- [ ] open\n- [x] done\n![a cat](https://example.org/cat.png)\n\n\
                  | name | 数量 |\n|:--|--:|\n| **crab** | 2 |\n| a \\| b | `10` |\nafter\n~~~rust,ignore\nlet x = 1;\n~~~";
    let expected = "# Title\n**Small**\n———\n☐ open\n☑ done\na cat <https://example.org/cat.png>\n\n\
                    ```\nname  | 数量\n------+-----\ncrab  | 2\na | b | 10\n```\nafter\n```\nlet x = 1;\n```";
    assert_eq!(laid_out(source), expected);
    let code = "```md\n# not a title\n| a | b |\n|---|---|\n---\n```";
    assert_eq!(laid_out(code), code);
    assert_eq!(laid_out("a | b\nno table"), "a | b\nno table");
    assert_eq!(
        laid_out("**bold** _leaning_ ~~gone~~ ||hidden|| > quote"),
        "**bold** _leaning_ ~~gone~~ ||hidden|| > quote"
    );
}

/// 4,097 units with emoji, nested lists, and code across the limit.
fn long_answer() -> String {
    let mut text = String::from("# 计划 🦞\n\n1. first\n   - nested 👩‍👩‍👧‍👦\n     - deeper 🇨🇳\n2. second\n\n");
    while text.encode_utf16().count() < 700 {
        text.push_str("A sentence of the answer, 还有一句中文。");
    }
    text.push_str("\n\n```rust\n");
    while text.encode_utf16().count() < 2_600 {
        text.push_str("let crab = claw + 1; // 🦀\n");
    }
    text.push_str("```\n\n");
    while text.encode_utf16().count() < 4_097 {
        text.push('尾');
    }
    text
}

#[test]
fn an_answer_of_4097_units_arrives_whole_and_well_formed() {
    let source = long_answer();
    assert_eq!(source.encode_utf16().count(), 4_097);
    let parts = render(&Reply::message(source.clone()), Level::Rich);
    assert_eq!(parts.len(), 3);
    for part in &parts {
        assert!(TextUnit::Utf16.len(&part.text) <= TEXT_LIMIT);
        assert_eq!(part.text.matches("```").count() % 2, 0, "fences are closed: {}", part.text);
    }
    assert!(parts[0].text.starts_with("# 计划 🦞\n\n1. first\n   - nested 👩‍👩‍👧‍👦\n     - deeper 🇨🇳\n2. second"));
    assert!(parts[0].text.ends_with("\n```"));
    assert!(parts[1].text.starts_with("```rust\nlet crab = claw + 1; // 🦀\n"));
    assert!(parts[2].text.ends_with('尾'));
    let joined: String = parts.iter().map(|part| part.text.replace("```rust", "").replace("```", "")).collect();
    let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    assert_eq!(letters(&joined), letters(&source.replace("```rust", "").replace("```", "")));
}

#[test]
fn an_answer_without_end_is_cut_and_says_so() {
    let parts = render(&Reply::message("word ".repeat(20_000)), Level::Rich);
    assert_eq!(parts.len(), MOST_PARTS + 1);
    assert_eq!(parts[MOST_PARTS].text, "(The answer is too long; the rest was not sent.)");
    let parts = render(&Reply::message("很长。".repeat(20_000)), Level::Rich);
    assert!(parts[parts.len() - 1].text.ends_with("（回答太长，后面的内容没有发送。）"));
}

#[test]
fn names_of_files_are_fit_for_a_message() {
    let named = |name: Option<&str>| {
        let media = channel_api::MediaRef {
            source: channel_api::MediaSource::Stored("x".into()),
            mime: Some("image/png".into()),
            size: None,
        };
        let kind = channel_api::AttachmentKind::Image;
        file_name(&Attachment { kind, media: Some(media), name: name.map(str::to_owned), unavailable: None })
    };
    assert_eq!(named(Some("../../etc/pass`wd\n@everyone")), "....etcpasswdeveryone");
    assert_eq!(named(Some("..")), "file.png");
    assert_eq!(named(None), "file.png");
    assert_eq!(named(Some("图 1.png")), "图 1.png");
}

proptest! {
    #[test]
    fn any_markdown_becomes_parts_that_fit(text in "(```|~~~|\\||-|#|!\\[|\\]\\(|\\)|\\*|`|\n| |a|龙|🦞|:){0,200}") {
        for level in [Level::Rich, Level::Plain] {
            for part in render(&Reply::message(text.clone()), level) {
                prop_assert!(!part.text.trim().is_empty() && TextUnit::Utf16.len(&part.text) <= TEXT_LIMIT);
            }
        }
    }
}

#[test]
fn row_31_row_15_nobody_is_notified_and_nothing_is_fetched_on_any_path() {
    use crate::send::no_mentions;

    // What Discord reads of a mention is `allowed_mentions`, and it is on every path by these.
    assert_eq!(no_mentions(), json!({ "parse": [], "replied_user": false }));
    let places = [include_str!("../send.rs"), include_str!("../live.rs"), include_str!("../interaction.rs")];
    for source in places {
        let sends = source.matches("\"content\":").count();
        assert!(sends > 0 && source.matches("\"allowed_mentions\":").count() >= sends, "a path without it");
    }
    for source in &places[..2] {
        assert!(source.contains("SUPPRESS_EMBEDS"));
    }
    // A picture is no picture.
    assert_eq!(laid_out("![](https://e.test/?d=x)"), "<https://e.test/?d=x>");
}
