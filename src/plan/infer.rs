//! Inputs that the run file leaves out, where one stage alone can fill them.
//!
//! A stage of a loop reads the loop's carried value of the type, or what a stage of the same loop writes, and only then what a
//! stage outside loops writes. Where several could be meant, nothing is inferred.

use std::{collections::BTreeMap, sync::Arc};

use super::layers::Entry;
use crate::stage::{Card, card::Role};

/// A stage of the run file with its card.
struct StageEntry<'a> {
    name: &'a str,
    /// Dotted path of the table that it is in.
    within: String,
    entry: Entry<'a>,
    card: &'a Arc<Card>,
}

/// References of inputs that are left out, by the dotted path of the stage and the input's name.
pub fn inputs<'a>(top: &Entry<'a>, kinds: &'a BTreeMap<String, Arc<Card>>) -> Vec<(String, String, String)> {
    let loops: BTreeMap<&str, Entry<'a>> =
        top.field("loop").and_then(|loops| loops.fields()).unwrap_or_default();
    let mut stages: Vec<StageEntry<'a>> = Vec::new();
    let tables = loops.values().filter_map(|each| each.field("stages")).chain(top.field("stages"));
    for table in tables {
        for (name, entry) in table.fields().unwrap_or_default() {
            if let Some(card) = entry.kind().and_then(|kind| kinds.get(kind)) {
                stages.push(StageEntry { name, within: table.path.clone(), entry, card });
            }
        }
    }
    let mut found = Vec::new();
    for stage in &stages {
        let carried = loops.values().find(|each| stage.within == format!("{}.stages", each.path));
        let carried = carried.and_then(|each| each.field("carry"));
        for (name, role) in &stage.card.inputs {
            if role.many || role.optional || stage.entry.field(name).is_some() {
                continue;
            }
            if let Some(reference) = reference(stage, role, carried.as_ref(), &stages) {
                found.push((stage.entry.path.clone(), name.clone(), reference));
            }
        }
    }
    found
}

fn reference(
    stage: &StageEntry<'_>,
    role: &Role,
    carried: Option<&Entry<'_>>,
    stages: &[StageEntry<'_>],
) -> Option<String> {
    let begins_with = |value: &Entry<'_>| {
        let name = value.text().unwrap_or_default().split('.').next().unwrap_or_default();
        let mut outer = stages.iter().filter(|other| other.within == "stages");
        outer.any(|other| other.name == name && writes(other, role))
    };
    let carried = carried.and_then(Entry::fields).unwrap_or_default();
    let carried: Vec<&str> =
        carried.iter().filter(|(_, value)| begins_with(value)).map(|(name, _)| *name).collect();
    match carried[..] {
        [] => {}
        [name] => return Some(format!("@{name}")),
        _ => return None,
    }
    let writes = |other: &&StageEntry<'_>| other.entry.path != stage.entry.path && writes(other, role);
    let inside: Vec<&StageEntry<'_>> =
        stages.iter().filter(writes).filter(|other| other.within == stage.within).collect();
    let outside = || stages.iter().filter(writes).filter(|other| other.within == "stages").collect();
    let writers: Vec<&StageEntry<'_>> = if inside.is_empty() { outside() } else { inside };
    let [writer] = writers[..] else { return None };
    let fitting = writer.card.outputs.iter().filter(|(_, output)| output.artifact == role.artifact);
    let fitting: Vec<&str> = fitting.map(|(name, _)| name.as_str()).collect();
    match fitting[..] {
        [_] => Some(writer.name.to_owned()),
        _ => {
            let preferred = role.prefers.as_deref().filter(|name| fitting.contains(name))?;
            Some(format!("{}.{preferred}", writer.name))
        }
    }
}

fn writes(stage: &StageEntry<'_>, role: &Role) -> bool {
    stage.card.outputs.values().any(|output| output.artifact == role.artifact)
}
