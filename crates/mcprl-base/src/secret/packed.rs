//! Files that are compressed: gzip, zlib, zstd, and the members of a zip archive.

use std::io::Read;

use super::inflate::inflate;

/// Bytes of a compressed file that are read, and of what it holds. What is more is not searched.
pub(super) const PACKED_BYTES: usize = 64 << 20;
const CONTENT_BYTES: usize = 256 << 20;

/// Whether a file that begins so is compressed.
pub(super) fn is_packed(start: &[u8]) -> bool {
    start.starts_with(GZIP) || start.starts_with(ZSTD) || start.starts_with(ZIP) || is_zlib(start)
}

const GZIP: &[u8] = &[0x1f, 0x8b, 8];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const ZIP: &[u8] = b"PK\x03\x04";

fn is_zlib(start: &[u8]) -> bool {
    matches!(start, [0x78, flags @ (0x01 | 0x5e | 0x9c | 0xda), ..] if (0x7800 + u32::from(*flags)) % 31 == 0)
}

/// Passes on what a compressed file holds. Whether that is all.
pub(super) fn unpack(packed: &[u8], mut found: impl FnMut(&[u8])) -> bool {
    if packed.starts_with(ZSTD) {
        let mut content = Vec::new();
        let decoder = zstd::stream::read::Decoder::with_buffer(packed);
        let read =
            decoder.and_then(|decoder| decoder.take(CONTENT_BYTES as u64 + 1).read_to_end(&mut content));
        found(&content);
        return read.is_ok() && content.len() <= CONTENT_BYTES;
    }
    if packed.starts_with(ZIP) {
        return unzip(packed, found);
    }
    let mut rest = packed;
    let mut left = CONTENT_BYTES;
    while let Some(start) = if is_zlib(rest) { Some(2) } else { gzip_header(rest) } {
        let content = inflate(&rest[start..], left);
        found(&content.bytes);
        left -= content.bytes.len();
        if !content.is_whole {
            return false;
        }
        // Behind it are a checksum and a length.
        rest = rest.get(start + content.used + 8..).unwrap_or_default();
    }
    rest.iter().all(|byte| *byte == 0)
}

/// The length of the header of a member.
fn gzip_header(bytes: &[u8]) -> Option<usize> {
    let flags = *bytes.get(3).filter(|_| bytes.starts_with(GZIP))?;
    let mut at = 10;
    if flags & 4 != 0 {
        at += 2 + usize::from(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    }
    for _ in 0..(flags >> 3 & 1) + (flags >> 4 & 1) {
        at += bytes.get(at..)?.iter().position(|byte| *byte == 0)? + 1;
    }
    at += usize::from(flags >> 1 & 1) * 2;
    (at <= bytes.len()).then_some(at)
}

/// The members of an archive, each by its own header.
fn unzip(archive: &[u8], mut found: impl FnMut(&[u8])) -> bool {
    let (mut at, mut left, mut is_whole) = (0, CONTENT_BYTES, true);
    while let Some(header) = archive.get(at..at + 30).filter(|header| header.starts_with(ZIP)) {
        let number = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let start = at + 30 + number(26) + number(28);
        let size = number(18) | number(20) << 16;
        let (is_encrypted, method) = (number(6) & 1 == 1, number(8));
        let data = archive.get(start..).unwrap_or_default();
        let used = match method {
            8 if !is_encrypted => {
                let content = inflate(data, left);
                found(&content.bytes);
                left -= content.bytes.len();
                is_whole &= content.is_whole;
                content.used
            }
            // It stands there as it is.
            0 if !is_encrypted => size,
            _ => {
                is_whole = false;
                size
            }
        };
        // A description of the member may follow.
        let behind = archive.get(start + used..).unwrap_or_default();
        let next = memchr::memmem::find(&behind[..behind.len().min(64)], b"PK");
        at = start + used + next.unwrap_or(0);
    }
    is_whole && archive.get(at..).is_some_and(|rest| rest.starts_with(b"PK\x01\x02"))
}
