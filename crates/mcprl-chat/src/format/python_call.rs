//! Calls as a Python list, `[f(a=1, b="x"), g()]`: Llama 3.2 and 4 as documented.
//!
//! A turn is either such a list or text. A parameter whose name is not a Python identifier is written as
//! `**{"name": value}`.

use serde_json::{Map, Value};

use super::{Parsed, llama::TAG};
use crate::{
    ToolCall,
    literal::{Reader, once},
    python,
};

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
    let mut reader = Reader::new(body);
    if !reader.opens() {
        return Parsed { text: turn.to_owned(), ..Parsed::default() };
    }
    let mut calls = Vec::new();
    // After a malformed call, the start of the next one is unknown.
    let text = loop {
        calls.push(reader.call());
        if calls.last().is_some_and(Result::is_err) {
            break "";
        }
        let more = reader.take(",");
        if reader.take("]") {
            break reader.rest;
        }
        if !more {
            calls.push(Err("`,` or `]` is missing behind a call".into()));
            break "";
        }
    };
    Parsed { text: text.to_owned(), calls, ..Parsed::default() }
}

impl<'a> Reader<'a> {
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
                self.unpack(&mut arguments)?;
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
}

#[cfg(test)]
mod tests {
    use crate::format::{Format, tests::shown_turn};

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
