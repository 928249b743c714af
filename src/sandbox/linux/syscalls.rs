//! seccomp: system calls that no command needs and that lead out of a sandbox, or that reach the network.

use std::collections::BTreeMap;

use seccompiler::{
    SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule, TargetArch,
};

use crate::{Level, Network};

/// Refused whatever their arguments are. security.md §3.4.
const REFUSED: &[libc::c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_bpf,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_fanotify_init,
    libc::SYS_finit_module,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fsopen,
    libc::SYS_fspick,
    libc::SYS_init_module,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_uring_setup,
    libc::SYS_kcmp,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_lookup_dcookie,
    libc::SYS_mount,
    libc::SYS_mount_setattr,
    libc::SYS_move_mount,
    libc::SYS_name_to_handle_at,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_perf_event_open,
    libc::SYS_pidfd_getfd,
    libc::SYS_pivot_root,
    libc::SYS_process_madvise,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_quotactl,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setdomainname,
    libc::SYS_sethostname,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_syslog,
    libc::SYS_umount2,
    libc::SYS_unshare,
    libc::SYS_userfaultfd,
    libc::SYS_vhangup,
];

/// Modes, owners and attributes: Landlock does not know them, so where the files of the whole machine are in sight (level
/// 2) a command could open `data/` to everybody. At level 3 it sees nothing but its own.
const FACTS_OF_FILES: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chmod,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_chown,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lchown,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    FCHMODAT2,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_setxattr,
    libc::SYS_lsetxattr,
    libc::SYS_fsetxattr,
    libc::SYS_removexattr,
    libc::SYS_lremovexattr,
    libc::SYS_fremovexattr,
];

/// fchmodat2(2), Linux 6.6; the same number on every architecture.
const FCHMODAT2: libc::c_long = 452;

/// Flags of clone(2) that make namespaces.
const NAMESPACES: &[i32] = &[
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// Puts bytes into the terminal's input: TIOCSTI, and TIOCLINUX of the console.
const TYPING: [u64; 2] = [0x5412, 0x541c];

/// The bits of a socket's type that are its kind; the others are flags. socket(2).
const SOCKET_KINDS: u64 = 0xf;

/// What depends on the command.
pub struct Filter<'a> {
    /// Whom it may reach.
    pub network: &'a Network,
    /// Where sockets of files lead out, there are none.
    pub level: Level,
    /// Who looks after it, and may not be signalled.
    pub keeper: libc::pid_t,
}

fn arch() -> Result<TargetArch, String> {
    std::env::consts::ARCH.try_into().map_err(|_| format!("seccomp: not on {}", std::env::consts::ARCH))
}

fn condition(argument: u8, wide: bool, op: SeccompCmpOp, value: u64) -> Result<SeccompCondition, String> {
    let length = if wide { SeccompCmpArgLen::Qword } else { SeccompCmpArgLen::Dword };
    SeccompCondition::new(argument, length, op, value).map_err(|error| format!("seccomp: {error}"))
}

fn rule(conditions: Vec<SeccompCondition>) -> Result<SeccompRule, String> {
    SeccompRule::new(conditions).map_err(|error| format!("seccomp: {error}"))
}

impl Filter<'_> {
    /// Applies it to this process and whatever it becomes.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn apply(&self) -> Result<(), String> {
        let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
        if self.level != Level::L3 {
            // They do nothing and say that they did: `tar`, `cp -p` and `shutil.copy` go on, as in containers without root.
            apply(FACTS_OF_FILES.iter().map(|call| (*call, Vec::new())).collect(), 0)?;
        }
        let mut add = |call: libc::c_long, conditions: Vec<SeccompCondition>| -> Result<(), String> {
            rules.entry(call).or_default().push(rule(conditions)?);
            Ok(())
        };
        for flag in NAMESPACES {
            let flag = u64::from(flag.unsigned_abs());
            add(libc::SYS_clone, vec![condition(0, true, SeccompCmpOp::MaskedEq(flag), flag)?])?;
        }
        for request in TYPING {
            // The kernel reads 32 bits of it.
            add(libc::SYS_ioctl, vec![condition(1, false, SeccompCmpOp::Eq, request)?])?;
        }
        // Asking is harmless, and 0 is what every process has.
        let ne = |value| condition(0, false, SeccompCmpOp::Ne, value);
        add(libc::SYS_personality, vec![ne(0)?, ne(0xffff_ffff)?])?;
        if self.level != Level::L3 && matches!(self.network, Network::Through(_)) {
            // Sockets of TCP, whose `connect` comes to who looks after the command (`calls`): that, and no other way to use one.
            add(libc::SYS_socket, vec![ne(u64::from(libc::AF_INET.unsigned_abs()))?])?;
            let stream = u64::from(libc::SOCK_STREAM.unsigned_abs());
            for kind in (0..=SOCKET_KINDS).filter(|kind| *kind != stream) {
                add(libc::SYS_socket, vec![condition(1, false, SeccompCmpOp::MaskedEq(SOCKET_KINDS), kind)?])?;
            }
            let tcp = u64::from(libc::IPPROTO_TCP.unsigned_abs());
            let other = [condition(2, false, SeccompCmpOp::Ne, 0)?, condition(2, false, SeccompCmpOp::Ne, tcp)?];
            add(libc::SYS_socket, other.to_vec())?;
            for call in [libc::SYS_bind, libc::SYS_listen] {
                add(call, vec![condition(0, false, SeccompCmpOp::Ge, 0)?])?;
            }
            // Connects as it sends.
            let fast = u64::from(libc::MSG_FASTOPEN.unsigned_abs());
            for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2), (libc::SYS_sendmmsg, 3)] {
                add(call, vec![condition(flags, false, SeccompCmpOp::MaskedEq(fast), fast)?])?;
            }
        } else {
            let mut families: Vec<i32> = Vec::new();
            if self.level == Level::L3 || *self.network != Network::Off {
                families.push(libc::AF_UNIX);
            }
            if *self.network != Network::Off {
                families.extend([libc::AF_INET, libc::AF_INET6]);
            }
            if *self.network == Network::Host {
                families.push(libc::AF_NETLINK);
            }
            let refused: Result<Vec<_>, _> =
                families.iter().map(|family| ne(u64::from(family.unsigned_abs()))).collect();
            match refused? {
                none if none.is_empty() => add(libc::SYS_socket, vec![condition(0, false, SeccompCmpOp::Ge, 0)?])?,
                refused => add(libc::SYS_socket, refused)?,
            }
        }
        add(libc::SYS_socketpair, vec![ne(u64::from(libc::AF_UNIX.unsigned_abs()))?])?;
        if self.level != Level::L3 {
            // Where the kernel does not scope signals: neither everybody nor who looks after it.
            let keeper = u64::from(self.keeper.unsigned_abs());
            let minus = |pid: u64| u64::from((pid as u32).wrapping_neg());
            for target in [keeper, minus(keeper), minus(1)] {
                add(libc::SYS_kill, vec![condition(0, false, SeccompCmpOp::Eq, target)?])?;
            }
            for call in [libc::SYS_tgkill, libc::SYS_tkill, libc::SYS_rt_sigqueueinfo, libc::SYS_pidfd_open] {
                add(call, vec![condition(0, false, SeccompCmpOp::Eq, keeper)?])?;
            }
        }
        apply(rules, libc::EPERM)?;
        // Its flags are in memory, where no filter looks: programs then use clone.
        apply(BTreeMap::from([(libc::SYS_clone3, Vec::new())]), libc::ENOSYS)
    }
}

fn apply(rules: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<(), String> {
    let error = |error: &dyn std::fmt::Display| format!("seccomp: {error}");
    let action = SeccompAction::Errno(errno.unsigned_abs());
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, action, arch()?).map_err(|why| error(&why))?;
    let compiled: seccompiler::BpfProgram = filter.try_into().map_err(|why: seccompiler::BackendError| error(&why))?;
    let mut program = other_numbers();
    program.extend(compiled);
    seccompiler::apply_filter(&program).map_err(|why| error(&why))
}

/// On x86-64 a second set of numbers (x32: bit 30) leads to the same calls past any list: who uses one is ended.
fn other_numbers() -> seccompiler::BpfProgram {
    if !cfg!(target_arch = "x86_64") {
        return Vec::new();
    }
    let instruction =
        |code: u32, jt, jf, k| seccompiler::sock_filter { code: u16::try_from(code).unwrap_or_default(), jt, jf, k };
    vec![
        // struct seccomp_data begins with the number.
        instruction(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        instruction(libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K, 0, 1, 0x4000_0000),
        instruction(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_KILL_PROCESS),
    ]
}
