//! Runs the configuration corpus: each `NN-name.toml` under `src/tests/corpus/config/` with what `NN-name.expect` says.
//!
//! Lines of an `.expect`: `env NAME=value`, `mode 644`, `insecure`; then `ok` or `exit N`, and `at LINE:COL` (a prefix),
//! `key …`, `en …`, `zh …`, `warn …`, `warn-zh …`, `show …`, `door …` for what must be there, `not …` for what must be
//! nowhere.

use std::{fs, path::PathBuf, time::Duration};

use super::*;
use crate::clock::SystemClock;
use channel_api::Clock as _;

fn corpus() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/corpus/config")
}

fn set_mode(path: &Path, mode: u32) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode set");
    }
    #[cfg(not(unix))]
    let _ = (path, mode);
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a folder"))
    }

    fn file(&self, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(FILE);
        fs::write(&path, content).expect("written");
        set_mode(&path, 0o600);
        path
    }
}

fn no_env() -> Env {
    Env::default()
}

#[test]
fn every_case_of_the_corpus_gets_its_answer() {
    let mut cases: Vec<PathBuf> = fs::read_dir(corpus())
        .expect("the corpus is there")
        .map(|entry| entry.expect("listed").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "expect"))
        .collect();
    cases.sort();
    for number in (1..=16).filter(|n| *n != 14) {
        let start = format!("{number:02}-");
        assert!(cases.iter().any(|path| path.file_name().is_some_and(|n| n.to_string_lossy().starts_with(&start))));
    }
    let clock = SystemClock::new();
    for case in cases {
        let name = case.file_stem().expect("a name").to_string_lossy().into_owned();
        let expect = fs::read_to_string(&case).expect("read");
        let of = |key: &str| {
            let lines: Vec<&str> =
                expect.lines().filter_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).collect();
            lines
        };
        let folder = Folder::new();
        let file = folder.file(fs::read(case.with_extension("toml")).expect("read"));
        if let [mode] = of("mode")[..] {
            set_mode(&file, u32::from_str_radix(mode, 8).expect("a mode"));
        }
        let mut env = Env::of(of("env").iter().filter_map(|line| line.split_once('=')));
        env.insecure_perms = expect.lines().any(|line| line == "insecure");
        let before = clock.monotonic();
        let loaded = load(Some(&file), &env);
        assert!(clock.monotonic() - before < Duration::from_secs(1), "{name}: too slow");
        let (findings, shown) = match &loaded {
            Ok(loaded) => {
                assert!(expect.lines().any(|line| line == "ok"), "{name}: was accepted");
                (Vec::new(), loaded.show())
            }
            Err(errors) => {
                let all = errors.render(Lang::En);
                assert_eq!(of("exit"), [errors.exit.to_string()], "{name}: {all}");
                (errors.errors.clone(), String::new())
            }
        };
        let warnings = match &loaded {
            Ok(loaded) => &loaded.warnings,
            Err(errors) => &errors.warnings,
        };
        let all = |findings: &[Finding], lang| {
            findings.iter().map(|finding| finding.render(lang)).collect::<Vec<_>>().join("\n")
        };
        let (en, zh) = (all(&findings, Lang::En), all(&findings, Lang::Zh));
        let (warn, warn_zh) = (all(warnings, Lang::En), all(warnings, Lang::Zh));
        let debug = format!("{loaded:?}{:?}", loaded.as_ref().map(|loaded| &loaded.config.channels));
        let check = |key: &str, text: &str| {
            for wanted in of(key) {
                assert!(text.contains(wanted), "{name}: no {wanted:?} in\n{text}");
            }
        };
        check("en", &en);
        check("zh", &zh);
        check("warn", &warn);
        check("warn-zh", &warn_zh);
        check("show", &shown);
        for at in of("at") {
            assert!(en.contains(&format!("{FILE}:{at}")), "{name}: not at {at}:\n{en}");
        }
        for key in of("key") {
            assert!(findings.iter().any(|finding| finding.key == key), "{name}: no {key:?} in\n{en}");
        }
        if let Ok(loaded) = &loaded {
            let doors = doors::doors(&loaded.config, Lang::En);
            for door in of("door") {
                assert!(doors.iter().any(|known| known.name == door), "{name}: no door {door}");
            }
        }
        for hidden in of("not") {
            for text in [&en, &zh, &warn, &warn_zh, &shown, &debug] {
                assert!(!text.contains(hidden), "{name}: {hidden:?} is shown in\n{text}");
            }
        }
    }
}

#[test]
fn files_that_are_none_are_refused_in_time() {
    let folder = Folder::new();
    let exit = |path: &Path| load(Some(path), &no_env()).expect_err("refused").exit;
    assert_eq!(exit(&folder.0.path().join("none.toml")), 66);
    assert_eq!(exit(folder.0.path()), 66);
    let large = folder.0.path().join("large.toml");
    fs::File::create(&large).and_then(|file| file.set_len(50 << 20)).expect("written");
    let errors = load(Some(&large), &no_env()).expect_err("refused");
    assert_eq!(errors.exit, 78);
    assert!(errors.render(Lang::En).contains("larger than 1 MiB"), "{errors}");
    assert!(load(Some(Path::new("/dev/null")), &no_env()).is_ok() || cfg!(not(unix)));
}

#[test]
fn rubbish_is_refused_in_time() {
    let clock = SystemClock::new();
    for rubbish in [
        "=", "[", "\"", "a.", "{", "a = 1\n", "[a]\n", "x=[{a=", "]", "}", ",", "a ", "a=1 ", "[a]", "x=[", "1,", ".",
        "\u{0}", "=\n", "a={b=1,c", "\\",
    ] {
        let folder = Folder::new();
        let file = folder.file(rubbish.repeat(100_000 / rubbish.len()));
        let before = clock.monotonic();
        assert!(load(Some(&file), &no_env()).is_err(), "{rubbish:?}");
        // A debug build on a busy machine, where a second is too near.
        assert!(clock.monotonic() - before < Duration::from_secs(5), "{rubbish:?}");
    }
}

#[cfg(unix)]
#[test]
fn links_to_elsewhere_are_said_and_paths_stay_beside_the_link() {
    let (here, there) = (Folder::new(), Folder::new());
    let link = here.0.path().join(FILE);
    std::os::unix::fs::symlink(there.file("[agent]\n"), &link).expect("linked");
    let loaded = load(Some(&link), &no_env()).expect("accepted");
    assert!(loaded.warnings[0].render(Lang::En).contains("is a link to"), "{:?}", loaded.warnings);
    assert_eq!(loaded.dir, here.0.path());
}

#[test]
fn dotenv_is_read_beside_the_file_and_never_wins() {
    let folder = Folder::new();
    let file = folder.file("[agent]\nworkspace = \"${A}-${B}\"\n");
    fs::write(folder.0.path().join(".env"), "A=from-file\nB=from-file\nrubbish\n").expect("written");
    let loaded = load(Some(&file), &Env::of([("B", "real")])).expect("accepted");
    assert_eq!(loaded.config.agent.workspace, "from-file-real");
    assert!(loaded.warnings[0].render(Lang::Zh).contains("第 3 行"), "{:?}", loaded.warnings);
}

#[test]
fn a_bad_edit_leaves_the_last_good_configuration_in_hand() {
    let folder = Folder::new();
    let file = folder.file("[agent]\nmax_rounds = 5\n");
    let mut current = load(Some(&file), &no_env()).expect("accepted");
    for bad in ["[agent\n", "[agent]\nmax_rounds = \"x\"\n", "\u{0}"] {
        folder.file(bad);
        if let Ok(better) = load(Some(&file), &no_env()) {
            current = better;
        }
        assert_eq!(current.config.agent.max_rounds, 5);
    }
    folder.file("[agent]\nmax_rounds = 6\n");
    assert_eq!(load(Some(&file), &no_env()).expect("accepted").config.agent.max_rounds, 6);
}

#[test]
fn the_language_is_the_flags_then_the_files_then_the_locales() {
    let folder = Folder::new();
    let file = folder.file("[ui]\nlang = \"zh\"\n");
    let read = |env: &Env| Parsed::read(Some(&file), env).map(|parsed| parsed.lang()).ok();
    assert_eq!(read(&no_env()), Some(Lang::Zh));
    let mut flag = no_env();
    flag.lang = Some(Lang::En);
    assert_eq!(read(&flag), Some(Lang::En));
    folder.file("[ui]\nlang = \"auto\"\n[agent]\nlang = \"auto\"\n");
    assert_eq!(read(&Env::of([("LANG", "zh_CN.UTF-8")])), Some(Lang::Zh));
    assert!(load(Some(&file), &no_env()).is_ok());
}

#[test]
fn listening_elsewhere_is_checked_like_the_file() {
    let folder = Folder::new();
    let mut loaded = load(Some(&folder.file("")), &no_env()).expect("accepted");
    assert_eq!(loaded.listen_on("0.0.0.0:1").expect_err("refused").exit, 78);
    assert!(loaded.listen_on("nonsense").is_err());
    assert!(loaded.listen_on("127.0.0.1:0").is_ok());
    assert_eq!(loaded.config.server.listen, "127.0.0.1:0");
    let mut behind =
        load(Some(&folder.file("[server]\ntrusted_proxy = [\"10.0.0.1\"]\n")), &no_env()).expect("accepted");
    fs::create_dir(folder.0.path().join("data")).expect("made");
    fs::write(folder.0.path().join("data/token"), "changeme\n").expect("written");
    let errors = behind.listen_on("0.0.0.0:1").expect_err("refused");
    assert!(errors.render(Lang::En).contains("too weak"), "{errors}");
}

#[test]
fn the_way_out_of_a_channel_is_checked_like_the_rest_of_its_section() {
    let folder = Folder::new();
    let check = |line: &str| {
        let file = folder.file(format!("[channels.webhook.b]\ntoken = \"a-token-of-enough-letters\"\n{line}\n"));
        load(Some(&file), &no_env())
    };
    for (bad, says) in [
        ("proxy = \"ftp://u:hunter2@10.0.0.1\"", "config.toml:3:1"),
        ("proxy = \"ftp://u:hunter2@10.0.0.1\"", "socks5h://"),
        ("ca_file = \"none.pem\"", "config.toml:3:1"),
        ("ca_file = \"none.pem\"", "none.pem"),
    ] {
        let errors = check(bad).expect_err(bad);
        let text = errors.render(Lang::En);
        assert!(errors.exit == 78 && text.contains(says) && !text.contains("hunter2"), "{bad}: {text}");
    }
    fs::write(folder.0.path().join("empty.pem"), "no certificate\n").expect("written");
    let text = check("ca_file = \"empty.pem\"").expect_err("refused").render(Lang::En);
    assert!(text.contains("there is no certificate in it"), "{text}");
    assert!(check("proxy = \"socks5h://10.0.0.1:1080\"").is_ok());
    // What is switched off is not looked into.
    assert!(check("ca_file = \"none.pem\"\nenabled = false").is_ok());
}

#[test]
fn no_folder_of_the_tools_holds_the_gateways_own_files() {
    let folder = Folder::new();
    let check = |content: String| {
        let file = folder.file(content);
        load(Some(&file), &no_env())
    };
    let outside = tempfile::tempdir().expect("a folder");
    fs::create_dir_all(folder.0.path().join("data/notes")).expect("made");
    fs::create_dir_all(folder.0.path().join("workspace")).expect("made");
    #[cfg(unix)]
    std::os::unix::fs::symlink(folder.0.path(), outside.path().join("link")).expect("linked");
    let link = outside.path().join("link").display().to_string();
    let mut refused = vec![".", "./", "workspace/..", "/", "..", "data", "logs", "not-there/.."];
    refused.extend(cfg!(unix).then_some(link.as_str()));
    for path in refused {
        for (content, key) in [
            (format!("[agent]\nworkspace = '{path}'\n"), "agent.workspace"),
            (format!("[agents.b]\nworkspace = '{path}'\n"), "agents.b.workspace"),
            (format!("[skills]\ndirs = ['skills', '{path}']\n"), "skills.dirs"),
        ] {
            let errors = check(content).expect_err(path);
            assert_eq!((errors.exit, errors.errors.len()), (78, 1), "{path}");
            assert_eq!(errors.errors[0].key, key, "{path}");
        }
    }
    for path in ["workspace", "data/notes", "dat", "../elsewhere", &outside.path().display().to_string()] {
        check(format!("[agent]\nworkspace = '{path}'\n[skills]\ndirs = ['{path}']\n")).expect(path);
    }
}

#[test]
fn paths_are_beside_the_file_and_the_home_folder_is_known() {
    let folder = Folder::new();
    let loaded = load(Some(&folder.file("")), &Env::of([("HOME", "/home/me")])).expect("accepted");
    assert_eq!(loaded.path("workspace"), folder.0.path().join("workspace"));
    assert_eq!(loaded.path("~/skills"), Path::new("/home/me/skills"));
    assert_eq!(loaded.path("/abs"), Path::new("/abs"));
}

#[test]
fn the_shipped_file_starts_as_it_is_and_with_every_example_on() {
    let shipped = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(FILE)).expect("read");
    let folder = Folder::new();
    let as_it_is = load(Some(&folder.file(&shipped)), &no_env()).expect("accepted");
    assert!(as_it_is.warnings.is_empty(), "{:?}", as_it_is.warnings);
    assert!(as_it_is.config.models.is_empty() && as_it_is.config.channels.is_empty());
    // An example is a `#` with no blank behind it.
    let on: String = shipped
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(example) if !example.is_empty() && !example.starts_with(' ') => format!("{example}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    // Every variable that an example names, and those whose form matters.
    let named =
        on.split("${").skip(1).filter_map(|rest| Some((rest.split_once('}')?.0, "0123456789abcdef0123456789abcdef")));
    let formed = [
        ("DASHSCOPE_API_KEY", "sk-0123456789abcdef"),
        ("TELEGRAM_TOKEN", "4242:AAF0_ak-8s7dHqXyZ1234567890abcdefgh"),
        ("DISCORD_TOKEN", "MTIzNDU2Nzg5MDEyMzQ1Njc4.GAbCdE.0123456789abcdef0123456789abcdefghijkl"),
        ("BRIDGE_SECRET", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"),
    ];
    let env = Env::of(named.chain(formed));
    let all = load(Some(&folder.file(&on)), &env).expect("accepted");
    let sections = shipped.lines().filter(|line| line.starts_with("#[channels.") && line.matches('.').count() == 2);
    assert_eq!((all.config.models.len(), all.config.agents.len()), (2, 1));
    assert_eq!(all.config.channels.len(), sections.count());
    let defaults = load(Some(&folder.file("")), &no_env()).expect("accepted");
    let (said, default) = (format!("{:?}", as_it_is.config), format!("{:?}", defaults.config));
    assert_eq!(said, default, "the file says what the defaults are");
}

#[test]
fn a_key_of_the_environment_stays_with_its_providers_host_and_the_line_that_sends_it_is_named() {
    let folder = Folder::new();
    let env = Env::of([("DASHSCOPE_API_KEY", "sk-0123456789abcdef")]);
    let section = "[models.main]\npreset = \"qwen\"\nmodel = \"m\"\nbase_url = \"https://dashscope.example/v1\"\n";
    let loaded = load(Some(&folder.file(section)), &env).expect("accepted");
    assert!(loaded.config.models["main"].api_key.is_none());
    for lang in [Lang::En, Lang::Zh] {
        let said: Vec<String> = loaded.warnings.iter().map(|warning| warning.render(lang)).collect();
        let line = "api_key = \"${DASHSCOPE_API_KEY}\"";
        assert!(said.iter().any(|one| one.starts_with("models.main.api_key: ") && one.contains(line)), "{said:?}");
        assert!(!said.concat().contains("sk-01"), "{said:?}");
    }
    let written = format!("{section}api_key = \"${{DASHSCOPE_API_KEY}}\"\n");
    let loaded = load(Some(&folder.file(&written)), &env).expect("accepted");
    assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
    assert_eq!(loaded.config.models["main"].api_key.as_ref().map(Secret::expose), Some("sk-0123456789abcdef"));
}
