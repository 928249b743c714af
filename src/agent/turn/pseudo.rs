//! Pseudo-calls (伪指令): answers that only *write* a tool call. Recognises them; never runs one.
//!
//! A text is one when it is essentially a call: the call, and at most a short lead-in of the kind "let me look". An
//! explanation with an example of a call in it is an answer. So each shape has two questions: is there a call of a known
//! tool, and is there anything else a person would want to read.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

use super::Toolbox;
use crate::reply::strip_reasoning;

/// A recognised pseudo-call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PseudoCall {
    /// How it was written.
    pub shape: Shape,
    /// The tool's name as written; `None` when the text broke off before it.
    pub tool: Option<String>,
}

/// How a pseudo-call was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `<tool_call>…`, `<function=…>`, `<invoke name=…>`, `[TOOL_CALLS]` and the control tokens of model families.
    Markup,
    /// A JSON object with a tool's name and its arguments, fenced or bare.
    Json,
    /// `read_file("x")` on its own.
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

/// The most characters before a call in markup; what is longer is an explanation.
const LEAD_IN_CHARS: usize = 300;
/// The most characters behind a call.
const TAIL_CHARS: usize = 40;
/// Longer texts are answers; also bounds the work.
const LONGEST: usize = 200_000;

macro_rules! regexes {
    ($($name:ident = $pattern:expr;)*) => {
        $(static $name: LazyLock<Regex> = LazyLock::new(|| Regex::new($pattern).expect("a constant pattern, compiled by the tests"));)*
    };
}

// Names are spelled out in ASCII: a counted `\w` is all of Unicode once for each character it may have, megabytes a pattern.
regexes! {
    MARKUP = concat!(
        r"(?i)<\|?(?:[a-z]+:)?(?:tool_?calls?|function_?calls?|tool_?use|tool_?code|invoke|function)(?:[\s=>|/_{]|$)",
        r"|\[/?tool_?calls?\]|<\|python_tag\|>|<｜tool|<\|tool_calls_section",
    );
    NAMES = concat!(
        r#"(?i)"(?:name|tool|tool_name|function|function_name)"\s*:\s*"([^"\n]{1,80})(?:"|$)"#,
        r#"|\bname\s*=\s*["']([^"'\n]{1,80})(?:["']|$)"#,
        r"|<function\s*=\s*([^\s>]{1,80})",
        r"|<(?:tool_?name|name|function_name)>\s*([^\s<]{1,80})",
        r"|<｜tool▁sep｜>\s*([^\s<`]{1,80})",
        r"|(?:<\|tool_call_begin\|>|\[tool_?calls?\]|<\|python_tag\|>|<tool_?call>|<\|tool_call\|?>)\s*([A-Za-z_][0-9A-Za-z_.-]{0,80})",
    );
    CLOSING = r"(?i)</[\w:|]+>|<\|/?[\w]+\|>|<｜[^｜]*｜>|\[/?\w+\]";
    OWN_TAG = r"^<([A-Za-z_][0-9A-Za-z_]{1,63})(?:[\s>/]|$)";
    FENCE = r"(?s)^(.*?)(?:^|\n)[ \t]*(?:```|~~~)[ \t]*([\w+-]*)[ \t]*\n(.*?)(?:\n[ \t]*(?:```|~~~)[ \t]*(.*))?$";
    CODE = r#"(?s)^(?:print\(|await\s+)?(?:[A-Za-z_]\w*\.)*([A-Za-z_][0-9A-Za-z_-]{0,63})\(\s*(["'{\[)]|[A-Za-z_]\w*\s*=|\.?\.?/)(.*)$"#;
    CODE_START = r"^(?:await\s+)?[A-Za-z_][0-9A-Za-z_.-]{0,80}(?:\([^\n]*\)?\s*;?\s*)?$";
    ACTION = r"(?im)^[ \t]*\**(?:action|tool|tool[ _]name|动作|行动|工具)\**\s*[:：]\s*\**[`\[]?([A-Za-z_][0-9A-Za-z_.-]{0,80})[`\]]?\**[ \t]*$";
    ACTION_INPUT = r"(?im)^[ \t]*\**(?:action[ _]?input|tool[ _]?input|input|arguments|args|parameters|动作输入|行动输入|工具输入|输入|参数)\**\s*[:：]";
    FINAL_ANSWER = r"(?im)^[ \t]*\**(?:final answer|最终答案|最终回答)\**\s*[:：]";
    THOUGHT = r"(?i)^\**(?:thought|action|tool|思考|动作|行动|工具)\**\s*[:：]";
    EXAMPLE = concat!(
        r"(?i)\bexamples?\b|for instance|\be\.g\.|looks like|look like this|syntax|would be written|you can (?:call|use|write)",
        r"|例如|比如|示例|例子|样例|写法|语法|格式如|如下所示|像这样|可以这样",
    );
    INTENT = concat!(
        r"(?i)\b(?:let me|let's|i'll|i will|i am going to|i'm going to|i need to|calling|checking|reading|first,)",
        r"|我来|让我|我先|我将|我会|我去|我需要|首先|现在|接下来|正在|马上|好的",
    );
    // A made-up result behind a made-up call.
    RESULT = r"(?i)<(?:tool|function)_?(?:response|results?|output)s?>|\[tool_results?\]|(?m:^[ \t]*\**(?:observation|观察)\**\s*[:：])";
    WAIT = concat!(
        r"(?i)\b(?:please wait|one moment|let me|i'll|i will|this (?:call |command )?will|waiting for|once (?:i|the))\b",
        r"|稍等|请稍|我会|我将|正在|等待|接下来|然后我",
    );
    CALLING = r"(?i)^\**(?:tool[ _]call|function[ _]call|calling(?: tool| the tool)?|call|调用(?:工具|函数)?|执行(?:工具|命令)?)\**\s*[:：]?\s*";
}

/// What a person would see of a text: reasoning taken out.
pub fn visible(text: &str) -> String {
    strip_reasoning(text).visible.trim().to_owned()
}

/// Whether a finished text is essentially a call of a known tool.
pub fn looks_like_call(text: &str, tools: &dyn Toolbox) -> Option<PseudoCall> {
    if text.len() > LONGEST {
        return None;
    }
    let text = visible(text);
    let text = text.trim();
    if text.is_empty() {
        return None;
    }
    markup(text, tools).or_else(|| action(text, tools)).or_else(|| json_or_code(text, tools))
}

/// Whether a text that is still coming may turn out to be a pseudo-call, or has begun one: a preview then waits. Cheap
/// enough for every delta: beyond the longest lead-in only the beginning is looked at.
pub fn may_become_call(prefix: &str) -> bool {
    let seen = if prefix.contains('<') { visible(prefix) } else { prefix.to_owned() };
    let text = seen.trim_start();
    match text.chars().next() {
        None | Some('{') => return true,
        Some('[') if text.len() < 2 || text[1..].trim_start().starts_with(['{', '[']) => return true,
        Some('[') if begins_alike(text, "[tool_calls]") || CODE_START.is_match(&text[1..]) => return true,
        Some('<') if OWN_TAG.is_match(text) || text.len() < 3 => return true,
        Some('`') if text.bytes().all(|b| b == b'`') => return true,
        Some('`') if !text.starts_with("``") => return CODE_START.is_match(text.trim_matches('`')),
        _ => {}
    }
    let call = CALLING.find(text).map_or(text, |said| &text[said.end()..]);
    if call.is_empty() || CODE_START.is_match(call) || call.starts_with('{') || THOUGHT.is_match(text) {
        return true;
    }
    let head = &text[..text.floor_char_boundary(4 * LEAD_IN_CHARS + 200)];
    // A marker, or the beginning of one at the end, behind a lead-in at most.
    if let Some(found) = first_outside_code(head, &MARKUP) {
        return is_lead_in(&head[..found]);
    }
    let whole = head.len() == text.len();
    if whole
        && let Some(at) = head.rfind(['<', '['])
        && head.len() - at <= 24
        && !head[at..].contains(['>', ']', ' ', '\n'])
    {
        return is_lead_in(&head[..at]);
    }
    // A fence that opens on JSON, markup or a lone call.
    if let Some(at) = head.find("```") {
        let inner = text[at + 3..].split_once('\n').map_or("", |(_, inner)| inner).trim_start();
        let open =
            inner.is_empty() || inner.starts_with(['{', '[', '<']) || CODE_START.is_match(inner.trim_end_matches('`'));
        return open && is_lead_in(&head[..at]);
    }
    // The last line may be the call after a lead-in.
    let Some((before, last)) = head.rsplit_once('\n').filter(|_| whole) else { return false };
    let last = last.trim();
    let open = last.is_empty() || last.starts_with(['{', '[']) || CODE_START.is_match(last) || ACTION.is_match(last);
    open && INTENT.is_match(before) && is_lead_in(before)
}

/// One text begins with the other, whichever is shorter.
fn begins_alike(text: &str, marker: &str) -> bool {
    text.bytes().zip(marker.bytes()).all(|(a, b)| a.eq_ignore_ascii_case(&b))
}

/// The correction the model gets, once a turn.
pub fn correction(call: &PseudoCall, names: &[String]) -> String {
    let tool = call.tool.as_deref().unwrap_or("the tool");
    if names.is_empty() {
        return "[gateway] Your last message only wrote a tool call as text, so nothing was run and nobody saw it. There \
                are no tools here: answer the person in plain words, without call syntax."
            .to_owned();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).take(40).collect();
    format!(
        "[gateway] Your last message only wrote a tool call as text, so nothing was run and nobody saw it.\n\
         - To use {tool}: make a real tool call through the function-calling interface, with the arguments as one JSON \
         object. Do not write the call in the message text.\n\
         - If you need no tool: answer the person in plain words, without call syntax.\n\
         Available tools: {}.",
        names.join(", ")
    )
}

fn known(tools: &dyn Toolbox, name: &str) -> bool {
    tools.resolve(name.trim()).is_some()
}

/// A name that a known tool's name begins with: where a text broke off.
fn begins_known(tools: &dyn Toolbox, part: &str) -> bool {
    let part = part.trim().to_ascii_lowercase();
    known(tools, &part)
        || (!part.is_empty() && tools.names().iter().any(|name| name.to_ascii_lowercase().starts_with(&part)))
}

/// What stands behind a call takes nothing away from its being one: little, a promise, or a made-up result.
fn is_tail(text: &str) -> bool {
    let text = text.trim();
    let chars = text.chars().count();
    chars == 0 || RESULT.is_match(text) || (chars <= LEAD_IN_CHARS && WAIT.is_match(text) && !EXAMPLE.is_match(text))
}

fn is_lead_in(prose: &str) -> bool {
    let prose = prose.trim();
    prose.chars().count() <= LEAD_IN_CHARS && !EXAMPLE.is_match(prose)
}

/// Where a pattern first stands outside fences and inline code.
fn first_outside_code(text: &str, pattern: &Regex) -> Option<usize> {
    pattern.find_iter(text).map(|found| found.start()).find(|&at| {
        let before = &text[..at];
        let fences = before.matches("```").count();
        let line = before.rsplit('\n').next().unwrap_or("");
        fences.is_multiple_of(2) && line.replace("```", "").matches('`').count().is_multiple_of(2)
    })
}

fn markup(text: &str, tools: &dyn Toolbox) -> Option<PseudoCall> {
    let made =
        |tool: Option<&str>| Some(PseudoCall { shape: Shape::Markup, tool: tool.map(|name| name.trim().to_owned()) });
    // A message that is one fenced block of markup reads like one without the fence.
    let (lead, body, fenced) = match FENCE.captures(text) {
        Some(fence) if MARKUP.find(fence.get(3)?.as_str().trim_start()).is_some_and(|m| m.start() == 0) => {
            if !is_tail(fence.get(4).map_or("", |m| m.as_str())) {
                return None;
            }
            (fence.get(1)?.as_str(), fence.get(3)?.as_str().trim(), true)
        }
        _ => match first_outside_code(text, &MARKUP) {
            Some(at) => (&text[..at], &text[at..], false),
            None => {
                // `<read_file><path>x</path></read_file>`: the tag itself is the tool.
                let tag = OWN_TAG.captures(text)?.get(1)?.as_str();
                let tail = text.rsplit('>').next().unwrap_or("");
                let closed = text.contains('>') && tail.trim().chars().count() <= TAIL_CHARS;
                return if known(tools, tag) && (closed || !text.contains('>') || !text.contains("</")) {
                    made(Some(tag))
                } else {
                    None
                };
            }
        },
    };
    let bare = lead.trim().is_empty();
    if !is_lead_in(lead) || (fenced && !bare && !INTENT.is_match(lead)) {
        return None;
    }
    // Behind the call: what follows its last bracket.
    let end = body
        .rfind(['>', ']', '}', ')'])
        .map_or(body.len(), |at| at + body[at..].chars().next().map_or(1, char::len_utf8));
    let whole = CLOSING.is_match(&body[1..]) || serde_json::from_str::<Value>(body).is_ok();
    let tail = &body[end..];
    if whole && tail.trim().chars().count() > TAIL_CHARS && !is_tail(tail) && !RESULT.is_match(body) {
        return None;
    }
    let names: Vec<&str> = NAMES
        .captures_iter(body)
        .filter_map(|found| found.iter().skip(1).flatten().next())
        .map(|m| m.as_str())
        .collect();
    if let Some(name) = names.iter().find(|name| known(tools, name.split(':').next().unwrap_or(name))) {
        return made(Some(name.split(':').next().unwrap_or(name)));
    }
    if let Some(name) = inner_call_name(body).filter(|name| known(tools, name)) {
        return made(Some(name));
    }
    match names.first() {
        // It broke off inside the name.
        Some(name) if !whole && begins_known(tools, name) => made(Some(name)),
        // Nothing but control markup is no answer either, whatever name stands in it.
        Some(name) if bare && !fenced => made(Some(name)),
        None if bare && !fenced && (!whole || body.len() < 64) => made(None),
        _ => None,
    }
}

/// The name in `[read_file(path="x")]` and `<tool_code>print(read_file("x"))`.
fn inner_call_name(body: &str) -> Option<&str> {
    let inner = body.split_once(['>', ']'])?.1.trim_start_matches(|c: char| c.is_whitespace() || c == '[');
    CODE.captures(inner)?.get(1).map(|m| m.as_str())
}

fn action(text: &str, tools: &dyn Toolbox) -> Option<PseudoCall> {
    let found = ACTION.captures(text)?;
    let name = found.get(1)?.as_str();
    let at = found.get(0)?.start();
    let has_input = ACTION_INPUT.is_match(&text[at..]);
    let begins = THOUGHT.is_match(text);
    if !known(tools, name) || FINAL_ANSWER.is_match(text) || text.contains("```\nAction") {
        return None;
    }
    let essential = begins || (has_input && is_lead_in(&text[..at]));
    let bare_line = begins && text[found.get(0)?.end()..].trim().is_empty();
    (essential && (has_input || bare_line)).then(|| PseudoCall { shape: Shape::Action, tool: Some(name.to_owned()) })
}

fn json_or_code(text: &str, tools: &dyn Toolbox) -> Option<PseudoCall> {
    if let Some(fence) = FENCE.captures(text) {
        let lead = fence.get(1)?.as_str().trim();
        let after = fence.get(4).map_or("", |m| m.as_str());
        let essential = is_tail(after) && (lead.is_empty() || (is_lead_in(lead) && INTENT.is_match(lead)));
        return if essential { body_call(fence.get(3)?.as_str().trim(), tools) } else { None };
    }
    let unquoted = text.strip_prefix('`').and_then(|rest| rest.strip_suffix('`')).unwrap_or(text);
    let announced = CALLING.find(unquoted).map_or(unquoted, |said| unquoted[said.end()..].trim_matches('`'));
    if let Some(call) = body_call(unquoted, tools).or_else(|| body_call(announced, tools)) {
        return Some(call);
    }
    // A lead-in and the call on its own lines.
    for opener in ["\n{", "\n["] {
        if let Some(at) = text.find(opener) {
            let lead = &text[..at];
            return if is_lead_in(lead) && INTENT.is_match(lead) { json_call(text[at..].trim(), tools) } else { None };
        }
    }
    let (lead, last) = text.rsplit_once('\n')?;
    if is_lead_in(lead) && INTENT.is_match(lead) { code_call(last.trim().trim_matches('`'), tools) } else { None }
}

fn body_call(body: &str, tools: &dyn Toolbox) -> Option<PseudoCall> {
    let bracketed = body.strip_prefix('[').map(|inner| inner.strip_suffix(']').unwrap_or(inner));
    json_call(body, tools).or_else(|| code_call(bracketed.unwrap_or(body), tools))
}

fn json_call(body: &str, tools: &dyn Toolbox) -> Option<PseudoCall> {
    if !body.starts_with(['{', '[']) {
        return None;
    }
    let made = |name: String| Some(PseudoCall { shape: Shape::Json, tool: Some(name) });
    // The first value of several (JSON lines) decides; what is behind the last one must be little.
    let mut values = serde_json::Deserializer::from_str(body).into_iter::<Value>();
    if let Some(Ok(value)) = values.next() {
        let name = called_name(&value, tools)?;
        let rest = body[values.byte_offset()..].trim();
        let essential = rest.chars().count() <= TAIL_CHARS || rest.starts_with(['{', '[']);
        return if essential && known(tools, &name) { made(name) } else { None };
    }
    // Broken or unclosed JSON: name and arguments by their keys.
    let name = NAMES.captures(body)?.iter().skip(1).flatten().next()?.as_str();
    let has_arguments = ["\"arguments\"", "\"parameters\"", "\"args\"", "\"input\"", "\"action_input\""]
        .iter()
        .any(|key| body.contains(key));
    let tail = body.rsplit(['}', ']', '"']).next().unwrap_or("").trim();
    (has_arguments && known(tools, name) && tail.chars().count() <= TAIL_CHARS).then(|| name.to_owned()).and_then(made)
}

/// The tool a JSON value calls: it needs a name and a place for arguments.
fn called_name(value: &Value, tools: &dyn Toolbox) -> Option<String> {
    let object = match value {
        Value::Array(values) => return values.first().and_then(|value| called_name(value, tools)),
        Value::Object(object) => object,
        _ => return None,
    };
    for wrapper in ["tool_calls", "tool_call", "function_call", "function"] {
        if let Some(inner) = object.get(wrapper).filter(|inner| !inner.is_string()) {
            return called_name(inner, tools);
        }
    }
    // `{"read_file": {"path": "x"}}`, and arguments beside a name that can only be a tool's.
    if let Some((name, Value::Object(_))) =
        object.iter().next().filter(|(name, _)| object.len() == 1 && known(tools, name))
    {
        return Some(name.clone());
    }
    if let Some(name) =
        ["tool", "tool_name", "function", "function_name"].iter().find_map(|key| object.get(*key)?.as_str())
        && object.len() > 1
    {
        return Some(name.to_owned());
    }
    let name = ["name", "tool", "tool_name", "function", "function_name", "action"]
        .iter()
        .find_map(|key| object.get(*key).and_then(Value::as_str))?;
    let has_arguments = ["arguments", "parameters", "args", "input", "action_input", "params", "tool_input"]
        .iter()
        .any(|key| object.get(*key).is_some_and(|inner| inner.is_object() || inner.is_string() || inner.is_null()));
    has_arguments.then(|| name.to_owned())
}

fn code_call(body: &str, tools: &dyn Toolbox) -> Option<PseudoCall> {
    let found = CODE.captures(body)?;
    let name = found.get(1)?.as_str();
    if !known(tools, name) {
        return None;
    }
    let rest = &body[found.get(2)?.start()..];
    // Closed: nothing but the end behind the last bracket. Unclosed: it broke off inside the arguments.
    let essential = match rest.rfind(')') {
        Some(at) => rest[at + 1..].trim_matches(|c: char| c.is_whitespace() || c == ';').is_empty(),
        None => true,
    };
    essential.then(|| PseudoCall { shape: Shape::Code, tool: Some(name.to_owned()) })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::agent::turn::tests::Bench;

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
            (Shape::Code, "Calling read_file(\"a\")"),
            (Shape::Code, "调用 read_file(\"a\")"),
        ] {
            assert_eq!(looks_like_call(text, &tools).map(|call| call.shape), Some(shape), "{text}");
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
            "例如：<tool_call>{\"name\":\"read\",\"arguments\":{}}</tool_call>",
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
            assert_eq!(looks_like_call(text, &tools), None, "{text}");
        }
        let text = format!("{long}\n<tool_call>{{\"name\":\"read\",\"arguments\":{{}}}}</tool_call>");
        assert_eq!(looks_like_call(&text, &tools), None);
        let text = format!("<tool_call>{{\"name\":\"read\",\"arguments\":{{}}}}</tool_call>\n{long}");
        assert_eq!(looks_like_call(&text, &tools), None);
    }

    #[test]
    fn a_preview_waits_for_what_may_become_a_call_and_for_nothing_else() {
        for text in [
            "",
            "<",
            "<tool",
            "<tool_call>{\"na",
            "{",
            "{\"name\":",
            "```json\n{\"n",
            "```",
            "read_file",
            "read_file(\"a",
            "[TOOL",
            "Action: read",
            "I'll look.\n<tool_c",
            "Thought: I",
        ] {
            assert!(may_become_call(text), "{text}");
        }
        for text in [
            "Hello there",
            "你好",
            "The answer is 42.",
            "read the book",
            "# Title\n\nText",
            "a < b and more",
            "- one\n- two",
        ] {
            assert!(!may_become_call(text), "{text}");
        }
    }

    #[test]
    fn reasoning_is_not_visible() {
        assert_eq!(visible("<think>a</think> b"), "b");
        assert_eq!(visible("<think>a"), "");
        assert_eq!(visible("a\n</think>\nb"), "b");
        assert_eq!(visible("b"), "b");
    }

    proptest! {
        #[test]
        fn no_text_panics(text in r#"[<>{}\[\]()`"':=/|｜▁a-z_\n 读]{0,120}|\PC{0,80}"#) {
            let tools = Bench;
            let _ = looks_like_call(&text, &tools);
            let _ = may_become_call(&text);
        }

        /// Whatever is recognised at its end had its preview held back at every point before.
        #[test]
        fn previews_of_bare_calls_are_held_back(cut in 0_usize..60) {
            for text in [
                r#"<tool_call>{"name": "read", "arguments": {"path": "a.md"}}</tool_call>"#,
                r#"{"name":"read","parameters":{"path":"a"}}"#,
                "<function=read>{\"path\":\"a\"}</function>",
                "read_file(\"notes.md\")",
                "```json\n{\"name\": \"read\", \"arguments\": {}}\n```",
            ] {
                let prefix: String = text.chars().take(cut).collect();
                prop_assert!(may_become_call(&prefix), "{}", prefix);
            }
        }
    }
}
