//! Merges an adapter into a base's weights: `W + scale · B·A`, file by file.
//!
//! Uses only names, so it supports every architecture that PEFT supports. Every file keeps its name and
//! every tensor its type. The sum is computed in `f32` and rounded once. Files are read and written tensor by
//! tensor, so at most one of the model's tensors is in memory. The other files of the base's folder
//! (configuration, tokenizer, chat template) are copied.

use std::{collections::BTreeMap, path::Path};

use candle_core::{DType, Device, Tensor};
use safetensors::{View, tensor::TensorInfo};
use serde_json::Value;

use super::{AdapterConfig, HEAD, ModelError, WEIGHTS, name, stored};
use crate::model::{
    kernels::{Lhs, Rhs, gemm},
    ops,
    weights::{Bytes, Entry, Shard, own_name, read_json, weight_files, write_entries},
};

/// Writes the model of `base`, with the adapter of `adapter` merged in, to the empty folder `out`.
///
/// # Errors
/// Fails if the adapter has a matrix without a matching weight in the base. Files written so far stay in
/// `out`.
pub fn merge(base: &Path, adapter: &Path, out: &Path) -> Result<(), ModelError> {
    let path = adapter.join(WEIGHTS);
    let wrong = |reason: String| ModelError::Adapter { path: path.clone(), reason };
    let matrices = adapter_matrices(adapter, &AdapterConfig::load(adapter)?)?;
    let mut deltas: BTreeMap<String, Matrices> =
        matrices.into_iter().map(|(module, matrices)| (format!("{module}.weight"), matrices)).collect();
    for file in weight_files(base)? {
        let shard = Shard::open(base.join(&file))?;
        let mut entries: BTreeMap<String, Entry<'_>> = BTreeMap::new();
        for (name, info) in shard.infos() {
            let delta = own_name(&name).and_then(|own| deltas.remove(&own));
            if let Some((a, b, _)) = &delta {
                let found = [b.dims()[0], a.dims()[1]];
                if info.shape != found {
                    let shape = &info.shape;
                    return Err(wrong(format!(
                        "it would add {found:?} to `{name}`, which has shape {shape:?}"
                    )));
                }
            }
            let shard = &shard;
            let bytes = move || match delta {
                Some((a, b, scale)) => Ok(Box::new(added(shard, info, &a, &b, scale)?) as Bytes),
                None if info.data_offsets.0 == info.data_offsets.1 => Ok(Box::new([]) as Bytes),
                None => Ok(Box::new(shard.bytes(info)?) as Bytes),
            };
            let entry = Entry { dtype: info.dtype, shape: info.shape.clone(), bytes: Box::new(bytes) };
            entries.insert(name, entry);
        }
        write_entries(&out.join(file), entries)?;
    }
    if let Some(name) = deltas.keys().next() {
        return Err(wrong(format!("{} has no tensor `{name}`", base.display())));
    }
    copy_companions(base, out)
}

/// A, B and the scale of an adapted module.
type Matrices = (Tensor, Tensor, f32);

/// The matrices of the adapter in a folder, by module.
///
/// # Errors
/// If a module lacks one, their shapes do not fit, or a tensor belongs to no module.
pub fn adapter_matrices(
    folder: &Path,
    config: &AdapterConfig,
) -> Result<BTreeMap<String, Matrices>, ModelError> {
    let path = folder.join(WEIGHTS);
    let wrong = |reason: String| ModelError::Adapter { path: path.clone(), reason };
    let mut matrices = stored(&path)?;
    let module = |name: &String| Some(name.strip_prefix(HEAD)?.strip_suffix(".lora_B.weight")?.to_owned());
    let modules: Vec<String> = matrices.keys().filter_map(module).collect();
    let mut paired = BTreeMap::new();
    for module in modules {
        let (rank, scale) = config.of(&module).map_err(wrong)?;
        let pair = (matrices.remove(&name(&module, "A")), matrices.remove(&name(&module, "B")));
        let (Some(a), Some(b)) = pair else {
            return Err(wrong(format!("`{module}` has only one of its two matrices")));
        };
        let fits = matches!((a.dims(), b.dims()), ([of_a, _], [_, of_b]) if [of_a, of_b] == [&rank; 2]);
        if !fits {
            let (a, b) = (a.dims(), b.dims());
            return Err(wrong(format!("`{module}` has matrices {a:?} and {b:?}, its rank should be {rank}")));
        }
        paired.insert(module, (a, b, scale));
    }
    match matrices.keys().next() {
        Some(name) => Err(wrong(format!("its tensor `{name}` belongs to no LoRA pair"))),
        None => Ok(paired),
    }
}

/// Copies a model's folder: weights and other files.
pub fn copy_model(from: &Path, to: &Path) -> Result<(), ModelError> {
    for file in weight_files(from)? {
        copy(&from.join(&file), &to.join(&file))?;
    }
    copy_companions(from, to)
}

/// Copies an adapter in PEFT's format. `base` becomes the name of its base model, if known: a hub id with its
/// revision, or a path.
pub fn copy_adapter(from: &Path, base: Option<(&str, Option<&str>)>, to: &Path) -> Result<(), ModelError> {
    AdapterConfig::load(from)?;
    copy(&from.join(WEIGHTS), &to.join(WEIGHTS))?;
    let mut config: Value = read_json(&from.join("adapter_config.json"))?;
    if let Some((name, revision)) = base {
        config["base_model_name_or_path"] = name.into();
        config["revision"] = revision.into();
    }
    let path = to.join("adapter_config.json");
    std::fs::write(&path, format!("{config:#}\n")).map_err(|source| ModelError::Write { path, source })
}

fn copy(from: &Path, to: &Path) -> Result<(), ModelError> {
    let mut file =
        std::fs::File::open(from).map_err(|source| ModelError::Read { path: from.to_owned(), source })?;
    // Not `fs::copy`, which also copies permissions: files in a store are read-only.
    let write = |source| ModelError::Write { path: to.to_owned(), source };
    let mut copy = std::fs::File::create(to).map_err(write)?;
    std::io::copy(&mut file, &mut copy).map_err(write)?;
    Ok(())
}

/// The bytes of `W + scale · B·A`, in the type and shape of W.
fn added(
    shard: &Shard,
    info: &TensorInfo,
    a: &Tensor,
    b: &Tensor,
    scale: f32,
) -> Result<Vec<u8>, ModelError> {
    let (rank, outputs, inputs) = (a.dims()[0], b.dims()[0], a.dims()[1]);
    let w = Tensor::from_raw_buffer(&shard.bytes(info)?, info.dtype.try_into()?, &info.shape, &Device::Cpu)?;
    let sum = w.to_dtype(DType::F32)?.copy()?;
    let (a, b) = (ops::values(a)?, ops::values(b)?);
    let mut delta = vec![0.0; outputs * inputs];
    gemm(outputs, Lhs::rows(&b, rank), Rhs::rows(&a, rank, inputs), &mut delta, inputs, false);
    ops::update(&sum, |sum| sum.iter_mut().zip(&delta).for_each(|(sum, delta)| *sum += scale * delta))?;
    Ok(View::data(&sum.to_dtype(w.dtype())?).into_owned())
}

/// The folder of a model's named chat templates.
const TEMPLATES: &str = "additional_chat_templates";

/// Copies a model folder's other files. Overwrites nothing.
pub fn copy_companions(from: &Path, to: &Path) -> Result<(), ModelError> {
    let reading = |source| ModelError::Read { path: from.to_owned(), source };
    for item in std::fs::read_dir(from).map_err(reading)? {
        let path = item.map_err(reading)?.path();
        let extension = path.extension().unwrap_or_default();
        let weights =
            ["safetensors", "bin", "pt", "pth", "gguf", "msgpack", "h5"].iter().any(|w| extension == *w);
        let Some(target) = path.file_name().map(|name| to.join(name)) else { continue };
        if path.is_file() && !weights && !target.exists() {
            copy(&path, &target)?;
        } else if path.is_dir() && target.file_name().is_some_and(|name| name == TEMPLATES) {
            std::fs::create_dir_all(&target)
                .map_err(|source| ModelError::Write { path: target.clone(), source })?;
            copy_companions(&path, &target)?;
        }
    }
    Ok(())
}
