//! Adapters in PEFT's format: attaching to a decoder, saving, and merging into a model's weights.

mod config;
mod merge;
mod size;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use candle_core::{Device, Tensor};
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};

use super::{
    Decoder, Dropout, Linear, LinearShape, Lora, Matrix, ModelConfig, ModelError, Role,
    weights::{own_name, read_safetensors, write_safetensors},
};

use config::in_larger_model;
pub use config::{AdapterConfig, Targets};
pub use merge::{adapter_matrices, copy_adapter, copy_companions, copy_model, merge};
pub use size::AdapterSize;

/// Returns the tensor of this name and shape. The last argument is `A` or `B`.
type TensorReader<'a> = &'a mut dyn FnMut(&str, &[usize], &str) -> Result<Tensor, ModelError>;

/// Attaches, loads and saves adapters.
pub struct Adapter;

/// The files of a PEFT adapter: its configuration and its matrices.
pub const ADAPTER_FILES: [&str; 2] = ["adapter_config.json", WEIGHTS];
const WEIGHTS: &str = "adapter_model.safetensors";

/// The name of a matrix of a module's adapter. `part` is `A` or `B`.
fn name(module: &str, part: &str) -> String {
    format!("{HEAD}{module}.lora_{part}.weight")
}

/// What PEFT puts before a module's name.
const HEAD: &str = "base_model.model.";

fn module(layer: usize, linear: &str) -> String {
    format!("model.layers.{layer}.{linear}")
}

/// The matrices of an adapter's file, with the names of a decoder of its own.
fn stored(path: &Path) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let own = |name: String| match name.strip_prefix(HEAD).and_then(own_name) {
        Some(own) => format!("{HEAD}{own}"),
        None => name,
    };
    // As the adapter is called in the program that saved its module.
    let own = |name: String| own(name.replace(".default.weight", ".weight"));
    Ok(read_safetensors(path)?.into_iter().map(|(name, tensor)| (own(name), tensor)).collect())
}

/// Every linear layer, in parameter order: its layer, its full name and its role.
fn linears(decoder: &mut Decoder) -> Vec<(usize, String, Role, &mut Linear)> {
    let config = decoder.config.clone();
    let mut linears = Vec::new();
    for (index, layer) in decoder.layers.iter_mut().enumerate() {
        let shapes = config.linears(config.layer(index));
        let named = shapes.iter().zip(&mut layer.linears);
        linears.extend(named.map(|(shape, linear)| (index, module(index, &shape.name), shape.role, linear)));
    }
    linears
}

/// Whether `all-linear` includes this layer. PEFT does not treat routers and experts as linear layers.
fn is_plain_linear(role: Role) -> bool {
    matches!(role, Role::Attention | Role::Gate | Role::FeedForward)
}

impl Adapter {
    /// Attaches a new adapter to the targeted layers: A uniform within ±1/√in as in PEFT, B zero.
    pub fn fresh(decoder: &mut Decoder, config: &AdapterConfig, seed: u64) -> Result<(), ModelError> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let wrong = |reason| ModelError::Targets { reason };
        Self::put(decoder, config, &wrong, &mut |_, shape, part| {
            let data: Vec<f32> = match part {
                "A" => {
                    let bound = 1.0 / (shape[1] as f32).sqrt();
                    let mut uniform = || (rng.next_u32() >> 8) as f32 / (1u32 << 24) as f32;
                    (0..shape[0] * shape[1]).map(|_| (2.0 * uniform() - 1.0) * bound).collect()
                }
                _ => vec![0.0; shape[0] * shape[1]],
            };
            Ok(Tensor::from_vec(data, shape, &Device::Cpu)?)
        })
    }

    /// Loads `adapter_config.json` and `adapter_model.safetensors` onto the decoder.
    pub fn load(decoder: &mut Decoder, folder: &Path) -> Result<AdapterConfig, ModelError> {
        let (config, mut tensors) = read(&decoder.config, folder)?;
        let wrong = |reason: String| ModelError::Adapter { path: folder.join(WEIGHTS), reason };
        Self::put(decoder, &config, &wrong, &mut |name, _, _| {
            tensors.remove(name).ok_or_else(|| wrong(absent(name)))
        })?;
        Ok(config)
    }

    /// The configuration of the adapter in a folder, after checking that its files fit a model of this
    /// configuration.
    ///
    /// # Errors
    /// Like [`Self::load`], without the model.
    pub fn check(model: &ModelConfig, folder: &Path) -> Result<AdapterConfig, ModelError> {
        Ok(read(model, folder)?.0)
    }

    /// Enables dropout of the adapters' inputs for a training step, with a separate mask per layer, or
    /// disables it.
    pub fn set_dropout(decoder: &mut Decoder, rate_and_seed: Option<(f64, u64)>) {
        for (index, (.., linear)) in linears(decoder).into_iter().enumerate() {
            if let Some(lora) = &mut linear.lora {
                let mask = |(rate, seed)| Dropout::new(rate, Dropout::seed(seed, index as u64));
                lora.dropout = rate_and_seed.map(mask);
            }
        }
    }

    /// Attaches matrices to the targeted layers. `wrong` is the error for a problem in the configuration.
    fn put(
        decoder: &mut Decoder,
        config: &AdapterConfig,
        wrong: &dyn Fn(String) -> ModelError,
        tensor: TensorReader<'_>,
    ) -> Result<(), ModelError> {
        let mut any = false;
        let placement = decoder.placement().clone();
        let targeted = config.targets.matcher().map_err(wrong)?;
        for (layer, module, role, linear) in linears(decoder) {
            let device = placement.device(layer);
            let Some((rank, scale)) = config.at(role, &module, &targeted).map_err(wrong)? else { continue };
            any = true;
            let (outputs, inputs) = (linear.weight.outputs(), linear.weight.inputs());
            let a = tensor(&name(&module, "A"), &[rank, inputs], "A")?.to_device(device)?;
            let b = tensor(&name(&module, "B"), &[outputs, rank], "B")?.to_device(device)?;
            linear.lora = Some(Lora { a: Matrix::new(a)?, b: Matrix::new(b)?, scale, dropout: None });
        }
        if any { Ok(()) } else { Err(wrong(nothing_targeted(&decoder.config))) }
    }

    /// Saves the decoder's adapter in PEFT's format. `base` names the base model for readers and for PEFT.
    pub fn save(
        decoder: &Decoder,
        config: &AdapterConfig,
        base: &str,
        folder: &Path,
    ) -> Result<(), ModelError> {
        let path = folder.join("adapter_config.json");
        let is_part = decoder.config.design.is_part;
        let (mut tensors, mut attached) = (BTreeMap::new(), Vec::new());
        for (index, layer) in decoder.layers.iter().enumerate() {
            let shapes = decoder.config.linears(decoder.config.layer(index));
            for (shape, linear) in shapes.iter().zip(&layer.linears) {
                if let Some(lora) = &linear.lora {
                    let own = module(index, &shape.name);
                    let module = if is_part { in_larger_model(&own) } else { own.clone() };
                    tensors.insert(name(&module, "A"), lora.a.tensor()?);
                    tensors.insert(name(&module, "B"), lora.b.tensor()?);
                    attached.push(own);
                }
            }
        }
        write_safetensors(&folder.join(WEIGHTS), &tensors)?;
        let shapes = decoder.config.all_linears();
        let plain = shapes.iter().filter(|shape| is_plain_linear(shape.role));
        let mut modules: Vec<&str> = Vec::new();
        for module in plain.map(|shape| last_part(&shape.name)) {
            if !modules.contains(&module) {
                modules.push(module);
            }
        }
        // Other parts have modules with the same suffixes.
        let wrong = |reason| ModelError::Config { path: path.clone(), reason };
        let listed = is_part.then(|| config.listing(&attached)).transpose().map_err(wrong)?;
        let written = listed.as_ref().unwrap_or(config).to_json(base, &modules);
        std::fs::write(&path, format!("{written:#}\n")).map_err(|source| ModelError::Write { path, source })
    }
}

/// An adapter's configuration and matrices. Exactly the matrices that its targets need in a model of this
/// configuration.
fn read(model: &ModelConfig, folder: &Path) -> Result<(AdapterConfig, BTreeMap<String, Tensor>), ModelError> {
    let config = AdapterConfig::load(folder)?;
    let path = folder.join(WEIGHTS);
    let wrong = |reason: String| ModelError::Adapter { path: path.clone(), reason };
    let tensors = stored(&path)?;
    let mut unused: BTreeSet<&String> = tensors.keys().collect();
    let targeted = config.targets.matcher().map_err(wrong)?;
    let of = |layer| model.linears(model.layer(layer)).into_iter().map(move |shape| (layer, shape));
    for (layer, shape) in (0..model.layers).flat_map(of) {
        let module = module(layer, &shape.name);
        let Some((rank, _)) = config.at(shape.role, &module, &targeted).map_err(wrong)? else { continue };
        for (part, expected) in [("A", [rank, shape.inputs]), ("B", [shape.outputs, rank])] {
            let name = name(&module, part);
            let Some(tensor) = tensors.get(&name) else { return Err(wrong(absent(&name))) };
            if tensor.dims() != expected {
                let found = tensor.dims();
                return Err(wrong(format!(
                    "its tensor `{name}` has shape {found:?}, here it is {expected:?}"
                )));
            }
            unused.remove(&name);
        }
    }
    drop(targeted);
    if let Some(name) = unused.first() {
        let reason = format!("its tensor `{name}` belongs to no targeted linear layer of the model");
        return Err(wrong(reason));
    }
    match tensors.is_empty() {
        true => Err(wrong(nothing_targeted(model))),
        false => Ok((config, tensors)),
    }
}

fn absent(name: &str) -> String {
    format!("it has no tensor `{name}`, which its targets require")
}

fn last_part(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn nothing_targeted(config: &ModelConfig) -> String {
    let shapes = config.all_linears();
    let mut names: Vec<&str> = shapes.iter().map(|shape| last_part(&shape.name)).collect();
    names.sort_unstable();
    names.dedup();
    format!("the targets name no linear layer of the model, which has {}", names.join(", "))
}

impl Targets {
    /// Layers of which one has a target if any layer has: the first of each kind, or all.
    fn layers_to_try(&self, config: &ModelConfig) -> Vec<usize> {
        if config.all_linears().iter().any(|shape| self.depend_on_layer(&shape.name)) {
            return (0..config.layers).collect();
        }
        let first = |kind| (0..config.layers).find(|layer| config.layer(*layer).by_weights() == kind);
        config.kinds().into_iter().filter_map(|(kind, _)| first(kind)).collect()
    }

    /// Checks that a model of this configuration has a targeted layer.
    ///
    /// # Errors
    /// The error that attaching the adapter would give.
    pub fn check(&self, config: &ModelConfig) -> Result<(), ModelError> {
        let wrong = |reason| ModelError::Targets { reason };
        let targeted = self.matcher().map_err(wrong)?;
        let is_targeted = |layer: usize, shape: &LinearShape| {
            self.include(shape.role) && targeted(&module(layer, &shape.name))
        };
        let in_layer =
            |layer| config.linears(config.layer(layer)).iter().any(|shape| is_targeted(layer, shape));
        if self.layers_to_try(config).into_iter().any(in_layer) {
            return Ok(());
        }
        Err(wrong(nothing_targeted(config)))
    }
}
