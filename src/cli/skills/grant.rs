//! `crawfish skills grant <name>`: shows what an installed skill asks for and what changed in it, and records the owner's
//! consent for exactly what was shown.

use std::path::{Path, PathBuf};

use channel_api::Clock as _;
use clap::Args;
use serde_json::json;

use super::{
    check::is_named,
    install::{agreed, flags, hold, say, texts},
};
use crate::{
    app,
    cli::{exit::Exit, reach, show},
    clock::SystemClock,
    config::{Env, Loaded},
    lang::{self, Lang},
    skills::{
        Consent, Skill, State, Tier, Unmet, bring,
        grants::{self, Asks, Grants},
        pinned::{self, FileSum},
        shown_path,
        view::{self, View},
    },
    terminal,
};

/// Lets an installed skill have its variables, and takes it as it is now. 授权已安装的技能，并接受其现状。
#[derive(Debug, Args)]
pub struct Grant {
    /// The skill's name. 技能名。
    name: String,
    /// Does not ask, for scripts. 不再询问，供脚本使用。
    #[arg(long, short)]
    yes: bool,
    /// Shows the text of every file. 显示每个文件的内容。
    #[arg(long)]
    full: bool,
    /// As JSON; records nothing without `--yes`. 输出 JSON；不带 --yes 时只显示。
    #[arg(long)]
    json: bool,
}

/// A skill as it is shown, and as the consent will be bound to it.
struct Looked {
    skill: Skill,
    folder: PathBuf,
    asks: Asks,
    files: Vec<FileSum>,
    view: View,
    /// The folder that was installed and is other than it was then, and what is other.
    changed: Option<(PathBuf, Vec<(char, String)>)>,
}

impl Grant {
    /// Runs it; needs no gateway. What is bound is what was shown: the files are hashed before the question.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        self.grant(&loaded).err().unwrap_or(Exit::Ok)
    }

    fn grant(&self, loaded: &Loaded) -> Result<(), Exit> {
        let lang = Lang::current();
        let skill = self.meant(loaded, lang)?;
        let place = shown_path(&skill.location, loaded.env.home().as_deref());
        if skill.tier != Tier::Managed {
            show::line(&lang::skill_grant_needless(lang, &skill.name, place));
            return Ok(());
        }
        // From here on no other command changes what is looked at.
        let installed = hold(loaded, lang)?;
        let looked = self.look(loaded, lang)?;
        let Looked { skill, folder, asks, files, view, changed } = &looked;
        let sums = pinned::sums(files);
        if !self.json {
            self.show(&looked, installed.dir(), &place, lang);
        }
        let is_known = matches!(&skill.consent, Consent::Granted(granted) if granted == asks) && changed.is_none();
        if is_known && !self.json {
            show::line(&lang::skill_grant_already(lang, &skill.name));
            return Ok(());
        }
        let given = match (self.json, self.yes) {
            (_, true) => true,
            (true, false) => false,
            (false, false) => agreed(&lang::skill_grant_question(lang), lang)?,
        };
        if given {
            if let Some((whole, _)) = changed {
                let all = if whole == folder { Ok(files.clone()) } else { pinned::files(whole) };
                let accepted = all.and_then(|files| pinned::accept(whole, &files));
                accepted.map_err(|error| say(error, Exit::Io))?;
            }
            let now = SystemClock::new().now_ms();
            grants::give(installed.dir(), skill, asks.clone(), sums, now).map_err(|error| say(error, Exit::Io))?;
            let accepted = changed.as_ref().map(|(_, changes)| changes);
            let sha256 = pinned::seal(files);
            let detail = json!({ "skill": skill.name, "asks": asks, "sha256": sha256, "accepted": accepted });
            let written = reach::block_on(async {
                reach::granted(loaded, "skill granted", detail).await.err().unwrap_or(Exit::Ok)
            });
            if written != Exit::Ok {
                return Err(written);
            }
        }
        if self.json {
            show::json(&json!({
                "name": skill.name, "path": skill.location, "asks": asks, "sha256": pinned::seal(files),
                "changed": changed.as_ref().map(|(_, changes)| changes), "view": view, "granted": given,
            }));
            return Ok(());
        }
        if !given {
            show::line(&lang::skill_not_given(lang));
            return Err(Exit::Failure);
        }
        if changed.is_some() {
            show::line(&lang::skill_accepted(lang, &skill.name));
        }
        show::line(&lang::skill_granted(lang, &skill.name));
        Ok(())
    }

    /// The skill of that name; the one that counts, where a name has several.
    fn meant(&self, loaded: &Loaded, lang: Lang) -> Result<Skill, Exit> {
        let mut named = app::look_at_skills(loaded).list;
        named.retain(|skill| is_named(skill, &self.name));
        named.sort_by_key(|skill| (matches!(skill.state, State::Broken(_)), skill.tier != Tier::Managed));
        let Some(skill) = named.into_iter().next() else {
            return Err(say(lang::skill_none_named(lang, &self.name), Exit::NoInput));
        };
        match &skill.state {
            State::Broken(fault) => Err(say(lang::skill_unusable(lang, &skill.name, fault.text(lang)), Exit::Failure)),
            _ => Ok(skill),
        }
    }

    /// Looks at everything that is shown, between two looks at the files that must agree.
    fn look(&self, loaded: &Loaded, lang: Lang) -> Result<Looked, Exit> {
        let folder_of = |skill: &Skill| skill.location.parent().map(Path::to_owned).unwrap_or_default();
        let unseen =
            |folder: &Path, why: std::io::Error| say(lang::skill_unseen(lang, folder.display(), why), Exit::Data);
        let folder = folder_of(&self.meant(loaded, lang)?);
        let files = pinned::files(&folder).map_err(|why| unseen(&folder, why))?;
        let skill = self.meant(loaded, lang)?;
        let asks = Asks::of(&skill, &skill.text().unwrap_or_default());
        let view = view::view(&skill, &files, |path| bring::text_of(&folder.join(path)));
        let whole = match &skill.state {
            State::Off(needs) => needs.iter().find_map(|need| match need {
                Unmet::Changed(name) => Some(loaded.data_dir().join("skills").join(name)),
                _ => None,
            }),
            _ => None,
        };
        let changed = match whole {
            Some(whole) => {
                let changes = pinned::changes(&whole).map_err(|why| unseen(&whole, why))?;
                Some((whole, changes))
            }
            None => None,
        };
        if folder_of(&skill) != folder || pinned::files(&folder).ok().as_ref() != Some(&files) {
            return Err(say(lang::skill_grant_moving(lang, &skill.name), Exit::Failure));
        }
        Ok(Looked { skill, folder, asks, files, view, changed })
    }

    fn show(&self, looked: &Looked, installed: &Path, place: &str, lang: Lang) {
        let Looked { skill, folder, asks, files, view, changed } = looked;
        let one = |text: &str| terminal::escape_line(text).into_owned();
        let listed = |list: &[String]| match list.is_empty() {
            true => "–".to_owned(),
            false => lang.listed(list.iter().map(|text| one(text))),
        };
        let changes = |title: String, list: &[(char, String)]| {
            show::line(&title);
            for (sign, path) in list {
                show::line(&format!("    {sign} {}", one(path)));
            }
        };
        show::line(&lang::skill_grant_asks(lang, &skill.name, place));
        let grants = Grants::read(installed);
        let earlier = grants.of(installed, folder);
        match (changed, earlier.filter(|_| matches!(skill.consent, Consent::Changed(_)))) {
            (Some((_, list)), _) if list.is_empty() => show::line(&lang::skill_grant_changed_somewhere(lang)),
            (Some((_, list)), _) => changes(lang::skill_grant_changed(lang), list),
            (None, Some(grant)) => {
                let list = pinned::differences(&grant.files, &pinned::sums(files));
                changes(lang::skill_grant_since(lang), &list);
            }
            (None, None) => {}
        }
        show::line(&lang::skill_grant_env(lang, listed(&asks.env)));
        show::line(&lang::skill_grant_commands(lang, listed(&asks.commands)));
        show::line(&lang::skill_grant_hosts(lang, listed(&asks.hosts)));
        if let Some(grant) = earlier {
            let had = [&grant.asks.env, &grant.asks.commands, &grant.asks.hosts];
            let asked = [&asks.env, &asks.commands, &asks.hosts];
            let news = |(now, before): (&Vec<String>, &Vec<String>)| {
                now.iter().filter(|name| !before.contains(name)).cloned().collect::<Vec<_>>()
            };
            let news: Vec<String> = asked.into_iter().zip(had).flat_map(news).collect();
            if !news.is_empty() {
                show::line(&lang::skill_grant_news(lang, listed(&news)));
            }
        }
        let closed: Vec<String> = view.hosts.iter().filter(|host| !asks.hosts.contains(host)).cloned().collect();
        if !closed.is_empty() {
            show::line(&lang::skill_grant_other_hosts(lang, listed(&closed)));
        }
        flags(view, lang);
        show::line(&lang::skill_grant_files(lang, files.len(), pinned::seal(files)));
        if self.full {
            texts(files, folder);
        }
        show::line(&lang::skill_grant_limits(lang));
    }
}
