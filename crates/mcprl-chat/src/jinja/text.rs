//! Python's string methods that differ from those of Rust's standard library.

/// `str.isspace` of a character: Unicode's white space and the four separators of ASCII.
pub fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

/// The characters that `strip(chars)` removes.
pub fn stripped(chars: Option<&str>) -> impl Fn(char) -> bool + Copy + '_ {
    move |letter| chars.map_or_else(|| is_space(letter), |chars| chars.contains(letter))
}

/// Lines, each with its line break.
pub fn lines(text: &str) -> Vec<(&str, &str)> {
    let is_break = |c: char| {
        matches!(
            c,
            '\n' | '\r' | '\u{b}' | '\u{c}' | '\u{1c}'..='\u{1e}' | '\u{85}' | '\u{2028}' | '\u{2029}'
        )
    };
    let mut lines = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let end = rest.find(is_break).unwrap_or(rest.len());
        let (line, after) = rest.split_at(end);
        let width = match after.chars().next() {
            Some('\r') if after.starts_with("\r\n") => 2,
            first => first.map_or(0, char::len_utf8),
        };
        lines.push((line, &after[..width]));
        rest = &after[width..];
    }
    lines
}

/// `split(sep, maxsplit)`: at most this many splits, or any number if negative.
pub fn split<'a>(text: &'a str, separator: Option<&str>, most: i64) -> Vec<&'a str> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    match separator {
        Some(separator) => text.splitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_start_matches(is_space);
            while !rest.is_empty() {
                let end = if parts.len() < most { rest.find(is_space) } else { None };
                let (part, after) = rest.split_at(end.unwrap_or(rest.len()));
                parts.push(part);
                rest = after.trim_start_matches(is_space);
            }
            parts
        }
    }
}

/// `rsplit(sep, maxsplit)`: splits count from the end.
pub fn split_from_end<'a>(text: &'a str, separator: Option<&str>, most: i64) -> Vec<&'a str> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let mut parts: Vec<&str> = match separator {
        Some(separator) => text.rsplitn(most.saturating_add(1), separator).collect(),
        None => {
            let mut parts = Vec::new();
            let mut rest = text.trim_end_matches(is_space);
            while !rest.is_empty() {
                let found = if parts.len() < most { rest.rfind(is_space) } else { None };
                let start = found.map_or(0, |at| at + rest[at..].chars().next().map_or(0, char::len_utf8));
                parts.push(&rest[start..]);
                rest = rest[..start].trim_end_matches(is_space);
            }
            parts
        }
    };
    parts.reverse();
    parts
}

pub fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters.as_str().to_lowercase().chars()).collect()
    })
}

/// `int(text)`, or the whole part of `float(text)`.
pub fn integer(text: &str) -> Option<i128> {
    let plain = text.trim_matches(is_space).replace('_', "");
    let float = || plain.parse::<f64>().ok().filter(|float| float.is_finite());
    plain.parse().ok().or_else(|| float().map(|float| float as i128))
}

/// `title`: a capital after every non-letter.
pub fn titled(text: &str) -> String {
    let mut out = String::new();
    let mut within = false;
    for letter in text.chars() {
        match within {
            true => out.extend(letter.to_lowercase()),
            false => out.extend(letter.to_uppercase()),
        }
        within = letter.is_uppercase() || letter.is_lowercase();
    }
    out
}

/// Byte range of `text[start:end]`, counted in characters; `None` if it is past the end.
pub fn range(text: &str, start: i64, end: Option<i64>) -> Option<(usize, usize)> {
    let count = i64::try_from(text.chars().count()).unwrap_or(i64::MAX);
    let bounded = |at: i64| if at < 0 { (at + count).max(0) } else { at.min(count) };
    let (from, to) = (bounded(start), bounded(end.unwrap_or(count)));
    let byte = |at: i64| {
        let at = usize::try_from(at).unwrap_or(0);
        text.char_indices().nth(at).map_or(text.len(), |(byte, _)| byte)
    };
    (start <= count && from <= to).then(|| (byte(from), byte(to)))
}
