//! The benchmark of the whole gateway: one process that plays the model and the chat platform, drives a separately
//! started `crawfish`, and prints the table of numbers to reach as Markdown.
//!
//! `cargo bench --bench load -- [--quick] [--row NAME]… [--kills N] [--bin PATH] [--dir PATH]`. Bounded in count and
//! time, on loopback only; it ends the processes it started and no others. What each row means: `docs/benchmarks.md`.

use std::{fs, net::SocketAddr, path::PathBuf, process::ExitCode, sync::Arc, time::Duration};

use channel_api::Clock;
use crawfish::clock::SystemClock;
use serde_json::Value;
use tokio::{net::TcpListener, runtime::Runtime, task::JoinSet};

mod bare;
mod gateway;
mod model;
mod platform;
mod report;
mod wire;

use gateway::{Gateway, Setup};
use model::FakeModel;
use platform::{Platform, Sender, Trip};
use report::{HEAD, Reach, Row, ms, percentile};

/// The rows' names, in the order of the table.
const ROWS: [&str; 9] =
    ["cold-start", "memory", "latency", "throughput", "slow-model", "kill", "nth", "request", "claim"];

/// How much is measured.
struct Scale {
    starts: usize,
    large_starts: usize,
    sessions: usize,
    waiting: usize,
    singles: usize,
    load: Duration,
    bare: Duration,
    nth: usize,
    nth_messages: usize,
    claims: usize,
}

const FULL: Scale = Scale {
    starts: 7,
    large_starts: 3,
    sessions: 100_000,
    waiting: 10_000,
    singles: 300,
    load: Duration::from_secs(10),
    bare: Duration::from_secs(5),
    nth: 10_000,
    nth_messages: 100,
    claims: 2_000,
};

const QUICK: Scale = Scale {
    starts: 3,
    large_starts: 1,
    sessions: 10_000,
    waiting: 1_000,
    singles: 60,
    load: Duration::from_secs(2),
    bare: Duration::from_secs(1),
    nth: 1_000,
    nth_messages: 40,
    claims: 500,
};

/// What the command line asks for.
struct Asked {
    quick: bool,
    rows: Vec<String>,
    kills: usize,
    binary: PathBuf,
    dir: PathBuf,
}

impl Asked {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Self, String> {
        // Cargo builds the binary beside this benchmark and says where it is; it also names a folder for temporary files.
        let mut asked = Self {
            quick: false,
            rows: Vec::new(),
            kills: 0,
            binary: PathBuf::from(env!("CARGO_BIN_EXE_crawfish")),
            dir: PathBuf::from(env!("CARGO_TARGET_TMPDIR")),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => asked.quick = true,
                "--row" => {
                    let row = value()?;
                    if row != "binary" && !ROWS.contains(&row.as_str()) {
                        return Err(format!("there is no row `{row}`: {} binary", ROWS.join(" ")));
                    }
                    asked.rows.push(row);
                }
                "--kills" => asked.kills = value()?.parse().map_err(|_| "--kills takes a number".to_owned())?,
                "--bin" => asked.binary = PathBuf::from(value()?),
                "--dir" => asked.dir = PathBuf::from(value()?),
                // What `cargo bench` adds.
                "--bench" => {}
                _ => return Err(format!("unknown argument `{arg}`: --quick, --row, --kills, --bin, --dir")),
            }
        }
        if asked.kills == 0 {
            asked.kills = if asked.quick { 2 } else { 10 };
        }
        if !asked.binary.is_file() {
            return Err(format!("{} is not there: run `cargo build --release` first", asked.binary.display()));
        }
        Ok(asked)
    }

    fn wants(&self, row: &str) -> bool {
        self.rows.is_empty() || self.rows.iter().any(|asked| asked == row)
    }
}

fn main() -> ExitCode {
    let asked = match Asked::parse(std::env::args().skip(1)) {
        Ok(asked) => asked,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(64);
        }
    };
    match Bench::new(asked).and_then(|bench| bench.run()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Everything the rows share.
struct Bench {
    asked: Asked,
    scale: Scale,
    clock: SystemClock,
    /// One thread, so that the load never takes more than one core from the gateway.
    load: Runtime,
    /// As many threads as the gateway has, for the store alone.
    store: Runtime,
    /// Removed when the run ends.
    dir: tempfile::TempDir,
    platform: Arc<Platform>,
    model: Arc<FakeModel>,
    model_at: SocketAddr,
    callbacks_at: SocketAddr,
    /// The fakes' servers.
    _fakes: JoinSet<()>,
}

impl Bench {
    fn new(asked: Asked) -> Result<Self, String> {
        let said = |error: std::io::Error| error.to_string();
        let load = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(said)?;
        let store = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(said)?;
        fs::create_dir_all(&asked.dir).map_err(said)?;
        let dir = tempfile::Builder::new().prefix("crawfish-bench-").tempdir_in(&asked.dir).map_err(said)?;
        let (platform, model) = (Platform::new(), Arc::new(FakeModel::default()));
        let listen = || load.block_on(TcpListener::bind("127.0.0.1:0")).map_err(said);
        let (models, callbacks) = (listen()?, listen()?);
        let (model_at, callbacks_at) = (models.local_addr().map_err(said)?, callbacks.local_addr().map_err(said)?);
        let mut fakes = JoinSet::new();
        let fake = Arc::clone(&model);
        fakes.spawn_on(wire::serve(models, move |request| Arc::clone(&fake).answer(request)), load.handle());
        let fake = Arc::clone(&platform);
        fakes.spawn_on(wire::serve(callbacks, move |request| Arc::clone(&fake).receive(request)), load.handle());
        let scale = if asked.quick { QUICK } else { FULL };
        let clock = SystemClock::new();
        Ok(Self { asked, scale, clock, load, store, dir, platform, model, model_at, callbacks_at, _fakes: fakes })
    }

    /// Prints the table. True when every target was reached.
    fn run(&self) -> Result<bool, String> {
        let disk = bare::fdatasync_ms(self.dir.path(), 50).map_err(|error| error.to_string())?;
        println!("crawfish {} at {}", env!("CARGO_PKG_VERSION"), self.asked.binary.display());
        println!(
            "{} cores, load average {}, fdatasync of 4 KiB p50 {disk:.2} ms{}\n\n{HEAD}",
            std::thread::available_parallelism().map_or(0, usize::from),
            fs::read_to_string("/proc/loadavg")
                .ok()
                .and_then(|text| Some(text.split_once(' ')?.0.to_owned()))
                .unwrap_or_default(),
            if self.asked.quick { "; --quick: smaller counts" } else { "" },
        );
        let mut all = true;
        for name in ROWS.into_iter().chain(["binary"]).filter(|name| self.asked.wants(name)) {
            let rows = match name {
                "cold-start" => self.cold_start(),
                "memory" => self.memory(),
                "latency" => self.latency(),
                "throughput" => self.throughput(),
                "slow-model" => self.slow_model(),
                "kill" => self.kill(),
                "nth" => self.nth(),
                "request" => self.request(),
                "claim" => self.claim(),
                _ => self.binary(),
            };
            match rows {
                Ok(rows) => {
                    for row in rows {
                        println!("{}", row.markdown());
                        all &= row.reached();
                    }
                }
                Err(why) => {
                    println!("| {name} | | failed | | **no** | |");
                    eprintln!("{name}: {why}");
                    all = false;
                }
            }
        }
        eprintln!("\n{:.0} s in all", self.clock.monotonic().as_secs_f64());
        Ok(all)
    }

    fn folder(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn setup(&self, queue: &'static str) -> Setup {
        Setup { model: self.model_at, callbacks: self.callbacks_at, queue }
    }

    async fn start(&self, name: &str) -> Result<Gateway, String> {
        Gateway::start(&self.asked.binary, &self.folder(name), &self.setup("collect")).await
    }

    /// The database of the large start, made once: a folder with `data/crawfish.db`.
    fn large(&self) -> Result<PathBuf, String> {
        let path = self.folder("large").join("data/crawfish.db");
        if !path.exists() {
            self.store.block_on(async {
                let store = bare::open(&path).await?;
                bare::fill(&store, self.scale.sessions, self.scale.waiting).await?;
                crawfish::store::Upkeep::close(store.as_ref()).await;
                Ok::<(), String>(())
            })?;
        }
        Ok(path)
    }

    fn cold_start(&self) -> Result<Vec<Row>, String> {
        let mut empty = Vec::new();
        for n in 0..self.scale.starts {
            let gateway = self.load.block_on(self.start(&format!("start{n}")))?;
            empty.push(ms(gateway.ready_after));
            gateway.kill();
        }
        let again = self.load.block_on(self.start("start0"))?;
        let again = ms(again.ready_after);
        let large = self.large()?;
        let mut times = Vec::new();
        // So that what is measured is the start and not the work that follows.
        self.model.think(Duration::from_secs(30));
        for n in 0..self.scale.large_starts {
            let name = format!("large{n}");
            let data = self.folder(&name).join("data");
            fs::create_dir_all(&data).map_err(|error| error.to_string())?;
            fs::copy(&large, data.join("crawfish.db")).map_err(|error| error.to_string())?;
            let gateway = self.load.block_on(self.start(&name))?;
            times.push(ms(gateway.ready_after));
            gateway.kill();
        }
        self.model.think(Duration::ZERO);
        let count = |n: usize| if n >= 1000 { format!("{}k", n / 1000) } else { n.to_string() };
        let (sessions, waiting) = (count(self.scale.sessions), count(self.scale.waiting));
        Ok(vec![
            Row::new("cold start to ready, empty", "ms", Reach::AtMost(50.0), percentile(&mut empty, 0.5))
                .note(format!("median of {}; started again: {again:.0} ms", empty.len())),
            Row::new(
                format!("cold start, {sessions} sessions and {waiting} waiting messages"),
                "ms",
                Reach::AtMost(500.0),
                percentile(&mut times, 0.5),
            )
            .note(format!("median of {}", times.len())),
        ])
    }

    fn memory(&self) -> Result<Vec<Row>, String> {
        self.load.block_on(async {
            let gateway = self.start("memory").await?;
            // What starting took is given back and what runs in the background after ready has run.
            tokio::time::sleep(Duration::from_secs(2)).await;
            let idle = gateway.resident_mib();
            self.drive(&gateway, "memory", 20, Until::Count(10)).await?;
            let after = gateway.resident_mib();
            self.drive(&gateway, "memory", 20, Until::Count(90)).await?;
            let more = gateway.resident_mib().unwrap_or(0.0);
            Ok(vec![
                Row::new("resident memory, idle", "MiB", Reach::AtMost(25.0), idle),
                Row::new("resident memory after 200 messages", "MiB", Reach::AtMost(30.0), after)
                    .note(format!("after 2,000: {more:.1} MiB")),
            ])
        })
    }

    fn latency(&self) -> Result<Vec<Row>, String> {
        self.load.block_on(async {
            let gateway = self.start("latency").await?;
            self.drive(&gateway, "warm", 4, Until::Count(5)).await?;
            let before = gateway.cpu();
            let trips = self.drive(&gateway, "single", 1, Until::Count(self.scale.singles)).await?;
            let cpu = spent(before, gateway.cpu(), trips.len());
            let mut whole: Vec<f64> = trips.iter().map(|trip| ms(trip.answered - trip.sent)).collect();
            let mut acked: Vec<f64> = trips.iter().map(|trip| ms(trip.answered.saturating_sub(trip.acked))).collect();
            let mut accept: Vec<f64> = trips.iter().map(|trip| ms(trip.acked - trip.sent)).collect();
            let accept = percentile(&mut accept, 0.5).unwrap_or(0.0);
            let max = whole.iter().copied().fold(0.0, f64::max);
            Ok(vec![
                Row::new(
                    "latency added, acknowledged to callback, p50",
                    "ms",
                    Reach::AtMost(6.0),
                    percentile(&mut acked, 0.5),
                ),
                Row::new(
                    "latency added, acknowledged to callback, p95",
                    "ms",
                    Reach::AtMost(20.0),
                    percentile(&mut acked, 0.95),
                ),
                Row::new(
                    "the same from the post on (durable acceptance included), p50",
                    "ms",
                    Reach::AtMost(6.0),
                    percentile(&mut whole, 0.5),
                )
                .note(format!("acceptance p50 {accept:.2} ms")),
                Row::new("the same from the post on, p95", "ms", Reach::AtMost(20.0), percentile(&mut whole, 0.95))
                    .note(format!("longest {max:.0} ms of {}", trips.len())),
                Row::new("CPU per message, one at a time", "ms", Reach::AtMost(0.9), cpu),
            ])
        })
    }

    fn throughput(&self) -> Result<Vec<Row>, String> {
        let bare = |name: &str| {
            let path = self.folder(name).join("crawfish.db");
            self.store.block_on(bare::throughput(&path, 50, self.scale.bare))
        };
        // Before and after, because the machine is shared.
        let first = bare("bare1")?;
        let (rate, cpu, mut times) = self.load.block_on(async {
            let gateway = self.start("throughput").await?;
            self.drive(&gateway, "warm", 50, Until::Count(4)).await?;
            let (began, before) = (self.clock.monotonic(), gateway.cpu());
            let trips = self.drive(&gateway, "load", 50, Until::Passed(self.scale.load)).await?;
            let took = self.clock.monotonic() - began;
            let times: Vec<f64> = trips.iter().map(|trip| ms(trip.answered - trip.sent)).collect();
            Ok::<_, String>((trips.len() as f64 / took.as_secs_f64(), spent(before, gateway.cpu(), trips.len()), times))
        })?;
        let second = bare("bare2")?;
        let allowed = f64::midpoint(first, second);
        let (p50, p99) = (percentile(&mut times, 0.5).unwrap_or(0.0), percentile(&mut times, 0.99).unwrap_or(0.0));
        Ok(vec![
            Row::new("throughput, 50 sessions", "msg/s", Reach::AtLeast(1000.0), Some(rate))
                .note(format!("each with one message on its way; p50 {p50:.0} ms, p99 {p99:.0} ms")),
            Row::new(
                "the same, of what the bare store transactions allow",
                "%",
                Reach::AtLeast(60.0),
                Some(100.0 * rate / allowed),
            )
            .note(format!("bare: {first:.0} before, {second:.0} msg/s after")),
            Row::new("CPU per message, 50 sessions", "ms", Reach::AtMost(0.9), cpu),
        ])
    }

    fn slow_model(&self) -> Result<Vec<Row>, String> {
        self.model.think(Duration::from_millis(100));
        let rate = self.load.block_on(async {
            let gateway = self.start("slow").await?;
            self.drive(&gateway, "warm", 50, Until::Count(2)).await?;
            let began = self.clock.monotonic();
            let trips = self.drive(&gateway, "load", 50, Until::Passed(self.scale.load)).await?;
            Ok::<_, String>(trips.len() as f64 / (self.clock.monotonic() - began).as_secs_f64())
        });
        self.model.think(Duration::ZERO);
        Ok(vec![
            Row::new("throughput, 50 sessions, a model that takes 100 ms", "msg/s", Reach::AtLeast(400.0), Some(rate?))
                .note("500 would be no added time at all"),
        ])
    }

    /// Twenty messages, five conversations; the gateway is killed when some of them are answered, and started again.
    fn kill(&self) -> Result<Vec<Row>, String> {
        const MESSAGES: usize = 20;
        self.model.think(Duration::from_millis(20));
        let (mut lost, mut doubled, mut slowest) = (0_u32, 0_u32, Duration::ZERO);
        self.load.block_on(async {
            let setup = self.setup("followup");
            let folder = self.folder("kill");
            let mut marks: Vec<String> = Vec::new();
            for round in 0..self.asked.kills {
                let gateway = Gateway::start(&self.asked.binary, &folder, &setup).await?;
                let ids: Vec<String> = (0..MESSAGES).map(|n| format!("mk{round}-{n}")).collect();
                let mut posts = JoinSet::new();
                for (n, id) in ids.iter().cloned().enumerate() {
                    let mut sender = Sender::new(&self.platform, gateway.addr);
                    posts.spawn(async move {
                        let accepted = matches!(sender.post(&format!("kill{}", n % 5), &id).await, Ok(202));
                        (n, id, accepted)
                    });
                }
                // From before the first answer to just before the last.
                let after = (round * 7 + 3) % MESSAGES;
                let answered = |counts: &std::collections::HashMap<String, u32>| {
                    ids.iter().filter(|id| counts.contains_key(*id)).count() >= after
                };
                self.platform.wait_for(Duration::from_secs(20), answered).await;
                gateway.kill();
                let killed = self.clock.monotonic();
                let gateway = Gateway::start(&self.asked.binary, &folder, &setup).await?;
                // What was not acknowledged is posted again, as any platform would.
                while let Some(post) = posts.join_next().await {
                    let (n, id, mut accepted) = post.map_err(|error| error.to_string())?;
                    let mut sender = Sender::new(&self.platform, gateway.addr);
                    for _ in 0..5 {
                        if accepted {
                            break;
                        }
                        accepted = matches!(sender.post(&format!("kill{}", n % 5), &id).await, Ok(202));
                    }
                    if !accepted {
                        return Err(format!("{id} was not accepted after the restart:\n{}", gateway.last_words()));
                    }
                }
                let all =
                    |counts: &std::collections::HashMap<String, u32>| ids.iter().all(|id| counts.contains_key(id));
                self.platform.wait_for(Duration::from_secs(30), all).await;
                slowest = slowest.max(self.clock.monotonic() - killed);
                gateway.kill();
                marks.extend(ids);
            }
            // A last run finds whatever was left over, so that a second answer has its chance to come.
            let gateway = Gateway::start(&self.asked.binary, &folder, &setup).await?;
            tokio::time::sleep(Duration::from_secs(2)).await;
            gateway.kill();
            for mark in &marks {
                match self.platform.answers(mark) {
                    0 => lost += 1,
                    1 => {}
                    more => doubled += more - 1,
                }
            }
            Ok::<(), String>(())
        })?;
        self.model.think(Duration::ZERO);
        let kills = self.asked.kills;
        Ok(vec![
            Row::new("kill -9 amid 20 messages: lost", "", Reach::AtMost(0.0), Some(f64::from(lost)))
                .note(format!("{kills} kills (and as many of the idle gateway), {} messages", kills * MESSAGES)),
            Row::new("kill -9 amid 20 messages: doubled", "", Reach::AtMost(0.0), Some(f64::from(doubled))).note(format!(
                "callbacks repeated under their own id (the receiver knows them): {}; from kill to last answer at most {:.1} s",
                self.platform.repeated(),
                slowest.as_secs_f64()
            )),
        ])
    }

    fn nth(&self) -> Result<Vec<Row>, String> {
        const YOUNG: usize = 20;
        let path = self.folder("nth").join("data/crawfish.db");
        self.store.block_on(async {
            let store = bare::open(&path).await?;
            bare::talk(&store, "old", self.scale.nth).await?;
            bare::talk(&store, "grown", 100).await?;
            for n in 0..YOUNG {
                bare::talk(&store, &format!("young{n}"), 9).await?;
            }
            crawfish::store::Upkeep::close(store.as_ref()).await;
            Ok::<(), String>(())
        })?;
        self.load.block_on(async {
            let gateway = self.start("nth").await?;
            self.drive(&gateway, "warm", 4, Until::Count(5)).await?;
            let kinds = ["young", "grown", "old"];
            let mut times: [Vec<f64>; 3] = Default::default();
            let mut cpu = [Duration::ZERO; 3];
            // In turns, because the machine is shared.
            for round in 0..4 {
                for (kind, name) in kinds.iter().enumerate() {
                    let before = gateway.cpu().unwrap_or_default();
                    let mut sender = Sender::new(&self.platform, gateway.addr);
                    for n in 0..self.scale.nth_messages / 4 {
                        let conversation = if kind == 0 { format!("young{}", n % YOUNG) } else { (*name).to_owned() };
                        let trip = sender.trip(&conversation, &format!("mn{kind}-{round}-{n}")).await?;
                        times[kind].push(ms(trip.answered - trip.sent));
                    }
                    cpu[kind] += gateway.cpu().unwrap_or_default() - before;
                }
            }
            self.check(&gateway)?;
            let count = self.scale.nth_messages as f64;
            let medians = times.each_mut().map(|times| percentile(times, 0.5).unwrap_or(0.0));
            let cpu = cpu.map(|cpu| ms(cpu) / count);
            let (last, ratio) = (self.scale.nth, |values: [f64; 3], from: usize| values[2] / values[from]);
            Ok(vec![
                Row::new(
                    format!("latency of the Nth message, N = 10 to {last}"),
                    "x",
                    Reach::AtMost(1.2),
                    Some(ratio(medians, 0)),
                )
                .note(format!("p50 {:.2}, {:.2}, {:.2} ms at N = 10, 100, {last}", medians[0], medians[1], medians[2])),
                Row::new(
                    format!("CPU of the Nth message, N = 10 to {last}"),
                    "x",
                    Reach::AtMost(1.2),
                    Some(ratio(cpu, 0)),
                )
                .note(format!(
                    "{:.2}, {:.2}, {:.2} ms at N = 10, 100, {last}: from 100 on the history's window is full",
                    cpu[0], cpu[1], cpu[2]
                )),
                Row::new(
                    format!("CPU of the Nth message, N = 100 to {last}"),
                    "x",
                    Reach::AtMost(1.2),
                    Some(ratio(cpu, 1)),
                ),
            ])
        })
    }

    fn request(&self) -> Result<Vec<Row>, String> {
        let bodies = self.load.block_on(async {
            let gateway = self.start("request").await?;
            self.model.keep();
            // Sixty messages fill the window of the history.
            self.drive(&gateway, "request", 1, Until::Count(60)).await?;
            Ok::<_, String>(self.model.kept())
        })?;
        let first = bodies.first().ok_or("the model was not asked")?;
        let parsed: Vec<Value> = bodies.iter().filter_map(|body| serde_json::from_slice(body).ok()).collect();
        let size = |value: &Value| value.to_string().len();
        let (system, tools) = (size(&parsed[0]["messages"][0]), size(&parsed[0]["tools"]));
        let count = parsed[0]["tools"].as_array().map_or(0, Vec::len);
        // As a provider caches: the tools, then the messages in their order.
        let cached: Vec<String> = parsed
            .iter()
            .map(|body| {
                let messages = body["messages"].as_array().into_iter().flatten();
                messages.fold(body["tools"].to_string(), |text, message| text + &message.to_string())
            })
            .collect();
        let shares: Vec<f64> = cached
            .windows(2)
            .map(|pair| {
                let same = pair[0].bytes().zip(pair[1].bytes()).take_while(|(a, b)| a == b).count();
                100.0 * same as f64 / pair[1].len() as f64
            })
            .collect();
        let (young, old) = shares.split_at(shares.len().min(9));
        let least = young.iter().copied().reduce(f64::min);
        let old = old.get(old.len().saturating_sub(20)..).unwrap_or_default();
        let mean = old.iter().sum::<f64>() / old.len().max(1) as f64;
        Ok(vec![
            Row::new("request for the first message", "KB", Reach::AtMost(12.0), Some(first.len() as f64 / 1000.0))
                .note(format!("{} bytes: system prompt {system}, {count} tools {tools}", first.len())),
            Row::new("share of a request that is the same prefix as the turn before", "%", Reach::AtLeast(95.0), least)
                .note("the least of turns 2 to 10"),
            Row::new("the same when the history's window is full", "%", Reach::AtLeast(95.0), Some(mean))
                .note("the mean of turns 41 to 60"),
        ])
    }

    fn claim(&self) -> Result<Vec<Row>, String> {
        let path = self.folder("claim").join("crawfish.db");
        let large = self.large()?;
        fs::create_dir_all(self.folder("claim")).map_err(|error| error.to_string())?;
        fs::copy(large, &path).map_err(|error| error.to_string())?;
        let mut times = self.store.block_on(bare::claims(&path, self.scale.waiting, self.scale.claims))?;
        let p50 = percentile(&mut times, 0.5).unwrap_or(0.0);
        Ok(vec![
            Row::new(
                format!("claim with {} sessions, {} of them blocked, p99", self.scale.sessions, self.scale.waiting),
                "ms",
                Reach::AtMost(2.0),
                percentile(&mut times, 0.99),
            )
            .note(format!("p50 {p50:.2} ms of {}, through the writer's queue", times.len())),
        ])
    }

    fn binary(&self) -> Result<Vec<Row>, String> {
        let size = fs::metadata(&self.asked.binary).map_err(|error| error.to_string())?.len();
        Ok(vec![Row::new("installed size: one binary", "MB", Reach::AtMost(25.0), Some(size as f64 / 1e6))])
    }

    /// Each of `sessions` conversations has one message on its way at a time.
    async fn drive(&self, gateway: &Gateway, name: &str, sessions: usize, until: Until) -> Result<Vec<Trip>, String> {
        let mut talks = JoinSet::new();
        let began = self.platform.now();
        for session in 0..sessions {
            let (platform, mut sender) = (Arc::clone(&self.platform), Sender::new(&self.platform, gateway.addr));
            let conversation = format!("{name}{session}");
            let stamp = began.as_micros();
            talks.spawn(async move {
                let mut trips = Vec::new();
                while match until {
                    Until::Count(count) => trips.len() < count,
                    Until::Passed(time) => platform.now() - began < time,
                } {
                    let id = format!("m{stamp}-{session}-{}", trips.len());
                    trips.push(sender.trip(&conversation, &id).await?);
                }
                Ok::<_, String>(trips)
            });
        }
        let mut all = Vec::new();
        while let Some(trips) = talks.join_next().await {
            let trips = trips.map_err(|error| error.to_string())?;
            all.extend(trips.map_err(|why| format!("{why}\n{}", gateway.last_words()))?);
        }
        self.check(gateway)?;
        Ok(all)
    }

    /// An apology is no answer.
    fn check(&self, gateway: &Gateway) -> Result<(), String> {
        match self.platform.failure() {
            None => Ok(()),
            Some(text) => Err(format!("the gateway answered with an error: {text}\n{}", gateway.last_words())),
        }
    }
}

/// When a load ends.
#[derive(Clone, Copy)]
enum Until {
    /// After this many messages of each conversation.
    Count(usize),
    /// After this time.
    Passed(Duration),
}

/// CPU per message in milliseconds.
fn spent(before: Option<Duration>, after: Option<Duration>, messages: usize) -> Option<f64> {
    Some(ms(after?.saturating_sub(before?)) / messages.max(1) as f64)
}
