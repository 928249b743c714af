//! `crawfish mcp list`: the servers and how they stand.

use clap::Args;
use serde_json::json;

use super::{servers, standing};
use crate::{
    cli::{exit::Exit, show},
    config::Loaded,
    lang::{self, Lang},
};

/// Lists the servers. 列出服务器。
#[derive(Debug, Args)]
pub struct List {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl List {
    /// Runs it; changes nothing and connects to nothing.
    pub fn run(&self, loaded: &Loaded) -> Exit {
        let (lang, on) = (Lang::current(), servers(loaded));
        let mut rows = Vec::new();
        let mut values = Vec::new();
        for (name, config) in &loaded.config.mcp.servers {
            let server = on.iter().find(|server| server.name() == name);
            let (state, _, text) = server.map_or(("off", true, lang::mcp_off(lang)), |server| standing(server, lang));
            let least = config.least.as_str();
            rows.push(vec![name.clone(), state.to_owned(), least.to_owned(), config.shown(), text.clone()]);
            values.push(json!({
                "name": name, "state": state, "least": least, "reach": config.shown(), "about": text,
                "tools": server.and_then(|server| server.files().pins()).map_or(0, |pins| pins.tools.len()),
            }));
        }
        if self.json {
            show::json(&values);
        } else if rows.is_empty() {
            show::line(&lang::mcp_none(lang));
        } else {
            show::table(&["SERVER", "STATE", "LEAST", "REACHED BY", "ABOUT"], &rows);
        }
        Exit::Ok
    }
}
