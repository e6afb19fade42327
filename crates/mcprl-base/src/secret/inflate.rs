//! Decompresses DEFLATE for searches: as far as the data are good, and up to a limit.

use miniz_oxide::inflate::{
    TINFLStatus,
    core::{
        DecompressorOxide, decompress,
        inflate_flags::TINFL_FLAG_USING_NON_WRAPPING_OUTPUT_BUF as WHOLE_BUFFER,
    },
};

/// Bytes of output at first; doubled where they do not suffice.
const FIRST: usize = 1 << 16;

/// What was decompressed, and how many bytes it took.
pub(super) struct Inflated {
    pub(super) bytes: Vec<u8>,
    pub(super) used: usize,
    /// Whether the end was reached.
    pub(super) is_whole: bool,
}

/// Decompresses what begins here, up to so many bytes.
pub(super) fn inflate(packed: &[u8], limit: usize) -> Inflated {
    let mut state = Box::<DecompressorOxide>::default();
    let (mut bytes, mut used, mut length) = (vec![0; FIRST.min(limit)], 0, 0);
    loop {
        let (status, read, written) =
            decompress(&mut state, &packed[used..], &mut bytes, length, WHOLE_BUFFER);
        (used, length) = (used + read, length + written);
        if status != TINFLStatus::HasMoreOutput || bytes.len() == limit {
            bytes.truncate(length);
            return Inflated { bytes, used, is_whole: status == TINFLStatus::Done };
        }
        bytes.resize((2 * bytes.len()).min(limit), 0);
    }
}
