//! What events do that are no messages: changes, deletions, presses of buttons. On the real rows.

use channel_api::{Address, Conversation, ConversationKind, Sender, Trust};

use super::*;
use crate::{
    channels::{self, BuildChannel},
    clock::SystemClock,
    intake::{
        access::{AccessConfig, ChannelPolicy},
        pairing::Reach,
    },
    marks::Switch,
    store::{ClaimAsk, ClaimKind, OutboxStore, PartFilter, sqlite::SqliteStore},
};

struct Kit {
    intake: Intake,
    store: Arc<SqliteStore>,
    _dir: tempfile::TempDir,
}

async fn kit(edits: Edits) -> Kit {
    kit_with(edits, "").await
}

/// `more`: lines of the channel's policy.
async fn kit_with(edits: Edits, more: &str) -> Kit {
    let dir = tempfile::tempdir().expect("a folder");
    let store = Arc::new(SqliteStore::open(&dir.path().join("t.db")).await.expect("opens"));
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let id = ChannelId::new("webhook", "one");
    let settings = toml::from_str("token = \"0123456789abcdef0123456789abcdef\"").expect("a section");
    let said: ChannelPolicy = toml::from_str(more).expect("a policy");
    let policy = ChannelPolicy { owners: vec!["owner".to_owned()], ..said };
    let network = channels::network(&policy, |path| path.into()).expect("a way out");
    let channel = channels::build(&BuildChannel { id: &id, settings: &settings, policy: &policy, network: &network });
    let entry = Entry::new(channel.expect("a webhook"), policy, &AccessConfig::default(), false);
    let channels = Channels::new([entry]);
    let access = Access::open(store.clone(), channels.clone(), clock.clone(), Reach::default()).await;
    let access = Arc::new(access.expect("it is read"));
    let intake = Intake {
        inbox: store.clone(),
        sessions: store.clone(),
        turns: store.clone(),
        access: Arc::clone(&access),
        queue: QueueConfig { edits, ..QueueConfig::default() },
        limits: LimitsConfig::default(),
        ready: Ready::default(),
        boot: BootId::generate(),
        work: WakeUp::default(),
        lanes: LaneWakeUp::default(),
        running: Running::default(),
        refused: Default::default(),
        halt: Default::default(),
        teller: None,
        health: Default::default(),
        journal: Journal::new(),
        subagents: store.clone(),
        approvals: crate::approvals::Approvals {
            rows: store.clone(),
            chats: crate::chats::Chats { rows: store.clone(), channels: channels.clone(), access: access.clone() },
            channels: channels.clone(),
            lanes: LaneWakeUp::default(),
            config: Default::default(),
        },
        plans: Plans::open(store.clone(), Journal::new()).await.expect("it is read"),
        marks: Marks::new(channels.clone(), Switch::Off, clock.clone()).0,
        stopping: CancellationToken::new(),
        senders: SenderRates::default(),
        turned_away: TurnedAway::default(),
        ledger: Arc::new(crate::ledger::Ledger::new(
            store.clone(),
            clock.clone(),
            jiff::tz::TimeZone::UTC,
            Default::default(),
            Default::default(),
        )),
        shelf: Arc::default(),
        channels,
        clock,
    };
    Kit { intake, store, _dir: dir }
}

fn event(kind: InboundKind, id: &str, sender: &str, text: &str) -> Inbound {
    let channel = ChannelId::new("webhook", "one");
    Inbound {
        address: Address { channel: channel.clone(), lane: "direct:room".to_owned(), data: serde_json::Value::Null },
        channel,
        platform_id: id.to_owned(),
        fingerprint: None,
        kind,
        about: matches!(kind, InboundKind::Edit | InboundKind::Deleted).then(|| "m1".to_owned()),
        conversation: Conversation { kind: ConversationKind::Direct, id: "room".to_owned(), thread: None, title: None },
        sender: Sender { id: sender.to_owned(), name: None, is_bot: false },
        text: text.to_owned(),
        attachments: Vec::new(),
        mentions_us: true,
        reply_to: None,
        at: None,
        trust: Trust::Own,
        more_expected: None,
        queue: None,
        hold: false,
    }
}

impl Kit {
    async fn accept(&self, event: Inbound) -> Accepted {
        let batch = Batch { events: vec![event], ..Batch::default() };
        self.intake.accept(batch).await.expect("accepts").pop().expect("an answer")
    }

    /// What the next turn is asked, and told beside it.
    async fn next(&self) -> Option<(Vec<String>, Vec<String>)> {
        let now = self.intake.clock.now_ms() + 60_000;
        let boot = self.intake.boot.clone();
        let ask = ClaimAsk { boot, now, max: 1, max_entries: 20, kind: ClaimKind::Ordinary };
        let claim = self.store.claim(&ask).await.expect("claims").pop()?;
        let told = claim.backlog.iter().map(|heard| heard.text.clone()).collect();
        let asked = claim.entries.iter().map(|entry| entry.inbound.text.clone()).collect();
        self.store
            .finish(crate::store::Finish {
                entries: claim.entries.iter().map(|entry| entry.id.clone()).collect(),
                now,
                ..crate::store::conformance::finish_of_lease(&claim.lease, "")
            })
            .await
            .expect("finishes");
        Some((asked, told))
    }
}

const NOTHING: Accepted = Accepted::Ignored(IgnoredReason::NothingToAnswer);

#[tokio::test]
async fn bad_input_43_a_change_starts_no_turn_and_reaches_what_waits() {
    let kit = kit(Edits::Ignore).await;
    assert!(matches!(kit.accept(event(InboundKind::Message, "m1", "u", "first words")).await, Accepted::New(_)));
    // Somebody else's, and what would be a command.
    assert_eq!(kit.accept(event(InboundKind::Edit, "e1", "v", "not mine")).await, NOTHING);
    assert_eq!(kit.accept(event(InboundKind::Edit, "e2", "u", "/new")).await, NOTHING);
    assert_eq!(kit.accept(event(InboundKind::Edit, "e3", "u", "second words")).await, NOTHING);
    assert_eq!(kit.next().await, Some((vec!["second words".to_owned()], Vec::new())));
    assert_eq!(kit.accept(event(InboundKind::Edit, "e4", "u", "third words")).await, NOTHING);
    assert_eq!(kit.next().await, None);
}

#[tokio::test]
async fn files_are_wanted_of_what_will_be_answered_wake_words_included() {
    let kit = kit_with(Edits::Ignore, "[groups.g]\nallow_from = [\"u\"]\nwake = [\"crab\"]").await;
    let group = |sender: &str, text: &str, mentions_us| {
        let mut event = event(InboundKind::Message, "m1", sender, text);
        event.conversation =
            Conversation { kind: ConversationKind::Group, id: "g".to_owned(), thread: None, title: None };
        kit.intake.wants_files(&Inbound { mentions_us, ..event })
    };
    assert!(group("u", "look", true));
    assert!(group("u", "crab, look", false));
    assert!(!group("u", "look", false));
    assert!(!group("stranger", "look", true) && !group("stranger", "crab, look", false));
}

#[tokio::test]
async fn a_late_change_is_told_to_the_next_turn_where_that_is_wanted() {
    let kit = kit(Edits::Annotate).await;
    kit.accept(event(InboundKind::Message, "m1", "u", "first words")).await;
    kit.next().await.expect("a turn");
    for _ in 0..2 {
        assert_eq!(kit.accept(event(InboundKind::Edit, "e1", "u", "second words")).await, NOTHING);
    }
    assert_eq!(kit.next().await, None);
    kit.accept(event(InboundKind::Message, "m2", "u", "more")).await;
    let told = vec!["[changed an earlier message to:] second words".to_owned()];
    assert_eq!(kit.next().await, Some((vec!["more".to_owned()], told)));
}

#[tokio::test]
async fn a_deletion_takes_back_what_waits_and_tells_who_waits_for_it() {
    for sender in ["u", ""] {
        let kit = kit(Edits::Ignore).await;
        let Accepted::New(id) = kit.accept(event(InboundKind::Message, "m1", "u", "words")).await else {
            panic!("it is new")
        };
        let mut waiter = kit.intake.journal.wait_for(&id);
        assert_eq!(kit.accept(event(InboundKind::Deleted, "d1", "v", "")).await, NOTHING);
        assert_eq!(kit.accept(event(InboundKind::Deleted, "d2", sender, "")).await, NOTHING);
        let deleted = Settled { silent: Some("deleted".to_owned()), ..Settled::default() };
        assert_eq!(waiter.recv().await, Some(channel_api::LiveEvent::Settled(deleted)));
        assert_eq!(kit.next().await, None);
    }
}

#[tokio::test]
async fn a_press_is_a_command_of_whoever_presses_or_nothing() {
    let kit = kit(Edits::Ignore).await;
    assert_eq!(kit.accept(event(InboundKind::Button, "b1", "u", "tell me a story")).await, NOTHING);
    assert_eq!(kit.next().await, None);
    for (id, text, rows) in [("b2", "/queue", 3), ("b3", "/队列", 3), ("b4", "/queue followup", 0)] {
        let Accepted::New(entry) = kit.accept(event(InboundKind::Button, id, "u", text)).await else {
            panic!("it is obeyed")
        };
        let filter = PartFilter { entry: Some(entry), state: None };
        let parts = kit.store.parts(filter, 9).await.expect("reads");
        let reply = kit.store.reply_of(&parts[0].id).await.expect("reads").expect("it is kept");
        assert_eq!(reply.buttons.len(), rows, "{text}");
        for button in reply.buttons.iter().flatten() {
            assert!(button.data.len() <= 60, "{button:?}");
            assert!(matches!(Command::parse(&button.data), Some((Command::Queue(Some(_)), _))), "{button:?}");
        }
    }
    let key = kit.intake.channels.all()[0].session_of(&event(InboundKind::Message, "", "u", ""));
    let session = kit.store.session(&key).await.expect("reads").expect("a session");
    assert_eq!(session.mode, Some(QueueMode::Followup));
    // A stranger's press decides nothing, an owner's does.
    for (id, sender, expected) in [("b5", "u", 0), ("b6", "owner", 1)] {
        let mut new = event(InboundKind::Message, "", "", "").address;
        new.lane.push_str(id);
        let code = format!("ABCD234{}", &id[1..]);
        let asked = NewPairing {
            channel: ChannelId::new("webhook", "one"),
            sender: format!("asks-{id}"),
            name: None,
            code: code.clone(),
            lang: Lang::En,
            address: new,
            parts: Vec::new(),
            at: kit.intake.clock.now_ms(),
            expires_at: kit.intake.clock.now_ms() + 3_600_000,
        };
        kit.store.accept(NewBatch { pairings: vec![asked], ..NewBatch::default() }).await.expect("accepts");
        kit.accept(event(InboundKind::Button, id, sender, &lang::pairing_approve_button(Lang::Zh, &code))).await;
        let rows = kit.intake.access.pairings().await.expect("reads");
        assert_eq!(rows.approved.len(), expected, "{sender}");
    }
}

#[test]
fn what_a_button_says_is_a_short_command_in_both_languages() {
    for lang in [Lang::En, Lang::Zh] {
        for (data, approve) in [
            (lang::pairing_approve_button(lang, "ABCD2345"), true),
            (lang::pairing_reject_button(lang, "ABCD2345"), false),
        ] {
            assert!(data.len() <= 60);
            let said = Command::parse(&data).map(|(command, _)| command);
            let code = "ABCD2345".to_owned();
            let meant = if approve { Pair::Approve { code, role: None } } else { Pair::Reject { code } };
            assert_eq!(said, Some(Command::Pair(meant)), "{data}");
        }
    }
}

/// What models took cannot be read.
struct Unreadable;

#[async_trait]
impl crate::store::LedgerStore for Unreadable {
    async fn spend(&self, _spend: crate::store::NewSpend) -> Result<(), StoreError> {
        Ok(())
    }
    async fn spent_on(&self, _day: &str) -> Result<Vec<crate::store::DaySpent>, StoreError> {
        Err(StoreError::Corrupt("integer overflow".to_owned()))
    }
    async fn spent(&self, _ask: &SpentAsk) -> Result<Vec<crate::store::SpentRow>, StoreError> {
        Err(StoreError::Corrupt("integer overflow".to_owned()))
    }
}

#[tokio::test]
async fn a_command_that_cannot_read_answers_so_and_its_message_is_accepted() {
    let mut kit = kit(Edits::Ignore).await;
    let (store, clock) = (Arc::new(Unreadable), kit.intake.clock.clone());
    let zone = jiff::tz::TimeZone::UTC;
    kit.intake.ledger = Arc::new(Ledger::new(store, clock, zone, Default::default(), Default::default()));
    for (id, text, said) in [("u1", "/usage", "I could not read"), ("u2", "/用量", "读取失败")] {
        let Accepted::New(entry) = kit.accept(event(InboundKind::Message, id, "stranger", text)).await else {
            panic!("it is accepted")
        };
        let parts = kit.store.parts(PartFilter { entry: Some(entry), state: None }, 9).await.expect("reads");
        let reply = kit.store.reply_of(&parts[0].id).await.expect("reads").expect("it is kept");
        assert!(parts.len() == 1 && reply.text.contains(said), "{reply:?}");
    }
}
