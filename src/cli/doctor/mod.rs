//! `mcprl doctor`: checks what this machine supports, and whether it has what a run file needs.

mod run_file;
mod trial;

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::{
    Outcome, from,
    locations::Locations,
    run_args::{RUN_FILE, environment},
};
use crate::{
    engine::available,
    error::{Failure, Result},
    exec::RunSpec,
    plan::{Overrides, Plan, RunFile},
    store::{FileDigests, Store},
    ui::{OutputFormat, Printer, bytes},
};

#[derive(Args)]
pub struct Doctor {
    /// A run file to check as well: starts its server, calls its judge's endpoint, and checks its models,
    /// tasks, programs and keys [default: `run.toml`, if there is one].
    file: Option<PathBuf>,
    /// Change a value of the run file: `--set engine.devices=["cuda:0"]`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The agent that the run is to go on from, as with `run --from`: which of its tools does the server still have?
    #[arg(long, value_name = "ADAPTER|RUN")]
    from: Option<String>,
    /// Play this many training tasks four times each with the model as it is: can it do them at all, and what would help it?
    #[arg(long = "try", value_name = "TASKS", value_parser = clap::value_parser!(u32).range(1..))]
    trial: Option<u32>,
    #[command(flatten)]
    locations: Locations,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Good,
    /// Works, but slower or smaller than it could be.
    Note,
    Bad,
}

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    text: String,
    /// How to fix it.
    #[serde(skip_serializing_if = "Option::is_none")]
    todo: Option<String>,
}

impl Finding {
    fn new(what: &'static str, verdict: Verdict, text: String) -> Self {
        Self { what, verdict, text, todo: None }
    }

    fn good(what: &'static str, text: String) -> Self {
        Self::new(what, Verdict::Good, text)
    }

    fn bad(what: &'static str, cause: &Failure) -> Self {
        Self { todo: cause.hint(), ..Self::new(what, Verdict::Bad, cause.to_string()) }
    }

    fn todo(self, todo: impl Into<String>) -> Self {
        Self { todo: Some(todo.into()), ..self }
    }

    /// The same of this stage, server or tracker.
    fn of(self, name: &str) -> Self {
        Self { text: format!("{name}: {}", self.text), ..self }
    }
}

fn is_bad(findings: &[Finding]) -> bool {
    findings.iter().any(|finding| finding.verdict == Verdict::Bad)
}

impl Doctor {
    pub fn execute(mut self, printer: Printer) -> Result<Outcome> {
        let is_about_one = !self.set.is_empty() || self.trial.is_some() || self.from.is_some();
        let default = || Some(PathBuf::from(RUN_FILE)).filter(|path| is_about_one || path.is_file());
        self.file = self.file.or_else(default);
        let store = self.locations.store(self.file.as_deref())?;
        let mut findings = vec![processor(), memory(), disk(store.root()), cache(&store), cuda()];
        let checked = match &self.file {
            Some(file) => self.check(file, &store, &mut findings, printer),
            None => Ok(()),
        };
        match printer.format {
            OutputFormat::Json => printer.json(&findings),
            OutputFormat::Human => {
                for finding in &findings {
                    let mark = match finding.verdict {
                        Verdict::Good => "ok",
                        Verdict::Note => "note",
                        Verdict::Bad => "bad",
                    };
                    printer.data(&format!("{mark:<5} {:<10} {}", finding.what, finding.text));
                    if let Some(todo) = &finding.todo {
                        printer.data(&format!("{:<16} hint: {todo}", ""));
                    }
                }
            }
        }
        checked?;
        Ok(if is_bad(&findings) { Outcome::Failed } else { Outcome::Success })
    }

    /// Adds findings about the run file's needs. A mistake in the file itself is an error.
    fn check(&self, file: &Path, store: &Store, findings: &mut Vec<Finding>, printer: Printer) -> Result<()> {
        let source = RunFile::read(file)?;
        let mut overrides = Overrides::new(environment(), self.set.clone());
        let files = FileDigests::load(store);
        let cards = self.locations.cards(Some(file));
        let mut trained = None;
        if let Some(agent) = &self.from {
            overrides = from::overrides((&source, &cards, &files), overrides, agent, &self.locations)?;
            trained = from::trained_tools(agent, &self.locations)?;
        }
        let plan = Plan::new(&source, &overrides, &cards, &files)?;
        findings.extend(run_file::findings(&plan, store, trained)?);
        let Some(tasks) = self.trial.filter(|_| !is_bad(findings)) else { return Ok(()) };
        let spec = RunSpec {
            stages: self.locations.stages(Some(file)),
            file: std::path::absolute(file).unwrap_or_else(|_| file.to_owned()),
            resample: Vec::new(),
            until: Vec::new(),
            keep_going: false,
            overrides,
            text: source.text().to_owned(),
            extended: source.extended(),
            is_trial: true,
        };
        findings.extend(trial::play(&plan, spec, Store::open(store.root())?, tasks, printer)?);
        Ok(())
    }
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut features: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        features.extend(std::arch::is_x86_feature_detected!("avx2").then_some("avx2"));
        features.extend(std::arch::is_x86_feature_detected!("fma").then_some("fma"));
        features.extend(std::arch::is_x86_feature_detected!("avx512f").then_some("avx512f"));
    }
    #[cfg(target_arch = "aarch64")]
    features.push("neon");
    let slow = features.is_empty();
    let features = if slow { "no known vector instructions".to_owned() } else { features.join(", ") };
    let verdict = if slow { Verdict::Note } else { Verdict::Good };
    Finding::new("processor", verdict, format!("{cores} cores, {features}"))
}

fn memory() -> Finding {
    let (verdict, text) = match available().map(|free| free as u64) {
        None => (Verdict::Note, "unknown".to_owned()),
        Some(free) if free < 2 << 30 => {
            (Verdict::Note, format!("{} available; the sqlite run needs about 1 GiB", bytes(free)))
        }
        Some(free) => (Verdict::Good, format!("{} available", bytes(free))),
    };
    Finding::new("memory", verdict, text)
}

/// Free bytes on the disk of the cache, which may not exist yet.
fn free_disk(root: &Path) -> std::io::Result<u64> {
    let absolute = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let there = absolute.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    let volume = rustix::fs::statvfs(there)?;
    Ok(volume.f_bavail.saturating_mul(volume.f_frsize))
}

fn disk(root: &Path) -> Finding {
    match free_disk(root) {
        Ok(free) if free < 1 << 30 => {
            Finding::new("disk", Verdict::Bad, format!("{} free for the cache", bytes(free)))
                .todo("free space with `mcprl cache gc`, or use another disk with `--cache DIR`")
        }
        Ok(free) => Finding::good("disk", format!("{} free for the cache", bytes(free))),
        Err(cause) => Finding::new("disk", Verdict::Note, cause.to_string()),
    }
}

fn cache(store: &Store) -> Finding {
    let shown = store.root().display();
    match store.prepare().and_then(|()| store.probe()) {
        Ok(()) => Finding::good("cache", format!("{shown} is writable")),
        Err(cause) => Finding::bad("cache", &cause.into()),
    }
}

fn cuda() -> Finding {
    let compiled = cfg!(feature = "cuda");
    let more = [
        ("NCCL", cfg!(feature = "nccl")),
        ("cuDNN", cfg!(feature = "cudnn")),
        ("flash attention", cfg!(feature = "flash-attn")),
    ];
    let more: String = more.iter().filter(|(_, there)| *there).map(|(name, _)| format!(", {name}")).collect();
    let text = if compiled { format!("compiled in{more}") } else { "not compiled in".to_owned() };
    Finding::new("cuda", if compiled { Verdict::Good } else { Verdict::Note }, text)
}
