//! `crawfish dlq list|show|retry|drop`: messages that could not be processed.

use std::path::Path;

use channel_api::InboxId;
use clap::{Args, Subcommand};

use super::{
    exit::Exit,
    reach::{self, Reach},
    show,
};
use crate::{
    config::Env,
    inspect::{MAX_ROWS, Query},
    lang::{self, Lang},
    store::{DeadLetter, DeadResolution},
};

/// Messages that could not be processed. 无法处理的消息。
#[derive(Debug, Args)]
pub struct Dlq {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists them, newest first. 列出。
    List {
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Shows one. 显示一条。
    Show {
        /// Its id.
        id: String,
    },
    /// Puts one back into its queue. 重新处理。
    Retry {
        /// Its id.
        id: String,
    },
    /// Lets one go for good. 丢弃。
    Drop {
        /// Its id.
        id: String,
    },
}

impl Dlq {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Reach::through(config, env, async |reach| self.ask(reach).await)
    }

    async fn ask(&self, reach: &Reach) -> Result<(), Exit> {
        let lang = Lang::current();
        match &self.what {
            What::List { limit } => {
                let query = Query::DeadLetters { after: None, limit: (*limit).clamp(1, MAX_ROWS) };
                let dead: Vec<DeadLetter> = reach.ask(&query, "dead_letters").await?;
                if self.json {
                    show::json(&dead);
                } else if dead.is_empty() {
                    show::line(&lang::cli_nothing(lang));
                } else {
                    let rows: Vec<Vec<String>> = dead
                        .iter()
                        .map(|dead| {
                            let text = format!("{} · {}", dead.error, dead.inbound.text);
                            vec![
                                dead.id.to_string(),
                                show::time(dead.received_at),
                                dead.inbound.channel.to_string(),
                                text,
                            ]
                        })
                        .collect();
                    show::table(&["ID", "RECEIVED", "CHANNEL", "WHY · TEXT"], &rows);
                }
            }
            What::Show { id } => {
                let dead = find(reach, id).await?;
                if self.json {
                    show::json(&dead);
                } else {
                    show::line(&format!("{} {} {}", dead.id, show::time(dead.received_at), dead.session));
                    let colon = lang.colon();
                    let inbound = &dead.inbound;
                    show::line(&format!("{} {}{colon}{}", inbound.channel, inbound.sender.id, inbound.text));
                    show::line(&lang::dlq_why(lang, &dead.error, dead.attempts, dead.crashes));
                }
            }
            What::Retry { id } => self.resolve(reach, id, DeadResolution::Retry).await?,
            What::Drop { id } => self.resolve(reach, id, DeadResolution::Drop).await?,
        }
        Ok(())
    }

    async fn resolve(&self, reach: &Reach, id: &str, how: DeadResolution) -> Result<(), Exit> {
        let answer = reach.value(&Query::Resolve { id: InboxId::from(id), how }).await?;
        let lang = Lang::current();
        if self.json {
            show::json(&answer);
        } else {
            show::line(&match how {
                DeadResolution::Retry => lang::dlq_retried(lang, id),
                DeadResolution::Drop => lang::dlq_dropped(lang, id),
            });
        }
        Ok(())
    }
}

async fn find(reach: &Reach, id: &str) -> Result<DeadLetter, Exit> {
    let mut after = None;
    loop {
        let query = Query::DeadLetters { after, limit: MAX_ROWS };
        let page: Vec<DeadLetter> = reach.ask(&query, "dead_letters").await?;
        let last = page.last().map(|row| row.seq);
        if let Some(dead) = page.into_iter().find(|dead| dead.id.as_str() == id) {
            return Ok(dead);
        }
        // A page that does not go on would be asked for again for ever.
        if last.is_none() || last == after {
            return Err(reach::not_found());
        }
        after = last;
    }
}
