//! Messages of Protocol Buffers, written field by field.
//!
//! Trackers read a dozen small messages. Their field numbers are part of the published formats and stand where a
//! message is built, so there is no generated code. Nothing here reads a message.

/// A message that is being built. Fields are written in the order of the calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Message(Vec<u8>);

/// The wire types.
const VARINT: u32 = 0;
const FIXED64: u32 = 1;
const BYTES: u32 = 2;
const FIXED32: u32 = 5;

impl Message {
    pub fn new() -> Self {
        Self::default()
    }

    /// A field of type `uint64`, `uint32`, `bool` or an enum; `int64` and `int32` as two's complement of 64 bits.
    #[must_use]
    pub fn varint(mut self, field: u32, value: u64) -> Self {
        self.tag(field, VARINT);
        self.raw(value);
        self
    }

    #[must_use]
    pub fn double(mut self, field: u32, value: f64) -> Self {
        self.tag(field, FIXED64);
        self.0.extend(value.to_le_bytes());
        self
    }

    #[must_use]
    pub fn float(mut self, field: u32, value: f32) -> Self {
        self.tag(field, FIXED32);
        self.0.extend(value.to_le_bytes());
        self
    }

    /// A field of type `bytes`, or `string` in UTF-8.
    #[must_use]
    pub fn bytes(mut self, field: u32, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        self.tag(field, BYTES);
        self.raw(value.len() as u64);
        self.0.extend(value);
        self
    }

    /// A message within this one.
    #[must_use]
    pub fn message(self, field: u32, value: Self) -> Self {
        self.bytes(field, value.0)
    }

    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    fn tag(&mut self, field: u32, wire: u32) {
        self.raw(u64::from(field << 3 | wire));
    }

    /// Seven bits per byte, the lowest first; the highest bit says that more follow.
    fn raw(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_bytes_of_the_specification() {
        // The examples of protobuf.dev/programming-guides/encoding.
        assert_eq!(Message::new().varint(1, 150).into_bytes(), [0x08, 0x96, 0x01]);
        assert_eq!(Message::new().bytes(2, "testing").into_bytes(), b"\x12\x07testing");
        assert_eq!(
            Message::new().message(3, Message::new().varint(1, 150)).into_bytes(),
            [0x1a, 0x03, 0x08, 0x96, 0x01]
        );
        let minus_two = [0x08, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01];
        assert_eq!(Message::new().varint(1, (-2_i64) as u64).into_bytes(), minus_two);
        assert_eq!(Message::new().double(1, 1.0).into_bytes(), [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(Message::new().float(2, 1.0).into_bytes(), [0x15, 0, 0, 0x80, 0x3f]);
        assert_eq!(Message::new().double(16, 0.0).into_bytes(), [0x81, 0x01, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
