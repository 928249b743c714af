//! Previews on a platform that does as it is told, with a clock of our own and the real rows.

use std::{collections::VecDeque, sync::Mutex};

use async_trait::async_trait;
use channel_api::{
    Capabilities, ChannelContext, ChannelError, ChannelId, Level, Part, Receipt, Reply, SendKey, contract::FakeClock,
};
use tokio::sync::watch;

use super::*;
use crate::store::{
    ClaimAsk, ClaimKind, NewBatch, Store,
    conformance::{self, Fixture, boot, new_entry},
};

const SECOND: Duration = Duration::from_secs(1);

/// How the platform takes a call.
enum Takes {
    Fails(SendError),
    /// Not before the gate opens.
    Later(watch::Receiver<bool>),
    Panics,
}

/// A platform that shows what it is given.
struct Shows {
    id: ChannelId,
    pace: LivePace,
    takes: Mutex<VecDeque<Takes>>,
    /// `+text` begun, `=text` updated, `-id` taken away.
    calls: watch::Sender<Vec<String>>,
}

impl Shows {
    async fn called(&self, call: String) -> Result<(), SendError> {
        self.calls.send_modify(|calls| calls.push(call));
        let takes = self.takes.lock().expect("no test panics with it").pop_front();
        match takes {
            None => Ok(()),
            Some(Takes::Fails(why)) => Err(why),
            Some(Takes::Later(mut gate)) => gate.wait_for(|open| *open).await.map(drop).map_err(|_| gone()),
            Some(Takes::Panics) => std::panic::resume_unwind(Box::new("live")),
        }
    }
}

fn gone() -> SendError {
    SendError::Refused("gone".to_owned())
}

#[async_trait]
impl Channel for Shows {
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
impl LiveEdit for Shows {
    fn pace(&self, _: &Address) -> LivePace {
        self.pace
    }

    async fn begin(&self, _: &Address, text: &str) -> Result<Preview, SendError> {
        self.called(format!("+{text}")).await?;
        Ok(preview())
    }

    async fn update(&self, _: &Address, preview: &Preview, text: &str) -> Result<(), SendError> {
        assert_eq!(preview.id, "m1");
        self.called(format!("={text}")).await
    }

    async fn drop_preview(&self, _: &Address, preview: &Preview) {
        let _ = self.called(format!("-{}", preview.id)).await;
    }
}

fn preview() -> Preview {
    Preview { id: "m1".to_owned(), replaced: true }
}

fn to() -> Address {
    Address { channel: ChannelId::new("test", "main"), lane: "s".to_owned(), data: serde_json::Value::Null }
}

/// A turn that is shown.
struct Kit {
    shows: Arc<Shows>,
    calls: watch::Receiver<Vec<String>>,
    clock: Arc<FakeClock>,
    store: Arc<dyn Store>,
    lease: Lease,
    texts: mpsc::Sender<LiveEvent>,
    progress: Progress,
    _keep: Box<dyn std::any::Any + Send>,
}

const EDITS: LivePace = LivePace::Edits { first: 5, every: SECOND, most: None };

async fn kit(pace: LivePace, takes: Vec<Takes>, shown: Option<Shown>) -> Kit {
    let Fixture { store, keep } = conformance::sqlite().await;
    let entries = vec![new_entry("1", "s", "a")];
    store.accept(NewBatch { entries, ..NewBatch::default() }).await.expect("accepts");
    let ask = ClaimAsk { boot: boot("bt_1"), now: 2_000, max: 1, max_entries: 1, kind: ClaimKind::Ordinary };
    let lease = store.claim(&ask).await.expect("claims").pop().expect("one is due").lease;
    let (calls, seen) = watch::channel(Vec::new());
    let id = ChannelId::new("test", "main");
    let shows = Arc::new(Shows { id, pace, takes: Mutex::new(takes.into()), calls });
    let clock = Arc::new(FakeClock::at(0));
    let (texts, events) = mpsc::channel(64);
    let showing = Showing {
        channel: shows.clone(),
        to: to(),
        line: "working".to_owned(),
        clock: clock.clone(),
        turns: Arc::clone(&store) as Arc<dyn TurnStore>,
        lease: lease.clone(),
        shown,
        waited: Duration::ZERO,
    };
    let progress = showing.start(pace, matches!(pace, LivePace::Edits { .. }).then_some(events));
    Kit { shows, calls: seen, clock, store, lease, texts, progress, _keep: keep }
}

impl Kit {
    async fn says(&self, text: &str) {
        self.texts.send(LiveEvent::Text(text.to_owned())).await.expect("it listens");
    }

    async fn waits(&self, line: &str) {
        self.texts.send(LiveEvent::Waiting(line.to_owned())).await.expect("it listens");
    }

    /// Waits until exactly this was called.
    async fn called(&mut self, expected: &[&str]) {
        let enough = self.calls.wait_for(|calls| calls.len() >= expected.len());
        let calls =
            tokio::time::timeout(Duration::from_secs(10), enough).await.expect("it is called").expect("it lives");
        assert_eq!(*calls, expected);
    }

    /// Waits until it has nothing to do before the clock moves or a text comes.
    async fn rests(&self, sleepers: usize) {
        self.clock.until_sleeping(sleepers).await;
    }
}

#[tokio::test]
async fn a_preview_begins_with_enough_text_and_grows_at_its_pace() {
    let mut kit = kit(EDITS, Vec::new(), None).await;
    kit.says("1234").await;
    kit.says("12345").await;
    kit.called(&["+12345"]).await;
    kit.says("123456").await;
    kit.rests(1).await;
    kit.says("1234567").await;
    kit.clock.advance(SECOND);
    kit.called(&["+12345", "=1234567"]).await;
    kit.says("12345678").await;
    kit.rests(1).await;
    let shown = kit.progress.end().await;
    assert_eq!(shown, Some(Shown { to: to(), preview: preview() }));
    assert_eq!(kit.calls.borrow().len(), 2, "nothing is called after the end");
    // What is shown was kept: the turn that goes on finds it.
    let recovered = kit.store.recover(&boot("bt_2"), 3_000, crate::store::no_apology()).await.expect("recovers");
    assert_eq!(recovered.entries, 1);
    let ask = ClaimAsk { boot: boot("bt_2"), now: 4_000, max: 1, max_entries: 1, kind: ClaimKind::Suspect };
    assert_eq!(kit.store.claim(&ask).await.expect("claims")[0].shown, shown);
}

#[tokio::test]
async fn that_an_answer_is_waited_for_is_shown_at_once_and_gives_way_to_it() {
    let mut kit = kit(EDITS, Vec::new(), None).await;
    kit.waits("slow").await;
    kit.called(&["+slow"]).await;
    kit.says("12").await;
    kit.waits("slow again").await;
    kit.rests(1).await;
    kit.clock.advance(SECOND);
    kit.called(&["+slow", "=12"]).await;
    kit.progress.end().await;
}

#[tokio::test]
async fn the_end_waits_for_the_call_under_way_and_no_longer_than_its_limit() {
    for opens in [true, false] {
        let (gate, opened) = watch::channel(false);
        let mut kit = kit(EDITS, vec![Takes::Later(opened)], None).await;
        kit.says("12345").await;
        kit.called(&["+12345"]).await;
        kit.rests(1).await;
        let clock = kit.clock.clone();
        let mut end = JoinSet::new();
        end.spawn(kit.progress.end());
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert!(end.try_join_next().is_none(), "the call may still arrive");
        if opens {
            gate.send_replace(true);
        } else {
            clock.advance(CALL);
        }
        let shown = end.join_next().await.expect("it ends").expect("well");
        assert_eq!(shown.is_some(), opens);
    }
}

#[tokio::test]
async fn a_platform_that_asks_to_wait_is_left_alone_until_then_and_one_that_refuses_for_good() {
    let wait = Takes::Fails(SendError::RetryAfter(30 * SECOND));
    let (_gate, open) = watch::channel(true);
    let mut kit = kit(EDITS, vec![Takes::Later(open), wait, Takes::Fails(gone())], None).await;
    kit.says("first").await;
    kit.called(&["+first"]).await;
    kit.says("second").await;
    kit.rests(1).await;
    kit.clock.advance(SECOND);
    kit.called(&["+first", "=second"]).await;
    kit.rests(1).await;
    kit.clock.advance(29 * SECOND);
    kit.says("third").await;
    kit.rests(1).await;
    assert_eq!(kit.calls.borrow().len(), 2);
    kit.clock.advance(SECOND);
    kit.called(&["+first", "=second", "=third"]).await;
    kit.says("fourth").await;
    kit.clock.advance(60 * SECOND);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(kit.progress.end().await.is_some(), "the answer still takes its place");
    assert_eq!(kit.calls.borrow().len(), 3);
}

#[tokio::test]
async fn a_preview_that_does_not_begin_is_given_up() {
    for takes in [Takes::Fails(SendError::RetryAfter(SECOND)), Takes::Fails(gone()), Takes::Panics] {
        let mut kit = kit(EDITS, vec![takes], None).await;
        kit.says("12345").await;
        kit.called(&["+12345"]).await;
        kit.says("123456").await;
        kit.clock.advance(60 * SECOND);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(kit.progress.end().await, None);
        assert_eq!(kit.calls.borrow().len(), 1);
    }
}

#[tokio::test]
async fn one_line_says_that_the_work_goes_on_once() {
    let mut kit = kit(LivePace::OneLine { after: 10 * SECOND }, Vec::new(), None).await;
    kit.rests(1).await;
    kit.clock.advance(9 * SECOND);
    kit.rests(1).await;
    assert!(kit.calls.borrow().is_empty());
    kit.clock.advance(SECOND);
    kit.called(&["+working"]).await;
    kit.clock.advance(600 * SECOND);
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(kit.progress.end().await.is_some());
    assert_eq!(kit.calls.borrow().len(), 1);
}

#[tokio::test]
async fn an_earlier_preview_is_updated_and_no_second_one_begins() {
    let shown = Shown { to: to(), preview: preview() };
    let mut edits = kit(EDITS, Vec::new(), Some(shown.clone())).await;
    edits.says("new").await;
    edits.called(&["=new"]).await;
    assert_eq!(edits.progress.end().await, Some(shown.clone()));
    // Where updates are counted, nobody knows how many there were; a line is there already.
    for pace in [LivePace::Edits { first: 1, every: SECOND, most: Some(5) }, LivePace::OneLine { after: SECOND }] {
        let kit = kit(pace, Vec::new(), Some(shown.clone())).await;
        let _ = kit.texts.send(LiveEvent::Text("new".to_owned())).await;
        kit.clock.advance(600 * SECOND);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(kit.progress.end().await, Some(shown.clone()));
        assert!(kit.calls.borrow().is_empty());
    }
}

#[tokio::test]
async fn a_turn_that_is_somebody_elses_by_now_takes_its_preview_back() {
    let (gate, opened) = watch::channel(false);
    let mut kit = kit(EDITS, vec![Takes::Later(opened)], None).await;
    kit.says("12345").await;
    kit.called(&["+12345"]).await;
    kit.store.recover(&boot("bt_2"), 3_000, crate::store::no_apology()).await.expect("recovers");
    gate.send_replace(true);
    kit.called(&["+12345", "-m1"]).await;
    assert_eq!(kit.progress.end().await, None);
}

#[tokio::test]
async fn what_turns_left_behind_is_taken_away_once() {
    let mut kit = kit(EDITS, Vec::new(), None).await;
    kit.says("12345").await;
    kit.called(&["+12345"]).await;
    assert!(kit.progress.end().await.is_some());
    let claimed = conformance::finish_of_lease(&kit.lease, "1");
    let finish = crate::store::Finish { preview_left: true, ..claimed };
    kit.store.finish(finish).await.expect("finishes");
    let policy = crate::intake::access::ChannelPolicy::default();
    let access = crate::intake::access::AccessConfig::default();
    let entry = crate::channels::Entry::new(kit.shows.clone(), policy, &access, false);
    let turns = Arc::clone(&kit.store) as Arc<dyn TurnStore>;
    let ended = CancellationToken::new();
    let mut task = JoinSet::new();
    task.spawn(sweep(Arc::clone(&turns), Channels::new([entry]), kit.clock.clone(), ended.clone()));
    kit.clock.until_sleeping(1).await;
    assert_eq!(turns.left_previews(9).await, Ok(Vec::new()));
    ended.cancel();
    task.join_next().await.expect("it ends").expect("well");
    assert_eq!(*kit.calls.borrow(), ["+12345", "-m1"]);
}

#[test]
fn nothing_is_shown_too_early_too_often_or_twice() {
    let now = Duration::ZERO;
    let mut pacing = Pacing::new(LivePace::Edits { first: 3, every: SECOND, most: Some(1) }, now, false);
    for (text, next) in
        [("", Next::Wait(None)), ("汉字", Next::Wait(None)), ("   ", Next::Wait(None)), ("汉字!", Next::Call)]
    {
        assert_eq!(pacing.next(&Newer::text(text.to_owned()), now), next, "{text:?}");
    }
    pacing.done("abc".to_owned(), now);
    assert_eq!(pacing.next(&Newer::text("abc".to_owned()), now), Next::Wait(None));
    assert_eq!(pacing.next(&Newer::text("abcd".to_owned()), now), Next::Wait(Some(SECOND)));
    assert_eq!(pacing.next(&Newer::text("a".to_owned()), SECOND), Next::Call, "once begun, any text is shown");
    pacing.done("a".to_owned(), SECOND);
    assert_eq!(pacing.next(&Newer::text("abcde".to_owned()), 9 * SECOND), Next::Wait(None), "the platform counts");
    let endless = LivePace::OneLine { after: Duration::MAX };
    assert_eq!(
        Pacing::new(endless, SECOND, false).next(&Newer::text("".to_owned()), SECOND),
        Next::Wait(Some(Duration::MAX))
    );
    // Earlier tries of the turn count: the line comes ten seconds after the question, not after the last try began.
    let line = Pacing::new(LivePace::OneLine { after: SECOND * 10 }, SECOND * 5, false);
    assert_eq!(line.next(&Newer::text("".to_owned()), SECOND * 12), Next::Wait(Some(SECOND * 15)));
    assert_eq!(line.next(&Newer::text("".to_owned()), SECOND * 15), Next::Call);
    assert_eq!(Pacing::new(LivePace::Off, now, false).next(&Newer::text("abc".to_owned()), now), Next::Wait(None));
}

#[test]
fn the_plan_stands_above_the_text_and_a_step_below_it() {
    let mut now = Now::default();
    let says = |says: &str, waiting| Newer { says: says.to_owned(), waiting };
    assert_eq!(now.with(LiveEvent::Step("exec".to_owned())), says("🔧 exec …", false));
    // A plan is shown however short it is.
    assert_eq!(now.with(LiveEvent::Plan("📋 0/1".to_owned())), says("📋 0/1\n\n🔧 exec …", true));
    assert_eq!(now.with(LiveEvent::Text("so".to_owned())), says("📋 0/1\n\nso", true));
    assert_eq!(now.with(LiveEvent::Step("read, ls".to_owned())), says("📋 0/1\n\nso\n\n🔧 read, ls …", true));
}
