//! Comparisons of policies: the verdict's rows, and the scenarios whose outcome changed with both episodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Missing, Run, Stage};
use crate::{
    data::{EpisodeMessages, OutcomeRow, Scenario, VerdictRow, policy_parts},
    eval::{self, Finding, Headline, Mode},
};

/// A stage that compares policies.
#[derive(Debug, Clone, Serialize)]
pub struct Exam {
    pub stage: String,
    /// The first is the baseline.
    pub policies: Vec<String>,
    /// The mode that the verdict reports: `greedy` or `sampled`.
    pub mode: String,
    /// A sentence for each comparison, and which policy to use.
    pub sentences: String,
    /// What the verdict comes down to.
    pub headline: Option<Headline>,
    pub rows: Vec<Row>,
    /// The scenarios of every compared policy, if the episodes are in the cache.
    pub pairs: Result<Vec<Pair>, Missing>,
}

impl Exam {
    /// The verdict's rows of this scope in the reported mode.
    pub fn rows_of<'e>(&'e self, scope: &'e str) -> impl DoubleEndedIterator<Item = &'e VerdictRow> {
        let rows = self.rows.iter().map(|row| &row.row);
        rows.filter(move |row| row.scope == scope && row.mode == self.mode)
    }
}

/// A row of the verdict with its finding; none for the baseline.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub row: VerdictRow,
    /// `better`, `no measurable gain` or `worse`.
    pub finding: Option<&'static str>,
}

/// What became of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// More right episodes than the baseline.
    Won,
    /// Fewer.
    Lost,
    /// As many, and not all.
    StillWrong,
    /// All right for both.
    StillRight,
}

impl Change {
    pub fn name(self) -> &'static str {
        match self {
            Self::Won => "won",
            Self::Lost => "lost",
            Self::StillWrong => "still wrong",
            Self::StillRight => "still right",
        }
    }
}

/// One scenario played by the baseline and by another policy, in the reported mode.
#[derive(Debug, Clone, Serialize)]
pub struct Pair {
    pub scenario: String,
    pub family: String,
    pub split: String,
    /// None if the scenarios are not in the cache.
    pub task: Option<String>,
    pub expected: Option<String>,
    /// Name of the policy that is compared with the baseline.
    pub policy: String,
    pub change: Change,
    pub base: Side,
    pub other: Side,
}

/// What one policy did with a scenario.
#[derive(Debug, Clone, Serialize)]
pub struct Side {
    pub right: u32,
    pub of: u32,
    /// The episode that shows the change: a wrong one of the side with fewer right, a right one of the other.
    pub episode: String,
    pub answer: Option<String>,
    pub end: String,
    pub turns: u32,
    pub calls: u32,
    pub tool_errors: u32,
    /// Position of the episode in its table: two policies with equal weights have episodes with equal ids.
    pub position: usize,
}

/// The comparisons of a run, in its order.
pub fn exams(run: &Run) -> Vec<Exam> {
    run.writers("verdict").filter_map(|stage| exam(run, stage).ok()).collect()
}

/// The comparison of one stage.
///
/// # Errors
/// If its verdict is not there.
pub fn exam(run: &Run, stage: &Stage) -> Result<Exam, Missing> {
    let rows: Vec<VerdictRow> = stage.table()?;
    let policies = policies(&rows);
    let mode = eval::reported_mode(&rows).to_owned();
    let pairs = stage.table::<OutcomeRow>().map(|episodes| {
        let scenarios = run.scenarios(stage).unwrap_or_default();
        let mut pairs = pairs(&rows, &mode, &by_policy(stage, &policies, &episodes), &scenarios);
        add_tasks(stage, &mut pairs);
        pairs
    });
    let (sentences, headline) = (eval::text(&rows), eval::headline(&rows));
    let row = |row: VerdictRow| Row { finding: Finding::of(&row).map(Finding::label), row };
    Ok(Exam {
        stage: stage.id.clone(),
        policies,
        mode,
        sentences,
        headline,
        rows: rows.into_iter().map(row).collect(),
        pairs,
    })
}

/// Episodes with their positions in the table.
type Placed<'e> = Vec<(usize, &'e OutcomeRow)>;

/// The episodes of each policy with their positions. They are stored policy by policy, the baseline first.
pub fn by_policy<'e>(
    stage: &Stage,
    policies: &[String],
    episodes: impl IntoIterator<Item = &'e OutcomeRow>,
) -> Vec<(String, Placed<'e>)> {
    let named = |name: &str| {
        let mut edges = stage.inputs.iter().filter(|edge| edge.role == "policies" && edge.name == name);
        edges.find_map(|edge| edge.digest).map(|digest| digest.to_string())
    };
    let mut of: Vec<(String, Placed<'e>)> =
        policies.iter().map(|policy| (policy.clone(), Vec::new())).collect();
    // A policy's part begins where an episode repeats, or where another digest begins.
    let mut part = 0;
    let mut seen: BTreeSet<(&str, u32)> = BTreeSet::new();
    let mut last: Option<&str> = None;
    for (position, episode) in episodes.into_iter().enumerate() {
        let policy = episode.policy.as_str();
        let key = (episode.scenario_id.as_str(), episode.sample);
        let is_new = last.is_some_and(|last| last != policy) || !seen.insert(key);
        if is_new && last.is_some() {
            seen = BTreeSet::from([key]);
            // By name or digest, since every episode of a policy may have been lost.
            let is_it = |name: &str| match policy_parts(policy) {
                (_, Some(variant)) => name == variant,
                (digest, None) => named(name).as_deref() == Some(digest),
            };
            let next = (part + 1..of.len()).find(|index| is_it(&of[*index].0));
            part = next.unwrap_or(part + 1);
        }
        last = Some(policy);
        if let Some((_, of_part)) = of.get_mut(part) {
            of_part.push((position, episode));
        }
    }
    of
}

/// How an episode of an exam was sampled: with greedy decoding, sample 0 is the greedy episode.
pub fn mode_of_sample<'r>(rows: impl IntoIterator<Item = &'r VerdictRow>, sample: u32) -> Mode {
    let has_greedy = rows.into_iter().any(|row| row.mode == Mode::Greedy.name());
    if has_greedy && sample == 0 { Mode::Greedy } else { Mode::Sampled }
}

/// The policies of a verdict, the baseline first, without agents that know nothing: they have no episodes and no differences.
fn policies(rows: &[VerdictRow]) -> Vec<String> {
    let mut policies: Vec<String> = Vec::new();
    for row in rows.iter().filter(|row| !row.is_idle()) {
        if !policies.contains(&row.policy) {
            policies.push(row.policy.clone());
        }
    }
    policies
}

fn pairs<'e>(
    rows: &[VerdictRow],
    mode: &str,
    policies: &[(String, Placed<'e>)],
    scenarios: &[Scenario],
) -> Vec<Pair> {
    let is_reported = |episode: &OutcomeRow| mode_of_sample(rows, episode.sample).name() == mode;
    let grouped = |(_, episodes): &(String, Placed<'e>)| {
        let mut by: BTreeMap<String, Placed<'e>> = BTreeMap::new();
        for (position, episode) in episodes.iter().filter(|(_, episode)| is_reported(episode)) {
            by.entry(episode.scenario_id.clone()).or_default().push((*position, *episode));
        }
        by
    };
    let tasks: BTreeMap<&str, &Scenario> =
        scenarios.iter().map(|scenario| (scenario.id.as_str(), scenario)).collect();
    let Some((baseline, others)) = policies.split_first() else { return Vec::new() };
    let base = grouped(baseline);
    let is_right = |episode: &OutcomeRow| episode.correct == Some(true);
    let share = |members: &[(usize, &OutcomeRow)]| {
        let right = members.iter().filter(|(_, episode)| is_right(episode)).count();
        right as f64 / members.len() as f64
    };
    let side = |members: &[(usize, &OutcomeRow)], shows_right: bool| {
        let shown = members.iter().find(|(_, episode)| is_right(episode) == shows_right);
        let (position, episode) = shown.unwrap_or(&members[0]);
        Side {
            right: members.iter().filter(|(_, episode)| is_right(episode)).count() as u32,
            of: members.len() as u32,
            episode: episode.id.clone(),
            answer: episode.answer.clone(),
            end: episode.end.clone(),
            turns: episode.turns,
            calls: episode.calls,
            tool_errors: episode.tool_errors,
            position: *position,
        }
    };
    let mut pairs = Vec::new();
    for other in others {
        for (scenario, members) in grouped(other) {
            let Some(before) = base.get(&scenario) else { continue };
            let (low, high) = (share(before), share(&members));
            let change = match high.total_cmp(&low) {
                std::cmp::Ordering::Greater => Change::Won,
                std::cmp::Ordering::Less => Change::Lost,
                std::cmp::Ordering::Equal if low == 1.0 => Change::StillRight,
                std::cmp::Ordering::Equal => Change::StillWrong,
            };
            let first = members[0].1;
            let task = tasks.get(scenario.as_str());
            pairs.push(Pair {
                family: first.family.clone(),
                split: first.split.clone(),
                task: task.map(|task| task.task.clone()),
                expected: task.and_then(|task| task.answer.clone()),
                policy: other.0.clone(),
                base: side(before, matches!(change, Change::Lost | Change::StillRight)),
                other: side(&members, matches!(change, Change::Won | Change::StillRight)),
                change,
                scenario,
            });
        }
    }
    pairs
}

/// Takes tasks that the table of scenarios lacks from the conversations.
fn add_tasks(stage: &Stage, pairs: &mut [Pair]) {
    let unknown = || pairs.iter().filter(|pair| pair.task.is_none());
    let positions: BTreeSet<usize> = unknown().map(|pair| pair.other.position).collect();
    if positions.is_empty() {
        return;
    }
    let messages: Vec<EpisodeMessages> = stage.table_part(&positions).unwrap_or_default();
    let by_position: BTreeMap<usize, &EpisodeMessages> = positions.into_iter().zip(&messages).collect();
    for pair in pairs.iter_mut().filter(|pair| pair.task.is_none()) {
        pair.task =
            by_position.get(&pair.other.position).and_then(|episode| first_of_user(&episode.messages));
    }
}

fn first_of_user(messages: &str) -> Option<String> {
    let messages: Vec<serde_json::Value> = serde_json::from_str(messages).ok()?;
    let user = messages.iter().find(|message| message["role"] == "user")?;
    user["content"].as_str().map(str::to_owned)
}
