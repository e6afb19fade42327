//! What calls that write change, seen by reading calls behind them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    graph::{Arg, Effect, Graph, SuccessfulCall},
    phrases::PHRASES,
    templates,
    tools::{self, ToolProfile},
    wording,
};
use crate::{
    admission::Today,
    chat::ToolCall,
    judge::state,
    mcp::{Outcome, plain},
    words,
};

/// Reading calls that may show the effect of a call.
const PROBES: usize = 8;
/// Days from today within which a new date may be counted from today.
const AHEAD: i64 = 400;

/// The date of a text that may be counted from today: when what is lent is due.
pub fn ahead<'t>(today: &Today, text: &'t str) -> Option<&'t str> {
    let day = text.get(..10)?;
    let date = chrono::NaiveDate::parse_from_str(day, "%Y-%m-%d").ok()?;
    (1..=AHEAD).contains(&(date - today.date()?).num_days()).then_some(day)
}

/// The first probe that shows something else than before. `after`: the probes' outcomes behind the call.
pub fn effect(graph: &Graph, call: usize, probes: &[usize], after: &[Outcome]) -> Option<Effect> {
    let today = Today::now();
    let differs = |(probe, after): &(&usize, &Outcome)| {
        let (before, after) = (state::structure(&graph.seen[**probe].text), after);
        let mut ignore = graph.changing(graph.seen[**probe].tool);
        ignore.extend(state::fields_with(&state::structure(&after.text), &|text| today.is_now(text)));
        let ignore = Vec::from_iter(ignore);
        !after.is_error && !after.text.trim().is_empty() && !state::is_same(&before, &ignore, &after.text)
    };
    probes.iter().zip(after).find(differs)?;
    Some(Effect { call })
}

/// Whether a tool probably changes nothing.
pub fn reads(profile: &ToolProfile) -> bool {
    profile.reads || tools::reads_by_name(&profile.name) || !profile.writes && is_called_by_result(profile)
}

/// Whether a tool is called and described by what it gives: `people`, "Who works here".
fn is_called_by_result(profile: &ToolProfile) -> bool {
    const FIRST: [&str; 15] = [
        "a",
        "all",
        "an",
        "each",
        "every",
        "everything",
        "how",
        "one",
        "the",
        "what",
        "when",
        "where",
        "which",
        "who",
        "whose",
    ];
    const SECOND: [&str; 6] = ["of", "that", "which", "who", "whose", "with"];
    let sentence = words::first_sentence(&profile.description);
    let word = |at: usize| sentence.get(at).map(|word| word.to_lowercase()).unwrap_or_default();
    let is_noun = FIRST.contains(&&*word(0)) || SECOND.contains(&&*word(1)) && !words::is_verb(&word(0));
    is_noun
        && PHRASES.verb(&profile.name, &profile.description).is_none()
        && !words::split(&profile.name).first().is_some_and(|first| words::is_verb(first))
}

/// Whether a call that was seen is one of a tool that changes something: its result is no fact to ask about.
pub fn writes(graph: &Graph, profiles: &[ToolProfile], call: usize) -> bool {
    let tool = graph.seen[call].tool;
    let profile = &profiles[tool];
    !profile.reads
        && (profile.writes || graph.effects.iter().any(|effect| graph.seen[effect.call].tool == tool))
}

/// A call that changed something as a request in the words of its tool's description, and what is said when it is done.
pub fn request(profile: &ToolProfile, seen: &SuccessfulCall) -> Option<(String, String)> {
    let request = request_of(&profile.description);
    // What names its parameters is no sentence of a person.
    if request.is_empty() || request.contains('`') || seen.args.iter().any(|arg| arg.shown.len() > 200) {
        return None;
    }
    let text = match seen.args.as_slice() {
        // A structure names its own parts.
        [only] if only.leaf.is_none() => format!("{request}: {}.", only.shown),
        args => {
            let said = |arg: &Arg| format!("the {} is {}", words::spoken_param(&arg.name), arg.shown);
            let said = wording::joined(&args.iter().map(said).collect::<Vec<_>>());
            let behind = if said.is_empty() { said } else { format!(" {}.", templates::sentence(&said)) };
            format!("{request}.{behind}")
        }
    };
    Some((templates::sentence(&text), "It is done.".to_owned()))
}

/// Reading calls that may show the effect of a call: those that share one of its values, or have no argument.
pub fn probes(graph: &Graph, profiles: &[ToolProfile], tool: usize, call: &ToolCall) -> Vec<usize> {
    if reads(&profiles[tool]) {
        return Vec::new();
    }
    let mut values = BTreeSet::new();
    call.arguments.values().for_each(|value| add_values(value, &mut values));
    let folder = |path: &str| path.rsplit_once('/').map(|(folder, _)| folder.to_owned());
    let folders: BTreeSet<String> = values.iter().filter_map(|value| folder(value)).collect();
    let is_near = |other: &SuccessfulCall| {
        let leaves = || other.args.iter().filter_map(|arg| arg.leaf.as_deref());
        other.args.is_empty() || leaves().any(|leaf| values.contains(leaf) || folders.contains(leaf))
    };
    let is_reading = |other: &SuccessfulCall| {
        other.tool != tool && reads(&profiles[other.tool]) && !graph.is_random(other.tool)
    };
    let mut of_tool: BTreeMap<usize, usize> = BTreeMap::new();
    let mut near: Vec<(usize, usize)> = Vec::new();
    for (index, other) in
        graph.seen.iter().enumerate().filter(|(_, other)| is_reading(other) && is_near(other))
    {
        let count = of_tool.entry(other.tool).or_default();
        *count += 1;
        near.push((*count, index));
    }
    // One of each tool, then a second one.
    near.retain(|(count, _)| *count <= 2);
    near.sort_unstable();
    near.into_iter().map(|(_, index)| index).take(PROBES).collect()
}

/// The scalars in a value, as texts.
pub fn add_values(value: &Value, values: &mut BTreeSet<String>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| add_values(item, values)),
        Value::Object(fields) => fields.values().for_each(|field| add_values(field, values)),
        scalar => _ = values.insert(plain(scalar)),
    }
}

/// The first sentence of a description as a request.
fn request_of(description: &str) -> String {
    let mut words = words::first_sentence(description);
    words::cut_asides(&mut words);
    words.retain(|word| *word != "multiple");
    words.truncate(24);
    let Some(first) = words.first().copied() else { return String::new() };
    // `Records changes` is `Record changes`.
    let base = match first.to_lowercase() {
        verb if verb.ends_with("ches") || verb.ends_with("shes") => first[..first.len() - 2].to_owned(),
        verb if verb.ends_with('s') && !verb.ends_with("ss") => first[..first.len() - 1].to_owned(),
        _ => first.to_owned(),
    };
    words[0] = &base;
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::explored::things::tests::profile;

    #[test]
    fn a_tool_that_is_called_by_what_it_gives_reads() {
        for (name, description, expected) in [
            ("people", "Who works here.", true),
            ("calendar_of", "Events that somebody organises.", true),
            ("event_details", "One event with its organiser.", true),
            ("get_event", "", true),
            ("cancel_event", "An event is cancelled for everybody.", false),
            ("frobnicate", "Frobnicates an event.", false),
            ("sync_rooms", "Sync rooms with another calendar.", false),
            ("rooms", "", false),
        ] {
            let profile = ToolProfile { reads: false, ..profile(name, description, &json!({})) };
            assert_eq!(reads(&profile), expected, "{name}");
        }
    }

    #[test]
    fn a_date_that_may_be_counted_from_today_is_told_from_others() {
        let today = Today::now();
        let day = |days| (chrono::Utc::now() + chrono::Duration::days(days)).format("%Y-%m-%d").to_string();
        for (text, is_ahead) in [
            (day(21), true),
            (format!("{}T10:00:00Z", day(30)), true),
            (day(-21), false),
            (day(900), false),
            ("21".to_owned(), false),
            ("no date at all".to_owned(), false),
        ] {
            assert_eq!(ahead(&today, &text).is_some(), is_ahead, "{text}");
        }
    }

    #[test]
    fn a_description_becomes_a_request() {
        for (description, expected) in [
            ("Records changes to the repository", "Record changes to the repository"),
            ("Create a new directory. Fails if it exists.", "Create a new directory"),
            ("Switches branches", "Switch branches"),
            ("Create a new directory or ensure a directory exists", "Create a new directory"),
            ("Creates a new branch from an optional base branch", "Create a new branch"),
            ("", ""),
        ] {
            assert_eq!(request_of(description), expected);
        }
    }
}
