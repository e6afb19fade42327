//! `judge`: a reward for every episode.
//!
//! Rewards are stored separately from samples: with another weight or prompt the stored episodes are judged
//! again and none is played. Replies of the language model are recorded, so that a resumed stage repeats no
//! request.

mod audit;
mod cases;
mod change;
mod error;
mod trust;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::StreamExt;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    Context, Metrics, ScoredBy, StageError, StageKind,
    endpoint::reachable,
    kind::{Requirement, StageFuture},
    known_metrics,
    local_model::{self, LocalModel, LocalModelError, LocalSettings},
    mean,
    memory::Load,
    metrics,
    preflight::{ExpectedOutput, ExpectedOutputs, Preflight, PreflightContext},
    replies::Replies,
    share_right, typed,
};
use crate::{
    data::{self, JudgeAudit, Label, Reward, Scenario, Tool, Trajectory},
    engine::Footprint,
    error::{Failure, Interrupted, Result},
    judge::{
        Criterion, JudgeKind, JudgeModel, JudgedTrajectory, Program, Relative, Rubric, Score, Scores,
        Scoring, Shaping, consensus, correct, criteria, default_criteria, flags, program_words, rewards,
        shown_tool, with_ties,
    },
    llm::{self, Budget, Client, Endpoint, LanguageModel, LlmError, Provider},
    program::find_program,
    tasks::explored::only_reads,
};
use audit::audit;
use cases::AuditedGroup;
pub use change::{RewardChange, compare_rewards};
use error::JudgeStageError;
pub use trust::{TRUST, TRUST_WINDOW, is_trust_lost};

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    base_url: Option<String>,
    provider: Option<Provider>,
    model: Option<String>,
    api_key_env: Option<String>,
    orders: u32,
    attempts: u32,
    repeats: u32,
    structured: bool,
    rubric_scores: Scoring,
    tie_band: f64,
    shown_bytes: usize,
    criteria: Option<Map<String, Value>>,
    criteria_file: Option<PathBuf>,
    program: Option<PathBuf>,
    interpreter: Vec<String>,
    program_timeout_s: f64,
    labels_file: Option<PathBuf>,
    temperature: f64,
    max_tokens: u32,
    timeout_s: f64,
    retries: u32,
    concurrency: usize,
    requests_per_minute: Option<u32>,
    tokens_per_minute: Option<u32>,
    max_cost: Option<f64>,
}

pub struct Judge {
    params: Params,
    shaping: Shaping,
}

/// Tasks with known answers that tell whether judges can be trusted.
const KNOWN_TASKS: usize = 60;

/// The judges of a stage that are language models.
struct Judges {
    model: JudgeModel,
    relative: Option<Relative>,
    rubric: Option<Rubric>,
}

/// Scores of a group by judge; lacks a judge that could not score it.
type GroupScores = BTreeMap<JudgeKind, Scores>;

impl Judge {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, shaping: typed(params)? })
    }

    /// Whether a language model is asked.
    fn asks(&self) -> bool {
        self.shaping.uses(JudgeKind::Relative) || self.shaping.uses(JudgeKind::Rubric)
    }

    /// Whether a score besides ground truth is a part of the reward.
    fn is_judged(&self) -> bool {
        JudgeKind::ALL.iter().any(|kind| self.shaping.weight(*kind) > 0.0)
    }

    /// Judges with the model that the stage asks for.
    async fn run(&self, context: &Context) -> Result<Metrics> {
        if !self.asks() || !local_model::is_given(context) {
            return self.judge(context, None).await;
        }
        let Params { base_url, model, .. } = &self.params;
        if let Some((param, _)) =
            [("base_url", base_url), ("model", model)].iter().find(|(_, set)| set.is_some())
        {
            return Err(LocalModelError::TwoModels { param }.into());
        }
        let local = LocalModel::open(context, self.local()).await?;
        let threads = local.sampler();
        let judged = self.judge(context, Some(Arc::new(local))).await;
        threads.close().await;
        judged
    }

    fn local(&self) -> LocalSettings {
        let Params { temperature, max_tokens, concurrency, .. } = self.params;
        LocalSettings { temperature, max_tokens, concurrency }
    }

    async fn judge(&self, context: &Context, local: Option<Arc<LocalModel>>) -> Result<Metrics> {
        let trajectories: Vec<Trajectory> = context.read("trajectories")?;
        let scenarios: Vec<Scenario> = context.read("scenarios")?;
        let groups = groups(&trajectories, &scenarios)?;
        let criteria = self.criteria()?;
        self.check_gates(&criteria)?;
        let votes = self.shaping.uses(JudgeKind::Consensus);
        let tools: Vec<Tool> = match votes || self.asks() {
            true => context.read_optional("tools")?.unwrap_or_default(),
            false => Vec::new(),
        };
        let judges = self.asks().then(|| self.judges(context, local, criteria, &tools)).transpose()?;
        let program = self.shaping.uses(JudgeKind::Command).then(|| self.program(context)).transpose()?;
        let labels = self.shaping.uses(JudgeKind::Labels).then(|| self.labels()).transpose()?;

        context.observer.phase("groups", groups.len() as u64);
        let mut scores: Vec<GroupScores> = vec![GroupScores::new(); groups.len()];
        if let Some(program) = &program {
            scores_of(program, context, &groups, &mut scores).await?;
        }
        let labelled = labels.map(|labels| add_labels(&labels, &groups, &mut scores));
        if votes {
            let agreeing = add_consensus(&groups, &only_reads(&tools), &mut scores);
            context.observer.note(&format!(
                "more than half of the attempts agree on {agreeing} of {} tasks",
                groups.len()
            ));
        }
        if let Some(labelled) = labelled {
            context
                .observer
                .note(&format!("people have labelled {labelled} of {} episodes", trajectories.len()));
        }
        let mut unjudged = 0;
        if let Some(judges) = &judges {
            let asked = ask(context, judges, &groups).await;
            // Paid for, whatever the outcome.
            context.meter.add(judges.model.model.resources());
            for (scores, asked) in scores.iter_mut().zip(asked?) {
                unjudged += usize::from(asked.len() < judges.count());
                scores.extend(asked);
            }
        }
        let mut judged: BTreeMap<usize, Reward> = BTreeMap::new();
        for (members, scores) in groups.iter().zip(&scores) {
            let rollouts: Vec<JudgedTrajectory<'_>> = members.iter().map(|(_, rollout)| *rollout).collect();
            let rewards = rewards(&rollouts, &self.tied(scores), &self.shaping);
            let of_members = members.iter().zip(rewards);
            judged.extend(of_members.filter_map(|((index, _), reward)| Some((*index, reward?))));
        }
        let rewards: Vec<Reward> = judged.into_values().collect();
        if let Some(reward) = rewards.iter().find(|reward| !reward.reward.is_finite()) {
            let Reward { trajectory_id, components, .. } = reward.clone();
            return Err(JudgeStageError::NotFinite { trajectory: trajectory_id, components }.into());
        }
        if rewards.len() < trajectories.len() {
            context.observer.note(&format!(
                "{} of {} episodes get no reward: nothing could score their group, or a judge that a gate or the group's rewards depend on gave them no score",
                trajectories.len() - rewards.len(),
                trajectories.len()
            ));
        }
        if judges.is_none() {
            let is_unknown = |(_, rollout): &(usize, JudgedTrajectory<'_>)| correct(rollout).is_none();
            let is_used = |kind: &JudgeKind| {
                self.shaping.uses(*kind)
                    && (*kind != JudgeKind::Labels || labelled.is_some_and(|labelled| labelled > 0))
            };
            if !JudgeKind::ALL.iter().any(is_used)
                && !groups.is_empty()
                && groups.iter().flatten().all(is_unknown)
            {
                return Err(JudgeStageError::NothingToGoBy.into());
            }
            context.observer.advance(groups.len() as u64);
        }
        let audited: Vec<AuditedGroup> =
            groups.iter().zip(scores).map(|(members, scores)| audited(members, scores)).collect();
        let audit = audit(&audited, self.params.tie_band, context.seed);
        context.write("rewards", &rewards)?;
        context.write("judge_audit", &audit)?;
        let mut found = measured(&rewards, &audited, judges.as_ref(), unjudged, &audit);
        found.extend(self.trust(&audited, context));
        Ok(found)
    }

    /// Whether what judges reward is right, where they decide what is learned.
    fn trust(&self, groups: &[AuditedGroup], context: &Context) -> Metrics {
        let decides =
            !self.shaping.sees_truth() || groups.iter().flat_map(|group| &group.correct).any(Option::is_none);
        let weights = JudgeKind::ALL.iter().map(|kind| (*kind, self.shaping.weight(*kind)));
        let weights: BTreeMap<JudgeKind, f64> = weights.filter(|(_, weight)| *weight > 0.0).collect();
        if !decides || weights.is_empty() {
            return Metrics::new();
        }
        let tied: Vec<AuditedGroup> = groups.iter().map(|group| group.tied(self.params.tie_band)).collect();
        let Some(trust) = trust::trust(&tied, trust::of_all(&weights)) else { return Metrics::new() };
        if trust.is_low() {
            context
                .observer
                .note(&format!("the judges reward wrong attempts nearly as often as right ones: {trust}"));
        }
        trust.metrics()
    }

    /// The scores that enter the reward.
    fn tied(&self, scores: &GroupScores) -> BTreeMap<JudgeKind, Vec<Option<Score>>> {
        let tied = |(kind, judged): (&JudgeKind, &Scores)| {
            let mut scores = judged.scores.clone();
            with_ties(&mut scores, self.params.tie_band);
            (*kind, scores)
        };
        scores.iter().map(tied).collect()
    }

    /// The criteria of the rubric; empty if there is none.
    fn criteria(&self) -> Result<Vec<Criterion>, JudgeStageError> {
        if !self.shaping.uses(JudgeKind::Rubric) {
            return Ok(Vec::new());
        }
        let Params { criteria: table, criteria_file, .. } = &self.params;
        let found = match (table, criteria_file) {
            (Some(_), Some(_)) => Err("both `criteria` and `criteria_file` are set".into()),
            (None, None) => Ok(default_criteria()),
            (Some(table), None) => criteria(table),
            (None, Some(file)) => read_criteria(file),
        };
        found.map_err(|problem| JudgeStageError::Criteria { problem })
    }

    /// The name of the rubric's prompt among the card's texts.
    fn rubric_prompt(&self) -> &'static str {
        match self.params.rubric_scores {
            Scoring::Written => "rubric",
            Scoring::Probability => "yes_no",
        }
    }

    fn check_gates(&self, criteria: &[Criterion]) -> Result<(), JudgeStageError> {
        let names: Vec<&str> = criteria.iter().map(|criterion| criterion.name.as_str()).collect();
        self.shaping.problem(&names).map_or(Ok(()), |problem| Err(JudgeStageError::Gates { problem }))
    }

    /// The parameter, which the judges that are used need.
    fn needed<'p, T>(&self, value: Option<&'p T>, param: &'static str) -> Result<&'p T, JudgeStageError> {
        let judge = match param {
            "program" => JudgeKind::Command,
            "labels_file" => JudgeKind::Labels,
            _ if self.shaping.uses(JudgeKind::Relative) => JudgeKind::Relative,
            _ => JudgeKind::Rubric,
        };
        value.ok_or(JudgeStageError::NoModel { judge: judge.name(), param })
    }

    /// The endpoint's client.
    fn client(&self, context: &Context) -> Result<Client> {
        let params = &self.params;
        let base_url = self.needed(params.base_url.as_ref(), "base_url")?;
        let budget = match (params.max_cost, context.prices) {
            (None, _) => None,
            (Some(dollars), Some(prices)) => Some(Budget { dollars, prices }),
            (Some(_), None) => return Err(JudgeStageError::NoPrices.into()),
        };
        let endpoint = Endpoint {
            base_url: base_url.clone(),
            provider: params.provider.unwrap_or_else(|| Provider::of(base_url)),
            model: self.needed(params.model.as_ref(), "model")?.clone(),
            api_key_env: params.api_key_env.clone(),
            temperature: params.temperature,
            max_tokens: params.max_tokens,
            timeout: Duration::try_from_secs_f64(params.timeout_s).unwrap_or(Duration::MAX),
            retries: params.retries,
            concurrency: params.concurrency,
            requests_per_minute: params.requests_per_minute,
            tokens_per_minute: params.tokens_per_minute,
            budget,
        };
        Ok(Client::new(endpoint)?)
    }

    fn judges(
        &self,
        context: &Context,
        local: Option<Arc<LocalModel>>,
        criteria: Vec<Criterion>,
        tools: &[Tool],
    ) -> Result<Judges> {
        let Params { attempts, repeats, structured, shown_bytes, orders, rubric_scores, .. } = self.params;
        let model: Arc<dyn LanguageModel> = match local {
            Some(local) => local,
            None => Arc::new(self.client(context)?),
        };
        let tools = tools.iter().filter(|tool| !tool.synthetic).map(shown_tool).collect();
        let model = JudgeModel { model, attempts, repeats, structured, shown_bytes, tools };
        let relative = self.shaping.uses(JudgeKind::Relative).then(|| Relative {
            model: model.clone(),
            prompt: context.text("relative").to_owned(),
            orders,
            seed: context.seed,
        });
        let rubric = self.shaping.uses(JudgeKind::Rubric).then(|| Rubric {
            model: model.clone(),
            scoring: rubric_scores,
            prompt: context.text(self.rubric_prompt()).to_owned(),
            criteria,
        });
        Ok(Judges { model, relative, rubric })
    }

    fn program(&self, context: &Context) -> Result<Program> {
        let params = &self.params;
        Ok(Program {
            interpreter: params.interpreter.clone(),
            file: self.needed(params.program.as_ref(), "program")?.clone(),
            folder: context.scratch.join("program"),
            seed: context.seed,
            timeout: Duration::try_from_secs_f64(params.program_timeout_s).unwrap_or(Duration::MAX),
        })
    }

    /// Whether people call an episode right, by its id. A label that is only a note says nothing.
    fn labels(&self) -> Result<BTreeMap<String, bool>> {
        let file = self.needed(self.params.labels_file.as_ref(), "labels_file")?;
        let labels: Vec<Label> = data::read(file)?;
        Ok(labels.into_iter().filter_map(|label| Some((label.trajectory_id, label.right?))).collect())
    }

    /// Whether the interpreter, or the program itself, can be started.
    fn check_program(&self) -> Result<(), JudgeStageError> {
        let file = self.needed(self.params.program.as_ref(), "program")?;
        let words = program_words(&self.params.interpreter, file);
        let program = words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
        find_program(&program, None)
            .map_err(|cause| JudgeStageError::NoProgram { program, problem: cause.to_string() })
    }

    /// Whether the endpoint answers. Sends no key and samples nothing.
    async fn requirements(&self) -> Vec<Requirement> {
        let Params { base_url, model, api_key_env, .. } = &self.params;
        let (Some(base_url), Some(model)) = (base_url, model) else { return Vec::new() };
        if !self.asks() {
            return Vec::new();
        }
        vec![reachable(base_url, model, api_key_env.as_deref()).await]
    }
}

impl StageKind for Judge {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.run(context))
    }

    /// Checks that there is something to judge by: answers, criteria, a program, or an endpoint and its key.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let Self { params, shaping } = self;
        let mut preflight = Preflight::default();
        if let Some(criteria) = preflight.check("criteria", self.criteria()) {
            preflight.check("gates", self.check_gates(&criteria));
        }
        if shaping.uses(JudgeKind::Command)
            && let Err(cause) = self.check_program()
        {
            match cause {
                JudgeStageError::NoModel { .. } => preflight.error("program", cause),
                _ => preflight.unavailable("program", cause),
            }
        }
        if shaping.uses(JudgeKind::Labels) {
            preflight.check("labels_file", self.labels());
        }
        let is_local = context.inputs.contains_key(local_model::ROLE);
        if is_local && self.asks() {
            let models = [("base_url", params.base_url.is_some()), ("model", params.model.is_some())];
            let ignored = [
                ("provider", params.provider.is_some()),
                ("api_key_env", params.api_key_env.is_some()),
                ("requests_per_minute", params.requests_per_minute.is_some()),
                ("tokens_per_minute", params.tokens_per_minute.is_some()),
                ("max_cost", params.max_cost.is_some()),
            ];
            let prompt = |kind: JudgeKind, name: &str| {
                context.card.texts.get(name).filter(|_| shaping.uses(kind)).map_or("", |text| text.as_str())
            };
            let prompts =
                [prompt(JudgeKind::Relative, "relative"), prompt(JudgeKind::Rubric, self.rubric_prompt())];
            let prompts = prompts.map(JudgeModel::instructions);
            local_model::check(&mut preflight, context, &models, &ignored, &prompts);
        } else if is_local {
            preflight.note(local_model::ROLE, LocalModelError::Unused);
        } else if self.asks() {
            if params.rubric_scores == Scoring::Probability {
                preflight.error("rubric_scores", LlmError::NoProbability);
            }
            preflight.check("base_url", self.needed(params.base_url.as_ref(), "base_url"));
            preflight.check("model", self.needed(params.model.as_ref(), "model"));
            if let Some(base_url) = &params.base_url {
                preflight.check("base_url", llm::check_address(base_url, params.api_key_env.as_deref()));
            }
            if let Some(Err(cause)) = params.api_key_env.as_deref().map(llm::check_key) {
                preflight.unavailable("api_key_env", cause);
            }
            if params.max_cost.is_some() && context.prices.is_none() {
                preflight.error("max_cost", JudgeStageError::NoPrices);
            }
        }
        if shaping.uses(JudgeKind::Consensus)
            && context.episodes().is_some_and(|episodes| episodes.group == Some(1))
        {
            preflight.error("trajectories", JudgeStageError::Alone);
        }
        if let Some((name, value)) = shaping.wrong_weight() {
            preflight.error("weights", JudgeStageError::Weight { name, value });
        }
        let is_judged = self.is_judged();
        if !is_judged && shaping.weights.truth == 0.0 {
            preflight.error("weights", JudgeStageError::NothingEarned);
        } else if let Some(tasks) = context.scenarios().filter(|_| !is_judged) {
            match (tasks.answered, tasks.count()) {
                (known, scenarios) if known == scenarios => {}
                (0, _) => preflight.error("scenarios", JudgeStageError::NothingToGoBy),
                (known, scenarios) => {
                    preflight.note("scenarios", JudgeStageError::LittleToGoBy { known, scenarios });
                }
            }
        }
        if let Some(tasks) = context.scenarios().filter(|_| is_judged) {
            let (known, all) = (tasks.answered, tasks.count());
            if (known < all || !shaping.sees_truth()) && known < KNOWN_TASKS {
                preflight.remark("scenarios", JudgeStageError::LittleTrust { known, least: KNOWN_TASKS });
            }
        }
        preflight.with("rewards", ExpectedOutput::Rewards(self.scored_by()))
    }

    fn requirements<'a>(&'a self, _: &'a ExpectedOutputs) -> StageFuture<'a, Vec<Requirement>> {
        Box::pin(self.requirements())
    }

    fn scored_by(&self) -> ScoredBy {
        match (self.shaping.sees_truth(), self.is_judged()) {
            (true, false) => ScoredBy::Answers,
            (false, true) => ScoredBy::Judges,
            _ => ScoredBy::Both,
        }
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        let model = load.policies(local_model::ROLE).next().filter(|_| self.asks())?;
        Some(self.local().footprint(load, model))
    }

    fn shares_model(&self, role: &str) -> bool {
        role == local_model::ROLE && self.asks()
    }
}

impl Judges {
    /// Judges that score a group.
    fn count(&self) -> usize {
        usize::from(self.relative.is_some()) + usize::from(self.rubric.is_some())
    }
}

fn read_criteria(file: &Path) -> Result<Vec<Criterion>, String> {
    let text = std::fs::read_to_string(file).map_err(|cause| format!("{}: {cause}", file.display()))?;
    let table: Map<String, Value> =
        toml::from_str(&text).map_err(|cause| format!("{}: {}", file.display(), cause.message()))?;
    criteria(&table)
}

/// A group's episodes, each with its index among the trajectories.
type Group<'a> = Vec<(usize, JudgedTrajectory<'a>)>;

fn groups<'a>(
    trajectories: &'a [Trajectory],
    scenarios: &'a [Scenario],
) -> Result<Vec<Group<'a>>, JudgeStageError> {
    let scenarios: BTreeMap<&str, &Scenario> =
        scenarios.iter().map(|scenario| (scenario.id.as_str(), scenario)).collect();
    let member = |index: usize| {
        let trajectory = &trajectories[index];
        match scenarios.get(trajectory.scenario_id.as_str()) {
            Some(scenario) => Ok((index, JudgedTrajectory { scenario, trajectory })),
            None => {
                let (trajectory, scenario) = (trajectory.id.clone(), trajectory.scenario_id.clone());
                Err(JudgeStageError::UnknownScenario { trajectory, scenario })
            }
        }
    };
    let groups = data::groups(trajectories.iter().map(Trajectory::group)).into_values();
    groups.map(|members| members.into_iter().map(member).collect()).collect()
}

/// Adds the scores of a user's program.
async fn scores_of(
    program: &Program,
    context: &Context,
    groups: &[Group<'_>],
    scores: &mut [GroupScores],
) -> Result<()> {
    let episodes: Vec<(JudgedTrajectory<'_>, Option<bool>)> =
        groups.iter().flatten().map(|(_, rollout)| (*rollout, correct(rollout))).collect();
    let judged = tokio::select! {
        biased;
        () = context.cancel.cancelled() => return Err(Interrupted.into()),
        judged = program.judge(&episodes, &*context.observer) => judged?,
    };
    let mut judged = judged.into_iter();
    for (members, scores) in groups.iter().zip(scores) {
        let scores_of_group = judged.by_ref().take(members.len()).map(Some).collect();
        scores.insert(JudgeKind::Command, Scores { scores: scores_of_group, ..Scores::default() });
    }
    Ok(())
}

/// Adds what people say to the groups in which they have labelled an episode. Returns the number of labelled episodes.
fn add_labels(labels: &BTreeMap<String, bool>, groups: &[Group<'_>], scores: &mut [GroupScores]) -> usize {
    let score = |(_, rollout): &(usize, JudgedTrajectory<'_>)| {
        let right = labels.get(&rollout.trajectory.id)?;
        Some(Score { score: f64::from(u8::from(*right)), ..Score::default() })
    };
    let mut labelled = 0;
    for (members, scores) in groups.iter().zip(scores) {
        let of_group: Vec<Option<Score>> = members.iter().map(score).collect();
        let count = of_group.iter().flatten().count();
        if count > 0 {
            scores.insert(JudgeKind::Labels, Scores { scores: of_group, ..Scores::default() });
        }
        labelled += count;
    }
    labelled
}

/// Adds what rollouts agree on. Returns the number of groups in which more than half do.
fn add_consensus(groups: &[Group<'_>], reads: &dyn Fn(&str) -> bool, scores: &mut [GroupScores]) -> usize {
    let mut agreeing = 0;
    for (members, scores) in groups.iter().zip(scores) {
        let rollouts: Vec<JudgedTrajectory<'_>> = members.iter().map(|(_, rollout)| *rollout).collect();
        if let Some(found) = consensus(&rollouts, reads) {
            agreeing += 1;
            scores.insert(JudgeKind::Consensus, found);
        }
    }
    agreeing
}

/// The language models' scores by group.
async fn ask(context: &Context, judges: &Judges, groups: &[Group<'_>]) -> Result<Vec<GroupScores>> {
    let replies = Replies::of(context)?;
    let (failed, unusable) = (AtomicBool::new(false), Mutex::new(None));
    // Collected, not mapped lazily: the compiler cannot prove that a stream of a borrowing closure is Send.
    let mut asked = Vec::with_capacity(groups.len());
    for members in groups {
        asked.push(ask_group(context, judges, members, &replies, (&failed, &unusable)));
    }
    // As many in flight as the client allows; results come in group order. After a failure, requests in flight
    // are completed, since they are paid for, and no other group is begun.
    let most = judges.model.model.concurrency();
    let all = futures::stream::iter(asked).buffered(most).collect::<Vec<_>>();
    let outcomes = tokio::select! {
        biased;
        () = context.cancel.cancelled() => return Err(Interrupted.into()),
        outcomes = all => outcomes,
    };
    // A group that was not begun has no outcome, and then another one has failed.
    let found: Vec<GroupScores> =
        outcomes.into_iter().filter_map(Result::transpose).collect::<Result<_>>()?;
    // One refused question is left out. An endpoint that refuses all is misconfigured.
    let unusable = unusable.into_inner();
    match unusable.filter(|_| !judges.model.model.has_replied() && found.iter().all(BTreeMap::is_empty)) {
        Some(failure) => Err(failure),
        None => Ok(found),
    }
}

/// `None` if another group has failed. Keeps an unusable reply.
async fn ask_group(
    context: &Context,
    judges: &Judges,
    members: &Group<'_>,
    replies: &Replies<'_>,
    (failed, unusable): (&AtomicBool, &Mutex<Option<Failure>>),
) -> Result<Option<GroupScores>> {
    if failed.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let rollouts: Vec<JudgedTrajectory<'_>> = members.iter().map(|(_, rollout)| *rollout).collect();
    let scenario = rollouts.first().map_or("", |rollout| rollout.scenario.id.as_str());
    let mut found = GroupScores::new();
    let mut take = |kind: JudgeKind, scores: Result<Scores>| match scores {
        Ok(scores) => {
            found.insert(kind, scores);
            Ok(())
        }
        Err(failure) if failure.code() == "judge::reply" => {
            context.observer.note(&format!("scenario {scenario} is not judged: {failure}"));
            unusable.lock().get_or_insert(failure);
            Ok(())
        }
        Err(failure) => {
            failed.store(true, Ordering::Relaxed);
            Err(failure.at(format!("scenario {scenario}")))
        }
    };
    if let Some(relative) = &judges.relative {
        take(JudgeKind::Relative, relative.judge(&rollouts, replies).await)?;
    }
    if let Some(rubric) = &judges.rubric {
        take(JudgeKind::Rubric, rubric.judge(&rollouts, replies).await)?;
    }
    context.observer.advance(1);
    Ok::<_, Failure>(Some(found))
}

fn audited(members: &Group<'_>, scores: GroupScores) -> AuditedGroup {
    let mut group = AuditedGroup { scores, ..AuditedGroup::default() };
    for (_, rollout) in members {
        let JudgedTrajectory { scenario, trajectory } = rollout;
        // What rollouts agreed on is no truth that a judge is measured by.
        let correct = correct(rollout).filter(|_| scenario.voted.is_none());
        group.ids.push(trajectory.id.clone());
        group.correct.push(correct);
        group.lengths.push(json!(trajectory.messages).to_string().len());
        group.flags.push(flags(scenario, trajectory, correct));
    }
    group
}

fn measured(
    rewards: &[Reward],
    groups: &[AuditedGroup],
    judges: Option<&Judges>,
    unjudged: usize,
    audit: &[JudgeAudit],
) -> Metrics {
    let mut found = known_metrics([
        ("reward", mean(rewards.iter().map(|reward| f64::from(reward.reward)))),
        // An episode without a reward counts too.
        ("success", share_right(groups.iter().flat_map(|group| group.correct.iter().copied()))),
    ]);
    let measures = audit.iter().filter(|row| row.trajectory_id.is_none());
    let shown = measures.filter(|row| row.judge != "episodes" || row.value > 0.0);
    found.extend(shown.map(|row| (format!("audit.{}.{}", row.judge, row.measure), row.value)));
    if let Some(judges) = judges {
        let usage = judges.model.model.usage();
        found.extend(metrics([
            ("unjudged_groups", unjudged as f64),
            ("judge_requests", usage.requests as f64),
            ("judge_prompt_tokens", usage.prompt_tokens as f64),
            ("judge_completion_tokens", usage.completion_tokens as f64),
        ]));
    }
    found
}

#[cfg(test)]
mod gaming;
#[cfg(test)]
mod local_tests;
#[cfg(test)]
mod tests;
