//! `crawfish skills …`: what the agent has learnt, what is wrong with it, and what it may use. One verb, one file.

use std::path::Path;

use clap::{Args, Subcommand};

use super::exit::Exit;
use crate::config::Env;

mod list;

/// Looks after the skills. 管理技能。
#[derive(Debug, Args)]
pub struct Skills {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists every skill that was found, usable or not. 列出所有技能。
    List(list::List),
}

impl Skills {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        match &self.what {
            What::List(list) => list.run(config, env),
        }
    }
}
