//! serenity's gateway client on a thread of its own, behind the relay. dependencies.md §4.
//!
//! The thread has a runtime of one thread and a name, and is joined at the end of `run`: no task of serenity outlives it.

use std::{io, sync::Arc, thread};

use futures_util::StreamExt;
use serenity::{
    gateway::{ShardManager, ShardManagerOptions},
    http::HttpBuilder,
    model::gateway::GatewayIntents,
    prelude::TypeMap,
};
use tokio::sync::{Mutex, RwLock, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error};

use crate::relay::{Door, Relay};

/// How long tasks of serenity may take to end.
const END: std::time::Duration = std::time::Duration::from_secs(1);

/// The thread, while it runs. Dropped, it ends by itself and soon.
pub struct Gateway {
    stop: CancellationToken,
    ended: oneshot::Receiver<()>,
    thread: Option<thread::JoinHandle<()>>,
}

/// What is asked for.
pub fn intents(message_content: bool) -> GatewayIntents {
    let intents = GatewayIntents::GUILDS | GatewayIntents::GUILD_MESSAGES | GatewayIntents::DIRECT_MESSAGES;
    if message_content { intents | GatewayIntents::MESSAGE_CONTENT } else { intents }
}

impl Gateway {
    /// Starts the thread.
    ///
    /// # Errors
    /// Those of the system.
    pub fn start(account: &str, relay: Relay, intents: GatewayIntents) -> io::Result<Self> {
        let stop = relay.stop.clone();
        let (tell, ended) = oneshot::channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let thread = thread::Builder::new().name(format!("discord-{account}")).spawn(move || {
            let stop = relay.stop.clone();
            if let Err(error) = runtime.block_on(keep(relay, intents)) {
                error!(%error, "the relay of the Discord gateway cannot be opened");
            }
            stop.cancel();
            runtime.shutdown_timeout(END);
            let _ = tell.send(());
        })?;
        Ok(Self { stop, ended, thread: Some(thread) })
    }

    /// Ends the thread and waits for it.
    pub async fn end(mut self) {
        self.stop.cancel();
        let _ = (&mut self.ended).await;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            error!("the thread of the Discord gateway panicked");
        }
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// The session, until it is stopped or Discord wants no more of it.
async fn keep(relay: Relay, intents: GatewayIntents) -> io::Result<()> {
    let door = Door::open().await?;
    // serenity makes no REST call here, and knows no token: the relay puts it in.
    let http = HttpBuilder::new("Bot unused").proxy("http://127.0.0.1:9").ratelimiter_disabled(true).build();
    let (manager, mut returns) = ShardManager::new(ShardManagerOptions {
        data: Arc::new(RwLock::new(TypeMap::new())),
        event_handlers: Vec::new(),
        raw_event_handlers: Vec::new(),
        shard_index: 0,
        shard_init: 1,
        shard_total: 1,
        ws_url: Arc::new(Mutex::new(door.url()?)),
        http: Arc::new(http),
        intents,
        presence: None,
    });
    if let Err(error) = manager.initialize() {
        return Err(io::Error::other(error.to_string()));
    }
    let stop = relay.stop.clone();
    tokio::select! {
        () = relay.serve(&door) => {}
        returned = returns.next() => debug!(?returned, "serenity ended its session"),
        () = async { stop.cancelled().await; tokio::time::sleep(2 * END).await } => {}
    }
    Ok(())
}
