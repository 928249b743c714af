//! Text tables (csv, tsv): cells as they come from a stream of pieces of text, in bounded memory. Pure.

/// The most characters of one field; the rest of it is dropped. Excel's own limit of a cell.
const LONGEST_FIELD: usize = 32_767;

/// What stands between two fields: the one of the usual four that splits the lines of a sample most evenly.
pub fn delimiter(sample: &str) -> char {
    const CHOICES: [char; 4] = [',', '\t', ';', '|'];
    let mut counts: Vec<[usize; 4]> = Vec::new();
    let mut line = [0usize; 4];
    let mut quoted = false;
    for c in sample.chars().take(64 * 1024) {
        match c {
            '"' => quoted = !quoted,
            '\n' if !quoted => {
                counts.push(line);
                line = [0; 4];
                if counts.len() == 50 {
                    break;
                }
            }
            c if !quoted => {
                if let Some(at) = CHOICES.iter().position(|choice| *choice == c) {
                    line[at] += 1;
                }
            }
            _ => {}
        }
    }
    if counts.is_empty() || line != [0; 4] {
        counts.push(line);
    }
    let score = |at: usize| {
        let of: Vec<usize> = counts.iter().map(|line| line[at]).collect();
        let first = of.first().copied().unwrap_or(0);
        let alike = of.iter().filter(|count| **count == first && first > 0).count();
        (alike, of.iter().sum::<usize>())
    };
    let best = (0..CHOICES.len()).rev().max_by_key(|at| score(*at)).unwrap_or(0);
    if score(best).1 == 0 { ',' } else { CHOICES[best] }
}

/// Reads fields out of text that comes in pieces. Lenient: a quote inside a bare field is a character, whatever follows a
/// closing quote belongs to the field, and an unclosed quote ends with the text.
pub struct Fields {
    delimiter: char,
    state: State,
    field: String,
    chars: usize,
    /// Where the field lies, from 0.
    row: u32,
    column: u32,
    /// The last character was a carriage return that ended a row.
    after_return: bool,
    /// Fields that were longer than may be.
    pub cut: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the beginning of a field.
    Start,
    Bare,
    Quoted,
    /// After a quote within a quoted field: its end, or the first of two.
    Quote,
}

impl Fields {
    /// Fields divided by that character.
    pub fn new(delimiter: char) -> Self {
        Self {
            delimiter,
            state: State::Start,
            field: String::new(),
            chars: 0,
            row: 0,
            column: 0,
            after_return: false,
            cut: 0,
        }
    }

    /// Takes a piece; `give` gets each field that is whole (row, column, text) and says whether to go on.
    pub fn take(&mut self, piece: &str, mut give: impl FnMut(u32, u32, &str) -> bool) -> bool {
        for c in piece.chars() {
            if std::mem::take(&mut self.after_return) && c == '\n' {
                continue;
            }
            match (self.state, c) {
                (State::Quoted, '"') => self.state = State::Quote,
                (State::Quoted, c) => self.push(c),
                (State::Quote, '"') => {
                    self.push('"');
                    self.state = State::Quoted;
                }
                (State::Start, '"') => self.state = State::Quoted,
                (_, '\n' | '\r') => {
                    self.after_return = c == '\r';
                    if !self.end_field(&mut give) {
                        return false;
                    }
                    self.row = self.row.saturating_add(1);
                    self.column = 0;
                }
                (_, c) if c == self.delimiter => {
                    if !self.end_field(&mut give) {
                        return false;
                    }
                    self.column = self.column.saturating_add(1);
                }
                (_, c) => {
                    self.push(c);
                    self.state = State::Bare;
                }
            }
        }
        true
    }

    /// The text has ended.
    pub fn end(&mut self, mut give: impl FnMut(u32, u32, &str) -> bool) {
        if self.column > 0 || self.state != State::Start {
            self.end_field(&mut give);
        }
    }

    fn push(&mut self, c: char) {
        if self.chars < LONGEST_FIELD {
            self.field.push(c);
        }
        self.chars += 1;
    }

    fn end_field(&mut self, give: &mut impl FnMut(u32, u32, &str) -> bool) -> bool {
        self.cut += u64::from(self.chars > LONGEST_FIELD);
        let go_on = give(self.row, self.column, &self.field);
        self.field.clear();
        self.chars = 0;
        self.state = State::Start;
        go_on
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rows(text: &str, delimiter: char, each: usize) -> Vec<Vec<String>> {
        let mut rows: Vec<Vec<String>> = Vec::new();
        let mut give = |row: u32, column: u32, text: &str| {
            rows.resize(row as usize + 1, Vec::new());
            assert_eq!(rows[row as usize].len(), column as usize);
            rows[row as usize].push(text.to_owned());
            true
        };
        let mut fields = Fields::new(delimiter);
        let all: Vec<char> = text.chars().collect();
        for piece in all.chunks(each) {
            fields.take(&piece.iter().collect::<String>(), &mut give);
        }
        fields.end(&mut give);
        rows
    }

    #[test]
    fn fields_are_read_as_they_are_meant() {
        for (text, meant) in [
            ("a,b\n1,2\n", vec![vec!["a", "b"], vec!["1", "2"]]),
            ("a,b\r\n1,2", vec![vec!["a", "b"], vec!["1", "2"]]),
            ("a\rb", vec![vec!["a"], vec!["b"]]),
            ("\"x, y\",\"say \"\"hi\"\"\"\n", vec![vec!["x, y", "say \"hi\""]]),
            ("\"two\nlines\",z", vec![vec!["two\nlines", "z"]]),
            ("5\" pipe,z", vec![vec!["5\" pipe", "z"]]),
            ("\"open,z\n1", vec![vec!["open,z\n1"]]),
            ("\"a\"b,c", vec![vec!["ab", "c"]]),
            ("a,\n,b\n\n", vec![vec!["a", ""], vec!["", "b"], vec![""]]),
            ("\"\"", vec![vec![""]]),
            ("", vec![]),
        ] {
            for each in [1, 2, 3, 100] {
                assert_eq!(rows(text, ',', each), meant, "{text:?} in pieces of {each}");
            }
        }
    }

    #[test]
    fn the_delimiter_is_the_one_that_splits_evenly() {
        for (sample, meant) in [
            ("a,b,c\n1,2,3\n", ','),
            ("a;b\n1,5;2,5\n3,5;4,5\n", ';'),
            ("a\tb\nx, y\tz\n", '\t'),
            ("a|b\n1|2", '|'),
            ("one\ntwo\n", ','),
            ("", ','),
            ("\"a;b;c;d\",x\n\"e;f\",y\n", ','),
        ] {
            assert_eq!(delimiter(sample), meant, "{sample:?}");
        }
    }

    #[test]
    fn a_field_without_end_is_cut() {
        let mut fields = Fields::new(',');
        fields.take(&format!("\"{}", "x".repeat(100_000)), |_, _, _| true);
        fields.end(|_, _, text| text.len() == LONGEST_FIELD);
        assert_eq!(fields.cut, 1);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(table in proptest::collection::vec(proptest::collection::vec("[a-z,\"\n\r;é 中]{0,6}", 1..4), 1..5), each in 1usize..9) {
            let quoted = |field: &String| format!("\"{}\"", field.replace('"', "\"\""));
            let lines: Vec<String> = table.iter().map(|row| row.iter().map(quoted).collect::<Vec<_>>().join(",")).collect();
            prop_assert_eq!(rows(&lines.join("\r\n"), ',', each), table);
        }

        #[test]
        fn pieces_change_nothing(text in "[a,\"\n\r]{0,40}", each in 1usize..9) {
            prop_assert_eq!(rows(&text, ',', each), rows(&text, ',', 1000));
        }
    }
}
