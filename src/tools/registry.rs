//! The tools of an agent by name, and the one way from a call as a model wrote it to a call that can be run.

use std::{collections::BTreeMap, fmt, sync::Arc};

use serde_json::{Map, Value};

use super::{
    Parts, Tool, ToolSpec,
    arguments::{ArgumentError, Checker, Prepared, Repair},
    names,
};
use crate::policy::Terms;

/// The tools of an agent. Cheap to clone and to narrow.
#[derive(Clone, Default)]
pub struct Registry {
    /// Sorted by name, so that [`Registry::specs`] has the same bytes however it was filled.
    entries: BTreeMap<String, Arc<Entry>>,
}

struct Entry {
    tool: Arc<dyn Tool>,
    spec: ToolSpec,
    checker: Checker,
}

/// A call that can be run.
#[derive(Clone)]
pub struct Ready {
    /// Our name of the tool.
    pub name: String,
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// Its arguments, which satisfy its schema.
    pub args: Value,
    /// What was repaired in them.
    pub repairs: Vec<Repair>,
}

/// Why a call cannot be run. Shows as the text for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No tool is meant by that name; the text lists the ones there are.
    UnknownTool(String),
    /// The arguments are cut, unreadable or unfit.
    Arguments(ArgumentError),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownTool(text) => f.write_str(text),
            Self::Arguments(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for Refused {}

impl Registry {
    /// Holds [`super::builtin`].
    pub fn builtin(parts: &Parts) -> Self {
        let mut registry = Self::default();
        for tool in super::builtin(parts) {
            registry.add(tool).expect("a test adds every built-in tool");
        }
        registry
    }

    /// Adds a tool.
    ///
    /// # Errors
    /// In a sentence, when its name is taken or malformed or its schema is invalid; the registry is unchanged.
    pub fn add(&mut self, tool: Arc<dyn Tool>) -> Result<(), String> {
        let mut spec = tool.spec();
        let name = spec.name.clone();
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        if name.is_empty() || name.len() > 64 || !name.chars().all(plain) {
            return Err(format!("the tool name `{}` is not 1 to 64 of a-z, 0-9 and _", name.escape_debug()));
        }
        if self.entries.contains_key(&name) {
            return Err(format!("there is already a tool named `{name}`"));
        }
        if spec.parameters.get("type").and_then(Value::as_str) != Some("object") {
            return Err(format!("the schema of `{name}` is not that of an object"));
        }
        let checker = Checker::new(&name, &spec.parameters)?;
        shorten(&mut spec.parameters);
        self.entries.insert(name, Arc::new(Entry { tool, spec, checker }));
        Ok(())
    }

    /// These tools and those of another registry; where two have one name, this one's stays.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        let mut entries = other.entries.clone();
        entries.extend(self.entries.iter().map(|(name, entry)| (name.clone(), entry.clone())));
        Self { entries }
    }

    /// The tools that can be called now and that `allowed` lets through: what an asker or a skill may use.
    #[must_use]
    pub fn narrowed(&self, allowed: impl Fn(&str, Terms) -> bool) -> Self {
        let entries =
            self.entries.iter().filter(|(name, entry)| entry.tool.available() && allowed(name, entry.tool.terms()));
        Self { entries: entries.map(|(name, entry)| (name.clone(), entry.clone())).collect() }
    }

    /// What the model sees, in a byte-stable order.
    pub fn specs(&self) -> Vec<ToolSpec> {
        self.entries.values().map(|entry| entry.spec.clone()).collect()
    }

    /// The names, sorted.
    pub fn names(&self) -> Vec<&str> {
        self.entries.keys().map(String::as_str).collect()
    }

    /// The tool of exactly that name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.entries.get(name).map(|entry| &entry.tool)
    }

    /// Our name of the tool that a model means.
    pub fn resolve(&self, written: &str) -> Option<&str> {
        names::resolve(written, &self.names())
    }

    /// Makes a call of what a model wrote: the tool it means, its arguments repaired and checked.
    ///
    /// # Errors
    /// [`Refused`], whose text is for the model. Nothing was run.
    pub fn prepare(&self, written: &str, arguments: &str) -> Result<Ready, Refused> {
        let found = self.resolve(written).and_then(|name| self.entries.get_key_value(name));
        let Some((name, entry)) = found else {
            return Err(Refused::UnknownTool(names::unknown(written, &self.names())));
        };
        let Prepared { args, repairs } = entry.checker.prepare(arguments).map_err(Refused::Arguments)?;
        Ok(Ready { name: name.clone(), tool: entry.tool.clone(), args, repairs })
    }
}

/// Takes out of a schema what a model reads nothing from: every request carries it. The checker keeps the whole.
fn shorten(schema: &mut Value) {
    let Some(object) = schema.as_object_mut() else { return };
    if object.get("additionalProperties") == Some(&Value::Bool(false)) {
        object.remove("additionalProperties");
    }
    for property in object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut) {
        if let Some(property) = property.as_object_mut() {
            property.remove("minLength");
            if property.get("minimum").and_then(Value::as_i64).is_some_and(|least| least <= 1) {
                property.remove("minimum");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use async_trait::async_trait;
    use serde_json::json;

    use super::*;
    use crate::{
        clock::SystemClock,
        egress::{Egress, EgressConfig},
        policy::Role,
        tools::{Effect, ToolContext, ToolError, ToolOutput, fixture::Fixture},
    };

    /// With every tool switched on.
    fn parts() -> Parts {
        let clock = Arc::new(SystemClock::new());
        let egress = Egress::new(&EgressConfig::default(), |_| None, clock);
        Parts { egress: Some(Arc::new(egress)), ..Parts::default() }
    }

    fn builtin() -> Vec<Arc<dyn Tool>> {
        super::super::builtin(&parts())
    }

    /// A tool with a spec of the test's choosing.
    struct Odd(ToolSpec);

    #[async_trait]
    impl Tool for Odd {
        fn spec(&self) -> ToolSpec {
            self.0.clone()
        }

        fn effect(&self) -> Effect {
            Effect::Effect
        }

        async fn call(&self, args: Value, _ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
            Ok(ToolOutput::from(args.to_string()))
        }
    }

    fn odd(name: &str, parameters: Value) -> Arc<dyn Tool> {
        Arc::new(Odd(ToolSpec { name: name.to_owned(), description: "d".to_owned(), parameters }))
    }

    #[test]
    fn the_specs_have_the_same_bytes_however_they_were_added() {
        let bytes = |tools: Vec<Arc<dyn Tool>>| {
            let mut registry = Registry::default();
            for tool in tools {
                registry.add(tool).expect("a good tool");
            }
            serde_json::to_string(&registry.specs()).expect("it serialises")
        };
        let mut backwards = builtin();
        backwards.reverse();
        assert_eq!(bytes(builtin()), bytes(backwards));
        assert_eq!(
            bytes(builtin()),
            serde_json::to_string(&Registry::builtin(&parts()).specs()).expect("it serialises")
        );
        // The first request has 12 KB for everything.
        assert!(bytes(builtin()).len() < 6_000, "{} bytes", bytes(builtin()).len());
        assert_eq!(
            Registry::builtin(&parts()).names(),
            [
                "edit",
                "find",
                "grep",
                "ls",
                "memory_add",
                "memory_get",
                "memory_search",
                "message",
                "read",
                "sessions",
                "spawn",
                "spreadsheet",
                "todo",
                "web_fetch",
                "write"
            ]
        );
    }

    #[test]
    fn bad_tools_are_refused_with_a_reason() {
        let mut registry = Registry::builtin(&parts());
        for (name, schema, told) in [
            ("read", json!({"type": "object"}), "already a tool named `read`"),
            ("Bad Name\n", json!({"type": "object"}), "the tool name `Bad Name\\n`"),
            ("", json!({"type": "object"}), "is not 1 to 64"),
            ("list", json!({"type": "array"}), "not that of an object"),
            (
                "broken",
                json!({"type": "object", "properties": {"a": {"type": "nonsense"}}}),
                "schema of `broken` is invalid",
            ),
            (
                "remote",
                json!({"type": "object", "$ref": "https://example.com/schema"}),
                "schema of `remote` is invalid",
            ),
        ] {
            let error = registry.add(odd(name, schema)).expect_err(name);
            assert!(error.contains(told), "{error}");
        }
        assert_eq!(registry.names().len(), builtin().len());
    }

    #[test]
    fn a_narrowed_registry_knows_nothing_of_the_rest() {
        let reading = Registry::builtin(&parts()).narrowed(|_, terms| terms.least == Role::Member);
        assert_eq!(
            reading.names(),
            [
                "find",
                "grep",
                "ls",
                "memory_add",
                "memory_get",
                "memory_search",
                "read",
                "spreadsheet",
                "todo",
                "web_fetch"
            ]
        );
        assert!(reading.get("write").is_none());
        let refused = reading.prepare("write_file", "{}").err().expect("not there");
        assert!(
            matches!(&refused, Refused::UnknownTool(text) if text.starts_with("There is no tool `write_file`.")),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn calls_in_other_agents_words_run() {
        let house = Fixture::new();
        let registry = Registry::builtin(&parts());
        for (name, arguments, answer) in [
            ("write_file", r#"{"filePath": "a.txt", "text": "one\ntwo\n"}"#, "Created `a.txt`: 8 bytes, 2 lines."),
            ("functions.read", "{'file_path': 'a.txt',}", "one\ntwo\n"),
            (
                "str_replace",
                r#"{"path": "a.txt", "old_string": "two", "new_string": "2", "replace_all": "false"}"#,
                "Edited `a.txt`: replaced once, first in line 2.",
            ),
            ("list_directory", "", "a.txt  6 B\n"),
            ("glob", r#"{"glob": "*.txt", "path": null}"#, "a.txt"),
            ("Grep", r#"{"query": "\d", "-i": true}"#, "a.txt:2: 2"),
        ] {
            let ready = registry.prepare(name, arguments).unwrap_or_else(|refused| panic!("{name}: {refused}"));
            assert!(!ready.repairs.is_empty(), "{name}");
            assert_eq!(house.run(&*ready.tool, ready.args).await.as_deref(), Ok(answer), "{name}");
        }
    }

    #[test]
    fn an_argument_that_is_not_understood_is_not_dropped() {
        let registry = Registry::builtin(&parts());
        let refused = registry.prepare("write", r#"{"path": "a", "content": "b", "append": true}"#).err();
        let text = refused.expect("it would overwrite").to_string();
        assert!(text.contains("- /append: expected no such argument, got one"), "{text}");
    }
}
