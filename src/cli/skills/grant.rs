//! `crawfish skills grant <name>`: shows what an installed skill asks for, and records the owner's consent.

use std::{
    io::{self, BufRead as _, Write as _},
    path::Path,
};

use channel_api::Clock as _;
use clap::Args;
use serde_json::json;

use super::check::is_named;
use crate::{
    app,
    cli::{exit::Exit, reach, show},
    clock::SystemClock,
    config::Env,
    lang::{self, Lang},
    skills::{
        Skill, State, Tier,
        grants::{self, Asks},
        shown_path,
    },
};

/// Lets an installed skill have its variables. 授权已安装的技能使用环境变量。
#[derive(Debug, Args)]
pub struct Grant {
    /// The skill's name. 技能名。
    name: String,
    /// Does not ask. 不再询问。
    #[arg(long, short)]
    yes: bool,
    /// As JSON; records nothing without `--yes`. 输出 JSON；不带 --yes 时只显示。
    #[arg(long)]
    json: bool,
}

impl Grant {
    /// Runs it; needs no gateway.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let (skills, lang) = (app::look_at_skills(&loaded), Lang::current());
        // The one that counts, where a name has several.
        let mut named: Vec<&Skill> = skills.list.iter().filter(|skill| is_named(skill, &self.name)).collect();
        named.sort_by_key(|skill| (matches!(skill.state, State::Broken(_)), skill.tier != Tier::Managed));
        let Some(skill) = named.first() else {
            eprintln!("{}", lang::skill_none_named(lang, &self.name));
            return Exit::NoInput;
        };
        if let State::Broken(fault) = &skill.state {
            eprintln!("{}", lang::skill_unusable(lang, &skill.name, fault.text(lang)));
            return Exit::Failure;
        }
        let place = shown_path(&skill.location, loaded.env.home().as_deref());
        if skill.tier != Tier::Managed {
            show::line(&lang::skill_grant_needless(lang, &skill.name, place));
            return Exit::Ok;
        }
        let asks = Asks::of(skill, &skill.text().unwrap_or_default());
        let given = if self.json {
            self.yes
        } else {
            for line in view(&skill.name, &place, &asks, lang) {
                show::line(&line);
            }
            self.yes || confirmed(&lang::skill_grant_question(lang))
        };
        if given {
            let installed = loaded.data_dir().join("skills");
            if let Err(error) = grants::give(&installed, skill, asks.clone(), SystemClock::new().now_ms()) {
                eprintln!("{error}");
                return Exit::Io;
            }
            let detail = json!({ "skill": skill.name, "asks": asks });
            let written = reach::block_on(async {
                reach::granted(&loaded, "skill granted", detail).await.err().unwrap_or(Exit::Ok)
            });
            if written != Exit::Ok {
                return written;
            }
        }
        if self.json {
            show::json(&json!({ "name": skill.name, "path": skill.location, "asks": asks, "granted": given }));
            return Exit::Ok;
        }
        show::line(&if given { lang::skill_granted(lang, &skill.name) } else { lang::skill_not_given(lang) });
        if given { Exit::Ok } else { Exit::Failure }
    }
}

/// What a skill asks for, line by line.
pub fn view(name: &str, place: &str, asks: &Asks, lang: Lang) -> Vec<String> {
    let listed = |list: &[String]| if list.is_empty() { "–".to_owned() } else { list.join(", ") };
    vec![
        lang::skill_grant_asks(lang, name, place),
        lang::skill_grant_env(lang, listed(&asks.env)),
        lang::skill_grant_commands(lang, listed(&asks.commands)),
        lang::skill_grant_hosts(lang, listed(&asks.hosts)),
        lang::skill_grant_limits(lang),
    ]
}

/// Asks on the terminal; only a plain yes is one.
pub fn confirmed(question: &str) -> bool {
    print!("{question}");
    let _ = io::stdout().flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer).is_ok();
    read && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes" | "是" | "好")
}
