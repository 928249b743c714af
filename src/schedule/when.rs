//! When something is due: reading times as people and models write them, and the next slot of a schedule. Pure.
//!
//! Civil times belong to a time zone. A time that its clock leaps over (summer time begins) runs at the next instant
//! that exists; a time that comes twice (summer time ends) runs once, at its first. An expression with `*` or a step in
//! the minutes or hours is a beat, not a time: it goes on with the clock in both hours and has nothing to catch up.

use std::{cmp::Ordering, fmt, time::Duration};

use croner::{
    Cron,
    errors::CronError,
    parser::{CronParser, Seconds, Year},
    time::{CivilDateTime, CronDateTime, Resolution, Weekday},
};
use jiff::{
    SignedDuration, Timestamp, ZonedDateTime,
    civil::{Date, DateTime, Time},
    tz::{AmbiguousOffset, TimeZone},
};
use serde::{Deserialize, Serialize};

/// The longest expression, zone or time that is read, in bytes.
const MAX_TEXT: usize = 200;
/// The furthest a time may lie ahead: ten years.
const FURTHEST_MS: i64 = 10 * 366 * 24 * 60 * 60 * 1000;
/// How many coming slots are looked at to tell how often a cron expression comes.
const LOOKED_AT: usize = 12;

/// When something is due.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum When {
    /// Once.
    At {
        /// Epoch milliseconds.
        at: i64,
    },
    /// Again and again, this far apart.
    Every {
        /// Milliseconds.
        every_ms: i64,
        /// The slot that the others are counted from, in epoch milliseconds.
        anchor: i64,
    },
    /// At the times of a cron expression.
    Cron {
        /// Five fields, or six with seconds first.
        expr: String,
        /// The IANA time zone it is read in.
        tz: String,
    },
}

/// Why a time cannot be used: a sentence for whoever wrote it, with what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhenError {
    /// It is not understood.
    #[error("`{0}` is not a time: write 2026-12-01T08:00, 08:00 or `in 20m`")]
    NotATime(String),
    /// It lies behind us.
    #[error("{0} is in the past; it is {1} now")]
    Past(String, String),
    /// It lies too far ahead.
    #[error("`{0}` is more than ten years ahead")]
    TooFar(String),
    /// It is no span of time.
    #[error("`{0}` is not a span of time: write 30m, 2h, 1d or 1h30m")]
    NotASpan(String),
    /// There is no such zone.
    #[error("there is no time zone `{0}`: write an IANA name such as Asia/Shanghai")]
    NoSuchZone(String),
    /// The expression cannot be read.
    #[error("the cron expression `{0}` cannot be read ({1}): write five fields, minute hour day month weekday")]
    NotCron(String, String),
    /// It never comes.
    #[error("`{0}` never comes")]
    Never(String),
    /// It comes too often.
    #[error("it comes every {0}; the least is {1} (`[schedule] min_interval`)")]
    TooOften(Span, Span),
    /// A run that nobody wrote asks for the next one too soon.
    #[error(
        "what a scheduled or other unattended run sets comes after {0} at the earliest (`[schedule] min_interval`)"
    )]
    TooSoon(Span),
}

/// A length of time as people write it: `30m`, `1h30m`, `45s`, `2d`; `0` is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span(pub Duration);

impl Span {
    /// So many minutes.
    pub const fn minutes(n: u64) -> Self {
        Self(Duration::from_secs(n * 60))
    }

    /// In milliseconds.
    pub fn ms(self) -> i64 {
        i64::try_from(self.0.as_millis()).unwrap_or(i64::MAX)
    }

    /// Reads one.
    ///
    /// # Errors
    /// [`WhenError::NotASpan`].
    pub fn parse(text: &str) -> Result<Self, WhenError> {
        let refused = || WhenError::NotASpan(short(text));
        let mut rest = text.trim();
        if rest.is_empty() || rest.len() > MAX_TEXT {
            return Err(refused());
        }
        if rest == "0" {
            return Ok(Self::default());
        }
        let mut seconds: u64 = 0;
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let (number, after) = rest.split_at(digits);
            let number: u64 = number.parse().map_err(|_| refused())?;
            let after = after.trim_start();
            let letters: usize = after.chars().take_while(|c| c.is_alphabetic()).map(char::len_utf8).sum();
            let (unit, after) = after.split_at(letters);
            let unit: u64 = match unit {
                "s" | "sec" | "second" | "seconds" | "秒" => 1,
                "m" | "min" | "minute" | "minutes" | "分" | "分钟" => 60,
                "h" | "hour" | "hours" | "时" | "小时" => 60 * 60,
                "d" | "day" | "days" | "天" => 24 * 60 * 60,
                "w" | "week" | "weeks" | "周" => 7 * 24 * 60 * 60,
                _ => return Err(refused()),
            };
            seconds = number.checked_mul(unit).and_then(|more| seconds.checked_add(more)).ok_or_else(refused)?;
            rest = after.trim_start();
        }
        let span = Self(Duration::from_secs(seconds));
        if span.ms() > FURTHEST_MS { Err(refused()) } else { Ok(span) }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut left = self.0.as_secs();
        if left == 0 {
            return f.write_str("0m");
        }
        for (unit, seconds) in [("d", 24 * 60 * 60), ("h", 60 * 60), ("m", 60), ("s", 1)] {
            if left >= seconds {
                write!(f, "{}{unit}", left / seconds)?;
                left %= seconds;
            }
        }
        Ok(())
    }
}

impl Serialize for Span {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        Self::parse(&text).map_err(serde::de::Error::custom)
    }
}

/// The zone of that name; the machine's own when none is named.
///
/// # Errors
/// [`WhenError::NoSuchZone`].
pub fn zone(name: Option<&str>) -> Result<TimeZone, WhenError> {
    match name.map(str::trim) {
        None | Some("" | "local") => Ok(TimeZone::system()),
        Some(name) if name.len() <= MAX_TEXT => TimeZone::get(name).map_err(|_| WhenError::NoSuchZone(name.to_owned())),
        Some(name) => Err(WhenError::NoSuchZone(short(name))),
    }
}

/// The name a zone is stored by; `UTC` for one that has none.
pub fn zone_name(zone: &TimeZone) -> String {
    zone.iana_name().unwrap_or("UTC").to_owned()
}

/// A time as people read it: `Tue 2026-12-01 08:00 +08:00 Asia/Shanghai`, with seconds where there are some.
pub fn shown(at_ms: i64, zone: &TimeZone) -> String {
    let Some(at) = zoned(at_ms, zone) else { return at_ms.to_string() };
    let format = if at.second() == 0 { "%a %Y-%m-%d %H:%M %:z" } else { "%a %Y-%m-%d %H:%M:%S %:z" };
    let name = zone.iana_name().map(|name| format!(" {name}")).unwrap_or_default();
    format!("{}{name}", at.strftime(format))
}

/// The instant in the zone; `None` when it lies outside all calendars.
pub fn zoned(at_ms: i64, zone: &TimeZone) -> Option<ZonedDateTime> {
    Timestamp::from_millisecond(at_ms).ok().map(|at| at.to_zoned_datetime(zone.clone()))
}

/// Reads one time: an ISO date and time (of `zone` unless it names its own), a time of day (the next one), or a span from
/// now (`in 20m`, `20m`, `20分钟后`).
///
/// # Errors
/// [`WhenError`]: not understood, in the past, or more than ten years ahead.
pub fn parse_at(text: &str, now_ms: i64, zone: &TimeZone) -> Result<i64, WhenError> {
    let written = text.trim();
    let refused = || WhenError::NotATime(short(text));
    if written.is_empty() || written.len() > MAX_TEXT {
        return Err(refused());
    }
    let relative = written.strip_prefix("in ").or_else(|| written.strip_prefix('+'));
    let relative = relative.or_else(|| written.strip_suffix("后")).unwrap_or(written);
    let at = if let Ok(span) = Span::parse(relative.trim()) {
        now_ms.saturating_add(span.ms())
    } else if let Ok(at) = written.parse::<ZonedDateTime>() {
        at.timestamp().as_millisecond()
    } else if let Ok(at) = written.parse::<Timestamp>() {
        at.as_millisecond()
    } else if let Some(time) = time_of_day(written) {
        let now = zoned(now_ms, zone).ok_or_else(refused)?;
        let today = instant(now.date().to_datetime(time), zone).ok_or_else(refused)?;
        if today > now_ms {
            today
        } else {
            let tomorrow = now.date().tomorrow().map_err(|_| refused())?;
            instant(tomorrow.to_datetime(time), zone).ok_or_else(refused)?
        }
    } else if let Ok(at) = written.parse::<DateTime>() {
        // A date without a time is its morning, which nobody means.
        if written.parse::<Date>().is_ok() && !written.contains(':') {
            return Err(refused());
        }
        instant(at, zone).ok_or_else(refused)?
    } else {
        return Err(refused());
    };
    if at < now_ms {
        return Err(WhenError::Past(shown(at, zone), shown(now_ms, zone)));
    }
    if at - now_ms > FURTHEST_MS {
        return Err(WhenError::TooFar(short(text)));
    }
    Ok(at)
}

/// `8:05`, `08:05`, `08:05:30`.
pub fn time_of_day(text: &str) -> Option<Time> {
    let mut fields = text.trim().split(':');
    let number = |field: &str| {
        let plain = (1..=2).contains(&field.len()) && field.bytes().all(|byte| byte.is_ascii_digit());
        plain.then(|| field.parse::<i8>().ok()).flatten()
    };
    let (hour, minute) = (number(fields.next()?)?, number(fields.next()?)?);
    let second = fields.next().map_or(Some(0), number)?;
    if fields.next().is_some() {
        return None;
    }
    Time::new(hour, minute, second, 0).ok()
}

/// The instant of a civil time: leapt over = the first that exists after it, twice = the first.
fn instant(at: DateTime, zone: &TimeZone) -> Option<i64> {
    Local::resolve(at, zone).ok().and_then(|resolved| match resolved {
        Resolution::Single(at) | Resolution::Ambiguous(at, _) => Some(at.0.timestamp().as_millisecond()),
        Resolution::Gap => {
            // `later` reads the time by the offset before the gap: as far into the hour after it.
            let after = zone.to_ambiguous_zoned_datetime(at).later().ok()?;
            let start = zone.preceding(after.timestamp() + SignedDuration::from_millis(1)).next()?;
            Some(start.timestamp().as_millisecond())
        }
    })
}

impl When {
    /// A span apart, counted from now.
    ///
    /// # Errors
    /// [`WhenError::TooOften`].
    pub fn every(span: Span, now_ms: i64, least: Span) -> Result<Self, WhenError> {
        if span < least || span.ms() == 0 {
            return Err(WhenError::TooOften(span, least));
        }
        Ok(Self::Every { every_ms: span.ms(), anchor: now_ms.saturating_add(span.ms()) })
    }

    /// A cron expression in a zone.
    ///
    /// # Errors
    /// [`WhenError`]: it cannot be read, never comes, or comes more often than every `least`.
    pub fn cron(expr: &str, zone: &TimeZone, now_ms: i64, least: Span) -> Result<Self, WhenError> {
        let when = Self::Cron { expr: expr.trim().to_owned(), tz: zone_name(zone) };
        parse_cron(expr)?;
        let mut slots = Vec::new();
        let mut at = now_ms;
        while slots.len() < LOOKED_AT {
            let Some(next) = when.next_after(at) else { break };
            slots.push(next);
            at = next;
        }
        if slots.is_empty() {
            return Err(WhenError::Never(short(expr)));
        }
        let gap = slots.windows(2).map(|pair| pair[1] - pair[0]).min();
        if let Some(gap) = gap.filter(|gap| *gap < least.ms()) {
            return Err(WhenError::TooOften(Span(Duration::from_millis(gap.unsigned_abs())), least));
        }
        Ok(when)
    }

    /// The first slot after `after_ms`; `None` when there is none.
    pub fn next_after(&self, after_ms: i64) -> Option<i64> {
        match self {
            Self::At { at } => (*at > after_ms).then_some(*at),
            Self::Every { every_ms, anchor } => {
                let every = (*every_ms).max(1);
                let passed = after_ms.checked_sub(*anchor)?;
                let next = if passed < 0 { 0 } else { passed / every + 1 };
                anchor.checked_add(next.checked_mul(every)?)
            }
            Self::Cron { expr, tz } => {
                let cron = parse_cron(expr).ok()?;
                let zone = TimeZone::get(tz).ok()?;
                let from = Local(zoned(after_ms, &zone)?);
                let next = cron.find_next_occurrence(&from, false).ok()?;
                let next = next.0.timestamp().as_second().checked_mul(1000)?;
                (next > after_ms && next - after_ms <= FURTHEST_MS).then_some(next)
            }
        }
    }

    /// Whether it comes once.
    pub fn is_once(&self) -> bool {
        matches!(self, Self::At { .. })
    }

    /// What is due at `now_ms` of a schedule whose next slot was `slot_ms`: the newest slot that has come, how many before
    /// it were missed (counted up to 1,000), and the one after it.
    pub fn due(&self, slot_ms: i64, now_ms: i64) -> Due {
        let (mut slot, mut missed) = (slot_ms, 0);
        if let Self::Every { every_ms, .. } = self {
            let steps = (now_ms - slot_ms).max(0) / (*every_ms).max(1);
            (slot, missed) = (slot_ms + steps * every_ms, u32::try_from(steps).unwrap_or(u32::MAX));
        }
        let mut next = self.next_after(slot);
        while let Some(at) = next.filter(|at| *at <= now_ms) {
            missed += 1;
            if missed >= 1_000 {
                // A schedule of seconds after years: only its newest slot matters.
                slot = at;
                next = self.next_after(now_ms);
                break;
            }
            slot = at;
            next = self.next_after(at);
        }
        Due { slot, missed, next }
    }

    /// In words for people: the time, the span, or the expression with its zone.
    pub fn words(&self, zone: &TimeZone) -> String {
        match self {
            Self::At { at } => shown(*at, zone),
            Self::Every { every_ms, .. } => {
                format!("every {}", Span(Duration::from_millis(every_ms.unsigned_abs())))
            }
            Self::Cron { expr, tz } => format!("{expr} ({tz})"),
        }
    }
}

/// What has come of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due {
    /// The newest slot that has come.
    pub slot: i64,
    /// Slots before it that nobody ran.
    pub missed: u32,
    /// The one after it.
    pub next: Option<i64>,
}

/// The pause after so many failures in a row. openclaw-parity.md §10.
pub fn backoff_ms(failures: u32) -> i64 {
    const PAUSES_S: [i64; 5] = [30, 60, 5 * 60, 15 * 60, 60 * 60];
    let last = PAUSES_S.len() - 1;
    PAUSES_S[(failures.max(1) as usize - 1).min(last)] * 1000
}

fn parse_cron(expr: &str) -> Result<Cron, WhenError> {
    let written = expr.trim();
    let refused = |why: &str| WhenError::NotCron(short(expr), why.to_owned());
    let fields = written.split_ascii_whitespace().count();
    let nickname = written.starts_with('@');
    if written.len() > MAX_TEXT || !(nickname || fields == 5 || fields == 6) {
        return Err(refused("it has not five or six fields"));
    }
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    parser.parse(written).map_err(|error| refused(error.to_string().trim_end_matches('.')))
}

/// The first characters of what somebody wrote, for an error.
fn short(text: &str) -> String {
    let text = text.trim();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A time of ours as the cron matcher walks it.
#[derive(Clone)]
struct Local(ZonedDateTime);

impl Local {
    fn resolve(at: DateTime, zone: &TimeZone) -> Result<Resolution<Self>, CronError> {
        let invalid = |_| CronError::InvalidTime;
        let ambiguous = zone.to_ambiguous_zoned_datetime(at);
        Ok(match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { .. } => Resolution::Single(Self(ambiguous.unambiguous().map_err(invalid)?)),
            AmbiguousOffset::Fold { .. } => {
                let earlier = ambiguous.clone().earlier().map_err(invalid)?;
                Resolution::Ambiguous(Self(earlier), Self(ambiguous.later().map_err(invalid)?))
            }
            AmbiguousOffset::Gap { .. } => Resolution::Gap,
        })
    }
}

impl CronDateTime for Local {
    fn to_civil(&self) -> CivilDateTime {
        let at = &self.0;
        let unsigned = |n: i8| u32::from(n.unsigned_abs());
        CivilDateTime::from_ymd_hms_opt(
            i32::from(at.year()),
            unsigned(at.month()),
            unsigned(at.day()),
            unsigned(at.hour()),
            unsigned(at.minute()),
            unsigned(at.second()),
        )
        .expect("a date and time of jiff's exists")
    }

    fn civil_weekday(&self) -> Weekday {
        Weekday::from_days_from_sunday(u32::from(self.0.weekday().to_sunday_zero_offset().unsigned_abs()))
    }

    fn resolve_civil(&self, civil: CivilDateTime) -> Result<Resolution<Self>, CronError> {
        let year = i16::try_from(civil.year()).map_err(|_| CronError::InvalidDate)?;
        let small = |n: u32| i8::try_from(n).map_err(|_| CronError::InvalidDate);
        let at = DateTime::new(
            year,
            small(civil.month())?,
            small(civil.day())?,
            small(civil.hour())?,
            small(civil.minute())?,
            small(civil.second())?,
            0,
        )
        .map_err(|_| CronError::InvalidDate)?;
        Self::resolve(at, self.0.time_zone())
    }

    fn checked_add_seconds(&self, seconds: i64) -> Option<Self> {
        self.0.checked_add(SignedDuration::from_secs(seconds)).ok().map(Self)
    }

    fn cmp_instant(&self, other: &Self) -> Ordering {
        self.0.timestamp().cmp(&other.0.timestamp())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(text: &str) -> i64 {
        text.parse::<Timestamp>().expect("a time").as_millisecond()
    }

    fn berlin() -> TimeZone {
        zone(Some("Europe/Berlin")).expect("a zone")
    }

    fn shanghai() -> TimeZone {
        zone(Some("Asia/Shanghai")).expect("a zone")
    }

    #[test]
    fn spans_are_read_and_written_as_people_do() {
        for (text, seconds, shown) in [
            ("30m", 1800, "30m"),
            ("1h30m", 5400, "1h30m"),
            ("90 min", 5400, "1h30m"),
            ("2 hours 5 minutes", 7500, "2h5m"),
            ("0m", 0, "0m"),
            ("0", 0, "0m"),
            ("1w", 7 * 86_400, "7d"),
            ("20分钟", 1200, "20m"),
            ("2小时30分", 9000, "2h30m"),
        ] {
            let span = Span::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
            assert_eq!((span.0.as_secs(), span.to_string().as_str()), (seconds, shown), "{text}");
        }
        for text in ["", "m", "30", "-5m", "1x", "1.5h", "99999999999999999999s", "30m ago", "9000000d", "1h1"] {
            assert!(Span::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn times_are_read_in_the_zone_of_whoever_wrote_them() {
        let now = ms("2026-11-30T19:00:00Z");
        for (text, at) in [
            ("2026-12-01T08:00", "2026-12-01T00:00:00Z"),
            ("2026-12-01 08:00", "2026-12-01T00:00:00Z"),
            ("2026-12-01T08:00:00+01:00", "2026-12-01T07:00:00Z"),
            ("2026-12-01T08:00Z", "2026-12-01T08:00:00Z"),
            ("2026-12-01T08:00[Europe/Berlin]", "2026-12-01T07:00:00Z"),
            // It is 03:00 on the first in Shanghai.
            ("08:00", "2026-12-01T00:00:00Z"),
            ("2:30", "2026-12-01T18:30:00Z"),
            ("in 20m", "2026-11-30T19:20:00Z"),
            ("20m", "2026-11-30T19:20:00Z"),
            ("20分钟后", "2026-11-30T19:20:00Z"),
            ("in 1h30m", "2026-11-30T20:30:00Z"),
        ] {
            assert_eq!(parse_at(text, now, &shanghai()), Ok(ms(at)), "{text}");
        }
        for text in ["", "tomorrow", "2026-12-01", "25:00", "8", "2026-13-01T00:00", "2027-02-29T08:00", "in", "in 5"] {
            assert!(matches!(parse_at(text, now, &shanghai()), Err(WhenError::NotATime(_))), "{text}");
        }
        let past = parse_at("2026-11-30T18:59:59Z", now, &shanghai()).expect_err("past").to_string();
        assert!(past.contains("it is Tue 2026-12-01 03:00 +08:00 Asia/Shanghai now"), "{past}");
        assert!(matches!(parse_at("2056-01-01T00:00", now, &shanghai()), Err(WhenError::TooFar(_))));
    }

    #[test]
    fn a_time_the_clock_leaps_over_runs_when_the_clock_goes_on_and_a_doubled_one_once() {
        // 2027-03-28 02:00 → 03:00 in Berlin; 2027-10-31 03:00 → 02:00.
        let spring = ms("2027-03-27T12:00:00Z");
        assert_eq!(parse_at("2027-03-28T02:30", spring, &berlin()), Ok(ms("2027-03-28T01:00:00Z")));
        let daily = When::cron("30 2 * * *", &berlin(), spring, Span::minutes(5)).expect("a schedule");
        let one = daily.next_after(spring).expect("a slot");
        assert_eq!(one, ms("2027-03-28T01:00:00Z"));
        assert_eq!(daily.next_after(one), Some(ms("2027-03-29T00:30:00Z")));

        let autumn = ms("2027-10-30T12:00:00Z");
        assert_eq!(parse_at("2027-10-31T02:30", autumn, &berlin()), Ok(ms("2027-10-31T00:30:00Z")));
        let first = daily.next_after(autumn).expect("a slot");
        assert_eq!(first, ms("2027-10-31T00:30:00Z"));
        assert_eq!(daily.next_after(first), Some(ms("2027-11-01T01:30:00Z")));
        // From within the second run of the hour, too.
        assert_eq!(daily.next_after(ms("2027-10-31T01:10:00Z")), Some(ms("2027-11-01T01:30:00Z")));
    }

    #[test]
    fn a_beat_goes_on_with_the_clock() {
        let hourly = When::cron("0 * * * *", &berlin(), ms("2027-10-30T23:30:00Z"), Span::minutes(5)).expect("a beat");
        let mut at = ms("2027-10-30T23:30:00Z");
        for hour in ["2027-10-31T00:00:00Z", "2027-10-31T01:00:00Z", "2027-10-31T02:00:00Z"] {
            at = hourly.next_after(at).expect("a slot");
            assert_eq!(at, ms(hour));
        }
    }

    #[test]
    fn six_fields_weekdays_and_names_are_understood_and_nonsense_is_not() {
        let now = ms("2026-11-30T19:00:00Z");
        for (expr, next) in [
            ("0 8 * * 1-5", "2026-12-01T00:00:00Z"),
            ("0 8 * * SUN", "2026-12-06T00:00:00Z"),
            ("30 0 8 * * *", "2026-12-01T00:00:30Z"),
            ("0 9 1 * *", "2026-12-01T01:00:00Z"),
            ("0 9 L * *", "2026-12-31T01:00:00Z"),
            ("0 0 29 2 *", "2028-02-28T16:00:00Z"),
            ("@daily", "2026-12-01T16:00:00Z"),
        ] {
            let when = When::cron(expr, &shanghai(), now, Span::minutes(5)).unwrap_or_else(|e| panic!("{expr}: {e}"));
            assert_eq!(when.next_after(now), Some(ms(next)), "{expr}");
        }
        let refused = |expr: &str| When::cron(expr, &shanghai(), now, Span::minutes(5)).expect_err(expr);
        for expr in ["", "* * * *", "61 * * * *", "a b c d e", "0 8 * * * * 2030", "0 8 * * 9", "\u{0}", "🦀 * * * *"]
        {
            assert!(matches!(refused(expr), WhenError::NotCron(..)), "{expr}: {:?}", refused(expr));
        }
        assert!(matches!(refused("0 0 30 2 *"), WhenError::Never(_)));
        for often in ["* * * * *", "*/4 * * * *", "* 0 8 * * *", "0,1 8 * * *"] {
            assert!(matches!(refused(often), WhenError::TooOften(..)), "{often}");
        }
        assert!(zone(Some("Mars/Base")).is_err());
    }

    #[test]
    fn what_was_missed_is_one_run_and_counted() {
        let anchor = ms("2026-11-30T08:00:00Z");
        let every = When::Every { every_ms: 600_000, anchor };
        // On time.
        assert_eq!(every.due(anchor, anchor), Due { slot: anchor, missed: 0, next: Some(anchor + 600_000) });
        // A laptop slept for a day.
        let woke = anchor + 24 * 3_600_000 + 1;
        let due = every.due(anchor, woke);
        assert_eq!(due, Due { slot: anchor + 144 * 600_000, missed: 144, next: Some(anchor + 145 * 600_000) });
        let daily = When::cron("0 8 * * *", &berlin(), anchor, Span::minutes(5)).expect("a schedule");
        let slot = daily.next_after(anchor).expect("a slot");
        let due = daily.due(slot, slot + 3 * 86_400_000 + 5);
        assert_eq!((due.slot, due.missed), (slot + 3 * 86_400_000, 3));
        let once = When::At { at: anchor };
        assert_eq!(once.due(anchor, woke), Due { slot: anchor, missed: 0, next: None });
        // The clock was set back: the same slot, nothing missed.
        assert_eq!(every.due(anchor, anchor - 5_000).missed, 0);
    }

    #[test]
    fn pauses_grow_to_an_hour() {
        let all: Vec<i64> = (0..8).map(|n| backoff_ms(n) / 1000).collect();
        assert_eq!(all, [30, 30, 60, 300, 900, 3600, 3600, 3600]);
    }
}
