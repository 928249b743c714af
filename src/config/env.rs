//! Environment variables in configuration: the process's own, those of `.env`, and `${NAME}` in strings.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use super::finding::Line;
use crate::{config::finding::line, lang::Lang};

/// The environment a configuration is read in: a parameter, so that tests need not change the process's.
#[derive(Clone, Default)]
pub struct Env {
    vars: BTreeMap<String, String>,
    /// The language asked for on the command line; it wins over `[ui] lang`.
    pub lang: Option<Lang>,
    /// Accept a configuration that others may read (`--insecure-perms`).
    pub insecure_perms: bool,
}

/// Names only: values may be secret.
impl fmt::Debug for Env {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Env").field("vars", &self.vars.keys().collect::<Vec<_>>()).finish_non_exhaustive()
    }
}

impl Env {
    /// The process's environment. Variables that are not Unicode do not exist for a configuration.
    pub fn of_process() -> Self {
        let text = |value: OsString| value.into_string().ok();
        let vars = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect();
        Self { vars, ..Self::default() }
    }

    /// These variables and no others.
    pub fn of(vars: impl IntoIterator<Item = (impl Into<String>, impl Into<String>)>) -> Self {
        let vars = vars.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
        Self { vars, ..Self::default() }
    }

    /// The variables of a `.env` file; none where there is no such file.
    pub fn of_dotenv(file: &Path) -> Self {
        let text = super::read_file(file).map(|(bytes, _)| String::from_utf8_lossy(&bytes).into_owned());
        let mut env = Self::default();
        env.add_missing(parse_dotenv(&text.unwrap_or_default()).0);
        env
    }

    /// A variable's value.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.vars.get(name).map(String::as_str)
    }

    /// The home folder.
    pub fn home(&self) -> Option<PathBuf> {
        ["HOME", "USERPROFILE"].iter().find_map(|name| self.get(name)).filter(|home| !home.is_empty()).map(Into::into)
    }

    /// Sets a variable.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.vars.insert(name.to_owned(), value.to_owned());
    }

    /// Adds variables that are not set.
    pub(super) fn add_missing(&mut self, vars: Vec<(String, String)>) {
        for (name, value) in vars {
            self.vars.entry(name).or_insert(value);
        }
    }
}

/// Whether a word can name a variable.
pub(super) fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|c: char| c.is_ascii_digit())
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Reads `.env`: `NAME=value`, an optional `export`, values in quotes or bare, `#` comments. Returns the variables and
/// the numbers of lines that are none of these.
pub(super) fn parse_dotenv(text: &str) -> (Vec<(String, String)>, Vec<usize>) {
    let mut vars = Vec::new();
    let mut bad = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        match line.split_once('=') {
            Some((name, value)) if is_name(name.trim()) => vars.push((name.trim().to_owned(), unquote(value.trim()))),
            _ => bad.push(index + 1),
        }
    }
    (vars, bad)
}

fn unquote(value: &str) -> String {
    if let Some(rest) = value.strip_prefix('\'')
        && let Some(end) = rest.find('\'')
    {
        return rest[..end].to_owned();
    }
    if let Some(rest) = value.strip_prefix('"') {
        let mut out = String::new();
        let mut chars = rest.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => return out,
                '\\' => match chars.next() {
                    Some('n') => out.push('\n'),
                    Some('t') => out.push('\t'),
                    Some(c @ ('"' | '\\' | '$')) => out.push(c),
                    Some(c) => out.extend(['\\', c]),
                    None => out.push('\\'),
                },
                c => out.push(c),
            }
        }
        return out;
    }
    match value.find(" #") {
        Some(comment) => value[..comment].trim_end().to_owned(),
        None => value.to_owned(),
    }
}

/// What is wrong with a `${…}`: where in the string's source it stands and why.
pub(super) struct BadReference {
    /// The reference as written.
    pub written: String,
    /// Why.
    pub text: Line,
}

/// Fills in every `${NAME}`. `$${NAME}` stands for the literal text. Values are not looked into again.
pub(super) fn expand(text: &str, env: &Env) -> Result<String, BadReference> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if rest[..start].ends_with('$') {
            out.push_str(&rest[..start - 1]);
            out.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        out.push_str(&rest[..start]);
        let Some(end) = rest[start..].find('}').map(|end| start + end) else {
            return Err(BadReference { written: "${".into(), text: line!(config_reference_open) });
        };
        let name = &rest[start + 2..end];
        let written = rest[start..=end].to_owned();
        if !is_name(name) {
            return Err(BadReference { text: line!(config_reference_name, written), written });
        }
        match env.get(name) {
            Some(value) if !value.is_empty() => out.push_str(value),
            _ => return Err(BadReference { text: line!(config_variable_unset, name), written }),
        }
        rest = &rest[end + 1..];
    }
    out.push_str(rest);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_filled_in_once() {
        let env = Env::of([("A", "1"), ("B", "${A}"), ("EMPTY", "")]);
        assert_eq!(expand("x${A}y${B}", &env).ok().as_deref(), Some("x1y${A}"));
        assert_eq!(expand("$${A} $A $$", &env).ok().as_deref(), Some("${A} $A $$"));
        for (text, written) in [("${NO}", "${NO}"), ("a${EMPTY}", "${EMPTY}"), ("${A", "${"), ("${A:-x}", "${A:-x}")] {
            assert_eq!(expand(text, &env).err().map(|bad| bad.written).as_deref(), Some(written), "{text}");
        }
        assert!(!format!("{env:?}").contains("\"1\""));
    }

    #[test]
    fn dotenv_files_are_read_as_people_write_them() {
        let text = "# c\nA=1\r\nexport B = \"x\\n\\\"y\" # c\nC='it $is'\nD=a b # c\n\n9X=1\nnonsense\nE=";
        let (vars, bad) = parse_dotenv(text);
        let expected = [("A", "1"), ("B", "x\n\"y"), ("C", "it $is"), ("D", "a b"), ("E", "")];
        assert_eq!(vars, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(bad, [7, 8]);
    }
}
