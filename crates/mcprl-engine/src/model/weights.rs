//! Named tensors on disk.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io::Write,
    ops::Range,
    path::{Path, PathBuf},
};

use candle_core::{DType, Device, Tensor};
use mcprl_base::document;
use memmap2::{Mmap, MmapOptions};
use safetensors::{
    Dtype, SafeTensors, View,
    tensor::{Metadata, TensorInfo},
};
use serde::{Deserialize, de::DeserializeOwned};

use super::{ModelConfig, ModelError, kernels::Format};

const ONE_FILE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A safetensors file.
pub(super) struct Shard {
    path: PathBuf,
    file: File,
    metadata: Metadata,
    /// Offset of the tensors' bytes.
    start: usize,
}

impl Shard {
    pub(super) fn open(path: PathBuf) -> Result<Self, ModelError> {
        let read = |source| ModelError::Read { path: path.clone(), source };
        let file = File::open(&path).map_err(read)?;
        let map = mapped(&file, None).map_err(read)?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| {
            let reason = document::mistaken(&map).map_or_else(|| error.to_string(), str::to_owned);
            ModelError::Safetensors { path: path.clone(), reason }
        })?;
        Ok(Self { path, file, metadata, start: size_of::<u64>() + header })
    }

    /// The header's entry for every tensor.
    pub(super) fn infos(&self) -> impl Iterator<Item = (String, &TensorInfo)> {
        self.metadata.tensors().into_iter()
    }

    /// A tensor's bytes, memory-mapped. Pages that were read count as process memory until this is dropped.
    pub(super) fn bytes(&self, info: &TensorInfo) -> Result<Mmap, ModelError> {
        let (from, to) = info.data_offsets;
        mapped(&self.file, Some(self.start + from..self.start + to))
            .map_err(|source| ModelError::Read { path: self.path.clone(), source })
    }

    /// The header's entry for a tensor. Checks its shape, and that its type is supported.
    fn info(&self, name: &str, shape: &[usize]) -> Result<&TensorInfo, ModelError> {
        let (path, name) = (self.path.clone(), name.to_owned());
        let Some(info) = self.metadata.info(&name) else {
            return Err(ModelError::MissingTensor { path, name });
        };
        if info.shape != shape {
            return Err(ModelError::Shape {
                path,
                name,
                found: info.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        match info.dtype {
            Dtype::F32 | Dtype::BF16 | Dtype::F16 => Ok(info),
            other => Err(ModelError::Stored { path, name, found: format!("{other:?}") }),
        }
    }

    /// The tensor as stored. Its values are finite.
    fn tensor(&self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        let info = self.info(name, shape)?;
        let bytes = self.bytes(info)?;
        let half = |infinite: u16| {
            bytes.chunks_exact(2).all(|b| u16::from_le_bytes([b[0], b[1]]) & infinite != infinite)
        };
        let (dtype, finite) = match info.dtype {
            Dtype::F32 => {
                let whole = |b: &[u8]| f32::from_le_bytes([b[0], b[1], b[2], b[3]]).is_finite();
                (DType::F32, bytes.chunks_exact(4).all(whole))
            }
            Dtype::BF16 => (DType::BF16, half(0x7f80)),
            _ => (DType::F16, half(0x7c00)),
        };
        if !finite {
            return Err(ModelError::NotFinite { path: self.path.clone(), name: name.to_owned() });
        }
        Ok(Tensor::from_raw_buffer(&bytes, dtype, shape, &Device::Cpu)?)
    }
}

/// Maps a whole file.
pub fn map_file(file: &File) -> std::io::Result<Mmap> {
    mapped(file, None)
}

/// Maps a file, or these bytes of it.
#[expect(unsafe_code, reason = "mapping a file is unsafe by its nature")]
fn mapped(file: &File, bytes: Option<Range<usize>>) -> std::io::Result<Mmap> {
    let mut options = MmapOptions::new();
    if let Some(bytes) = bytes {
        options.offset(bytes.start as u64).len(bytes.len());
    }
    // SAFETY: the bytes are only read, and only by value. If the file is truncated meanwhile, a signal ends
    // the process, as in every program that maps its weights.
    unsafe { options.map(file) }
}

/// `model.safetensors.index.json`
#[derive(Deserialize)]
struct Index {
    /// Tensor to file.
    weight_map: BTreeMap<String, String>,
}

/// Reads a JSON file of a model folder.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T, ModelError> {
    let text = std::fs::read(path).map_err(|source| ModelError::Read { path: path.to_owned(), source })?;
    serde_json::from_slice(&text)
        .map_err(|error| ModelError::Config { path: path.to_owned(), reason: error.to_string() })
}

/// The names of the files that contain a model's weights.
///
/// # Errors
/// Fails if the index is unreadable, or lists a file that is not in its folder by name.
pub(super) fn weight_files(folder: &Path) -> Result<BTreeSet<PathBuf>, ModelError> {
    let path = folder.join(INDEX);
    if !path.is_file() {
        return Ok(BTreeSet::from([ONE_FILE.into()]));
    }
    let Index { weight_map } = read_json(&path)?;
    match weight_map.values().find(|file| !is_file_name(file)) {
        Some(shard) => Err(ModelError::MissingShard { path, shard: shard.clone() }),
        None => Ok(weight_map.into_values().map(PathBuf::from).collect()),
    }
}

/// Whether this is a name and not a path: a file elsewhere is not part of the model.
fn is_file_name(file: &str) -> bool {
    Path::new(file).file_name().is_some_and(|name| name == file)
}

/// The weights of a model folder, in one file or several, read tensor by tensor.
pub struct Weights {
    /// The file with the tensor names: the index, or the single file.
    path: PathBuf,
    shards: Vec<Shard>,
    /// The shard of each tensor that is not yet taken, and its name there, by its name in a decoder of its own.
    remaining: BTreeMap<String, (usize, String)>,
}

/// Names of the embedding and of the matrix that gives the logits.
const EMBEDDING: &str = "model.embed_tokens.weight";
const HEAD: &str = "lm_head.weight";

/// Prefixes of torch.compile and of DataParallel, and the beginnings of names in a decoder without `model`.
const WRAPPERS: [&str; 2] = ["_orig_mod.", "module."];
const BARE: [&str; 4] = ["embed_tokens.", "embedding_norm.", "layers.", "norm."];

/// Prefixes of the tensors of a larger model that are not those of its language model.
const OTHER_PARTS: [&str; 4] = ["vision_tower.", "multi_modal_projector.", "visual.", "mtp."];

/// The name of a tensor or module of a larger model's language model in a decoder of its own. None if it belongs to another
/// part. Before 4.52, Transformers wrote `language_model.model`.
///
/// Those that compiled or parallel modules add are left out. A model without its head may have been written without `model`.
pub fn own_name(name: &str) -> Option<String> {
    let mut name = name;
    while let Some(rest) = WRAPPERS.iter().find_map(|wrapper| name.strip_prefix(wrapper)) {
        name = rest;
    }
    if BARE.iter().any(|bare| name.starts_with(bare)) {
        return Some(format!("model.{name}"));
    }
    let inner = name.strip_prefix("model.").unwrap_or(name);
    if OTHER_PARTS.iter().any(|part| inner.starts_with(part)) {
        return None;
    }
    Some(match (inner.strip_prefix("language_model."), name.strip_prefix("language_model.")) {
        (_, Some(own)) => own.to_owned(),
        (Some(own), None) => format!("model.{own}"),
        (None, None) => name.to_owned(),
    })
}

impl Weights {
    /// Maps the files of a folder. Reads only their headers.
    ///
    /// # Errors
    /// Fails if there are none, one is missing or truncated, or the index names a tensor that its file lacks.
    pub fn open(folder: &Path) -> Result<Self, ModelError> {
        let (index, one) = (folder.join(INDEX), folder.join(ONE_FILE));
        if !index.is_file() {
            if !one.is_file() {
                return Err(ModelError::NoWeights { folder: folder.to_owned() });
            }
            let shard = Shard::open(one.clone())?;
            let names = shard.metadata.tensors().into_keys();
            let remaining = names.filter_map(|name| Some((own_name(&name)?, (0, name)))).collect();
            return Ok(Self { path: one, shards: vec![shard], remaining });
        }
        let Index { weight_map } = read_json(&index)?;
        let files: Vec<&String> = weight_map.values().collect::<BTreeSet<_>>().into_iter().collect();
        let mut shards = Vec::with_capacity(files.len());
        for file in &files {
            let path = folder.join(file);
            if !is_file_name(file) || !path.is_file() {
                return Err(ModelError::MissingShard { path: index, shard: (*file).clone() });
            }
            shards.push(Shard::open(path)?);
        }
        let mut remaining = BTreeMap::new();
        for (name, file) in &weight_map {
            let shard = files.binary_search(&file).unwrap_or_default();
            if shards[shard].metadata.info(name).is_none() {
                return Err(ModelError::MissingTensor {
                    path: shards[shard].path.clone(),
                    name: name.clone(),
                });
            }
            remaining.extend(own_name(name).map(|own| (own, (shard, name.clone()))));
        }
        Ok(Self { path: index, shards, remaining })
    }

    /// The type of the weights: that of most values of the matrices. Other tensors are small, and some checkpoints keep
    /// them wider.
    pub fn format(&self) -> Format {
        let mut values: BTreeMap<Format, usize> = BTreeMap::new();
        for (_, info) in self.shards.iter().flat_map(Shard::infos) {
            let format = match info.dtype {
                Dtype::BF16 => Format::Bf16,
                Dtype::F16 => Format::F16,
                _ => Format::F32,
            };
            if info.shape.len() > 1 {
                *values.entry(format).or_default() += info.shape.iter().product::<usize>();
            }
        }
        values.into_iter().max_by_key(|(_, values)| *values).map_or(Format::F32, |(format, _)| format)
    }

    /// Checks from the headers that the files contain exactly the tensors of this configuration.
    ///
    /// # Errors
    /// Like [`Weights::take`] and [`Weights::finish`], except for values that are not finite.
    pub fn check(mut self, config: &ModelConfig) -> Result<(), ModelError> {
        for (name, shape) in config.tensors() {
            match self.remaining.remove(&name) {
                Some((shard, stored)) => _ = self.shards[shard].info(&stored, &shape)?,
                None => return Err(ModelError::MissingTensor { path: self.path, name }),
            }
        }
        self.nothing_remains(config.tied)
    }

    /// Takes a tensor of this shape, in its stored type.
    ///
    /// # Errors
    /// Fails if it is missing, has another shape or an unsupported type, or is not finite.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, ModelError> {
        match self.remaining.remove(name) {
            Some((shard, stored)) => self.shards[shard].tensor(&stored, shape),
            None => Err(ModelError::MissingTensor { path: self.path.clone(), name: name.to_owned() }),
        }
    }

    /// Fails if a tensor remains that the model has no place for, or if one that is a copy of the embedding, with `tied`, is another
    /// one: Transformers does not tie then.
    ///
    /// Ignores the frequencies that old releases saved and, with `tied`, the copy of the embedding.
    pub fn finish(&self, tied: bool) -> Result<(), ModelError> {
        self.nothing_remains(tied)?;
        match self.remaining.get(HEAD).filter(|_| tied) {
            Some(head) if !self.is_embedding(head)? => Err(ModelError::OtherHead { path: self.path.clone() }),
            _ => Ok(()),
        }
    }

    /// Whether this tensor has the values of the embedding.
    fn is_embedding(&self, (shard, name): &(usize, String)) -> Result<bool, ModelError> {
        let named = |(name, _): &(String, &TensorInfo)| own_name(name).is_some_and(|own| own == EMBEDDING);
        let found = self.shards.iter().find_map(|shard| Some((shard, shard.infos().find(named)?)));
        let Some((other_shard, (other, other_info))) = found else { return Ok(true) };
        let shard = &self.shards[*shard];
        let Some(info) = shard.metadata.info(name) else { return Ok(true) };
        if info.shape != other_info.shape {
            return Ok(false);
        }
        if info.dtype == other_info.dtype {
            let (one, two) = (shard.bytes(info)?, other_shard.bytes(other_info)?);
            return Ok(one[..] == two[..]);
        }
        let values = |shard: &Shard, name: &str| {
            let tensor = to_f32(shard.tensor(name, &info.shape)?)?;
            Ok::<_, ModelError>(tensor.flatten_all()?.to_vec1::<f32>()?)
        };
        Ok(values(shard, name)? == values(other_shard, &other)?)
    }

    fn nothing_remains(&self, tied: bool) -> Result<(), ModelError> {
        let ignored =
            |name: &&String| name.ends_with(".rotary_emb.inv_freq") || (tied && name.as_str() == HEAD);
        match self.remaining.iter().find(|(name, _)| !ignored(name)) {
            None => Ok(()),
            Some((_, (_, name))) => {
                Err(ModelError::UnknownTensor { path: self.path.clone(), name: name.clone() })
            }
        }
    }
}

/// Converts a stored tensor to the decoder's type.
pub fn to_f32(tensor: Tensor) -> Result<Tensor, ModelError> {
    Ok(tensor.to_dtype(DType::F32)?)
}

/// Reads every tensor of a safetensors file in its stored type. Copies one at a time in memory.
pub fn read_stored(path: &Path) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let shard = Shard::open(path.to_owned())?;
    let tensor = |(name, info): (String, &TensorInfo)| {
        let bytes = shard.bytes(info)?;
        let tensor = DType::try_from(info.dtype)
            .and_then(|dtype| Tensor::from_raw_buffer(&bytes, dtype, &info.shape, &Device::Cpu));
        match tensor {
            Ok(tensor) => Ok((name, tensor)),
            Err(error) => {
                let reason = format!("{name}: {error}");
                Err(ModelError::Safetensors { path: path.to_owned(), reason })
            }
        }
    };
    shard.infos().map(tensor).collect()
}

/// Reads every tensor of a safetensors file as `f32`. Its values are finite.
pub fn read_safetensors(path: &Path) -> Result<BTreeMap<String, Tensor>, ModelError> {
    let wrong = |reason: String| ModelError::Safetensors { path: path.to_owned(), reason };
    let mut named = BTreeMap::new();
    for (name, tensor) in read_stored(path)? {
        let tensor = tensor.to_dtype(DType::F32).map_err(|error| wrong(format!("{name}: {error}")))?;
        if tensor.flatten_all()?.to_vec1::<f32>()?.iter().any(|value| !value.is_finite()) {
            return Err(ModelError::NotFinite { path: path.to_owned(), name });
        }
        named.insert(name, tensor);
    }
    Ok(named)
}

/// Writes tensors so that equal tensors give equal bytes, and syncs the file. Copies at most one at a time in
/// memory.
pub fn write_safetensors(path: &Path, tensors: &BTreeMap<String, Tensor>) -> Result<(), ModelError> {
    let entry = |(name, tensor): (&String, &Tensor)| {
        let tensor = tensor.clone();
        let (dtype, shape) = (View::dtype(&tensor), tensor.dims().to_vec());
        let bytes = move || Ok(Box::new(View::data(&tensor).into_owned()) as Bytes);
        (name.clone(), Entry { dtype, shape, bytes: Box::new(bytes) })
    };
    write_entries(path, tensors.iter().map(entry).collect())
}

/// Bytes in memory, or mapped.
pub type Bytes = Box<dyn AsRef<[u8]>>;

/// A tensor to be written. `E` is the error of what makes its bytes.
pub struct Entry<'a, E = ModelError> {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Called when the tensor is written.
    pub bytes: Box<dyn FnOnce() -> Result<Bytes, E> + 'a>,
}

/// Writes tensors one after the other, with the bytes of the format's own library, and syncs the file. One is in
/// memory at a time.
///
/// # Errors
/// Fails if the file cannot be written, or with the first error of a tensor's bytes.
pub fn write_entries<E: From<ModelError>>(
    path: &Path,
    entries: BTreeMap<String, Entry<'_, E>>,
) -> Result<(), E> {
    let write = |source| ModelError::Write { path: path.to_owned(), source };
    let other = |reason: String| write(std::io::Error::other(reason));
    let mut entries: Vec<(String, Entry<'_, E>)> = entries.into_iter().collect();
    // The widest first, so that every value is aligned. The sort keeps the order of the names.
    entries.sort_by_key(|(_, entry)| std::cmp::Reverse(entry.dtype));
    let (mut infos, mut end) = (Vec::with_capacity(entries.len()), 0);
    for (name, Entry { dtype, shape, .. }) in &entries {
        let bits = shape.iter().product::<usize>() * dtype.bitsize();
        let data_offsets = (end, end + bits / 8);
        end = data_offsets.1;
        infos.push((name.clone(), TensorInfo { dtype: *dtype, shape: shape.clone(), data_offsets }));
    }
    let lengths: Vec<usize> =
        infos.iter().map(|(_, info)| info.data_offsets.1 - info.data_offsets.0).collect();
    let format = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
    let metadata = Metadata::new(Some(format), infos).map_err(|error| other(error.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|error| other(error.to_string()))?;
    header.resize(header.len().next_multiple_of(size_of::<u64>()), b' ');

    let mut file = File::create(path).map_err(write)?;
    file.write_all(&(header.len() as u64).to_le_bytes()).map_err(write)?;
    file.write_all(&header).map_err(write)?;
    for ((name, entry), length) in entries.into_iter().zip(lengths) {
        let bytes = (entry.bytes)()?;
        let bytes = (*bytes).as_ref();
        if bytes.len() != length {
            return Err(E::from(other(format!("`{name}` has {} bytes instead of {length}", bytes.len()))));
        }
        file.write_all(bytes).map_err(write)?;
    }
    Ok(file.sync_all().map_err(write)?)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use super::*;

    #[test]
    fn the_type_of_a_model_is_that_of_its_matrices() {
        let folder = tempfile::tempdir().unwrap();
        let tensor = |shape: &[usize], dtype| Tensor::zeros(shape, dtype, &Device::Cpu).unwrap();
        for (dtype, format) in
            [(DType::F32, Format::F32), (DType::F16, Format::F16), (DType::BF16, Format::Bf16)]
        {
            let tensors = BTreeMap::from([
                ("embedding".to_owned(), tensor(&[30, 4], dtype)),
                ("router".to_owned(), tensor(&[2, 4], DType::F32)),
                ("norm".to_owned(), tensor(&[500], DType::F32)),
            ]);
            write_safetensors(&folder.path().join(ONE_FILE), &tensors).unwrap();
            assert_eq!(Weights::open(folder.path()).unwrap().format(), format);
        }
    }

    #[test]
    fn files_equal_those_of_the_safetensors_library() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some.safetensors");
        let tensor = |count: usize, shape: &[usize], dtype| {
            let values: Vec<f32> = (0..count).map(|value| value as f32).collect();
            Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
        };
        let tensors = BTreeMap::from([
            ("b".to_owned(), tensor(6, &[2, 3], DType::F32)),
            ("a".to_owned(), tensor(3, &[3], DType::BF16)),
            ("c".to_owned(), tensor(5, &[5], DType::U8)),
            ("aa".to_owned(), tensor(4, &[4], DType::F32)),
            ("none".to_owned(), tensor(0, &[0], DType::F32)),
        ]);
        write_safetensors(&path, &tensors).unwrap();
        let notes = std::collections::HashMap::from([("format".to_owned(), "pt".to_owned())]);
        let expected = safetensors::serialize(&tensors, Some(notes)).unwrap();
        assert_eq!(std::fs::read(path).unwrap(), expected);
    }

    /// Bytes that are counted while they exist.
    struct Counted(Vec<u8>, Rc<Cell<usize>>);

    impl AsRef<[u8]> for Counted {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.set(self.1.get() - 1);
        }
    }

    #[test]
    fn one_tensor_is_in_memory_at_a_time_while_a_file_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let count = Rc::new(Cell::new(0));
        let entry = |index: usize| {
            let count = count.clone();
            let bytes = move || {
                assert_eq!(count.replace(1), 0);
                Ok(Box::new(Counted(vec![index as u8; 8], count)) as Bytes)
            };
            let entry = Entry::<ModelError> { dtype: Dtype::F32, shape: vec![2], bytes: Box::new(bytes) };
            (format!("t{index}"), entry)
        };
        write_entries(&folder.path().join("some.safetensors"), (0..5).map(entry).collect()).unwrap();
    }
}
