//! The one way out at level 2, where a command shares the machine's network: each of its `connect` calls comes here instead
//! of to the kernel (seccomp_unotify(2)), and gets a connection to the gateway's proxy or none.
//!
//! No call is ever let through as it is, so that nothing hangs on what the command's memory holds a moment later: the
//! connection is made here and put in the place of the command's socket. What it could do with such a socket besides is
//! refused by [`super::syscalls`], and by Landlock where it knows of the network.

use std::{
    fs, io,
    net::{Ipv4Addr, TcpListener, TcpStream},
    os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd},
    thread,
};

use super::{Step, checked, relay, step};
use crate::{Confinement, Level, Network, RELAY};

/// How many strangers may come before our own connection does.
const STRANGERS: usize = 64;

/// Where the command's calls come in. `None` where it has another way out, or none.
pub fn prepare(orders: &Confinement) -> Step<Option<(Taker, OwnedFd)>> {
    let (Level::L2, Network::Through(socket)) = (orders.level, &orders.network) else { return Ok(None) };
    let way = relay::Way::open(socket)?;
    let mut ends = [0; 2];
    // SAFETY: the array lives through the call, and the two descriptors are ours.
    let (ours, theirs) = unsafe {
        let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC;
        step("a socket", checked(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr())))?;
        (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1]))
    };
    Ok(Some((Taker { way, ours }, theirs)))
}

/// From now on this process's `connect` calls go to whoever has the other end of `passing`.
///
/// # Errors
/// The kernel has no such thing, or somebody else takes the calls of this machine's processes already.
pub fn give_away(passing: &OwnedFd) -> io::Result<()> {
    let instruction =
        |code: u32, jt, jf, k| libc::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
    // Other architectures' numbers are dealt with by the other filters: the strictest of all counts.
    let mut program = [
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, u32::try_from(libc::SYS_connect).unwrap_or(0)),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_USER_NOTIF),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
    let flags = libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    // SAFETY: the program lives through the call, with its own length; the descriptor is ours.
    let calls = unsafe {
        let fd = libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, flags, &raw const program);
        OwnedFd::from_raw_fd(i32::try_from(checked(fd)?).map_err(io::Error::other)?)
    };
    pass(passing, &calls)
}

/// Room for one descriptor in a message, aligned as its head has to be.
#[repr(align(8))]
struct Room([u8; 64]);

/// unix(7): a message of one byte with a descriptor in it.
fn message(part: &mut libc::iovec, room: &mut Room) -> libc::msghdr {
    // SAFETY: plain numbers and pointers, for which all zeros is a value.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = part;
    message.msg_iovlen = 1;
    message.msg_control = room.0.as_mut_ptr().cast();
    // SAFETY: computes of a number.
    message.msg_controllen = unsafe { libc::CMSG_SPACE(4) } as _;
    message
}

fn pass(socket: &OwnedFd, fd: &OwnedFd) -> io::Result<()> {
    let mut byte = 1_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut room = Room([0; 64]);
    let message = message(&mut part, &mut room);
    // SAFETY: the room is larger than one descriptor's message and aligned; everything lives through the calls.
    unsafe {
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        (*head).cmsg_level = libc::SOL_SOCKET;
        (*head).cmsg_type = libc::SCM_RIGHTS;
        (*head).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(head).cast::<RawFd>().write_unaligned(fd.as_raw_fd());
        checked(libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) as i64).map(drop)
    }
}

/// The descriptor that was passed; `None` when the other end closed without one.
fn passed(socket: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = 0_u8;
    let mut part = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let mut room = Room([0; 64]);
    let mut message = message(&mut part, &mut room);
    // SAFETY: as above; a descriptor that the kernel puts there is ours.
    unsafe {
        if libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) != 1 {
            return None;
        }
        let head = libc::CMSG_FIRSTHDR(&raw const message);
        if head.is_null() || (*head).cmsg_type != libc::SCM_RIGHTS {
            return None;
        }
        Some(OwnedFd::from_raw_fd(libc::CMSG_DATA(head).cast::<RawFd>().read_unaligned()))
    }
}

/// Takes the calls.
pub struct Taker {
    way: relay::Way,
    ours: OwnedFd,
}

impl Taker {
    /// Answers calls from now on, in threads of this process; our copy of the other end has to be closed.
    pub fn run(self) -> Step<()> {
        let Some(calls) = passed(&self.ours) else { return Ok(()) };
        let take = move || {
            while let Some(call) = next(&calls) {
                let error = answer(&calls, &call, &self.way).err().unwrap_or(0);
                let response = libc::seccomp_notif_resp { id: call.id, val: 0, error: -error, flags: 0 };
                // SAFETY: the struct lives through the call. Who called may be gone.
                unsafe { libc::ioctl(calls.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw const response) };
            }
        };
        step("the network", thread::Builder::new().stack_size(128 << 10).spawn(take)).map(drop)
    }
}

/// The next call; `None` when nobody is left who could make one.
fn next(calls: &OwnedFd) -> Option<libc::seccomp_notif> {
    loop {
        // SAFETY: the kernel wants the struct zeroed, and it lives through the call.
        let (call, got) = unsafe {
            let mut call: libc::seccomp_notif = std::mem::zeroed();
            let got = libc::ioctl(calls.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut call);
            (call, got)
        };
        if got == 0 {
            return Some(call);
        }
        // ENOENT: who called was ended meanwhile. It also comes when all are gone, which poll tells.
        match io::Error::last_os_error().raw_os_error() {
            Some(libc::EINTR) => {}
            Some(libc::ENOENT) => {
                let mut polled = libc::pollfd { fd: calls.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                // SAFETY: the struct lives through the call.
                unsafe { libc::poll(&raw mut polled, 1, -1) };
                if polled.revents & libc::POLLHUP != 0 {
                    return None;
                }
            }
            _ => return None,
        }
    }
}

/// Gives the caller a connection to the proxy where that is what it asked for; else the error it gets.
fn answer(calls: &OwnedFd, call: &libc::seccomp_notif, way: &relay::Way) -> Result<(), i32> {
    let fd = u32::try_from(call.data.args[0]).map_err(|_| libc::EBADF)?;
    let flags = flags_of(call.pid, fd).ok_or(libc::EBADF)?;
    // Where its memory cannot be read, the proxy is what there is: it lets nothing else through in any case.
    if let Some((family, port, address)) = asked(call.pid, call.data.args[1]) {
        if family != libc::AF_INET {
            return Err(libc::EAFNOSUPPORT);
        }
        if format!("{address}:{port}") != RELAY {
            // What a network without a way out says.
            return Err(libc::ENETUNREACH);
        }
    }
    let refused = |_: io::Error| libc::ECONNREFUSED;
    let server = way.connect().map_err(refused)?;
    let (client, theirs) = pair().map_err(refused)?;
    theirs.set_nonblocking(flags & libc::O_NONBLOCK != 0).map_err(refused)?;
    let put = libc::seccomp_notif_addfd {
        id: call.id,
        flags: u32::try_from(libc::SECCOMP_ADDFD_FLAG_SETFD).unwrap_or(0),
        srcfd: theirs.as_raw_fd().unsigned_abs(),
        newfd: fd,
        newfd_flags: (flags & libc::O_CLOEXEC).unsigned_abs(),
    };
    // SAFETY: the struct lives through the call.
    if unsafe { libc::ioctl(calls.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw const put) } == -1 {
        return Err(libc::ECONNREFUSED);
    }
    way.carry(client, server);
    Ok(())
}

/// The flags of a process's open file, as proc(5) shows them.
fn flags_of(pid: u32, fd: u32) -> Option<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/fdinfo/{fd}")).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"))?;
    i32::from_str_radix(flags.trim(), 8).ok()
}

/// Where a process wants to: the family, and of IPv4 the port and the address.
fn asked(pid: u32, at: u64) -> Option<(i32, u16, Ipv4Addr)> {
    let mut bytes = [0_u8; 8];
    let ours = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let theirs = libc::iovec { iov_base: usize::try_from(at).ok()? as *mut libc::c_void, iov_len: bytes.len() };
    // SAFETY: our side is an array that lives through the call; the other is another process's and is only read.
    let read = unsafe {
        libc::process_vm_readv(libc::pid_t::try_from(pid).ok()?, &raw const ours, 1, &raw const theirs, 1, 0)
    };
    // ip(7): the family in our order, then port and address as they travel.
    let [a, b, port @ .., c, d, e, f] = bytes;
    (read == 8).then(|| (i32::from(u16::from_ne_bytes([a, b])), u16::from_be_bytes(port), Ipv4Addr::new(c, d, e, f)))
}

/// A connection over loopback from us to ourselves: our end, and the one that is given away.
fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let theirs = TcpStream::connect(listener.local_addr()?)?;
    let wanted = theirs.local_addr()?;
    for _ in 0..STRANGERS {
        let (ours, from) = listener.accept()?;
        if from == wanted {
            return Ok((ours, theirs));
        }
    }
    Err(io::ErrorKind::ConnectionRefused.into())
}
