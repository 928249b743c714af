//! What confining a command costs: the time from before a process is made until it has ended, for `true` and
//! `bash -c true`, without the sandbox and at each level that this machine has, with and without a way to a proxy.
//! security.md §3.4 allows 15 ms at the middle.
//!
//! `cargo bench --bench exec`, or with `-- --times 500`. Ends with 1 when a target was missed.

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    unix::run()
}

#[cfg(not(unix))]
fn main() {
    println!("there is no sandbox on this system");
}

#[cfg(unix)]
#[allow(clippy::disallowed_methods, reason = "it measures time")]
mod unix {
    use std::{
        fs,
        io::{self, Read as _},
        os::unix::net::UnixListener,
        path::Path,
        process::{Command, ExitCode, Stdio},
        time::{Duration, Instant},
    };

    use crawfish_sandbox::{Confinement, Level, Limits, Network, Task};

    /// The most that confining a command may add, at the middle.
    const TARGET: Duration = Duration::from_millis(15);
    const BINARY: &str = env!("CARGO_BIN_EXE_crawfish");
    const COMMANDS: [(&str, &str, &[&str]); 2] =
        [("true", "/usr/bin/true", &["true"]), ("bash -c true", "/bin/bash", &["bash", "-c", "true"])];

    pub fn run() -> ExitCode {
        let mut arguments = std::env::args().skip_while(|argument| argument != "--times").skip(1);
        let times = arguments.next().and_then(|times| times.parse::<usize>().ok()).unwrap_or(200).max(1);
        match measure(times) {
            Ok(true) => ExitCode::SUCCESS,
            Ok(false) => ExitCode::FAILURE,
            Err(error) => {
                eprintln!("{error}");
                ExitCode::FAILURE
            }
        }
    }

    fn measure(times: usize) -> io::Result<bool> {
        // Not below /tmp, where a command at L3 has another folder.
        let top = tempfile::Builder::new().prefix("crawfish-bench-").tempdir_in("/var/tmp")?;
        for folder in ["workspace", "tmp"] {
            fs::create_dir(top.path().join(folder))?;
        }
        let door = top.path().join("door");
        let _listener = UnixListener::bind(&door)?;
        let mut good = true;
        println!("| command | confined | least | p50 | p90 | added at p50 |\n|---|---|---|---|---|---|");
        for (name, program, argv) in COMMANDS {
            let plain = middle(times, || {
                let status = Command::new(program).args(&argv[1..]).stdin(Stdio::null()).status()?;
                if status.success() { Ok(()) } else { Err(io::Error::other("it failed")) }
            })?;
            println!("| `{name}` | no | {} | {} | {} | |", ms(plain.0), ms(plain.1), ms(plain.2));
            for (level, network, said) in [
                (Level::L2, Network::Off, "L2"),
                (Level::L2, Network::Through(door.clone()), "L2, with hosts"),
                (Level::L3, Network::Off, "L3"),
                (Level::L3, Network::Through(door.clone()), "L3, with hosts"),
            ] {
                let orders = Confinement {
                    level,
                    task: Task::Run(program.into(), argv.iter().map(|&word| word.to_owned()).collect()),
                    cwd: top.path().join("workspace"),
                    write: vec![top.path().join("workspace")],
                    read: Vec::new(),
                    tmp: top.path().join("tmp"),
                    network,
                    limits: Limits::default(),
                };
                match middle(times, || once(&orders)) {
                    Ok((least, p50, p90)) => {
                        let added = p50.saturating_sub(plain.1);
                        good &= added <= TARGET;
                        println!("| `{name}` | {said} | {} | {} | {} | {} |", ms(least), ms(p50), ms(p90), ms(added));
                    }
                    Err(error) => println!("| `{name}` | {said} | cannot be had here: {error} | | | |"),
                }
            }
        }
        Ok(good)
    }

    /// Runs a confined command to its end.
    fn once(orders: &Confinement) -> io::Result<()> {
        let (mut command, mut control) = crawfish_sandbox::helper_command(Path::new(BINARY))?;
        command
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = command.spawn()?;
        drop(command);
        crawfish_sandbox::order(&control, orders)?;
        let mut told = Vec::new();
        control.read_to_end(&mut told)?;
        let status = child.wait()?;
        match crawfish_sandbox::report(&told).failed {
            Some(why) => Err(io::Error::other(why)),
            None if status.success() => Ok(()),
            None => Err(io::Error::other("it failed")),
        }
    }

    /// The least, the middle and the ninth tenth of so many runs, after a few that do not count.
    fn middle(times: usize, mut run: impl FnMut() -> io::Result<()>) -> io::Result<(Duration, Duration, Duration)> {
        for _ in 0..5 {
            run()?;
        }
        let mut took = Vec::with_capacity(times);
        for _ in 0..times {
            let began = Instant::now();
            run()?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        Ok((took[0], took[took.len() / 2], took[took.len() * 9 / 10]))
    }

    fn ms(time: Duration) -> String {
        format!("{:.2} ms", time.as_secs_f64() * 1_000.0)
    }
}
