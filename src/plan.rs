//! The plan of a task with many steps: a short checklist that the agent keeps with `todo`, one a session. It outlives turns
//! and restarts, is shown while it changes, and is told to the next turn as long as something of it is open.
//!
//! The value and its looks are pure; what is durable stands behind [`PlanStore`].

use std::{
    collections::HashSet,
    sync::{Arc, PoisonError, RwLock},
};

use async_trait::async_trait;
use channel_api::{LiveEvent, TurnId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::{
    journal::Journal,
    session::SessionKey,
    store::{EventRow, Lease, StoreError},
    untrusted,
};

/// The most steps of a plan.
pub const MOST_ITEMS: usize = 30;
/// The most characters of one step.
pub const ITEM_CHARS: usize = 160;
/// The most lines of a plan in a chat, and characters of each: it stands above the text that is being written.
const CHAT_LINES: usize = 12;
const CHAT_CHARS: usize = 80;

/// A plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// Its steps, in order.
    pub items: Vec<Item>,
}

/// One step of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Item {
    /// Its number, from 1; kept while the plan lives.
    pub id: u32,
    /// One line.
    pub text: String,
    /// How far it is.
    pub state: ItemState,
}

/// How far a step is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ItemState {
    /// To be done.
    #[default]
    Pending,
    /// Being done.
    Doing,
    /// Done.
    Done,
    /// Not to be done any more.
    Dropped,
}

impl ItemState {
    /// The name in rows, events and calls.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Pending => "pending",
            Self::Doing => "doing",
            Self::Done => "done",
            Self::Dropped => "dropped",
        }
    }

    /// The state that a model means: models trained on other agents write `in_progress` and `completed`.
    pub fn named(name: &str) -> Option<Self> {
        let name: String = name.chars().filter(|c| c.is_alphanumeric()).take(32).collect::<String>().to_lowercase();
        Some(match name.as_str() {
            "pending" | "todo" | "open" | "notstarted" | "new" | "待办" | "未开始" => Self::Pending,
            "doing" | "inprogress" | "active" | "started" | "running" | "current" | "进行中" => Self::Doing,
            "done" | "completed" | "complete" | "finished" | "x" | "true" | "完成" | "已完成" => Self::Done,
            "dropped" | "drop" | "cancelled" | "canceled" | "skipped" | "removed" | "放弃" | "取消" | "已取消" => {
                Self::Dropped
            }
            _ => return None,
        })
    }

    fn sign(self) -> &'static str {
        match self {
            Self::Pending => "⬜",
            Self::Doing => "▶️",
            Self::Done => "✅",
            Self::Dropped => "✖️",
        }
    }
}

/// How many steps are how far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// All of them.
    pub total: usize,
    /// Done.
    pub done: usize,
    /// Dropped.
    pub dropped: usize,
}

impl Count {
    /// Steps that are still to be done.
    pub fn open(self) -> usize {
        self.total - self.done - self.dropped
    }
}

impl Plan {
    /// A plan of what a model wrote: a list of texts, or of objects with a text and perhaps a state, under whatever names
    /// models give them.
    ///
    /// # Errors
    /// What is wrong and what to write instead, for the model.
    pub fn of(list: &[Value]) -> Result<Self, String> {
        if list.len() > MOST_ITEMS {
            return Err(format!("A plan has at most {MOST_ITEMS} steps, not {}: put some together.", list.len()));
        }
        let mut items = Vec::with_capacity(list.len());
        for (at, written) in list.iter().enumerate() {
            let id = at as u32 + 1;
            let (text, state) = match written {
                Value::String(text) => (text.as_str(), ItemState::Pending),
                Value::Object(object) => (text_of(object), state_of(object, id)?.unwrap_or_default()),
                _ => ("", ItemState::Pending),
            };
            let text = line(text, ITEM_CHARS);
            if text.is_empty() {
                return Err(format!(
                    "Step {id} says nothing: each step is {{\"text\": \"…\", \"state\": \"pending\"}}."
                ));
            }
            items.push(Item { id, text, state });
        }
        Ok(Self { items })
    }

    /// The plan with new states: of each number its state.
    ///
    /// # Errors
    /// What is wrong and what to write instead, for the model.
    pub fn with(mut self, states: &Map<String, Value>) -> Result<Self, String> {
        for (number, state) in states {
            let id = number.trim().parse::<u32>().ok();
            let numbers = self.items.len();
            let Some(item) = self.items.iter_mut().find(|item| Some(item.id) == id) else {
                return Err(match numbers {
                    0 => "There is no plan yet: give `items` first.".to_owned(),
                    _ => format!("There is no step {}: the steps are 1 to {numbers}.", line(number, 20)),
                });
            };
            item.state = state_named(state, item.id)?;
        }
        Ok(self)
    }

    /// How many steps are how far.
    pub fn count(&self) -> Count {
        let are = |state| self.items.iter().filter(|item| item.state == state).count();
        Count { total: self.items.len(), done: are(ItemState::Done), dropped: are(ItemState::Dropped) }
    }

    /// Something is still to be done.
    pub fn is_open(&self) -> bool {
        self.count().open() > 0
    }

    /// As the model reads it.
    pub fn for_model(&self) -> String {
        let count = self.count();
        let mut text = format!("Plan: {} of {} done", count.done, count.total);
        if count.dropped > 0 {
            text.push_str(&format!(", {} dropped", count.dropped));
        }
        for item in &self.items {
            text.push_str(&format!("\n{}. [{}] {}", item.id, item.state.as_str(), item.text));
        }
        text
    }

    /// As people see it in a chat: Markdown, a few lines. Of a long plan the finished steps are counted, and of the others
    /// the first are shown.
    pub fn for_chat(&self) -> String {
        let count = self.count();
        let mut lines = vec![format!("📋 {}/{}", count.done, count.total - count.dropped)];
        let long = self.items.len() > CHAT_LINES;
        let over = |item: &&Item| matches!(item.state, ItemState::Done | ItemState::Dropped);
        if long && count.open() < count.total {
            let finished = self.items.iter().filter(over).count();
            lines.push(format!("- {} ×{finished}", ItemState::Done.sign()));
        }
        let shown: Vec<&Item> = self.items.iter().filter(|item| !long || !over(item)).collect();
        for item in shown.iter().take(CHAT_LINES) {
            lines.push(format!("- {} {}", item.state.sign(), line(&item.text, CHAT_CHARS)));
        }
        if shown.len() > CHAT_LINES {
            lines.push(format!("- … +{}", shown.len() - CHAT_LINES));
        }
        lines.join("\n")
    }

    /// The body of the `plan` event.
    pub fn for_event(&self) -> Value {
        let count = self.count();
        json!({ "items": self.items, "done": count.done, "dropped": count.dropped, "total": count.total })
    }
}

fn text_of(object: &Map<String, Value>) -> &str {
    let keys = ["text", "content", "step", "title", "task", "description", "name"];
    keys.iter().find_map(|key| object.get(*key).and_then(Value::as_str)).unwrap_or_default()
}

fn state_of(object: &Map<String, Value>, id: u32) -> Result<Option<ItemState>, String> {
    let written = ["state", "status", "done", "completed"].iter().find_map(|key| object.get(*key));
    written.filter(|state| !state.is_null()).map(|state| state_named(state, id)).transpose()
}

fn state_named(written: &Value, id: u32) -> Result<ItemState, String> {
    let state = match written {
        Value::String(name) => ItemState::named(name),
        Value::Bool(done) => Some(if *done { ItemState::Done } else { ItemState::Pending }),
        _ => None,
    };
    state.ok_or_else(|| format!("The state of step {id} is one of pending, doing, done, dropped."))
}

/// One harmless line of at most so many characters.
fn line(text: &str, chars: usize) -> String {
    let plain: String =
        text.chars().map(|c| if c.is_whitespace() { ' ' } else { c }).filter(|c| !untrusted::is_hidden(*c)).collect();
    let words: Vec<&str> = plain.split(' ').filter(|word| !word.is_empty()).collect();
    let joined = words.join(" ");
    match joined.char_indices().nth(chars) {
        Some((end, _)) => format!("{}…", joined[..end].trim_end()),
        None => joined,
    }
}

/// A plan as it is kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Kept {
    /// The plan.
    pub plan: Plan,
    /// The turn that changed it last.
    pub turn: TurnId,
    /// When, in epoch milliseconds.
    pub updated_at: i64,
}

/// Where plans are kept: one a session, of its present generation. `/new` ends it.
#[async_trait]
pub trait PlanStore: Send + Sync + 'static {
    /// Keeps the plan of a session whose turn runs; a second time changes nothing. The rows written for watchers.
    /// `Fenced` when the turn does not hold the session (any more).
    async fn put_plan(&self, lease: &Lease, plan: &Plan, now: i64) -> Result<Vec<EventRow>, StoreError>;

    /// The plan of a session.
    async fn plan(&self, session: &SessionKey) -> Result<Option<Kept>, StoreError>;

    /// The sessions with a plan of which something is open.
    async fn open_plans(&self) -> Result<Vec<SessionKey>, StoreError>;
}

/// The plans of all sessions. Cheap to clone.
#[derive(Clone)]
pub struct Plans {
    store: Arc<dyn PlanStore>,
    journal: Journal,
    /// Sessions with an open plan: the others, nearly all, cost a turn no look into the store.
    open: Arc<RwLock<HashSet<SessionKey>>>,
}

impl Plans {
    /// The plans of this store.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn open(store: Arc<dyn PlanStore>, journal: Journal) -> Result<Self, StoreError> {
        let open = store.open_plans().await?.into_iter().collect();
        Ok(Self { store, journal, open: Arc::new(RwLock::new(open)) })
    }

    /// The plan of a session.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn of(&self, session: &SessionKey) -> Result<Option<Kept>, StoreError> {
        self.store.plan(session).await
    }

    /// The plan of a session if something of it is open.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn left(&self, session: &SessionKey) -> Result<Option<Kept>, StoreError> {
        if !self.open.read().unwrap_or_else(PoisonError::into_inner).contains(session) {
            return Ok(None);
        }
        Ok(self.store.plan(session).await?.filter(|kept| kept.plan.is_open()))
    }

    /// Keeps a plan and shows it to everybody who watches.
    ///
    /// # Errors
    /// As the store gives them.
    pub async fn put(&self, lease: &Lease, plan: &Plan, now: i64) -> Result<(), StoreError> {
        let session = &lease.session;
        let rows = self.store.put_plan(lease, plan, now).await?;
        {
            let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
            match plan.is_open() {
                true => open.insert(session.clone()),
                false => open.remove(session),
            };
        }
        for row in &rows {
            self.journal.tell(&row.task, LiveEvent::Plan(plan.for_chat()));
        }
        self.journal.committed(rows);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(list: Value) -> Result<Plan, String> {
        Plan::of(list.as_array().expect("a list"))
    }

    #[test]
    fn a_plan_is_read_however_models_write_it() {
        let ours = plan(json!([{"text": "look", "state": "done"}, {"text": "write"}])).expect("a plan");
        assert_eq!(ours.for_model(), "Plan: 1 of 2 done\n1. [done] look\n2. [pending] write");
        for theirs in [
            json!([{"content": "look", "status": "completed", "activeForm": "looking"}, {"content": "write", "status": "pending"}]),
            json!([{"step": " look\n", "status": "Completed"}, "write"]),
            json!([{"title": "look", "done": true}, {"task": "write", "done": false}]),
        ] {
            assert_eq!(plan(theirs), Ok(ours.clone()));
        }
        for (bad, told) in [
            (json!([{"text": ""}]), "Step 1 says nothing"),
            (json!([1]), "Step 1 says nothing"),
            (json!([{"text": "a", "state": "half"}]), "The state of step 1 is one of"),
            (Value::Array(vec![json!("a"); 31]), "at most 30 steps, not 31"),
        ] {
            assert!(plan(bad.clone()).is_err_and(|error| error.contains(told)), "{bad}");
        }
        let long = plan(json!(["x".repeat(10_000), "a\u{202e}b\u{0}c\td"])).expect("a plan");
        assert_eq!(long.items[0].text.chars().count(), ITEM_CHARS + 1);
        assert_eq!(long.items[1].text, "abc d");
    }

    #[test]
    fn states_change_by_number() {
        let ours = plan(json!(["a", "b", "c"])).expect("a plan");
        let set = |states: Value| ours.clone().with(states.as_object().expect("an object"));
        let changed = set(json!({"1": "done", "2": "in_progress", "3": "cancelled"})).expect("they are there");
        assert_eq!(changed.count(), Count { total: 3, done: 1, dropped: 1 });
        assert!(changed.is_open());
        assert_eq!(set(json!({"4": "done"})), Err("There is no step 4: the steps are 1 to 3.".to_owned()));
        assert!(set(json!({"1": "perhaps"})).is_err());
        assert!(Plan::default().with(json!({"1": "done"}).as_object().expect("an object")).is_err());
        assert!(!Plan::default().is_open());
    }

    #[test]
    fn a_chat_sees_a_few_lines_of_it() {
        let short =
            plan(json!([{"text": "看", "state": "done"}, {"text": "写", "state": "doing"}, "发"])).expect("a plan");
        assert_eq!(short.for_chat(), "📋 1/3\n- ✅ 看\n- ▶️ 写\n- ⬜ 发");
        let states =
            (0..30).map(|n| json!({"text": format!("step {n}"), "state": if n < 5 { "done" } else { "todo" }}));
        let long = plan(states.collect()).expect("a plan").for_chat();
        let lines: Vec<&str> = long.lines().collect();
        assert_eq!((lines[0], lines[1], lines[2]), ("📋 5/30", "- ✅ ×5", "- ⬜ step 5"));
        assert_eq!((lines.len(), lines[lines.len() - 1]), (CHAT_LINES + 3, "- … +13"));
    }
}
