//! `crawfish mcp approve`: asks a server for its tools, shows every one that will be approved, asks, and pins them.

use clap::Args;
use serde_json::json;

use super::{server, tools};
use crate::{
    cli::{
        exit::Exit,
        show,
        skills::{agreed, say},
    },
    config::Loaded,
    lang::{self, Lang},
    mcp::listing::Listing,
};

/// Shows and approves the tools of a server. 查看并批准某服务器的工具。
#[derive(Debug, Args)]
pub struct Approve {
    /// The server's name. 服务器名称。
    server: String,
    /// Only this tool, by the server's own name; may be repeated. 只批准这个工具（服务器自己的名称），可重复。
    #[arg(long = "tool", value_name = "NAME")]
    only: Vec<String>,
    /// Agree without being asked, for scripts. 不询问，直接同意。
    #[arg(long, short)]
    yes: bool,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Approve {
    /// Runs it. What is shown is what is pinned: the server is asked once.
    pub async fn run(&self, loaded: &Loaded) -> Exit {
        self.approve(loaded).await.err().unwrap_or(Exit::Ok)
    }

    async fn approve(&self, loaded: &Loaded) -> Result<(), Exit> {
        let lang = Lang::current();
        let server = server(loaded, &self.server)?;
        let config = server.config();
        if !self.json && config.url.is_none() {
            show::line(&lang::mcp_program(lang, config.shown()));
        }
        let listing =
            server.look().await.map_err(|why| say(lang::mcp_failed(lang, server.name(), why), Exit::Unavailable))?;
        if let Some(missing) = self.only.iter().find(|tool| !listing.tools.contains_key(*tool)) {
            eprintln!("{}", lang::mcp_unknown_tool(lang, server.name(), missing));
            return Err(Exit::NoInput);
        }
        let pins = server.files().pins().unwrap_or_default();
        let mut rows = tools::rows(server.name(), &pins, &listing);
        rows.retain(|row| self.only.is_empty() || self.only.contains(&row.theirs));
        if !self.json {
            rows.iter().for_each(|row| row.show(lang));
        }
        let new = rows.iter().filter(|row| matches!(row.state, "new" | "changed")).count();
        if new == 0 {
            // Also with nothing new: what is gone is forgotten, and a first look is remembered.
            eprintln!("{}", lang::mcp_nothing_new(lang, server.name()));
        } else if !self.yes && !agreed(&lang::mcp_ask(lang, new, server.name(), config.least.as_str()), lang)? {
            eprintln!("{}", lang::install_left(lang));
            return Err(Exit::Failure);
        }
        self.pin(&server, &listing)?;
        if new > 0 {
            let tools: Vec<&str> = rows.iter().map(|row| row.theirs.as_str()).collect();
            let detail = json!({ "server": server.name(), "tools": tools });
            super::super::reach::granted(loaded, "mcp approved", detail).await?;
        }
        match self.json {
            true => show::json(&json!({
                "server": server.name(), "approved": new, "tools": rows.iter().map(tools::Row::value).collect::<Vec<_>>(),
            })),
            false if new > 0 => show::line(&lang::mcp_approved(lang, new, server.name())),
            false => {}
        }
        Ok(())
    }

    fn pin(&self, server: &crate::mcp::Server, listing: &Listing) -> Result<(), Exit> {
        server.approve(listing, &self.only).map_err(|error| {
            eprintln!("{error}");
            Exit::Io
        })
    }
}
