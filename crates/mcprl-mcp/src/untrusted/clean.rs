//! Removes hidden characters from a server's texts and limits their size.

use std::{borrow::Cow, ops::Range};

use mcprl_base::text::is_hidden;
use serde_json::{Map, Value};

/// Maximum nesting of a schema.
pub(crate) const SCHEMA_DEPTH: usize = 48;

/// The text without [hidden characters](is_hidden).
pub(super) fn clean(text: &str) -> Cow<'_, str> {
    match text.contains(is_hidden) {
        true => text.chars().filter(|letter| !is_hidden(*letter)).collect::<String>().into(),
        false => text.into(),
    }
}

const ESCAPE: char = '\u{1b}';

/// The [cleaned](clean) text, and where it has the rest of a sequence for a terminal: of colours, links and sets of characters.
pub(super) fn sequences(text: &str) -> (Cow<'_, str>, Vec<Range<usize>>) {
    let Some((before, mut rest)) = text.split_once(ESCAPE) else { return (clean(text), Vec::new()) };
    let (mut cleaned, mut found) = (clean(before).into_owned(), Vec::new());
    loop {
        let (sequence, after) = rest.split_at(sequence_bytes(rest));
        let start = cleaned.len();
        cleaned.push_str(&clean(sequence));
        if cleaned.len() > start {
            found.push(start..cleaned.len());
        }
        let Some((before, after)) = after.split_once(ESCAPE) else {
            cleaned.push_str(&clean(after));
            return (cleaned.into(), found);
        };
        cleaned.push_str(&clean(before));
        rest = after;
    }
}

/// Bytes of what an escape character begins (ECMA-48, 5.4 and 5.6; ECMA-35, 14.3): `[31m` of a colour, `]8;;URL` and its end of a
/// link, `(B` of a set of characters. Zero if it begins none of them.
fn sequence_bytes(rest: &str) -> usize {
    match rest.as_bytes() {
        [b'[', within @ ..] => {
            let end = within.iter().position(|byte| !(0x30..=0x3f).contains(byte));
            end.filter(|end| (0x40..=0x7e).contains(&within[*end])).map_or(0, |end| end + 2)
        }
        [b']', ..] => {
            let Some((command, end)) = rest.split_once(|one| is_hidden(one) || one == '\n') else { return 0 };
            match rest[command.len()..].chars().next() {
                Some('\u{7}') => rest.len() - end.len(),
                Some(ESCAPE) if end.starts_with('\\') => rest.len() - end.len() + 1,
                _ => 0,
            }
        }
        [b'(' | b')', 0x30..=0x7e, ..] => 2,
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
    fn a_terminals_colours_and_links_are_known() {
        for (text, expected) in [
            ("\u{1b}[1m\u{1b}[38;5;196mError:\u{1b}[0m gone", "<[1m><[38;5;196m>Error:<[0m> gone"),
            ("see \u{1b}]8;;x\u{7}here\u{1b}]8;;\u{7}.", "see <]8;;x>here<]8;;>."),
            ("see \u{1b}]8;;x\u{1b}\\here\u{1b}]8;;\u{1b}\\.", "see <]8;;x\\>here<]8;;\\>."),
            ("\u{1b}(Bplain", "<(B>plain"),
            ("\u{1b}]0;no end\nline", "]0;no end\nline"),
            ("\u{1b}]0;no\nend\u{7}", "]0;no\nend"),
            ("\u{1b}]0;title\u{9c}text\u{7}", "]0;titletext"),
            ("a[1m \u{1b}[é \u{1b}3 \u{1b}", "a[1m [é 3 "),
            ("\u{1b}[", "["),
            ("\u{1b}[12 apples", "[12 apples"),
            ("n\u{200b}one", "none"),
        ] {
            let (cleaned, found) = sequences(text);
            assert_eq!(cleaned, clean(text), "{text:?}");
            let mut marked = cleaned.into_owned();
            for Range { start, end } in found.into_iter().rev() {
                marked.insert(end, '>');
                marked.insert(start, '<');
            }
            assert_eq!(marked, expected, "{text:?}");
        }
    }

    #[test]
    fn invisible_characters_are_removed() {
        let hidden = "a\u{200B}b\u{202E}c\u{E0041}d\u{1B}[31m\u{FEFF}\u{0}\r\n\te é 漢";
        assert_eq!(clean(hidden), "abcd[31m\n\te é 漢");
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
