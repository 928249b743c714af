//! What a turn did, counted from the steps of its journal and from nothing that the model says. Pure.

use std::collections::BTreeMap;

use super::turn::PLAN;
use crate::{
    lang::{self, Lang},
    plan::Plan,
    store::{StepKind, StepRecord, StepState},
    tools::{Effect, said_here},
};

/// The most tools named in the line.
const NAMED: usize = 6;

/// What the finished steps of a turn add up to.
#[derive(Debug, Default)]
pub struct Did {
    ran: BTreeMap<String, Ran>,
    planned: bool,
    said_here: Vec<String>,
}

#[derive(Debug, Default)]
struct Ran {
    fine: u32,
    failed: u32,
    unknown: u32,
}

impl Did {
    /// Of the journal of a turn that goes on.
    pub fn of(steps: &[StepRecord]) -> Self {
        let mut did = Self::default();
        steps.iter().for_each(|step| did.saw(step));
        did
    }

    /// A step came to its end.
    pub fn saw(&mut self, step: &StepRecord) {
        if step.kind != StepKind::Tool || matches!(step.effect, None | Some(Effect::Read)) {
            return;
        }
        if step.name == PLAN {
            self.planned |= step.state == StepState::Finished;
            return;
        }
        self.said_here.extend(said_here(step).map(str::to_owned));
        let ran = self.ran.entry(step.name.clone()).or_default();
        match step.state {
            StepState::Finished => ran.fine += 1,
            StepState::Failed => ran.failed += 1,
            StepState::Interrupted => ran.unknown += 1,
            StepState::Started => {}
        }
    }

    /// What it said in its own chat by `message`.
    pub fn said_here(self) -> Vec<String> {
        self.said_here
    }

    /// The turn kept its plan up to date.
    pub fn planned(&self) -> bool {
        self.planned
    }

    /// One line: how far the plan is and what ran.
    pub fn line(&self, plan: &Plan, lang: Lang) -> String {
        let count = plan.count();
        let mut line = lang::plan_report(lang, count.done, count.total);
        if count.dropped > 0 {
            line.push_str(&lang::plan_report_dropped(lang, count.dropped));
        }
        if count.open() > 0 {
            line.push_str(&lang::plan_report_open(lang, count.open()));
        }
        let ran: Vec<String> = self.ran.iter().filter_map(|(name, ran)| ran.words(name, lang)).take(NAMED).collect();
        match ran.is_empty() {
            true => line.push_str(lang::plan_report_end(lang).as_str()),
            false => line.push_str(&lang::plan_report_ran(lang, ran.join(", "))),
        }
        line
    }
}

impl Ran {
    fn words(&self, name: &str, lang: Lang) -> Option<String> {
        let Self { fine, failed, unknown } = *self;
        let all = fine + failed + unknown;
        let mut words = format!("{name} ×{all}");
        if failed > 0 {
            words.push_str(&lang::plan_report_failed(lang, failed));
        }
        if unknown > 0 {
            words.push_str(&lang::plan_report_unknown(lang, unknown));
        }
        (all > 0).then_some(words)
    }
}

#[cfg(test)]
mod tests {
    use channel_api::StepId;
    use serde_json::{Value, json};

    use super::*;
    use crate::model::Usage;

    fn step(name: &str, effect: Effect, state: StepState) -> StepRecord {
        StepRecord {
            id: StepId::generate(),
            n: 0,
            round: 1,
            attempt: 1,
            kind: StepKind::Tool,
            call_id: None,
            name: name.to_owned(),
            effect: Some(effect),
            state,
            args: Value::Null,
            result: Value::Null,
            started_at: 0,
            ms: 0,
            usage: Usage::default(),
            spent: None,
        }
    }

    #[test]
    fn the_line_counts_what_ran_and_not_what_was_said() {
        use StepState::*;
        let steps = [
            step("todo", Effect::Idempotent, Finished),
            step("read", Effect::Read, Finished),
            step("exec", Effect::Effect, Started),
            step("exec", Effect::Effect, Finished),
            step("exec", Effect::Effect, Failed),
            step("write", Effect::Effect, Interrupted),
        ];
        let did = Did::of(&steps);
        let list = json!([{"text": "a", "state": "done"}, {"text": "b", "state": "dropped"}, "c"]);
        let plan = Plan::of(list.as_array().expect("a list")).expect("a plan");
        assert!(did.planned());
        assert_eq!(
            did.line(&plan, Lang::En),
            "📋 Plan: 1 of 3 done, 1 dropped, 1 open. Ran: exec ×2 (1 failed), write ×1 (1 outcome unknown)."
        );
        assert_eq!(
            did.line(&plan, Lang::Zh),
            "📋 计划：完成 1/3，放弃 1，未完成 1。已执行：exec ×2（失败 1）, write ×1（结果未知 1）。"
        );
        let nothing = Did::of(&[step("write", Effect::Effect, Finished)]);
        assert!(!nothing.planned());
        assert_eq!(Did::default().line(&plan, Lang::En), "📋 Plan: 1 of 3 done, 1 dropped, 1 open.");
    }
}
