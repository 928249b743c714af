//! Load: many conversations at once through one bridge, each in order, none giving up until its message is acknowledged.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::{sync::watch, task::JoinSet};

use super::{
    bridge::{Bridge, Callback, Receiver, marked},
    chance::Chance,
    checker::{Record, Taken},
    effects,
    gateway::Gateway,
    mark::Mark,
    model_server::{Ask, ModelServer, Say, echo},
};

/// Reads, then has an effect, then answers: a turn of two tool steps.
pub fn two_steps(ask: &Ask) -> Say {
    let Some(mark) = ask.marks().first().copied() else { return echo(ask) };
    match ask.round() {
        0 => Say::Calls(vec![effects::look(&format!("look-{}", mark.id()), mark)]),
        1 => Say::Calls(vec![effects::effect(&format!("do-{}", mark.id()), mark)]),
        _ => echo(ask),
    }
}

/// Conversations that write until they are told to stop.
pub struct Load {
    acked: Arc<Mutex<BTreeSet<Mark>>>,
    stop: watch::Sender<bool>,
    senders: JoinSet<()>,
}

impl Load {
    /// `sessions` conversations, each writing about `per_second` messages; a message is acknowledged before the next.
    pub fn start(bridge: &Bridge, sessions: u32, per_second: f64, chance: &mut Chance) -> Self {
        let acked = Arc::new(Mutex::new(BTreeSet::new()));
        let (stop, _) = watch::channel(false);
        let mut senders = JoinSet::new();
        for session in 1..=sessions {
            let (bridge, acked, mut stop) = (bridge.clone(), Arc::clone(&acked), stop.subscribe());
            let mut chance = chance.branch();
            let pause = 1000.0 / per_second;
            senders.spawn(async move {
                for n in 1.. {
                    let pause = chance.millis((pause * 0.5) as u64..(pause * 1.5) as u64 + 1);
                    let stopped = async { stop.wait_for(|stop| *stop).await.map(drop) };
                    if tokio::time::timeout(pause, stopped).await.is_ok() {
                        return;
                    }
                    let mark = Mark { session, n };
                    bridge.deliver(&marked(mark)).await;
                    acked.lock().unwrap_or_else(PoisonError::into_inner).insert(mark);
                }
            });
        }
        Self { acked, stop, senders }
    }

    /// Stops writing, once the messages under way are acknowledged; all of them.
    pub async fn end(mut self) -> BTreeSet<Mark> {
        self.stop.send_replace(true);
        let ending = async { while self.senders.join_next().await.transpose().expect("no sender failed").is_some() {} };
        tokio::time::timeout(super::wait::SOON, ending).await.expect("every message under way is acknowledged");
        std::mem::take(&mut self.acked.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What the callbacks say.
pub fn taken(callbacks: &[Callback]) -> Vec<Taken> {
    let taken = callbacks.iter().filter(|callback| callback.taken);
    taken
        .map(|callback| {
            let mut marks = Mark::all_in(callback.text());
            if let Ok(mark) = callback.in_reply_to().parse()
                && !marks.contains(&mark)
            {
                marks.push(mark);
            }
            Taken {
                id: callback.id.clone(),
                marks,
                seq: callback.body["seq"].as_u64().unwrap_or_default(),
                last: callback.body["final"] == true,
            }
        })
        .collect()
}

/// Waits until every acknowledged message has its answer, then gathers what everyone saw.
pub async fn gather(
    gateway: &Gateway,
    bridge: &Bridge,
    model: &ModelServer,
    receiver: &Receiver,
    acked: BTreeSet<Mark>,
    kills: u32,
) -> Record {
    use channel_api::Clock;
    let clock = crawfish::clock::SystemClock::new();
    let began = clock.monotonic();
    let all_answered = |callbacks: &[Callback]| {
        let answered: BTreeSet<Mark> = taken(callbacks).into_iter().flat_map(|taken| taken.marks).collect();
        acked.is_subset(&answered)
    };
    // A break of I1 or I6 is for the checker to tell, with the message's name.
    let quiet = tokio::time::timeout(
        Duration::from_secs(60),
        receiver.until("every answer", Duration::from_secs(600), all_answered),
    )
    .await;
    let quiet_after = quiet.is_ok().then(|| clock.monotonic() - began);
    let mut stored = BTreeSet::new();
    for mark in &acked {
        if matches!(bridge.poll(&mark.id()).await.status, 200 | 202) {
            stored.insert(*mark);
        }
    }
    let letters = gateway.cli(&["dlq", "list", "--json"]).await;
    let dead = acked.iter().filter(|mark| letters.out.contains(&format!("\"{}\"", mark.id()))).copied().collect();
    let visits = model.visits();
    let effects: BTreeMap<Mark, u32> = effects::count(&gateway.workspace());
    Record {
        acked,
        stored,
        visits,
        callbacks: taken(&receiver.callbacks()),
        effects,
        kills,
        quiet_after,
        dead,
        poison: BTreeSet::new(),
    }
}
