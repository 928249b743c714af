//! How a command reaches the rows: through the gateway that runs, or else through the store, whose lock it then holds.

use std::{path::Path, sync::Arc, time::Duration};

use channel_api::Clock;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    client::{Client, ClientError},
    exit::Exit,
};
use crate::{
    app,
    channels::Channels,
    clock::SystemClock,
    config::{Env, Loaded, Parsed},
    data_dir::{self, DataDir, DataDirError},
    inspect::{self, Query},
    intake::pairing::{self, Access, AccessError, AccessQuery},
    lang::{self, Lang},
    store::{Store, StoreError},
};

/// Reads the configuration for a command, sets the language, and says what is wrong with it.
///
/// # Errors
/// The exit code; everything was said.
pub fn load(config: Option<&Path>, env: &Env) -> Result<Loaded, Exit> {
    let loaded = Parsed::read(config, env).and_then(|parsed| {
        parsed.lang().set_current();
        parsed.check()
    });
    loaded.map_err(|errors| {
        errors.lang.set_current();
        eprintln!("{}", errors.render(errors.lang));
        Exit::from(&errors)
    })
}

/// Runs a command's asynchronous part on this thread.
pub fn block_on(work: impl Future<Output = Exit>) -> Exit {
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(work),
        Err(error) => {
            eprintln!("{error}");
            Exit::Os
        }
    }
}

fn through<T>(
    config: Option<&Path>,
    env: &Env,
    open: impl AsyncFnOnce(&Loaded) -> Result<T, Exit>,
    work: impl AsyncFnOnce(&T) -> Result<(), Exit>,
    close: impl AsyncFnOnce(T),
) -> Exit {
    let loaded = match load(config, env) {
        Ok(loaded) => loaded,
        Err(exit) => return exit,
    };
    block_on(async {
        let way = match open(&loaded).await {
            Ok(way) => way,
            Err(exit) => return exit,
        };
        let end = work(&way).await;
        close(way).await;
        end.err().unwrap_or(Exit::Ok)
    })
}

/// The rows, by one of the two ways.
pub enum Reach {
    /// A gateway runs.
    Gateway(Client),
    /// None does; the lock is ours as long as this lives.
    Store {
        /// The store.
        store: Arc<dyn Store>,
        /// The lock.
        _lock: DataDir,
    },
}

impl Reach {
    /// Runs a command that works through it: reads the configuration, finds the way, works, and closes it again.
    pub fn through(config: Option<&Path>, env: &Env, work: impl AsyncFnOnce(&Self) -> Result<(), Exit>) -> Exit {
        through(config, env, Self::open, work, Self::close)
    }

    /// Finds the way.
    ///
    /// # Errors
    /// The exit code; why was said.
    pub async fn open(loaded: &Loaded) -> Result<Self, Exit> {
        if let Some(client) = running(loaded)? {
            return Ok(Self::Gateway(client));
        }
        let file = loaded.path(loaded.config.store.sqlite_path());
        if !file.exists() {
            eprintln!("{}", lang::cli_no_data(Lang::current(), file.display()));
            return Err(Exit::NoInput);
        }
        let lock = DataDir::take(&loaded.data_dir()).map_err(|error| say(error.into()))?;
        let store = app::open_store(loaded).await.map_err(say)?;
        Ok(Self::Store { store, _lock: lock })
    }

    /// The same, for what was done before the gateway ever ran: then the store is made.
    async fn open_or_make(loaded: &Loaded) -> Result<Self, Exit> {
        if loaded.path(loaded.config.store.sqlite_path()).exists() {
            return Self::open(loaded).await;
        }
        let lock = DataDir::take(&loaded.data_dir()).map_err(|error| say(error.into()))?;
        let store = app::open_store(loaded).await.map_err(say)?;
        Ok(Self::Store { store, _lock: lock })
    }

    /// Asks, and reads the field of the answer that the question is about.
    ///
    /// # Errors
    /// The exit code; why was said.
    pub async fn ask<T: DeserializeOwned>(&self, query: &Query, field: &str) -> Result<T, Exit> {
        let mut value = self.value(query).await?;
        read(value[field].take())
    }

    /// The whole answer.
    ///
    /// # Errors
    /// The exit code; why was said.
    pub async fn value(&self, query: &Query) -> Result<Value, Exit> {
        match self {
            Self::Gateway(client) => client.ask(&query.request()).await.map_err(say_client),
            Self::Store { store, .. } => {
                inspect::answer(store.as_ref(), query, SystemClock::new().now_ms()).await.map_err(|error| match error {
                    StoreError::NotFound => not_found(),
                    other => say_store(other),
                })
            }
        }
    }

    /// Closes the store after what was queued is written.
    pub async fn close(self) {
        if let Self::Store { store, .. } = self {
            store.close().await;
        }
    }
}

/// Writes into the audit log that something was allowed on the command line.
///
/// # Errors
/// The exit code; why was said. What was allowed stays so.
pub async fn granted(loaded: &Loaded, what: &str, detail: Value) -> Result<(), Exit> {
    let reach = Reach::open_or_make(loaded).await?;
    let written = reach.value(&Query::Granted { what: what.to_owned(), detail }).await;
    reach.close().await;
    written.map(|_| ())
}

/// Who may write, by one of the two ways: a running gateway, which heeds a decision at once, or the store.
pub struct Door {
    reach: Reach,
    /// Without a gateway.
    access: Option<Arc<Access>>,
    channels: Channels,
}

/// What became of a decision.
pub enum Decided {
    /// It was made, or the question answered.
    Done(Value),
    /// It is about nobody.
    NoSuch,
    /// It names nobody that can be.
    Bad,
    /// Too many wrong codes: minutes.
    Locked(u64),
}

impl Door {
    /// Runs a command that works through it: reads the configuration, finds the way, works, and closes it again.
    pub fn through(config: Option<&Path>, env: &Env, work: impl AsyncFnOnce(&Self) -> Result<(), Exit>) -> Exit {
        through(config, env, Self::open, work, Self::close)
    }

    /// Finds the way.
    ///
    /// # Errors
    /// The exit code; why was said.
    pub async fn open(loaded: &Loaded) -> Result<Self, Exit> {
        let reach = Reach::open(loaded).await?;
        let channels = app::build_channels(loaded).map_err(say)?;
        let access = match &reach {
            Reach::Gateway(_) => None,
            Reach::Store { store, .. } => {
                let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
                let idle = pairing::Reach::default();
                Some(app::open_access(store, &channels, &clock, idle).await.map_err(say_store)?)
            }
        };
        Ok(Self { reach, access, channels })
    }

    /// Asks or decides.
    ///
    /// # Errors
    /// The exit code; why was said.
    pub async fn decide(&self, query: &AccessQuery) -> Result<Decided, Exit> {
        let answer = match (&self.reach, &self.access) {
            (Reach::Store { .. }, Some(access)) => match access.answer(query).await {
                Ok(done) => return Ok(Decided::Done(done)),
                Err(error) => error,
            },
            (Reach::Gateway(client), _) => match client.ask(&query.request()).await {
                Ok(done) => return Ok(Decided::Done(done)),
                Err(ClientError::NotFound) => AccessError::NoSuchCode,
                Err(ClientError::Invalid(_)) => AccessError::BadWho(String::new()),
                Err(ClientError::TooMany(seconds)) => AccessError::Locked(Duration::from_secs(seconds)),
                Err(other) => return Err(say_client(other)),
            },
            (Reach::Store { .. }, None) => return Err(Exit::Software),
        };
        match answer {
            AccessError::NoSuchCode | AccessError::NoSuchSender => Ok(Decided::NoSuch),
            AccessError::BadWho(_) => Ok(Decided::Bad),
            AccessError::Locked(wait) => Ok(Decided::Locked(wait.as_secs().div_ceil(60))),
            AccessError::Store(error) => Err(say_store(error)),
        }
    }

    /// The configuration gives this sender a role in the scope, too.
    pub fn is_listed(&self, scope: &str, sender: &str) -> bool {
        self.channels.all().iter().any(|entry| {
            let id = entry.channel.id();
            (scope == id.as_str() || scope == id.kind()) && entry.gate.listed(sender).is_some()
        })
    }

    /// Closes the store after what was queued is written.
    pub async fn close(self) {
        self.reach.close().await;
    }
}

/// Reads an answer.
///
/// # Errors
/// 69 when it is not what was asked for; that was said.
pub fn read<T: DeserializeOwned>(value: Value) -> Result<T, Exit> {
    serde_json::from_value(value).map_err(|error| {
        eprintln!("{}", lang::cli_odd_answer(Lang::current(), error));
        Exit::Unavailable
    })
}

fn say_store(error: StoreError) -> Exit {
    eprintln!("{error}");
    match error {
        StoreError::Corrupt(_) => Exit::Data,
        _ => Exit::Unavailable,
    }
}

/// The gateway that runs on this data folder.
///
/// # Errors
/// The exit code when one runs that cannot be asked.
pub fn running(loaded: &Loaded) -> Result<Option<Client>, Exit> {
    let dir = loaded.data_dir();
    if !dir.join("lock").exists() {
        return Ok(None);
    }
    match DataDir::take(&dir) {
        Ok(_free) => Ok(None),
        Err(DataDirError::Held { by, .. }) => {
            let url = by.map(|by| by.url).filter(|url| !url.is_empty());
            let Some(url) = url else {
                eprintln!("{}", lang::cli_starting(Lang::current()));
                return Err(Exit::Running);
            };
            let token = data_dir::read_token(&dir).map_err(|error| {
                eprintln!("{}: {error}", dir.join(data_dir::TOKEN).display());
                Exit::Io
            })?;
            Client::new(&url, token).map(Some).map_err(say_client)
        }
        Err(error) => Err(say(error.into())),
    }
}

/// The gateway that runs; without one, says how to start it.
///
/// # Errors
/// 69 when none runs.
pub fn gateway(loaded: &Loaded) -> Result<Client, Exit> {
    running(loaded)?.ok_or_else(|| {
        eprintln!("{}", lang::cli_no_gateway(Lang::current()));
        Exit::Unavailable
    })
}

fn say(error: app::StartError) -> Exit {
    eprintln!("{error}");
    Exit::from(&error)
}

/// Says that there is no such row.
pub fn not_found() -> Exit {
    eprintln!("{}", lang::cli_not_found(Lang::current()));
    Exit::NoInput
}

/// Says why a gateway did not answer.
pub fn say_client(error: ClientError) -> Exit {
    let lang = Lang::current();
    match error {
        ClientError::Away(why) => eprintln!("{}", lang::cli_gateway_away(lang, why)),
        ClientError::NotFound => return not_found(),
        ClientError::TooMany(seconds) => {
            eprintln!("{}", lang::cli_gateway_refused(lang, format!("429 ({seconds} s)")));
        }
        ClientError::Refused(why) => {
            eprintln!("{}", crate::terminal::escape(&lang::cli_gateway_refused(lang, why)));
        }
        // It would be refused again: what was asked is at fault, and not the gateway.
        ClientError::Invalid(why) => {
            eprintln!("{}", crate::terminal::escape(&lang::cli_gateway_refused(lang, why)));
            return Exit::Data;
        }
    }
    Exit::Unavailable
}
