//! `crawfish skills list`: every skill that was found, whether it can be used, and why not.

use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use crate::{
    app,
    cli::{exit::Exit, reach, show},
    config::Env,
    lang::Lang,
    skills::{Consent, Skill, State, Warning, shown_path},
};

/// Lists every skill that was found. 列出所有技能。
#[derive(Debug, Args)]
pub struct List {
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl List {
    /// Runs it; needs no gateway and changes nothing.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let (skills, lang) = (app::look_at_skills(&loaded), Lang::current());
        let home = loaded.env.home();
        if self.json {
            show::json(&skills.list.iter().map(|skill| row(skill, lang)).collect::<Vec<_>>());
        } else {
            let rows: Vec<Vec<String>> = skills
                .list
                .iter()
                .map(|skill| {
                    let about = match &skill.state {
                        State::Loaded => match skill.ungranted(lang) {
                            Some(why) => why,
                            None => shown_path(&skill.location, home.as_deref()),
                        },
                        state => lang.reasons(reasons(state, lang)),
                    };
                    vec![skill.name.clone(), state(skill).to_owned(), skill.tier.as_str().to_owned(), about]
                })
                .collect();
            show::table(&["SKILL", "STATE", "FROM", "WHERE OR WHY"], &rows);
        }
        for skill in &skills.list {
            let is_told = |warning: &&Warning| matches!(warning, Warning::LikeBuiltIn(_));
            for warning in skill.warnings.iter().filter(is_told) {
                eprintln!("{}{}{}", skill.name, lang.colon(), warning.text(lang));
            }
        }
        for problem in &skills.problems {
            eprintln!("{}", problem.text(lang));
        }
        Exit::Ok
    }
}

/// `loaded`, `off` or `broken`.
pub fn state(skill: &Skill) -> &'static str {
    match skill.state {
        State::Loaded => "loaded",
        State::Off(_) => "off",
        State::Broken(_) => "broken",
    }
}

/// `granted`, `missing`, `changed`, or `own` for one that needs no grant.
fn grant(skill: &Skill) -> &'static str {
    match skill.consent {
        Consent::OwnFolder => "own",
        Consent::Granted(_) => "granted",
        Consent::Missing => "missing",
        Consent::Changed(_) => "changed",
    }
}

/// Why a skill cannot be used; empty when it can.
pub fn reasons(state: &State, lang: Lang) -> Vec<String> {
    match state {
        State::Loaded => Vec::new(),
        State::Off(needs) => needs.iter().map(|need| need.text(lang)).collect(),
        State::Broken(fault) => vec![fault.text(lang)],
    }
}

/// A skill for programs.
pub fn row(skill: &Skill, lang: Lang) -> Value {
    json!({
        "name": skill.name,
        "command": format!("/{}", skill.alias),
        "description": skill.description,
        "path": skill.location,
        "from": skill.tier.as_str(),
        "state": state(skill),
        "why": reasons(&skill.state, lang),
        "grant": grant(skill),
        "ungranted": skill.ungranted(lang),
        "warnings": skill.warnings.iter().map(|warning| warning.text(lang)).collect::<Vec<_>>(),
        "user_invocable": skill.user_invocable,
        "model_invocable": skill.model_invocable,
        "sha256": skill.sha256,
    })
}
