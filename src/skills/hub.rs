//! Skill hubs that speak ClawHub's v1 API: searching, looking a skill up, downloading it (openclaw-parity.md §4.5).
//!
//! Hubs are asked in the owner's order and the first that answers wins: one that is away, busy or broken is passed over, one
//! that says "no such skill" has answered. What a hub sends is input: bounded in size and time, and what it points to
//! elsewhere is fetched as any stranger's address is, without its token. Only ClawHub's published description was at hand:
//! nothing here was tried against a live hub.

use std::{error::Error as _, fs::File, io::Write as _, path::Path, sync::Arc, time::Duration};

use channel_api::Clock;
use futures_util::StreamExt as _;
use http::{
    HeaderMap, StatusCode,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, LOCATION, RETRY_AFTER},
};
use reqwest::{Client, Response, Url};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use self::config::{Address, HubsConfig};
use super::pinned::FileSum;
use crate::{
    egress::{Egress, EgressError, Proxy},
    lang::{self, Lang},
    secrets::Secret,
};

pub mod config;

/// The most bytes of an answer that is JSON.
const JSON_BYTES: usize = 1 << 20;
/// The most bytes of a packed skill.
pub const ARCHIVE_BYTES: u64 = 50 << 20;
/// How long a question may take, and a download.
const ASKING: Duration = Duration::from_secs(20);
const LOADING: Duration = Duration::from_secs(300);
const CONNECT: Duration = Duration::from_secs(10);
/// How long a hub that is busy is waited for before the next one is asked.
const PATIENCE: Duration = Duration::from_secs(15);
/// Redirects within one hub.
const REDIRECTS: usize = 3;

/// The hubs, in the order in which they are asked.
pub struct Hubs {
    hubs: Vec<Hub>,
    clock: Arc<dyn Clock>,
}

/// One hub.
pub struct Hub {
    /// Its name in the configuration.
    pub name: String,
    base: Url,
    token: Option<Secret>,
    client: Client,
}

/// One hit of a search.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, serde::Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Found {
    /// Its name at the hub.
    pub slug: String,
    /// Its title.
    pub display_name: Option<String>,
    /// What it is for.
    pub summary: Option<String>,
    /// Its newest version.
    pub version: Option<String>,
    /// Who published it.
    pub owner_handle: Option<String>,
}

/// What a hub says of a skill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Its name at the hub; another than asked for when it was renamed.
    pub slug: String,
    /// Its newest version.
    pub version: Option<String>,
    /// Who published it.
    pub owner: Option<String>,
    /// The hub's warning, if it has one.
    pub suspicious: Option<String>,
}

/// A skill that was downloaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Downloaded {
    /// The folder inside the archive, when the hub says so.
    pub path: Option<String>,
    /// Where it came from when it was not the hub itself.
    pub handed_to: Option<String>,
}

/// Why a hub gave nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HubError {
    /// No connection, or no answer in time.
    Away(String),
    /// Too many questions; seconds to wait, if it says.
    Busy(Option<u64>),
    /// It does not know the skill or the version.
    NotFound,
    /// It was taken back.
    Gone,
    /// The hub has blocked it as malware, or hides it.
    Blocked,
    /// The token is wrong, or one is needed.
    Denied,
    /// Another status.
    Status(u16),
    /// An answer that is not what it should be.
    Malformed(String),
    /// More bytes than allowed.
    TooLarge,
    /// What it points to cannot be fetched.
    Elsewhere(EgressError),
    /// What came is not what the hub lists.
    Tampered(String),
    /// It cannot be kept here.
    Io(String),
}

impl HubError {
    /// Why, in one line.
    pub fn text(&self, lang: Lang, hub: &str) -> String {
        match self {
            Self::Away(why) => lang::hub_away(lang, hub, why),
            Self::Busy(Some(seconds)) => lang::hub_busy_for(lang, hub, seconds),
            Self::Busy(None) => lang::hub_busy(lang, hub),
            Self::NotFound => lang::hub_not_found(lang, hub),
            Self::Gone => lang::hub_gone(lang, hub),
            Self::Blocked => lang::hub_blocked(lang, hub),
            Self::Denied => lang::hub_denied(lang, hub),
            Self::Status(status) => lang::hub_status(lang, hub, status),
            Self::Malformed(what) => lang::hub_malformed(lang, hub, what),
            Self::TooLarge => lang::hub_too_large(lang, hub, ARCHIVE_BYTES >> 20),
            Self::Elsewhere(error) => lang::hub_elsewhere(lang, hub, error),
            Self::Tampered(what) => lang::hub_tampered(lang, hub, what),
            Self::Io(why) => why.clone(),
        }
    }

    /// Whether the next hub should be asked: this one did not answer the question.
    pub fn is_no_answer(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Busy(_) | Self::Status(_) | Self::Malformed(_) | Self::Denied)
    }
}

impl Hubs {
    /// The hubs of a configuration that was checked; `only` keeps the one of that name. `env` looks up environment
    /// variables, for `proxy = "env"`.
    ///
    /// # Errors
    /// A sentence: no such hub, or no client can be built.
    pub fn new(
        config: &HubsConfig,
        only: Option<&str>,
        env: impl Fn(&str) -> Option<String>,
        clock: Arc<dyn Clock>,
        lang: Lang,
    ) -> Result<Self, String> {
        let known = config.addresses();
        let wanted: Vec<&str> = match only {
            Some(name) => vec![name],
            None => config.order.iter().map(String::as_str).collect(),
        };
        let mut hubs = Vec::new();
        for name in wanted {
            let names = || known.keys().cloned().collect::<Vec<_>>().join(", ");
            let address = known.get(name).ok_or_else(|| lang::hub_unknown(lang, name, names()))?;
            hubs.push(Hub::new(name, address, &config.proxy, &env)?);
        }
        Ok(Self { hubs, clock })
    }

    /// Asks one hub after the other until one answers; each that does not is told to `passed`.
    ///
    /// # Errors
    /// The answer when it is a refusal, with the hub's name; the last hub's fault when none answers.
    pub async fn first<T>(
        &self,
        mut passed: impl FnMut(&str, &HubError),
        ask: impl AsyncFn(&Hub, &dyn Clock) -> Result<T, HubError>,
    ) -> Result<(T, &Hub), (HubError, String)> {
        let mut last = (HubError::NotFound, String::new());
        for (n, hub) in self.hubs.iter().enumerate() {
            match ask(hub, self.clock.as_ref()).await {
                Ok(answer) => return Ok((answer, hub)),
                Err(error) if error.is_no_answer() && n + 1 < self.hubs.len() => passed(&hub.name, &error),
                Err(error) => {
                    last = (error, hub.name.clone());
                    break;
                }
            }
        }
        Err(last)
    }

    /// The hub of that address, for a skill that came from it.
    pub fn at(&self, registry: &str) -> Option<&Hub> {
        self.hubs.iter().find(|hub| hub.registry() == registry.trim_end_matches('/'))
    }

    /// The clock they work by.
    pub fn clock(&self) -> &dyn Clock {
        self.clock.as_ref()
    }
}

impl Hub {
    fn new(name: &str, address: &Address, proxy: &Proxy, env: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT)
            .user_agent(concat!("crawfish/", env!("CARGO_PKG_VERSION")));
        // A hub in our own network is reached directly, whatever leads out of it.
        if !address.is_private() {
            let (proxies, exceptions) = proxy.resolved(env);
            for (kind, url) in proxies {
                let proxy = match kind {
                    crate::egress::config::Kind::Http => reqwest::Proxy::http(url),
                    crate::egress::config::Kind::Https => reqwest::Proxy::https(url),
                    crate::egress::config::Kind::All => reqwest::Proxy::all(url),
                };
                let proxy = proxy.map_err(|error| format!("{name}: {}", error.without_url()))?;
                builder = builder.proxy(proxy.no_proxy(exceptions.as_deref().and_then(reqwest::NoProxy::from_string)));
            }
        }
        let client = builder.build().map_err(|error| format!("{name}: {}", error.without_url()))?;
        Ok(Self { name: name.to_owned(), base: address.url.clone(), token: address.token.clone(), client })
    }

    /// Its address, without a `/` at the end.
    pub fn registry(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// Searches by words.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn search(&self, words: &str, limit: usize, clock: &dyn Clock) -> Result<Vec<Found>, HubError> {
        #[derive(Deserialize)]
        struct Answer {
            #[serde(alias = "items")]
            results: Vec<Value>,
        }
        let limit = limit.to_string();
        let answer: Answer = self.json("search", &[("q", words), ("limit", &limit)], clock).await?;
        // One odd hit does not cost the others.
        let found = answer.results.into_iter().take(200).filter_map(|hit| serde_json::from_value::<Found>(hit).ok());
        Ok(found.filter(|hit| is_slug(&hit.slug)).collect())
    }

    /// Looks a skill up.
    ///
    /// # Errors
    /// [`HubError`]; [`HubError::Blocked`] for one that the hub has blocked.
    pub async fn about(&self, slug: &str, clock: &dyn Clock) -> Result<About, HubError> {
        let answer: Value = self.json(&format!("skills/{slug}"), &[], clock).await?;
        let text = |path: &str| answer.pointer(path).and_then(Value::as_str).map(str::to_owned);
        let truth = |path: &str| answer.pointer(path).and_then(Value::as_bool).unwrap_or(false);
        let verdict = text("/moderation/verdict").unwrap_or_default();
        if truth("/moderation/isMalwareBlocked") || verdict == "malicious" {
            return Err(HubError::Blocked);
        }
        let is_suspicious = truth("/moderation/isSuspicious") || verdict == "suspicious";
        let why = || text("/moderation/summary").unwrap_or_else(|| "suspicious".to_owned());
        let named = text("/skill/slug").unwrap_or_else(|| slug.to_owned());
        if !is_slug(&named) {
            return Err(HubError::Malformed("slug".to_owned()));
        }
        Ok(About {
            slug: named,
            version: text("/latestVersion/version").or_else(|| text("/skill/tags/latest")).filter(|v| is_version(v)),
            owner: text("/owner/handle").or_else(|| text("/skill/ownerHandle")),
            suspicious: is_suspicious.then(why),
        })
    }

    /// The files of a version with their hashes; `None` when the hub does not say.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn files(&self, slug: &str, version: &str, clock: &dyn Clock) -> Result<Option<Vec<FileSum>>, HubError> {
        let answer: Value = match self.json(&format!("skills/{slug}/versions/{version}"), &[], clock).await {
            Err(HubError::NotFound) => return Ok(None),
            answer => answer?,
        };
        let files = answer.pointer("/version/files").or_else(|| answer.pointer("/files"));
        let listed = files.and_then(Value::as_array).filter(|files| !files.is_empty() && files.len() <= 2_000);
        let Some(listed) = listed else { return Ok(None) };
        let read = |file: &Value| {
            let file: FileSum = serde_json::from_value(file.clone()).ok()?;
            (file.sha256.len() == 64).then(|| FileSum { sha256: file.sha256.to_ascii_lowercase(), ..file })
        };
        Ok(listed.iter().map(read).collect())
    }

    /// Which version has this fingerprint, and the newest one.
    ///
    /// # Errors
    /// [`HubError`].
    pub async fn resolve(
        &self,
        slug: &str,
        fingerprint: &str,
        clock: &dyn Clock,
    ) -> Result<(Option<String>, Option<String>), HubError> {
        let answer: Value = self.json("resolve", &[("slug", slug), ("hash", fingerprint)], clock).await?;
        let text =
            |path: &str| answer.pointer(path).and_then(Value::as_str).filter(|v| is_version(v)).map(str::to_owned);
        Ok((text("/match/version"), text("/latestVersion/version")))
    }

    /// Downloads a skill as a ZIP file to `into`, following the hub's hand-off to a code host. `progress` gets the bytes
    /// that are there and those that were promised.
    ///
    /// # Errors
    /// [`HubError`]; the file may be there in part.
    pub async fn download(
        &self,
        slug: &str,
        version: Option<&str>,
        into: &Path,
        egress: &Egress,
        clock: &dyn Clock,
        progress: &dyn Fn(u64, Option<u64>),
    ) -> Result<Downloaded, HubError> {
        let mut query = vec![("slug", slug)];
        query.extend(version.map(|version| ("version", version)));
        let loading = async {
            let answer = match self.get("download", &query, "application/zip, application/json;q=0.5", clock).await? {
                Got::Here(answer) => answer,
                Got::Elsewhere(url) => {
                    save_from(egress, url.as_str(), into, progress).await.map_err(elsewhere)?;
                    return Ok(Downloaded { path: None, handed_to: Some(host_of(&url)) });
                }
            };
            let header =
                |name: &str| answer.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
            if header(CONTENT_TYPE.as_str()).is_some_and(|kind| kind.contains("json")) {
                let handoff: Value = read_json(answer).await?;
                return self.handed_off(&handoff, into, egress, progress).await;
            }
            let promised = header("x-clawhub-artifact-sha256");
            let length = answer.content_length();
            let stream = answer.bytes_stream().map(|piece| piece.map_err(|error| HubError::Away(why(&error))));
            let sum = save(stream, length, into, progress).await?;
            match promised.filter(|promised| !promised.trim().eq_ignore_ascii_case(&sum)) {
                Some(_) => Err(HubError::Tampered("ZIP".to_owned())),
                None => Ok(Downloaded::default()),
            }
        };
        tokio::select! {
            loaded = loading => loaded,
            () = clock.sleep(LOADING) => Err(HubError::Away(format!("> {} s", LOADING.as_secs()))),
        }
    }

    /// Fetches what the hub does not keep itself: `{repo, commit, path, archiveUrl}`.
    async fn handed_off(
        &self,
        handoff: &Value,
        into: &Path,
        egress: &Egress,
        progress: &dyn Fn(u64, Option<u64>),
    ) -> Result<Downloaded, HubError> {
        let nested = ["handoff", "github", "source"].iter().find_map(|key| handoff.get(*key)?.as_object());
        let fields = nested.or_else(|| handoff.as_object()).ok_or_else(|| HubError::Malformed("JSON".to_owned()))?;
        let text = |key: &str| fields.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
        let url = text("archiveUrl").ok_or_else(|| HubError::Malformed("archiveUrl".to_owned()))?;
        let parsed = Url::parse(url).map_err(|_| HubError::Malformed("archiveUrl".to_owned()))?;
        // A branch can be moved under what was looked at; a commit cannot.
        let commit = text("commit").ok_or_else(|| HubError::Malformed("commit".to_owned()))?;
        if commit.len() < 40 || !commit.chars().all(|c| c.is_ascii_hexdigit()) || !url.contains(commit) {
            return Err(HubError::Malformed("commit".to_owned()));
        }
        save_from(egress, url, into, progress).await.map_err(elsewhere)?;
        Ok(Downloaded { path: text("path").map(str::to_owned), handed_to: Some(host_of(&parsed)) })
    }

    async fn json<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, &str)],
        clock: &dyn Clock,
    ) -> Result<T, HubError> {
        let asking = async {
            match self.get(path, query, "application/json", clock).await? {
                Got::Here(answer) => read_json(answer).await,
                Got::Elsewhere(url) => Err(HubError::Malformed(format!("-> {}", host_of(&url)))),
            }
        };
        tokio::select! {
            answer = asking => answer,
            () = clock.sleep(ASKING + PATIENCE) => Err(HubError::Away(format!("> {} s", ASKING.as_secs()))),
        }
    }

    /// Asks, waits once when the hub is busy and says for how long, and follows redirects within the hub.
    async fn get(
        &self,
        path: &str,
        query: &[(&str, &str)],
        accept: &'static str,
        clock: &dyn Clock,
    ) -> Result<Got, HubError> {
        let wrong = |_| HubError::Malformed("url".to_owned());
        let mut url = Url::parse(&format!("{}/api/v1/{path}", self.registry())).map_err(wrong)?;
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let (mut hops, mut waited) = (0, false);
        loop {
            let mut request = self.client.get(url.clone()).header(ACCEPT, accept);
            if let Some(token) = self.token.as_ref().filter(|token| !token.is_empty()) {
                let mut value =
                    http::HeaderValue::from_str(&format!("Bearer {}", token.expose())).map_err(|_| HubError::Denied)?;
                value.set_sensitive(true);
                request = request.header(AUTHORIZATION, value);
            }
            let answer = request.send().await.map_err(|error| HubError::Away(why(&error)))?;
            let status = answer.status();
            if status.is_redirection() {
                let next = next(&url, answer.headers()).ok_or(HubError::Status(status.as_u16()))?;
                if next.origin() != self.base.origin() {
                    return Ok(Got::Elsewhere(next));
                }
                hops += 1;
                if hops > REDIRECTS {
                    return Err(HubError::Status(status.as_u16()));
                }
                url = next;
                continue;
            }
            let pause = match status {
                StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => retry_after(answer.headers()),
                _ => None,
            };
            if let Some(pause) = pause.filter(|pause| *pause <= PATIENCE && !waited) {
                waited = true;
                clock.sleep(pause).await;
                continue;
            }
            return match status.as_u16() {
                200..=299 => Ok(Got::Here(answer)),
                401 => Err(HubError::Denied),
                403 | 451 => Err(HubError::Blocked),
                404 => Err(HubError::NotFound),
                410 => Err(HubError::Gone),
                429 => Err(HubError::Busy(pause.map(|pause| pause.as_secs()))),
                other => Err(HubError::Status(other)),
            };
        }
    }
}

/// What a question led to.
enum Got {
    Here(Response),
    /// Another host: fetched as a stranger's address, without the token.
    Elsewhere(Url),
}

/// A name at a hub: what can stand in a path and be a folder.
pub fn is_slug(slug: &str) -> bool {
    slug.len() <= 64
        && slug.starts_with(|c: char| c.is_ascii_alphanumeric())
        && slug.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_' | '.'))
        && !slug.contains("..")
        && !slug.ends_with('.')
}

/// A version: what can stand in a path.
pub fn is_version(version: &str) -> bool {
    !version.is_empty()
        && version.len() <= 64
        && version.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '+' | '_'))
        && !version.contains("..")
}

/// Whether the files are those the hub lists: nothing changed, missing or added. `_meta.json` is the hub's own.
///
/// # Errors
/// The first file that is not.
pub fn compare(listed: &[FileSum], files: &[FileSum]) -> Result<(), String> {
    let sum = |list: &[FileSum], path: &str| list.iter().find(|file| file.path == path).map(|file| file.sha256.clone());
    if let Some(file) =
        files.iter().find(|file| file.path != "_meta.json" && sum(listed, &file.path) != Some(file.sha256.clone()))
    {
        return Err(file.path.clone());
    }
    match listed.iter().find(|file| sum(files, &file.path).is_none()) {
        Some(missing) => Err(missing.path.clone()),
        None => Ok(()),
    }
}

/// Saves what lies at an address of the internet.
///
/// # Errors
/// [`HubError`].
pub async fn save_from(
    egress: &Egress,
    url: &str,
    into: &Path,
    progress: &dyn Fn(u64, Option<u64>),
) -> Result<String, HubError> {
    let opened = egress.open(url, 5).await.map_err(HubError::Elsewhere)?;
    match opened.status {
        200..=299 => {}
        404 => return Err(HubError::NotFound),
        410 => return Err(HubError::Gone),
        status => return Err(HubError::Status(status)),
    }
    let stream = opened.body.map(|piece| piece.map_err(HubError::Elsewhere));
    save(stream, opened.length, into, progress).await
}

/// What fails elsewhere is no reason to ask the next hub for the same.
fn elsewhere(error: HubError) -> HubError {
    match error {
        HubError::Status(status) => HubError::Malformed(status.to_string()),
        error => error,
    }
}

/// Writes a stream to a file; the SHA-256 of what was written.
async fn save(
    stream: impl futures_util::Stream<Item = Result<bytes::Bytes, HubError>>,
    length: Option<u64>,
    into: &Path,
    progress: &dyn Fn(u64, Option<u64>),
) -> Result<String, HubError> {
    let io = |error: std::io::Error| HubError::Io(format!("{}: {error}", into.display()));
    if length.is_some_and(|length| length > ARCHIVE_BYTES) {
        return Err(HubError::TooLarge);
    }
    let mut file = File::create(into).map_err(io)?;
    let (mut hasher, mut size) = (Sha256::new(), 0_u64);
    let mut stream = std::pin::pin!(stream);
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        size += piece.len() as u64;
        if size > ARCHIVE_BYTES {
            return Err(HubError::TooLarge);
        }
        hasher.update(&piece);
        file.write_all(&piece).map_err(io)?;
        progress(size, length);
    }
    Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

async fn read_json<T: DeserializeOwned>(answer: Response) -> Result<T, HubError> {
    let mut body = Vec::new();
    let mut stream = answer.bytes_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|error| HubError::Away(why(&error)))?;
        if body.len() + piece.len() > JSON_BYTES {
            return Err(HubError::Malformed(format!("> {} KiB", JSON_BYTES >> 10)));
        }
        body.extend_from_slice(&piece);
    }
    serde_json::from_slice(&body).map_err(|_| HubError::Malformed("JSON".to_owned()))
}

/// Where a redirect leads.
fn next(from: &Url, headers: &HeaderMap) -> Option<Url> {
    let mut next = from.join(headers.get(LOCATION)?.to_str().ok()?.trim()).ok()?;
    next.set_fragment(None);
    (from.scheme() != "https" || next.scheme() == "https").then_some(next)
}

/// `Retry-After` in seconds, else `RateLimit-Reset`.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = |name: &str| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    seconds(RETRY_AFTER.as_str()).or_else(|| seconds("ratelimit-reset")).map(Duration::from_secs)
}

/// Why a request failed, without its address.
fn why(error: &reqwest::Error) -> String {
    let mut source: &dyn std::error::Error = error;
    while let Some(cause) = source.source() {
        source = cause;
    }
    match error.is_timeout() {
        true => format!("> {} s", CONNECT.as_secs()),
        false if error.source().is_some() => source.to_string(),
        false => "HTTP".to_owned(),
    }
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_versions_are_what_can_stand_in_a_path() {
        for slug in ["weather", "a", "my-skill_2", "x.y"] {
            assert!(is_slug(slug), "{slug}");
        }
        for slug in ["", "../x", "a/b", "A", "-x", ".x", "a..b", "x.", "wеather", "a b", "a?x"] {
            assert!(!is_slug(slug), "{slug}");
        }
        assert!(is_version("1.2.3-rc.1+build"));
        assert!(!is_version("1/../2") && !is_version("") && !is_version("1..2"));
    }

    #[test]
    fn files_are_the_listed_ones_or_the_odd_one_is_named() {
        let file = |path: &str, sum: &str| FileSum { path: path.to_owned(), size: 1, sha256: sum.to_owned() };
        let listed = [file("SKILL.md", "1"), file("a.sh", "2")];
        let named = |files: &[FileSum]| compare(&listed, files).expect_err("it differs");
        assert_eq!(compare(&listed, &[file("SKILL.md", "1"), file("_meta.json", "9"), file("a.sh", "2")]), Ok(()));
        assert_eq!(named(&[file("SKILL.md", "1"), file("a.sh", "3")]), "a.sh");
        assert_eq!(named(&[file("SKILL.md", "1")]), "a.sh");
        assert_eq!(named(&[file("SKILL.md", "1"), file("a.sh", "2"), file("b.sh", "2")]), "b.sh");
    }

    #[test]
    fn a_hub_in_need_of_time_says_for_how_long() {
        let headers = |name: &'static str, value: &'static str| {
            HeaderMap::from_iter([(http::HeaderName::from_static(name), http::HeaderValue::from_static(value))])
        };
        assert_eq!(retry_after(&headers("retry-after", "34")), Some(Duration::from_secs(34)));
        assert_eq!(retry_after(&headers("ratelimit-reset", "5")), Some(Duration::from_secs(5)));
        assert_eq!(retry_after(&headers("retry-after", "soon")), None);
        let from = Url::parse("https://hub.test/api").expect("an address");
        assert_eq!(next(&from, &headers("location", "http://hub.test/x")), None, "not from https to http");
        assert_eq!(next(&from, &headers("location", "/x")).map(String::from).as_deref(), Some("https://hub.test/x"));
    }
}
