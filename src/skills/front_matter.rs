//! The front matter of a SKILL.md: what stands between its two `---` lines, as fields. Pure.
//!
//! It is YAML by the book first. Much of what people write is not (colons, backticks, tabs, JSON with surrogate
//! escapes), so what fails is read again field by field, with the few repairs of dependencies.md §2. Bounded before it
//! is parsed: size, nesting, no aliases, no type tags.

use std::{collections::HashMap, sync::LazyLock};

use regex::Regex;
use serde_json::{Map, Value};

use super::{Fault, Warning};

/// The most bytes of a front matter.
pub(super) const BYTES: usize = 16 * 1024;
/// The deepest nesting.
pub(super) const DEPTH: usize = 64;

/// The fields of a front matter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct FrontMatter {
    /// The top-level fields that could be read.
    pub fields: Map<String, Value>,
    /// What was odd.
    pub warnings: Vec<Warning>,
}

/// Reads the front matter of a whole SKILL.md, line ends already `\n`.
pub(super) fn parse(file: &str) -> Result<FrontMatter, Fault> {
    let yaml = between_the_lines(file.trim_start_matches('\u{feff}'))?;
    if yaml.len() > BYTES {
        return Err(Fault::FrontMatterTooLarge);
    }
    if is_too_deep(yaml) {
        return Err(Fault::TooDeep);
    }
    if has_anchors_or_tags(yaml) {
        return Err(Fault::AnchorsOrTags);
    }
    let entries = split(yaml);
    let mut front = FrontMatter::default();
    match serde_yaml::from_str::<Value>(yaml) {
        Ok(Value::Object(fields)) => front.fields = fields,
        Ok(Value::Null) => {}
        Ok(_) | Err(_) => {
            front.warnings.push(Warning::Repaired);
            for entry in &entries {
                match entry.read() {
                    // What runs on to the end of the front matter is no name: the folder's stands for it.
                    Some(Value::String(name)) if entry.key == "name" && name.starts_with(['[', '{', '"', '\'']) => {
                        let at = yaml.lines().position(|line| line.starts_with("name")).unwrap_or(0);
                        return Err(Fault::NameNotClosed(lines_before(file, yaml) + at + 1));
                    }
                    Some(value) => drop(front.fields.insert(entry.key.clone(), value)),
                    None => front.warnings.push(Warning::FieldIgnored(entry.key.clone())),
                }
            }
        }
    }
    let mut seen = HashMap::new();
    for entry in &entries {
        let times = seen.entry(entry.key.as_str()).or_insert(0);
        *times += 1;
        if *times == 2 {
            front.warnings.push(Warning::FieldTwice(entry.key.clone()));
        }
        // A number or a truth value where words belong (`name: 007`, `description: 1.10`): the words as written.
        if let Some(value) = front.fields.get_mut(&entry.key).filter(|_| entry.is_words())
            && (value.is_number() || value.is_boolean())
        {
            *value = Value::String(entry.first.split(" #").next().unwrap_or_default().trim().to_owned());
        }
        let is_plain = !entry.first.starts_with(['"', '\'', '|', '>', '{', '[']);
        let is_cut = is_plain && entry.first.contains(" #") && front.warnings.first() != Some(&Warning::Repaired);
        if entry.key == "description" && is_cut {
            front.warnings.push(Warning::CutAtHash);
        }
    }
    Ok(front)
}

/// What stands behind the front matter; all of it where there is none.
pub(super) fn body(file: &str) -> &str {
    let start = file.trim_start_matches('\u{feff}');
    let Ok(yaml) = between_the_lines(start) else { return file };
    let behind = yaml.as_ptr() as usize - file.as_ptr() as usize + yaml.len();
    file[behind..].split_once('\n').map_or("", |(_, body)| body)
}

/// The line, from 1, where a front matter stops being YAML; `None` when it is YAML.
pub(super) fn line_of_mistake(file: &str) -> Option<usize> {
    let yaml = between_the_lines(file.trim_start_matches('\u{feff}')).ok()?;
    let at = serde_yaml::from_str::<Value>(yaml).err()?.location().map_or(1, |place| place.line());
    Some(lines_before(file, yaml) + at)
}

/// The line, from 1, of what is refused before it is read: too deep, an anchor with its alias, a tag.
pub(super) fn line_of_fault(file: &str) -> Option<usize> {
    let yaml = between_the_lines(file.trim_start_matches('\u{feff}')).ok()?;
    let mut end = 0;
    let wrong = |part: &str| is_too_deep(part) || has_anchors_or_tags(part);
    let at = yaml.split_inclusive('\n').position(|line| {
        end += line.len();
        wrong(&yaml[..end])
    })?;
    Some(lines_before(file, yaml) + at + 1)
}

fn lines_before(file: &str, part: &str) -> usize {
    file[..part.as_ptr() as usize - file.as_ptr() as usize].matches('\n').count()
}

/// What stands between the first two lines that are exactly `---`.
fn between_the_lines(file: &str) -> Result<&str, Fault> {
    let body = file.trim_start_matches(['\n', ' ', '\t']);
    let (first, rest) = body.split_once('\n').ok_or(Fault::NoFrontMatter)?;
    if first.trim_end() != "---" {
        return Err(Fault::NoFrontMatter);
    }
    let mut at = 0;
    for line in rest.split_inclusive('\n') {
        if line.trim_end() == "---" {
            return Ok(&rest[..at]);
        }
        at += line.len();
    }
    Err(Fault::NotClosed)
}

/// Counts brackets without regard to quotes, runs of `- `, and levels of indentation: a parser never sees what is too
/// deep.
fn is_too_deep(yaml: &str) -> bool {
    let mut brackets = 0_usize;
    for byte in yaml.bytes() {
        match byte {
            b'[' | b'{' => brackets += 1,
            b']' | b'}' => brackets = brackets.saturating_sub(1),
            _ => {}
        }
        if brackets > DEPTH {
            return true;
        }
    }
    let mut levels: Vec<usize> = Vec::new();
    yaml.lines().filter(|line| !line.trim().is_empty()).any(|line| {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        let markers = line[indent..].split_whitespace().take_while(|word| matches!(*word, "-" | "?")).count();
        levels.retain(|level| *level < indent);
        levels.push(indent);
        levels.len() + markers > DEPTH
    })
}

/// Whether a value is a YAML alias beside an anchor (bombs, merge keys), or has an explicit type tag.
fn has_anchors_or_tags(yaml: &str) -> bool {
    static PATTERNS: LazyLock<[Regex; 3]> = LazyLock::new(|| {
        let node = r"(?m)(?:^[ \t]*|:[ \t]*|[-?][ \t]+|[\[{,][ \t]*)";
        // What ends a name there is what ends it for the parser, a comment behind it among it.
        [r"&[A-Za-z0-9_-]+(?:[ \t\n?:,\]}%@`]|$)", r"\*[A-Za-z0-9_-]+(?:[ \t?:,\]}%@`]|$)", r"!(?:![A-Za-z]|<)"]
            .map(|pattern| Regex::new(&format!("{node}{pattern}")).expect("the pattern is a constant and tested"))
    });
    let [anchor, alias, tag] = &*PATTERNS;
    tag.is_match(yaml) || (anchor.is_match(yaml) && alias.is_match(yaml))
}

/// One top-level field as written.
struct Entry {
    key: String,
    /// What follows the colon on the first line.
    first: String,
    /// The lines that belong to it.
    more: Vec<String>,
}

/// Splits into top-level fields: a field begins at a line `key:` in column 0, and everything up to the next one is its.
fn split(yaml: &str) -> Vec<Entry> {
    static KEY: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"^["']?([A-Za-z_][A-Za-z0-9_.-]*)["']?[ \t]*(?::(?:[ \t]+(.*))?|：[ \t]*(.*))$"#)
            .expect("the pattern is a constant and tested")
    });
    let braces =
        |text: &str| text.bytes().fold(0_i64, |sum, byte| sum + i64::from(byte == b'{') - i64::from(byte == b'}'));
    let mut entries: Vec<Entry> = Vec::new();
    // Braces of a JSON value may hold lines that look like fields.
    let mut open = 0_i64;
    for line in yaml.lines() {
        match KEY.captures(line).filter(|_| open <= 0) {
            Some(found) => {
                let value = found.get(2).or_else(|| found.get(3));
                let first = value.map_or("", |value| value.as_str()).trim().to_owned();
                open = if first.starts_with('{') { braces(&first) } else { 0 };
                entries.push(Entry { key: found[1].to_owned(), first, more: Vec::new() });
            }
            None => {
                open = if open > 0 { open + braces(line) } else { 0 };
                if let Some(entry) = entries.last_mut() {
                    entry.more.push(line.to_owned());
                }
            }
        }
    }
    entries
}

impl Entry {
    /// Whether people write words here that YAML may take for something else.
    fn is_words(&self) -> bool {
        matches!(self.key.as_str(), "name" | "description") && !self.first.is_empty()
    }

    /// The value: YAML by the book, else JSON, else plain text, else `None`.
    fn read(&self) -> Option<Value> {
        let lines: Vec<String> = self.more.iter().map(|line| untabbed(line)).collect();
        let yaml = |first: &str, lines: &[String]| {
            let text = format!("{}: {first}\n{}\n", self.key, lines.join("\n"));
            let value = serde_yaml::from_str::<Value>(&text).ok()?;
            value.as_object().and_then(|fields| fields.get(&self.key)).cloned()
        };
        let whole = format!("{}\n{}", self.first, self.more.join("\n"));
        if whole.trim_start().starts_with(['{', '[']) {
            let json = serde_json::from_str(&whole).ok();
            if let Some(value) = json.or_else(|| serde_json::from_str(&without_trailing_commas(&whole)).ok()) {
                return Some(value);
            }
        }
        if let Some(value) = yaml(&self.first, &lines) {
            return Some(value);
        }
        if self.first.is_empty() || self.first.starts_with(['|', '>', '{']) {
            let quoted: Vec<String> = lines.iter().map(|line| quoted_value(line)).collect();
            return yaml(&self.first, &quoted);
        }
        let mut text = self.first.clone();
        for line in lines.iter().map(|line| line.trim()).filter(|line| !line.is_empty()) {
            text.push(' ');
            text.push_str(line);
        }
        for quote in ['"', '\''] {
            if let Some(inner) = text.strip_prefix(quote).and_then(|text| text.strip_suffix(quote)) {
                return Some(Value::String(inner.to_owned()));
            }
        }
        Some(Value::String(text))
    }
}

/// Tabs at the start become two spaces each.
fn untabbed(line: &str) -> String {
    let content = line.trim_start_matches([' ', '\t']);
    let indent = line[..line.len() - content.len()].replace('\t', "  ");
    format!("{indent}{content}")
}

/// A nested `key: value` line with its plain value in quotes.
fn quoted_value(line: &str) -> String {
    static NESTED: LazyLock<Regex> = LazyLock::new(|| {
        Regex::new(r#"^([ ]+(?:- )?[A-Za-z_][A-Za-z0-9_.-]*:[ \t]+)([^"'|>\[{].*)$"#)
            .expect("the pattern is a constant and tested")
    });
    match NESTED.captures(line) {
        Some(found) => format!("{}{}", &found[1], Value::String(found[2].trim().to_owned())),
        None => line.to_owned(),
    }
}

/// JSON without the commas before a closing bracket.
fn without_trailing_commas(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let (mut in_string, mut escaped) = (false, false);
    for c in json.chars() {
        if in_string {
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
        } else if c == '"' {
            in_string = true;
        } else if matches!(c, '}' | ']') {
            let kept = out.trim_end().strip_suffix(',').map(str::len);
            if let Some(kept) = kept {
                out.truncate(kept);
            }
        }
        out.push(c);
    }
    out
}
