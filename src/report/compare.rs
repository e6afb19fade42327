//! Runs side by side: the same policy name of each run on the tasks that all of them played.

use std::collections::BTreeMap;

use super::{
    document::{Block, Cell, Document, Table},
    parts,
    plot::{self, Effect},
    run,
};
use crate::{
    data::{OutcomeRow, Scenario, keeps_protocol},
    eval::{self, Comparison, Episode, Finding, verdict},
    text::percent,
    view::{
        Run,
        exam::{self, Exam},
    },
};

/// A run to compare, and what sets it apart from the first one.
#[derive(Debug)]
pub struct Comparable {
    pub run: Run,
    /// Differences of keys, without those that follow from others.
    pub differences: Vec<String>,
}

/// Why runs cannot be compared.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotComparable {
    /// The run has no comparison of policies whose episodes are in the cache.
    NoEpisodes(String),
    /// No policy has the same name in all runs.
    NoPolicy,
    /// One run's episodes are greedy, another's are sampled.
    Modes,
    /// The runs have no task in common.
    NoTask,
}

/// The episodes of a run's last exam.
pub(super) struct LastExam {
    exam: Exam,
    scenarios: Vec<Scenario>,
    episodes: BTreeMap<String, Vec<OutcomeRow>>,
    tools: Vec<String>,
}

impl LastExam {
    /// The baseline and the last policy, as the headline has them.
    pub(super) fn ends(&self) -> Option<(Option<&String>, &String)> {
        let (baseline, last) = self.exam.headline.as_ref()?.ends()?;
        Some((baseline.map(|one| &one.policy), &last.policy))
    }
}

fn played(run: &Run) -> Option<LastExam> {
    let exam = exam::exams(run).pop()?;
    let stage = run.stage(&exam.stage)?;
    let rows: Vec<OutcomeRow> = stage.table().ok()?;
    let of = |part: Vec<(usize, &OutcomeRow)>| part.into_iter().map(|(_, row)| row.clone()).collect();
    let episodes = exam::by_policy(stage, &exam.policies, &rows);
    let episodes = episodes.into_iter().map(|(policy, part)| (policy, of(part))).collect();
    let tools = run.tools(stage).unwrap_or_default();
    let tools = tools.into_iter().filter(|tool| !tool.synthetic).map(|tool| tool.name).collect();
    Some(LastExam { scenarios: run.scenarios(stage).unwrap_or_default(), episodes, tools, exam })
}

/// The last exam of each run.
pub(super) fn last_exams<'r>(runs: impl Iterator<Item = &'r Run>) -> Result<Vec<LastExam>, NotComparable> {
    runs.map(|run| played(run).ok_or_else(|| NotComparable::NoEpisodes(run.id.clone()))).collect()
}

/// The mode of all, and the policies that all have.
pub(super) fn common_policies(all: &[LastExam]) -> Result<(String, Vec<&String>), NotComparable> {
    let mode = all[0].exam.mode.clone();
    if all.iter().any(|played| played.exam.mode != mode) {
        return Err(NotComparable::Modes);
    }
    let is_common = |name: &&String| {
        all.iter().all(|played| played.episodes.get(*name).is_some_and(|episodes| !episodes.is_empty()))
    };
    let policies: Vec<&String> = all[0].exam.policies.iter().filter(is_common).collect();
    if policies.is_empty() { Err(NotComparable::NoPolicy) } else { Ok((mode, policies)) }
}

/// The episodes of a policy in this mode, under another name.
pub(super) fn episodes_of(played: &LastExam, policy: &str, name: &str, mode: &str) -> Vec<Episode> {
    let counted = played.exam.counted();
    let rows = played.episodes.get(policy).into_iter().flatten();
    let rows = rows.filter(|row| counted.mode_of(row.sample).name() == mode);
    let episode = |row: &OutcomeRow| Episode {
        scenario: row.scenario_id.clone(),
        policy: name.to_owned(),
        mode: counted.mode_of(row.sample),
        right: row.correct == Some(true),
        changed: None,
        by_protocol: keeps_protocol(row.loose_calls, row.answer_source.as_deref()),
        any_right: None,
        calls: row.calls,
        turns: row.turns,
        tokens: 0,
        tool_errors: row.tool_errors,
        tools: Vec::new(),
    };
    rows.map(episode).collect()
}

/// The tasks of an exam, or if their table is gone what a policy's episodes tell of them.
pub(super) fn shown_tasks(played: &LastExam, policy: &str) -> Vec<Scenario> {
    if !played.scenarios.is_empty() {
        return played.scenarios.clone();
    }
    let scenario = |row: &OutcomeRow| Scenario {
        id: row.scenario_id.clone(),
        family: row.family.clone(),
        split: row.split.clone(),
        ..Scenario::default()
    };
    played.episodes.get(policy).into_iter().flatten().map(scenario).collect()
}

/// The comparison of two or more runs; the first is the baseline.
///
/// # Errors
/// If they have nothing to compare.
pub fn comparison(runs: &[Comparable]) -> Result<Document, NotComparable> {
    let all = last_exams(runs.iter().map(|found| &found.run))?;
    let (mode, policies) = common_policies(&all)?;
    // A run may be compared with itself.
    let mut names: Vec<String> = Vec::new();
    for found in runs {
        let id = &found.run.id;
        let again = names.iter().filter(|name| name.starts_with(id.as_str())).count();
        names.push(if names.contains(id) { format!("{id} ({})", again + 1) } else { id.clone() });
    }
    let mut page = Document {
        title: format!("{} against {}", names[1..].join(", "), names[0]),
        subtitle: "mcprl, runs compared on the held-out tasks that all of them played".into(),
        blocks: Vec::new(),
    };
    differences(&mut page, runs);
    // The trained policy is the last one, and of most interest.
    let mut is_empty = true;
    for policy in policies.iter().rev() {
        is_empty &= !of_policy(&mut page, &names, &all, policy, &mode);
    }
    if is_empty {
        return Err(NotComparable::NoTask);
    }
    page.heading("Limits");
    page.push(Block::List(vec![
        "Each run is one training run. The intervals are about the choice of tasks, not about the luck of a training: \
         repeat runs with other seeds (`mcprl run --seeds 1,2,3`) before you conclude that a setting is better."
            .into(),
    ]));
    Ok(page)
}

fn differences(page: &mut Document, runs: &[Comparable]) {
    page.heading("What differs");
    for found in &runs[1..] {
        page.subheading(format!("{} against {}", found.run.id, runs[0].run.id));
        match found.differences.is_empty() {
            true => page.text("No parameter, input, seed or code is known to differ."),
            false => page.push(Block::List(found.differences.clone())),
        }
    }
    let states: Vec<String> = runs
        .iter()
        .filter(|found| found.run.state != crate::exec::RunState::Finished)
        .map(|found| format!("{} is {}", found.run.id, parts::state(found.run.state)))
        .collect();
    if !states.is_empty() {
        page.text(format!("{}.", states.join("; ")));
    }
}

/// False if the runs have no task in common.
fn of_policy(page: &mut Document, names: &[String], all: &[LastExam], policy: &str, mode: &str) -> bool {
    let episodes: Vec<Episode> =
        names.iter().zip(all).flat_map(|(name, played)| episodes_of(played, policy, name, mode)).collect();
    let scenarios = shown_tasks(&all[0], policy);
    let compared =
        Comparison { policies: names, scenarios: &scenarios, tools: &all[0].tools, ..Default::default() };
    let rows = verdict(&compared, &episodes);
    if rows.is_empty() {
        return false;
    }
    page.heading(&format!("Policy {policy}"));
    let own = |played: &LastExam| {
        let rows = played.episodes.get(policy).into_iter().flatten();
        rows.map(|row| row.scenario_id.as_str()).collect::<std::collections::BTreeSet<_>>().len()
    };
    let counts: Vec<String> =
        names.iter().zip(all).map(|(name, played)| format!("{} of {name}", own(played))).collect();
    page.text(format!(
        "{} tasks are common to all runs ({}). Each run's agent played them with its own tools and prompt.",
        rows.iter()
            .filter(|row| row.scope == "split" && row.policy == names[0])
            .map(|row| row.scenarios)
            .sum::<u32>(),
        counts.join(", ")
    ));
    run::statements(page, &eval::comparison(&rows));
    let effects = rows.iter().filter(|row| row.scope != "tool" && row.scope != "kind").filter_map(|row| {
        let several = names.len() > 2;
        let slice = if row.scope == "all" { "all tasks" } else { row.slice.as_str() };
        run::effect(row, if several { format!("{slice}: {}", row.policy) } else { slice.to_owned() })
    });
    let effects: Vec<Effect> = effects.take(30).collect();
    if let Some(plot) = plot::forest("Gain over the first run in points", &effects) {
        page.push(Block::Plots(
            vec![plot],
            "Difference in success on the same tasks, with its 95 % interval.".into(),
        ));
    }
    let shown = rows.iter().filter(|row| row.scope == "all" || row.scope == "split");
    page.table(Table::of(shown, |row| {
        let count = |count: Option<u32>| count.map_or(String::new(), |count| count.to_string());
        let gain = row.gain.map_or(String::new(), |gain| plot::points(gain, 1));
        [
            ("slice", Cell::code(row.slice.clone())),
            ("tasks", Cell::number(row.scenarios.to_string())),
            ("run", Cell::code(row.policy.clone())),
            ("success %", Cell::number(percent(row.success, 1))),
            ("gain", Cell::number(gain).tone(run::tone(Finding::of(row)))),
            ("95 %", Cell::number(run::gain_interval(row))),
            ("p", Cell::number(row.p_adjusted.map_or(String::new(), |p| format!("{p:.3}")))),
            ("better", Cell::number(count(row.better))),
            ("worse", Cell::number(count(row.worse))),
            ("calls", Cell::number(format!("{:.2}", row.calls))),
        ]
    }));
    true
}
