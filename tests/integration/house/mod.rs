//! What this repository keeps: layers of modules, files without circles, documentation, dependencies.

mod circles;
mod dependencies;
mod docs;
mod layering;
mod modules;
mod results;
