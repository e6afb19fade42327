//! `warmup`: trains a base model from scratch, so that a run needs no download.
//!
//! A scripted worker, which makes mistakes on purpose, answers training questions on the live server. A
//! tokenizer is trained on its traces, then a small decoder. The output is an ordinary Hugging Face folder.

pub mod corpus;
mod drills;
mod folder;
mod phrases;
mod plans;
mod renamed;
mod tokenizer;
pub mod traces;
mod train;

#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    Context, Metrics, StageError, StageKind,
    card::SYSTEM,
    kind::StageFuture,
    memory::{Load, workspace_bytes},
    metrics,
    preflight::{ExpectedPolicy, Preflight, PreflightContext},
    scenarios::{Families, Live, ScenarioError},
    typed,
};
use crate::{
    agent::system_prompt,
    data::{Scenario, Tool},
    engine::{Footprint, Recompute, Trainer, TrainingLoad, check_trained},
    error::{Class, Diagnostic, Result},
    model::{
        Decoder, Design, Init, ModelConfig, Placement,
        kernels::{Format, Heads},
    },
    usage::Usage,
};
use corpus::Dialect;
use tokenizer::Split;
use train::SHARES;
pub(super) use train::TrainParams;

#[derive(Debug, Deserialize)]
pub(super) struct Params {
    /// Of `[agent]`: a file with the system prompt.
    system: Option<PathBuf>,
    families: PathBuf,
    traces: usize,
    copy_drills: usize,
    rename_tools: f64,
    plan: bool,
    initial: Initial,
    phrases: usize,
    split: Split,
}

/// The weights before training.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Initial {
    Random,
    InductionHeads,
}

#[derive(Debug, Deserialize)]
pub(super) struct Shape {
    vocabulary: usize,
    hidden: usize,
    intermediate: usize,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    context: usize,
}

#[derive(Debug, thiserror::Error, strum::IntoStaticStr)]
#[strum(prefix = "warmup::", serialize_all = "snake_case")]
pub enum WarmupError {
    #[error("no decoder can have this shape: {reason}")]
    Shape { reason: String },
    #[error("a vocabulary of {vocabulary} is smaller than the {smallest} tokens that it needs")]
    Vocabulary { vocabulary: usize, smallest: usize },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: std::io::Error },
    #[error("cannot build the tokenizer: {reason}")]
    Tokenizer { reason: String },
    #[error("tool `{tool}` has a function schema that is not JSON")]
    Schema { tool: String, source: serde_json::Error },
}

impl Diagnostic for WarmupError {
    fn code(&self) -> &'static str {
        self.into()
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

/// Bytes of moments per parameter of Muon, which trains nearly all of them.
const MOMENTS: usize = size_of::<f32>();

pub struct Warmup {
    params: Params,
    shape: Shape,
    train: TrainParams,
}

impl Warmup {
    pub fn parse(params: &Map<String, Value>) -> Result<Self, StageError> {
        Ok(Self { params: typed(params)?, shape: typed(params)?, train: typed(params)? })
    }

    fn footprint(&self, load: &Load<'_>) -> Footprint {
        let config = self.shape.model();
        let rows = self.train.tokens_per_step.div_ceil(SHARES);
        let training = TrainingLoad {
            rows,
            longest: rows.min(config.context),
            workers: SHARES,
            threads: load.engine.all_threads(),
            devices: load.engine.devices.len(),
            copies: load.engine.copies(),
            recompute: false,
            adapter: None,
            moments: MOMENTS,
        };
        load.training(&config, Format::F32, training, Recompute::default())
    }

    async fn make(&self, context: &Context) -> Result<Metrics> {
        let Self { params, shape, train } = self;
        let tools: Vec<Tool> = context.read("tools")?;
        let scenarios: Vec<Scenario> = context.read("scenarios")?;
        let servers =
            context.servers.as_ref().ok_or_else(|| StageError::NoInput { role: "server".into() })?;

        let live = Live::new(servers, &tools);
        let (observer, cancel) = (&*context.observer, &context.cancel);
        let traces = async {
            let families = Families::load(&params.families)?;
            traces::traces(&families, &scenarios, &live, params.traces, context.seed, observer, cancel).await
        }
        .await;
        context.meter.add(Usage { tool_calls: live.calls() as u64, ..Usage::default() });
        live.close().await;
        let mut traces = traces?;

        observer.phase("building the tokenizer", 0);
        let folder = context.output("policy", "policy")?;
        std::fs::create_dir_all(&folder)
            .map_err(|source| WarmupError::Write { path: folder.clone(), source })?;
        let used: BTreeSet<&Option<String>> = traces.iter().map(|trace| &trace.server).collect();
        let functions = used
            .into_iter()
            .map(|server| Ok((server.clone(), tools.iter().map(schema).collect::<Result<_, _>>()?)));
        let functions = functions.collect::<Result<BTreeMap<Option<String>, Vec<Value>>, WarmupError>>()?;
        renamed::rename(&mut traces, &functions, params.rename_tools, context.seed);
        let mut template = context.text("template").to_owned();
        if params.plan {
            plans::write(&mut traces, &functions);
            template.insert_str(0, plans::DESCRIBED_FIRST);
        }
        let tools = functions.values().next().map_or(&[][..], Vec::as_slice);
        let system = system_prompt(params.system.as_deref(), context.text(SYSTEM), tools)?;
        let dialect = Dialect {
            template: &template,
            system: &system,
            tools: &functions,
            vocabulary: shape.vocabulary,
            phrases: params.phrases,
            split: params.split,
            context: shape.context,
        };
        let chats = corpus::write_chat(&folder, &traces, &dialect)?;
        let examples = corpus::examples(&traces, &chats)?;
        let groups: Vec<usize> = renamed::groups(&traces).map(<[_]>::len).collect();

        let places = context.models.bases.open_devices(&context.engine)?;
        let peak = self.footprint(&Load::of(&context.engine));
        context.models.bases.make_room(&places, workspace_bytes(&peak, &context.engine));
        let config = shape.model();
        check_trained(&config, None, &places, MOMENTS)?;
        let init = Init { seed: context.seed, deviation: 0.02 };
        let decoder = match params.initial {
            Initial::Random => Decoder::random(config, init)?,
            Initial::InductionHeads => Decoder::with_induction_heads(config, init)?,
        };
        let decoder = match places.first.device.is_cpu() {
            true => decoder,
            false => {
                let placement = Placement::across(&decoder.config, Format::F32, places.of_decoder());
                decoder.replica(&placement)?
            }
        };
        let mut trainer = Trainer::across(decoder, |all| train.rules(all), &places)?;
        trainer.cancel = context.cancel.clone();
        let drills = drills::drills(params.copy_drills, &examples, context.seed);
        let steps = train::train(&mut trainer, (&drills, &examples, &groups), train, context)?;
        trainer.decoder.save(&folder)?;
        context.write("steps", &steps)?;

        let tokens: usize = examples.iter().map(|(tokens, _)| tokens.len()).sum();
        let last = &steps[steps.len().saturating_sub(20)..];
        let loss = last.iter().map(|step| step.loss).sum::<f64>() / last.len().max(1) as f64;
        Ok(metrics([
            ("traces", traces.len() as f64),
            ("worker_success", traces::success(&traces)),
            ("tokens", steps.iter().map(|step| step.tokens as f64).sum()),
            ("tokens_per_trace", tokens as f64 / examples.len().max(1) as f64),
            ("loss", loss),
        ]))
    }
}

impl StageKind for Warmup {
    fn run<'a>(&'a self, context: &'a Context) -> StageFuture<'a, Result<Metrics>> {
        Box::pin(self.make(context))
    }

    /// Checks the families file, the shape, and that there are traces to train on.
    fn preflight(&self, context: &PreflightContext<'_>) -> Preflight {
        let Self { params, shape, .. } = self;
        let mut preflight = Preflight::default();
        let config = shape.model();
        let folder = (context.finished)("policy");
        if folder.is_none() {
            preflight.check("families", Families::load(&params.families));
            let smallest = tokenizer::SPECIAL.len() + 256 + tokenizer::MARKS.len() + params.phrases;
            if shape.vocabulary < smallest {
                let vocabulary = shape.vocabulary;
                preflight.error("vocabulary", WarmupError::Vocabulary { vocabulary, smallest });
            }
            if let Err(reason) = config.check() {
                preflight.error("heads", WarmupError::Shape { reason });
            } else if params.initial == Initial::InductionHeads
                && let Err(reason) = Decoder::check_induction_heads(&config)
            {
                preflight.error("initial", WarmupError::Shape { reason });
            }
            if context.scenarios().is_some_and(|scenarios| scenarios.solved == 0) {
                preflight.error("scenarios", ScenarioError::NoReference);
            }
        }
        preflight.with("policy", ExpectedPolicy { config, stored: Format::F32, adapter: None, folder })
    }

    fn workload(&self) -> Option<f64> {
        Some((self.params.traces * self.train.epochs) as f64).filter(|work| *work > 0.0)
    }

    fn memory(&self, load: &Load<'_>) -> Option<Footprint> {
        Some(self.footprint(load))
    }
}

fn schema(tool: &Tool) -> Result<Value, WarmupError> {
    serde_json::from_str(&tool.function)
        .map_err(|source| WarmupError::Schema { tool: tool.name.clone(), source })
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
