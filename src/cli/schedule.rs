//! `crawfish schedule list|show|add|run|cancel`: reminders and standing work.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    exit::Exit,
    reach::{self, Reach},
    show,
};
use crate::{
    config::Env,
    inspect::{Method, Query, Request},
    lang::{self, Lang},
    schedule::rows::{ScheduleRow, State},
};

/// Reminders and standing work. 提醒和定时任务。
#[derive(Debug, Args)]
pub struct Schedule {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists them, the next one first. 列出。
    List,
    /// Shows one with its coming times. 显示一个。
    Show {
        /// Its id.
        id: String,
    },
    /// Sets one for the owner's chat; the gateway must run. 设置一个。
    Add {
        /// What is to be said or done then.
        text: String,
        /// Once: 2026-12-01T08:00, 08:00, or `in 20m`.
        #[arg(long, conflicts_with_all = ["every", "cron"])]
        at: Option<String>,
        /// Again and again: 2h.
        #[arg(long, conflicts_with = "cron")]
        every: Option<String>,
        /// At the times of a cron expression: `0 8 * * 1-5`.
        #[arg(long)]
        cron: Option<String>,
        /// The time zone, e.g. Asia/Shanghai.
        #[arg(long)]
        tz: Option<String>,
    },
    /// Runs one now, besides its own times. 立即执行。
    Run {
        /// Its id.
        id: String,
    },
    /// Takes one away. 取消。
    Cancel {
        /// Its id.
        id: String,
    },
}

impl Schedule {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Reach::through(config, env, async |reach| self.ask(reach).await)
    }

    async fn ask(&self, reach: &Reach) -> Result<(), Exit> {
        let lang = Lang::current();
        match &self.what {
            What::List => {
                let rows: Vec<ScheduleRow> = reach.ask(&Query::Schedules, "schedules").await?;
                if self.json {
                    show::json(&rows);
                } else if rows.is_empty() {
                    show::line(&lang::schedule_none(lang));
                } else {
                    let rows: Vec<Vec<String>> = rows.iter().map(line).collect();
                    show::table(&["ID", "NEXT", "WHEN", "WHO", "STATE", "WHAT"], &rows);
                }
            }
            What::Show { id } => {
                let answer = reach.value(&Query::Schedule(id.clone())).await?;
                if self.json {
                    show::json(&answer);
                    return Ok(());
                }
                let row: ScheduleRow = reach::read(answer["schedule"].clone())?;
                show::line(&line(&row).join("  "));
                show::line(&row.text);
                for coming in answer["coming"].as_array().into_iter().flatten() {
                    show::line(&format!("  {}", coming.as_str().unwrap_or_default()));
                }
            }
            What::Add { text, at, every, cron, tz } => {
                let Reach::Gateway(client) = reach else {
                    eprintln!("{}", lang::cli_no_gateway(lang));
                    return Err(Exit::Unavailable);
                };
                let request = Request {
                    method: Method::Post,
                    path: vec!["api".to_owned(), "schedules".to_owned()],
                    query: Vec::new(),
                    body: json!({ "text": text, "at": at, "every": every, "cron": cron, "tz": tz }),
                };
                let answer = client.ask(&request).await.map_err(reach::say_client)?;
                if self.json {
                    show::json(&answer);
                } else {
                    let id = answer["schedule"]["id"].as_str().unwrap_or_default();
                    let first = answer["coming"][0].as_str().unwrap_or_default();
                    show::line(&lang::schedule_set(lang, id, first));
                }
            }
            What::Run { id } => self.done(reach, Query::RunSchedule(id.clone()), lang::schedule_runs(lang, id)).await?,
            What::Cancel { id } => {
                self.done(reach, Query::CancelSchedule(id.clone()), lang::schedule_cancelled(lang, id)).await?;
            }
        }
        Ok(())
    }

    async fn done(&self, reach: &Reach, query: Query, said: String) -> Result<(), Exit> {
        let answer = reach.value(&query).await?;
        if self.json {
            show::json(&answer);
        } else {
            show::line(&said);
        }
        Ok(())
    }
}

fn line(row: &ScheduleRow) -> Vec<String> {
    let next = row.coming(1).pop().unwrap_or_else(|| "-".to_owned());
    let state = match (&row.error, row.state) {
        (Some(error), State::Active) => format!("failed {}× ({error})", row.failures),
        (Some(error), state) => format!("{} ({error})", state.as_str()),
        (None, state) => state.as_str().to_owned(),
    };
    vec![row.id.clone(), next, row.when.words(&row.zone()), row.creator.clone(), state, row.title.clone()]
}
