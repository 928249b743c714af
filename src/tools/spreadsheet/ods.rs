//! OpenDocument sheets as a stream: cells one after the other, however often the file says that a row repeats.

use std::{borrow::Cow, io::BufRead};

use quick_xml::{
    Reader, XmlVersion,
    events::{BytesStart, Event},
};

use super::{
    area::{MOST_COLUMNS, MOST_ROWS},
    value::Value,
};

/// The most characters of one cell; Excel's own limit.
const LONGEST_CELL: usize = 32_767;
/// The most bytes of texts in one row, which is kept whole because it may repeat.
const LARGEST_ROW: usize = 4 << 20;

/// What a reader of sheets is told, in the order of the file.
pub trait Sink {
    /// A sheet begins. Whether its cells are wanted.
    fn sheet(&mut self, name: &str) -> bool;

    /// A cell that holds something. Whether to go on.
    fn cell(&mut self, row: u32, column: u32, value: &Value<'_>, formula: Option<&str>) -> bool;
}

/// Reads `content.xml`. Ends early when the sink wants no more.
///
/// # Errors
/// In words that follow "the file cannot be used:".
pub fn read(content: impl BufRead, sink: &mut impl Sink) -> Result<(), String> {
    let mut xml = Reader::from_reader(content);
    xml.config_mut().check_end_names = false;
    let mut buffer = Vec::new();
    let mut depth = 0u32;
    loop {
        buffer.clear();
        match xml.read_event_into(&mut buffer).map_err(|error| error.to_string())? {
            Event::Start(tag) if depth == 0 && tag.local_name().as_ref() == "table" => {
                let name = attribute(&tag, "name").unwrap_or_default();
                if sink.sheet(&name) {
                    if !table(&mut xml, sink)? {
                        return Ok(());
                    }
                } else {
                    depth = 1;
                }
            }
            // A sheet without a row.
            Event::Empty(tag) if depth == 0 && tag.local_name().as_ref() == "table" => {
                sink.sheet(&attribute(&tag, "name").unwrap_or_default());
            }
            Event::Start(tag) if depth > 0 && tag.local_name().as_ref() == "table" => depth += 1,
            Event::End(tag) if depth > 0 && tag.local_name().as_ref() == "table" => depth -= 1,
            Event::Eof => return Ok(()),
            _ => {}
        }
    }
}

struct Cell {
    column: u32,
    repeated: u32,
    value: Value<'static>,
    formula: Option<String>,
}

/// One table to its end; false when no more is wanted.
fn table(xml: &mut Reader<impl BufRead>, sink: &mut impl Sink) -> Result<bool, String> {
    let mut buffer = Vec::new();
    let mut row = 0u32;
    loop {
        buffer.clear();
        match xml.read_event_into(&mut buffer).map_err(|error| error.to_string())? {
            Event::Start(tag) if tag.local_name().as_ref() == "table-row" => {
                let repeated = repeats(&tag, "number-rows-repeated");
                let cells = row_of_cells(xml)?;
                for n in 0..if cells.is_empty() { 0 } else { repeated } {
                    let at = row.saturating_add(n);
                    if at >= MOST_ROWS {
                        break;
                    }
                    for cell in &cells {
                        for column in cell.column..(cell.column + cell.repeated).min(MOST_COLUMNS) {
                            if !sink.cell(at, column, &cell.value, cell.formula.as_deref()) {
                                return Ok(false);
                            }
                        }
                    }
                }
                row = row.saturating_add(repeated);
            }
            Event::Empty(tag) if tag.local_name().as_ref() == "table-row" => {
                row = row.saturating_add(repeats(&tag, "number-rows-repeated"));
            }
            Event::End(tag) if tag.local_name().as_ref() == "table" => return Ok(true),
            Event::Eof => return Err("it ends in the middle of a sheet".to_owned()),
            _ => {}
        }
    }
}

/// The cells of a row that hold something.
fn row_of_cells(xml: &mut Reader<impl BufRead>) -> Result<Vec<Cell>, String> {
    let mut buffer = Vec::new();
    let (mut cells, mut column, mut bytes) = (Vec::new(), 0u32, 0usize);
    loop {
        buffer.clear();
        let (tag, closed) = match xml.read_event_into(&mut buffer).map_err(|error| error.to_string())? {
            Event::Start(tag) => (tag, false),
            Event::Empty(tag) => (tag, true),
            Event::End(tag) if tag.local_name().as_ref() == "table-row" => return Ok(cells),
            Event::Eof => return Err("it ends in the middle of a row".to_owned()),
            _ => continue,
        };
        if !matches!(tag.local_name().as_ref(), "table-cell" | "covered-table-cell") {
            continue;
        }
        let repeated = repeats(&tag, "number-columns-repeated").min(MOST_COLUMNS);
        let typed = typed(&tag);
        let formula = attribute(&tag, "formula").map(|formula| plain_formula(&formula));
        let text = if closed { String::new() } else { text_of_cell(xml)? };
        let value = match typed {
            Typed::Value(value) => value,
            Typed::Text if text.is_empty() => Value::Empty,
            Typed::Text => Value::Text(Cow::Owned(text)),
            Typed::Error => Value::Error(Cow::Owned(text)),
        };
        if (value != Value::Empty || formula.is_some()) && column < MOST_COLUMNS {
            bytes += value.shown().len() + formula.as_ref().map_or(0, String::len) + size_of::<Cell>();
            if bytes > LARGEST_ROW {
                return Err("one of its rows holds more than 4 MiB".to_owned());
            }
            cells.push(Cell { column, repeated, value, formula });
        }
        column = column.saturating_add(repeated);
    }
}

enum Typed {
    Value(Value<'static>),
    /// Its words are its value.
    Text,
    /// Its words are the error.
    Error,
}

/// What the attributes of a cell say. ODF 1.2, 19.385.
fn typed(tag: &BytesStart<'_>) -> Typed {
    if attribute_of(tag, "calcext", "value-type").as_deref() == Some("error") {
        return Typed::Error;
    }
    let kind = attribute_of(tag, "office", "value-type").unwrap_or_default();
    let value = match kind.as_str() {
        "float" | "currency" | "percentage" => {
            attribute(tag, "value").and_then(|value| value.parse().ok()).map(Value::Number)
        }
        "date" => attribute(tag, "date-value").map(|date| {
            let date: String = date.split('.').next().unwrap_or_default().replace('T', " ").chars().take(40).collect();
            Value::Date(date)
        }),
        "time" => attribute(tag, "time-value").map(|time| Value::Duration(clock(&time))),
        "boolean" => attribute(tag, "boolean-value").map(|value| Value::Bool(value == "true")),
        "string" => attribute(tag, "string-value").map(|text| Value::Text(Cow::Owned(cut(&text)))),
        _ => None,
    };
    value.map_or(Typed::Text, Typed::Value)
}

/// `PT12H30M05S` as `12:30:05`.
fn clock(iso: &str) -> String {
    let (mut parts, mut number) = ([0u64; 3], String::new());
    for c in iso.trim_start_matches('P').trim_start_matches('T').chars().take(40) {
        match c {
            'H' | 'M' | 'S' => {
                let at = match c {
                    'H' => 0,
                    'M' => 1,
                    _ => 2,
                };
                let whole = number.split('.').next().unwrap_or_default();
                parts[at] = whole.parse().unwrap_or(0);
                number.clear();
            }
            c => number.push(c),
        }
    }
    format!("{:02}:{:02}:{:02}", parts[0], parts[1], parts[2])
}

/// The words of a cell to its end, without notes that are pinned to it.
fn text_of_cell(xml: &mut Reader<impl BufRead>) -> Result<String, String> {
    let mut buffer = Vec::new();
    let (mut text, mut inside, mut notes, mut paragraphs) = (String::new(), 0u32, 0u32, 0u32);
    loop {
        buffer.clear();
        let event = xml.read_event_into(&mut buffer).map_err(|error| error.to_string())?;
        let wanted = notes == 0 && text.len() < LONGEST_CELL * 4;
        match event {
            Event::Start(tag) => {
                inside += 1;
                match tag.local_name().as_ref() {
                    "annotation" => notes += 1,
                    "p" if wanted => {
                        if paragraphs > 0 {
                            text.push('\n');
                        }
                        paragraphs += 1;
                    }
                    _ => {}
                }
            }
            Event::Empty(tag) if wanted => match tag.local_name().as_ref() {
                "s" => {
                    let spaces = attribute(&tag, "c").and_then(|count| count.parse::<usize>().ok()).unwrap_or(1);
                    text.extend(std::iter::repeat_n(' ', spaces.min(64)));
                }
                "tab" => text.push('\t'),
                "line-break" => text.push('\n'),
                _ => {}
            },
            Event::Text(words) if wanted && paragraphs > 0 => text.push_str(&words.xml10_content()),
            Event::CData(words) if wanted => text.push_str(&words),
            Event::GeneralRef(name) if wanted => {
                let named = match name.as_ref() {
                    "amp" => Some('&'),
                    "lt" => Some('<'),
                    "gt" => Some('>'),
                    "quot" => Some('"'),
                    "apos" => Some('\''),
                    _ => name.resolve_char_ref().ok().flatten(),
                };
                text.extend(named);
            }
            Event::End(_) if inside == 0 => return Ok(cut(&text)),
            Event::End(tag) => {
                inside -= 1;
                notes -= u32::from(notes > 0 && tag.local_name().as_ref() == "annotation");
            }
            Event::Eof => return Err("it ends in the middle of a cell".to_owned()),
            _ => {}
        }
    }
}

fn cut(text: &str) -> String {
    text.chars().take(LONGEST_CELL).collect()
}

/// `of:=SUM([.A1:.A3])` as `SUM(A1:A3)`.
fn plain_formula(formula: &str) -> String {
    let bare = formula.split_once(":=").map_or(formula, |(_, rest)| rest).trim_start_matches('=');
    cut(&bare.replace("[.", "").replace(":.", ":").replace(['[', ']'], ""))
}

fn repeats(tag: &BytesStart<'_>, name: &str) -> u32 {
    attribute(tag, name).and_then(|count| count.parse().ok()).unwrap_or(1).clamp(1, MOST_ROWS)
}

/// The value of the attribute of that local name.
fn attribute(tag: &BytesStart<'_>, name: &str) -> Option<String> {
    let found =
        tag.attributes().with_checks(false).flatten().find(|attribute| attribute.key.local_name().as_ref() == name)?;
    found.normalized_value(XmlVersion::Implicit1_0).ok().map(Cow::into_owned)
}

/// The same with a prefix that tells two apart.
fn attribute_of(tag: &BytesStart<'_>, prefix: &str, name: &str) -> Option<String> {
    let whole = format!("{prefix}:{name}");
    let found = tag.attributes().with_checks(false).flatten().find(|attribute| attribute.key.as_ref() == whole)?;
    found.normalized_value(XmlVersion::Implicit1_0).ok().map(Cow::into_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct All {
        seen: Vec<String>,
        most: usize,
    }

    impl Sink for All {
        fn sheet(&mut self, name: &str) -> bool {
            self.seen.push(format!("[{name}]"));
            name != "Other"
        }

        fn cell(&mut self, row: u32, column: u32, value: &Value<'_>, formula: Option<&str>) -> bool {
            let formula = formula.map(|formula| format!(" ={formula}")).unwrap_or_default();
            self.seen.push(format!("{row},{column} {value:?}{formula}"));
            self.most == 0 || self.seen.len() < self.most
        }
    }

    const SHEETS: &str = r#"<?xml version="1.0"?><office:document-content xmlns:office="o" xmlns:table="t" xmlns:text="x" xmlns:calcext="c"><office:body><office:spreadsheet>
<table:table table:name="Other"><table:table-row><table:table-cell office:value-type="float" office:value="9"/></table:table-row></table:table>
<table:table table:name="Tom &amp; 表"><table:table-column table:number-columns-repeated="1000"/>
<table:table-row><table:table-cell office:value-type="string"><office:annotation><text:p>note</text:p></office:annotation><text:p>a &lt;b&gt;<text:s text:c="2"/>c</text:p><text:p>d</text:p></table:table-cell><table:table-cell table:number-columns-repeated="2"/><table:table-cell office:value-type="date" office:date-value="2026-03-01T09:30:00"><text:p>1.3.</text:p></table:table-cell></table:table-row>
<table:table-row table:number-rows-repeated="1048000"><table:table-cell table:number-columns-repeated="16384"/></table:table-row>
<table:table-row table:number-rows-repeated="2"><table:table-cell table:formula="of:=SUM([.A1:.B1])*2" office:value-type="currency" office:value="1.5" table:number-columns-repeated="2"/><table:table-cell office:value-type="boolean" office:boolean-value="true"/><table:table-cell office:value-type="time" office:time-value="PT26H05M00S"/><table:table-cell calcext:value-type="error" office:value-type="string" office:string-value=""><text:p>#DIV/0!</text:p></table:table-cell></table:table-row>
</table:table></office:spreadsheet></office:body></office:document-content>"#;

    #[test]
    fn cells_come_in_order_with_what_they_mean() {
        let mut all = All::default();
        read(SHEETS.as_bytes(), &mut all).expect("it is read");
        let repeated = |row: u32| {
            [
                format!("{row},0 Number(1.5) =SUM(A1:B1)*2"),
                format!("{row},1 Number(1.5) =SUM(A1:B1)*2"),
                format!("{row},2 Bool(true)"),
                format!("{row},3 Duration(\"26:05:00\")"),
                format!("{row},4 Error(\"#DIV/0!\")"),
            ]
        };
        let mut meant = vec![
            "[Other]".to_owned(),
            "[Tom & 表]".to_owned(),
            "0,0 Text(\"a <b>  c\\nd\")".to_owned(),
            "0,3 Date(\"2026-03-01 09:30:00\")".to_owned(),
        ];
        meant.extend(repeated(1_048_001));
        meant.extend(repeated(1_048_002));
        assert_eq!(all.seen, meant);
        let mut few = All { most: 3, ..All::default() };
        read(SHEETS.as_bytes(), &mut few).expect("it is read");
        assert_eq!(few.seen.len(), 3);
    }

    #[test]
    fn a_file_that_breaks_off_is_told() {
        for end in [300, 500, 700] {
            assert!(read(&SHEETS.as_bytes()[..end], &mut All::default()).is_err(), "{end}");
        }
        assert!(read(&b"not xml at all"[..], &mut All::default()).is_ok());
    }
}
