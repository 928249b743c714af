//! `ls`: what is in a folder, sorted, with sizes.

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{self, size, tell, visible},
};

/// Entries shown when no limit is given.
const DEFAULT_LIMIT: usize = 500;
/// Entries looked at, at most: a folder with more is told to have "more than" that.
const MOST_ENTRIES: usize = 100_000;

/// Lists a folder.
#[derive(Debug)]
pub struct ListFolder;

#[derive(Deserialize)]
struct Arguments {
    path: Option<String>,
    limit: Option<usize>,
}

#[async_trait]
impl Tool for ListFolder {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "ls".to_owned(),
            description: "Lists a folder: folders end in /, links in @.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "path": {"type": "string"},
                    "limit": {"type": "integer", "minimum": 1},
                },
                "additionalProperties": false,
            }),
        }
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { path, limit } = arguments::typed(args)?;
        broker::on_disk(ctx, "list a folder inside it, or use find with a pattern", move |files| {
            let place = files.place(path.as_deref().filter(|path| !path.trim().is_empty()).unwrap_or("."))?;
            let mut entries = Vec::new();
            let mut more = false;
            let listing = files.open_dir(&place)?.entries();
            let listing = match listing {
                Ok(listing) => listing,
                Err(error) => return tell(format!("`{place}` cannot be listed: {}.", error.kind())),
            };
            for entry in listing.flatten() {
                files.go_on()?;
                if entries.len() == MOST_ENTRIES {
                    more = true;
                    break;
                }
                if files.hides(&place, &entry.file_name()) {
                    continue;
                }
                entries.push((entry.file_name(), entry));
            }
            if entries.is_empty() {
                return Ok(format!("(`{place}` is an empty folder)"));
            }
            entries.sort_by(|a, b| a.0.cmp(&b.0));
            let limit = limit.unwrap_or(DEFAULT_LIMIT).max(1);
            let mut text = String::new();
            for (name, entry) in entries.iter().take(limit) {
                let name = visible(&name.to_string_lossy());
                let line = match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => format!("{name}/\n"),
                    Ok(metadata) if metadata.is_symlink() => format!("{name}@\n"),
                    Ok(metadata) if metadata.is_file() => format!("{name}  {}\n", size(metadata.len())),
                    Ok(_) => format!("{name}  (no regular file)\n"),
                    Err(_) => format!("{name}  (unreadable)\n"),
                };
                text.push_str(&line);
            }
            if entries.len() > limit {
                let all = if more { format!("more than {MOST_ENTRIES}") } else { entries.len().to_string() };
                text.push_str(&format!("[{limit} of {all} entries; raise limit, or use find with a pattern]\n"));
            }
            Ok(text)
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixture::Fixture, *};

    #[tokio::test]
    async fn folders_links_and_sizes_are_told_in_order() {
        let house = Fixture::new();
        assert_eq!(house.run(&ListFolder, json!({})).await, Ok("(`.` is an empty folder)".to_owned()));
        house.put("b.txt", "12345").put("a/x", "x").put("小龙虾.md", vec![b'x'; 2048]);
        #[cfg(unix)]
        std::os::unix::fs::symlink("b.txt", house.at("c")).expect("a link");
        let text = house.run(&ListFolder, json!({"path": ""})).await.expect("a listing");
        #[cfg(unix)]
        assert_eq!(text, "a/\nb.txt  5 B\nc@\n小龙虾.md  2.0 KiB\n");
        assert!(text.starts_with("a/\nb.txt  5 B\n"), "{text}");
        let text = house.run(&ListFolder, json!({"path": ".", "limit": 1})).await.expect("a listing");
        assert!(text.starts_with("a/\n[1 of "), "{text}");
        assert_eq!(house.run(&ListFolder, json!({"path": "skills"})).await, Ok("weather/\n".to_owned()));
    }

    #[tokio::test]
    async fn a_long_listing_is_cut_in_the_middle() {
        let mut house = Fixture::new();
        house.ctx.output_chars = 1_000;
        for n in 0..400 {
            house.put(&format!("file-{n:03}.txt"), "x");
        }
        let text = house.run(&ListFolder, json!({})).await.expect("a listing");
        assert!(text.starts_with("file-000.txt") && text.ends_with("file-399.txt  1 B\n"), "{text}");
        assert!(text.contains("characters were cut here; list a folder inside it"), "{text}");
    }

    #[tokio::test]
    async fn a_stopped_turn_ends_it() {
        let house = Fixture::new();
        house.put("a", "x");
        house.ctx.cancel.cancel();
        let error = ListFolder.call(json!({}), &house.ctx).await.expect_err("stopped");
        assert!(matches!(error, ToolError::Abort(_)));
    }
}
