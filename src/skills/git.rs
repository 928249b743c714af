//! Fetches a skill from a git repository, by the `git` program, without ever checking it out.
//!
//! The newest commit is cloned without a working tree and packed by `git archive` into a ZIP file, which then goes the way
//! of every ZIP file: so no hook, filter or submodule of the repository runs, and its links meet the same rules. git gets
//! no configuration of anybody, asks for no password, and is ended when it takes too long or too much.

use std::{ffi::OsString, path::Path, time::Duration};

use channel_api::Clock;
use tokio::{io::AsyncReadExt as _, process::Command};

use crate::os::{self, Started};

/// How long git may take, and how much it may fetch.
const TIME: Duration = Duration::from_secs(180);
const BYTES: u64 = 300 << 20;
const LOOK: Duration = Duration::from_millis(200);
/// The most of what git says that is kept.
const WORDS: usize = 4_000;

/// Why there is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GitError {
    /// There is no `git` here.
    NoGit,
    /// It said no; its last line.
    Failed(String),
    /// It took too long.
    TooLong(u64),
    /// The repository is too large; MiB.
    TooLarge(u64),
}

/// Packs the newest commit of a repository into the ZIP file `zip`; its id. `work` is a folder that does not exist yet.
/// `env` looks up environment variables: where an agent of ssh and a proxy are.
///
/// # Errors
/// [`GitError`].
pub async fn pack(
    url: &str,
    branch: Option<&str>,
    path: Option<&str>,
    work: &Path,
    zip: &Path,
    env: &dyn Fn(&str) -> Option<String>,
    clock: &dyn Clock,
) -> Result<String, GitError> {
    let git = os::program("git").ok_or(GitError::NoGit)?;
    let run = Run { git: &git, work, env, clock };
    let mut clone: Vec<OsString> =
        ["clone", "--bare", "--depth", "1", "--single-branch", "--no-tags", "--template=", "--quiet"]
            .map(OsString::from)
            .to_vec();
    if let Some(branch) = branch {
        clone.extend(["--branch".into(), branch.into()]);
    }
    clone.extend(["--".into(), url.into(), work.into()]);
    run.git(&clone, None).await?;
    let commit = run.git(&["rev-parse".into(), "--verify".into(), "HEAD".into()], Some(work)).await?;
    let commit = commit.trim().to_owned();
    let mut output = OsString::from("--output=");
    output.push(zip);
    // `HEAD:folder` packs the folder alone, with names relative to it.
    let what = path.map_or_else(|| "HEAD".to_owned(), |path| format!("HEAD:{}", path.trim_matches('/')));
    run.git(&["archive".into(), "--format=zip".into(), output, what.into()], Some(work)).await?;
    Ok(commit)
}

struct Run<'a> {
    git: &'a Path,
    work: &'a Path,
    env: &'a dyn Fn(&str) -> Option<String>,
    clock: &'a dyn Clock,
}

impl Run<'_> {
    /// Runs git to its end; what it wrote.
    async fn git(&self, arguments: &[OsString], inside: Option<&Path>) -> Result<String, GitError> {
        let mut command = Command::new(self.git);
        command.env_clear().envs(os::clean_environment(std::env::vars_os()));
        let handed = ["SSH_AUTH_SOCK", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"];
        command.envs(handed.iter().filter_map(|name| Some((name, (self.env)(name)?))));
        let quiet = [
            ("GIT_TERMINAL_PROMPT", "0"),
            ("GIT_ASKPASS", ""),
            ("SSH_ASKPASS", ""),
            ("GIT_CONFIG_NOSYSTEM", "1"),
            ("GIT_CONFIG_GLOBAL", if cfg!(windows) { "NUL" } else { "/dev/null" }),
            ("GIT_ALLOW_PROTOCOL", "https:ssh:file"),
            ("GIT_LFS_SKIP_SMUDGE", "1"),
            ("GIT_SSH_COMMAND", "ssh -oBatchMode=yes -oConnectTimeout=15"),
            ("GIT_ADVICE", "0"),
            ("GIT_OPTIONAL_LOCKS", "0"),
        ];
        command.envs(quiet);
        for setting in [
            "core.hooksPath=/dev/null",
            "core.fsmonitor=false",
            "core.attributesFile=/dev/null",
            "protocol.ext.allow=never",
            "submodule.recurse=false",
            "fetch.fsckObjects=true",
            "http.followRedirects=initial",
            "http.lowSpeedLimit=1000",
            "http.lowSpeedTime=30",
            "credential.helper=",
        ] {
            command.arg("-c").arg(setting);
        }
        if let Some(dir) = inside {
            command.arg("--git-dir").arg(dir);
        }
        command.args(arguments);
        let mark = format!("skills-{}", std::process::id());
        let (mut started, pipes) =
            Started::spawn(command, mark).map_err(|error| GitError::Failed(error.to_string()))?;
        let mut said = Vec::new();
        let reading = async {
            for mut pipe in pipes {
                let mut piece = [0_u8; 4096];
                while let Ok(read @ 1..) = pipe.read(&mut piece).await {
                    // The end matters: that is where it says why.
                    said.extend_from_slice(&piece[..read]);
                    let over = said.len().saturating_sub(WORDS);
                    said.drain(..over);
                }
            }
        };
        let watching = async {
            loop {
                self.clock.sleep(LOOK).await;
                let folder = self.work.to_owned();
                let size = tokio::task::spawn_blocking(move || size_of(&folder)).await.unwrap_or(0);
                if size > BYTES {
                    return GitError::TooLarge(BYTES >> 20);
                }
            }
        };
        let end = tokio::select! {
            end = async { reading.await; started.wait().await } => Ok(end),
            error = watching => Err(error),
            () = self.clock.sleep(TIME) => Err(GitError::TooLong(TIME.as_secs())),
        };
        started.end().await;
        let said = String::from_utf8_lossy(&said).into_owned();
        match end? {
            Ok(status) if status.success() => Ok(said),
            Ok(_) => Err(GitError::Failed(last_line(&said))),
            Err(error) => Err(GitError::Failed(error.to_string())),
        }
    }
}

fn last_line(said: &str) -> String {
    let line = said.lines().rev().find(|line| line.starts_with("fatal:") || line.starts_with("error:"));
    line.or_else(|| said.lines().rev().find(|line| !line.trim().is_empty()))
        .unwrap_or("git")
        .chars()
        .take(300)
        .collect()
}

/// The bytes of a folder, as far as it can be read.
fn size_of(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(facts) if facts.is_dir() => size_of(&entry.path()),
            Ok(facts) => facts.len(),
            Err(_) => 0,
        })
        .sum()
}
