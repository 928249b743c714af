//! `crawfish heartbeat last`: the last look around of each agent, and why there was none.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{exit::Exit, reach::Reach, show};
use crate::{
    config::Env,
    inspect::Query,
    lang::{self, Lang},
};

/// The regular look around. 心跳。
#[derive(Debug, Args)]
pub struct Heartbeat {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// The last one of each agent: what came of it, or why it did not run. 最近一次的结果，或没有运行的原因。
    Last,
}

impl Heartbeat {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let What::Last = self.what;
        Reach::through(config, env, async |reach| {
            let ticks: Vec<Value> = reach.ask(&Query::Heartbeat, "heartbeat").await?;
            if self.json {
                show::json(&ticks);
            } else if ticks.is_empty() {
                show::line(&lang::heartbeat_none(Lang::current()));
            } else {
                let rows: Vec<Vec<String>> = ticks.iter().map(line).collect();
                show::table(&["AGENT", "AT", "RESULT", "RUN", "SAID"], &rows);
            }
            Ok(())
        })
    }
}

fn line(tick: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let run = &tick["run"];
    let became = match (run["silent"].as_str(), run["error"].as_str()) {
        (Some("heartbeat_ok" | "no_reply"), _) => "ok-token".to_owned(),
        (Some("empty" | "artifact" | "reasoning"), _) => "ok-empty".to_owned(),
        (Some(why), _) => why.to_owned(),
        (None, Some(error)) => format!("failed: {error}"),
        (None, None) => text(&run["state"]),
    };
    let at = tick["at"].as_i64().map(show::time).unwrap_or_default();
    vec![text(&tick["agent"]), at, text(&tick["result"]), became, text(&run["reply"])]
}
