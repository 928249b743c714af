//! What models call tools and arguments, and what we call them: pure look-ups in tables.
//!
//! Models trained on other agents write `read_file` with `filePath`, `functions.exec`, `Write-File`. Meaning is taken
//! only where it is plain; a name that could mean two tools means none. Source: design.md §6, bad-inputs 56.

use serde_json::{Map, Value};

/// Other agents' names of tools, squeezed (lower case, no `_`), and ours.
const SYNONYMS: &[(&str, &str)] = &[
    ("readfile", "read"),
    ("openfile", "read"),
    ("viewfile", "read"),
    ("getfile", "read"),
    ("filereadtool", "read"),
    ("readfiletool", "read"),
    ("fileread", "read"),
    ("view", "read"),
    ("cat", "read"),
    ("writefile", "write"),
    ("writetofile", "write"),
    ("createfile", "write"),
    ("savefile", "write"),
    ("filewrite", "write"),
    ("editfile", "edit"),
    ("fileedit", "edit"),
    ("strreplace", "edit"),
    ("searchreplace", "edit"),
    ("replaceinfile", "edit"),
    ("listfiles", "ls"),
    ("listfile", "ls"),
    ("listdirectory", "ls"),
    ("listdir", "ls"),
    ("listfolder", "ls"),
    ("dir", "ls"),
    ("list", "ls"),
    ("glob", "find"),
    ("findfiles", "find"),
    ("findfile", "find"),
    ("filesearch", "find"),
    ("grepsearch", "grep"),
    ("grepfiles", "grep"),
    ("ripgrep", "grep"),
    ("rg", "grep"),
    ("searchfiles", "grep"),
    ("searchfilecontent", "grep"),
    ("executeshell", "exec"),
    ("executecommand", "exec"),
    ("execute", "exec"),
    ("runcommand", "exec"),
    ("runshell", "exec"),
    ("runshellcommand", "exec"),
    ("runterminalcmd", "exec"),
    ("shell", "exec"),
    ("bash", "exec"),
    ("terminal", "exec"),
    ("runinterminal", "exec"),
    ("executebash", "exec"),
    ("executeshellcommand", "exec"),
    ("command", "exec"),
    ("readexcel", "spreadsheet"),
    ("readspreadsheet", "spreadsheet"),
    ("excel", "spreadsheet"),
    ("readcsv", "spreadsheet"),
    ("excelread", "spreadsheet"),
    ("openexcel", "spreadsheet"),
    ("readxlsx", "spreadsheet"),
    ("readsheet", "spreadsheet"),
    ("readworkbook", "spreadsheet"),
    ("analyzeexcel", "spreadsheet"),
    ("readtable", "spreadsheet"),
    ("xlsx", "spreadsheet"),
    ("csv", "spreadsheet"),
    ("fetchurl", "web_fetch"),
    ("fetch", "web_fetch"),
    ("fetchpage", "web_fetch"),
    ("fetchwebpage", "web_fetch"),
    ("webget", "web_fetch"),
    ("httpget", "web_fetch"),
    ("geturl", "web_fetch"),
    ("openurl", "web_fetch"),
    ("readurl", "web_fetch"),
    ("browse", "web_fetch"),
    ("browseurl", "web_fetch"),
    ("visitpage", "web_fetch"),
    ("curl", "web_fetch"),
    ("searchweb", "web_search"),
    ("googlesearch", "web_search"),
    ("internetsearch", "web_search"),
    ("onlinesearch", "web_search"),
    ("duckduckgosearch", "web_search"),
    ("bingsearch", "web_search"),
    ("bravesearch", "web_search"),
    ("tavilysearch", "web_search"),
    ("searchmemory", "memory_search"),
    ("recall", "memory_search"),
    ("searchnotes", "memory_search"),
    ("addmemory", "memory_add"),
    ("remember", "memory_add"),
    ("savememory", "memory_add"),
    ("memorysave", "memory_add"),
    ("memoryappend", "memory_add"),
    ("readmemory", "memory_get"),
    ("getmemory", "memory_get"),
    ("sendmessage", "message"),
    ("updateplan", "todo"),
    ("todowrite", "todo"),
    ("writetodos", "todo"),
    ("todolist", "todo"),
    ("settodos", "todo"),
    ("updatetodos", "todo"),
];

/// Names of tools of this gateway and of others like it, squeezed, beside those in [`SYNONYMS`].
const OURS: &[&str] = &[
    "read",
    "write",
    "edit",
    "ls",
    "find",
    "grep",
    "exec",
    "process",
    "applypatch",
    "webfetch",
    "websearch",
    "memorysearch",
    "memoryget",
    "spreadsheet",
    "cron",
    "browser",
    "sessionslist",
    "sessionssend",
    "sessionsspawn",
    "codeinterpreter",
];

/// What some wire formats put before a name.
const PREFIXES: &[&str] =
    &["functions", "function", "tools", "tool", "default_api", "api", "multi_tool_use", "assistant"];

/// Words for the one file or folder of a call.
const PATH: &[&str] =
    &["filepath", "file", "filename", "pathname", "targetfile", "absolutepath", "relativepath", "fullpath", "uri"];
/// Words for a folder.
const FOLDER: &[&str] = &[
    "filepath",
    "dir",
    "directory",
    "folder",
    "dirpath",
    "directorypath",
    "folderpath",
    "relativeworkspacepath",
    "searchpath",
    "root",
    "cwd",
    "file",
    "filename",
];
const LIMIT: &[&str] = &["maxresults", "maxmatches", "headlimit", "maxentries", "max", "count"];

/// An argument of ours and other agents' words for it, squeezed; the first that is present counts.
type Aliases = &'static [(&'static str, &'static [&'static str])];

/// The argument aliases of each tool.
const ARGUMENTS: &[(&str, Aliases)] = &[
    (
        "read",
        &[
            ("path", PATH),
            ("offset", &["startline", "start", "from", "fromline", "lineoffset", "line"]),
            ("limit", &["lines", "maxlines", "numlines", "linecount", "count", "max"]),
        ],
    ),
    ("write", &[("path", PATH), ("content", &["text", "contents", "data", "filecontent", "filetext", "body"])]),
    (
        "edit",
        &[
            ("path", PATH),
            ("oldText", &["oldstring", "oldstr", "old", "oldcontent", "original", "search", "find", "before"]),
            (
                "newText",
                &["newstring", "newstr", "new", "newcontent", "replacement", "replace", "replacewith", "after"],
            ),
            ("replaceAll", &["all", "global", "multiple", "allowmultiple"]),
        ],
    ),
    ("ls", &[("path", FOLDER), ("limit", LIMIT)]),
    ("todo", &[("items", &["todos", "plan", "steps", "list", "tasks"]), ("set", &["states", "update", "updates"])]),
    (
        "find",
        &[("pattern", &["glob", "globpattern", "filepattern", "name", "query"]), ("path", FOLDER), ("limit", LIMIT)],
    ),
    (
        "grep",
        &[
            ("pattern", &["query", "regex", "regexp", "search", "searchterm", "text", "keyword", "q"]),
            ("path", FOLDER),
            ("glob", &["include", "includepattern", "filepattern", "filter"]),
            ("ignoreCase", &["caseinsensitive", "i"]),
            ("literal", &["fixedstrings", "fixed"]),
            ("context", &["contextlines", "c"]),
            ("limit", LIMIT),
        ],
    ),
    (
        "exec",
        &[
            ("command", &["cmd", "script", "shellcommand", "commandline", "code", "input"]),
            ("workdir", &["cwd", "workingdirectory", "dir", "directory"]),
            ("shell", &["interpreter"]),
            ("timeout", &["timeouts", "timeoutsec", "timeoutsecs", "timeoutseconds"]),
            ("background", &["runinbackground", "isbackground", "detach", "async"]),
        ],
    ),
    (
        "process",
        &[
            ("action", &["command", "operation", "cmd"]),
            ("id", &["sessionid", "jobid", "processid", "pid", "session", "job"]),
            ("text", &["input", "data", "keys", "stdin"]),
            ("close", &["eof"]),
            ("wait", &["timeout", "waitseconds"]),
        ],
    ),
    (
        "spreadsheet",
        &[
            ("path", PATH),
            ("sheet", &["sheetname", "worksheet", "tab", "sheetindex"]),
            ("range", &["cells", "cellrange", "area"]),
            ("mode", &["action", "operation", "view"]),
        ],
    ),
    (
        "web_fetch",
        &[
            ("url", &["uri", "link", "href", "address", "website", "page"]),
            ("format", &["extractmode", "mode", "returnformat", "as"]),
            ("max_chars", &["maxlength", "maxcharacters", "limit"]),
            ("offset", &["startindex", "start", "from", "startchar"]),
        ],
    ),
    (
        "web_search",
        &[
            ("query", &["q", "search", "searchterm", "searchquery", "keywords", "text"]),
            ("count", &["numresults", "maxresults", "limit", "n", "topk", "num"]),
            ("since", &["freshness", "timerange", "recency", "timelimit"]),
        ],
    ),
    ("memory_add", &[("text", &["content", "note", "entry", "memory", "fact"])]),
    ("memory_search", &[("query", &["q", "search", "text", "keywords"]), ("limit", LIMIT)]),
    (
        "memory_get",
        &[
            ("path", PATH),
            ("from", &["offset", "startline", "start", "fromline", "line"]),
            ("lines", &["limit", "maxlines", "numlines", "linecount", "count", "max"]),
        ],
    ),
];

/// The tool that a model means by what it wrote, among the `known` ones.
pub fn resolve<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    if let Some(exact) = known.iter().find(|name| **name == written) {
        return Some(exact);
    }
    let bare = bare(written);
    let wanted = squeezed(&bare);
    if wanted.is_empty() {
        return None;
    }
    if let Some(plain) = known.iter().find(|name| **name == bare) {
        return Some(plain);
    }
    let mut alike = known.iter().filter(|name| squeezed(name) == wanted);
    match (alike.next(), alike.next()) {
        (Some(one), None) => return Some(one),
        (Some(_), Some(_)) => return None,
        (None, _) => {}
    }
    let (_, ours) = SYNONYMS.iter().find(|(theirs, _)| *theirs == wanted)?;
    known.iter().find(|name| *name == ours).copied()
}

/// Whether a name is that of a tool of this gateway or of another one, whatever is offered here and now.
pub fn is_known_elsewhere(written: &str) -> bool {
    let wanted = squeezed(&bare(written));
    elsewhere().any(|name| name == wanted)
}

/// Whether such a name begins like this.
pub fn begins_known_elsewhere(part: &str) -> bool {
    let wanted = squeezed(&bare(part));
    let prefixed = || PREFIXES.iter().any(|prefix| prefix.starts_with(&part.to_ascii_lowercase()));
    !wanted.is_empty() && (elsewhere().any(|name| name.starts_with(&wanted)) || prefixed())
}

/// Whether this stands before tools' names in some wire format: `functions`, `default_api`.
pub fn is_prefix(before: &str) -> bool {
    before.split(['.', ':', '/']).all(|part| PREFIXES.contains(&part.to_ascii_lowercase().as_str()))
}

/// Tools' names, squeezed.
fn elsewhere() -> impl Iterator<Item = &'static str> {
    SYNONYMS.iter().map(|(theirs, _)| *theirs).chain(OURS.iter().copied())
}

/// Tools that are there for some people or settings only, and what the model is told where they are not.
const ABSENT: &[(&str, &str)] = &[
    (
        "exec",
        "Commands cannot be run here: they are switched off, or this is not a direct chat of the owner. The owner \
         switches them on with `enabled = true` under `[tools.exec]` in config.toml. Do it with the other tools, or tell the \
         user that.",
    ),
    (
        "web_search",
        "Searching the web is off here. The owner turns it on with `provider` under `[tools.web_search]` in config.toml. \
         Read an address you know with web_fetch, or tell the user that.",
    ),
    (
        "process",
        "There are no background commands here: commands are switched off, or this is not a direct chat of the owner.",
    ),
    ("memory_search", PRIVATE),
    ("memory_get", PRIVATE),
    ("memory_add", PRIVATE),
];
const PRIVATE: &str = "There are no notes for this chat. Answer without them.";

/// What the model is told about a name that means no tool: why it is not there, or the known ones, the nearest first.
pub fn unknown(written: &str, known: &[&str]) -> String {
    let wanted = squeezed(&bare(written));
    let meant = SYNONYMS.iter().find(|(theirs, _)| *theirs == wanted).map(|(_, ours)| *ours);
    let absent = ABSENT.iter().find(|(ours, _)| meant == Some(*ours) || squeezed(ours) == wanted);
    let mut names: Vec<(u32, &str)> =
        known.iter().map(|name| ((strsim::jaro_winkler(&wanted, &squeezed(name)) * 1000.0) as u32, *name)).collect();
    names.sort_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(b.1)));
    let shown: String = written.chars().filter(|c| !c.is_control()).take(80).collect();
    if let Some((_, why)) = absent {
        let names: Vec<_> = names.iter().map(|(_, name)| format!("`{name}`")).collect();
        let others = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        return format!("There is no tool `{shown}` here. {why} The tools are: {others}.");
    }
    if names.is_empty() {
        return format!("There is no tool `{shown}`, and no other one either. Answer without tools.");
    }
    let names: Vec<_> = names.iter().map(|(_, name)| format!("`{name}`")).collect();
    format!("There is no tool `{shown}`. The tools are: {}. Call one of them by its exact name.", names.join(", "))
}

/// Renames the arguments of a call to ours; `properties` are those of the tool's schema. Returns what was renamed.
pub fn rename_arguments(tool: &str, properties: &Map<String, Value>, args: &mut Map<String, Value>) -> Vec<Renamed> {
    let unknown: Vec<String> = args.keys().filter(|key| !properties.contains_key(*key)).cloned().collect();
    let aliases = ARGUMENTS.iter().find(|(name, _)| *name == tool).map_or(&[][..], |(_, aliases)| aliases);
    let mut renamed = Vec::new();
    for property in properties.keys() {
        if args.contains_key(property) {
            continue;
        }
        let left = || unknown.iter().filter(|key| !renamed.iter().any(|done: &Renamed| done.from == **key));
        let words = aliases.iter().find(|(ours, _)| ours == property).map_or(&[][..], |(_, words)| words);
        let same = left().find(|key| squeezed(key) == squeezed(property));
        let found = same.or_else(|| words.iter().find_map(|word| left().find(|key| squeezed(key) == *word))).cloned();
        if let Some(from) = found
            && let Some(value) = args.remove(&from)
        {
            args.insert(property.clone(), value);
            renamed.push(Renamed { from, to: property.clone() });
        }
    }
    renamed
}

/// An argument that went by another name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renamed {
    /// As the model wrote it.
    pub from: String,
    /// As the schema has it.
    pub to: String,
}

/// The name without what wire formats and special tokens put around it, in lower case with `_`: what is left of
/// `functions.final-answer:0` is `final_answer`.
pub fn bare(written: &str) -> String {
    let mut name = written.trim();
    while let Some(rest) = name.strip_prefix("<|") {
        name = rest.split_once("|>").map_or("", |(_, after)| after).trim();
    }
    name = name.split("<|").next().unwrap_or("");
    name = name.split(['(', '\n']).next().unwrap_or("");
    name =
        name.trim_matches(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '`' | '<' | '>' | '[' | ']' | ')'));
    if let Some((before, index)) = name.rsplit_once(':')
        && !index.is_empty()
        && index.bytes().all(|byte| byte.is_ascii_digit())
    {
        name = before;
    }
    while let Some((prefix, rest)) = name.split_once(['.', ':', '/'])
        && PREFIXES.contains(&prefix.to_ascii_lowercase().as_str())
    {
        name = rest.trim_start_matches([':', ' ']);
    }
    name.trim()
        .chars()
        .take(128)
        .map(|c| if matches!(c, '-' | ' ' | '.') { '_' } else { c.to_ascii_lowercase() })
        .collect()
}

/// Whether this is a built-in tool's name, in any case and however its words are joined.
pub fn is_tool(name: &str) -> bool {
    let name = squeezed(name);
    let ours = SYNONYMS.iter().map(|(_, ours)| squeezed(ours)).any(|ours| ours == name);
    ours || OURS.contains(&name.as_str()) || ARGUMENTS.iter().any(|(tool, _)| squeezed(tool) == name)
}

fn squeezed(name: &str) -> String {
    name.chars().filter(|c| !matches!(c, '_' | '-' | ' ')).map(|c| c.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const KNOWN: &[&str] =
        &["edit", "exec", "find", "grep", "ls", "memory_search", "read", "spreadsheet", "web_fetch", "write"];

    #[test]
    fn what_is_plainly_meant_is_understood() {
        for (written, ours) in [
            ("read", Some("read")),
            ("Read", Some("read")),
            ("functions.exec", Some("exec")),
            ("functions.read:0", Some("read")),
            ("functions::read", Some("read")),
            ("default_api.web_fetch", Some("web_fetch")),
            ("tools/ls", Some("ls")),
            ("memory-search", Some("memory_search")),
            ("memorySearch", Some("memory_search")),
            ("MEMORY SEARCH", Some("memory_search")),
            ("read_file", Some("read")),
            ("ReadFile", Some("read")),
            ("read-file", Some("read")),
            ("write_file", Some("write")),
            ("execute_shell", Some("exec")),
            ("run_command", Some("exec")),
            ("shell", Some("exec")),
            ("Bash", Some("exec")),
            ("run_terminal_cmd", Some("exec")),
            ("terminal", Some("exec")),
            ("search_memory", Some("memory_search")),
            ("recall", Some("memory_search")),
            ("list_files", Some("ls")),
            ("list_directory", Some("ls")),
            ("read_excel", Some("spreadsheet")),
            ("str_replace", Some("edit")),
            (" `read` ", Some("read")),
            ("read()", Some("read")),
            ("<|constrain|>read", Some("read")),
            ("read<|channel|>commentary", Some("read")),
            ("assistant.functions.grep", Some("grep")),
            ("todo_write", None),
            ("readd", None),
            ("", None),
            ("<|", None),
            ("...", None),
            ("functions.", None),
            ("读", None),
        ] {
            assert_eq!(resolve(written, KNOWN), ours, "{written}");
        }
    }

    #[test]
    fn what_is_put_around_a_name_is_taken_off() {
        assert_eq!(bare("functions.final-answer:0"), "final_answer");
        assert_eq!(bare("<|start|>Final Answer<|end|>"), "final_answer");
    }

    #[test]
    fn a_tool_of_that_very_name_wins_over_a_synonym_and_ambiguity_is_refused() {
        assert_eq!(resolve("read_file", &["read", "read_file"]), Some("read_file"));
        assert_eq!(resolve("readFile", &["read", "read_file"]), Some("read_file"));
        assert_eq!(resolve("READFILE", &["read_file", "readfile"]), Some("readfile"));
        assert_eq!(resolve("Read File", &["r_eadfile", "readf_ile"]), None);
        assert_eq!(resolve("bash", &["read"]), None);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest_first() {
        assert_eq!(
            unknown("greb\u{1b}", &["edit", "grep", "read"]),
            "There is no tool `greb`. The tools are: `grep`, `read`, `edit`. Call one of them by its exact name."
        );
        assert!(unknown("x", &[]).ends_with("Answer without tools."));
        for name in ["exec", "execute_shell", "functions.bash", "run_terminal_cmd"] {
            let told = unknown(name, &["read"]);
            assert!(told.contains("`[tools.exec]`") && told.ends_with("The tools are: `read`."), "{told}");
        }
        let told = unknown("recall", &[]);
        assert!(told.contains("no notes for this chat") && told.ends_with("The tools are: none."), "{told}");
    }

    #[test]
    fn every_synonym_and_alias_is_written_as_it_is_compared() {
        for word in SYNONYMS
            .iter()
            .map(|(word, _)| word)
            .chain(ARGUMENTS.iter().flat_map(|(_, aliases)| aliases.iter().flat_map(|(_, words)| words.iter())))
        {
            assert_eq!(squeezed(word), *word);
        }
    }

    #[test]
    fn arguments_get_their_names() {
        let properties = json!({"path": {}, "oldText": {}, "newText": {}, "replaceAll": {}});
        let properties = properties.as_object().expect("an object");
        let renamed = |args: Value| {
            let Value::Object(mut args) = args else { panic!("an object") };
            let renamed = rename_arguments("edit", properties, &mut args);
            (Value::Object(args), renamed.len())
        };
        let ours = json!({"path": "a", "oldText": "b", "newText": "c", "replaceAll": true});
        for (theirs, count) in [
            (json!({"file_path": "a", "old_string": "b", "new_string": "c", "replace_all": true}), 4),
            (json!({"filePath": "a", "old_text": "b", "newText": "c", "replaceAll": true}), 2),
            (json!({"filename": "a", "search": "b", "replace": "c", "all": true}), 4),
            (ours.clone(), 0),
        ] {
            assert_eq!(renamed(theirs), (ours.clone(), count));
        }
        // What is there already is never overwritten, and what means nothing is left for the schema to refuse.
        assert_eq!(renamed(json!({"path": "a", "file": "b"})), (json!({"path": "a", "file": "b"}), 0));
        assert_eq!(renamed(json!({"mode": "a"})), (json!({"mode": "a"}), 0));
    }
}
