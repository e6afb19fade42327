//! How much of a run practises: options that stand for several values of a run file.

use super::{
    PlanError, RunFile,
    layers::{Entry, Layers, Overrides},
};

/// The stage that learns from reference solutions before the loop, in `standard`.
const START: &str = "start";

/// What `--iterations` and `--no-start` change.
#[derive(Debug, Clone, Copy, Default)]
pub struct Practice {
    /// Of the run file's loop; 0 for none.
    pub iterations: Option<u32>,
    pub no_start: bool,
}

impl Practice {
    /// As overrides, in the syntax of `--set`.
    ///
    /// # Errors
    /// If the run file has no loop, or several, or no stage `start`.
    pub fn set(self, source: &RunFile, overrides: &Overrides) -> Result<Vec<String>, PlanError> {
        let (layers, _) = Layers::whole(source, overrides);
        let mut set = Vec::new();
        if let Some(iterations) = self.iterations {
            let loops = layers.top().field("loop").and_then(|loops| loops.fields()).unwrap_or_default();
            let names: Vec<String> = loops.into_keys().map(str::to_owned).collect();
            let [name] = names.as_slice() else { return Err(PlanError::NotOneLoop { names }) };
            set.push(format!("loop.{name}.iterations={iterations}"));
        }
        if self.no_start {
            let stages: Vec<Entry<'_>> = layers.stages().collect();
            let own = format!("stages.{START}");
            if !stages.iter().any(|stage| stage.path == own) {
                return Err(PlanError::NoStart);
            }
            set.push(format!("{own}=false"));
            let names_start = |entry: &Entry<'_>| entry.text().is_some_and(|text| text == START);
            let tables = stages.iter().filter_map(Entry::fields).flat_map(|fields| fields.into_values());
            let named = tables.filter_map(|table| table.fields()).flat_map(|fields| fields.into_values());
            set.extend(named.filter(names_start).map(|entry| format!("{}=false", entry.path)));
        }
        Ok(set)
    }
}
