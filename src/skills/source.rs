//! What people write behind `skills install`: a hub's name for a skill, a folder, a ZIP file, a git repository, an address.
//! Pure.

use std::path::{Path, PathBuf};

use reqwest::Url;

use super::hub::{is_slug, is_version};

/// Where a skill comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A hub: `[@owner/]name[@version]`.
    Hub {
        /// Who must have published it, if that was said.
        owner: Option<String>,
        /// Its name.
        slug: String,
        /// Which version; `None` = the newest.
        version: Option<String>,
    },
    /// A folder on this machine.
    Folder(PathBuf),
    /// A ZIP file on this machine.
    Zip(PathBuf),
    /// A git repository.
    Git {
        /// What git is given: https, ssh or file.
        url: String,
        /// Which branch or tag, when the address says so.
        branch: Option<String>,
        /// Which folder of it, when the address says so.
        path: Option<String>,
    },
    /// A ZIP file at an address.
    Url(String),
}

/// Why a word is no source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSource {
    /// There is no such file or folder.
    NotThere,
    /// Neither a folder nor a `.zip`.
    NotASkill,
    /// A protocol that is not used for this.
    Protocol,
    /// A user name or password in the address.
    Password,
    /// No name that a hub could have.
    BadName,
}

/// Reads one word. `at` is the folder that paths are relative to, `home` what `~` stands for.
///
/// # Errors
/// [`NoSource`].
pub fn read(word: &str, at: &Path, home: Option<&Path>) -> Result<Source, NoSource> {
    let word = word.trim();
    if let Some(url) = word.strip_prefix("git+") {
        return git(url);
    }
    if word.starts_with("git@") || word.starts_with("ssh://") || word.starts_with("file://") || word.ends_with(".git") {
        return git(word);
    }
    if word.starts_with("https://") || word.starts_with("http://") {
        let url = Url::parse(word).map_err(|_| NoSource::Protocol)?;
        if !url.username().is_empty() || url.password().is_some() {
            return Err(NoSource::Password);
        }
        return Ok(code_host(&url).unwrap_or_else(|| Source::Url(word.to_owned())));
    }
    if word.contains("://") || word.starts_with("ext::") {
        return Err(NoSource::Protocol);
    }
    let looks_like_path = word.starts_with(['.', '/', '~']) || word.contains('\\') || word.ends_with(".zip");
    let path = match (word.strip_prefix("~/"), home) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => at.join(word),
    };
    if looks_like_path || (word.contains('/') && !word.starts_with('@') && path.exists()) {
        return match std::fs::metadata(&path) {
            Ok(facts) if facts.is_dir() => Ok(Source::Folder(path)),
            Ok(facts) if facts.is_file() && word.to_ascii_lowercase().ends_with(".zip") => Ok(Source::Zip(path)),
            Ok(_) => Err(NoSource::NotASkill),
            Err(_) => Err(NoSource::NotThere),
        };
    }
    let (owner, name) = match word.strip_prefix('@').unwrap_or(word).split_once('/') {
        Some((owner, name)) => (Some(owner.to_owned()), name),
        None => (None, word),
    };
    let (slug, version) = match name.split_once('@') {
        Some((slug, version)) => (slug, Some(version.to_owned())),
        None => (name, None),
    };
    let is_owner = |owner: &String| is_slug(&owner.to_ascii_lowercase());
    let is_good = is_slug(slug) && version.as_deref().is_none_or(is_version) && owner.as_ref().is_none_or(is_owner);
    match is_good {
        true => Ok(Source::Hub { owner, slug: slug.to_owned(), version }),
        false => Err(NoSource::BadName),
    }
}

/// What git may be given: https, ssh and file, no options, no helpers.
fn git(url: &str) -> Result<Source, NoSource> {
    let plain = |url: &str| Source::Git { url: url.to_owned(), branch: None, path: None };
    let is_safe = !url.contains(|c: char| c.is_whitespace() || c.is_control()) && !url.contains("::");
    if let Some(rest) = url.strip_prefix("git@") {
        // The short form of ssh: host:path.
        let (host, path) = rest.split_once(':').ok_or(NoSource::Protocol)?;
        let is_host = !host.is_empty()
            && !host.starts_with('-')
            && host.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-'));
        return match is_safe && is_host && !path.is_empty() && !path.starts_with('-') {
            true => Ok(plain(&format!("ssh://git@{host}/{}", path.trim_start_matches('/')))),
            false => Err(NoSource::Protocol),
        };
    }
    let parsed = Url::parse(url).map_err(|_| NoSource::Protocol)?;
    let is_host = parsed.host_str().is_none_or(|host| !host.starts_with('-'));
    if !is_safe || !is_host || !matches!(parsed.scheme(), "https" | "ssh" | "file") {
        return Err(NoSource::Protocol);
    }
    if parsed.password().is_some() || (parsed.scheme() == "https" && !parsed.username().is_empty()) {
        return Err(NoSource::Password);
    }
    Ok(plain(url))
}

/// A repository's page at a code host: `https://github.com/owner/repo[/tree/branch/folder]`.
fn code_host(url: &Url) -> Option<Source> {
    const HOSTS: [&str; 6] = ["github.com", "www.github.com", "gitlab.com", "gitee.com", "codeberg.org", "gitcode.com"];
    let host = url.host_str().filter(|host| HOSTS.contains(host))?;
    let parts: Vec<&str> = url.path_segments()?.filter(|part| !part.is_empty()).collect();
    let [owner, repo, rest @ ..] = parts.as_slice() else { return None };
    let rest = rest.strip_prefix(&["-"]).unwrap_or(rest);
    let (branch, path) = match rest {
        [] => (None, None),
        ["tree" | "blob", branch, path @ ..] => {
            let path = path.strip_suffix(&["SKILL.md"]).unwrap_or(path).join("/");
            (Some((*branch).to_owned()), Some(path).filter(|path| !path.is_empty()))
        }
        _ => return None,
    };
    let repo = repo.trim_end_matches(".git");
    Some(Source::Git { url: format!("https://{host}/{owner}/{repo}.git"), branch, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_one_kind_of_source() {
        let top = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(top.path().join("mine/weather")).expect("folders");
        std::fs::write(top.path().join("w.zip"), "x").expect("a file");
        std::fs::write(top.path().join("w.txt"), "x").expect("a file");
        let of = |word: &str| read(word, top.path(), Some(top.path()));
        let hub = |owner: Option<&str>, slug: &str, version: Option<&str>| {
            Ok(Source::Hub {
                owner: owner.map(str::to_owned),
                slug: slug.to_owned(),
                version: version.map(str::to_owned),
            })
        };
        assert_eq!(of("weather"), hub(None, "weather", None));
        assert_eq!(of("@Ann/weather@1.2.0"), hub(Some("Ann"), "weather", Some("1.2.0")));
        assert_eq!(of("ann/weather"), hub(Some("ann"), "weather", None));
        assert_eq!(of("./mine/weather"), Ok(Source::Folder(top.path().join("./mine/weather"))));
        assert_eq!(of("mine/weather"), Ok(Source::Folder(top.path().join("mine/weather"))));
        assert_eq!(of("~/mine"), Ok(Source::Folder(top.path().join("mine"))));
        assert_eq!(of("w.zip"), Ok(Source::Zip(top.path().join("w.zip"))));
        assert_eq!(of("./w.txt"), Err(NoSource::NotASkill));
        assert_eq!(of("./nothing"), Err(NoSource::NotThere));
        assert_eq!(of("https://x.test/a.zip"), Ok(Source::Url("https://x.test/a.zip".to_owned())));
        let git = |url: &str, branch: Option<&str>, path: Option<&str>| {
            Ok(Source::Git { url: url.to_owned(), branch: branch.map(str::to_owned), path: path.map(str::to_owned) })
        };
        assert_eq!(of("git@github.com:a/b.git"), git("ssh://git@github.com/a/b.git", None, None));
        assert_eq!(of("git+file:///srv/x"), git("file:///srv/x", None, None));
        assert_eq!(of("https://x.test/a.git"), git("https://x.test/a.git", None, None));
        assert_eq!(
            of("https://github.com/a/b/tree/main/skills/c"),
            git("https://github.com/a/b.git", Some("main"), Some("skills/c"))
        );
        assert_eq!(of("https://gitee.com/a/b"), git("https://gitee.com/a/b.git", None, None));
    }

    #[test]
    fn what_could_be_more_than_an_address_is_refused() {
        let of = |word: &str| read(word, Path::new("/nowhere"), None);
        for word in [
            "ext::sh -c id",
            "git+ext::sh -c id",
            "ftp://x/a",
            "git+http://x/y",
            "ssh://-oProxyCommand=id/x",
            "git@-x:y",
            "git+-u.git",
            "file:///a b",
        ] {
            assert!(matches!(of(word), Err(NoSource::Protocol)), "{word}: {:?}", of(word));
        }
        for word in ["https://me:pw@x.test/a.zip", "git+https://me@x.test/a", "ssh://me:pw@x.test/a"] {
            assert_eq!(of(word), Err(NoSource::Password), "{word}");
        }
        for word in ["", "Weather", "wеather", "a b", "--yes", "@a", "x@../1", "-rf"] {
            assert_eq!(of(word), Err(NoSource::BadName), "{word}");
        }
    }
}
