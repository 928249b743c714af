//! `crawfish prompt show`: the system prompt as a model gets it, with the size of each section.

use std::{path::Path, sync::Arc};

use channel_api::Clock;
use clap::{Args, Subcommand};
use serde_json::json;

use super::{exit::Exit, reach, show};
use crate::{
    agent::{
        briefing::{Briefing, Need},
        prompt::Mode,
    },
    app,
    clock::SystemClock,
    config::Env,
    lang::{self, Lang},
    policy::{Asker, Holds, Role, Verdict, decide},
};

/// Looks at the system prompt. 查看系统提示词。
#[derive(Debug, Args)]
pub struct Prompt {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Prints it with the size of each section. 显示提示词及各部分大小。
    Show {
        /// For a sender of this role. 以这种角色的人的身份。
        #[arg(long = "as", alias = "role", default_value = "owner")]
        #[arg(value_parser = ["owner", "trusted", "member", "stranger"])]
        role: String,
        /// As it is on this channel.
        #[arg(long, default_value = "web:main")]
        channel: String,
        /// The sizes alone. 只显示大小。
        #[arg(long)]
        sizes: bool,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Prompt {
    /// Runs it; needs no gateway and changes nothing.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let What::Show { role, channel, sizes, json } = &self.what;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let shelf = match app::open_shelf(&loaded, &clock) {
            Ok(shelf) => shelf,
            Err(error) => {
                eprintln!("{error}");
                return Exit::from(&error);
            }
        };
        let role = Role::parse(role);
        let workspace = loaded.path(&loaded.config.agent.workspace);
        let briefing = Briefing::new("main", workspace, shelf, Arc::clone(&clock), loaded.env.home());
        let tools = app::every_tool(&loaded, &briefing.skills(), &clock);
        let (asker, policies) = (Asker { role, direct: true }, loaded.config.tool_policies());
        // What a turn may not use, it does not see: the same decision as its own.
        let on = policies.of(&channel.clone().into(), []);
        let offered = |name: &str, terms| decide(asker, name, terms, Holds::Own, on.iter().copied()) != Verdict::Deny;
        let specs = tools.narrowed(offered).specs();
        let need = Need {
            mode: Mode::Full,
            role,
            memory: role == Role::Owner,
            silent: true,
            channel,
            model: loaded.config.agent.model.as_deref().unwrap_or("main"),
            lang: loaded.config.agent.lang.unwrap_or_else(Lang::current),
        };
        let prompt = briefing.show(&need, &specs);
        let total: usize = prompt.text().len();
        if *json {
            let sections: Vec<_> = prompt
                .sections
                .iter()
                .map(|section| json!({ "name": section.name, "bytes": section.text.len(), "text": section.text }))
                .collect();
            let tools: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
            show::json(&json!({ "bytes": total, "sections": sections, "tools": tools }));
            return Exit::Ok;
        }
        if !sizes {
            show::line(&prompt.text());
            show::line("");
        }
        let mut rows: Vec<Vec<String>> =
            prompt.sizes().map(|(name, bytes)| vec![bytes.to_string(), name.to_owned()]).collect();
        rows.push(vec![total.to_string(), "=".to_owned()]);
        show::table(&["BYTES", "SECTION"], &rows);
        let tools: Vec<&str> = specs.iter().map(|spec| spec.name.as_str()).collect();
        let lang = Lang::current();
        let tools = if tools.is_empty() { lang::doctor_tools_none(lang) } else { lang.listed(tools) };
        show::line(&lang::prompt_tools(lang, role.as_str(), tools));
        Exit::Ok
    }
}
