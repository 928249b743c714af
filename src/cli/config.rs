//! `crawfish config check|show`.

use std::path::Path;

use clap::{Args, Subcommand};

use super::{exit::Exit, reach, show};
use crate::{
    app,
    clock::SystemClock,
    config::{Env, Loaded},
    lang::{self, Lang},
    model,
};

/// Looks at the configuration. 查看配置。
#[derive(Debug, Args)]
pub struct Config {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Says what is wrong in it; connects to nothing. 检查配置。
    Check,
    /// Prints all of it, defaults filled in, secrets masked. 显示完整配置（密钥已隐去）。
    Show {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Config {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let lang = Lang::current();
        match self.what {
            What::Check => {
                for warning in &loaded.warnings {
                    eprintln!("{}", warning.render(lang));
                }
                if let Some(problem) = model_problem(&loaded) {
                    eprintln!("{}", crate::terminal::escape(&problem));
                    return Exit::Config;
                }
                match &loaded.source {
                    Some(file) => show::line(&lang::config_fine(lang, file.display())),
                    None => show::line(&lang::config_none(lang)),
                }
            }
            What::Show { json: true } => show::json(&loaded.show_json()),
            What::Show { json: false } => show::line(loaded.show().trim_end()),
        }
        Exit::Ok
    }
}

/// The first model that cannot be built from its section.
pub fn model_problem(loaded: &Loaded) -> Option<String> {
    let clock: std::sync::Arc<dyn channel_api::Clock> = std::sync::Arc::new(SystemClock::new());
    let models = model::config::build_all(&loaded.config.models, &clock, &loaded.dir);
    models.err().map(|error| error.to_string()).or_else(|| {
        let senses = app::look_at_senses(loaded, &clock);
        senses.err().map(|error| error.to_string())
    })
}
