//! The last lines of a run: the outcome of its stages, and how to continue.

use std::path::Path;

use super::{hint_text, human};
use crate::{
    error::Class,
    exec::{IdleLoop, StageOutcome, Summary},
    plan::InLoop,
};

/// What the last lines say of a run.
pub struct Closing<'r> {
    pub summary: &'r Summary,
    pub run: &'r str,
    pub path: &'r Path,
    /// The command that continues it.
    pub resume: &'r str,
    pub seconds: f64,
    /// Whether anything had to be done.
    pub is_new: bool,
    /// With the folder and all of the cost.
    pub is_verbose: bool,
}

/// The outcome of the stages, their cost, and how to continue a run that did not finish.
pub fn closing_text(closing: &Closing<'_>) -> String {
    let Closing { summary, run, path, resume, seconds, is_new, is_verbose } = closing;
    let counts = [
        (StageOutcome::Cached, "cached"),
        (StageOutcome::Ran, "ran"),
        (StageOutcome::Skipped, "skipped"),
        (StageOutcome::Failed, "failed"),
        (StageOutcome::Unfinished, "not finished"),
    ];
    let parts = counts.map(|(outcome, name)| (outcome, summary.count(outcome), name)).into_iter();
    let is_shown = |(outcome, count, _): &(StageOutcome, usize, &str)| {
        *count > 0 || matches!(outcome, StageOutcome::Cached | StageOutcome::Ran)
    };
    let parts: Vec<String> =
        parts.filter(is_shown).map(|(_, count, name)| format!("{count} {name}")).collect();
    let mut text = unfinished_text(summary);
    if *is_verbose {
        text += &cost_text(summary);
    }
    text += &traffic_text(summary);
    let dollars = summary.spent.dollars.map(|dollars| format!(", {}", human::dollars(dollars)));
    let what = if *is_new { "" } else { "nothing to do: " };
    let place = if *is_verbose { path.display().to_string() } else { (*run).to_owned() };
    text += &format!(
        "{what}{} in {}{}: {place}",
        parts.join(", "),
        human::seconds(*seconds),
        dollars.unwrap_or_default()
    );
    if summary.interrupted {
        text += &format!("\nstopped; to continue: {resume}");
    } else if !summary.failures.is_empty() {
        // A run keeps the run file that it was started with.
        let is_mistake = summary.failures.iter().any(|failure| failure.class() == Class::Usage);
        let again = if is_mistake {
            "correct the run file, and start it again with `mcprl run`".to_owned()
        } else {
            format!("fix the cause, then continue with `{resume}`")
        };
        text += &format!("\n{}", hint_text(&again));
    }
    text
}

fn cost_text(summary: &Summary) -> String {
    let mut text = String::new();
    let usage = human::usage(&summary.spent);
    if !usage.is_empty() {
        text += &format!("usage: {usage}\n");
    }
    if summary.saved.seconds >= 1.0 {
        text += &format!("the cache saved {}\n", human::cost(&summary.saved));
    }
    text
}

/// What went to the shared cache and came from it.
fn traffic_text(summary: &Summary) -> String {
    let mut text = String::new();
    if let Some(traffic) = summary.traffic.filter(|traffic| traffic.fetched + traffic.pushed > 0) {
        text += &format!(
            "shared cache: {} results fetched ({}), {} pushed ({})\n",
            traffic.fetched,
            human::bytes(traffic.fetched_bytes),
            traffic.pushed,
            human::bytes(traffic.pushed_bytes)
        );
    }
    if let Some(traffic) = summary.traffic.filter(|traffic| traffic.queued > 0) {
        text += &format!("{}\n", queued_text(traffic.queued, "the shared cache"));
    }
    text
}

/// A loop that ended because nothing could be learned; `with_notes` adds what its last update says of the reason.
pub fn idle_text(idle: &IdleLoop, with_notes: bool) -> String {
    let IdleLoop { name, iterations: [first, last], is_solved, notes } = idle;
    let iterations =
        if first == last { format!("iteration {last}") } else { format!("iterations {first} to {last}") };
    let ends = match is_solved {
        true => {
            "most groups are all right, and none has both right and wrong episodes, so nothing is left to learn from these tasks"
        }
        false => "no group has both right and wrong episodes, so nothing was learned",
    };
    let notes: String = notes.iter().filter(|_| with_notes).map(|note| format!("\n- {note}")).collect();
    format!("loop \"{name}\" ended: in {iterations} {ends}{notes}")
}

/// Results that a remote does not have yet.
pub fn queued_text(count: usize, remote: &str) -> String {
    let results = if count == 1 { "1 result is".to_owned() } else { format!("{count} results are") };
    format!("{results} queued for {remote}; a later run or `mcprl cache push` uploads them")
}

/// The stages that did not run because of a failure: one line for each set of failed stages with all stages
/// that depend on it, and one line for the rest.
fn unfinished_text(summary: &Summary) -> String {
    let mut text = String::new();
    let mut reported: Vec<&[String]> = Vec::new();
    for (_, by) in &summary.blocked {
        if reported.contains(&by.as_slice()) {
            continue;
        }
        reported.push(by);
        let waiting = summary.blocked.iter().filter(|(_, other)| other == by).map(|(id, _)| id.as_str());
        let by = joined(by.iter().map(String::as_str));
        text += &format!("not run because {by} failed: {}\n", joined(waiting));
    }
    if !summary.failures.is_empty() && !summary.interrupted {
        let blocked = |id: &str| summary.blocked.iter().any(|(other, _)| other == id);
        let open =
            summary.nodes.iter().filter(|(id, outcome)| *outcome == StageOutcome::Unfinished && !blocked(id));
        let open: Vec<&str> = open.map(|(id, _)| id.as_str()).collect();
        if !open.is_empty() {
            let open = joined(open);
            text += &format!(
                "not started after the failure: {open} (`--keep-going` runs what does not depend on it)\n"
            );
        }
    }
    text
}

/// Names, with consecutive iterations of a loop's stage as one.
pub(super) fn joined<'a>(ids: impl IntoIterator<Item = &'a str>) -> String {
    ranges(ids).join(", ")
}

/// Joins consecutive iterations of a loop's stage into one name: `train[0003..0012]/judge`.
fn ranges<'a>(ids: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    /// Loop, stage, first and last iteration; outside loops only the name.
    type Range<'a> = (&'a str, Option<(&'a str, u32, u32)>);
    let mut found: Vec<Range<'a>> = Vec::new();
    for id in ids {
        let Some(InLoop { name, stage, iteration }) = InLoop::parse(id) else {
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
    fn consecutive_iterations_are_one_name() {
        let ids = ["a[0002]/x", "a[0002]/y", "a[0003]/x", "a[0005]/x", "end"];
        assert_eq!(ranges(ids), ["a[0002..0003]/x", "a[0002]/y", "a[0005]/x", "end"]);
    }
}
