//! `find`: files and folders whose name or path fits a glob.

use async_trait::async_trait;
use globset::{GlobBuilder, GlobMatcher};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, short, tell, visible},
    walk::{Next, walk},
};

/// Results shown when no limit is given.
const DEFAULT_LIMIT: usize = 500;

/// Finds files by name.
#[derive(Debug)]
pub struct FindFiles;

#[derive(Deserialize)]
struct Arguments {
    pattern: String,
    path: Option<String>,
    limit: Option<usize>,
    #[serde(default)]
    all: bool,
}

#[async_trait]
impl Tool for FindFiles {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "find".to_owned(),
            description: "Finds files and folders by glob: `*.md` anywhere below, `memory/**/*.md` by path.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "pattern": {"type": "string", "minLength": 1},
                    "path": {"type": "string"},
                    "limit": {"type": "integer", "minimum": 1},
                    "all": {"type": "boolean", "description": "Also in .git, node_modules"},
                },
                "required": ["pattern"],
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { pattern, path, limit, all } = arguments::typed(args)?;
        broker::on_disk(ctx, "use a narrower pattern or path", move |files| {
            let glob = glob(&pattern)?;
            let place = files.place(path.as_deref().filter(|path| !path.trim().is_empty()).unwrap_or("."))?;
            let prefix = prefix(&place.to_string());
            let limit = limit.unwrap_or(DEFAULT_LIMIT).max(1);
            let mut found = Vec::new();
            let whole = walk(files, &place, all, |entry| {
                if glob.is_match(entry.path) {
                    if found.len() == limit {
                        found.push(format!("[more than {limit} results; use a narrower pattern or a higher limit]"));
                        return Ok(Next::Enough);
                    }
                    let end = if entry.kind.is_dir() { "/" } else { "" };
                    found.push(format!("{prefix}{}{end}", visible(entry.path)));
                }
                Ok(Next::On)
            })?;
            if found.is_empty() {
                found.push(format!("(no matches for `{}` in `{place}`)", short(&pattern)));
            }
            if !whole {
                found.push("[not everything was searched: too many or unreadable folders; give a path]".to_owned());
            }
            Ok(found.join("\n"))
        })
        .await
    }
}

/// The matcher of a glob: without a slash it fits a name anywhere, with one the path from where the search begins.
///
/// # Errors
/// [`ToolError::TellModel`] for what is no glob.
pub(super) fn glob(pattern: &str) -> Result<GlobMatcher, ToolError> {
    let pattern = pattern.trim();
    let pattern = pattern.strip_prefix("./").unwrap_or(pattern);
    let anywhere = if pattern.contains('/') { pattern.to_owned() } else { format!("**/{pattern}") };
    if pattern.is_empty() || pattern.len() > 1_000 {
        return tell("`pattern` must be a glob of 1 to 1,000 bytes, e.g. `*.md`.".to_owned());
    }
    match GlobBuilder::new(&anywhere).literal_separator(true).build() {
        Ok(glob) => Ok(glob.compile_matcher()),
        Err(error) => tell(format!(
            "`{}` is no valid glob: {}. Use e.g. `*.md`, `docs/**/*.txt` or `{{a,b}}.csv`.",
            short(pattern),
            error.kind()
        )),
    }
}

/// What leads the results, so that each is a path the other tools take.
pub(super) fn prefix(place: &str) -> String {
    if place == "." { String::new() } else { format!("{place}/") }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::Fixture, *};

    #[tokio::test]
    async fn names_and_paths_are_found_in_order() {
        let house = Fixture::new();
        house
            .put("b.md", "x")
            .put("a/z.md", "x")
            .put("a/小龙虾.md", "x")
            .put("memory/2026/x.md", "x")
            .put("c.txt", "x");
        house.put(".git/HEAD.md", "x").put("node_modules/m/r.md", "x").put("target/t.md", "x");
        let find = async |args: Value| house.run(&FindFiles, args).await;
        assert_eq!(
            find(json!({"pattern": "*.md"})).await.as_deref(),
            Ok("a/z.md\na/小龙虾.md\nb.md\nmemory/2026/x.md")
        );
        assert_eq!(find(json!({"pattern": "memory/**/*.md"})).await.as_deref(), Ok("memory/2026/x.md"));
        assert_eq!(find(json!({"pattern": "*.md", "path": "a"})).await.as_deref(), Ok("a/z.md\na/小龙虾.md"));
        assert_eq!(find(json!({"pattern": "20*"})).await.as_deref(), Ok("memory/2026/"));
        assert_eq!(
            find(json!({"pattern": "SKILL.md", "path": "skills"})).await.as_deref(),
            Ok("skills/weather/SKILL.md")
        );
        assert_eq!(find(json!({"pattern": "*.exe"})).await.as_deref(), Ok("(no matches for `*.exe` in `.`)"));
        assert_eq!(find(json!({"pattern": "t.md", "all": true})).await.as_deref(), Ok("target/t.md"));
        assert_eq!(find(json!({"pattern": "t.md", "path": "target"})).await.as_deref(), Ok("target/t.md"));
        assert_eq!(
            find(json!({"pattern": "*.md", "limit": 1})).await.as_deref(),
            Ok("a/z.md\n[more than 1 results; use a narrower pattern or a higher limit]")
        );
        let told = find(json!({"pattern": "[a"})).await.expect_err("no glob");
        assert!(told.contains("`[a` is no valid glob: unclosed character class"), "{told}");
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn links_are_shown_but_not_entered() {
        let house = Fixture::new();
        house.put("real/a.md", "x");
        std::os::unix::fs::symlink("../outside", house.at("out")).expect("a link");
        std::os::unix::fs::symlink(".", house.at("self")).expect("a link");
        assert_eq!(house.run(&FindFiles, json!({"pattern": "*"})).await.as_deref(), Ok("out\nreal/\nreal/a.md\nself"));
    }

    #[tokio::test]
    async fn very_deep_folders_end_the_walk_and_it_is_said() {
        let house = Fixture::new();
        house.put(&format!("{}x.md", "d/".repeat(100)), "x");
        let text = house.run(&FindFiles, json!({"pattern": "x.md"})).await.expect("an answer");
        assert!(text.starts_with("(no matches") && text.contains("not everything was searched"), "{text}");
    }
}
