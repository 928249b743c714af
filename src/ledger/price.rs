//! What a model costs: the section `[models.<name>.price]`, and the cost of one answer. Pure.

use serde::{Deserialize, Deserializer, de::Error as _};

use super::money::{Cost, Currency};
use crate::model::Usage;

/// The most that a million tokens may cost.
const MOST: f64 = 1e9;

/// `[models.<name>.price]`: per million tokens, as the provider's page says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Price {
    /// The currency, e.g. `CNY`.
    pub currency: Currency,
    /// Of what is asked.
    pub input: PerMillion,
    /// Of what is answered.
    pub output: PerMillion,
    /// Of what is asked and was in the provider's cache; default: as `input`.
    #[serde(default)]
    pub cached: Option<PerMillion>,
    /// Of what is asked and was written to the provider's cache; default: as `input`.
    #[serde(default)]
    pub cache_write: Option<PerMillion>,
}

/// A price of a million tokens, in millionths of the currency's unit: that is trillionths a token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerMillion(u64);

impl<'de> Deserialize<'de> for PerMillion {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The one floating-point number: as a person wrote it, read once, with six digits after the point.
        let price = f64::deserialize(deserializer)?;
        if !(0.0..=MOST).contains(&price) {
            return Err(D::Error::custom("a price is a number from 0, of a million tokens, like 2.0"));
        }
        Ok(Self((price * 1e6).round() as u64))
    }
}

impl Price {
    /// What an answer cost, rounded to the billionth.
    pub fn cost(&self, usage: &Usage) -> Cost {
        let (cached, written) = (usage.cached.min(usage.input), usage.cache_write);
        let written = written.min(usage.input - cached);
        let of = |tokens: u64, price: PerMillion| u128::from(tokens) * u128::from(price.0);
        let trillionths = of(usage.input - cached - written, self.input)
            + of(cached, self.cached.unwrap_or(self.input))
            + of(written, self.cache_write.unwrap_or(self.input))
            + of(usage.output, self.output);
        let nano = i64::try_from((trillionths + 500) / 1000).unwrap_or(i64::MAX);
        Cost { currency: self.currency, nano }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn price(text: &str) -> Price {
        toml::from_str(text).expect("a price")
    }

    #[test]
    fn a_million_tokens_cost_what_the_page_says_and_one_token_its_share() {
        let price = price("currency = \"cny\"\ninput = 2\noutput = 8.0\ncached = 0.2\ncache_write = 2.5");
        let cost = |input, output, cached, cache_write| {
            price.cost(&Usage { input, output, cached, cache_write, estimated: false }).amount()
        };
        assert_eq!(cost(1_000_000, 0, 0, 0), "2");
        assert_eq!(cost(1_000_000, 1_000_000, 1_000_000, 0), "8.2");
        assert_eq!(cost(1_000_000, 0, 400_000, 100_000), "1.33");
        assert_eq!(cost(1, 1, 0, 0), "0.00001");
        assert_eq!(cost(3, 0, 0, 0), "0.000006");
        // What a provider counts oddly never makes a cost below nothing.
        assert_eq!(cost(10, 0, 500, 500), "0.000002");
    }

    #[test]
    fn prices_are_refused_when_they_are_none() {
        for text in [
            "currency = \"yuan\"\ninput = 1\noutput = 1",
            "currency = \"CNY\"\ninput = -1\noutput = 1",
            "currency = \"CNY\"\ninput = nan\noutput = 1",
            "currency = \"CNY\"\ninput = 1",
            "currency = \"CNY\"\ninput = 1\noutput = 1\ncache = 1",
            "currency = \"CNY\"\ninput = 1e12\noutput = 1",
        ] {
            assert!(toml::from_str::<Price>(text).is_err(), "{text}");
        }
    }
}
