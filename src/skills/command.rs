//! The commands of skills in a chat: `/weather London`, and `/skill <name> [input]` for every one of them. Pure.
//!
//! Such a message is a row of the queue like every other: it starts a turn that is told whose instructions to follow.
//! What is no skill's command stays a message.

use unicode_normalization::UnicodeNormalization as _;

use super::{Skill, Skills, State};
use crate::lang::{self, Lang};

/// The most words of a skill's name behind `/skill`.
const WORDS: usize = 8;
/// The most skills that `/help` names, and that `/skill` lists.
const NAMED: usize = 20;
const LISTED: usize = 60;

/// What a message asks of the skills.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Asked<'a> {
    /// To use this one.
    Use(&'a Skill),
    /// `/skill` alone: which there are.
    Which,
    /// `/skill` and a name that is none; the name.
    Unknown(&'a str),
    /// `/skill` and one that cannot be used.
    Unusable(&'a Skill),
}

impl Skills {
    /// What a message asks of the skills; `None` when it is no command of theirs.
    pub fn asked<'a>(&'a self, text: &'a str) -> Option<Asked<'a>> {
        let rest = text.trim().strip_prefix(['/', '／'])?;
        let (name, input) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let name = name.split(['@', '＠']).next().unwrap_or(name);
        if name.is_empty() || name.contains(['/', '\\']) {
            return None;
        }
        let folded: String = name.nfkc().flat_map(char::to_lowercase).collect();
        if folded != "skill" && folded != "技能" {
            return self.find(name).filter(|skill| skill.user_invocable).map(Asked::Use);
        }
        let input = input.trim_start();
        if input.is_empty() {
            return Some(Asked::Which);
        }
        // The longest name that fits: names may have spaces.
        let ends = input.char_indices().filter(|(_, c)| c.is_whitespace()).map(|(at, _)| at);
        let mut ends: Vec<usize> = ends.take(WORDS).chain([input.len()]).collect();
        ends.reverse();
        let named = |end: &usize| input[..*end].trim();
        if let Some(skill) = ends.iter().find_map(|end| self.find(named(end)).filter(|skill| skill.user_invocable)) {
            return Some(Asked::Use(skill));
        }
        let idle = |skill: &&Skill| matches!(skill.state, State::Off(_) | State::Broken(_));
        let same = |skill: &&Skill, name: &str| skill.name == name || skill.alias == name;
        let off = ends.iter().find_map(|end| self.list.iter().filter(idle).find(|skill| same(skill, named(end))));
        Some(off.map_or(Asked::Unknown(named(ends.last().unwrap_or(&0))), Asked::Unusable))
    }

    /// The line of `/help` that names the skills' commands; `None` when there are none.
    pub fn help(&self, lang: Lang) -> Option<String> {
        let mut names: Vec<String> = self.commands().take(NAMED + 1).map(|(alias, _)| format!("/{alias}")).collect();
        if names.len() > NAMED {
            names[NAMED] = "…".to_owned();
        }
        (!names.is_empty()).then(|| lang::help_skills(lang, names.join(" ")))
    }

    /// The answer to `/skill` alone.
    pub fn listed(&self, lang: Lang) -> String {
        let mut lines: Vec<String> = self
            .commands()
            .take(LISTED)
            .map(|(alias, about)| format!("/{alias} – {}", about.split_whitespace().collect::<Vec<_>>().join(" ")))
            .collect();
        if lines.is_empty() {
            return lang::skill_list_empty(lang);
        }
        lines.insert(0, lang::skill_list(lang));
        lines.join("\n")
    }

    /// The gateway's own answer to what a message asks; `None` when a turn answers it.
    pub fn answer(&self, asked: Asked<'_>, lang: Lang) -> Option<String> {
        match asked {
            Asked::Use(_) => None,
            Asked::Which => Some(self.listed(lang)),
            Asked::Unknown(name) => {
                let name: String = name.chars().filter(|c| !c.is_control()).take(40).collect();
                Some(format!("{}\n{}", lang::skill_unknown(lang, name), self.listed(lang)))
            }
            Asked::Unusable(skill) => {
                let why = match &skill.state {
                    State::Off(needs) => lang.reasons(needs.iter().map(|need| need.text(lang))),
                    State::Broken(fault) => fault.text(lang),
                    State::Loaded => String::new(),
                };
                Some(lang::skill_unusable(lang, &skill.name, why))
            }
        }
    }
}

/// What the model is told when a person used a skill's command.
pub fn note(skill: &Skill, location: &str) -> String {
    let name: String = skill.name.chars().filter(|c| !c.is_control() && *c != '"').collect();
    format!(
        "the command in this message asks for the skill \"{name}\": read {location} first and follow it; the words after \
         the command are its input"
    )
}
