//! The interface of a remote: stores bytes under names atomically.

use std::{io::Write, path::Path};

use super::super::write::Created;

/// An error of a remote.
#[derive(Debug)]
pub enum ObjectError {
    /// No answer, or not in time.
    Unreachable(String),
    /// The remote denies access.
    Refused(String),
    /// The local side failed: the bytes could not be written or read.
    Sink(std::io::Error),
}

/// A store of objects. Names are parts separated by `/`. Calls block.
pub trait Objects: Send + Sync {
    /// Writes an object's bytes to `to`. Returns false if it does not exist.
    fn read(&self, name: &str, to: &mut dyn Write) -> Result<bool, ObjectError>;

    /// Length in bytes; none if the object does not exist.
    fn size(&self, name: &str) -> Result<Option<u64>, ObjectError>;

    /// Stores a file's bytes under a name. Overwrites.
    fn write(&self, name: &str, file: &Path) -> Result<(), ObjectError>;

    /// Stores these bytes under a name. Overwrites.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), ObjectError>;

    /// Stores these bytes under a name if it is free. Of several concurrent callers, exactly one creates it.
    fn create(&self, name: &str, bytes: &[u8]) -> Result<Created, ObjectError>;
}
