//! `crawfish access block|unblock|list`: who is not heard, whatever else says they may write.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::json;

use super::{
    exit::Exit,
    reach::{self, Decided, Door},
    show,
};
use crate::{
    config::Env,
    intake::pairing::AccessQuery,
    lang::{self, Lang},
    store::{BlockedRow, Who},
};

/// Shuts people out. 拉黑或恢复。
#[derive(Debug, Args)]
pub struct Access {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists who is blocked. 列出。
    List,
    /// Blocks a sender and stops what runs for them. 拉黑。
    Block {
        /// `<kind>:<id>` on every account of it, or `<kind>:<account>:<id>`, e.g. `telegram:123456`.
        who: String,
    },
    /// Blocks a sender no longer. 解除拉黑。
    Unblock {
        /// As it was blocked.
        who: String,
    },
}

impl Access {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Door::through(config, env, async |door| self.ask(door).await)
    }

    async fn ask(&self, door: &Door) -> Result<(), Exit> {
        let lang = Lang::current();
        match &self.what {
            What::List => {
                let Decided::Done(mut found) = door.decide(&AccessQuery::Blocked).await? else {
                    return Err(reach::not_found());
                };
                let blocked: Vec<BlockedRow> = reach::read(found["blocked"].take())?;
                if self.json {
                    show::json(&json!({ "blocked": blocked }));
                } else if blocked.is_empty() {
                    show::line(&lang::cli_nothing(lang));
                } else {
                    let row =
                        |row: &BlockedRow| vec![row.scope.clone(), show::time(row.created_at), row.sender.clone()];
                    show::table(&["WHERE", "SINCE", "SENDER"], &blocked.iter().map(row).collect::<Vec<_>>());
                }
            }
            What::Block { who } => {
                let done = match door.decide(&AccessQuery::Block(who.clone())).await? {
                    Decided::Done(done) => done,
                    _ => return Err(bad_who(who)),
                };
                if self.json {
                    show::json(&done);
                } else {
                    let Who { scope, sender } = reach::read(done["blocked"].clone())?;
                    show::line(&lang::cli_blocked(lang, &sender, scope));
                    if done["owner"] == true {
                        show::line(&lang::cli_blocked_owner(lang, sender));
                    }
                }
            }
            What::Unblock { who } => match door.decide(&AccessQuery::Unblock(who.clone())).await? {
                Decided::Done(done) if self.json => show::json(&done),
                Decided::Done(done) => {
                    let Who { scope, sender } = reach::read(done["unblocked"].clone())?;
                    show::line(&lang::cli_unblocked(lang, sender, scope));
                }
                Decided::NoSuch => {
                    eprintln!("{}", crate::terminal::escape(&lang::cli_not_blocked(lang, who)));
                    return Err(Exit::NoInput);
                }
                _ => return Err(bad_who(who)),
            },
        }
        Ok(())
    }
}

fn bad_who(who: &str) -> Exit {
    eprintln!("{}", crate::terminal::escape(&lang::cli_bad_who(Lang::current(), who)));
    Exit::Usage
}
