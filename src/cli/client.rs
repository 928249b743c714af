//! A running gateway, asked over HTTP with its token. Always directly: a proxy of the environment has no business between
//! a command and its own gateway.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    inspect::{Method, Request},
    secrets::Secret,
};

/// The most bytes of one answer.
const MAX_BODY: usize = 32 << 20;

/// The gateway of one data folder.
#[derive(Clone, Debug)]
pub struct Client {
    http: reqwest::Client,
    url: reqwest::Url,
    token: Secret,
}

/// Why a gateway did not answer, named by what the command says.
#[derive(Debug)]
pub enum ClientError {
    /// It cannot be reached.
    Away(String),
    /// There is no such row.
    NotFound,
    /// It refused: its own words.
    Refused(String),
    /// Too many tries; again after this many seconds.
    TooMany(u64),
    /// What was asked cannot be (422): its own words.
    Invalid(String),
}

impl Client {
    /// The gateway at `url`.
    ///
    /// # Errors
    /// When the address is none.
    pub fn new(url: &str, token: Secret) -> Result<Self, ClientError> {
        let away = |error: &dyn std::fmt::Display| ClientError::Away(error.to_string());
        let url = reqwest::Url::parse(url).map_err(|error| away(&error))?;
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .build()
            .map_err(|error| away(&error.without_url()))?;
        Ok(Self { http, url, token })
    }

    /// Where it is.
    pub fn url(&self) -> &str {
        self.url.as_str()
    }

    fn address<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> reqwest::Url {
        let mut url = self.url.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.clear().extend(path);
        }
        url
    }

    /// Asks and reads the JSON answer.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn ask(&self, request: &Request) -> Result<Value, ClientError> {
        let url = self.address(request.path.iter().map(String::as_str));
        let builder = match request.method {
            Method::Get => self.http.get(url),
            Method::Post => self.http.post(url).json(&request.body),
            Method::Delete => self.http.delete(url).json(&request.body),
        };
        let sent = builder.query(&request.query).timeout(Duration::from_secs(30)).bearer_auth(self.token.expose());
        read(sent.send().await.map_err(away)?).await
    }

    /// Hands a message in; the answer is that of `POST /api/chat`.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn post(&self, message: &str, session: Option<&str>) -> Result<Value, ClientError> {
        let mut body = json!({ "message": message });
        if let Some(session) = session {
            body["session"] = session.into();
        }
        let sent = self.http.post(self.address(["api", "chat"])).json(&body).timeout(Duration::from_secs(30));
        read(sent.bearer_auth(self.token.expose()).send().await.map_err(away)?).await
    }

    /// The events of one message, from its beginning on.
    ///
    /// # Errors
    /// [`ClientError`].
    pub async fn events(&self, task: &str, after: Option<&str>) -> Result<Events, ClientError> {
        let mut sent = self.http.get(self.address(["sse"])).query(&[("taskId", task)]);
        if let Some(after) = after {
            sent = sent.header("last-event-id", after);
        }
        let response = sent.bearer_auth(self.token.expose()).send().await.map_err(away)?;
        if response.status().is_success() {
            return Ok(Events { response, pending: Vec::new(), last_id: after.map(str::to_owned) });
        }
        read(response).await.map(|_| ()).and(Err(ClientError::Refused("no event stream".to_owned())))
    }
}

fn away(error: reqwest::Error) -> ClientError {
    ClientError::Away(error.without_url().to_string())
}

async fn read(mut response: reqwest::Response) -> Result<Value, ClientError> {
    let status = response.status();
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(away)? {
        if body.len() + chunk.len() > MAX_BODY {
            return Err(ClientError::Refused("the answer is too large".to_owned()));
        }
        body.extend_from_slice(&chunk);
    }
    let value: Value = serde_json::from_slice(&body).unwrap_or(Value::Null);
    if status.is_success() && !value.is_null() {
        return Ok(value);
    }
    if status == reqwest::StatusCode::NOT_FOUND {
        return Err(ClientError::NotFound);
    }
    let message = value["error"]["message"].as_str().unwrap_or_default();
    match status {
        reqwest::StatusCode::UNPROCESSABLE_ENTITY => return Err(ClientError::Invalid(format!("422 {message}"))),
        reqwest::StatusCode::TOO_MANY_REQUESTS => {
            let after = response.headers().get("retry-after").and_then(|value| value.to_str().ok()?.parse().ok());
            return Err(ClientError::TooMany(after.unwrap_or(60)));
        }
        _ => {}
    }
    Err(ClientError::Refused(format!("{} {message}", status.as_u16()).trim_end().to_owned()))
}

/// Events of a message, as they come.
pub struct Events {
    response: reqwest::Response,
    pending: Vec<u8>,
    last_id: Option<String>,
}

impl Events {
    /// The id to go on after when the stream breaks.
    pub fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// The next event; `None` when the stream ended. Cancel-safe.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            while let Some(block) = take_block(&mut self.pending) {
                let (id, data) = fields(&block);
                if id.is_some() {
                    self.last_id = id;
                }
                if let Some(event) = data.and_then(|data| serde_json::from_str(&data).ok()) {
                    return Some(event);
                }
            }
            if self.pending.len() > MAX_BODY {
                return None;
            }
            let chunk = self.response.chunk().await.ok()??;
            self.pending.extend_from_slice(&chunk);
        }
    }
}

/// Takes the first block (up to an empty line) off the front.
fn take_block(pending: &mut Vec<u8>) -> Option<String> {
    let end = pending.windows(2).position(|pair| pair == b"\n\n").map(|at| (at, 2));
    let crlf = pending.windows(4).position(|four| four == b"\r\n\r\n").map(|at| (at, 4));
    let (at, length) = match (end, crlf) {
        (Some(a), Some(b)) => a.min(b),
        (a, b) => a.or(b)?,
    };
    let block = String::from_utf8_lossy(&pending[..at]).into_owned();
    pending.drain(..at + length);
    Some(block)
}

fn fields(block: &str) -> (Option<String>, Option<String>) {
    let mut id = None;
    let mut data: Option<String> = None;
    for line in block.lines() {
        let (name, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match name {
            "id" => id = Some(value.to_owned()),
            "data" => {
                let data = data.get_or_insert_default();
                if !data.is_empty() {
                    data.push('\n');
                }
                data.push_str(value);
            }
            _ => {}
        }
    }
    (id, data)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_at_empty_lines_of_either_kind() {
        let mut pending = b": hi\n\nid: 7\ndata: {\"a\":\ndata: 1}\n\ndata:x\r\n\r\nid: 8".to_vec();
        let blocks: Vec<String> = std::iter::from_fn(|| take_block(&mut pending)).collect();
        assert_eq!(blocks.len(), 3);
        assert_eq!(fields(&blocks[0]), (None, None));
        assert_eq!(fields(&blocks[1]), (Some("7".into()), Some("{\"a\":\n1}".into())));
        assert_eq!(fields(&blocks[2]), (None, Some("x".into())));
        assert_eq!(pending, b"id: 8");
    }

    #[test]
    fn keys_are_encoded_as_one_segment() {
        let client = Client::new("http://127.0.0.1:3002", Secret::new("t")).expect("a client");
        let url = client.address(["api", "sessions", "agent:main:w:direct:a%3A/b"]);
        assert_eq!(url.path(), "/api/sessions/agent:main:w:direct:a%253A%2Fb");
    }
}
