//! `crawfish usage`: what models took and cost, from the ledger.

use std::path::Path;

use clap::{Args, ValueEnum};
use jiff::{ToSpan as _, ZonedDateTime, civil::Date};

use super::{exit::Exit, reach::Reach, show};
use crate::{
    config::Env,
    inspect::{MAX_ROWS, Query},
    lang::{self, Lang},
    ledger::{budget::grouped, money::Costs},
    model::Usage as Tokens,
    store::{SpentBy, SpentRow},
};

/// Shows what models took and cost. 查看模型用量和费用。
#[derive(Debug, Args)]
pub struct Usage {
    /// What it is summed by.
    #[arg(long, value_enum, default_value_t = By::Day)]
    by: By,
    /// From when on: today, month, all, a number of days (`7d`), or a day (`2026-11-30`). 起始时间。
    #[arg(long, default_value = "30d")]
    since: String,
    /// At most this many lines.
    #[arg(long, default_value_t = 100)]
    limit: u32,
    /// As JSON, exactly: money is decimal text.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum By {
    Day,
    Model,
    Sender,
    Session,
    Agent,
    Purpose,
    Total,
}

impl Usage {
    /// Runs it.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        Reach::through(config, env, async |reach| self.ask(reach).await)
    }

    async fn ask(&self, reach: &Reach) -> Result<(), Exit> {
        let Some(since) = first_day(&self.since, &now()) else {
            eprintln!("{}", lang::cli_since_form(Lang::current()));
            return Err(Exit::Usage);
        };
        let (by, head) = match self.by {
            By::Day => (SpentBy::Day, "DAY"),
            By::Model => (SpentBy::Model, "MODEL"),
            By::Sender => (SpentBy::Sender, "SENDER"),
            By::Session => (SpentBy::Session, "SESSION"),
            By::Agent => (SpentBy::Agent, "AGENT"),
            By::Purpose => (SpentBy::Purpose, "PURPOSE"),
            By::Total => (SpentBy::Total, "TOTAL"),
        };
        let query = Query::Usage { by, since, limit: self.limit.min(MAX_ROWS) };
        let rows: Vec<SpentRow> = reach.ask(&query, "usage").await?;
        if self.json {
            show::json(&rows);
        } else if rows.is_empty() {
            show::line(&lang::cli_nothing(Lang::current()));
        } else {
            let mut lines: Vec<Vec<String>> = rows.iter().map(line).collect();
            if rows.len() > 1 && rows.len() < self.limit as usize {
                lines.push(line(&total(&rows)));
            }
            show::table(&["CALLS", "IN", "CACHED", "OUT", "COST", head], &lines);
        }
        Ok(())
    }
}

fn now() -> ZonedDateTime {
    use channel_api::Clock as _;
    let now = jiff::Timestamp::from_millisecond(crate::clock::SystemClock::new().now_ms());
    now.unwrap_or(jiff::Timestamp::UNIX_EPOCH).to_zoned_datetime(jiff::tz::TimeZone::system())
}

/// The first day that is meant; `Some(None)` = all of them.
fn first_day(text: &str, now: &ZonedDateTime) -> Option<Option<String>> {
    let today = now.date();
    let day = match text.trim() {
        "all" => return Some(None),
        "today" => today,
        "month" => today.first_of_month(),
        text => match text.strip_suffix('d').and_then(|days| days.parse::<u16>().ok()) {
            Some(days) => today.checked_sub(i64::from(days.max(1) - 1).days()).ok()?,
            None => text.parse::<Date>().ok()?,
        },
    };
    Some(Some(day.to_string()))
}

fn line(row: &SpentRow) -> Vec<String> {
    let Tokens { input, output, cached, estimated, .. } = row.usage;
    let about = if estimated { "≈" } else { "" };
    let cost = if row.costs.is_empty() { "-".to_owned() } else { row.costs.to_string() };
    let key = if row.key.is_empty() { "=".to_owned() } else { row.key.clone() };
    vec![grouped(row.calls), format!("{about}{}", grouped(input)), grouped(cached), grouped(output), cost, key]
}

fn total(rows: &[SpentRow]) -> SpentRow {
    let mut sum = SpentRow { costs: Costs::default(), ..SpentRow::default() };
    for row in rows {
        sum.calls = sum.calls.saturating_add(row.calls);
        sum.usage.add(&row.usage);
        sum.costs.add_all(&row.costs);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_day_is_understood_in_every_form() {
        let now: ZonedDateTime = "2026-12-03T10:00:00[Asia/Shanghai]".parse().expect("a time");
        let day = |text: &str| first_day(text, &now);
        let some = |day: &str| Some(Some(day.to_owned()));
        assert_eq!(day("today"), some("2026-12-03"));
        assert_eq!((day("1d"), day("7d")), (some("2026-12-03"), some("2026-11-27")));
        assert_eq!(day("month"), some("2026-12-01"));
        assert_eq!(day("2026-02-28"), some("2026-02-28"));
        assert_eq!(day("all"), Some(None));
        assert_eq!([day("yesterday"), day("2026-02-30"), day("-3d"), day("")], [None, None, None, None]);
    }
}
