//! Checks of scenarios before they are generated.

use std::{io::Read as _, path::Path};

use super::{Params, ScenarioError, Source, file};
use crate::{
    data::Scenario,
    stage::prospect::{Foreseen, Outlook, Prospect, Tasks},
};

/// Most bytes of a task file that are checked.
const LOOKED_AT: u64 = 1 << 20;

/// Checks the declaration of families, or the tasks.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    let Some(params) = prospect.params::<Params>(&mut outlook) else { return outlook };
    match (params.source, &params.families, &params.file) {
        (Source::Grounded, None, _) => {
            outlook.object("source", ScenarioError::NoParam { origin: "grounded", param: "families" });
        }
        // Its outcome is not predicted, so a finished stage has nothing to report.
        (Source::Grounded, Some(_), _) if (prospect.finished)("train").is_some() => {}
        (Source::Grounded, Some(path), _) => _ = outlook.take("families", prospect.check_families(path)),
        (Source::File, _, None) => {
            outlook.object("source", ScenarioError::NoParam { origin: "file", param: "file" });
        }
        (Source::File, _, Some(path)) => {
            let found = outlook.take("file", tasks(path, params.heldout_share, prospect.seed)).flatten();
            if let Some((train, heldout)) = found {
                return outlook
                    .with("train", Foreseen::Tasks(count(&train, heldout.len())))
                    .with("heldout", Foreseen::Tasks(count(&heldout, train.len())));
            }
        }
    }
    outlook
}

fn count(scenarios: &[Scenario], others: usize) -> Tasks {
    Tasks {
        texts: scenarios.iter().map(|scenario| scenario.task.clone()).collect(),
        answered: scenarios.iter().filter(|scenario| scenario.answer.is_some()).count(),
        solved: scenarios.iter().filter(|scenario| scenario.reference.is_some()).count(),
        others,
    }
}

/// All tasks; none if there are more than are checked.
fn tasks(path: &Path, heldout_share: f64, seed: u64) -> Result<Option<file::Tasks>, ScenarioError> {
    let reading = |source| ScenarioError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(reading)?;
    if file.metadata().map_err(reading)?.len() <= LOOKED_AT {
        return file::load(path, heldout_share, seed).map(Some);
    }
    let mut bytes = Vec::new();
    file.take(LOOKED_AT).read_to_end(&mut bytes).map_err(reading)?;
    bytes.truncate(bytes.iter().rposition(|byte| *byte == b'\n').unwrap_or(0));
    let text = String::from_utf8_lossy(&bytes);
    // A single array is read completely or not at all.
    if !text.is_empty() && !text.trim_start_matches('\u{feff}').trim_start().starts_with('[') {
        file::parse(&text, &file::name(path), heldout_share, seed)?;
    }
    Ok(None)
}
