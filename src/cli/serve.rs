//! `crawfish serve`: runs the gateway and says what to do next.

use std::{io::IsTerminal, path::Path, time::Duration};

use clap::Args;

use super::exit::Exit;
use crate::{
    app::{self, StartError, Started},
    config::{self, Env, Loaded},
    data_dir::DataDirError,
    lang::{self, Lang},
    logs::{self, LogGuard},
    os,
};

/// How long threads that still compute are waited for after the end.
const LEFT_BEHIND: Duration = Duration::from_secs(1);

/// How many files and connections may be open where the system allows it.
const OPEN_FILES: u64 = 65_536;

/// Runs the gateway.
#[derive(Debug, Args)]
pub struct Serve {
    /// Where to listen, instead of `[server] listen`. 监听地址。
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
}

impl Serve {
    /// Runs until it is told to stop.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match self.load(config, env) {
            Ok(loaded) => loaded,
            Err(errors) => {
                eprintln!("{}", errors.render(errors.lang));
                return Exit::from(&errors);
            }
        };
        let lang = loaded.lang;
        lang.set_current();
        let dir = loaded.logs_dir();
        let logs = logs::start(&loaded.config.log, loaded.env.get("RUST_LOG"), Some(&dir), loaded.redactor());
        let _logs = logs.unwrap_or_else(|error| {
            tracing::warn!(%error, dir = %dir.display(), "no log file: logging to stderr alone");
            LogGuard::default()
        });
        // A panic ends its task, not the gateway; its place and message go where everything else goes, cleaned like it.
        std::panic::set_hook(Box::new(|panic| {
            let place = panic.location().map(ToString::to_string).unwrap_or_default();
            let payload = panic.payload();
            let what = payload.downcast_ref::<&str>().copied();
            let what = what.or_else(|| payload.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)");
            tracing::error!(place, what, "a task panicked: this is a fault of crawfish");
        }));
        for warning in &loaded.warnings {
            tracing::warn!("{}", warning.render(lang));
        }
        os::raise_open_files(OPEN_FILES);
        let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("{error}");
                return Exit::Os;
            }
        };
        let ended = runtime.block_on(app::serve(&loaded, |started| welcome(&loaded, started)));
        // What a thread still computes (a page, a search) is worth no waiting: it ends with the process.
        runtime.shutdown_timeout(LEFT_BEHIND);
        match ended {
            Ok(end) => end.into(),
            Err(error) => {
                eprintln!("{}", explained(&error, lang));
                Exit::from(&error)
            }
        }
    }

    fn load(&self, config: Option<&Path>, env: &Env) -> Result<Loaded, config::ConfigErrors> {
        let mut loaded = config::load(config, env)?;
        if let Some(listen) = &self.listen {
            loaded.listen_on(listen)?;
        }
        Ok(loaded)
    }
}

/// What a start says to the person in front of it.
fn welcome(loaded: &Loaded, started: &Started<'_>) {
    let lang = loaded.lang;
    eprintln!();
    eprintln!("{}", lang::start_ready(lang, env!("CARGO_PKG_VERSION"), started.url));
    // The link holds the token: it is for the eyes of who started this, not for a journal that others read.
    if std::io::stderr().is_terminal() {
        eprintln!("{}", lang::start_link(lang, &started.link));
    } else {
        eprintln!("{}", lang::start_token(lang, loaded.data_dir().display()));
    }
    if started.demo {
        eprintln!("{}", lang::start_demo(lang));
    }
    eprintln!("{}", lang::start_next(lang));
    eprintln!();
}

/// A start that failed, in words: what, where, what to do.
fn explained(error: &StartError, lang: Lang) -> String {
    match error {
        StartError::DataDir(DataDirError::Held { dir, by }) => match by {
            Some(by) => lang::already_running(lang, dir, by.pid, &by.url),
            None => lang::already_held(lang, dir),
        },
        StartError::Listen { addr, source } if source.kind() == std::io::ErrorKind::AddrInUse => {
            lang::port_taken(lang, addr)
        }
        StartError::Listen { addr, source } => lang::cannot_listen(lang, addr, source),
        other => other.to_string(),
    }
}
