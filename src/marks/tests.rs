//! Marks on a platform that takes its time, with a clock of our own.

use std::sync::Mutex;

use async_trait::async_trait;
use channel_api::{
    Capabilities, ChannelContext, ChannelError, ChannelId, Level, LiveEdit, LivePace, Part, Preview, Receipt, Reply,
    SendError, SendKey, contract::FakeClock,
};
use tokio::sync::watch;

use super::*;
use crate::{
    channels::Entry,
    intake::access::{AccessConfig, ChannelPolicy},
    session::SessionKey,
    store::conformance::new_entry,
};

struct Reacts {
    id: ChannelId,
    calls: watch::Sender<Vec<(String, Mark)>>,
    /// The next call waits for it.
    gate: Mutex<Option<watch::Receiver<bool>>>,
}

#[async_trait]
impl Channel for Reacts {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        unreachable!("not asked here")
    }

    async fn run(&self, _: ChannelContext) -> Result<(), ChannelError> {
        Ok(())
    }

    fn render(&self, _: &Reply, _: Level) -> Vec<Part> {
        Vec::new()
    }

    async fn send(&self, _: &Address, _: &Part, _: &SendKey) -> Result<Receipt, SendError> {
        Ok(Receipt::default())
    }

    fn live(&self) -> Option<&dyn LiveEdit> {
        Some(self)
    }
}

#[async_trait]
impl LiveEdit for Reacts {
    fn pace(&self, _: &Address) -> LivePace {
        LivePace::Off
    }

    async fn begin(&self, _: &Address, _: &str) -> Result<Preview, SendError> {
        Err(SendError::Refused("no previews".to_owned()))
    }

    async fn update(&self, _: &Address, _: &Preview, _: &str) -> Result<(), SendError> {
        Ok(())
    }

    async fn mark(&self, _: &Address, platform_id: &str, mark: Mark) {
        self.calls.send_modify(|calls| calls.push((platform_id.to_owned(), mark)));
        let gate = self.gate.lock().expect("no test panics with it").take();
        if let Some(mut gate) = gate {
            let _ = gate.wait_for(|open| *open).await;
        }
    }
}

struct Kit {
    marks: Marks,
    calls: watch::Receiver<Vec<(String, Mark)>>,
    clock: Arc<FakeClock>,
    _task: JoinSet<()>,
}

fn kit(policy: Option<Switch>, gate: Option<watch::Receiver<bool>>) -> Kit {
    let (calls, seen) = watch::channel(Vec::new());
    let channel = Arc::new(Reacts { id: ChannelId::new("test", "main"), calls, gate: Mutex::new(gate) });
    let policy = ChannelPolicy { marks: policy, ..ChannelPolicy::default() };
    let channels = Channels::new([Entry::new(channel, policy, &AccessConfig::default(), false)]);
    let clock = Arc::new(FakeClock::at(1_000));
    let (marks, keeper) = Marks::new(channels, Switch::On, clock.clone());
    let mut task = JoinSet::new();
    task.spawn(keeper.run(CancellationToken::new()));
    Kit { marks, calls: seen, clock, _task: task }
}

impl Kit {
    fn message(&self, id: &str) -> Option<Marked> {
        let entry = new_entry(id, "s", "a");
        self.marks.of(&entry.id, &entry.inbound, entry.received_at)
    }

    fn tell(&self, id: &str, mark: Mark) {
        assert!(self.message(id).is_some());
        self.marks.tell(self.message(id), mark);
    }

    async fn called(&mut self, expected: &[(&str, Mark)]) {
        let enough = self.calls.wait_for(|calls| calls.len() >= expected.len());
        let calls =
            tokio::time::timeout(Duration::from_secs(10), enough).await.expect("it is called").expect("it lives");
        let calls: Vec<(&str, Mark)> = calls.iter().map(|(id, mark)| (id.as_str(), *mark)).collect();
        assert_eq!(calls, expected);
    }
}

#[tokio::test]
async fn a_quick_answer_shows_no_mark_and_a_slow_one_loses_it() {
    let mut kit = kit(None, None);
    kit.tell("quick", Mark::Seen);
    kit.tell("quick", Mark::Working);
    kit.clock.until_sleeping(1).await;
    kit.tell("quick", Mark::None);
    kit.tell("slow", Mark::Working);
    // Until the task has taken both and sleeps for the second alone.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    kit.clock.until_sleeping(1).await;
    kit.clock.advance(SETTLES);
    kit.called(&[("slow", Mark::Working)]).await;
    kit.tell("slow", Mark::None);
    kit.called(&[("slow", Mark::Working), ("slow", Mark::None)]).await;
    // What failed or was answered by silence says so at once, shown before or not.
    kit.tell("quick", Mark::Failed);
    kit.called(&[("slow", Mark::Working), ("slow", Mark::None), ("quick", Mark::Failed)]).await;
}

#[tokio::test]
async fn time_that_passed_before_the_message_came_does_not_count() {
    let mut kit = kit(None, None);
    // The task rests: nothing is to be done.
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    kit.clock.advance(Duration::from_secs(60));
    kit.tell("quick", Mark::Working);
    kit.clock.until_sleeping(1).await;
    kit.clock.advance(SETTLES / 2);
    kit.tell("quick", Mark::None);
    kit.tell("next", Mark::Failed);
    kit.called(&[("next", Mark::Failed)]).await;
}

#[tokio::test]
async fn calls_for_one_message_come_one_after_another_and_only_the_newest_counts() {
    let (gate, opened) = watch::channel(false);
    let mut kit = kit(None, Some(opened));
    kit.tell("1", Mark::Seen);
    kit.clock.until_sleeping(1).await;
    kit.clock.advance(SETTLES);
    kit.called(&[("1", Mark::Seen)]).await;
    kit.tell("1", Mark::Working);
    kit.tell("1", Mark::Done);
    kit.tell("2", Mark::Done);
    kit.called(&[("1", Mark::Seen), ("2", Mark::Done)]).await;
    gate.send_replace(true);
    kit.called(&[("1", Mark::Seen), ("2", Mark::Done), ("1", Mark::Done)]).await;
}

#[tokio::test]
async fn what_an_earlier_process_may_have_marked_loses_its_mark() {
    let mut kit = kit(None, None);
    let entry = new_entry("old", "s", "a");
    let old = kit.marks.of(&entry.id, &entry.inbound, 0);
    kit.marks.tell(old, Mark::None);
    kit.called(&[("old", Mark::None)]).await;
}

#[tokio::test]
async fn a_message_that_was_stopped_or_deleted_loses_its_mark() {
    let mut kit = kit(None, None);
    kit.tell("1", Mark::Seen);
    kit.clock.until_sleeping(1).await;
    kit.clock.advance(SETTLES);
    kit.called(&[("1", Mark::Seen)]).await;
    let row = |silent: &str| EventRow {
        seq: 1,
        task: InboxId::from("in_1".to_owned()),
        session: SessionKey::from("s".to_owned()),
        kind: "task_complete".to_owned(),
        data: serde_json::json!({ "silent": silent }),
        at: 0,
    };
    kit.marks.committed(&[row("deleted")]);
    kit.called(&[("1", Mark::Seen), ("1", Mark::None)]).await;
}

#[tokio::test]
async fn only_messages_to_the_bot_are_marked_where_it_is_wanted() {
    let kit = kit(Some(Switch::Off), None);
    assert_eq!(kit.message("1"), None);
    let kit = self::kit(None, None);
    let mut entry = new_entry("1", "s", "a");
    assert!(kit.marks.of(&entry.id, &entry.inbound, 0).is_some());
    entry.inbound.mentions_us = false;
    assert_eq!(kit.marks.of(&entry.id, &entry.inbound, 0), None, "a group message to nobody");
    entry.inbound.mentions_us = true;
    entry.inbound.kind = InboundKind::Button;
    assert_eq!(kit.marks.of(&entry.id, &entry.inbound, 0), None);
}
