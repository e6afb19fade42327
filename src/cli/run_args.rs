//! The arguments that `run` and `plan` share: a run file and the changes to it for this run.

use std::path::PathBuf;

use clap::Args;

use super::{from, locations::Locations};
use crate::{
    error::Result,
    plan::{Overrides, Practice, RunFile},
    store::{FileDigests, Store},
};

/// The run file where none is named.
pub const RUN_FILE: &str = "run.toml";

#[derive(Args)]
pub struct RunArgs {
    /// The run file.
    #[arg(default_value = RUN_FILE)]
    pub file: PathBuf,
    /// Change a value of the run file: `--set loop.train.iterations=2`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    #[command(flatten)]
    practice: PracticeArgs,
    /// Go on from an agent that exists, in place of the supervised start: an adapter's folder, or a run or RUN/STAGE that wrote one.
    #[arg(long, value_name = "ADAPTER|RUN")]
    from: Option<String>,
    /// Rerun this stage with a new random sample. For a loop's stage this means every iteration, or the
    /// given one: `train[3]/reward`.
    #[arg(long, value_name = "STAGE")]
    pub resample: Vec<String>,
    /// Run only this stage and what it needs. A loop's name means all of its iterations, `train[3]` the first three.
    #[arg(long, value_name = "STAGE")]
    pub until: Vec<String>,
    /// Do not ask the server again which tools it has; the list in the cache is used.
    #[arg(long)]
    pub offline: bool,
    #[command(flatten)]
    pub locations: Locations,
}

/// How much of a run practises.
#[derive(Args, Clone, Copy)]
pub struct PracticeArgs {
    /// Iterations of the loop; 0: no practice after the start.
    #[arg(long, value_name = "N")]
    pub iterations: Option<u32>,
    /// No start: practice begins with the base.
    #[arg(long)]
    pub no_start: bool,
}

impl RunArgs {
    /// The values that override the run file: environment variables, which `--set` overrides in turn, then what `--from`
    /// changes, `--iterations` and `--no-start`.
    ///
    /// # Errors
    /// If the run file has not what these options change, or there is nothing to go on from.
    pub fn overrides(&self, source: &RunFile, store: &Store) -> Result<Overrides> {
        let mut given = Overrides::new(environment(), self.set.clone());
        // First, because a stage without practice is left out with what it names.
        if let Some(agent) = &self.from {
            let cards = self.locations.cards(Some(&self.file));
            given =
                from::overrides((source, &cards, &FileDigests::load(store)), given, agent, &self.locations)?;
        }
        let PracticeArgs { iterations, no_start } = self.practice;
        given.set.extend(Practice { iterations, no_start }.set(source, &given)?);
        Ok(given)
    }

    /// The same options for another process, without the locations. Overrides of the environment are options there.
    pub fn options(&self, overrides: &Overrides) -> Vec<String> {
        let set = overrides.spelled();
        let options = [("--set", &set), ("--resample", &self.resample), ("--until", &self.until)];
        let words = options.iter().flat_map(|(name, values)| values.iter().flat_map(|value| [*name, value]));
        words.map(str::to_owned).collect()
    }
}

/// The environment variables that may override something. Values that are not UTF-8 are converted lossily, so
/// that error messages can show them.
///
/// What a stage's program is given is ignored within it, as `MCPRL_SEED`: a run started there uses its run file's
/// seed.
pub fn environment() -> impl Iterator<Item = (String, String)> {
    let within_a_stage = std::env::var_os("MCPRL_STAGE").is_some();
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(move |(name, _)| !(within_a_stage && is_of_a_stage(name)))
}

fn is_of_a_stage(variable: &str) -> bool {
    variable == "MCPRL_SEED"
        || ["MCPRL_INPUT_", "MCPRL_OUTPUT_"].iter().any(|prefix| variable.starts_with(prefix))
}
