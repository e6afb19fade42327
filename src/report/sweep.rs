//! Runs of one run file that differ in seeds and at most one parameter: what each value of it gives.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::{
    compare::NotComparable,
    parts::is_seed,
    replicates::{Replicates, between, replicates},
};
use crate::{eval::Difference, hash::Digest, view::Run};

/// Most sweeps that are shown.
const SWEEPS: usize = 4;

/// Runs that differ in seeds and at most one parameter.
#[derive(Debug, Clone, Serialize)]
pub struct Sweep {
    /// Whole name of the parameter; none if the runs differ in seeds alone.
    pub parameter: Option<String>,
    /// What all of them changed.
    pub common: Vec<String>,
    /// The policy that [`SweptValue::to_first`] is about, and its baseline.
    pub policy: String,
    pub baseline: Option<String>,
    pub mode: String,
    /// Tasks that all runs have played.
    pub tasks: u32,
    pub values: Vec<SweptValue>,
}

/// The runs of one value.
#[derive(Debug, Clone, Serialize)]
pub struct SweptValue {
    /// None where no run sets it: as in the run file.
    pub value: Option<String>,
    pub runs: Vec<String>,
    /// Each policy over these runs.
    pub replicates: Replicates,
    /// The last policy's difference to that of the first value.
    pub to_first: Option<Difference>,
}

/// What a run changed, but for seeds.
type Changes = BTreeMap<String, String>;

/// Runs that differ in seeds alone, each with its seeds.
type Seeded<'r> = Vec<(Changes, &'r Run)>;

/// One notation for each number.
fn canonical(value: &str) -> String {
    match value.parse::<f64>() {
        Ok(number) if number != 0.0 && number.abs() < 0.01 => format!("{number:e}"),
        Ok(number) if number.is_finite() => number.to_string(),
        _ => value.to_owned(),
    }
}

/// What a run changed: its parameters, and its seeds.
fn changes(run: &Run) -> (Changes, Changes) {
    let pairs = run.set.iter().filter_map(|set| set.split_once('='));
    let pairs = pairs.map(|(name, value)| (name.trim().to_owned(), canonical(value.trim())));
    let (mut seeds, changed): (Changes, Changes) = pairs.partition(|(name, _)| is_seed(name));
    seeds.insert("seed".into(), run.seed.map_or_else(String::new, |seed| seed.to_string()));
    (changed, seeds)
}

/// The parameters of a run's stages but for seeds and those that some run changed. They say what files the run file names.
fn fixed(run: &Run, changed: &BTreeSet<String>) -> String {
    let first =
        run.stages.iter().filter(|stage| stage.iteration.as_ref().is_none_or(|(_, number)| *number == 1));
    let params =
        first.flat_map(|stage| stage.params.iter().map(move |(name, value)| ((&stage.name, name), value)));
    let fixed = params.filter(|((_, name), _)| !is_seed(name) && !changed.contains(*name));
    fixed.map(|((stage, name), value)| format!("{stage} {name} {value}\n")).collect()
}

/// The key of the comparison of its policies.
fn exam_key(run: &Run) -> Option<Digest> {
    run.writers("verdict").last().and_then(|stage| stage.key)
}

/// What runs must have in common: the run file, what it names, and what they changed.
type Common<'r> = (Option<&'r str>, String, Changes);

/// Runs by value of a parameter, the value that no run sets first.
struct Group<'r> {
    parameter: Option<String>,
    common: Changes,
    values: Vec<(Option<String>, Vec<&'r Run>)>,
}

impl Group<'_> {
    fn runs(&self) -> usize {
        self.values.iter().map(|(_, runs)| runs.len()).sum()
    }
}

/// The groups of runs, those with most values and runs first. Of runs that differ in nothing the newest counts.
fn groups<'r>(runs: &[&'r Run]) -> Vec<Group<'r>> {
    let last_of = |name: &String| name.rsplit('.').next().unwrap_or_default().to_owned();
    let changed_by_some: BTreeSet<String> =
        runs.iter().flat_map(|run| changes(run).0.into_keys()).map(|name| last_of(&name)).collect();
    let mut by_changes: BTreeMap<Common<'r>, Seeded<'r>> = BTreeMap::new();
    for run in runs {
        let (changed, seeds) = changes(run);
        let equal =
            by_changes.entry((run.text.as_deref(), fixed(run, &changed_by_some), changed)).or_default();
        // A run whose exam came from another one is that one.
        let is_same = |other: &Changes, older: &Run| {
            *other == seeds || exam_key(older).is_some_and(|key| Some(key) == exam_key(run))
        };
        match equal.iter_mut().find(|(other, older)| is_same(other, older)) {
            Some((_, older)) => *older = run,
            None => equal.push((seeds, run)),
        }
    }
    let names: BTreeSet<&String> = by_changes.keys().flat_map(|(_, _, changed)| changed.keys()).collect();
    let mut found: Vec<Group<'r>> = Vec::new();
    for name in names {
        let mut swept: BTreeMap<_, Vec<(Option<String>, Vec<&'r Run>)>> = BTreeMap::new();
        for ((text, fixed, changed), runs) in &by_changes {
            let mut common = changed.clone();
            let value = common.remove(name);
            swept.entry((text, fixed, common)).or_default().push((value, runs_of(runs)));
        }
        for ((.., common), mut values) in swept {
            if values.len() > 1 {
                values.sort_by(|(one, _), (other, _)| by_value(one.as_deref(), other.as_deref()));
                found.push(Group { parameter: Some(name.clone()), common, values });
            }
        }
    }
    for ((.., changed), runs) in &by_changes {
        let is_swept = |run: &&Run| {
            let mut all = found.iter().flat_map(|group| &group.values).flat_map(|(_, runs)| runs);
            all.any(|swept| std::ptr::eq(*swept, *run))
        };
        let runs = runs_of(runs);
        if runs.len() > 1 && !runs.iter().any(is_swept) {
            let values = vec![(None, runs)];
            found.push(Group { parameter: None, common: changed.clone(), values });
        }
    }
    found.sort_by_key(|group| std::cmp::Reverse((group.values.len(), group.runs())));
    found.truncate(SWEEPS);
    found
}

fn runs_of<'r>(seeded: &Seeded<'r>) -> Vec<&'r Run> {
    seeded.iter().map(|(_, run)| *run).collect()
}

/// Numbers by size, before texts; what is not set first.
fn by_value(one: Option<&str>, other: Option<&str>) -> std::cmp::Ordering {
    let number = |value: Option<&str>| value.and_then(|value| value.parse::<f64>().ok());
    match (number(one), number(other)) {
        (Some(one), Some(other)) => one.total_cmp(&other),
        (None, None) => one.cmp(&other),
        (a, b) if one.is_some() && other.is_some() => b.is_some().cmp(&a.is_some()),
        _ => one.is_some().cmp(&other.is_some()),
    }
}

/// What seeds and parameters do in these runs, oldest first. Runs without an exam are left out.
pub fn sweeps(runs: &[Run]) -> Vec<Sweep> {
    let examined: Vec<&Run> = runs.iter().filter(|run| run.headline.is_some()).collect();
    groups(&examined).iter().filter_map(|group| sweep(group).ok()).collect()
}

fn sweep(group: &Group<'_>) -> Result<Sweep, NotComparable> {
    let compared = between(&group.values.iter().map(|(_, runs)| runs.as_slice()).collect::<Vec<_>>())?;
    let mut values = Vec::new();
    for ((value, runs), to_first) in group.values.iter().zip(compared.differences) {
        values.push(SweptValue {
            value: value.clone(),
            runs: runs.iter().map(|run| run.id.clone()).collect(),
            replicates: replicates(runs.iter().copied())?,
            to_first,
        });
    }
    Ok(Sweep {
        parameter: group.parameter.clone(),
        common: group.common.iter().map(|(name, value)| format!("{name}={value}")).collect(),
        policy: compared.policy,
        baseline: compared.baseline,
        mode: compared.mode,
        tasks: compared.tasks,
        values,
    })
}
