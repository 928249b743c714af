//! The old binary format (xls), walked before it is read: a reader of it makes room for every sheet's whole rectangle,
//! copies every text into every cell that names it, and follows whatever chain of sectors it is given. So the stream of
//! the workbook is taken out of its container, judged record by record as that reader will go through it, and handed over
//! in a container of our own making. Pure: bytes in, bytes out.
//!
//! Sources: \[MS-CFB\] 2.2–2.6 (the container), \[MS-XLS\] 2.1.4 (records), 2.4.21 BOF, 2.4.28 BoundSheet8, 2.4.90
//! Dimensions, 2.4.117 FilePass, 2.4.127 Formula, 2.4.148 Label, 2.4.149 LabelSst, 2.4.150 Lbl, 2.4.175 MulRk, 2.4.265
//! SST, 2.4.268 String, 2.5.198 (tokens of formulas), 2.5.293 XLUnicodeRichExtendedString.

use std::slice::Iter;

/// The largest file that is opened.
pub const LARGEST: u64 = 32 << 20;
/// The most cells of all sheets, and of all their rectangles together.
const MOST_CELLS: u64 = 3_000_000;
/// The most characters of all cells together: each cell gets its text for itself.
const MOST_CHARACTERS: u64 = 32 << 20;
/// The most texts of the table.
const MOST_TEXTS: usize = 1_000_000;
/// The most records that continue one: each holds up to 8,224 bytes.
const MOST_CONTINUED: usize = 10_000;
/// The most bytes of all formulas as they are written out.
const MOST_FORMULAS: u64 = 256 << 20;
const MOST_SHEETS: usize = 1_000;
const END_OF_CHAIN: u32 = 0xffff_fffe;
const FREE: u32 = 0xffff_ffff;
const SECTOR_OF_CHAINS: u32 = 0xffff_fffd;
/// The mark of a container and the size of the sectors that ours has.
const MARK: &[u8] = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1";
const SECTOR: usize = 4096;

/// The workbook of a file in a container of ours that a reader may be given.
///
/// # Errors
/// In words that follow "the file cannot be used:".
pub fn workbook(file: &[u8]) -> Result<Vec<u8>, String> {
    let container = Container::of(file).ok_or("its container is damaged")?;
    let entries = container.directory().ok_or("its container is damaged")?;
    if entries.iter().any(|entry| entry.name == "EncryptedPackage") {
        return Err("it is locked with a password".to_owned());
    }
    let named = |name: &str| entries.iter().find(|entry| entry.name.eq_ignore_ascii_case(name));
    let entry = named("Workbook").or_else(|| named("Book")).ok_or("it holds no workbook")?;
    let mut stream = container.stream(entry, &entries).ok_or("its container is damaged")?;
    judge(&mut stream)?;
    Ok(contained(&stream))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

struct Container<'a> {
    file: &'a [u8],
    sector: usize,
    chains: Vec<u32>,
    mini: Vec<u32>,
    first_of_directory: u32,
}

struct Entry {
    name: String,
    root: bool,
    first: u32,
    size: u64,
}

impl<'a> Container<'a> {
    fn of(file: &'a [u8]) -> Option<Self> {
        let sector = match u16_at(file, 0x1e)? {
            9 => 512,
            12 => 4096,
            _ => return None,
        };
        let mut container =
            Self { file, sector, chains: Vec::new(), mini: Vec::new(), first_of_directory: u32_at(file, 0x30)? };
        // The sectors of the table of chains: 109 in the header, the rest in sectors of their own.
        let mut tables: Vec<u32> = (0..109).filter_map(|n| u32_at(file, 0x4c + n * 4)).collect();
        let mut next = u32_at(file, 0x44)?;
        for _ in 0..container.sectors() {
            if next >= END_OF_CHAIN {
                break;
            }
            let bytes = container.sector(next)?;
            tables.extend((0..sector / 4 - 1).filter_map(|n| u32_at(bytes, n * 4)));
            next = u32_at(bytes, sector - 4)?;
        }
        for table in tables.into_iter().filter(|table| *table < SECTOR_OF_CHAINS).take(container.sectors()) {
            // One entry for each sector there is; what goes on behind them says nothing.
            if container.chains.len() >= container.sectors() {
                break;
            }
            let bytes = container.sector(table)?;
            container.chains.extend((0..sector / 4).filter_map(|n| u32_at(bytes, n * 4)));
        }
        let mini = container.chain(u32_at(file, 0x3c)?, u64::MAX)?;
        container.mini = mini.chunks_exact(4).filter_map(|bytes| u32_at(bytes, 0)).collect();
        Some(container)
    }

    /// How many sectors the file can hold.
    fn sectors(&self) -> usize {
        self.file.len() / self.sector + 1
    }

    fn sector(&self, n: u32) -> Option<&'a [u8]> {
        let from = (n as usize).checked_add(1)?.checked_mul(self.sector)?;
        // The last sector of a file may be short.
        self.file.get(from..self.file.len().min(from.checked_add(self.sector)?)).filter(|bytes| !bytes.is_empty())
    }

    /// The bytes of a chain of sectors, at most `size`; nothing when it comes round to where it was, which a chain of more
    /// sectors than there are does.
    fn chain(&self, first: u32, size: u64) -> Option<Vec<u8>> {
        let (mut bytes, mut next, mut steps) = (Vec::new(), first, 0);
        while next < SECTOR_OF_CHAINS && (bytes.len() as u64) < size {
            steps += 1;
            if steps > self.sectors() {
                return None;
            }
            bytes.extend_from_slice(self.sector(next)?);
            next = *self.chains.get(next as usize)?;
        }
        bytes.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        Some(bytes)
    }

    fn directory(&self) -> Option<Vec<Entry>> {
        let bytes = self.chain(self.first_of_directory, u64::MAX)?;
        let entries = bytes.chunks_exact(128).filter_map(|entry| {
            let length = usize::from(u16_at(entry, 64)?).min(64).saturating_sub(2) / 2;
            let units: Vec<u16> = (0..length).filter_map(|n| u16_at(entry, n * 2)).collect();
            // Its upper half counts where sectors are large; others leave anything there.
            let upper = if self.sector == SECTOR { u64::from(u32_at(entry, 124)?) << 32 } else { 0 };
            Some(Entry {
                name: String::from_utf16_lossy(&units),
                root: entry[66] == 5,
                first: u32_at(entry, 116)?,
                size: upper | u64::from(u32_at(entry, 120)?),
            })
        });
        Some(entries.collect())
    }

    /// A stream, when it is as long as its entry says.
    fn stream(&self, entry: &Entry, entries: &[Entry]) -> Option<Vec<u8>> {
        let bytes = if entry.size >= 4096 { self.chain(entry.first, entry.size)? } else { self.small(entry, entries)? };
        (bytes.len() as u64 == entry.size).then_some(bytes)
    }

    /// Small streams lie in 64-byte pieces of the root's own stream.
    fn small(&self, entry: &Entry, entries: &[Entry]) -> Option<Vec<u8>> {
        let root = entries.iter().find(|entry| entry.root)?;
        let pieces = self.chain(root.first, u64::MAX)?;
        let (mut bytes, mut next) = (Vec::new(), entry.first);
        while next < SECTOR_OF_CHAINS && (bytes.len() as u64) < entry.size {
            let from = (next as usize).checked_mul(64)?;
            bytes.extend_from_slice(pieces.get(from..pieces.len().min(from.checked_add(64)?))?);
            next = *self.mini.get(next as usize)?;
        }
        bytes.truncate(usize::try_from(entry.size).ok()?);
        Some(bytes)
    }
}

/// A container with this one stream, which is called `Workbook`.
fn contained(stream: &[u8]) -> Vec<u8> {
    // Shorter streams would have to lie elsewhere; records of nothing change nothing.
    let length = stream.len().max(SECTOR);
    let sectors = length.div_ceil(SECTOR);
    // The sectors of the table of chains have their places in it as well.
    let tables = (1..).find(|tables| tables * (SECTOR / 4) > sectors + tables).unwrap_or(1);
    let mut bytes = vec![0; SECTOR];
    bytes.reserve((1 + sectors + tables) * SECTOR);
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(0, MARK);
    for (at, value) in [(0x18, 0x3e_u16), (0x1a, 4), (0x1c, 0xfffe), (0x1e, 12), (0x20, 6)] {
        put(at, &value.to_le_bytes());
    }
    let number = |n: usize| u32::try_from(n).unwrap_or(FREE);
    for (at, value) in [
        (0x28, 1),
        (0x2c, number(tables)),
        (0x30, 0),
        (0x38, 4096),
        (0x3c, END_OF_CHAIN),
        (0x40, 0),
        (0x44, END_OF_CHAIN),
        (0x48, 0),
    ] {
        put(at, &value.to_le_bytes());
    }
    for n in 0..109 {
        let table = if n < tables { number(1 + sectors + n) } else { FREE };
        put(0x4c + n * 4, &table.to_le_bytes());
    }
    let entry = |name: &str, kind: u8, first: u32, size: usize| {
        let mut entry = [0u8; 128];
        for (n, unit) in name.encode_utf16().enumerate() {
            entry[n * 2..n * 2 + 2].copy_from_slice(&unit.to_le_bytes());
        }
        entry[64] = (name.len() as u8 + 1) * 2;
        (entry[66], entry[67]) = (kind, 1);
        entry[68..80].fill(0xff);
        entry[116..120].copy_from_slice(&first.to_le_bytes());
        entry[120..128].copy_from_slice(&(size as u64).to_le_bytes());
        entry
    };
    let mut root = entry("Root Entry", 5, 0, 0);
    root[76..80].copy_from_slice(&1u32.to_le_bytes());
    bytes.extend(root);
    bytes.extend(entry("Workbook", 2, 1, length));
    bytes.resize(2 * SECTOR, 0);
    bytes.extend_from_slice(stream);
    bytes.resize((2 + sectors) * SECTOR, 0);
    let mut chains = vec![END_OF_CHAIN];
    chains.extend((2..=sectors).map(number));
    chains.push(END_OF_CHAIN);
    chains.resize(1 + sectors + tables, SECTOR_OF_CHAINS);
    chains.resize(tables * (SECTOR / 4), FREE);
    bytes.extend(chains.into_iter().flat_map(u32::to_le_bytes));
    bytes
}

/// One record: its kind, its bytes and those of the records that continue it.
struct Record<'a> {
    at: usize,
    kind: u16,
    data: &'a [u8],
    more: Vec<&'a [u8]>,
}

/// The records from a place on, as the reader finds them.
struct Records<'a> {
    stream: &'a [u8],
    at: usize,
}

impl<'a> Records<'a> {
    fn next(&mut self) -> Result<Option<Record<'a>>, String> {
        let damaged = || "it ends in the middle of a record".to_owned();
        let at = self.at;
        if at >= self.stream.len() {
            return Ok(None);
        }
        let kind = u16_at(self.stream, at).ok_or_else(damaged)?;
        let data = self.take().ok_or_else(damaged)?;
        let mut more = Vec::new();
        while u16_at(self.stream, self.at) == Some(0x003c) && self.stream.len() - self.at > 4 {
            if more.len() == MOST_CONTINUED {
                return Err("one of its records is continued without end".to_owned());
            }
            more.push(self.take().ok_or_else(damaged)?);
        }
        Ok(Some(Record { at, kind, data, more }))
    }

    fn take(&mut self) -> Option<&'a [u8]> {
        let length = usize::from(u16_at(self.stream, self.at + 2)?);
        let data = self.stream.get(self.at + 4..self.at + 4 + length)?;
        self.at += 4 + length;
        Some(data)
    }
}

const BOF: u16 = 0x0809;
const END: u16 = 0x000a;

/// Walks the records as the reader will: first those of the whole workbook, then those of each sheet. Takes out what is
/// only claimed of the size of a sheet.
fn judge(stream: &mut [u8]) -> Result<(), String> {
    let (mut sheets, mut texts, mut longest_name) = (Vec::new(), Vec::new(), 8u64);
    let mut records = Records { stream, at: 0 };
    while let Some(record) = records.next()? {
        match record.kind {
            0x002f if u16_at(record.data, 0) != Some(0) => return Err("it is locked with a password".to_owned()),
            // BoundSheet: where a sheet begins, and its name.
            0x0085 => {
                sheets.extend(u32_at(record.data, 0));
                longest_name = longest_name.max(3 * u64::from(record.data.get(6).copied().unwrap_or(0)));
            }
            // Lbl: a name for cells.
            0x0018 => longest_name = longest_name.max(3 * u64::from(record.data.get(3).copied().unwrap_or(0))),
            0x00fc => texts = lengths(&record)?,
            END => break,
            _ => {}
        }
    }
    if sheets.len() > MOST_SHEETS {
        return Err("its list of sheets is damaged".to_owned());
    }
    let (mut used, mut walked, mut claims) = (Used::default(), 0, Vec::new());
    for sheet in sheets {
        let begin = sheet as usize;
        let end = used.sheet(stream, begin, &texts, longest_name, &mut claims)?;
        // Sheets lie one behind the other. Where they share their records, each would be read over and over again.
        walked += end - begin;
        if walked > stream.len() {
            return Err("its list of sheets is damaged".to_owned());
        }
    }
    for (from, length) in claims {
        stream[from..from + length].fill(0);
    }
    Ok(())
}

/// What all sheets together take.
#[derive(Default)]
struct Used {
    rectangles: u64,
    cells: u64,
    characters: u64,
    formulas: u64,
}

impl Used {
    /// Walks one sheet; where it ends.
    fn sheet(
        &mut self,
        stream: &[u8],
        begin: usize,
        texts: &[u16],
        longest_name: u64,
        claims: &mut Vec<(usize, usize)>,
    ) -> Result<usize, String> {
        if u16_at(stream, begin) != Some(BOF) {
            return Err("its list of sheets is damaged".to_owned());
        }
        let mut records = Records { stream, at: begin };
        // What lies in a sheet as a chart does is passed over.
        let (mut within, mut rows, mut columns) = (0u32, 0u64, 0u64);
        while let Some(record) = records.next()? {
            let data = record.data;
            let place = |row: usize, column: usize| {
                Some((u64::from(u16_at(data, row)?) + 1, u64::from(u16_at(data, column)?) + 1))
            };
            match record.kind {
                BOF => within += u32::from(record.at != begin),
                END if within > 0 => within -= 1,
                END => break,
                _ if within > 0 => {}
                // Dimensions.
                0x0200 => claims.push((record.at + 4, data.len())),
                // Number, Label, RString, BoolErr, String, Rk, LabelSst, Formula, MulRk, Blank.
                0x0203 | 0x0204 | 0x00d6 | 0x0205 | 0x0207 | 0x027e | 0x00fd | 0x0006 | 0x00bd | 0x0201 => {
                    let numbers = if record.kind == 0x00bd { data.len() as u64 / 6 } else { 1 };
                    self.cells += numbers;
                    // A String says what the Formula before it comes to, and has no place of its own.
                    if record.kind != 0x0207 {
                        let (row, column) = place(0, 2).unwrap_or((1, 1));
                        // A row of many numbers spans as many columns as it has numbers, whatever it says.
                        (rows, columns) = (rows.max(row), columns.max(column + numbers - 1));
                    }
                    let text = match record.kind {
                        // Room is made for as many characters as are claimed.
                        0x0204 | 0x00d6 => u16_at(data, 6),
                        0x0207 => u16_at(data, 0),
                        0x00fd => u32_at(data, 6).and_then(|n| texts.get(n as usize).copied()),
                        _ => None,
                    };
                    self.characters += u64::from(text.unwrap_or(0));
                    if record.kind == 0x0006 {
                        self.formulas += written_out(data.get(20..).unwrap_or_default(), longest_name);
                    }
                }
                _ => {}
            }
            if self.cells > MOST_CELLS || self.rectangles.saturating_add(rows.saturating_mul(columns)) > MOST_CELLS {
                return Err(format!("its sheets span more than {MOST_CELLS} cells; save it as xlsx or csv"));
            }
            if self.characters > MOST_CHARACTERS {
                return Err(format!("its cells hold more than {MOST_CHARACTERS} characters; save it as xlsx or csv"));
            }
            if self.formulas > MOST_FORMULAS {
                return Err("its formulas are too long; save it as xlsx or csv".to_owned());
            }
        }
        self.rectangles += rows.saturating_mul(columns);
        Ok(records.at)
    }
}

/// No fewer bytes than a formula takes when it is written out: numbers come with all their digits, names in full.
fn written_out(tokens: &[u8], longest_name: u64) -> u64 {
    /// The longest number as text, the most spaces of one token, and what any other byte of a token may become.
    const NUMBER: u64 = 330;
    const SPACES: u64 = 255;
    const BYTE: u64 = 12;
    tokens
        .iter()
        .map(|byte| match byte {
            0x1f => NUMBER,
            0x19 => BYTE + SPACES,
            0x23 | 0x43 | 0x63 | 0x39 | 0x59 | 0x79 | 0x3a..=0x3d | 0x5a..=0x5d | 0x7a..=0x7d => BYTE + longest_name,
            _ => BYTE,
        })
        .sum()
}

/// How many characters each text of the table claims.
fn lengths(table: &Record<'_>) -> Result<Vec<u16>, String> {
    let mut bytes = Continued { data: table.data.get(8..).unwrap_or_default(), more: table.more.iter() };
    let mut lengths = Vec::new();
    while !bytes.data.is_empty() || bytes.go_on() {
        if lengths.len() == MOST_TEXTS {
            return Err(format!("it has more than {MOST_TEXTS} texts; save it as xlsx or csv"));
        }
        lengths.push(bytes.text().ok_or("its table of texts is damaged")?);
    }
    Ok(lengths)
}

/// Bytes that go on in the next record.
struct Continued<'a, 'b> {
    data: &'a [u8],
    more: Iter<'b, &'a [u8]>,
}

impl Continued<'_, '_> {
    fn go_on(&mut self) -> bool {
        self.more.next().map(|data| self.data = data).is_some()
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.data.split_first_chunk::<N>()?;
        self.data = rest;
        Some(*bytes)
    }

    /// Passes over a text; how many characters it has.
    fn text(&mut self) -> Option<u16> {
        // An empty record that continues gives an empty text.
        if self.data.is_empty() {
            return Some(0);
        }
        let [low, high, flags] = self.take()?;
        let characters = u16::from_le_bytes([low, high]);
        let runs = if flags & 8 != 0 { u64::from(u16::from_le_bytes(self.take()?)) } else { 0 };
        let phonetic = if flags & 4 != 0 { u64::try_from(i32::from_le_bytes(self.take()?)).ok()? } else { 0 };
        let (mut left, mut width) = (usize::from(characters), 1 + usize::from(flags & 1));
        loop {
            let here = left.min(self.data.len() / width);
            self.data = &self.data[here * width..];
            left -= here;
            if left == 0 {
                break;
            }
            // Each continuation says anew how wide its characters are.
            if !self.go_on() {
                return None;
            }
            let [flags] = self.take()?;
            width = 1 + usize::from(flags & 1);
        }
        let mut left = runs * 4 + phonetic;
        while left > 0 {
            if self.data.is_empty() && !self.go_on() {
                return None;
            }
            let here = self.data.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            self.data = &self.data[here..];
            left -= here as u64;
        }
        Some(characters)
    }
}

#[cfg(test)]
mod tests {
    use calamine::{Data, Reader, Xls};

    use super::*;

    const SMALL: &[u8] = include_bytes!("fixtures/small.xls");

    fn record(kind: u16, data: &[u8]) -> Vec<u8> {
        let length = u16::try_from(data.len()).expect("a short record");
        [&kind.to_le_bytes(), &length.to_le_bytes(), data].concat()
    }

    fn bof() -> Vec<u8> {
        record(BOF, &[0, 6, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    }

    /// The stream of a workbook: what belongs to all of it, and one sheet of these records.
    fn stream(globals: &[u8], sheet: &[u8]) -> Vec<u8> {
        let begin = bof().len() + globals.len() + 13 + 4;
        let begin = u32::try_from(begin).expect("a short stream").to_le_bytes();
        let named = record(0x0085, &[&begin[..], &[0, 0, 1, 0, b'S']].concat());
        [bof(), globals.to_vec(), named, record(END, &[]), bof(), sheet.to_vec(), record(END, &[])].concat()
    }

    fn refused(globals: &[u8], sheet: &[u8]) -> String {
        judge(&mut stream(globals, sheet)).expect_err("it is refused")
    }

    fn number(row: u16, column: u16) -> Vec<u8> {
        let cell = [row.to_le_bytes(), column.to_le_bytes(), [0; 2]].concat();
        record(0x0203, &[cell, 1.5f64.to_le_bytes().to_vec()].concat())
    }

    fn cells(file: Vec<u8>) -> Vec<Data> {
        let mut xls = Xls::new(std::io::Cursor::new(file)).expect("it opens");
        let range = xls.worksheet_range_at(0).expect("a sheet").expect("it is read");
        range.used_cells().map(|(_, _, cell)| cell.clone()).collect()
    }

    #[test]
    fn a_workbook_means_the_same_in_its_new_container() {
        let ours = workbook(SMALL).expect("it is taken");
        assert_eq!(cells(ours.clone()), cells(SMALL.to_vec()));
        assert_eq!(workbook(&ours).expect("ours is taken"), ours);
        // Of any length.
        for length in [0, 1, 4095, 4096, 4097, 5 << 20] {
            let stream: Vec<u8> = (0..length).map(|n| n as u8).collect();
            let file = contained(&stream);
            let container = Container::of(&file).expect("a container");
            let entries = container.directory().expect("its entries");
            let read = container.stream(&entries[1], &entries).expect("its stream");
            assert_eq!((&read[..length], entries[1].name.as_str()), (stream.as_slice(), "Workbook"));
        }
    }

    #[test]
    fn row_19_chains_that_never_end_and_sizes_beyond_the_file_are_refused() {
        let whole = contained(&stream(&[], &number(0, 0)));
        let chains = whole.len() - SECTOR;
        let patched = |at: usize, bytes: &[u8]| {
            let mut file = whole.clone();
            file[at..at + bytes.len()].copy_from_slice(bytes);
            workbook(&file)
        };
        let damaged = Err("its container is damaged".to_owned());
        let size = SECTOR + 128 + 120;
        // The directory comes round to itself; the stream does; it claims more than there is, or 2^60 bytes.
        assert_eq!(patched(chains, &0u32.to_le_bytes()), damaged);
        assert!(workbook(&whole).is_ok());
        let round = [&8192u64.to_le_bytes()[..]].concat();
        let mut file = whole.clone();
        file[size..size + 8].copy_from_slice(&round);
        file[chains + 4..chains + 8].copy_from_slice(&1u32.to_le_bytes());
        // Two rounds are what it asks for, and more are never taken.
        assert!(workbook(&file).is_ok_and(|ours| ours.len() <= file.len() + 2 * SECTOR));
        file[size..size + 8].copy_from_slice(&(1u64 << 32).to_le_bytes());
        assert_eq!(workbook(&file), damaged);
        assert_eq!(patched(size, &u64::MAX.to_le_bytes()), damaged);
        assert_eq!(patched(size + 4, &1u32.to_le_bytes()), damaged);
        // The root's own stream and the table of small pieces claim four thousand million bytes that go round: neither
        // is believed, for the reader is given a container that has none.
        let mut file = whole.clone();
        file[0x40..0x44].fill(0xff);
        file[SECTOR + 120..SECTOR + 124].fill(0xff);
        file[SECTOR + 116..SECTOR + 120].copy_from_slice(&1u32.to_le_bytes());
        file[chains + 4..chains + 8].copy_from_slice(&1u32.to_le_bytes());
        let ours = workbook(&file).expect("it is taken");
        assert_eq!((cells(ours.clone()), ours.len()), (vec![Data::Float(1.5)], whole.len()));
        // Every sector of the file named as the table of chains, over and over.
        let mut file = whole.clone();
        for n in 0..109 {
            file[0x4c + n * 4..0x50 + n * 4].copy_from_slice(&2u32.to_le_bytes());
        }
        assert!(Container::of(&file).is_some_and(|container| container.chains.len() <= SECTOR));
    }

    #[test]
    fn what_is_only_claimed_takes_no_room() {
        // From row 5 to row 0, and four thousand million rows.
        for claim in [[5u32, 1], [0, u32::MAX]] {
            let claim: Vec<u8> = claim.iter().flat_map(|row| row.to_le_bytes()).chain([3, 0, 3, 0, 0, 0]).collect();
            let mut stream = stream(&[], &[record(0x0200, &claim), number(0, 0)].concat());
            assert_eq!(judge(&mut stream), Ok(()));
            assert_eq!(cells(contained(&stream)), [Data::Float(1.5)]);
        }
        // Room for 65,535 characters that do not come.
        let claims = record(0x0204, &[0, 0, 0, 0, 0, 0, 0xff, 0xff, 0]).repeat(600);
        assert!(refused(&[], &claims).contains("characters"));
        let claims = record(0x0207, &[0xff, 0xff, 0]).repeat(600);
        assert!(refused(&[], &claims).contains("characters"));
    }

    #[test]
    fn row_19_what_is_copied_many_times_is_counted_as_often() {
        let text = [&[1, 0, 0, 0, 1, 0, 0, 0][..], &[0x10, 0x27, 0], &[b'x'; 5_000]].concat();
        // It goes on in a second record, there with two bytes to a character.
        let table = [record(0x00fc, &text), record(0x003c, &[&[1][..], &[b'y'; 10_000]].concat())].concat();
        let named = |times: usize| record(0x00fd, &[0; 10]).repeat(times);
        let mut fine = stream(&table, &named(3));
        assert_eq!(judge(&mut fine), Ok(()));
        assert_eq!(cells(contained(&fine)).len(), 1);
        assert!(refused(&table, &named(3_400)).contains("more than 33554432 characters"));
        let empty = record(0x00fc, &[0; 8_008]);
        let many = [empty.clone(), record(0x003c, &[0; 8_190]).repeat(400)].concat();
        assert!(refused(&many, &[]).contains("texts"));
        assert!(refused(&[empty, record(0x003c, &[]).repeat(20_000)].concat(), &[]).contains("without end"));
        assert!(refused(&record(0x00fc, &[0, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 1]), &[]).contains("damaged"));
        // Names and numbers in formulas, each many times as long as the token that stands for it.
        let formula = |token: &[u8]| {
            let tokens = token.repeat(8_000 / token.len());
            let length = u16::try_from(tokens.len()).expect("short").to_le_bytes();
            record(0x0006, &[&[0; 20][..], &length, &tokens].concat())
        };
        let name = record(0x0018, &[&[0, 0, 0, 255, 0, 0][..], &[0; 8], &[0], &[b'n'; 255]].concat());
        assert!(refused(&name, &formula(&[0x23, 1, 0, 0, 0]).repeat(300)).contains("formulas"));
        assert!(refused(&[], &formula(&[0x1f, 1, 1, 1, 1, 1, 1, 1, 1]).repeat(1_200)).contains("formulas"));
        assert!(judge(&mut stream(&[], &formula(&[0x44, 0, 0, 0, 0]).repeat(300))).is_ok());
        // Cells at one place.
        assert!(refused(&[], &record(0x0201, &[0; 6]).repeat(3_000_001)).contains("cells"));
    }

    #[test]
    fn a_chart_in_a_sheet_hides_no_corner_of_it_and_sheets_share_nothing() {
        let chart = [bof(), record(0x0200, &[9; 14]), number(9, 9), record(END, &[])].concat();
        let corners = [number(60_000, 0), chart.clone(), number(0, 200)].concat();
        assert!(refused(&[], &corners).contains("span more than"));
        let mut fine = stream(&[], &[number(0, 0), chart, number(1, 1)].concat());
        assert_eq!(judge(&mut fine), Ok(()));
        assert_eq!(cells(contained(&fine)).len(), 2);
        // Another name for the same sheet.
        let one = stream(&[], &number(0, 0).repeat(100));
        let begin = u32::try_from(bof().len() + 13 + 13 + 4).expect("short").to_le_bytes();
        let named = record(0x0085, &[&begin[..], &[0, 0, 1, 0, b'S']].concat());
        let twice = [bof(), named.clone(), named, record(END, &[]), one[bof().len() + 17..].to_vec()].concat();
        assert_eq!(judge(&mut twice.clone()), Err("its list of sheets is damaged".to_owned()));
        let nowhere = record(0x0085, &[0xff, 0xff, 0xff, 0x7f, 0, 0, 1, 0, b'S']);
        assert_eq!(refused(&nowhere, &[]), "its list of sheets is damaged");
        assert_eq!(refused(&record(0x002f, &[1, 0]), &[]), "it is locked with a password");
    }
}
