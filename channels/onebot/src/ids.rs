//! Ids as OneBot implementations write them: numbers, texts, now and then a float. Kept as text; never rounded. Pure.

use serde_json::Value;

/// The largest whole number that every JSON program reads exactly.
const EXACT: f64 = 9_007_199_254_740_991.0;
/// The longest id of a message, in bytes: guild messages have long ones.
const LONGEST: usize = 128;

/// The digits of a number's id, with a sign in front where it is negative. `None` for what is none, or is no longer
/// exact.
pub fn number(value: &Value) -> Option<String> {
    match value {
        Value::Number(number) => {
            if let Some(whole) = number.as_i64() {
                return Some(whole.to_string());
            }
            if let Some(whole) = number.as_u64() {
                return Some(whole.to_string());
            }
            let float = number.as_f64()?;
            (float.fract() == 0.0 && float.abs() <= EXACT).then(|| format!("{float:.0}"))
        }
        Value::String(text) => {
            let text = text.trim();
            let digits = text.strip_prefix('-').unwrap_or(text);
            let fits = !digits.is_empty() && digits.len() <= 20 && digits.bytes().all(|b| b.is_ascii_digit());
            fits.then(|| text.to_owned())
        }
        _ => None,
    }
}

/// The number at `key`, where it is one and not 0.
pub fn number_at(value: &Value, key: &str) -> Option<String> {
    number(value.get(key)?).filter(|id| id != "0")
}

/// A message's id: a number, or in guilds a text of letters, digits and a few signs.
pub fn message(value: &Value) -> Option<String> {
    number(value).or_else(|| {
        let text = value.as_str()?.trim();
        let fits = !text.is_empty()
            && text.len() <= LONGEST
            && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_=+/.".contains(&b));
        fits.then(|| text.to_owned())
    })
}

/// An id as a call's parameter: a number where every reader keeps it exact, else a text.
pub fn parameter(id: &str) -> Value {
    match id.parse::<i64>() {
        Ok(number) if number.unsigned_abs() <= EXACT as u64 && number.to_string() == id => Value::from(number),
        _ => Value::from(id),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn bad_input_34_ids_of_any_kind_are_kept_as_digits_or_dropped() {
        for (value, expected) in [
            (json!(10001), Some("10001")),
            (json!("10001"), Some("10001")),
            (json!(" 10001 "), Some("10001")),
            (json!(-2_147_483_648_i64), Some("-2147483648")),
            (json!("-2147483648"), Some("-2147483648")),
            (json!(1.0e9), Some("1000000000")),
            (json!(1_234_567_890_123_456_789_i64), Some("1234567890123456789")),
            (json!("1234567890123456789"), Some("1234567890123456789")),
            (json!(u64::MAX), Some("18446744073709551615")),
            (json!(1.5), None),
            (json!(1.0e19), None),
            (json!(9_007_199_254_740_993.0_f64 * 2.0), None),
            (json!(""), None),
            (json!("-"), None),
            (json!("12a"), None),
            (json!("１２"), None),
            (json!(null), None),
            (json!(true), None),
            (json!([1]), None),
            (json!({"id": 1}), None),
            (json!("123456789012345678901"), None),
        ] {
            assert_eq!(number(&value).as_deref(), expected, "{value}");
        }
        assert_eq!(message(&json!("BAC3HLRYvXdj+A==")).as_deref(), Some("BAC3HLRYvXdj+A=="));
        assert_eq!(message(&json!("a b")), None);
        assert_eq!(number_at(&json!({"user_id": 0}), "user_id"), None);
    }

    #[test]
    fn rule_24_a_parameter_is_a_number_only_where_it_stays_exact() {
        assert_eq!(parameter("10001"), json!(10001));
        assert_eq!(parameter("-12"), json!(-12));
        assert_eq!(parameter("9007199254740993"), json!("9007199254740993"));
        assert_eq!(parameter("1234567890123456789"), json!("1234567890123456789"));
        assert_eq!(parameter("007"), json!("007"));
        assert_eq!(parameter("BAC=="), json!("BAC=="));
    }
}
