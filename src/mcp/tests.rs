//! Approved tools on their way to a turn, without any server.

use serde_json::json;

use super::*;
use crate::{
    clock::ManualClock,
    policy::Role,
    tools::{Effect, Parts},
};

fn listing(names: &[&str]) -> Listing {
    let tool = |name: &&str| {
        let schema = json!({ "type": "object", "properties": { "zone": { "type": "string" } } });
        let hints = json!({ "readOnlyHint": true });
        serde_json::from_value(json!({ "name": name, "description": "d", "inputSchema": schema, "annotations": hints }))
            .expect("a tool")
    };
    Listing::of(&names.iter().map(tool).collect::<Vec<_>>(), |_| true)
}

fn open(folder: &std::path::Path, config: &str) -> Mcp {
    let common = Common {
        dir: folder.to_owned(),
        data: folder.to_owned(),
        house: "test".to_owned(),
        fake_ip: false,
        env: Box::new(|_| None),
        redactor: Redactor::default(),
        sandbox: crate::confinement::Sandbox::new(Vec::new(), ".".into()),
        clock: Arc::new(ManualClock::at(0)),
    };
    Mcp::new(&toml::from_str(config).expect("a good section"), &common)
}

const CONFIG: &str = "[servers.memory]\ncommand = [\"there-is-no-such-program\"]\ntools = [\"[!x]*\"]\n";

#[test]
fn approved_tools_need_no_server_and_never_take_a_name_of_ours() {
    let folder = tempfile::tempdir().expect("a folder");
    let builtin = Registry::builtin(&Parts::default());
    let owner = Asker { role: Role::Owner, direct: true };
    let mcp = open(folder.path(), CONFIG);
    let new = |mcp: &Mcp| -> Vec<String> {
        let joined = mcp.joined(&builtin, owner);
        joined.names().into_iter().filter(|name| builtin.get(name).is_none()).map(str::to_owned).collect()
    };
    assert!(new(&mcp).is_empty(), "nothing is approved");
    let server = &mcp.servers()[0];
    server.approve(&listing(&["now", "search", "exec", "xyz"]), &[]).expect("it can be written");
    assert_eq!(new(&mcp), ["memory_exec", "memory_now"], "`memory_search` stays ours, `xyz` is not wanted");
    let ours = mcp.joined(&builtin, owner).specs().into_iter().find(|spec| spec.name == "memory_search");
    assert_ne!(ours.expect("it is there").description, "d");

    // A list without what was approved, and with something else under an approved name.
    let mut later = listing(&["exec"]);
    later.tools.get_mut("exec").expect("listed").hash = "another".to_owned();
    server.take(later, None);
    assert!(new(&mcp).is_empty(), "{:?}", new(&mcp));
    server.take(listing(&["now"]), None);
    assert_eq!(new(&mcp), ["memory_now"]);
}

#[test]
fn a_server_is_believed_only_where_the_owner_says_so() {
    for (more, effect, least) in [
        ("", Effect::Effect, Role::Trusted),
        ("trust_hints = true\n", Effect::Read, Role::Trusted),
        ("least = \"owner\"\n", Effect::Effect, Role::Owner),
    ] {
        let folder = tempfile::tempdir().expect("a folder");
        let mcp = open(folder.path(), &format!("{CONFIG}{more}"));
        mcp.servers()[0].approve(&listing(&["now"]), &[]).expect("it can be written");
        let joined = mcp.joined(&Registry::default(), Asker { role: Role::Owner, direct: true });
        let tool = joined.get("memory_now").expect("it is offered");
        assert_eq!((tool.effect(), tool.terms().least), (effect, least), "{more}");
    }
}

#[tokio::test]
async fn a_program_that_is_not_there_is_said_plainly() {
    let folder = tempfile::tempdir().expect("a folder");
    let why = open(folder.path(), CONFIG).servers()[0].look().await.expect_err("no such program");
    assert_eq!(why, "`there-is-no-such-program` is not in the search path");
}
