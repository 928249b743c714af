//! Why a model gave no answer: one plain line for the person who waits for it, and the detail for whoever runs the gateway.
//!
//! The line holds nothing a provider wrote; the detail adds its words (clean already: no key, no page) and the id under
//! which the provider's support finds the request.

use std::fmt;

use crate::{
    lang::{self, Lang},
    secrets::Redactor,
};

/// Why a model gave no answer, in no language yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cause {
    what: What,
    /// The provider's own words.
    said: String,
    request_id: Option<String>,
}

/// What went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Words of our own, the same for everyone.
    Words(String),
    /// No model is configured.
    NoModel,
    /// Too many requests wait for the model here.
    Full,
    /// Twice an empty answer.
    Nothing,
    /// More than an answer can be.
    TooMuch,
    /// A page for people.
    WebPage,
    /// The connection broke.
    Broke,
    /// No connection to this host.
    Unreachable(String),
    /// Nothing listens at this address of our own machine; `true` where Ollama is expected.
    NotRunning(String, bool),
    /// No answer in time.
    Silent,
    /// The content filter said no.
    Filtered,
    /// An error with this status.
    Status(u16),
    /// Too many requests, or no free machine there.
    Rate,
    /// The key of this section was refused.
    Key(String, u16),
    /// The key of this section may not do this.
    Denied(String, u16),
    /// No money left.
    Money,
    /// No such model or address in this section.
    Missing(String, u16),
    /// Ollama has no such model yet.
    NotPulled(String),
}

/// The most characters of a detail.
const MOST: usize = 500;

impl Cause {
    pub(super) fn new(what: What) -> Self {
        Self { what, said: String::new(), request_id: None }
    }

    /// Nothing changes before a person does something: a key, money, a name.
    pub(super) fn needs_a_person(&self) -> bool {
        matches!(self.what, What::Key(..) | What::Denied(..) | What::Money | What::Missing(..) | What::NotPulled(_))
    }

    /// With the provider's words, which the caller cleaned.
    pub(super) fn saying(self, said: String) -> Self {
        Self { said, ..self }
    }

    /// With the provider's id of the request, unless one is known.
    pub(super) fn of_request(&mut self, id: Option<&str>) {
        if self.request_id.is_none() {
            self.request_id = id.map(str::to_owned);
        }
    }

    /// Takes the secrets out of the provider's words.
    pub(super) fn screen(&mut self, redactor: &Redactor) {
        redactor.clean(&mut self.said);
        if let Some(id) = &mut self.request_id {
            redactor.clean(id);
        }
    }

    /// For the person: what happened and what helps, without the provider's words.
    pub fn line(&self, lang: Lang) -> String {
        match &self.what {
            What::Words(words) => words.clone(),
            What::NoModel => lang::model_none(lang),
            What::Full => lang::model_busy(lang),
            What::Nothing => lang::model_nothing(lang),
            What::TooMuch => lang::model_too_much(lang),
            What::WebPage => lang::model_web_page(lang),
            What::Broke => lang::model_broke(lang),
            What::Unreachable(host) => lang::model_unreachable(lang, host),
            What::NotRunning(at, false) => lang::model_not_running(lang, at),
            What::NotRunning(at, true) => lang::model_ollama_not_running(lang, at),
            What::Silent => lang::model_silent(lang),
            What::Filtered => lang::model_filtered(lang),
            What::Status(status) => lang::model_status(lang, status),
            What::Rate => lang::model_rate(lang),
            What::Key(section, status) => lang::model_key(lang, section, status),
            What::Denied(section, status) => lang::model_denied(lang, section, status),
            What::Money => lang::model_money(lang),
            What::Missing(section, status) => lang::model_missing(lang, section, status),
            What::NotPulled(model) => lang::model_not_pulled(lang, model),
        }
    }

    /// For the trace, the log and `doctor`: the line, the provider's words and the request's id; at most 500 characters.
    pub fn detail(&self, lang: Lang) -> String {
        let mut text = self.line(lang);
        if !self.said.is_empty() {
            text = format!("{text}: {}", self.said);
        }
        let id = self.request_id.as_ref().map(|id| lang::model_request_id(lang, id)).unwrap_or_default();
        bounded(&text, MOST.saturating_sub(id.chars().count())) + &id
    }
}

impl From<String> for Cause {
    fn from(words: String) -> Self {
        Self::new(What::Words(words))
    }
}

impl From<&str> for Cause {
    fn from(words: &str) -> Self {
        Self::from(words.to_owned())
    }
}

/// The detail, in the language of the process.
impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.detail(Lang::current()))
    }
}

/// At most `most` characters.
pub(super) fn bounded(text: &str, most: usize) -> String {
    match text.char_indices().nth(most.saturating_sub(1)) {
        Some((at, _)) if text[at..].chars().nth(1).is_some() => format!("{}…", &text[..at]),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_person_gets_a_line_and_the_owner_the_words_and_the_id() {
        let mut cause = Cause::new(What::Money).saying("Insufficient Balance ".repeat(100));
        cause.of_request(Some("req-1"));
        cause.of_request(Some("req-2"));
        assert_eq!(cause.line(Lang::Zh), lang::model_money(Lang::Zh));
        assert!(!cause.line(Lang::En).contains("Insufficient"), "{}", cause.line(Lang::En));
        for lang in [Lang::En, Lang::Zh] {
            let detail = cause.detail(lang);
            assert!(detail.contains("Insufficient Balance") && detail.contains("req-1"), "{detail}");
            assert!(!detail.contains("req-2") && detail.chars().count() <= MOST, "{detail}");
        }
        assert_eq!(Cause::from("as it is").detail(Lang::Zh), "as it is");
        assert_eq!(Cause::from("as it is").line(Lang::Zh), "as it is");
    }
}
