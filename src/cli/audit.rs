//! `crawfish audit show|verify`: what was done and decided, and whether anybody changed what stands there.

use std::path::Path;

use clap::{Args, Subcommand};
use jiff::{Timestamp, civil::Date, tz::TimeZone};

use super::{
    exit::Exit,
    reach::{self, Reach},
    show,
};
use crate::{
    audit::{self, AuditRow, Broken, Head, Kind},
    config::Env,
    inspect::{MAX_ROWS, Query},
    lang::{self, Lang},
    logs::Reader,
};

/// What was done and decided. 查看和校验审计日志。
#[derive(Debug, Args)]
pub struct Audit {
    #[command(subcommand)]
    what: What,
    /// As JSON.
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Shows it, oldest first. 显示。
    Show {
        /// From this day or moment on: `2026-11-30` or `2026-11-30T08:00:00Z`. 起始时间。
        #[arg(long, value_name = "WHEN")]
        since: Option<String>,
        /// Only these rows: effect, approval, access, grant, config, login, halt. 只看这一类。
        #[arg(long)]
        kind: Option<String>,
    },
    /// Walks the chain and names the first row that does not fit; exit code 65 then. 校验。
    Verify,
}

impl Audit {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let logs = loaded.logs_dir();
        Reach::through(config, env, async |reach| match &self.what {
            What::Show { since, kind } => self.show(reach, since.as_deref(), kind.as_deref()).await,
            What::Verify => self.verify(reach, &logs).await,
        })
    }

    async fn show(&self, reach: &Reach, since: Option<&str>, kind: Option<&str>) -> Result<(), Exit> {
        let lang = Lang::current();
        if let Some(kind) = kind.filter(|kind| Kind::named(kind).is_none()) {
            eprintln!("{}", crate::terminal::escape(&lang::audit_bad_kind(lang, kind)));
            return Err(Exit::Usage);
        }
        let since = match since {
            None => 0,
            Some(text) => moment(text).ok_or_else(|| {
                eprintln!("{}", crate::terminal::escape(&lang::audit_bad_since(lang, text)));
                Exit::Usage
            })?,
        };
        let (mut after, mut any) = (0, false);
        let mut all: Vec<AuditRow> = Vec::new();
        loop {
            let kind = kind.map(str::to_owned);
            let rows: Vec<AuditRow> = reach.ask(&Query::Audit { after, since, kind, limit: MAX_ROWS }, "audit").await?;
            let last = rows.last().map(|row| row.seq);
            any |= !rows.is_empty();
            match self.json {
                true => all.extend(rows),
                false => rows.iter().for_each(|row| show::line(&line(row))),
            }
            match last {
                Some(seq) if seq > after => after = seq,
                _ => break,
            }
        }
        if self.json {
            show::json(&all);
        } else if !any {
            show::line(&lang::cli_nothing(lang));
        }
        Ok(())
    }

    async fn verify(&self, reach: &Reach, logs: &Path) -> Result<(), Exit> {
        // No log file is no fault: then only the head beside the rows tells.
        let lines = Reader::open(logs, LOG_LINES).map(|(lines, _)| lines.join("\n")).unwrap_or_default();
        let heads: Vec<Head> = audit::heads_in(&lines);
        let mut answer = reach.value(&Query::VerifyAudit(heads)).await?;
        let lang = Lang::current();
        let broken: Option<Broken> = reach::read(answer["broken"].take())?;
        let head: Option<Head> = reach::read(answer["head"].take())?;
        if self.json {
            show::json(&serde_json::json!({ "ok": broken.is_none(), "head": head, "broken": broken }));
        }
        match broken {
            None => {
                if let (false, Some(head)) = (self.json, head) {
                    show::line(&lang::audit_holds(lang, head.seq, head.hash));
                }
                Ok(())
            }
            Some(broken) => {
                eprintln!("{}", crate::terminal::escape(&lang::audit_broken(lang, broken.seq, why(lang, &broken.why))));
                Err(Exit::Data)
            }
        }
    }
}

/// The lines of the log files that are looked through for the heads they name.
const LOG_LINES: usize = 1_000_000;

fn why(lang: Lang, why: &str) -> String {
    match why {
        "missing" => lang::audit_missing(lang),
        "unchained" => lang::audit_unchained(lang),
        "head" => lang::audit_head_differs(lang),
        _ => lang::audit_changed(lang),
    }
}

fn line(row: &AuditRow) -> String {
    let detail = crate::terminal::escape_line(&audit::canonical(&row.detail)).into_owned();
    let detail = crate::terminal::cut(&detail, 160);
    format!("{:>6} {} {:<8} {} · {} · {detail}", row.seq, show::time(row.at), row.kind, row.who, row.what)
}

/// A day's beginning here, or a moment, in epoch milliseconds.
fn moment(text: &str) -> Option<i64> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Some(at.as_millisecond());
    }
    let day: Date = text.parse().ok()?;
    Some(day.to_zoned_datetime(TimeZone::system()).ok()?.timestamp().as_millisecond())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_and_moments_are_read_and_nothing_else() {
        assert_eq!(moment("1970-01-01T00:00:01Z"), Some(1000));
        assert!(moment("2026-11-30").is_some());
        assert_eq!(["", "yesterday", "2026-13-01", "12"].map(moment), [None; 4]);
    }
}
