//! Counts how often each effect ran: a turn's `edit` call adds its mark to a file of the workspace, once for each run.

use std::{collections::BTreeMap, fs, path::Path};

use serde_json::json;

use super::{
    mark::Mark,
    model_server::{Call, call},
};

/// The line before which marks are added.
const END: &str = "(end)";

/// Makes the file of a session. Before the gateway starts.
pub fn prepare(workspace: &Path, session: u32) {
    let dir = workspace.join("effects");
    fs::create_dir_all(&dir).expect("the workspace can be made");
    fs::write(dir.join(format!("s{session}.txt")), format!("{END}\n")).expect("the file can be made");
}

/// The call that has the effect.
pub fn effect(id: &str, mark: Mark) -> Call {
    let path = format!("effects/{}.txt", mark.room());
    call(id, "edit", &json!({ "path": path, "oldText": END, "newText": format!("{mark}\n{END}") }).to_string())
}

/// A call that reads the file.
pub fn look(id: &str, mark: Mark) -> Call {
    call(id, "read", &json!({ "path": format!("effects/{}.txt", mark.room()) }).to_string())
}

/// How often each effect ran.
pub fn count(workspace: &Path) -> BTreeMap<Mark, u32> {
    let mut counts = BTreeMap::new();
    let Ok(files) = fs::read_dir(workspace.join("effects")) else { return counts };
    for file in files.flatten() {
        // A kill may leave the half of a write behind that nobody has renamed yet.
        let name = file.file_name();
        if !name.to_str().is_some_and(|name| name.starts_with('s') && name.ends_with(".txt")) {
            continue;
        }
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        for mark in Mark::all_in(&text) {
            *counts.entry(mark).or_insert(0) += 1;
        }
    }
    counts
}
