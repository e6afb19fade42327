//! Comparisons of policies: the verdict's rows, and the scenarios whose outcome changed with both episodes.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{Missing, Run, Stage};
use crate::{
    data::{self, EpisodeMessages, OutcomeRow, Scenario, VerdictRow, first_of_user, policy_parts},
    eval::{self, Finding, Headline, Mode, Sentence},
};

/// A stage that compares policies.
#[derive(Debug, Clone, Serialize)]
pub struct Exam {
    pub stage: String,
    /// The first is the baseline.
    pub policies: Vec<String>,
    /// The mode that the verdict reports: `greedy` or `sampled`.
    pub mode: String,
    /// A sentence for each comparison.
    pub sentences: Vec<Sentence>,
    /// What the verdict comes down to.
    pub headline: Option<Headline>,
    pub rows: Vec<Row>,
}

impl Exam {
    /// What its rows over all tasks count.
    pub fn counted(&self) -> Counted {
        Counted::of(self.rows.iter().map(|row| &row.row))
    }

    /// The scenarios of every compared policy. Reads the episodes.
    ///
    /// # Errors
    /// If they are not in the cache.
    pub fn pairs(&self, run: &Run) -> Result<Vec<Pair>, Missing> {
        let stage = run.stage(&self.stage).ok_or(Missing::NotWritten)?;
        let episodes = stage.table::<OutcomeRow>()?;
        let scenarios = run.scenarios(stage).unwrap_or_default();
        let mut pairs = pairs(self.counted(), &by_policy(stage, &self.policies, &episodes), &scenarios);
        add_tasks(stage, &mut pairs);
        Ok(pairs)
    }

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
    pub finding: Option<Finding>,
    /// Whether the rows over all tasks count its tasks: not those of trained cases in other words, if there are others.
    pub is_counted: bool,
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
    /// Whether the rows over all tasks count it.
    pub is_counted: bool,
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
    run.writers("verdict").filter_map(|stage| exam(stage).ok()).collect()
}

/// The comparison of one stage.
///
/// # Errors
/// If its verdict is not there.
pub fn exam(stage: &Stage) -> Result<Exam, Missing> {
    let rows: Vec<VerdictRow> = stage.table()?;
    let policies = policies(&rows);
    let mode = eval::reported_mode(&rows).to_owned();
    let counted = Counted::of(rows.iter());
    let (sentences, headline) = (eval::comparison(&rows), eval::headline(&rows));
    let row = |row: VerdictRow| Row {
        finding: Finding::of(&row),
        is_counted: row.scope != "split" || counted.split(&row.slice),
        row,
    };
    Ok(Exam {
        stage: stage.id.clone(),
        policies,
        mode,
        sentences,
        headline,
        rows: rows.into_iter().map(row).collect(),
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

/// What the rows over all tasks of a verdict count. Whatever counts failures takes them from here.
#[derive(Debug, Clone, Copy)]
pub struct Counted {
    mode: Mode,
    has_greedy: bool,
    /// Whether tasks of trained cases are counted, because there are no others.
    has_trained_cases: bool,
}

impl Counted {
    pub fn of<'r>(rows: impl Iterator<Item = &'r VerdictRow> + Clone) -> Self {
        let has_greedy = rows.clone().any(|row| row.mode == Mode::Greedy.name());
        let mut splits = rows.filter(|row| row.scope == "split");
        Self {
            mode: if has_greedy { Mode::Greedy } else { Mode::Sampled },
            has_greedy,
            has_trained_cases: splits.all(|row| data::is_of_trained_cases(&row.slice)),
        }
    }

    pub fn split(&self, split: &str) -> bool {
        self.has_trained_cases || !data::is_of_trained_cases(split)
    }

    /// With greedy decoding, sample 0 is the greedy episode.
    pub fn mode_of(&self, sample: u32) -> Mode {
        if self.has_greedy && sample == 0 { Mode::Greedy } else { Mode::Sampled }
    }

    /// Whether an episode was sampled in the reported mode.
    pub fn is_reported(&self, episode: &OutcomeRow) -> bool {
        self.mode_of(episode.sample) == self.mode
    }

    pub fn episode(&self, episode: &OutcomeRow) -> bool {
        self.split(&episode.split) && self.is_reported(episode)
    }
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

fn pairs<'e>(counted: Counted, policies: &[(String, Placed<'e>)], scenarios: &[Scenario]) -> Vec<Pair> {
    let grouped = |(_, episodes): &(String, Placed<'e>)| {
        let mut by: BTreeMap<String, Placed<'e>> = BTreeMap::new();
        for (position, episode) in episodes.iter().filter(|(_, episode)| counted.is_reported(episode)) {
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
                is_counted: counted.split(&first.split),
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
        pair.task = by_position
            .get(&pair.other.position)
            .and_then(|episode| first_of_user(&episode.messages).map(str::to_owned));
    }
}
