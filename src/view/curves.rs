//! How training went: a point for each iteration of each loop, and the steps of stages outside loops.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Iteration, Run, Stage, StageState};
use crate::{
    data::{OutcomeRow, Reward, Step},
    eval::{Clusters, Interval, rate_interval},
    grpo::Signal,
};

/// All training of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Curves {
    pub loops: Vec<Curve>,
    /// Optimizer steps of stages outside loops, such as a start.
    pub alone: Vec<Steps>,
}

/// The steps of one stage.
#[derive(Debug, Clone, Serialize)]
pub struct Steps {
    pub stage: String,
    pub steps: Vec<Step>,
}

/// A loop over its iterations.
#[derive(Debug, Clone, Serialize)]
pub struct Curve {
    pub name: String,
    pub points: Vec<Point>,
}

/// A share with its 95 % interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Rate {
    pub share: f64,
    /// As [`rate_interval`] says, with the episodes of a scenario as a cluster.
    pub low: f64,
    pub high: f64,
    /// Episodes.
    pub of: usize,
}

impl Rate {
    /// `outcomes`: scenario and outcome of each episode. None without episodes.
    pub fn new<'a>(outcomes: impl Iterator<Item = (&'a str, bool)>) -> Option<Self> {
        let mut groups: BTreeMap<&str, usize> = BTreeMap::new();
        let (mut values, mut members) = (Vec::new(), Vec::new());
        for (scenario, right) in outcomes {
            let next = groups.len();
            members.push(*groups.entry(scenario).or_insert(next));
            values.push(f64::from(u8::from(right)));
        }
        if values.is_empty() {
            return None;
        }
        let clusters = Clusters::new(&values, &members);
        let Interval { low, high } = rate_interval(&clusters);
        Some(Self { share: clusters.mean(), low, high, of: values.len() })
    }
}

/// One iteration. What its stages did not report, or the cache no longer has, is none.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Point {
    pub iteration: u32,
    /// `train[0003]`, to join with its stages.
    pub id: String,
    pub state: Option<StageState>,
    /// Share of right answers among the episodes with a known answer.
    pub success: Option<f64>,
    /// Its interval, if the episodes are in the cache.
    pub interval: Option<Rate>,
    /// The same of tasks that the loop drew for the first time.
    pub success_new: Option<f64>,
    /// Greedy success on tasks that nothing trains on, where the loop measures it.
    pub success_greedy: Option<f64>,
    pub reward: Option<f64>,
    /// Means over the iteration's optimizer steps.
    pub loss: Option<f64>,
    pub gradient_norm: Option<f64>,
    pub entropy: Option<f64>,
    pub clip_fraction: Option<f64>,
    /// The largest of a step.
    pub moved_kl: Option<f64>,
    pub kl: Option<f64>,
    /// Of the last step.
    pub learning_rate: Option<f64>,
    /// How many rollouts contributed a gradient, and why the others did not.
    pub signal: Option<Signal>,
    /// Share of rollouts with a gradient, also where the counts are gone.
    pub signal_share: Option<f64>,
    pub episodes: Option<f64>,
    /// Means per episode.
    pub turns: Option<f64>,
    pub calls: Option<f64>,
    pub tool_errors: Option<f64>,
    pub parse_failures: Option<f64>,
    /// Share of calls in the form of the chat template.
    pub template_calls: Option<f64>,
    /// Share of episodes that gave their answer to `complete_task`.
    pub tool_answers: Option<f64>,
    pub sampled_tokens: Option<f64>,
    /// Share of episodes that a limit cut short.
    pub truncated: Option<f64>,
    /// Tokens that training processed.
    pub trained_tokens: Option<f64>,
    /// Time of its stages: in this run, or else when their results were made.
    pub seconds: Option<f64>,
    /// The same by stage, as the run file names it.
    pub seconds_by_stage: BTreeMap<String, f64>,
    /// Every metric of its stages, as `STAGE.METRIC`.
    pub metrics: BTreeMap<String, f64>,
    /// Its optimizer steps.
    pub steps: Vec<Step>,
}

/// Reads the tables of every iteration.
pub fn curves(run: &Run) -> Curves {
    let curve = |found: &super::Loop| {
        let points = found.iterations.iter().map(|iteration| iteration_point(run, &found.name, iteration));
        Curve { name: found.name.clone(), points: points.collect() }
    };
    let alone = run.stages.iter().filter(|stage| stage.iteration.is_none());
    let alone = alone.filter_map(|stage| {
        let steps = stage.table().ok().filter(|steps: &Vec<Step>| !steps.is_empty())?;
        Some(Steps { stage: stage.id.clone(), steps })
    });
    Curves { loops: run.loops.iter().map(curve).collect(), alone: alone.collect() }
}

/// Reads the tables of one iteration of a loop.
pub fn iteration_point(run: &Run, in_loop: &str, iteration: &Iteration) -> Point {
    let stages: Vec<&Stage> = iteration.stages.iter().filter_map(|id| run.stage(id)).collect();
    Point {
        iteration: iteration.number,
        id: format!("{in_loop}[{:04}]", iteration.number),
        state: Some(iteration.state),
        ..point(&stages)
    }
}

fn point(stages: &[&Stage]) -> Point {
    // The last stage that reports a metric counts.
    let metric = |name: &str| stages.iter().rev().find_map(|stage| stage.metric(name));
    let mut metrics = BTreeMap::new();
    let mut seconds_by_stage = BTreeMap::new();
    for stage in stages {
        let own = stage.own_name();
        metrics.extend(stage.metrics.iter().map(|(name, value)| (format!("{own}.{name}"), *value)));
        if let Some(seconds) = stage.any_seconds() {
            seconds_by_stage.insert(own.to_owned(), seconds);
        }
    }
    // Not those of an evaluation within the loop.
    let rollout = stages
        .iter()
        .find(|stage| stage.artifact("trajectories").is_some() && stage.artifact("verdict").is_none());
    let of_rollout = |name: &str| rollout.and_then(|stage| stage.metric(name));
    let outcomes: Option<Vec<OutcomeRow>> = rollout.and_then(|stage| stage.table().ok());
    let known = outcomes.iter().flatten();
    let interval = Rate::new(known.filter_map(|row| Some((row.scenario_id.as_str(), row.correct?))));
    let rewards = stages.iter().find_map(|stage| stage.table::<Reward>().ok());
    let steps: Vec<Step> = stages.iter().find_map(|stage| stage.table().ok()).unwrap_or_default();
    let over = |of: fn(&Step) -> Option<f64>| mean(steps.iter().filter_map(of));
    let signal = steps.iter().find_map(|step| serde_json::from_str(step.signal.as_deref()?).ok());
    let cut = ["out_of_turns", "out_of_turn_tokens", "out_of_tokens"];
    let cut: Vec<f64> = cut.iter().filter_map(|end| of_rollout(&format!("ended_{end}"))).collect();
    let seconds: Vec<f64> = seconds_by_stage.values().copied().collect();
    let trained =
        stages.iter().filter_map(|stage| stage.usage).map(|usage| usage.trained_tokens).sum::<u64>();
    Point {
        success: interval
            .map(|rate| rate.share)
            .or_else(|| of_rollout("success"))
            .or_else(|| metric("success")),
        interval,
        success_new: of_rollout("success_new"),
        success_greedy: metric("success_greedy"),
        reward: mean(rewards.iter().flatten().map(|reward| f64::from(reward.reward)))
            .or_else(|| metric("reward")),
        loss: over(|step| Some(step.loss)).or_else(|| metric("loss")),
        gradient_norm: over(|step| Some(step.gradient_norm)).or_else(|| metric("gradient_norm")),
        entropy: over(|step| step.entropy).or_else(|| metric("entropy")),
        clip_fraction: over(|step| step.clip_fraction).or_else(|| metric("clip_fraction")),
        moved_kl: metric("moved_kl"),
        kl: metric("kl"),
        learning_rate: steps.last().map(|step| step.learning_rate).or_else(|| metric("learning_rate")),
        signal,
        signal_share: metric("signal"),
        episodes: of_rollout("episodes").or(outcomes.map(|rows| rows.len() as f64)),
        turns: of_rollout("turns"),
        calls: of_rollout("calls"),
        tool_errors: of_rollout("tool_errors"),
        parse_failures: of_rollout("parse_failures"),
        template_calls: of_rollout("form_template"),
        tool_answers: of_rollout("ended_completed")
            .zip(of_rollout("answered_as_text"))
            .map(|(answered, as_text)| answered - as_text),
        sampled_tokens: of_rollout("sampled_tokens"),
        truncated: (!cut.is_empty()).then(|| cut.iter().sum()),
        trained_tokens: (trained > 0).then_some(trained as f64),
        seconds: (!seconds.is_empty()).then(|| seconds.iter().sum()),
        seconds_by_stage,
        metrics,
        steps,
        ..Point::default()
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}
