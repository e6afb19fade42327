//! `eval`: runs several policies on the same held-out scenarios. The verdict reports their differences.
//!
//! Tasks whose answer has changed on the server are left out first (`eval/aging.rs`).
//! Episodes are played exactly as in `rollout` and judged by ground truth alone. All policies use the same
//! seeds. Episodes lost to server failures say nothing about a policy; they are left out and counted. An
//! episode whose own call takes the server down has failed (`rollout/play.rs`).

mod aging;
mod examples;
mod idle;
mod played;
#[cfg(test)]
mod tests;
mod variants;

use std::collections::BTreeMap;

use self::{
    aging::Aging,
    idle::Idle,
    played::{Played, first_of},
    variants::{Prompted, Variant},
};
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Input, Metrics, StageError, StageKind,
    endpoint::{EndpointPolicy, reachable},
    kind::{Requirement, StageFuture},
    memory::Load,
    preflight::{ExpectedOutputs, Preflight, PreflightContext},
    rollout::{
        prompts,
        records::{RolloutSpec, episode_seed},
        settings::PlaySettings,
    },
    typed,
};
use crate::{
    data::{self, Scenario, Tool, Trajectory, VerdictRow, is_of_trained_cases, keeps_protocol},
    engine::{Footprint, Sampling},
    error::{Diagnostic, Result},
    eval::{
        Comparison, Episode, Mode, majority, metrics, report, reported_mode, smallest_difference,
        tasks_needed, verdict, vote_name,
    },
    hash::Digest,
    judge::truth,
    llm,
    text::percent,
};

/// The share of tasks, one in so many, that an agent which knows nothing may solve unsaid.
const IDLE: usize = 10;

/// The input with solved tasks.
const EXAMPLES: &str = "examples";

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    greedy: bool,
    /// Sampled episodes per scenario.
    samples: u32,
    temperature: f32,
    /// Sampled episodes of the baseline that vote; 0 for no vote.
    vote: u32,
    /// Models behind endpoints, by the names that the verdict gives them.
    #[serde(default)]
    endpoints: BTreeMap<String, EndpointPolicy>,
    /// Policies with a prompt of their own, by the names that the verdict gives them.
    #[serde(default)]
    variants: BTreeMap<String, Variant>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error, Diagnostic)]
#[diagnostic(area = "eval")]
enum EvalError {
    #[error("no episodes to evaluate: `greedy` is false and `samples` is 0")]
    #[hint = "set `samples` to 1 or more"]
    NothingToPlay,
    #[error("{}", if *scenarios == 0 {
        "no held-out scenarios to evaluate on".to_owned()
    } else {
        format!("none of the {scenarios} scenarios has a known answer")
    })]
    #[hint("raise `heldout_share`, or give tasks `\"split\": \"heldout\"`" if *scenarios == 0)]
    #[hint = "give scenarios an `answer`: evaluation compares answers with known ones"]
    NoTruth { scenarios: usize },
    #[error(
        "all expected answers of the scenarios are majority votes of attempts, so an exam would not measure right answers"
    )]
    #[hint = "examine on tasks with known answers: held-out ones of a file, or explored ones"]
    OnlyVoted,
    #[error("only {known} of the {scenarios} scenarios have a known answer; the others are left out")]
    #[hint = "give scenarios an `answer`: evaluation compares answers with known ones"]
    LittleTruth { known: usize, scenarios: usize },
    #[error("an exam of {tasks} tasks shows differences from {:.0} points on; for 5 points it needs {}", 100.0 * smallest_difference(*tasks as f64, 0.0), tasks_needed(5.0))]
    #[hint = "add held-out tasks, or raise `heldout_share`"]
    SmallExam { tasks: usize },
    #[error(
        "{solved} of {tasks} tasks are solved without a call, by saying the commonest answer or \"done\"; the first: {first}"
    )]
    #[hint = "give them `checks`, or other answers"]
    Idle { solved: usize, tasks: usize, first: String },
    #[error("\"{name}\" is the name of a policy and of {other}")]
    #[hint = "give one of them another name"]
    SameName { name: String, other: &'static str },
    #[error("\"{name}\" has `examples`, and no episodes are given")]
    #[hint = "name some, as in `examples = \"demonstrations\"`: solved tasks that are not in the exam"]
    NoExamples { name: String },
    #[error("the variant \"{name}\" shows a guide, and none is given")]
    #[hint = "name one, as in `guide = \"tasks\"`: a stage of kind \"scenarios\" writes it"]
    NoGuide { name: String },
    #[error("the variant \"{name}\" is of policy \"{policy}\", which the exam does not have")]
    #[hint("policies: {known}")]
    NoPolicy { name: String, policy: String, known: String },
    #[error("the variant \"{name}\" has neither `system` nor `examples`, so it is its policy again")]
    #[hint = "give it `system = \"guide\"`, the path of a system prompt, or `examples = 4`"]
    NoOwnPrompt { name: String },
    #[error("the server was lost in {lost} of {episodes} episodes, and no scenario is left to compare on")]
    #[hint = "start the server by hand, call a tool, and check that it keeps running"]
    ServerLost { lost: usize, episodes: usize },
    #[error(
        "{aged} of {tasks} tasks no longer hold: their answer has changed on the server; the first, {id}: was {was:?}, is {now:?}"
    )]
    #[hint = "make the tasks again, with `--resample STAGE` or `cache = \"refresh\"` in the stage that makes them; correct the \
        answers of your own; if the server's data should be as before, restore it"]
    Aged { aged: usize, tasks: usize, id: String, was: String, now: String },
}

pub struct Eval {
    params: Params,
    play: PlaySettings,
}

impl Eval {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, play: PlaySettings::parse(params)? })
    }

    async fn examine(&self, context: &Context) -> Result<Metrics> {
        let Self { params, play } = self;
        let policies = baseline_first(context.inputs.get("policies").map_or(&[], Vec::as_slice));
        if policies.is_empty() {
            return Err(StageError::NoInput { role: "policies".into() }.into());
        }
        let tools_path = &context.input("tools")?.path;
        let (mut scenarios, unknown) = known(context.read("scenarios")?)?;
        // Shards play all tasks: the stage itself decides, once for all.
        let aging = match context.shard {
            None => Aging::of(context, policies[0], &scenarios, play).await?,
            Some(_) => Aging::default(),
        };
        scenarios = aging.without(scenarios);
        if let Some(note) = aging.note() {
            context.observer.note(&note);
        }
        let solved: Vec<Trajectory> = context.read_optional(EXAMPLES)?.unwrap_or_default();
        let solved = examples::unseen(&solved, &scenarios);
        let variants = variants::variants(params, &policies, &variants::guide(&context.inputs)?, &solved)?;
        let entrants = Entrants::of(&policies, variants::fit(context, play, variants)?);
        let voter = entrants.names()[0].clone();
        let plans = plans(&entrants, &scenarios, &solved, params, context.seed)?;
        let firsts = plans.iter().enumerate().filter(|(place, _)| first_of(&plans, *place).is_none());
        let count: usize = firsts.map(|(_, (_, rollouts))| rollouts.len()).sum();
        context.observer.phase("episodes", count as u64);

        let played = self.play(context, &plans, &scenarios, &voter).await?;
        drop(plans);
        if context.shard.is_some() {
            return Ok(Metrics::new());
        }
        let Played { mut trajectories, calls, mut episodes, votes, lost, ends } = played;
        let (entrants, is_demoted) = entrants.with_stronger_baseline(&episodes, params.modes()[0]);
        if let [first, second, ..] = ends[..]
            && is_demoted
        {
            // As in the verdict's rows.
            trajectories[..second].rotate_left(first);
        }
        let idle = Idle::of(context, policies[0], &scenarios, (play, &params.modes())).await?;
        context.write("episodes", &trajectories)?;
        context.write("calls", &calls)?;
        context.write("replays", &aging.rows)?;

        let mut names = entrants.names();
        let others = entrants.others.iter().map(|variant| variant.name.to_owned());
        let mut comparison_only: Vec<String> = params.endpoints.keys().cloned().collect();
        if params.vote > 0 {
            comparison_only.insert(0, vote_name(params.vote));
            episodes.extend(votes);
        }
        let idle_names = idle::NAMES.map(str::to_owned);
        // Behind the baseline, so that the last policy stays the one that is reported. Those that are not compared come last.
        names.splice(entrants.lead()..entrants.lead(), others.chain(comparison_only.iter().cloned()));
        names.extend(idle_names.iter().cloned());
        comparison_only.extend(idle_names.iter().cloned());
        episodes.extend(idle.episodes.iter().cloned());
        let tools: Vec<Tool> = data::read(tools_path)?;
        let tools: Vec<String> =
            tools.into_iter().filter(|tool| !tool.synthetic).map(|tool| tool.name).collect();
        let exam = Comparison {
            policies: &names,
            scenarios: &scenarios,
            comparison_only: &comparison_only,
            idle: &idle_names,
            variants: &entrants.variants(),
            tools: &tools,
        };
        let rows = verdict(&exam, &episodes);
        if rows.is_empty() {
            return Err(EvalError::ServerLost { lost, episodes: lost + trajectories.len() }.into());
        }
        context.write("verdict", &rows)?;
        let path = context.output("report", "report")?;
        let mut notes = notes(params, &scenarios, unknown, lost);
        notes.extend(entrants.about());
        notes.extend(aging.paragraph());
        notes.extend(idle.paragraph());
        notes.extend((params.vote > 0).then(|| vote_note(params, &voter, &rows)));
        let page = report(&rows, &notes);
        std::fs::write(&path, page).map_err(|source| StageError::Write { path, source })?;

        let mut metrics = metrics(&rows);
        for (split, share) in pass_shares(&rows) {
            metrics.insert(format!("{split}.pass@{}", params.vote), share);
        }
        metrics.insert("scenarios".into(), scenarios.len() as f64);
        metrics.insert("lost".into(), lost as f64);
        metrics.insert("aged".into(), aging.count() as f64);
        metrics.insert("solved_by_nothing".into(), idle.count() as f64);
        Ok(metrics)
    }
}

impl StageKind for Eval {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.examine(context))
    }

    /// Checks that there are episodes to play and answers to judge them by.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let Self { params, play } = self;
        let mut preflight = Preflight::default();
        prompts::check(context, "policies", &play.agent, &mut preflight);
        let policies = context.inputs.get("policies").map_or(&[][..], Vec::as_slice);
        for (name, endpoint) in &params.endpoints {
            if policies.iter().any(|(policy, _)| policy == name) || idle::NAMES.contains(&name.as_str()) {
                preflight
                    .error("endpoints", EvalError::SameName { name: name.clone(), other: "an endpoint" });
            }
            let EndpointPolicy { base_url, api_key_env, examples, .. } = endpoint;
            if *examples > 0 && !context.inputs.contains_key(EXAMPLES) {
                preflight.error("endpoints", EvalError::NoExamples { name: name.clone() });
            }
            preflight.check("endpoints", llm::check_address(base_url, api_key_env.as_deref()));
            if let Some(Err(cause)) = api_key_env.as_deref().map(llm::check_key) {
                preflight.unavailable("endpoints", cause);
            }
        }
        variants::check(params, play, context, &mut preflight);
        if !params.greedy && params.samples == 0 {
            preflight.error("samples", EvalError::NothingToPlay);
        }
        if policies.is_empty() {
            preflight.error("policies", StageError::NoInput { role: "policies".into() });
        }
        if context.is_voted() {
            preflight.error("scenarios", EvalError::OnlyVoted);
        }
        match context.scenarios().map(|scenarios| (scenarios.answered, scenarios.count())) {
            Some((0, scenarios)) => preflight.error("scenarios", EvalError::NoTruth { scenarios }),
            Some((known, scenarios)) if known < scenarios => {
                preflight.note("scenarios", EvalError::LittleTruth { known, scenarios });
            }
            Some((tasks, _)) if tasks < tasks_needed(5.0) as usize => {
                preflight.remark("scenarios", EvalError::SmallExam { tasks });
            }
            _ => {}
        }
        if let Some(scenarios) = context.scenarios()
            && scenarios.idle.len() * IDLE > scenarios.count()
            && let Some(first) = scenarios.idle.first()
        {
            let (solved, tasks, first) = (scenarios.idle.len(), scenarios.count(), aging::shown(Some(first)));
            preflight.note("scenarios", EvalError::Idle { solved, tasks, first });
        }
        preflight
    }

    /// Whether the endpoints answer. Sends no key and samples nothing.
    fn requirements<'a>(&'a self, _: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(async {
            let mut requirements = Vec::new();
            for EndpointPolicy { base_url, model, api_key_env, .. } in self.params.endpoints.values() {
                requirements.push(reachable(base_url, model, api_key_env.as_deref()).await);
            }
            requirements
        })
    }

    fn workload(&self) -> Option<f64> {
        let episodes = self.params.samples.saturating_add(u32::from(self.params.greedy));
        (episodes > 0).then_some(f64::from(episodes))
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        let policies = load.inputs.get("policies")?.iter();
        let policies = policies.map(|(_, expected)| expected.policy()).collect::<Option<Vec<_>>>()?;
        let footprints = policies.into_iter().map(|policy| self.play.footprint(load, policy, usize::MAX));
        footprints.max_by_key(Footprint::total)
    }

    /// Rows of all policies.
    fn rows_needed(&self, seed: u64, inputs: &BTreeMap<String, Vec<Input>>) -> Option<Vec<String>> {
        let (scenarios, _) = known(data::read(&inputs.get("scenarios")?.first()?.path).ok()?).ok()?;
        let policies = baseline_first(inputs.get("policies")?);
        let solved = inputs.get(EXAMPLES).and_then(|inputs| inputs.first());
        let solved = solved.map(|solved| data::read(&solved.path)).transpose().ok()?.unwrap_or_default();
        let solved = examples::unseen(&solved, &scenarios);
        let variants =
            variants::variants(&self.params, &policies, &variants::guide(inputs).ok()?, &solved).ok()?;
        let entrants = Entrants::of(&policies, variants);
        let plans = plans(&entrants, &scenarios, &solved, &self.params, seed).ok()?;
        let rows = plans.iter().flat_map(|(contestant, rollouts)| {
            let digest = contestant.digest();
            rollouts.iter().map(move |rollout| rollout.row(&digest))
        });
        Some(rows.collect())
    }

    fn has_shards(&self) -> bool {
        true
    }

    fn shares_model(&self, role: &str) -> bool {
        role == "policies"
    }
}

/// The policy that is the baseline unless a variant is: the one named `base`, or else the first.
fn baseline_first(policies: &[Input]) -> Vec<&Input> {
    let mut policies: Vec<&Input> = policies.iter().collect();
    policies.sort_by_key(|policy| policy.name != "base");
    policies
}

/// Scenarios with ground truth, and the number without. What rollouts agreed on is no ground truth.
fn known(scenarios: Vec<Scenario>) -> Result<(Vec<Scenario>, usize), EvalError> {
    let all = scenarios.len();
    let is_voted = scenarios.iter().any(|one| one.voted.is_some());
    let known: Vec<Scenario> =
        scenarios.into_iter().filter(|one| one.voted.is_none() && truth::is_known(one)).collect();
    if known.is_empty() {
        return Err(if is_voted { EvalError::OnlyVoted } else { EvalError::NoTruth { scenarios: all } });
    }
    let unknown = all - known.len();
    Ok((known, unknown))
}

impl Params {
    /// How policies are compared.
    fn modes(&self) -> Vec<Mode> {
        let modes = [(self.greedy, Mode::Greedy), (self.samples > 0, Mode::Sampled)];
        modes.into_iter().filter(|(is_played, _)| *is_played).map(|(_, mode)| mode).collect()
    }

    /// Whether the baseline plays this sample for the vote alone.
    fn is_vote_only(&self, sample: u32) -> bool {
        sample >= self.samples.saturating_add(u32::from(self.greedy))
    }
}

/// The policies of an exam and their variants.
struct Entrants<'p> {
    /// The first is the baseline.
    policies: &'p [&'p Input],
    /// The variant that is the baseline in their place, if it solves as much as its policy.
    baseline: Option<Prompted<'p>>,
    others: Vec<Prompted<'p>>,
}

impl<'p> Entrants<'p> {
    fn of(policies: &'p [&'p Input], mut variants: Vec<Prompted<'p>>) -> Self {
        let baseline = variants.iter().position(|variant| variant.name == variants::BASELINE);
        let baseline = baseline.map(|place| variants.remove(place));
        Self { policies, baseline, others: variants }
    }

    /// The baseline, and then the policies, without other variants.
    fn names(&self) -> Vec<String> {
        let policies = self.policies.iter().map(|policy| policy.name.clone());
        self.baseline.iter().map(|variant| variant.name.to_owned()).chain(policies).collect()
    }

    /// How many of these names stand before those that are there for comparison: the baseline, and the policy that it is a
    /// variant of unless that is the only one.
    fn lead(&self) -> usize {
        if self.baseline.is_some() && self.policies.len() > 1 { 2 } else { 1 }
    }

    /// Who plays, without endpoints, in the order of the verdict's rows.
    fn contestants(&self) -> Vec<Contestant<'_>> {
        let policies = self.policies.iter().map(|policy| Contestant::Policy(policy));
        let mut all: Vec<_> = self.baseline.iter().map(Contestant::Variant).chain(policies).collect();
        all.splice(self.lead()..self.lead(), self.others.iter().map(Contestant::Variant));
        all
    }

    /// The names of variants with those of their policies.
    fn variants(&self) -> Vec<(String, String)> {
        let of = |variant: &Prompted<'_>| (variant.name.to_owned(), variant.policy.name.clone());
        self.baseline.iter().chain(&self.others).map(of).collect()
    }

    /// A prompt that makes its policy worse is no baseline: gains over it would be too large. Whether that is so.
    fn with_stronger_baseline(mut self, episodes: &[Episode], mode: Mode) -> (Self, bool) {
        let solved = |name: &str| {
            let mut shares: BTreeMap<&str, Vec<bool>> = BTreeMap::new();
            for episode in episodes.iter().filter(|episode| episode.policy == name && episode.mode == mode) {
                shares.entry(&episode.scenario).or_default().push(episode.right);
            }
            shares
        };
        let is_weaker = self.baseline.as_ref().is_some_and(|variant| {
            let (with, without) = (solved(variant.name), solved(&variant.policy.name));
            let share = |all: &[bool]| all.iter().filter(|right| **right).count() as f64 / all.len() as f64;
            let pairs = with.iter().filter_map(|(scenario, with)| Some((with, without.get(scenario)?)));
            pairs.map(|(with, without)| share(with) - share(without)).sum::<f64>() < 0.0
        });
        if is_weaker && let Some(variant) = self.baseline.take() {
            self.others.insert(0, variant);
        }
        (self, is_weaker)
    }

    /// What the variants are.
    fn about(&self) -> Option<String> {
        let lines: Vec<String> = self.baseline.iter().chain(&self.others).map(Prompted::about).collect();
        (!lines.is_empty()).then(|| lines.join("\n\n"))
    }
}

/// Who plays.
enum Contestant<'p> {
    Policy(&'p Input),
    Variant(&'p Prompted<'p>),
    /// A model behind an endpoint, by its name, and the examples in its prompt.
    Endpoint(&'p str, &'p EndpointPolicy, String),
}

impl Contestant<'_> {
    fn name(&self) -> &str {
        match self {
            Self::Policy(policy) => &policy.name,
            Self::Variant(variant) => variant.name,
            Self::Endpoint(name, ..) => name,
        }
    }

    /// In the ids of its episodes.
    fn digest(&self) -> Digest {
        match self {
            Self::Policy(policy) => policy.digest,
            Self::Variant(variant) => variant.digest,
            Self::Endpoint(_, endpoint, examples) => endpoint.digest(examples),
        }
    }
}

/// Who plays, and the episodes.
type ContestantEpisodes<'p, 'a> = (Contestant<'p>, Vec<RolloutSpec<'a>>);

/// The episodes of every policy and variant, and then of every endpoint. The baseline, which is the first, may play more samples,
/// for the vote.
fn plans<'p, 'a>(
    entrants: &'p Entrants<'p>,
    scenarios: &'a [Scenario],
    solved: &[&Trajectory],
    params: &'p Params,
    seed: u64,
) -> Result<Vec<ContestantEpisodes<'p, 'a>>, EvalError> {
    if !params.greedy && params.samples == 0 {
        return Err(EvalError::NothingToPlay);
    }
    let of = |(index, contestant): (usize, Contestant<'p>)| {
        let samples = if index == 0 { params.samples.max(params.vote) } else { params.samples };
        (contestant, rollouts(scenarios, (params.greedy, samples, params.temperature), seed))
    };
    let endpoints = params.endpoints.iter().map(|(name, endpoint)| {
        Contestant::Endpoint(name, endpoint, examples::text(solved, endpoint.examples))
    });
    Ok(entrants.contestants().into_iter().chain(endpoints).enumerate().map(of).collect())
}

/// Each scenario's greedy episode as sample 0, if requested, then its sampled episodes.
fn rollouts<'a>(
    scenarios: &'a [Scenario],
    (greedy, samples, temperature): (bool, u32, f32),
    seed: u64,
) -> Vec<RolloutSpec<'a>> {
    let sampled = Sampling { temperature, ..Sampling::GREEDY };
    let mut draws = if greedy { vec![Sampling::GREEDY] } else { vec![] };
    draws.resize(draws.len() + samples as usize, sampled);
    let of_scenario = |scenario: &'a Scenario| {
        (0..).zip(&draws).map(move |(sample, sampling)| {
            let seed = episode_seed("mcprl eval episode seed v1", seed, scenario, sample);
            RolloutSpec { scenario, sample, seed, sampling: *sampling }
        })
    };
    scenarios.iter().flat_map(of_scenario).collect()
}

/// The votes over the baseline's sampled episodes: the majority's answer as an episode, with the effort of all that voted, once
/// for each mode that is compared.
fn vote(params: &Params, scenarios: &[Scenario], played: &[(&RolloutSpec<'_>, &Trajectory)]) -> Vec<Episode> {
    let first = u32::from(params.greedy);
    let voters = first..first + params.vote;
    let mut by: BTreeMap<&str, Vec<&Trajectory>> = BTreeMap::new();
    for (rollout, trajectory) in played.iter().filter(|(rollout, _)| voters.contains(&rollout.sample)) {
        by.entry(&rollout.scenario.id).or_default().push(trajectory);
    }
    let modes = params.modes();
    let is_right = |trajectory: &Trajectory| trajectory.correct == Some(true);
    let mut votes = Vec::new();
    for scenario in scenarios {
        let Some(voters) = by.get(scenario.id.as_str()) else { continue };
        let answers = voters.iter().map(|trajectory| trajectory.answer.as_deref());
        let winner = majority(answers, truth::same_answer(&scenario.check));
        let sum = |of: fn(&Trajectory) -> u32| voters.iter().map(|trajectory| of(trajectory)).sum();
        votes.extend(modes.iter().map(|mode| Episode {
            scenario: scenario.id.clone(),
            policy: vote_name(params.vote),
            mode: *mode,
            right: winner.is_some_and(|winner| is_right(voters[winner])),
            changed: winner.and_then(|winner| truth::changed(scenario, voters[winner].into())),
            by_protocol: winner.is_some_and(|winner| is_by_protocol(voters[winner])),
            any_right: Some(voters.iter().any(|trajectory| is_right(trajectory))),
            calls: sum(|trajectory| trajectory.calls),
            turns: sum(|trajectory| trajectory.turns),
            tokens: sum(sampled_tokens),
            tool_errors: sum(|trajectory| trajectory.tool_errors),
            tools: voters.iter().flat_map(|trajectory| trajectory.tools.iter().cloned()).collect(),
        }));
    }
    votes
}

/// pass@N over all scenarios and by split.
fn pass_shares(rows: &[VerdictRow]) -> Vec<(&str, f64)> {
    let mode = reported_mode(rows);
    let is_shown = |row: &&VerdictRow| row.mode == mode && (row.scope == "all" || row.scope == "split");
    rows.iter().filter(is_shown).filter_map(|row| Some((row.slice.as_str(), row.success_any?))).collect()
}

/// What the vote is, and its upper bound.
fn vote_note(params: &Params, baseline: &str, rows: &[VerdictRow]) -> String {
    let Params { vote: votes, temperature, .. } = *params;
    let shares: Vec<String> = pass_shares(rows)
        .into_iter()
        .map(|(slice, share)| format!("{} % of {slice}", percent(share, 1)))
        .collect();
    format!(
        "{}: the answer that most of {} of {baseline} give, at temperature {temperature}. Its effort is\n\
         that of all of them, and it is compared with one episode of {baseline}.\n\n\
         pass@{votes} of {baseline}: at least one of the {votes} is right in {}.\n\
         It is an upper bound, because only the known answer tells which one.",
        vote_name(votes),
        several(votes as usize, "episode"),
        shares.join(", "),
    )
}

fn sampled_tokens(played: &Trajectory) -> u32 {
    played.counted_tokens.unwrap_or_else(|| played.sampled_tokens() as u32)
}

fn is_by_protocol(played: &Trajectory) -> bool {
    keeps_protocol(played.loose_calls, played.answer_source.as_deref())
}

/// The part of a trajectory that the verdict uses.
fn episode(policy: &str, rollout: &RolloutSpec<'_>, played: &Trajectory) -> Episode {
    Episode {
        scenario: played.scenario_id.clone(),
        policy: policy.to_owned(),
        any_right: None,
        mode: if rollout.sampling.temperature == 0.0 { Mode::Greedy } else { Mode::Sampled },
        right: played.correct == Some(true),
        changed: truth::changed(rollout.scenario, played.into()),
        by_protocol: is_by_protocol(played),
        calls: played.calls,
        turns: played.turns,
        tokens: sampled_tokens(played),
        tool_errors: played.tool_errors,
        tools: played.tools.clone(),
    }
}

fn notes(params: &Params, scenarios: &[Scenario], unknown: usize, lost: usize) -> Vec<String> {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for scenario in scenarios {
        *counts.entry(&scenario.split).or_default() += 1;
    }
    let splits = counts.iter().map(|(split, count)| {
        let note = if is_of_trained_cases(split) { ", of trained cases" } else { "" };
        format!("- {}: {}{note}", split.replace('_', " "), several(*count, "scenario"))
    });
    let episodes = several(params.samples as usize, "episode");
    let sampled = format!("{episodes} at temperature {}", params.temperature);
    let played = match (params.greedy, params.samples) {
        (true, 0) => "one greedy episode".to_owned(),
        (true, _) => format!("one greedy episode and {sampled}"),
        (false, _) => sampled,
    };
    let mut notes =
        vec![splits.collect::<Vec<_>>().join("\n"), format!("Per scenario and policy: {played}.")];
    if unknown > 0 {
        notes.push(format!("Left out: {} without a known answer.", several(unknown, "scenario")));
    }
    if lost > 0 {
        notes.push(format!("Left out: {} in which the server was lost.", several(lost, "episode")));
    }
    notes
}

/// `1 episode`, `2 episodes`.
fn several(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
