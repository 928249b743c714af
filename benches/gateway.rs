//! The gateway under measurement: a separate process, started on a folder of its own, looked at through `/proc`.

use std::{
    fs::{self, File},
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use channel_api::Clock;
use crawfish::clock::SystemClock;

use crate::{
    platform::{OWNER, SECRET},
    wire::Client,
};

/// How long a start may take before the run is given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where the fakes listen, and what differs between runs.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The fake model.
    pub model: SocketAddr,
    /// The callback receiver.
    pub callbacks: SocketAddr,
    /// The channel's queue mode: `collect` (the default of a chat) or `followup` (a turn for each message).
    pub queue: &'static str,
}

/// A running gateway; killed when dropped.
pub struct Gateway {
    child: Child,
    /// Where it listens.
    pub addr: SocketAddr,
    /// From just before the process was made until `/readyz` answered 200.
    pub ready_after: Duration,
    log: PathBuf,
}

impl Gateway {
    /// Writes a configuration into `dir` (made if missing; a database in `dir/data` is used) and starts `binary` on it.
    ///
    /// # Errors
    /// A line that says what went wrong, with the end of the gateway's log.
    pub async fn start(binary: &Path, dir: &Path, setup: &Setup) -> Result<Self, String> {
        let said = |what: &str, error: io::Error| format!("{what}: {error}");
        let port = free_port().map_err(|error| said("a free port", error))?;
        let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        fs::create_dir_all(dir).map_err(|error| said("the gateway's folder", error))?;
        let config = dir.join("config.toml");
        write_private(&config, &configuration(addr, setup)).map_err(|error| said("config.toml", error))?;
        let log = dir.join("stderr.log");
        let stderr = File::options().create(true).append(true).open(&log).map_err(|error| said("stderr.log", error))?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(&config).arg("serve").current_dir(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy", "RUST_LOG"] {
            command.env_remove(name);
        }
        let clock = SystemClock::new();
        let child = command.spawn().map_err(|error| said(&binary.display().to_string(), error))?;
        let mut gateway = Self { child, addr, ready_after: Duration::ZERO, log };
        let mut client = Client::new(addr);
        loop {
            if let Ok((200, _)) = client.send("GET", "/readyz", "", b"").await {
                gateway.ready_after = clock.monotonic();
                return Ok(gateway);
            }
            if let Ok(Some(status)) = gateway.child.try_wait() {
                return Err(format!("the gateway ended at its start ({status}):\n{}", gateway.last_words()));
            }
            if clock.monotonic() > PATIENCE {
                return Err(format!(
                    "the gateway was not ready within {} s:\n{}",
                    PATIENCE.as_secs(),
                    gateway.last_words()
                ));
            }
            tokio::time::sleep(Duration::from_micros(300)).await;
        }
    }

    /// Ends it as a power cut would (SIGKILL), and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        // It may have ended by itself; either way it is gone after the wait.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// The last lines of its log.
    pub fn last_words(&self) -> String {
        let text = fs::read(&self.log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }

    /// Resident memory in MiB; `None` where there is no `/proc`.
    pub fn resident_mib(&self) -> Option<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
        Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
    }

    /// CPU time used so far, user and system; `None` where there is no `/proc`.
    pub fn cpu(&self) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.child.id())).ok()?;
        // The name may hold anything but ends with the last parenthesis; utime and stime are fields 14 and 15.
        let fields: Vec<&str> = stat.get(stat.rfind(')')? + 2..)?.split(' ').collect();
        let ticks = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
        // Linux has counted in hundredths of a second for user space on every machine this runs on.
        Some(Duration::from_millis(ticks * 10))
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.end();
    }
}

fn configuration(addr: SocketAddr, setup: &Setup) -> String {
    let Setup { model, callbacks, queue } = setup;
    format!(
        r#"[server]
listen = "{addr}"

[models.main]
provider = "openai"
base_url = "http://{model}/v1"
api_key = "sk-bench-only"
model = "fake"

[channels.webhook.bridge]
secret = "{SECRET}"
callback_url = "http://{callbacks}/callback"
allow_private_callback = true
owners = ["{OWNER}"]
queue = "{queue}"
"#
    )
}

/// A config with secrets must not be readable by others.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

/// A port that was free a moment ago.
fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}
