//! The registry of adapters: the only file that names them.

use std::{collections::HashMap, path::PathBuf, sync::Arc};

use channel_api::{
    Channel, ChannelId, Conversation, ConversationKind, Inbound, InboxId, Level, Moved, QueueMode, Reply, Said, Trust,
};
use channel_socket::{Network, NetworkError};
use serde::Deserialize as _;
use tracing::warn;

use crate::{
    config::{Mistake, Node},
    intake::{
        access::{AccessConfig, ChannelPolicy, Gate},
        route::{Asked, Bindings, Closeness, Links},
    },
    lang::{self, Lang},
    outbox::{self, Answers},
    session::SessionKey,
    store::NewPart,
};

/// One kind of channel.
pub struct Kind {
    /// Its name in `[channels.<kind>.<account>]`.
    pub name: &'static str,
    /// Whoever writes there already holds the machine's terminal or the gateway's token.
    pub owners_own: bool,
    /// Checks a section without starting anything.
    pub check: fn(&toml::Table) -> Result<(), Said>,
    /// Whether the adapter can read a section as it stands in the file: it says where a mistake is.
    pub shape: fn(&Node) -> Result<(), Mistake>,
    build: fn(&BuildChannel<'_>) -> Result<Arc<dyn Channel>, Said>,
}

/// Every kind of channel: adding one is adding a line.
pub const KINDS: &[Kind] = &[
    Kind { name: "console", owners_own: true, check: console::check, shape: console::shape, build: console::build },
    Kind { name: "webhook", owners_own: false, check: webhook::check, shape: webhook::shape, build: webhook::build },
    Kind {
        name: "telegram",
        owners_own: false,
        check: telegram::check,
        shape: telegram::shape,
        build: telegram::build,
    },
    Kind { name: "discord", owners_own: false, check: discord::check, shape: discord::shape, build: discord::build },
    Kind { name: "onebot", owners_own: false, check: onebot::check, shape: onebot::shape, build: onebot::build },
    Kind { name: "feishu", owners_own: false, check: feishu::check, shape: feishu::shape, build: feishu::build },
    Kind { name: "qq", owners_own: false, check: qq::check, shape: qq::shape, build: qq::build },
];

/// What a channel is built from.
pub struct BuildChannel<'a> {
    /// Its id.
    pub id: &'a ChannelId,
    /// Its section without the policy keys.
    pub settings: &'a toml::Table,
    /// The policy keys.
    pub policy: &'a ChannelPolicy,
    /// Its way out: see [`network`].
    pub network: &'a Network,
}

/// The way out that a channel's section describes; `place` puts a path of the configuration where it is.
///
/// # Errors
/// What is wrong with `proxy` or `ca_file`, in a sentence that names the key.
pub fn network(policy: &ChannelPolicy, place: impl Fn(&str) -> PathBuf) -> Result<Network, Said> {
    let ca_file = policy.ca_file.as_deref().map(place);
    Network::new(policy.proxy.as_deref(), ca_file.as_deref()).map_err(|error| {
        let zh = match &error {
            NetworkError::BadProxy(why) => {
                format!("`proxy` 不能用（{why}）：可填 \"none\"、\"env\" 或一个地址，例如 \"socks5h://127.0.0.1:1080\"")
            }
            NetworkError::BadCa { path, why } => format!("`ca_file` {path} 不能用：{why}"),
        };
        Said::new(error.to_string(), zh)
    })
}

/// The servers that a channel talks to by name: those of its section, else its platform's own.
pub fn hosts(id: &ChannelId, settings: &toml::Table) -> Vec<String> {
    let own = ["api_url", "gateway_url", "token_url", "url", "callback_url"].iter();
    let urls = own.filter_map(|key| url::Url::parse(settings.get(*key)?.as_str()?).ok());
    let mut hosts: Vec<String> = urls.filter_map(|url| Some(url.domain()?.to_owned())).collect();
    if !settings.contains_key("api_url") {
        let usual: &[&str] = match id.kind() {
            "telegram" => &["api.telegram.org"],
            "discord" => &["discord.com", "gateway.discord.gg"],
            "feishu" => &["open.feishu.cn"],
            "qq" => &["api.sgroup.qq.com", "bots.qq.com"],
            _ => &[],
        };
        hosts.extend(usual.iter().map(|host| (*host).to_owned()));
    }
    hosts.retain(|host| host != "localhost");
    hosts.sort_unstable();
    hosts.dedup();
    hosts
}

/// The kind of that name.
pub fn kind(name: &str) -> Option<&'static Kind> {
    KINDS.iter().find(|kind| kind.name == name)
}

/// Builds one channel.
///
/// # Errors
/// Why its section cannot work, in a sentence.
pub fn build(channel: &BuildChannel<'_>) -> Result<Arc<dyn Channel>, Said> {
    let name = channel.id.kind();
    let kind = kind(name).ok_or_else(|| both(|lang| lang::channel_kind_unknown(lang, name)))?;
    (kind.build)(channel)
}

/// A sentence of [`lang`] in both languages.
fn both(say: impl Fn(Lang) -> String) -> Said {
    Said::new(say(Lang::En), say(Lang::Zh))
}

mod console {
    use super::*;

    pub fn check(settings: &toml::Table) -> Result<(), Said> {
        match settings.keys().next() {
            Some(key) => Err(both(|lang| lang::channel_key_unknown(lang, key, "console"))),
            None => Ok(()),
        }
    }

    pub fn shape(_: &Node) -> Result<(), Mistake> {
        Ok(())
    }

    pub fn build(channel: &BuildChannel<'_>) -> Result<Arc<dyn Channel>, Said> {
        check(channel.settings)?;
        let (input, output) = (tokio::io::stdin(), tokio::io::stdout());
        Ok(Arc::new(channel_console::Console::new(channel.id.account(), input, output)))
    }
}

mod webhook {
    use super::*;

    pub fn check(settings: &toml::Table) -> Result<(), Said> {
        let network = network(&ChannelPolicy::default(), |path| path.into())?;
        make("check", settings, &network).map(|_| ())
    }

    pub fn shape(section: &Node) -> Result<(), Mistake> {
        channel_webhook::Config::deserialize(section).map(drop)
    }

    pub fn build(channel: &BuildChannel<'_>) -> Result<Arc<dyn Channel>, Said> {
        let webhook = make(channel.id.account(), channel.settings, channel.network)?;
        Ok(Arc::new(webhook))
    }

    fn make(account: &str, settings: &toml::Table, network: &Network) -> Result<channel_webhook::Webhook, Said> {
        let config = read::<channel_webhook::Config>(settings)?;
        channel_webhook::Webhook::new(account, config, network.http()).map_err(|error| error.said())
    }
}

/// The adapters whose `Config` and constructor look alike.
macro_rules! adapters {
    ($($kind:ident => $adapter:path, $config:path;)*) => {$(
        mod $kind {
            use super::*;

            pub fn check(settings: &toml::Table) -> Result<(), Said> {
                read::<$config>(settings)?.check().map_err(|error| error.said())
            }

            pub fn shape(section: &Node) -> Result<(), Mistake> {
                <$config>::deserialize(section).map(drop)
            }

            pub fn build(channel: &BuildChannel<'_>) -> Result<Arc<dyn Channel>, Said> {
                let config = read::<$config>(channel.settings)?;
                let built = <$adapter>::new(channel.id.account(), &config, channel.network);
                Ok(Arc::new(built.map_err(|error| error.said())?))
            }
        }
    )*};
}

adapters! {
    telegram => channel_telegram::Telegram, channel_telegram::Config;
    discord => channel_discord::Discord, channel_discord::Config;
    onebot => channel_onebot::OneBot, channel_onebot::Config;
    feishu => channel_feishu::Feishu, channel_feishu::Config;
    qq => channel_qq::Qq, channel_qq::Config;
}

/// What a reader of sections said.
pub fn unread(text: &str) -> Said {
    let text = text.trim_end();
    Said::new(text, format!("这一节有误：{text}"))
}

/// The section as its adapter reads it. The message names the key and never the value.
fn read<C: serde::de::DeserializeOwned>(settings: &toml::Table) -> Result<C, Said> {
    settings.clone().try_into().map_err(|error: toml::de::Error| unread(error.message()))
}

/// One channel as the gateway uses it: its adapter, its gate, its policy.
pub struct Entry {
    /// The adapter.
    pub channel: Arc<dyn Channel>,
    /// Who is admitted.
    pub gate: Gate,
    /// Queue mode, agent.
    pub policy: ChannelPolicy,
    /// Which agent answers which conversation.
    pub bindings: Arc<Bindings>,
    /// Which direct chats are one person's.
    pub links: Arc<Links>,
}

/// Who wrote it, where the platform itself says so: words that are handed on carry nobody's id.
pub fn sender(event: &Inbound) -> Option<&str> {
    (event.trust == Trust::Own).then_some(event.sender.id.as_str())
}

impl Entry {
    /// Joins an adapter with its policy. `token_is_owner`: see [`Gate::new`].
    pub fn new(channel: Arc<dyn Channel>, policy: ChannelPolicy, access: &AccessConfig, token_is_owner: bool) -> Self {
        let gate = Gate::new(channel.id(), &policy, access, token_is_owner);
        Self { channel, gate, policy, bindings: Arc::default(), links: Arc::default() }
    }

    /// The agent that answers a conversation: of the channel's own section (its group's line, then its own) and the agents'
    /// bindings the one that names it most closely, the section where both are as close; else `main`.
    pub fn agent(&self, conversation: &Conversation, sender: Option<&str>) -> &str {
        let in_group = conversation.kind == ConversationKind::Group;
        let group = in_group.then(|| self.gate.group(&conversation.id)).flatten();
        let own = match (group.and_then(|group| group.agent.as_deref()), self.policy.agent.as_deref()) {
            (Some(agent), _) => Some((Closeness::GROUP, agent)),
            (None, Some(agent)) => Some((Closeness::CHANNEL, agent)),
            (None, None) => None,
        };
        let current = self.as_now(conversation);
        let asked = Asked { channel: self.channel.id(), conversation: &current, sender };
        let bound = self.bindings.agent(asked, |group| self.gate.current(group));
        match (own, bound) {
            (Some((own, agent)), Some((bound, _))) if own >= bound => agent,
            (_, Some((_, agent))) | (Some((_, agent)), None) => agent,
            (None, None) => "main",
        }
    }

    /// The conversation, its group by the id it has now.
    fn as_now(&self, conversation: &Conversation) -> Conversation {
        let mut conversation = conversation.clone();
        if conversation.kind == ConversationKind::Group {
            conversation.id = self.gate.current(&conversation.id);
        }
        conversation
    }

    /// The session of an event.
    pub fn session_of(&self, event: &Inbound) -> SessionKey {
        self.session(&event.conversation, sender(event))
    }

    /// The session of a conversation with this sender.
    pub fn session(&self, conversation: &Conversation, sender: Option<&str>) -> SessionKey {
        let agent = self.agent(conversation, sender);
        if self.channel.id().kind() == "web" {
            return SessionKey::web(agent, Some(conversation.id.as_str()).filter(|id| *id != "main"));
        }
        let account_in_key = self.channel.capabilities().account_in_key;
        let conversation = self.as_now(conversation);
        let asked = Asked { channel: self.channel.id(), conversation: &conversation, sender };
        match self.links.person(asked, account_in_key) {
            Some(person) => SessionKey::person(agent, person),
            None => SessionKey::of(agent, self.channel.id(), account_in_key, &conversation),
        }
    }

    /// A group got a new id: its section goes on to hold, and the log names the line to change.
    pub fn moved(&self, moved: &Moved) {
        let Moved { from, to } = moved;
        if let Some(name) = self.gate.moved(from, to) {
            let id = self.channel.id();
            warn!(
                channel = %id, from, to,
                "a group has a new id and its section still holds; rename it in the configuration: \
                 `[channels.{}.{}.groups.\"{name}\"]` becomes `groups.\"{to}\"`",
                id.kind(), id.account(),
            );
        }
    }

    /// The queue mode when the session has none of its own.
    pub fn mode(&self, general: Option<QueueMode>) -> QueueMode {
        self.policy.queue.or(general).unwrap_or(self.channel.capabilities().queue)
    }
}

/// All channels of this process.
#[derive(Clone, Default)]
pub struct Channels(Arc<HashMap<ChannelId, Entry>>);

impl Channels {
    /// These channels.
    pub fn new(entries: impl IntoIterator<Item = Entry>) -> Self {
        Self(Arc::new(entries.into_iter().map(|entry| (entry.channel.id().clone(), entry)).collect()))
    }

    /// One of them.
    pub fn get(&self, id: &ChannelId) -> Option<&Entry> {
        self.0.get(id)
    }

    /// The parts that tell a message's sender that it could not be processed; none when its channel is gone, or when it was
    /// not said to the bot.
    pub fn apology(&self, id: &InboxId, inbound: &Inbound, now: i64) -> Vec<NewPart> {
        let Some(entry) = self.get(&inbound.channel).filter(|_| inbound.addressed()) else { return Vec::new() };
        let lang = Lang::of_text(&inbound.text).unwrap_or_else(Lang::current);
        let reply = Reply::error(lang::dead_letter_apology(lang));
        let answers = Answers::message(id, &inbound.platform_id);
        outbox::rows(entry.channel.as_ref(), &reply, Level::Rich, &inbound.address, Some(answers), now)
    }

    /// All of them, ordered by id.
    pub fn all(&self) -> Vec<&Entry> {
        let mut all: Vec<&Entry> = self.0.values().collect();
        all.sort_by(|a, b| a.channel.id().cmp(b.channel.id()));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::intake::command::Command;

    #[test]
    fn what_is_wrong_with_a_section_is_said_in_both_languages() {
        let chinese = |text: &str| text.chars().any(|c| matches!(c, '一'..='鿿'));
        for (name, section, key) in [
            ("console", "x = 1", "`x`"),
            ("webhook", "", "`secret"),
            ("webhook", "token = 'short'", "`token`"),
            ("telegram", "token = 'short'", "`token`"),
            ("telegram", "", "`token`"),
            ("discord", "token = 'short'", "`token`"),
            ("onebot", "access_token = 'short'", "`access_token`"),
            ("feishu", "app_id = 'a b'\napp_secret = 'x'", "`app_id`"),
            ("qq", "app_id = '1'\napp_secret = 'x'\nsandbox = true\napi_url = 'https://a.org'", "`sandbox`"),
        ] {
            let settings = toml::from_str(section).expect("a section");
            let said = (kind(name).expect("a kind").check)(&settings).expect_err(name);
            assert!(said.en.contains(key) && !chinese(&said.en), "{name}: {said:?}");
            assert!(said.zh.contains(key) && chinese(&said.zh), "{name}: {said:?}");
        }
        for (proxy, key) in [("ftp://x", "`proxy`"), ("nonsense", "`proxy`")] {
            let policy = ChannelPolicy { proxy: Some(proxy.to_owned()), ..ChannelPolicy::default() };
            let said = network(&policy, |path| path.into()).expect_err("no proxy");
            assert!(said.en.contains(key) && said.zh.contains(key) && chinese(&said.zh), "{said:?}");
        }
    }

    #[test]
    fn every_command_that_clients_offer_is_obeyed() {
        for (name, ..) in channel_telegram::COMMANDS.into_iter().chain(channel_discord::COMMANDS) {
            assert!(Command::parse(&format!("/{name}")).is_some(), "/{name}");
        }
    }
}
