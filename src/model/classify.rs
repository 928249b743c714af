//! What a provider's refusal means, from its status and its words. Pure.
//!
//! The words are those providers are known to use, in lower case; a status decides where no word does.

use std::borrow::Cow;

/// What to do about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    /// Shorten the request.
    TooLong,
    /// Rebuild the order of messages.
    Order,
    /// The content filter said no.
    Refused,
    /// The key is wrong.
    Key,
    /// The key or the account may not do this: a model that was not activated, a region, a permission.
    Denied,
    /// No money left.
    Money,
    /// No such model or address.
    Missing,
    /// The request is wrong in another way.
    Wrong,
    /// Too many requests: wait and ask again.
    Busy,
    /// The provider is ill: ask again, and count it.
    Ill,
}

const TOO_LONG: &[&str] = &[
    "context_length_exceeded",
    "context length",
    "context window",
    "context size",
    "exceed_context_size",
    "maximum context",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input too long",
    "too many tokens",
    "range of input length",
    "reduce the length",
    "max_prompt_tokens",
    "input length",
    "input token count",
    "maximum prompt length",
    "exceeds the maximum number of tokens",
    "request_too_large",
    // Moonshot
    "exceeded model token limit",
    "input token length too long",
    // SiliconFlow
    "must be less than max_seq_len",
    // Volcengine Ark
    "exceed max message tokens",
    // Zhipu
    "prompt 超长",
    "prompt超长",
    "上下文长度",
    "输入过长",
];

const ORDER: &[&str] = &[
    "must be a response to a prec",
    "must be followed by tool messages",
    "did not have response messages",
    "insufficient tool messages",
    "without a preceding",
    "tool_use` ids were found without",
    "unexpected `tool_use_id`",
    "unexpected tool_use_id",
    "tool_call_id is not found",
    "tool_call_id not found",
    "tool call id is not found",
    "roles must alternate",
    "unexpected role",
    "not the same number of function calls and responses",
    "number of function response parts",
    "function call turn comes immediately after",
    "expected last role",
    // Anthropic's, about thinking that has no place any more.
    "expected `thinking`",
    "`signature` in `thinking`",
];

const REFUSED: &[&str] = &[
    "content_filter",
    "content filter",
    "content_policy",
    "content policy",
    "content management policy",
    "responsibleaipolicy",
    "data_inspection_failed",
    "datainspectionfailed",
    "inappropriate content",
    "content exists risk",
    "considered high risk",
    "sensitive content",
    "prohibited_content",
    "不安全或敏感内容",
    "敏感内容",
    // Zhipu, MiniMax, Volcengine Ark, OpenRouter
    "unsafe or sensitive",
    "new_sensitive",
    "sensitivecontentdetected",
    "sensitive information",
    "input was flagged",
    "requires moderation",
];

/// The account is empty, whoever says so.
const OWED: &[&str] = &[
    "insufficient balance",
    "insufficient_balance",
    "balance is insufficient",
    "balance not enough",
    "insufficient credit",
    "credit balance is too low",
    "requires more credits",
    "insufficient_user_quota",
    "exceeded_current_quota",
    "arrearage",
    "in arrears",
    "in good standing",
    "overdue",
    "freetieronly",
    "free tier of the model has been exhausted",
    "payment required",
    "余额不足",
    "欠费",
    "额度不足",
];

/// The account is empty, or, at some providers, the minute's tokens are used up.
const QUOTA: &[&str] = &["insufficient_quota", "exceeded your current quota", "billing"];

const BUSY: &[&str] =
    &["rate limit", "rate_limit", "ratelimit", "too many requests", "throttling", "tokens per min", "limit_requests"];

const KEY: &[&str] =
    &["invalid_api_key", "invalid api key", "incorrect api key", "invalidapikey", "authentication_error", "login fail"];

const DENIED: &[&str] = &[
    "access to model denied",
    "model access denied",
    "accessdenied",
    "access_denied",
    "unsupported_country",
    "permission_error",
];

const MISSING: &[&str] = &[
    "model_not_found",
    "model not found",
    "model does not exist",
    "no such model",
    "not_found_error",
    "modelnotopen",
    "invalidendpointormodel",
    "模型不存在",
];

const WRONG: &[&str] = &["invalid_request_error", "invalid_parameter", "invalidparameter", "bad_request"];

/// What a refusal means. `status` is 200 for an error inside an answer that says no status of its own; `quota_is_rate` as
/// in [`super::quirks::Quirks`].
pub(super) fn classify(status: u16, text: &str, quota_is_rate: bool) -> Class {
    let text: String = text.chars().take(8_000).collect::<String>().to_lowercase();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let money = says(OWED) || (!quota_is_rate && says(QUOTA));
    match status {
        401 => return Class::Key,
        402 => return Class::Money,
        429 => return if money { Class::Money } else { Class::Busy },
        413 => return Class::TooLong,
        _ => {}
    }
    if says(TOO_LONG) {
        Class::TooLong
    } else if says(ORDER) {
        Class::Order
    } else if says(REFUSED) {
        Class::Refused
    } else if money && status < 500 {
        Class::Money
    } else {
        match status {
            403 if says(KEY) => Class::Key,
            403 => Class::Denied,
            404 | 300..=399 => Class::Missing,
            408 | 409 => Class::Busy,
            500..=599 => Class::Ill,
            400..=499 if says(KEY) => Class::Key,
            400..=499 if says(MISSING) => Class::Missing,
            400..=499 if says(DENIED) => Class::Denied,
            400..=499 if says(BUSY) => Class::Busy,
            400..=499 => Class::Wrong,
            _ if says(BUSY) || says(QUOTA) => Class::Busy,
            _ if says(KEY) => Class::Key,
            _ if says(MISSING) => Class::Missing,
            _ if says(DENIED) => Class::Denied,
            _ if says(WRONG) => Class::Wrong,
            _ => Class::Ill,
        }
    }
}

/// A provider's words fit for a person: one line, nothing from a web page, no half of a key.
pub(super) fn plain(text: &str) -> Cow<'_, str> {
    let mut line = String::new();
    for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty()) {
        if line.len() > 4_000 {
            break;
        }
        // From the first tag on it is a page, whatever stood before it.
        let tag = word.match_indices('<').find(|(at, _)| {
            // Moonshot writes the key's own id as `<ak-…>`.
            let after = &word[at + 1..];
            let tag = |c: char| c.is_ascii_alphabetic() || matches!(c, '!' | '/' | '?');
            !after.starts_with("ak-") && after.chars().next().is_some_and(tag)
        });
        let kept = tag.map_or(word, |(at, _)| &word[..at]);
        if !kept.is_empty() {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(if looks_like_a_key(kept) { crate::secrets::REDACTED } else { kept });
        }
        if tag.is_some() {
            break;
        }
    }
    Cow::Owned(line)
}

/// `sk-…` and masked keys (`abcd****wxyz`).
fn looks_like_a_key(word: &str) -> bool {
    let word = word.trim_start_matches(|c: char| !c.is_alphanumeric());
    (["sk-", "pk-", "sk_", "gsk_"].iter().any(|start| word.starts_with(start)) && word.len() >= 8)
        || word.contains("***")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_and_words_decide_what_happens_next() {
        let cases = [
            (400, "This model's maximum context length is 8192 tokens", Class::TooLong),
            (400, "the request exceeds the available context size", Class::TooLong),
            (400, "Range of input length should be [1, 30720]", Class::TooLong),
            (413, "", Class::TooLong),
            (500, "context_length_exceeded", Class::TooLong),
            (
                400,
                "messages with role \"tool\" must be a response to a preceeding message with \"tool_calls\".",
                Class::Order,
            ),
            (
                400,
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each",
                Class::Order,
            ),
            (400, "Conversation roles must alternate user/assistant", Class::Order),
            (400, "Input data may contain inappropriate content. (data_inspection_failed)", Class::Refused),
            (400, "Content Exists Risk", Class::Refused),
            (401, "anything", Class::Key),
            (403, "forbidden", Class::Denied),
            (402, "Insufficient Balance", Class::Money),
            (429, "You exceeded your current quota (insufficient_quota)", Class::Money),
            (429, "Rate limit: context length of tokens per minute", Class::Busy),
            (404, "no such route", Class::Missing),
            (302, "", Class::Missing),
            (400, "The model `x` does not exist (model_not_found)", Class::Missing),
            (400, "temperature must be below 2", Class::Wrong),
            (422, "field required", Class::Wrong),
            (408, "", Class::Busy),
            (409, "", Class::Busy),
            (500, "", Class::Ill),
            (529, "overloaded_error", Class::Ill),
            (400, "invalid_request_error Your credit balance is too low to access the API.", Class::Money),
            (
                400,
                "messages.1.content.0.type: Expected `thinking` or `redacted_thinking`, but found `text`",
                Class::Order,
            ),
            (400, "messages.3.content.0: Invalid `signature` in `thinking` block", Class::Order),
            (400, "invalid_request_error prompt is too long: 212000 tokens > 200000 maximum", Class::TooLong),
            (200, "permission_error no", Class::Denied),
            (200, "rate_limit_exceeded", Class::Busy),
            (200, "invalid_api_key", Class::Key),
            (200, "invalid_request_error", Class::Wrong),
            (200, "server had an error", Class::Ill),
        ];
        for (status, text, expected) in cases {
            assert_eq!(classify(status, text, false), expected, "{status} {text}");
        }
    }

    #[test]
    fn a_page_or_half_a_key_is_never_shown() {
        assert_eq!(plain("Bad  gateway\n\t<html><body>x</body>"), "Bad gateway");
        assert_eq!(plain("<!DOCTYPE html><p>hi"), "");
        assert_eq!(plain("oops<br>more"), "oops");
        assert_eq!(plain("5 < 6 and a<1"), "5 < 6 and a<1");
        assert_eq!(
            plain("Incorrect API key provided: sk-proj-12345678. See x"),
            "Incorrect API key provided: [redacted] See x"
        );
        assert_eq!(plain("key abcd****wxyz\0"), "key [redacted]");
    }
}
