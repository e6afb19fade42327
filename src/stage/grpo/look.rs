//! Checks of an update before it runs.

use super::{GrpoError, Params};
use crate::{
    model::{AdapterConfig, Targets},
    stage::{
        memory::Policy,
        prospect::{Outlook, Prospect},
    },
};

/// Checks that policy, reference, adapter and parameters fit together.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    let Some(params) = prospect.params::<Params>(&mut outlook) else { return outlook };
    let (policy, reference) = (prospect.policy("policy"), prospect.policy("reference"));
    if params.kl > 0.0 && !prospect.inputs.contains_key("reference") {
        outlook.object("kl", GrpoError::NoReference { kl: params.kl });
    }
    for (name, value) in [("beta1", params.beta1), ("beta2", params.beta2)] {
        if value >= 1.0 {
            outlook.object(name, GrpoError::Decay { name, value });
        }
    }
    let Some(policy) = policy else { return outlook };
    if let Some(reference) = reference.map(|reference| reference.config.vocabulary)
        && reference != policy.config.vocabulary
    {
        let policy = policy.config.vocabulary;
        outlook.object("reference", GrpoError::Vocabulary { reference, policy });
    }
    let adapter = match (params.lora, policy.adapter) {
        (false, Some(_)) => {
            outlook.object("lora", GrpoError::WholeAdapter);
            None
        }
        (true, None) => {
            let targets = Targets::from_names(&params.targets);
            outlook.take("targets", targets.check(&policy.config));
            AdapterConfig { targets, ..AdapterConfig::new(params.rank, params.alpha) }
                .size(&policy.config)
                .ok()
        }
        (true, Some(size)) => Some(size),
        (false, None) => None,
    };
    let Policy { config, folder, .. } = policy.clone();
    outlook.with("policy", Policy { config, adapter, folder }.into())
}
