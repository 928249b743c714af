//! `crawfish halt` and `crawfish resume`: nothing new is begun, until it is.

use std::path::Path;

use clap::Args;

use super::{exit::Exit, reach::Reach, show};
use crate::{
    config::Env,
    inspect::Query,
    lang::{self, Lang},
};

/// Begins nothing new until `resume`. 暂停：不再开始任何新的处理。
#[derive(Debug, Args)]
pub struct Halt {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

/// Goes on after `halt`. 恢复。
#[derive(Debug, Args)]
pub struct Resume {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Halt {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        set(true, self.json, config, env)
    }
}

impl Resume {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        set(false, self.json, config, env)
    }
}

fn set(on: bool, json: bool, config: Option<&Path>, env: &Env) -> Exit {
    Reach::through(config, env, async |reach| {
        let answer = reach.value(&Query::SetHalted(on)).await?;
        let lang = Lang::current();
        if json {
            show::json(&answer);
        } else {
            show::line(&if on { lang::halt_on(lang) } else { lang::halt_off(lang) });
        }
        Ok(())
    })
}
