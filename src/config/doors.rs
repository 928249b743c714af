//! Doors that a configuration leaves closed, each with the one line that opens it; and those that stand wide open.
//! What `doctor`, the start log and `GET /api/doors` show. Pure.

use channel_api::ChannelId;
use serde::{Deserialize, Serialize};

use super::Config;
use crate::{
    channels,
    confinement::Wanted,
    http::config::LocalClients,
    intake::{
        access::{ChannelPolicy, Gate, GroupConfig},
        pairing::Pairings,
        turned_away::{Place, Why},
    },
    lang::{self, Lang},
    terminal,
    tools::exec::Network,
};

/// How the first owner comes in where strangers get a code.
const PAIR_THE_OWNER: &str = "crawfish pairing approve <channel> <code>";

/// One door.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Door {
    /// Its name, stable: `model`, `channel`, `owner`, `pairing:<channel>:<sender>`, `senders:<channel>`,
    /// `turned_away:<why>:<channel>:<conversation>`, …
    pub name: String,
    /// `closed`: something is not possible yet. `wide`: everyone may.
    pub state: DoorState,
    /// What it means, for a person.
    pub text: String,
    /// The line that opens a closed door, or narrows a wide one. Two lines where there is a choice, or where a whole new
    /// section is to be copied.
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
        let telegram = "[channels.telegram.main] token = \"${TELEGRAM_TOKEN}\"";
        let webhook = "[channels.webhook.bridge] token = \"${BRIDGE_TOKEN}\"";
        add(Closed, "channel", lang::door_channel(lang), &format!("{telegram}\n{webhook}"));
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
        if id.kind() == "telegram" && channel.policy.groups.values().any(follows_the_talk) {
            add(
                Closed,
                &format!("privacy:{id}"),
                lang::door_privacy(lang, id, lang::door_privacy_hint(lang)),
                &lang::door_privacy_line(lang),
            );
        }
        let gate = gate_of(config, id, &channel.policy);
        if !gate.admits_anyone() {
            let line = format!("{section} allow_from = [\"<sender id>\"]");
            add(Closed, &format!("senders:{id}"), lang::door_nobody(lang, id), &line);
        } else if gate.private_is_for_nobody() {
            let line = format!("{section} allow_from = [\"<sender id>\"]");
            add(Closed, &format!("senders:{id}"), lang::door_nobody_privately(lang, id), &line);
        } else if gate.is_open() {
            let line = format!("{section} dm_policy = \"allowlist\", allow_from = [\"<sender id>\"]");
            add(Wide, &format!("senders:{id}"), lang::door_wide(lang, id), &line);
        }
        let callback = channel.settings.get("callback_url").and_then(toml::Value::as_str);
        if id.kind() == "webhook" && callback.is_none_or(|url| url.trim().is_empty()) {
            let line = format!("{section} callback_url = \"https://…\"");
            add(Closed, &format!("callback:{id}"), lang::unheard(lang, id, "callback_url"), &line);
        }
        let owned = config.access.owners.iter().any(|owner| owner.split(':').next() == Some(id.kind()));
        if gate.is_open() && channel.policy.trusted.is_empty() && channel.policy.owners.is_empty() && !owned {
            let line = format!("{section} trusted = [\"<sender id>\"]");
            add(Closed, &format!("tools:{id}"), lang::door_tools(lang, id), &line);
        }
    }
    if config.tools.exec.enabled {
        if config.tools.exec.sandbox == Wanted::Off {
            add(Wide, "exec", lang::door_exec_wide(lang), "[tools.exec] sandbox = \"auto\"");
        } else if config.tools.exec.network == Network::Open {
            add(Wide, "exec.network", lang::door_exec_network_wide(lang), "[tools.exec] network = \"hosts\"");
        } else if config.tools.exec.own_hosts().is_empty() {
            let line = "[tools.exec] network = \"hosts\", hosts = [\"example.org\"]";
            add(Closed, "exec.hosts", lang::door_exec_hosts(lang), line);
        }
    } else {
        add(Closed, "exec", lang::door_exec(lang), "[tools.exec] enabled = true");
    }
    if config.server.channels_listen.is_empty() {
        add(Closed, "channels_listen", lang::door_listen(lang), "[server] channels_listen = \"0.0.0.0:3003\"");
    }
    let fetched = &config.tools.web_fetch;
    if fetched.enabled && !fetched.allow_hosts.is_empty() {
        let text = lang::door_fetch_hosts(lang, lang.listed(&fetched.allow_hosts));
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

/// The same doors with those before which messages were turned away since the start; `now` is epoch milliseconds. This
/// is how a person learns the id of a group, or of somebody who wrote. `gate`: the lists to which a line adds. People who
/// would be added to one list share a door, because their lines would undo each other.
pub fn with_turned_away(
    doors: &[Door],
    places: &[Place],
    gate: impl Fn(&ChannelId) -> Option<Gate>,
    now: i64,
    lang: Lang,
) -> Vec<Door> {
    let mut all = doors.to_vec();
    let first = |name: &str| ["model", "channel", "owner"].contains(&name) || name.starts_with("pairing:");
    let after = all.iter().rposition(|door| first(&door.name)).map_or(0, |at| at + 1);
    let mut by_list: Vec<(Option<Gate>, Vec<&Place>)> = Vec::new();
    for place in places {
        let one_list = |(gate, others): &&mut (Option<Gate>, Vec<&Place>)| {
            let section = |place: &Place| section_of(gate.as_ref(), place);
            others.first().is_some_and(|other| {
                place.why == Why::SenderNotAllowed
                    && (other.why, &other.channel, other.group) == (place.why, &place.channel, place.group)
                    && (!place.group || section(other) == section(place))
            })
        };
        match by_list.iter_mut().find(one_list) {
            Some((_, others)) => others.push(place),
            None => by_list.push((gate(&place.channel), vec![place])),
        }
    }
    all.splice(after..after, by_list.iter().filter_map(|(gate, places)| turned_away(places, gate.as_ref(), now, lang)));
    all
}

/// The name of the section of a group.
fn section_of(gate: Option<&Gate>, place: &Place) -> String {
    gate.map_or_else(|| place.conversation.clone(), |gate| gate.section_of(&place.conversation))
}

/// A list as TOML: who stands there already, then those who wrote.
fn merged(existing: &[String], places: &[&Place]) -> String {
    let mut ids: Vec<&str> = Vec::new();
    for id in existing.iter().chain(places.iter().map(|place| &place.sender)) {
        if !ids.contains(&id.as_str()) {
            ids.push(id);
        }
    }
    format!("[{}]", ids.into_iter().map(quoted).collect::<Vec<_>>().join(", "))
}

/// The door of places whose line adds to one list, the latest first; of all other reasons there is one place.
fn turned_away(places: &[&Place], gate: Option<&Gate>, now: i64, lang: Lang) -> Option<Door> {
    let place = *places.first()?;
    let Place { channel, group, .. } = place;
    let count = places.iter().fold(0, |sum: u64, place| sum.saturating_add(place.count));
    let minutes = now.saturating_sub(place.last_at).max(0) / 60_000;
    let mut people: Vec<String> = Vec::new();
    for one in places.iter().map(|place| named(place.name.as_deref(), &place.sender)) {
        if !people.contains(&one) {
            people.push(one);
        }
    }
    let who = people.join(if lang == Lang::Zh { "、" } else { ", " });
    let room = named(place.title.as_deref(), &place.conversation);
    let account = format!("[channels.{}.{}", channel.kind(), channel.account());
    let section = format!("{account}]");
    let group_section = format!("{account}.groups.{}]", quoted(&section_of(gate, place)));
    let in_group = gate.map_or(&[][..], |gate| gate.allowed_in(&place.conversation));
    let (text, line) = match place.why {
        Why::GroupNotAllowed => {
            let text = lang::door_group_not_allowed(lang, channel, room, who);
            let is_there = gate.is_some_and(|gate| gate.group(&place.conversation).is_some());
            let line = match gate.is_some_and(|gate| gate.speaks_in(&place.conversation, &place.sender)) {
                true => group_section,
                // Nothing else would let this sender speak there.
                false => {
                    let between = if is_there { ' ' } else { '\n' };
                    format!("{group_section}{between}allow_from = {}", merged(in_group, places))
                }
            };
            (text, line)
        }
        Why::SenderNotAllowed if *group => {
            let text = lang::door_sender_not_allowed_in_group(lang, channel, who, room);
            (text, format!("{group_section} allow_from = {}", merged(in_group, places)))
        }
        Why::SenderNotAllowed => {
            let list = merged(gate.map_or(&[][..], Gate::allowed), places);
            (lang::door_sender_not_allowed(lang, channel, who), format!("{section} allow_from = {list}"))
        }
        Why::Disabled if *group => {
            (lang::door_groups_disabled(lang, channel, room), format!("{section} group_policy = \"allowlist\""))
        }
        Why::Disabled => (lang::door_direct_disabled(lang, channel, who), format!("{section} dm_policy = \"pairing\"")),
        Why::NotAddressed => {
            let text = match place.kept {
                true => lang::door_not_addressed_kept(lang, channel, room),
                false => lang::door_not_addressed(lang, channel, room),
            };
            (text, format!("{group_section} require_mention = false"))
        }
        Why::Blocked => {
            let scope = place.scope.as_deref().unwrap_or(channel.as_str());
            let blocked = format!("{scope}:{}", place.sender);
            (
                lang::door_blocked(lang, channel, who),
                format!("crawfish access unblock {}", terminal::shell_word(&blocked)),
            )
        }
    };
    let since = match minutes {
        0 => lang::door_turned_away_now(lang, count),
        _ => lang::door_turned_away(lang, count, minutes),
    };
    let mut text = vec![text, since];
    if *group && channel.kind() == "telegram" && matches!(place.why, Why::GroupNotAllowed | Why::NotAddressed) {
        text.extend([lang::door_privacy_hint(lang), lang::door_privacy_line(lang)]);
    }
    let text = text.join(if lang == Lang::Zh { "" } else { " " });
    let id = terminal::escape_line(&place.conversation);
    let name = format!("turned_away:{}:{channel}:{id}", place.why.as_str());
    Some(Door { name, state: DoorState::Closed, text, line })
}

/// Whether this configuration opens the door already: the gateway that runs was started with an older one.
pub fn opens(config: &Config, place: &Place) -> bool {
    let Some(gate) = gate(config, &place.channel) else { return false };
    let group = gate.group(&place.conversation);
    let speaks = || gate.speaks_in(&place.conversation, &place.sender);
    match place.why {
        Why::GroupNotAllowed => group.is_some() && speaks(),
        Why::SenderNotAllowed if place.group => speaks(),
        Why::SenderNotAllowed => gate.is_open() || gate.listed(&place.sender).is_some(),
        Why::NotAddressed => group.is_some_and(|group| !group.require_mention),
        Why::Disabled | Why::Blocked => false,
    }
}

/// A name with its id.
fn named(name: Option<&str>, id: &str) -> String {
    let id = terminal::escape_line(id);
    match name {
        Some(name) => format!("{name} ({id})"),
        None => id.into_owned(),
    }
}

/// An id as a TOML string, with everything written out that a terminal would obey: the line can be copied as it is shown.
fn quoted(id: &str) -> String {
    let mut text = String::with_capacity(id.len() + 2);
    text.push('"');
    for c in id.chars() {
        let one = c.to_string();
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            _ if terminal::escape_line(&one) == one => text.push(c),
            _ => text.push_str(&format!("\\U{:08X}", c as u32)),
        }
    }
    text.push('"');
    text
}

/// A group in which the bot needs more than what is said to it.
fn follows_the_talk(group: &GroupConfig) -> bool {
    !group.require_mention || !group.wake.is_empty()
}

/// The gate that this configuration makes of a channel.
pub fn gate(config: &Config, id: &ChannelId) -> Option<Gate> {
    config.channels.get(id).map(|channel| gate_of(config, id, &channel.policy))
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
        intake::access::{DmPolicy, GroupPolicy},
        store::PairingRow,
    };

    fn loaded(text: &str) -> Config {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("config.toml");
        std::fs::write(&file, text).expect("written");
        let mut env = Env::default();
        env.insecure_perms = true;
        let loaded = Parsed::read(Some(&file), &env).and_then(Parsed::check);
        loaded.unwrap_or_else(|errors| panic!("{text}: {errors}")).config
    }

    fn names(text: &str) -> Vec<String> {
        doors(&loaded(text), Lang::En).into_iter().map(|door| door.name).collect()
    }

    const TELEGRAM: &str = "[channels.telegram.main]\ntoken = \"4242:AAkit-0123456789_abcdefghijklmnopqrs\"\n";

    /// The configuration after somebody wrote a door's line into it: the key below its section.
    fn written(line: &str) -> Config {
        match line.strip_prefix("[channels.telegram.main] ") {
            Some(key) => loaded(&format!("{TELEGRAM}{key}\n")),
            None => loaded(&format!("{TELEGRAM}{}\n", line.replacen("] ", "]\n", 1))),
        }
    }

    fn place(why: Why, group: bool, conversation: &str, sender: &str) -> Place {
        Place {
            channel: ChannelId::new("telegram", "main"),
            group,
            conversation: conversation.to_owned(),
            title: group.then(|| "Friends".to_owned()),
            sender: sender.to_owned(),
            name: Some("Bob".to_owned()),
            why,
            kept: false,
            scope: None,
            count: 3,
            last_at: 0,
        }
    }

    /// The door of one place, before the given configuration.
    fn before(config: &Config, place: &Place, now: i64, lang: Lang) -> Door {
        with_turned_away(&[], std::slice::from_ref(place), |id| gate(config, id), now, lang).remove(0)
    }

    fn turned_away(place: &Place, now: i64, lang: Lang) -> Door {
        before(&loaded(TELEGRAM), place, now, lang)
    }

    #[test]
    fn a_line_adds_to_the_list_that_is_there_and_people_for_one_list_share_it() {
        let section = "[channels.webhook.bridge]\ntoken = \"0123456789abcdef0123456789abcdef\"\n";
        let config = loaded(&format!("{section}allow_from = [\"u1\"]\n"));
        let of = |conversation: &str, sender: &str| Place {
            channel: ChannelId::new("webhook", "bridge"),
            name: None,
            ..place(Why::SenderNotAllowed, false, conversation, sender)
        };
        let places = [of("hall", "u2"), of("room", "u3"), of("kitchen", "u2")];
        let doors = with_turned_away(&[], &places, |id| gate(&config, id), 0, Lang::En);
        assert_eq!(doors.len(), 1, "{doors:?}");
        assert_eq!(doors[0].line, "[channels.webhook.bridge] allow_from = [\"u1\", \"u2\", \"u3\"]");
        assert!(doors[0].text.contains("no list names u2, u3. Messages since the start: 9"), "{doors:?}");

        let group = "[channels.telegram.main.groups.\"-1\"]\nallow_from = [\"7\"]\n";
        let config = loaded(
            &format!("{TELEGRAM}{group}[channels.telegram.main.groups.\"-2\"]\n")
                .replace("[channels.telegram.main]\n", "[channels.telegram.main]\nallow_from = [\"5\"]\n"),
        );
        let of = |group: &str, sender| place(Why::SenderNotAllowed, true, group, sender);
        let places = [of("-1", "8"), of("-2", "8"), of("-1", "9")];
        let doors = with_turned_away(&[], &places, |id| gate(&config, id), 0, Lang::En);
        let lines: Vec<&str> = doors.iter().map(|door| door.line.as_str()).collect();
        let expected = [
            "[channels.telegram.main.groups.\"-1\"] allow_from = [\"7\", \"8\", \"9\"]",
            // Without a list of its own, the group has the channel's.
            "[channels.telegram.main.groups.\"-2\"] allow_from = [\"5\", \"8\"]",
        ];
        assert_eq!(lines, expected);
    }

    #[test]
    fn the_line_of_a_group_lets_in_whoever_wrote_there() {
        let config = |more: &str| loaded(&format!("{TELEGRAM}{more}\n"));
        let away = place(Why::GroupNotAllowed, true, "-1", "99");
        let section = "[channels.telegram.main.groups.\"-1\"]";
        let paired = before(&config(""), &away, 0, Lang::En).line;
        assert_eq!(paired, format!("{section}\nallow_from = [\"99\"]"));
        assert!(opens(&config(&paired), &away), "in one paste");
        assert!(!opens(&config(section), &away), "nobody may speak there");
        for listed in ["owners = [\"99\"]", "trusted = [\"99\"]", "allow_from = [\"99\"]"] {
            assert_eq!(before(&config(listed), &away, 0, Lang::En).line, section, "{listed}");
            assert!(opens(&config(&format!("{listed}\n{section}")), &away), "{listed}");
        }
        let members = before(&config("allow_from = [\"5\"]"), &away, 0, Lang::En).line;
        assert_eq!(members, format!("{section}\nallow_from = [\"5\", \"99\"]"));
        // The gateway that runs has not read the section yet.
        let there = before(&config(section), &away, 0, Lang::En).line;
        assert_eq!(there, format!("{section} allow_from = [\"99\"]"));
    }

    #[test]
    fn what_came_within_the_minute_came_just_now() {
        let away = place(Why::SenderNotAllowed, false, "9", "9");
        assert!(turned_away(&away, 59_999, Lang::En).text.ends_with("Messages since the start: 3, the last just now."));
        assert!(turned_away(&away, 0, Lang::Zh).text.ends_with("启动以来共 3 条，最近一条就在刚刚。"));
        assert!(turned_away(&away, 60_000, Lang::En).text.ends_with("3, the last 1 min ago."));
    }

    #[test]
    fn the_line_before_which_a_message_was_turned_away_opens_the_gate() {
        for group in ["-1001234567890", "-100 \"\\\u{202e}\n群"] {
            let cases = [
                place(Why::GroupNotAllowed, true, group, "99"),
                place(Why::SenderNotAllowed, true, group, "99"),
                place(Why::SenderNotAllowed, false, "99", "99"),
                place(Why::NotAddressed, true, group, "99"),
            ];
            for place in cases {
                let door = turned_away(&place, 120_000, Lang::En);
                assert_eq!(terminal::escape(&door.line), door.line, "it is printed as it is");
                assert!(opens(&written(&door.line), &place), "{door:?}");
                assert!(!opens(&loaded(TELEGRAM), &place), "{door:?}");
                assert!(door.text.contains("3, the last 2 min ago"), "{door:?}");
            }
        }
        let groups = turned_away(&place(Why::Disabled, true, "-1", "9"), 0, Lang::Zh).line;
        let direct = turned_away(&place(Why::Disabled, false, "9", "9"), 0, Lang::Zh).line;
        let policy = |line: &str| written(line).channels.into_values().next().expect("the channel").policy;
        assert_eq!(policy(&groups).group_policy, Some(GroupPolicy::Allowlist));
        assert_eq!(policy(&direct).dm_policy, Some(DmPolicy::Pairing));
    }

    #[test]
    fn telegram_hides_what_is_not_said_to_the_bot_and_that_is_told() {
        let text = |why, group| turned_away(&place(why, group, "-1", "9"), 0, Lang::En).text;
        for why in [Why::GroupNotAllowed, Why::NotAddressed] {
            assert!(text(why, true).contains("/setprivacy"));
        }
        assert!(!text(Why::SenderNotAllowed, false).contains("/setprivacy"));
        let door = "privacy:telegram:main".to_owned();
        let following = format!("{TELEGRAM}[channels.telegram.main.groups.\"-1\"]\nwake = [\"crab\"]\n");
        assert!(names(&following).contains(&door));
        assert!(!names(&following.replace("wake = [\"crab\"]", "")).contains(&door));
    }

    #[test]
    fn a_block_is_undone_where_it_holds_and_turned_away_doors_come_after_who_waits() {
        let mut blocked = place(Why::Blocked, false, "9", "9");
        assert_eq!(turned_away(&blocked, 0, Lang::En).line, "crawfish access unblock telegram:main:9");
        blocked.scope = Some("telegram".to_owned());
        assert_eq!(turned_away(&blocked, 0, Lang::En).line, "crawfish access unblock telegram:9");
        blocked.sender = "$(reboot)".to_owned();
        assert_eq!(turned_away(&blocked, 0, Lang::En).line, "crawfish access unblock 'telegram:$(reboot)'");
        let door = |name: &str| Door {
            name: name.to_owned(),
            state: DoorState::Closed,
            text: String::new(),
            line: String::new(),
        };
        let mut kept = place(Why::NotAddressed, true, "-1", "9");
        kept.kept = true;
        let all = with_turned_away(&[door("owner"), door("pairing:x:1"), door("exec")], &[kept], |_| None, 0, Lang::En);
        let names: Vec<&str> = all.iter().map(|door| door.name.as_str()).collect();
        assert_eq!(names, ["owner", "pairing:x:1", "turned_away:not_addressed:telegram:main:-1", "exec"]);
        assert!(all[2].text.contains("kept as context"), "{}", all[2].text);
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
        let channel = doors(&loaded(""), Lang::En).swap_remove(1).line;
        assert!(channel.contains("[channels.telegram.main]") && channel.contains("[channels.webhook.bridge]"));
        assert!(!names("[tools.exec]\nenabled = true\n").contains(&"exec".to_owned()), "on, it is confined");
        let network = |more: &str| {
            let all = names(&format!("[tools.exec]\nenabled = true\n{more}"));
            all.into_iter().filter(|name| name.starts_with("exec.")).collect::<Vec<_>>()
        };
        assert_eq!(network(""), ["exec.hosts"]);
        assert_eq!(network("hosts = [\"example.org\"]\n"), ["exec.hosts"], "a list that does not count opens nothing");
        assert!(network("network = \"hosts\"\nhosts = [\"example.org\"]\n").is_empty());
        assert_eq!(network("network = \"open\"\n"), ["exec.network"]);
        let open = "[tools.exec]\nenabled = true\nsandbox = \"off\"\n";
        assert!(names(open).contains(&"exec".to_owned()), "without a sandbox, it stands wide open");
        let webhook = "[channels.webhook.bridge]\ntoken = \"0123456789abcdef0123456789abcdef\"\n";
        let open = names(webhook);
        for door in ["owner", "senders:webhook:bridge", "tools:webhook:bridge", "callback:webhook:bridge"] {
            assert!(open.contains(&door.to_owned()), "{open:?}");
        }
        assert!(!open.contains(&"channel".to_owned()));
        let owned = format!("[access]\nowners = [\"webhook:1\"]\n{webhook}");
        assert!(!names(&owned).contains(&"tools:webhook:bridge".to_owned()), "not all of them are strangers");
        let listed =
            format!("{owned}callback_url = \"https://a.example/\"\nallow_from = [\"1\"]\ndm_policy = \"allowlist\"\n");
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
