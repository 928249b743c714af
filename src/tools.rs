//! The tools a model may call: one seam, one list, one file a tool.
//!
//! A tool returns text, always bounded and never empty. What a tool is allowed to do is decided before it is called, by
//! `policy`; a tool itself knows nothing of senders.

use std::{path::PathBuf, sync::Arc};

use async_trait::async_trait;
use channel_api::{Clock, Inbound, MediaRef, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio_util::sync::CancellationToken;

use crate::{
    egress::{Egress, EgressConfig},
    errand::Errand,
    lang::Lang,
    memory::Memory,
    plan::Plans,
    policy::{Asker, Asks, Profile, Terms, ToolPolicy},
    schedule::Schedules,
    secrets::Redactor,
    session::SessionKey,
    skills::variables::Handed,
    store::Lease,
    subagents::SubagentsConfig,
};
pub use crate::{model::ToolSpec, policy::Effect};

// What a call passes on its way in.
pub mod arguments;
pub mod names;
mod registry;
pub use registry::{Ready, Refused, Registry};

// The tools.
mod edit;
pub mod exec;
mod find;
mod grep;
mod ls;
mod memory_add;
mod memory_get;
mod memory_search;
mod message;
mod process;
pub mod program;
mod read;
mod schedule;
pub mod senses;
mod sessions;
pub mod skill;
mod spawn;
mod spreadsheet;
mod todo;
mod web_fetch;
pub mod web_search;
mod write;

pub use message::{Ways, said_here};
pub use sessions::Rooms;
pub use spawn::Nest;

// What they stand on.
mod broker;
pub mod decode;
pub use broker::{Outgoing, file_meant, files_meant, open_to_send};
pub mod truncate;
mod walk;

#[cfg(test)]
mod fixture;

/// `[tools]`: what tools may do, a section each.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ToolsConfig {
    /// The tools to begin with, for everybody: see [`ToolPolicy`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
    /// Tools that are added to the profile, or the only ones.
    pub allow: Vec<String>,
    /// Tools that nobody has.
    pub deny: Vec<String>,
    /// `[tools.exec]`.
    pub exec: exec::ExecConfig,
    /// `[tools.web_fetch]`.
    pub web_fetch: EgressConfig,
    /// `[tools.web_search]`.
    pub web_search: web_search::SearchConfig,
    /// `[tools.image]`.
    pub image: senses::ImageConfig,
    /// `[tools.transcribe]`.
    pub transcribe: senses::TranscribeConfig,
    /// `[tools.speak]`.
    pub speak: senses::SpeakConfig,
}

impl ToolsConfig {
    /// What `[tools]` says about which tools there are.
    pub fn policy(&self) -> ToolPolicy {
        ToolPolicy { profile: self.profile, allow: self.allow.clone(), deny: self.deny.clone() }
    }

    /// Whether a section of `[models]` is named for hearing or speaking.
    pub fn is_for_sound(&self, model: &str) -> bool {
        [&self.transcribe.model, &self.speak.model].into_iter().flatten().any(|name| name == model)
    }
}

/// What tools stand on that is not of the call: made once, shared by all agents.
#[derive(Clone, Default)]
pub struct Parts {
    /// The settings.
    pub config: ToolsConfig,
    /// The commands of `exec`.
    pub commands: exec::Commands,
    /// Takes the configuration's secrets out of what a tool gives.
    pub redactor: Redactor,
    /// Sets schedules; `None` = not at all.
    pub schedules: Option<Schedules>,
    /// Schedules are described although none can be set: for listings.
    pub described: bool,
    /// How the web is reached; `None` = not at all.
    pub egress: Option<Arc<Egress>>,
    /// Who searches the web; `None` = nobody.
    pub search: Option<Arc<web_search::WebSearch>>,
    /// The agent's memory; `None` where only the tools' descriptions are asked for.
    pub memory: Option<Arc<Memory>>,
    /// Who sees, hears and speaks for a model that does not.
    pub senses: senses::Senses,
    /// How many sub-agents there may be.
    pub subagents: SubagentsConfig,
    /// What reaches beyond the turn; `None` where no turn runs.
    pub acts: Option<Acts>,
}

/// What the tools stand on that reach beyond their turn.
#[derive(Clone)]
pub struct Acts {
    /// Where plans are kept.
    pub plans: Plans,
    /// Other chats.
    pub ways: Ways,
    /// Sub-agents.
    pub nest: Nest,
    /// Other sessions.
    pub rooms: Rooms,
}

/// Every tool that comes with the gateway: the one list.
pub fn builtin(parts: &Parts) -> Vec<Arc<dyn Tool>> {
    let mut tools: Vec<Arc<dyn Tool>> = vec![
        Arc::new(edit::EditFile),
        Arc::new(find::FindFiles),
        Arc::new(grep::GrepFiles),
        Arc::new(ls::ListFolder),
        Arc::new(memory_add::AddMemory::new(parts.memory.clone())),
        Arc::new(memory_get::GetMemory::new(parts.memory.clone())),
        Arc::new(memory_search::SearchMemory::new(parts.memory.clone())),
        Arc::new(read::ReadFile),
        Arc::new(message::SendMessage {
            ways: parts.acts.as_ref().map(|acts| acts.ways.clone()),
            redactor: parts.redactor.clone(),
        }),
        Arc::new(sessions::OtherSessions { rooms: parts.acts.as_ref().map(|acts| acts.rooms.clone()) }),
        Arc::new(todo::Todo { plans: parts.acts.as_ref().map(|acts| acts.plans.clone()) }),
        Arc::new(spreadsheet::Spreadsheet::default()),
        Arc::new(write::WriteFile),
    ];
    if parts.subagents.at_once > 0 {
        let nest = parts.acts.as_ref().map(|acts| acts.nest.clone());
        tools.push(Arc::new(spawn::SpawnAgent { nest, config: parts.subagents }));
    }
    if parts.config.exec.enabled {
        tools.push(Arc::new(exec::Exec::new(
            parts.config.exec.clone(),
            parts.commands.clone(),
            parts.redactor.clone(),
        )));
        tools.push(Arc::new(process::Process::new(parts.commands.clone(), parts.redactor.clone())));
    }
    if parts.schedules.is_some() || parts.described {
        let chats = parts.acts.as_ref().map(|acts| acts.ways.chats.clone());
        tools.push(Arc::new(schedule::Schedule::new(parts.schedules.clone().zip(chats))));
    }
    if let Some(egress) = &parts.egress {
        tools.push(Arc::new(web_fetch::WebFetch::new(Arc::clone(egress))));
    }
    tools.extend(parts.search.clone().map(|search| search as Arc<dyn Tool>));
    tools.extend(parts.senses.tools(parts.egress.as_ref()));
    tools
}

/// One tool.
#[async_trait]
pub trait Tool: Send + Sync + 'static {
    /// Name, description and JSON Schema.
    fn spec(&self) -> ToolSpec;

    /// What a second run would do.
    fn effect(&self) -> Effect;

    /// Who may use it.
    fn terms(&self) -> Terms {
        Terms::of(self.effect())
    }

    /// Whether it can be called on this machine now. One that cannot is not offered; `doctor` says why.
    fn available(&self) -> bool {
        true
    }

    /// When the owner is asked before a call with these arguments runs.
    fn asks(&self, _args: &Value) -> Asks {
        self.terms().asks
    }

    /// The address that a call with these arguments asks: whoever owns it sees what is written in it.
    fn address<'a>(&self, _args: &'a Value) -> Option<&'a str> {
        None
    }

    /// The server whose words it gives. They can talk a turn into nothing that the server could not do by itself: they are
    /// from outside for every tool but its own.
    fn server(&self) -> Option<&str> {
        None
    }

    /// What an approval of a call with these arguments is bound to besides the arguments themselves. May look at files.
    fn bound_to(&self, _args: &Value, _ctx: &ToolContext) -> Bound {
        Bound::default()
    }

    /// Whether what a call with these arguments gives was written by whoever likes (web pages, other people's servers): a
    /// turn that has read such things remembers nothing without the owner.
    fn reads_outside(&self, _args: &Value) -> bool {
        false
    }

    /// Runs it with arguments that satisfy the schema. Ends promptly when `ctx.cancel` fires.
    ///
    /// # Errors
    /// [`ToolError`], named by what the turn does next.
    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError>;
}

/// What an approval is bound to besides the tool and its arguments.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bound {
    /// The folder it works in.
    pub folder: Option<String>,
    /// The program it runs, with the SHA-256 of its file.
    pub program: Option<(String, String)>,
    /// It is never approved for good: what the words do depends on more than the words (a shell, an interpreter).
    pub once_only: bool,
}

impl Bound {
    /// To this program, as its file is now. Waits for the disk.
    pub fn to_program(program: &std::path::Path, folder: &std::path::Path, hashes: &program::Hashes) -> Self {
        let file = std::fs::canonicalize(program).unwrap_or_else(|_| program.to_owned());
        let hash = hashes.of(&file);
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_ascii_lowercase();
        Self {
            folder: Some(folder.display().to_string()),
            once_only: runs_what_it_is_told(&name),
            program: Some((file.display().to_string(), hash)),
        }
    }
}

/// Whether a program runs what its arguments say: a shell, an interpreter, a wrapper. security.md row 23.
fn runs_what_it_is_told(name: &str) -> bool {
    const NAMES: [&str; 36] = [
        "sh", "bash", "dash", "zsh", "fish", "ksh", "ash", "busybox", "toybox", "env", "xargs", "find", "nice",
        "nohup", "timeout", "setsid", "stdbuf", "sudo", "doas", "su", "ssh", "git", "tar", "awk", "gawk", "mawk",
        "sed", "perl", "ruby", "node", "deno", "bun", "php", "lua", "pwsh", "cmd",
    ];
    let bare = name.strip_suffix(".exe").unwrap_or(name);
    let begins = ["python", "pypy", "powershell", "lua", "perl", "ruby", "node", "php"];
    NAMES.contains(&bare) || begins.iter().any(|begin| bare.starts_with(begin))
}

/// Who is asked before a path of the workspace is written: what every prompt holds and skills steer everybody's later turns,
/// notes those that find them.
pub(crate) fn asks_before_writing(path: &str) -> Asks {
    const FILES: [&str; 8] =
        ["agents.md", "soul.md", "identity.md", "user.md", "tools.md", "heartbeat.md", "memory.md", "bootstrap.md"];
    let path = path.replace('\\', "/").to_lowercase();
    let parts = || path.split('/').filter(|part| !part.is_empty() && *part != ".");
    // An absolute path or one that climbs may lead there: better asked once too often.
    if parts().any(|part| FILES.contains(&part) || matches!(part, "skills" | "..")) || path.starts_with('~') {
        return Asks::Steers;
    }
    if parts().any(|part| part == "memory") { Asks::Outside } else { Asks::Never }
}

/// For whom a call runs.
#[derive(Clone, Debug)]
pub struct Call {
    /// The turn it is part of.
    pub turn: TurnId,
    /// Its own id, the same when the turn goes on after a crash: what makes an effect happen once.
    pub call_id: String,
    /// The session of the turn.
    pub session: SessionKey,
    /// Its hold on that session: what may be written in its name is fenced by it.
    pub lease: Lease,
    /// The agent.
    pub agent: String,
    /// For whom the turn runs: the lowest role of what is answered, and whether anybody else sees the answer.
    pub asker: Asker,
    /// The newest message of the turn: its channel, sender, conversation, and the address of the answer.
    pub inbound: Arc<Inbound>,
    /// What the turn is when no person asked for it.
    pub errand: Option<Errand>,
    /// The person's language.
    pub lang: Lang,
    /// The turn holds what others wrote: a page, a file, a quote, an earlier one of the conversation.
    pub outside: bool,
}

impl Call {
    /// A key of this call, the `n`th of it: the same for a second run of the same call, and of no other. 26 characters, as a
    /// ULID has.
    pub fn key(&self, n: usize) -> String {
        let digest = Sha256::digest(format!("{}\n{}\n{n}", self.turn, self.call_id));
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&digest[..16]);
        ulid::Ulid::from(u128::from_be_bytes(bytes)).to_string()
    }
}

/// What a call may use.
#[derive(Clone)]
pub struct ToolContext {
    /// For whom it runs.
    pub call: Arc<Call>,
    /// The folder that may be written.
    pub workspace: PathBuf,
    /// Folders that may be read besides it (skills).
    pub readable: Vec<PathBuf>,
    /// The one of them with the files that came in this session, for programs; may not exist.
    pub media: PathBuf,
    /// What commands of this call get in their environment: the variables of the turn's skills.
    pub variables: Arc<Handed>,
    /// The most characters of a result (default 16,000).
    pub output_chars: usize,
    /// Fires when the turn is stopped.
    pub cancel: CancellationToken,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// What a call gave.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ToolOutput {
    /// What the model reads; never empty.
    pub text: String,
    /// Files it made.
    pub media: Vec<MediaRef>,
}

impl From<String> for ToolOutput {
    fn from(text: String) -> Self {
        Self { text, media: Vec::new() }
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum ToolError {
    /// The model can act on it: what was wrong and what to do, in one or two sentences.
    #[error("{0}")]
    TellModel(String),
    /// The turn cannot go on.
    #[error("{0}")]
    Abort(String),
}
