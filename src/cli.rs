//! The command line: one verb, one file, and the exit code of each end.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

use self::exit::Exit;
use crate::{config, lang::Lang};

pub mod exit;
mod serve;

/// A self-hosted gateway between chat platforms and an agent. 聊天平台与智能体之间的自托管网关。
#[derive(Debug, Parser)]
#[command(name = "crawfish", version)]
struct Arguments {
    /// The configuration file (default: config.toml in this folder, if there is one). 配置文件。
    #[arg(long, short, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Accept a configuration with secrets that others can read. 允许他人可读的含密钥配置。
    #[arg(long, global = true)]
    insecure_perms: bool,
    /// The language of this program's own lines. 界面语言。
    #[arg(long, global = true, value_name = "en|zh")]
    lang: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Runs the gateway. 运行网关。
    Serve(serve::Serve),
}

/// Runs what the command line asks for.
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            // Help and version go to standard output and are no mistakes.
            let exit = if error.use_stderr() { Exit::Usage } else { Exit::Ok };
            let _ = error.print();
            return exit.into();
        }
    };
    let mut env = config::Env::of_process();
    env.insecure_perms = arguments.insecure_perms;
    env.lang = match arguments.lang.as_deref() {
        Some("zh") => Some(Lang::Zh),
        Some("en") => Some(Lang::En),
        _ => env.lang,
    };
    match arguments.verb {
        Verb::Serve(serve) => serve.run(arguments.config.as_deref(), &env),
    }
    .into()
}
