//! The audit log: what was done and decided, one row each, chained by hashes so that a change or a gap is found.
//!
//! Pure: what a row is, how it is hashed, how the chain is walked. The rows themselves are the store's
//! (`store/sqlite/audit.rs`): written in the transaction of what they tell of, never changed, kept for ever.

use std::{future::Future, sync::Arc};

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::store::{LaneKey, NewPart, StoreError};

/// The hash before the first row.
pub const BEGINNING: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Who did what the gateway did by itself.
pub const GATEWAY: &str = "gateway";
/// Who did what came by the command line or with the gateway's token.
pub const CONSOLE: &str = "console";
/// The most characters of one text in a row: the rest is covered by the hash of the arguments.
const TEXT_CHARS: usize = 160;
/// The most values of an object or a list in a row, and how deep they go.
const VALUES: usize = 16;
const DEPTH: usize = 4;

/// What a row is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A tool that does something: started, and how it ended.
    Effect,
    /// An owner was asked, or answered.
    Approval,
    /// Who may write: let in, refused, taken back, blocked, a role.
    Access,
    /// What a skill or an MCP server may do.
    Grant,
    /// The configuration was read again.
    Config,
    /// The gateway's token: a log-in, a log-out, a lock-out.
    Login,
    /// Everything was stopped, nothing new is begun, or work goes on.
    Halt,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Effect, Self::Approval, Self::Access, Self::Grant, Self::Config, Self::Login, Self::Halt];

    /// Its name in rows and on the command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Effect => "effect",
            Self::Approval => "approval",
            Self::Access => "access",
            Self::Grant => "grant",
            Self::Config => "config",
            Self::Login => "login",
            Self::Halt => "halt",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// Something to be written down.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When, epoch milliseconds.
    pub at: i64,
    /// What it is about.
    pub kind: Kind,
    /// Who did it: channel and sender id (`telegram:main 42`), [`CONSOLE`] or [`GATEWAY`].
    pub who: String,
    /// What, in one or two words: `exec started`, `pairing approved`.
    pub what: String,
    /// The rest. Values of secrets never: see [`short_form`].
    pub detail: Value,
}

/// A row as it is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AuditRow {
    /// Its place: 1, 2, 3 … without a gap.
    pub seq: i64,
    /// When, epoch milliseconds.
    pub at: i64,
    /// A [`Kind`]; a text, so that a row of a later version is shown too.
    pub kind: String,
    /// Who did it.
    pub who: String,
    /// What.
    pub what: String,
    /// The rest.
    pub detail: Value,
    /// The hash of the row before.
    pub prev: String,
    /// Of this row.
    pub hash: String,
}

/// Where the log ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// The newest row; 0 = none.
    pub seq: i64,
    /// Its hash; [`BEGINNING`] = none.
    pub hash: String,
}

impl AuditRow {
    /// The row that follows `head`.
    pub fn after(head: &Head, event: &Event) -> Self {
        let mut row = Self {
            seq: head.seq + 1,
            at: event.at,
            kind: event.kind.as_str().to_owned(),
            who: event.who.clone(),
            what: event.what.clone(),
            detail: event.detail.clone(),
            prev: head.hash.clone(),
            hash: String::new(),
        };
        row.hash = row.reckoned();
        row
    }

    /// The hash it must have: sha256 of the hash before and the row as canonical JSON (an array in the order of the
    /// columns, keys of objects sorted, no blanks).
    pub fn reckoned(&self) -> String {
        let body = json!([self.seq, self.at, self.kind, self.who, self.what, self.detail]);
        let mut hash = Sha256::new();
        hash.update(self.prev.as_bytes());
        hash.update(canonical(&body).as_bytes());
        hex(&hash.finalize())
    }
}

/// What is wrong with the chain: the first row that does not fit, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("row {seq}: {why}")]
pub struct Broken {
    /// The row.
    pub seq: i64,
    /// `missing`, `changed`, `unchained` or `head`.
    pub why: String,
}

/// Walks the chain from its beginning.
#[derive(Clone, Debug)]
pub struct Walk(Head);

impl Default for Walk {
    fn default() -> Self {
        Self(Head { seq: 0, hash: BEGINNING.to_owned() })
    }
}

impl Walk {
    /// The next row.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn step(&mut self, row: &AuditRow) -> Result<(), Broken> {
        let broken = |seq, why: &str| Err(Broken { seq, why: why.to_owned() });
        if row.seq != self.0.seq + 1 {
            return broken(self.0.seq + 1, "missing");
        }
        if row.prev != self.0.hash {
            return broken(row.seq, "unchained");
        }
        if row.hash != row.reckoned() {
            return broken(row.seq, "changed");
        }
        self.0 = Head { seq: row.seq, hash: row.hash.clone() };
        Ok(())
    }

    /// Whether the walk passes through `head`, a row that was written down elsewhere, and which it is at now.
    ///
    /// # Errors
    /// The rows up to `head` are not there any more.
    pub fn ends_at(&self, head: &Head) -> Result<(), Broken> {
        if self.0 == *head {
            return Ok(());
        }
        let why = if head.seq > self.0.seq { "missing" } else { "head" };
        Err(Broken { seq: self.0.seq.min(head.seq - 1).max(0) + 1, why: why.to_owned() })
    }

    /// Where it is.
    pub fn head(&self) -> &Head {
        &self.0
    }
}

/// JSON with sorted keys and no blanks: the same value is always the same bytes.
pub fn canonical(value: &Value) -> String {
    match value {
        Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort_unstable();
            let fields: Vec<String> =
                keys.iter().map(|key| format!("{}:{}", Value::from(key.as_str()), canonical(&map[*key]))).collect();
            format!("{{{}}}", fields.join(","))
        }
        Value::Array(list) => format!("[{}]", list.iter().map(canonical).collect::<Vec<_>>().join(",")),
        other => other.to_string(),
    }
}

/// The sha256 of a value as canonical JSON, hex: what an approval is bound to and what an effect's rows name.
pub fn hash_of(value: &Value) -> String {
    hex(&Sha256::digest(canonical(value).as_bytes()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Arguments short enough to be kept for ever: long texts cut, what is named like a secret left out.
pub fn short_form(value: &Value) -> Value {
    shortened(value, DEPTH)
}

fn shortened(value: &Value, depth: usize) -> Value {
    match value {
        Value::String(text) => match text.char_indices().nth(TEXT_CHARS) {
            Some((end, _)) => format!("{}…", &text[..end]).into(),
            None => value.clone(),
        },
        Value::Array(_) | Value::Object(_) if depth == 0 => "…".into(),
        Value::Array(list) => list.iter().take(VALUES).map(|value| shortened(value, depth - 1)).collect(),
        Value::Object(map) => {
            let short = |(key, value): (&String, &Value)| {
                let value = if is_secret(key) { "…".into() } else { shortened(value, depth - 1) };
                (key.chars().take(64).collect::<String>(), value)
            };
            Value::Object(map.iter().take(VALUES).map(short).collect())
        }
        other => other.clone(),
    }
}

fn is_secret(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    ["token", "secret", "password", "passwd", "authorization", "api_key", "apikey", "cookie"]
        .iter()
        .any(|word| key.contains(word))
}

/// The configuration of the last start, secrets masked, in the data folder: what the next start is compared with.
pub const SEEN: &str = "config-seen.json";
/// The most keys that are named.
const KEYS: usize = 50;

/// The keys that differ between the configuration of the last start (JSON; empty or broken = none is known) and that of now,
/// sorted, never their values. What is masked in both is the same: a new secret under the same name is no change.
pub fn changed_since(before: &str, now: &Value) -> Option<Vec<String>> {
    let before: Value = serde_json::from_str(before).ok()?;
    let mut keys = Vec::new();
    differing(&before, now, &mut String::new(), &mut keys);
    keys.sort_unstable();
    keys.truncate(KEYS);
    Some(keys)
}

fn differing(before: &Value, now: &Value, path: &mut String, keys: &mut Vec<String>) {
    match (before, now) {
        (Value::Object(before), Value::Object(now)) => {
            let names: std::collections::BTreeSet<&String> = before.keys().chain(now.keys()).collect();
            for name in names {
                let end = path.len();
                if end > 0 {
                    path.push('.');
                }
                path.extend(name.chars().take(64));
                let none = Value::Null;
                differing(before.get(name).unwrap_or(&none), now.get(name).unwrap_or(&none), path, keys);
                path.truncate(end);
            }
        }
        // A section that came or went is named by its keys.
        (Value::Object(_), Value::Null) => differing(before, &json!({}), path, keys),
        (Value::Null, Value::Object(_)) => differing(&json!({}), now, path, keys),
        (before, now) if before != now => keys.push(path.clone()),
        _ => {}
    }
}

/// The log as a store keeps it.
#[async_trait]
pub trait AuditStore: Send + Sync + 'static {
    /// Writes these, in order, in one transaction.
    async fn audit(&self, events: Vec<Event>) -> Result<(), StoreError>;

    /// Writes one down and stores what is told of it, in one transaction; the lanes to wake.
    async fn tell(&self, event: Event, parts: Vec<NewPart>) -> Result<Vec<LaneKey>, StoreError>;

    /// Rows after `after`, oldest first, of that kind and since that time (epoch milliseconds) where one is given.
    async fn audit_rows(
        &self,
        after: i64,
        since: i64,
        kind: Option<&str>,
        limit: u32,
    ) -> Result<Vec<AuditRow>, StoreError>;

    /// Where the log ends, as it was written beside the rows.
    async fn audit_head(&self) -> Result<Head, StoreError>;

    /// Since when and by whom nothing new is begun; `None` = the gateway works.
    async fn halted(&self) -> Result<Option<(i64, String)>, StoreError>;

    /// Halts, or has work go on, with its row in the log. Says whether that changed anything.
    async fn set_halted(&self, halted: bool, who: &str, now: i64) -> Result<bool, StoreError>;
}

/// What others write the log with.
#[derive(Clone)]
pub struct Audit(Arc<dyn AuditStore>);

impl Audit {
    /// Into this store.
    pub fn new(store: Arc<dyn AuditStore>) -> Self {
        Self(store)
    }

    /// Writes one down. What it tells of must wait for this, or be written in the same transaction
    /// (`store::sqlite::audit::append`).
    ///
    /// # Errors
    /// The store's: then what was to be told of must not be done.
    pub async fn append(&self, event: Event) -> Result<(), StoreError> {
        self.0.audit(vec![event]).await
    }
}

tokio::task_local! {
    static ACTOR: String;
}

/// Runs `work` in the name of `who`: what it changes about access is put down to them.
pub async fn acting_as<T>(who: String, work: impl Future<Output = T>) -> T {
    ACTOR.scope(who, work).await
}

/// In whose name this task works: whoever holds the machine or its token, unless [`acting_as`] says otherwise.
pub fn actor() -> String {
    ACTOR.try_with(Clone::clone).unwrap_or_else(|_| CONSOLE.to_owned())
}

/// Walks the whole log of a store, a page at a time, and compares it with the head that stands beside the rows and with
/// those in `seen` (from the log file). Gives the number of rows.
///
/// # Errors
/// As the store gives them.
pub async fn verify<S: AuditStore + ?Sized>(store: &S, seen: &[Head]) -> Result<Result<Head, Broken>, StoreError> {
    // First: rows may be added while it walks, never taken.
    let head = store.audit_head().await?;
    let mut walk = Walk::default();
    let mut seen: Vec<&Head> = seen.iter().chain([&head]).filter(|head| head.seq > 0).collect();
    seen.sort_by_key(|head| head.seq);
    let mut seen = seen.into_iter().peekable();
    loop {
        let page = store.audit_rows(walk.head().seq, i64::MIN, None, PAGE).await?;
        for row in &page {
            if let Err(broken) = walk.step(row) {
                return Ok(Err(broken));
            }
            while let Some(head) = seen.next_if(|head| head.seq <= row.seq) {
                if let Err(broken) = walk.ends_at(head) {
                    return Ok(Err(broken));
                }
            }
        }
        if page.len() < PAGE as usize {
            break;
        }
    }
    if let Some(head) = seen.next()
        && let Err(broken) = walk.ends_at(head)
    {
        return Ok(Err(broken));
    }
    Ok(Ok(walk.head().clone()))
}

/// Rows of one look.
const PAGE: u32 = 500;

/// The line of the log file that names the head, once a day and at every start.
const HEAD_LINE: &str = "the audit log ends here";

/// Writes the head into the log file.
pub fn log_head(head: &Head) {
    tracing::info!(audit_seq = head.seq, audit_hash = %head.hash, "{HEAD_LINE}");
}

/// The heads that lines of log files name.
pub fn heads_in(log: &str) -> Vec<Head> {
    log.lines().filter(|line| line.contains(HEAD_LINE)).filter_map(head_of_line).collect()
}

fn head_of_line(line: &str) -> Option<Head> {
    let after = |name: &str| {
        let rest = &line[line.find(name)? + name.len()..];
        let rest = rest.trim_start_matches(['"', ':', '=', ' ']);
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        Some(&rest[..end])
    };
    let (seq, hash) = (after("audit_seq")?.parse().ok()?, after("audit_hash")?.to_owned());
    (hash.len() == BEGINNING.len()).then_some(Head { seq, hash })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(n: i64) -> Vec<AuditRow> {
        let mut head = Walk::default().head().clone();
        (1..=n)
            .map(|at| {
                let detail = json!({ "n": at, "a": [1, { "z": 1, "y": null }] });
                let event = Event { at, kind: Kind::Access, who: CONSOLE.into(), what: "blocked".into(), detail };
                let row = AuditRow::after(&head, &event);
                head = Head { seq: row.seq, hash: row.hash.clone() };
                row
            })
            .collect()
    }

    fn walked(rows: &[AuditRow]) -> Result<Head, Broken> {
        let mut walk = Walk::default();
        rows.iter().try_for_each(|row| walk.step(row)).map(|()| walk.head().clone())
    }

    #[test]
    fn a_chain_holds_and_each_change_of_it_is_named_by_its_first_row() {
        let rows = chain(6);
        let whole = walked(&rows).expect("it holds");
        assert_eq!(whole.seq, 6);
        let broken = |change: &dyn Fn(&mut Vec<AuditRow>)| {
            let mut rows = rows.clone();
            change(&mut rows);
            let broken = walked(&rows).expect_err("it is broken");
            (broken.seq, broken.why)
        };
        assert_eq!(broken(&|rows| rows[2].who = "telegram:main 7".into()), (3, "changed".into()));
        assert_eq!(broken(&|rows| rows[2].detail = json!({})), (3, "changed".into()));
        assert_eq!(broken(&|rows| rows[3].at += 1), (4, "changed".into()));
        assert_eq!(broken(&|rows| drop(rows.remove(1))), (2, "missing".into()));
        assert_eq!(broken(&|rows| rows.swap(1, 2)), (2, "missing".into()));
        // Reckoned anew, the row after it does not fit.
        let again = |rows: &mut Vec<AuditRow>| {
            rows[2].what = "unblocked".into();
            rows[2].hash = rows[2].reckoned();
        };
        assert_eq!(broken(&again), (4, "unchained".into()));
        // Rows cut off the end: only a head kept elsewhere tells.
        let mut walk = Walk::default();
        rows[..4].iter().try_for_each(|row| walk.step(row)).expect("a shorter chain holds");
        let missed = walk.ends_at(&whole).expect_err("two are missing");
        assert_eq!((missed.seq, missed.why.as_str()), (5, "missing"));
    }

    #[test]
    fn the_same_value_is_the_same_bytes() {
        let one: Value = serde_json::from_str(r#"{"b": 1, "a": {"d": "é\n", "c": [true, null]}}"#).expect("JSON");
        assert_eq!(canonical(&one), r#"{"a":{"c":[true,null],"d":"é\n"},"b":1}"#);
        let two: Value = serde_json::from_str(r#"{"a":{"c":[true,null],"d":"é\n"},"b":1}"#).expect("JSON");
        assert_eq!(hash_of(&one), hash_of(&two));
    }

    #[test]
    fn what_is_kept_for_ever_is_short_and_names_no_secret() {
        let long = "汉".repeat(1000);
        let args =
            json!({ "command": long, "headers": { "Authorization": "Bearer abc", "x": 1 }, "deep": [[[[[1]]]]] });
        let short = short_form(&args).to_string();
        assert!(short.len() < 700 && !short.contains("Bearer"), "{short}");
        assert!(short.contains("\"x\":1"), "{short}");
    }

    #[test]
    fn of_a_configuration_the_changed_keys_are_named_and_no_value() {
        let before = json!({ "a": { "b": 1, "c": [1], "token": "***" }, "gone": { "x": 1 } }).to_string();
        let now = json!({ "a": { "b": 2, "c": [1], "token": "***" }, "new": { "y": { "z": "value" } } });
        let changed = changed_since(&before, &now).expect("there was one");
        assert_eq!(changed, ["a.b", "gone.x", "new.y.z"]);
        assert_eq!(changed_since(&now.to_string(), &now), Some(Vec::new()));
        assert_eq!(changed_since("", &now), None, "the first start");
        let many: Value = (0..200).map(|n| (format!("k{n}"), json!(n))).collect::<serde_json::Map<_, _>>().into();
        assert_eq!(changed_since("{}", &many).map(|keys| keys.len()), Some(KEYS));
    }

    #[test]
    fn heads_are_read_back_from_either_form_of_the_log() {
        let hash = "ab".repeat(32);
        let plain = format!("2026-11-30T10:00:00Z  INFO the audit log ends here audit_seq=12 audit_hash={hash}");
        let json = format!(r#"{{"message":"the audit log ends here","audit_seq":12,"audit_hash":"{hash}"}}"#);
        let cut = "the audit log ends here audit_seq=12 audit_hash=abab";
        let head = Head { seq: 12, hash };
        assert_eq!(heads_in(&format!("x\n{plain}\n{json}\n{cut}\n")), [head.clone(), head]);
    }
}
