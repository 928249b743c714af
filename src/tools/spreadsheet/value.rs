//! What a cell holds, whatever the file's format, and how it is shown: numbers without the noise of binary fractions,
//! dates as dates. Pure.

use std::borrow::Cow;

/// What a cell holds.
#[derive(Clone, Debug, PartialEq)]
pub enum Value<'a> {
    /// Nothing.
    Empty,
    /// Words.
    Text(Cow<'a, str>),
    /// A number.
    Number(f64),
    /// Yes or no.
    Bool(bool),
    /// A date, a time or both, as `2026-03-01`, `09:30:00` or `2026-03-01 09:30:00`: they sort as text.
    Date(String),
    /// A length of time, as `12:30:00`.
    Duration(String),
    /// What a formula failed with, e.g. `#DIV/0!`.
    Error(Cow<'a, str>),
}

impl Value<'_> {
    /// The same without more than so many characters, on its own feet.
    pub fn short(&self, chars: usize) -> Value<'static> {
        let cut = |text: &str| text.chars().take(chars).collect::<String>();
        match self {
            Self::Empty => Value::Empty,
            Self::Text(text) => Value::Text(Cow::Owned(cut(text))),
            Self::Number(number) => Value::Number(*number),
            Self::Bool(yes) => Value::Bool(*yes),
            Self::Date(date) => Value::Date(cut(date)),
            Self::Duration(time) => Value::Duration(cut(time)),
            Self::Error(error) => Value::Error(Cow::Owned(cut(error))),
        }
    }

    /// As a person reads it.
    pub fn shown(&self) -> Cow<'_, str> {
        match self {
            Self::Empty => Cow::Borrowed(""),
            Self::Text(text) | Self::Error(text) => Cow::Borrowed(text),
            Self::Number(number) => Cow::Owned(number_shown(*number)),
            Self::Bool(true) => Cow::Borrowed("TRUE"),
            Self::Bool(false) => Cow::Borrowed("FALSE"),
            Self::Date(text) | Self::Duration(text) => Cow::Borrowed(text),
        }
    }
}

/// A number as spreadsheets show it: 15 digits that count, no more.
pub fn number_shown(number: f64) -> String {
    if number == 0.0 {
        return "0".to_owned();
    }
    if !number.is_finite() {
        return number.to_string();
    }
    let rounded: f64 = format!("{number:.14e}").parse().unwrap_or(number);
    match rounded.abs() {
        size if (1e-6..1e21).contains(&size) => rounded.to_string(),
        _ => format!("{rounded:e}"),
    }
}

/// What the words of a text file mean: a number or a date only where nothing is lost by it. `007`, telephone numbers and
/// numbers of more than 15 digits (identity cards, orders) stay words.
pub fn meant(text: &str) -> Value<'_> {
    let bare = text.trim();
    if bare.is_empty() {
        return Value::Empty;
    }
    if let Some(number) = number(bare) {
        return Value::Number(number);
    }
    if let Some(date) = date(bare) {
        return Value::Date(date);
    }
    Value::Text(Cow::Borrowed(text))
}

fn number(text: &str) -> Option<f64> {
    if text.len() > 32 {
        return None;
    }
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (whole, fraction) = unsigned.split_once('.').map_or((unsigned, None), |(whole, rest)| (whole, Some(rest)));
    let (fraction, exponent) = match fraction.unwrap_or_default().split_once(['e', 'E']) {
        Some((fraction, exponent)) => (Some(fraction), Some(exponent)),
        None => (fraction, None),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let plain: String = if whole.contains(',') {
        let mut groups = whole.split(',');
        let first = groups.next()?;
        if !(1..=3).contains(&first.len()) || !groups.all(|group| group.len() == 3 && digits(group)) {
            return None;
        }
        whole.replace(',', "")
    } else {
        whole.to_owned()
    };
    if !digits(&plain) || (plain.len() > 1 && plain.starts_with('0')) || fraction.is_some_and(|part| !digits(part)) {
        return None;
    }
    if exponent.is_some_and(|part| !digits(part.strip_prefix(['-', '+']).unwrap_or(part)) || part.len() > 4) {
        return None;
    }
    // A telephone number in its international form is no number to count with.
    if plain.len() + fraction.map_or(0, str::len) > 15 || (text.starts_with('+') && plain.len() > 7) {
        return None;
    }
    text.replace(',', "").parse().ok().filter(|number: &f64| number.is_finite())
}

/// `2026-03-01`, `2026/3/1`, `2026年3月1日`, with a time of day or without.
fn date(text: &str) -> Option<String> {
    if text.len() > 40 || !text.is_char_boundary(4) {
        return None;
    }
    let (day, time) = text.split_once([' ', 'T']).map_or((text, None), |(day, time)| (day, Some(time)));
    let day = day.replace(['年', '月', '/', '.'], "-").replace('日', "");
    let mut parts = day.split('-');
    let (year, month, date) = (parts.next()?, parts.next()?, parts.next()?);
    if parts.next().is_some() || year.len() != 4 || month.len() > 2 || date.len() > 2 {
        return None;
    }
    let (year, month, date): (u16, u8, u8) = (year.parse().ok()?, month.parse().ok()?, date.parse().ok()?);
    if !(1..=12).contains(&month) || !(1..=31).contains(&date) || !(1000..=9999).contains(&year) {
        return None;
    }
    let day = format!("{year:04}-{month:02}-{date:02}");
    let Some(time) = time else { return Some(day) };
    let clock = time.trim().trim_end_matches('Z');
    let mut parts = clock.split(':');
    let (hour, minute): (u8, u8) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let second: f64 = parts.next().unwrap_or("0").parse().ok()?;
    let fits = hour < 24 && minute < 60 && (0.0..60.0).contains(&second) && parts.next().is_none();
    fits.then(|| format!("{day} {hour:02}:{minute:02}:{:02}", second as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_without_noise() {
        for (number, shown) in [
            (0.1 + 0.2, "0.3"),
            (0.0, "0"),
            (-0.0, "0"),
            (1_234_567.0, "1234567"),
            (1e20, "100000000000000000000"),
            (1e21, "1e21"),
            (1e-7, "1e-7"),
            (f64::NAN, "NaN"),
            (-2.5, "-2.5"),
        ] {
            assert_eq!(number_shown(number), shown);
        }
    }

    #[test]
    fn words_become_numbers_and_dates_only_where_nothing_is_lost() {
        let number = |text: &str| match meant(text) {
            Value::Number(number) => Some(number),
            _ => None,
        };
        for (text, meaning) in [
            ("12", 12.0),
            (" -3.5 ", -3.5),
            ("0", 0.0),
            ("0.25", 0.25),
            ("1,234,567.89", 1_234_567.89),
            ("1.5e3", 1500.0),
            ("+7", 7.0),
        ] {
            assert_eq!(number(text), Some(meaning), "{text}");
        }
        for text in [
            "007",
            "13800138000x",
            "+8613800138000",
            "1,23",
            "12,34,56",
            "1.2.3",
            "--1",
            "1e5x",
            "NaN",
            "inf",
            "110101199003070000",
            "1.",
            ".5e",
            "12%",
            "¥12",
        ] {
            assert!(matches!(meant(text), Value::Text(_)), "{text}: {:?}", meant(text));
        }
        for (text, day) in [
            ("2026-03-01", "2026-03-01"),
            ("2026/3/1", "2026-03-01"),
            ("2026年3月1日", "2026-03-01"),
            ("2026-03-01T09:30:00Z", "2026-03-01 09:30:00"),
            ("2026-3-1 9:05", "2026-03-01 09:05:00"),
        ] {
            assert_eq!(meant(text), Value::Date(day.to_owned()), "{text}");
        }
        for text in ["2026-13-01", "26-03-01", "2026-03", "2026-03-01 25:00", "1-2-3-4", "日月年"] {
            assert!(matches!(meant(text), Value::Text(_)), "{text}");
        }
        assert_eq!(meant("  "), Value::Empty);
    }
}
