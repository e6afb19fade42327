//! Decompresses DEFLATE (RFC 1951), for searches: as far as the data are good, and up to a limit.

/// What was decompressed, and how many bytes it took.
pub(super) struct Inflated {
    pub(super) bytes: Vec<u8>,
    pub(super) used: usize,
    /// Whether the end was reached.
    pub(super) is_whole: bool,
}

/// Decompresses what begins here, up to so many bytes.
pub(super) fn inflate(packed: &[u8], limit: usize) -> Inflated {
    let mut bits = Bits { bytes: packed, at: 0, held: 0, count: 0 };
    let mut bytes = Vec::new();
    let is_whole = loop {
        match block(&mut bits, &mut bytes, limit) {
            Some(false) => {}
            Some(true) => break true,
            None => break false,
        }
    };
    Inflated { bytes, used: bits.at - (bits.count / 8) as usize, is_whole }
}

struct Bits<'b> {
    bytes: &'b [u8],
    at: usize,
    held: u64,
    count: u32,
}

impl Bits<'_> {
    /// The next bits, the first of which is the lowest.
    fn take(&mut self, need: u32) -> Option<u32> {
        while self.count < need {
            self.held |= u64::from(*self.bytes.get(self.at)?) << self.count;
            self.at += 1;
            self.count += 8;
        }
        let bits = self.held & ((1 << need) - 1);
        self.held >>= need;
        self.count -= need;
        u32::try_from(bits).ok()
    }

    /// Passes over the rest of a byte.
    fn align(&mut self) {
        let rest = self.count % 8;
        self.held >>= rest;
        self.count -= rest;
    }
}

/// A canonical prefix code: how many words each length has, and their symbols in order.
struct Code {
    counts: [u16; 16],
    symbols: Vec<u16>,
}

impl Code {
    fn new(lengths: &[u8]) -> Self {
        let mut counts = [0; 16];
        lengths.iter().for_each(|length| counts[usize::from(*length)] += 1);
        counts[0] = 0;
        let of_length = |wanted: u8| {
            (0_u16..).zip(lengths).filter(move |(_, length)| **length == wanted).map(|(symbol, _)| symbol)
        };
        Self { counts, symbols: (1..16).flat_map(of_length).collect() }
    }

    fn read(&self, bits: &mut Bits<'_>) -> Option<u16> {
        let (mut code, mut first, mut index) = (0_u32, 0_u32, 0_u32);
        for count in self.counts[1..].iter().map(|count| u32::from(*count)) {
            code |= bits.take(1)?;
            if code < first + count {
                return self.symbols.get(usize::try_from(index + code - first).ok()?).copied();
            }
            index += count;
            first = (first + count) << 1;
            code <<= 1;
        }
        None
    }
}

/// Decompresses a block. Whether it is the last one; `None` if it is broken, or the limit is reached.
fn block(bits: &mut Bits<'_>, out: &mut Vec<u8>, limit: usize) -> Option<bool> {
    let is_last = bits.take(1)? == 1;
    match bits.take(2)? {
        0 => {
            bits.align();
            let (length, inverse) = (bits.take(16)?, bits.take(16)?);
            if length != inverse ^ 0xffff || out.len() + length as usize > limit {
                return None;
            }
            for _ in 0..length {
                out.push(u8::try_from(bits.take(8)?).ok()?);
            }
        }
        1 => {
            let lengths = [(144, 8), (112, 9), (24, 7), (8, 8)];
            let lengths: Vec<u8> =
                lengths.iter().flat_map(|(count, length)| std::iter::repeat_n(*length, *count)).collect();
            compressed(bits, &Code::new(&lengths), &Code::new(&[5; 30]), out, limit)?;
        }
        2 => {
            let (literals, distances) = codes(bits)?;
            compressed(bits, &literals, &distances, out, limit)?;
        }
        _ => return None,
    }
    Some(is_last)
}

/// The codes at the beginning of a block.
fn codes(bits: &mut Bits<'_>) -> Option<(Code, Code)> {
    const ORDER: [usize; 19] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
    let (literals, distances) = (bits.take(5)? as usize + 257, bits.take(5)? as usize + 1);
    let count = bits.take(4)? as usize + 4;
    let mut lengths = [0; 19];
    for place in &ORDER[..count] {
        lengths[*place] = u8::try_from(bits.take(3)?).ok()?;
    }
    let code = Code::new(&lengths);
    let mut lengths: Vec<u8> = Vec::with_capacity(literals + distances);
    while lengths.len() < literals + distances {
        let (length, times) = match code.read(bits)? {
            length @ 0..16 => (u8::try_from(length).ok()?, 1),
            16 => (*lengths.last()?, 3 + bits.take(2)?),
            17 => (0, 3 + bits.take(3)?),
            _ => (0, 11 + bits.take(7)?),
        };
        lengths.extend((0..times).map(|_| length));
    }
    let (of_literals, rest) = lengths.split_at(literals);
    Some((Code::new(of_literals), Code::new(&rest[..distances])))
}

/// The content of a block.
fn compressed(
    bits: &mut Bits<'_>,
    literals: &Code,
    distances: &Code,
    out: &mut Vec<u8>,
    limit: usize,
) -> Option<()> {
    loop {
        let symbol = literals.read(bits)?;
        let length = match symbol {
            0..256 => {
                out.push(u8::try_from(symbol).ok()?);
                1
            }
            256 => return Some(()),
            285 => copy(bits, 258, distances, out)?,
            257..265 => copy(bits, usize::from(symbol) - 254, distances, out)?,
            265..285 => {
                let extra = u32::from(symbol - 261) / 4;
                let base = (4 + usize::from(symbol - 265) % 4) << extra;
                let length = base + 3 + bits.take(extra)? as usize;
                copy(bits, length, distances, out)?
            }
            _ => return None,
        };
        if out.len() + length > limit {
            return None;
        }
    }
}

/// Repeats so many bytes that came before.
fn copy(bits: &mut Bits<'_>, length: usize, distances: &Code, out: &mut Vec<u8>) -> Option<usize> {
    let symbol = u32::from(distances.read(bits)?);
    let distance = match symbol {
        0..4 => symbol as usize + 1,
        4..30 => {
            let extra = symbol / 2 - 1;
            ((2 + (symbol as usize & 1)) << extra) + 1 + bits.take(extra)? as usize
        }
        _ => return None,
    };
    let from = out.len().checked_sub(distance)?;
    for at in from..from + length {
        out.push(out[at]);
    }
    Some(length)
}
