//! A map that forgets its oldest entries: what is remembered of messages, within bounds.

use std::collections::{HashMap, VecDeque};

/// At most so many entries; the oldest go first.
#[derive(Debug)]
pub struct Recent<V> {
    most: usize,
    map: HashMap<String, V>,
    order: VecDeque<String>,
}

impl<V> Recent<V> {
    /// An empty one for `most` entries.
    pub fn holding(most: usize) -> Self {
        Self { most, map: HashMap::new(), order: VecDeque::new() }
    }

    /// Puts an entry in, or another value in its place.
    pub fn put(&mut self, key: &str, value: V) {
        if self.map.insert(key.to_owned(), value).is_none() {
            self.order.push_back(key.to_owned());
        }
        while self.map.len() > self.most {
            let Some(oldest) = self.order.pop_front() else { return };
            self.map.remove(&oldest);
        }
    }

    /// An entry.
    pub fn get(&self, key: &str) -> Option<&V> {
        self.map.get(key)
    }

    /// An entry, to be changed.
    pub fn get_mut(&mut self, key: &str) -> Option<&mut V> {
        self.map.get_mut(key)
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &str) -> Option<V> {
        let value = self.map.remove(key)?;
        self.order.retain(|other| other != key);
        Some(value)
    }

    /// The keys of the entries that fulfil a condition.
    pub fn keys_where(&self, condition: impl Fn(&V) -> bool) -> Vec<String> {
        self.map.iter().filter(|(_, value)| condition(value)).map(|(key, _)| key.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten() {
        let mut recent = Recent::holding(2);
        recent.put("a", 1);
        recent.put("b", 2);
        recent.put("a", 3);
        recent.put("c", 4);
        assert_eq!((recent.get("a"), recent.get("b"), recent.get("c")), (None, Some(&2), Some(&4)));
        assert_eq!(recent.remove("b"), Some(2));
        recent.put("d", 5);
        assert_eq!(recent.keys_where(|value| *value > 4), ["d"]);
        assert_eq!(recent.order.len(), 2);
    }
}
