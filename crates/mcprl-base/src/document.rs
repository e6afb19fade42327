//! Files of JSON that people and other programs write: their encoding, comments, and what a parser would drop without a word.

use std::{
    collections::BTreeSet,
    io::{Error, ErrorKind},
    path::Path,
};

/// The text of a file in UTF-8 or UTF-16, without a byte order mark.
///
/// # Errors
/// If it cannot be read, or is in another encoding.
pub fn read(path: &Path) -> std::io::Result<String> {
    let bytes = std::fs::read(path)?;
    decoded(bytes).map_err(|problem| Error::new(ErrorKind::InvalidData, problem))
}

fn decoded(bytes: Vec<u8>) -> Result<String, String> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.chunks_exact(2).map(|pair| unit([pair[0], pair[1]])).collect();
        String::from_utf16(&units).map_err(|_| "it is not whole text in UTF-16".to_owned())
    };
    match bytes.as_slice() {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes),
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes),
        // JSON begins with a letter of ASCII.
        [first, 0, ..] if *first != 0 => utf16(&bytes, u16::from_le_bytes),
        [0, first, ..] if *first != 0 => utf16(&bytes, u16::from_be_bytes),
        [0xef, 0xbb, 0xbf, ..] | [..] => {
            let text = String::from_utf8(bytes).map_err(|wrong| {
                let (at, bytes) = (wrong.utf8_error().valid_up_to(), wrong.as_bytes());
                let line = 1 + bytes[..at].iter().filter(|byte| **byte == b'\n').count();
                let byte = bytes[at];
                format!(
                    "line {line} is not UTF-8: it has the byte 0x{byte:02x}; if it is Latin-1, \
                     `iconv -f LATIN1 -t UTF-8` converts it"
                )
            })?;
            Ok(text.strip_prefix('\u{feff}').map_or_else(|| text.clone(), str::to_owned))
        }
    }
}

/// What stands in a file in place of the wanted one, if it is one of the usual mistakes.
pub fn mistaken(bytes: &[u8]) -> Option<&'static str> {
    let start = bytes.trim_ascii_start();
    let lower = start[..start.len().min(15)].to_ascii_lowercase();
    let is_page = lower.starts_with(b"<!doctype html") || lower.starts_with(b"<html");
    if start.starts_with(b"version https://git-lfs") {
        return Some(
            "it is a pointer of Git LFS, and not the file: `git lfs pull` in its folder fetches that",
        );
    }
    is_page.then_some("it is a page of HTML, such as that of a login, and not the file")
}

/// JSON with texts in place of the values that Python writes and JSON does not have: `NaN`, `Infinity` and `-Infinity`.
pub fn without_python(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut at, mut from) = (String::new(), 0, 0);
    while at < bytes.len() {
        let rest = &bytes[at..];
        if rest[0] == b'"' {
            at += string(rest);
            continue;
        }
        match ["NaN", "-Infinity", "Infinity"].into_iter().find(|word| rest.starts_with(word.as_bytes())) {
            Some(word) => {
                out += &text[from..at];
                out += &format!("\"{word}\"");
                at += word.len();
                from = at;
            }
            None => at += 1,
        }
    }
    out + &text[from..]
}

/// JSON without the comments and trailing commas that editors allow in it. Lines and columns stay.
pub fn without_comments(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let (mut at, mut comma) = (0, None);
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match rest[0] {
            b'"' => string(rest),
            b'/' if rest.get(1) == Some(&b'/') => {
                let length = rest.iter().position(|byte| *byte == b'\n').unwrap_or(rest.len());
                bytes[at..at + length].fill(b' ');
                at += length;
                continue;
            }
            b'/' if rest.get(1) == Some(&b'*') => {
                let end = rest.windows(2).skip(2).position(|pair| pair == b"*/");
                let length = end.map_or(rest.len(), |end| end + 4);
                for byte in bytes[at..at + length].iter_mut().filter(|byte| **byte != b'\n') {
                    *byte = b' ';
                }
                at += length;
                continue;
            }
            _ => 1,
        };
        match bytes[at] {
            b',' => comma = Some(at),
            b']' | b'}' => {
                if let Some(comma) = comma.take() {
                    bytes[comma] = b' ';
                }
            }
            byte if byte.is_ascii_whitespace() => {}
            _ => comma = None,
        }
        at += length;
    }
    // Only whole letters were replaced.
    String::from_utf8(bytes).unwrap_or_else(|_| text.to_owned())
}

/// The length of the string that these bytes begin with.
fn string(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// What a parser drops in a text that is JSON: a key that stands twice in an object, of which it keeps the last one. With its
/// line.
pub fn dropped(text: &str) -> Option<(usize, String)> {
    let bytes = text.as_bytes();
    let (mut at, mut line) = (0, 1);
    // Keys of the open objects; none for lists.
    let mut open: Vec<Option<BTreeSet<String>>> = Vec::new();
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match rest[0] {
            b'"' => {
                let length = string(rest);
                let behind = rest[length..].iter().find(|byte| !byte.is_ascii_whitespace());
                if behind == Some(&b':')
                    && let Some(Some(keys)) = open.last_mut()
                {
                    let written = String::from_utf8_lossy(&rest[..length]);
                    let key = serde_json::from_str(&written).unwrap_or_else(|_| written.into_owned());
                    if keys.contains(&key) {
                        return Some((line, format!("the key `{key}` is there twice")));
                    }
                    keys.insert(key);
                }
                length
            }
            other => {
                match other {
                    b'{' => open.push(Some(BTreeSet::new())),
                    b'[' => open.push(None),
                    b'}' | b']' => _ = open.pop(),
                    b'\n' => line += 1,
                    _ => {}
                }
                1
            }
        };
        at += length;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_in_the_encodings_that_can_be_told() {
        let text = "{\"a\": \"é\"}";
        let units = |unit: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(unit).collect::<Vec<u8>>();
        let marked = |mark: &[u8], bytes: Vec<u8>| [mark, &bytes].concat();
        for bytes in [
            text.as_bytes().to_vec(),
            marked(&[0xef, 0xbb, 0xbf], text.as_bytes().to_vec()),
            marked(&[0xff, 0xfe], units(u16::to_le_bytes)),
            marked(&[0xfe, 0xff], units(u16::to_be_bytes)),
            units(u16::to_le_bytes),
            units(u16::to_be_bytes),
        ] {
            assert_eq!(decoded(bytes.clone()).unwrap(), text, "{bytes:?}");
        }
        let latin = decoded(b"{}\n{\"a\": \"\xe9\"}".to_vec()).unwrap_err();
        assert!(
            latin.starts_with("line 2 is not UTF-8: it has the byte 0xe9") && latin.contains("iconv"),
            "{latin}"
        );
        assert_eq!(decoded(Vec::new()).unwrap(), "");
    }

    #[test]
    fn comments_and_trailing_commas_are_left_out_and_texts_stay() {
        let text = "{ // one\n \"a\": [1, 2, /* two, */ ], \"b\": \"// no, ]\\\"\", \n}";
        let value: serde_json::Value = serde_json::from_str(&without_comments(text)).unwrap();
        assert_eq!(value, serde_json::json!({"a": [1, 2], "b": "// no, ]\""}));
        assert_eq!(without_comments("[1,,2,]"), "[1,,2 ]");
        assert_eq!(without_comments("{\"a\": 1} /*"), "{\"a\": 1}   ");
    }

    #[test]
    fn values_that_only_python_writes_become_texts() {
        let text = "{\"a\": NaN, \"b\": [-Infinity, Infinity], \"c\": \"NaN é\"}";
        assert_eq!(
            without_python(text),
            "{\"a\": \"NaN\", \"b\": [\"-Infinity\", \"Infinity\"], \"c\": \"NaN é\"}"
        );
    }

    #[test]
    fn a_file_that_is_another_one_is_named() {
        for (bytes, word) in [
            (&b"version https://git-lfs.github.com/spec/v1\noid sha256:1"[..], Some("git lfs pull")),
            (b"<!DOCTYPE html><html>", Some("HTML")),
            (b"\n<html lang=\"en\">", Some("HTML")),
            (b"{}", None),
            (b"", None),
        ] {
            let found = mistaken(bytes);
            assert_eq!(found.is_some(), word.is_some());
            assert!(word.is_none_or(|word| found.unwrap().contains(word)), "{found:?}");
        }
    }

    #[test]
    fn what_a_parser_would_drop_is_named() {
        for (text, expected) in [
            (r#"{"a": 1, "b": {"a": 2}, "c": [{"a": 1}, {"a": 1}]}"#, None),
            ("{\"a\": 1,\n \"\\u0061\": 2}", Some((2, "the key `a` is there twice"))),
            (r#"{"a": "x:", "b": "a", "c": 18446744073709551615, "d": 1e99, "e": -5}"#, None),
        ] {
            assert_eq!(dropped(text), expected.map(|(line, what)| (line, what.to_owned())), "{text}");
        }
    }
}
