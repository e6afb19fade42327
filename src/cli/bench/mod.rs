//! `mcprl bench`: how fast the engine samples and trains on this machine, and how much memory that takes.
//!
//! It measures decoders with random weights, which need no files and no server, or a model folder.
//! `benches/peers/` runs the same workload with other tools.

#[cfg_attr(not(feature = "cuda"), path = "cuda_disabled.rs")]
mod cuda;
mod machine;
mod parity;
mod work;

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{Outcome, runtime};
use crate::{
    engine::EngineSpec,
    error::Result,
    model::{kernels::Format, ops::composed},
    ui::{OutputFormat, Printer},
};
use machine::Machine;
use work::{Decode, Model, Training};

#[derive(Args)]
pub struct Bench {
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
    #[arg(long, value_enum, default_value_t = Dtype::F32)]
    dtype: Dtype,
    /// Worker threads; all cores by default.
    #[arg(long)]
    threads: Option<usize>,
    /// Run only this measurement.
    #[arg(long, value_enum)]
    only: Option<Part>,
    /// Compute the values that `benches/gpu/parity.py` compares with PyTorch, reading from and writing to
    /// this folder, and measure nothing.
    #[arg(long, value_name = "FOLDER", hide = true)]
    parity: Option<PathBuf>,
    #[command(flatten)]
    load: Load,
}

/// The size of the workload, in tokens and sequences.
#[derive(Args, Clone, Debug, Serialize)]
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

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// The decoder of the sqlite demo: 4 layers of width 128.
    Demo,
    /// Qwen3-0.6B.
    #[value(name = "qwen3-0.6b")]
    #[serde(rename = "qwen3-0.6b")]
    Qwen3Small,
    /// Qwen3-4B.
    #[value(name = "qwen3-4b")]
    #[serde(rename = "qwen3-4b")]
    Qwen3Medium,
    /// Qwen3-8B.
    #[value(name = "qwen3-8b")]
    #[serde(rename = "qwen3-8b")]
    Qwen3Large,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
pub enum Dtype {
    F32,
    F16,
    Bf16,
    Nf4,
}

impl From<Dtype> for Format {
    fn from(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::F16 => Self::F16,
            Dtype::Bf16 => Self::Bf16,
            Dtype::Nf4 => Self::Nf4,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Part {
    Training,
    /// Training without prefix sharing.
    Unshared,
    Decode,
}

impl Bench {
    pub fn execute(self, printer: Printer) -> Result<Outcome> {
        let spec = EngineSpec {
            devices: vec![self.device.clone()],
            threads: self.threads,
            dtype: Some(self.dtype.into()),
            kv_cache_mib: None,
        };
        if let Some(folder) = &self.parity {
            let written = parity::write(folder, self.dtype.into(), &spec.open_devices()?)?;
            printer.data(&written.display().to_string());
            return Ok(Outcome::Success);
        }
        let report = runtime()?.block_on(self.measure(&spec))?;
        printer.data(&match printer.format {
            OutputFormat::Json => serde_json::json!(report).to_string(),
            OutputFormat::Human => report.to_text(),
        });
        Ok(Outcome::Success)
    }

    async fn measure(&self, spec: &EngineSpec) -> Result<Report> {
        let places = spec.open_devices()?;
        let (threads, device) = (places.threads(), &places.first.device);
        let wanted = |part| self.only.is_none_or(|only| only == part);
        let format = self.dtype.into();
        let model = Model { shape: self.shape, folder: self.model.as_deref(), format };
        let mut report = Report {
            kernels: machine::name(device),
            device: self.device.clone(),
            threads,
            shape: self.model.is_none().then_some(self.shape),
            model: self.model.clone(),
            dtype: format,
            load: self.load.clone(),
            machine: None,
            training: None,
            unshared: None,
            decode: Vec::new(),
        };
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
        Ok(report)
    }
}

#[derive(Debug, Serialize)]
struct Report {
    kernels: String,
    device: String,
    threads: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    shape: Option<Shape>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<PathBuf>,
    dtype: Format,
    load: Load,
    machine: Option<Machine>,
    training: Option<Training>,
    unshared: Option<Training>,
    decode: Vec<Decode>,
}

impl Report {
    /// The table that `mcprl bench` prints.
    fn to_text(&self) -> String {
        let mut text = format!("kernels {}, {} threads, {}\n", self.kernels, self.threads, self.dtype.name());
        let mut line = |name: &str, value: String| text += &format!("{name:<46}{value:>18}\n");
        let machine = self.machine.as_ref();
        if let Some(machine) = machine {
            line("matrix product, f32", format!("{:.0} GFLOP/s", machine.f32));
            line("matrix product, bf16", format!("{:.0} GFLOP/s", machine.bf16));
            line("memory", format!("{:.1} GB/s", machine.memory));
        }
        for (name, training) in [("prefixes shared", &self.training), ("nothing shared", &self.unshared)] {
            let Some(training) = training else { continue };
            line(&format!("training, {name}"), format!("{:.0} tokens/s", training.tokens_per_second));
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
            let name = format!("decode, {} sequences", decode.sequences);
            line(&name, format!("{:.0} tokens/s", decode.tokens_per_second));
            line("  prompts of all of them", format!("{:.3} s", decode.prefill_seconds));
            line("  peak memory", format!("{:.0} MiB", decode.peak_mib));
            if let Some(planned) = decode.planned_mib {
                line("  peak memory as planned", format!("{planned:.0} MiB"));
            }
        }
        text
    }
}
