//! The report for a server's author: what agents do with its tools, and what would help them.
//!
//! Causes and suggestions come from rules on what was recorded, not from a model. A rule that has nothing to go by says
//! nothing.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use serde_json::Value;

use super::{
    Tone,
    document::{Block, Cell, Document, Table},
    escape::{shortened, visible},
    run::{server_of, state},
};
use crate::{
    data::{Call, EpisodeRow, OutcomeRow, Scenario, Tool},
    view::{
        Run, Stage,
        calls::{self, ToolStatistics},
        conversation::{self, Message},
        exam,
    },
};

/// Most error messages and examples to list.
const ERRORS: usize = 25;
/// Bytes of a token, roughly. Tokenizers differ; the figure is for comparison.
const BYTES_PER_TOKEN: f64 = 4.0;
/// Fewer cases than this are no reason for a suggestion.
const ENOUGH: u32 = 5;

/// What agents did with a server's tools.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ServerReport {
    pub run: String,
    pub server: Option<String>,
    /// Episodes of all policies, in training and in comparisons.
    pub episodes: usize,
    /// The policy whose failed tasks are counted, and its tasks.
    pub policy: String,
    pub tasks: usize,
    pub failed_tasks: usize,
    /// Those with most failed tasks first.
    pub tools: Vec<ToolReport>,
    pub errors: Vec<ErrorReport>,
    pub confusions: Vec<Confusion>,
    pub causes: Vec<Cause>,
    pub suggestions: Vec<Suggestion>,
    /// Failed calls that an earlier version did not mark as such.
    pub unmarked_errors: u32,
    /// Stages whose episodes are no longer in the cache.
    pub gone: Vec<String>,
}

/// One tool.
#[derive(Debug, Clone, Default, Serialize)]
pub struct ToolReport {
    #[serde(flatten)]
    pub calls: ToolStatistics,
    /// Episodes that could have called it.
    pub offered_in: u32,
    /// Calls that its schema refused.
    pub refused: u32,
    /// Size of its function schema in the prompt, name and description included.
    pub description_bytes: usize,
    /// Failed tasks of the final policy in which it was called, or was needed.
    pub failed_tasks: u32,
}

/// An error message and what happened after it.
#[derive(Debug, Clone, Serialize)]
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

/// A tool that was called where the reference solution calls another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Confusion {
    pub called: String,
    pub needed: String,
    pub tasks: u32,
}

/// Why tasks failed.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    pub cause: &'static str,
    pub meaning: &'static str,
    pub tasks: u32,
    /// Some of these tasks.
    pub examples: Vec<String>,
}

/// What the author could change, and why.
#[derive(Debug, Clone, Serialize)]
pub struct Suggestion {
    pub tool: String,
    pub text: String,
    /// Failed tasks of the final policy that it concerns.
    pub failed_tasks: u32,
}

/// Why a failed task failed, by the first rule that applies.
const CAUSES: [(&str, &str); 6] = [
    ("server", "a call took too long, or the server was lost"),
    ("gave up", "the episode ended without an answer: no call, or a limit was reached"),
    ("misread result", "the expected answer was in a result, and another one was given"),
    ("tool choice", "a tool of the reference solution was never called"),
    (
        "argument",
        "the tools of the reference solution were called, but none of its calls was made without an error",
    ),
    ("other", "no rule applies"),
];

struct Part {
    episodes: Vec<EpisodeRow>,
    outcomes: Vec<OutcomeRow>,
    calls: Vec<Call>,
    tools: Vec<Tool>,
}

/// The report. Empty if the run has played no episodes, or the cache has none of them.
pub fn server_report(run: &Run) -> ServerReport {
    let mut report = ServerReport {
        run: run.id.clone(),
        server: server_of(run).map(|server| format!("{} {}", server.name, server.version).trim().to_owned()),
        ..ServerReport::default()
    };
    let mut parts = Vec::new();
    for stage in run.writers("trajectories") {
        let tables = (stage.table(), stage.table(), calls::of_stage(run, stage));
        let (Ok(episodes), Ok(outcomes), Ok(made)) = tables else {
            report.gone.push(stage.id.clone());
            continue;
        };
        report.unmarked_errors += made.unmarked_errors;
        let tools = run.tools(stage).unwrap_or_default();
        parts.push(Part { episodes, outcomes, calls: made.calls, tools });
    }
    report.episodes = parts.iter().map(|part| part.episodes.len()).sum();
    let (policy, last, scenarios) = final_episodes(run);
    report.policy = policy;
    let failed = failures(&last, &scenarios);
    report.tasks = last.iter().map(|row| &row.scenario_id).collect::<BTreeSet<_>>().len();
    report.failed_tasks = failed.len();
    report.causes = causes(&failed);
    report.confusions = confusions(&failed);
    report.tools = tools(&parts, &failed);
    report.errors = errors(&parts);
    report.suggestions = suggestions(&report, &parts);
    report
}

/// The final policy with its episodes and their scenarios: that of the last comparison, else of the last rollout.
fn final_episodes(run: &Run) -> (String, Vec<EpisodeRow>, Vec<Scenario>) {
    if let Some(found) = exam::exams(run).pop()
        && let Some(stage) = run.stage(&found.stage)
        && let Ok(outcomes) = stage.table()
        // A vote has no episodes of its own.
        && let Some((policy, part)) = exam::by_policy(stage, &found.policies, &outcomes)
            .into_iter()
            .rfind(|(_, part)| !part.is_empty())
        && let Ok(episodes) = stage.table_part(&part.iter().map(|(position, _)| *position).collect())
    {
        return (format!("{policy} in {}", found.stage), episodes, run.scenarios(stage).unwrap_or_default());
    }
    let stages: Vec<&Stage> = run.writers("trajectories").collect();
    let last = stages.into_iter().rev().find_map(|stage| Some((stage, stage.table().ok()?)));
    last.map(|(stage, episodes)| {
        (format!("the policy of {}", stage.id), episodes, run.scenarios(stage).unwrap_or_default())
    })
    .unwrap_or_default()
}

/// A wrong episode of the final policy.
struct Failure<'e> {
    task: String,
    scenario: &'e str,
    cause: &'static str,
    called: BTreeSet<String>,
    needed: BTreeSet<String>,
}

/// One for each task that the policy got wrong, by its first wrong episode.
fn failures<'e>(episodes: &'e [EpisodeRow], scenarios: &'e [Scenario]) -> Vec<Failure<'e>> {
    let by_id: BTreeMap<&str, &Scenario> = scenarios.iter().map(|row| (row.id.as_str(), row)).collect();
    let mut seen = BTreeSet::new();
    let wrong =
        episodes.iter().filter(|row| row.correct == Some(false) && seen.insert(row.scenario_id.as_str()));
    wrong
        .map(|row| {
            let messages = conversation::conversation(row);
            let made = crate::data::calls::calls(&row.into(), &BTreeSet::new());
            let scenario = by_id.get(row.scenario_id.as_str()).copied();
            let needed = scenario.map(reference_tools).unwrap_or_default();
            let called: BTreeSet<String> =
                made.iter().filter(|call| !call.tool.is_empty()).map(|call| call.tool.clone()).collect();
            let task = messages.iter().find(|message| message.role == "user");
            Failure {
                task: task.map(|message| message.text.clone()).unwrap_or_default(),
                scenario: &row.scenario_id,
                cause: cause(row, scenario, &messages, &made, &needed),
                called,
                needed,
            }
        })
        .collect()
}

fn reference_tools(scenario: &Scenario) -> BTreeSet<String> {
    let calls = scenario.reference.as_deref().and_then(|text| serde_json::from_str::<Vec<Value>>(text).ok());
    calls.iter().flatten().filter_map(|call| call["name"].as_str().map(str::to_owned)).collect()
}

fn cause(
    row: &EpisodeRow,
    scenario: Option<&Scenario>,
    messages: &[Message],
    made: &[Call],
    needed: &BTreeSet<String>,
) -> &'static str {
    if ["server_down", "out_of_time"].contains(&row.end.as_str()) {
        return "server";
    }
    if row.answer.is_none() {
        return "gave up";
    }
    let results = || messages.iter().filter(|message| message.role == "tool" && message.error.is_none());
    if let Some(expected) = scenario.and_then(|scenario| scenario.answer.as_deref())
        && results().any(|message| holds(&message.text, expected))
    {
        return "misread result";
    }
    let is_called = |tool: &String| made.iter().any(|call| call.tool == *tool);
    if needed.iter().any(|tool| !is_called(tool)) {
        return "tool choice";
    }
    let succeeds = |tool: &String| made.iter().any(|call| call.tool == *tool && !call.is_error);
    let reference: Vec<Value> = scenario
        .and_then(|scenario| serde_json::from_str(scenario.reference.as_deref()?).ok())
        .unwrap_or_default();
    let is_made = |wanted: &Value| {
        made.iter().any(|call| {
            let arguments =
                call.arguments.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
            !call.is_error
                && wanted["name"] == call.tool.as_str()
                && arguments.as_ref() == wanted.get("arguments")
        })
    };
    match () {
        () if needed.iter().any(|tool| !succeeds(tool)) => "argument",
        () if !reference.is_empty() && !reference.iter().any(is_made) => "argument",
        () => "other",
    }
}

/// Whether a result contains an answer: every item of it as a word or number of its own.
fn holds(result: &str, answer: &str) -> bool {
    let result = result.to_lowercase();
    let is_there = |item: &str| {
        result.match_indices(item).any(|(at, _)| {
            let is_word = |letter: Option<char>| letter.is_some_and(char::is_alphanumeric);
            !is_word(result[..at].chars().next_back()) && !is_word(result[at + item.len()..].chars().next())
        })
    };
    let items: Vec<String> =
        answer.split(", ").map(|item| item.trim().to_lowercase()).filter(|item| !item.is_empty()).collect();
    !items.is_empty() && items.iter().all(|item| is_there(item))
}

fn causes(failed: &[Failure<'_>]) -> Vec<Cause> {
    let mut causes: Vec<Cause> = CAUSES
        .into_iter()
        .map(|(cause, meaning)| {
            let of: Vec<&Failure<'_>> = failed.iter().filter(|failure| failure.cause == cause).collect();
            let examples = of.iter().take(3).map(|failure| failure.task.clone()).collect();
            Cause { cause, meaning, tasks: of.len() as u32, examples }
        })
        .filter(|cause| cause.tasks > 0)
        .collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.tasks));
    causes
}

fn confusions(failed: &[Failure<'_>]) -> Vec<Confusion> {
    let mut counts: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for failure in failed.iter().filter(|failure| failure.cause == "tool choice") {
        for needed in failure.needed.difference(&failure.called) {
            for called in failure.called.difference(&failure.needed).filter(|name| *name != "complete_task") {
                counts.entry((called, needed)).or_default().insert(failure.scenario);
            }
        }
    }
    let mut found: Vec<Confusion> = counts
        .into_iter()
        .map(|((called, needed), tasks)| Confusion {
            called: called.to_owned(),
            needed: needed.to_owned(),
            tasks: tasks.len() as u32,
        })
        .collect();
    found.sort_by_key(|confusion| std::cmp::Reverse(confusion.tasks));
    found
}

fn tools(parts: &[Part], failed: &[Failure<'_>]) -> Vec<ToolReport> {
    let mut all: Vec<ToolReport> = Vec::new();
    for part in parts {
        for found in calls::by_tool(&part.tools, part.outcomes.iter(), &part.calls) {
            if found.tool == "complete_task" {
                continue;
            }
            let at = all.iter().position(|known| known.calls.tool == found.tool).unwrap_or_else(|| {
                let tool = found.tool.clone();
                all.push(ToolReport {
                    calls: ToolStatistics { tool, ..Default::default() },
                    ..Default::default()
                });
                all.len() - 1
            });
            let known = &mut all[at];
            if found.offered {
                known.offered_in += part.outcomes.len() as u32;
                let tool = part.tools.iter().find(|tool| tool.name == found.tool);
                known.description_bytes = tool.map_or(0, |tool| tool.function.len());
            }
            known.calls.add(&found);
        }
    }
    for tool in &mut all {
        tool.refused = tool.calls.errors.get("schema").copied().unwrap_or(0);
        let concerns = |failure: &&Failure<'_>| {
            failure.called.contains(&tool.calls.tool) || failure.needed.contains(&tool.calls.tool)
        };
        tool.failed_tasks = failed.iter().filter(concerns).count() as u32;
    }
    all.sort_by_key(|tool| (std::cmp::Reverse(tool.failed_tasks), std::cmp::Reverse(tool.calls.failed)));
    all
}

fn errors(parts: &[Part]) -> Vec<ErrorReport> {
    let mut all: BTreeMap<(String, String), ErrorReport> = BTreeMap::new();
    for part in parts {
        let of: BTreeMap<&str, &EpisodeRow> =
            part.episodes.iter().map(|row| (row.id.as_str(), row)).collect();
        for made in part.calls.chunk_by(|one, other| one.trajectory_id == other.trajectory_id) {
            if !made.iter().any(|call| call.is_error) {
                continue;
            }
            let Some(episode) = of.get(made[0].trajectory_id.as_str()) else { continue };
            let messages = conversation::conversation(episode);
            // Results are in the order of the calls that have one.
            let mut results = messages.iter().filter(|message| message.role == "tool");
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
                    count: 0,
                    recovered: 0,
                    right: 0,
                    known: 0,
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
                        short.push('“');
                        short.push('…');
                        short.push('”');
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

fn tokens(bytes: usize) -> f64 {
    bytes as f64 / BYTES_PER_TOKEN
}

fn suggestions(report: &ServerReport, parts: &[Part]) -> Vec<Suggestion> {
    let mut all = Vec::new();
    let failed_of = |tool: &str| {
        report.tools.iter().find(|found| found.calls.tool == tool).map_or(0, |found| found.failed_tasks)
    };
    let mut suggest = |tool: &str, text: String| {
        all.push(Suggestion { tool: tool.to_owned(), text, failed_tasks: failed_of(tool) });
    };
    for error in
        report.errors.iter().filter(|error| error.count >= ENOUGH && 2 * error.recovered < error.count)
    {
        let share = 100.0 * f64::from(error.recovered) / f64::from(error.count);
        let after = format!(
            "After “{}” ({} times) agents recover in {share:.0} % of cases.",
            error.message, error.count
        );
        match error.kind.as_str() {
            "tool" => suggest(
                &error.tool,
                format!(
                    "{after} Let the error say what is valid: the names that exist, or an example of a right call."
                ),
            ),
            "schema" => {
                suggest(&error.tool, format!("{after} Describe the parameter, with an example of its value."))
            }
            "timeout" => {
                suggest(&error.tool, format!("{after} Answer faster, or return a part of the result."))
            }
            _ => {}
        }
    }
    for confusion in report.confusions.iter().filter(|confusion| confusion.tasks >= 2) {
        suggest(
            &confusion.needed,
            format!(
                "In {} failed tasks `{}` was called where `{}` was needed. Say in both descriptions when to use which.",
                confusion.tasks, confusion.called, confusion.needed
            ),
        );
    }
    let listed: BTreeMap<&str, &Tool> = parts
        .iter()
        .flat_map(|part| &part.tools)
        .filter(|tool| !tool.synthetic)
        .map(|tool| (tool.name.as_str(), tool))
        .collect();
    for tool in &report.tools {
        let (name, calls) = (&tool.calls.tool, &tool.calls);
        if calls.clipped >= ENOUGH && 10 * calls.clipped >= calls.calls {
            suggest(
                name,
                format!(
                    "{} of {} results were too long for the agent, which saw only their beginning and end. Offer a limit, a filter or pages.",
                    calls.clipped, calls.calls
                ),
            );
        }
        if tool.refused >= ENOUGH && 10 * tool.refused >= calls.calls {
            suggest(
                name,
                format!(
                    "{} of {} calls did not fit the schema. Give an example of the arguments in the description.",
                    tool.refused, calls.calls
                ),
            );
        }
        if tool.offered_in >= 20 && calls.calls == 0 {
            suggest(
                name,
                format!(
                    "It was offered in {} episodes and never called. It takes about {:.0} tokens of every prompt: hide it from these agents (`deny` of the stage that lists the tools), or say in its description what it is for.",
                    tool.offered_in,
                    tokens(tool.description_bytes)
                ),
            );
        }
        let Some(listed) = listed.get(name.as_str()) else { continue };
        if listed.description.trim().is_empty() {
            suggest(name, "It has no description.".to_owned());
        } else if listed.description.len() > 1200 {
            suggest(
                name,
                format!(
                    "Its description takes about {:.0} tokens of every prompt. Try a shorter one with `[overrides.tools.{name}]` and compare.",
                    tokens(listed.description.len())
                ),
            );
        }
        let schema: Value = serde_json::from_str(&listed.input_schema).unwrap_or_default();
        let bare: Vec<&str> = schema["properties"]
            .as_object()
            .into_iter()
            .flatten()
            .filter(|(_, property)| {
                property["description"].as_str().is_none_or(|text| text.trim().is_empty())
            })
            .map(|(name, _)| name.as_str())
            .collect();
        if !bare.is_empty() && tool.refused > 0 {
            suggest(name, format!("Parameters without a description: {}.", bare.join(", ")));
        }
    }
    all.sort_by_key(|suggestion| std::cmp::Reverse(suggestion.failed_tasks));
    all
}

/// The report as a document.
pub fn server_document(run: &Run, report: &ServerReport) -> Document {
    let server = report.server.clone().unwrap_or_else(|| "the server".into());
    let mut page = Document {
        title: format!("How agents use {server}"),
        subtitle: format!("mcprl, run {}, {}, {} episodes", run.id, state(run.state), report.episodes),
        blocks: Vec::new(),
    };
    if report.episodes == 0 {
        page.push(Block::Statement(
            Tone::Faint,
            "This run has played no episodes that are still in the cache.".into(),
        ));
        return page;
    }
    page.heading("Suggestions");
    match report.suggestions.is_empty() {
        true => page.text("No rule finds anything to suggest."),
        false => {
            let mut table = Table::new(["tool", "failed tasks", "suggestion"]);
            for found in &report.suggestions {
                table.row([
                    Cell::code(found.tool.clone()),
                    Cell::count(found.failed_tasks),
                    Cell::text(found.text.clone()),
                ]);
            }
            page.table(table);
            page.text(
                "To test a description: set it with [overrides.tools.NAME] in the run file, run again, and compare both runs with `mcprl report OLD NEW`.",
            );
        }
    }
    page.heading("Failed tasks by cause");
    page.text(format!(
        "{} of {} tasks of {} have a wrong answer. The first rule that applies gives the cause.",
        report.failed_tasks, report.tasks, report.policy
    ));
    let mut table = Table::new(["cause", "tasks", "meaning", "for example"]);
    for cause in &report.causes {
        let example =
            cause.examples.first().map(|task| shortened(task, 140).into_owned()).unwrap_or_default();
        table.row([
            Cell::text(cause.cause),
            Cell::number(cause.tasks.to_string()),
            Cell::text(cause.meaning),
            Cell::text(example),
        ]);
    }
    page.table(table);
    page.heading("Tools");
    page.text("Over all episodes of the run. Tools of most failed tasks come first. Tokens are bytes divided by four.");
    tool_table(&mut page, report);
    if !report.confusions.is_empty() {
        page.heading("Tools that are confused");
        let mut table = Table::new(["called", "needed", "failed tasks"]);
        for found in &report.confusions {
            table.row([
                Cell::code(found.called.clone()),
                Cell::code(found.needed.clone()),
                Cell::number(found.tasks.to_string()),
            ]);
        }
        page.table(table);
    }
    page.heading("Errors");
    page.text("Those that most often ended without a recovery come first. Numbers, quoted values and single words that differ are left out of the messages.");
    error_table(&mut page, report);
    let mut limits = vec![
        "Causes and suggestions follow from rules, which know only what was recorded. A suggestion is worth testing, not true.".to_owned(),
        "Episodes include those of untrained policies, which make mistakes that no description prevents.".to_owned(),
    ];
    if report.unmarked_errors > 0 {
        limits.push(format!(
            "{} failed calls of an earlier version are not marked as such.",
            report.unmarked_errors
        ));
    }
    if !report.gone.is_empty() {
        limits.push(format!("Episodes that are no longer in the cache: {}.", report.gone.join(", ")));
    }
    page.heading("Limits");
    page.push(Block::List(limits));
    page
}

fn tool_table(page: &mut Document, report: &ServerReport) {
    let mut table = Table::new([
        "tool",
        "failed tasks",
        "offered in",
        "called in",
        "calls",
        "failed",
        "recovered",
        "refused by schema",
        "clipped",
        "tokens per result",
        "tokens in prompt",
    ]);
    for tool in &report.tools {
        let calls = &tool.calls;
        let name = match (calls.tool.as_str(), tool.offered_in) {
            ("", _) => "(not parsed)".to_owned(),
            (name, 0) => format!("{name} (does not exist)"),
            (name, _) => name.to_owned(),
        };
        let never = if calls.calls == 0 { Tone::Faint } else { Tone::Plain };
        table.row([
            Cell::code(name).tone(never),
            Cell::count(tool.failed_tasks),
            Cell::count(tool.offered_in),
            Cell::count(calls.episodes),
            Cell::number(calls.calls.to_string()),
            Cell::count(calls.failed).tone(if calls.failed > 0 { Tone::Bad } else { Tone::Plain }),
            Cell::count(calls.recovered),
            Cell::count(tool.refused),
            Cell::count(calls.clipped),
            Cell::number(
                calls.result_bytes.map_or(String::new(), |bytes| format!("{:.0}", bytes / BYTES_PER_TOKEN)),
            ),
            Cell::number(match tool.description_bytes {
                0 => String::new(),
                bytes => format!("{:.0}", tokens(bytes)),
            }),
        ]);
    }
    page.table(table);
}

fn error_table(page: &mut Document, report: &ServerReport) {
    let mut table = Table::new(["tool", "kind", "message", "times", "recovered", "then right %"]);
    for error in report.errors.iter().take(ERRORS) {
        let right = (error.known > 0)
            .then(|| format!("{:.0}", 100.0 * f64::from(error.right) / f64::from(error.known)));
        table.row([
            Cell::code(error.tool.clone()),
            Cell::text(error.kind.clone()),
            Cell::code(error.message.clone()),
            Cell::number(error.count.to_string()),
            Cell::number(format!("{:.0} %", 100.0 * f64::from(error.recovered) / f64::from(error.count))),
            Cell::number(right.unwrap_or_default()),
        ]);
    }
    page.table(table);
    if report.errors.len() > ERRORS {
        page.text(format!("{} more messages are in `--json`.", report.errors.len() - ERRORS));
    }
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
