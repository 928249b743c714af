//! The wiring: builds every part, hands each the few things it uses, runs them and takes them down again. Boring on
//! purpose; nobody else sees all parts.

use std::{
    collections::{BTreeMap, HashMap},
    io,
    net::SocketAddr,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use channel_api::{Channel, ChannelContext, ChannelId, Clock, Said};
use jiff::tz::TimeZone;
use sha2::{Digest as _, Sha256};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

#[cfg(unix)]
use crate::egress::doorway::Doorways;
use crate::{
    agent::{Agent, AgentConfig, Agents, SilentReplies, briefing::Briefing, prefix::Prefixes},
    approvals::{ApprovalStore, Approvals},
    audit,
    channels::{self, BuildChannel, Channels, Entry},
    chats::{ChatStore, Chats},
    clock::SystemClock,
    config::{
        Loaded,
        doors::{self, Door, doors},
    },
    confinement::{Network, Ruling, Sandbox, Wanted},
    data_dir::{DataDir, DataDirError},
    delivery::{Delivery, Pace},
    egress::Egress,
    errand::Errands,
    halt::Halt,
    heartbeat::{self, Heartbeat, rows::InitiativeStore},
    http::{self, Http, hooks::Calls, initiative::Initiative},
    inbox::{Running, WakeUp},
    intake::{
        self, Intake, SenderRates,
        pairing::{Access, Reach},
        route::{Bindings, Links},
        turned_away::TurnedAway,
    },
    journal::Journal,
    lang::{self, Lang},
    ledger::Ledger,
    lifecycle::{self, Ended, Lifecycle},
    live,
    marks::Marks,
    mcp::{self, Mcp},
    media::MediaFolder,
    memory::{
        Memories, Memory,
        embed::{Embedder, IN_LEDGER},
    },
    model::{
        self, Model,
        audio::{Ears, Voice},
        config::{BuildError, ModelConfig},
        failover::{Failover, Rests},
    },
    outbox::LaneWakeUp,
    plan::{PlanStore, Plans},
    policy::{Asker, Role, ToolPolicy},
    schedule::{Scheduler, Schedules, rows::ScheduleStore},
    secrets::{self, Redactor, Secret},
    settlements::{Kv, Settlements},
    skills::{self, ProcessEnv, Shelf, Skills, variables::Keyring},
    store::{
        AccessStore, Apology, BootId, ChannelStore, InboxStore, LedgerStore, OutboxStore, SessionStore, Store,
        TurnStore,
        note::NoteStore,
        sqlite::{OpenError, SqliteStore},
    },
    subagents::SubagentStore,
    supervisor::{self, Health, Watched},
    tools::{
        Acts, Nest, Parts, Registry, Rooms, Ways,
        exec::{Bounds, Commands},
        senses::Senses,
        skill::Works,
        web_search::WebSearch,
    },
    upkeep::{self, Ready},
    worker::Worker,
    workspace,
};

/// How long delivery may go on after the drain. guarantees.md G8.
const FLUSH: Duration = Duration::from_secs(2);

/// Why the gateway did not start, named by its exit code.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// 75: another gateway holds the data folder.
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    /// 65, 67, 74: the database.
    #[error("{path}: {source}")]
    Store {
        /// The database file.
        path: String,
        /// Why.
        source: OpenError,
    },
    /// 69, 65: the database after it was opened.
    #[error(transparent)]
    Recover(#[from] crate::store::StoreError),
    /// 78: a section cannot work.
    #[error("{key}: {text}")]
    Section {
        /// The key.
        key: String,
        /// What is wrong and what to do.
        text: String,
    },
    /// 71: the address is taken or not ours.
    #[error("{addr}: {source}")]
    Listen {
        /// The address.
        addr: String,
        /// Why.
        source: io::Error,
    },
    /// 74: the workspace.
    #[error("{path}: {source}")]
    Workspace {
        /// The folder.
        path: String,
        /// Why.
        source: io::Error,
    },
}

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunEnd {
    /// As asked: exit 0.
    Cleanly,
    /// A task died: exit 70.
    TaskDied(&'static str),
    /// The database is damaged: exit 65.
    Damaged,
}

/// What a start says once it is ready.
pub struct Started<'a> {
    /// Where it listens.
    pub url: &'a str,
    /// The link that logs a browser in.
    pub link: String,
    /// Its model.
    pub model: &'a str,
    /// The demo model answers: nothing is configured yet.
    pub demo: bool,
    /// Its channels, with what is odd about each.
    pub channels: &'a Channels,
    /// Its skills.
    pub skills: &'a Skills,
}

/// Opens the store of this configuration.
///
/// # Errors
/// [`StartError::Store`].
pub async fn open_store(loaded: &Loaded) -> Result<Arc<dyn Store>, StartError> {
    let path = loaded.path(loaded.config.store.sqlite_path());
    let error = |source| StartError::Store { path: path.display().to_string(), source };
    if let Some(dir) = path.parent() {
        crate::os::create_private_dir(dir)
            .map_err(|source| StartError::DataDir(DataDirError::Io { path: dir.display().to_string(), source }))?;
    }
    Ok(Arc::new(SqliteStore::open(&path).await.map_err(error)?))
}

/// The skills of this configuration, read again when their folders change. Writes the shipped ones once.
///
/// # Errors
/// [`StartError::Workspace`] when the shipped skills cannot be written.
pub fn open_shelf(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Result<Arc<Shelf>, StartError> {
    let shipped = skills::bundled_dir(&loaded.data_dir());
    skills::write_bundled(&shipped)
        .map_err(|source| StartError::Workspace { path: shipped.display().to_string(), source })?;
    // There before anything is installed, so that it is watched from the start.
    let installed = loaded.data_dir().join("skills");
    crate::os::create_private_dir(&installed)
        .map_err(|source| StartError::Workspace { path: installed.display().to_string(), source })?;
    let (sources, env) = skill_sources(loaded);
    Ok(Arc::new(Shelf::open(sources, Box::new(env), clock.monotonic())))
}

/// The skills as they lie there now. Writes nothing: before the first start the shipped ones are not among them.
pub fn look_at_skills(loaded: &Loaded) -> Skills {
    let (sources, env) = skill_sources(loaded);
    Skills::load(&sources, &env)
}

/// What the gates of skills ask about this machine.
pub fn skill_env(loaded: &Loaded) -> ProcessEnv {
    skill_sources(loaded).1
}

fn skill_sources(loaded: &Loaded) -> (Vec<skills::Source>, ProcessEnv) {
    let dirs = loaded.config.skills.dirs.iter().map(|dir| loaded.path(dir));
    let sources = skills::sources(&workspace_dir(loaded), &loaded.data_dir(), dirs);
    let lookup = |name: &str| loaded.env.get(name).map(str::to_owned);
    (sources, ProcessEnv::new(lookup, keyring(loaded), loaded.show_json()))
}

/// The values that skills' commands may be given.
pub fn keyring(loaded: &Loaded) -> Keyring {
    let (entries, env) = (loaded.config.skills.entries.clone(), loaded.env.clone());
    let own = loaded.secrets().map(Secret::new).collect();
    Keyring::new(entries, move |name| env.get(name).map(str::to_owned), own)
}

/// What skills' tools and commands stand on.
pub fn works(loaded: &Loaded, parts: &Parts) -> Works {
    Works::new(parts.config.exec.enabled, keyring(loaded), parts.commands.clone(), parts.redactor.clone())
}

fn workspace_dir(loaded: &Loaded) -> PathBuf {
    loaded.path(&loaded.config.agent.workspace)
}

/// Every agent's workspace and the language of its rules, that of `main` first.
fn workspaces(loaded: &Loaded) -> Vec<(PathBuf, Option<Lang>)> {
    let main = &loaded.config.agent;
    let others = loaded.config.agents.iter().map(|(id, other)| other.settings(id, main));
    let all = std::iter::once(main.clone()).chain(others);
    all.map(|settings| (loaded.path(&settings.workspace), settings.lang)).collect()
}

/// What the tools stand on.
pub fn tool_parts(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Parts {
    let subagents = loaded.config.agent.subagents;
    let config = loaded.config.tools.clone();
    let env = |name: &str| loaded.env.get(name).map(str::to_owned);
    let egress = config.web_fetch.enabled.then(|| Arc::new(Egress::new(&config.web_fetch, env, Arc::clone(clock))));
    let search = WebSearch::of(&config.web_search, &config.web_fetch, env, clock).map(Arc::new);
    let redactor = redactor(loaded);
    let commands = commands(loaded).within(bounds(loaded, clock));
    Parts { config, commands, redactor, egress, search, subagents, ..Parts::default() }
}

/// Takes every secret of the configuration, and the gateway's token, out of texts.
fn redactor(loaded: &Loaded) -> Redactor {
    let token = std::fs::read_to_string(loaded.data_dir().join("token"));
    loaded.redactor().learn(token.ok().map(Secret::new).iter());
    loaded.redactor().clone()
}

/// The models of these sections, none of which learns a secret or tells one.
fn models(
    loaded: &Loaded,
    sections: &BTreeMap<String, ModelConfig>,
    clock: &Arc<dyn Clock>,
) -> Result<BTreeMap<String, Arc<dyn Model>>, BuildError> {
    let redactor = redactor(loaded);
    let built = model::config::build_all(sections, clock, &loaded.dir)?;
    Ok(built
        .into_iter()
        .map(|(name, model)| (name, secrets::model::Screened::before(model, redactor.clone())))
        .collect())
}

/// The memories of the agents of this configuration.
///
/// # Errors
/// [`StartError::Section`] when the embedding model cannot work.
pub fn build_memories(
    loaded: &Loaded,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
    ledger: &Arc<Ledger>,
) -> Result<Memories, StartError> {
    let embedder = match &loaded.config.memory.embedding {
        Some(section) => Some(Arc::new(
            Embedder::new(section, Arc::clone(ledger))
                .map_err(|error| StartError::Section { key: error.key.clone(), text: error.text })?,
        )),
        None => None,
    };
    let forgotten = Arc::default();
    let workspaces = std::iter::once(("main", workspace_dir(loaded))).chain(
        loaded
            .config
            .agents
            .iter()
            .map(|(id, other)| (id.as_str(), loaded.path(&other.settings(id, &loaded.config.agent).workspace))),
    );
    Ok(Memories::new(workspaces.map(|(id, workspace)| {
        let notes = Arc::clone(store) as Arc<dyn NoteStore>;
        Memory::new(id, workspace, notes, Arc::clone(clock), embedder.clone(), Arc::clone(&forgotten))
    })))
}

/// The same with those who see, hear and speak, where their sections can be used: for listings.
pub fn all_tool_parts(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Parts {
    let senses = look_at_senses(loaded, clock).unwrap_or_default();
    Parts { senses, described: loaded.config.schedule.enabled, ..tool_parts(loaded, clock) }
}

/// Every tool that a turn of this configuration can be offered, those of skills and the approved ones of MCP servers among
/// them: for listings. Nothing is started.
pub fn every_tool(loaded: &Loaded, skills: &Arc<Skills>, clock: &Arc<dyn Clock>) -> Registry {
    let parts = all_tool_parts(loaded, clock);
    let own = works(loaded, &parts).with_tools_of(skills, &Registry::builtin(&parts));
    open_mcp(loaded, clock).joined(&own, Asker { role: Role::Owner, direct: true })
}

/// Who would see, hear and speak in a gateway of this configuration.
///
/// # Errors
/// [`StartError::Section`] when a section cannot work.
pub fn look_at_senses(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Result<Senses, StartError> {
    let models = models(loaded, &loaded.config.models, clock)
        .map_err(|error| StartError::Section { key: error.key, text: error.text })?;
    senses(loaded, &models, &open_media(loaded, clock), clock)
}

/// Who sees, hears and speaks for models that do not.
///
/// # Errors
/// [`StartError::Section`] when a tool names a model that is not there or cannot do it.
fn senses(
    loaded: &Loaded,
    models: &BTreeMap<String, Arc<dyn Model>>,
    media: &Arc<MediaFolder>,
    clock: &Arc<dyn Clock>,
) -> Result<Senses, StartError> {
    let (tools, sections) = (&loaded.config.tools, &loaded.config.models);
    let lang = Lang::current();
    let at = |key: &str, text: String| StartError::Section { key: key.to_owned(), text };
    let wrong = |error: BuildError| StartError::Section { key: error.key, text: error.text };
    let section =
        |key: &str, name: &str| sections.get(name).ok_or_else(|| at(key, lang::model_not_configured(lang, name)));
    let mut senses = Senses::default();
    if let Some(name) = &tools.image.model {
        let eyes = models.get(name);
        let eyes = eyes.ok_or_else(|| at("tools.image.model", lang::model_not_configured(lang, name)))?;
        if !eyes.sees() {
            return Err(at("tools.image.model", lang::model_does_not_see(lang, name)));
        }
        senses.eyes = Some(Arc::clone(eyes));
    }
    if let Some(name) = &tools.transcribe.model {
        let section = section("tools.transcribe.model", name)?;
        let ears = Ears::new(name, section, tools.transcribe.language.clone(), Arc::clone(clock));
        senses.ears = Some(Arc::new(ears.map_err(wrong)?));
    }
    if let Some(name) = &tools.speak.model {
        let section = section("tools.speak.model", name)?;
        let voice = tools.speak.voice.clone().filter(|voice| !voice.trim().is_empty());
        let voice = voice.ok_or_else(|| at("tools.speak.voice", lang::model_voice_unnamed(lang)))?;
        let voice = Voice::new(name, section, voice, Arc::clone(clock)).map_err(wrong)?;
        senses.voice = Some((Arc::new(voice), Arc::clone(media)));
    }
    Ok(senses)
}

/// The files of messages. Links are fetched whether or not the model may fetch any.
fn open_media(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Arc<MediaFolder> {
    let (config, env) = (&loaded.config, |name: &str| loaded.env.get(name).map(str::to_owned));
    let egress = Egress::new(&config.media.egress(&config.tools.web_fetch), env, Arc::clone(clock));
    Arc::new(MediaFolder::new(loaded.data_dir().join("media"), config.media.clone(), egress, Arc::clone(clock)))
}

/// The servers of `[mcp]`. Starts none.
pub fn open_mcp(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Mcp {
    let env = loaded.env.clone();
    let common = mcp::Common {
        dir: loaded.dir.clone(),
        data: loaded.data_dir(),
        house: house(loaded),
        fake_ip: loaded.config.tools.web_fetch.fake_ip,
        env: Box::new(move |name| env.get(name).map(str::to_owned)),
        redactor: redactor(loaded),
        sandbox: open_sandbox(loaded, clock),
        clock: Arc::clone(clock),
    };
    Mcp::new(&loaded.config.mcp, &common)
}

/// The commands of the gateway with this data folder, known again after a restart.
fn commands(loaded: &Loaded) -> Commands {
    Commands::of(&house(loaded))
}

/// What confines the commands of the gateway: it keeps them from the data folder, the configuration and `.env`.
pub fn sandbox(loaded: &Loaded) -> Sandbox {
    let store = loaded.path(loaded.config.store.sqlite_path());
    let kept = [loaded.data_dir(), loaded.dir.join(".env"), store];
    let kept = kept.into_iter().chain(loaded.source.clone()).chain(loaded.secret_places().iter().cloned());
    Sandbox::new(kept.collect(), workspace_dir(loaded))
}

/// The same, with a way to the hosts that are opened to what it confines.
fn open_sandbox(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Sandbox {
    #[cfg(unix)]
    return sandbox(loaded).with_ways(doorways(loaded, clock));
    #[cfg(not(unix))]
    {
        let _ = clock;
        sandbox(loaded)
    }
}

#[cfg(unix)]
fn doorways(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Doorways {
    Doorways::new(loaded.data_dir().join("doorways"), &loaded.config.tools.web_fetch, Arc::clone(clock))
}

fn bounds(loaded: &Loaded, clock: &Arc<dyn Clock>) -> Bounds {
    let exec = &loaded.config.tools.exec;
    let read = exec.read.iter().map(|path| loaded.path(path)).collect();
    let network = if exec.network == crate::tools::exec::Network::Open { Network::Host } else { Network::Off };
    let real = |path: PathBuf| std::fs::canonicalize(&path).unwrap_or(path);
    let own = workspace_of_each(loaded).into_values().map(real).collect();
    Bounds { sandbox: open_sandbox(loaded, clock), wanted: exec.sandbox, network, hosts: exec.own_hosts(), read, own }
}

/// By which the processes of the gateway with this data folder are known.
fn house(loaded: &Loaded) -> String {
    let dir = loaded.data_dir();
    let dir = std::fs::canonicalize(&dir).unwrap_or(dir);
    let hash = Sha256::digest(dir.as_os_str().as_encoded_bytes());
    hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// What all agents share.
pub struct Shared<'a> {
    /// The files of messages.
    pub media: &'a Arc<MediaFolder>,
    /// What models take.
    pub ledger: &'a Arc<Ledger>,
    /// Their memories.
    pub memories: &'a Memories,
    /// Reminders.
    pub schedules: &'a Schedules,
    /// What reaches beyond a turn.
    pub acts: &'a Acts,
    /// Asks the owner.
    pub approvals: &'a Approvals,
    /// Which models rest.
    pub rests: &'a Rests,
}

/// The agents of this configuration.
///
/// # Errors
/// [`StartError::Section`] when a model cannot work.
pub fn build_agents(
    loaded: &Loaded,
    shelf: &Arc<Shelf>,
    store: &Arc<dyn Store>,
    journal: &Journal,
    clock: &Arc<dyn Clock>,
    shared: &Shared<'_>,
) -> Result<Agents, StartError> {
    let config = &loaded.config;
    let mut sections = config.models.clone();
    if sections.is_empty() {
        sections.insert("demo".to_owned(), ModelConfig::demo());
    }
    let mut models = models(loaded, &sections, clock)
        .map_err(|error| StartError::Section { key: error.key.clone(), text: error.text })?;
    let mut parts = tool_parts(loaded, clock);
    let ledger = Some(Arc::clone(shared.ledger));
    parts.senses = Senses { ledger, ..senses(loaded, &models, shared.media, clock)? };
    // A section that only hears or speaks answers nobody.
    models.retain(|name, _| !config.tools.is_for_sound(name) || config.names_model(name));
    let models = Arc::new(models);
    let home = config_home();
    let limits = &config.limits;
    parts.acts = Some(shared.acts.clone());
    parts.schedules = config.schedule.enabled.then(|| shared.schedules.clone());
    let policies = Arc::new(config.tool_policies());
    let errands = shared.acts.rooms.errands.clone();
    parts.commands.report_to(errands, loaded.data_dir().join("jobs"), parts.redactor.clone());
    let mcp = open_mcp(loaded, clock);
    let build =
        |id: &str, settings: AgentConfig, shelf: Arc<Shelf>, chosen: Option<Vec<String>>, policy: ToolPolicy| {
            let section = if id == "main" { "agent".to_owned() } else { format!("agents.{id}") };
            let workspace = loaded.path(&settings.workspace);
            let briefing = Briefing::new(id, workspace.clone(), shelf, Arc::clone(clock), home.clone());
            Ok::<Agent, StartError>(Agent {
                id: id.to_owned(),
                briefing: briefing.only(chosen),
                model: choose_model(
                    &models,
                    settings.model.as_deref(),
                    &settings.fallbacks,
                    &section,
                    (shared.rests, clock),
                )?,
                models: Arc::clone(&models),
                ledger: Arc::clone(shared.ledger),
                tools: Registry::builtin(&Parts { memory: shared.memories.get(id).cloned(), ..parts.clone() }),
                works: works(loaded, &parts),
                mcp: mcp.clone(),
                ears: parts.senses.ears.clone(),
                policies: Arc::clone(&policies),
                policy,
                workspace,
                media: Arc::clone(shared.media),
                config: settings,
                turns: Arc::clone(store) as Arc<dyn TurnStore>,
                inbox: Arc::clone(store) as Arc<dyn InboxStore>,
                plans: shared.acts.plans.clone(),
                approvals: shared.approvals.clone(),
                subagents: Arc::clone(&shared.acts.nest.subagents),
                journal: journal.clone(),
                clock: Arc::clone(clock),
                prefixes: Prefixes::default(),
                turn_idle: Duration::from_secs(limits.turn_idle_s),
                turn_max: Duration::from_secs(limits.turn_max_s),
            })
        };
    let mut agents = vec![build("main", config.agent.clone(), Arc::clone(shelf), None, ToolPolicy::default())?];
    for (id, other) in &config.agents {
        let settings = other.settings(id, &config.agent);
        let dirs = config.skills.dirs.iter().chain(&other.skill_dirs).map(|dir| loaded.path(dir));
        let sources = skills::sources(&loaded.path(&settings.workspace), &loaded.data_dir(), dirs);
        let shelf = Arc::new(Shelf::open(sources, Box::new(skill_env(loaded)), clock.monotonic()));
        agents.push(build(id, settings, shelf, other.skills.clone(), other.tools.clone())?);
    }
    Ok(Agents::new(agents))
}

/// The ledger of this configuration.
pub fn open_ledger(loaded: &Loaded, store: &Arc<dyn Store>, clock: &Arc<dyn Clock>) -> Arc<Ledger> {
    let rows = Arc::clone(store) as Arc<dyn LedgerStore>;
    let models = loaded.config.models.iter();
    let embedding = loaded.config.memory.embedding.iter().map(|model| (IN_LEDGER.to_owned(), model.price));
    let prices = models.map(|(name, model)| (name.clone(), model.price)).chain(embedding);
    let prices = prices.filter_map(|(name, price)| Some((name, price?))).collect();
    let budget = loaded.config.limits.budget.clone();
    Arc::new(Ledger::new(rows, Arc::clone(clock), TimeZone::system(), budget, prices))
}

/// The workspace of each agent.
fn workspace_of_each(loaded: &Loaded) -> BTreeMap<String, PathBuf> {
    let config = &loaded.config;
    let others = config.agents.iter().map(|(id, other)| {
        let settings = other.settings(id, &config.agent);
        (id.clone(), loaded.path(&settings.workspace))
    });
    others.chain([("main".to_owned(), workspace_dir(loaded))]).collect()
}

fn config_home() -> Option<PathBuf> {
    std::env::var_os("HOME").or_else(|| std::env::var_os("USERPROFILE")).map(PathBuf::from)
}

/// The model of that name, with its fallbacks behind it.
fn choose_model(
    models: &BTreeMap<String, Arc<dyn Model>>,
    name: Option<&str>,
    fallbacks: &[String],
    section: &str,
    (rests, clock): (&Rests, &Arc<dyn Clock>),
) -> Result<Arc<dyn Model>, StartError> {
    let named = |name: &str, key: &str| {
        models.get(name).cloned().ok_or_else(|| StartError::Section {
            key: format!("{section}.{key}"),
            text: lang::model_not_configured(Lang::current(), name),
        })
    };
    let first = match name {
        Some(name) => named(name, "model")?,
        None => match models.get("main").or_else(|| models.values().next()) {
            Some(model) => Arc::clone(model),
            None => named("main", "model")?,
        },
    };
    let main_name = first.name().to_owned();
    let mut all = vec![first];
    for name in fallbacks {
        all.push(named(name, "fallbacks")?);
    }
    Ok(Arc::new(Failover::new(main_name, all, rests.clone(), Arc::clone(clock))))
}

/// The configured channels and the web chat.
///
/// # Errors
/// [`StartError::Section`] when an adapter refuses its section.
pub fn build_channels(loaded: &Loaded) -> Result<Channels, StartError> {
    let config = &loaded.config;
    let mut entries = Vec::new();
    let bound = config
        .agents
        .iter()
        .flat_map(|(id, agent)| agent.bindings.iter().map(|binding| (id.clone(), binding.clone())).collect::<Vec<_>>());
    let (bindings, links) = (Arc::new(Bindings::new(bound)), Arc::new(Links::new(&config.access.identity_links)));
    for (id, section) in &config.channels {
        if !section.policy.enabled {
            continue;
        }
        let section_error = |said: Said| StartError::Section {
            key: format!("channels.{}.{}", id.kind(), id.account()),
            text: Lang::current().of(&said).to_owned(),
        };
        let network = channels::network(&section.policy, |path| loaded.path(path)).map_err(section_error)?;
        let build = BuildChannel { id, settings: &section.settings, policy: &section.policy, network: &network };
        let channel =
            secrets::channel::Screened::before(channels::build(&build).map_err(section_error)?, redactor(loaded));
        let owner = channels::kind(id.kind()).is_some_and(|kind| kind.owners_own);
        entries.push(Entry::new(channel, section.policy.clone(), &config.access, owner));
    }
    for (channel, policy, owner) in http::web::channels(&config.server) {
        let channel = secrets::channel::Screened::before(channel, redactor(loaded));
        entries.push(Entry::new(channel, policy, &config.access, owner));
    }
    for entry in &mut entries {
        (entry.bindings, entry.links) = (Arc::clone(&bindings), Arc::clone(&links));
    }
    Ok(Channels::new(entries))
}

/// Runs the gateway until it is told to stop. `ready` is called once it answers.
///
/// # Errors
/// [`StartError`] when it cannot start; nothing is left running.
pub async fn serve(loaded: &Loaded, ready: impl FnOnce(&Started<'_>)) -> Result<RunEnd, StartError> {
    let config = &loaded.config;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let data = DataDir::take(&loaded.data_dir())?;
    let boot = BootId::generate();
    // Bound before anything else is opened: a taken port is told at once.
    let listener = listen(&config.server.listen_addr().map_err(|_| listen_error(&config.server.listen))?).await?;
    let channels_addr = config.server.channels_addr().map_err(|_| listen_error(&config.server.channels_listen))?;
    let channels_listener = match channels_addr {
        Some(addr) => Some(listen(&addr).await?),
        None => None,
    };
    let token = data.token()?;
    crawfish_sandbox::keep_private();
    crate::os::sweep_private_folders();
    #[cfg(unix)]
    doorways(loaded, &clock).sweep();
    let store = open_store(loaded).await?;
    let channels = build_channels(loaded)?;
    channel_api::crash_point!("recover.begun");
    for (channel, moved) in store.moves().await? {
        if let Some(entry) = channels.get(&channel) {
            entry.moved(&moved);
        }
    }
    Commands::end_groups(&loaded.data_dir().join("jobs"));
    let recovered = store.recover(&boot, clock.now_ms(), apology(&channels, &clock)).await?;
    channel_api::crash_point!("recover.done");
    if recovered.entries > 0 || recovered.uncertain > 0 {
        let crate::store::Recovered { entries, dead, uncertain } = recovered;
        warn!(entries, dead, uncertain, "the last run ended abruptly; its work goes on");
        let left = commands(loaded).end_leftovers();
        if left > 0 {
            warn!(processes = left, "commands of the last run still ran; they were ended");
        }
    }
    for (workspace, lang) in workspaces(loaded) {
        workspace::write_templates(&workspace, lang.unwrap_or_else(Lang::current))
            .map_err(|source| StartError::Workspace { path: workspace.display().to_string(), source })?;
    }

    let shelf = open_shelf(loaded, &clock)?;
    let skills = shelf.current(clock.monotonic());
    skills::watch::log(&Skills::default(), &skills);
    if config.tools.exec.enabled && config.tools.exec.sandbox == Wanted::Off {
        warn!("{}", lang::door_exec_wide(Lang::current()));
    }
    let halt = begin_audit(loaded, data.path(), &store, &clock).await.map_err(StartError::Recover)?;
    let journal = Journal::new();
    let (work, lanes, running) = (WakeUp::default(), LaneWakeUp::default(), Running::default());
    let media = open_media(loaded, &clock);
    let health = Health::default();
    let ledger = open_ledger(loaded, &store, &clock);
    let schedules = Schedules {
        rows: Arc::clone(&store) as Arc<dyn ScheduleStore>,
        config: config.schedule.clone(),
        woken: WakeUp::default(),
        clock: Arc::clone(&clock),
    };
    let plans = Plans::open(Arc::clone(&store) as Arc<dyn PlanStore>, journal.clone()).await?;
    let subagents = Arc::clone(&store) as Arc<dyn SubagentStore>;
    let errands = Errands {
        inbox: Arc::clone(&store) as Arc<dyn InboxStore>,
        work: work.clone(),
        cap: config.agent.queue.cap,
        clock: Arc::clone(&clock),
    };
    let reach = Reach { running: running.clone(), journal: journal.clone(), lanes: lanes.clone(), work: work.clone() };
    let access = open_access(&store, &channels, &clock, reach).await.map_err(StartError::Recover)?;
    let chats = Chats {
        rows: Arc::clone(&store) as Arc<dyn ChatStore>,
        channels: channels.clone(),
        access: Arc::clone(&access),
    };
    let acts = Acts {
        plans: plans.clone(),
        ways: Ways {
            chats: chats.clone(),
            outbox: Arc::clone(&store) as Arc<dyn OutboxStore>,
            channels: channels.clone(),
            media: Arc::clone(&media),
            lanes: lanes.clone(),
        },
        nest: Nest { subagents: Arc::clone(&subagents), work: work.clone() },
        rooms: Rooms {
            sessions: Arc::clone(&store) as Arc<dyn SessionStore>,
            turns: Arc::clone(&store) as Arc<dyn TurnStore>,
            chats: chats.clone(),
            subagents: Arc::clone(&subagents),
            errands,
        },
    };
    let memories = build_memories(loaded, &store, &clock, &ledger)?;
    let approvals = Approvals {
        rows: Arc::clone(&store) as Arc<dyn ApprovalStore>,
        chats: chats.clone(),
        channels: channels.clone(),
        lanes: lanes.clone(),
        config: config.approvals.clone(),
    };
    let shared = Shared {
        media: &media,
        ledger: &ledger,
        memories: &memories,
        schedules: &schedules,
        acts: &acts,
        approvals: &approvals,
        rests: health.models(),
    };
    let agents = build_agents(loaded, &shelf, &store, &journal, &clock, &shared)?;
    for id in std::iter::once("main").chain(config.agents.keys().map(String::as_str)) {
        if let Some(agent) = agents.get(id) {
            halt.reaches(&agent.works.commands, id);
        }
    }
    let doors = doors(config, Lang::current());
    log_doors(&doors::with_access(&doors, &access.pairings().await.map_err(StartError::Recover)?, Lang::current()));
    let mut life = Lifecycle::new();
    let ready_flag = Ready::default();
    let (marks, keeper) = Marks::new(channels.clone(), config.agent.marks, Arc::clone(&clock));
    let intake = Arc::new(Intake {
        inbox: Arc::clone(&store) as Arc<dyn InboxStore>,
        sessions: Arc::clone(&store) as Arc<dyn SessionStore>,
        turns: Arc::clone(&store) as Arc<dyn TurnStore>,
        channels: channels.clone(),
        access: Arc::clone(&access),
        queue: config.agent.queue.clone(),
        limits: config.limits.clone(),
        ready: ready_flag.clone(),
        boot: boot.clone(),
        clock: Arc::clone(&clock),
        work: work.clone(),
        lanes: lanes.clone(),
        running: running.clone(),
        health: health.clone(),
        plans,
        subagents,
        approvals: approvals.clone(),
        journal: journal.clone(),
        marks: marks.clone(),
        stopping: life.stopping.clone(),
        senders: SenderRates::default(),
        turned_away: TurnedAway::default(),
        ledger: Arc::clone(&ledger),
        teller: Some(intake::abuse::Teller {
            chats: Chats {
                rows: Arc::clone(&store) as Arc<dyn ChatStore>,
                channels: channels.clone(),
                access: Arc::clone(&access),
            },
            rows: Arc::clone(&store) as Arc<dyn audit::AuditStore>,
            lanes: lanes.clone(),
        }),
        refused: intake::abuse::Told::default(),
        halt: halt.clone(),
        shelf: Arc::clone(&shelf),
    });
    let watched: Arc<dyn channel_api::Intake> = Arc::new(Watched {
        intake: Arc::new(secrets::channel::ScreenedIntake {
            intake: Arc::clone(&intake) as Arc<dyn channel_api::Intake>,
            redactor: redactor(loaded),
        }),
        health: health.clone(),
        clock: Arc::clone(&clock),
    });
    let contexts: HashMap<ChannelId, ChannelContext> = channels
        .all()
        .into_iter()
        .map(|entry| {
            let id = entry.channel.id().clone();
            let context = ChannelContext {
                intake: Arc::clone(&watched),
                shutdown: life.stopping.clone(),
                clock: Arc::clone(&clock),
                kv: Arc::new(Kv { channel: id.clone(), store: Arc::clone(&store) as Arc<dyn ChannelStore> }),
                media: Arc::clone(&media) as Arc<dyn channel_api::Media>,
                settlements: Arc::new(Settlements {
                    channel: id.clone(),
                    inbox: Arc::clone(&store) as Arc<dyn InboxStore>,
                    outbox: Arc::clone(&store) as Arc<dyn OutboxStore>,
                    journal: journal.clone(),
                    lanes: lanes.clone(),
                    clock: Arc::clone(&clock),
                    health: health.clone(),
                }),
                pulse: channel_api::Pulse::new(Arc::clone(&clock)),
            };
            entry.channel.open(&context);
            (id, context)
        })
        .collect();

    let previews = Arc::clone(&store) as Arc<dyn TurnStore>;
    let sweep = {
        let (previews, channels) = (Arc::clone(&previews), channels.clone());
        let (clock, stopping) = (Arc::clone(&clock), life.stopping.clone());
        move || live::sweep(Arc::clone(&previews), channels.clone(), Arc::clone(&clock), stopping.clone())
    };
    let worker = Arc::new(Worker {
        inbox: Arc::clone(&store) as Arc<dyn InboxStore>,
        previews,
        alerts: Arc::clone(&store) as Arc<dyn InitiativeStore>,
        agents: agents.clone(),
        channels: channels.clone(),
        chats: chats.clone(),
        work: work.clone(),
        lanes: lanes.clone(),
        running: running.clone(),
        journal: journal.clone(),
        marks,
        halt: halt.clone(),
        boot: boot.clone(),
        clock: Arc::clone(&clock),
        turns: config.agent.workers as usize,
        cap: config.agent.queue.cap,
        debounce_ms: i64::from(config.agent.queue.debounce_ms),
        silent_everywhere: config.agent.silent_replies == SilentReplies::Everywhere,
    });
    let delivery = Arc::new(Delivery {
        outbox: Arc::clone(&store) as Arc<dyn OutboxStore>,
        channels: channels.clone(),
        lanes,
        boot: boot.clone(),
        clock: Arc::clone(&clock),
        pace: Pace::default(),
        health: health.clone(),
    });
    let beats = heartbeat::beats(
        &config.heartbeat,
        &workspace_of_each(loaded),
        config.agent.lang.unwrap_or_else(Lang::current),
    );
    let woken = WakeUp::default();
    let heartbeat = Heartbeat {
        halt: halt.clone(),
        beats: beats.clone(),
        hook_role: config.hooks.role,
        rows: Arc::clone(&store) as Arc<dyn InitiativeStore>,
        sessions: Arc::clone(&store) as Arc<dyn SessionStore>,
        chats: chats.clone(),
        woken: woken.clone(),
        work: work.clone(),
        cap: config.agent.queue.cap,
        clock: Arc::clone(&clock),
    };
    let scheduler = Scheduler {
        halt: halt.clone(),
        schedules: schedules.clone(),
        chats: chats.clone(),
        work: work.clone(),
        cap: config.agent.queue.cap,
    };
    let initiative = Initiative {
        hooks: config.hooks.clone(),
        rows: Arc::clone(&store) as Arc<dyn InitiativeStore>,
        schedules,
        chats,
        beats,
        models: config.models.keys().cloned().collect(),
        heartbeat: woken,
        work: work.clone(),
        cap: config.agent.queue.cap,
        calls: Calls::default(),
    };
    let damaged = Arc::new(AtomicBool::new(false));
    let url = format!(
        "http://{}",
        listener.local_addr().map_err(|source| StartError::Listen { addr: config.server.listen.clone(), source })?
    );
    let http = Arc::new(Http {
        config: config.server.clone(),
        data_dir: data.path().to_owned(),
        intake: watched,
        channels: channels.clone(),
        contexts: contexts.clone(),
        running: running.clone(),
        work: work.clone(),
        store: Arc::clone(&store),
        journal,
        health: health.clone(),
        agents: agents.clone(),
        memories: memories.clone(),
        access,
        doors,
        initiative: Some(initiative),
        turned_away: intake.turned_away.clone(),
        halt,
        ledger,
        clock: Arc::clone(&clock),
        ready: ready_flag.clone(),
        stopping: life.stopping.clone(),
        redactor: redactor(loaded),
    });

    let (stopping, drained, abort) = (life.stopping.clone(), life.drained.clone(), life.abort.clone());
    life.edge("signals", lifecycle::signals(stopping.clone()));
    life.edge("marks", keeper.run(abort.clone()));
    life.front("http", http.serve(listener, channels_listener, abort.clone()));
    let mcp = agents.get("main").map(|agent| agent.mcp.clone()).unwrap_or_default();
    let (until, keep) = (abort.clone(), move |abort: CancellationToken| mcp.clone().run(abort));
    life.front("mcp", lifecycle::renewing("mcp", Arc::clone(&clock), abort.clone(), move || keep(until.clone())));
    let commands = agents.get("main").map(|agent| agent.works.commands.clone()).unwrap_or_default();
    let (enabled, until) = (config.tools.exec.enabled, stopping.clone());
    life.renewed("sandbox", &clock, move || try_sandbox(enabled, commands.clone(), until.clone()));
    life.station("worker", worker.run(stopping.clone(), drained));
    // What stands on the store alone is begun anew when it panics; the others hold what a panic would lose.
    life.renewed("previews", &clock, sweep);
    let (watching, now) = (stopping.clone(), Arc::clone(&clock));
    life.renewed("skills", &clock, move || skills::watch::run(Arc::clone(&shelf), Arc::clone(&now), watching.clone()));
    let (heartbeat, until) = (Arc::new(heartbeat), stopping.clone());
    life.renewed("heartbeat", &clock, move || Arc::clone(&heartbeat).run(until.clone()));
    let (scheduler, until) = (Arc::new(scheduler), stopping.clone());
    life.renewed("schedule", &clock, move || Arc::clone(&scheduler).run(until.clone()));
    let until = stopping.clone();
    life.renewed("memory", &clock, move || memories.clone().follow(until.clone()));
    life.station("delivery", delivery.run(stopping.clone(), abort));
    let adapters: Vec<(Arc<dyn Channel>, ChannelContext)> = channels
        .all()
        .into_iter()
        .filter_map(|entry| Some((Arc::clone(&entry.channel), contexts.get(entry.channel.id())?.clone())))
        .collect();
    life.station("channels", supervisor::run(adapters, health));
    let upkeep = {
        let (store, clock) = (Arc::clone(&store), Arc::clone(&clock));
        let (ready, damaged) = (ready_flag.clone(), Arc::clone(&damaged));
        move || {
            let (store, media, clock) = (Arc::clone(&store), Arc::clone(&media), Arc::clone(&clock));
            upkeep::run(store, media, clock, ready.clone(), stopping.clone(), Arc::clone(&damaged))
        }
    };
    life.renewed("upkeep", &clock, upkeep);
    data.announce(&boot, &url)?;
    ready_flag.started();
    channel_api::crash_point!("start.ready");
    let main = agents.get("main");
    let model = main.map_or("", |agent| agent.model.name());
    info!(url, model, "ready");
    ready(&Started {
        link: format!("{url}/#token={}", token.expose()),
        url: &url,
        model,
        demo: config.models.is_empty(),
        channels: &channels,
        skills: &skills,
    });

    let drain = Duration::from_secs(config.limits.drain_s);
    let ended = life.run(clock.as_ref(), drain, FLUSH).await;
    store.close().await;
    data.withdraw();
    Ok(match ended {
        _ if damaged.load(Ordering::Acquire) => RunEnd::Damaged,
        Ended::Cleanly => RunEnd::Cleanly,
        Ended::TaskDied(name) => RunEnd::TaskDied(name),
    })
}

/// Writes down in the audit log that the gateway starts and by which configuration, names the log's end in the log file,
/// and reads whether it is halted.
async fn begin_audit(
    loaded: &Loaded,
    data: &std::path::Path,
    store: &Arc<dyn Store>,
    clock: &Arc<dyn Clock>,
) -> Result<Halt, crate::store::StoreError> {
    let shown = loaded.show_json();
    let config = audit::hash_of(&shown);
    let seen = data.join(audit::SEEN);
    let changed = audit::changed_since(&std::fs::read_to_string(&seen).unwrap_or_default(), &shown);
    let (at, who, what) = (clock.now_ms(), audit::GATEWAY.to_owned(), "configuration read".to_owned());
    let version = env!("CARGO_PKG_VERSION");
    let detail = serde_json::json!({ "config_sha256": config, "changed": changed, "version": version });
    store.audit(vec![audit::Event { at, kind: audit::Kind::Config, who, what, detail }]).await?;
    // After the row: a start that is cut off here names the same keys again.
    if let Err(error) = crate::os::write_private(&seen, shown.to_string().as_bytes()) {
        warn!(%error, "the next start cannot tell which keys of the configuration changed");
    }
    store.expire_approvals(at).await?;
    audit::log_head(&store.audit_head().await?);
    let halt = Halt::default();
    if let Some((_, who)) = store.halted().await? {
        halt.set(true);
        warn!(who, "{}", lang::halt_said(Lang::current()));
    }
    Ok(halt)
}

/// Finds out how well commands can be confined, so that the first of them need not wait, and says what that means.
async fn try_sandbox(enabled: bool, commands: Commands, stopping: CancellationToken) {
    if enabled {
        match commands.ruling().await {
            Ruling::Confined(level) => info!(%level, "commands are confined"),
            Ruling::Asked(level, why) => warn!(%level, "{why}"),
            Ruling::Refused(why) => warn!(why, "there is no exec tool"),
            // Said already.
            Ruling::Open => {}
        }
    }
    stopping.cancelled().await;
}

/// What the sender of a message gets that killed the process three times.
fn apology(channels: &Channels, clock: &Arc<dyn Clock>) -> Apology {
    let (channels, clock) = (channels.clone(), Arc::clone(clock));
    Arc::new(move |id, inbound| channels.apology(id, inbound, clock.now_ms()))
}

async fn listen(addr: &SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(addr).await.map_err(|source| StartError::Listen { addr: addr.to_string(), source })
}

fn listen_error(addr: &str) -> StartError {
    let source = io::Error::new(io::ErrorKind::InvalidInput, "not an address this gateway may listen on");
    StartError::Listen { addr: addr.to_owned(), source }
}

/// Who may write because of a decision, read from the store.
///
/// # Errors
/// As the store gives them.
pub async fn open_access(
    store: &Arc<dyn Store>,
    channels: &Channels,
    clock: &Arc<dyn Clock>,
    reach: Reach,
) -> Result<Arc<Access>, crate::store::StoreError> {
    let rows = Arc::clone(store) as Arc<dyn AccessStore>;
    Ok(Arc::new(Access::open(rows, channels.clone(), Arc::clone(clock), reach).await?))
}

/// What the owner has to decide stands in the log from the start: that nobody is one, and who waits.
fn log_doors(doors: &[Door]) {
    for door in doors.iter().filter(|door| door.name == "owner" || door.name.starts_with("pairing:")) {
        info!(line = %door.line, "{}", door.text);
    }
}
