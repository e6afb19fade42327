//! The tests of the program and of the library's public surface, in one program: it is linked once.
//!
//! `cargo test --release --test integration cache::` runs those of `cache.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::print_stderr, reason = "a skipped test says so")]

mod cache;
mod cassettes;
mod chat;
mod checks;
mod common;
mod connect;
mod crash;
mod crash_rows;
mod dependencies;
mod docs;
mod ending;
mod export;
mod hostile_servers;
mod jobs;
mod judges;
mod layering;
mod mcp;
mod mcp_http;
mod mistakes;
mod own_model;
mod pipeline;
mod processes;
mod programs;
mod real_servers;
mod report;
mod rows;
mod run_files;
mod scheduling;
mod schema;
mod secrets;
mod serve;
mod server_identity;
mod server_settings;
mod shared_cache;
mod shared_path;
mod sloppy_server;
mod traces;
mod track;
mod ui;
mod unkeyed;
mod watch;
