//! cli
pub mod bench;
