//! `exec`: a command line in a shell, in the workspace, for the owner alone.
//!
//! There is no such tool unless the owner says `[tools.exec] enabled = true`, and none where it cannot be kept inside the
//! workspace ([`crate::confinement`]) unless the owner says `sandbox = "off"`. What holds in any case: a command gets no key
//! of ours in its environment, nothing to read, a bounded time and a bounded place for its output; and nothing it started
//! outlives the call.

use std::{
    io,
    path::{Path, PathBuf},
    pin::{Pin, pin},
    process::ExitStatus,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use async_trait::async_trait;
use channel_api::Clock;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::{io::ReadBuf, process::Command, sync::Semaphore};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use self::output::Output;
use super::{
    Bound, Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{Broker, tell},
    program::Hashes,
};
use crate::{
    confinement::{self, Level, Limits, Reachable, Ruling, Sandbox, Wanted},
    egress::hosts::{self, By, Host},
    errand::Errands,
    lang::Lang,
    os::{self, Launch, OutputPipe, Started},
    policy::{Asks, Role, Terms},
    secrets::Redactor,
};

pub mod allowed;
mod jobs;
mod output;

pub use jobs::{Job, Jobs};

/// The longest time a call may ask for, in seconds.
pub const LONGEST: u64 = 120;
/// The longest time a background command may ask for, in seconds, and what it gets when it does not.
const LONGEST_JOB: u64 = 86_400;
const USUAL_JOB: u64 = 3_600;
/// The most commands at once: many turns at work are no reason for as many processes.
const AT_ONCE: usize = 8;
/// The variable that names the folder of the files that came in the session.
const SESSION_FILES: &str = "CRAWFISH_MEDIA";
/// The longest command line. Linux takes no argument of more than 128 KiB.
const LONGEST_LINE: usize = 64 * 1024;
/// How long what the shell left running may still write after the shell's own end.
const LATE_OUTPUT: Duration = Duration::from_millis(300);
/// How long a command may take to end after it was asked to.
const LAST_WORDS: Duration = Duration::from_millis(700);
/// What the model is told when a command seems to have missed the network.
const NO_NETWORK: &str = "[crawfish: commands reach no network here; a skill's hosts are open once its SKILL.md was read in \
    this turn and, if it is installed, the owner ran `crawfish skills grant NAME`; other hosts the owner opens with \
    [tools.exec] network = \"hosts\", hosts = [\"example.org\"]; tell the user]";
/// Kept free in the result for the line that tells how it ended.
const ROOM_FOR_END: usize = 400;

/// `[tools.exec]`: commands, for the owner alone.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExecConfig {
    /// Whether there is such a tool at all.
    pub enabled: bool,
    /// How well commands have to be confined; where that cannot be had, there is no tool.
    pub sandbox: Wanted,
    /// Folders and files that commands may read and run besides the system's, relative to the configuration file.
    pub read: Vec<String>,
    /// Programs that may be called as `argv` without being asked about: names, paths, or `readonly` for a list of ours.
    pub allow: Vec<String>,
    /// Seconds a command may run when the call does not say; a call may ask for 120 at most.
    pub timeout: u64,
    /// What reads the command line.
    pub shell: Shell,
    /// When the owner is asked before a command runs.
    pub approve: Approve,
    /// Whether `hosts` count, where commands are confined. The hosts of skills are open in any case to the commands of the
    /// turn that read them.
    pub network: Network,
    /// Hosts that are open to the owner's commands where they are confined: `example.org`, `*.example.org`,
    /// `nas.local:5000`; without a port 80 and 443.
    #[serde(deserialize_with = "hosts::list")]
    pub hosts: Vec<String>,
}

/// What of the network is open to commands that are confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Nothing, but the hosts of the skills that the turn has read.
    #[default]
    Off,
    /// Those, and the hosts of the list.
    Hosts,
    /// The network of this machine, private addresses included.
    Open,
}

impl ExecConfig {
    /// The hosts that the owner opened.
    pub fn own_hosts(&self) -> Vec<Host> {
        let open = self.network == Network::Hosts;
        self.hosts.iter().filter(|_| open).filter_map(|written| Host::read(written, By::Owner)).collect()
    }
}

/// When the owner is asked before a command runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Approve {
    /// In turns that hold other people's words.
    #[default]
    Auto,
    /// Before each command.
    Always,
}

impl Default for ExecConfig {
    fn default() -> Self {
        Self {
            enabled: false,
            sandbox: Wanted::Auto,
            read: Vec::new(),
            allow: Vec::new(),
            timeout: 15,
            shell: Shell::Auto,
            approve: Approve::Auto,
            network: Network::Off,
            hosts: Vec::new(),
        }
    }
}

/// What reads a command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Shell {
    /// `bash`, else `sh`; on Windows `pwsh`, else `powershell`, else `cmd`.
    Auto,
    /// The system's `sh`.
    Sh,
    /// bash.
    Bash,
    /// Windows PowerShell.
    PowerShell,
    /// PowerShell 7 and later.
    Pwsh,
    /// The command interpreter of Windows.
    Cmd,
}

impl Shell {
    /// Every one that can be asked for by name.
    const NAMED: [Self; 5] = [Self::Sh, Self::Bash, Self::PowerShell, Self::Pwsh, Self::Cmd];

    /// Its name, which is also that of its program.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Sh => "sh",
            Self::Bash => "bash",
            Self::PowerShell => "powershell",
            Self::Pwsh => "pwsh",
            Self::Cmd => "cmd",
        }
    }

    /// The shell itself and its program; `None` when this machine has none of the kind.
    pub fn found(self) -> Option<(Self, PathBuf)> {
        let choices: &[Self] = match self {
            Self::Auto if cfg!(windows) => &[Self::Pwsh, Self::PowerShell, Self::Cmd],
            Self::Auto => &[Self::Bash, Self::Sh],
            _ => &[self],
        };
        choices.iter().find_map(|shell| Some((*shell, os::program(shell.name())?)))
    }

    /// A command that has this shell read `line`.
    fn command(self, program: PathBuf, line: &str) -> Command {
        let mut command = Command::new(program);
        match self {
            Self::PowerShell | Self::Pwsh => {
                command.args(["-NoLogo", "-NoProfile", "-NonInteractive", "-Command", line]);
            }
            Self::Cmd => {
                command.args(["/D", "/S", "/C"]);
                os::raw_argument(&mut command, &format!("\"{line}\""));
            }
            Self::Auto | Self::Sh | Self::Bash => {
                command.args(["-c", line]);
            }
        }
        command
    }
}

/// The commands of this gateway: how many run at once, and the mark by which they are known. Shared by all agents.
#[derive(Clone, Debug)]
pub struct Commands {
    slots: Arc<Semaphore>,
    house: String,
    jobs: Jobs,
    bounds: Option<Arc<Bounds>>,
    /// Of the programs that approvals are bound to.
    hashes: Hashes,
}

/// What confines commands.
#[derive(Debug)]
pub struct Bounds {
    /// The sandbox of the gateway.
    pub sandbox: Sandbox,
    /// How well.
    pub wanted: Wanted,
    /// Whom they may reach.
    pub network: confinement::Network,
    /// The hosts that the owner opened to his own commands.
    pub hosts: Vec<Host>,
    /// What they may read besides.
    pub read: Vec<PathBuf>,
    /// The workspaces: what lies there, a command may have written.
    pub own: Vec<PathBuf>,
}

impl Default for Commands {
    fn default() -> Self {
        Self::of(&Ulid::generate().to_string())
    }
}

impl Commands {
    /// Those of the gateway of that name; it must be the same after a restart.
    pub fn of(house: &str) -> Self {
        Self {
            slots: Arc::new(Semaphore::new(AT_ONCE)),
            house: house.to_owned(),
            jobs: Jobs::default(),
            bounds: None,
            hashes: Hashes::default(),
        }
    }

    /// The same, confined. Without this, commands have all rights of this process.
    #[must_use]
    pub fn within(self, bounds: Bounds) -> Self {
        Self { bounds: Some(Arc::new(bounds)), ..self }
    }

    /// Whether commands can be started, as far as that is known: the sandbox may not have been tried yet.
    pub fn available(&self) -> bool {
        let known = self.bounds.as_ref().and_then(|bounds| Some(bounds.wanted.rule(bounds.sandbox.known()?, Lang::En)));
        !matches!(known, Some(Ruling::Refused(_)))
    }

    /// The owner is asked before each command, because nothing keeps it in. So it is, too, while that is not known yet.
    pub fn asks_each(&self) -> bool {
        let Some(bounds) = &self.bounds else { return false };
        match (bounds.wanted, bounds.sandbox.known()) {
            (Wanted::Off, _) => false,
            (wanted, Some(found)) => matches!(wanted.rule(found, Lang::En), Ruling::Asked(..)),
            (_, None) => true,
        }
    }

    /// Whether commands are known to be confined.
    fn confines(&self) -> bool {
        let known = self.bounds.as_ref().and_then(|bounds| Some(bounds.wanted.rule(bounds.sandbox.known()?, Lang::En)));
        matches!(known, Some(Ruling::Confined(_)))
    }

    /// The hashes of programs.
    pub fn hashes(&self) -> &Hashes {
        &self.hashes
    }

    /// What may be done with a command; tries the sandbox when that was not done yet.
    pub async fn ruling(&self) -> Ruling {
        match &self.bounds {
            None => Ruling::Open,
            Some(bounds) if bounds.wanted == Wanted::Off => Ruling::Open,
            Some(bounds) => bounds.wanted.rule(bounds.sandbox.found().await, Lang::En),
        }
    }

    /// Makes a command ready to start, as every command of ours does: with its environment, and confined to the workspace.
    async fn ready(&self, mut command: Command, most: Duration, ctx: &ToolContext) -> Result<Launch, ToolError> {
        equip(&mut command, ctx);
        let refused = |why: String| ToolError::TellModel(format!("Nothing was run: {why}"));
        let level = match self.ruling().await {
            Ruling::Open | Ruling::Asked(Level::L0, _) => return Ok(command.into()),
            Ruling::Refused(why) => return Err(refused(why)),
            Ruling::Confined(level) | Ruling::Asked(level, _) => level,
        };
        let Some(bounds) = self.bounds.clone() else { return Ok(command.into()) };
        let reach = bounds.reach(ctx, most);
        let launch = tokio::task::spawn_blocking(move || bounds.sandbox.launch(command, level, reach)).await;
        launch.map_err(|error| ToolError::Abort(error.to_string()))?.map_err(refused)
    }

    /// Ends what an earlier run of the same gateway left running when it was killed, and counts the processes. Finds
    /// them on Linux only.
    pub fn end_leftovers(&self) -> usize {
        os::end_marked(&format!("{}.", self.house))
    }

    /// Ends the groups of background commands that an earlier run of the same gateway left; `folder` is where they are
    /// written down. First of all: the leaders, by whom groups are known, carry a mark and are ended by
    /// [`Commands::end_leftovers`] alone.
    pub fn end_groups(folder: &Path) {
        jobs::end_groups(folder);
    }

    /// Those that go on after their turn.
    pub fn jobs(&self) -> &Jobs {
        &self.jobs
    }

    /// From now on the sessions of background commands are told how they end. What an earlier run of the gateway left is
    /// ended, and told as well; `folder` is where it is written down.
    pub fn report_to(&self, errands: Errands, folder: PathBuf, redactor: Redactor) {
        let left = self.jobs.report_to(errands, folder, redactor);
        if left > 0 {
            let processes = self.end_leftovers();
            tracing::warn!(commands = left, processes, "background commands of the last run ended with it");
        }
    }

    fn mark(&self) -> String {
        format!("{}.{}", self.house, Ulid::generate())
    }
}

impl Bounds {
    fn reach(&self, ctx: &ToolContext, most: Duration) -> Reachable {
        let usual = Limits::default();
        Reachable {
            write: vec![ctx.workspace.clone()],
            read: ctx.readable.iter().cloned().chain([ctx.media.clone()]).chain(self.read.iter().cloned()).collect(),
            network: self.network.clone(),
            hosts: {
                let own = self.hosts.iter().filter(|_| ctx.call.asker.role == Role::Owner);
                ctx.variables.hosts.iter().chain(own).cloned().collect()
            },
            server: None,
            // One core all the time, at the most.
            limits: Limits { cpu_s: usual.cpu_s.map(|least| least.max(most.as_secs())), ..usual },
        }
    }
}

/// Runs a command line.
#[derive(Debug)]
pub struct Exec {
    config: ExecConfig,
    commands: Commands,
    redactor: Redactor,
}

impl Exec {
    /// With these settings.
    pub fn new(config: ExecConfig, commands: Commands, redactor: Redactor) -> Self {
        Self { config, commands, redactor }
    }
}

#[derive(Deserialize)]
struct Arguments {
    command: Option<String>,
    argv: Option<Vec<String>>,
    timeout: Option<u64>,
    workdir: Option<String>,
    shell: Option<Shell>,
    background: Option<bool>,
}

#[async_trait]
impl Tool for Exec {
    fn spec(&self) -> ToolSpec {
        let shell = self.config.shell.found().map_or(self.config.shell, |(shell, _)| shell);
        ToolSpec {
            name: "exec".to_owned(),
            description: format!(
                "Runs a command line in {} and gives its output and exit code. It starts in the workspace and cannot \
                 be typed into. When the call ends, everything it started ends, unless background is true: then it goes on \
                 (see process). `media/…` of an attachment is ${SESSION_FILES}/….",
                shell.name()
            ),
            parameters: json!({
                "type": "object",
                "properties": {
                    "command": {"type": "string", "description": "The command line; it may have several lines"},
                    "argv": {"type": "array", "items": {"type": "string"}, "description": "Instead: a program and its arguments, without a shell"},
                    "timeout": {
                        "type": "integer", "minimum": 1, "maximum": LONGEST_JOB,
                        "description": format!("Most seconds it may run (default {}, at most {LONGEST}; in the background 3600)", self.config.timeout),
                    },
                    "background": {"type": "boolean", "description": "Let it run on; its end is reported"},
                    "workdir": {"type": "string", "description": "Folder in the workspace to start in"},
                    "shell": {
                        "type": "string", "enum": ["auto", "sh", "bash", "powershell", "pwsh", "cmd"],
                        "description": "Another shell",
                    },
                },
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Effect
    }

    fn available(&self) -> bool {
        self.commands.available()
    }

    fn terms(&self) -> Terms {
        // Not in groups, where what others say stands beside the owner's words.
        Terms::of(self.effect()).owner_only().direct_only()
    }

    fn asks(&self, args: &Value) -> Asks {
        match self.config.approve {
            // Nothing keeps it in: the owner's word does.
            _ if self.commands.asks_each() => Asks::Always,
            _ if self.allowed(args).is_some() => Asks::Never,
            Approve::Auto => Asks::Outside,
            Approve::Always => Asks::Always,
        }
    }

    fn bound_to(&self, args: &Value, ctx: &ToolContext) -> Bound {
        let folder = args["workdir"].as_str().map_or_else(|| ctx.workspace.clone(), |dir| ctx.workspace.join(dir));
        let program = match argv_of(args).first() {
            Some(name) => program_of(name, &folder),
            None => {
                let wanted = serde_json::from_value(args["shell"].clone()).unwrap_or(self.config.shell);
                wanted.found().map(|(_, program)| program)
            }
        };
        let bound = program.map(|program| Bound::to_program(&program, &folder, self.commands.hashes()));
        Bound { once_only: true, ..bound.unwrap_or_default() }
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let listed = self.allowed(&args);
        let Arguments { command, argv, timeout, workdir, shell, background } = arguments::typed(args)?;
        let background = background.unwrap_or(false);
        if let Some(seconds) = timeout.filter(|seconds| !background && *seconds > LONGEST) {
            return tell(format!(
                "`timeout` may be at most {LONGEST} s, not {seconds}. With `background` true the command runs on by itself."
            ));
        }
        let folder = folder(ctx, workdir).await?;
        let (mut line, written, name) = self.line(command, argv, shell, (listed, &folder))?;
        line.current_dir(folder);
        if background {
            let most = Duration::from_secs(timeout.unwrap_or(USUAL_JOB).clamp(1, LONGEST_JOB));
            let mut output = self.go_on(&written, line, most, ctx).await?;
            if let Some(note) = ctx.variables.note(&written) {
                output.text.push_str(&format!("\n{note}"));
            }
            return Ok(output);
        }
        let seconds = timeout.unwrap_or(self.config.timeout).clamp(1, LONGEST);
        let result = self.commands.follow(line, &name, seconds, &self.redactor, ctx).await;
        with_note(result, ctx.variables.note(&written))
    }
}

/// The argument vector of a call; empty when it has none.
fn argv_of(args: &Value) -> Vec<String> {
    serde_json::from_value(args["argv"].clone()).unwrap_or_default()
}

/// The program that a name means, started in this folder.
fn program_of(name: &str, folder: &Path) -> Option<PathBuf> {
    match name.contains(std::path::is_separator) {
        true => Some(folder.join(name)),
        false => os::program(name),
    }
}

impl Exec {
    /// The program of a call that needs no question: one of the list, called without a shell, by commands that are confined.
    /// What is open to everything reads everything, and then no list of harmless programs is one.
    fn allowed(&self, args: &Value) -> Option<PathBuf> {
        let bounds = self.commands.bounds.as_ref().filter(|_| self.commands.confines())?;
        let shell = args["command"].as_str().is_some_and(|line| !line.trim().is_empty());
        if shell || self.config.allow.is_empty() {
            return None;
        }
        allowed::program(&self.config.allow, &argv_of(args), &bounds.own)
    }

    /// The command that a call asks for, how it is written down, and what it starts with.
    fn line(
        &self,
        command: Option<String>,
        argv: Option<Vec<String>>,
        shell: Option<Shell>,
        (listed, folder): (Option<PathBuf>, &Path),
    ) -> Result<(Command, String, String), ToolError> {
        let given = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.trim().is_empty());
        let argv = argv.filter(|argv| !argv.is_empty());
        if given(&command) == argv.is_some() {
            return tell(match argv {
                None => "`command` is empty. Give the command line to run.".to_owned(),
                Some(_) => "Give `command` or `argv`, not both.".to_owned(),
            });
        }
        let too_long = |text: &str| text.contains('\0') || text.len() > LONGEST_LINE;
        if command.iter().chain(argv.iter().flatten()).any(|text| too_long(text)) {
            return tell(
                "`command` holds a zero byte or is longer than 64 KiB. Write a script into a file with `write` and run \
                 that."
                .to_owned(),
            );
        }
        if let Some((name, arguments)) = argv.as_ref().and_then(|argv| argv.split_first()) {
            // What was looked at is what runs.
            let Some(program) = listed.or_else(|| program_of(name, folder)) else {
                return tell(format!("There is no program `{name}` on this machine. Nothing was run."));
            };
            let mut line = Command::new(program);
            line.args(arguments);
            let written: Vec<_> = argv.iter().flatten().map(|word| crate::terminal::shell_word(word)).collect();
            return Ok((line, written.join(" "), name.clone()));
        }
        let command = command.unwrap_or_default();
        let wanted = shell.unwrap_or(self.config.shell);
        let Some((shell, program)) = wanted.found() else { return tell(no_such_shell(wanted)) };
        Ok((shell.command(program, &command), command, shell.name().to_owned()))
    }
}

impl Commands {
    /// Runs a command to its end, as every command of ours runs: a clean environment with the variables of the turn's
    /// skills, nothing to read, at most `seconds`, bounded output without secrets, and nothing that outlives it. `name`
    /// is what the model is told could not be started.
    ///
    /// # Errors
    /// [`ToolError`]: it could not be started, was ended, or the turn was stopped.
    pub(super) async fn follow(
        &self,
        command: Command,
        name: &str,
        seconds: u64,
        redactor: &Redactor,
        ctx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let stopped = || ToolError::Abort("stopped".to_owned());
        let _slot = tokio::select! {
            slot = self.slots.acquire() => slot.map_err(|error| ToolError::Abort(error.to_string()))?,
            () = ctx.cancel.cancelled() => return Err(stopped()),
        };
        let launch = self.ready(command, Duration::from_secs(seconds), ctx).await?;
        let (started, pipes) = match Started::spawn(launch, self.mark()) {
            Ok(started) => started,
            Err(error) => {
                return tell(format!(
                    "`{name}` could not be started: {}. Tell the user; nothing was run.",
                    error.kind()
                ));
            }
        };
        let run = run(started, pipes, Duration::from_secs(seconds), ctx).await;
        let run = run.map_err(|error| ToolError::TellModel(format!("The command was lost sight of: {error}.")))?;
        if matches!(run.end, End::Stopped) {
            return Err(stopped());
        }
        if let Some(why) = &run.told.failed {
            return tell(format!("`{name}` was not run, because it could not be confined: {why}. Tell the user."));
        }
        let note = run.note.clone();
        with_note(run.told(redactor, ctx.output_chars, seconds), note)
    }
}

/// A result with a line more for the model.
pub(super) fn with_note(result: Result<ToolOutput, ToolError>, note: Option<String>) -> Result<ToolOutput, ToolError> {
    match (result, note) {
        (Ok(output), Some(note)) => Ok(ToolOutput { text: format!("{}\n{note}", output.text), ..output }),
        (Err(ToolError::TellModel(text)), Some(note)) => tell(format!("{text}\n{note}")),
        (result, _) => result,
    }
}

/// All that a command's environment holds: the one place where that is decided.
fn equip(command: &mut Command, ctx: &ToolContext) {
    command.env_clear().envs(os::clean_environment(std::env::vars_os()));
    command.env(SESSION_FILES, &ctx.media);
    for (name, value) in &ctx.variables.given {
        command.env(name, value.expose());
    }
}

impl Exec {
    /// Starts a command that goes on after the turn.
    async fn go_on(
        &self,
        written: &str,
        line: Command,
        most: Duration,
        ctx: &ToolContext,
    ) -> Result<ToolOutput, ToolError> {
        let jobs = self.commands.jobs();
        if !jobs.has_room() {
            return tell(format!(
                "{} background commands run already. End one with `process`, or wait for one.",
                jobs::MOST_RUNNING
            ));
        }
        let launch = self.commands.ready(line, most, ctx).await?;
        // Written down before it starts: whatever happens then, its session hears of the end.
        let announced = jobs.announce(&ctx.call, written);
        let (n, key) = announced.map_err(|error| {
            ToolError::TellModel(format!(
                "The command was not started: it could not be written down ({}).",
                error.kind()
            ))
        })?;
        let (started, pipes, input) = match Started::spawn_with_input(launch, self.commands.mark()) {
            Ok(started) => started,
            Err(error) => {
                jobs.withdraw(&key);
                return tell(format!(
                    "The shell could not be started: {}. Tell the user; nothing was run.",
                    error.kind()
                ));
            }
        };
        let job = jobs.add((n, key), &ctx.call, written, started, pipes, input, most, &ctx.clock, &self.redactor);
        Ok(format!(
            "Started in the background as {}, for at most {} s. Its end will be reported to you. Look at it with `process`.",
            job.id,
            most.as_secs()
        )
        .into())
    }
}

/// The folder to start in, inside the workspace.
async fn folder(ctx: &ToolContext, workdir: Option<String>) -> Result<PathBuf, ToolError> {
    let context = ctx.clone();
    let work = move || {
        let workdir = workdir.as_deref().filter(|workdir| !workdir.trim().is_empty()).unwrap_or(".");
        Broker::open(&context)?.workspace_folder(workdir)
    };
    let folder = tokio::task::spawn_blocking(work).await;
    folder.map_err(|error| ToolError::Abort(format!("a file tool ended unexpectedly: {error}")))?
}

fn no_such_shell(wanted: Shell) -> String {
    let here: Vec<String> = Shell::NAMED
        .iter()
        .filter(|shell| shell.found().is_some())
        .map(|shell| format!("`{}`", shell.name()))
        .collect();
    let here = if here.is_empty() { "no shell at all".to_owned() } else { here.join(", ") };
    let name = if wanted == Shell::Auto { "shell" } else { wanted.name() };
    format!(
        "There is no `{name}` on this machine; it has {here}. Nothing was run. Call again with one of them as `shell`."
    )
}

/// How a command ended.
enum End {
    Exited(ExitStatus),
    TimedOut,
    Stopped,
}

/// A command that ended, with all that it started.
struct Run {
    end: End,
    output: Output,
    took: Duration,
    /// Something it had started still ran when the command itself had ended.
    left_running: bool,
    /// What the helper that confined it told.
    told: crawfish_sandbox::Report,
    /// What is to be told of hosts that it was refused.
    note: Option<String>,
}

/// A command's end, without what it wrote.
struct Followed {
    end: End,
    took: Duration,
    left_running: bool,
    told: crawfish_sandbox::Report,
    note: Option<String>,
}

/// Follows a command to its end, keeping what it writes.
async fn run(started: Started, pipes: Vec<OutputPipe>, most: Duration, ctx: &ToolContext) -> io::Result<Run> {
    let mut output = Output::new(ctx.output_chars);
    let mut take = |bytes: &[u8]| output.add(bytes);
    let offline = started.is_offline();
    let Followed { end, took, left_running, told, note } =
        follow(started, pipes, most, &ctx.cancel, &ctx.clock, &mut take).await?;
    let note = note.or_else(|| (offline && output.misses_the_network()).then(|| NO_NETWORK.to_owned()));
    Ok(Run { end, output, took, left_running, told, note })
}

/// Follows a command to its end and ends what it leaves; `take` gets what it writes as it comes.
async fn follow(
    mut started: Started,
    pipes: Vec<OutputPipe>,
    most: Duration,
    cancel: &CancellationToken,
    clock: &Arc<dyn Clock>,
    take: &mut (dyn FnMut(&[u8]) + Send),
) -> io::Result<Followed> {
    let began = clock.monotonic();
    let mut pipes = Pipes(pipes);
    let mut bytes = vec![0; 64 * 1024];
    let mut status = None;
    let mut deadline = pin!(clock.sleep(most));
    // Armed anew when the shell has ended.
    let mut late = clock.sleep(LATE_OUTPUT);
    let end = loop {
        tokio::select! {
            () = cancel.cancelled() => break End::Stopped,
            () = &mut deadline => break End::TimedOut,
            ended = started.wait(), if status.is_none() => {
                status = Some(ended?);
                late = clock.sleep(LATE_OUTPUT);
            }
            read = pipes.read(&mut bytes), if !pipes.0.is_empty() => take(&bytes[..read]),
            // What holds the pipe open now is something that was left in the background: it is not waited for.
            () = &mut late, if status.is_some() => break End::Exited(status.take().unwrap_or_default()),
        }
        if pipes.0.is_empty()
            && let Some(status) = status.take()
        {
            break End::Exited(status);
        }
    };
    let took = clock.monotonic().saturating_sub(began);
    if !matches!(end, End::Exited(_)) {
        started.ask_to_end();
        let mut patience = pin!(clock.sleep(LAST_WORDS));
        let mut gone = status.is_some();
        while !(gone && pipes.0.is_empty()) {
            tokio::select! {
                () = &mut patience => break,
                ended = started.wait(), if !gone => {
                    ended?;
                    gone = true;
                }
                read = pipes.read(&mut bytes), if !pipes.0.is_empty() => take(&bytes[..read]),
            }
        }
    }
    let left_running = started.end().await;
    // It is dead or dying: this takes it off the system's list.
    let mut patience = pin!(clock.sleep(LAST_WORDS));
    tokio::select! {
        _ = started.wait() => {}
        () = &mut patience => {}
    }
    Ok(Followed { end, took, left_running, told: started.report().clone(), note: started.note() })
}

/// The pipes of a command, read as one; each goes when it has ended.
struct Pipes(Vec<OutputPipe>);

impl Pipes {
    /// How many bytes came; 0 when a pipe ended.
    async fn read(&mut self, bytes: &mut [u8]) -> usize {
        std::future::poll_fn(|cx| self.poll(cx, bytes)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>, bytes: &mut [u8]) -> Poll<usize> {
        for at in 0..self.0.len() {
            let mut buffer = ReadBuf::new(bytes);
            match Pin::as_mut(&mut self.0[at]).poll_read(cx, &mut buffer) {
                Poll::Pending => {}
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => return Poll::Ready(buffer.filled().len()),
                // Its end, or an error: neither will give anything more.
                Poll::Ready(_) => {
                    self.0.remove(at);
                    return Poll::Ready(0);
                }
            }
        }
        Poll::Pending
    }
}

impl Run {
    fn told(self, redactor: &Redactor, chars: usize, seconds: u64) -> Result<ToolOutput, ToolError> {
        let mut notes = Vec::new();
        let good = match &self.end {
            End::Exited(status) => {
                notes.push(exit_words(*status, self.took));
                status.code().is_some()
            }
            End::TimedOut | End::Stopped => {
                notes.push(format!(
                    "stopped after {seconds} s, with everything it had started; what it did until then stays done. If it \
                     needs longer, call again with a larger timeout (at most {LONGEST}), or do it in smaller steps"
                ));
                false
            }
        };
        if self.left_running && matches!(self.end, End::Exited(_)) {
            notes.push("what it left running in the background was ended with it".to_owned());
        }
        if self.told.too_many {
            notes.push("it started more processes than a command may, and all of them were ended".to_owned());
        }
        let text = self.output.text(redactor, chars.saturating_sub(ROOM_FOR_END).max(chars / 2));
        let text = text.unwrap_or_else(|| "(no output)".to_owned());
        let gap = if text.ends_with('\n') { "" } else { "\n" };
        let text = format!("{text}{gap}[{}]", notes.join("; "));
        if good { Ok(ToolOutput::from(text)) } else { Err(ToolError::TellModel(text)) }
    }
}

/// `exit code 0 after 3 s`. Without fractions: the same command with the same result reads the same, so that a loop is seen
/// as one.
fn exit_words(status: ExitStatus, took: Duration) -> String {
    let took = match took.as_secs() {
        0 => String::new(),
        seconds => format!(" after {seconds} s"),
    };
    match (status.code(), os::ended_by(status)) {
        (Some(code), _) => format!("exit code {code}{took}"),
        (None, Some(signal)) => {
            let name = signal_name(signal).map(|name| format!(" ({name})")).unwrap_or_default();
            format!("ended by signal {signal}{name}{took}")
        }
        (None, None) => format!("ended{took}"),
    }
}

/// The signals that end commands in practice. Their numbers are the same on Linux and macOS.
fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        1 => "hangup",
        2 => "interrupt",
        4 => "illegal instruction",
        6 => "abort",
        8 => "arithmetic error",
        9 => "killed; when nobody did that, the machine had no memory left",
        11 => "memory fault",
        13 => "broken pipe",
        15 => "terminated",
        _ => return None,
    })
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
