//! `crawfish channels list`.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{exit::Exit, reach, show};
use crate::{
    channels,
    config::Env,
    intake::access::Gate,
    lang::{self, Lang},
};

/// Looks at the channels. 查看渠道。
#[derive(Debug, Args)]
pub struct Channels {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists the configured ones. 列出已配置的渠道。
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Channels {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let What::List { json } = self.what;
        let rows: Vec<(String, bool, &str)> = loaded
            .config
            .channels
            .iter()
            .map(|(id, channel)| {
                let owners_own = channels::kind(id.kind()).is_some_and(|kind| kind.owners_own);
                let gate = Gate::new(id, &channel.policy, &loaded.config.access, owners_own);
                let admits = match (gate.is_open(), gate.admits_anyone()) {
                    (true, _) => "everyone",
                    (false, true) => "listed",
                    (false, false) => "nobody",
                };
                (id.to_string(), channel.policy.enabled, admits)
            })
            .collect();
        if json {
            let rows: Vec<_> = rows
                .iter()
                .map(|(id, enabled, admits)| json!({ "channel": id, "enabled": enabled, "admits": admits }))
                .collect();
            show::json(&rows);
        } else if rows.is_empty() {
            show::line(&lang::door_channel(Lang::current()));
        } else {
            let state = |enabled: bool| if enabled { "on" } else { "off" }.to_owned();
            let rows: Vec<Vec<String>> =
                rows.into_iter().map(|(id, enabled, admits)| vec![state(enabled), admits.to_owned(), id]).collect();
            show::table(&["STATE", "ADMITS", "CHANNEL"], &rows);
        }
        Exit::Ok
    }
}
