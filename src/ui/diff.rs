//! The differences of two runs as a page: seeds and overrides, verdicts, then keys and metrics. Iterations of
//! a loop are folded together.

use std::collections::BTreeMap;

use super::{closing::joined, history::success, human, table};
use crate::{
    exec::history::{Change, Difference, RunHistory},
    hash::Digest,
    plan::{InLoop, RerunReason},
};

/// Width of the page in columns.
const COLUMNS: usize = 100;
/// Most iterations of a loop to show: the first, the last and some between.
const ITERATIONS: usize = 8;
/// Most metrics of a loop to show.
const METRICS: usize = 3;

/// A run as one side of the page.
pub struct Side<'r> {
    pub run: &'r RunHistory,
    /// The verdicts of its policy comparisons, as text.
    pub verdicts: Vec<String>,
}

/// The page. `alike` is the number of identical stages.
pub fn diff_text(old: &Side<'_>, new: &Side<'_>, found: &[Difference], alike: usize) -> String {
    let mut text = format!("{} → {}\n{}", old.run.id, new.run.id, overrides(old.run, new.run));
    let mut results = Vec::new();
    for (which, side) in [("old", old), ("new", new)] {
        let headline =
            side.run.headline.as_ref().map(|found| format!("success {}  ({})", success(found), found.stage));
        let verdicts = side.verdicts.iter().flat_map(|verdict| verdict.lines()).map(str::to_owned);
        results.extend(headline.into_iter().chain(verdicts).map(|line| (which.to_owned(), line)));
    }
    text += &table::section("verdict", results, COLUMNS);
    let only = |is_old: bool| {
        joined(found.iter().filter_map(|difference| match difference {
            Difference::OnlyOld { id } if is_old => Some(id.as_str()),
            Difference::OnlyNew { id } if !is_old => Some(id.as_str()),
            _ => None,
        }))
    };
    for (title, stages) in [("only in the old run", only(true)), ("only in the new run", only(false))] {
        let rows = [(String::new(), stages)].into_iter().filter(|(_, stages)| !stages.is_empty());
        text += &table::section(title, rows.collect(), COLUMNS);
    }
    text += &table::section("keys", keys(found), COLUMNS);
    text += &table::section("other outputs under the same key", outputs(found), COLUMNS);
    let (alone, loops) = metrics(found);
    text += &table("metrics", &["stage", "metric", "old", "new", "change"], alone);
    for (name, iterations) in &loops {
        text += &iterations_text(name, iterations);
    }
    text + &format!("\n{alike} alike, {} different; `--json` has all of it\n", found.len())
}

/// Seeds and overrides that differ.
fn overrides(old: &RunHistory, new: &RunHistory) -> String {
    let mut text = String::new();
    if let (Some(one), Some(other)) = (old.seed, new.seed)
        && one != other
    {
        text += &format!("seed {one} → {other}\n");
    }
    for (which, run, other) in [("old", old, new), ("new", new, old)] {
        for set in run.set.iter().filter(|set| !other.set.contains(set)) {
            text += &format!("--set {set}  in the {which} run only\n");
        }
    }
    text
}

/// Each cause with its stages. Causes that follow from other stages come last, without their digests.
fn keys(found: &[Difference]) -> Vec<(String, String)> {
    let mut causes: Vec<(String, bool, Vec<&str>)> = Vec::new();
    for difference in found {
        let Difference::Changed { id, key, .. } = difference else { continue };
        for reason in key {
            let (cause, follows) = match reason {
                RerunReason::Input { role, name, .. } if role == name => (format!("inputs.{role}"), true),
                RerunReason::Input { role, name, .. } => (format!("inputs.{role}.{name}"), true),
                reason => (reason.to_string(), false),
            };
            match causes.iter_mut().find(|(other, ..)| *other == cause) {
                Some((.., stages)) => stages.push(id),
                None => causes.push((cause, follows, vec![id])),
            }
        }
    }
    causes.sort_by_key(|(_, follows, _)| *follows);
    causes.into_iter().map(|(cause, _, stages)| (cause, joined(stages))).collect()
}

fn outputs(found: &[Difference]) -> Vec<(String, String)> {
    let short = |digest: Option<Digest>| digest.map_or("none".to_owned(), |digest| digest.short());
    let of = |difference: &Difference| {
        let Difference::Changed { id, outputs, .. } = difference else { return Vec::new() };
        let row = |Change { name, old, new }: &Change<Digest>| {
            (format!("{id}.{name}"), format!("{} → {}", short(*old), short(*new)))
        };
        outputs.iter().map(row).collect()
    };
    found.iter().flat_map(of).collect()
}

/// Metrics of each iteration, by name.
type Iterations<'d> = BTreeMap<u32, BTreeMap<&'d str, &'d Change<f64>>>;

/// Rows of the stages outside loops, and iterations by loop.
fn metrics(found: &[Difference]) -> (Vec<Vec<String>>, BTreeMap<&str, Iterations<'_>>) {
    let (mut alone, mut loops) = (Vec::new(), BTreeMap::<&str, Iterations<'_>>::new());
    for difference in found {
        let Difference::Changed { id, metrics, .. } = difference else { continue };
        for change in metrics {
            match InLoop::parse(id) {
                Some(InLoop { name, iteration, .. }) => {
                    let all = loops.entry(name).or_default().entry(iteration).or_default();
                    all.insert(&change.name, change);
                }
                None => {
                    let [old, new, by] = cells(change);
                    alone.push(vec![id.clone(), change.name.clone(), old, new, by]);
                }
            }
        }
    }
    (alone, loops)
}

/// The old value, the new value and the change.
fn cells(change: &Change<f64>) -> [String; 3] {
    let shown =
        |value: Option<f64>| value.map_or("none".to_owned(), |value| human::metric(&change.name, value));
    let by = match (change.old, change.new) {
        (Some(old), Some(new)) => {
            let sign = if new >= old { "+" } else { "−" };
            format!("{sign}{}", human::metric(&change.name, (new - old).abs()).trim_start_matches('+'))
        }
        _ => String::new(),
    };
    [shown(change.old), shown(change.new), by]
}

/// A loop's headline metrics, or else its first metrics by name, over its iterations.
fn iterations_text(name: &str, iterations: &Iterations<'_>) -> String {
    let has = |metric: &str| iterations.values().any(|metrics| metrics.contains_key(metric));
    let mut shown: Vec<&str> = human::headlines().filter(|metric| has(metric)).take(METRICS).collect();
    if shown.is_empty() {
        let mut all: Vec<&str> = iterations.values().flat_map(|metrics| metrics.keys().copied()).collect();
        all.sort_unstable();
        all.dedup();
        shown = all.into_iter().take(METRICS).collect();
    }
    let numbers: Vec<u32> = iterations.keys().copied().collect();
    let row = |number: &u32| {
        let cell = |metric: &&str| match iterations[number].get(*metric) {
            Some(change) => {
                let [old, new, _] = cells(change);
                format!("{old} → {new}")
            }
            None => "alike".to_owned(),
        };
        std::iter::once(number.to_string()).chain(shown.iter().map(cell)).collect()
    };
    let picked = picked(&numbers);
    let rows: Vec<Vec<String>> = picked.iter().map(row).collect();
    let title = match picked.len() < numbers.len() {
        true => format!("{name}: {} of {} iterations that differ", picked.len(), numbers.len()),
        false => name.to_owned(),
    };
    let heading: Vec<&str> = std::iter::once("iteration").chain(shown.iter().copied()).collect();
    table(&title, &heading, rows)
}

/// The first, the last and some between, evenly spaced.
fn picked(numbers: &[u32]) -> Vec<u32> {
    if numbers.len() <= ITERATIONS {
        return numbers.to_vec();
    }
    let last = numbers.len() - 1;
    (0..ITERATIONS).map(|index| numbers[index * last / (ITERATIONS - 1)]).collect()
}

fn table(title: &str, heading: &[&str], rows: Vec<Vec<String>>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let heading = heading.iter().map(|&name| name.to_owned()).collect();
    let all: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    let widths = table::widths(&all);
    let lines = all.iter().map(|row| format!("  {}\n", table::row(row, &widths)));
    format!("\n{title}\n") + &lines.collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::RunState;

    fn run(id: &str, seed: u64) -> RunHistory {
        RunHistory {
            id: id.into(),
            state: RunState::Finished,
            began_ms: None,
            ended_ms: None,
            seconds: 1.0,
            versions: Vec::new(),
            machines: Vec::new(),
            loop_results: BTreeMap::new(),
            seed: Some(seed),
            set: Vec::new(),
            resample: Vec::new(),
            until: Vec::new(),
            unreadable: None,
            headline: None,
            training: None,
            nodes: Vec::new(),
        }
    }

    fn changed(id: &str, key: Vec<RerunReason>, metrics: &[(&str, f64, f64)]) -> Difference {
        let change = |(name, old, new): &(&str, f64, f64)| Change {
            name: (*name).to_owned(),
            old: Some(*old),
            new: Some(*new),
        };
        let metrics = metrics.iter().map(change).collect();
        Difference::Changed { id: id.to_owned(), key, metrics, outputs: Vec::new() }
    }

    #[test]
    fn a_long_loop_is_compared_on_one_page() {
        let seed = || RerunReason::Field { name: "seed".into(), old: Some(1.into()), new: Some(2.into()) };
        let input = |role: &str, of: u32| RerunReason::Input {
            role: role.into(),
            name: role.into(),
            old: None,
            new: Some(Digest::of(&of.to_le_bytes())),
            from: None,
        };
        let mut found = vec![changed("base", vec![seed()], &[("loss", 0.5, 0.25)])];
        for turn in 1..=32 {
            let rate = f64::from(turn) / 40.0;
            let success = [("success", rate, rate + 0.1), ("turns", 3.5, 3.25)];
            let rollout = format!("train[{turn:04}]/rollout");
            found.push(changed(&rollout, vec![input("policy", turn), seed()], &success));
            found.push(changed(&format!("train[{turn:04}]/update"), vec![input("policy", turn)], &[]));
        }
        found.push(changed("exam", vec![input("policies", 1)], &[("all.gain", 0.5, 0.625)]));
        let (old, new) = (run("old", 1), run("new", 2));
        let side = |run, verdict: &str| Side { run, verdicts: vec![verdict.to_owned()] };
        let text = diff_text(&side(&old, "trained: a gain"), &side(&new, "trained: no gain"), &found, 3);
        insta::assert_snapshot!(text, @r"
        old → new
        seed 1 → 2

        verdict
          old  trained: a gain
          new  trained: no gain

        keys
          seed 1 → 2       base, train[0001..0032]/rollout
          inputs.policy    train[0001..0032]/rollout, train[0001..0032]/update
          inputs.policies  exam

        metrics
          stage  metric    old           new           change
          base   loss      0.500         0.250         −0.250
          exam   all.gain  +50.0 points  +62.5 points  +12.5 points

        train: 8 of 32 iterations that differ
          iteration  success
          1          3 % → 13 %
          5          13 % → 23 %
          9          23 % → 33 %
          14         35 % → 45 %
          18         45 % → 55 %
          23         58 % → 68 %
          27         68 % → 78 %
          32         80 % → 90 %

        3 alike, 66 different; `--json` has all of it
        ");
    }
}
