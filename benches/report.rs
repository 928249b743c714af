//! The table: what was measured beside what is to be reached.

use std::time::Duration;

/// Whether a smaller or a greater number is better.
#[derive(Clone, Copy, Debug)]
pub enum Reach {
    /// The target is a most.
    AtMost(f64),
    /// The target is a least.
    AtLeast(f64),
}

/// One row.
pub struct Row {
    what: String,
    reach: Reach,
    unit: &'static str,
    measured: Option<f64>,
    note: String,
}

impl Row {
    /// A measured number. `None` is shown as not measurable here.
    pub fn new(what: impl Into<String>, unit: &'static str, reach: Reach, measured: Option<f64>) -> Self {
        Self { what: what.into(), reach, unit, measured, note: String::new() }
    }

    /// Adds what else is to be known.
    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Whether the target was reached; true when there is none or nothing could be measured.
    pub fn reached(&self) -> bool {
        match (self.measured, self.reach) {
            (Some(n), Reach::AtMost(most)) => n <= most,
            (Some(n), Reach::AtLeast(least)) => n >= least,
            (None, _) => true,
        }
    }

    /// The row in Markdown.
    pub fn markdown(&self) -> String {
        let unit = if self.unit.is_empty() { String::new() } else { format!(" {}", self.unit) };
        let (reach, target) = match self.reach {
            Reach::AtMost(n) => (format!("<= {}{unit}", number(n)), n),
            Reach::AtLeast(n) => (format!(">= {}{unit}", number(n)), n),
        };
        let measured = self.measured.map_or_else(|| "-".to_owned(), |n| format!("{}{unit}", number(n)));
        let ratio = match self.measured {
            Some(n) if target != 0.0 => format!("{:.2}", n / target),
            _ => String::new(),
        };
        let reached = match (self.measured, self.reached()) {
            (None, _) => "",
            (_, true) => "yes",
            (_, false) => "**no**",
        };
        format!("| {} | {reach} | {measured} | {ratio} | {reached} | {} |", self.what, self.note)
    }
}

/// The head of the table.
pub const HEAD: &str = "| what | reach | measured | measured / reach | reached | |\n|---|---|---|---|---|---|";

/// Three figures, or all of a whole number.
fn number(n: f64) -> String {
    match n.abs() {
        0.0 => "0".to_owned(),
        small if small < 0.1 => format!("{n:.3}"),
        small if small < 10.0 => format!("{n:.2}"),
        middle if middle < 100.0 => format!("{n:.1}"),
        _ => format!("{n:.0}"),
    }
}

/// The value below which `share` of `values` lie.
pub fn percentile(values: &mut [f64], share: f64) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let last = values.len().checked_sub(1)?;
    values.get((last as f64 * share).round() as usize).copied()
}

/// In milliseconds.
pub fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}
