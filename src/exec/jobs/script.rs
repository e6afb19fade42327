//! The shell script that a job is.

use std::{
    fmt::Write,
    path::{Path, PathBuf},
};

use super::{folder::JobFolder, queue::quoted};
use crate::plan::{JobsSpec, absolute};

/// This program as a job starts it.
#[derive(Debug, Clone)]
pub struct Program {
    /// On the node.
    pub path: PathBuf,
    pub run: String,
    pub cache: PathBuf,
    pub stages: Option<PathBuf>,
}

impl Program {
    /// As the jobs of this batch system start it.
    pub fn on(self, spec: &JobsSpec) -> Self {
        Self { path: spec.program.clone().unwrap_or(self.path), ..self }
    }

    /// A script that works on the job of this folder.
    pub fn worker(&self, stage: &str, setup: &str, folder: &JobFolder) -> String {
        let mut words = vec!["worker".into(), self.run.clone(), "--job".into(), shown(&folder.path)];
        words.extend(self.places());
        self.script(&format!("stage {stage} of run {}", self.run), setup, (&folder.log(), &words))
    }

    /// A script that runs a run file with these options.
    pub fn whole_run(&self, file: &Path, setup: &str, log: &Path, options: &[String]) -> String {
        let mut words = vec!["run".to_owned(), shown(file)];
        words.extend(self.places());
        words.extend_from_slice(options);
        self.script(&format!("the run of {}", file.display()), setup, (&absolute(log), &words))
    }

    /// Options that name cache and cards.
    fn places(&self) -> Vec<String> {
        let mut words = vec!["--cache".to_owned(), shown(&self.cache)];
        if let Some(stages) = &self.stages {
            words.extend(["--stages".to_owned(), shown(stages)]);
        }
        words
    }

    /// A script that starts the program with these arguments.
    fn script(&self, about: &str, setup: &str, (log, arguments): (&Path, &[String])) -> String {
        // A path may have line breaks.
        let about = about.replace(char::is_control, " ");
        let mut script = format!("#!/bin/sh\n# mcprl: {about}\nexec >>{} 2>&1\n", quoted(&shown(log)));
        if !setup.trim().is_empty() {
            _ = writeln!(script, "{}", setup.trim());
        }
        _ = write!(script, "exec {}", quoted(&self.path.display().to_string()));
        for word in arguments {
            _ = write!(script, " {}", quoted(word));
        }
        script + "\n"
    }
}

fn shown(path: &Path) -> String {
    absolute(path).display().to_string()
}
