//! `crawfish sessions list|show|search|reset|export`.

use std::path::Path;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::Value;

use super::{exit::Exit, reach::Reach, show};
use crate::{
    config::Env,
    inspect::{MAX_ROWS, Query},
    lang::{self, Lang},
    model::Message,
    session::SessionKey,
    store::{MessageRow, SessionRow},
};

/// Looks at conversations. 查看会话。
#[derive(Debug, Args)]
pub struct Sessions {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists them, last active first. 列出会话。
    List {
        /// At most this many.
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Shows what was said in one. 显示一个会话的内容。
    Show {
        /// Its key, e.g. `agent:main:main`.
        key: String,
        /// At most this many messages, the newest.
        #[arg(long, default_value_t = 50)]
        limit: u32,
    },
    /// Finds messages that hold a text. 搜索消息。
    Search {
        /// The text.
        text: String,
        /// At most this many.
        #[arg(long, default_value_t = 20)]
        limit: u32,
    },
    /// Begins a new conversation in it, as `/new` does; nothing is deleted. 重置会话。
    Reset {
        /// Its key.
        key: String,
    },
    /// Writes all of one to standard output. 导出会话。
    Export {
        /// Its key.
        key: String,
        /// The form.
        #[arg(long, value_enum, default_value_t = Form::Jsonl)]
        format: Form,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// One JSON object a line.
    Jsonl,
    /// Markdown.
    Md,
}

impl Sessions {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Reach::through(config, env, async |reach| self.ask(reach).await)
    }

    async fn ask(&self, reach: &Reach) -> Result<(), Exit> {
        match &self.what {
            What::List { limit } => {
                let mut all: Vec<SessionRow> = Vec::new();
                while all.len() < *limit as usize {
                    let after = all.last().map(|row| (row.updated_at, row.key.clone()));
                    let limit = (*limit - all.len() as u32).min(MAX_ROWS);
                    let page: Vec<SessionRow> = reach.ask(&Query::Sessions { after, limit }, "sessions").await?;
                    if page.is_empty() {
                        break;
                    }
                    all.extend(page);
                }
                if self.json {
                    show::json(&all);
                } else if all.is_empty() {
                    show::line(&lang::cli_nothing(Lang::current()));
                } else {
                    let rows: Vec<Vec<String>> = all.iter().map(row).collect();
                    show::table(&["UPDATED", "STATE", "WAITING", "MESSAGES", "TOKENS", "SESSION"], &rows);
                }
            }
            What::Show { key, limit } => {
                let key = SessionKey::from(key.clone());
                let session: SessionRow = reach.ask(&Query::Session(key.clone()), "session").await?;
                let mut messages = all_messages(reach, &key).await?;
                let skip = messages.len().saturating_sub(*limit as usize);
                messages.drain(..skip);
                if self.json {
                    show::json(&serde_json::json!({ "session": session, "messages": messages }));
                } else {
                    show::table(&["UPDATED", "STATE", "WAITING", "MESSAGES", "TOKENS", "SESSION"], &[row(&session)]);
                    messages.iter().for_each(|message| show::line(&text(message, false)));
                }
            }
            What::Search { text: wanted, limit } => {
                let query = Query::Search { text: wanted.clone(), limit: *limit };
                let messages: Vec<MessageRow> = reach.ask(&query, "messages").await?;
                if self.json {
                    show::json(&messages);
                } else if messages.is_empty() {
                    show::line(&lang::cli_nothing(Lang::current()));
                } else {
                    messages.iter().for_each(|message| show::line(&text(message, true)));
                }
            }
            What::Reset { key } => {
                let answer: Value = reach.value(&Query::Reset(SessionKey::from(key.clone()))).await?;
                if self.json {
                    show::json(&answer);
                } else {
                    show::line(&lang::new_session(Lang::current()));
                }
            }
            What::Export { key, format } => {
                let key = SessionKey::from(key.clone());
                let _: SessionRow = reach.ask(&Query::Session(key.clone()), "session").await?;
                for message in all_messages(reach, &key).await? {
                    match format {
                        Form::Jsonl => show::json_line(&message),
                        Form::Md => show::line(&markdown(&message)),
                    }
                }
            }
        }
        Ok(())
    }
}

async fn all_messages(reach: &Reach, key: &SessionKey) -> Result<Vec<MessageRow>, Exit> {
    let mut all: Vec<MessageRow> = Vec::new();
    loop {
        let after = all.last().map_or(0, |row| row.seq);
        let query = Query::Messages { key: key.clone(), after, limit: MAX_ROWS };
        let page: Vec<MessageRow> = reach.ask(&query, "messages").await?;
        // A page that does not go on would be asked for again for ever.
        if page.last().is_none_or(|row| row.seq <= after) {
            return Ok(all);
        }
        all.extend(page);
    }
}

fn row(row: &SessionRow) -> Vec<String> {
    let state = match (row.running, row.parked_until) {
        (true, _) => "running",
        (_, Some(_)) => "parked",
        _ => "idle",
    };
    vec![
        show::time(row.updated_at),
        lang::table_word(Lang::current(), state).to_owned(),
        row.pending.to_string(),
        row.messages.to_string(),
        row.usage.total().to_string(),
        row.key.to_string(),
    ]
}

fn text(row: &MessageRow, with_session: bool) -> String {
    let session = if with_session { format!(" {}", row.session) } else { String::new() };
    let (who, text) = said(&row.message);
    let colon = Lang::current().colon();
    format!("{}{session} {who}{colon}{text}", show::time(row.created_at))
}

fn said(message: &Message) -> (String, String) {
    let word = |word| lang::table_word(Lang::current(), word).to_owned();
    match message {
        Message::User { text, .. } => (word("user"), text.clone()),
        Message::Assistant { text, calls, .. } if calls.is_empty() => (word("assistant"), text.clone()),
        Message::Assistant { text, calls, .. } => {
            let calls: Vec<String> = calls.iter().map(|call| format!("{}({})", call.name, call.arguments)).collect();
            (word("assistant"), format!("{text} → {}", calls.join(", ")).trim_start().to_owned())
        }
        Message::Tool { name, text, .. } => (format!("{} {name}", word("tool")), text.clone()),
    }
}

fn markdown(row: &MessageRow) -> String {
    let (who, text) = said(&row.message);
    format!("**{who}** · {}\n\n{text}\n", show::time(row.created_at))
}
