//! What `doctor` finds in the work of the last day: what was given up, what failed and why, and how the channels are.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Finding, bad, good};
use crate::{
    cli::{
        channels::{ChannelRow, HealthRow},
        client::Client,
        exit::Exit,
        reach::Reach,
    },
    inspect::{MAX_ROWS, Method, Query, Request},
    intake::turned_away::Place,
    lang::{self, Lang},
    store::{DeadLetter, TurnRow},
    terminal,
};

/// A day, in milliseconds.
const DAY_MS: i64 = 24 * 60 * 60 * 1000;
/// The most causes told.
const CAUSES: usize = 5;
/// The most characters of a cause, which may hold foreign words.
const CAUSE_CHARS: usize = 300;

/// What was given up, and what failed since yesterday; `now` is epoch milliseconds.
///
/// # Errors
/// The exit code when the rows cannot be read; why was said.
pub async fn rows(reach: &Reach, now: i64, lang: Lang) -> Result<Vec<Finding>, Exit> {
    let dead: Vec<DeadLetter> = reach.ask(&Query::DeadLetters { after: None, limit: MAX_ROWS }, "dead_letters").await?;
    let turns = Query::Turns { task: None, session: None, limit: MAX_ROWS };
    let turns: Vec<TurnRow> = reach.ask(&turns, "turns").await?;
    let mut findings = vec![dead_letters(&dead, lang)];
    findings.extend(failures(&turns, now, lang));
    findings.extend(approvals(reach, lang).await);
    Ok(findings)
}

/// What waits for the owner's word, and what was approved for good. A gateway of an earlier version tells neither.
async fn approvals(reach: &Reach, lang: Lang) -> Vec<Finding> {
    let count = async |query: Query, key: &str| {
        let answer = reach.value(&query).await.ok();
        answer.and_then(|answer| answer[key].as_array().map(Vec::len)).unwrap_or(0)
    };
    let waiting = count(Query::Approvals(false), "approvals").await;
    let grants = count(Query::Grants, "grants").await;
    let mut findings = Vec::new();
    if waiting > 0 {
        findings.push(good(lang::doctor_approvals_wait(lang, waiting)));
    }
    if grants > 0 {
        findings.push(good(lang::doctor_approvals_for_good(lang, grants)));
    }
    findings
}

fn dead_letters(dead: &[DeadLetter], lang: Lang) -> Finding {
    let Some(newest) = dead.first() else { return good(lang::doctor_no_dead_letters(lang)) };
    let full = if dead.len() >= MAX_ROWS as usize { "+" } else { "" };
    bad(lang::doctor_dead_letters(lang, format!("{}{full}", dead.len()), shown(&newest.error), &newest.id))
}

/// The failures of the last day by cause, and what a model did that is no failure yet.
fn failures(turns: &[TurnRow], now: i64, lang: Lang) -> Vec<Finding> {
    let recent: Vec<&TurnRow> = turns.iter().filter(|turn| turn.started_at > now - DAY_MS).collect();
    let mut causes: BTreeMap<&str, (usize, &TurnRow)> = BTreeMap::new();
    for turn in recent.iter().filter(|turn| turn.state == "failed") {
        let cause = turn.reason.as_deref().unwrap_or_default();
        causes.entry(cause).and_modify(|(count, _)| *count += 1).or_insert((1, turn));
    }
    let is_order = |cause: &str| [Lang::En, Lang::Zh].iter().any(|lang| cause == lang::turn_order(*lang));
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, (count, _))| std::cmp::Reverse(*count));
    let mut findings: Vec<Finding> = causes
        .into_iter()
        .take(CAUSES)
        .map(|(cause, (count, turn))| match is_order(cause) {
            true => bad(lang::doctor_failed_order(lang, count, &turn.id)),
            false => bad(lang::doctor_failed_turns(lang, count, shown(cause), &turn.id)),
        })
        .collect();
    if findings.is_empty() {
        findings.push(good(lang::doctor_no_failed_turns(lang)));
    }
    let noted = |start: &str| -> Vec<&TurnRow> {
        let has = |turn: &&&TurnRow| turn.notes.iter().any(|note| note.starts_with(start));
        recent.iter().filter(has).copied().collect()
    };
    if let [first, ..] = noted("pseudo-call (")[..] {
        findings.push(bad(lang::doctor_pseudo_calls(lang, noted("pseudo-call (").len(), &first.id)));
    }
    const UNKNOWN: &str = "unknown tool ";
    let unknown = noted(UNKNOWN);
    if let Some(first) = unknown.first() {
        let notes = unknown.iter().flat_map(|turn| &turn.notes);
        let mut names: Vec<&str> = notes.filter_map(|note| note.strip_prefix(UNKNOWN)).collect();
        names.sort_unstable();
        names.dedup();
        names.truncate(CAUSES);
        findings.push(bad(lang::doctor_unknown_tools(lang, unknown.len(), shown(&lang.listed(names)), &first.id)));
    }
    let mended: Vec<_> = noted("the provider refused the message order");
    let mended: Vec<_> = mended.into_iter().filter(|turn| turn.state != "failed").collect();
    if let Some(first) = mended.first() {
        findings.push(good(lang::doctor_order_repaired(lang, mended.len(), &first.id)));
    }
    findings
}

/// A cause on one line, cut.
fn shown(cause: &str) -> String {
    let mut cut: String = cause.chars().take(CAUSE_CHARS).collect();
    if cut.len() < cause.len() {
        cut.push('…');
    }
    terminal::escape_line(&cut).into_owned()
}

/// How the channels of a running gateway are. Its own web chat and terminal are not told: they run with it.
pub async fn channels(client: &Client, now: i64, lang: Lang) -> Vec<Finding> {
    let (channels, down) = ChannelRow::all(client).await;
    let down = down.iter().map(|down| bad(shown(&down.line(lang, now))));
    channels.iter().filter_map(|row| channel(row, lang)).chain(down).collect()
}

fn channel(row: &ChannelRow, lang: Lang) -> Option<Finding> {
    let ChannelRow { id, health } = row;
    let HealthRow { state, reason, connected, waits, .. } = health.as_ref()?;
    if state == "running" && *connected == Some(false) {
        return Some(bad(lang::doctor_channel_waits(lang, id, shown(waits.as_deref().unwrap_or_default()))));
    }
    let Some(reason) = reason else {
        let own = id.starts_with("web:") || id.starts_with("console:");
        return (state == "running" && !own).then(|| good(lang::doctor_channel_runs(lang, id)));
    };
    // The adapter's own words are English, and say the same.
    let with = |known: String| match lang {
        Lang::En => format!("{known} ({})", shown(reason)),
        Lang::Zh => known,
    };
    let why = match id.starts_with("telegram:") {
        true if reason.contains("does not accept the token") => with(lang::doctor_telegram_token(lang)),
        true if reason.contains("another program asks for this bot's messages") => {
            with(lang::doctor_telegram_conflict(lang))
        }
        _ => shown(reason),
    };
    Some(bad(match state.as_str() {
        "restarting" => lang::doctor_channel_restarts(lang, id, why),
        _ => lang::doctor_channel_down(lang, id, why),
    }))
}

/// Where the running gateway turned messages away.
pub async fn turned_away(client: &Client) -> Vec<Place> {
    let rows = listing(client, "doors", "turned_away").await;
    rows.and_then(|rows| serde_json::from_value(rows).ok()).unwrap_or_default()
}

/// A field of `GET /api/<name>`; `None` when the gateway does not say: an older one knows less.
async fn listing(client: &Client, name: &str, field: &str) -> Option<Value> {
    let path = vec!["api".to_owned(), name.to_owned()];
    let request = Request { method: Method::Get, path, query: Vec::new(), body: json!({}) };
    client.ask(&request).await.ok().map(|mut answer| answer[field].take())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{model::Usage, session::SessionKey};

    fn turn(state: &str, reason: Option<&str>, started_at: i64, notes: &[&str]) -> TurnRow {
        TurnRow {
            id: format!("tn_{started_at}").into(),
            session: SessionKey::from("agent:main:main".to_owned()),
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            entry: None,
            received_at: started_at,
            started_at,
            ended_at: None,
            usage: Usage::default(),
            notes: notes.iter().map(|note| (*note).to_owned()).collect(),
        }
    }

    #[test]
    fn failures_of_the_last_day_are_told_by_cause_the_most_frequent_first() {
        let now = 2 * DAY_MS;
        let order = lang::turn_order(Lang::Zh);
        let turns = [
            turn("failed", Some("too \u{1b}[2Jlong"), now - 1, &[]),
            turn("failed", Some(&order), now - 2, &[]),
            turn("failed", Some(&order), now - 3, &[]),
            turn("replied", None, now - 4, &["pseudo-call (markup) of read, corrected"]),
            turn("replied", None, now - 5, &["unknown tool mailer", "unknown tool fax"]),
            turn("replied", None, now - 6, &["the provider refused the message order, the history was rebuilt"]),
            turn("failed", Some("long ago"), now - DAY_MS - 1, &["unknown tool old"]),
        ];
        let found = failures(&turns, now, Lang::En);
        let marks: Vec<bool> = found.iter().map(|(fine, _)| *fine).collect();
        assert_eq!(marks, [false, false, false, false, true], "{found:?}");
        assert!(found[0].1.contains("the order of messages (400") && found[0].1.contains(": 2."), "{found:?}");
        assert!(found[0].1.contains(&format!("crawfish trace tn_{}", now - 2)), "{found:?}");
        assert!(found[1].1.contains("too \\x1b[2Jlong"), "{found:?}");
        assert!(found[2].1.contains("wrote a tool call as text") && found[2].1.contains("tn_"), "{found:?}");
        assert!(found[3].1.contains(": 1 (fax, mailer)"), "{found:?}");
        assert!(found[4].1.contains("repaired history: 1"), "{found:?}");
        assert!(!format!("{found:?}").contains("long ago"), "{found:?}");
        assert_eq!(failures(&[], now, Lang::En), [good(lang::doctor_no_failed_turns(Lang::En))]);
    }

    #[test]
    fn what_to_do_about_a_channel_is_told_and_its_words_are_escaped() {
        let row = |id: &str, state: &str, reason: Option<&str>| ChannelRow {
            id: id.to_owned(),
            health: Some(HealthRow {
                state: state.to_owned(),
                reason: reason.map(str::to_owned),
                ..HealthRow::default()
            }),
        };
        let text = |row: &ChannelRow| channel(row, Lang::En).expect("it is told");
        let token = "Telegram does not accept the token: Unauthorized\u{1b}[2J; get a new one";
        let (fine, told) = text(&row("telegram:main", "stopped", Some(token)));
        assert!(!fine && told.contains("401") && told.contains("/mybots") && told.contains("\\x1b[2J"), "{told}");
        let zh = channel(&row("telegram:main", "stopped", Some(token)), Lang::Zh).expect("it is told").1;
        assert_eq!(zh, lang::doctor_channel_down(Lang::Zh, "telegram:main", lang::doctor_telegram_token(Lang::Zh)));
        let conflict = "another program asks for this bot's messages; stop it";
        let (fine, told) = text(&row("telegram:main", "restarting", Some(conflict)));
        assert!(!fine && told.contains("409") && told.contains("tried again"), "{told}");
        assert_eq!(text(&row("webhook:b", "running", None)), good(lang::doctor_channel_runs(Lang::En, "webhook:b")));
        assert_eq!(channel(&row("web:api", "running", None), Lang::En), None);
        assert_eq!(channel(&row("console:local", "stopped", None), Lang::En), None);
    }
}
