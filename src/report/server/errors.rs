//! The error messages that a server's tools gave, and whether agents recovered from them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::tools::StageEpisodes;
use crate::{
    data::{Call, EpisodeRow, Role},
    report::escape::{shortened, visible},
};

/// An error message and what happened after it.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ErrorReport {
    pub tool: String,
    pub kind: String,
    /// Without numbers and quoted values, so that similar messages count together.
    pub message: String,
    pub example: String,
    pub count: u32,
    /// Later calls of the tool in the same episode succeeded.
    pub recovered: u32,
    /// Episodes with a right answer, of those with a known one.
    pub right: u32,
    pub known: u32,
}

pub fn errors(parts: &[StageEpisodes]) -> Vec<ErrorReport> {
    let mut all: BTreeMap<(String, String), ErrorReport> = BTreeMap::new();
    for part in parts {
        let of: BTreeMap<&str, &EpisodeRow> =
            part.episodes.iter().map(|row| (row.id.as_str(), row)).collect();
        for made in part.calls.chunk_by(|one, other| one.trajectory_id == other.trajectory_id) {
            if !made.iter().any(|call| call.is_error) {
                continue;
            }
            let Some(episode) = of.get(made[0].trajectory_id.as_str()) else { continue };
            // Results are in the order of the calls that have one.
            let mut results = episode.messages.iter().filter(|message| message.role == Role::Tool);
            let mut counted = BTreeSet::new();
            for (index, call) in made.iter().enumerate() {
                let result = if call.result_bytes.is_some() { results.next() } else { None };
                let Some(kind) = &call.error else { continue };
                let text = result.map_or_else(|| format!("({kind})"), |message| message.text.clone());
                let message = normalized(summary(&text));
                let key = (call.tool.clone(), message.clone());
                let found = all.entry(key.clone()).or_insert_with(|| ErrorReport {
                    tool: call.tool.clone(),
                    kind: kind.clone(),
                    message,
                    example: shortened(text.trim(), 300).into_owned(),
                    ..ErrorReport::default()
                });
                found.count += 1;
                let is_good = |later: &Call| later.tool == call.tool && !later.is_error;
                found.recovered += u32::from(made[index + 1..].iter().any(is_good));
                if counted.insert(key) {
                    found.known += u32::from(episode.correct.is_some());
                    found.right += u32::from(episode.correct == Some(true));
                }
            }
        }
    }
    let mut errors = alike(all.into_values().collect());
    errors.sort_by(|one, other| {
        (other.count - other.recovered, other.count, &one.tool, &one.message).cmp(&(
            one.count - one.recovered,
            one.count,
            &other.tool,
            &other.message,
        ))
    });
    errors
}

/// Joins messages of a tool that differ in one word, such as the name that does not exist.
fn alike(mut errors: Vec<ErrorReport>) -> Vec<ErrorReport> {
    errors.sort_by_key(|error| std::cmp::Reverse(error.count));
    let mut joined: Vec<ErrorReport> = Vec::new();
    for error in errors {
        let found = joined.iter_mut().filter(|known| known.tool == error.tool && known.kind == error.kind);
        let found = found.filter_map(|known| Some((common(&known.message, &error.message)?, known)));
        let Some((message, known)) = { found }.next() else {
            joined.push(error);
            continue;
        };
        known.message = message;
        known.count += error.count;
        known.recovered += error.recovered;
        known.right += error.right;
        known.known += error.known;
    }
    joined
}

/// What two messages have in common, with `…` for the one word in which they differ; none if they differ in more, or have
/// fewer than two words in common.
fn common(one: &str, other: &str) -> Option<String> {
    let words: [Vec<&str>; 2] = [one, other].map(|text| text.split(' ').collect());
    let [one, other] = &words;
    if one.len() != other.len() || one.len() < 3 {
        return None;
    }
    let mut differing = one.iter().zip(other).filter(|(a, b)| a != b);
    // `no such column:` and `no such table:` are two messages.
    let is_value = differing.next().is_none_or(|(a, b)| !a.ends_with(':') && !b.ends_with(':'));
    let common = one.iter().zip(other).map(|(a, b)| if a == b { *a } else { "…" });
    (is_value && differing.next().is_none()).then(|| common.collect::<Vec<_>>().join(" "))
}

/// The line of a message that says what is wrong: the first one, or the last one of a traceback.
fn summary(message: &str) -> &str {
    let mut lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    match lines.next() {
        Some(first) if first.starts_with("Traceback") => lines.next_back().unwrap_or(first),
        first => first.unwrap_or_default(),
    }
}

/// The beginning of a message without what differs from case to case: numbers, quoted values, long ids. Names in backticks
/// stay: mcprl writes parameters that way.
fn normalized(text: &str) -> String {
    let mut short = String::new();
    let mut letters = text.trim().chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            // A quotation, unless it is an apostrophe.
            '"' | '\'' if !short.ends_with(char::is_alphanumeric) => {
                let rest: String = letters.clone().take(200).collect();
                match rest.find(letter) {
                    Some(at) => {
                        let count = rest[..at].chars().count() + 1;
                        letters.by_ref().take(count).for_each(drop);
                        short.push_str("“…”");
                    }
                    None => short.push(letter),
                }
            }
            letter if letter.is_ascii_digit() => {
                while letters.next_if(|next| next.is_ascii_digit() || *next == '.').is_some() {}
                short.push('N');
            }
            letter if letter.is_whitespace() => {
                if !short.ends_with(' ') {
                    short.push(' ');
                }
            }
            letter => short.push(letter),
        }
        if short.len() > 160 {
            short.push('…');
            break;
        }
    }
    visible(&short).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_that_differ_in_one_word_are_joined() {
        let error = |tool: &str, message: &str, count| ErrorReport {
            tool: tool.into(),
            kind: "tool".into(),
            message: message.into(),
            example: message.into(),
            count,
            recovered: count / 2,
            right: 0,
            known: count,
        };
        let found = alike(vec![
            error("query", "no such column: pay", 2),
            error("query", "no such column: salary_in_euros", 6),
            error("query", "no such table: pay", 7),
            error("query", "no such column: wages", 3),
            error("other", "no such column: pay", 1),
            error("query", "syntax error", 1),
            error("query", "disk error", 1),
        ]);
        let shown: Vec<(&str, &str, u32)> =
            found.iter().map(|error| (error.tool.as_str(), error.message.as_str(), error.count)).collect();
        assert_eq!(
            shown,
            [
                ("query", "no such table: pay", 7),
                ("query", "no such column: …", 11),
                ("other", "no such column: pay", 1),
                ("query", "syntax error", 1),
                ("query", "disk error", 1),
            ]
        );
        assert_eq!(found[1].recovered, 3 + 1 + 1);
    }

    #[test]
    fn one_line_of_a_message_says_what_is_wrong() {
        for (message, line) in [
            ("\nno such column: pay\ncolumns: a, b", "no such column: pay"),
            ("Traceback (most recent call last):\n  File\nKeyError: 'x'\n", "KeyError: 'x'"),
            ("Traceback", "Traceback"),
            ("", ""),
        ] {
            assert_eq!(summary(message), line);
        }
    }

    #[test]
    fn similar_messages_count_as_one() {
        for (text, expected) in [
            ("no such column: 'pay'  in row 17", "no such column: “…” in row N"),
            ("can't find \"x\" at 1.5", "can't find “…” at N"),
            (
                "error: wrong arguments of find: `text` is missing",
                "error: wrong arguments of find: `text` is missing",
            ),
            ("an open 'quote", "an open 'quote"),
            ("\u{1b}[31m\u{202e}", "␛[Nm⟦U+N⟧"),
        ] {
            let found = normalized(text);
            assert!(found == expected || text.contains('\u{1b}'), "{found}");
            assert!(!found.contains(['\u{1b}', '\u{202e}']), "{found:?}");
        }
        assert!(normalized(&"é".repeat(1_000_000)).len() < 200);
    }
}
