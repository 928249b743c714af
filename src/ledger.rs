//! What models cost: prices, the rows of what was spent, and the budgets that end a turn before the money does.
//!
//! The rows are the truth, one a call of a model, written in the transaction of the step it belongs to. Budgets of the day
//! are counted in memory beside them, read from the rows when the process starts and when a day begins, so that a check
//! costs no query. Whoever asks a model asks [`Ledger::may_spend`] first; what has no step (a transcription, an embedding)
//! is written with [`Ledger::spent`].

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use channel_api::{Clock, Inbound, TurnId};
use jiff::{Timestamp, ZonedDateTime, tz::TimeZone};

use self::{
    budget::{BudgetConfig, Reached, Scope, Tally, Used},
    money::{Cost, Costs},
    price::Price,
};
use crate::{
    intake::abuse::Refusals,
    lang::{self, Lang},
    model::Usage,
    policy::Role,
    session::SessionKey,
    store::{Footer, LedgerStore, NewSpend, Spent, StoreError},
};

pub mod budget;
pub mod money;
pub mod price;

/// For whom a model is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spender {
    /// The agent.
    pub agent: String,
    /// The session; `None` outside of any.
    pub session: Option<SessionKey>,
    /// Channel and sender id, see [`sender_key`]; empty = nobody.
    pub sender: String,
    /// The lowest role of those who asked.
    pub role: Role,
}

/// A sender in the ledger: `telegram:main 42`. Ids never change, names do.
pub fn sender_key(inbound: &Inbound) -> String {
    format!("{} {}", inbound.channel, inbound.sender.id)
}

/// A sum in one line for people: `3 calls, 1,234 tokens in (1,000 cached), 56 out, 0.0123 CNY`.
pub fn line_of(lang: Lang, calls: u64, usage: &Usage, costs: &Costs) -> String {
    if calls == 0 {
        return lang::usage_nothing(lang);
    }
    let line = lang::usage_sum(lang, calls, tokens_of(lang, usage));
    if costs.is_empty() { line } else { lang::usage_with_cost(lang, line, costs) }
}

/// What stands below an answer; `None` = nothing.
pub fn below(footer: Footer, lang: Lang, usage: &Usage, costs: &Costs) -> Option<String> {
    let tokens = tokens_of(lang, usage);
    match footer {
        _ if usage.total() == 0 => None,
        Footer::Off => None,
        Footer::Full if !costs.is_empty() => Some(lang::usage_with_cost(lang, tokens, costs)),
        Footer::Tokens | Footer::Full => Some(tokens),
    }
}

fn tokens_of(lang: Lang, usage: &Usage) -> String {
    let [input, cached, output] = [usage.input, usage.cached, usage.output].map(budget::grouped);
    let about = if usage.estimated { "≈" } else { "" };
    lang::usage_tokens(lang, about, input, cached, output)
}

/// Why a model may not be asked now.
#[derive(Debug)]
pub enum NotNow {
    /// A budget is used up: the line for the person.
    Reached(Reached),
    /// What was spent today cannot be read.
    Store(StoreError),
}

/// What one model took since the process started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Meter {
    /// Answers.
    pub calls: u64,
    /// Tokens.
    pub usage: Usage,
    /// Money.
    pub costs: Costs,
}

/// The ledger of one gateway.
pub struct Ledger {
    store: Arc<dyn LedgerStore>,
    clock: Arc<dyn Clock>,
    zone: TimeZone,
    budget: BudgetConfig,
    prices: BTreeMap<String, Price>,
    today: Arc<Mutex<Today>>,
    meters: Mutex<BTreeMap<String, Meter>>,
    refusals: Refusals,
}

/// What was used today. Only kept where a budget counts days.
#[derive(Default)]
struct Today {
    day: String,
    /// The rows of earlier processes are in it.
    read: bool,
    all: Tally,
    sessions: HashMap<String, Tally>,
    senders: HashMap<String, Tally>,
}

impl Today {
    fn each(&mut self, session: Option<&str>, sender: &str, mut change: impl FnMut(&mut Tally)) {
        change(&mut self.all);
        if let Some(session) = session {
            change(self.sessions.entry(session.to_owned()).or_default());
        }
        if !sender.is_empty() {
            change(self.senders.entry(sender.to_owned()).or_default());
        }
    }
}

/// Room that is kept for a call while it runs, so that calls side by side do not all see the same money. Given back when
/// dropped: what was really spent is counted by [`Ledger::paid`].
pub struct Hold {
    today: Option<Arc<Mutex<Today>>>,
    day: String,
    session: Option<String>,
    sender: String,
    tokens: u64,
    cost: Option<Cost>,
}

impl Drop for Hold {
    fn drop(&mut self) {
        let Some(today) = self.today.take() else { return };
        let mut today = locked(&today);
        if today.day == self.day {
            today.each(self.session.as_deref(), &self.sender, |tally| tally.take_back(self.tokens, self.cost));
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ledger {
    /// A ledger over these rows, with the prices of the models by their names in the configuration.
    pub fn new(
        store: Arc<dyn LedgerStore>,
        clock: Arc<dyn Clock>,
        zone: TimeZone,
        budget: BudgetConfig,
        prices: BTreeMap<String, Price>,
    ) -> Self {
        let (today, meters) = (Arc::default(), Mutex::default());
        Self { store, clock, zone, budget, prices, today, meters, refusals: Refusals::default() }
    }

    /// Who ran into their budget, for the intake.
    pub fn refusals(&self) -> &Refusals {
        &self.refusals
    }

    /// The rows, for people's questions.
    pub fn store(&self) -> &Arc<dyn LedgerStore> {
        &self.store
    }

    fn now(&self) -> ZonedDateTime {
        let now = Timestamp::from_millisecond(self.clock.now_ms()).unwrap_or(Timestamp::UNIX_EPOCH);
        now.to_zoned_datetime(self.zone.clone())
    }

    /// Today, `2026-11-30`.
    pub fn day(&self) -> String {
        self.now().date().to_string()
    }

    /// The first day of this month.
    pub fn month(&self) -> String {
        self.now().date().first_of_month().to_string()
    }

    /// When today is over, as people read it.
    fn free_at(&self) -> String {
        let tomorrow = self.now().date().tomorrow().and_then(|day| day.to_zoned_datetime(self.zone.clone()));
        tomorrow.map_or_else(|_| String::new(), |at| at.strftime("%Y-%m-%d %H:%M").to_string())
    }

    /// The line for the person whose budget is used up.
    pub fn line(&self, reached: &Reached, lang: Lang, owner: bool) -> String {
        reached.line(lang, owner, &self.free_at())
    }

    /// What an answer of this model costs; `None` when the model has no price.
    pub fn cost(&self, model: &str, usage: &Usage) -> Option<Cost> {
        self.prices.get(model).map(|price| price.cost(usage))
    }

    /// Whether a model may be asked for about so many tokens. `turn`: what the turn has used up to now. Keep the hold until
    /// the answer was counted with [`Ledger::paid`] or [`Ledger::spent`].
    ///
    /// # Errors
    /// [`NotNow`]; nothing is kept then.
    pub async fn may_spend(&self, who: &Spender, model: &str, tokens: u64, turn: &Tally) -> Result<Hold, NotNow> {
        let cost = self.cost(model, &Usage { input: tokens, ..Usage::default() });
        let day = self.day();
        let session = who.session.as_ref().map(ToString::to_string);
        if !self.budget.counts_days() {
            let zero = Tally::default();
            let used = Used { turn, session: &zero, sender: &zero, day: &zero };
            return match self.budget.reached(who.role, used, tokens, cost) {
                Some(reached) => Err(NotNow::Reached(reached)),
                None => Ok(Hold { today: None, day, session, sender: who.sender.clone(), tokens, cost }),
            };
        }
        self.read_today(&day).await.map_err(NotNow::Store)?;
        let mut today = locked(&self.today);
        let zero = Tally::default();
        let used = Used {
            turn,
            session: session.as_ref().and_then(|session| today.sessions.get(session)).unwrap_or(&zero),
            sender: today.senders.get(&who.sender).unwrap_or(&zero),
            day: &today.all,
        };
        if let Some(reached) = self.budget.reached(who.role, used, tokens, cost) {
            if reached.scope == Scope::Sender && who.role < Role::Owner {
                self.refusals.refused(&who.sender, self.clock.monotonic());
            }
            return Err(NotNow::Reached(reached));
        }
        let mut hold = Hold { today: None, day, session, sender: who.sender.clone(), tokens, cost };
        if today.day == hold.day {
            today.each(hold.session.as_deref(), &hold.sender, |tally| tally.add(tokens, cost));
            hold.today = Some(Arc::clone(&self.today));
        }
        Ok(hold)
    }

    /// Sees that today's counters hold what the rows hold. What is paid meanwhile may be counted twice, never not at all.
    async fn read_today(&self, day: &str) -> Result<(), StoreError> {
        {
            let mut today = locked(&self.today);
            if today.day != day {
                *today = Today { day: day.to_owned(), ..Today::default() };
            }
            if today.read {
                return Ok(());
            }
        }
        let rows = self.store.spent_on(day).await?;
        let mut today = locked(&self.today);
        if today.day == day && !today.read {
            today.read = true;
            for row in rows {
                today.each(row.session.as_ref().map(SessionKey::as_str), &row.sender, |tally| {
                    tally.add(row.tokens, row.cost);
                });
            }
        }
        Ok(())
    }

    /// Counts an answer that was paid, for its step's row. `model`: the name in the configuration.
    pub fn paid(&self, who: &Spender, model: &str, purpose: &str, usage: &Usage) -> Spent {
        let (day, cost) = (self.day(), self.cost(model, usage));
        if self.budget.counts_days() {
            let mut today = locked(&self.today);
            if today.day == day {
                let session = who.session.as_ref().map(SessionKey::as_str);
                today.each(session, &who.sender, |tally| tally.add(usage.total(), cost));
            }
        }
        let mut meters = locked(&self.meters);
        let meter = meters.entry(model.to_owned()).or_default();
        meter.calls += 1;
        meter.usage.add(usage);
        cost.into_iter().for_each(|cost| meter.costs.add(cost));
        Spent {
            agent: who.agent.clone(),
            sender: who.sender.clone(),
            model: model.to_owned(),
            purpose: purpose.to_owned(),
            day,
            cost,
        }
    }

    /// Counts and writes an answer that belongs to no step of a turn's own: what a tool asked a model for, an embedding.
    ///
    /// # Errors
    /// As the store gives them; the answer is there and paid all the same.
    pub async fn spent(
        &self,
        who: &Spender,
        turn: Option<&TurnId>,
        model: &str,
        purpose: &str,
        usage: &Usage,
    ) -> Result<(), StoreError> {
        let spent = self.paid(who, model, purpose, usage);
        let id = format!("sp_{}", ulid::Ulid::generate());
        let (turn, session, at) = (turn.cloned(), who.session.clone(), self.clock.now_ms());
        self.store.spend(NewSpend { id, turn, session, spent, usage: *usage, at }).await
    }

    /// Asks a model for something that is no step of a turn, within the budgets of who wants it: where they are used up it
    /// is not asked, and what an answer took is written before the answer is used. `expected`: about how many tokens.
    ///
    /// # Errors
    /// [`NotNow`]; the inner error is the model's own.
    pub async fn ask<T, E>(
        &self,
        who: &Spender,
        turn: Option<&TurnId>,
        (model, purpose): (&str, &str),
        expected: u64,
        asking: impl Future<Output = Result<(T, Usage), E>>,
    ) -> Result<Result<T, E>, NotNow> {
        let _hold = self.may_spend(who, model, expected, &Tally::default()).await?;
        Ok(match asking.await {
            Ok((answer, usage)) => {
                self.spent(who, turn, model, purpose, &usage).await.map_err(NotNow::Store)?;
                Ok(answer)
            }
            Err(error) => Err(error),
        })
    }

    /// What each model took since the process started, by name.
    pub fn meters(&self) -> BTreeMap<String, Meter> {
        locked(&self.meters).clone()
    }
}
