//! Doors that a configuration leaves closed, each with the one line that opens it; and those that stand wide open.
//! What `doctor`, the start log and `GET /api/doors` show. Pure.

use serde::{Deserialize, Serialize};

use super::Config;
use crate::{
    channels,
    http::config::LocalClients,
    intake::access::Gate,
    lang::{self, Lang},
};

/// One door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// Its name, stable: `model`, `channel`, `owner`, `senders:<channel>`, …
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
        add(Closed, "owner", lang::door_owner(lang), "[access] owners = [\"<kind>:<sender id>\"]");
    }
    for (id, channel) in &config.channels {
        let section = format!("[channels.{}.{}]", id.kind(), id.account());
        if !channel.policy.enabled {
            add(Closed, &format!("enabled:{id}"), lang::door_disabled(lang, id), &format!("{section} enabled = true"));
            continue;
        }
        let gate = Gate::new(
            id,
            &channel.policy,
            &config.access,
            channels::kind(id.kind()).is_some_and(|kind| kind.owners_own),
        );
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Env, Parsed};

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
        let closed = names(&format!("{webhook}dm_policy = \"allowlist\"\nallow_from = []\n"));
        assert!(closed.contains(&"senders:webhook:bridge".to_owned()));
    }
}
