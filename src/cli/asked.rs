//! What `run` and `plan` are asked alike: a run file, with what is to be different this time.

use std::path::PathBuf;

use clap::Args;

use super::place::Place;
use crate::plan::Overrides;

#[derive(Args)]
pub struct Asked {
    /// The run file.
    pub file: PathBuf,
    /// Change a value of the run file: `--set loop.train.iterations=2`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// Draw this stage's sample anew; of a loop's stage every iteration's, or that of one: `train/rollout@3`.
    #[arg(long, value_name = "STAGE[@ITERATION]")]
    pub resample: Vec<String>,
    #[command(flatten)]
    pub place: Place,
}

impl Asked {
    /// What stands over the run file: the environment, and over it `--set`.
    pub fn overrides(&self) -> Overrides {
        Overrides::new(environment(), self.set.clone())
    }
}

/// The environment, as far as it can override something; what is not UTF-8 shows as such in the mistake it is.
///
/// A stage's program finds its own seed there: a run that it begins has that of its run file.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    let within_a_stage = std::env::var_os("MCPRL_STAGE").is_some();
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(move |(name, _)| !(within_a_stage && name == "MCPRL_SEED"))
}
