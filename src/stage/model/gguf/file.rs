//! The container: header, metadata and tensors of a GGUF file, versions 2 and 3.
//!
//! Nothing in the file is trusted. A length is compared with what is left of the file before it is used, and texts,
//! arrays and tensors stay in the mapping, so the memory that a file takes is bounded by the number of its entries.

use std::{
    collections::BTreeMap,
    fs::File,
    path::{Path, PathBuf},
};

use candle_core::{
    DType, Device,
    quantized::{GgmlDType, ggml_file::qtensor_from_ggml},
};
use memmap2::Mmap;
use safetensors::View;

use super::{Feature, GgufError, supported::TENSOR_TYPES};
use crate::model::map_file;

/// Names of the other types, for messages.
const OTHER_TYPES: [(u32, &str); 17] = [
    (9, "Q8_1"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (26, "I32"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
];

/// Far more entries of either kind than any file has.
const MOST_ENTRIES: u64 = 1 << 16;
const MOST_DIMENSIONS: u32 = 4;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Weights that are converted at a time.
const CHUNK: usize = 1 << 20;

/// A mapped file.
pub struct GgufFile {
    path: PathBuf,
    map: Mmap,
}

/// The entries of a file.
pub struct Content<'a> {
    pub path: &'a Path,
    bytes: &'a [u8],
    metadata: BTreeMap<&'a str, Value<'a>>,
    pub tensors: BTreeMap<&'a str, StoredTensor>,
}

/// Where a tensor is. Its bytes are in the file.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// `[outputs, inputs]`, as in safetensors.
    pub shape: Vec<usize>,
    pub dtype: GgmlDType,
    start: usize,
    length: usize,
}

#[derive(Debug, Clone, Copy)]
enum Value<'a> {
    Integer(i128),
    Number(f64),
    Flag(bool),
    Text(&'a [u8]),
    List(List<'a>),
}

impl<'a> Value<'a> {
    fn text(self) -> Option<&'a str> {
        match self {
            Self::Text(bytes) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }
}

/// An array of scalars or texts, with its bytes.
#[derive(Debug, Clone, Copy)]
struct List<'a> {
    kind: Kind,
    count: usize,
    bytes: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unsigned(usize),
    Signed(usize),
    Float(usize),
    Flag,
    Text,
    List,
}

impl Kind {
    fn of(number: u32) -> Result<Self, String> {
        Ok(match number {
            0 => Self::Unsigned(1),
            1 => Self::Signed(1),
            2 => Self::Unsigned(2),
            3 => Self::Signed(2),
            4 => Self::Unsigned(4),
            5 => Self::Signed(4),
            6 => Self::Float(4),
            7 => Self::Flag,
            8 => Self::Text,
            9 => Self::List,
            10 => Self::Unsigned(8),
            11 => Self::Signed(8),
            12 => Self::Float(8),
            other => return Err(format!("there is no metadata type {other}")),
        })
    }

    /// Bytes of a value; of a text or list, at least.
    fn width(self) -> usize {
        match self {
            Self::Unsigned(width) | Self::Signed(width) | Self::Float(width) => width,
            Self::Flag => 1,
            Self::Text => 8,
            Self::List => 12,
        }
    }
}

/// Reads from the front of a slice.
#[derive(Clone, Copy)]
struct Cursor<'a> {
    rest: &'a [u8],
}

type Read<T> = Result<T, String>;

impl<'a> Cursor<'a> {
    fn take(&mut self, count: u64) -> Read<&'a [u8]> {
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        let Some((taken, rest)) = self.rest.split_at_checked(count) else {
            return Err(format!("{count} bytes are announced where {} are left", self.rest.len()));
        };
        self.rest = rest;
        Ok(taken)
    }

    fn unsigned(&mut self, width: usize) -> Read<u64> {
        let mut value = [0; 8];
        value[..width].copy_from_slice(self.take(width as u64)?);
        Ok(u64::from_le_bytes(value))
    }

    fn number(&mut self) -> Read<u32> {
        Ok(self.unsigned(4)? as u32)
    }

    fn text(&mut self) -> Read<&'a [u8]> {
        let length = self.unsigned(8)?;
        self.take(length)
    }

    fn name(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.text()?).map_err(|_| "a name is not UTF-8".to_owned())
    }

    fn value(&mut self, kind: Kind) -> Read<Value<'a>> {
        Ok(match kind {
            Kind::Unsigned(width) => Value::Integer(self.unsigned(width)?.into()),
            Kind::Signed(width) => {
                let unused = 64 - 8 * width;
                Value::Integer((((self.unsigned(width)? << unused) as i64) >> unused).into())
            }
            Kind::Float(4) => Value::Number(f32::from_bits(self.number()?).into()),
            Kind::Float(_) => Value::Number(f64::from_bits(self.unsigned(8)?)),
            Kind::Flag => match self.unsigned(1)? {
                0 => Value::Flag(false),
                1 => Value::Flag(true),
                other => return Err(format!("{other} is not a truth value")),
            },
            Kind::Text => Value::Text(self.text()?),
            Kind::List => {
                let kind = Kind::of(self.number()?)?;
                let count = self.unsigned(8)?;
                if kind == Kind::List {
                    return Err("it is an array of arrays".into());
                }
                let least = count.saturating_mul(kind.width() as u64);
                let start = self.rest;
                if kind == Kind::Text {
                    if least > start.len() as u64 {
                        return Err(format!(
                            "{count} texts are announced where {} bytes are left",
                            start.len()
                        ));
                    }
                    for _ in 0..count {
                        self.text()?;
                    }
                } else {
                    self.take(least)?;
                }
                let bytes = &start[..start.len() - self.rest.len()];
                Value::List(List { kind, count: count as usize, bytes })
            }
        })
    }
}

impl GgufFile {
    /// Maps a file. Reads nothing yet.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let read = |source| GgufError::Read { path: path.to_owned(), source };
        let file = File::open(path).map_err(read)?;
        let map = map_file(&file).map_err(read)?;
        Ok(Self { path: path.to_owned(), map })
    }

    /// Reads header, metadata and the list of tensors.
    ///
    /// # Errors
    /// If the file is damaged or truncated, or stores a tensor in a type that cannot be dequantized.
    pub fn content(&self) -> Result<Content<'_>, GgufError> {
        let (path, bytes) = (self.path.as_path(), &self.map[..]);
        let wrong = |reason: String| GgufError::Malformed { path: path.to_owned(), reason };
        let mut cursor = Cursor { rest: bytes };
        if cursor.take(4).ok() != Some(b"GGUF") {
            return Err(wrong("it does not begin with `GGUF`".into()));
        }
        let version = cursor.number().map_err(wrong)?;
        if ![2, 3].contains(&version) {
            // A file for big-endian machines has its version in the upper bytes.
            let found = if version > 0xffff { "big-endian".to_owned() } else { version.to_string() };
            return Err(GgufError::Unsupported { path: path.to_owned(), what: Feature::Version, found });
        }
        let mut count = |what: &str| {
            let count = cursor.unsigned(8).map_err(wrong)?;
            (count <= MOST_ENTRIES)
                .then_some(count)
                .ok_or_else(|| wrong(format!("{count} {what} are announced")))
        };
        let (tensor_count, metadata_count) = (count("tensors")?, count("metadata entries")?);
        let mut metadata = BTreeMap::new();
        for _ in 0..metadata_count {
            let key = cursor.name().map_err(wrong)?;
            let value = cursor.number().and_then(Kind::of).and_then(|kind| cursor.value(kind));
            let value = value.map_err(|reason| wrong(format!("metadata `{}`: {reason}", shown(key))))?;
            if metadata.insert(key, value).is_some() {
                return Err(wrong(format!("metadata `{}` is there twice", shown(key))));
            }
        }
        let mut tensors = BTreeMap::new();
        for _ in 0..tensor_count {
            let name = cursor.name().map_err(wrong)?;
            let of_tensor = |reason| wrong(format!("tensor `{}`: {reason}", shown(name)));
            let tensor = self.tensor(&mut cursor, name).map_err(|reason| reason.unwrap_or_else(of_tensor))?;
            if tensors.insert(name, tensor).is_some() {
                return Err(of_tensor("it is there twice".into()));
            }
        }
        let mut content = Content { path, bytes, metadata, tensors };
        let alignment = content.size("general.alignment")?.map_or(DEFAULT_ALIGNMENT, |size| size as u64);
        if alignment == 0 || !alignment.is_multiple_of(8) {
            return Err(content.metadata("general.alignment", "it is not a multiple of 8"));
        }
        let start = ((bytes.len() - cursor.rest.len()) as u64).next_multiple_of(alignment);
        for (name, tensor) in &mut content.tensors {
            let end = start
                .checked_add(tensor.start as u64)
                .and_then(|at| Some((at, at.checked_add(tensor.length as u64)?)));
            match end {
                Some((at, end)) if end <= bytes.len() as u64 => tensor.start = at as usize,
                _ => {
                    let (length, file) = (tensor.length, bytes.len());
                    return Err(wrong(format!(
                        "tensor `{}` has {length} bytes and ends after the file's {file}",
                        shown(name)
                    )));
                }
            }
        }
        Ok(content)
    }

    /// The entry of a tensor, with its offset still relative.
    fn tensor(&self, cursor: &mut Cursor<'_>, name: &str) -> Result<StoredTensor, Result<GgufError, String>> {
        let wrong = |reason: String| Err(reason);
        let dimensions = cursor.number().map_err(wrong)?;
        if dimensions == 0 || dimensions > MOST_DIMENSIONS {
            return Err(wrong(format!("it has {dimensions} dimensions")));
        }
        let mut shape = Vec::new();
        for _ in 0..dimensions {
            shape.insert(0, cursor.unsigned(8).map_err(wrong)? as usize);
        }
        let number = cursor.number().map_err(wrong)?;
        let start = cursor.unsigned(8).map_err(wrong)? as usize;
        let Some((_, _, dtype)) = TENSOR_TYPES.iter().find(|(known, _, _)| *known == number) else {
            let other = OTHER_TYPES.iter().find(|(known, _)| *known == number);
            let found = other.map_or_else(|| format!("type {number}"), |(_, name)| (*name).to_owned());
            return Err(Ok(GgufError::Stored { path: self.path.clone(), name: shown(name), found }));
        };
        let row = shape.last().copied().unwrap_or_default();
        let bytes = shape.iter().try_fold(1_usize, |product, size| product.checked_mul(*size));
        let bytes =
            bytes.map(|values| values / dtype.block_size()).and_then(|n| n.checked_mul(dtype.type_size()));
        match bytes {
            Some(length) if length > 0 && row.is_multiple_of(dtype.block_size()) => {
                Ok(StoredTensor { shape, dtype: *dtype, start, length })
            }
            _ => Err(wrong(format!("no tensor of type {dtype:?} has the shape {shape:?}"))),
        }
    }
}

/// A name from the file, short enough for a message.
fn shown(name: &str) -> String {
    const MOST: usize = 80;
    name.chars().take(MOST).flat_map(char::escape_default).collect()
}

impl<'a> Content<'a> {
    pub fn has(&self, key: &str) -> bool {
        self.metadata.contains_key(key)
    }

    /// The tensor of this name.
    pub fn tensor(&self, name: &str) -> Result<&StoredTensor, GgufError> {
        let missing = || GgufError::MissingTensor { path: self.path.to_owned(), name: name.to_owned() };
        self.tensors.get(name).ok_or_else(missing)
    }

    /// The tensor of this name, which should have this shape.
    pub fn tensor_of_shape(&self, name: &str, shape: &[usize]) -> Result<&StoredTensor, GgufError> {
        let tensor = self.tensor(name)?;
        if tensor.shape != shape {
            let (path, name) = (self.path.to_owned(), name.to_owned());
            return Err(GgufError::Shape {
                path,
                name,
                found: tensor.shape.clone(),
                expected: shape.to_vec(),
            });
        }
        Ok(tensor)
    }

    pub fn missing(&self, key: &str) -> GgufError {
        GgufError::Missing { path: self.path.to_owned(), key: key.to_owned() }
    }

    pub fn metadata(&self, key: &str, reason: impl Into<String>) -> GgufError {
        GgufError::Metadata { path: self.path.to_owned(), key: key.to_owned(), reason: reason.into() }
    }

    pub fn unsupported(&self, what: Feature, found: &str) -> GgufError {
        GgufError::Unsupported { path: self.path.to_owned(), what, found: shown(found) }
    }

    /// The value of a key, if it is there, as `read` takes it.
    fn get<T>(
        &self,
        key: &str,
        expected: &str,
        read: impl FnOnce(Value<'a>) -> Option<T>,
    ) -> Result<Option<T>, GgufError> {
        let value = self.metadata.get(key).map(|value| read(*value));
        value
            .map(|value| value.ok_or_else(|| self.metadata(key, format!("it is not {expected}"))))
            .transpose()
    }

    /// A count or id.
    pub fn size(&self, key: &str) -> Result<Option<usize>, GgufError> {
        self.get(key, "a count", |value| match value {
            Value::Integer(value) => usize::try_from(value).ok().filter(|value| *value <= u32::MAX as usize),
            _ => None,
        })
    }

    /// A count for all layers, or one for each.
    pub fn sizes(&self, key: &str) -> Result<Option<Vec<usize>>, GgufError> {
        if let Ok(Some(size)) = self.size(key) {
            return Ok(Some(vec![size]));
        }
        let sizes = self.integers(key)?;
        let size = |size: i64| u32::try_from(size).ok().map(|size| size as usize);
        let sizes = sizes.map(|sizes| sizes.into_iter().map(size).collect::<Option<Vec<_>>>());
        sizes.map(|sizes| sizes.ok_or_else(|| self.metadata(key, "it has a negative count"))).transpose()
    }

    pub fn number(&self, key: &str) -> Result<Option<f64>, GgufError> {
        self.get(key, "a finite number", |value| match value {
            Value::Number(value) => value.is_finite().then_some(value),
            Value::Integer(value) => Some(value as f64),
            _ => None,
        })
    }

    pub fn flag(&self, key: &str) -> Result<Option<bool>, GgufError> {
        self.get(key, "a truth value", |value| match value {
            Value::Flag(value) => Some(value),
            _ => None,
        })
    }

    pub fn text(&self, key: &str) -> Result<Option<&'a str>, GgufError> {
        self.get(key, "a text", Value::text)
    }

    /// The items of an array of a kind that `is_kind` accepts, as `read` takes them.
    fn list<T>(
        &self,
        key: &str,
        expected: &str,
        is_kind: fn(Kind) -> bool,
        read: fn(Value<'a>) -> Option<T>,
    ) -> Result<Option<Vec<T>>, GgufError> {
        self.get(key, expected, |value| match value {
            Value::List(List { kind, count, bytes }) if is_kind(kind) => {
                let mut cursor = Cursor { rest: bytes };
                (0..count).map(|_| read(cursor.value(kind).ok()?)).collect()
            }
            _ => None,
        })
    }

    pub fn texts(&self, key: &str) -> Result<Option<Vec<&'a str>>, GgufError> {
        self.list(key, "an array of texts", |kind| kind == Kind::Text, Value::text)
    }

    pub fn integers(&self, key: &str) -> Result<Option<Vec<i64>>, GgufError> {
        let is_integer = |kind| matches!(kind, Kind::Unsigned(_) | Kind::Signed(_));
        self.list(key, "an array of integers", is_integer, |value| match value {
            Value::Integer(value) => i64::try_from(value).ok(),
            _ => None,
        })
    }

    pub fn flags(&self, key: &str) -> Result<Option<Vec<bool>>, GgufError> {
        self.list(
            key,
            "an array of truth values",
            |kind| kind == Kind::Flag,
            |value| match value {
                Value::Flag(value) => Some(value),
                _ => None,
            },
        )
    }

    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>, GgufError> {
        let is_number = |kind| matches!(kind, Kind::Float(_));
        self.list(key, "an array of numbers", is_number, |value| match value {
            Value::Number(value) => Some(value),
            _ => None,
        })
    }

    /// A tensor's values.
    pub fn floats(&self, name: &str, tensor: &StoredTensor) -> Result<Vec<f32>, GgufError> {
        let bytes = self.dequantized(name, tensor, DType::F32)?;
        Ok(bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
    }

    /// A tensor as values of this type, in bytes. A few rows at a time are dequantized.
    pub fn dequantized(&self, name: &str, tensor: &StoredTensor, to: DType) -> Result<Vec<u8>, GgufError> {
        let failed = |error: candle_core::Error| GgufError::Convert {
            path: self.path.to_owned(),
            name: name.to_owned(),
            reason: error.to_string(),
        };
        let StoredTensor { shape, dtype, start, length } = tensor;
        let values: usize = shape.iter().product();
        let row = shape.last().copied().unwrap_or(1);
        let rows = (CHUNK / row).max(1);
        let row_bytes = row / dtype.block_size() * dtype.type_size();
        let mut converted = Vec::with_capacity(values * to.size_in_bytes());
        for chunk in self.bytes[*start..*start + *length].chunks(rows * row_bytes) {
            // Candle reads blocks in place, and only an allocation of their own is aligned for certain.
            let chunk = chunk.to_vec();
            let shape = vec![chunk.len() / row_bytes, row];
            let values = qtensor_from_ggml(*dtype, &chunk, shape, &Device::Cpu)
                .and_then(|tensor| tensor.dequantize(&Device::Cpu)?.to_dtype(to))
                .map_err(failed)?;
            converted.extend_from_slice(&View::data(&values));
        }
        Ok(converted)
    }
}
