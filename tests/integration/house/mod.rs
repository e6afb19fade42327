//! What this repository keeps: layers of modules, documentation, dependencies.

mod dependencies;
mod docs;
mod layering;
