//! Texts within texts: in base64, and in quoted-printable, as mail has it.

/// Digits of base64 that may hold a secret.
const FEWEST: usize = 24;
/// Digits of a line behind which the next one may continue.
const LINE: usize = 32;

fn digit(byte: u8) -> Option<u8> {
    Some(match byte {
        b'A'..=b'Z' => byte - b'A',
        b'a'..=b'z' => byte - b'a' + 26,
        b'0'..=b'9' => byte - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    })
}

/// Passes on what each run of base64 decodes to, from each of the places where it may begin. Ends once that returns something.
pub(super) fn base64<R>(bytes: &[u8], mut found: impl FnMut(&[u8]) -> Option<R>) -> Option<R> {
    let mut at = 0;
    let (mut digits, mut plain) = (Vec::new(), Vec::new());
    while at < bytes.len() {
        at += bytes[at..].iter().take_while(|byte| digit(**byte).is_none()).count();
        digits.clear();
        loop {
            let line = bytes[at..].iter().map_while(|byte| digit(*byte));
            let before = digits.len();
            digits.extend(line);
            let length = digits.len() - before;
            at += length;
            let rest = &bytes[at..];
            let breaks = rest.iter().take_while(|byte| b"\r\n".contains(byte)).count();
            let blank = rest[breaks..].iter().take_while(|byte| b" \t>".contains(byte)).count();
            let goes_on = rest.get(breaks + blank).is_some_and(|byte| digit(*byte).is_some());
            if breaks == 0 || length < LINE || !goes_on {
                break;
            }
            at += breaks + blank;
        }
        if digits.len() < FEWEST {
            continue;
        }
        for start in 0..4 {
            plain.clear();
            for four in digits[start..].chunks(4) {
                let value = four.iter().fold(0_u32, |value, digit| value << 6 | u32::from(*digit))
                    << (6 * (4 - four.len()));
                let [_, first, second, third] = value.to_be_bytes();
                plain.extend_from_slice(&[first, second, third][..four.len().saturating_sub(1)]);
            }
            if let Some(kind) = found(&plain) {
                return Some(kind);
            }
        }
    }
    None
}

/// A text in quoted-printable; `None` if it is none.
pub(super) fn quoted_printable(bytes: &[u8]) -> Option<Vec<u8>> {
    let escape = |at: usize| {
        let rest = &bytes[at + 1..];
        match rest {
            // Without the escapes of JSON, both are line ends.
            [b'\r' | b'\n', b'\n', ..] => Some((None, 3)),
            [b'\n', ..] => Some((None, 2)),
            [high, low, ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                let text = str::from_utf8(&rest[..2]).ok()?;
                Some((Some(u8::from_str_radix(text, 16).ok()?), 3))
            }
            _ => None,
        }
    };
    let mut places = memchr::memchr_iter(b'=', bytes);
    places.find(|at| escape(*at).is_some())?;
    let mut plain = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let (byte, length) = match bytes[at] {
            b'=' => escape(at).unwrap_or((Some(b'='), 1)),
            byte => (Some(byte), 1),
        };
        plain.extend(byte);
        at += length;
    }
    Some(plain)
}
