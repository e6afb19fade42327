//! `eval`: several policies sit the same exam on held-out scenarios, and the verdict says what the difference amounts to.
//!
//! Episodes are played just as `rollout` plays them, and judged by ground truth alone: a verdict rests on no opinion.
//! Every policy draws with the same seeds. An episode in which the server was lost says nothing about a policy and is
//! left out, and said to be.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::{
    Context, Input, Metrics, StageError,
    rollout::play::{Attempt, Budget, Player},
};
use crate::{
    agent::End,
    data::{self, Scenario, Tool, Trajectory},
    engine::Sampling,
    error::{Diagnostic, Result},
    eval::{Episode, Exam, Mode, headline, metrics, report, verdict},
    hash::Encoder,
    judge::truth,
};

#[derive(Debug, Deserialize)]
struct Params {
    greedy: bool,
    /// Episodes per scenario at temperature 1.
    samples: u32,
    /// Resamples of the bootstrap.
    resamples: usize,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
enum EvalError {
    #[error("there is nothing to play: `greedy` is false and `samples` is 0")]
    NothingToPlay,
    #[error("none of the {scenarios} scenarios has a known answer")]
    NoTruth { scenarios: usize },
    #[error("the server was lost in {lost} of {episodes} episodes, and no scenario is left to compare on")]
    ServerLost { lost: usize, episodes: usize },
}

impl Diagnostic for EvalError {
    fn code(&self) -> &'static str {
        match self {
            Self::NothingToPlay => "eval::nothing_to_play",
            Self::NoTruth { .. } => "eval::no_truth",
            Self::ServerLost { .. } => "eval::server_lost",
        }
    }

    fn hint(&self) -> Option<String> {
        Some(match self {
            Self::NothingToPlay => "set `samples` to 1 or more".into(),
            Self::NoTruth { .. } => {
                "give scenarios an `answer`: a policy is examined by what is known to be right".into()
            }
            Self::ServerLost { .. } => "start the server by hand and call a tool: does it stay up?".into(),
        })
    }
}

pub async fn run(context: &Context) -> Result<Metrics> {
    let params: Params = context.params()?;
    let budget: Budget = context.params()?;
    let policies = baseline_first(context.inputs.get("policies").map_or(&[], Vec::as_slice));
    if policies.is_empty() {
        return Err(StageError::NoInput { role: "policies".into() }.into());
    }
    let tools_path = &context.input("tools")?.path;
    let (scenarios, unknown) = known(data::read(&context.input("scenarios")?.path)?)?;
    let attempts = attempts(&scenarios, &params, context.seed)?;
    context.observer.total((policies.len() * attempts.len()) as u64);

    let mut trajectories: Vec<Trajectory> = Vec::with_capacity(policies.len() * attempts.len());
    let mut episodes: Vec<Episode> = Vec::with_capacity(trajectories.capacity());
    for policy in &policies {
        let player = Player::open(context, policy, tools_path, budget.clone()).await?;
        let played = player.play(context, &attempts).await;
        player.close().await;
        let played = played?;
        let answered =
            attempts.iter().zip(&played).filter(|(_, played)| played.end != End::ServerDown.name());
        episodes.extend(answered.map(|(attempt, played)| episode(&policy.name, attempt, played)));
        trajectories.extend(played);
    }
    data::write(&context.output.join("episodes.parquet"), &trajectories)?;

    let names: Vec<String> = policies.iter().map(|policy| policy.name.clone()).collect();
    let tools: Vec<Tool> = data::read(tools_path)?;
    let tools: Vec<String> = tools.into_iter().filter(|tool| !tool.synthetic).map(|tool| tool.name).collect();
    let exam = Exam {
        policies: &names,
        scenarios: &scenarios,
        tools: &tools,
        resamples: params.resamples,
        seed: context.seed,
    };
    let rows = verdict(&exam, &episodes);
    let lost = trajectories.len() - episodes.len();
    if rows.is_empty() {
        return Err(EvalError::ServerLost { lost, episodes: trajectories.len() }.into());
    }
    data::write(&context.output.join("verdict.parquet"), &rows)?;
    let path = context.output.join("report.md");
    let page = report(&rows, &notes(&params, &scenarios, unknown, lost));
    std::fs::write(&path, page).map_err(|source| StageError::Write { path, source })?;
    context.observer.note(&headline(&rows));

    let mut metrics = metrics(&rows);
    metrics.insert("scenarios".into(), scenarios.len() as f64);
    metrics.insert("lost".into(), lost as f64);
    Ok(metrics)
}

/// The baseline is the policy named `base`, or else the first.
fn baseline_first(policies: &[Input]) -> Vec<&Input> {
    let mut policies: Vec<&Input> = policies.iter().collect();
    policies.sort_by_key(|policy| policy.name != "base");
    policies
}

/// Scenarios with ground truth, and how many have none.
fn known(scenarios: Vec<Scenario>) -> Result<(Vec<Scenario>, usize), EvalError> {
    let all = scenarios.len();
    let known: Vec<Scenario> =
        scenarios.into_iter().filter(|scenario| truth::correct(scenario, None).is_some()).collect();
    if known.is_empty() {
        return Err(EvalError::NoTruth { scenarios: all });
    }
    let unknown = all - known.len();
    Ok((known, unknown))
}

/// Every scenario greedily as sample 0, if asked for, then its sampled episodes.
fn attempts<'a>(
    scenarios: &'a [Scenario],
    params: &Params,
    seed: u64,
) -> Result<Vec<Attempt<'a>>, EvalError> {
    let sampled = Sampling { temperature: 1.0, ..Sampling::GREEDY };
    let mut draws = if params.greedy { vec![Sampling::GREEDY] } else { vec![] };
    draws.resize(draws.len() + params.samples as usize, sampled);
    if draws.is_empty() {
        return Err(EvalError::NothingToPlay);
    }
    let attempt = |scenario: &'a Scenario, sample: usize, sampling: Sampling| Attempt {
        scenario,
        sample: sample as u32,
        seed: Encoder::new("mcprl eval episode seed v1")
            .number(seed)
            .text(&scenario.id)
            .number(sample as u64)
            .finish()
            .seed(),
        sampling,
    };
    let of_scenario = |scenario| {
        draws.iter().enumerate().map(move |(sample, sampling)| attempt(scenario, sample, *sampling))
    };
    Ok(scenarios.iter().flat_map(of_scenario).collect())
}

/// What the verdict reads of a trajectory.
fn episode(policy: &str, attempt: &Attempt<'_>, played: &Trajectory) -> Episode {
    Episode {
        scenario: played.scenario_id.clone(),
        policy: policy.to_owned(),
        mode: if attempt.sampling.temperature == 0.0 { Mode::Greedy } else { Mode::Sampled },
        right: truth::correct(attempt.scenario, played.answer.as_deref()) == Some(true),
        calls: played.calls,
        turns: played.turns,
        tokens: played.sampled.iter().filter(|sampled| **sampled).count() as u32,
        tool_errors: played.tool_errors,
        tools: played.tools.clone(),
    }
}

/// Split names that the `scenarios` stage gives a meaning.
const SPLITS: [(&str, &str); 3] =
    [("a", "seen families, unseen entities"), ("b", "unseen phrasings"), ("c", "unseen families")];

fn notes(params: &Params, scenarios: &[Scenario], unknown: usize, lost: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for scenario in scenarios {
        *counts.entry(&scenario.split).or_default() += 1;
    }
    let splits = counts.iter().map(|(split, count)| match SPLITS.iter().find(|(name, _)| name == split) {
        Some((_, meaning)) => format!("- {split}: {count} scenarios, {meaning}"),
        None => format!("- {split}: {count} scenarios"),
    });
    let plural = if params.samples == 1 { "episode" } else { "episodes" };
    let played = match (params.greedy, params.samples) {
        (true, 0) => "one greedy episode".to_owned(),
        (true, samples) => format!("one greedy episode and {samples} {plural} at temperature 1"),
        (false, samples) => format!("{samples} {plural} at temperature 1"),
    };
    let mut notes =
        vec![splits.collect::<Vec<_>>().join("\n"), format!("Per scenario and policy: {played}.")];
    if unknown > 0 {
        notes.push(format!("Left out: {unknown} scenarios without a known answer."));
    }
    if lost > 0 {
        notes.push(format!("Left out: {lost} episodes in which the server was lost."));
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Digest;

    fn scenario(id: &str, split: &str, answer: Option<&str>) -> Scenario {
        Scenario {
            id: id.into(),
            split: split.into(),
            family: "f".into(),
            task: "t".into(),
            answer: answer.map(str::to_owned),
            check: if answer.is_some() { "number" } else { "none" }.into(),
            entity: None,
            reference: None,
        }
    }

    fn params(greedy: bool, samples: u32) -> Params {
        Params { greedy, samples, resamples: 100 }
    }

    #[test]
    fn the_policy_named_base_is_the_baseline_wherever_it_stands() {
        let named = |names: &[&str]| -> Vec<Input> {
            let input = |name: &&str| Input {
                name: (*name).to_owned(),
                digest: Digest::of(b""),
                path: "policy".into(),
            };
            names.iter().map(input).collect()
        };
        let order = |names: &[&str]| -> Vec<String> {
            baseline_first(&named(names)).into_iter().map(|policy| policy.name.clone()).collect()
        };
        assert_eq!(order(&["trained", "base", "other"]), ["base", "trained", "other"]);
        assert_eq!(order(&["second", "first"]), ["second", "first"]);
    }

    #[test]
    fn scenarios_without_an_answer_are_left_out_and_counted() {
        let (kept, unknown) = known(vec![scenario("s", "a", Some("1")), scenario("t", "a", None)]).unwrap();
        assert_eq!((kept.len(), unknown), (1, 1));
        assert_eq!(known(vec![scenario("t", "a", None)]), Err(EvalError::NoTruth { scenarios: 1 }));
    }

    #[test]
    fn the_greedy_episode_comes_first_and_every_episode_has_its_own_seed() {
        let scenarios = [scenario("s", "a", Some("1")), scenario("t", "a", Some("1"))];
        let attempts = attempts(&scenarios, &params(true, 2), 7).unwrap();
        let drawn: Vec<_> =
            attempts.iter().map(|a| (a.scenario.id.as_str(), a.sample, a.sampling.temperature)).collect();
        assert_eq!(
            drawn,
            [("s", 0, 0.0), ("s", 1, 1.0), ("s", 2, 1.0), ("t", 0, 0.0), ("t", 1, 1.0), ("t", 2, 1.0)]
        );
        let seeds: std::collections::BTreeSet<u64> = attempts.iter().map(|attempt| attempt.seed).collect();
        assert_eq!(seeds.len(), attempts.len());
    }

    #[test]
    fn an_exam_without_episodes_is_refused() {
        let scenarios = [scenario("s", "a", Some("1"))];
        assert_eq!(attempts(&scenarios, &params(false, 0), 7).err(), Some(EvalError::NothingToPlay));
    }

    #[test]
    fn the_notes_say_what_was_played_and_what_was_left_out() {
        let scenarios =
            [scenario("s", "a", Some("1")), scenario("t", "a", Some("1")), scenario("u", "file", Some("1"))];
        insta::assert_snapshot!(notes(&params(true, 4), &scenarios, 2, 3).join("\n\n"), @r"
        - a: 2 scenarios, seen families, unseen entities
        - file: 1 scenario

        Per scenario and policy: one greedy episode and 4 episodes at temperature 1.

        Left out: 2 scenarios without a known answer.

        Left out: 3 episodes in which the server was lost.
        ");
    }

    /// Keys of a card's table of parameters that `eval` shares with `rollout`, with all that is said of them.
    fn shared_params(card: &str) -> toml::Table {
        let card: toml::Table = card.parse().unwrap();
        let mut params = card["params"].as_table().unwrap().clone();
        params.retain(|name, _| {
            name.starts_with("max_") || name == "result_tokens" || name == "episode_timeout_s"
        });
        params
    }

    #[test]
    fn a_policy_is_examined_as_it_practised() {
        let (eval, rollout) =
            (include_str!("../../stages/eval/card.toml"), include_str!("../../stages/rollout/card.toml"));
        assert_eq!(shared_params(eval), shared_params(rollout));
        assert_eq!(shared_params(eval).len(), 6);
        assert_eq!(
            include_str!("../../stages/eval/system.jinja"),
            include_str!("../../stages/rollout/system.jinja")
        );
    }
}
