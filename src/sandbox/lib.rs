//! The sandbox of commands: `crawfish __sandbox`, a helper that is our own binary started again.
//!
//! The helper is started with one end of a socket and reads its orders there ([`Confinement`]); the command it becomes sees
//! neither. While the command runs, the helper looks after the tree of its processes: when the socket closes, because the
//! gateway says so or is no more, all of them are ended. security.md §3.4 has the order of the steps.
//!
//! This crate alone may hold `unsafe`: each block says why it is sound.
#![allow(unsafe_code, reason = "fork, namespaces, mounts and capabilities are system calls without a safe wrapper")]

use std::{fmt, net::SocketAddr, path::PathBuf, process::Command};

use serde::{Deserialize, Serialize};

#[cfg(target_os = "linux")]
mod linux;

/// The hidden verb of the binary.
pub const VERB: &str = "__sandbox";
/// What the helper exits with when it could not confine the command, and so did not start it.
pub const NOT_CONFINED: i32 = 125;
/// Where the relay to the gateway's proxy listens, inside a network of its own.
pub const RELAY: &str = "127.0.0.1:3128";

/// How well a command can be confined on this machine. security.md §3.4.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Level {
    /// Not at all.
    L0,
    /// System calls and sizes only: the files of the same user can be read.
    L1,
    /// Files (Landlock), system calls and sizes; no network.
    L2,
    /// The same in namespaces of its own: files, processes, network.
    L3,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self:?}")
    }
}

/// Whom a command may reach.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Network {
    /// Nobody.
    #[default]
    Off,
    /// What the gateway's proxy lets through: its unix socket. Needs [`Level::L2`].
    Through(PathBuf),
    /// The network of the machine.
    Host,
}

/// Sizes; `None` = as the gateway itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Seconds of computing, each process.
    pub cpu_s: Option<u64>,
    /// Bytes of address space, each process.
    pub memory: Option<u64>,
    /// Bytes of one file.
    pub file: Option<u64>,
    /// Open files, each process.
    pub open_files: Option<u64>,
    /// Processes and threads together.
    pub processes: u64,
}

impl Default for Limits {
    /// Those of security.md §3.4.
    fn default() -> Self {
        Self { cpu_s: Some(60), memory: Some(2 << 30), file: Some(256 << 20), open_files: Some(256), processes: 256 }
    }
}

/// The orders of one command. Paths are absolute and hold no symbolic link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// As which level; without what it needs, nothing is started.
    pub level: Level,
    /// What to do in there.
    pub task: Task,
    /// Where to start.
    pub cwd: PathBuf,
    /// Folders that may be changed, the workspace first: its owner is who a root's command runs as.
    pub write: Vec<PathBuf>,
    /// Folders and files that may be read and run, besides the system's.
    pub read: Vec<PathBuf>,
    /// The folder of temporary files, for this command alone.
    pub tmp: PathBuf,
    /// Whom it may reach.
    pub network: Network,
    /// Sizes.
    pub limits: Limits,
}

/// What is done inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Task {
    /// Becomes this program: its path and its arguments, the first of which is its name. The environment is the helper's.
    Run(PathBuf, Vec<String>),
    /// Tries to get out.
    Probe(Probe),
}

/// What a probe tries to reach. All of it exists and answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Probe {
    /// A file of the data folder.
    pub canary: PathBuf,
    /// A folder that the gateway may write to.
    pub outside: PathBuf,
    /// Something that listens.
    pub tcp: SocketAddr,
    /// Something that is sent to.
    pub udp: SocketAddr,
    /// A socket file that is listened on.
    pub unix: PathBuf,
    /// The gateway.
    pub parent: u32,
}

/// What the helper tells besides the exit code of the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Something the command had started still ran when it ended, and was ended.
    pub left_running: bool,
    /// There were more processes than allowed, and all were ended.
    pub too_many: bool,
    /// The way to the proxy could not be opened, and it ran without any network.
    pub no_way: bool,
    /// The command was not started, and why.
    pub failed: Option<String>,
}

/// Reads a report from what the helper wrote.
pub fn report(written: &[u8]) -> Report {
    let mut report = Report::default();
    for (n, byte) in written.iter().enumerate() {
        match byte {
            b'L' => report.left_running = true,
            b'B' => report.too_many = true,
            b'N' => report.no_way = true,
            _ => {
                report.failed = Some(String::from_utf8_lossy(&written[n..]).trim_start_matches('E').to_owned());
                break;
            }
        }
    }
    report
}

/// The gateway's end of the socket to a helper. When it is dropped, everything the helper started ends.
#[cfg(unix)]
pub type Control = std::os::unix::net::UnixStream;

/// A command that starts the helper, and our end of its socket. Give the orders with [`order`] once it runs.
///
/// # Errors
/// No socket can be made.
#[cfg(unix)]
pub fn helper_command(program: &std::path::Path) -> std::io::Result<(Command, Control)> {
    use std::os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::process::CommandExt as _,
    };
    let (ours, theirs) = Control::pair()?;
    let theirs: OwnedFd = theirs.into();
    let mut command = Command::new(program);
    command.arg0("crawfish").arg(VERB).arg(theirs.as_raw_fd().to_string());
    // SAFETY: runs between fork and exec; fcntl is async-signal-safe, and nothing is allocated.
    unsafe {
        command.pre_exec(move || match libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) {
            -1 => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
    Ok((command, ours))
}

/// Gives the orders.
///
/// # Errors
/// The helper does not read them, or a path is no UTF-8.
#[cfg(unix)]
pub fn order(mut control: &Control, confinement: &Confinement) -> std::io::Result<()> {
    use std::io::Write as _;
    let orders = serde_json::to_vec(confinement)?;
    let length = u32::try_from(orders.len()).map_err(std::io::Error::other)?;
    control.set_write_timeout(Some(std::time::Duration::from_secs(5)))?;
    control.write_all(&length.to_le_bytes())?;
    control.write_all(&orders)
}

/// Keeps other processes of the same user out of this one's memory and environment, and its memory out of core files.
pub fn keep_private() {
    #[cfg(target_os = "linux")]
    linux::keep_private();
}

/// What becomes of a variable of this process's environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// It stays where it is.
    Stays,
    /// It stays for the libraries of this process; nobody else finds it in `/proc/<pid>/environ`.
    Hidden,
    /// It goes. Whoever needs it has read it before.
    Goes,
}

/// Takes variables out of this process's environment, and their text out of the memory that the kernel shows as
/// `/proc/<pid>/environ` (overwritten: taking a variable out only takes its pointer out). Does nothing and says `false`
/// where another thread runs already: it could be reading what is changed here.
pub fn forget_variables(which: impl Fn(&std::ffi::OsStr) -> Variable) -> bool {
    #[cfg(target_os = "linux")]
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() > 1) {
        return false;
    }
    let chosen: Vec<_> = std::env::vars_os()
        .map(|(name, value)| (which(&name), name, value))
        .filter(|(what, _, _)| *what != Variable::Stays)
        .collect();
    #[cfg(target_os = "linux")]
    let texts = linux::texts_of(|name| chosen.iter().any(|(_, chosen, _)| chosen == name));
    for (_, name, _) in &chosen {
        // SAFETY: no other thread runs (see above; elsewhere the caller is the first thing in `main`), so nobody reads the
        // environment while it is changed.
        unsafe { std::env::remove_var(name) };
    }
    #[cfg(target_os = "linux")]
    for text in texts {
        text.overwrite();
    }
    for (_, name, value) in chosen.iter().filter(|(what, _, _)| *what == Variable::Hidden) {
        // SAFETY: as above. The C library keeps the new text in memory of its own.
        unsafe { std::env::set_var(name, value) };
    }
    true
}

/// The helper's whole life, when the command line asks for it: `None` otherwise. Call it before any thread starts.
pub fn helper() -> Option<i32> {
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next()? != VERB {
        return None;
    }
    let control = arguments.next().and_then(|number| number.to_str()?.parse::<i32>().ok());
    #[cfg(target_os = "linux")]
    if let Some(control) = control.filter(|control| *control > 2) {
        return Some(linux::helper(control));
    }
    let _ = control;
    eprintln!("crawfish: this verb is for the gateway itself");
    Some(64)
}
