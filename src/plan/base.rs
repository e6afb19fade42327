//! `model = "…"` at the top of a run file: short for a stage named `base` of kind `model`.
//!
//! It is expanded before the stages are parsed, so its key equals that of the stage written in full.

use std::collections::BTreeMap;

use super::{
    layers::{Entry, RawValue},
    reader::{Part, Reader},
};
use crate::stage::model;

/// The top-level key.
pub const KEY: &str = "model";
/// The stage it expands to.
pub const STAGE: &str = "base";

/// Whether the run file names its model at the top.
pub fn is_short(top: &Entry) -> bool {
    matches!(&top.value, RawValue::Table(sections) if sections.contains_key(KEY))
}

/// Expands `model` into the stage. The stage's locations point at `model`.
pub fn written_out(reader: &Reader<'_>, mut top: Entry) -> Entry {
    let RawValue::Table(sections) = &mut top.value else { return top };
    let Some(from) = sections.get(KEY).cloned() else { return top };
    let at = |path: &str, value| Entry { path: path.into(), value, origin: from.origin.clone() };
    let stages =
        sections.entry("stages".into()).or_insert_with(|| at("stages", RawValue::Table(BTreeMap::new())));
    let RawValue::Table(stages) = &mut stages.value else { return top };
    let path = format!("stages.{STAGE}");
    if let Some(stage) = stages.get(STAGE) {
        let message = format!("`{KEY}` makes a stage named \"{STAGE}\", and here is another");
        let hint = format!("take out one of them, or give this one another name than \"{STAGE}\"");
        reader.wrong::<()>(stage, Part::Key, message, Some(hint));
        return top;
    }
    let kind = at(&format!("{path}.kind"), RawValue::Text(model::KIND.into()));
    let fields = BTreeMap::from([("kind".into(), kind), ("from".into(), from.clone())]);
    stages.insert(STAGE.into(), at(&path, RawValue::Table(fields)));
    top
}
