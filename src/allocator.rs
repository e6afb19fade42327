//! The allocator of the program, and of `benches/engine`, which measures what the program does.

#![expect(unsafe_code, reason = "the allocator has a C interface")]

use std::ffi::{c_int, c_long};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` of mimalloc 3: how long freed memory is retained, in milliseconds.
const PURGE_DELAY: c_int = 15;
/// A training step reuses the memory that the previous one freed. If it were returned in between, the system would clear
/// it again. The peak of small runs grows by some tens of MiB.
const TEN_SECONDS: c_long = 10_000;

unsafe extern "C" {
    fn mi_option_set_default(option: c_int, value: c_long);
    fn mi_collect(force: bool);
}

pub fn configure() {
    // SAFETY: an option that exists; `MIMALLOC_PURGE_DELAY` overrides it.
    unsafe { mi_option_set_default(PURGE_DELAY, TEN_SECONDS) };
}

/// Returns unused memory to the system.
pub fn trim() {
    // SAFETY: any thread may call it at any time.
    unsafe { mi_collect(true) };
}
