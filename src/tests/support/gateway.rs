//! The binary under test: started in a folder of its own, found by its run file, killed by its pid, gone at the end.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use channel_api::Clock;
use crawfish::clock::SystemClock;
use serde_json::Value;
use tempfile::TempDir;
use tokio::{
    io::AsyncWriteExt,
    process::{Child, Command},
    sync::watch,
};

use super::wait::{SOON, until};

/// A gateway's folder, and the gateway while it runs.
pub struct Gateway {
    folder: TempDir,
    child: Option<Child>,
    /// Arguments of `serve`.
    args: Vec<String>,
    starts: u64,
    /// `FAILPOINTS` of every start.
    failpoints: Option<String>,
    /// More variables of its environment.
    variables: Vec<(String, String)>,
    url: watch::Sender<String>,
    clock: SystemClock,
}

/// How a command ended.
#[derive(Debug)]
pub struct Output {
    /// Its exit code; `None` when a signal ended it.
    pub code: Option<i32>,
    /// What it wrote to stdout.
    pub out: String,
    /// What it wrote to stderr.
    pub err: String,
}

impl Output {
    /// Stdout as JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("stdout is no JSON ({error}): {self:?}"))
    }

    /// Stdout, of a command that must have gone well.
    pub fn good(&self) -> &str {
        assert_eq!(self.code, Some(0), "{self:?}");
        &self.out
    }
}

impl Gateway {
    /// A folder with this configuration (none when empty), nothing running.
    pub fn folder(config: &str) -> Self {
        let folder = tempfile::Builder::new().prefix("crawfish-journey-").tempdir().expect("a folder can be made");
        let args = ["serve", "--listen", "127.0.0.1:0"].map(str::to_owned).to_vec();
        let (url, _) = watch::channel(String::new());
        let gateway = Self {
            folder,
            child: None,
            args,
            starts: 0,
            failpoints: None,
            variables: Vec::new(),
            url,
            clock: SystemClock::new(),
        };
        if !config.is_empty() {
            gateway.configure(config);
        }
        gateway
    }

    /// A running gateway with this configuration.
    pub async fn start(config: &str) -> Self {
        let mut gateway = Self::folder(config);
        gateway.restart().await;
        gateway
    }

    /// Writes `config.toml`, for its owner alone.
    pub fn configure(&self, config: &str) {
        let path = self.dir().join("config.toml");
        fs::write(&path, config).expect("the configuration can be written");
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its mode can be set");
        }
    }

    /// Its folder.
    pub fn dir(&self) -> &Path {
        self.folder.path()
    }

    /// Its workspace.
    pub fn workspace(&self) -> PathBuf {
        self.dir().join("workspace")
    }

    /// Where it listens, kept up to date over restarts.
    pub fn address(&self) -> watch::Receiver<String> {
        self.url.subscribe()
    }

    /// Where it listens now, e.g. `http://127.0.0.1:40123`.
    pub fn url(&self) -> String {
        self.url.borrow().clone()
    }

    /// The pid of the running process.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().and_then(Child::id)
    }

    /// Starts it (again) and waits until it is ready; returns how long that took.
    pub async fn restart(&mut self) -> Duration {
        let began = self.clock.monotonic();
        let pid = self.spawn(None);
        let url = self.wait_for("the gateway's run file", |gateway| gateway.run_file(pid)).await;
        let client = client();
        loop {
            let answer = client.get(format!("{url}/readyz")).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                break;
            }
            self.still_runs();
            tokio::time::sleep(Duration::from_millis(5)).await;
            let waited = self.clock.monotonic() - began;
            assert!(waited < SOON, "not ready after {waited:?}:\n{}", self.log());
        }
        self.url.send_replace(url);
        self.clock.monotonic() - began
    }

    /// Starts it with `FAILPOINTS` set so, and waits until it ends; how it ended, or `None` when it lives on for `patience`
    /// and was killed.
    pub async fn restart_doomed(&mut self, failpoints: &str, patience: Duration) -> Option<std::process::ExitStatus> {
        let began = self.clock.monotonic();
        let pid = self.spawn(Some(failpoints));
        loop {
            let child = self.child.as_mut().expect("it was just started");
            if let Some(status) = child.try_wait().expect("its end can be seen") {
                self.child = None;
                return Some(status);
            }
            if let Some(url) = self.run_file(pid) {
                self.url.send_if_modified(|old| std::mem::replace(old, url.clone()) != url);
            }
            if self.clock.monotonic() - began > patience {
                self.kill9().await;
                return None;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
    }

    /// Starts the process; its pid.
    fn spawn(&mut self, failpoints: Option<&str>) -> u32 {
        assert!(self.child.is_none(), "it already runs");
        self.starts += 1;
        let log =
            fs::OpenOptions::new().create(true).append(true).open(self.log_path()).expect("the log can be opened");
        let args = self.args.clone();
        let mut command = self.command(&args);
        command.stdin(Stdio::null()).stdout(log.try_clone().expect("a second handle")).stderr(log);
        if let Some(points) = failpoints.or(self.failpoints.as_deref()) {
            command.env("FAILPOINTS", points);
        }
        let child = command.spawn().expect("the binary can be started");
        let pid = child.id().expect("it was just started");
        self.child = Some(child);
        pid
    }

    /// Sets `FAILPOINTS` for every start from now on.
    pub fn fail_at(&mut self, points: &str) {
        self.failpoints = Some(points.to_owned());
    }

    /// Sets a variable for every start from now on, and for its commands.
    pub fn set_variable(&mut self, name: &str, value: &str) {
        self.variables.push((name.to_owned(), value.to_owned()));
    }

    async fn wait_for<T>(&mut self, what: &str, ask: impl Fn(&Self) -> Option<T>) -> T {
        let began = self.clock.monotonic();
        loop {
            if let Some(found) = ask(self) {
                return found;
            }
            self.still_runs();
            assert!(self.clock.monotonic() - began < SOON, "waited for {what}:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn still_runs(&mut self) {
        let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
        if let Some(status) = ended {
            panic!("the gateway ended with {status}:\n{}", self.log());
        }
    }

    /// The address in the run file, if this process wrote it.
    fn run_file(&self, pid: u32) -> Option<String> {
        let text = fs::read_to_string(self.dir().join("data/run.json")).ok()?;
        let run: Value = serde_json::from_str(&text).ok()?;
        let url = run["url"].as_str().filter(|url| !url.is_empty())?;
        (run["pid"] == pid).then(|| url.to_owned())
    }

    /// `kill -9`.
    pub async fn kill9(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().await.expect("it can be killed");
    }

    /// SIGTERM: the exit code, and how long it took.
    pub async fn terminate(&mut self) -> (Option<i32>, Duration) {
        self.signal("TERM").await;
        self.ended().await
    }

    /// Sends a signal by the pid.
    pub async fn signal(&self, name: &str) {
        let pid = self.pid().expect("it runs").to_string();
        let sent = Command::new("sh").args(["-c", "kill -\"$0\" \"$1\"", name, &pid]).status().await;
        assert!(sent.is_ok_and(|status| status.success()), "the signal was not sent");
    }

    /// Waits for its end.
    pub async fn ended(&mut self) -> (Option<i32>, Duration) {
        let began = self.clock.monotonic();
        let mut child = self.child.take().expect("it runs");
        let status = tokio::time::timeout(SOON, child.wait()).await;
        let status = status.unwrap_or_else(|_| panic!("it does not end:\n{}", self.log()));
        (status.expect("its end can be seen").code(), self.clock.monotonic() - began)
    }

    /// The token of its owner.
    pub fn token(&self) -> String {
        let text = fs::read_to_string(self.dir().join("data/token")).expect("there is a token");
        text.trim().to_owned()
    }

    /// Everything it wrote to its terminal.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.dir().join("terminal.log")
    }

    /// The binary in this folder, with nothing of the tester's environment but the search path.
    pub fn command<S: AsRef<std::ffi::OsStr>>(&self, args: &[S]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_crawfish"));
        command.args(args).current_dir(self.dir()).env_clear().kill_on_drop(true);
        command.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        for home in ["HOME", "USERPROFILE", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "TMPDIR"] {
            command.env(home, self.dir());
        }
        command.env("LC_ALL", "C.UTF-8").env("KIT_BOOT", self.starts.to_string());
        command.env("RUST_BACKTRACE", "1");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(log) = std::env::var_os("RUST_LOG") {
            command.env("RUST_LOG", log);
        }
        command
    }

    /// Runs a command of the binary to its end.
    pub async fn cli(&self, args: &[&str]) -> Output {
        self.cli_with(args, "").await
    }

    /// The same with something to read.
    pub async fn cli_with(&self, args: &[&str], input: &str) -> Output {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the binary can be started");
        let mut stdin = child.stdin.take().expect("it was asked for");
        // A command that reads nothing may have closed it.
        let _ = stdin.write_all(input.as_bytes()).await;
        drop(stdin);
        let output = tokio::time::timeout(SOON * 2, child.wait_with_output()).await;
        let output = output.unwrap_or_else(|_| panic!("`crawfish {}` does not end", args.join(" ")));
        let output = output.expect("its output can be read");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("it writes UTF-8");
        Output { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }

    /// `POST /api/chat` with the owner's token; the task's id.
    pub async fn chat(&self, body: &Value) -> Value {
        let request = client().post(format!("{}/api/chat", self.url())).bearer_auth(self.token());
        let answer = request.json(body).send().await.expect("it answers");
        let status = answer.status();
        let body: Value = answer.json().await.expect("it answers JSON");
        assert!(status.is_success(), "{status} {body}");
        body
    }

    /// The events of a task, to its end.
    pub async fn events(&self, task: &str) -> Vec<Value> {
        let request = client().get(format!("{}/sse?taskId={task}", self.url())).bearer_auth(self.token());
        let mut answer = request.send().await.expect("it answers");
        assert_eq!(answer.status().as_u16(), 200);
        let mut text = String::new();
        let reading = async {
            loop {
                let chunk = answer.chunk().await.expect("the stream goes on").expect("the stream goes on to the end");
                text.push_str(std::str::from_utf8(&chunk).expect("each event is whole"));
                let events: Vec<Value> = sse_data(&text);
                let last = events.last().and_then(|event| event["type"].as_str()).unwrap_or_default();
                if matches!(last, "task_complete" | "task_failed") {
                    return events;
                }
            }
        };
        tokio::time::timeout(SOON, reading).await.unwrap_or_else(|_| panic!("the task does not end:\n{}", self.log()))
    }

    /// What a task ended with.
    pub async fn answer(&self, message: &str, session: Option<&str>) -> String {
        let mut body = serde_json::json!({ "message": message });
        if let Some(session) = session {
            body["session"] = session.into();
        }
        let task = self.chat(&body).await;
        let events = self.events(task["taskId"].as_str().expect("a task")).await;
        let end = events.last().expect("an end");
        assert_eq!(end["type"], "task_complete", "{events:?}");
        end["result"].as_str().unwrap_or_else(|| panic!("no result: {end}")).to_owned()
    }

    /// Waits until no command of its assistant runs: none whose home is the workspace.
    #[cfg(target_os = "linux")]
    pub async fn no_command_runs(&self) {
        let workspace = fs::canonicalize(self.workspace()).expect("there is a workspace");
        let home = format!("HOME={}", workspace.display()).into_bytes();
        let runs = || {
            let processes = fs::read_dir("/proc").expect("it is there").flatten();
            let environments = processes.filter_map(|process| fs::read(process.path().join("environ")).ok());
            let mut found = environments.filter(|all| all.split(|byte| *byte == 0).any(|one| one == home));
            found.next().is_some()
        };
        until("its commands are gone", SOON, async || (!runs()).then_some(())).await;
    }

    /// Waits until the log holds this.
    pub async fn logged(&self, text: &str) {
        until(text, SOON, async || self.log().contains(text).then_some(())).await;
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The child goes with its handle (`kill_on_drop`), the folder with its own.
        if std::thread::panicking() {
            let log = self.log();
            let lines: Vec<&str> = log.lines().collect();
            eprintln!("--- the gateway's last words ---\n{}", lines[lines.len().saturating_sub(40)..].join("\n"));
        }
    }
}

/// The `data:` lines of a stream that are JSON.
pub fn sse_data(text: &str) -> Vec<Value> {
    text.lines().filter_map(|line| serde_json::from_str(line.strip_prefix("data:")?.trim()).ok()).collect()
}

/// An HTTP client that goes to loopback directly and keeps no connection to a gateway that may die.
pub fn client() -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .pool_max_idle_per_host(0)
        .timeout(SOON)
        .build()
        .expect("a client needs nothing")
}
