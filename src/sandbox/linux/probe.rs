//! What a confined process tries in order to show that it cannot: every name that is printed is a way out that is open.

use std::{
    fs,
    io::Write as _,
    net::{TcpStream, UdpSocket},
    os::unix::net::{UnixDatagram, UnixStream},
    time::Duration,
};

use crate::{Confinement, Level, Probe};

/// Tries everything, and prints one name for each thing that worked, then `tried`, then whether processes are limited.
pub fn run(probe: &Probe, orders: &Confinement) {
    let outside = probe.outside.join("sandbox-probe");
    let pid = probe.parent;
    // At L3 a small number may be a process in there.
    let other = orders.level != Level::L3 || pid > 16;
    let signal = libc::pid_t::try_from(pid).unwrap_or(libc::pid_t::MAX);
    let open: [(&str, bool); 9] = [
        ("read the data folder", fs::read(&probe.canary).is_ok()),
        (
            "list the data folder",
            fs::read_dir(&probe.outside)
                .is_ok_and(|mut names| names.any(|name| name.is_ok_and(|name| name.path() == probe.canary))),
        ),
        ("write outside", fs::write(&outside, "x").is_ok() || fs::write("/sandbox-probe", "x").is_ok()),
        ("connect over TCP", TcpStream::connect_timeout(&probe.tcp, Duration::from_millis(300)).is_ok()),
        ("send over UDP", UdpSocket::bind("0.0.0.0:0").is_ok_and(|socket| socket.send_to(b"x", probe.udp).is_ok())),
        (
            "connect to a unix socket",
            UnixStream::connect(&probe.unix).is_ok()
                || UnixDatagram::unbound().is_ok_and(|socket| socket.connect(&probe.unix).is_ok()),
        ),
        // SAFETY: signal 0 only asks.
        ("signal the gateway", other && unsafe { libc::kill(signal, 0) } == 0),
        (
            "read the gateway's environment",
            other && fs::read(format!("/proc/{pid}/environ")).is_ok_and(|bytes| !bytes.is_empty()),
        ),
        ("use a descriptor of the gateway", leaked()),
    ];
    let mut out = std::io::stdout();
    for (name, _) in open.iter().filter(|(_, open)| *open) {
        let _ = writeln!(out, "{name}");
    }
    let _ = writeln!(out, "tried");
    let _ = out.flush();
    if !forks_end(orders.limits.processes) {
        let _ = writeln!(out, "start processes without end");
    }
    let _ = writeln!(out, "done");
    let _ = out.flush();
}

fn leaked() -> bool {
    // One that closes when the command starts is none of it.
    // SAFETY: asks of numbers only.
    (3..1_024).any(
        |fd| matches!(unsafe { libc::fcntl(fd, libc::F_GETFD) }, flags if flags != -1 && flags & libc::FD_CLOEXEC == 0),
    )
}

/// Whether the system, or who looks after us, stops us at the limit.
fn forks_end(limit: u64) -> bool {
    let mut started = Vec::new();
    let mut ended = false;
    for _ in 0..limit + 16 {
        // SAFETY: one thread; the child does nothing but wait, and leaves without what is its parent's.
        match unsafe { libc::fork() } {
            -1 => {
                ended = true;
                break;
            }
            0 => unsafe {
                libc::alarm(10);
                libc::pause();
                libc::_exit(0);
            },
            pid => started.push(pid),
        }
    }
    if !ended {
        // Who counts us needs a moment; this call then does not return.
        std::thread::sleep(Duration::from_millis(500));
    }
    for pid in started {
        // SAFETY: our own children.
        unsafe {
            libc::kill(pid, libc::SIGKILL);
            libc::waitpid(pid, std::ptr::null_mut(), 0);
        }
    }
    ended
}
