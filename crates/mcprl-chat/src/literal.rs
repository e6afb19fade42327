//! Reads values as Python or JSON writes them. The nesting is limited; everything else takes linear time.

use serde_json::{Map, Value};

/// Maximum nesting of a value.
const DEEPEST: usize = 64;

/// Parses a whole text as one Python or JSON value, as a model writes it.
pub(super) fn of_text(text: &str) -> Option<Value> {
    whole(Reader::new(text.trim()))
}

/// Parses a whole text as one value that Python printed (`repr`), or as JSON.
///
/// Tuples and sets become lists. What JSON does not have becomes a text: numbers that JSON would round, `nan` and `inf`,
/// `Decimal('1.50')` as `1.50`, dates and times as Python's `str` writes them, and other objects as printed.
pub fn python_repr(text: &str) -> Option<Value> {
    whole(Reader { is_repr: true, ..Reader::new(text.trim()) })
}

fn whole(mut reader: Reader<'_>) -> Option<Value> {
    let value = reader.value(0).ok()?;
    reader.rest.trim().is_empty().then_some(value)
}

/// Inserts a value and refuses a duplicate name.
pub(super) fn once(fields: &mut Map<String, Value>, name: String, value: Value) -> Result<(), String> {
    if fields.contains_key(&name) {
        return Err(format!("{name} is given twice"));
    }
    fields.insert(name, value);
    Ok(())
}

pub(super) struct Reader<'a> {
    pub(super) rest: &'a str,
    /// Python printed the text, so it has objects that are no literals.
    is_repr: bool,
    /// Texts may stand in three quotes.
    is_lenient: bool,
    /// Names, and values of one word, may stand without quotes in a dictionary.
    is_unquoted: bool,
}

impl<'a> Reader<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { rest: text, is_repr: false, is_lenient: false, is_unquoted: false }
    }

    /// For what a model writes without a template that asks for it.
    pub(super) fn lenient(text: &'a str) -> Self {
        Self { is_lenient: true, ..Self::new(text) }
    }

    /// The same, with words of a dictionary that may lack their quotes.
    pub(super) fn unquoted(text: &'a str) -> Self {
        Self { is_unquoted: true, ..Self::lenient(text) }
    }

    pub(super) fn take(&mut self, sign: &str) -> bool {
        let rest = self.rest.trim_start();
        let taken = rest.strip_prefix(sign);
        self.rest = taken.unwrap_or(rest);
        taken.is_some()
    }

    /// Takes the following characters that satisfy `of`.
    pub(super) fn word(&mut self, of: impl Fn(char) -> bool) -> &'a str {
        let text = self.rest;
        let end = text.find(|c| !of(c)).unwrap_or(text.len());
        self.rest = &text[end..];
        &text[..end]
    }

    pub(super) fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > DEEPEST {
            return Err(format!("nested deeper than {DEEPEST} levels"));
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next() {
            None => Err("incomplete".into()),
            Some(quote @ ('"' | '\'')) => match self.in_three_quotes(quote) {
                Some(text) => Ok(text.into()),
                None => self.string(quote).map(Value::from),
            },
            Some('[') => self.items("[", "]", depth).map(Value::from),
            Some('(') => self.items("(", ")", depth).map(Value::from),
            Some('{') => self.braces(depth),
            Some('<') if self.is_repr => self.object().map(Value::from),
            Some(c) if c.is_ascii_digit() || "+-.".contains(c) => {
                let text = self.word(|c| c.is_ascii_alphanumeric() || "+-._".contains(c));
                let number = text.trim_start_matches('+').replace('_', "");
                match serde_json::from_str(&number) {
                    Ok(Value::Number(number)) if self.is_repr && number.is_f64() && is_integer(text) => {
                        Ok(text.into())
                    }
                    Ok(value) => Ok(value),
                    // An infinity or a complex number.
                    Err(_) if self.is_repr => Ok(text.into()),
                    Err(_) => Err(format!("{text} is not a number")),
                }
            }
            Some(_) => {
                let (start, is_repr) = (self.rest, self.is_repr);
                match self.word(|c| c.is_alphanumeric() || c == '_' || is_repr && c == '.') {
                    "True" | "true" => Ok(true.into()),
                    "False" | "false" => Ok(false.into()),
                    "None" | "null" => Ok(Value::Null),
                    "" => Err("a value is missing".into()),
                    word @ ("nan" | "inf") if self.is_repr => Ok(word.into()),
                    "b" if self.is_repr && self.rest.starts_with(['"', '\'']) => {
                        self.quoted()?;
                        Ok(start[..start.len() - self.rest.len()].into())
                    }
                    word if self.is_repr && self.rest.starts_with('(') => {
                        let arguments = self.parentheses()?;
                        let printed = &start[..start.len() - self.rest.len()];
                        Ok(plain(word, arguments).unwrap_or_else(|| printed.to_owned()).into())
                    }
                    word => Err(format!("{word} is no value; text stands in quotes")),
                }
            }
        }
    }

    /// Reads the dictionary behind `**` into arguments.
    pub(super) fn unpack(&mut self, arguments: &mut Map<String, Value>) -> Result<(), String> {
        let Value::Object(fields) = self.value(0)? else {
            return Err("`**` is not followed by a dictionary".into());
        };
        fields.into_iter().try_for_each(|(parameter, value)| once(arguments, parameter, value))
    }

    fn items(&mut self, open: &str, close: &str, depth: usize) -> Result<Vec<Value>, String> {
        self.take(open);
        let mut items = Vec::new();
        while !self.take(close) {
            items.push(self.value(depth + 1)?);
            if !self.take(",") && !self.rest.starts_with(close) {
                return Err(format!("`,` or `{close}` is missing in a list"));
            }
        }
        Ok(items)
    }

    /// A dictionary; in a text that Python printed, also a set.
    fn braces(&mut self, depth: usize) -> Result<Value, String> {
        self.take("{");
        let (mut fields, mut items) = (Map::new(), Vec::new());
        while !self.take("}") {
            let key = match self.bare_word(&[':']) {
                Some(name) => name.into(),
                None => self.value(depth + 1)?,
            };
            if self.take(":") {
                let key = match key {
                    Value::String(key) => key,
                    other => other.to_string(),
                };
                let value = match self.bare_word(&[',', '}']) {
                    Some(word) => word.into(),
                    None => self.value(depth + 1)?,
                };
                once(&mut fields, key, value)?;
            } else {
                items.push(key);
            }
            if !items.is_empty() && (!self.is_repr || !fields.is_empty()) {
                return Err("`:` is missing in a dictionary".into());
            }
            if !self.take(",") && !self.rest.starts_with('}') {
                return Err("`,` or `}` is missing in a dictionary".into());
            }
        }
        Ok(if items.is_empty() { fields.into() } else { items.into() })
    }

    /// A word without quotes that one of these follows, unless it is a value of its own.
    fn bare_word(&mut self, ends: &[char]) -> Option<&'a str> {
        const VALUES: [&str; 6] = ["True", "true", "False", "false", "None", "null"];
        let text = self.rest.trim_start();
        let end = text.find(|c: char| !(c.is_alphanumeric() || "_.-".contains(c)))?;
        let (word, rest) = text.split_at(end);
        let is_word = word.starts_with(|c: char| c.is_alphabetic() || c == '_') && !VALUES.contains(&word);
        let is_taken = self.is_unquoted && is_word && rest.trim_start().starts_with(ends);
        self.rest = if is_taken { rest } else { self.rest };
        is_taken.then_some(word)
    }

    /// A text in three quotes, without escapes.
    fn in_three_quotes(&mut self, quote: char) -> Option<&'a str> {
        let quotes = if quote == '"' { "\"\"\"" } else { "'''" };
        let (text, rest) = self.rest.strip_prefix(quotes).filter(|_| self.is_lenient)?.split_once(quotes)?;
        self.rest = rest;
        Some(text)
    }

    fn string(&mut self, quote: char) -> Result<String, String> {
        let mut characters = self.rest.char_indices().skip(1);
        let mut text = String::new();
        let letter = |code: u32| char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
        // UTF-16 surrogates, escaped one by one.
        let mut high: Option<u32> = None;
        while let Some((at, c)) = characters.next() {
            if c == quote {
                self.rest = &self.rest[at + c.len_utf8()..];
                return Ok(text);
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            let Some((_, escape)) = characters.next() else { break };
            let mut code = |digits: usize| {
                let hex: String = characters.by_ref().take(digits).map(|(_, digit)| digit).collect();
                u32::from_str_radix(&hex, 16).map_err(|_| format!("\\{escape}{hex} is no character"))
            };
            match escape {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                '0' => text.push('\0'),
                '\\' | '\'' | '"' | '/' => text.push(escape),
                '\n' => {}
                'x' => text.push(letter(code(2)?)),
                'u' => {
                    let unit = code(4)?;
                    match (high.take(), unit) {
                        (_, 0xD800..=0xDBFF) => high = Some(unit),
                        (Some(high), 0xDC00..=0xDFFF) => {
                            text.push(letter(0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00)));
                        }
                        _ => text.push(letter(unit)),
                    }
                }
                // A model that writes `\U` more likely means a path of Windows.
                'U' if self.is_repr => text.push(letter(code(8)?)),
                // As in Python, an unknown escape is kept literally.
                other => text.extend(['\\', other]),
            }
        }
        Err("incomplete: a text is not closed".into())
    }

    /// Moves behind a text in quotes.
    fn quoted(&mut self) -> Result<(), String> {
        let mut letters = self.rest.chars();
        let quote = letters.next();
        loop {
            match letters.next() {
                None => return Err("incomplete: a text is not closed".into()),
                Some('\\') => _ = letters.next(),
                letter if letter == quote => break,
                Some(_) => {}
            }
        }
        self.rest = letters.as_str();
        Ok(())
    }

    /// Moves behind parentheses, and returns what is between them.
    fn parentheses(&mut self) -> Result<&'a str, String> {
        let start = self.rest;
        let mut open = 0;
        loop {
            match self.rest.chars().next() {
                None => return Err("incomplete: a parenthesis is not closed".into()),
                Some('"' | '\'') => {
                    self.quoted()?;
                    continue;
                }
                Some('(') => open += 1,
                Some(')') => open -= 1,
                Some(_) => {}
            }
            let letter = self.rest.chars().next().map_or(0, char::len_utf8);
            self.rest = &self.rest[letter..];
            if open == 0 {
                return Ok(&start[1..start.len() - self.rest.len() - 1]);
            }
        }
    }

    /// An object that prints as `<…>`, as printed.
    fn object(&mut self) -> Result<&'a str, String> {
        let start = self.rest;
        let mut open = 0;
        for (at, letter) in start.char_indices() {
            match letter {
                '<' => open += 1,
                '>' => open -= 1,
                _ => {}
            }
            if open == 0 {
                self.rest = &start[at + 1..];
                return Ok(&start[..=at]);
            }
        }
        Err("incomplete: `>` is missing".into())
    }
}

fn is_integer(number: &str) -> bool {
    number.bytes().all(|byte| byte.is_ascii_digit() || matches!(byte, b'-' | b'+'))
}

/// An object as Python's `str` writes it, for those that results have; `None` for others.
fn plain(name: &str, arguments: &str) -> Option<String> {
    let numbers =
        || -> Option<Vec<u32>> { arguments.split(',').map(|number| number.trim().parse().ok()).collect() };
    let date = |year, month, day| format!("{year:04}-{month:02}-{day:02}");
    let time = |hour, minute, rest: &[u32]| match rest {
        [] => Some(format!("{hour:02}:{minute:02}:00")),
        [second] => Some(format!("{hour:02}:{minute:02}:{second:02}")),
        [second, micros] => Some(format!("{hour:02}:{minute:02}:{second:02}.{micros:06}")),
        _ => None,
    };
    match name {
        "Decimal" | "UUID" => of_text(arguments)?.as_str().map(str::to_owned),
        "datetime.date" => match numbers()?[..] {
            [year, month, day] => Some(date(year, month, day)),
            _ => None,
        },
        "datetime.datetime" => match numbers()?[..] {
            [year, month, day, hour, minute, ref rest @ ..] => {
                Some(format!("{} {}", date(year, month, day), time(hour, minute, rest)?))
            }
            _ => None,
        },
        "datetime.time" => match numbers()?[..] {
            [hour, minute, ref rest @ ..] => time(hour, minute, rest),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_python_prints_is_read() {
        for (text, value) in [
            ("[{'id': 1, 'name': None}]", json!([{"id": 1, "name": null}])),
            (r#"[(1, "it's", True), (2,)]"#, json!([[1, "it's", true], [2]])),
            (r"'it\'s \x00\xe9\u20ac\U0001f600\\'", json!("it's \u{0}é€😀\\")),
            ("{1: 1.5, (1, 2): -2}", json!({"1": 1.5, "[1,2]": -2})),
            ("{'a', 'b'}", json!(["a", "b"])),
            ("set()", json!("set()")),
            ("[1e+20, inf, -inf, nan, (1+2j)]", json!([1e20, "inf", "-inf", "nan", ["1+2j"]])),
            ("[123456789012345678901234567890]", json!(["123456789012345678901234567890"])),
            ("(Decimal('1.50'), UUID('a-b'))", json!(["1.50", "a-b"])),
            (
                "[datetime.date(2024, 1, 2), datetime.datetime(2024, 1, 2, 3, 4), datetime.time(3, 4, 5, 6)]",
                json!(["2024-01-02", "2024-01-02 03:04:00", "03:04:05.000006"]),
            ),
            (
                "[datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone.utc), Row(a='(', b=(1,))]",
                json!([
                    "datetime.datetime(2024, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)",
                    "Row(a='(', b=(1,))"
                ]),
            ),
            (r"[b'\x00\'', <Color.RED: 1>]", json!([r"b'\x00\''", "<Color.RED: 1>"])),
            (r#"{"a": [true, null]}"#, json!({"a": [true, null]})),
            ("[]", json!([])),
        ] {
            assert_eq!(python_repr(text), Some(value), "{text}");
        }
    }

    #[test]
    fn other_text_is_not_python() {
        for text in
            ["", "hello", "Error: no", "[1, 2", "[1] and more", "{'a': 1, 'b'}", "{'a', 'b': 1}", "f(", "<a"]
        {
            assert_eq!(python_repr(text), None, "{text}");
        }
        for open in ["[", "(", "{1:", "f(", "<", "'"] {
            assert_eq!(python_repr(&open.repeat(100_000)), None, "{open}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_a_panic(text in r#"([\[\](){}<>,:'"\\ bfx01.eé+-]|None|Decimal\(|\\u|datetime\.date\(){0,40}"#) {
            python_repr(&text);
            of_text(&text);
        }
    }
}
