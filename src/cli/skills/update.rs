//! `crawfish skills update [name]`: brings what was installed again and shows what is new before it replaces it. Nothing is
//! ever updated by itself.

use std::path::Path;

use clap::Args;

use super::install::{How, Shop, say};
use crate::{
    cli::{exit::Exit, show},
    config::Env,
    lang,
    skills::{
        pinned::{self, Lock, Origin, State},
        source::{self, Source},
    },
    terminal,
};

/// Updates installed skills. 更新已安装的技能。
#[derive(Debug, Args)]
pub struct Update {
    /// Which; all when none is named. 不写则检查全部。
    name: Option<String>,
    #[command(flatten)]
    how: How,
}

impl Update {
    /// Runs it; needs no gateway.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Shop::through(config, env, &self.how, async |shop| {
            let lang = shop.lang;
            let mut all = shop.installed.list();
            if let Some(name) = &self.name {
                all.retain(|(folder, _)| folder == name);
                if all.is_empty() {
                    return Err(say(lang::install_not_installed(lang, name), Exit::NoInput));
                }
            }
            if all.is_empty() {
                show::line(&lang::update_none(lang));
            }
            let lock = Lock::read(shop.installed.dir());
            // One that fails does not keep the others from being updated; the exit code tells of the first.
            let mut end = Ok(());
            for (folder, origin) in all {
                let is_pinned =
                    lock.skills.get(&folder).is_some_and(|line| line.rest.get("pinned") == Some(&true.into()));
                if is_pinned && self.name.is_none() {
                    show::line(&lang::update_pinned(lang, &folder));
                    continue;
                }
                end = end.and(self.one(shop, &folder, &origin).await);
            }
            end
        })
    }

    async fn one(&self, shop: &Shop, folder: &str, origin: &Origin) -> Result<(), Exit> {
        let lang = shop.lang;
        let place = shop.installed.place(folder);
        if pinned::state(&place) == State::Changed && !self.how.force {
            return Err(say(lang::update_changed(lang, folder), Exit::Failure));
        }
        let pin = origin.pin.clone().unwrap_or_default();
        let source = match origin.slug.is_empty() {
            // The newest one, whichever was installed.
            false => Ok(Source::Hub { owner: origin.owner_handle.clone(), slug: origin.slug.clone(), version: None }),
            true => source::read(&pin.from, Path::new("/"), None),
        };
        let Ok(source) = source else {
            return Err(say(lang::update_no_source(lang, folder, &pin.from), Exit::Failure));
        };
        let word = if pin.from.is_empty() { origin.slug.clone() } else { pin.from.clone() };
        // From where it came, unless the owner names another hub.
        let registry = Some(origin.registry.as_str()).filter(|address| !address.is_empty() && self.how.hub.is_none());
        let (staged, brought) = shop.bring(&source, pin.path.as_deref(), &word, registry).await?;
        let old = pinned::files(&place).unwrap_or_default();
        if pinned::seal(&old) == pinned::seal(&brought.files) {
            show::line(&lang::update_same(lang, folder));
            return Ok(());
        }
        if !origin.registry.is_empty() && brought.origin.registry != origin.registry {
            show::line(&lang::update_other_hub(lang, folder, &origin.registry, &brought.origin.registry));
        }
        if !self.how.json {
            for (sign, path) in pinned::differences(&pinned::sums(&old), &pinned::sums(&brought.files)) {
                show::line(&format!("{sign} {}", terminal::escape_line(&path)));
            }
        }
        shop.settle(&staged, brought, folder, &self.how).await
    }
}
