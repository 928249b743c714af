//! What a skill wants to have installed: shown as commands, and run one by one when the owner says so.

use std::{path::Path, time::Duration};

use channel_api::Clock;
use tokio::{io::AsyncReadExt as _, process::Command};

use super::install::{agreed, say};
use crate::{
    cli::{exit::Exit, show},
    lang::{self, Lang},
    os::{self, Started},
    skills::{
        bring::Brought,
        installed::Staged,
        requirements::{Machine, Wanted, wanted as wanted_by},
    },
    terminal,
};

/// How long one command may take.
const TIME: Duration = Duration::from_secs(15 * 60);

/// The machine we run on.
struct This;

impl Machine for This {
    fn os(&self) -> &str {
        match std::env::consts::OS {
            "macos" => "darwin",
            "windows" => "win32",
            os => os,
        }
    }

    fn has(&self, program: &str) -> bool {
        os::program(program).is_some()
    }

    fn is_root(&self) -> bool {
        #[cfg(unix)]
        return rustix::process::geteuid().is_root();
        #[cfg(not(unix))]
        false
    }
}

/// What a skill wants on this machine, once it lies in `place`.
pub fn wanted(brought: &Brought, staged: &Staged, place: &Path) -> Wanted {
    let text = std::fs::read_to_string(staged.skill().join("requirements.txt")).ok();
    let path = place.join("requirements.txt").display().to_string();
    wanted_by(&brought.skill, text.as_deref().map(|text| (text, path.as_str())), &This)
}

/// Shows it.
pub fn show(wanted: &Wanted, lang: Lang) {
    if !wanted.steps.is_empty() {
        show::line(&lang::wanted_steps(lang));
        for step in &wanted.steps {
            show::line(&format!("  {}", line(&step.argv)));
        }
    }
    for left in &wanted.left {
        show::line(&lang::wanted_left(lang, terminal::escape_line(left)));
    }
    for missing in &wanted.missing {
        show::line(&lang::wanted_missing(lang, terminal::escape_line(missing)));
    }
}

fn line(argv: &[String]) -> String {
    argv.iter().map(|word| terminal::shell_word(word)).collect::<Vec<_>>().join(" ")
}

/// Runs the commands, if `consent` was given for that; the first that fails ends it.
///
/// # Errors
/// The exit code; why was said.
pub async fn run(wanted: &Wanted, consent: bool, yes: bool, clock: &dyn Clock, lang: Lang) -> Result<(), Exit> {
    if wanted.steps.is_empty() {
        return Ok(());
    }
    if !consent {
        eprintln!("{}", lang::wanted_hint(lang));
        return Ok(());
    }
    if !yes && !agreed(&lang::wanted_ask(lang, wanted.steps.len()), lang)? {
        return Ok(());
    }
    for step in &wanted.steps {
        let shown = line(&step.argv);
        let bar = indicatif::ProgressBar::new_spinner().with_message(shown.clone());
        let end = one(&step.argv, &bar, clock).await;
        bar.finish_and_clear();
        match end {
            Ok(()) => eprintln!("{}", lang::wanted_done(lang, shown)),
            Err(said) => return Err(say(lang::wanted_failed(lang, shown, said), Exit::Failure)),
        }
    }
    Ok(())
}

/// Runs one command to its end; the end of what it said when it failed.
async fn one(argv: &[String], bar: &indicatif::ProgressBar, clock: &dyn Clock) -> Result<(), String> {
    let [program, arguments @ ..] = argv else { return Ok(()) };
    let program = os::program(program).ok_or_else(|| format!("{program}?"))?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(os::clean_environment(std::env::vars_os()));
    for name in
        ["HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY", "https_proxy", "http_proxy", "all_proxy", "no_proxy"]
    {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let mark = format!("skills-{}", std::process::id());
    let (mut started, pipes) = Started::spawn(command, mark).map_err(|error| error.to_string())?;
    let mut said: Vec<u8> = Vec::new();
    let reading = async {
        for mut pipe in pipes {
            let mut piece = [0_u8; 4096];
            while let Ok(read @ 1..) = pipe.read(&mut piece).await {
                said.extend_from_slice(&piece[..read]);
                let over = said.len().saturating_sub(4_000);
                said.drain(..over);
                bar.tick();
            }
        }
    };
    let end = tokio::select! {
        end = async { reading.await; started.wait().await } => end.map_err(|error| error.to_string()),
        () = clock.sleep(TIME) => Err(format!("> {} s", TIME.as_secs())),
    };
    started.end().await;
    let said = String::from_utf8_lossy(&said).into_owned();
    let lines: Vec<&str> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = terminal::escape(&lines[lines.len().saturating_sub(5)..].join("\n")).into_owned();
    match end {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(last),
        Err(why) => Err(format!("{why}\n{last}")),
    }
}
