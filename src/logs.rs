//! Logs: to stderr for people, and to rotated files that `crawfish logs` reads.
//!
//! What a message says never moves a terminal: control characters in texts and fields are written out (security.md row
//! 46), and known secrets, in every spelling, are taken out of every line before it leaves the program (row 27). The file's writer is a
//! thread of its own: a slow disk drops lines (and counts them) rather than hold the gateway up.

use std::{
    borrow::Cow,
    fmt, fs,
    io::{self, BufRead as _, IsTerminal as _, Read as _, Seek as _, SeekFrom, Write},
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::{
    EnvFilter, Layer as _,
    field::MakeExt as _,
    fmt::{MakeWriter, format::Writer},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

use crate::{secrets::Redactor, terminal};

/// `[log]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogConfig {
    /// `error`, `warn`, `info`, `debug`, `trace`, or a filter like `info,crawfish::model=debug`. `RUST_LOG` wins.
    pub level: String,
    /// Write `logs/crawfish.log`.
    pub file: bool,
    /// A new file at this size, in MiB.
    pub max_mib: u64,
    /// Old files kept besides the current one.
    pub keep: u32,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { level: "info".to_owned(), file: true, max_mib: 16, keep: 6 }
    }
}

impl LogConfig {
    /// The filter; `None` when `level` is none.
    pub fn filter(&self) -> Option<EnvFilter> {
        let filter = EnvFilter::try_new(&self.level).ok()?;
        // This library logs whole messages of servers that are not ours.
        match "rmcp=off".parse() {
            Ok(quiet) if !self.level.contains("rmcp") => Some(filter.add_directive(quiet)),
            _ => Some(filter),
        }
    }
}

/// The current file.
pub const FILE: &str = "crawfish.log";

/// Keeps the file's writer alive; dropping it writes what is still queued.
#[must_use = "the log file is written only while this lives"]
#[derive(Debug, Default)]
pub struct LogGuard(#[expect(dead_code, reason = "lives for its drop")] Option<WorkerGuard>);

/// Starts logging, once a process. `dir`: where the files go; `redactor`: knows what no line may hold.
///
/// # Errors
/// When the file cannot be made: the gateway then logs to stderr alone, which was already set up.
pub fn start(
    config: &LogConfig,
    rust_log: Option<&str>,
    dir: Option<&Path>,
    redactor: &Redactor,
) -> io::Result<LogGuard> {
    let clean = redactor.clone();
    let filter = rust_log
        .filter(|text| !text.is_empty())
        .and_then(|text| EnvFilter::try_new(text).ok())
        .or_else(|| config.filter())
        .unwrap_or_else(|| EnvFilter::new("info"));
    let colours = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    let stderr = tracing_subscriber::fmt::layer()
        .with_writer(To { clean: clean.clone(), inner: io::stderr })
        .with_ansi(colours)
        .with_target(false)
        .map_fmt_fields(|_| fields())
        .with_timer(Local);
    let mut opened = Ok(None);
    let file = if let Some(dir) = dir.filter(|_| config.file) {
        match Rotating::open(dir, config.max_mib.max(1) << 20, config.keep) {
            Ok(rotating) => {
                // The queue is allocated whole; its default of 128,000 lines would be 4 MiB at rest.
                let queue = NonBlockingBuilder::default().buffered_lines_limit(8_192);
                let (writer, guard) = queue.thread_name("log").finish(rotating);
                opened = Ok(Some(guard));
                let layer = tracing_subscriber::fmt::layer()
                    .with_writer(To { clean, inner: writer })
                    .with_ansi(false)
                    .map_fmt_fields(|_| fields())
                    .with_timer(Local);
                Some(layer.boxed())
            }
            Err(error) => {
                opened = Err(error);
                None
            }
        }
    } else {
        None
    };
    // A second start in one process (tests) keeps the first.
    let _ = tracing_subscriber::registry().with(filter).with(stderr).with(file).try_init();
    opened.map(LogGuard)
}

/// Fields as `name=value`, values written so that a terminal does not obey them. Values of ours that need no quotes have
/// none.
fn fields() -> impl for<'w> tracing_subscriber::fmt::FormatFields<'w> + Send + Sync + 'static {
    tracing_subscriber::fmt::format::debug_fn(|writer: &mut Writer<'_>, field, value| {
        let text = format!("{value:?}");
        let text = terminal::escape_line(&text);
        if field.name() == "message" { write!(writer, "{text}") } else { write!(writer, "{field}={text}") }
    })
    .delimited(" ")
}

/// The local time, to the millisecond, with its offset.
struct Local;

impl tracing_subscriber::fmt::time::FormatTime for Local {
    fn format_time(&self, writer: &mut Writer<'_>) -> fmt::Result {
        write!(writer, "{}", jiff::ZonedDateTime::now().strftime("%Y-%m-%dT%H:%M:%S%.3f%:z"))
    }
}

/// A writer that cleans each line; the formatter hands over whole lines.
struct To<W> {
    clean: Redactor,
    inner: W,
}

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for To<W> {
    type Writer = Cleaned<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        Cleaned { clean: self.clean.clone(), inner: self.inner.make_writer() }
    }
}

struct Cleaned<W> {
    clean: Redactor,
    inner: W,
}

impl<W: Write> Write for Cleaned<W> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        match self.clean.redact(&text) {
            Cow::Borrowed(_) => self.inner.write_all(line)?,
            Cow::Owned(clean) => self.inner.write_all(clean.as_bytes())?,
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// `crawfish.log`, with `crawfish.log.1` … behind it: at its size, or when it was begun on another day, the file is
/// renamed and a new one begun.
struct Rotating {
    dir: PathBuf,
    max: u64,
    keep: u32,
    file: fs::File,
    size: u64,
    day: jiff::civil::Date,
}

impl Rotating {
    fn open(dir: &Path, max: u64, keep: u32) -> io::Result<Self> {
        crate::os::create_private_dir(dir)?;
        let path = dir.join(FILE);
        let today = jiff::ZonedDateTime::now().date();
        let begun = fs::metadata(&path)
            .and_then(|metadata| metadata.modified())
            .ok()
            .and_then(|at| jiff::Timestamp::try_from(at).ok())
            .map_or(today, |at| at.to_zoned_datetime(jiff::tz::TimeZone::system()).date());
        let file = append(&path)?;
        let size = file.metadata()?.len();
        Ok(Self { dir: dir.to_owned(), max, keep, file, size, day: begun })
    }

    fn rotate(&mut self, today: jiff::civil::Date) -> io::Result<()> {
        let name = |n: u32| self.dir.join(format!("{FILE}.{n}"));
        let _ = fs::remove_file(name(self.keep.max(1)));
        for n in (1..self.keep.max(1)).rev() {
            let _ = fs::rename(name(n), name(n + 1));
        }
        fs::rename(self.dir.join(FILE), name(1))?;
        self.file = append(&self.dir.join(FILE))?;
        self.size = 0;
        self.day = today;
        Ok(())
    }
}

fn append(path: &Path) -> io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(0o600);
    }
    options.open(path)
}

impl Write for Rotating {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let today = jiff::ZonedDateTime::now().date();
        if self.size > 0 && (self.day != today || self.size + line.len() as u64 > self.max) {
            // Where renaming fails (another program holds the file), the old file goes on.
            if self.rotate(today).is_err() {
                self.day = today;
            }
        }
        let written = self.file.write(line)?;
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Reads the log for `crawfish logs`: the old files first, then the current one, and goes on in the next file after a
/// rotation.
#[derive(Debug)]
pub struct Reader {
    path: PathBuf,
    file: Option<fs::File>,
    position: u64,
    identity: Option<u64>,
    rest: Vec<u8>,
}

/// The longest line that is read; the rest of a longer one is a line of its own.
const MAX_LINE: usize = 1 << 20;

impl Reader {
    /// The last `last` lines of all files, and a reader that stands behind them.
    ///
    /// # Errors
    /// Those of the file system, but for files that are not there.
    pub fn open(dir: &Path, last: usize) -> io::Result<(Vec<String>, Self)> {
        let mut lines = std::collections::VecDeque::new();
        let mut old: Vec<(u32, PathBuf)> = Vec::new();
        if let Ok(entries) = fs::read_dir(dir) {
            for entry in entries.flatten() {
                let name = entry.file_name();
                let number = name.to_str().and_then(|name| name.strip_prefix(FILE)?.strip_prefix('.')?.parse().ok());
                old.extend(number.map(|number| (number, entry.path())));
            }
        }
        old.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
        let mut keep = |line: String| {
            if lines.len() == last {
                lines.pop_front();
            }
            if last > 0 {
                lines.push_back(line);
            }
        };
        for (_, path) in old {
            let Ok(file) = fs::File::open(path) else { continue };
            let mut file = io::BufReader::new(file);
            let mut line = Vec::new();
            while file.by_ref().take(MAX_LINE as u64).read_until(b'\n', &mut line)? > 0 {
                keep(to_line(&line));
                line.clear();
            }
        }
        let mut reader = Self { path: dir.join(FILE), file: None, position: 0, identity: None, rest: Vec::new() };
        for line in reader.more()? {
            keep(line);
        }
        Ok((lines.into(), reader))
    }

    /// What was written since. Whole lines only.
    ///
    /// # Errors
    /// Those of the file system, but for files that are not there.
    pub fn more(&mut self) -> io::Result<Vec<String>> {
        let mut lines = Vec::new();
        // What was still written to the open file before it was renamed.
        self.drain(&mut lines)?;
        match fs::metadata(&self.path) {
            Ok(metadata) => {
                let (identity, size) = (identity(&metadata), metadata.len());
                if self.file.is_none() || identity != self.identity || size < self.position {
                    self.file = Some(fs::File::open(&self.path)?);
                    (self.position, self.identity) = (0, identity);
                    self.drain(&mut lines)?;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        Ok(lines)
    }

    fn drain(&mut self, lines: &mut Vec<String>) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        file.seek(SeekFrom::Start(self.position))?;
        let mut chunk = vec![0; 64 << 10];
        loop {
            let n = file.read(&mut chunk)?;
            if n == 0 {
                return Ok(());
            }
            self.position += n as u64;
            self.rest.extend_from_slice(&chunk[..n]);
            while let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                lines.push(to_line(&self.rest[..end]));
                self.rest.drain(..=end);
            }
            if self.rest.len() > MAX_LINE {
                lines.push(to_line(&self.rest));
                self.rest.clear();
            }
        }
    }
}

fn to_line(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).trim_end_matches(['\n', '\r']).to_owned()
}

/// What tells a file from its successor of the same name.
fn identity(metadata: &fs::Metadata) -> Option<u64> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        Some(metadata.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::secrets::Secret;

    #[derive(Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().expect("no one panicked").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_hold_no_escape_sequences_and_no_secrets() {
        let memory = Memory::default();
        let inner = memory.clone();
        let clean = Redactor::new([&Secret::new("very-secret-token"), &Secret::new("short")]);
        let layer = tracing_subscriber::fmt::layer()
            .with_writer(To { clean, inner: move || inner.clone() })
            .with_ansi(false)
            .map_fmt_fields(|_| fields());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            let span = tracing::info_span!("turn", session = "a\x1b]52;c;x\x07b");
            let _inside = span.enter();
            tracing::warn!(error = %"bad\u{9b}31m\nline", "calling \x1b[31m with very-secret-token");
        });
        let text = String::from_utf8(memory.0.lock().expect("no one panicked").clone()).expect("text");
        assert_eq!(text.lines().count(), 1, "{text}");
        assert!(!text.trim_end().chars().any(char::is_control), "{text:?}");
        assert!(text.contains("[redacted]") && !text.contains("very-secret-token"), "{text}");
        assert!(text.contains("calling"), "{text}");
    }

    #[test]
    fn the_file_rotates_and_a_reader_follows_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut log = Rotating::open(folder.path(), 40, 2).expect("opened");
        let write = |log: &mut Rotating, n: u32| log.write_all(format!("line {n:04}\n").as_bytes()).expect("written");
        (0..3).for_each(|n| write(&mut log, n));
        let (lines, mut reader) = Reader::open(folder.path(), 2).expect("read");
        assert_eq!(lines, ["line 0001", "line 0002"]);
        (3..6).for_each(|n| write(&mut log, n));
        assert_eq!(reader.more().expect("read"), ["line 0003", "line 0004", "line 0005"]);
        assert!(reader.more().expect("read").is_empty());
        (6..30).for_each(|n| write(&mut log, n));
        let names: Vec<_> = fs::read_dir(folder.path()).expect("listed").flatten().map(|e| e.file_name()).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        let (lines, _) = Reader::open(folder.path(), 100).expect("read");
        assert!(lines.len() >= 9 && lines.last().is_some_and(|line| line == "line 0029"), "{lines:?}");
        assert!(lines.windows(2).all(|pair| pair[0] < pair[1]), "{lines:?}");
    }

    #[test]
    fn a_file_of_yesterday_is_put_aside_at_the_first_line() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(FILE);
        fs::write(&path, "old\n").expect("written");
        let two_days = std::time::Duration::from_secs(2 * 86_400);
        let old = fs::metadata(&path).and_then(|m| m.modified()).expect("a time") - two_days;
        fs::File::options().write(true).open(&path).and_then(|f| f.set_modified(old)).expect("set");
        Rotating::open(folder.path(), 1 << 20, 6).expect("opened").write_all(b"new\n").expect("written");
        assert_eq!(fs::read_to_string(&path).expect("read"), "new\n");
        assert_eq!(fs::read_to_string(folder.path().join("crawfish.log.1")).expect("read"), "old\n");
    }

    #[test]
    fn no_files_are_no_lines() {
        let folder = tempfile::tempdir().expect("a folder");
        let (lines, mut reader) = Reader::open(&folder.path().join("none"), 10).expect("read");
        assert!(lines.is_empty());
        assert!(reader.more().expect("read").is_empty());
    }
}
