//! Removes invisible characters from a server's texts and limits their size, before a person or model reads them.

use serde_json::{Map, Value};

/// Maximum nesting of a schema.
pub(super) const SCHEMA_DEPTH: usize = 48;

/// The text without invisible characters: controls (except tab and newline), bidirectional overrides, zero-width
/// characters, and the tag block. All of them can hide instructions.
pub(super) fn clean(text: &str) -> String {
    text.chars().filter(|letter| !is_hidden(*letter)).collect()
}

/// Maximum bytes of a description, or of any other text about a server, tool or resource.
pub(super) const TEXT_BYTES: usize = 16_384;

/// The text, cleaned and cut in the middle to [`TEXT_BYTES`].
pub(super) fn bounded(text: &str) -> String {
    truncate_middle(clean(text).trim().to_owned(), TEXT_BYTES)
}

/// The beginning of a text, cleaned and on one line, for an error message.
pub(super) fn shorten(text: &str) -> String {
    const CHARS: usize = 300;
    let letters = text.trim().chars().map(|letter| if letter == '\n' { ' ' } else { letter });
    let mut short: String = letters.filter(|letter| !is_hidden(*letter)).take(CHARS + 1).collect();
    if let Some((end, _)) = short.char_indices().nth(CHARS) {
        short.truncate(end);
        short.push('…');
    }
    short
}

fn is_hidden(letter: char) -> bool {
    match letter {
        '\t' | '\n' => false,
        _ if letter.is_control() => true,
        // Soft hyphen, combining grapheme joiner, Arabic letter mark, Hangul fillers, Mongolian separator.
        '\u{00AD}' | '\u{034F}' | '\u{061C}' | '\u{115F}' | '\u{1160}' | '\u{180E}' | '\u{3164}'
        | '\u{FFA0}' => true,
        // Zero-width characters and joiners, directional marks, embeddings and overrides, invisible operators.
        '\u{200B}'..='\u{200F}' | '\u{202A}'..='\u{202E}' | '\u{2060}'..='\u{206F}' | '\u{FEFF}' => true,
        // Line and paragraph separators, interlinear annotations, variation selectors, tags.
        '\u{2028}' | '\u{2029}' | '\u{FFF9}'..='\u{FFFB}' => true,
        '\u{FE00}'..='\u{FE0F}' | '\u{E0000}'..='\u{E0FFF}' => true,
        _ => false,
    }
}

/// A JSON value with all texts and keys cleaned, and without what is nested too deeply.
pub(super) fn clean_json(value: &Value) -> Value {
    clean_at(value, SCHEMA_DEPTH)
}

fn clean_at(value: &Value, depth: usize) -> Value {
    let Some(below) = depth.checked_sub(1) else { return Value::Object(Map::new()) };
    match value {
        Value::String(text) => clean(text).into(),
        Value::Array(items) => items.iter().map(|item| clean_at(item, below)).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, item)| (clean(name), clean_at(item, below))).collect())
        }
        other => other.clone(),
    }
}

/// Whether [`clean_json`] leaves something out.
pub(super) fn is_too_deep(value: &Value) -> bool {
    fn exceeds(value: &Value, depth: usize) -> bool {
        let Some(below) = depth.checked_sub(1) else { return true };
        match value {
            Value::Array(items) => items.iter().any(|item| exceeds(item, below)),
            Value::Object(fields) => fields.values().any(|item| exceeds(item, below)),
            _ => false,
        }
    }
    exceeds(value, SCHEMA_DEPTH)
}

/// Shortens a text to `limit` bytes: its beginning, a note of how much is missing, and its end.
pub(super) fn truncate_middle(text: String, limit: usize) -> String {
    if text.len() <= limit {
        return text;
    }
    let marker = |missing: usize| format!("\n[… {missing} bytes left out …]\n");
    let Some(kept) = limit.checked_sub(marker(text.len()).len()) else {
        return text[..boundary_before(&text, limit)].to_owned();
    };
    let head = boundary_before(&text, kept.div_ceil(2));
    let tail = boundary_after(&text, text.len() - kept / 2);
    format!("{}{}{}", &text[..head], marker(tail - head), &text[tail..])
}

/// The last character boundary at or before `index`.
fn boundary_before(text: &str, index: usize) -> usize {
    (0..=index).rev().find(|index| text.is_char_boundary(*index)).unwrap_or(0)
}

/// The first character boundary at or after `index`.
fn boundary_after(text: &str, index: usize) -> usize {
    (index..text.len()).find(|index| text.is_char_boundary(*index)).unwrap_or(text.len())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn invisible_characters_are_removed() {
        let hidden = "a\u{200B}b\u{202E}c\u{E0041}d\u{1B}[31m\u{FEFF}\u{0}\r\n\te é 漢";
        assert_eq!(clean(hidden), "abcd[31m\n\te é 漢");
    }

    #[test]
    fn a_schema_keeps_its_key_order_and_drops_what_is_too_deep() {
        let schema = json!({"z": {"b\u{200B}": ["x\u{202E}"]}, "a": 1});
        assert_eq!(clean_json(&schema).to_string(), r#"{"z":{"b":["x"]},"a":1}"#);
        let deep = (0..200).fold(json!("end"), |inner, _| json!([inner]));
        assert!(!clean_json(&deep).to_string().contains("end"));
        assert!(is_too_deep(&deep));
        let kept = (1..SCHEMA_DEPTH).fold(json!("end"), |inner, _| json!([inner]));
        assert_eq!(clean_json(&kept), kept);
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
