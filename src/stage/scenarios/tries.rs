//! Admission by a policy's tries: training tasks that it always solves are refused, and on request those that it seldom does.
//!
//! Held-out tasks are never tried. An exam whose tasks were chosen by a policy's success would be biased.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{Context, Metrics, error::ScenariosError};
use crate::{
    agent::AgentSettings,
    data::{Admission, PassRate, Scenario, Sparse},
    error::Result,
    judge::truth,
    stage::rollout::{
        play::Player,
        records::{RolloutSpec, samples},
        settings::PlaySettings,
    },
    tasks::refusals::{Reason, Refusal, refuse},
};

/// The input with the policy.
pub const ROLE: &str = "policy";

/// How often a policy tries each training task, and which tasks are kept.
#[derive(Debug, Deserialize)]
pub(in crate::stage) struct Tries {
    pub tries: u32,
    /// Tasks below this pass rate are refused.
    min_pass_rate: f64,
    /// Tasks at or above this pass rate are refused.
    max_pass_rate: f64,
    max_lost_share: f64,
    episode_concurrency: usize,
}

/// Outcomes of a task's tries, without those lost to server failures.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Outcomes {
    known: u32,
    right: u32,
}

impl Outcomes {
    fn rate(self) -> Option<f64> {
        (self.known > 0).then(|| f64::from(self.right) / f64::from(self.known))
    }
}

/// What the tries found.
#[derive(Debug, Default)]
pub struct TryResults {
    /// Of the tasks that are kept.
    pub rates: Vec<PassRate>,
    pub metrics: Metrics,
}

impl Tries {
    /// How this agent plays the tries, and those that vote.
    pub fn settings(&self, agent: AgentSettings) -> PlaySettings {
        let Self { max_lost_share, episode_concurrency: concurrency, .. } = *self;
        PlaySettings { agent, concurrency, max_lost_share }
    }

    /// Checks that some pass rate is kept.
    pub fn check(&self) -> Result<(), ScenariosError> {
        let Self { tries, min_pass_rate: min, max_pass_rate: max, .. } = *self;
        if tries > 0 && min >= max { Err(ScenariosError::PassRates { min, max }) } else { Ok(()) }
    }

    /// Why a task with these outcomes is refused.
    fn objection(&self, outcomes: Outcomes) -> Option<Refusal> {
        let reason = match outcomes.rate()? {
            rate if rate >= self.max_pass_rate => Reason::TooEasy,
            rate if rate < self.min_pass_rate => Reason::TooHard,
            _ => return None,
        };
        Some((reason, format!("{} of {} tries solve it", outcomes.right, outcomes.known)))
    }

    /// Plays the training tasks with a known answer, and removes those that are too easy or too hard. Others are kept.
    ///
    /// # Errors
    /// If the policy cannot be loaded or played, or no training task is left.
    pub async fn select(
        &self,
        context: &Context,
        play: PlaySettings,
        train: &mut Vec<Scenario>,
        admission: &mut [Admission],
    ) -> Result<TryResults> {
        let tasks: Vec<Scenario> = train.iter().filter(|task| truth::is_known(task)).cloned().collect();
        if tasks.is_empty() || self.tries == 0 {
            return Ok(TryResults::default());
        }
        let rollouts: Vec<RolloutSpec<'_>> = tasks
            .iter()
            .flat_map(|task| samples("mcprl try seed v1", context.seed, task, 0..self.tries))
            .collect();
        context.observer.phase("tries", rollouts.len() as u64);
        let (policy, tools) = (context.input(ROLE)?, &context.input("tools")?.path);
        let mut player = Player::open(context, policy, tools, &tasks, play).await?;
        let played = player.play(context, &rollouts).await;
        player.close().await;
        let mut outcomes: BTreeMap<&str, Outcomes> = BTreeMap::new();
        for (rollout, played) in rollouts.iter().zip(played?) {
            let Some(right) = played.and_then(|trajectory| trajectory.correct) else { continue };
            let outcomes = outcomes.entry(rollout.scenario.id.as_str()).or_default();
            outcomes.known += 1;
            outcomes.right += u32::from(right);
        }
        let of = |id: &str| outcomes.get(id).copied().unwrap_or_default();
        for row in admission.iter_mut().filter(|row| row.reason.is_none()) {
            let Some(rate) = of(&row.id).rate() else { continue };
            (row.tries, row.pass_rate) = (Some(Sparse(of(&row.id).known)), Some(Sparse(rate)));
        }
        let all = train.len();
        refuse(train, admission, |task| task.id.clone(), |task| self.objection(of(&task.id)));
        if train.is_empty() {
            return Err(ScenariosError::NothingLeft { tasks: all }.into());
        }
        let kept = |task: &Scenario| {
            let Outcomes { known, right } = of(&task.id);
            let (episodes, right) = (f64::from(known), f64::from(right));
            (known > 0).then(|| PassRate { episodes, right, ..PassRate::unknown(&task.id) })
        };
        let rates = train.iter().filter_map(kept).collect();
        let known: Vec<f64> = outcomes.values().filter_map(|outcomes| outcomes.rate()).collect();
        let metrics = metrics(&known);
        context.observer.note(&format!(
            "the policy solves {:.0} % of the tries at {} training tasks; {} of them are refused",
            100.0 * metrics.get("pass_rate").copied().unwrap_or_default(),
            known.len(),
            all - train.len(),
        ));
        Ok(TryResults { rates, metrics })
    }
}

fn metrics(rates: &[f64]) -> Metrics {
    let count = rates.len() as f64;
    let mut metrics = Metrics::from([("tried".to_owned(), count)]);
    if count > 0.0 {
        metrics.insert("pass_rate".into(), rates.iter().sum::<f64>() / count);
    }
    metrics
}
