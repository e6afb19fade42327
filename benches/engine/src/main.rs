//! Measures how fast the engine samples and trains on this machine, and how much memory that takes.
//!
//! It measures decoders with random weights, which need no files and no server, or a model folder.
//! `benches/peers/` runs the same workload with other tools.

mod against;
// The same allocator as the product's, because it decides times and peaks.
#[path = "../../../src/allocator.rs"]
mod allocator;
#[cfg_attr(not(feature = "cuda"), path = "cuda_disabled.rs")]
mod cuda;
mod machine;
mod parity;
mod work;

use std::{
    io::{Write, stderr, stdout},
    path::PathBuf,
    process::ExitCode,
};

use clap::{Args, Parser, ValueEnum};
use mcprl_base::{
    child,
    error::{Class, Diagnostic, Failure, Result},
};
use mcprl_engine::{
    EngineSpec,
    model::{kernels::Format, ops::composed},
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use against::{Comparison, Stored};
use machine::Machine;
use work::{Decode, Model, Training};

/// Measures how fast this machine samples and trains.
#[derive(Parser)]
#[command(version, max_term_width = 100)]
struct Bench {
    /// Print JSON: data on standard output, errors on standard error.
    #[arg(long)]
    json: bool,
    /// The shape of the decoder.
    #[arg(long, value_enum, default_value_t = Shape::Demo)]
    shape: Shape,
    /// A model folder to measure instead of random weights.
    #[arg(long, value_name = "FOLDER", conflicts_with = "shape")]
    model: Option<PathBuf>,
    /// The device to measure: `cpu` or `cuda:N`.
    #[arg(long, default_value = "cpu")]
    device: String,
    /// Data type of frozen weights.
    #[arg(long, value_parser = format, default_value = "f32")]
    dtype: Format,
    /// Worker threads; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Run only this measurement.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Compare with a file that `mcprl-bench --json` wrote on this machine; fails if training or decoding is
    /// slower by more than 15 %.
    #[arg(long, value_name = "FILE")]
    against: Option<PathBuf>,
    /// Compute the values that `benches/gpu/parity.py` compares with PyTorch, reading from and writing to
    /// this folder, and measure nothing.
    #[arg(long, value_name = "FOLDER", hide = true)]
    parity: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

/// The size of the workload, in tokens and sequences.
#[derive(Args, Clone, Debug, Serialize, Deserialize)]
pub struct Load {
    /// Tokens in the prefix that all sequences share.
    #[arg(long, default_value_t = 100)]
    prefix: usize,
    /// Tokens in a group's question.
    #[arg(long, default_value_t = 20)]
    question: usize,
    /// Tokens in an episode after its question.
    #[arg(long, default_value_t = 100)]
    episode: usize,
    /// Train on every Nth token of an episode.
    #[arg(long, default_value_t = 2)]
    trained_every: usize,
    /// Sequences per group.
    #[arg(long, default_value_t = 8)]
    group: usize,
    /// Groups per training step.
    #[arg(long, default_value_t = 4)]
    groups: usize,
    /// Rank of the adapters.
    #[arg(long, default_value_t = 16)]
    rank: usize,
    /// Batch sizes to decode with.
    #[arg(long, value_delimiter = ',', default_values_t = [1, 8, 32, 128])]
    batch: Vec<usize>,
    /// Tokens sampled per sequence.
    #[arg(long, default_value_t = 200)]
    new: usize,
    /// Runs of a training step; the fastest is reported.
    #[arg(long, default_value_t = 5)]
    runs: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// The decoder of the sqlite demo: 4 layers of width 128.
    Demo,
    /// Qwen3-0.6B.
    #[value(name = "qwen3-0.6b")]
    #[serde(rename = "qwen3-0.6b")]
    Qwen3Small,
    /// Qwen3.5-0.8B, without vision.
    #[value(name = "qwen3.5-0.8b")]
    #[serde(rename = "qwen3.5-0.8b")]
    Qwen35Small,
    /// Qwen3-4B.
    #[value(name = "qwen3-4b")]
    #[serde(rename = "qwen3-4b")]
    Qwen3Medium,
    /// Qwen3-8B.
    #[value(name = "qwen3-8b")]
    #[serde(rename = "qwen3-8b")]
    Qwen3Large,
}

fn format(name: &str) -> std::result::Result<Format, String> {
    let known = [Format::F32, Format::F16, Format::Bf16, Format::Nf4];
    known.into_iter().find(|format| format.name() == name).ok_or_else(|| "one of f32, f16, bf16, nf4".into())
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    Training,
    /// Training without prefix sharing.
    Unshared,
    Decode,
}

#[derive(Debug, thiserror::Error, Diagnostic)]
#[error("cannot start the async runtime")]
#[diagnostic(code = "bench::no_runtime")]
struct NoRuntime(#[source] std::io::Error);

fn main() -> ExitCode {
    allocator::configure();
    mcprl_engine::set_allocator_trim(allocator::trim);
    child::use_small_pages();
    let bench = Bench::parse();
    match bench.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            bench.print_error(&failure);
            ExitCode::from(if failure.class() == Class::Usage { 2 } else { 1 })
        }
    }
}

fn print(text: &str) {
    _ = writeln!(stdout(), "{}", text.trim_end());
}

impl Bench {
    fn execute(&self) -> Result<()> {
        let spec = EngineSpec {
            devices: vec![self.device.clone()],
            threads: self.threads,
            dtype: Some(self.dtype),
            ..EngineSpec::default()
        };
        if let Some(folder) = &self.parity {
            let written = parity::write(folder, self.dtype, &spec.open_devices()?)?;
            print(&written.display().to_string());
            return Ok(());
        }
        let stored = self.against.as_deref().map(Stored::read).transpose()?;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(NoRuntime)?;
        let report = runtime.block_on(self.measure(&spec, stored.as_ref()))?;
        print(&if self.json { json!(report).to_string() } else { report.to_text() });
        if let Some(stored) = stored {
            stored.check_speed(&report.against)?;
        }
        Ok(())
    }

    fn print_error(&self, failure: &Failure) {
        let hint = failure.hint().map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
        _ = match self.json {
            true => writeln!(stderr(), "{}", json!({ "error": failure })),
            false => writeln!(stderr(), "error: {failure}{hint}"),
        };
    }

    async fn measure(&self, spec: &EngineSpec, stored: Option<&Stored>) -> Result<Report> {
        let places = spec.open_devices()?;
        let (threads, device) = (places.threads(), &places.first.device);
        let wanted = |part| self.only.is_none_or(|only| only == part);
        let model = Model { shape: self.shape, folder: self.model.as_deref(), format: self.dtype };
        let setup = Setup {
            cpu: mcprl_engine::cpu(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernels: machine::name(device),
            device: self.device.clone(),
            threads,
            shape: self.model.is_none().then_some(self.shape),
            model: self.model.clone(),
            dtype: self.dtype,
            load: self.load.clone(),
        };
        let mut report = Report {
            setup,
            machine: None,
            training: None,
            unshared: None,
            decode: Vec::new(),
            against: Vec::new(),
        };
        if let Some(stored) = stored {
            stored.check_setup(&report)?;
        }
        if wanted(Part::Training) {
            report.training = Some(work::training(model, &self.load, &places, true)?);
        }
        if wanted(Part::Unshared) {
            report.unshared = Some(work::training(model, &self.load, &places, false)?);
        }
        if wanted(Part::Decode) {
            report.decode = work::decode(model, &self.load, &places).await?;
        }
        // Measured last, so that its memory does not count towards the workload's.
        report.machine = Some(match device.is_cpu() && !composed::forced() {
            true => Machine::measure(threads)?,
            false => Machine::measure_device(device)?,
        });
        if let Some(stored) = stored {
            report.against = stored.compare(&report)?;
        }
        Ok(report)
    }
}

/// What the figures depend on.
#[derive(Debug, Serialize, Deserialize)]
struct Setup {
    /// As the processor names itself; empty where the system does not report it.
    cpu: String,
    cores: usize,
    kernels: String,
    device: String,
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Shape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<PathBuf>,
    dtype: Format,
    load: Load,
}

#[derive(Debug, Serialize, Deserialize)]
struct Report {
    #[serde(flatten)]
    setup: Setup,
    machine: Option<Machine>,
    training: Option<Training>,
    unshared: Option<Training>,
    decode: Vec<Decode>,
    #[serde(skip_deserializing, skip_serializing_if = "Vec::is_empty")]
    against: Vec<Comparison>,
}

impl Report {
    /// The measured training steps, by name.
    fn steps(&self) -> impl Iterator<Item = (&'static str, &Training)> {
        let steps =
            [("training, prefixes shared", &self.training), ("training, nothing shared", &self.unshared)];
        steps.into_iter().filter_map(|(name, training)| Some((name, training.as_ref()?)))
    }

    /// The table that is printed without `--json`.
    fn to_text(&self) -> String {
        let Setup { kernels, threads, dtype, .. } = &self.setup;
        let mut text = format!("kernels {kernels}, {threads} threads, {}\n", dtype.name());
        let mut line = |name: &str, value: String| text += &format!("{name:<46}{value:>18}\n");
        let machine = self.machine.as_ref();
        if let Some(machine) = machine {
            line("matrix product, f32", format!("{:.0} GFLOP/s", machine.f32));
            line("matrix product, bf16", format!("{:.0} GFLOP/s", machine.bf16));
            line("memory", format!("{:.1} GB/s", machine.memory));
        }
        for (name, training) in self.steps() {
            line(name, format!("{:.0} tokens/s", training.tokens_per_second));
            line("  one step", format!("{:.3} s", training.seconds));
            if let Some(products) = &training.products {
                line("  its matrix products", format!("{:.0} % of the time", 100.0 * products.share));
                line("  while they run", format!("{:.0} GFLOP/s", products.gflops));
            }
            line("  peak memory", format!("{:.0} MiB", training.peak_mib));
            if let Some(planned) = training.planned_mib {
                line("  peak memory as planned", format!("{planned:.0} MiB"));
            }
        }
        if let (Some(shared), Some(unshared)) = (&self.training, &self.unshared) {
            line("gain from sharing", format!("{:.2} ×", unshared.seconds / shared.seconds));
        }
        for decode in &self.decode {
            line(&decode.name(), format!("{:.0} tokens/s", decode.tokens_per_second));
            line("  prompts of all of them", format!("{:.3} s", decode.prefill_seconds));
            line("  peak memory", format!("{:.0} MiB", decode.peak_mib));
            if let Some(planned) = decode.planned_mib {
                line("  peak memory as planned", format!("{planned:.0} MiB"));
            }
        }
        for Comparison { figure, ratio } in &self.against {
            line(&format!("against the stored run: {figure}"), format!("{ratio:.2} × the time"));
        }
        text
    }
}
