//! What a run comes down to, at first look: whether it learned, where it fails, and what to do next. The page and the report show
//! the same.

use std::collections::BTreeSet;

use serde::Serialize;

use super::{
    parts::{command as run_command, is_seed},
    server::{Failed, failed_tasks},
};
use crate::{
    data::{Scenario, VerdictRow, is_of_trained_cases},
    eval::{self, Difference, Finding, Sentence, Standing, smallest_difference},
    exec::{RunState, history::TrainingSuccess},
    view::{
        Loop, Run, Stage, StageState,
        exam::{self, Exam},
    },
};

/// Most kinds of task that are shown.
const KINDS: usize = 10;
/// A kind of fewer tasks is small: its rates say little.
pub const SMALL: u32 = 5;
/// Most actions.
const ACTIONS: usize = 3;

/// The answer of a run.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Answer {
    /// What happened, in one sentence.
    pub sentence: String,
    pub finding: Option<Finding>,
    /// Its last exam.
    pub exam: Option<Examined>,
    /// The exam that is still to come, if none has finished.
    pub coming: Option<Coming>,
    /// Success of policies on training tasks, before and in training. Not the success of the run.
    pub tried: Vec<Tried>,
    pub training: Option<TrainingSuccess>,
    /// Why the tasks of the exam fail that fail. Empty without an exam.
    pub failed: Option<Failed>,
    /// The kinds with most failed tasks, those with few tasks last.
    pub kinds: Vec<Kind>,
    pub next: Vec<Action>,
}

/// The figures of an exam.
#[derive(Debug, Clone, Serialize)]
pub struct Examined {
    pub stage: String,
    pub mode: String,
    pub tasks: u32,
    /// Whether the tasks ask about trained cases in other words.
    pub of_trained_cases: bool,
    /// Those to choose from, from the simplest on.
    pub policies: Vec<Standing>,
    /// The one of them that the gain is over; the only one if there is one.
    pub baseline: String,
    /// The difference of the last policy to the baseline.
    pub gain: Option<Difference>,
    pub splits: Vec<Split>,
    /// How many kinds of task there are, and those that the last policy is measurably worse at.
    pub kinds: usize,
    /// Of them, those with few tasks.
    pub small_kinds: usize,
    pub worse: Vec<String>,
    pub advice: Option<String>,
}

/// Success by split: of the baseline, and of the last policy.
#[derive(Debug, Clone, Serialize)]
pub struct Split {
    pub name: String,
    pub tasks: u32,
    pub base: Option<f64>,
    pub success: f64,
    /// Whether its tasks are among those of the headline.
    pub is_counted: bool,
}

/// An exam that has not finished.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Coming {
    pub stage: String,
    pub policies: Vec<String>,
    /// Those that its headline will count.
    pub tasks: Option<u32>,
    /// The smallest difference that so many tasks show at best: more if they resemble each other.
    pub detectable: Option<f64>,
}

/// A stage outside loops whose episodes a policy played.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tried {
    pub stage: String,
    pub success: f64,
}

/// A kind of task in the exam.
#[derive(Debug, Clone, Serialize)]
pub struct Kind {
    pub name: String,
    pub tasks: u32,
    /// Of them, as the headline counts.
    pub failed: u32,
    pub base: Option<f64>,
    pub success: f64,
    pub is_small: bool,
}

/// Something to do next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Action {
    pub text: String,
    /// To copy.
    pub command: Option<String>,
    /// What to put into the run file instead.
    pub toml: Option<String>,
}

/// The answer. `cache_option` is what a command needs to find the cache of the run: ` --cache FOLDER`, or nothing.
pub fn answer(run: &Run, cache_option: &str) -> Answer {
    let exam = exam::exams(run).pop();
    let claim = exam.as_ref().and_then(claim);
    let failed = exam.as_ref().map(|exam| failed_tasks(run, Some(&exam.stage)));
    let coming = if exam.is_none() { coming(run) } else { None };
    let (sentence, finding) = match &claim {
        Some(claim) => (claim.text.clone(), claim.finding),
        None => (without_exam(run, coming.as_ref()), None),
    };
    Answer {
        sentence,
        finding,
        next: next(run, exam.as_ref(), cache_option),
        kinds: exam.as_ref().map(kinds).unwrap_or_default(),
        exam: exam.as_ref().and_then(examined),
        failed: failed.filter(|failed| failed.tasks > 0),
        coming,
        tried: tried(run),
        training: run.training.clone(),
    }
}

fn rows_of(exam: &Exam) -> Vec<VerdictRow> {
    exam.rows.iter().map(|row| row.row.clone()).collect()
}

fn claim(exam: &Exam) -> Option<Sentence> {
    eval::claim(&rows_of(exam))
}

/// What happened in a run that no exam has measured.
fn without_exam(run: &Run, coming: Option<&Coming>) -> String {
    let failed = run.stages.iter().find(|stage| stage.state == StageState::Failed);
    if let Some(problem) = &run.unreadable {
        return format!("the run's journal cannot be read: {problem}");
    }
    if run.writers("verdict").any(|stage| stage.state.is_done()) {
        return "the exam's result is no longer in the cache".into();
    }
    match (run.state, failed) {
        (RunState::Failed, Some(stage)) => format!("{} failed before an exam measured anything", stage.id),
        (RunState::Failed, None) => "the run failed before an exam measured anything".into(),
        (RunState::Interrupted | RunState::Killed, _) => "stopped before an exam measured anything".into(),
        (RunState::Running, _) if coming.is_some() => "not known yet: the exam comes at the end".into(),
        // Its plan may not be known.
        (RunState::Running, _) if run.stages.iter().all(|stage| stage.state != StageState::Pending) => {
            "not known yet: no exam has measured anything".into()
        }
        (RunState::Running, _) => "this run has no exam, so it does not measure success".into(),
        (RunState::Finished, _) => {
            "this run has no exam, so nothing measured success on held-out tasks".into()
        }
    }
}

fn examined(exam: &Exam) -> Option<Examined> {
    let found = exam.headline.as_ref()?;
    let (baseline, last) = found.ends()?;
    let counted = exam.counted();
    let of = |policy: &str, slice: &str| {
        let mut rows = exam.rows_of("split");
        rows.find(|row| row.policy == policy && row.slice == slice)
    };
    let splits = exam.rows_of("split").filter(|row| row.policy == last.policy);
    let split = |row: &VerdictRow| Split {
        name: row.slice.clone(),
        tasks: row.scenarios,
        base: baseline.and_then(|base| Some(of(&base.policy, &row.slice)?.success)),
        success: row.success,
        is_counted: counted.split(&row.slice),
    };
    let mut policies: Vec<Standing> = found.policies.iter().filter(|one| one.is_candidate).cloned().collect();
    // The baseline comes first. If it is another policy with a prompt of its own, that one is simpler.
    let of_baseline = exam.rows_of("all").next().and_then(|row| row.variant_of.as_ref());
    if of_baseline.is_some() && policies.get(1).map(|one| &one.policy) == of_baseline {
        policies.swap(0, 1);
    }
    let kinds: Vec<&VerdictRow> = exam.rows_of("family").filter(|row| row.policy == last.policy).collect();
    let is_worse = |row: &&&VerdictRow| Finding::of(row) == Some(Finding::Regression);
    Some(Examined {
        stage: exam.stage.clone(),
        mode: found.mode.to_owned(),
        tasks: found.tasks,
        of_trained_cases: found.of_trained_cases,
        policies,
        baseline: baseline.unwrap_or(last).policy.clone(),
        kinds: kinds.len(),
        small_kinds: kinds.iter().filter(|row| row.scenarios < SMALL).count(),
        worse: kinds.iter().filter(is_worse).map(|row| row.slice.clone()).collect(),
        gain: found.gain().cloned(),
        splits: splits.map(split).collect(),
        advice: found.advice.as_ref().map(eval::Advice::sentence),
    })
}

/// The kinds that the last policy fails at, those with most failed tasks first, and small ones last.
fn kinds(exam: &Exam) -> Vec<Kind> {
    let Some((baseline, last)) = exam.headline.as_ref().and_then(eval::Headline::ends) else {
        return Vec::new();
    };
    let of_baseline = |slice: &str| {
        let base = baseline?;
        exam.rows_of("family").find(|row| row.policy == base.policy && row.slice == slice)
    };
    let kind = |row: &VerdictRow| Kind {
        name: row.slice.clone(),
        tasks: row.scenarios,
        failed: failed_of(row),
        base: of_baseline(&row.slice).map(|row| row.success),
        success: row.success,
        is_small: row.scenarios < SMALL,
    };
    let mut kinds: Vec<Kind> =
        exam.rows_of("family").filter(|row| row.policy == last.policy).map(kind).collect();
    kinds.retain(|kind| kind.failed > 0);
    kinds.sort_by(|one, other| {
        let by_success = || one.success.total_cmp(&other.success);
        one.is_small.cmp(&other.is_small).then(other.failed.cmp(&one.failed)).then_with(by_success)
    });
    // Small ones fold away, and only among themselves are there ten of each.
    let large = kinds.iter().take_while(|kind| !kind.is_small).count();
    let mut small = kinds.split_off(large);
    kinds.truncate(KINDS);
    small.truncate(KINDS);
    kinds.extend(small);
    kinds
}

/// Tasks without a right episode in every sample, as shares are counted.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of the tasks")]
fn failed_of(row: &VerdictRow) -> u32 {
    (f64::from(row.scenarios) * (1.0 - row.success)).round() as u32
}

/// The exam that is to come: a stage that reads policies and tasks and has no result.
fn coming(run: &Run) -> Option<Coming> {
    let is_open = |stage: &&Stage| !stage.state.is_done() && stage.state != StageState::Skipped;
    let policies = |stage: &Stage| -> Vec<String> {
        let edges = stage.inputs.iter().filter(|edge| edge.role == "policies");
        edges.map(|edge| edge.name.clone()).collect()
    };
    let outside = run.stages.iter().filter(|stage| stage.iteration.is_none());
    let stage = outside.filter(is_open).rfind(|stage| !policies(stage).is_empty())?;
    let from =
        stage.inputs.iter().find(|edge| edge.role == "scenarios").and_then(|edge| edge.from.as_deref());
    let tasks = from.and_then(|from| from.rsplit_once('.')).and_then(|(writer, port)| {
        let artifact = run.stage(writer)?.outputs.iter().find(|artifact| artifact.port == port)?;
        let tasks: Vec<Scenario> = artifact.table().ok()?;
        let mut splits: Vec<&str> = tasks.iter().map(|task| task.split.as_str()).collect();
        // As the verdict counts: not trained cases in other words, if there are others.
        if splits.iter().any(|split| !is_of_trained_cases(split)) {
            splits.retain(|split| !is_of_trained_cases(split));
        }
        u32::try_from(splits.len()).ok()
    });
    Some(Coming {
        stage: stage.id.clone(),
        policies: policies(stage),
        detectable: tasks.map(|tasks| smallest_difference(f64::from(tasks), 0.0)),
        tasks,
    })
}

fn tried(run: &Run) -> Vec<Tried> {
    let outside = run.writers("trajectories").filter(|stage| stage.iteration.is_none());
    let tried = outside.filter_map(|stage| {
        let success = stage.metric("success")?;
        stage.is_played().then(|| Tried { stage: stage.id.clone(), success })
    });
    tried.collect()
}

/// What makes a loop twice as long, as table, key and value: its iterations, and the steps over which the learning rate falls.
pub(super) fn twice(run: &Run, looped: &Loop) -> Vec<(String, &'static str, u64)> {
    let steps = run.stages.iter().filter_map(|stage| {
        let (of, 1) = stage.iteration.as_ref()? else { return None };
        let steps = stage.params.get("total_steps")?.as_u64().filter(|_| *of == looped.name)?;
        Some((table_of(stage), "total_steps", 2 * steps))
    });
    std::iter::once((format!("loop.{}", looped.name), "iterations", 2 * looped.iterations.len() as u64))
        .chain(steps)
        .collect()
}

/// What to do next: what the state of the run asks for, what follows from the exam, and what stages advise.
fn next(run: &Run, exam: Option<&Exam>, cache_option: &str) -> Vec<Action> {
    let command = |command: String| Some(format!("{command}{cache_option}"));
    let file = run.file.as_deref().unwrap_or("run.toml");
    let again = |set: &[String]| run_command(file, set, &run.resample, &run.until);
    let without = |is_key: &dyn Fn(&str) -> bool| -> Vec<String> {
        let is_other = |set: &&String| set.split_once('=').is_none_or(|(name, _)| !is_key(name.trim()));
        run.set.iter().filter(is_other).cloned().collect()
    };
    let mut all = Vec::new();
    let mut add = |text: &str, command| {
        all.push(Action { text: text.to_owned(), command, ..Action::default() });
    };
    match run.state {
        RunState::Interrupted | RunState::Killed => {
            add("Continue where it stopped", command(format!("mcprl resume {}", run.id)));
        }
        RunState::Failed => {
            add(
                "Change what caused it, in the run file or in `--set`, and run again",
                command(again(&run.set)),
            );
            add(
                "Or continue, if the cause was elsewhere and is gone",
                command(format!("mcprl resume {}", run.id)),
            );
        }
        RunState::Running => {}
        RunState::Finished => match exam.and_then(|exam| exam.headline.as_ref()?.gain()) {
            Some(gain) if gain.finding == Finding::Gain => {
                add("Try it on tasks of your own", command(format!("mcprl chat {}", run.id)));
                add(
                    "Repeat it with other seeds: one training may be luck",
                    command(format!("{} --seeds 1,2,3", again(&without(&is_seed)))),
                );
                add("Serve it to an agent", command(format!("mcprl serve {}", run.id)));
            }
            Some(gain) => {
                let longest = run.loops.iter().max_by_key(|found| found.iterations.len());
                if let Some(found) = longest {
                    let longer = twice(run, found);
                    let mut set = without(&|key| {
                        longer.iter().any(|(table, name, _)| key == format!("{table}.{name}"))
                    });
                    set.extend(longer.iter().map(|(table, name, value)| format!("{table}.{name}={value}")));
                    let toml =
                        longer.iter().map(|(table, name, value)| format!("[{table}]\n{name} = {value}"));
                    all.push(Action {
                        text: "Train longer".into(),
                        command: command(again(&set)),
                        toml: Some(toml.collect::<Vec<_>>().join("\n\n")),
                    });
                }
                if let Some(least) = gain.detectable {
                    all.push(Action {
                        text: format!(
                            "Add held-out tasks: these show differences from {:.0} points on",
                            100.0 * least
                        ),
                        ..Action::default()
                    });
                }
            }
            None => {}
        },
    }
    let is_stopped = matches!(run.state, RunState::Interrupted | RunState::Killed);
    let advised = if is_stopped { Vec::new() } else { advice_of_stages(run) };
    all.truncate(if advised.is_empty() { ACTIONS } else { ACTIONS - 1 });
    all.extend(advised);
    all.truncate(ACTIONS);
    all
}

/// Notes of stages that name something to do, the newest first. Those that differ in numbers alone are one.
fn advice_of_stages(run: &Run) -> Vec<Action> {
    let mut seen = BTreeSet::new();
    let notes = run.stages.iter().rev().flat_map(|stage| stage.notes.iter().map(move |note| (stage, note)));
    // With what to set or to call.
    let is_code = |code: &str| code.contains('=') || code.starts_with("mcprl ");
    let is_action = |note: &str| note.split('`').skip(1).step_by(2).any(is_code);
    let notes = notes.filter(|(_, note)| is_action(note));
    let is_new = |(stage, note): &(&Stage, &String)| {
        let words: String = note.chars().filter(|letter| !letter.is_ascii_digit()).collect();
        seen.insert((stage.name.clone(), words))
    };
    let action = |(stage, note): (&Stage, &String)| Action {
        text: format!("{}: {note}", stage.name),
        toml: setting(run, stage, note),
        ..Action::default()
    };
    notes.filter(is_new).map(action).take(ACTIONS).collect()
}

/// The first parameter that a note sets, in the table of the stage that has it: of the stage itself, or of one beside it.
fn setting(run: &Run, stage: &Stage, note: &str) -> Option<String> {
    let code = note.split('`').skip(1).step_by(2);
    let is_one = |code: &&str| toml::from_str::<toml::Table>(code).is_ok_and(|table| table.len() == 1);
    let code = code.into_iter().find(is_one)?;
    let (name, _) = code.split_once('=')?;
    let of_loop = |stage: &Stage| stage.iteration.as_ref().map(|(name, _)| name.clone());
    let beside = run.stages.iter().filter(|other| of_loop(other) == of_loop(stage));
    let has = std::iter::once(stage).chain(beside).find(|other| other.params.contains_key(name.trim()))?;
    Some(format!("[{}]\n{code}", table_of(has)))
}

/// The table of a stage in the run file.
fn table_of(stage: &Stage) -> String {
    match &stage.iteration {
        Some((name, _)) => format!("loop.{name}.stages.{}", stage.own_name()),
        None => format!("stages.{}", stage.name),
    }
}
