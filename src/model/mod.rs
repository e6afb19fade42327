//! One decoder for all families: weights, LoRA, fused ops.
