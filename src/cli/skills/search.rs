//! `crawfish skills search`: asks the hubs in their order; the first that answers wins.

use std::{path::Path, sync::Arc};

use channel_api::Clock;
use clap::Args;
use serde_json::json;

use super::install::{hubs, say};
use crate::{
    cli::{exit::Exit, reach, show},
    clock::SystemClock,
    config::Env,
    lang::{self, Lang},
    skills::hub::HubError,
};

/// Searches the hubs. 在技能市场中搜索。
#[derive(Debug, Args)]
pub struct Search {
    /// What it should be able to do. 关键词。
    #[arg(required = true, value_name = "WORDS")]
    words: Vec<String>,
    /// Ask this hub alone. 只用这个技能市场。
    #[arg(long)]
    hub: Option<String>,
    /// How many. 最多几条。
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100))]
    limit: u64,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Search {
    /// Runs it; needs no gateway and changes nothing.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let lang = Lang::current();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let hubs = match hubs(&loaded, self.hub.as_deref(), &clock, lang) {
            Ok(hubs) => hubs,
            Err(exit) => return exit,
        };
        let (words, limit) = (self.words.join(" "), usize::try_from(self.limit).unwrap_or(20));
        reach::block_on(async {
            let passed = |hub: &str, error: &HubError| eprintln!("{}", error.text(lang, hub));
            let asked = hubs.first(passed, async |hub, clock| hub.search(&words, limit, clock).await);
            let (found, hub) = match asked.await {
                Ok(answer) => answer,
                Err((_, hub)) if hub.is_empty() => return say(lang::hub_none(lang), Exit::Config),
                Err((error, hub)) => return say(error.text(lang, &hub), Exit::Unavailable),
            };
            if self.json {
                show::json(&json!({ "hub": hub.name, "results": found }));
                return Exit::Ok;
            }
            if found.is_empty() {
                return say(lang::hub_no_hits(lang, &hub.name), Exit::Failure);
            }
            let rows: Vec<Vec<String>> = found
                .iter()
                .map(|hit| {
                    let text = |field: &Option<String>| field.clone().unwrap_or_default();
                    vec![hit.slug.clone(), text(&hit.version), text(&hit.owner_handle), text(&hit.summary)]
                })
                .collect();
            show::table(&["SKILL", "VERSION", "BY", "WHAT IT DOES"], &rows);
            eprintln!("{}", lang::hub_search_hint(lang, &hub.name));
            Exit::Ok
        })
    }
}
