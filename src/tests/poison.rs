//! Messages that kill the process, panic, or never get an answer from the model: they alone become dead letters, and their
//! neighbours are answered. R5 of guarantees.md §1.5.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use channel_api::Clock;
use crawfish::clock::SystemClock;

use crate::support::{
    bridge::{Bridge, Receiver, marked},
    chance::{Chance, scale},
    checker,
    gateway::Gateway,
    load,
    mark::Mark,
    model_server::{ModelServer, Say, echo},
};

const SESSIONS: u32 = 20;

/// What is wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Poison {
    /// The process dies when the model is asked about it.
    Kills,
    /// The turn panics.
    Panics,
    /// The model answers 500, always.
    Fails,
}

/// The word in its text that sets it off.
fn word(poison: Poison) -> &'static str {
    match poison {
        Poison::Kills => "hemlock",
        Poison::Panics => "nightshade",
        Poison::Fails => "ricin",
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r5_poison_alone_becomes_dead_letters_and_its_neighbours_are_answered() {
    let messages = u32::try_from(scale("CRAWFISH_POISON", 100)).expect("a number of messages");
    let mut chance = Chance::seeded("R5");
    let deadly = Arc::new(AtomicBool::new(false));
    let struck = Arc::clone(&deadly);
    let model = ModelServer::start(move |ask| {
        if ask.said().contains(word(Poison::Kills)) {
            struck.store(true, Ordering::SeqCst);
            return Say::Hang;
        }
        if ask.said().contains(word(Poison::Fails)) {
            return Say::Status(500, None);
        }
        Say::Slowly(Duration::from_millis(ask.n * 7 % 30), Box::new(echo(ask)))
    })
    .await;
    let receiver = Receiver::start().await;
    let section = Bridge::section(&format!("{}\nqueue = \"followup\"", receiver.lines()));
    let mut gateway = Gateway::folder(&format!("{}\n{section}", model.section()));
    gateway.fail_at(&format!("turn.said=return({});turn.pause=return", word(Poison::Panics)));
    gateway.restart().await;
    let bridge = Bridge::to(&gateway);

    // One in a hundred of each kind, each in a session of its own so that what waits behind it is seen to be answered.
    let marks: Vec<Mark> = (0..messages).map(|n| Mark { session: n % SESSIONS + 1, n: n / SESSIONS + 1 }).collect();
    let mut places: Vec<usize> = (0..marks.len()).collect();
    chance.shuffle(&mut places);
    let of_each = marks.len().div_ceil(100);
    let kinds = [Poison::Kills, Poison::Panics, Poison::Fails];
    let poison: Vec<(Mark, Poison)> =
        places.iter().zip(kinds.iter().cycle()).take(of_each * 3).map(|(place, kind)| (marks[*place], *kind)).collect();
    let mut sending = tokio::task::JoinSet::new();
    for session in 1..=SESSIONS {
        let (bridge, poison) = (bridge.clone(), poison.clone());
        let marks: Vec<Mark> = marks.iter().filter(|mark| mark.session == session).copied().collect();
        sending.spawn(async move {
            for mark in marks {
                let mut body = marked(mark);
                if let Some((_, kind)) = poison.iter().find(|(poisoned, _)| *poisoned == mark) {
                    body["text"] = format!("please do {mark} with {}", word(*kind)).into();
                }
                bridge.deliver(&body).await;
            }
        });
    }
    // Whoever runs the gateway starts it again each time it dies.
    let mut kills = 0;
    let poisoned: BTreeSet<Mark> = poison.iter().map(|(mark, _)| *mark).collect();
    let clock = SystemClock::new();
    let began = clock.monotonic();
    let patience = Duration::from_secs(150 + 20 * of_each as u64);
    loop {
        if deadly.swap(false, Ordering::SeqCst) {
            gateway.kill9().await;
            kills += 1;
            // What it asked before it died says nothing of the next start.
            deadly.store(false, Ordering::SeqCst);
            gateway.restart().await;
        }
        let answered: BTreeSet<Mark> =
            load::taken(&receiver.callbacks()).into_iter().flat_map(|taken| taken.marks).collect();
        if sending.is_empty() && marks.iter().all(|mark| answered.contains(mark)) {
            break;
        }
        while let Some(sent) = sending.try_join_next() {
            sent.expect("no sender failed");
        }
        let missing: Vec<String> =
            marks.iter().filter(|mark| !answered.contains(mark)).take(10).map(Mark::to_string).collect();
        assert!(clock.monotonic() - began < patience, "no word about {missing:?}:\n{}", gateway.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let mut record = load::gather(&gateway, &bridge, &model, &receiver, marks.iter().copied().collect(), kills).await;
    record.poison = poisoned;
    println!(
        "R5: {} messages, {} poisoned, {kills} crashes, {:?}",
        record.acked.len(),
        record.poison.len(),
        clock.monotonic() - began
    );
    checker::assert_unbroken(&record);
    // Three crashes bury a killer; the first of all may have come while others ran beside it, and then counts against nobody.
    let most = 4 * of_each;
    assert!((3 * of_each..=most).contains(&(kills as usize)), "{kills} crashes:\n{}", gateway.log());
    model.assert_strict_order();
    assert_eq!(gateway.terminate().await.0, Some(0));
}
