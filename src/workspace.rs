//! The agent's workspace: seven text files that people and the agent edit. Writes the shipped templates once and reads
//! the files for a prompt; never follows a link out of the folder and never waits for a pipe.

use std::{
    io::{self, Read},
    path::Path,
};

use cap_fs_ext::OpenOptionsSyncExt;
use cap_std::{
    ambient_authority,
    fs::{Dir, OpenOptions},
};

use crate::lang::{self, Lang};

/// The files of a workspace, in the order they stand in a prompt.
pub const FILES: [&str; 7] =
    ["AGENTS.md", "SOUL.md", "IDENTITY.md", "USER.md", "TOOLS.md", "HEARTBEAT.md", "MEMORY.md"];

/// The most bytes of a workspace file.
pub const FILE_BYTES: u64 = 2 * 1024 * 1024;

/// One file of the workspace, as a prompt needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkspaceFile {
    /// Its name, e.g. `SOUL.md`.
    pub name: String,
    /// What is in it.
    pub content: Content,
}

/// What reading a workspace file gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// Its text.
    Text(String),
    /// There is no such file.
    Missing,
    /// It is there and was not read.
    Refused(Refusal),
}

/// Why a workspace file was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A link that leaves the workspace.
    LeavesWorkspace,
    /// A folder, pipe or device.
    NotAFile,
    /// More than [`FILE_BYTES`].
    TooLarge,
    /// In no encoding we know.
    NotText,
    /// The system refused, with its words.
    Io(String),
}

impl Refusal {
    /// The reason in a few words.
    pub fn text(&self, lang: Lang) -> String {
        match self {
            Self::LeavesWorkspace => lang::file_leaves_workspace(lang),
            Self::NotAFile => lang::file_not_regular(lang),
            Self::TooLarge => lang::file_too_large(lang, FILE_BYTES / 1024 / 1024),
            Self::NotText => lang::file_not_text(lang),
            Self::Io(why) => why.clone(),
        }
    }
}

/// The shipped templates of a language: name and text, in the order of [`FILES`].
pub fn templates(lang: Lang) -> [(&'static str, &'static str); 7] {
    let texts = match lang {
        Lang::En => [
            include_str!("../workspace/AGENTS.md"),
            include_str!("../workspace/SOUL.md"),
            include_str!("../workspace/IDENTITY.md"),
            include_str!("../workspace/USER.md"),
            include_str!("../workspace/TOOLS.md"),
            include_str!("../workspace/HEARTBEAT.md"),
            include_str!("../workspace/MEMORY.md"),
        ],
        Lang::Zh => [
            include_str!("../workspace/zh/AGENTS.md"),
            include_str!("../workspace/zh/SOUL.md"),
            include_str!("../workspace/zh/IDENTITY.md"),
            include_str!("../workspace/zh/USER.md"),
            include_str!("../workspace/zh/TOOLS.md"),
            include_str!("../workspace/zh/HEARTBEAT.md"),
            include_str!("../workspace/zh/MEMORY.md"),
        ],
    };
    std::array::from_fn(|n| (FILES[n], texts[n]))
}

/// Writes the templates into a workspace that is missing or empty, and says whether it did. A folder that holds
/// anything is somebody's and stays as it is.
///
/// # Errors
/// When the folder or a file cannot be made; the error names it.
pub fn write_templates(dir: &Path, lang: Lang) -> io::Result<bool> {
    let named = |path: &Path, error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
    std::fs::create_dir_all(dir).map_err(|error| named(dir, error))?;
    if std::fs::read_dir(dir).map_err(|error| named(dir, error))?.next().is_some() {
        return Ok(false);
    }
    for (name, text) in templates(lang) {
        let path = dir.join(name);
        std::fs::write(&path, text).map_err(|error| named(&path, error))?;
    }
    Ok(true)
}

/// Reads one of the files.
pub fn read_one(dir: &Path, name: &str) -> Content {
    match Dir::open_ambient_dir(dir, ambient_authority()) {
        Ok(folder) => read_file(&folder, name),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Content::Missing,
        Err(error) => Content::Refused(Refusal::Io(error.to_string())),
    }
}

/// Reads the seven files. A missing folder is seven missing files.
pub fn read(dir: &Path) -> Vec<WorkspaceFile> {
    let folder = Dir::open_ambient_dir(dir, ambient_authority());
    FILES
        .iter()
        .map(|name| {
            let content = match &folder {
                Ok(folder) => read_file(folder, name),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Content::Missing,
                Err(error) => Content::Refused(Refusal::Io(error.to_string())),
            };
            WorkspaceFile { name: (*name).to_owned(), content }
        })
        .collect()
}

fn read_file(folder: &Dir, name: &str) -> Content {
    // Nonblocking, so that opening a pipe returns; the folder's handle keeps links inside it.
    let file = match folder.open_with(name, OpenOptions::new().read(true).nonblock(true)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Content::Missing,
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && leaves(folder, name) => {
            return Content::Refused(Refusal::LeavesWorkspace);
        }
        Err(error) => return Content::Refused(Refusal::Io(error.to_string())),
    };
    match file.metadata() {
        Ok(facts) if !facts.is_file() => return Content::Refused(Refusal::NotAFile),
        Ok(facts) if facts.len() > FILE_BYTES => return Content::Refused(Refusal::TooLarge),
        Ok(_) => {}
        Err(error) => return Content::Refused(Refusal::Io(error.to_string())),
    }
    let mut bytes = Vec::new();
    match file.take(FILE_BYTES + 1).read_to_end(&mut bytes) {
        Ok(_) if bytes.len() as u64 > FILE_BYTES => Content::Refused(Refusal::TooLarge),
        Ok(_) => decode(&bytes).map_or(Content::Refused(Refusal::NotText), Content::Text),
        Err(error) => Content::Refused(Refusal::Io(error.to_string())),
    }
}

/// Whether the refusal comes from a link: cap-std answers "permission denied" for a path that leaves its folder.
fn leaves(folder: &Dir, name: &str) -> bool {
    folder.symlink_metadata(name).is_ok_and(|facts| facts.is_symlink())
}

/// Text in UTF-8 (with or without a mark), UTF-16 with a mark, or GB18030; line ends become `\n`. `None` for anything
/// else, NUL included.
pub fn decode(bytes: &[u8]) -> Option<String> {
    let text = match encoding_rs::Encoding::for_bom(bytes) {
        Some((encoding, mark)) => encoding.decode_without_bom_handling_and_without_replacement(&bytes[mark..])?,
        None => match std::str::from_utf8(bytes) {
            Ok(text) => text.into(),
            Err(_) => encoding_rs::GB18030.decode_without_bom_handling_and_without_replacement(bytes)?,
        },
    };
    (!text.contains('\0')).then(|| text.replace("\r\n", "\n").replace('\r', "\n"))
}

/// Whether a file says nothing: blank lines, headings, comments, empty bullets, check boxes and `Name:` fields alone.
/// For HEARTBEAT.md this decides that no heartbeat runs. `#TODO` without a space is content.
pub fn is_effectively_empty(text: &str) -> bool {
    let mut rest = text;
    let mut visible = String::new();
    while let Some(open) = rest.find("<!--") {
        visible.push_str(&rest[..open]);
        rest = rest[open..].find("-->").map_or("", |close| &rest[open + close + 3..]);
    }
    visible.push_str(rest);
    visible.lines().map(str::trim).all(|line| {
        let heading = line.trim_start_matches('#');
        let is_heading = heading.len() < line.len() && (heading.is_empty() || heading.starts_with([' ', '\t']));
        let bullet = line.strip_prefix(['-', '*', '+']).map(str::trim_start).unwrap_or(line);
        let item = ["[ ]", "[x]", "[X]"].iter().find_map(|mark| bullet.strip_prefix(mark)).unwrap_or(bullet).trim();
        let is_fence = line.starts_with("```") || line.starts_with("~~~");
        let is_blank_field = bullet.len() < line.len() && item.ends_with([':', '：']);
        is_heading || item.is_empty() || is_fence || is_blank_field
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(dir: &Path, name: &str) -> Content {
        read(dir).into_iter().find(|file| file.name == name).map(|file| file.content).expect("a known name")
    }

    #[test]
    fn the_templates_are_written_once() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let dir = home.path().join("a/workspace");
        assert!(write_templates(&dir, Lang::Zh).expect("writable"));
        assert_eq!(content(&dir, "SOUL.md"), Content::Text(include_str!("../workspace/zh/SOUL.md").to_owned()));
        std::fs::write(dir.join("SOUL.md"), "mine").expect("writable");
        std::fs::remove_file(dir.join("USER.md")).expect("written above");
        assert!(!write_templates(&dir, Lang::En).expect("readable"));
        assert_eq!(content(&dir, "SOUL.md"), Content::Text("mine".to_owned()));
        assert_eq!(content(&dir, "USER.md"), Content::Missing);
    }

    #[test]
    fn a_file_where_the_workspace_should_be_is_named() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let path = home.path().join("workspace");
        std::fs::write(&path, "").expect("writable");
        let error = write_templates(&path, Lang::En).expect_err("not a folder");
        assert!(error.to_string().contains("workspace"), "{error}");
    }

    #[test]
    fn a_missing_folder_is_seven_missing_files() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let files = read(&home.path().join("nowhere"));
        assert_eq!(files.len(), 7);
        assert!(files.iter().all(|file| file.content == Content::Missing));
    }

    #[cfg(unix)]
    #[test]
    fn links_out_pipes_folders_and_giants_are_refused() {
        let home = tempfile::tempdir().expect("a temporary folder");
        let dir = home.path().join("workspace");
        std::fs::create_dir(&dir).expect("writable");
        std::fs::write(home.path().join("secret"), "secret").expect("writable");
        std::os::unix::fs::symlink("../secret", dir.join("AGENTS.md")).expect("links work");
        std::os::unix::fs::symlink("/etc/hostname", dir.join("SOUL.md")).expect("links work");
        std::fs::create_dir(dir.join("IDENTITY.md")).expect("writable");
        let pipe = std::process::Command::new("mkfifo").arg(dir.join("USER.md")).status().expect("mkfifo is there");
        assert!(pipe.success());
        std::fs::write(dir.join("TOOLS.md"), vec![b'a'; FILE_BYTES as usize + 1]).expect("writable");
        std::fs::write(dir.join("notes.md"), "inside").expect("writable");
        std::os::unix::fs::symlink("notes.md", dir.join("HEARTBEAT.md")).expect("links work");
        std::fs::write(dir.join("MEMORY.md"), b"a\0b").expect("writable");
        let contents: Vec<Content> = read(&dir).into_iter().map(|file| file.content).collect();
        assert_eq!(
            contents,
            [
                Content::Refused(Refusal::LeavesWorkspace),
                Content::Refused(Refusal::LeavesWorkspace),
                Content::Refused(Refusal::NotAFile),
                Content::Refused(Refusal::NotAFile),
                Content::Refused(Refusal::TooLarge),
                Content::Text("inside".to_owned()),
                Content::Refused(Refusal::NotText),
            ]
        );
    }

    #[test]
    fn other_encodings_are_read() {
        assert_eq!(decode(b"\xef\xbb\xbfa\r\nb").as_deref(), Some("a\nb"));
        assert_eq!(decode(b"\xff\xfea\0b\0").as_deref(), Some("ab"));
        assert_eq!(decode(&encoding_rs::GB18030.encode("小龙虾").0).as_deref(), Some("小龙虾"));
        assert_eq!(decode(b"\xff\xff\xff"), None);
    }

    #[test]
    fn headings_comments_and_blank_fields_say_nothing() {
        for empty in
            ["", "\n \n", "# Title\n##\n", "- [ ]\n* \n", "<!-- a\nb -->\n# x", "```\n```", "- Name:\n- 称呼："]
        {
            assert!(is_effectively_empty(empty), "{empty:?}");
        }
        for said in ["#TODO", "- [ ] water the plants", "x", "- Name: Ann", "Check: the mail", "<!-- a --> b"] {
            assert!(!is_effectively_empty(said), "{said:?}");
        }
        for lang in [Lang::En, Lang::Zh] {
            let empty: Vec<&str> = templates(lang)
                .into_iter()
                .filter(|(_, text)| is_effectively_empty(text))
                .map(|(name, _)| name)
                .collect();
            assert_eq!(empty, ["USER.md", "TOOLS.md", "HEARTBEAT.md", "MEMORY.md"]);
        }
    }
}
