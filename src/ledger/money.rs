//! Money, exactly: a currency, and whole billionths of its unit. Nothing is ever summed in floating point. Pure.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _, ser::SerializeMap as _};

/// Billionths in one unit of a currency.
const UNIT: i64 = 1_000_000_000;

/// A currency by its code of three letters (ISO 4217), e.g. `CNY`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

impl Currency {
    /// The currency of this code, in any case.
    pub fn parse(code: &str) -> Option<Self> {
        let code: [u8; 3] = code.trim().as_bytes().try_into().ok()?;
        code.iter().all(u8::is_ascii_alphabetic).then(|| Self(code.map(|c| c.to_ascii_uppercase())))
    }

    /// Its code.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XXX")
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Currency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Currency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = String::deserialize(deserializer)?;
        Self::parse(&code).ok_or_else(|| {
            D::Error::custom(format!(
                "`{code}` is no currency: write its code of three letters, like \"CNY\" or \"USD\""
            ))
        })
    }
}

/// An amount of one currency. Written `5.5 CNY` in the configuration and in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cost {
    /// The currency.
    pub currency: Currency,
    /// Billionths of its unit.
    pub nano: i64,
}

impl Cost {
    /// Reads `5 CNY`, `CNY 5` and `0.25 usd`: at most nine digits after the point, no sign.
    pub fn parse(text: &str) -> Option<Self> {
        let (a, b) = text.trim().split_once(char::is_whitespace)?;
        let (amount, code) = if a.starts_with(|c: char| c.is_ascii_digit()) { (a, b) } else { (b, a) };
        Some(Self { currency: Currency::parse(code)?, nano: nano(amount.trim())? })
    }

    /// The amount alone, exactly: `0.0123`, no zeros at its end.
    pub fn amount(&self) -> String {
        let sign = if self.nano < 0 { "-" } else { "" };
        let (whole, rest) = (self.nano.unsigned_abs() / UNIT as u64, self.nano.unsigned_abs() % UNIT as u64);
        let rest = format!("{rest:09}");
        match rest.trim_end_matches('0') {
            "" => format!("{sign}{whole}"),
            rest => format!("{sign}{whole}.{rest}"),
        }
    }
}

/// Digits with at most one point, as billionths.
fn nano(text: &str) -> Option<i64> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, ""));
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(rest) || rest.len() > 9 {
        return None;
    }
    let rest: i64 = format!("{rest:0<9}").parse().ok()?;
    whole.parse::<i64>().ok()?.checked_mul(UNIT)?.checked_add(rest)
}

/// For people: two to four digits after the point.
impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: i64 = UNIT / 10_000;
        if self.nano > 0 && self.nano < SHOWN / 2 {
            return write!(f, "<0.0001 {}", self.currency);
        }
        let shown = Self { nano: (self.nano.saturating_add(SHOWN / 2) / SHOWN).saturating_mul(SHOWN), ..*self };
        let amount = shown.amount();
        let digits = amount.split_once('.').map_or(0, |(_, rest)| rest.len());
        let point = if digits == 0 { "." } else { "" };
        write!(f, "{amount}{point}{} {}", "0".repeat(2_usize.saturating_sub(digits)), self.currency)
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{} {}", self.amount(), self.currency))
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| {
            D::Error::custom(format!(
                "`{text}` is no amount of money: write the amount and its currency, like \"5 CNY\""
            ))
        })
    }
}

/// Amounts of several currencies, each summed by itself. In JSON `{"CNY": "0.0123"}`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Costs(Vec<Cost>);

impl Costs {
    /// Adds an amount.
    pub fn add(&mut self, cost: Cost) {
        match self.0.binary_search_by_key(&cost.currency, |known| known.currency) {
            Ok(at) => self.0[at].nano = self.0[at].nano.saturating_add(cost.nano),
            Err(at) => self.0.insert(at, cost),
        }
    }

    /// Adds each of them.
    pub fn add_all(&mut self, costs: &Self) {
        costs.0.iter().for_each(|cost| self.add(*cost));
    }

    /// Billionths in this currency.
    pub fn nano(&self, currency: Currency) -> i64 {
        self.0.iter().find(|cost| cost.currency == currency).map_or(0, |cost| cost.nano)
    }

    /// Nothing at all.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Each currency's amount, ordered by its code.
    pub fn iter(&self) -> impl Iterator<Item = &Cost> {
        self.0.iter()
    }
}

/// For people: `0.12 CNY + 0.01 USD`.
impl fmt::Display for Costs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, cost) in self.0.iter().enumerate() {
            write!(f, "{}{cost}", if i > 0 { " + " } else { "" })?;
        }
        Ok(())
    }
}

impl Serialize for Costs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(self.0.len()))?;
        for cost in &self.0 {
            map.serialize_entry(cost.currency.as_str(), &cost.amount())?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Costs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut costs = Self::default();
        for (code, amount) in std::collections::BTreeMap::<String, String>::deserialize(deserializer)? {
            let cost = Cost::parse(&format!("{amount} {code}"));
            costs.add(cost.ok_or_else(|| D::Error::custom(format!("`{amount} {code}` is no amount of money")))?);
        }
        Ok(costs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cny(nano: i64) -> Cost {
        Cost { currency: Currency(*b"CNY"), nano }
    }

    #[test]
    fn amounts_are_read_as_people_write_them_and_nothing_else_is() {
        for (text, nano) in [
            ("5 CNY", 5 * UNIT),
            ("cny 5", 5 * UNIT),
            (" 0.25  CNY ", UNIT / 4),
            ("0.000000001 CNY", 1),
            ("9000000000 CNY", 9_000_000_000 * UNIT),
        ] {
            assert_eq!(Cost::parse(text), Some(cny(nano)), "{text}");
        }
        for text in [
            "5",
            "CNY",
            "5CNY",
            "-5 CNY",
            "5 YUAN",
            "1e3 CNY",
            "0.0000000001 CNY",
            "99999999999 CNY",
            "5,5 CNY",
            ". CNY",
        ] {
            assert_eq!(Cost::parse(text), None, "{text}");
        }
    }

    #[test]
    fn amounts_are_exact_for_programs_and_short_for_people() {
        for (nano, exact, short) in [
            (0, "0", "0.00 CNY"),
            (1, "0.000000001", "<0.0001 CNY"),
            (12_345_678, "0.012345678", "0.0123 CNY"),
            (UNIT / 2, "0.5", "0.50 CNY"),
            (12 * UNIT, "12", "12.00 CNY"),
            (1_999_960_000, "1.99996", "2.00 CNY"),
            (99_990, "0.00009999", "0.0001 CNY"),
        ] {
            assert_eq!((cny(nano).amount().as_str(), cny(nano).to_string().as_str()), (exact, short));
            assert_eq!(Cost::parse(&format!("{exact} CNY")), Some(cny(nano)));
        }
    }

    #[test]
    fn currencies_are_summed_apart() {
        let mut costs = Costs::default();
        for text in ["0.1 USD", "0.2 CNY", "0.2 USD"] {
            costs.add(Cost::parse(text).expect("money"));
        }
        assert_eq!(costs.to_string(), "0.20 CNY + 0.30 USD");
        let json = serde_json::to_string(&costs).expect("JSON");
        assert_eq!(json, r#"{"CNY":"0.2","USD":"0.3"}"#);
        assert_eq!(serde_json::from_str::<Costs>(&json).expect("the same"), costs);
        assert_eq!(costs.nano(Currency(*b"EUR")), 0);
    }
}
