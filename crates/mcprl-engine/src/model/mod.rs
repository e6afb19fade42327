//! One decoder for all families: configuration, weights, LoRA adapters, and operations with their backward
//! passes.
//!
//! There is no autograd tape. Every operation is a pair of functions, forward and backward, and a layer's
//! backward calls them one by one. So no gradient can be lost silently. This module does not sample, optimise
//! or spawn threads.

mod config;
mod decoder;
mod dropout;
mod error;
mod family;
pub mod kernels;
mod linear;
mod lora;
pub mod ops;
mod rope;
mod tree;
mod untrained;
mod weights;

pub use config::{Biases, Design, Experts, LayerKind, LinearShape, ModelConfig, Recurrence, Role, Sliding};
pub use decoder::{Base, Decoder, Init, Parameter, Placement, Saved};
pub use dropout::Dropout;
pub use error::ModelError;
pub use family::Family;
pub use kernels::{DeltaHeads, Heads};
pub use linear::{Linear, Lora, Matrix};
pub use lora::{
    ADAPTER_FILES, Adapter, AdapterConfig, AdapterSize, Targets, adapter_matrices, copy_adapter,
    copy_companions, copy_model, merge,
};
pub use ops::{Gradients, Vector};
pub use rope::Scaling;
pub use tree::{Positions, Segment, TokenTree};
pub use untrained::untrained;
pub use weights::{
    Bytes, Entry, Weights, map_file, own_name, read_json, read_safetensors, read_stored, to_f32,
    write_entries, write_safetensors,
};
