//! The WebSocket that we open to an implementation (`mode = "forward"`), again and again with growing pauses. Events and
//! calls share one connection.

use std::time::Duration;

use channel_api::{ChannelContext, ChannelError, Link, Socket};
use channel_socket::{DialError, Network};
use tracing::{debug, info};
use url::Url;

use crate::{
    OneBot, api,
    links::Role,
    send,
    socket::{self, Ended, Head, MESSAGE_LIMIT},
};

/// The first pause before another try.
const FIRST: Duration = Duration::from_secs(1);
/// The longest.
const LONGEST: Duration = Duration::from_secs(30);
/// A connection that lasted so long is no failed try.
const LASTED: Duration = Duration::from_secs(60);

/// Connects and serves without end.
///
/// # Errors
/// [`ChannelError::Stop`] when the token is refused.
pub async fn run(onebot: &OneBot, ctx: &ChannelContext, network: &Network, url: &Url) -> Result<(), ChannelError> {
    let mut pause = FIRST;
    loop {
        let since = ctx.clock.monotonic();
        match once(onebot, ctx, network, url).await {
            Ok(Ended::Shutdown) => return Ok(()),
            Ok(Ended::Refused(words)) => return Err(refused(&words)),
            Ok(ended) => debug!(?ended, "the OneBot side's WebSocket ended"),
            Err(DialError::Status { status: status @ (401 | 403), .. }) => {
                return Err(refused(&format!("it answered {status}")));
            }
            Err(error) => ctx.pulse.link(Link::Down(format!("the OneBot side cannot be reached: {error}"))),
        }
        if ctx.clock.monotonic().saturating_sub(since) >= LASTED {
            pause = FIRST;
        }
        let wait = pause + pause.mul_f64(send::chance() / 4.0);
        info!(seconds = wait.as_secs_f32(), "connecting to the OneBot side again after a pause");
        ctx.clock.sleep(wait).await;
        pause = (pause * 2).min(LONGEST);
    }
}

async fn once(onebot: &OneBot, ctx: &ChannelContext, network: &Network, url: &Url) -> Result<Ended, DialError> {
    let headers = api::bearer(&onebot.config.access_token);
    let (socket, mut pump) = network.websocket(url, &headers, MESSAGE_LIMIT).await?;
    let Socket { incoming, outgoing } = socket;
    let serve = socket::serve(onebot, ctx, Head { bot: None, role: Role::Universal }, Socket { incoming, outgoing });
    tokio::pin!(serve);
    let ended = tokio::select! {
        ended = &mut serve => ended,
        // The frames that it read are still to be served.
        () = &mut pump => return Ok(serve.await),
    };
    // The goodbye.
    pump.await;
    Ok(ended)
}

fn refused(words: &str) -> ChannelError {
    ChannelError::Stop(format!(
        "the OneBot side refuses the access_token ({words}): `access_token` must be the token of its WebSocket server"
    ))
}
