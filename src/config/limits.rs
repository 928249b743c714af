//! `[limits]`: how much the whole gateway takes on.

use serde::{Deserialize, Serialize};

use crate::ledger::budget::BudgetConfig;

/// `[limits]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LimitsConfig {
    /// Messages a sender may start a minute; `None` = no limit.
    pub per_sender_per_min: Option<u32>,
    /// Messages that may wait in the whole gateway; over it callers get 503 and nothing is stored.
    pub max_queued: u64,
    /// Their payload, in MiB.
    pub max_queued_mib: u64,
    /// Seconds a turn may run without a finished step.
    pub turn_idle_s: u64,
    /// Seconds a turn may run in all.
    pub turn_max_s: u64,
    /// Seconds running turns get to reach a safe point when the gateway stops.
    pub drain_s: u64,
    /// What may be spent.
    pub budget: BudgetConfig,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        Self {
            per_sender_per_min: None,
            max_queued: 10_000,
            max_queued_mib: 64,
            turn_idle_s: 600,
            turn_max_s: 3600,
            drain_s: 6,
            budget: BudgetConfig::default(),
        }
    }
}
