//! Commands that go on after their turn: how many, what they wrote last, how they ended, and how that is told.
//!
//! A job ends with the gateway at the latest. A small file per job (`data/jobs/`) outlives it, so that its session hears of
//! the end even when the gateway did not: the file is made before the command starts and goes when the end is in the queue.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt, fs, io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use channel_api::{Clock, Inbound, Trust};
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncWriteExt as _, process::ChildStdin, sync::Notify, task::JoinSet};
use tokio_util::sync::CancellationToken;
use ulid::Ulid;

use super::{End, Followed, follow, output};
use crate::{
    errand::{Errand, ErrandError, ErrandKind, Errands, Order},
    os::{self, OutputPipe, Started},
    policy::Role,
    secrets::Redactor,
    session::SessionKey,
    tools::{Call, broker::short},
    untrusted,
};

/// The most jobs that run.
pub const MOST_RUNNING: usize = 8;
/// The most jobs that are remembered, ended ones among them.
const MOST_KEPT: usize = 32;
/// What is kept of a job's output: the end of it.
const KEPT: usize = 256 * 1024;
/// How much of the output the report of its end shows.
const REPORTED: usize = 1_500;
/// Reports of reports: a job that was started because one ended, and so on, is told of no more after this many.
const DEEPEST: u8 = 4;
/// Between two tries to put a report into the queue.
const AGAIN: Duration = Duration::from_secs(5);

/// The jobs of a gateway. Cheap to clone; what it holds ends when the last clone goes.
#[derive(Clone, Default)]
pub struct Jobs(Arc<Inner>);

#[derive(Default)]
struct Inner {
    jobs: Mutex<Table>,
    tasks: Mutex<JoinSet<()>>,
    reports: OnceLock<Reports>,
}

#[derive(Default)]
struct Table {
    last: u64,
    jobs: BTreeMap<u64, Arc<Job>>,
}

struct Reports {
    errands: Errands,
    folder: PathBuf,
    redactor: Redactor,
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").field("jobs", &lock(&self.0.jobs).jobs.len()).finish()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One command that goes on by itself.
pub struct Job {
    /// `job-1`.
    pub id: String,
    /// The agent it belongs to.
    pub agent: String,
    /// Its command line, shortened.
    pub command: String,
    /// When it began, by the clock's monotonic time.
    pub began: Duration,
    state: Mutex<State>,
    changed: Notify,
    kill: CancellationToken,
    input: tokio::sync::Mutex<Option<ChildStdin>>,
}

#[derive(Default)]
struct State {
    kept: VecDeque<u8>,
    /// Bytes before `kept`.
    gone: u64,
    /// Up to where it was shown.
    shown: u64,
    ended: Option<String>,
}

/// What outlives the gateway: enough to tell the session.
#[derive(Serialize, Deserialize)]
struct Record {
    id: String,
    command: String,
    session: SessionKey,
    agent: String,
    role: Role,
    depth: u8,
    inbound: Inbound,
    /// By what its processes are known again, once it has started and where it is not confined.
    #[serde(default)]
    trace: Option<os::GroupTrace>,
    /// Something that may be of it runs on.
    #[serde(default)]
    unsure: bool,
}

impl Record {
    fn order(&self, key: &str, text: String) -> Order {
        let inbound = self.inbound.clone();
        Order {
            errand: Errand {
                kind: ErrandKind::Wake,
                id: self.id.clone(),
                model: None,
                parent: None,
                depth: self.depth,
                tick: None,
            },
            platform_id: format!("wake:job:{key}"),
            session: self.session.clone(),
            agent: self.agent.clone(),
            role: self.role,
            sender: inbound.sender,
            conversation: inbound.conversation,
            address: inbound.address,
            text,
            attachments: Vec::new(),
            trust: Trust::Relayed,
            not_before: 0,
        }
    }
}

impl Jobs {
    /// From now on ends are told, and what a gateway before this one left in `folder` is told first. Returns how many those
    /// are: their processes have to be ended.
    pub fn report_to(&self, errands: Errands, folder: PathBuf, redactor: Redactor) -> usize {
        let left = records(&folder);
        let count = left.len();
        if self.0.reports.set(Reports { errands, folder, redactor }).is_err() || count == 0 {
            return 0;
        }
        let jobs = self.clone();
        lock(&self.0.tasks).spawn(async move {
            for (key, record) in left {
                let more = match record.unsure {
                    true => "; some of the processes it started could not be found again and may still run",
                    false => "",
                };
                let text = format!(
                    "[background command {} ended: the gateway was restarted, and it with it; what it did until then stays done{more}]\n\
                     Command: {}",
                    record.id, record.command
                );
                jobs.tell(&key, &record, text).await;
            }
        });
        count
    }

    /// Queues a report and forgets the job's file; tries until it is in.
    async fn tell(&self, key: &str, record: &Record, text: String) {
        let Some(reports) = self.0.reports.get() else { return };
        if record.depth <= DEEPEST {
            loop {
                match reports.errands.give(record.order(key, text.clone())).await {
                    Ok(_) => break,
                    Err(ErrandError::Full) => {
                        tracing::warn!(job = %record.id, "the session's queue is full: the end of a command is not told");
                        break;
                    }
                    Err(error) => {
                        tracing::warn!(job = %record.id, %error, "the end of a command could not be queued yet");
                        reports.errands.clock.sleep(AGAIN).await;
                    }
                }
            }
        }
        let _ = fs::remove_file(reports.folder.join(format!("{key}.json")));
    }

    /// Whether one more may run.
    pub fn has_room(&self) -> bool {
        lock(&self.0.jobs).jobs.values().filter(|job| job.ended().is_none()).count() < MOST_RUNNING
    }

    /// Writes down that a job is about to start; the key of its file.
    ///
    /// # Errors
    /// Those of the file system: the job must not start then.
    pub fn announce(&self, call: &Call, command: &str) -> io::Result<(u64, String)> {
        let n = {
            let mut table = lock(&self.0.jobs);
            table.last += 1;
            table.last
        };
        let key = Ulid::generate().to_string();
        if let Some(reports) = self.0.reports.get() {
            os::create_private_dir(&reports.folder)?;
            let record = record(n, call, command, &reports.redactor);
            let bytes = serde_json::to_vec(&record).map_err(io::Error::other)?;
            os::write_private(&reports.folder.join(format!("{key}.json")), &bytes)?;
        }
        Ok((n, key))
    }

    /// Writes anew what is known of a job; without it less is known of it after a kill.
    fn write(&self, key: &str, record: &Record) {
        let Some(reports) = self.0.reports.get() else { return };
        let written = serde_json::to_vec(record).map_err(io::Error::other);
        let path = reports.folder.join(format!("{key}.json"));
        if let Err(error) = written.and_then(|bytes| os::write_private(&path, &bytes)) {
            tracing::warn!(job = %record.id, %error, "the processes of a command could not be written down");
        }
    }

    /// The command did not start after all.
    pub fn withdraw(&self, key: &str) {
        if let Some(reports) = self.0.reports.get() {
            let _ = fs::remove_file(reports.folder.join(format!("{key}.json")));
        }
    }

    /// Follows a started command to its end.
    #[expect(clippy::too_many_arguments, reason = "each is a part of the one job that begins here")]
    pub fn add(
        &self,
        (n, key): (u64, String),
        call: &Call,
        command: &str,
        started: Started,
        pipes: Vec<OutputPipe>,
        input: Option<ChildStdin>,
        most: Duration,
        clock: &Arc<dyn Clock>,
        redactor: &Redactor,
    ) -> Arc<Job> {
        let record = Record { trace: started.trace(), ..record(n, call, command, redactor) };
        let job = Arc::new(Job {
            id: record.id.clone(),
            agent: record.agent.clone(),
            command: record.command.clone(),
            began: clock.monotonic(),
            state: Mutex::default(),
            changed: Notify::new(),
            kill: CancellationToken::new(),
            input: tokio::sync::Mutex::new(input),
        });
        {
            let mut table = lock(&self.0.jobs);
            table.jobs.insert(n, Arc::clone(&job));
            while table.jobs.len() > MOST_KEPT {
                let Some(oldest) = table.jobs.iter().find(|(_, job)| job.ended().is_some()).map(|(n, _)| *n) else {
                    break;
                };
                table.jobs.remove(&oldest);
            }
        }
        if record.trace.is_some() {
            self.write(&key, &record);
        }
        let (jobs, clock, redactor, followed) = (self.clone(), Arc::clone(clock), redactor.clone(), Arc::clone(&job));
        let mut tasks = lock(&self.0.tasks);
        while tasks.try_join_next().is_some() {}
        tasks.spawn(async move {
            let mut take = |bytes: &[u8]| followed.take(bytes);
            let end = follow(started, pipes, most, &followed.kill, &clock, &mut take).await;
            let note = end.as_ref().ok().and_then(|end| end.note.clone());
            let (how, stopped) = match end {
                Ok(Followed { told: crawfish_sandbox::Report { failed: Some(why), .. }, .. }) => {
                    (format!("not run, because it could not be confined: {why}"), false)
                }
                Ok(Followed { end: End::Stopped, .. }) => ("ended because it was told to".to_owned(), true),
                Ok(Followed { end: End::TimedOut, .. }) => {
                    (format!("stopped after {} s, its time limit", most.as_secs()), false)
                }
                Ok(Followed { end: End::Exited(status), took, .. }) => (super::exit_words(status, took), false),
                Err(error) => (format!("lost sight of: {error}"), false),
            };
            followed.input.lock().await.take();
            lock(&followed.state).ended = Some(how.clone());
            followed.changed.notify_waiters();
            // Who ended it knows; everybody else is told.
            if stopped {
                jobs.withdraw(&key);
                return;
            }
            let text = followed.tail(&redactor, REPORTED);
            let text = match text.is_empty() {
                true => "It wrote nothing.".to_owned(),
                false => format!("Its output ends:\n{}", untrusted::block("command", "", &untrusted::defuse(&text))),
            };
            let note = note.map(|note| format!("{note}\n")).unwrap_or_default();
            let text = format!(
                "[background command {} ended: {how}]\nCommand: {}\n{note}{text}",
                followed.id, followed.command
            );
            jobs.tell(&key, &record, text).await;
        });
        job
    }

    /// The jobs of an agent, oldest first.
    pub fn of(&self, agent: &str) -> Vec<Arc<Job>> {
        lock(&self.0.jobs).jobs.values().filter(|job| job.agent == agent).cloned().collect()
    }
}

fn record(n: u64, call: &Call, command: &str, redactor: &Redactor) -> Record {
    Record {
        id: format!("job-{n}"),
        command: short(&redactor.redact(command)),
        session: call.session.clone(),
        agent: call.agent.clone(),
        role: call.asker.role,
        depth: call.errand.as_ref().map_or(0, |errand| errand.depth) + 1,
        inbound: Inbound { attachments: Vec::new(), text: String::new(), ..(*call.inbound).clone() },
        trace: None,
        unsure: false,
    }
}

/// Ends the processes of the jobs that an earlier gateway left in `folder`, those that hid their mark too, and notes where
/// that cannot be said. Asked before anything else of them is ended: it is by their leaders that groups are known.
pub fn end_groups(folder: &Path) {
    for (key, record) in records(folder) {
        let Some(left) = record.trace.as_ref().map(os::GroupTrace::end) else { continue };
        let (path, record) =
            (folder.join(format!("{key}.json")), Record { unsure: left == os::Leftover::Unsure, ..record });
        if record.unsure
            && let Ok(bytes) = serde_json::to_vec(&record)
            && let Err(error) = os::write_private(&path, &bytes)
        {
            tracing::warn!(job = %record.id, %error, "what may be left of a command could not be written down");
        }
    }
}

/// What an earlier gateway left, with the keys of the files; what cannot be read is removed.
fn records(folder: &Path) -> Vec<(String, Record)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let key = path.file_stem().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        let read = fs::read(&path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        match read {
            Some(record) if path.extension().is_some_and(|ending| ending == "json") => found.push((key, record)),
            _ => drop(fs::remove_file(&path)),
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

impl Job {
    /// How it ended; `None` = it runs.
    pub fn ended(&self) -> Option<String> {
        lock(&self.state).ended.clone()
    }

    /// Ends it, with all that it started.
    pub fn kill(&self) {
        self.kill.cancel();
    }

    /// Waits until it has ended.
    pub async fn until_ended(&self) {
        loop {
            let changed = self.changed.notified();
            if self.ended().is_some() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until there is something that [`Job::news`] has not shown, or it has ended.
    pub async fn until_news(&self) {
        loop {
            let changed = self.changed.notified();
            {
                let state = lock(&self.state);
                if state.ended.is_some() || state.gone + state.kept.len() as u64 > state.shown {
                    return;
                }
            }
            changed.await;
        }
    }

    /// Types into it; `close` ends its input.
    ///
    /// # Errors
    /// Why it takes nothing more.
    pub async fn write(&self, text: &str, close: bool) -> Result<(), &'static str> {
        let mut input = self.input.lock().await;
        let Some(pipe) = input.as_mut() else { return Err("its input is closed") };
        let written = async {
            pipe.write_all(text.as_bytes()).await?;
            pipe.flush().await
        };
        let failed = written.await.is_err();
        if close || failed {
            input.take();
        }
        if failed { Err("it reads no input any more") } else { Ok(()) }
    }

    fn take(&self, bytes: &[u8]) {
        let mut state = lock(&self.state);
        let bytes = &bytes[bytes.len().saturating_sub(KEPT)..];
        state.kept.extend(bytes);
        let over = state.kept.len().saturating_sub(KEPT);
        state.kept.drain(..over);
        state.gone += over as u64;
        drop(state);
        self.changed.notify_waiters();
    }

    /// What it wrote since the last time, without secrets. The last line comes again when it was not whole, so that a secret
    /// in it is never cut in two.
    pub fn news(&self, redactor: &Redactor) -> String {
        let mut state = lock(&self.state);
        let from = state.shown.max(state.gone);
        let skip = usize::try_from(from - state.gone).unwrap_or(usize::MAX).min(state.kept.len());
        let cut = from > state.shown;
        let bytes: Vec<u8> = state.kept.iter().skip(skip).copied().collect();
        let whole = match state.ended.is_some() {
            true => bytes.len(),
            false => bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        };
        state.shown = from + whole as u64;
        drop(state);
        shown(&bytes, cut, redactor)
    }

    /// All that is kept.
    pub fn log(&self, redactor: &Redactor) -> String {
        let state = lock(&self.state);
        let bytes: Vec<u8> = state.kept.iter().copied().collect();
        let cut = state.gone > 0;
        drop(state);
        shown(&bytes, cut, redactor)
    }

    /// The end of the output, in at most so many characters.
    fn tail(&self, redactor: &Redactor, chars: usize) -> String {
        let log = self.log(redactor);
        let skip = log.chars().count().saturating_sub(chars);
        log.chars().skip(skip).collect::<String>().trim().to_owned()
    }
}

/// Bytes as text; where their beginning is gone, from the first whole line on.
fn shown(bytes: &[u8], cut: bool, redactor: &Redactor) -> String {
    let text = output::decoded(bytes);
    let text = redactor.redact(&text);
    match text.find('\n').filter(|_| cut) {
        Some(at) => format!("[… earlier output is gone …]\n{}", &text[at + 1..]),
        None => text.into_owned(),
    }
}
