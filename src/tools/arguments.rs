//! Turns what a model wrote as arguments into checked values, or into an error it can act on. Pure.
//!
//! Strict JSON first. What is no JSON goes through one lenient reading that allows the repairs of [`Repair`] and no
//! others; it never invents: a text that ends too early is [`ArgumentError::Cut`] and is not run. Then aliases get their
//! names and the tool's schema decides. Source: design.md §6, bad-inputs 51–55.

use std::fmt;

use jsonschema::{PatternOptions, ValidationError, Validator, error::ValidationErrorKind};
use serde::de::DeserializeOwned;
use serde_json::{Map, Number, Value};

use super::{ToolError, names, names::Renamed};

/// Longer arguments are refused: the largest file that can be written, with its escapes, fits.
const LONGEST: usize = 24 * 1024 * 1024;
/// Deeper nesting is refused.
const DEEPEST: usize = 64;
/// Faults that are told at once.
const MOST_FAULTS: usize = 6;

/// Arguments that may be run.
#[derive(Clone, Debug, PartialEq)]
pub struct Prepared {
    /// They satisfy the schema.
    pub args: Value,
    /// What was repaired, in the order it was met; empty for arguments that came clean.
    pub repairs: Vec<Repair>,
}

/// One kind of repair: the whole list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Nothing, `null` or `""` for a tool that needs no argument became `{}`.
    Nothing,
    /// Text before the object was left out.
    Noise,
    /// The code fence around the object was left out.
    CodeFence,
    /// Special tokens, or other text after the object, were left out.
    Trailing,
    /// The object came as a string of JSON and was decoded once.
    DoubleEncoded,
    /// Comments were left out: `//`, `/* */`, `#`.
    Comments,
    /// A comma before a closing bracket was left out.
    TrailingComma,
    /// Strings stood in single quotes.
    SingleQuotes,
    /// Strings stood in typographic quotes, or full-width `：` and `，` separated them.
    SmartQuotes,
    /// Keys stood without quotes.
    UnquotedKeys,
    /// `None`, `True`, `False`.
    PythonLiterals,
    /// Raw line breaks and other control characters inside strings were taken as they are.
    RawControls,
    /// Escapes that JSON does not know (`\d`, `\'`, half a surrogate pair) were taken literally, or as U+FFFD.
    Escapes,
    /// All arguments stood inside one key such as `arguments`, alone or beside the tool's name.
    Wrapped,
    /// An argument went by another name.
    Renamed(Renamed),
    /// A value of that argument came in another type (`"10"` for 10) and meant the right one.
    Converted(String),
    /// An optional argument came as `null` or `""` and was left out.
    Omitted(String),
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Nothing => "nothing taken as {}",
            Self::Noise => "text before the object",
            Self::CodeFence => "code fence",
            Self::Trailing => "text after the object",
            Self::DoubleEncoded => "double encoding",
            Self::Comments => "comments",
            Self::TrailingComma => "trailing comma",
            Self::SingleQuotes => "single quotes",
            Self::SmartQuotes => "smart quotes",
            Self::UnquotedKeys => "unquoted keys",
            Self::PythonLiterals => "Python literals",
            Self::RawControls => "raw control characters",
            Self::Escapes => "unknown escapes",
            Self::Wrapped => "wrapped arguments",
            Self::Renamed(Renamed { from, to }) => return write!(f, "{from} taken as {to}"),
            Self::Converted(name) => return write!(f, "type of {name}"),
            Self::Omitted(name) => return write!(f, "empty {name} left out"),
        })
    }
}

/// Why arguments are not run. Shows as the text for the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ArgumentError {
    /// They end in the middle: never run. With a `length` finish the caller may ask for a longer answer.
    Cut,
    /// They cannot be read even leniently.
    Unreadable {
        /// What was wrong and where.
        why: String,
        /// What the tool takes, in a line.
        takes: String,
    },
    /// They are read but are not what the schema asks for.
    Unfit {
        /// Each fault.
        faults: Vec<Fault>,
        /// What the tool takes, in a line.
        takes: String,
    },
}

/// One place where arguments differ from their schema.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// JSON pointer, empty for the whole.
    pub pointer: String,
    /// What the schema asks for.
    pub expected: String,
    /// What was there.
    pub got: String,
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cut => f.write_str(
                "The arguments were cut off before their end, so the call was not run. Send the whole call again; when \
                 the content is long, split it over several calls.",
            ),
            Self::Unreadable { why, takes } => {
                write!(f, "The arguments are no JSON object: {why}. The call was not run. Arguments: {takes}.")
            }
            Self::Unfit { faults, takes } => {
                f.write_str("The arguments do not fit, so the call was not run:\n")?;
                for Fault { pointer, expected, got } in faults {
                    let pointer = if pointer.is_empty() { "(the whole)" } else { pointer };
                    writeln!(f, "- {pointer}: expected {expected}, got {got}")?;
                }
                write!(f, "Arguments: {takes}.")
            }
        }
    }
}

impl std::error::Error for ArgumentError {}

/// The checked way into one tool: its schema, compiled once.
#[derive(Debug)]
pub struct Checker {
    tool: String,
    schema: Value,
    validator: Validator,
}

impl Checker {
    /// Compiles the schema of the tool of that name.
    ///
    /// # Errors
    /// What is wrong with the schema, in a sentence.
    pub fn new(tool: &str, schema: &Value) -> Result<Self, String> {
        let validator = jsonschema::options()
            .with_pattern_options(PatternOptions::regex().size_limit(1024 * 1024))
            .build(schema)
            .map_err(|error| format!("the schema of `{tool}` is invalid: {}", short(&error.to_string(), 300)))?;
        Ok(Self { tool: tool.to_owned(), schema: schema.clone(), validator })
    }

    /// Arguments as the model wrote them, read, repaired and checked.
    ///
    /// # Errors
    /// [`ArgumentError`], whose text is for the model.
    pub fn prepare(&self, written: &str) -> Result<Prepared, ArgumentError> {
        let (mut args, mut repairs) = match parse(written) {
            Ok(read) => read,
            Err(Unread::Cut) => return Err(ArgumentError::Cut),
            Err(Unread::Nothing) if self.needs_nothing() => (Map::new(), vec![Repair::Nothing]),
            Err(Unread::Nothing) => return Err(self.unreadable("there are none".to_owned())),
            Err(Unread::Fault(why)) => return Err(self.unreadable(why)),
        };
        self.fit(&mut args, &mut repairs);
        let args = Value::Object(args);
        let faults: Vec<Fault> = self.validator.iter_errors(&args).flat_map(|error| self.faults(&error)).collect();
        if faults.is_empty() {
            return Ok(Prepared { args, repairs });
        }
        let faults = faults.into_iter().take(MOST_FAULTS).collect();
        Err(ArgumentError::Unfit { faults, takes: self.takes() })
    }

    fn unreadable(&self, why: String) -> ArgumentError {
        ArgumentError::Unreadable { why, takes: self.takes() }
    }

    fn properties(&self) -> Option<&Map<String, Value>> {
        self.schema.get("properties").and_then(Value::as_object)
    }

    fn is_required(&self, property: &str) -> bool {
        let required = self.schema.get("required").and_then(Value::as_array);
        required.is_some_and(|required| required.iter().any(|name| name == property))
    }

    fn needs_nothing(&self) -> bool {
        self.schema.get("required").and_then(Value::as_array).is_none_or(Vec::is_empty)
    }

    /// Unwraps, renames and converts what is plainly meant; all else is left for the schema to refuse.
    fn fit(&self, args: &mut Map<String, Value>, repairs: &mut Vec<Repair>) {
        let Some(properties) = self.properties() else { return };
        let label = |key: &str| matches!(key, "name" | "tool" | "function") && !properties.contains_key(key);
        let wrapper = ["arguments", "parameters", "params", "args", "input"].into_iter().find(|key| {
            args.get(*key).is_some_and(Value::is_object)
                && !properties.contains_key(*key)
                && args.iter().all(|(other, value)| other == key || (label(other) && value.is_string()))
        });
        if let Some(Value::Object(inner)) = wrapper.and_then(|key| args.remove(key)) {
            *args = inner;
            repairs.push(Repair::Wrapped);
        }
        repairs.extend(names::rename_arguments(&self.tool, properties, args).into_iter().map(Repair::Renamed));
        for (name, schema) in properties {
            let (Some(value), types) = (args.get(name), types(schema)) else { continue };
            if types.is_empty() || types.iter().any(|kind| is_exactly(value, kind)) {
                continue;
            }
            let empty = value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty());
            if empty && !self.is_required(name) {
                args.remove(name);
                repairs.push(Repair::Omitted(name.clone()));
            } else if let Some(converted) = types.iter().find_map(|kind| converted(value, kind)) {
                args.insert(name.clone(), converted);
                repairs.push(Repair::Converted(name.clone()));
            }
        }
    }

    /// What the tool takes: `path (string), offset (integer, optional)`.
    fn takes(&self) -> String {
        let Some(properties) = self.properties().filter(|properties| !properties.is_empty()) else {
            return "none, `{}`".to_owned();
        };
        let kind = |schema: &Value| match types(schema).as_slice() {
            [] => "any".to_owned(),
            types => types.join(" or "),
        };
        let mut shown: Vec<(bool, String)> = properties
            .iter()
            .map(|(name, schema)| {
                let optional = !self.is_required(name);
                (optional, format!("{name} ({}{})", kind(schema), if optional { ", optional" } else { "" }))
            })
            .collect();
        shown.sort();
        let shown: Vec<_> = shown.into_iter().map(|(_, text)| text).collect();
        short(&shown.join(", "), 800)
    }

    fn faults(&self, error: &ValidationError<'_>) -> Vec<Fault> {
        let at = error.instance_path().to_string();
        let inner = |name: &str| format!("{at}/{}", name.replace('~', "~0").replace('/', "~1"));
        let got = got(error.instance());
        let one = |expected: String| vec![Fault { pointer: at.clone(), expected, got: got.clone() }];
        match error.kind() {
            ValidationErrorKind::Required { property } => {
                let name = property.as_str().unwrap_or_default();
                let schema = self.properties().filter(|_| at.is_empty()).and_then(|all| all.get(name));
                let kind = schema.map(|schema| types(schema).join(" or ")).filter(|kind| !kind.is_empty());
                let expected = format!("{} (required)", kind.unwrap_or_else(|| "a value".to_owned()));
                vec![Fault { pointer: inner(name), expected, got: "nothing".to_owned() }]
            }
            ValidationErrorKind::AdditionalProperties { unexpected } => unexpected
                .iter()
                .take(MOST_FAULTS)
                .map(|name| Fault {
                    pointer: short(&inner(name), 100),
                    expected: "no such argument".to_owned(),
                    got: "one".to_owned(),
                })
                .collect(),
            ValidationErrorKind::Type { kind } => one(match kind {
                jsonschema::error::TypeKind::Single(kind) => kind.to_string(),
                jsonschema::error::TypeKind::Multiple(kinds) => {
                    kinds.iter().map(|kind| kind.to_string()).collect::<Vec<_>>().join(" or ")
                }
            }),
            ValidationErrorKind::Enum { options } => one(format!("one of {}", short(&options.to_string(), 300))),
            ValidationErrorKind::Minimum { limit } => one(format!("at least {limit}")),
            ValidationErrorKind::Maximum { limit } => one(format!("at most {limit}")),
            ValidationErrorKind::MinLength { limit } => one(format!("at least {limit} characters")),
            ValidationErrorKind::MaxLength { limit } => one(format!("at most {limit} characters")),
            _ => one(format!("what the schema says ({})", short(&error.masked().to_string(), 200))),
        }
    }
}

/// The arguments as a tool's own type.
///
/// # Errors
/// [`ToolError::TellModel`] when they do not fit, which the schema should have told before.
pub(super) fn typed<T: DeserializeOwned>(args: Value) -> Result<T, ToolError> {
    serde_json::from_value(args)
        .map_err(|error| ToolError::TellModel(format!("The arguments do not fit: {}.", short(&error.to_string(), 300))))
}

/// The types a property may have; empty when the schema does not say it plainly.
fn types(schema: &Value) -> Vec<&str> {
    match schema.get("type") {
        Some(Value::String(one)) => vec![one],
        Some(Value::Array(several)) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

/// Whether the value is of that type as it stands. `10.0` is no integer here, for code that reads it has none either.
fn is_exactly(value: &Value, kind: &str) -> bool {
    match kind {
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        "null" => value.is_null(),
        _ => true,
    }
}

/// The value in that type, when it plainly means one.
fn converted(value: &Value, kind: &str) -> Option<Value> {
    let text = value.as_str().map(str::trim);
    match kind {
        "integer" => match text {
            Some(text) => text.parse::<i64>().ok().map(Value::from),
            None => value.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15).map(|n| Value::from(n as i64)),
        },
        "number" => text?.parse::<f64>().ok().and_then(Number::from_f64).map(Value::Number),
        "boolean" => match text?.to_ascii_lowercase().as_str() {
            "true" => Some(Value::Bool(true)),
            "false" => Some(Value::Bool(false)),
            _ => None,
        },
        "array" => serde_json::from_str(text?).ok().filter(Value::is_array),
        "object" => serde_json::from_str(text?).ok().filter(Value::is_object),
        "string" => value.is_number().then(|| Value::String(value.to_string())),
        _ => None,
    }
}

fn got(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(it) => format!("boolean {it}"),
        Value::Number(it) => format!("number {it}"),
        Value::String(it) => {
            format!("string {}", short(&Value::from(it.chars().take(60).collect::<String>()).to_string(), 80))
        }
        Value::Array(it) => format!("an array of {}", it.len()),
        Value::Object(it) => format!("an object with {} keys", it.len()),
    }
}

fn short(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Why a text gave no object.
#[derive(Debug, PartialEq, Eq)]
enum Unread {
    /// Nothing, `null`, `""`.
    Nothing,
    /// It ends in the middle.
    Cut,
    /// In words.
    Fault(String),
}

/// The object in a text, and what had to be repaired.
fn parse(written: &str) -> Result<(Map<String, Value>, Vec<Repair>), Unread> {
    if written.len() > LONGEST {
        return Err(Unread::Fault(format!("they are {} bytes long; the most is {LONGEST}", written.len())));
    }
    let text = written.trim_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
    let inner = match serde_json::from_str(text) {
        Ok(Value::Object(object)) => return Ok((object, Vec::new())),
        Ok(Value::Null) => return Err(Unread::Nothing),
        Ok(Value::String(inner)) => inner,
        Ok(other) => return Err(Unread::Fault(format!("expected an object, got {}", got(&other)))),
        Err(_) if text.is_empty() || text == "None" => return Err(Unread::Nothing),
        Err(_) => return lenient(text),
    };
    // Double encoding is decoded once.
    let inner = inner.trim();
    let (object, mut repairs) = match serde_json::from_str(inner) {
        Ok(Value::Object(object)) => (object, Vec::new()),
        Ok(Value::Null) => return Err(Unread::Nothing),
        Ok(other) => return Err(Unread::Fault(format!("expected an object, got {} inside a string", got(&other)))),
        Err(_) if inner.is_empty() => return Err(Unread::Nothing),
        Err(_) => lenient(inner)?,
    };
    repairs.insert(0, Repair::DoubleEncoded);
    Ok((object, repairs))
}

/// The one lenient reading. Only the first brace that can begin an object is tried: an object *inside* a broken one must
/// never be taken for the arguments.
fn lenient(text: &str) -> Result<(Map<String, Value>, Vec<Repair>), Unread> {
    let begins_object = |at: &usize| {
        let next = text[at + 1..].trim_start().chars().next();
        next.is_none_or(|c| {
            c.is_alphabetic() || matches!(c, '"' | '\'' | '“' | '”' | '‘' | '’' | '}' | '_' | '$' | '\\' | '/' | '#')
        })
    };
    let Some(start) = text.match_indices('{').map(|(at, _)| at).find(begins_object) else {
        return Err(Unread::Fault(format!(
            "there is no object in `{}`",
            short(text, 80).replace(char::is_control, " ")
        )));
    };
    let mut reader = Reader { text, at: start, repairs: Vec::new() };
    let before = text[..start].trim();
    if !before.is_empty() {
        reader.note(if before.starts_with("```") && !before.trim_matches('`').contains(char::is_whitespace) {
            Repair::CodeFence
        } else {
            Repair::Noise
        });
    }
    if text[start + 1..].trim_start().starts_with("\\\"") {
        // Encoded twice, with the outer quotes lost.
        let quoted = format!("\"{}\"", text[start..].trim_end_matches('"').replace('\n', "\\n").replace('\r', "\\r"));
        let Ok(once) = serde_json::from_str::<String>(&quoted) else {
            return Err(Unread::Fault("its quotes are escaped".to_owned()));
        };
        let (object, repairs) = match serde_json::from_str(&once) {
            Ok(object) => (object, Vec::new()),
            Err(_) if once[1..].trim_start().starts_with('\\') => {
                return Err(Unread::Fault("its quotes are escaped twice".to_owned()));
            }
            Err(_) => lenient(&once)?,
        };
        reader.note(Repair::DoubleEncoded);
        reader.repairs.extend(repairs);
        return Ok((object, reader.repairs));
    }
    let object = reader.object(0)?;
    let after = text[reader.at..].trim();
    if !after.is_empty() {
        reader.note(if after.chars().all(|c| c == '`') { Repair::CodeFence } else { Repair::Trailing });
    }
    Ok((object, reader.repairs))
}

/// Reads JSON leniently and notes how.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    repairs: Vec<Repair>,
}

impl Reader<'_> {
    fn note(&mut self, repair: Repair) {
        if !self.repairs.contains(&repair) {
            self.repairs.push(repair);
        }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Result<char, Unread> {
        let c = self.peek().ok_or(Unread::Cut)?;
        self.at += c.len_utf8();
        Ok(c)
    }

    /// Takes that text when it is next.
    fn eat(&mut self, wanted: &str) -> bool {
        let found = self.text[self.at..].starts_with(wanted);
        self.at += if found { wanted.len() } else { 0 };
        found
    }

    fn fault<T>(&self, expected: &str) -> Result<T, Unread> {
        let Some(got) = self.peek() else { return Err(Unread::Cut) };
        let nth = self.text[..self.at].chars().count() + 1;
        Err(Unread::Fault(format!("expected {expected}, got {got:?} at character {nth}")))
    }

    /// Steps over white space and comments.
    fn space(&mut self) -> Result<(), Unread> {
        loop {
            let rest = &self.text[self.at..];
            let trimmed = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '\u{feff}');
            self.at += rest.len() - trimmed.len();
            let length = if trimmed.starts_with("//") || trimmed.starts_with('#') {
                trimmed.find('\n').ok_or(Unread::Cut)?
            } else if trimmed.starts_with("/*") {
                trimmed.find("*/").ok_or(Unread::Cut)? + 2
            } else {
                return Ok(());
            };
            self.at += length;
            self.note(Repair::Comments);
        }
    }

    /// Takes the separator, plain or full-width.
    fn separator(&mut self, plain: &str, wide: &str) -> bool {
        if self.eat(plain) {
            return true;
        }
        let found = self.eat(wide);
        if found {
            self.note(Repair::SmartQuotes);
        }
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, Unread> {
        if depth > DEEPEST {
            return Err(Unread::Fault(format!("it is nested deeper than {DEEPEST} levels")));
        }
        match self.peek().ok_or(Unread::Cut)? {
            '{' => Ok(Value::Object(self.object(depth)?)),
            '[' => self.array(depth),
            '"' | '\'' | '“' | '”' | '‘' | '’' => Ok(Value::String(self.string()?)),
            '-' | '0'..='9' => self.number(),
            c if c.is_ascii_alphabetic() => self.word(),
            _ => self.fault("a value"),
        }
    }

    /// Reads from the opening brace to the closing one.
    fn object(&mut self, depth: usize) -> Result<Map<String, Value>, Unread> {
        self.next()?;
        let mut object = Map::new();
        loop {
            self.space()?;
            if self.eat("}") {
                if !object.is_empty() {
                    self.note(Repair::TrailingComma);
                }
                return Ok(object);
            }
            let key = self.key()?;
            self.space()?;
            if !self.separator(":", "：") {
                return self.fault("`:` after a key");
            }
            self.space()?;
            let value = self.value(depth + 1)?;
            object.insert(key, value);
            self.space()?;
            if self.eat("}") {
                return Ok(object);
            }
            if !self.separator(",", "，") {
                return self.fault("`,` or `}`");
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Value, Unread> {
        self.next()?;
        let mut array = Vec::new();
        loop {
            self.space()?;
            if self.eat("]") {
                if !array.is_empty() {
                    self.note(Repair::TrailingComma);
                }
                return Ok(Value::Array(array));
            }
            array.push(self.value(depth + 1)?);
            self.space()?;
            if self.eat("]") {
                return Ok(Value::Array(array));
            }
            if !self.separator(",", "，") {
                return self.fault("`,` or `]`");
            }
        }
    }

    fn key(&mut self) -> Result<String, Unread> {
        match self.peek().ok_or(Unread::Cut)? {
            '"' | '\'' | '“' | '”' | '‘' | '’' => self.string(),
            c if c.is_alphabetic() || matches!(c, '_' | '$') => {
                self.note(Repair::UnquotedKeys);
                let rest = &self.text[self.at..];
                let end =
                    rest.find(|c: char| !c.is_alphanumeric() && !matches!(c, '_' | '$' | '-')).unwrap_or(rest.len());
                self.at += end;
                Ok(rest[..end].to_owned())
            }
            _ => self.fault("a key"),
        }
    }

    fn string(&mut self) -> Result<String, Unread> {
        let closing: &[char] = match self.next()? {
            '"' => &['"'],
            '\'' => {
                self.note(Repair::SingleQuotes);
                &['\'']
            }
            '‘' | '’' => {
                self.note(Repair::SmartQuotes);
                &['’', '‘']
            }
            _ => {
                self.note(Repair::SmartQuotes);
                &['”', '“']
            }
        };
        let mut string = String::new();
        loop {
            match self.next()? {
                c if closing.contains(&c) => return Ok(string),
                '\\' => self.escape(&mut string)?,
                c => {
                    if c < ' ' {
                        self.note(Repair::RawControls);
                    }
                    string.push(c);
                }
            }
        }
    }

    fn escape(&mut self, string: &mut String) -> Result<(), Unread> {
        match self.next()? {
            c @ ('"' | '\\' | '/') => string.push(c),
            'b' => string.push('\u{8}'),
            'f' => string.push('\u{c}'),
            'n' => string.push('\n'),
            'r' => string.push('\r'),
            't' => string.push('\t'),
            'u' => match self.unicode()? {
                Some(c) => string.push(c),
                None => {
                    self.note(Repair::Escapes);
                    string.push('\u{fffd}');
                }
            },
            c => {
                self.note(Repair::Escapes);
                if c != '\'' {
                    string.push('\\');
                }
                string.push(c);
            }
        }
        Ok(())
    }

    /// The character of `\uXXXX`, with its second half; `None` for half a pair or no number.
    fn unicode(&mut self) -> Result<Option<char>, Unread> {
        let Some(first) = self.hex()? else { return Ok(None) };
        if !(0xd800..0xdc00).contains(&first) {
            return Ok(char::from_u32(first));
        }
        let back = self.at;
        if self.eat("\\u")
            && let Some(second) = self.hex()?
            && (0xdc00..0xe000).contains(&second)
        {
            return Ok(char::from_u32(0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)));
        }
        self.at = back;
        Ok(None)
    }

    fn hex(&mut self) -> Result<Option<u32>, Unread> {
        let rest = &self.text[self.at..];
        let digits = rest.bytes().take(4).take_while(u8::is_ascii_hexdigit).count();
        if digits < 4 {
            return if rest.len() == digits { Err(Unread::Cut) } else { Ok(None) };
        }
        self.at += 4;
        Ok(u32::from_str_radix(&rest[..4], 16).ok())
    }

    fn number(&mut self) -> Result<Value, Unread> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9')).ok_or(Unread::Cut)?;
        match serde_json::from_str(&rest[..end]) {
            Ok(number) => {
                self.at += end;
                Ok(Value::Number(number))
            }
            Err(_) => self.fault("a number"),
        }
    }

    fn word(&mut self) -> Result<Value, Unread> {
        let rest = &self.text[self.at..];
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').ok_or(Unread::Cut)?;
        let (value, python) = match &rest[..end] {
            "true" => (Value::Bool(true), false),
            "false" => (Value::Bool(false), false),
            "null" => (Value::Null, false),
            "True" => (Value::Bool(true), true),
            "False" => (Value::Bool(false), true),
            "None" => (Value::Null, true),
            _ => return self.fault("a value in quotes"),
        };
        if python {
            self.note(Repair::PythonLiterals);
        }
        self.at += end;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn checker() -> Checker {
        let schema = json!({
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "offset": {"type": "integer", "minimum": 0},
                "limit": {"type": "integer"},
                "all": {"type": "boolean"},
                "tags": {"type": "array", "items": {"type": "string"}},
                "mode": {"enum": ["fast", "slow"]},
            },
            "required": ["path"],
            "additionalProperties": false,
        });
        Checker::new("read", &schema).expect("a valid schema")
    }

    /// What the golden table says of a text: the arguments and the repairs, or the error's kind and a part of its text.
    #[test]
    fn bad_input_51_dirty_arguments_are_repaired_or_refused() {
        use Repair::*;
        let checker = checker();
        let path = json!({"path": "a.txt"});
        let renamed = |from: &str, to: &str| Renamed(names::Renamed { from: from.to_owned(), to: to.to_owned() });
        let good: Vec<(&str, Value, Vec<Repair>)> = vec![
            (r#"{"path": "a.txt"}"#, path.clone(), vec![]),
            ("\u{feff} {\"path\": \"a.txt\"}\n", path.clone(), vec![]),
            ("Sure, here it is: {\"path\": \"a.txt\"}", path.clone(), vec![Noise]),
            ("call {0} with {\"path\": \"a.txt\"}", path.clone(), vec![Noise]),
            ("```json\n{\"path\": \"a.txt\"}\n```", path.clone(), vec![CodeFence]),
            ("```\n{\"path\": \"a.txt\"}\n```", path.clone(), vec![CodeFence]),
            ("{\"path\": \"a.txt\"}</s>", path.clone(), vec![Trailing]),
            ("{\"path\": \"a.txt\"}<|call|>", path.clone(), vec![Trailing]),
            ("{\"path\": \"a.txt\"}}", path.clone(), vec![Trailing]),
            ("{\"path\": \"a.txt\"}\nNow I will read it.", path.clone(), vec![Trailing]),
            ("{\"path\": \"a.txt\",}", path.clone(), vec![TrailingComma]),
            (
                "{\"path\": \"a.txt\", \"tags\": [\"x\",],}",
                json!({"path": "a.txt", "tags": ["x"]}),
                vec![TrailingComma],
            ),
            ("{\"path\": \"a.txt\" /* the file */}", path.clone(), vec![Comments]),
            ("{// the file\n\"path\": \"a.txt\"}", path.clone(), vec![Comments]),
            ("{\"path\": \"a.txt\", # python\n}", path.clone(), vec![Comments, TrailingComma]),
            ("{\"path\": \"http://x/#y\",}", json!({"path": "http://x/#y"}), vec![TrailingComma]),
            ("{'path': 'a.txt'}", path.clone(), vec![SingleQuotes]),
            ("{'path': 'say \"hi\"'}", json!({"path": "say \"hi\""}), vec![SingleQuotes]),
            ("{'path': 'it\\'s'}", json!({"path": "it's"}), vec![SingleQuotes, Escapes]),
            ("{path: \"a.txt\"}", path.clone(), vec![UnquotedKeys]),
            ("{path: 'a.txt'}", path.clone(), vec![UnquotedKeys, SingleQuotes]),
            ("{\"path\": \"a.txt\", \"all\": True}", json!({"path": "a.txt", "all": true}), vec![PythonLiterals]),
            ("{\"path\": \"a.txt\", \"all\": False}", json!({"path": "a.txt", "all": false}), vec![PythonLiterals]),
            (
                "{'path': 'a.txt', 'limit': None}",
                path.clone(),
                vec![SingleQuotes, PythonLiterals, Omitted("limit".into())],
            ),
            (r#""{\"path\": \"a.txt\"}""#, path.clone(), vec![DoubleEncoded]),
            (r#""{'path': 'a.txt'}""#, path.clone(), vec![DoubleEncoded, SingleQuotes]),
            (r#"{\"path\": \"a.txt\"}"#, path.clone(), vec![DoubleEncoded]),
            ("{“path”: “a.txt”}", path.clone(), vec![SmartQuotes]),
            ("{“path”： “a.txt”， \"limit\": 2}", json!({"path": "a.txt", "limit": 2}), vec![SmartQuotes]),
            ("{\"path\": \"小“龙”虾\",}", json!({"path": "小“龙”虾"}), vec![TrailingComma]),
            ("{\"path\": \"a\nb\tc\"}", json!({"path": "a\nb\tc"}), vec![RawControls]),
            (r#"{"path": "\d+\.txt"}"#, json!({"path": r"\d+\.txt"}), vec![Escapes]),
            (r#"{"path": "\ud83d\ude00\ud800!"}"#, json!({"path": "😀\u{fffd}!"}), vec![Escapes]),
            (r#"{"arguments": {"path": "a.txt"}}"#, path.clone(), vec![Wrapped]),
            (r#"{"name": "read", "parameters": {"path": "a.txt"}}"#, path.clone(), vec![Wrapped]),
            (r#"{"file_path": "a.txt"}"#, path.clone(), vec![renamed("file_path", "path")]),
            (
                r#"{"filePath": "a.txt", "start_line": 3}"#,
                json!({"path": "a.txt", "offset": 3}),
                vec![renamed("start_line", "offset"), renamed("filePath", "path")],
            ),
            (r#"{"Path": "a.txt"}"#, path.clone(), vec![renamed("Path", "path")]),
            (
                r#"{"path": "a.txt", "limit": "10"}"#,
                json!({"path": "a.txt", "limit": 10}),
                vec![Converted("limit".into())],
            ),
            (
                r#"{"path": "a.txt", "limit": 10.0}"#,
                json!({"path": "a.txt", "limit": 10}),
                vec![Converted("limit".into())],
            ),
            (
                r#"{"path": "a.txt", "all": "true"}"#,
                json!({"path": "a.txt", "all": true}),
                vec![Converted("all".into())],
            ),
            (r#"{"path": 404}"#, json!({"path": "404"}), vec![Converted("path".into())]),
            (
                r#"{"path": "a.txt", "tags": "[\"x\"]"}"#,
                json!({"path": "a.txt", "tags": ["x"]}),
                vec![Converted("tags".into())],
            ),
            (r#"{"path": "a.txt", "offset": null}"#, path.clone(), vec![Omitted("offset".into())]),
            (r#"{"path": "a.txt", "offset": ""}"#, path.clone(), vec![Omitted("offset".into())]),
        ];
        for (written, args, repairs) in good {
            assert_eq!(checker.prepare(written), Ok(Prepared { args, repairs }), "{written}");
        }

        for cut in [
            r#"{"path": "a.txt""#,
            r#"{"path": "a.t"#,
            r#"{"path": "#,
            r#"{"path""#,
            r#"{"path": "a", "tags": [{"path": "b"}"#,
            r#"{"path": "a", "limit": 1"#,
            r#"{"path": "a", "all": tr"#,
            r#"{"path": "\u4f"#,
            r#"{"path": "a" /* half"#,
            r#"```json
{"path": "a"#,
            r#""{\"path\": \"a""#,
            "{",
        ] {
            assert_eq!(checker.prepare(cut), Err(ArgumentError::Cut), "{cut}");
        }

        for (bad, told) in [
            ("", "there are none"),
            ("null", "there are none"),
            (r#""""#, "there are none"),
            ("None", "there are none"),
            ("a.txt", "there is no object in `a.txt`"),
            ("[1]", "expected an object, got an array of 1"),
            ("17", "expected an object, got number 17"),
            (r#""\"{}\"""#, "got string \"{}\" inside a string"),
            (r#"{"path" "a"}"#, "expected `:` after a key, got '\"' at character 9"),
            (r#"{"path": a.txt}"#, "expected a value in quotes, got 'a' at character 10"),
            (r#"{'path': 'it's'}"#, "expected `,` or `}`, got 's'"),
            (r#"{"a" ? {"path": "inner"}}"#, "expected `:` after a key"),
            (r#"{"path": +1}"#, "expected a value, got '+'"),
            (r#"{"path": 1-2}"#, "expected a number"),
        ] {
            let error = checker.prepare(bad).expect_err(bad);
            assert!(matches!(error, ArgumentError::Unreadable { .. }), "{bad}: {error:?}");
            assert!(error.to_string().contains(told), "{bad}: {error}");
        }

        for (unfit, pointer, expected, got) in [
            ("{}", "/path", "string (required)", "nothing"),
            (r#"{"path": ["a"]}"#, "/path", "string", "an array of 1"),
            (r#"{"path": "a", "offset": "ten"}"#, "/offset", "integer", "string \"ten\""),
            (r#"{"path": "a", "offset": -1}"#, "/offset", "at least 0", "number -1"),
            (r#"{"path": "a", "offset": 1.5}"#, "/offset", "integer", "number 1.5"),
            (r#"{"path": "a", "mode": "x"}"#, "/mode", "one of [\"fast\",\"slow\"]", "string \"x\""),
            (r#"{"path": "a", "tags": [1]}"#, "/tags/0", "string", "number 1"),
            (r#"{"path": "a", "a/b": 1}"#, "/a~1b", "no such argument", "one"),
            (r#"{"path": null}"#, "/path", "string", "null"),
        ] {
            let error = checker.prepare(unfit).expect_err(unfit);
            let ArgumentError::Unfit { faults, .. } = &error else { panic!("{unfit}: {error:?}") };
            let fault = Fault { pointer: pointer.into(), expected: expected.into(), got: got.into() };
            assert_eq!(faults, &[fault], "{unfit}");
        }
    }

    #[test]
    fn an_error_shows_what_the_tool_takes() {
        assert_eq!(
            checker().prepare("{}").expect_err("unfit").to_string(),
            "The arguments do not fit, so the call was not run:\n- /path: expected string (required), got nothing\n\
             Arguments: path (string), all (boolean, optional), limit (integer, optional), mode (any, optional), offset \
             (integer, optional), tags (array, optional)."
        );
    }

    #[test]
    fn bad_input_53_a_tool_without_arguments_takes_nothing() {
        let none = Checker::new("now", &json!({"type": "object", "properties": {}})).expect("a valid schema");
        for nothing in ["", " ", "null", "\"\"", "None", "\"null\""] {
            let prepared = none.prepare(nothing);
            assert_eq!(prepared, Ok(Prepared { args: json!({}), repairs: vec![Repair::Nothing] }), "{nothing}");
        }
        assert_eq!(none.prepare("{}"), Ok(Prepared { args: json!({}), repairs: vec![] }));
    }

    #[test]
    fn hostile_texts_end_quickly_in_one_error() {
        let checker = checker();
        let deep = format!("{{\"path\": {}", "[".repeat(100_000));
        assert!(matches!(checker.prepare(&deep), Err(ArgumentError::Unreadable { .. })));
        let braces = "{".repeat(1_000_000);
        assert!(checker.prepare(&braces).is_err());
        let huge = "x".repeat(LONGEST + 1);
        assert!(matches!(checker.prepare(&huge), Err(ArgumentError::Unreadable { .. })));
        assert!(Checker::new("bad", &json!({"type": 7})).is_err());
        let odd = checker.prepare(&format!("{{\"{}\": 1}}", "k".repeat(100_000))).expect_err("no such argument");
        assert!(odd.to_string().len() < 2_000);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_filter_map("finite", |n| Number::from_f64(n).map(Value::Number)),
            ".{0,20}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 6, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                proptest::collection::btree_map(".{0,8}", inner, 0..6)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn any_object() -> impl Strategy<Value = Map<String, Value>> {
        proptest::collection::btree_map(".{0,8}", any_value(), 0..6).prop_map(|map| map.into_iter().collect())
    }

    proptest! {
        #[test]
        fn a_valid_object_passes_unchanged(object in any_object()) {
            let open = Checker::new("any", &json!({"type": "object"})).expect("a valid schema");
            // What JSON itself loses (the last digit of some floats) is no repair: compare with the strict reading.
            let written = Value::Object(object).to_string();
            let strict: Value = serde_json::from_str(&written).expect("it was just written");
            prop_assert_eq!(open.prepare(&written), Ok(Prepared { args: strict, repairs: vec![] }));
        }

        #[test]
        fn the_lenient_reading_agrees_with_the_strict_one(object in any_object()) {
            let written = Value::Object(object).to_string();
            let strict: Map<String, Value> = serde_json::from_str(&written).expect("it was just written");
            prop_assert_eq!(Reader { text: &written, at: 0, repairs: Vec::new() }.object(0), Ok(strict));
        }

        #[test]
        fn bad_input_52_a_cut_object_is_never_run(object in any_object(), cut in any::<prop::sample::Index>()) {
            let written = Value::Object(object).to_string();
            let mut at = cut.index(written.len());
            while !written.is_char_boundary(at) {
                at -= 1;
            }
            let open = Checker::new("any", &json!({"type": "object", "required": ["never"]})).expect("a valid schema");
            prop_assert!(open.prepare(&written[..at]).is_err());
            if at > 0 {
                prop_assert_eq!(open.prepare(&written[..at]), Err(ArgumentError::Cut));
            }
        }

        #[test]
        fn nothing_makes_it_panic(written in "[{}\\[\\]\"'“”\\\\:,：#/*a-zNT0-9. \n\\-u]{0,60}") {
            let _ = checker().prepare(&written);
        }
    }
}
