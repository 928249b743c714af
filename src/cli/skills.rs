//! `crawfish skills …`: what the agent has learnt, what is wrong with it, and what it may use. One verb, one file.

use std::path::Path;

use clap::{Args, Subcommand};

use super::exit::Exit;
use crate::config::Env;

mod check;
mod grant;
mod install;
pub use install::{agreed, say};
mod list;
mod remove;
mod requirements;
mod search;
mod update;

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
    /// Searches the hubs. 在技能市场中搜索。
    Search(search::Search),
    /// Installs a skill. 安装技能。
    Install(install::Install),
    /// Updates installed skills. 更新已安装的技能。
    Update(update::Update),
    /// Removes an installed skill. 移除已安装的技能。
    Remove(remove::Remove),
    /// Says what is broken and what could be better. 检查技能。
    Check(check::Check),
    /// Lets an installed skill have its variables. 授权已安装的技能。
    Grant(grant::Grant),
}

impl Skills {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        match &self.what {
            What::List(list) => list.run(config, env),
            What::Search(search) => search.run(config, env),
            What::Install(install) => install.run(config, env),
            What::Update(update) => update.run(config, env),
            What::Remove(remove) => remove.run(config, env),
            What::Check(check) => check.run(config, env),
            What::Grant(grant) => grant.run(config, env),
        }
    }
}
