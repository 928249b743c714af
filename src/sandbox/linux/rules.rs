//! Landlock: what may be read, run and written, as the newest kernel interface there is says it.

use std::path::{Path, PathBuf};

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, LandlockStatus, Ruleset, RulesetAttr as _,
    RulesetCreatedAttr as _, RulesetError, Scope, path_beneath_rules,
};

use crate::{Confinement, Level, Network};

/// What every command may read and run.
pub const SYSTEM: &[&str] =
    &["/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/run/current-system"];

/// What it may read of /etc: no secret is among it.
pub const ETC: &[&str] = &[
    "alternatives",
    "bash.bashrc",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "gai.conf",
    "group",
    "host.conf",
    "hosts",
    "inputrc",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "locale.alias",
    "locale.conf",
    "localtime",
    "magic",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "passwd",
    "pki/ca-trust",
    "pki/tls/certs",
    "profile",
    "protocols",
    "resolv.conf",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];

/// Devices without anything behind them.
pub const DEVICES: &[&str] = &["null", "zero", "full", "random", "urandom", "tty"];

/// What tells of the machine and of no process.
const PROC: &[&str] =
    &["cpuinfo", "filesystems", "loadavg", "meminfo", "self", "stat", "sys/kernel", "sys/vm", "uptime", "version"];

/// The kernel's interface version; 0 = none.
pub fn abi() -> i64 {
    // landlock_create_ruleset(2): without attributes and with flag 1 it tells its version.
    // SAFETY: no memory is passed.
    unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0_usize, 1_u32) }.max(0)
}

/// From now on this process and its children signal each other only (kernels from 6.12 on; before, nothing changes).
pub fn scope_signals() {
    let scoped = || -> Result<(), RulesetError> {
        let ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).scope(Scope::Signal)?;
        ruleset.create()?.restrict_self()?;
        Ok(())
    };
    // Whether it holds is asked of the kernel afterwards.
    let _ = scoped();
}

/// Confines this process.
///
/// # Errors
/// The kernel cannot, and the level needs it.
pub fn confine(orders: &Confinement) -> Result<(), String> {
    let needed = if orders.level >= Level::L2 { 3 } else { 0 };
    if abi() < needed {
        return Err(format!("landlock: the kernel has version {} of it, and 3 is needed", abi()));
    }
    if orders.level == Level::L1 && abi() == 0 {
        return Ok(());
    }
    let status = rules(orders).map_err(|error| format!("landlock: {error}"))?;
    match status {
        LandlockStatus::Available { .. } => Ok(()),
        _ if needed == 0 => Ok(()),
        _ => Err("landlock: switched off in this kernel".to_owned()),
    }
}

fn rules(orders: &Confinement) -> Result<LandlockStatus, RulesetError> {
    let (all, read) = (AccessFs::from_all(ABI::V10), AccessFs::from_read(ABI::V10));
    let inside = |path: &str| Path::new("/").join(path);
    let under = |folder: &str, names: &[&str]| -> Vec<PathBuf> {
        names.iter().map(|name| Path::new(folder).join(name)).collect()
    };
    let mut readable: Vec<PathBuf> = SYSTEM.iter().map(|path| inside(path)).collect();
    readable.extend(under("/etc", ETC));
    readable.extend(orders.read.iter().cloned());
    let mut writable = orders.write.clone();
    if orders.level == Level::L3 {
        // Its own root, which holds nothing else; its own processes.
        readable.push("/".into());
        writable.push("/tmp".into());
        writable.push("/dev/shm".into());
    } else {
        readable.extend(under("/proc", PROC));
        writable.push(orders.tmp.clone());
    }
    let mut ruleset = Ruleset::default().set_compatibility(CompatLevel::BestEffort).handle_access(all)?;
    ruleset = ruleset.scope(Scope::AbstractUnixSocket | Scope::Signal)?;
    // At level 2 a way through the proxy is made by who looks after the command, and it makes none itself.
    if orders.network == Network::Off || (orders.level != Level::L3 && matches!(orders.network, Network::Through(_))) {
        ruleset = ruleset.handle_access(AccessNet::from_all(ABI::V10))?;
    }
    let devices = AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev | AccessFs::Truncate;
    let created = ruleset
        .create()?
        .add_rules(path_beneath_rules(readable, read))?
        .add_rules(path_beneath_rules(writable, all))?
        .add_rules(path_beneath_rules(under("/dev", DEVICES), devices))?;
    Ok(created.restrict_self()?.landlock)
}
