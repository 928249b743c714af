//! The benchmark of the memory: how fast notes are found among 10,000, and how often the right one is among the first five,
//! by plain words, by our full text, and with an embedding model beside it.
//!
//! `cargo bench --bench memory -- [--notes N] [--only recall|speed] [--embed BASE_URL --model NAME]`. Bounded in count; it
//! writes to a temporary folder and talks to nobody but the endpoint it is given. `benches/embeddings.py` serves one.

use std::{collections::BTreeSet, fs, path::Path, process::ExitCode, sync::Arc};

use channel_api::Clock;
use crawfish::{
    clock::SystemClock,
    ledger::Ledger,
    memory::{
        Memory, Scope,
        embed::{Embedder, EmbeddingConfig},
        rank, words,
    },
    store::{
        LedgerStore,
        note::{NoteStore, PassageHit},
        sqlite::SqliteStore,
    },
};
use jiff::tz::TimeZone;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

/// The labelled set, written for this.
const LABELLED: &str = include_str!("../src/tests/corpus/memory/labelled.json");
/// Generated notes that the labelled ones stand among.
const OTHERS: usize = 400;
/// How many results count.
const FIRST: usize = 5;

#[derive(Deserialize)]
struct Labelled {
    notes: Vec<Note>,
    questions: Vec<Question>,
}

#[derive(Deserialize)]
struct Note {
    path: String,
    text: String,
}

#[derive(Deserialize)]
struct Question {
    lang: String,
    kind: String,
    question: String,
    note: String,
}

struct Asked {
    notes: usize,
    only: Option<String>,
    embed: Option<EmbeddingConfig>,
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Asked, String> {
    let mut asked = Asked { notes: 10_000, only: None, embed: None };
    let (mut url, mut model) = (None, "all-MiniLM-L6-v2".to_owned());
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
        match arg.as_str() {
            "--notes" => asked.notes = value()?.parse().map_err(|_| "--notes takes a number".to_owned())?,
            "--only" => asked.only = Some(value()?),
            "--embed" => url = Some(value()?),
            "--model" => model = value()?,
            // What `cargo bench` adds.
            "--bench" => {}
            _ => return Err(format!("unknown argument `{arg}`: --notes, --only, --embed, --model")),
        }
    }
    if let Some(url) = url {
        let section = serde_json::json!({ "base_url": url, "model": model });
        asked.embed = Some(serde_json::from_value(section).map_err(|error| error.to_string())?);
    }
    Ok(asked)
}

fn main() -> ExitCode {
    let run = || -> Result<(), String> {
        let asked = parse(std::env::args().skip(1))?;
        let runtime = tokio::runtime::Runtime::new().map_err(|error| error.to_string())?;
        let wants = |part: &str| asked.only.as_deref().is_none_or(|only| only == part);
        if wants("recall") {
            runtime.block_on(recall(asked.embed.as_ref()))?;
        }
        if wants("speed") {
            runtime.block_on(speed(asked.notes))?;
        }
        Ok(())
    };
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

const EN: [&str; 24] = [
    "meeting", "project", "Anna", "deploy", "budget", "travel", "review", "customer", "server", "garden", "weekend",
    "invoice", "training", "release", "lunch", "design", "Tom", "library", "kitchen", "report", "music", "school",
    "doctor", "plan",
];
const ZH: [&str; 24] = [
    "会议",
    "项目",
    "小王",
    "部署",
    "预算",
    "旅行",
    "评审",
    "客户",
    "服务器",
    "花园",
    "周末",
    "发票",
    "培训",
    "发布",
    "午饭",
    "设计",
    "老张",
    "图书馆",
    "厨房",
    "报告",
    "音乐",
    "学校",
    "医生",
    "计划",
];

/// The text of the n-th generated note: every other one Chinese, a few hundred characters, some words common, some rare.
fn generated(n: usize) -> (String, String) {
    let day = format!("{:04}-{:02}-{:02}", 2000 + n / 336, n / 28 % 12 + 1, n % 28 + 1);
    let pick = |list: &[&str; 24], k: usize| list[(n * 7 + k * 13 + n / 24) % 24].to_owned();
    let mut text = format!("# {day}\n\n");
    for k in 0..8 {
        if n.is_multiple_of(2) {
            text.push_str(&format!(
                "今天和{}讨论了{}的{}，决定编号{}由{}跟进，下周再看{}的进展。\n",
                pick(&ZH, k),
                pick(&ZH, k + 1),
                pick(&ZH, k + 2),
                n * 8 + k,
                pick(&ZH, k + 3),
                pick(&ZH, k + 4)
            ));
        } else {
            text.push_str(&format!(
                "Talked with {} about the {} and the {}; ticket {} goes to {}, we look at the {} again next week.\n",
                pick(&EN, k),
                pick(&EN, k + 1),
                pick(&EN, k + 2),
                n * 8 + k,
                pick(&EN, k + 3),
                pick(&EN, k + 4)
            ));
        }
    }
    (format!("memory/{}/{day}-{n}.md", n / 1000), text)
}

fn write(workspace: &Path, path: &str, text: &str) -> Result<(), String> {
    let path = workspace.join(path);
    let folder = path.parent().ok_or("a note has a folder")?;
    fs::create_dir_all(folder).and_then(|()| fs::write(&path, text)).map_err(|error| error.to_string())
}

struct House {
    dir: tempfile::TempDir,
    store: Arc<SqliteStore>,
    clock: Arc<dyn Clock>,
}

impl House {
    async fn new() -> Result<Self, String> {
        let dir = tempfile::tempdir().map_err(|error| error.to_string())?;
        let store = SqliteStore::open(&dir.path().join("bench.db")).await.map_err(|error| error.to_string())?;
        Ok(Self { dir, store: Arc::new(store), clock: Arc::new(SystemClock::new()) })
    }

    fn memory(&self, embedder: Option<Arc<Embedder>>) -> Arc<Memory> {
        let notes = Arc::clone(&self.store) as Arc<dyn NoteStore>;
        let workspace = self.dir.path().join("workspace");
        Arc::new(Memory::new("main", workspace, notes, Arc::clone(&self.clock), embedder, Arc::default()))
    }
}

/// The notes that hold the most of a question's words, split at blanks and punctuation, letters' case aside: what a search
/// without an index does.
fn plain(notes: &[(String, String)], question: &str) -> Vec<String> {
    let asked = question.to_lowercase();
    let words: BTreeSet<&str> = asked.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty()).collect();
    let mut found: Vec<(usize, &str)> = notes
        .iter()
        .map(|(path, text)| (words.iter().filter(|word| text.contains(*word)).count(), path.as_str()))
        .filter(|(count, _)| *count > 0)
        .collect();
    found.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| b.1.cmp(a.1)));
    found.into_iter().take(FIRST).map(|(_, path)| path.to_owned()).collect()
}

/// Reciprocal rank fusion, the other usual way to put two lists together.
fn by_ranks(words: &[PassageHit], near: &[PassageHit]) -> Vec<String> {
    let mut all: Vec<(f64, i64, &str)> = Vec::new();
    for list in [words, near] {
        for (n, hit) in list.iter().enumerate() {
            let worth = 1.0 / (60.0 + n as f64);
            match all.iter_mut().find(|(_, id, _)| *id == hit.id) {
                Some(found) => found.0 += worth,
                None => all.push((worth, hit.id, &hit.path)),
            }
        }
    }
    all.sort_by(|a, b| b.0.total_cmp(&a.0));
    all.into_iter().take(FIRST).map(|(.., path)| path.to_owned()).collect()
}

#[derive(Default)]
struct Tally {
    /// By language and kind: found, asked.
    counts: [[(usize, usize); 2]; 2],
}

impl Tally {
    fn take(&mut self, question: &Question, found: &[String]) {
        let (lang, kind) = (usize::from(question.lang == "zh"), usize::from(question.kind == "paraphrase"));
        let (right, asked) = &mut self.counts[lang][kind];
        *asked += 1;
        *right += usize::from(found.contains(&question.note));
    }

    fn row(&self, name: &str) -> String {
        let share = |right: usize, asked: usize| format!("{:.0} %", 100.0 * right as f64 / asked.max(1) as f64);
        let cells: Vec<String> = self.counts.iter().flatten().map(|(right, asked)| share(*right, *asked)).collect();
        let (right, asked) = self.counts.iter().flatten().fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        format!("| {name} | {} | {} |", cells.join(" | "), share(right, asked))
    }
}

async fn recall(embed: Option<&EmbeddingConfig>) -> Result<(), String> {
    let labelled: Labelled = serde_json::from_str(LABELLED).map_err(|error| error.to_string())?;
    let house = House::new().await?;
    let workspace = house.dir.path().join("workspace");
    let mut notes: Vec<(String, String)> = (0..OTHERS).map(generated).collect();
    notes.extend(labelled.notes.iter().map(|note| (note.path.clone(), note.text.clone())));
    for (path, text) in &notes {
        write(&workspace, path, text)?;
    }
    let lower: Vec<(String, String)> =
        notes.iter().map(|(path, text)| (path.clone(), format!("{path}\n{text}").to_lowercase())).collect();
    let embedder = match embed {
        Some(section) => {
            let (rows, zone) = (Arc::clone(&house.store) as Arc<dyn LedgerStore>, TimeZone::UTC);
            let clock = Arc::clone(&house.clock) as Arc<dyn Clock>;
            let ledger = Arc::new(Ledger::new(rows, clock, zone, Default::default(), Default::default()));
            Some(Arc::new(Embedder::new(section, ledger).map_err(|error| error.to_string())?))
        }
        None => None,
    };
    let memory = house.memory(None);
    let owner = Scope::owner("main");
    let (mut words_alone, mut full) = (Tally::default(), Tally::default());
    for question in &labelled.questions {
        words_alone.take(question, &plain(&lower, &question.question));
        let found = memory.search(&owner, &question.question, FIRST).await.map_err(|error| error.to_string())?;
        full.take(question, &found.passages.into_iter().map(|passage| passage.path).collect::<Vec<_>>());
    }
    println!(
        "recall@{FIRST}, {} questions, {} notes among {OTHERS} others\n",
        labelled.questions.len(),
        labelled.notes.len()
    );
    println!("| | en, same words | en, other words | zh, same words | zh, other words | all |");
    println!("|---|---|---|---|---|---|");
    println!("{}", words_alone.row("plain words"));
    println!("{}", full.row("full text"));
    let Some(embedder) = embedder else { return Ok(()) };
    let followed = house.memory(Some(Arc::clone(&embedder)));
    let stop = CancellationToken::new();
    let follow = followed.follow(stop.clone());
    let wait = async {
        loop {
            let count = house.store.count_notes("main").await.map_err(|error| error.to_string())?;
            if count.passages > 0 && count.vectors == count.passages {
                return Ok::<_, String>(());
            }
            house.clock.sleep(std::time::Duration::from_millis(200)).await;
        }
    };
    tokio::select! {
        () = follow => return Err("it ended".to_owned()),
        done = wait => done?,
    }
    stop.cancel();
    let weights = [0.3, 0.5, 0.7, 1.0];
    let (mut weighed, mut ranked) = (weights.map(|_| Tally::default()), Tally::default());
    for question in &labelled.questions {
        let vector = embedder
            .question(&question.question, "main", house.clock.as_ref())
            .await
            .map_err(|error| error.to_string())?;
        let asked = words::of_question(&question.question);
        let hits = house.store.find_words(&owner, &asked, 24).await.map_err(|error| error.to_string())?;
        let near =
            house.store.find_near(&owner, &embedder.key(), &vector, 24).await.map_err(|error| error.to_string())?;
        ranked.take(question, &by_ranks(&hits, &near));
        for (weight, tally) in weights.iter().zip(&mut weighed) {
            let found = rank::order(rank::fuse(hits.clone(), near.clone(), *weight));
            tally.take(question, &found.into_iter().take(FIRST).map(|it| it.hit.path).collect::<Vec<_>>());
        }
    }
    for (weight, tally) in weights.iter().zip(&weighed) {
        println!("{}", tally.row(&format!("vectors {weight}, words {:.1}", 1.0 - weight)));
    }
    println!("{}", ranked.row("reciprocal ranks"));
    Ok(())
}

async fn speed(count: usize) -> Result<(), String> {
    let house = House::new().await?;
    let workspace = house.dir.path().join("workspace");
    for n in 0..count {
        let (path, text) = generated(n);
        write(&workspace, &path, &text)?;
    }
    let (memory, owner, clock) = (house.memory(None), Scope::owner("main"), &house.clock);
    let before = resident();
    let began = clock.monotonic();
    memory.update().await.map_err(|error| error.to_string())?;
    let index = clock.monotonic() - began;
    let held = house.store.count_notes("main").await.map_err(|error| error.to_string())?;
    println!("\n{} notes, {} passages: indexed in {:.1} s", held.notes, held.passages, index.as_secs_f64());
    if let (Some(before), Some(after)) = (before, resident()) {
        println!("resident memory {:.1} MiB before, {:.1} MiB after", before, after);
    }
    // Files younger than two seconds are read again by every search.
    clock.sleep(std::time::Duration::from_secs(3)).await;
    memory.update().await.map_err(|error| error.to_string())?;
    println!("\n| | p50 ms | p95 ms | p99 ms |\n|---|---|---|---|");
    for (name, zh) in [("Chinese", true), ("English", false)] {
        let mut times = Vec::new();
        for k in 0..300usize {
            let n = (k * 331 + usize::from(!zh)) % count;
            let pick = |list: &[&'static str; 24], m: usize| list[(k * 5 + m * 11) % 24];
            let query = match (zh, k % 3) {
                (true, 0) => format!("决定编号{}是谁跟进的？", n * 8),
                (true, 1) => format!("上次和{}讨论{}是什么时候？", pick(&ZH, 1), pick(&ZH, 2)),
                (true, _) => format!("{}{}", pick(&ZH, 3), pick(&ZH, 4)),
                (false, 0) => format!("who has ticket {}?", n * 8),
                (false, 1) => format!("When did we talk with {} about the {}?", pick(&EN, 1), pick(&EN, 2)),
                (false, _) => format!("{} {}", pick(&EN, 3), pick(&EN, 4)),
            };
            let began = clock.monotonic();
            let found = memory.search(&owner, &query, 6).await.map_err(|error| error.to_string())?;
            times.push((clock.monotonic() - began).as_secs_f64() * 1000.0);
            if found.passages.is_empty() {
                return Err(format!("nothing was found for `{query}`"));
            }
        }
        times.sort_by(f64::total_cmp);
        let at = |part: f64| times[((times.len() as f64 * part) as usize).min(times.len() - 1)];
        println!("| {name} | {:.1} | {:.1} | {:.1} |", at(0.50), at(0.95), at(0.99));
    }
    let began = clock.monotonic();
    for _ in 0..20 {
        memory.update().await.map_err(|error| error.to_string())?;
    }
    println!("\nlooking at {count} files alone: {:.1} ms", (clock.monotonic() - began).as_secs_f64() * 1000.0 / 20.0);
    Ok(())
}

/// The resident memory of this process in MiB, where the system says it.
fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<f64>().ok()? / 1024.0)
}
