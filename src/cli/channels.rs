//! `crawfish channels list|probe`.

use std::path::Path;

use channel_api::Clock as _;
use clap::{Args, Subcommand};
use serde::{Deserialize, Serialize};
use serde_json::json;

use super::{client::Client, exit::Exit, probe, reach, show};
use crate::{
    clock::SystemClock,
    config::{Env, Loaded, doors},
    inspect::{Method, Request},
    lang::{self, Lang},
    model::failover::Down,
    supervisor,
};

/// Looks at the channels. 查看渠道。
#[derive(Debug, Args)]
pub struct Channels {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Lists the configured ones, and how they are while a gateway runs. 列出已配置的渠道；网关运行时显示其状态。
    List {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Asks the platforms what stands between these accounts and the first answer; takes no messages, works beside a running
    /// gateway. 向平台查询账号还缺什么；不收消息，网关运行时也可用。
    Probe {
        /// Only this one, e.g. `telegram:main`. 只查这一个。
        channel: Option<String>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
}

impl Channels {
    /// Runs it. Without a gateway the configuration alone is told.
    pub fn run(&self, config: Option<&Path>, env: &Env) -> Exit {
        let loaded = match reach::load(config, env) {
            Ok(loaded) => loaded,
            Err(exit) => return exit,
        };
        let json = match &self.what {
            What::List { json } => *json,
            What::Probe { channel, json } => return reach::block_on(look(&loaded, channel.as_deref(), *json)),
        };
        reach::block_on(async {
            let (live, down) = match reach::running(&loaded) {
                Ok(Some(client)) => {
                    let (live, down) = ChannelRow::all(&client).await;
                    (Some(live), down)
                }
                Ok(None) => (None, Vec::new()),
                Err(exit) => return exit,
            };
            let rows = loaded.config.channels.iter().map(|(id, channel)| Row {
                channel: id.to_string(),
                enabled: channel.policy.enabled,
                admits: match doors::gate(&loaded.config, id) {
                    Some(gate) if gate.is_open() => "everyone",
                    Some(gate) if gate.admits_anyone() => "listed",
                    _ => "nobody",
                },
                health: live.iter().flatten().find(|row| row.id == id.as_str()).and_then(|row| row.health.clone()),
            });
            let rows: Vec<Row> = rows.collect();
            if json {
                show::json(&rows);
            } else if rows.is_empty() {
                show::line(&lang::door_channel(Lang::current()));
            } else {
                let now = SystemClock::new().now_ms();
                let lang = Lang::current();
                let cells: Vec<Vec<String>> = rows.iter().map(|row| row.cells(live.is_some(), now, lang)).collect();
                let head = lang::channels_head(lang);
                show::table(&head.split(',').collect::<Vec<_>>(), &cells);
                for down in &down {
                    show::line(&down.line(lang, now));
                }
            }
            Exit::Ok
        })
    }
}

/// Looks at the accounts: 0 when nothing is wrong, else 69.
async fn look(loaded: &Loaded, only: Option<&str>, json: bool) -> Exit {
    let lang = Lang::current();
    let wanted: Vec<_> = loaded
        .config
        .channels
        .iter()
        .filter(|(id, section)| only.map_or(section.policy.enabled, |only| only == id.as_str()))
        .collect();
    if wanted.is_empty() {
        match only {
            Some(only) => eprintln!("{}", crate::terminal::escape(&lang::channels_no_such(lang, only))),
            None => eprintln!("{}", lang::door_channel(lang)),
        }
        return Exit::NoInput;
    }
    let looks = wanted.iter().map(|(id, section)| probe::look(loaded, id, section));
    let found = futures_util::future::join_all(looks).await;
    if json {
        let all = wanted.iter().zip(&found).map(|((id, _), findings)| json!({ "channel": id, "findings": findings }));
        show::json(&all.collect::<Vec<_>>());
    } else {
        for ((id, _), findings) in wanted.iter().zip(&found) {
            show::line(id.as_str());
            for finding in findings {
                show::line(&format!("  {}", probe::lines(finding, lang).replace('\n', "\n  ")));
            }
        }
    }
    if found.iter().any(|findings| probe::is_wrong(findings)) { Exit::Unavailable } else { Exit::Ok }
}

/// One configured channel.
#[derive(Debug, Serialize)]
struct Row {
    channel: String,
    enabled: bool,
    admits: &'static str,
    /// How it is in the gateway that runs.
    health: Option<HealthRow>,
}

impl Row {
    /// Its cells at `now`, for people; `running`: a gateway runs.
    fn cells(&self, running: bool, now: i64, lang: Lang) -> Vec<String> {
        let state = match &self.health {
            Some(HealthRow { connected: Some(true), .. }) => "connected",
            Some(HealthRow { connected: Some(false), .. }) => "waiting",
            Some(health) => health.state.as_str(),
            None if !self.enabled => "off",
            // Not in the gateway that runs: it has not read this section yet.
            None if running => "new",
            None => "on",
        };
        let health = self.health.as_ref();
        let ago = |at: fn(&HealthRow) -> Option<i64>| match health {
            Some(health) => supervisor::ago(lang, now, at(health)),
            None => "-".to_owned(),
        };
        let restarts = health.map_or("-".to_owned(), |health| health.restarts.to_string());
        let why = health.and_then(|health| health.reason.clone().or_else(|| health.waits.clone())).unwrap_or_default();
        let (came, went) = (ago(|health| health.last_in), ago(|health| health.last_out));
        let word = |word: &str| lang::channels_word(lang, word).to_owned();
        vec![word(state), word(self.admits), came, went, restarts, self.channel.clone(), why]
    }
}

/// One row of `GET /api/channels`.
#[derive(Debug, Deserialize)]
pub struct ChannelRow {
    /// `<kind>:<account>`.
    pub id: String,
    /// How it is, once that is known.
    pub health: Option<HealthRow>,
}

/// How a channel is; what an older gateway does not say is missing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct HealthRow {
    /// `running`, `restarting`, `stopped`, …
    pub state: String,
    /// Why it does not run.
    pub reason: Option<String>,
    /// Whether it is connected to its platform, where that is known.
    pub connected: Option<bool>,
    /// Why it is not, or for what it waits.
    pub waits: Option<String>,
    /// Restarts since the start.
    pub restarts: u32,
    /// When the last message came, in epoch milliseconds.
    pub last_in: Option<i64>,
    /// When the last part was sent, in epoch milliseconds.
    pub last_out: Option<i64>,
}

impl ChannelRow {
    /// The channels of a running gateway, and the models that do not answer it; none when it does not say: an older one
    /// knows less.
    pub async fn all(client: &Client) -> (Vec<Self>, Vec<Down>) {
        let path = vec!["api".to_owned(), "channels".to_owned()];
        let request = Request { method: Method::Get, path, query: Vec::new(), body: json!({}) };
        let mut answer = client.ask(&request).await.unwrap_or_default();
        let (rows, down) = (answer["channels"].take(), answer["models_down"].take());
        (serde_json::from_value(rows).unwrap_or_default(), serde_json::from_value(down).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_that_of_the_gateway_that_runs() {
        let row = |enabled, health: Option<HealthRow>| Row {
            channel: "telegram:main".to_owned(),
            enabled,
            admits: "listed",
            health,
        };
        let health = |state: &str, reason: Option<&str>| HealthRow {
            state: state.to_owned(),
            reason: reason.map(str::to_owned),
            ..HealthRow::default()
        };
        let stopped = row(true, Some(health("stopped", Some("401")))).cells(true, 0, Lang::En);
        let never = supervisor::ago(Lang::En, 0, None);
        assert_eq!(stopped, ["stopped", "listed", &never, &never, "0", "telegram:main", "401"]);
        assert_eq!(row(true, Some(health("running", None))).cells(true, 0, Lang::En)[0], "running");
        let waits =
            HealthRow { connected: Some(false), waits: Some("for a client".to_owned()), ..health("running", None) };
        let waits = row(true, Some(waits)).cells(true, 0, Lang::En);
        assert_eq!((waits[0].as_str(), waits[6].as_str()), ("waiting", "for a client"));
        assert_eq!(row(true, None).cells(true, 0, Lang::En)[0], "new");
        assert_eq!(row(true, None).cells(false, 0, Lang::En)[2], "-");
        assert_eq!(row(true, None).cells(false, 0, Lang::En)[0], "on");
        assert_eq!(row(false, None).cells(true, 0, Lang::En)[0], "off");
        let chinese = row(true, Some(health("running", None))).cells(true, 0, Lang::Zh);
        assert_eq!((chinese[0].as_str(), chinese[1].as_str()), ("运行中", "名单内"));
        for lang in [Lang::En, Lang::Zh] {
            assert_eq!(lang::channels_head(lang).split(',').count(), chinese.len());
        }
    }
}
