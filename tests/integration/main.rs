//! The tests of the program and of the library's public surface, in one program: it is linked once.
//!
//! One folder for each contract; its `mod.rs` says what belongs there. `cargo test --release --test integration servers::` runs
//! those of `servers/`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod cache;
mod common;
mod house;
mod model;
mod outputs;
mod plan;
mod remote;
mod resume;
mod run;
mod servers;
