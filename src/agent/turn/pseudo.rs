//! Pseudo-calls (伪指令): answers that only *write* a tool call. Recognises them, finished and while they are being
//! written; never runs one.
//!
//! A text is read line by line for places where a call may begin (markup of a model family, a fence, a JSON object, a line of
//! code, ReAct's `Action:`, "调用工具："). At each such place two questions are asked: is this a call of a known tool, and is
//! it meant as one? What an explanation shows, what the person asked to see, and what stands in a fence amid prose is an
//! answer. Where the shape alone is plain (raw markup with a tool's name in it), long prose before it does not change
//! that: the prose is kept and the call goes. Nor do "let me explain" and "for example" before raw markup that ends the
//! answer: they excuse it only when words about it follow. The shapes, and the look-alikes that are answers, stand in
//! `tests/corpus/pseudo/`.

use std::{borrow::Cow, sync::LazyLock};

use regex::Regex;
use serde_json::Value;

use super::{Resolved, Toolbox};
use crate::{reply::strip_reasoning, tools::names};

/// A recognised pseudo-call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PseudoCall {
    /// How it was written.
    pub shape: Shape,
    /// The tool's name as written; `None` when the text broke off before it.
    pub tool: Option<String>,
    /// Where it begins, in bytes of the visible text ([`visible`]).
    pub at: usize,
}

/// How a pseudo-call was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `<tool_call>…`, `<function=…>`, `<invoke name=…>`, `[TOOL_CALLS]` and the control tokens of model families.
    Markup,
    /// A JSON object with a tool's name and its arguments, fenced or bare.
    Json,
    /// `read_file("x")` on its own, `[exec: ls]`, `/read x`.
    Code,
    /// `Action: read` with `Action Input:`.
    Action,
}

impl Shape {
    /// Its name in notes.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Markup => "markup",
            Self::Json => "json",
            Self::Code => "code",
            Self::Action => "action",
        }
    }
}

/// The most characters of a lead-in ("let me look") or of a promise behind a call ("please wait").
const LEAD_IN_CHARS: usize = 300;
/// The most characters behind a call that need no reason.
const TAIL_CHARS: usize = 40;
/// Prose before a call that is at least this long, and no mere lead-in, is kept.
const KEPT_CHARS: usize = 80;
/// Longer texts are answers; also bounds the work.
const LONGEST: usize = 200_000;
/// So many calls behind one another are looked at before the rest counts as one of them.
const MOST_IN_A_ROW: usize = 4;

macro_rules! regexes {
    ($($name:ident = $pattern:expr;)*) => {
        $(static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("a constant pattern, compiled by the tests"));)*
    };
}

// Names are spelled out in ASCII: a counted `\w` is all of Unicode once for each character it may have, megabytes a pattern.
// `｜` and `▁` are `|` and `_` here already ([`plain`]).
regexes! {
    MARKUP = concat!(
        r"(?i)<\|?/?(?:[a-z0-9_-]+[:|])?(?:tool_?calls?|function_?calls?|tool_?use|tool_?code|invoke|function|action)(?:_?section)?(?:[\s=>|/_{\[:]|$)",
        r"|\[/?tool_?calls?\]|\[/?function_?calls?\]|<\|python_tag\|>|<\|tool|<\|action|<\|plugin\|>|^functools\[",
        // Llama 4, Gemma, and what is left of others: no tag of a text.
        r"|<\|(?:python_start|begin_of_tool)\|>|<start_function_call>|</?execute_tool>",
        r"|<tool\s+(?:na?$|nam$|name\s*(?:=|$))|&lt;/?(?:tool_?calls?|function_?calls?)(?:&|\b)",
        // Harmony without its control tokens, and the wrapper of parallel calls.
        r"|^(?:assistant|analysis|commentary|\s){0,4}to=functions\.|^multi_tool_use\.parallel\b",
    );
    // Markup that means nothing else, whatever tool it names.
    STRONG = r"(?i)^(?:<\|?(?:[a-z0-9_-]+[:|])?(?:tool_?calls?|function_?calls?)|\[tool_?calls?\]|<\|python_tag\|>|<\|tool|<\|action|<\|plugin|functools\[)";
    // The beginning of a marker at the end of a growing text.
    MARKUP_START = r"(?i)(?:<[|/a-z0-9_:-]{0,40}|\[/?[a-z_]{0,14}|&(?:lt?|lt;/?[a-z_]{0,14})?)$";
    NAMES = concat!(
        r#"(?i)["'](?:name|tool|tool_name|function|function_name|recipient_name)["']\s*:\s*["']([^"'\n]{1,80})(?:["']|$)"#,
        r#"|\bname\s*=\s*["']([^"'\n]{1,80})(?:["']|$)"#,
        r"|<function\s*=\s*([^\s>]{1,80})",
        r"|<(?:tool_?name|name|function_name)>\s*([^\s<]{1,80})",
        r"|<start_function_call>\s*call:\s*([A-Za-z_][0-9A-Za-z_.-]{0,80})",
        r"|<\|tool_sep\|>\s*([^\s<`]{1,80})",
        r"|(?:to=|recipient=)([A-Za-z_][0-9A-Za-z_.-]{0,80})",
        r"|(?:<\|tool_call_begin\|>|\[tool_?calls?\]|\[function_?calls?\]|<\|python_tag\|>|<tool_?call>|<\|tool_call\|?>|<\|tool_call_start\|>|<\|plugin\|>|<\|action_start\|>|<function_call>)\s*\[?(?:[a-z_]+:)?([A-Za-z_][0-9A-Za-z_.-]{0,80})",
    );
    CLOSING = r"(?i)</[\w:|]+>|<\|/?[\w]+\|>|\[/\w+\]";
    OWN_TAG = r"^<([A-Za-z_][0-9A-Za-z_]{1,63})(?:[\s>/]|$)";
    GLUED_FENCE = r"```[A-Za-z_]{0,20}[ \t]*$";
    // "read {…}", and an object below the name: GLM's way, and that of those who lost their marks.
    NAMED = r"^`?([A-Za-z_][0-9A-Za-z_.-]{0,80})\s+";
    // "[Tool Call: read] {…}", "(calls read with …)", "【工具调用】read {…}".
    ASIDE = concat!(
        r"(?i)^[\[(（【*]{1,2}\s*(?:(?:tool|function)[ _]?calls?|call(?:s|ing|ed)?|invok(?:es?|ing)|us(?:es?|ing)|正在调用|工具调用|函数调用|调用|使用)",
        r"\s*(?:the\s+)?(?:tool|function|工具|函数)?\s*[\]】:：]?\s*",
    );
    ASIDE_BEHIND = r#"^[`"'“]?([A-Za-z_][0-9A-Za-z_.-]{0,80})([^\n]{0,300})"#;
    // An object, a bracket with a string, `path=…`; `--include=*.rs` is for a person.
    ASIDE_ARGUED = r#"\{|^\s*[(（]\s*["'“]|(?:^|[\s,(（，])[a-z_]{1,30}\s*=\s*\S"#;
    // What may stand before a call on its line and changes nothing.
    LABEL = r"(?i)^json[ \t]*[:：]?[ \t]+";
    CODE = r#"(?s)^(?:print\(|await\s+|[a-z_]{1,20}\s*=\s*)?((?:[A-Za-z_][0-9A-Za-z_]{0,40}\.){0,2}[A-Za-z_][0-9A-Za-z_-]{0,63})\s?\(\s*(["'{\[)]|[A-Za-z_][0-9A-Za-z_]{0,63}\s*[=:]|\.?\.?/|$)(.*)$"#;
    WORD = r"^(?:print\(|await\s+)?((?:[A-Za-z_][0-9A-Za-z_]*\.)*[A-Za-z_][0-9A-Za-z_.-]{0,80})";
    BRACKETED = r"^\[\s*(?:tool:|调用|call:?)?\s*([A-Za-z_][0-9A-Za-z_.-]{0,80})\s*:\s*[^\]\n]+\]?\s*$";
    SLASHED = r"^/([a-z_]{2,40}) +[^\s。，][^\n]{0,200}$";
    ACTION = r"(?im)^[ \t]*\**(?:action|tool|tool[ _]name|function|动作|行动|工具|工具名称?|函数)\**\s*[:：]\s*\**[`\[]?([A-Za-z_][0-9A-Za-z_.-]{0,80})[`\]]?\**[ \t]*$";
    ACTION_CALL = r"(?im)^[ \t]*\**(?:action|动作|行动)\**\s*[:：]\s*([A-Za-z_][0-9A-Za-z_.-]{0,80})\s*[\[({][^\n]*$";
    ACTION_INPUT = r"(?im)^[ \t]*\**(?:action[ _]?input|tool[ _]?input|input|arguments|args|parameters|params|动作输入|行动输入|工具输入|输入|参数|输入参数)\**\s*[:：]";
    THOUGHT = r"(?im)^[ \t]*\**(?:thought|action|tool|tool[ _]name|function|思考|想法|动作|行动|工具|工具名称?|函数)\**\s*[:：]";
    EXAMPLE = concat!(
        r"(?i)\bexamples?\b|for instance|\be\.g\.|looks? like|syntax|would be written|you can (?:call|use|write)|would (?:say|write|emit|look)",
        r"|show(?:s|ing)? you|(?:here|this)(?:'s| is) (?:how|what)|\b(?:the|this|following) format\b|\bformat (?:is|of)\b|\bwrites\b|\bemits?\b",
        r"|\blike (?:this|so)\b|例如|比如|譬如|示例|例子|样例|举例|举个|写法|语法|格式|如下所示|像这样|可以这样|演示|说明如下|说明一下|解释一下|解释如下|你解释|您解释|介绍一下|会写成|写成|形如",
    );
    // To say something first is no example: "先说明一下，我去读：".
    STATEMENT = r"(?i)说明一下|说明如下|解释一下|解释如下|介绍一下|你解释|您解释|\bexplain\b";
    // Somebody sets out to do something.
    SETS_OUT = r"(?i)\b(?:let me|let's|i'll|i’ll|i will|i am going to|i'm going to|i’m going to|i need to|one moment|hold on|please wait)\b|我来|让我|我先|我将|我会|我去|我需要|我要|我这就|正在|马上|稍等|请稍";
    INTENT = concat!(
        r"(?i)\b(?:let me|let's|i'll|i’ll|i will|i am going to|i'm going to|i’m going to|i need to|calling|checking|reading|first,|sure\b|okay|of course|certainly|one moment|hold on|using the|here(?:'s| is) the (?:tool |function )?call)",
        r"|我来|让我|我先|我将|我会|我去|我需要|我要|首先|现在|接下来|正在|马上|好的|稍等|调用|没问题",
    );
    HEADER = r"(?i)^\**(?:action|tool[ _]calls?|function[ _]calls?|json|动作|行动|工具调用|函数调用|调用工具)\**\s*[:：]|^json$";
    // The text itself is about calls: an explanation.
    SPEAKS = concat!(
        r"(?i)\b(?:tool|function)[ -]call(?:s|ing)?\b|call syntax|\bxml tags?\b|\bchat template|\bprotocol\b",
        r"|工具调用|函数调用|调用格式|调用语法|标签|模板|协议",
    );
    SPEAKS_OF_CALLS = r"(?i)\b(?:tool|function)[ -]call(?:s|ing)?\b|call syntax|\bchat template|工具调用|函数调用|调用格式|调用语法|工具指令|调用标签";
    // Words behind a call that are about it.
    POINTS_BACK = r"(?i)\b(?:this|that|these|above|host|gateway|server|model|tags?|calls?|object|arguments?|parameters?)\b|这|上面|以上|主机|网关|服务端|模型|标签|参数|对象";
    // The end of a whole call.
    WHOLE = r"(?i)(?:</[\w:|]+>|<\|/?\w*end\|>|<\|/\w+\|>|\[/\w+\]|[}\])])$";
    // A person asks how calls are written.
    ASKED = concat!(
        r"(?i)\b(?:how (?:do|does|to|would|can|should|is|are)|what (?:do|does|is|are)|explain|example|format|syntax|template|show me (?:a|an|the|how))\b[^\n]{0,80}(?:(?:tool|function)[ _-]?call|tool_use|tool_code|<tool|\bReAct\b)",
        r"|\bjson\b[^\n]{0,40}\b(?:tool|function)[ _-]?calls?\b",
        r"|(?:(?:tool|function)[ _-]?call(?:s|ing)?|tool_use|<tool)[^\n]{0,60}\b(?:examples?|formats?|syntax|templates?|looks? like|written)\b",
        r"|(?:怎么写|如何写|怎样写|格式|写法|示例|例子|语法|模板|解释|介绍|讲讲|长什么样|什么样)[^\n]{0,40}(?:工具调用|函数调用|tool[ _-]?call|function[ _-]?call|调用)",
        r"|(?:工具调用|函数调用|tool[ _-]?call|function[ _-]?call)[^\n]{0,40}(?:怎么写|如何写|怎样写|格式|写法|示例|例子|语法|模板|长什么样|什么样)",
    );
    // A made-up result behind a made-up call.
    RESULT = r"(?i)<\|?(?:tool|function)_?(?:response|results?|outputs?)|\[tool_results?\]|(?m:^[ \t]*\**(?:observation|result|output|观察|观察结果|结果|输出)\**\s*[:：])";
    WAIT = concat!(
        r"(?i)\b(?:please wait|one moment|let me|i'll|i will|this (?:call |command )?will|waiting for|once (?:i|the))\b",
        r"|稍等|请稍|稍候|我会|我将|正在|等待|接下来|然后我",
    );
    // "调用工具: exec ls", "我将调用 read 工具：{…}", "Function call: exec({…})".
    CALLING = concat!(
        r"(?i)^\**(?:i(?:'ll|’ll| will| am|'m|’m)?(?: now| going to)* |我(?:将|会|要|来|先|现在|这就)*|正在|现在|好的，)?",
        r"(?:tool[ _]calls?|function[ _]calls?|call(?:ing)?|invok(?:e|ing)|us(?:e|ing)|run(?:ning)?|execut(?:e|ing)|调用|执行|使用|运行|工具调用|函数调用)",
        r"(?: ?(?:the|a|tool|function|command|工具|函数|命令))*\**\s*(?P<colon>[:：])?\**\s*",
    );
    CALLED = r#"^[`'"“「【\[<]?([A-Za-z_][0-9A-Za-z_.-]{0,80})[`'"”」】\]>]?\s*(?:工具|tool|function|函数|命令)?\s*(?:,|，)?\s*(?:with(?: the)?(?: arguments?| parameters?| input)?|参数(?:为|是)?|传入(?:参数)?)?\s*"#;
}

/// Words that begin a line that tells of a call; a preview waits at them, and while one of them is being written.
const OPENERS: &[&str] = &[
    "call",
    "calling",
    "invoke",
    "invoking",
    "use",
    "using",
    "run",
    "running",
    "execute",
    "executing",
    "tool call",
    "function call",
    "i'll call",
    "i will call",
    "i'll use",
    "i will use",
    "i'll run",
    "i will run",
    "i'll now",
    "i will now",
    "i am now",
    "i'm now",
    "i am calling",
    "i'm calling",
    "i am using",
    "i'm using",
    "调用",
    "执行",
    "使用",
    "运行",
    "工具调用",
    "函数调用",
    "functools",
    "multi_tool_use.parallel",
    "to=functions",
    "commentary to=functions",
    "assistant to=functions",
    "assistantcommentary to=functions",
    "assistant commentary to=functions",
    "我将调用",
    "我会调用",
    "我要调用",
    "我来调用",
    "我先调用",
    "我现在调用",
    "我这就调用",
    "我将使用",
    "我会使用",
    "我来使用",
    "我先使用",
    "我将执行",
    "我会执行",
    "我来执行",
    "我先执行",
    "正在调用",
    "正在执行",
    "正在使用",
    "现在调用",
    "现在执行",
    "好的，我",
    "好的，调用",
];

/// Names of functions of common languages: a line of code with one of them is no call of a tool of that name.
const EVERYDAY: &[&str] = &[
    "list", "dir", "glob", "view", "cat", "find", "fetch", "command", "execute", "terminal", "excel", "open",
    "message", "image",
];

/// What a person would see of a text: reasoning taken out.
pub fn visible(text: &str) -> String {
    strip_reasoning(text).visible.trim().to_owned()
}

/// Whether a person's message asks how calls are written: what is then shown in a fence is the answer.
pub fn asks_how_calls_are_written(message: &str) -> bool {
    ASKED.is_match(&message[..message.floor_char_boundary(20_000)])
}

/// The call of a known tool that a finished text is, or holds where its answer should be. `asked`: see
/// [`asks_how_calls_are_written`].
pub fn looks_like_call(text: &str, tools: &dyn Toolbox, asked: bool) -> Option<PseudoCall> {
    if text.len() > LONGEST {
        return None;
    }
    match (Reading { tools, asked, growing: false }).both_forms(&visible(text)) {
        Found::Call(call) => Some(call),
        Found::Open(_) | Found::Nothing => None,
    }
}

/// How many bytes of a text that is still being written may be shown: what may turn out to be a call waits.
pub fn showable(text: &str, tools: &dyn Toolbox, asked: bool) -> usize {
    let begin = text.len() - text.trim_start().len();
    match (Reading { tools, asked, growing: true }).both_forms(&text[begin..]) {
        Found::Call(PseudoCall { at, .. }) | Found::Open(at) => text[..begin + at].trim_end().len(),
        Found::Nothing => text.len(),
    }
}

/// How many bytes of a finished visible text may be shown: all but a written call.
pub fn showable_at_end(text: &str, tools: &dyn Toolbox, asked: bool) -> usize {
    match looks_like_call(text, tools, asked) {
        // Its place is known in the visible text only.
        Some(_) if visible(text) != text => 0,
        Some(call) => text[..call.at].trim_end().len(),
        None => text.len(),
    }
}

/// The prose before a call that is an answer in itself and must not be lost; a mere "let me look" is not.
pub fn kept_prose(visible: &str, call: &PseudoCall) -> Option<String> {
    let prose = visible.get(..call.at)?.trim();
    let chars = prose.chars().count();
    let lead_in = chars <= LEAD_IN_CHARS && INTENT.is_match(prose);
    (chars >= KEPT_CHARS && !lead_in).then(|| prose.to_owned())
}

/// The correction the model gets, once a turn. `kept`: the words before the call reach the person.
pub fn correction(call: &PseudoCall, names: &[String], kept: bool) -> String {
    let tool = call.tool.as_deref().unwrap_or("the tool");
    let what = if kept {
        "[gateway] Your last message wrote a tool call as text, so nothing was run. The words before the call are kept and \
         will be shown; do not repeat them. The call and everything behind it were seen by nobody."
    } else {
        "[gateway] Your last message only wrote a tool call as text, so nothing was run and nobody saw it."
    };
    if names.is_empty() {
        return format!("{what} There are no tools here: answer the person in plain words, without call syntax.");
    }
    let names: Vec<&str> = names.iter().map(String::as_str).take(40).collect();
    format!(
        "{what}\n\
         - To use {tool}: make a real tool call through the function-calling interface, with the arguments as one JSON \
         object. Do not write the call in the message text.\n\
         - If you need no tool: answer the person in plain words, without call syntax.\n\
         Available tools: {}.",
        names.join(", ")
    )
}

/// What was found in a text.
enum Found {
    Call(PseudoCall),
    /// From here on it may become a call.
    Open(usize),
    Nothing,
}

/// A verdict on one place.
enum Verdict {
    Call(Shape, Option<String>),
    /// It may become one.
    Open,
    /// It is none.
    No,
}

/// One reading of a text.
#[derive(Clone, Copy)]
struct Reading<'a> {
    tools: &'a dyn Toolbox,
    asked: bool,
    /// The text is still being written.
    growing: bool,
}

/// A text with the signs of control tokens as ASCII, each for each.
fn plain(text: &str) -> Cow<'_, str> {
    if text.contains(['｜', '▁']) { text.replace('｜', "|").replace('▁', "_").into() } else { text.into() }
}

/// A text with full-width brackets, quotes and colons as ASCII, each for each; `None` when it has no such brackets.
fn halved(text: &str) -> Option<String> {
    const WIDE: &str = "｛（［＜【｀";
    text.contains(|c| WIDE.contains(c)).then(|| {
        text.chars()
            .map(|c| match c {
                '｛' => '{',
                '｝' => '}',
                '（' => '(',
                '）' => ')',
                '［' | '【' => '[',
                '］' | '】' => ']',
                '＜' => '<',
                '＞' => '>',
                '：' => ':',
                '，' => ',',
                '＂' | '“' | '”' => '"',
                '｀' => '`',
                '＿' => '_',
                '／' => '/',
                '＝' => '=',
                other => other,
            })
            .collect()
    })
}

impl Reading<'_> {
    /// As it was written, and then with full-width signs read as ASCII. Offsets are those of `text`.
    fn both_forms(self, text: &str) -> Found {
        let as_written = plain(text);
        let back = |form: &str, at: usize| {
            let chars = form[..at].chars().count();
            text.char_indices().nth(chars).map_or(text.len(), |(at, _)| at)
        };
        let moved = |form: &str, found: Found| match found {
            Found::Call(call) => Found::Call(PseudoCall { at: back(form, call.at), ..call }),
            Found::Open(at) => Found::Open(back(form, at)),
            Found::Nothing => Found::Nothing,
        };
        let first = moved(&as_written, self.read(&as_written, 0));
        let Some(form) = halved(&as_written) else { return first };
        match (first, moved(&form, self.read(&form, 0))) {
            (Found::Call(call), _) => Found::Call(call),
            (first, Found::Nothing) => first,
            (Found::Open(a), Found::Open(b)) => Found::Open(a.min(b)),
            (_, second) => second,
        }
    }

    /// Reads a text line by line. `depth`: calls before it in the same answer.
    fn read(self, text: &str, depth: usize) -> Found {
        if text.trim().is_empty() {
            return Found::Nothing;
        }
        let mut start = 0;
        while start < text.len() {
            let end = text[start..].find('\n').map_or(text.len(), |at| start + at);
            let line = &text[start..end];
            let indent = line.len() - line.trim_start().len();
            let (at, verdict, next) = self.line(text, start + indent, end, depth);
            match verdict {
                Verdict::Call(shape, tool) => {
                    let tool = tool.map(|name| name.trim().to_owned());
                    return Found::Call(PseudoCall { shape, tool, at });
                }
                Verdict::Open if self.growing => return Found::Open(at),
                Verdict::Open | Verdict::No => {}
            }
            start = next.max(end) + 1;
        }
        Found::Nothing
    }

    /// Judges the line at `at..end`: where the candidate begins, what it is, and where to read on.
    fn line(self, text: &str, at: usize, end: usize, depth: usize) -> (usize, Verdict, usize) {
        let at = at + LABEL.find(&text[at..end]).map_or(0, |label| label.end());
        let line = text[at..end].trim_end();
        let lead = &text[..at];
        // Nothing begins there, and a text may have thousands of them: none is a reason to look back at all before it.
        if line.is_empty() {
            return (at, Verdict::No, end);
        }
        if line.starts_with("```") || line.starts_with("~~~") {
            return self.fence(text, at, end, depth);
        }
        // "Let me look.```json": a fence all the same, to those who write so.
        if let Some(glued) = GLUED_FENCE.find(line) {
            return self.fence(text, at + glued.start(), end, depth);
        }
        // Only the sign of a fence or of bold type, so far.
        let last = self.growing && end == text.len();
        if last && !line.is_empty() && line.bytes().all(|b| matches!(b, b'`' | b'*')) {
            return (at, Verdict::Open, end);
        }
        if let Some(found) = first_outside_code(line, &MARKUP) {
            let begin = at + found;
            match self.markup(text, begin) {
                Verdict::No => {}
                verdict => return (begin, verdict, end),
            }
        }
        if line.starts_with(['{', '[', '<'])
            && let verdict @ (Verdict::Call(..) | Verdict::Open) = self.opened(text, at, end, depth)
        {
            return (at, verdict, end);
        }
        if let verdict @ (Verdict::Call(..) | Verdict::Open) = self.action(text, at, line, last) {
            return (at, verdict, end);
        }
        let intended = lead.trim().is_empty() || intends(lead);
        if intended && let verdict @ (Verdict::Call(..) | Verdict::Open) = self.code_line(text, at, end, depth) {
            return (at, verdict, end);
        }
        let told = self.told(text, at, end, depth);
        // So may a fence.
        let quoted = line.trim_end_matches('`').len();
        if last && quoted < line.len() && matches!(told, Verdict::No) {
            return (at + quoted, Verdict::Open, end);
        }
        // A marker may be about to come in the middle of the line.
        if matches!(told, Verdict::No)
            && last
            && let Some(begins) = MARKUP_START.find(line).filter(|_| !in_code(line))
            && self.may_mean_it(&text[..at + begins.start()])
        {
            return (at + begins.start(), Verdict::Open, end);
        }
        (at, told, end)
    }

    /// A fence opens at `at`.
    fn fence(self, text: &str, at: usize, end: usize, depth: usize) -> (usize, Verdict, usize) {
        let mark = &text[at..at + 3];
        let info = text[at..end].trim_start_matches(['`', '~']).trim().to_ascii_lowercase();
        let begin = (end + 1).min(text.len());
        let mut close = None;
        let mut line_at = begin;
        while line_at < text.len() {
            let line_end = text[line_at..].find('\n').map_or(text.len(), |n| line_at + n);
            if text[line_at..line_end].trim_start().starts_with(mark) {
                close = Some((line_at, line_end));
                break;
            }
            line_at = line_end + 1;
        }
        let (body, tail, next) = match close {
            Some((from, to)) => (text[begin..from].trim(), &text[to.min(text.len())..], to),
            None => (text[begin..].trim(), "", text.len()),
        };
        let lead = &text[..at];
        let verdict = if self.asked || !(lead.trim().is_empty() || intends(lead)) {
            Verdict::No
        } else {
            self.fenced(info.trim_matches('`'), lead, body, close.is_some(), tail, depth)
        };
        (at, verdict, next)
    }

    fn fenced(self, info: &str, lead: &str, body: &str, closed: bool, tail: &str, depth: usize) -> Verdict {
        let for_tools = ["tool_code", "tool_call", "tool_calls", "function_call", "tool", "tool_use"].contains(&info);
        let verdict = if MARKUP.find(body).is_some_and(|m| m.start() == 0) {
            self.markup_names(body, false)
        } else if for_tools && let Some(name) = self.any_call_in(body) {
            Verdict::Call(Shape::Code, Some(name))
        } else if self.growing && !closed && (for_tools || self.may_open(body)) {
            Verdict::Open
        } else if let Some((shape, name)) = self.body_call(body) {
            Verdict::Call(shape, Some(name))
        } else {
            self.action(body, 0, body.lines().next().unwrap_or(""), false)
        };
        self.with_tail(verdict, lead, tail, depth)
    }

    /// Whether a fence's body may still become a call.
    fn may_open(self, body: &str) -> bool {
        body.is_empty()
            || body.starts_with(['{', '[', '<'])
            || WORD.captures(body).is_some_and(|word| self.begins_known(&word[1]) || THOUGHT.is_match(body))
            || "print(".starts_with(body)
            || "await ".starts_with(body)
    }

    /// What stands behind a call may show that it is none; or, in a growing text, may yet show it.
    fn with_tail(self, verdict: Verdict, lead: &str, tail: &str, depth: usize) -> Verdict {
        let Verdict::Call(shape, name) = verdict else { return verdict };
        let tail = tail.trim();
        if self.is_tail(tail, depth) {
            return Verdict::Call(shape, name);
        }
        let head = &tail[..tail.floor_char_boundary(1_200)];
        if tail.chars().nth(LEAD_IN_CHARS).is_none() && self.growing {
            return Verdict::Open;
        }
        // "I'll read it: {…} The file says …": the rest was made up.
        if !lead.trim().is_empty() && intends(lead) && !SPEAKS.is_match(head) && !EXAMPLE.is_match(head) {
            return Verdict::Call(shape, name);
        }
        Verdict::No
    }

    /// Little, a promise, a made-up result, or the next call takes nothing away from a call.
    fn is_tail(self, tail: &str, depth: usize) -> bool {
        let chars = tail.chars().take(LEAD_IN_CHARS + 1).count();
        if chars <= TAIL_CHARS && !EXAMPLE.is_match(tail) {
            return true;
        }
        let head = &tail[..tail.floor_char_boundary(160)];
        if RESULT.is_match(head) || (chars <= LEAD_IN_CHARS && WAIT.is_match(tail) && !EXAMPLE.is_match(tail)) {
            return true;
        }
        if depth >= MOST_IN_A_ROW {
            return false;
        }
        match (Reading { growing: false, ..self }).read(tail, depth + 1) {
            Found::Call(call) => is_lead_in(&tail[..call.at]),
            Found::Open(_) | Found::Nothing => false,
        }
    }

    /// Whether raw markup behind this lead may be meant as a call: unless the person asked to see one, only a text that is
    /// itself about calls speaks against it at once. Of an example, see [`Self::explained`].
    fn may_mean_it(self, lead: &str) -> bool {
        let line = last_line(lead);
        if self.asked {
            return intends(lead) || !(EXAMPLE.is_match(line) || speaks(lead));
        }
        intends(lead) || sets_out(line) || !speaks_of_calls(lead)
    }

    /// Whether raw markup is shown as an example: announced as one, and followed by words about it. `call` ends with its last
    /// bracket. What breaks off, what ends the answer, and what a promise follows is no example.
    fn explained(self, lead: &str, call: &str, tool: Option<&str>, tail: &str) -> bool {
        let line = last_line(lead);
        if !announces_example(line) || sets_out(line) {
            return false;
        }
        let prose = tail.chars().any(char::is_alphanumeric) && !tail.starts_with(['{', '[', '<', '"', '`', '(']);
        let named = WORD.captures(tail).is_some_and(|word| self.known(&word[1]));
        let head = &tail[..tail.floor_char_boundary(1_200)];
        let promise = tail.chars().nth(LEAD_IN_CHARS).is_none() && WAIT.is_match(tail);
        let whole = tool.is_none() || WHOLE.is_match(call.trim_end());
        // "Let me explain" alone announces words, not an example.
        let about = EXAMPLE.is_match(&STATEMENT.replace_all(line, "")) || POINTS_BACK.is_match(head);
        prose && !named && whole && about && !promise && !RESULT.is_match(call) && !RESULT.is_match(head)
    }

    /// Raw markup outside fences and inline code, at `begin`.
    fn markup(self, text: &str, begin: usize) -> Verdict {
        let (lead, body) = (&text[..begin], window(&text[begin..]));
        if !self.may_mean_it(lead) {
            return Verdict::No;
        }
        // Behind the call: what follows its last bracket.
        let brackets = |text: &str| text.rfind(['>', ']', '}', ')']).map_or(text.len(), |at| at + 1);
        let close = CLOSING.find_iter(body).last().map(|m| m.end()).unwrap_or_else(|| brackets(body));
        let tail = body[close..].trim();
        let bare = lead.trim().is_empty();
        let plainly = (bare && tail.is_empty()) || (STRONG.is_match(body) && !self.asked && !in_sentence(text, begin));
        let verdict = self.markup_names(body, plainly);
        let verdict = match verdict {
            // What it becomes is seen at its end only.
            Verdict::No if self.growing => Verdict::Open,
            other => other,
        };
        let Verdict::Call(_, tool) = &verdict else { return verdict };
        if !self.asked && self.explained(lead, &body[..close], tool.as_deref(), tail) {
            return if self.growing { Verdict::Open } else { Verdict::No };
        }
        // An explanation of calls, and a tag in the middle of a sentence, are answers.
        if tail.chars().count() > TAIL_CHARS && !RESULT.is_match(body) && !intends(lead) {
            let head = &tail[..tail.floor_char_boundary(1_200)];
            let sentence = last_line(lead);
            let mid_line =
                !lead.is_empty() && !lead.ends_with('\n') && !body[close..].trim_start_matches(' ').starts_with('\n');
            let announced = sentence.ends_with([':', '：']);
            if SPEAKS.is_match(head) || EXAMPLE.is_match(head) || mid_line || announced {
                return if self.growing { Verdict::Open } else { Verdict::No };
            }
        }
        verdict
    }

    /// Whose call stands in markup. `alone`: whatever the name, it can be nothing else.
    fn markup_names(self, body: &str, alone: bool) -> Verdict {
        let made = |name: Option<&str>| Verdict::Call(Shape::Markup, name.map(str::to_owned));
        let names: Vec<&str> = NAMES
            .captures_iter(body)
            .filter_map(|found| found.iter().skip(1).flatten().next())
            .map(|m| m.as_str())
            .collect();
        let bare = |name: &str| name.split(':').next().unwrap_or(name).to_owned();
        if let Some(name) = names.iter().find(|name| self.known(&bare(name))) {
            return made(Some(&bare(name)));
        }
        if let Some(name) = self.any_call_in(body) {
            return made(Some(&name));
        }
        let whole = is_whole(body);
        match names.first() {
            // It broke off inside the name.
            Some(name) if !whole && self.begins_known(name) => made(Some(name)),
            // Nothing but control markup is no answer either, whatever name stands in it.
            Some(name) if alone => made(Some(name)),
            None if alone && (!whole || body.len() < 64) => made(None),
            None if !whole && body.len() < 64 && self.growing => Verdict::Open,
            _ => Verdict::No,
        }
    }

    /// A call as code anywhere at the beginning of a line, behind markup, `print(` or a bracket.
    fn any_call_in(self, body: &str) -> Option<String> {
        let inner = body
            .split(['\n', '>', ']', '[', ';', '|'])
            .map(|part| part.trim_start_matches(|c: char| c.is_whitespace() || c == '['));
        inner.filter_map(|part| CODE.captures(part)).map(|call| call[1].to_owned()).find(|name| self.known(name))
    }

    /// A JSON object or list at the beginning of a line, `[read(…)]`, `[exec: ls]`, and a tool's own name as a tag.
    fn opened(self, text: &str, at: usize, end: usize, depth: usize) -> Verdict {
        let (lead, body) = (&text[..at], &text[at..]);
        let line = text[at..end].trim_end();
        let last = self.growing && end == text.len();
        if body.starts_with('<') {
            let Some(tag) = OWN_TAG.captures(body).map(|tag| tag[1].to_owned()) else {
                return if last && body.len() < 3 { Verdict::Open } else { Verdict::No };
            };
            if !self.known(&tag) || EVERYDAY.contains(&tag.as_str()) || !self.may_mean_it(lead) {
                let partial = last && !line.contains(['>', ' ']) && self.begins_known(&tag);
                return if partial { Verdict::Open } else { Verdict::No };
            }
            let closing = format!("</{tag}>");
            return match body.rfind(&closing) {
                Some(close) => {
                    let (call, tail) = body.split_at(close + closing.len());
                    if !self.asked && self.explained(lead, call, Some(&tag), tail.trim()) {
                        return if self.growing { Verdict::Open } else { Verdict::No };
                    }
                    self.with_tail(Verdict::Call(Shape::Markup, Some(tag)), lead, tail, depth)
                }
                None if self.growing || !body.contains('>') || (body.contains("</") && lead.trim().is_empty()) => {
                    Verdict::Call(Shape::Markup, Some(tag))
                }
                None if body.contains("\n<") || body.trim_end().ends_with("/>") => {
                    Verdict::Call(Shape::Markup, Some(tag))
                }
                None => Verdict::No,
            };
        }
        if !(lead.trim().is_empty() || intends(lead)) {
            return Verdict::No;
        }
        if let Some(found) = BRACKETED.captures(line)
            && self.known(&found[1])
            && !EVERYDAY.contains(&&found[1])
        {
            return self.with_tail(Verdict::Call(Shape::Code, Some(found[1].to_owned())), lead, &text[end..], depth);
        }
        match self.json_call(body) {
            Some((name, rest)) => self.with_tail(Verdict::Call(Shape::Json, Some(name)), lead, rest, depth),
            None => {
                if let Some((name, rest)) = self.code_call(body.trim_start_matches('[')) {
                    return self.with_tail(
                        Verdict::Call(Shape::Code, Some(name)),
                        lead,
                        rest.trim_start_matches(']'),
                        depth,
                    );
                }
                // Still inside the value.
                let python = ["{'", "[{'"].iter().any(|begin| body.starts_with(begin)) && !body.contains('}');
                let inside = self.growing
                    && (python
                        || serde_json::Deserializer::from_str(body)
                            .into_iter::<Value>()
                            .next()
                            .is_none_or(|value| value.is_err_and(|error| error.is_eof())));
                let word = line.trim_start_matches('[').trim_start();
                let bracketed = last && body.starts_with('[') && (word.is_empty() || self.begins_word(word));
                if inside || bracketed { Verdict::Open } else { Verdict::No }
            }
        }
    }

    /// A line that is a call in code: `read_file("x")`, in backticks or not, or `/read x`.
    fn code_line(self, text: &str, at: usize, end: usize, depth: usize) -> Verdict {
        let lead = &text[..at];
        let last = self.growing && end == text.len();
        let line = text[at..end].trim_end();
        if let verdict @ (Verdict::Call(..) | Verdict::Open) = self.named(text, at, depth) {
            return verdict;
        }
        if let verdict @ (Verdict::Call(..) | Verdict::Open) = self.aside(text, at, end, depth) {
            return verdict;
        }
        let quoted = line.starts_with('`');
        let body = if quoted { text[at + 1..].trim_end() } else { &text[at..] };
        let inner = line.trim_matches('`').trim();
        if let Some(found) = SLASHED.captures(line)
            && self.known(&found[1])
            && lead.trim().is_empty()
        {
            return self.with_tail(Verdict::Call(Shape::Code, Some(found[1].to_owned())), lead, &text[end..], depth);
        }
        if let Some((name, rest)) = self.code_call(body) {
            let rest = rest.trim_start_matches(['`', ')', ';']);
            // "read_file("x") opens a file": a sentence.
            let same_line = rest.split('\n').next().unwrap_or("").trim();
            if same_line.chars().any(char::is_alphanumeric) {
                return Verdict::No;
            }
            return self.with_tail(Verdict::Call(Shape::Code, Some(name)), lead, rest, depth);
        }
        let slashed = line.strip_prefix('/').filter(|_| lead.trim().is_empty());
        let begins =
            last && (self.begins_word(inner) || slashed.is_some_and(|word| word.is_empty() || self.begins_word(word)));
        if begins && !line.is_empty() { Verdict::Open } else { Verdict::No }
    }

    /// A tool's name and, behind it or below it, an object that can only be its arguments.
    fn named(self, text: &str, at: usize, depth: usize) -> Verdict {
        let Some(found) = NAMED.captures(&text[at..]).filter(|found| self.known(&found[1])) else { return Verdict::No };
        let name = &found[1];
        let rest = &text[at + found[0].len()..];
        if rest.is_empty() {
            return if self.growing { Verdict::Open } else { Verdict::No };
        }
        if !rest.starts_with('{') {
            return Verdict::No;
        }
        let mut values = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
        match values.next() {
            Some(Ok(arguments)) if arguments.as_object().is_some_and(|arguments| !arguments.is_empty()) => {
                let behind = rest[values.byte_offset()..].trim_start().trim_start_matches('`');
                match self.fits(name, &arguments) {
                    true => {
                        self.with_tail(Verdict::Call(Shape::Code, Some(name.to_owned())), &text[..at], behind, depth)
                    }
                    false => Verdict::No,
                }
            }
            Some(Err(error)) if error.is_eof() && self.growing => Verdict::Open,
            _ => Verdict::No,
        }
    }

    /// A call that is told in brackets, like a stage direction.
    fn aside(self, text: &str, at: usize, end: usize, depth: usize) -> Verdict {
        let line = text[at..end].trim_end();
        let last = self.growing && end == text.len();
        let Some(begin) = ASIDE.find(line) else {
            let word = line.trim_start_matches(['[', '(', '（', '【', '*', ' ']).to_lowercase();
            let asides = ["tool call", "tool_call", "toolcall", "function call", "function_call", "functioncall"];
            let verbs = ["calling", "called", "calls", "invoking", "invokes", "uses", "using", "工具调用", "函数调用"];
            let more = ["正在调用", "调用", "使用"];
            let opens = last
                && word.len() < line.len()
                && asides.iter().chain(&verbs).chain(&more).any(|o| o.starts_with(&word));
            return if opens { Verdict::Open } else { Verdict::No };
        };
        let behind = &line[begin.end()..];
        let Some(found) = ASIDE_BEHIND.captures(behind) else {
            return if last && behind.is_empty() { Verdict::Open } else { Verdict::No };
        };
        if self.known(&found[1]) && ASIDE_ARGUED.is_match(&found[2]) {
            return self.with_tail(
                Verdict::Call(Shape::Code, Some(found[1].to_owned())),
                &text[..at],
                &text[end..],
                depth,
            );
        }
        let opens = last && (self.known(&found[1]) || (found[2].is_empty() && self.begins_known(&found[1])));
        if opens { Verdict::Open } else { Verdict::No }
    }

    /// `Action: read` with its input, from the line at `at` on.
    fn action(self, text: &str, at: usize, line: &str, last: bool) -> Verdict {
        let rest = window(&text[at..]);
        let lead = &text[..at];
        if !THOUGHT.is_match(line) {
            // "Acti" may become one.
            let partial = last
                && ["action", "thought", "tool", "动作", "行动", "思考", "工具"].iter().any(|word| {
                    let line = line.trim_start_matches('*').to_lowercase();
                    !line.is_empty()
                        && (word.starts_with(&line)
                            || (line.starts_with(word)
                                && line.chars().count() < 14
                                && !line.contains(['，', '。', ','])))
                });
            return if partial && is_tail_of_react(lead) { Verdict::Open } else { Verdict::No };
        }
        if self.asked || EXAMPLE.is_match(last_line(before_react(lead))) || speaks(lead) {
            return Verdict::No;
        }
        if let Some(found) = ACTION_CALL.captures(rest).filter(|found| self.known(&found[1])) {
            return Verdict::Call(Shape::Action, Some(found[1].to_owned()));
        }
        if let Some(found) = ACTION.captures(rest).filter(|found| self.known(&found[1])) {
            let behind = &rest[found.get(0).map_or(0, |m| m.end())..];
            let input = ACTION_INPUT.find(behind).is_some_and(|m| behind[..m.start()].trim().is_empty());
            if input || behind.trim().is_empty() {
                return Verdict::Call(Shape::Action, Some(found[1].to_owned()));
            }
            // The input may be about to come.
            let next = behind.trim_start();
            if self.growing && !next.contains('\n') && next.chars().nth(16).is_none() {
                return Verdict::Open;
            }
        }
        if !self.growing {
            return Verdict::No;
        }
        // A thought may end in an action; an action's name may not be complete.
        let thought = line.trim_start_matches('*').to_lowercase();
        if thought.starts_with("thought") || thought.starts_with("思考") || thought.starts_with("想法") {
            return Verdict::Open;
        }
        let value = line.split_once([':', '：']).map_or("", |(_, value)| value).trim();
        let value = value.trim_matches(['*', '`', '[']);
        let argued = WORD.captures(value).is_some_and(|word| {
            self.known(&word[1]) && value[word[0].len()..].trim_start().starts_with(['[', '(', '{'])
        });
        let open = last && (value.is_empty() || argued || self.begins_word(value));
        if open { Verdict::Open } else { Verdict::No }
    }

    /// "调用工具: exec ls", "我将调用 read 工具：{…}", "Function call: exec({…})", on the line at `at..end`.
    fn told(self, text: &str, at: usize, end: usize, depth: usize) -> Verdict {
        let line = text[at..end].trim_end();
        let last = self.growing && end == text.len();
        let lower = line.trim_start_matches('*').to_lowercase();
        if last && !lower.is_empty() && OPENERS.iter().any(|opener| opener.starts_with(&lower)) {
            return Verdict::Open;
        }
        if !OPENERS.iter().any(|opener| lower.starts_with(opener)) {
            return Verdict::No;
        }
        let Some(found) = CALLING.captures(line) else {
            // "好的，我…", "I'll now…": it may go on as one.
            return if last && line.chars().count() < 24 { Verdict::Open } else { Verdict::No };
        };
        let said = found.get(0).map_or(0, |m| m.end());
        // "Run: ls -la" is for a person; "Tool call: ls" is not.
        let colon = found.name("colon").is_some()
            && ["tool", "function", "工具", "函数"]
                .iter()
                .any(|word| lower[..lower.floor_char_boundary(said + 8)].contains(word));
        let rest = &text[at + said..];
        let lead = &text[..at];
        if EXAMPLE.is_match(last_line(lead)) || (self.asked && !lead.trim().is_empty()) {
            return Verdict::No;
        }
        let unquoted = rest.trim_start_matches('`');
        if unquoted.starts_with(['{', '['])
            && let Some((name, behind)) = self.json_call(unquoted)
        {
            return self.with_tail(Verdict::Call(Shape::Json, Some(name)), lead, behind.trim_start_matches('`'), depth);
        }
        if let Some((name, behind)) = self.code_call(unquoted) {
            let behind = behind.trim_start_matches(['`', ')', ';', '。', '.']);
            let same_line = behind.split('\n').next().unwrap_or("");
            if !same_line.chars().any(char::is_alphanumeric) || WAIT.is_match(same_line) {
                return self.with_tail(Verdict::Call(Shape::Code, Some(name)), lead, behind, depth);
            }
            return Verdict::No;
        }
        let here = &line[said..];
        let Some(named) = CALLED.captures(here) else {
            let word = ["工具", "函数", "命令"].iter().any(|word| word.starts_with(here));
            let open = last && (word || here.trim().is_empty() || here.starts_with(['{', '[', '`', '"', '“']));
            return if open { Verdict::Open } else { Verdict::No };
        };
        let name = &named[1];
        let behind = &here[named.get(0).map_or(0, |m| m.end())..];
        if !self.known(name) {
            let open = last && behind.is_empty() && self.begins_known(name);
            return if open || (last && unquoted.starts_with(['{', '['])) { Verdict::Open } else { Verdict::No };
        }
        // With arguments to be seen as such: an object, brackets, or a header with a colon before the name.
        let argued = behind.trim_start_matches([':', '：', ' ', '(', '（']).starts_with('{')
            || (behind.starts_with([':', '：']) && behind.contains(['=', '{', '"', '“']))
            || (colon && !behind.trim().is_empty() && !behind.starts_with(['。', '，', '.', ',']))
            || (colon && behind.trim().is_empty() && text[end..].trim().is_empty())
            || (colon && text[end..].trim_start().starts_with(['{', '`']))
            || (text[end..].trim_start().starts_with('{') && self.json_begins(text[end..].trim_start()));
        if argued {
            let tail = if text[end..].trim_start().starts_with(['{', '`']) { "" } else { &text[end..] };
            return self.with_tail(Verdict::Call(Shape::Code, Some(name.to_owned())), lead, tail, depth);
        }
        if last || (self.growing && text[end..].trim().is_empty()) { Verdict::Open } else { Verdict::No }
    }

    fn json_begins(self, text: &str) -> bool {
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
        matches!(values.next(), Some(Ok(Value::Object(_)))) || self.growing
    }

    /// The call that a fence's body is, and nothing else.
    fn body_call(self, body: &str) -> Option<(Shape, String)> {
        if let Some((name, rest)) = self.json_call(body) {
            let rest = rest.trim();
            let essential = rest.chars().count() <= TAIL_CHARS || rest.starts_with(['{', '[', ',']);
            return essential.then_some((Shape::Json, name));
        }
        if let Some(found) = BRACKETED.captures(body).filter(|found| self.known(&found[1])) {
            return Some((Shape::Code, found[1].to_owned()));
        }
        let (name, rest) = self.code_call(body.trim_start_matches('['))?;
        let rest = rest.trim_matches(|c: char| c.is_whitespace() || matches!(c, ';' | ')' | ']'));
        (rest.is_empty() || self.code_call(rest).is_some() || rest.starts_with("print(")).then_some((Shape::Code, name))
    }

    /// A JSON value that calls a tool, and what stands behind it. Broken and unclosed ones by their keys.
    fn json_call(self, body: &str) -> Option<(String, &str)> {
        if !body.starts_with(['{', '[']) {
            return None;
        }
        // The first value of several (JSON lines) decides.
        let mut values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
        if let Some(Ok(value)) = values.next() {
            let name = self.called_name(&value)?;
            return self.known(&name).then_some((name, &body[values.byte_offset()..]));
        }
        let body_begins = window(body);
        let named = NAMES.captures(body_begins)?;
        let name = named.iter().skip(1).flatten().next()?.as_str();
        const ARGUMENTS: [&str; 6] = ["arguments", "parameters", "args", "input", "action_input", "params"];
        let has_arguments = ARGUMENTS
            .iter()
            .any(|key| [format!("\"{key}\""), format!("'{key}'")].iter().any(|key| body_begins.contains(key)));
        let end = body.rfind(['}', ']', '"', '\'']).map_or(body.len(), |at| at + 1);
        (has_arguments && self.known(name)).then(|| (name.to_owned(), &body[end..]))
    }

    /// The tool a JSON value calls: it needs a name and a place for arguments.
    fn called_name(self, value: &Value) -> Option<String> {
        let object = match value {
            Value::Array(values) => return values.first().and_then(|value| self.called_name(value)),
            Value::Object(object) => object,
            _ => return None,
        };
        for wrapper in ["tool_calls", "tool_call", "function_call", "function", "tool_uses", "tool_use", "calls"] {
            if let Some(inner) = object.get(wrapper).filter(|inner| !inner.is_string()) {
                return self.called_name(inner);
            }
        }
        // `{"read_file": {"path": "x"}}`, and arguments beside a name that can only be a tool's.
        if let Some((name, inner @ Value::Object(_))) =
            object.iter().next().filter(|(name, _)| object.len() == 1 && self.known(name))
            && self.fits(name, inner)
        {
            return Some(name.clone());
        }
        let text = |key: &&str| object.get(*key).and_then(Value::as_str);
        if let Some(name) = ["tool", "tool_name", "function", "function_name", "recipient_name"].iter().find_map(text)
            && object.len() > 1
        {
            return Some(name.to_owned());
        }
        let name = ["name", "tool", "tool_name", "function", "function_name", "action"].iter().find_map(text)?;
        const ARGUMENTS: [&str; 8] =
            ["arguments", "parameters", "args", "input", "action_input", "params", "tool_input", "kwargs"];
        // The schema of a tool's arguments: a definition, no call.
        let is_schema = |inner: &Value| {
            inner["type"] == "object"
                && (inner["properties"].is_object() || inner.as_object().is_some_and(|keys| keys.len() == 1))
        };
        let has_arguments = ARGUMENTS.iter().any(|key| {
            object
                .get(*key)
                .is_some_and(|inner| (inner.is_object() && !is_schema(inner)) || inner.is_string() || inner.is_null())
        });
        has_arguments.then(|| name.to_owned())
    }

    /// Whether an object under a name can only be its arguments: the name is no everyday word, or they fit its schema.
    fn fits(self, name: &str, arguments: &Value) -> bool {
        name.contains(['_', '.'])
            || matches!(self.tools.resolve(name), Some(Resolved::Tool(tool))
                if self.tools.check_arguments(&tool, &arguments.to_string()).is_ok())
    }

    /// `read_file("x")` at the beginning, and what stands behind its bracket; all of it when the bracket is not closed.
    fn code_call(self, body: &str) -> Option<(String, &str)> {
        let found = CODE.captures(body)?;
        let name = found[1].to_owned();
        if !self.known(&name) || EVERYDAY.contains(&name.as_str()) {
            return None;
        }
        let arguments = found.get(2)?.start();
        let end = closing_bracket(&body[arguments..]).map_or(body.len(), |at| arguments + at + 1);
        Some((name, &body[end..]))
    }

    /// A tool that is offered here, or one that this or other gateways have.
    fn known(self, name: &str) -> bool {
        let name = name.trim();
        let name = name.strip_suffix(".call").unwrap_or(name);
        // Code of other things: `os.read(…)`.
        let qualified = name.rsplit_once('.').is_some_and(|(before, _)| !names::is_prefix(before));
        !qualified && (self.tools.resolve(name).is_some() || names::is_known_elsewhere(name))
    }

    /// A name that a known tool's name begins with: where a text broke off.
    fn begins_known(self, part: &str) -> bool {
        let part = part.trim().to_ascii_lowercase();
        let part = match part.rsplit_once('.') {
            Some((before, "")) if names::is_prefix(before) => return true,
            Some((before, rest)) if names::is_prefix(before) => rest.to_owned(),
            _ => part,
        };
        self.known(&part)
            || (!part.is_empty()
                && (names::begins_known_elsewhere(&part)
                    || self.tools.names().iter().any(|name| name.to_ascii_lowercase().starts_with(&part))))
    }

    /// A line that so far is nothing but the beginning of a known name, or that name with its arguments.
    fn begins_word(self, line: &str) -> bool {
        if "print(".starts_with(line) || "await ".starts_with(line) {
            return true;
        }
        let Some(word) = WORD.captures(line) else { return false };
        let behind = line[word.get(0).map_or(0, |m| m.end())..].trim_start();
        let name = &word[1];
        (behind.is_empty() && !line.ends_with(' ') && self.begins_known(name))
            || (behind.starts_with(['(', ':', '（']) && self.known(name))
            || (line.ends_with(' ') && behind.is_empty() && self.known(name))
    }
}

/// The closing tag, or JSON that is complete.
fn is_whole(body: &str) -> bool {
    let begin = body.char_indices().nth(1).map_or(body.len(), |(at, _)| at);
    CLOSING.is_match(&body[begin..]) || serde_json::from_str::<Value>(body).is_ok()
}

/// Where the bracket that is open at the beginning closes; strings are passed over.
fn closing_bracket(text: &str) -> Option<usize> {
    let mut depth = 1_usize;
    let mut quote: Option<char> = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            _ if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), c) if c == open => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'') => quote = Some(c),
            (None, '(') => depth += 1,
            (None, ')') => {
                depth -= 1;
                if depth == 0 {
                    return Some(at);
                }
            }
            (None, _) => {}
        }
    }
    None
}

/// The last line that is not empty, its last 300 characters.
fn last_line(text: &str) -> &str {
    let line = text.trim_end().rsplit('\n').next().unwrap_or("").trim();
    let skip = line.chars().count().saturating_sub(LEAD_IN_CHARS);
    line.char_indices().nth(skip).map_or(line, |(at, _)| &line[at..])
}

/// The words right before a call say that it is about to be made.
fn intends(lead: &str) -> bool {
    let line = last_line(lead);
    if STATEMENT.is_match(line) && sets_out(line) {
        return !EXAMPLE.is_match(&STATEMENT.replace_all(line, ""));
    }
    (INTENT.is_match(line) || HEADER.is_match(line)) && !EXAMPLE.is_match(line)
}

/// A line that announces an example or an explanation.
fn announces_example(line: &str) -> bool {
    EXAMPLE.is_match(line) || STATEMENT.is_match(line)
}

/// Behind the last word of example or explanation, the line says that something is about to be done.
fn sets_out(line: &str) -> bool {
    let said = [&*EXAMPLE, &*STATEMENT].iter().filter_map(|words| words.find_iter(line).last()).map(|m| m.end()).max();
    SETS_OUT.is_match(&line[said.unwrap_or(0)..])
}

/// A longer text that is about calls and says so in as many words.
fn speaks_of_calls(lead: &str) -> bool {
    let head = &lead[..lead.floor_char_boundary(4_000)];
    head.chars().nth(TAIL_CHARS).is_some() && SPEAKS_OF_CALLS.is_match(head)
}

/// A longer text that is about calls.
fn speaks(lead: &str) -> bool {
    let head = &lead[..lead.floor_char_boundary(4_000)];
    head.chars().nth(TAIL_CHARS).is_some() && SPEAKS.is_match(head)
}

fn is_lead_in(prose: &str) -> bool {
    let prose = prose.trim();
    prose.chars().nth(LEAD_IN_CHARS).is_none() && !EXAMPLE.is_match(prose)
}

/// The beginning of a text, enough to see a call in it.
fn window(text: &str) -> &str {
    &text[..text.floor_char_boundary(16_000)]
}

/// Words stand before `begin` on its line, and words follow the line's last bracket.
fn in_sentence(text: &str, begin: usize) -> bool {
    let before = text[..begin].rsplit('\n').next().unwrap_or("");
    let line = text[begin..].split('\n').next().unwrap_or("");
    let behind = line.rfind(['>', ']', '}']).map_or("", |at| &line[at + 1..]);
    !before.trim().is_empty() && behind.trim().chars().count() > 2
}

/// What stands before the ReAct lines at the end of a text.
fn before_react(lead: &str) -> &str {
    let mut before = lead.trim_end();
    while THOUGHT.is_match(last_line(before)) {
        before = before.rsplit_once('\n').map_or("", |(before, _)| before).trim_end();
    }
    before
}

/// Where ReAct lines may stand: at the beginning, or after a line that leads to them.
fn is_tail_of_react(lead: &str) -> bool {
    lead.trim().is_empty() || is_lead_in(lead)
}

/// Whether the end of a line stands in inline code.
fn in_code(line: &str) -> bool {
    !line.matches('`').count().is_multiple_of(2)
}

/// Where a pattern first stands in a line outside inline code.
fn first_outside_code(line: &str, pattern: &Regex) -> Option<usize> {
    pattern.find_iter(line).map(|found| found.start()).find(|&at| !in_code(&line[..at]))
}

#[cfg(test)]
pub(in crate::agent::turn) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        agent::turn::tests::Bench,
        reply::{HoldBack, Outcome, Policy},
    };

    /// A text of `tests/corpus/pseudo/`.
    pub(in crate::agent::turn) struct Case {
        pub(in crate::agent::turn) name: &'static str,
        pub(in crate::agent::turn) text: String,
        /// Where the call begins in the visible text.
        pub(in crate::agent::turn) at: Option<usize>,
        /// The prose before it is kept.
        pub(in crate::agent::turn) keeps: bool,
        /// The person asked how calls are written.
        pub(in crate::agent::turn) asked: bool,
    }

    fn cases(file: &'static str) -> Vec<Case> {
        let parts = file.strip_prefix("=== ").expect("it begins with a case").split("\n=== ");
        parts
            .map(|part| {
                let (head, text) = part.split_once('\n').expect("a name and a text");
                let (name, more) = head.split_once(" | ").unwrap_or((head, ""));
                let asked = more.strip_prefix("asked: ").map(asks_how_calls_are_written);
                assert!(asked != Some(false), "{name}: it is not seen that the person asks for it");
                Case {
                    name,
                    text: text.trim_end().replace('‸', ""),
                    at: visible(text).find('‸'),
                    keeps: more == "keeps",
                    asked: asked == Some(true),
                }
            })
            .collect()
    }

    pub(in crate::agent::turn) fn written_calls() -> Vec<Case> {
        cases(include_str!("../../tests/corpus/pseudo/calls.txt"))
    }

    pub(in crate::agent::turn) fn look_alikes() -> Vec<Case> {
        cases(include_str!("../../tests/corpus/pseudo/answers.txt"))
    }

    /// Everything that a preview shows, one after another, of a text that comes in pieces of so many characters.
    fn previews(case: &Case, size: usize) -> Vec<String> {
        let mut hold = HoldBack::new(Policy::default());
        let chars: Vec<char> = case.text.chars().collect();
        let shown = chars.chunks(size).filter_map(|piece| {
            let mut text = hold.push(&piece.iter().collect::<String>())?;
            text.truncate(showable(&text, &Bench, case.asked));
            Some(text)
        });
        shown.collect()
    }

    #[test]
    fn every_written_call_is_found_where_it_begins_and_no_preview_shows_a_piece_of_it() {
        let cases = written_calls();
        assert!(cases.len() >= 70, "{}", cases.len());
        let mut wrong = Vec::new();
        for case in &cases {
            let seen = visible(&case.text);
            let at = case.at.expect("a mark in every case");
            let call = looks_like_call(&case.text, &Bench, false);
            if call.as_ref().map(|call| call.at) != Some(at) {
                wrong.push(format!("{}: {call:?}, expected at {at}", case.name));
            }
            if let Some(call) = call
                && kept_prose(&seen, &call).is_some() != case.keeps
            {
                wrong.push(format!("{}: kept prose", case.name));
            }
            for size in [1, 2, 3, 5, 7, 16, 61] {
                for shown in previews(case, size) {
                    if !seen[..at].starts_with(&shown) {
                        wrong.push(format!("{}: by {size}: shown: {shown:?}", case.name));
                        break;
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn every_look_alike_is_an_answer_and_its_preview_a_beginning_of_it() {
        let cases = look_alikes();
        assert!(cases.len() >= 20, "{}", cases.len());
        let mut wrong = Vec::new();
        for case in &cases {
            if let Some(call) = looks_like_call(&case.text, &Bench, case.asked) {
                wrong.push(format!("{}: {call:?}", case.name));
            }
            let Outcome::Reply(reply) = Outcome::from_text(&case.text, &Policy::default()) else {
                wrong.push(format!("{}: silent", case.name));
                continue;
            };
            for size in [1, 3, 7] {
                if let Some(shown) = previews(case, size).iter().find(|shown| !reply.text.starts_with(*shown)) {
                    wrong.push(format!("{}: by {size}: shown: {shown:?}", case.name));
                }
            }
        }
        assert!(wrong.is_empty(), "{} wrong:\n{}", wrong.len(), wrong.join("\n"));
    }

    #[test]
    fn plain_talk_is_previewed_as_it_comes() {
        for text in [
            "Hello there",
            "你好，",
            "The answer is 42.",
            "reading the book",
            "# Title\n\nText",
            "a < b and",
            "- one\n- two",
            "x\n\nlistening to it",
        ] {
            assert_eq!(showable(text, &Bench, false), text.len(), "{text}");
        }
    }

    #[test]
    fn without_tools_a_written_call_is_one_all_the_same() {
        let none = crate::agent::turn::toolbox::Offered::default();
        let missed: Vec<&str> = written_calls()
            .iter()
            .filter(|case| looks_like_call(&case.text, &none, false).is_none())
            .map(|case| case.name)
            .collect();
        assert_eq!(missed, [""; 0]);
        let wrong: Vec<&str> = look_alikes()
            .iter()
            .filter(|case| looks_like_call(&case.text, &none, case.asked).is_some())
            .map(|case| case.name)
            .collect();
        assert_eq!(wrong, [""; 0]);
    }

    #[test]
    fn calls_written_as_text_are_recognised() {
        let tools = Bench;
        for (shape, text) in [
            (Shape::Markup, r#"<tool_call>{"name": "read", "arguments": {"path": "a.md"}}</tool_call>"#),
            (
                Shape::Markup,
                "<tool_call>\n{\"name\": \"read_file\", \"arguments\": {\"path\": \"a.md\"}}\n</tool_call>",
            ),
            (Shape::Markup, "I'll check the file.\n<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>"),
            (Shape::Markup, "<think>hm</think><tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>"),
            (Shape::Markup, r#"<tool_call>{"name": "read", "argum"#),
            (Shape::Markup, r#"<tool_call>{"name": "re"#),
            (Shape::Markup, "<tool_call>"),
            (Shape::Markup, "<tool_call>\n{"),
            (Shape::Markup, "<tool_call>read\n<arg_key>path</arg_key><arg_value>a</arg_value></tool_call>"),
            (Shape::Markup, "<function=read>{\"path\":\"a\"}</function>"),
            (Shape::Markup, "<function=read>\n<parameter=path>\na.md\n</parameter>\n</function>"),
            (Shape::Markup, "<function=read"),
            (Shape::Markup, "[TOOL_CALLS][{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}]"),
            (Shape::Markup, "[TOOL_CALLS]read{\"path\":\"a\"}"),
            (Shape::Markup, "<invoke name=\"read\"><parameter name=\"path\">a</parameter></invoke>"),
            (
                Shape::Markup,
                "我来看看。\n<function_calls>\n<invoke name=\"read\">\n<parameter name=\"path\">a</parameter>\n",
            ),
            (Shape::Markup, "<|python_tag|>{\"name\":\"read\",\"parameters\":{}}"),
            (Shape::Markup, "<|tool_call_begin|>functions.read:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
            (
                Shape::Markup,
                "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>read\n```json\n{}\n```<｜tool▁call▁end｜>",
            ),
            (Shape::Markup, "<read_file>\n<path>a.md</path>\n</read_file>"),
            (Shape::Markup, "```xml\n<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>\n```"),
            (Shape::Markup, "<tool_code>print(read(path='a'))</tool_code>"),
            (Shape::Json, "```json\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n```"),
            (Shape::Json, "```json\n{\"name\": \"read\", \"arguments\": {\"pa"),
            (Shape::Json, "Let me read it:\n```json\n{\"tool\": \"read\", \"args\": {\"path\": \"a\"}}\n```"),
            (Shape::Json, "{\"name\":\"read\",\"parameters\":{\"path\":\"a\"}}"),
            (Shape::Json, "{\"action\":\"read\",\"action_input\":\"a\"}"),
            (
                Shape::Json,
                "{\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"read\",\"arguments\":\"{}\"}}]}",
            ),
            (Shape::Json, "[{\"name\":\"read\",\"arguments\":{}},{\"name\":\"write\",\"arguments\":{}}]"),
            (Shape::Json, "让我看一下文件\n{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}"),
            (Shape::Code, "read_file(\"notes.md\")"),
            (Shape::Code, "`read_file(\"notes.md\")`"),
            (Shape::Code, "```python\nread_file(path=\"notes.md\")\n```"),
            (Shape::Code, "read_file(\"notes"),
            (Shape::Code, "我先读取文件。\nread_file(\"notes.md\")"),
            (Shape::Action, "Thought: I need the file\nAction: read\nAction Input: {\"path\": \"a\"}"),
            (Shape::Action, "Action: read_file\nAction Input: a.md\nObservation: it says hello"),
            (Shape::Action, "思考：要看文件\n动作：read\n动作输入：{\"path\":\"a\"}"),
            (Shape::Action, "Thought: look\nAction: read"),
            (Shape::Action, "Tool: read_file\nArguments: {\"path\": \"a\"}"),
            (
                Shape::Markup,
                "<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>\n<tool_response>hello</tool_response>\nThe file a says \
                 hello, and that is all there is to be found in it.",
            ),
            (
                Shape::Json,
                "```json\n{\"name\":\"read\",\"arguments\":{\"path\":\"a\"}}\n```\nPlease wait while I read the file.",
            ),
            (Shape::Json, "{\"read_file\": {\"path\": \"a\"}}"),
            (Shape::Json, "{\"tool\": \"read\", \"path\": \"a\"}"),
            (Shape::Json, "调用工具：{\"name\":\"read\",\"arguments\":{}}"),
            (Shape::Code, "[read_file(path=\"a\")]"),
            (Shape::Code, "read\n{\"path\":\"a\"}"),
            (Shape::Code, "read {\"path\":\"a\"}"),
            (Shape::Code, "Calling read_file(\"a\")"),
            (Shape::Code, "调用 read_file(\"a\")"),
        ] {
            assert_eq!(looks_like_call(text, &tools, false).map(|call| call.shape), Some(shape), "{text}");
        }
    }

    #[test]
    fn answers_are_left_alone() {
        let tools = Bench;
        let long = "The protocol of tool calls is a matter of convention between a model and its host. ".repeat(6);
        for text in [
            "Hello! How can I help?",
            "你好，今天想做什么？",
            "To read a file, write for example:\n```json\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n```",
            "例如：<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>，主机看到后就去读。",
            "For example: <tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call> asks the host to read a file.",
            "Models write `<tool_call>{\"name\":\"read\"}</tool_call>` when they call a tool.",
            "```json\n{\"name\": \"read\", \"arguments\": {\"path\": \"a\"}}\n```\nThis object asks the host to read the file a; the host answers with its text.",
            "```json\n{\"name\": \"Ada\", \"age\": 36}\n```",
            "{\"name\":\"Ada\",\"arguments\":\"none\"}",
            "{\"name\":\"read\"}",
            "{\"read\": 3}",
            "{\"tool\": \"hammer\", \"price\": 3}",
            "Tool: hammer\nArguments: heavy",
            "Call me at five.",
            "[read](https://example.com)",
            "The function read_file(\"x\") opens a file and returns its text.",
            "read_file(\"x\") opens a file.",
            "print(\"hello\")",
            "read (the book) when you find time",
            "Action: find the owner of the house",
            "Action: read\nThe action above is a line of a play.",
            "Thought: done\nFinal Answer: 42",
            "Use <code>x</code> in HTML.",
            "<b>bold</b>",
            "I could not find it. [1] Sources say otherwise.",
            "",
            "   ",
        ] {
            assert_eq!(looks_like_call(text, &tools, false), None, "{text}");
        }
        // Nothing follows it, but it is what the person asked to see.
        let text = "例如：<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>";
        assert_eq!(looks_like_call(text, &tools, true), None);
        let text = format!("{long}\n<tool_call>{{\"name\":\"read\",\"arguments\":{{}}}}</tool_call>");
        assert_eq!(looks_like_call(&text, &tools, false), None);
        let text = format!("<tool_call>{{\"name\":\"read\",\"arguments\":{{}}}}</tool_call>\n{long}");
        assert_eq!(looks_like_call(&text, &tools, false), None);
    }

    #[test]
    fn reasoning_is_not_visible() {
        assert_eq!(visible("<think>a</think> b"), "b");
        assert_eq!(visible("<think>a"), "");
        assert_eq!(visible("a\n</think>\nb"), "b");
        assert_eq!(visible("b"), "b");
    }

    const LEADS: [&str; 9] = [
        "",
        "Let me look.",
        "Sure",
        "我先看一下，",
        "Here is what I know of it: not much, and nothing that would help you today.",
        "The call is:",
        "# Notes\n\n- one\n- two",
        "```python\nx = 1\n```\nNow I will save it:",
        "For example:",
    ];
    const TAILS: [&str; 6] = [
        "",
        "\n\nDone.",
        "\nPlease wait while I do it, it will not take long at all.",
        "\nThe file was written, and everything you wanted stands in it, line by line, as you told me yesterday.",
        "\n```json\n{\"name\":\"read\",\"arguments\":{}}\n```",
        " and so on",
    ];

    proptest! {
        /// Whatever is recognised at its end, no preview ever showed more than what stands before it.
        #[test]
        fn no_preview_shows_a_piece_of_what_is_recognised_at_the_end(
            lead in prop::sample::select(&LEADS[..]),
            which in any::<prop::sample::Index>(),
            glue in prop::sample::select(&["", " ", "\n", "\n\n"][..]),
            tail in prop::sample::select(&TAILS[..]),
            step in 1_usize..9,
        ) {
            let calls = written_calls();
            let case = which.get(&calls);
            let text = visible(&format!("{lead}{glue}{}{tail}", case.text));
            if let Some(call) = looks_like_call(&text, &Bench, false) {
                for (at, _) in text.char_indices().step_by(step) {
                    let shown = showable(&text[..at], &Bench, false);
                    prop_assert!(shown <= call.at, "{:?} of {text:?}", &text[..shown]);
                }
            }
        }

        #[test]
        fn no_text_panics(text in r#"[<>{}\[\]()`"':=/|｜▁a-z_\n 读]{0,120}|\PC{0,80}"#) {
            let tools = Bench;
            let _ = looks_like_call(&text, &tools, false);
            let whole = showable(&text, &tools, false);
            prop_assert!(text.is_char_boundary(whole));
        }
    }
}
