//! Hard budgets: the section `[limits.budget]`, and whether one more call of a model is within them. Pure.

use serde::{Deserialize, Serialize};

use super::money::{Cost, Costs};
use crate::{
    lang::{self, Lang},
    policy::Role,
};

/// The tokens of one turn unless the configuration says otherwise: far more than any sensible turn takes, and an end for a
/// model that calls tools for ever.
const TURN_TOKENS: u64 = 2_000_000;

/// `[limits.budget]`. Tokens are those of requests and answers together; a cost counts the calls of models whose price is in
/// its currency. A day is one of the gateway's time zone.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct BudgetConfig {
    /// Of one turn.
    pub turn_tokens: Option<u64>,
    /// Of one session and day.
    pub session_day_tokens: Option<u64>,
    /// Of one sender and day, by the platform's id.
    pub sender_day_tokens: Option<u64>,
    /// Of everything and a day.
    pub day_tokens: Option<u64>,
    /// Of one turn, e.g. `"1 CNY"`.
    pub turn_cost: Option<Cost>,
    /// Of one session and day.
    pub session_day_cost: Option<Cost>,
    /// Of one sender and day.
    pub sender_day_cost: Option<Cost>,
    /// Of everything and a day.
    pub day_cost: Option<Cost>,
    /// What is different for strangers.
    pub stranger: RoleBudget,
    /// For members.
    pub member: RoleBudget,
    /// For trusted senders.
    pub trusted: RoleBudget,
    /// For owners.
    pub owner: RoleBudget,
}

/// `[limits.budget.<role>]`: takes the place of the same key of `[limits.budget]`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct RoleBudget {
    /// Of one turn.
    pub turn_tokens: Option<u64>,
    /// Of one sender and day.
    pub sender_day_tokens: Option<u64>,
    /// Of one turn.
    pub turn_cost: Option<Cost>,
    /// Of one sender and day.
    pub sender_day_cost: Option<Cost>,
}

impl Default for BudgetConfig {
    fn default() -> Self {
        Self {
            turn_tokens: Some(TURN_TOKENS),
            session_day_tokens: None,
            sender_day_tokens: None,
            day_tokens: None,
            turn_cost: None,
            session_day_cost: None,
            sender_day_cost: None,
            day_cost: None,
            stranger: RoleBudget::default(),
            member: RoleBudget::default(),
            trusted: RoleBudget::default(),
            owner: RoleBudget::default(),
        }
    }
}

/// Tokens and money.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Of requests and answers together.
    pub tokens: u64,
    /// What they cost.
    pub costs: Costs,
}

impl Tally {
    /// Adds what one call took.
    pub fn add(&mut self, tokens: u64, cost: Option<Cost>) {
        self.tokens = self.tokens.saturating_add(tokens);
        cost.into_iter().for_each(|cost| self.costs.add(cost));
    }

    /// Takes back what was added before.
    pub fn take_back(&mut self, tokens: u64, cost: Option<Cost>) {
        self.tokens = self.tokens.saturating_sub(tokens);
        cost.into_iter().for_each(|cost| self.costs.add(Cost { nano: cost.nano.saturating_neg(), ..cost }));
    }
}

/// What was used up to now.
#[derive(Clone, Copy, Debug)]
pub struct Used<'a> {
    /// In this turn.
    pub turn: &'a Tally,
    /// In this session today.
    pub session: &'a Tally,
    /// By this sender today.
    pub sender: &'a Tally,
    /// By everybody today.
    pub day: &'a Tally,
}

/// What a budget is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// One turn.
    Turn,
    /// One session and day.
    Session,
    /// One sender and day.
    Sender,
    /// Everything and a day.
    Day,
}

/// A budget that does not allow one more call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reached {
    /// What it is for.
    pub scope: Scope,
    /// Its key, e.g. `limits.budget.sender_day_tokens`.
    pub key: String,
    /// How much it is, for people.
    pub limit: Limit,
}

/// How much a budget is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// So many tokens.
    Tokens(u64),
    /// So much money.
    Cost(Cost),
}

impl Reached {
    /// One plain line. `free_at`: when the day is over, as people read it. An owner is told which line raises it.
    pub fn line(&self, lang: Lang, owner: bool, free_at: &str) -> String {
        let limit = match self.limit {
            Limit::Tokens(tokens) => lang::budget_tokens(lang, grouped(tokens)),
            Limit::Cost(cost) => cost.to_string(),
        };
        let line = match self.scope {
            Scope::Turn => lang::budget_turn(lang, limit),
            Scope::Session => lang::budget_session(lang, limit, free_at),
            Scope::Sender => lang::budget_sender(lang, limit, free_at),
            Scope::Day => lang::budget_day(lang, limit, free_at),
        };
        if owner { format!("{line}{}", lang::budget_raise(lang, &self.key)) } else { line }
    }
}

/// `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(c);
    }
    text
}

impl BudgetConfig {
    fn of_role(&self, role: Role) -> (&'static str, &RoleBudget) {
        match role {
            Role::Stranger => ("stranger.", &self.stranger),
            Role::Member => ("member.", &self.member),
            Role::Trusted => ("trusted.", &self.trusted),
            Role::Owner => ("owner.", &self.owner),
        }
    }

    /// Whether anything is counted by the day.
    pub fn counts_days(&self) -> bool {
        let roles = [&self.stranger, &self.member, &self.trusted, &self.owner];
        self.session_day_tokens.is_some()
            || self.sender_day_tokens.is_some()
            || self.day_tokens.is_some()
            || self.session_day_cost.is_some()
            || self.sender_day_cost.is_some()
            || self.day_cost.is_some()
            || roles.iter().any(|role| role.sender_day_tokens.is_some() || role.sender_day_cost.is_some())
    }

    /// Every number with its key: tokens, or billionths of money.
    pub fn numbers(&self) -> Vec<(Vec<&'static str>, i64)> {
        let tokens = |n: Option<u64>| n.map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        let money = |cost: Option<Cost>| cost.map(|cost| cost.nano);
        let mut all = vec![
            (vec!["turn_tokens"], tokens(self.turn_tokens)),
            (vec!["session_day_tokens"], tokens(self.session_day_tokens)),
            (vec!["sender_day_tokens"], tokens(self.sender_day_tokens)),
            (vec!["day_tokens"], tokens(self.day_tokens)),
            (vec!["turn_cost"], money(self.turn_cost)),
            (vec!["session_day_cost"], money(self.session_day_cost)),
            (vec!["sender_day_cost"], money(self.sender_day_cost)),
            (vec!["day_cost"], money(self.day_cost)),
        ];
        for role in [Role::Stranger, Role::Member, Role::Trusted, Role::Owner] {
            let budget = self.of_role(role).1;
            all.extend([
                (vec![role.as_str(), "turn_tokens"], tokens(budget.turn_tokens)),
                (vec![role.as_str(), "sender_day_tokens"], tokens(budget.sender_day_tokens)),
                (vec![role.as_str(), "turn_cost"], money(budget.turn_cost)),
                (vec![role.as_str(), "sender_day_cost"], money(budget.sender_day_cost)),
            ]);
        }
        all.into_iter().filter_map(|(key, value)| Some((key, value?))).collect()
    }

    /// Every cost with its key.
    pub fn costs(&self) -> Vec<(Vec<&'static str>, Cost)> {
        let mut all = vec![
            (vec!["turn_cost"], self.turn_cost),
            (vec!["session_day_cost"], self.session_day_cost),
            (vec!["sender_day_cost"], self.sender_day_cost),
            (vec!["day_cost"], self.day_cost),
        ];
        for role in [Role::Stranger, Role::Member, Role::Trusted, Role::Owner] {
            let budget = self.of_role(role).1;
            all.push((vec![role.as_str(), "turn_cost"], budget.turn_cost));
            all.push((vec![role.as_str(), "sender_day_cost"], budget.sender_day_cost));
        }
        all.into_iter().filter_map(|(key, cost)| Some((key, cost?))).collect()
    }

    /// The first budget that one more call of about so many tokens would break; the narrowest first.
    pub fn reached(&self, role: Role, used: Used<'_>, next: u64, next_cost: Option<Cost>) -> Option<Reached> {
        let (name, own) = self.of_role(role);
        // A role's own line takes the place of the general one.
        let pick = |own: bool| if own { name } else { "" };
        let turn_tokens = (pick(own.turn_tokens.is_some()), own.turn_tokens.or(self.turn_tokens));
        let turn_cost = (pick(own.turn_cost.is_some()), own.turn_cost.or(self.turn_cost));
        let sender_tokens = (pick(own.sender_day_tokens.is_some()), own.sender_day_tokens.or(self.sender_day_tokens));
        let sender_cost = (pick(own.sender_day_cost.is_some()), own.sender_day_cost.or(self.sender_day_cost));
        let table = [
            (Scope::Turn, "turn", turn_tokens, turn_cost, used.turn),
            (Scope::Session, "session_day", ("", self.session_day_tokens), ("", self.session_day_cost), used.session),
            (Scope::Sender, "sender_day", sender_tokens, sender_cost, used.sender),
            (Scope::Day, "day", ("", self.day_tokens), ("", self.day_cost), used.day),
        ];
        for (scope, key, (of_tokens, tokens), (of_cost, cost), used) in table {
            if let Some(limit) = tokens
                && used.tokens.saturating_add(next) > limit
            {
                let key = format!("limits.budget.{of_tokens}{key}_tokens");
                return Some(Reached { scope, key, limit: Limit::Tokens(limit) });
            }
            // A model without a price in this currency spends nothing of it, and answers on when it is used up.
            if let Some(limit) = cost
                && let Some(next) = next_cost.filter(|next| next.currency == limit.currency)
                && used.costs.nano(limit.currency).saturating_add(next.nano) > limit.nano
            {
                let key = format!("limits.budget.{of_cost}{key}_cost");
                return Some(Reached { scope, key, limit: Limit::Cost(limit) });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(text: &str) -> BudgetConfig {
        toml::from_str(text).expect("a budget")
    }

    fn tally(tokens: u64, cost: &str) -> Tally {
        let mut tally = Tally::default();
        tally.add(tokens, Cost::parse(cost));
        tally
    }

    fn used(tally: &Tally) -> Used<'_> {
        Used { turn: tally, session: tally, sender: tally, day: tally }
    }

    #[test]
    fn the_narrowest_budget_that_one_more_call_would_break_is_named() {
        let zero = Tally::default();
        let check = |text: &str, role, tally: &Tally, next, cost: &str| {
            budget(text).reached(role, used(tally), next, Cost::parse(cost)).map(|reached| reached.key)
        };
        let general = "turn_tokens = 100\nday_tokens = 50\nsender_day_cost = \"1 CNY\"";
        assert_eq!(check(general, Role::Member, &zero, 50, ""), None, "exactly all of it is within it");
        assert_eq!(check(general, Role::Member, &zero, 51, "").as_deref(), Some("limits.budget.day_tokens"));
        assert_eq!(check(general, Role::Member, &zero, 101, "").as_deref(), Some("limits.budget.turn_tokens"));
        let spent = tally(10, "0.9 CNY");
        let key = "limits.budget.sender_day_cost";
        assert_eq!(check(general, Role::Member, &spent, 1, "0.2 CNY").as_deref(), Some(key));
        assert_eq!(check(general, Role::Member, &spent, 1, "0.2 USD"), None, "another currency");
        assert_eq!(check(general, Role::Member, &tally(10, "9 USD"), 1, ""), None);
        let over = tally(10, "9 CNY");
        assert_eq!(check(general, Role::Member, &over, 1, ""), None, "a model without a price costs nothing of it");
        assert_eq!(check(general, Role::Member, &over, 1, "0 CNY").as_deref(), Some(key), "a priced one is not asked");
        let roles = "turn_tokens = 100\n[stranger]\nturn_tokens = 10\n[owner]\nturn_tokens = 1000";
        let key = |role| check(roles, role, &tally(50, ""), 51, "");
        assert_eq!(key(Role::Stranger).as_deref(), Some("limits.budget.stranger.turn_tokens"));
        assert_eq!(key(Role::Member).as_deref(), Some("limits.budget.turn_tokens"));
        assert_eq!(key(Role::Owner), None);
        assert!(check("", Role::Owner, &tally(TURN_TOKENS, ""), 1, "").is_some(), "there is an end by default");
    }

    #[test]
    fn what_was_reserved_and_given_back_leaves_nothing() {
        let mut used = tally(10, "0.5 CNY");
        used.add(7, Cost::parse("0.1 CNY"));
        used.take_back(7, Cost::parse("0.1 CNY"));
        assert_eq!(used, tally(10, "0.5 CNY"));
    }

    #[test]
    fn one_line_says_which_and_until_when_and_the_owner_which_line_raises_it() {
        let reached = Reached {
            scope: Scope::Sender,
            key: "limits.budget.sender_day_tokens".to_owned(),
            limit: Limit::Tokens(1_234_567),
        };
        for (lang, owner) in [(Lang::En, true), (Lang::Zh, true), (Lang::En, false), (Lang::Zh, false)] {
            let line = reached.line(lang, owner, "2026-12-01 00:00");
            assert!(line.contains("1,234,567") && line.contains("2026-12-01 00:00"), "{line}");
            assert_eq!(line.contains("sender_day_tokens"), owner, "{line}");
            assert!(!line.contains('\n'));
        }
        assert_eq!([0, 999, 1000, 1_000_000].map(grouped), ["0", "999", "1,000", "1,000,000"]);
    }

    #[test]
    fn unknown_keys_and_amounts_without_a_currency_are_refused() {
        for text in ["turn_token = 1", "day_cost = \"5\"", "day_cost = 5", "[strangers]\nturn_tokens = 1"] {
            assert!(toml::from_str::<BudgetConfig>(text).is_err(), "{text}");
        }
        let all = budget("turn_tokens = 1\nday_cost = \"0 CNY\"\n[member]\nsender_day_tokens = 7").numbers();
        assert_eq!(all, [(vec!["turn_tokens"], 1), (vec!["day_cost"], 0), (vec!["member", "sender_day_tokens"], 7)]);
    }
}
