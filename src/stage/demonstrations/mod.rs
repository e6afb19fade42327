//! `demonstrations`: plays the reference solutions of scenarios on the live server, as episodes to learn from.
//!
//! The calls of a scenario's `reference` are made, and its known answer is submitted, in the tokens that the policy's model
//! would have sampled. The server's answers are new, so a solution that no longer works is found out: its episode is kept as a
//! wrong one. The tables are those of `rollout`, so everything that reads episodes reads these.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Input, Metrics, StageError, StageKind,
    kind::StageFuture,
    metrics,
    preflight::{ExpectedEpisodes, ExpectedOutput, Preflight, PreflightContext},
    rollout::{
        choice::Draw,
        play::Player,
        prompts,
        records::{measured, of_references},
        reference,
        settings::PlaySettings,
    },
    typed,
};
use crate::{
    answer::COMPLETE_TASK,
    data::{self, Call, End, PairedCall, Scenario, Trajectory, calls::calls, paired_calls},
    error::{Diagnostic, Result},
    mcp::looks_failed,
    text::start_of,
};

/// Characters of a task that a note shows.
const SHOWN: usize = 100;

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    /// Most episodes.
    episodes: Option<usize>,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(code = "demonstrations::no_reference")]
#[hint = "sources other than `file` write references; in a file, give tasks an `answer` and a `reference`, a list of \
    {{name, arguments}}"]
enum DemonstrationError {
    #[error("none of the {scenarios} scenarios has a reference solution and a known answer")]
    NoReference { scenarios: usize },
}

pub struct Demonstrations {
    params: Params,
    play: PlaySettings,
}

impl Demonstrations {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, play: PlaySettings::parse(params)? })
    }

    async fn play(&self, context: &Context) -> Result<Metrics> {
        let all: Vec<Scenario> = context.read("scenarios")?;
        let scenarios = self.chosen(&all, context.seed);
        if all.is_empty() {
            // Where nothing learns from solutions, none are needed.
            context.write::<Call>("calls", &[])?;
            context.write::<Trajectory>("trajectories", &[])?;
            return Ok(metrics([("episodes", 0.0)]));
        }
        if scenarios.is_empty() {
            return Err(DemonstrationError::NoReference { scenarios: all.len() }.into());
        }
        let skipped = all.iter().filter(|scenario| reference::calls(scenario).is_none()).count();
        let tools = &context.input("tools")?.path;
        let policy = context.input("policy")?;
        let mut player = Player::of_reference(context, policy, tools, &scenarios, self.play.clone())?;
        context.observer.phase("episodes", scenarios.len() as u64);
        let played = player.play(context, &of_references(&scenarios)).await;
        let (lost, unchecked, most) = (player.lost(), player.unchecked(), player.most_tokens());
        player.close().await;
        let mut trajectories: Vec<Trajectory> = played?.into_iter().flatten().collect();
        if context.shard.is_some() {
            return Ok(Metrics::new());
        }
        trajectories.iter_mut().for_each(leave_out_failures);
        let made: Vec<Call> =
            trajectories.iter().flat_map(|trajectory| calls(&trajectory.into(), &unchecked)).collect();
        context.write("calls", &made)?;
        context.write("trajectories", &trajectories)?;

        self.causes(&trajectories, &scenarios, most).iter().for_each(|note| context.observer.note(note));
        let cut = trajectories.iter().filter(|trajectory| trajectory.end().is_some_and(End::is_truncated));
        let mut found = measured(&trajectories.iter().collect::<Vec<_>>());
        found.extend(metrics([
            ("skipped", skipped as f64),
            ("lost", lost as f64),
            ("truncated", cut.count() as f64),
        ]));
        Ok(found)
    }

    /// Why solutions are wrong: at which limit those end that are cut off, and the first of the others. `most`: tokens of an
    /// episode.
    fn causes(&self, trajectories: &[Trajectory], scenarios: &[Scenario], most: usize) -> Vec<String> {
        let agent = &self.play.agent;
        let wrong = trajectories.iter().filter(|trajectory| trajectory.correct == Some(false));
        let (mut limits, mut others) = (BTreeMap::<String, usize>::new(), Vec::new());
        for trajectory in wrong {
            let limit = match trajectory.end() {
                Some(End::OutOfTurns) => format!("{} turns (`max_turns` of [agent])", agent.max_turns),
                Some(End::OutOfTurnTokens) => {
                    format!("{} tokens of a turn (`max_turn_tokens` of [agent])", agent.max_turn_tokens)
                }
                Some(End::OutOfTokens) if most < agent.max_episode_tokens => {
                    format!("{most} tokens, which is the model's context")
                }
                Some(End::OutOfTokens) => format!("{most} tokens (`max_episode_tokens` of [agent])"),
                _ => {
                    others.push(trajectory);
                    continue;
                }
            };
            *limits.entry(limit).or_default() += 1;
        }
        let all = trajectories.len();
        let cut = limits.iter().map(|(limit, count)| {
            format!("{count} of {all} reference solutions are cut off at {limit}, and count as wrong")
        });
        let first =
            others.first().and_then(|first| scenarios.iter().find(|task| task.id == first.scenario_id));
        let other = first.map(|first| {
            format!(
                "{} of {all} reference solutions do not solve their task on this server, and count as wrong; the first: {}",
                others.len(),
                start_of(&first.task, SHOWN)
            )
        });
        cut.chain(other).collect()
    }

    /// Scenarios whose solution is known, as many as are wanted, in the order of their table.
    fn chosen(&self, scenarios: &[Scenario], seed: u64) -> Vec<Scenario> {
        let is_solved = |scenario: &&Scenario| reference::calls(scenario).is_some();
        let solved: Vec<Scenario> = scenarios.iter().filter(is_solved).cloned().collect();
        let Some(most) = self.params.episodes.filter(|most| *most < solved.len()) else { return solved };
        let mut indices = Draw::Uniform.order(&solved, &[], 1, seed);
        indices.truncate(most);
        indices.sort_unstable();
        indices.into_iter().map(|index| solved[index].clone()).collect()
    }
}

/// Marks the turns whose calls failed as not sampled: what is learned is to go on behind an error, not to make one. A call right
/// before the answer is kept: that it fails is the answer.
fn leave_out_failures(trajectory: &mut Trajectory) {
    let made = paired_calls(&trajectory.messages);
    let has_failed = |call: &PairedCall<'_>| {
        call.error().is_some() || call.result.is_some_and(|result| looks_failed(&result.text))
    };
    let with_next = made.iter().zip(made.iter().skip(1));
    let failed = with_next.filter(|(call, next)| next.tool() != COMPLETE_TASK && has_failed(call));
    let failed: BTreeSet<u32> = failed.map(|(call, _)| call.turn).collect();
    let mut turn = 0;
    for at in 0..trajectory.sampled.len() {
        let is_sampled = trajectory.sampled[at];
        let ends = is_sampled && !trajectory.sampled.get(at + 1).copied().unwrap_or_default();
        trajectory.sampled[at] = is_sampled && !failed.contains(&turn);
        turn += u32::from(ends);
    }
}

impl StageKind for Demonstrations {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.play(context))
    }

    /// Checks that there are solutions to play, and room to play them.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let mut preflight = Preflight::default();
        let mut count = self.params.episodes.unwrap_or(usize::MAX);
        if let Some(scenarios) = context.scenarios() {
            count = count.min(scenarios.solved);
            let (solved, scenarios) = (scenarios.solved, scenarios.count());
            if solved == 0 && scenarios > 0 {
                preflight.error("scenarios", DemonstrationError::NoReference { scenarios });
            }
        }
        if (context.finished)("trajectories").is_none() {
            prompts::check(context, "policy", &self.play.agent, &mut preflight);
        }
        let episodes = ExpectedEpisodes {
            count,
            longest: self.play.agent.max_episode_tokens,
            group: None,
            altered: None,
        };
        preflight.with("trajectories", ExpectedOutput::Episodes(episodes))
    }

    fn workload(&self) -> Option<f64> {
        self.params.episodes.map(|episodes| episodes as f64)
    }

    fn has_shards(&self) -> bool {
        true
    }

    /// All rows.
    fn rows_needed(&self, seed: u64, inputs: &BTreeMap<String, Vec<Input>>) -> Option<Vec<String>> {
        let policy = Player::reference_policy(&inputs.get("policy")?.first()?.digest);
        let scenarios: Vec<Scenario> = data::read(&inputs.get("scenarios")?.first()?.path).ok()?;
        let scenarios = self.chosen(&scenarios, seed);
        Some(of_references(&scenarios).iter().map(|episode| episode.row(&policy)).collect())
    }
}
