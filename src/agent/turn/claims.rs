//! Finds an answer that claims to have changed something. A hint for the trace, never a reason to hold an answer back.

use std::sync::LazyLock;

use regex::Regex;

static CLAIM: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\bI(?:'ve|’ve| have)?(?: just| already| now| successfully)* (?:written|wrote|saved|created|updated|deleted|removed|",
        r"edited|changed|sent|scheduled|installed|moved|renamed|stored)\b",
        r"|\b(?:has|have) been (?:successfully )?(?:written|saved|created|updated|deleted|removed|sent|scheduled|installed)\b",
        r"|已(?:经|成功|为您|为你|帮您|帮你)*(?:将\S{1,20})?(?:写入|保存|创建|新建|更新|修改|删除|发送|添加|安装|设置|移动|重命名|记录)",
        r"|(?:我|帮您|帮你)(?:写入|保存|创建|更新|修改|删除|发送|添加|安装)(?:好)?了",
    ))
    .expect("a constant pattern, compiled by the test")
});

/// The words that claim an effect.
pub fn effect_claimed(text: &str) -> Option<&str> {
    CLAIM.find(text).map(|found| found.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claims_are_found_and_plain_talk_is_not() {
        for text in [
            "I've saved the file.",
            "I have just created notes.md",
            "The file has been written.",
            "文件已保存。",
            "已经写入 a.md",
            "我保存了笔记",
            "已为您创建",
        ] {
            assert!(effect_claimed(text).is_some(), "{text}");
        }
        for text in [
            "I can save the file if you like.",
            "The file says hello.",
            "要保存吗？",
            "I read the file.",
            "文件里写着你好",
        ] {
            assert_eq!(effect_claimed(text), None, "{text}");
        }
    }
}
