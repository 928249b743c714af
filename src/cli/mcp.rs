//! `crawfish mcp …`: which MCP servers there are, what they bring, and what of it is approved. One verb, one file.

use std::{path::Path, sync::Arc};

use channel_api::Clock;
use clap::{Args, Subcommand};

use super::{exit::Exit, reach};
use crate::{
    app,
    clock::SystemClock,
    config::{Env, Loaded},
    lang::{self, Lang},
    mcp::{Server, pins::Seen, withheld},
};

mod approve;
mod check;
mod list;
mod tools;

/// Looks after MCP servers and their tools. 管理 MCP 服务器及其工具。
#[derive(Debug, Args)]
pub struct Mcp {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists the servers and how they stand; connects to none. 列出服务器及其状态，不发起连接。
    List(list::List),
    /// Lists the tools of a server; does not connect. 列出某服务器的工具，不发起连接。
    Tools(tools::Tools),
    /// Asks a server for its tools, shows them, and lets the model have them. 查看并批准某服务器的工具。
    Approve(approve::Approve),
    /// Connects to the servers, and says what is wrong. 连接服务器并检查问题。
    Check(check::Check),
}

impl Mcp {
    /// Runs it; needs no gateway.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        match &self.what {
            What::List(list) => list.run(&loaded),
            What::Tools(tools) => tools.run(&loaded),
            What::Approve(approve) => reach::block_on(approve.run(&loaded)),
            What::Check(check) => reach::block_on(check.run(&loaded)),
        }
    }
}

/// The servers that are switched on.
fn servers(loaded: &Loaded) -> Vec<Arc<Server>> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    app::open_mcp(loaded, &clock).servers().to_vec()
}

/// The server of that name.
fn server(loaded: &Loaded, name: &str) -> Result<Arc<Server>, Exit> {
    let all = servers(loaded);
    all.iter().find(|server| server.name() == name).cloned().ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|server| server.name()).collect();
        eprintln!("{}", lang::mcp_unknown(Lang::current(), name, Lang::current().listed(known)));
        Exit::NoInput
    })
}

/// How a server stands: its word, whether that is as it should be, and a line.
fn standing(server: &Server, lang: Lang) -> (&'static str, bool, String) {
    let (files, name) = (server.files(), server.name());
    let (pins, seen) = (files.pins(), files.seen());
    let Seen { down, listing } = seen.unwrap_or_default();
    if let Some(why) = down {
        return ("down", false, lang::mcp_down(lang, why));
    }
    let Some(pins) = pins.filter(|pins| !pins.tools.is_empty()) else {
        return ("unapproved", false, lang::mcp_not_approved(lang, name));
    };
    let withheld = withheld(files, &listing);
    if !withheld.is_empty() {
        let tools = withheld.iter().map(|(tool, standing)| format!("{tool} ({})", standing.as_str()));
        return ("withheld", false, lang::mcp_withheld(lang, name, lang.listed(tools)));
    }
    if !listing.refused.is_empty() {
        let tools = listing.refused.iter().map(|(tool, why)| format!("{tool} ({why})")).collect::<Vec<_>>();
        return ("refused", false, lang::mcp_refused(lang, lang.listed(tools)));
    }
    ("approved", true, lang::mcp_fine(lang, pins.tools.len()))
}

/// A line for each server, for `crawfish doctor`.
pub fn findings(loaded: &Loaded, lang: Lang) -> Vec<(bool, String)> {
    let line = |server: Arc<Server>| {
        let (_, good, text) = standing(&server, lang);
        (good, lang::doctor_mcp(lang, server.name(), text))
    };
    servers(loaded).into_iter().map(line).collect()
}
