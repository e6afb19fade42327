//! Formats values as Python does (`json.dumps`, `str`, `repr`), because models saw that in training.
//!
//! The JSON differs from that of `serde_json` in the spaces after `,` and `:`, in floats and in NaN.

use std::{borrow::Cow, fmt::Write as _};

use minijinja::{
    Value,
    value::{Serde, ValueKind},
};

use super::vocabulary::MASK;

/// Maximum nesting. The values of a conversation come from JSON, which limits them to 128 levels.
const DEEPEST: usize = 256;

/// The arguments of `json.dumps`.
#[derive(Debug, Clone)]
pub(super) struct Json {
    /// Indentation of one level; everything on one line if absent.
    pub indent: Option<String>,
    /// After an item, and after a key.
    pub separators: (String, String),
    pub ensure_ascii: bool,
    pub sort_keys: bool,
}

impl Default for Json {
    /// `ensure_ascii=False`, as in Transformers.
    fn default() -> Self {
        Self { indent: None, separators: (", ".into(), ": ".into()), ensure_ascii: false, sort_keys: false }
    }
}

/// The value on one line, as tool calls are written.
pub(super) fn line(value: &serde_json::Value) -> String {
    // A JSON value can always be written as JSON.
    json(&Value::from(Serde(value)), &Json::default(), usize::MAX).unwrap_or_default()
}

/// `json.dumps(value, …)`.
///
/// # Errors
/// For values that are not JSON: functions, undefined values, keys that are lists. If it has more than `most` bytes.
pub(super) fn json(value: &Value, json: &Json, most: usize) -> Result<String, String> {
    written(value, Syntax::Json(json), most)
}

/// The value as Python source, with strings in double quotes.
pub(super) fn literal(value: &serde_json::Value) -> String {
    // A JSON value has a literal.
    written(&Value::from(Serde(value)), Syntax::Literal, usize::MAX).unwrap_or_default()
}

/// `str(value)`.
///
/// # Errors
/// If it has more than `most` bytes, or is nested too deep.
pub(super) fn text(value: &Value, most: usize) -> Result<Cow<'_, str>, String> {
    Ok(match value.as_str() {
        Some(text) => Cow::Borrowed(text),
        None if value.is_undefined() => Cow::Borrowed(""),
        None => Cow::Owned(written(value, Syntax::Repr, most)?),
    })
}

fn written(value: &Value, syntax: Syntax, most: usize) -> Result<String, String> {
    let mut writer = Writer { out: String::new(), syntax, most };
    writer.value(value, 0)?;
    Ok(writer.out)
}

#[derive(Debug, Clone, Copy)]
enum Syntax<'a> {
    Json(&'a Json),
    /// Python literals, with strings as in JSON.
    Literal,
    /// Python literals, with strings in the quotes that `repr` chooses.
    Repr,
}

struct Writer<'a> {
    out: String,
    syntax: Syntax<'a>,
    /// Most bytes of `out`.
    most: usize,
}

impl Writer<'_> {
    fn value(&mut self, value: &Value, level: usize) -> Result<(), String> {
        if level > DEEPEST {
            return Err(format!("nested deeper than {DEEPEST} levels"));
        }
        let is_json = matches!(self.syntax, Syntax::Json(_));
        match value.kind() {
            ValueKind::None => self.out.push_str(if is_json { "null" } else { "None" }),
            ValueKind::Bool => self.out.push_str(match (is_json, value.is_true()) {
                (true, true) => "true",
                (true, false) => "false",
                (false, true) => "True",
                (false, false) => "False",
            }),
            ValueKind::Number => self.out.push_str(&number(value, is_json)),
            ValueKind::String => self.text(value.as_str().unwrap_or_default()),
            ValueKind::Map => return self.fields(value, level),
            ValueKind::Seq | ValueKind::Iterable => return self.items(value, level),
            ValueKind::Undefined if !is_json => self.out.push_str("Undefined"),
            // Functions and the like, as minijinja writes them.
            _ if !is_json => self.out.push_str(&value.to_string()),
            kind => return Err(format!("{kind} is not JSON")),
        }
        self.reserve(0)
    }

    /// Checks that this many bytes may follow.
    fn reserve(&self, bytes: usize) -> Result<(), String> {
        match self.out.len().saturating_add(bytes) <= self.most {
            true => Ok(()),
            false => Err(format!("the text has more than {} MiB", self.most >> 20)),
        }
    }

    fn items(&mut self, value: &Value, level: usize) -> Result<(), String> {
        // Each item takes a byte at least.
        self.reserve(value.len().unwrap_or(0))?;
        let items: Vec<Value> = value.try_iter().map_err(|error| error.to_string())?.collect();
        let is_tuple = matches!(self.syntax, Syntax::Repr) && value.is_tuple();
        let [open, close] = if is_tuple { ["(", ")"] } else { ["[", "]"] };
        self.enclosed(open, &items, level, |writer, item| writer.value(item, level + 1))?;
        self.out.push_str(if is_tuple && items.len() == 1 { "," } else { "" });
        self.out.push_str(close);
        Ok(())
    }

    fn fields(&mut self, value: &Value, level: usize) -> Result<(), String> {
        let pairs = value.as_object().and_then(|object| object.try_iter_pairs());
        let mut fields: Vec<(Value, Value)> = pairs.into_iter().flatten().collect();
        if let Syntax::Json(Json { sort_keys: true, .. }) = self.syntax {
            if fields.iter().any(|(key, _)| key.as_str().is_none()) && fields.len() > 1 {
                return Err("keys that are not all text cannot be sorted".into());
            }
            fields.sort_by(|(a, _), (b, _)| a.as_str().cmp(&b.as_str()));
        }
        self.enclosed("{", &fields, level, |writer, (key, item)| {
            writer.key(key, level)?;
            writer.out.push_str(match writer.syntax {
                Syntax::Json(json) => &json.separators.1,
                Syntax::Literal | Syntax::Repr => ": ",
            });
            writer.value(item, level + 1)
        })?;
        self.out.push('}');
        Ok(())
    }

    fn key(&mut self, key: &Value, level: usize) -> Result<(), String> {
        if key.as_str().is_some() || !matches!(self.syntax, Syntax::Json(_)) {
            return self.value(key, level + 1);
        }
        if !matches!(key.kind(), ValueKind::None | ValueKind::Bool | ValueKind::Number) {
            return Err(format!("a key cannot be a {}", key.kind()));
        }
        self.out.push('"');
        self.value(key, level + 1)?;
        self.out.push('"');
        Ok(())
    }

    fn enclosed<T>(
        &mut self,
        open: &str,
        items: &[T],
        level: usize,
        mut item_out: impl FnMut(&mut Self, &T) -> Result<(), String>,
    ) -> Result<(), String> {
        let (indent, separator) = match self.syntax {
            Syntax::Json(json) => (json.indent.as_deref(), json.separators.0.as_str()),
            Syntax::Literal | Syntax::Repr => (None, ", "),
        };
        self.out.push_str(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                self.out.push_str(separator);
            }
            self.break_line(indent, level + 1)?;
            item_out(self, item)?;
        }
        if !items.is_empty() {
            self.break_line(indent, level)?;
        }
        Ok(())
    }

    fn break_line(&mut self, indent: Option<&str>, level: usize) -> Result<(), String> {
        if let Some(indent) = indent {
            self.reserve(indent.len().saturating_mul(level))?;
            self.out.push('\n');
            self.out.extend(std::iter::repeat_n(indent, level));
        }
        Ok(())
    }

    fn text(&mut self, text: &str) {
        let (quote, ascii) = match self.syntax {
            Syntax::Repr if text.contains('\'') && !text.contains('"') => ('"', false),
            Syntax::Repr => ('\'', false),
            Syntax::Json(json) => ('"', json.ensure_ascii),
            Syntax::Literal => ('"', false),
        };
        let is_repr = matches!(self.syntax, Syntax::Repr);
        self.out.push(quote);
        for letter in text.chars() {
            match letter {
                '\n' => self.out.push_str("\\n"),
                '\r' => self.out.push_str("\\r"),
                '\t' => self.out.push_str("\\t"),
                '\u{8}' if !is_repr => self.out.push_str("\\b"),
                '\u{c}' if !is_repr => self.out.push_str("\\f"),
                '\\' => self.out.push_str("\\\\"),
                _ if letter == quote => self.out.extend(['\\', quote]),
                // The mask is removed later, so it must not be escaped.
                MASK => self.out.push(MASK),
                _ if is_repr && !is_printable(letter) => self.escaped(letter),
                _ if !is_repr && (letter < ' ' || ascii && !(' '..='~').contains(&letter)) => {
                    for unit in letter.encode_utf16(&mut [0; 2]) {
                        _ = write!(self.out, "\\u{unit:04x}");
                    }
                }
                _ => self.out.push(letter),
            }
        }
        self.out.push(quote);
    }

    fn escaped(&mut self, letter: char) {
        _ = match u32::from(letter) {
            code @ ..=0xFF => write!(self.out, "\\x{code:02x}"),
            code @ ..=0xFFFF => write!(self.out, "\\u{code:04x}"),
            code => write!(self.out, "\\U{code:08x}"),
        };
    }
}

/// Whether `repr` does not escape a character: not a control, format or line character, and no space except U+0020.
fn is_printable(letter: char) -> bool {
    let is_format = matches!(
        letter,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}'
            | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            | '\u{fff9}'..='\u{fffb}' | '\u{e000}'..='\u{f8ff}' | '\u{e0001}'..='\u{e007f}'
    );
    letter == ' ' || !(letter.is_control() || letter.is_whitespace() || is_format)
}

fn number(value: &Value, is_json: bool) -> String {
    if value.is_integer() {
        return value.to_string();
    }
    match f64::try_from(value.clone()) {
        Ok(float) => float_text(float, is_json),
        Err(_) => value.to_string(),
    }
}

/// `repr(float)`: the shortest digits, with an exponent below 1e-4 and from 1e16.
fn float_text(float: f64, is_json: bool) -> String {
    if !float.is_finite() {
        let [nan, infinite, negative] =
            if is_json { ["NaN", "Infinity", "-Infinity"] } else { ["nan", "inf", "-inf"] };
        return match float {
            _ if float.is_nan() => nan,
            _ if float > 0.0 => infinite,
            _ => negative,
        }
        .into();
    }
    let exponential = format!("{float:e}");
    let Some((digits, exponent)) = exponential.split_once('e') else { return exponential };
    match exponent.parse::<i32>() {
        Ok(exponent @ -4..=15) => {
            let plain = format!("{float}");
            if exponent >= 0 && !plain.contains('.') { plain + ".0" } else { plain }
        }
        Ok(exponent) => {
            let sign = if exponent < 0 { '-' } else { '+' };
            format!("{digits}e{sign}{:02}", exponent.abs())
        }
        Err(_) => exponential,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_in_python() {
        let cases = [
            (1.0, "1.0"),
            (-0.0, "-0.0"),
            (0.1, "0.1"),
            (0.0001, "0.0001"),
            (0.00001, "1e-05"),
            (1.5e-7, "1.5e-07"),
            (123_456_789.25, "123456789.25"),
            (1e15, "1000000000000000.0"),
            (1e16, "1e+16"),
            (1.25e300, "1.25e+300"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-Infinity"),
        ];
        for (float, text) in cases {
            assert_eq!(float_text(float, true), text);
        }
    }

    #[test]
    fn separators_escapes_and_key_order_are_pythons() {
        let value = serde_json::json!({"b": [1, 2.0, null], "a": {"é<": "\"\n\u{1}"}, "c": [], "d": {}});
        assert_eq!(line(&value), r#"{"b": [1, 2.0, null], "a": {"é<": "\"\n\u0001"}, "c": [], "d": {}}"#);
    }
}
