//! Who may connect or push: the token in one of four places, or the signature of the raw body. Answers are constant.
//! protocols.md §0 trap 8, §1.1, §1.5.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use channel_api::{ChannelContext, HttpRequest, HttpResponse, Link, Secret, Seldom};
use http::{StatusCode, header};
use ring::hmac;
use serde_json::json;
use subtle::ConstantTimeEq;
use tracing::warn;

/// Why somebody is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Denied {
    /// There is no token.
    Missing,
    /// It is another one, or a signature that does not fit.
    Wrong,
    /// No token is set here, and it comes from elsewhere.
    NotHere,
}

impl Denied {
    /// How the client came, in words that fit behind "a OneBot client came".
    pub fn words(self) -> &'static str {
        match self {
            Self::Missing => "without a token (`access_token`)",
            Self::Wrong => "with another token than `access_token`, or a wrong signature",
            Self::NotHere => "from elsewhere, and no `access_token` is set",
        }
    }

    /// The answer; it never says what would have been right.
    pub fn response(self) -> HttpResponse {
        let (status, said) = match self {
            Self::Missing => (StatusCode::UNAUTHORIZED, "access token is missing"),
            Self::Wrong => (StatusCode::FORBIDDEN, "access token or signature is wrong"),
            Self::NotHere => {
                (StatusCode::FORBIDDEN, "without an access_token only programs of this machine are let in")
            }
        };
        HttpResponse::json(status, &json!({ "error": said }))
    }
}

/// Who was turned away, for the log and for whoever asks why nothing is connected.
#[derive(Default)]
pub struct TurnedAway {
    last: Mutex<Option<String>>,
    /// Somebody was let in once: a stranger's visit says nothing of the configuration then.
    let_in: AtomicBool,
    line: Seldom,
}

impl TurnedAway {
    /// Somebody was turned away; `why` follows "a OneBot client came". `keep`: it is the reason why nothing is connected.
    pub fn note(&self, ctx: &ChannelContext, why: &str, keep: bool) {
        if keep {
            let at = time_of_day(ctx.clock.now_ms());
            let said = format!("a OneBot client came {why} at {at} and was turned away");
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
        }
        if let Some(left_out) = self.line.due(ctx.clock.monotonic()) {
            warn!(code = "onebot_turned_away", left_out, "a OneBot client came {why} and was turned away");
        }
    }

    /// Whether anybody was let in since the start.
    pub fn let_in(&self) -> bool {
        self.let_in.load(Ordering::Relaxed)
    }

    /// Somebody was let in: what was before is of no interest any more.
    pub fn forget(&self) {
        self.let_in.store(true, Ordering::Relaxed);
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Why there is no connection: `otherwise`, or that somebody was turned away.
    pub fn link(&self, otherwise: &str) -> Link {
        Link::Down(self.last().unwrap_or_else(|| otherwise.to_owned()))
    }

    /// The last one, if nobody was let in since.
    pub fn last(&self) -> Option<String> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The time of the day in UTC: `17:54:09 UTC`.
fn time_of_day(ms: i64) -> String {
    let seconds = ms.div_euclid(1_000).rem_euclid(24 * 60 * 60);
    format!("{:02}:{:02}:{:02} UTC", seconds / 3_600, seconds / 60 % 60, seconds % 60)
}

/// Whether a request bears the token. An empty one lets in programs of this machine only.
///
/// # Errors
/// [`Denied`].
pub fn by_token(token: &Secret, request: &HttpRequest) -> Result<(), Denied> {
    if token.is_empty() {
        return if request.local { Ok(()) } else { Err(Denied::NotHere) };
    }
    match borne(request) {
        None => Err(Denied::Missing),
        Some(borne) if bool::from(borne.as_bytes().ct_eq(token.expose().as_bytes())) => Ok(()),
        Some(_) => Err(Denied::Wrong),
    }
}

/// Whether a pushed event is signed with `key`, or bears the token.
///
/// # Errors
/// [`Denied`].
pub fn by_signature(key: &Secret, token: &Secret, request: &HttpRequest) -> Result<(), Denied> {
    if key.is_empty() {
        return by_token(token, request);
    }
    let Some(signature) = request.headers.get("x-signature") else {
        // The signature may be left out by those that send the token instead.
        return if token.is_empty() { Err(Denied::Missing) } else { by_token(token, request) };
    };
    let signature = signature.to_str().ok().and_then(|text| text.trim().strip_prefix("sha1=")).and_then(unhex);
    let key = hmac::Key::new(hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, key.expose().as_bytes());
    match signature {
        Some(signature) if hmac::verify(&key, &request.body, &signature).is_ok() => Ok(()),
        _ => Err(Denied::Wrong),
    }
}

/// The token of a request: `Bearer t`, `Token t`, or `?access_token=t`.
fn borne(request: &HttpRequest) -> Option<String> {
    let header = request.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let in_header = header.and_then(|value| {
        let (scheme, token) = value.trim().split_once(char::is_whitespace)?;
        let known = ["bearer", "token"].iter().any(|known| scheme.eq_ignore_ascii_case(known));
        Some(token.trim().to_owned()).filter(|token| known && !token.is_empty())
    });
    in_header.or_else(|| {
        let pairs = url::form_urlencoded::parse(request.query.as_bytes());
        pairs.into_iter().find(|(key, _)| key == "access_token").map(|(_, token)| token.into_owned())
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u32>> = text.chars().map(|c| c.to_digit(16)).collect();
    let digits = digits.filter(|digits| digits.len() == 40)?;
    Some(digits.chunks(2).map(|pair| (pair[0] << 4 | pair[1]) as u8).collect())
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderMap, Method};
    use serde_json::Value;

    use super::*;

    fn request(headers: &[(&'static str, &str)], query: &str, body: &str, local: bool) -> HttpRequest {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, value.parse().expect("a header"));
        }
        let (path, query, body) = (String::new(), query.to_owned(), Bytes::from(body.to_owned()));
        HttpRequest { method: Method::GET, path, query, headers: map, body, local }
    }

    #[test]
    fn rule_22_token_and_bearer_are_both_taken_in_header_and_query() {
        let token = Secret::from("hush");
        for (headers, query, expected) in [
            (&[("authorization", "Bearer hush")][..], "", Ok(())),
            (&[("authorization", "bearer   hush ")], "", Ok(())),
            (&[("authorization", "Token hush")], "", Ok(())),
            (&[("authorization", "TOKEN hush")], "", Ok(())),
            (&[], "access_token=hush", Ok(())),
            (&[], "x=1&access_token=hus%68", Ok(())),
            (&[("authorization", "Bearer ")], "access_token=hush", Ok(())),
            (&[], "", Err(Denied::Missing)),
            (&[("authorization", "Bearer ")], "", Err(Denied::Missing)),
            (&[("authorization", "hush")], "", Err(Denied::Missing)),
            (&[("authorization", "Basic hush")], "", Err(Denied::Missing)),
            (&[("authorization", "Bearer other")], "", Err(Denied::Wrong)),
            (&[("authorization", "Bearer hush2")], "access_token=hush", Err(Denied::Wrong)),
            (&[], "access_token=", Err(Denied::Wrong)),
        ] {
            assert_eq!(by_token(&token, &request(headers, query, "", true)), expected, "{headers:?} {query}");
        }
    }

    #[test]
    fn without_a_token_only_this_machine_is_let_in() {
        let none = Secret::default();
        // NapCat and LLOneBot send an empty one.
        assert_eq!(by_token(&none, &request(&[("authorization", "Bearer ")], "", "", true)), Ok(()));
        assert_eq!(by_token(&none, &request(&[], "", "", false)), Err(Denied::NotHere));
        assert_eq!(by_signature(&none, &none, &request(&[], "", "{}", false)), Err(Denied::NotHere));
    }

    #[test]
    fn row_09_the_signed_vectors_verify_and_tampered_ones_do_not() {
        let vectors: Value = serde_json::from_str(include_str!("vectors.json")).expect("JSON");
        let cases = vectors["signed"].as_array().expect("a list");
        assert_eq!(cases.len(), 2);
        for case in cases {
            let text = |key: &str| case[key].as_str().expect("a text");
            let (key, body, signature) = (Secret::from(text("secret")), text("body"), text("X-Signature"));
            let none = Secret::default();
            let pushed = |signature: &str, body: &str| request(&[("x-signature", signature)], "", body, true);
            assert_eq!(by_signature(&key, &none, &pushed(signature, body)), Ok(()));
            assert_eq!(
                by_signature(&key, &none, &pushed(&signature.to_uppercase().replace("SHA1", "sha1"), body)),
                Ok(())
            );
            let last = if signature.ends_with('0') { "1" } else { "0" };
            let tampered = format!("{}{last}", &signature[..signature.len() - 1]);
            for (signature, body) in [
                (signature, format!("{body} ").as_str()),
                (tampered.as_str(), body),
                (&signature[5..], body),
                ("sha1=", body),
                ("sha1=zz", body),
                ("sha256=00", body),
            ] {
                assert_eq!(by_signature(&key, &none, &pushed(signature, body)), Err(Denied::Wrong), "{signature}");
            }
            assert_eq!(by_signature(&Secret::from("other"), &none, &pushed(signature, body)), Err(Denied::Wrong));
            assert_eq!(by_signature(&key, &none, &request(&[], "", body, true)), Err(Denied::Missing));
            let bearing = request(&[("authorization", "Bearer t")], "", body, true);
            assert_eq!(by_signature(&key, &Secret::from("t"), &bearing), Ok(()), "the token will do");
        }
        let shown = format!("{:?}", Denied::Wrong.response());
        assert!(!shown.contains("sha1"), "{shown}");
    }
}
