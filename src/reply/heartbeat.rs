//! Tells an acknowledgement from an alert in a heartbeat's answer, and an empty HEARTBEAT.md from one with work in it.
//!
//! An acknowledgement is dropped, so the question is asked the careful way round: a line that *may* be an alert, a
//! reminder, a question or a request keeps the whole text, and only words that are clearly denied ("no errors",
//! "未发现异常", "failed: 0") do not count.

use std::sync::LazyLock;

use regex::Regex;

/// Signs that stand for an alarm whatever the words say.
pub(super) fn has_alarm_sign(text: &str) -> bool {
    text.contains(['🚨', '⚠', '❗', '‼', '🔴', '❌', '🆘', '🔥', '⛔', '🛑', '📛', '⏰', '❓'])
}

static ALERT_WORD: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\b(?:alerts?|alarms?|urgent(?:ly)?|emergenc(?:y|ies)|critical(?:ly)?|warn(?:ing|ings|s)?|errors?|fail(?:s|ed|ing|ure|ures)?|",
        r"fatal|crash(?:es|ed|ing)?|panic(?:s|ked)?|down|offline|outages?|unavailable|unreachable|unhealthy|degraded|broken?|corrupt(?:ed|ion)?|",
        r"full|exhausted|exceed(?:s|ed|ing)?|overdue|expir(?:e|es|ed|ing|y)|timed[ -]?out|time-?outs?|refused|denied|rejected|blocked|stuck|hang(?:s|ing)?|hung|",
        r"lost|missing|missed|leak(?:s|ed|ing)?|breach(?:ed|es)?|intrusion|attack(?:s|ed)?|suspicious|unauthori[sz]ed|compromised|vulnerab\w+|",
        r"oom|out of (?:memory|space|disk)|overload(?:ed)?|overheat\w*|disk space|deadlines?|due|reminders?|remember|attention|action (?:required|needed)|",
        r"issues?|problems?|incidents?|anomal(?:y|ies)|abnormal|unusual|unexpected|stopped|dead|killed|aborted|asap|immediately|important|please|need(?:s|ed)? (?:your|you|to)|you should|don'?t forget|meetings?|appointments?|birthdays?|low (?:battery|disk|space|memory|balance))\b|",
        r"告警|报警|警报|警告|预警|紧急|严重|危急|失败|错误|出错|故障|异常|超时|超限|超过|超出|磁盘|爆满|满了|已满|写满|宕机|崩溃|挂了|中断|断开|掉线|离线|泄漏|泄露|",
        r"会议|开会|日程|生日|到账|未知|无效|未授权|攻击|入侵|可疑|过期|到期|逾期|截止|提醒|记得|别忘|注意|尽快|立即|马上|需要(?:您|你|处理|关注|注意|检查|更新)|请|重要|问题|丢失|缺失|损坏|拒绝|卡住|停止|不足|过高|过低|过载|耗尽|待办|待处理|风险|漏洞"
    ))
    .expect("a fixed pattern")
});

/// What is bad news by its own denial; a "no" before it does not make it good.
static BAD_BY_DENIAL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(concat!(
        r"(?i)\b(?:no (?:space|disk|memory|response|answer|connection|network|power|backups?|longer|heartbeat|signal)|(?:is|are|was|were|does|do|did|has|have|could|would|will|can)(?: not|n['’]t)|",
        r"not (?:ok|okay|fine|healthy|normal|good|running|responding|reachable|working|available|done|complete|completed|finished|started|ready)|cannot|can['’]t|won['’]t|unable|without (?:a )?(?:response|backup))\b|",
        r"无法|不能|不可用|不可达|不通|不响应|打不开|连不上|无响应|未响应|没有响应|没响应|未完成|未成功|未通过|未启动|未运行|未恢复|没有备份|未备份|没有空间|无空间"
    ))
    .expect("a fixed pattern")
});

/// Denials that reach to a word a few words on.
static DENIAL: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)\b(?:no|not|none|nothing|never|without|zero|free of|neither|nor)\b|n['’]t\b|(?:^|[^\d.,])0(?:[ \t]|[ \t]?(?:个|条|项|次))|没有|并无|未见|未发现|未出现|暂无|尚无|无需|不需要|不用|不必")
        .expect("a fixed pattern")
});

/// One-character denials must stand at the word itself: 无 and 未 begin too many names and other words.
static DENIAL_AT_WORD: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?:无|未|没)(?:任何|新的?|其他|其它|明显|重大)?$").expect("a fixed pattern"));

static CLAUSE_END: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)[.;!?。；！？\n]|\b(?:but|however|except|only|although|though|yet|until|since)\b|但|不过|除了|除|只有|然而|可是|却|另外")
        .expect("a fixed pattern")
});

/// Where a denial ends inside a clause, unless a plain list goes on.
static PART_END: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?i)[,，、:：]|\band\b|和|以及").expect("a fixed pattern"));

/// What joins the words of a list: "errors, warnings or failures".
static JOINS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"(?i)^[\s,，、/]*(?:and|or|nor|和|或|及|与|以及)?\s*(?:any|new|urgent)?\s*$").expect("a fixed pattern")
});

static ZERO_AFTER: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(?:数量?|个数|count)?[ \t]*[:：=]?[ \t]*(?:0(?:[^\d.]|$)|none\b|无)").expect("a fixed pattern")
});

static HIGH_PERCENT: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"(?:^|[^\d.])(?:9\d|1\d\d)(?:\.\d+)?[ ]?[%％]").expect("a fixed pattern"));

/// Whether any line of `text` reads as something a person should see. When in doubt, it does.
pub(super) fn reads_as_alert(text: &str) -> bool {
    has_alarm_sign(text)
        || text.contains(['?', '？'])
        || BAD_BY_DENIAL.is_match(text)
        || HIGH_PERCENT.is_match(text)
        || text.lines().any(line_is_alert)
}

fn line_is_alert(line: &str) -> bool {
    let mut clause_start = 0;
    let mut ends: Vec<(usize, usize)> = CLAUSE_END.find_iter(line).map(|m| (m.start(), m.end())).collect();
    ends.push((line.len(), line.len()));
    for (end, next) in ends {
        let clause = &line[clause_start..end];
        clause_start = next;
        // Where the last denied word of a list ended.
        let mut denied_to: Option<usize> = None;
        for word in ALERT_WORD.find_iter(clause) {
            let listed = denied_to.is_some_and(|end| JOINS.is_match(&clause[end..word.start()]));
            if !listed && !is_denied(&clause[..word.start()]) && !ZERO_AFTER.is_match(&clause[word.end()..]) {
                return true;
            }
            denied_to = Some(word.end());
        }
    }
    false
}

/// Whether what stands before a word denies it, once and nearby (two denials are none).
fn is_denied(before: &str) -> bool {
    let mut start = before.len().saturating_sub(96);
    while !before.is_char_boundary(start) {
        start += 1;
    }
    let near = &before[start..];
    let part = &near[PART_END.find_iter(near).last().map_or(0, |end| end.end())..];
    let mut denials = DENIAL.find_iter(part);
    match (denials.next(), denials.next()) {
        (Some(denial), None) => part[denial.end()..].chars().count() <= 24,
        (None, _) => DENIAL_AT_WORD.is_match(part),
        _ => false,
    }
}

/// Whether HEARTBEAT.md asks for nothing, so that a tick need not call the model (openclaw-parity.md §1.5).
///
/// Blank lines, ATX headings (`#TODO` without a blank is content), rules, bullets and checkboxes without text, fence
/// lines and HTML comments say nothing; everything else is work.
pub fn effectively_empty_heartbeat(md: &str) -> bool {
    static EMPTY_LINE: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r"^(?:#{1,6}(?:\s.*)?|(?:[-*+]|\d{1,9}[.)])(?:\s*\[[ xX]?\])?|\[[ xX]?\]|(?:`{3,}|~{3,})[\w+.#-]*|-{3,}|\*{3,}|_{3,})$")
            .expect("a fixed pattern")
    });
    let mut rest = md.trim_start_matches('\u{feff}');
    let mut without_comments = String::with_capacity(rest.len());
    while let Some((before, comment)) = rest.split_once("<!--") {
        without_comments.push_str(before);
        rest = match comment.split_once("-->") {
            Some((_, after)) => after,
            // A comment that never ends hides what follows, as a browser would.
            None => "",
        };
    }
    without_comments.push_str(rest);
    without_comments.lines().map(str::trim).all(|line| line.is_empty() || EMPTY_LINE.is_match(line))
}
