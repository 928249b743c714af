//! Hot reload: looks at the skills' folders when something happens in them, and now and then where the system tells of
//! nothing (network mounts, a program that was installed), and logs what came, went and broke.
//!
//! A turn that runs keeps the skills it began with: what is read here counts from the next turn on.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use channel_api::Clock;
use notify::{Event, EventKind, RecommendedWatcher, RecursiveMode, Watcher as _};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use super::{Shelf, Skill, Skills, State};
use crate::lang::Lang;

/// How long to wait for the rest of what is being copied.
const SETTLE: Duration = Duration::from_millis(250);
/// How often to look when nothing was told.
const POLL: Duration = Duration::from_secs(30);
/// The most folders that are watched; the others are looked at by the poll and before each turn.
const WATCHED: usize = 512;

/// Keeps the shelf up to date until the gateway stops. Where the system has no watchers, the poll is left.
pub async fn run(shelf: Arc<Shelf>, clock: Arc<dyn Clock>, stopping: CancellationToken) {
    let changed = Arc::new(Notify::new());
    let mut watcher = Watch::start(&changed);
    let mut known = shelf.held();
    loop {
        if let Some(watcher) = &mut watcher {
            watcher.follow(&shelf, &known);
        }
        tokio::select! {
            () = stopping.cancelled() => return,
            () = clock.sleep(POLL) => {}
            () = changed.notified() => clock.sleep(SETTLE).await,
        }
        let (looking, now) = (Arc::clone(&shelf), clock.monotonic());
        let Ok(skills) = tokio::task::spawn_blocking(move || looking.look(now)).await else { continue };
        if !Arc::ptr_eq(&skills, &known) {
            log(&known, &skills);
            known = skills;
        }
    }
}

/// The folders that the system tells us of.
struct Watch {
    watcher: RecommendedWatcher,
    followed: BTreeSet<PathBuf>,
}

impl Watch {
    fn start(changed: &Arc<Notify>) -> Option<Self> {
        let changed = Arc::clone(changed);
        let told = move |event: notify::Result<Event>| {
            // Our own reading is told too; an error means that something was missed.
            if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
                changed.notify_one();
            }
        };
        match notify::recommended_watcher(told) {
            Ok(watcher) => Some(Self { watcher, followed: BTreeSet::new() }),
            Err(error) => {
                warn!(%error, "skills folders are not watched; they are looked at every {} s", POLL.as_secs());
                None
            }
        }
    }

    /// Watches the skills' folders, what lies directly in them, and every folder with a SKILL.md.
    fn follow(&mut self, shelf: &Shelf, skills: &Skills) {
        let mut wanted = BTreeSet::new();
        for folder in shelf.folders() {
            let inner = std::fs::read_dir(&folder).into_iter().flatten().flatten().take(WATCHED);
            wanted.extend(
                inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
            );
            wanted.insert(folder);
        }
        wanted.extend(skills.list.iter().filter_map(|skill| skill.location.parent().map(Path::to_owned)));
        self.followed.retain(|path| path.is_dir());
        for path in wanted {
            if self.followed.len() >= WATCHED || self.followed.contains(&path) || !path.is_dir() {
                continue;
            }
            match self.watcher.watch(&path, RecursiveMode::NonRecursive) {
                Ok(()) => drop(self.followed.insert(path)),
                Err(error) => debug!(folder = %path.display(), %error, "a skills folder is not watched"),
            }
        }
    }
}

/// Says of each skill that is new or another than before whether it can be used, and why not; and which are gone.
pub fn log(before: &Skills, now: &Skills) {
    let lang = Lang::current();
    for skill in now.list.iter().filter(|skill| !before.list.contains(skill)) {
        let place = skill.location.display().to_string();
        match &skill.state {
            State::Loaded => info!(skill = %skill.name, place, "skill loaded"),
            State::Off(needs) => {
                let why: Vec<String> = needs.iter().map(|need| need.text(lang)).collect();
                info!(skill = %skill.name, place, why = why.join("; "), "skill off");
            }
            State::Broken(fault) => warn!(skill = %skill.name, place, why = fault.text(lang), "skill not loaded"),
        }
        for warning in &skill.warnings {
            warn!(skill = %skill.name, "{}", warning.text(lang));
        }
    }
    let there = |gone: &Skill| now.list.iter().any(|skill| skill.location == gone.location);
    for skill in before.list.iter().filter(|skill| !there(skill)) {
        info!(skill = %skill.name, "skill gone");
    }
    for problem in now.problems.iter().filter(|problem| !before.problems.contains(problem)) {
        warn!("{}", problem.text(Lang::En));
    }
}
