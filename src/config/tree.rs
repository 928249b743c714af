//! A configuration file as a tree of values that know where they stand, and serde's view of it.
//!
//! The parser's own errors lose the place and the key as soon as a file goes through a plain value; this tree keeps both,
//! fills in `${NAME}`, and remembers which strings are secret.

use std::{
    fmt,
    ops::Range,
    path::{Path, PathBuf},
};

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, IntoDeserializer, MapAccess, SeqAccess, Unexpected, VariantAccess,
    Visitor,
};
use toml::de::{DeTable, DeValue};

use super::{
    env::{self, Env},
    finding::{Finding, Source, is_secret_name, line},
};

/// What stands behind a secret's key when its value is the name of a file that holds it.
pub const FROM_FILE: &str = "_file";
/// How deep tables and lists may nest. bad-inputs.md 7.
pub const MAX_DEPTH: usize = 64;

/// A value and where it stands.
#[derive(Clone, Debug)]
pub struct Node {
    /// The value.
    pub value: Value,
    /// Its bytes in the file.
    pub at: Range<usize>,
    /// The string came from `${NAME}`, which is how it may be shown; or its key names a secret, and it is not shown.
    pub hidden: Option<Hidden>,
}

/// Why a string is not shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hidden {
    /// It came from the environment; this is what the file says.
    Reference(String),
    /// It stands in the file and its key names a secret.
    Inline,
    /// It is the content of this file, which the key with `_file` behind it names.
    File(String),
}

/// A value.
#[derive(Clone)]
pub enum Value {
    /// Text.
    Str(String),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A date or time, as written.
    Time(String),
    /// A list.
    List(Vec<Node>),
    /// A table.
    Table(Table),
}

/// Kinds only: a string may be secret.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::List(items) => f.debug_list().entries(items).finish(),
            Self::Table(table) => table.fmt(f),
            other => f.write_str(other.kind()),
        }
    }
}

impl Value {
    fn kind(&self) -> &'static str {
        match self {
            Self::Str(_) => "string",
            Self::Int(_) => "integer",
            Self::Float(_) => "float",
            Self::Bool(_) => "boolean",
            Self::Time(_) => "time",
            Self::List(_) => "list",
            Self::Table(_) => "table",
        }
    }
}

/// The entries of a table, in the order of the file.
#[derive(Clone, Debug, Default)]
pub struct Table(pub Vec<Entry>);

/// One entry.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The key's bytes in the file.
    pub key_at: Range<usize>,
    /// The value.
    pub node: Node,
}

impl Table {
    /// The entry of that key.
    pub fn get(&self, key: &str) -> Option<&Entry> {
        self.0.iter().find(|entry| entry.key == key)
    }
}

impl Node {
    /// An empty table that stands nowhere.
    pub fn empty() -> Self {
        Self { value: Value::Table(Table::default()), at: 0..0, hidden: None }
    }

    /// The table, if it is one.
    pub fn table(&self) -> Option<&Table> {
        match &self.value {
            Value::Table(table) => Some(table),
            _ => None,
        }
    }

    /// The text, if it is one.
    pub fn str(&self) -> Option<&str> {
        match &self.value {
            Value::Str(text) => Some(text),
            _ => None,
        }
    }

    /// Whether it names a variable without a value.
    pub fn is_unset(&self) -> bool {
        let mut unset = false;
        self.strings(&mut |node, text| {
            unset |= matches!(&node.hidden, Some(Hidden::Reference(written)) if written == text);
        });
        unset
    }

    /// The plain value; with `masked`, secrets as `***` and references as written.
    pub fn to_toml(&self, masked: bool) -> toml::Value {
        match &self.value {
            Value::Str(_) if masked && self.hidden.is_some() => match &self.hidden {
                Some(Hidden::Reference(written)) => written.as_str().into(),
                _ => "***".into(),
            },
            Value::Str(text) if masked => super::finding::mask_address(text).into(),
            Value::Str(text) => text.as_str().into(),
            Value::Int(n) => (*n).into(),
            Value::Float(n) => (*n).into(),
            Value::Bool(b) => (*b).into(),
            Value::Time(text) => text.parse().map_or_else(|_| toml::Value::String(text.clone()), toml::Value::Datetime),
            Value::List(items) => toml::Value::Array(items.iter().map(|item| item.to_toml(masked)).collect()),
            Value::Table(table) => toml::Value::Table(
                table
                    .0
                    .iter()
                    .map(|entry| match &entry.node.hidden {
                        Some(Hidden::File(path)) if masked => {
                            (format!("{}{FROM_FILE}", entry.key), path.clone().into())
                        }
                        _ => (entry.key.clone(), entry.node.to_toml(masked)),
                    })
                    .collect(),
            ),
        }
    }

    /// Calls `see` with every string below.
    pub fn strings<'a>(&'a self, see: &mut impl FnMut(&'a Node, &'a str)) {
        match &self.value {
            Value::Str(text) => see(self, text),
            Value::List(items) => items.iter().for_each(|item| item.strings(see)),
            Value::Table(table) => table.0.iter().for_each(|entry| entry.node.strings(see)),
            _ => {}
        }
    }
}

/// Builds the tree: fills in references, trims what people paste around tokens, and collects what is wrong.
pub struct Build<'a> {
    /// The file.
    pub source: &'a Source,
    /// The environment.
    pub env: &'a Env,
    /// What paths are relative to.
    pub dir: &'a Path,
    /// The files that secrets were read from.
    pub files: Vec<PathBuf>,
    /// Errors.
    pub errors: Vec<Finding>,
    /// Warnings.
    pub warnings: Vec<Finding>,
}

impl Build<'_> {
    /// The whole file.
    pub fn root(&mut self, table: &DeTable<'_>) -> Node {
        let value = Value::Table(self.table(table, &mut Vec::new()));
        Node { value, at: 0..0, hidden: None }
    }

    fn table(&mut self, table: &DeTable<'_>, path: &mut Vec<String>) -> Table {
        let mut entries: Vec<Entry> = Vec::with_capacity(table.len());
        for (key, value) in table {
            let name = key.get_ref().to_string();
            path.push(name.clone());
            let from_file = name.strip_suffix(FROM_FILE).filter(|stem| is_secret_name(stem));
            let (name, node) = match (from_file, value.get_ref()) {
                (Some(stem), DeValue::String(file)) => {
                    if table.keys().any(|other| other.get_ref() == stem) {
                        let text = line!(config_secret_file_both, stem);
                        self.errors.push(self.source.finding(Some(key.span()), dotted(path), text));
                    }
                    (stem.to_owned(), self.secret_file(file, value.span(), path))
                }
                _ => {
                    let node = self.node(value.get_ref(), value.span(), path, &name);
                    (name, node)
                }
            };
            path.pop();
            entries.push(Entry { key: name, key_at: key.span(), node });
        }
        entries.sort_by_key(|entry| entry.key_at.start);
        Table(entries)
    }

    fn node(&mut self, value: &DeValue<'_>, at: Range<usize>, path: &mut Vec<String>, name: &str) -> Node {
        let key = dotted(path);
        if path.len() > MAX_DEPTH {
            if !self.errors.iter().any(|error| error.text == line!(config_too_deep, MAX_DEPTH)) {
                self.errors.push(self.source.finding(Some(at.clone()), "", line!(config_too_deep, MAX_DEPTH)));
            }
            return Node { value: Value::Bool(false), at, hidden: None };
        }
        let mut hidden = None;
        let value = match value {
            DeValue::String(text) => {
                let (text, why) = self.string(text, &at, &key, name);
                // What a skill is given has whatever name the skill wants: all but plain addresses is hidden.
                let is_skills = matches!(path.as_slice(), [skills, entries, _, env, _]
                    if skills == "skills" && entries == "entries" && env == "env");
                let inline = is_skills && crate::skills::variables::is_secret(&text);
                hidden = why.or(inline.then_some(Hidden::Inline));
                Value::Str(text)
            }
            DeValue::Integer(n) => match i64::from_str_radix(n.as_str(), n.radix()) {
                Ok(n) => Value::Int(n),
                Err(_) => {
                    self.errors.push(self.source.finding(Some(at.clone()), key, line!(config_number_too_large)));
                    Value::Int(0)
                }
            },
            DeValue::Float(n) => Value::Float(n.as_str().parse().unwrap_or(f64::NAN)),
            DeValue::Boolean(b) => Value::Bool(*b),
            DeValue::Datetime(time) => Value::Time(time.to_string()),
            DeValue::Array(items) => {
                let mut list = Vec::with_capacity(items.len());
                for (index, item) in items.iter().enumerate() {
                    path.push(index.to_string());
                    list.push(self.node(item.get_ref(), item.span(), path, name));
                    path.pop();
                }
                Value::List(list)
            }
            DeValue::Table(table) => Value::Table(self.table(table, path)),
        };
        Node { value, at, hidden }
    }

    /// The content of the file that a `…_file` key names: a secret, for the key without that ending.
    fn secret_file(&mut self, written: &str, at: Range<usize>, path: &[String]) -> Node {
        let key = dotted(path);
        let hidden = Some(Hidden::File(written.to_owned()));
        let none = Node { value: Value::Str(String::new()), at: at.clone(), hidden: hidden.clone() };
        let file = match env::expand(written, self.env) {
            Ok(filled) => super::placed(&filled, self.dir, self.env),
            Err(bad) => {
                let finding = self.source.finding(Some(at), key, bad.text).with_hint(line!(config_variable_hint));
                self.errors.push(finding);
                return none;
            }
        };
        let shown = super::finding::shown(&file);
        let (value, open) = match super::secret_of(&file) {
            Ok(read) => read,
            Err(why) => {
                let text = why.map(|why| format!("{shown}: {why}"));
                self.errors.push(self.source.finding(Some(at), key, text));
                return none;
            }
        };
        // systemd's own folder is for the service alone; the bits of a file in it show an access list's mask.
        let credentials = self.env.get(super::CREDENTIALS).filter(|folder| !folder.is_empty());
        let guarded = credentials.is_some_and(|folder| file.starts_with(folder));
        if let Some(mode) = open.filter(|_| !guarded && !self.env.insecure_perms) {
            let text = line!(config_secret_file_open, shown, format!("{mode:04o}"));
            let hint = line!(config_secret_file_open_hint, shown);
            self.errors.push(self.source.finding(Some(at), key, text).with_hint(hint));
            return none;
        }
        self.files.push(file);
        // A header's value is the whole of it: `Bearer …` belongs there.
        let value = if key.contains(".headers.") { value.trim() } else { trim_pasted(&value) };
        if value.chars().any(char::is_control) {
            self.errors.push(self.source.finding(Some(at.clone()), key, line!(config_control_character)));
        }
        Node { value: Value::Str(value.to_owned()), at, hidden }
    }

    fn string(&mut self, text: &str, at: &Range<usize>, key: &str, name: &str) -> (String, Option<Hidden>) {
        let filled = match env::expand(text, self.env) {
            Ok(filled) => filled,
            Err(bad) => {
                let written = self.source.text.get(at.clone()).and_then(|slice| slice.find(&bad.written));
                let place = written.map_or(at.clone(), |n| at.start + n..at.start + n + bad.written.len());
                self.errors
                    .push(self.source.finding(Some(place), key, bad.text).with_hint(line!(config_variable_hint)));
                return (text.to_owned(), Some(Hidden::Reference(text.to_owned())));
            }
        };
        let hidden = if filled != text && text.contains("${") && !text.contains("$${") {
            Some(Hidden::Reference(text.to_owned()))
        } else if is_secret_name(name) {
            Some(Hidden::Inline)
        } else {
            None
        };
        if !is_secret_name(name) {
            return (filled, hidden);
        }
        // A header's value is the whole of it: `Bearer …` belongs there.
        let trimmed = if key.contains(".headers.") { filled.trim() } else { trim_pasted(&filled) };
        if trimmed.chars().any(char::is_control) {
            self.errors.push(self.source.finding(Some(at.clone()), key, line!(config_control_character)));
        } else if trimmed.len() != filled.len() {
            self.warnings.push(self.source.finding(Some(at.clone()), key, line!(config_token_trimmed)));
        }
        (trimmed.to_owned(), hidden)
    }
}

/// Takes off what is pasted around a token: blanks and line ends, quotes, `Bearer `.
fn trim_pasted(text: &str) -> &str {
    let mut text = text.trim();
    // Twice: there are quotes around `Bearer …` and after it.
    for _ in 0..2 {
        for (open, close) in [('"', '"'), ('\'', '\''), ('“', '”'), ('‘', '’'), ('`', '`')] {
            if let Some(inner) = text.strip_prefix(open).and_then(|rest| rest.strip_suffix(close)) {
                text = inner.trim();
            }
        }
        if text.get(..7).is_some_and(|prefix| prefix.eq_ignore_ascii_case("bearer ")) {
            text = text[7..].trim();
        }
    }
    text
}

/// A path as a person writes it, with quotes where a key needs them.
pub fn dotted(path: &[String]) -> String {
    let bare = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_alphanumeric() || "_-".contains(c));
    let parts: Vec<String> =
        path.iter().map(|part| if bare(part) { part.clone() } else { format!("{part:?}") }).collect();
    parts.join(".")
}

/// What a section does not accept.
#[derive(Clone, Debug)]
pub struct Mistake {
    /// What kind.
    pub kind: MistakeKind,
    /// Where.
    pub at: Option<Range<usize>>,
    /// The key, from the section's root.
    pub path: Vec<String>,
}

/// Kinds of [`Mistake`]. None carries a value: it may be secret.
#[derive(Clone, Debug, PartialEq)]
pub enum MistakeKind {
    /// There is no such key; those that are.
    UnknownKey(String, &'static [&'static str]),
    /// Another word is expected; those that are known.
    UnknownWord(&'static [&'static str]),
    /// Another type or range: what was expected, in serde's words.
    Expected(String),
    /// A key is missing.
    Missing(&'static str),
    /// A section's own words.
    Other(String),
}

impl Mistake {
    fn of(kind: MistakeKind) -> Self {
        Self { kind, at: None, path: Vec::new() }
    }

    /// Inside `key`, which stands at `at`.
    fn within(mut self, key: &str, at: &Range<usize>) -> Self {
        self.path.insert(0, key.to_owned());
        self.at.get_or_insert_with(|| at.clone());
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}", dotted(&self.path), self.kind)
    }
}

impl std::error::Error for Mistake {}

impl de::Error for Mistake {
    fn custom<T: fmt::Display>(text: T) -> Self {
        Self::of(MistakeKind::Other(text.to_string()))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::of(MistakeKind::Expected(expected.to_string()))
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        Self::of(MistakeKind::Expected(expected.to_string()))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        Self::of(MistakeKind::UnknownWord(expected))
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::of(MistakeKind::UnknownKey(field.to_owned(), expected))
    }

    fn missing_field(field: &'static str) -> Self {
        Self::of(MistakeKind::Missing(field))
    }
}

impl<'de> Deserializer<'de> for &'de Node {
    type Error = Mistake;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        match &self.value {
            Value::Str(text) | Value::Time(text) => visitor.visit_borrowed_str(text),
            Value::Int(n) => visitor.visit_i64(*n),
            Value::Float(n) => visitor.visit_f64(*n),
            Value::Bool(b) => visitor.visit_bool(*b),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter().enumerate() }),
            Value::Table(table) => visitor.visit_map(Entries { entries: table.0.iter(), next: None }),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Mistake> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Mistake> {
        match &self.value {
            Value::Str(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            Value::Table(table) if table.0.len() == 1 => visitor.visit_enum(Variant(&table.0[0])),
            _ => Err(Mistake::of(MistakeKind::UnknownWord(variants))),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct identifier ignored_any
    }
}

struct Items<'de> {
    items: std::iter::Enumerate<std::slice::Iter<'de, Node>>,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = Mistake;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Mistake> {
        let Some((index, item)) = self.items.next() else { return Ok(None) };
        seed.deserialize(item).map(Some).map_err(|mistake| mistake.within(&index.to_string(), &item.at))
    }
}

struct Entries<'de> {
    entries: std::slice::Iter<'de, Entry>,
    next: Option<&'de Entry>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = Mistake;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Mistake> {
        self.next = self.entries.next();
        let Some(entry) = self.next else { return Ok(None) };
        let key: de::value::BorrowedStrDeserializer<'de, Mistake> = de::value::BorrowedStrDeserializer::new(&entry.key);
        seed.deserialize(key).map(Some).map_err(|mistake| mistake.within(&entry.key, &entry.key_at))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Mistake> {
        let entry = self.next.take().ok_or_else(|| de::Error::custom("a value was asked for before its key"))?;
        // A table's span is its header or its first key: the key says better where it is.
        let at = if matches!(entry.node.value, Value::Table(_)) { &entry.key_at } else { &entry.node.at };
        seed.deserialize(&entry.node).map_err(|mistake| mistake.within(&entry.key, at))
    }
}

struct Variant<'de>(&'de Entry);

impl<'de> EnumAccess<'de> for Variant<'de> {
    type Error = Mistake;
    type Variant = &'de Node;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, &'de Node), Mistake> {
        let key: de::value::BorrowedStrDeserializer<'de, Mistake> =
            de::value::BorrowedStrDeserializer::new(&self.0.key);
        let variant = seed.deserialize(key).map_err(|mistake| mistake.within(&self.0.key, &self.0.key_at))?;
        Ok((variant, &self.0.node))
    }
}

impl<'de> VariantAccess<'de> for &'de Node {
    type Error = Mistake;

    fn unit_variant(self) -> Result<(), Mistake> {
        Err(Mistake::of(MistakeKind::Expected("a string".into())))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Mistake> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Mistake> {
        self.deserialize_any(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, _: &'static [&'static str], visitor: V) -> Result<V::Value, Mistake> {
        self.deserialize_any(visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pasted_tokens_are_trimmed() {
        for text in [
            "abc",
            " abc\n",
            "\"abc\"",
            "'abc' ",
            "Bearer abc",
            "bearer  abc\n",
            "“abc”",
            "\"Bearer abc\"",
            "Bearer 'abc'",
        ] {
            assert_eq!(trim_pasted(text), "abc", "{text:?}");
        }
        assert_eq!(trim_pasted("a\"b"), "a\"b");
        assert_eq!(trim_pasted("\""), "\"");
        assert_eq!(trim_pasted("你好吗"), "你好吗");
    }
}
