//! Addresses of cells as people write them: `B7`, `A1:D20`, `A:C`, `5:20`. Pure.

use std::fmt;

/// The most rows of a sheet (Excel's own limit, which the others keep).
pub const MOST_ROWS: u32 = 1_048_576;
/// The most columns of a sheet (`XFD`).
pub const MOST_COLUMNS: u32 = 16_384;

/// A rectangle of cells, counted from 0, both ends within it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Area {
    /// The first row.
    pub top: u32,
    /// The first column.
    pub left: u32,
    /// The last row.
    pub bottom: u32,
    /// The last column.
    pub right: u32,
}

impl Area {
    /// All cells there can be.
    pub const ALL: Self = Self { top: 0, left: 0, bottom: MOST_ROWS - 1, right: MOST_COLUMNS - 1 };

    /// The area that is written, and the sheet before the `!` when one is named.
    ///
    /// # Errors
    /// In a sentence for the model.
    pub fn parse(written: &str) -> Result<(Option<String>, Self), String> {
        let wrong = || {
            let shown: String = written.chars().filter(|c| !c.is_control()).take(60).collect();
            format!("`{shown}` is no range. Write e.g. `A1:D20`, `B7`, `A:C` or `5:20`.")
        };
        let text = written.trim();
        let (sheet, cells) = match text.rsplit_once('!') {
            Some((sheet, cells)) => (Some(unquoted(sheet)), cells),
            None => (None, text),
        };
        let (first, last) = cells.split_once([':', '：']).unwrap_or((cells, cells));
        let (first, last) = (Corner::parse(first).ok_or_else(wrong)?, Corner::parse(last).ok_or_else(wrong)?);
        // A column and a row have no corner in common.
        if first.column.is_some() != last.column.is_some() {
            return Err(wrong());
        }
        let rows = [first.row.unwrap_or(0), last.row.unwrap_or(MOST_ROWS - 1)];
        let columns = [first.column.unwrap_or(0), last.column.unwrap_or(MOST_COLUMNS - 1)];
        // `D20:A1` means the same as `A1:D20`.
        let area = Self {
            top: rows[0].min(rows[1]),
            bottom: rows[0].max(rows[1]),
            left: columns[0].min(columns[1]),
            right: columns[0].max(columns[1]),
        };
        Ok((sheet, area))
    }

    /// Whether a cell lies in it.
    pub fn holds(&self, row: u32, column: u32) -> bool {
        (self.top..=self.bottom).contains(&row) && (self.left..=self.right).contains(&column)
    }
}

impl fmt::Display for Area {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}:{}{}", letters(self.left), self.top + 1, letters(self.right), self.bottom + 1)
    }
}

/// `A` for 0, `Z` for 25, `AA` for 26.
pub fn letters(column: u32) -> String {
    let mut name = Vec::new();
    let mut rest = column + 1;
    while rest > 0 {
        rest -= 1;
        name.push(b'A' + (rest % 26) as u8);
        rest /= 26;
    }
    name.reverse();
    String::from_utf8(name).expect("capital letters")
}

/// `'My sheet'` without its quotes.
fn unquoted(sheet: &str) -> String {
    let sheet = sheet.trim();
    match sheet.strip_prefix('\'').and_then(|sheet| sheet.strip_suffix('\'')) {
        Some(inner) => inner.replace("''", "'"),
        None => sheet.to_owned(),
    }
}

/// One end of a range; a column alone has no row, a row alone no column.
#[derive(Clone, Copy)]
struct Corner {
    row: Option<u32>,
    column: Option<u32>,
}

impl Corner {
    fn parse(text: &str) -> Option<Self> {
        let text: String = text.trim().chars().filter(|c| *c != '$').collect();
        let digits = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
        let (letters, digits) = text.split_at(digits);
        if letters.len() > 3 || digits.len() > 7 || (letters.is_empty() && digits.is_empty()) {
            return None;
        }
        let column = match letters {
            "" => None,
            letters => {
                let number =
                    letters.bytes().fold(0, |n, byte| n * 26 + u32::from(byte.to_ascii_uppercase() - b'A') + 1);
                Some(number.checked_sub(1).filter(|column| *column < MOST_COLUMNS)?)
            }
        };
        let row = match digits {
            "" => None,
            digits => Some(digits.parse::<u32>().ok()?.checked_sub(1).filter(|row| *row < MOST_ROWS)?),
        };
        Some(Self { row, column })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn area(written: &str) -> String {
        match Area::parse(written) {
            Ok((None, area)) => area.to_string(),
            Ok((Some(sheet), area)) => format!("[{sheet}] {area}"),
            Err(_) => "no".to_owned(),
        }
    }

    #[test]
    fn ranges_are_read_as_people_write_them() {
        for (written, meant) in [
            ("A1:D20", "A1:D20"),
            (" $b$7 ", "B7:B7"),
            ("d20:a1", "A1:D20"),
            ("D1:A20", "A1:D20"),
            ("A:C", "A1:C1048576"),
            ("5:20", "A5:XFD20"),
            ("A5:C", "A5:C1048576"),
            ("Sheet1!A1:B2", "[Sheet1] A1:B2"),
            ("'It''s all'!A1", "[It's all] A1:A1"),
            ("工作表1!A1：B2", "[工作表1] A1:B2"),
            ("XFD1048576", "XFD1048576:XFD1048576"),
            ("XFE1", "no"),
            ("A1048577", "no"),
            ("A0", "no"),
            ("", "no"),
            (":", "no"),
            ("A1:", "no"),
            ("1A", "no"),
            ("A:5", "no"),
            ("A1:B2:C3", "no"),
            ("ÄÖ1", "no"),
            ("R1C1", "no"),
        ] {
            assert_eq!(area(written), meant, "{written:?}");
        }
    }

    #[test]
    fn columns_have_letters() {
        for (column, name) in [(0, "A"), (25, "Z"), (26, "AA"), (701, "ZZ"), (702, "AAA"), (16_383, "XFD")] {
            assert_eq!(letters(column), name);
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_back(a in 0..MOST_ROWS, b in 0..MOST_ROWS, c in 0..MOST_COLUMNS, d in 0..MOST_COLUMNS) {
            let area = Area { top: a.min(b), bottom: a.max(b), left: c.min(d), right: c.max(d) };
            prop_assert_eq!(Area::parse(&area.to_string()), Ok((None, area)));
        }

        #[test]
        fn nothing_that_is_written_panics(written in "\\PC{0,40}") {
            if let Ok((_, area)) = Area::parse(&written) {
                prop_assert!(area.top <= area.bottom && area.left <= area.right);
                prop_assert!(area.bottom < MOST_ROWS && area.right < MOST_COLUMNS);
            }
        }
    }
}
