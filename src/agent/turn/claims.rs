//! Finds an answer that claims to have changed something. A hint for the trace, never a reason to hold an answer back.
//!
//! Only what is said of the past as a fact is a claim: not what is denied, asked, wished, conditional or to come, and not
//! what is quoted or stands in code.

use std::sync::LazyLock;

use regex::Regex;

static CLAIM: LazyLock<Regex> = LazyLock::new(|| {
    const DONE: &str = "written|wrote|saved|created|updated|deleted|removed|edited|changed|sent|scheduled|installed|moved|\
                        renamed|stored|added|recorded|cancell?ed|copied|appended|uploaded|published|executed|set up|noted down|fixed";
    const TAT: &str = "写入|写好|保存|存好|创建|新建|更新|修改|删除|发送|发出|添加|加入|安装|设置|设好|移动|重命名|记录|记下|记住|安排|\
                       取消|复制|上传|发布|执行|整理|归档|追加";
    let pattern = [
        format!(r"(?i)\bI(?:'ve|’ve| have| just)?(?: also| just| already| now| successfully| gone ahead and)* (?:{DONE})\b"),
        format!(r"\b(?:has|have|was|were)(?: now| just| already)* been(?: successfully)? (?:{DONE})\b"),
        format!(r"\b(?:is|are|was|were)(?: now| already)*(?: successfully)? (?:{DONE})\b"),
        format!(r"\bsuccessfully (?:{DONE})\b"),
        r"(?:^|[.!:;\n]\s+|^[ \t]*[-*✅✓]+\s*)(?:Saved|Written|Created|Updated|Deleted|Removed|Sent|Scheduled|Added|Stored|Installed|Renamed)(?: it| them| (?:the|your) [^\n\t.,:;!?]{1,30})? (?:to|in|into|at|as|for|from)\b".to_owned(),
        format!(r"已(?:经|成功|为您|为你|帮您|帮你|给你|给您|全部|都)*(?:将\S{{1,20}}?|把\S{{1,20}}?)?(?:{TAT})"),
        format!(r"(?:我|帮您|帮你|替你|替您|给你|给您)(?:刚刚|刚才|都|已经)*(?:把\S{{1,20}}?)?(?:{TAT})(?:好|完|成)?了"),
        format!(r"(?:成功|顺利)(?:地)?(?:{TAT})"),
        format!(r"(?:{TAT})(?:成功|完成|完毕|好了|完了|到位)"),
        "(?:写|存|记|改|发|建|删|装|设|排|做)好了".to_owned(),
    ];
    compiled(&pattern.join("|"))
});

/// Before a claim in its clause: it is denied, conditional, wished or to come.
static NO_FACT: LazyLock<Regex> = LazyLock::new(|| {
    compiled(concat!(
        r"(?i)\b(?:not|never|nothing|no|cannot|if|once|when|whenever|unless|until|after|before|would|could|should|will|may|might|can|to be|whether|as soon as|want|suppose|imagine|nor|have I|did I|has it)\b|n't\b|n’t\b",
        r"|没|未|无法|不能|不会|并非|如果|假如|要是|若|是否|有没有|将会|会在|可以|能够|需要|想要|希望|一旦|等到|等我|之前|以便|即将|应该",
    ))
});

/// The ends of words are ASCII's: with Unicode's the engine falls back to its slow ways in any text that is not ASCII.
fn compiled(pattern: &str) -> Regex {
    Regex::new(&pattern.replace(r"\b", r"(?-u:\b)")).expect("a constant pattern, compiled by the test")
}

/// The words that claim an effect.
pub fn effect_claimed(text: &str) -> Option<&str> {
    CLAIM
        .find_iter(text)
        .map(|found| (found.start(), found.end()))
        .find(|&(start, end)| is_fact(text, start, end))
        .map(|(start, end)| text[start..end].trim_matches(|c: char| c.is_whitespace() || ".!:;-*✅✓".contains(c)))
}

fn is_fact(text: &str, start: usize, end: usize) -> bool {
    // A fence, and inline code or a quotation that opened in the same line.
    if !text[..start].matches("```").count().is_multiple_of(2) {
        return false;
    }
    let line = text[..start].rsplit('\n').next().unwrap_or("");
    let open = |pair: [char; 2]| line.matches(pair[0]).count() > line.matches(pair[1]).count();
    if open(['“', '”']) || open(['「', '」']) || open(['《', '》']) || in_pairs(line, '`') || in_pairs(line, '"')
    {
        return false;
    }
    let behind = &text[end..];
    // "已保存的文件", "the saved file".
    if behind.starts_with('的') || behind.starts_with("之前") || behind.starts_with('后') || behind.starts_with("之后")
    {
        return false;
    }
    let sentence_end = sentence_end(behind);
    let rest = behind[..sentence_end].trim_end();
    if rest.ends_with(['?', '？', '吗', '么']) || behind[sentence_end..].trim_start().starts_with(['?', '？']) {
        return false;
    }
    let clause = line.rsplit(['.', '!', '?', '。', '！', '？', ';', '；', ',', '，', '：']).next().unwrap_or("");
    // The pattern itself may begin with words of the clause; "I" is part of it, "Have I" is not.
    !NO_FACT.is_match(clause) && !NO_FACT.is_match(&text[start..end])
}

fn in_pairs(line: &str, sign: char) -> bool {
    !line.matches(sign).count().is_multiple_of(2)
}

/// Where the sentence ends; a dot inside a file's name does not end it.
fn sentence_end(text: &str) -> usize {
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let next = chars.peek().map(|(_, next)| *next);
        match c {
            '\n' | '!' | '。' | '！' | ';' | '；' | '?' | '？' => return at,
            '.' if next.is_none_or(char::is_whitespace) => return at,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found() {
        for text in [
            "I've saved the file.",
            "I have just created notes.md",
            "The file has been written.",
            "Sure. I saved it to notes.md for you.",
            "I also added milk to the list.",
            "I’ve gone ahead and deleted the old one.",
            "Your reminder is now scheduled for nine.",
            "Both files were successfully renamed.",
            "Done! Saved it to notes.md.",
            "✅ Created the folder in reports.",
            "I did not find a list, so I created one.",
            "The e-mail was sent.",
            "文件已保存。",
            "已经写入 a.md",
            "我保存了笔记",
            "已为您创建",
            "已经帮你把会议安排好了。",
            "我刚刚把这句话记录了下来，我记下了。",
            "保存成功！",
            "成功写入 notes.md。",
            "搞定，文件写好了。",
            "没有找到清单，已新建一份。",
            "提醒设置完成",
        ] {
            assert!(effect_claimed(text).is_some_and(|claim| !claim.is_empty()), "{text}");
        }
    }

    #[test]
    fn what_is_denied_asked_wished_or_to_come_is_no_claim() {
        for text in [
            "I can save the file if you like.",
            "The file says hello.",
            "要保存吗？",
            "I read the file.",
            "文件里写着你好",
            "I have not saved the file.",
            "I haven't saved it yet.",
            "The file was not saved.",
            "The file could not be written.",
            "Nothing has been deleted.",
            "I will save it now.",
            "Once I have saved it, I will tell you.",
            "If the file was deleted, it is in the bin.",
            "Have I saved it to the right folder?",
            "Was the file created?",
            "Should the old one be removed?",
            "The log says \"the file was saved\".",
            "Run `git commit` and you see `1 file was changed`.",
            "```\nfile was saved\n```",
            "文件没有保存。",
            "文件尚未保存成功",
            "我会保存这个文件。",
            "如果已保存，请告诉我。",
            "已保存的文件在哪里？",
            "是否已经删除？",
            "文件已保存了吗？",
            "日志里写着“文件已保存”。",
            "保存成功后我再告诉你。",
            "无法写入成功",
            "我将把它写入 a.md",
        ] {
            assert_eq!(effect_claimed(text), None, "{text}");
        }
    }
}
