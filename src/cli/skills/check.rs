//! `crawfish skills check`: what is broken, odd or could be better, each with the file and its line.

use std::path::Path;

use clap::Args;
use serde_json::{Value, json};

use super::list;
use crate::{
    app,
    cli::{exit::Exit, reach, show},
    clock::SystemClock,
    config::Env,
    lang::{self, Lang},
    skills::{
        Skill, State,
        lint::{self, Note, Weight},
        shown_path,
    },
    tools::{Registry, skill},
};

/// Looks for what is wrong with the skills. 检查技能。
#[derive(Debug, Args)]
pub struct Check {
    /// These alone; all when none is named. 只检查这些技能。
    names: Vec<String>,
    /// As JSON.
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Runs it; needs no gateway and changes nothing. Exits with 1 when a skill is broken.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let (skills, lang) = (app::look_at_skills(&loaded), Lang::current());
        let clock: std::sync::Arc<dyn channel_api::Clock> = std::sync::Arc::new(SystemClock::new());
        let builtin = Registry::builtin(&app::tool_parts(&loaded, &clock));
        let mut chosen: Vec<&Skill> = skills.list.iter().collect();
        for name in &self.names {
            if !chosen.iter().any(|skill| is_named(skill, name)) {
                eprintln!("{}", lang::skill_none_named(lang, name));
                return Exit::NoInput;
            }
        }
        chosen.retain(|skill| self.names.is_empty() || self.names.iter().any(|name| is_named(skill, name)));
        let looked: Vec<(&Skill, Vec<Note>)> = chosen
            .into_iter()
            .map(|skill| {
                let mut notes = lint::look(skill, skill.text().as_deref(), lang);
                // What only the other tools tell: a name that is taken, a schema that no checker can use.
                let fault = skill::fault(skill, &builtin).map(|fault| fault.text(lang));
                let news = fault.filter(|text| !notes.iter().any(|note| note.text == *text));
                notes.extend(news.map(|text| Note { weight: Weight::Warning, line: None, text }));
                (skill, notes)
            })
            .collect();
        let broken = looked.iter().filter(|(skill, _)| matches!(skill.state, State::Broken(_))).count();
        if self.json {
            show::json(&looked.iter().map(|(skill, notes)| told(skill, notes, lang)).collect::<Vec<_>>());
        } else {
            let home = loaded.env.home();
            for (skill, notes) in &looked {
                for note in notes {
                    let path = shown_path(&skill.location, home.as_deref());
                    let line = note.line.map(|line| format!(":{line}")).unwrap_or_default();
                    show::line(&format!("{path}{line}: {}{}{}", weight(note.weight, lang), lang.colon(), note.text));
                }
            }
            show::line(&match broken {
                0 => lang::skill_check_good(lang, looked.len()),
                _ => lang::skill_check_broken(lang, broken, looked.len()),
            });
        }
        for problem in &skills.problems {
            eprintln!("{}", problem.text(lang));
        }
        if broken == 0 && skills.problems.is_empty() { Exit::Ok } else { Exit::Failure }
    }
}

/// Whether a person means this skill by that name: its name, its alias, or its folder's.
pub fn is_named(skill: &Skill, name: &str) -> bool {
    let folder = skill.location.parent().and_then(Path::file_name);
    skill.name == name || skill.alias == name || folder.is_some_and(|folder| folder == name)
}

fn weight(weight: Weight, lang: Lang) -> String {
    match weight {
        Weight::Broken => lang::skill_weight_broken(lang),
        Weight::Warning => lang::skill_weight_warning(lang),
        Weight::Advice => lang::skill_weight_advice(lang),
    }
}

fn told(skill: &Skill, notes: &[Note], lang: Lang) -> Value {
    let mut row = list::row(skill, lang);
    let note = |note: &Note| json!({ "weight": note.weight.as_str(), "line": note.line, "text": note.text });
    row["notes"] = notes.iter().map(note).collect();
    row
}
