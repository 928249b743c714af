//! The programs that need no question: `[tools.exec] allow`. Only a call without a shell can be one of them, so that what is
//! looked at is what runs; no shell text is ever read here.
//!
//! A program that starts others, or that reads a program of its own out of its arguments, can never be one: with it, the list
//! would allow everything.

use std::path::{Path, PathBuf};

use crate::os;

/// `readonly`: they read what they are told to and write to their output alone.
const READONLY: &[&str] = &[
    "arch",
    "basename",
    "cat",
    "cksum",
    "comm",
    "cut",
    "date",
    "df",
    "dirname",
    "du",
    "echo",
    "expand",
    "false",
    "fold",
    "free",
    "grep",
    "head",
    "id",
    "join",
    "ls",
    "md5sum",
    "nl",
    "nproc",
    "paste",
    "printf",
    "pwd",
    "readlink",
    "realpath",
    "rev",
    "seq",
    "sha256sum",
    "stat",
    "tac",
    "tail",
    "tr",
    "true",
    "uname",
    "uptime",
    "wc",
    "whoami",
];

/// Interpreters, wrappers, and programs that run others when they are asked to.
const NEVER: &[&str] = &[
    "7z",
    "ansible",
    "apt",
    "apt-get",
    "ar",
    "aria2c",
    "ash",
    "at",
    "awk",
    "bash",
    "batch",
    "bpftrace",
    "bundle",
    "busybox",
    "bwrap",
    "byobu",
    "capsh",
    "cargo",
    "chroot",
    "choom",
    "chrt",
    "cmake",
    "composer",
    "cp",
    "cpan",
    "cpio",
    "cpulimit",
    "crontab",
    "csh",
    "curl",
    "dash",
    "dc",
    "dd",
    "deno",
    "dialog",
    "dmesg",
    "dnf",
    "docker",
    "dpkg",
    "easy_install",
    "ed",
    "elvish",
    "emacs",
    "env",
    "ex",
    "expect",
    "fakeroot",
    "find",
    "firejail",
    "fish",
    "flock",
    "ftp",
    "gawk",
    "gcc",
    "gdb",
    "gem",
    "ghc",
    "git",
    "go",
    "guile",
    "gtester",
    "hping3",
    "install",
    "ionice",
    "irb",
    "java",
    "jjs",
    "join-path",
    "jq",
    "jrunscript",
    "julia",
    "knife",
    "ksh",
    "latex",
    "ld.so",
    "less",
    "ln",
    "logrotate",
    "ltrace",
    "lua",
    "luajit",
    "lxc",
    "mail",
    "make",
    "man",
    "mawk",
    "more",
    "mount",
    "mv",
    "mysql",
    "nano",
    "nawk",
    "nc",
    "ncat",
    "nice",
    "ninja",
    "nmap",
    "node",
    "nohup",
    "npm",
    "npx",
    "nsenter",
    "numactl",
    "openssl",
    "parallel",
    "pdb",
    "perf",
    "perl",
    "pg",
    "php",
    "pico",
    "pip",
    "pip3",
    "pipx",
    "pkexec",
    "pnpm",
    "podman",
    "powershell",
    "prlimit",
    "psql",
    "puppet",
    "pwsh",
    "python",
    "rake",
    "rbash",
    "rlwrap",
    "rpm",
    "rsync",
    "rubocop",
    "ruby",
    "run-parts",
    "rustc",
    "rview",
    "rvim",
    "rscript",
    "scp",
    "screen",
    "script",
    "sed",
    "service",
    "setarch",
    "setpriv",
    "setsid",
    "sftp",
    "sh",
    "smbclient",
    "socat",
    "split",
    "sqlite3",
    "ssh",
    "start-stop-daemon",
    "stdbuf",
    "strace",
    "su",
    "sudo",
    "swift",
    "systemctl",
    "systemd-run",
    "tar",
    "taskset",
    "tclsh",
    "tcsh",
    "tee",
    "telnet",
    "time",
    "timeout",
    "tmux",
    "top",
    "troff",
    "tsc",
    "unshare",
    "unzip",
    "uv",
    "uvx",
    "valgrind",
    "vi",
    "view",
    "vim",
    "vimdiff",
    "watch",
    "wget",
    "wish",
    "xargs",
    "xterm",
    "yarn",
    "yum",
    "zip",
    "zsh",
    "zypper",
];

/// Options with which a program of the list does more than read.
const ODD: &[(&str, &[&str])] = &[("date", &["-s", "--set"])];

/// The program, by its full path, when this call needs no question: the whole of what has to be run instead of the name.
/// `None` = it does. `own` are folders that commands can write to: no program in there is meant.
pub fn program(allow: &[String], argv: &[String], own: &[PathBuf]) -> Option<PathBuf> {
    let (name, arguments) = argv.split_first()?;
    let sound = |text: &str| !text.is_empty() && !text.contains(|c: char| c.is_control() || c.is_whitespace());
    if !sound(name) {
        return None;
    }
    let path = if name.contains('/') { PathBuf::from(name) } else { os::program(name)? };
    let real = path.is_absolute().then(|| std::fs::canonicalize(&path).ok()).flatten()?;
    let names = [file_name(&path)?, file_name(&real)?];
    // A link to a program of another name is one program for many names (coreutils, toybox): which it is, its first argument
    // says.
    let is_itself = names[0] == names[1];
    if names.iter().any(|name| never(name))
        || own.iter().any(|folder| path.starts_with(folder) || real.starts_with(folder))
    {
        return None;
    }
    let is_listed = allow.iter().any(|entry| match entry.as_str() {
        "readonly" => is_itself && READONLY.contains(&names[0].as_str()),
        entry if entry.contains('/') => is_itself && (Path::new(entry) == path || Path::new(entry) == real),
        entry => is_itself && entry == names[0] && (entry == name || os::program(entry).as_deref() == Some(&path)),
    });
    let odd = ODD.iter().filter(|(name, _)| names.iter().any(|one| one == name)).flat_map(|(_, options)| *options);
    let mut odd = odd.filter(|option| arguments.iter().any(|argument| argument.starts_with(**option)));
    (is_listed && odd.next().is_none()).then_some(real)
}

fn file_name(path: &Path) -> Option<String> {
    Some(path.file_name()?.to_str()?.to_owned())
}

/// Whether a program can never be listed: by its name, without the version behind it (`python3.12`).
pub fn never(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let bare = lower.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.' || c == '-');
    NEVER.contains(&lower.as_str()) || NEVER.contains(&bare) || lower.starts_with("ld-") || lower.starts_with("busybox")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// What people use to get from an allowed program to any: none of it is allowed, whatever is listed.
    #[test]
    fn row_23_eighty_ways_from_a_program_to_every_program_need_a_question() {
        const VECTORS: &str = "\
            env sh|env -i bash -c id|xargs sh|find . -exec sh {} ;|find . -delete|busybox sh|nice sh|timeout 9 sh|ssh -o ProxyCommand=id x|\
            git -c core.pager=id log|git -c alias.x=!id x|tar --to-command=id -xf a|tar --checkpoint-action=exec=id -cf a b|awk BEGIN{system(\"id\")}|\
            gawk BEGIN{system(\"id\")}|mawk x|sed 1e\\ id a|sed -n w\\ out a|python3 -c x|python -c x|python3.11 -c x|perl -e x|ruby -e x|node -e x|\
            php -r x|lua -e x|bash -c id|sh -c id|dash -c id|zsh -c id|fish -c id|ksh -c id|rbash|vim -c !id|vi|view|ex|ed|nano|emacs -Q|less /etc/hosts|\
            more a|man -P id ls|watch id|strace id|ltrace id|gdb -ex x|script -c id|screen|tmux|expect -c x|make -f x|cmake -P x|ninja|cargo run|npm x|npx x|\
            uvx x|pip3 install x|gem x|go run x|docker run x|podman run x|nsenter x|unshare sh|chroot / sh|setsid sh|setpriv sh|setarch x|stdbuf -o0 sh|\
            taskset 1 sh|ionice sh|flock a sh|parallel sh|time sh|nohup sh|sudo id|su -c id|pkexec id|systemd-run id|start-stop-daemon x|run-parts .|\
            logrotate x|crontab -e|at now|dd of=a|tee a|cp a b|mv a b|ln -s a b|install a b|split a|curl x|wget x|nc -e sh x|socat x y|openssl x|\
            scp -S id a b|rsync -e id a b|sftp x|ftp|telnet|mysql|psql|sqlite3 x .shell|jq x|zip -TT id a|unzip a|7z a|sudo -u x y|top|dmesg|\
            ./ls|../ls|ls;id|ls\u{a0}|ls\nid|$(ls)|`id`|*|l\u{455}|/proc/self/exe|/proc/self/root/bin/sh|/lib64/ld-linux-x86-64.so.2 /bin/sh|date -s x|date --set=x|sort -o a b|uniq a b|\u{3000}ls";
        let mut all: Vec<String> = READONLY.iter().chain(NEVER).map(|name| (*name).to_owned()).collect();
        all.extend(["readonly", "sort-of", "/bin/sh", "/usr/bin/env", "/usr/bin/python3"].map(str::to_owned));
        let vectors: Vec<&str> = VECTORS.split('|').collect();
        assert!(vectors.len() >= 80, "{}", vectors.len());
        for vector in vectors {
            let argv: Vec<String> = match vector.contains(['\u{a0}', '\n', '\u{3000}']) {
                true => vec![vector.to_owned()],
                false => vector.split(' ').map(str::to_owned).collect(),
            };
            assert_eq!(program(&all, &argv, &[]), None, "{vector}");
        }
        for name in NEVER {
            assert!(never(name), "{name}");
        }
    }

    #[test]
    fn a_listed_program_is_run_by_its_full_path() {
        let of = |allow: &[&str], argv: &[&str], own: &[PathBuf]| {
            let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
            program(&words(allow), &words(argv), own)
        };
        let wc = of(&["readonly"], &["wc", "-l", "$(id)"], &[]).expect("it is listed");
        assert!(wc.is_absolute() && wc.ends_with("wc"), "{}", wc.display());
        assert!(of(&["wc"], &["wc"], &[]).is_some() && of(&[wc.to_str().expect("a path")], &["wc"], &[]).is_some());
        assert_eq!(of(&[], &["wc"], &[]), None, "an empty list means no");
        assert_eq!(of(&["cat"], &["wc"], &[]), None);
        assert_eq!(of(&["readonly"], &[], &[]), None);
        // A program that a command could have written.
        let house = tempfile::tempdir().expect("a folder");
        let own = std::fs::canonicalize(house.path()).expect("it is there");
        std::fs::copy("/bin/true", own.join("wc")).expect("copied");
        let written = own.join("wc").display().to_string();
        assert_eq!(of(&["readonly", &written], &[&written], std::slice::from_ref(&own)), None);
        let many = own.join("coreutils");
        std::fs::copy("/bin/true", &many).expect("copied");
        std::os::unix::fs::symlink(&many, own.join("head")).expect("a link");
        let linked = own.join("head").display().to_string();
        assert_eq!(of(&["readonly", &linked], &[&linked, "env", "sh"], &[]), None, "one program for many names");
        std::os::unix::fs::symlink("/bin/sh", own.join("cat")).expect("a link");
        assert_eq!(of(&["readonly"], &[&own.join("cat").display().to_string()], &[]), None, "what it is counts");
    }
}
