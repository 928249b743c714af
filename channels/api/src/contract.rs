//! The behaviour every adapter's tests run, and the in-memory gateway they run it against.
//!
//! Part of the crate and not of its tests, so that each adapter's own tests can call it. It panics where an adapter
//! breaks the contract, never waits for real time but as a bound on failure, and performs no IO.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::{
    Accepted, Batch, Channel, ChannelContext, ChannelError, ChannelKv, Clock, Inbound, InboxId, Intake, IntakeError,
    KvError, Level, LiveEvent, Media, MediaError, MediaRef, MediaSource, MediaStream, Moved, Part, PartId, Pulse,
    Receipt, Reply, SendError, Settled, SettledPart, Settlements,
};

/// A platform that delivers events to the adapter under test: what an adapter's tests write once.
#[async_trait]
pub trait Platform: Send + Sync {
    /// A new adapter, as after a restart.
    fn channel(&self) -> Arc<dyn Channel>;

    /// Delivers event number `n` once more (the same event for the same number, as the platform would repeat it) and
    /// tells whether the adapter acknowledged it.
    async fn deliver(&self, gateway: &FakeGateway, channel: &dyn Channel, n: u32) -> bool;

    /// Delivers the news that a group got a new id, always the same news; tells what it was and whether the adapter
    /// acknowledged it. `None` where groups keep their ids.
    async fn deliver_move(&self, _gateway: &FakeGateway, _channel: &dyn Channel) -> Option<(Moved, bool)> {
        None
    }
}

/// Everything about reception: acknowledged only after the commit, never without one, same key on every delivery.
///
/// # Panics
/// When the adapter breaks one of these.
pub async fn check_reception(platform: &dyn Platform) {
    acknowledges_nothing_that_was_not_stored(platform).await;
    acknowledges_after_the_commit(platform).await;
    gives_one_event_one_key(platform).await;
    tells_moves_like_events(platform).await;
}

/// A full gateway and a broken store both mean: the platform must not be told that its event is safe.
///
/// # Panics
/// When the adapter acknowledges all the same.
pub async fn acknowledges_nothing_that_was_not_stored(platform: &dyn Platform) {
    for refusal in [IntakeError::Busy(Duration::from_secs(2)), IntakeError::Unavailable("disk full".to_owned())] {
        let gateway = FakeGateway::new();
        let channel = platform.channel();
        gateway.intake.answer_next(Err(refusal.clone()));
        assert!(
            !platform.deliver(&gateway, channel.as_ref(), 1).await,
            "acknowledged although the intake said: {refusal}"
        );
        assert!(platform.deliver(&gateway, channel.as_ref(), 1).await, "the next try of the same event must pass");
        assert_eq!(gateway.intake.events().len(), 1, "one event, stored once");
    }
}

/// While `accept` has not returned, nothing is acknowledged.
///
/// # Panics
/// When the adapter acknowledges earlier.
pub async fn acknowledges_after_the_commit(platform: &dyn Platform) {
    let gateway = FakeGateway::new();
    let channel = platform.channel();
    gateway.intake.close_gate();
    let deliver = platform.deliver(&gateway, channel.as_ref(), 1);
    tokio::pin!(deliver);
    tokio::select! {
        biased;
        () = gateway.intake.until_waiting() => {}
        acknowledged = &mut deliver => panic!("answered (acknowledged: {acknowledged}) before the commit"),
    }
    gateway.intake.open_gate();
    assert!(deliver.await, "acknowledged after the commit");
}

/// The same event keeps its platform id over a restart; another event has another.
///
/// # Panics
/// When a key changes or two events share one.
pub async fn gives_one_event_one_key(platform: &dyn Platform) {
    let gateway = FakeGateway::new();
    for _ in 0..2 {
        let channel = platform.channel();
        assert!(platform.deliver(&gateway, channel.as_ref(), 1).await);
    }
    let channel = platform.channel();
    assert!(platform.deliver(&gateway, channel.as_ref(), 2).await);
    let offered: Vec<String> = gateway.intake.offered().into_iter().map(|event| event.platform_id).collect();
    assert_eq!(offered.len(), 3, "each delivery reaches the intake: it alone decides what is a duplicate");
    assert_eq!(offered[0], offered[1], "a second delivery has the same key");
    assert_ne!(offered[0], offered[2], "another event has another key");
    assert_eq!(gateway.intake.events().len(), 2);
}

/// A group's new id is told in a batch that names its channel, and is acknowledged after the commit only.
///
/// # Panics
/// When the news is lost, changed or acknowledged without a commit.
pub async fn tells_moves_like_events(platform: &dyn Platform) {
    let gateway = FakeGateway::new();
    let channel = platform.channel();
    gateway.intake.answer_next(Err(IntakeError::Unavailable("disk full".to_owned())));
    let Some((news, acknowledged)) = platform.deliver_move(&gateway, channel.as_ref()).await else { return };
    assert!(!acknowledged, "the news of a move was acknowledged although it was not stored");
    let again = platform.deliver_move(&gateway, channel.as_ref()).await;
    assert_eq!(again, Some((news.clone(), true)), "the next try of the same news must pass");
    let told: Vec<Batch> = gateway.intake.batches().into_iter().filter(|batch| !batch.moved.is_empty()).collect();
    assert_eq!(told.len(), 2, "each delivery reaches the intake");
    for batch in told {
        assert_eq!(batch.moved, std::slice::from_ref(&news));
        let named =
            batch.channel.as_ref() == Some(channel.id()) || batch.events.iter().any(|e| e.channel == *channel.id());
        assert!(named, "a batch with a move says whose it is");
    }
}

/// Cancelling `shutdown` ends `run` with `Ok` and soon.
///
/// # Panics
/// When `run` goes on, fails, or ends before it was told to.
pub async fn check_shutdown(channel: &dyn Channel, gateway: &FakeGateway) {
    let ctx = gateway.context();
    channel.open(&ctx);
    let run = channel.run(ctx.clone());
    tokio::pin!(run);
    tokio::select! {
        biased;
        ended = &mut run => panic!("run ended before it was told to: {ended:?}"),
        () = tokio::task::yield_now() => {}
    }
    ctx.shutdown.cancel();
    let ended: Result<(), ChannelError> =
        tokio::time::timeout(Duration::from_secs(5), run).await.expect("run goes on after shutdown was cancelled");
    assert!(ended.is_ok(), "a shutdown is no failure: {ended:?}");
}

/// Everything about rendering, at both levels and over texts that have broken gateways before.
///
/// # Panics
/// When a part is empty or too long, words are lost or reordered, or two calls differ.
pub fn check_render(channel: &dyn Channel) {
    for level in [Level::Rich, Level::Plain] {
        for text in texts(channel.capabilities().text_limit) {
            check_rendered(channel, &Reply::message(text), level);
        }
        check_rendered(channel, &Reply::error("it **failed**: <b>no</b> model"), level);
    }
    for level in [Level::Rich, Level::Plain] {
        let silent = channel.render(&Reply::message(""), level);
        assert!(silent.is_empty(), "nothing to say makes no part, got {silent:?}");
    }
}

/// One reply at one level: see [`check_render`].
///
/// # Panics
/// As [`check_render`].
pub fn check_rendered(channel: &dyn Channel, reply: &Reply, level: Level) {
    let capabilities = channel.capabilities();
    let parts = channel.render(reply, level);
    let shown: String = reply.text.chars().take(60).collect();
    assert!(!parts.is_empty(), "a reply became no part at all: {shown:?}");
    assert_eq!(parts, channel.render(reply, level), "render is a function of its arguments: {shown:?}");
    for part in &parts {
        assert!(!part.text.trim().is_empty(), "an empty part of {shown:?} at {level:?}");
        let length = capabilities.text_unit.len(&part.text);
        assert!(
            length <= capabilities.text_limit,
            "a part of {length} where {} fit: {shown:?} at {level:?}",
            capabilities.text_limit
        );
    }
    let read: String = parts.iter().map(|part: &Part| part.text.as_str()).collect::<Vec<_>>().join("\n");
    let mut rest = read.chars().filter(|c| c.is_alphanumeric());
    for wanted in reply.text.chars().filter(|c| c.is_alphanumeric()) {
        assert!(rest.any(|c| c == wanted), "lost {wanted:?} of {shown:?} at {level:?}");
    }
}

/// Replies that broke renderers: long lines, fences at the cut, no spaces, joined emoji, half-open markup, injection.
fn texts(limit: usize) -> Vec<String> {
    let limit = limit.clamp(40, 100_000);
    vec![
        "好的".to_owned(),
        "a".to_owned(),
        "**bold** _leaning_ `code` and ~~gone~~ words".to_owned(),
        "half **open _markup `here".to_owned(),
        "# Title\n\n- one\n- two\n  - three\n\n1. first\n2. second\n\n> quoted".to_owned(),
        "| a | b |\n|---|---|\n| 1 | 2 |".to_owned(),
        "1 < 2 & 3 > 2; \"quotes\" 'single' \\back \\* [CQ:at,qq=all] <b>tag</b> @everyone".to_owned(),
        "word ".repeat(limit / 2),
        "x".repeat(limit * 2 + 1),
        "数".repeat(limit * 2 + 1),
        "天气很好。我们去公园吧！".repeat(limit / 5),
        "👩‍👩‍👧‍👦🇨🇳é".repeat(limit / 4),
        format!("before\n\n```\n{}```\n\nafter", "let x = 1;\n".repeat(limit / 6)),
        format!("{}\n\n{}", "p".repeat(limit - 1), "q".repeat(limit - 1)),
        format!("{}**bold across the cut** {}", "w ".repeat(limit / 2 - 4), "v ".repeat(limit / 2)),
    ]
}

/// The answer to a send as delivery sees it, for tables of an adapter's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendClass {
    /// Delivered.
    Sent,
    /// Try again after the time the platform named.
    RetryAfter(Duration),
    /// Try again with growing pauses.
    Retry,
    /// May have been sent.
    Unknown,
    /// Render again at this level.
    Rerender(Level),
    /// Never.
    Refused,
    /// The channel waits.
    ChannelDown,
}

impl SendClass {
    /// The class of a result.
    pub fn of(result: &Result<Receipt, SendError>) -> Self {
        match result {
            Ok(_) => Self::Sent,
            Err(SendError::RetryAfter(pause)) => Self::RetryAfter(*pause),
            Err(SendError::Retry(_)) => Self::Retry,
            Err(SendError::Unknown(_)) => Self::Unknown,
            Err(SendError::Rerender(level)) => Self::Rerender(*level),
            Err(SendError::Refused(_)) => Self::Refused,
            Err(SendError::ChannelDown(_)) => Self::ChannelDown,
        }
    }
}

/// The gateway as an adapter sees it, in memory.
#[derive(Clone)]
pub struct FakeGateway {
    /// Records what the adapter offers.
    pub intake: Arc<FakeIntake>,
    /// Stands still until told.
    pub clock: Arc<FakeClock>,
    /// The channel's map.
    pub kv: Arc<MemoryKv>,
    /// The media store.
    pub media: Arc<MemoryMedia>,
    /// What became of messages.
    pub settlements: Arc<FakeSettlements>,
    /// Ends `run`.
    pub shutdown: CancellationToken,
}

impl Default for FakeGateway {
    fn default() -> Self {
        Self::new()
    }
}

impl FakeGateway {
    /// Empty, open, at 2026-11-30T00:00:00Z.
    pub fn new() -> Self {
        let settlements = Arc::new(FakeSettlements::default());
        Self {
            intake: Arc::new(FakeIntake::new(settlements.clone())),
            clock: Arc::new(FakeClock::at(1_795_996_800_000)),
            kv: Arc::default(),
            media: Arc::new(MemoryMedia::holding(u64::MAX)),
            settlements,
            shutdown: CancellationToken::new(),
        }
    }

    /// What the adapter is given.
    pub fn context(&self) -> ChannelContext {
        ChannelContext {
            intake: self.intake.clone(),
            shutdown: self.shutdown.clone(),
            clock: self.clock.clone(),
            kv: self.kv.clone(),
            media: self.media.clone(),
            settlements: self.settlements.clone(),
            pulse: Pulse::new(self.clock.clone()),
        }
    }
}

/// Waits for what a test expects; the bound only turns a wait without end into a failure.
async fn expected<T>(what: &str, event: impl Future<Output = T>) -> T {
    match tokio::time::timeout(Duration::from_secs(30), event).await {
        Ok(found) => found,
        Err(_) => panic!("waited in vain until {what}"),
    }
}

/// Locks whether or not a test panicked while it held the lock.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An inbox in memory: unique on the platform id, with a script of answers for the next batches.
pub struct FakeIntake {
    state: Mutex<IntakeState>,
    open: watch::Sender<bool>,
    waiting: watch::Sender<usize>,
    stored: watch::Sender<usize>,
    settlements: Arc<FakeSettlements>,
}

#[derive(Default)]
struct IntakeState {
    script: VecDeque<Result<Vec<Accepted>, IntakeError>>,
    batches: Vec<Batch>,
    offered: Vec<Inbound>,
    stored: Vec<Inbound>,
    refused: usize,
    unwanted: Option<String>,
    rows: HashMap<String, (InboxId, Option<String>)>,
}

impl FakeIntake {
    fn new(settlements: Arc<FakeSettlements>) -> Self {
        Self {
            state: Mutex::default(),
            open: watch::Sender::new(true),
            waiting: watch::Sender::new(0),
            stored: watch::Sender::new(0),
            settlements,
        }
    }

    /// The next batch gets this answer and stores nothing.
    pub fn answer_next(&self, answer: Result<Vec<Accepted>, IntakeError>) {
        lock(&self.state).script.push_back(answer);
    }

    /// From now on this sender is a stranger: files of theirs are not wanted.
    pub fn want_no_files_of(&self, sender: &str) {
        lock(&self.state).unwanted = Some(sender.to_owned());
    }

    /// Every batch that was offered, refused ones too.
    pub fn batches(&self) -> Vec<Batch> {
        lock(&self.state).batches.clone()
    }

    /// How many batches got an error by [`Self::answer_next`]: known as soon as the batch is among [`Self::batches`].
    pub fn refused(&self) -> usize {
        lock(&self.state).refused
    }

    /// Every event that was offered, refused ones and duplicates too.
    pub fn offered(&self) -> Vec<Inbound> {
        lock(&self.state).offered.clone()
    }

    /// The events that were stored.
    pub fn events(&self) -> Vec<Inbound> {
        lock(&self.state).stored.clone()
    }

    /// Waits until `count` events were stored.
    pub async fn until_stored(&self, count: usize) {
        let mut stored = self.stored.subscribe();
        let _ = expected("enough events were stored", stored.wait_for(|stored| *stored >= count)).await;
    }

    /// Makes every `accept` wait for [`Self::open_gate`].
    pub fn close_gate(&self) {
        self.open.send_replace(false);
    }

    /// Lets every waiting `accept` commit.
    pub fn open_gate(&self) {
        self.open.send_replace(true);
    }

    /// Waits until an `accept` stands at the closed gate.
    pub async fn until_waiting(&self) {
        let mut waiting = self.waiting.subscribe();
        let _ = expected("an accept waits", waiting.wait_for(|waiting| *waiting > 0)).await;
    }

    fn commit(&self, batch: Batch) -> Result<Vec<Accepted>, IntakeError> {
        let mut state = lock(&self.state);
        state.batches.push(batch.clone());
        state.offered.extend(batch.events.iter().cloned());
        if let Some(answer) = state.script.pop_front() {
            state.refused += usize::from(answer.is_err());
            return answer;
        }
        let answers = batch.events.into_iter().map(|event| match state.rows.get(&event.platform_id) {
            Some((id, fingerprint)) if *fingerprint == event.fingerprint => Accepted::Duplicate(id.clone()),
            Some(_) => Accepted::Conflict,
            None => {
                let id = InboxId::generate();
                state.rows.insert(event.platform_id.clone(), (id.clone(), event.fingerprint.clone()));
                self.settlements.add(&event.platform_id, &id);
                state.stored.push(event);
                Accepted::New(id)
            }
        });
        let answers = answers.collect();
        self.stored.send_replace(state.stored.len());
        Ok(answers)
    }
}

#[async_trait]
impl Intake for FakeIntake {
    async fn accept(&self, batch: Batch) -> Result<Vec<Accepted>, IntakeError> {
        let _waiting = Counted::enter(&self.waiting);
        let _ = self.open.subscribe().wait_for(|open| *open).await;
        self.commit(batch)
    }

    fn wants_files(&self, event: &Inbound) -> bool {
        lock(&self.state).unwanted.as_ref() != Some(&event.sender.id)
    }
}

/// Counts one while it lives.
struct Counted<'a>(&'a watch::Sender<usize>);

impl<'a> Counted<'a> {
    fn enter(count: &'a watch::Sender<usize>) -> Self {
        count.send_modify(|n| *n += 1);
        Self(count)
    }
}

impl Drop for Counted<'_> {
    fn drop(&mut self) {
        self.0.send_modify(|n| *n -= 1);
    }
}

/// A clock that moves only when told.
pub struct FakeClock {
    start_ms: i64,
    elapsed: watch::Sender<Duration>,
    /// When each sleeper wakes; who is due is no sleeper any more, whether or not it has run since.
    sleepers: watch::Sender<Vec<Duration>>,
}

impl FakeClock {
    /// A clock that stands at this epoch millisecond.
    pub fn at(start_ms: i64) -> Self {
        Self { start_ms, elapsed: watch::Sender::new(Duration::ZERO), sleepers: watch::Sender::new(Vec::new()) }
    }

    /// Moves on; every sleep that is over by then wakes.
    pub fn advance(&self, by: Duration) {
        let now = *self.elapsed.borrow() + by;
        self.sleepers.send_modify(|sleepers| sleepers.retain(|until| *until > now));
        self.elapsed.send_replace(now);
    }

    /// Waits until at least `count` callers sleep, so that a test advances only after its subject began to wait.
    pub async fn until_sleeping(&self, count: usize) {
        let mut sleepers = self.sleepers.subscribe();
        let _ = expected("enough callers sleep", sleepers.wait_for(|sleepers| sleepers.len() >= count)).await;
    }
}

/// Sleeps while it lives.
struct Sleeper<'a>(&'a FakeClock, Duration);

impl<'a> Sleeper<'a> {
    fn until(clock: &'a FakeClock, until: Duration) -> Self {
        clock.sleepers.send_modify(|sleepers| sleepers.push(until));
        Self(clock, until)
    }
}

impl Drop for Sleeper<'_> {
    fn drop(&mut self) {
        self.0.sleepers.send_modify(|sleepers| {
            // Sleepers that wake at the same moment are alike.
            if let Some(place) = sleepers.iter().position(|until| *until == self.1) {
                sleepers.swap_remove(place);
            }
        });
    }
}

#[async_trait]
impl Clock for FakeClock {
    fn now_ms(&self) -> i64 {
        let elapsed = i64::try_from(self.elapsed.borrow().as_millis()).unwrap_or(i64::MAX);
        self.start_ms.saturating_add(elapsed)
    }

    fn monotonic(&self) -> Duration {
        *self.elapsed.borrow()
    }

    async fn sleep(&self, duration: Duration) {
        let mut elapsed = self.elapsed.subscribe();
        let until = elapsed.borrow().saturating_add(duration);
        let _sleeper = Sleeper::until(self, until);
        let _ = elapsed.wait_for(|now| *now >= until).await;
    }
}

/// A channel's map in memory.
#[derive(Default)]
pub struct MemoryKv(Mutex<HashMap<String, String>>);

#[async_trait]
impl ChannelKv for MemoryKv {
    async fn get(&self, key: &str) -> Result<Option<String>, KvError> {
        Ok(lock(&self.0).get(key).cloned())
    }

    async fn set(&self, key: &str, value: &str) -> Result<(), KvError> {
        lock(&self.0).insert(key.to_owned(), value.to_owned());
        Ok(())
    }
}

/// A media store in memory.
pub struct MemoryMedia {
    files: Mutex<Vec<Bytes>>,
    links: Mutex<HashMap<String, Bytes>>,
    largest: u64,
}

impl MemoryMedia {
    /// A store that takes files of at most this many bytes.
    pub fn holding(largest: u64) -> Self {
        Self { files: Mutex::default(), links: Mutex::default(), largest }
    }

    /// What [`Media::fetch`] finds at this link; at all others it finds nothing it may fetch.
    pub fn put_link(&self, url: &str, bytes: impl Into<Bytes>) {
        lock(&self.links).insert(url.to_owned(), bytes.into());
    }

    /// The files, in the order they came.
    pub fn files(&self) -> Vec<Bytes> {
        lock(&self.files).clone()
    }
}

#[async_trait]
impl Media for MemoryMedia {
    async fn store(&self, bytes: Bytes, mime: Option<String>) -> Result<MediaRef, MediaError> {
        let size = bytes.len() as u64;
        if size > self.largest {
            return Err(MediaError::TooLarge(self.largest));
        }
        let mut files = lock(&self.files);
        let place = files.iter().position(|file| *file == bytes).unwrap_or(files.len());
        if place == files.len() {
            files.push(bytes);
        }
        Ok(MediaRef { source: MediaSource::Stored(place.to_string()), mime, size: Some(size) })
    }

    async fn keep(&self, mut bytes: MediaStream, mime: Option<String>) -> Result<MediaRef, MediaError> {
        let mut whole = Vec::new();
        while let Some(piece) = bytes.next().await {
            whole.extend_from_slice(&piece.map_err(MediaError::Unreachable)?);
            if whole.len() as u64 > self.largest {
                return Err(MediaError::TooLarge(self.largest));
            }
        }
        self.store(whole.into(), mime).await
    }

    async fn fetch(&self, url: &str) -> Result<MediaRef, MediaError> {
        let found = lock(&self.links).get(url).cloned();
        match found {
            Some(bytes) => self.store(bytes, None).await,
            None => Err(MediaError::Refused(format!("{url} is not among the links of this test"))),
        }
    }

    async fn read(&self, media: &MediaRef) -> Option<Bytes> {
        let MediaSource::Stored(name) = &media.source else { return None };
        lock(&self.files).get(name.parse::<usize>().ok()?).cloned()
    }
}

/// Ends of messages, as a test decides them.
#[derive(Default)]
pub struct FakeSettlements {
    state: Mutex<SettlementState>,
    changed: watch::Sender<u64>,
}

/// What adapters did with settlements so far, and what they wait for.
#[derive(Default)]
pub struct SettlementState {
    rows: HashMap<InboxId, SettlementRow>,
    /// Each `handed_over`, in order.
    pub handed_over: Vec<(InboxId, Vec<PartId>)>,
    /// Each `release`, in order.
    pub released: Vec<InboxId>,
    /// How many `watch`es were begun.
    pub watches: usize,
}

#[derive(Default)]
struct SettlementRow {
    platform_id: String,
    settled: Option<Settled>,
    watchers: Vec<mpsc::Sender<LiveEvent>>,
}

impl FakeSettlements {
    /// A message exists in this channel.
    pub fn add(&self, platform_id: &str, id: &InboxId) {
        let row = SettlementRow { platform_id: platform_id.to_owned(), ..SettlementRow::default() };
        lock(&self.state).rows.insert(id.clone(), row);
    }

    /// The row of a platform id.
    pub fn id_of(&self, platform_id: &str) -> Option<InboxId> {
        let state = lock(&self.state);
        state.rows.iter().find(|(_, row)| row.platform_id == platform_id).map(|(id, _)| id.clone())
    }

    /// Shows an event to everyone who watches this message; [`LiveEvent::Settled`] also settles its row.
    ///
    /// # Panics
    /// When no such message exists: the test is wrong.
    pub fn show(&self, platform_id: &str, event: &LiveEvent) {
        let mut state = lock(&self.state);
        let row = state.rows.values_mut().find(|row| row.platform_id == platform_id);
        let row = row.expect("the test settles a message that was stored");
        if let LiveEvent::Settled(settled) = event {
            row.settled = Some(settled.clone());
        }
        row.watchers.retain(|watcher| watcher.try_send(event.clone()).is_ok());
        drop(state);
        self.changed.send_modify(|n| *n += 1);
    }

    /// Settles a message with these texts as its answer and returns the parts' ids.
    pub fn answer(&self, platform_id: &str, channel: &dyn Channel, text: &str, created_at: i64) -> Vec<PartId> {
        let parts = channel.render(&Reply::message(text), Level::Rich);
        let count = parts.len();
        let parts: Vec<SettledPart> = parts
            .into_iter()
            .enumerate()
            .map(|(n, part)| SettledPart {
                id: PartId::generate(),
                seq: u32::try_from(n + 1).unwrap_or(u32::MAX),
                last: n + 1 == count,
                part,
                created_at,
            })
            .collect();
        let ids = parts.iter().map(|part| part.id.clone()).collect();
        self.show(platform_id, &LiveEvent::Settled(Settled { parts, ..Settled::default() }));
        ids
    }

    /// Waits until what adapters did fulfils `condition`.
    pub async fn until(&self, condition: impl Fn(&SettlementState) -> bool) {
        let mut changed = self.changed.subscribe();
        let fulfilled = async {
            while !condition(&lock(&self.state)) {
                if changed.changed().await.is_err() {
                    return;
                }
            }
        };
        expected("the settlements are as the test wants them", fulfilled).await;
    }

    /// A look at what adapters did.
    pub fn look<T>(&self, read: impl FnOnce(&SettlementState) -> T) -> T {
        read(&lock(&self.state))
    }
}

#[async_trait]
impl Settlements for FakeSettlements {
    async fn settled(&self, message: &InboxId) -> Option<Settled> {
        lock(&self.state).rows.get(message)?.settled.clone()
    }

    async fn find(&self, platform_id: &str) -> Option<InboxId> {
        self.id_of(platform_id)
    }

    async fn watch(&self, message: &InboxId) -> mpsc::Receiver<LiveEvent> {
        let (tx, rx) = mpsc::channel(1_024);
        {
            let mut state = lock(&self.state);
            state.watches += 1;
            if let Some(row) = state.rows.get_mut(message) {
                row.watchers.push(tx);
            }
        }
        self.changed.send_modify(|n| *n += 1);
        rx
    }

    async fn handed_over(&self, message: &InboxId, parts: &[PartId]) {
        lock(&self.state).handed_over.push((message.clone(), parts.to_vec()));
        self.changed.send_modify(|n| *n += 1);
    }

    async fn release(&self, message: &InboxId) {
        lock(&self.state).released.push(message.clone());
        self.changed.send_modify(|n| *n += 1);
    }
}
