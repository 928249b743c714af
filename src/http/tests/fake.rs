//! A gateway for tests of the HTTP side alone: events in memory, an intake that answers what a test says, one channel.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
};

use async_trait::async_trait;
use channel_api::*;
use serde_json::{Value, json};

use crate::{
    audit,
    chats::{ChatRow, ChatStore},
    heartbeat::rows::{Called, Given, HookRow, InitiativeStore, RunState, Tick, TickRow},
    journal::Journal,
    plan::{Kept, Plan, PlanStore},
    schedule::rows::{self, Added, Fire, Fired, Reaped, ScheduleRow, ScheduleStore},
    session::SessionKey,
    store::*,
    subagents::{Spawned, Subagent, SubagentStore},
};

/// Events in memory; everything else of a store is not here.
#[derive(Default)]
pub struct Rows(pub Mutex<Vec<EventRow>>);

impl Rows {
    /// Commits an event and tells the journal, unless `quietly`.
    pub fn add(&self, journal: &Journal, task: &str, session: &str, kind: &str, data: Value, quietly: bool) -> i64 {
        let mut rows = self.0.lock().expect("no test panics with it");
        let seq = rows.len() as i64 + 1;
        let (task, session) = (InboxId::from(task.to_owned()), SessionKey::from(session.to_owned()));
        let row = EventRow { seq, task, session, kind: kind.to_owned(), data, at: 0 };
        rows.push(row.clone());
        drop(rows);
        if !quietly {
            journal.committed(vec![row]);
        }
        seq
    }
}

#[async_trait]
impl EventStore for Rows {
    async fn events(&self, after: i64, filter: EventFilter, limit: u32) -> Result<Vec<EventRow>, StoreError> {
        let rows = self.0.lock().expect("no test panics with it");
        let wanted = rows.iter().filter(|row| {
            row.seq > after
                && filter.task.as_ref().is_none_or(|task| *task == row.task)
                && filter.session.as_ref().is_none_or(|session| *session == row.session)
        });
        Ok(wanted.take(limit as usize).cloned().collect())
    }

    async fn last_event(&self) -> Result<i64, StoreError> {
        Ok(self.0.lock().expect("no test panics with it").len() as i64)
    }
}

/// Answers what stands in `answers`, else `New`; remembers what it was given.
#[derive(Default)]
pub struct Door {
    pub answers: Mutex<VecDeque<Result<Accepted, IntakeError>>>,
    pub taken: Mutex<Vec<Inbound>>,
}

#[async_trait]
impl Intake for Door {
    async fn accept(&self, batch: Batch) -> Result<Vec<Accepted>, IntakeError> {
        self.taken.lock().expect("no test panics with it").extend(batch.events);
        let answer = self.answers.lock().expect("no test panics with it").pop_front();
        answer.unwrap_or_else(|| Ok(Accepted::New(InboxId::from("in_1".to_owned())))).map(|answer| vec![answer])
    }
}

/// A channel whose endpoint tells what it was given, and how its answers fared.
pub struct Echo {
    pub id: ChannelId,
    pub capabilities: Capabilities,
    pub written: tokio::sync::mpsc::UnboundedSender<bool>,
}

impl Echo {
    pub fn new(written: tokio::sync::mpsc::UnboundedSender<bool>) -> Arc<Self> {
        let [(web, ..)] = &crate::http::web::channels(&Default::default())[..] else { panic!("one web chat") };
        Arc::new(Self { id: ChannelId::new("echo", "one"), capabilities: web.capabilities().clone(), written })
    }
}

#[async_trait]
impl Channel for Echo {
    fn id(&self) -> &ChannelId {
        &self.id
    }

    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }

    async fn run(&self, ctx: ChannelContext) -> Result<(), ChannelError> {
        ctx.shutdown.cancelled().await;
        Ok(())
    }

    fn render(&self, reply: &Reply, _: Level) -> Vec<Part> {
        vec![Part { text: reply.text.clone(), body: Value::Null }]
    }

    async fn send(&self, _: &Address, _: &Part, _: &SendKey) -> Result<Receipt, SendError> {
        Ok(Receipt::default())
    }

    fn http(&self) -> Option<&dyn HttpEndpoint> {
        Some(self)
    }

    fn socket(&self) -> Option<&dyn SocketEndpoint> {
        Some(self)
    }
}

/// Sends back what comes, to whoever holds the word.
#[async_trait]
impl SocketEndpoint for Echo {
    fn message_limit(&self) -> usize {
        1000
    }

    fn admit(&self, request: &HttpRequest) -> Result<(), Box<HttpResponse>> {
        if request.headers.get("authorization").is_some_and(|word| word == "Bearer sesame") {
            return Ok(());
        }
        Err(Box::new(HttpResponse::json(axum::http::StatusCode::UNAUTHORIZED, &json!({ "who": "are you" }))))
    }

    /// Tells the test when it ends.
    async fn serve(&self, ctx: &ChannelContext, request: HttpRequest, mut socket: Socket) {
        let serving = async {
            while let Some(frame) = socket.incoming.recv().await {
                let answer = match frame {
                    Frame::Text(text) if text == "panic" => panic!("as asked"),
                    Frame::Text(text) if text == "bye" => Frame::Close(4001, "é".repeat(100)),
                    Frame::Text(text) if text == "path" => Frame::Text(format!("{}?{}", request.path, request.query)),
                    Frame::Ping(bytes) => Frame::Text(format!("a ping of {}", bytes.len())),
                    Frame::Pong(_) => continue,
                    Frame::Close(..) => return,
                    frame => frame,
                };
                if socket.outgoing.send(answer).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = serving => {}
            () = ctx.shutdown.cancelled() => {}
        }
        let _ = self.written.send(true);
    }
}

#[async_trait]
impl HttpEndpoint for Echo {
    fn body_limit(&self) -> usize {
        1000
    }

    async fn handle(&self, ctx: &ChannelContext, request: HttpRequest) -> HttpResponse {
        match request.path.as_str() {
            "/large" => {
                let (answer, written) =
                    HttpResponse::json(axum::http::StatusCode::OK, &json!("x".repeat(64 << 20))).confirmed();
                self.report(ctx, written);
                answer
            }
            "/stream" => {
                let (chunks, body) = tokio::sync::mpsc::channel(1);
                let written = self.written.clone();
                let mut task = tokio::task::JoinSet::new();
                task.spawn(async move {
                    while chunks.send(bytes::Bytes::from_static(b"tick\n")).await.is_ok() {}
                    let _ = written.send(false);
                });
                task.detach_all();
                HttpResponse {
                    status: axum::http::StatusCode::OK,
                    headers: Default::default(),
                    body: HttpBody::Stream(body),
                }
            }
            path => {
                let said = json!({ "method": request.method.as_str(), "path": path, "query": request.query,
                    "body": String::from_utf8_lossy(&request.body) });
                let (answer, written) = HttpResponse::json(axum::http::StatusCode::OK, &said).confirmed();
                self.report(ctx, written);
                answer
            }
        }
    }
}

impl Echo {
    /// Tells the test whether an answer was written.
    fn report(&self, _: &ChannelContext, written: tokio::sync::oneshot::Receiver<()>) {
        let told = self.written.clone();
        let mut task = tokio::task::JoinSet::new();
        task.spawn(async move {
            let _ = told.send(written.await.is_ok());
        });
        task.detach_all();
    }
}

/// What an adapter is given here: nothing it uses.
pub fn context(intake: Arc<dyn Intake>, clock: Arc<dyn Clock>) -> ChannelContext {
    struct Nothing;
    #[async_trait]
    impl ChannelKv for Nothing {
        async fn get(&self, _: &str) -> Result<Option<String>, KvError> {
            Ok(None)
        }
        async fn set(&self, _: &str, _: &str) -> Result<(), KvError> {
            Ok(())
        }
    }
    #[async_trait]
    impl Media for Nothing {
        async fn store(&self, _: bytes::Bytes, _: Option<String>) -> Result<MediaRef, MediaError> {
            Err(MediaError::Full)
        }
        async fn keep(&self, _: channel_api::MediaStream, _: Option<String>) -> Result<MediaRef, MediaError> {
            Err(MediaError::Full)
        }
        async fn fetch(&self, _: &str) -> Result<MediaRef, MediaError> {
            Err(MediaError::Full)
        }
        async fn read(&self, _: &MediaRef) -> Option<bytes::Bytes> {
            None
        }
    }
    #[async_trait]
    impl Settlements for Nothing {
        async fn settled(&self, _: &InboxId) -> Option<Settled> {
            None
        }
        async fn find(&self, _: &str) -> Option<InboxId> {
            None
        }
        async fn watch(&self, _: &InboxId) -> tokio::sync::mpsc::Receiver<LiveEvent> {
            tokio::sync::mpsc::channel(1).1
        }
        async fn handed_over(&self, _: &InboxId, _: &[PartId]) {}
        async fn release(&self, _: &InboxId) {}
    }
    let nothing = Arc::new(Nothing);
    let shutdown = tokio_util::sync::CancellationToken::new();
    let pulse = channel_api::Pulse::new(Arc::clone(&clock));
    ChannelContext { intake, shutdown, clock, kv: nothing.clone(), media: nothing.clone(), settlements: nothing, pulse }
}

#[async_trait]
impl InboxStore for Rows {
    async fn accept(&self, _: NewBatch) -> Result<Vec<Stored>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn claim(&self, _: &ClaimAsk) -> Result<Vec<Claim>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn next_suspect(&self) -> Result<NextSuspect, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn next_due(&self, _: i64) -> Result<Option<i64>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn absorb(&self, _: &Lease, _: i64) -> Result<Vec<InboxEntry>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn stop_asked(&self, _: &Lease) -> Result<bool, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn finish(&self, _: Finish) -> Result<Finished, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn release(&self, _: Release) -> Result<Released, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn park(&self, _: &Lease, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn unpark(&self, _: &SessionKey) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn settled(&self, _: &InboxId) -> Result<Option<Settled>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn find(&self, _: &ChannelId, _: &str) -> Result<Option<InboxId>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn load(&self) -> Result<Load, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn dead_letters(&self, _: Option<i64>, _: u32) -> Result<Vec<DeadLetter>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn resolve_dead(&self, _: &InboxId, _: DeadResolution, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl TurnStore for Rows {
    async fn record(&self, _: &Lease, _: Vec<StepRecord>, _: bool) -> Result<Vec<EventRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn window(&self, _: &SessionKey, _: i64, _: u32, _: u64) -> Result<Window, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn last_request(&self, _: &SessionKey) -> Result<Option<Value>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn keep_preview(&self, _: &Lease, _: &Shown) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn left_previews(&self, _: u32) -> Result<Vec<(TurnId, Shown)>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn forget_preview(&self, _: &TurnId) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn trace(&self, _: &TurnId) -> Result<Option<TurnTrace>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn turns(&self, _: TurnsOf, _: u32) -> Result<Vec<TurnRow>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl OutboxStore for Rows {
    async fn say(&self, _: Word) -> Result<Vec<LaneKey>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn open_lanes(&self) -> Result<Vec<(LaneKey, i64)>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn next_part(&self, _: &LaneKey, _: &BootId, _: i64) -> Result<NextPart, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn settle_part(&self, _: &PartId, _: i64, _: PartOutcome, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn replace_parts(&self, _: &PartId, _: i64, _: Vec<NewPart>, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn reply_of(&self, _: &PartId) -> Result<Option<Reply>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn handed_over(&self, _: &InboxId, _: &[PartId], _: i64) -> Result<Vec<LaneKey>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn release_hold(&self, _: &InboxId, _: i64) -> Result<Vec<LaneKey>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn parts(&self, _: PartFilter, _: u32) -> Result<Vec<PartRow>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl SessionStore for Rows {
    async fn session(&self, _: &SessionKey) -> Result<Option<SessionRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn sessions(&self, _: Option<(i64, SessionKey)>, _: u32) -> Result<Vec<SessionRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn messages(&self, _: &SessionKey, _: i64, _: u32) -> Result<Vec<MessageRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn search(&self, _: &str, _: u32) -> Result<Vec<MessageRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn reset(&self, _: &SessionKey, _: i64) -> Result<Vec<SessionKey>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl LedgerStore for Rows {
    async fn spend(&self, _: NewSpend) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn spent_on(&self, _: &str) -> Result<Vec<DaySpent>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn spent(&self, _: &SpentAsk) -> Result<Vec<SpentRow>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl AccessStore for Rows {
    async fn access(&self, _: i64) -> Result<AccessRows, StoreError> {
        Ok(AccessRows::default())
    }
    async fn approve(&self, _: Approve) -> Result<Approved, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn reject(&self, _: Option<&str>, _: &str, _: i64) -> Result<PairingRow, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn revoke(&self, _: &Who, _: i64) -> Result<Ended, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn block(&self, _: &Who, _: i64) -> Result<Ended, StoreError> {
        Ok(Ended::default())
    }
    async fn unblock(&self, _: &Who, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn end(&self, _: &Who, _: bool, _: i64) -> Result<Ended, StoreError> {
        Ok(Ended::default())
    }
    async fn end_all(&self, _: &str, _: i64) -> Result<Ended, StoreError> {
        Ok(Ended::default())
    }
}

#[async_trait]
impl audit::AuditStore for Rows {
    async fn tell(&self, _: audit::Event, _: Vec<NewPart>) -> Result<Vec<LaneKey>, StoreError> {
        Ok(Vec::new())
    }
    async fn audit(&self, _: Vec<audit::Event>) -> Result<(), StoreError> {
        Ok(())
    }
    async fn audit_rows(&self, _: i64, _: i64, _: Option<&str>, _: u32) -> Result<Vec<audit::AuditRow>, StoreError> {
        Ok(Vec::new())
    }
    async fn audit_head(&self) -> Result<audit::Head, StoreError> {
        Ok(audit::Walk::default().head().clone())
    }
    async fn halted(&self) -> Result<Option<(i64, String)>, StoreError> {
        Ok(None)
    }
    async fn set_halted(&self, _: bool, _: &str, _: i64) -> Result<bool, StoreError> {
        Ok(false)
    }
}

#[async_trait]
impl ChannelStore for Rows {
    async fn kv_get(&self, _: &ChannelId, _: &str) -> Result<Option<String>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn kv_set(&self, _: &ChannelId, _: &str, _: &str) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn moves(&self) -> Result<Vec<(ChannelId, channel_api::Moved)>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl Upkeep for Rows {
    async fn clock_was_set(&self, _: i64) -> Result<(), StoreError> {
        Ok(())
    }

    async fn recover(&self, _: &BootId, _: i64, _: crate::store::Apology) -> Result<Recovered, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn prune(&self, _: i64, _: &Retention) -> Result<bool, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn files_in_use(&self) -> Result<std::collections::HashSet<String>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn check(&self) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn probe(&self, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn checkpoint(&self) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn close(&self) {}
}

#[async_trait]
impl ChatStore for Rows {
    async fn owner_chats(&self, _: &str, _: u32) -> Result<Vec<ChatRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn chat_of(&self, _: &SessionKey) -> Result<Option<ChatRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn chats(&self, _: u32) -> Result<Vec<ChatRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn chats_at(&self, _: &ChannelId, _: &str, _: u32) -> Result<Vec<ChatRow>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl ScheduleStore for Rows {
    async fn add_schedule(&self, _: &ScheduleRow, _: u32) -> Result<Added, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn schedules(&self, _: Option<&str>) -> Result<Vec<ScheduleRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn schedule(&self, _: &str) -> Result<Option<ScheduleRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn edit_schedule(&self, _: &str, _: &rows::Change) -> Result<rows::Added, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn cancel_schedule(&self, _: &str) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn due_schedules(&self, _: i64, _: u32) -> Result<Vec<ScheduleRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn next_schedule(&self) -> Result<Option<i64>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn fire_schedule(&self, _: Fire) -> Result<Fired, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn run_schedule(&self, _: &str, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn put_off_schedule(&self, _: &str, _: i64) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn stop_schedule(&self, _: &str, _: &str) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn reap_schedules(&self, _: i64) -> Result<Reaped, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl InitiativeStore for Rows {
    async fn last_tick(&self, _: &str) -> Result<Option<TickRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn last_ticks(&self) -> Result<Vec<TickRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn tick(&self, _: Tick) -> Result<Given, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn last_alert(&self, _: &SessionKey, _: i64) -> Result<Option<String>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn call(&self, _: &HookRow, _: Option<NewEntry>) -> Result<Called, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn hook(&self, _: &str) -> Result<Option<HookRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn waiting_wakes(&self, _: &str, _: i64, _: u32) -> Result<Vec<HookRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn wake(&self, _: &[String], _: NewEntry) -> Result<Given, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn run_state(&self, _: &InboxId) -> Result<Option<RunState>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl note::NoteStore for Rows {
    async fn known_notes(&self, _: &str) -> Result<Vec<note::NoteRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn put_notes(&self, _: &str, _: Vec<note::NewNote>, _: Vec<String>) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn find_words(&self, _: &note::Scope, _: &[String], _: u32) -> Result<Vec<note::PassageHit>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn find_near(
        &self,
        _: &note::Scope,
        _: &str,
        _: &[f32],
        _: u32,
    ) -> Result<Vec<note::PassageHit>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn sketch_notes(&self, _: &str, _: i64, _: u32) -> Result<Vec<note::Bare>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn put_vectors(&self, _: &str, _: Vec<(Vec<u8>, Vec<f32>)>) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
    async fn forget_vectors(&self, _: &str) -> Result<u64, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn count_notes(&self, _: &str) -> Result<note::NoteCount, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn forget_notes(&self) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl crate::approvals::ApprovalStore for Rows {
    async fn ask(&self, _: &Lease, _: crate::approvals::NewApproval) -> Result<crate::approvals::Asked, StoreError> {
        unreachable!("no turn runs here")
    }
    async fn decide_approval(
        &self,
        _: &str,
        _: crate::approvals::Decision,
        _: &crate::approvals::By,
        _: i64,
    ) -> Result<crate::approvals::Decided, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn start_approved(
        &self,
        _: &Lease,
        _: &str,
        _: &str,
        _: Vec<StepRecord>,
        _: i64,
    ) -> Result<Vec<EventRow>, StoreError> {
        unreachable!("no turn runs here")
    }
    async fn expire_approvals(&self, _: i64) -> Result<u64, StoreError> {
        Ok(0)
    }
    async fn always(&self, _: u32) -> Result<Vec<crate::approvals::Always>, StoreError> {
        Ok(Vec::new())
    }
    async fn revoke_always(
        &self,
        _: &str,
        _: &crate::approvals::By,
        _: i64,
    ) -> Result<crate::approvals::Always, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn approvals(&self, _: bool, _: u32, _: i64) -> Result<Vec<crate::approvals::Approval>, StoreError> {
        Ok(Vec::new())
    }
    async fn approval(&self, _: &str) -> Result<Option<crate::approvals::Approval>, StoreError> {
        Ok(None)
    }
    async fn confirmed(&self, _: &SessionKey) -> Result<i64, StoreError> {
        Ok(0)
    }
}

#[async_trait]
impl PlanStore for Rows {
    async fn put_plan(&self, _: &Lease, _: &Plan, _: i64) -> Result<Vec<EventRow>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn plan(&self, _: &SessionKey) -> Result<Option<Kept>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn open_plans(&self) -> Result<Vec<SessionKey>, StoreError> {
        Err(StoreError::NotFound)
    }
}

#[async_trait]
impl SubagentStore for Rows {
    async fn spawn(&self, _: Subagent, _: NewEntry, _: u32) -> Result<Spawned, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn subagent(&self, _: &SessionKey) -> Result<Option<Subagent>, StoreError> {
        Err(StoreError::NotFound)
    }
    async fn subagents(&self, _: &SessionKey) -> Result<Vec<Subagent>, StoreError> {
        Err(StoreError::NotFound)
    }
}
