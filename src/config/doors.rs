//! Doors that a configuration leaves closed, each with the one line that opens it; and those that stand wide open.
//! What `doctor`, the start log and `GET /api/doors` show. Pure.

use channel_api::ChannelId;
use serde::{Deserialize, Serialize};

use super::Config;
use crate::{
    channels,
    http::config::LocalClients,
    intake::{
        access::{ChannelPolicy, Gate},
        pairing::Pairings,
    },
    lang::{self, Lang},
};

/// How the first owner comes in where strangers get a code.
const PAIR_THE_OWNER: &str = "crawfish pairing approve <channel> <code>";

/// One door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// Its name, stable: `model`, `channel`, `owner`, `pairing:<channel>:<sender>`, `senders:<channel>`, …
    pub name: String,
    /// `closed`: something is not possible yet. `wide`: everyone may.
    pub state: DoorState,
    /// What it means, for a person.
    pub text: String,
    /// The line that opens a closed door, or narrows a wide one.
    pub line: String,
}

/// How a door stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DoorState {
    /// Something is not possible yet.
    Closed,
    /// Everyone may, or nothing stands behind it.
    Wide,
}

/// Every door worth knowing of, the most wanted first.
pub fn doors(config: &Config, lang: Lang) -> Vec<Door> {
    let mut doors = Vec::new();
    let mut add = |state, name: &str, text: String, line: &str| {
        doors.push(Door { name: name.to_owned(), state, text, line: line.to_owned() });
    };
    use DoorState::{Closed, Wide};
    if !config.models.contains_key("main") && config.agent.model.is_none() {
        let line =
            "[models.main] provider = \"openai\", base_url = \"https://…/v1\", api_key = \"${…}\", model = \"…\"";
        add(Closed, "model", lang::door_model(lang), line);
    }
    if config.channels.is_empty() {
        let line = "[channels.webhook.bridge] token = \"${BRIDGE_TOKEN}\"";
        add(Closed, "channel", lang::door_channel(lang), line);
    }
    let owned = !config.access.owners.is_empty() || config.channels.values().any(|c| !c.policy.owners.is_empty());
    if !owned && !config.channels.is_empty() {
        let pairs = config
            .channels
            .iter()
            .any(|(id, channel)| channel.policy.enabled && gate_of(config, id, &channel.policy).pairs());
        let line = match pairs {
            true => PAIR_THE_OWNER,
            false => "[access] owners = [\"<kind>:<sender id>\"]",
        };
        add(Closed, "owner", lang::door_owner(lang), line);
    }
    for (id, channel) in &config.channels {
        let section = format!("[channels.{}.{}]", id.kind(), id.account());
        if !channel.policy.enabled {
            add(Closed, &format!("enabled:{id}"), lang::door_disabled(lang, id), &format!("{section} enabled = true"));
            continue;
        }
        let gate = gate_of(config, id, &channel.policy);
        if !gate.admits_anyone() {
            let line = format!("{section} allow_from = [\"<sender id>\"]");
            add(Closed, &format!("senders:{id}"), lang::door_nobody(lang, id), &line);
        } else if gate.is_open() {
            let line = format!("{section} dm_policy = \"allowlist\", allow_from = [\"<sender id>\"]");
            add(Wide, &format!("senders:{id}"), lang::door_wide(lang, id), &line);
        }
        if gate.is_open() && channel.policy.trusted.is_empty() && channel.policy.owners.is_empty() {
            let line = format!("{section} trusted = [\"<sender id>\"]");
            add(Closed, &format!("tools:{id}"), lang::door_tools(lang, id), &line);
        }
    }
    if config.tools.exec.enabled {
        add(Wide, "exec", lang::door_exec_wide(lang), "[tools.exec] enabled = false");
    } else {
        add(Closed, "exec", lang::door_exec(lang), "[tools.exec] enabled = true");
    }
    if config.server.channels_listen.is_empty() {
        add(Closed, "channels_listen", lang::door_listen(lang), "[server] channels_listen = \"0.0.0.0:3003\"");
    }
    let fetched = &config.tools.web_fetch;
    if fetched.enabled && !fetched.allow_hosts.is_empty() {
        let text = lang::door_fetch_hosts(lang, fetched.allow_hosts.join(", "));
        add(Wide, "web_fetch.allow_hosts", text, "[tools.web_fetch] allow_hosts = []");
    }
    if config.server.hosts.is_empty() {
        add(Closed, "hosts", lang::door_hosts(lang), "[server] hosts = [\"bot.example.org\"]");
    }
    match config.server.local_clients {
        LocalClients::Token => {
            add(Closed, "local_clients", lang::door_local(lang), "[server] local_clients = \"open\"");
        }
        LocalClients::Open => {
            add(Wide, "local_clients", lang::door_local_wide(lang), "[server] local_clients = \"token\"");
        }
    }
    doors
}

/// The same doors with what was decided since: no `owner` where a pairing made one, and a `pairing:<channel>:<sender>` for
/// everybody who waits.
pub fn with_access(doors: &[Door], access: &Pairings, lang: Lang) -> Vec<Door> {
    let mut all: Vec<Door> = doors.iter().filter(|door| door.name != "owner" || !access.owner).cloned().collect();
    let after = all.iter().position(|door| door.name == "owner").map_or(0, |at| at + 1);
    let waiting = access.pairings.iter().map(|row| {
        let who = match &row.name {
            Some(name) => format!("{name} ({})", row.sender),
            None => row.sender.clone(),
        };
        Door {
            name: format!("pairing:{}:{}", row.channel, row.sender),
            state: DoorState::Closed,
            text: lang::door_pairing(lang, who, &row.channel),
            line: format!("crawfish pairing approve {} {}", row.channel, row.code),
        }
    });
    all.splice(after..after, waiting);
    all
}

fn gate_of(config: &Config, id: &ChannelId, policy: &ChannelPolicy) -> Gate {
    let owners_own = channels::kind(id.kind()).is_some_and(|kind| kind.owners_own);
    Gate::new(id, policy, &config.access, owners_own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{Env, Parsed},
        store::PairingRow,
    };

    fn names(text: &str) -> Vec<String> {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).expect("written");
        let mut env = Env::default();
        env.insecure_perms = true;
        let loaded = Parsed::read(Some(&file), &env).and_then(Parsed::check).expect("a good configuration");
        doors(&loaded.config, Lang::En).into_iter().map(|door| door.name).collect()
    }

    #[test]
    fn who_waits_and_a_paired_owner_change_the_doors() {
        let door = |name: &str| Door {
            name: name.to_owned(),
            state: DoorState::Closed,
            text: String::new(),
            line: String::new(),
        };
        let doors = [door("model"), door("owner"), door("hosts")];
        let row = PairingRow {
            channel: ChannelId::new("telegram", "main"),
            sender: "42".to_owned(),
            name: Some("Ada".to_owned()),
            code: "ABCD2345".to_owned(),
            lang: Lang::En,
            created_at: 0,
            expires_at: 1,
        };
        let access = Pairings { pairings: vec![row], ..Pairings::default() };
        let found = with_access(&doors, &access, Lang::En);
        let names: Vec<&str> = found.iter().map(|door| door.name.as_str()).collect();
        assert_eq!(names, ["model", "owner", "pairing:telegram:main:42", "hosts"]);
        assert_eq!(found[2].line, "crawfish pairing approve telegram:main ABCD2345");
        assert_eq!(found[2].text, "Ada (42) waits to be let in on telegram:main");
        let owned = Pairings { owner: true, ..Pairings::default() };
        assert_eq!(with_access(&doors, &owned, Lang::En), [door("model"), door("hosts")]);
    }

    #[test]
    fn every_closed_door_is_listed_and_opening_it_takes_it_off() {
        assert_eq!(names(""), ["model", "channel", "exec", "channels_listen", "hosts", "local_clients"]);
        assert!(names("[tools.exec]\nenabled = true\n").contains(&"exec".to_owned()), "on, it stands wide open");
        let webhook = "[channels.webhook.bridge]\ntoken = \"0123456789abcdef0123456789abcdef\"\n";
        let open = names(webhook);
        for door in ["owner", "senders:webhook:bridge", "tools:webhook:bridge"] {
            assert!(open.contains(&door.to_owned()), "{open:?}");
        }
        assert!(!open.contains(&"channel".to_owned()));
        let listed =
            format!("[access]\nowners = [\"webhook:1\"]\n{webhook}allow_from = [\"1\"]\ndm_policy = \"allowlist\"\n");
        assert!(!names(&listed).iter().any(|name| name.contains("webhook") || name == "owner"));
        assert!(!open.contains(&"web_fetch.allow_hosts".to_owned()));
        assert!(
            names("[tools.web_fetch]\nallow_hosts = [\"127.0.0.1:8080\"]")
                .contains(&"web_fetch.allow_hosts".to_owned())
        );
        let closed = names(&format!("{webhook}dm_policy = \"allowlist\"\nallow_from = []\n"));
        assert!(closed.contains(&"senders:webhook:bridge".to_owned()));
    }
}
