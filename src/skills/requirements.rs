//! What a skill wants to have installed, and the commands that would do it: argument by argument, never a line for a
//! shell. Pure.
//!
//! A skill says what it needs in `metadata.*.install` (openclaw-parity.md §4.2: brew, apt, node, go, uv, pip, download)
//! and in a `requirements.txt`. Only plain names of packages become a command; what could be anything else (an address, an
//! option, a path) is shown and left to the owner.

use std::collections::BTreeSet;

use serde::Serialize;
use serde_json::Value;

use super::Skill;

/// What a skill wants.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Wanted {
    /// Commands that can be run on this system, in order.
    pub steps: Vec<Step>,
    /// What is left to the owner, as the skill wrote it.
    pub left: Vec<String>,
    /// Programs that are missing and that no step brings.
    pub missing: Vec<String>,
}

/// One command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The program and its arguments.
    pub argv: Vec<String>,
    /// Programs it brings, as the skill says.
    pub brings: Vec<String>,
}

/// The machine, as far as it matters here.
pub trait Machine {
    /// `linux`, `darwin` or `win32`.
    fn os(&self) -> &str;
    /// A program of that name is on the path.
    fn has(&self, program: &str) -> bool;
    /// This process may install packages of the system.
    fn is_root(&self) -> bool;
}

/// What `skill` wants on this machine. `requirements` is the text of its `requirements.txt`, if it has one, and where the
/// file will lie.
pub fn wanted(skill: &Skill, requirements: Option<(&str, &str)>, machine: &dyn Machine) -> Wanted {
    let mut wanted = Wanted::default();
    let entries = match &skill.install {
        Some(Value::Array(list)) => list.as_slice(),
        Some(one @ Value::Object(_)) => std::slice::from_ref(one),
        _ => &[],
    };
    let requires = &skill.requires;
    let mut brought: BTreeSet<String> = BTreeSet::new();
    for entry in entries.iter().take(50) {
        let os = words(entry.get("os"));
        if !os.is_empty() && !os.iter().any(|os| os_name(os) == machine.os()) {
            continue;
        }
        let brings = words(entry.get("bins"));
        let is_there = !brings.is_empty() && brings.iter().all(|bin| machine.has(bin) || brought.contains(bin));
        if is_there {
            continue;
        }
        match command(entry, machine) {
            Some(argv) => {
                brought.extend(brings.iter().cloned());
                wanted.steps.push(Step { argv, brings });
            }
            None => wanted.left.push(entry.to_string().chars().take(300).collect()),
        }
    }
    if let Some((text, path)) = requirements {
        let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default().trim());
        let mut odd =
            lines.filter(|line| !line.is_empty() && !line.starts_with('#') && !is_requirement(line)).peekable();
        if odd.peek().is_none() {
            let argv = ["python3", "-m", "pip", "install", "--user", "-r", path].map(str::to_owned).to_vec();
            wanted.steps.push(Step { argv, brings: Vec::new() });
        } else {
            wanted.left.extend(odd.map(|line| format!("requirements.txt: {line}").chars().take(300).collect()));
        }
    }
    let is_missing = |bin: &&String| !machine.has(bin) && !brought.contains(*bin);
    wanted.missing.extend(requires.bins.iter().filter(is_missing).cloned());
    if !requires.any_bins.is_empty() && requires.any_bins.iter().all(|bin| is_missing(&bin)) {
        wanted.missing.push(requires.any_bins.join(" | "));
    }
    wanted
}

/// The command of one entry; `None` when it is of no kind we run, has a name that is more than a name, or its installer is
/// not on this machine.
fn command(entry: &Value, machine: &dyn Machine) -> Option<Vec<String>> {
    let text = |key: &str| entry.get(key).and_then(Value::as_str).filter(|name| is_package(name));
    // `owner/repo` is an address for some of them.
    let bare = |key: &str| text(key).filter(|name| !name.contains('/'));
    let scoped = |key: &str| {
        let is_scoped = |name: &&str| match name.strip_prefix('@') {
            Some(rest) => rest.split_once('/').is_some_and(|(scope, rest)| !scope.is_empty() && !rest.contains('/')),
            None => !name.contains('/'),
        };
        text(key).filter(is_scoped)
    };
    let plain = |argv: &[&str]| argv.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let has = |program: &str| machine.has(program).then_some(());
    match entry.get("kind").and_then(Value::as_str)? {
        "brew" => {
            let formula = bare("formula").or_else(|| bare("package"))?;
            has("brew")?;
            Some(plain(&["brew", "install", formula]))
        }
        "apt" => {
            let package = bare("package")?;
            has("apt-get")?;
            let install = ["apt-get", "install", "-y", "--no-install-recommends", package];
            match machine.is_root() {
                true => Some(plain(&install)),
                false => has("sudo").map(|()| plain(&[&["sudo", "-n"], install.as_slice()].concat())),
            }
        }
        "node" | "npm" => {
            let package = scoped("package")?;
            has("npm")?;
            // Packages' own install scripts are somebody else's programs.
            Some(plain(&["npm", "install", "--global", "--ignore-scripts", package]))
        }
        "go" => {
            let module = text("module").or_else(|| text("package"))?;
            has("go")?;
            let module = if module.contains('@') { module.to_owned() } else { format!("{module}@latest") };
            Some(plain(&["go", "install", &module]))
        }
        "uv" => {
            let package = bare("package")?;
            has("uv")?;
            Some(plain(&["uv", "tool", "install", package]))
        }
        "pip" | "python" => {
            let package = bare("package")?;
            has("python3")?;
            Some(plain(&["python3", "-m", "pip", "install", "--user", package]))
        }
        _ => None,
    }
}

/// A package's name, perhaps with its scope and version, and nothing else: no option, no address, no path.
fn is_package(name: &str) -> bool {
    let is_usual =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '@' | '/' | '.' | '_' | '-' | '+' | '=' | '^' | '~');
    !name.is_empty()
        && name.len() <= 200
        && name.chars().all(is_usual)
        && name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '@')
        && !name.contains("..")
        && !name.contains("//")
        // A file that happens to lie there.
        && ![".whl", ".zip", ".tgz", ".gz", ".bz2", ".xz", ".deb", ".rb"].iter().any(|end| name.ends_with(end))
}

/// A line of `requirements.txt` that names a package of the index and its version.
fn is_requirement(line: &str) -> bool {
    let is_usual = |c: char| {
        c.is_ascii_alphanumeric()
            || matches!(c, '.' | '_' | '-' | '[' | ']' | ',' | '=' | '<' | '>' | '!' | '~' | ' ' | '*')
    };
    line.len() <= 200 && line.starts_with(|c: char| c.is_ascii_alphanumeric()) && line.chars().all(is_usual)
}

fn words(field: Option<&Value>) -> Vec<String> {
    match field {
        Some(Value::Array(list)) => list.iter().take(50).filter_map(Value::as_str).map(str::to_owned).collect(),
        Some(Value::String(word)) => vec![word.clone()],
        _ => Vec::new(),
    }
}

fn os_name(os: &str) -> &str {
    match os {
        "macos" | "mac" => "darwin",
        "windows" | "win" => "win32",
        os => os,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::skills::{Tier, load::blank};

    struct Linux(&'static [&'static str]);

    impl Machine for Linux {
        fn os(&self) -> &str {
            "linux"
        }
        fn has(&self, program: &str) -> bool {
            self.0.contains(&program)
        }
        fn is_root(&self) -> bool {
            false
        }
    }

    const ALL: Linux = Linux(&["brew", "apt-get", "sudo", "npm", "go", "uv", "python3", "curl"]);

    fn asked(install: Value, bins: &[&str], machine: &Linux) -> Wanted {
        let mut skill = blank("demo".to_owned(), "SKILL.md".into(), Tier::Managed);
        skill.install = Some(install);
        skill.requires.bins = bins.iter().map(|bin| (*bin).to_owned()).collect();
        wanted(&skill, None, machine)
    }

    #[test]
    fn each_kind_becomes_one_command() {
        let table = [
            (json!({"kind": "brew", "formula": "jq"}), "brew install jq"),
            (json!({"kind": "apt", "package": "jq"}), "sudo -n apt-get install -y --no-install-recommends jq"),
            (json!({"kind": "node", "package": "@a/b@1.2"}), "npm install --global --ignore-scripts @a/b@1.2"),
            (json!({"kind": "go", "module": "github.com/a/b/cmd/c"}), "go install github.com/a/b/cmd/c@latest"),
            (json!({"kind": "uv", "package": "ruff"}), "uv tool install ruff"),
            (json!({"kind": "pip", "package": "requests==2.32"}), "python3 -m pip install --user requests==2.32"),
        ];
        for (entry, command) in table {
            let wanted = asked(json!([entry]), &[], &ALL);
            assert_eq!(wanted.steps[0].argv.join(" "), command);
        }
    }

    #[test]
    fn what_is_more_than_a_name_is_never_run() {
        for name in [
            "-rf",
            "--index-url=http://x",
            "a b",
            "a;b",
            "$(id)",
            "http://x/y.tgz",
            "../x",
            "git+https://x",
            "",
            "`id`",
        ] {
            for kind in ["brew", "apt", "node", "go", "uv", "pip"] {
                let entry = json!({"kind": kind, "package": name, "formula": name, "module": name});
                let wanted = asked(json!([entry]), &[], &ALL);
                assert_eq!((wanted.steps.len(), wanted.left.len()), (0, 1), "{kind} {name}");
            }
        }
        // What an installer would take for an address, or for a file that lies there.
        for (kind, name) in [
            ("node", "owner/repo"),
            ("npm", "owner/repo"),
            ("node", "@a/b/c"),
            ("brew", "owner/tap/formula"),
            ("uv", "owner/repo"),
            ("pip", "owner/repo"),
            ("pip", "evil-1.0.whl"),
            ("node", "evil.tgz"),
            ("apt", "owner/repo"),
        ] {
            let entry = json!({"kind": kind, "package": name, "formula": name});
            let wanted = asked(json!([entry]), &[], &ALL);
            assert_eq!((wanted.steps.len(), wanted.left.len()), (0, 1), "{kind} {name}");
        }
        let download = asked(json!({"kind": "download", "url": "https://x.test/a.tgz"}), &["a"], &ALL);
        assert_eq!((download.steps.len(), download.left.len()), (0, 1));
        assert_eq!(download.missing, ["a"]);
        assert_eq!(asked(json!("brew install jq"), &[], &ALL), Wanted::default());
    }

    #[test]
    fn only_what_is_missing_on_this_system_is_wanted() {
        let install = json!([
            {"kind": "brew", "formula": "curl", "bins": ["curl"]},
            {"kind": "brew", "formula": "jq", "bins": ["jq"], "os": ["macos"]},
            {"kind": "apt", "package": "jq", "bins": ["jq"]},
            {"kind": "brew", "formula": "jq", "bins": ["jq"]},
        ]);
        let wanted = asked(install, &["curl", "jq", "ffmpeg"], &ALL);
        assert_eq!(wanted.steps.len(), 1);
        assert_eq!(wanted.missing, ["ffmpeg"]);
        let bare = asked(json!([{"kind": "brew", "formula": "jq", "bins": ["jq"]}]), &["jq"], &Linux(&[]));
        assert_eq!((bare.steps.len(), bare.left.len(), bare.missing.len()), (0, 1, 1));
    }

    #[test]
    fn python_packages_are_plain_or_left_to_the_owner() {
        let skill = blank("demo".to_owned(), "SKILL.md".into(), Tier::Managed);
        let fine = wanted(
            &skill,
            Some(("requests>=2.0,<3  # http\n\n# more\npandas[excel]==2.*\n", "/x/requirements.txt")),
            &ALL,
        );
        assert_eq!(fine.steps[0].argv.join(" "), "python3 -m pip install --user -r /x/requirements.txt");
        for line in
            ["--index-url http://evil", "-e .", "git+https://x/y", "./local", "a @ https://x/y.whl", "a; os_name=='x'"]
        {
            let odd = wanted(&skill, Some((&format!("requests\n{line}\n"), "/x/requirements.txt")), &ALL);
            assert_eq!((odd.steps.len(), odd.left.len()), (0, 1), "{line}");
        }
    }
}
