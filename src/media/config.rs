//! `[media]`: how much is kept of the files that people send and are sent, and for how long.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};

use crate::egress::{self, EgressConfig};

/// The most that one file may be allowed to have: it is read whole when it is sent.
pub const LARGEST: u64 = 100 << 20;
const FEWEST_DAYS: u32 = 1;
const MOST_DAYS: u32 = 3_650;

/// `[media]`.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct MediaConfig {
    /// The most bytes of one file.
    #[serde(deserialize_with = "largest")]
    pub largest: ByteSize,
    /// The most bytes of all of them together.
    #[serde(deserialize_with = "quota")]
    pub quota: ByteSize,
    /// Days after which a file goes.
    #[serde(deserialize_with = "days")]
    pub keep_days: u32,
    /// `host:port` of services whose files are fetched although they are not public. Exact, never a pattern.
    #[serde(deserialize_with = "egress::config::hosts")]
    pub allow_hosts: Vec<String>,
}

impl Default for MediaConfig {
    fn default() -> Self {
        // security.md row 37.
        Self { largest: ByteSize(20 << 20), quota: ByteSize(2 << 30), keep_days: 14, allow_hosts: Vec::new() }
    }
}

impl MediaConfig {
    /// The rules under which links are fetched: the way out is that of `[tools.web_fetch]`, whether or not the model has
    /// that tool; the private hosts are these alone.
    pub fn egress(&self, web: &EgressConfig) -> EgressConfig {
        EgressConfig { enabled: true, allow_hosts: self.allow_hosts.clone(), ..web.clone() }
    }
}

fn largest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    let size = ByteSize::deserialize(deserializer)?;
    match size.0 {
        1_024..=LARGEST => Ok(size),
        _ => Err(D::Error::custom(format!("`{size}` is not between 1 KiB and {}", ByteSize(LARGEST)))),
    }
}

fn quota<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ByteSize, D::Error> {
    let size = ByteSize::deserialize(deserializer)?;
    match size.0 {
        0..1_024 => Err(D::Error::custom(format!("`{size}` is less than 1 KiB"))),
        _ => Ok(size),
    }
}

fn days<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let days = u32::deserialize(deserializer)?;
    match days {
        FEWEST_DAYS..=MOST_DAYS => Ok(days),
        _ => Err(D::Error::custom(format!("{days} is not between {FEWEST_DAYS} and {MOST_DAYS}"))),
    }
}

/// A number of bytes, written like `20 MiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ByteSize(pub u64);

const UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("kB", 1_000),
    ("B", 1),
];

impl ByteSize {
    /// `20 MiB`, `500KB`, `4096`; `None` for anything else.
    pub fn parse(written: &str) -> Option<Self> {
        let written = written.trim();
        let (number, unit) =
            UNITS.iter().find_map(|(name, bytes)| Some((written.strip_suffix(name)?, *bytes))).unwrap_or((written, 1));
        let number = number.trim_end();
        let digits = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        number.parse::<u64>().ok().filter(|_| digits)?.checked_mul(unit).map(Self)
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = UNITS.iter().find(|(_, bytes)| self.0 >= *bytes && self.0.is_multiple_of(*bytes));
        let (name, bytes) = unit.unwrap_or(&("B", 1));
        write!(f, "{} {name}", self.0 / bytes)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let written = String::deserialize(deserializer)?;
        Self::parse(&written).ok_or_else(|| D::Error::custom(format!("`{written}` is no size like `20 MiB`")))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them_and_shown_the_same() {
        for (written, bytes, shown) in [
            ("20 MiB", 20 << 20, "20 MiB"),
            ("20MiB", 20 << 20, "20 MiB"),
            ("2 GiB", 2 << 30, "2 GiB"),
            (" 1536 KiB ", 1536 << 10, "1536 KiB"),
            ("5 MB", 5_000_000, "5 MB"),
            ("4097", 4_097, "4097 B"),
            ("0 B", 0, "0 B"),
        ] {
            assert_eq!(ByteSize::parse(written), Some(ByteSize(bytes)), "{written}");
            assert_eq!(ByteSize(bytes).to_string(), shown);
        }
        for wrong in ["", "MiB", "-1 MiB", "+1 MiB", "1.5 MiB", "20 mib", "20 MiB MiB", "99999999999 GiB", "twenty"] {
            assert_eq!(ByteSize::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_section_says_what_is_wrong() {
        let section = |text: &str| toml::from_str::<MediaConfig>(text).map_err(|error| error.message().to_owned());
        assert_eq!(section(""), Ok(MediaConfig::default()));
        let whole = toml::to_string(&MediaConfig::default()).expect("TOML");
        assert_eq!(section(&whole), Ok(MediaConfig::default()), "{whole}");
        for (wrong, told) in [
            ("largest = '1 GiB'", "`1 GiB` is not between 1 KiB and 100 MiB"),
            ("largest = 'big'", "`big` is no size like `20 MiB`"),
            ("quota = '10 B'", "`10 B` is less than 1 KiB"),
            ("keep_days = 0", "0 is not between 1 and 3650"),
            ("allow_hosts = ['*']", "`*` is not the `host:port` of one service"),
        ] {
            let error = section(wrong).expect_err(wrong);
            assert!(error.starts_with(told), "{wrong}: {error}");
        }
    }
}
