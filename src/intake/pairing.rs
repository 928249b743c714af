//! Who was let in and who is shut out: the one owner of what the store knows about it and of its copy in memory, so that a
//! message is decided without a query. Also makes pairing codes and says what people decide about them: the same answers
//! for chat, HTTP and the command line. What the configuration says is the gate's business (`intake/access.rs`).

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use channel_api::{Address, ChannelId, Clock, Inbound, Level, Reply, ReplyKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracing::{info, warn};

use crate::{
    channels::{self, Channels, Entry},
    inbox::{Running, WakeUp},
    inspect::{Method, Request},
    journal::Journal,
    lang::{self, Lang},
    outbox::{self, LaneWakeUp},
    policy::Role,
    store::{
        AccessRows, AccessStore, Approve, Approved, ApprovedRow, BlockedRow, Ended, NewPairing, NewPart, PairingRow,
        StoreError, Who,
    },
};

/// The letters of a code: none that looks like another. openclaw-parity.md §7.1.
const LETTERS: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
/// The letters of one code: 40 bits.
const LENGTH: usize = 8;
/// How long a code is good, in milliseconds.
pub const CODE_MS: i64 = 60 * 60 * 1000;
/// This many wrong codes refuse all for [`LOCKED`]. security.md row 12.
const WRONG: u32 = 5;
const LOCKED: Duration = Duration::from_secs(10 * 60);
/// The longest sender id, in bytes: more is refused, not cut.
const MAX_ID: usize = 256;
/// The longest name that is kept, in characters.
const MAX_NAME: usize = 64;

/// Who may write because of a decision, and who may not.
pub struct Access {
    store: Arc<dyn AccessStore>,
    channels: Channels,
    clock: Arc<dyn Clock>,
    reach: Reach,
    copy: RwLock<Copied>,
    /// Raised whenever somebody loses rights: what was accepted meanwhile looks again.
    losses: AtomicU64,
    wrong: Mutex<Wrong>,
    /// One change at a time: the copy follows the rows in their order.
    changing: tokio::sync::Mutex<()>,
}

/// What a change touches in a running gateway; all of it idle where none runs.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// Reaches running turns.
    pub running: Running,
    /// Tells watchers.
    pub journal: Journal,
    /// Wakes delivery.
    pub lanes: LaneWakeUp,
    /// Wakes workers.
    pub work: WakeUp,
}

/// What was decided about a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SenderRights {
    /// The role that a pairing gave.
    pub paired: Option<Role>,
    /// Shut out.
    pub blocked: bool,
}

/// The copy in memory.
#[derive(Clone, Debug, Default)]
struct Copied {
    /// Channel → sender → role.
    approved: HashMap<String, HashMap<String, Role>>,
    /// Scope → senders.
    blocked: HashMap<String, HashSet<String>>,
}

/// Wrong codes since the last right one.
#[derive(Debug, Default)]
struct Wrong {
    count: u32,
    until: Option<Duration>,
}

/// Why a change was not made, named by what is said.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum AccessError {
    /// No request waits with this code: it is wrong, or its hour is over.
    #[error("no request with this code waits: it is wrong, or older than an hour")]
    NoSuchCode,
    /// Too many wrong codes; again after this long.
    #[error("too many wrong codes: none is taken for {} minutes", .0.as_secs().div_ceil(60))]
    Locked(Duration),
    /// Nobody of that id was approved, or is blocked, there.
    #[error("nobody of that id is listed there")]
    NoSuchSender,
    /// This names nobody: what was written.
    #[error(
        "write `<kind>:<id>` or `<kind>:<account>:<id>`, e.g. telegram:123456; the id is the platform's, never a name"
    )]
    BadWho(String),
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What people ask and decide: one list for HTTP, where the routes are, and for the command line.
#[derive(Clone, Debug, PartialEq)]
pub enum AccessQuery {
    /// `GET /api/pairings` → `{"pairings": [PairingRow], "approved": [ApprovedRow], "owner": bool}`: `owner` = a chat channel
    /// has one.
    Pairings,
    /// `POST /api/pairings/{code}/approve {"channel"?, "role"?}` → `{"approved": ApprovedRow, "first_owner", "again"}`.
    Approve {
        /// The channel or kind it was asked on.
        scope: Option<String>,
        /// The code.
        code: String,
        /// The role, if it is not left to us.
        role: Option<Role>,
    },
    /// `POST /api/pairings/{code}/reject {"channel"?}` → `{"rejected": PairingRow}`.
    Reject {
        /// The channel or kind it was asked on.
        scope: Option<String>,
        /// The code.
        code: String,
    },
    /// `DELETE /api/pairings?channel=&sender=` → `{"revoked": Who, "stopped"}`.
    Revoke(Who),
    /// `GET /api/access` → `{"blocked": [BlockedRow]}`.
    Blocked,
    /// `POST /api/access {"who"}` → `{"blocked": Who, "owner": bool, "stopped"}`: `owner` = the configuration names them one.
    Block(String),
    /// `DELETE /api/access?who=` → `{"unblocked": Who}`.
    Unblock(String),
}

impl AccessQuery {
    /// How to ask a running gateway.
    pub fn request(&self) -> Request {
        let of = |method, path: &[&str], query: Vec<(&'static str, String)>, body: Value| Request {
            method,
            path: path.iter().map(|part| (*part).to_owned()).collect(),
            query,
            body,
        };
        match self {
            Self::Pairings => of(Method::Get, &["api", "pairings"], vec![], Value::Null),
            Self::Approve { scope, code, role } => {
                let body = json!({ "channel": scope, "role": role });
                of(Method::Post, &["api", "pairings", code, "approve"], vec![], body)
            }
            Self::Reject { scope, code } => {
                of(Method::Post, &["api", "pairings", code, "reject"], vec![], json!({ "channel": scope }))
            }
            Self::Revoke(who) => {
                let query = vec![("channel", who.scope.clone()), ("sender", who.sender.clone())];
                of(Method::Delete, &["api", "pairings"], query, json!({}))
            }
            Self::Blocked => of(Method::Get, &["api", "access"], vec![], Value::Null),
            Self::Block(who) => of(Method::Post, &["api", "access"], vec![], json!({ "who": who })),
            Self::Unblock(who) => of(Method::Delete, &["api", "access"], vec![("who", who.clone())], json!({})),
        }
    }
}

/// Requests and approvals as they are listed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pairings {
    /// Requests that wait, oldest first.
    pub pairings: Vec<PairingRow>,
    /// Those who were let in.
    pub approved: Vec<ApprovedRow>,
    /// A chat channel has an owner, by the configuration or by an approval.
    pub owner: bool,
}

impl Access {
    /// Reads what the store knows.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn open(
        store: Arc<dyn AccessStore>,
        channels: Channels,
        clock: Arc<dyn Clock>,
        reach: Reach,
    ) -> Result<Self, StoreError> {
        let rows = store.access(clock.now_ms()).await?;
        Ok(Self::with(&rows, store, channels, clock, reach))
    }

    /// The same with rows that were read already.
    pub fn with(
        rows: &AccessRows,
        store: Arc<dyn AccessStore>,
        channels: Channels,
        clock: Arc<dyn Clock>,
        reach: Reach,
    ) -> Self {
        Self {
            store,
            channels,
            clock,
            reach,
            copy: RwLock::new(Copied::of(rows)),
            losses: AtomicU64::new(0),
            wrong: Mutex::default(),
            changing: tokio::sync::Mutex::default(),
        }
    }

    /// What was decided about a sender. No query.
    pub fn rights(&self, channel: &ChannelId, sender: &str) -> SenderRights {
        let copy = self.copy.read().unwrap_or_else(PoisonError::into_inner);
        let shut = |scope: &str| copy.blocked.get(scope).is_some_and(|senders| senders.contains(sender));
        SenderRights {
            paired: copy.approved.get(channel.as_str()).and_then(|senders| senders.get(sender)).copied(),
            blocked: shut(channel.as_str()) || shut(channel.kind()),
        }
    }

    /// What the block of this sender holds for: the channel, or its kind.
    pub fn block_scope(&self, channel: &ChannelId, sender: &str) -> Option<String> {
        let copy = self.copy.read().unwrap_or_else(PoisonError::into_inner);
        let shut = |scope: &&str| copy.blocked.get(*scope).is_some_and(|senders| senders.contains(sender));
        [channel.as_str(), channel.kind()].iter().find(|scope| shut(scope)).map(|scope| (*scope).to_owned())
    }

    /// Changes whenever somebody loses rights.
    pub fn losses(&self) -> u64 {
        self.losses.load(Ordering::Acquire)
    }

    /// The request of a stranger, with a code and what they are told. Whether it is stored the store decides.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn request(&self, entry: &Entry, event: &Inbound, now: i64) -> Result<NewPairing, StoreError> {
        let code = new_code().map_err(|error| StoreError::Unavailable(format!("no random numbers: {error}")))?;
        let lang = Lang::of_text(&event.text).unwrap_or_else(Lang::current);
        let id = shown_id(&event.sender.id);
        let text = lang::pairing_asked(lang, lang::kind_title(lang, event.channel.kind()), id, &event.channel, &code);
        let mut parts = self.notice(entry, text, &event.address, now);
        for part in &mut parts {
            part.in_reply_to = Some(event.platform_id.clone());
            part.expires_at = part.expires_at.min(now.saturating_add(CODE_MS));
        }
        Ok(NewPairing {
            channel: event.channel.clone(),
            sender: event.sender.id.clone(),
            name: event.sender.name.as_ref().map(|name| name.chars().take(MAX_NAME).collect()),
            code,
            lang,
            address: event.address.clone(),
            parts,
            at: now,
            expires_at: now.saturating_add(CODE_MS),
        })
    }

    fn notice(&self, entry: &Entry, text: String, to: &Address, now: i64) -> Vec<NewPart> {
        let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(text) };
        outbox::rows(entry.channel.as_ref(), &reply, Level::Rich, to, None, now)
    }

    /// Answers a question, or does what was decided.
    ///
    /// # Errors
    /// [`AccessError`].
    pub async fn answer(&self, query: &AccessQuery) -> Result<Value, AccessError> {
        Ok(match query {
            AccessQuery::Pairings => json!(self.pairings().await?),
            AccessQuery::Approve { scope, code, role } => {
                let done = self.approve(scope.as_deref(), code, *role).await?;
                json!({ "approved": done.row, "first_owner": done.first_owner, "again": done.again })
            }
            AccessQuery::Reject { scope, code } => json!({ "rejected": self.reject(scope.as_deref(), code).await? }),
            AccessQuery::Revoke(who) => {
                let ended = self.revoke(who).await?;
                json!({ "revoked": who, "stopped": ended.running.len() as u64 + ended.settled })
            }
            AccessQuery::Blocked => json!({ "blocked": self.blocked().await? }),
            AccessQuery::Block(who) => {
                let who = self.who(who)?;
                let ended = self.block(&who).await?;
                let stopped = ended.running.len() as u64 + ended.settled;
                json!({ "blocked": who, "owner": self.is_owner_by_config(&who), "stopped": stopped })
            }
            AccessQuery::Unblock(who) => {
                let who = self.who(who)?;
                self.unblock(&who).await?;
                json!({ "unblocked": who })
            }
        })
    }

    /// Requests that wait and those who were let in.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn pairings(&self) -> Result<Pairings, StoreError> {
        let AccessRows { pairings, approved, .. } = self.store.access(self.clock.now_ms()).await?;
        let owner = !self.may_own() || approved.iter().any(|row| row.role == Role::Owner);
        Ok(Pairings { pairings, approved, owner })
    }

    /// Those who are shut out.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn blocked(&self) -> Result<Vec<BlockedRow>, StoreError> {
        Ok(self.store.access(self.clock.now_ms()).await?.blocked)
    }

    /// Lets in whoever has this code and tells them.
    ///
    /// # Errors
    /// [`AccessError::NoSuchCode`], [`AccessError::Locked`].
    pub async fn approve(&self, scope: Option<&str>, code: &str, role: Option<Role>) -> Result<Approved, AccessError> {
        let _one = self.changing.lock().await;
        self.not_locked()?;
        let (channels, now) = (self.channels.clone(), self.clock.now_ms());
        let welcome = move |asked: &PairingRow, to: &Address, role: Role, first: bool| {
            let Some(entry) = channels.get(&asked.channel) else { return Vec::new() };
            let text = match (first, role) {
                (true, _) => lang::pairing_welcome_first_owner(asked.lang),
                (false, Role::Owner) => lang::pairing_welcome_owner(asked.lang),
                _ => lang::pairing_welcome(asked.lang),
            };
            let reply = Reply { kind: ReplyKind::Notice, ..Reply::message(text) };
            outbox::rows(entry.channel.as_ref(), &reply, Level::Rich, to, None, now)
        };
        let approve = Approve {
            scope: scope.map(str::to_owned),
            code: code_of(code),
            role,
            may_own: self.may_own(),
            welcome: Arc::new(welcome),
            now,
        };
        let done = self.tried(self.store.approve(approve).await)?;
        self.change(|copy| {
            let senders = copy.approved.entry(done.row.channel.to_string()).or_default();
            senders.insert(done.row.sender.clone(), done.row.role);
        });
        self.reach.lanes.wake(done.lanes.clone());
        let ApprovedRow { channel, sender, role, .. } = &done.row;
        info!(%channel, %sender, role = role.as_str(), first_owner = done.first_owner, "a sender was let in");
        Ok(done)
    }

    /// Refuses a request. Its sender is not told.
    ///
    /// # Errors
    /// [`AccessError::NoSuchCode`], [`AccessError::Locked`].
    pub async fn reject(&self, scope: Option<&str>, code: &str) -> Result<PairingRow, AccessError> {
        let _one = self.changing.lock().await;
        self.not_locked()?;
        let row = self.tried(self.store.reject(scope, &code_of(code), self.clock.now_ms()).await)?;
        info!(channel = %row.channel, sender = %row.sender, "a pairing request was rejected");
        Ok(row)
    }

    /// Takes an approval back: what the sender has in direct chats ends, the next message is a stranger's.
    ///
    /// # Errors
    /// [`AccessError::NoSuchSender`].
    pub async fn revoke(&self, who: &Who) -> Result<Ended, AccessError> {
        let _one = self.changing.lock().await;
        let before = self.lose(|copy| copy.forget(who));
        let ended = self.store.revoke(who, self.clock.now_ms()).await;
        let ended = self.or_restore(ended, before).map_err(no_such_sender)?;
        self.spread(&ended);
        info!(scope = %who.scope, sender = %who.sender, "an approval was revoked");
        Ok(ended)
    }

    /// Shuts a sender out and ends what they have.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn block(&self, who: &Who) -> Result<Ended, AccessError> {
        let _one = self.changing.lock().await;
        let before = self.lose(|copy| {
            copy.forget(who);
            copy.blocked.entry(who.scope.clone()).or_default().insert(who.sender.clone());
        });
        let ended = self.store.block(who, self.clock.now_ms()).await;
        let ended = self.or_restore(ended, before)?;
        self.spread(&ended);
        info!(scope = %who.scope, sender = %who.sender, "a sender was blocked");
        Ok(ended)
    }

    /// Ends what runs, whoever's it is. `by` is the owner who said so.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn end_all(&self, by: &str) -> Result<Ended, StoreError> {
        let ended = self.store.end_all(by, self.clock.now_ms()).await?;
        self.spread(&ended);
        Ok(ended)
    }

    /// Ends a block.
    ///
    /// # Errors
    /// [`AccessError::NoSuchSender`].
    pub async fn unblock(&self, who: &Who) -> Result<(), AccessError> {
        let _one = self.changing.lock().await;
        self.store.unblock(who, self.clock.now_ms()).await.map_err(no_such_sender)?;
        self.change(|copy| {
            if let Some(senders) = copy.blocked.get_mut(&who.scope) {
                senders.remove(&who.sender);
            }
        });
        info!(scope = %who.scope, sender = %who.sender, "a sender was unblocked");
        Ok(())
    }

    /// Ends what was accepted of a sender while they lost their rights.
    pub async fn end(&self, channel: &ChannelId, sender: &str, directs: bool) {
        let who = Who { scope: channel.to_string(), sender: sender.to_owned() };
        match self.store.end(&who, directs, self.clock.now_ms()).await {
            Ok(ended) => self.spread(&ended),
            Err(error) => warn!(%error, %channel, sender, "what a sender without rights had waiting was not ended"),
        }
    }

    /// Whom `<kind>:<id>` or `<kind>:<account>:<id>` names.
    ///
    /// # Errors
    /// [`AccessError::BadWho`].
    pub fn who(&self, text: &str) -> Result<Who, AccessError> {
        let bad = || AccessError::BadWho(text.chars().take(80).collect());
        let (kind, rest) = text.trim().split_once(':').ok_or_else(bad)?;
        if channels::kind(kind).is_none() && !self.channels.all().iter().any(|entry| entry.channel.id().kind() == kind)
        {
            return Err(bad());
        }
        let account =
            rest.split_once(':').filter(|(account, _)| self.channels.get(&ChannelId::new(kind, account)).is_some());
        let (scope, sender) = match account {
            Some((account, sender)) => (format!("{kind}:{account}"), sender),
            None => (kind.to_owned(), rest),
        };
        if is_id(sender) { Ok(Who { scope, sender: sender.to_owned() }) } else { Err(bad()) }
    }

    /// The configuration names this sender an owner somewhere in the scope.
    pub fn is_owner_by_config(&self, who: &Who) -> bool {
        self.channels.all().iter().any(|entry| {
            let id = entry.channel.id();
            (who.scope == id.as_str() || who.scope == id.kind()) && entry.gate.listed(&who.sender) == Some(Role::Owner)
        })
    }

    /// No chat channel has an owner by the configuration.
    fn may_own(&self) -> bool {
        !self.channels.all().iter().any(|entry| is_chat(entry) && entry.gate.has_owner())
    }

    fn change(&self, change: impl FnOnce(&mut Copied)) {
        change(&mut self.copy.write().unwrap_or_else(PoisonError::into_inner));
    }

    /// Takes rights away before the rows know, so that a message is either settled by the rows' transaction or, when it is
    /// committed after that, looked at again by whoever accepted it. Returns the copy as it was.
    fn lose(&self, change: impl FnOnce(&mut Copied)) -> Copied {
        let mut copy = self.copy.write().unwrap_or_else(PoisonError::into_inner);
        let before = copy.clone();
        change(&mut copy);
        self.losses.fetch_add(1, Ordering::AcqRel);
        before
    }

    /// Puts the copy back when the rows did not change.
    fn or_restore<T>(&self, done: Result<T, StoreError>, before: Copied) -> Result<T, StoreError> {
        if done.is_err() {
            self.change(|copy| *copy = before);
        }
        done
    }

    /// Tells everyone whom an end concerns.
    fn spread(&self, ended: &Ended) {
        for session in &ended.running {
            self.reach.running.stop(session);
        }
        self.reach.journal.committed(ended.events.clone());
        self.reach.work.wake();
    }

    fn not_locked(&self) -> Result<(), AccessError> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.clock.monotonic();
        match wrong.until {
            Some(until) if until > now => Err(AccessError::Locked(until - now)),
            Some(_) => {
                *wrong = Wrong::default();
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Counts a wrong code.
    fn tried<T>(&self, done: Result<T, StoreError>) -> Result<T, AccessError> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(done) => {
                *wrong = Wrong::default();
                Ok(done)
            }
            Err(StoreError::NotFound) => {
                wrong.count += 1;
                if wrong.count >= WRONG {
                    wrong.until = Some(self.clock.monotonic() + LOCKED);
                    warn!(minutes = LOCKED.as_secs() / 60, "too many wrong pairing codes: none is taken for a while");
                }
                Err(AccessError::NoSuchCode)
            }
            Err(error) => Err(error.into()),
        }
    }
}

impl Copied {
    fn of(rows: &AccessRows) -> Self {
        let mut copy = Self::default();
        for row in &rows.approved {
            copy.approved.entry(row.channel.to_string()).or_default().insert(row.sender.clone(), row.role);
        }
        for row in &rows.blocked {
            copy.blocked.entry(row.scope.clone()).or_default().insert(row.sender.clone());
        }
        copy
    }

    /// Nobody of this id is approved in the scope any more.
    fn forget(&mut self, who: &Who) {
        for (channel, senders) in &mut self.approved {
            let kind = channel.split_once(':').map_or(channel.as_str(), |(kind, _)| kind);
            if who.scope == *channel || who.scope == kind {
                senders.remove(&who.sender);
            }
        }
    }
}

fn no_such_sender(error: StoreError) -> AccessError {
    match error {
        StoreError::NotFound => AccessError::NoSuchSender,
        error => AccessError::Store(error),
    }
}

/// Whether people chat there: every channel but those that are the owner's anyway and a webhook that does not pair (its
/// senders are what its bridge says).
fn is_chat(entry: &Entry) -> bool {
    !entry.gate.is_owners_own() && (entry.channel.id().kind() != "webhook" || entry.gate.pairs())
}

/// Whether this can be a platform's id of a sender.
pub fn is_id(sender: &str) -> bool {
    !sender.is_empty()
        && sender.len() <= MAX_ID
        && !sender.starts_with('@')
        && sender != "*"
        && !sender.chars().any(|c| c.is_control() || c.is_whitespace())
}

/// An id as a line shows it: what is no plain id stands as code, so that nothing in it is a link or a mention.
pub fn shown_id(id: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.:+=".contains(c);
    if id.len() <= 80 && id.chars().all(plain) {
        return id.to_owned();
    }
    let text: String = id.chars().filter(|c| *c != '`' && !c.is_control()).take(80).collect();
    format!("`{text}`")
}

/// A new code.
fn new_code() -> Result<String, getrandom::Error> {
    let mut bytes = [0; LENGTH];
    getrandom::fill(&mut bytes)?;
    // 32 letters: five bits of each byte, all letters alike.
    Ok(bytes.iter().map(|byte| char::from(LETTERS[usize::from(byte & 31)])).collect())
}

/// A code as a person typed it: lower case, spaces and dashes do not matter.
fn code_of(typed: &str) -> String {
    use unicode_normalization::UnicodeNormalization;
    let letters = typed.nfkc().filter(|c| c.is_ascii_alphanumeric()).take(LENGTH + 1);
    letters.map(|c| c.to_ascii_uppercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clock::ManualClock,
        intake::access::{AccessConfig, ChannelPolicy, DmPolicy},
        store::{InboxStore as _, NewBatch, Upkeep as _, sqlite::SqliteStore},
    };

    #[test]
    fn codes_are_eight_unmistakable_letters() {
        let codes: HashSet<String> = (0..1_000).map(|_| new_code().expect("random numbers")).collect();
        assert_eq!(codes.len(), 1_000);
        let used: HashSet<char> = codes.iter().flat_map(|code| code.chars()).collect();
        assert_eq!(used.len(), LETTERS.len(), "every letter occurs");
        assert!(codes.iter().all(|code| code.len() == LENGTH && !code.contains(['I', 'O', '0', '1'])));
    }

    #[test]
    fn a_code_may_be_typed_as_people_type() {
        let table = [
            ("ABCD2345", "ABCD2345"),
            (" abcd-2345 ", "ABCD2345"),
            ("`abcd 2345`", "ABCD2345"),
            ("ＡＢＣＤ２３４５", "ABCD2345"),
            ("ABCD23456789", "ABCD23456"),
            ("'; DROP TABLE pairing", "DROPTABLE"),
            ("", ""),
        ];
        for (typed, code) in table {
            assert_eq!(code_of(typed), code, "{typed:?}");
        }
    }

    #[test]
    fn ids_are_ids() {
        for good in ["123", "ou_AbC", "a:b", "-100123"] {
            assert!(is_id(good), "{good}");
        }
        let long = "x".repeat(MAX_ID + 1);
        for bad in ["", "@bob", "*", "a b", "a\nb", long.as_str()] {
            assert!(!is_id(bad), "{bad:?}");
        }
        assert_eq!(shown_id("ou_AbC-1"), "ou_AbC-1");
        assert_eq!(shown_id("[x](http://e.test)`@all"), "`[x](http://e.test)@all`");
        let titles = |lang| ["telegram", "qq", "onebot", "feishu", ""].map(|kind| lang::kind_title(lang, kind));
        assert_eq!(titles(Lang::En), ["Telegram", "QQ", "OneBot", "Feishu", ""]);
        assert_eq!(titles(Lang::Zh), ["Telegram", "QQ", "OneBot", "飞书", ""]);
    }

    struct Kit {
        access: Access,
        store: Arc<SqliteStore>,
        clock: Arc<ManualClock>,
        _dir: tempfile::TempDir,
    }

    /// Two webhooks that pair; `owners` are those of the first.
    async fn kit(owners: &[&str]) -> Kit {
        let dir = tempfile::tempdir().expect("a folder");
        let store = Arc::new(SqliteStore::open(&dir.path().join("t.db")).await.expect("opens"));
        let clock = Arc::new(ManualClock::at(1_000_000));
        let settings: toml::Table = toml::from_str("token = \"0123456789abcdef0123456789abcdef\"").expect("a section");
        let channels = Channels::new(["one", "two"].map(|account| {
            let owners = if account == "one" { owners } else { &[] };
            let policy = ChannelPolicy {
                dm_policy: Some(DmPolicy::Pairing),
                owners: owners.iter().map(|owner| (*owner).to_owned()).collect(),
                ..ChannelPolicy::default()
            };
            let id = ChannelId::new("webhook", account);
            let network = channels::network(&policy, |path| path.into()).expect("a way out");
            let build = channels::BuildChannel { id: &id, settings: &settings, policy: &policy, network: &network };
            let channel = channels::build(&build).expect("a webhook");
            Entry::new(channel, policy, &AccessConfig::default(), false)
        }));
        let access = Access::open(store.clone(), channels, clock.clone(), Reach::default()).await.expect("it is read");
        Kit { access, store, clock, _dir: dir }
    }

    impl Kit {
        fn event(&self, sender: &str) -> Inbound {
            let channel = ChannelId::new("webhook", "one");
            Inbound {
                about: None,
                platform_id: format!("m-{sender}"),
                fingerprint: None,
                kind: Default::default(),
                conversation: channel_api::Conversation {
                    kind: channel_api::ConversationKind::Direct,
                    id: sender.to_owned(),
                    thread: None,
                    title: None,
                },
                sender: channel_api::Sender { id: sender.to_owned(), name: Some("N".repeat(500)), is_bot: false },
                text: "hi".to_owned(),
                attachments: Vec::new(),
                mentions_us: true,
                reply_to: None,
                at: None,
                address: Address {
                    channel: channel.clone(),
                    lane: sender.to_owned(),
                    data: json!({ "id": sender, "type": "direct" }),
                },
                trust: Default::default(),
                more_expected: None,
                queue: None,
                hold: false,
                channel,
            }
        }

        /// A stranger asks; the code.
        async fn ask(&self, sender: &str) -> String {
            let event = self.event(sender);
            let entry = self.access.channels.get(&event.channel).expect("a channel");
            let new = self.access.request(entry, &event, self.clock.now_ms()).expect("random numbers");
            assert!(new.parts.iter().all(|part| part.expires_at <= new.expires_at), "no word of a code that is over");
            assert_eq!(new.name.as_ref().map(|name| name.len()), Some(MAX_NAME));
            let code = new.code.clone();
            self.store.accept(NewBatch { pairings: vec![new], ..NewBatch::default() }).await.expect("accepts");
            code
        }

        fn rights(&self, account: &str, sender: &str) -> (Option<Role>, bool) {
            let SenderRights { paired, blocked } = self.access.rights(&ChannelId::new("webhook", account), sender);
            (paired, blocked)
        }
    }

    #[tokio::test]
    async fn what_is_decided_holds_at_once_and_after_a_restart() {
        let kit = kit(&[]).await;
        let code = kit.ask("ann").await;
        assert_eq!(kit.rights("one", "ann"), (None, false));
        let done = kit.access.approve(Some("webhook"), &code.to_lowercase(), None).await.expect("approves");
        assert_eq!((done.row.role, done.first_owner), (Role::Owner, true));
        assert_eq!(kit.rights("one", "ann"), (Some(Role::Owner), false));
        assert_eq!(kit.rights("two", "ann"), (None, false), "each account by itself");
        assert!(kit.access.pairings().await.expect("reads").owner);

        let everywhere = kit.access.who("webhook:bob").expect("a sender");
        kit.access.block(&everywhere).await.expect("blocks");
        let here = kit.access.who("webhook:one:ann").expect("a sender");
        assert_eq!((here.scope.as_str(), here.sender.as_str()), ("webhook:one", "ann"));
        let losses = kit.access.losses();
        kit.access.block(&here).await.expect("blocks");
        assert_ne!(kit.access.losses(), losses);
        let expected = [("one", "ann", true), ("two", "ann", false), ("one", "bob", true), ("two", "bob", true)];
        for (account, sender, blocked) in expected {
            assert_eq!(kit.rights(account, sender), (None, blocked), "{account} {sender}");
        }
        let rows = kit.store.access(kit.clock.now_ms()).await.expect("reads");
        let again =
            Access::with(&rows, kit.store.clone(), kit.access.channels.clone(), kit.clock.clone(), Reach::default());
        assert!(again.rights(&ChannelId::new("webhook", "two"), "bob").blocked);
        kit.access.unblock(&everywhere).await.expect("unblocks");
        assert_eq!(kit.rights("two", "bob"), (None, false));
        assert_eq!(kit.access.unblock(&everywhere).await, Err(AccessError::NoSuchSender));
        assert_eq!(kit.access.revoke(&here).await, Err(AccessError::NoSuchSender));
        kit.store.close().await;
        assert!(kit.access.block(&everywhere).await.is_err());
        assert_eq!(kit.rights("two", "bob"), (None, false), "what the rows do not say does not hold");
    }

    #[tokio::test]
    async fn an_old_code_and_a_wrong_one_are_refused_alike_and_five_lock() {
        let kit = kit(&["boss"]).await;
        let code = kit.ask("ann").await;
        kit.clock.advance(Duration::from_millis(CODE_MS as u64));
        assert_eq!(kit.access.approve(None, &code, None).await, Err(AccessError::NoSuchCode));
        assert_eq!(kit.access.approve(None, "AAAAAAAA", None).await, Err(AccessError::NoSuchCode));
        let code = kit.ask("ann").await;
        let done = kit.access.approve(None, &code, None).await.expect("approves");
        assert_eq!((done.row.role, done.first_owner), (Role::Member, false), "the configuration names an owner");
        let code = kit.ask("bob").await;
        for _ in 0..WRONG {
            assert_eq!(kit.access.reject(None, "AAAAAAAA").await, Err(AccessError::NoSuchCode));
        }
        assert_eq!(kit.access.approve(None, &code, None).await, Err(AccessError::Locked(LOCKED)));
        kit.clock.advance(LOCKED);
        assert!(kit.access.approve(None, &code, None).await.is_ok());
    }

    #[tokio::test]
    async fn who_is_meant_must_be_somebody() {
        let kit = kit(&["boss"]).await;
        for bad in
            ["", "ann", ":ann", "webhook:", "webhook:one:", "nowhere:1", "webhook:@ann", "webhook:*", "webhook:a b"]
        {
            assert!(matches!(kit.access.who(bad), Err(AccessError::BadWho(_))), "{bad:?}");
        }
        let odd = kit.access.who("webhook:three:ann").expect("an id may hold a colon");
        assert_eq!((odd.scope.as_str(), odd.sender.as_str()), ("webhook", "three:ann"));
        for (who, owner) in [("webhook:boss", true), ("webhook:one:boss", true), ("webhook:two:boss", false)] {
            assert_eq!(kit.access.is_owner_by_config(&kit.access.who(who).expect("a sender")), owner, "{who}");
        }
    }
}
