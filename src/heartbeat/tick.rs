//! Whether a heartbeat runs now, and the reason when it does not. Pure.
//!
//! The order of the questions and the names of the reasons are those of openclaw-parity.md §1.6; each reason is shown by
//! `crawfish heartbeat`.

use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};

use crate::schedule::when::{Span, WhenError, zone, zoned};

/// `[heartbeat]`: looks around at regular times and speaks only when something needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct HeartbeatConfig {
    /// How often; `0m` = never.
    pub every: Span,
    /// Who is told.
    pub target: Target,
    /// With a channel as target: the id of the direct chat in it.
    pub to: Option<String>,
    /// When; always without it.
    pub active_hours: Option<ActiveHours>,
    /// The longest acknowledgement beside `HEARTBEAT_OK`, in characters.
    pub ack_max_chars: usize,
    /// What the agent is asked, instead of following HEARTBEAT.md. With it the file may be empty.
    pub prompt: Option<String>,
    /// The name of the model in `[models]` that ticks use.
    pub model: Option<String>,
    /// Where a tick runs.
    pub session: TickSession,
    /// The tick's request has no history: it costs the system prompt and one line.
    pub light_context: bool,
    /// A bare acknowledgement is sent, too.
    pub show_ok: bool,
    /// Alerts are sent.
    pub show_alerts: bool,
    /// Settings of other agents; when any is named, only those tick.
    pub agents: std::collections::BTreeMap<String, HeartbeatConfig>,
}

impl Default for HeartbeatConfig {
    fn default() -> Self {
        Self {
            every: Span::minutes(30),
            target: Target::Owner,
            to: None,
            active_hours: None,
            ack_max_chars: 300,
            prompt: None,
            model: None,
            session: TickSession::Chat,
            light_context: true,
            show_ok: false,
            show_alerts: true,
            agents: std::collections::BTreeMap::new(),
        }
    }
}

impl HeartbeatConfig {
    /// The agents that tick, each with its settings.
    pub fn ticking(&self) -> Vec<(String, Self)> {
        if self.agents.is_empty() {
            return vec![("main".to_owned(), self.clone())];
        }
        self.agents.iter().map(|(id, config)| (id.clone(), config.clone())).collect()
    }
}

/// Who hears of what a heartbeat finds.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(from = "String", into = "String")]
pub enum Target {
    /// The owner: their last direct chat, else another one of theirs, else the web chat.
    Owner,
    /// Nobody: no tick runs.
    None,
    /// A direct chat of this channel (`telegram:main`), named by `to`.
    Channel(String),
}

impl From<String> for Target {
    fn from(text: String) -> Self {
        match text.as_str() {
            "owner" | "last" => Self::Owner,
            "none" => Self::None,
            _ => Self::Channel(text),
        }
    }
}

impl From<Target> for String {
    fn from(target: Target) -> Self {
        match target {
            Target::Owner => "owner".to_owned(),
            Target::None => "none".to_owned(),
            Target::Channel(id) => id,
        }
    }
}

/// Where a tick runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TickSession {
    /// In the session of the chat that is told: what it found can be talked about.
    Chat,
    /// In a session of its own.
    Isolated,
}

/// Part of every day. `start` belongs to it, `end` does not; `end = "24:00"` is midnight; past midnight when `end` comes
/// before `start`; the same time twice is never.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ActiveHours {
    /// From.
    pub start: DayTime,
    /// To.
    pub end: DayTime,
    /// The IANA zone; the machine's own without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tz: Option<Zone>,
}

/// A minute of the day, 0 to 1440 (`24:00`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct DayTime(u16);

impl TryFrom<String> for DayTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let refused = || format!("`{}` is not a time of day: write 08:00 or 24:00", text.escape_debug());
        let (hour, minute) = text.split_once(':').ok_or_else(refused)?;
        let number = |field: &str| {
            let plain = (1..=2).contains(&field.len()) && field.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| field.parse::<u16>().ok()).flatten().ok_or_else(refused)
        };
        let (hour, minute) = (number(hour)?, number(minute)?);
        let fits = (hour < 24 && minute < 60) || (hour == 24 && minute == 0);
        if fits { Ok(Self(hour * 60 + minute)) } else { Err(refused()) }
    }
}

impl From<DayTime> for String {
    fn from(DayTime(minute): DayTime) -> Self {
        format!("{:02}:{:02}", minute / 60, minute % 60)
    }
}

/// A time zone that exists.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct Zone(String);

impl Zone {
    /// The zone.
    pub fn zone(&self) -> TimeZone {
        zone(Some(&self.0)).unwrap_or_else(|_| TimeZone::system())
    }
}

impl TryFrom<String> for Zone {
    type Error = WhenError;

    fn try_from(text: String) -> Result<Self, WhenError> {
        zone(Some(&text)).map(|_| Self(text))
    }
}

impl From<Zone> for String {
    fn from(zone: Zone) -> Self {
        zone.0
    }
}

impl ActiveHours {
    /// Whether `now_ms` falls into them.
    pub fn contain(&self, now_ms: i64) -> bool {
        let zone = self.tz.as_ref().map_or_else(TimeZone::system, Zone::zone);
        let Some(now) = zoned(now_ms, &zone) else { return false };
        let minute = u16::from(now.hour().unsigned_abs()) * 60 + u16::from(now.minute().unsigned_abs());
        let (start, end) = (self.start.0, self.end.0);
        match start.cmp(&end) {
            std::cmp::Ordering::Less => (start..end).contains(&minute),
            std::cmp::Ordering::Equal => false,
            std::cmp::Ordering::Greater => minute >= start || minute < end,
        }
    }
}

/// Why a tick did not run, or what became of one that did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Skip {
    /// `every = "0m"`.
    Disabled,
    /// Outside `active_hours`.
    QuietHours,
    /// The session has work: asked again soon.
    RequestsInFlight,
    /// HEARTBEAT.md asks for nothing.
    EmptyHeartbeatFile,
    /// Neither alerts nor acknowledgements are shown.
    AlertsDisabled,
    /// Nobody can be told.
    NoTarget,
    /// The chat is on a webhook without `callback_url`: nobody would get what is said there.
    NoCallback,
}

impl Skip {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::QuietHours => "quiet-hours",
            Self::RequestsInFlight => "requests-in-flight",
            Self::EmptyHeartbeatFile => "empty-heartbeat-file",
            Self::AlertsDisabled => "alerts-disabled",
            Self::NoTarget => "no-target",
            Self::NoCallback => "no-callback",
        }
    }
}

/// What a tick finds.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Now, in epoch milliseconds.
    pub now: i64,
    /// The session waits or works.
    pub busy: bool,
    /// HEARTBEAT.md has something in it.
    pub work: bool,
    /// Somebody can be told.
    pub target: bool,
    /// Nobody can, because the chat's channel only answers.
    pub unheard: bool,
}

/// Whether a tick runs, in the order of the parity page.
///
/// # Errors
/// The reason why it does not.
pub fn decide(config: &HeartbeatConfig, moment: &Moment) -> Result<(), Skip> {
    if config.every == Span::default() {
        return Err(Skip::Disabled);
    }
    if config.active_hours.as_ref().is_some_and(|hours| !hours.contain(moment.now)) {
        return Err(Skip::QuietHours);
    }
    if moment.busy {
        return Err(Skip::RequestsInFlight);
    }
    if !moment.work && config.prompt.is_none() {
        return Err(Skip::EmptyHeartbeatFile);
    }
    if !config.show_alerts && !config.show_ok {
        return Err(Skip::AlertsDisabled);
    }
    if moment.unheard && config.target != Target::None {
        return Err(Skip::NoCallback);
    }
    if !moment.target || config.target == Target::None {
        return Err(Skip::NoTarget);
    }
    Ok(())
}

/// The slot that `now_ms` belongs to: one tick each, whoever counts, however long the machine slept.
pub fn slot(every: Span, now_ms: i64) -> i64 {
    now_ms.div_euclid(every.ms().max(1))
}

/// When the slot after `slot` begins, in epoch milliseconds.
pub fn slot_end(every: Span, slot: i64) -> i64 {
    slot.saturating_add(1).saturating_mul(every.ms().max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hours(start: &str, end: &str) -> ActiveHours {
        let time = |text: &str| DayTime::try_from(text.to_owned()).expect("a time");
        let tz = Some(Zone::try_from("Asia/Shanghai".to_owned()).expect("a zone"));
        ActiveHours { start: time(start), end: time(end), tz }
    }

    /// So many minutes after midnight in Shanghai.
    fn at(minute: i64) -> i64 {
        1_796_054_400_000 + minute * 60_000
    }

    #[test]
    fn active_hours_begin_with_their_start_and_end_before_their_end() {
        let day = hours("08:00", "22:00");
        assert_eq!([479, 480, 1319, 1320].map(|minute| day.contain(at(minute))), [false, true, true, false]);
        let to_midnight = hours("08:00", "24:00");
        assert_eq!([1439, 1440].map(|minute| to_midnight.contain(at(minute))), [true, false]);
        let night = hours("22:00", "06:00");
        assert_eq!([1320, 0, 359, 360].map(|minute| night.contain(at(minute))), [true, true, true, false]);
        assert!(!hours("08:00", "08:00").contain(at(480)));
        for bad in ["24:01", "8", "08:60", "-1:00", "25:00", "08:00:00", "", "８:00"] {
            assert!(DayTime::try_from(bad.to_owned()).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_questions_are_asked_in_order() {
        let mut config = HeartbeatConfig { active_hours: Some(hours("08:00", "22:00")), ..HeartbeatConfig::default() };
        let all_wrong = Moment { now: at(0), busy: true, work: false, target: false, unheard: false };
        config.every = Span::default();
        assert_eq!(decide(&config, &all_wrong), Err(Skip::Disabled));
        config.every = Span::minutes(30);
        config.show_alerts = false;
        assert_eq!(decide(&config, &all_wrong), Err(Skip::QuietHours));
        let moment = Moment { now: at(600), ..all_wrong };
        assert_eq!(decide(&config, &moment), Err(Skip::RequestsInFlight));
        let moment = Moment { busy: false, ..moment };
        assert_eq!(decide(&config, &moment), Err(Skip::EmptyHeartbeatFile));
        let moment = Moment { work: true, ..moment };
        assert_eq!(decide(&config, &moment), Err(Skip::AlertsDisabled));
        config.show_alerts = true;
        assert_eq!(decide(&config, &moment), Err(Skip::NoTarget));
        assert_eq!(decide(&config, &Moment { unheard: true, ..moment }), Err(Skip::NoCallback));
        let moment = Moment { target: true, ..moment };
        assert_eq!(decide(&config, &moment), Ok(()));
        // A prompt of one's own needs no file.
        config.prompt = Some("Look at the calendar".to_owned());
        assert_eq!(decide(&config, &Moment { work: false, ..moment }), Ok(()));
    }

    #[test]
    fn one_slot_has_one_number_however_often_it_is_asked() {
        let every = Span::minutes(30);
        let one = slot(every, at(480));
        assert_eq!(slot(every, at(509)), one);
        assert_eq!(slot(every, at(510)), one + 1);
        assert_eq!(slot_end(every, one), at(510));
        // A day of sleep is one jump.
        assert_eq!(slot(every, at(480 + 1440)), one + 48);
    }
}
