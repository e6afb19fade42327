//! What a remote must be able to do: keep bytes under names, each whole or not at all.

use std::{io::Write, path::Path};

/// Why something could not be done.
#[derive(Debug)]
pub enum ObjectError {
    /// Nobody answers, or not in time.
    Unreachable(String),
    /// It answers, and does not let us.
    Refused(String),
    /// The bytes came, and could not be taken.
    Sink(std::io::Error),
}

/// Whether there was something of that name before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Before {
    Nothing,
    Something,
}

/// Bytes under names, with `/` between the parts of a name. Calls block.
pub trait Objects: Send + Sync {
    /// Writes an object's bytes to `to`. False where there is none.
    fn read(&self, name: &str, to: &mut dyn Write) -> Result<bool, ObjectError>;

    /// Length in bytes; none where there is no such object.
    fn size(&self, name: &str) -> Result<Option<u64>, ObjectError>;

    /// Puts a file's bytes under a name, whatever was there.
    fn write(&self, name: &str, file: &Path) -> Result<(), ObjectError>;

    /// Puts these bytes under a name, whatever was there.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectError>;

    /// Puts these bytes under a name that has none. Of several at once, one finds nothing before it.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Before, ObjectError>;
}
