//! The trial of a level: the helper is started as for a command, and tries to get at things that are really there.

use std::{
    fs, io,
    io::Read as _,
    net::{TcpListener, UdpSocket},
    os::unix::net::UnixListener,
    path::Path,
    process::Stdio,
    time::Duration,
};

use crawfish_sandbox::{Confinement, Level, Limits, Network, Probe, Task, report};

use crate::os::{self, PrivateFolder};

/// The most processes of a trial: enough to see that there is a limit.
const PROCESSES: u64 = 24;
/// How long a trial may take; then it has failed.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tries whether a level holds.
///
/// # Errors
/// Why it is not there: what the kernel refuses, or which ways out are open.
pub fn of(level: Level, data: Option<&Path>, workspace: &Path) -> Result<(), String> {
    let wrong = |error: io::Error| error.to_string();
    let like = if workspace.is_dir() { workspace } else { Path::new(".") };
    let (home, tmp) = (PrivateFolder::new(like).map_err(wrong)?, PrivateFolder::new(like).map_err(wrong)?);
    let away = PrivateFolder::new(Path::new("/proc/self")).map_err(wrong)?;
    let outside = data.filter(|data| data.is_dir()).unwrap_or(away.path()).to_owned();
    let outside = fs::canonicalize(outside).map_err(wrong)?;
    let canary = outside.join(format!("sandbox-canary-{}-{level}", std::process::id()));
    os::write_private(&canary, b"a confined command must not read this\n").map_err(wrong)?;
    let tried = attempt(level, &home, &tmp, &away, &outside, &canary);
    let _ = fs::remove_file(&canary);
    let _ = fs::remove_file(outside.join("sandbox-probe"));
    tried
}

fn attempt(
    level: Level,
    home: &PrivateFolder,
    tmp: &PrivateFolder,
    away: &PrivateFolder,
    outside: &Path,
    canary: &Path,
) -> Result<(), String> {
    let wrong = |error: io::Error| error.to_string();
    let (tcp, udp) = (TcpListener::bind("127.0.0.1:0").map_err(wrong)?, UdpSocket::bind("127.0.0.1:0").map_err(wrong)?);
    let unix = away.path().join("s");
    let _listens = UnixListener::bind(&unix).map_err(wrong)?;
    let probe = Probe {
        canary: canary.to_owned(),
        outside: outside.to_owned(),
        tcp: tcp.local_addr().map_err(wrong)?,
        udp: udp.local_addr().map_err(wrong)?,
        unix,
        parent: std::process::id(),
    };
    let home = home.path().to_owned();
    let orders = Confinement {
        level,
        task: Task::Probe(probe),
        cwd: home.clone(),
        write: vec![home],
        read: Vec::new(),
        tmp: tmp.path().to_owned(),
        network: Network::Off,
        limits: Limits { processes: PROCESSES, ..Limits::default() },
    };
    let (mut command, mut control) = crawfish_sandbox::helper_command(Path::new(super::HELPER)).map_err(wrong)?;
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(wrong)?;
    drop(command);
    let ordered = crawfish_sandbox::order(&control, &orders);
    let mut said = String::new();
    // It ends by itself: a command that hangs is ended with the socket.
    let mut told = Vec::new();
    control.set_read_timeout(Some(PATIENCE)).map_err(wrong)?;
    let heard = control.read_to_end(&mut told);
    drop(control);
    if let Some(out) = &mut child.stdout {
        let _ = out.take(4_096).read_to_string(&mut said);
    }
    child.wait().map_err(wrong)?;
    let report = report(&told);
    if let Some(why) = report.failed {
        return Err(why);
    }
    ordered.map_err(wrong)?;
    heard.map_err(wrong)?;
    // A level of system calls alone keeps nobody from reading files of the same user.
    let weak = level == Level::L1;
    let open: Vec<&str> = said
        .lines()
        .filter(|line| !["tried", "done"].contains(line))
        .filter(|line| !weak || line.contains("TCP"))
        .collect();
    if !open.is_empty() {
        return Err(format!("a trial could {}", open.join(", ")));
    }
    let all = said.lines().any(|line| line == "tried") && (report.too_many || said.lines().any(|line| line == "done"));
    if all { Ok(()) } else { Err("a trial did not come to its end".to_owned()) }
}
