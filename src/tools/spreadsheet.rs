//! `spreadsheet`: what a table file holds (xlsx, xls, ods, csv, tsv): its sheets, a range of cells, formulas beside their
//! values, or every column of a sheet in one line. Never loads a sheet whole; a file that would fill the memory is refused
//! before it is believed. Writes nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use self::{
    area::{Area, MOST_COLUMNS, MOST_ROWS, letters},
    book::{Book, Ended, Sheet, Watch},
    summary::Summary,
};
use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, tell, visible},
};

mod area;
mod book;
mod csv;
mod ods;
mod package;
mod summary;
mod value;
mod xls;

/// Files that are read at once; others wait: a reader may hold the texts of a whole workbook.
const READERS: usize = 2;
/// The longest one call may read.
const READING: Duration = Duration::from_secs(60);
/// The most characters of a cell in a table.
const CELL_CHARS: usize = 300;
/// Kept free in the result for what stands around the cells.
const ROOM_FOR_NOTES: usize = 700;
/// The most sheets whose sizes are told.
const LISTED: usize = 100;
/// The most columns a table shows.
const TABLE_COLUMNS: usize = 200;

/// Reads spreadsheets.
#[derive(Debug)]
pub struct Spreadsheet {
    readers: Arc<Semaphore>,
}

impl Default for Spreadsheet {
    fn default() -> Self {
        Self { readers: Arc::new(Semaphore::new(READERS)) }
    }
}

#[derive(Deserialize)]
struct Arguments {
    path: String,
    sheet: Option<String>,
    range: Option<String>,
    mode: Option<Mode>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Mode {
    Sheets,
    Rows,
    Summary,
    Formulas,
}

#[async_trait]
impl Tool for Spreadsheet {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "spreadsheet".to_owned(),
            description: "Reads a table file (xlsx, xls, ods, csv). Without range: a summary of every column."
                .to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "sheet": {"type": "string", "description": "Name or number"},
                    "range": {"type": "string", "description": "A1:D20, A:C, 5:20"},
                    "mode": {"type": "string", "enum": ["sheets", "rows", "summary", "formulas"]},
                },
                "required": ["path"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, sheet, range, mode } = arguments::typed(args)?;
        let place = tokio::select! {
            place = Arc::clone(&self.readers).acquire_owned() => {
                place.map_err(|error| ToolError::Abort(error.to_string()))?
            }
            () = ctx.cancel.cancelled() => return Err(ToolError::Abort("stopped".to_owned())),
        };
        let clock = Arc::clone(&ctx.clock);
        broker::on_disk(ctx, "ask for a smaller range", move |files| {
            let _place = place;
            let until = clock.monotonic() + READING;
            let watch = Watch { cancel: files.cancel_token(), clock, until };
            let place = files.place(&path)?;
            let (file, metadata) = files.open_file(&place)?;
            let wanted = Wanted::of(sheet, range, mode)?;
            let shown = place.to_string();
            // The readers of these formats are not ours: what makes one fall over must not end the turn.
            let told = catch_unwind(AssertUnwindSafe(|| {
                let mut book = Book::open(file, metadata.len(), &watch)?;
                Ok(wanted.told(&mut book, files.output_chars))
            }));
            match told {
                Ok(Ok(told)) => told,
                Ok(Err(Ended::Stopped)) => Err(ToolError::Abort("stopped".to_owned())),
                Ok(Err(Ended::TooLong)) => {
                    tell(format!("`{shown}` takes longer than {} s to read.", READING.as_secs()))
                }
                Ok(Err(Ended::Unusable(why))) => tell(format!("`{shown}` cannot be used: {why}.")),
                Err(_) => tell(format!("`{shown}` cannot be used: it is damaged.")),
            }
        })
        .await
    }
}

/// What a call asks for.
struct Wanted {
    sheet: Option<String>,
    area: Option<Area>,
    mode: Mode,
}

impl Wanted {
    fn of(sheet: Option<String>, range: Option<String>, mode: Option<Mode>) -> Result<Self, ToolError> {
        let range = range.filter(|range| !range.trim().is_empty());
        let (named, area) = match range.as_deref().map(Area::parse).transpose() {
            Ok(Some((named, area))) => (named, Some(area)),
            Ok(None) => (None, None),
            Err(why) => return tell(why),
        };
        let mode = mode.unwrap_or(if area.is_some() { Mode::Rows } else { Mode::Summary });
        let sheet = sheet.filter(|sheet| !sheet.trim().is_empty()).or(named);
        Ok(Self { sheet, area, mode })
    }

    /// The answer. What ended the reading early is told with what was read until then.
    fn told<R: std::io::Read + std::io::Seek>(
        &self,
        book: &mut Book<R>,
        output_chars: usize,
    ) -> Result<String, ToolError> {
        if book.sheets().is_empty() {
            return tell("The file holds no sheet of cells.".to_owned());
        }
        let chars = output_chars.saturating_sub(ROOM_FOR_NOTES).max(output_chars / 2);
        if self.mode == Mode::Sheets {
            return sizes(book, chars);
        }
        let n = self.pick(book.sheets())?;
        let area = self.area.unwrap_or(Area::ALL);
        let name = head(book.sheets(), n);
        let (text, ended) = match self.mode {
            Mode::Rows => Table::of(book, n, area, chars),
            Mode::Formulas => formulas(book, n, area, chars),
            Mode::Sheets | Mode::Summary => summary(book, n, area, chars),
        };
        let mut text = format!("{name}{text}");
        match ended {
            Ok(()) => {}
            Err(Ended::Stopped) => return Err(ToolError::Abort("stopped".to_owned())),
            Err(Ended::TooLong) => {
                text.push_str(&format!("[reading ended after {} s: the rest is missing]\n", READING.as_secs()))
            }
            Err(Ended::Unusable(why)) => text.push_str(&format!("[reading ended early: {why}]\n")),
        }
        if !book.notes.is_empty() {
            text.push_str(&format!("[{}]\n", book.notes.join("; ")));
        }
        Ok(text)
    }

    fn pick(&self, sheets: &[Sheet]) -> Result<usize, ToolError> {
        let Some(wanted) = &self.sheet else {
            return Ok(sheets.iter().position(|sheet| !sheet.hidden).unwrap_or(0));
        };
        let wanted = wanted.trim();
        let exact = sheets.iter().position(|sheet| sheet.name == wanted);
        let alike = || sheets.iter().position(|sheet| sheet.name.trim().to_lowercase() == wanted.to_lowercase());
        let number = || wanted.parse::<usize>().ok().and_then(|n| n.checked_sub(1)).filter(|n| *n < sheets.len());
        let only = || (sheets.len() == 1 && sheets[0].name.is_empty()).then_some(0);
        match exact.or_else(alike).or_else(number).or_else(only) {
            Some(n) => Ok(n),
            None => {
                let names: Vec<String> =
                    sheets.iter().take(LISTED).map(|sheet| format!("`{}`", plain(&sheet.name))).collect();
                tell(format!("There is no sheet `{}`. The sheets are: {}.", plain(wanted), names.join(", ")))
            }
        }
    }
}

/// ``Sheet `Sales`, 1 of 3 (also `Costs`, `Old` hidden):``; nothing for a text table.
fn head(sheets: &[Sheet], n: usize) -> String {
    if sheets[n].name.is_empty() {
        return String::new();
    }
    let shown = |sheet: &Sheet| format!("`{}`{}", plain(&sheet.name), if sheet.hidden { " hidden" } else { "" });
    let others: Vec<String> =
        sheets.iter().enumerate().filter(|(at, _)| *at != n).map(|(_, sheet)| shown(sheet)).collect();
    if others.is_empty() {
        return format!("Sheet {}\n", shown(&sheets[n]));
    }
    let more = if others.len() > 10 { ", …" } else { "" };
    format!(
        "Sheet {}, {} of {} (also {}{more})\n",
        shown(&sheets[n]),
        n + 1,
        sheets.len(),
        others[..others.len().min(10)].join(", ")
    )
}

/// Every sheet with what it spans.
fn sizes<R: std::io::Read + std::io::Seek>(book: &mut Book<R>, chars: usize) -> Result<String, ToolError> {
    let sheets = book.sheets().to_vec();
    let mut text = String::new();
    for (n, sheet) in sheets.iter().enumerate() {
        let (mut rows, mut width, mut cells) = (0u32, 0u32, 0u64);
        let ended = book.cells(n, false, &mut |cell| {
            (rows, width, cells) = (rows.max(cell.row + 1), width.max(cell.column + 1), cells + 1);
            true
        });
        let name = if sheet.name.is_empty() { "the table".to_owned() } else { format!("`{}`", plain(&sheet.name)) };
        let hidden = if sheet.hidden { ", hidden" } else { "" };
        let size = match (&ended, cells) {
            (Err(Ended::Stopped), _) => return Err(ToolError::Abort("stopped".to_owned())),
            (Err(Ended::TooLong), 0) => "not counted: it takes too long".to_owned(),
            (Err(Ended::TooLong), _) => format!("more than {rows} rows × {width} columns"),
            (Err(Ended::Unusable(why)), _) => format!("cannot be read: {why}"),
            (Ok(()), 0) => "empty".to_owned(),
            (Ok(()), _) => format!("{rows} rows × {width} columns, {cells} filled cells"),
        };
        text.push_str(&format!("{}. {name}{hidden}: {size}\n", n + 1));
        if n + 1 < sheets.len() && (n + 1 >= LISTED || text.chars().count() > chars) {
            text.push_str(&format!("[{} more sheets]\n", sheets.len() - n - 1));
            break;
        }
    }
    if !book.notes.is_empty() {
        text.push_str(&format!("[{}]\n", book.notes.join("; ")));
    }
    Ok(text)
}

fn summary<R: std::io::Read + std::io::Seek>(
    book: &mut Book<R>,
    n: usize,
    area: Area,
    chars: usize,
) -> (String, Result<(), Ended>) {
    let mut summary = Summary::default();
    let ended = book.cells(n, false, &mut |cell| {
        if area.holds(cell.row, cell.column) {
            summary.add(cell.row, cell.column, &cell.value);
        }
        cell.row <= area.bottom
    });
    if summary.cells == 0 {
        return ("No cell holds anything.\n".to_owned(), ended);
    }
    let head = format!("{} rows × {} columns, {} filled cells. ", summary.rows, summary.width, summary.cells);
    (head + &summary.told(chars), ended)
}

/// A part of a sheet, as it is shown.
#[derive(Default)]
struct Table {
    rows: BTreeMap<u32, Vec<(u32, String)>>,
    columns: BTreeSet<u32>,
    chars: usize,
    /// The first row that did not fit.
    more_from: Option<u32>,
    columns_left_out: bool,
    /// The only row is longer than the result.
    row_cut: bool,
}

impl Table {
    fn of<R: std::io::Read + std::io::Seek>(
        book: &mut Book<R>,
        n: usize,
        area: Area,
        chars: usize,
    ) -> (String, Result<(), Ended>) {
        let mut table = Self::default();
        let ended = book.cells(n, false, &mut |cell| {
            if cell.row > area.bottom {
                return false;
            }
            !area.holds(cell.row, cell.column) || table.take(cell.row, cell.column, &cell.value.shown(), chars)
        });
        (table.told(area), ended)
    }

    fn take(&mut self, row: u32, column: u32, shown: &str, most: usize) -> bool {
        if !self.columns.contains(&column) && self.columns.len() >= TABLE_COLUMNS {
            self.columns_left_out = true;
            return true;
        }
        let text = cell_text(shown);
        let size = text.chars().count() + 3;
        // The place of empty cells in rows above counts too: a line has a mark for each.
        if self.chars + size + self.columns.len() > most {
            // A row is shown whole or not at all, but for one that alone is too long.
            if self.rows.len() > 1 {
                self.rows.remove(&row);
            }
            self.row_cut = self.rows.contains_key(&row);
            self.more_from = Some(if self.row_cut { row + 1 } else { row });
            return false;
        }
        if !self.rows.contains_key(&row) {
            self.chars += 9;
        }
        self.chars += size;
        self.columns.insert(column);
        self.rows.entry(row).or_default().push((column, text));
        true
    }

    fn told(mut self, area: Area) -> String {
        if self.rows.is_empty() {
            return format!("No cell of {} holds anything.\n", shown_area(area));
        }
        let columns: Vec<u32> = self.columns.iter().copied().collect();
        let mut text = String::new();
        for column in &columns {
            text.push_str(&format!(" | {}", letters(*column)));
        }
        text.push('\n');
        for (row, cells) in &mut self.rows {
            cells.sort_by_key(|(column, _)| *column);
            let mut line = (row + 1).to_string();
            let mut cells = cells.iter().peekable();
            for column in &columns {
                if cells.peek().is_none() {
                    break;
                }
                line.push_str(" | ");
                if let Some((_, shown)) = cells.next_if(|(at, _)| at == column) {
                    line.push_str(shown);
                }
            }
            text.push_str(&line);
            text.push('\n');
        }
        if self.columns_left_out {
            text.push_str(&format!("[only {TABLE_COLUMNS} columns are shown; ask for others with range]\n"));
        }
        if self.row_cut {
            text.push_str("[the row is longer than this; ask for its other columns with range]\n");
        }
        if let Some(from) = self.more_from.filter(|from| *from <= area.bottom) {
            let rest = Area { top: from, ..area };
            text.push_str(&format!("[more rows follow: go on with range {}]\n", shown_area(rest)));
        }
        text
    }
}

/// A range as it is asked for again: without the ends that nobody wrote.
fn shown_area(area: Area) -> String {
    match (area.right == MOST_COLUMNS - 1 && area.left == 0, area.bottom == MOST_ROWS - 1) {
        (true, _) => format!("{}:{}", area.top + 1, area.bottom + 1),
        (false, true) => format!("{}{}:{}", letters(area.left), area.top + 1, letters(area.right)),
        (false, false) => area.to_string(),
    }
}

fn formulas<R: std::io::Read + std::io::Seek>(
    book: &mut Book<R>,
    n: usize,
    area: Area,
    chars: usize,
) -> (String, Result<(), Ended>) {
    let (mut text, mut used, mut more) = (String::new(), 0usize, None);
    let ended = book.cells(n, true, &mut |cell| {
        if cell.row > area.bottom {
            return false;
        }
        let Some(formula) = cell.formula.as_deref().filter(|_| area.holds(cell.row, cell.column)) else { return true };
        let value = cell_text(&cell.value.shown());
        let value = if value.is_empty() { "(no value stored)".to_owned() } else { value };
        let line = format!("{}{}: {value} ={}\n", letters(cell.column), cell.row + 1, cell_text(formula));
        used += line.chars().count();
        if used > chars {
            more = Some(cell.row);
            return false;
        }
        text.push_str(&line);
        true
    });
    if text.is_empty() {
        text.push_str("No cell here has a formula.\n");
    }
    if let Some(row) = more {
        text.push_str(&format!("[more formulas follow: go on with range {}]\n", shown_area(Area { top: row, ..area })));
    }
    (text, ended)
}

/// A cell on one line, with no mark that could be taken for the end of a cell.
fn cell_text(text: &str) -> String {
    let mut shown = String::new();
    for (n, c) in text.trim().chars().enumerate() {
        match c {
            _ if n >= CELL_CHARS => {
                shown.push('…');
                break;
            }
            '\n' => shown.push('⏎'),
            '|' => shown.push_str("\\|"),
            c if c.is_control() => {}
            c => shown.push(c),
        }
    }
    shown
}

/// A name on one line.
fn plain(name: &str) -> String {
    visible(name).replace('`', "'").chars().take(100).collect()
}

#[cfg(test)]
mod tests;
