//! A spreadsheet file, opened: its sheets, and the cells of one as a stream, whatever its format. What is kept in memory
//! is bounded before it is read; a stop or the time limit ends every read.

use std::{
    borrow::Cow,
    collections::HashMap,
    io::{self, BufReader, Read, Seek, SeekFrom},
    sync::Arc,
    time::Duration,
};

use calamine::{Data, DataRef, ExcelDateTime, Reader, SheetType, SheetVisible, Xls, Xlsx, XlsxFormulaMetadata};
use channel_api::Clock;
use tokio_util::sync::CancellationToken;
use zip::ZipArchive;

use super::{
    area::{MOST_COLUMNS, MOST_ROWS},
    csv,
    ods::{self, Sink},
    package::{self, Wrong},
    value::{Value, meant},
    xls,
};
use crate::tools::{
    broker::size,
    decode::{self, Content, Encoding},
};

/// What the encoding and the delimiter of a text table are guessed from.
const SAMPLE: usize = 1 << 20;
/// The largest text table.
const LARGEST_TEXT: u64 = 1 << 30;
/// Formulas that are written once for many cells, of one sheet.
const MOST_SHARED: usize = 10_000;

/// Says when a read has to end.
#[derive(Clone)]
pub struct Watch {
    /// Fires when the turn is stopped.
    pub cancel: CancellationToken,
    /// Tells the time.
    pub clock: Arc<dyn Clock>,
    /// Of the clock's monotonic time.
    pub until: Duration,
}

impl Watch {
    /// Whether to go on.
    ///
    /// # Errors
    /// Why not.
    pub fn go_on(&self) -> Result<(), Ended> {
        match () {
            () if self.cancel.is_cancelled() => Err(Ended::Stopped),
            () if self.clock.monotonic() >= self.until => Err(Ended::TooLong),
            () => Ok(()),
        }
    }

    /// The end of a read that failed: its own reason, unless it was ended from here.
    fn because(&self, why: impl Into<String>) -> Ended {
        self.go_on().err().unwrap_or_else(|| Ended::Unusable(why.into()))
    }
}

/// Why a file gives nothing (more).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The turn was stopped.
    Stopped,
    /// The time is over.
    TooLong,
    /// In words that follow "the file cannot be used:".
    Unusable(String),
}

/// A file whose reads end when the watch says so.
pub struct Watched<R> {
    file: R,
    watch: Watch,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.watch.go_on().map_err(|_| io::Error::other("ended"))?;
        self.file.read(bytes)
    }
}

impl<R: Seek> Seek for Watched<R> {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

/// One sheet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sheet {
    /// Its name; that of a text table is empty.
    pub name: String,
    /// People do not see it.
    pub hidden: bool,
}

/// A spreadsheet file.
pub struct Book<R: Read + Seek> {
    kind: Kind<R>,
    sheets: Vec<Sheet>,
    watch: Watch,
    /// What has to be known about it: its encoding, what was cut.
    pub notes: Vec<String>,
}

enum Kind<R: Read + Seek> {
    Xlsx(Box<Xlsx<BufReader<Watched<R>>>>),
    Ods(Box<ZipArchive<BufReader<Watched<R>>>>),
    Xls(Box<Xls<io::Cursor<Vec<u8>>>>),
    Text { file: Watched<R>, encoding: Encoding, delimiter: char },
}

/// A cell that holds something.
pub struct Cell<'a> {
    /// From 0.
    pub row: u32,
    /// From 0.
    pub column: u32,
    /// What it holds.
    pub value: Value<'a>,
    /// The formula it comes from, without `=`.
    pub formula: Option<Cow<'a, str>>,
}

impl<R: Read + Seek> Book<R> {
    /// Opens a file of `length` bytes.
    ///
    /// # Errors
    /// [`Ended`].
    pub fn open(file: R, length: u64, watch: &Watch) -> Result<Self, Ended> {
        let mut file = Watched { file, watch: watch.clone() };
        let failed = |error: io::Error| watch.because(format!("it cannot be read ({})", error.kind()));
        let mut mark = [0u8; 8];
        let got = read_up_to(&mut file, &mut mark).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let unusable = |why: String| Err(Ended::Unusable(why));
        match &mark[..got] {
            [b'P', b'K', 3, 4, ..] => {
                if length > package::LARGEST {
                    return unusable(format!("{} is more than 64 MiB; export the sheet as csv", size(length)));
                }
                Self::of_package(file, watch)
            }
            [0xd0, 0xcf, 0x11, 0xe0, ..] => {
                if length > xls::LARGEST {
                    return unusable(format!("{} is more than 32 MiB; save it as xlsx or csv", size(length)));
                }
                let mut bytes = Vec::new();
                file.take(xls::LARGEST + 1).read_to_end(&mut bytes).map_err(failed)?;
                let container = xls::workbook(&bytes).map_err(Ended::Unusable)?;
                drop(bytes);
                let xls = Xls::new(io::Cursor::new(container)).map_err(|error| watch.because(format!("{error}")))?;
                let sheets = sheets_of(xls.sheets_metadata());
                Ok(Self { kind: Kind::Xls(Box::new(xls)), sheets, watch: watch.clone(), notes: Vec::new() })
            }
            _ => Self::of_text(file, length, watch),
        }
    }

    fn of_package(mut file: Watched<R>, watch: &Watch) -> Result<Self, Ended> {
        let failed = |error: io::Error| watch.because(format!("it cannot be read ({})", error.kind()));
        if !package::few_parts(&mut file).map_err(failed)? {
            return Err(Ended::Unusable("its container has too many parts".to_owned()));
        }
        let mut archive = ZipArchive::new(BufReader::new(file))
            .map_err(|error| watch.because(format!("its container is damaged ({error})")))?;
        let (ods, xlsb) = (archive.index_for_name("content.xml"), archive.index_for_name("xl/workbook.bin"));
        if xlsb.is_some() {
            return Err(Ended::Unusable("it is an xlsb file, which is not read; save it as xlsx".to_owned()));
        }
        package::measure(&mut archive).map_err(|wrong| match wrong {
            Wrong::Told(why) => Ended::Unusable(why),
            Wrong::Io(error) => watch.because(format!("its container is damaged ({})", error.kind())),
        })?;
        if ods.is_some() {
            let mut listed = Names::default();
            let content = archive.by_name("content.xml").map_err(|error| watch.because(error.to_string()))?;
            ods::read(BufReader::new(content), &mut listed).map_err(|why| watch.because(why))?;
            let sheets = listed.0.into_iter().map(|name| Sheet { name, hidden: false }).collect();
            return Ok(Self { kind: Kind::Ods(Box::new(archive)), sheets, watch: watch.clone(), notes: Vec::new() });
        }
        let mut file = archive.into_inner();
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let xlsx = Xlsx::new(file).map_err(|error| watch.because(of_xlsx(&error)))?;
        let sheets = sheets_of(xlsx.sheets_metadata());
        Ok(Self { kind: Kind::Xlsx(Box::new(xlsx)), sheets, watch: watch.clone(), notes: Vec::new() })
    }

    fn of_text(mut file: Watched<R>, length: u64, watch: &Watch) -> Result<Self, Ended> {
        let failed = |error: io::Error| watch.because(format!("it cannot be read ({})", error.kind()));
        if length > LARGEST_TEXT {
            return Err(Ended::Unusable(format!("{} is more than 1 GiB; split it", size(length))));
        }
        let mut sample = Vec::new();
        (&mut file).take(SAMPLE as u64).read_to_end(&mut sample).map_err(failed)?;
        file.seek(SeekFrom::Start(0)).map_err(failed)?;
        let encoding = match decode::sniff(&sample, sample.len() < SAMPLE) {
            Content::Text(encoding) => encoding,
            Content::Binary(kind) => return Err(Ended::Unusable(format!("it is no spreadsheet but {kind}"))),
        };
        let (text, _) = encoding.decode(&sample[..sample.len().min(128 * 1024)]);
        let start: String = text.trim_start().chars().take(200).collect::<String>().to_lowercase();
        if start.starts_with("<!doctype")
            || start.starts_with("<html")
            || start.starts_with("<?xml")
            || start.starts_with("<table")
        {
            return Err(Ended::Unusable("it is a web page or XML under another name; `read` shows it".to_owned()));
        }
        let delimiter = csv::delimiter(&text);
        let mut notes = Vec::new();
        if encoding != Encoding::PLAIN {
            notes.push(format!("encoding {encoding}"));
        }
        if delimiter != ',' {
            notes.push(format!("columns divided by {}", if delimiter == '\t' { "tabs" } else { "`;` or `|`" }));
        }
        let sheets = vec![Sheet { name: String::new(), hidden: false }];
        Ok(Self { kind: Kind::Text { file, encoding, delimiter }, sheets, watch: watch.clone(), notes })
    }

    /// Its sheets in order; charts are none.
    pub fn sheets(&self) -> &[Sheet] {
        &self.sheets
    }

    /// Gives the cells of sheet `n` that hold something, row by row, until `give` wants no more. `formulas`: cells that only
    /// a formula fills come too.
    ///
    /// # Errors
    /// [`Ended`]; what was given until then is good.
    pub fn cells(&mut self, n: usize, formulas: bool, give: &mut dyn FnMut(Cell<'_>) -> bool) -> Result<(), Ended> {
        let Some(sheet) = self.sheets.get(n).cloned() else { return Ok(()) };
        let watch = self.watch.clone();
        let mut seen = 0u32;
        let mut ended = Ok(());
        let mut give = |cell: Cell<'_>| {
            seen = seen.wrapping_add(1);
            if seen.is_multiple_of(4096) {
                ended = watch.go_on();
            }
            ended.is_ok() && (cell.row >= MOST_ROWS || cell.column >= MOST_COLUMNS || give(cell))
        };
        match &mut self.kind {
            Kind::Xlsx(xlsx) => {
                cells_of_xlsx(xlsx, &sheet.name, formulas, &mut give).map_err(|why| self.watch.because(why))?
            }
            Kind::Ods(archive) => {
                let content = archive.by_name("content.xml").map_err(|error| self.watch.because(error.to_string()))?;
                let mut one = OneSheet { wanted: n, at: None, give: &mut give };
                ods::read(BufReader::new(content), &mut one).map_err(|why| self.watch.because(why))?;
            }
            Kind::Xls(xls) => {
                cells_of_xls(xls, &sheet.name, formulas, &mut give).map_err(|why| self.watch.because(why))?
            }
            Kind::Text { file, encoding, delimiter } => {
                let (cut, damaged) = cells_of_text(file, *encoding, *delimiter, &mut give)
                    .map_err(|error| self.watch.because(format!("it cannot be read ({})", error.kind())))?;
                if cut > 0 {
                    self.notes.push(format!("{cut} fields of more than 32,767 characters were cut"));
                }
                if damaged {
                    self.notes.push("bytes that are no text in this encoding show as \u{fffd}".to_owned());
                }
            }
        }
        ended
    }
}

fn read_up_to(file: &mut impl Read, bytes: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < bytes.len() {
        match file.read(&mut bytes[filled..])? {
            0 => break,
            got => filled += got,
        }
    }
    Ok(filled)
}

fn sheets_of(all: &[calamine::Sheet]) -> Vec<Sheet> {
    let sheets = all.iter().filter(|sheet| matches!(sheet.typ, SheetType::WorkSheet | SheetType::DialogSheet));
    sheets.map(|sheet| Sheet { name: sheet.name.clone(), hidden: sheet.visible != SheetVisible::Visible }).collect()
}

fn of_xlsx(error: &calamine::XlsxError) -> String {
    match error {
        calamine::XlsxError::Password => "it is locked with a password".to_owned(),
        error => format!("it is damaged ({error})"),
    }
}

fn value_of<'a>(data: DataRef<'a>) -> Value<'a> {
    match data {
        DataRef::Empty => Value::Empty,
        DataRef::Int(number) => Value::Number(number as f64),
        DataRef::Float(number) => Value::Number(number),
        DataRef::String(text) if text.is_empty() => Value::Empty,
        DataRef::String(text) => Value::Text(Cow::Owned(text)),
        DataRef::SharedString("") => Value::Empty,
        DataRef::SharedString(text) => Value::Text(Cow::Borrowed(text)),
        DataRef::Bool(yes) => Value::Bool(yes),
        DataRef::DateTime(time) => dated(&time),
        DataRef::DateTimeIso(text) => Value::Date(text.replace('T', " ")),
        DataRef::DurationIso(text) => Value::Duration(text),
        DataRef::Error(error) => Value::Error(Cow::Owned(error.to_string())),
    }
}

/// A date number as a date, a time of day or a length of time.
fn dated(time: &ExcelDateTime) -> Value<'static> {
    let number = time.as_f64();
    if !number.is_finite() || !(0.0..2_958_466.0).contains(&number) {
        return Value::Number(number);
    }
    if time.is_duration() {
        let seconds = (number * 86_400.0).round() as u64;
        return Value::Duration(format!("{:02}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60));
    }
    let (year, month, day, hour, minute, second, _) = time.to_ymd_hms_milli();
    let clock = format!("{hour:02}:{minute:02}:{second:02}");
    Value::Date(match (number < 1.0, clock == "00:00:00") {
        (true, _) => clock,
        (false, true) => format!("{year:04}-{month:02}-{day:02}"),
        (false, false) => format!("{year:04}-{month:02}-{day:02} {clock}"),
    })
}

fn cells_of_xlsx<R: Read + Seek>(
    xlsx: &mut Xlsx<R>,
    sheet: &str,
    formulas: bool,
    give: &mut dyn FnMut(Cell<'_>) -> bool,
) -> Result<(), String> {
    let mut reader = xlsx.worksheet_cells_reader(sheet).map_err(|error| of_xlsx(&error))?;
    if !formulas {
        while let Some(cell) = reader.next_cell().map_err(|error| of_xlsx(&error))? {
            let (row, column) = cell.get_position();
            let value = value_of(cell.get_value().clone());
            if value != Value::Empty && !give(Cell { row, column, value, formula: None }) {
                break;
            }
        }
        return Ok(());
    }
    // Where a formula stands for many cells, the others name it by number.
    let mut shared: HashMap<usize, (String, (u32, u32))> = HashMap::new();
    while let Some(cell) = reader.next_cell_with_formula_metadata().map_err(|error| of_xlsx(&error))? {
        let formula = match cell.formula {
            Some(XlsxFormulaMetadata::Normal { formula }) => Some(formula),
            Some(XlsxFormulaMetadata::Shared { shared_index, formula, .. }) => {
                if shared.len() < MOST_SHARED {
                    shared.insert(shared_index, (formula.clone(), cell.pos));
                }
                Some(formula)
            }
            Some(XlsxFormulaMetadata::SharedDerived { shared_index }) => {
                shared.get(&shared_index).map(|(formula, from)| {
                    calamine::expand_shared_formula(formula, *from, cell.pos).unwrap_or_else(|_| formula.clone())
                })
            }
            Some(_) | None => None,
        };
        let formula = formula.filter(|formula| !formula.is_empty()).map(Cow::Owned);
        let value = value_of(cell.value);
        if (value != Value::Empty || formula.is_some())
            && !give(Cell { row: cell.pos.0, column: cell.pos.1, value, formula })
        {
            break;
        }
    }
    Ok(())
}

fn cells_of_xls(
    xls: &mut Xls<io::Cursor<Vec<u8>>>,
    sheet: &str,
    formulas: bool,
    give: &mut dyn FnMut(Cell<'_>) -> bool,
) -> Result<(), String> {
    let range = xls.worksheet_range(sheet).map_err(|error| format!("it is damaged ({error})"))?;
    let written = if formulas { xls.worksheet_formula(sheet).ok() } else { None };
    let (top, left) = range.start().unwrap_or_default();
    for (row, column, data) in range.used_cells() {
        let (row, column) = (top + row as u32, left + column as u32);
        let formula = written.as_ref().and_then(|written| written.get_value((row, column)));
        let formula = formula.filter(|formula| !formula.is_empty()).map(|formula| Cow::Borrowed(formula.as_str()));
        let value = value_of(match data {
            Data::Int(number) => DataRef::Int(*number),
            Data::Float(number) => DataRef::Float(*number),
            Data::String(text) => DataRef::SharedString(text),
            Data::Bool(yes) => DataRef::Bool(*yes),
            Data::DateTime(time) => DataRef::DateTime(*time),
            Data::DateTimeIso(text) => DataRef::DateTimeIso(text.clone()),
            Data::DurationIso(text) => DataRef::DurationIso(text.clone()),
            Data::Error(error) => DataRef::Error(error.clone()),
            Data::Empty => DataRef::Empty,
        });
        if (value != Value::Empty || formula.is_some()) && !give(Cell { row, column, value, formula }) {
            break;
        }
    }
    Ok(())
}

/// How many fields were cut, and whether bytes were damaged.
fn cells_of_text<R: Read + Seek>(
    file: &mut Watched<R>,
    encoding: Encoding,
    delimiter: char,
    give: &mut dyn FnMut(Cell<'_>) -> bool,
) -> io::Result<(u64, bool)> {
    file.seek(SeekFrom::Start(0))?;
    let mut decoder = encoding.decoder();
    let mut fields = csv::Fields::new(delimiter);
    let mut bytes = vec![0u8; 64 * 1024];
    let (mut text, mut damaged, mut first) = (String::new(), false, true);
    let mut cell = |row: u32, column: u32, text: &str| {
        let value = meant(text);
        value == Value::Empty || give(Cell { row, column, value, formula: None })
    };
    loop {
        let got = read_up_to(file, &mut bytes)?;
        let piece = if first { encoding.skip_mark(&bytes[..got]) } else { &bytes[..got] };
        first = false;
        text.clear();
        text.reserve(decoder.max_utf8_buffer_length(piece.len()).unwrap_or(piece.len() * 3));
        let (_, _, faulty) = decoder.decode_to_string(piece, &mut text, got == 0);
        damaged |= faulty;
        if !fields.take(&text, &mut cell) {
            break;
        }
        if got == 0 {
            fields.end(&mut cell);
            break;
        }
    }
    Ok((fields.cut, damaged))
}

/// The names of the sheets of an ods file.
#[derive(Default)]
struct Names(Vec<String>);

impl Sink for Names {
    fn sheet(&mut self, name: &str) -> bool {
        self.0.push(name.chars().take(200).collect());
        false
    }

    fn cell(&mut self, _: u32, _: u32, _: &Value<'_>, _: Option<&str>) -> bool {
        true
    }
}

/// The cells of one sheet of an ods file.
struct OneSheet<'a> {
    wanted: usize,
    at: Option<usize>,
    give: &'a mut dyn FnMut(Cell<'_>) -> bool,
}

impl Sink for OneSheet<'_> {
    fn sheet(&mut self, _: &str) -> bool {
        let at = self.at.map_or(0, |at| at + 1);
        self.at = Some(at);
        at == self.wanted
    }

    fn cell(&mut self, row: u32, column: u32, value: &Value<'_>, formula: Option<&str>) -> bool {
        (self.give)(Cell { row, column, value: value.clone(), formula: formula.map(Cow::Borrowed) })
    }
}
