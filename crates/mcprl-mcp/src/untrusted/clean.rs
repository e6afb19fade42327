//! Removes hidden characters from a server's texts and limits their size.

use std::borrow::Cow;

use mcprl_base::text::is_hidden;
use serde_json::{Map, Value};

/// Maximum nesting of a schema.
pub(crate) const SCHEMA_DEPTH: usize = 48;

/// The text without [hidden characters](is_hidden), and without a terminal's colours and links.
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return text.into();
    }
    let (mut cleaned, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        cleaned.push_str(before);
        rest = &after[sequence_bytes(after.as_bytes())..];
    }
    cleaned.push_str(rest);
    cleaned.retain(|letter| !is_hidden(letter));
    cleaned.into()
}

/// Bytes of the control sequence that an escape character begins, or of the command to the terminal, such as a link (ECMA-48,
/// 5.4 and 5.6). Zero if it begins neither.
fn sequence_bytes(rest: &[u8]) -> usize {
    let end = |is_within: fn(&u8) -> bool| 1 + rest[1..].iter().take_while(|byte| is_within(byte)).count();
    match rest.first() {
        Some(b'[') => match rest.get(end(|byte| (0x20..=0x3f).contains(byte))..) {
            Some([0x40..=0x7e, others @ ..]) => rest.len() - others.len(),
            _ => 0,
        },
        Some(b']') => match rest.get(end(|byte| *byte >= 0x20)..) {
            Some([0x07, others @ ..] | [0x1b, b'\\', others @ ..]) => rest.len() - others.len(),
            _ => 0,
        },
        _ => 0,
    }
}

/// Maximum bytes of a description, or of any other text about a server, tool or resource.
pub(crate) const TEXT_BYTES: usize = 16_384;

/// The beginning of a text of ours, cleaned and on one line, for an error message.
pub(crate) fn shorten(text: &str) -> String {
    const CHARS: usize = 300;
    let letters = text.trim().chars().map(|letter| if letter == '\n' { ' ' } else { letter });
    let mut short: String = letters.filter(|letter| !is_hidden(*letter)).take(CHARS + 1).collect();
    if let Some((end, _)) = short.char_indices().nth(CHARS) {
        short.truncate(end);
        short.push('…');
    }
    short
}

/// A JSON value without what is nested too deeply.
pub(super) fn without_depths(value: &Value) -> Value {
    cut_at(value, SCHEMA_DEPTH)
}

fn cut_at(value: &Value, depth: usize) -> Value {
    let Some(below) = depth.checked_sub(1) else { return Value::Object(Map::new()) };
    match value {
        Value::Array(items) => items.iter().map(|item| cut_at(item, below)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, item)| (name.clone(), cut_at(item, below))).collect())
        }
        other => other.clone(),
    }
}

/// Whether [`without_depths`] leaves something out.
pub(super) fn is_too_deep(value: &Value) -> bool {
    without_depths(value) != *value
}

/// Shortens a text to `limit` bytes: its beginning, a note of how much is missing, and its end.
pub(crate) fn truncate_middle(text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    let marker = |missing: usize| format!("\n[… {missing} bytes left out …]\n");
    let Some(kept) = limit.checked_sub(marker(text.len()).len()) else {
        return text[..boundary_before(&text, limit)].to_owned();
    };
    let head = boundary_before(&text, kept.div_ceil(2));
    let tail =
        (text.len() - kept / 2..text.len()).find(|index| text.is_char_boundary(*index)).unwrap_or(text.len());
    format!("{}{}{}", &text[..head], marker(tail - head), &text[tail..])
}

/// The last character boundary at or before `index`.
fn boundary_before(text: &str, index: usize) -> usize {
    (0..=index).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_terminals_colours_and_links_are_no_text() {
        for (text, expected) in [
            ("\u{1b}[1m\u{1b}[38;5;196mError:\u{1b}[0m gone", "Error: gone"),
            ("see \u{1b}]8;;http://x\u{7}here\u{1b}]8;;\u{7}.", "see here."),
            ("see \u{1b}]8;;http://x\u{1b}\\here\u{1b}]8;;\u{1b}\\.", "see here."),
            ("\u{1b}]0;no end\nline", "]0;no end\nline"),
            ("a[1m \u{1b}[é \u{1b}3 \u{1b}", "a[1m [é 3 "),
            ("\u{1b}[", "["),
        ] {
            assert_eq!(clean(text), expected, "{text:?}");
        }
    }

    #[test]
    fn invisible_characters_are_removed() {
        let hidden = "a\u{200B}b\u{202E}c\u{E0041}d\u{1B}\u{FEFF}\u{0}\r\n\te é 漢";
        assert_eq!(clean(hidden), "abcd\n\te é 漢");
    }

    #[test]
    fn a_schema_keeps_its_key_order_and_drops_what_is_too_deep() {
        let schema = json!({"z": {"b": ["x"]}, "a": 1});
        assert_eq!(without_depths(&schema).to_string(), r#"{"z":{"b":["x"]},"a":1}"#);
        let deep = (0..200).fold(json!("end"), |inner, _| json!([inner]));
        assert!(!without_depths(&deep).to_string().contains("end"));
        assert!(is_too_deep(&deep));
        let kept = (1..SCHEMA_DEPTH).fold(json!("end"), |inner, _| json!([inner]));
        assert_eq!(without_depths(&kept), kept);
        assert!(!is_too_deep(&kept));
        assert!(is_too_deep(&json!([kept])));
    }

    #[test]
    fn a_long_text_keeps_both_ends_within_the_limit_and_between_characters() {
        let text: String = (0..500).map(|_| "é").collect();
        for limit in [0, 1, 20, 101, 102, 999] {
            let cut = truncate_middle(text.clone(), limit);
            assert!(cut.len() <= limit, "{limit}: {}", cut.len());
        }
        assert_eq!(truncate_middle("short".into(), 5), "short");
        let cut = truncate_middle("a".repeat(100) + &"z".repeat(100), 60);
        insta::assert_snapshot!(cut, @r"
        aaaaaaaaaaaaaaa
        [… 170 bytes left out …]
        zzzzzzzzzzzzzzz
        ");
    }
}
