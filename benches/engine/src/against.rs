//! `mcprl-bench --against FILE`: compares the figures with stored ones, and fails if one is slower.
//!
//! Figures of another machine, model or workload are not compared.

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde_json::{Map, Value, json};

use mcprl_base::error::Diagnostic;

use super::Report;

/// How much more time than in the stored run is accepted, as a share. Shared machines vary by about a tenth.
const TOLERANCE: f64 = 0.15;

#[derive(Debug, thiserror::Error, Diagnostic)]
#[diagnostic(area = "bench", class = usage)]
pub enum AgainstError {
    #[error("cannot read {}", path.display())]
    #[hint = "store figures with `mcprl-bench --json > FILE`"]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{} holds no figures of `mcprl-bench`", path.display())]
    #[hint = "store figures with `mcprl-bench --json > FILE`"]
    Format { path: PathBuf, source: serde_json::Error },
    #[error("the figures in {} are not comparable: {differences}", path.display())]
    #[hint = "measure with the stored run's options, or store figures of this machine with `mcprl-bench --json > FILE`"]
    OtherSetup { path: PathBuf, differences: String },
    #[error("{} has no figure of what was measured", path.display())]
    #[hint = "measure with the stored run's `--only`"]
    NothingShared { path: PathBuf },
    #[error("slower than {} by more than 15 %: {slower}", path.display())]
    #[diagnostic(class = work)]
    #[hint = "repeat it while nothing else runs on the machine"]
    Slower { path: PathBuf, slower: String },
}

/// A figure beside its stored value.
#[derive(Debug, Serialize)]
pub struct Comparison {
    pub figure: String,
    /// Time now divided by time then.
    pub ratio: f64,
}

/// The report in a file that `mcprl-bench --json` wrote.
pub struct Stored {
    path: PathBuf,
    report: Report,
}

impl Stored {
    /// # Errors
    /// Fails if the file is unreadable or has other fields.
    pub fn read(path: &Path) -> Result<Self, AgainstError> {
        let path = path.to_owned();
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(source) => return Err(AgainstError::Read { path, source }),
        };
        match serde_json::from_str(&text) {
            Ok(report) => Ok(Self { path, report }),
            Err(source) => Err(AgainstError::Format { path, source }),
        }
    }

    /// Checks that machine, model and workload are those of the stored run.
    ///
    /// # Errors
    /// Fails with the fields that differ.
    pub fn check_setup(&self, now: &Report) -> Result<(), AgainstError> {
        let (then, now) = (fields(&self.report), fields(now));
        let differs = |name: &&String| then.get(*name) != now.get(*name);
        let shown = |fields: &Map<String, Value>, name: &String| match fields.get(name) {
            None | Some(Value::Null) => "none".to_owned(),
            Some(value) => value.to_string(),
        };
        let difference = |name| format!("{name} is {}, it was {}", shown(&now, name), shown(&then, name));
        let differences: Vec<String> = now.keys().filter(differs).map(difference).collect();
        match differences.is_empty() {
            true => Ok(()),
            false => {
                Err(AgainstError::OtherSetup { path: self.path.clone(), differences: differences.join("; ") })
            }
        }
    }

    /// The figures that both reports have.
    ///
    /// # Errors
    /// Fails if there is none.
    pub fn compare(&self, now: &Report) -> Result<Vec<Comparison>, AgainstError> {
        let then = times(&self.report);
        let compared = times(now).into_iter().filter_map(|(figure, seconds)| {
            let (_, stored) = then.iter().find(|(name, _)| *name == figure)?;
            Some(Comparison { figure, ratio: seconds / stored })
        });
        let compared: Vec<Comparison> = compared.collect();
        match compared.is_empty() {
            true => Err(AgainstError::NothingShared { path: self.path.clone() }),
            false => Ok(compared),
        }
    }

    /// # Errors
    /// Fails if a figure is slower than the tolerance allows.
    pub fn check_speed(&self, compared: &[Comparison]) -> Result<(), AgainstError> {
        let slower = compared.iter().filter(|comparison| comparison.ratio > 1.0 + TOLERANCE);
        let slower: Vec<String> =
            slower.map(|slow| format!("{} takes {:.2} × the time", slow.figure, slow.ratio)).collect();
        match slower.is_empty() {
            true => Ok(()),
            false => Err(AgainstError::Slower { path: self.path.clone(), slower: slower.join("; ") }),
        }
    }
}

/// The fields of the setup, with those of its workload.
fn fields(report: &Report) -> Map<String, Value> {
    let setup = json!(report.setup).as_object().cloned().unwrap_or_default();
    let load = json!(report.setup.load).as_object().cloned().unwrap_or_default();
    setup.into_iter().filter(|(name, _)| name != "load").chain(load).collect()
}

/// Name and seconds of each figure: of a training step, or of a sampled token.
fn times(report: &Report) -> Vec<(String, f64)> {
    let steps = report.steps().map(|(name, training)| (name.to_owned(), training.seconds));
    let tokens = report.decode.iter().map(|decode| (decode.name(), decode.tokens_per_second.recip()));
    steps.chain(tokens).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A report as `--json` prints it, with other values at some places.
    fn report(changes: &[(&str, Value)]) -> Value {
        let training = json!({
            "tokens_per_second": 8800.0, "seconds": 0.8, "distinct": 3380, "window": [1, 2], "peak_mib": 250.0,
        });
        let decode = json!({
            "sequences": 8, "tokens_per_second": 1000.0, "prefill_seconds": 0.1, "window": [1, 2], "peak_mib": 90.0,
        });
        let mut report = json!({
            "cpu": "A", "cores": 2, "kernels": "avx2", "device": "cpu", "threads": 2, "shape": "demo", "dtype": "f32",
            "load": {
                "prefix": 100, "question": 20, "episode": 100, "trained_every": 2, "group": 8, "groups": 4, "rank": 16,
                "batch": [8], "new": 200, "runs": 5,
            },
            "machine": null, "training": training, "unshared": null, "decode": [decode],
        });
        for (place, value) in changes {
            *report.pointer_mut(place).unwrap() = value.clone();
        }
        report
    }

    /// What `--against` answers to a report, if the unchanged one is stored.
    fn against(now: &Value) -> Result<Vec<Comparison>, AgainstError> {
        let parsed = |value: &Value| serde_json::from_value::<Report>(value.clone()).unwrap();
        let stored = Stored { path: "then.json".into(), report: parsed(&report(&[])) };
        let now = parsed(now);
        stored.check_setup(&now)?;
        let compared = stored.compare(&now)?;
        stored.check_speed(&compared)?;
        Ok(compared)
    }

    #[test]
    fn a_report_reads_as_it_was_written() {
        let written = report(&[]);
        let read: Report = serde_json::from_value(written.clone()).unwrap();
        let again = json!(read);
        for (name, value) in written.as_object().unwrap() {
            assert_eq!(&again[name], value, "{name}");
        }
    }

    #[test]
    fn a_figure_fails_if_it_is_slower_by_more_than_the_tolerance() {
        const TRAINING: &str = "/training/seconds";
        const DECODE: &str = "/decode/0/tokens_per_second";
        for (place, value, ratio) in
            [(TRAINING, 0.8, 1.0), (TRAINING, 0.9, 1.125), (TRAINING, 0.4, 0.5), (DECODE, 880.0, 1.136)]
        {
            let compared = against(&report(&[(place, json!(value))])).unwrap();
            assert!(
                compared.iter().any(|comparison| (comparison.ratio - ratio).abs() < 1e-3),
                "{compared:?}"
            );
        }
        for (place, value, slow) in [
            (TRAINING, 0.96, "training, prefixes shared takes 1.20 × the time"),
            (DECODE, 800.0, "decode, 8 sequences takes 1.25 × the time"),
        ] {
            let slower = against(&report(&[(place, json!(value))])).unwrap_err();
            assert_eq!((slower.code(), slower.class()), ("bench::slower", mcprl_base::error::Class::Work));
            assert!(slower.to_string().ends_with(slow), "{slower}");
        }
    }

    #[test]
    fn another_machine_model_or_workload_is_not_compared() {
        for (place, value, difference) in [
            ("/cpu", json!("B"), "cpu is \"B\", it was \"A\""),
            ("/cores", json!(4), "cores is 4, it was 2"),
            ("/threads", json!(1), "threads is 1, it was 2"),
            ("/dtype", json!("bf16"), "dtype is \"bf16\", it was \"f32\""),
            ("/shape", json!("qwen3-8b"), "shape is \"qwen3-8b\", it was \"demo\""),
            ("/load/rank", json!(8), "rank is 8, it was 16"),
        ] {
            let refused = against(&report(&[(place, value)])).unwrap_err();
            assert_eq!(
                (refused.code(), refused.class()),
                ("bench::other_setup", mcprl_base::error::Class::Usage)
            );
            assert_eq!(
                refused.to_string(),
                format!("the figures in then.json are not comparable: {difference}")
            );
        }
    }

    #[test]
    fn at_least_one_figure_must_be_in_both() {
        let none = against(&report(&[("/training", Value::Null), ("/decode", json!([]))])).unwrap_err();
        assert_eq!(none.code(), "bench::nothing_shared");
    }

    #[test]
    fn a_file_that_is_no_report_is_refused() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), r#"{"kernels": "avx2"}"#).unwrap();
        for (path, code) in [(file.path(), "bench::format"), (Path::new("/no/such.json"), "bench::read")] {
            assert_eq!(Stored::read(path).err().map(|error| error.code()), Some(code));
        }
    }
}
