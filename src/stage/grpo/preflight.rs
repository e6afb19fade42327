//! Checks of an update before it runs.

use super::{GrpoError, Params};
use crate::stage::preflight::{ExpectedPolicy, Preflight, PreflightContext};

/// Checks that policy, reference, adapter and parameters fit together.
pub fn preflight(params: &Params, context: &PreflightContext<'_>) -> Preflight {
    let mut preflight = Preflight::default();
    let (policy, reference) = (context.policy("policy"), context.policy("reference"));
    if params.kl > 0.0 && !context.inputs.contains_key("reference") {
        preflight.error("kl", GrpoError::NoReference { kl: params.kl });
    }
    for (name, value) in [("beta1", params.beta1), ("beta2", params.beta2)] {
        if value >= 1.0 {
            preflight.error(name, GrpoError::Decay { name, value });
        }
    }
    let Some(policy) = policy else { return preflight };
    if let Some(reference) = reference.map(|reference| reference.config.vocabulary)
        && reference != policy.config.vocabulary
    {
        let policy = policy.config.vocabulary;
        preflight.error("reference", GrpoError::Vocabulary { reference, policy });
    }
    let adapter = match (params.lora, policy.adapter) {
        (false, Some(_)) => {
            preflight.error("lora", GrpoError::WholeAdapter);
            None
        }
        (true, None) => {
            let adapter = params.adapter();
            preflight.check("targets", adapter.targets.check(&policy.config));
            adapter.size(&policy.config).ok()
        }
        (true, Some(size)) => Some(size),
        (false, None) => None,
    };
    let ExpectedPolicy { config, folder, .. } = policy.clone();
    preflight.with("policy", ExpectedPolicy { config, adapter, folder })
}
