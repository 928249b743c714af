//! From hits to what is shown: by words and by vectors, put together, the newest day first among equals. Pure.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
};

use super::words::{self, day_of};
use crate::store::note::PassageHit;

/// The most passages of one note among the results: the other notes want to be seen too.
const MOST_OF_ONE_NOTE: usize = 3;
/// A passage that scores less than this part of the best one has met a word by chance.
const LEAST_OF_BEST: f64 = 0.25;
/// Passages are as good as each other when their scores, in these parts of the best one's, are the same.
const GRADES: f64 = 20.0;
/// What the vectors' word weighs, of 1; the rest is the words'. docs/benchmarks.md has the measurement.
pub const NEAR_WEIGHT: f64 = 0.5;
/// A cosine below this says nothing.
const LEAST_COSINE: f64 = 0.2;

/// A passage with what it is worth, 1 being the best of its search.
#[derive(Clone, Debug, PartialEq)]
pub struct Ranked {
    /// The passage.
    pub hit: PassageHit,
    /// From 0 to 1.
    pub worth: f64,
}

/// Puts the two lists together: each score as a part of the best of its list, weighed. Without vectors the words decide
/// alone.
pub fn fuse(words: Vec<PassageHit>, near: Vec<PassageHit>, near_weight: f64) -> Vec<Ranked> {
    let near_weight = if near.is_empty() { 0.0 } else { near_weight };
    let parts = |hits: &[PassageHit], floor: f64| -> HashMap<i64, f64> {
        let best = hits.iter().map(|hit| hit.score).fold(floor, f64::max);
        let part = |score: f64| if best > floor { ((score - floor) / (best - floor)).max(0.0) } else { 0.0 };
        hits.iter().map(|hit| (hit.id, part(hit.score))).collect()
    };
    let (by_words, by_near) = (parts(&words, 0.0), parts(&near, LEAST_COSINE));
    let mut all: BTreeMap<i64, PassageHit> = words.into_iter().map(|hit| (hit.id, hit)).collect();
    for hit in near {
        all.entry(hit.id).or_insert(hit);
    }
    let worth = |id: &i64| {
        let part = |parts: &HashMap<i64, f64>| parts.get(id).copied().unwrap_or(0.0);
        (1.0 - near_weight) * part(&by_words) + near_weight * part(&by_near)
    };
    all.into_values().map(|hit| Ranked { worth: worth(&hit.id), hit }).collect()
}

/// Weighs hits by words anew where they are all there are. SQLite's BM25 gives a word that stands in half the passages no
/// weight at all, and in a small memory most words do: there, a lone `22` of the time would beat what was asked for.
pub fn weigh_few(hits: &mut [PassageHit], query: &[String], notes: usize) {
    let all = notes.max(hits.len()) as f64;
    let texts: Vec<Vec<String>> = hits
        .iter()
        .map(|hit| {
            let words = words::of_text(&format!("{}\n{}", hit.path, hit.text));
            words.split(' ').map(str::to_owned).collect()
        })
        .collect();
    let average = texts.iter().map(Vec::len).sum::<usize>() as f64 / texts.len().max(1) as f64;
    for word in query {
        let is_it = |other: &&String| match word.strip_suffix('*') {
            Some(beginning) => other.starts_with(beginning),
            None => *other == word,
        };
        let times: Vec<f64> = texts.iter().map(|text| text.iter().filter(is_it).count() as f64).collect();
        let with = times.iter().filter(|times| **times > 0.0).count() as f64;
        // Robertson's weight in the form that never falls below nought; k1 = 1.2 and b = 0.75 as SQLite has them.
        let rare = (1.0 + (all - with + 0.5) / (with + 0.5)).ln();
        for ((hit, text), times) in hits.iter_mut().zip(&texts).zip(&times) {
            hit.score += rare * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * text.len() as f64 / average));
        }
    }
}

/// The best first: what met by chance is left out, the newest day wins a tie, and no note fills the list.
pub fn order(mut found: Vec<Ranked>) -> Vec<Ranked> {
    let best = found.iter().map(|ranked| ranked.worth).fold(0.0, f64::max);
    found.retain(|ranked| ranked.worth > 0.0 && ranked.worth >= best * LEAST_OF_BEST);
    found.sort_by_cached_key(|Ranked { hit, worth }| {
        let grade = (worth / best * GRADES).round() as u32;
        (Reverse(grade), Reverse(day_of(&hit.path).map(str::to_owned)), hit.path.clone(), hit.lines, hit.id)
    });
    let mut of_note: HashMap<String, usize> = HashMap::new();
    found.retain(|ranked| {
        let seen = of_note.entry(ranked.hit.path.clone()).or_default();
        *seen += 1;
        *seen <= MOST_OF_ONE_NOTE
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hit(id: i64, path: &str, score: f64) -> PassageHit {
        PassageHit { id, path: path.to_owned(), lines: (1, 1), text: String::new(), score }
    }

    fn ids(ranked: Vec<Ranked>) -> Vec<i64> {
        ranked.into_iter().map(|ranked| ranked.hit.id).collect()
    }

    #[test]
    fn the_newest_day_wins_a_tie() {
        let same = vec![
            hit(1, "memory/2026-01-01.md", 2.0),
            hit(2, "memory/2026-02-01.md", 2.0),
            hit(3, "memory/b.md", 2.0),
            hit(4, "memory/c.md", 0.4),
        ];
        assert_eq!(ids(order(fuse(same, vec![], NEAR_WEIGHT))), [2, 1, 3]);
    }

    #[test]
    fn in_a_small_memory_the_word_that_is_asked_for_beats_one_that_met_by_chance() {
        let hit = |id, path: &str, text: &str, score| PassageHit { text: text.into(), ..hit(id, path, score) };
        // As SQLite has them: of four passages, two hold the password.
        let mut hits = vec![
            hit(1, "memory/2026-03-22-a.md", "2026 年 3 月 22 日修复", 0.9),
            hit(2, "memory/2026-11-30.md", "- the password is swordfish", 0.000_004),
        ];
        let query = words::of_question("what is the password? time: Mon 2026-11-30 22:39");
        weigh_few(&mut hits, &query, 4);
        assert_eq!(ids(order(fuse(hits, vec![], NEAR_WEIGHT)))[0], 2);
    }

    #[test]
    fn a_note_that_says_it_everywhere_does_not_fill_the_list() {
        let mut hits: Vec<PassageHit> = (0..9).map(|id| hit(id, "a.md", 3.0)).collect();
        hits.push(hit(9, "b.md", 2.0));
        assert_eq!(ids(order(fuse(hits, vec![], NEAR_WEIGHT))), [0, 1, 2, 9]);
    }

    #[test]
    fn both_lists_count_and_either_alone_finds() {
        let words = vec![hit(1, "a.md", 8.0), hit(2, "b.md", 4.0)];
        let near = vec![hit(2, "b.md", 0.9), hit(3, "c.md", 0.8), hit(4, "d.md", 0.1)];
        assert_eq!(ids(order(fuse(words.clone(), near.clone(), 0.5))), [2, 1, 3]);
        assert_eq!(ids(order(fuse(vec![], near, 0.5))), [2, 3]);
        assert_eq!(ids(order(fuse(words, vec![], 0.5))), [1, 2]);
        assert_eq!(ids(order(fuse(vec![], vec![], 0.5))), [0i64; 0]);
    }
}
