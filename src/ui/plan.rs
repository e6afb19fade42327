//! A plan as text: one line for each stage; iterations of a loop with the same status share a line.

use std::collections::BTreeSet;

use super::human;
use crate::plan::{
    InLoop, NoEstimate, NodeStatus, PlanReport, Problem, Rerun, RerunReason, Reused, Status, stage_name,
};

/// The report, line by line, with totals at the end.
pub fn plan_text(report: &PlanReport) -> String {
    let mut rows: Vec<Row> = Vec::new();
    for node in &report.nodes {
        let row = Row::of(node);
        // Stages of a loop alternate, so the row to extend may be several rows above.
        match rows.iter_mut().rev().take(32).find(|earlier| earlier.continues(&row)) {
            Some(earlier) => {
                earlier.last = row.last;
                earlier.seconds = earlier.seconds.zip(row.seconds).map(|(one, other)| one + other);
            }
            None => rows.push(row),
        }
    }
    let names: Vec<String> = rows.iter().map(Row::name).collect();
    let wide = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let kind_wide = rows.iter().map(|row| row.kind.len()).max().unwrap_or(0);
    let mut times: Vec<String> = rows.iter().map(|row| row.time() + "  ").collect();
    if rows.iter().all(|row| row.seconds.is_none()) {
        times.iter_mut().for_each(String::clear);
    }
    let time_wide = times.iter().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for ((row, name), time) in rows.iter().zip(&names).zip(&times) {
        let line =
            format!("{:<7} {name:<wide$}  {:<kind_wide$}  {time:<time_wide$}{}", row.what, row.kind, row.why);
        text += &format!("{}\n", line.trim_end());
    }
    let count = |which: fn(&Status) -> bool| report.nodes.iter().filter(|node| which(&node.status)).count();
    text += &format!(
        "{}: {} cached, {} to run, {} that may run, {} skipped\n",
        report.name,
        count(|status| matches!(status, Status::Cached { .. })),
        count(|status| matches!(status, Status::Run { .. } | Status::Waits { rerun: Rerun::Will, .. })),
        count(|status| {
            use Rerun::{IfInputsChange, UnlessLoopEnds};
            matches!(status, Status::Waits { rerun: IfInputsChange | UnlessLoopEnds, .. })
        }),
        count(|status| matches!(status, Status::Skipped)),
    );
    text + &ahead_text(report) + &memory_text(report) + &remarks_text(report)
}

/// A line for each remark, with its stage.
fn remarks_text(report: &PlanReport) -> String {
    let line = |remark: &Problem| match &remark.stage {
        Some(stage) => format!("{stage}: {}\n", remark.cause),
        None => format!("{}\n", remark.cause),
    };
    report.remarks.iter().map(line).collect()
}

/// The totals: what will run, and what the cache saves.
fn ahead_text(report: &PlanReport) -> String {
    let mut text = String::new();
    if report.ahead.seconds > 0.0 {
        let without = if report.unknown.is_empty() { "" } else { ", without the stages below" };
        text += &format!("estimated cost{without}: about {}", human::cost(&report.ahead));
        if report.clock < 0.95 * report.ahead.seconds {
            text += &format!("; about {} in all, because stages overlap", human::seconds(report.clock));
        }
        if report.nodes.iter().filter_map(|node| node.cost.as_ref()).any(|cost| !cost.is_alike()) {
            text += " (*: measured with other parameters)";
        }
        text.push('\n');
    }
    if let Some(starts) = &report.server_starts {
        let more = if report.ahead.seconds > 0.0 { "on top of that, " } else { "" };
        text += &format!("{more}{starts} of CPU time ([server] `state`)\n");
    }
    for (why, because) in [
        (NoEstimate::NoRecord, "no earlier run"),
        (NoEstimate::OtherModel, "earlier runs used another model"),
        (NoEstimate::NoModel, "unknown until the model is downloaded"),
    ] {
        let stages = report.unknown.iter().filter(|unknown| unknown.why == why);
        let stages: Vec<&str> = stages.map(|unknown| unknown.stage.as_str()).collect();
        if !stages.is_empty() {
            text += &format!("no estimate for {}: {because}\n", stages.join(", "));
        }
    }
    let runs =
        report.nodes.iter().any(|node| matches!(node.status, Status::Run { .. } | Status::Waits { .. }));
    let is_queried = |node: &NodeStatus| matches!(&node.status, Status::Run { reasons, .. } if reasons.contains(&RerunReason::ServerQueried));
    if report.nodes.iter().any(is_queried) {
        text += "assumes the server answers as it did last time, which `mcprl doctor` checks; if not, the stages that depend on it rerun\n";
    }
    if let Some(remote) = report.unqueried.as_ref().filter(|_| runs) {
        text += &format!("the shared cache {remote} was not queried; results in it will be fetched\n");
    }
    if report.saved.seconds > 0.0 {
        text += &format!("the cache saves {}\n", human::cost(&report.saved));
    }
    text
}

/// The peak memory of each stage that uses the engine; a loop's stage appears once.
fn memory_text(report: &PlanReport) -> String {
    // Name, bytes, and whether the KV cache is limited to half of the free memory.
    let (mut most, mut unknown) = (Vec::<(String, usize, bool)>::new(), Vec::<String>::new());
    for (node, memory) in report.nodes.iter().filter_map(|node| Some((node, node.memory.as_ref()?))) {
        let name = stage_name(&node.id);
        let Some(peak) = memory.peak else {
            let entry = format!("{name} ({})", memory.unknown.unwrap_or("not estimated"));
            if !unknown.contains(&entry) {
                unknown.push(entry);
            }
            continue;
        };
        let row = (name, peak, memory.halved);
        match most.iter_mut().find(|(known, ..)| *known == row.0) {
            Some(known) if peak > known.1 => *known = row,
            Some(_) => {}
            None => most.push(row),
        }
    }
    let mut text = String::new();
    if !most.is_empty() {
        let entry = |(name, peak, halved): &(String, usize, bool)| {
            let half = if *halved { " (KV cache: half of the free memory)" } else { "" };
            format!("{name} {}{half}", human::bytes(*peak as u64))
        };
        let most: Vec<_> = most.iter().map(entry).collect();
        let memories = || report.nodes.iter().filter_map(|node| node.memory.as_ref());
        let dtypes: BTreeSet<&str> =
            memories().flat_map(|memory| &memory.dtypes).map(|dtype| dtype.name()).collect();
        let weights = match dtypes.is_empty() {
            true => String::new(),
            false => format!("; weights in {}", Vec::from_iter(dtypes).join(" and ")),
        };
        text += &format!("estimated memory: {}{weights}\n", most.join(", "));
        let held = memories().map(|memory| memory.held).max().unwrap_or(0);
        if held > 0 {
            let held = human::bytes(held as u64);
            text += &format!("plus up to {held} of models kept loaded for other stages, if there is room\n");
        }
    }
    if !unknown.is_empty() {
        text += &format!("no memory estimate for {}\n", unknown.join(", "));
    }
    text
}

struct Row<'a> {
    what: &'static str,
    kind: &'a str,
    why: String,
    /// Loop, first iteration and stage.
    turn: Option<(&'a str, u32, &'a str)>,
    last: u32,
    id: &'a str,
    /// Time that the stage will take, or that the cache saves.
    seconds: Option<f64>,
    /// The time was measured with other parameters.
    differs: bool,
}

impl<'a> Row<'a> {
    fn of(node: &'a NodeStatus) -> Self {
        let turn = node.turn.as_ref().map(|(name, iteration)| {
            (name.as_str(), *iteration, node.id.rsplit('/').next().unwrap_or_default())
        });
        let (what, mut why) = match &node.status {
            Status::Cached { .. } => ("cached", String::new()),
            Status::Run { reasons, .. } => ("run", because(reasons)),
            Status::Waits { on, rerun, reasons } => {
                let on = waits_on(on, turn);
                match rerun {
                    Rerun::Will if reasons.is_empty() => ("run", format!("after {on}")),
                    Rerun::Will => ("run", format!("after {on}: {}", because(reasons))),
                    Rerun::IfInputsChange => ("may run", format!("if {on} changes")),
                    Rerun::UnlessLoopEnds => ("may run", format!("after {on}, unless its loop ends before")),
                }
            }
            Status::Skipped => ("skipped", "its loop has ended".into()),
        };
        if let Some(Reused { rows, of }) = node.reused {
            why += &format!("; {rows} of {of} episodes are reused");
        }
        let shards = node.shards.map_or(String::new(), |shards| format!(" in {shards} shards"));
        if let Some(executor) = &node.executor {
            why += &format!("; on {executor}{shards}");
        }
        let last = turn.map_or(0, |(_, iteration, _)| iteration);
        let seconds = node.cost.as_ref().map(|estimate| estimate.cost.seconds);
        let differs = node.cost.as_ref().is_some_and(|estimate| !estimate.is_alike());
        Self { what, kind: &node.kind, why, turn, last, id: &node.id, seconds, differs }
    }

    fn continues(&self, next: &Row<'_>) -> bool {
        match (self.turn, next.turn) {
            (Some((name, _, stage)), Some((next_name, iteration, next_stage))) => {
                (name, stage, self.last + 1) == (next_name, next_stage, iteration)
                    && (self.what, &self.why) == (next.what, &next.why)
            }
            _ => false,
        }
    }

    /// `~12.3 s` to run, `31 × ~1.5 s` for that many iterations, `~12.3 s*` measured with other parameters,
    /// `(12.3 s)` saved, `?` without an estimate.
    fn time(&self) -> String {
        let count = self.turn.map_or(1, |(_, first, _)| self.last - first + 1);
        let each = if count > 1 { format!("{count} × ") } else { String::new() };
        match (self.what, self.seconds.map(|seconds| seconds / f64::from(count))) {
            ("skipped", _) => String::new(),
            ("cached", Some(seconds)) => format!("({each}{})", human::seconds(seconds)),
            (_, Some(seconds)) => {
                format!("{each}~{}{}", human::seconds(seconds), if self.differs { "*" } else { "" })
            }
            (_, None) => "?".into(),
        }
    }

    fn name(&self) -> String {
        match self.turn {
            Some((name, first, stage)) if first != self.last => {
                format!("{name}[{first:04}..{:04}]/{stage}", self.last)
            }
            _ => self.id.to_owned(),
        }
    }
}

fn because(reasons: &[RerunReason]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The names of the stages that a stage waits for. Within a loop, names in the same or the previous iteration
/// have no number.
fn waits_on(on: &[String], turn: Option<(&str, u32, &str)>) -> String {
    let mut names: Vec<String> = on
        .iter()
        .map(|id| match (InLoop::parse(id), turn) {
            (Some(InLoop { name, iteration, stage }), Some((own, current, _))) if own == name => {
                if iteration == current { stage.to_owned() } else { format!("previous {stage}") }
            }
            _ => stage_name(id),
        })
        .collect();
    // Several iterations before are all `previous`; the last counts.
    for at in (0..names.len()).rev() {
        if names[at + 1..].contains(&names[at]) {
            names.remove(at);
        }
    }
    names.join(", ")
}
