//! Real and hostile SKILL.md files: what loads, what does not and why, and who wins.

use std::{collections::BTreeMap, fs, path::Path};

use proptest::prelude::*;
use serde_json::json;

use super::{
    front_matter::{FrontMatter, parse},
    *,
};

/// A machine with what a test gives it.
#[derive(Default)]
struct Machine {
    programs: &'static [&'static str],
    variables: &'static [&'static str],
    config: &'static [&'static str],
    off: &'static [&'static str],
    home: Option<PathBuf>,
}

impl Env for Machine {
    fn has_program(&self, name: &str) -> bool {
        self.programs.contains(&name)
    }
    fn has_variable(&self, _key: &str, _primary: Option<&str>, name: &str) -> bool {
        self.variables.contains(&name)
    }
    fn os(&self) -> &str {
        "linux"
    }
    fn config_is_true(&self, path: &str) -> bool {
        self.config.contains(&path)
    }
    fn is_enabled(&self, key: &str) -> bool {
        !self.off.contains(&key)
    }
    fn home(&self) -> Option<&Path> {
        self.home.as_deref()
    }
}

fn put(root: &Path, folder: &str, text: impl AsRef<[u8]>) -> PathBuf {
    let path = root.join(folder).join("SKILL.md");
    fs::create_dir_all(path.parent().expect("joined above")).expect("writable");
    fs::write(&path, text).expect("writable");
    path
}

fn named(name: &str) -> String {
    format!("---\nname: {name}\ndescription: about {name}\n---\nbody\n")
}

fn source(tier: Tier, dir: &Path) -> Source {
    Source { tier, dir: dir.to_owned() }
}

fn loaded(root: &Path) -> Skills {
    Skills::load(&[source(Tier::Workspace, root)], &Machine::default())
}

fn by_name<'a>(skills: &'a Skills, name: &str) -> &'a Skill {
    skills.list.iter().find(|skill| skill.name == name).unwrap_or_else(|| panic!("no {name} in {:?}", skills.list))
}

fn field(yaml: &str, key: &str) -> serde_json::Value {
    let front = parse(&format!("---\n{yaml}\n---\n# Body\n")).unwrap_or_else(|fault| panic!("{fault:?}: {yaml}"));
    front.fields.get(key).cloned().unwrap_or(serde_json::Value::Null)
}

/// The shapes of dependencies.md §2: what YAML parsers made of them, and what people meant.
#[test]
fn front_matter_as_people_write_it() {
    let claw = json!({"openclaw": {"requires": {"bins": ["gh"]}}});
    let cases = [
        (r#"metadata: {"openclaw":{"requires":{"bins":["gh"]}}}"#, "metadata", claw.clone()),
        ("metadata:\n  {\n    \"openclaw\": {\"requires\": {\"bins\": [\"gh\",],},},\n  }", "metadata", claw.clone()),
        ("metadata: {\n  \"openclaw\": {\n    \"requires\": {\"bins\": [\"gh\"]}\n  }\n}", "metadata", claw.clone()),
        ("metadata: {\n\"openclaw\": {\nrequires: {bins: [gh]}\n}\n}\nname: x", "metadata", claw),
        (r#"metadata: {"openclaw":{"emoji":"\ud83d\udc19"}}"#, "metadata", json!({"openclaw": {"emoji": "🐙"}})),
        ("description: Use when: the user asks", "description", json!("Use when: the user asks")),
        ("description: `gh` for GitHub", "description", json!("`gh` for GitHub")),
        ("description: *bold* claim", "description", json!("*bold* claim")),
        ("description: %foo first", "description", json!("%foo first")),
        ("description: [a] [b]", "description", json!("[a] [b]")),
        ("description: 'it's'", "description", json!("it's")),
        ("description: \"say \"hi\"\"", "description", json!("say \"hi\"")),
        ("description: @someone asks", "description", json!("@someone asks")),
        ("description: Use when: a\n  long: line goes on", "description", json!("Use when: a long: line goes on")),
        ("metadata:\n\topenclaw:\n\t\temoji: x", "metadata", json!({"openclaw": {"emoji": "x"}})),
        ("name:\tx", "name", json!("x")),
        ("description: 🐙 does it", "description", json!("🐙 does it")),
        ("description: >-\n  a\n  b", "description", json!("a b")),
        ("description: |\n  a: b\n  c", "description", json!("a: b\nc\n")),
        ("name: a\nname: b", "name", json!("b")),
        ("description: no", "description", json!("no")),
        ("description: true", "description", json!("true")),
        ("name: 017", "name", json!("017")),
        ("name: 1_000", "name", json!("1_000")),
        ("name: 1.10", "name", json!("1.10")),
        ("description: C# x #1", "description", json!("C# x")),
        ("description：全角冒号", "description", json!("全角冒号")),
        (
            "metadata:\n  openclaw:\n    note: Use when: x\n    emoji: y",
            "metadata",
            json!({"openclaw": {"note": "Use when: x", "emoji": "y"}}),
        ),
        ("# a comment\n\nname: x", "name", json!("x")),
        ("description: R&D *and* more, &co", "description", json!("R&D *and* more, &co")),
        ("description: wow!", "description", json!("wow!")),
        ("description: !important thing", "description", json!("!important thing")),
    ];
    for (yaml, key, expected) in cases {
        assert_eq!(field(yaml, key), expected, "{yaml}");
    }
}

#[test]
fn marks_line_ends_and_text_after_the_front_matter_do_no_harm() {
    let meant = parse("---\nname: a\ndescription: b\n---\n").expect("plain");
    for file in [
        "\u{feff}---\nname: a\ndescription: b\n---\n",
        "---\nname: a\ndescription: b\n---",
        "---  \nname: a\ndescription: b\n---\t\nbody\n---\nmore: text\n---\n",
        "\n\n---\nname: a\ndescription: b\n---\n",
    ] {
        assert_eq!(parse(file), Ok(meant.clone()), "{file:?}");
    }
}

#[test]
fn what_was_repaired_is_said() {
    let warnings = |yaml: &str| parse(&format!("---\n{yaml}\n---\n")).expect("read").warnings;
    assert_eq!(warnings("name: a\ndescription: b"), []);
    assert_eq!(warnings("description: Use when: x"), [Warning::Repaired]);
    assert_eq!(warnings("name: a\nname: b"), [Warning::FieldTwice("name".into())]);
    assert_eq!(warnings("description: C# x #1"), [Warning::CutAtHash]);
    let ignored = warnings("name: a\ndescription: b\nmetadata: {\"openclaw\": {unclosed");
    assert_eq!(ignored, [Warning::Repaired, Warning::FieldIgnored("metadata".into())]);
}

#[test]
fn row_20_bombs_are_refused_before_they_are_parsed() {
    let fault = |yaml: &str| parse(&format!("---\n{yaml}\n---\n")).expect_err(&yaml[..yaml.len().min(80)]);
    let laughs: String = (1..10).map(|n| format!("l{n}: &l{n} [{}]\n", format!("*l{},", n - 1).repeat(9))).collect();
    assert_eq!(fault(&format!("l0: &l0 x\n{laughs}")), Fault::AnchorsOrTags);
    assert_eq!(fault("a: &a {x: 1}\nb:\n  <<: *a"), Fault::AnchorsOrTags);
    assert_eq!(fault("name: !!python/object/apply:os.system [\"id\"]"), Fault::AnchorsOrTags);
    assert_eq!(fault(&format!("a: {}", "[".repeat(3_000))), Fault::TooDeep);
    assert_eq!(fault(&format!("a: {}", "{a: ".repeat(3_000))), Fault::TooDeep);
    assert_eq!(fault(&format!("a:\n{}x", "- ".repeat(3_000))), Fault::TooDeep);
    let stairs: String = (0..100).map(|n| format!("{}k:\n", " ".repeat(n))).collect();
    assert_eq!(fault(&stairs), Fault::TooDeep);
    assert_eq!(fault(&format!("description: {}", "x".repeat(70_000))), Fault::FrontMatterTooLarge);
    assert_eq!(parse("# Title\n"), Err(Fault::NoFrontMatter));
    assert_eq!(parse(""), Err(Fault::NoFrontMatter));
    assert_eq!(parse("---\nname: a\n"), Err(Fault::NotClosed));
    assert_eq!(parse("---\nname: [unclosed\ndescription: b\n---\n"), Err(Fault::NameNotClosed(2)));
    assert_eq!(parse("\n---\ndescription: b\nname: \"a\n  more\n---\n"), Err(Fault::NameNotClosed(4)));
    assert_eq!(parse("---\n--- \n"), Ok(FrontMatter::default()));
}

#[test]
fn one_broken_skill_costs_itself_alone() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path();
    put(root, "good", named("good"));
    put(root, "bare", "# no front matter\n");
    put(root, "open", "---\nname: open\n");
    put(root, "silent", "---\nname: silent\n---\n");
    put(root, "binary", b"\xff\xff\xff");
    put(root, "giant", format!("{}{}", named("giant"), "x".repeat(256_000)));
    put(root, "path", "---\nname: ../../etc\ndescription: x\n---\n");
    put(root, "long", format!("---\nname: {}\ndescription: x\n---\n", "n".repeat(500)));
    put(root, "hidden", "---\nname: \"a\\u202Eb\"\ndescription: x\n---\n");
    fs::create_dir_all(root.join("folder/SKILL.md")).expect("writable");
    let skills = loaded(root);
    let states: Vec<(&str, &State)> = skills.list.iter().map(|skill| (skill.name.as_str(), &skill.state)).collect();
    assert_eq!(
        states,
        [
            ("bare", &State::Broken(Fault::NoFrontMatter)),
            ("binary", &State::Broken(Fault::NotText)),
            ("folder", &State::Broken(Fault::NotAFile)),
            ("giant", &State::Broken(Fault::TooLarge)),
            ("good", &State::Loaded),
            ("hidden", &State::Broken(Fault::BadName("ab".into()))),
            ("long", &State::Broken(Fault::BadName("n".repeat(64)))),
            ("open", &State::Broken(Fault::NotClosed)),
            ("path", &State::Broken(Fault::BadName("../../etc".into()))),
            ("silent", &State::Broken(Fault::NoDescription)),
        ]
    );
    for skill in &skills.list {
        if let State::Broken(fault) = &skill.state {
            assert!(!fault.text(Lang::En).is_empty() && !fault.text(Lang::Zh).is_empty());
        }
    }
    assert_eq!(skills.entries(None).len(), 1);
}

/// The files of `src/tests/corpus/skills` (bad-inputs.md 17–24), each as a skill of its own beside a good one.
#[test]
fn the_corpus_gets_the_stated_answers() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/corpus/skills");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&corpus).expect("the corpus is there").map(|entry| entry.expect("readable").path()).collect();
    files.retain(|path| path.extension().is_some_and(|end| end == "md"));
    files.sort();
    assert!(files.len() > 20, "{files:?}");
    for path in files {
        let home = tempfile::tempdir().expect("a temporary folder");
        put(home.path(), "candidate", fs::read(&path).expect("readable"));
        put(home.path(), "good", named("good"));
        let skills = loaded(home.path());
        assert_eq!(by_name(&skills, "good").state, State::Loaded, "{path:?}");
        let skill = skills.list.iter().find(|skill| skill.name != "good").expect("the candidate is listed");
        let state = match &skill.state {
            State::Loaded => format!("loaded as {} /{}", skill.name, skill.alias),
            State::Off(needs) => format!("off: {}", needs[0].text(Lang::En)),
            State::Broken(fault) => format!("broken: {}", fault.text(Lang::En)),
        };
        let warnings: String =
            skill.warnings.iter().map(|warning| format!("warning: {}\n", warning.text(Lang::En))).collect();
        let expected = fs::read_to_string(path.with_extension("expected")).expect("each file has its answer");
        assert_eq!(format!("{state}\n{warnings}"), expected, "{path:?}");
    }
}

#[cfg(unix)]
#[test]
fn row_21_links_and_pipes_are_refused_and_never_read() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let (root, outside) = (home.path().join("skills"), home.path().join("outside"));
    let secret = put(&outside, "secret", named("secret"));
    fs::create_dir_all(root.join("soft")).expect("writable");
    fs::create_dir_all(root.join("hard")).expect("writable");
    fs::create_dir_all(root.join("pipe")).expect("writable");
    std::os::unix::fs::symlink(&secret, root.join("soft/SKILL.md")).expect("links work");
    fs::hard_link(&secret, root.join("hard/SKILL.md")).expect("links work");
    std::os::unix::fs::symlink(outside.join("secret"), root.join("dir")).expect("links work");
    std::os::unix::fs::symlink(&root, root.join("loop")).expect("links work");
    let pipe = std::process::Command::new("mkfifo").arg(root.join("pipe/SKILL.md")).status().expect("mkfifo is there");
    assert!(pipe.success());
    put(&root, "good", named("good"));
    let skills = loaded(&root);
    let states: Vec<(&str, &State)> = skills.list.iter().map(|skill| (skill.name.as_str(), &skill.state)).collect();
    assert_eq!(
        states,
        [
            ("dir", &State::Broken(Fault::Link)),
            ("good", &State::Loaded),
            ("hard", &State::Broken(Fault::Link)),
            ("loop", &State::Broken(Fault::Link)),
            ("pipe", &State::Broken(Fault::NotAFile)),
            ("soft", &State::Broken(Fault::Link)),
        ]
    );
}

#[test]
fn odd_names_load_with_an_alias() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path();
    for (folder, name) in
        [("a", "My Skill"), ("weather-cn", "天气预报"), ("中文", "日程"), ("b", "my-skill"), ("c", "GitHub")]
    {
        put(root, folder, named(name));
    }
    let skills = loaded(root);
    assert!(skills.list.iter().all(|skill| skill.state == State::Loaded), "{:?}", skills.list);
    assert_eq!(by_name(&skills, "My Skill").alias, "my_skill");
    assert_eq!(by_name(&skills, "my-skill").alias, "my_skill_2");
    assert_eq!(by_name(&skills, "my-skill").warnings, []);
    assert_eq!(by_name(&skills, "天气预报").alias, "weather_cn");
    assert_eq!(by_name(&skills, "天气预报").warnings, [Warning::OddName("weather_cn".into())]);
    let alias = &by_name(&skills, "日程").alias;
    assert!(alias.starts_with("skill_") && alias.len() == 12, "{alias}");
    assert_eq!(skills.find("GITHUB").map(|skill| skill.name.as_str()), Some("GitHub"));
    assert_eq!(skills.find("天气预报").map(|skill| skill.alias.as_str()), Some("weather_cn"));
    assert_eq!(skills.find("my_skill").map(|skill| skill.name.as_str()), Some("My Skill"));
    assert_eq!(skills.find("nothing"), None);
}

#[test]
fn row_38_a_look_alike_of_another_name_is_refused() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let (workspace, bundled) = (home.path().join("workspace"), home.path().join("bundled"));
    put(&workspace, "x", named("gіthub")); // Cyrillic і
    put(&workspace, "y", named("погода")); // an honest Russian name
    put(&bundled, "github", named("github"));
    let sources = [source(Tier::Workspace, &workspace), source(Tier::Bundled, &bundled)];
    let skills = Skills::load(&sources, &Machine::default());
    assert_eq!(by_name(&skills, "gіthub").state, State::Broken(Fault::LookAlike("github".into())));
    assert_eq!(by_name(&skills, "github").state, State::Loaded);
    assert_eq!(by_name(&skills, "погода").state, State::Loaded);
}

#[test]
fn the_nearest_folder_wins_and_says_what_it_hides() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let dirs: Vec<PathBuf> = ["bundled", "extra", "managed", "workspace"].map(|dir| home.path().join(dir)).to_vec();
    let tiers = [Tier::Bundled, Tier::Extra, Tier::Managed, Tier::Workspace];
    for dir in &dirs[1..] {
        put(dir, "notes", format!("{}{}", named("notes"), dir.display()));
    }
    // The same words under another roof hide nothing.
    fs::create_dir_all(dirs[0].join("notes")).expect("writable");
    fs::copy(dirs[3].join("notes/SKILL.md"), dirs[0].join("notes/SKILL.md")).expect("written above");
    put(&dirs[3], "z-notes", named("Notes"));
    // A broken file of higher rank does not hide one that works.
    put(&dirs[3], "weather", "---\nname: weather\n---\n");
    put(&dirs[1], "weather", named("weather"));
    let sources: Vec<Source> = tiers.iter().zip(&dirs).map(|(tier, dir)| source(*tier, dir)).collect();
    let skills = Skills::load(&sources, &Machine::default());
    let usable: Vec<(&str, Tier)> = skills.usable().map(|skill| (skill.name.as_str(), skill.tier)).collect();
    assert_eq!(usable, [("notes", Tier::Workspace), ("weather", Tier::Extra)]);
    let hides = |path: &Path| Warning::Hides(path.join("SKILL.md"));
    assert_eq!(
        by_name(&skills, "notes").warnings,
        [hides(&dirs[3].join("z-notes")), hides(&dirs[2].join("notes")), hides(&dirs[1].join("notes"))]
    );
    let mut turned = sources.clone();
    turned.reverse();
    assert_eq!(Skills::load(&turned, &Machine::default()).list, skills.list);
}

#[test]
fn the_usual_folders_in_order_of_rank() {
    let folders = sources(Path::new("/w"), Path::new("/d"), [PathBuf::from("~/.openclaw/skills")]);
    let expected = [
        (Tier::Workspace, "/w/skills"),
        (Tier::Managed, "/d/skills"),
        (Tier::Extra, "~/.openclaw/skills"),
        (Tier::Bundled, "/d/bundled-skills"),
    ];
    assert_eq!(folders, expected.map(|(tier, dir)| source(tier, Path::new(dir))));
}

#[test]
fn the_machine_answers_from_its_variables_and_configuration() {
    let home = tempfile::tempdir().expect("a temporary folder");
    fs::write(home.path().join("gh"), "").expect("writable");
    let path = std::env::join_paths([Path::new("nowhere"), home.path()]).expect("no separators in it");
    let path = path.into_string().expect("temporary folders are plain text");
    let variable = move |name: &str| match name {
        "PATH" => Some(path.clone()),
        "HOME" => Some("/home/ann".to_owned()),
        "KEY" => Some("secret".to_owned()),
        "EMPTY" => Some(String::new()),
        _ => None,
    };
    let config = json!({"tools": {"exec": {"enabled": true, "off": false, "list": []}}, "x": "",
        "skills": {"entries": {"gone": {"enabled": false}, "kept": {"enabled": true}}}});
    let aside: config::SkillsConfig =
        toml::from_str("[entries.given]\napiKey = \"k\"\nenv = { ASIDE = \"x\", EMPTY = \"\" }\n").expect("a section");
    let keyring = Keyring::new(aside.entries, variable.clone(), Vec::new());
    let machine = ProcessEnv::new(variable, keyring, config);
    assert!(machine.has_program("gh") && !machine.has_program("jq"));
    for name in ["", ".", "..", "../gh", "/bin/sh", "a\0b"] {
        assert!(!machine.has_program(name), "{name:?}");
    }
    let has = |name: &str| machine.has_variable("given", Some("MAIN"), name);
    assert!(has("KEY") && has("ASIDE") && has("MAIN") && !has("EMPTY") && !has("OTHER"));
    assert!(!machine.has_variable("other", Some("MAIN"), "MAIN") && !machine.has_variable("other", None, "ASIDE"));
    assert_eq!(machine.home(), Some(Path::new("/home/ann")));
    assert!(machine.config_is_true("tools.exec.enabled") && machine.config_is_true("tools.exec"));
    for path in ["tools.exec.off", "tools.exec.list", "x", "tools.none", "x.y.z", ""] {
        assert!(!machine.config_is_true(path), "{path}");
    }
    assert!(!machine.is_enabled("gone") && machine.is_enabled("kept") && machine.is_enabled("other"));
}

#[test]
fn gates_say_what_is_missing() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path();
    let with = |name: &str, metadata: &str| {
        put(root, name, format!("---\nname: {name}\ndescription: d\nmetadata: {metadata}\n---\n"));
    };
    with("all", r#"{"openclaw":{"requires":{"bins":["gh","jq"],"anyBins":["x","y"],"env":["KEY"],"config":["a.b"]}}}"#);
    with("met", r#"{"clawdbot":{"requires":{"bins":"jq","env":["SET"],"config":["on"]},"os":["Linux"]}}"#);
    with("mac", r#"{"clawdis":{"os":"macos","always":true}}"#);
    with("always", r#"{"crawfish":{"always":true,"requires":{"bins":["gh"]}},"openclaw":{"os":["darwin"]}}"#);
    with("off", r#"{"openclaw":{"skillKey":"other","emoji":"🐙","primaryEnv":"KEY"}}"#);
    with("text", r#"'{"openclaw":{"os":["win32"]}}'"#);
    let machine =
        Machine { programs: &["jq"], variables: &["SET"], config: &["on"], off: &["other"], ..Machine::default() };
    let skills = Skills::load(&[source(Tier::Managed, root)], &machine);
    let words = |list: &[&str]| list.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    assert_eq!(
        by_name(&skills, "all").state,
        State::Off(vec![
            Unmet::Program("gh".into()),
            Unmet::AnyProgram(words(&["x", "y"])),
            Unmet::Variable("KEY".into()),
            Unmet::Config("a.b".into()),
        ])
    );
    assert_eq!(by_name(&skills, "met").state, State::Loaded);
    assert_eq!(by_name(&skills, "mac").state, State::Off(vec![Unmet::Os(words(&["darwin"]))]));
    assert_eq!(by_name(&skills, "always").state, State::Loaded);
    assert_eq!(by_name(&skills, "off").state, State::Off(vec![Unmet::SwitchedOff]));
    assert_eq!(by_name(&skills, "off").emoji.as_deref(), Some("🐙"));
    assert_eq!(by_name(&skills, "text").state, State::Off(vec![Unmet::Os(words(&["win32"]))]));
    assert_eq!(Unmet::Program("gh".into()).text(Lang::Zh), "未安装程序 `gh`");
}

#[test]
fn switches_hide_a_skill_from_the_model_or_from_people() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path();
    put(root, "a", "---\nname: a\ndescription: d\ndisable-model-invocation: true\n---\n");
    put(root, "b", "---\nname: b\ndescription: d\nuser-invocable: no\nhomepage: https://example.org\n---\n");
    let skills = loaded(root);
    assert_eq!(skills.entries(None).iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>(), ["b"]);
    assert_eq!(skills.commands().collect::<Vec<_>>(), [("a", "d".to_owned())]);
    assert_eq!(by_name(&skills, "b").homepage.as_deref(), Some("https://example.org"));
}

#[test]
fn folders_may_be_nested_missing_or_in_the_home_folder() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let place = home.path().join(".openclaw/skills");
    let path = put(&place, "group/inner", named("inner"));
    put(&place, ".git/x", named("git"));
    put(&place, "node_modules/x", named("npm"));
    put(&place, "1/2/3/4/5/6/7", named("deep"));
    let machine = Machine { home: Some(home.path().to_owned()), ..Machine::default() };
    let sources =
        [source(Tier::Extra, Path::new("~/.openclaw/skills")), source(Tier::Bundled, Path::new("/nowhere/at/all"))];
    let skills = Skills::load(&sources, &machine);
    assert_eq!(skills.list.iter().map(|skill| skill.name.as_str()).collect::<Vec<_>>(), ["inner"]);
    assert_eq!(skills.folders, [place]);
    assert_eq!(skills.problems, []);
    assert_eq!(skills.entries(machine.home())[0].location, "~/.openclaw/skills/group/inner/SKILL.md");
    assert_eq!(skills.entries(None)[0].location, path.to_string_lossy());
}

#[test]
fn a_chinese_file_from_windows_loads() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let text = "---\r\nname: tianqi\r\ndescription: 查询天气：用户问天气时使用\r\n---\r\n正文\r\n";
    put(home.path(), "gbk", encoding_rs::GB18030.encode(text).0);
    assert_eq!(by_name(&loaded(home.path()), "tianqi").description, "查询天气：用户问天气时使用");
}

#[test]
fn a_new_an_edited_and_a_removed_skill_are_seen_without_a_restart() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path().join("skills");
    let second = Duration::from_secs(1);
    let shelf = Shelf::open(vec![source(Tier::Workspace, &root)], Box::new(Machine::default()), Duration::ZERO);
    let names =
        |now: Duration| shelf.current(now).list.iter().map(|skill| skill.description.clone()).collect::<Vec<_>>();
    assert!(names(second * 3).is_empty());
    put(&root, "a", named("a"));
    assert!(names(second * 4).is_empty(), "looked at most every two seconds");
    assert_eq!(names(second * 6), ["about a"]);
    put(&root, "a", "---\nname: a\ndescription: changed its words\n---\n");
    assert_eq!(names(second * 9), ["changed its words"]);
    let before = shelf.current(second * 12);
    assert!(Arc::ptr_eq(&before, &shelf.current(second * 15)), "unchanged folders are not read again");
    fs::remove_dir_all(root.join("a")).expect("written above");
    assert!(names(second * 18).is_empty());
}

#[test]
fn a_program_that_is_installed_turns_its_skill_on_without_a_restart() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let (bin, root) = (home.path().join("bin"), home.path().join("skills"));
    fs::create_dir(&bin).expect("writable");
    put(
        &root,
        "a",
        "---\nname: a\ndescription: d\nmetadata: {\"clawdis\":{\"requires\":{\"bins\":[\"tide-tool\"]}}}\n---\n",
    );
    let path = bin.display().to_string();
    let env = ProcessEnv::new(|name| (name == "PATH").then(|| path.clone()), Keyring::default(), json!({}));
    let shelf = Shelf::open(vec![source(Tier::Workspace, &root)], Box::new(env), Duration::ZERO);
    let state = |seconds: u64| shelf.current(Duration::from_secs(seconds)).list[0].state.clone();
    let off = State::Off(vec![Unmet::Program("tide-tool".into())]);
    assert_eq!(state(3), off);
    fs::write(bin.join("tide-tool"), "").expect("writable");
    assert_eq!(state(6), State::Loaded);
    fs::remove_file(bin.join("tide-tool")).expect("it is there");
    assert_eq!(state(9), off);
}

fn keyring(entries: &str, own: &[&str]) -> Keyring {
    let section: config::SkillsConfig = toml::from_str(entries).expect("a section");
    let environment = |name: &str| match name {
        "HA_TOKEN" => Some("token-of-the-house".to_owned()),
        "MODEL_KEY" => Some("key-of-the-model".to_owned()),
        "HA_URL" => Some("http://house:8123".to_owned()),
        _ => None,
    };
    Keyring::new(section.entries, environment, own.iter().map(|value| crate::secrets::Secret::new(*value)).collect())
}

fn needing(name: &str, variables: &str) -> String {
    let metadata = format!("{{\"openclaw\":{{\"requires\":{{\"env\":[{variables}]}}}}}}");
    format!("---\nname: {name}\ndescription: d\nmetadata: {metadata}\n---\nSee https://house.example:8123/api\n")
}

#[test]
fn a_turn_gets_the_variables_of_the_skills_it_read_and_no_others() {
    let home = tempfile::tempdir().expect("a temporary folder");
    put(home.path(), "house", needing("house", "\"HA_TOKEN\",\"HA_URL\",\"LD_PRELOAD\""));
    put(home.path(), "other", needing("other", "\"MODEL_KEY\""));
    let machine = Machine { variables: &["HA_TOKEN", "HA_URL", "MODEL_KEY", "LD_PRELOAD"], ..Machine::default() };
    let keys = keyring("[entries.other.env]\nEXTRA = \"aside-value\"\n", &["key-of-the-model"]);
    let given = |tier: Tier, read: &[&str]| {
        let skills = Skills::load(&[source(tier, home.path())], &machine);
        let read: Vec<PathBuf> = read.iter().map(|name| by_name(&skills, name).location.clone()).collect();
        let handed = keys.of_turn(&skills, &read);
        let withheld = handed.withheld.into_iter().map(|held| (held.name, held.why)).collect::<Vec<_>>();
        (handed.given.into_keys().collect::<Vec<_>>().join(" "), withheld)
    };
    let (none, withheld) = given(Tier::Extra, &[]);
    assert_eq!((none.as_str(), withheld.len()), ("", 4), "{withheld:?}");
    assert!(withheld.iter().all(|(_, why)| matches!(why, variables::Why::NotRead(_))), "{withheld:?}");
    assert_eq!(given(Tier::Extra, &["house"]).0, "HA_TOKEN HA_URL");
    assert_eq!(given(Tier::Extra, &["house", "other"]).0, "EXTRA HA_TOKEN HA_URL MODEL_KEY");
    // Where the agent can write, a name is not the owner's word for the gateway's own key.
    let (given_there, withheld) = given(Tier::Workspace, &["house", "other"]);
    assert_eq!(given_there, "EXTRA HA_TOKEN HA_URL");
    assert_eq!(withheld, [("MODEL_KEY".to_owned(), variables::Why::Own)]);
    let skills = Skills::load(&[source(Tier::Extra, home.path())], &machine);
    let mut secrets: Vec<String> = keys.secrets(&skills).iter().map(|secret| secret.expose().to_owned()).collect();
    secrets.sort();
    assert_eq!(secrets, ["aside-value", "key-of-the-model", "token-of-the-house"]);
}

#[test]
fn a_turn_gets_the_hosts_of_the_skills_it_read_and_of_no_others() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path().join("skills");
    put(&root, "house", needing("house", "\"HA_TOKEN\",\"HA_URL\""));
    put(&root, "other", "---\nname: other\ndescription: d\n---\nhttps://other.example and http://192.168.1.9:8080/x\n");
    let machine = Machine { variables: &["HA_TOKEN", "HA_URL"], ..Machine::default() };
    let keys = Keyring::new(
        toml::from_str::<config::SkillsConfig>("[entries.house.env]\nHA_URL = \"http://10.0.0.7:8123\"\n")
            .expect("good")
            .entries,
        |_| None,
        Vec::new(),
    );
    let open = |tier: Tier, read: &[&str], at: &str| {
        let skills = Skills::load(&[source(tier, &root)], &machine);
        let read: Vec<PathBuf> = read.iter().map(|name| by_name(&skills, name).location.clone()).collect();
        let hosts = keys.of_turn(&skills, &read).hosts;
        let url = reqwest::Url::parse(at).expect("an address");
        let (name, _) = crate::egress::hosts::plain(&url).expect("a host");
        crate::egress::hosts::opened(&hosts, &name, url.port_or_known_default().expect("a port")).is_some()
    };
    let (named, value) = ("https://house.example:8123", "http://10.0.0.7:8123");
    for (tier, read, at, expected) in [
        (Tier::Extra, ["house"].as_slice(), named, true),
        (Tier::Extra, &["house"], value, true),
        (Tier::Extra, &["house"], "http://10.0.0.7", false),
        (Tier::Extra, &["house"], "https://other.example", false),
        (Tier::Extra, &["other"], value, false),
        (Tier::Extra, &["other"], "http://192.168.1.9:8080", true),
        (Tier::Extra, &["house", "other"], "https://other.example", true),
        (Tier::Extra, &[], named, false),
        // A command can write there: what the file says is nobody's word, what the owner set is.
        (Tier::Workspace, &["house"], named, false),
        (Tier::Workspace, &["house"], value, true),
        (Tier::Managed, &["house"], named, false),
        (Tier::Managed, &["house"], value, false),
    ] {
        assert_eq!(open(tier, read, at), expected, "{tier:?} {read:?} {at}");
    }
    let skills = Skills::load(&[source(Tier::Managed, &root)], &machine);
    let house = by_name(&skills, "house");
    give(&root, house);
    assert!(open(Tier::Managed, &["house"], named) && open(Tier::Managed, &["house"], value));
    assert!(!open(Tier::Managed, &["other"], value) && !open(Tier::Managed, &["house"], "https://other.example"));
    fs::write(root.join("house/SKILL.md"), needing("house", "\"HA_TOKEN\"")).expect("writable");
    assert!(!open(Tier::Managed, &["house"], named), "it changed");
}

#[test]
fn row_21_a_grant_holds_for_the_files_it_was_given_for() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path().join("skills");
    put(&root, "house", needing("house", "\"HA_TOKEN\""));
    fs::write(root.join("house/run.sh"), "curl x").expect("writable");
    let machine = Machine { variables: &["HA_TOKEN"], ..Machine::default() };
    let load = || Skills::load(&[source(Tier::Managed, &root)], &machine).list.remove(0);
    assert_eq!(load().consent, Consent::Missing);
    let asks = grants::Asks::of(&load(), &load().text().expect("readable"));
    assert_eq!(asks.env, ["HA_TOKEN"]);
    assert_eq!(asks.hosts, ["house.example:8123"]);
    give(&root, &load());
    let granted =
        grants::Asks { env: vec!["HA_TOKEN".into()], hosts: vec!["house.example:8123".into()], commands: vec![] };
    assert_eq!(load().consent, Consent::Granted(granted.clone()));
    let file = fs::read_to_string(home.path().join("skill-grants.json")).expect("written");
    assert!(file.contains("HA_TOKEN") && file.contains("run.sh") && file.contains("\"at\": 7"), "{file}");
    // What a granted file could run or read: more files, hidden ones, packages.
    for path in ["cache.json", ".env", "scripts/.hidden.sh", "node_modules/x/index.js", "a/.git/hooks/x"] {
        let path = root.join("house").join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("writable");
        fs::write(&path, "{}").expect("writable");
        assert_eq!(load().consent, Consent::Changed(path.clone()));
        fs::remove_file(&path).expect("it is there");
        assert_eq!(load().consent, Consent::Granted(granted.clone()));
    }
    fs::write(root.join("house/run.sh"), "curl y").expect("writable");
    assert_eq!(load().consent, Consent::Changed(root.join("house/run.sh")));
    fs::remove_file(root.join("house/run.sh")).expect("it is there");
    assert_eq!(load().consent, Consent::Changed(root.join("house/run.sh")));
    assert!(grants::withdraw(&root, &root.join("house")).expect("writable"));
    assert_eq!(load().consent, Consent::Missing);
    assert!(!grants::withdraw(&root, &root.join("house")).expect("writable"));
    fs::write(home.path().join("skill-grants.json"), "{broken").expect("writable");
    assert_eq!(load().consent, Consent::Missing, "what cannot be read grants nothing");
}

/// Grants a skill what it asks for, for its files as they are.
fn give(root: &Path, skill: &Skill) {
    let asks = grants::Asks::of(skill, &skill.text().expect("readable"));
    let files = pinned::files(skill.location.parent().expect("a folder")).expect("readable");
    grants::give(root, skill, asks, pinned::sums(&files), 7).expect("writable");
}

#[test]
fn row_21_an_installed_skill_that_changed_is_off_until_it_is_accepted() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path().join("skills");
    let folder = root.join("house");
    put(&root, "house", named("house"));
    put(&root, "house/example", named("example"));
    let files = || pinned::files(&folder).expect("readable");
    let mut origin = pinned::Origin { slug: "house".to_owned(), ..pinned::Origin::default() };
    origin.pin_to(&files());
    origin.write(&folder).expect("writable");
    let load = || Skills::load(&[source(Tier::Managed, &root)], &Machine::default());
    let shelf = Shelf::open(vec![source(Tier::Managed, &root)], Box::new(Machine::default()), Duration::ZERO);
    assert_eq!(load().list[0].state, State::Loaded);
    let changed = State::Off(vec![Unmet::Changed("house".to_owned())]);
    // The same length, and the time of the change set back.
    let script = folder.join("example/SKILL.md");
    let before = fs::metadata(&script).expect("there").modified().expect("a time");
    fs::write(&script, named("exbmple")).expect("writable");
    fs::File::options().write(true).open(&script).expect("there").set_modified(before).expect("settable");
    assert_eq!(load().list[0].state, changed);
    if cfg!(unix) {
        assert_eq!(shelf.look(Duration::ZERO).list[0].state, changed, "the watch sees it");
    }
    assert_eq!(load().entries(None), [], "the model is not told of it");
    assert!(load().at(&folder.join("SKILL.md")).is_none() && load().known_at(&folder.join("SKILL.md")).is_some());
    pinned::accept(&folder, &files()).expect("writable");
    assert_eq!(load().list[0].state, State::Loaded);
    // Without its SKILL.md, what lies deeper in it does not become a skill of its own.
    fs::remove_file(folder.join("SKILL.md")).expect("there");
    let left = load().list.remove(0);
    assert_eq!((left.name.as_str(), left.state), ("exbmple", changed));
}

#[test]
fn row_21_the_key_of_another_skill_opens_nothing() {
    let root = tempfile::tempdir().expect("a temporary folder");
    let keyed = |name: &str, key: &str| {
        format!(
            "---\nname: {name}\ndescription: d\nmetadata: {{\"openclaw\":{{\"skillKey\":\"{key}\",\"requires\":{{\"env\":[\"HA_TOKEN\"]}}}}}}\n---\n"
        )
    };
    put(root.path(), "a-thief", keyed("a-thief", "house"));
    put(root.path(), "house", keyed("house", "house"));
    put(root.path(), "b-first", keyed("b-first", "lamp"));
    put(root.path(), "b-second", keyed("b-second", "Lamp"));
    let entries = "[entries.house.env]\nHA_TOKEN = \"hush-hush\"\n[entries.lamp.env]\nHA_TOKEN = \"hush-too\"\n";
    let entries = toml::from_str::<config::SkillsConfig>(entries).expect("good").entries;
    let keys = Keyring::new(entries, |name| (name == "SHELL").then(|| "/bin/a-shell".to_owned()), Vec::new());
    let machine = Machine { variables: &["HA_TOKEN"], ..Machine::default() };
    let skills = Skills::load(&[source(Tier::Extra, root.path())], &machine);
    let given = |name: &str| keys.of_skill(by_name(&skills, name)).given.len();
    assert_eq!(["a-thief", "house", "b-first", "b-second"].map(given), [0, 1, 1, 0]);
    let told = |name: &str| by_name(&skills, name).warnings.iter().any(|odd| matches!(odd, Warning::KeyTaken(_)));
    assert_eq!(["a-thief", "house", "b-first", "b-second"].map(told), [true, false, false, true]);
}

#[test]
fn what_a_skill_merely_names_is_not_blotted_out_everywhere() {
    let home = tempfile::tempdir().expect("a temporary folder");
    let root = home.path().join("skills");
    let naming = |name: &str| needing(name, "\"SHELL\",\"MOOD\"");
    put(&root, "house", naming("house"));
    let keys = Keyring::new(BTreeMap::new(), |name| Some(format!("value-of-{name}")), Vec::new());
    let machine = Machine { variables: &["SHELL", "MOOD"], ..Machine::default() };
    let known = |tier: Tier| {
        let skills = Skills::load(&[source(tier, &root)], &machine);
        keys.secrets(&skills).iter().map(|value| value.expose().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(known(Tier::Managed), [""; 0], "nobody granted it");
    assert_eq!(known(Tier::Extra), ["value-of-MOOD"]);
}

#[test]
fn row_20_an_alias_with_a_comment_behind_it_is_one() {
    for yaml in ["x: &a [1]\ny:\n  - *a # c\n", "x: &a [1]\ny: {k: *a }\n", "? &a x\n: 1\ny: *a\n"] {
        assert_eq!(parse(&format!("---\n{yaml}---\n")), Err(Fault::AnchorsOrTags), "{yaml}");
    }
    assert!(parse("---\nname: a\ndescription: *important* & more\n---\n").is_ok());
    let long = format!("---\nname: a\ndescription: {}\n---\n", "x".repeat(17 * 1024));
    assert_eq!(parse(&long), Err(Fault::FrontMatterTooLarge));
}

#[test]
fn the_bundled_skills_load_and_are_renewed() {
    let home = tempfile::tempdir().expect("a temporary folder");
    write_bundled(home.path()).expect("writable");
    fs::write(home.path().join("study-notes/SKILL.md"), "an older version").expect("writable");
    write_bundled(home.path()).expect("writable");
    let skills = Skills::load(&[source(Tier::Bundled, home.path())], &Machine::default());
    let skill = by_name(&skills, "study-notes");
    assert_eq!((&skill.state, skill.alias.as_str()), (&State::Loaded, "study_notes"));
    assert_eq!(skill.warnings, []);
    assert!(skill.description.contains("summarise") && skill.description.contains("总结"));
    assert!(skill.description.chars().count() <= 400, "the description is in every prompt");
}

proptest! {
    #[test]
    fn no_front_matter_panics(yaml in "([a-z]{1,6}: ?[^\n]{0,20}\n|[ \t-]{0,4}[^\n]{0,20}\n|[\\[{}\\]\"'|>&*!%@`:#, ]{1,10}\n){0,20}") {
        let _ = parse(&format!("---\n{yaml}---\n"));
        let _ = parse(&yaml);
    }

    #[test]
    fn any_name_is_settled(name in "(?s).{0,80}", folder in "(?s).{0,40}") {
        let front = FrontMatter {
            fields: [("name".to_owned(), json!(name)), ("description".to_owned(), json!("d"))].into_iter().collect(),
            warnings: Vec::new(),
        };
        let skill = load::skill(front, &folder, PathBuf::from("/x/SKILL.md"), Tier::Extra, &Machine::default());
        prop_assert!(skill.name.chars().count() <= 64);
        if let Some(alias) = load::alias_of(&name) {
            prop_assert!(!alias.is_empty() && alias.len() <= 32);
            prop_assert!(alias.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_'));
        }
    }
}

/// What a file of the corpus is worth, in a word.
fn word(skill: &Skill) -> String {
    let repaired = |warning: &Warning| matches!(warning, Warning::Repaired | Warning::FieldIgnored(_));
    match &skill.state {
        State::Broken(fault) => format!(
            "refused: {}",
            match fault {
                Fault::NoFrontMatter => "no front matter",
                Fault::NotClosed => "not closed",
                Fault::TooDeep => "too deep",
                Fault::AnchorsOrTags => "anchors or tags",
                Fault::NoDescription => "no description",
                Fault::BadName(_) => "bad name",
                Fault::NotText => "not text",
                fault => panic!("no word for {fault:?}"),
            }
        ),
        State::Loaded if skill.warnings.iter().any(repaired) => "loaded with repairs".to_owned(),
        State::Loaded => "loaded".to_owned(),
        State::Off(needs) => format!("off: {needs:?}"),
    }
}

#[test]
fn files_as_people_write_them_load_or_are_refused_with_the_right_word() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/tests/corpus/skills");
    let expected = fs::read_to_string(root.join("expected.toml")).expect("it is there");
    let expected: toml::Table = toml::from_str(&expected).expect("it is TOML");
    assert!(expected.len() >= 30);
    let machine = Machine { programs: &["sh"], ..Machine::default() };
    let skills = Skills::load(&[source(Tier::Workspace, &root)], &machine);
    let mut wrong = Vec::new();
    for (folder, meant) in &expected {
        let place = root.join(folder).join("SKILL.md");
        let skill = skills.list.iter().find(|skill| skill.location == place).unwrap_or_else(|| panic!("no {folder}"));
        let said = |key: &str| meant.get(key).and_then(toml::Value::as_str);
        let facts = [
            ("word", Some(word(skill))),
            ("name", Some(skill.name.clone())),
            ("alias", Some(skill.alias.clone())),
            ("description", Some(skill.description.clone())),
            ("emoji", skill.emoji.clone()),
            ("primary_env", skill.primary_env.clone()),
        ];
        for (key, is) in facts {
            if let Some(meant) = said(key)
                && is.as_deref() != Some(meant)
            {
                wrong.push(format!("{folder}: {key} is {is:?}, not {meant:?}"));
            }
        }
    }
    assert_eq!(skills.list.len(), expected.len());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn what_is_over_the_limit_of_a_folder_is_told_and_broken_skills_take_no_places() {
    let root = tempfile::tempdir().expect("a temporary folder");
    for n in 0..20 {
        put(root.path(), &format!("a{n:03}"), "no front matter");
    }
    for n in 0..300 {
        put(root.path(), &format!("b{n:03}"), named(&format!("b{n:03}")));
    }
    let skills = loaded(root.path());
    assert_eq!((skills.usable().count(), skills.list.len(), skills.problems.len()), (300, 320, 0));
    for n in 0..7 {
        put(root.path(), &format!("c{n:03}"), named(&format!("c{n:03}")));
    }
    let skills = loaded(root.path());
    assert_eq!(skills.usable().count(), 300);
    assert_eq!(skills.problems, [Problem::LeftOut(root.path().to_owned(), 7, false)]);
    let text = skills.problems[0].text(Lang::En);
    assert!(text.contains("7 left out") && text.contains("300"), "{text}");
}

#[test]
fn a_skill_called_like_a_command_or_a_tool_is_told_so() {
    let root = tempfile::tempdir().expect("a temporary folder");
    for name in ["new", "stop", "exec", "Web-Search", "停止", "memory_add", "weather", "newspaper"] {
        put(root.path(), name, named(name));
    }
    let skills = loaded(root.path());
    for skill in &skills.list {
        let told = skill.warnings.iter().any(|warning| matches!(warning, Warning::LikeBuiltIn(_)));
        assert_eq!(told, !["weather", "newspaper"].contains(&skill.name.as_str()), "{}", skill.name);
    }
}

/// What was installed a moment ago is not in the list of a turn that runs already, and one that an agent is not given is
/// not in its list: a stranger's words all the same.
#[test]
fn row_21_what_is_installed_and_granted_nothing_is_a_strangers_whether_it_is_listed_or_not() {
    let home = tempfile::tempdir().expect("a folder");
    let root = home.path().join("skills");
    let load = || Skills::load(&[source(Tier::Managed, &root)], &Machine::default());
    let early = load();
    let house = put(&root, "house", named("house"));
    assert!(early.is_strangers(&house, false) && early.is_strangers(&root.join("house/notes.md"), false));
    assert!(early.is_strangers(&root, false) && early.is_strangers(home.path(), true), "its names are theirs, too");
    assert!(!early.is_strangers(home.path(), false) && !early.is_strangers(&home.path().join("skills.md"), true));
    let skills = load();
    give(&root, &skills.list[0]);
    let skills = load();
    assert!(!skills.is_strangers(&house, false) && !skills.is_strangers(&root, true), "granted");
    put(&root, "tide", named("tide"));
    assert!(skills.is_strangers(&root.join("tide/SKILL.md"), false) && skills.is_strangers(&root, true));
    assert!(skills.only(&["tide".to_owned()]).is_strangers(&root.join("tide/SKILL.md"), false));
    assert!(
        load().only(&[]).is_strangers(&root.join("tide/SKILL.md"), false),
        "an agent without it reads it all the same"
    );
}
