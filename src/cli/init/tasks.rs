//! What a run file of `init` says about a user's own tasks: how many of them are the exam.

use std::path::Path;

use super::text::quoted;
use crate::{
    data::Scenario,
    judge::truth,
    tasks::{TaskError, file},
};

/// Of fewer tasks with answers, a fifth is no exam: all are.
const FEW: usize = 50;

/// Lines under `[stages.tasks]`, and what to say of them.
pub struct OwnTasks {
    pub lines: String,
    pub about: String,
}

impl OwnTasks {
    /// `path`: where the tasks are. `named`: as the run file names it.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn of(path: &Path, named: &Path) -> Result<Self, TaskError> {
        let mut lines = format!("file = {}\n", quoted(&named.to_string_lossy()));
        let Counted { tasks, answered, checked, has_splits } = match counted(path) {
            Ok(counted) => counted,
            // `plan` and `doctor` say it again.
            Err(cause) if path.is_file() => return Ok(Self { lines, about: format!("note: {cause}") }),
            Err(cause) => return Err(cause),
        };
        let of = if answered + checked == tasks { String::new() } else { format!(" of {tasks}") };
        let changes = match checked {
            0 => String::new(),
            checked => format!(", {checked} have checks of what they change"),
        };
        let said = format!("{}: {answered}{of} tasks have answers{changes}", path.display());
        let about = if has_splits {
            format!("{said}: its lines say which are the exam (`split`)")
        } else if answered + checked < FEW {
            lines += "heldout_share = 1.0     # all are the exam; exploration makes the tasks that are trained on\n";
            format!("{said}: all are the exam, and exploration makes those that are trained on")
        } else {
            format!("{said}: a fifth is the exam (`heldout_share`)")
        };
        Ok(Self { lines, about })
    }
}

struct Counted {
    tasks: usize,
    /// With a known answer and no checks.
    answered: usize,
    checked: usize,
    has_splits: bool,
}

fn counted(path: &Path) -> Result<Counted, TaskError> {
    let (_, set_heldout) = file::load(path, (0.0, 0).into())?;
    let (set_train, others) = file::load(path, (1.0, 0).into())?;
    let all: Vec<&Scenario> = set_train.iter().chain(&others).collect();
    Ok(Counted {
        tasks: all.len(),
        answered: all.iter().filter(|task| task.checks.is_none() && truth::is_known(task)).count(),
        checked: all.iter().filter(|task| task.checks.is_some()).count(),
        has_splits: !set_heldout.is_empty() || !set_train.is_empty(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_tasks_are_all_the_exam_and_splits_of_ones_own_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tasks.jsonl");
        let of = |count: usize, more: &str| {
            let line = |number| format!("{{\"task\": \"How many {number}?\", \"answer\": {number}{more}}}\n");
            std::fs::write(&path, (0..count).map(line).collect::<String>()).unwrap();
            OwnTasks::of(&path, Path::new("tasks.jsonl")).unwrap()
        };
        for count in [5, 15, 49] {
            let own = of(count, "");
            assert!(own.lines.contains("heldout_share = 1.0"), "{count}: {}", own.lines);
            assert!(
                own.about.contains(&format!("{count} tasks have answers: all are the exam")),
                "{}",
                own.about
            );
        }
        for (own, said) in
            [(of(100, ""), "a fifth is the exam"), (of(5, ", \"split\": \"heldout\""), "`split`")]
        {
            assert_eq!(own.lines, "file = \"tasks.jsonl\"\n");
            assert!(own.about.contains(said), "{}", own.about);
        }
        std::fs::write(&path, "{\"task\": \"Close it.\", \"answer\": \"done\"}\n").unwrap();
        let own = OwnTasks::of(&path, Path::new("tasks.jsonl")).unwrap();
        assert!(own.about.starts_with("note: ") && own.about.contains("any agent can say"), "{}", own.about);
    }
}
