//! The one way out of a network of its own: loopback, where this process takes connections and hands each on to the unix
//! socket of the gateway's proxy. The command cannot see that socket.

use std::{
    io,
    net::{Shutdown, TcpListener, TcpStream},
    os::{
        fd::{AsRawFd as _, FromRawFd as _, OwnedFd},
        unix::net::UnixStream,
    },
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

/// A relay whose way to the proxy is open.
pub struct Relay {
    proxy: Arc<OwnedFd>,
    listener: TcpListener,
}

/// Opens the way to the proxy while its socket can be seen, and switches loopback on.
pub fn prepare(network: &Network) -> Step<Option<Relay>> {
    let Network::Through(socket) = network else { return Ok(None) };
    let path = c_path(socket)?;
    // SAFETY: the string lives through the call, and the descriptor is ours.
    let proxy = unsafe {
        let fd = step("the proxy", checked(libc::open(path.as_ptr(), libc::O_PATH | libc::O_CLOEXEC)))?;
        OwnedFd::from_raw_fd(i32::try_from(fd).map_err(|error| error.to_string())?)
    };
    step("loopback", loopback_up())?;
    let listener = step("loopback", TcpListener::bind(RELAY))?;
    Ok(Some(Relay { proxy: Arc::new(proxy), listener }))
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
        let open = Arc::new(AtomicUsize::new(0));
        let take = move || {
            for client in self.listener.incoming().flatten() {
                if open.load(Ordering::Acquire) >= MOST {
                    continue;
                }
                let Ok(server) = UnixStream::connect(format!("/proc/self/fd/{}", self.proxy.as_raw_fd())) else {
                    continue;
                };
                let (proxy, open) = (Arc::clone(&self.proxy), Arc::clone(&open));
                open.fetch_add(1, Ordering::AcqRel);
                let counter = Arc::clone(&open);
                let carry = move || {
                    let _ = both_ways(client, server);
                    counter.fetch_sub(1, Ordering::AcqRel);
                    drop(proxy);
                };
                if thread::Builder::new().stack_size(128 << 10).spawn(carry).is_err() {
                    open.fetch_sub(1, Ordering::AcqRel);
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
