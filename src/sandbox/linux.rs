//! The helper on Linux: one process that stays outside and looks after the tree, at L3 a second one that is the first of the
//! new process namespace, and the one that is confined and becomes the command.

use std::{
    collections::HashMap,
    ffi::CString,
    fs, io,
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
        unix::{fs::MetadataExt as _, process::CommandExt as _},
    },
    path::Path,
    process::Command,
    time::Duration,
};

use crate::{Confinement, Level, Limits, NOT_CONFINED, Network, Task};

mod calls;
mod mounts;
mod probe;
mod relay;
mod rules;
mod syscalls;

/// How long what a command left running may still write after the command's own end.
const LATE: Duration = Duration::from_millis(300);
/// How often the processes of a root's command are counted, whom the kernel's own limit does not bind.
const COUNT_EVERY: Duration = Duration::from_millis(20);
/// Between two looks at what is being ended, and how many ended processes are collected between two looks.
const TICK: Duration = Duration::from_millis(5);
const AT_ONCE: usize = 4_096;
/// Commands give way to the gateway: setpriority(2).
const NICE: i32 = 5;
/// The largest orders: what the kernel lets arguments be, and the paths.
const LARGEST: u32 = 8 << 20;

/// What failed, and how.
type Step<T> = Result<T, String>;

/// Names a step in the error of a system call.
fn step<T>(name: &str, result: io::Result<T>) -> Step<T> {
    result.map_err(|error| format!("{name}: {error}"))
}

/// The result of a system call that gives -1 for an error.
fn checked(result: impl Into<i64>) -> io::Result<i64> {
    match result.into() {
        -1 => Err(io::Error::last_os_error()),
        value => Ok(value),
    }
}

/// The text of one variable, `NAME=value`, where the kernel put it.
pub struct Text {
    begin: *mut libc::c_char,
    length: usize,
}

impl Text {
    /// Writes zeros over it. The variable must have been taken out of the environment.
    pub fn overwrite(self) {
        for at in 0..self.length {
            // SAFETY: `begin` is a text of this process's environment of that length (see `texts_of`), which the kernel
            // puts into writable memory and nobody has freed; no pointer of the environment leads to it any more. Volatile,
            // because a write that nothing reads would be left out.
            unsafe { self.begin.add(at).write_volatile(0) };
        }
    }
}

/// The texts of these variables.
pub fn texts_of(chosen: impl Fn(&std::ffi::OsStr) -> bool) -> Vec<Text> {
    use std::os::unix::ffi::OsStrExt as _;
    unsafe extern "C" {
        static environ: *const *mut libc::c_char;
    }
    let mut texts = Vec::new();
    // SAFETY: the C library's list of pointers to texts that end with a zero, itself ended by a null pointer; the caller is
    // the only thread, so nothing changes it now.
    unsafe {
        let mut entry = environ;
        while !entry.is_null() && !(*entry).is_null() {
            let bytes = std::ffi::CStr::from_ptr(*entry).to_bytes();
            let name = bytes.split(|byte| *byte == b'=').next().unwrap_or_default();
            if chosen(std::ffi::OsStr::from_bytes(name)) {
                texts.push(Text { begin: *entry, length: bytes.len() });
            }
            entry = entry.add(1);
        }
    }
    texts
}

/// See [`crate::keep_private`].
pub fn keep_private() {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: plain numbers, and a struct that lives through the call.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
    }
}

/// Runs the helper; its exit code.
pub fn helper(control: RawFd) -> i32 {
    // SAFETY: the gateway passed this descriptor on for us; nobody else in this process has it.
    let control = unsafe { OwnedFd::from_raw_fd(control) };
    match run(&control) {
        Ok(code) => code,
        Err(why) => {
            tell(&control, format!("E{why}").as_bytes());
            NOT_CONFINED
        }
    }
}

/// Says something to the gateway. It may be gone.
fn tell(control: &OwnedFd, text: &[u8]) {
    // SAFETY: the buffer lives through the call; MSG_NOSIGNAL keeps a closed socket from ending us.
    unsafe { libc::send(control.as_raw_fd(), text.as_ptr().cast(), text.len(), libc::MSG_NOSIGNAL) };
}

fn orders(control: &OwnedFd) -> Step<Confinement> {
    use std::io::Read as _;
    let mut socket = step("orders", control.try_clone().map(std::os::unix::net::UnixStream::from))?;
    let mut length = [0; 4];
    step("orders", socket.read_exact(&mut length))?;
    let length = u32::from_le_bytes(length);
    if length > LARGEST {
        return Err("orders: argument list too long".to_owned());
    }
    let mut orders = vec![0; length as usize];
    step("orders", socket.read_exact(&mut orders))?;
    serde_json::from_slice(&orders).map_err(|error| format!("orders: {error}"))
}

fn run(control: &OwnedFd) -> Step<i32> {
    let orders = orders(control)?;
    // SAFETY: numbers only; no descriptor above 2 but the socket is used by this process.
    unsafe {
        libc::setsid();
        let ours = control.as_raw_fd().unsigned_abs();
        if ours > 3 {
            libc::syscall(libc::SYS_close_range, 3, ours - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, ours + 1, u32::MAX, 0);
        libc::fcntl(control.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC);
        libc::umask(0o077);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    become_owner(&orders)?;
    let status = match orders.level {
        Level::L0 => return Err("there is no level to confine it to".to_owned()),
        Level::L3 => in_namespaces(&orders, control)?,
        Level::L1 if matches!(orders.network, Network::Through(_)) => {
            return Err("a way through the proxy needs level 2".to_owned());
        }
        Level::L1 | Level::L2 => plainly(&orders, control)?,
    };
    Ok(pass_on(status))
}

/// Root's command runs as the owner of its workspace, so that the files stay usable to both. Where that is root itself, it
/// stays root without any capability, and at L3 in a user namespace where it is nobody special.
fn become_owner(orders: &Confinement) -> Step<()> {
    // SAFETY: no memory is passed but an empty list.
    unsafe {
        if libc::geteuid() != 0 {
            return Ok(());
        }
        let workspace = orders.write.first().ok_or("there is no workspace")?;
        let owner = step("the workspace", fs::metadata(workspace))?;
        match checked(libc::setgroups(0, std::ptr::null())) {
            // A root of a user namespace (most containers without root) may not: it is nobody special outside, and keeps
            // its groups as any user does.
            Err(error) if error.raw_os_error() == Some(libc::EPERM) && owner.uid() == 0 => return Ok(()),
            dropped => step("groups", dropped)?,
        };
        if owner.uid() == 0 {
            return Ok(());
        }
        step("group", checked(libc::setresgid(owner.gid(), owner.gid(), owner.gid())))?;
        step("user", checked(libc::setresuid(owner.uid(), owner.uid(), owner.uid())))?;
        // The gateway finds its processes by their environment, which a change of user hides.
        libc::prctl(libc::PR_SET_DUMPABLE, 1, 0, 0, 0);
    }
    Ok(())
}

/// Ends as the command did: with its code, or by its signal.
fn pass_on(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) {
        let signal = libc::WTERMSIG(status);
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: numbers, and a struct that lives through the call.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal);
        }
    }
    libc::WEXITSTATUS(status)
}

/// Forks; `None` in the child.
fn fork() -> Step<Option<libc::pid_t>> {
    // SAFETY: this process has one thread, so the child may do whatever it likes.
    match unsafe { libc::fork() } {
        -1 => Err(format!("fork: {}", io::Error::last_os_error())),
        0 => Ok(None),
        pid => Ok(Some(pid)),
    }
}

/// Ends a child that could not confine itself, or has done what it was to do.
fn end_child(control: &OwnedFd, result: Step<i32>) -> ! {
    let code = result.unwrap_or_else(|why| {
        tell(control, format!("E{why}").as_bytes());
        NOT_CONFINED
    });
    // SAFETY: ends this process without running what belongs to its parent.
    unsafe { libc::_exit(code) }
}

/// The command's pipes end with the command, not with us.
fn let_go_of_pipes() {
    // SAFETY: a constant string, numbers.
    unsafe {
        let null = libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
        for fd in 0..3 {
            if null < 0 {
                libc::close(fd);
            } else {
                libc::dup2(null, fd);
            }
        }
    }
}

/// L3: a first process of the namespaces, which the kernel takes all others with when it ends.
fn in_namespaces(orders: &Confinement, control: &OwnedFd) -> Step<i32> {
    let mut flags =
        libc::CLONE_NEWUSER | libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    if orders.network != Network::Host {
        flags |= libc::CLONE_NEWNET;
    }
    // SAFETY: numbers only.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: numbers only.
    step("namespaces", checked(unsafe { libc::unshare(flags) }))?;
    step("groups", fs::write("/proc/self/setgroups", "deny"))?;
    // A root that is none is called 1000: programs that think they are root try what is not allowed (tar changes owners).
    let inner = |id: u32| if id == 0 { 1_000 } else { id };
    step("user map", fs::write("/proc/self/uid_map", format!("{} {uid} 1", inner(uid))))?;
    step("group map", fs::write("/proc/self/gid_map", format!("{} {gid} 1", inner(gid))))?;
    let mut ends = [0; 2];
    // SAFETY: the array lives through the call, and the two descriptors are ours.
    let (read, write) = unsafe {
        step("pipe", checked(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC)))?;
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    let Some(first) = fork()? else {
        drop(read);
        // SAFETY: numbers only. If the outer helper ends, so does all of this.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) };
        let result = first_process(orders, control, uid == 0).map(|status| {
            let bytes = status.to_ne_bytes();
            // SAFETY: the buffer lives through the call.
            unsafe { libc::write(write.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) };
            0
        });
        end_child(control, result);
    };
    drop(write);
    let_go_of_pipes();
    let mut status = None;
    while status.is_none() {
        let ready = wait_for(&[control.as_raw_fd(), read.as_raw_fd()], None);
        if ready[1] {
            let mut bytes = [0; 4];
            // SAFETY: the buffer lives through the call.
            let got = unsafe { libc::read(read.as_raw_fd(), bytes.as_mut_ptr().cast(), 4) };
            status = Some(if got == 4 { i32::from_ne_bytes(bytes) } else { NOT_CONFINED << 8 });
        } else if ready[0] {
            // SAFETY: our own child, not yet collected.
            unsafe { libc::kill(first, libc::SIGKILL) };
            status = Some(libc::SIGKILL);
        }
    }
    // SAFETY: our own child. When it is gone, so is everything in its namespace.
    unsafe { libc::waitpid(first, std::ptr::null_mut(), 0) };
    Ok(status.unwrap_or(NOT_CONFINED << 8))
}

/// The first process of the namespaces: makes the place, starts the command in it and outlives it shortly.
fn first_process(orders: &Confinement, control: &OwnedFd, root: bool) -> Step<i32> {
    let relay = relay::prepare(&orders.network)?;
    let place = mounts::Place::look(orders)?;
    place.enter()?;
    // SAFETY: a constant string and its length.
    unsafe { libc::sethostname(c"sandbox".as_ptr(), 7) };
    let Some(command) = fork()? else { end_child(control, become_command(orders, control, None)) };
    let_go_of_pipes();
    if let Some(relay) = relay {
        relay.run()?;
    }
    drop_capabilities()?;
    // The command has the same user and sees us: it gets not even the numbers of our open files.
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    let count = root.then_some(count_all as fn() -> u64);
    Ok(look_after(command, None, control, count.map(|count| (count, orders.limits.processes)), &|| {
        // SAFETY: from the first process of a namespace, -1 is all others in it.
        unsafe { libc::kill(-1, libc::SIGKILL) };
    }))
}

/// The processes of this namespace.
fn count_all() -> u64 {
    let names = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = names.filter(|entry| entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit));
    ours.count() as u64
}

/// L2 and L1: the processes stay among the others; orphans come to us, and all end with the command.
fn plainly(orders: &Confinement, control: &OwnedFd) -> Step<i32> {
    // SAFETY: numbers only.
    unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) };
    // SAFETY: no arguments.
    let (gateway, root) = unsafe { (libc::getppid(), libc::geteuid() == 0) };
    rules::scope_signals();
    // SAFETY: signal 0 only asks.
    let scoped = unsafe { libc::kill(gateway, 0) } == -1;
    let mut orders = orders.clone();
    if !root {
        // The kernel counts all of a user's processes.
        orders.limits.processes += of_user();
    }
    let (taker, passing) = calls::prepare(&orders)?.unzip();
    let Some(command) = fork()? else { end_child(control, become_command(&orders, control, passing)) };
    let_go_of_pipes();
    drop(passing);
    if let Some(taker) = taker {
        taker.run()?;
    }
    let count = root.then_some(count_descendants as fn() -> u64);
    let kill = move || {
        // SAFETY: numbers only. Within a scope of signals, -1 is what is in it: at once, so that nothing forks away. The
        // gateway is outside, which was seen above.
        if scoped {
            unsafe { libc::kill(-1, libc::SIGKILL) };
            return;
        }
        for pid in descendants() {
            // SAFETY: a descendant of ours; it cannot be another's, for we alone collect it.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    };
    Ok(look_after(command, Some(control), control, count.map(|count| (count, orders.limits.processes)), &kill))
}

/// The parent and the number of threads of each process.
fn table() -> Vec<(libc::pid_t, libc::pid_t, u64)> {
    let mut all = Vec::new();
    for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        // pid (name) state ppid …; the 20th is the number of threads. proc(5).
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let number = |at: usize| fields.get(at).and_then(|field| field.parse::<i64>().ok()).unwrap_or_default();
        all.push((pid, libc::pid_t::try_from(number(1)).unwrap_or_default(), number(17).unsigned_abs()));
    }
    all
}

fn descendants() -> Vec<libc::pid_t> {
    let mut children: HashMap<libc::pid_t, Vec<libc::pid_t>> = HashMap::new();
    for (pid, parent, _) in table() {
        children.entry(parent).or_default().push(pid);
    }
    // SAFETY: no arguments.
    let mut found = vec![unsafe { libc::getpid() }];
    let mut at = 0;
    while at < found.len() {
        found.extend(children.remove(&found[at]).unwrap_or_default());
        at += 1;
    }
    found.split_off(1)
}

fn count_descendants() -> u64 {
    descendants().len() as u64
}

/// Threads of this user, in all.
fn of_user() -> u64 {
    // SAFETY: no arguments.
    let uid = unsafe { libc::geteuid() };
    let ours = |pid: libc::pid_t| fs::metadata(format!("/proc/{pid}")).is_ok_and(|process| process.uid() == uid);
    table().into_iter().filter(|(pid, ..)| ours(*pid)).map(|(.., threads)| threads).sum()
}

/// Waits until one of these can be read or has ended; which.
fn wait_for(fds: &[RawFd], most: Option<Duration>) -> Vec<bool> {
    let mut polled: Vec<libc::pollfd> =
        fds.iter().map(|fd| libc::pollfd { fd: *fd, events: libc::POLLIN, revents: 0 }).collect();
    let most = most.map_or(-1, |most| i32::try_from(most.as_millis()).unwrap_or(i32::MAX));
    // SAFETY: the list lives through the call, with its own length.
    unsafe { libc::poll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, most) };
    polled.iter().map(|one| one.revents != 0).collect()
}

/// Waits for the command and then ends what it left; its wait status. `stop` ends it early when it can be read.
fn look_after(
    command: libc::pid_t,
    stop: Option<&OwnedFd>,
    control: &OwnedFd,
    count: Option<(fn() -> u64, u64)>,
    kill_all: &dyn Fn(),
) -> i32 {
    // SAFETY: numbers only; the descriptor is ours.
    let pidfd = unsafe { libc::syscall(libc::SYS_pidfd_open, command, 0) };
    let mut fds = vec![i32::try_from(pidfd).unwrap_or(-1)];
    fds.extend(stop.map(|fd| fd.as_raw_fd()));
    let every = if count.is_some() { COUNT_EVERY } else { Duration::from_secs(1) };
    let mut ended = None;
    let mut stopped = false;
    while ended.is_none() {
        let ready = wait_for(&fds, Some(if stopped { TICK } else { every }));
        stopped |= ready.get(1) == Some(&true);
        if stopped {
            fds.truncate(1);
            kill_all();
        }
        if let Some((count, most)) = count
            && !stopped
            && count() > most + 2
        {
            tell(control, b"B");
            stopped = true;
            kill_all();
        }
        // Not all of them: where processes come and go without end, there would be none to it.
        for (pid, status) in std::iter::from_fn(collect).take(AT_ONCE) {
            if pid == command {
                ended = Some(status);
            }
        }
    }
    // What it left may still write; then it is ended.
    let mut waited = Duration::ZERO;
    let mut told = stopped;
    while has_children() {
        if stopped || waited >= LATE {
            if !told {
                tell(control, b"L");
                told = true;
            }
            stopped = true;
            kill_all();
        }
        wait_for(&fds[1..], Some(TICK));
        waited += TICK;
        std::iter::from_fn(collect).take(AT_ONCE).for_each(drop);
    }
    ended.unwrap_or(NOT_CONFINED << 8)
}

/// Takes one ended child off the system's list.
fn collect() -> Option<(libc::pid_t, i32)> {
    let mut status = 0;
    // SAFETY: the number lives through the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG) };
    (pid > 0).then_some((pid, status))
}

fn has_children() -> bool {
    // SAFETY: the struct lives through the call; nothing is collected.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        libc::waitid(libc::P_ALL, 0, &raw mut info, libc::WEXITED | libc::WNOHANG | libc::WNOWAIT) == 0
    }
}

/// Confines this process and becomes the command.
fn become_command(orders: &Confinement, control: &OwnedFd, passing: Option<OwnedFd>) -> Step<i32> {
    step("the folder", std::env::set_current_dir(&orders.cwd))?;
    // SAFETY: numbers only.
    let keeper = unsafe {
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
            libc::signal(signal, libc::SIG_DFL);
        }
        libc::umask(0o022);
        libc::setpriority(libc::PRIO_PROCESS, 0, NICE);
        // Without who looks after it, it does not go on.
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
        libc::getppid()
    };
    limit(&orders.limits)?;
    drop_capabilities()?;
    // SAFETY: numbers only.
    step("no_new_privs", checked(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }))?;
    rules::confine(orders)?;
    let mut network = &orders.network;
    if let Some(passing) = passing
        && calls::give_away(&passing).is_err()
    {
        tell(control, b"N");
        network = &Network::Off;
    }
    let filter = syscalls::Filter { network, level: orders.level, keeper };
    match &orders.task {
        Task::Run(program, argv) => {
            let mut command = Command::new(program);
            if let Some((name, arguments)) = argv.split_first() {
                command.arg0(name).args(arguments);
            }
            filter.apply()?;
            let error = command.exec();
            Err(format!("{}: {error}", program.display()))
        }
        Task::Probe(probe) => {
            // SAFETY: this copy of the process has no further use for it.
            unsafe { libc::close(control.as_raw_fd()) };
            filter.apply()?;
            probe::run(probe, orders);
            // SAFETY: ends this copy alone.
            unsafe { libc::_exit(0) }
        }
    }
}

fn limit(limits: &Limits) -> Step<()> {
    let all = [
        (libc::RLIMIT_CORE, Some(0)),
        (libc::RLIMIT_CPU, limits.cpu_s),
        (libc::RLIMIT_AS, limits.memory),
        (libc::RLIMIT_FSIZE, limits.file),
        (libc::RLIMIT_NOFILE, limits.open_files),
        (libc::RLIMIT_NPROC, Some(limits.processes)),
    ];
    for (what, most) in all {
        let Some(most) = most else { continue };
        let mut now = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: the struct lives through both calls.
        unsafe {
            step("limits", checked(libc::getrlimit(what, &raw mut now)))?;
            let most = most.min(now.rlim_max);
            let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
            step("limits", checked(libc::setrlimit(what, &raw const limit)))?;
        }
    }
    Ok(())
}

#[repr(C)]
struct CapHeader {
    version: u32,
    pid: i32,
}

/// Gives up every capability, and the right to get one.
fn drop_capabilities() -> Step<()> {
    // SAFETY: numbers, and structs of the kernel's own layout (capset(2), version 3) that live through the call.
    unsafe {
        for capability in 0..64 {
            // Beyond the last one, or without the right to: the set below and no_new_privs hold in any case.
            if libc::prctl(libc::PR_CAPBSET_DROP, capability, 0, 0, 0) == -1 {
                break;
            }
        }
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        let header = CapHeader { version: 0x2008_0522, pid: 0 };
        let none = [0_u32; 6];
        step("capabilities", checked(libc::syscall(libc::SYS_capset, &raw const header, none.as_ptr())))?;
    }
    Ok(())
}

/// A path as the system calls take it.
fn c_path(path: &Path) -> Step<CString> {
    CString::new(path.as_os_str().as_encoded_bytes()).map_err(|_| format!("{}: a zero byte", path.display()))
}
