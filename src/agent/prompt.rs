//! Station 7: the system prompt and the words of a user message, from values alone. Performs no IO and knows no time:
//! equal input gives equal bytes, so that a provider's prompt cache hits.
//!
//! The order is design.md §8: core rules, project context, skills, runtime line. The rules stand in
//! `prompts/rules.<lang>.md`, one block a section; what changes every turn goes into the user message ([`user_text`]).

use std::borrow::Cow;

use sha2::{Digest, Sha256};

use crate::{
    lang::Lang,
    model::ToolSpec,
    policy::Role,
    skills::SkillEntry,
    untrusted,
    workspace::{Content, WorkspaceFile, is_effectively_empty},
};

mod message;

pub use message::{Attached, Heard, Quote, Said, UserText, Who, defuse, nickname, user_text};

/// The most characters of one workspace file in a prompt.
pub const FILE_CHARS: usize = 20_000;
/// The most characters of all workspace files together.
pub const FILES_CHARS: usize = 150_000;
/// A file that would get less room than this is left out and named.
const WORTH_SHOWING: usize = 64;
/// The most skills in a prompt, and the most characters they take. openclaw-parity.md §4.3.
const SKILLS: usize = 150;
const SKILLS_CHARS: usize = 18_000;

/// How much of the prompt a turn gets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everything: a person's turn.
    #[default]
    Full,
    /// Sub-agents and scheduled work: no chat manners, no memory, no heartbeats.
    Minimal,
    /// The identity sentence alone.
    None,
}

/// Facts about where the agent runs: the last line of the prompt. Empty ones are left out.
#[derive(Clone, Copy, Debug, Default)]
pub struct Runtime<'a> {
    /// The machine's name.
    pub host: &'a str,
    /// Operating system and architecture, e.g. `linux (x86_64)`.
    pub os: &'a str,
    /// Our version.
    pub version: &'a str,
    /// The model's name.
    pub model: &'a str,
    /// The channel, e.g. `telegram:main`.
    pub channel: &'a str,
}

/// Everything a system prompt is made of.
#[derive(Clone, Debug)]
pub struct PromptInput<'a> {
    /// How much of it.
    pub mode: Mode,
    /// The language of the rules (`agent.lang`).
    pub lang: Lang,
    /// The agent's id, e.g. `main`.
    pub agent: &'a str,
    /// The workspace's files; order does not matter for the seven known ones.
    pub files: &'a [WorkspaceFile],
    /// MEMORY.md may be shown: a direct chat of the owner.
    pub memory_allowed: bool,
    /// The lowest role of what the turn answers: decides what the prompt may show.
    pub role: Role,
    /// The tools of this turn.
    pub tools: &'a [ToolSpec],
    /// The skills of this turn.
    pub skills: &'a [SkillEntry],
    /// The workspace's path as the agent should write it.
    pub workspace_dir: &'a str,
    /// Where it runs.
    pub runtime: Runtime<'a>,
    /// Silence is honoured in this chat, so the prompt speaks of NO_REPLY.
    pub silent_allowed: bool,
}

/// A system prompt in sections, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompt {
    /// The sections; none is empty.
    pub sections: Vec<Section>,
}

/// One section of a prompt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// A stable name for `prompt show` and the journal, e.g. `safety` or `file:SOUL.md`.
    pub name: Cow<'static, str>,
    /// What the model reads.
    pub text: String,
}

impl Section {
    /// SHA-256 of the text in hex: the journal keeps this instead of the text.
    pub fn sha256(&self) -> String {
        let digest = Sha256::digest(self.text.as_bytes());
        let hex = |half: u8| char::from_digit(u32::from(half), 16).expect("half a byte is a hex digit");
        digest.iter().flat_map(|byte| [hex(byte >> 4), hex(byte & 15)]).collect()
    }
}

impl Prompt {
    /// The whole text; sections are parted by a blank line.
    pub fn text(&self) -> String {
        let mut text = String::with_capacity(self.sections.iter().map(|section| section.text.len() + 2).sum());
        for section in &self.sections {
            if !text.is_empty() {
                text.push_str("\n\n");
            }
            text.push_str(&section.text);
        }
        text
    }

    /// Name and bytes of each section.
    pub fn sizes(&self) -> impl Iterator<Item = (&str, usize)> {
        self.sections.iter().map(|section| (section.name.as_ref(), section.text.len()))
    }

    fn push(&mut self, name: impl Into<Cow<'static, str>>, text: String) {
        if !text.is_empty() {
            self.sections.push(Section { name: name.into(), text });
        }
    }
}

/// Puts a system prompt together. Pure: equal input, equal bytes.
pub fn assemble(input: &PromptInput<'_>) -> Prompt {
    let rules = Rules::of(input.lang);
    let mut prompt = Prompt { sections: Vec::new() };
    prompt.push("identity", rules.get("identity").to_owned());
    if input.mode == Mode::None {
        return prompt;
    }
    core_rules(&mut prompt, input, &rules);
    project_context(&mut prompt, input, &rules);
    if shows_skills(input) {
        prompt.push("available_skills", available_skills(input.skills, &rules));
    }
    prompt.push("runtime", runtime_line(input));
    prompt
}

fn core_rules(prompt: &mut Prompt, input: &PromptInput<'_>, rules: &Rules) {
    let full = input.mode == Mode::Full;
    let known = input.role != Role::Stranger;
    let has = |tool: &str| known && input.tools.iter().any(|spec| spec.name == tool);
    if known && !input.tools.is_empty() {
        prompt.push("tooling", rules.get("tooling").to_owned());
        prompt.push("tool_call_style", rules.get("tool_call_style").to_owned());
    }
    if has("todo") {
        prompt.push("plans", rules.get("plans").to_owned());
    }
    prompt.push("safety", rules.get("safety").to_owned());
    if shows_skills(input) {
        prompt.push("skills", rules.get("skills").to_owned());
    }
    let recall = match () {
        () if !full => None,
        () if has("memory_search") => Some("memory_by_search"),
        () if has("grep") && input.memory_allowed => Some("memory_by_grep"),
        () => None,
    };
    if let Some(how) = recall {
        let mut text = fill(rules.get("memory_recall"), &[("memory", rules.get(how))]);
        if has("memory_add") {
            text.push('\n');
            text.push_str(rules.get("memory_keep"));
        }
        prompt.push("memory_recall", text);
    }
    if known && !input.tools.is_empty() {
        prompt.push("workspace", fill(rules.get("workspace"), &[("workspace", &one_line(input.workspace_dir, 400))]));
    }
    if !full {
        return;
    }
    prompt.push("reply_tags", rules.get("reply_tags").to_owned());
    let mut messaging = rules.get("messaging").to_owned();
    if has("message") {
        messaging.push('\n');
        messaging.push_str(rules.get(if input.silent_allowed { "messaging_tool_silent" } else { "messaging_tool" }));
    }
    prompt.push("messaging", messaging);
    if input.silent_allowed {
        prompt.push("silent_replies", rules.get("silent_replies").to_owned());
    }
    if input.role >= Role::Trusted {
        prompt.push("heartbeats", rules.get("heartbeats").to_owned());
    }
}

/// Whether a turn of this role may see a workspace file of that name. USER.md and HEARTBEAT.md are about the owner;
/// MEMORY.md has a rule of its own ([`PromptInput::memory_allowed`]).
fn may_see(role: Role, file: &str) -> bool {
    match role {
        Role::Owner | Role::Trusted => true,
        Role::Member => matches!(file, "AGENTS.md" | "SOUL.md" | "IDENTITY.md" | "TOOLS.md"),
        Role::Stranger => matches!(file, "SOUL.md" | "IDENTITY.md"),
    }
}

/// The workspace's files that this turn may see, in the order of [`crate::workspace::FILES`], others after them.
fn visible<'a>(input: &PromptInput<'a>) -> Vec<&'a WorkspaceFile> {
    let place = |name: &str| crate::workspace::FILES.iter().position(|file| *file == name);
    let mut files: Vec<&WorkspaceFile> = input
        .files
        .iter()
        .filter(|file| may_see(input.role, &file.name))
        .filter(|file| match file.name.as_str() {
            "MEMORY.md" => input.memory_allowed && input.role == Role::Owner && input.mode == Mode::Full,
            "HEARTBEAT.md" => input.mode == Mode::Full,
            _ => true,
        })
        .collect();
    files.sort_by_key(|file| place(&file.name).unwrap_or(usize::MAX));
    files
}

fn project_context(prompt: &mut Prompt, input: &PromptInput<'_>, rules: &Rules) {
    let files = visible(input);
    let (mut missing, mut empty, mut refused, mut left_out) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut shown = Vec::new();
    let mut room = FILES_CHARS;
    for file in files {
        let name = one_line(&file.name, 80);
        match &file.content {
            Content::Missing => missing.push(name),
            Content::Refused(why) => refused.push(format!("{name} ({})", why.text(input.lang))),
            Content::Text(text) if is_effectively_empty(text) => empty.push(name),
            Content::Text(text) => {
                let limit = FILE_CHARS.min(room);
                let chars = text.chars().count();
                if limit < WORTH_SHOWING && chars > limit {
                    left_out.push(name);
                    continue;
                }
                let text = cut(text.trim(), &name, limit, rules);
                room -= text.chars().count().min(room);
                shown.push((name, text));
            }
        }
    }
    if shown.is_empty() && missing.is_empty() && empty.is_empty() && refused.is_empty() {
        return;
    }
    let mut head = rules.get("project_context").to_owned();
    if shown.iter().any(|(name, _)| name == "SOUL.md") {
        head.push('\n');
        head.push_str(rules.get("soul"));
    }
    for (rule, names) in [("missing", missing), ("empty", empty), ("refused", refused), ("left_out", left_out)] {
        if !names.is_empty() {
            head.push('\n');
            let total = FILES_CHARS.to_string();
            head.push_str(&fill(rules.get(rule), &[("names", &names.join(", ")), ("total", &total)]));
        }
    }
    prompt.push("project_context", head);
    for (name, text) in shown {
        prompt.push(format!("file:{name}"), format!("## {name}\n{}", defuse(&text)));
    }
}

/// Keeps the first 70 % and the last 20 % of `limit` characters and says in between what is missing.
fn cut(text: &str, name: &str, limit: usize, rules: &Rules) -> String {
    let total = text.chars().count();
    if total <= limit {
        return text.to_owned();
    }
    let (head, tail) = (limit * 7 / 10, limit / 5);
    let at = |chars: usize| text.char_indices().nth(chars).map_or(text.len(), |(byte, _)| byte);
    let (kept, total_text) = ((head + tail).to_string(), total.to_string());
    let marker = fill(rules.get("cut"), &[("name", name), ("kept", &kept), ("total", &total_text)]);
    format!("{}\n\n{marker}\n\n{}", &text[..at(head)], &text[at(total - tail)..])
}

fn shows_skills(input: &PromptInput<'_>) -> bool {
    input.role != Role::Stranger && !input.skills.is_empty() && input.tools.iter().any(|spec| spec.name == "read")
}

/// The list of skills as XML, by name; what does not fit is counted.
fn available_skills(skills: &[SkillEntry], rules: &Rules) -> String {
    let mut skills: Vec<&SkillEntry> = skills.iter().collect();
    skills.sort_by(|a, b| (&a.name, &a.location).cmp(&(&b.name, &b.location)));
    let total = skills.len();
    let mut text = String::from("<available_skills>\n");
    let (mut included, mut chars) = (0, 0);
    for skill in skills.into_iter().take(SKILLS) {
        let entry = format!(
            "<skill><name>{}</name><description>{}</description><location>{}</location></skill>\n",
            xml(&skill.name, 64),
            xml(&skill.description, 1024),
            xml(&skill.location, 400),
        );
        let more = entry.chars().count();
        if chars + more > SKILLS_CHARS {
            break;
        }
        text.push_str(&entry);
        chars += more;
        included += 1;
    }
    text.push_str("</available_skills>");
    if included < total {
        let (included, total) = (included.to_string(), total.to_string());
        text.push('\n');
        text.push_str(&fill(rules.get("skills_cut"), &[("included", &included), ("total", &total)]));
    }
    text
}

fn runtime_line(input: &PromptInput<'_>) -> String {
    let Runtime { host, os, version, model, channel } = input.runtime;
    let facts = [
        ("agent", input.agent),
        ("host", host),
        ("os", os),
        ("version", version),
        ("model", model),
        ("channel", channel),
    ];
    let facts: Vec<String> = facts
        .into_iter()
        .map(|(key, value)| (key, one_line(value, 80).replace('|', "/")))
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    if facts.is_empty() { String::new() } else { format!("Runtime: {}", facts.join(" | ")) }
}

/// One line of at most `chars` characters, without control, invisible or direction characters.
fn one_line(text: &str, chars: usize) -> String {
    let visible = text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(|c| !untrusted::is_hidden(*c));
    let joined: String = visible.collect();
    let mut line = String::new();
    for word in joined.split(' ').filter(|word| !word.is_empty()) {
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    match line.char_indices().nth(chars) {
        Some((byte, _)) => format!("{}…", line[..byte].trim_end()),
        None => line,
    }
}

/// One line, safe between XML tags.
fn xml(text: &str, chars: usize) -> String {
    defuse(&one_line(text, chars)).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Fills `{name}` places in one pass: what is filled in is never read as a place again.
fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len() + 64);
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let filled = rest.find('}').and_then(|close| {
            let (_, value) = values.iter().find(|(name, _)| *name == &rest[1..close])?;
            Some((close, value))
        });
        match filled {
            Some((close, value)) => {
                out.push_str(value);
                rest = &rest[close + 1..];
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// The rules of one language: `<!-- key -->` lines and the block under each.
struct Rules {
    blocks: Vec<(&'static str, &'static str)>,
}

impl Rules {
    fn of(lang: Lang) -> Self {
        Self::parse(match lang {
            Lang::En => include_str!("prompts/rules.en.md"),
            Lang::Zh => include_str!("prompts/rules.zh.md"),
        })
    }

    fn parse(text: &'static str) -> Self {
        let blocks = text
            .split("<!-- ")
            .filter_map(|block| block.split_once(" -->"))
            .map(|(key, block)| (key, block.trim()))
            .collect();
        Self { blocks }
    }

    fn get(&self, key: &str) -> &'static str {
        let block = self.blocks.iter().find(|(name, _)| *name == key);
        block.expect("both rule files hold every key: see the test").1
    }
}

#[cfg(test)]
mod tests;
