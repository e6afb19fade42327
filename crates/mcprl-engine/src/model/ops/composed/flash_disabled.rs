//! Replaces `flash.rs` in builds without it.

use candle_core::{Device, Result, bail};

use super::{PartialAttention, Sequences};

pub fn takes(_: &Device, _: usize) -> bool {
    false
}

pub fn attend(_: &Sequences) -> Result<PartialAttention> {
    bail!("this build has no flash attention")
}
