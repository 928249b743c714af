//! The one way out of a network of its own: loopback, where this process takes connections and hands each on to the unix
//! socket of the gateway's proxy. The command cannot see that socket.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use super::{Step, c_path, checked, step};
use crate::{Network, RELAY};

/// The most connections at once.
const MOST: usize = 64;

/// The way to the gateway's proxy, and how many connections go there.
pub struct Way {
    proxy: Arc<OwnedFd>,
    open: Arc<AtomicUsize>,
}

impl Way {
    /// Opens it while its socket can be seen.
    pub fn open(socket: &Path) -> Step<Self> {
        let path = c_path(socket)?;
        // SAFETY: the string lives through the call, and the descriptor is ours.
        let proxy = unsafe {
            let fd = step("the proxy", checked(libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)))?;
            OwnedFd::from_raw_fd(i32::try_from(fd).map_err(|error| error.to_string())?)
        };
        Ok(Self { proxy: Arc::new(proxy), open: Arc::default() })
    }

    /// A connection to it, while there is room for one.
    pub fn connect(&self) -> io::Result<UnixStream> {
        match self.open.load(Ordering::Acquire) < MOST {
            true => UnixStream::connect(format!("/proc/self/fd/{}", self.proxy.as_raw_fd())),
            false => Err(io::ErrorKind::ConnectionRefused.into()),
        }
    }

    /// Carries bytes both ways from now on, in threads of this process.
    pub fn carry(&self, client: TcpStream, server: UnixStream) {
        let open = Arc::clone(&self.open);
        open.fetch_add(1, Ordering::AcqRel);
        let carry = move || {
            let _ = both_ways(client, server);
            open.fetch_sub(1, Ordering::AcqRel);
        };
        if thread::Builder::new().stack_size(128 << 10).spawn(carry).is_err() {
            self.open.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

/// A relay whose way to the proxy is open.
pub struct Relay {
    way: Way,
    listener: TcpListener,
}

/// Opens the way to the proxy while its socket can be seen, and switches loopback on.
pub fn prepare(network: &Network) -> Step<Option<Relay>> {
    let Network::Through(socket) = network else { return Ok(None) };
    let way = Way::open(socket)?;
    step("loopback", loopback_up())?;
    let listener = step("loopback", TcpListener::bind(RELAY))?;
    Ok(Some(Relay { way, listener }))
}

fn loopback_up() -> io::Result<()> {
    // SAFETY: the struct is plain bytes of the kernel's own layout (netdevice(7)) and lives through the calls.
    unsafe {
        let socket = checked(libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0))?;
        let socket = OwnedFd::from_raw_fd(i32::try_from(socket).map_err(io::Error::other)?);
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = libc::c_char::try_from(b'l').unwrap_or_default();
        request.ifr_name[1] = libc::c_char::try_from(b'o').unwrap_or_default();
        request.ifr_ifru.ifru_flags = libc::c_short::try_from(libc::IFF_UP | libc::IFF_RUNNING).unwrap_or_default();
        checked(libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS, &raw const request))?;
    }
    Ok(())
}

impl Relay {
    /// Takes connections from now on, in threads of this process.
    pub fn run(self) -> Step<()> {
        let take = move || {
            for client in self.listener.incoming().flatten() {
                if let Ok(server) = self.way.connect() {
                    self.way.carry(client, server);
                }
            }
        };
        step("loopback", thread::Builder::new().stack_size(128 << 10).spawn(take)).map(drop)
    }
}

fn both_ways(client: TcpStream, server: UnixStream) -> io::Result<()> {
    let (mut from, mut to) = (client.try_clone()?, server.try_clone()?);
    let there = thread::Builder::new().stack_size(128 << 10).spawn(move || {
        let _ = io::copy(&mut from, &mut to);
        let _ = to.shutdown(Shutdown::Write);
    })?;
    let (mut from, mut to) = (server, client);
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Both);
    let _ = there.join();
    Ok(())
}
