//! `crawfish skills install`: brings a skill, shows what it will be able to do, asks, and puts it into its place.

use std::{
    io::{IsTerminal as _, Write as _},
    path::Path,
    sync::Arc,
};

use channel_api::Clock;
use clap::Args;
use serde_json::json;

use super::requirements;
use crate::{
    app,
    cli::{exit::Exit, reach, show},
    clock::SystemClock,
    config::{Env, Loaded},
    egress::{Egress, EgressConfig},
    lang::{self, Lang},
    skills::{
        Skills,
        bring::{self, Bringer, Brought, NotBrought, Resembles, resembles},
        grants::Grants,
        hub::{HubError, Hubs},
        installed::{HoldError, Installed, Staged},
        pinned::{self, FileSum, State},
        source::{self, NoSource, Source},
        view::{Odd, View},
    },
    terminal,
};

/// Installs a skill. 安装技能。
#[derive(Debug, Args)]
pub struct Install {
    /// A name at a hub (`weather`, `@owner/weather@1.2.0`), a folder, a .zip, a git address, or the address of a .zip.
    #[arg(value_name = "NAME|FOLDER|ZIP|GIT|URL")]
    word: String,
    /// Which folder of it, when there are several skills. 其中的哪个文件夹。
    #[arg(long)]
    path: Option<String>,
    #[command(flatten)]
    how: How,
}

/// What installing and updating have in common.
#[derive(Debug, Args)]
pub struct How {
    /// Ask this hub alone. 只用这个技能市场。
    #[arg(long)]
    pub(super) hub: Option<String>,
    /// Agree without being asked, for scripts. 不询问，直接同意。
    #[arg(long, short)]
    pub(super) yes: bool,
    /// Also what the hub warns of. 即使技能市场有警告。
    #[arg(long)]
    pub(super) suspicious: bool,
    /// Replace one that was changed here. 覆盖本地改动。
    #[arg(long)]
    pub(super) force: bool,
    /// Show the text of every file. 显示每个文件的内容。
    #[arg(long)]
    pub(super) full: bool,
    /// Install what it needs as well. 同时安装它需要的程序。
    #[arg(long)]
    with_requirements: bool,
    /// As JSON.
    #[arg(long)]
    pub(super) json: bool,
}

impl Install {
    /// Runs it; needs no gateway. A running one finds the skill within seconds.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Shop::through(config, env, &self.how, async |shop| {
            let lang = shop.lang;
            let at = std::env::current_dir().unwrap_or_else(|_| shop.loaded.dir.clone());
            let home = shop.loaded.env.home();
            let source =
                source::read(&self.word, &at, home.as_deref()).map_err(|no| no_source(lang, no, &self.word))?;
            // `update` runs elsewhere: it needs the whole path.
            let word = match &source {
                Source::Folder(path) | Source::Zip(path) => {
                    std::fs::canonicalize(path).unwrap_or_else(|_| path.clone()).display().to_string()
                }
                _ => self.word.clone(),
            };
            let (staged, brought) = shop.bring(&source, self.path.as_deref(), &word, None).await?;
            let place = shop.installed.place(&brought.folder);
            if place.symlink_metadata().is_ok() {
                match pinned::state(&place) {
                    State::NotInstalled => {
                        return Err(say(lang::install_own_folder(lang, place.display()), Exit::Failure));
                    }
                    _ if pinned::seal_of(&place).ok() == Some(pinned::seal(&brought.files)) => {
                        tell(lang::install_already(lang, &brought.folder));
                        return Ok(());
                    }
                    _ if !self.how.force => {
                        return Err(say(lang::install_other(lang, &brought.folder), Exit::Failure));
                    }
                    _ => {}
                }
            }
            let folder = brought.folder.clone();
            shop.settle(&staged, brought, &folder, &self.how).await
        })
    }
}

fn no_source(lang: Lang, no: NoSource, word: &str) -> Exit {
    let (text, exit) = match no {
        NoSource::NotThere => (lang::source_not_there(lang, word), Exit::NoInput),
        NoSource::NotASkill => (lang::source_not_a_skill(lang, word), Exit::Data),
        NoSource::Protocol => (lang::source_protocol(lang, word), Exit::Usage),
        NoSource::Password => (lang::source_password(lang), Exit::Usage),
        NoSource::BadName => (lang::source_bad_name(lang, word), Exit::Usage),
    };
    say(text, exit)
}

/// Everything a command needs that brings skills.
pub struct Shop {
    /// The configuration.
    pub loaded: Loaded,
    /// The folder of installed skills, held.
    pub installed: Installed,
    /// The hubs.
    pub hubs: Hubs,
    /// The skills that are there.
    pub there: Skills,
    /// The language.
    pub lang: Lang,
    egress: Egress,
    clock: Arc<dyn Clock>,
}

impl Shop {
    /// Opens everything, works, and gives the exit code.
    pub fn through(
        config: Option<&Path>,
        env: &Env,
        how: &How,
        work: impl AsyncFnOnce(&Self) -> Result<(), Exit>,
    ) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let shop = match Self::open(loaded, how.hub.as_deref()) {
            Ok(shop) => shop,
            Err(exit) => return exit,
        };
        reach::block_on(async { work(&shop).await.err().unwrap_or(Exit::Ok) })
    }

    fn open(loaded: Loaded, hub: Option<&str>) -> Result<Self, Exit> {
        let lang = Lang::current();
        let installed = hold(&loaded, lang)?;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let hubs = hubs(&loaded, hub, &clock, lang)?;
        let web = &loaded.config.tools.web_fetch;
        let egress = EgressConfig { proxy: loaded.config.skills.hubs.proxy.clone(), ..web.clone() };
        let egress = Egress::new(&egress, |name| loaded.env.get(name).map(str::to_owned), Arc::clone(&clock));
        let there = app::look_at_skills(&loaded);
        Ok(Self { installed, hubs, there, lang, egress, clock, loaded })
    }

    /// Brings a skill into a staging folder; says why when it cannot.
    /// `registry` is the hub that alone is asked.
    pub async fn bring(
        &self,
        source: &Source,
        path: Option<&str>,
        word: &str,
        registry: Option<&str>,
    ) -> Result<(Staged, Brought), Exit> {
        let staged = self.installed.stage().map_err(|error| say(error, Exit::Io))?;
        let bar = indicatif::ProgressBar::no_length();
        let progress = |there: u64, all: Option<u64>| {
            if let Some(all) = all {
                bar.set_length(all);
            }
            bar.set_position(there);
        };
        let variable = |name: &str| self.loaded.env.get(name).map(str::to_owned);
        let bringer = Bringer {
            hubs: &self.hubs,
            egress: &self.egress,
            variable: &variable,
            env: &app::skill_env(&self.loaded),
            clock: self.clock.as_ref(),
            progress: &progress,
            tell: &|text| tell(text),
            lang: self.lang,
            registry,
        };
        let brought = bringer.bring(source, path, word, &staged).await;
        bar.finish_and_clear();
        let brought = brought.map_err(|error| {
            let exit = match &error {
                NotBrought::Hub(HubError::Tampered(_) | HubError::TooLarge, _) => Exit::Data,
                NotBrought::Hub(HubError::NotFound | HubError::Gone | HubError::Blocked, _) => Exit::Failure,
                NotBrought::Hub(..) | NotBrought::Git(_) => Exit::Unavailable,
                NotBrought::Refused(_) | NotBrought::Fault(_) => Exit::Data,
                NotBrought::OtherOwner(_) | NotBrought::NoOwner(..) => Exit::Failure,
                NotBrought::HubGone(_) => Exit::Config,
                NotBrought::Io(_) => Exit::Io,
            };
            say(error.text(self.lang), exit)
        })?;
        Ok((staged, brought))
    }

    /// Shows, asks, and puts the skill into its place under `folder`.
    pub async fn settle(&self, staged: &Staged, mut brought: Brought, folder: &str, how: &How) -> Result<(), Exit> {
        let lang = self.lang;
        let place = self.installed.place(folder);
        match resembles(&brought.skill.name, folder, &self.there, &place) {
            Some(Resembles::LookAlike(other)) => {
                return Err(say(lang::install_look_alike(lang, &brought.skill.name, other), Exit::Data));
            }
            Some(Resembles::Near(other)) => brought.remarks.push(lang::install_near(lang, other)),
            Some(Resembles::Same(path)) => brought.remarks.push(lang::install_same_name(lang, path)),
            None => {}
        }
        let wanted = requirements::wanted(&brought, staged, &place);
        // What was granted the files that lie there now.
        let granted = Grants::read(self.installed.dir());
        let granted = granted.of(self.installed.dir(), &place).filter(|grant| !grant.ended);
        if granted.is_some_and(|grant| grant.files != pinned::sums(&brought.files)) {
            brought.remarks.push(lang::install_ends_grant(lang));
        }
        if !how.json {
            self.show(&brought, &wanted, &place);
            match how.full {
                true => texts(&brought.files, &staged.skill()),
                false => show::line(&lang::view_full(lang)),
            }
        }
        if let Some(why) = &brought.suspicious
            && !how.suspicious
        {
            return Err(say(lang::install_suspicious(lang, why), Exit::Failure));
        }
        if !how.yes && !agreed(&lang::install_ask(lang, &brought.skill.name), lang)? {
            eprintln!("{}", lang::install_left(lang));
            return Err(Exit::Failure);
        }
        let seal = pinned::seal(&brought.files);
        let what = if place.symlink_metadata().is_ok() { "skill updated" } else { "skill installed" };
        let put = self.installed.put(staged, folder, brought.origin.clone(), &brought.files);
        let grant_ended = put.map_err(|error| say(error, Exit::Io))?;
        let detail = json!({
            "skill": brought.skill.name,
            "folder": folder,
            "version": brought.origin.installed_version,
            "from": brought.origin.pin.as_ref().map(|pin| &pin.from),
            "files_sha256": seal,
        });
        reach::granted(&self.loaded, what, detail).await?;
        if how.json {
            show::json(&json!({
                "name": brought.skill.name,
                "folder": place,
                "version": brought.origin.installed_version,
                "from": brought.origin.pin.as_ref().map(|pin| &pin.from),
                "sha256": seal,
                "view": brought.view,
                "remarks": brought.remarks,
                "requirements": wanted,
                "grant_ended": grant_ended,
            }));
        } else {
            show::line(&lang::install_done(lang, &brought.skill.name, place.display()));
            let name = terminal::shell_word(&brought.skill.name);
            if grant_ended {
                show::line(&lang::install_grant_ended(lang, name));
            } else if !brought.skill.declared().is_empty() || !brought.skill.hosts.is_empty() {
                show::line(&lang::install_grant_hint(lang, name));
            }
        }
        requirements::run(&wanted, how.with_requirements, how.yes, self.clock.as_ref(), lang).await
    }

    fn show(&self, brought: &Brought, wanted: &crate::skills::requirements::Wanted, place: &Path) {
        let (lang, view) = (self.lang, &brought.view);
        // Many have no version.
        let version = brought.origin.installed_version.as_deref().filter(|version| !version.is_empty());
        let version = version.map(|version| format!(" {version}")).unwrap_or_default();
        let one = |text: &str| terminal::escape_line(text).into_owned();
        show::line(&lang::view_head(lang, one(&view.name), one(&version), place.display()));
        show::line(&format!("  {}", one(&view.description)));
        if let Some(owner) = &brought.origin.owner_handle {
            show::line(&lang::view_owner(lang, one(owner)));
        }
        show::line(&lang::view_files(lang, view.files.len(), view.files.iter().map(|file| file.size).sum::<u64>()));
        for file in &view.files {
            show::line(&format!("  {:>9}  {}", file.size, one(&file.path)));
        }
        let list = |title: String, items: &[String]| {
            if !items.is_empty() {
                show::line(&format!("{title} {}", lang.listed(items.iter().map(|item| one(item)))));
            }
        };
        list(lang::view_variables(lang), &view.variables);
        list(lang::view_programs(lang), &view.programs);
        list(lang::view_hosts(lang), &view.hosts);
        if let Some(tool) = &view.tool {
            show::line(&lang::view_tool(lang, tool));
        }
        if !view.commands.is_empty() {
            show::line(&lang::view_commands(lang));
            for command in &view.commands {
                show::line(&format!("  {command}"));
            }
            if view.more_commands > 0 {
                show::line(&lang::view_more(lang, view.more_commands));
            }
        }
        requirements::show(wanted, lang);
        flags(view, lang);
        for remark in &brought.remarks {
            show::line(&format!("! {}", one(remark)));
        }
        show::line(&format!("sha256 {}", pinned::seal(&brought.files)));
    }
}

/// The text of every file in a folder, with everything that a terminal would obey or hide written out.
pub fn texts(files: &[FileSum], folder: &Path) {
    for file in files {
        show::line(&format!("──── {}", terminal::escape_line(&file.path)));
        match bring::text_of(&folder.join(&file.path)) {
            Some(text) => text.lines().for_each(|line| show::line(&terminal::escape(line))),
            None => show::line(&format!("({} bytes, sha256 {})", file.size, file.sha256)),
        }
    }
    show::line("────");
}

/// What a person should look at twice.
pub fn flags(view: &View, lang: Lang) {
    for flag in &view.flags {
        let file = terminal::escape_line(&flag.file);
        show::line(&lang::view_flag(lang, odd(lang, flag.what), file, flag.line, terminal::escape_line(&flag.text)));
    }
    if view.more_flags > 0 {
        show::line(&lang::view_more(lang, view.more_flags));
    }
}

fn odd(lang: Lang, odd: Odd) -> String {
    match odd {
        Odd::HiddenLetters => lang::odd_hidden_letters(lang),
        Odd::Direction => lang::odd_direction(lang),
        Odd::ZeroWidth => lang::odd_zero_width(lang),
        Odd::Comment => lang::odd_comment(lang),
        Odd::PipedToShell => lang::odd_piped(lang),
        Odd::Encoded => lang::odd_encoded(lang),
        Odd::Secrets => lang::odd_secrets(lang),
        Odd::Binary => lang::odd_binary(lang),
    }
}

/// Says a sentence and ends so. Words of a hub or a skill in it are shown, never obeyed.
pub fn say(text: impl std::fmt::Display, exit: Exit) -> Exit {
    tell(text);
    exit
}

/// Says a sentence on the side of the output.
pub fn tell(text: impl std::fmt::Display) {
    eprintln!("{}", terminal::escape(&text.to_string()));
}

/// Takes the folder of installed skills.
///
/// # Errors
/// The exit code; why was said.
pub fn hold(loaded: &Loaded, lang: Lang) -> Result<Installed, Exit> {
    Installed::hold(&loaded.data_dir().join("skills")).map_err(|error| match error {
        HoldError::Held => say(lang::install_held(lang), Exit::Running),
        HoldError::Io(why) => say(why, Exit::Io),
    })
}

/// The hubs of the configuration.
///
/// # Errors
/// The exit code; why was said.
pub fn hubs(loaded: &Loaded, only: Option<&str>, clock: &Arc<dyn Clock>, lang: Lang) -> Result<Hubs, Exit> {
    let env = |name: &str| loaded.env.get(name).map(str::to_owned);
    Hubs::new(&loaded.config.skills.hubs, only, env, Arc::clone(clock), lang).map_err(|why| say(why, Exit::Usage))
}

/// Asks for a yes at the terminal; without one nothing is agreed to.
///
/// # Errors
/// [`Exit::Usage`] when there is nobody to ask; that was said.
pub fn agreed(question: &str, lang: Lang) -> Result<bool, Exit> {
    if !std::io::stdin().is_terminal() {
        return Err(say(lang::install_nobody(lang), Exit::Usage));
    }
    eprint!("{} ", terminal::escape(question));
    let _ = std::io::stderr().flush();
    let mut answer = String::new();
    let read = std::io::stdin().read_line(&mut answer);
    Ok(read.is_ok() && matches!(answer.trim().to_lowercase().as_str(), "y" | "yes" | "是" | "好"))
}
