//! Files that are compressed: gzip, zlib, zstd, and the members of a zip archive.

use std::io::Read;

use super::inflate::inflate;

/// Bytes of a compressed file that are read, and of all that it holds, in files within it too. What is more is not searched.
pub(super) const PACKED_BYTES: usize = 64 << 20;
pub(super) const CONTENT_BYTES: usize = 256 << 20;

/// Whether a file that begins so is compressed.
pub(super) fn is_packed(start: &[u8]) -> bool {
    start.starts_with(GZIP) || start.starts_with(ZSTD) || start.starts_with(ZIP) || is_zlib(start)
}

const GZIP: &[u8] = &[0x1f, 0x8b, 8];
const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
const ZIP: &[u8] = b"PK\x03\x04";
/// The list of members at the end of an archive.
const DIRECTORY: &[u8] = b"PK\x01\x02";

fn is_zlib(start: &[u8]) -> bool {
    matches!(start, [0x78, flags @ (0x01 | 0x5e | 0x9c | 0xda), ..] if (0x7800 + u32::from(*flags)) % 31 == 0)
}

/// Passes on what a compressed file holds, up to `left` bytes, and what is left then. Whether that is all.
pub(super) fn unpack(packed: &[u8], left: &mut usize, mut found: impl FnMut(&[u8], &mut usize)) -> bool {
    if packed.starts_with(ZSTD) {
        let mut content = Vec::new();
        let decoder = zstd::stream::read::Decoder::with_buffer(packed);
        let read = decoder.and_then(|decoder| decoder.take(*left as u64 + 1).read_to_end(&mut content));
        let is_whole = read.is_ok() && content.len() <= *left;
        pass_on(&content, left, &mut found);
        return is_whole;
    }
    if packed.starts_with(ZIP) {
        return unzip(packed, left, found);
    }
    let mut rest = packed;
    while let Some(start) = if is_zlib(rest) { Some(2) } else { gzip_header(rest) } {
        let content = inflate(&rest[start..], *left);
        pass_on(&content.bytes, left, &mut found);
        if !content.is_whole {
            return false;
        }
        // Behind it are a checksum and a length.
        rest = rest.get(start + content.used + 8..).unwrap_or_default();
    }
    rest.iter().all(|byte| *byte == 0)
}

/// Passes on what was decompressed; what that holds counts, too.
fn pass_on(content: &[u8], left: &mut usize, found: &mut impl FnMut(&[u8], &mut usize)) {
    *left = left.saturating_sub(content.len());
    found(content, left);
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
fn unzip(archive: &[u8], left: &mut usize, mut found: impl FnMut(&[u8], &mut usize)) -> bool {
    let (mut at, mut is_whole) = (0, true);
    while let Some(header) = archive.get(at..at + 30).filter(|header| header.starts_with(ZIP)) {
        let number = |at: usize| usize::from(u16::from_le_bytes([header[at], header[at + 1]]));
        let start = at + 30 + number(26) + number(28);
        let size = number(18) | number(20) << 16;
        let (is_encrypted, method) = (number(6) & 1 == 1, number(8));
        // The size stands behind the member, or in a field for large ones.
        let is_streamed = number(6) & 8 == 8 && size == 0 || size == u32::MAX as usize;
        let data = archive.get(start..).unwrap_or_default();
        let used = match method {
            8 if !is_encrypted => {
                let content = inflate(data, *left);
                pass_on(&content.bytes, left, &mut found);
                is_whole &= content.is_whole;
                content.used
            }
            0 if !is_encrypted => {
                let size = if is_streamed { streamed(data) } else { Some(size) };
                let content = &data[..size.unwrap_or(*left).min(*left).min(data.len())];
                pass_on(content, left, &mut found);
                is_whole &= size == Some(content.len());
                size.unwrap_or(data.len())
            }
            _ => {
                is_whole = false;
                size
            }
        };
        // A description of the member may follow where its flags say so, of 24 bytes at most.
        let places = if number(6) & 8 == 8 { 25 } else { 1 };
        let behind = archive.get(start + used..).unwrap_or_default();
        let next = behind.windows(4).take(places).position(|four| four == ZIP || four == DIRECTORY);
        at = start + used + next.unwrap_or(0);
    }
    is_whole && is_directory(archive, at)
}

/// Whether the archive's list of members begins here, and nothing is behind it.
fn is_directory(archive: &[u8], at: usize) -> bool {
    // Behind the end is a comment of at most 65,535 bytes.
    let tail = archive.len().saturating_sub(22 + 65_535);
    let Some(end) = memchr::memmem::rfind(&archive[tail..], b"PK\x05\x06") else { return false };
    let Some([.., a, b, c, d, low, high]) = archive[tail + end..].get(..22) else { return false };
    let listed = u32::from_le_bytes([*a, *b, *c, *d]);
    let comment = usize::from(u16::from_le_bytes([*low, *high]));
    archive[at.min(archive.len())..].starts_with(DIRECTORY)
        && tail + end + 22 + comment == archive.len()
        && (listed as usize == at || listed == u32::MAX)
}

/// The length of what is stored, by the description behind it.
fn streamed(data: &[u8]) -> Option<usize> {
    let is_end = |at: &usize| {
        let size = data.get(at + 8..at + 12).and_then(|size| size.try_into().ok());
        size.is_some_and(|size| u32::from_le_bytes(size) as usize == *at)
    };
    memchr::memmem::find_iter(data, b"PK\x07\x08").find(is_end)
}
