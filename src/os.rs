//! What differs between operating systems: stop signals, file modes, and how a command is started and ended with all
//! that it started.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
    pin::Pin,
};

use crawfish_sandbox::Variable;
use serde::{Deserialize, Serialize};
use tokio::{
    io::AsyncRead,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command},
};

#[cfg(unix)]
use crate::egress::doorway::Doorway;

/// Waits for one request to stop: SIGINT or SIGTERM, or Ctrl-C where there are no signals.
///
/// # Errors
/// When the system does not let us listen.
#[cfg(unix)]
pub async fn stop_signal() -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Ok(())
}

/// Waits for one request to stop: SIGINT or SIGTERM, or Ctrl-C where there are no signals.
///
/// # Errors
/// When the system does not let us listen.
#[cfg(not(unix))]
pub async fn stop_signal() -> io::Result<()> {
    tokio::signal::ctrl_c().await
}

/// How many files and connections may be open, if there is a limit of that kind.
pub fn open_files() -> Option<u64> {
    #[cfg(unix)]
    return rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    #[cfg(not(unix))]
    None
}

/// Lets as many files and connections be open as the system allows without being asked, up to `wanted`: many systems begin
/// with 1,024, which a crowd of idle connections uses up.
pub fn raise_open_files(wanted: u64) {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        let now = getrlimit(Resource::Nofile);
        let most = now.maximum.map_or(wanted, |maximum| maximum.min(wanted));
        if now.current.is_some_and(|current| current < most) {
            // Where it is not allowed there are fewer connections; see `open_files`.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(most), maximum: now.maximum });
        }
    }
    #[cfg(not(unix))]
    let _ = wanted;
}

/// Writes a file only its owner may read (mode 0600 where there are modes), whole or not at all.
///
/// # Errors
/// Those of the file system.
pub fn write_private(path: &Path, content: &[u8]) -> io::Result<()> {
    use std::io::Write;
    let temporary = path.with_extension("tmp");
    let mut file = create_private(&temporary)?;
    file.write_all(content)?;
    file.sync_all()?;
    std::fs::rename(&temporary, path)
}

/// Opens an empty file only its owner may read (mode 0600 where there are modes), for writing.
///
/// # Errors
/// Those of the file system.
pub fn create_private(path: &Path) -> io::Result<std::fs::File> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path)
}

/// Makes the names in a folder durable, where folders can be synced.
///
/// # Errors
/// Those of the file system.
pub fn sync_dir(path: &Path) -> io::Result<()> {
    match cfg!(unix) {
        true => std::fs::File::open(path)?.sync_all(),
        false => Ok(()),
    }
}

/// Makes a folder only its owner may enter (mode 0700 where there are modes).
///
/// # Errors
/// Those of the file system.
pub fn create_private_dir(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt;
        builder.mode(0o700);
    }
    builder.create(path)
}

/// The machine's name, for the prompt's runtime line.
pub fn host_name() -> String {
    let name =
        std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::fs::read_to_string("/etc/hostname"));
    match name {
        Ok(name) if !name.trim().is_empty() => name.trim().to_owned(),
        _ => std::env::var("COMPUTERNAME")
            .or_else(|_| std::env::var("HOSTNAME"))
            .unwrap_or_else(|_| "localhost".to_owned()),
    }
}

/// The permission bits when others than the owner may read the file; `None` when they may not, or where files have no
/// such bits.
pub fn readable_by_others(metadata: &std::fs::Metadata) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let mode = metadata.mode() & 0o777;
        (mode & 0o044 != 0).then_some(mode)
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

/// The permission bits when others than the owner may read, change or enter it; `None` when they may not, or where files
/// have no such bits.
pub fn open_to_others(metadata: &std::fs::Metadata) -> Option<u32> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let mode = metadata.mode() & 0o777;
        (mode & 0o077 != 0).then_some(mode)
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

/// The name and the id of a process that listens on a TCP port of this machine. Only Linux tells, and of other users'
/// processes only to root.
pub fn who_listens(port: u16) -> Option<(String, u32)> {
    #[cfg(target_os = "linux")]
    {
        let mut sockets = std::collections::BTreeSet::new();
        for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
            for line in std::fs::read_to_string(table).unwrap_or_default().lines().skip(1) {
                let fields: Vec<&str> = line.split_whitespace().collect();
                // local_address, then st (0A = listening), then inode; proc(5).
                let (Some(local), Some(&"0A"), Some(inode)) = (fields.get(1), fields.get(3), fields.get(9)) else {
                    continue;
                };
                let at = local.rsplit_once(':').and_then(|(_, port)| u16::from_str_radix(port, 16).ok());
                if at == Some(port) {
                    sockets.insert(PathBuf::from(format!("socket:[{inode}]")));
                }
            }
        }
        std::fs::read_dir("/proc").ok()?.flatten().find_map(|process| {
            let id: u32 = process.file_name().to_str()?.parse().ok()?;
            let mut files = std::fs::read_dir(process.path().join("fd")).ok()?.flatten();
            let holds = files.any(|file| std::fs::read_link(file.path()).is_ok_and(|target| sockets.contains(&target)));
            let name = std::fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            holds.then(|| (name.trim().to_owned(), id))
        })
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = port;
        None
    }
}

/// What kind of thing that cannot be read as a file stands at a path; `None` for files and for the null device.
pub fn not_a_file(path: &Path, metadata: &std::fs::Metadata) -> Option<&'static str> {
    if metadata.is_file() {
        return None;
    }
    if metadata.is_dir() {
        return Some("folder");
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        let kind = metadata.file_type();
        if kind.is_fifo() {
            return Some("pipe");
        }
        if kind.is_socket() {
            return Some("socket");
        }
    }
    if path == Path::new("/dev/null") { None } else { Some("device") }
}

/// The variable that every process of a command carries, so that all of them are found when it ends.
pub const COMMAND_MARK: &str = "CRAWFISH_COMMAND";

/// What tells one state of a file from another: device, inode, size, and the times of its last change in nanoseconds, of
/// which the second cannot be set by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FileStamp([i128; 5]);

/// The stamp of a file; `None` where the system gives none.
pub fn stamp(facts: &std::fs::Metadata) -> Option<FileStamp> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let time = |seconds: i64, nanos: i64| i128::from(seconds) * 1_000_000_000 + i128::from(nanos);
        Some(FileStamp([
            i128::from(facts.dev()),
            i128::from(facts.ino()),
            i128::from(facts.size()),
            time(facts.mtime(), facts.mtime_nsec()),
            time(facts.ctime(), facts.ctime_nsec()),
        ]))
    }
    #[cfg(not(unix))]
    {
        let _ = facts;
        None
    }
}

/// The program of that name in the search path.
pub fn program(name: &str) -> Option<PathBuf> {
    let file = format!("{name}{}", std::env::consts::EXE_SUFFIX);
    std::env::split_paths(&std::env::var_os("PATH")?).map(|dir| dir.join(&file)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    let Ok(metadata) = std::fs::metadata(path) else { return false };
    #[cfg(unix)]
    let may_run = std::os::unix::fs::PermissionsExt::mode(&metadata.permissions()) & 0o111 != 0;
    #[cfg(not(unix))]
    let may_run = true;
    metadata.is_file() && may_run
}

/// What a command may know of this process's environment: where programs and homes are, the language, the time zone.
/// Nothing else is handed on, so no key is.
pub fn clean_environment(all: impl IntoIterator<Item = (OsString, OsString)>) -> Vec<(OsString, OsString)> {
    const KEPT: &[&str] = &["PATH", "HOME", "USER", "LOGNAME", "LANG", "LANGUAGE", "TZ", "TMPDIR"];
    const KEPT_ON_WINDOWS: &[&str] = &[
        "SYSTEMROOT",
        "SYSTEMDRIVE",
        "WINDIR",
        "COMSPEC",
        "PATHEXT",
        "TEMP",
        "TMP",
        "USERPROFILE",
        "USERNAME",
        "APPDATA",
        "LOCALAPPDATA",
        "PROGRAMFILES",
        "PROGRAMDATA",
    ];
    let kept = |name: &str| {
        let upper = name.to_ascii_uppercase();
        let name = if cfg!(windows) { upper.as_str() } else { name };
        KEPT.contains(&name) || name.starts_with("LC_") || (cfg!(windows) && KEPT_ON_WINDOWS.contains(&name))
    };
    let mut kept: Vec<_> = all.into_iter().filter(|(name, _)| name.to_str().is_some_and(kept)).collect();
    let is_language = |name: &OsString| name == "LANG" || name == "LC_ALL" || name == "LC_CTYPE";
    if cfg!(unix) && !kept.iter().any(|(name, _)| is_language(name)) {
        // Without a word on it most programs take names and texts for ASCII.
        kept.push(("LC_CTYPE".into(), "C.UTF-8".into()));
    }
    kept.push(("TERM".into(), "dumb".into()));
    kept
}

/// What becomes of a variable of this process's own environment at the start: programs, homes, language, terminal and what
/// the runtime reads stay; a proxy, which may have a password in it, stays for the libraries that ask for it; all else goes,
/// for it may be a key.
pub fn variable(name: &OsStr) -> Variable {
    const STAY: &[&str] = &[
        "SHELL",
        "PWD",
        "TERM",
        "COLORTERM",
        "COLUMNS",
        "LINES",
        "NO_COLOR",
        "HOSTNAME",
        "COMPUTERNAME",
        "RUST_LOG",
        "RUST_BACKTRACE",
        "SSL_CERT_FILE",
        "SSL_CERT_DIR",
        "SSH_AUTH_SOCK",
    ];
    const PROXIES: &[&str] = &["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"];
    let Some(name) = name.to_str() else { return Variable::Goes };
    let upper = name.to_ascii_uppercase();
    let given = clean_environment([(name.into(), "".into())]).iter().any(|(kept, _)| *kept == *name);
    match upper.as_str() {
        upper if PROXIES.contains(&upper) => Variable::Hidden,
        upper if given || STAY.contains(&upper) || upper.starts_with("XDG_") => Variable::Stays,
        _ => Variable::Goes,
    }
}

/// A folder for one process alone (mode 0700), below the system's one for temporary files; it goes when this does.
#[derive(Debug)]
pub struct PrivateFolder(PathBuf);

impl PrivateFolder {
    /// Makes one that belongs to the owner of `like`, where we may give it away.
    ///
    /// # Errors
    /// Those of the file system.
    pub fn new(like: &Path) -> io::Result<Self> {
        let path = std::fs::canonicalize(std::env::temp_dir())?;
        let path = path.join(format!("{PRIVATE_FOLDER}{}-{}", std::process::id(), ulid::Ulid::generate()));
        create_private_dir(&path)?;
        let folder = Self(path);
        #[cfg(unix)]
        if rustix::process::geteuid().is_root() {
            use std::os::unix::fs::MetadataExt as _;
            let owner = std::fs::metadata(like)?;
            std::os::unix::fs::chown(folder.path(), Some(owner.uid()), Some(owner.gid()))?;
        }
        #[cfg(not(unix))]
        let _ = like;
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateFolder {
    fn drop(&mut self) {
        // What a command made unreadable may stay; `sweep_private_folders` has another try.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// How the names of [`PrivateFolder`]s begin; the id of the process follows.
const PRIVATE_FOLDER: &str = "crawfish-tmp-";

/// Removes the private folders of processes that are no more.
pub fn sweep_private_folders() {
    for entry in std::fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let of = name.to_str().and_then(|name| name.strip_prefix(PRIVATE_FOLDER)?.split('-').next());
        if of.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) && cfg!(target_os = "linux") {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// A command that can be started: as it is, or by the helper that confines it.
pub struct Launch {
    command: Command,
    #[cfg(unix)]
    confined: Option<(Held, crawfish_sandbox::Confinement)>,
}

impl From<Command> for Launch {
    fn from(command: Command) -> Self {
        Self {
            command,
            #[cfg(unix)]
            confined: None,
        }
    }
}

#[cfg(unix)]
impl Launch {
    /// The command of the helper, its orders and what belongs to it.
    pub fn confined(
        command: Command,
        control: crawfish_sandbox::Control,
        orders: crawfish_sandbox::Confinement,
        tmp: PrivateFolder,
        doorway: Option<Doorway>,
    ) -> Self {
        Self { command, confined: Some((Held { control, _tmp: tmp, doorway }, orders)) }
    }
}

/// What a confined command lives by: when the socket closes, the helper ends all of it.
#[cfg(unix)]
struct Held {
    control: crawfish_sandbox::Control,
    _tmp: PrivateFolder,
    /// Its way to the hosts that are open to it.
    doorway: Option<Doorway>,
}

/// How long the helper may take to end what it looks after.
#[cfg(unix)]
const HELPER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// A command that runs: everything it starts belongs to it, and ends with it at the latest when this is dropped.
///
/// Where there are process groups it leads one. On Linux also those that left the group (`setsid`, daemons) are found,
/// by the mark in their environment. On Windows only the process itself is ended, not what it started.
pub struct Started {
    child: Child,
    group: Group,
    ended: bool,
    #[cfg(unix)]
    held: Option<Held>,
    offline: bool,
    told: crawfish_sandbox::Report,
}

/// The three pipes of a command that is spoken to.
pub struct Pipes {
    /// What it reads.
    pub stdin: ChildStdin,
    /// What it answers.
    pub stdout: ChildStdout,
    /// What it complains.
    pub stderr: ChildStderr,
}

/// What a command writes to stdout and stderr.
pub type OutputPipe = Pin<Box<dyn AsyncRead + Send>>;

/// By what a command's group is known again when the gateway was killed beside it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupTrace {
    /// Its number, which is that of the process that leads it.
    group: u32,
    /// When its leader began, in ticks since the system started.
    began: u64,
    /// Which start of the system that was.
    system: String,
}

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    /// Nothing of it runs.
    Gone,
    /// It ran still and was ended.
    Ended,
    /// There is a group of its number without its leader: perhaps another's by now, so it was left alone.
    Unsure,
}

impl GroupTrace {
    #[cfg(target_os = "linux")]
    fn of(leader: u32) -> Option<Self> {
        let (_, began, _) = stat(leader)?;
        Some(Self { group: leader, began, system: system_start()? })
    }

    /// Ends the group, if it is still the same.
    pub fn end(&self) -> Leftover {
        #[cfg(target_os = "linux")]
        {
            if system_start().as_deref() != Some(&self.system) {
                return Leftover::Gone;
            }
            match stat(self.group) {
                Some((group, began, _)) if group == self.group && began == self.began => {
                    let killed = pid(self.group)
                        .map(|leader| rustix::process::kill_process_group(leader, rustix::process::Signal::KILL));
                    if killed.is_some_and(|killed| killed.is_ok()) { Leftover::Ended } else { Leftover::Unsure }
                }
                // A number is not given again while a group has it.
                Some(_) => Leftover::Gone,
                None => {
                    let runs = std::fs::read_dir("/proc").into_iter().flatten().flatten().any(|entry| {
                        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
                        id.and_then(stat).is_some_and(|(group, _, runs)| runs && group == self.group)
                    });
                    if runs { Leftover::Unsure } else { Leftover::Gone }
                }
            }
        }
        #[cfg(not(target_os = "linux"))]
        {
            Leftover::Unsure
        }
    }
}

/// The group of a process, when it began, and whether it runs still.
#[cfg(target_os = "linux")]
fn stat(id: u32) -> Option<(u32, u64, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    // The name, which may hold anything, ends at the last parenthesis; then come the state, the parent and the group.
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    Some((fields.get(2)?.parse().ok()?, fields.get(19)?.parse().ok()?, !["Z", "X"].contains(fields.first()?)))
}

#[cfg(target_os = "linux")]
fn system_start() -> Option<String> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok().map(|id| id.trim().to_owned())
}

#[derive(Clone)]
struct Group {
    #[cfg(unix)]
    leader: Option<rustix::process::Pid>,
    mark: String,
}

impl Started {
    /// Starts a command in a group of its own, marked with `mark`; what it writes to stdout and stderr comes out of the
    /// pipes, in the order it was written where one pipe can be both.
    ///
    /// # Errors
    /// Those of the system: no such program or folder, no right to it, no process left.
    pub fn spawn(launch: impl Into<Launch>, mark: String) -> io::Result<(Self, Vec<OutputPipe>)> {
        Self::start(launch.into(), mark, std::process::Stdio::null())
    }

    /// The same for a command that can be typed into.
    ///
    /// # Errors
    /// As [`Started::spawn`].
    pub fn spawn_with_input(
        launch: impl Into<Launch>,
        mark: String,
    ) -> io::Result<(Self, Vec<OutputPipe>, Option<tokio::process::ChildStdin>)> {
        let (mut started, pipes) = Self::start(launch.into(), mark, std::process::Stdio::piped())?;
        let input = started.child.stdin.take();
        Ok((started, pipes, input))
    }

    fn start(launch: Launch, mark: String, input: std::process::Stdio) -> io::Result<(Self, Vec<OutputPipe>)> {
        #[cfg(unix)]
        {
            let (reader, writer) = io::pipe()?;
            let reader = tokio::net::unix::pipe::Receiver::from_owned_fd(reader.into())?;
            let mut launch = launch;
            launch.command.stdin(input).stdout(writer.try_clone()?).stderr(writer);
            let started = Self::begin(launch, mark)?;
            Ok((started, vec![Box::pin(reader) as OutputPipe]))
        }
        #[cfg(not(unix))]
        {
            let mut launch = launch;
            launch.command.stdin(input).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped());
            let mut started = Self::begin(launch, mark)?;
            let mut pipes: Vec<OutputPipe> = Vec::new();
            pipes.extend(started.child.stdout.take().map(|pipe| Box::pin(pipe) as OutputPipe));
            pipes.extend(started.child.stderr.take().map(|pipe| Box::pin(pipe) as OutputPipe));
            Ok((started, pipes))
        }
    }

    /// Starts the process, whose pipes are set. It takes the command, which holds our own ends of them: while one is open,
    /// a pipe has no end.
    fn begin(launch: Launch, mark: String) -> io::Result<Self> {
        let mut command = launch.command;
        command.env(COMMAND_MARK, &mark).kill_on_drop(true);
        #[cfg(unix)]
        let confined = {
            match &launch.confined {
                // The helper ends with its socket, after the processes it looks after, and leads a group by itself.
                Some(_) => command.kill_on_drop(false),
                None => command.process_group(0),
            };
            launch.confined
        };
        let child = command.spawn()?;
        drop(command);
        #[cfg(unix)]
        let offline = confined.as_ref().is_some_and(|(_, orders)| orders.network == crawfish_sandbox::Network::Off);
        #[cfg(not(unix))]
        let offline = false;
        #[cfg(unix)]
        let held = match confined {
            None => None,
            Some((held, orders)) => {
                crawfish_sandbox::order(&held.control, &orders)?;
                held.control.set_nonblocking(true)?;
                Some(held)
            }
        };
        let group = Group {
            #[cfg(unix)]
            leader: child.id().and_then(pid),
            mark,
        };
        Ok(Self {
            child,
            group,
            ended: false,
            #[cfg(unix)]
            held,
            offline,
            told: crawfish_sandbox::Report::default(),
        })
    }

    /// Starts a command that is spoken to over stdin and stdout, in a group of its own, marked with `mark`.
    ///
    /// # Errors
    /// Those of the system: no such program or folder, no right to it, no process left.
    pub fn spawn_spoken_to(launch: impl Into<Launch>, mark: String) -> io::Result<(Self, Pipes)> {
        let piped = std::process::Stdio::piped;
        let mut launch = launch.into();
        launch.command.stdin(piped()).stdout(piped()).stderr(piped());
        let mut started = Self::begin(launch, mark)?;
        let child = &mut started.child;
        match (child.stdin.take(), child.stdout.take(), child.stderr.take()) {
            (Some(stdin), Some(stdout), Some(stderr)) => Ok((started, Pipes { stdin, stdout, stderr })),
            _ => Err(io::Error::other("the program has no pipes")),
        }
    }

    /// Waits for the end of the command itself. May be called again.
    ///
    /// # Errors
    /// Those of the system.
    pub async fn wait(&mut self) -> io::Result<std::process::ExitStatus> {
        let status = self.child.wait().await?;
        self.hear();
        Ok(status)
    }

    /// By what its group is known again. Nothing where the system shows no such thing, and for what is confined: that ends
    /// with the gateway.
    pub fn trace(&self) -> Option<GroupTrace> {
        #[cfg(target_os = "linux")]
        if self.held.is_none() {
            return self.child.id().and_then(GroupTrace::of);
        }
        None
    }

    /// What the helper of a confined command has told so far; complete once the command has ended.
    pub fn report(&self) -> &crawfish_sandbox::Report {
        &self.told
    }

    /// Whether it is confined to a place without any network.
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// What is to be told of the hosts it reached for and was refused, a line each.
    pub fn note(&self) -> Option<String> {
        #[cfg(unix)]
        if let Some(doorway) = self.held.as_ref().and_then(|held| held.doorway.as_ref()) {
            return match self.told.no_way {
                true => Some(
                    "[crawfish: the hosts that are open to this command could not be opened, because this machine's kernel \
                     or container keeps system calls from being answered by others (docs/sandbox.md); it ran without a \
                     network; tell the user]"
                        .to_owned(),
                ),
                false => doorway.note(),
            };
        }
        None
    }

    fn hear(&mut self) {
        #[cfg(unix)]
        if let Some(held) = &mut self.held {
            use std::io::Read as _;
            let mut bytes = Vec::new();
            // Without a word there is none: the socket does not wait.
            let _ = (&mut held.control).take(4_096).read_to_end(&mut bytes);
            if !bytes.is_empty() {
                self.told = crawfish_sandbox::report(&bytes);
            }
        }
    }

    /// Asks everything in its group to end (SIGTERM). Does nothing where there are no signals.
    pub fn ask_to_end(&self) {
        #[cfg(unix)]
        self.group.signal(rustix::process::Signal::TERM);
    }

    /// Ends everything it started, at once; says whether something still ran besides the command itself.
    pub async fn end(&mut self) -> bool {
        #[cfg(unix)]
        if let Some(held) = &self.held {
            let _ = held.control.shutdown(std::net::Shutdown::Write);
            let gone = tokio::time::timeout(HELPER_PATIENCE, self.child.wait()).await.is_ok();
            self.hear();
            if gone {
                self.ended = true;
                return self.told.left_running;
            }
        }
        self.ended = true;
        // Where there are no groups, this is all there is; where there are, the group's leader may be gone already.
        let _ = self.child.start_kill();
        let group = self.group.clone();
        tokio::task::spawn_blocking(move || group.end()).await.unwrap_or(false)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // What is confined ends with the socket.
        #[cfg(unix)]
        let confined = self.held.is_some();
        #[cfg(not(unix))]
        let confined = false;
        if !self.ended && !confined {
            self.group.end();
        }
    }
}

impl Group {
    #[cfg(unix)]
    fn signal(&self, signal: rustix::process::Signal) -> bool {
        // A group without members cannot be signalled; nothing is left to do then.
        self.leader.is_some_and(|leader| rustix::process::kill_process_group(leader, signal).is_ok())
    }

    /// Ends all of it, and says whether there was anything left to end.
    fn end(&self) -> bool {
        let marked = end_marked(&self.mark) > 0;
        #[cfg(unix)]
        {
            // For those without the mark: every process where marks cannot be seen, and on Linux one that hid its own.
            let grouped = self.signal(rustix::process::Signal::KILL);
            if cfg!(not(target_os = "linux")) {
                return grouped;
            }
        }
        marked
    }
}

#[cfg(unix)]
fn pid(id: u32) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(id).ok()?)
}

/// Ends every process whose mark begins with `mark`, and counts them. Only Linux shows the marks of processes;
/// elsewhere it finds none.
pub fn end_marked(mark: &str) -> usize {
    #[cfg(target_os = "linux")]
    {
        let own = std::process::id();
        let wanted = format!("{COMMAND_MARK}={mark}").into_bytes();
        let mut ended = std::collections::BTreeSet::new();
        // One that forks while we look may get away once; what it forked is met in the next round.
        for _ in 0..16 {
            let before = ended.len();
            for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
                let Some(id) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
                if id == own || ended.contains(&id) {
                    continue;
                }
                // What has ended, or belongs to somebody else, shows nothing.
                let Ok(environment) = std::fs::read(entry.path().join("environ")) else { continue };
                if !environment.split(|byte| *byte == 0).any(|variable| variable.starts_with(&wanted)) {
                    continue;
                }
                if let Some(found) = pid(id)
                    && rustix::process::kill_process(found, rustix::process::Signal::KILL).is_ok()
                {
                    ended.insert(id);
                }
            }
            if ended.len() == before {
                break;
            }
        }
        ended.len()
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = mark;
        0
    }
}

/// The signal that ended a process, where there are signals.
pub fn ended_by(status: std::process::ExitStatus) -> Option<i32> {
    #[cfg(unix)]
    {
        std::os::unix::process::ExitStatusExt::signal(&status)
    }
    #[cfg(not(unix))]
    {
        let _ = status;
        None
    }
}

/// Adds the command line to `cmd /C`, which reads it raw: quotes are not escaped as for other programs.
pub fn raw_argument(command: &mut Command, text: &str) {
    #[cfg(windows)]
    command.raw_arg(text);
    #[cfg(not(windows))]
    command.arg(text);
}

#[cfg(all(test, unix))]
mod tests {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    use super::*;

    #[test]
    fn as_many_files_may_be_open_as_the_system_allows_without_being_asked() {
        let before = getrlimit(Resource::Nofile);
        let most = before.maximum.unwrap_or(65_536);
        // One fewer than there may be: enough for all other tests of this process.
        setrlimit(Resource::Nofile, Rlimit { current: Some(most - 1), ..before }).expect("fewer are allowed");
        raise_open_files(most - 2);
        assert_eq!(open_files(), Some(most - 1), "never fewer than before");
        raise_open_files(most);
        assert_eq!(open_files(), Some(most));
        raise_open_files(u64::MAX);
        assert!(open_files().is_none_or(|files| files >= most));
    }
}
