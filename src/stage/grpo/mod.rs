//! `grpo`: policy-gradient updates of an adapter, or of all weights, from judged rollouts.
//!
//! Sampling records log-probabilities with the same decoder and kernels. The first step asserts that scoring
//! reproduces those of the policy's own rollouts, up to rounding ([`GapBound`]), instead of correcting for a
//! difference. Later steps train a policy that has moved; the ratio still compares with what was recorded,
//! however many epochs there are. Rollouts of another policy, as with a lag, are measured and may be weighted
//! ([`Importance`]). The optimizer state is stored with the policy.
//!
//! With the reward `r` of an episode, the mean `m` and the scale `s` of its group, and `p` and `q` the probabilities of a sampled token
//! under the policy that learns and under the one that played, the loss of the token is
//!
//! ```text
//! A = (r − m) / s                 no gradient where a group's rewards are equal
//! −min(p/q · A, clip(p/q, 1 − low, 1 + high) · A) + kl · KL(p, reference)
//! ```
//!
//! added up and divided as `loss` says ([`crate::grpo`]). [`credit`] makes the advantages, [`scoring`] what other policies think of the
//! tokens, [`step`] the gradient, [`report`] tables and metrics.

mod credit;
mod preflight;
mod report;
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
    memory::Load,
    policy::PolicyFolder,
    preflight::{ExpectedPolicy, Preflight, PreflightContext},
    training::{
        Learner, LossState, Training, check_rows, check_vocabulary, checkpoint, minibatches, workspace,
    },
    typed,
};
use crate::{
    chat::Vocabulary,
    data::{Trajectory, read_rewards},
    engine::{Footprint, Trainer},
    error::{At, Diagnostic, Interrupted, Result},
    grpo::{Clip, Importance, LossKind, Objective, Scale, ZeroVariance, breakdown},
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
        let mut credited = self.credit(&trajectories, &rewards, solutions.as_ref(), (&policy, context))?;
        credited.note(&trajectories, &*context.observer);
        if params.kl > 0.0 && !context.has(REFERENCE_POLICY) {
            return Err(GrpoError::NoReference { kl: params.kl }.into());
        }
        let trained = trajectories.iter().chain(credited.lessons.iter().copied().flatten());
        let room = |policy: &ExpectedPolicy| {
            workspace(trained.clone(), &context.engine, |load| self.footprint(load, policy))
        };
        let (rooms, own) = (&room as &dyn Fn(&ExpectedPolicy) -> usize, room(&expected));
        self.score(&mut credited.groups, (&policy, &expected), rooms, context)?;
        let mut learner = Learner::load(&policy, training, LossState::Grpo, own, context)?;
        let exact = learner.trainer.decoder.by_kernels();
        // Where scoring reproduces sampling bit by bit, every weight of the policy's own rollouts is 1.
        credited.is_weighed = params.importance != Importance::None && (credited.of_others > 0 || !exact);
        if credited.is_weighed {
            scoring::weigh(&mut credited.groups, &learner.trainer, self)?;
        }
        credited.add_lessons(params.demonstration_weight);
        let minibatches = self.minibatches(&credited.groups, context.seed);
        // Before a checkpoint is loaded, whose steps are this update's own.
        let before = learner.trainer.optimizer().steps();
        let schedule = training.schedule(training.total_steps).warm_within(before, minibatches.len() as u64);
        let rate = |index: usize| schedule.rate(before + index as u64);
        let bound = GapBound::new(exact, context.engine.format(expected.stored));
        let bound = Some(bound).filter(|_| credited.of_others < trajectories.len());
        let updates = self.steps(&mut learner.trainer, &minibatches, (&rate, bound), context)?;
        learner.save(&policy, &context.output("policy", "policy")?)?;
        let steps = credited.steps(&updates, &rate, &context.stage);
        context.write("steps", &steps)?;
        Ok(credited.metrics(&updates, &steps, context.has(REFERENCE_POLICY)))
    }

    /// Adds what other policies think of the rollouts. They are loaded one after the other before the policy, so that each model can be
    /// released before the next. `room`: bytes that a policy's batches may take.
    fn score(
        &self,
        groups: &mut [Vec<Rollout<'_>>],
        (policy, expected): (&PolicyFolder, &ExpectedPolicy),
        room: &dyn Fn(&ExpectedPolicy) -> usize,
        context: &Context,
    ) -> Result<()> {
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
                if let (Ok(theirs), Ok(ours)) = (read(&other), read(policy)) {
                    let names =
                        [role, "policy"].map(|role| context.input(role).map_or(role, |input| &input.name));
                    check_tokens(role, names, (&theirs, &ours))?;
                }
            }
            scoring::score_by(groups, (&other, room(&of_other)), of, (self, context))?;
        }
        Ok(())
    }

    /// The groups of each step. One without a gradient is left out: the optimizer must not step on its moments alone.
    fn minibatches<'g, 'a>(&self, groups: &'g [Vec<Rollout<'a>>], seed: u64) -> Vec<Vec<&'g [Rollout<'a>]>> {
        let Params { epochs, minibatches: parts, .. } = self.params;
        minibatches(groups.len(), epochs, parts, seed)
            .into_iter()
            .map(|minibatch| minibatch.into_iter().map(|group| groups[group].as_slice()).collect::<Vec<_>>())
            .filter(|minibatch| minibatch.iter().copied().flatten().any(|rollout| rollout.has_terms))
            .collect()
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
