//! What happened, taken in one after the other in each chat: made whole (files, quotes, forwarded messages), offered to the gateway
//! until it is stored, remembered as seen. OneBot acknowledges nothing and repeats nothing, so an event that the gateway
//! cannot store yet is held here.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    time::Duration,
};

use channel_api::{Accepted, Batch, ChannelContext, Cursor, Inbound, IntakeError, Link};
use futures_util::{StreamExt, stream::FuturesUnordered};
use serde_json::{Value, json};
use tokio::sync::oneshot;
use tracing::{debug, info, warn};

use crate::{
    OneBot,
    config::Consent,
    gather, history,
    inbound::{self, Event, Said},
    links::{CALL, CallError},
    queue::{Item, What},
};

/// How long an event is offered again and again before it is given up.
const HELD: Duration = Duration::from_secs(600);
/// The longest pause between two offers.
const LONGEST_PAUSE: Duration = Duration::from_secs(15);

/// The most items that are taken from the queue and wait for their chat.
const TAKEN: usize = 1_000;

/// Takes in what the queue holds, without end: each chat in order, a slow file of one holding up no other.
pub async fn run(onebot: &OneBot, ctx: &ChannelContext) {
    let mut queue = onebot.queue.receiver.lock().await;
    // What waits behind the item of its lane that is being taken in.
    let mut lanes: HashMap<String, VecDeque<Item>> = HashMap::new();
    let mut working = FuturesUnordered::new();
    // A reconnect: what was missed comes before what is said from then on.
    let mut connected: Option<Item> = None;
    let mut waiting = 0;
    loop {
        if working.is_empty()
            && let Some(item) = connected.take()
        {
            take(onebot, ctx, item).await;
        }
        tokio::select! {
            biased;
            Some(lane) = working.next(), if !working.is_empty() => {
                let next = lanes.get_mut(&lane).and_then(VecDeque::pop_front);
                match next {
                    Some(item) => {
                        waiting -= 1;
                        working.push(one_of(onebot, ctx, item));
                    }
                    None => {
                        lanes.remove(&lane);
                    }
                }
            }
            item = queue.recv(), if connected.is_none() && waiting < TAKEN => {
                let Some(item) = item else { return };
                if matches!(item.what, What::Connected) {
                    connected = Some(item);
                    continue;
                }
                match lanes.entry(item.lane.clone()) {
                    Entry::Occupied(mut lane) => {
                        lane.get_mut().push_back(item);
                        waiting += 1;
                    }
                    Entry::Vacant(lane) => {
                        lane.insert(VecDeque::new());
                        working.push(one_of(onebot, ctx, item));
                    }
                }
            }
        }
    }
}

async fn one_of(onebot: &OneBot, ctx: &ChannelContext, item: Item) -> String {
    let lane = item.lane.clone();
    take(onebot, ctx, item).await;
    lane
}

async fn take(onebot: &OneBot, ctx: &ChannelContext, item: Item) {
    let mut told = item.told;
    match &item.what {
        What::Connected => history::fill(onebot, ctx, &item.bot).await,
        What::Event(_, event) => one(onebot, ctx, &item.bot, event, &mut told).await,
    }
    tell(&mut told, true);
}

/// One event, from its platform form to its commit.
pub async fn one(
    onebot: &OneBot,
    ctx: &ChannelContext,
    bot: &str,
    event: &Value,
    told: &mut Option<oneshot::Sender<bool>>,
) {
    match inbound::read(&onebot.id, bot, event) {
        Event::Said(mut said) => {
            onebot.recent.saw(&said.chat, &said.message, &said.inbound.platform_id);
            gather::complete(onebot, ctx, bot, &mut said).await;
            let seen = history::seen(onebot, ctx, bot, &said).await;
            let Said { inbound, chat, message, time, .. } = *said;
            if offer(onebot, ctx, inbound, seen, told).await {
                history::stored(onebot, bot, &chat, &message, time).await;
            }
        }
        Event::Recalled { chat, message, user, time } => {
            let mut inbound = inbound::recalled(&onebot.id, bot, &chat, &message, &user, time);
            if ctx.intake.wants_files(&inbound)
                && let Some(key) = gather::key_of(onebot, bot, &chat, &message).await
            {
                inbound.about = Some(key);
            }
            offer(onebot, ctx, inbound, None, told).await;
        }
        Event::Friend { user, flag } => {
            let asked = Request { what: "friend request", action: "set_friend_add_request", user: &user };
            answer(onebot, bot, &onebot.config.friend_requests, asked, json!({ "flag": flag, "approve": true })).await;
        }
        Event::Invite { user, group, flag } => {
            let asked = Request { what: "invitation into a group", action: "set_group_add_request", user: &user };
            let params = json!({ "flag": flag, "sub_type": "invite", "type": "invite", "approve": true });
            debug!(group, user, "the bot is invited into a group");
            answer(onebot, bot, &onebot.config.group_invites, asked, params).await;
        }
        Event::Offline(why) => {
            warn!(bot, why, "QQ logged the bot out: log in again on the OneBot side");
            ctx.pulse.link(Link::Down(format!("QQ logged the bot out: {why}")));
        }
        Event::Heartbeat(_) => {}
        Event::Ignored(reason) => {
            onebot.queue.count(reason);
        }
    }
}

struct Request<'a> {
    what: &'static str,
    action: &'static str,
    user: &'a str,
}

/// Grants a request where the policy does; otherwise it waits for a person.
async fn answer(onebot: &OneBot, bot: &str, consent: &Consent, request: Request<'_>, params: Value) {
    let Request { what, action, user } = request;
    if !consent.to(user) {
        info!(bot, user, "a {what} waits for a person: the configuration grants none to this number");
        return;
    }
    match onebot.links.call(bot, action, params, CALL).await {
        Ok(_) => info!(bot, user, "a {what} was granted"),
        Err(error) => warn!(bot, user, %error, "a {what} was not granted"),
    }
}

/// Offers an event until it is stored, or for ten minutes; whether it was. `told` learns of the first refusal at once.
async fn offer(
    onebot: &OneBot,
    ctx: &ChannelContext,
    event: Inbound,
    seen: Option<Cursor>,
    told: &mut Option<oneshot::Sender<bool>>,
) -> bool {
    let platform_id = event.platform_id.clone();
    let batch = Batch { channel: Some(onebot.id.clone()), events: vec![event], cursor: seen, moved: Vec::new() };
    let until = ctx.clock.monotonic() + HELD;
    let mut pause = Duration::from_millis(500);
    loop {
        let error = match ctx.intake.accept(batch.clone()).await {
            Ok(answers) => {
                if let Some(Accepted::Full(_)) = answers.first() {
                    warn!(platform_id, "the session's queue is full: a message is not taken");
                }
                return true;
            }
            Err(error) => error,
        };
        tell(told, false);
        if ctx.clock.monotonic() >= until {
            let lost = onebot.queue.count("event_given_up");
            warn!(platform_id, lost, %error, "an event could not be stored for ten minutes and is lost");
            return false;
        }
        let wait = match error {
            IntakeError::Busy(wait) => wait.clamp(Duration::from_millis(100), LONGEST_PAUSE),
            IntakeError::Unavailable(_) => pause,
        };
        debug!(platform_id, %error, "an event is held until it can be stored");
        ctx.clock.sleep(wait).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn tell(told: &mut Option<oneshot::Sender<bool>>, stored: bool) {
    if let Some(told) = told.take() {
        let _ = told.send(stored);
    }
}

/// Whether a call failed because the implementation has no such action.
pub fn is_unsupported(error: &CallError) -> bool {
    matches!(error, CallError::Failed(failure) if failure.unsupported())
}
