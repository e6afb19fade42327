//! A plan as text: one line for each stage; iterations of a loop with the same status share a line, with all their stages if
//! there is nothing to say of one.

use std::collections::{BTreeMap, BTreeSet};

use super::human;
use crate::plan::{
    InLoop, NoEstimate, NodeStatus, PlanReport, Problem, Rerun, RerunReason, Reused, Status, stage_name,
};

/// The report, line by line, with totals at the end.
pub fn plan_text(report: &PlanReport) -> String {
    let rows = rows(report);
    let names: Vec<String> = rows.iter().map(Row::name).collect();
    let wide = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    let kind_wide = rows.iter().map(|row| row.kind().len()).max().unwrap_or(0);
    let mut times: Vec<String> = rows.iter().map(|row| row.time() + "  ").collect();
    if rows.iter().all(|row| row.seconds.is_none()) {
        times.iter_mut().for_each(String::clear);
    }
    let time_wide = times.iter().map(String::len).max().unwrap_or(0);
    let mut text = String::new();
    for ((row, name), time) in rows.iter().zip(&names).zip(&times) {
        let line = format!(
            "{:<7} {name:<wide$}  {:<kind_wide$}  {time:<time_wide$}{}",
            row.what,
            row.kind(),
            row.why()
        );
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

fn rows(report: &PlanReport) -> Vec<Row<'_>> {
    let mut rows: Vec<Row> = Vec::new();
    let all: Vec<Row> = report.nodes.iter().map(Row::of).collect();
    // The iterations whose stages all have one status, and nothing else.
    let mut alike: BTreeMap<(&str, u32), (&str, bool)> = BTreeMap::new();
    for row in &all {
        let Some((name, iteration, _)) = row.turn else { continue };
        let (what, are_alike) = alike.entry((name, iteration)).or_insert((row.what, true));
        *are_alike &= *what == row.what && row.is_plain;
    }
    for mut row in all {
        row.is_plain = row.turn.is_some_and(|(name, iteration, _)| alike[&(name, iteration)].1);
        // Stages of a loop alternate, so the row to extend may be several rows above.
        match rows.iter_mut().rev().take(32).find(|earlier| earlier.continues(&row)) {
            Some(earlier) => earlier.extend(row),
            None => rows.push(row),
        }
    }
    rows
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
    /// The stages outside its loop that it waits for.
    after: Vec<String>,
    /// There is nothing to say of it but that it runs, and after what.
    is_plain: bool,
    /// Loop, first iteration and stage.
    turn: Option<(&'a str, u32, &'a str)>,
    last: u32,
    /// Of a loop whose iterations share the row.
    stages: Vec<&'a str>,
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
        let mut is_plain = true;
        let mut after = Vec::new();
        let (what, mut why) = match &node.status {
            Status::Cached { .. } => ("cached", String::new()),
            Status::Run { reasons, .. } => {
                is_plain = reasons.iter().all(|reason| *reason == RerunReason::First);
                ("run", because(reasons))
            }
            Status::Waits { on, rerun, reasons } => {
                is_plain = reasons.is_empty() && *rerun != Rerun::IfInputsChange;
                after = outside(on, turn);
                let on = waits_on(on, turn);
                match rerun {
                    Rerun::Will if reasons.is_empty() => ("run", format!("after {on}")),
                    Rerun::Will => ("run", format!("after {on}: {}", because(reasons))),
                    Rerun::IfInputsChange => ("may run", format!("if {on} changes")),
                    Rerun::UnlessLoopEnds => ("may run", format!("after {on}, unless its loop ends before")),
                }
            }
            Status::Skipped if turn.is_some_and(|(_, iteration, _)| iteration == 1) => {
                ("skipped", "its loop does not begin".into())
            }
            Status::Skipped => ("skipped", "its loop has ended".into()),
        };
        if let Some(Reused { rows, of }) = node.reused {
            why += &format!("; {rows} of {of} episodes are reused");
        }
        let shards = node.shards.map_or(String::new(), |shards| format!(" in {shards} shards"));
        is_plain &= node.reused.is_none() && node.executor.is_none();
        if let Some(executor) = &node.executor {
            why += &format!("; on {executor}{shards}");
        }
        let last = turn.map_or(0, |(_, iteration, _)| iteration);
        let seconds = node.cost.as_ref().map(|estimate| estimate.cost.seconds);
        let differs = node.cost.as_ref().is_some_and(|estimate| !estimate.is_alike());
        let stages = turn.iter().map(|(.., stage)| *stage).collect();
        Self {
            what,
            kind: &node.kind,
            why,
            after,
            is_plain,
            turn,
            last,
            stages,
            id: &node.id,
            seconds,
            differs,
        }
    }

    fn continues(&self, next: &Row<'_>) -> bool {
        match (self.turn, next.turn) {
            (Some((name, ..)), Some((next_name, iteration, _))) if self.is_plain && next.is_plain => {
                name == next_name && self.what == next.what && iteration <= self.last + 1
            }
            (Some(_), Some(_)) if self.is_plain || next.is_plain => false,
            (Some((name, _, stage)), Some((next_name, iteration, next_stage))) => {
                (name, stage, self.last + 1) == (next_name, next_stage, iteration)
                    && (self.what, &self.why) == (next.what, &next.why)
            }
            _ => false,
        }
    }

    fn extend(&mut self, next: Self) {
        self.last = next.last;
        self.seconds = self.seconds.zip(next.seconds).map(|(one, other)| one + other);
        self.differs |= next.differs;
        for stage in next.stages {
            if !self.stages.contains(&stage) {
                self.stages.push(stage);
            }
        }
        for stage in next.after {
            if !self.after.contains(&stage) {
                self.after.push(stage);
            }
        }
    }

    /// Whether it is of all stages of a loop.
    fn is_of_loop(&self) -> bool {
        self.stages.len() > 1
    }

    fn kind(&self) -> &'a str {
        if self.is_of_loop() { "loop" } else { self.kind }
    }

    fn why(&self) -> String {
        if !self.is_of_loop() {
            return self.why.clone();
        }
        let after = match self.after.as_slice() {
            [] => String::new(),
            after => format!(" after {}", after.join(", ")),
        };
        let more = match self.what {
            "may run" => format!("{after}, unless it ends before"),
            "skipped" if self.turn.is_some_and(|(_, first, _)| first == 1) => ": it does not begin".into(),
            "skipped" => ": it has ended".into(),
            _ => after,
        };
        self.stages.join(", ") + &more
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
            Some((name, first, stage)) => {
                let last = if first == self.last { String::new() } else { format!("..{:04}", self.last) };
                let stage = if self.is_of_loop() { String::new() } else { format!("/{stage}") };
                format!("{name}[{first:04}{last}]{stage}")
            }
            _ => self.id.to_owned(),
        }
    }
}

fn because(reasons: &[RerunReason]) -> String {
    reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Those of the stages that a stage waits for which are outside its loop.
fn outside(on: &[String], turn: Option<(&str, u32, &str)>) -> Vec<String> {
    let is_own =
        |id: &&String| InLoop::parse(id).zip(turn).is_some_and(|(stage, (own, ..))| stage.name == own);
    let mut names: Vec<String> = on.iter().filter(|id| !is_own(id)).map(|id| stage_name(id)).collect();
    names.dedup();
    names
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
