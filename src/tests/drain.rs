//! SIGTERM under load: exit 0 in time, nothing lost, nothing doubled. R6 of guarantees.md §1.5.

use std::time::Duration;

use crate::support::{
    bridge::{Bridge, Receiver},
    chance::{Chance, scale},
    checker, effects,
    gateway::Gateway,
    load::{self, Load, two_steps},
    model_server::{ModelServer, Say},
};

const SESSIONS: u32 = 20;
/// The default of `[limits] drain_s`.
const DRAIN: Duration = Duration::from_secs(6);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r6_a_stop_under_load_is_clean_in_time_and_doubles_nothing() {
    let stops = u32::try_from(scale("CRAWFISH_STOPS", 20)).expect("a number of stops");
    let mut chance = Chance::seeded("R6");
    let model =
        ModelServer::start(|ask| Say::Slowly(Duration::from_millis(ask.n * 13 % 120), Box::new(two_steps(ask)))).await;
    let receiver = Receiver::start().await;
    let section = Bridge::section(&format!("{}\nqueue = \"followup\"", receiver.lines()));
    let mut gateway = Gateway::folder(&format!("{}\n{section}", model.section()));
    for session in 1..=SESSIONS {
        effects::prepare(&gateway.workspace(), session);
    }
    gateway.restart().await;
    let bridge = Bridge::to(&gateway);
    let load = Load::start(&bridge, SESSIONS, 2.0, &mut chance);
    let mut longest = Duration::ZERO;
    for stop in 1..=stops {
        tokio::time::sleep(chance.millis(100..600)).await;
        let (code, time) = gateway.terminate().await;
        assert_eq!(code, Some(0), "stop {stop}:\n{}", gateway.log());
        assert!(time <= DRAIN + Duration::from_secs(1), "stop {stop} took {time:?}");
        longest = longest.max(time);
        gateway.restart().await;
    }
    let acked = load.end().await;
    let record = load::gather(&gateway, &bridge, &model, &receiver, acked, 0).await;
    println!(
        "R6: {stops} stops, the longest {longest:?}, {} messages, quiet after {:?}",
        record.acked.len(),
        record.quiet_after
    );
    // With no kills the checker allows no second copy of anything.
    checker::assert_unbroken(&record);
    model.assert_strict_order();
    receiver.assert_all_signed();
    assert!(record.acked.len() >= stops as usize * 2, "only {} messages", record.acked.len());
    let ran = record.effects.values().filter(|count| **count == 1).count();
    assert_eq!(ran, record.acked.len(), "a stop interrupts no effect");
}

#[tokio::test]
async fn a_second_signal_ends_at_once_with_130() {
    let model = ModelServer::start(|_| Say::Hang).await;
    let mut gateway = Gateway::start(&format!("{}\n{}", model.section(), Bridge::section(""))).await;
    let bridge = Bridge::to(&gateway);
    bridge.accepted(&crate::support::bridge::message("m1", "room", "hang")).await;
    model.asked_about("hang").await;
    gateway.signal("TERM").await;
    gateway.logged("stopping").await;
    gateway.signal("INT").await;
    let (code, time) = gateway.ended().await;
    assert_eq!(code, Some(130), "{}", gateway.log());
    assert!(time < Duration::from_secs(3), "{time:?}");
}

#[tokio::test]
async fn a_turn_that_hangs_does_not_hold_up_a_stop_and_goes_on_after_the_start() {
    let model = ModelServer::start(|_| Say::Hang).await;
    let receiver = Receiver::start().await;
    let section = Bridge::section(&receiver.lines());
    let mut gateway = Gateway::start(&format!("[limits]\ndrain_s = 1\n{}\n{section}", model.section())).await;
    let bridge = Bridge::to(&gateway);
    bridge.accepted(&crate::support::bridge::message("m1", "room", "hang")).await;
    model.asked_about("hang").await;
    let (code, time) = gateway.terminate().await;
    assert_eq!(code, Some(0), "{}", gateway.log());
    assert!(time < Duration::from_secs(4), "{time:?}");
    model.follow(crate::support::model_server::echo);
    gateway.restart().await;
    assert!(receiver.answer_to("m1").await.text().contains("hang"));
}
