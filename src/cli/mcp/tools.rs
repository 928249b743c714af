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
    terminal,
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
            false => rows.iter().for_each(|row| row.show(lang)),
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
    /// As it was approved, when it is another now.
    before: Option<Listed>,
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
        before: pins.tools.get(theirs).filter(|_| *standing == Standing::Changed).cloned(),
        why: None,
    });
    let refused = listing.refused.iter().map(|(theirs, why)| Row {
        ours: "-".to_owned(),
        theirs: theirs.clone(),
        state: "refused",
        listed: None,
        before: None,
        why: Some(format!("{theirs}: {why}")),
    });
    known.chain(refused).collect()
}

impl Row {
    /// Shows everything of it that reaches a model; of one that changed, what is other: `-` before, `+` now.
    pub fn show(&self, lang: Lang) {
        show::line(&format!("- {} ({})", self.ours, self.state));
        let now = match (&self.listed, &self.why) {
            (Some(listed), _) => lines(listed, lang),
            (None, why) => why.iter().cloned().collect(),
        };
        let before = self.before.as_ref().map(|before| lines(before, lang));
        for (sign, line) in marked(before.as_deref(), &now) {
            show::line(&format!("  {sign} {}", terminal::escape_line(line)));
        }
        if before.is_some_and(|before| before == now) {
            show::line(&format!("    {}", lang::mcp_changed_unseen(lang)));
        }
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

/// A tool as a model gets it, in lines: its description, each argument with all that is said of it, and the rest of its
/// schema as JSON.
fn lines(listed: &Listed, lang: Lang) -> Vec<String> {
    let mut lines = vec![listed.description.clone()];
    lines.retain(|line| !line.is_empty());
    let mut schema = listed.parameters.as_object().cloned().unwrap_or_default();
    let required: Vec<String> = match schema.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    if let Some(Value::Object(arguments)) = schema.get("properties").cloned() {
        schema.remove("properties");
        for (name, about) in arguments {
            let must = if required.contains(&name) { lang::mcp_required(lang) } else { String::new() };
            lines.push(format!("{name}{must}{}{}", lang.colon(), argument(about)));
        }
    }
    // What every tool has, and what was said above.
    schema.retain(|key, value| !(key == "type" && value == "object"));
    if required.iter().all(|name| listed.parameters["properties"].get(name).is_some()) {
        schema.remove("required");
    }
    if !schema.is_empty() {
        lines.push(Value::Object(schema).to_string());
    }
    if listed.read_only {
        lines.push(format!("[{}]", lang::mcp_reads(lang)));
    }
    lines
}

/// What is said of one argument: its description, then everything else as JSON.
fn argument(about: Value) -> String {
    let Value::Object(mut about) = about else { return about.to_string() };
    let description = match about.get("description") {
        Some(Value::String(text)) => text.clone(),
        _ => String::new(),
    };
    if !description.is_empty() {
        about.remove("description");
    }
    let rest = if about.is_empty() { String::new() } else { Value::Object(about).to_string() };
    format!("{description} {rest}").trim().to_owned()
}

/// The lines of two versions: those of the earlier one that are gone first.
fn marked<'a>(before: Option<&'a [String]>, now: &'a [String]) -> Vec<(char, &'a String)> {
    let Some(before) = before else { return now.iter().map(|line| (' ', line)).collect() };
    let gone = before.iter().filter(|line| !now.contains(line)).map(|line| ('-', line));
    let there = now.iter().map(|line| (if before.contains(line) { ' ' } else { '+' }, line));
    gone.chain(there).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(description: &str, parameters: Value) -> Listed {
        Listed {
            hash: String::new(),
            description: description.to_owned(),
            parameters,
            read_only: false,
            idempotent: false,
        }
    }

    #[test]
    fn row_22_all_that_a_model_reads_of_a_tool_is_shown() {
        let schema = json!({
            "type": "object", "required": ["city"], "additionalProperties": false,
            "properties": {
                "city": { "type": "string", "description": "Which one.", "enum": ["first read ~/.ssh", "b"] },
                "days": { "type": "object", "properties": { "n": { "description": "inner words", "default": "send it" } } },
                "any": true,
            },
            "$defs": { "x": { "description": "far words" } },
        });
        let shown = lines(&listed("Tells the weather.", schema), Lang::En);
        for said in [
            "Tells the weather.",
            "Which one.",
            "first read ~/.ssh",
            "inner words",
            "send it",
            "far words",
            "any: true",
        ] {
            assert!(shown.iter().any(|line| line.contains(said)), "{said}: {shown:?}");
        }
        assert!(shown.iter().any(|line| line.starts_with("city (required): Which one.")), "{shown:?}");
    }

    #[test]
    fn row_22_of_a_changed_tool_the_change_is_marked() {
        let of = |text: &str| lines(&listed("d", json!({ "properties": { "a": { "description": text } } })), Lang::En);
        let (before, now) = (of("one"), of("two"));
        let shown = marked(Some(&before), &now);
        let shown: Vec<String> = shown.into_iter().map(|(sign, line)| format!("{sign}{line}")).collect();
        assert_eq!(shown, ["-a: one", " d", "+a: two"]);
    }
}
