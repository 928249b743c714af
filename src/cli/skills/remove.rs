//! `crawfish skills remove <name>`: takes an installed skill away. Other skills are their owners' folders and are left
//! alone.

use std::path::Path;

use clap::Args;

use super::install::{agreed, hold, say};
use crate::{
    cli::{exit::Exit, reach, show},
    config::Env,
    lang::{self, Lang},
    skills::{grants, pinned::State},
};

/// Removes an installed skill. 移除已安装的技能。
#[derive(Debug, Args)]
pub struct Remove {
    /// Its folder below `data/skills`. 技能名称。
    name: String,
    /// Agree without being asked. 不询问。
    #[arg(long, short)]
    yes: bool,
}

impl Remove {
    /// Runs it; needs no gateway.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let lang = Lang::current();
        let installed = match hold(&loaded, lang) {
            Ok(installed) => installed,
            Err(exit) => return exit,
        };
        let (name, dir) = (&self.name, loaded.data_dir().join("skills"));
        if !installed.list().iter().any(|(folder, _)| folder == name) {
            return say(lang::install_not_installed(lang, name), Exit::NoInput);
        }
        let question = match installed.state(name) {
            State::Changed => lang::remove_ask_changed(lang, name),
            _ => lang::remove_ask(lang, name),
        };
        if !self.yes {
            match agreed(&question, lang) {
                Ok(true) => {}
                Ok(false) => return Exit::Failure,
                Err(exit) => return exit,
            }
        }
        match installed.remove(name) {
            Ok(()) => {
                // What is installed under this name next is asked for anew.
                if let Err(error) = grants::withdraw(&dir, &dir.join(name)) {
                    return say(error, Exit::Io);
                }
                let detail = serde_json::json!({ "folder": name });
                let written = reach::block_on(async {
                    reach::granted(&loaded, "skill removed", detail).await.err().unwrap_or(Exit::Ok)
                });
                if written == Exit::Ok {
                    show::line(&lang::remove_done(lang, name));
                }
                written
            }
            Err(error) => say(error, Exit::Io),
        }
    }
}
