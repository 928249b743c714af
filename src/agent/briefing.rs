//! What an agent is told: its workspace files, skills and rules, assembled once and again only when a file changed.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    time::SystemTime,
};

use channel_api::Clock;
use serde_json::{Value, json};

use super::prompt::{Mode, Prompt, PromptInput, Runtime, assemble};
use crate::{
    lang::Lang,
    model::ToolSpec,
    policy::Role,
    skills::{Shelf, SkillEntry, Skills, shown_path},
    workspace::{self, WorkspaceFile},
};

/// The most assembled prompts kept; they differ by role, channel and language.
const KEPT: usize = 64;

/// The briefing of one agent.
pub struct Briefing {
    agent: String,
    workspace: PathBuf,
    shelf: Arc<Shelf>,
    /// The names of the skills it has; `None` = all.
    chosen: Option<Vec<String>>,
    narrowed: Mutex<Narrowed>,
    clock: Arc<dyn Clock>,
    home: Option<PathBuf>,
    host: String,
    cache: Mutex<Cache>,
}

/// What decides about a prompt besides the files.
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    /// How much of the prompt.
    pub mode: Mode,
    /// The lowest role of what is answered.
    pub role: Role,
    /// MEMORY.md may be shown.
    pub memory: bool,
    /// Silence is honoured here.
    pub silent: bool,
    /// The channel, e.g. `webhook:bridge`.
    pub channel: &'a str,
    /// The model's name.
    pub model: &'a str,
    /// The language of the rules.
    pub lang: Lang,
}

/// An assembled prompt.
#[derive(Debug)]
pub struct Brief {
    /// What the model reads.
    pub text: String,
    /// Name, bytes and SHA-256 of each section, for the journal.
    pub sections: Value,
}

/// All skills, and those of them that the agent has.
#[derive(Default)]
struct Narrowed {
    of: Arc<Skills>,
    its: Arc<Skills>,
}

#[derive(Default)]
struct Cache {
    stamps: Vec<Option<(SystemTime, u64)>>,
    files: Arc<Vec<WorkspaceFile>>,
    skills: Arc<Skills>,
    entries: Vec<SkillEntry>,
    briefs: HashMap<Key, Arc<Brief>>,
}

#[derive(PartialEq, Eq, Hash)]
struct Key {
    minimal: bool,
    role: Role,
    memory: bool,
    silent: bool,
    channel: String,
    model: String,
    zh: bool,
    tools: Vec<String>,
}

impl Briefing {
    /// Nothing is read yet.
    pub fn new(
        agent: &str,
        workspace: PathBuf,
        shelf: Arc<Shelf>,
        clock: Arc<dyn Clock>,
        home: Option<PathBuf>,
    ) -> Self {
        Self {
            agent: agent.to_owned(),
            workspace,
            shelf,
            chosen: None,
            narrowed: Mutex::default(),
            clock,
            home,
            host: crate::os::host_name(),
            cache: Mutex::default(),
        }
    }

    /// Only these skills, by name.
    pub fn only(self, chosen: Option<Vec<String>>) -> Self {
        Self { chosen, ..self }
    }

    /// All its skills as they are now, loaded or not.
    pub fn skills(&self) -> Arc<Skills> {
        let all = self.shelf.current(self.clock.monotonic());
        let Some(chosen) = &self.chosen else { return all };
        let mut narrowed = self.narrowed.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&narrowed.of, &all) {
            narrowed.its = Arc::new(all.only(chosen));
            narrowed.of = all;
        }
        Arc::clone(&narrowed.its)
    }

    /// A path as the agent should write it.
    pub fn shown(&self, path: &Path) -> String {
        shown_path(path, self.home.as_deref())
    }

    /// The prompt for a turn; read from the cache while no workspace file changed (seven `stat` calls).
    pub fn brief(&self, need: &Need<'_>, skills: &Arc<Skills>, tools: &[ToolSpec]) -> Arc<Brief> {
        let stamps = self.stamps();
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&cache.skills, skills) {
            cache.skills = Arc::clone(skills);
            cache.entries = skills.entries(self.home.as_deref());
            cache.briefs.clear();
        }
        if cache.stamps != stamps {
            cache.files = Arc::new(workspace::read(&self.workspace));
            cache.stamps = stamps;
            cache.briefs.clear();
        }
        let key = Key {
            minimal: need.mode != Mode::Full,
            role: need.role,
            memory: need.memory,
            silent: need.silent,
            channel: need.channel.to_owned(),
            model: need.model.to_owned(),
            zh: need.lang == Lang::Zh,
            tools: tools.iter().map(|tool| tool.name.clone()).collect(),
        };
        if let Some(brief) = cache.briefs.get(&key) {
            return Arc::clone(brief);
        }
        let prompt = self.assemble(need, tools, &cache.files, &cache.entries);
        let sections = prompt
            .sections
            .iter()
            .map(|section| json!({ "name": section.name, "bytes": section.text.len(), "sha256": section.sha256() }))
            .collect();
        let brief = Arc::new(Brief { text: prompt.text(), sections });
        if cache.briefs.len() >= KEPT {
            cache.briefs.clear();
        }
        cache.briefs.insert(key, Arc::clone(&brief));
        brief
    }

    /// The prompt in sections, for `crawfish prompt show`.
    pub fn show(&self, need: &Need<'_>, tools: &[ToolSpec]) -> Prompt {
        let entries = self.skills().entries(self.home.as_deref());
        self.assemble(need, tools, &workspace::read(&self.workspace), &entries)
    }

    fn assemble(&self, need: &Need<'_>, tools: &[ToolSpec], files: &[WorkspaceFile], skills: &[SkillEntry]) -> Prompt {
        let os = format!("{} ({})", std::env::consts::OS, std::env::consts::ARCH);
        assemble(&PromptInput {
            mode: need.mode,
            lang: need.lang,
            agent: &self.agent,
            files,
            memory_allowed: need.memory,
            role: need.role,
            tools,
            skills,
            workspace_dir: &self.workspace.display().to_string(),
            runtime: Runtime {
                host: &self.host,
                os: &os,
                version: env!("CARGO_PKG_VERSION"),
                model: need.model,
                channel: need.channel,
            },
            silent_allowed: need.silent,
        })
    }

    fn stamps(&self) -> Vec<Option<(SystemTime, u64)>> {
        let stamp = |name: &&str| {
            let meta = std::fs::symlink_metadata(self.workspace.join(name)).ok()?;
            Some((meta.modified().ok()?, meta.len()))
        };
        workspace::FILES.iter().map(stamp).collect()
    }
}
