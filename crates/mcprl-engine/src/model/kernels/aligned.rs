//! Words that begin at a cache line, so that a vector or a row of a tile lies within one.

use std::ops::{Deref, DerefMut};

#[derive(Debug, Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "read through pointers to words")] [u32; 16]);

#[derive(Debug, Clone)]
pub struct Aligned {
    lines: Vec<Line>,
    words: usize,
}

impl Aligned {
    pub fn zeros(words: usize) -> Self {
        Self { lines: vec![Line([0; 16]); words.div_ceil(16)], words }
    }
}

impl Deref for Aligned {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        // SAFETY: the lines are as many words or more, without gaps.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.words) }
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [u32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), self.words) }
    }
}

pub fn as_floats_mut(words: &mut [u32]) -> &mut [f32] {
    // SAFETY: every bit pattern is an `f32`, and both are as large and as aligned.
    unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<f32>(), words.len()) }
}
