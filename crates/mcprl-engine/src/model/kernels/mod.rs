//! CPU kernels over `f32` slices. On a thread of a rayon pool, large kernels share their work among the
//! pool's threads.
//!
//! Invariant: the result of a row depends only on that row. Every output element of a matrix product is a sum
//! of chains of fused multiply-adds over fixed parts of `k`, in ascending order, and every reduction has a
//! fixed order. Neither depends on how many rows are computed together or how the keys of a sequence are
//! split into segments. So a token's logits have the same bits in a batch of one, in a batch of a hundred,
//! and when the same token is scored in training. One exception: by AMX, the last bits of attention's gradients depend on how keys
//! are split into segments.
//!
//! The instruction set is chosen at run time: AVX-512, AVX2 with FMA, or portable, and AMX for products with frozen weights in
//! bf16. Bits may differ between them.

#![expect(unsafe_code, reason = "vector instructions chosen at run time")]

mod aligned;
#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod delta;
mod frozen;
mod gemm;
mod math;
mod team;
mod tile;
mod transpose;

use std::sync::OnceLock;

pub use attention::{Attention, Heads, KeyValues, Span, attend, attend_backward};
pub use delta::{
    DeltaGradients, DeltaHeads, DeltaRows, DeltaSegment, DeltaState, DeltaStep, DeltaWeights, delta_steps,
    delta_tree, delta_tree_backward,
};
pub use frozen::{BLOCK as NF4_BLOCK, Format, Frozen, convert::nf4_pairs, encode_nf4};
pub use gemm::{Lhs, Packed, Rhs, gemm, metered};
pub use math::{
    add_assign, gelu_mul, gelu_mul_backward, log_sum_exp, log_sum_exp_exps, rms_norm, rms_norm_backward,
    rope, sigmoid_mul, sigmoid_mul_backward, silu_mul, silu_mul_backward, softmax,
};
pub use team::by_rows;
pub use tile::{LANES, PANEL};

/// The widest vector instructions that both this machine and the kernels support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    Portable,
    Avx2,
    Avx512,
}

impl Level {
    /// Detected once. `MCPRL_KERNELS=portable|avx2|avx512|avx512_bf16` selects less than the machine supports.
    /// `composed` disables the kernels: see [`super::ops::composed`].
    pub fn get() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            let found = Self::detect();
            match std::env::var("MCPRL_KERNELS").as_deref() {
                Ok("portable") => Self::Portable,
                Ok("avx2") => found.min(Self::Avx2),
                _ => found,
            }
        })
    }

    #[cfg(target_arch = "x86_64")]
    fn detect() -> Self {
        let fma = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let wide = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl");
        match (fma, wide) {
            (true, true) => Self::Avx512,
            (true, false) => Self::Avx2,
            _ => Self::Portable,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn detect() -> Self {
        Self::Portable
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
        }
    }
}

/// Whether the machine multiplies pairs of bf16 with sums in f32, adding the products one after another.
/// `MCPRL_KERNELS=avx512` disables this.
pub fn multiplies_bf16() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let enabled = std::env::var("MCPRL_KERNELS").as_deref() != Ok("avx512");
            let found = Level::get() == Level::Avx512 && is_x86_feature_detected!("avx512bf16");
            // SAFETY: the feature was detected.
            enabled && found && unsafe { tile::adds_pairs_in_order() }
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Whether the machine multiplies tiles of bf16, by AMX. `MCPRL_KERNELS=avx512_bf16` disables this.
pub fn multiplies_tiles() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        static FOUND: OnceLock<bool> = OnceLock::new();
        *FOUND.get_or_init(|| {
            let enabled = std::env::var("MCPRL_KERNELS").as_deref() != Ok("avx512_bf16");
            enabled && multiplies_bf16() && amx::is_available()
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        false
    }
}

/// Compiles a function body once per [`Level`] and calls the best one.
macro_rules! multiversion {
    ($(#[$meta:meta])* pub fn $name:ident($($arg:ident: $type:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        pub fn $name($($arg: $type),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $type),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512dq,avx512bw,avx512vl,avx2,fma")]
                fn avx512($($arg: $type),*) $(-> $ret)? { body($($arg),*) }
                #[target_feature(enable = "avx2,fma")]
                fn avx2($($arg: $type),*) $(-> $ret)? { body($($arg),*) }
                match $crate::model::kernels::Level::get() {
                    // SAFETY: `Level::get` found these features on this machine.
                    $crate::model::kernels::Level::Avx512 => return unsafe { avx512($($arg),*) },
                    // SAFETY: as above.
                    $crate::model::kernels::Level::Avx2 => return unsafe { avx2($($arg),*) },
                    $crate::model::kernels::Level::Portable => {}
                }
            }
            body($($arg),*)
        }
    };
}
use multiversion;
