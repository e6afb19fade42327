//! What looks like a key, a token or a password, wherever it stands in a text and however the text is encoded.
//!
//! A text is read in several ways: as it is; without the escapes of JSON, Python, C and addresses, again and again, because JSON
//! has texts that are JSON; without those of mail; in base64; and as UTF-16. A compressed file is searched as what it holds. Everything that leaves mcprl is decided here: uploads, recorded conversations, exports,
//! reports, trackers and journals.

use std::{
    borrow::Cow,
    io::{self, Read},
    ops::Range,
    sync::LazyLock,
};

use super::{
    encoded::{base64, quoted_printable},
    packed::{CONTENT_BYTES, PACKED_BYTES, is_packed, unpack},
};
use regex::bytes::{Regex, RegexBuilder, RegexSet, RegexSetBuilder};
use serde_json::{Map, Value};

/// What stands in place of a secret.
pub(super) const HIDDEN: &str = "…";

/// A kind of secret.
struct Kind {
    name: &'static str,
    /// Its beginning is a literal, so that a search is fast. Repetitions are bounded where `is_one` may refuse.
    pattern: &'static str,
    /// Whether a match is one, with the bytes around it.
    is_one: fn(&Match<'_>) -> bool,
}

struct Match<'b> {
    before: Option<u8>,
    bytes: &'b [u8],
    after: Option<u8>,
}

const KINDS: [Kind; 14] = [
    Kind {
        name: "a private key",
        pattern: r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----(?:[A-Za-z0-9+/=:,.\s-]*-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)?",
        is_one: |_| true,
    },
    Kind {
        name: "a token of GitHub",
        pattern: r"gh[pousr]_[A-Za-z0-9]{36,255}|github_pat_[A-Za-z0-9_]{40,255}",
        is_one: |found| found.is_apart_or_mixed(),
    },
    Kind {
        name: "a token of Hugging Face",
        pattern: r"hf_[A-Za-z0-9]{30,64}",
        is_one: |found| found.is_apart_or_mixed(),
    },
    Kind { name: "a key of Anthropic", pattern: r"sk-ant-[A-Za-z0-9_-]{20,256}", is_one: |_| true },
    Kind {
        name: "a key of OpenAI",
        pattern: r"sk-(?:proj|svcacct|admin|or-v1)-[A-Za-z0-9_-]{32,256}|sk-[A-Za-z0-9_-]{32,256}",
        is_one: |found| !found.bytes.starts_with(b"sk-ant-") && found.is_no_slug(),
    },
    Kind {
        name: "a key of AWS",
        pattern: r"A[KS]IA[0-9A-Z]{16}",
        is_one: |found| found.is_alone() || found.has(u8::is_ascii_digit),
    },
    Kind {
        name: "a key of Google",
        pattern: r"AIza[0-9A-Za-z_-]{35}",
        is_one: |found| found.is_apart_or_mixed(),
    },
    Kind {
        name: "a token of Slack",
        pattern: r"xox[abeoprs]-[0-9A-Za-z-]{20,256}",
        is_one: |found| found.has(u8::is_ascii_digit),
    },
    Kind { name: "a token of GitLab", pattern: r"glpat-[A-Za-z0-9_-]{20,64}", is_one: |_| true },
    Kind {
        name: "a token of npm",
        pattern: r"npm_[A-Za-z0-9]{36}",
        is_one: |found| found.is_apart_or_mixed(),
    },
    Kind {
        name: "a key of Stripe",
        pattern: r"[rs]k_live_[A-Za-z0-9]{16,128}",
        is_one: |found| found.is_apart_or_mixed(),
    },
    Kind {
        name: "a JSON web token",
        pattern: r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{16,}",
        is_one: |_| true,
    },
    Kind {
        name: "a signed address",
        pattern: r"(?i)X-(?:Amz|Goog)-Signature=[0-9a-f]{32,1024}|[?&;]sig=[A-Za-z0-9%+/=_-]{40,128}",
        is_one: |_| true,
    },
    Kind {
        name: "a password in a URL",
        // With letters outside ASCII, but in UTF-8: weights are no passwords.
        pattern: r#"://(?:[!-~&&[^/?#:"'<>\\]]|[\xc3-\xf4][\x80-\xbf]{1,3}){0,128}:(?:[!-~&&[^"'<>\\]]|[\xc3-\xf4][\x80-\xbf]{1,3}){4,256}@"#,
        is_one: |found| found.is_password(),
    },
];

static SET: LazyLock<RegexSet> = LazyLock::new(|| {
    let patterns = KINDS.iter().map(|kind| kind.pattern);
    RegexSetBuilder::new(patterns).unicode(false).build().expect("the patterns are valid")
});

static PATTERNS: LazyLock<Vec<Regex>> = LazyLock::new(|| {
    let built = |kind: &Kind| RegexBuilder::new(kind.pattern).unicode(false).build();
    KINDS.iter().map(|kind| built(kind).expect("the pattern is valid")).collect()
});

impl Match<'_> {
    fn has(&self, is: fn(&u8) -> bool) -> bool {
        self.bytes.iter().any(is)
    }

    fn begins(&self) -> bool {
        self.before.is_none_or(|byte| !byte.is_ascii_alphanumeric())
    }

    fn is_alone(&self) -> bool {
        self.begins() && self.after.is_none_or(|byte| !byte.is_ascii_alphanumeric())
    }

    /// Behind a letter, what is in small letters is the rest of a word.
    fn is_apart_or_mixed(&self) -> bool {
        self.begins() || self.has(u8::is_ascii_uppercase) && self.has(u8::is_ascii_lowercase)
    }

    /// Words with hyphens are no key: `sk-learn-…`, `task-…`.
    fn is_no_slug(&self) -> bool {
        let mut runs = self.bytes["sk-".len()..].split(|byte| !byte.is_ascii_alphanumeric());
        let is_known = ["sk-proj-", "sk-svcacct-", "sk-admin-", "sk-or-v1-"];
        if self.begins() {
            let known = is_known.iter().any(|start| self.bytes.starts_with(start.as_bytes()));
            let is_random =
                |run: &[u8]| run.iter().any(u8::is_ascii_digit) && run.iter().any(u8::is_ascii_alphabetic);
            return known || runs.any(|run| run.len() >= 20 || run.len() >= 16 && is_random(run));
        }
        runs.any(|run| {
            let kinds = [u8::is_ascii_digit, u8::is_ascii_uppercase, u8::is_ascii_lowercase];
            run.len() >= 20 && kinds.iter().all(|is| run.iter().any(is))
        })
    }

    /// Behind a scheme, and not the name of one: `${PASSWORD}`, `{password}`, `***`.
    fn is_password(&self) -> bool {
        let inner = &self.bytes[b"://".len()..self.bytes.len() - 1];
        let password = inner.splitn(2, |byte| *byte == b':').nth(1).unwrap_or_default();
        let is_name = password.starts_with(b"${")
            || password.starts_with(b"{") && password.ends_with(b"}")
            || password.starts_with(b"[") && password.ends_with(b"]")
            || password.starts_with(b"$")
                && password[1..].iter().all(|byte| byte.is_ascii_uppercase() || *byte == b'_');
        let is_blank = password.iter().all(|byte| b"*x.".contains(byte));
        // What stands before a path is a port, and a path may have an `@`.
        let begin = password.split(|byte| b"/?#".contains(byte)).next().unwrap_or_default();
        let is_path = begin.len() < password.len() && begin.iter().all(u8::is_ascii_digit);
        self.before.is_some_and(|byte| byte.is_ascii_alphanumeric()) && !is_name && !is_blank && !is_path
    }
}

/// The kind of the first secret in a text.
pub fn in_text(text: &str) -> Option<&'static str> {
    in_bytes(text.as_bytes())
}

/// The kind of the first secret in the texts of a value.
pub fn in_value(value: &Value) -> Option<&'static str> {
    match value {
        Value::String(text) => in_text(text),
        Value::Array(items) => items.iter().find_map(in_value),
        Value::Object(fields) => {
            fields.iter().find_map(|(name, value)| in_text(name).or_else(|| in_value(value)))
        }
        _ => None,
    }
}

/// The kind of the first secret in bytes of any encoding.
pub fn in_bytes(bytes: &[u8]) -> Option<&'static str> {
    within(bytes, WITHIN)
}

/// The same, in texts of base64 so many levels deep.
fn within(bytes: &[u8], levels: usize) -> Option<&'static str> {
    for units in [None, Some(0), Some(1)] {
        let mut reading = match units {
            None => Cow::Borrowed(bytes),
            Some(_) if !bytes.contains(&0) => break,
            Some(first) => {
                let mut reading = Vec::with_capacity(bytes.len() / 2);
                every_second(bytes, first, |byte, _| reading.push(byte));
                Cow::Owned(reading)
            }
        };
        for _ in 0..DEPTH {
            let in_mail = || quoted_printable(&reading).and_then(|plain| first_kind(&plain));
            let in_base64 = || base64(&reading, |plain| within(plain, levels - 1));
            let found = first_kind(&reading).or_else(in_mail);
            let found = found.or_else(|| (levels > 0).then(in_base64).flatten());
            if found.is_some() {
                return found;
            }
            if !reading.iter().any(|byte| ESCAPES.contains(byte)) {
                break;
            }
            let mut plain = Vec::with_capacity(reading.len());
            if let Some(kind) =
                uncoloured(&reading, |byte, _| plain.push(byte)).then(|| first_kind(&plain)).flatten()
            {
                return Some(kind);
            }
            plain.clear();
            unescape(&reading, |byte, _| plain.push(byte));
            if plain.len() == reading.len() {
                break;
            }
            reading = Cow::Owned(plain);
        }
    }
    None
}

/// What a search of a file has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Searched {
    /// The kind of the first secret.
    pub kind: Option<&'static str>,
    /// Whether all of it is text, or was decompressed to text. In images and columns of numbers, what is compressed is not seen.
    pub is_text: bool,
}

/// Bytes that are searched at a time.
const CHUNK: usize = 1 << 20;
/// Bytes that a secret has at most, as it is encoded.
const OVERLAP: usize = 64 << 10;

/// Searches a file of any size, to the first secret.
///
/// # Errors
/// If it cannot be read.
pub fn in_file(file: impl Read) -> io::Result<Searched> {
    let mut left = CONTENT_BYTES;
    unpacked(file, WITHIN, &mut left)
}

/// The same, in compressed files so many levels deep, which hold at most `left` bytes in all.
fn unpacked(mut file: impl Read, levels: usize, left: &mut usize) -> io::Result<Searched> {
    let (mut buffer, mut is_text, mut is_first, mut is_wide) = (Vec::new(), true, true, false);
    let mut packed: Option<Vec<u8>> = None;
    loop {
        let kept = buffer.len();
        file.by_ref().take(CHUNK as u64).read_to_end(&mut buffer)?;
        let new = &buffer[kept..];
        if std::mem::take(&mut is_first) {
            is_wide = new.starts_with(&[0xff, 0xfe]) || new.starts_with(&[0xfe, 0xff]);
            packed = (levels > 0 && is_packed(new)).then(Vec::new);
        }
        if let Some(packed) = packed.as_mut().filter(|packed| packed.len() <= PACKED_BYTES) {
            packed.extend_from_slice(new);
        }
        let controls =
            new.iter().filter(|byte| byte.is_ascii_control() && !b"\0\t\n\x0b\x0c\r\x1b".contains(byte));
        is_text &= is_wide || controls.count() * 100 <= new.len();
        if let Some(kind) = in_bytes(&buffer) {
            return Ok(Searched { kind: Some(kind), is_text });
        }
        if new.len() < CHUNK {
            break;
        }
        // Even, so that units of two bytes stay together.
        buffer.drain(..buffer.len() - OVERLAP);
    }
    let Some(packed) = packed else { return Ok(Searched { kind: None, is_text }) };
    let (mut kind, mut is_text) = (None, packed.len() <= PACKED_BYTES);
    is_text &= unpack(&packed, left, |content, left| {
        // Bytes in memory can be read.
        if kind.is_none()
            && let Ok(inner) = unpacked(content, levels - 1, left)
        {
            kind = inner.kind;
            is_text &= inner.is_text;
        }
    });
    Ok(Searched { kind, is_text })
}

/// A text with `…` in place of each secret.
pub fn concealed(text: &str) -> Cow<'_, str> {
    if in_text(text).is_none() {
        return text.into();
    }
    let mut spans = spans(text.as_bytes());
    spans.sort_by_key(|span| span.start);
    let (mut shown, mut end) = (Vec::with_capacity(text.len()), 0);
    for span in spans {
        if span.start >= end {
            shown.extend_from_slice(&text.as_bytes()[end..span.start]);
            shown.extend_from_slice(HIDDEN.as_bytes());
        }
        end = end.max(span.end);
    }
    shown.extend_from_slice(&text.as_bytes()[end..]);
    let shown = String::from_utf8_lossy(&shown).into_owned();
    // One may come together only now.
    if in_text(&shown).is_some() { HIDDEN.to_owned().into() } else { shown.into() }
}

/// Conceals the secrets in the texts and names of a value. Returns whether there were any.
pub fn conceal(value: &mut Value) -> bool {
    let shown = |text: &str| match concealed(text) {
        Cow::Owned(shown) => Some(shown),
        Cow::Borrowed(_) => None,
    };
    match value {
        Value::String(text) => shown(text).map(|shown| *text = shown).is_some(),
        Value::Array(items) => items.iter_mut().fold(false, |any, item| conceal(item) | any),
        Value::Object(fields) => {
            let mut any = fields.values_mut().fold(false, |any, item| conceal(item) | any);
            if fields.keys().any(|name| shown(name).is_some()) {
                any = true;
                let renamed = std::mem::take(fields).into_iter();
                *fields =
                    renamed.map(|(name, item)| (shown(&name).unwrap_or(name), item)).collect::<Map<_, _>>();
            }
            any
        }
        _ => false,
    }
}

/// How many times a text may be escaped.
const DEPTH: usize = 9;
/// How many levels of base64, or of compressed files, are searched.
const WITHIN: usize = 2;
const ESCAPES: [u8; 5] = *b"\\%&\x1b\xc2";

fn first_kind(reading: &[u8]) -> Option<&'static str> {
    let candidates = SET.matches(reading);
    candidates.iter().find(|kind| matches(*kind, reading).next().is_some()).map(|kind| KINDS[kind].name)
}

/// Where a reading has secrets of a kind.
fn matches(kind: usize, reading: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        loop {
            let found = PATTERNS[kind].find_at(reading, from)?;
            let at = |index: usize| reading.get(index).copied();
            let before = found.start().checked_sub(1).and_then(at);
            let candidate = Match { before, bytes: found.as_bytes(), after: at(found.end()) };
            if (KINDS[kind].is_one)(&candidate) {
                from = found.end();
                return Some(found.range());
            }
            // Another may begin within it.
            from = found.start() + 1;
        }
    })
}

/// Where the bytes have secrets, in any reading.
fn spans(bytes: &[u8]) -> Vec<Range<usize>> {
    let mut spans = Vec::new();
    for units in [None, Some(0), Some(1)] {
        let mut reading: Vec<(u8, usize)> = Vec::with_capacity(bytes.len());
        match units {
            None => reading.extend(bytes.iter().copied().zip(0..)),
            Some(first) => every_second(bytes, first, |byte, at| reading.push((byte, at))),
        }
        for _ in 0..DEPTH {
            let (plain, mut at): (Vec<u8>, Vec<usize>) = reading.iter().copied().unzip();
            at.push(bytes.len());
            let mut found = |text: &[u8], at: &[usize]| {
                for kind in SET.matches(text) {
                    spans.extend(matches(kind, text).map(|span| at[span.start]..at[span.end]));
                }
            };
            found(&plain, &at);
            let (mut words, mut places) = (Vec::new(), Vec::new());
            if uncoloured(&plain, |byte, index| {
                words.push(byte);
                places.push(at[index]);
            }) {
                places.push(bytes.len());
                found(&words, &places);
            }
            let mut next = Vec::with_capacity(reading.len());
            unescape(&plain, |byte, index| next.push((byte, at[index])));
            if next.len() == reading.len() {
                break;
            }
            reading = next;
        }
    }
    spans
}

/// A text in units of two bytes as UTF-8. The lower byte of each is its first or second; a neighbour that is 0 may be on either
/// side, since the text may begin anywhere. Passes each byte on with its place.
fn every_second(bytes: &[u8], lower: usize, mut push: impl FnMut(u8, usize)) {
    for at in (lower..bytes.len()).step_by(2) {
        let beside = [at.checked_sub(1), Some(at + 1)].map(|index| bytes.get(index?).copied());
        let upper = if beside.contains(&Some(0)) { 0 } else { beside[1 - lower].unwrap_or(0) };
        // The other half of a unit of four bytes.
        if upper == 0 && bytes[at] == 0 {
            continue;
        }
        match char::from_u32(u32::from(upper) << 8 | u32::from(bytes[at])) {
            Some(letter) => letter.encode_utf8(&mut [0; 4]).bytes().for_each(|part| push(part, at)),
            // Half of a character.
            None => push(0xff, at),
        }
    }
}

/// The number behind this many bytes, up to this end, and the length of all.
fn numbered(bytes: &[u8], start: usize, radix: u32, end: u8) -> (Option<u32>, usize) {
    let rest = bytes.get(start..).unwrap_or_default();
    let digits = rest.iter().take(8).position(|byte| *byte == end);
    let number = digits.and_then(|digits| std::str::from_utf8(&rest[..digits]).ok());
    let number = number.filter(|number| !number.starts_with('+'));
    let number = number.and_then(|number| u32::from_str_radix(number, radix).ok());
    (number, start + digits.unwrap_or_default() + 1)
}

/// Most bytes of a sequence for a terminal: a link has an address in it.
const SEQUENCE: usize = 2048;

/// The length of the sequence for a terminal (ECMA-48) that begins here, such as a colour, a link or a character set, or of a soft hyphen.
fn sequence(bytes: &[u8]) -> Option<usize> {
    let end = |rest: &[u8]| rest.iter().take(SEQUENCE).position(|byte| (b'@'..=b'~').contains(byte));
    match bytes {
        [b'\x1b', b'[', rest @ ..] | [0xc2, 0x9b, rest @ ..] => end(rest).map(|end| end + 3),
        [b'\x1b', b']' | b'P' | b'X' | b'^' | b'_', rest @ ..] => {
            let end = rest.iter().take(SEQUENCE).position(|byte| [b'\x07', b'\x1b'].contains(byte))?;
            Some(end + if rest[end] == b'\x1b' { 4 } else { 3 })
        }
        [b'\x1b', b' '..=b'/', b'0'..=b'~', ..] => Some(3),
        [b'\x1b', b'0'..=b'~', ..] | [0xc2, 0xad, ..] => Some(2),
        _ => None,
    }
}

/// A text without sequences for a terminal, where they stand in the middle of words. Passes each byte on with its place. Returns
/// whether there were any.
fn uncoloured(bytes: &[u8], mut push: impl FnMut(u8, usize)) -> bool {
    if !bytes.iter().any(|byte| [b'\x1b', 0xc2].contains(byte)) {
        return false;
    }
    let (mut at, mut any) = (0, false);
    while let Some(byte) = bytes.get(at) {
        match sequence(&bytes[at..]) {
            Some(length) => {
                any = true;
                at += length;
            }
            None => {
                push(*byte, at);
                at += 1;
            }
        }
    }
    any
}

/// A text without one layer of escapes. Passes each byte on with its place.
fn unescape(bytes: &[u8], mut push: impl FnMut(u8, usize)) {
    let hex = |from: usize, digits: usize| {
        let text = std::str::from_utf8(bytes.get(from..from + digits)?).ok()?;
        text.bytes().all(|digit| digit.is_ascii_hexdigit()).then_some(())?;
        u32::from_str_radix(text, 16).ok()
    };
    // A byte, as C and shells write it.
    let octal = |from: usize| {
        let text = std::str::from_utf8(bytes.get(from..from + 3)?).ok()?;
        text.bytes().all(|digit| (b'0'..=b'7').contains(&digit)).then_some(())?;
        u32::from_str_radix(text, 8).ok().filter(|byte| *byte < 256)
    };
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        let numbered = |start, radix, end| numbered(&bytes[at..], start, radix, end);
        let (plain, length) = match (byte, bytes.get(at + 1)) {
            (b'\\', Some(b'0')) if octal(at + 2).is_some() => (octal(at + 2), 5),
            (b'\\', Some(b'0'..=b'3')) if octal(at + 1).is_some() => (octal(at + 1), 4),
            (b'\\', Some(b'n' | b'r' | b't' | b'b' | b'f' | b'v' | b'0')) => (Some(u32::from(b'\n')), 2),
            (b'\\', Some(quoted @ (b'"' | b'\'' | b'/' | b'\\'))) => (Some(u32::from(*quoted)), 2),
            (b'\\', Some(b'e')) => (Some(0x1b), 2),
            (b'\\', Some(b'u')) if bytes.get(at + 2) == Some(&b'{') => numbered(3, 16, b'}'),
            (b'\\', Some(b'u')) => (hex(at + 2, 4), 6),
            (b'\\', Some(b'U')) => (hex(at + 2, 8), 10),
            (b'&', Some(b'#')) if matches!(bytes.get(at + 2), Some(b'x' | b'X')) => numbered(3, 16, b';'),
            (b'&', Some(b'#')) => numbered(2, 10, b';'),
            // Colours stand between words.
            (b'\x1b', _) => {
                let length = sequence(&bytes[at..]);
                (length.map(|_| u32::from(b'\n')), length.unwrap_or(1))
            }
            (b'\\', Some(b'x')) => (hex(at + 2, 2), 4),
            (b'%', Some(_)) => (hex(at + 1, 2), 3),
            _ => (None, 1),
        };
        match plain.map(|plain| (plain, char::from_u32(plain))) {
            None => {
                push(*byte, at);
                at += 1;
                continue;
            }
            // A byte of a longer character, as an address has it.
            Some((plain, _)) if *byte == b'%' || bytes.get(at + 1).is_some_and(u8::is_ascii_digit) => {
                push(plain as u8, at);
            }
            Some((_, Some(letter))) => {
                letter.encode_utf8(&mut [0; 4]).bytes().for_each(|part| push(part, at));
            }
            // Half of a character.
            Some((_, None)) => push(0xff, at),
        }
        at += length;
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;

    use serde_json::json;

    use super::*;

    /// A secret of every kind.
    fn planted() -> Vec<(&'static str, String)> {
        let key = "a1B2c3D4e5F6".repeat(4);
        let hex = "0f1e2d3c4b5a69788796a5b4c3d2e1f0";
        [
            ("a private key", "-----BEGIN RSA PRIVATE KEY-----".to_owned()),
            ("a token of GitHub", format!("ghp_{}", &key[..36])),
            ("a token of GitHub", format!("github_pat_{key}")),
            ("a token of Hugging Face", format!("hf_{}", "kLmNoPqR".repeat(5))),
            ("a key of Anthropic", format!("sk-ant-api03-{key}")),
            ("a key of OpenAI", format!("sk-{key}")),
            ("a key of OpenAI", format!("sk-proj-{}", "Ab-1_".repeat(12))),
            ("a key of OpenAI", format!("sk-{hex}")),
            ("a key of AWS", "AKIAIOSFODNN7EXAMPLE".to_owned()),
            ("a key of Google", format!("AIza{}", &key[..35])),
            ("a token of Slack", format!("xoxb-123456789012-{}", &key[..24])),
            ("a token of GitLab", format!("glpat-{}", &key[..20])),
            ("a token of npm", format!("npm_{}", &key[..36])),
            ("a key of Stripe", format!("sk_live_{}", &key[..24])),
            ("a JSON web token", format!("eyJhbGciOiJI.eyJzdWIiOiIx.{key}")),
            ("a signed address", format!("X-Amz-Signature={hex}{hex}")),
            ("a password in a URL", "postgresql+psycopg2://ada:pässw@ort@db/shop".to_owned()),
            ("a password in a URL", "redis://:hunter22@db".to_owned()),
            ("a password in a URL", "postgres://ada%40corp:p%40ss%2Fw%3Ard@db/shop".to_owned()),
            ("a password in a URL", "postgres://ada@corp:p:ss@w:rd@db/shop".to_owned()),
            ("a password in a URL", "amqp://ada:p/ss#w?rd@queue:5672".to_owned()),
        ]
        .into()
    }

    /// In lines of so many letters, if they are not 0.
    fn base64_of(bytes: &[u8], width: usize) -> String {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for three in bytes.chunks(3) {
            let value = three.iter().fold(0_u32, |value, byte| value << 8 | u32::from(*byte))
                << (8 * (3 - three.len()));
            for place in 0..4 {
                let digit = char::from(DIGITS[(value >> (18 - 6 * place)) as usize & 63]);
                text.push(if place > three.len() { '=' } else { digit });
            }
        }
        match width {
            0 => text,
            width => text
                .as_bytes()
                .chunks(width)
                .map(|line| format!("{}\n", String::from_utf8_lossy(line)))
                .collect(),
        }
    }

    /// Texts with a secret in them, as programs write them.
    fn written(secret: &str) -> Vec<Vec<u8>> {
        let lines = format!("first\nsecond\n{secret}\n\t{secret}\tend");
        let in_json = |text: &str| json!({"output": text, "code": 0}).to_string();
        let escaped = |text: &str| {
            text.chars().fold(String::new(), |mut text, letter| {
                match letter {
                    'a'..='z' | 'A'..='Z' => text.push(letter),
                    _ => letter
                        .encode_utf16(&mut [0; 2])
                        .iter()
                        .for_each(|unit| _ = write!(text, "\\u{unit:04x}")),
                }
                text
            })
        };
        let address = lines.bytes().fold(String::new(), |mut text, byte| {
            match byte {
                b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => text.push(byte.into()),
                _ => _ = write!(text, "%{byte:02X}"),
            }
            text
        });
        let numbered = |start: &str, radix: u32, end: &str| {
            let of = |letter: char| match (letter.is_ascii_alphanumeric(), radix) {
                (true, _) => letter.to_string(),
                (_, 10) => format!("{start}{}{end}", u32::from(letter)),
                _ => format!("{start}{:x}{end}", u32::from(letter)),
            };
            lines.chars().map(of).collect::<String>()
        };
        let octal = |start: &str| lines.bytes().map(|byte| format!("{start}{byte:03o}")).collect::<String>();
        let mail: String = address
            .replace('%', "=")
            .as_bytes()
            .chunks(70)
            .map(|line| format!("{}=\r\n", String::from_utf8_lossy(line)))
            .collect();
        // An escape is not broken over two lines.
        let mail =
            match mail.lines().any(|line| line[..line.len() - 1].len() > 69 && line[68..70].contains('=')) {
                true => address.replace('%', "="),
                false => mail,
            };
        let texts = [
            secret.to_owned(),
            lines.clone(),
            in_json(&lines),
            in_json(&in_json(&lines)),
            in_json(&in_json(&in_json(&in_json(&lines)))),
            in_json(&lines).replace('/', "\\/"),
            escaped(&lines),
            in_json(&escaped(&lines)),
            format!("{lines:?}"),
            format!("q={address}"),
            format!("_-{secret}-_"),
            format!("x=кл{secret}ю"),
            format!("\x1b[1;32m{secret}\x1b[0m"),
            in_json(&format!("\x1b[32m{secret}\x1b[0m")),
            format!("\x1b[01;31m\x1b[K{}\x1b[m\x1b[K{}", &secret[..4], &secret[4..]),
            in_json(&format!("{}\x1b[1m\x1b(B{}", &secret[..3], &secret[3..])),
            format!("{}\x1b]8;;https://a.example\x1b\\{}\x1b]8;;\x07", &secret[..4], &secret[4..]),
            format!("{}\x1b7\x1b*B\u{9b}1m{}", &secret[..4], &secret[4..]),
            format!("{}\x1b[{}m{}", &secret[..4], "1;".repeat(40), &secret[4..]),
            format!("{}\\e[1m{}", &secret[..4], &secret[4..]),
            format!("{}\u{ad}{}", &secret[..4], &secret[4..]),
            numbered("&#", 10, ";"),
            numbered("&#x", 16, ";"),
            numbered("\\u{", 16, "}"),
            lines.chars().map(|letter| format!("\\U{:08x}", u32::from(letter))).collect(),
            octal("\\"),
            octal("\\0"),
            in_json(&octal("\\")),
            mail.clone(),
            in_json(&mail),
            format!("data:text/plain;base64,{}", base64_of(lines.as_bytes(), 0)),
            format!("authorization: Basic {}\r\n", base64_of(format!(":{secret}").as_bytes(), 0)),
            in_json(&format!("x{}", base64_of(format!("a:{secret}").as_bytes(), 0))),
            format!("begin\n{}end", base64_of(in_json(&lines).as_bytes(), 76)),
            base64_of(base64_of(lines.as_bytes(), 0).as_bytes(), 64),
        ];
        let mut all: Vec<Vec<u8>> = texts.iter().map(|text| text.clone().into_bytes()).collect();
        for text in &texts {
            let units: Vec<u16> = text.encode_utf16().collect();
            all.push(units.iter().flat_map(|unit| unit.to_le_bytes()).collect());
            all.push(
                [0xfe, 0xff].into_iter().chain(units.iter().flat_map(|unit| unit.to_be_bytes())).collect(),
            );
            all.push(text.chars().flat_map(|letter| u32::from(letter).to_le_bytes()).collect());
            all.push(text.chars().flat_map(|letter| u32::from(letter).to_be_bytes()).collect());
            all.push([b"\xff\xfe\xe9 \x80", text.as_bytes(), b"\xe4\x80"].concat());
        }
        all
    }

    #[test]
    fn a_secret_is_found_in_every_encoding_and_nothing_is_left_of_it_where_it_is_concealed() {
        for (kind, secret) in planted() {
            for bytes in written(&secret) {
                let text = String::from_utf8_lossy(&bytes).into_owned();
                assert_eq!(in_bytes(&bytes), Some(kind), "{text}");
                assert_eq!(in_file(bytes.as_slice()).unwrap().kind, Some(kind), "{text}");
                let shown = concealed(&text);
                assert_eq!(in_text(&shown), None, "{text}: {shown}");
                let mut value = json!({"a": [text, 7], "b": {text.clone(): null}});
                let is_found = in_text(&text).is_some();
                assert_eq!(in_value(&value).is_some(), is_found);
                assert_eq!(conceal(&mut value), is_found);
                assert_eq!(in_value(&value), None, "{value}");
            }
        }
        let key = "a1B2c3D4e5F6".repeat(4);
        let text = format!("one\nhf_{key}, {{\"a\": \"x\\nsk-{key}\"}}");
        assert_eq!(concealed(&text), "one\n…, {\"a\": \"x\\n…\"}");
    }

    #[test]
    fn a_secret_is_found_wherever_it_stands_in_a_large_file() {
        let (kind, secret) = planted().swap_remove(5);
        let wide: Vec<u8> = secret.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for at in [0, CHUNK - 20, CHUNK, 2 * CHUNK - OVERLAP - 10, (70 << 20) + 2] {
            let file = io::repeat(b' ').take(at as u64).chain(&*wide).chain(io::repeat(b'.').take(99));
            assert_eq!(in_file(file).unwrap().kind, Some(kind), "{at}");
        }
    }

    /// A zip archive of uncompressed members.
    fn stored(members: &[&[u8]], is_streamed: bool) -> Vec<u8> {
        let mut archive = Vec::new();
        for member in members {
            let size = (member.len() as u32).to_le_bytes();
            let sizes = [[0; 4], size, size].concat();
            let (flags, before, behind) = match is_streamed {
                true => (8, vec![0; 12], [b"PK\x07\x08", &*sizes].concat()),
                false => (0, sizes, Vec::new()),
            };
            archive.extend([b"PK\x03\x04\x14\0", &[flags, 0, 0, 0, 0, 0, 0, 0][..], &before].concat());
            archive.extend([b"\x01\0\0\0m", *member, &behind].concat());
        }
        let directory = (archive.len() as u32).to_le_bytes();
        archive
            .extend([&b"PK\x01\x02PK\x05\x06\0\0\0\0\0\0\0\0\x04\0\0\0"[..], &directory, b"\0\0"].concat());
        archive
    }

    #[test]
    fn a_compressed_file_is_searched_as_what_it_holds() {
        let packed: [&[u8]; 4] = [
            include_bytes!("fixtures/dynamic.gz"),
            include_bytes!("fixtures/fixed.gz"),
            include_bytes!("fixtures/stream.zz"),
            include_bytes!("fixtures/members.zip"),
        ];
        let kind = Some("a token of Hugging Face");
        for bytes in packed {
            assert_eq!(in_file(bytes).unwrap().kind, kind);
            // What is broken is searched up to there, and named.
            let cut = in_file(&bytes[..bytes.len() / 3]).unwrap();
            assert_eq!((cut.kind, cut.is_text), (None, false));
        }
        // Stored in an archive as it is, with its size before or behind it.
        for mut streamed in [false, true].map(|streamed| stored(&[b"plain", packed[0], packed[3]], streamed))
        {
            assert_eq!(in_file(&*streamed).unwrap().kind, kind);
            streamed.truncate(100);
            assert_eq!(in_file(&*streamed).unwrap(), Searched { kind: None, is_text: false });
        }
        for is_streamed in [false, true] {
            let innocent = stored(&[b"nothing of note", b"nor here"], is_streamed);
            assert_eq!(in_file(&*innocent).unwrap(), Searched { kind: None, is_text: true });
        }
        // What stands behind the end of an archive, or behind a member that says it is empty, is named as not searched.
        let empty = {
            let mut archive = stored(&[b"plain"], false);
            archive[18..26].fill(0);
            archive
        };
        let two = [stored(&[b"plain"], false), stored(&[packed[0]], false)].concat();
        for hidden in [empty, two] {
            assert_eq!(in_file(&*hidden).unwrap(), Searched { kind: None, is_text: false });
        }
        let twice = zstd::encode_all(packed[0], 3).unwrap();
        assert_eq!(in_file(&*twice).unwrap().kind, kind);
        let innocent = zstd::encode_all("nothing of note".repeat(99).as_bytes(), 3).unwrap();
        assert_eq!(in_file(&*innocent).unwrap(), Searched { kind: None, is_text: true });
        // What is too large is named.
        let bomb = zstd::encode_all(io::repeat(b' ').take(300 << 20), 3).unwrap();
        assert_eq!(in_file(&*bomb).unwrap(), Searched { kind: None, is_text: false });
        let half = zstd::encode_all(io::repeat(b' ').take(100 << 20), 3).unwrap();
        assert_eq!(in_file(&*half).unwrap(), Searched { kind: None, is_text: true });
        let many = stored(&[&half, &half, &half], false);
        assert_eq!(in_file(&*many).unwrap(), Searched { kind: None, is_text: false });
    }

    #[test]
    fn a_file_that_is_no_text_is_called_so() {
        let is_text = |bytes: &[u8]| in_file(bytes).unwrap().is_text;
        let random: Vec<u8> =
            (0..4000_u32).map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        assert!(!is_text(&random));
        assert!(is_text("héllo\n\u{1b}[1mworld".as_bytes()) && is_text(b"caf\xe9\n") && is_text(b""));
        let wide: Vec<u8> = "hello".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(is_text(&wide));
    }

    #[test]
    fn words_addresses_and_numbers_are_no_secrets() {
        for text in [
            "https://example.com/a:b",
            "http://localhost:8080/x@y",
            "https://example.com:8443/@scope/package@1.2",
            "sk-learn is a library",
            "task-completion-percentage-of-the-whole-project-2024",
            "task-5f2c8e9a1b3d4c5e6f7a8b9c0d1e2f3a4b5c6d7e",
            "disk-usage-0123456789abcdef0123456789abcdef",
            "sk-circle-fade-dot-animation-delay-long-enough",
            "the hf_hub",
            "myhf_internationalizationofeverything",
            "AKIA",
            "ASIAPACIFICREGIONALHEADQUARTERS",
            "eyJ",
            "postgres://${USER}:${PASSWORD}@db",
            "postgres://ada:****@db",
            "postgres://{user}:{password}@db",
            "-----BEGIN PUBLIC KEY-----",
            "C:\\new\\table",
            "100 %AB",
        ] {
            assert_eq!(in_text(text), None, "{text}");
            assert_eq!(concealed(text), text);
        }
    }

    #[test]
    fn a_search_takes_time_in_proportion_to_the_text() {
        let began = std::time::Instant::now();
        for text in ["sk-", "hf_", "://a:", "\\", "%25", "eyJ", "-----BEGIN A", "\0", "AKIA", "x\0\\\0"] {
            assert_eq!(in_text(&text.repeat(1 << 19)), None, "{text}");
        }
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
    }
}
