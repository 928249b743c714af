//! What a sheet holds, column by column, in memory that does not grow with the sheet. Pure.

use std::collections::HashMap;

use super::{
    area::letters,
    value::{Value, number_shown},
};

/// The most columns that are told apart.
const MOST_COLUMNS: usize = 256;
/// The most different values of a column that are told apart; more are "more than".
const MOST_DISTINCT: usize = 200;
/// The most characters of a value that is kept.
const KEPT_CHARS: usize = 60;
/// Values shown of each column.
const SHOWN: usize = 5;

/// Rows looked at before it is decided which one holds the names.
const HEAD_ROWS: u32 = 10;
/// Cells kept of them at most.
const HEAD_CELLS: usize = 2_000;

/// The columns of a sheet so far.
#[derive(Default)]
pub struct Summary {
    columns: Vec<Column>,
    /// The first cells, until the row of names is found.
    head: Vec<(u32, u32, Value<'static>)>,
    settled: bool,
    /// The row of the names, when there is one.
    header: Option<u32>,
    /// The first row that is counted.
    first: u32,
    /// What stands above the names.
    above: Vec<String>,
    /// The lowest row with a cell, from 1.
    pub rows: u32,
    /// The rightmost column with a cell, from 1.
    pub width: u32,
    /// Cells that hold something.
    pub cells: u64,
}

#[derive(Default)]
struct Column {
    name: String,
    filled: u64,
    numbers: u64,
    texts: u64,
    dates: u64,
    durations: u64,
    bools: u64,
    errors: u64,
    sum: Sum,
    least: f64,
    most: f64,
    earliest: String,
    latest: String,
    distinct: HashMap<String, u64>,
    /// In the order they came first.
    order: Vec<String>,
    more_distinct: bool,
}

/// A sum whose error does not grow with the count (Neumaier).
#[derive(Default)]
struct Sum {
    sum: f64,
    rest: f64,
}

impl Sum {
    fn add(&mut self, number: f64) {
        let sum = self.sum + number;
        self.rest += if self.sum.abs() >= number.abs() { (self.sum - sum) + number } else { (number - sum) + self.sum };
        self.sum = sum;
    }

    fn total(&self) -> f64 {
        self.sum + self.rest
    }
}

impl Summary {
    /// Takes one cell, in the order of rows.
    pub fn add(&mut self, row: u32, column: u32, value: &Value<'_>) {
        if *value == Value::Empty {
            return;
        }
        self.cells += 1;
        self.rows = self.rows.max(row + 1);
        self.width = self.width.max(column + 1);
        if column as usize >= MOST_COLUMNS {
            return;
        }
        if !self.settled {
            let began = self.head.first().map_or(row, |(row, ..)| *row);
            if row < began.saturating_add(HEAD_ROWS) && self.head.len() < HEAD_CELLS {
                self.head.push((row, column, value.short(KEPT_CHARS)));
                return;
            }
            self.settle();
        }
        self.count(row, column, value);
    }

    /// Finds the row of names: the first about as full as the fullest of the head, when nothing but words stands in it and
    /// rows follow.
    fn settle(&mut self) {
        self.settled = true;
        let head = std::mem::take(&mut self.head);
        let began = head.first().map_or(0, |(row, ..)| *row);
        let filled = |row: u32| head.iter().filter(|(at, ..)| *at == row).count();
        let last = head.last().map_or(began, |(row, ..)| *row);
        let fullest = (began..=last).map(filled).max().unwrap_or(0);
        let first = (began..=last).find(|row| filled(*row) * 5 >= fullest * 3).unwrap_or(began);
        let words = head.iter().filter(|(row, ..)| *row == first).all(|(.., value)| matches!(value, Value::Text(_)));
        let follow = last > first || self.rows > last + 1;
        let named = words && follow && !head.is_empty();
        self.header = named.then_some(first);
        // Without names, what stands above the fullest rows is data like everything else.
        self.first = if named { first + 1 } else { began };
        for (row, column, value) in head {
            if self.header == Some(row) {
                self.column(column).name = value.shown().into_owned();
            } else if row < self.first {
                self.above.push(plain(&value.shown()));
            } else {
                self.count(row, column, &value);
            }
        }
    }

    fn column(&mut self, column: u32) -> &mut Column {
        if self.columns.len() <= column as usize {
            self.columns.resize_with(column as usize + 1, Column::default);
        }
        &mut self.columns[column as usize]
    }

    fn count(&mut self, _row: u32, column: u32, value: &Value<'_>) {
        let kept: String = value.shown().chars().take(KEPT_CHARS).collect();
        self.column(column).add(value, kept);
    }

    /// The summary in at most about `chars` characters: a line a column.
    pub fn told(mut self, chars: usize) -> String {
        if !self.settled {
            self.settle();
        }
        let rows = u64::from(self.rows.saturating_sub(self.first));
        let mut text = match self.header {
            Some(header) => format!("Row {} holds the names; {rows} rows of data below it.\n", header + 1),
            None => format!("No row of names; {rows} rows of data from row {}.\n", self.first + 1),
        };
        if !self.above.is_empty() {
            self.above.truncate(SHOWN);
            text.push_str(&format!("Above the names: {}\n", self.above.join(" | ")));
        }
        let all = self.columns.len();
        for (at, column) in self.columns.into_iter().enumerate() {
            let line = column.told(at as u32, rows);
            if text.chars().count() + line.chars().count() > chars {
                text.push_str(&format!(
                    "[columns {} to {} are not shown]\n",
                    letters(at as u32),
                    letters(all as u32 - 1)
                ));
                return text;
            }
            text.push_str(&line);
        }
        if self.width as usize > all {
            text.push_str(&format!("[columns after {} are not summarised]\n", letters((all as u32).saturating_sub(1))));
        }
        text
    }
}

impl Column {
    fn add(&mut self, value: &Value<'_>, kept: String) {
        self.filled += 1;
        match value {
            Value::Empty => {}
            Value::Number(number) => {
                if self.numbers == 0 {
                    (self.least, self.most) = (*number, *number);
                }
                self.least = self.least.min(*number);
                self.most = self.most.max(*number);
                self.sum.add(*number);
                self.numbers += 1;
            }
            Value::Text(_) => self.texts += 1,
            Value::Bool(_) => self.bools += 1,
            Value::Date(date) => {
                if self.dates == 0 || *date < self.earliest {
                    self.earliest.clone_from(date);
                }
                if self.dates == 0 || *date > self.latest {
                    self.latest.clone_from(date);
                }
                self.dates += 1;
            }
            Value::Duration(_) => self.durations += 1,
            Value::Error(_) => self.errors += 1,
        }
        if let Some(count) = self.distinct.get_mut(&kept) {
            *count += 1;
        } else if self.distinct.len() < MOST_DISTINCT {
            self.order.push(kept.clone());
            self.distinct.insert(kept, 1);
        } else {
            self.more_distinct = true;
        }
    }

    fn told(&self, at: u32, rows: u64) -> String {
        let name = if !self.name.is_empty() { format!(" `{}`", plain(&self.name)) } else { String::new() };
        let kinds = [
            (self.numbers, "numbers"),
            (self.texts, "text"),
            (self.dates, "dates"),
            (self.durations, "durations"),
            (self.bools, "yes/no"),
            (self.errors, "errors"),
        ];
        let kinds: Vec<_> = kinds.iter().filter(|(count, _)| *count > 0).collect();
        let kind = match kinds.as_slice() {
            [] => "empty".to_owned(),
            [(_, kind)] => (*kind).to_owned(),
            kinds => kinds.iter().map(|(count, kind)| format!("{count} {kind}")).collect::<Vec<_>>().join(" + "),
        };
        let mut line = format!(
            "{}{name}: {kind}; {} filled, {} empty",
            letters(at),
            self.filled,
            rows.saturating_sub(self.filled)
        );
        if self.numbers > 0 {
            let total = self.sum.total();
            line.push_str(&format!(
                "; min {}, max {}, sum {}, mean {}",
                number_shown(self.least),
                number_shown(self.most),
                number_shown(total),
                number_shown(total / self.numbers as f64)
            ));
        }
        if self.dates > 0 {
            line.push_str(&format!("; from {} to {}", self.earliest, self.latest));
        }
        if !self.order.is_empty() {
            let more = if self.more_distinct { "more than " } else { "" };
            line.push_str(&format!("; {more}{} different", self.order.len()));
            // Few values are told with how often each came; of many, the first are examples.
            let counted = !self.more_distinct && self.order.len() <= 12 && self.filled > self.order.len() as u64;
            let shown: Vec<String> = if counted {
                let mut by_count: Vec<_> = self.order.iter().map(|kept| (self.distinct[kept], kept)).collect();
                by_count.sort_by_key(|(count, _)| std::cmp::Reverse(*count));
                by_count.iter().take(12).map(|(count, kept)| format!("{} ×{count}", plain(kept))).collect()
            } else {
                self.order.iter().take(SHOWN).map(|kept| plain(kept)).collect()
            };
            let and = if shown.len() < self.order.len() { ", …" } else { "" };
            line.push_str(&format!(": {}{and}", shown.join(", ")));
        }
        line.push('\n');
        line
    }
}

/// On one line.
fn plain(text: &str) -> String {
    text.replace(['\n', '\r'], "⏎").replace('`', "'")
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn text(text: &str) -> Value<'_> {
        Value::Text(Cow::Borrowed(text))
    }

    #[test]
    fn columns_are_told_with_types_counts_and_examples() {
        let mut summary = Summary::default();
        for (column, name) in ["City", "Amount", "Day"].iter().enumerate() {
            summary.add(0, column as u32, &text(name));
        }
        for row in 1..=10u32 {
            summary.add(row, 0, &text(if row % 2 == 0 { "Berlin" } else { "上海" }));
            if row != 5 {
                summary.add(row, 1, &Value::Number(0.1));
            }
            summary.add(row, 2, &Value::Date(format!("2026-03-{row:02}")));
        }
        assert_eq!(
            summary.told(10_000),
            "Row 1 holds the names; 10 rows of data below it.\n\
             A `City`: text; 10 filled, 0 empty; 2 different: 上海 ×5, Berlin ×5\n\
             B `Amount`: numbers; 9 filled, 1 empty; min 0.1, max 0.1, sum 0.9, mean 0.1; 1 different: 0.1 ×9\n\
             C `Day`: dates; 10 filled, 0 empty; from 2026-03-01 to 2026-03-10; 10 different: 2026-03-01, 2026-03-02, \
             2026-03-03, 2026-03-04, 2026-03-05, …\n"
        );
    }

    #[test]
    fn a_first_row_with_a_number_is_data() {
        let mut summary = Summary::default();
        summary.add(2, 0, &text("a"));
        summary.add(2, 1, &Value::Number(1.0));
        summary.add(3, 1, &Value::Number(2.0));
        let told = summary.told(1000);
        assert!(told.starts_with("No row of names; 2 rows of data from row 3.\nA: text; 1 filled, 1 empty"), "{told}");
        assert!(told.contains("B: numbers; 2 filled, 0 empty; min 1, max 2, sum 3, mean 1.5"), "{told}");
        assert_eq!(Summary::default().told(100), "No row of names; 0 rows of data from row 1.\n");
    }

    #[test]
    fn titles_above_the_names_are_no_data() {
        let mut summary = Summary::default();
        summary.add(0, 0, &text("Sales 2026"));
        for (column, name) in ["City", "Amount", "Note"].iter().enumerate() {
            summary.add(2, column as u32, &text(name));
        }
        for row in 3..30u32 {
            summary.add(row, 0, &text("Bonn"));
            summary.add(row, 1, &Value::Number(2.0));
        }
        let told = summary.told(10_000);
        assert!(
            told.starts_with("Row 3 holds the names; 27 rows of data below it.\nAbove the names: Sales 2026\n"),
            "{told}"
        );
        assert!(told.contains("sum 54, mean 2") && told.contains("C `Note`: empty; 0 filled, 27 empty\n"), "{told}");
    }

    #[test]
    fn many_values_and_columns_stay_bounded() {
        let mut summary = Summary::default();
        for row in 0..5_000u32 {
            summary.add(row, 0, &Value::Number(f64::from(row)));
            summary.add(row, 16_000, &Value::Bool(true));
        }
        assert_eq!(summary.columns.len(), 1);
        assert_eq!(summary.columns[0].distinct.len(), MOST_DISTINCT);
        let told = summary.told(1000);
        assert!(
            told.contains("more than 200 different: 0, 1, 2, 3, 4, …") && told.contains("after A are not"),
            "{told}"
        );
    }
}
