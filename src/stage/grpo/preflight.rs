//! Checks of an update before it runs.

use super::{Grpo, GrpoError, SCORING, check_tokens};
use crate::{
    model::kernels::Format,
    stage::{
        ScoredBy,
        preflight::{Preflight, PreflightContext},
    },
};

/// Checks that policy, reference, adapter and parameters fit together.
pub fn preflight(Grpo { params, training }: &Grpo, context: &PreflightContext<'_>) -> Preflight {
    let mut preflight = Preflight::default();
    if params.kl > 0.0 && !context.inputs.contains_key("reference") {
        preflight.error("kl", GrpoError::NoReference { kl: params.kl });
    }
    if params.dual_clip.is_some() && params.loss.default_clip().dual.is_none() {
        preflight.note("dual_clip", GrpoError::NoDualClip { loss: params.loss.into() });
    }
    let teaches = context.inputs.contains_key("demonstrations") && params.demonstration_weight > 0.0;
    if teaches && context.scored_by() == Some(ScoredBy::Judges) {
        preflight.error("demonstrations", GrpoError::Unseen);
    }
    if let (Some(schedule), None) = (training.decay(), training.total_steps) {
        preflight.error("schedule", GrpoError::NoTotal { schedule });
    }
    for (role, _) in SCORING {
        if let (Some(policy), Some(other)) = (context.policy("policy"), context.policy(role)) {
            let (own, theirs) = (policy.config.vocabulary, other.config.vocabulary);
            if own != theirs {
                preflight.error(role, GrpoError::Vocabulary { role, other: theirs, policy: own });
            } else if let (Some(own), Some(theirs)) = (&policy.folder, &other.folder)
                && own != theirs
                && let (Ok(own), Ok(theirs)) = (context.vocabulary(own), context.vocabulary(theirs))
            {
                let name = |role: &'static str| {
                    context.inputs.get(role).and_then(|all| all.first()).map_or(role, |(name, _)| name)
                };
                preflight.check(role, check_tokens(role, [name(role), name("policy")], (&theirs, &own)));
            }
        }
    }
    if let Some((name, value)) = context.episodes().and_then(|episodes| episodes.altered) {
        preflight.error("trajectories", GrpoError::Altered { name, value });
    }
    // Only the kernels' log-probabilities are exact enough to tell the difference.
    let on_cpu = context.engine.devices.iter().all(|device| device == "cpu");
    if let Some(policy) = context.policy("policy").filter(|_| on_cpu && !training.lora) {
        let format = context.engine.format(policy.stored);
        if format != Format::F32 {
            preflight.error("lora", GrpoError::Rounded { format: format.name() });
        }
    }
    training.check(context, &mut preflight);
    preflight
}
