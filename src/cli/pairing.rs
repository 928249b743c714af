//! `crawfish pairing list|approve|reject|revoke`: who may write because they were let in.

use std::path::Path;

use clap::{Args, Subcommand};
use serde_json::Value;

use super::{
    exit::Exit,
    reach::{self, Decided, Door},
    show,
};
use crate::{
    config::Env,
    intake::pairing::{AccessQuery, Pairings},
    lang::{self, Lang},
    policy::Role,
    store::{PairingRow, Who},
};

/// Lets people in who asked. 批准或拒绝配对请求。
#[derive(Debug, Args)]
pub struct Pairing {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists who waits and who was let in. 列出等待者和已获准者。
    List,
    /// Lets in whoever has this code. 批准。
    Approve {
        /// `<channel> <code>`, or the code alone.
        #[arg(required = true, num_args = 1..=2, value_name = "[CHANNEL] CODE")]
        words: Vec<String>,
        /// What they may: `owner`, `trusted` or `member` (the default, but for the first owner).
        #[arg(long, value_parser = role)]
        role: Option<Role>,
    },
    /// Refuses a request; its sender is not told. 拒绝。
    Reject {
        /// `<channel> <code>`, or the code alone.
        #[arg(required = true, num_args = 1..=2, value_name = "[CHANNEL] CODE")]
        words: Vec<String>,
    },
    /// Takes an approval back. 撤销。
    Revoke {
        /// The channel, e.g. `telegram:main`, or its kind.
        channel: String,
        /// The platform's id of the sender.
        sender: String,
    },
}

fn role(name: &str) -> Result<Role, String> {
    Role::named(name).ok_or_else(|| "owner | trusted | member".to_owned())
}

/// The channel and the code of `[CHANNEL] CODE`.
fn channel_and_code(words: &[String]) -> (Option<String>, String) {
    match words {
        [channel, code] => (Some(channel.clone()), code.clone()),
        words => (None, words.concat()),
    }
}

impl Pairing {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Door::through(config, env, async |door| self.ask(door).await)
    }

    async fn ask(&self, door: &Door) -> Result<(), Exit> {
        let lang = Lang::current();
        match &self.what {
            What::List => {
                let all = pairings(door).await?;
                if self.json {
                    show::json(&all);
                } else {
                    list(&all, lang);
                }
            }
            What::Approve { words, role } => {
                let (scope, code) = channel_and_code(words);
                let query = AccessQuery::Approve { scope, code: code.clone(), role: *role };
                let done = self.decided(door, &query, &code).await?;
                self.show(&done, |done| {
                    let row = &done["approved"];
                    let (who, channel) = (named(row), text(&row["channel"]));
                    match (done["again"] == true, done["first_owner"] == true) {
                        (true, _) => lang::pairing_approved_before(lang, who, channel, text(&row["role"])),
                        (false, true) => lang::pairing_approved_first_owner(lang, who, channel),
                        (false, false) => lang::pairing_approved(lang, who, channel, text(&row["role"])),
                    }
                });
            }
            What::Reject { words } => {
                let (scope, code) = channel_and_code(words);
                let query = AccessQuery::Reject { scope, code: code.clone() };
                let done = self.decided(door, &query, &code).await?;
                self.show(&done, |done| {
                    lang::pairing_rejected(lang, named(&done["rejected"]), text(&done["rejected"]["channel"]))
                });
            }
            What::Revoke { channel, sender } => {
                let query = AccessQuery::Revoke(Who { scope: channel.clone(), sender: sender.clone() });
                match door.decide(&query).await? {
                    Decided::Done(done) => {
                        self.show(&done, |_| lang::pairing_revoked(lang, sender, channel));
                        if !self.json && door.is_listed(channel, sender) {
                            show::line(&lang::pairing_still_listed(lang, sender));
                        }
                    }
                    _ => {
                        eprintln!("{}", crate::terminal::escape(&lang::pairing_nobody_approved(lang, sender, channel)));
                        return Err(Exit::NoInput);
                    }
                }
            }
        }
        Ok(())
    }

    fn show(&self, done: &Value, words: impl Fn(&Value) -> String) {
        if self.json { show::json(done) } else { show::line(&words(done)) }
    }

    /// What was decided about a code; says what waits when there is none.
    async fn decided(&self, door: &Door, query: &AccessQuery, code: &str) -> Result<Value, Exit> {
        match door.decide(query).await? {
            Decided::Done(done) => Ok(done),
            Decided::Locked(minutes) => {
                eprintln!("{}", lang::pairing_locked(Lang::current(), minutes));
                Err(Exit::Unavailable)
            }
            _ => {
                let (lang, waiting) = (Lang::current(), pairings(door).await?.pairings);
                eprintln!("{}", crate::terminal::escape(&lang::pairing_no_such_code(lang, code)));
                if waiting.is_empty() {
                    eprintln!("{}", lang::pairing_ask_anew(lang));
                }
                for row in &waiting {
                    let line = format!("  crawfish pairing approve {} {}   {}", row.channel, row.code, asker(row));
                    eprintln!("{}", crate::terminal::escape(&line));
                }
                Err(Exit::NoInput)
            }
        }
    }
}

async fn pairings(door: &Door) -> Result<Pairings, Exit> {
    match door.decide(&AccessQuery::Pairings).await? {
        Decided::Done(found) => reach::read(found),
        _ => Err(reach::not_found()),
    }
}

fn asker(row: &PairingRow) -> String {
    match &row.name {
        Some(name) => format!("{name} ({})", row.sender),
        None => row.sender.clone(),
    }
}

fn list(all: &Pairings, lang: Lang) {
    if all.pairings.is_empty() {
        show::line(&lang::pairing_none(lang));
    } else {
        let rows: Vec<Vec<String>> = all
            .pairings
            .iter()
            .map(|row| vec![row.code.clone(), row.channel.to_string(), show::time(row.expires_at), asker(row)])
            .collect();
        show::table(&["CODE", "CHANNEL", "GOOD UNTIL", "WAITS"], &rows);
    }
    if !all.approved.is_empty() {
        show::line("");
        let rows: Vec<Vec<String>> = all
            .approved
            .iter()
            .map(|row| {
                let name = row.name.clone().unwrap_or_default();
                vec![
                    row.role.as_str().to_owned(),
                    row.channel.to_string(),
                    row.sender.clone(),
                    show::time(row.created_at),
                    name,
                ]
            })
            .collect();
        show::table(&["ROLE", "CHANNEL", "SENDER", "SINCE", "NAME"], &rows);
    }
    if !all.owner {
        show::line("");
        show::line(&lang::door_owner(lang));
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn named(row: &Value) -> String {
    match row["name"].as_str() {
        Some(name) => format!("{name} ({})", text(&row["sender"])),
        None => text(&row["sender"]).to_owned(),
    }
}
