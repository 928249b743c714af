//! `/channels/<kind>/<account>…`: hands a platform's call to its adapter as a plain value, and its answer back.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::Uri,
    response::{IntoResponse, Response},
};
use channel_api::{ChannelId, HttpBody, HttpRequest};

use super::{
    Server, auth,
    body::{self, Chunks, Handover, Whole},
    error::Refusal,
};

/// An adapter's own address.
pub const ACCOUNT: &str = "/channels/{kind}/{account}";
/// What is below it.
pub const BELOW: &str = "/channels/{kind}/{account}/{*rest}";

/// Any method: the adapter knows which it takes.
pub async fn handle(
    State(server): State<Arc<Server>>,
    Extension(handover): Extension<Arc<Handover>>,
    request: Request,
) -> Response {
    match answer(&server, handover, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn answer(server: &Server, handover: Arc<Handover>, request: Request) -> Result<Response, Refusal> {
    let http = &server.http;
    let (head, body) = request.into_parts();
    let (id, path) = addressed(&head.uri).ok_or_else(Refusal::not_found)?;
    let entry = http.channels.get(&id).ok_or_else(Refusal::not_found)?;
    let (endpoint, context) = entry.channel.http().zip(http.contexts.get(&id)).ok_or_else(Refusal::not_found)?;
    let clock = http.clock.as_ref();
    let body = body::read(&head.headers, body, endpoint.body_limit(), server.limits.body, clock).await?;
    let query = head.uri.query().unwrap_or_default().to_owned();
    let local = auth::is_near(server, &head);
    let request = HttpRequest { method: head.method, path, query, headers: head.headers, body, local };
    let answer = endpoint.handle(context, request).await;
    let body = match answer.body {
        HttpBody::Whole { bytes, written } => Body::new(Whole::new(bytes, written, handover)),
        HttpBody::Stream(chunks) => Body::new(Chunks(chunks)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    Ok(response)
}

/// The channel and what follows it, percent-decoded; `None` for what names no channel, or climbs out of it.
fn addressed(uri: &Uri) -> Option<(ChannelId, String)> {
    let mut pieces = uri.path().strip_prefix("/channels/")?.splitn(3, '/');
    let (kind, account) = (pieces.next()?, pieces.next()?);
    let name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_' || c == '-';
    if kind.is_empty() || account.is_empty() || !kind.chars().all(name) || !account.chars().all(name) {
        return None;
    }
    let Some(rest) = pieces.next() else { return Some((ChannelId::new(kind, account), String::new())) };
    let rest = decoded(rest)?;
    let climbs = rest.split('/').any(|piece| piece == ".." || piece == "." || piece.is_empty());
    (!climbs && !rest.contains('\0')).then(|| (ChannelId::new(kind, account), format!("/{rest}")))
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digit = |byte: Option<u8>| char::from(byte?).to_digit(16);
                u8::try_from(digit(rest.next())? << 4 | digit(rest.next())?).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_names_a_channel_and_stays_below_it() {
        let table = [
            ("/channels/webhook/bridge", Some(("webhook:bridge", ""))),
            ("/channels/webhook/bridge/messages/m%2D1", Some(("webhook:bridge", "/messages/m-1"))),
            ("/channels/webhook/bridge/%E4%BD%A0", Some(("webhook:bridge", "/你"))),
            ("/channels/webhook/bridge//x", None),
            ("/channels/webhook/bridge/../admin", None),
            ("/channels/webhook/bridge/%2e%2e/admin", None),
            ("/channels/webhook/bridge/%FF", None),
            ("/channels/webhook/bridge/%4", None),
            ("/channels/webhook/Bridge", None),
            ("/channels/web%68ook/bridge", None),
            ("/channels//hook/../admin", None),
        ];
        for (path, expected) in table {
            let uri: Uri = path.parse().expect("a path");
            let found = addressed(&uri);
            assert_eq!(found.as_ref().map(|(id, path)| (id.as_str(), path.as_str())), expected, "{path}");
        }
    }
}
