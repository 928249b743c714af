//! The sandbox, from inside: what a command tries in order to get out, as who runs it and with what the kernel allows; and
//! what is left when it ends.

use std::{
    fs,
    io::{Read as _, Write as _},
    net::TcpListener,
    os::unix::{
        fs::PermissionsExt as _,
        net::{UnixListener, UnixStream},
        process::CommandExt as _,
    },
    path::{Path, PathBuf},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crawfish_sandbox::{Confinement, Level, Limits, Network, Report, Task};
use tempfile::TempDir;

use crate::support::{gateway::Gateway, wait::SOON};

const BINARY: &str = env!("CARGO_BIN_EXE_crawfish");

/// A folder as a gateway has it, and the orders for commands in its workspace.
struct House {
    top: TempDir,
    level: Level,
    user: Option<u32>,
    limits: Limits,
    network: Network,
}

/// How a command ended.
struct Ran {
    code: Option<i32>,
    out: String,
    report: Report,
}

impl House {
    fn new(level: Level, user: Option<u32>) -> Self {
        // Not below /tmp, where a command at L3 has another folder.
        let top = tempfile::Builder::new().prefix("crawfish-sandbox-").tempdir_in("/var/tmp").expect("a folder");
        for folder in ["workspace", "data", "tmp", "skills"] {
            fs::create_dir(top.path().join(folder)).expect("a folder");
        }
        for file in ["config.toml", ".env", "data/token", "data/secret.db", "skills/SKILL.md"] {
            fs::write(top.path().join(file), "CANARY-0123456789\n").expect("a file");
        }
        let chown = |path: &Path| {
            if let Some(user) = user {
                std::os::unix::fs::chown(path, Some(user), Some(user)).expect("root gives files away");
            }
        };
        let mut all = vec![top.path().to_owned()];
        while let Some(path) = all.pop() {
            if path.is_dir() {
                all.extend(fs::read_dir(&path).expect("ours").flatten().map(|entry| entry.path()));
            }
            chown(&path);
        }
        fs::set_permissions(top.path(), fs::Permissions::from_mode(0o755)).expect("its mode");
        let limits = Limits { processes: 64, ..Limits::default() };
        Self { top, level, user, limits, network: Network::Off }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.top.path().join(path)
    }

    fn orders(&self, script: &str) -> Confinement {
        let script = script.replace("$TOP", &self.top.path().display().to_string());
        let argv = ["bash", "-c", &script].map(str::to_owned).to_vec();
        Confinement {
            level: self.level,
            task: Task::Run("/bin/bash".into(), argv),
            cwd: self.at("workspace"),
            write: vec![self.at("workspace")],
            read: vec![self.at("skills")],
            tmp: self.at("tmp"),
            network: self.network.clone(),
            limits: self.limits,
        }
    }

    fn start(&self, script: &str) -> (std::process::Child, crawfish_sandbox::Control) {
        let (mut command, control) = crawfish_sandbox::helper_command(Path::new(BINARY)).expect("a socket");
        command.env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin").env("HOME", self.at("workspace"));
        command.env("TMPDIR", if self.level == Level::L3 { "/tmp".into() } else { self.at("tmp") });
        if let Network::Through(_) = self.network {
            for name in ["http_proxy", "https_proxy"] {
                command.env(name, format!("http://{}", crawfish_sandbox::RELAY));
            }
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(user) = self.user {
            command.uid(user).gid(user);
        }
        let child = command.spawn().expect("the binary can be started");
        drop(command);
        crawfish_sandbox::order(&control, &self.orders(script)).expect("it reads its orders");
        (child, control)
    }

    fn run(&self, script: &str) -> Ran {
        let (child, mut control) = self.start(script);
        let mut told = Vec::new();
        control.set_read_timeout(Some(Duration::from_secs(30))).expect("a time");
        control.read_to_end(&mut told).unwrap_or_else(|error| panic!("{script}: {error}"));
        let output = child.wait_with_output().expect("it ends");
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
        Ran { code: output.status.code(), out: text, report: crawfish_sandbox::report(&told) }
    }
}

fn root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Every level and user that can be had here; what cannot is said.
fn houses() -> Vec<House> {
    let users: &[Option<u32>] = if root() { &[None, Some(1_000)] } else { &[None] };
    if !root() {
        eprintln!("SKIPPED: not root, so nothing is tried as another user");
    }
    let all =
        [Level::L3, Level::L2].into_iter().flat_map(|level| users.iter().map(move |user| House::new(level, *user)));
    all.filter(|house| {
        let failed = house.run("true").report.failed;
        if let Some(why) = &failed {
            eprintln!("SKIPPED: {} as {:?}: {why}", house.level, house.user);
        }
        failed.is_none()
    })
    .collect()
}

/// Processes whose command line holds this.
fn processes(tag: &str) -> usize {
    let all = fs::read_dir("/proc").expect("it is there").flatten();
    let lines = all.filter_map(|process| fs::read(process.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).split('\0').any(|word| word == tag)).count()
}

async fn gone(tag: &str) {
    crate::support::wait::until(tag, SOON, async || (processes(tag) == 0).then_some(())).await;
}

/// What must fail. Each prints `OPEN` when it works.
const ESCAPES: &[&str] = &[
    // Files of the gateway (X5) and of the machine.
    "cat $TOP/config.toml && echo OPEN",
    "cat ../config.toml && echo OPEN",
    "cat $TOP/.env && echo OPEN",
    "cat $TOP/data/token && echo OPEN",
    "ls $TOP/data | grep -q secret && echo OPEN",
    "echo x >> $TOP/config.toml && echo OPEN",
    "echo x > $TOP/.env && echo OPEN",
    "echo x > $TOP/data/new && echo OPEN",
    "rm $TOP/config.toml && echo OPEN",
    "mv $TOP/config.toml moved && echo OPEN",
    "mv $TOP/data $TOP/workspace/data && cat data/token && echo OPEN",
    "ln $TOP/config.toml hard && cat hard && echo OPEN",
    "ln -s $TOP/config.toml soft; cat soft && echo OPEN",
    "ln -s $TOP/data link; ls link/ | grep -q secret && echo OPEN",
    "cp $TOP/data/token . && echo OPEN",
    "chmod 777 $TOP/data; stat -c %a $TOP/data 2>/dev/null | grep -q 777 && echo OPEN",
    // Its times can be set at L2: a kernel's filter sees no paths. Nothing of ours goes by them.
    "touch $TOP/config.toml; cat $TOP/config.toml && echo OPEN",
    "truncate -s 0 $TOP/config.toml && echo OPEN",
    "echo x >> $TOP/skills/SKILL.md && echo OPEN",
    "rm -f $TOP/skills/SKILL.md && echo OPEN",
    "cat /etc/shadow && echo OPEN",
    "cat /root/.bashrc && echo OPEN",
    "ls /root | grep . && echo OPEN",
    "ls /home/* && echo OPEN",
    "ls /var/lib && echo OPEN",
    "echo x > /etc/new && echo OPEN",
    "echo x > /usr/new && echo OPEN",
    "echo x > /new && echo OPEN",
    "mkdir /var/tmp/new && echo OPEN",
    "cat /proc/1/root/etc/shadow && echo OPEN",
    "cat /proc/self/root/etc/shadow && echo OPEN",
    "cat /proc/$PPID/root/etc/shadow && echo OPEN",
    "cat /proc/$PPID/environ | grep . && echo OPEN",
    "cat /proc/$PPID/mem && echo OPEN",
    "readlink /proc/$PPID/fd/* | grep . && echo OPEN",
    "for fd in /proc/$PPID/fd/*; do : < $fd && echo OPEN; done 2>/dev/null",
    "ls /sys/class/net | grep . && echo OPEN",
    "cat /dev/sda /dev/vda /dev/mem /dev/kmsg && echo OPEN",
    "mknod disk b 254 0 && cat disk && echo OPEN",
    "dd if=/dev/vda count=1 | grep -q . && echo OPEN",
    "echo core > /proc/sys/kernel/core_pattern && echo OPEN",
    "echo b > /proc/sysrq-trigger && echo OPEN",
    "echo 1000 > /proc/$PPID/oom_score_adj && echo OPEN",
    // Processes.
    "kill -0 $PPID && echo OPEN",
    "kill -9 $PPID && sleep 1 && kill -0 $PPID && echo OPEN",
    "python3 -c 'import os; os.kill(@GATEWAY@, 0)' && echo OPEN",
    "strace -p $PPID && echo OPEN",
    // Rights.
    "unshare -Ur true && echo OPEN",
    "unshare -m true && echo OPEN",
    "mount -t tmpfs none /tmp && echo OPEN",
    "mount --bind / . && echo OPEN",
    "umount /proc && echo OPEN",
    "chroot / true && echo OPEN",
    "nsenter -t 1 -m true && echo OPEN",
    "su -c true && echo OPEN",
    "sudo -n true && echo OPEN",
    "cp /bin/bash b && chmod u+s b && ./b -p -c 'cat /etc/shadow' && echo OPEN",
    "hostname changed && echo OPEN",
    "chown 12345 .; stat -c %u . | grep -q 12345 && echo OPEN",
    "setpriv --reuid 12345 true && echo OPEN",
    "python3 -c 'import ctypes; l = ctypes.CDLL(None); exit(0 if l.ptrace(16, 1, 0, 0) == 0 else 1)' && echo OPEN",
    "python3 -c 'import ctypes; l = ctypes.CDLL(None, use_errno=True); exit(0 if l.syscall(321, 0, 0, 0) >= 0 or ctypes.get_errno() != 1 else 1)' && echo OPEN",
    "python3 -c 'import ctypes; l = ctypes.CDLL(None, use_errno=True); exit(0 if l.syscall(425, 1, 0) >= 0 or ctypes.get_errno() != 1 else 1)' && echo OPEN",
    "python3 -c 'import ctypes; ctypes.CDLL(None).syscall(0x40000000 + 39); print(\"OP\" + \"EN\")'",
    "python3 -c 'import fcntl; fcntl.ioctl(0, 0x5412, b\"x\"); print(\"OP\" + \"EN\")'",
    // The network.
    "echo x > /dev/tcp/127.0.0.1/@PORT@ && echo OPEN",
    "echo x > /dev/udp/127.0.0.1/@PORT@ && echo OPEN",
    "curl -s -m 2 http://127.0.0.1:@PORT@/ && echo OPEN",
    "curl -s -m 2 http://169.254.169.254/ && echo OPEN",
    "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"$TOP/socket\"); print(\"OP\" + \"EN\")'",
    "python3 -c 'import socket; s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); print(\"OP\" + \"EN\")'",
    "python3 -c 'import socket; s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM); s.sendto(b\"x\", (\"::1\", 9)); print(\"OP\" + \"EN\")'",
];

#[test]
fn sixty_ways_out_are_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port().to_string();
    for house in houses() {
        let socket = UnixListener::bind(house.at("socket")).expect("a socket");
        fs::set_permissions(house.at("socket"), fs::Permissions::from_mode(0o777)).expect("its mode");
        for escape in ESCAPES {
            let script = escape.replace("@PORT@", &port).replace("@GATEWAY@", &std::process::id().to_string());
            let ran = house.run(&script);
            let who = format!("{} as {:?}: {escape}: {}", house.level, house.user, ran.out);
            assert_eq!(ran.report.failed, None, "{who}");
            assert!(!ran.out.contains("OPEN") && !ran.out.contains("CANARY"), "{who}");
        }
        drop(socket);
        for (file, whole) in [("config.toml", true), (".env", true), ("data/token", true), ("skills/SKILL.md", true)] {
            let text = fs::read_to_string(house.at(file)).expect("it is still there");
            assert_eq!(text == "CANARY-0123456789\n", whole, "{file}");
        }
        assert!(!house.at("data/new").exists());
    }
}

/// A gateway's proxy that answers everything with the first line of what it was asked, and counts who came.
struct Door(Arc<AtomicUsize>);

impl Door {
    /// Listens at this path, which the command's user may connect to.
    fn at(path: &Path) -> Self {
        let listener = UnixListener::bind(path).expect("a socket");
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("its mode");
        let came = Arc::<AtomicUsize>::default();
        let counted = Arc::clone(&came);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                counted.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || answer(stream));
            }
        });
        Self(came)
    }

    fn came(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

fn answer(mut stream: UnixStream) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if stream.read_exact(&mut byte).is_err() {
            return;
        }
        head.extend(byte);
    }
    let line = String::from_utf8_lossy(&head).lines().next().unwrap_or_default().to_owned();
    let body = format!("through {line}");
    let head = format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {}\r\n\r\n", body.len());
    let _ = stream.write_all((head + &body).as_bytes());
}

/// Ways past the proxy, besides those to everywhere. Each prints `OPEN` when it works.
const PAST: &[&str] = &[
    "curl -sS --noproxy '*' -m 2 http://127.0.0.1:@PORT@/ && echo OPEN",
    "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"$TOP/other\"); print(\"OP\" + \"EN\")'",
    "python3 -c 'import socket; s = socket.socket(socket.AF_UNIX); s.connect(\"$TOP/door\"); print(\"OP\" + \"EN\")'",
    "python3 -c 'import socket; s = socket.socket(); s.sendto(b\"x\", 0x20000000, (\"127.0.0.1\", @PORT@)); print(\"OP\" + \"EN\")'",
    "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262); s.connect((\"127.0.0.1\", @PORT@)); print(\"OP\" + \"EN\")'",
    "python3 -c 'import socket; s = socket.create_connection((\"127.0.0.1\", 3128)); s.close(); s = socket.socket(); s.settimeout(2); s.connect((\"127.0.0.1\", @PORT@)); print(\"OP\" + \"EN\")'",
    // A connection that was given, led elsewhere.
    "python3 -c 'import ctypes, socket, struct; s = socket.create_connection((\"127.0.0.1\", 3128)); l = ctypes.CDLL(None); l.connect(s.fileno(), struct.pack(\"=H14x\", 0), 16); s.connect((\"127.0.0.1\", @PORT@)); print(\"OP\" + \"EN\")'",
    // An address that changes under the eyes of who looks at it.
    "python3 - <<'END'\nimport ctypes, socket, struct, threading, time\nl = ctypes.CDLL(None)\ngood = struct.pack('!H4s8x', 3128, socket.inet_aton('127.0.0.1'))\nbad = struct.pack('!H4s8x', @PORT@, socket.inet_aton('127.0.0.1'))\naddress = ctypes.create_string_buffer(struct.pack('=H', 2) + good, 16)\non = True\ndef flip():\n    while on:\n        ctypes.memmove(ctypes.addressof(address) + 2, bad, 14)\n        ctypes.memmove(ctypes.addressof(address) + 2, good, 14)\nt = threading.Thread(target=flip)\nt.start()\nfor n in range(60):\n    s = socket.socket()\n    l.connect(s.fileno(), address, 16)\n    s.close()\non = False\nt.join()\nEND",
];

#[test]
fn what_is_opened_goes_through_the_proxy_and_nothing_past_it() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.set_nonblocking(true).expect("it does not wait");
    let port = listener.local_addr().expect("bound").port().to_string();
    for mut house in houses() {
        let (door, other) = (Door::at(&house.at("door")), Door::at(&house.at("other")));
        let socket = UnixListener::bind(house.at("socket")).expect("a socket");
        fs::set_permissions(house.at("socket"), fs::Permissions::from_mode(0o777)).expect("its mode");
        house.network = Network::Through(house.at("door"));
        for (script, told) in [
            ("curl -sS http://a.test/one", "through GET http://a.test/one HTTP/1.1"),
            ("for n in 1 2 3; do curl -sS http://a.test/$n & done; wait; echo; echo all", "all"),
            ("curl -sS -m 5 https://a.test/ -o /dev/null; echo code $?", "code "),
            ("wget -qO- http://a.test/two", "through GET http://a.test/two HTTP/1.1"),
            (
                "python3 -c 'import urllib.request as u; print(u.urlopen(\"http://a.test/three\").read().decode())'",
                "through GET http://a.test/three HTTP/1.1",
            ),
            ("git ls-remote http://a.test/r 2>&1; echo asked", "asked"),
            (
                "python3 -c 'import asyncio\nasync def f():\n    r, w = await asyncio.open_connection(\"127.0.0.1\", 3128)\n    w.write(b\"GET http://a.test/four HTTP/1.1\\r\\n\\r\\n\")\n    print((await r.read()).decode())\nasyncio.run(f())'",
                "through GET http://a.test/four HTTP/1.1",
            ),
            (
                "exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://a.test/five HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3",
                "through GET http://a.test/five HTTP/1.1",
            ),
        ] {
            let before = door.came();
            let ran = house.run(script);
            let who = format!("{} as {:?}: {script}: {}", house.level, house.user, ran.out);
            assert!(ran.out.contains(told) && ran.report.failed.is_none() && !ran.report.no_way, "{who}");
            assert!(door.came() > before, "{who}");
        }
        // `curl` asks the proxy, which is the gateway's to judge; a network of its own has a loopback that leads nowhere.
        let own = |escape: &&&str| house.level == Level::L3 && (escape.contains("/udp/") || escape.contains("_DGRAM"));
        let escapes = ESCAPES.iter().filter(|escape| !escape.starts_with("curl ") && !own(escape));
        for escape in escapes.chain(PAST) {
            let script = escape.replace("@PORT@", &port).replace("@GATEWAY@", &std::process::id().to_string());
            let ran = house.run(&script);
            let who = format!("{} as {:?}: {escape}: {}", house.level, house.user, ran.out);
            assert_eq!(ran.report.failed, None, "{who}");
            assert!(!ran.out.contains("OPEN") && !ran.out.contains("CANARY"), "{who}");
            assert!(listener.accept().is_err(), "somebody came: {who}");
        }
        assert_eq!(other.came(), 0, "{}: another command's proxy", house.level);
        // What it leaves running ends with it, and with that its connections.
        let tag = format!("5{}.25", std::process::id());
        let script = format!("exec 3<>/dev/tcp/127.0.0.1/3128; (setsid sleep {tag} &)\nsleep 0.1; echo left");
        assert!(house.run(&script).report.left_running);
        assert_eq!(processes(&tag), 0);
        if house.level == Level::L2 {
            for script in [
                "python3 -c 'import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); print(\"OP\" + \"EN\")'",
                "python3 -c 'import socket; s = socket.socket(); s.listen(); print(\"OP\" + \"EN\")'",
                "python3 -c 'import socket; s = socket.socket(socket.AF_INET6); print(\"OP\" + \"EN\")'",
                "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); print(\"OP\" + \"EN\")'",
                "python3 -c 'import socket; s = socket.socket(socket.AF_INET, socket.SOCK_RAW, 1); print(\"OP\" + \"EN\")'",
            ] {
                let ran = house.run(script);
                assert!(!ran.out.contains("OPEN"), "as {:?}: {script}: {}", house.user, ran.out);
            }
        }
        drop(socket);
    }
}

#[test]
fn what_a_command_needs_works() {
    for house in houses() {
        for (script, told) in [
            ("echo hi > f && cat f", "hi"),
            ("cat $TOP/skills/SKILL.md | tr C c", "cANARY"),
            ("diff <(echo a) <(echo a) && echo same", "same"),
            ("t=$(mktemp) && echo x > $t && wc -l < $t", "1"),
            ("python3 -c 'import json, subprocess; print(subprocess.run([\"echo\", \"sub\"]).returncode)'", "sub"),
            ("echo $(nproc) | grep -c .", "1"),
            ("ls -la | head -1; exit 7", "total"),
            ("tar cf a.tar f && tar xf a.tar && echo unpacked", "unpacked"),
            ("sed -n 1p /etc/passwd | cut -d: -f1", "root"),
        ] {
            let ran = house.run(script);
            let who = format!("{} as {:?}: {script}: {}", house.level, house.user, ran.out);
            assert!(ran.out.contains(told), "{who}");
            assert_eq!(ran.code, Some(if script.contains("exit 7") { 7 } else { 0 }), "{who}");
        }
        let seen =
            house.run("ls /proc/self/fd 2>/dev/null | tr '\\n' ' '; env | cut -d= -f1 | sort | tr '\\n' ' '").out;
        assert!(
            seen.ends_with("HOME OLDPWD PATH PWD SHLVL TMPDIR _ ") || seen.ends_with("HOME PATH PWD SHLVL TMPDIR _ "),
            "{seen}"
        );
        // 3 is the listing's own.
        assert!(house.level != Level::L3 || seen.starts_with("0 1 2 3 H"), "{seen}");
    }
}

#[tokio::test]
async fn bombs_writers_and_daemons_are_gone_at_the_limit() {
    for house in houses() {
        let who = format!("{} as {:?}", house.level, house.user);
        let ran = house.run("head -c 10G /dev/zero > big; stat -c %s big");
        assert!(ran.out.contains("268435456"), "{who}: {}", ran.out);
        fs::remove_file(house.at("workspace/big")).expect("it was written");
        // Neither in the group, nor with a mark, nor with a parent.
        let tag = format!("3{}.{}", std::process::id(), house.user.unwrap_or(0) + house.level as u32);
        let ran =
            house.run(&format!("setsid env -i setsid sleep {tag} & (env -i sleep {tag} &) ; sleep 0.1; echo ready"));
        assert!(ran.out.contains("ready") && ran.report.left_running, "{who}: {}", ran.out);
        gone(&tag).await;
        // A bomb that ends by itself where nothing stops it: this machine is not only ours.
        let ran = house.run(&format!("for i in $(seq 400); do sleep {tag} & done; wait"));
        assert!(ran.report.too_many || ran.out.contains("Resource temporarily unavailable"), "{who}: {}", ran.out);
        gone(&tag).await;
        let (mut child, control) = house.start(&format!("(env -i setsid sleep {tag} &); sleep {tag}"));
        crate::support::wait::until("they run", SOON, async || (processes(&tag) == 2).then_some(())).await;
        drop(control);
        tokio::task::spawn_blocking(move || child.wait()).await.expect("a thread").expect("it ends");
        gone(&tag).await;
    }
}

#[tokio::test]
async fn a_hundred_at_once_are_all_gone_when_they_are_ended() {
    let Some(house) = houses().into_iter().next() else { return };
    let tag = format!("4{}.5", std::process::id());
    let script = format!("setsid sleep {tag} & (env -i setsid sleep {tag} &); sleep {tag}");
    let all: Vec<_> = (0..100).map(|_| house.start(&script)).collect();
    crate::support::wait::until("all run", SOON * 2, async || (processes(&tag) >= 300).then_some(())).await;
    for (mut child, control) in all {
        drop(control);
        tokio::task::spawn_blocking(move || child.wait()).await.expect("a thread").expect("it ends");
    }
    gone(&tag).await;
}

/// What `doctor` finds, run as `how` has it run.
fn doctor(how: &[&str], user: Option<u32>) -> Option<String> {
    let gateway = Gateway::folder("[tools.exec]\nenabled = true\n");
    let mut words: Vec<&str> = how.to_vec();
    words.extend([BINARY, "doctor", "--offline"]);
    let mut command = std::process::Command::new(words[0]);
    command.args(&words[1..]).current_dir(gateway.dir()).env_clear().env("PATH", "/usr/local/bin:/usr/bin:/bin");
    if let Some(user) = user {
        for path in [gateway.dir().to_owned(), gateway.dir().join("config.toml")] {
            std::os::unix::fs::chown(path, Some(user), Some(user)).expect("root gives files away");
        }
        command.uid(user).gid(user);
    }
    match command.env("TMPDIR", gateway.dir()).env("LC_ALL", "C.UTF-8").output() {
        Ok(output) => {
            Some([output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
        }
        Err(error) => {
            eprintln!("SKIPPED: {words:?} as {user:?}: {error}");
            None
        }
    }
}

/// A user namespace in which no other can be made: what most containers are like.
const WITHOUT_NAMESPACES: &[&str] =
    &["unshare", "-Ur", "sh", "-c", "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" \"$@\""];

#[test]
fn the_trial_finds_the_level_as_root_as_a_user_and_without_namespaces() {
    let users: &[Option<u32>] = if root() { &[None, Some(1_000)] } else { &[None] };
    for user in users {
        let bare = doctor(&[], *user);
        let Some(bare) = bare else { continue };
        let level = bare.split("confined as level ").nth(1).map(|rest| &rest[..2]);
        match level {
            Some("L3") => {}
            other => eprintln!("SKIPPED: this machine gives {other:?} as {user:?}, so L3 is not tried: {bare}"),
        }
        assert!(level.is_some_and(|level| level >= "L2"), "{bare}");
        let Some(less) = doctor(WITHOUT_NAMESPACES, *user) else { continue };
        if less.contains("unshare failed") || less.contains("Permission denied") && !less.contains("sandbox") {
            eprintln!("SKIPPED: no user namespace to try it in as {user:?}: {less}");
            continue;
        }
        assert!(less.contains("are confined as level L2"), "as {user:?}: {less}");
    }
}
