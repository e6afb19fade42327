//! Numbers in 8 bits: blocks of 256 with a scale each, and a code book dense near zero (Dettmers et al. 2022,
//! §2).
//!
//! A value is stored as the nearest entry of the book times the largest magnitude of its block. The book has
//! seven decades. Within a decade the entries are evenly spaced, and each decade has twice as many as the one
//! below: 64 (signed) or 128 (unsigned) in the highest. The error of a value is therefore at most 0.0071 of
//! its block's largest magnitude (unsigned 0.0036), and about 7 % of the value itself at the lower end of the
//! highest decade. A positive unsigned value stays positive.

use std::{ops::Range, sync::LazyLock};

/// Values that share a scale.
const BLOCK: usize = 256;

/// Whether values can be negative.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signedness {
    Signed,
    Unsigned,
}

static SIGNED: LazyLock<[f32; 256]> = LazyLock::new(|| book(Signedness::Signed));
static UNSIGNED: LazyLock<[f32; 256]> = LazyLock::new(|| book(Signedness::Unsigned));

/// The entries, ascending. The largest is 1.
fn book(sign: Signedness) -> [f32; 256] {
    let mut entries = vec![0.0, 1.0];
    for decade in 0..7 {
        let count = 1usize << (decade + usize::from(sign == Signedness::Unsigned));
        let top = 10f64.powi(decade as i32 - 6);
        for item in 0..count {
            let value = (top * (0.1 + 0.9 * (item as f64 + 0.5) / count as f64)) as f32;
            entries.push(value);
            entries.extend((sign == Signedness::Signed).then_some(-value));
        }
    }
    entries.sort_by(f32::total_cmp);
    entries.try_into().expect("2 + 2 · 127 entries")
}

/// Encoded values.
#[derive(Debug, Clone, PartialEq)]
pub struct QuantizedValues {
    pub codes: Vec<u8>,
    /// Largest magnitude of each block of 256.
    pub scales: Vec<f32>,
    sign: Signedness,
}

impl QuantizedValues {
    pub fn zeros(length: usize, sign: Signedness) -> Self {
        let zero = nearest(entries(sign), 0.0);
        Self { codes: vec![zero; length], scales: vec![0.0; length.div_ceil(BLOCK)], sign }
    }

    /// Bytes of this many values when encoded.
    pub fn bytes_of(length: usize) -> usize {
        length + length.div_ceil(BLOCK) * size_of::<f32>()
    }

    /// `None` if the codes and scales do not match.
    pub fn from_parts(codes: Vec<u8>, scales: Vec<f32>, sign: Signedness) -> Option<Self> {
        (codes.len().div_ceil(BLOCK) == scales.len()).then_some(Self { codes, scales, sign })
    }

    /// Calls `change` with each block of both, decoded, and its range. Encodes the changed values.
    pub fn update_with(
        &mut self,
        other: &mut Self,
        mut change: impl FnMut(Range<usize>, &mut [f32], &mut [f32]),
    ) {
        let (mut left, mut right) = ([0.0; BLOCK], [0.0; BLOCK]);
        for block in 0..self.scales.len() {
            let range = block * BLOCK..((block + 1) * BLOCK).min(self.codes.len());
            let (left, right) = (&mut left[..range.len()], &mut right[..range.len()]);
            self.decode(block, range.clone(), left);
            other.decode(block, range.clone(), right);
            change(range.clone(), left, right);
            self.encode(block, range.clone(), left);
            other.encode(block, range, right);
        }
    }

    fn decode(&self, block: usize, range: Range<usize>, into: &mut [f32]) {
        let (entries, scale) = (entries(self.sign), self.scales[block]);
        for (into, code) in into.iter_mut().zip(&self.codes[range]) {
            *into = entries[usize::from(*code)] * scale;
        }
    }

    fn encode(&mut self, block: usize, range: Range<usize>, from: &[f32]) {
        let entries = entries(self.sign);
        let scale = from.iter().fold(0.0f32, |most, value| most.max(value.abs()));
        self.scales[block] = scale;
        let inverse = if scale > 0.0 { 1.0 / scale } else { 0.0 };
        for (code, value) in self.codes[range].iter_mut().zip(from) {
            *code = nearest(entries, value * inverse);
            // A square that became zero would make its step as large as its root is small.
            if self.sign == Signedness::Unsigned && *value > 0.0 && *code == 0 {
                *code = 1;
            }
        }
    }
}

fn entries(sign: Signedness) -> &'static [f32; 256] {
    match sign {
        Signedness::Signed => &SIGNED,
        Signedness::Unsigned => &UNSIGNED,
    }
}

fn nearest(entries: &[f32; 256], value: f32) -> u8 {
    let above = entries.partition_point(|entry| *entry < value).clamp(1, 255);
    let nearer = value - entries[above - 1] <= entries[above] - value;
    (above - usize::from(nearer)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn coded(values: &[f32], sign: Signedness) -> Vec<f32> {
        let (mut codes, mut other) =
            (QuantizedValues::zeros(values.len(), sign), QuantizedValues::zeros(values.len(), sign));
        codes.update_with(&mut other, |range, block, _| block.copy_from_slice(&values[range]));
        let mut back = vec![0.0; values.len()];
        codes.update_with(&mut other, |range, block, _| back[range].copy_from_slice(block));
        back
    }

    #[test]
    fn the_error_of_a_value_is_a_small_part_of_the_largest_in_its_block() {
        let values: Vec<f32> = (0..1000).map(|i| (i as f32 * 0.77).sin() * 10f32.powi(i / 250 - 2)).collect();
        for (sign, bound) in [(Signedness::Signed, 0.0071), (Signedness::Unsigned, 0.0036)] {
            let values: Vec<f32> =
                values.iter().map(|v| if sign == Signedness::Unsigned { v.abs() } else { *v }).collect();
            let back = coded(&values, sign);
            for (block, (values, back)) in values.chunks(BLOCK).zip(back.chunks(BLOCK)).enumerate() {
                let largest = values.iter().fold(0.0f32, |most, value| most.max(value.abs()));
                for (value, back) in values.iter().zip(back) {
                    assert!((value - back).abs() <= bound * largest, "block {block}: {value} {back}");
                }
            }
        }
    }

    #[test]
    fn zeros_largest_values_and_coded_values_are_exact() {
        let values: Vec<f32> = (0..300).map(|i| if i % 3 == 0 { 0.0 } else { -2.5 }).collect();
        assert_eq!(coded(&values, Signedness::Unsigned)[..3], [0.0; 3], "a negative value becomes 0");
        let back = coded(&[0.0, 7.5, 0.0, 0.3], Signedness::Signed);
        assert_eq!(back[..3], [0.0, 7.5, 0.0]);
        assert_eq!(coded(&back, Signedness::Signed), back);
    }
}
