//! The last lines of a run: the outcome of its stages, and how to continue.

use std::path::Path;

use super::{hint_text, human};
use crate::exec::{Ended, Summary};

/// `resume` is the command that continues the run; `seconds` is the run's duration.
pub fn closing_text(summary: &Summary, path: &Path, resume: &str, seconds: f64) -> String {
    let count = |which: Ended| summary.count(|ended| *ended == which);
    let mut parts = vec![format!("{} cached", count(Ended::Cached)), format!("{} worked", count(Ended::Ran))];
    let more = [(Ended::Skipped, "skipped"), (Ended::Failed, "failed"), (Ended::Open, "not begun")];
    parts.extend(
        more.into_iter()
            .map(|(which, what)| (count(which), what))
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}")),
    );
    let mut text = left_text(summary);
    let spent = human::spent(&summary.spent);
    if !spent.is_empty() {
        text += &format!("spent: {spent}\n");
    }
    if summary.saved.seconds >= 1.0 {
        text += &format!("the cache saved {}\n", human::cost(&summary.saved));
    }
    if let Some(traffic) = summary.traffic.filter(|traffic| traffic.fetched + traffic.pushed > 0) {
        text += &format!(
            "shared cache: {} results taken ({}), {} given ({})\n",
            traffic.fetched,
            human::bytes(traffic.fetched_bytes),
            traffic.pushed,
            human::bytes(traffic.pushed_bytes)
        );
    }
    if let Some(traffic) = summary.traffic.filter(|traffic| traffic.waiting > 0) {
        text += &waiting_text(traffic.waiting, "the shared cache");
        text.push('\n');
    }
    text += &format!("{} in {}: {}", parts.join(", "), human::seconds(seconds), path.display());
    match (summary.interrupted, summary.failures.is_empty()) {
        (true, _) => format!("{text}\nstopped; to go on: {resume}"),
        (false, false) => {
            format!("{text}\n{}", hint_text(&format!("when the cause is gone, `{resume}` goes on")))
        }
        (false, true) => text,
    }
}

/// Results that a remote does not have yet.
pub fn waiting_text(count: usize, remote: &str) -> String {
    let results = if count == 1 { "1 result waits".to_owned() } else { format!("{count} results wait") };
    format!("{results} to be given to {remote}: a later run does it, or `mcprl cache push`")
}

/// The stages that did not run because of a failure: one line for each set of failed stages with all stages
/// that depend on it, and one line for the rest.
fn left_text(summary: &Summary) -> String {
    let mut text = String::new();
    let mut told: Vec<&[String]> = Vec::new();
    for (_, by) in &summary.blocked {
        if told.contains(&by.as_slice()) {
            continue;
        }
        told.push(by);
        let waiting = summary.blocked.iter().filter(|(_, other)| other == by).map(|(id, _)| id.as_str());
        text += &format!(
            "not worked, for {} failed: {}\n",
            joined(by.iter().map(String::as_str)),
            joined(waiting)
        );
    }
    if !summary.failures.is_empty() && !summary.interrupted {
        let blocked = |id: &str| summary.blocked.iter().any(|(other, _)| other == id);
        let open = summary.nodes.iter().filter(|(id, ended)| *ended == Ended::Open && !blocked(id));
        let open: Vec<&str> = open.map(|(id, _)| id.as_str()).collect();
        if !open.is_empty() {
            text += &format!(
                "not begun after the failure: {} (`--keep-going` works what does not depend on it)\n",
                joined(open)
            );
        }
    }
    text
}

fn joined<'a>(ids: impl IntoIterator<Item = &'a str>) -> String {
    ranges(ids).join(", ")
}

/// Joins consecutive iterations of a loop's stage into one name: `train[0003..0012]/judge`.
pub(super) fn ranges<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    /// Loop, stage, first and last iteration; outside loops only the name.
    type Range<'a> = (&'a str, Option<(&'a str, u32, u32)>);
    let mut found: Vec<Range<'a>> = Vec::new();
    for id in ids {
        let turn = id.split_once('[').and_then(|(name, rest)| {
            let (number, stage) = rest.split_once("]/")?;
            Some((name, stage, number.parse::<u32>().ok()?))
        });
        let Some((name, stage, iteration)) = turn else {
            found.push((id, None));
            continue;
        };
        let before = found.iter_mut().find_map(|(other, turn)| match turn {
            Some((part, _, last)) if *other == name && *part == stage && *last + 1 == iteration => Some(last),
            _ => None,
        });
        match before {
            Some(last) => *last = iteration,
            None => found.push((name, Some((stage, iteration, iteration)))),
        }
    }
    let name = |(name, turn): &Range<'a>| match turn {
        None => (*name).to_owned(),
        Some((stage, first, last)) if first == last => format!("{name}[{first:04}]/{stage}"),
        Some((stage, first, last)) => format!("{name}[{first:04}..{last:04}]/{stage}"),
    };
    found.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn iterations_that_follow_each_other_are_one_name() {
        let ids = ["a[0002]/x", "a[0002]/y", "a[0003]/x", "a[0005]/x", "end"];
        assert_eq!(ranges(ids), ["a[0002..0003]/x", "a[0002]/y", "a[0005]/x", "end"]);
    }
}
