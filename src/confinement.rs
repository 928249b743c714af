//! What keeps the processes we start inside their folders: which level this machine has, found by trying; which one the
//! configuration asks for; and the orders for the helper that confines a command ([`crawfish_sandbox`]).
//!
//! It fails closed: where the level that is asked for is not there, nothing is started, and the reason is told.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

pub use crawfish_sandbox::{Level, Limits, Network};
use serde::{Deserialize, Serialize};
use tokio::process::Command;
use tokio::sync::OnceCell;

#[cfg(unix)]
use crate::egress::doorway::Doorways;
use crate::{
    egress::hosts::Host,
    lang::{self, Lang},
    os::{self, Launch},
};

#[cfg(target_os = "linux")]
mod trial;

/// `sandbox = …`: how well commands have to be confined.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wanted {
    /// As well as this machine can; where that is less than L2, the owner is asked before each command.
    #[default]
    Auto,
    /// Namespaces, files, system calls.
    L3,
    /// Files and system calls.
    L2,
    /// Not at all, and the owner is asked before each command.
    Ask,
    /// Not at all: with all rights of this process.
    Off,
}

/// What this machine has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// The best level whose trial left no way out.
    pub best: Level,
    /// Why each better one is not there.
    pub why: Vec<(Level, String)>,
}

impl Found {
    fn reason(&self) -> String {
        let why: Vec<String> = self.why.iter().map(|(level, why)| format!("{level}: {why}")).collect();
        why.join("; ")
    }
}

/// What may be done with a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Started at this level.
    Confined(Level),
    /// Started at this level, which keeps no file from it, after the owner's word about each; why it is no better.
    Asked(Level, String),
    /// Started with all rights: the owner wrote so.
    Open,
    /// Not started; why, and what would change that.
    Refused(String),
}

impl Wanted {
    /// Decides by what was found. Never less than what is asked for.
    pub fn rule(self, found: &Found, lang: Lang) -> Ruling {
        let missing = |level: Level| lang::sandbox_missing(lang, level, found.best, found.reason());
        match (self, found.best) {
            (Self::Off, _) => Ruling::Open,
            (Self::Ask, _) => Ruling::Asked(Level::L0, lang::sandbox_asked(lang)),
            (Self::Auto, best @ (Level::L0 | Level::L1)) => {
                Ruling::Asked(best, lang::sandbox_unconfined(lang, best, found.reason()))
            }
            (Self::Auto, best @ (Level::L2 | Level::L3)) => Ruling::Confined(best),
            (Self::L3, Level::L3) => Ruling::Confined(Level::L3),
            (Self::L2, Level::L2 | Level::L3) => Ruling::Confined(Level::L2),
            (Self::L3, _) => Ruling::Refused(missing(Level::L3)),
            (Self::L2, _) => Ruling::Refused(missing(Level::L2)),
        }
    }
}

/// The sandbox of this gateway. Clones share what was found.
#[derive(Clone, Debug)]
pub struct Sandbox {
    inner: Arc<Inner>,
    #[cfg(unix)]
    ways: Option<Doorways>,
}

#[derive(Debug)]
struct Inner {
    /// What no command may reach, and what a trial tries to reach: the data folder, the configuration, `.env`.
    kept: Vec<PathBuf>,
    /// An agent's workspace: root's commands run as its owner.
    workspace: PathBuf,
    found: OnceCell<Found>,
}

/// What one command may do.
#[derive(Clone, Debug, Default)]
pub struct Reachable {
    /// Folders that may be changed, the workspace first.
    pub write: Vec<PathBuf>,
    /// Folders and files that may be read besides the system's and those of the search path.
    pub read: Vec<PathBuf>,
    /// Whom it may reach.
    pub network: Network,
    /// The hosts that are open to it where `network` is off, through a doorway of its own.
    pub hosts: Vec<Host>,
    /// The MCP server that it is, if it is one.
    pub server: Option<String>,
    /// Sizes.
    pub limits: Limits,
}

impl Sandbox {
    /// The sandbox of a gateway with these private files, the data folder first.
    pub fn new(kept: Vec<PathBuf>, workspace: PathBuf) -> Self {
        Self {
            inner: Arc::new(Inner { kept, workspace, found: OnceCell::new() }),
            #[cfg(unix)]
            ways: None,
        }
    }

    /// The same, which can open hosts to what it confines.
    #[cfg(unix)]
    #[must_use]
    pub fn with_ways(self, ways: Doorways) -> Self {
        Self { ways: Some(ways), ..self }
    }

    /// What this machine has: tried once.
    pub async fn found(&self) -> &Found {
        let inner = Arc::clone(&self.inner);
        self.inner
            .found
            .get_or_init(|| async move {
                let tried = tokio::task::spawn_blocking(move || try_out(&inner)).await;
                tried.unwrap_or_else(|error| Found { best: Level::L0, why: vec![(Level::L1, error.to_string())] })
            })
            .await
    }

    /// What is known so far.
    pub fn known(&self) -> Option<&Found> {
        self.inner.found.get()
    }

    /// Makes a command into one that starts as `ruling` says. Its environment and folder are those it has now, but for the
    /// home and the folder of temporary files. Needs a running runtime where hosts are open to it.
    ///
    /// # Errors
    /// In a sentence: a folder holds what nobody may reach, or something cannot be made.
    pub fn launch(&self, command: Command, level: Level, reach: Reachable) -> Result<Launch, String> {
        #[cfg(unix)]
        return self.confined(&command, level, reach);
        #[cfg(not(unix))]
        {
            let _ = (command, level, reach);
            Err("there is no sandbox on this system".to_owned())
        }
    }

    #[cfg(unix)]
    fn confined(&self, command: &Command, level: Level, reach: Reachable) -> Result<Launch, String> {
        use crawfish_sandbox::{Confinement, Task};
        let plain = command.as_std();
        let real = |path: &Path| std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()));
        let write: Vec<PathBuf> = reach.write.iter().map(|path| real(path)).collect::<Result<_, _>>()?;
        let home = write.first().cloned().ok_or("there is no folder to work in")?;
        // What is not there needs no permission.
        let mut read: Vec<PathBuf> = reach.read.iter().filter_map(|path| real(path).ok()).collect();
        read.extend(self.installations());
        for kept in self.inner.kept.iter().filter_map(|kept| real(kept).ok()) {
            if let Some(holds) = write.iter().find(|folder| kept.starts_with(folder)) {
                return Err(lang::sandbox_holds(Lang::En, holds.display(), kept.display()));
            }
        }
        read.retain(|path| !self.inner.kept.iter().any(|kept| kept.starts_with(path)));
        let cwd = real(plain.get_current_dir().unwrap_or(&home))?;
        let name = plain.get_program().to_str().ok_or("the program's name is no UTF-8")?;
        let program = if name.contains('/') { Some(cwd.join(name)) } else { os::program(name) };
        let program = program.ok_or_else(|| format!("`{name}` is not in the search path"))?;
        let argv: Option<Vec<String>> = plain.get_args().map(|argument| argument.to_str().map(str::to_owned)).collect();
        let argv = [name.to_owned()].into_iter().chain(argv.ok_or("an argument is no UTF-8")?).collect();
        let tmp = os::PrivateFolder::new(&home).map_err(|error| format!("a folder for temporary files: {error}"))?;
        let (mut helper, control) =
            crawfish_sandbox::helper_command(Path::new(HELPER)).map_err(|error| format!("a socket: {error}"))?;
        helper.env_clear();
        helper.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
        helper.env("HOME", &home);
        let shown: &Path = if level == Level::L3 { Path::new("/tmp") } else { tmp.path() };
        helper.env("TMPDIR", shown);
        let doorway = match (&self.ways, reach.network == Network::Off && !reach.hosts.is_empty()) {
            (Some(ways), true) => {
                let opened = ways.open_for(reach.hosts, reach.server);
                Some(opened.map_err(|error| format!("the way to its hosts: {error}"))?)
            }
            _ => None,
        };
        if doorway.is_some() {
            let proxy = format!("http://{}", crawfish_sandbox::RELAY);
            for name in ["http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"] {
                helper.env(name, &proxy);
            }
            // Node.js looks at them only when it is told to (from 22.21 and 24 on).
            helper.env("NODE_USE_ENV_PROXY", "1");
        }
        let network = doorway.as_ref().map_or(reach.network, |doorway| Network::Through(doorway.path().to_owned()));
        let orders = Confinement {
            level,
            task: Task::Run(program, argv),
            cwd,
            write,
            read,
            tmp: tmp.path().to_owned(),
            network,
            limits: reach.limits,
        };
        Ok(Launch::confined(helper.into(), control, orders, tmp, doorway))
    }

    /// The folders of the search path that are not the system's, each with the libraries beside it. Programs and nothing
    /// else are in them; a folder that is an ancestor of what is kept is left out.
    fn installations(&self) -> Vec<PathBuf> {
        let mut all = Vec::new();
        for folder in std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()) {
            if folder.is_absolute() && !folder.starts_with("/usr") {
                all.extend(installation(&folder));
                if let Ok(real) = std::fs::canonicalize(&folder).map(|real| installation(&real)) {
                    all.extend(real);
                }
            }
        }
        let home = std::env::var_os("HOME").map(PathBuf::from);
        let wide = |path: &Path| path.parent().is_none() || home.as_deref().is_some_and(|home| home.starts_with(path));
        all.retain(|path| path.exists() && !wide(path));
        all.sort();
        all.dedup();
        all
    }
}

/// Our own binary, also after an update replaced its file.
#[cfg(unix)]
const HELPER: &str = "/proc/self/exe";

/// What belongs to a folder of programs: `bin` with the libraries beside it; of version managers, whose `shims` start what
/// is elsewhere, all of it.
fn installation(bin: &Path) -> Vec<PathBuf> {
    let (Some(name), Some(parent)) = (bin.file_name().and_then(|name| name.to_str()), bin.parent()) else {
        return Vec::new();
    };
    match name {
        "shims" => vec![parent.to_owned()],
        "bin" | "sbin" => {
            let beside = ["lib", "lib64", "libexec", "include"].map(|name| parent.join(name));
            [bin.to_owned()].into_iter().chain(beside).collect()
        }
        _ => vec![bin.to_owned()],
    }
}

/// What a program needs that is installed in a folder of its own: a Python environment with the Python it stands on, or
/// `bin` with the libraries beside it.
pub fn installation_of(program: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for path in [Some(program.to_owned()), std::fs::canonicalize(program).ok()].into_iter().flatten() {
        let Some(bin) = path.parent().filter(|bin| !bin.starts_with("/usr")) else { continue };
        all.push(path.clone());
        if bin.file_name().is_some_and(|name| name == "bin" || name == "shims") {
            all.extend(installation(bin));
        }
        let environment = bin.parent().map(|folder| folder.join("pyvenv.cfg"));
        let Some(text) = environment.as_ref().and_then(|path| std::fs::read_to_string(path).ok()) else { continue };
        all.extend(bin.parent().map(Path::to_owned));
        let home = text.lines().find_map(|line| line.strip_prefix("home")?.trim_start().strip_prefix('='));
        all.extend(home.map(|home| installation(Path::new(home.trim()))).unwrap_or_default());
    }
    all
}

#[cfg(target_os = "linux")]
fn try_out(inner: &Inner) -> Found {
    let mut why = Vec::new();
    for level in [Level::L3, Level::L2, Level::L1] {
        match trial::of(level, inner.kept.first().map(PathBuf::as_path), &inner.workspace) {
            Ok(()) => return Found { best: level, why },
            Err(error) => why.push((level, error)),
        }
    }
    Found { best: Level::L0, why }
}

#[cfg(not(target_os = "linux"))]
fn try_out(_: &Inner) -> Found {
    let system = std::env::consts::OS;
    Found { best: Level::L0, why: vec![(Level::L1, format!("there is no sandbox on {system} yet"))] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(best: Level) -> Found {
        Found { best, why: vec![(Level::L3, "namespaces: EPERM".to_owned())] }
    }

    #[test]
    fn a_level_that_is_not_there_is_refused_and_never_lowered() {
        use Level::{L0, L1, L2, L3};
        let rule = |wanted: Wanted, best| wanted.rule(&found(best), Lang::En);
        for (wanted, best, level) in [
            (Wanted::Auto, L3, L3),
            (Wanted::Auto, L2, L2),
            (Wanted::L3, L3, L3),
            (Wanted::L2, L3, L2),
            (Wanted::L2, L2, L2),
        ] {
            assert_eq!(rule(wanted, best), Ruling::Confined(level), "{wanted:?} {best}");
        }
        for (wanted, best) in [(Wanted::Auto, L1), (Wanted::Auto, L0), (Wanted::Ask, L3)] {
            let Ruling::Asked(level, why) = rule(wanted, best) else { panic!("{wanted:?} {best}") };
            assert!(level < L2 && why.contains("each"), "{level} {why}");
        }
        for (wanted, best) in [(Wanted::L3, L2), (Wanted::L3, L0), (Wanted::L2, L1)] {
            let Ruling::Refused(why) = rule(wanted, best) else { panic!("{wanted:?} {best}") };
            assert!(why.contains("namespaces: EPERM") && why.contains("sandbox = \"off\""), "{why}");
        }
        for best in [L0, L1, L2, L3] {
            assert_eq!(rule(Wanted::Off, best), Ruling::Open);
        }
    }

    #[test]
    fn of_a_search_path_only_programs_and_libraries_are_shown() {
        let of = |bin: &str| installation(Path::new(bin));
        assert_eq!(of("/home/ada/.pyenv/shims"), [Path::new("/home/ada/.pyenv")]);
        let cargo = of("/home/ada/.cargo/bin");
        assert!(cargo.contains(&"/home/ada/.cargo/bin".into()) && !cargo.contains(&"/home/ada/.cargo".into()));
        assert_eq!(of("/home/ada/tools"), [Path::new("/home/ada/tools")]);
        assert!(of("/").is_empty());
    }
}
