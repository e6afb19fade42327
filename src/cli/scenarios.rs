//! `mcprl scenarios review`: goes through tasks in the terminal and writes those that are kept.
//!
//! Each decision is one line of a JSONL file, appended at once, so a review goes on where it ended. A `scenarios` stage with
//! `source = "file"` reads the file: accepted tasks as they are or as edited, dropped ones not at all.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{BufRead, IsTerminal},
    path::{Path, PathBuf},
};

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::{
    Outcome,
    locations::Locations,
    review::{self, Choice},
    target::Target,
};
use crate::{
    data::{self, Scenario},
    error::Result,
    exec::{
        history::{self, Stages},
        review::{Decision, RecordedDecision, ReviewError, append, decisions, edited, line},
    },
    tasks::{TaskError, file},
    ui::{OutputFormat, Printer},
};

#[derive(Subcommand)]
pub enum Scenarios {
    /// Accept, edit or drop tasks one by one; without a terminal, list them.
    Review(Review),
}

#[derive(Args)]
pub struct Review {
    /// A run, for its latest tasks; a stage of a run, as in `RUN/tasks`; or a file of tasks.
    #[arg(value_name = "RUN|FILE")]
    tasks: String,
    /// Where decisions are kept; an earlier review goes on there [default: reviewed.jsonl, or beside the file].
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    locations: Locations,
}

impl Scenarios {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let Self::Review(review) = self;
        review.execute(printer)
    }
}

impl Review {
    fn execute(self, printer: Printer) -> Result<Outcome> {
        let path = Path::new(&self.tasks);
        let (tasks, default) = if path.is_file() && Target::at(path)?.is_none() {
            (of_file(path)?, path.with_extension("reviewed.jsonl"))
        } else {
            (self.of_run()?, PathBuf::from("reviewed.jsonl"))
        };
        if tasks.is_empty() {
            return Err(ReviewError::NoTasks(self.tasks).into());
        }
        let out = self.out.unwrap_or(default);
        let decided = decisions(&out)?;
        if printer.format == OutputFormat::Json
            || !std::io::stdin().is_terminal()
            || !std::io::stdout().is_terminal()
        {
            list(printer, &tasks, &decided);
            return Ok(Outcome::Success);
        }
        let mut save = |line: &Value| append(&out, line);
        let left = review(
            &tasks,
            &decided,
            &mut std::io::stdin().lock(),
            &mut |text: &str| printer.data(text),
            &mut save,
        )?;
        printer.say(&format!("{left} of {} tasks are left; decisions are in {}", tasks.len(), out.display()));
        Ok(Outcome::Success)
    }

    /// The tasks of a stage, or of the run's last stage that wrote tasks.
    fn of_run(&self) -> Result<Vec<Scenario>> {
        let Target { store, run, part } = Target::new(&self.locations, &self.tasks)?;
        let run = history::run(&store, &run)?;
        let stages = Stages::new(&store, &run);
        let nodes = match &part {
            Some(part) => vec![run.node(part)?],
            None => run.nodes.iter().rev().collect(),
        };
        for node in nodes {
            let outputs = stages.stage(node).outputs;
            let table = |name: &str| outputs.iter().find(|output| output.output == name);
            if let (Some(train), Some(heldout)) = (table("train"), table("heldout")) {
                let (mut tasks, mut known) = (Vec::new(), BTreeSet::new());
                // `start` has tasks of `train` again.
                let all = [table("start"), Some(train), table("dev"), Some(heldout)];
                for table in all.into_iter().flatten() {
                    let of_table: Vec<Scenario> = data::read(&table.path)?;
                    tasks.extend(of_table.into_iter().filter(|task| known.insert(task.id.clone())));
                }
                return Ok(tasks);
            }
        }
        Err(ReviewError::NoTasks(self.tasks.clone()).into())
    }
}

fn of_file(path: &Path) -> Result<Vec<Scenario>, TaskError> {
    let (mut tasks, heldout) = file::load(path, (0.0, 0).into())?;
    // Without any held-out task, the stage decides.
    if heldout.is_empty() {
        tasks.iter_mut().for_each(|task| task.split.clear());
    }
    tasks.extend(heldout);
    Ok(tasks)
}

fn list(printer: Printer, tasks: &[Scenario], decided: &BTreeMap<String, RecordedDecision>) {
    let decision = |task: &Scenario| decided.get(&task.id).map_or("open", |decided| decided.decision.name());
    if printer.format == OutputFormat::Json {
        let row = |task: &Scenario| {
            let mut row = json!(task);
            row["decision"] = decision(task).into();
            row
        };
        return printer.json(&tasks.iter().map(row).collect::<Vec<_>>());
    }
    let line = |task: &Scenario| {
        format!(
            "{}\t{}\t{}\t{}\n",
            decision(task),
            task.split,
            task.task,
            task.answer.as_deref().unwrap_or("-")
        )
    };
    printer.data(&tasks.iter().map(line).collect::<String>());
}

/// Asks for a decision on each open task; returns how many are left.
fn review(
    tasks: &[Scenario],
    decided: &BTreeMap<String, RecordedDecision>,
    input: &mut impl BufRead,
    say: &mut dyn FnMut(&str),
    save: &mut dyn FnMut(&Value) -> Result<(), ReviewError>,
) -> Result<usize, ReviewError> {
    let open: Vec<&Scenario> = tasks.iter().filter(|task| !decided.contains_key(&task.id)).collect();
    let shown = |task: &&Scenario, place: usize| card(task, place, open.len());
    let questions = ["task (empty keeps it): ", "answer (empty keeps it): "];
    review::review(&open, input, say, shown, questions, |task, choice| {
        let decided = match choice {
            Choice::Accept => line(task, Decision::Accept),
            Choice::Drop => line(task, Decision::Drop),
            Choice::Edit(texts) => {
                let [text, answer] = texts.map(|text| Some(text).filter(|text| !text.is_empty()));
                match edited(tasks, task, text.as_deref(), answer.as_deref()) {
                    Ok(edited) => line(&edited, Decision::Edit),
                    Err(refused) => return Ok(Some(refused.to_string())),
                }
            }
        };
        save(&decided).map(|()| None)
    })
}

fn card(task: &Scenario, place: usize, of: usize) -> String {
    let mut text = format!("\n{place}/{of}  {}  {}\n{}\n", task.family, task.split, task.task);
    text += &format!("answer: {} ({})\n", task.answer.as_deref().unwrap_or("-"), task.check);
    if let Some(calls) = &task.reference {
        text += &format!("calls: {}\n", calls.chars().take(600).collect::<String>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tasks() -> Vec<Scenario> {
        let task = |id: &str, split: &str| Scenario {
            id: id.into(),
            split: split.into(),
            family: "f".into(),
            task: format!("Task {id}?"),
            answer: Some("7".into()),
            check: "number".into(),
            reference: Some("[{\"name\":\"get\",\"arguments\":{}}]".into()),
            ..Scenario::default()
        };
        vec![task("1", "train"), task("2", "a"), task("3", "train"), task("4", "train")]
    }

    /// The decisions on these keys, as a file, and how many tasks are left.
    fn decide(decided: &BTreeMap<String, RecordedDecision>, keys: &str) -> (String, usize) {
        let mut file = String::new();
        let mut save = |line: &Value| {
            file += &format!("{line}\n");
            Ok(())
        };
        let left = review(&tasks(), decided, &mut keys.as_bytes(), &mut |_| {}, &mut save).unwrap();
        (file, left)
    }

    #[test]
    fn decisions_are_kept_and_read_as_tasks() {
        let (file, left) = decide(&BTreeMap::new(), "a\nd\nx\ne\nHow many?\nmany\ns\n");
        assert_eq!(left, 1);
        let (train, heldout) = file::parse(&file, "f", (0.5, 1).into()).unwrap();
        let found: Vec<_> = train
            .iter()
            .map(|one| (one.task.as_str(), one.answer.as_deref().unwrap(), &*one.check))
            .collect();
        assert_eq!(found, [("Task 1?", "7", "number"), ("How many?", "many", "text")]);
        assert_eq!(heldout, []);
        assert!(train[0].reference.as_ref().unwrap().contains("get"));
    }

    #[test]
    fn a_review_goes_on_where_it_ended() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("reviewed.jsonl");
        assert_eq!(decisions(&path).unwrap(), BTreeMap::new());
        let (file, left) = decide(&BTreeMap::new(), "a\nd\nq\n");
        assert_eq!(left, 2);
        std::fs::write(&path, &file).unwrap();
        let (rest, left) = decide(&decisions(&path).unwrap(), "d\n");
        assert_eq!((rest.contains("Task 3?"), left), (true, 1), "the end of input is like q");
    }
}
