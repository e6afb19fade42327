//! Content hashing: digests, and the encoding of typed values that are hashed.
//!
//! Every value is written with a type tag and a length, so two different field lists never produce the same bytes:
//! `["ab", "c"]` and `["a", "bc"]` differ, and so do a missing and an empty field.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A blake3 digest, written as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest([u8; 32]);

impl Digest {
    /// The digest of these bytes, without a domain.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The first 12 hex digits, for display. Never used as a key.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }

    /// The first 8 bytes as a number, for use as a seed.
    pub fn seed(&self) -> u64 {
        let mut head = [0; 8];
        head.copy_from_slice(&self.0[..8]);
        u64::from_le_bytes(head)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&blake3::Hash::from_bytes(self.0).to_hex())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({})", self.short())
    }
}

/// A text is not a digest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a digest (64 lower-case hex digits)")]
pub struct NotADigest(String);

impl FromStr for Digest {
    type Err = NotADigest;

    fn from_str(text: &str) -> Result<Self, NotADigest> {
        match blake3::Hash::from_hex(text) {
            // Upper case is refused.
            Ok(hash) if hash.to_hex().as_str() == text => Ok(Self(*hash.as_bytes())),
            _ => Err(NotADigest(text.to_owned())),
        }
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// Hashes typed, length-prefixed fields under a domain (blake3's derive-key mode).
pub struct Encoder {
    hasher: blake3::Hasher,
    /// Bytes not hashed yet. Most fields are short, and the hasher is fast on long inputs.
    pending: Vec<u8>,
}

/// Pending bytes that are hashed at once.
const BLOCK_BYTES: usize = 16 << 10;

impl Encoder {
    /// `domain` names what is hashed and the revision of the encoding, e.g. `"mcprl stage key v1"`.
    pub fn new(domain: &str) -> Self {
        Self { hasher: blake3::Hasher::new_derive_key(domain), pending: Vec::with_capacity(1 << 10) }
    }

    fn tagged(&mut self, tag: u8, bytes: &[u8]) -> &mut Self {
        self.pending.push(tag);
        self.pending.extend((bytes.len() as u64).to_le_bytes());
        let long = bytes.len() >= BLOCK_BYTES;
        if !long {
            self.pending.extend(bytes);
        }
        if long || self.pending.len() >= BLOCK_BYTES {
            self.hasher.update(&self.pending);
            self.pending.clear();
        }
        if long {
            self.hasher.update(bytes);
        }
        self
    }

    pub fn text(&mut self, text: &str) -> &mut Self {
        self.tagged(b's', text.as_bytes())
    }

    pub fn number(&mut self, number: u64) -> &mut Self {
        self.tagged(b'u', &number.to_le_bytes())
    }

    pub fn digest(&mut self, digest: &Digest) -> &mut Self {
        self.tagged(b'd', &digest.0)
    }

    /// A JSON value by its structure: objects by sorted key, numbers by their shortest text.
    pub fn json(&mut self, value: &serde_json::Value) -> &mut Self {
        use serde_json::Value;
        match value {
            Value::Null => self.tagged(b'n', &[]),
            Value::Bool(bit) => self.tagged(b't', &[u8::from(*bit)]),
            Value::Number(number) => self.tagged(b'f', number.to_string().as_bytes()),
            Value::String(text) => self.text(text),
            Value::Array(items) => {
                self.tagged(b'[', &(items.len() as u64).to_le_bytes());
                items.iter().fold(self, |encoder, item| encoder.json(item))
            }
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_by_key(|(name, _)| *name);
                self.tagged(b'{', &(fields.len() as u64).to_le_bytes());
                fields.into_iter().fold(self, |encoder, (name, item)| encoder.text(name).json(item))
            }
        }
    }

    pub fn finish(&self) -> Digest {
        Digest(*self.hasher.clone().update(&self.pending).finalize().as_bytes())
    }
}

/// Bytes as lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(fill: impl Fn(&mut Encoder)) -> Digest {
        let mut encoder = Encoder::new("test");
        fill(&mut encoder);
        encoder.finish()
    }

    #[test]
    fn moving_a_boundary_between_fields_changes_the_digest() {
        let left = of(|e| _ = e.text("ab").text("c"));
        let right = of(|e| _ = e.text("a").text("bc"));
        assert_ne!(left, right);
    }

    #[test]
    fn buffering_of_long_and_short_fields_does_not_change_the_digest() {
        let long = vec![7; 3 * BLOCK_BYTES];
        let fields: [&[u8]; 6] = [b"a", &long, b"b", &long[..BLOCK_BYTES - 9], b"c", &[]];
        let mut whole = blake3::Hasher::new_derive_key("test");
        for field in fields {
            whole.update(b"b").update(&(field.len() as u64).to_le_bytes()).update(field);
        }
        let found = of(|encoder| fields.iter().for_each(|field| _ = encoder.tagged(b'b', field)));
        assert_eq!(found.as_bytes(), whole.finalize().as_bytes());
    }

    #[test]
    fn the_type_of_a_field_is_part_of_the_digest() {
        assert_ne!(of(|e| _ = e.text("x")), of(|e| _ = e.tagged(b'b', b"x")));
    }

    #[test]
    fn key_order_does_not_matter_but_item_order_does() {
        let json = |text: &str| serde_json::from_str(text).unwrap();
        let digest = |text: &str| of(|e| _ = e.json(&json(text)));
        assert_eq!(digest(r#"{"a":1,"b":2}"#), digest(r#"{"b":2,"a":1}"#));
        assert_ne!(digest("[1,2]"), digest("[2,1]"));
        assert_ne!(digest("[[1],2]"), digest("[[1,2]]"));
    }

    #[test]
    fn a_digest_round_trips_through_text_and_other_texts_are_refused() {
        let digest = Digest::of(b"mcprl");
        assert_eq!(digest.to_string().parse(), Ok(digest));
        for wrong in ["", "00", &"G".repeat(64), &"A".repeat(64)] {
            assert!(wrong.parse::<Digest>().is_err(), "{wrong}");
        }
    }
}
