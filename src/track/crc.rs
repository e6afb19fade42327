//! Cyclic redundancy checks of 32 bits, least significant bit first.

/// The polynomial of CRC-32C (Castagnoli).
pub const CASTAGNOLI: [u32; 256] = table(0x82f6_3b78);

/// The polynomial of CRC-32 (IEEE 802.3).
pub const IEEE: [u32; 256] = table(0xedb8_8320);

/// The remainder of these parts, one after another.
pub fn crc(table: &[u32; 256], parts: &[&[u8]]) -> u32 {
    let bytes = parts.iter().flat_map(|part| part.iter());
    !bytes.fold(!0, |rest, byte| table[(rest as u8 ^ byte) as usize] ^ rest >> 8)
}

const fn table(polynomial: u32) -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut rest = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            rest = if rest & 1 == 1 { rest >> 1 ^ polynomial } else { rest >> 1 };
            bit += 1;
        }
        table[byte] = rest;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_remainder_of_the_standard_text_is_that_of_the_catalogue() {
        // The column "check" of reveng.sourceforge.io/crc-catalogue.
        assert_eq!(crc(&CASTAGNOLI, &[b"123456789"]), 0xe306_9283);
        assert_eq!(crc(&IEEE, &[b"123456789"]), 0xcbf4_3926);
    }

    #[test]
    fn parts_count_as_one_text() {
        assert_eq!(crc(&CASTAGNOLI, &[b"1234", b"", b"56789"]), crc(&CASTAGNOLI, &[b"123456789"]));
        // RFC 3720, B.4.
        assert_eq!(crc(&CASTAGNOLI, &[&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc(&CASTAGNOLI, &[&[0xff; 32]]), 0x62a8_ab43);
    }
}
