//! Calls as a Python list, `[f(a=1, b="x"), g()]`: Llama 3.2 and 4 as documented.
//!
//! A turn is either such a list or text. A parameter whose name is not a Python identifier is written as
//! `**{"name": value}`.

use serde_json::{Map, Value};

use super::Parsed;
use crate::chat::{ToolCall, python};

/// Maximum nesting of a value.
const DEEPEST: usize = 64;
const TAG: &str = "<|python_tag|>";

pub(super) fn assistant(calls: &[ToolCall]) -> String {
    let argument = |(name, value): (&String, &Value)| {
        if is_identifier(name) {
            format!("{name}={}", python::literal(value))
        } else {
            format!("**{{{}: {}}}", Value::from(name.as_str()), python::literal(value))
        }
    };
    let call = |call: &ToolCall| {
        let arguments: Vec<String> = call.arguments.iter().map(argument).collect();
        format!("{}({})", call.name, arguments.join(", "))
    };
    format!("[{}]", calls.iter().map(call).collect::<Vec<_>>().join(", "))
}

fn is_identifier(name: &str) -> bool {
    let letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    name.starts_with(letter) && name.chars().all(|c| letter(c) || c.is_ascii_digit())
}

pub(super) fn parse(turn: &str) -> Parsed {
    let body = turn.trim();
    let body = body.strip_prefix(TAG).unwrap_or(body).trim_start();
    let mut reader = Reader { rest: body };
    if !reader.opens() {
        return Parsed { text: turn.to_owned(), ..Parsed::default() };
    }
    let mut calls = Vec::new();
    loop {
        let call = reader.call();
        let failed = call.is_err();
        calls.push(call);
        // After a malformed call, the start of the next one is unknown.
        if failed {
            reader.rest = "";
            break;
        }
        let more = reader.take(",");
        if reader.take("]") {
            break;
        }
        if !more {
            calls.push(Err("`,` or `]` is missing behind a call".into()));
            reader.rest = "";
            break;
        }
    }
    Parsed { text: reader.rest.to_owned(), calls, ..Parsed::default() }
}

/// Parses a whole text as one Python or JSON value.
pub(super) fn literal(text: &str) -> Option<Value> {
    let mut reader = Reader { rest: text.trim() };
    let value = reader.value(0).ok()?;
    reader.rest.trim().is_empty().then_some(value)
}

/// Inserts a value and refuses a duplicate name.
fn once(fields: &mut Map<String, Value>, name: String, value: Value) -> Result<(), String> {
    if fields.contains_key(&name) {
        return Err(format!("{name} is given twice"));
    }
    fields.insert(name, value);
    Ok(())
}

struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, sign: &str) -> bool {
        let rest = self.rest.trim_start();
        let taken = rest.strip_prefix(sign);
        self.rest = taken.unwrap_or(rest);
        taken.is_some()
    }

    /// Takes the following characters that satisfy `of`.
    fn word(&mut self, of: impl Fn(char) -> bool) -> &'a str {
        let text = self.rest;
        let end = text.find(|c| !of(c)).unwrap_or(text.len());
        self.rest = &text[end..];
        &text[..end]
    }

    fn name(&mut self) -> &'a str {
        self.rest = self.rest.trim_start();
        self.word(|c| c.is_alphanumeric() || "_.-".contains(c))
    }

    /// Whether a list of calls starts here. A list of anything else is text.
    fn opens(&mut self) -> bool {
        if !self.take("[") {
            return false;
        }
        let start = self.rest;
        let called = !self.name().is_empty() && self.take("(");
        self.rest = start;
        called
    }

    fn call(&mut self) -> Result<ToolCall, String> {
        let name = self.name().to_owned();
        if name.is_empty() {
            return Err("the name of a function is missing".into());
        }
        if !self.take("(") {
            return Err(format!("`(` is missing behind {name}"));
        }
        let mut arguments = Map::new();
        while !self.take(")") {
            if self.take("**") {
                let Value::Object(fields) = self.value(0)? else {
                    return Err("`**` is not followed by a dictionary".into());
                };
                for (parameter, value) in fields {
                    once(&mut arguments, parameter, value)?;
                }
            } else {
                let parameter = self.name();
                if parameter.is_empty() || !self.take("=") {
                    return Err(format!("an argument of {name} is not written as name=value"));
                }
                let value = self.value(0).map_err(|why| format!("{parameter}: {why}"))?;
                once(&mut arguments, parameter.to_owned(), value)?;
            }
            if !self.take(",") && !self.rest.starts_with(')') {
                return Err(format!("`,` or `)` is missing behind an argument of {name}"));
            }
        }
        Ok(ToolCall { name, arguments })
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth > DEEPEST {
            return Err(format!("nested deeper than {DEEPEST} levels"));
        }
        self.rest = self.rest.trim_start();
        match self.rest.chars().next() {
            None => Err("incomplete".into()),
            Some(quote @ ('"' | '\'')) => self.string(quote).map(Value::from),
            Some('[') => self.items("[", "]", depth).map(Value::from),
            Some('(') => self.items("(", ")", depth).map(Value::from),
            Some('{') => self.fields(depth).map(Value::from),
            Some(c) if c.is_ascii_digit() || "+-.".contains(c) => {
                let text = self.word(|c| c.is_ascii_alphanumeric() || "+-._".contains(c));
                let number = text.trim_start_matches('+').replace('_', "");
                serde_json::from_str(&number).map_err(|_| format!("{text} is not a number"))
            }
            Some(_) => match self.word(|c| c.is_alphanumeric() || c == '_') {
                "True" | "true" => Ok(true.into()),
                "False" | "false" => Ok(false.into()),
                "None" | "null" => Ok(Value::Null),
                "" => Err("a value is missing".into()),
                word => Err(format!("{word} is no value; text stands in quotes")),
            },
        }
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

    fn fields(&mut self, depth: usize) -> Result<Map<String, Value>, String> {
        self.take("{");
        let mut fields = Map::new();
        while !self.take("}") {
            let key = match self.value(depth + 1)? {
                Value::String(key) => key,
                other => other.to_string(),
            };
            if !self.take(":") {
                return Err("`:` is missing in a dictionary".into());
            }
            let value = self.value(depth + 1)?;
            once(&mut fields, key, value)?;
            if !self.take(",") && !self.rest.starts_with('}') {
                return Err("`,` or `}` is missing in a dictionary".into());
            }
        }
        Ok(fields)
    }

    fn string(&mut self, quote: char) -> Result<String, String> {
        let mut characters = self.rest.char_indices().skip(1);
        let mut text = String::new();
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
                'x' => text.push(char::from_u32(code(2)?).unwrap_or(char::REPLACEMENT_CHARACTER)),
                'u' => {
                    let unit = code(4)?;
                    match (high.take(), unit) {
                        (_, 0xD800..=0xDBFF) => high = Some(unit),
                        (Some(high), 0xDC00..=0xDFFF) => {
                            let joined = 0x10000 + ((high - 0xD800) << 10) + (unit - 0xDC00);
                            text.push(char::from_u32(joined).unwrap_or(char::REPLACEMENT_CHARACTER));
                        }
                        _ => text.push(char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)),
                    }
                }
                // As in Python, an unknown escape is kept literally.
                other => text.extend(['\\', other]),
            }
        }
        Err("incomplete: a text is not closed".into())
    }
}

#[cfg(test)]
mod tests {
    use crate::chat::format::{Format, tests::shown_turn};

    fn read(text: &str) -> String {
        shown_turn(Format::Pythonic, text)
    }

    #[test]
    fn turns_are_parsed_in_all_common_variants() {
        let cases = [
            ("just text", "just text | "),
            ("[1, 2] are the numbers", "[1, 2] are the numbers | "),
            ("[f()]", " | f{}"),
            (" [ f( a = 1 , b='x', ) , g() ] ", r#" | f{"a":1,"b":"x"}; g{}"#),
            (
                "<|python_tag|>[get-env(n=-1.5e3, t=True, z=None)]",
                r#" | get-env{"n":-1500.0,"t":true,"z":null}"#,
            ),
            (r#"[f(a=["x", ('y',)], b={'k': {"l": []}})]"#, r#" | f{"a":["x",["y"]],"b":{"k":{"l":[]}}}"#),
            (r#"[f(a="it's\n\"é\u00e9\ud83d\ude00\d")]"#, r#" | f{"a":"it's\n\"éé😀\\d"}"#),
            (r#"[f(**{"not a name": 1})]"#, r#" | f{"not a name":1}"#),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text), expected, "{text}");
        }
    }

    #[test]
    fn a_malformed_call_gives_an_error() {
        let cases = [
            ("[f(1)]", "an argument of f is not written as name=value"),
            ("[f(a=x)]", "a: x is no value; text stands in quotes"),
            ("[f(a=1 b=2)]", "`,` or `)` is missing behind an argument of f"),
            ("[f(a=\"x", "a: incomplete: a text is not closed"),
            ("[f(a=", "a: incomplete"),
            ("[f(a=1.2.3)]", "a: 1.2.3 is not a number"),
            ("[f(a=1, a=2)]", "a is given twice"),
            ("[f(a=1, **{'a': 2})]", "a is given twice"),
            ("[f(a={'b': 1, 'b': 2})]", "a: b is given twice"),
        ];
        for (text, why) in cases {
            assert_eq!(read(text), format!(" | error: {why}"), "{text}");
        }
        assert_eq!(read("[f() g()]"), " | f{}; error: `,` or `]` is missing behind a call");
        let deep = format!("[f(a={}", "[".repeat(100_000));
        assert_eq!(read(&deep), " | error: a: nested deeper than 64 levels");
    }
}
