//! The toolbox of a real turn: the registry narrowed to what the sender may use, and the skills the prompt lists.

use super::{ArgumentError, Arguments, Resolved, Toolbox};
use crate::{
    model::ToolSpec,
    tools::{Effect, Refused, Registry},
};

/// What one turn is offered.
#[derive(Clone, Default)]
pub struct Offered {
    registry: Registry,
    /// Name and path of the SKILL.md of each skill in the prompt.
    skills: Vec<(String, String)>,
}

impl Offered {
    /// The tools of a registry, already narrowed to the sender's role, and the skills (name, path of SKILL.md) of the prompt.
    pub fn new(registry: Registry, skills: Vec<(String, String)>) -> Self {
        Self { registry, skills }
    }
}

impl Toolbox for Offered {
    fn resolve(&self, name: &str) -> Option<Resolved> {
        if let Some(tool) = self.registry.resolve(name) {
            return Some(Resolved::Tool(tool.to_owned()));
        }
        let wanted = squeezed(name);
        if wanted == "finalanswer" {
            return Some(Resolved::FinalAnswer);
        }
        // Reading is the way to a skill's instructions; who may not read gets no further here.
        self.registry.get("read")?;
        let skill = self.skills.iter().find(|(skill, _)| !wanted.is_empty() && squeezed(skill) == wanted)?;
        Some(Resolved::Skill(skill.1.clone()))
    }

    fn effect(&self, tool: &str) -> Effect {
        self.registry.get(tool).map_or(Effect::Effect, |tool| tool.effect())
    }

    fn check_arguments(&self, tool: &str, raw: &str) -> Result<Arguments, ArgumentError> {
        match self.registry.prepare(tool, raw) {
            Ok(ready) => {
                Ok(Arguments { value: ready.args, repairs: ready.repairs.iter().map(ToString::to_string).collect() })
            }
            Err(Refused::UnknownTool(why)) => Err(ArgumentError(why)),
            Err(Refused::Arguments(why)) => Err(ArgumentError(why.to_string())),
        }
    }

    fn specs(&self) -> Vec<ToolSpec> {
        self.registry.specs()
    }

    fn names(&self) -> Vec<String> {
        self.registry.names().into_iter().map(str::to_owned).collect()
    }
}

/// The last segment of a name, its letters and digits only, in lower case.
fn squeezed(name: &str) -> String {
    let last = name.trim().rsplit(['.', '/', ':']).next().unwrap_or(name);
    last.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::tools::Parts;

    fn offered() -> Offered {
        let skills = vec![("weather-now".to_owned(), "skills/weather/SKILL.md".to_owned())];
        Offered::new(Registry::builtin(&Parts::default()), skills)
    }

    #[test]
    fn names_mean_tools_then_skills() {
        let tools = offered();
        assert_eq!(tools.resolve("functions.read_file"), Some(Resolved::Tool("read".into())));
        assert_eq!(tools.resolve("functions.final_answer"), Some(Resolved::FinalAnswer));
        assert_eq!(tools.resolve("weather_now"), Some(Resolved::Skill("skills/weather/SKILL.md".into())));
        assert_eq!(tools.resolve("fly"), None);
        assert_eq!(tools.resolve("…"), None);
        assert_eq!((tools.effect("read"), tools.effect("fly")), (Effect::Read, Effect::Effect));
        let stranger = Offered::new(Registry::default(), tools.skills.clone());
        assert_eq!(stranger.resolve("weather_now"), None);
        assert!(stranger.names().is_empty());
    }

    #[test]
    fn arguments_go_through_the_registry() {
        let tools = offered();
        let arguments = tools.check_arguments("read", "{'filePath': 'a.md',}").expect("it can be repaired");
        assert_eq!(arguments.value, json!({"path": "a.md"}));
        assert!(!arguments.repairs.is_empty());
        assert!(tools.check_arguments("read", "{\"path\":").is_err());
        assert!(tools.check_arguments("read", "{}").is_err());
    }

    #[test]
    fn a_call_of_another_agents_name_is_a_pseudo_call_too() {
        let text = "```json\n{\"name\": \"list_directory\", \"arguments\": {\"path\": \".\"}}\n```";
        assert!(crate::agent::turn::pseudo::looks_like_call(text, &offered(), false).is_some());
    }
}
