//! `crawfish mcp tools`: the tools of one server, as they were approved or last seen.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use super::server;
use crate::{
    cli::{exit::Exit, show},
    config::Loaded,
    lang::{self, Lang},
    mcp::{
        listing::{Listed, Listing, names},
        pins::{Pins, Standing},
    },
};

/// Lists the tools of a server. 列出某服务器的工具。
#[derive(Debug, Args)]
pub struct Tools {
    /// The server's name. 服务器名称。
    server: String,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Tools {
    /// Runs it; changes nothing and connects to nothing.
    pub fn run(&self, loaded: &Loaded) -> Exit {
        let lang = Lang::current();
        let server = match server(loaded, &self.server) {
            Ok(server) => server,
            Err(exit) => return exit,
        };
        let (pins, seen) = (server.files().pins(), server.files().seen());
        if pins.is_none() && seen.is_none() {
            eprintln!("{}", lang::mcp_never_seen(lang, server.name()));
            return Exit::Failure;
        }
        // A server that was not asked yet has what was approved.
        let pins = pins.unwrap_or_default();
        let listing =
            seen.map_or_else(|| Listing { tools: pins.tools.clone(), ..Listing::default() }, |seen| seen.listing);
        let rows = rows(server.name(), &pins, &listing);
        match self.json {
            true => show::json(&rows.iter().map(Row::value).collect::<Vec<_>>()),
            false => show::table(
                &["TOOL", "STATE", "ABOUT"],
                &rows
                    .iter()
                    .map(|row| vec![row.ours.clone(), row.state.to_owned(), row.about(lang)])
                    .collect::<Vec<_>>(),
            ),
        }
        Exit::Ok
    }
}

/// A tool, for people and programs.
pub struct Row {
    /// Our name of it.
    pub ours: String,
    /// The server's.
    pub theirs: String,
    /// `approved`, `changed`, `new`, `gone`, `refused`.
    pub state: &'static str,
    listed: Option<Listed>,
    why: Option<String>,
}

/// Every tool that is approved or listed.
pub fn rows(server: &str, pins: &Pins, listing: &Listing) -> Vec<Row> {
    let standings: BTreeMap<String, Standing> = pins.standings(listing);
    let ours = names(server, standings.keys().map(String::as_str));
    let known = standings.iter().map(|(theirs, standing)| Row {
        ours: ours[theirs.as_str()].clone(),
        theirs: theirs.clone(),
        state: standing.as_str(),
        listed: listing.tools.get(theirs).or_else(|| pins.tools.get(theirs)).cloned(),
        why: None,
    });
    let refused = listing.refused.iter().map(|(theirs, why)| Row {
        ours: "-".to_owned(),
        theirs: theirs.clone(),
        state: "refused",
        listed: None,
        why: Some(format!("{theirs}: {why}")),
    });
    known.chain(refused).collect()
}

impl Row {
    /// What it does, in the server's words, with what it takes and says of itself.
    pub fn about(&self, lang: Lang) -> String {
        let Some(listed) = &self.listed else { return self.why.clone().unwrap_or_default() };
        let mut parts = vec![listed.description.clone()];
        let takes = listed.parameters.get("properties").and_then(Value::as_object);
        let takes: Vec<&str> = takes.into_iter().flatten().map(|(name, _)| name.as_str()).collect();
        if !takes.is_empty() {
            parts.push(format!("[{}]", lang::mcp_takes(lang, lang.listed(takes))));
        }
        if listed.read_only {
            parts.push(format!("[{}]", lang::mcp_reads(lang)));
        }
        parts.join(" ")
    }

    /// For programs.
    pub fn value(&self) -> Value {
        json!({
            "name": self.ours, "tool": self.theirs, "state": self.state, "why": self.why,
            "description": self.listed.as_ref().map(|listed| &listed.description),
            "parameters": self.listed.as_ref().map(|listed| &listed.parameters),
            "read_only": self.listed.as_ref().map(|listed| listed.read_only),
            "idempotent": self.listed.as_ref().map(|listed| listed.idempotent),
            "bytes": self.listed.as_ref().map(Listed::bytes),
            "hash": self.listed.as_ref().map(|listed| &listed.hash),
        })
    }
}
