//! What makes a posted event Feishu's own: its encryption, its signature over the raw bytes, its token. protocols.md §2.1.

use aes::cipher::{BlockModeDecrypt, KeyIvInit, block_padding::Pkcs7};
use base64::Engine as _;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

type Decryptor = cbc::Decryptor<aes::Aes256>;

/// The length of a block, and of the initial vector in front of the text.
const BLOCK: usize = 16;

/// The plain text of an `encrypt` field; `None` when it was not made with this key.
pub fn open(encrypt_key: &str, sealed: &str) -> Option<Vec<u8>> {
    let mut data = base64::engine::general_purpose::STANDARD.decode(sealed.trim()).ok()?;
    if data.len() < 2 * BLOCK || data.len() % BLOCK != 0 {
        return None;
    }
    let key: [u8; 32] = Sha256::digest(encrypt_key.as_bytes()).into();
    let (iv, text) = data.split_at_mut(BLOCK);
    let iv: [u8; BLOCK] = (&*iv).try_into().ok()?;
    let plain = Decryptor::new(&key.into(), &iv.into()).decrypt_padded::<Pkcs7>(text).ok()?;
    Some(plain.to_vec())
}

/// Whether the signature of a request is `hex(SHA-256(timestamp + nonce + key + body))`, over the bytes as they came.
pub fn is_signed(encrypt_key: &str, timestamp: &str, nonce: &str, body: &[u8], signature: &str) -> bool {
    let mut digest = Sha256::new();
    for piece in [timestamp.as_bytes(), nonce.as_bytes(), encrypt_key.as_bytes(), body] {
        digest.update(piece);
    }
    let expected: String = digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    is_same(&expected, &signature.to_ascii_lowercase())
}

/// Whether two secrets are equal, in a time that does not tell where they differ.
pub fn is_same(expected: &str, given: &str) -> bool {
    expected.as_bytes().ct_eq(given.as_bytes()).into()
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[test]
    fn the_official_ciphertexts_open_and_broken_ones_do_not() {
        let all: Value = serde_json::from_str(include_str!("fixtures/feishu_aes.json")).expect("vectors");
        let good = all["ok"].as_array().expect("ok");
        assert!(good.len() >= 7);
        for case in good {
            let (key, sealed) = (case["key"].as_str().expect("key"), case["encrypt"].as_str().expect("encrypt"));
            let plain = case["plaintext"].as_str().expect("plaintext");
            assert_eq!(open(key, sealed).as_deref(), Some(plain.as_bytes()), "{}", case["name"]);
            assert_ne!(open(&format!("{key}x"), sealed).as_deref(), Some(plain.as_bytes()));
        }
        for case in all["reject"].as_array().expect("reject") {
            let (key, sealed) =
                (case["key"].as_str().unwrap_or("test key"), case["encrypt"].as_str().expect("encrypt"));
            assert_eq!(open(key, sealed), None, "{}", case["why"]);
        }
        for rubbish in ["", "=", "not base64!", "AAAA", &"A".repeat(1000)] {
            assert_eq!(open("test key", rubbish), None, "{rubbish}");
        }
    }

    #[test]
    fn a_signature_covers_every_byte() {
        let all: Value = serde_json::from_str(include_str!("fixtures/feishu_webhook.json")).expect("vectors");
        let mut seen = 0;
        for case in all["cases"].as_array().expect("cases") {
            let header = |name: &str| case["headers"][name].as_str().map(str::to_owned);
            let Some(signature) = header("X-Lark-Signature") else { continue };
            let (timestamp, nonce) = (header("X-Lark-Request-Timestamp"), header("X-Lark-Request-Nonce"));
            let (timestamp, nonce) = (timestamp.expect("a time"), nonce.expect("a nonce"));
            let (key, body) = (case["encrypt_key"].as_str().expect("key"), case["body"].as_str().expect("body"));
            let signed = is_signed(key, &timestamp, &nonce, body.as_bytes(), &signature);
            assert_eq!(signed, case["sdk_status"] == 200, "{}", case["name"]);
            if signed {
                seen += 1;
                for (t, n, b) in [
                    (format!("{timestamp}0"), nonce.clone(), body.to_owned()),
                    (timestamp.clone(), format!("{nonce}0"), body.to_owned()),
                    (timestamp.clone(), nonce.clone(), format!("{body} ")),
                ] {
                    assert!(!is_signed(key, &t, &n, b.as_bytes(), &signature));
                }
                assert!(!is_signed("other", &timestamp, &nonce, body.as_bytes(), &signature));
            }
        }
        assert!(seen >= 2);
    }
}
