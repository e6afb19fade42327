//! What makes stage times comparable between runs: the model's shape and the amount of work.

use std::{collections::BTreeMap, path::Path};

use serde_json::{Map, Value};

use super::{Artifacts, Input, eval, policy::AdapterOf, rollout};
use crate::{
    hash::{Digest, Encoder},
    model::ModelConfig,
};

/// Equal for models with the same computation, whatever their weights.
pub fn shape(config: &ModelConfig) -> Digest {
    Encoder::new("mcprl model shape v1").json(&config.to_json()).finish()
}

/// The shape of a policy's model; none if it cannot be read.
pub fn policy_shape(policy: &Path, artifacts: &dyn Artifacts) -> Option<Digest> {
    let folder = match std::fs::read(policy.join("policy.json")) {
        Ok(text) => artifacts.folder(&serde_json::from_slice::<AdapterOf>(&text).ok()?.base).ok()?,
        Err(_) => policy.to_owned(),
    };
    ModelConfig::load(&folder).ok().map(|config| shape(&config))
}

/// Amount of work of a stage, in a unit of its kind: episodes per wave, passes over its data. Time and tokens
/// grow roughly with it. None if the parameters do not tell.
pub fn workload(kind: &str, params: &Map<String, Value>) -> Option<f64> {
    let number = |name: &str| params.get(name)?.as_f64();
    let work = match kind {
        "rollout" => number("prompts")? * number("group_size")?,
        "eval" => f64::from(u8::from(params.get("greedy")?.as_bool()?)) + number("samples")?,
        "warmup" => number("traces")? * number("epochs")?,
        "grpo" => number("epochs")?,
        _ => return None,
    };
    (work > 0.0).then_some(work)
}

/// Names of rows that a stage of this kind certainly needs (see [`super::Rows`]); more may follow. None if it
/// has no such rows, or its inputs do not tell.
pub fn rows_needed(
    kind: &str,
    params: &Map<String, Value>,
    seed: u64,
    inputs: &BTreeMap<String, Vec<Input>>,
) -> Option<Vec<String>> {
    match kind {
        "rollout" => rollout::rows_needed(params, seed, inputs),
        "eval" => eval::rows_needed(params, seed, inputs),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn work_grows_with_episodes_and_passes() {
        let work = |kind, params: Value| workload(kind, params.as_object().unwrap());
        assert_eq!(work("rollout", json!({ "prompts": 16, "group_size": 8 })), Some(128.0));
        assert_eq!(work("eval", json!({ "greedy": true, "samples": 2 })), Some(3.0));
        assert_eq!(work("warmup", json!({ "traces": 100, "epochs": 2 })), Some(200.0));
        assert_eq!(work("rollout", json!({})), None);
        assert_eq!(work("judge", json!({ "orders": 2 })), None);
    }
}
