//! Every message delivered one to five times, out of order, over restarts: one turn each. R4 of guarantees.md §1.5.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use tokio::{sync::Mutex, task::JoinSet};

use crate::support::{
    bridge::{Bridge, Receiver, marked},
    chance::{Chance, scale},
    gateway::Gateway,
    mark::Mark,
    model_server::ModelServer,
};

/// Deliveries under way at once.
const AT_ONCE: usize = 32;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r4_messages_delivered_many_times_out_of_order_over_restarts_have_one_turn_each() {
    let updates = u32::try_from(scale("CRAWFISH_UPDATES", 2_000)).expect("a number of updates");
    let mut chance = Chance::seeded("R4");
    let (model, receiver) = (ModelServer::echo().await, Receiver::start().await);
    let section = Bridge::section(&format!("{}\nqueue = \"followup\"", receiver.lines()));
    let mut gateway = Gateway::start(&format!("{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    let marks: Vec<Mark> = (0..updates).map(|n| Mark { session: n % 100 + 1, n: n / 100 + 1 }).collect();
    let mut deliveries: Vec<Mark> = Vec::new();
    for mark in &marks {
        for _ in 0..chance.within(1..6) {
            deliveries.push(*mark);
        }
    }
    chance.shuffle(&mut deliveries);
    let all = deliveries.len();
    let deliveries = Arc::new(Mutex::new(deliveries));
    let mut senders = JoinSet::new();
    for _ in 0..AT_ONCE {
        let (bridge, deliveries) = (bridge.clone(), Arc::clone(&deliveries));
        senders.spawn(async move {
            let (mut fresh, mut again) = (0_u32, 0_u32);
            loop {
                let Some(mark) = deliveries.lock().await.pop() else { return (fresh, again) };
                let answer = bridge.deliver(&marked(mark)).await;
                if answer.body["duplicate"] == true { again += 1 } else { fresh += 1 }
            }
        });
    }
    // Two kills and two stops, spread over the run.
    let mut restarts: u32 = 0;
    for part in [4, 3, 2, 1] {
        let left = all * part / 5;
        crate::support::wait::until("the deliveries", Duration::from_secs(240), async || {
            (deliveries.lock().await.len() <= left).then_some(())
        })
        .await;
        if part % 2 == 0 {
            gateway.kill9().await;
        } else {
            assert_eq!(gateway.terminate().await.0, Some(0), "{}", gateway.log());
        }
        gateway.restart().await;
        restarts += 1;
    }
    let (mut fresh, mut again) = (0, 0);
    while let Some(sender) = senders.join_next().await {
        let (one, two) = sender.expect("no sender failed");
        fresh += one;
        again += two;
    }
    let callbacks = receiver
        .until("every answer", Duration::from_secs(120), |callbacks| {
            callbacks.iter().map(|callback| callback.in_reply_to()).collect::<std::collections::BTreeSet<_>>().len()
                >= marks.len()
        })
        .await;
    println!("R4: {updates} updates, {all} deliveries ({fresh} new, {again} known), {restarts} restarts");
    let mut ids: BTreeMap<&str, std::collections::BTreeSet<&str>> = BTreeMap::new();
    for callback in &callbacks {
        ids.entry(callback.in_reply_to()).or_default().insert(&callback.id);
    }
    assert_eq!(ids.len(), marks.len(), "an answer each");
    let twice: Vec<_> = ids.iter().filter(|(_, ids)| ids.len() > 1).collect();
    assert!(twice.is_empty(), "answered more than once: {twice:?}");
    // One turn each; a kill may have cut some of the turns under way off, which then began again.
    let mut turns: BTreeMap<Mark, u32> = BTreeMap::new();
    for visit in model.visits() {
        for mark in visit.marks {
            *turns.entry(mark).or_insert(0) += 1;
        }
    }
    assert_eq!(turns.len(), marks.len());
    let extra: u32 = turns.values().map(|count| count - 1).sum();
    assert!(extra <= restarts * 100, "{extra} turns ran again at {restarts} restarts");
    assert!(turns.values().all(|count| *count <= 1 + restarts));
    assert!(again > 0 && fresh >= updates - 4 * AT_ONCE as u32, "{fresh} new, {again} known");
    receiver.assert_all_signed();
}
