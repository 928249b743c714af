//! `crawfish approvals list|show|approve|deny|grants|revoke`: what waits for the owner's word, and what was approved for good.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    exit::Exit,
    reach::{self, Reach},
    show,
};
use crate::{
    approvals::{Always, Approval, Decision, How},
    config::Env,
    inspect::Query,
    lang::{self, Lang},
};

/// What waits for your word. 待批准的操作。
#[derive(Debug, Args)]
pub struct Approvals {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists what waits. 列出。
    List {
        /// Those that are over as well.
        #[arg(long)]
        all: bool,
    },
    /// Shows one, whole. 显示全部内容。
    Show {
        /// Its id.
        id: String,
    },
    /// Says yes. 批准。
    Approve {
        /// Its id.
        id: String,
        /// The same again is not asked for, for the same person.
        #[arg(long)]
        always: bool,
    },
    /// Says no. 拒绝。
    Deny {
        /// Its id.
        id: String,
    },
    /// Lists what was approved for good. 列出已设为“总是”的批准。
    Grants,
    /// Takes one of those back: it is asked for again. 收回。
    Revoke {
        /// Its id.
        id: String,
    },
}

impl Approvals {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Reach::through(config, env, async |reach| self.ask(reach).await)
    }

    async fn ask(&self, reach: &Reach) -> Result<(), Exit> {
        let lang = Lang::current();
        match &self.what {
            What::List { all } => {
                let rows: Vec<Approval> = reach.ask(&Query::Approvals(*all), "approvals").await?;
                if self.json {
                    show::json(&rows);
                } else if rows.is_empty() {
                    show::line(&lang::approval_nothing(lang));
                } else {
                    let rows: Vec<Vec<String>> = rows
                        .iter()
                        .map(|row| {
                            let what = row.what().replace('\n', " ");
                            let (state, until) = (row.state.as_str().to_owned(), show::time(row.expires_at));
                            vec![row.id.clone(), state, until, row.asker.clone(), format!("{} · {what}", row.tool)]
                        })
                        .collect();
                    show::table(&["ID", "STATE", "UNTIL", "FOR", "WHAT"], &rows);
                }
            }
            What::Show { id } => {
                let value = reach.value(&Query::Approval(id.clone())).await?;
                if self.json {
                    show::json(&value["approval"]);
                } else {
                    let row: Approval = reach::read(value["approval"].clone())?;
                    show::line(&row.outcome(lang));
                    show::line(&format!("{} · {} · {}", row.tool, row.asker, row.session));
                    for (name, value) in [("folder", &row.folder), ("program", &row.program)] {
                        if let Some(value) = value {
                            show::line(&format!("{name}: {value}"));
                        }
                    }
                    show::line(&format!("sha256: {}", row.digest));
                    show::line(&row.what());
                }
            }
            What::Approve { id, always } => {
                let decision = if *always { Decision::Always } else { Decision::Once };
                self.decide(reach, id, decision).await?;
            }
            What::Deny { id } => self.decide(reach, id, Decision::Deny).await?,
            What::Grants => {
                let rows: Vec<Always> = reach.ask(&Query::Grants, "grants").await?;
                if self.json {
                    show::json(&rows);
                } else if rows.is_empty() {
                    show::line(&lang::approval_no_grants(lang));
                } else {
                    let rows: Vec<Vec<String>> = rows
                        .iter()
                        .map(|row| {
                            let (since, what) = (show::time(row.created_at), format!("{} · {}", row.tool, row.what()));
                            vec![row.id.clone(), since, row.agent.clone(), row.asker.clone(), what]
                        })
                        .collect();
                    show::table(&["ID", "SINCE", "AGENT", "FOR", "WHAT"], &rows);
                }
            }
            What::Revoke { id } => {
                let value = reach.value(&Query::RevokeGrant { id: id.clone(), how: How::CommandLine }).await?;
                let row: Always = reach::read(value["grant"].clone())?;
                if self.json {
                    show::json(&row);
                } else {
                    show::line(&lang::approval_revoked(lang, &row.id, &row.tool));
                }
            }
        }
        Ok(())
    }

    async fn decide(&self, reach: &Reach, id: &str, decision: Decision) -> Result<(), Exit> {
        let lang = Lang::current();
        let value: Value = reach.value(&Query::Decide { id: id.to_owned(), decision, how: How::CommandLine }).await?;
        let row: Approval = reach::read(value["approval"].clone())?;
        if self.json {
            show::json(&value);
        } else {
            show::line(&row.outcome(lang));
            if decision == Decision::Always && !row.may_always {
                show::line(&lang::approval_not_always(lang, id));
            }
        }
        if value["done"] == true { Ok(()) } else { Err(Exit::NoInput) }
    }
}
