//! Stub for builds without S3.

use super::objects::{ObjectError, Objects};

/// Whether this build supports S3.
pub const BUILT: bool = false;

pub fn open(_bucket: &str, _prefix: &str) -> Result<Box<dyn Objects>, ObjectError> {
    Err(ObjectError::Refused("this build does not support S3".into()))
}
