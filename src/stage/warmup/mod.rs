//! `warmup`: trains a base model from scratch, so that a run needs no download.
//!
//! A scripted worker, which makes mistakes on purpose, answers training questions on the live server. A
//! tokenizer is trained on its traces, then a small decoder. The output is an ordinary Hugging Face folder.

mod checkpoint;
pub mod corpus;
mod folder;
mod phrases;
mod tokenizer;
pub mod traces;
mod train;

#[cfg(test)]
mod tests;

use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Metrics, StageError,
    memory::{self, Policy},
    prospect::{Outlook, Prospect},
    scenarios::{Families, Live, ScenarioError},
};
use crate::{
    data::{self, Scenario, Tool},
    engine::{Trainer, check_trained},
    error::{Class, Diagnostic, Result},
    model::{Decoder, Design, Init, ModelConfig, kernels::Heads},
    usage::Usage,
};
use corpus::Dialect;
pub use train::SHARES;
use train::TrainParams;

#[derive(Debug, Deserialize)]
struct Params {
    families: PathBuf,
    traces: usize,
    phrases: usize,
    #[serde(flatten)]
    shape: Shape,
    #[serde(flatten)]
    train: TrainParams,
}

#[derive(Debug, Deserialize)]
struct Shape {
    vocabulary: usize,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum WarmupError {
    #[error("no decoder has this shape: {reason}")]
    Shape { reason: String },
    #[error("a vocabulary of {vocabulary} cannot hold the {smallest} tokens it begins with")]
    Vocabulary { vocabulary: usize, smallest: usize },
    #[error("cannot write {path}")]
    Write {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the tokenizer cannot be made: {reason}")]
    Tokenizer { reason: String },
    #[error("tool `{tool}` has a function schema that is not JSON")]
    Schema {
        tool: String,
        #[source]
        source: serde_json::Error,
    },
}

impl Diagnostic for WarmupError {
    fn code(&self) -> &'static str {
        match self {
            Self::Shape { .. } => "warmup::shape",
            Self::Vocabulary { .. } => "warmup::vocabulary",
            Self::Write { .. } => "warmup::write",
            Self::Tokenizer { .. } => "warmup::tokenizer",
            Self::Schema { .. } => "warmup::schema",
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Self::Vocabulary { .. } => Some("raise `vocabulary`, or lower `phrases`".into()),
            _ => None,
        }
    }

    fn class(&self) -> Class {
        match self {
            Self::Shape { .. } | Self::Vocabulary { .. } => Class::Usage,
            _ => Class::Work,
        }
    }
}

/// Writes the folder `policy` and `steps.parquet`.
pub async fn run(context: &Context) -> Result<Metrics> {
    let params: Params = context.params()?;
    let families = Families::load(&params.families)?;
    let tools: Vec<Tool> = data::read(&context.input("tools")?.path)?;
    let scenarios: Vec<Scenario> = data::read(&context.input("scenarios")?.path)?;
    let server = context.server.as_ref().ok_or_else(|| StageError::NoInput { role: "server".into() })?;

    let live = Live::new(server, &tools);
    let (observer, cancel) = (&*context.observer, &context.cancel);
    let traces =
        traces::traces(&families, &scenarios, &live, params.traces, context.seed, observer, cancel).await;
    context.meter.add(Usage { tool_calls: live.calls() as u64, ..Usage::default() });
    live.close().await;
    let traces = traces?;

    observer.phase("building the tokenizer", 0);
    let folder = context.output.join("policy");
    std::fs::create_dir_all(&folder).map_err(|source| WarmupError::Write { path: folder.clone(), source })?;
    let functions = tools.iter().map(schema).collect::<Result<Vec<Value>, _>>()?;
    let file = |name: &str| context.files.get(name).map_or("", |text| text.as_str());
    let dialect = Dialect {
        template: file("template"),
        system: file("system").trim(),
        tools: &functions,
        vocabulary: params.shape.vocabulary,
        phrases: params.phrases,
        context: params.shape.context,
    };
    let chat = corpus::write_chat(&folder, &traces, &dialect)?;
    let examples = corpus::examples(&traces, &chat)?;

    let places = context.held.bases.open_devices(&context.engine)?;
    context.held.bases.make_room(&places, memory::beside("warmup", context, &[]));
    let config = params.shape.model();
    check_trained(&config, None, &places, memory::MOMENTS_OF_WARMUP)?;
    let decoder = Decoder::random(config, Init { seed: context.seed, deviation: 0.02 })?;
    let device = &places.first.device;
    let decoder = if device.is_cpu() { decoder } else { decoder.replica(device)? };
    let mut trainer = Trainer::across(decoder, |all| params.train.rules(all), &places)?;
    let steps = train::train(&mut trainer, &examples, &params.train, context)?;
    trainer.decoder.save(&folder)?;
    data::write(&context.output.join("steps.parquet"), &steps)?;

    let tokens: usize = examples.iter().map(|(tokens, _)| tokens.len()).sum();
    let last = &steps[steps.len().saturating_sub(20)..];
    let loss = last.iter().map(|step| step.loss).sum::<f64>() / last.len().max(1) as f64;
    let named = [
        ("traces", traces.len() as f64),
        ("worker_success", traces::success(&traces, &scenarios)),
        ("tokens", steps.iter().map(|step| step.tokens as f64).sum()),
        ("tokens_per_trace", tokens as f64 / examples.len().max(1) as f64),
        ("loss", loss),
    ];
    Ok(named.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}

fn schema(tool: &Tool) -> Result<Value, WarmupError> {
    serde_json::from_str(&tool.function)
        .map_err(|source| WarmupError::Schema { tool: tool.name.clone(), source })
}

/// Checks the families file, the shape, and that there are traces to train on.
pub fn look(prospect: &Prospect<'_>) -> Outlook {
    let mut outlook = Outlook::default();
    let Some(params) = prospect.params::<Params>(&mut outlook) else { return outlook };
    let config = params.shape.model();
    if (prospect.finished)("policy").is_none() {
        outlook.take("families", prospect.check_families(&params.families));
        let smallest = tokenizer::SPECIAL.len() + 256 + tokenizer::MARKS.len() + params.phrases;
        if params.shape.vocabulary < smallest {
            let vocabulary = params.shape.vocabulary;
            outlook.object("vocabulary", WarmupError::Vocabulary { vocabulary, smallest });
        }
        if let Err(reason) = config.check() {
            outlook.object("heads", WarmupError::Shape { reason });
        }
        if prospect.tasks().is_some_and(|tasks| tasks.solved == 0) {
            outlook.object("scenarios", ScenarioError::NoReference);
        }
    }
    let folder = (prospect.finished)("policy");
    outlook.with("policy", Policy { config, adapter: None, folder }.into())
}

/// The shape of the model that these parameters produce.
pub fn shape(params: &Map<String, Value>) -> Option<ModelConfig> {
    let shape: Shape = serde_json::from_value(Value::Object(params.clone())).ok()?;
    Some(shape.model())
}

impl Shape {
    fn model(&self) -> ModelConfig {
        ModelConfig {
            vocabulary: self.vocabulary,
            hidden: self.hidden,
            intermediate: self.intermediate,
            layers: self.layers,
            heads: Heads { query: self.heads, kv: self.kv_heads, dim: self.head_dim },
            context: self.context,
            rope_theta: 10_000.0,
            norm_epsilon: 1e-6,
            tied: true,
            design: Design::default(),
        }
    }
}
