//! What a run file means and which stages run: mistakes and their messages, the schema, keys, reasons to rerun.
//!
//! Tests here run `plan`, or `run` to see what it refuses and what reruns.

mod mistakes;
mod reruns;
mod run_files;
mod schema;
mod secrets;
mod server_identity;
mod unkeyed;
