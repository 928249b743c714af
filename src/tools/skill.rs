//! The callable tools of skills: a program with its arguments, for those who may use `exec`, run as `exec` runs commands.
//!
//! They come and go with their skills: a turn's registry is the agent's own with those of the skills that it sees.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use async_trait::async_trait;
use serde_json::Value;
use tokio::process::Command;

use super::{
    Bound, Effect, Registry, Tool, ToolContext, ToolError, ToolOutput, ToolSpec,
    broker::tell,
    exec::{Commands, with_note},
};
use crate::{
    os,
    policy::{Asks, Terms},
    secrets::Redactor,
    skills::{
        Skill, Skills,
        callable::{Callable, ToolFault},
        grants::Consent,
        variables::{Handed, Keyring},
    },
};

/// The variable that names the workspace for a skill's program.
const WORKSPACE: &str = "CRAWFISH_WORKSPACE";

/// One skill's tool.
pub struct SkillTool {
    name: String,
    callable: Callable,
    folder: PathBuf,
    /// The owner granted what it asks for.
    granted: bool,
    handed: Handed,
    commands: Commands,
    redactor: Redactor,
}

impl SkillTool {
    fn of(skill: &Skill, callable: Callable, works: &Works) -> Self {
        let mut handed = works.keyring.of_skill(skill);
        handed.withheld.dedup();
        Self {
            name: skill.alias.clone(),
            callable,
            folder: skill.location.parent().map(Path::to_owned).unwrap_or_default(),
            granted: matches!(skill.consent, Consent::Granted(_)),
            handed,
            commands: works.commands.clone(),
            redactor: works.redactor.clone(),
        }
    }
}

#[async_trait]
impl Tool for SkillTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: self.name.clone(),
            description: self.callable.description.clone().unwrap_or_default(),
            parameters: self.callable.parameters.clone(),
        }
    }

    fn effect(&self) -> Effect {
        self.callable.effect
    }

    fn available(&self) -> bool {
        self.commands.available()
    }

    fn terms(&self) -> Terms {
        // It runs a program: what `exec` asks, whatever the skill says of its effect.
        Terms::of(Effect::Effect).owner_only().direct_only()
    }

    fn asks(&self, _: &Value) -> Asks {
        // The owner's own skill is the owner's; an installed one was granted its commands, or is asked for.
        match self.granted {
            // Nothing keeps it in, and the grant said so of a program that is kept in.
            _ if self.commands.asks_each() => Asks::Always,
            true => Asks::Never,
            false => Asks::Outside,
        }
    }

    fn bound_to(&self, args: &Value, ctx: &ToolContext) -> Bound {
        let empty = serde_json::Map::new();
        let argv = self.callable.argv(args.as_object().unwrap_or(&empty), &self.folder).unwrap_or_default();
        let program = argv.first().and_then(|program| match Path::new(program).is_absolute() {
            true => Some(PathBuf::from(program)),
            false => os::program(program),
        });
        let bound = program.map(|program| Bound::to_program(&program, &ctx.workspace, self.commands.hashes()));
        let bound = bound.unwrap_or_default();
        Bound { once_only: bound.once_only || self.commands.asks_each(), ..bound }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let args = args.as_object().cloned().unwrap_or_default();
        let argv = match self.callable.argv(&args, &self.folder) {
            Ok(argv) => argv,
            Err(why) => return tell(why),
        };
        let Some((program, rest)) = argv.split_first() else { return tell("The skill names no program.".to_owned()) };
        let path = match Path::new(program).is_absolute() {
            true => Some(PathBuf::from(program)),
            false => os::program(program),
        };
        let Some(path) = path else {
            return tell(format!("The program `{program}` is not on this machine; nothing was run. Tell the user."));
        };
        let mut command = Command::new(path);
        command.args(rest).current_dir(&ctx.workspace);
        let mut handed = self.handed.clone();
        let note = handed.told_at_reading();
        handed.given.insert(WORKSPACE.to_owned(), crate::secrets::Secret::new(ctx.workspace.display().to_string()));
        let ctx = ToolContext { variables: Arc::new(handed), ..ctx.clone() };
        let result = self.commands.follow(command, program, self.callable.timeout_s, &self.redactor, &ctx).await;
        with_note(result, note)
    }
}

/// What skills' tools stand on, and the registry of the skills seen last. Cheap to clone; clones share it.
#[derive(Clone, Default)]
pub struct Works {
    /// Whether commands may be run at all (`[tools.exec] enabled`).
    pub enabled: bool,
    /// The values for skills.
    pub keyring: Keyring,
    /// The commands of the gateway.
    pub commands: Commands,
    /// Takes secrets out of what they write; learns those of the skills.
    pub redactor: Redactor,
    made: Arc<Mutex<Option<Made>>>,
}

/// Skills, and the registry of their tools.
struct Made {
    skills: Arc<Skills>,
    tools: Registry,
}

impl Works {
    /// With these parts.
    pub fn new(enabled: bool, keyring: Keyring, commands: Commands, redactor: Redactor) -> Self {
        Self { enabled, keyring, commands, redactor, made: Arc::default() }
    }

    /// The registry with the tools of these skills. What does not fit in is left out; `crawfish skills check` says why.
    #[must_use]
    pub fn with_tools_of(&self, skills: &Arc<Skills>, registry: &Registry) -> Registry {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let same = made.take().filter(|made| Arc::ptr_eq(&made.skills, skills));
        let made = made.insert(same.unwrap_or_else(|| {
            self.redactor.learn(&self.keyring.secrets(skills));
            Made { skills: Arc::clone(skills), tools: self.tools_of(skills) }
        }));
        registry.joined(&made.tools)
    }

    fn tools_of(&self, skills: &Skills) -> Registry {
        let usable = skills.usable().filter(|skill| self.enabled && skill.model_invocable);
        let tools = usable.filter_map(|skill| Some((skill, Callable::of(skill)?.ok()?)));
        let mut registry = Registry::default();
        for (skill, tool) in tools {
            // A schema that cannot be used costs the tool, not the skill.
            let _ = registry.add(Arc::new(SkillTool::of(skill, tool, self)));
        }
        registry
    }
}

/// What is wrong with a skill's tool beside the tools that are there; `None` when it is good or there is none.
pub fn fault(skill: &Skill, builtin: &Registry) -> Option<ToolFault> {
    match Callable::of(skill)? {
        Err(fault) => Some(fault),
        Ok(callable) => {
            let tool = SkillTool::of(skill, callable, &Works::default());
            builtin.clone().add(Arc::new(tool)).err().map(ToolFault::Refused)
        }
    }
}
