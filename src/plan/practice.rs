//! How much of a run practises: options that stand for several values of a run file, and what a run without practice leaves out.

use figment::value::Value;

use super::{
    PlanError, Source,
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
    pub fn set(self, source: &Source, overrides: &Overrides) -> Result<Vec<String>, PlanError> {
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

/// Paths of values, each with another value or none if it is left out.
type Changes = Vec<(String, Option<Value>)>;

impl Layers {
    /// What a loop of no iterations leaves out: itself, and the stage that decides whether it begins.
    pub(super) fn unpractised(&self) -> Changes {
        let loops = self.top().field("loop").into_iter().flat_map(Entry::into_values);
        let idle = loops.filter(|each| each.field("iterations").is_some_and(|count| count.json() == 0));
        idle.filter_map(|each| self.without(&each)).flatten().collect()
    }

    /// Leaves out a loop with the stage that its `if` asks. That stage also chooses the policy that the loop starts from: where the
    /// loop's policy is compared with others, the last of those that the stage chooses among takes its place. None if anything
    /// else reads the loop or the stage.
    fn without(&self, each: &Entry<'_>) -> Option<Changes> {
        let asked = each.field("if")?.field("metric")?.text()?.rsplit_once('.')?.0;
        let stage = self.top().field("stages")?.field(asked)?;
        let is_policy = |text: &str| text == asked || text.strip_prefix(asked) == Some(".policy");
        each.field("carry")?.field("policy")?.text().filter(|text| is_policy(text))?;
        let policies = stage.fields()?.into_values().find_map(|table| table.fields())?;
        let last = policies.into_values().max_by_key(Entry::order)?.value.clone();
        let name = each.path.strip_prefix("loop.")?;
        let result = format!("{name}.policy");
        let is_of = |text: &str| {
            let of = |prefix: &str| text.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
            text == asked || of(asked) || of(name)
        };
        let mut changes = vec![(each.path.clone(), None), (stage.path.clone(), None)];
        let inside = format!("{}.", each.path);
        for reader in self.stages().filter(|reader| reader.path != stage.path) {
            if reader.path.starts_with(&inside) {
                continue;
            }
            for field in reader.into_values() {
                let table: Vec<Entry<'_>> = field.clone().into_values().collect();
                if field.text().is_some_and(is_of) {
                    return None;
                }
                for entry in table.iter().filter(|entry| entry.text().is_some_and(is_of)) {
                    let text = entry.text().filter(|text| is_policy(text) || *text == result);
                    text?;
                    let is_there = table.iter().any(|other| other.value.as_str() == last.as_str());
                    changes.push((entry.path.clone(), (!is_there).then(|| last.clone())));
                }
            }
        }
        Some(changes)
    }
}
