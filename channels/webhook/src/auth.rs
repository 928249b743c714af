//! Who may post: Standard Webhooks signatures, `X-Hub-Signature-256`, bearer tokens. Works on the raw body, before
//! anything is parsed; every comparison takes the same time; one refusal for every reason.

use base64::{Engine, engine::general_purpose::STANDARD};
use hmac::{Hmac, KeyInit, Mac};
use http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::config::Keys;

/// How far a signature's time may be from ours, in seconds.
const TOLERANCE_S: u64 = 300;

/// The most signatures one header may hold: as many as a rotation could need, not as many as fit.
const SIGNATURES: usize = 16;

/// The request is not from the bridge. Says nothing more, so that nobody learns which check failed.
#[derive(Debug, PartialEq, Eq)]
pub struct Unauthorized;

/// Checks a request against the keys. `now_ms` is wall time.
///
/// # Errors
/// [`Unauthorized`] when nothing proves the sender, a header that should occur once occurs twice, or the signed time is
/// more than 300 s away.
pub fn authenticate(keys: &Keys, headers: &HeaderMap, body: &[u8], now_ms: i64) -> Result<(), Unauthorized> {
    let authorization = once(headers, header::AUTHORIZATION.as_str())?;
    let id = once(headers, "webhook-id")?;
    let timestamp = once(headers, "webhook-timestamp")?;
    let signature = once(headers, "webhook-signature")?;
    let hub = once(headers, "x-hub-signature-256")?;
    if let Some(token) = &keys.token {
        return bearer(authorization.ok_or(Unauthorized)?, token);
    }
    match (signature, hub) {
        (Some(signature), _) => {
            let (id, timestamp) = (id.ok_or(Unauthorized)?, timestamp.ok_or(Unauthorized)?);
            fresh(timestamp, now_ms)?;
            any_matches(&keys.signing, &[id, b".", timestamp, b".", body], &v1_signatures(signature)?)
        }
        (None, Some(hub)) if !keys.hub.is_empty() => {
            any_matches(&keys.hub, &[body], &[hex(hub.strip_prefix(b"sha256=").ok_or(Unauthorized)?)?])
        }
        _ => Err(Unauthorized),
    }
}

/// The value of `webhook-signature` for a body of ours: one signature for each key, newest first.
pub fn sign(keys: &[Vec<u8>], id: &str, timestamp_s: i64, body: &[u8]) -> String {
    let timestamp = timestamp_s.to_string();
    let pieces: [&[u8]; 5] = [id.as_bytes(), b".", timestamp.as_bytes(), b".", body];
    let signatures: Vec<String> =
        keys.iter().map(|key| format!("v1,{}", STANDARD.encode(mac(key, &pieces).as_slice()))).collect();
    signatures.join(" ")
}

/// The header's value; an error if there are several, which is how one verifier is shown what another does not see.
fn once<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a [u8]>, Unauthorized> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    if values.next().is_some() { Err(Unauthorized) } else { Ok(first.map(|value| value.as_bytes())) }
}

fn bearer(authorization: &[u8], token: &[u8]) -> Result<(), Unauthorized> {
    let (scheme, given) = authorization.split_at_checked(7).ok_or(Unauthorized)?;
    let matches = Sha256::digest(given.trim_ascii()).ct_eq(&Sha256::digest(token));
    if scheme.eq_ignore_ascii_case(b"bearer ") && bool::from(matches) { Ok(()) } else { Err(Unauthorized) }
}

fn fresh(timestamp: &[u8], now_ms: i64) -> Result<(), Unauthorized> {
    let digits = !timestamp.is_empty() && timestamp.len() <= 15 && timestamp.iter().all(u8::is_ascii_digit);
    let text = std::str::from_utf8(timestamp).ok().filter(|_| digits).ok_or(Unauthorized)?;
    let then: i64 = text.parse().map_err(|_| Unauthorized)?;
    if now_ms.div_euclid(1_000).abs_diff(then) <= TOLERANCE_S { Ok(()) } else { Err(Unauthorized) }
}

/// The `v1` signatures of a header; other schemes are not ours to believe.
fn v1_signatures(header: &[u8]) -> Result<Vec<Vec<u8>>, Unauthorized> {
    let header = std::str::from_utf8(header).map_err(|_| Unauthorized)?;
    let pieces: Vec<&str> = header.split_ascii_whitespace().take(SIGNATURES + 1).collect();
    if pieces.len() > SIGNATURES {
        return Err(Unauthorized);
    }
    Ok(pieces.iter().filter_map(|piece| STANDARD.decode(piece.strip_prefix("v1,")?).ok()).collect())
}

/// Every pair is compared, whatever came before it.
fn any_matches(keys: &[Vec<u8>], signed: &[&[u8]], given: &[Vec<u8>]) -> Result<(), Unauthorized> {
    let mut found = subtle::Choice::from(0);
    for key in keys {
        let expected = mac(key, signed);
        for given in given {
            found |= expected.as_slice().ct_eq(given);
        }
    }
    if bool::from(found) { Ok(()) } else { Err(Unauthorized) }
}

fn mac(key: &[u8], pieces: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for piece in pieces {
        mac.update(piece);
    }
    mac.finalize().into_bytes().into()
}

fn hex(text: &[u8]) -> Result<Vec<u8>, Unauthorized> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|d| u8::try_from(d).ok()).ok_or(Unauthorized);
    if text.len() != 64 {
        return Err(Unauthorized);
    }
    text.chunks_exact(2).map(|pair| Ok(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

/// SHA-256 in lower-case hex.
pub fn sha256_hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;
    use serde_json::Value;

    use super::*;
    use channel_api::Secret;

    use crate::config::{Config, Secrets};

    const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const NOW_MS: i64 = 1_614_265_330_000;

    fn vectors(name: &str) -> Value {
        let text = match name {
            "standard" => include_str!("vectors/standard_webhooks.json"),
            _ => include_str!("vectors/other_webhooks.json"),
        };
        serde_json::from_str(text).expect("the vectors are JSON")
    }

    fn signed_with(secrets: &[&str]) -> Keys {
        let secrets = secrets.iter().map(|secret| Secret::from(*secret)).collect();
        Config { secret: Some(Secrets::Several(secrets)), ..Config::default() }.keys().expect("good secrets")
    }

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_str(value).expect("a header's value"));
        }
        headers
    }

    #[test]
    fn the_official_vectors_verify_and_are_what_we_sign() {
        let keys = signed_with(&[SECRET]);
        let vectors = vectors("standard");
        let cases = vectors["cases"].as_array().expect("a list");
        assert!(!cases.is_empty());
        for case in cases {
            let text = |key: &str| case[key].as_str().expect("a text").to_owned();
            let (id, time, signature, body) =
                (text("webhook-id"), text("webhook-timestamp"), text("webhook-signature"), text("body"));
            let headers = headers(&[
                ("webhook-id", &id),
                ("webhook-timestamp", &time),
                ("webhook-signature", &format!("v1,AAAA v1a,zzzz {signature}")),
            ]);
            assert_eq!(authenticate(&keys, &headers, body.as_bytes(), NOW_MS), Ok(()));
            assert_eq!(authenticate(&keys, &headers, format!("{body} ").as_bytes(), NOW_MS), Err(Unauthorized));
            assert_eq!(sign(&keys.outgoing, &id, time.parse().expect("a number"), body.as_bytes()), signature);
        }
    }

    #[test]
    fn githubs_vector_verifies_only_where_the_config_allows_it() {
        let vectors = vectors("other");
        let case = &vectors["github"];
        let text = |key: &str| case[key].as_str().expect("a text");
        let headers = headers(&[("x-hub-signature-256", text("X-Hub-Signature-256"))]);
        let mut config = Config {
            secret: Some(Secrets::One(Secret::from(text("secret")))),
            hub_signature: true,
            ..Config::default()
        };
        let keys = config.keys().expect("any text is a secret here");
        assert_eq!(authenticate(&keys, &headers, text("body").as_bytes(), NOW_MS), Ok(()));
        assert_eq!(authenticate(&keys, &headers, b"Hello, World?", NOW_MS), Err(Unauthorized));
        config.secret = Some(Secrets::One(Secret::from(SECRET)));
        config.hub_signature = false;
        let keys = config.keys().expect("a good secret");
        assert_eq!(authenticate(&keys, &headers, text("body").as_bytes(), NOW_MS), Err(Unauthorized));
    }

    #[test]
    fn the_mac_agrees_with_another_implementations_vectors() {
        for case in vectors("other")["langbot_http_bot"].as_array().expect("a list") {
            let text = |key: &str| case[key].as_str().expect("a text");
            let made = mac(text("secret").as_bytes(), &[text("timestamp").as_bytes(), b".", text("body").as_bytes()]);
            let given = text("X-LB-Signature").strip_prefix("sha256=").expect("its prefix");
            assert_eq!(hex(given.as_bytes()), Ok(made.to_vec()));
        }
    }

    #[test]
    fn row_08_three_hundred_seconds_pass_and_one_more_does_not() {
        let keys = signed_with(&[SECRET]);
        for (offset, good) in [(-301, false), (-300, true), (0, true), (300, true), (301, false)] {
            let time = NOW_MS / 1_000 + offset;
            let headers = headers(&[
                ("webhook-id", "m"),
                ("webhook-timestamp", &time.to_string()),
                ("webhook-signature", &sign(&keys.outgoing, "m", time, b"{}")),
            ]);
            assert_eq!(authenticate(&keys, &headers, b"{}", NOW_MS).is_ok(), good, "{offset} s");
        }
    }

    #[test]
    fn each_of_two_keys_verifies_during_a_rotation_and_both_sign() {
        let (old, new) = (SECRET, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA");
        let both = signed_with(&[new, old]);
        for secret in [old, new] {
            let one = signed_with(&[secret]);
            let headers = headers(&[
                ("webhook-id", "m"),
                ("webhook-timestamp", "1614265330"),
                ("webhook-signature", &sign(&one.outgoing, "m", 1_614_265_330, b"{}")),
            ]);
            assert_eq!(authenticate(&both, &headers, b"{}", NOW_MS), Ok(()));
        }
        assert_eq!(sign(&both.outgoing, "m", 1, b"").split(' ').count(), 2);
    }

    #[test]
    fn row_09_confusing_headers_prove_nothing() {
        let keys = signed_with(&[SECRET]);
        let good = sign(&keys.outgoing, "m", 1_614_265_330, b"{}");
        let encoded = good.strip_prefix("v1,").expect("its prefix").to_owned();
        let triple = |signature: &str| {
            headers(&[("webhook-id", "m"), ("webhook-timestamp", "1614265330"), ("webhook-signature", signature)])
        };
        assert_eq!(authenticate(&keys, &triple(&good), b"{}", NOW_MS), Ok(()));
        for signature in [
            "",
            " ",
            "v1,",
            "none",
            "alg=none",
            &encoded,
            &format!("v1a,{encoded}"),
            &format!("v2,{encoded}"),
            &vec![good.as_str(); 17].join(" "),
        ] {
            assert_eq!(authenticate(&keys, &triple(signature), b"{}", NOW_MS), Err(Unauthorized), "{signature}");
        }
        for twice in ["webhook-id", "webhook-timestamp", "webhook-signature", "authorization", "x-hub-signature-256"] {
            let mut headers = triple(&good);
            headers.append(twice, HeaderValue::from_static("x"));
            headers.append(twice, HeaderValue::from_static("x"));
            assert_eq!(authenticate(&keys, &headers, b"{}", NOW_MS), Err(Unauthorized), "{twice}");
        }
        for missing in ["webhook-id", "webhook-timestamp", "webhook-signature"] {
            let mut headers = triple(&good);
            headers.remove(missing);
            assert_eq!(authenticate(&keys, &headers, b"{}", NOW_MS), Err(Unauthorized), "{missing}");
        }
        for time in ["", "-1", "+1614265330", " 1614265330", "1614265330.0", "1e9", "99999999999999999999"] {
            let headers = headers(&[("webhook-id", "m"), ("webhook-timestamp", time), ("webhook-signature", &good)]);
            assert_eq!(authenticate(&keys, &headers, b"{}", NOW_MS), Err(Unauthorized), "{time}");
        }
    }

    #[test]
    fn a_token_is_enough_only_where_no_secret_is() {
        let config = Config { token: Some(Secret::from("a-long-enough-token")), ..Config::default() };
        let keys = config.keys().expect("a good token");
        for (value, good) in [
            ("Bearer a-long-enough-token", true),
            ("bearer a-long-enough-token", true),
            ("Bearer a-long-enough-toke", false),
            ("Bearer ", false),
            ("Basic a-long-enough-token", false),
            ("a-long-enough-token", false),
            ("", false),
        ] {
            let headers = headers(&[("authorization", value)]);
            assert_eq!(authenticate(&keys, &headers, b"", NOW_MS).is_ok(), good, "{value}");
        }
        let keys = signed_with(&[SECRET]);
        let headers = headers(&[("authorization", "Bearer a-long-enough-token")]);
        assert_eq!(authenticate(&keys, &headers, b"", NOW_MS), Err(Unauthorized));
    }
}
