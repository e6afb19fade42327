//! Servers that differ by a number.

use std::{collections::BTreeMap, path::PathBuf};

use crate::{
    mcp::{ServerSpec, Transport},
    plan::{
        layers::{Entry, EntryPart},
        reader::Reader,
    },
};

/// What stands for the number of a server that `seeds` makes.
const SEED: &str = "{seed}";
/// Most servers of one table.
const SEEDS: u64 = 10_000;

/// The names that `seeds` gives a server, each with its number; the server's own name without one.
pub fn names(reader: &Reader, name: &str, entry: &Entry<'_>) -> Option<Vec<(String, Option<u64>)>> {
    let Some(entry) = entry.field("seeds") else { return Some(vec![(name.to_owned(), None)]) };
    let text = reader.text(&entry)?;
    let range: Option<(u64, u64)> =
        text.split_once("..").and_then(|(first, last)| Some((first.parse().ok()?, last.parse().ok()?)));
    match range {
        Some((first, last)) if first <= last && last - first < SEEDS => {
            let width = last.to_string().len();
            let of = |seed: u64| (format!("{name}{seed:0width$}"), Some(seed));
            Some((first..=last).map(of).collect())
        }
        _ => {
            let message = format!("`{}` should be a range of numbers, found \"{text}\"", entry.path);
            let hint = format!("\"1..200\" is the numbers from 1 to 200; at most {SEEDS} are possible");
            reader.wrong(&entry, EntryPart::Value, message, Some(hint))
        }
    }
}

/// The server of a number.
pub fn of_seed(spec: &ServerSpec, seed: u64) -> ServerSpec {
    let fill = |text: &str| text.replace(SEED, &seed.to_string());
    let all = |words: &[String]| words.iter().map(|word| fill(word)).collect();
    let values = |table: &BTreeMap<String, String>| {
        table.iter().map(|(name, value)| (name.clone(), fill(value))).collect()
    };
    let path = |path: &PathBuf| PathBuf::from(fill(&path.to_string_lossy()));
    let mut of_seed = spec.clone();
    match &mut of_seed.transport {
        Transport::Stdio { command, env, cwd, .. } => {
            (*command, *env, *cwd) = (all(command), values(env), cwd.as_ref().map(path));
        }
        Transport::Http { url, headers, .. } => (*url, *headers) = (fill(url), values(headers)),
        Transport::Cassette(_) => {}
    }
    of_seed.record = spec.record.as_ref().map(path);
    (of_seed.before_episode, of_seed.after_episode) = (all(&spec.before_episode), all(&spec.after_episode));
    of_seed
}
