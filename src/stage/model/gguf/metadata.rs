//! Metadata of a GGUF file that is written.

/// A value of the metadata.
pub enum Meta {
    Text(String),
    Size(u32),
    Number(f32),
    Flag(bool),
    Texts(Vec<String>),
    Integers(Vec<i32>),
    Flags(Vec<bool>),
}

impl From<&str> for Meta {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<usize> for Meta {
    fn from(size: usize) -> Self {
        // Sizes of models are far below.
        Self::Size(u32::try_from(size).unwrap_or(u32::MAX))
    }
}

impl Meta {
    /// The number of its type.
    pub fn kind(&self) -> u32 {
        match self {
            Self::Size(_) => 4,
            Self::Number(_) => 6,
            Self::Flag(_) => 7,
            Self::Text(_) => 8,
            Self::Texts(_) | Self::Integers(_) | Self::Flags(_) => 9,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let list = |kind: u32, count: usize| {
            let count = count as u64;
            [kind.to_le_bytes().as_slice(), &count.to_le_bytes()].concat()
        };
        match self {
            Self::Size(size) => size.to_le_bytes().to_vec(),
            Self::Number(number) => number.to_le_bytes().to_vec(),
            Self::Flag(flag) => vec![u8::from(*flag)],
            Self::Text(written) => text(written),
            Self::Texts(texts) => {
                let items = texts.iter().flat_map(|item| text(item));
                list(8, texts.len()).into_iter().chain(items).collect()
            }
            Self::Integers(numbers) => {
                let items = numbers.iter().flat_map(|number| number.to_le_bytes());
                list(5, numbers.len()).into_iter().chain(items).collect()
            }
            Self::Flags(flags) => {
                list(7, flags.len()).into_iter().chain(flags.iter().map(|flag| u8::from(*flag))).collect()
            }
        }
    }
}

/// A text with its length.
pub fn text(text: &str) -> Vec<u8> {
    [(text.len() as u64).to_le_bytes().as_slice(), text.as_bytes()].concat()
}

/// Metadata in the order of the file.
pub type Metadata = Vec<(String, Meta)>;
