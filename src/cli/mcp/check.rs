//! `crawfish mcp check`: connects to the servers and says what is wrong.

use clap::Args;
use serde_json::json;

use super::{server, servers};
use crate::{
    cli::{exit::Exit, show},
    config::Loaded,
    lang::{self, Lang},
    mcp::withheld,
};

/// Connects to the servers. 连接服务器并检查。
#[derive(Debug, Args)]
pub struct Check {
    /// Only this one. 只检查这一个。
    server: Option<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Exits 0 when every server answers and brings what is approved, 69 when one is not reached, else 1.
    pub async fn run(&self, loaded: &Loaded) -> Exit {
        let lang = Lang::current();
        let chosen = match &self.server {
            Some(name) => match server(loaded, name) {
                Ok(server) => vec![server],
                Err(exit) => return exit,
            },
            None => servers(loaded),
        };
        let mut exit = Exit::Ok;
        let mut rows = Vec::new();
        let mut values = Vec::new();
        for server in &chosen {
            let name = server.name();
            let (state, text) = match server.look().await {
                Err(why) => {
                    exit = Exit::Unavailable;
                    ("down", lang::mcp_down(lang, why))
                }
                Ok(listing) => {
                    let withheld = withheld(server.files(), &listing);
                    let refused = listing.refused.iter().map(|(tool, why)| format!("{tool} ({why})"));
                    let refused = lang.listed(refused);
                    let standings = withheld.iter().map(|(tool, standing)| format!("{tool} ({})", standing.as_str()));
                    let standings = lang.listed(standings);
                    match (withheld.is_empty(), refused.is_empty()) {
                        (true, true) => ("approved", lang::mcp_fine(lang, listing.tools.len())),
                        (false, _) => ("withheld", lang::mcp_withheld(lang, name, standings)),
                        (true, false) => ("refused", lang::mcp_refused(lang, refused)),
                    }
                }
            };
            if state != "approved" && exit == Exit::Ok {
                exit = Exit::Failure;
            }
            rows.push(vec![name.to_owned(), state.to_owned(), text.clone()]);
            values.push(json!({ "name": name, "state": state, "about": text }));
        }
        match self.json {
            true => show::json(&values),
            false if rows.is_empty() => show::line(&lang::mcp_none(lang)),
            false => show::table(&["SERVER", "STATE", "ABOUT"], &rows),
        }
        exit
    }
}
