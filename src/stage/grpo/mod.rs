//! `grpo`: policy-gradient updates of an adapter, or of all weights, from judged rollouts.
//!
//! Sampling records log-probabilities with the same decoder and kernels. The first step asserts that scoring
//! reproduces those of the policy's own rollouts, up to rounding ([`GapBound`]), instead of correcting for a
//! difference. Later steps train a policy that has moved; the ratio still compares with what was recorded,
//! however many epochs there are. Rollouts of another policy, as with a lag, are measured and may be weighted
//! ([`Importance`]). The optimizer state is stored with the policy.

mod preflight;
mod scoring;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Metrics, StageError, StageKind,
    kind::StageFuture,
    known_metrics, mean,
    memory::Load,
    policy::PolicyFolder,
    preflight::{ExpectedPolicy, Preflight, PreflightContext},
    share_right,
    training::{
        Learner, LossState, Training, check_logprobs, check_rows, check_vocabulary, checkpoint, minibatches,
        workspace,
    },
    typed,
};
use crate::{
    chat::Vocabulary,
    data::{End, GroupSignal, REFERENCE, Reward, Step, Trajectory, groups, read_rewards},
    engine::{Footprint, Trainer},
    error::{At, Diagnostic, Interrupted, Result},
    grpo::{
        Clip, Conduct, Episodes, Importance, LossKind, NoSignal, Objective, Scale, ScoredRollout,
        ZeroVariance, advantages, breakdown, remedies,
    },
    model::kernels::Format,
    usage::Usage,
};
use step::{Rollout, Update};

/// Largest differences between the log-probabilities of sampling and scoring, in nats, for the two models to count as the
/// same.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GapBound {
    /// Over all tokens.
    mean: f64,
    /// Of one token.
    max: f64,
}

impl GapBound {
    /// The kernels give the same bits. Another machine's instructions may round sums differently.
    const KERNELS: Self = Self { mean: 1e-4, max: 1e-4 };
    /// On a device a row's bits depend on its batch: sums of thousands of 32-bit terms are added in another order.
    const DEVICE: Self = Self { mean: 1e-3, max: 1e-2 };

    /// `exact`: whether the kernels compute. `format`: the type of the weights that sampled.
    fn new(exact: bool, format: Format) -> Self {
        match (exact, format) {
            (true, _) => Self::KERNELS,
            (false, Format::F16) => Self::rounded(2_f64.powi(-11)),
            (false, Format::Bf16 | Format::Nf4) => Self::rounded(2_f64.powi(-8)),
            (false, Format::F32) => Self::DEVICE,
        }
    }

    /// On a device whose products round their factors and results to a format with this unit roundoff. A sum in another
    /// order changes its last bit, and so may round to the neighbour in the format; later layers amplify that. If every
    /// rounding fell differently, logits would differ by about 5 roundoffs of their size (docs/reference/devices.md). A
    /// log-probability is a difference of logits: of 3 on average, and of up to 50.
    fn rounded(roundoff: f64) -> Self {
        Self { mean: 16.0 * roundoff, max: 256.0 * roundoff }
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    loss: LossKind,
    scale: Scale,
    clip_low: Option<f64>,
    clip_high: Option<f64>,
    dual_clip: Option<f64>,
    token_budget: usize,
    kl: f64,
    zero_variance_groups: Option<ZeroVariance>,
    mask_truncated: bool,
    importance: Importance,
    importance_cap: f64,
    tool_token_loss: f64,
    demonstration_weight: f64,
    stop_kl: Option<f64>,
    reward_weight: f64,
    teacher_weight: f64,
    teacher_clip: f64,
    epochs: usize,
    minibatches: usize,
}

impl Params {
    fn objective(&self) -> Objective {
        let usual = self.loss.default_clip();
        let clip = Clip {
            low: self.clip_low.unwrap_or(usual.low),
            high: self.clip_high.unwrap_or(usual.high),
            dual: usual.dual.map(|usual| self.dual_clip.unwrap_or(usual)),
        };
        Objective { kind: self.loss, clip, kl: self.kl }
    }

    /// What the teacher adds to the advantage of a token that it finds so much likelier, in nats: the policy's own draws, scored
    /// by the teacher, estimate the gradient of KL(policy ‖ teacher).
    fn teaching(&self, gap: f64) -> f64 {
        self.teacher_weight * gap.clamp(-self.teacher_clip, self.teacher_clip)
    }

    fn zero_variance(&self) -> ZeroVariance {
        self.zero_variance_groups.unwrap_or(self.loss.default_zero_variance())
    }
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "grpo")]
enum GrpoError {
    #[error("the episodes are reference solutions, which no policy sampled")]
    #[hint = "train on them with a stage of kind \"sft\", or name them as `demonstrations` beside the rollout"]
    NotSampled,
    #[error(
        "judges that see no answers score these episodes, and `demonstrations` are taught where answers are wrong"
    )]
    #[diagnostic(class = usage)]
    #[hint = "set `demonstration_weight = 0`, or let answers count: `weights.truth` or `veto` of the judge"]
    Unseen,
    #[error("`dual_clip` does not apply: `loss = \"{loss}\"` bounds its ratios by itself")]
    #[diagnostic(class = usage)]
    #[hint = "leave it out; dapo, grpo and dr_grpo have it"]
    NoDualClip { loss: &'static str },
    #[error(
        "sampling and scoring differ by {mean:.2e} nats per token and {max:.2e} at most, above {} and {}: the policy that \
         acted is not the one that learns",
        .bound.mean,
        .bound.max
    )]
    #[hint = "the rollouts may come from another machine or other kernels; run the rollout stage again"]
    Mismatch { mean: f64, max: f64, bound: GapBound },
    #[error(
        "the episodes are sampled with `{name} = {value}`, and an update takes them for draws from the policy itself"
    )]
    #[diagnostic(class = usage)]
    #[hint = "leave `{name}` of the stage that plays them out, or train on right episodes with a stage of kind \"sft\""]
    Altered { name: &'static str, value: f32 },
    #[error("`kl` is {kl}, but no reference policy is given")]
    #[diagnostic(class = usage)]
    #[hint = "name one, as in `reference = \"base\"`, or set `kl = 0`"]
    NoReference { kl: f64 },
    #[error("`schedule` is \"{schedule}\", but `total_steps` is not set, so it would not decay")]
    #[diagnostic(class = usage)]
    #[hint = "set total_steps to the loop's `iterations` times `minibatches` times `epochs`"]
    NoTotal { schedule: &'static str },
    #[error("`lora = false` trains weights in f32, and the policy plays with weights in {format}")]
    #[diagnostic(class = usage)]
    #[hint = "set dtype = \"f32\" under [engine], or train an adapter"]
    Rounded { format: &'static str },
    #[error("the {role} has a vocabulary of {other} tokens, the policy one of {policy}")]
    #[hint = "both must share a tokenizer"]
    Vocabulary { role: &'static str, other: usize, policy: usize },
    #[error("token {id} is {theirs} for the {role} \"{other}\", and {own} for the policy \"{policy}\"")]
    #[diagnostic(class = usage)]
    #[hint = "both must share a tokenizer, which tells what a token is"]
    Tokenizer { role: &'static str, other: String, policy: String, id: u32, theirs: String, own: String },
}

const REFERENCE_POLICY: &str = "reference";
const TEACHER: &str = "teacher";

/// The log-probabilities of a rollout under one of these.
type ScoredBy = for<'r> fn(&'r mut Rollout<'_>) -> &'r mut Vec<f32>;

/// Policies that score rollouts before the first step.
const SCORING: [(&str, ScoredBy); 2] =
    [(REFERENCE_POLICY, |rollout| &mut rollout.reference), (TEACHER, |rollout| &mut rollout.teacher)];

/// Mean of log p(teacher) − log p(sampled) over the sampled tokens: at most 0 on average, and 0 if both are the same.
fn teacher_gap(groups: &[Vec<Rollout<'_>>]) -> Option<f64> {
    mean(groups.iter().flatten().flat_map(Rollout::teacher_gaps))
}

/// Whether two policies' tokens are the same. `names`: those of the other and of the policy.
fn check_tokens(
    role: &'static str,
    names: [&str; 2],
    (other, policy): (&Vocabulary, &Vocabulary),
) -> Result<(), GrpoError> {
    let Some((id, tokens)) = other.differs(policy) else { return Ok(()) };
    let [other, policy] = names.map(str::to_owned);
    let [theirs, own] = tokens.map(|token| token.map_or_else(|| "none".into(), |token| format!("{token:?}")));
    Err(GrpoError::Tokenizer { role, other, policy, id, theirs, own })
}

/// The optimizer steps of one update.
pub struct Grpo {
    params: Params,
    training: Training,
}

impl Grpo {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, training: typed(params)? })
    }

    /// The engine's memory for an update. None if the policy cannot have this adapter.
    fn footprint(&self, load: &Load<'_>, policy: &ExpectedPolicy) -> Option<Footprint> {
        let Params { epochs, minibatches, .. } = self.params;
        let trained = load.before.map(|usage| usage.trained_tokens as usize).filter(|trained| *trained > 0);
        self.training.footprint(load, policy, |longest| match (trained, load.episodes()) {
            (Some(trained), _) => trained.div_ceil((epochs * minibatches).max(1)),
            (None, Some(episodes)) => episodes.count.saturating_mul(longest).div_ceil(minibatches.max(1)),
            (None, None) => usize::MAX,
        })
    }

    fn update(&self, context: &Context) -> Result<Metrics> {
        let Self { params, training } = self;
        let policy = PolicyFolder::open(context.input("policy")?, context)?;
        let expected = policy.expected()?;
        let trajectories: Vec<Trajectory> = context.read("trajectories")?;
        let solutions = match params.demonstration_weight > 0.0 {
            true => solutions(&expected, context)?,
            false => None,
        };
        let rewards = read_rewards(&context.input("rewards")?.path)?;
        let rewards: BTreeMap<&str, &Reward> =
            rewards.iter().map(|r| (r.trajectory_id.as_str(), r)).collect();

        let attempts =
            trajectories.iter().map(|t| attempt(t, &rewards, params)).collect::<Result<Vec<_>, _>>()?;
        let (credits, mut signal) = advantages(&attempts, params.scale);
        let (zero_variance, acting) = (params.zero_variance(), policy.digest.to_string());
        let teaches = context.has(TEACHER) && params.teacher_weight > 0.0;
        let rollout = |index: usize| {
            let advantage = match credits[index] {
                // The teacher's part of the advantage needs no reward.
                Err(NoSignal::ZeroVariance | NoSignal::Alone | NoSignal::Unjudged) if teaches => 0.0,
                credit => params.reward_weight * zero_variance.counted(credit)?,
            };
            Some(Rollout::new(&trajectories[index], (advantage, teaches), params, &acting))
        };
        let (mut groups, mut lessons, mut all_wrong) = (Vec::new(), Vec::new(), 0);
        for members in self::groups(trajectories.iter().map(Trajectory::group)).into_values() {
            let outcomes = members.iter().map(|index| attempts[*index].correct);
            let is_wrong = GroupSignal::of(outcomes) == Some(GroupSignal::AllWrong);
            all_wrong += usize::from(is_wrong);
            let scenario = members.first().map(|index| trajectories[*index].scenario_id.as_str());
            let lesson = scenario.filter(|_| is_wrong).and_then(|scenario| solutions.as_ref()?.get(scenario));
            if lesson.is_some() {
                signal.teach(members.iter().map(|index| credits[*index]));
            }
            groups.push(members.into_iter().filter_map(rollout).collect::<Vec<_>>());
            lessons.push(lesson);
        }
        let taught = lessons.iter().flatten().count();
        if taught == 0 && !groups.iter().flatten().any(|rollout| rollout.has_terms) {
            context.observer.note(&format!(
                "these episodes give no gradient: none of the {} groups has attempts with different rewards",
                signal.groups
            ));
        }
        for line in remedies(&signal, &episodes(&trajectories)) {
            context.observer.note(&line);
        }
        if solutions.is_some() && all_wrong > 0 {
            let others =
                if taught < all_wrong { "; `demonstrations` has no right one for the others" } else { "" };
            context.observer.note(&format!(
                "{taught} of {all_wrong} groups that are all wrong are taught their solution{others}"
            ));
        }
        let of_others = trajectories.iter().filter(|trajectory| trajectory.policy != acting).count();
        if of_others > 0 {
            context.observer.note(
                "another policy played some of the episodes, as with a lag (`@policy~1`): `off_policy` is their share, \
                 `off_policy_kl` how far it is away, and `importance` weighs them",
            );
        }
        let reward = mean(rewards.values().map(|reward| f64::from(reward.reward)));
        let success = share_right(rewards.values().map(|reward| reward.correct));

        let trained = trajectories.iter().chain(lessons.iter().copied().flatten());
        let room = |policy: &ExpectedPolicy| {
            workspace(trained.clone(), &context.engine, |load| self.footprint(load, policy))
        };
        if params.kl > 0.0 && !context.has(REFERENCE_POLICY) {
            return Err(GrpoError::NoReference { kl: params.kl }.into());
        }
        // Scored before the policy is loaded, one after the other, so that each model can be released before the next.
        let own = expected.config.vocabulary;
        for (role, of) in SCORING {
            if !context.has(role) {
                continue;
            }
            let other = PolicyFolder::open(context.input(role)?, context)?;
            let of_other = other.expected()?;
            let vocabulary = of_other.config.vocabulary;
            if vocabulary != own {
                return Err(GrpoError::Vocabulary { role, other: vocabulary, policy: own }.into());
            }
            if other.model_digest() != policy.model_digest() {
                let read = |of: &PolicyFolder| context.models.vocabulary(of.model_digest(), of.model());
                // Without a tokenizer there is nothing to compare.
                if let (Ok(theirs), Ok(ours)) = (read(&other), read(&policy)) {
                    let names =
                        [role, "policy"].map(|role| context.input(role).map_or(role, |input| &input.name));
                    check_tokens(role, names, (&theirs, &ours))?;
                }
            }
            scoring::score_by(&mut groups, (&other, room(&of_other)), of, (self, context))?;
        }
        let mut learner = Learner::load(&policy, training, LossState::Grpo, room(&expected), context)?;
        let exact = learner.trainer.decoder.by_kernels();
        // Where scoring reproduces sampling bit by bit, every weight of the policy's own rollouts is 1.
        let weighs = params.importance != Importance::None && (of_others > 0 || !exact);
        if weighs {
            scoring::weigh(&mut groups, &learner.trainer, self)?;
        }
        // After scoring: no policy sampled them, so there is nothing to compare with.
        for (group, lesson) in groups.iter_mut().zip(&lessons) {
            group.extend(lesson.map(|lesson| Rollout::demonstration(lesson, params.demonstration_weight)));
        }
        groups.retain(|group| !group.is_empty());
        let with_terms = groups.iter().flatten().filter(|rollout| rollout.has_terms).count();
        let taught_share = with_terms as f64 / trajectories.len().max(1) as f64;
        let minibatches: Vec<Vec<&[Rollout<'_>]>> =
            minibatches(groups.len(), params.epochs, params.minibatches, context.seed)
                .into_iter()
                .map(|minibatch| {
                    minibatch.into_iter().map(|group| groups[group].as_slice()).collect::<Vec<_>>()
                })
                // Without a gradient the optimizer must not step on its moments alone.
                .filter(|minibatch| minibatch.iter().copied().flatten().any(|rollout| rollout.has_terms))
                .collect();
        // Before a checkpoint is loaded, whose steps are this update's own.
        let before = learner.trainer.optimizer().steps();
        let schedule = training.schedule(training.total_steps).warm_within(before, minibatches.len() as u64);
        let rate = |index: usize| schedule.rate(before + index as u64);
        let bound = GapBound::new(exact, context.engine.format(expected.stored));
        let bound = Some(bound).filter(|_| of_others < trajectories.len());
        let updates = self.steps(&mut learner.trainer, &minibatches, (&rate, bound), context)?;

        let step = |(index, update): (usize, &Update)| Step {
            stage: context.stage.clone(),
            step: index as u32,
            learning_rate: rate(index),
            loss: update.tally.loss,
            gradient_norm: update.gradient_norm,
            tokens: update.tokens,
            tokens_unshared: update.tokens_unshared,
            loss_tokens: update.tally.tokens + update.taught.0,
            reward,
            success,
            clip_fraction: update.tally.clip_fraction(),
            max_logprob_gap: update.gap.max().filter(|_| index == 0),
            entropy: update.moved.entropy(),
            moved_kl: update.moved.kl(),
            held_out_loss: None,
            signal: Some(signal.to_json()),
        };
        let steps: Vec<Step> = updates.iter().enumerate().map(step).collect();
        learner.save(&policy, &context.output("policy", "policy")?)?;
        context.write("steps", &steps)?;

        let (first, last) = (steps.first(), steps.last());
        let max_gap = first.and_then(|step| step.max_logprob_gap);
        let of_groups = |count: u64| count as f64 / signal.groups.max(1) as f64;
        let over = |of: fn(&Update) -> Option<f64>| mean(updates.iter().filter_map(of));
        Ok(known_metrics([
            ("reward", reward),
            ("success", success),
            ("signal", Some(if teaches { taught_share } else { signal.share() })),
            ("groups", Some(signal.groups as f64)),
            ("groups_with_gradient", Some(signal.groups_with_gradient as f64)),
            ("taught_groups", solutions.as_ref().map(|_| taught as f64)),
            ("loss", last.map(|step| step.loss)),
            ("gradient_norm", last.map(|step| step.gradient_norm)),
            ("learning_rate", last.map(|step| step.learning_rate)),
            ("clip_fraction", over(|update| update.tally.clip_fraction())),
            ("all_right", Some(of_groups(signal.all_right))),
            ("all_wrong", Some(of_groups(signal.all_wrong))),
            ("kl", over(|update| update.tally.kl()).filter(|_| context.has(REFERENCE_POLICY))),
            ("teacher_gap", teacher_gap(&groups)),
            ("moved_kl", steps.iter().filter_map(|step| step.moved_kl).reduce(f64::max)),
            ("off_policy", Some(of_others as f64 / trajectories.len().max(1) as f64)),
            ("off_policy_kl", first.and_then(|step| step.moved_kl).filter(|_| of_others > 0)),
            ("importance", over(|update| update.tally.importance()).filter(|_| weighs)),
            ("tool_token_loss", over(|update| update.tool_token_loss)),
            ("demonstration_loss", over(Update::demonstration_loss)),
            ("max_logprob_gap", max_gap),
            (
                "mean_logprob_gap",
                updates.first().map(|update| update.gap.mean()).filter(|_| max_gap.is_some()),
            ),
            ("entropy", first.and_then(|step| step.entropy)),
            ("tokens", Some(steps.iter().map(|step| step.tokens as f64).sum())),
            ("tokens_unshared", Some(steps.iter().map(|step| step.tokens_unshared as f64).sum())),
        ]))
    }

    /// Takes an optimizer step for each minibatch, from the last checkpoint on, until the policy has moved too far. `rate`: the
    /// learning rate by step. `bound`: that of the first step's check, if the policy played any of the rollouts.
    fn steps(
        &self,
        trainer: &mut Trainer,
        minibatches: &[Vec<&[Rollout<'_>]>],
        (rate, bound): (&dyn Fn(usize) -> f64, Option<GapBound>),
        context: &Context,
    ) -> Result<Vec<Update>> {
        let observer = &context.observer;
        observer.phase("steps", minibatches.len() as u64);
        let done = checkpoint::load(trainer, context)?.into_iter();
        let mut updates: Vec<Update> = done.map(Update::from_numbers).collect();
        observer.skip(updates.len() as u64);
        for (index, rollouts) in minibatches.iter().enumerate().skip(updates.len()) {
            let moved = updates.last().and_then(|update| update.moved.kl());
            if let Some((kl, most)) = moved.zip(self.params.stop_kl).filter(|(kl, most)| kl > most) {
                observer.note(&format!(
                    "step {} found the policy {kl:.3} nats per token away from the one that played, above stop_kl = {most}: {} of {} \
                     minibatches are left out",
                    index - 1,
                    minibatches.len() - index,
                    minibatches.len()
                ));
                break;
            }
            if context.cancel.is_cancelled() {
                return Err(Interrupted.into());
            }
            let update = step::update(trainer, rollouts, self, rate(index)).at(|| format!("step {index}"))?;
            context.meter.add(Usage { trained_tokens: update.tokens, ..Usage::default() });
            let gap = &update.gap;
            // After the first step the policy differs from the one that played.
            if let Some(bound) = bound.filter(|bound| index == 0 && !gap.is_within(bound)) {
                let max = gap.max().unwrap_or_default();
                return Err(GrpoError::Mismatch { mean: gap.mean(), max, bound }.into());
            }
            observer.advance(1);
            observer.status(&format!(
                "loss {:.4} · gradient norm {:.2}",
                update.tally.loss, update.gradient_norm
            ));
            updates.push(update);
            if checkpoint::is_due(updates.len(), minibatches.len()) {
                let numbers: Vec<_> = updates.iter().map(Update::to_numbers).collect();
                checkpoint::save(trainer, &numbers, context)?;
            }
        }
        if let Some(line) = breakdown(&updates.iter().map(|update| update.moved).collect::<Vec<_>>()) {
            observer.note(&line);
        }
        Ok(updates)
    }
}

impl StageKind for Grpo {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(async { self.update(context) })
    }

    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        preflight::preflight(self, context)
    }

    fn workload(&self) -> Option<f64> {
        Some(self.params.epochs as f64).filter(|epochs| *epochs > 0.0)
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        self.footprint(load, load.policies("policy").next()?)
    }

    /// A whole model in training is no longer the frozen one.
    fn shares_model(&self, role: &str) -> bool {
        SCORING.iter().any(|(other, _)| *other == role) || role == "policy" && self.training.lora
    }

    fn adapter_base(&self) -> Option<&'static str> {
        self.training.lora.then_some("policy")
    }
}

/// A trajectory in the form its group uses.
fn attempt<'a>(
    trajectory: &'a Trajectory,
    rewards: &BTreeMap<&str, &Reward>,
    params: &Params,
) -> Result<ScoredRollout<'a>> {
    if trajectory.policy == REFERENCE {
        return Err(GrpoError::NotSampled.into());
    }
    check_rows(trajectory)?;
    check_logprobs(trajectory)?;
    let is_truncated = trajectory.end().is_some_and(End::is_truncated);
    let excluded = match step::trained(trajectory) {
        _ if is_truncated && params.mask_truncated => Some(NoSignal::Truncated),
        0 => Some(NoSignal::Empty),
        _ => None,
    };
    let reward = rewards.get(trajectory.id.as_str());
    Ok(ScoredRollout {
        group: trajectory.group(),
        reward: reward.map_or(f32::NAN, |reward| reward.reward),
        correct: reward.and_then(|reward| reward.correct),
        excluded,
    })
}

/// The first right episode of each scenario that fits the policy, if there are demonstrations.
fn solutions(policy: &ExpectedPolicy, context: &Context) -> Result<Option<BTreeMap<String, Trajectory>>> {
    let Some(episodes) = context.read_optional::<Trajectory>("demonstrations")? else { return Ok(None) };
    let mut solutions = BTreeMap::new();
    for episode in episodes.into_iter().filter(|episode| episode.correct == Some(true)) {
        check_rows(&episode)?;
        check_vocabulary(&episode, policy.config.vocabulary)?;
        let is_long = episode.rows().any(|row| row.tokens.len() > policy.config.context);
        if !is_long && step::trained(&episode) > 0 {
            solutions.entry(episode.scenario_id.clone()).or_insert(episode);
        }
    }
    Ok(Some(solutions))
}

/// Outcomes of the episodes, for remedies.
fn episodes(trajectories: &[Trajectory]) -> Episodes {
    let groups = groups(trajectories.iter().map(Trajectory::group)).into_values().map(|members| {
        let known = members.into_iter().filter_map(|index| trajectories[index].correct);
        known.fold((0, 0), |(right, of), correct| (right + u32::from(correct), of + 1))
    });
    let ended = |end| trajectories.iter().filter(|trajectory| trajectory.end() == Some(end)).count() as u64;
    Episodes {
        conduct: Conduct::of(trajectories),
        groups: groups.filter(|(_, of)| *of > 0).collect(),
        truncated: [End::OutOfTurns, End::OutOfTurnTokens, End::OutOfTokens].map(ended),
    }
}
