//! `long_context`: the long factors of LongRoPE (Ding et al. 2024) for every position.
//!
//! Transformers takes the short factors for a sequence up to the original context, and the long factors for all tokens of a longer
//! one. Keys in a cache were rotated before the length is known, so the long factors are taken from the first token on, as vLLM
//! does for a longer context. The configuration then has the long list twice, so that other programs do the same.

use std::path::Path;

use serde_json::Value;

use super::{ModelStageError, untrained::replace};
use crate::{
    error::Result,
    model::{ModelConfig, Scaling, read_json},
};

const CONFIG: &str = "config.json";

/// Changes the configuration in a folder.
///
/// # Errors
/// If the model has no LongRoPE.
pub fn lengthen(folder: &Path) -> Result<ModelConfig> {
    let (path, config) = (folder.join(CONFIG), ModelConfig::load(folder)?);
    replace(&path, &format!("{:#}\n", lengthened(&config, folder)?))?;
    Ok(ModelConfig::load(folder)?)
}

/// The configuration of the model in a folder, as [`lengthen`] changes it.
///
/// # Errors
/// As [`lengthen`].
pub fn expected(folder: &Path) -> Result<ModelConfig> {
    let changed = lengthened(&ModelConfig::load(folder)?, folder)?;
    let written =
        tempfile::tempdir().map_err(|source| ModelStageError::write(&std::env::temp_dir(), source))?;
    replace(&written.path().join(CONFIG), &changed.to_string())?;
    Ok(ModelConfig::load(written.path())?)
}

fn lengthened(config: &ModelConfig, folder: &Path) -> Result<Value> {
    let Scaling::LongRope { long_factor, .. } = &config.design.scaling else {
        return Err(ModelStageError::NoLongFactors { folder: folder.to_owned() }.into());
    };
    let mut file: Value = read_json(&folder.join(CONFIG))?;
    let mut is_changed = false;
    for table in ["rope_parameters", "rope_scaling"] {
        if let Some(short) = file.get_mut(table).and_then(|table| table.get_mut("short_factor")) {
            *short = long_factor.clone().into();
            is_changed = true;
        }
    }
    // The configuration of a part of a larger model is not changed.
    if is_changed {
        Ok(file)
    } else {
        Err(ModelStageError::NoLongFactors { folder: folder.to_owned() }.into())
    }
}
