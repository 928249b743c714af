//! The file system of a command at L3: a root of its own that holds the system's programs, what it may read and what it may
//! change, and nothing else of the machine.

use std::{
    collections::BTreeMap,
    ffi::CStr,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use super::{Step, c_path, checked, rules, step};
use crate::Confinement;

/// Where the new root is made; it only has to be a folder, and is covered for this process alone.
const BASE: &str = "/tmp";

/// What is put where, and how.
#[derive(Clone, Debug, PartialEq)]
enum Put {
    Bind { from: PathBuf, writable: bool },
    Link(PathBuf),
}

/// All of it, parents before what is in them.
pub struct Place(BTreeMap<PathBuf, Put>);

impl Place {
    /// Looks the paths up, while they can be seen.
    pub fn look(orders: &Confinement) -> Step<Self> {
        let mut all = BTreeMap::new();
        let mut read = |path: &Path| {
            // What is not there cannot be put anywhere.
            let Ok(real) = fs::canonicalize(path) else { return };
            let put = match fs::read_link(path) {
                Ok(target) if path.starts_with("/etc") && path != real => {
                    let _ = target;
                    Put::Bind { from: real, writable: false }
                }
                Ok(target) => Put::Link(target),
                Err(_) => Put::Bind { from: real, writable: false },
            };
            all.insert(path.to_owned(), put);
        };
        for path in rules::SYSTEM {
            read(Path::new(path));
        }
        for name in rules::ETC {
            read(&Path::new("/etc").join(name));
        }
        for path in &orders.read {
            read(path);
        }
        for device in rules::DEVICES {
            let path = Path::new("/dev").join(device);
            if path.exists() {
                all.insert(path.clone(), Put::Bind { from: path, writable: true });
            }
        }
        for (name, target) in [("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")] {
            all.insert(Path::new("/dev").join(name), Put::Link(format!("/proc/self/fd{target}").into()));
        }
        for path in &orders.write {
            all.insert(path.clone(), Put::Bind { from: path.clone(), writable: true });
        }
        all.insert("/tmp".into(), Put::Bind { from: orders.tmp.clone(), writable: true });
        Ok(Self(all))
    }

    /// Makes it this process's root.
    pub fn enter(&self) -> Step<()> {
        let (root, old, new) = (Path::new("/"), Path::new("/old"), Path::new("/new"));
        mount(None, root, None, libc::MS_REC | libc::MS_PRIVATE, c"")?;
        let plain = libc::MS_NOSUID | libc::MS_NODEV;
        mount(Some(c"tmpfs"), Path::new(BASE), Some(c"tmpfs"), plain, c"mode=0755,size=4m")?;
        let base = Path::new(BASE);
        for name in ["old", "new"] {
            step("root", fs::create_dir(base.join(name)))?;
        }
        pivot(base, &base.join("old"))?;
        step("root", std::env::set_current_dir(root))?;
        bind(new, new)?;
        for (at, put) in &self.0 {
            let at = within(new, at);
            let named = |error: String| format!("{}: {error}", at.display());
            match put {
                Put::Link(target) => {
                    step("link", at.parent().map_or(Ok(()), fs::create_dir_all))?;
                    // Already there where its folder is of the machine.
                    let _ = symlink(target, &at);
                }
                Put::Bind { from, writable } => {
                    let from = within(old, from);
                    make(&from, &at).map_err(|error| named(error.to_string()))?;
                    bind(&from, &at).map_err(named)?;
                    let device = at.starts_with("/new/dev");
                    attributes(&at, !writable, !device).map_err(named)?;
                }
            }
        }
        let shm = within(new, Path::new("/dev/shm"));
        step("/dev/shm", fs::create_dir_all(&shm))?;
        mount(Some(c"tmpfs"), &shm, Some(c"tmpfs"), plain, c"mode=1777,size=64m")?;
        let proc = within(new, Path::new("/proc"));
        step("/proc", fs::create_dir_all(&proc))?;
        mount(Some(c"proc"), &proc, Some(c"proc"), plain | libc::MS_NOEXEC, c"")?;
        step("root", std::env::set_current_dir(new))?;
        pivot(Path::new("."), Path::new("."))?;
        // SAFETY: a constant string. What is under the new root is the old one.
        step("the old root", checked(unsafe { libc::umount2(c".".as_ptr(), libc::MNT_DETACH) }))?;
        step("root", std::env::set_current_dir(root))
    }
}

fn within(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// Something of the same kind to be covered.
fn make(like: &Path, at: &Path) -> io::Result<()> {
    if let Some(parent) = at.parent() {
        fs::create_dir_all(parent)?;
    }
    match fs::metadata(like)?.is_dir() {
        true => fs::create_dir_all(at),
        false if at.exists() => Ok(()),
        false => fs::write(at, ""),
    }
}

fn mount(from: Option<&CStr>, at: &Path, kind: Option<&CStr>, flags: libc::c_ulong, data: &CStr) -> Step<()> {
    let at_c = c_path(at)?;
    let pointer = |text: Option<&CStr>| text.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: the strings live through the call.
    let mounted = unsafe { libc::mount(pointer(from), at_c.as_ptr(), pointer(kind), flags, data.as_ptr().cast()) };
    step(&format!("mount {}", at.display()), checked(mounted)).map(drop)
}

fn bind(from: &Path, at: &Path) -> Step<()> {
    let from = c_path(from)?;
    mount(Some(&from), at, None, libc::MS_BIND | libc::MS_REC, c"")
}

fn pivot(new: &Path, old: &Path) -> Step<()> {
    let (new, old) = (c_path(new)?, c_path(old)?);
    // SAFETY: the strings live through the call.
    let pivoted = unsafe { libc::syscall(libc::SYS_pivot_root, new.as_ptr(), old.as_ptr()) };
    step("pivot_root", checked(pivoted)).map(drop)
}

/// Adds what a mount forbids, with all mounts in it.
fn attributes(at: &Path, read_only: bool, no_devices: bool) -> Step<()> {
    let mut forbid = libc::MOUNT_ATTR_NOSUID;
    if read_only {
        forbid |= libc::MOUNT_ATTR_RDONLY;
    }
    if no_devices {
        forbid |= libc::MOUNT_ATTR_NODEV;
    }
    let attributes = libc::mount_attr { attr_set: forbid, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let path = c_path(at)?;
    // SAFETY: the string and the struct live through the call, which is told its size.
    let set = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attributes,
            size_of::<libc::mount_attr>(),
        )
    };
    step("mount_setattr", checked(set)).map(drop)
}
