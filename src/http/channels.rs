//! `/channels/<kind>/<account>…`: hands a platform's call to its adapter as a plain value, and its answer back; a
//! WebSocket that the platform opens goes on in `http/sockets.rs`.

use std::sync::Arc;

use axum::{
    Extension,
    body::Body,
    extract::{Request, State},
    http::{HeaderMap, StatusCode, Uri, header, request::Parts},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use channel_api::{ChannelId, HttpBody, HttpRequest, HttpResponse};

use super::{
    Server, auth,
    body::{self, Chunks, Handover, Whole},
    connection::Place,
    error::Refusal,
    sockets,
};

/// An adapter's own address.
pub const ACCOUNT: &str = "/channels/{kind}/{account}";
/// What is below it.
pub const BELOW: &str = "/channels/{kind}/{account}/{*rest}";

/// Any method: the adapter knows which it takes.
pub async fn handle(
    State(server): State<Arc<Server>>,
    Extension(handover): Extension<Arc<Handover>>,
    Extension(place): Extension<Place>,
    request: Request,
) -> Response {
    match answer(&server, handover, place, request).await {
        Ok(response) => response,
        Err(refusal) => refusal.into_response(),
    }
}

async fn answer(
    server: &Arc<Server>,
    handover: Arc<Handover>,
    place: Place,
    request: Request,
) -> Result<Response, Refusal> {
    let http = &server.http;
    let (head, body) = request.into_parts();
    let (id, path) = addressed(&head.uri).ok_or_else(Refusal::not_found)?;
    let entry = http.channels.get(&id).ok_or_else(Refusal::not_found)?;
    let context = http.contexts.get(&id).ok_or_else(Refusal::not_found)?;
    if let Some(endpoint) = entry.channel.socket().filter(|_| asks_for_socket(&head.headers)) {
        let request = asked(server, &head, path, Bytes::new());
        if let Err(answer) = endpoint.admit(&request) {
            return Ok(written(*answer, handover));
        }
        let (channel, context) = (Arc::clone(&entry.channel), context.clone());
        return sockets::open(server, sockets::Opening { channel, context, request, place }, head).await;
    }
    let Some(endpoint) = entry.channel.http() else {
        return Err(match entry.channel.socket() {
            Some(_) => {
                let message = "this address takes WebSockets: point the client's WebSocket here, not its HTTP";
                Refusal::new(StatusCode::UPGRADE_REQUIRED, "websocket_only", message)
            }
            None => Refusal::not_found(),
        });
    };
    let clock = http.clock.as_ref();
    let body = body::read(&head.headers, body, endpoint.body_limit(), server.limits.body, clock).await?;
    Ok(written(endpoint.handle(context, asked(server, &head, path, body)).await, handover))
}

fn asks_for_socket(headers: &HeaderMap) -> bool {
    let upgrades = headers.get_all(header::UPGRADE).iter().filter_map(|value| value.to_str().ok());
    upgrades.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case("websocket"))
}

fn asked(server: &Server, head: &Parts, path: String, body: Bytes) -> HttpRequest {
    let query = head.uri.query().unwrap_or_default().to_owned();
    let local = auth::is_near(server, head);
    HttpRequest { method: head.method.clone(), path, query, headers: head.headers.clone(), body, local }
}

/// An adapter's answer as one of ours.
fn written(answer: HttpResponse, handover: Arc<Handover>) -> Response {
    let body = match answer.body {
        HttpBody::Whole { bytes, written } => Body::new(Whole::new(bytes, written, handover)),
        HttpBody::Stream(chunks) => Body::new(Chunks(chunks)),
    };
    let mut response = Response::new(body);
    *response.status_mut() = answer.status;
    *response.headers_mut() = answer.headers;
    response
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
