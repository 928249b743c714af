//! What `doctor` finds on this machine, whether a gateway runs or not: the address, the folders, who may read them, the
//! skills, and who gets which tools.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    net::{SocketAddr, TcpListener},
    path::Path,
    sync::Arc,
};

use channel_api::Clock;
use serde_json::Value;

use super::{Finding, bad, good};
use crate::{
    app,
    cli::exit::Exit,
    clock::SystemClock,
    config::Loaded,
    confinement::{Ruling, Wanted},
    data_dir,
    lang::{self, Lang},
    os,
    policy::{Asker, Holds, Role, Verdict, decide},
    skills::{Skill, Skills, State, Tier, Unmet},
    terminal,
    tools::exec::{ExecConfig, Network},
};

/// The most skills that are named one by one.
const SKILLS: usize = 20;

/// Whether a gateway could listen where the configuration says. Asked only when none of this folder runs.
pub fn addresses(loaded: &Loaded, lang: Lang) -> (Vec<Finding>, Exit) {
    let server = &loaded.config.server;
    let wanted = server.listen_addr().ok().into_iter().chain(server.channels_addr().ok().flatten());
    let mut exit = Exit::Ok;
    let findings = wanted.map(|addr| {
        let finding = address(addr, lang);
        if !finding.0 {
            exit = Exit::Os;
        }
        finding
    });
    (findings.collect(), exit)
}

fn address(addr: SocketAddr, lang: Lang) -> Finding {
    match TcpListener::bind(addr) {
        Ok(_) => good(lang::doctor_port_free(lang, addr)),
        Err(error) if error.kind() == ErrorKind::AddrInUse => {
            let by = os::who_listens(addr.port());
            let by = by.map(|(name, pid)| lang::doctor_port_taken_by(lang, terminal::escape_line(&name), pid));
            bad(lang::doctor_port_taken(lang, addr, by.unwrap_or_default()))
        }
        Err(error) => bad(lang::doctor_port_refused(lang, addr, error)),
    }
}

/// Where the agents read and write, and whether they can.
pub fn workspaces(loaded: &Loaded, skills: &Skills, lang: Lang) -> (Vec<Finding>, Exit) {
    let config = &loaded.config;
    let others = config.agents.iter().map(|(id, agent)| agent.workspace(id));
    let dirs: BTreeSet<_> = others.chain([config.agent.workspace.clone()]).map(|dir| loaded.path(&dir)).collect();
    let folders: Vec<String> = skills.folders.iter().map(|dir| dir.display().to_string()).collect();
    let readable = match folders.is_empty() {
        true => String::new(),
        false => lang::doctor_readable(lang, lang.listed(folders)),
    };
    let mut exit = Exit::Ok;
    let findings = dirs.iter().map(|dir| {
        let shown = dir.display();
        match writable(dir) {
            Ok(true) => good(lang::doctor_workspace(lang, shown, &readable)),
            Ok(false) => good(lang::doctor_workspace_new(lang, shown)),
            Err(error) => {
                exit = Exit::Io;
                bad(lang::doctor_workspace_closed(lang, shown, error))
            }
        }
    });
    (findings.collect(), exit)
}

/// Tries it, because no permission bit tells of a full or read-only file system. `false`: there is no such folder yet.
fn writable(dir: &Path) -> std::io::Result<bool> {
    match fs::metadata(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
        Ok(metadata) if !metadata.is_dir() => return Err(ErrorKind::NotADirectory.into()),
        Ok(_) => {}
    }
    let probe = dir.join(format!(".crawfish-doctor-{}", std::process::id()));
    fs::OpenOptions::new().write(true).create_new(true).open(&probe)?;
    fs::remove_file(&probe).map(|()| true)
}

/// Files with secrets or conversations that other users of this machine could read.
pub fn permissions(loaded: &Loaded, lang: Lang) -> Vec<Finding> {
    let data = loaded.data_dir();
    let mut private = vec![(loaded.dir.join(".env"), "600"), (data.join(data_dir::TOKEN), "600")];
    // SQLite makes its files by the umask: a closed folder keeps them.
    let store = loaded.path(loaded.config.store.sqlite_path());
    let closed = |dir: &Path| fs::metadata(dir).is_ok_and(|dir| os::open_to_others(&dir).is_none());
    if !store.parent().is_some_and(closed) {
        private.push((store, "600"));
    }
    private.push((data, "700"));
    // Without the option a configuration that holds secrets and can be read by others is refused before.
    if loaded.env.insecure_perms {
        private.extend(loaded.source.iter().map(|file| (file.clone(), "600")));
    }
    let open: Vec<Finding> = private
        .iter()
        .filter_map(|(path, to)| {
            let mode = os::open_to_others(&fs::metadata(path).ok()?)?;
            let path = path.display().to_string();
            let path = terminal::shell_word(&path);
            Some(bad(lang::doctor_open_to_others(lang, path, format!("{mode:04o}"), to)))
        })
        .collect();
    match open.is_empty() && cfg!(unix) {
        true => vec![good(lang::doctor_private(lang))],
        false => open,
    }
}

/// How many skills can be used, and each that cannot with its reason and what to do.
pub fn skills(skills: &Skills, lang: Lang) -> Vec<Finding> {
    let usable: Vec<&str> = skills.usable().map(|skill| skill.name.as_str()).collect();
    let names = match usable.len() {
        0 => lang::doctor_tools_none(lang),
        1..=SKILLS => lang.listed(&usable),
        _ => lang.listed(usable[..SKILLS].iter().chain(&["…"])),
    };
    let mut counted = lang::doctor_skills(lang, usable.len(), skills.list.len(), names);
    if !skills.list.iter().any(|skill| skill.tier == Tier::Bundled) {
        counted.push_str(&lang::doctor_skills_shipped(lang, crate::skills::bundled_count()));
    }
    let mut findings = vec![good(counted)];
    let told = skills.list.iter().filter_map(|skill| one_skill(skill, lang));
    findings.extend(told.take(SKILLS));
    findings.extend(skills.problems.iter().map(|problem| bad(problem.text(lang))));
    findings
}

fn one_skill(skill: &Skill, lang: Lang) -> Option<Finding> {
    let name = &skill.name;
    match &skill.state {
        State::Loaded => skill.ungranted(lang).map(|why| bad(lang::doctor_skill_ungranted(lang, name, why))),
        State::Broken(fault) => {
            let path = skill.location.display();
            Some(bad(lang::doctor_skill_broken(lang, name, fault.text(lang), path)))
        }
        State::Off(needs) => {
            let why: Vec<String> = needs.iter().map(|need| need.text(lang)).collect();
            let mut text = lang::doctor_skill_off(lang, name, lang.reasons(why));
            if needs.iter().any(|need| matches!(need, Unmet::Program(_) | Unmet::AnyProgram(_))) {
                text.push_str(&match install(skill.install.as_ref()) {
                    Some(how) => lang::doctor_skill_install(lang, how),
                    None => lang::doctor_skill_install_program(lang),
                });
            }
            // Nothing is missing where a person or the system decided it.
            let decided = needs.iter().all(|need| matches!(need, Unmet::SwitchedOff | Unmet::Os(_)));
            Some(if decided { good(text) } else { bad(text) })
        }
    }
}

/// The commands by which a skill's author has its programs installed. Only plain names become part of a command.
fn install(wanted: Option<&Value>) -> Option<String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '/' | '@' | '+');
    let command = |one: &Value| {
        let text = |key: &str| one.get(key).and_then(Value::as_str);
        let (command, name) = match text("kind")? {
            "brew" => ("brew install", text("formula")?),
            "node" => ("npm install -g", text("package")?),
            "go" => ("go install", text("module")?),
            "uv" => ("uv tool install", text("package")?),
            "apt" => ("apt install", text("package")?),
            _ => return None,
        };
        let fits = !name.is_empty() && name.len() <= 100 && !name.starts_with('-') && name.chars().all(plain);
        fits.then(|| format!("`{command} {name}`"))
    };
    let commands: Vec<String> = wanted?.as_array()?.iter().take(5).filter_map(command).collect();
    (!commands.is_empty()).then(|| commands.join(", "))
}

/// Which role gets which tools, in one line, and whether there are commands.
pub fn tools(loaded: &Loaded, lang: Lang) -> Vec<Finding> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let registry = app::every_tool(loaded, &Arc::new(app::look_at_skills(loaded)), &clock);
    let everywhere = loaded.config.tools.policy();
    let of = |role: Role, direct: bool| -> Vec<String> {
        let asker = Asker { role, direct };
        let offered = |name: &str, terms| decide(asker, name, terms, Holds::Own, [&everywhere]) != Verdict::Deny;
        let tools = registry.narrowed(offered);
        tools.names().into_iter().map(str::to_owned).collect()
    };
    let [owner, trusted, member] = [Role::Owner, Role::Trusted, Role::Member].map(|role| of(role, true));
    let list = |tools: &[String]| if tools.is_empty() { lang::doctor_tools_none(lang) } else { lang.listed(tools) };
    let direct: Vec<String> = owner.iter().filter(|name| !of(Role::Owner, false).contains(name)).cloned().collect();
    let direct = match direct.is_empty() {
        true => String::new(),
        false => lang::doctor_tools_direct(lang, lang.listed(direct)),
    };
    let same = lang::doctor_tools_same(lang);
    let trusted = if trusted == owner { same } else { list(&trusted) };
    let exec = match loaded.config.tools.exec.enabled {
        true => lang::doctor_exec_on(lang),
        false => lang::doctor_exec_off(lang),
    };
    let mut findings = vec![good(lang::doctor_tools(lang, list(&owner), trusted, list(&member), direct)), good(exec)];
    findings.extend(exec_network(&loaded.config.tools.exec, lang).map(good));
    findings
}

/// What commands reach, where they are on and confined.
fn exec_network(exec: &ExecConfig, lang: Lang) -> Option<String> {
    let confined = exec.enabled && exec.sandbox != Wanted::Off;
    confined.then(|| match exec.network {
        Network::Open => lang::doctor_exec_open(lang),
        Network::Hosts if !exec.own_hosts().is_empty() => lang::doctor_exec_hosts(lang, lang.listed(&exec.hosts)),
        Network::Hosts | Network::Off => lang::doctor_exec_no_hosts(lang),
    })
}

/// How well commands can be confined here, tried now.
pub async fn sandbox(loaded: &Loaded, lang: Lang) -> Finding {
    let wanted = loaded.config.tools.exec.sandbox;
    let sandbox = app::sandbox(loaded);
    let found = sandbox.found().await;
    match wanted.rule(found, lang) {
        Ruling::Confined(level) => good(lang::doctor_sandbox(lang, level)),
        Ruling::Asked(_, why) => (!loaded.config.tools.exec.enabled, why),
        Ruling::Open => (!loaded.config.tools.exec.enabled, lang::doctor_sandbox_off(lang, found.best)),
        // Nothing is wrong where nobody asked for commands.
        Ruling::Refused(why) => (!loaded.config.tools.exec.enabled, why),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_taken_address_is_told_with_who_took_it_where_the_system_tells() {
        let taken = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let addr = taken.local_addr().expect("it is bound");
        let (fine, text) = address(addr, Lang::En);
        assert!(!fine && text.contains(&addr.to_string()), "{text}");
        if cfg!(target_os = "linux") {
            assert!(text.contains(&format!("process {}", std::process::id())), "{text}");
        }
        drop(taken);
        assert!(address(addr, Lang::Zh).0);
        let (fine, text) = address("192.0.2.1:1".parse().expect("an address"), Lang::En);
        assert!(!fine && text.contains("nothing can listen"), "{text}");
    }

    #[test]
    fn only_plain_names_become_part_of_a_command_to_install() {
        let wanted = json!([
            { "kind": "brew", "formula": "jq" },
            { "kind": "node", "package": "@scope/tool" },
            { "kind": "uv", "package": "x; rm -rf ~" },
            { "kind": "apt", "package": "--allow-unauthenticated" },
            { "kind": "curl", "url": "https://example.com" },
            "nonsense",
        ]);
        assert_eq!(install(Some(&wanted)).as_deref(), Some("`brew install jq`, `npm install -g @scope/tool`"));
        assert_eq!(install(Some(&json!([{ "kind": "go" }]))), None);
        assert_eq!(install(Some(&json!("brew"))), None);
        assert_eq!(install(None), None);
    }

    #[test]
    fn a_workspace_is_missing_writable_or_told_why_not() {
        let top = tempfile::tempdir().expect("a folder");
        assert!(!writable(&top.path().join("nothing")).expect("it may be made"));
        assert!(writable(top.path()).expect("it is ours"));
        assert_eq!(fs::read_dir(top.path()).expect("it is there").count(), 0, "nothing is left behind");
        let file = top.path().join("file");
        fs::write(&file, "x").expect("written");
        assert_eq!(writable(&file).expect_err("no folder").kind(), ErrorKind::NotADirectory);
    }
}
