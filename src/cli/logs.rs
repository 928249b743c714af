//! `crawfish logs [-f] [--grep]`: the log files, followed over rotations.

use std::{path::Path, time::Duration};

use clap::Args;
use regex::Regex;

use super::{exit::Exit, reach, show};
use crate::{
    config::Env,
    lang::{self, Lang},
    logs::Reader,
};

/// Reads the gateway's log. 查看日志。
#[derive(Debug, Args)]
pub struct Logs {
    /// Go on with what is written from now on. 持续输出。
    #[arg(long, short)]
    follow: bool,
    /// Only lines that match this regular expression. 只显示匹配的行。
    #[arg(long, value_name = "PATTERN")]
    grep: Option<String>,
    /// The last lines. 最近的行数。
    #[arg(long, short = 'n', default_value_t = 100)]
    lines: usize,
}

impl Logs {
    /// Runs until there is no more, or for ever with `--follow`.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let pattern = match self.grep.as_deref().map(Regex::new).transpose() {
            Ok(pattern) => pattern,
            Err(error) => {
                eprintln!("--grep: {error}");
                return Exit::Usage;
            }
        };
        let matches = |line: &String| pattern.as_ref().is_none_or(|pattern| pattern.is_match(line));
        let dir = loaded.logs_dir();
        // With a pattern, the last lines are the last that match.
        let wanted = if pattern.is_some() { 1_000_000 } else { self.lines };
        let opened = Reader::open(&dir, wanted);
        let (lines, mut reader) = match opened {
            Ok(opened) => opened,
            Err(error) => return failed(&dir, &error),
        };
        let lines: Vec<String> = lines.into_iter().filter(matches).collect();
        if lines.is_empty() && !self.follow {
            eprintln!("{}", lang::cli_no_logs(Lang::current(), dir.display()));
        }
        lines[lines.len().saturating_sub(self.lines)..].iter().for_each(|line| show::line(line));
        if !self.follow {
            return Exit::Ok;
        }
        loop {
            std::thread::sleep(Duration::from_millis(200));
            match reader.more() {
                Ok(lines) => lines.iter().filter(|line| matches(line)).for_each(|line| show::line(line)),
                Err(error) => return failed(&dir, &error),
            }
        }
    }
}

fn failed(dir: &Path, error: &std::io::Error) -> Exit {
    eprintln!("{}: {error}", dir.display());
    Exit::Io
}
