//! The answer to `/context`: what the model was sent last, by size. Pure.

use serde_json::Value;

use crate::lang::{self, Lang};

/// What the journal says of the newest request (`args` of its step) in words; `messages` is how many the session has in all.
pub fn said(lang: Lang, request: Option<&Value>, messages: u64) -> String {
    let Some(sizes) = request.map(|request| &request["sizes"]).filter(|sizes| sizes.is_object()) else {
        return lang::context_nothing(lang);
    };
    let of = |name: &str| sizes[name].as_u64().unwrap_or(0);
    let sections = request.and_then(|request| request["prompt"].as_array()).into_iter().flatten();
    let mut sections: Vec<(&str, u64)> =
        sections.filter_map(|section| Some((section["name"].as_str()?, section["bytes"].as_u64()?))).collect();
    sections.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let largest: Vec<String> =
        sections.iter().take(5).map(|(name, bytes)| format!("{name} {}", kilobytes(*bytes))).collect();
    let mut text =
        lang::context(lang, kilobytes(of("of")), of("of").div_ceil(4), kilobytes(of("system")), kilobytes(of("tools")));
    text.push_str(&lang::context_conversation(lang, kilobytes(of("history")), of("messages"), messages));
    if !largest.is_empty() {
        text.push_str(&lang::context_largest(lang, lang.listed(largest)));
    }
    if let Some(same) = sizes["same"].as_u64().filter(|_| of("of") > 0) {
        text.push_str(&lang::context_same(lang, format!("{:.1}", same as f64 * 100.0 / of("of") as f64)));
    }
    text
}

fn kilobytes(bytes: u64) -> String {
    format!("{:.1} KB", bytes as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn sizes_are_told_in_words() {
        assert_eq!(said(Lang::En, None, 0), lang::context_nothing(Lang::En));
        assert_eq!(said(Lang::En, Some(&json!({ "messages": 2 })), 0), lang::context_nothing(Lang::En));
        let request = json!({
            "prompt": [{ "name": "rules", "bytes": 4_000 }, { "name": "AGENTS.md", "bytes": 5_000 }],
            "sizes": { "system": 9_000, "tools": 3_000, "history": 8_000, "messages": 12, "of": 20_000, "same": 19_500 },
        });
        let text = said(Lang::En, Some(&request), 40);
        for piece in [
            "20.0 KB",
            "5000 tokens",
            "9.0 KB",
            "3.0 KB",
            "8.0 KB",
            "12",
            "40",
            "AGENTS.md 5.0 KB, rules 4.0 KB",
            "97.5 %",
        ] {
            assert!(text.contains(piece), "{piece}: {text}");
        }
        assert!(said(Lang::Zh, Some(&request), 40).contains("97.5 %"));
    }
}
