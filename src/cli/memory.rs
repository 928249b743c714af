//! `crawfish memory search|reindex|quarantine`: the notes, with a running gateway or without.

use std::{io::IsTerminal as _, path::Path, sync::Arc, time::Duration};

use channel_api::Clock;
use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::Value;

use super::{
    exit::Exit,
    reach::{self, Reach},
    show,
};
use crate::{
    app,
    clock::SystemClock,
    config::{Env, Loaded},
    lang::{self, Lang},
    memory::{
        Found, Memories, MemoryError, NoteCount, Progress,
        ask::{AskError, MemoryQuery},
        held::{Held, To, Why},
    },
};

/// Looks into the notes. 记忆与笔记。
#[derive(Debug, Args)]
pub struct Memory {
    #[command(subcommand)]
    what: What,
    /// Whose notes.
    #[arg(long, global = true, default_value = "main")]
    agent: String,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Finds passages, as the owner's direct chat does. 搜索笔记。
    Search {
        /// The question.
        query: String,
        /// At most this many.
        #[arg(long, default_value_t = 6)]
        limit: u32,
    },
    /// Makes the index again from the files. 重建索引。
    Reindex,
    /// What waits for your decision. 待您决定的内容。
    Quarantine {
        #[command(subcommand)]
        what: Waiting,
    },
}

#[derive(Debug, Subcommand)]
enum Waiting {
    /// Lists it, the oldest first. 列出。
    List,
    /// Writes one into the notes of the chat where it was said. 接受。
    Accept {
        /// Its id.
        id: String,
        /// Into your own notes instead. 写入您自己的笔记。
        #[arg(long)]
        mine: bool,
    },
    /// Drops one. 丢弃。
    Drop {
        /// Its id.
        id: String,
    },
}

/// How often a running gateway is asked how far it is.
const LOOK: Duration = Duration::from_millis(300);

/// The way to the notes.
struct Way {
    reach: Reach,
    /// Without a gateway.
    memories: Option<Memories>,
}

impl Memory {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        reach::block_on(async {
            let way = match Way::open(&loaded).await {
                Ok(way) => way,
                Err(exit) => return exit,
            };
            let end = self.ask(&way).await;
            way.reach.close().await;
            end.err().unwrap_or(Exit::Ok)
        })
    }

    async fn ask(&self, way: &Way) -> Result<(), Exit> {
        let (lang, agent) = (Lang::current(), self.agent.clone());
        match &self.what {
            What::Search { query, limit } => {
                let mut value = way.ask(&MemoryQuery::Search { agent, query: query.clone(), limit: *limit }).await?;
                if self.json {
                    show::json(&value["found"]);
                    return Ok(());
                }
                let found: Found = reach::read(value["found"].take())?;
                if found.passages.is_empty() {
                    show::line(&lang::memory_nothing(lang, found.notes));
                }
                for passage in &found.passages {
                    show::line(&format!("{}\nSource: {}\n", passage.text, passage.source()));
                }
                if let Some(why) = &found.without_vectors {
                    eprintln!("{}", lang::memory_without_vectors(lang, why));
                }
            }
            What::Reindex => {
                let query = MemoryQuery::Reindex { agent: agent.clone() };
                let mut value = way.long(&query, &MemoryQuery::Progress { agent }).await?;
                if self.json {
                    show::json(&value["count"]);
                    return Ok(());
                }
                let count: NoteCount = reach::read(value["count"].take())?;
                show::line(&lang::memory_reindexed(lang, count.notes, count.passages));
            }
            What::Quarantine { what: Waiting::List } => {
                let mut value = way.ask(&MemoryQuery::Held { agent }).await?;
                if self.json {
                    show::json(&value["held"]);
                    return Ok(());
                }
                let held: Vec<Held> = reach::read(value["held"].take())?;
                if held.is_empty() {
                    show::line(&lang::cli_nothing(lang));
                    return Ok(());
                }
                let row = |held: &Held| {
                    let who = held.asked.name.as_deref().unwrap_or(&held.asked.sender);
                    let why = match held.asked.why {
                        Why::Member => lang::memory_held_member(lang),
                        Why::Untrusted => lang::memory_held_outside(lang),
                    };
                    let from = format!("{who} ({}:{})", held.asked.channel, held.asked.sender);
                    vec![held.id.clone(), show::time(held.at), from, format!("{why} · {}", held.text)]
                };
                show::table(&["ID", "SAID", "WHO", "WHY · TEXT"], &held.iter().map(row).collect::<Vec<_>>());
            }
            What::Quarantine { what: Waiting::Accept { id, mine } } => {
                let to = if *mine { To::Owner } else { To::Asked };
                let value = way.ask(&MemoryQuery::Accept { agent, id: id.clone(), to }).await?;
                self.done(&value, &lang::memory_accepted(lang, value["note"].as_str().unwrap_or_default()));
            }
            What::Quarantine { what: Waiting::Drop { id } } => {
                let value = way.ask(&MemoryQuery::Drop { agent, id: id.clone() }).await?;
                self.done(&value, &lang::dlq_dropped(lang, id));
            }
        }
        Ok(())
    }

    fn done(&self, value: &Value, line: &str) {
        if self.json {
            show::json(value);
        } else {
            show::line(line);
        }
    }
}

impl Way {
    async fn open(loaded: &Loaded) -> Result<Self, Exit> {
        let reach = Reach::open(loaded).await?;
        let memories = match &reach {
            Reach::Gateway(_) => None,
            Reach::Store { store, .. } => {
                let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
                let ledger = app::open_ledger(loaded, store, &clock);
                Some(app::build_memories(loaded, store, &clock, &ledger).map_err(|error| {
                    eprintln!("{error}");
                    Exit::from(&error)
                })?)
            }
        };
        Ok(Self { reach, memories })
    }

    async fn ask(&self, query: &MemoryQuery) -> Result<Value, Exit> {
        match (&self.reach, &self.memories) {
            (Reach::Gateway(client), _) => client.ask(&query.request()).await.map_err(reach::say_client),
            (Reach::Store { .. }, Some(memories)) => memories.answer(query).await.map_err(|error| match error {
                AskError::NotFound => reach::not_found(),
                AskError::Memory(error) => {
                    eprintln!("{error}");
                    match error {
                        MemoryError::Files(_) => Exit::Io,
                        MemoryError::Store(_) | MemoryError::Stopped => Exit::Unavailable,
                    }
                }
            }),
            (Reach::Store { .. }, None) => Err(Exit::Software),
        }
    }

    /// Asks for something that takes its time, and shows on a terminal how far it is.
    async fn long(&self, query: &MemoryQuery, progress: &MemoryQuery) -> Result<Value, Exit> {
        let bar = ProgressBar::hidden();
        if std::io::stderr().is_terminal()
            && let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len}")
        {
            bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            bar.set_style(style);
        }
        let clock = SystemClock::new();
        let work = self.ask(query);
        tokio::pin!(work);
        let end = loop {
            tokio::select! {
                end = &mut work => break end,
                () = clock.sleep(LOOK) => {}
            }
            if bar.is_hidden() {
                continue;
            }
            // How far it is matters less than that it ends: an answer that does not come changes nothing.
            let asked = match (&self.reach, &self.memories) {
                (Reach::Gateway(client), _) => client.ask(&progress.request()).await.ok(),
                (_, Some(memories)) => memories.answer(progress).await.ok(),
                _ => None,
            };
            if let Some(Progress { done, all }) =
                asked.and_then(|mut value| serde_json::from_value(value["progress"].take()).ok())
            {
                bar.set_length(all);
                bar.set_position(done);
            }
        };
        bar.finish_and_clear();
        end
    }
}
