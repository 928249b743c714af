//! The store alone, in this process: databases of a given size made through its own API, what its transactions allow
//! with nothing around them, and what a claim costs.

use std::{
    collections::HashMap,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use channel_api::{
    Address, ChannelId, Clock, Conversation, ConversationKind, Inbound, InboundKind, InboxId, Level, Part, PartId,
    QueueMode, Receipt, Reply, Sender, StepId, Trust,
};
use crawfish::{
    clock::SystemClock,
    model::{Message, Usage},
    policy::Role,
    session::SessionKey,
    store::{
        Action, BootId, Claim, ClaimAsk, ClaimKind, Finish, InboxStore, NewBatch, NewEntry, NewPart, OutboxStore,
        OverCap, PartOutcome, Release, SessionChange, Spent, StepKind, StepRecord, StepState, StoreError, TurnOutcome,
        TurnStore, Upkeep, sqlite::SqliteStore,
    },
};
use futures_util::future::join_all;
use serde_json::json;
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
};

use crate::platform::OWNER;

/// Rows of one commit while a database is made.
const BATCH: usize = 500;

/// An open store.
///
/// # Errors
/// A line that says why not.
pub async fn open(path: &Path) -> Result<Arc<SqliteStore>, String> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
    }
    SqliteStore::open(path).await.map(Arc::new).map_err(|error| format!("{}: {error}", path.display()))
}

fn told(error: StoreError) -> String {
    format!("the store: {error}")
}

/// A conversation's message as the webhook's adapter and intake make it.
pub fn entry(conversation: &str, id: &str, now: i64) -> NewEntry {
    let channel = ChannelId::new("webhook", "bridge");
    let talk = Conversation { kind: ConversationKind::Direct, id: conversation.to_owned(), thread: None, title: None };
    NewEntry {
        id: InboxId::generate(),
        session: SessionKey::of("main", &channel, true, &talk),
        agent: "main".to_owned(),
        role: Role::Owner,
        inbound: Inbound {
            address: Address {
                channel: channel.clone(),
                lane: format!("direct:{conversation}"),
                data: json!({ "id": conversation, "type": "direct" }),
            },
            channel,
            platform_id: id.to_owned(),
            fingerprint: Some("9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08".to_owned()),
            kind: InboundKind::Message,
            about: None,
            conversation: talk,
            sender: Sender { id: OWNER.to_owned(), name: Some("Bench".to_owned()), is_bot: false },
            text: format!("What is the weather like in Hangzhou today? #{id}#"),
            attachments: Vec::new(),
            mentions_us: true,
            reply_to: None,
            at: None,
            trust: Trust::Own,
            more_expected: None,
            queue: None,
            hold: false,
        },
        errand: None,
        mode: QueueMode::Collect,
        mode_fixed: false,
        alone: false,
        not_before: 0,
        hold: None,
        received_at: now,
        cap: 20,
        over_cap: OverCap::Refuse,
        action: Action::Turn,
    }
}

/// Makes `sessions` sessions, of which the first `waiting` each have one message that waits; the others had a command
/// answered and rest.
///
/// # Errors
/// A line that says what went wrong.
pub async fn fill(store: &SqliteStore, sessions: usize, waiting: usize) -> Result<(), String> {
    let now = SystemClock::new().now_ms();
    let mut batch = Vec::with_capacity(BATCH);
    for n in 0..sessions {
        let mut new = entry(&format!("s{n}"), &format!("fill-{n}"), now);
        if n >= waiting {
            new.action = Action::Command { parts: Vec::new(), change: SessionChange::None };
        }
        batch.push(new);
        if batch.len() == BATCH || n + 1 == sessions {
            let entries = std::mem::take(&mut batch);
            store.accept(NewBatch { entries, ..NewBatch::default() }).await.map_err(told)?;
        }
    }
    Ok(())
}

/// Lets `turns` turns happen in one session, each with an answer.
///
/// # Errors
/// A line that says what went wrong.
pub async fn talk(store: &SqliteStore, conversation: &str, turns: usize) -> Result<(), String> {
    let (clock, boot) = (SystemClock::new(), BootId::generate());
    // Ten messages at a time become one turn with the transcript of ten: what counts here is what is stored after it.
    for start in (0..turns).step_by(10) {
        let count = 10.min(turns - start);
        let entries: Vec<NewEntry> = (start..start + count)
            .map(|n| entry(conversation, &format!("{conversation}-{n}"), clock.now_ms()))
            .collect();
        store.accept(NewBatch { entries, ..NewBatch::default() }).await.map_err(told)?;
        let claims = store.claim(&ask(&boot, clock.now_ms(), 1)).await.map_err(told)?;
        let claim = claims.into_iter().next().ok_or("nothing to claim while a session was made")?;
        let mut finish = finish_of(&claim, clock.now_ms());
        finish.transcript = (0..count).flat_map(|n| exchange(&format!("{conversation}-{}", start + n))).collect();
        finish.parts.clear();
        store.finish(finish).await.map_err(told)?;
    }
    Ok(())
}

fn ask(boot: &BootId, now: i64, max: u32) -> ClaimAsk {
    ClaimAsk { boot: boot.clone(), now, max, max_entries: 20, kind: ClaimKind::Ordinary }
}

fn exchange(id: &str) -> [Message; 2] {
    [
        Message::user(format!(
            "What is the weather like in Hangzhou today? #{id}#\n\n[message {id} from Bench (id bench-owner, owner); \
                 Monday 2026-11-30 10:00 UTC]"
        )),
        Message::Assistant { text: format!("Here is the answer to #{id}#."), calls: Vec::new(), opaque: None },
    ]
}

/// Commit 2 as the worker makes it for one plain answer.
fn finish_of(claim: &Claim, now: i64) -> Finish {
    let newest = claim.entries.last().expect("a claim has entries");
    let text = format!("Here is the answer to #{}#.", newest.inbound.platform_id);
    let usage = Usage { input: 2000, output: 12, ..Usage::default() };
    Finish {
        lease: claim.lease.clone(),
        entries: claim.entries.iter().map(|entry| entry.id.clone()).collect(),
        outcome: TurnOutcome::Replied,
        transcript: exchange(&newest.inbound.platform_id).to_vec(),
        steps: vec![StepRecord {
            id: StepId::generate(),
            n: 0,
            round: 1,
            attempt: 1,
            kind: StepKind::Llm,
            call_id: None,
            name: "fake".to_owned(),
            effect: None,
            state: StepState::Finished,
            args: json!({ "model": "main", "prompt": { "rules": "0123456789abcdef", "project": "0123456789abcdef" },
                          "messages": 3, "tools": 6 }),
            result: json!({ "text": text, "finish": "stop", "usage": usage, "model": "fake" }),
            started_at: now,
            ms: 1,
            usage,
            spent: Some(Spent {
                agent: "main".to_owned(),
                sender: "webhook:bench u1".to_owned(),
                model: "main".to_owned(),
                purpose: "turn".to_owned(),
                day: "2026-11-30".to_owned(),
                cost: None,
            }),
        }],
        parts: vec![NewPart {
            id: PartId::generate(),
            entry: Some(newest.id.clone()),
            in_reply_to: Some(newest.inbound.platform_id.clone()),
            to: newest.inbound.address.clone(),
            seq: 1,
            last: true,
            part: Part { text: text.clone(), body: json!({ "type": "message", "format": "markdown" }) },
            reply: Some(Reply::message(text)),
            level: Level::Rich,
            created_at: now,
            expires_at: now + 86_400_000,
            replaces: None,
        }],
        preview_left: false,
        traceless: false,
        new_generation: false,
        handback: None,
        summary: None,
        then: None,
        usage,
        costs: Default::default(),
        model: None,
        notes: Vec::new(),
        now,
        debounce_ms: 1000,
        claim_parts: true,
    }
}

/// What the bare transactions of one message allow: `sessions` clients, each with one message on its way (accept, claim,
/// history, finish, settle, next), claimed by one dispatcher as the worker does it.
struct Bare {
    store: Arc<SqliteStore>,
    clock: SystemClock,
    boot: BootId,
    work: Notify,
    waiting: Mutex<HashMap<String, oneshot::Sender<()>>>,
}

/// Messages per second.
///
/// # Errors
/// A line that says what went wrong.
pub async fn throughput(path: &Path, sessions: usize, time: Duration) -> Result<f64, String> {
    let store = open(path).await?;
    let bare = Arc::new(Bare {
        store: Arc::clone(&store),
        clock: SystemClock::new(),
        boot: BootId::generate(),
        work: Notify::new(),
        waiting: Mutex::default(),
    });
    store.recover(&bare.boot, bare.clock.now_ms(), crawfish::store::no_apology()).await.map_err(told)?;
    let mut dispatcher = JoinSet::new();
    dispatcher.spawn(Arc::clone(&bare).dispatch());
    let mut clients = JoinSet::new();
    let began = bare.clock.monotonic();
    for session in 0..sessions {
        clients.spawn(Arc::clone(&bare).client(session, began + time));
    }
    let mut count = 0;
    while let Some(done) = clients.join_next().await {
        count += done.map_err(|error| error.to_string())??;
    }
    let took = bare.clock.monotonic() - began;
    dispatcher.shutdown().await;
    store.close().await;
    Ok(count as f64 / took.as_secs_f64())
}

impl Bare {
    async fn client(self: Arc<Self>, session: usize, until: Duration) -> Result<usize, String> {
        let conversation = format!("bare{session}");
        let mut count = 0;
        while self.clock.monotonic() < until {
            let id = format!("mb{session}-{count}");
            let (answer, answered) = oneshot::channel();
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(id.clone(), answer);
            let entries = vec![entry(&conversation, &id, self.clock.now_ms())];
            self.store.accept(NewBatch { entries, ..NewBatch::default() }).await.map_err(told)?;
            self.work.notify_one();
            answered.await.map_err(|_| "a bare turn was lost".to_owned())?;
            count += 1;
        }
        Ok(count)
    }

    async fn dispatch(self: Arc<Self>) {
        let mut turns = JoinSet::new();
        loop {
            let woken = self.work.notified();
            match self.store.claim(&ask(&self.boot, self.clock.now_ms(), 64)).await {
                Ok(claims) if !claims.is_empty() => {
                    for claim in claims {
                        turns.spawn(Arc::clone(&self).turn(claim));
                    }
                }
                _ => {
                    tokio::select! {
                        () = woken => {}
                        Some(_) = turns.join_next() => {}
                    }
                }
            }
        }
    }

    async fn turn(self: Arc<Self>, claim: Claim) -> Result<(), StoreError> {
        let Some(newest) = claim.entries.last() else { return Ok(()) };
        let id = newest.inbound.platform_id.clone();
        self.store.history(&claim.lease.session, claim.generation, 60, 96 * 1024).await?;
        let finished = self.store.finish(finish_of(&claim, self.clock.now_ms())).await?;
        // As in the gateway, the person has the answer before the receipt is stored.
        if let Some(answer) = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(&id) {
            let _ = answer.send(());
        }
        for part in finished.sending {
            let sent = PartOutcome::Sent(Receipt::default());
            self.store.settle_part(&part.id, part.epoch, sent, self.clock.now_ms()).await?;
        }
        let lane = crawfish::store::LaneKey {
            channel: newest.inbound.channel.clone(),
            lane: newest.inbound.address.lane.clone(),
        };
        while let crawfish::store::NextPart::Send(part) =
            self.store.next_part(&lane, &self.boot, self.clock.now_ms()).await?
        {
            let sent = PartOutcome::Sent(Receipt::default());
            self.store.settle_part(&part.id, part.epoch, sent, self.clock.now_ms()).await?;
        }
        Ok(())
    }
}

/// The times of single claims, in milliseconds, in a database of [`fill`] whose waiting sessions are blocked: half are
/// leased, half wait for a time to come. They stand before the ready ones in the queue. A claim waits for no disk.
///
/// # Errors
/// A line that says what went wrong.
pub async fn claims(path: &Path, blocked: usize, samples: usize) -> Result<Vec<f64>, String> {
    let store = open(path).await?;
    let (clock, boot) = (SystemClock::new(), BootId::generate());
    store.recover(&boot, clock.now_ms(), crawfish::store::no_apology()).await.map_err(told)?;
    let mut taken = 0;
    while taken < blocked {
        let claims = store.claim(&ask(&boot, clock.now_ms(), 64)).await.map_err(told)?;
        if claims.is_empty() {
            return Err(format!("only {taken} of {blocked} sessions could be blocked"));
        }
        // A second message waits behind each first, so that every blocked session is pending.
        let more = |(n, claim): (usize, &Claim)| {
            entry(&claim.entries[0].inbound.conversation.id, &format!("more-{}", taken + n), clock.now_ms())
        };
        let entries = claims.iter().enumerate().map(more).collect();
        store.accept(NewBatch { entries, ..NewBatch::default() }).await.map_err(told)?;
        let releases = claims.iter().step_by(2).map(|claim| {
            store.release(Release {
                lease: claim.lease.clone(),
                entries: claim.entries.iter().map(|entry| entry.id.clone()).collect(),
                failure: Some("blocked for the measurement".to_owned()),
                not_before: clock.now_ms() + 3_600_000,
                apology: Vec::new(),
                now: clock.now_ms(),
            })
        });
        for released in join_all(releases).await {
            released.map_err(told)?;
        }
        taken += claims.len();
    }
    let mut entries = Vec::new();
    for n in 0..samples {
        entries.push(entry(&format!("ready{n}"), &format!("ready-{n}"), clock.now_ms()));
    }
    store.accept(NewBatch { entries, ..NewBatch::default() }).await.map_err(told)?;
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        let began = clock.monotonic();
        let claims = store.claim(&ask(&boot, clock.now_ms(), 1)).await.map_err(told)?;
        times.push((clock.monotonic() - began).as_secs_f64() * 1000.0);
        if claims.len() != 1 {
            return Err("a ready session was not claimed".to_owned());
        }
    }
    store.close().await;
    Ok(times)
}

/// The median time of an fdatasync of 4 KiB in this folder, in milliseconds: what the disk adds to every commit.
///
/// # Errors
/// Those of the file system.
pub fn fdatasync_ms(dir: &Path, samples: usize) -> std::io::Result<f64> {
    use std::io::{Seek, Write};
    let path = dir.join("fdatasync");
    let mut file = std::fs::File::create(&path)?;
    let clock = SystemClock::new();
    let mut times = Vec::with_capacity(samples);
    for _ in 0..samples {
        file.rewind()?;
        file.write_all(&[7; 4096])?;
        let began = clock.monotonic();
        file.sync_data()?;
        times.push((clock.monotonic() - began).as_secs_f64() * 1000.0);
    }
    std::fs::remove_file(&path)?;
    Ok(crate::report::percentile(&mut times, 0.5).unwrap_or(0.0))
}
