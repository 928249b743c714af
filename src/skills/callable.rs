//! The callable tool of a skill, `metadata.crawfish.tool`: read from its front matter, and its command line filled with
//! the arguments of a call. Pure but for one look at the skill's own files.
//!
//! There is no shell: one `{param}` fills one element of the argument vector, whatever is in it. design.md §9.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::Skill;
use crate::{
    lang::{self, Lang},
    policy::Effect,
};

/// The most elements of a command, bytes of one, and bytes of a schema.
const ELEMENTS: usize = 64;
const ELEMENT_BYTES: usize = 64 * 1024;
const SCHEMA_BYTES: usize = 8 * 1024;
/// The most characters of a description.
const DESCRIPTION: usize = 600;
/// Stands for the skill's folder in a command.
const BASE: &str = "baseDir";

/// A callable tool as its skill declares it.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Callable {
    /// What it does; without one, the skill's description.
    #[serde(default)]
    pub description: Option<String>,
    /// A JSON Schema of an object.
    #[serde(default = "no_parameters")]
    pub parameters: Value,
    /// The program and its arguments, with `{param}`.
    pub command: Vec<String>,
    /// What a second run would do.
    #[serde(default = "worst")]
    pub effect: Effect,
    /// The most seconds it may run.
    #[serde(default = "minute", alias = "timeout")]
    pub timeout_s: u64,
}

fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {} })
}

fn worst() -> Effect {
    Effect::Effect
}

fn minute() -> u64 {
    60
}

/// Why a skill's tool is not registered; the skill itself can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ToolFault {
    /// It is not of that form, in the words of the reader.
    Form(String),
    /// There is no program in its command, or it is too long.
    Command,
    /// The command has this place, and there is no such parameter.
    Placeholder(String),
    /// The schema is too large.
    Schema,
    /// The registry refuses it, in its words.
    Refused(String),
}

impl ToolFault {
    /// The reason in one line.
    pub fn text(&self, lang: Lang) -> String {
        match self {
            Self::Form(why) | Self::Refused(why) => lang::skill_tool_form(lang, why),
            Self::Command => lang::skill_tool_command(lang, ELEMENTS),
            Self::Placeholder(name) => lang::skill_tool_placeholder(lang, name),
            Self::Schema => lang::skill_tool_schema(lang, SCHEMA_BYTES / 1024),
        }
    }
}

impl Callable {
    /// The tool of a skill; `None` when it declares none.
    ///
    /// # Errors
    /// [`ToolFault`]: what is wrong with it.
    pub fn of(skill: &Skill) -> Option<Result<Self, ToolFault>> {
        let written = skill.tool.clone()?;
        Some(Self::read(written, &skill.description))
    }

    fn read(written: Value, about: &str) -> Result<Self, ToolFault> {
        let mut tool: Self = serde_json::from_value(written).map_err(|error| ToolFault::Form(error.to_string()))?;
        let program = tool.command.first().is_some_and(|program| !program.trim().is_empty() && !program.contains('{'));
        let sound = |element: &String| element.len() <= ELEMENT_BYTES && !element.contains('\0');
        if !program || tool.command.len() > ELEMENTS || !tool.command.iter().all(sound) {
            return Err(ToolFault::Command);
        }
        if tool.parameters.to_string().len() > SCHEMA_BYTES {
            return Err(ToolFault::Schema);
        }
        // A typo would be handed to the program as it stands.
        let whole = |element: &String| element.strip_prefix('{')?.strip_suffix('}').map(str::to_owned);
        let unknown = tool.command.iter().filter_map(whole).find(|name| {
            let word = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_' || c == '-');
            word && name != BASE && !tool.has(name)
        });
        if let Some(name) = unknown {
            return Err(ToolFault::Placeholder(name));
        }
        tool.timeout_s = tool.timeout_s.clamp(1, crate::tools::exec::LONGEST);
        let about = tool.description.take().filter(|text| !text.trim().is_empty()).unwrap_or_else(|| about.to_owned());
        tool.description = Some(about.chars().take(DESCRIPTION).collect());
        Ok(tool)
    }

    fn has(&self, name: &str) -> bool {
        self.parameters.get("properties").and_then(|all| all.get(name)).is_some()
    }

    /// The argument vector of one call. An argument that is not given takes its element with it, and the flag directly
    /// before it (`--city {city}`). A fixed element that is a file of the skill's folder is named with its full path.
    ///
    /// # Errors
    /// In a sentence for the model: a value that would be taken for an option, or that no program can be given.
    pub fn argv(&self, args: &Map<String, Value>, folder: &Path) -> Result<Vec<String>, String> {
        let mut argv: Vec<String> = Vec::with_capacity(self.command.len());
        for (n, element) in self.command.iter().enumerate() {
            let Filled { text, fills, missing, begins } = self.fill(element, args, folder);
            if missing {
                // Only where the flag is the element's own: not the program, and no element that was itself filled.
                let flag = n > 1 && element.starts_with('{') && self.command[n - 1].starts_with('-');
                if flag && argv.last() == Some(&self.command[n - 1]) && self.command[n - 1] != "--" {
                    argv.pop();
                }
                continue;
            }
            if text.contains('\0') || text.len() > ELEMENT_BYTES {
                return Err("An argument holds a zero byte or is longer than 64 KiB; nothing was run.".to_owned());
            }
            let after_dashes = argv.iter().any(|before| before == "--");
            if begins && text.starts_with('-') && !is_number(&text) && !after_dashes {
                return Err(format!(
                    "The value {} begins with `-` and would be taken for an option; nothing was run.",
                    Value::from(text.as_str())
                ));
            }
            let own = folder.join(&text);
            let is_own =
                !fills && !text.is_empty() && !text.starts_with('-') && own.starts_with(folder) && own.is_file();
            argv.push(if is_own { own.display().to_string() } else { text });
        }
        Ok(argv)
    }

    fn fill(&self, element: &str, args: &Map<String, Value>, folder: &Path) -> Filled {
        let mut filled = Filled::default();
        let mut rest = element;
        while let Some(open) = rest.find('{') {
            let Some(close) = rest[open..].find('}').map(|close| open + close) else { break };
            let name = &rest[open + 1..close];
            filled.text.push_str(&rest[..open]);
            if name == BASE {
                filled.text.push_str(&folder.display().to_string());
            } else if self.has(name) {
                filled.begins |= filled.text.is_empty();
                filled.fills = true;
                match args.get(name) {
                    None | Some(Value::Null) => filled.missing = true,
                    Some(Value::String(text)) => filled.text.push_str(text),
                    Some(value) => filled.text.push_str(&value.to_string()),
                }
            } else {
                // Braces of the program's own (`jq '{a: .b}'`).
                filled.text.push('{');
                rest = &rest[open + 1..];
                continue;
            }
            rest = &rest[close + 1..];
        }
        filled.text.push_str(rest);
        filled
    }
}

/// Whether a text is a number in digits: `-inf` and `-nan` are words that programs take for options.
fn is_number(text: &str) -> bool {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    digits && text.parse::<f64>().is_ok_and(f64::is_finite)
}

#[derive(Default)]
struct Filled {
    text: String,
    /// An argument stands in it.
    fills: bool,
    /// An argument of it was not given.
    missing: bool,
    /// It begins with an argument.
    begins: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tool(command: &[&str]) -> Callable {
        let parameters =
            json!({"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}});
        Callable::read(json!({"command": command, "parameters": parameters}), "about").expect("a good tool")
    }

    fn argv(command: &[&str], args: Value) -> Result<Vec<String>, String> {
        tool(command).argv(args.as_object().expect("an object"), Path::new("/nowhere/skill"))
    }

    fn words(list: &[&str]) -> Result<Vec<String>, String> {
        Ok(list.iter().map(|word| (*word).to_owned()).collect())
    }

    #[test]
    fn one_place_fills_one_element_whatever_is_in_it() {
        let nasty = "London; rm -rf ~ && $(id) `id` {days} \"'\n";
        let expected = ["echo".to_owned(), nasty.to_owned(), format!("--for={nasty}"), "3".to_owned()];
        let filled = argv(&["echo", "{city}", "--for={city}", "{days}"], json!({"city": nasty, "days": 3}));
        assert_eq!(filled, Ok(expected.to_vec()));
        assert_eq!(argv(&["jq", "{a: .b, c}", "{city}"], json!({"city": "x"})), words(&["jq", "{a: .b, c}", "x"]));
        assert_eq!(argv(&["sh", "{baseDir}/run.sh"], json!({})), words(&["sh", "/nowhere/skill/run.sh"]));
    }

    #[test]
    fn what_is_not_given_goes_with_its_flag() {
        let command = ["w", "-s", "--days", "{days}", "--city={city}", "end"];
        assert_eq!(argv(&command, json!({})), words(&["w", "-s", "end"]));
        assert_eq!(argv(&command, json!({"days": 2, "city": null})), words(&["w", "-s", "--days", "2", "end"]));
    }

    #[test]
    fn a_value_cannot_become_an_option() {
        let refused = argv(&["w", "{city}"], json!({"city": "--output=/etc/passwd"})).expect_err("an option");
        assert!(refused.contains("taken for an option"), "{refused}");
        assert_eq!(argv(&["w", "{days}"], json!({"days": -3})), words(&["w", "-3"]));
        assert_eq!(argv(&["w", "{city}"], json!({"city": "-1.5e-3"})), words(&["w", "-1.5e-3"]));
        for word in ["-inf", "-nan", "-Infinity", "-infinity", "-NaN", "-e", "-E9", "-", "-1e999"] {
            assert!(argv(&["w", "{city}"], json!({"city": word})).is_err(), "{word}");
        }
        assert_eq!(argv(&["w", "--", "{city}"], json!({"city": "-x"})), words(&["w", "--", "-x"]));
        assert_eq!(argv(&["w", "--city={city}"], json!({"city": "-x"})), words(&["w", "--city=-x"]));
        assert!(argv(&["w", "{city}"], json!({"city": "a\u{0}b"})).is_err());
    }

    #[test]
    fn a_file_of_the_skill_is_named_in_full() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("run.py"), "").expect("writable");
        let tool = tool(&["python3", "run.py", "{city}"]);
        let args = json!({"city": "run.py"});
        let filled = tool.argv(args.as_object().expect("an object"), folder.path()).expect("filled");
        assert_eq!(filled, ["python3", &folder.path().join("run.py").display().to_string(), "run.py"]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let fault = |written: Value| Callable::read(written, "about").expect_err("a fault");
        assert!(matches!(fault(json!("curl")), ToolFault::Form(_)));
        assert!(matches!(fault(json!({"command": "curl x"})), ToolFault::Form(_)));
        assert!(matches!(fault(json!({"command": ["a"], "shell": true})), ToolFault::Form(_)));
        assert_eq!(fault(json!({"command": []})), ToolFault::Command);
        assert_eq!(fault(json!({"command": ["{program}"]})), ToolFault::Command);
        assert_eq!(fault(json!({"command": ["w", "{citty}"]})), ToolFault::Placeholder("citty".to_owned()));
        let text = fault(json!({"command": ["w", "{citty}"]})).text(Lang::Zh);
        assert!(text.contains("citty"), "{text}");
    }
}
