//! warmup
mod train;
