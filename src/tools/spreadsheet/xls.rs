//! The old binary format (xls), walked before it is read: a reader of it makes room for every sheet's whole rectangle, and
//! a few bytes can claim one of four thousand million cells. Pure: bytes in, a verdict out.
//!
//! Sources: \[MS-CFB\] 2.2–2.6 (the container), \[MS-XLS\] 2.1.4 (records), 2.4.21 BOF, 2.4.28 BoundSheet8, 2.4.90
//! Dimensions.

/// The largest file that is opened.
pub const LARGEST: u64 = 32 << 20;
/// The most cells of all sheets' rectangles together.
const MOST_CELLS: u64 = 3_000_000;
const END_OF_CHAIN: u32 = 0xffff_fffe;
const MOST_SHEETS: usize = 1_000;

/// Whether a reader may be given the file.
///
/// # Errors
/// In words that follow "the file cannot be used:".
pub fn judge(file: &[u8]) -> Result<(), String> {
    let container = Container::of(file).ok_or("its container is damaged")?;
    let entries = container.directory().ok_or("its container is damaged")?;
    if entries.iter().any(|entry| entry.name == "EncryptedPackage") {
        return Err("it is locked with a password".to_owned());
    }
    let mut found = false;
    for entry in &entries {
        if entry.name.eq_ignore_ascii_case("Workbook") || entry.name.eq_ignore_ascii_case("Book") {
            found = true;
            let stream = container.stream(entry, &entries).ok_or("its container is damaged")?;
            judge_workbook(&stream)?;
        }
    }
    if found { Ok(()) } else { Err("it holds no workbook".to_owned()) }
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
    size: usize,
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
        let most = file.len() / sector + 1;
        for _ in 0..most {
            if next >= END_OF_CHAIN {
                break;
            }
            let bytes = container.sector(next)?;
            tables.extend((0..sector / 4 - 1).filter_map(|n| u32_at(bytes, n * 4)));
            next = u32_at(bytes, sector - 4)?;
        }
        for table in tables.into_iter().filter(|table| *table < END_OF_CHAIN - 1).take(most) {
            let bytes = container.sector(table)?;
            container.chains.extend((0..sector / 4).filter_map(|n| u32_at(bytes, n * 4)));
        }
        let mini = container.chain(u32_at(file, 0x3c)?, usize::MAX)?;
        container.mini = mini.chunks_exact(4).filter_map(|bytes| u32_at(bytes, 0)).collect();
        Some(container)
    }

    fn sector(&self, n: u32) -> Option<&'a [u8]> {
        let from = (n as usize).checked_add(1)?.checked_mul(self.sector)?;
        // The last sector of a file may be short.
        self.file.get(from..self.file.len().min(from + self.sector)).filter(|bytes| !bytes.is_empty())
    }

    /// The bytes of a chain of sectors, at most `size`.
    fn chain(&self, first: u32, size: usize) -> Option<Vec<u8>> {
        let (mut bytes, mut next, mut steps) = (Vec::new(), first, 0);
        while next < END_OF_CHAIN - 1 && bytes.len() < size {
            bytes.extend_from_slice(self.sector(next)?);
            next = *self.chains.get(next as usize)?;
            steps += 1;
            if steps > self.chains.len() {
                return None;
            }
        }
        bytes.truncate(size);
        Some(bytes)
    }

    fn directory(&self) -> Option<Vec<Entry>> {
        let bytes = self.chain(self.first_of_directory, usize::MAX)?;
        let entries = bytes.chunks_exact(128).filter_map(|entry| {
            let length = usize::from(u16_at(entry, 64)?).min(64).saturating_sub(2) / 2;
            let units: Vec<u16> = (0..length).filter_map(|n| u16_at(entry, n * 2)).collect();
            Some(Entry {
                name: String::from_utf16_lossy(&units),
                root: entry[66] == 5,
                first: u32_at(entry, 116)?,
                size: u32_at(entry, 120)? as usize,
            })
        });
        Some(entries.collect())
    }

    fn stream(&self, entry: &Entry, entries: &[Entry]) -> Option<Vec<u8>> {
        if entry.size >= 4096 {
            return self.chain(entry.first, entry.size);
        }
        // Small streams lie in 64-byte pieces of the root's own stream.
        let root = entries.iter().find(|entry| entry.root)?;
        let pieces = self.chain(root.first, usize::MAX)?;
        let (mut bytes, mut next, mut steps) = (Vec::new(), entry.first, 0);
        while next < END_OF_CHAIN - 1 && bytes.len() < entry.size {
            let from = next as usize * 64;
            bytes.extend_from_slice(pieces.get(from..pieces.len().min(from + 64))?);
            next = *self.mini.get(next as usize)?;
            steps += 1;
            if steps > self.mini.len() {
                return None;
            }
        }
        bytes.truncate(entry.size);
        Some(bytes)
    }
}

/// Walks the records: the rectangles that are claimed and those that the cells span, sheet by sheet.
fn judge_workbook(stream: &[u8]) -> Result<(), String> {
    let (mut at, mut begins, mut sheets) = (0usize, Vec::new(), Vec::new());
    let (mut rows, mut columns, mut claimed, mut all) = (0u64, 0u64, 0u64, 0u64);
    while let (Some(kind), Some(length)) = (u16_at(stream, at), u16_at(stream, at + 2)) {
        let data = stream.get(at + 4..at + 4 + usize::from(length)).unwrap_or_default();
        let place =
            |row: usize, column: usize| Some((u64::from(u16_at(data, row)?) + 1, u64::from(u16_at(data, column)?) + 1));
        match kind {
            // BOF of the workbook or of a sheet.
            0x0809 => {
                all = all.saturating_add(claimed.max(rows * columns));
                (rows, columns, claimed) = (0, 0, 0);
                begins.push(at as u32);
            }
            // BoundSheet: where a sheet begins.
            0x0085 => sheets.extend(u32_at(data, 0)),
            // Dimensions.
            0x0200 => {
                let ends = match data.len() {
                    10 => u16_at(data, 2).map(u64::from).zip(u16_at(data, 6)),
                    _ => u32_at(data, 4).map(u64::from).zip(u16_at(data, 10)),
                };
                claimed = ends
                    .map_or(0, |(rows, columns)| rows.max(1).saturating_mul(u64::from(columns).max(1)))
                    .max(claimed);
            }
            // Number, Label, RString, BoolErr, Rk, LabelSst, Formula, MulRk, Blank.
            0x0203 | 0x0204 | 0x00d6 | 0x0205 | 0x027e | 0x00fd | 0x0006 | 0x00bd | 0x0201 => {
                let last = if kind == 0x00bd { data.len().saturating_sub(2) } else { 2 };
                for (row, column) in [place(0, 2), place(0, last)].into_iter().flatten() {
                    (rows, columns) = (rows.max(row), columns.max(column));
                }
                // A row of many numbers spans as many columns as it has numbers, whatever it says.
                if kind == 0x00bd {
                    columns = columns.max(place(0, 2).map_or(0, |(_, column)| column) + data.len() as u64 / 6);
                }
            }
            _ => {}
        }
        at += 4 + usize::from(length);
    }
    all = all.saturating_add(claimed.max(rows * columns));
    if all > MOST_CELLS {
        return Err(format!("its sheets span more than {MOST_CELLS} cells; save it as xlsx or csv"));
    }
    sheets.sort_unstable();
    let twice = sheets.windows(2).any(|pair| pair[0] == pair[1]);
    if twice || sheets.len() > MOST_SHEETS || sheets.iter().any(|sheet| !begins.contains(sheet)) {
        return Err("its list of sheets is damaged".to_owned());
    }
    Ok(())
}
