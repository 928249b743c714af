//! `web_search`: asks a search service and gives titles, addresses and snippets, marked as other people's words.
//!
//! There is no such tool until the owner chose a service: what is searched for goes to somebody else. Which service is a
//! line of configuration; each knows only how to ask and how to read the answer.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;
use channel_api::{
    Clock,
    reach::{is_private_name, is_public},
};
use http::{HeaderMap, HeaderName, HeaderValue};
use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    Effect, Tool, ToolContext, ToolError, ToolOutput, ToolSpec, arguments,
    broker::{short, tell},
    decode,
};
use crate::{
    egress::{Egress, EgressConfig, EgressError, Fetched, Limits},
    secrets::Secret,
    untrusted,
};

mod answers;

/// From the question to the last byte.
const LONGEST: Duration = Duration::from_secs(20);
/// The most bytes of an answer.
const MOST_BYTES: usize = 1 << 20;
/// The most results of one call.
const MOST_RESULTS: usize = 10;
/// The most characters of a query, a title, a snippet, an address.
const QUERY: usize = 400;
const TITLE: usize = 150;
const SNIPPET: usize = 400;
const ADDRESS: usize = 600;

/// `[tools.web_search]`.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct SearchConfig {
    /// Who is asked.
    pub provider: Choice,
    /// The service's address, when it is not the provider's own; that of a SearXNG may be private.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// The service's key.
    #[serde(skip_serializing)]
    pub api_key: Option<Secret>,
    /// Results when the call does not say, 1 to 10.
    pub count: usize,
}

impl Default for SearchConfig {
    fn default() -> Self {
        Self { provider: Choice::Auto, base_url: None, api_key: None, count: 5 }
    }
}

/// Who is asked, as it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Choice {
    /// What the other keys show: Tavily or Brave by the form of `api_key`, else SearXNG at `base_url`, else nobody. Never a
    /// service that nobody named.
    Auto,
    /// A SearXNG of one's own.
    Searxng,
    /// Brave's API.
    Brave,
    /// Tavily's API.
    Tavily,
    /// DuckDuckGo's page without scripts: needs no key.
    DuckDuckGo,
    /// Nobody: there is no such tool.
    Off,
}

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Provider {
    Searxng,
    Brave,
    Tavily,
    DuckDuckGo,
}

impl Provider {
    fn name(self) -> &'static str {
        match self {
            Self::Searxng => "SearXNG",
            Self::Brave => "Brave",
            Self::Tavily => "Tavily",
            Self::DuckDuckGo => "DuckDuckGo",
        }
    }

    fn own_address(self) -> Option<&'static str> {
        match self {
            Self::Searxng => None,
            Self::Brave => Some("https://api.search.brave.com"),
            Self::Tavily => Some("https://api.tavily.com"),
            Self::DuckDuckGo => Some("https://html.duckduckgo.com"),
        }
    }
}

impl SearchConfig {
    fn chosen(&self) -> Option<Provider> {
        let key = self.api_key.as_ref().map(|key| key.expose().trim()).filter(|key| !key.is_empty());
        Some(match self.provider {
            Choice::Off => return None,
            Choice::Searxng => Provider::Searxng,
            Choice::Brave => Provider::Brave,
            Choice::Tavily => Provider::Tavily,
            Choice::DuckDuckGo => Provider::DuckDuckGo,
            Choice::Auto => match (key, &self.base_url) {
                (Some(key), _) if key.starts_with("tvly-") => Provider::Tavily,
                (Some(_), _) => Provider::Brave,
                (None, Some(_)) => Provider::Searxng,
                (None, None) => return None,
            },
        })
    }
}

/// Searches the web.
pub struct WebSearch {
    provider: Provider,
    base: Url,
    key: Option<Secret>,
    count: usize,
    egress: Egress,
}

impl fmt::Debug for WebSearch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebSearch").field("provider", &self.provider).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Arguments {
    query: String,
    count: Option<usize>,
    since: Option<Since>,
}

/// How new results have to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Since {
    Day,
    Week,
    Month,
    Year,
}

impl Since {
    fn word(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    fn letter(self) -> &'static str {
        &self.word()[..1]
    }
}

impl WebSearch {
    /// The tool that the configuration asks for; `None` when it asks for none, or names no address that can be used (which
    /// is logged). `web` says how the public internet is reached.
    pub fn of(
        config: &SearchConfig,
        web: &EgressConfig,
        env: impl Fn(&str) -> Option<String>,
        clock: &Arc<dyn Clock>,
    ) -> Option<Self> {
        let provider = config.chosen()?;
        let written = config.base_url.as_deref().map(str::trim).filter(|url| !url.is_empty());
        let Some(written) = written.or(provider.own_address()) else {
            tracing::warn!("[tools.web_search] names no base_url for SearXNG: there is no web_search");
            return None;
        };
        let base = Url::parse(&format!("{}/", written.trim_end_matches('/'))).ok();
        let Some(base) = base.filter(|base| matches!(base.scheme(), "http" | "https") && base.host_str().is_some())
        else {
            tracing::warn!("base_url of [tools.web_search] is no web address: there is no web_search");
            return None;
        };
        let host = base.host_str().unwrap_or_default();
        let literal = host.trim_matches(['[', ']']).parse().ok().map(|address| !is_public(address));
        let private = literal.unwrap_or_else(|| is_private_name(host));
        // Only the address that the owner wrote may be private, and nothing else through this client.
        let own = config.base_url.is_some() && (private || provider == Provider::Searxng);
        let allow_hosts = match (own, base.port_or_known_default()) {
            (true, Some(port)) => vec![format!("{host}:{port}")],
            _ => Vec::new(),
        };
        let egress = Egress::new(&EgressConfig { allow_hosts, ..web.clone() }, env, Arc::clone(clock));
        let count = config.count.clamp(1, MOST_RESULTS);
        Some(Self { provider, base, key: config.api_key.clone(), count, egress })
    }

    /// The address, the headers and the body of a question.
    fn question(
        &self,
        query: &str,
        count: usize,
        since: Option<Since>,
    ) -> Result<(Url, HeaderMap, Option<Value>), ToolError> {
        let mut url = self.base.clone();
        let mut headers = HeaderMap::new();
        let mut json = None;
        let key = self.key.as_ref().map(|key| key.expose().trim()).filter(|key| !key.is_empty());
        let to = |url: &mut Url, path: &str| {
            let base = url.path().trim_end_matches('/').to_owned();
            url.set_path(&format!("{base}/{path}"));
        };
        match self.provider {
            Provider::Searxng => {
                to(&mut url, "search");
                let mut pairs = url.query_pairs_mut();
                pairs.append_pair("q", query).append_pair("format", "json");
                if let Some(since) = since {
                    pairs.append_pair("time_range", since.word());
                }
                drop(pairs);
                if let Some(key) = key {
                    headers.insert(http::header::AUTHORIZATION, header(&format!("Bearer {key}"))?);
                }
            }
            Provider::Brave => {
                to(&mut url, "res/v1/web/search");
                let mut pairs = url.query_pairs_mut();
                pairs.append_pair("q", query).append_pair("count", &count.to_string());
                if let Some(since) = since {
                    pairs.append_pair("freshness", &format!("p{}", since.letter()));
                }
                drop(pairs);
                let Some(key) = key else { return self.needs_key() };
                headers.insert(HeaderName::from_static("x-subscription-token"), header(key)?);
            }
            Provider::Tavily => {
                to(&mut url, "search");
                let mut body = json!({ "query": query, "max_results": count });
                if let Some(since) = since {
                    body["time_range"] = since.word().into();
                }
                json = Some(body);
                let Some(key) = key else { return self.needs_key() };
                headers.insert(http::header::AUTHORIZATION, header(&format!("Bearer {key}"))?);
            }
            Provider::DuckDuckGo => {
                to(&mut url, "html/");
                let mut pairs = url.query_pairs_mut();
                pairs.append_pair("q", query);
                if let Some(since) = since {
                    pairs.append_pair("df", since.letter());
                }
            }
        }
        let accepted = if self.provider == Provider::DuckDuckGo { "text/html" } else { "application/json" };
        headers.insert(http::header::ACCEPT, HeaderValue::from_static(accepted));
        Ok((url, headers, json))
    }

    fn needs_key<T>(&self) -> Result<T, ToolError> {
        tell(format!(
            "Searching with {} needs a key, and there is none. Tell the user: the owner sets `api_key` under \
             [tools.web_search].",
            self.provider.name()
        ))
    }

    /// What an answer holds.
    fn results(&self, fetched: &Fetched) -> Result<Vec<Found>, ToolError> {
        let name = self.provider.name();
        let text = || decode::Encoding::PLAIN.decode(&fetched.body).0.into_owned();
        match fetched.status {
            200..=299 if self.provider == Provider::DuckDuckGo => match answers::duckduckgo(&text()) {
                Some(found) => Ok(found),
                None => tell(format!(
                    "{name} asks whether we are human instead of answering. Wait some minutes, or tell the user to choose \
                     another provider under [tools.web_search]."
                )),
            },
            200..=299 => {
                let body: Option<Value> = serde_json::from_slice(&fetched.body).ok();
                let found = body.as_ref().and_then(|body| match self.provider {
                    Provider::Searxng => answers::searxng(body),
                    Provider::Brave => answers::brave(body),
                    Provider::Tavily | Provider::DuckDuckGo => answers::tavily(body),
                });
                match found {
                    Some(found) => Ok(found),
                    None => tell(format!("The answer of {name} is not what a search gives. Try once more, or do without.")),
                }
            }
            429 => tell(format!("{name} takes no more searches for now (429). Wait a minute, or answer without.")),
            403 if self.provider == Provider::Searxng => tell(
                "The SearXNG gives no JSON (403). Tell the user: `json` has to be among `search.formats` in its settings.yml."
                    .to_owned(),
            ),
            401 | 403 if self.provider != Provider::DuckDuckGo => tell(format!(
                "{name} does not accept the key ({}). Tell the user: the owner looks at `api_key` under [tools.web_search].",
                fetched.status
            )),
            402 | 432 | 433 => tell(format!("The plan with {name} is used up ({}). Tell the user.", fetched.status)),
            status => tell(format!("{name} answered {status}. Try once more later, or do without.")),
        }
    }
}

fn header(value: &str) -> Result<HeaderValue, ToolError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| {
        ToolError::TellModel(
            "The `api_key` under [tools.web_search] has characters that no key has. Tell the user.".to_owned(),
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// One result, as it came.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Found {
    title: String,
    url: String,
    snippet: String,
}

#[async_trait]
impl Tool for WebSearch {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            name: "web_search".to_owned(),
            description: "Searches the web: titles, addresses and snippets. Read a page with web_fetch.".to_owned(),
            parameters: json!({
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "count": {"type": "integer", "minimum": 1, "description": format!("Results, at most {MOST_RESULTS}")},
                    "since": {"type": "string", "enum": ["day", "week", "month", "year"], "description": "Only newer ones"},
                },
                "required": ["query"],
                "additionalProperties": false,
            }),
        }
    }

    fn reads_outside(&self, _: &Value) -> bool {
        true
    }

    fn effect(&self) -> Effect {
        Effect::Read
    }

    async fn call(&self, args: Value, ctx: &ToolContext) -> Result<ToolOutput, ToolError> {
        let Arguments { query, count, since } = arguments::typed(args)?;
        let query: String = query.split_whitespace().collect::<Vec<_>>().join(" ");
        if query.is_empty() || query.chars().count() > QUERY {
            return tell(format!("`query` is empty or longer than {QUERY} characters. Give a few words."));
        }
        let count = count.unwrap_or(self.count).clamp(1, MOST_RESULTS);
        let (url, headers, json) = self.question(&query, count, since)?;
        let limits = Limits { total: LONGEST, redirects: 0, body: MOST_BYTES };
        let fetched = match self.egress.ask(url, headers, json.as_ref(), limits, &ctx.cancel).await {
            Ok(fetched) => fetched,
            Err(EgressError::Cancelled) => return Err(ToolError::Abort("stopped".to_owned())),
            Err(error) => return tell(format!("The search failed: {error}")),
        };
        let found = self.results(&fetched)?;
        let shown = shown(found, count, ctx.output_chars);
        if shown.is_empty() {
            return Ok(format!("Nothing was found for `{}`. Try other words.", short(&query)).into());
        }
        let by = format!(" by=\"{}\"", self.provider.name());
        Ok(untrusted::block("search", &by, shown.trim_end()).into())
    }
}

/// The results as text, defused; each address once, and only those of the web.
fn shown(found: Vec<Found>, count: usize, chars: usize) -> String {
    let mut text = String::new();
    let mut seen: Vec<String> = Vec::new();
    for found in found {
        let Ok(url) = Url::parse(found.url.trim()) else { continue };
        let address = url.to_string();
        if !matches!(url.scheme(), "http" | "https") || address.len() > ADDRESS || seen.contains(&address) {
            continue;
        }
        let line = |text: &str, most: usize| -> String {
            let text = untrusted::defuse(text).split_whitespace().collect::<Vec<_>>().join(" ");
            if text.chars().count() > most { text.chars().take(most).chain(['…']).collect() } else { text }
        };
        let (title, snippet) = (line(&found.title, TITLE), line(&found.snippet, SNIPPET));
        let mut entry = format!(
            "{}. {}\n{}\n",
            seen.len() + 1,
            if title.is_empty() { "(no title)" } else { &title },
            untrusted::defuse(&address)
        );
        if !snippet.is_empty() {
            entry.push_str(&format!("{snippet}\n"));
        }
        if text.chars().count() + entry.chars().count() > chars.saturating_sub(200) {
            break;
        }
        text.push_str(&entry);
        text.push('\n');
        seen.push(address);
        if seen.len() == count {
            break;
        }
    }
    text
}

#[cfg(test)]
mod tests;
