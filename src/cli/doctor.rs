//! `mcprl doctor`: what this machine can do.

use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;

use super::{Outcome, place::Place};
use crate::{
    engine::free_memory,
    error::Result,
    mcp::Transport,
    plan::{Overrides, Plan, Source},
    store::{FileDigests, Store},
    ui::{Printer, Voice, bytes},
};

#[derive(Args)]
pub struct Doctor {
    /// A run file, to check what it needs as well.
    file: Option<PathBuf>,
    #[command(flatten)]
    place: Place,
}

#[derive(Serialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Verdict {
    Good,
    /// Works, but slower or smaller than it could.
    Note,
    Bad,
}

#[derive(Serialize)]
struct Finding {
    what: &'static str,
    verdict: Verdict,
    text: String,
}

impl Doctor {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let store = self.place.store(self.file.as_deref())?;
        let mut findings = vec![processor(), memory(), disk(store.root()), cache(&store), cuda()];
        if let Some(file) = &self.file {
            let source = Source::read(file)?;
            let overrides = Overrides::new(std::env::vars(), Vec::new());
            let files = FileDigests::load(&store);
            let plan = Plan::new(&source, &overrides, &self.place.cards(Some(file)), &files)?;
            findings.push(run_file(&plan));
            findings.extend(plan.server.as_ref().map(|server| self::server(&server.transport)));
            findings.push(devices(&plan));
        }
        match printer.voice {
            Voice::Json => printer.json(&findings),
            Voice::Human => {
                for finding in &findings {
                    let mark = match finding.verdict {
                        Verdict::Good => "ok",
                        Verdict::Note => "note",
                        Verdict::Bad => "bad",
                    };
                    printer.data(&format!("{mark:<5} {:<10} {}", finding.what, finding.text));
                }
            }
        }
        let bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
        Ok(if bad { Outcome::Failed } else { Outcome::Worked })
    }
}

fn processor() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mut features: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("avx2", std::arch::is_x86_feature_detected!("avx2")),
            ("fma", std::arch::is_x86_feature_detected!("fma")),
            ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
        ];
        features.extend(known.iter().filter(|(_, there)| *there).map(|(name, _)| *name));
    }
    #[cfg(target_arch = "aarch64")]
    features.push("neon");
    let slow = features.is_empty();
    let features = if slow { "no vector units known".to_owned() } else { features.join(", ") };
    let verdict = if slow { Verdict::Note } else { Verdict::Good };
    Finding { what: "processor", verdict, text: format!("{cores} cores, {features}") }
}

fn memory() -> Finding {
    let (verdict, text) = match free_memory().map(|free| free as u64) {
        None => (Verdict::Note, "unknown".to_owned()),
        Some(free) if free < 2 << 30 => {
            (Verdict::Note, format!("{} available; the sqlite run needs about 1 GiB", bytes(free)))
        }
        Some(free) => (Verdict::Good, format!("{} available", bytes(free))),
    };
    Finding { what: "memory", verdict, text }
}

fn disk(root: &Path) -> Finding {
    let absolute = std::path::absolute(root).unwrap_or_else(|_| root.to_owned());
    let there = absolute.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match rustix::fs::statvfs(there) {
        Ok(volume) => {
            let free = volume.f_bavail.saturating_mul(volume.f_frsize);
            let verdict = if free < 1 << 30 { Verdict::Bad } else { Verdict::Good };
            Finding { what: "disk", verdict, text: format!("{} free for the cache", bytes(free)) }
        }
        Err(cause) => Finding { what: "disk", verdict: Verdict::Note, text: cause.to_string() },
    }
}

fn cache(store: &Store) -> Finding {
    let shown = store.root().display();
    let tried = store.prepare().and_then(|()| store.probe());
    match tried {
        Ok(()) => Finding { what: "cache", verdict: Verdict::Good, text: format!("{shown} can be written") },
        Err(cause) => Finding { what: "cache", verdict: Verdict::Bad, text: cause.to_string() },
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
    Finding { what: "cuda", verdict: if compiled { Verdict::Good } else { Verdict::Note }, text }
}

fn run_file(plan: &Plan) -> Finding {
    let text = format!("\"{}\", {} stages with loops unrolled", plan.name, plan.order().len());
    Finding { what: "run file", verdict: Verdict::Good, text }
}

fn server(transport: &Transport) -> Finding {
    let (verdict, text) = match transport {
        Transport::Stdio { command, cwd, .. } => {
            let program = command.first().map(String::as_str).unwrap_or_default();
            if program == "{mcprl}" || found(program, cwd.as_deref()) {
                (Verdict::Good, format!("{program} found"))
            } else {
                (Verdict::Bad, format!("{program} is neither a file nor on PATH"))
            }
        }
        Transport::Http { url, bearer_env: Some(name), .. } if std::env::var_os(name).is_none() => {
            (Verdict::Bad, format!("{url}: the environment has no {name}"))
        }
        Transport::Http { url, .. } => (Verdict::Good, format!("{url} (not asked)")),
    };
    Finding { what: "server", verdict, text }
}

fn found(program: &str, cwd: Option<&Path>) -> bool {
    if program.contains('/') {
        return cwd.unwrap_or(Path::new(".")).join(program).is_file();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

fn devices(plan: &Plan) -> Finding {
    let names = plan.engine.devices.join(", ");
    let (verdict, text) = match plan.engine.places() {
        Ok(_) => (Verdict::Good, names),
        Err(error) => (Verdict::Bad, format!("{names}: {error}")),
    };
    Finding { what: "devices", verdict, text }
}
