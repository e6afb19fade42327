//! Named tensors on disk.

use std::{collections::BTreeMap, path::Path};

use candle_core::{DType, Device, Tensor};

use super::ModelError;

/// Reads every tensor of a safetensors file as `f32`.
pub fn read_safetensors(path: &Path) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let bytes = std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    let wrong = |reason: String| ModelError::Safetensors { path: path.to_owned(), reason };
    let tensors = candle_core::safetensors::load_buffer(&bytes, &Device::Cpu)
        .map_err(|error| wrong(error.to_string()))?;
    let mut named = BTreeMap::new();
    for (name, tensor) in tensors {
        let tensor = tensor.to_dtype(DType::F32).map_err(|error| wrong(format!("{name}: {error}")))?;
        if tensor.flatten_all()?.to_vec1::<f32>()?.iter().any(|value| !value.is_finite()) {
            return Err(ModelError::NotFinite { path: path.to_owned(), name });
        }
        named.insert(name, tensor);
    }
    Ok(named)
}

/// Writes tensors in the order of their names, so that equal tensors are equal bytes, and syncs the file.
pub fn write_safetensors(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<(), ModelError> {
    let write = |source| ModelError::Write { path: path.to_owned(), source };
    let metadata = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let bytes = safetensors::serialize(
        tensors.iter().map(|(name, tensor)| (name.clone(), tensor.clone())),
        Some(metadata),
    )
    .map_err(|error| write(std::io::Error::other(error.to_string())))?;
    let mut file = std::fs::File::create(path).map_err(write)?;
    std::io::Write::write_all(&mut file, &bytes).map_err(write)?;
    file.sync_all().map_err(write)
}

/// The tensors of one file, taken one by one and checked against the shapes the configuration asks for.
pub struct Taken<'a> {
    pub path: &'a Path,
    pub tensors: BTreeMap<String, Tensor>,
}

impl Taken<'_> {
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let tensor = self
            .tensors
            .remove(name)
            .ok_or_else(|| ModelError::MissingTensor { path: self.path.to_owned(), name: name.to_owned() })?;
        if tensor.dims() != shape {
            return Err(ModelError::Shape {
                path: self.path.to_owned(),
                name: name.to_owned(),
                found: tensor.dims().to_vec(),
                expected: shape.to_vec(),
            });
        }
        Ok(tensor)
    }
}
