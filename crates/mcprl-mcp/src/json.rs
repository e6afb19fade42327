//! Reads JSON that is not quite JSON, as servers send it, and names what is wrong with it.
//!
//! A fault (`NaN`, a number out of range, text that is not Unicode, too deep a nesting) does not end the reading: its value
//! is replaced, and its place is reported. Broken syntax ends it.

use std::{borrow::Cow, sync::Arc};

use mcprl_base::json::is_exact;
use serde_json::{Map, Value, json};

/// The member of an object that stands for a number with more digits than a [`Value`] has.
const DIGITS: &str = "mcprl/number";
/// Members of results that describe what a server offers.
const DESCRIPTIONS: [&str; 6] =
    ["tools", "resources", "resourceTemplates", "prompts", "capabilities", "serverInfo"];
/// Deepest nesting that is read. `serde_json` has the same limit.
const DEPTH: usize = 127;
/// Faults that are kept, more than a list of tools may have items.
const FAULTS: usize = 1024;
/// Steps of a fault's path that are kept: a result, its list, and the item.
const STEPS: usize = 3;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(Arc<str>),
    Index(usize),
}

impl Step {
    /// Whether both are the same step of one text; compares no long keys.
    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Key(one), Self::Key(other)) => Arc::ptr_eq(one, other),
            (Self::Index(one), Self::Index(other)) => one == other,
            _ => false,
        }
    }
}

/// A value that JSON cannot have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fault {
    /// Where it is, from the outermost value: at most [`STEPS`].
    pub path: Vec<Step>,
    pub reason: String,
}

/// Broken syntax.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Broken {
    /// Byte at which reading ended.
    pub at: usize,
    pub reason: &'static str,
    /// The members of the outermost object that were read before, without objects and arrays.
    pub read: Map<String, Value>,
}

/// The value and its faults.
pub(super) fn parse(text: &[u8]) -> Result<(Value, Vec<Fault>), Broken> {
    let mut reader = Reader { text, ..Reader::default() };
    let parsed = reader.value().and_then(|value| {
        reader.space();
        match reader.peek() {
            None => Ok(value),
            Some(_) => Err("text after the value"),
        }
    });
    match parsed {
        Ok(value) => Ok((value, reader.faults)),
        Err(reason) => Err(Broken { at: reader.at.min(text.len()), reason, read: reader.read }),
    }
}

/// Whether a text may have a number whose digits are kept.
pub(super) fn has_long_number(text: &[u8]) -> bool {
    let mut digits = 0;
    text.iter().any(|byte| {
        digits = if byte.is_ascii_digit() || *byte == b'.' { digits + 1 } else { 0 };
        digits == 16
    })
}

/// A value of a server as JSON, each number with the digits that the server wrote.
pub(super) fn written(value: &Value) -> String {
    let text = value.to_string();
    let start = format!("{{\"{DIGITS}\":\"");
    let Some((before, _)) = text.split_once(&start) else { return text };
    let mut out = before.to_owned();
    for part in text[before.len()..].split(&start).skip(1) {
        match part.split_once("\"}") {
            Some((number, rest)) if is_number(number) => {
                out += number;
                out += rest;
            }
            _ => {
                out += &start;
                out += part;
            }
        }
    }
    out
}

#[derive(Default)]
struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    path: Vec<Step>,
    faults: Vec<Fault>,
    read: Map<String, Value>,
}

type Parsed<T> = Result<T, &'static str>;

/// Why a text that is cut off is broken.
pub(super) const ENDS: &str = "it ends in the middle";

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    /// Whether the text continues with this byte, which is then consumed.
    fn takes(&mut self, byte: u8) -> bool {
        self.space();
        let is_next = self.peek() == Some(byte);
        self.at += usize::from(is_next);
        is_next
    }

    fn fault(&mut self, reason: impl Into<String>) -> Value {
        let path = &self.path[..self.path.len().min(STEPS)];
        let is_same = |fault: &Fault| {
            fault.path.len() == path.len() && fault.path.iter().zip(path).all(|(one, other)| one.is(other))
        };
        // One fault is enough for each place.
        if self.faults.len() < FAULTS && !self.faults.last().is_some_and(is_same) {
            self.faults.push(Fault { path: path.to_vec(), reason: reason.into() });
        }
        Value::Null
    }

    fn value(&mut self) -> Parsed<Value> {
        self.space();
        match self.peek() {
            None => Err(ENDS),
            Some(b'{' | b'[') if self.path.len() >= DEPTH => {
                self.skip()?;
                Ok(self.fault(format!("it is nested more than {DEPTH} levels deep")))
            }
            Some(b'{') => self.object(),
            Some(b'[') => self.array(),
            Some(b'"') => Ok(self.string()?.into()),
            Some(_) => self.word(),
        }
    }

    fn object(&mut self) -> Parsed<Value> {
        self.at += 1;
        let mut members = Map::new();
        if self.takes(b'}') {
            return Ok(members.into());
        }
        loop {
            self.space();
            match self.peek() {
                Some(b'"') => {}
                None => return Err(ENDS),
                Some(_) => return Err("a key without quotes"),
            }
            let key = self.string()?;
            if !self.takes(b':') {
                return Err(if self.at == self.text.len() { ENDS } else { "a key without a value" });
            }
            self.path.push(Step::Key(key.as_str().into()));
            let value = self.value()?;
            self.path.pop();
            if self.path.is_empty() && !value.is_object() && !value.is_array() {
                self.read.insert(key.clone(), value.clone());
            }
            members.insert(key, value);
            if !self.continues(b'}')? {
                return Ok(members.into());
            }
        }
    }

    fn array(&mut self) -> Parsed<Value> {
        self.at += 1;
        let mut items = Vec::new();
        if self.takes(b']') {
            return Ok(items.into());
        }
        loop {
            self.path.push(Step::Index(items.len()));
            items.push(self.value()?);
            self.path.pop();
            if !self.continues(b']')? {
                return Ok(items.into());
            }
        }
    }

    /// Whether an object or array goes on behind an item, or is closed by this bracket.
    fn continues(&mut self, close: u8) -> Parsed<bool> {
        match self.takes(b',') {
            true => Ok(true),
            false if self.takes(close) => Ok(false),
            false if self.at == self.text.len() => Err(ENDS),
            false => Err("a comma or a closing bracket is missing"),
        }
    }

    /// Passes over a value that is nested too deeply.
    fn skip(&mut self) -> Parsed<()> {
        let mut open = 0_usize;
        loop {
            match self.peek().ok_or(ENDS)? {
                b'{' | b'[' => open += 1,
                b'}' | b']' => open -= 1,
                b'"' => {
                    self.end_of_string()?;
                    continue;
                }
                _ => {}
            }
            self.at += 1;
            if open == 0 {
                return Ok(());
            }
        }
    }

    /// Moves behind a string.
    fn end_of_string(&mut self) -> Parsed<()> {
        self.at += 1;
        loop {
            let byte = self.peek().ok_or(ENDS)?;
            self.at += if byte == b'\\' { 2 } else { 1 };
            if byte == b'"' {
                return Ok(());
            }
        }
    }

    fn string(&mut self) -> Parsed<String> {
        let start = self.at;
        self.end_of_string()?;
        let text = String::from_utf8_lossy(&self.text[start + 1..self.at - 1]);
        if matches!(text, Cow::Owned(_)) {
            self.fault("a text is not UTF-8");
        }
        self.unescape(&text)
    }

    fn unescape(&mut self, text: &str) -> Parsed<String> {
        const WRONG: &str = "an escape that JSON does not have";
        let mut plain = String::with_capacity(text.len());
        let mut rest = text;
        while let Some((before, escaped)) = rest.split_once('\\') {
            plain.push_str(before);
            let kind = escaped.chars().next().ok_or(WRONG)?;
            rest = &escaped[kind.len_utf8()..];
            plain.push(match kind {
                '"' | '\\' | '/' => kind,
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'u' => {
                    let unit = code_unit(rest).ok_or(WRONG)?;
                    rest = &rest[4..];
                    let low = rest.strip_prefix("\\u").and_then(code_unit);
                    match char::decode_utf16([unit].into_iter().chain(low)).next() {
                        Some(Ok(letter)) => {
                            // Of a pair, the second half too.
                            rest = &rest[6 * (letter.len_utf16() - 1)..];
                            letter
                        }
                        _ => {
                            self.fault("a text has half of a surrogate pair");
                            char::REPLACEMENT_CHARACTER
                        }
                    }
                }
                _ => return Err(WRONG),
            });
        }
        plain.push_str(rest);
        Ok(plain)
    }

    /// Whether the digits of a number are kept that a [`Value`] would round: those of a tool's result.
    fn keeps_digits(&self) -> bool {
        matches!(&self.path[..], [Step::Key(outer), Step::Key(list), ..]
            if &**outer == "result" && !DESCRIPTIONS.contains(&&**list))
    }

    /// A number, `true`, `false`, `null`, or what only looks like one of them.
    fn word(&mut self) -> Parsed<Value> {
        let is_inner = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.');
        let length = self.text[self.at..].iter().take_while(|byte| is_inner(byte)).count();
        let word = str::from_utf8(&self.text[self.at..self.at + length]).unwrap_or_default();
        let value = match word {
            "NaN" | "Infinity" | "-Infinity" | "nan" | "inf" | "-inf" | "-nan" => {
                self.fault(format!("it has `{word}`"))
            }
            _ => match serde_json::from_str(word) {
                Ok(_) if self.keeps_digits() && !is_exact(word) => json!({DIGITS: word}),
                Ok(value) => value,
                Err(_) if is_number(word) => {
                    self.fault(format!("it has a number out of range, `{}`", shortened(word)))
                }
                Err(_) if self.at + length == self.text.len() => return Err(ENDS),
                Err(_) => return Err("a value is none of JSON's"),
            },
        };
        self.at += length;
        Ok(value)
    }
}

fn code_unit(text: &str) -> Option<u16> {
    let is_hex = |digits: &&str| digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    u16::from_str_radix(text.get(..4).filter(is_hex)?, 16).ok()
}

/// Whether it has a number's form, so that only its size can be wrong.
fn is_number(word: &str) -> bool {
    word.bytes().any(|byte| byte.is_ascii_digit())
        && word.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'+' | b'-' | b'.' | b'e' | b'E'))
        && !word.ends_with(['e', 'E', '+', '-', '.'])
}

fn shortened(word: &str) -> String {
    match word.len() {
        0..=20 => word.to_owned(),
        _ => format!("{}…", &word[..20]),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The value, and each fault as `path: reason`.
    fn read(text: impl AsRef<[u8]>) -> (Value, Vec<String>) {
        let (value, faults) = parse(text.as_ref()).unwrap();
        let step = |step: &Step| match step {
            Step::Key(key) => format!("/{key}"),
            Step::Index(index) => format!("/{index}"),
        };
        let line =
            |fault: &Fault| format!("{}: {}", fault.path.iter().map(step).collect::<String>(), fault.reason);
        let faults = faults.iter().map(line).collect();
        (value, faults)
    }

    #[test]
    fn json_is_read_as_serde_json_reads_it() {
        let texts = [
            r#"{"b":[1,-2.5e3,true,false,null,""],"a":{"x":{}}, "c" : [ ] }"#,
            r#""é \u00e9 \ud83d\ude00 \n\t\\\/\"""#,
            "18446744073709551615",
            "-0.0",
        ];
        for text in texts {
            assert_eq!(read(text), (serde_json::from_str(text).unwrap(), vec![]), "{text}");
        }
    }

    #[test]
    fn a_fault_is_replaced_and_its_place_reported() {
        assert_eq!(read(r#"{"a":[1,NaN]}"#), (json!({"a": [1, null]}), vec!["/a/1: it has `NaN`".into()]));
        assert_eq!(read("[-Infinity]").1, ["/0: it has `-Infinity`"]);
        assert_eq!(read("[1e999]").1, ["/0: it has a number out of range, `1e999`"]);
        assert_eq!(read(r#"{"a":"x\ud800y"}"#).0, json!({"a": "x\u{FFFD}y"}));
        assert_eq!(read(r#"{"a":[[[NaN,NaN]],NaN]}"#).1, ["/a/0/0: it has `NaN`", "/a/1: it has `NaN`"]);
        assert_eq!(read(r#"{"a":"\udc00\ud800"}"#).1, ["/a: a text has half of a surrogate pair"]);
        assert_eq!(read(b"{\"a\":\"x\xFFy\"}").0, json!({"a": "x\u{FFFD}y"}));
        let deep = format!(r#"{{"a":{}"]"{},"b":1}}"#, "[".repeat(200), "]".repeat(200));
        let (value, faults) = read(deep);
        assert_eq!(value["b"], 1);
        assert_eq!(faults.len(), 1);
        assert!(faults[0].ends_with("it is nested more than 127 levels deep"), "{faults:?}");
    }

    #[test]
    fn broken_syntax_is_reported_with_what_was_read_before_it() {
        for (text, at, reason) in [
            (r#"{"id":7,"result":{"a":"#, 22, ENDS),
            (r#"{"id":7,"result":{"a":tru"#, 22, ENDS),
            (r#"{"id":7,"result":"abc"#, 21, ENDS),
            (r#"{"id":7,"result":{a:1}}"#, 18, "a key without quotes"),
            (r#"{"id":7,"result":oops}"#, 17, "a value is none of JSON's"),
            (r#"{"id":7,"result":"\x"}"#, 21, "an escape that JSON does not have"),
            (r#"{"id":7} {}"#, 9, "text after the value"),
        ] {
            let broken = parse(text.as_bytes()).unwrap_err();
            assert_eq!((broken.at, broken.reason), (at, reason), "{text}");
            assert_eq!(broken.read.get("id"), Some(&json!(7)), "{text}");
        }
        let trailing = parse(b"[1,]2]").unwrap_err();
        assert_eq!((trailing.at, trailing.reason), (3, "a value is none of JSON's"));
        for text in ["", "{", "[1,", "\"\\", "{\"a\"", "nul", "-"] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().reason, ENDS, "{text}");
        }
    }
}
